package lease

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// Close makes heartbeats ask every peer to move its clock past ts. This node's own clock must
// already be past ts, durably.
func (p *Pairs) Close(ts rhumb.Timestamp) {
	p.closing = max(p.closing, ts)
	p.Passed(ts)
}

// Closing returns the timestamp last passed to Close.
func (p *Pairs) Closing() rhumb.Timestamp { return p.closing }

// Passed records that this node's clock is durably past ts: neither this life nor a later one
// assigns a timestamp up to ts. Call Passed before Receive with the Close of the frame, so that the
// answer already agrees.
func (p *Pairs) Passed(ts rhumb.Timestamp) { p.passedClock = max(p.passedClock, ts) }

// Agreed returns the greatest timestamp of this node that n agreed to, in the given life, for epoch
// e of r: neither n, nor any node with n's help, writes at or below it except in epoch e. It
// returns 0 if a later epoch is known to be promised, or if n was last heard in another life: the
// agreement of one life says nothing about the disk of the next.
func (p *Pairs) Agreed(n rhumb.NodeID, life rhumb.BootSeq, r rhumb.RangeID, e rhumb.Epoch) rhumb.Timestamp {
	q := p.findPeer(n)
	if q == nil || q.life.Boot != life || e < p.fenced[r] {
		return 0
	}
	return q.agreed
}

// Published states how far a range is closed whose primary is this node, and which nodes hold it.
type Published struct {
	closed.RangeClaim
	Replicas []rhumb.NodeID
}

// Publish replaces the claims about all ranges whose primary is this node. Peers hear nothing
// further about a range that is left out; earlier claims stay true.
func (p *Pairs) Publish(claims []Published) {
	told := make(map[rhumb.NodeID][]closed.RangeClaim, len(p.peers))
	for i := range claims {
		c := &claims[i]
		// This node's images need the claims too, and no frame reaches the node itself.
		p.ownClosed.Note(c.Range, c.Claim)
		for _, n := range c.Replicas {
			if n != p.self.Node {
				told[n] = append(told[n], c.RangeClaim)
			}
		}
	}
	for _, q := range p.peers {
		q.closedOut.Set(told[q.id])
	}
}

// ClosedAt returns the greatest timestamp such that every present or future entry of r at or below
// it is known to have a position up to upTo. It returns 0 if none is known. If upTo is the commit
// position of this node, the node holds all of these entries.
func (p *Pairs) ClosedAt(r rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	// A claim stays true whoever made it and whoever is primary now, so claims of former primaries
	// count.
	at := p.ownClosed.At(r, upTo)
	// A peer without ranges gets an empty list, which ends the coverage of ranges that it held
	// before.
	for _, q := range p.peers {
		at = max(at, q.closedIn.At(r, upTo))
	}
	return at
}
