package place

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// planHomecoming returns up to most moves that bring copies from nodes of other regions back to the region of their ranges: the
// removal of the region was cancelled after they had left. Each range has one move at a time. Only an operator's operation for the
// region asks for them: nobody else knows whether the region is fit again.
//
// Tables that survive the loss of a region have copies in other regions on purpose, and theirs stay. So do ranges that are being
// changed otherwise, or whose copies are damaged. Nodes to avoid get no copies.
func planHomecoming(s *catalog.State, region rhumb.RegionID, size func(*rhumb.Range) (RangeSize, bool), most int, avoid []rhumb.NodeID) (moves []Move) {
	// The ranges of a region that was removed, or is about to be, belong to another one.
	if s.HostRegion(region) != region {
		return nil
	}
	// A range that an operation moves already is planned again when that is over. Unlike balance, it does not pause after a move: a range
	// with several copies away would otherwise wait for ten minutes after each of them.
	moving := make(map[rhumb.RangeID]bool)
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationMove && !o.State.IsOver() {
			moving[o.Range] = true
		}
	}
	byClass := make(pools)
	var l *load
	for r := range s.Ranges() {
		if len(moves) >= most {
			break
		}
		class, ok := s.Class(r.Class)
		if s.HostRegion(r.ID.Region) != region || !ok || class.Dropping || class.Settings.Survival == rhumb.SurviveRegion ||
			moving[r.ID] || len(r.Quarantined)+len(r.Leaving) > 0 || isSplitting(s, r) || r.IsMerging() {
			continue
		}
		home, away := splitCopies(s, r, region)
		// A range with enough copies at home loses the others as surplus.
		if away == nil || len(home) >= class.Settings.Replicas {
			continue
		}
		// Counting all ranges is dear, and nearly always no copy is away.
		if l == nil {
			l = measureLoad(s)
		}
		to := l.nextNode(home, byClass.of(s, r, class), slices.Concat(r.Replicas, avoid)...)
		if to == nil {
			continue
		}
		l.replicas[to.ID]++
		at, _ := s.Region(away.Region)
		known, _ := size(r)
		moves = append(moves, Move{r.ID, away.ID, to.ID, known, fmt.Sprintf("%s is in region %s", away.ID, at.Name)})
	}
	return moves
}

// splitCopies returns the nodes of a region that have copies of a range, and one outside of it that has one, or nil. The primary
// comes last: until then requests stay where they are.
func splitCopies(s *catalog.State, r *rhumb.Range, region rhumb.RegionID) (home []*rhumb.Node, away *rhumb.Node) {
	for _, id := range r.Replicas {
		n, ok := s.Node(id)
		switch {
		case !ok:
		case n.Region == region:
			home = append(home, n)
		case away == nil || away.ID == r.Primary:
			away = n
		}
	}
	return slices.Clip(home), away
}

// WhyNotRebalance returns why the balance of a region can move nothing, now or later, with what to do, or "". All regions together
// (rhumb.LocalRegion) can always be balanced.
//
// A region has ranges and no nodes if its removal was cancelled after its nodes had been removed. Nothing brings its copies home then, and
// nothing replaces one that is lost, because the region has no other node.
func WhyNotRebalance(s *catalog.State, region rhumb.RegionID) string {
	r, ok := s.Region(region)
	if !ok {
		return ""
	}
	if r.Into != 0 {
		host, _ := s.Region(s.HostRegion(region))
		return fmt.Sprintf("region %s is being removed, or was, and its ranges are balanced with those of region %s (`rhumb rebalance %[2]s`)", r.Name, host.Name)
	}
	// A witness only votes.
	if slices.ContainsFunc(regionNodes(s, region), func(n *rhumb.Node) bool { return !n.Witness }) {
		return ""
	}
	count := 0
	for x := range s.Ranges() {
		if s.HostRegion(x.ID.Region) == region {
			count++
		}
	}
	if count == 0 {
		return fmt.Sprintf("region %s has no nodes that hold data, and no ranges", r.Name)
	}
	return fmt.Sprintf("region %s has no nodes that hold data, and the copies of its %d ranges are on nodes of other regions; start nodes in the region and repeat the command, or remove the region (`rhumb region rm %[1]s`)", r.Name, count)
}
