package replica

import "github.com/rhumbdb/rhumb"

// Close closes the range as far as possible: from now on nothing is added to it at or below the
// returned timestamp, whatever fails, and every entry up to that timestamp is at a position up to
// seq, which is committed (docs/replication.md#closed). own is a timestamp that the driver's clock
// has passed, durably. agreed returns the greatest timestamp that another node has agreed to for
// this epoch in the given life, or 0 (lease.Pairs.Agreed). ok is false if nothing is closed in this
// epoch.
//
// All members of the in-sync set and of the pending set must have agreed: any of them may become
// primary, and then writes above. The epoch-start entry must be committed; before, a member may
// hold entries of an earlier epoch, with lower timestamps, that this log lacks. Uncommitted entries
// are not closed.
func (r *Replica) Close(own rhumb.Timestamp, agreed func(rhumb.NodeID, rhumb.BootSeq) rhumb.Timestamp) (at rhumb.Timestamp, seq rhumb.Seq, ok bool) {
	// The range that takes over the slots begins above everything that was closed here.
	if r.role != primary || r.HasEnded() || r.commit < r.start || len(r.inSync) < r.cfg.MinInSync {
		return 0, 0, false
	}
	at = min(own, r.firstUncommitted()-1)
	for _, p := range r.peers {
		// Kept for learners, too: a learner joins only after it has agreed to the closed timestamp. The
		// agreement belongs to a life, since an older copy of a disk has forgotten it.
		before := p.agreed
		p.agreed = agreed(p.node, p.life)
		// The first agreement of a life lets a learner join. The end of an agreement may be the only sign of a peer's new life: a late
		// acknowledgement of the earlier one can have ended the probe. The peer is asked then (lacksAgreement), which takes ticks.
		r.dirty = r.dirty || before == 0 && p.agreed > 0 && !p.isRequired() || before > 0 && p.agreed == 0
		if p.isRequired() {
			at = min(at, p.agreed)
		}
	}
	if at > r.closed {
		// Closed timestamps never fall: they may have been published already.
		r.closed = at
		// The driver's clock has passed at, but a timestamp that it took before may still reach Propose.
		r.orders.hlc = max(r.orders.hlc, at)
	}
	// A joining node, or a life to vouch for, may have waited for an agreement.
	r.dirty = r.dirty || r.change.unsent || !r.change.isActive() && r.wantsToVouch()
	return r.closed, r.commit, r.closed > 0
}

// firstUncommitted returns the lowest timestamp that was assigned and is not committed, or the
// greatest possible timestamp if there is none.
func (r *Replica) firstUncommitted() rhumb.Timestamp {
	if next := r.commit + 1; next <= r.log.last().Seq {
		e := r.tail.entries[next-r.tail.first]
		if len(e.Requests) == 0 {
			return e.Start
		}
		return e.Requests[0].HLC
	}
	// Requests that are not sealed yet have their timestamps already.
	for i := range r.orders.groups[:r.orders.open] {
		if g := &r.orders.groups[i]; len(g.requests) > 0 {
			return g.requests[0].HLC
		}
	}
	return ^rhumb.Timestamp(0)
}
