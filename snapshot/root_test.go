package snapshot

import (
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// An odd table_seq tells readers and recovery that entries may be torn. The word is odd from before the first store until after
// the last one, even if a publisher that died left it odd.
func TestChangeTables(t *testing.T) {
	file, err := shm.Create(filepath.Join(t.TempDir(), format.RootName), format.RootSize, 0o600, false)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := root{file: file}
	for _, c := range []struct{ before, within, after uint64 }{{0, 1, 2}, {2, 3, 4}, {5, 5, 6}} {
		file.Store64(format.RootTableSeq, c.before)
		r.changeTables(func() {
			if seq := file.Load64(format.RootTableSeq); seq != c.within || !r.isChanging() {
				t.Errorf("table_seq was %d and is %d during a change, want %d", c.before, seq, c.within)
			}
		})
		if seq := file.Load64(format.RootTableSeq); seq != c.after || r.isChanging() {
			t.Errorf("table_seq was %d and is %d after a change, want %d", c.before, seq, c.after)
		}
	}
}
