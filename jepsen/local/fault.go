package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// Strike is a fault in progress.
type Strike struct {
	// What names the fault and those it hit.
	What string
	// heal ends the fault and returns evidence that it had an effect, or an error
	// if it had none.
	heal func(ctx context.Context) (evidence string, err error)
}

// Fault is a kind of fault.
type Fault struct {
	// Name selects the fault on the command line. ID is its name in the list of
	// faults in jepsen/README.md.
	Name, ID string
	// Doc is one line about the fault, for `chaos --list`.
	Doc string
	// Gap bounds the time during which a key has no service. 0 means that the fault
	// has no bound: no majority is left, or the fault strikes again and again.
	Gap time.Duration
	// strike begins the fault.
	strike func(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error)
}

// Bounds of the time without service. A failover in one region takes at most 2 s;
// for faults that look like a slow node, half a second more, and the pause of the
// clients before they try again.
const (
	gapFailover = 2500 * time.Millisecond
	gapSlow     = 3 * time.Second
)

// Faults returns all faults, in the order of the documentation.
func Faults() []Fault {
	return slices.Concat([]Fault{
		{"kill", "F1", "kill -9 of one node; systemd restarts it", gapFailover, strikeKill},
		{"power", "F1", "one host stops at once and stays down until the fault ends; writes that were not synced survive", gapFailover, strikePower},
		{"pause", "F3", "SIGSTOP of one node", gapSlow, strikePause},
		{"kill-all", "F6", "kill -9 of all nodes at once", 0, strikeKillAll},
		{"region", "F55", "all hosts of one region stop at once; writes that were not synced survive", 0, strikeRegion},
		{"empty", "F36", "one disk is replaced by an empty one", gapFailover, strikeEmpty},
		{"roll-back", "F37", "one disk goes back to its state of some seconds before", gapFailover, strikeRollBack},
		{"torn", "F31", "the end of the log of a killed node is missing", gapFailover, strikeTorn},
		{"flip", "F32", "one bit in the log of a killed node changes", gapFailover, strikeFlip},
	}, diskFaults(), clockFaults(), linkFaults(), shapeFaults(), changeFaults(), memberFaults())
}

// endsProcesses reports whether a fault ends the process of a node, or starts
// another one.
func (f Fault) endsProcesses() bool {
	return slices.Contains([]string{
		"kill", "kill-all", "power", "region", "empty", "roll-back", "torn", "flip", "lost-store", "read-error", "full", "join", "replace", "upgrade",
	}, f.Name)
}

// errNoEffect is the cause of all errors about faults that did nothing.
var errNoEffect = errors.New("the fault had no effect")

// canGoOn reports whether another fault may follow one that ended with an error: it
// did nothing, and the cluster is whole.
func canGoOn(err error) bool { return errors.Is(err, errNoEffect) && !errors.Is(err, errNotWhole) }

// draw returns a random node.
func draw(c *Cluster, random *rand.Rand) *Node { return c.nodes[random.IntN(len(c.nodes))] }

// signal sends a signal to the node on a host.
func (n *Node) signal(ctx context.Context, name string) error {
	_, err := n.host.Run(ctx, "systemctl", "kill", "-s", name, "rhumb")
	return err
}

// awaitLife waits until the nodes are in newer lives. A node that was fenced begins
// a new life without a new process, so the caller has ended the processes itself.
func (c *Cluster) awaitLife(ctx context.Context, before map[*Node]rhumb.NodeIdentity) (evidence string, err error) {
	// The lives are those in the metadata, as the client of the operator has them.
	deadline := time.Now().Add(healWait)
	var lives []string
	for n, old := range before {
		now := c.identity(n)
		for ; !isLater(now, old); now = c.identity(n) {
			if time.Now().After(deadline) {
				return "", fmt.Errorf("%w: %s is still %s in life %d", errNoEffect, n.Name, old.Node, old.Boot)
			}
			if err := wait(ctx, pollWait); err != nil {
				return "", err
			}
		}
		lives = append(lives, fmt.Sprintf("%s is %s in life %d", n.Name, now.Node, now.Boot))
	}
	slices.Sort(lives)
	return strings.Join(lives, ", "), nil
}

// lives returns the lives of nodes.
func (c *Cluster) lives(nodes ...*Node) map[*Node]rhumb.NodeIdentity {
	out := map[*Node]rhumb.NodeIdentity{}
	for _, n := range nodes {
		out[n] = c.identity(n)
	}
	return out
}

// strikeKill kills the process of one node. systemd restarts it after a second, so
// the node is back before the fault ends and the others may have taken over
// meanwhile.
func strikeKill(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	before := c.lives(n)
	if err := n.signal(ctx, "KILL"); err != nil {
		return nil, err
	}
	return &Strike{What: "kill " + n.Name, heal: func(ctx context.Context) (string, error) { return c.awaitLife(ctx, before) }}, nil
}

// strikeKillAll kills all processes within some milliseconds of each other. No node
// is left to take over, so service returns when systemd has restarted enough of
// them.
func strikeKillAll(ctx context.Context, c *Cluster, _ *rand.Rand) (*Strike, error) {
	// Taken before the kill, because systemd may restart a node within the loop.
	before := c.lives(c.nodes...)
	for _, n := range c.nodes {
		if err := n.signal(ctx, "KILL"); err != nil {
			return nil, err
		}
	}
	return &Strike{What: "kill-all", heal: func(ctx context.Context) (string, error) { return c.awaitLife(ctx, before) }}, nil
}

// cutPower ends all processes of hosts, and starts the hosts again when the strike
// ends.
func cutPower(c *Cluster, what string, nodes ...*Node) (*Strike, error) {
	before := c.lives(nodes...)
	for _, n := range nodes {
		if err := n.host.Kill(); err != nil {
			return nil, err
		}
	}
	return &Strike{What: what, heal: func(ctx context.Context) (string, error) {
		for _, n := range nodes {
			if err := n.host.Start(); err != nil {
				return "", err
			}
		}
		return c.awaitLife(ctx, before)
	}}, nil
}

// strikePower cuts the power of one host. Unlike kill, the node stays away for as
// long as the fault lasts, and its memory is lost: the folders /run, /tmp and
// /dev/shm are empty afterwards.
func strikePower(_ context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return cutPower(c, "power "+n.Name, n)
}

// strikeRegion cuts the power of every host of one region. Tables that live in this
// region only have no service meanwhile, and no bound is checked.
func strikeRegion(_ context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	region := c.cfg.Regions[random.IntN(len(c.cfg.Regions))]
	var all []*Node
	for _, n := range c.nodes {
		if n.Region == region {
			all = append(all, n)
		}
	}
	return cutPower(c, "region "+region, all...)
}

// strikePause stops a process with SIGSTOP. Its connections stay open, so others
// notice only that it is silent. When the process continues, it does not know that
// time has passed, and must not answer from a lease that ended.
func strikePause(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	if err := n.signal(ctx, "STOP"); err != nil {
		return nil, err
	}
	return &Strike{What: "pause " + n.Name, heal: func(ctx context.Context) (string, error) {
		// State T in the list of processes is the evidence.
		out, err := n.host.Run(ctx, "ps", "-C", "rhumb", "-o", "stat=")
		if err == nil {
			err = checkStopped(out)
		}
		return "the process was stopped", errors.Join(err, n.signal(ctx, "CONT"))
	}}, nil
}

// dataDir is the folder of a node's data on its host.
const dataDir = "/var/lib/rhumb"

// strikeDisk stops a node without warning, changes its disk and starts it again.
func strikeDisk(ctx context.Context, c *Cluster, n *Node, what string, change func(ctx context.Context) (evidence string, err error)) (*Strike, error) {
	before := c.lives(n)
	// A host without power, so that systemd does not restart the node meanwhile.
	if err := n.host.Kill(); err != nil {
		return nil, err
	}
	changed, err := change(ctx)
	if err != nil {
		return nil, errors.Join(err, n.host.Start())
	}
	return &Strike{What: what + " " + n.Name, heal: func(ctx context.Context) (string, error) {
		if err := n.host.Start(); err != nil {
			return "", err
		}
		lived, err := c.awaitLife(ctx, before)
		return changed + "; " + lived, err
	}}, nil
}

// disk returns the folder of this machine with the disk of a node.
func (n *Node) disk() string { return n.host.DataDir(dataDir) }

// keptOnDisk is the folder that a new disk of a host has: the certificate of the
// node. Without it, the node would be a stranger who needs a token.
const keptOnDisk = "identity"

// isKept reports whether an entry of a disk is not data of the node.
func isKept(name string) bool { return name == keptOnDisk || name == "lost+found" }

// wipe removes everything from the disk of a node but its certificate, and returns
// the names of what it removed.
func (n *Node) wipe() (removed []string, err error) {
	entries, err := os.ReadDir(n.disk())
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if isKept(e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(n.disk(), e.Name())); err != nil {
			return nil, err
		}
		removed = append(removed, e.Name())
	}
	if len(removed) == 0 {
		return nil, fmt.Errorf("%w: %s has no data", errNoEffect, n.disk())
	}
	return removed, nil
}

// strikeEmpty replaces the disk of a node by an empty one. The node must notice
// that it has forgotten its promises, and copy all of its ranges from the others.
func strikeEmpty(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return strikeDisk(ctx, c, n, "empty", func(context.Context) (string, error) {
		removed, err := n.wipe()
		return "removed " + strings.Join(removed, ", "), err
	})
}

// rollBackBy is how long a disk runs after its image was taken.
const rollBackBy = 3 * time.Second

// strikeRollBack takes an image of a disk, lets the node run on, and puts the image
// back, as the restart of a virtual machine from an image does. The node is down at
// both moments, because a copy of a running disk would be torn too.
func strikeRollBack(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	image := filepath.Join(c.cfg.Dir, "image-"+n.Name)
	taken, err := strikeDisk(ctx, c, n, "image", func(ctx context.Context) (string, error) { return "", copyTree(ctx, n.disk(), image) })
	if err != nil {
		return nil, err
	}
	if _, err := taken.heal(ctx); err != nil {
		return nil, err
	}
	// Without all copies in sync, the roll-back would be a second fault beyond the
	// first.
	if err := c.AwaitWhole(ctx, healWait); err != nil {
		return nil, err
	}
	if err := wait(ctx, rollBackBy); err != nil {
		return nil, err
	}
	return strikeDisk(ctx, c, n, "roll-back", func(ctx context.Context) (string, error) {
		// Files that are younger than the image are gone afterwards.
		if _, err := n.wipe(); err != nil {
			return "", err
		}
		entries, err := os.ReadDir(image)
		if err != nil {
			return "", err
		}
		var names []string
		for _, e := range entries {
			if isKept(e.Name()) {
				continue
			}
			if err := copyTree(ctx, filepath.Join(image, e.Name()), filepath.Join(n.disk(), e.Name())); err != nil {
				return "", err
			}
			names = append(names, e.Name())
		}
		return "put back " + strings.Join(names, ", "), os.RemoveAll(image)
	})
}

// copyTree copies a folder with its owners, which are those of the users of a host.
func copyTree(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// newestLog returns the part of a file that most likely holds entries of acknowledged writes: of each store everything before the zeros at the
// end of the log of the database that was begun last, or the newest lap of a log of its own; of these the largest part.
func (n *Node) newestLog() (newest nodelog.Extent, err error) {
	for _, store := range []string{"", filepath.Base(secondStore)} {
		dir := filepath.Join(n.disk(), store)
		// Sorted by number: earlier logs may be spent, and are kept to be written over.
		logs, err := filepath.Glob(filepath.Join(dir, "data", "*.log"))
		if err != nil {
			return newest, err
		}
		var part nodelog.Extent
		if own := filepath.Join(dir, ownLog); exists(own) {
			if part, err = nodelog.Newest(nodelog.Config{Dir: own}); err != nil {
				return newest, err
			}
		} else if len(logs) > 0 {
			b, err := os.ReadFile(logs[len(logs)-1])
			if err != nil {
				return newest, err
			}
			// A log that is written over may end with records of an earlier one, which count here too.
			part = nodelog.Extent{Path: logs[len(logs)-1], To: int64(len(bytes.TrimRight(b, "\x00")))}
		}
		if part.To-part.From > newest.To-newest.From {
			newest = part
		}
	}
	if newest.To-newest.From < 2 {
		return newest, fmt.Errorf("%w: %s has no log", errNoEffect, n.Name)
	}
	return newest, nil
}

// ownLog is the folder of the log of a store, in that of the store, if it has one of its own.
const ownLog = "log"

// exists reports whether there is a file.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// change changes a part of a file in place.
func change(part nodelog.Extent, f func([]byte)) error {
	file, err := os.OpenFile(part.Path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, part.To-part.From)
	if _, err = file.ReadAt(b, part.From); err == nil {
		f(b)
		_, err = file.WriteAt(b, part.From)
	}
	return errors.Join(err, file.Close())
}

// tornMost bounds how much of the end of a log is lost, in bytes, as a disk loses
// the part that is in its cache only.
const tornMost = 64 << 10

// strikeTorn removes the end of the log of a killed node, as a disk does that had
// not written all of its cache. Entries of acknowledged writes may be among them,
// and the other copies must supply these.
func strikeTorn(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return strikeDisk(ctx, c, n, "torn", func(context.Context) (string, error) {
		log, err := n.newestLog()
		if err != nil {
			return "", err
		}
		// At least one byte is lost and at least one is left.
		lost := 1 + random.Int64N(min(log.To-log.From-1, tornMost))
		what := fmt.Sprintf("%d bytes at the end of %s lost", lost, filepath.Base(log.Path))
		if strings.HasSuffix(log.Path, ".log") {
			return what, os.Truncate(log.Path, log.To-lost)
		}
		// The files of a store's own log have a fixed size.
		return what, change(nodelog.Extent{Path: log.Path, From: log.To - lost, To: log.To}, func(b []byte) { clear(b) })
	})
}

// strikeFlip changes one bit of the log of a killed node. The checksum of the entry
// must show it. The node may neither serve the entry nor take the damage for the
// end of an interrupted write.
func strikeFlip(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	n := draw(c, random)
	return strikeDisk(ctx, c, n, "flip", func(context.Context) (string, error) {
		log, err := n.newestLog()
		if err != nil {
			return "", err
		}
		// Any byte that was written may change, including those of headers.
		at := log.From + random.Int64N(log.To-log.From)
		what := fmt.Sprintf("a bit of byte %d of %s changed", at, filepath.Base(log.Path))
		return what, change(nodelog.Extent{Path: log.Path, From: at, To: at + 1}, func(b []byte) { b[0] ^= 1 << random.IntN(8) })
	})
}
