package host

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// closeEvent closes the ranges whose primary is this node (docs/replication.md#closed).
type closeEvent struct{}

// applyTo closes each range up to the timestamp that its members have agreed to, and publishes the
// claims.
func (closeEvent) applyTo(h *Host) {
	h.boundLogs()
	h.judgeDelays()
	ts := h.leases.askedClosing()
	var claims []lease.Published
	for _, s := range h.allSlots {
		d := s.desc.Load()
		if d == nil || s.r.State() != replica.Primary {
			continue
		}
		epoch := s.r.Epoch()
		// The replica decides, since it must also assign nothing at or below the closed timestamp.
		at, seq, ok := s.r.Close(ts, func(n rhumb.NodeID, life rhumb.BootSeq) rhumb.Timestamp {
			agreed := h.leases.agreedBy(n, life, s.id, epoch)
			if h.cfg.Probe != nil {
				agreed = h.cfg.Probe.Agreed(n, s.id, epoch, agreed)
			}
			return agreed
		})
		if ok {
			claims = append(claims, lease.Published{
				RangeClaim: closed.RangeClaim{Range: s.id, Claim: closed.Claim{At: at, Seq: seq}}, Replicas: d.Replicas,
			})
		}
		// A replica that joins the in-sync set may have waited for agreement on the closed
		// timestamp (rule R).
		if s.r.HasReady() {
			h.markDirty(s)
		}
	}
	// Published as one list: ranges that are left out are no longer covered.
	h.leases.publishClaims(claims)
}

// Closed returns the greatest timestamp such that every present or future entry of a range at or
// below it is known to have a position up to upTo, or 0 if none is known. If upTo is committed and
// applied on this node, the node holds all of these entries.
func (h *Host) Closed(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	h.leases.mu.Lock()
	defer h.leases.mu.Unlock()
	return h.leases.pairs.ClosedAt(id, upTo)
}

// advanceClosing returns the timestamp that peers are asked to close: the clock's reading, which
// the clock is past from then on. It never waits for the disk, since a reading is never above the
// durable ceiling.
func (l *Leases) advanceClosing() rhumb.Timestamp {
	ts := l.clock.Read()
	if err := l.clock.Forward(ts); err != nil {
		return 0
	}
	return ts
}

// agreeToClose moves the clock past the timestamp that a peer asks to close, and returns the
// timestamp if it did. If the timestamp needs a higher ceiling, the raiser waits for the disk, and
// the answer to a later heartbeat agrees. A timestamp too far ahead is not agreed to.
func (l *Leases) agreeToClose(ts rhumb.Timestamp) rhumb.Timestamp {
	if ts > l.clock.Ceiling() {
		select {
		case l.ahead <- ts:
			l.raiser.Wake()
		// The raiser is busy with another timestamp. The peer asks again with every heartbeat.
		default:
		}
		return 0
	}
	if err := l.clock.Update(ts); err != nil {
		return 0
	}
	return ts
}

// raiseCeiling moves the clock past timestamps that need a higher ceiling. It runs on a worker of
// its own, since it waits for the disk.
func (l *Leases) raiseCeiling() {
	for {
		select {
		default:
			return
		case ts := <-l.ahead:
			// Passed is reported only after the new ceiling is durable: this node must stay above
			// the agreed timestamp after a restart too.
			if err := l.clock.Update(ts); err == nil {
				l.mu.Lock()
				l.pairs.Passed(ts)
				l.mu.Unlock()
			}
		}
	}
}

// askedClosing returns the timestamp that peers were last asked to close.
func (l *Leases) askedClosing() rhumb.Timestamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Closing()
}

// agreedBy returns the timestamp that a node in a given life has agreed to close for an epoch of a
// range.
func (l *Leases) agreedBy(n rhumb.NodeID, life rhumb.BootSeq, r rhumb.RangeID, e rhumb.Epoch) rhumb.Timestamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Agreed(n, life, r, e)
}

// publishClaims replaces the claims that peers and this node's image receive.
func (l *Leases) publishClaims(claims []lease.Published) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.Publish(claims)
}
