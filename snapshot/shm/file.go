package shm

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

const (
	hugePage = 2 << 20 // size of a huge page in bytes
	// fallocateStep is how many bytes one fallocate takes. A signal undoes all the work of the call
	// that it interrupts, so a single call for a large file might never end.
	fallocateStep = 64 << 20
)

// File is a file of an image, open and mapped for writing.
//
// Invariants: Mem covers the whole file, and all of it is backed by memory that was reserved
// before, since a store into a page that the file system cannot provide ends the process with
// SIGBUS. A file never shrinks while it is mapped, since a reader would get SIGBUS too.
type File struct {
	// Path is the name of the file; empty after RemoveName.
	Path string
	// Mem is the mapped content.
	Mem []byte
	// Generation is the generation number that the file was taken for; 0 for the root.
	Generation uint64
	// Retired is when the file was superseded; zero for a live one.
	Retired time.Time
	// Doomed is set if the content must not outlive the last reader, so that the file is removed and never reused.
	Doomed bool

	fd     int
	locked bool // whether this File holds the write lock on byte 0
}

// CreateEmpty creates a file of size 0, which Extend enlarges. It fails if the file exists.
func CreateEmpty(path string, mode uint32) (*File, error) {
	const op rhumb.Op = "snapshot.create"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, WrapError(op, path, err)
	}
	f := &File{Path: path, fd: fd}
	// The umask changed the mode that was passed to open, but must not decide who may read the
	// image.
	if err := unix.Fchmod(fd, mode); err != nil {
		f.Remove()
		return nil, WrapError(op, path, err)
	}
	return f, nil
}

// Create creates a file of a size, reserves its memory, and maps it. Huge asks for huge pages.
func Create(path string, size int64, mode uint32, huge bool) (*File, error) {
	f, err := CreateEmpty(path, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Extend(size, huge); err != nil {
		f.Remove()
		return nil, err
	}
	return f, nil
}

// Extend makes the file larger, reserves the memory, and maps the file again. After an error Mem is
// unchanged, but the file may be longer.
//
// On a tmpfs that is mounted with huge=advise, fallocate never takes huge pages: only touching the
// memory through a mapping with MADV_HUGEPAGE does. So a file that is to have huge pages is mapped
// and touched first, and fallocate then reserves the missing pages, or reports that there is not
// enough memory. A file without huge pages is reserved first, so that a full file system is an
// error here instead of a SIGBUS while the pages are touched.
func (f *File) Extend(size int64, huge bool) (err error) {
	was := f.Mem
	if huge {
		if err = unix.Ftruncate(f.fd, size); err == nil {
			err = f.mapWhole(size, huge)
		}
	}
	if err == nil {
		err = reserveMemory(f.fd, int64(len(was)), size)
	}
	if err == nil && !huge {
		err = f.mapWhole(size, huge)
	}
	if err != nil {
		// The failed call may have mapped the file already. The old mapping stays in use.
		if len(f.Mem) > len(was) {
			unmapMemory(f.Mem)
		}
		f.Mem = was
		return WrapError("snapshot.extend", f.Path, err)
	}
	// The old mapping goes last, so that Mem is valid at every moment.
	unmapMemory(was)
	return nil
}

// Open maps an existing file, which must have the given size.
func Open(path string, size int64, huge bool) (*File, error) {
	const op rhumb.Op = "snapshot.open"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, WrapError(op, path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != size {
		_ = unix.Close(fd)
		if err != nil {
			return nil, WrapError(op, path, err)
		}
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s has %d bytes, want %d", path, st.Size, size)
	}
	f := &File{Path: path, fd: fd}
	if err := f.mapWhole(size, huge); err != nil {
		_ = unix.Close(fd)
		return nil, WrapError(op, path, err)
	}
	return f, nil
}

// WrapError adds the path to an error of a system call and derives the kind: a full file system is
// DiskFull, a missing file NotFound.
func WrapError(op rhumb.Op, path string, err error) error {
	kind := rhumb.Other
	switch err {
	case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
		kind = rhumb.DiskFull
	case unix.EACCES, unix.EPERM:
		kind = rhumb.PermissionDenied
	case unix.ENOENT:
		kind = rhumb.NotFound
	}
	return rhumb.WrapKind(op, kind, fmt.Errorf("%s: %w", path, err))
}

// reserveMemory reserves the memory of a file from one offset to another, so that no later store
// into the mapping can fail.
func reserveMemory(fd int, at, size int64) error {
	for at < size {
		n := min(size-at, fallocateStep)
		switch err := unix.Fallocate(fd, 0, at, n); err {
		case nil:
			at += n
		case unix.EINTR: // Go preempts by signals; try the same step again
		case unix.EOPNOTSUPP:
			return writeZeros(fd, at, size)
		default:
			return err
		}
	}
	return nil
}

// writeZeros reserves memory on file systems that have no fallocate.
func writeZeros(fd int, at, size int64) error {
	zeros := make([]byte, 1<<20)
	for at < size {
		n, err := unix.Pwrite(fd, zeros[:min(size-at, int64(len(zeros)))], at)
		if err != nil && err != unix.EINTR {
			return err
		}
		at += int64(max(n, 0))
	}
	return nil
}

// mapWhole maps the file and fills the page tables.
//
// The address is made congruent to the file offset modulo the size of a huge page, because
// otherwise the kernel uses small pages. mmap takes no alignment, so a larger range is reserved
// first, the file is mapped inside of it, and the ends are returned.
func (f *File) mapWhole(size int64, huge bool) error {
	reserve, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	// The distance to the next multiple of a huge page.
	skip := -uintptr(reserve) & (hugePage - 1)
	at, err := unix.MmapPtr(f.fd, 0, unsafe.Add(reserve, skip), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(reserve, uintptr(size)+hugePage)
		return err
	}
	if skip > 0 {
		_ = unix.MunmapPtr(reserve, skip)
	}
	end := (uintptr(size) + 4095) &^ 4095
	if rest := uintptr(size) + hugePage - skip - end; rest > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, end), rest)
	}
	f.Mem = unsafe.Slice((*byte)(at), size)
	if huge {
		_ = unix.Madvise(f.Mem, unix.MADV_HUGEPAGE) // the kernel may refuse; the metric of huge bytes shows the outcome
	}
	// One call fills the page tables. Kernels before 5.14 lack it and fault the pages in one by one
	// on first use, which is slower but right.
	_ = unix.Madvise(f.Mem, unix.MADV_POPULATE_WRITE)
	return nil
}

// Remove deletes and unmaps the file. Readers that have the file mapped keep it.
func (f *File) Remove() {
	if f.Path != "" {
		_ = unix.Unlink(f.Path)
	}
	f.Close()
}

// RemoveName deletes the name of the file, which stays mapped here and by its readers.
func (f *File) RemoveName() {
	_ = unix.Unlink(f.Path)
	f.Path = ""
}

// Close unmaps and closes the file. A second call does nothing.
func (f *File) Close() {
	if f.fd >= 0 {
		unmapMemory(f.Mem)
		_ = unix.Close(f.fd)
		f.Mem, f.fd = nil, -1
	}
}

// unmapMemory unmaps memory; nil is allowed.
func unmapMemory(mem []byte) {
	if mem != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
	}
}

// TryLock takes the write lock on byte 0 and reports whether this File holds it. It succeeds only
// if no reader has the file mapped.
func (f *File) TryLock() bool {
	if !f.locked {
		f.locked = f.setLock(unix.F_WRLCK)
	}
	return f.locked
}

// Unlock lets readers lock the file again.
func (f *File) Unlock() {
	if f.locked {
		f.setLock(unix.F_UNLCK)
		f.locked = false
	}
}

// setLock changes the lock on byte 0 without waiting, and reports whether it succeeded.
func (f *File) setLock(how int16) bool {
	return unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Len: 1}) == nil
}

// Rename renames the file.
func (f *File) Rename(path string) error {
	if err := unix.Rename(f.Path, path); err != nil {
		return WrapError("snapshot.rename", path, err)
	}
	f.Path = path
	return nil
}
