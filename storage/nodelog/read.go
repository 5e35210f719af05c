package nodelog

import (
	"errors"
	"io/fs"

	"github.com/rhumbdb/rhumb"
)

// Read reads a log that no process has open, without changing it. It calls f with all records that are needed,
// in order and without marks. Of a damaged log these are the records before the damage, and Read returns the
// damage after them. f must not keep the payload.
//
// Open refuses a damaged log. Its owner reads the remaining records with Read, before it sets the log aside.
func Read(cfg Config, f func(Record) error) error {
	const op rhumb.Op = "nodelog.Read"
	cfg.Boot = max(cfg.Boot, 1) // a reader writes nothing
	if err := cfg.fillDefaults(); err != nil {
		return err
	}
	if _, err := cfg.FS.Stat(cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		return missingLog(cfg.Dir)
	}
	// The segments are scanned first and read again lap by lap, so that one of them is in memory at a time.
	r := reader{cfg: cfg, seed: sumSeed(cfg.ID[:])}
	damage, err := r.scanAll(op)
	if err != nil || len(r.scans) == 0 {
		return errors.Join(damage, err)
	}
	v := judgeLog(r.scans, cfg.Synced, cfg.Trimmed)
	if damage == nil && v.damage == nil {
		b, _, bad, err := r.readFile(op, segmentOf(v.newest+1, len(r.scans)))
		if err = firstError(err, bad); err != nil {
			return err
		}
		v.checkNextLap(r.scans, b, r.seed)
	}
	// A segment that cannot be used explains why records are missing, and nobody knows which ones it had.
	if damage == nil && v.damage != nil {
		damage = v.damageError(cfg.FS, cfg.Dir)
	}
	// No lap begins at the first record that is needed, so every record after it follows a gap.
	if v.oldest == 0 {
		return damage
	}
	for lap := v.oldest; lap <= v.newest; lap++ {
		if err := r.readLap(op, lap, v.trimmed, f); err != nil {
			return err
		}
	}
	return damage
}

// Extent is a part of a file.
type Extent struct {
	Path     string
	From, To int64 // To is exclusive
}

// Newest returns where the records of the newest lap of a log are, one after the other. The log may be of any ID, and no
// process has it open. Programs that test what damage does damage these bytes.
func Newest(cfg Config) (newest Extent, err error) {
	const op rhumb.Op = "nodelog.Newest"
	cfg.Boot = max(cfg.Boot, 1) // a reader writes nothing
	if err := cfg.fillDefaults(); err != nil {
		return newest, err
	}
	var lap uint64
	for i, count := 0, 1; i < count; i++ {
		r := reader{cfg: cfg}
		b, h, bad, err := r.readFile(op, i)
		if err != nil {
			return newest, err
		}
		// A segment of a log with another ID is read too.
		if h.count == 0 {
			return newest, bad
		}
		count = h.count
		if s := scanSegment(b, sumSeed(h.id[:])); s.last.lap >= lap {
			lap, newest = s.last.lap, Extent{segmentPath(cfg.FS, cfg.Dir, i), Sector, s.end}
		}
	}
	return newest, nil
}

// reader reads a log whose segments may be damaged or missing.
type reader struct {
	cfg   Config
	seed  uint32
	count int // of segments; 0 until the first one that is intact is read
	size  int64
	scans []segmentScan // empty for segments that cannot be used
}

// scanAll scans all segments. The first of them that is intact says how many there are. damage is the first
// one that is not.
func (r *reader) scanAll(op rhumb.Op) (damage, err error) {
	for i, count := 0, SegmentsMax; i < count; i++ {
		b, h, bad, err := r.readFile(op, i)
		if err != nil {
			return damage, err
		}
		// The search continues: the shape of the log is that of the first intact segment, whichever it is.
		damage = firstError(damage, bad)
		if bad != nil {
			continue
		}
		if r.scans == nil {
			r.count, r.size, r.scans = h.count, h.size, make([]segmentScan, h.count)
			count = h.count
		}
		r.scans[i] = scanSegment(b, r.seed)
	}
	return damage, nil
}

// firstError returns the first error that is not nil.
func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// readFile reads a segment. bad is the damage of a file that is missing, or that is not this segment.
func (r *reader) readFile(op rhumb.Op, segment int) (b []byte, h segmentHeader, bad, err error) {
	path := segmentPath(r.cfg.FS, r.cfg.Dir, segment)
	f, err := r.cfg.FS.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, h, damaged(path, 0, "a segment of the log is missing"), nil
	}
	if err != nil {
		return nil, h, nil, WrapIO(op, path, err)
	}
	info, err := f.Stat()
	size := int64(0)
	if err == nil {
		size = info.Size()
		// The size of a foreign file must not decide how much memory is taken. The first sector identifies the
		// file.
		n := size
		if n > SegmentBytesMax {
			n = Sector
		}
		if b = make([]byte, n); n > 0 {
			_, err = f.ReadAt(b, 0)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, h, nil, WrapIO(op, path, err)
	}
	h, bad = decodeSegment(path, b)
	// A log of a newer build is not damaged, and must not be treated as if it were.
	if rhumb.KindOf(bad) == rhumb.Incompatible {
		return nil, h, nil, bad
	}
	if bad == nil {
		bad = h.checkPlace(path, segmentHeader{index: segment, count: r.count, size: r.size, id: r.cfg.ID}, size)
	}
	return b, h, bad, nil
}

// readLap calls f with the records of a lap that are needed.
func (r *reader) readLap(op rhumb.Op, lap uint64, trimmed Number, f func(Record) error) error {
	segment := segmentOf(lap, len(r.scans))
	last := r.scans[segment].last.number
	if last <= trimmed {
		return nil
	}
	b, _, bad, err := r.readFile(op, segment)
	if err = firstError(err, bad); err != nil {
		return err
	}
	for at, number := int64(Sector), Number(0); number < last; {
		h, payload, _, ok := decodeRecord(b[at:], r.seed)
		// scanAll has read the same bytes, so they have changed since.
		if !ok || h.lap != lap {
			return damaged(segmentPath(r.cfg.FS, r.cfg.Dir, segment), at, "the record has changed while the log was read")
		}
		if h.kind == kindData && h.number > trimmed {
			if err := f(Record{h.number, payload}); err != nil {
				return err
			}
		}
		number = h.number
		at += paddedSize(len(payload))
	}
	return nil
}
