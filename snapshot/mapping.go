package snapshot

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

const (
	hugePage      = 2 << 20
	fallocateStep = 64 << 20 // at a time, so that a signal does not undo all of it
)

// mapping is a file of the image, open and mapped for writing.
type mapping struct {
	path       string
	fd         int
	mem        []byte
	generation uint64
	locked     bool // we hold the write lock on byte 0
}

// createMapping makes a file of a size, takes its memory at once, and maps it.
//
// A tmpfs that is mounted with huge=advise takes huge pages only for who touches them through a mapping that asks for them,
// never in fallocate. So a file that is to have them is touched first; what that could not get, fallocate takes or reports.
func createMapping(path string, size int64, mode uint32, huge bool) (*mapping, error) {
	const op rhumb.Op = "snapshot.create"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, fileError(op, path, err)
	}
	m := &mapping{path: path, fd: fd}
	err = unix.Fchmod(fd, mode)
	if err == nil && huge {
		if err = unix.Ftruncate(fd, size); err == nil {
			err = m.mmap(size, huge)
		}
	}
	if err == nil {
		err = allocate(fd, size)
	}
	if err == nil && !huge {
		err = m.mmap(size, huge)
	}
	if err == nil {
		return m, nil
	}
	m.unmap()
	_ = unix.Close(fd)
	_ = unix.Unlink(path)
	return nil, fileError(op, path, err)
}

// openMapping maps a file that exists and has the size wanted.
func openMapping(path string, size int64, huge bool) (*mapping, error) {
	const op rhumb.Op = "snapshot.open"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fileError(op, path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != size {
		_ = unix.Close(fd)
		if err != nil {
			return nil, fileError(op, path, err)
		}
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s has %d bytes, want %d", path, st.Size, size)
	}
	m := &mapping{path: path, fd: fd}
	if err := m.mmap(size, huge); err != nil {
		_ = unix.Close(fd)
		return nil, fileError(op, path, err)
	}
	return m, nil
}

// fileError names the file; a full file system is DiskFull.
func fileError(op rhumb.Op, path string, err error) error {
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

// allocate takes the memory or disk of a whole file, so that no store into its mapping can fail later.
func allocate(fd int, size int64) error {
	for at := int64(0); at < size; {
		n := min(size-at, fallocateStep)
		switch err := unix.Fallocate(fd, 0, at, n); err {
		case nil:
			at += n
		case unix.EINTR:
		case unix.EOPNOTSUPP:
			return writeZeros(fd, size)
		default:
			return err
		}
	}
	return nil
}

// writeZeros stands in for fallocate on file systems that lack it.
func writeZeros(fd int, size int64) error {
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < size; {
		n, err := unix.Pwrite(fd, zeros[:min(size-at, int64(len(zeros)))], at)
		if err != nil && err != unix.EINTR {
			return err
		}
		at += int64(max(n, 0))
	}
	return nil
}

// mmap maps the file at an address that is congruent to the offset modulo the size of a huge page, without which the kernel
// uses small ones, and makes the page tables.
func (m *mapping) mmap(size int64, huge bool) error {
	reserve, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	skip := -uintptr(reserve) & (hugePage - 1)
	at, err := unix.MmapPtr(m.fd, 0, unsafe.Add(reserve, skip), uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
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
	m.mem = unsafe.Slice((*byte)(at), size)
	if huge {
		_ = unix.Madvise(m.mem, unix.MADV_HUGEPAGE) // the metric shows when it was in vain
	}
	_ = unix.Madvise(m.mem, unix.MADV_POPULATE_WRITE) // older kernels fault the pages in one by one
	return nil
}

// close unmaps and closes the file.
func (m *mapping) close() {
	if m.unmap() {
		_ = unix.Close(m.fd)
	}
}

// unmap reports whether the file was mapped.
func (m *mapping) unmap() bool {
	if m.mem == nil {
		return false
	}
	_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.mem)), uintptr(len(m.mem)))
	m.mem = nil
	return true
}

// tryLock takes the write lock on byte 0, which it gets when no reader has the file mapped.
func (m *mapping) tryLock() bool {
	if !m.locked {
		m.locked = m.setLock(unix.F_WRLCK)
	}
	return m.locked
}

// unlock lets readers in again.
func (m *mapping) unlock() {
	if m.locked {
		m.setLock(unix.F_UNLCK)
		m.locked = false
	}
}

func (m *mapping) setLock(how int16) bool {
	return unix.FcntlFlock(uintptr(m.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Len: 1}) == nil
}

// rename gives the file another name.
func (m *mapping) rename(path string) error {
	if err := unix.Rename(m.path, path); err != nil {
		return fileError("snapshot.rename", path, err)
	}
	m.path = path
	return nil
}

// The words that readers load atomically. The mapping begins at a page, so that offset is all that decides alignment.

func (m *mapping) load64(offset int) uint64 { return atomic.LoadUint64(word64(m.mem, offset)) }

func (m *mapping) store64(offset int, v uint64) { atomic.StoreUint64(word64(m.mem, offset), v) }

func (m *mapping) store32(offset int, v uint32) { atomic.StoreUint32(word32(m.mem, offset), v) }

func word64(mem []byte, offset int) *uint64 {
	_ = mem[offset+7]
	return (*uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), offset))
}

func word32(mem []byte, offset int) *uint32 {
	_ = mem[offset+3]
	return (*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), offset))
}

// view gives a part of a mapping as a slice of another type; what does not fill an element is left out.
func view[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(zero)))
}
