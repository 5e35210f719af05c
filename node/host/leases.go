package host

import (
	"log/slog"
	"slices"
	"sync"
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

// leaseTick is how often due heartbeats and suspicions are looked at. It is well below the shortest heartbeat interval.
const leaseTick = 25 * time.Millisecond

// Leases drives the pure lease.Pairs of a node: it gives them time, sends what they want sent and tells of suspicions.
//
// HAZARD: a lease is measured on CLOCK_BOOTTIME (hlc.Boottime). A pause of the whole machine that this clock does not
// count can make a lease read stale; it can never lose a write (replication design, section 1.1).
type Leases struct {
	rt  sched.Runtime
	out Heartbeats
	// healthy says whether the node's disk and loop keep up; with false heartbeats are withheld, so that liveness follows
	// the data path (section 1.10).
	healthy func() (ok bool, why string)
	// suspected is called, outside the lock, with all nodes that are suspected now, whenever that set changes.
	suspected func(nodes []rhumb.NodeID)
	clock     *hlc.Clock
	log       *slog.Logger
	withheld  string // why heartbeats are withheld; "" while they are not. Only run uses it.
	// ahead takes a timestamp that the clock's ceiling must be raised for, which waits for the disk.
	ahead chan rhumb.Timestamp

	mu       sync.Mutex // guards all below
	pairs    *lease.Pairs
	suspects []rhumb.NodeID

	stopTick func()
	raiser   sched.Worker
}

func newLeases(cfg *Config, healthy func() (bool, string), suspected func([]rhumb.NodeID)) *Leases {
	l := &Leases{
		rt: cfg.Runtime, out: cfg.Net, healthy: healthy, suspected: suspected, clock: cfg.Clock, log: cfg.Logger, ahead: make(chan rhumb.Timestamp, 1),
		pairs: lease.New(cfg.Self, cfg.Runtime.Now(), cfg.Fresh),
	}
	l.raiser = l.rt.Worker(l.raise)
	l.stopTick = l.rt.Every(leaseTick, true, l.tick)
	return l
}

func (l *Leases) close() {
	l.stopTick()
	l.raiser.Stop()
}

func (l *Leases) tick() {
	ok, why := l.healthy()
	l.tellHealth(why)
	closing := l.closing()
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
	l.send(out)
	if changed {
		l.suspected(slices.Clone(suspects))
	}
}

// tellHealth logs when this node begins to withhold its heartbeats, and why: its peers will take it for dead.
func (l *Leases) tellHealth(why string) {
	if why == l.withheld {
		return
	}
	if l.withheld = why; why != "" {
		l.log.Warn("this node withholds its heartbeats", "why", why)
	}
}

func (l *Leases) send(out []lease.Outgoing) {
	for i := range out {
		l.out.SendHeartbeat(out[i].To, &out[i].Frame)
	}
}

// Receive takes a frame from a peer. It runs on the goroutine that read it, so that nothing queues in between.
func (l *Leases) Receive(from rhumb.NodeIdentity, f *lease.Frame) {
	passed := l.pass(f.Close)
	l.mu.Lock()
	l.pairs.Passed(passed)
	l.setWallLocked()
	out := l.pairs.Receive(l.rt.Now(), from, f)
	l.mu.Unlock()
	l.send(out)
}

// DropHeld forgets every lease that this node holds: its clock is not to be trusted for a while.
func (l *Leases) DropHeld() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.DropHeld(l.rt.Now())
}

// Suspects lists the nodes that are suspected now.
func (l *Leases) Suspects() []rhumb.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.suspects)
}

// RTT gives the measured round trip to a peer.
func (l *Leases) RTT(n rhumb.NodeID) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.RTT(n)
}

// Via returns the node by way of which a message reaches one that is out of contact.
func (l *Leases) Via(n rhumb.NodeID) (rhumb.NodeID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Via(l.rt.Now(), n)
}

func (l *Leases) setPeers(peers []lease.PeerInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.SetPeers(l.rt.Now(), peers)
}

// exclude takes a range out of all grants for epochs below e. There is nothing below the first epoch.
func (l *Leases) exclude(r rhumb.RangeID, e rhumb.Epoch, primary rhumb.NodeID) {
	if e <= firstEpoch {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.Exclude(r, e, primary)
}

func (l *Leases) holds(r rhumb.RangeID, e rhumb.Epoch, members []rhumb.NodeID) bool {
	if len(members) == 0 {
		return true // nobody else could be elected
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pairs.Holds(l.rt.Now(), r, e, members)
}

// firstEpoch is the epoch in which a range is made: nobody can hold a lease on it from before.
const firstEpoch rhumb.Epoch = 1

// waitedOut reports whether every grant that this node gave to others for r is over (rule E).
func (l *Leases) waitedOut(r rhumb.RangeID, e rhumb.Epoch) bool {
	if e <= firstEpoch {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rt.Now() >= l.pairs.WaitUntil(r, e)
}
