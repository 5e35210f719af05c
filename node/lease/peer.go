package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// peer is this node's side of one pair. Times are on this node's clock unless another is named.
type peer struct {
	id      rhumb.NodeID
	watched bool // in the last SetPeers
	timing  Timing
	// life is the newest life heard of; frames of a life with a boot below bootMin (metadata) are not looked at.
	life     rhumb.NodeIdentity
	bootMin  rhumb.BootSeq
	nextBeat time.Duration

	// Evidence. proof is when the latest of our frames that the peer has echoed was sent; heard is when the frame with
	// the greatest Sent came in, and sent is that Sent, on the peer's clock.
	proof       time.Duration
	heard, sent time.Duration
	// grace is the time until which the peer is not suspected although it has given no proof of its present life yet; 0
	// once it has.
	grace time.Duration
	rtt   time.Duration
	// suspected is what Pairs.Suspects said last.
	suspected bool
	// suspects are those that the peer said last that it suspects; offset is how far its wall clock was ahead of this node's
	// at offsetAt.
	suspects []rhumb.NodeID
	offset   time.Duration
	offsetAt time.Duration

	// As holder: what this node may believe, and the last of the peer's exclusions that it has applied.
	heldUntil time.Duration
	applied   uint64

	// As grantor: until when the peer may believe the grants it was given. floor is the same for a life on a store that
	// was replaced: nobody can confirm for it.
	obligedUntil, floor time.Duration
	pending             []pendingExclusion // ascending by seq; superseded ones have Epoch 0
	pendingSeq          map[rhumb.RangeID]uint64
	exclusionSeq        uint64

	// Closed timestamps: asked is the greatest that the peer asked for, agreed the greatest of this node's that the peer
	// has agreed to; out and in are what is told and heard of ranges.
	asked, agreed rhumb.Timestamp
	out           closed.Sender
	in            closed.Receiver
}

// pendingExclusion is one that the peer has not confirmed.
type pendingExclusion struct {
	Exclusion
	seq uint64
	// until is when the grants that were given without this exclusion are over.
	until time.Duration
}

// exclude lists x in all further grants; until is when those given before it are over.
func (q *peer) exclude(x Exclusion, until time.Duration) {
	if q.pendingSeq == nil {
		q.pendingSeq = make(map[rhumb.RangeID]uint64)
	}
	if old := q.find(x.Range); old != nil {
		old.Epoch = 0
	}
	q.exclusionSeq++
	q.pending = append(q.pending, pendingExclusion{x, q.exclusionSeq, until})
	q.pendingSeq[x.Range] = q.exclusionSeq
}

// find gives the exclusion of a range that is not confirmed, or nil.
func (q *peer) find(r rhumb.RangeID) *pendingExclusion {
	seq, ok := q.pendingSeq[r]
	if !ok {
		return nil
	}
	i, _ := slices.BinarySearchFunc(q.pending, seq, func(x pendingExclusion, seq uint64) int {
		switch {
		case x.seq < seq:
			return -1
		case x.seq > seq:
			return 1
		}
		return 0
	})
	return &q.pending[i]
}

// confirm forgets the exclusions up to seq.
func (q *peer) confirm(seq uint64) {
	n := 0
	for n < len(q.pending) && q.pending[n].seq <= seq {
		if x := &q.pending[n]; q.pendingSeq[x.Range] == x.seq {
			delete(q.pendingSeq, x.Range)
		}
		n++
	}
	q.pending = slices.Delete(q.pending, 0, n)
}

// list gives the first exclusions that are not confirmed, the seq of the last of them, and whether these are all.
func (q *peer) list() (xs []Exclusion, seq uint64, all bool) {
	for i := range q.pending {
		x := &q.pending[i]
		if x.Epoch == 0 {
			continue
		}
		if len(xs) == ExclusionsMax {
			return xs, seq, false
		}
		xs, seq = append(xs, x.Exclusion), x.seq
	}
	return xs, q.exclusionSeq, true
}

// reborn takes note of a new life. What the old life held on the same store is void: only one process has a store at a
// time, and a new life acts in no epoch of the old one. Of another store that is not certain.
//
// The exclusions stay, to be confirmed by the new life: the life that is heard first after this node has started may
// well be the one that is primary of an epoch below them. Nothing was granted to it without them yet.
func (q *peer) reborn(life rhumb.NodeIdentity) {
	if q.life.Store != life.Store {
		q.floor = max(q.floor, q.obligedUntil)
	}
	q.life = life
	q.obligedUntil, q.heldUntil, q.applied = 0, 0, 0
	q.heard, q.sent, q.suspects, q.offsetAt = 0, 0, nil, 0
	q.asked, q.agreed = 0, 0
	q.out.Reset()
	q.in.Reset()
	for i := range q.pending {
		q.pending[i].until = 0
	}
}

// echoed takes note that the peer has had what was sent at the given time.
func (q *peer) echoed(now, sent, held time.Duration, reply bool) {
	if sent <= 0 || held < 0 || sent+held > now {
		return
	}
	q.proof, q.grace = max(q.proof, sent), 0
	if !reply {
		return // it tells the round trip with the coarse clock of the peer's loop
	}
	sample := now - sent - held
	if q.rtt == 0 {
		q.rtt = sample
	}
	q.rtt += (sample - q.rtt) / rttWeight
}

// rttWeight is the part of a new sample in the smoothed round trip (RFC 6298: one eighth).
const rttWeight = 8

// obligation is how long a grant binds its grantor from the receipt of the heartbeat.
func obligation(lease time.Duration, t Timing) time.Duration {
	return lease + lease*time.Duration(2*t.RhoPermille)/1000 + t.Epsilon
}

// silence returns for how long a peer that is watched has given no proof of two-way contact, 0 while it need not.
func (q *peer) silence(now time.Duration) time.Duration {
	if !q.watched || now < q.grace {
		return 0
	}
	return now - q.proof
}
