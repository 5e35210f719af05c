package place

import (
	"errors"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Config holds the waiting times of a Planner.
type Config struct {
	// FailbackAfter is how long a node must be healthy before ranges return to it; default 30 s. It
	// doubles with each relapse up to FailbackMax, default 10 min. A node that was healthy for
	// twice FailbackMax starts over.
	FailbackAfter, FailbackMax time.Duration
	// ReplaceAfter is how long a node must be fenced before its replicas are created elsewhere;
	// default 30 s.
	ReplaceAfter time.Duration
	// VoterReplaceAfter is how long a voter must be fenced before another node gets its vote;
	// default 10 s.
	VoterReplaceAfter time.Duration
	// RegionDeadAfter is how long all nodes of a region must be fenced before names are created
	// elsewhere without asking the region; default 5 s.
	RegionDeadAfter time.Duration
}

// DefaultConfig returns the default waiting times.
func DefaultConfig() Config {
	return Config{
		FailbackAfter: 30 * time.Second, FailbackMax: 10 * time.Minute,
		ReplaceAfter: 30 * time.Second, VoterReplaceAfter: 10 * time.Second, RegionDeadAfter: 5 * time.Second,
	}
}

// Validate returns an error that lists every fault.
func (c Config) Validate() error {
	const op rhumb.Op = "place.Config"
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
		}
	}
	fault(c.FailbackAfter <= 0, "FailbackAfter is %v, but must be above 0", c.FailbackAfter)
	fault(c.FailbackMax < c.FailbackAfter, "FailbackMax is %v, but must be at least FailbackAfter, which is %v", c.FailbackMax, c.FailbackAfter)
	fault(c.ReplaceAfter <= 0, "ReplaceAfter is %v, but must be above 0", c.ReplaceAfter)
	fault(c.VoterReplaceAfter <= 0, "VoterReplaceAfter is %v, but must be above 0", c.VoterReplaceAfter)
	fault(c.RegionDeadAfter <= 0, "RegionDeadAfter is %v, but must be above 0", c.RegionDeadAfter)
	return errors.Join(errs...)
}

// PlanMax is the largest number of commands that one call of a Planner's method returns; the next
// call returns more.
const PlanMax = 1_024

// Planner tracks how long nodes have been healthy and plans accordingly.
type Planner struct {
	config Config
	health map[rhumb.NodeID]*health
}

// health is the history of one node.
type health struct {
	boot  rhumb.BootSeq
	state rhumb.NodeState
	// lost reports that the node cannot return: another one runs in its place, or it was removed.
	lost bool
	// since is the time of the first observation of this state and life.
	since time.Duration
	// relapses counts how often the node left the live state, or restarted, shortly after it became
	// live. wait is how long it must be healthy in consequence.
	relapses int
	wait     time.Duration
}

// NewPlanner returns a Planner with a valid configuration. Every new metadata leader creates one. A
// node counts as healthy only from the first Observe, because the leader knows nothing about the
// time before.
func NewPlanner(c Config) *Planner {
	return &Planner{config: c, health: make(map[rhumb.NodeID]*health)}
}

// Observe records the states of the nodes. Times are as precise as the calls are frequent.
func (p *Planner) Observe(now time.Duration, s *catalog.State) {
	for n := range s.Nodes() {
		h, ok := p.health[n.ID]
		if !ok {
			h = &health{boot: n.Boot, state: n.State, since: now, wait: p.config.FailbackAfter}
			p.health[n.ID] = h
		}
		h.lost = n.Forgotten || n.ReplacedBy != rhumb.NoNode
		if h.boot == n.Boot && h.state == n.State {
			continue
		}
		if h.state.Serves() {
			h.noteRelapse(now, p.config)
		}
		h.boot, h.state, h.since = n.Boot, n.State, now
	}
}

// noteRelapse doubles the wait of a node that was healthy only for a short time.
func (h *health) noteRelapse(now time.Duration, c Config) {
	h.wait = min(2*h.wait, c.FailbackMax)
	// The first failure, or one after a long healthy time, costs the shortest wait only.
	if h.relapses == 0 || now-h.since >= 2*c.FailbackMax {
		h.relapses, h.wait = 0, c.FailbackAfter
	}
	h.relapses++
}

// isHealthy reports whether the node has been live for long enough to take its ranges back.
func (p *Planner) isHealthy(now time.Duration, id rhumb.NodeID) bool {
	h, ok := p.health[id]
	return ok && h.state.Serves() && now-h.since >= h.wait
}

// isGone reports whether the node has been fenced for at least d, or cannot return at all.
func (p *Planner) isGone(now time.Duration, id rhumb.NodeID, d time.Duration) bool {
	h, ok := p.health[id]
	return ok && h.state == rhumb.NodeFenced && (h.lost || now-h.since >= d)
}

// DeadRegions returns a SetRegionDead for each region whose nodes have all been gone for
// RegionDeadAfter.
func (p *Planner) DeadRegions(now time.Duration, s *catalog.State) []catalog.Command {
	gone := make(map[rhumb.RegionID]bool)
	for n := range s.Nodes() {
		// A region is gone if every node is: the first node sets the value and later ones can only clear it.
		before, known := gone[n.Region]
		gone[n.Region] = (before || !known) && p.isGone(now, n.ID, p.config.RegionDeadAfter)
	}
	var out []catalog.Command
	for r := range s.Regions() {
		if gone[r.ID] && !r.Dead {
			out = append(out, catalog.SetRegionDead{Region: r.ID})
		}
	}
	return out
}

// Relapse records that a primary had to be relieved although it is live. Ranges return to it only
// after the wait that follows a failure.
func (p *Planner) Relapse(now time.Duration, id rhumb.NodeID) {
	if h, ok := p.health[id]; ok {
		h.noteRelapse(now, p.config)
		h.since = now
	}
}

// Failback returns an Elect for each range whose preferred primary is in sync, healthy and able to
// serve again.
func (p *Planner) Failback(now time.Duration, s *catalog.State, canServe func(*rhumb.Range, rhumb.NodeID) bool) []catalog.Command {
	var out []catalog.Command
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		// A reserved range follows the range that is to be split.
		if r.Birth != 0 {
			continue
		}
		// The version makes the command fail if the range changed meanwhile.
		if r.Primary != r.Preferred && r.IsInSync(r.Preferred) && s.TakesCopies(r.Preferred) && !r.IsLeaving(r.Preferred) && p.isHealthy(now, r.Preferred) && canServe(r, r.Preferred) {
			out = append(out, catalog.Elect{Range: r.ID, Version: r.Version, Node: r.Preferred})
		}
	}
	return out
}
