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

// The SEAL file says what was durable when it was written, for the files in which Pebble cannot tell a lost end from the
// end: a manifest or log that is cut short looks like one that a crash interrupted. It is text:
//
//	rhumb seal 1
//	clean|running
//	NAME LENGTH HASH        one line per file, in the order of names
//	sum HASH                xxh3-64 of all lines before
//
// HASH is the xxh3-128 of the first LENGTH bytes, or "-" for tables, whose blocks carry checksums of their own.
//
// A store that was closed is sealed clean: it lists every file but logs whose content is in tables. While it runs, the seal lists
// the current manifest as it was after its last sync: it is renewed before Pebble relies on that sync. A manifest that is gone is
// in order when a newer one is there: Pebble replaces it as a whole.
const (
	sealName  = "SEAL"
	sealMagic = "rhumb seal 1"
)

type sealedFile struct {
	name   string
	length int64
	hash   string // "-" for none
}

type seal struct {
	clean bool
	files []sealedFile
}

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

func decodeSeal(path string, b []byte) (s seal, err error) {
	const op rhumb.Op = "storage.Open"
	bad := func(what string) (seal, error) { return seal{}, rhumb.Ef(op, rhumb.Corrupt, "%s: %s", path, what) }
	body, sum, ok := cutLast(b, "sum ")
	if !ok || sum != fmt.Sprintf("%016x\n", xxh3.Hash(body)) {
		return bad(fmt.Sprintf("checksum at offset %d does not match", len(body)))
	}
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	if len(lines) < 2 {
		return bad("no state at offset 0")
	}
	if lines[0] != sealMagic {
		return seal{}, rhumb.Ef(op, rhumb.Incompatible, "%s: %q is not known, this binary reads %q", path, lines[0], sealMagic)
	}
	s.clean = lines[1] == "clean"
	for _, l := range lines[2:] {
		var f sealedFile
		if n, err := fmt.Sscanf(l, "%s %d %s", &f.name, &f.length, &f.hash); n != 3 || err != nil {
			return bad(fmt.Sprintf("line %q is not NAME LENGTH HASH", l))
		}
		s.files = append(s.files, f)
	}
	return s, nil
}

// cutLast cuts b before the last line, which begins with prefix, and gives what follows the prefix.
func cutLast(b []byte, prefix string) (body []byte, rest string, ok bool) {
	i := bytes.LastIndexByte(bytes.TrimSuffix(b, []byte("\n")), '\n') + 1
	rest, ok = strings.CutPrefix(string(b[i:]), prefix)
	return b[:i], rest, ok
}

// checkSeal compares the files with the seal, if there is one. It returns what does not fit; an error means that the seal
// could not be read, or that a newer binary wrote it.
func (s *Store) checkSeal() (sl seal, faults []Fault, err error) {
	path := s.fs.PathJoin(s.cfg.Dir, sealName)
	b, err := readFile(s.fs, path)
	if errors.Is(err, fs.ErrNotExist) {
		return sl, nil, nil // a store that never flushed, or whose first boot did not end well
	}
	if err != nil {
		return sl, nil, ioError("storage.Open", path, err)
	}
	sl, err = decodeSeal(path, b)
	if rhumb.KindOf(err) == rhumb.Corrupt {
		return seal{}, []Fault{{path, -1, err.Error()}}, nil
	}
	if err != nil {
		return seal{}, nil, err
	}
	faults, err = sl.checkFiles(s.fs, s.dataDir())
	return sl, faults, err
}

// unseal turns a clean seal into that of a running store: from now on the files change.
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

	// missingFile is what a fault says of a sealed file that is not there.
	missingFile = "the file is missing"
)

// checkHeader returns what is wrong with the sealed files of a data directory. An error means that the disk does not answer.
func (s *seal) checkFiles(fsys vfs.FS, dir string) (faults []Fault, err error) {
	fault := func(path string, offset int64, what string) {
		faults = append(faults, Fault{path, offset, what})
	}
	for _, f := range s.files {
		path := fsys.PathJoin(dir, f.name)
		length, hash, err := hashFile(fsys, path, f.length, f.hash != "-")
		switch {
		case errors.Is(err, fs.ErrNotExist) && !s.clean && hasNewerManifest(fsys, dir, f.name):
			continue
		case errors.Is(err, fs.ErrNotExist):
			fault(path, -1, missingFile)
		case err != nil:
			return nil, ioError("storage.Open", path, err)
		case length < f.length || s.clean && length != f.length:
			fault(path, length, fmt.Sprintf("the file has %d bytes, it had %d when the store was sealed", length, f.length))
		case hash != f.hash:
			fault(path, -1, "the bytes are not those that were sealed")
		}
	}
	return faults, nil
}

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

// hashFile gives the length of a file and, when asked, the hash of its first bytes, "-" otherwise.
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
	h := xxh3.New()
	if _, err := io.Copy(h, io.LimitReader(f, first)); err != nil {
		return 0, "", err
	}
	return info.Size(), fmt.Sprintf("%x", h.Sum128().Bytes()), nil
}

// sealer keeps the records of how far the log is durable. It also does the other work that follows Pebble's events and must not
// hold them up.
type sealer struct {
	s    *Store
	wake chan struct{} // something was flushed
	met  chan struct{} // damage was met
	room chan struct{} // there is room for the reserve
	done chan struct{}
	work sync.WaitGroup
}

func newSealer(s *Store) *sealer {
	return &sealer{s: s, wake: make(chan struct{}, 1), met: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{})}
}

// noteFlushSoon asks for a flush to be put on record. Pebble's events call it, so it must not block.
func (s *Store) noteFlushSoon() {
	select {
	case s.sealer.wake <- struct{}{}:
	default:
	}
}

// wakeSealer asks for damage to be looked into.
func (s *Store) wakeSealer() {
	select {
	case s.sealer.met <- struct{}{}:
	default:
	}
}

// syncedInterval is how long the newest synced length may be in memory only. A power loss hides damage in the last sync
// of the log if it comes that soon after it.
const syncedInterval = time.Second

func (l *sealer) start() {
	l.work.Go(l.placeLoop)
	l.work.Go(l.reserveLoop)
	l.work.Go(func() {
		tick := time.NewTicker(syncedInterval)
		defer tick.Stop()
		for {
			select {
			case <-l.done:
				return
			case <-tick.C:
				_ = l.s.DiskState() // a disk fills also while nobody asks
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

// placeLoop finds out, apart from the rest, which ranges damage touches: to read them may take long.
func (l *sealer) placeLoop() {
	for {
		select {
		case <-l.done:
			return
		case <-l.met:
			if err := l.s.placeDamage(true); err != nil {
				l.s.log.Warn("damage was not put on record", "store", l.s.cfg.Dir, "err", err)
			}
		}
	}
}

// reserveLoop makes the reserve, apart from the rest: a disk may take long over it.
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

// noteFlushed puts on record which logs hold what is not in tables.
func (s *Store) noteFlushed() {
	// The list comes first: a log that begins in between makes the first one look older than it is, which is safe.
	logs, err := listLogs(s.fs, s.dataDir())
	if live := int(s.db.Metrics().WAL.Files); err == nil && live > 0 && live <= len(logs) {
		s.lengths.flushed(logs[len(logs)-live].number)
	}
}

func (l *sealer) stop() {
	close(l.done)
	l.work.Wait()
}

// sealClean writes the SEAL file of a store that was closed. It lists the newest logs only: the older ones are kept for their
// blocks.
func (s *Store) sealClean(logs int) error {
	dir := s.dataDir()
	names, err := s.fs.List(dir)
	if err != nil {
		return ioError("storage.seal", dir, err)
	}
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

// sealedNames returns the names of the files that a clean seal lists, sorted.
func sealedNames(names []string, logs int) []string {
	names = sortedNames(names)
	var logNames []string
	for _, n := range names {
		if strings.HasSuffix(n, logSuffix) {
			logNames = append(logNames, n)
		}
	}
	slices.SortFunc(logNames, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	spent := logNames[:max(0, len(logNames)-logs)]
	return slices.DeleteFunc(names, func(n string) bool { return n == lockName || slices.Contains(spent, n) })
}

// newerNumber reports whether the number in a file's name is greater: numbers have six digits, or more.
func newerNumber(name, than string) bool {
	return len(name) > len(than) || len(name) == len(than) && name > than
}

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

func sortedNames(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}
