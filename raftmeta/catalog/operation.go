package catalog

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// StartOperation starts a long operation, which the controller of the metadata leader advances. If an equal one is not over,
// that one is the result.
//
// OperationDecommission, OperationReplace and OperationRepair mark the node (rhumb.Node.Leaving), except that the repair of a
// dead node leaves it unmarked: the node may return. OperationRemoveRegion marks all nodes of the region, and the region
// (rhumb.Region.Into).
//
// Refusals: NotFound for an unknown node or range; Conflict for another operation about the same node, and for a target that
// cannot take copies; Overloaded if OperationsActiveMax operations are not over. Whether there are enough other nodes is
// policy, which the proposer checks (place.WhyNotLeave).
type StartOperation struct {
	Kind         rhumb.OperationKind
	Node, Target rhumb.NodeID
	Region       rhumb.RegionID
	// Into is the region that takes the ranges of a region that is removed. Package raftmeta/place chooses it.
	Into  rhumb.RegionID
	Range rhumb.RangeID
	// By is who asks for it, At the proposer's wall clock.
	By string
	At time.Time
}

// UpdateOperation records how far an operation is. Only the metadata leader proposes it. Version must be that of the
// record, else Conflict: a leader that does not know of a pause must not undo it.
type UpdateOperation struct {
	ID       rhumb.OperationID
	Version  uint64
	State    rhumb.OperationState
	Steps    []rhumb.OperationStep
	Progress rhumb.Progress
	Waits    string
	Error    string
	At       time.Time
}

// OperationAction is an action of an operator on an operation.
type OperationAction uint8

// The actions. They are stored in the log: append only.
const (
	PauseOperation  OperationAction = 1
	ResumeOperation OperationAction = 2
	CancelOperation OperationAction = 3
)

// ControlOperation pauses, resumes or cancels an operation. Repeating it changes nothing. An operation that is over is a
// Conflict. A cancelled one moves nothing back: copies that have moved stay at their new nodes, and its node is not leaving any more.
type ControlOperation struct {
	ID     rhumb.OperationID
	Action OperationAction
	At     time.Time
}

// SetLeaving sets the replicas of a range whose copies are to go (docs/replication.md#rule-removal). The primary takes them
// out of the in-sync set, and then the controller removes them with SetReplicas. It is a Conflict if the other members of
// the in-sync set would be fewer than its minimum, because the replicas could not leave then.
type SetLeaving struct {
	Range   rhumb.RangeID
	Version uint64
	Leaving []rhumb.NodeID
}

// SetSetting sets a setting of the cluster; an empty value resets it to its default. The proposer checks the value.
type SetSetting struct {
	Name, Value string
}

const (
	// settingSizeMax bounds name and value of a setting, settingsMax their number.
	settingSizeMax = 256
	settingsMax    = 64
)

func (StartOperation) wireCode() commandCode   { return codeStartOperation }
func (UpdateOperation) wireCode() commandCode  { return codeUpdateOperation }
func (ControlOperation) wireCode() commandCode { return codeControlOperation }
func (SetLeaving) wireCode() commandCode       { return codeSetLeaving }
func (SetSetting) wireCode() commandCode       { return codeSetSetting }

func (UpdateOperation) needs() rhumb.Feature  { return rhumb.FeatureOperations }
func (ControlOperation) needs() rhumb.Feature { return rhumb.FeatureOperations }
func (SetLeaving) needs() rhumb.Feature       { return rhumb.FeatureOperations }
func (SetSetting) needs() rhumb.Feature       { return rhumb.FeatureOperations }

// needs returns the feature of the kind. Builds before it would refuse the operation where newer ones start it, and their
// states would differ.
func (c StartOperation) needs() rhumb.Feature {
	switch c.Kind {
	case rhumb.OperationRebalance:
		return rhumb.FeatureRebalance
	case rhumb.OperationMoveVote:
		return rhumb.FeatureVoters
	case rhumb.OperationMerge:
		return rhumb.FeatureMerge
	}
	return rhumb.FeatureOperations
}

// needs returns the feature of Empty. Builds before it decode the command without it.
func (c ForgetNode) needs() rhumb.Feature {
	if c.Empty {
		return rhumb.FeatureOperations
	}
	return rhumb.NoFeature
}

// Operation returns the operation with the given id. The record is shared and must not be modified.
func (s *State) Operation(id rhumb.OperationID) (*rhumb.Operation, bool) {
	return s.operations.get(uint64(id))
}

// Operations yields all operations, ordered by id. Those that are over are kept for a while.
func (s *State) Operations() iter.Seq[*rhumb.Operation] { return treeValues(&s.operations) }

// Setting returns the value of a setting, and "" for its default.
func (s *State) Setting(name string) string { return s.settings[name] }

// operationSteps are the names of the steps of each kind, in order.
var operationSteps = map[rhumb.OperationKind][]string{
	rhumb.OperationDecommission: {"move copies", "move vote"},
	rhumb.OperationReplace:      {"move copies", "move vote", "give up node"},
	rhumb.OperationMove:         {"copy", "hand over", "remove"},
	rhumb.OperationRepair:       {"copy"},
	rhumb.OperationRemoveRegion: {"move copies", "move votes", "remove nodes", "remove region"},
	rhumb.OperationRebalance:    {"move copies"},
	rhumb.OperationMoveVote:     {"catch up", "move vote"},
	rhumb.OperationMerge:        {"move copies", "hand over", "merge"},
}

// putOperation stores an operation and notes that it was touched.
func (t *tx) putOperation(o *rhumb.Operation) {
	t.operations.set(t.owner, uint64(o.ID), o)
	t.changes.Operations = append(t.changes.Operations, o.ID)
}

// applyTo creates the record and marks the node.
func (c StartOperation) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.StartOperation"
	steps, known := operationSteps[c.Kind]
	if !known || len(c.By) > settingSizeMax {
		return refuse(op, rhumb.InvalidArgument, "operation %s is unknown, or its starter's name is too long", c.Kind)
	}
	active := 0
	for o := range t.Operations() {
		switch {
		case o.State.IsOver():
			continue
		case o.Kind == c.Kind && o.Node == c.Node && o.Target == c.Target && o.Region == c.Region && o.Range == c.Range:
			return Result{Operation: o.ID, Node: c.Node}
		case c.Node != rhumb.NoNode && o.Node == c.Node && (c.marksNode() || o.Kind == rhumb.OperationDecommission || o.Kind == rhumb.OperationReplace):
			// The repair of a node ends when somebody decides about it; other operations have to be cancelled first.
			if o.Kind != rhumb.OperationRepair {
				return refuse(op, rhumb.Conflict, "operation %s (%s) of %s is %s; wait for it or cancel it", o.ID, o.Kind, o.Node, o.State)
			}
		}
		active++
	}
	if active >= rhumb.OperationsActiveMax {
		return refuse(op, rhumb.Overloaded, "%d operations are not over, which is the limit; wait for some, or cancel them", active)
	}
	if refusal := c.checkTargets(t); refusal.Failure != nil {
		return refusal
	}
	if c.marksNode() {
		n, _ := t.nodes.get(uint64(c.Node))
		t.setLeavingNode(n, true)
	}
	// The marks and the record change in one step: every operation has its marks, and nobody finds a mark without an
	// operation that explains it.
	if c.Kind == rhumb.OperationRemoveRegion {
		t.beginRemoval(c)
	}
	t.lastOperation++
	o := &rhumb.Operation{
		ID: t.lastOperation, Kind: c.Kind, State: rhumb.OperationRunning, Version: 1,
		Node: c.Node, Target: c.Target, Region: c.Region, Range: c.Range, By: c.By, Started: c.At.UTC(), Since: c.At.UTC(),
	}
	for _, name := range steps {
		o.Steps = append(o.Steps, rhumb.OperationStep{Name: name})
	}
	t.putOperation(o)
	return Result{Operation: o.ID, Node: c.Node}
}

// marksNode reports whether the operation makes its node leave.
func (c StartOperation) marksNode() bool {
	return c.Kind == rhumb.OperationDecommission || c.Kind == rhumb.OperationReplace
}

// checkTargets refuses an operation about a node or a range that does not fit.
func (c StartOperation) checkTargets(t *tx) Result {
	const op rhumb.Op = "catalog.StartOperation"
	if c.Kind == rhumb.OperationRemoveRegion {
		return c.checkRegion(t)
	}
	if c.Kind == rhumb.OperationMoveVote {
		return c.checkVote(t)
	}
	if c.Kind == rhumb.OperationMerge {
		return c.checkMerge(t)
	}
	if c.Kind == rhumb.OperationRebalance {
		if _, ok := t.Region(c.Region); !ok && c.Region != rhumb.LocalRegion {
			return refuse(op, rhumb.NotFound, "region %s does not exist", c.Region)
		}
		return Result{}
	}
	n, ok := t.Node(c.Node)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	case n.Forgotten:
		return refuse(op, rhumb.Conflict, "%s has been removed from the cluster", c.Node)
	case c.marksNode() && t.isRegionLeaving(n.Region):
		return refuse(op, rhumb.Conflict, "the region of %s is being removed, and %s with it", c.Node, c.Node)
	}
	home := n.Region
	if c.Kind == rhumb.OperationMove {
		r, ok := t.Range(c.Range)
		home = t.HostRegion(c.Range.Region)
		switch {
		case !ok:
			return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
		case !r.IsReplica(c.Node):
			return refuseRange(op, rhumb.InvalidArgument, r, "%s has no copy of range %s; copies are on %s", c.Node, c.Range, rhumb.NodeList(r.Replicas))
		case r.IsReplica(c.Target):
			return refuseRange(op, rhumb.InvalidArgument, r, "%s has a copy of range %s already", c.Target, c.Range)
		}
	}
	if c.Kind != rhumb.OperationMove && c.Kind != rhumb.OperationReplace {
		return Result{}
	}
	target, ok := t.Node(c.Target)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Target)
	// A copy that is not in the region of its range, because a removal of the region was cancelled, may return there.
	case c.Target == c.Node:
		return refuse(op, rhumb.InvalidArgument, "%s cannot take its own place; name another node of its region", c.Node)
	case target.Region != n.Region && target.Region != home:
		at, _ := t.Region(n.Region)
		return refuse(op, rhumb.InvalidArgument, "%s cannot take the place of %s, because it is in another region; name a node of region %s", c.Target, c.Node, at.Name)
	case !t.TakesCopies(c.Target):
		return refuse(op, rhumb.Conflict, "%s is %s and takes no copies", c.Target, target.State)
	}
	return Result{}
}

// checkMerge refuses to merge a range that does not exist, or that could not be merged with the range before it wherever their copies are.
func (c StartOperation) checkMerge(t *tx) Result {
	const op rhumb.Op = "catalog.StartOperation"
	right, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	if left, why := t.WhyNotJoin(right); why != "" {
		return refuseRange(op, rhumb.Conflict, right, "range %s cannot be merged into the one before it: %s", right.ID, why)
	} else if left.IsMerging() || right.IsMerging() {
		return refuseRange(op, rhumb.Conflict, right, "range %s or the one before it is being merged already", right.ID)
	}
	return Result{}
}

// isMovedAway reports whether an operation that is not over moves the copies of a node away.
func (s *State) isMovedAway(id rhumb.NodeID) bool {
	for o := range s.Operations() {
		if o.Node == id && !o.State.IsOver() && (o.Kind == rhumb.OperationDecommission || o.Kind == rhumb.OperationReplace) {
			return true
		}
	}
	n, ok := s.Node(id)
	return ok && s.isRegionLeaving(n.Region)
}

// setLeavingNode marks a node as leaving, or takes the mark back. A node that serves is decommissioning meanwhile.
func (t *tx) setLeavingNode(n *node, leaving bool) {
	next := *n
	next.Leaving = leaving
	switch {
	case leaving && next.State == rhumb.NodeLive:
		next.State = rhumb.NodeDecommissioning
	case !leaving && next.State == rhumb.NodeDecommissioning:
		next.State = rhumb.NodeLive
	}
	t.putNode(&next)
}

// applyTo stores the progress.
func (c UpdateOperation) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.UpdateOperation"
	o, ok := t.Operation(c.ID)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "operation %s does not exist", c.ID)
	case o.Version != c.Version || o.State.IsOver():
		return refuse(op, rhumb.Conflict, "operation %s has changed: expected version %d, found version %d, %s", c.ID, c.Version, o.Version, o.State)
	case len(c.Steps) != len(o.Steps) || len(c.Waits) > rhumb.OperationTextSizeMax || len(c.Error) > rhumb.OperationTextSizeMax:
		return refuse(op, rhumb.InvalidArgument, "operation %s has %d steps, and texts of at most %d bytes", c.ID, len(o.Steps), rhumb.OperationTextSizeMax)
	}
	next := o.Clone()
	next.Steps, next.Progress, next.Waits, next.Error = slices.Clone(c.Steps), c.Progress, c.Waits, c.Error
	t.enterState(next, c.State, c.At)
	if c.State == rhumb.OperationDone && o.Kind == rhumb.OperationMoveVote {
		t.pinVotes(o)
	}
	return Result{Operation: o.ID}
}

// enterState stores an operation in a state and counts the time for which it ran.
func (t *tx) enterState(o *rhumb.Operation, state rhumb.OperationState, at time.Time) {
	at = at.UTC()
	switch {
	case o.State == rhumb.OperationRunning && state != rhumb.OperationRunning:
		o.Ran = o.Running(at)
	case o.State != rhumb.OperationRunning && state == rhumb.OperationRunning:
		o.Since = at
	}
	o.State = state
	o.Version++
	if state.IsOver() {
		o.Ended, o.Waits = at, ""
	}
	t.putOperation(o)
	if state.IsOver() {
		t.trimOperations()
	}
}

// trimOperations removes the oldest operations that are over, beyond rhumb.OperationsKept.
func (t *tx) trimOperations() {
	over := 0
	for o := range t.Operations() {
		if o.State.IsOver() {
			over++
		}
	}
	for o := range t.freezeState().Operations() {
		if over <= rhumb.OperationsKept {
			return
		}
		if o.State.IsOver() {
			over--
			t.operations.delete(t.owner, uint64(o.ID))
			t.changes.Operations = append(t.changes.Operations, o.ID)
		}
	}
}

// applyTo pauses, resumes or cancels.
func (c ControlOperation) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.ControlOperation"
	states := map[OperationAction]rhumb.OperationState{
		PauseOperation: rhumb.OperationPaused, ResumeOperation: rhumb.OperationRunning, CancelOperation: rhumb.OperationCancelled,
	}
	o, ok := t.Operation(c.ID)
	state, known := states[c.Action]
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "operation %s does not exist; `rhumb operation ls` lists them", c.ID)
	case !known:
		return refuse(op, rhumb.InvalidArgument, "action %d is unknown", c.Action)
	case o.State == state:
		return Result{Operation: o.ID}
	case o.State.IsOver():
		return refuse(op, rhumb.Conflict, "operation %s is %s already", c.ID, o.State)
	// The last command of a removal ends its operation. Earlier builds let a moment pass between the two.
	case state == rhumb.OperationCancelled && o.Kind == rhumb.OperationRemoveRegion && t.isRegionRemoved(o.Region):
		return refuse(op, rhumb.Conflict, "operation %s has removed its region already, which cannot be taken back", c.ID)
	}
	next := o.Clone()
	t.enterState(next, state, c.At)
	if state == rhumb.OperationCancelled && (o.Kind == rhumb.OperationDecommission || o.Kind == rhumb.OperationReplace) {
		if n, ok := t.nodes.get(uint64(o.Node)); ok && !n.Forgotten {
			t.setLeavingNode(n, false)
		}
	}
	if state == rhumb.OperationCancelled && o.Kind == rhumb.OperationRemoveRegion {
		t.cancelRemoval(o.Region)
	}
	return Result{Operation: o.ID}
}

// applyTo marks the replicas.
func (c SetLeaving) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetLeaving"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	set, distinct := sortedSet(c.Leaving, func(n rhumb.NodeID) rhumb.NodeID { return n })
	stay := dropNodes(r.InSync, func(n rhumb.NodeID) bool { return slices.Contains(set, n) })
	switch {
	case r.Version != c.Version:
		return refuseChanged(op, r, c.Version)
	case !distinct || !isSubset(set, r.Replicas):
		return refuseRange(op, rhumb.InvalidArgument, r, "leaving replicas (%s) are not a subset of the replicas (%s)", rhumb.NodeList(c.Leaving), rhumb.NodeList(r.Replicas))
	// Invariant I8: they could never leave.
	case len(set) > 0 && len(stay) < t.minInSync(r):
		return refuseRange(op, rhumb.Conflict, r, "without %s the in-sync set would be %s, below the minimum of %d", rhumb.NodeList(c.Leaving), rhumb.NodeList(stay), t.minInSync(r))
	case slices.Equal(set, r.Leaving):
		return Result{Range: r}
	// A copy must not be dropped before its node has divided it.
	case len(set) > 0 && t.isReshaping(r):
		return refuseRange(op, rhumb.Conflict, r, "the range is being split or merged; retry when that is done")
	}
	next := r.Clone()
	next.Leaving = dropNodes(set, func(rhumb.NodeID) bool { return false })
	next.Version++
	t.putRange(next)
	return Result{Range: next}
}

// applyTo stores the setting.
func (c SetSetting) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetSetting"
	_, there := t.settings[c.Name]
	switch {
	case c.Name == "" || len(c.Name) > settingSizeMax || len(c.Value) > settingSizeMax:
		return refuse(op, rhumb.InvalidArgument, "a setting has a name, and name and value have at most %d bytes", settingSizeMax)
	case t.settings[c.Name] == c.Value:
		return Result{}
	case !there && len(t.settings) >= settingsMax:
		return refuse(op, rhumb.TooLarge, "%d settings are set, which is the limit", settingsMax)
	}
	// The old State shares the map.
	next := maps.Clone(t.settings)
	if next == nil {
		next = make(map[string]string)
	}
	next[c.Name] = c.Value
	if c.Value == "" {
		delete(next, c.Name)
	}
	if len(next) == 0 {
		next = nil
	}
	t.settings, t.changes.Settings = next, true
	return Result{}
}

// checkOperations checks the bounds of operations and settings.
func (s *State) checkOperations() error {
	over := 0
	for o := range s.Operations() {
		if o.State.IsOver() {
			over++
		}
		if o.ID == 0 || o.ID > s.lastOperation || o.Version == 0 || len(o.Steps) > rhumb.OperationStepsMax || o.State == rhumb.OperationWaiting {
			return brokenInvariant("operation %s has an id that was never allocated, no version, no state or too many steps", o.ID)
		}
	}
	if over > rhumb.OperationsKept || s.operations.size-over > rhumb.OperationsActiveMax || len(s.settings) > settingsMax {
		return brokenInvariant("%d operations, %d of them over, or %d settings exceed their limits", s.operations.size, over, len(s.settings))
	}
	return nil
}
