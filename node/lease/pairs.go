package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// PeerInfo describes a node to watch. Boot is the life that metadata records; frames of earlier
// lives are ignored.
type PeerInfo struct {
	ID     rhumb.NodeID
	Boot   rhumb.BootSeq
	Timing Timing
	// Absent means that the node is not to be watched but may hold grants of an earlier life of
	// this node. The fields other than ID are then unused.
	Absent bool
}

// Pairs is this node's side of all its pairs.
//
// Invariants:
//   - For every range, fenced is at least the promised epoch: a node that has promised an epoch
//     holds nothing below it either.
//   - A grant never leaves without every unconfirmed exclusion.
//   - An epoch in fenced never decreases, and Holds and Agreed grant nothing below it.
type Pairs struct {
	self rhumb.NodeIdentity
	// peers holds every peer ever watched, sorted by ID. Peers are never removed, since their
	// grants must be waited for.
	peers []*peer
	// promised holds this node's own promises, which its grants exclude.
	promised map[rhumb.RangeID]promise
	// fenced holds, per range, the greatest epoch that this node has promised or that a grantor has
	// excluded up to. Below it this node holds nothing.
	fenced map[rhumb.RangeID]rhumb.Epoch
	// restartUntil is when the grants of earlier lives are over. peersComplete is true if SetPeers
	// named every node that may hold one and none of them is absent.
	restartUntil  time.Duration
	peersComplete bool
	// distrusted is the time up to which heartbeats of this node yield no grant: its clock missed
	// time before.
	distrusted time.Duration
	lastTick   time.Duration
	unhealthy  string

	// closing is the timestamp that every peer is asked to close. passedClock is the timestamp that
	// this node's clock is durably past. ownClosed holds the claims about ranges whose primary is
	// this node.
	closing, passedClock rhumb.Timestamp
	ownClosed            closed.History

	clocks clockView
}

// promise is an epoch that this node promised, and the primary of the epoch if it is known.
type promise struct {
	epoch   rhumb.Epoch
	primary rhumb.NodeID
	// handed is set if the primary of the epoch before handed the epoch over to this node.
	handed bool
}

// New begins a life of a node. freshStore states that the store was created for this life, so no
// earlier life granted anything. Otherwise WaitUntil is at least LeaseMax ahead.
func New(self rhumb.NodeIdentity, now time.Duration, freshStore bool) *Pairs {
	p := &Pairs{
		self: self, lastTick: now,
		promised:  make(map[rhumb.RangeID]promise),
		fenced:    make(map[rhumb.RangeID]rhumb.Epoch),
		ownClosed: make(closed.History),
	}
	if !freshStore {
		// The timing of the earlier life is unknown, so the wait covers the longest lease and the
		// largest allowances that Validate accepts.
		p.restartUntil = now + obligation(LeaseMax, Timing{Epsilon: epsilonMax, RhoPermille: rhoPermilleMax})
	}
	return p
}

// SetPeers sets the peers to watch and to grant to. A peer that is left out is neither watched nor
// granted to, but its grants are remembered. The first call must name every node to which an
// earlier life of this node may have granted anything. SetPeers panics if a timing is not valid.
func (p *Pairs) SetPeers(now time.Duration, peers []PeerInfo) {
	p.peersComplete = !slices.ContainsFunc(peers, func(i PeerInfo) bool { return i.Absent })
	peers = slices.DeleteFunc(slices.Clone(peers), func(i PeerInfo) bool { return i.Absent })
	for _, q := range p.peers {
		q.watched = q.watched && slices.ContainsFunc(peers, func(i PeerInfo) bool { return i.ID == q.id })
	}
	for _, info := range peers {
		if info.ID == p.self.Node {
			continue
		}
		if err := info.Timing.Validate(); err != nil {
			panic(err.Error())
		}
		q := p.findPeer(info.ID)
		if q == nil {
			q = p.addPeer(info.ID)
		}
		if !q.watched {
			// Silence counts from here, and the first heartbeat is due at once.
			q.watched, q.lastContact, q.nextBeat = true, now, now
			q.grace = now + MeetGrace
			// Metadata knows a life that has sent nothing yet: its process has just registered and is
			// still connecting.
		} else if info.Boot > q.bootMin && info.Boot > q.life.Boot {
			q.grace = now + MeetGrace
		}
		q.timing, q.bootMin = info.Timing, max(q.bootMin, info.Boot)
	}
}

// addPeer adds a peer. Its grants exclude everything promised before the peer was known. This includes epochs that were promised
// to the peer itself: it may still act in an epoch before, and this node may have promised one in between, for which the peer was not
// there to be excluded.
func (p *Pairs) addPeer(id rhumb.NodeID) *peer {
	q := &peer{id: id}
	// peers stays sorted, so that outgoing frames have the same order in every replay of a
	// simulation.
	i, _ := slices.BinarySearchFunc(p.peers, id, func(q *peer, id rhumb.NodeID) int { return cmp.Compare(q.id, id) })
	p.peers = slices.Insert(p.peers, i, q)
	known := make([]Exclusion, 0, len(p.promised))
	for r, pr := range p.promised {
		known = append(known, Exclusion{r, pr.epoch})
	}
	// The order of a map is random, and the exclusions are numbered in the order in which they are
	// added.
	slices.SortFunc(known, func(a, b Exclusion) int { return a.Range.Compare(b.Range) })
	for _, x := range known {
		q.addExclusion(x, 0)
	}
	return q
}

// findPeer returns the peer with an ID, or nil.
func (p *Pairs) findPeer(id rhumb.NodeID) *peer {
	i, ok := slices.BinarySearchFunc(p.peers, id, func(q *peer, id rhumb.NodeID) int { return cmp.Compare(q.id, id) })
	if !ok {
		return nil
	}
	return p.peers[i]
}

// Tick returns the heartbeats that are due. Those of an unhealthy node only say that it is unhealthy.
func (p *Pairs) Tick(now time.Duration) []Outgoing {
	p.excusePause(now)
	p.compareClocks(now)
	var out []Outgoing
	for _, q := range p.peers {
		if !q.watched || now < q.nextBeat {
			continue
		}
		q.nextBeat = now + q.timing.Heartbeat
		f := Frame{Sent: now, EchoBoot: q.life.Boot, Unhealthy: true}
		if p.unhealthy == "" {
			f = p.newFrame(now, q)
			f.Lease, f.Close = q.timing.Lease, p.closing
		}
		out = append(out, Outgoing{q.id, f})
	}
	return out
}

// excusePause keeps a pause of this process from counting as silence of its peers: a peer cannot
// echo a frame that was not sent.
func (p *Pairs) excusePause(now time.Duration) {
	gap := now - p.lastTick
	p.lastTick = max(p.lastTick, now)
	for _, q := range p.peers {
		if q.watched && gap > q.timing.Suspect/2 {
			// The usual interval between two heartbeats still counts: it would have passed without
			// a pause.
			q.lastContact = min(now, q.lastContact+gap-q.timing.Heartbeat)
		}
	}
}

// newFrame returns a frame to q that carries no grant and asks for none.
func (p *Pairs) newFrame(now time.Duration, q *peer) Frame {
	f := Frame{Sent: now, EchoBoot: q.life.Boot, Confirmed: q.applied, Wall: p.clocks.wall, Suspects: p.frameSuspects(now), Speed: q.speed}
	if q.peerSent > 0 {
		f.Echo, f.Held = q.peerSent, now-q.receivedAt
	}
	var all bool
	// Without the complete list the frame would agree for epochs that this node has promised to
	// leave.
	if f.Exclusions, f.ExclusionSeq, all = q.listExclusions(); all {
		f.Agreed = min(q.asked, p.passedClock)
	}
	f.Closed = q.closedOut.Frame()
	f.Closed.Applied = q.closedIn.Applied()
	return f
}

// Receive applies a frame and returns the answer if the frame asks for one. Frames of unknown nodes
// and of earlier lives are ignored.
func (p *Pairs) Receive(now time.Duration, from rhumb.NodeIdentity, f *Frame) []Outgoing {
	q := p.findPeer(from.Node)
	if q == nil || !q.watched || from.Boot < max(q.bootMin, q.life.Boot) {
		return nil
	}
	if q.life != from {
		if q.life.Boot == from.Boot {
			// Two stores claim one boot, so one of them is a copy of the other. The life heard
			// first keeps its place.
			return nil
		}
		q.beginLife(from)
	}
	if f.Unhealthy {
		if f.Sent > q.peerSent {
			q.peerSent, q.receivedAt, q.unhealthy = f.Sent, now, true
		}
		return nil
	}
	// Exclusions come first. If the grant or the agreement of this frame were applied before them,
	// this node could serve or close an epoch that the sender has promised to leave.
	for _, x := range f.Exclusions {
		p.raiseFence(x.Range, x.Epoch)
	}
	q.applied = max(q.applied, f.ExclusionSeq)
	q.asked = max(q.asked, f.Close)
	q.closedIn.Take(&f.Closed)
	// Echoes, confirmations, agreement and grants refer to times and numbers of one life of this
	// node. Those of an earlier life are meaningless here.
	if f.EchoBoot == p.self.Boot {
		q.recordEcho(now, f.Echo, f.Held, f.Reply)
		q.confirmExclusions(f.Confirmed)
		q.agreed = max(q.agreed, f.Agreed)
		q.closedOut.Confirm(f.Closed.Applied)
		if f.GrantedLease > 0 && f.Granted > p.distrusted && f.Granted <= now {
			// Belief counts from sending the heartbeat, never from the receipt of the grant (rule
			// L). Frames may arrive out of order, so an older grant must not shorten a newer one.
			q.heldUntil = max(q.heldUntil, f.Granted+f.GrantedLease-q.timing.Epsilon)
		}
	}
	// Only an answer measures the round trip, and the reading is half a round trip old.
	if f.Wall > 0 && f.Reply && f.EchoBoot == p.self.Boot && f.Echo > 0 && f.Echo+f.Held <= now {
		q.recordWall(now, p.clocks.wall, f.Wall, now-f.Echo-f.Held)
	}
	// A frame that was overtaken has an older view of the sender's suspects.
	if f.Sent > q.peerSent {
		q.peerSent, q.receivedAt, q.suspects, q.unhealthy = f.Sent, now, f.Suspects, false
		// What a peer thought of an earlier life may have had its cause there.
		if q.opinion = SpeedUnknown; f.EchoBoot == p.self.Boot {
			q.opinion = f.Speed
		}
	}
	// An unhealthy node also withholds its answers. If it answered, its peers would have two-way
	// contact and never suspect it.
	if f.Reply || p.unhealthy != "" {
		return nil
	}
	return []Outgoing{{q.id, p.newGrant(now, q, f)}}
}

// newGrant returns the answer to a heartbeat. The answer carries no grant if it cannot list
// everything that the grant does not cover, or if the heartbeat asks for more than LeaseMax, which
// a restarted node would not wait out.
func (p *Pairs) newGrant(now time.Duration, q *peer, f *Frame) Frame {
	answer := p.newFrame(now, q)
	answer.Reply = true
	if _, _, all := q.listExclusions(); !all || f.Lease <= 0 || f.Lease > LeaseMax {
		return answer
	}
	answer.Granted, answer.GrantedLease = f.Sent, f.Lease
	// The obligation is recorded before the answer leaves. It holds even if the answer is lost,
	// since the sender cannot know.
	q.obligedUntil = max(q.obligedUntil, now+obligation(f.Lease, q.timing))
	return answer
}

// raiseFence records that this node holds nothing for epochs of r below e.
func (p *Pairs) raiseFence(r rhumb.RangeID, e rhumb.Epoch) {
	if e > p.fenced[r] {
		p.fenced[r] = e
	}
}

// Exclude takes range r out of all grants for epochs below e (docs/replication.md#exclusions). The driver calls it with
// every promise before it acts on the promise, and at the start with every durable promise. primary
// is the primary of e, which needs no exclusion, or NoNode if it is unknown.
func (p *Pairs) Exclude(r rhumb.RangeID, e rhumb.Epoch, primary rhumb.NodeID) {
	if e <= p.promised[r].epoch {
		return
	}
	p.promised[r] = promise{epoch: e, primary: primary}
	p.raiseFence(r, e)
	for _, q := range p.peers {
		if q.id == primary {
			continue
		}
		q.addExclusion(Exclusion{r, e}, q.obligedUntil)
		// The next Tick sends the exclusion: a live holder confirms within a round trip, and then
		// nobody waits for its lease to end.
		q.nextBeat = min(q.nextBeat, p.lastTick)
	}
}

// TakeOver is Exclude for an epoch that the primary of the epoch before handed over to this node. No grant has to be waited for: that
// primary has promised the epoch and stopped, and when it began its own, no primary of an earlier one held its lease any more, for
// lack of its grant. A wait for third nodes would take a round trip to the farthest node of the cluster, of whatever region.
func (p *Pairs) TakeOver(r rhumb.RangeID, e rhumb.Epoch) {
	if e > p.promised[r].epoch {
		p.Exclude(r, e, p.self.Node)
		p.promised[r] = promise{e, p.self.Node, true}
	}
}

// Holds reports whether this node holds, for epoch e of r, unexpired grants of all members except
// itself (rule L).
func (p *Pairs) Holds(now time.Duration, r rhumb.RangeID, e rhumb.Epoch, members []rhumb.NodeID) bool {
	// A member that excluded this epoch may already have granted a later one, although older grants
	// of other ranges are still valid.
	if e < p.fenced[r] {
		return false
	}
	for _, m := range members {
		if m == p.self.Node {
			continue
		}
		if q := p.findPeer(m); q == nil || now >= q.heldUntil {
			return false
		}
	}
	return true
}

// WaitUntil returns the time at which every grant of this node to others for epochs of r
// below e is over (rule E). The time moves back when holders confirm the exclusion.
func (p *Pairs) WaitUntil(r rhumb.RangeID, e rhumb.Epoch) (until time.Duration) {
	if pr := p.promised[r]; pr.handed && pr.epoch == e {
		return 0
	}
	if !p.allConfirmed(r, e) {
		until = p.restartUntil
	}
	excluded := p.promised[r].epoch >= e
	for _, q := range p.peers {
		// This includes peers that are no longer watched: they may still believe a grant.
		until = max(until, q.oldStoreUntil)
		switch x := q.findExclusion(r); {
		case !excluded:
			// The driver has not called Exclude, so the grant is still being renewed.
			until = max(until, q.obligedUntil)
		case x != nil:
			until = max(until, x.until)
		}
	}
	return until
}

// allConfirmed reports whether every other node has confirmed in this life that it holds nothing
// for epochs of r below e. Grants of earlier lives are void then: a node that confirms drops what
// it believes, whoever granted it, and accepts no grant that this node did not issue in its present
// life.
func (p *Pairs) allConfirmed(r rhumb.RangeID, e rhumb.Epoch) bool {
	pr := p.promised[r]
	return p.peersComplete && pr.epoch >= e && !slices.ContainsFunc(p.peers, func(q *peer) bool {
		return q.id == pr.primary || q.findExclusion(r) != nil
	})
}

// SetSpeeds sets this node's opinions of its peers, which its next frames report. A peer that is not named is unknown.
func (p *Pairs) SetSpeeds(speeds map[rhumb.NodeID]Speed) {
	for _, q := range p.peers {
		q.speed = speeds[q.id]
	}
}

// Opinions returns how many of the peers that this node is in contact with call it slow, and how many call it as fast as others.
func (p *Pairs) Opinions(now time.Duration) (slow, usual int) {
	suspects := p.Suspects(now)
	for _, q := range p.peers {
		switch {
		case !q.watched || slices.Contains(suspects, q.id):
		case q.opinion == SpeedSlow:
			slow++
		case q.opinion == SpeedUsual:
			usual++
		}
	}
	return slow, usual
}

// Suspects returns the peers without two-way contact within their suspect interval, sorted. An
// unhealthy node suspects nobody: it is the one that is silent.
//
// Peers that fell silent together are suspected together. Their last heartbeats may be a heartbeat
// interval apart. If a primary suspected one of them first, it would drop that peer from an in-sync
// set that then includes another peer just as unreachable, and nobody could be elected. So a
// suspicion waits, for a heartbeat interval at most, while another peer is about to be suspected.
func (p *Pairs) Suspects(now time.Duration) (out []rhumb.NodeID) {
	if p.unhealthy != "" {
		return nil
	}
	more := slices.ContainsFunc(p.peers, func(q *peer) bool {
		late := q.late(now)
		return late <= 0 && late > -q.timing.Heartbeat
	})
	for _, q := range p.peers {
		late := q.late(now)
		// Once reported, a suspicion stays until the peer is heard, even if another peer becomes
		// late in the meantime.
		q.suspected = late > 0 && (q.suspected || !more || late > q.timing.Heartbeat)
		if q.suspected {
			out = append(out, q.id)
		}
	}
	return out
}

// NoteRefused notes that the host of a peer in a life has refused a connection: no process listens there.
func (p *Pairs) NoteRefused(now time.Duration, n rhumb.NodeID, boot rhumb.BootSeq) {
	if q := p.findPeer(n); q != nil && q.life.Boot <= boot {
		q.refusedAt = now
	}
}

// RTT returns the smoothed round trip to a peer, and false before the first sample.
func (p *Pairs) RTT(n rhumb.NodeID) (time.Duration, bool) {
	if q := p.findPeer(n); q != nil && q.rtt > 0 {
		return q.rtt, true
	}
	return 0, false
}

// RTTs returns the smoothed round trips to the peers that this node is in contact with.
func (p *Pairs) RTTs(now time.Duration) map[rhumb.NodeID]time.Duration {
	suspects, out := p.Suspects(now), make(map[rhumb.NodeID]time.Duration, len(p.peers))
	for _, q := range p.peers {
		if q.watched && q.rtt > 0 && !slices.Contains(suspects, q.id) {
			out[q.id] = q.rtt
		}
	}
	return out
}

// SetHealthy reports whether this node's data path works. While it does not, Tick only sends that,
// and Receive answers nothing.
func (p *Pairs) SetHealthy(now time.Duration, ok bool, why string) {
	was := p.unhealthy
	switch {
	case !ok:
		p.unhealthy = cmp.Or(why, "unhealthy")
		if was == "" {
			for _, q := range p.peers {
				q.nextBeat = min(q.nextBeat, now) // the peers learn of it at once
			}
		}
	case was != "":
		p.unhealthy = ""
		for _, q := range p.peers {
			// While this node sent nothing, no peer could echo anything.
			q.lastContact, q.nextBeat = now, now
		}
	}
}

// DropHeld forgets every grant that this node holds, and those still on their way, because its
// clock was found to have missed time before now.
func (p *Pairs) DropHeld(now time.Duration) {
	p.distrusted = max(p.distrusted, now)
	for _, q := range p.peers {
		q.heldUntil = 0
	}
}

// Rebirth begins a new life in place (docs/replication.md#rule-life): it drops everything held, and frames carry the
// new boot. The caller must abandon every primary role before the first frame of the new life is
// sent.
func (p *Pairs) Rebirth(self rhumb.NodeIdentity) {
	// Grants still on their way name the earlier life, so Receive ignores them.
	p.self = self
	for _, q := range p.peers {
		q.heldUntil, q.agreed = 0, 0
		q.closedOut.Reset()
	}
}

// PeerStatus describes one pair to an operator. Times are on this node's clock.
type PeerStatus struct {
	Node rhumb.NodeID
	Life rhumb.NodeIdentity
	// Contact is when this node sent the latest frame that the peer has echoed. Suspect reports
	// whether that is too long ago.
	Contact time.Duration
	Suspect bool
	RTT     time.Duration
	// HeldUntil is how long this node may believe the peer's grants, and ObligedUntil how long the
	// peer may believe this node's. Unconfirmed counts the exclusions that the peer has not
	// confirmed.
	HeldUntil, ObligedUntil time.Duration
	Unconfirmed             int
}

// Status returns the state of all watched pairs, sorted by ID.
func (p *Pairs) Status(now time.Duration) []PeerStatus {
	suspects := p.Suspects(now)
	var out []PeerStatus
	for _, q := range p.peers {
		if q.watched {
			out = append(out, PeerStatus{
				Node: q.id, Life: q.life, Contact: q.lastContact, Suspect: slices.Contains(suspects, q.id), RTT: q.rtt,
				HeldUntil: q.heldUntil, ObligedUntil: max(q.obligedUntil, q.oldStoreUntil), Unconfirmed: len(q.pendingSeq),
			})
		}
	}
	return out
}
