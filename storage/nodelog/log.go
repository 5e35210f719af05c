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

// Log is an open log. All methods may be called from any goroutine, but Append, Sync, Replay and Close wait for each other: one commit is under
// way at a time. Trim and the methods that report never wait for the disk.
//
// Invariants: cfg, files, seed and size never change. durable <= trimmed <= synced <= last. at is a multiple of Sector.
type Log struct {
	cfg   Config
	files []vfs.File
	seed  uint32
	size  int64 // of each segment

	// These may be read at any time. trimmed is written by Trim, the others only while io is held.
	last, synced, trimmed atomic.Uint64

	io  sync.Mutex // guards all below, and all writes and syncs
	lap uint64
	at  int64 // where the next record begins in the segment of the lap
	// ends has the last number of the lap in each segment. A segment may be written over once that number is trimmed durably.
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

// Append writes one record whose payload is the concatenation of parts, and returns its number. The record is durable once Sync has returned.
// Append fails with Overloaded if every segment holds records that are still needed: the caller trims, and appends again. Nothing is written
// then. After any other failure but TooLarge the log does not continue.
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
	// The last sector is kept for a mark.
	if l.at+paddedSize(size) > l.size-Sector {
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
	if err := l.syncLap(op); err != nil {
		return err
	}
	l.lap++
	l.at, l.ends[next] = Sector, 0
	l.cfg.Metrics.Turned()
	return nil
}

// Sync returns once all records are durable. A failed sync is the end of the log: a second one may succeed although the pages of the first
// were dropped, so it is never tried again.
func (l *Log) Sync() error {
	l.io.Lock()
	defer l.io.Unlock()
	if l.failed != nil {
		return l.failed
	}
	return l.syncLap("nodelog.Log.Sync")
}

// syncLap syncs the current segment, unless all records are durable. io is held.
func (l *Log) syncLap(op rhumb.Op) error {
	last := l.Last()
	if last == l.Synced() {
		return nil
	}
	segment, begin := segmentOf(l.lap, len(l.files)), time.Now()
	if err := l.files[segment].SyncData(); err != nil {
		return l.failWith(op, segment, err)
	}
	l.durable = l.written
	l.synced.Store(uint64(last))
	l.cfg.Metrics.Synced(time.Since(begin))
	return nil
}

// failWith ends the log. io is held.
func (l *Log) failWith(op rhumb.Op, segment int, err error) error {
	l.failed = WrapIO(op, l.segmentFile(segment), fmt.Errorf("offset %d: %w; what the disk holds from there on is unknown, so the log ends until it is opened again", l.at, err))
	l.cfg.Metrics.Failed()
	return l.failed
}

// Trim declares the records up to a number no longer needed, so that their space is used again. Records that are not synced are kept,
// whatever the number: a power loss could lose them, and later records would then have their numbers.
func (l *Log) Trim(upTo Number) {
	upTo = min(upTo, l.Synced())
	for {
		old := l.trimmed.Load()
		if uint64(upTo) <= old || l.trimmed.CompareAndSwap(old, uint64(upTo)) {
			return
		}
	}
}

// Close syncs the log and closes its files. A mark says that everything before it is durable, so that later damage of the last records is
// noticed. It is left out if the segment has no room for it.
func (l *Log) Close() error {
	const op rhumb.Op = "nodelog.Log.Close"
	l.io.Lock()
	defer l.io.Unlock()
	err := l.failed
	if err == nil {
		err = l.syncLap(op)
	}
	if err == nil && l.at+Sector <= l.size-Sector {
		if _, err = l.writeRecord(op, kindMark); err == nil {
			err = l.syncLap(op)
		}
	}
	l.failed = rhumb.Ef(op, rhumb.Unavailable, "%s: the log is closed", l.cfg.Dir)
	for i, f := range l.files {
		err = errors.Join(err, WrapIO(op, l.segmentFile(i), f.Close()))
	}
	l.files = nil
	return err
}
