package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/rhumbdb/rhumb/bench/disk"
)

// shapeTool is the program that puts packets into a queue. The rules of nft could do it
// too, in kernels that have them.
const shapeTool = "iptables"

// shapeFaults returns the faults of links that work, badly.
func shapeFaults() []Fault {
	return []Fault{
		{"delay", "F16", "the packets from and to one node take 50 to 100 ms longer", gapSlow, shapeStrike("delay", shape{delay: 50 * time.Millisecond, jitter: 50 * time.Millisecond})},
		{"loss", "F17", "one in ten packets from and to one node is lost", gapSlow, shapeStrike("loss", shape{loss: 0.1})},
		{"reorder", "F18", "one in four packets from and to one node overtakes those of the last 10 to 20 ms", gapSlow, shapeStrike("reorder", shape{delay: 10 * time.Millisecond, jitter: 10 * time.Millisecond, overtake: 0.25})},
		{"slow-link", "F19", "each node gets one megabit a second from one node, and that one from all others together", gapSlow, shapeStrike("slow-link", shape{bytesPerSecond: 1e6 / 8})},
	}
}

// missing returns the means for a fault that this machine, or the run, lacks, or "".
func (f Fault) missing(cfg *Config) string {
	switch {
	case f.ownDisks():
		return disk.Missing()
	case f.Name == "upgrade" && cfg.Previous == "":
		return "name the previous program with --previous (make chaos FAULTS=upgrade builds it)"
	case cfg.Previous != "" && slices.Contains([]string{"handover", "split", "join", "replace", "lost-store", "read-error"}, f.Name):
		return "with --previous, the cluster has the version of the previous program, which cannot do that"
	case f.ID == "F40" || f.ID == "F41" || f.ID == "F42":
		// The flag is unknown to releases before it.
		if cfg.Previous != "" {
			return "with --previous, nodes have no wrong clocks"
		}
	case slices.ContainsFunc(shapeFaults(), func(s Fault) bool { return s.Name == f.Name }):
		if _, err := exec.LookPath(shapeTool); err != nil {
			return "install the package " + shapeTool
		}
	}
	return ""
}

// shapeStrike returns a fault that shapes all links of a random node, in both
// directions.
func shapeStrike(name string, s shape) func(context.Context, *Cluster, *rand.Rand) (*Strike, error) {
	return func(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
		n := draw(c, random)
		l := &shaped{what: s}
		err := l.add(ctx, n, random, c.others(n)...)
		for _, o := range c.others(n) {
			if err == nil {
				err = l.add(ctx, o, random, n)
			}
		}
		if err != nil {
			_, undone := l.heal(ctx)
			return nil, errors.Join(err, undone)
		}
		return &Strike{What: name + " " + n.Name, heal: l.heal}, nil
	}
}

// shaped are the links that are shaped at a time.
type shaped struct {
	what    shape
	shapers []*shaper
	rules   []func(context.Context) error // remove the rules again
}

// add shapes what a node receives from others.
func (l *shaped) add(ctx context.Context, to *Node, random *rand.Rand, from ...*Node) error {
	// Each shaper draws from a source of its own, because they run at the same time.
	s, err := startShaper(to.host.Namespace(), l.what, rand.New(rand.NewPCG(random.Uint64(), 0)))
	if err != nil {
		return fmt.Errorf("%s: %w", to.Name, err)
	}
	l.shapers = append(l.shapers, s)
	for _, o := range from {
		rule := func(ctx context.Context, verb string) error {
			// Without the shaper, packets pass: an interrupted run leaves links that
			// work.
			_, err := to.host.Run(ctx, shapeTool, "-w", "-t", "mangle", verb, "PREROUTING", "-s", o.Addr.String(), "-j", "NFQUEUE", "--queue-num", strconv.Itoa(queueNumber), "--queue-bypass")
			return err
		}
		if err := rule(ctx, "-A"); err != nil {
			return err
		}
		l.rules = append(l.rules, func(ctx context.Context) error { return rule(ctx, "-D") })
	}
	return nil
}

// heal removes the shapes. The evidence is what they did to packets.
func (l *shaped) heal(ctx context.Context) (evidence string, err error) {
	// No packet comes to a shaper that is gone.
	for _, remove := range l.rules {
		err = errors.Join(err, remove(ctx))
	}
	var passed, lost, overtaken int
	for _, s := range l.shapers {
		done, failed := s.stop()
		err = errors.Join(err, failed)
		passed, lost, overtaken = passed+done.passed, lost+done.lost, overtaken+done.overtaken
	}
	err = errors.Join(err, l.what.checkPackets(passed, lost, overtaken))
	return fmt.Sprintf("%d packets held, %d lost, %d overtook others", passed, lost, overtaken), err
}
