package inspect

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

var le = binary.LittleEndian

// mapping is a file mapped for reading, and locked while it is open.
type mapping struct {
	file  *os.File
	bytes []byte
}

// errBusy reports that the publisher holds the write lock of a file, because it is building or
// recycling the file.
var errBusy = errors.New("the publisher has the file for itself")

// mapFile maps a file of at least least bytes. With lock it takes the lock that keeps the publisher
// from recycling the file.
func mapFile(path string, least int64, lock bool) (*mapping, error) {
	const op rhumb.Op = "inspect.mapFile"
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(op, err)
	}
	m := &mapping{file: f}
	if err := m.lockAndMap(op, path, least, lock); err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	return m, nil
}

// lockAndMap locks the file before it reads its size: without the lock the publisher might extend
// it for another generation.
func (m *mapping) lockAndMap(op rhumb.Op, path string, least int64, lock bool) error {
	if lock {
		err := unix.FcntlFlock(m.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Len: 1})
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return errBusy
		}
		if err != nil {
			return rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
	}
	info, err := m.file.Stat()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	// mmap would reject a file of an absurd size with an error that does not name the cause.
	if !info.Mode().IsRegular() || info.Size() < least || info.Size() > 1<<46 {
		return rhumb.Ef(op, rhumb.Corrupt, "%s is not a regular file of at least %d bytes; it has %d", path, least, info.Size())
	}
	m.bytes, err = unix.Mmap(int(m.file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	return rhumb.WrapKind(op, rhumb.Unavailable, err)
}

// unmapFile unmaps and closes the file, which releases the lock.
func (m *mapping) unmapFile() {
	_ = unix.Munmap(m.bytes) // nothing was written
	_ = m.file.Close()
}

// load64 loads a word that the publisher may change.
func (m *mapping) load64(offset int) uint64 {
	_ = m.bytes[offset+7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m.bytes[offset])))
}

// copyWords copies len(dst) bytes word by word in ascending order. The length must be a multiple of
// 8. Each word is loaded atomically, since the publisher may store to it meanwhile.
func (m *mapping) copyWords(dst []byte, from uint64) {
	for i := 0; i+8 <= len(dst); i += 8 {
		le.PutUint64(dst[i:], m.load64(int(from)+i))
	}
}

// guardFaults runs f, which reads mapped memory, and turns the fault of a file that was truncated
// meanwhile into an error. f must not start goroutines, because the setting applies only to the
// calling one.
func guardFaults(op rhumb.Op, file string, f func()) (err error) {
	// The inner call turns faults into panics now, and the deferred outer one restores the old
	// setting.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		// The runtime's memory fault is the only panic of a read from mapped memory. Any other one
		// is a bug and stays a panic.
		case interface{ Addr() uintptr }:
			err = rhumb.Ef(op, rhumb.Corrupt, "%s cannot be read to its end: it was truncated meanwhile", file)
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// fileError adds the kind to an error of the file system.
func fileError(op rhumb.Op, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rhumb.WrapKind(op, rhumb.NotFound, err)
	case errors.Is(err, fs.ErrPermission):
		return rhumb.WrapKind(op, rhumb.PermissionDenied, err)
	case errors.Is(err, unix.ENOSPC):
		return rhumb.WrapKind(op, rhumb.DiskFull, err)
	}
	return rhumb.Wrap(op, err)
}
