package storagetest_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestLife stores lives and loses power after each: the last stored life is there. A life of another size is Corrupt.
func TestLife(t *testing.T) {
	rng := rand.New(rand.NewPCG(uint64(storagetest.Seed(t, 1)), 0))
	fs := vfs.NewCrashableMem()
	e := openEngine(t, fs, disks(2))
	if life, ok, err := e.Life(); ok || err != nil || life != (storage.Life{}) {
		t.Fatalf("a new engine has life %+v, %v, %v; want none", life, ok, err)
	}
	var want storage.Life
	for range 5 {
		want = storage.Life{Previous: want.Nonce, Nonce: rng.Uint64(), Number: want.Number + 1}
		if err := e.SetLife(want); err != nil {
			t.Fatal(err)
		}
		after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		closeEngine(t, e)
		fs = after
		e = openEngine(t, fs, disks(2))
		if life, ok, err := e.Life(); !ok || err != nil || life != want {
			t.Fatalf("after a crash the life is %+v, %v, %v; want %+v", life, ok, err, want)
		}
	}
	if err := e.Local(storage.SpaceStore).Set([]byte("life"), make([]byte, 23)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Life(); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a life of 23 bytes reads %v, want corrupt", err)
	}
	closeEngine(t, e)
}
