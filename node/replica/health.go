package replica

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Refusal is the reason why a replica accepts no entries although its log fits. Values cross the
// wire: append only.
type Refusal uint8

// The refusals.
const (
	// RefusedNot: nothing was refused.
	RefusedNot Refusal = 0
	// RefusedClock: the timestamps of the entries are too far ahead of the receiver's clock
	// (docs/replication.md#rule-clock-refused).
	RefusedClock Refusal = 1
	// RefusedDisk: the receiver's disk is full.
	RefusedDisk Refusal = 2
	// RefusedVersion: the receiver's build cannot read the entries (docs/replication.md#rule-unknown-entry).
	RefusedVersion Refusal = 3
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
	case RefusedVersion:
		return "older_build"
	}
	return "refused"
}

// patienceStep bounds the time that one Tick counts against a peer. A primary that was itself
// paused sees a long step, in which its peers were not to blame.
const patienceStep = 100 * time.Millisecond

// stall measures in ticks how long something has made no progress.
type stall struct{ lasted time.Duration }

// add counts step, or starts again if there was progress.
func (s *stall) add(step time.Duration, progress bool) {
	if progress {
		s.lasted = 0
		return
	}
	s.lasted += step
}

// flap records how often a node has left the in-sync set recently. It outlives epochs, so that an
// election does not forgive a node that comes and goes.
type flap struct {
	// pause is the length of the last hold-off, until its end; joined is when the node last became a
	// member, 0 while it is none.
	pause         time.Duration
	until, joined time.Duration
	// leftAt is when the node last left, pauseBefore the hold-off before pause. leftLife is the life
	// in which it left, 0 if it is unknown or does not matter any more.
	leftAt, pauseBefore time.Duration
	leftLife            rhumb.BootSeq
	// restarts counts the departures that happened because the process of the node ended.
	restarts int
}

// restartsFree is the number of restarts of a node for which its hold-off does not grow. A rolling
// upgrade stays below it. More restarts in a short time mean a process that crashes again and
// again, and each of its lives may hold up commits.
const restartsFree = 3

// doublingsMax bounds how often a hold-off is doubled for restarts, so that the shift cannot
// overflow.
const doublingsMax = 10

// isHeldOff reports whether a node may not join yet (docs/replication.md#rule-hold-off).
func (r *Replica) isHeldOff(n rhumb.NodeID) bool {
	f, ok := r.flaps[n]
	if !ok || r.now >= f.until {
		return false
	}
	// A hold-off protects commits from a member that comes and goes. While nothing can be committed, there
	// is nothing to protect, and the node may be the one that the range needs (seed 1147).
	return !r.isBlocked() || r.now < f.leftAt+r.cfg.HoldOffMin
}

// isBlocked reports whether nothing was committed for ProgressTimeout while entries wait, and no
// smaller set could commit.
func (r *Replica) isBlocked() bool {
	return r.role == primary && r.yield.blocked.lasted >= r.cfg.ProgressTimeout && !r.hasFitSet()
}

// noteDeparture records that a node left the in-sync set, or failed to join it. It is held off
// twice as long as the last time, unless it was a member for HoldOffMax in between.
func (r *Replica) noteDeparture(n rhumb.NodeID) {
	f := r.flaps[n]
	if f.joined > 0 && r.now-f.joined >= r.cfg.HoldOffMax {
		f.pause, f.restarts = 0, 0
	}
	// Kept so that noteReturn can undo the doubling if the node turns out to have restarted.
	f.leftAt, f.pauseBefore, f.leftLife = r.now, f.pause, 0
	if p := r.peer(n); p != nil {
		f.leftLife = p.life
	}
	f.pause = min(max(r.cfg.HoldOffMin, 2*f.pause), r.cfg.HoldOffMax)
	f.until, f.joined = r.now+f.pause, 0
	r.setFlap(n, f)
}

// noteReturn records that a node speaks in a life. If it left in an earlier life, it left because
// its process stopped, which says nothing about its health now. The hold-off is then the shortest,
// and grows only with repeated restarts.
func (r *Replica) noteReturn(n rhumb.NodeID, life rhumb.BootSeq) {
	f, ok := r.flaps[n]
	if !ok || f.leftLife == 0 || life <= f.leftLife {
		return
	}
	f.restarts++
	f.pause, f.leftLife = f.pauseBefore, 0
	doublings := min(max(0, f.restarts-restartsFree), doublingsMax)
	// Counted from the departure: the time in which the node was down is part of the hold-off.
	f.until = f.leftAt + min(r.cfg.HoldOffMin<<doublings, r.cfg.HoldOffMax)
	r.setFlap(n, f)
}

// extendHoldOff begins the present hold-off of a learner again, because the learner refuses
// entries.
func (r *Replica) extendHoldOff(n rhumb.NodeID) {
	f := r.flaps[n]
	f.pause = max(f.pause, r.cfg.HoldOffMin)
	f.until = r.now + f.pause
	r.setFlap(n, f)
}

// setFlap stores f. Most ranges never need the map.
func (r *Replica) setFlap(n rhumb.NodeID, f flap) {
	if r.flaps == nil {
		r.flaps = make(map[rhumb.NodeID]flap)
	}
	r.flaps[n] = f
}

// noteMembers compares the in-sync set of a new record with the previous one of the same epoch. It
// forgets nodes that hold no replica any more, so that the map stays as small as the replica set.
func (r *Replica) noteMembers(before, after, replicas []rhumb.NodeID) {
	for _, n := range before {
		if !slices.Contains(after, n) {
			r.noteDeparture(n)
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

// isFit reports whether the primary may expect the peer to acknowledge entries that are sent to it.
func (p *progress) isFit() bool {
	return !p.suspect && !p.stuck && p.refuses == RefusedNot && p.flow < flowLost
}

// fitMembers returns the number of in-sync members that can be expected to acknowledge the next
// entry, this node included.
func (r *Replica) fitMembers() int {
	n := 1
	for _, p := range r.peers {
		if p.inSync && p.isFit() {
			n++
		}
	}
	return n
}

// hasFitSet reports whether the fit members could be an in-sync set by themselves.
func (r *Replica) hasFitSet() bool {
	if r.fitMembers() < r.cfg.MinInSync || r.cfg.Spans == nil {
		return r.fitMembers() >= r.cfg.MinInSync
	}
	return r.hasFitSetWithout(rhumb.NoNode)
}

// hasFitSetWithout reports whether the fit members other than n could be an in-sync set by themselves.
func (r *Replica) hasFitSetWithout(n rhumb.NodeID) bool {
	fit := []rhumb.NodeID{r.cfg.Self}
	for _, p := range r.peers {
		if p.inSync && p.isFit() && p.node != n {
			fit = append(fit, p.node)
		}
	}
	return len(fit) >= r.cfg.MinInSync && (r.cfg.Spans == nil || r.cfg.Spans(fit))
}

// slowMember returns a member that should leave because it is slow (docs/replication.md#rule-slow), or nil. Only entries that
// wait for it make it leave: the record of a range that nobody writes does not change. Those who stay may be slow too, so
// the set shrinks by one at a time, and stays if that is all that is left.
func (r *Replica) slowMember() *progress {
	last := r.log.last().Seq
	for _, p := range r.peers {
		if p.inSync && p.slow && p.match < last && r.hasFitSetWithout(p.node) {
			return p
		}
	}
	return nil
}

// tickProgress measures how long each member has had unacknowledged entries without acknowledging
// any (docs/replication.md#rule-progress-shrink). Only acknowledgements count: heartbeats may pass
// while the data path is broken.
func (r *Replica) tickProgress(step time.Duration) {
	last := r.log.last().Seq
	for _, p := range r.peers {
		// The clock of a member runs only while entries wait for it. bestMatch and not match: after a
		// reconnection match starts at 0 and would grow without any progress.
		done := p.match >= last
		p.stalled.add(step, !p.isRequired() || done || p.match > p.bestMatch)
		p.bestMatch = max(p.bestMatch, p.match)
		stuck := p.stalled.lasted >= r.cfg.ProgressTimeout
		r.dirty = r.dirty || stuck != p.stuck
		p.stuck = stuck
	}
	// The same for this node's own disk. Removing members would not help if it is the slow one.
	r.slowDisk.add(step, r.durable >= last || r.durable > r.durableSeen)
	r.durableSeen = max(r.durableSeen, r.durable)
}

// SetUnfit sets whether this node must not be primary because its clock is wrong or its disk is
// full. While it must not, the replica asks for another primary.
func (r *Replica) SetUnfit(unfit bool) {
	r.dirty = r.dirty || r.unfit != unfit
	r.unfit = unfit
}

// yield tracks the requests of a primary to be relieved.
type yield struct {
	blocked stall     // since the last commit, while entries wait
	commit  rhumb.Seq // the greatest seen
	// pause is the time between the last two requests, since the time since the last one.
	pause, since time.Duration
}

// tickYield asks for another primary while this one must not serve or cannot commit. The pauses
// grow: each request is a metadata command, and possibly nobody can take over.
func (r *Replica) tickYield(step time.Duration) {
	y := &r.yield
	y.since += step
	// A commit proves that the set works, so everything starts again, the pauses included.
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

// wantsRelief reports whether another member should be primary instead
// (docs/replication.md#rule-progress-give-up): the driver has called this node unfit, half of the
// set refuse its timestamps, or nothing was committed for ProgressTimeout and no smaller set could
// commit.
func (r *Replica) wantsRelief() bool {
	switch {
	// With fewer than two members there is nobody to take over.
	case r.role != primary && r.role != activating, r.desc == nil, len(r.desc.InSync) < 2:
		return false
	case r.unfit:
		return true
	case r.role != primary:
		return false
	case r.isClockBlamed():
		return true
	case r.yield.blocked.lasted < r.cfg.ProgressTimeout:
		return false
	}
	// Removing a member resolves the stall without an election if enough fit members remain, unless the
	// slow disk is this node's own.
	return !r.hasFitSet() || r.slowDisk.lasted >= r.cfg.ProgressTimeout
}

// isClockBlamed reports whether so many members refuse this primary's timestamps that its own clock
// must be the wrong one. Half suffices: with two nodes it is unknown whose clock is wrong, and the
// primary is the one that can be relieved without losing a copy.
func (r *Replica) isClockBlamed() bool {
	refusing := 0
	for _, p := range r.peers {
		if p.inSync && p.refuses == RefusedClock {
			refusing++
		}
	}
	return refusing > 0 && 2*refusing >= len(r.inSync)
}

// noteRefusal handles a Nack by which the peer refuses entries for now. A member that refuses
// should leave the set, see isFit; a learner stays out for longer.
func (r *Replica) noteRefusal(p *progress, why Refusal) {
	if !p.isRequired() {
		r.extendHoldOff(p.node)
		return
	}
	p.refuses = why
	r.dirty = true
}

// retransmitDelay returns how long an unanswered Append to a peer waits before it is sent again. A
// peer that refuses gets it less often, since each repetition carries entries that it drops.
func (r *Replica) retransmitDelay(p *progress) time.Duration {
	if p.refuses != RefusedNot || r.isHeldOff(p.node) {
		return r.cfg.ProgressTimeout
	}
	return r.cfg.Retransmit
}

// clockSlack is how far an entry may be ahead of the log that it continues, whatever the clock
// says. A primary whose timestamps are ahead of all clocks counts on by ones, over all its ranges;
// 100 ms are 6.5 million of them.
const clockSlack = 100 * time.Millisecond

// SetClockLimit sets the greatest timestamp that the driver's clock accepts. Step refuses entries
// beyond it, unless they are committed already or continue a log that is as far ahead
// (docs/replication.md#rule-clock-refused).
func (r *Replica) SetClockLimit(limit rhumb.Timestamp) { r.clockLimit = limit }

// refuseAhead cuts the entries beyond the clock limit off an Append and sends a Nack. It reports
// whether no entry is left.
func (r *Replica) refuseAhead(m *Message) bool {
	// A deposed primary gets the Nack of followEpoch instead, which carries the newer epoch.
	if r.clockLimit == 0 || r.role == quarantined || m.Epoch < r.promised {
		return false
	}
	// Entries that do not continue this log are not appended whatever their timestamps are. The primary needs the hint of stepAppend
	// then: the entries before these may be committed, and without them nothing is in sync (seed 622).
	if _, apart := r.findDivergence(m.Prev); apart {
		return false
	}
	// The log's own timestamps count as accepted: a range whose log got ahead of all clocks must stay
	// writable. An entry that is committed elsewhere is always accepted, since refusing it would only
	// keep this copy from becoming whole.
	at := r.log.last().HLC
	for i, e := range m.Entries {
		last := e.LastHLC()
		if e.Seq > m.Commit && !r.holdsEntry(e) && last > max(r.clockLimit, at.Add(clockSlack)) {
			r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Refused: RefusedClock})
			// The Nack refuses the remaining entries. Those before them are still appended.
			m.Entries = m.Entries[:i:i]
			return i == 0
		}
		at = max(at, last)
	}
	return false
}

// refuseUnknown sends a Nack for the entries of an Append that this build cannot read, which the driver has cut off. It
// reports whether no entry is left. Nothing is undone in their place, and no position after them is acknowledged.
func (r *Replica) refuseUnknown(m *Message) bool {
	// As in refuseAhead, a later epoch and a log that does not fit come first.
	if !m.Unknown || r.role == quarantined || m.Epoch < r.promised {
		return false
	}
	if _, apart := r.findDivergence(m.Prev); apart {
		return false
	}
	r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Refused: RefusedVersion})
	return len(m.Entries) == 0
}

// Refuse answers an Append that the driver does not pass to Step, for example because the disk is
// full. An answer at once lets the primary drop the member without waiting for ProgressTimeout.
func (r *Replica) Refuse(m *Message, why Refusal) {
	if m.Kind == Append && r.role != quarantined {
		r.send(Message{Kind: Nack, To: m.From, Epoch: m.Epoch, Reject: m.Prev.Seq, Refused: why})
	}
}
