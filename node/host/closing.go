package host

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// closeEvent closes the ranges that this node is primary of (ruling 6).
type closeEvent struct{}

func (closeEvent) apply(h *Host) {
	h.boundLogs()
	ts := h.leases.asked()
	var claims []lease.Published
	for _, s := range h.all {
		d := s.desc.Load()
		if d == nil || s.r.State() != replica.Primary {
			continue
		}
		epoch := s.r.Epoch()
		at, seq, ok := s.r.Close(ts, func(n rhumb.NodeID, life rhumb.BootSeq) rhumb.Timestamp {
			agreed := h.leases.agreed(n, life, s.id, epoch)
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
		if s.r.HasReady() {
			h.touch(s) // who joins the in-sync set may have waited for this
		}
	}
	h.leases.publish(claims)
}

// Closed gives the greatest timestamp up to which every entry of a range, now and ever, is known to lie at a position up to
// upTo; 0 when none is known. With a position that is committed and applied on this node, the node has all of them.
func (h *Host) Closed(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	h.leases.mu.Lock()
	defer h.leases.mu.Unlock()
	return h.leases.pairs.ClosedAt(id, upTo)
}

// closing gives what peers are asked to close: the clock's reading, which the clock is past from then on. It never waits
// for the disk, since a reading is never above the durable ceiling.
func (l *Leases) closing() rhumb.Timestamp {
	ts := l.clock.Read()
	if err := l.clock.Forward(ts); err != nil {
		return 0
	}
	return ts
}

// pass moves the clock past what a peer asks to close, and gives up to where it did. What needs a higher ceiling waits for
// the disk elsewhere: the answer to a later heartbeat will agree to it. What is too far ahead is not agreed to.
func (l *Leases) pass(ts rhumb.Timestamp) rhumb.Timestamp {
	if ts > l.clock.Ceiling() {
		select {
		case l.ahead <- ts:
			l.raiser.Wake()
		default: // one is under way; the peer asks again
		}
		return 0
	}
	if err := l.clock.Update(ts); err != nil {
		return 0
	}
	return ts
}

// raise moves the clock past timestamps that need a higher ceiling.
func (l *Leases) raise() {
	for {
		select {
		default:
			return
		case ts := <-l.ahead:
			if err := l.clock.Update(ts); err == nil {
				l.mu.Lock()
				l.pairs.Passed(ts)
				l.mu.Unlock()
			}
		}
	}
}

func (l *Leases) asked() rhumb.Timestamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Closing()
}

func (l *Leases) agreed(n rhumb.NodeID, life rhumb.BootSeq, r rhumb.RangeID, e rhumb.Epoch) rhumb.Timestamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Agreed(n, life, r, e)
}

func (l *Leases) publish(claims []lease.Published) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.Publish(claims)
}
