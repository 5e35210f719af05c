package storage

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// logFS watches the writes and syncs of log files: the data path whose liveness the node's liveness follows.
type logFS struct {
	vfs.FS
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
	return fs.watch(name, f, err)
}

func (fs *logFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.watch(newname, f, err)
}

func (fs *logFS) watch(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, logSuffix) {
		return f, err
	}
	return &logFile{File: f, fs: fs}, nil
}

// outstanding is how long the oldest operation under way has lasted.
func (fs *logFS) outstanding() time.Duration {
	if p := fs.pending.Load(); p != 0 {
		return time.Since(fs.epoch) - time.Duration(p)
	}
	return 0
}

// begin notes the start of an operation; the result ends it and gives its duration.
func (fs *logFS) begin() func() time.Duration {
	start := time.Since(fs.epoch) | 1 // never 0
	mine := fs.pending.CompareAndSwap(0, int64(start))
	return func() time.Duration {
		if mine {
			fs.pending.Store(0)
		}
		return time.Since(fs.epoch) - start
	}
}

type logFile struct {
	vfs.File
	fs *logFS
}

func (f *logFile) Write(p []byte) (int, error) {
	defer f.fs.begin()()
	return f.File.Write(p)
}

func (f *logFile) Sync() error {
	end := f.fs.begin()
	err := f.File.Sync()
	f.fs.synced(end())
	return err
}

func (f *logFile) SyncData() error {
	end := f.fs.begin()
	err := f.File.SyncData()
	f.fs.synced(end())
	return err
}

func (f *logFile) SyncTo(length int64) (bool, error) {
	end := f.fs.begin()
	full, err := f.File.SyncTo(length)
	if d := end(); full {
		f.fs.synced(d)
	}
	return full, err
}
