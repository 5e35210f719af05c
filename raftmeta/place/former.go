package place

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// This file returns ranges to a node that was dead for so long that its copies were created elsewhere: its former ranges, which are
// those that preferred it (rhumb.Range.Former, docs/decisions/0062-former-ranges-return.md). The steps follow from the state alone,
// so a new metadata leader continues with them:
//
//  1. the node gets a copy again, as a learner;
//  2. when the copy is in sync, the node is the preferred primary again, and the record has no former node any more;
//  3. Failback hands the range over, and the copy that is one too many is removed (mover.trimSurplus).

// Returns returns the commands of the first two steps. With fail-back at "manual" it begins no copies: an operator does
// (`rhumb node failback`), and the second step follows. At most movesMax ranges return at a time; those of a node on which no copy makes
// progress do not count, and are taken back.
func (p *Planner) Returns(now time.Duration, s *catalog.State) []catalog.Command {
	policy := s.Setting(rhumb.SettingFailback)
	if !s.Has(rhumb.FeatureFormer) || policy == FailbackNever {
		return nil
	}
	var out []catalog.Command
	// wait holds the ranges whose copy has not begun. The copies in progress are counted first, so that the bound holds whatever the
	// order of the ranges is.
	var wait []*rhumb.Range
	pools, copying := make(pools), 0
	for r := range s.Ranges() {
		if r.Former == rhumb.NoNode || whyNotReturn(s, r, pools) != "" {
			continue
		}
		switch {
		case !r.IsReplica(r.Former):
			// As long as before a fail-back: a node that fails soon after its start would cost a copy each time.
			if policy != FailbackManual && p.isHealthy(now, r.Former) && !p.isAvoided(now, r.Former) {
				wait = append(wait, r)
			}
		// Its disk may be full. The range still belongs to it, and its copy begins again later.
		case p.stalls(now, r, r.Former):
			if policy != FailbackManual {
				out = append(out, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: without(r.Replicas, []rhumb.NodeID{r.Former})})
			}
		case !r.IsInSync(r.Former):
			copying++
		// By the version, a range that changed meanwhile refuses, and the next round looks again.
		default:
			out = append(out, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: r.Replicas, Preferred: r.Former})
		}
	}
	for _, r := range wait[:min(len(wait), max(movesMax-copying, 0))] {
		out = append(out, copyToFormer(r))
	}
	return out[:min(len(out), PlanMax)]
}

// copyToFormer returns the command that begins the return of a range.
func copyToFormer(r *rhumb.Range) catalog.Command {
	return catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: append(slices.Clone(r.Replicas), r.Former)}
}

// ReturnsTo returns the commands that begin the return of the former ranges of a node, for an operator who does not wait for the
// planner, and why other ranges cannot return now. It begins at most movesMax copies, with those that are on their way.
func ReturnsTo(s *catalog.State, to rhumb.NodeID) (begin []catalog.SetReplicas, coming []rhumb.RangeID, blocked map[rhumb.RangeID]string) {
	// The same conditions as for the planner, except that nobody waits until the node has been healthy for a while.
	pools := make(pools)
	blocked = make(map[rhumb.RangeID]string)
	for r := range s.Ranges() {
		if r.Former != to || !s.Has(rhumb.FeatureFormer) {
			continue
		}
		switch why := whyNotReturn(s, r, pools); {
		case why != "":
			blocked[r.ID] = why
		case r.IsReplica(to):
			coming = append(coming, r.ID)
		default:
			begin = append(begin, copyToFormer(r).(catalog.SetReplicas))
		}
	}
	// A disk and a link have room for so many, and the answer says so, because nobody continues automatically at "manual".
	room := max(movesMax-len(coming), 0)
	for _, c := range begin[min(len(begin), room):] {
		blocked[c.Range] = fmt.Sprintf("%d ranges return at a time; repeat the command when these are back", movesMax)
	}
	return begin[:min(len(begin), room)], coming, blocked
}

// whyNotReturn returns what keeps a range from returning to its former node now, or "".
func whyNotReturn(s *catalog.State, r *rhumb.Range, all pools) string {
	class, _ := s.Class(r.Class)
	// In the order in which they are likely to stay: what passes within seconds is named only if nothing else prevents the return.
	switch {
	case class.Dropping:
		return "the range is being dropped"
	case r.Birth != 0 || isSplitting(s, r):
		return "the range is being split"
	case !r.IsReplica(r.Former) && len(r.Replicas) >= rhumb.ReplicasMax:
		return "the range has as many copies as it may have"
	case r.IsQuarantined(r.Former) || r.IsLeaving(r.Former):
		return fmt.Sprintf("the copy on %s is damaged or leaves", r.Former)
	// The table may have been confined to other regions meanwhile, and the node may drain or leave.
	case !slices.ContainsFunc(all.of(s, r, class).nodes, func(n *rhumb.Node) bool { return n.ID == r.Former }):
		return fmt.Sprintf("%s takes no copies of it at the moment", r.Former)
	}
	// One copy more than the class asks for is enough, and a move, or a repair, may have it.
	if len(r.Replicas) > class.Settings.Replicas && !r.IsReplica(r.Former) {
		return "another copy of the range moves"
	}
	return ""
}

// returning returns a node that ranges return to, or are about to. Balance waits meanwhile: the node looks empty, and would get
// other ranges in place of its own.
func returning(s *catalog.State) rhumb.NodeID {
	policy := s.Setting(rhumb.SettingFailback)
	if !s.Has(rhumb.FeatureFormer) || policy == FailbackNever {
		return rhumb.NoNode
	}
	// Most clusters have no such range at any time, so the pools are made for those only.
	pools := make(pools)
	for r := range s.Ranges() {
		if r.Former != rhumb.NoNode && (policy != FailbackManual || r.IsReplica(r.Former)) && whyNotReturn(s, r, pools) == "" {
			return r.Former
		}
	}
	return rhumb.NoNode
}
