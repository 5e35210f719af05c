package sim

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

// spoil lets a replica meet damage in its data, as a read of a damaged block does. It is quarantined, keeps its data for a
// while, and is discarded then.
func (w *world) spoil(n *node, last time.Duration) string {
	i := w.chance.IntN(len(w.ranges))
	r, _ := w.state.Range(w.ranges[i])
	if w.holds() || w.harm != nil || !w.groupIsWhole() || w.net.loses() || n.host == nil || n.down || n.paused || w.p.settings.MinInSync < 2 || len(r.Quarantined) > 0 || !r.IsReplica(n.id) {
		return ""
	}
	intact := 0
	for _, m := range r.InSync {
		if m != n.id && w.monitor.Whole(r.ID, m, w.diskOf(r.ID)) {
			intact++
		}
	}
	rep, ok := n.host.Replica(r.ID)
	if !ok || intact < w.p.settings.MinInSync {
		return ""
	}
	n.spoiled[i] = w.now + last
	n.run(n.life, func() {
		rep.Damaged("a block of it is damaged")
		n.host.Update([]*rhumb.Range{r}) // the host looks at the replica
	})
	w.after(last, w.mend)
	what := n.name() + " range " + r.ID.String()
	if w.chance.IntN(2) == 0 { // a restart before metadata hears of it: only the disk knows
		w.deafen(2*toldLate, n)
		w.after(toldLate, func() {
			if !n.down && !w.healed {
				w.takeDown(n, toldLate)
			}
		})
		what += ", which restarts before metadata hears of it"
	}
	return what
}

// toldLate is how long a quarantine is on disk before its node restarts and can tell metadata.
const toldLate = 300 * time.Millisecond

// mendEvery is how often the operator looks whether damaged copies can be discarded.
const mendEvery = 500 * time.Millisecond

// mend discards the copies that are quarantined and out of the in-sync set, as an operator does, until none is left.
func (w *world) mend() {
	again := false
	for _, n := range w.nodes {
		for i, id := range w.ranges {
			r, _ := w.state.Range(id)
			again = again || n.spoiled[i] > 0 || r.IsQuarantined(n.id)
			if n.down || n.paused || n.host == nil || w.now < n.spoiled[i] && !w.healed || !r.IsQuarantined(n.id) || r.IsInSync(n.id) {
				continue
			}
			n.run(n.life, func() { n.discard(i, id) })
		}
	}
	if again && !w.mending {
		w.mending = true
		w.after(mendEvery, w.mendLater)
	}
}

func (w *world) mendLater() {
	w.mending = false
	w.mend()
}

// discard drops a quarantined copy. The outcome is not waited for: mend comes again.
func (n *node) discard(i int, id rhumb.RangeID) {
	r, ok := n.host.Replica(id)
	if !ok || r.State() != replica.Quarantined {
		return
	}
	n.discarding[i] = r
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.host.Discard(over, id, false)
}

// noteDiscarded forgets a copy once the empty one has taken its place.
func (n *node) noteDiscarded(i int) {
	if n.discarding[i] == nil || n.host == nil {
		return
	}
	if r, ok := n.host.Replica(n.w.ranges[i]); !ok || r == n.discarding[i] {
		return
	}
	n.w.tracef(n.name(), "the copy of %s is discarded", n.w.ranges[i])
	delete(n.disk.unmarked, n.disk.copies[i])
	n.disk.copies[i], n.discarding[i], n.spoiled[i], n.disk.quarantined[i] = nil, nil, 0, false
}
