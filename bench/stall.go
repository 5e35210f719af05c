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

// StallGoal is how long a key of a range that can elect a primary may be without a successful write.
const StallGoal = 3 * time.Second

// StallConfig says what RunStall does.
type StallConfig struct {
	// Cluster has one region and was started with --cuts.
	Cluster *Cluster
	// Kind is the fault, and Faults how often it strikes.
	Kind   FaultKind
	Faults int
	// Keys is the number of keys, each with a caller that writes it again and again; default 64.
	Keys int
	// Pause is the time between two writes of a caller; default 10 ms.
	Pause time.Duration
	// Hold is how long a fault lasts; default 5 s. A killed node is down for three.
	Hold time.Duration
	// Random draws who is hurt.
	Random *rand.Rand
	// Progress is told what one fault did; it may be nil.
	Progress func(text string)
}

// StallCell is what all faults of one kind did to one cluster. Gaps are the longest times that a key was without a successful
// write, one for each key and fault, from the fault until all nodes were live and all replicas in sync again.
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
	// Worst says what the fault with the longest gap was.
	Worst string `json:"worst"`
	// FalseFencings counts the lives that nodes began although they were neither killed nor paused.
	FalseFencings int `json:"false_fencings"`
	// Whole is the longest time from the end of a fault until all was in sync.
	Whole time.Duration `json:"whole_ns"`
	// Writes counts acknowledged writes, Errors those that failed or whose outcome stayed unknown, Lost the keys without
	// their last acknowledged write at the end.
	Writes int64 `json:"writes"`
	Errors int64 `json:"errors"`
	Lost   int   `json:"lost"`

	gaps []time.Duration // of all keys and faults
}

// Add adds what the same kind of fault did to another cluster of as many nodes.
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

func (c *StallCell) summarise() {
	if slices.Sort(c.gaps); len(c.gaps) > 0 {
		c.P50, c.P90 = c.gaps[len(c.gaps)/2], c.gaps[len(c.gaps)*9/10]
	}
}

// stallQuiet is how long a cluster has to be whole before the next fault.
const stallQuiet = 500 * time.Millisecond

// RunStall holds a load of writes on a cluster of one region, hurts it again and again, and measures for how long each key
// could not be written. At the end it reads back what was acknowledged.
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
	c, err := client.Open(ctx, client.Config{Addrs: cfg.Cluster.Addrs(), Insecure: true, Timeout: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "stall", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	s := &stall{cfg: cfg, hold: &hold{c: c, t: t}}
	return s.run(ctx)
}

type stall struct {
	*hold
	cfg StallConfig
}

func (s *stall) run(ctx context.Context) (*StallCell, error) {
	cell := &StallCell{Nodes: len(s.cfg.Cluster.Nodes), Kind: s.cfg.Kind, Keys: s.cfg.Keys}
	if err := s.calm(ctx); err != nil {
		return nil, err
	}
	s.begin(ctx, s.cfg.Keys, s.cfg.Pause)
	defer s.end()
	if err := pause(ctx, stallQuiet); err != nil {
		return nil, err
	}
	cell.Ranges = len(s.c.Ranges())
	for range s.cfg.Faults {
		if err := s.strike(ctx, cell); err != nil {
			return nil, fmt.Errorf("%d nodes, fault %d of kind %s: %w", cell.Nodes, cell.Faults+1, cell.Kind, err)
		}
	}
	s.end()
	cell.summarise()
	cell.Writes, cell.Errors = s.counts()
	var err error
	cell.Lost, err = s.audit(ctx)
	return cell, err
}

// strike hurts the cluster once, and waits until it is whole again.
func (s *stall) strike(ctx context.Context, cell *StallCell) error {
	lives, withheld := s.lives(), s.cfg.Cluster.Withheld(ctx)
	s.gaps()
	f, err := s.cfg.Cluster.Strike(cell.Kind, s.cfg.Random)
	if err != nil {
		return err
	}
	err = pause(ctx, s.cfg.Hold)
	if err == nil {
		err = s.evidence(ctx, f, lives, withheld)
	}
	if healing := f.Heal(); err == nil {
		err = healing
	}
	if err != nil {
		return err
	}
	healed := time.Now()
	if err := s.calm(ctx); err != nil {
		return err
	}
	whole := time.Since(healed)
	gaps := s.gaps()
	worst := slices.Max(gaps)
	fenced := s.fenced(f, lives)
	cell.note(f, gaps, whole, fenced)
	s.cfg.Progress(fmt.Sprintf("%d nodes: %s: longest gap %v, whole again %v after the end, %d false fencings",
		cell.Nodes, f.What, worst.Round(time.Millisecond), whole.Round(time.Millisecond), fenced))
	return nil
}

// note adds up one fault.
func (c *StallCell) note(f *Fault, gaps []time.Duration, whole time.Duration, fenced int) {
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

// calm waits until the cluster has been whole for stallQuiet.
func (s *stall) calm(ctx context.Context) error {
	for {
		if err := s.settled(ctx); err != nil {
			return err
		}
		since := s.versions()
		if err := pause(ctx, stallQuiet); err != nil {
			return err
		}
		if s.versions() == since {
			return s.settled(ctx)
		}
	}
}

// versions adds up the versions of all records: while it grows, the cluster still changes.
func (s *stall) versions() (sum uint64) {
	for _, r := range s.c.Ranges() {
		sum += uint64(r.Version)
	}
	return sum
}

// lives returns the life that each node is in.
func (s *stall) lives() map[rhumb.NodeID]rhumb.BootSeq {
	out := map[rhumb.NodeID]rhumb.BootSeq{}
	for _, n := range s.c.Nodes() {
		out[n.ID] = n.Boot
	}
	return out
}

// fenced counts the lives that nodes began since, but for the victim of the fault.
func (s *stall) fenced(f *Fault, before map[rhumb.NodeID]rhumb.BootSeq) (n int) {
	for id, life := range s.lives() {
		if id != f.Victim {
			n += int(life - before[id])
		}
	}
	return n
}

// evidence fails when the fault did not happen.
func (s *stall) evidence(ctx context.Context, f *Fault, lives map[rhumb.NodeID]rhumb.BootSeq, withheld float64) error {
	switch f.Kind {
	case FaultKill:
		return s.reborn(ctx, f.Victim, lives[f.Victim])
	case FaultPause:
		for _, n := range s.cfg.Cluster.Nodes {
			if n.ID == f.Victim && !stopped(n.Addr) {
				return fmt.Errorf("%s: the process is not stopped", f.What)
			}
		}
		return nil
	}
	if s.cfg.Cluster.Withheld(ctx) == withheld {
		return fmt.Errorf("%s: the links withheld nothing", f.What)
	}
	return nil
}

// reborn waits until a node that was killed lives again.
func (s *stall) reborn(ctx context.Context, n rhumb.NodeID, before rhumb.BootSeq) error {
	for deadline := time.Now().Add(settleMax); s.lives()[n] == before; {
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s did not come back within %v", n, settleMax)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
