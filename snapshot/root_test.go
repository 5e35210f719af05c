package snapshot

import (
	"path/filepath"
	"testing"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Readers and recovery know by an odd table_seq that entries may be torn: it is odd from before the first store until after the
// last one, also when a publisher that died left it odd.
func TestChange(t *testing.T) {
	file, err := createMapping(filepath.Join(t.TempDir(), format.RootName), format.RootSize, 0o600, false)
	if err != nil {
		t.Fatal(err)
	}
	defer file.close()
	r := root{file: file}
	for _, c := range []struct{ before, within, after uint64 }{{0, 1, 2}, {2, 3, 4}, {5, 5, 6}} {
		file.store64(format.RootTableSeq, c.before)
		r.change(func() {
			if seq := file.load64(format.RootTableSeq); seq != c.within || !r.changing() {
				t.Errorf("table_seq was %d and is %d during a change, want %d", c.before, seq, c.within)
			}
		})
		if seq := file.load64(format.RootTableSeq); seq != c.after || r.changing() {
			t.Errorf("table_seq was %d and is %d after a change, want %d", c.before, seq, c.after)
		}
	}
}
