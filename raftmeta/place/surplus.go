package place

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// This file takes copies away that no operation needs: surplus copies, and marks that a cancelled operation has left.

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
// the range is dead or leaves, or while the range moves: then the extra copy is on its way to replace another one. A copy on a node that drains
// does not count, because the node is about to stop: one more than the class asks for must be in sync without it. While the range is being split,
// metadata lets no copy go.
func (m *mover) surplus(r *rhumb.Range, moved map[rhumb.RangeID][]rhumb.NodeID) bool {
	class, ok := m.s.Class(r.Class)
	if !ok || class.Dropping || len(r.Replicas) <= class.Settings.Replicas || len(moved[r.ID]) > 0 || len(r.Quarantined) > 0 || r.Prepared != nil || isSplitting(m.s, r) {
		return false
	}
	if slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return !m.s.TakesCopies(id) && !m.drains(id) }) {
		return false
	}
	if slices.ContainsFunc(r.Replicas, m.drains) && len(m.serving(r.InSync)) <= class.Settings.Replicas {
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

// drains reports whether a node drains and will be back: it does not leave the cluster.
func (m *mover) drains(id rhumb.NodeID) bool {
	n, ok := m.s.Node(id)
	return ok && n.State == rhumb.NodeDraining && !n.Leaving
}

// serving returns the nodes that may hold roles now: neither dead nor about to stop.
func (m *mover) serving(nodes []rhumb.NodeID) []rhumb.NodeID {
	return slices.DeleteFunc(slices.Clone(nodes), func(id rhumb.NodeID) bool { return !m.s.IsLive(id) })
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
		others := without(m.serving(r.InSync), []rhumb.NodeID{victim})
		// The survival goal counts too: the set that stays must span regions if the class asks for it.
		if victim == rhumb.NoNode || len(others) < class.Settings.Replicas || !m.s.Spans(r.Class, others) ||
			m.s.BareRegion(r, without(r.Replicas, []rhumb.NodeID{victim})) != "" {
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
