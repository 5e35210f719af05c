package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
)

func (c AlterISR) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.AlterISR"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	}
	if r.Epoch != c.Epoch || r.Version != c.Version {
		return refuseRange(op, rhumb.Conflict, r, "decided on epoch %d version %d, the record is at epoch %d version %d; read it again",
			c.Epoch, c.Version, r.Epoch, r.Version)
	}
	set, ok := sortedSet(c.Members, func(m Member) rhumb.NodeID { return m.Node })
	switch {
	case !ok:
		return refuseRange(op, rhumb.InvalidArgument, r, "a member stands in the set twice")
	case len(set) < t.minInSync(r):
		return refuseRange(op, rhumb.InvalidArgument, r, "%d members are fewer than the class's minimum of %d", len(set), t.minInSync(r))
	case !slices.Contains(set, r.Primary):
		return refuseRange(op, rhumb.InvalidArgument, r, "the primary %s is not in the set", r.Primary)
	}
	if !slices.Equal(set, r.InSync) {
		if refusal := t.checkMembers(op, r, c.Members); refusal.Failure != nil {
			return refusal
		}
	}
	next := r.Clone()
	next.InSync = set
	next.Lives = c.vouchedLives()
	next.Version++
	t.putRange(next)
	return Result{Range: next}
}

// vouched returns the lives that the primary vouches for. A life that is over does no harm: nobody answers in it any more.
func (c AlterISR) vouchedLives() (lives []rhumb.MemberLife) {
	for _, m := range c.Members {
		if m.Vouched && m.Boot > 0 {
			lives = append(lives, rhumb.MemberLife{Node: m.Node, Life: m.Boot})
		}
	}
	slices.SortFunc(lives, func(a, b rhumb.MemberLife) int { return cmp.Compare(a.Node, b.Node) })
	return lives
}

// checkMembers refuses members of a changed in-sync set that are no replicas, not fit to serve, or not in the life that
// the proposer saw.
func (t *tx) checkMembers(op rhumb.Op, r *rhumb.Range, members []Member) Result {
	for _, m := range members {
		n, ok := t.Node(m.Node)
		switch {
		case !ok || !r.IsReplica(m.Node):
			return refuseRange(op, rhumb.InvalidArgument, r, "%s holds no replica", m.Node)
		case r.IsInSync(m.Node):
			// It stays. A dead member must not hold up a learner that joins: with the set at its minimum the primary cannot
			// drop the one before it has the other.
		case n.Boot != m.Boot:
			return refuseRange(op, rhumb.Conflict, r, "%s was seen with boot %d and is registered with boot %d", m.Node, m.Boot, n.Boot)
		case n.State != rhumb.NodeLive:
			return refuseRange(op, rhumb.Conflict, r, "%s is %s", m.Node, n.State)
		case r.IsQuarantined(m.Node):
			return refuseRange(op, rhumb.Conflict, r, "the replica of %s is quarantined", m.Node)
		}
	}
	return Result{}
}

func (c Elect) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Elect"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	}
	if r.Version != c.Version {
		return refuseRange(op, rhumb.Conflict, r, "decided on version %d, the record is at version %d; read it again", c.Version, r.Version)
	}
	inSync := r.InSync
	if len(c.InSync) > 0 {
		inSync, ok = sortedSet(c.InSync, func(n rhumb.NodeID) rhumb.NodeID { return n })
		if !ok || !isSubset(inSync, r.InSync) {
			return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync set %v is not a part of %v", c.InSync, r.InSync)
		}
	}
	switch {
	case c.Node == rhumb.NoNode:
		return refuseRange(op, rhumb.Conflict, r, "no other in-sync member can take over from %s: each is not live, not fit, or out of reach of the others", r.Primary)
	case !slices.Contains(inSync, c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s is not in sync and cannot be primary", c.Node)
	case len(inSync) < t.minInSync(r):
		return refuseRange(op, rhumb.InvalidArgument, r, "%d members are fewer than the class's minimum of %d", len(inSync), t.minInSync(r))
	case !t.IsLive(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Node)
	case r.IsQuarantined(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "the replica of %s is quarantined and cannot be primary", c.Node)
	}
	return Result{Range: t.electPrimary(r, c.Node, inSync)}
}

// elect stores r with a new epoch, primary and in-sync set.
func (t *tx) electPrimary(r *rhumb.Range, n rhumb.NodeID, inSync []rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	next.Allocated++
	next.Epoch = next.Allocated
	next.Primary = n
	next.InSync = slices.Clone(inSync)
	next.Version++
	t.putRange(next)
	return next
}

func (c SetReplicas) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetReplicas"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	}
	if r.Version != c.Version {
		return refuseRange(op, rhumb.Conflict, r, "decided on version %d, the record is at version %d; read it again", c.Version, r.Version)
	}
	set, ok := sortedSet(c.Replicas, func(n rhumb.NodeID) rhumb.NodeID { return n })
	preferred := c.Preferred
	if preferred == rhumb.NoNode {
		preferred = r.Preferred
	}
	switch {
	case !ok:
		return refuseRange(op, rhumb.InvalidArgument, r, "a node stands in the replicas twice")
	case len(set) > rhumb.ReplicasMax:
		return refuseRange(op, rhumb.TooLarge, r, "%d replicas, want at most %d", len(set), rhumb.ReplicasMax)
	case !isSubset(r.InSync, set):
		return refuseRange(op, rhumb.InvalidArgument, r, "the in-sync members %v must stay replicas", r.InSync)
	case !slices.Contains(set, preferred):
		return refuseRange(op, rhumb.InvalidArgument, r, "the preferred primary %s is no replica", preferred)
	}
	for _, id := range set {
		n, known := t.Node(id)
		if !r.IsReplica(id) && (!known || n.State == rhumb.NodeFenced) {
			return refuseRange(op, rhumb.Conflict, r, "%s is unknown or fenced and cannot take a replica", id)
		}
	}
	if preferred == r.Preferred && slices.Equal(set, r.Replicas) {
		return Result{Range: r}
	}
	next := r.Clone()
	next.Replicas, next.Preferred = set, preferred
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return !slices.Contains(set, n) })
	next.Version++
	t.putRange(next)
	return Result{Range: next}
}

func (c QuarantineReplica) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.QuarantineReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s holds no replica", c.Node)
	case r.IsQuarantined(c.Node):
		return Result{Range: r}
	case c.Epoch != 0 && c.Epoch < r.Epoch:
		return refuseRange(op, rhumb.Conflict, r, "the notice is of epoch %d", c.Epoch)
	}
	next := r.Clone()
	next.Quarantined = append(next.Quarantined, c.Node)
	slices.Sort(next.Quarantined)
	if len(next.InSync) > t.minInSync(r) {
		next.InSync = slices.DeleteFunc(next.InSync, func(n rhumb.NodeID) bool { return n == c.Node })
	}
	next.Version++
	if r.Primary != c.Node {
		t.putRange(next)
		return Result{Range: next}
	}
	heir := t.nearestHeir(next, c.Node, t.countPrimaries())
	if heir == rhumb.NoNode { // the record stays until another member may be primary
		next.InSync = r.InSync
		t.putRange(next)
		return Result{Range: next}
	}
	return Result{Range: t.electPrimary(next, heir, next.InSync)}
}

func (c ReadmitReplica) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.ReadmitReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	case !r.IsQuarantined(c.Node):
		return Result{Range: r}
	case c.Epoch != 0 && c.Epoch < r.Epoch:
		return refuseRange(op, rhumb.Conflict, r, "the request is of epoch %d", c.Epoch)
	case r.IsInSync(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is still in the in-sync set %v", c.Node, r.InSync)
	}
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	return Result{Range: t.electPrimary(next, next.Primary, next.InSync)}
}

func (c RecoverRange) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RecoverRange"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	}
	switch {
	case r.Version != c.Version:
		return refuseRange(op, rhumb.Conflict, r, "decided on version %d, the record is at version %d; look at it again", c.Version, r.Version)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s holds no replica", c.Node)
	case !t.IsLive(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Node)
	}
	if why := t.whyNotRecover(r, c.Node); why != "" {
		return refuseRange(op, rhumb.Conflict, r, "%s", why)
	}
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	var left, gone []rhumb.NodeID
	for _, n := range next.Replicas {
		switch {
		case !t.IsLive(n):
			gone = append(gone, n)
		case !next.IsQuarantined(n):
			left = append(left, n)
		}
	}
	// A copy that was given up may hold entries that the range goes on without. Should its node come back, it must not take
	// part, nor refuse the new primary for them.
	next.Quarantined = slices.Compact(slices.Sorted(slices.Values(append(next.Quarantined, gone...))))
	next.Lives = nil
	next.Recovery = &rhumb.Recovery{Epoch: r.Allocated + 1, Node: c.Node, Gone: gone, End: c.End, EndTime: c.EndTime, Known: c.Known}
	if missing := t.minInSync(r) - len(left); missing > 0 {
		if missing > len(gone) {
			return refuseRange(op, rhumb.Conflict, r, "only %v would be left, fewer than the class's minimum of %d: let other replicas discard their damaged copies first", left, t.minInSync(r))
		}
		// The set keeps its least size with nodes that are gone, and the operator vouches for the one copy (ruling 17a).
		left = slices.Sorted(slices.Values(append(left, gone[:missing]...)))
		n, _ := t.Node(c.Node)
		next.Lives = []rhumb.MemberLife{{Node: c.Node, Life: n.Boot}}
	}
	return Result{Range: t.electPrimary(next, c.Node, left)}
}

// goesOnByItself says why nothing of a range has to be given up for the copy of node n, or returns "".
func (t *tx) whyNotRecover(r *rhumb.Range, n rhumb.NodeID) string {
	var intact []rhumb.NodeID
	for _, m := range r.InSync {
		if d, ok := t.Node(m); ok && t.IsLive(m) && !r.IsQuarantined(m) {
			intact = append(intact, m)
			if r.LifeOf(m) == d.Boot {
				return fmt.Sprintf("%s holds an intact copy that is in sync, and has held it since its last start: that one suffices, nothing has to be given up", m)
			}
		}
	}
	switch {
	case len(intact) >= t.minInSync(r):
		return fmt.Sprintf("%v hold intact copies that are in sync: they suffice, nothing has to be given up", intact)
	case len(intact) > 0 && !slices.Contains(intact, n):
		return fmt.Sprintf("%s holds an intact copy that is in sync; go on from that one", intact[0])
	}
	return ""
}

// sortedSet gives the ids of the items in order, and false when one comes twice.
func sortedSet[T any](items []T, id func(T) rhumb.NodeID) ([]rhumb.NodeID, bool) {
	out := make([]rhumb.NodeID, len(items))
	for i, item := range items {
		out[i] = id(item)
	}
	slices.Sort(out)
	return out, len(slices.Compact(slices.Clone(out))) == len(out)
}

// subset reports whether all of a stand in b.
func isSubset(a, b []rhumb.NodeID) bool {
	return !slices.ContainsFunc(a, func(n rhumb.NodeID) bool { return !slices.Contains(b, n) })
}
