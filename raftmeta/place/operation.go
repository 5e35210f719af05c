package place

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// movesMax bounds the ranges that one operation moves at the same time, so that a node that leaves does not occupy the disks
// and links of the others with all its copies at once. Ranges that cannot move now do not count.
const movesMax = 16

// Operations returns the commands that advance the operations of the cluster by one step, and the records of how far they
// are. All of it follows from the state: a leader that takes over continues where the last one stopped. wall is the wall
// clock, for the records; measures are what nodes have reported about sizes and copies.
//
// A copy moves in this order, one change of its range at a time (docs/replication.md#rule-removal):
//
//  1. another node gets a copy, as a learner;
//  2. it joins the in-sync set, so that the set without the copy that leaves is as large as the class demands;
//  3. another in-sync node becomes primary;
//  4. the copy is marked as leaving, and the primary takes it out of the in-sync set;
//  5. the replica is removed, and its node drops the data.
func (p *Planner) Operations(now time.Duration, wall time.Time, s *catalog.State, measures Measures) []catalog.Command {
	// Earlier builds know no operations.
	if !s.Has(rhumb.FeatureOperations) {
		return nil
	}
	m := &mover{p: p, now: now, wall: wall, s: s, measures: measures, pools: make(pools)}
	p.observeArrivals(now, s, measures.Arrived)
	m.startRepairs()
	for o := range s.Operations() {
		if o.State == rhumb.OperationRunning && len(m.out) < PlanMax {
			m.active = true
			m.advance(o)
		}
	}
	m.unmark()
	m.trimSurplus()
	m.forgetReplaced()
	// Without an operation nobody asks for sizes, and those that are kept would grow old.
	if !m.active {
		clear(p.sizes)
	}
	return m.out
}

// Measures are the reports of nodes that the progress of operations needs. Each function may be nil.
type Measures struct {
	// Size returns the size of a range's copy in bytes. known is false without a report.
	Size func(rhumb.RangeID) (bytes int64, known bool)
	// Copied returns how much of the copies of a range that are in progress has arrived, between 0 and 1.
	Copied func(rhumb.RangeID) (share float64, ok bool)
	// Arrived is the same for the copy that one node receives.
	Arrived func(rhumb.NodeID, rhumb.RangeID) (share float64, ok bool)
	// Apart reports whether a node has a range in another store than the range before it (Surveys.Apart). Nil means that no node has.
	Apart func(id rhumb.NodeID, right *rhumb.Range) (apart, sure bool)
}

// mover is one call of Operations.
type mover struct {
	p        *Planner
	now      time.Duration
	wall     time.Time
	s        *catalog.State
	measures Measures
	load     *load
	pools    pools
	out      []catalog.Command
	// active reports that an operation is running.
	active bool
}

// tally counts the remaining work of an operation.
type tally struct {
	left, bytes uint64
	// unknown counts the ranges without a known size, and arrived the bytes that copies in progress have received.
	unknown int
	arrived uint64
	// moving counts the ranges whose move is under way (moveStep). waits names the obstacle of one range.
	moving int
	waits  string
}

// advance plans one operation.
func (m *mover) advance(o *rhumb.Operation) {
	switch o.Kind {
	case rhumb.OperationDecommission, rhumb.OperationReplace:
		m.advanceNode(o)
	case rhumb.OperationMove:
		m.advanceMove(o)
	case rhumb.OperationRepair:
		m.advanceRepair(o)
	case rhumb.OperationRemoveRegion:
		m.advanceRegion(o)
	case rhumb.OperationMoveVote:
		m.advanceVote(o)
	case rhumb.OperationMerge:
		m.advanceMerge(o)
	}
}

// advanceVote records how far the move of a vote is. Planner.Voters moves it: the driver of the group promotes one node and demotes
// the other in one change, which needs the majorities of both sets, so the group is never weaker than before or after.
func (m *mover) advanceVote(o *rhumb.Operation) {
	from, knowsFrom := m.s.Node(o.Node)
	to, knowsTo := m.s.Node(o.Target)
	// A vote has no size, so the progress counts one part. The operation ends by what the state says about both nodes, so a leader
	// that takes over between the change of the group and this record finds the same.
	t := tally{left: 1}
	switch {
	case !knowsFrom || !knowsTo || mayNotVote(to):
		m.fail(o, fmt.Sprintf("%s leaves the cluster and cannot take a vote", o.Target))
	case to.Voter && !from.Voter:
		m.record(o, rhumb.OperationDone, tally{}, 2)
	// Somebody else has it, for example because the node was dead for too long.
	case !from.Voter:
		m.fail(o, fmt.Sprintf("%s lost its vote before %s could take it; `rhumb voter ls` shows who votes", o.Node, o.Target))
	// Too few other nodes can vote at the moment, so the vote stays where it is too.
	case to.Voter:
		t.waits = fmt.Sprintf("%s votes; %s keeps its vote while no other node can take it", o.Target, o.Node)
		m.record(o, rhumb.OperationRunning, t, 1)
	case to.State != rhumb.NodeLive:
		t.waits = fmt.Sprintf("%s is %s", o.Target, to.State)
		m.record(o, rhumb.OperationRunning, t, 0)
	default:
		t.waits = fmt.Sprintf("the copy of the metadata on %s is to catch up, and then the vote moves", o.Target)
		m.record(o, rhumb.OperationRunning, t, 0)
	}
}

// advanceNode moves the copies of a node away, then its vote, and removes a replaced node.
func (m *mover) advanceNode(o *rhumb.Operation) {
	n, ok := m.s.Node(o.Node)
	if !ok || n.Forgotten {
		m.record(o, rhumb.OperationDone, tally{}, 3)
		return
	}
	// A node that is to be the new one, and leaves itself, would hold the old one up for ever. Any other node will do then.
	to := o.Target
	if m.leaves(to) {
		to = rhumb.NoNode
	}
	t := m.moveAll(o.Node, to)
	step := 0
	state := rhumb.OperationRunning
	switch {
	case t.left > 0:
	case n.Voter:
		step, t.waits = 1, "another node is to get its vote in the metadata group"
	case o.Kind == rhumb.OperationReplace:
		step, t.waits = 2, m.p.whyRefused(subject{Node: n.ID})
		m.out = append(m.out, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: true})
	default:
		step, state = 2, rhumb.OperationDone
	}
	m.record(o, state, t, step)
}

// leaves reports whether a node is to hold nothing any more.
func (m *mover) leaves(id rhumb.NodeID) bool {
	n, ok := m.s.Node(id)
	return ok && mayNotVote(n)
}

// moveAll advances the moves of all copies on a node, movesMax at a time. Ranges that cannot move now hold up no others.
func (m *mover) moveAll(from, to rhumb.NodeID) tally {
	var t tally
	for r := range m.s.Ranges() {
		if !r.IsReplica(from) {
			continue
		}
		m.weigh(&t, r.ID)
		if t.moving < movesMax && len(m.out) < PlanMax {
			t.note(m.move(r, to, from), r)
		}
	}
	return t
}

// note counts a move if it is under way, and keeps an obstacle.
func (t *tally) note(step moveStep, r *rhumb.Range) {
	if step.busy {
		t.moving++
	}
	if t.waits == "" && step.waits != "" {
		t.waits = fmt.Sprintf("range %s: %s", r.ID, step.waits)
	}
}

// weigh counts a range that is left to move.
func (m *mover) weigh(t *tally, id rhumb.RangeID) {
	// A range without a size counts all the same: ranges are counted exactly, bytes are estimated.
	size, known := m.size(id)
	t.left++
	t.bytes += uint64(size)
	if !known {
		t.unknown++
	}
	if m.measures.Copied == nil {
		return
	}
	// By the share, because a copy has other bytes than the records: tables are compressed, and hold older versions. A copy that
	// arrived is not reported any more, and what it added to the record stays (record).
	if share, ok := m.measures.Copied(id); ok {
		t.arrived += uint64(share * float64(size))
	}
}

// size returns the size of a range: the reported one, else the last one that was reported to this planner, else 0.
func (m *mover) size(id rhumb.RangeID) (bytes int64, known bool) {
	if m.measures.Size != nil {
		if bytes, known = m.measures.Size(id); known {
			m.p.sizes[id] = max(0, bytes)
		}
	}
	bytes, known = m.p.sizes[id]
	return bytes, known
}

// stays reports whether a replica counts as one that remains: its node is not leaving and not gone, and its data is intact.
func (m *mover) stays(r *rhumb.Range, id rhumb.NodeID) bool {
	n, ok := m.s.Node(id)
	return ok && !n.Leaving && !n.Forgotten && !r.IsLeaving(id) && !r.IsQuarantined(id) && !m.p.isGone(m.now, id, m.p.replaceAfter(m.s))
}

// advanceMove moves one copy of one range.
func (m *mover) advanceMove(o *rhumb.Operation) {
	r, ok := m.s.Range(o.Range)
	if !ok {
		m.fail(o, "the range does not exist any more")
		return
	}
	if why := m.leavesRegion(r, o.Node, o.Target); why != "" {
		m.fail(o, why)
		return
	}
	// The two would wait for each other: this copy would be marked as leaving, so that the node of the target could not give up its own.
	if m.leaves(o.Target) {
		m.fail(o, fmt.Sprintf("%s leaves the cluster", o.Target))
		return
	}
	step := m.move(r, o.Target, o.Node)
	t := tally{waits: step.waits}
	m.weigh(&t, r.ID)
	state := rhumb.OperationRunning
	switch {
	case step.phase == phaseGone && r.IsReplica(o.Target):
		t, state = tally{}, rhumb.OperationDone
	case step.phase == phaseGone:
		m.fail(o, fmt.Sprintf("%s lost its copy before %s had one", o.Node, o.Target))
		return
	}
	m.record(o, state, t, int(step.phase))
}

// leavesRegion returns why a move would break the survival goal of a range, or "": the region of the target would hold more copies
// than the goal allows. The catalog accepts such an operation, because it lets copies return to the region of their range, and older
// builds would not refuse it.
func (m *mover) leavesRegion(r *rhumb.Range, from, to rhumb.NodeID) string {
	class, _ := m.s.Class(r.Class)
	source, _ := m.s.Node(from)
	target, ok := m.s.Node(to)
	if class.Settings.Survival != rhumb.SurviveRegion || !ok || source.Region == target.Region || !r.IsReplica(from) {
		return ""
	}
	held := 1
	for _, id := range r.Replicas {
		if n, _ := m.s.Node(id); id != to && n.Region == target.Region {
			held++
		}
	}
	most := class.Settings.RegionReplicasMax()
	if held <= most {
		return ""
	}
	at, _ := m.s.Region(target.Region)
	return fmt.Sprintf("region %s would hold %d copies, and the survival goal of the table allows %d", at.Name, held, most)
}

// startRepairs starts a visible operation for each node that is gone for good and still counts as a copy of ranges. Repair
// creates the copies whether or not there is such an operation, unless it is paused.
func (m *mover) startRepairs() {
	busy := make(map[rhumb.NodeID]bool)
	for o := range m.s.Operations() {
		if !o.State.IsOver() && o.Node != rhumb.NoNode {
			busy[o.Node] = true
		}
	}
	for n := range m.s.Nodes() {
		if busy[n.ID] || n.Forgotten || !m.p.isGone(m.now, n.ID, m.p.replaceAfter(m.s)) || !m.canRepair(n) {
			continue
		}
		m.out = append(m.out, catalog.StartOperation{Kind: rhumb.OperationRepair, Node: n.ID, By: "cluster", At: m.wall})
	}
}

// canRepair reports whether the region has enough other nodes for a copy of the node.
func (m *mover) canRepair(n *rhumb.Node) bool {
	for r := range m.s.Ranges() {
		if class, ok := m.s.Class(r.Class); ok && r.IsReplica(n.ID) && m.pools.of(m.s, r, class).hasRoom() {
			return true
		}
	}
	return false
}

// advanceRepair records how far the repair of a dead node is. Planner.Repair makes the copies.
func (m *mover) advanceRepair(o *rhumb.Operation) {
	n, ok := m.s.Node(o.Node)
	if ok && n.State != rhumb.NodeFenced {
		// The copies on the node catch up, so nothing has to be created elsewhere.
		m.end(o, rhumb.OperationCancelled, fmt.Sprintf("%s is back", o.Node))
		return
	}
	var t tally
	for r := range m.s.Ranges() {
		if r.IsReplica(o.Node) {
			m.weigh(&t, r.ID)
			if t.waits == "" {
				t.waits = fmt.Sprintf("range %s: its replicas are %v, in sync are %v", r.ID, r.Replicas, r.InSync)
			}
		}
	}
	if t.left == 0 {
		m.record(o, rhumb.OperationDone, t, 1)
		return
	}
	m.record(o, rhumb.OperationRunning, t, 0)
}

// fail ends an operation with an error.
func (m *mover) fail(o *rhumb.Operation, why string) { m.end(o, rhumb.OperationFailed, why) }

// end ends an operation before all of it is done, with the reason.
func (m *mover) end(o *rhumb.Operation, state rhumb.OperationState, why string) {
	m.out = append(m.out, catalog.UpdateOperation{
		ID: o.ID, Version: o.Version, State: state, Steps: o.Steps, Progress: o.Progress, Error: clip(why), At: m.wall,
	})
}

// record adds the update of an operation, if something has changed. done is the number of steps that are done.
func (m *mover) record(o *rhumb.Operation, state rhumb.OperationState, t tally, done int) {
	next := catalog.UpdateOperation{ID: o.ID, Version: o.Version, State: state, Steps: slices.Clone(o.Steps), Progress: o.Progress, Waits: clip(t.waits), Error: o.Error, At: m.wall}
	p := &next.Progress
	p.Total, p.TotalBytes = max(p.Total, t.left), max(p.TotalBytes, t.bytes)
	p.Done = p.Total - t.left
	// Ranges grow while they move, and a new leader knows their sizes only after some seconds. Neither undoes what was done, so the
	// bytes that are done never fall. While a size is unknown they rise only with the ranges that are done: else it would look like
	// a finished range. Bytes are an estimate; ranges are counted.
	if p.Done > o.Progress.Done || t.left == 0 || t.unknown == 0 {
		p.DoneBytes = max(p.DoneBytes, p.TotalBytes-t.bytes+min(t.arrived, t.bytes))
	}
	for i := range next.Steps {
		switch {
		case i < done || state == rhumb.OperationDone:
			next.Steps[i].State = rhumb.OperationDone
		case i == done:
			next.Steps[i].State = state
		}
	}
	if next.State != o.State || next.Waits != o.Waits || next.Progress != o.Progress || !slices.Equal(next.Steps, o.Steps) {
		m.out = append(m.out, next)
	}
}

// clip bounds a text of a record.
func clip(s string) string { return s[:min(len(s), rhumb.OperationTextSizeMax)] }

// moving returns the nodes that operations which are not over move copies of each range away from.
func (m *mover) moving() map[rhumb.RangeID][]rhumb.NodeID {
	moved := make(map[rhumb.RangeID][]rhumb.NodeID)
	for o := range m.s.Operations() {
		switch {
		case o.State.IsOver():
		case o.Kind == rhumb.OperationMove:
			moved[o.Range] = append(moved[o.Range], o.Node)
		case o.Kind == rhumb.OperationMerge:
			if right, ok := m.s.Range(o.Range); ok {
				if left, ok := m.s.LeftOf(right); ok {
					moved[o.Range] = append(moved[o.Range], without(right.Replicas, left.Replicas)...)
					// A copy in the wrong store moves too, also while the next report of its node is awaited.
					if id, _ := m.apart(left, right); id != rhumb.NoNode {
						moved[o.Range] = append(moved[o.Range], id)
					}
				}
			}
		}
	}
	return moved
}

// surplus reports whether a range has more copies than its class asks for and nobody needs them: a cancelled move leaves one,
// and so does a dead node that returns after its copies were created elsewhere. Nothing counts as surplus while a node of
// the range is dead, drains or leaves, or while the range moves: then the extra copy is on its way to replace another one. While it
// is being split, metadata lets no copy go.
func (m *mover) surplus(r *rhumb.Range, moved map[rhumb.RangeID][]rhumb.NodeID) bool {
	class, ok := m.s.Class(r.Class)
	if !ok || class.Dropping || len(r.Replicas) <= class.Settings.Replicas || len(moved[r.ID]) > 0 || len(r.Quarantined) > 0 || r.Prepared != nil || isSplitting(m.s, r) {
		return false
	}
	if slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return !m.s.TakesCopies(id) }) {
		return false
	}
	// The copy on the former node is the one that is to stay, and it is not in sync at first.
	if r.IsReplica(r.Former) {
		return false
	}
	// A stand-in from the zone of the preferred primary goes when that one has its range back. Now neither of them could go, and
	// the range would lose another zone instead.
	return r.Primary == r.Preferred || !m.s.ShareZone(r.Primary, r.Preferred)
}

// trimSurplus removes copies that are one too many, in the steps of a move: the copy leaves the in-sync set, and then the replica is
// removed. It never removes a copy before as many others are in sync as the class has replicas.
func (m *mover) trimSurplus() {
	moved := m.moving()
	trimmed := 0
	for r := range m.s.Ranges() {
		// As many at a time as an operation moves: the nodes delete what they lose.
		if trimmed >= movesMax || len(m.out) >= PlanMax {
			return
		}
		if !m.surplus(r, moved) {
			continue
		}
		class, _ := m.s.Class(r.Class)
		victim := m.pickSurplus(r)
		others := slices.DeleteFunc(slices.Clone(r.InSync), func(id rhumb.NodeID) bool { return id == victim })
		// The survival goal counts too: the set that stays must span regions if the class asks for it.
		if victim == rhumb.NoNode || len(others) < class.Settings.Replicas || !m.s.Spans(r.Class, others) {
			continue
		}
		trimmed++
		switch {
		case !r.IsInSync(victim):
			left := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool { return id == victim })
			m.out = append(m.out, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: left})
		case !r.IsLeaving(victim):
			m.out = append(m.out, catalog.SetLeaving{Range: r.ID, Version: r.Version, Leaving: []rhumb.NodeID{victim}})
		}
	}
}

// pickSurplus returns the copy that a range misses least: one outside of the region of the range, which a removal of the region
// has left there before it was cancelled, unless the class is spread over regions; then one in a region with too many; then one that leaves already or is not in sync, so that
// a choice once made stays; then one in a zone with another copy, then one on the node with the most copies. The primary and the preferred primary stay.
func (m *mover) pickSurplus(r *rhumb.Range) rhumb.NodeID {
	if m.load == nil {
		m.load = measureLoad(m.s)
	}
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	shared := func(id rhumb.NodeID) bool {
		n, _ := m.s.Node(id)
		return slices.ContainsFunc(r.Replicas, func(other rhumb.NodeID) bool {
			o, _ := m.s.Node(other)
			return other != id && o.Region == n.Region && o.Zone == n.Zone
		})
	}
	class, _ := m.s.Class(r.Class)
	host := m.s.HostRegion(r.ID.Region)
	foreign := func(id rhumb.NodeID) bool {
		n, _ := m.s.Node(id)
		return class.Settings.Survival != rhumb.SurviveRegion && n.Region != host
	}
	// crowded is true of a copy in a region that holds more of them than the survival goal allows. Without any other copy, the rest
	// would not survive a region, whether or not that copy is in sync now.
	crowded := func(id rhumb.NodeID) bool {
		n, _ := m.s.Node(id)
		held := 0
		for _, other := range r.Replicas {
			if o, _ := m.s.Node(other); o.Region == n.Region {
				held++
			}
		}
		return held > class.Settings.RegionReplicasMax()
	}
	free := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool { return id == r.Primary || id == r.Preferred })
	if len(free) == 0 {
		return rhumb.NoNode
	}
	return slices.MinFunc(free, func(a, b rhumb.NodeID) int {
		return cmp.Or(
			cmp.Compare(rank(foreign(a)), rank(foreign(b))),
			cmp.Compare(rank(crowded(a)), rank(crowded(b))),
			cmp.Compare(rank(r.IsLeaving(a)), rank(r.IsLeaving(b))),
			cmp.Compare(rank(!r.IsInSync(a)), rank(!r.IsInSync(b))),
			cmp.Compare(rank(shared(a)), rank(shared(b))),
			cmp.Compare(m.load.replicas[b], m.load.replicas[a]),
			cmp.Compare(b, a),
		)
	})
}

// unmark takes back the marks of replicas whose operation was cancelled.
func (m *mover) unmark() {
	moved := m.moving()
	for r := range m.s.Ranges() {
		if len(r.Leaving) == 0 || len(m.out) >= PlanMax {
			continue
		}
		// A surplus copy continues to leave.
		if m.surplus(r, moved) {
			continue
		}
		leaving := slices.DeleteFunc(slices.Clone(r.Leaving), func(id rhumb.NodeID) bool {
			n, ok := m.s.Node(id)
			// A region that is being removed marks its nodes, so this covers its ranges too.
			return ok && !n.Leaving && !slices.Contains(moved[r.ID], id)
		})
		if len(leaving) < len(r.Leaving) {
			m.out = append(m.out, catalog.SetLeaving{Range: r.ID, Version: r.Version, Leaving: leaving})
		}
	}
}

// forgetReplaced removes nodes that returned with an empty disk as other nodes, once nothing depends on them.
func (m *mover) forgetReplaced() {
	for n := range m.s.Nodes() {
		if n.ReplacedBy != rhumb.NoNode && !n.Forgotten && m.s.WhyNotForget(n) == "" {
			m.out = append(m.out, catalog.ForgetNode{Node: n.ID, Boot: n.Boot, Empty: true})
		}
	}
}

// replaceAfter returns how long a node must be fenced before its copies are created elsewhere.
func (p *Planner) replaceAfter(s *catalog.State) time.Duration {
	if d, err := time.ParseDuration(s.Setting(rhumb.SettingReplaceAfter)); err == nil && d > 0 {
		return d
	}
	return p.config.ReplaceAfter
}

// WhyNotReplace returns why a node cannot be replaced by another one, or "". A node that has a copy of every range of the one that goes can
// take none of its copies: it replaces nothing, and others have to take them, as in a decommissioning.
func WhyNotReplace(s *catalog.State, node, by rhumb.NodeID) string {
	// The catalog says which nodes can replace each other at all.
	if node == by {
		return ""
	}
	has := false
	for r := range s.Ranges() {
		if r.IsReplica(node) {
			has = true
			if !r.IsReplica(by) {
				return ""
			}
		}
	}
	if !has {
		return ""
	}
	if why := WhyNotLeave(s, node); why != "" {
		return fmt.Sprintf("%s has copies of all ranges of %s already, and the other nodes cannot take them: %s", by, node, why)
	}
	return ""
}

// WhyNotLeave returns why the copies of a node cannot be moved away, with what would fit, or "". It judges the nodes that are
// live and not leaving.
func WhyNotLeave(s *catalog.State, id rhumb.NodeID) string {
	n, ok := s.Node(id)
	if !ok {
		return fmt.Sprintf("node %s does not exist", id)
	}
	left := 0
	for other := range s.Nodes() {
		if other.Region == n.Region && other.ID != id && s.TakesCopies(other.ID) {
			left++
		}
	}
	// With survival goal region the copies of the node may move to other regions, within the bounds of the goal.
	for class := range s.Classes() {
		if class.Settings.Survival != rhumb.SurviveRegion {
			continue
		}
		for home := range s.Regions() {
			if _, has := s.HashBlock(home.ID, class.ID); has && holdsClass(s, id, class.ID) && !newPool(s, home.ID, class.Settings).without(id).hasRoom() {
				return fmt.Sprintf("without %s, the copies of tables that survive the loss of a region do not fit: %s", id, s.ExplainSpread(class.Settings))
			}
		}
	}
	region, _ := s.Region(n.Region)
	most := 0
	var tables []string
	for class := range s.Classes() {
		if class.Settings.Survival == rhumb.SurviveRegion || class.Settings.Replicas <= left || !holdsClass(s, id, class.ID) {
			continue
		}
		most = max(most, class.Settings.Replicas)
		for t := range s.Tables() {
			if t.Class == class.ID {
				tables = append(tables, fmt.Sprintf("%s (%d)", t.Name, class.Settings.Replicas))
			}
		}
	}
	if most == 0 {
		return ""
	}
	more := "a node"
	if most-left > 1 {
		more = fmt.Sprintf("%d nodes", most-left)
	}
	return fmt.Sprintf("without %s, the live nodes of region %s would be %d, but these tables keep more copies: %s; add %s to the region first, or replace %s by a new node (rhumb node replace)",
		id, region.Name, left, strings.Join(tables, ", "), more, id)
}

// holdsClass reports whether a node has a copy of a range of the class.
func holdsClass(s *catalog.State, id rhumb.NodeID, class rhumb.ClassID) bool {
	for r := range s.Ranges() {
		if r.Class == class && r.IsReplica(id) {
			return true
		}
	}
	return false
}
