package snapshot

import (
	"fmt"
	"sync/atomic"
	"time"
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
	locked     bool      // we hold the write lock on byte 0
	retired    time.Time // when it was superseded
}

// createFile makes an empty file, which extend gives its memory.
func createFile(path string, mode uint32) (*mapping, error) {
	const op rhumb.Op = "snapshot.create"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, fileError(op, path, err)
	}
	m := &mapping{path: path, fd: fd}
	if err := unix.Fchmod(fd, mode); err != nil {
		m.remove()
		return nil, fileError(op, path, err)
	}
	return m, nil
}

// createMapping makes a file of a size, takes its memory at once, and maps it.
func createMapping(path string, size int64, mode uint32, huge bool) (*mapping, error) {
	m, err := createFile(path, mode)
	if err != nil {
		return nil, err
	}
	if err := m.extend(size, huge); err != nil {
		m.remove()
		return nil, err
	}
	return m, nil
}

// extend makes the file larger, takes the memory at once, and maps it anew. After an error the mapping is what it was; the file
// may be longer by then.
//
// A tmpfs that is mounted with huge=advise takes huge pages only for who touches them through a mapping that asks for them,
// never in fallocate. So a file that is to have them is touched first; what that could not get, fallocate takes or reports.
func (m *mapping) extend(size int64, huge bool) (err error) {
	was := m.mem
	if huge {
		if err = unix.Ftruncate(m.fd, size); err == nil {
			err = m.mmap(size, huge)
		}
	}
	if err == nil {
		err = allocate(m.fd, int64(len(was)), size)
	}
	if err == nil && !huge {
		err = m.mmap(size, huge)
	}
	if err != nil {
		if len(m.mem) > len(was) {
			unmap(m.mem)
		}
		m.mem = was
		return fileError("snapshot.extend", m.path, err)
	}
	unmap(was)
	return nil
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

// allocate takes the memory or disk of a file from one offset up to another, so that no store into its mapping can fail later.
func allocate(fd int, at, size int64) error {
	for at < size {
		n := min(size-at, fallocateStep)
		switch err := unix.Fallocate(fd, 0, at, n); err {
		case nil:
			at += n
		case unix.EINTR:
		case unix.EOPNOTSUPP:
			return writeZeros(fd, at, size)
		default:
			return err
		}
	}
	return nil
}

// writeZeros stands in for fallocate on file systems that lack it.
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

// remove deletes the file for good. Readers that have it keep it.
func (m *mapping) remove() {
	if m.path != "" {
		_ = unix.Unlink(m.path)
	}
	m.close()
}

// close unmaps and closes the file; a second time does nothing.
func (m *mapping) close() {
	if m.fd >= 0 {
		unmap(m.mem)
		_ = unix.Close(m.fd)
		m.mem, m.fd = nil, -1
	}
}

func unmap(mem []byte) {
	if mem != nil {
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
	}
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
