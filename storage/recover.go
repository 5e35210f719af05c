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

// recoverFiles finds damage in the files of the store and makes them fit to be opened: what is damaged is set aside, and
// the log is cut at its first break. An error means that the files could not be looked at, or that another binary wrote
// them.
func (s *Store) recoverFiles() error {
	dir := s.dataDir()
	sl, faults, err := s.checkSeal()
	if err != nil {
		return err
	}
	for _, f := range faults {
		switch base := s.fs.PathBase(f.File); {
		case strings.HasSuffix(base, logSuffix):
			// The scan of the logs finds the place. A log that is missing has none.
			if err := s.addDamage(Damage{Fault: f}, f.What == missingFile); err != nil {
				return err
			}
		case base == sealName, strings.HasPrefix(base, optionsPrefix):
			// These hold nothing that was acknowledged, and Pebble writes new options at every start.
			if err := s.setAsideOne(f); err != nil {
				return err
			}
		default:
			return s.setAsideAll(f)
		}
	}
	logs, err := listLogs(s.fs, dir)
	if err != nil {
		return err
	}
	state, found, slot, err := readSynced(s.fs, s.cfg.Dir)
	if err != nil {
		return err
	}
	s.synced = state
	if slot >= 0 {
		// The other slot is at most one sync older.
		if err := s.addDamage(Damage{Fault: Fault{s.fs.PathJoin(s.cfg.Dir, syncedName), slot, "the checksum does not match"}}, false); err != nil {
			return err
		}
	}
	check := logCheck{fs: s.fs, dir: dir, logs: logs, synced: state, sealed: sl}
	found = found && !sl.clean
	if f := check.missingLog(); found && f != nil {
		if err := s.addDamage(Damage{Fault: *f}, true); err != nil {
			return err
		}
		s.synced = syncedState{generation: state.generation} // it is on record now, and its number may come again
	}
	at, verdict, err := check.run()
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

// cutLogs cuts the log at an index of logs at its first break, and sets the logs behind it aside: what they hold came
// later. The later ones go first, so that a crash in between leaves no gap.
func (s *Store) cutLogs(logs []storedLog, at int, v logVerdict) error {
	log := logs[at]
	folder := ""
	if v.what == logDamaged {
		var err error
		if folder, err = s.damagedFolder(); err != nil {
			return err
		}
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
		s.log.Info("an interrupted write is cut off", "store", s.cfg.Dir, "file", log.path, "offset", v.end)
	}
	if err := cutLog(s.fs, log.path, v.end, folder); err != nil {
		return err
	}
	s.synced.number, s.synced.length = log.number, v.end
	return nil
}

// storedLog is a log file of a stopped store.
type storedLog struct {
	path   string
	number uint64
}

// listLogs returns the log files of a data directory in the order of their numbers.
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

// missingLog returns a fault when the newest log that was synced is not there.
func (c *logCheck) missingLog() *Fault {
	newest := uint64(0)
	if n := len(c.logs); n > 0 {
		newest = c.logs[n-1].number
	}
	if c.synced.length == 0 || c.synced.number <= newest {
		return nil
	}
	return &Fault{c.fs.PathJoin(c.dir, fmt.Sprintf("%06d%s", c.synced.number, logSuffix)), -1, fmt.Sprintf("the file is missing; %d bytes of it were synced", c.synced.length)}
}

// run returns the first log that is not intact, and what to do about it.
func (c *logCheck) run() (at int, v logVerdict, err error) {
	scans := make([]*logScan, len(c.logs))
	last := -1 // the newest log with a record
	for i, log := range c.logs {
		if !c.isLive(log) {
			continue
		}
		if scans[i], err = c.scanFile(log); err != nil {
			return i, v, err
		}
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
		// A log is closed before a later one gets its first record: before that, Open puts on record that the earlier ones
		// are of no more use. A store that was stopped closed all its logs.
		if v := scan.judge(synced, i < last || c.sealed.clean); v.what != logIntact {
			return i, v, nil
		}
	}
	return 0, logVerdict{}, nil
}

// isLive reports whether the content of a log may be in no table.
func (c *logCheck) isLive(log storedLog) bool {
	if c.sealed.clean {
		return slices.ContainsFunc(c.sealed.files, func(f sealedFile) bool { return f.name == c.fs.PathBase(log.path) })
	}
	return log.number >= c.synced.first
}

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

// openOrEmpty opens the database. If it is damaged so that Pebble does not open it, it is set aside whole, and the store
// goes on with an empty one.
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

// loadAll reads the state of every range. Ranges whose state lies in a damaged table are left out and counted as damaged.
// It fails with Corrupt when it cannot tell which ones those are.
func (s *Store) loadAll(op rhumb.Op) error {
	lose := func(id rhumb.RangeID, err error) {
		s.damages.mu.Lock()
		s.damages.ranges[id] = true
		s.damages.mu.Unlock()
		s.metrics.damages.Inc()
		s.log.Error("a range is left out", "store", s.cfg.Dir, "range", id, "err", err)
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
		if !ok || keys.Compare(span.Upper, from) < 0 {
			return err
		}
		home, ok := keys.Home(span.Upper)
		if !ok {
			return err
		}
		s.damages.mu.Lock()
		s.damages.spans = append(s.damages.spans, span)
		s.damages.mu.Unlock()
		if err := s.addDamage(Damage{Fault: f.fault}, false); err != nil {
			return err
		}
		if from = keys.RangeSpan(home).Upper; from == nil {
			return nil
		}
	}
}
