package storage

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// Batch gathers the writes of one commit: those of all ranges that are ready. It is made by one goroutine, applied
// once, and then synced, by another goroutine if that is convenient. A range's batches are applied in the order in which
// they are begun. Methods that take a range panic when the store does not hold it and when the write breaks an invariant
// of the log: such a caller is broken, and going on would spread it.
type Batch struct {
	s       *Store
	b       *pebble.Batch
	staged  []*staged
	appends bool
	key     []byte
	val     []byte
}

// staged is a range's state as the batch leaves it.
type staged struct {
	id  rhumb.RangeID
	rs  *rangeState
	log logState
	// durable is the last entry below the batch: what Undo finds in the database and not in appended.
	durable  rhumb.Seq
	appended []*entry.Entry
	created  bool
	dropped  bool
	commit   bool // the commit position has to be written by itself
}

// NewBatch makes an empty batch.
func (s *Store) NewBatch() *Batch { return &Batch{s: s, b: s.db.NewBatch()} }

// Store gives the store that the batch writes to.
func (b *Batch) Store() *Store { return b.s }

// stageRange gives the range as the batch leaves it so far.
func (b *Batch) stageRange(id rhumb.RangeID) *staged {
	for _, g := range b.staged {
		if g.id == id {
			if g.dropped {
				panic(fmt.Sprintf("storage: range %s is written after the batch dropped it", id))
			}
			return g
		}
	}
	rs := b.s.rangeOf(id)
	if rs == nil {
		panic(fmt.Sprintf("storage: store %s does not hold range %s", b.s.cfg.Dir, id))
	}
	rs.mu.Lock()
	g := &staged{id: id, rs: rs, log: rs.log, durable: rs.log.Last.Seq}
	rs.mu.Unlock()
	b.staged = append(b.staged, g)
	return g
}

func (b *Batch) set(key, value []byte) {
	if err := b.b.Set(key, value, nil); err != nil {
		panic("storage: an unindexed batch refused a write: " + err.Error())
	}
}

func (b *Batch) delete(key []byte) {
	if err := b.b.Delete(key, nil); err != nil {
		panic("storage: an unindexed batch refused a delete: " + err.Error())
	}
}

func (b *Batch) setState(id rhumb.RangeID, f keys.StateField, value []byte) {
	b.key = keys.AppendState(b.key[:0], id, f)
	b.set(b.key, value)
}

// CreateRange makes room for a range that the store does not hold. A replica that begins in the middle of a log gives
// the position from which it goes on in st.Last; a new one gives only st.Range.
func (b *Batch) CreateRange(st RangeState) {
	id := st.Range
	if id.Region == rhumb.LocalRegion {
		panic(fmt.Sprintf("storage: range %s lies in the reserved region", id))
	}
	if b.s.rangeOf(id) != nil || slices.ContainsFunc(b.staged, func(g *staged) bool { return g.id == id }) {
		panic(fmt.Sprintf("storage: range %s is already there", id))
	}
	if st.Last.Seq < st.Commit || st.Commit < st.Trim {
		panic(fmt.Sprintf("storage: range %s begins with commit %d and trim %d behind its last entry %d", id, st.Commit, st.Trim, st.Last.Seq))
	}
	st.Lineage = slices.Clone(st.Lineage)
	g := &staged{id: id, rs: &rangeState{}, created: true, durable: st.Last.Seq, log: logState{RangeState: st}}
	g.log.base = base{pos: st.Last, hlc: st.LastHLC}
	// What lies before the base was never here: the log is trimmed up to it.
	g.log.Trim, g.log.trimHLC = st.Last.Seq, st.LastHLC
	g.log.Commit, g.log.CommitHLC = st.Last.Seq, st.LastHLC
	b.staged = append(b.staged, g)
	if b.s.RangeDamaged(id) {
		b.deleteRange(id) // there may be keys of a range that could not be loaded
	}
	b.setState(id, keys.StateRange, []byte{stateVersion})
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

// Append writes an entry: its values, its log record, the results of its requests. The commit position rides along; one
// beyond the entry is left to a later entry.
func (b *Batch) Append(id rhumb.RangeID, e *entry.Entry, commit Commit) {
	g := b.stageRange(id)
	g.checkAppend(e)
	if commit.Seq <= e.Seq {
		g.setCommit(commit, e.Seq)
	}
	b.appends = true
	for i := range e.Requests {
		r := &e.Requests[i]
		v := e.Version(r)
		for j := range r.Writes {
			w := &r.Writes[j]
			b.key = keys.AppendData(b.key[:0], rhumb.Key{Table: w.Table, Home: id, Name: w.Name}, v)
			b.set(b.key, w.Value)
		}
		if !r.ID.IsZero() {
			b.key = keys.AppendDedup(b.key[:0], id, r.ID)
			b.val = appendSeen(b.val[:0], e, r)
			b.set(b.key, b.val)
		}
	}
	if e.Epoch != g.log.Last.Epoch {
		g.log.Lineage = append(slices.Clone(g.log.Lineage), EpochStart{e.Epoch, e.Seq})
		if n := len(g.log.Lineage) - LineageMax; n > 0 {
			g.log.Lineage = g.log.Lineage[n:]
		}
		b.setState(id, keys.StateLineage, encodeLineage(g.log.Lineage))
	}
	w := entryWeights(e)
	total := weights{g.log.total.data + w.data, g.log.total.log + w.log}
	g.log.setLast(e.Position(), e.LastHLC(), total)
	g.appended = append(g.appended, e)
	g.commit = false // it rides
	b.key = keys.AppendLog(b.key[:0], id, e.Seq)
	b.val = appendRecord(b.val[:0], e, Commit{g.log.Commit, g.log.CommitHLC}, total)
	b.set(b.key, b.val)
}

// checkAppend asserts log matching (I2) and that timestamps grow (I7).
func (g *staged) checkAppend(e *entry.Entry) {
	last := g.log.Last
	if e.Seq != last.Seq+1 || e.Prev != last.Hash || e.Epoch < last.Epoch {
		panic(fmt.Sprintf("storage: range %s: entry %s with prev %s does not follow %s", g.id, e.Position(), e.Prev, last))
	}
	hlc := g.log.LastHLC
	grows := len(e.Requests) > 0 || e.Start > hlc
	for i := range e.Requests {
		grows = grows && e.Requests[i].HLC > hlc
		hlc = e.Requests[i].HLC
	}
	if !grows {
		panic(fmt.Sprintf("storage: range %s: timestamps of entry %s do not grow beyond %s", g.id, e.Position(), g.log.LastHLC))
	}
}

// setCommit raises the commit position, which cannot lie beyond the last entry.
func (g *staged) setCommit(c Commit, last rhumb.Seq) bool {
	if c.Seq > last {
		panic(fmt.Sprintf("storage: range %s: commit position %d lies beyond the last entry %d", g.id, c.Seq, last))
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

// SetQuarantine records why the replica serves nothing any more. The reason stays until the range is dropped.
func (b *Batch) SetQuarantine(id rhumb.RangeID, why string) {
	g := b.stageRange(id)
	g.log.Quarantine = why
	b.setState(id, keys.StateQuarantine, []byte(why))
}

// SetCommit records a commit position without an append. A position below the recorded one is ignored.
func (b *Batch) SetCommit(id rhumb.RangeID, c Commit) {
	g := b.stageRange(id)
	if g.setCommit(c, g.log.Last.Seq) {
		g.commit = true
	}
}

// Trim allows entries up to a position to go; Collect removes them. A position above the recorded commit position or
// below the recorded trim position is cut to it.
func (b *Batch) Trim(id rhumb.RangeID, to rhumb.Seq) {
	g := b.stageRange(id)
	to = min(to, g.log.Commit)
	if to <= g.log.Trim {
		return
	}
	hlc, total, err := b.totalsAt(g, to)
	if err != nil {
		// The log is kept: sending it again meets the same fault, and says so to those who can act on it.
		b.s.log.Error("log not trimmed", "range", id, "to", to, "err", err)
		return
	}
	g.log.Trim, g.log.trimHLC, g.log.trimmed = to, hlc, total.log
	b.writeTrim(g)
	g.commit = true
}

func (b *Batch) writeTrim(g *staged) {
	b.setState(g.id, keys.StateTrim, encodeWords(uint64(g.log.Trim), uint64(g.log.trimHLC), g.log.trimmed))
}

// totalsAt gives the greatest timestamp and the running totals at a position of the log.
func (b *Batch) totalsAt(g *staged, seq rhumb.Seq) (rhumb.Timestamp, weights, error) {
	_, hlc, total, err := b.positionAt(g, seq)
	return hlc, total, err
}

func (b *Batch) positionAt(g *staged, seq rhumb.Seq) (entry.Position, rhumb.Timestamp, weights, error) {
	const op rhumb.Op = "storage.Batch"
	switch {
	case seq == g.log.Last.Seq:
		return g.log.Last, g.log.LastHLC, g.log.total, nil
	case seq == g.log.base.pos.Seq:
		return g.log.base.pos, g.log.base.hlc, g.log.base.total, nil
	case seq > g.durable:
		total := g.log.total
		for _, e := range slices.Backward(g.appended) {
			if e.Seq == seq {
				return e.Position(), e.LastHLC(), total, nil
			}
			w := entryWeights(e)
			total.data -= w.data
			total.log -= w.log
		}
		panic(fmt.Sprintf("storage: range %s: entry %d is not in its log", g.id, seq))
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
		panic(fmt.Sprintf("storage: range %s is made and dropped by one batch", id))
	}
	g.dropped = true
	b.deleteRange(id)
}

func (b *Batch) deleteRange(id rhumb.RangeID) {
	span := keys.RangeSpan(id)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	if err := b.b.DeleteRange(span.Lower, span.Upper, nil); err != nil {
		panic("storage: an unindexed batch refused a range delete: " + err.Error())
	}
}

// keyspaceEnd lies behind every key.
var keyspaceEnd = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00}

// Apply makes the batch visible to reads, not yet durable. DiskFull means that nothing was applied and that the same
// batch may be applied again later; after any other error the batch must be dropped.
func (b *Batch) Apply() error {
	const op rhumb.Op = "storage.Batch.Apply"
	if b.appends {
		if err := b.s.checkRoom(op, DiskFull); err != nil {
			return err
		}
	}
	for _, g := range b.staged {
		if g.dropped {
			g.rs.collecting.Lock()
			defer g.rs.collecting.Unlock()
		}
		if g.commit && !g.dropped {
			b.setState(g.id, keys.StateCommit, encodeWords(uint64(g.log.Commit), uint64(g.log.CommitHLC)))
			g.commit = false
		}
	}
	if b.b.Empty() {
		// Sync promises that all earlier batches are durable, too: a batch without writes needs a record to wait for.
		if err := b.b.LogData(nil, nil); err != nil {
			panic("storage: an unindexed batch refused a mark: " + err.Error())
		}
	}
	if err := b.s.db.ApplyNoSyncWait(b.b, pebble.Sync); err != nil {
		return b.s.dbError(op, err)
	}
	b.publishState()
	return nil
}

// publishState makes the in-memory state that of the applied batch.
func (b *Batch) publishState() {
	for _, g := range b.staged {
		g.rs.mu.Lock()
		g.rs.log = g.log
		g.rs.dropped = g.dropped
		g.rs.mu.Unlock()
		if !g.created && !g.dropped {
			continue
		}
		b.s.mu.Lock()
		if g.created {
			g.rs.floor.Store(uint64(g.log.trimHLC))
			b.s.ranges[g.id] = g.rs
		} else {
			delete(b.s.ranges, g.id)
		}
		b.s.mu.Unlock()
		b.s.rangeMended(g.id)
	}
}

// Sync waits until the applied batch is durable, and with it every batch applied before. The batch must not be used
// afterwards. A sync that fails is fatal: what the disk holds then is not known any more, and a second sync would claim
// otherwise.
func (b *Batch) Sync() error {
	const op rhumb.Op = "storage.Batch.Sync"
	if err := b.b.SyncWait(); err != nil {
		logger{b.s.log, b.s.cfg.FatalHandler}.Fatalf("%s: the log cannot be synced: %v", b.s.cfg.Dir, err)
	}
	return b.s.dbError(op, b.b.Close())
}

// Drop gives up a batch that was not applied.
func (b *Batch) Drop() { _ = b.b.Close() }
