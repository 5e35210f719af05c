package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// In some seeds the table defers syncs (docs/replication.md#deferred). A crash then keeps
// everything that the operating system had, as the end of a process does: so all acknowledged
// writes count as durable for the judges. Only a power loss (faultPower) takes writes that were not
// synced. It counts as damage of the disk, with its bounds, so whatever is lost with it must be on
// the other members.

// deferredWindow is the window of the table in such seeds.
const deferredWindow = rhumb.Durability(30 * time.Millisecond)

// deferredDelay is the longest time until the operating system has a write.
const deferredDelay = 200 * time.Microsecond

// drawDeferred decides whether the table defers syncs. It has a generator of its own, so that all
// other seeds keep their meaning.
func (p *profile) drawDeferred(r *rand.Rand, on bool, bug Bug) {
	switch {
	case bug == LongWindow:
	case bug == DeferSynced:
		// The table is to be synced, and a node does not do it.
		return
	case !on || r.IntN(6) > 0:
		return
	default:
		p.faults = append(slices.Clone(p.faults), faultPower)
	}
	p.settings.Durability = deferredWindow
}

// deferredWrite is a commit that was acknowledged before it was synced, until it is synced.
type deferredWrite struct {
	at time.Duration
	// step is the world step of the commit.
	step uint64
	// mark is the length of the log file with it.
	mark int64
}

// requestFlush calls done when the operating system has everything that was written so far.
func (d *disk) requestFlush(done func()) {
	w := d.n.w
	write := &deferredWrite{w.now, w.steps, d.written}
	d.deferred = append(d.deferred, write)
	var ends []syncEnd
	for _, c := range d.copies {
		if floor, changed := d.unmarked[c]; c != nil && changed {
			ends = append(ends, syncEnd{c, rhumb.Seq(len(c.entries)), floor})
		}
	}
	clear(d.unmarked)
	// The host may have asked for a sync before it wrote what the judges have seen already. The
	// operating system has that too.
	ahead := slices.Clone(d.pending)
	life, log := d.n.life, d.log
	w.after(time.Duration(w.rnd.Int64N(int64(deferredDelay))), func() {
		if d.n.life != life {
			return
		}
		if d.log == log {
			d.durable = max(d.durable, write.mark)
		}
		for _, b := range ahead {
			for i := range b.ends {
				e := &b.ends[i]
				e.floor = e.end
				ends = append(ends, *e)
			}
		}
		d.markDurable(&pendingSync{ends: ends})
		done()
	})
}

// noteSynced records that the log file is synced up to a length, whatever happens.
func (d *disk) noteSynced(length int64) {
	d.synced = max(d.synced, length)
	d.deferred = slices.DeleteFunc(d.deferred, func(b *deferredWrite) bool { return b.mark <= d.synced })
}

// losePowerOf removes some of the newest writes that were acknowledged and not synced. It reports
// false if there is nothing, and judges whether there may be so much: all of it was written within
// one window.
func (h *diskDamage) losePowerOf(r *storagetest.Remains) bool {
	d, w := &h.n.disk, h.n.w
	if d.synced >= d.durable {
		return false
	}
	acked := slices.DeleteFunc(slices.Clone(d.deferred), func(b *deferredWrite) bool { return b.mark > d.durable })
	if len(acked) > 0 {
		span, window := acked[len(acked)-1].at-acked[0].at, w.p.settings.Durability.Window()
		// Clocks differ by a thousandth, and a pass may acknowledge writes that it took a moment
		// before.
		if most := window + window/100 + w.p.pass + deferredDelay; span > most {
			w.failf("%s: writes of %v were acknowledged and not synced; the window of the table is %v", h.n.id, span, window)
		}
	}
	r.Keep = d.synced + w.rnd.Int64N(d.durable-d.synced)
	r.Known = oneOf(w.rnd, 0, d.synced)
	return true
}
