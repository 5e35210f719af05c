package faults_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// segmentOf returns the live file of the only shard of the right table.
func segmentOf(dir string) (string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "seg.*"))
	if err != nil {
		return "", err
	}
	best, size := "", int64(0)
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Size() > size {
			best, size = name, info.Size()
		}
	}
	return best, nil
}

// truncated makes an image whose largest segment has many pages.
func truncated(t *testing.T) (dir string) {
	dir = shmDir(t)
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	spec := leftSpec
	spec.Shards = 1
	table, err := pub.Table(spec)
	check(t, err)
	_, err = pub.Load(table, func(yield func(snapshot.Record, error) bool) {
		for i := range uint64(others) {
			if !yield(leftRecord(i, 1, 500), nil) {
				return
			}
		}
	}, snapshot.CommitInfo{})
	check(t, err)
	check(t, pub.Close())
	return dir
}

// A segment that was cut is refused by whoever attaches later, and by the next publisher.
func TestTruncatedSegment(t *testing.T) {
	dir := truncated(t)
	name, err := segmentOf(dir)
	check(t, err)
	check(t, os.Truncate(name, 64<<10))
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Corrupt)
	if !strings.Contains(err.Error(), name) {
		t.Errorf("error %q does not name %s", err, name)
	}
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	if r := pub.Recovery(); len(r.Quarantined) != 1 || len(r.Dropped) != 1 {
		t.Errorf("recovery %+v, want the segment in quarantine and its table dropped", r)
	}
	check(t, pub.Close())
}

// A segment that is cut while a reader attaches, which reads all of it, is refused too, and ends no process.
func TestTruncatedWhileAttaching(t *testing.T) {
	dir := truncated(t)
	name, err := segmentOf(dir)
	check(t, err)
	info, err := os.Stat(name)
	check(t, err)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() && !t.Failed() {
			if err := errors.Join(os.Truncate(name, 64<<10), os.Truncate(name, info.Size())); err != nil {
				t.Error(err)
			}
		}
	})
	defer wg.Wait()
	defer done.Store(true)
	for limit := time.Now().Add(time.Minute); ; {
		c, err := reader.Attach(dir, reader.Options{VerifyChecksums: true})
		if err == nil { // before the first cut
			check(t, c.Close())
			continue
		}
		wantKind(t, err, rhumb.Corrupt)
		if strings.Contains(err.Error(), "was cut while it was read") {
			return
		}
		if time.Now().After(limit) {
			t.Skip("no attach met the moment")
		}
	}
}

// Cutting a segment under a reader is the one thing that no reader survives by itself: the kernel ends the process with
// SIGBUS. A process that must live through it reads under Guard.
func TestTruncatedUnderReader(t *testing.T) {
	out, err := command(t, "fault", truncated(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "SIGBUS") {
		t.Errorf("a reader of a cut segment ended with %v: %.300s", err, out)
	}
	out, err = command(t, "recover", truncated(t)).CombinedOutput()
	if err != nil {
		t.Errorf("under Guard: %v: %.300s", err, out)
	}
}

// touchTruncated is the child that reads what is not there any more.
func touchTruncated(dir string) error {
	return readTruncated(dir, func(_ *reader.Client, read func() error) error { return read() })
}

// recoverTruncated is the child that lives on.
func recoverTruncated(dir string) error {
	err := readTruncated(dir, (*reader.Client).Guard)
	if rhumb.KindOf(err) != rhumb.Corrupt {
		return fmt.Errorf("no fault: %w", err)
	}
	return nil
}

func readTruncated(dir string, run func(c *reader.Client, read func() error) error) error {
	k, err := newChecker(dir, 1)
	if err != nil {
		return err
	}
	v, err := k.client.Lock()
	if err != nil {
		return err
	}
	defer v.Unlock()
	name, err := segmentOf(dir)
	if err != nil {
		return err
	}
	if err := os.Truncate(name, 4096); err != nil {
		return err
	}
	table, err := v.Table(leftName)
	if err != nil {
		return err
	}
	return run(k.client, func() error { return table.VisitAll(func(*reader.Item) bool { return true }) })
}

// refused is the child of another user that may not read the image.
func refused(dir string) error {
	_, err := reader.Attach(dir, reader.Options{})
	if rhumb.KindOf(err) != rhumb.PermissionDenied {
		return fmt.Errorf("attach: %w, want permission denied", err)
	}
	return nil
}

// allowed is the child of another user that may read the image, but not write there or publish.
func allowed(dir string) error {
	k, err := newChecker(dir, 2)
	if err != nil {
		return err
	}
	if err := k.check(); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil {
			_ = f.Close()
			return fmt.Errorf("%s can be written by another user", name)
		}
	}
	if _, err := snapshot.Open(config(dir)); rhumb.KindOf(err) != rhumb.PermissionDenied {
		return fmt.Errorf("publishing: %w, want permission denied", err)
	}
	return k.client.Close()
}

func TestPermissions(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	dir := shmDir(t)
	for what, closed := range map[string]bool{"refused": true, "allowed": false} {
		image := filepath.Join(filepath.Dir(dir), what)
		cfg := config(image)
		cfg.GroupReadable = closed
		pub, err := snapshot.Open(cfg)
		check(t, err)
		w, err := writeTo(pub)
		check(t, err)
		check(t, w.commit())
		cmd := command(t, what, image)
		cmd.Path = program(t, filepath.Dir(dir))
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", what, err, out)
		}
		check(t, pub.Close())
	}
}

// program puts the test binary where every user can run it.
func program(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	from, err := os.Open(self)
	check(t, err)
	defer from.Close()
	path := filepath.Join(dir, "program")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	check(t, err)
	_, err = io.Copy(to, from)
	check(t, errors.Join(err, to.Close()))
	return path
}

// A file system that is full stops rolls; readers have the last commit, and all goes on when there is room again.
func TestFullFileSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	cmd := command(t, "full", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// fillFileSystem runs in a mount namespace of its own.
func fillFileSystem(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		return err
	}
	w, err := newWriter(filepath.Join(dir, "image"))
	if err != nil {
		return err
	}
	if err := w.commit(); err != nil {
		return err
	}
	k, err := newChecker(filepath.Join(dir, "image"), 1)
	if err != nil {
		return err
	}
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		return err
	}
	if _, err := ballast.Write(make([]byte, 7<<20)); err != nil && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	for err = nil; err == nil && w.pub.Version() < 10_000; err = w.step() {
		if err := k.check(); err != nil {
			return err
		}
	}
	if rhumb.KindOf(err) != rhumb.DiskFull {
		return fmt.Errorf("after version %d: %w, want disk full", w.pub.Version(), err)
	}
	for range 14 { // every way to read
		if err := k.check(); err != nil {
			return fmt.Errorf("while the file system is full: %w", err)
		}
	}
	if err := errors.Join(ballast.Truncate(0), ballast.Close()); err != nil {
		return err
	}
	for range 100 {
		if err := errors.Join(w.step(), k.check()); err != nil {
			return fmt.Errorf("with room again: %w", err)
		}
	}
	return errors.Join(k.client.Close(), w.pub.Close())
}
