package place

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// A failover has two phases (docs/replication.md#failover-phases). In the first, the command that fences a node elects the nearest
// member that is in sync: at once, and whoever that is. In the second, the node nearest to the failed one takes the range over,
// after it was brought in sync. Three steps of the planner make the second phase, each from the state alone, so that it continues
// under another metadata leader:
//
//   - Repair creates the copy that is missing on the node nearest to the failed one, when that was dead for replace_after.
//   - When the new copy is in sync, Repair takes the dead one out of the record, and the nearest copy becomes preferred. Where
//     there is no node for a new copy, the record stays, and StandIns decides among the copies that are there.
//   - Failback and StandIns prepare the handover, so that no write is refused.

// StandIns returns the handovers to nodes that are nearer to a dead preferred primary than the present primary is, which was elected
// because it was in sync when the node failed. It moves a range only if the other node is strictly nearer, has been
// healthy for as long as a fail-back would ask for, and canServe agrees. With failback at "never" who took over stays.
func (p *Planner) StandIns(now time.Duration, s *catalog.State, canServe func(*rhumb.Range, rhumb.NodeID) bool) []catalog.Command {
	if !s.Has(rhumb.FeatureFailover) || s.Setting(rhumb.SettingFailback) == FailbackNever {
		return nil
	}
	// The setting is read in each round, so that a change of it counts at once, and it is the same time after which copies are
	// created elsewhere: before that the cluster expects the node back.
	var out []catalog.Command
	after := p.replaceAfter(s)
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		if to := p.standIn(now, after, s, r); to != rhumb.NoNode && canServe(r, to) {
			out = append(out, p.takeOver(now, s, r, r.Version, to, false)...)
		}
	}
	return out
}

// standIn returns the node that should be primary of a range while its preferred primary is gone, if that is another one than the
// present primary.
func (p *Planner) standIn(now, after time.Duration, s *catalog.State, r *rhumb.Range) rhumb.NodeID {
	// A node that is gone for a short time returns before a handover would pay. Without a live primary there is nobody to hand over.
	if r.Birth != 0 || !p.isGone(now, r.Preferred, after) || !s.IsLive(r.Primary) {
		return rhumb.NoNode
	}
	to := s.HeirWithout(r, func(id rhumb.NodeID) bool { return !s.TakesCopies(id) || r.IsLeaving(id) || !p.isHealthy(now, id) })
	// A node that is only as near as the primary is no reason to move the range, even if it is that node's turn: each move stops the
	// writes for a moment, and who is in sync changes all the time.
	if to == rhumb.NoNode || to == r.Primary || !s.IsNearer(r, to, r.Primary) {
		return rhumb.NoNode
	}
	return to
}
