package sim

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
)

// In some seeds one node runs an older build at first, and the others use a kind of entry that it does not know: those with
// inserts. That is more than real nodes do, which wait for the cluster version. The node must wait at such an entry without
// harm, and catch up after its upgrade.

// isLater reports whether an older build cannot read an entry.
func isLater(e *entry.Entry) bool {
	return slices.ContainsFunc(e.Requests, func(q entry.Request) bool { return len(q.Names) > 0 })
}

// beginOlder makes a node begin with an older build, which is upgraded during the faults.
func (w *world) beginOlder() {
	if !w.p.older {
		return
	}
	n := oneOf(w.wire, w.nodes...)
	n.older = true
	w.tracef(n.name(), "runs an older build")
	w.after(time.Duration(w.wire.Int64N(int64(w.cfg.Duration*faultShare/100))), func() { w.upgrade(n) })
}

// upgrade restarts a node with the build of the others.
func (w *world) upgrade(n *node) {
	switch {
	case !n.older || n.retired:
		return
	// The restart is a fault, too, until everything is healed.
	case w.mustHoldFaults() && !w.healed:
		w.after(damageProbeEvery, func() { w.upgrade(n) })
		return
	}
	n.older = false
	w.tracef(n.name(), "is upgraded")
	// A node that is down starts with the new build anyway.
	if !n.down {
		n.stop()
		n.start()
	}
}

// readOlder returns the messages as an older build reads them: as package peer does, an Append ends before an unknown entry, and
// other messages with one are lost.
func (n *node) readOlder(msgs []replica.Message) []replica.Message {
	kept := msgs[:0]
	for _, m := range msgs {
		if i := slices.IndexFunc(m.Entries, isLater); i >= 0 {
			n.w.stats.Unread++
			if m.Kind != replica.Append {
				continue
			}
			if n.w.cfg.Bug == AckUnread {
				// The log is acknowledged up to its end, as if the entry did not matter.
				transport{n}.Send(m.From, []replica.Message{{
					Kind: replica.Ack, Range: m.Range, From: n.id, To: m.From, Life: n.identity().Boot, Epoch: m.Epoch, Match: m.Entries[len(m.Entries)-1].Seq, Commit: m.Commit,
				}})
				continue
			}
			m.Entries, m.Unknown = m.Entries[:i:i], true
		}
		kept = append(kept, m)
	}
	return kept
}

// refuseLater returns why an older build does not take a batch, or nil: it does not know inserts.
func (n *node) refuseLater(b *rhumb.Batch) error {
	if n.older && slices.ContainsFunc(b.Mutations, func(m rhumb.Mutation) bool { return m.Kind == rhumb.Insert }) {
		return rhumb.E("sim.propose", rhumb.Unavailable, "the node runs an older build")
	}
	return nil
}
