package storagetest_test

import (
	"fmt"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestKeepDiscarded sets copies aside until they exceed the bound: the oldest must be removed, and
// a copy that alone exceeds the bound must be rejected.
func TestKeepDiscarded(t *testing.T) {
	total := uint64(4 << 20) // a twentieth of it is kept
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.DiskFree = func(string) (uint64, uint64, error) { return total / 2, total, nil }
		c.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions = true }
	}
	w.Start()
	var dirs []string
	kept := func(dir string) bool {
		names, err := w.Mem.List(dir)
		return err == nil && len(names) == 1
	}
	for slot := range rhumb.Slot(4) {
		l := w.Create(rhumb.RangeID{Region: 1, Slot: slot})
		w.Append(l, storagetest.Put(fmt.Sprint("key", slot), fmt.Sprintf("%0*d", 1, slot)+noise(w, 60<<10)))
		dir, err := w.Store.KeepDiscarded(l.ID)
		if err != nil || !kept(dir) {
			t.Fatalf("slot %d is kept in %q: %v", slot, dir, err)
		}
		dirs = append(dirs, dir)
	}
	if kept(dirs[0]) || !kept(dirs[2]) || !kept(dirs[3]) {
		t.Errorf("of four copies these are kept: %v %v %v %v", kept(dirs[0]), kept(dirs[1]), kept(dirs[2]), kept(dirs[3]))
	}
	total = 1 << 20
	if _, err := w.Store.KeepDiscarded(rhumb.RangeID{Region: 1, Slot: 3}); rhumb.KindOf(err) != rhumb.TooLarge || !kept(dirs[3]) {
		t.Errorf("a copy that is too large: %v", err)
	}
}

// noise returns bytes that cannot be compressed.
func noise(w *storagetest.World, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(w.Rand.Uint32())
	}
	return string(b)
}
