package host

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
)

// Bounds of the judgement of slow nodes. A node that is slow all the time is judged within slowLeaves+1 steps, and a node that is
// fast again within slowSteps+1.
const (
	// slowStep is how long delays are gathered before they are compared.
	slowStep = 500 * time.Millisecond
	// slowSteps is the number of steps that a judgement looks back. A node becomes slow if it was late in slowLeaves of them, and
	// is no longer slow if it was in at most slowReturns. One stall of a disk, or a pause, is not enough.
	slowSteps, slowLeaves, slowReturns = 10, 6, 1
	// slowFactor and slowFloor say what is late: more than slowFactor times the delay of at least half of the others, and more
	// than slowFloor. Delays are without the round trip, so a distant node is not late for being distant.
	slowFactor, slowFloor = 5, 8 * time.Millisecond
	// beatFloor is slowFloor for heartbeats. It is less, because a heartbeat waits for the processor of the peer once, and an Append for its
	// disk and several times for its processor.
	beatFloor = 5 * time.Millisecond
	// ackWait is how long an acknowledgement is waited for. A later one counts as that late.
	ackWait = 2 * time.Second
	// tripKeep is for how long the shortest round trip to a node is remembered, at least. A route that has become longer for good
	// counts as a delay until then.
	tripKeep = 5 * time.Minute
	// ownHoldMin is how long a slow node has no primaries at least. The time doubles up to ownHoldMax with each time that
	// it becomes slow again within ownHoldMax.
	ownHoldMin, ownHoldMax = 15 * time.Second, 5 * time.Minute
	// usualKeep is how long the delay of the peers counts after the last acknowledgement. A node without primaries gets none, and would
	// be compared without end with a delay that was measured wrong once.
	usualKeep = 2 * ownHoldMin
	// opinionsMin is how many peers must call a node slow before it believes them. For one of them, the link to it may be slow.
	opinionsMin = 2
)

// slowness judges which peers acknowledge much later than others, and whether this node is slow itself: if its own disk is slower
// than what its peers need in all, or if several peers say so. It is plain data: the caller passes the time, and the pass of the host owns it.
//
// A primary waits for the slowest member of an in-sync set. The delays are those of the node, not of a range, because a node
// is slow for all of its ranges, and each range may have few writes.
type slowness struct {
	peers map[rhumb.NodeID]*peerDelay
	beats map[rhumb.NodeID]*beatDelay
	own   delays
	began time.Duration
	// usual is the delay of the peers in the last step that had any, with which own is compared. A node whose ranges
	// have all moved away gets no acknowledgements any more.
	usual time.Duration
	// usualAt is the end of that step.
	usualAt time.Duration
	// calledSlow is set while the peers call this node slow. Its own processor or link may be the cause: to a node that is stopped
	// nine tenths of the time, all the others look slow.
	calledSlow bool
	hold       holdOff
	// why is the cause of the last hold.
	why string
}

// lateness is the judgement of one step.
type lateness uint8

const (
	onTime lateness = iota
	// unclear is a delay that would matter, and is shorter than the round trip, by which long ways may vary.
	unclear
	late
)

// delays are the delays of one node, and how many of the latest steps were late.
type delays struct {
	total time.Duration
	count int
	steps [slowSteps]lateness
	next  int
	slow  bool
	// idle counts the steps since the last one with a delay.
	idle int
}

// peerDelay measures the acknowledgements of a peer. One Append is timed at a time, which bounds the work per message.
type peerDelay struct {
	delays
	// timed is the Append whose acknowledgement is waited for; its epoch is 0 if there is none.
	timed timedAppend
}

// beatDelay measures the heartbeats of a peer. A node without primaries sends no Appends, and knows by heartbeats only that the
// processor of a peer is slow.
type beatDelay struct {
	delays
	// trips are the shortest round trips of the present and of the last period, which began at the time period.
	trips  [2]time.Duration
	period time.Duration
}

// timedAppend is an Append that was sent at a time and ends with an entry.
type timedAppend struct {
	id    rhumb.RangeID
	epoch rhumb.Epoch
	last  rhumb.Seq
	at    time.Duration
}

// add records one delay.
func (d *delays) add(delay time.Duration) { d.total, d.count = d.total+delay, d.count+1 }

// mean returns the mean delay of the step, and false if there was none.
func (d *delays) mean() (time.Duration, bool) {
	if d.count == 0 {
		return 0, false
	}
	return d.total / time.Duration(d.count), true
}

// endStep records whether the step was late, and reports whether the judgement changed. A step without a delay was on time: a
// node that is asked nothing holds up nobody.
func (d *delays) endStep(was lateness) (changed bool) {
	d.steps[d.next] = was
	d.next = (d.next + 1) % slowSteps
	if d.idle++; d.count > 0 {
		d.idle = 0
	}
	d.total, d.count = 0, 0
	n, before := d.atLeast(late), d.slow
	switch {
	case n >= slowLeaves:
		d.slow = true
	case n <= slowReturns:
		d.slow = false
	}
	return d.slow != before
}

// atLeast returns how many of the latest steps were as late as that, or later.
func (d *delays) atLeast(as lateness) (n int) {
	for _, was := range d.steps {
		if was >= as {
			n++
		}
	}
	return n
}

// noteSent begins to time an Append of entries that were appended just now. Others are sent to peers that catch up.
func (w *slowness) noteSent(now time.Duration, m *replica.Message, first rhumb.Seq) {
	if m.Kind != replica.Append || len(m.Entries) == 0 || m.Entries[0].Seq < first {
		return
	}
	p := w.peers[m.To]
	if p == nil {
		if w.peers == nil {
			w.peers = make(map[rhumb.NodeID]*peerDelay)
		}
		p = new(peerDelay)
		w.peers[m.To] = p
	}
	if p.timed.epoch == 0 {
		p.timed = timedAppend{m.Range, m.Epoch, m.Entries[len(m.Entries)-1].Seq, now}
	}
}

// noteReceived ends the timing of an Append if m answers it, which arrived at now: a node whose own disk is slow may take it
// from the queue much later.
func (w *slowness) noteReceived(now time.Duration, m *replica.Message) {
	p := w.peers[m.From]
	if p == nil || p.timed.epoch == 0 || m.Range != p.timed.id {
		return
	}
	switch {
	case m.Kind == replica.Ack && m.Epoch == p.timed.epoch && m.Match >= p.timed.last:
		p.add(now - p.timed.at)
		p.timed = timedAppend{}
	// A refusal says nothing about speed, and after an election the Append may never be answered.
	case m.Kind == replica.Nack, m.Epoch > p.timed.epoch:
		p.timed = timedAppend{}
	}
}

// noteSync records how long this node's disk took to sync.
func (w *slowness) noteSync(took time.Duration) { w.own.add(took) }

// forget drops the measurements of a peer that cannot be reached: other rules judge it.
func (w *slowness) forget(n rhumb.NodeID) { delete(w.peers, n) }

// judgement lists the changes of a step.
type judgement struct {
	// slow and fast are the peers that are judged otherwise than before, ascending.
	slow, fast []rhumb.NodeID
	// speeds are the opinions of all peers, nil if no step ended.
	speeds map[rhumb.NodeID]lease.Speed
}

// opinions says how many peers call this node slow, and how many call it as fast as others.
type opinions struct{ slow, usual int }

// areSlow reports whether the peers agree that this node is slow.
func (o opinions) areSlow() bool { return o.slow >= opinionsMin && o.slow > o.usual }

// judge ends a step if it is over. roundTrips returns those to all peers in contact at present; awaits reports whether an Append may
// still be answered; opinionsOf returns the peers' opinions of this node.
func (w *slowness) judge(now time.Duration, roundTrips func() map[rhumb.NodeID]time.Duration, awaits func(rhumb.RangeID, rhumb.Epoch) bool, opinionsOf func() opinions) (j judgement) {
	if now-w.began < slowStep {
		return judgement{}
	}
	// After a pause of this process the delays are its own.
	paused := now-w.began > 2*slowStep
	w.began = now
	trips := w.judgeBeats(now, roundTrips(), paused)
	nodes := slices.Sorted(maps.Keys(w.peers))
	excess := make(map[rhumb.NodeID]time.Duration, len(nodes))
	for _, n := range nodes {
		p := w.peers[n]
		p.endTiming(now, awaits)
		if mean, ok := p.mean(); ok && !paused {
			excess[n] = max(0, mean-trips[n])
		}
	}
	own, synced := w.own.mean()
	synced = synced && !paused
	for _, n := range nodes {
		step := onTime
		if x, ok := excess[n]; ok {
			others := otherDelays(excess, n)
			if synced {
				others = append(others, own)
			}
			step = judgeDelay(x, trips[n], others, slowFloor)
		}
		p := w.peers[n]
		switch changed := p.endStep(step); {
		case changed && p.slow:
			j.slow = append(j.slow, n)
		case changed:
			j.fast = append(j.fast, n)
		}
	}
	if len(excess) > 0 {
		w.usual, w.usualAt = median(slices.Collect(maps.Values(excess))), now
	}
	step := onTime
	if synced && w.usual > 0 && now-w.usualAt <= usualKeep && isLate(own, []time.Duration{w.usual}, slowFloor) {
		step = late
	}
	if w.own.endStep(step) && w.own.slow {
		// The peers may have found out first, about the same slowness.
		if !w.calledSlow {
			w.hold.begin(now)
		}
		w.why = fmt.Sprintf("disk_slow: its disk takes more than %d times as long as its peers take to answer; if that lasts, see what else uses the disk, or replace it", slowFactor)
	}
	// A slow disk is the more exact reason, and makes the peers call the node slow, too.
	of, was := opinionsOf(), w.calledSlow
	if w.calledSlow = of.areSlow(); w.calledSlow && !was && !w.own.slow {
		w.hold.begin(now)
		w.why = fmt.Sprintf("node_slow: %d of its peers say that it acknowledges more than %d times as late as others; if that lasts, see what else uses its processor and its network", of.slow, slowFactor)
	}
	j.speeds = w.speeds()
	return j
}

// judgeBeats ends a step of the heartbeats, and returns the shortest round trips to the peers lately.
func (w *slowness) judgeBeats(now time.Duration, roundTrips map[rhumb.NodeID]time.Duration, paused bool) (shortest map[rhumb.NodeID]time.Duration) {
	if w.beats == nil {
		w.beats = make(map[rhumb.NodeID]*beatDelay)
	}
	// Whoever is out of contact is judged by other rules.
	maps.DeleteFunc(w.beats, func(n rhumb.NodeID, _ *beatDelay) bool { return roundTrips[n] == 0 })
	shortest, excess := make(map[rhumb.NodeID]time.Duration, len(roundTrips)), make(map[rhumb.NodeID]time.Duration, len(roundTrips))
	for n, trip := range roundTrips {
		b := w.beats[n]
		if b == nil {
			b = new(beatDelay)
			w.beats[n] = b
		}
		shortest[n] = b.shortestTrip(now, trip)
		excess[n] = trip - shortest[n]
	}
	for n, b := range w.beats {
		step := onTime
		if !paused {
			step = judgeDelay(excess[n], shortest[n], otherDelays(excess, n), beatFloor)
		}
		b.endStep(step)
	}
	return shortest
}

// speeds returns this node's opinions of its peers.
func (w *slowness) speeds() map[rhumb.NodeID]lease.Speed {
	out := make(map[rhumb.NodeID]lease.Speed, len(w.beats))
	for n, b := range w.beats {
		p := w.peers[n]
		// As long as a judgement looks back: acknowledgements that were measured once say little about now.
		acknowledges := p != nil && p.idle < slowSteps
		switch {
		case p != nil && p.slow, !acknowledges && b.slow:
			out[n] = lease.SpeedSlow
		// A node far away cannot tell whether this one is slow, and must not contradict its neighbours, who can. Nor can heartbeats,
		// which need no disk.
		case acknowledges && p.atLeast(unclear) <= slowReturns:
			out[n] = lease.SpeedUsual
		}
	}
	return out
}

// fault returns why this node is slow, or was a short while ago, or "".
func (w *slowness) fault(now time.Duration) string {
	if w.own.slow || w.calledSlow || now < w.hold.until {
		return w.why
	}
	return ""
}

// endTiming counts an Append that has waited for a step already, and stops to wait for one that nobody answers.
func (p *peerDelay) endTiming(now time.Duration, awaits func(rhumb.RangeID, rhumb.Epoch) bool) {
	waited := now - p.timed.at
	switch {
	case p.timed.epoch == 0:
	case !awaits(p.timed.id, p.timed.epoch):
		p.timed = timedAppend{}
	case waited >= slowStep:
		p.add(waited)
		if waited >= ackWait {
			p.timed = timedAppend{}
		}
	}
}

// shortestTrip returns the shortest round trip to the peer lately, with the present one.
func (b *beatDelay) shortestTrip(now, trip time.Duration) time.Duration {
	if now-b.period >= tripKeep {
		b.period, b.trips = now, [2]time.Duration{trip, b.trips[0]}
	}
	if b.trips[0] == 0 || trip < b.trips[0] {
		b.trips[0] = trip
	}
	if b.trips[1] == 0 {
		return b.trips[0]
	}
	return min(b.trips[0], b.trips[1])
}

// judgeDelay judges a delay beyond the shortest round trip.
func judgeDelay(delay, trip time.Duration, others []time.Duration, floor time.Duration) lateness {
	switch {
	// Long ways vary by a part of their length, which is nothing that the node could change. Delays of the others, which
	// are as far away, say little about it either.
	case delay > floor && delay <= trip:
		return unclear
	case isLate(delay, others, floor):
		return late
	}
	return onTime
}

// otherDelays returns the delays of all peers but one.
func otherDelays(all map[rhumb.NodeID]time.Duration, but rhumb.NodeID) []time.Duration {
	others := make([]time.Duration, 0, len(all)+1)
	for n, delay := range all {
		if n != but {
			others = append(others, delay)
		}
	}
	return others
}

// isLate reports whether a delay stands out from the others. Without others nobody stands out.
func isLate(delay time.Duration, others []time.Duration, floor time.Duration) bool {
	return len(others) > 0 && delay > max(slowFactor*median(others), floor)
}

// median returns the middle of at least one delay, the later one of two.
func median(delays []time.Duration) time.Duration {
	slices.Sort(delays)
	return delays[len(delays)/2]
}

// judgeDelays informs the replicas of peers that have become slow, or fast again. The pass calls it.
func (h *Host) judgeDelays() {
	now := h.rt.Now()
	j := h.slow.judge(now, h.leases.roundTrips, func(id rhumb.RangeID, e rhumb.Epoch) bool {
		s, ok := h.findSlot(id)
		return ok && s.r.State() == replica.Primary && s.r.Epoch() == e
	}, h.leases.opinions)
	if j.speeds != nil {
		h.leases.setSpeeds(j.speeds)
	}
	for _, n := range j.slow {
		h.m.slowFound.Inc()
		h.log.Warn("a node acknowledges much later than others; ranges that have enough other copies stop waiting for it", "node", n.String())
		h.setSlow(n, true)
	}
	for _, n := range j.fast {
		h.log.Info("a node acknowledges as fast as others again", "node", n.String())
		h.setSlow(n, false)
	}
	if len(j.slow)+len(j.fast) > 0 {
		h.m.slowPeers.Set(float64(h.slow.countSlow()))
	}
	why := h.slow.fault(now)
	h.ownSpeed.Store(&why)
}

// noteSent times the Appends of a Ready.
func (h *Host) noteSent(rd *replica.Ready) {
	if len(rd.Append) == 0 {
		return
	}
	now := h.rt.Now()
	for i := range rd.Messages {
		h.slow.noteSent(now, &rd.Messages[i], rd.Append[0].Seq)
	}
}

// isPeerSlow reports whether a peer is judged slow.
func (w *slowness) isPeerSlow(n rhumb.NodeID) bool {
	p := w.peers[n]
	return p != nil && p.slow
}

// countSlow returns the number of slow peers.
func (w *slowness) countSlow() (n int) {
	for _, p := range w.peers {
		if p.slow {
			n++
		}
	}
	return n
}

// setSlow informs every replica that shares a range with a peer.
func (h *Host) setSlow(n rhumb.NodeID, slow bool) {
	for _, s := range h.allSlots {
		if d := s.desc.Load(); d != nil && d.IsReplica(n) {
			s.r.SetSlow(n, slow)
			h.markDirty(s)
		}
	}
}

// forgetDelays forgets the delays of a peer that has gone.
func (h *Host) forgetDelays(n rhumb.NodeID) {
	if p := h.slow.peers[n]; p != nil && p.slow {
		h.setSlow(n, false)
	}
	h.slow.forget(n)
	h.m.slowPeers.Set(float64(h.slow.countSlow()))
}

// speedFault returns why this node is too slow for primaries, or "".
func (h *Host) speedFault() string {
	if why := h.ownSpeed.Load(); why != nil {
		return *why
	}
	return ""
}
