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

// disk is the simulated disk of one node, with the real storage engine on it. The engine writes and
// syncs at once; the world answers each sync some time later. A crash cuts the newest log file
// anywhere after the last answered sync, so code that acts before the answer is caught.
//
// Positions in the log file (durable, marked) are byte offsets. The judges need sequence numbers,
// so disk tracks for each range which entries every sync covers (syncEnd).
type disk struct {
	n      *node
	media  *storagetest.Disk
	engine *storage.Engine
	// pending are the unanswered syncs, oldest first.
	//
	// log is the newest log file, durable the length of it that answered syncs cover. working is
	// set while the host performs a sync whose answer will be pending.
	pending []*pendingSync
	log     string
	// marked is the length of the newest log file at the last sync.
	marked  int64
	durable int64
	// written is its length, synced how far it is really synced, and deferred are the acknowledged writes above. Without deferred
	// syncs, nothing is durable that is not synced.
	written  int64
	synced   int64
	deferred []*deferredWrite
	working  bool
	// deferring is set while working if the work syncs nothing. The log file cannot tell: the engine writes it in the
	// background, at moments that no seed determines.
	deferring bool
	// last is when the newest pending sync will be answered: a disk answers in order.
	last time.Duration
	// slowBy and stallUntil delay answers. They outlive crashes.
	slowBy     time.Duration
	stallUntil time.Duration
	// quarantined is set, by range, if the start found a quarantine on disk.
	quarantined []bool
	// full makes freeSpace report a full disk. It is atomic because goroutines of the engine read
	// it.
	full atomic.Bool
	// faults make reads fail while refusing is set; nil in runs without such faults.
	faults   *storage.ReadFaults
	refusing bool
	// copies are the contents of the disk by range index, nil for a range it does not hold.
	// unmarked are the copies that have changed since the last sync, each with the end of the
	// unchanged part of its log.
	copies []*rangeCopy
	// merged are the ranges, by index, whose copies were united with others in this life.
	merged   map[int]bool
	unmarked map[*rangeCopy]rhumb.Seq
	// older is a copy of the disk as the previous life left it, olderNonce the nonce of that life.
	// They are kept only for seeds that roll back disks.
	older      *storagetest.Disk
	olderNonce uint64
	// results are the results of every request that was ever appended, undone or not (KeepResults).
	results map[rhumb.RequestID]replica.Dedup
}

// pendingSync is a sync that was requested and not yet answered.
type pendingSync struct {
	since time.Duration
	// step is the world step of the request.
	step uint64
	// mark is the length of the log file that the sync makes durable.
	mark int64
	ends []syncEnd
}

// syncEnd records for one range where its log ends at a sync, and up to where it has not changed
// since the sync before.
type syncEnd struct {
	c          *rangeCopy
	end, floor rhumb.Seq
}

// rangeCopy is the judges' copy of the log of one replica: everything that the node was asked to
// write.
type rangeCopy struct {
	entries []*entry.Entry
	commit  rhumb.Seq
	// durable is the last entry that no crash can take away.
	durable rhumb.Seq
}

// Durable returns the position of an entry that is certainly on the disk. It implements
// check.Replica.
func (c *rangeCopy) Durable(seq rhumb.Seq) (entry.Position, bool) {
	if c == nil || seq == 0 || seq > c.durable || seq > rhumb.Seq(len(c.entries)) {
		return entry.Position{}, false
	}
	return c.entries[seq-1].Position(), true
}

// openEngine opens the engine on the remains of the last crash, rebuilds the copies from it, and
// checks that nothing durable is missing.
func (d *disk) openEngine() (err error) {
	if d.media == nil {
		d.media = storagetest.NewDisk()
	}
	// Each crash has a disk of its own.
	if d.n.w.cfg.Bug == TablesBeforeLog {
		d.media.ForgetSyncs()
	}
	d.refuse(false)
	cfg := storage.Config{
		MemTableBytes: 1 << 20, CacheBytes: 1 << 20, ReadFaults: d.readFaults(), OwnLog: d.n.w.cfg.OwnLog,
		// Never cache the answer of DiskFree: a cached one would expire in real time.
		DiskFree: d.freeSpace, DiskFreeEvery: -1, RefuseFree: refuseFree,
		FatalHandler: func(msg string) { panic("sim: fatal error of the engine: " + msg) },
	}
	if cfg.ReadFaults != nil {
		cfg.Options = quiet
	}
	d.engine, err = d.media.OpenEngine(cfg)
	if err != nil {
		return err
	}
	// A fresh engine has no sync in progress. The latency and stalls of the disk outlive the crash.
	d.pending, d.last, d.working, d.deferring, d.unmarked = nil, 0, false, false, map[*rangeCopy]rhumb.Seq{}
	// checkLosses compares against the copies as the crash left them, which reloadCopies replaces.
	before := slices.Clone(d.copies)
	for i, c := range before {
		if c != nil {
			kept := *c // as the crash left it
			before[i] = &kept
		}
	}
	// Everything that the crash left counts as durable from here on.
	d.settleAll()
	if err := d.reloadCopies(); err != nil {
		return err
	}
	d.merged = map[int]bool{}
	// An emptied directory is checked later: start empties it after the engine is open.
	if len(before) > 0 && (d.n.w.damage == nil || d.n.w.damage.n != d.n || d.n.w.damage.kind != faultEmpty) {
		d.checkLosses(before)
	}
	return nil
}

// The room of a disk, in bytes. A full disk rejects new work and takes accepted work: this is the
// state of storage.DiskState in which a node keeps running. The numbers are tiny so that no bound
// that depends on real time is near: the engine also rejects work on a disk that fills fast.
const (
	diskTotal  = 19
	diskLeft   = 5
	refuseFree = 0.27
)

// freeSpace reports the free space to the engine, whose goroutines may call it.
func (d *disk) freeSpace(string) (free, total uint64, err error) {
	if d.full.Load() {
		return diskLeft, diskTotal, nil
	}
	return diskTotal, diskTotal, nil
}

// settleAll records everything written so far as durable, after a sync that the caller waited for.
func (d *disk) settleAll() {
	// The sync belongs to a pass of the host, and requestSync accounts for it.
	if d.working {
		return
	}
	// Whoever calls this has waited for its sync in real code; the file system in memory has no
	// latency.
	d.log, d.durable, _ = d.media.Log()
	d.marked, d.written = d.durable, d.durable
	d.synced, d.deferred = d.durable, nil
	// Earlier requests are durable now too, although their answers are still to come.
	for _, b := range d.pending {
		b.mark = d.durable
	}
	for _, c := range d.copies {
		if c != nil {
			// Probe.Ready sees entries before the host writes them, so those above floor may not be
			// in the file yet.
			if floor, changed := d.unmarked[c]; changed {
				c.durable = min(c.durable, floor)
			} else {
				c.durable = rhumb.Seq(len(c.entries))
			}
		}
	}
}

// oldestSyncAge returns how long the oldest pending sync has waited. The host derives its fitness
// from it.
func (d *disk) oldestSyncAge() time.Duration {
	if len(d.pending) == 0 {
		return 0
	}
	return d.n.w.now - d.pending[0].since
}

// drawLatency draws the time until a sync is answered.
func (d *disk) drawLatency() time.Duration {
	w := d.n.w
	// At least half of syncDelay, so that no sync is instantaneous.
	wait := time.Duration(float64(w.p.syncDelay)*(0.5+0.5*w.rnd.ExpFloat64())) + d.slowBy
	return wait + max(0, d.stallUntil-w.now)
}

// requestSync calls done when everything written so far is durable.
func (d *disk) requestSync(done func()) {
	w := d.n.w
	d.measureLog()
	if d.deferring {
		d.deferring = false
		d.requestFlush(done)
		return
	}
	b := &pendingSync{since: w.now, step: w.steps, mark: d.marked}
	// A sync covers all ranges, because they share one log file.
	for _, c := range d.copies {
		if floor, changed := d.unmarked[c]; c != nil && changed {
			b.ends = append(b.ends, syncEnd{c, rhumb.Seq(len(c.entries)), floor})
		}
	}
	clear(d.unmarked)
	d.pending = append(d.pending, b)
	// Disks answer in order, even if a later sync would be faster.
	d.last = max(d.last, w.now+d.drawLatency())
	life := d.n.life
	// The bug hides the answer from the host, not from the judges: the entry stays pending here.
	if w.cfg.Bug == CountBeforeSync && len(b.ends) > 0 {
		w.after(0, done)
		done = func() {}
	}
	w.after(d.last-w.now, func() {
		// A crash drops all pending syncs together with the life that requested them.
		if d.n.life == life && len(d.pending) > 0 {
			d.completeSync(done)
		}
	})
}

// measureLog notes the length of the log file, and that it is synced if it was since the last call. Bytes that were
// written after the sync may or may not be on disk yet.
func (d *disk) measureLog() {
	name, written, synced := d.media.Log()
	// Finishing the previous file syncs it.
	if name != d.log {
		d.log, d.marked, d.durable = name, 0, 0
		d.synced, d.deferred = 0, nil
	}
	d.written = written
	for _, b := range d.deferred {
		if b.step == d.n.w.steps {
			b.mark = written
		}
	}
	if !synced {
		return
	}
	d.marked = written
	for _, b := range d.pending {
		// A pass syncs all its commits together, so earlier requests of the same step are covered
		// too.
		if b.step == d.n.w.steps {
			b.mark = written
		}
	}
}

// lyingSyncsMax is the number of syncs that a LyingDisk leaves undone.
const lyingSyncsMax = 40

// completeSync answers the oldest pending sync.
func (d *disk) completeSync(done func()) {
	b := d.pending[0]
	if d.n.w.cfg.Bug == LyingDisk {
		// Answered, but durable only after lyingSyncsMax more syncs.
		// Until then a crash takes the entries back, although the host counts on them.
		if len(d.pending) > lyingSyncsMax {
			d.pending = d.pending[1:]
			d.durable = max(d.durable, b.mark)
		}
		done()
		return
	}
	d.pending = d.pending[1:]
	d.durable = max(d.durable, b.mark)
	d.noteSynced(b.mark)
	d.markDurable(b)
	done()
}

// markDurable records the entries that an answered sync made durable. Entries that were undone or
// replaced afterwards are durable only up to the floor of the later change, until that change is
// synced too.
func (d *disk) markDurable(b *pendingSync) {
	for _, e := range b.ends {
		end := min(e.end, rhumb.Seq(len(e.c.entries)))
		// Syncs that are still pending may cover later changes of the same log.
		for _, later := range d.pending {
			for _, f := range later.ends {
				if f.c == e.c {
					end = min(end, f.floor)
				}
			}
		}
		if floor, changed := d.unmarked[e.c]; changed {
			end = min(end, floor)
		}
		// The operating system may have had more for some time, which counts if the table defers syncs.
		e.c.durable = max(e.c.durable, end)
	}
}

// noteChange records that the log of a copy has changed above floor.
func (d *disk) noteChange(c *rangeCopy, floor rhumb.Seq) {
	// Several changes before one sync count as one, from the lowest changed entry on.
	if old, ok := d.unmarked[c]; ok {
		floor = min(floor, old)
	}
	d.unmarked[c] = floor
	c.durable = min(c.durable, floor)
}

// lossesPerFlush is how many losses of power there are for each one that follows a flush, if stores have logs of their own.
const lossesPerFlush = 2

// losePower reduces the disk to the remains of a power loss: everything durable and any prefix of
// the newer bytes.
func (d *disk) losePower() {
	w := d.n.w
	// Tables that become durable right before are the ones that are ahead of the log, if any can be.
	if w.cfg.OwnLog && w.rnd.IntN(lossesPerFlush) == 0 {
		w.judge(d.engine.Stores()[0].Flush())
	}
	// The cut is usually at the end of some sync, the places where an off-by-one in a sync would
	// show.
	marks := []int64{d.durable}
	for _, b := range d.pending {
		marks = append(marks, max(b.mark, d.durable))
	}
	keep, most := oneOf(w.rnd, marks...), slices.Max(marks)
	// Sometimes the cut is in the middle of a record.
	if w.rnd.IntN(4) == 0 && most > d.durable {
		keep = d.durable + w.rnd.Int64N(most-d.durable)
	}
	w.tracef(d.n.name(), "crash, keeps %d of %d bytes, %d are durable", keep, most, d.durable)
	// A killed process leaves the exact synced length on record; after a power loss it may be
	// older.
	remains := storagetest.Remains{Keep: keep, Known: oneOf(w.rnd, 0, d.durable)}
	// The damage applies to this crash only if the disk was chosen and not damaged yet.
	h := w.damage
	if h != nil && (h.n != d.n || h.done || !h.damageRemains(&remains, d.durable)) {
		h = nil
	}
	after, err := d.media.Crash(remains)
	w.judge(err)
	// The image is taken at the end of each life. Rolling back swaps in the previous image, and
	// keeps it: the next life may be rolled back to the same one.
	if slices.Contains(w.p.faults, faultRollBack) && err == nil {
		older := after.Copy()
		if h != nil && h.kind == faultRollBack {
			after, older = d.older, d.older.Copy()
		} else {
			d.olderNonce = d.n.begun.Nonce
		}
		d.older = older
	}
	// It may still write to the disk as it was; nothing of that reaches the new one.
	w.judge(d.engine.Close())
	d.media, d.engine = after, nil
}

// reloadCopies rebuilds the copies from the engine. The engine no longer has trimmed entries, so
// those are taken from the committed log of the judges.
func (d *disk) reloadCopies() error {
	for i := range d.n.w.ranges {
		if err := d.reloadCopy(i); err != nil {
			return err
		}
	}
	return nil
}

// reloadCopy rebuilds the copy of one range from the engine.
func (d *disk) reloadCopy(i int) error {
	w := d.n.w
	id := w.ranges[i]
	store := d.engine.Store(id)
	st, ok := store.State(id)
	if !ok {
		d.copies[i], d.quarantined[i] = nil, false
		return nil
	}
	// An undamaged disk cannot hold a range that its node never wrote. An older copy of the disk can hold one that the node
	// has dropped since (seed 900).
	if h := d.n.w.damage; d.copies[i] == nil && !d.merged[i] && !d.n.wasDamaged && (h == nil || h.n != d.n || !h.done) {
		return fmt.Errorf("%s holds range %s but never wrote it", d.n.id, id)
	}
	d.quarantined[i] = st.Quarantine != ""
	// After a restart the commit position is min(stored, end of the log)
	// (docs/replication.md#rule-prepare-commit).
	c := &rangeCopy{commit: min(st.Commit, st.Last.Seq), durable: st.Last.Seq}
	// Everything trimmed is committed.
	committed := w.monitor.Log(id).Entries
	c.entries = slices.Clone(committed[:min(int(st.Trim), len(committed))])
	// A read may return fewer entries than requested, so it resumes after the last one.
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
	return nil
}

// kv is the engine as seen by the metadata group. The metadata group waits for its syncs, so what
// it syncs outside of a pass is durable at once.
type kv struct {
	raftmeta.KV
	d *disk
}

// NewBatch returns a batch whose synced commits are durable at once.
func (k kv) NewBatch() raftmeta.KVBatch { return kvBatch{k.KV.NewBatch(), k.d} }

// kvBatch is a batch of the metadata group.
type kvBatch struct {
	raftmeta.KVBatch
	d *disk
}

// Commit writes the batch and records a sync as durable.
func (b kvBatch) Commit(sync bool) error {
	err := b.KVBatch.Commit(sync)
	if sync {
		b.d.settleAll()
	}
	return err
}
