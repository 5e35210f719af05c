package storage

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/rhumbdb/rhumb"
)

func openMem(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open(Config{Dir: "store", FS: fs, DiskFree: func(string) (uint64, uint64, error) { return 50, 100, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDamagesBeyondMost guards that a store with DamagesMax damages on record neither writes nor
// logs for each further read of a damaged block.
func TestDamagesBeyondMost(t *testing.T) {
	fs := vfs.NewMem()
	s := openMem(t, fs)
	defer func() { _ = s.Close() }()
	s.damages.mu.Lock()
	for i := range DamagesMax {
		s.damages.state.Damages = append(s.damages.state.Damages, Damage{Fault: Fault{File: fmt.Sprint(i)}})
	}
	s.damages.fresh = []Fault{{File: "one more.sst"}}
	s.damages.mu.Unlock()
	if err := s.placeDamage(true); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(fs.PathJoin("store", damageName)); !errors.Is(err, iofs.ErrNotExist) {
		t.Errorf("the record of damage was written again: %v", err)
	}
}

// TestClearShortFails guards that a store stays short if the record of damage cannot be written, and
// that a later ClearShort is durable.
func TestClearShortFails(t *testing.T) {
	var fail atomic.Bool
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, damageName+".tmp") {
			return syscall.EIO
		}
		return nil
	}))
	s := openMem(t, fs)
	if err := s.addDamage(Damage{Fault: Fault{File: "some.sst", Offset: -1}}, true); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	if err := s.ClearShort(); err == nil || !s.Short() {
		t.Errorf("with a failing disk: %v, short %v; want an error and short", err, s.Short())
	}
	fail.Store(false)
	if err := s.ClearShort(); err != nil || s.Short() {
		t.Errorf("with a good disk: %v, short %v", err, s.Short())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, fs)
	defer func() { _ = s.Close() }()
	if s.Short() {
		t.Error("the store is short again after a restart")
	}
}

// TestDatabaseWithoutID guards that a database without the id of its store counts as damaged: the
// store continues empty and short, as with any other damage that leaves nothing to read.
func TestDatabaseWithoutID(t *testing.T) {
	fs := vfs.NewMem()
	s := openMem(t, fs)
	b := s.Local(SpaceStore).NewBatch()
	b.Delete([]byte(localStore))
	if err := b.Commit(true); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, fs)
	defer func() { _ = s.Close() }()
	if ds := s.Damage(); len(ds) != 1 || !s.Short() {
		t.Errorf("short %v, damages %v", s.Short(), ds)
	}
	if id, ok, err := s.Local(SpaceStore).Get([]byte(localStore)); err != nil || !ok || rhumb.UUID(id) != s.header.store {
		t.Errorf("the new database has the id %x, %v", id, err)
	}
}
