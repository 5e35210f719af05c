package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// replaceMost is how long a replacement may take before the operator cancels it. Others are cancelled sooner, so that many of them
// are interrupted.
const replaceMost = 20 * time.Second

// replaceNode starts the replacement of a node by another one, at most one in a run. When all copies have moved, the metadata forgets
// the node for good.
func (w *world) replaceNode(n *node) string {
	target := w.nodes[(n.index+1+w.chance.IntN(len(w.nodes)-1))%len(w.nodes)]
	// The others must be able to hold all replicas, and to vote.
	if w.replacing || w.healed || w.p.placed || w.p.dataNodes() <= max(w.p.settings.Replicas, votersLeast) || w.p.survive || w.damage != nil {
		return ""
	}
	cmd := catalog.StartOperation{
		Kind: rhumb.OperationReplace, Node: n.id, Target: target.id, By: "sim", At: time.Unix(0, int64(w.now)),
	}
	if !w.proposeOnce(cmd) {
		return ""
	}
	w.replacing, w.replaceUntil = true, w.now+replaceMost
	w.after(replaceMost, w.endOperations)
	return fmt.Sprintf("%s is replaced by %s", n.id, target.id)
}

// isReplacing reports whether an operation is a replacement that the operator does not cancel yet.
func (w *world) isReplacing(o *rhumb.Operation) bool {
	return o.Kind == rhumb.OperationReplace && w.now < w.replaceUntil && !w.healed
}

// isForgotten reports whether the metadata has removed a node for good.
func (w *world) isForgotten(id rhumb.NodeID) bool {
	rec, ok := w.state.Node(id)
	return ok && rec.Forgotten
}

// isWitness reports whether a node votes in the metadata group only.
func (n *node) isWitness() bool { return n.w.p.witness && n.index == n.w.p.nodes-1 }

// retire stops a node that was removed from the cluster. It never starts again.
func (n *node) retire() {
	if n.retired {
		return
	}
	n.retired = true
	n.w.stats.Removed++
	n.w.tracef(n.name(), "was removed from the cluster, and stops")
	if n.w.damage != nil && n.w.damage.n == n {
		n.w.damage = nil
	}
	n.w.after(0, func() {
		if !n.down {
			n.stop()
		}
	})
}

// judgeRemoved checks that the metadata forgets no node that still counts for a range, and that no witness holds a copy.
func (w *world) judgeRemoved(r *rhumb.Range) {
	for _, id := range r.Replicas {
		if w.isForgotten(id) && !w.nodes[id-1].lost {
			w.failf("range %s: %s was removed from the cluster and is still a replica", r.ID, id)
		}
		if w.nodes[id-1].isWitness() {
			w.failf("range %s: %s is a witness and holds a copy", r.ID, id)
		}
	}
}

// unrecorded takes leaving members out of the in-sync sets of the records that a primary sees (RemoveUnrecorded).
func unrecorded(ranges []*rhumb.Range, self rhumb.NodeID) (out []*rhumb.Range) {
	for _, r := range ranges {
		if r.Primary == self && slices.ContainsFunc(r.InSync, r.IsLeaving) {
			r = r.Clone()
			r.InSync = slices.DeleteFunc(r.InSync, func(id rhumb.NodeID) bool { return id != self && r.IsLeaving(id) })
		}
		out = append(out, r)
	}
	return out
}

// removedCopy names a copy that was removed.
type removedCopy struct {
	rng  rhumb.RangeID
	node rhumb.NodeID
}

// noteRemoved remembers that a copy was whole when it was removed (BelieveRemoved).
func (w *world) noteRemoved(i int, n *node) {
	if w.cfg.Bug != BelieveRemoved || n.disk.copies[i] == nil {
		return
	}
	if w.removed == nil {
		w.removed = map[removedCopy]bool{}
	}
	w.removed[removedCopy{w.ranges[i], n.id}] = true
}

// believeRemoved takes the acknowledgement of a copy for a late one of the copy that was removed before it, which had
// everything (BelieveRemoved).
func (n *node) believeRemoved(m *replica.Message, last rhumb.Seq) {
	if n.w.removed[removedCopy{m.Range, m.From}] {
		m.Match = last
	}
}

// isBeingReplaced reports whether a replacement of a node is in progress.
func (w *world) isBeingReplaced(id rhumb.NodeID) bool {
	for o := range w.state.Operations() {
		if o.Node == id && !o.State.IsOver() && w.isReplacing(o) {
			return true
		}
	}
	return false
}
