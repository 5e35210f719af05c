package storage

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFS is the file system of a store's database. It watches the writes and syncs of log files,
// which are the data path that the node's liveness follows, records how far each log file is
// synced, and writes that length into the chunks of the log (decision 16). It also passes new
// manifests to created.
type logFS struct {
	vfs.FS
	// lengths and created are set before the database is opened, and are nil before that: files
	// that the store itself creates are not logs of the database.
	lengths logLengths
	created func(path string, f vfs.File) vfs.File
	// pending is the start of the oldest operation in progress, in nanoseconds since epoch; 0 if
	// there is none. There is one current log file and it has one writer, so one variable is
	// enough.
	pending atomic.Int64
	epoch   time.Time
	synced  func(time.Duration)
	// syncers counts the commits that wait until their bytes are synced, deferrers those that wait only until the operating
	// system has them. A commit is counted before Pebble knows of it and until it is released, so a sync that releases a commit
	// of the first kind always finds it counted.
	syncers, deferrers atomic.Int32
	// openMu guards open, the log files that Pebble has not closed, oldest first.
	openMu sync.Mutex
	open   []*logFile
}

// syncLogs makes everything durable that Pebble has handed to the operating system so far. Pebble continues to write meanwhile: a
// sync that went through Pebble would hold up every commit that does not wait for it.
func (fs *logFS) syncLogs() error {
	for _, f := range fs.openLogs() {
		if err := f.syncWritten(); err != nil {
			return err
		}
	}
	return nil
}

// unsynced returns how many bytes were written to logs and not synced.
func (fs *logFS) unsynced() (n int64) {
	for _, f := range fs.openLogs() {
		n += f.written.Load() - f.durable.Load()
	}
	return n
}

// openLogs returns the open log files. There are two while Pebble changes from one to the next, else one.
func (fs *logFS) openLogs() []*logFile {
	fs.openMu.Lock()
	defer fs.openMu.Unlock()
	return slices.Clone(fs.open)
}

// awaitSync counts a commit that waits for the log: for a sync, or if deferred is set only for the write. The returned function
// ends the wait.
func (fs *logFS) awaitSync(deferred bool) (end func()) {
	n := &fs.syncers
	if deferred {
		n = &fs.deferrers
	}
	n.Add(1)
	return func() { n.Add(-1) }
}

// mayDefer reports whether nobody who waits for the log needs its bytes on the disk. Pebble syncs its log for no other reason
// than a commit that waits, and when it closes a file, which Close of logFile takes care of.
func (fs *logFS) mayDefer() bool { return fs.deferrers.Load() > 0 && fs.syncers.Load() == 0 }

// newLogFS returns a logFS that calls synced with the duration of each sync.
func newLogFS(fs vfs.FS, synced func(time.Duration)) *logFS {
	return &logFS{FS: fs, epoch: time.Now(), synced: synced}
}

// Unwrap returns the wrapped file system.
func (fs *logFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS.
func (fs *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.watchLog(name, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

// ReuseForWrite implements vfs.FS. Pebble reuses the blocks of old logs, which makes a sync about
// twice as fast as growing a file.
func (fs *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.watchLog(newname, func() (vfs.File, error) { return fs.FS.ReuseForWrite(oldname, newname, c) })
}

// watchLog creates a file and wraps it. Commits wait for the creation of a log, so it counts as an operation of the log.
func (fs *logFS) watchLog(name string, create func() (vfs.File, error)) (vfs.File, error) {
	number, ok := logNumber(fs.PathBase(name))
	if ok {
		defer fs.beginOp()()
	}
	f, err := create()
	switch {
	case err == nil && !ok && fs.created != nil:
		return fs.created(name, f), nil
	case err != nil || !ok || fs.lengths == nil:
		return f, err
	}
	// SYNCED names the new log before it has content. A start that does not find the file then
	// knows that nothing was lost, because its synced length is 0.
	fs.lengths.began(number)
	log := &logFile{File: f, fs: fs, number: number}
	fs.openMu.Lock()
	defer fs.openMu.Unlock()
	fs.open = append(fs.open, log)
	return log, nil
}

// logNumber returns the number of a log file.
func logNumber(base string) (n uint64, ok bool) {
	digits, ok := strings.CutSuffix(base, logSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// outstanding returns how long the oldest operation in progress has taken so far.
func (fs *logFS) outstanding() time.Duration {
	if p := fs.pending.Load(); p != 0 {
		return time.Since(fs.epoch) - time.Duration(p)
	}
	return 0
}

// beginOp records the start of an operation. The returned function ends it.
func (fs *logFS) beginOp() (end func()) {
	start := time.Since(fs.epoch) | 1 // never 0, which means that no operation is in progress
	// The last sync of one log and the first writes of the next may overlap. The older start stays,
	// because that is how long the disk has owed an answer.
	mine := fs.pending.CompareAndSwap(0, int64(start))
	return func() {
		if mine {
			fs.pending.Store(0)
		}
	}
}

// logFile is a log file that Pebble writes from its start. Only one goroutine at a time writes it: Pebble's flush loop. That
// goroutine and syncLogs sync it.
type logFile struct {
	vfs.File
	fs     *logFS
	number uint64
	// written counts the bytes that were written, and durable those that were written when the last
	// sync began.
	written, durable atomic.Int64
	// syncing is held during a sync, so that the file is not closed meanwhile. closed is set with it.
	syncing sync.Mutex
	closed  bool
}

// Write implements vfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	defer f.fs.beginOp()()
	// p is Pebble's buffer, which it does not read again, so it may be changed in place.
	promiseSynced(p, f.written.Load(), f.durable.Load())
	n, err := f.File.Write(p)
	f.written.Add(int64(n))
	return n, err
}

// Sync implements vfs.File. It does nothing if all who wait for it have deferred their sync: the bytes are with the operating
// system then, and durable with the next sync that somebody needs.
func (f *logFile) Sync() error {
	if f.fs.mayDefer() {
		return nil
	}
	_, err := f.watchSync(func() (bool, error) { return true, f.File.Sync() })
	return err
}

// SyncData implements vfs.File. Pebble syncs its log with it.
func (f *logFile) SyncData() error {
	if f.fs.mayDefer() {
		return nil
	}
	_, err := f.watchSync(func() (bool, error) { return true, f.File.SyncData() })
	return err
}

// SyncTo implements vfs.File. A partial sync promises nothing, so it is not recorded.
func (f *logFile) SyncTo(length int64) (bool, error) {
	return f.watchSync(func() (bool, error) { return f.File.SyncTo(length) })
}

// Close implements vfs.File. The last sync of the file may have been left out, and the syncs of the next log do not cover this
// one: without a sync here, a power loss could take the end of this log and leave the next one.
func (f *logFile) Close() error {
	err := f.syncWritten()
	f.syncing.Lock()
	f.closed = true
	f.syncing.Unlock()
	f.fs.openMu.Lock()
	f.fs.open = slices.DeleteFunc(f.fs.open, func(o *logFile) bool { return o == f })
	f.fs.openMu.Unlock()
	return errors.Join(err, f.File.Close())
}

// syncWritten syncs the file unless all of it is synced.
func (f *logFile) syncWritten() error {
	if f.durable.Load() == f.written.Load() {
		return nil
	}
	_, err := f.watchSync(func() (bool, error) { return true, f.File.SyncData() })
	return err
}

// watchSync times a sync and, if it was one of the whole file, records in SYNCED that all bytes written so far are durable. It does so before the
// sync is reported: nobody may rely on bytes whose loss the next start could not notice. The record is a write to the same disk, which
// waits as long as the disk stalls, so it is part of the operation.
func (f *logFile) watchSync(do func() (full bool, err error)) (full bool, err error) {
	defer f.fs.beginOp()()
	f.syncing.Lock()
	defer f.syncing.Unlock()
	// Closed meanwhile, which syncs the file.
	if f.closed {
		return true, nil
	}
	// Read before the sync: bytes that are written during it may not be part of it.
	written := f.written.Load()
	start := time.Now()
	full, err = do()
	if !full {
		return false, err
	}
	f.fs.synced(time.Since(start))
	if err == nil {
		f.durable.Store(written)
		f.fs.lengths.synced(f.number, written)
	}
	return true, err
}
