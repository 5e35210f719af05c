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

// DamagesMax bounds the damages that a store remembers; the oldest stay.
const DamagesMax = 256

// Damage is damage that a store found in its files and lives with.
type Damage struct {
	// Store is the directory of the store.
	Store string `json:"store"`
	Fault
	// SetAside is where the damaged file was moved or copied to before the store went on without its damaged part; empty
	// when the file is still in place.
	SetAside string `json:"set_aside,omitempty"`
}

// The DAMAGE file holds what a store knows of its damage, as JSON, and in its last line the xxh3-64 of all lines before.
const (
	damageName   = "DAMAGE"
	damagePrefix = "damaged-"
)

// damageState is the content of the DAMAGE file.
type damageState struct {
	// Short is set from the moment that damage was found until the host says that its new life is known: the store may
	// lack something that it had made durable.
	Short bool `json:"short"`
	// Damages lists what was found, oldest first.
	Damages []Damage `json:"damages,omitempty"`
	// Ranges lists ranges that damaged tables touch.
	Ranges []string `json:"ranges,omitempty"`
}

// damages keeps what a store knows of its damage.
type damages struct {
	mu     sync.Mutex // guards all below
	state  damageState
	ranges map[rhumb.RangeID]bool
	spans  []keys.Span            // of damaged tables whose ranges could not be read
	mended map[rhumb.RangeID]bool // ranges in spans that were made or dropped since: nothing of them is in the tables
	fresh  []Fault                // met by reads; the sealer finds out which ranges they touch
	folder string                 // for what is set aside by this start
}

func (st *damageState) encode() []byte {
	b, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		panic("storage: damage does not encode: " + err.Error())
	}
	b = append(b, '\n')
	return fmt.Appendf(b, "sum %016x\n", xxh3.Hash(b))
}

func decodeDamage(path string, b []byte) (st damageState, err error) {
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

// loadDamage reads what earlier starts found. A DAMAGE file that cannot be read may have said that the store is short, so
// the store is.
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
		if id, err := rhumb.ParseRangeID(r); err == nil {
			s.damages.ranges[id] = true
		}
	}
	return nil
}

// addDamage notes a damage and makes the note durable. It is called before anything is done about the damage: a crash
// in between must not hide it.
func (s *Store) addDamage(d Damage, short bool) error {
	d.Store = s.cfg.Dir
	s.metrics.damages.Inc()
	s.log.Error("damaged file", "store", s.cfg.Dir, "file", d.File, "offset", d.Offset, "what", d.What, "set_aside", d.SetAside, "short", short)
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	st := &s.damages.state
	if len(st.Damages) < DamagesMax {
		st.Damages = append(st.Damages, d)
	}
	st.Short = st.Short || short
	return s.writeDamage()
}

// writeDamage replaces the DAMAGE file; damages.mu is held.
func (s *Store) writeDamage() error {
	st := &s.damages.state
	st.Ranges = st.Ranges[:0]
	for id := range s.damages.ranges {
		st.Ranges = append(st.Ranges, id.String())
	}
	slices.Sort(st.Ranges)
	return replaceFile(s.fs, s.cfg.Dir, damageName, st.encode())
}

// Damage returns what the store knows of its damage, oldest first. At most DamagesMax are kept.
func (s *Store) Damage() []Damage {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return slices.Clone(s.damages.state.Damages)
}

// Short reports whether the store may lack something that it had made durable. It stays so, also after a restart, until
// ClearShort.
func (s *Store) Short() bool {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return s.damages.state.Short
}

// ClearShort ends Short, durably. Engine.ConfirmLife calls it once a new life of the node is registered: from then on
// nobody counts on what the store held before.
func (s *Store) ClearShort() error {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	if !s.damages.state.Short {
		return nil
	}
	s.damages.state.Short = false
	return s.writeDamage()
}

// DamagedRanges returns the ranges that damaged tables touch, in ascending order. Reads of the damaged blocks fail with
// Corrupt. A range leaves the list when it is dropped.
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

// RangeDamaged reports whether a damaged table touches a range, held or not: a range whose state cannot be read is not
// among the store's ranges at all.
func (s *Store) RangeDamaged(id rhumb.RangeID) bool {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	span := keys.RangeSpan(id)
	return s.damages.ranges[id] || !s.damages.mended[id] && slices.ContainsFunc(s.damages.spans, func(d keys.Span) bool { return spansOverlap(d, span) })
}

// spansOverlap reports whether two spans share a key. The upper end of the first is part of it, as in the span of a table.
func spansOverlap(table, span keys.Span) bool {
	return keys.Compare(span.Lower, table.Upper) <= 0 && (span.Upper == nil || keys.Compare(table.Lower, span.Upper) < 0)
}

// rangeMended takes a dropped range off the list.
func (s *Store) rangeMended(id rhumb.RangeID) {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
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
		s.log.Warn("the list of damaged ranges was not renewed", "store", s.cfg.Dir, "err", err)
	}
}

// metDamage takes note of a damaged block that a read or a compaction met. Pebble calls it under locks of its own, so
// the rest is left to the sealer.
func (s *Store) metDamage(f Fault) {
	s.damages.mu.Lock()
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

// placeDamage finds the ranges that damaged tables touch, for the faults that metDamage noted. With exact it reads those
// ranges to the end, and leaves out those that can be read: one table may hold a part of every range.
func (s *Store) placeDamage(exact bool) error {
	s.damages.mu.Lock()
	fresh := s.damages.fresh
	s.damages.fresh = nil
	s.damages.mu.Unlock()
	var errs []error // a note that fails, for example on a full disk, must not lose the others
	for _, f := range fresh {
		marked := false
		if span, ok := s.tableSpan(f.File); ok {
			marked = s.damageSpan(span, exact)
		}
		// A store that remembers as much as it may learns nothing from further blocks, and must not sync for each read of one.
		if marked || len(s.Damage()) < DamagesMax {
			errs = append(errs, s.addDamage(Damage{Fault: f}, false))
		}
		s.damages.mu.Lock() // reading the ranges has met it again
		s.damages.fresh = slices.DeleteFunc(s.damages.fresh, func(again Fault) bool { return again == f })
		s.damages.mu.Unlock()
	}
	return errors.Join(errs...)
}

// stopEvery is after how many keys readable looks whether the store stops.
const stopEvery = 1_024

var errStopped = errors.New("the store stops")

// rangeReadable reports whether all keys and values of a range can be read. A store that stops does not read on: the range then
// counts as damaged.
func (s *Store) rangeReadable(id rhumb.RangeID) bool {
	span := keys.RangeSpan(id)
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

// damageSpan marks the ranges that a damaged table touches, with exact only those that cannot be read. It reports whether
// one of them was not marked before.
func (s *Store) damageSpan(span keys.Span, exact bool) (marked bool) {
	s.mu.RLock()
	var touched []rhumb.RangeID
	for id := range s.ranges {
		if spansOverlap(span, keys.RangeSpan(id)) {
			touched = append(touched, id)
		}
	}
	s.mu.RUnlock()
	s.damages.mu.Lock()
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

// tableSpan returns the keys of a table file, both ends included.
func (s *Store) tableSpan(path string) (span keys.Span, ok bool) {
	base := s.fs.PathBase(path)
	levels, err := s.db.SSTables()
	if err != nil {
		return span, false
	}
	for _, tables := range levels {
		for _, t := range tables {
			if strings.TrimLeft(strings.TrimSuffix(base, tableSuffix), "0") == strings.TrimLeft(t.BackingSSTNum.String(), "0") {
				return keys.Span{Lower: t.Smallest.UserKey, Upper: t.Largest.UserKey}, true
			}
		}
	}
	return span, false
}

// damagedFolder makes the folder for what this start sets aside.
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

// setAside moves a file or directory of the store into the folder of damaged files.
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

// setAsideAll gives up the whole database: nothing of it can be trusted, or opened. The store goes on empty and short.
func (s *Store) setAsideAll(f Fault) error {
	folder, err := s.damagedFolder()
	if err != nil {
		return err
	}
	if err := s.addDamage(Damage{Fault: f, SetAside: s.fs.PathJoin(folder, dataName)}, true); err != nil {
		return err
	}
	for _, name := range []string{dataName, sealName, syncedName} {
		if err := s.setAside(s.fs.PathJoin(s.cfg.Dir, name)); err != nil {
			return err
		}
	}
	s.emptied = true
	s.synced, s.manifests = syncedState{}, nil
	return nil
}

// cutLog leaves the first bytes of a log file in place. The whole file is kept in folder unless that is empty. The new
// file takes the place of the old one in one step.
func cutLog(fsys vfs.FS, path string, end int64, folder string) error {
	const op rhumb.Op = "storage.cutLog"
	if folder != "" {
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
