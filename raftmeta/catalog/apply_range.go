package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

func (c AlterISR) apply(t *tx) Result {
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
	next.Version++
	t.putRange(next)
	return Result{Range: next}
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

func (c Elect) apply(t *tx) Result {
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
		if !ok || !subset(inSync, r.InSync) {
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
	return Result{Range: t.elect(r, c.Node, inSync)}
}

// elect stores r with a new epoch, primary and in-sync set.
func (t *tx) elect(r *rhumb.Range, n rhumb.NodeID, inSync []rhumb.NodeID) *rhumb.Range {
	next := r.Clone()
	next.Allocated++
	next.Epoch = next.Allocated
	next.Primary = n
	next.InSync = slices.Clone(inSync)
	next.Version++
	t.putRange(next)
	return next
}

func (c SetReplicas) apply(t *tx) Result {
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
	case !subset(r.InSync, set):
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

func (c QuarantineReplica) apply(t *tx) Result {
	const op rhumb.Op = "catalog.QuarantineReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s holds no replica", c.Node)
	case r.IsQuarantined(c.Node):
		return Result{Range: r}
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
	heir := t.heir(next, c.Node, t.primaries())
	if heir == rhumb.NoNode { // the record stays until another member may be primary
		next.InSync = r.InSync
		t.putRange(next)
		return Result{Range: next}
	}
	return Result{Range: t.elect(next, heir, next.InSync)}
}

func (c ReadmitReplica) apply(t *tx) Result {
	const op rhumb.Op = "catalog.ReadmitReplica"
	r, ok := t.Range(c.Range)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	case !r.IsQuarantined(c.Node):
		return Result{Range: r}
	case r.IsInSync(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is still in the in-sync set %v", c.Node, r.InSync)
	}
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	return Result{Range: t.elect(next, next.Primary, next.InSync)}
}

func (c RecoverRange) apply(t *tx) Result {
	const op rhumb.Op = "catalog.RecoverRange"
	r, ok := t.Range(c.Range)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no range %s", c.Range)
	}
	intact := slices.IndexFunc(r.InSync, func(n rhumb.NodeID) bool { return !r.IsQuarantined(n) })
	switch {
	case r.Version != c.Version:
		return refuseRange(op, rhumb.Conflict, r, "decided on version %d, the record is at version %d; look at it again", c.Version, r.Version)
	case !r.IsReplica(c.Node):
		return refuseRange(op, rhumb.InvalidArgument, r, "%s holds no replica", c.Node)
	case !t.IsLive(c.Node):
		return refuseRange(op, rhumb.Conflict, r, "%s is not live and cannot be primary", c.Node)
	case intact >= 0:
		return refuseRange(op, rhumb.Conflict, r, "%s holds an intact copy that is in sync; start it instead", r.InSync[intact])
	}
	next := r.Clone()
	next.Quarantined = slices.DeleteFunc(next.Quarantined, func(n rhumb.NodeID) bool { return n == c.Node })
	left := slices.DeleteFunc(slices.Clone(next.Replicas), func(n rhumb.NodeID) bool { return !t.IsLive(n) || next.IsQuarantined(n) })
	if least := t.minInSync(r); len(left) < least {
		return refuseRange(op, rhumb.Conflict, r, "only %v would be left, fewer than the class's minimum of %d: let other replicas discard their damaged copies first", left, least)
	}
	return Result{Range: t.elect(next, c.Node, left)}
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
func subset(a, b []rhumb.NodeID) bool {
	return !slices.ContainsFunc(a, func(n rhumb.NodeID) bool { return !slices.Contains(b, n) })
}
