package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/storage/nodelog"
)

// VerifyFaultsMax bounds the faults in one report.
const VerifyFaultsMax = 1_000

// VerifyReport is the result of Verify.
type VerifyReport struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	Keys  int64 `json:"keys"`
	// Versions counts the keys that hold a version of a record.
	Versions int64   `json:"versions"`
	Ranges   int     `json:"ranges"`
	Faults   []Fault `json:"faults,omitempty"`
}

// Verify reads every file and every key of a store that no process has open. It changes nothing but
// the lock file. A nil file system means that of the operating system. An error means that the
// store could not be examined; damage is in the report.
//
// Steps, from the outside in: the STORE file, the seal, every file as bytes, the logs as a start
// would read them, and the database key by key and entry by entry. Later steps run in spite of
// faults in earlier ones, so that one report shows everything.
func Verify(dir string, fsys vfs.FS) (VerifyReport, error) {
	const op rhumb.Op = "storage.Verify"
	if fsys == nil {
		fsys = vfs.Default
	}
	v := &verifier{fs: fsys, dir: absolutePath(fsys, dir), weights: map[rhumb.RangeID]int64{}}
	if _, err := fsys.Stat(fsys.PathJoin(v.dir, headerName)); errors.Is(err, fs.ErrNotExist) {
		if _, err := fsys.Stat(fsys.PathJoin(v.dir, dataName)); err != nil {
			return v.report, rhumb.Ef(op, rhumb.NotFound, "%s holds no store; give the directory of a node", v.dir)
		}
		v.addFault(fsys.PathJoin(v.dir, headerName), -1, "the STORE file is missing")
	}
	// A running store changes its files all the time, and would look damaged.
	lock, err := fsys.Lock(fsys.PathJoin(v.dir, lockName))
	if err != nil {
		return v.report, lockError(op, v.dir, "", err)
	}
	defer func() { _ = lock.Close() }()
	// Damage is collected and not returned, so each check runs whatever the one before found.
	v.checkHeader()
	v.checkSeal()
	if err := errors.Join(v.checkFiles(), v.checkLogs()); err != nil {
		return v.report, ioError(op, v.dir, err)
	}
	v.checkDatabase()
	if err := v.checkOwnLog(); err != nil {
		return v.report, ioError(op, v.dir, err)
	}
	// The log was read before, because its damage explains missing keys of the database.
	return v.report, ioError(op, v.dir, v.checkOrigin())
}

// verifier collects the report of one call of Verify.
type verifier struct {
	fs      vfs.FS
	dir     string
	report  VerifyReport
	sealed  seal
	weights map[rhumb.RangeID]int64 // bytes of the versions of each home
	header  header
	synced  syncedState
	// applied and copied are the records of the store's own log up to which the tables hold main
	// parts, and everything.
	applied, copied nodelog.Number
	// opened is set if the database could be read. id and boot are the values of localStore and localBoot in it, with the
	// records that the tables lack.
	opened   bool
	id, boot []byte
	// lost is set if a log has lost records.
	lost bool
}

// addFault adds a fault to the report.
func (v *verifier) addFault(file string, offset int64, what string) {
	if len(v.report.Faults) < VerifyFaultsMax {
		v.report.Faults = append(v.report.Faults, Fault{file, offset, what})
	}
}

// checkHeader reads the STORE file.
func (v *verifier) checkHeader() {
	h, found, err := readHeader(v.fs, v.dir)
	v.header = h
	if err != nil {
		v.addFault(v.fs.PathJoin(v.dir, headerName), -1, err.Error())
	}
	if found {
		v.report.Files++
	}
}

// checkSeal compares the files with the seal.
func (v *verifier) checkSeal() {
	path := v.fs.PathJoin(v.dir, sealName)
	b, err := readFile(v.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	v.report.Files++
	var s seal
	if err == nil {
		s, err = decodeSeal(path, b)
	}
	if err != nil {
		v.addFault(path, -1, err.Error())
		return
	}
	faults, err := s.checkFiles(v.fs, v.fs.PathJoin(v.dir, dataName))
	if err != nil {
		v.addFault(path, -1, err.Error())
	}
	for _, f := range faults {
		v.addFault(f.File, f.Offset, f.What)
	}
	v.sealed = s
}

// checkLogs looks for damage in the logs that the next start would read. An interrupted write is no
// fault.
func (v *verifier) checkLogs() error {
	dir := v.fs.PathJoin(v.dir, dataName)
	logs, err := listLogs(v.fs, dir)
	if err != nil {
		return err
	}
	state, found, slot, err := readSynced(v.fs, v.dir)
	if err != nil {
		return err
	}
	if found {
		v.report.Files++
	}
	switch f, err := v.header.lostSynced(v.fs, v.dir, state, found); {
	case err != nil:
		return err
	case f != nil:
		v.addLoss(*f)
	case slot >= 0:
		v.addFault(v.fs.PathJoin(v.dir, syncedName), slot, "the checksum does not match")
	}
	if v.synced = state; v.header.nodeLog {
		return nil
	}
	// The same check as at a start, so that Verify predicts where a start would cut the log.
	check := logCheck{fs: v.fs, dir: dir, logs: logs, synced: state, sealed: v.sealed}
	// A clean seal lists the logs itself.
	if f := check.missingLog(); f != nil && !v.sealed.clean {
		v.addLoss(*f)
	}
	at, verdict, err := check.run()
	if err == nil && verdict.what == logDamaged {
		v.addLoss(Fault{logs[at].path, verdict.at, verdict.why})
	}
	return err
}

// addLoss adds a fault by which a log has lost records.
func (v *verifier) addLoss(f Fault) {
	v.addFault(f.File, f.Offset, f.What)
	v.lost = true
}

// checkOrigin compares the database with the STORE file, as beginBoot does. A database of an earlier time, or of another store, is readable and
// looks whole.
func (v *verifier) checkOrigin() error {
	path := v.fs.PathJoin(v.dir, damageName)
	b, err := readFile(v.fs, path)
	var recorded damageState
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil {
		if recorded, err = decodeDamage(path, b); err != nil {
			v.addFault(path, -1, err.Error())
		}
		v.report.Files++
		err = nil
	}
	// No start has finished with boot 0, and a STORE file that cannot be read says nothing.
	if err != nil || !v.opened || v.header.boot == 0 {
		return err
	}
	dir := v.fs.PathJoin(v.dir, dataName)
	// A start looks for no cause that is on record already, or that it has found in the log.
	explained := recorded.Short || v.lost
	if f := v.header.checkOwner(dir, v.id); f != nil && !(explained && v.id == nil) {
		v.addFault(f.File, f.Offset, f.What)
		return nil
	}
	if f := v.header.checkBoot(dir, decodeBoot(v.boot)); f != nil && !explained {
		v.addFault(f.File, f.Offset, f.What)
	}
	return nil
}

// checkOwnLog looks for damage in a log of the store's own, and in the form of the records that tables do not hold yet. Whether they fit to the ranges,
// checkDatabase has seen.
func (v *verifier) checkOwnLog() error {
	if !v.header.nodeLog {
		return nil
	}
	cfg := nodelog.Config{Dir: v.fs.PathJoin(v.dir, logName), FS: v.fs, ID: v.header.ownLogID(), Trimmed: v.copied, Synced: v.header.logSynced(v.synced, v.applied)}
	names, err := v.fs.List(cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	v.report.Files += len(names)
	err = nodelog.Read(cfg, func(r nodelog.Record) error {
		v.report.Bytes += int64(len(r.Payload))
		if err := checkRecord(r.Payload); err != nil {
			v.addFault(cfg.Dir, -1, fmt.Sprintf("record %d: %v", r.Number, err))
		}
		return nil
	})
	if d := (*nodelog.Damage)(nil); errors.As(err, &d) {
		v.addFault(d.File, d.Offset, d.What)
		v.lost = v.lost || d.Lost
		return nil
	}
	return err
}

// checkRecord checks the form of the keys and values that a record of the log sets.
func checkRecord(payload []byte) error {
	main, kept, err := splitParts(payload)
	if err != nil {
		return err
	}
	b := new(pebble.Batch)
	if err := b.SetRepr(bytes.Clone(main)); err != nil {
		return err
	}
	return errors.Join(checkOps(b.Reader()), checkOps(kept))
}

// checkOps checks the operations of a batch.
func checkOps(r batchrepr.Reader) error {
	for {
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		if kind == pebble.InternalKeyKindSet {
			err = checkPair(key, value)
		}
		if err != nil {
			return fmt.Errorf("key %s: %w", keys.Format(key), err)
		}
	}
}

// aheadOf returns the database as the next start would have it: with the records of the store's own log that its tables lack. Log records and results
// that tables lack go to the table in memory of s. The records stay in memory, which takes as much as a start needs for them, and nothing is written.
// checkOwnLog reports damage in the log; the view then ends before it, where a start would set the log aside.
func (v *verifier) aheadOf(s *Store, db *pebble.DB, applied nodelog.Number) pebble.Reader {
	if !v.header.nodeLog {
		return db
	}
	s.kept = newKeptTable()
	// Of a store of the build before, tables may hold records that the log has lost. A start takes all records that the log has.
	cfg := nodelog.Config{Dir: v.fs.PathJoin(v.dir, logName), FS: v.fs, ID: v.header.ownLogID(), Trimmed: v.copied}
	view := db.NewIndexedBatch()
	_ = nodelog.Read(cfg, func(r nodelog.Record) error {
		main, kept, err := splitParts(r.Payload)
		if err != nil {
			return err
		}
		// As in applyRecord: tables have the deletions of their records already.
		if r.Number <= applied {
			return s.kept.add(r.Number, kept, 0, func([]byte) error { return nil })
		}
		b := new(pebble.Batch)
		if err := b.SetRepr(bytes.Clone(main)); err != nil {
			return err
		}
		// The main part may delete a span, and the keys of that span which the record sets follow it.
		err = s.kept.add(r.Number, kept, 0, func(key []byte) error { return b.Delete(key, nil) })
		if err == nil {
			err = view.Apply(b, nil)
		}
		return err
	})
	return view
}

// checkFiles reads every file of the database, and the tables block by block: the keys below are
// read through the block cache's view of the database, which skips what newer tables hide.
func (v *verifier) checkFiles() error {
	dir := v.fs.PathJoin(v.dir, dataName)
	names, err := v.fs.List(dir)
	if err != nil {
		return err
	}
	// In the order of names, so that two reports of one store can be compared.
	for _, n := range sortedNames(names) {
		if n == lockName {
			continue
		}
		path := v.fs.PathJoin(dir, n)
		info, err := v.fs.Stat(path)
		if err != nil {
			v.addFault(path, -1, err.Error())
			continue
		}
		v.report.Files++
		v.report.Bytes += info.Size()
		if strings.HasSuffix(n, tableSuffix) {
			err = v.tableFile(path)
		} else {
			err = v.readAll(path)
		}
		if err != nil {
			f := faultOf(path, err)
			v.addFault(path, f.Offset, f.What)
		}
	}
	return nil
}

// readAll reads a file to its end.
func (v *verifier) readAll(path string) error {
	f, err := v.fs.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, f)
	return errors.Join(err, f.Close())
}

// tableFile checks the checksums of all blocks of a table.
func (v *verifier) tableFile(path string) error {
	f, err := v.fs.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, verifyOptions(v.fs).MakeReaderOptions())
	if err != nil {
		return err // NewReader has closed readable
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

// verifyOptions returns options that open a database without changing it.
func verifyOptions(fsys vfs.FS) *pebble.Options {
	o := &pebble.Options{
		Comparer: comparer, FormatMajorVersion: pebbleNewest, FS: fsys, ReadOnly: true, ErrorIfNotExists: true,
		Logger: quiet{}, EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	}
	o.EnsureDefaults()
	return o
}

// quiet discards Pebble's log. Damage is returned as an error.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic("storage.Verify: " + fmt.Sprintf(format, args...))
}

// checkDatabase opens the database without changing it and reads every key.
func (v *verifier) checkDatabase() {
	dir := v.fs.PathJoin(v.dir, dataName)
	// Read-only, Pebble replays the logs into memory and writes nothing.
	db, err := pebble.Open(dir, verifyOptions(v.fs))
	if err != nil {
		f := faultOf(dir, err)
		v.addFault(f.File, f.Offset, f.What)
		return
	}
	defer func() { _ = db.Close() }()
	v.dropUnused(db)
	// A Store without files of its own: only the methods that read the database are used.
	s := &Store{cfg: Config{Dir: v.dir}, db: db, ranges: map[rhumb.RangeID]*rangeState{}}
	applied, copied, err := s.tablesHold(db)
	if err != nil {
		v.addFault(dir, -1, err.Error())
	}
	v.applied, v.copied = applied, copied
	s.ahead = v.aheadOf(s, db, applied)
	v.id, err = localValue(s.ahead, localStore)
	if err == nil {
		v.boot, err = localValue(s.ahead, localBoot)
	}
	// checkKeys meets the damage of a block that cannot be read.
	v.opened = err == nil
	if err := v.checkKeys(s.ahead); err != nil {
		f := faultOf(dir, err)
		v.addFault(f.File, f.Offset, f.What)
		return
	}
	if err := s.loadRanges("storage.Verify", keys.ReplicatedSpan().Lower, func(_ rhumb.RangeID, err error) { v.addFault(dir, -1, err.Error()) }); err != nil {
		v.addFault(dir, -1, err.Error())
		return
	}
	v.report.Ranges = len(s.ranges)
	// The keys were counted by home.
	weights := map[rhumb.RangeID]int64{}
	for home, n := range v.weights {
		if rs := s.rangeHolding(home); rs != nil {
			home = rs.log.Range
		}
		weights[home] += n
	}
	for id, rs := range s.ranges {
		// The size on record is the sum of all written versions minus the collected ones. A
		// difference means that a version vanished, or that one exists which no log record lists.
		// After a split the size is an estimate.
		if size, _ := s.Size(id); size.Data != weights[id] && !rs.log.estimated {
			v.addFault(dir, -1, fmt.Sprintf("range %s has %d bytes of versions, but %d are on record", id, weights[id], size.Data))
		}
		if err := v.checkLog(s, rs.copyState()); err != nil {
			v.addFault(dir, -1, err.Error())
		}
	}
}

// dropUnused removes the faults of table files that the database does not name. A flush or compaction
// that a kill or a power cut ended leaves such a file, with a part of its content. The next start
// removes it.
func (v *verifier) dropUnused(db *pebble.DB) {
	levels, err := db.SSTables()
	if err != nil {
		return // all faults stay
	}
	dir := v.fs.PathJoin(v.dir, dataName)
	used := map[string]bool{}
	for _, level := range levels {
		for _, t := range level {
			used[v.fs.PathJoin(dir, t.BackingSSTNum.String()+tableSuffix)] = true
		}
	}
	v.report.Faults = slices.DeleteFunc(v.report.Faults, func(f Fault) bool {
		return strings.HasSuffix(f.File, tableSuffix) && v.fs.PathDir(f.File) == dir && !used[f.File]
	})
}

// localValue returns the value of a key of SpaceStore, or nil if there is none.
func localValue(db pebble.Reader, key string) ([]byte, error) {
	value, closer, err := db.Get(keys.AppendLocal(nil, SpaceStore, []byte(key)))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// The copy is never nil, so that an empty value differs from none.
	return append([]byte{}, value...), closer.Close()
}

// checkKeys reads every key and checks the form of keys and values.
func (v *verifier) checkKeys(db pebble.Reader) error {
	it, err := db.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; ok = it.Next() {
		v.report.Keys++
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if _, name, _, err := keys.DecodeData(it.Key()); err == nil {
			id, _ := keys.Home(it.Key())
			v.report.Versions++
			v.weights[id] += int64(versionWeight(len(name), len(value)))
		}
		if err := checkPair(it.Key(), value); err != nil {
			v.addFault(v.fs.PathJoin(v.dir, dataName), -1, "key "+keys.Format(it.Key())+": "+err.Error())
		}
	}
	return it.Error()
}

// checkPair checks the form of a key and its value.
func checkPair(key, value []byte) error {
	d, err := keys.Decode(key)
	if err != nil {
		return err
	}
	switch d.Kind {
	case keys.KindData:
		// A tombstone has a value too, so an empty one was never written.
		if d.Version.IsZero() || len(value) == 0 {
			return rhumb.E("storage.Verify", rhumb.Corrupt, "the version or the value is missing")
		}
	case keys.KindLog:
		r, err := decodeRecord(value)
		if err == nil && r.entry.Seq != d.Seq {
			err = rhumb.Ef("storage.Verify", rhumb.Corrupt, "the record holds entry %d", r.entry.Seq)
		}
		return err
	case keys.KindDedup:
		if d.Request.Seq == 0 {
			_, err := decodeFloor(value)
			return err
		}
		_, _, err := decodeSeen(value)
		return err
	}
	return nil
}

// checkLog reads every entry after the trim position with its values, and checks that each one
// continues the one before (invariant I2).
func (v *verifier) checkLog(s *Store, st RangeState) error {
	var prev entry.Hash
	for from := st.Trim + 1; from <= st.Last.Seq; {
		entries, err := s.Entries(st.Range, from, st.Last.Seq, 0)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return rhumb.Ef("storage.Verify", rhumb.Corrupt, "range %s: entry %d is missing", st.Range, from)
		}
		for _, e := range entries {
			// The first entry continues the one at the trim position, which may be gone.
			if from > st.Trim+1 && e.Prev != prev {
				return rhumb.Ef("storage.Verify", rhumb.Corrupt, "range %s: the previous hash of entry %d is not that of the entry before it", st.Range, e.Seq)
			}
			prev = e.Hash
			from++
		}
	}
	return nil
}
