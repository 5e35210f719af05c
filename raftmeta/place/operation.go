package place

import (
	"fmt"
	"slices"
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

// workLeft counts the remaining work of an operation.
type workLeft struct {
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
	t := workLeft{left: 1}
	switch {
	case !knowsFrom || !knowsTo || mayNotVote(to):
		m.fail(o, fmt.Sprintf("%s leaves the cluster and cannot take a vote", o.Target))
	case to.Voter && !from.Voter:
		m.record(o, rhumb.OperationDone, workLeft{}, 2)
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

// note counts a move if it is under way, and keeps an obstacle.
func (t *workLeft) note(step moveStep, r *rhumb.Range) {
	if step.busy {
		t.moving++
	}
	if t.waits == "" && step.waits != "" {
		t.waits = fmt.Sprintf("range %s: %s", r.ID, step.waits)
	}
}

// weigh counts a range that is left to move.
func (m *mover) weigh(t *workLeft, id rhumb.RangeID) {
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
	// Nobody chose this node, and a move that never ends would take the place of one that does (BalanceMovesMax).
	if o.By == balancer && m.p.stalls(m.now, r, o.Target) {
		m.end(o, rhumb.OperationCancelled, m.p.whyNotArrive(o.Target))
		return
	}
	step := m.move(r, o.Target, o.Node)
	// Another operation gave the target its copy, and the copy that is to leave has become one of those that are needed. It would wait for a node
	// that nobody has promised, and take the place of a move that can end.
	if class, _ := m.s.Class(r.Class); o.By == balancer && !step.busy && r.IsReplica(o.Node) && r.IsReplica(o.Target) && len(r.Replicas) <= class.Settings.Replicas {
		m.end(o, rhumb.OperationCancelled, step.waits)
		return
	}
	t := workLeft{waits: step.waits}
	m.weigh(&t, r.ID)
	state := rhumb.OperationRunning
	switch {
	case step.phase == phaseGone && r.IsReplica(o.Target):
		t, state = workLeft{}, rhumb.OperationDone
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

// fail ends an operation with an error.
func (m *mover) fail(o *rhumb.Operation, why string) { m.end(o, rhumb.OperationFailed, why) }

// end ends an operation before all of it is done, with the reason.
func (m *mover) end(o *rhumb.Operation, state rhumb.OperationState, why string) {
	m.out = append(m.out, catalog.UpdateOperation{
		ID: o.ID, Version: o.Version, State: state, Steps: o.Steps, Progress: o.Progress, Error: clip(why), At: m.wall,
	})
}

// record adds the update of an operation, if something has changed. done is the number of steps that are done.
func (m *mover) record(o *rhumb.Operation, state rhumb.OperationState, t workLeft, done int) {
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

// replaceAfter returns how long a node must be fenced before its copies are created elsewhere.
func (p *Planner) replaceAfter(s *catalog.State) time.Duration {
	if d, err := time.ParseDuration(s.Setting(rhumb.SettingReplaceAfter)); err == nil && d > 0 {
		return d
	}
	return p.config.ReplaceAfter
}
