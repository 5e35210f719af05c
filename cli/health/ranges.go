package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// intactCopies counts the members of the in-sync set that are alive and not quarantined.
func (j *judgement) intactCopies(r *rhumb.Range) (n int) {
	for _, id := range r.InSync {
		if j.isAlive(id) && !r.IsQuarantined(id) {
			n++
		}
	}
	return n
}

// isServed reports whether a range has a live primary.
func (j *judgement) isServed(r *rhumb.Range) bool {
	return j.isAlive(r.Primary) && !r.IsQuarantined(r.Primary)
}

// isAccepted reports whether an operator has given up the copies that a range lacks. The record of a loss stays after the range is whole again, so
// it is not enough: copies that were given up are quarantined until others replace them, and those of nodes that died later are not.
func (j *judgement) isAccepted(r *rhumb.Range) bool {
	return r.Recovery != nil && !slices.ContainsFunc(r.InSync, func(id rhumb.NodeID) bool { return !j.isAlive(id) && !r.IsQuarantined(id) })
}

// rangeGroups collects the ranges in a state that has to be reported by name.
type rangeGroups struct {
	lost, refusing, accepted, doubtful, recovered []rhumb.RangeID
	displaced                                     map[string]int         // by the reason
	returning                                     map[rhumb.NodeID]int   // ranges that fail-back returns, by the node
	strays                                        map[rhumb.RegionID]int // ranges with copies that are in the wrong region, by the right one
}

// judgeRanges counts the ranges by their state and reports the states that need attention, the
// worst first.
func (j *judgement) judgeRanges() {
	c := &j.Counts
	g := rangeGroups{displaced: map[string]int{}, returning: map[rhumb.NodeID]int{}, strays: map[rhumb.RegionID]int{}}
	for _, r := range j.Ranges {
		j.judgeRange(r, &g)
	}
	// A lost range refuses writes too, but has a remedy of its own, so it is counted once.
	c.Lost, c.Refusing = len(g.lost), len(g.refusing)+len(g.accepted)
	if c.Lost > 0 {
		j.addProblem("%s (%s): `rhumb unsafe-recover range` shows what is left, and accepts the loss",
			counted(c.Lost, "range has no intact copy in sync and is not served", "ranges have no intact copy in sync and are not served"), listRanges(g.lost))
	}
	if c.NoPrimary > 0 {
		j.addProblem("%s no live primary", counted(c.NoPrimary, "range has", "ranges have"))
	}
	if len(g.accepted) > 0 {
		j.addProblem("%s for as many live copies in sync as required (%s), although the loss of the others was accepted: start or join nodes in the region, nothing is read or written until then",
			counted(len(g.accepted), "range waits", "ranges wait"), listRanges(g.accepted))
	}
	if len(g.refusing) > 0 {
		j.addProblem("%s fewer live in-sync copies than required, and writes are refused (%s); if the nodes of the other copies are gone for good, `rhumb unsafe-recover range` shows what is left and lets a range continue",
			counted(len(g.refusing), "range has", "ranges have"), listRanges(g.refusing))
	}
	if c.UnderReplicated > 0 {
		j.addProblem("%s fewer copies in sync than their tables ask for", counted(c.UnderReplicated, "range has", "ranges have"))
	}
	j.judgeStrays(g)
	if len(g.doubtful) > 0 {
		j.addProblem("%s lost acknowledged writes (%s): each in-sync copy is on a node whose disk lost data when it last started; what could be read of damaged files is set aside in the directories of these nodes",
			counted(len(g.doubtful), "range may have", "ranges may have"), listRanges(g.doubtful))
	}
	if len(g.recovered) > 0 {
		j.addNote("an operator has accepted a loss for %s (%s): `rhumb range describe` shows it", counted(len(g.recovered), "range", "ranges"), listRanges(g.recovered))
	}
	// Sorted, so that two runs of `rhumb status` print the same lines in the same order.
	for _, why := range slices.Sorted(maps.Keys(g.displaced)) {
		j.addProblem("%s displaced: %s", counted(g.displaced[why], "range is", "ranges are"), why)
	}
	// These ranges are served, and have all the copies that fail-back needs. Whether they return, and after how long, is a choice of the operator.
	for _, id := range slices.Sorted(maps.Keys(g.returning)) {
		j.addNote("%s displaced, and preferred node %s is in sync again: fail-back returns them as the setting failback says, or `rhumb node failback %[2]s` at once",
			counted(g.returning[id], "range is", "ranges are"), id)
	}
}

// judgeRange counts one range. A range may be in several states at once.
func (j *judgement) judgeRange(r *rhumb.Range, g *rangeGroups) {
	c := &j.Counts
	c.Total++
	c.Quarantined += len(r.Quarantined)
	// A range needs one copy even if its class has no table, and so no minimum. Any node may be the
	// next to fail, so the cluster can lose only as many as its weakest range.
	class := j.classes[r.Class]
	spare := j.intactCopies(r) - max(class.MinInSync, 1)
	j.CanLose = min(j.CanLose, max(spare, 0))
	if !j.isServed(r) {
		c.NoPrimary++
	}
	// The copies of a class without tables are about to be removed.
	if len(r.InSync) < cmp.Or(class.Replicas, len(r.Replicas)) {
		c.UnderReplicated++
	}
	if at := j.hostOf(r.ID.Region); class.Replicas > 0 && class.Survival != rhumb.SurviveRegion && slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return j.isStray(id, at) }) {
		g.strays[at]++
	}
	switch {
	// Lost means damaged, not down: a node that is down may return with a good copy.
	case !slices.ContainsFunc(r.InSync, func(n rhumb.NodeID) bool { return !r.IsQuarantined(n) }):
		g.lost = append(g.lost, r.ID)
	case spare < 0 && j.isAccepted(r):
		g.accepted = append(g.accepted, r.ID)
	case spare < 0:
		g.refusing = append(g.refusing, r.ID)
	}
	if j.isDoubtful(r) {
		g.doubtful = append(g.doubtful, r.ID)
	}
	if r.Recovery != nil {
		g.recovered = append(g.recovered, r.ID)
	}
	if r.Primary != r.Preferred {
		c.Displaced++
		if why := j.whyDisplaced(r); why != "" {
			g.displaced[why]++
		} else {
			g.returning[r.Preferred]++
		}
	}
}

// hostOf returns the region whose nodes are to hold the ranges of a region: itself, or the one that takes the ranges of a removed one.
func (j *judgement) hostOf(id rhumb.RegionID) rhumb.RegionID {
	// Each removal adds one step, and no region takes its own ranges.
	for range j.Regions {
		at := slices.IndexFunc(j.Regions, func(r rhumb.Region) bool { return r.ID == id })
		if at < 0 || j.Regions[at].Into == 0 {
			break
		}
		id = j.Regions[at].Into
	}
	return id
}

// isStray reports whether a copy on a node is in another region than the given one, and nothing moves it. An operation moves the copies of a
// node that leaves.
func (j *judgement) isStray(id rhumb.NodeID, region rhumb.RegionID) bool {
	n := j.nodeOf[id]
	return n != nil && n.Node.Region != region && !n.Node.Leaving
}

// judgeStrays reports copies that are in the wrong region: a removal of the right one was cancelled after they had left it. They are whole and in
// sync, so nothing is wrong while the region has nodes. Without nodes, nobody could replace a copy that is lost.
func (j *judgement) judgeStrays(g rangeGroups) {
	for _, region := range slices.Sorted(maps.Keys(g.strays)) {
		name, count := cmp.Or(j.regionOf[region], region.String()), counted(g.strays[region], "range", "ranges")
		if slices.ContainsFunc(j.Nodes, func(n client.NodeStatus) bool { return n.Node.Region == region && !n.Node.Witness }) {
			j.addNote("%s of region %s with copies in other regions: `rhumb rebalance %[2]s` brings them back", count, name)
		} else {
			j.addProblem("region %s has no nodes for its %s, whose copies are in other regions: start nodes in it, or remove it (`rhumb region rm %[1]s`)", name, count)
		}
	}
}

// isDoubtful reports whether no in-sync copy of a range is known to have kept what was acknowledged:
// an example is the only copy of a range, on a disk that lost data. A range that is still in its
// first epoch did not exist when a node lost data, because a start begins another epoch.
func (j *judgement) isDoubtful(r *rhumb.Range) bool {
	if r.Epoch <= 1 || len(r.InSync) == 0 {
		return false
	}
	return !slices.ContainsFunc(r.InSync, func(id rhumb.NodeID) bool {
		n := j.nodeOf[id]
		return n == nil || !n.Node.Short
	})
}

// whyDisplaced returns why a range cannot be served by the preferred node, or "" if only fail-back is pending. The reasons
// are the same for all ranges of a node, so that one line can count them.
func (j *judgement) whyDisplaced(r *rhumb.Range) string {
	id := r.Preferred
	n := j.nodeOf[id]
	switch {
	case n == nil:
		return fmt.Sprintf("preferred node %s is unknown", id)
	case n.Node.State == rhumb.NodeFenced:
		return fmt.Sprintf("preferred node %s is fenced", id)
	case n.Node.State == rhumb.NodeDraining:
		return fmt.Sprintf("preferred node %s drains", id)
	case !j.isAlive(id):
		return fmt.Sprintf("preferred node %s does not answer", id)
	case r.IsQuarantined(id):
		return fmt.Sprintf("the copy of preferred node %s is quarantined", id)
	case !r.IsInSync(id) && j.logLost[id]:
		return fmt.Sprintf("preferred node %s needs log that is trimmed away, and copies them", id)
	case !r.IsInSync(id):
		return fmt.Sprintf("preferred node %s is not in sync yet", id)
	}
	return ""
}

// troubleFormats are the problems for troubles of replicas: node, number of ranges, their names,
// reason.
var troubleFormats = map[client.TroubleKind]string{
	client.TroubleQuarantined: "node %s has quarantined its copy of %s (%s): %s; once other copies are in sync, `rhumb range discard RANGE --node %[1]s` discards it",
	client.TroubleWaiting:     "node %s was elected primary of %s (%s) and does not serve yet: %s",
	client.TroubleLogLost:     "node %s cannot catch up by log with %s (%s): %s",
}

// troubleGroup identifies the troubles that share one line.
type troubleGroup struct {
	kind   client.TroubleKind
	node   rhumb.NodeID
	reason string
}

// judgeTroubles reports troubles of replicas, one line for each node, kind and reason: a bad disk
// can affect every range of a node.
func (j *judgement) judgeTroubles() {
	ranges := map[troubleGroup][]rhumb.RangeID{}
	var order []troubleGroup // as the nodes reported them
	add := func(g troubleGroup, id rhumb.RangeID) {
		if ranges[g] == nil {
			order = append(order, g)
		}
		ranges[g] = append(ranges[g], id)
	}
	reported := map[rhumb.NodeID]map[rhumb.RangeID]bool{} // quarantined copies that a node reported itself
	for _, n := range j.Nodes {
		for _, t := range n.Troubles {
			if t.Kind == client.TroubleQuarantined {
				if reported[t.Node] == nil {
					reported[t.Node] = map[rhumb.RangeID]bool{}
				}
				reported[t.Node][t.Range] = true
			}
			add(troubleGroup{t.Kind, t.Node, commonReason(t)}, t.Range)
		}
	}
	// A node that does not answer reports nothing, and the list of a node is cut; the catalog has
	// every quarantined copy.
	for _, r := range j.Ranges {
		for _, n := range r.Quarantined {
			if !reported[n][r.ID] {
				add(troubleGroup{client.TroubleQuarantined, n, "according to the metadata"}, r.ID)
			}
		}
	}
	for _, g := range order {
		j.addProblem(troubleFormats[g.kind], g.node, counted(len(ranges[g]), "range", "ranges"), listRanges(ranges[g]), g.reason)
	}
}

// judgeDifferences reports ranges whose replicas differ, one line for each group of nodes and reason. Only the primary of a range
// reports a difference, so that no range is counted twice.
func (j *judgement) judgeDifferences() {
	type group struct{ nodes, why string }
	ranges := map[group][]rhumb.RangeID{}
	var order []group // as the nodes reported them
	for _, n := range j.Nodes {
		// The list of a node is cut, and its count is not.
		j.Counts.Differing += max(n.DifferingCount, len(n.Differing))
		for _, d := range n.Differing {
			j.Differences = append(j.Differences, d)
			g := group{listNodes(d.Nodes), cmp.Or(d.Why, "the copies that differ were not quarantined; the log of the primary says why")}
			if ranges[g] == nil {
				order = append(order, g)
			}
			ranges[g] = append(ranges[g], d.Range)
		}
	}
	// A bad disk may affect all ranges of a node: one line counts them.
	for _, g := range order {
		j.addProblem("the copies of %s differ (%s, on %s): %s; `rhumb range verify` compares again", counted(len(ranges[g]), "range", "ranges"), listRanges(ranges[g]), g.nodes, g.why)
	}
}

// commonReason returns the reason of a trouble without what differs between ranges. The reason of a
// lost log names a position.
func commonReason(t client.ReplicaTrouble) string {
	if t.Kind == client.TroubleLogLost {
		return "the log that it needs is trimmed away; it copies the range by itself, and `rhumb range describe` shows how far it is"
	}
	return t.Reason
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func listNodes(ids []rhumb.NodeID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	return strings.Join(names, ", ")
}

// listRanges names the first ranges and shows that there are more.
func listRanges(ids []rhumb.RangeID) string {
	var names []string
	for _, id := range ids[:min(len(ids), namedMax)] {
		names = append(names, id.String())
	}
	if len(ids) > namedMax {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

func roundAge(d time.Duration) string { return max(d.Round(time.Second), time.Second).String() }
