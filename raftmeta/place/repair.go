package place

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Repair returns a SetReplicas for each range that has fewer usable replicas than its class
// requires, if a node can hold one more, and for each range with a surplus replica on a node that
// is gone. A fenced node counts as usable until ReplaceAfter has passed.
func (p *Planner) Repair(now time.Duration, s *catalog.State) []catalog.Command {
	var out []catalog.Command
	var l *load
	after, paused := p.replaceAfter(s), pausedRepairs(s)
	pools := make(pools)
	for r := range s.Ranges() {
		if len(out) == PlanMax {
			break
		}
		// Every range has a class: the catalog creates ranges only in the blocks of classes.
		class, _ := s.Class(r.Class)
		// A range that is about to be removed needs no more copies, and one that is reserved for a split gets those of the
		// range that is split.
		if class.Dropping || r.Birth != 0 {
			continue
		}
		lacks := class.Settings.Replicas - p.countUsable(now, after, r)
		if slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return paused[id] }) {
			continue
		}
		if lacks <= 0 {
			if cmd, ok := p.dropGone(now, after, s, r, class.Settings.Replicas); ok {
				out = append(out, cmd)
			}
			continue
		}
		// Measuring walks all ranges, so it is done only if there is something to repair.
		if l == nil {
			l = measureLoad(s)
		}
		gone := func(id rhumb.NodeID) bool { return p.isGone(now, id, after) }
		if cmd, ok := l.addReplicas(s, r, pools.of(s, r, class), lacks, gone, p.avoided(now)); ok {
			out = append(out, cmd)
		}
	}
	return out
}

// pausedRepairs returns the dead nodes whose repair an operator has paused.
func pausedRepairs(s *catalog.State) map[rhumb.NodeID]bool {
	out := make(map[rhumb.NodeID]bool)
	for o := range s.Operations() {
		if o.Kind == rhumb.OperationRepair && o.State == rhumb.OperationPaused {
			out[o.Node] = true
		}
	}
	return out
}

// countStaying returns the number of in-sync members whose nodes are not leaving.
func countStaying(s *catalog.State, r *rhumb.Range) (count int) {
	for _, id := range r.InSync {
		if n, ok := s.Node(id); ok && !n.Leaving {
			count++
		}
	}
	return count
}

// countUsable returns the number of replicas on nodes that are not gone.
func (p *Planner) countUsable(now, after time.Duration, r *rhumb.Range) int {
	n := 0
	for _, id := range r.Replicas {
		if !p.isGone(now, id, after) {
			n++
		}
	}
	return n
}

// addReplicas returns a command that adds up to lacks replicas on nodes that hold none and need not be avoided. If the preferred primary is gone, the
// nearest node to it comes first: that one is to take its place, in the second phase of the failover (StandIns).
func (l *load) addReplicas(s *catalog.State, r *rhumb.Range, p *pool, lacks int, gone func(rhumb.NodeID) bool, avoid []rhumb.NodeID) (catalog.Command, bool) {
	var chosen []*rhumb.Node
	for _, id := range r.Replicas {
		// A replica on a node that is gone takes no place of its region or zone: another one replaces it there.
		if n, _ := s.Node(id); !gone(id) && (p.settings.Survival != rhumb.SurviveRegion || n.State != rhumb.NodeFenced) {
			chosen = append(chosen, n)
		}
	}
	if home, ok := s.Node(r.Preferred); ok && gone(r.Preferred) {
		p = p.nearTo(home)
	}
	replicas := slices.Clone(r.Replicas)
	for ; lacks > 0 && len(replicas) < rhumb.ReplicasMax; lacks-- {
		n := l.nextNode(chosen, p, slices.Concat(replicas, avoid)...)
		if n == nil {
			break
		}
		chosen = append(chosen, n)
		replicas = append(replicas, n.ID)
		// Counting at once spreads the replicas of several ranges that lost the same node.
		l.replicas[n.ID]++
	}
	if len(replicas) == len(r.Replicas) {
		return nil, false
	}
	return catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: replicas}, true
}

// dropGone returns a command that removes replicas on nodes that are gone, if enough other replicas are
// in sync.
func (p *Planner) dropGone(now, after time.Duration, s *catalog.State, r *rhumb.Range, wanted int) (catalog.Command, bool) {
	// Metadata lets no copy go while the range is being split.
	if len(r.Replicas) <= wanted || countStaying(s, r) < wanted || isSplitting(s, r) {
		return nil, false
	}
	keep := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool {
		// A member of the in-sync set cannot be removed here: it leaves the set first.
		return !r.IsInSync(id) && p.isGone(now, id, after)
	})
	if len(keep) == len(r.Replicas) {
		return nil, false
	}
	preferred := r.Preferred
	if !slices.Contains(keep, preferred) {
		// The range has a new home: the copy nearest to the old one, to which fail-back hands it over.
		preferred = s.HeirWithout(r, func(id rhumb.NodeID) bool { return !s.TakesCopies(id) || !slices.Contains(keep, id) })
		if preferred == rhumb.NoNode || !s.IsNearer(r, preferred, r.Primary) {
			preferred = r.Primary
		}
	}
	return catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: keep, Preferred: preferred}, true
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

// whyNotRepaired returns the obstacle to the repair of a range: copies that are not in sync yet, or a node that can take one.
func (m *mover) whyNotRepaired(r *rhumb.Range) string {
	class, _ := m.s.Class(r.Class)
	usable := slices.DeleteFunc(slices.Clone(r.Replicas), func(id rhumb.NodeID) bool { return m.p.isGone(m.now, id, m.p.replaceAfter(m.s)) })
	// A copy that will not arrive explains more than the number of copies.
	for _, id := range usable {
		if !r.IsInSync(id) && m.p.isAvoided(m.now, id) {
			return m.p.whyNotArrive(id)
		}
	}
	if late := without(usable, r.InSync); len(late) > 0 {
		return fmt.Sprintf("the copy on %s is not in sync yet", rhumb.NodeList(late))
	}
	if len(usable) < class.Settings.Replicas {
		return fmt.Sprintf("%s: it has %d of %d", m.p.noOther(), len(usable), class.Settings.Replicas)
	}
	// The copies suffice, and the dead one is removed next.
	return fmt.Sprintf("in sync are %s", rhumb.NodeList(r.InSync))
}

// advanceRepair records how far the repair of a dead node is. Planner.Repair makes the copies.
func (m *mover) advanceRepair(o *rhumb.Operation) {
	n, ok := m.s.Node(o.Node)
	if ok && n.State != rhumb.NodeFenced {
		// The copies on the node catch up, so nothing has to be created elsewhere.
		m.end(o, rhumb.OperationCancelled, fmt.Sprintf("%s is back", o.Node))
		return
	}
	var t workLeft
	for r := range m.s.Ranges() {
		if r.IsReplica(o.Node) {
			m.weigh(&t, r.ID)
			if t.waits == "" {
				t.waits = fmt.Sprintf("range %s: %s", r.ID, m.whyNotRepaired(r))
			}
		}
	}
	if t.left == 0 {
		m.record(o, rhumb.OperationDone, t, 1)
		return
	}
	m.record(o, rhumb.OperationRunning, t, 0)
}
