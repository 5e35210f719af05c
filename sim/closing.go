package sim

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// close moves on what this node closes: it asks for its clock's reading, and publishes what was agreed to.
func (n *node) close() {
	ts := n.hlc.Read()
	n.w.judge(n.hlc.Forward(ts))
	n.pairs.Close(ts)
	var claims []lease.Published
	for _, s := range n.slots {
		if s == nil || s.r.State() != replica.Primary {
			continue
		}
		epoch := s.r.Epoch()
		at, seq, ok := s.r.Close(ts, func(peer rhumb.NodeID) rhumb.Timestamp {
			switch n.w.cfg.Bug {
			case CloseAlone:
				return ts
			case CloseUnfenced:
				return n.pairs.Agreed(peer, s.id, ^rhumb.Epoch(0))
			}
			return n.pairs.Agreed(peer, s.id, epoch)
		})
		n.touch(s)
		if rec, known := n.view.Range(s.id); ok && known {
			claims = append(claims, lease.Published{
				RangeClaim: closed.RangeClaim{Range: s.id, Claim: closed.Claim{At: at, Seq: seq}}, Replicas: rec.Replicas,
			})
		}
	}
	n.pairs.Publish(claims)
	for _, s := range n.slots {
		if s != nil {
			n.observeClosed(s)
		}
	}
}

// passed moves the clock past what a peer asks for. Wall clocks are hours apart in some runs; nodes of a run accept each
// other's timestamps all the same, in entries as here.
func (n *node) passed(ts rhumb.Timestamp) {
	if n.w.cfg.Bug != AgreeOnly {
		n.w.judge(n.hlc.Forward(ts))
	}
	n.pairs.Passed(ts)
}

// ceiling gives the ceiling that the clock starts above.
func (n *node) ceiling() rhumb.Timestamp {
	if n.w.cfg.Bug == ForgetCeiling {
		return 0
	}
	return n.disk.ceiling
}

// observeClosed tells the judges how far the node may call a range closed.
func (n *node) observeClosed(s *slot) {
	upTo := s.disk.commit
	if n.w.cfg.Bug == CloseAhead {
		upTo = ^rhumb.Seq(0)
	}
	if at := n.pairs.ClosedAt(s.id, upTo); at > s.closed {
		s.closed = at
		n.w.stats.Closed++
		n.w.judge(n.w.monitor.Closed(s.id, n.id, at, s.disk.commit))
	}
}

// follows reports whether nodes move their clocks past the entries that they take, as hosts do. In the other half of the runs
// they do not, so that a new primary's clock may be far behind its log.
func (w *world) follows() bool { return w.cfg.Seed%2 == 0 }

// unclosed names a replica in sync that does not know that its range is closed up to its last entry; "" for none.
func (w *world) unclosed() string {
	for i, id := range w.ranges {
		r, _ := w.meta.state.Range(id)
		for _, n := range r.InSync {
			if s := w.nodes[n-1].slots[i]; s == nil || s.closed < s.disk.commitHLC {
				return fmt.Sprintf("range %s: %s does not learn that it is closed up to its last entry", id, n)
			}
		}
	}
	return ""
}

// awaitClosed waits until every replica in sync knows that all there is is closed, at most LivenessMax.
func (w *world) awaitClosed() {
	if !w.follows() {
		return
	}
	why := ""
	for end := w.now + LivenessMax; w.err == nil && w.now < end; w.until(w.now + 250*time.Millisecond) {
		if why = w.unclosed(); why == "" {
			return
		}
	}
	if w.err == nil {
		w.failf("%s for %v after the load has ended", why, LivenessMax)
	}
}
