package storagetest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// Dir is the directory of a World's store.
const Dir = "/disk/store"

// LogBytes is the size of the log of a World's store. It is less than a memtable, so that a log that is full, or half full, is common in tests,
// and its segments take less than the largest batches.
const LogBytes = 384 << 10

// World is a store on a file system in memory that can crash. It fails the test if an operation of
// the store fails, and at its end if Pebble reported a broken invariant of SINGLEDEL.
type World struct {
	testing.TB
	Rand  *rand.Rand
	Mem   *vfs.MemFS
	Store *storage.Store
	// Wrap, if set, wraps the file system for each Open, for example to inject faults.
	Wrap func(vfs.FS) vfs.FS
	// OwnLog adds a log of its own to the store. It is set for odd seeds, so that the tests as a whole use both kinds of logs.
	OwnLog bool
	// Config, if set, changes the configuration of each Open.
	Config func(*storage.Config)

	mu       sync.Mutex
	misuses  []string
	dropped  []rhumb.RangeID
	expected bool // whether the files were damaged on purpose, so that errors are no failures
}

// Seed returns the seed of a test: RHUMB_SEED if that is set, and fixed otherwise. It is logged if
// the test fails.
func Seed(t testing.TB, fixed int64) int64 {
	seed := fixed
	// One variable for all tests: a failure logs the seed of its test.
	if s := os.Getenv("RHUMB_SEED"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatalf("RHUMB_SEED=%q is not a number", s)
		}
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("repeat with RHUMB_SEED=%d", seed)
		}
	})
	return seed
}

// NewWorld returns a world with an empty disk and no open store. The store that the test opens is
// closed at the end of the test.
func NewWorld(t testing.TB, seed int64) *World {
	w := &World{TB: t, Rand: rand.New(rand.NewPCG(uint64(seed), 0)), Mem: vfs.NewCrashableMem(), OwnLog: seed%2 == 1}
	t.Cleanup(w.closeStore)
	return w
}

// closeStore ends the test.
func (w *World) closeStore() {
	if w.Store != nil {
		if err := w.Store.Close(); err != nil && !w.expected {
			w.Errorf("close: %v", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.misuses) > 0 && !w.expected {
		w.Errorf("invariants of SINGLEDEL are broken (docs/replication.md#entries): %q", w.misuses)
	}
}

// Start opens the store and fails the test if that fails.
func (w *World) Start() *World {
	w.Helper()
	if err := w.Open(); err != nil {
		w.Fatalf("open: %+v", err)
	}
	return w
}

// Open opens the store.
func (w *World) Open() error {
	var fs vfs.FS = w.Mem
	if w.Wrap != nil {
		fs = w.Wrap(fs)
	}
	// Memtables, cache and log are small, so that tests flush, read from disk and write the log over. The disk is half full.
	cfg := storage.Config{
		Dir: Dir, FS: fs, MemTableBytes: 1 << 20, CacheBytes: 1 << 20, LogBytes: LogBytes,
		DiskFree:     func(string) (uint64, uint64, error) { return 50, 100, nil },
		FatalHandler: func(msg string) { panic("storagetest: the store ended the process: " + msg) },
		Misuse:       w.noteMisuse,
	}
	cfg.OwnLog = w.OwnLog
	if w.Config != nil {
		w.Config(&cfg)
	}
	s, err := storage.Open(cfg)
	if err == nil {
		w.Store = s
	}
	return err
}

// noteMisuse records a report of Pebble about a SINGLEDEL.
func (w *World) noteMisuse(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Pebble names the key in the message, and a key's text begins with its range.
	for _, id := range w.dropped {
		if strings.Contains(what, " of "+id.String()+" ") {
			return
		}
	}
	w.misuses = append(w.misuses, what)
}

// Dropped announces that a range is dropped. From then on Pebble may report correct SINGLEDELs in
// it: a compaction of the range deletion may remove the value that an older SINGLEDEL was for (see
// pebble.IneffectualSingleDelete).
func (w *World) Dropped(id rhumb.RangeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped = append(w.dropped, id)
}

// Restart closes the store and opens it again.
func (w *World) Restart() {
	w.Helper()
	w.Stop()
	w.Start()
}

// Stop closes the store.
func (w *World) Stop() {
	w.Helper()
	if err := w.Store.Close(); err != nil {
		w.Fatalf("close: %v", err)
	}
	w.Store = nil
}

// Cut replaces the disk by its state after a crash at this moment: everything that was synced, and
// each unsynced block with the given probability. The store is gone afterwards.
func (w *World) Cut(unsyncedPercent int) {
	w.Helper()
	// The clone is taken before the store is closed, so that the files are those of this moment.
	after := w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsyncedPercent, RNG: w.Rand})
	// The store finishes its work on the old disk. None of that reaches the clone.
	if err := w.Store.Close(); err != nil {
		w.Fatalf("close after the crash: %v", err)
	}
	w.Store = nil
	w.Mem = after
}

// Crash cuts the disk off and opens the store again.
func (w *World) Crash(unsyncedPercent int) {
	w.Helper()
	w.Cut(unsyncedPercent)
	w.Start()
}

// Verify runs storage.Verify, which needs the store closed, and opens the store again.
func (w *World) Verify() {
	w.Helper()
	w.Stop()
	rep, err := storage.Verify(Dir, w.Mem)
	if err != nil || len(rep.Faults) > 0 {
		w.Fatalf("verify: %v %v", rep.Faults, err)
	}
	w.Start()
}

// Files returns the paths of the files of the store.
func (w *World) Files() (paths []string) {
	w.Helper()
	for _, dir := range []string{Dir, Dir + "/data", Dir + "/log"} {
		names, err := w.Mem.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.Fatal(err)
		}
		for _, n := range names {
			path := dir + "/" + n
			if info, err := w.Mem.Stat(path); err == nil && !info.IsDir() {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

// Damage replaces the content of a file by the result of change. From then on errors of the store
// do not fail the test.
func (w *World) Damage(path string, change func([]byte) []byte) {
	w.Helper()
	w.mu.Lock()
	w.expected = true
	w.mu.Unlock()
	b, err := ReadFile(w.Mem, path)
	if err != nil {
		w.Fatal(err)
	}
	b = change(b)
	if err := writeFile(w.Mem, path, b); err != nil {
		w.Fatal(err)
	}
}

// ReadFile returns the content of a file.
func ReadFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	b := make([]byte, info.Size())
	if n, err := f.ReadAt(b, 0); err != nil || n < len(b) {
		return nil, fmt.Errorf("%s: read %d of %d bytes: %w", path, n, len(b), err)
	}
	return b, nil
}

// writeFile writes a file and makes it durable with its entry.
func writeFile(fs vfs.FS, path string, b []byte) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := f.Write(append([]byte(nil), b...)); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := fs.OpenDir(fs.PathDir(path)) // Create replaces the file, so its entry is new
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
