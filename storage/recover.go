package storage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// recoverFiles finds damage in the files of the store and prepares them to be opened: it sets
// damaged files aside and cuts the log at its first break. An error means that the files could not
// be examined, or that another binary wrote them.
//
// Steps: check the sealed files; check that the newest synced log exists; scan the logs; cut at the
// first break. Each step records its damage before it acts, and finds nothing to do when it runs
// again, so a crash during recovery is harmless.
func (s *Store) recoverFiles() error {
	dir := s.dataDir()
	sl, faults, err := s.checkSeal()
	if err != nil {
		return err
	}
	for _, f := range faults {
		switch base := s.fs.PathBase(f.File); {
		case strings.HasSuffix(base, logSuffix) && s.header.nodeLog:
			// The file held nothing.
		case strings.HasSuffix(base, logSuffix):
			// The scan of the logs below finds the place and decides whether anything is lost. It
			// cannot scan a log that is missing, so such a log makes the store short here.
			if err := s.addDamage(Damage{Fault: f}, f.What == missingFile); err != nil {
				return err
			}
		case base == sealName, strings.HasPrefix(base, optionsPrefix):
			// These hold nothing that was acknowledged. Pebble writes new options at every start.
			if err := s.setAsideOne(f); err != nil {
				return err
			}
		default:
			// A damaged or missing manifest, marker or table: the database cannot be trusted to be
			// complete.
			return s.setAsideAll(f)
		}
	}
	logs, err := listLogs(s.fs, dir)
	if err != nil {
		return err
	}
	// SYNCED is read before the database opens, which begins a new log and overwrites the slots.
	state, found, slot, err := readSynced(s.fs, s.cfg.Dir)
	if err != nil {
		return err
	}
	s.synced = state
	// A missing end of the log would go unnoticed, so the store counts as one that misses it.
	if f, err := s.header.lostSynced(s.fs, s.cfg.Dir, state, found); err != nil {
		return err
	} else if f != nil {
		return s.addDamage(Damage{Fault: *f}, true)
	}
	if slot >= 0 {
		// The other slot counts, and it is at most one sync older. So nothing is lost, and the
		// store is not short.
		if err := s.addDamage(Damage{Fault: Fault{s.fs.PathJoin(s.cfg.Dir, syncedName), slot, "the checksum does not match"}}, false); err != nil {
			return err
		}
	}
	// openLog examines a log of the store's own. The database has none then.
	if s.header.nodeLog {
		return nil
	}
	check := logCheck{fs: s.fs, dir: dir, logs: logs, synced: state, sealed: sl}
	// After a clean stop the seal lists the logs, and SYNCED adds nothing.
	found = found && !sl.clean
	if f := check.missingLog(); found && f != nil {
		if err := s.addDamage(Damage{Fault: *f}, true); err != nil {
			return err
		}
		// The loss is on record now. The state must not report it again, because Pebble may reuse
		// the number of the missing log. The generation stays, or an older slot would become the
		// newest.
		s.synced = syncedState{generation: state.generation}
	}
	at, verdict, err := check.run()
	// Cut only at the first break: the later logs are set aside with it, intact or not.
	if err != nil || verdict.what == logIntact {
		return err
	}
	return s.cutLogs(logs, at, verdict)
}

// setAsideOne moves a file away that the store can do without.
func (s *Store) setAsideOne(f Fault) error {
	folder, err := s.damagedFolder()
	if err != nil {
		return err
	}
	if err := s.addDamage(Damage{Fault: f, SetAside: s.fs.PathJoin(folder, s.fs.PathBase(f.File))}, false); err != nil {
		return err
	}
	return s.setAside(f.File)
}

// cutLogs cuts the log at an index of logs at its first break, and sets the later logs aside,
// because their records must not be applied without the records that are cut. The later logs go
// first, so that a crash in between leaves no gap in the sequence of logs.
func (s *Store) cutLogs(logs []storedLog, at int, v logVerdict) error {
	log := logs[at]
	folder := ""
	if v.what == logDamaged {
		var err error
		if folder, err = s.damagedFolder(); err != nil {
			return err
		}
		// Records of later logs were synced too, because a log is closed before the next one gets
		// records.
		short := v.lost || at < len(logs)-1
		if err := s.addDamage(Damage{Fault: Fault{log.path, v.at, v.why}, SetAside: s.fs.PathJoin(folder, s.fs.PathBase(log.path))}, short); err != nil {
			return err
		}
		for _, later := range slices.Backward(logs[at+1:]) {
			if err := s.setAside(later.path); err != nil {
				return err
			}
		}
	} else {
		// No sync of these bytes was ever reported, so this is the normal result of a crash.
		s.log.Info("an interrupted write was cut off the log", "store", s.cfg.Dir, "file", log.path, "offset", v.end)
	}
	if err := cutLog(s.fs, log.path, v.end, folder); err != nil {
		return err
	}
	// The database opens with the shortened log. With the old synced length, the next start would
	// report the cut as damage again.
	s.synced.number, s.synced.length = log.number, v.end
	return nil
}

// storedLog is a log file of a stopped store.
type storedLog struct {
	path   string
	number uint64
}

// listLogs returns the log files of a data directory in ascending order of their numbers.
func listLogs(fsys vfs.FS, dir string) (logs []storedLog, err error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, ioError("storage.Open", dir, err)
	}
	for _, n := range names {
		if number, ok := logNumber(n); ok {
			logs = append(logs, storedLog{fsys.PathJoin(dir, n), number})
		}
	}
	slices.SortFunc(logs, func(a, b storedLog) int { return cmp.Compare(a.number, b.number) })
	return logs, nil
}

// logCheck looks for damage in the logs of a store.
type logCheck struct {
	fs     vfs.FS
	dir    string
	logs   []storedLog
	synced syncedState
	sealed seal
}

// missingLog returns a fault if the newest log that was synced does not exist, and nil otherwise.
func (c *logCheck) missingLog() *Fault {
	newest := uint64(0)
	if n := len(c.logs); n > 0 {
		newest = c.logs[n-1].number
	}
	// If no byte of a log was synced, its directory entry may not be durable either. An older log
	// may have been deleted after a flush.
	if c.synced.length == 0 || c.synced.number <= newest {
		return nil
	}
	return &Fault{c.fs.PathJoin(c.dir, fmt.Sprintf("%06d%s", c.synced.number, logSuffix)), -1, fmt.Sprintf("the file is missing, although %d bytes of it were synced", c.synced.length)}
}

// run returns the index of the first log that is not intact, and what to do about it.
func (c *logCheck) run() (at int, v logVerdict, err error) {
	// All logs are scanned before any is judged, because whether a log was closed depends on the
	// later ones.
	scans := make([]*logScan, len(c.logs))
	last := -1 // the newest log with a record
	for i, log := range c.logs {
		if !c.isLive(log) {
			continue
		}
		if scans[i], err = c.scanFile(log); err != nil {
			return i, v, err
		}
		// A log without a record does not show that the earlier ones were closed.
		if scans[i].end > 0 {
			last = i
		}
	}
	for i, scan := range scans {
		if scan == nil {
			continue
		}
		synced := int64(0)
		if c.synced.number == c.logs[i].number {
			synced = c.synced.length
		}
		// strict: Pebble closes a log before a later one gets its first record. The exception is
		// the log of an earlier start, which a crash left open; Open records that it is not needed
		// before it writes to the next one (see openDatabase). A clean stop closes all logs.
		if v := scan.judge(synced, i < last || c.sealed.clean); v.what != logIntact {
			return i, v, nil
		}
	}
	return 0, logVerdict{}, nil
}

// isLive reports whether a log may hold data that is in no table. Damage in other logs does no
// harm, and they may have torn ends.
func (c *logCheck) isLive(log storedLog) bool {
	if c.sealed.clean {
		return slices.ContainsFunc(c.sealed.files, func(f sealedFile) bool { return f.name == c.fs.PathBase(log.path) })
	}
	return log.number >= c.synced.first
}

// scanFile scans one log.
func (c *logCheck) scanFile(log storedLog) (*logScan, error) {
	const op rhumb.Op = "storage.Open"
	f, err := c.fs.Open(log.path)
	if err != nil {
		return nil, ioError(op, log.path, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, ioError(op, log.path, err)
	}
	scan, err := scanLog(f, info.Size(), uint32(log.number))
	return &scan, ioError(op, log.path, err)
}

// openOrEmpty opens the database. If the database is damaged so that Pebble does not open it,
// openOrEmpty sets it aside whole and opens an empty one.
//
// Starting empty is better than refusing to start: the node has other stores, and the peers have
// the data (decision 16).
func (s *Store) openOrEmpty() error {
	err := s.openDatabase()
	if rhumb.KindOf(err) != rhumb.Corrupt {
		return err
	}
	f := (*faultError)(nil)
	if !errors.As(err, &f) {
		return err
	}
	return s.startEmpty(f.fault)
}

// startEmpty sets the database aside and opens an empty one.
func (s *Store) startEmpty(f Fault) error {
	if err := s.setAsideAll(f); err != nil {
		return err
	}
	return s.openDatabase()
}

// loadAll reads the state of every range. It leaves out the ranges whose state is in a damaged
// block, and they count as damaged. It fails with Corrupt if those ranges cannot be determined.
//
// Pebble names the damaged table but not the ranges in it. So loadAll assumes that any range in the
// span of the table may be affected, and continues after the last of them.
func (s *Store) loadAll(op rhumb.Op) error {
	// A range whose state contradicts itself is damaged although its blocks are readable.
	lose := func(id rhumb.RangeID, err error) {
		s.damages.mu.Lock()
		s.damages.ranges[id] = true
		s.damages.mu.Unlock()
		s.metrics.damages.Inc()
		s.log.Error("the state of a range is damaged; the range is not loaded", "store", s.cfg.Dir, "range", id, "err", err)
	}
	from := keys.ReplicatedSpan().Lower
	for {
		err := s.loadRanges(op, from, lose)
		if rhumb.KindOf(err) != rhumb.Corrupt {
			return err
		}
		var f *faultError
		if !errors.As(err, &f) {
			return err
		}
		span, ok := s.tableSpan(f.fault.File)
		// Without progress the loop would never end.
		if !ok || keys.Compare(span.Upper, from) < 0 {
			return err
		}
		home, ok := keys.Home(span.Upper)
		if !ok {
			return err
		}
		s.damages.mu.Lock()
		// Ranges that begin in the damaged table cannot be named, so the span is remembered. It
		// makes RangeDamaged report true for any range in it.
		s.damages.spans = append(s.damages.spans, span)
		s.damages.mu.Unlock()
		if err := s.addDamage(Damage{Fault: f.fault}, false); err != nil {
			return err
		}
		if from = keys.HomeSpan(home).Upper; from == nil {
			return nil
		}
	}
}
