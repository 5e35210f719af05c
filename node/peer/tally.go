package peer

import (
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/tally"
)

// Tallies acknowledge the frames of a link as a whole (package tally). A node sends Appends on the link that it opened, and
// tallies for the frames of the other link on the same one, together with its Appends. Both ends of a link learn from
// the hellos whether the other one knows tallies; nodes of the builds before do not.

// takenFrames lists the frames of a link from a peer. The goroutine that reads the link and the one that sends to the peer share it.
type takenFrames struct {
	number uint64 // of the last frame; the reader owns it

	mu     sync.Mutex // guards frames
	frames *tally.Taken
}

// newTakenFrames returns an empty list, or nil if the peer takes no tallies. stream is the name of the link at the peer.
func newTakenFrames(self, peer rhumb.NodeIdentity, stream uint64) *takenFrames {
	if stream == 0 {
		return nil
	}
	return &takenFrames{frames: tally.NewTaken(tally.Stream{Life: peer.Boot, Number: stream}, self.Node, self.Boot, peer.Node)}
}

// noteTaken lists a frame that has arrived from a peer. From then on this node's tallies are for the link that brought it.
func (n *Network) noteTaken(from rhumb.NodeID, t *takenFrames, msgs []replica.Message, whole bool) {
	// Looked up for each frame: the peer may have become another one, with another address, while its link stayed.
	if p, ok := n.lookUpPeer(from); ok && p.taken.Load() != t {
		p.taken.Store(t)
	}
	if t == nil {
		return
	}
	t.number++
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frames.Record(t.number, msgs, whole)
}

// forgetTaken ends the tallies for a link that has ended. Later acknowledgements are messages.
func (n *Network) forgetTaken(from rhumb.NodeID, t *takenFrames) {
	if p, ok := n.lookUpPeer(from); ok {
		p.taken.CompareAndSwap(t, nil)
	}
}

// expandTallies appends the acknowledgements that tallies of a peer represent to its messages.
func (n *Network) expandTallies(from rhumb.NodeID, msgs []replica.Message, tallies []tally.Tally) []replica.Message {
	if len(tallies) == 0 {
		return msgs
	}
	p, ok := n.lookUpPeer(from)
	if !ok {
		return msgs
	}
	p.sentMu.Lock()
	defer p.sentMu.Unlock()
	for i := range tallies {
		var void int
		msgs, void = p.sent.Expand(msgs, &tallies[i])
		n.m.void.Add(float64(void))
	}
	return msgs
}

// beginTallies begins to remember the frames of a link, if the peer sends tallies for them.
func (p *peer) beginTallies(hello, answer *rhumbpb.PeerHello) {
	self := p.n.cfg.Self()
	other, err := api.DecodeIdentity(answer.Identity)
	p.takesTallies = answer.Tallies && err == nil
	p.sentMu.Lock()
	defer p.sentMu.Unlock()
	p.sent.Begin(tally.Stream{Life: self.Boot, Number: hello.Stream}, self.Node, p.id, other.Boot)
}

// endTallies makes tallies for the link void.
func (p *peer) endTallies() {
	p.sentMu.Lock()
	defer p.sentMu.Unlock()
	p.sent.End()
}

// prepareFrame returns the content of a frame with messages: those that no tally can represent, and a tally of the others.
// It changes the order of msgs. It remembers the frame, which the caller sends next.
func (p *peer) prepareFrame(msgs []replica.Message) (rest []replica.Message, r tally.Tally) {
	rest = msgs
	if t := p.taken.Load(); t != nil {
		t.mu.Lock()
		rest, r = t.frames.Collect(msgs)
		t.mu.Unlock()
		p.n.m.tallied.Add(float64(len(msgs) - len(rest)))
	}
	if p.takesTallies {
		p.sentMu.Lock()
		p.sent.Record(rest)
		p.sentMu.Unlock()
	}
	return rest, r
}
