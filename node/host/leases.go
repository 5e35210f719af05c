package host

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
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

	stop chan struct{}
	done sync.WaitGroup
}

func newLeases(cfg *Config, healthy func() (bool, string), suspected func([]rhumb.NodeID)) *Leases {
	l := &Leases{
		out: cfg.Net, healthy: healthy, suspected: suspected, clock: cfg.Clock, log: cfg.Logger, ahead: make(chan rhumb.Timestamp, 1),
		pairs: lease.New(cfg.Self, hlc.Boottime(), cfg.Fresh), stop: make(chan struct{}),
	}
	l.done.Go(l.run)
	l.done.Go(l.raise)
	return l
}

func (l *Leases) close() {
	close(l.stop)
	l.done.Wait()
}

// run ticks on a thread of its own, with a better priority where the system allows it, so that a loaded machine does not
// look like a dead one.
func (l *Leases) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -10) // refused without privilege: then at the usual priority
	t := time.NewTicker(leaseTick)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			l.tick()
		}
	}
}

func (l *Leases) tick() {
	ok, why := l.healthy()
	l.tellHealth(why)
	closing := l.closing()
	l.mu.Lock()
	l.pairs.Close(closing)
	now := hlc.Boottime()
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
	out := l.pairs.Receive(hlc.Boottime(), from, f)
	l.mu.Unlock()
	l.send(out)
}

// DropHeld forgets every lease that this node holds: its clock is not to be trusted for a while.
func (l *Leases) DropHeld() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.DropHeld(hlc.Boottime())
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

func (l *Leases) setPeers(peers []lease.PeerInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pairs.SetPeers(hlc.Boottime(), peers)
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
	return l.pairs.Holds(hlc.Boottime(), r, e, members)
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
	return hlc.Boottime() >= l.pairs.WaitUntil(r, e)
}
