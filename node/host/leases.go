package host

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/sched"
)

// Heartbeats sends lease frames to peers. Send must not block.
type Heartbeats interface {
	SendHeartbeat(to rhumb.NodeID, f *lease.Frame)
}

// leaseTick is the interval at which due heartbeats and suspicions are checked. It is well below
// the shortest heartbeat interval.
const leaseTick = 25 * time.Millisecond

// Leases drives the pure lease.Pairs of a node: it passes the time, sends the frames and reports
// suspicions.
//
// HAZARD: a lease is measured on CLOCK_BOOTTIME (hlc.Boottime). A pause of the whole machine that
// this clock does not count can make a lease read stale; it can never lose a write
// (docs/replication.md#assumptions).
type Leases struct {
	rt  sched.Runtime
	out Heartbeats
	// healthy reports whether the node's disk and passes keep up. Otherwise heartbeats are
	// withheld, so that liveness follows the data path (docs/replication.md#failure-detection).
	healthy func() (ok bool, why string)
	// suspected is called, without the lock, with all nodes suspected now, whenever that set
	// changes.
	suspected func(nodes []rhumb.NodeID)
	clock     *hlc.Clock
	log       *slog.Logger
	// withheld is why heartbeats are withheld, or "" if they are not. Only tick uses it.
	withheld string
	// confirmed is called, without the lock, after a frame arrived while awaited was set: a replica waits until its
	// grants to others are over, and a holder may have confirmed its exclusion.
	confirmed func()
	awaited   atomic.Bool
	// ahead passes a timestamp for which the clock's ceiling must be raised, which waits for the
	// disk.
	ahead chan rhumb.Timestamp

	// mu guards the fields below. It is never held while frames are sent or the disk is used: the
	// pass and every read take it too.
	mu       sync.Mutex
	pairs    *lease.Pairs
	suspects []rhumb.NodeID

	stopTick func()
	raiser   sched.Worker
}

// newLeases starts the heartbeats of a host.
func newLeases(cfg *Config, healthy func() (bool, string), suspected func([]rhumb.NodeID), confirmed func()) *Leases {
	l := &Leases{
		rt: cfg.Runtime, out: cfg.Net, healthy: healthy, suspected: suspected, confirmed: confirmed, clock: cfg.Clock, log: cfg.Logger, ahead: make(chan rhumb.Timestamp, 1),
		pairs: lease.New(cfg.Self, cfg.Runtime.Now(), cfg.Fresh),
	}
	l.raiser = l.rt.Worker(l.raiseCeiling)
	l.stopTick = l.rt.Every(leaseTick, true, l.tick)
	return l
}

func (l *Leases) close() {
	l.stopTick()
	l.raiser.Stop()
}

// tick runs the pairs once: it sends the heartbeats that are due and reports changed suspicions.
func (l *Leases) tick() {
	// The checks that take other locks or move the clock come before the lock.
	ok, why := l.healthy()
	l.logHealth(why)
	closing := l.advanceClosing()
	l.mu.Lock()
	l.pairs.Close(closing)
	now := l.rt.Now()
	l.setWallLocked()
	l.pairs.SetHealthy(now, ok, why)
	out := l.pairs.Tick(now)
	suspects := l.pairs.Suspects(now)
	changed := !slices.Equal(suspects, l.suspects)
	l.suspects = suspects
	l.mu.Unlock()
	// Frames first: their delay adds to every round trip.
	l.sendFrames(out)
	if changed {
		l.suspected(slices.Clone(suspects))
	}
}

// logHealth logs when this node begins to withhold its heartbeats, and why: its peers will take it
// for dead.
func (l *Leases) logHealth(why string) {
	if why == l.withheld {
		return
	}
	if l.withheld = why; why != "" {
		l.log.Warn("this node withholds its heartbeats", "why", why)
	}
}

func (l *Leases) sendFrames(out []lease.Outgoing) {
	for i := range out {
		l.out.SendHeartbeat(out[i].To, &out[i].Frame)
	}
}

// Receive applies a frame from a peer. It runs on the goroutine that read the frame, so that no
// queue delays it.
func (l *Leases) Receive(from rhumb.NodeIdentity, f *lease.Frame) {
	passed := l.agreeToClose(f.Close)
	l.mu.Lock()
	// The clock is past the timestamp before Receive builds the answer, so the answer already
	// agrees.
	l.pairs.Passed(passed)
	l.setWallLocked()
	out := l.pairs.Receive(l.rt.Now(), from, f)
	l.mu.Unlock()
	l.sendFrames(out)
	// Any frame may carry the confirmation. The flag is set again if it did not, so a node that waits for nobody
	// does nothing here.
	if l.awaited.Swap(false) {
		l.confirmed()
	}
}

// sendDue sends the heartbeats that are due now. The pass calls it after it has excluded ranges, so that the holders confirm a
// round trip later: the next tick may be leaseTick away, and writes may wait for it.
//
// Frames that exclude a range may leave before the promise is durable. They only take something from the holder: if
// this node crashes and forgets the promise, it waits out every grant before it begins an epoch (rule S).
func (l *Leases) sendDue() {
	l.mu.Lock()
	l.setWallLocked()
	out := l.pairs.Tick(l.rt.Now())
	l.mu.Unlock()
	l.sendFrames(out)
}

// DropHeld forgets every lease that this node holds, because its clock has missed time.
func (l *Leases) DropHeld() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.DropHeld(l.rt.Now())
}

// Suspects returns the nodes that are suspected now.
func (l *Leases) Suspects() []rhumb.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.suspects)
}

// RTT returns the measured round trip to a peer.
func (l *Leases) RTT(n rhumb.NodeID) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.RTT(n)
}

// noteRefused notes that the host of a peer has refused a connection.
func (l *Leases) noteRefused(n rhumb.NodeID, boot rhumb.BootSeq) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.NoteRefused(l.rt.Now(), n, boot)
}

// roundTrips returns the measured round trips to the peers that this node is in contact with.
func (l *Leases) roundTrips() map[rhumb.NodeID]time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.RTTs(l.rt.Now())
}

// opinions returns what the peers think of this node's speed.
func (l *Leases) opinions() opinions {
	l.mu.Lock()
	defer l.mu.Unlock()
	slow, usual := l.pairs.Opinions(l.rt.Now())
	return opinions{slow, usual}
}

// setSpeeds sets this node's opinions of its peers.
func (l *Leases) setSpeeds(speeds map[rhumb.NodeID]lease.Speed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.SetSpeeds(speeds)
}

// Via returns the node through which a message reaches a node that is out of contact.
func (l *Leases) Via(n rhumb.NodeID) (rhumb.NodeID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Via(l.rt.Now(), n)
}

// setPeers sets the nodes to watch and to grant to.
func (l *Leases) setPeers(peers []lease.PeerInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.SetPeers(l.rt.Now(), peers)
}

// excludeRange takes a range out of all grants for epochs below e. No epoch precedes the first, so
// that one excludes nothing.
func (l *Leases) excludeRange(r rhumb.RangeID, e rhumb.Epoch, primary rhumb.NodeID) {
	if e <= firstEpoch {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.Exclude(r, e, primary)
}

// takeOver is excludeRange for an epoch that the primary of the epoch before handed over to this node.
func (l *Leases) takeOver(r rhumb.RangeID, e rhumb.Epoch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.TakeOver(r, e)
}

// holdsLease reports whether this node holds unexpired grants of all members for epoch e of r (rule
// L).
func (l *Leases) holdsLease(r rhumb.RangeID, e rhumb.Epoch, members []rhumb.NodeID) bool {
	if len(members) == 0 {
		// No other member could be elected.
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Holds(l.rt.Now(), r, e, members)
}

// firstEpoch is the epoch in which a range is created: nobody can hold an earlier lease on it.
const firstEpoch rhumb.Epoch = 1

// waitedOut reports whether every grant of this node to others for r is over (rule E).
func (l *Leases) waitedOut(r rhumb.RangeID, e rhumb.Epoch) bool {
	if e <= firstEpoch {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rt.Now() >= l.pairs.WaitUntil(r, e)
}
