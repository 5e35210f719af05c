package replica

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// flow is the way in which a primary sends to a peer (tracker.StateType of etcd's raft).
type flow uint8

const (
	// flowProbe: the place where the logs part is unknown. One Append is in flight at a time.
	flowProbe flow = iota
	// flowReplicate: the logs agree up to match. Appends are pipelined within InflightBytesMax.
	flowReplicate
	// flowLost: the peer needs log that is trimmed. Nothing is sent until its stream is replaced.
	flowLost
	// flowQuarantined: the peer has reported that it acknowledges nothing any more.
	flowQuarantined
)

func (f flow) String() string {
	return [...]string{"probe", "replicate", "lost", "quarantined"}[f]
}

// link is the driver's view of a node, whether or not the node is a replica.
type link struct {
	connected, suspect bool
	// slow is set while the driver finds that the node acknowledges much later than others.
	slow bool
	// drains is set while metadata calls the node draining: its process is about to stop.
	drains bool
}

// progress is a primary's view of one peer.
//
// Invariant: match < next <= last + 1. match is a lower bound of the part of this epoch's log that
// the peer holds durably, as acknowledged on its present stream and in its present life.
type progress struct {
	link
	node        rhumb.NodeID
	flow        flow
	match, next rhumb.Seq
	// life is the peer's life that match and commit refer to; 0 before its first answer.
	life rhumb.BootSeq
	// acknowledged is the greatest match of earlier streams and lives. lost is the acknowledged
	// position if the peer turned out to hold less; otherwise 0.
	acknowledged, lost rhumb.Seq
	// commit is the peer's commit position as reported, sentCommit the one last sent to it. commitDue
	// requests an Append that carries nothing else.
	commit, sentCommit rhumb.Seq
	commitDue          bool
	// agreed is the closed timestamp that the peer has agreed to, as of the last Close.
	agreed rhumb.Timestamp
	// bestMatch is the greatest match of this epoch, stalled how long it has not grown while entries
	// wait, stuck whether that is too long. refuses is why the peer accepts no entries, while it is a
	// member.
	bestMatch rhumb.Seq
	stalled   stall
	stuck     bool
	refuses   Refusal
	// heldOff reports that the last tick found the peer held off.
	heldOff bool
	// inSync and pending report whether the peer is in the in-sync set and in the pending set.
	inSync, pending bool
	// copying is the position that a copy of the range, which the peer receives, will continue from, and
	// copyingUntil is when that is forgotten.
	copying      rhumb.Seq
	copyingUntil time.Duration
	// probing is set while a probe is in flight, fetching while storage reads for the peer.
	probing, fetching bool
	inflight          window
	// waiting and since are Tick's timer for retransmission.
	waiting bool
	since   time.Duration
}

// isRequired reports whether commits and leases need the peer (rules C and L).
func (p *progress) isRequired() bool { return p.inSync || p.pending }

// canSend reports whether anything may be sent to the peer.
func (p *progress) canSend() bool { return p.connected && p.flow <= flowReplicate }

// hasUnacked reports whether something was sent that the peer has not answered.
func (p *progress) hasUnacked() bool { return p.probing || p.next > p.match+1 }

// lacksCommit reports whether the peer waits for nothing but news of the commit position.
func (p *progress) lacksCommit(commit rhumb.Seq) bool {
	return p.canSend() && !p.fetching && !p.hasUnacked() && p.sentCommit < commit && p.commit < commit
}

// startProbe begins to search for the place where the logs part, at next.
func (p *progress) startProbe(next rhumb.Seq) {
	p.flow, p.next = flowProbe, next
	p.probing, p.waiting, p.commitDue = false, false, false
	// Messages in flight may be lost; the probe starts without a debt.
	p.inflight.reset()
}

// forgetAcks drops the peer's acknowledgements, because its stream broke or it began a new life.
func (p *progress) forgetAcks() {
	// Remembered, so that a peer that later holds less is reported as having lost data.
	p.acknowledged = max(p.acknowledged, p.match)
	p.match, p.commit, p.sentCommit, p.fetching = 0, 0, 0, false
	p.agreed = 0 // agreements belong to a life
}

// recordAck processes an acknowledgement.
func (p *progress) recordAck(match rhumb.Seq) {
	p.match = max(p.match, match)
	switch {
	case p.flow == flowReplicate:
		p.next = max(p.next, p.match+1)
	case p.flow == flowProbe && match+1 >= p.next:
		p.flow, p.probing = flowReplicate, false
		p.next = p.match + 1
	default:
		// A late acknowledgement, from before the probe. It proves that the peer has the entry, not where
		// the logs part, so it must not end the probe; match stays below next.
		p.match = min(p.match, p.next-1)
		return
	}
	p.waiting = false
	p.inflight.free(match)
}

// retransmitDue reports whether something has been unanswered for the duration after. The timer
// starts with the first tick that finds something unanswered.
func (p *progress) retransmitDue(now, after time.Duration) bool {
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

// window lists the Appends in flight, oldest first: the last position and the size of each Append.
// It bounds the memory that a slow peer may hold. Elements before head are free; they are reclaimed
// in bulk.
type window struct {
	sent  []sent
	head  int
	bytes int
}

// sent is one Append in flight.
type sent struct {
	last  rhumb.Seq
	bytes int
}

// add records an Append.
func (w *window) add(last rhumb.Seq, bytes int) {
	w.sent = append(w.sent, sent{last, bytes})
	w.bytes += bytes
}

// free removes the Appends up to match.
func (w *window) free(match rhumb.Seq) {
	for w.head < len(w.sent) && w.sent[w.head].last <= match {
		w.bytes -= w.sent[w.head].bytes
		w.head++
	}
	switch {
	case w.head == len(w.sent):
		w.reset()
	// Moving the others only when half of the slice is free keeps the cost per Append constant.
	case w.head >= 64 && 2*w.head >= len(w.sent):
		w.sent = w.sent[:copy(w.sent, w.sent[w.head:])]
		w.head = 0
	}
}

// reset empties the window and keeps its memory.
func (w *window) reset() { w.sent, w.head, w.bytes = w.sent[:0], 0, 0 }
