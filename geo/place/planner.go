package place

import (
	"errors"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Config has the waiting times of a Planner.
type Config struct {
	// FailbackAfter is how long a node must have been healthy before ranges go back to it; default 30 s. It doubles with
	// each relapse up to FailbackMax, default 10 min; a node that was healthy for twice FailbackMax starts afresh.
	FailbackAfter, FailbackMax time.Duration
	// ReplaceAfter is how long a node must be fenced before its replicas are made elsewhere; default 30 s.
	ReplaceAfter time.Duration
	// VoterReplaceAfter is how long a voter must be fenced before another takes its vote; default 10 s.
	VoterReplaceAfter time.Duration
	// RegionDeadAfter is how long all nodes of a region must be fenced before names are created elsewhere without asking it;
	// default 5 s.
	RegionDeadAfter time.Duration
}

// DefaultConfig gives the defaults.
func DefaultConfig() Config {
	return Config{
		FailbackAfter: 30 * time.Second, FailbackMax: 10 * time.Minute,
		ReplaceAfter: 30 * time.Second, VoterReplaceAfter: 10 * time.Second, RegionDeadAfter: 5 * time.Second,
	}
}

// Validate lists everything that is wrong.
func (c Config) Validate() error {
	const op rhumb.Op = "place.Config"
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, rhumb.Ef(op, rhumb.InvalidArgument, format, args...))
		}
	}
	fault(c.FailbackAfter <= 0, "FailbackAfter is %v, want more than 0", c.FailbackAfter)
	fault(c.FailbackMax < c.FailbackAfter, "FailbackMax is %v, want at least FailbackAfter (%v)", c.FailbackMax, c.FailbackAfter)
	fault(c.ReplaceAfter <= 0, "ReplaceAfter is %v, want more than 0", c.ReplaceAfter)
	fault(c.VoterReplaceAfter <= 0, "VoterReplaceAfter is %v, want more than 0", c.VoterReplaceAfter)
	fault(c.RegionDeadAfter <= 0, "RegionDeadAfter is %v, want more than 0", c.RegionDeadAfter)
	return errors.Join(errs...)
}

// PlanMax bounds the commands that one call of a Planner's method gives; the next call gives more.
const PlanMax = 1_024

// Planner remembers how long nodes have been well, and plans by it.
type Planner struct {
	config Config
	health map[rhumb.NodeID]*health
}

// health is what a Planner has seen of one node.
type health struct {
	boot  rhumb.BootSeq
	state rhumb.NodeState
	// since is when the node came into this state and life.
	since time.Duration
	// relapses counts how often it left the live state or restarted after a short time, wait is how long it must be
	// healthy for that.
	relapses int
	wait     time.Duration
}

// NewPlanner makes a Planner for a valid configuration. A new metadata leader makes one; every node counts as come well at
// the first Observe.
func NewPlanner(c Config) *Planner {
	return &Planner{config: c, health: make(map[rhumb.NodeID]*health)}
}

// Observe notes the states of the nodes. Call it often: times are known as exactly as it is called.
func (p *Planner) Observe(now time.Duration, s *catalog.State) {
	for n := range s.Nodes() {
		h, ok := p.health[n.ID]
		if !ok {
			p.health[n.ID] = &health{boot: n.Boot, state: n.State, since: now, wait: p.config.FailbackAfter}
			continue
		}
		if h.boot == n.Boot && h.state == n.State {
			continue
		}
		if h.state == rhumb.NodeLive {
			h.relapse(now, p.config)
		}
		h.boot, h.state, h.since = n.Boot, n.State, now
	}
}

// relapse doubles the wait of a node that was well for a short time only.
func (h *health) relapse(now time.Duration, c Config) {
	h.wait = min(2*h.wait, c.FailbackMax)
	if h.relapses == 0 || now-h.since >= 2*c.FailbackMax {
		h.relapses, h.wait = 0, c.FailbackAfter
	}
	h.relapses++
}

// isHealthy reports whether the node has been live for long enough to take its ranges back.
func (p *Planner) isHealthy(now time.Duration, id rhumb.NodeID) bool {
	h, ok := p.health[id]
	return ok && h.state == rhumb.NodeLive && now-h.since >= h.wait
}

// isGone reports whether the node has been fenced for at least d.
func (p *Planner) isGone(now time.Duration, id rhumb.NodeID, d time.Duration) bool {
	h, ok := p.health[id]
	return ok && h.state == rhumb.NodeFenced && now-h.since >= d
}

// DeadRegions returns a SetRegionDead for each region whose nodes are all gone.
func (p *Planner) DeadRegions(now time.Duration, s *catalog.State) []catalog.Command {
	gone := make(map[rhumb.RegionID]bool)
	for n := range s.Nodes() {
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

// Relapse notes that a primary had to be relieved although it is live: nothing goes back to it until it was left alone for
// as long as after a failure.
func (p *Planner) Relapse(now time.Duration, id rhumb.NodeID) {
	if h, ok := p.health[id]; ok {
		h.relapse(now, p.config)
		h.since = now
	}
}

// Failback returns an Elect for each range whose preferred primary is in sync and healthy again, and can serve.
func (p *Planner) Failback(now time.Duration, s *catalog.State, canServe func(*rhumb.Range, rhumb.NodeID) bool) []catalog.Command {
	var out []catalog.Command
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		if r.Primary != r.Preferred && r.IsInSync(r.Preferred) && s.IsLive(r.Preferred) && p.isHealthy(now, r.Preferred) && canServe(r, r.Preferred) {
			out = append(out, catalog.Elect{Range: r.ID, Version: r.Version, Node: r.Preferred})
		}
	}
	return out
}
