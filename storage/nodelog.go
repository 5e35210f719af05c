package storage

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// The log of a store, in its directory. Its ring has logSegments files. A memtable takes about as many bytes
// of the log as it has itself: the ring holds one that is filled, one that is flushed, and one for the time
// until the flush is known.
const (
	logName         = "log"
	logSegments     = 6
	logPerMemTable  = 3
	logBytesLeast   = 24 << 20
	logBytesMax     = logSegments * nodelog.SegmentBytesMax
	logEarlyPercent = 50
	// logSpare is how often the least free space of a disk must remain if the log of an existing store is
	// created.
	logSpare = 2
)

// localApplied is a key of SpaceStore. Each batch sets it to the number of its record in the log, and
// to that of the last record whose log records and results are in the database too:
//
//	applied  8 bytes, big endian
//	copied   8 bytes, big endian; missing if it equals applied
const localApplied = "applied"

// A record of the log holds the two parts of a batch:
//
//	version(1) = 1
//	size(4)    of the main part, big endian
//	main part  a batch of Pebble
//	kept part  operations on keys of keptTable, as a batch of Pebble has them after its header
//
// A record of an earlier build is a batch of Pebble, whose first byte is 0.
const (
	partsVersion = 1
	partsHeader  = 5
)

// storeLog is the log of a store. Pebble's own log is off: a batch is first appended to the log, and
// then its main part is applied to the database and its kept part to the keptTable, all in one order.
// So the tables of the database always hold the main parts of a prefix of the log, and the value of
// localApplied in the tables says which one. The next start applies all later records again.
//
// The kept parts are copied to the database, the oldest first, before their records are trimmed. The
// same value says up to which record that happened. The next start reads the kept parts of all later
// records, also of those whose main part tables hold.
//
// Invariant: tables hold nothing of a record that is not durable. Otherwise a power loss could take the
// log record of an entry and leave its versions. So the log is synced before a new set of tables
// becomes durable (syncBeforeTables).
//
// An ingestion of tables is not in the log. It needs no record: everything is flushed before (settled),
// so no record that is applied again has a key in the span, unless it was written after the ingestion.
type storeLog struct {
	s   *Store
	log *nodelog.Log
	// order is held from the append of a batch until the database has it. It guards applied, pos and head.
	order   sync.Mutex
	applied nodelog.Number // of the last record whose main part is in the database
	seen    nodelog.Number // of the last record that a start has read
	pos     uint64         // bytes that were appended, about
	head    [partsHeader]byte
	// turned is set when a segment is full, and flushing while a flush that makes room is under way.
	turned, flushing atomic.Bool
	written, bytes   atomic.Uint64 // bytes of the log, and of batches in it
}

// appliedKey returns the stored key of localApplied. Ranges are excised and ingested without it, because it is
// in the reserved region: no operation on a range changes which records the tables hold.
func appliedKey() []byte { return keys.AppendLocal(nil, SpaceStore, []byte(localApplied)) }

// Wrote implements nodelog.Metrics.
func (l *storeLog) Wrote(bytes int) { l.written.Add(uint64(bytes)) }

// Synced implements nodelog.Metrics.
func (l *storeLog) Synced(took time.Duration) { l.s.syncTook(took) }

// Turned implements nodelog.Metrics.
func (l *storeLog) Turned() { l.turned.Store(true) }

// Refused implements nodelog.Metrics. A full log means that flushes are slower than writes, or that one of
// them does not succeed, as on a disk without space.
func (l *storeLog) Refused() { l.s.metrics.logStalls.Inc() }

// write appends a batch to the log, applies it to the database, and returns the number of its record.
// kept is its kept part, or nil. write ends the process if only one of both succeeds.
func (l *storeLog) write(op rhumb.Op, main, kept *pebble.Batch) (nodelog.Number, error) {
	l.order.Lock()
	defer l.order.Unlock()
	// A batch without writes needs no record: its caller waits for the records before it.
	if main.Empty() && (kept == nil || kept.Empty()) {
		return l.log.Last(), nil
	}
	// The record holds the batch without localApplied: its number is known only once it is written. A start
	// that applies the record adds the key again.
	number, err := l.append(main, kept)
	// A batch that no segment can hold, as that of a split of a range with many clients.
	if rhumb.KindOf(err) == rhumb.TooLarge {
		return l.writeThrough(op, main, kept)
	}
	if err != nil {
		l.end("a batch could not be appended to the log", err)
		return 0, err
	}
	if err := l.apply(main, keptOps(kept), number); err != nil {
		return 0, err
	}
	if err := l.copyDue(); err != nil {
		return 0, err
	}
	// The use of the log changes by whole segments, so it is measured only when one is full.
	if l.turned.Swap(false) {
		l.flushEarly()
	}
	return number, nil
}

// keptOps returns the operations of a kept part.
func keptOps(kept *pebble.Batch) []byte {
	if kept == nil || kept.Empty() {
		return nil
	}
	return kept.Repr()[batchrepr.HeaderLen:]
}

// append appends a record. If the log is full, it waits for a flush. order is held.
func (l *storeLog) append(main, kept *pebble.Batch) (nodelog.Number, error) {
	body, ops := main.Repr(), keptOps(kept)
	// Parts are joined by the log, so that no batch is copied before.
	l.head[0] = partsVersion
	binary.BigEndian.PutUint32(l.head[1:], uint32(len(body)))
	size := len(body) + len(ops)
	l.bytes.Add(uint64(size))
	l.pos += uint64(size)
	for {
		// Only the write counts as an operation of the disk. A wait for a flush does not make a node unfit, as
		// with Pebble's log.
		end := l.s.fs.beginOp()
		number, err := l.log.Append(l.head[:], body, ops)
		end()
		if rhumb.KindOf(err) != rhumb.Overloaded {
			return number, err
		}
		l.s.log.Warn("writes wait for a flush, because the log is full", "store", l.s.cfg.Dir)
		if err := l.empty(); err != nil {
			return 0, err
		}
	}
}

// splitParts returns the two parts of a record.
func splitParts(payload []byte) (main, kept []byte, err error) {
	if len(payload) == 0 || payload[0] == 0 {
		return payload, nil, nil
	}
	if payload[0] != partsVersion || len(payload) < partsHeader {
		return nil, nil, rhumb.Ef("storage.splitParts", rhumb.Corrupt, "the record of %d bytes has version %d, and not %d", len(payload), payload[0], partsVersion)
	}
	n := uint64(binary.BigEndian.Uint32(payload[1:]))
	if payload = payload[partsHeader:]; n > uint64(len(payload)) {
		return nil, nil, rhumb.Ef("storage.splitParts", rhumb.Corrupt, "the main part of a record should have %d bytes, and %d follow", n, len(payload))
	}
	return payload[:n], payload[n:], nil
}

// appliedValue returns the value of localApplied. order is held, and the lock of the table.
func (l *storeLog) appliedValue() []byte {
	if copied := l.s.kept.copied(l.applied); copied != l.applied {
		return encodeWords(uint64(l.applied), uint64(copied))
	}
	return encodeWords(uint64(l.applied))
}

// apply applies a batch with the number of its record. A reader that holds the lock of the table sees
// either both parts or none. order is held.
func (l *storeLog) apply(main *pebble.Batch, ops []byte, number nodelog.Number) error {
	k := l.s.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	// Keys that were copied to the database are deleted there, in the batch that is applied below.
	err := k.add(number, ops, l.pos, func(key []byte) error { return main.Delete(key, nil) })
	l.applied = number
	if err == nil {
		err = main.Set(appliedKey(), l.appliedValue(), nil)
	}
	if err == nil {
		err = l.s.db.Apply(main, pebble.NoSync)
	}
	if err != nil {
		l.end("the database did not take a batch that is in the log", err)
	}
	return err
}

// copyDue copies keys that have been in the table while the log filled a segment, and keys beyond the
// memory that the table may use. It copies a little with each batch, so that neither a flush nor a full
// log has to wait for all of it. Most log records are collected before. order is held.
func (l *storeLog) copyDue() error {
	k := l.s.kept
	// After a start, more may be due than one batch should wait for.
	for range copiesMax {
		if len(k.chunks) == 0 || l.pos-k.chunks[0].begin <= uint64(l.log.RecordBytesMax()) && k.bytes <= l.s.cfg.MemTableBytes {
			break
		}
		if err := l.copyOldest(); err != nil {
			return err
		}
	}
	return nil
}

// copyOldest copies the oldest chunk of the table to the database. It needs no record in the log: until
// tables have the copies, the log keeps the records that they are of. order is held.
func (l *storeLog) copyOldest() error {
	b := l.s.db.NewBatch()
	k := l.s.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	moved, err := k.moveOldest(func(key, value []byte) error { return b.Set(key, value, nil) })
	if err == nil {
		err = b.Set(appliedKey(), l.appliedValue(), nil)
	}
	if err == nil {
		err = l.s.db.Apply(b, pebble.NoSync)
	}
	if err != nil {
		l.end("the database did not take keys of the log", err)
		return err
	}
	// Nobody waits for this batch to be durable. Its records are trimmed after the flush that includes it.
	l.s.metrics.logCopied.Add(float64(moved))
	return b.Close()
}

// copyAll copies the whole table. order is held.
func (l *storeLog) copyAll() error {
	for len(l.s.kept.chunks) > 0 {
		if err := l.copyOldest(); err != nil {
			return err
		}
	}
	return nil
}

// copyResults copies all results that are older than an age, with everything before them in the log.
func (l *storeLog) copyResults(now rhumb.Timestamp, age time.Duration) error {
	l.order.Lock()
	defer l.order.Unlock()
	// Chunks are copied in the order of the log, so everything before the newest of these results goes too.
	for range l.s.kept.resultsOlder(now, age) {
		if err := l.copyOldest(); err != nil {
			return err
		}
	}
	return nil
}

// writeThrough applies a batch that is too large for the log, and returns once tables hold it. Nothing is
// written meanwhile: later batches must not be durable before this one. order is held.
func (l *storeLog) writeThrough(op rhumb.Op, main, kept *pebble.Batch) (nodelog.Number, error) {
	if err := l.copyAll(); err != nil {
		return 0, err
	}
	// Both parts go to the database in one step, because no record holds the kept part.
	k := l.s.kept
	k.mu.Lock()
	err := k.add(l.applied, keptOps(kept), l.pos, func(key []byte) error { return main.Delete(key, nil) })
	for err == nil && len(k.chunks) > 0 {
		_, err = k.moveOldest(func(key, value []byte) error { return main.Set(key, value, nil) })
	}
	k.mu.Unlock()
	if err != nil {
		l.end("a batch could not be divided", err)
		return 0, err
	}
	// The batch counts for the record before it: both are in one prefix of the tables.
	if err := l.apply(main, nil, l.applied); err != nil {
		return 0, err
	}
	return l.applied, l.s.dbError(op, l.empty())
}

// empty flushes the database and trims the log, so that all segments but the current one can be written over.
// Writes wait meanwhile, as they do when too many of Pebble's memtables wait for their flush. order is held.
func (l *storeLog) empty() error {
	// Only durable records are trimmed.
	if err := l.log.Sync(); err != nil {
		return err
	}
	if err := l.copyAll(); err != nil {
		return err
	}
	if err := l.s.db.Flush(); err != nil {
		return err
	}
	return l.trim()
}

// settled calls f while tables hold everything and nobody writes.
func (s *Store) settled(f func() error) error {
	if s.own == nil {
		return f()
	}
	s.own.order.Lock()
	defer s.own.order.Unlock()
	// A record that is not durable could be lost after the ingestion is: a deletion of a key in its
	// span, for example.
	if err := s.own.empty(); err != nil {
		return err
	}
	return f()
}

// newWholeIter returns an iterator over the database that sees all keys, also those that were in the
// table. It serves what reads whole ranges, and seldom: the keys are in the database from then on.
func (s *Store) newWholeIter(o *pebble.IterOptions) (*pebble.Iterator, error) {
	if s.own == nil {
		return s.db.NewIter(o)
	}
	// Most of the table is copied in steps between which others write. The batches of that time add little.
	for range s.kept.usage() / keptChunkBytes {
		s.own.order.Lock()
		err := error(nil)
		if len(s.kept.chunks) > 0 {
			err = s.own.copyOldest()
		}
		if s.own.order.Unlock(); err != nil {
			return nil, err
		}
	}
	s.own.order.Lock()
	defer s.own.order.Unlock()
	if err := s.own.copyAll(); err != nil {
		return nil, err
	}
	return s.db.NewIter(o)
}

// syncBeforeTables syncs the log. It is called before the manifest is synced, and so before any new
// table counts.
func (s *Store) syncBeforeTables() error {
	if l := s.walSync.Load(); l != nil {
		return l.log.Sync()
	}
	return nil
}

// flushEarly begins a flush if much of the log is in use, although no memtable may be full: small batches take
// more room in the log than in a memtable. order is held.
func (l *storeLog) flushEarly() {
	all, needed := l.log.Segments()
	if needed*100 <= all*logEarlyPercent || !l.flushing.CompareAndSwap(false, true) {
		return
	}
	// The sealer trims the log when the flush ends.
	if _, err := l.s.db.AsyncFlush(); err != nil {
		l.s.log.Warn("a flush that makes room in the log was not begun", "store", l.s.cfg.Dir, "err", err)
		l.flushing.Store(false)
	}
}

// trim releases the records that tables hold, with their kept parts.
func (l *storeLog) trim() error {
	_, copied, err := l.s.tablesHold(l.s.db)
	if err == nil {
		l.log.Trim(copied)
		l.flushing.Store(false)
	}
	return err
}

// tablesHold returns the number of the record up to which the tables of a database hold all main parts,
// and that up to which they hold everything.
func (s *Store) tablesHold(db *pebble.DB) (applied, copied nodelog.Number, err error) {
	const op rhumb.Op = "storage.tablesHold"
	key := appliedKey()
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: key, UpperBound: keys.ImmediateSuccessor(nil, key), OnlyReadGuaranteedDurable: true})
	if err != nil {
		return 0, 0, s.dbError(op, err)
	}
	// Without the key, the tables hold nothing of any log: the store is new, or had the log of its database.
	if it.First() {
		var v []byte
		switch v, err = it.ValueAndErr(); {
		case err != nil:
		case len(v) == 8 || len(v) == 16:
			applied = nodelog.Number(binary.BigEndian.Uint64(v))
			copied = nodelog.Number(binary.BigEndian.Uint64(v[len(v)-8:]))
		default:
			err = rhumb.Ef(op, rhumb.Corrupt, "%s: the number of the last record in the tables has %d bytes, not 8 or 16", s.cfg.Dir, len(v))
		}
	}
	return applied, copied, s.dbError(op, errors.Join(err, it.Error(), it.Close()))
}

// sync returns once the records up to a number are durable. A failure ends the process: the content of the
// disk is unknown then.
func (l *storeLog) sync(number nodelog.Number) error {
	defer l.s.fs.beginOp()()
	err := l.log.SyncTo(number)
	if err != nil {
		l.end("the log could not be synced", err)
		return err
	}
	// Before anybody relies on the records: their loss must be noticed.
	l.s.lengths.syncedRecords(uint64(number), func() uint64 { return uint64(l.log.Synced()) })
	return nil
}

// end ends the process.
func (l *storeLog) end(what string, err error) {
	logger{l.s.log, l.s.cfg.FatalHandler}.Fatalf("%s: %s, so the process ends: %v", l.s.cfg.Dir, what, err)
}

// drain flushes the database, so that a stopped store needs no log. It reports whether that succeeded; if the
// disk is full, the next start applies the log again. Nobody writes meanwhile.
func (l *storeLog) drain() bool {
	// A signal from before says nothing about the flush that follows.
	select {
	case <-l.s.flushFailed:
	default:
	}
	// With that many memtables, the call would wait until one is flushed.
	if l.log.Sync() != nil || l.s.db.Metrics().MemTable.Count >= memTablesMax {
		return false
	}
	// The database must have everything, because the build before looks for log records there alone.
	l.order.Lock()
	err := l.copyAll()
	l.order.Unlock()
	if err != nil {
		return false
	}
	flushed, err := l.s.db.AsyncFlush()
	if err != nil {
		return false
	}
	// Pebble tries a flush again and again, so the first failure ends the wait.
	select {
	case <-flushed:
	case <-l.s.flushFailed:
		return false
	}
	return l.trim() == nil
}

// commit applies a batch and, if sync is set, returns once it is durable. It serves the writes that are not of
// a Batch: those of the store itself and of the metadata group, and collections. All of them share one log
// with the batches, so their order is that of the calls.
func (s *Store) commit(op rhumb.Op, b *pebble.Batch, sync bool) error {
	if s.own == nil {
		opts := pebble.NoSync
		if sync {
			opts = pebble.Sync
			defer s.fs.awaitSync(false)()
		}
		return s.dbError(op, s.db.Apply(b, opts))
	}
	main, kept, err := s.splitBatch(b)
	if err != nil {
		return s.dbError(op, err)
	}
	number, err := s.own.write(op, main, kept)
	if main != b {
		err = errors.Join(err, main.Close(), kept.Close())
	}
	// Without sync, the batch is durable with the next record that somebody syncs.
	if err == nil && sync {
		err = s.own.sync(number)
	}
	return s.dbError(op, err)
}

// splitBatch divides a batch into a main part and a kept part. Batches without a key of the second
// kind, as most of those that are not a Batch, stay as they are, and the kept part is nil.
func (s *Store) splitBatch(b *pebble.Batch) (main, kept *pebble.Batch, err error) {
	// Most batches end here: local keys, and collections that delete versions only.
	found := false
	for r := b.Reader(); !found; {
		_, key, _, ok, err := r.Next()
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			return b, nil, nil
		}
		found = isKept(key)
	}
	main, kept = s.db.NewBatch(), s.db.NewBatch()
	for r := b.Reader(); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return main, kept, err
		}
		// Operations keep their order within each part. The parts have no key in common.
		to := main
		if isKept(key) {
			to = kept
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			err = to.Set(key, value, nil)
		case pebble.InternalKeyKindDelete:
			err = to.Delete(key, nil)
		case pebble.InternalKeyKindSingleDelete:
			err = to.SingleDelete(key, nil)
		default:
			err = rhumb.Ef("storage.splitBatch", rhumb.Internal, "an operation of kind %s cannot be divided", kind)
		}
		if err != nil {
			return main, kept, err
		}
	}
}

func (s *Store) logDir() string { return s.fs.PathJoin(s.cfg.Dir, logName) }

// logConfig returns the configuration of the store's log.
func (s *Store) logConfig(boot rhumb.BootSeq) nodelog.Config {
	size := s.cfg.LogBytes
	if size == 0 {
		size = min(max(logBytesLeast, logPerMemTable*s.cfg.MemTableBytes), logBytesMax)
	}
	return nodelog.Config{
		Dir: s.logDir(), FS: s.fs, ID: s.header.ownLogID(), Boot: boot,
		Segments: logSegments, SegmentBytes: size / logSegments / nodelog.Sector * nodelog.Sector,
	}
}

// prepareLog decides whether the store has a log of its own, and creates it if it is new. It is called before
// the database is opened, which needs to know. Until openLog has recorded the log in the STORE file, the
// directory is that of a store with Pebble's log.
//
// Each log that is created gets an id of its own, which is durable in the STORE file before the first record that counts. Numbers and boots of a log
// begin again with it, so an earlier log of the store that somebody put back would look like the present one otherwise, and be applied to a database
// of a later time.
//
// A new store may have a log of its own. Close takes it back if the store has become part of a cluster whose
// version does not allow it.
func (s *Store) prepareLog() (own bool, err error) {
	const op rhumb.Op = "storage.Open"
	h := &s.header
	// s.emptied: the log belonged to a database that was set aside.
	if h.nodeLog && !s.emptied && !s.fresh {
		return true, nil
	}
	if !h.nodeLog && (!s.cfg.OwnLog || !s.fresh && h.flags&flagNodeLog == 0) {
		return false, nil
	}
	// Nothing in the directory is needed: it is of an interrupted creation, or of a database that is gone.
	if err := removeAll(s.fs, s.logDir()); err != nil {
		return false, err
	}
	id := newUUID()
	if h.nodeLog {
		// The boot and the id are durable before the log exists: after a crash in between, the log is missing, and so is the database. Otherwise no
		// STORE file names the log yet, and the next start creates it again.
		if err := s.changeHeader(func(h *header) { h.logBoot, h.logID = h.logBoot+1, id }); err != nil {
			return false, err
		}
	} else {
		// replayLog writes it.
		h.logID = id
	}
	cfg := s.logConfig(h.logBoot + 1)
	if free, total, err := s.cfg.DiskFree(s.cfg.Dir); !h.nodeLog && err == nil &&
		!s.fresh && float64(free) < float64(cfg.SegmentBytes*logSegments)+logSpare*s.cfg.RefuseFree*float64(total) {
		s.log.Warn("the disk has no room for a log of the store; it keeps the log of the database until a start finds room", "store", s.cfg.Dir, "free", free, "needed", cfg.SegmentBytes*logSegments)
		return false, nil
	}
	cfg.Create = true
	log, err := nodelog.Open(cfg)
	if err != nil {
		return false, err
	}
	return true, ioError(op, s.cfg.Dir, log.Close())
}

// openLog opens the log, applies the main parts of the records that tables lack, and reads the kept
// parts that the database lacks.
func (s *Store) openLog() error {
	applied, copied, err := s.tablesHold(s.db)
	if err != nil {
		return err
	}
	isNew := !s.header.nodeLog || s.fresh || s.emptied
	boot := s.header.logBoot + 2 // prepareLog may have opened it
	if s.header.nodeLog {
		// The boot is durable before the log is opened: no two starts may write records of one boot.
		if err := s.writeLogBoot(boot); err != nil {
			return err
		}
	}
	cfg := s.logConfig(boot)
	if !isNew {
		cfg.Trimmed, cfg.Synced = copied, s.header.logSynced(s.synced, applied)
	}
	s.kept = newKeptTable()
	own := &storeLog{s: s, applied: applied}
	cfg.Metrics = own
	own.log, err = nodelog.Open(cfg)
	if d := (*nodelog.Damage)(nil); errors.As(err, &d) {
		isNew = true
		own.log, err = s.replaceLog(own, cfg, d)
	}
	if err != nil {
		return err
	}
	s.own = own
	return s.replayLog(isNew, boot)
}

// logSynced returns the number of a record up to which the log is known to have been synced.
// applied is that of the last record whose main part tables hold.
func (h *header) logSynced(synced syncedState, applied nodelog.Number) (to nodelog.Number) {
	// A number with a file belongs to Pebble's log.
	if synced.number == 0 {
		to = nodelog.Number(synced.length)
	}
	// Tables of the build before may hold records that were never synced.
	if h.logKeeps {
		to = max(to, applied)
	}
	return to
}

// replayLog applies the records of the log, and begins to use it. Pebble flushes its memtables as usual
// meanwhile, so a log of any size can be applied, and a crash in between continues after the last flush.
func (s *Store) replayLog(isNew bool, boot rhumb.BootSeq) error {
	log, replayed := s.own.log, 0
	for r, err := range log.Replay() {
		if err == nil {
			err = s.own.applyRecord(r)
		}
		if err != nil {
			return err
		}
		replayed++
	}
	applied, copied, err := s.tablesHold(s.db)
	if err != nil {
		return err
	}
	if s.header.logKeeps && !isNew {
		// What follows stays in the table and in the memtables.
		log.Trim(copied)
	} else {
		// Tables of the build before may hold records that the log has lost, because they were never
		// synced, and those of a new log begin again. The next records have their numbers, so the key
		// in the tables must go back before the first of them is written.
		if replayed > 0 || applied > log.Last() {
			if err := s.own.settle(log.Last()); err != nil {
				return err
			}
		}
		log.Trim(log.Last())
	}
	logs, err := listLogs(s.fs, s.dataDir())
	if err != nil {
		return err
	}
	// With this number in SYNCED, a start without the log, after takeLogBack, ignores the older files of
	// Pebble's log.
	first := uint64(0)
	if n := len(logs); n > 0 {
		first = logs[n-1].number
	}
	// Logs of the database are empty, or their content is in tables.
	if err := s.lengths.useRecords(first, uint64(log.Synced())); err != nil {
		return ioError("storage.Open", s.cfg.Dir, err)
	}
	// A build that reads only main parts must not open the store from here on, until it stops cleanly.
	if isNew || !s.header.logKeeps {
		if err := s.changeHeader(func(h *header) { h.nodeLog, h.logBoot, h.logKeeps = true, boot, true }); err != nil {
			return err
		}
	}
	// After the replay, which holds the log: its records are durable.
	s.walSync.Store(s.own)
	return nil
}

// applyRecord applies a record of the log again: its main part if tables lack it, and its kept part to
// the table.
func (l *storeLog) applyRecord(r nodelog.Record) error {
	const op rhumb.Op = "storage.Open"
	main, ops, err := splitParts(r.Payload)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	l.pos += uint64(len(r.Payload))
	if r.Number <= l.applied {
		// Tables have the deletions of this record already.
		l.s.kept.mu.Lock()
		defer l.s.kept.mu.Unlock()
		l.seen = r.Number
		return l.s.kept.add(r.Number, ops, l.pos, func([]byte) error { return nil })
	}
	b := l.s.db.NewBatch()
	// The batch keeps the bytes, and adds to them.
	if err = b.SetRepr(append(make([]byte, 0, len(main)+64), main...)); err == nil {
		err = l.apply(b, ops, r.Number)
	}
	l.seen = r.Number
	return l.s.dbError(op, errors.Join(err, b.Close()))
}

// settle writes everything to tables, which then hold the log up to a number. Nobody else writes.
func (l *storeLog) settle(number nodelog.Number) error {
	const op rhumb.Op = "storage.Open"
	s := l.s
	err := l.copyAll()
	l.applied = number
	if err == nil {
		err = s.db.Set(appliedKey(), l.appliedValue(), pebble.NoSync)
	}
	if err == nil {
		err = s.db.Flush()
	}
	if err != nil {
		return s.dbError(op, err)
	}
	if applied, copied, err := s.tablesHold(s.db); err != nil || applied != number || copied != number {
		return rhumb.Ef(op, rhumb.Internal, "%s: after a flush the tables hold the log up to records %d and %d, and not %d: %v", s.cfg.Dir, applied, copied, number, err)
	}
	return nil
}

// writeLogBoot records in the STORE file that the store has a log of its own, and the number of its start.
func (s *Store) writeLogBoot(boot rhumb.BootSeq) error {
	return s.changeHeader(func(h *header) { h.nodeLog, h.logBoot = true, boot })
}

// changeHeader changes the STORE file, and the header in memory once that is durable.
func (s *Store) changeHeader(change func(h *header)) error {
	s.headerMu.Lock()
	defer s.headerMu.Unlock()
	s.mu.RLock()
	h := s.header
	s.mu.RUnlock()
	change(&h)
	if err := writeHeader(s.fs, s.cfg.Dir, &h); err != nil {
		return err
	}
	s.mu.Lock()
	s.header = h
	s.mu.Unlock()
	return nil
}

// replaceLog applies the records of a damaged log before the damage, sets the log aside, and creates a new
// one. The store is short unless tables hold every record that the log is known to have had.
//
// If tables have main parts of records whose kept parts cannot be read, versions lack the entries that
// wrote them. Nothing says which ranges that concerns, so the database counts as damaged.
//
// The steps are durable in this order: the record of the damage; the tables; a STORE file without a log; the
// set-aside files; the new log; a STORE file with its id. A crash before the third step begins again, and after it finds
// a store that gets its first log, with another id.
func (s *Store) replaceLog(own *storeLog, cfg nodelog.Config, d *nodelog.Damage) (*nodelog.Log, error) {
	folder, err := s.damagedFolder()
	if err != nil {
		return nil, err
	}
	f := Fault{d.File, d.Offset, d.What}
	applied := own.applied
	// Read reports the damage again after the records before it.
	err = nodelog.Read(cfg, own.applyRecord)
	if again := (*nodelog.Damage)(nil); err != nil && !errors.As(err, &again) {
		return nil, err
	}
	// Tables are ahead of what can be read. If they are not ahead of the copies, they need no kept part.
	if applied > cfg.Trimmed && own.seen < applied {
		return nil, &rhumb.Error{Op: "storage.Open", Kind: rhumb.Corrupt, Err: &faultError{f}}
	}
	if err := s.addDamage(Damage{Fault: f, SetAside: s.fs.PathJoin(folder, logName)}, d.Lost); err != nil {
		return nil, err
	}
	if err := own.settle(own.applied); err != nil {
		return nil, err
	}
	if err := s.changeHeader(func(h *header) { h.nodeLog, h.logKeeps, h.logID = false, false, newUUID() }); err != nil {
		return nil, err
	}
	if err := s.setAside(s.logDir()); err != nil {
		return nil, err
	}
	// The numbers of the new log begin again, and replayLog takes back the one in the tables.
	cfg.ID, cfg.Create, cfg.Synced, cfg.Trimmed = s.header.logID, true, 0, 0
	return nodelog.Open(cfg)
}

// abandonLog closes the log of a store that did not open. Its boot is used up: it is durable in the STORE
// file, or the next start creates the log again.
func (s *Store) abandonLog() error {
	if s.own == nil {
		return nil
	}
	own := s.own
	s.own, s.kept = nil, nil
	s.walSync.Store(nil)
	return own.log.Close()
}

// takeLogBack makes the directory that of a store with the log of the database, which the previous build
// reads. The store is closed, and tables hold everything.
func (s *Store) takeLogBack() error {
	if err := s.changeHeader(func(h *header) { h.nodeLog, h.logKeeps, h.logBoot, h.logID = false, false, 0, rhumb.UUID{} }); err != nil {
		return err
	}
	return removeAll(s.fs, s.logDir())
}

// emptyLog records that tables hold everything, so that a build which reads only the main parts of
// records may open the store. The store is closed.
func (s *Store) emptyLog() error { return s.changeHeader(func(h *header) { h.logKeeps = false }) }
