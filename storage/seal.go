package storage

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/zeebo/xxh3"
)

// The SEAL file records the length and content of files in which Pebble cannot distinguish a lost
// end from the end: a manifest or log that is too short looks like one that a crash interrupted. It
// is text:
//
//	rhumb seal 1
//	clean|running
//	NAME LENGTH HASH        one line per file, in the order of names
//	sum HASH                xxh3-64 of all lines before
//
// HASH is the xxh3-128 of the first LENGTH bytes, or "-" for tables, whose blocks have checksums.
//
// The seal of a closed store is clean and lists every file except logs whose content is in tables.
// The seal of a running store lists the current manifest as of its last sync, and is renewed before
// Pebble relies on that sync. A manifest may be missing if a newer one exists, because Pebble
// replaces manifests as a whole.
const (
	sealName  = "SEAL"
	sealMagic = "rhumb seal 1"
)

// sealedFile is one line of the seal.
type sealedFile struct {
	name   string
	length int64
	hash   string // "-" for none
}

// seal is the content of a SEAL file.
type seal struct {
	clean bool
	files []sealedFile
}

// encode returns the content of the SEAL file.
func (s *seal) encode() []byte {
	var b bytes.Buffer
	state := "running"
	if s.clean {
		state = "clean"
	}
	fmt.Fprintf(&b, "%s\n%s\n", sealMagic, state)
	for _, f := range s.files {
		fmt.Fprintf(&b, "%s %d %s\n", f.name, f.length, f.hash)
	}
	fmt.Fprintf(&b, "sum %016x\n", xxh3.Hash(b.Bytes()))
	return b.Bytes()
}

// decodeSeal decodes a SEAL file; path is for the error.
func decodeSeal(path string, b []byte) (s seal, err error) {
	const op rhumb.Op = "storage.Open"
	bad := func(what string) (seal, error) { return seal{}, rhumb.Ef(op, rhumb.Corrupt, "%s: %s", path, what) }
	body, sum, ok := cutLast(b, "sum ")
	if !ok || sum != fmt.Sprintf("%016x\n", xxh3.Hash(body)) {
		return bad(fmt.Sprintf("the checksum at offset %d does not match", len(body)))
	}
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	if len(lines) < 2 {
		return bad("the state of the seal is missing")
	}
	if lines[0] != sealMagic {
		return seal{}, rhumb.Ef(op, rhumb.Incompatible, "%s: the seal begins with %q, and this binary reads %q; use the binary that wrote it, or a newer one", path, lines[0], sealMagic)
	}
	s.clean = lines[1] == "clean"
	// The checksum was right, so a line of another form was written by another build.
	for _, l := range lines[2:] {
		var f sealedFile
		if n, err := fmt.Sscanf(l, "%s %d %s", &f.name, &f.length, &f.hash); n != 3 || err != nil {
			return bad(fmt.Sprintf("the line %q is not of the form NAME LENGTH HASH", l))
		}
		s.files = append(s.files, f)
	}
	return s, nil
}

// cutLast splits b before its last line, which must begin with prefix, and returns what follows the
// prefix.
func cutLast(b []byte, prefix string) (body []byte, rest string, ok bool) {
	i := bytes.LastIndexByte(bytes.TrimSuffix(b, []byte("\n")), '\n') + 1
	rest, ok = strings.CutPrefix(string(b[i:]), prefix)
	return b[:i], rest, ok
}

// checkSeal compares the files with the seal, if there is one, and returns what differs. An error
// means that the seal could not be read, or that a newer binary wrote it.
func (s *Store) checkSeal() (sl seal, faults []Fault, err error) {
	path := s.fs.PathJoin(s.cfg.Dir, sealName)
	b, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return sl, nil, nil // the store never flushed, or its first start ended early
	}
	if err != nil {
		return sl, nil, ioError("storage.Open", path, err)
	}
	sl, err = decodeSeal(path, b)
	// A damaged seal only means that nothing is known about the files, as before the first seal.
	if rhumb.KindOf(err) == rhumb.Corrupt {
		return seal{}, []Fault{{path, -1, err.Error()}}, nil
	}
	if err != nil {
		return seal{}, nil, err
	}
	faults, err = sl.checkFiles(s.fs, s.dataDir())
	return sl, faults, err
}

// unseal changes a clean seal into that of a running store, because from now on the files change.
// The manifests stay in it: recovery has found them intact, and until Pebble writes a new one they
// are all that names the tables.
func (s *Store) unseal() error {
	path := s.fs.PathJoin(s.cfg.Dir, sealName)
	b, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return ioError("storage.Open", path, err)
	}
	sl, err := decodeSeal(path, b)
	if err != nil {
		return err
	}
	for _, f := range sl.files {
		if strings.HasPrefix(f.name, manifestPrefix) {
			s.manifests = append(s.manifests, f)
		}
	}
	if !sl.clean {
		return nil
	}
	return replaceFile(s.fs, s.cfg.Dir, sealName, (&seal{files: s.manifests}).encode())
}

const (
	manifestPrefix = "MANIFEST-"
	optionsPrefix  = "OPTIONS-"
	logSuffix      = ".log"
	tableSuffix    = ".sst"

	// missingFile is the What of a fault about a sealed file that does not exist.
	missingFile = "the file is missing"
)

// checkFiles returns the damage of the sealed files of a data directory. An error means that the
// disk does not answer.
func (s *seal) checkFiles(fsys vfs.FS, dir string) (faults []Fault, err error) {
	fault := func(path string, offset int64, what string) {
		faults = append(faults, Fault{path, offset, what})
	}
	for _, f := range s.files {
		path := fsys.PathJoin(dir, f.name)
		length, hash, err := hashFile(fsys, path, f.length, f.hash != "-")
		switch {
		case errors.Is(err, fs.ErrNotExist) && !s.clean && hasNewerManifest(fsys, dir, f.name):
			// Pebble deleted this manifest after it wrote a newer one, and the crash came before
			// the seal was renewed.
			continue
		case errors.Is(err, fs.ErrNotExist):
			fault(path, -1, missingFile)
		case err != nil:
			return nil, ioError("storage.Open", path, err)
		case length < f.length || s.clean && length != f.length:
			// The manifest of a running store may have grown since the seal.
			fault(path, length, fmt.Sprintf("the file has %d bytes, but had %d when the store was sealed", length, f.length))
		case hash != f.hash:
			fault(path, -1, "the bytes differ from those that were sealed")
		}
	}
	return faults, nil
}

// hasNewerManifest reports whether a directory has a manifest with a greater number.
func hasNewerManifest(fsys vfs.FS, dir, name string) bool {
	names, err := fsys.List(dir)
	if err != nil {
		return false
	}
	for _, n := range names {
		if strings.HasPrefix(n, manifestPrefix) && newerNumber(n, name) {
			return true
		}
	}
	return false
}

// hashFile returns the length of a file and, if hash is set, the hash of its first bytes, otherwise
// "-".
func hashFile(fsys vfs.FS, path string, first int64, hash bool) (length int64, sum string, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	if !hash {
		return info.Size(), "-", nil
	}
	// Only the first bytes: the file of a running store may have grown since.
	h := xxh3.New()
	if _, err := io.Copy(h, io.LimitReader(f, first)); err != nil {
		return 0, "", err
	}
	return info.Size(), fmt.Sprintf("%x", h.Sum128().Bytes()), nil
}

// sealer does the work that follows events of Pebble and must not delay them. It records how far
// the log is durable, finds the ranges that damage touches, and creates the reserve. The latter two
// may take long, so each has a goroutine of its own.
//
// The channels hold one signal each: a signal that is pending already covers a new one.
type sealer struct {
	s    *Store
	wake chan struct{} // something was flushed
	met  chan struct{} // damage was met
	room chan struct{} // there is room for the reserve
	done chan struct{}
	work sync.WaitGroup
}

// newSealer returns a sealer that has not started.
func newSealer(s *Store) *sealer {
	return &sealer{s: s, wake: make(chan struct{}, 1), met: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{})}
}

// noteFlushSoon asks for a flush to be recorded. Pebble's events call it, so it must not block.
func (s *Store) noteFlushSoon() {
	select {
	case s.sealer.wake <- struct{}{}:
	default:
	}
}

// wakeSealer asks for the ranges of new damage to be found.
func (s *Store) wakeSealer() {
	select {
	case s.sealer.met <- struct{}{}:
	default:
	}
}

// syncedInterval is how long the newest synced length may be in memory only. Damage in the last
// sync of the log is hidden by a power loss that comes within this time after it.
const syncedInterval = time.Second

// start starts the goroutines.
func (l *sealer) start() {
	l.work.Go(l.placeLoop)
	l.work.Go(l.reserveLoop)
	// The tick and the flushes share a goroutine, because both only write the small SYNCED file.
	l.work.Go(func() {
		tick := time.NewTicker(syncedInterval)
		defer tick.Stop()
		for {
			select {
			case <-l.done:
				return
			case <-tick.C:
				_ = l.s.DiskState() // measures how fast the disk fills even if nobody else asks
				if err := l.s.lengths.sync(); err != nil {
					l.s.lengthFailed(err)
				}
			case <-l.wake:
				l.s.noteFlushed()
			}
		}
	})
}

// isStopping reports whether stop was called.
func (l *sealer) isStopping() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// placeLoop finds the ranges that damage touches. It has a goroutine of its own because it reads
// whole ranges.
func (l *sealer) placeLoop() {
	for {
		select {
		case <-l.done:
			return
		case <-l.met:
			if err := l.s.placeDamage(true); err != nil {
				l.s.log.Warn("the record of damage could not be written", "store", l.s.cfg.Dir, "err", err)
			}
		}
	}
}

// reserveLoop creates the reserve. It has a goroutine of its own because a disk may take long to
// allocate space.
func (l *sealer) reserveLoop() {
	for {
		select {
		case <-l.done:
			return
		case <-l.room:
			l.s.makeReserve()
		}
	}
}

// noteFlushed records which logs hold data that is not in tables.
func (s *Store) noteFlushed() {
	if s.own != nil {
		if err := s.own.trim(); err != nil {
			s.log.Warn("the log was not trimmed after a flush", "store", s.cfg.Dir, "err", err)
		}
		return
	}
	// Recycled logs stay in the directory. WAL.Files counts only the logs with data that is in no
	// table, and those are the newest ones.
	//
	// The list comes first. A log that is created in between makes the first live log look older
	// than it is, which is safe: logs that are not needed are scanned too.
	logs, err := listLogs(s.fs, s.dataDir())
	if live := int(s.db.Metrics().WAL.Files); err == nil && live > 0 && live <= len(logs) {
		s.lengths.flushed(logs[len(logs)-live].number)
	}
}

// stop stops the goroutines and waits for them.
func (l *sealer) stop() {
	close(l.done)
	l.work.Wait()
}

// sealClean writes the SEAL file of a store that was closed. logs is the number of logs that hold
// data that is in no table. The older ones are kept for their blocks only, and their content does
// not matter.
func (s *Store) sealClean(logs int) error {
	dir := s.dataDir()
	names, err := s.fs.List(dir)
	if err != nil {
		return ioError("storage.seal", dir, err)
	}
	// Files are listed in the order of names, so that equal stores have equal seals.
	sl := seal{clean: true}
	for _, n := range sealedNames(names, logs) {
		f, err := s.sealFile(dir, n)
		if err != nil {
			return err
		}
		sl.files = append(sl.files, f)
	}
	return replaceFile(s.fs, s.cfg.Dir, sealName, sl.encode())
}

// sealedNames returns the names of the files that a clean seal lists, in ascending order.
func sealedNames(names []string, logs int) []string {
	names = sortedNames(names)
	var logNames []string
	for _, n := range names {
		if strings.HasSuffix(n, logSuffix) {
			logNames = append(logNames, n)
		}
	}
	// Numbers have at least six digits, so a longer name has the greater number.
	slices.SortFunc(logNames, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	spent := logNames[:max(0, len(logNames)-logs)]
	return slices.DeleteFunc(names, func(n string) bool { return n == lockName || slices.Contains(spent, n) })
}

// newerNumber reports whether the number in a file's name is greater. Numbers have at least six
// digits.
func newerNumber(name, than string) bool {
	return len(name) > len(than) || len(name) == len(than) && name > than
}

// sealFile returns the line of the seal for a file. Tables are not hashed: their blocks have
// checksums, and hashing them would read the whole store at each stop.
func (s *Store) sealFile(dir, name string) (sealedFile, error) {
	path := s.fs.PathJoin(dir, name)
	info, err := s.fs.Stat(path)
	if err != nil {
		return sealedFile{}, ioError("storage.seal", path, err)
	}
	f := sealedFile{name: name, length: info.Size()}
	_, f.hash, err = hashFile(s.fs, path, f.length, !strings.HasSuffix(name, tableSuffix))
	return f, ioError("storage.seal", path, err)
}

// sortedNames returns the names in ascending order.
func sortedNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}
