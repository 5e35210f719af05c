package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

// applyTo replaces the in-sync set and the recorded lives. In order: epoch and version must be
// those of the record; the set must be valid; members that join must be fit
// (checkMembers).
func (c AlterISR) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AlterISR"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	// The epoch is compared as well as the version: the proposer must still be the primary that
	// decided.
	if r.Epoch != c.Epoch || r.Version != c.Version {
		return refuseRange(op, rhumb.Conflict, r, "the range has changed: expected epoch %d version %d, found epoch %d version %d; read it again",
			c.Epoch, c.Version, r.Epoch, r.Version)
	}
	set, ok := sortedSet(c.Members, func(m Member) rhumb.NodeID { return m.Node })
	switch {
	case !ok:
		return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set lists a member twice")
	// Invariant I8: no in-sync set is smaller than the minimum, and the primary is in it.
	case len(set) < t.minInSync(r):
		return refuseRange(op, rhumb.InvalidArgument, r, "an in-sync set of %d is below the minimum of %d", len(set), t.minInSync(r))
	case !slices.Contains(set, r.Primary):
		return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set lacks the primary, %s", r.Primary)
	// Whatever is acknowledged must survive the loss of a region. A set of the same size loses a member too, if another one joins.
	case (len(set) < len(r.InSync) || t.Has(rhumb.FeatureKeepRegions) && !isSubset(r.InSync, set)) && !t.mayShrink(r, set):
		return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set (%s) would be in one region, but the range survives the loss of a region", rhumb.NodeList(set))
	}
	// The unchanged set is accepted whatever the state of its members. Proposing it settles an
	// earlier proposal of unknown outcome (rule R): whichever is applied first moves the version,
	// and the other is refused.
	if !slices.Equal(set, r.InSync) {
		if refusal := t.checkMembers(op, r, c.Members); refusal.Failure != nil {
			return refusal
		}
	}
	next := r.Clone()
	// The set is sorted, as the record requires; the proposer may list members in any order.
	next.InSync = set
	// The lives are replaced, not merged: a primary says for every member in each command whether
	// it vouches for it.
	next.Lives = c.vouchedLives()
	next.Version++
	t.putRange(next)
	t.shrinkReserved(next)
	// The primary of the other range of a merge may have joined, and can be that of both now.
	if o, ok := t.MergePartner(next); ok {
		t.alignMerge(o)
	}
	return Result{Range: next}
}

// vouchedLives returns the lives that the primary vouches for
// (docs/replication.md#rule-one-answer). A life that has ended meanwhile does no harm, because
// nobody answers in it any more.
func (c AlterISR) vouchedLives() (lives []rhumb.MemberLife) {
	for _, m := range c.Members {
		if m.Vouched && m.Boot > 0 {
			lives = append(lives, rhumb.MemberLife{Node: m.Node, Life: m.Boot})
		}
	}
	slices.SortFunc(lives, func(a, b rhumb.MemberLife) int { return cmp.Compare(a.Node, b.Node) })
	return lives
}

// checkMembers refuses a new member of an in-sync set that has no replica, must not serve, or is
// not in the life that the proposer saw. Members that stay are not compared
// (docs/replication.md#rule-life-join).
func (t *tx) checkMembers(op rhumb.Op, r *rhumb.Range, members []Member) Result {
	for _, m := range members {
		n, ok := t.Node(m.Node)
		switch {
		case !ok || !r.IsReplica(m.Node):
			return refuseRange(op, rhumb.InvalidArgument, r, "%s has no replica of the range", m.Node)
		case r.IsInSync(m.Node):
		// The member stays. A dead member must not block the learner that replaces it: with the set
		// at its minimum, the primary cannot drop the dead one before the learner is in.
		case n.Boot != m.Boot:
			return refuseRange(op, rhumb.Conflict, r, "%s was seen in life %d, but is in life %d now", m.Node, m.Boot, n.Boot)
		case !n.State.Serves() && !t.isNeededThough(r, n.State):
			return refuseRange(op, rhumb.Conflict, r, "%s is %s and cannot join the in-sync set", m.Node, n.State)
		case r.IsQuarantined(m.Node):
			return refuseRange(op, rhumb.Conflict, r, "the replica on %s is quarantined and cannot join the in-sync set", m.Node)
		case r.IsLeaving(m.Node):
			return refuseRange(op, rhumb.Conflict, r, "the replica on %s is leaving and cannot join the in-sync set", m.Node)
		}
	}
	return Result{}
}

// isNeededThough reports whether a node that drains may join the in-sync set all the same: too few live members are left to commit. The
// node left the set when it began to drain; if another member dies then, its copy is what keeps the range writable.
func (t *tx) isNeededThough(r *rhumb.Range, state rhumb.NodeState) bool {
	if state != rhumb.NodeDraining || !t.Has(rhumb.FeatureDrainingMember) {
		return false
	}
	live := 0
	for _, m := range r.InSync {
		if n, ok := t.Node(m); ok && n.State.Serves() {
			live++
		}
	}
	return live < t.minInSync(r)
}

// applyTo makes the node the primary. In order: the version must be that of the record; a given
// in-sync set must be a subset of the present one; the node must be in it, live and not
// quarantined.
func (c Elect) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Elect"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	// The epoch need not be compared, since every change of the epoch moves the version.
	if r.Version != c.Version {
		return refuseChanged(op, r, c.Version)
	}
	// An election may shrink the set in the same command, so that no other command can come in
	// between.
	inSync := r.InSync
	if len(c.InSync) > 0 {
		inSync, ok = sortedSet(c.InSync, func(n rhumb.NodeID) rhumb.NodeID { return n })
		// An election may only shrink the set. Growing it needs the primary, which alone knows what
		// each member holds (rule R).
		if !ok || !isSubset(inSync, r.InSync) {
			return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set (%s) is not a subset of the present one (%s)", rhumb.NodeList(c.InSync), rhumb.NodeList(r.InSync))
		}
	}
	switch {
	// The metadata leader found no heir for a primary that asked to be relieved.
	case c.Node == rhumb.NoNode:
		return refuseRange(op, rhumb.Conflict, r, "no other in-sync member can take over from %s: each is down, unfit or cut off from the others", r.Primary)
	// Rule E: only an in-sync member holds every acknowledged entry.
	case !slices.Contains(inSync, c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s is not in sync and cannot be primary", c.Node)
	case len(inSync) < t.minInSync(r):
		return refuseRange(op, rhumb.InvalidArgument, r, "an in-sync set of %d is below the minimum of %d", len(inSync), t.minInSync(r))
	case len(inSync) < len(r.InSync) && !t.mayShrink(r, inSync):
		return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set (%s) would be in one region, but the range survives the loss of a region", rhumb.NodeList(inSync))
	case !t.IsLive(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Node)
	case r.IsQuarantined(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "the replica on %s is quarantined and cannot be primary", c.Node)
	}
	return Result{Range: t.electPrimary(r, c.Node, inSync)}
}

// electPrimary stores r with a new epoch, primary and in-sync set.
func (t *tx) electPrimary(r *rhumb.Range, n rhumb.NodeID, inSync []rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	// Each range has one counter of epochs, and no epoch is reused, even if the elected node never
	// begins it.
	next.Allocated++
	next.Epoch = next.Allocated
	// Acknowledgements of removed copies name an earlier epoch from now on.
	next.Removed = nil
	next.Primary = n
	// A handover belongs to the epoch in which it was prepared. Its reserved epoch is below the new one.
	next.Prepared = nil
	next.InSync = slices.Clone(inSync)
	next.Version++
	t.putRange(next)
	t.alignReserved(next)
	t.alignMerge(next)
	return next
}

// applyTo reserves the next epoch for the target. In order: the version must be that of the record; the target must
// be able to take over; no handover to another node may be prepared.
func (c PrepareHandover) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.PrepareHandover"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case r.Prepared != nil && r.Prepared.Target == c.Target, r.Primary == c.Target:
		return Result{Range: r}
	case r.Version != c.Version:
		return refuseChanged(op, r, c.Version)
	// Only an in-sync member holds every acknowledged entry, as for an election.
	case !r.IsInSync(c.Target):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s is not in sync and cannot be primary", c.Target)
	case !t.IsLive(c.Target):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Target)
	case r.IsQuarantined(c.Target):
		return refuseRange(op, rhumb.Conflict, r, "the replica on %s is quarantined and cannot be primary", c.Target)
	case r.IsLeaving(c.Target):
		return refuseRange(op, rhumb.Conflict, r, "the replica on %s is to be removed and cannot become primary", c.Target)
	// Both parts must know the epochs of the log that they share.
	case t.isReshaping(r):
		return refuseRange(op, rhumb.Conflict, r, "the range is being split or merged; retry when that is done")
	// The primary may have carried it out already.
	case r.Prepared != nil:
		return refuseRange(op, rhumb.Conflict, r, "a handover to %s is prepared; cancel it first", r.Prepared.Target)
	}
	return Result{Range: t.prepareHandover(r, c.Target)}
}

// prepareHandover stores r with a handover to a node that can take over.
func (t *tx) prepareHandover(r *rhumb.Range, to rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	// Elections and handovers use one counter: an epoch that both could begin would have two primaries.
	next.Allocated++
	next.Prepared = &rhumb.Handover{Epoch: next.Allocated, Target: to}
	next.Version++
	t.putRange(next)
	return next
}

// canTakeOver reports whether a node may be the target of a handover, as far as the record shows.
func canTakeOver(r *rhumb.Range, n rhumb.NodeID) bool {
	return n != r.Primary && r.IsInSync(n) && !r.IsQuarantined(n) && !r.IsLeaving(n)
}

// applyTo records that the target is primary of the reserved epoch. A node that hands over because it is to stop also
// leaves the in-sync set, if the others may continue without it (mayShrink).
func (c AdoptHandover) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AdoptHandover"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case r.Epoch == c.Epoch:
		return Result{Range: r}
	// An election ended the handover, or it was cancelled.
	case r.Prepared == nil || r.Prepared.Epoch != c.Epoch:
		return refuseRange(op, rhumb.Conflict, r, "no handover in epoch %d is prepared; the range is in epoch %d", c.Epoch, r.Epoch)
	}
	// Its disk may have forgotten that it began the epoch.
	if n, _ := t.Node(r.Prepared.Target); n.Boot != c.Boot {
		return refuseRange(op, rhumb.Conflict, r, "%s began epoch %d in life %d, but is in life %d now", n.ID, c.Epoch, c.Boot, n.Boot)
	}
	next := r.Clone()
	next.Epoch, next.Primary, next.Prepared, next.Removed = r.Prepared.Epoch, r.Prepared.Target, nil, nil
	// The same rule as when a node is fenced: the others must be enough, and in two regions if the range survives the loss of one. Else
	// the node stays in the set until it is fenced, or another copy has joined.
	if less := dropNodes(r.InSync, func(n rhumb.NodeID) bool { return n == r.Primary }); !t.IsLive(r.Primary) && t.mayShrink(r, less) {
		next.InSync = less
	}
	next.Version++
	t.putRange(next)
	return Result{Range: next}
}

// applyTo removes a prepared handover. A range without one is as the caller wants it.
func (c CancelHandover) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.CancelHandover"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case r.Prepared == nil:
		return Result{Range: r}
	case r.Version != c.Version:
		return refuseChanged(op, r, c.Version)
	}
	return Result{Range: t.cancelHandover(r)}
}

// cancelHandover stores r without its prepared handover.
func (t *tx) cancelHandover(r *rhumb.Range) *rhumb.Range {
	next := r.Clone()
	next.Prepared = nil
	next.Version++
	t.putRange(next)
	return next
}

// applyTo replaces the replicas and the preferred primary. In order: the version must be that of the record; the set must keep the members that the range
// needs (checkSetReplicas); new replicas must be on nodes that can receive data (checkNewReplicas); the copies must stay spread over
// zones and regions as the class demands (checkRegions).
func (c SetReplicas) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetReplicas"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	if r.Version != c.Version {
		return refuseChanged(op, r, c.Version)
	}
	set, distinct := sortedSet(c.Replicas, func(n rhumb.NodeID) rhumb.NodeID { return n })
	if !distinct {
		return refuseRange(op, rhumb.InvalidArgument, r, "the replicas list a node twice")
	}
	preferred := c.Preferred
	if preferred == rhumb.NoNode {
		preferred = r.Preferred
	}
	for _, check := range []func() Result{
		func() Result { return t.checkSetReplicas(op, r, set, preferred) },
		func() Result { return t.checkNewReplicas(op, r, set) },
		func() Result { return t.checkRegions(op, r, set) },
	} {
		if refusal := check(); refusal.Failure != nil {
			return refusal
		}
	}
	// Nothing changes, so the version stays and proposals of the primary that name it remain valid.
	if preferred == r.Preferred && slices.Equal(set, r.Replicas) {
		return Result{Range: r}
	}
	return Result{Range: t.setReplicas(r, set, preferred)}
}

// checkSetReplicas refuses replicas without a member of the in-sync set, without the preferred primary, or in the middle of a split or a merge.
func (t *tx) checkSetReplicas(op rhumb.Op, r *rhumb.Range, set []rhumb.NodeID, preferred rhumb.NodeID) Result {
	switch {
	case len(set) > rhumb.ReplicasMax:
		return refuseRange(op, rhumb.TooLarge, r, "%d replicas were requested; the limit is %d", len(set), rhumb.ReplicasMax)
	// Removing an in-sync member would remove acknowledged entries from the set that an election
	// asks.
	case !isSubset(r.InSync, set):
		return refuseRange(op, rhumb.InvalidArgument, r, "in-sync members %s must remain replicas", rhumb.NodeList(r.InSync))
	case !slices.Contains(set, preferred):
		return refuseRange(op, rhumb.InvalidArgument, r, "preferred primary %s is not among the replicas", preferred)
	// A node that drops its copy now would get an empty one of the new range, although the record counts it as in sync.
	case !slices.Equal(set, r.Replicas) && r.IsMerging():
		return refuseRange(op, rhumb.Conflict, r, "the range is being merged; retry when that is done")
	case !slices.Equal(set, r.Replicas) && t.isSplitting(r) && (r.Birth != 0 || !isSubset(r.Replicas, set)):
		return refuseRange(op, rhumb.Conflict, r, "the range is being split; retry when that is done")
	}
	return Result{}
}

// checkNewReplicas refuses a new replica on a node that cannot receive data. Present replicas may stay on any node.
func (t *tx) checkNewReplicas(op rhumb.Op, r *rhumb.Range, set []rhumb.NodeID) Result {
	for _, id := range set {
		n, known := t.Node(id)
		switch {
		case r.IsReplica(id):
		case !known || n.State == rhumb.NodeFenced:
			return refuseRange(op, rhumb.Conflict, r, "%s is unknown or fenced and cannot hold a new replica", id)
		case n.Witness:
			return refuseRange(op, rhumb.InvalidArgument, r, "%s is a witness and holds no data", id)
		case n.Leaving:
			return refuseRange(op, rhumb.Conflict, r, "%s is %s and cannot hold a new replica", id, n.State)
		}
	}
	return Result{}
}

// checkRegions refuses replicas that break the residency or the survival goal of the class.
func (t *tx) checkRegions(op rhumb.Op, r *rhumb.Range, set []rhumb.NodeID) Result {
	// A replica that is there already may stay, so that a range which has one too many can be repaired. One more
	// than the goal allows is what a move needs, between the new copy and the end of the old one.
	if class, _ := t.Class(r.Class); !isSubset(set, r.Replicas) {
		if err := t.checkSpread(class.Settings, set, 1); err != nil {
			failure := refuseErr(op, err)
			failure.Range = r
			return failure
		}
	}
	if region := t.BareRegion(r, set); region != "" {
		return refuseRange(op, rhumb.Conflict, r, "replicas on %s leave no copy in region %s, and the range needs copies in as many regions to survive the loss of one; add a copy in another region first", rhumb.NodeList(set), region)
	}
	return Result{}
}

// setReplicas stores r with other replicas and another preferred primary, which were checked.
func (t *tx) setReplicas(r *rhumb.Range, set []rhumb.NodeID, preferred rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	next.Replicas, next.Preferred, next.Former = set, preferred, t.formerNode(r, set, preferred)
	// A quarantine belongs to a copy. If the node gets a replica again, that is a new copy.
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return !slices.Contains(set, n) })
	next.Leaving = dropNodes(next.Leaving, func(n rhumb.NodeID) bool { return !slices.Contains(set, n) })
	defer func() { t.setReservedReplicas(next) }()
	// Earlier builds do not record the removal, and all replicas of the catalog must hold the same.
	if t.Has(rhumb.FeatureOperations) {
		gone := dropNodes(r.Replicas, func(n rhumb.NodeID) bool { return slices.Contains(set, n) })
		next.Removed = slices.Sorted(slices.Values(append(next.Removed, gone...)))
		// The node dropped its copy of this epoch, and may have acknowledged entries before. Those
		// acknowledgements must not count for the new, empty copy, so they are put into an earlier epoch
		// (docs/replication.md#rule-removal-again).
		if slices.ContainsFunc(next.Removed, func(n rhumb.NodeID) bool { return slices.Contains(set, n) }) {
			return t.electPrimary(next, next.Primary, next.InSync)
		}
	}
	next.Version++
	t.putRange(next)
	return next
}

// formerNode returns the node that a range belongs to after a change of its replicas or of its preferred primary.
func (s *State) formerNode(r *rhumb.Range, set []rhumb.NodeID, preferred rhumb.NodeID) rhumb.NodeID {
	n, known := s.Node(r.Preferred)
	// One node for each range, so the bound is that of the ranges. Nothing here depends on time: a node is not given up because it
	// was away for long, but because an operator removes it.
	switch {
	// Earlier builds do not record it, and all replicas of the catalog must hold the same.
	case !s.Has(rhumb.FeatureFormer), preferred == r.Former:
		return rhumb.NoNode
	case preferred == r.Preferred:
		return r.Former
	// Somebody has decided where the range belongs: it was there, and could have stayed.
	case slices.Contains(set, r.Preferred), !known, n.State != rhumb.NodeFenced, n.Leaving, n.Forgotten, n.ReplacedBy != rhumb.NoNode:
		return rhumb.NoNode
	}
	// If the one that replaced a dead node dies too, the range still belongs to the first.
	if r.Former != rhumb.NoNode {
		return r.Former
	}
	return r.Preferred
}

// forgetFormer takes a node that is removed for good out of the records of its former ranges.
func (t *tx) forgetFormer(id rhumb.NodeID) {
	// A walk over all ranges, as in a fencing, and rarer. Before FeatureFormer no record has the mark, so nothing changes in earlier
	// versions.
	for r := range t.freezeState().Ranges() {
		if r.Former == id {
			next := r.Clone()
			next.Former = rhumb.NoNode
			next.Version++
			t.putRange(next)
		}
	}
}

// dropNodes returns the nodes without those that drop names, and nil for none.
func dropNodes(nodes []rhumb.NodeID, drop func(rhumb.NodeID) bool) []rhumb.NodeID {
	left := slices.DeleteFunc(slices.Clone(nodes), drop)
	if len(left) == 0 {
		return nil
	}
	return left
}

// applyTo records the quarantine, drops the replica from an in-sync set that stays at its minimum
// size, and elects another member if the replica is the primary.
func (c QuarantineReplica) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.QuarantineReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s has no replica of the range", c.Node)
	// The replica repeats its notice until it sees the quarantine in the record.
	case r.IsQuarantined(c.Node):
		return Result{Range: r}
	// Builds that did not send the epoch leave it 0.
	case c.Epoch != 0 && c.Epoch < r.Epoch:
		return refuseRange(op, rhumb.Conflict, r, "the notice is from epoch %d, but the range is in epoch %d", c.Epoch, r.Epoch)
	}
	// The copy of the new range would come from the damaged one, or be empty after that is discarded.
	if child, ok := t.ReservedIn(r); ok && child.IsReplica(c.Node) && !child.IsQuarantined(c.Node) {
		t.quarantine(child, c.Node)
	}
	return Result{Range: t.quarantine(r, c.Node)}
}

// quarantine stores r with a quarantined replica, and with another primary if the replica is the primary.
func (t *tx) quarantine(r *rhumb.Range, node rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	next.Quarantined = append(next.Quarantined, node)
	slices.Sort(next.Quarantined)
	// The set may go no lower than its minimum, so a quarantined member can stay in it. Elections
	// skip it all the same.
	if less := slices.DeleteFunc(slices.Clone(next.InSync), func(n rhumb.NodeID) bool { return n == node }); t.mayShrink(r, less) {
		next.InSync = less
	}
	next.Version++
	if r.Primary != node {
		t.putRange(next)
		return next
	}
	heir := t.NearestHeir(next, node, t.countPrimaries())
	// Without an heir the quarantined replica stays the primary on record until another member can
	// be elected. The in-sync set must contain the primary, so the set stays whole as well.
	if heir == rhumb.NoNode {
		next.InSync = r.InSync
		t.putRange(next)
		return next
	}
	return t.electPrimary(next, heir, next.InSync)
}

// applyTo ends the quarantine and begins a new epoch under the same primary.
func (c ReadmitReplica) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.ReadmitReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	case !r.IsQuarantined(c.Node):
		return Result{Range: r}
	case c.Epoch != 0 && c.Epoch < r.Epoch:
		return refuseRange(op, rhumb.Conflict, r, "the request is from epoch %d, but the range is in epoch %d", c.Epoch, r.Epoch)
	case r.IsInSync(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is still in the in-sync set (%s)", c.Node, rhumb.NodeList(r.InSync))
	}
	// The new epoch invalidates acknowledgements of entries that the replica held before it
	// discarded its copy. They belong to the same life, so nothing else would distinguish them.
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	return Result{Range: t.electPrimary(next, next.Primary, next.InSync)}
}

// applyTo makes the node the primary with the copies that are left. In order: the version must be
// that of the record; the node must be a live replica; the range must be unable to recover without
// data loss (WhyNotRecover); copies of nodes that are gone are quarantined; enough members must be
// left, counting nodes that are gone.
func (c RecoverRange) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RecoverRange"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "range %s does not exist", c.Range)
	}
	switch {
	case r.Version != c.Version:
		return refuseRange(op, rhumb.Conflict, r, "the range has changed: expected version %d, found version %d; inspect it again", c.Version, r.Version)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s has no replica of the range", c.Node)
	case !t.IsLive(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Node)
	}
	// The operator accepts data loss, so the command is refused as long as the range can recover
	// without any.
	if reason := t.WhyNotRecover(r, c.Node); reason != "" {
		return refuseRange(op, rhumb.Conflict, r, "%s", reason)
	}
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	// The node itself is in left: it is live, and its quarantine has just ended.
	var left, gone []rhumb.NodeID
	for _, n := range next.Replicas {
		switch {
		case !t.IsLive(n):
			gone = append(gone, n)
		case !next.IsQuarantined(n):
			left = append(left, n)
		}
	}
	// A copy that was given up may hold entries that the range continues without. If its node
	// returns, the copy must neither take part nor refuse the new primary because of them.
	next.Quarantined = slices.Compact(slices.Sorted(slices.Values(append(next.Quarantined, gone...))))
	// The recorded lives vouch for everything acknowledged to clients. After a recovery that would
	// be wrong.
	next.Lives = nil
	next.Recovery = &rhumb.Recovery{Epoch: r.Allocated + 1, Node: c.Node, Gone: gone, End: c.End, EndTime: c.EndTime, Known: c.Known}
	if missing := t.minInSync(r) - len(left); missing > 0 {
		// Only nodes that are gone may fill the set, not damaged copies on live nodes.
		if missing > len(gone) {
			return refuseRange(op, rhumb.Conflict, r, "recovery would leave only %s, below the minimum of %d members; make other replicas discard their damaged copies first", rhumb.NodeList(left), t.minInSync(r))
		}
		// The set keeps its minimum size with nodes that are gone, so nothing is committed until
		// enough replicas have joined. The operator vouches for the one copy
		// (docs/replication.md#rule-one-answer), which alone can then be elected.
		left = slices.Sorted(slices.Values(append(left, gone[:missing]...)))
		n, _ := t.Node(c.Node)
		next.Lives = []rhumb.MemberLife{{Node: c.Node, Life: n.Boot}}
	}
	return Result{Range: t.electPrimary(next, c.Node, left)}
}

// WhyNotRecover returns why the range needs no forced recovery from the copy of node n, or "" if it
// does need one. It refuses in three cases:
//
//   - A live, intact in-sync member is in its recorded life: one such answer is enough for an
//     election.
//   - Enough live, intact in-sync members for an election exist.
//   - Some exist, but n is not among them: a better copy than n's is there.
func (s *State) WhyNotRecover(r *rhumb.Range, n rhumb.NodeID) string {
	// "Intact" means that the replica is not quarantined. A damaged copy reports itself.
	var intact []rhumb.NodeID
	for _, m := range r.InSync {
		if d, ok := s.Node(m); ok && s.IsLive(m) && !r.IsQuarantined(m) {
			intact = append(intact, m)
			// A recorded life that is still the present one: the member has not restarted since the
			// primary vouched for it.
			if r.LifeOf(m) == d.Boot {
				return fmt.Sprintf("%s has an intact in-sync copy and has had it since its last start; that copy is enough for an election, so no data has to be given up", m)
			}
		}
	}
	switch {
	case len(intact) >= s.minInSync(r):
		return fmt.Sprintf("intact in-sync copies are on %s; they are enough for an election, so no data has to be given up", rhumb.NodeList(intact))
	case len(intact) > 0 && !slices.Contains(intact, n):
		return fmt.Sprintf("%s has an intact in-sync copy; recover from that node instead", intact[0])
	}
	return ""
}

// sortedSet returns the ids of the items in ascending order, and false if an id occurs twice.
func sortedSet[T any](items []T, id func(T) rhumb.NodeID) ([]rhumb.NodeID, bool) {
	out := make([]rhumb.NodeID, len(items))
	for i, item := range items {
		out[i] = id(item)
	}
	slices.Sort(out)
	return out, len(slices.Compact(slices.Clone(out))) == len(out)
}

// isSubset reports whether b contains all of a.
func isSubset(a, b []rhumb.NodeID) bool {
	return !slices.ContainsFunc(a, func(n rhumb.NodeID) bool { return !slices.Contains(b, n) })
}
