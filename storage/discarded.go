package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// discardedName is the directory of KeepDiscarded. It has one directory for each discarded copy.
const discardedName = "discarded"

// The tables of discarded copies are bounded in bytes and, on a small disk, in their share of it.
// The oldest copy is removed first.
const (
	discardedBytesMost = 1 << 30
	discardedShareMost = 0.05
)

// KeepDiscarded sets aside the tables that hold a part of a range, before the range is dropped. It
// links them, damaged as they are, into a directory of their own and returns that directory. A
// table may also hold parts of other ranges. KeepDiscarded fails with TooLarge if the tables exceed
// what may be kept.
func (s *Store) KeepDiscarded(id rhumb.RangeID) (dir string, err error) {
	const op rhumb.Op = "storage.Store.KeepDiscarded"
	// The newest entries are only in memory and in the log, which is recycled.
	if err := s.dbError(op, s.settled(s.db.Flush)); err != nil {
		return "", err
	}
	tables, size, err := s.tablesOf(id)
	if err != nil || len(tables) == 0 {
		return "", rhumb.Wrap(op, err)
	}
	most, err := s.discardedMost()
	if err != nil {
		return "", rhumb.Wrap(op, err)
	}
	if size > most {
		return "", rhumb.Ef(op, rhumb.TooLarge, "the tables of range %s have %d bytes, and at most %d bytes of discarded copies are kept in %s", id, size, most, s.cfg.Dir)
	}
	parent := s.fs.PathJoin(s.cfg.Dir, discardedName)
	// Older copies go before the new one is linked, so that the bound holds at every moment.
	if err := s.trimDiscarded(parent, most-size); err != nil {
		return "", err
	}
	dir = s.fs.PathJoin(parent, fmt.Sprintf("%s-%d-%d", time.Now().UTC().Format("20060102T150405.000000000Z"), id.Region, id.Slot))
	if err := makeDir(s.fs, dir); err != nil {
		return "", err
	}
	// Links need no room and no time, and they keep a table whose database has deleted it.
	for _, t := range tables {
		if err := s.fs.Link(t, s.fs.PathJoin(dir, s.fs.PathBase(t))); err != nil {
			return "", ioError(op, t, err)
		}
	}
	return dir, syncDir(s.fs, dir)
}

// discardedMost returns how many bytes of discarded copies may be kept.
func (s *Store) discardedMost() (uint64, error) {
	_, total, err := s.cfg.DiskFree(s.cfg.Dir)
	if err != nil {
		return 0, ioError("storage.Store.KeepDiscarded", s.cfg.Dir, err)
	}
	if total == 0 { // the file system does not report its size
		return discardedBytesMost, nil
	}
	return min(discardedBytesMost, uint64(discardedShareMost*float64(total))), nil
}

// tablesOf returns the paths of the tables that hold a part of a range, and their size in bytes.
func (s *Store) tablesOf(id rhumb.RangeID) (paths []string, size uint64, err error) {
	levels, err := s.db.SSTables()
	if err != nil {
		return nil, 0, err
	}
	span := s.spanOf(id)
	seen := map[string]bool{} // virtual tables may share a file
	for _, tables := range levels {
		for _, t := range tables {
			path := s.fs.PathJoin(s.dataDir(), t.BackingSSTNum.String()+tableSuffix)
			if seen[path] || !spansOverlap(keys.Span{Lower: t.Smallest.UserKey, Upper: t.Largest.UserKey}, span) {
				continue
			}
			seen[path] = true
			info, err := s.fs.Stat(path)
			if errors.Is(err, fs.ErrNotExist) { // a compaction replaced it in the meantime
				continue
			}
			if err != nil {
				return nil, 0, ioError("storage.Store.KeepDiscarded", path, err)
			}
			paths, size = append(paths, path), size+uint64(info.Size())
		}
	}
	return paths, size, nil
}

// trimDiscarded removes the oldest discarded copies until at most the given number of bytes is
// left. Names begin with the time at which a copy was set aside, so their order is that of age.
func (s *Store) trimDiscarded(parent string, most uint64) error {
	names, err := s.fs.List(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("storage.Store.KeepDiscarded", parent, err)
	}
	names = sortedNames(names)
	sizes, total := make([]uint64, len(names)), uint64(0)
	for i, n := range names {
		files, _ := s.fs.List(s.fs.PathJoin(parent, n))
		for _, f := range files {
			if info, err := s.fs.Stat(s.fs.PathJoin(parent, n, f)); err == nil {
				sizes[i] += uint64(info.Size())
			}
		}
		total += sizes[i]
	}
	for i, n := range names {
		if total <= most {
			break
		}
		path := s.fs.PathJoin(parent, n)
		s.log.Warn("the kept tables of a discarded copy are removed to make room for another copy", "store", s.cfg.Dir, "path", path)
		if err := s.fs.RemoveAll(path); err != nil {
			return ioError("storage.Store.KeepDiscarded", path, err)
		}
		total -= sizes[i]
	}
	return nil
}
