package storage

import (
	"strconv"
	"strings"
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
}

// newLogFS returns a logFS that calls synced with the duration of each sync.
func newLogFS(fs vfs.FS, synced func(time.Duration)) *logFS {
	return &logFS{FS: fs, epoch: time.Now(), synced: synced}
}

// Unwrap returns the wrapped file system.
func (fs *logFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS.
func (fs *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.watchLog(name, f, err)
}

// ReuseForWrite implements vfs.FS. Pebble reuses the blocks of old logs, which makes a sync about
// twice as fast as growing a file.
func (fs *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.watchLog(newname, f, err)
}

// watchLog wraps a file that was just created.
func (fs *logFS) watchLog(name string, f vfs.File, err error) (vfs.File, error) {
	number, ok := logNumber(fs.PathBase(name))
	switch {
	case err == nil && !ok && fs.created != nil:
		return fs.created(name, f), nil
	case err != nil || !ok || fs.lengths == nil:
		return f, err
	}
	// SYNCED names the new log before it has content. A start that does not find the file then
	// knows that nothing was lost, because its synced length is 0.
	fs.lengths.began(number)
	return &logFile{File: f, fs: fs, number: number}, nil
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

// beginOp records the start of an operation. The returned function ends it and returns its
// duration.
func (fs *logFS) beginOp() func() time.Duration {
	start := time.Since(fs.epoch) | 1 // never 0, which means that no operation is in progress
	// The last sync of one log and the first writes of the next may overlap. The older start stays,
	// because that is how long the disk has owed an answer.
	mine := fs.pending.CompareAndSwap(0, int64(start))
	return func() time.Duration {
		if mine {
			fs.pending.Store(0)
		}
		return time.Since(fs.epoch) - start
	}
}

// logFile is a log file that Pebble writes from its start. Only one goroutine at a time writes and
// syncs it: Pebble's flush loop.
type logFile struct {
	vfs.File
	fs     *logFS
	number uint64
	// written counts the bytes that were written, and durable those that were written when the last
	// sync began.
	written, durable int64
}

// Write implements vfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	defer f.fs.beginOp()()
	// p is Pebble's buffer, which it does not read again, so it may be changed in place.
	promiseSynced(p, f.written, f.durable)
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// didSync records that all bytes written so far are durable. It runs before the sync is reported:
// nobody may rely on bytes whose loss the next start could not notice.
func (f *logFile) didSync() {
	f.durable = f.written
	f.fs.lengths.synced(f.number, f.durable)
}

// Sync implements vfs.File.
func (f *logFile) Sync() error {
	end := f.fs.beginOp()
	err := f.File.Sync()
	f.fs.synced(end())
	if err == nil {
		f.didSync()
	}
	return err
}

// SyncData implements vfs.File.
func (f *logFile) SyncData() error {
	end := f.fs.beginOp()
	err := f.File.SyncData()
	f.fs.synced(end())
	if err == nil {
		f.didSync()
	}
	return err
}

// SyncTo implements vfs.File. A partial sync promises nothing, so it is not recorded.
func (f *logFile) SyncTo(length int64) (bool, error) {
	end := f.fs.beginOp()
	full, err := f.File.SyncTo(length)
	if d := end(); full {
		f.fs.synced(d)
		if err == nil {
			f.didSync()
		}
	}
	return full, err
}
