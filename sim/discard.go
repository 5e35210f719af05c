package sim

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// damageReplica makes a replica find damage in its data, as a read of a damaged block does. The
// replica is quarantined, keeps its data for a while, and is then discarded.
func (w *world) damageReplica(n *node, length time.Duration) string {
	i := w.chance.IntN(len(w.ranges))
	if !w.isServed(w.ranges[i]) {
		return ""
	}
	r, _ := w.state.Range(w.ranges[i])
	// The same bounds as for a damaged disk apply, and the quarantine must be able to reach the
	// metadata, so that the range replaces the member.
	if w.mustHoldFaults() || w.damage != nil || !w.groupIsWhole() || w.net.losesData() || n.host == nil || n.down || n.paused || w.p.settings.MinInSync < 2 || len(r.Quarantined) > 0 || !r.IsReplica(n.id) {
		return ""
	}
	intact := 0
	for _, m := range r.InSync {
		if m != n.id && w.monitor.Whole(r.ID, m, w.diskOf(r.ID)) {
			intact++
		}
	}
	rep, ok := n.host.Replica(r.ID)
	// Without this member, min_in_sync intact ones must remain.
	if !ok || intact < w.p.settings.MinInSync {
		return ""
	}
	n.spoiled[i] = w.now + length
	n.run(n.life, func() {
		rep.Damaged("a block of it is damaged")
		// Update makes the host run a pass over the replica.
		n.host.Update([]*rhumb.Range{r})
	})
	w.after(length, w.mendCopies)
	what := n.name() + " range " + r.ID.String()
	// A restart before the metadata learns of the quarantine: only the disk knows the reason.
	if w.chance.IntN(2) == 0 {
		w.cutMetadata(2*toldLate, n)
		w.after(toldLate, func() {
			if !n.down && !w.healed {
				w.takeDown(n, toldLate)
			}
		})
		what += ", which restarts before metadata hears of it"
	}
	return what
}

// toldLate is how long the quarantine is on disk before the node restarts and can report it.
const toldLate = 300 * time.Millisecond

// mendEvery is how often the simulated operator looks for copies that can be discarded.
const mendEvery = 500 * time.Millisecond

// mendCopies discards quarantined copies that have left the in-sync set, as an operator does. It
// repeats until none is left.
func (w *world) mendCopies() {
	again := false
	for _, n := range w.nodes {
		for i, id := range w.ranges {
			r, ok := w.state.Range(id)
			if !ok {
				continue
			}
			again = again || n.spoiled[i] > 0 || r.IsQuarantined(n.id)
			// A copy still in the in-sync set counts for elections; discarding it would lose what
			// it alone may hold.
			if n.down || n.paused || n.host == nil || w.now < n.spoiled[i] && !w.healed || !r.IsQuarantined(n.id) || r.IsInSync(n.id) {
				continue
			}
			n.run(n.life, func() { n.discardCopy(i, id) })
		}
	}
	// At most one repetition is scheduled at a time.
	if again && !w.mending {
		w.mending = true
		w.after(mendEvery, w.mendLater)
	}
}

// mendLater runs a scheduled mendCopies.
func (w *world) mendLater() {
	w.mending = false
	w.mendCopies()
}

// discardCopy discards a quarantined copy. It does not wait for the outcome, because mendCopies
// repeats.
func (n *node) discardCopy(i int, id rhumb.RangeID) {
	r, ok := n.host.Replica(id)
	if !ok || r.State() != replica.Quarantined {
		return
	}
	n.discarding[i] = r
	// Host.Discard waits until its context ends, and only a process may wait: the context ends at
	// once.
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.host.Discard(over, id, false)
}

// noteRemoval remembers a copy that the node is about to drop, because the record does not place it there any more. Whether the
// drop survives a crash is open until the replica is gone.
func (n *node) noteRemoval(i int, id rhumb.RangeID, r *replica.Replica) {
	if d, ok := n.host.Range(id); ok && !d.IsReplica(n.id) {
		if n.discarding[i] == nil {
			n.w.noteRemoved(i, n)
		}
		n.discarding[i] = r
	}
}

// noteDiscarded forgets the judges' copy of a log once the empty replica has replaced the discarded
// one.
func (n *node) noteDiscarded(i int) {
	if n.discarding[i] == nil || n.host == nil {
		return
	}
	if r, ok := n.host.Replica(n.w.ranges[i]); ok && r == n.discarding[i] {
		return
	}
	n.w.tracef(n.name(), "the copy of %s is discarded", n.w.ranges[i])
	delete(n.disk.unmarked, n.disk.copies[i])
	n.disk.copies[i], n.discarding[i], n.spoiled[i], n.disk.quarantined[i] = nil, nil, 0, false
}
