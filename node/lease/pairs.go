package lease

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/closed"
)

// PeerInfo names a node to watch. Boot is the life that metadata knows: frames of earlier lives are not looked at.
type PeerInfo struct {
	ID     rhumb.NodeID
	Boot   rhumb.BootSeq
	Timing Timing
	// Absent says that the node is not to be watched, but may hold what an earlier life of this node granted to it. The other
	// fields but ID have no meaning then.
	Absent bool
}

// Pairs is this node's side of all its pairs.
type Pairs struct {
	self  rhumb.NodeIdentity
	peers []*peer // every peer ever watched, sorted
	// promised holds this node's own promises: what its grants exclude.
	promised map[rhumb.RangeID]promise
	// fenced holds the greatest epoch that this node has promised or that a grantor has excluded up to: below it, it
	// holds nothing.
	fenced map[rhumb.RangeID]rhumb.Epoch
	// restartUntil is when the grants of earlier lives are over. all says that SetPeers named every node that may hold one,
	// and none of them is absent.
	restartUntil time.Duration
	all          bool
	// distrusted: heartbeats sent up to here give this node nothing.
	distrusted time.Duration
	lastTick   time.Duration
	unhealthy  string

	// closing is what every peer is asked to close, clock what this node's clock is durably past, own what is claimed of
	// the ranges that this node is primary of.
	closing, clock rhumb.Timestamp
	own            closed.History

	clocks clockView
}

type promise struct {
	epoch   rhumb.Epoch
	primary rhumb.NodeID
}

// New begins a life of a node. freshStore says that its store was made for this life, so that no earlier life gave
// grants; otherwise WaitUntil lies at least LeaseMax ahead.
func New(self rhumb.NodeIdentity, now time.Duration, freshStore bool) *Pairs {
	p := &Pairs{
		self: self, lastTick: now,
		promised: make(map[rhumb.RangeID]promise),
		fenced:   make(map[rhumb.RangeID]rhumb.Epoch),
		own:      make(closed.History),
	}
	if !freshStore {
		p.restartUntil = now + obligation(LeaseMax, Timing{Epsilon: epsilonMax, RhoPermille: rhoPermilleMax})
	}
	return p
}

// SetPeers says whom to watch and grant to. A peer that is left out is neither, but what it holds is remembered. The first
// call must name every node to which an earlier life of this one may have granted anything. It panics when a timing is not
// valid.
func (p *Pairs) SetPeers(now time.Duration, peers []PeerInfo) {
	p.all = !slices.ContainsFunc(peers, func(i PeerInfo) bool { return i.Absent })
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
		q := p.peer(info.ID)
		if q == nil {
			q = p.meet(info.ID)
		}
		if !q.watched {
			q.watched, q.proof, q.nextBeat = true, now, now
			q.grace = now + MeetGrace
		} else if info.Boot > q.bootMin && info.Boot > q.life.Boot {
			q.grace = now + MeetGrace
		}
		q.timing, q.bootMin = info.Timing, max(q.bootMin, info.Boot)
	}
}

// meet adds a peer. Its grants will exclude everything that was promised before it was known.
func (p *Pairs) meet(id rhumb.NodeID) *peer {
	q := &peer{id: id}
	i, _ := slices.BinarySearchFunc(p.peers, id, func(q *peer, id rhumb.NodeID) int { return cmp.Compare(q.id, id) })
	p.peers = slices.Insert(p.peers, i, q)
	known := make([]Exclusion, 0, len(p.promised))
	for r, pr := range p.promised {
		if pr.primary != id {
			known = append(known, Exclusion{r, pr.epoch})
		}
	}
	slices.SortFunc(known, func(a, b Exclusion) int { return a.Range.Compare(b.Range) })
	for _, x := range known {
		q.exclude(x, 0)
	}
	return q
}

func (p *Pairs) peer(id rhumb.NodeID) *peer {
	i, ok := slices.BinarySearchFunc(p.peers, id, func(q *peer, id rhumb.NodeID) int { return cmp.Compare(q.id, id) })
	if !ok {
		return nil
	}
	return p.peers[i]
}

// Tick gives the heartbeats that are due.
func (p *Pairs) Tick(now time.Duration) []Outgoing {
	p.excuse(now)
	p.lookAtClocks(now)
	if p.unhealthy != "" {
		return nil
	}
	var out []Outgoing
	for _, q := range p.peers {
		if q.watched && now >= q.nextBeat {
			q.nextBeat = now + q.timing.Heartbeat
			f := p.frame(now, q)
			f.Lease, f.Close = q.timing.Lease, p.closing
			out = append(out, Outgoing{q.id, f})
		}
	}
	return out
}

// excuse does not hold a pause of this process against its peers: nobody can echo what was not sent.
func (p *Pairs) excuse(now time.Duration) {
	gap := now - p.lastTick
	p.lastTick = max(p.lastTick, now)
	for _, q := range p.peers {
		if q.watched && gap > q.timing.Suspect/2 {
			q.proof = min(now, q.proof+gap-q.timing.Heartbeat)
		}
	}
}

// Due gives the time at which Tick has something to send.
func (p *Pairs) Due() time.Duration {
	due := time.Duration(math.MaxInt64)
	if p.unhealthy != "" {
		return due
	}
	for _, q := range p.peers {
		if q.watched {
			due = min(due, q.nextBeat)
		}
	}
	return due
}

// frame makes a frame to q without asking for or giving a grant.
func (p *Pairs) frame(now time.Duration, q *peer) Frame {
	f := Frame{Sent: now, EchoBoot: q.life.Boot, Confirmed: q.applied, Wall: p.clocks.wall, Suspects: p.named(now)}
	if q.sent > 0 {
		f.Echo, f.Held = q.sent, now-q.heard
	}
	var all bool
	if f.Exclusions, f.ExclusionSeq, all = q.list(); all {
		f.Agreed = min(q.asked, p.clock)
	}
	f.Closed = q.out.Frame()
	f.Closed.Applied = q.in.Applied()
	return f
}

// Receive takes a frame and gives the answer to it, if it wants one. Frames of unknown nodes and of earlier lives are
// not looked at.
func (p *Pairs) Receive(now time.Duration, from rhumb.NodeIdentity, f *Frame) []Outgoing {
	q := p.peer(from.Node)
	if q == nil || !q.watched || from.Boot < max(q.bootMin, q.life.Boot) {
		return nil
	}
	if q.life != from {
		if q.life.Boot == from.Boot {
			return nil // two stores under one boot: one of them is a copy
		}
		q.reborn(from)
	}
	// The exclusions go first: a grant never stands without those that came with it.
	for _, x := range f.Exclusions {
		p.fence(x.Range, x.Epoch)
	}
	q.applied = max(q.applied, f.ExclusionSeq)
	q.asked = max(q.asked, f.Close)
	q.in.Take(&f.Closed)
	if f.EchoBoot == p.self.Boot {
		q.echoed(now, f.Echo, f.Held, f.Reply)
		q.confirm(f.Confirmed)
		q.agreed = max(q.agreed, f.Agreed)
		q.out.Confirm(f.Closed.Applied)
		if f.GrantedLease > 0 && f.Granted > p.distrusted && f.Granted <= now {
			q.heldUntil = max(q.heldUntil, f.Granted+f.GrantedLease-q.timing.Epsilon)
		}
	}
	if f.Wall > 0 && f.Reply && f.EchoBoot == p.self.Boot && f.Echo > 0 && f.Echo+f.Held <= now {
		q.heardWall(now, p.clocks.wall, f.Wall, now-f.Echo-f.Held)
	}
	if f.Sent > q.sent {
		q.sent, q.heard, q.suspects = f.Sent, now, f.Suspects
	}
	if f.Reply || p.unhealthy != "" {
		return nil
	}
	return []Outgoing{{q.id, p.grant(now, q, f)}}
}

// grant answers a heartbeat. The grant is left out when it could not list all that it does not cover.
func (p *Pairs) grant(now time.Duration, q *peer, f *Frame) Frame {
	answer := p.frame(now, q)
	answer.Reply = true
	if _, _, all := q.list(); !all || f.Lease <= 0 || f.Lease > LeaseMax {
		return answer
	}
	answer.Granted, answer.GrantedLease = f.Sent, f.Lease
	q.obligedUntil = max(q.obligedUntil, now+obligation(f.Lease, q.timing))
	return answer
}

func (p *Pairs) fence(r rhumb.RangeID, e rhumb.Epoch) {
	if e > p.fenced[r] {
		p.fenced[r] = e
	}
}

// Exclude takes range r out of all grants for epochs below e (ruling 1). The driver calls it with every promise, before
// it acts on it, and at start with every durable promise. primary is the primary of e, or NoNode if it is not known:
// it need not be told.
func (p *Pairs) Exclude(r rhumb.RangeID, e rhumb.Epoch, primary rhumb.NodeID) {
	if e <= p.promised[r].epoch {
		return
	}
	p.promised[r] = promise{e, primary}
	p.fence(r, e)
	for _, q := range p.peers {
		if q.id == primary {
			continue
		}
		q.exclude(Exclusion{r, e}, q.obligedUntil)
		// Tell at once: a holder that lives confirms within a round trip, and nobody needs to wait for its lease to end.
		q.nextBeat = min(q.nextBeat, p.lastTick)
	}
}

// Holds reports whether this node holds, for epoch e of r, unexpired grants of all members but itself (rule L).
func (p *Pairs) Holds(now time.Duration, r rhumb.RangeID, e rhumb.Epoch, members []rhumb.NodeID) bool {
	if e < p.fenced[r] {
		return false
	}
	for _, m := range members {
		if m == p.self.Node {
			continue
		}
		if q := p.peer(m); q == nil || now >= q.heldUntil {
			return false
		}
	}
	return true
}

// WaitUntil gives the time at which every grant that this node gave to others for epochs of r below e is over (rule
// E). It falls when holders confirm the exclusion.
func (p *Pairs) WaitUntil(r rhumb.RangeID, e rhumb.Epoch) (until time.Duration) {
	if !p.allConfirmed(r, e) {
		until = p.restartUntil
	}
	excluded := p.promised[r].epoch >= e
	for _, q := range p.peers {
		until = max(until, q.floor)
		switch x := q.find(r); {
		case !excluded:
			until = max(until, q.obligedUntil) // it renews for ever: the driver has not called Exclude
		case x != nil:
			until = max(until, x.until)
		}
	}
	return until
}

// allConfirmed reports whether every other node has confirmed in this life that it holds nothing for epochs of r below e. What
// earlier lives granted is void then: who confirms drops what it believes, whoever it has that from, and takes no grant that
// this node did not give in its present life.
func (p *Pairs) allConfirmed(r rhumb.RangeID, e rhumb.Epoch) bool {
	pr := p.promised[r]
	return p.all && pr.epoch >= e && !slices.ContainsFunc(p.peers, func(q *peer) bool {
		return q.id == pr.primary || q.find(r) != nil
	})
}

// Suspects lists the peers without two-way contact within their suspect interval, sorted. A node that is unhealthy
// suspects nobody: it is the one that is silent.
//
// Peers that fell silent together are suspected together. Their last heartbeats lie up to a heartbeat interval apart; a primary
// that suspected one of them first would drop it from an in-sync set that is left with another one which is as far away, and then
// nobody can be elected. So a suspicion waits, for a heartbeat interval at most, while another peer is about to be suspected.
func (p *Pairs) Suspects(now time.Duration) (out []rhumb.NodeID) {
	if p.unhealthy != "" {
		return nil
	}
	more := slices.ContainsFunc(p.peers, func(q *peer) bool {
		late := q.silence(now) - q.timing.Suspect
		return late <= 0 && late > -q.timing.Heartbeat
	})
	for _, q := range p.peers {
		late := q.silence(now) - q.timing.Suspect
		q.suspected = late > 0 && (q.suspected || !more || late > q.timing.Heartbeat)
		if q.suspected {
			out = append(out, q.id)
		}
	}
	return out
}

// RTT gives the smoothed round trip to a peer, and ok false before the first.
func (p *Pairs) RTT(n rhumb.NodeID) (time.Duration, bool) {
	if q := p.peer(n); q != nil && q.rtt > 0 {
		return q.rtt, true
	}
	return 0, false
}

// SetHealthy says whether this node's data path works. While it does not, Tick and Receive send nothing.
func (p *Pairs) SetHealthy(now time.Duration, ok bool, why string) {
	was := p.unhealthy
	switch {
	case !ok:
		p.unhealthy = cmp.Or(why, "unhealthy")
	case was != "":
		p.unhealthy = ""
		for _, q := range p.peers {
			q.proof, q.nextBeat = now, now
		}
	}
}

// Unhealthy gives the reason of the last SetHealthy with ok false, or "".
func (p *Pairs) Unhealthy() string { return p.unhealthy }

// DropHeld forgets every grant that this node holds, and those still on their way: its clock was found to have missed
// time before now.
func (p *Pairs) DropHeld(now time.Duration) {
	p.distrusted = max(p.distrusted, now)
	for _, q := range p.peers {
		q.heldUntil = 0
	}
}

// Rebirth begins a new life in place (ruling 11): everything held is dropped and frames carry the new boot. The caller
// must give up every primary role before the first frame of the new life leaves.
func (p *Pairs) Rebirth(self rhumb.NodeIdentity) {
	p.self = self // grants on their way speak of the earlier life
	for _, q := range p.peers {
		q.heldUntil, q.agreed = 0, 0
		q.out.Reset()
	}
}

// PeerStatus is what a Pairs tells a person of one pair. Times are on this node's clock.
type PeerStatus struct {
	Node rhumb.NodeID
	Life rhumb.NodeIdentity
	// Contact is when the latest frame that the peer has echoed was sent, Suspect whether that is too long ago.
	Contact time.Duration
	Suspect bool
	RTT     time.Duration
	// HeldUntil is until when this node may believe the peer's grants, ObligedUntil until when the peer may believe
	// those of this node, Unconfirmed how many exclusions it has not confirmed.
	HeldUntil, ObligedUntil time.Duration
	Unconfirmed             int
}

// Status gives the state of all watched pairs, sorted.
func (p *Pairs) Status(now time.Duration) []PeerStatus {
	suspects := p.Suspects(now)
	var out []PeerStatus
	for _, q := range p.peers {
		if q.watched {
			out = append(out, PeerStatus{
				Node: q.id, Life: q.life, Contact: q.proof, Suspect: slices.Contains(suspects, q.id), RTT: q.rtt,
				HeldUntil: q.heldUntil, ObligedUntil: max(q.obligedUntil, q.floor), Unconfirmed: len(q.pendingSeq),
			})
		}
	}
	return out
}
