package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// suspectsMax bounds the suspects that a frame names.
const suspectsMax = 64

// named returns the suspects that a frame tells its receiver of.
func (p *Pairs) named(now time.Duration) []rhumb.NodeID {
	s := p.Suspects(now)
	return s[:min(len(s), suspectsMax)]
}

// Via returns the node by way of which a message reaches n although this node has no contact with n: a peer in contact with
// both, the nearest. ok is false when n is in contact itself, or is out of everybody's reach.
func (p *Pairs) Via(now time.Duration, n rhumb.NodeID) (via rhumb.NodeID, ok bool) {
	suspects := p.Suspects(now)
	if !slices.Contains(suspects, n) {
		return rhumb.NoNode, false
	}
	var best *peer
	for _, q := range p.peers {
		if !q.watched || q.sent == 0 || slices.Contains(suspects, q.id) || slices.Contains(q.suspects, n) {
			continue
		}
		if best == nil || q.rtt < best.rtt {
			best = q
		}
	}
	if best == nil {
		return rhumb.NoNode, false
	}
	return best.id, true
}
