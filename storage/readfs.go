package storage

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ReadFaults makes reads of the files of stores fail, for tests of a cluster with a disk that returns errors. It is safe for concurrent use.
// The zero value makes no read fail.
type ReadFaults struct {
	share atomic.Uint64 // the bits of a float64
}

// SetShare sets which share of the reads fails from now on: 0 is none, and 1 is every read.
func (f *ReadFaults) SetShare(share float64) { f.share.Store(math.Float64bits(share)) }

// refuse returns the error of a read of a file that fails on purpose, or nil.
func (f *ReadFaults) refuse(path string) error {
	if f == nil || rand.Float64() >= math.Float64frombits(f.share.Load()) {
		return nil
	}
	return &fs.PathError{Op: "read", Path: path, Err: syscall.EIO}
}

// readFS is the file system below the others of a store. It reports each read that the disk refuses. An error of a caller alone would not
// show those that only a compaction met, or that were repeated with success.
type readFS struct {
	vfs.FS
	faults  *ReadFaults // nil: no read fails on purpose
	refused func(p readSpot, err error)
}

// Unwrap returns the wrapped file system.
func (r *readFS) Unwrap() vfs.FS { return r.FS }

// Open implements vfs.FS.
func (r *readFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return r.watch(name)(r.FS.Open(name, opts...))
}

// OpenReadWrite implements vfs.FS.
func (r *readFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return r.watch(name)(r.FS.OpenReadWrite(name, c, opts...))
}

// watch returns a function that wraps an opened file.
func (r *readFS) watch(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return &watchedFile{File: f, fs: r, path: name}, nil
	}
}

// watchedFile is a file that was opened for reads.
type watchedFile struct {
	vfs.File
	fs   *readFS
	path string
}

// Read implements vfs.File.
func (f *watchedFile) Read(p []byte) (int, error) {
	return f.judge(-1, len(p), func() (int, error) { return f.File.Read(p) })
}

// ReadAt implements vfs.File.
func (f *watchedFile) ReadAt(p []byte, at int64) (int, error) {
	return f.judge(at, len(p), func() (int, error) { return f.File.ReadAt(p, at) })
}

// judge reads, unless the read is to fail, and reports an error of the disk. The end of a file is none.
func (f *watchedFile) judge(at int64, size int, read func() (int, error)) (n int, err error) {
	if err = f.fs.faults.refuse(f.path); err == nil {
		n, err = read()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.fs.refused(readSpot{f.path, at, size}, err)
	}
	return n, err
}
