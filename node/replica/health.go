package replica

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Refusal is why a replica takes no entries although its log fits. Values cross the wire: append only.
type Refusal uint8

// The refusals.
const (
	// RefusedNot: nothing was refused.
	RefusedNot Refusal = 0
	// RefusedClock: the entries carry timestamps that are too far ahead of the receiver's clock (ruling 19).
	RefusedClock Refusal = 1
	// RefusedDisk: the receiver's disk is full.
	RefusedDisk Refusal = 2
)

// String returns the stable name of the refusal.
func (f Refusal) String() string {
	switch f {
	case RefusedNot:
		return ""
	case RefusedClock:
		return "clock_ahead"
	case RefusedDisk:
		return "disk_full"
	}
	return "refused"
}

// patienceStep bounds the time that one Tick counts against a peer: a primary that was itself paused must not hold the
// pause against those that waited for it.
const patienceStep = 100 * time.Millisecond

// stall measures how long something has made no progress, by ticks.
type stall struct{ lasted time.Duration }

// add counts step, or starts again when there was progress.
func (s *stall) add(step time.Duration, progress bool) {
	if progress {
		s.lasted = 0
		return
	}
	s.lasted += step
}

// flap remembers how often a node left the in-sync set of late. It outlives epochs.
type flap struct {
	// pause is how long the node was held off last, until when it is held off now, joined when it last became a member.
	pause         time.Duration
	until, joined time.Duration
	// at is when the node left last, life the life in which it did, 0 if that is not known or does not matter any more, and
	// before the pause before that.
	at, before time.Duration
	life       rhumb.BootSeq
	// restarts counts how often it left because its process ended.
	restarts int
}

// restartsFree is how many restarts of a node its hold-off does not grow for. More of them in so short a time make a process
// that crashes again and again, and each of its lives may hold up commits.
const restartsFree = 3

// doublingsMax bounds how often a hold-off is doubled for restarts.
const doublingsMax = 10

// held reports whether a node may not join yet.
func (r *Replica) held(n rhumb.NodeID) bool {
	f, ok := r.flaps[n]
	return ok && r.now < f.until
}

// left notes that a node left the in-sync set, or failed to join it: it is held off for twice as long as the last time,
// unless it was a member for HoldOffMax in between.
func (r *Replica) left(n rhumb.NodeID) {
	f := r.flaps[n]
	if f.joined > 0 && r.now-f.joined >= r.cfg.HoldOffMax {
		f.pause, f.restarts = 0, 0
	}
	f.at, f.before, f.life = r.now, f.pause, 0
	if p := r.peer(n); p != nil {
		f.life = p.life
	}
	f.pause = min(max(r.cfg.HoldOffMin, 2*f.pause), r.cfg.HoldOffMax)
	f.until, f.joined = r.now+f.pause, 0
	r.setFlap(n, f)
}

// cameBack notes that a node speaks in a life. A node that left in an earlier one left because it stopped, which says nothing
// about how it gets on now: the hold-off is the least one, and grows only with restarts.
func (r *Replica) cameBack(n rhumb.NodeID, life rhumb.BootSeq) {
	f, ok := r.flaps[n]
	if !ok || f.life == 0 || life <= f.life {
		return
	}
	f.restarts++
	f.pause, f.life = f.before, 0
	doublings := min(max(0, f.restarts-restartsFree), doublingsMax)
	f.until = f.at + min(r.cfg.HoldOffMin<<doublings, r.cfg.HoldOffMax)
	r.setFlap(n, f)
}

// stillUnfit holds a learner off for as long again as it is held off now.
func (r *Replica) stillUnfit(n rhumb.NodeID) {
	f := r.flaps[n]
	f.pause = max(f.pause, r.cfg.HoldOffMin)
	f.until = r.now + f.pause
	r.setFlap(n, f)
}

func (r *Replica) setFlap(n rhumb.NodeID, f flap) {
	if r.flaps == nil {
		r.flaps = make(map[rhumb.NodeID]flap)
	}
	r.flaps[n] = f
}

// noteMembers compares the in-sync set of a new record with the one before it in the same epoch, and forgets nodes that hold
// no replica any more.
func (r *Replica) noteMembers(before, after, replicas []rhumb.NodeID) {
	for _, n := range before {
		if !slices.Contains(after, n) {
			r.left(n)
		}
	}
	for n, f := range r.flaps {
		switch in := slices.Contains(after, n); {
		case !slices.Contains(replicas, n):
			delete(r.flaps, n)
		case in && f.joined == 0:
			f.joined = r.now
			r.flaps[n] = f
		}
	}
}

// fit reports whether the primary may expect the peer to acknowledge what it is sent.
func (p *progress) fit() bool {
	return !p.suspect && !p.stuck && p.refuses == RefusedNot && p.flow < flowLost
}

// fitMembers counts the members of the in-sync set that can be expected to hold the next entry, this node included.
func (r *Replica) fitMembers() int {
	n := 1
	for _, p := range r.peers {
		if p.inSync && p.fit() {
			n++
		}
	}
	return n
}

// tickProgress measures how long each member has had entries before it and acknowledged none of them (ruling 18).
// Heartbeats may pass meanwhile: only what is acknowledged counts.
func (r *Replica) tickProgress(step time.Duration) {
	last := r.log.last().Seq
	for _, p := range r.peers {
		done := p.match >= last
		p.stalled.add(step, !p.counts() || done || p.match > p.best)
		p.best = max(p.best, p.match)
		stuck := p.stalled.lasted >= r.cfg.ProgressTimeout
		r.dirty = r.dirty || stuck != p.stuck
		p.stuck = stuck
	}
	r.slowDisk.add(step, r.durable >= last || r.durable > r.durableSeen)
	r.durableSeen = max(r.durableSeen, r.durable)
}

// SetUnfit says whether this node must not be primary: its clock is wrong, or its disk is full. While it is, the replica
// asks for another primary.
func (r *Replica) SetUnfit(unfit bool) {
	r.dirty = r.dirty || r.unfit != unfit
	r.unfit = unfit
}

// yield is a primary's wish to be relieved.
type yield struct {
	blocked stall     // since the last commit, while entries wait
	commit  rhumb.Seq // the greatest seen
	// pause is the time between the last two requests, since the time since the last one.
	pause, since time.Duration
}

// tickYield asks for another primary while this one may not serve or cannot commit, with growing pauses.
func (r *Replica) tickYield(step time.Duration) {
	y := &r.yield
	y.since += step
	if r.commit > y.commit {
		*y = yield{commit: r.commit}
	}
	y.blocked.add(step, r.role != primary || r.commit == r.log.last().Seq)
	if !r.wantsRelief() {
		return
	}
	if y.pause > 0 && y.since < y.pause {
		return
	}
	y.pause, y.since = min(max(r.cfg.ProgressTimeout, 2*y.pause), r.cfg.HoldOffMax), 0
	r.out.Meta = append(r.out.Meta, MetaProposal{Kind: Yield, Range: r.cfg.Range, Epoch: r.promised, Version: r.desc.Version})
	r.dirty = true
}

// wantsRelief reports whether another member should be primary in this one's place (rulings 18 and 19): the driver says so,
// half of the set refuse its timestamps, or for ProgressTimeout nothing was committed and no smaller set could do it.
func (r *Replica) wantsRelief() bool {
	switch {
	case r.role != primary && r.role != activating, r.desc == nil, len(r.desc.InSync) < 2:
		return false
	case r.unfit:
		return true
	case r.role != primary:
		return false
	case r.blamed():
		return true
	case r.yield.blocked.lasted < r.cfg.ProgressTimeout:
		return false
	}
	return r.fitMembers() < r.cfg.MinInSync || r.slowDisk.lasted >= r.cfg.ProgressTimeout
}

// blamed reports whether so many members refuse this primary's timestamps that its own clock must be the wrong one.
func (r *Replica) blamed() bool {
	refusing := 0
	for _, p := range r.peers {
		if p.inSync && p.refuses == RefusedClock {
			refusing++
		}
	}
	return refusing > 0 && 2*refusing >= len(r.inSync)
}

// refused handles a Nack by which the peer refuses entries for now.
func (r *Replica) refused(p *progress, why Refusal) {
	if !p.counts() {
		r.stillUnfit(p.node)
		return
	}
	p.refuses = why
	r.dirty = true
}

// retransmit returns how long an unanswered Append to a peer waits before it is sent again: longer to one that refuses.
func (r *Replica) retransmit(p *progress) time.Duration {
	if p.refuses != RefusedNot || r.held(p.node) {
		return r.cfg.ProgressTimeout
	}
	return r.cfg.Retransmit
}

// clockSlack is how far an entry may be ahead of the log that it continues, whatever the clock says. A primary whose
// timestamps run ahead of all clocks counts on by ones, over all its ranges; 100 ms are 6.5 million of them.
const clockSlack = 100 * time.Millisecond

// SetClockLimit sets the greatest timestamp that the driver's clock accepts. Step refuses entries beyond it, unless they are
// committed already, or continue a log that is as far ahead itself (ruling 19).
func (r *Replica) SetClockLimit(limit rhumb.Timestamp) { r.clockLimit = limit }

// refuseAhead cuts the entries beyond the clock limit off an Append and sends a Nack. It reports whether no entry is left.
func (r *Replica) refuseAhead(m *Message) bool {
	if r.clockLimit == 0 || r.role == quarantined || m.Epoch < r.promised {
		return false
	}
	at := r.log.last().HLC
	for i, e := range m.Entries {
		last := e.LastHLC()
		if e.Seq > m.Commit && !r.holds(e) && last > max(r.clockLimit, at.Add(clockSlack)) {
			r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Refused: RefusedClock})
			m.Entries = m.Entries[:i:i]
			return i == 0
		}
		at = max(at, last)
	}
	return false
}

// Refuse answers an Append that the driver does not pass on to Step, because the disk is full for example.
func (r *Replica) Refuse(m *Message, why Refusal) {
	if m.Kind == Append && r.role != quarantined {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Refused: why})
	}
}
