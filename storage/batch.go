package storage

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// Batch collects the writes of one commit, for all ranges that are ready. One goroutine builds and
// applies a batch; any goroutine may then sync it. The batches of a range are applied in the order
// in which they were begun.
//
// Methods that take a range panic if the store does not hold the range, and if the write would
// break an invariant of the log. Such a caller has a bug, and continuing would spread it to disk
// and to peers.
//
// A batch keeps a copy of the state of each range that it touches. Its methods change the copy, so
// that they see the effect of earlier calls, and Apply publishes the copies. A batch that is
// dropped therefore leaves no trace.
type Batch struct {
	s *Store
	// b gets the writes, but those of keys that stay in the log of a store (isKept) go to kept, which is nil without such a log.
	b, kept *pebble.Batch
	staged  []*staged
	appends bool
	// deferred is set by Defer, and awaited ends the wait that Apply has counted (logFS.awaitSync). number is that of the record in the log of
	// the store.
	deferred bool
	awaited  func()
	number   nodelog.Number
	// rows are the hashes of the keys whose versions the batch writes or removes.
	rows []uint64
	key  []byte // buffers that are reused between writes: Pebble copies keys and values
	val  []byte
}

// staged is the state of a range as the batch leaves it.
type staged struct {
	id  rhumb.RangeID
	rs  *rangeState
	log logState
	// durable is the last entry that precedes the batch. Undo finds entries up to it in the
	// database and later ones in appended.
	durable  rhumb.Seq
	appended []*entry.Entry
	created  bool
	dropped  bool
	resized  bool // the range has another last slot
	united   bool // dropped because another range took over its slots: its keys stay
	// raised is the least collection floor that the range has from now on.
	raised rhumb.Timestamp
	born   bool // created by a split, with the keys that it has
	commit bool // the commit position needs its own key, because no record carries it
}

// NewBatch returns an empty batch.
func (s *Store) NewBatch() *Batch {
	b := &Batch{s: s, b: s.db.NewBatch()}
	if s.own != nil {
		b.kept = s.db.NewBatch()
	}
	return b
}

// Store returns the store that the batch writes to.
func (b *Batch) Store() *Store { return b.s }

// stageRange returns the state of a range as the batch leaves it so far. A batch has few ranges
// compared with the bytes that it writes, so a linear search is enough.
func (b *Batch) stageRange(id rhumb.RangeID) *staged {
	for _, g := range b.staged {
		if g.id == id {
			if g.dropped {
				panic(fmt.Sprintf("storage: range %s is written after the same batch dropped it", id))
			}
			return g
		}
	}
	rs := b.s.rangeOf(id)
	if rs == nil {
		panic(fmt.Sprintf("storage: store %s does not hold range %s", b.s.cfg.Dir, id))
	}
	// The range's batches are built one after the other, so the published state is that of the
	// batch before this one.
	rs.mu.Lock()
	g := &staged{id: id, rs: rs, log: rs.log, durable: rs.log.Last.Seq}
	rs.mu.Unlock()
	b.staged = append(b.staged, g)
	return g
}

// part returns the part of the batch for a key.
func (b *Batch) part(key []byte) *pebble.Batch {
	if b.kept != nil && isKept(key) {
		return b.kept
	}
	return b.b
}

// set adds a write. A batch without an index never rejects one.
func (b *Batch) set(key, value []byte) {
	if err := b.part(key).Set(key, value, nil); err != nil {
		panic("storage: an unindexed batch rejected a write: " + err.Error())
	}
}

// delete adds a DELETE.
func (b *Batch) delete(key []byte) {
	if err := b.part(key).Delete(key, nil); err != nil {
		panic("storage: an unindexed batch rejected a delete: " + err.Error())
	}
}

// deleteSpan adds a range deletion. Both parts get it: the database may have keys that were copied.
func (b *Batch) deleteSpan(span keys.Span) {
	for _, p := range []*pebble.Batch{b.b, b.kept} {
		if p == nil {
			continue
		}
		if err := p.DeleteRange(span.Lower, span.Upper, nil); err != nil {
			panic("storage: an unindexed batch rejected a range deletion: " + err.Error())
		}
	}
}

// setState adds a write of one field of a range's state.
func (b *Batch) setState(id rhumb.RangeID, f keys.StateField, value []byte) {
	b.key = keys.AppendState(b.key[:0], id, f)
	b.set(b.key, value)
}

// CreateRange adds a range that the store does not hold. For a new replica, the caller sets only
// st.Range, and st.Promised if the replica must not obey older epochs. For a replica that begins in
// the middle of a log, st.Last is the position that the log continues from.
func (b *Batch) CreateRange(st RangeState) {
	id := st.Range
	if id.Region == rhumb.LocalRegion {
		panic(fmt.Sprintf("storage: range %s is in the reserved region", id))
	}
	if b.s.rangeOf(id) != nil || slices.ContainsFunc(b.staged, func(g *staged) bool { return g.id == id }) {
		panic(fmt.Sprintf("storage: the store already holds range %s", id))
	}
	if other := b.s.rangeHolding(id); other != nil || b.s.clampLast(id, st.LastSlot) < st.LastSlot {
		panic(fmt.Sprintf("storage: range %s up to slot %s overlaps a range of the store", id, st.LastSlot))
	}
	if st.Last.Seq < st.Commit || st.Commit < st.Trim {
		panic(fmt.Sprintf("storage: range %s cannot begin with commit position %d and trim position %d: its last entry is %d", id, st.Commit, st.Trim, st.Last.Seq))
	}
	// The caller keeps its slice; the published state must not change with it.
	st.Lineage = slices.Clone(st.Lineage)
	// The range becomes visible in the store's map only when the batch is applied (publishState).
	g := &staged{id: id, rs: &rangeState{}, created: true, durable: st.Last.Seq, log: logState{RangeState: st}}
	g.log.base = base{pos: st.Last, hlc: st.LastHLC}
	// Entries up to the base were never in this store, so the log counts as trimmed and committed
	// up to there.
	g.log.Trim, g.log.trimHLC = st.Last.Seq, st.LastHLC
	g.log.Commit, g.log.CommitHLC = st.Last.Seq, st.LastHLC
	b.staged = append(b.staged, g)
	if b.s.RangeDamaged(id) {
		// The range may have keys in a table whose state could not be loaded at the start. They
		// must not become part of the new replica. The deletion covers only what precedes it, so it
		// comes before all writes of this batch.
		b.deleteRange(id, st.LastSlot)
	}
	b.setState(id, keys.StateRange, encodeRange(id, st.LastSlot))
	if st.Promised != 0 {
		b.setState(id, keys.StatePromised, encodeWords(uint64(st.Promised)))
	}
	if len(st.Lineage) > 0 {
		b.setState(id, keys.StateLineage, encodeLineage(st.Lineage))
	}
	if st.Last.Seq != 0 {
		b.setState(id, keys.StateBase, encodeBase(g.log.base))
		b.writeTrim(g)
		g.commit = true
	}
}

// Append adds an entry: its values, its log record and the results of its requests. The record
// carries the commit position, so that a commit costs no write of its own. A commit position beyond
// the entry is left to a later entry, because positions never pass the end of the log.
//
// The entry is not copied. The caller must not change it until the batch is applied or dropped.
func (b *Batch) Append(id rhumb.RangeID, e *entry.Entry, commit Commit) {
	g := b.stageRange(id)
	g.checkAppend(e)
	if commit.Seq <= e.Seq {
		g.setCommit(commit, e.Seq)
	}
	// Only appends are rejected by a full disk; see Apply.
	b.appends = true
	for i := range e.Requests {
		r := &e.Requests[i]
		// All writes of a request have its timestamp, and all of an entry have its node, so a
		// version names the request that wrote it.
		v := e.Version(r)
		for j := range r.Writes {
			w := &r.Writes[j]
			b.key = keys.AppendData(b.key[:0], rhumb.Key{Table: w.Table, Home: w.Home(id), Name: w.Name}, v)
			b.set(b.key, w.Value)
			b.rows = append(b.rows, rowHash(b.key[:keys.Split(b.key)]))
		}
		// The result is written even for a request that changed nothing: a repetition must get the
		// same answer (docs/replication.md#requests).
		if !r.ID.IsZero() {
			b.key = keys.AppendDedup(b.key[:0], id, r.ID)
			b.val = appendSeen(b.val[:0], e, r)
			b.set(b.key, b.val)
		}
	}
	// A new epoch adds a step to the lineage. The copy protects readers of the published state.
	if e.Epoch != g.log.Last.Epoch {
		g.log.Lineage = append(slices.Clone(g.log.Lineage), EpochStart{e.Epoch, e.Seq})
		if n := len(g.log.Lineage) - LineageMax; n > 0 {
			g.log.Lineage = g.log.Lineage[n:]
		}
		b.setState(id, keys.StateLineage, encodeLineage(g.log.Lineage))
	}
	if e.Ends() {
		g.log.End = End{e.Epoch, e.Seq}
		b.setState(id, keys.StateEnd, encodeEnd(g.log.End))
	}
	// Every record stores the totals up to it, so that an undo finds the totals of the new end
	// without reading the entries before.
	w := entryWeights(e)
	total := weights{g.log.total.data + w.data, g.log.total.log + w.log}
	g.log.setLast(e.Position(), e.LastHLC(), total)
	g.appended = append(g.appended, e)
	g.commit = false // the record carries the commit position
	b.key = keys.AppendLog(b.key[:0], id, e.Seq)
	b.val = appendRecord(b.val[:0], e, Commit{g.log.Commit, g.log.CommitHLC}, total)
	b.set(b.key, b.val)
}

// checkAppend asserts that the entry continues the log (invariant I2) and that timestamps grow
// (invariant I7). These are the last checks before wrong bytes become durable and are sent to
// peers.
func (g *staged) checkAppend(e *entry.Entry) {
	last := g.log.Last
	if e.Seq != last.Seq+1 || e.Prev != last.Hash || e.Epoch < last.Epoch {
		panic(fmt.Sprintf("storage: range %s: entry %s with previous hash %s does not follow %s", g.id, e.Position(), e.Prev, last))
	}
	hlc := g.log.LastHLC
	// An entry without requests starts an epoch, and its Start is its timestamp.
	grows := len(e.Requests) > 0 || e.Start > hlc
	for i := range e.Requests {
		grows = grows && e.Requests[i].HLC > hlc
		hlc = e.Requests[i].HLC
	}
	if !grows {
		panic(fmt.Sprintf("storage: range %s: the timestamps of entry %s are not all above %s", g.id, e.Position(), g.log.LastHLC))
	}
}

// setCommit raises the commit position. It reports false if the position is not above the current
// one. It panics if the position is beyond the last entry: a store that claims to have committed
// entries that it does not hold would be reported as damaged at the next start.
func (g *staged) setCommit(c Commit, last rhumb.Seq) bool {
	if c.Seq > last {
		panic(fmt.Sprintf("storage: range %s: commit position %d is beyond the last entry %d", g.id, c.Seq, last))
	}
	if c.Seq <= g.log.Commit {
		return false
	}
	g.log.Commit, g.log.CommitHLC = c.Seq, c.HLC
	return true
}

// SetPromised records a promise. A promise below the recorded one is ignored.
func (b *Batch) SetPromised(id rhumb.RangeID, e rhumb.Epoch) {
	g := b.stageRange(id)
	if e <= g.log.Promised {
		return
	}
	g.log.Promised = e
	b.setState(id, keys.StatePromised, encodeWords(uint64(e)))
}

// SetQuarantine records why the replica serves nothing any more. The reason stays until the range
// is dropped.
func (b *Batch) SetQuarantine(id rhumb.RangeID, why string) {
	g := b.stageRange(id)
	g.log.Quarantine = why
	b.setState(id, keys.StateQuarantine, []byte(why))
}

// SetCommit records a commit position without an append. A position below the recorded one is
// ignored.
func (b *Batch) SetCommit(id rhumb.RangeID, c Commit) {
	g := b.stageRange(id)
	if g.setCommit(c, g.log.Last.Seq) {
		g.commit = true
	}
}

// Trim allows Collect to remove the entries up to a position. A position above the recorded commit
// position is lowered to it, and one below the recorded trim position is ignored.
func (b *Batch) Trim(id rhumb.RangeID, to rhumb.Seq) {
	g := b.stageRange(id)
	// An uncommitted entry may still be undone, and undo reads its record.
	to = min(to, g.log.Commit)
	if to <= g.log.Trim {
		return
	}
	hlc, total, err := b.totalsAt(g, to)
	if err != nil {
		// The log stays longer, which is harmless. Whoever has to send or undo the damaged entry
		// gets the error and can act on it.
		b.s.log.Error("the log was not trimmed because a record cannot be read", "range", id, "to", to, "err", err)
		return
	}
	g.log.Trim, g.log.trimHLC, g.log.trimmed = to, hlc, total.log
	b.writeTrim(g)
	// The commit position is written with the trim position, so that the two keys satisfy Trim <=
	// Commit whatever happens to the record that carried the commit position.
	g.commit = true
}

// writeTrim adds a write of the trim position.
func (b *Batch) writeTrim(g *staged) {
	b.setState(g.id, keys.StateTrim, encodeWords(uint64(g.log.Trim), uint64(g.log.trimHLC), g.log.trimmed))
}

// totalsAt returns the greatest timestamp and the running totals at a position of the log.
func (b *Batch) totalsAt(g *staged, seq rhumb.Seq) (rhumb.Timestamp, weights, error) {
	_, hlc, total, err := b.positionAt(g, seq)
	return hlc, total, err
}

// positionAt returns the entry's position, the greatest timestamp and the running totals at a
// sequence number of the log as the batch leaves it. The number must be in the log or be the base.
func (b *Batch) positionAt(g *staged, seq rhumb.Seq) (entry.Position, rhumb.Timestamp, weights, error) {
	const op rhumb.Op = "storage.Batch"
	switch {
	case seq == g.log.Last.Seq:
		return g.log.Last, g.log.LastHLC, g.log.total, nil
	case seq == g.log.base.pos.Seq:
		return g.log.base.pos, g.log.base.hlc, g.log.base.total, nil
	case seq > g.durable:
		// The entry was appended by this batch, so it is not in the database yet. Its totals follow
		// from those of the last entry, minus the entries after it.
		total := g.log.total
		for _, e := range slices.Backward(g.appended) {
			if e.Seq == seq {
				return e.Position(), e.LastHLC(), total, nil
			}
			w := entryWeights(e)
			total.data -= w.data
			total.log -= w.log
		}
		panic(fmt.Sprintf("storage: range %s: entry %d is not in the log", g.id, seq))
	}
	r, ok, err := b.s.readRecord(op, g.id, seq)
	switch {
	case err != nil:
		return entry.Position{}, 0, weights{}, err
	case !ok:
		return entry.Position{}, 0, weights{}, b.s.badRecord(op, g.id, seq, rhumb.E(op, rhumb.Corrupt, "the record is missing"))
	}
	return r.entry.Position(), r.entry.LastHLC(), r.total, nil
}

// DropRange removes a range with all its data.
func (b *Batch) DropRange(id rhumb.RangeID) {
	g := b.stageRange(id)
	if g.created {
		panic(fmt.Sprintf("storage: range %s is created and dropped by one batch", id))
	}
	g.dropped = true
	b.deleteRange(id, g.log.LastSlot)
}

// deleteRange adds one range deletion for all keys of a range.
func (b *Batch) deleteRange(id rhumb.RangeID, last rhumb.Slot) {
	span := keys.RangeSpan(id, b.s.clampLast(id, last))
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	// One range tombstone covers any number of keys, so dropping a range costs a constant number of
	// bytes. Pebble removes the keys when it compacts.
	b.deleteSpan(span)
}

// keyspaceEnd is above every key: a home has eight bytes, and its kind is below 0xff.
var keyspaceEnd = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00}

// Apply makes the batch visible to reads. The batch is durable only after Sync. If Apply fails with
// DiskFull, nothing was applied and the same batch may be applied again later. After any other
// error the batch must be dropped.
func (b *Batch) Apply() error {
	const op rhumb.Op = "storage.Batch.Apply"
	// A full disk rejects only batches with appends, beyond the few that were accepted before:
	// positions, promises and drops are small and let the node free space or step back. The check
	// comes before anything changes, so that the same batch may be applied again.
	if b.appends {
		bytes := b.b.Len()
		if b.kept != nil {
			bytes += b.kept.Len()
		}
		if err := b.s.checkAccepted(op, uint64(bytes)); err != nil {
			return err
		}
	}
	for _, g := range b.staged {
		// No collection of the range may be between reading its state and applying its deletions.
		// The lock is held until the drop is published.
		if g.dropped {
			g.rs.collecting.Lock()
			defer g.rs.collecting.Unlock()
		}
		// Written once per batch, however often the batch raised the position.
		if g.commit && !g.dropped {
			b.setState(g.id, keys.StateCommit, encodeWords(uint64(g.log.Commit), uint64(g.log.CommitHLC)))
			g.commit = false
		}
	}
	// Sync waits for the disk, and not Apply: so the driver can build the next batch meanwhile, and one sync serves several batches.
	if err := b.write(op); err != nil {
		return err
	}
	// After the database has the batch, and before its state is published: a reader that learns of a position in the batch from the state
	// finds its names. A walk that is in progress may miss the batch in the database, and gets the names here.
	b.s.rows.remove(b.rows)
	for _, g := range b.staged {
		b.s.names.addWrites(g)
		if g.created || g.dropped || g.resized {
			b.s.rows.clear()
		}
	}
	b.publishState()
	return nil
}

// write writes the batch to the log and to the database.
func (b *Batch) write(op rhumb.Op) (err error) {
	if b.s.own != nil {
		b.number, err = b.s.own.write(op, b.b, b.kept)
		return b.s.dbError(op, err)
	}
	// Sync promises that all earlier batches are durable too. A batch without writes therefore
	// needs a record of its own to wait for.
	if b.b.Empty() {
		if err := b.b.LogData(nil, nil); err != nil {
			panic("storage: an unindexed batch rejected a log record: " + err.Error())
		}
	}
	b.awaited = b.s.fs.awaitSync(b.deferred)
	if err := b.s.db.ApplyNoSyncWait(b.b, pebble.Sync); err != nil {
		b.awaited()
		return b.s.dbError(op, err)
	}
	return nil
}

// publishState makes the in-memory state of each range that of the applied batch. The database
// comes first: a reader that sees a position must find the entries up to it.
func (b *Batch) publishState() {
	for _, g := range b.staged {
		// What collection removed from a range that was united is missing from this one now.
		if floor := uint64(g.raised); floor > g.rs.floor.Load() {
			g.rs.floor.Store(floor)
		}
		g.rs.mu.Lock()
		g.rs.log = g.log
		g.rs.dropped = g.dropped
		g.rs.mu.Unlock()
		// The names of a range that has other slots than before, or none, are read again when a scan needs them.
		if g.dropped || g.resized {
			b.s.names.dropRange(g.rs)
		}
		if !g.created && !g.dropped && !g.resized {
			continue
		}
		// The map changes after rs: a reader that finds a new range finds its state too.
		b.s.mu.Lock()
		switch {
		case g.resized:
			b.s.wide.add(g.id, g.log.LastSlot)
		case g.created:
			g.rs.floor.Store(uint64(g.log.trimHLC))
			b.s.ranges[g.id] = g.rs
			b.s.wide.add(g.id, g.log.LastSlot)
		default:
			delete(b.s.ranges, g.id)
			b.s.wide.remove(g.id)
		}
		b.s.mu.Unlock()
		if g.resized || g.born || g.united {
			continue
		}
		// Old keys of the range are covered by the range deletion now, so damage in them no longer
		// concerns it.
		b.s.rangeMended(g.id)
	}
}

// Defer makes Sync return once the operating system has the batch: the end of the process cannot undo it then, but a power loss
// can, until a later batch or a write of Local is synced. A power loss always takes the newest batches, so no
// batch survives an earlier one. Defer is called before Apply.
func (b *Batch) Defer() { b.deferred = true }

// Sync returns once the applied batch is durable, and with it every batch applied before; for a deferred batch see Defer. The batch
// must not be used afterwards. A failed sync is fatal: the content of the disk is unknown then, and
// a second sync may succeed although pages of the first one were dropped.
func (b *Batch) Sync() error {
	const op rhumb.Op = "storage.Batch.Sync"
	if b.s.own != nil {
		// The operating system has the record since Apply, and a deferred batch waits for no more than that. SyncLog makes it
		// durable later.
		if !b.deferred {
			if err := b.s.own.sync(b.number); err != nil {
				return b.s.dbError(op, err)
			}
		}
		return b.s.dbError(op, b.close())
	}
	// Fatalf does not return. Another replica may serve the range, but this process must not
	// continue on a log whose end it does not know.
	err := b.b.SyncWait()
	b.awaited()
	if err != nil {
		logger{b.s.log, b.s.cfg.FatalHandler}.Fatalf("%s: the log could not be synced, so the process ends: %v", b.s.cfg.Dir, err)
	}
	return b.s.dbError(op, b.close())
}

// Drop releases a batch that was not applied.
func (b *Batch) Drop() { _ = b.close() }

// close releases the memory of both parts.
func (b *Batch) close() error {
	if b.kept == nil {
		return b.b.Close()
	}
	return errors.Join(b.b.Close(), b.kept.Close())
}
