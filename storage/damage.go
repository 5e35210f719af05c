package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/zeebo/xxh3"
)

// DamagesMax bounds the damages that a store remembers. The oldest are kept, because they come
// closest to the cause.
const DamagesMax = 256

// Damage is damage in a file of a store that continued without the damaged part.
type Damage struct {
	// Store is the directory of the store.
	Store string `json:"store"`
	Fault
	// SetAside is where the damaged file was moved or copied to before the store continued without
	// its damaged part. It is empty if the file is still in place.
	SetAside string `json:"set_aside,omitempty"`
}

// The DAMAGE file holds the damage on record as JSON, which a person can read and mend, and in its
// last line the xxh3-64 of all lines before.
const (
	damageName   = "DAMAGE"
	damagePrefix = "damaged-"
)

// damageState is the content of the DAMAGE file.
type damageState struct {
	// Short is set from the moment that damage was found until a new life of the node is known to
	// metadata. Until then the store may lack something that it had made durable and that others
	// count on.
	Short bool `json:"short"`
	// Damages lists the damage that was found, oldest first.
	Damages []Damage `json:"damages,omitempty"`
	// Ranges lists the ranges that damaged tables touch.
	Ranges []string `json:"ranges,omitempty"`
}

// damages is the damage that an open store knows of.
type damages struct {
	mu     sync.Mutex // guards all below
	state  damageState
	ranges map[rhumb.RangeID]bool
	spans  []keys.Span            // damaged tables whose ranges could not be listed
	mended map[rhumb.RangeID]bool // ranges in spans that were created or dropped since
	fresh  []Fault                // faults that reads met and whose ranges the sealer has yet to find
	folder string                 // where this start sets files aside
}

// encode returns the content of the DAMAGE file.
func (st *damageState) encode() []byte {
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		panic("storage: the record of damage cannot be encoded: " + err.Error())
	}
	b = append(b, '\n')
	return fmt.Appendf(b, "sum %016x\n", xxh3.Hash(b))
}

// decodeDamage decodes a DAMAGE file; path is for the error. With an error, the returned state is
// short.
func decodeDamage(path string, b []byte) (st damageState, err error) {
	// The checksum is compared before JSON is decoded: a flipped bit in JSON is often valid JSON.
	body, sum, ok := cutLast(b, "sum ")
	if ok && sum == fmt.Sprintf("%016x\n", xxh3.Hash(body)) {
		err = json.Unmarshal(body, &st)
	} else {
		err = errors.New("the checksum does not match")
	}
	if err != nil {
		return damageState{Short: true}, rhumb.Ef("storage.Open", rhumb.Corrupt, "%s: %v", path, err)
	}
	return st, nil
}

// loadDamage reads the damage that earlier starts recorded. A DAMAGE file that cannot be decoded
// may have marked the store as short, so the store is marked again.
func (s *Store) loadDamage() error {
	s.damages.ranges = map[rhumb.RangeID]bool{}
	path := s.fs.PathJoin(s.cfg.Dir, damageName)
	b, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return ioError("storage.Open", path, err)
	}
	if s.damages.state, err = decodeDamage(path, b); err != nil {
		return s.addDamage(Damage{Fault: Fault{path, -1, err.Error()}}, true)
	}
	for _, r := range s.damages.state.Ranges {
		// The checksum was right, so a range that cannot be parsed was written by a newer build.
		if id, err := rhumb.ParseRangeID(r); err == nil {
			s.damages.ranges[id] = true
		}
	}
	return nil
}

// addDamage records damage and returns once the record is durable. It is called before anything is
// done about the damage, so that a crash in between cannot hide it.
func (s *Store) addDamage(d Damage, short bool) error {
	d.Store = s.cfg.Dir
	s.metrics.damages.Inc()
	s.log.Error("a file is damaged", "store", s.cfg.Dir, "file", d.File, "offset", d.Offset, "what", d.What, "set_aside", d.SetAside, "short", short)
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	st := &s.damages.state
	if len(st.Damages) < DamagesMax {
		st.Damages = append(st.Damages, d)
	}
	// Beyond DamagesMax the list no longer grows, but the mark must still be set.
	st.Short = st.Short || short
	return s.writeDamage()
}

// writeDamage replaces the DAMAGE file. damages.mu is held.
func (s *Store) writeDamage() error {
	st := &s.damages.state
	// Only names of ranges are stored. Spans of tables whose ranges could not be listed are found
	// again by the next start, which reads the same block.
	st.Ranges = st.Ranges[:0]
	for id := range s.damages.ranges {
		st.Ranges = append(st.Ranges, id.String())
	}
	slices.Sort(st.Ranges)
	return replaceFile(s.fs, s.cfg.Dir, damageName, st.encode())
}

// Damage returns the damage on record, oldest first. At most DamagesMax are kept.
func (s *Store) Damage() []Damage {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return slices.Clone(s.damages.state.Damages)
}

// Short reports whether the store may lack something that it had made durable. Short outlives a
// restart and ends with ClearShort.
func (s *Store) Short() bool {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return s.damages.state.Short
}

// ClearShort ends Short, durably. Engine.ConfirmLife calls it once a new life of the node is
// registered: from then on nobody relies on data of an earlier life.
func (s *Store) ClearShort() error {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	if !s.damages.state.Short {
		return nil
	}
	s.damages.state.Short = false
	if err := s.writeDamage(); err != nil {
		// The mark in memory must not be gone while that on disk stays, or the next call would
		// succeed without writing.
		s.damages.state.Short = true
		return err
	}
	return nil
}

// DamagedRanges returns the ranges that damaged tables touch, in ascending order. Reads of the
// damaged blocks fail with Corrupt. A range leaves the list when it is dropped.
func (s *Store) DamagedRanges() []rhumb.RangeID {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	var out []rhumb.RangeID
	for id := range s.damages.ranges {
		out = append(out, id)
	}
	slices.SortFunc(out, rhumb.RangeID.Compare)
	return out
}

// RangeDamaged reports whether a damaged table touches a range, whether the store holds the range
// or not. A range whose state cannot be read is not among the store's ranges, and must not be taken
// for one that this node never had.
func (s *Store) RangeDamaged(id rhumb.RangeID) bool {
	// Of a range that the store does not hold, only the first slot is known. The state of the range is there.
	span := s.spanOf(id)
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return s.damages.ranges[id] || !s.damages.mended[id] && slices.ContainsFunc(s.damages.spans, func(d keys.Span) bool { return spansOverlap(d, span) })
}

// spansOverlap reports whether two spans share a key. The upper end of the first is part of it, as
// in the span of a table.
func spansOverlap(table, span keys.Span) bool {
	return keys.Compare(span.Lower, table.Upper) <= 0 && (span.Upper == nil || keys.Compare(table.Lower, span.Upper) < 0)
}

// rangeMended takes a range that was created or dropped off the list.
func (s *Store) rangeMended(id rhumb.RangeID) {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	// The span stays, because it also covers ranges that are still damaged.
	if len(s.damages.spans) > 0 {
		if s.damages.mended == nil {
			s.damages.mended = map[rhumb.RangeID]bool{}
		}
		s.damages.mended[id] = true
	}
	if !s.damages.ranges[id] {
		return
	}
	delete(s.damages.ranges, id)
	if err := s.writeDamage(); err != nil {
		s.log.Warn("a mended range was not taken off the list of damaged ranges on disk; it is listed again after a restart", "store", s.cfg.Dir, "err", err)
	}
}

// metDamage notes a damaged block that a read or a compaction met. Pebble calls it while it holds
// locks of its own, so finding the ranges is left to the sealer.
func (s *Store) metDamage(f Fault) {
	s.damages.mu.Lock()
	// A damaged block is met again by every read of it. Only the first time is news.
	known := slices.ContainsFunc(s.damages.state.Damages, func(d Damage) bool { return d.File == f.File && d.Offset == f.Offset }) ||
		slices.Contains(s.damages.fresh, f)
	if !known && len(s.damages.fresh) < DamagesMax {
		s.damages.fresh = append(s.damages.fresh, f)
	}
	s.damages.mu.Unlock()
	if !known {
		s.wakeSealer()
	}
}

// placeDamage finds the ranges that damaged tables touch, for the faults that metDamage noted. If
// exact is set, it reads those ranges to the end and leaves out the readable ones: one table may
// hold a part of every range, and quarantining all of them because of one block would cost a node
// all its copies.
func (s *Store) placeDamage(exact bool) error {
	s.damages.mu.Lock()
	fresh := s.damages.fresh
	s.damages.fresh = nil
	s.damages.mu.Unlock()
	// A failure, for example on a full disk, must not keep the other faults from being recorded.
	var errs []error
	for _, f := range fresh {
		marked := false
		if span, ok := s.tableSpan(f.File); ok {
			marked = s.damageSpan(span, exact)
		}
		// With DamagesMax on record, a further block is not worth a record unless it marked a
		// range. The store must not sync once for every read of such a block.
		if marked || len(s.Damage()) < DamagesMax {
			errs = append(errs, s.addDamage(Damage{Fault: f}, false))
		}
		// Reading the ranges has met the same block and noted it again.
		s.damages.mu.Lock()
		s.damages.fresh = slices.DeleteFunc(s.damages.fresh, func(again Fault) bool { return again == f })
		s.damages.mu.Unlock()
	}
	return errors.Join(errs...)
}

// stopEvery is the number of keys after which rangeReadable checks whether the store is closing.
const stopEvery = 1_024

var errStopped = errors.New("the store is closing")

// rangeReadable reports whether all keys and values of a range can be read. If the store closes
// meanwhile, it stops reading and reports false, so that the range counts as damaged.
func (s *Store) rangeReadable(id rhumb.RangeID) bool {
	span := s.spanOf(id)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return false
	}
	n := 0
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		_, err = it.ValueAndErr()
		if n++; n%stopEvery == 0 && s.sealer.isStopping() {
			err = errStopped
		}
	}
	return errors.Join(err, it.Close()) == nil
}

// damageSpan marks the ranges that a damaged table touches, and with exact only those that cannot
// be read. It reports whether it marked one.
//
// The locks are taken one after the other and never while ranges are read: a read that meets damage
// calls metDamage, which takes damages.mu.
func (s *Store) damageSpan(span keys.Span, exact bool) (marked bool) {
	s.mu.RLock()
	var touched []rhumb.RangeID
	for id, rs := range s.ranges {
		st := rs.copyState()
		if spansOverlap(span, st.span()) {
			touched = append(touched, id)
		}
	}
	s.mu.RUnlock()
	s.damages.mu.Lock()
	// Ranges that are marked already need not be read again.
	touched = slices.DeleteFunc(touched, func(id rhumb.RangeID) bool { return s.damages.ranges[id] })
	s.damages.mu.Unlock()
	if exact {
		touched = slices.DeleteFunc(touched, s.rangeReadable)
	}
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	for _, id := range touched {
		s.damages.ranges[id] = true
	}
	return len(touched) > 0
}

// tableSpan returns the span of keys of a table file, both ends included. ok is false if the file
// is not a live table, for example because a compaction has replaced it.
func (s *Store) tableSpan(path string) (span keys.Span, ok bool) {
	base := s.fs.PathBase(path)
	levels, err := s.db.SSTables()
	if err != nil {
		return span, false
	}
	for _, tables := range levels {
		// The file of a virtual table has the number of its backing table. Numbers in file names
		// are padded with zeros.
		for _, t := range tables {
			if strings.TrimLeft(strings.TrimSuffix(base, tableSuffix), "0") == strings.TrimLeft(t.BackingSSTNum.String(), "0") {
				return keys.Span{Lower: t.Smallest.UserKey, Upper: t.Largest.UserKey}, true
			}
		}
	}
	return span, false
}

// damagedFolder returns the folder for files that this start sets aside, and creates it if
// necessary.
func (s *Store) damagedFolder() (string, error) {
	if s.damages.folder == "" {
		dir := s.fs.PathJoin(s.cfg.Dir, damagePrefix+time.Now().UTC().Format("20060102T150405.000000000Z"))
		if err := makeDir(s.fs, dir); err != nil {
			return "", err
		}
		s.damages.folder = dir
	}
	return s.damages.folder, nil
}

// setAside moves a file or directory of the store into the folder of damaged files. A file that is
// missing was moved before a crash, which is not an error: recovery runs again from the beginning.
func (s *Store) setAside(path string) error {
	folder, err := s.damagedFolder()
	if err != nil {
		return err
	}
	to := s.fs.PathJoin(folder, s.fs.PathBase(path))
	if err := s.fs.Rename(path, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("storage.setAside", path, err)
	}
	return errors.Join(syncDir(s.fs, folder), syncDir(s.fs, s.fs.PathDir(path)))
}

// setAsideAll moves the whole database away, because it cannot be trusted or opened. The store
// continues empty and short. The seal and SYNCED describe files of the old database, and the log continues its tables, so they move
// with it.
func (s *Store) setAsideAll(f Fault) error {
	folder, err := s.damagedFolder()
	if err != nil {
		return err
	}
	if err := s.addDamage(Damage{Fault: f, SetAside: s.fs.PathJoin(folder, dataName)}, true); err != nil {
		return err
	}
	// The database goes first. A crash after that leaves a seal over files that do not exist, which
	// the next start treats as the same damage.
	for _, name := range []string{dataName, sealName, syncedName, logName} {
		if err := s.setAside(s.fs.PathJoin(s.cfg.Dir, name)); err != nil {
			return err
		}
	}
	s.emptied = true
	s.synced, s.manifests = syncedState{}, nil
	return nil
}

// cutLog shortens a log file to its first end bytes. If folder is not empty, the whole file is
// linked into it first. The new file replaces the old one in one step, so that a crash leaves one
// of the two. Truncating in place would be shorter, but it would also truncate the linked copy.
func cutLog(fsys vfs.FS, path string, end int64, folder string) error {
	const op rhumb.Op = "storage.cutLog"
	if folder != "" {
		// The link may exist from a recovery that a crash interrupted.
		if err := fsys.Link(path, fsys.PathJoin(folder, fsys.PathBase(path))); err != nil && !errors.Is(err, fs.ErrExist) {
			return ioError(op, path, err)
		}
		if err := syncDir(fsys, folder); err != nil {
			return err
		}
	}
	in, err := fsys.Open(path)
	if err != nil {
		return ioError(op, path, err)
	}
	// The temporary name does not end in .log, so a crash leaves no file that looks like a log.
	tmp := path + ".cut"
	out, err := fsys.Create(tmp, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = io.CopyN(out, in, end)
		err = errors.Join(err, out.Sync(), out.Close())
	}
	if err = errors.Join(err, in.Close()); err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		return ioError(op, path, err)
	}
	return syncDir(fsys, fsys.PathDir(path))
}
