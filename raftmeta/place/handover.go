package place

// Who becomes primary next, and by which way. Everything here follows from the record of a range and from how long its
// handover has been prepared; no message of a replica reaches this code. A replica that hands over, or takes over, acts on
// the record alone, so a planner that dies in between leaves nothing half done.

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Bounds of handovers (docs/replication.md#handover). Between preparation and adoption a handover takes milliseconds
// once the target has caught up, so these bounds only end those that would wait without end: the target may be unable
// to follow the log, or the message may be lost again and again.
const (
	// HandoverWithin is how long a prepared handover may wait for its adoption before it is cancelled.
	HandoverWithin = 10 * time.Second
	// DrainWithin is the same for the primaries of a node that drains. A process that stops waits ten seconds for its
	// primaries to move, and the elections that take the place of handovers need a part of them.
	DrainWithin = 4 * time.Second
	// HandoverRetry is how long after a handover was given up the next one of its range waits. Callers for whom the
	// range must move elect the target meanwhile.
	HandoverRetry = time.Minute
)

// A prepared handover waits for three things when nothing is wrong: the record has to reach the primary; a change of the in-sync
// set that is under way has to end; and the target has to be within 1 MiB of the end of the log. The first takes a round trip of the
// metadata group, the second as much again. The third takes as long as the target is slow, and has no bound of its own.

// handoverWatch holds the planner's memory of the handover of one range.
type handoverWatch struct {
	// epoch is the reserved epoch, and target the node, that were seen prepared since the time since; 0 if none is.
	epoch  rhumb.Epoch
	target rhumb.NodeID
	since  time.Duration
	// failed is whether a handover was given up, which happened at failedAt.
	failed   bool
	failedAt time.Duration
}

// observeHandovers notes which handovers are prepared, and forgets ranges about which there is nothing to remember.
func (p *Planner) observeHandovers(now time.Duration, s *catalog.State) {
	for r := range s.Ranges() {
		// Ranges that were dropped stay in the map until the leadership ends. That is at most one entry for each
		// handover that was under way when its table was dropped.
		w, known := p.handovers[r.ID]
		switch {
		case r.Prepared != nil && w.epoch != r.Prepared.Epoch:
			// A new leader begins to count again: it does not know how long its predecessor has waited.
			w.noteEnd(now, r)
			w.epoch, w.target, w.since = r.Prepared.Epoch, r.Prepared.Target, now
		case r.Prepared == nil && known:
			w.noteEnd(now, r)
			w.epoch = 0
		default:
			continue
		}
		if w.failed && now-w.failedAt >= HandoverRetry {
			w.failed = false
		}
		p.handovers[r.ID] = w
		if w.epoch == 0 && !w.failed {
			delete(p.handovers, r.ID)
		}
	}
}

// noteEnd records a handover that ended without its target as primary: the old primary heard nothing of the target and
// asked for an election. To repeat that at once would stop the writes of the range again and again.
func (w *handoverWatch) noteEnd(now time.Duration, r *rhumb.Range) {
	// A smaller counter means that the command to prepare it was refused.
	if w.epoch != 0 && r.Allocated >= w.epoch && r.Primary != w.target {
		w.failed, w.failedAt = true, now
	}
}

// hasFailed reports whether a handover of the range was given up lately.
func (p *Planner) hasFailed(now time.Duration, id rhumb.RangeID) bool {
	w, ok := p.handovers[id]
	return ok && w.failed && now-w.failedAt < HandoverRetry
}

// HandoverEnd is a way in which Handovers ends a handover that is not adopted, for metrics and logs.
type HandoverEnd uint8

// A handover is withdrawn, or a node is elected in its place because the primary drains. The zero value is a command that ends none.
const (
	HandoverCancelled HandoverEnd = 1 + iota
	HandoverElected
)

// EndsHandover returns how a command that Handovers has planned on state s ends a handover.
func EndsHandover(s *catalog.State, cmd catalog.Command) HandoverEnd {
	switch c := cmd.(type) {
	case catalog.CancelHandover:
		return HandoverCancelled
	case catalog.Elect:
		// Other elections move primaries for which nothing was prepared.
		if r, ok := s.Range(c.Range); ok && r.Prepared != nil {
			return HandoverElected
		}
	}
	return 0
}

// Handovers returns the commands that end handovers which nobody has adopted in time, and that move primaries away from
// nodes that drain.
//
// A drain prepares its handovers itself, in one command. Left for later steps are ranges that had nobody to take
// over at that time, and handovers that did not succeed: an election moves those, because the node is about to stop.
func (p *Planner) Handovers(now time.Duration, s *catalog.State) (out []catalog.Command) {
	if !s.Has(rhumb.FeatureHandover) {
		return nil
	}
	p.observeHandovers(now, s)
	var load map[rhumb.NodeID]int
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		// A fenced primary has no successor, or the fencing would have elected one. It is not moved here.
		n, ok := s.Node(r.Primary)
		drains := ok && n.State == rhumb.NodeDraining
		if r.Prepared != nil {
			w := p.handovers[r.ID]
			if waited := now - w.since; waited < HandoverWithin && (!drains || waited < DrainWithin) {
				continue
			}
			w.failed, w.failedAt = true, now
			// If the command is refused, the handover is seen as a new one.
			w.epoch = 0
			p.handovers[r.ID] = w
			if drains {
				// An election ends the handover as well. Its target is live and in sync: the catalog keeps no
				// handover prepared to any other node.
				out = append(out, catalog.Elect{Range: r.ID, Version: r.Version, Node: r.Prepared.Target})
			} else {
				out = append(out, catalog.CancelHandover{Range: r.ID, Version: r.Version})
			}
			continue
		}
		// A reserved range follows the range that is to be split.
		if !drains || r.Birth != 0 {
			continue
		}
		// Counting walks all ranges, so it is done only if a primary has to be moved.
		if load == nil {
			load = countPrimaries(s)
		}
		if heir := s.NearestHeir(r, r.Primary, load); heir != rhumb.NoNode {
			load[heir]++
			out = append(out, p.takeOver(now, s, r, r.Version, heir, true)...)
		}
	}
	return out
}

// countPrimaries counts the ranges of each primary. measureLoad counts the preferred ones.
func countPrimaries(s *catalog.State) map[rhumb.NodeID]int {
	out := make(map[rhumb.NodeID]int)
	for r := range s.Ranges() {
		out[r.Primary]++
	}
	return out
}

// takeOver returns the command that makes an in-sync, live node primary of a range in place of the present primary:
// none while a handover is under way, a handover if the primary is alive, and otherwise an election. version is the
// version that the record will have when the command is applied. must is set if the range has to move: an election
// follows then if a handover was given up. Otherwise the next handover waits for HandoverRetry.
func (p *Planner) takeOver(now time.Duration, s *catalog.State, r *rhumb.Range, version uint64, to rhumb.NodeID, must bool) []catalog.Command {
	n, ok := s.Node(r.Primary)
	// A node that died a moment ago still counts as alive. The handover to which that leads does no harm: fencing the node
	// ends it in the same command that elects.
	alive := ok && n.State != rhumb.NodeFenced
	switch {
	case !s.Has(rhumb.FeatureHandover) || !alive:
		return []catalog.Command{catalog.Elect{Range: r.ID, Version: version, Node: to}}
	// The primary may have stopped already in favour of the target. Handovers ends what takes too long.
	case r.Prepared != nil:
		return nil
	// The order matters: a range that has to move must not wait for HandoverRetry.
	// A replica that is to be removed can be elected if there is nobody else, but metadata prepares no handover to it.
	case must && (p.hasFailed(now, r.ID) || r.IsLeaving(to) || isSplitting(s, r)):
		return []catalog.Command{catalog.Elect{Range: r.ID, Version: version, Node: to}}
	case p.hasFailed(now, r.ID) || isSplitting(s, r):
		return nil
	}
	// Noted now: it may end before the next look at the state.
	w := p.handovers[r.ID]
	w.epoch, w.target, w.since = r.Allocated+1, to, now
	p.handovers[r.ID] = w
	return []catalog.Command{catalog.PrepareHandover{Range: r.ID, Version: version, Target: to}}
}

// isSplitting reports whether a range is being split, or reserved for a split. Metadata prepares no handover of it, and no
// split of a range whose handover is prepared. A split takes two commits of the range, so a later round of the planner finds
// it complete.
func isSplitting(s *catalog.State, r *rhumb.Range) bool {
	_, splits := s.ReservedIn(r)
	return splits || r.Birth != 0 || r.IsMerging()
}

// Policies of fail-back: values of rhumb.SettingFailback besides the default, auto.
const (
	FailbackManual = "manual"
	FailbackNever  = "never"
)

// Failback returns the commands that move ranges back to their preferred primaries: those whose replica is in sync, and
// whose node is healthy and able to serve again. The setting `failback` decides whether the planner does that.
func (p *Planner) Failback(now time.Duration, s *catalog.State, canServe func(*rhumb.Range, rhumb.NodeID) bool) []catalog.Command {
	if v := s.Setting(rhumb.SettingFailback); v == FailbackManual || v == FailbackNever {
		return nil
	}
	var out []catalog.Command
	// Health is judged per node and fitness per range, because a node may be cut off from the members of one range only.
	// The setting is read in each round, so a change of it takes effect within PlanEvery.
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		// The version makes the command fail if the range changed meanwhile.
		if MayFailBack(s, r) && p.isHealthy(now, r.Preferred) && canServe(r, r.Preferred) {
			out = append(out, p.takeOver(now, s, r, r.Version, r.Preferred, false)...)
		}
	}
	return out
}

// MayFailBack reports whether the preferred primary of a range is another node than the present one, and could take
// over as far as the record shows.
func MayFailBack(s *catalog.State, r *rhumb.Range) bool {
	return r.Birth == 0 && r.Primary != r.Preferred && r.IsInSync(r.Preferred) && s.TakesCopies(r.Preferred) && !r.IsLeaving(r.Preferred) && !r.IsQuarantined(r.Preferred)
}
