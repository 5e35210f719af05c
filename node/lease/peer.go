package lease

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// peer is this node's side of one pair. Times are on this node's clock unless a field says
// otherwise.
//
// Invariants:
//   - heldUntil is 0 or within a grant of the peer's present life.
//   - obligedUntil never decreases within a life of the peer. It outlasts the peer's belief
//     (I9).
//   - pending is sorted by seq and holds at most one live exclusion per range, the one in
//     pendingSeq.
type peer struct {
	id rhumb.NodeID
	// watched is true if the last SetPeers named the peer.
	watched bool
	timing  Timing
	// life is the newest life heard from. Frames of a life with a boot below bootMin, which
	// metadata sets, are ignored.
	life     rhumb.NodeIdentity
	bootMin  rhumb.BootSeq
	nextBeat time.Duration

	// lastContact is when this node sent the latest frame that the peer has echoed. peerSent is the
	// greatest Sent of the peer's frames, on the peer's clock, and receivedAt is when that frame
	// arrived.
	lastContact          time.Duration
	receivedAt, peerSent time.Duration
	// grace is the time until which the peer is not suspected although its present life has given
	// no proof yet; 0 once it has.
	grace time.Duration
	rtt   time.Duration
	// refusedAt is when the host of the peer last refused a connection; 0 if it has not in this life.
	refusedAt time.Duration
	// unhealthy is set while the peer says that its data path does not work.
	unhealthy bool
	// suspected is the last verdict of Pairs.Suspects.
	suspected bool
	// suspects are the nodes that the peer last reported as suspected. offset is how far its wall
	// clock was ahead of this node's at offsetAt.
	suspects []rhumb.NodeID
	offset   time.Duration
	offsetAt time.Duration
	// speed is this node's opinion of the peer, and opinion the peer's of this node.
	speed, opinion Speed

	// As holder: heldUntil is how long this node may believe the peer's grants, and applied is the
	// last of the peer's exclusions that this node has applied.
	heldUntil time.Duration
	applied   uint64

	// As grantor: obligedUntil is how long the peer may believe the grants that it was given.
	// oldStoreUntil is the same for a life on a store that was replaced, for which nobody can
	// confirm.
	obligedUntil, oldStoreUntil time.Duration
	// pending holds the unconfirmed exclusions in ascending order of seq. Superseded ones stay,
	// with Epoch 0, until they are confirmed.
	pending      []pendingExclusion
	pendingSeq   map[rhumb.RangeID]uint64
	exclusionSeq uint64

	// asked is the greatest timestamp that the peer asked this node to close, and agreed is the
	// greatest of this node's that the peer agreed to. closedOut and closedIn hold the claims about
	// ranges that were sent and received.
	asked, agreed rhumb.Timestamp
	closedOut     closed.Sender
	closedIn      closed.Receiver
}

// pendingExclusion is an exclusion that the peer has not confirmed.
type pendingExclusion struct {
	Exclusion
	seq uint64
	// until is when the grants that were given without this exclusion are over.
	until time.Duration
}

// addExclusion lists x in all further grants. until is when the grants given before are over.
func (q *peer) addExclusion(x Exclusion, until time.Duration) {
	if q.pendingSeq == nil {
		q.pendingSeq = make(map[rhumb.RangeID]uint64)
	}
	// An exclusion of a later epoch covers the earlier one. The new one gets a new number, since
	// the peer may already have applied the old number.
	if old := q.findExclusion(x.Range); old != nil {
		old.Epoch = 0
	}
	q.exclusionSeq++
	q.pending = append(q.pending, pendingExclusion{x, q.exclusionSeq, until})
	q.pendingSeq[x.Range] = q.exclusionSeq
}

// findExclusion returns the unconfirmed exclusion of a range, or nil.
func (q *peer) findExclusion(r rhumb.RangeID) *pendingExclusion {
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

// confirmExclusions forgets the exclusions up to seq.
func (q *peer) confirmExclusions(seq uint64) {
	n := 0
	for n < len(q.pending) && q.pending[n].seq <= seq {
		// A superseded exclusion must not remove the newer one of its range, which is still
		// unconfirmed.
		if x := &q.pending[n]; q.pendingSeq[x.Range] == x.seq {
			delete(q.pendingSeq, x.Range)
		}
		n++
	}
	q.pending = slices.Delete(q.pending, 0, n)
}

// listExclusions returns the first unconfirmed exclusions, the number of the last one, and whether
// the list is complete.
func (q *peer) listExclusions() (xs []Exclusion, seq uint64, all bool) {
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
	// Everything up to the newest number is either listed or was confirmed before.
	return xs, q.exclusionSeq, true
}

// beginLife records a new life of the peer. Grants held by the old life on the same store are void: only
// one process uses a store at a time, and a new life acts in no epoch of the old one. For another
// store this is not certain.
//
// The exclusions stay, to be confirmed by the new life: the first life heard after this node
// started may be the primary of an epoch below them. No grant without them was given to that life
// yet.
func (q *peer) beginLife(life rhumb.NodeIdentity) {
	// The process on the old store may still run and believe its grants, but it can no longer
	// confirm.
	if q.life.Store != life.Store {
		q.oldStoreUntil = max(q.oldStoreUntil, q.obligedUntil)
	}
	q.life = life
	q.obligedUntil, q.heldUntil, q.applied, q.refusedAt = 0, 0, 0, 0
	q.receivedAt, q.peerSent, q.suspects, q.offsetAt, q.unhealthy = 0, 0, nil, 0, false
	q.speed, q.opinion = SpeedUnknown, SpeedUnknown
	q.asked, q.agreed = 0, 0
	// Frame numbers and the claims that frames build on belong to one life of each end.
	q.closedOut.Reset()
	q.closedIn.Reset()
	// No grant of this node has reached the new life yet, so there is nothing to wait for.
	for i := range q.pending {
		q.pending[i].until = 0
	}
}

// recordEcho records that the peer has received the frame that this node sent at the given time.
func (q *peer) recordEcho(now, sent, held time.Duration, reply bool) {
	// The values are read from the network. A frame that claims an echo from the future would keep a
	// dead peer alive and make the round trip negative.
	if sent <= 0 || held < 0 || sent+held > now {
		return
	}
	q.lastContact, q.grace = max(q.lastContact, sent), 0
	if !reply {
		// A heartbeat leaves when the peer's ticker runs, so its held time is as coarse as the
		// ticker. Only answers, which leave at once, are samples.
		return
	}
	sample := now - sent - held
	// The first sample counts in full instead of one eighth.
	if q.rtt == 0 {
		q.rtt = sample
	}
	q.rtt += (sample - q.rtt) / rttWeight
}

// rttWeight is the divisor of a new sample in the smoothed round trip (RFC 6298: one eighth).
const rttWeight = 8

// obligation returns how long a grant binds its grantor, from the receipt of the heartbeat: Lease(1
// + 2 rho) + Epsilon.
func obligation(lease time.Duration, t Timing) time.Duration {
	return lease + lease*time.Duration(2*t.RhoPermille)/1000 + t.Epsilon
}

// late returns by how much the silence of a peer exceeds what makes it suspected; it is negative before that.
func (q *peer) late(now time.Duration) time.Duration {
	// A frame that the peer echoed was sent after the refusal, so somebody listens again.
	if q.refusedAt > q.lastContact {
		return q.silence(now) - q.timing.refusedSuspect()
	}
	if q.unhealthy {
		return q.silence(now) - q.timing.unhealthySuspect()
	}
	return q.silence(now) - q.timing.Suspect
}

// silence returns how long a watched peer has given no proof of two-way contact. It returns 0
// during the peer's grace.
func (q *peer) silence(now time.Duration) time.Duration {
	if !q.watched || now < q.grace {
		return 0
	}
	return now - q.lastContact
}
