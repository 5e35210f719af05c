package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// A disk may refuse all reads for a while (F33). The store of such a disk has no cache, and writes its memory to tables again and again, so
// that reads reach the disk. The refusal ends with the life of the process: a process that cannot read its disk when it starts stops, and is
// started again until it can.
//
// After the other faults of some seeds the disk of a primary refuses reads for longer, and the phase is judged
// (docs/replication.md#rule-unreadable).

const (
	// yieldMost is how long a node whose disk refuses reads may be primary of a range that another node could serve: until reads were refused in
	// enough steps (node/host), and other primaries were elected.
	yieldMost = 12 * time.Second
	// refuseFor is how long the disk refuses reads in the phase that is judged.
	refuseFor = 20 * time.Second
	// flushEvery is the time after which a disk that refuses reads writes its memory to tables.
	flushEvery = 250 * time.Millisecond
	// stoppedFor is how long a node is down that stopped because of an error of its disk.
	stoppedFor = time.Second
)

// refusesReads reports whether the disks of this run may refuse reads.
func (p *profile) refusesReads() bool { return p.unread || slices.Contains(p.faults, faultUnreadable) }

// readFaults returns what makes reads of the disk fail, or nil in runs without such faults: it costs the cache of the store.
func (d *disk) readFaults() *storage.ReadFaults {
	if d.faults == nil && d.n.w.p.refusesReads() {
		d.faults = new(storage.ReadFaults)
	}
	return d.faults
}

// quiet turns off what reads tables in the background at times that the seed does not determine.
func quiet(o *storage.PebbleOptions) { o.DisableAutomaticCompactions, o.DisableTableStats = true, true }

// refuse makes the disk refuse all reads, or none.
func (d *disk) refuse(on bool) {
	if d.faults == nil {
		return
	}
	d.refusing = on
	share := 0.0
	if on {
		share = 1
	}
	d.faults.SetShare(share)
}

// judged lets the judges read a disk that refuses reads.
func (d *disk) judged(read func()) {
	was := d.refusing
	d.refuse(false)
	read()
	d.refuse(was)
}

// flushesMax bounds the flushes of one fault. No table can be compacted while reads are refused, so more of them would fill the first level, and
// the database would then keep the simulation waiting without end.
const flushesMax = 3

// refuseReads begins a fault in which the disk of a node refuses reads.
func (n *node) refuseReads(length time.Duration) string {
	if n.down || n.paused || n.host == nil || n.disk.refusing || n.disk.readFaults() == nil {
		return ""
	}
	n.disk.refuse(true)
	life, flushes := n.life, 0
	var flush func()
	flush = func() {
		if n.down || n.life != life || !n.disk.refusing || flushes == flushesMax {
			return
		}
		flushes++
		n.w.judge(n.disk.engine.Stores()[0].Flush())
		n.w.after(flushEvery, flush)
	}
	flush()
	n.w.after(length, func() {
		if n.life == life {
			n.disk.refuse(false)
		}
	})
	return n.name()
}

// errStopped unwinds what a node does when its process ends by an error. Code that went on, as no process does after
// [host.Config].Fatal, would work on a batch that lacks a part.
var errStopped = errors.New("sim: the process of the node stopped")

// stopByError ends a process that could not continue because of its disk. It is started again.
func (n *node) stopByError(err error) {
	if !n.disk.refusing {
		panic(err)
	}
	n.w.tracef(n.name(), "stops: %v", err)
	if n.working {
		n.stopping = true
		panic(errStopped)
	}
	n.later(0, func() { n.w.takeDown(n, stoppedFor) })
}

// work calls do as a part of the process, and takes the node down if the process ends by an error in it.
func (n *node) work(do func()) {
	if n.working {
		do()
		return
	}
	running := n.w.running
	n.working = true
	defer func() {
		n.working = false
		if n.stopping {
			// Any other panic goes on, with its stack.
			_ = recover()
			n.stopping, n.w.running = false, running
			n.w.takeDown(n, stoppedFor)
		}
	}()
	do()
}

// watchGroup stops the process when its copy of the metadata failed, as package node does.
func (n *node) watchGroup() {
	if n.group.Err() != nil && n.disk.refusing {
		n.stopByError(n.group.Err())
	}
}

// failReads lets the disk of the primary of a range refuse reads. The node must not be primary of a range after yieldMost if another node could
// be, and nothing may be quarantined.
func (w *world) failReads() {
	if w.err != nil || !w.p.unread || w.damage != nil && !w.damage.isRepaired() {
		return
	}
	w.awaitLive(w.now)
	// A range that awaits a person, or whose other members are unfit, could not move.
	if w.err != nil || w.stats.Lost+w.stats.Quarantined > 0 || slices.ContainsFunc(w.nodes, func(n *node) bool { return n.host != nil && n.host.Unfit() != "" }) {
		return
	}
	r, _ := w.state.Range(oneOf(w.chance, w.served()...))
	n := w.nodes[r.Primary-1]
	if n.refuseReads(refuseFor) == "" {
		return
	}
	w.tracef("fault", "the disk of %s refuses reads", n.id)
	w.stats.Yielded++
	life := n.life
	for end := w.now + refuseFor; w.err == nil && n.life == life && w.now < end; w.until(w.now + 250*time.Millisecond) {
		for _, id := range w.served() {
			if r, ok := w.state.Range(id); ok && end-w.now < refuseFor-yieldMost && r.Primary == n.id && w.hasFitMember(r) {
				w.failf("range %s: its primary is still %s, whose disk has refused reads for %v (unfit: %q)", id, n.id, refuseFor-(end-w.now), n.host.Unfit())
			}
		}
	}
	w.awaitLive(w.now)
	if w.err == nil && w.stats.Quarantined > 0 {
		w.failf("%d copies are quarantined because a disk refused reads", w.stats.Quarantined)
	}
}

// hasFitMember reports whether another member of the in-sync set could be primary.
func (w *world) hasFitMember(r *rhumb.Range) bool {
	return slices.ContainsFunc(r.InSync, func(id rhumb.NodeID) bool {
		n := w.nodes[id-1]
		return id != r.Primary && !n.down && n.host != nil && n.host.Unfit() == ""
	})
}
