package storagetest_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestLife begins lives and loses power after each step. A life that metadata has not counted must
// be begun again, and the life after a counted one must name it. A stored life of another size is
// Corrupt.
func TestLife(t *testing.T) {
	rng := rand.New(rand.NewPCG(uint64(storagetest.Seed(t, 1)), 0))
	fs := vfs.NewCrashableMem()
	e := openEngine(t, fs, disks(2))
	if life, ok, err := e.Life(); ok || err != nil || life != (storage.Life{}) {
		t.Fatalf("a new engine has life %+v, %v, %v; want none", life, ok, err)
	}
	var last storage.Life
	for number := range rhumb.BootSeq(6) {
		life, err := e.BeginLife(rng.Uint64())
		if err != nil || life.Previous != last.Nonce || life.Nonce == last.Nonce || life.Number != 0 {
			t.Fatalf("after %+v begins %+v, %v", last, life, err)
		}
		e, fs = reopen(t, e, fs, rng)
		if again, err := e.BeginLife(rng.Uint64()); err != nil || again != life {
			t.Fatalf("life %+v was not counted, and %+v begins, %v", life, again, err)
		}
		if number == 3 { // metadata rejects the nonce
			if life, err = e.RenewLife(rng.Uint64()); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.ConfirmLife(life, number+1); err != nil {
			t.Fatal(err)
		}
		e, fs = reopen(t, e, fs, rng)
		want := storage.Life{Previous: life.Previous, Nonce: life.Nonce, Number: uint64(number + 1)}
		if got, ok, err := e.Life(); !ok || err != nil || got != want {
			t.Fatalf("after a crash the life is %+v, %v, %v; want %+v", got, ok, err, want)
		}
		last = life
	}
	if err := e.Local(storage.SpaceStore).Set([]byte("life"), make([]byte, 23)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Life(); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a life of 23 bytes reads %v, want corrupt", err)
	}
	closeEngine(t, e)
}

// reopen loses power and opens the engine again.
func reopen(t *testing.T, e *storage.Engine, fs *vfs.MemFS, rng *rand.Rand) (*storage.Engine, *vfs.MemFS) {
	t.Helper()
	after := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	closeEngine(t, e)
	return openEngine(t, after, disks(2)), after
}
