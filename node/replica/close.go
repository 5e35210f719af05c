package replica

import "github.com/rhumbdb/rhumb"

// Close closes the range as far as can be: from now on nothing is added to it at or below at, whatever fails, and every
// entry up to at lies at a position up to seq, which is committed (ruling 6). own is a timestamp that the driver's clock
// is past, durably; agreed returns, of another node in a life, the greatest one that it has agreed to for this epoch in that
// life, 0 for none (lease.Pairs.Agreed). ok is false when nothing is closed in this epoch.
//
// All of the in-sync set and of the pending one must have agreed: any of them may become primary, and then writes above.
// The epoch-start entry must be committed, because until then a member may hold entries of an earlier epoch, with lower
// timestamps, that this log lacks. What is not committed yet is not closed.
func (r *Replica) Close(own rhumb.Timestamp, agreed func(rhumb.NodeID, rhumb.BootSeq) rhumb.Timestamp) (at rhumb.Timestamp, seq rhumb.Seq, ok bool) {
	if r.role != primary || r.commit < r.start || len(r.inSync) < r.cfg.MinInSync {
		return 0, 0, false
	}
	at = min(own, r.firstUncommitted()-1)
	for _, p := range r.peers {
		p.agreed = agreed(p.node, p.life)
		if p.counts() {
			at = min(at, p.agreed)
		}
	}
	if at > r.closed {
		r.closed = at
		// The driver's clock is past at, but a timestamp that it took before may still be on its way here.
		r.orders.hlc = max(r.orders.hlc, at)
	}
	r.dirty = r.dirty || r.change.unsent || !r.change.active() && r.wantsToVouch()
	return r.closed, r.commit, r.closed > 0
}

// firstUncommitted gives the lowest timestamp that was given out and is not committed; the greatest there is when all are.
func (r *Replica) firstUncommitted() rhumb.Timestamp {
	if next := r.commit + 1; next <= r.log.last().Seq {
		e := r.tail.entries[next-r.tail.first]
		if len(e.Requests) == 0 {
			return e.Start
		}
		return e.Requests[0].HLC
	}
	for i := range r.orders.groups[:r.orders.open] {
		if g := &r.orders.groups[i]; len(g.requests) > 0 {
			return g.requests[0].HLC
		}
	}
	return ^rhumb.Timestamp(0)
}
