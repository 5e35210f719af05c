package sim

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// disk is the disk of one node, with the real storage engine on it. What the engine syncs becomes durable a while later: a
// crash takes back any of the newest writes that nobody was told to be durable.
type disk struct {
	n      *node
	media  *storagetest.Disk
	engine *storage.Engine
	// debts are the syncs that the disk has not answered, oldest first, durable the length of the newest log up to which it
	// has. working is true while a sync of a debt to come is made.
	debts   []*debt
	log     string
	marked  int64 // the length of that log when a sync was made last
	durable int64
	working bool
	// last is when the newest debt will be paid: disks answer in order.
	last time.Duration
	// slowBy and stallUntil make the disk slow; they outlive crashes.
	slowBy     time.Duration
	stallUntil time.Duration
	// quarantined says, by range, that the start found a reason of a quarantine.
	quarantined []bool
	// full says that there is no room for more.
	full atomic.Bool
	// copies are what the disk holds of each range, by the world's number of the range; nil where it holds none. unmarked
	// are those that have changed since the last sync was asked for.
	copies   []*rangeCopy
	unmarked map[*rangeCopy]rhumb.Seq // with the end of the log below what changed
	// older is a copy of the disk as the life before the present one left it, olderNonce the nonce of that life; only with
	// faults that need it.
	older      *storagetest.Disk
	olderNonce uint64
	// results are those of every request that was ever appended, undone or not (KeepResults).
	results map[rhumb.RequestID]replica.Dedup
}

// debt is a sync that was asked for and not yet answered.
type debt struct {
	since time.Duration
	step  uint64 // of the world
	mark  int64  // the length of the log that it makes durable
	ends  []copyEnd
}

// copyEnd is how far a range's log goes at a sync, and up to where it was not changed since the sync before.
type copyEnd struct {
	c          *rangeCopy
	end, floor rhumb.Seq
}

// rangeCopy is what the judges know of one replica's log: everything that its node was asked to write.
type rangeCopy struct {
	entries []*entry.Entry
	commit  rhumb.Seq
	// durable is the position up to which the log is durable, whatever a crash takes back.
	durable rhumb.Seq
}

// Durable tells the judges what is certainly on the disk.
func (c *rangeCopy) Durable(seq rhumb.Seq) (entry.Position, bool) {
	if c == nil || seq == 0 || seq > c.durable || seq > rhumb.Seq(len(c.entries)) {
		return entry.Position{}, false
	}
	return c.entries[seq-1].Position(), true
}

func (d *disk) open() (err error) {
	if d.media == nil {
		d.media = storagetest.NewDisk()
	}
	d.engine, err = d.media.OpenEngine(storage.Config{
		MemTableBytes: 1 << 20, CacheBytes: 1 << 20,
		DiskFree: d.free, DiskFreeEvery: -1, RefuseFree: refuseFree,
		FatalHandler: func(msg string) { panic("sim: the engine cannot go on: " + msg) },
	})
	if err != nil {
		return err
	}
	d.debts, d.last, d.working, d.unmarked = nil, 0, false, map[*rangeCopy]rhumb.Seq{}
	before := slices.Clone(d.copies)
	for i, c := range before {
		if c != nil {
			kept := *c // as the crash left it
			before[i] = &kept
		}
	}
	d.settle()
	if err := d.reload(); err != nil {
		return err
	}
	if len(before) > 0 && (d.n.w.harm == nil || d.n.w.harm.n != d.n || d.n.w.harm.kind != faultEmpty) {
		d.lose(before)
	}
	return nil
}

// The room of a disk, in bytes. A full one refuses what is new and takes what was accepted: of the states of storage.DiskState
// this is the one in which a node lives with it. None of the numbers is near a limit that depends on real time: a disk that
// fills faster is refused sooner.
const (
	diskTotal  = 19
	diskLeft   = 5
	refuseFree = 0.27
)

// free tells the engine how much room there is. Goroutines of the engine call it, too.
func (d *disk) free(string) (free, total uint64, err error) {
	if d.full.Load() {
		return diskLeft, diskTotal, nil
	}
	return diskTotal, diskTotal, nil
}

// settle makes all that was written durable: a sync was waited for.
func (d *disk) settle() {
	if d.working {
		return
	}
	d.log, d.durable, _ = d.media.Log()
	d.marked = d.durable
	for _, b := range d.debts {
		b.mark = d.durable
	}
	for _, c := range d.copies {
		if c != nil {
			if floor, changed := d.unmarked[c]; changed {
				c.durable = min(c.durable, floor)
			} else {
				c.durable = rhumb.Seq(len(c.entries))
			}
		}
	}
}

// outstanding is how long the oldest sync has waited for its answer.
func (d *disk) outstanding() time.Duration {
	if len(d.debts) == 0 {
		return 0
	}
	return d.n.w.now - d.debts[0].since
}

// latency draws how long the disk takes.
func (d *disk) latency() time.Duration {
	w := d.n.w
	wait := time.Duration(float64(w.p.syncDelay)*(0.5+0.5*w.rnd.ExpFloat64())) + d.slowBy
	return wait + max(0, d.stallUntil-w.now)
}

// owe has done called when what was written so far is durable.
func (d *disk) owe(done func()) {
	w := d.n.w
	d.measure()
	b := &debt{since: w.now, step: w.steps, mark: d.marked}
	for _, c := range d.copies {
		if floor, changed := d.unmarked[c]; c != nil && changed {
			b.ends = append(b.ends, copyEnd{c, rhumb.Seq(len(c.entries)), floor})
		}
	}
	clear(d.unmarked)
	d.debts = append(d.debts, b)
	d.last = max(d.last, w.now+d.latency())
	life := d.n.life
	if w.cfg.Bug == CountBeforeSync && len(b.ends) > 0 {
		w.after(0, done)
		done = func() {}
	}
	w.after(d.last-w.now, func() {
		if d.n.life == life && len(d.debts) > 0 {
			d.pay(done)
		}
	})
}

// measure notes how long the log is, if it was synced since. What was written without a sync may or may not be there yet.
func (d *disk) measure() {
	name, written, synced := d.media.Log()
	if name != d.log { // the log before was finished, which syncs it
		d.log, d.marked, d.durable = name, 0, 0
	}
	if !synced {
		return
	}
	d.marked = written
	for _, b := range d.debts {
		if b.step == d.n.w.steps { // a pass syncs all its commits together
			b.mark = written
		}
	}
}

// lyingDebts is how many syncs a LyingDisk leaves undone.
const lyingDebts = 40

// pay answers the oldest debt.
func (d *disk) pay(done func()) {
	b := d.debts[0]
	if d.n.w.cfg.Bug == LyingDisk {
		if len(d.debts) > lyingDebts {
			d.debts = d.debts[1:]
			d.durable = max(d.durable, b.mark)
		}
		done()
		return
	}
	d.debts = d.debts[1:]
	d.durable = max(d.durable, b.mark)
	d.mark(b)
	done()
}

// mark notes what a paid debt made durable, as far as later writes that are not have not changed it.
func (d *disk) mark(b *debt) {
	for _, e := range b.ends {
		e.c.durable = e.end
		for _, later := range d.debts {
			for _, f := range later.ends {
				if f.c == e.c {
					e.c.durable = min(e.c.durable, f.floor)
				}
			}
		}
		if floor, changed := d.unmarked[e.c]; changed {
			e.c.durable = min(e.c.durable, floor)
		}
	}
}

// change notes that a copy's log was changed above floor.
func (d *disk) change(c *rangeCopy, floor rhumb.Seq) {
	if old, ok := d.unmarked[c]; ok {
		floor = min(floor, old)
	}
	d.unmarked[c] = floor
	c.durable = min(c.durable, floor)
}

// crash makes the disk what a loss of power leaves of it: of what is not durable, any number of the oldest bytes.
func (d *disk) crash() {
	w := d.n.w
	marks := []int64{d.durable}
	for _, b := range d.debts {
		marks = append(marks, max(b.mark, d.durable))
	}
	keep, most := one(w.rnd, marks...), slices.Max(marks)
	if w.rnd.IntN(4) == 0 && most > d.durable { // in the middle of a record
		keep = d.durable + w.rnd.Int64N(most-d.durable)
	}
	w.tracef(d.n.name(), "crash, keeps %d of %d bytes, %d are durable", keep, most, d.durable)
	// A process that is killed leaves the exact length, a loss of power any earlier one.
	remains := storagetest.Remains{Keep: keep, Known: one(w.rnd, 0, d.durable)}
	h := w.harm
	if h != nil && (h.n != d.n || h.done || !h.spoil(&remains, d.durable)) {
		h = nil
	}
	after, err := d.media.Crash(remains)
	w.judge(err)
	if slices.Contains(w.p.faults, faultRollBack) && err == nil {
		older := after.Copy()
		if h != nil && h.kind == faultRollBack {
			after, older = d.older, d.older.Copy()
		} else {
			d.olderNonce = d.n.begun.Nonce
		}
		d.older = older
	}
	w.judge(d.engine.Close()) // it may finish on the disk that was; nothing of that reaches the new one
	d.media, d.engine = after, nil
}

// reload reads what the engine holds of each range. The judges keep the entries that are trimmed away.
func (d *disk) reload() error {
	w := d.n.w
	for i, id := range w.ranges {
		store := d.engine.Store(id)
		st, ok := store.State(id)
		if !ok {
			d.copies[i], d.quarantined[i] = nil, false
			continue
		}
		if d.copies[i] == nil && !d.n.harmed {
			return fmt.Errorf("%s holds range %s, which it never wrote", d.n.id, id)
		}
		d.quarantined[i] = st.Quarantine != ""
		c := &rangeCopy{commit: min(st.Commit, st.Last.Seq), durable: st.Last.Seq}
		committed := w.monitor.Log(id).Entries // all that is trimmed away is
		c.entries = slices.Clone(committed[:min(int(st.Trim), len(committed))])
		for from := st.Trim + 1; from <= st.Last.Seq; from = rhumb.Seq(len(c.entries)) + 1 {
			more, err := store.Entries(id, from, st.Last.Seq, 0)
			if err != nil {
				return err
			}
			if len(more) == 0 {
				return fmt.Errorf("%s: range %s: entry %d is missing below %d", d.n.id, id, from, st.Last.Seq)
			}
			c.entries = append(c.entries, more...)
		}
		d.copies[i] = c
	}
	return nil
}

// kv is the part of the engine that the metadata group writes to. What it syncs outside of a debt is durable at once.
type kv struct {
	raftmeta.KV
	d *disk
}

func (k kv) NewBatch() raftmeta.KVBatch { return kvBatch{k.KV.NewBatch(), k.d} }

type kvBatch struct {
	raftmeta.KVBatch
	d *disk
}

func (b kvBatch) Commit(sync bool) error {
	err := b.KVBatch.Commit(sync)
	if sync {
		b.d.settle()
	}
	return err
}
