package nodelog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// Log is an open log. All methods may be called from any goroutine. Records are appended one at a time, and
// one sync is under way at a time, but records can be appended during a sync. Trim and the methods that report
// never wait for the disk.
//
// Invariants: cfg, files, seed and size never change. durable <= trimmed <= synced <= last. at is a multiple
// of Sector.
type Log struct {
	cfg   Config
	files []vfs.File
	seed  uint32
	size  int64 // of each segment

	// These may be read at any time. trimmed is written by Trim, the others only while io is held.
	last, synced, trimmed atomic.Uint64
	// unsynced counts the bytes that were written and not synced.
	unsynced atomic.Int64

	io sync.Mutex // guards all below, and all writes
	// syncing is set during a sync, which does not hold io. Only one sync may be under way: the kernel reports
	// a failure to one of two callers, and the other one would take its records for durable. done announces
	// the end of a sync.
	syncing bool
	done    sync.Cond
	lap     uint64
	at      int64 // where the next record begins in the segment of the lap
	// ends has the last number of the lap in each segment. A segment may be written over once that number is
	// trimmed durably.
	ends []Number
	// durable is the greatest trim position in a synced record, and written that in any record.
	durable, written Number
	buf              []byte
	failed           error // why the log does not continue
}

// segmentFile returns the path of a segment.
func (l *Log) segmentFile(segment int) string { return segmentPath(l.cfg.FS, l.cfg.Dir, segment) }

// RecordBytesMax returns the size of the largest payload.
func (l *Log) RecordBytesMax() int { return int(l.size-2*Sector) - headerSize }

// Last returns the number of the last record.
func (l *Log) Last() Number { return Number(l.last.Load()) }

// Synced returns the number of the last record that is durable.
func (l *Log) Synced() Number { return Number(l.synced.Load()) }

// Trimmed returns the greatest number that is no longer needed.
func (l *Log) Trimmed() Number { return Number(l.trimmed.Load()) }

// Unsynced returns how many bytes were written and not synced.
func (l *Log) Unsynced() int64 { return l.unsynced.Load() }

// Segments returns how many segments the log has, and how many of them hold records that are still needed.
func (l *Log) Segments() (all, needed int) {
	l.io.Lock()
	defer l.io.Unlock()
	for _, end := range l.ends {
		if end > l.Trimmed() {
			needed++
		}
	}
	return len(l.ends), needed
}

// Append writes one record whose payload is the concatenation of parts, and returns its number. The record is
// durable once Sync has returned. Append fails with Overloaded if every segment holds records that are still
// needed: the caller trims, and appends again. Nothing is written then. After any other failure but TooLarge
// the log does not continue.
func (l *Log) Append(parts ...[]byte) (Number, error) {
	const op rhumb.Op = "nodelog.Log.Append"
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if most := l.RecordBytesMax(); size > most {
		return 0, rhumb.Ef(op, rhumb.TooLarge, "%s: a record of %d bytes does not fit into a segment of %d; the most is %d", l.cfg.Dir, size, l.size, most)
	}
	l.io.Lock()
	defer l.io.Unlock()
	if l.failed != nil {
		return 0, l.failed
	}
	// The last sector is kept for a mark. A new lap waits for a sync, and another caller may append meanwhile:
	// so the room is measured again.
	for l.at+paddedSize(size) > l.size-Sector {
		if err := l.beginLap(op); err != nil {
			return 0, err
		}
	}
	return l.writeRecord(op, kindData, parts...)
}

// writeRecord writes a record at the current place, which has room for it. io is held.
func (l *Log) writeRecord(op rhumb.Op, kind byte, parts ...[]byte) (Number, error) {
	h := head{kind: kind, lap: l.lap, boot: uint64(l.cfg.Boot), number: l.Last() + 1, synced: l.Synced(), trimmed: l.Trimmed()}
	l.buf = appendRecord(l.buf[:0], l.seed, h, parts...)
	segment := segmentOf(l.lap, len(l.files))
	if _, err := l.files[segment].WriteAt(l.buf, l.at); err != nil {
		// Part of the record may be on disk. The next record would follow a gap.
		return 0, l.failWith(op, segment, err)
	}
	l.at += int64(len(l.buf))
	l.ends[segment], l.written = h.number, h.trimmed
	l.last.Store(uint64(h.number))
	l.unsynced.Add(int64(len(l.buf)))
	l.cfg.Metrics.Wrote(len(l.buf))
	return h.number, nil
}

// beginLap makes the next segment the current one. io is held.
func (l *Log) beginLap(op rhumb.Op) error {
	next := segmentOf(l.lap+1, len(l.files))
	if needed := l.ends[next]; needed > l.Trimmed() {
		l.cfg.Metrics.Refused()
		return rhumb.Ef(op, rhumb.Overloaded, "%s: all %d segments hold records that are still needed, the oldest up to %d; trim the log", l.cfg.Dir, len(l.files), needed)
	}
	// The trim position must be durable before records are written over on its account.
	if l.ends[next] > l.durable && l.written < l.ends[next] {
		if _, err := l.writeRecord(op, kindMark); err != nil {
			return err
		}
	}
	// Only the newest lap may have records that are not durable.
	for lap := l.lap; l.Last() != l.Synced() || l.syncing; {
		if err := l.syncLap(op); err != nil {
			return err
		}
		// Another caller has begun the lap during the sync.
		if l.lap != lap {
			return nil
		}
	}
	l.lap++
	l.at, l.ends[next] = Sector, 0
	l.cfg.Metrics.Turned()
	return nil
}

// Sync returns once all records are durable.
func (l *Log) Sync() error { return l.SyncTo(l.Last()) }

// SyncTo returns once the records up to a number are durable. One sync serves all callers whose records were
// written before it began. A failed sync is the end of the log: a second one may succeed although the pages of
// the first were dropped, so it is never tried again.
func (l *Log) SyncTo(upTo Number) error {
	l.io.Lock()
	defer l.io.Unlock()
	for l.Synced() < upTo {
		if err := l.syncLap("nodelog.Log.Sync"); err != nil {
			return err
		}
	}
	return nil
}

// syncLap waits for the sync that is under way, or syncs the current segment. io is held, but not during the
// sync: the next records are written meanwhile. They may be part of this sync, and do not count for it.
func (l *Log) syncLap(op rhumb.Op) error {
	if l.syncing {
		l.done.Wait()
		return l.failed
	}
	last, written, bytes := l.Last(), l.written, l.unsynced.Load()
	if l.failed != nil || last == l.Synced() {
		return l.failed
	}
	// Only this segment can have records that are not durable: the ones before were synced before their next
	// lap began.
	segment, begin := segmentOf(l.lap, len(l.files)), time.Now()
	f := l.files[segment]
	l.syncing = true
	l.io.Unlock()
	err := f.SyncData()
	l.io.Lock()
	l.syncing = false
	l.done.Broadcast()
	// A write may have failed meanwhile. Its error stays the reason why the log ended.
	if err != nil && l.failed == nil {
		err = l.failWith(op, segment, err)
	}
	if err != nil {
		return err
	}
	l.durable = written
	l.synced.Store(uint64(last))
	l.unsynced.Add(-bytes)
	l.cfg.Metrics.Synced(time.Since(begin))
	return nil
}

// syncAll syncs until no record is left that is not durable, and no sync is under way. io is held.
func (l *Log) syncAll(op rhumb.Op) error {
	for l.failed == nil && (l.syncing || l.Last() != l.Synced()) {
		if err := l.syncLap(op); err != nil {
			return err
		}
	}
	return l.failed
}

// failWith ends the log. io is held.
func (l *Log) failWith(op rhumb.Op, segment int, err error) error {
	l.failed = WrapIO(op, l.segmentFile(segment), fmt.Errorf("offset %d: %w; what the disk holds from there on is unknown, so the log ends until it is opened again", l.at, err))
	return l.failed
}

// Trim declares the records up to a number no longer needed, so that their space is used again. Records that
// are not synced are kept, whatever the number: a power loss could lose them, and later records would then
// have their numbers.
func (l *Log) Trim(upTo Number) {
	upTo = min(upTo, l.Synced())
	for {
		old := l.trimmed.Load()
		if uint64(upTo) <= old || l.trimmed.CompareAndSwap(old, uint64(upTo)) {
			return
		}
	}
}

// Close syncs the log and closes its files. A mark says that everything before it is durable, so that later
// damage of the last records is noticed. It is left out if the segment has no room for it.
func (l *Log) Close() error {
	const op rhumb.Op = "nodelog.Log.Close"
	l.io.Lock()
	defer l.io.Unlock()
	err := l.syncAll(op)
	if err == nil && l.at+Sector <= l.size-Sector {
		if _, err = l.writeRecord(op, kindMark); err == nil {
			err = l.syncAll(op)
		}
	}
	l.failed = rhumb.Ef(op, rhumb.Unavailable, "%s: the log is closed", l.cfg.Dir)
	for i, f := range l.files {
		err = errors.Join(err, WrapIO(op, l.segmentFile(i), f.Close()))
	}
	l.files = nil
	return err
}
