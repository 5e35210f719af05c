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
	// sizes holds the last known size of each range that an operation moves. Sizes are reported by primaries, every few seconds, so a
	// range that has just changed its primary would have none, and the progress of its operation would jump.
	sizes map[rhumb.RangeID]int64
	// handovers holds the ranges with a prepared handover, and those whose last one was given up lately.
	handovers map[rhumb.RangeID]handoverWatch
	// small holds, for the ranges that are small together with the one before them, the time since which they have been. looked is when
	// that was found out last.
	small  map[rhumb.RangeID]time.Duration
	looked time.Duration
	// arrivals holds the nodes on which copies arrive, and those that are avoided because none did.
	arrivals map[rhumb.NodeID]*arrival
	// full holds the nodes whose disks are full, with the time since which they have been.
	full map[rhumb.NodeID]time.Duration
	// refused holds the commands of the last round that the catalog refused.
	refused Refusals
}

// health is the history of one node.
type health struct {
	boot  rhumb.BootSeq
	state rhumb.NodeState
	// lost reports that the node cannot return: another one runs in its place, or it was removed.
	lost bool
	// forgotten is the time of the first observation that it was removed for good, 0 before.
	forgotten time.Duration
	// since is the time of the first observation of this state and life.
	since time.Duration
	// drains is the time since which the node has been draining without a pause, if its state says so.
	drains time.Duration
	// recorded is the count in the record of the node, as far as this planner has proposed or read it.
	recorded int
	// relapses counts how often the node failed shortly after it became live (health.failed). wait is how long it must be healthy in consequence.
	relapses int
	wait     time.Duration
}

// NewPlanner returns a Planner with a valid configuration. Every new metadata leader creates one. A
// node counts as healthy only from the first Observe, because the leader knows nothing about the
// time before.
func NewPlanner(c Config) *Planner {
	return &Planner{
		config: c, health: make(map[rhumb.NodeID]*health), sizes: make(map[rhumb.RangeID]int64), handovers: make(map[rhumb.RangeID]handoverWatch),
		arrivals: make(map[rhumb.NodeID]*arrival), full: make(map[rhumb.NodeID]time.Duration),
	}
}

// Observe records the states of the nodes. Times are as precise as the calls are frequent.
func (p *Planner) Observe(now time.Duration, s *catalog.State) {
	for n := range s.Nodes() {
		h, ok := p.health[n.ID]
		if !ok {
			h = &health{boot: n.Boot, state: n.State, since: now, drains: now, wait: p.config.FailbackAfter}
			p.health[n.ID] = h
		}
		h.lost = n.Forgotten || n.ReplacedBy != rhumb.NoNode
		if n.Forgotten && h.forgotten == 0 {
			h.forgotten = max(now, 1)
		}
		if h.boot == n.Boot && h.state == n.State {
			continue
		}
		if h.failed(n) {
			h.noteRelapse(now, p.config)
		}
		// A mark of an operator interrupts nothing: the node serves before and after it.
		if h.boot != n.Boot || !h.state.Serves() || !n.State.Serves() {
			h.since = now
		}
		if h.state != rhumb.NodeDraining {
			h.drains = now
		}
		h.boot, h.state = n.Boot, n.State
	}
}

// failed reports whether a change of a node's record is a failure of the node. A planned change is none: a drain, the restart
// after it, a mark that the node is to leave, and taking that mark back. Nor is anything that happens to a node that drains or leaves: no range
// returns to it, and it is expected to stop.
func (h *health) failed(n *rhumb.Node) bool {
	planned := h.boot == n.Boot && (n.State == rhumb.NodeDraining || n.State == rhumb.NodeDecommissioning)
	return h.state == rhumb.NodeLive && !planned
}

// noteRelapse doubles the wait of a node that was healthy only for a short time.
func (h *health) noteRelapse(now time.Duration, c Config) {
	h.wait = min(2*h.wait, c.FailbackMax)
	// The first failure, or one after a long healthy time, costs the shortest wait only.
	if h.relapses == 0 || now-h.since >= 2*c.FailbackMax {
		h.relapses, h.wait = 0, c.FailbackAfter
	}
	h.relapses++
	// A count that begins again may equal the recorded one, whose time is an earlier one then.
	if h.relapses == 1 {
		h.recorded = 0
	}
}

// Recall takes over what earlier metadata leaders have recorded about failures of nodes. A new planner calls it before its first
// Observe. wall is the time of day, as the records have it. A failure longer ago than a healthy node needs to start over does not count.
//
// Without it a node that fails again and again would get its ranges back after the shortest wait whenever the leader changes,
// and it may be the failing node that leads.
func (p *Planner) Recall(now time.Duration, wall time.Time, s *catalog.State) {
	for n := range s.Nodes() {
		if n.Relapses == 0 || wall.Sub(n.FailedAt) >= 2*p.config.FailbackMax {
			continue
		}
		wait := p.config.FailbackAfter
		for i := uint32(1); i < n.Relapses && wait < p.config.FailbackMax; i++ {
			wait *= 2
		}
		p.health[n.ID] = &health{
			boot: n.Boot, state: n.State, since: now, drains: now, wait: min(wait, p.config.FailbackMax), relapses: int(n.Relapses), recorded: int(n.Relapses),
		}
	}
}

// Relapses returns the commands that record failures of nodes for later metadata leaders. A failure costs one small command.
func (p *Planner) Relapses(wall time.Time, s *catalog.State) (out []catalog.Command) {
	if !s.Has(rhumb.FeatureFailover) {
		return nil
	}
	for n := range s.Nodes() {
		if h, ok := p.health[n.ID]; ok && h.relapses != h.recorded && !n.Forgotten {
			// Proposed once: a command that is lost costs a doubling of one wait.
			h.recorded = h.relapses
			out = append(out, catalog.RecordRelapse{Node: n.ID, Relapses: uint32(h.relapses), At: wall})
		}
	}
	return out
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

// drainsLong reports whether the node drains, and has for at least d. A node that is only restarted drains for seconds.
func (p *Planner) drainsLong(now time.Duration, id rhumb.NodeID, d time.Duration) bool {
	h, ok := p.health[id]
	return ok && h.state == rhumb.NodeDraining && now-h.drains >= d
}

// farewell is how long a removed node stays a member of the metadata group. Meanwhile it gets the entry that removes it, and
// stops. A node that is cut off before has to ask other nodes when it is back, after some seconds in which nobody answers it.
const farewell = 2 * time.Second

// MayCutOff reports whether a node was removed for good long enough ago to have learned of it.
func (p *Planner) MayCutOff(now time.Duration, id rhumb.NodeID) bool {
	h, ok := p.health[id]
	return ok && h.forgotten > 0 && now-h.forgotten >= farewell
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
		if gone[r.ID] && !r.Dead && r.Into == 0 {
			out = append(out, catalog.SetRegionDead{Region: r.ID})
		}
	}
	return out
}

// Relapse records that a primary had to be relieved although it is live. Ranges return to it only
// after the wait that follows a failure. A node that drains or leaves loses all its primaries, some of them in this way.
func (p *Planner) Relapse(now time.Duration, id rhumb.NodeID) {
	if h, ok := p.health[id]; ok && h.state == rhumb.NodeLive {
		h.noteRelapse(now, p.config)
		h.since = now
	}
}
