package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// flow is how a primary sends to a peer (raft's tracker.StateType).
type flow uint8

const (
	// flowProbe: where the logs part is not known. One Append is out at a time.
	flowProbe flow = iota
	// flowReplicate: the logs agree up to match; Appends are pipelined within InflightBytesMax.
	flowReplicate
	// flowLost: the peer needs log that is trimmed away. Nothing is sent until its stream is made anew.
	flowLost
	// flowQuarantined: the peer said that it will acknowledge nothing.
	flowQuarantined
)

func (f flow) String() string {
	return [...]string{"probe", "replicate", "lost", "quarantined"}[f]
}

// link is what the driver knows of a node, whether or not it is a replica.
type link struct{ connected, suspect bool }

// progress is what a primary knows of one peer.
//
// Invariant: match < next <= last + 1. match is a lower bound of what the peer holds durably of this epoch's log, since
// its stream was made.
type progress struct {
	link
	node        rhumb.NodeID
	flow        flow
	match, next rhumb.Seq
	// life is the peer's life that match and commit speak of; 0 before its first answer.
	life rhumb.BootSeq
	// acknowledged is the greatest match of earlier streams and lives, and lost what the peer had acknowledged when it
	// turned out to hold less; 0 when it did not.
	acknowledged, lost rhumb.Seq
	// commit is the peer's commit position as it told, toldCommit the one last sent to it, tell asks for an Append
	// that carries nothing else.
	commit, toldCommit rhumb.Seq
	tell               bool
	// agreed is the closed timestamp that the peer has agreed to, as Close last asked.
	agreed rhumb.Timestamp
	// best is the greatest match of this epoch, stalled how long it has not grown while entries wait, stuck whether that is
	// too long. refuses is why the peer takes no entries, as long as it is a member.
	best    rhumb.Seq
	stalled stall
	stuck   bool
	refuses Refusal
	// heldOff says that the last tick found the peer held off.
	heldOff bool
	// inSync and pending: the peer is a member of the in-sync set, of the one asked for.
	inSync, pending bool
	// probing is true while a probe is out, fetching while storage reads for the peer.
	probing, fetching bool
	inflight          window
	// waiting and since are Tick's clock for retransmission.
	waiting bool
	since   time.Duration
}

// counts reports whether commits and leases need the peer (rules C and L).
func (p *progress) counts() bool { return p.inSync || p.pending }

// sendable reports whether anything may be sent at all.
func (p *progress) sendable() bool { return p.connected && p.flow <= flowReplicate }

// unacked reports whether something was sent that the peer has not answered.
func (p *progress) unacked() bool { return p.probing || p.next > p.match+1 }

// untold reports whether the peer waits for nothing but news of the commit position.
func (p *progress) untold(commit rhumb.Seq) bool {
	return p.sendable() && !p.fetching && !p.unacked() && p.toldCommit < commit && p.commit < commit
}

// probe begins to look for the place where the logs part, at next.
func (p *progress) probe(next rhumb.Seq) {
	p.flow, p.next = flowProbe, next
	p.probing, p.waiting, p.tell = false, false, false
	p.inflight.reset()
}

// forget drops what the peer acknowledged: its stream broke, or it began a new life.
func (p *progress) forget() {
	p.acknowledged = max(p.acknowledged, p.match)
	p.match, p.commit, p.toldCommit, p.fetching = 0, 0, 0, false
	p.agreed = 0 // in a life that may be over
}

// acked takes an acknowledgement. One that does not reach the place that is being probed is late: it says what the peer
// holds, not where the logs part.
func (p *progress) acked(match rhumb.Seq) {
	p.match = max(p.match, match)
	switch {
	case p.flow == flowReplicate:
		p.next = max(p.next, p.match+1)
	case p.flow == flowProbe && match+1 >= p.next:
		p.flow, p.probing = flowReplicate, false
		p.next = p.match + 1
	default:
		p.match = min(p.match, p.next-1)
		return
	}
	p.waiting = false
	p.inflight.free(match)
}

// due runs the retransmission clock; it begins with the first tick that finds something unanswered.
func (p *progress) due(now, after time.Duration) bool {
	if !p.waiting {
		p.waiting, p.since = true, now
		return false
	}
	if now-p.since < after {
		return false
	}
	p.waiting = false
	return true
}

// window is what is sent and not acknowledged: the last position and the size of each Append, oldest first.
type window struct {
	sent  []sent
	head  int
	bytes int
}

type sent struct {
	last  rhumb.Seq
	bytes int
}

func (w *window) add(last rhumb.Seq, bytes int) {
	w.sent = append(w.sent, sent{last, bytes})
	w.bytes += bytes
}

func (w *window) free(match rhumb.Seq) {
	for w.head < len(w.sent) && w.sent[w.head].last <= match {
		w.bytes -= w.sent[w.head].bytes
		w.head++
	}
	switch {
	case w.head == len(w.sent):
		w.reset()
	case w.head >= 64 && 2*w.head >= len(w.sent):
		w.sent = w.sent[:copy(w.sent, w.sent[w.head:])]
		w.head = 0
	}
}

func (w *window) reset() { w.sent, w.head, w.bytes = w.sent[:0], 0, 0 }
