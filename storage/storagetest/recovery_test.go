package storagetest_test

import (
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestRecoveryInterrupted damages a log, ends the recovery at each of its operations, loses power,
// and opens the store again. The store must be short and say why. It must serve a prefix of the
// records, and never later ones without those before the damage.
func TestRecoveryInterrupted(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 7))
	w.OwnLog = false // TestOwnLogReplaced is for the other kind
	w.Start()
	logs := build(w)
	w.Cut(100)
	live := liveLog(w.Files())
	w.Damage(live, func(b []byte) []byte {
		b[len(b)/2] ^= 4
		return b
	})
	bad := w.Mem
	failOpens(w, 300, 5, storage.Config{DiskFree: plenty}, func(n int64, _ error) {
		w.Mem = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.Rand.IntN(101), RNG: w.Rand})
		o := serves(w, logs)
		if o.err != nil || !o.short || !o.named(live) {
			t.Fatalf("after operation %d failed: %v, short %v, %v", n, o.err, o.short, o.damages)
		}
	})
	w.Mem = bad
}

// TestSetAside damages a log and a manifest. The damaged files must be kept, byte for byte, in the
// folder that the damage names.
func TestSetAside(t *testing.T) {
	for _, kindOf := range []string{".log", "MANIFEST"} {
		t.Run(kindOf, func(t *testing.T) {
			w := storagetest.NewWorld(t, storagetest.Seed(t, 8))
			w.OwnLog = false
			w.Start()
			build(w)
			w.Cut(100)
			var file string
			for _, f := range w.Files() {
				if kind(f) == kindOf {
					file = max(file, f)
				}
			}
			var want []byte
			w.Damage(file, func(b []byte) []byte {
				b[len(b)/3] ^= 1
				want = append(want, b...)
				return b
			})
			w.Start()
			ds := w.Store.Damage()
			if len(ds) != 1 || !w.Store.Short() || ds[0].Store != storagetest.Dir || !strings.HasPrefix(ds[0].SetAside, storagetest.Dir+"/damaged-") {
				t.Fatalf("damage is %+v, short %v", ds, w.Store.Short())
			}
			at := ds[0].SetAside
			if kindOf == "MANIFEST" { // the whole database was moved
				at = path.Join(at, path.Base(file))
			} else if ds[0].Offset < 0 || ds[0].Offset > int64(len(want)/3) || ds[0].Offset < int64(len(want)/3)-32<<10 {
				t.Errorf("damage at %d is reported at %d", len(want)/3, ds[0].Offset)
			}
			if got, err := storagetest.ReadFile(w.Mem, at); err != nil || string(got) != string(want) {
				t.Errorf("%s holds %d bytes, want the %d of the damaged file: %v", at, len(got), len(want), err)
			}
			l := w.Create(storagetest.R) // the store accepts writes
			w.Append(l, storagetest.Put("a", "1"))
			w.Crash(0)
			if err := l.Check(w.Store); err != nil {
				t.Error(err)
			}
		})
	}
}
