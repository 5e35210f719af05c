package reader

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

// hugePage is the size of a huge page. The kernel uses one only where address and file offset agree
// modulo this size.
const hugePage = 2 << 20

// mapping is a file mapped for reading. While its descriptor is open it is locked, so that the
// publisher does not recycle it.
type mapping struct {
	bytes []byte
	base  unsafe.Pointer
	info  os.FileInfo
	file  *os.File
	space []byte // the reserved address range; bytes is a part of it
}

// mapFile maps a file of the image. The file must have at least least bytes, and exactly size
// unless size is 0. With lock it takes the lock that keeps the publisher from using the file for
// another generation; it returns errBusy if the publisher holds the lock.
func (c *Client) mapFile(name string, least, size uint64, lock bool) (*mapping, error) {
	const op rhumb.Op = "reader.mapFile"
	path := filepath.Join(c.dir, name)
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(op, err)
	}
	m := &mapping{file: f}
	if m.info, err = f.Stat(); err == nil && !m.info.Mode().IsRegular() {
		err = rhumb.Ef(op, rhumb.Corrupt, "%s is not a regular file", path)
	}
	if err == nil && lock {
		err = lockFile(op, f, path)
	}
	if err == nil {
		n := uint64(m.info.Size())
		if n < least || size != 0 && n != size || n > 1<<46 {
			err = rhumb.Ef(op, rhumb.Corrupt, "%s has %d bytes, want %d", path, n, max(size, least))
		} else {
			err = m.mapWhole(int(n), c.opt)
		}
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, err
	}
	c.mapped[m] = name
	return m, nil
}

// openError adds the kind to an error of opening a file.
func openError(op rhumb.Op, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return rhumb.WrapKind(op, rhumb.NotFound, err)
	case errors.Is(err, fs.ErrPermission):
		return rhumb.WrapKind(op, rhumb.PermissionDenied, err)
	}
	return rhumb.Wrap(op, err)
}

// lockFile takes a read lock on byte 0. It is an open file description lock, which belongs to this
// descriptor and not to the process: two clients in one process do not release each other's lock.
func lockFile(op rhumb.Op, f *os.File, path string) error {
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: 0, Len: 1})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errBusy
	}
	if err != nil {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: "cannot lock " + path, Err: err}
	}
	return nil
}

// mapWhole maps n bytes at an address at which huge pages can be used. mmap has no alignment
// argument, so a larger range is reserved and the file is mapped inside it.
func (m *mapping) mapWhole(n int, opt Options) error {
	const op rhumb.Op = "reader.mmap"
	space, err := unix.Mmap(-1, 0, n+hugePage, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	start := unsafe.Pointer(&space[0])
	at := unsafe.Add(start, -uintptr(start)&(hugePage-1))
	p, err := unix.MmapPtr(int(m.file.Fd()), 0, at, uintptr(n), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.Munmap(space) // nothing was mapped there
		return rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	m.space, m.base, m.bytes = space, p, unsafe.Slice((*byte)(p), n)
	if opt.HugePages {
		_ = unix.Madvise(m.bytes, unix.MADV_HUGEPAGE) // the kernel may refuse; Client.HugePages shows the outcome
	}
	if opt.Populate {
		// EINVAL comes from kernels before 5.14, which lack the advice. Then reads fault the pages
		// in.
		if err := unix.Madvise(m.bytes, unix.MADV_POPULATE_READ); err != nil && !errors.Is(err, unix.EINVAL) {
			_ = unix.Munmap(space) // as above
			return rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
	}
	return nil
}

// unmapFile unmaps the file and closes it, which releases the lock and lets the publisher recycle
// the file.
func (m *mapping) unmapFile() error {
	return errors.Join(unix.Munmap(m.space), m.file.Close())
}

// monotonicSince returns how long ago a reading of CLOCK_MONOTONIC was. ok is false if the reading
// is in the future, as in an image from before the last boot.
func monotonicSince(ns uint64) (age time.Duration, ok bool) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil || ns == 0 || int64(ns) > now.Nano() {
		return 0, false
	}
	return time.Duration(now.Nano() - int64(ns)), true
}

// HugePages returns how many bytes the client has mapped and how many of them are on huge pages, as
// the kernel reports it in /proc/self/smaps. Reading that file takes milliseconds for large images.
func (c *Client) HugePages() (mapped, huge int64, err error) {
	const op rhumb.Op = "reader.Client.HugePages"
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, 0, rhumb.Wrap(op, err)
	}
	defer f.Close()
	ours := false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		var from, to uint64
		var kib int64
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			// The kernel lists each mapping with its addresses, followed by its fields.
			if ours = c.hasMapping(uintptr(from)); ours {
				mapped += int64(to - from)
			}
		} else if field, rest, ok := strings.Cut(line, ":"); ours && ok && (field == "ShmemPmdMapped" || field == "FilePmdMapped") {
			if n, _ := fmt.Sscanf(rest, "%d kB", &kib); n == 1 {
				huge += kib << 10
			}
		}
	}
	return mapped, huge, rhumb.Wrap(op, lines.Err())
}

// hasMapping reports whether an address is in one of the client's mappings.
func (c *Client) hasMapping(at uintptr) bool {
	for m := range c.mapped {
		if at >= uintptr(m.base) && at < uintptr(m.base)+uintptr(len(m.bytes)) {
			return true
		}
	}
	return false
}
