package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// StallGoal is the longest acceptable time without a successful write to a key of a range that can
// elect a primary.
const StallGoal = 3 * time.Second

// StallConfig configures RunStall.
type StallConfig struct {
	// Cluster has one region and was started with --cuts.
	Cluster *Cluster
	// Kind is the fault, and Faults is how often it strikes.
	Kind   FaultKind
	Faults int
	// Keys is the number of keys, each with a caller that writes it repeatedly. The default is 64.
	Keys int
	// Pause is the time between two writes of a caller. The default is 10 ms.
	Pause time.Duration
	// Hold is how long a fault lasts. The default is 5 s. A killed node is down for three.
	Hold time.Duration
	// Random draws the affected nodes.
	Random *rand.Rand
	// Progress receives a line about each fault. It may be nil.
	Progress func(text string)
}

// StallCell sums up all faults of one kind on one cluster. A gap is the longest time without a
// successful write to a key, for each key and fault, from the fault until all nodes were live and
// all replicas in sync again.
type StallCell struct {
	Nodes  int       `json:"nodes"`
	Kind   FaultKind `json:"kind"`
	Faults int       `json:"faults"`
	Keys   int       `json:"keys"`
	Ranges int       `json:"ranges"`

	P50 time.Duration `json:"p50_ns"`
	P90 time.Duration `json:"p90_ns"`
	Max time.Duration `json:"max_ns"`
	// Late counts the gaps above StallGoal.
	Late int `json:"late"`
	// Worst describes the fault with the longest gap.
	Worst string `json:"worst"`
	// FalseFencings counts the lives that nodes began although they were neither killed nor paused.
	FalseFencings int `json:"false_fencings"`
	// Whole is the longest time from the end of a fault until all replicas were in sync.
	Whole time.Duration `json:"whole_ns"`
	// Writes counts acknowledged writes, Errors the writes that failed or whose outcome is unknown,
	// and Lost the keys without their last acknowledged write at the end.
	Writes int64 `json:"writes"`
	Errors int64 `json:"errors"`
	Lost   int   `json:"lost"`

	// gaps are the gaps of all keys and faults.
	gaps []time.Duration
}

// Add adds the faults of the same kind on another cluster of as many nodes.
func (c *StallCell) Add(o *StallCell) {
	c.Faults += o.Faults
	c.Ranges = max(c.Ranges, o.Ranges)
	if o.Max > c.Max {
		c.Max, c.Worst = o.Max, o.Worst
	}
	c.Late += o.Late
	c.FalseFencings += o.FalseFencings
	c.Whole = max(c.Whole, o.Whole)
	c.Writes, c.Errors, c.Lost = c.Writes+o.Writes, c.Errors+o.Errors, c.Lost+o.Lost
	c.gaps = append(c.gaps, o.gaps...)
	c.summarise()
}

// summarise computes the quantiles of the gaps.
func (c *StallCell) summarise() {
	if slices.Sort(c.gaps); len(c.gaps) > 0 {
		c.P50, c.P90 = c.gaps[len(c.gaps)/2], c.gaps[len(c.gaps)*9/10]
	}
}

// stallQuiet is how long a cluster must be unchanged before the next fault.
const stallQuiet = 500 * time.Millisecond

// RunStall writes to a cluster of one region, injects faults, and measures for how long each key
// could not be written. At the end it reads back every acknowledged write.
func RunStall(ctx context.Context, cfg StallConfig) (*StallCell, error) {
	if cfg.Keys == 0 {
		cfg.Keys = 64
	}
	if cfg.Pause == 0 {
		cfg.Pause = 10 * time.Millisecond
	}
	if cfg.Hold == 0 {
		cfg.Hold = 5 * time.Second
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "stall", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	s := &stall{cfg: cfg, hold: &hold{c: c, t: t}}
	return s.runFaults(ctx)
}

// stall is a run of RunStall.
type stall struct {
	*hold
	cfg StallConfig
}

// runFaults injects all faults, then reads the keys back.
func (s *stall) runFaults(ctx context.Context) (*StallCell, error) {
	cell := &StallCell{Nodes: len(s.cfg.Cluster.Nodes), Kind: s.cfg.Kind, Keys: s.cfg.Keys}
	if err := s.awaitCalm(ctx); err != nil {
		return nil, err
	}
	s.startWriters(ctx, s.cfg.Keys, s.cfg.Pause)
	defer s.stopWriters()
	if err := pauseFor(ctx, stallQuiet); err != nil {
		return nil, err
	}
	cell.Ranges = len(s.c.Ranges())
	for range s.cfg.Faults {
		if err := s.strikeOnce(ctx, cell); err != nil {
			return nil, fmt.Errorf("%d nodes, fault %d of kind %s: %w", cell.Nodes, cell.Faults+1, cell.Kind, err)
		}
	}
	// The readback needs the last acknowledgements of all writers.
	s.stopWriters()
	cell.summarise()
	cell.Writes, cell.Errors = s.countWrites()
	var err error
	cell.Lost, err = s.countLost(ctx)
	return cell, err
}

// strikeOnce injects one fault and waits until the cluster has recovered.
func (s *stall) strikeOnce(ctx context.Context, cell *StallCell) error {
	// Lives and counters before the fault, to distinguish its effects from earlier ones.
	lives, withheld := s.nodeLives(), s.cfg.Cluster.Withheld(ctx)
	// The gaps before the fault are discarded.
	s.takeGaps()
	f, err := s.cfg.Cluster.Strike(cell.Kind, s.cfg.Random)
	if err != nil {
		return err
	}
	err = pauseFor(ctx, s.cfg.Hold)
	if err == nil {
		// A fault without effect would count as an excellent result, so its effect is checked
		// first.
		err = s.checkHappened(ctx, f, lives, withheld)
	}
	// The fault is healed even after an error: a paused process would stay stopped.
	if healing := f.Heal(); err == nil {
		err = healing
	}
	if err != nil {
		return err
	}
	// Recovery is measured from the end of the fault, gaps from its start.
	healed := time.Now()
	if err := s.awaitCalm(ctx); err != nil {
		return err
	}
	whole := time.Since(healed)
	gaps := s.takeGaps()
	worst := slices.Max(gaps)
	fenced := s.countFenced(f, lives)
	cell.addFault(f, gaps, whole, fenced)
	s.cfg.Progress(fmt.Sprintf("%d nodes: %s: longest gap %v, in sync again %v after the end, %d false fencings",
		cell.Nodes, f.What, worst.Round(time.Millisecond), whole.Round(time.Millisecond), fenced))
	return nil
}

// addFault adds the figures of one fault.
func (c *StallCell) addFault(f *Fault, gaps []time.Duration, whole time.Duration, fenced int) {
	c.Faults++
	c.gaps = append(c.gaps, gaps...)
	if worst := slices.Max(gaps); worst > c.Max {
		c.Max, c.Worst = worst, f.What
	}
	for _, g := range gaps {
		if g > StallGoal {
			c.Late++
		}
	}
	c.Whole = max(c.Whole, whole)
	c.FalseFencings += fenced
}

// awaitCalm waits until the cluster has been intact for stallQuiet. An intact cluster may be about
// to change its in-sync sets, and the next fault would then measure two faults.
func (s *stall) awaitCalm(ctx context.Context) error {
	for {
		if err := s.awaitSettled(ctx); err != nil {
			return err
		}
		since := s.sumVersions()
		if err := pauseFor(ctx, stallQuiet); err != nil {
			return err
		}
		// No record has changed for stallQuiet.
		if s.sumVersions() == since {
			return s.awaitSettled(ctx)
		}
	}
}

// sumVersions returns the sum of the versions of all records. While it grows, the cluster is still
// changing.
func (s *stall) sumVersions() (sum uint64) {
	for _, r := range s.c.Ranges() {
		sum += uint64(r.Version)
	}
	return sum
}

// nodeLives returns the present life of each node.
func (s *stall) nodeLives() map[rhumb.NodeID]rhumb.BootSeq {
	out := map[rhumb.NodeID]rhumb.BootSeq{}
	for _, n := range s.c.Nodes() {
		out[n.ID] = n.Boot
	}
	return out
}

// countFenced returns the number of lives that nodes have begun since, except for the victim of the
// fault.
func (s *stall) countFenced(f *Fault, before map[rhumb.NodeID]rhumb.BootSeq) (n int) {
	for id, life := range s.nodeLives() {
		// The victim of a kill or a pause may be fenced rightly.
		if id != f.Victim {
			n += int(life - before[id])
		}
	}
	return n
}

// checkHappened returns an error if the fault had no effect.
func (s *stall) checkHappened(ctx context.Context, f *Fault, lives map[rhumb.NodeID]rhumb.BootSeq, withheld float64) error {
	switch f.Kind {
	case FaultKill:
		return s.awaitReborn(ctx, f.Victim, lives[f.Victim])
	case FaultPause:
		for _, n := range s.cfg.Cluster.Nodes {
			if n.ID == f.Victim && !isStopped(n.Addr) {
				return fmt.Errorf("%s: the process was not stopped", f.What)
			}
		}
		return nil
	}
	// Links that withheld nothing were not cut, or carried nothing.
	if s.cfg.Cluster.Withheld(ctx) == withheld {
		return fmt.Errorf("%s: the cut links withheld nothing", f.What)
	}
	return nil
}

// awaitReborn waits until a killed node is in a new life.
func (s *stall) awaitReborn(ctx context.Context, n rhumb.NodeID, before rhumb.BootSeq) error {
	for deadline := time.Now().Add(settleMax); s.nodeLives()[n] == before; {
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s did not restart within %v", n, settleMax)
		}
		if err := pauseFor(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
