package nodelog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// segmentPath returns the path of a segment.
func segmentPath(fsys vfs.FS, dir string, segment int) string {
	return fsys.PathJoin(dir, fmt.Sprintf("%03d.seg", segment))
}

// Open opens a log and examines all of it. It fails with Corrupt if records that were durable are missing or wrong, or a segment is missing or
// of another log, and with Incompatible if a newer build wrote the log; the cause of the former is a *Damage. Records that were never synced
// may be discarded. Nothing on the disk is changed by an Open that fails.
func Open(cfg Config) (*Log, error) {
	const op rhumb.Op = "nodelog.Open"
	if err := cfg.fillDefaults(); err != nil {
		return nil, err
	}
	// A log is created under another name, so its directory is either whole or not there.
	_, err := cfg.FS.Stat(cfg.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && cfg.Create:
		err = createLog(cfg)
	case errors.Is(err, fs.ErrNotExist):
		return nil, missingLog(cfg.Dir)
	}
	if err != nil {
		return nil, WrapIO(op, cfg.Dir, err)
	}
	l := &Log{cfg: cfg, seed: sumSeed(cfg.ID[:])}
	l.done.L = &l.io
	if err = l.openSegments(op); err == nil {
		err = l.findEnd(op)
	}
	if err != nil {
		for _, f := range l.files {
			err = errors.Join(err, f.Close())
		}
		return nil, err
	}
	return l, nil
}

// createLog creates the segments and writes the first record, a mark of boot 0: a log without any record has lost it.
func createLog(cfg Config) error {
	tmp := cfg.Dir + ".new"
	// The files of an interrupted creation are incomplete.
	if err := cfg.FS.RemoveAll(tmp); err != nil {
		return err
	}
	if err := cfg.FS.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	for i := range cfg.Segments {
		h := segmentHeader{index: i, count: cfg.Segments, size: cfg.SegmentBytes, id: cfg.ID}
		start := h.encode()
		if i == 0 {
			start = appendRecord(start, sumSeed(cfg.ID[:]), head{kind: kindMark, lap: 1, number: 1})
		}
		if err := createSegment(cfg.FS, segmentPath(cfg.FS, tmp, i), start, cfg.SegmentBytes); err != nil {
			return err
		}
	}
	// The directory is synced before it gets its name, and its parent after.
	if err := syncDir(cfg.FS, tmp); err != nil {
		return err
	}
	if err := cfg.FS.Rename(tmp, cfg.Dir); err != nil {
		return err
	}
	return syncDir(cfg.FS, cfg.FS.PathDir(cfg.Dir))
}

// createSegment creates a file of a size that begins with the given bytes. Zeros are written, and not only reserved: the first write of a
// reserved block changes the file system's description of the file, which costs as much as a file that grows.
func createSegment(fsys vfs.FS, path string, start []byte, size int64) error {
	f, err := fsys.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(start)
	zeros := make([]byte, min(zeroStep, size))
	for at := int64(len(start)); at < size && err == nil; {
		n := 0
		n, err = f.Write(zeros[:min(int64(len(zeros)), size-at)])
		at += int64(n)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir syncs a directory, so that its entries are durable.
func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openSegments opens all segments and checks that they belong together. Their number and size are those of the first one.
func (l *Log) openSegments(op rhumb.Op) error {
	for i, count := 0, 1; i < count; i++ {
		path := l.segmentFile(i)
		// OpenReadWrite would create a file that is missing.
		info, err := l.cfg.FS.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return damaged(path, 0, "a segment of the log is missing")
		}
		if err != nil {
			return WrapIO(op, path, err)
		}
		f, err := l.cfg.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return WrapIO(op, path, err)
		}
		l.files = append(l.files, f)
		b := make([]byte, Sector)
		if info.Size() >= Sector {
			if _, err := f.ReadAt(b, 0); err != nil {
				return WrapIO(op, path, err)
			}
		}
		h, err := decodeSegment(path, b)
		if err != nil {
			return err
		}
		want := segmentHeader{index: i, id: l.cfg.ID}
		if i > 0 {
			want.count, want.size = count, l.size
		}
		if err := h.checkPlace(path, want, info.Size()); err != nil {
			return err
		}
		l.size, count = h.size, h.count
	}
	l.ends = make([]Number, len(l.files))
	return nil
}

// findEnd reads all segments and finds the end of the log.
func (l *Log) findEnd(op rhumb.Op) error {
	buf := make([]byte, l.size)
	scans := make([]segmentScan, len(l.files))
	var boot uint64
	for i := range scans {
		if err := l.readSegment(op, i, buf); err != nil {
			return err
		}
		scans[i] = scanSegment(buf, l.seed)
		boot = max(boot, scans[i].greatest.boot)
		if v := scans[i].newer; v != 0 {
			return rhumb.Ef(op, rhumb.Incompatible, "%s: the log has records of version %d, and this binary reads version %d; use the binary that wrote the log, or a newer one", l.segmentFile(i), v, recordVersion)
		}
	}
	v := judgeLog(scans, l.cfg.Synced, l.cfg.Trimmed)
	if v.damage == nil {
		next := segmentOf(v.newest+1, len(scans))
		if err := l.readSegment(op, next, buf); err != nil {
			return err
		}
		v.checkNextLap(scans, buf, l.seed)
	}
	if v.damage != nil {
		return v.damageError(l.cfg.FS, l.cfg.Dir)
	}
	// An older boot than a record's means that the log and the caller's memory of its starts are of different times.
	if boot >= uint64(l.cfg.Boot) {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: boot %d has written to the log, and this is boot %d; the directory was put together from different times. Restore it whole", l.cfg.Dir, boot, l.cfg.Boot)
	}
	return l.resumeAt(op, v, scans, buf)
}

// readSegment reads a whole segment.
func (l *Log) readSegment(op rhumb.Op, segment int, buf []byte) error {
	n, err := l.files[segment].ReadAt(buf, 0)
	if n == len(buf) {
		return nil
	}
	// The size of the file is known, so a short read is an error of the disk.
	return WrapIO(op, l.segmentFile(segment), errors.Join(err, io.ErrUnexpectedEOF))
}

// resumeAt sets the state of the log to its end.
func (l *Log) resumeAt(op rhumb.Op, v verdict, scans []segmentScan, buf []byte) error {
	for i := range scans {
		l.ends[i] = scans[i].last.number
	}
	segment := segmentOf(v.newest, len(scans))
	tail := &scans[segment]
	// What no record says to be durable is written again and synced. The process before may have ended because a sync failed: the cache
	// of the kernel then holds records that are not on the disk, and counts them as written.
	if err := l.readSegment(op, segment, buf); err != nil {
		return err
	}
	if len(tail.loose) > 0 {
		from := tail.loose[0].at
		_, err := l.files[segment].WriteAt(buf[from:tail.end], from)
		if err == nil {
			err = l.files[segment].SyncData()
		}
		if err != nil {
			return WrapIO(op, l.segmentFile(segment), err)
		}
	}
	l.lap, l.at = v.newest, tail.end
	l.durable, l.written = v.durable, v.durable
	l.last.Store(uint64(tail.last.number))
	l.synced.Store(uint64(tail.last.number))
	// The caller may have kept elsewhere the records that the log has lost at its end.
	l.trimmed.Store(uint64(min(v.trimmed, tail.last.number)))
	return nil
}
