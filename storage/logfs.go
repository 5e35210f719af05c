package storage

import (
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFS watches the writes and syncs of log files: the data path whose liveness the node's liveness follows. It keeps how
// far each log file is synced, and writes that into the chunks of the log.
type logFS struct {
	vfs.FS
	// lengths is set before the database is opened.
	lengths logLengths
	// created, when set, takes each new file that is no log.
	created func(path string, f vfs.File) vfs.File
	// pending holds the start of the oldest operation that is under way, as nanoseconds since epoch; 0 when none is. A
	// log file has one writer and there is one current log file, so one place is enough.
	pending atomic.Int64
	epoch   time.Time
	synced  func(time.Duration)
}

func newLogFS(fs vfs.FS, synced func(time.Duration)) *logFS {
	return &logFS{FS: fs, epoch: time.Now(), synced: synced}
}

// Unwrap gives the file system below.
func (fs *logFS) Unwrap() vfs.FS { return fs.FS }

func (fs *logFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.watchLog(name, f, err)
}

func (fs *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.watchLog(newname, f, err)
}

func (fs *logFS) watchLog(name string, f vfs.File, err error) (vfs.File, error) {
	number, ok := logNumber(fs.PathBase(name))
	switch {
	case err == nil && !ok && fs.created != nil:
		return fs.created(name, f), nil
	case err != nil || !ok || fs.lengths == nil:
		return f, err
	}
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

// outstanding is how long the oldest operation under way has lasted.
func (fs *logFS) outstanding() time.Duration {
	if p := fs.pending.Load(); p != 0 {
		return time.Since(fs.epoch) - time.Duration(p)
	}
	return 0
}

// beginBoot notes the start of an operation; the result ends it and gives its duration.
func (fs *logFS) beginOp() func() time.Duration {
	start := time.Since(fs.epoch) | 1 // never 0
	mine := fs.pending.CompareAndSwap(0, int64(start))
	return func() time.Duration {
		if mine {
			fs.pending.Store(0)
		}
		return time.Since(fs.epoch) - start
	}
}

// logFile is a log file that is written from its start. One goroutine at a time writes and syncs it.
type logFile struct {
	vfs.File
	fs     *logFS
	number uint64
	// written counts the bytes written, and durable those that were when the last sync began.
	written, durable int64
}

func (f *logFile) Write(p []byte) (int, error) {
	defer f.fs.beginOp()()
	promiseSynced(p, f.written, f.durable)
	n, err := f.File.Write(p)
	f.written += int64(n)
	return n, err
}

// didSync notes that all bytes written are durable, before anyone learns of the sync.
func (f *logFile) didSync() {
	f.durable = f.written
	f.fs.lengths.synced(f.number, f.durable)
}

func (f *logFile) Sync() error {
	end := f.fs.beginOp()
	err := f.File.Sync()
	f.fs.synced(end())
	if err == nil {
		f.didSync()
	}
	return err
}

func (f *logFile) SyncData() error {
	end := f.fs.beginOp()
	err := f.File.SyncData()
	f.fs.synced(end())
	if err == nil {
		f.didSync()
	}
	return err
}

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
