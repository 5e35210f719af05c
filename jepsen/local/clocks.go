package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"
)

// clockFile is the file on a host with the error of the node's clock (`rhumb start --clock-error-file`). Hosts share the kernel and its
// clock, so the error is one of the process.
const clockFile = "/etc/rhumb/clock"

// clockNotice is the message in the log of a node when the error of its clock changes.
const clockNotice = "the clock of this node is wrong on purpose"

// clockFaults returns the faults of clocks. A wrong clock may neither break an answer nor stop a key.
func clockFaults() []Fault {
	return []Fault{
		{"clock", "F40", "the clock of one node jumps by 100 ms to an hour, ahead or back, and returns", gapSlow, strikeClock},
		{"strobe", "F41", "the clock of one node is wrong by up to an hour and right, for 200 ms each, in turn", gapSlow, strikeStrobe},
		{"rate", "F42", "the clock of one node is 5 % too fast or too slow", gapSlow, strikeRate},
	}
}

// clockErrors holds the sizes of a wrong clock, from one that breaks nothing to the bound of an hour.
var clockErrors = []time.Duration{100 * time.Millisecond, 2 * time.Second, time.Minute, time.Hour}

// drawOffset returns a random error of a clock.
func drawOffset(random *rand.Rand) time.Duration {
	d := clockErrors[random.IntN(len(clockErrors))]
	if random.IntN(2) == 0 {
		return -d
	}
	return d
}

// strikeClock lets the clock of a node jump.
func strikeClock(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	return strikeWrong(ctx, draw(c, random), fmt.Sprintf("offset=%v", drawOffset(random)))
}

// strikeStrobe lets the clock of a node jump five times a second.
func strikeStrobe(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	return strikeWrong(ctx, draw(c, random), fmt.Sprintf("offset=%v strobe=200ms", drawOffset(random)))
}

// strikeRate lets the clock of a node run too fast or too slow.
func strikeRate(ctx context.Context, c *Cluster, random *rand.Rand) (*Strike, error) {
	rates := []string{"rate=0.95", "rate=1.05"}
	return strikeWrong(ctx, draw(c, random), rates[random.IntN(len(rates))])
}

// strikeWrong sets the clock of a node wrong until the strike ends. The evidence is that the node has taken it, and how often it
// noticed that its clocks disagree.
func strikeWrong(ctx context.Context, n *Node, wrong string) (*Strike, error) {
	// The log is counted and not emptied, because it belongs to the report.
	before, err := n.logged(clockNotice)
	if err != nil {
		return nil, err
	}
	// The watchdog of leases sees each jump that is larger than those of a time service.
	noticed, err := n.logged("clock disagree")
	if err != nil {
		return nil, err
	}
	// A clock that was set half way is right again before the next fault.
	if err := n.setClock(ctx, wrong); err != nil {
		return nil, errors.Join(err, n.setClock(context.WithoutCancel(ctx), ""))
	}
	return &Strike{What: "clock of " + n.Name + " " + wrong, heal: func(ctx context.Context) (string, error) {
		now, err := n.logged(clockNotice)
		if err == nil {
			err = checkLogged(n.Name, "its clock is wrong", before, now)
		}
		after, _ := n.logged("clock disagree")
		return fmt.Sprintf("the node noticed %d jumps of its clock", after-noticed), errors.Join(err, n.setClock(ctx, ""))
	}}, nil
}

// setClock writes the error of the clock of a node; "" is none. The file takes its place whole, so that the node never reads half of it.
func (n *Node) setClock(ctx context.Context, text string) error {
	return n.install(ctx, clockFile, "root", "0644", text)
}

// logged counts the lines of a node's log that contain a text.
func (n *Node) logged(text string) (int, error) {
	b, err := os.ReadFile(n.host.LogFile("rhumb"))
	return strings.Count(string(b), text), err
}

// install writes a file with its owner and mode on the host in one step, so that no other user can read a token.
func (n *Node) install(ctx context.Context, path, owner, mode, text string) error {
	return installOn(ctx, n.host, path, owner, mode, text)
}
