package storagetest_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// TestNotAllowed guards that a directory that this user may not write to is reported as such, and
// not as one that another process uses.
func TestNotAllowed(t *testing.T) {
	closed, made := t.TempDir(), t.TempDir()
	s, err := storage.Open(storage.Config{Dir: made})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{closed, made} {
		if err := os.Chmod(path, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
	}
	if err := os.Chmod(filepath.Join(made, "LOCK"), 0o444); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // root may write anywhere, so this thread becomes nobody
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := syscall.Setfsuid(65534); err != nil {
			t.Skip(err)
		}
		defer func() { _ = syscall.Setfsuid(0) }()
	}
	for name, dir := range map[string]string{"empty": closed, "new": filepath.Join(closed, "new"), "a store": made} {
		_, err := storage.Open(storage.Config{Dir: dir})
		if rhumb.KindOf(err) != rhumb.PermissionDenied || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "in use") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := storage.Verify(made, nil); rhumb.KindOf(err) != rhumb.PermissionDenied {
		t.Errorf("verify: %v", err)
	}
}
