package catalog

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
)

// This file holds the removal of regions (docs/decisions/0046-a-removed-region-keeps-its-keys.md). A key begins with the region
// where it was written, so the records of a removed region stay under its number, in ranges that nodes of another region
// hold: rhumb.Region.Into. The record of the region stays for the same reason, without nodes and under a name that
// nobody can choose.

// Why the record is kept: the number of a region is part of every key that was written there, of the images that readers have
// mapped, and of the positions in them. If the number were given to another region, or to none, all of these would name something
// else. Numbers are never assigned twice for the same reason, so a record that stays costs nothing but its bytes.
//
// Why the mark comes first: between the first and the last copy that moves, nodes and clients must agree on where new things
// begin. With the mark in the catalog, all of them decide by the same state, and a leader that takes over continues where
// the last one stopped.

// RemoveRegion ends the removal of a region that has no nodes any more: its name is free, and the operation is done. With Force it drops a region
// whose nodes are all dead, in one step: its nodes are forgotten; its ranges move to Into as far as other nodes have copies; the
// other ranges are removed, and with them their records. If only some of the ranges of a block of hash slots are lost, because a
// removal had begun, the lost ones restart empty instead, on the nodes of Restarts: names hash to all slots of a block.
//
// Lost is the number of ranges that the operator was shown, else Conflict: the decision was about another state.
// Repeating the command changes nothing.
type RemoveRegion struct {
	Region, Into rhumb.RegionID
	Force        bool
	Lost         uint32
	// Restarts has the nodes for the ranges that restart empty, in the order of the ranges. Package raftmeta/place chooses them.
	Restarts []RangeCopies
	// At is the proposer's wall clock, when the operation ends. By is for the operation that records a forced removal.
	By string
	At time.Time
}

// RangeCopies names the nodes for the copies of a range, the primary first.
type RangeCopies struct {
	Range    rhumb.RangeID
	Replicas []rhumb.NodeID
}

func (RemoveRegion) wireCode() commandCode { return codeRemoveRegion }

func (c RemoveRegion) needs() rhumb.Feature {
	if len(c.Restarts) > 0 {
		return rhumb.FeatureRestartEmpty
	}
	return rhumb.FeatureOperations
}

// removedMark separates the former name of a removed region from its number. Names of regions cannot contain it.
const removedMark = "~"

// HostRegion returns the region whose nodes hold, or are to hold, the ranges of a region: the region itself unless it is being
// removed.
func (s *State) HostRegion(id rhumb.RegionID) rhumb.RegionID {
	// The chain has no cycles (check.go), and the bound is for a record that is being checked.
	// Later removals do not rewrite earlier ones, so the chain is as long as the number of removals in a row.
	for range rhumb.RegionsMax {
		r, ok := s.regions.get(uint64(id))
		if !ok || r.Into == 0 {
			return id
		}
		id = r.Into
	}
	return id
}

// isRegionLeaving reports whether an operation that is not over removes the region.
func (s *State) isRegionLeaving(id rhumb.RegionID) bool {
	r, ok := s.regions.get(uint64(id))
	return ok && r.Into != 0 && !r.Removed
}

// isRegionRemoved reports whether a region was removed for good.
func (s *State) isRegionRemoved(id rhumb.RegionID) bool {
	r, ok := s.regions.get(uint64(id))
	return ok && r.Removed
}

// checkRegion refuses a removal that does not fit. Whether the other regions have room is policy (place.PlanRegionRemoval).
func (c StartOperation) checkRegion(t *tx) Result {
	const op rhumb.Op = "catalog.StartOperation"
	r, ok := t.Region(c.Region)
	into, known := t.Region(c.Into)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "region %s does not exist", c.Region)
	case r.Into != 0:
		return refuse(op, rhumb.Conflict, "region %s is being removed already, or was", r.Name)
	// A region that goes itself could only pass the ranges on. Forbidding it also excludes cycles: the new end of the chain is a
	// region that stays, so no chain leads back.
	case !known || into.Into != 0 || c.Into == c.Region:
		return refuse(op, rhumb.InvalidArgument, "region %s cannot take the ranges of region %s", c.Into, r.Name)
	}
	// Two operations that move the same copies would wait for each other.
	for o := range t.Operations() {
		n, ok := t.Node(o.Node)
		if ok && !o.State.IsOver() && n.Region == c.Region && (o.Kind == rhumb.OperationDecommission || o.Kind == rhumb.OperationReplace) {
			return refuse(op, rhumb.Conflict, "operation %s (%s) of %s is %s; wait for it or cancel it", o.ID, o.Kind, o.Node, o.State)
		}
	}
	return Result{}
}

// beginRemoval marks the region and its nodes, and ends moves to and from them: the removal moves everything.
func (t *tx) beginRemoval(c StartOperation) {
	t.setInto(c.Region, c.Into)
	for o := range t.freezeState().Operations() {
		if o.Kind == rhumb.OperationMove && !o.State.IsOver() && (t.isIn(o.Node, c.Region) || t.isIn(o.Target, c.Region)) {
			next := o.Clone()
			next.Error = "the region of a node is being removed"
			t.enterState(next, rhumb.OperationCancelled, c.At)
		}
	}
	t.markRegion(c.Region, true)
}

// cancelRemoval takes the marks back. Ranges that have moved stay where they are.
func (t *tx) cancelRemoval(id rhumb.RegionID) {
	t.setInto(id, 0)
	t.markRegion(id, false)
}

// setInto stores into which region a region is removed.
func (t *tx) setInto(id, into rhumb.RegionID) {
	r, _ := t.regions.get(uint64(id))
	next := *r
	// Nodes of other regions are to serve its ranges, so they are to be asked for its names.
	next.Into, next.Dead = into, r.Dead && into == 0
	t.putRegion(&next)
}

// markRegion marks all nodes of a region as leaving, or takes the marks back. A node that was leaving before still leaves
// then.
func (t *tx) markRegion(id rhumb.RegionID, leaving bool) {
	for _, n := range t.freezeState().nodes.all() {
		if n.Region != id || n.Forgotten {
			continue
		}
		next := *n
		next.leftBefore = leaving && n.Leaving
		t.setLeavingNode(&next, leaving || n.leftBefore)
	}
}

// isIn reports whether a node is in a region.
func (s *State) isIn(id rhumb.NodeID, region rhumb.RegionID) bool {
	n, ok := s.Node(id)
	return ok && n.Region == region
}

// LostRanges returns what would be lost with a region: the ranges that only its nodes have copies of. stuck are the ranges that
// cannot be decided about: other nodes have copies, and none of these is in sync, so they may lack acknowledged writes. An
// operator accepts their loss first (RecoverRange).
func (s *State) LostRanges(region rhumb.RegionID) (lost, stuck []*rhumb.Range) {
	for r := range s.Ranges() {
		here, elsewhere, inSync := 0, 0, 0
		for _, id := range r.Replicas {
			switch {
			case s.isIn(id, region):
				here++
			case r.IsInSync(id) && !r.IsQuarantined(id):
				elsewhere++
				inSync++
			default:
				elsewhere++
			}
		}
		switch {
		// A copy elsewhere that is in sync has every acknowledged write (invariant I3), so nothing of the range is lost.
		case here == 0 || inSync > 0:
		case elsewhere > 0:
			stuck = append(stuck, r)
		default:
			lost = append(lost, r)
		}
	}
	return lost, stuck
}

// applyTo removes the region.
func (c RemoveRegion) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RemoveRegion"
	r, ok := t.regions.get(uint64(c.Region))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "region %s does not exist", c.Region)
	case r.Removed:
		return Result{Region: c.Region}
	case c.Force:
		return c.applyForce(t, r)
	case r.Into == 0:
		return refuse(op, rhumb.Conflict, "region %s is not being removed", r.Name)
	}
	// The planner proposes this command after the removal of the last node. A node that was registered since cannot exist, because
	// the mark forbids it, but the state is checked all the same: the name must not be free while somebody runs under it.
	for n := range t.Nodes() {
		if n.Region == c.Region && !n.Forgotten {
			return refuse(op, rhumb.Conflict, "region %s still has %s", r.Name, n.ID)
		}
	}
	// Somebody has removed the last nodes by force. Their ranges would stay without a copy, and searches for their names would never end.
	if lost, _ := t.LostRanges(c.Region); len(lost) > 0 {
		return refuseRange(op, rhumb.Conflict, lost[0], "the only copies of %d ranges, such as %s, were on nodes of region %s that were removed; `rhumb unsafe-recover region %s` gives them up",
			len(lost), lost[0].ID, r.Name, r.Name)
	}
	t.removeRegion(c.Region, 0)
	// In the same step, because nothing takes the removal back from here on: whoever cancelled the operation now would take the mark of a
	// region that has no nodes any more, and whose ranges are those of another one.
	t.endRemoval(c)
	return Result{Region: c.Region}
}

// endRemoval ends the operation that has removed the region, with all of its steps, also if it was paused meanwhile.
func (t *tx) endRemoval(c RemoveRegion) {
	for o := range t.freezeState().Operations() {
		if o.Kind != rhumb.OperationRemoveRegion || o.Region != c.Region || o.State.IsOver() {
			continue
		}
		next := o.Clone()
		for i := range next.Steps {
			next.Steps[i].State = rhumb.OperationDone
		}
		next.Progress.Done, next.Progress.DoneBytes = next.Progress.Total, next.Progress.TotalBytes
		// A proposer of an earlier build names no time.
		at := c.At
		if at.IsZero() {
			at = o.Since
		}
		t.enterState(next, rhumb.OperationDone, at)
	}
}

// removeRegion stores that a region was removed, and frees its name.
func (t *tx) removeRegion(id rhumb.RegionID, lost uint32) {
	r, _ := t.regions.get(uint64(id))
	next := *r
	next.Name = fmt.Sprintf("%s%s%d", r.Name, removedMark, id)
	next.Removed, next.Dead, next.Lost = true, false, lost
	t.putRegion(&next)
}

// applyForce drops a region whose nodes are all dead.
func (c RemoveRegion) applyForce(t *tx, r *region) Result {
	const op rhumb.Op = "catalog.RemoveRegion"
	into, known := t.Region(c.Into)
	if !known || into.Into != 0 || c.Into == c.Region {
		return refuse(op, rhumb.InvalidArgument, "region %s cannot take the ranges of region %s", c.Into, r.Name)
	}
	// A node that is not fenced may have acknowledged a write a moment ago. Giving up a region must never be a race.
	for n := range t.Nodes() {
		if n.Region == c.Region && n.State != rhumb.NodeFenced {
			return refuse(op, rhumb.Conflict, "%s is %s: region %s is not lost; remove it without --force", n.ID, n.State, r.Name)
		}
	}
	lost, stuck := t.LostRanges(c.Region)
	if len(stuck) > 0 {
		r := stuck[0]
		return refuseRange(op, rhumb.Conflict, r, "range %s has copies in other regions that are not in sync: %s; decide about it first with `rhumb unsafe-recover range %s --node %s`", r.ID, rhumb.NodeList(r.Replicas), r.ID, t.liveReplica(r))
	}
	// The operator has agreed to a loss of this size. More would be more than was agreed to; fewer means that somebody has changed
	// something meanwhile, and the operator should know.
	if len(lost) != int(c.Lost) {
		return refuse(op, rhumb.Conflict, "%d ranges would be lost, and the request is about %d; look at it again", len(lost), c.Lost)
	}
	if refusal := c.checkRestarts(t, t.BrokenRanges(lost)); refusal.Failure != nil {
		return refusal
	}
	// Everything is checked; nothing below is refused.
	t.endOperationsOf(c)
	broken := t.BrokenRanges(lost)
	t.removeLost(slices.DeleteFunc(slices.Clone(lost), func(r *rhumb.Range) bool { return slices.Contains(broken, r) }))
	for i, r := range broken {
		t.restartEmpty(r, c.Restarts[i].Replicas)
	}
	t.setInto(c.Region, c.Into)
	for _, n := range t.freezeState().nodes.all() {
		if n.Region == c.Region {
			// A node that returns all the same is refused, and stops.
			t.forgetNode(n)
		}
	}
	t.removeRegion(c.Region, c.Lost)
	t.recordForce(c, lost, len(broken))
	return Result{Region: c.Region}
}

// liveReplica returns a live node with a copy of a range, or the first node that has one.
func (s *State) liveReplica(r *rhumb.Range) rhumb.NodeID {
	if i := slices.IndexFunc(r.Replicas, s.IsLive); i >= 0 {
		return r.Replicas[i]
	}
	return r.Replicas[0]
}

// BrokenRanges returns those of the lost ranges that cannot be removed, in the order of their slots: other ranges of their block of
// hash slots stay. Names are hashed to all slots of a block, so each of its slots needs a range.
func (s *State) BrokenRanges(lost []*rhumb.Range) (broken []*rhumb.Range) {
	// The blocks that nodes insert into have no holes to avoid: keys there name their slot, and are not hashed.
	hashBlock := func(r *rhumb.Range) *rhumb.Block {
		if b, ok := s.BlockOf(r.ID); ok && b.Node == rhumb.NoNode {
			return b
		}
		return nil
	}
	goes := make(map[rhumb.RangeID]bool, len(lost))
	loses := make(map[*rhumb.Block]bool)
	for _, r := range lost {
		goes[r.ID] = true
		if b := hashBlock(r); b != nil {
			loses[b] = true
		}
	}
	stays := make(map[*rhumb.Block]bool)
	for r := range s.Ranges() {
		if b := hashBlock(r); loses[b] && !goes[r.ID] {
			stays[b] = true
		}
	}
	for _, r := range lost {
		if stays[hashBlock(r)] {
			broken = append(broken, r)
		}
	}
	return broken
}

// checkRestarts refuses a command whose Restarts does not have fitting nodes for exactly these ranges.
func (c RemoveRegion) checkRestarts(t *tx, broken []*rhumb.Range) Result {
	const op rhumb.Op = "catalog.RemoveRegion"
	if len(broken) > 0 && len(c.Restarts) == 0 {
		class, _ := t.Class(broken[0].Class)
		into, _ := t.Region(c.Into)
		return refuseRange(op, rhumb.Conflict, broken[0], "range %s is lost and others of its hash slots are not, so it has to restart empty in region %s, which has too few live nodes for %d copies or may not hold the table; start nodes there, or choose another region with --into",
			broken[0].ID, into.Name, class.Settings.Replicas)
	}
	if !slices.EqualFunc(broken, c.Restarts, func(r *rhumb.Range, a RangeCopies) bool { return r.ID == a.Range }) {
		return refuse(op, rhumb.Conflict, "%d ranges would restart empty, and the request has nodes for %d others; look at it again", len(broken), len(c.Restarts))
	}
	// As for the ranges of a new table: the nodes are live members of the region that takes the others, and as many as the class asks
	// for. A node that failed since the leader chose it makes the command a conflict, and the next attempt chooses others.
	for i, r := range broken {
		class, _ := t.Class(r.Class)
		if err := t.checkReplicas(c.Into, class.Settings, c.Restarts[i].Replicas); err != nil {
			failure := refuseErr(op, err)
			failure.Range = r
			return failure
		}
	}
	return Result{}
}

// restartEmpty replaces the copies of a lost range by empty ones. The range keeps its number, and its epoch is above all earlier
// ones: whatever a node, a message or a client still knows of the lost copies belongs to an earlier epoch.
//
// The new members count as holding every acknowledged write, because the operator accepted the loss of the others. So one of
// them suffices for an election, as in a range that was just created.
func (t *tx) restartEmpty(r *rhumb.Range, replicas []rhumb.NodeID) {
	next := r.Clone()
	// A reserved range has no slots of its own yet. It begins with the range that was to be split.
	if r.Birth != 0 {
		t.ranges.delete(t.owner, rangeKey(r.ID))
		t.changes.Ranges = append(t.changes.Ranges, r.ID)
		return
	}
	if child, ok := t.ReservedIn(r); ok {
		next.Allocated = max(next.Allocated, child.Allocated)
	}
	// Marks of merges and moves go with the copies that they were about. Nobody else refers to them: the other range of a merge has
	// the same copies, so it is lost too.
	next.Replicas = slices.Sorted(slices.Values(replicas))
	next.Preferred, next.Former = replicas[0], rhumb.NoNode
	next.Quarantined, next.Leaving, next.TakesOver, next.Ends, next.Lives = nil, nil, 0, 0, nil
	for _, id := range next.Replicas {
		n, _ := t.Node(id)
		next.Lives = append(next.Lives, rhumb.MemberLife{Node: id, Life: n.Boot})
	}
	next.Recovery = &rhumb.Recovery{Epoch: next.Allocated + 1, Node: replicas[0], Gone: slices.Clone(r.Replicas)}
	t.electPrimary(next, replicas[0], next.Replicas)
}

// removeLost removes ranges, the blocks of hash slots that they leave empty, and the slots that nodes insert into.
func (t *tx) removeLost(lost []*rhumb.Range) {
	var blocks []*rhumb.Block
	for _, r := range lost {
		if b, ok := t.BlockOf(r.ID); ok && !slices.Contains(blocks, b) {
			blocks = append(blocks, b)
		}
		t.ranges.delete(t.owner, rangeKey(r.ID))
		t.changes.Ranges = append(t.changes.Ranges, r.ID)
	}
	for _, b := range blocks {
		if b.Node != rhumb.NoNode {
			// The node is forgotten, so it opens no slot any more. Older slots of the block may have copies elsewhere.
			t.active.delete(t.owner, pairKey(b.Node, b.Class))
			continue
		}
		t.blocks.delete(t.owner, pairKey(b.Region, b.First))
		t.hash.delete(t.owner, pairKey(b.Region, b.Class))
		t.changes.Blocks = append(t.changes.Blocks, rhumb.RangeID{Region: b.Region, Slot: b.First})
	}
}

// endOperationsOf ends the operations about the region and its nodes.
func (t *tx) endOperationsOf(c RemoveRegion) {
	for o := range t.freezeState().Operations() {
		if !o.State.IsOver() && (o.Region == c.Region || t.isIn(o.Node, c.Region) || t.isIn(o.Target, c.Region)) {
			next := o.Clone()
			next.Error = "the region was removed by force"
			t.enterState(next, rhumb.OperationCancelled, c.At)
		}
	}
}

// recordForce records the loss as an operation that is over, so that `rhumb operation ls` shows who accepted it.
func (t *tx) recordForce(c RemoveRegion, lost []*rhumb.Range, restarted int) {
	classes := make(map[rhumb.ClassID]bool)
	for _, r := range lost {
		classes[r.Class] = true
	}
	var tables []string
	for table := range t.Tables() {
		if classes[table.Class] {
			tables = append(tables, table.Name)
		}
	}
	text := fmt.Sprintf("by force: %d ranges were given up with all records in them", len(lost))
	if restarted > 0 {
		text += fmt.Sprintf("; %d of them restart empty", restarted)
	}
	if len(tables) > 0 {
		text += "; tables: " + strings.Join(tables, ", ")
	}
	// It begins and ends in one step, so it never counts as active, and the bound of active operations does not refuse it.
	t.lastOperation++
	o := &rhumb.Operation{
		ID: t.lastOperation, Kind: rhumb.OperationRemoveRegion, State: rhumb.OperationRunning, Version: 1, Region: c.Region,
		By: c.By, Started: c.At.UTC(), Since: c.At.UTC(), Error: text[:min(len(text), rhumb.OperationTextSizeMax)],
	}
	for _, name := range operationSteps[o.Kind] {
		o.Steps = append(o.Steps, rhumb.OperationStep{Name: name, State: rhumb.OperationDone})
	}
	t.enterState(o, rhumb.OperationDone, c.At)
}
