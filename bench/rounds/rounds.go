// Package rounds runs the same cases on several databases in turn, round by round, and compares
// their results within each round: a slow phase of the machine then hits all of them.
//
// Absolute figures of a shared machine say little. Two runs of the same case some minutes apart can
// differ by a factor of two, while the ratio of two databases that ran one directly after the other
// stays. A ratio is therefore taken within a round and never between medians, and the report has the
// median of the ratios with the least and the greatest.
//
// A target is a database with a client, in this process (bench.Target) or in another one (Peer). A
// target that fails in the middle can be dropped; the others continue, and it keeps the rounds that it
// completed.
package rounds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/rhumbdb/rhumb/bench/load"
)

// Target is a database under load.
type Target interface {
	// Name is the name of the target in the report.
	Name() string
	// Offers reports whether the target can run a case.
	Offers(c load.Case) bool
	// Run runs a case. An error means that the target is of no use any more.
	Run(ctx context.Context, c load.Case) (load.Result, error)
	// Stop ends the target.
	Stop()
}

// Run is the result of one case on one target in one round.
type Run struct {
	Target string `json:"target"`
	Round  int    `json:"round"`
	load.Result
}

// Plan describes a measurement.
type Plan struct {
	// Cases run in this order in each round; each runs on all targets that offer it.
	Cases   []load.Case
	Targets []Target
	Rounds  int
	// Discard is the number of rounds before the first that counts. Programs that compile themselves
	// while they run, such as those of Java, are slow in them.
	Discard int
	// Progress receives a line about the next case.
	Progress func(text string)
	// Dropped receives the error of a target, which then takes no further part. If it is nil, the
	// error ends the measurement.
	Dropped func(target string, err error)
}

// FreshKeys is the distance between the first new keys of two cases: more than a case can use.
const FreshKeys = 100_000_000

// Play runs the plan and returns all results.
func (p Plan) Play(ctx context.Context) (runs []Run, err error) {
	dropped := map[string]bool{}
	number := 0
	// Rounds that do not count have negative numbers.
	for round := -p.Discard; round < p.Rounds; round++ {
		for _, c := range p.Cases {
			number++
			// New keys of this case are also new in later rounds.
			c.Fresh = number * FreshKeys
			// In another order each time: what a database does after its case, such as compaction,
			// must not always meet the same one.
			order := rand.New(rand.NewPCG(uint64(number), 0)).Perm(len(p.Targets))
			results := make([]*Run, len(p.Targets))
			for _, i := range order {
				t := p.Targets[i]
				if dropped[t.Name()] || !t.Offers(c) {
					continue
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				p.Progress(fmt.Sprintf("round %d of %d: %s, %s", round+1, p.Rounds, CaseOf(c).Title(), t.Name()))
				// The targets take turns within a case: a slow phase of the machine then hits all of
				// them, and the ratios of a round stay comparable.
				r, err := t.Run(ctx, c)
				switch {
				case err == nil && round < 0:
				case err == nil:
					results[i] = &Run{Target: t.Name(), Round: round, Result: r}
				case p.Dropped == nil || ctx.Err() != nil:
					return nil, err
				default:
					dropped[t.Name()] = true
					p.Dropped(t.Name(), err)
				}
			}
			// Reports list the targets in the order of the plan.
			for _, r := range results {
				if r != nil {
					runs = append(runs, *r)
				}
			}
		}
	}
	return runs, nil
}

// lineMax bounds one line of output of a driver.
const lineMax = 1 << 20

// Peer drives another database through a process of bench/peers.
type Peer struct {
	title string
	ready load.Ready // the first line of the driver
	cmd   *exec.Cmd
	// The driver reads cases from in and writes answers to out, one line each.
	in  io.WriteCloser
	out *bufio.Scanner
}

// MissingError says why a peer cannot take part in a measurement.
type MissingError struct {
	Peer string `json:"peer"`
	// Reason says why it does not run, Install which command changes that, if any is known.
	Reason  string `json:"reason"`
	Install string `json:"install,omitempty"`
}

// Error returns the reason with the command.
func (e *MissingError) Error() string {
	if e.Install == "" {
		return fmt.Sprintf("%s does not run: %s", e.Peer, e.Reason)
	}
	return fmt.Sprintf("%s does not run: %s; %s", e.Peer, e.Reason, e.Install)
}

// OpenPeer starts the driver of a peer and waits until its database is ready. The error is a
// *MissingError if this machine lacks the database. dir must not exist.
func OpenPeer(binary, title, dir string, args ...string) (*Peer, error) {
	p := &Peer{title: title}
	p.cmd = exec.Command(binary, append(args, dir)...)
	p.cmd.Stderr = os.Stderr
	// A Ctrl-C must reach the peer only through the end of its stdin.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, &MissingError{title, fmt.Sprintf("start %s: %v", binary, err), "build it with make peers"}
	}
	p.out = bufio.NewScanner(out)
	p.out.Buffer(nil, lineMax)
	if err := p.readLine(&p.ready); err != nil {
		p.Stop()
		return nil, fmt.Errorf("%s before it was ready: %w", title, err)
	}
	// The driver has ended after such a line.
	if p.ready.Failed != "" {
		p.Stop()
		return nil, &MissingError{title, p.ready.Failed, p.ready.Install}
	}
	return p, nil
}

// readLine decodes the next line of the driver.
func (p *Peer) readLine(v any) error {
	if !p.out.Scan() {
		return errors.Join(errors.New("the driver ended"), p.out.Err())
	}
	return json.Unmarshal(p.out.Bytes(), v)
}

// Name returns the name of the target in the report.
func (p *Peer) Name() string { return p.title }

// Version returns the version of the database.
func (p *Peer) Version() string { return p.ready.Version }

// Offers reports whether the driver has all operations of a case.
func (p *Peer) Offers(c load.Case) bool {
	// Several keys per call are another operation: few databases have it.
	offered := p.ready.Ops
	if c.Batch > 1 {
		offered = p.ready.Many
	}
	for _, op := range c.Needs() {
		if !slices.Contains(offered, op) {
			return false
		}
	}
	return true
}

// Run sends a case to the driver and waits for the result.
func (p *Peer) Run(_ context.Context, c load.Case) (load.Result, error) {
	// One line is a case, and the next line of the driver is its result.
	var a load.Answer
	if err := json.NewEncoder(p.in).Encode(c); err != nil {
		return a.Result, err
	}
	if err := p.readLine(&a); err != nil {
		return a.Result, fmt.Errorf("%s during a case: %w", p.title, err)
	}
	if a.Failed != "" {
		return a.Result, fmt.Errorf("%s: %s", p.title, a.Failed)
	}
	return a.Result, nil
}

// Stop ends the driver, which ends the database.
func (p *Peer) Stop() {
	// The driver ends with its stdin.
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
