package lease

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// Close has every peer asked to move its clock past ts. This node's own clock must be past it, durably.
func (p *Pairs) Close(ts rhumb.Timestamp) {
	p.closing = max(p.closing, ts)
	p.Passed(ts)
}

// Closing gives the last timestamp of Close.
func (p *Pairs) Closing() rhumb.Timestamp { return p.closing }

// Passed says that this node's clock is past ts, durably: it gives no timestamp up to ts any more, in this life or a later
// one. Call it before Receive with the Close of the frame, so that the answer already agrees.
func (p *Pairs) Passed(ts rhumb.Timestamp) { p.clock = max(p.clock, ts) }

// Agreed returns the greatest timestamp of this node's that n agreed to, in the given life, for epoch e of r: neither n, nor
// anybody with n's help, writes at or below it unless in epoch e. It is 0 when somebody is known to have promised a later
// epoch, and when another life of n was heard last: what one life agreed to says nothing of the disk of the next.
func (p *Pairs) Agreed(n rhumb.NodeID, life rhumb.BootSeq, r rhumb.RangeID, e rhumb.Epoch) rhumb.Timestamp {
	q := p.peer(n)
	if q == nil || q.life.Boot != life || e < p.fenced[r] {
		return 0
	}
	return q.agreed
}

// Published is how far a range that this node is primary of is closed, and who holds the range.
type Published struct {
	closed.RangeClaim
	Replicas []rhumb.NodeID
}

// Publish says how far all ranges are closed that this node is primary of. A range that is left out is told of no more;
// what was told stays true.
func (p *Pairs) Publish(claims []Published) {
	told := make(map[rhumb.NodeID][]closed.RangeClaim, len(p.peers))
	for i := range claims {
		c := &claims[i]
		p.own.Note(c.Range, c.Claim)
		for _, n := range c.Replicas {
			if n != p.self.Node {
				told[n] = append(told[n], c.RangeClaim)
			}
		}
	}
	for _, q := range p.peers {
		q.out.Set(told[q.id])
	}
}

// ClosedAt gives the greatest timestamp up to which every entry of r, now and ever, is known to lie at a position up to
// upTo; 0 when none is known. With upTo the commit position here, this node holds all of them.
func (p *Pairs) ClosedAt(r rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	at := p.own.At(r, upTo)
	for _, q := range p.peers {
		at = max(at, q.in.At(r, upTo))
	}
	return at
}
