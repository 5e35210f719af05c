package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// suspectsMax bounds the suspects that a frame names.
const suspectsMax = 64

// frameSuspects returns the suspects to name in a frame.
func (p *Pairs) frameSuspects(now time.Duration) []rhumb.NodeID {
	s := p.Suspects(now)
	return s[:min(len(s), suspectsMax)]
}

// Via returns the node through which a message reaches n although this node has no contact with n:
// the nearest peer that is in contact with both. ok is false if n itself is in contact, or if no
// peer reaches it.
func (p *Pairs) Via(now time.Duration, n rhumb.NodeID) (via rhumb.NodeID, ok bool) {
	suspects := p.Suspects(now)
	if !slices.Contains(suspects, n) {
		return rhumb.NoNode, false
	}
	var best *peer
	for _, q := range p.peers {
		// A peer names its own suspects in its frames. One whose present life has sent no frame has
		// named none yet, and its contact with n is unknown.
		if !q.watched || q.peerSent == 0 || slices.Contains(suspects, q.id) || slices.Contains(q.suspects, n) {
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
