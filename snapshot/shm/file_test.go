package shm

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A file keeps its content while it grows, the new memory is zero, and a mapping begins at a huge page.
func TestExtend(t *testing.T) {
	for _, huge := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "file")
		f, err := Create(path, 10_000, 0o600, huge)
		check(t, err)
		copy(f.Mem[9_990:], "0123456789")
		check(t, f.Extend(3<<20+5, huge))
		if !bytes.Equal(f.Mem[9_990:10_000], []byte("0123456789")) || len(f.Mem) != 3<<20+5 || bytes.ContainsFunc(f.Mem[10_000:], func(r rune) bool { return r != 0 }) {
			t.Errorf("huge %t: the content changed", huge)
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(f.Mem))); at%hugePage != 0 {
			t.Errorf("huge %t: the mapping begins at %#x, inside a huge page", huge, at)
		}
		f.Close()
		f.Close() // does nothing
		again, err := Open(path, 3<<20+5, huge)
		check(t, err)
		if !bytes.Equal(again.Mem[9_990:10_000], []byte("0123456789")) {
			t.Errorf("huge %t: the file has another content", huge)
		}
		again.Remove()
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("huge %t: after Remove: %v", huge, err)
		}
	}
}

// The memory of a file is reserved when it is made: a hole would end the process at the first store on a full file system.
func TestCreateReserves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := Create(path, 1<<20, 0o600, false)
	check(t, err)
	defer f.Remove()
	var st unix.Stat_t
	check(t, unix.Stat(path, &st))
	if st.Blocks*512 < 1<<20 {
		t.Errorf("%d bytes are reserved, want %d", st.Blocks*512, 1<<20)
	}
}

// On file systems without fallocate zeros are written.
func TestWriteZeros(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(path, []byte("abc"), 0o600))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	check(t, writeZeros(fd, 3, 3<<20+1))
	got, err := os.ReadFile(path)
	check(t, err)
	if len(got) != 3<<20+1 || string(got[:3]) != "abc" || bytes.ContainsFunc(got[3:], func(r rune) bool { return r != 0 }) {
		t.Errorf("%d bytes that begin with %q", len(got), got[:3])
	}
}

// Errors name the file and have a kind that callers act on.
func TestErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	check(t, os.WriteFile(path, make([]byte, 100), 0o600))
	_, wrongSize := Open(path, 200, false)
	_, missing := Open(filepath.Join(dir, "none"), 200, false)
	_, exists := CreateEmpty(path, 0o600)
	f, err := CreateEmpty(filepath.Join(dir, "huge"), 0o600)
	check(t, err)
	defer f.Remove()
	tooLarge := f.Extend(1<<62, false)
	for _, c := range []struct {
		err  error
		kind rhumb.Kind
	}{{wrongSize, rhumb.Corrupt}, {missing, rhumb.NotFound}, {exists, rhumb.Other}, {tooLarge, rhumb.DiskFull}} {
		if rhumb.KindOf(c.err) != c.kind || !bytes.Contains([]byte(c.err.Error()), []byte(dir)) {
			t.Errorf("%v has kind %v, want %v and the path", c.err, rhumb.KindOf(c.err), c.kind)
		}
	}
	if len(f.Mem) != 0 {
		t.Errorf("a file that could not grow has %d bytes mapped", len(f.Mem))
	}
}

// A publisher gets the write lock when no reader holds the file, and a reader cannot lock the file while the publisher does.
func TestLock(t *testing.T) {
	f, err := Create(filepath.Join(t.TempDir(), "file"), 4096, 0o600, false)
	check(t, err)
	defer f.Remove()
	reader, err := os.Open(f.Path)
	check(t, err)
	defer reader.Close()
	readLock := func() error {
		return unix.FcntlFlock(reader.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Len: 1})
	}
	for range 2 { // a holder may lock again
		if !f.TryLock() {
			t.Error("the lock of a file that nobody has is refused")
		}
	}
	if readLock() == nil {
		t.Error("a reader locked a file that the publisher has for itself")
	}
	f.Unlock()
	check(t, readLock())
	if f.TryLock() {
		t.Error("the publisher locked a file that a reader has")
	}
	reader.Close()
	if !f.TryLock() {
		t.Error("the lock is refused although the reader has gone")
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	f, err := Create(filepath.Join(dir, "a"), 4096, 0o600, false)
	check(t, err)
	defer f.Close()
	check(t, f.Rename(filepath.Join(dir, "b")))
	if _, err := os.Stat(filepath.Join(dir, "b")); err != nil || f.Path != filepath.Join(dir, "b") {
		t.Errorf("renamed to %s: %v", f.Path, err)
	}
	if err := f.Rename(filepath.Join(dir, "none", "c")); rhumb.KindOf(err) != rhumb.NotFound || f.Path != filepath.Join(dir, "b") {
		t.Errorf("renamed to %s: %v", f.Path, err)
	}
	f.RemoveName()
	if entries, _ := os.ReadDir(dir); len(entries) != 0 || f.Path != "" {
		t.Errorf("%d files are left, the path is %q", len(entries), f.Path)
	}
	f.Mem[0] = 1 // the memory stays
}

func TestWords(t *testing.T) {
	f, err := Create(filepath.Join(t.TempDir(), "file"), 4096, 0o600, false)
	check(t, err)
	defer f.Remove()
	f.Store64(8, 0x0102030405060708)
	f.Store32(16, 0x0a0b0c0d)
	StoreWord(f.Mem, 24, 7)
	StoreWords(f.Mem[32:48], func(p []byte) { copy(p, "fifteen letters!") })
	want := make([]byte, 48)
	binary.LittleEndian.PutUint64(want[8:], 0x0102030405060708)
	binary.LittleEndian.PutUint32(want[16:], 0x0a0b0c0d)
	want[24] = 7
	copy(want[32:], "fifteen letters!")
	if !bytes.Equal(f.Mem[:48], want) || f.Load64(8) != 0x0102030405060708 {
		t.Errorf("% x, want % x", f.Mem[:48], want)
	}
	if v := View[uint32](f.Mem[8:21]); len(v) != 3 || v[0] != 0x05060708 {
		t.Errorf("a view of 13 bytes as words has %d words, the first %#x", len(v), v[0])
	}
}
