package segment

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/rtree"
)

// What Build writes has every record once, under its key and in every structure, and passes the checks of a start.
func TestBuild(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		for _, n := range []int{0, 1, 2, 15, 100, 3000} {
			w := newWorld(t, k.kind, k.flags)
			recs := w.recordsOf(n)
			seg := w.build(recs)
			want := map[string]string{}
			for _, rec := range recs {
				want[keyOf(rec.Key)] = string(rec.Value)
			}
			if got := valuesAt(seg, 10); !maps.Equal(got, want) || seg.Live() != int64(n) {
				t.Fatalf("kind %+v: %d of %d records are visible, %d counted", k, len(got), n, seg.Live())
			}
			for _, rec := range recs {
				checkStored(t, w, seg, rec)
			}
			again, err := w.reopen(seg)
			w.must(err)
			if again.Base.Dead != 0 || again.Base.Expires != noExpiry || again.Live() != int64(n) || !again.Reshaped() {
				t.Fatalf("kind %+v: opened with %+v and %d records", k, again.Base, again.Live())
			}
			if w.shard.Table.Ordered() && !slices.IsSortedFunc(seg.Order(), seg.Heap.Compare) || seg.IsOrdered() != w.shard.Table.Ordered() {
				t.Fatalf("kind %+v: the order is not sorted", k)
			}
			checkLeaves(t, w, seg, recs)
		}
	}
}

// checkStored looks a record up by its key and compares all of it.
func checkStored(t *testing.T, w *world, seg *Segment, rec Record) {
	t.Helper()
	probe := w.source([]Record{rec})
	ref, ok := seg.NewestOf(EncodingOf(&testRoot, seg.Heap.Kind, &rec, 0).Hash, probe.Heap, 0)
	if !ok {
		t.Fatalf("key %s is not in the index", keyOf(rec.Key))
	}
	got := seg.Heap.Decode(ref)
	if keyOf(got.Key) != keyOf(rec.Key) || got.HLC != rec.HLC || got.Expiry != rec.Expiry || got.Box != rec.Box || got.HasBox != rec.HasBox || !bytes.Equal(got.Value, rec.Value) {
		t.Fatalf("stored %+v, want %+v", got, rec)
	}
	if w.shard.Table.Summed() != (seg.Heap.At(ref).Sum == format.RecordChecksum(seg.Heap.bytesOf(ref))) {
		t.Fatalf("the checksum of key %s is %#x", keyOf(rec.Key), seg.Heap.At(ref).Sum)
	}
}

// checkLeaves compares the leaves of the R-tree with the boxes of the records.
func checkLeaves(t *testing.T, w *world, seg *Segment, recs []Record) {
	t.Helper()
	if !seg.IsSpatial() {
		return
	}
	tree, err := seg.Tree()
	w.must(err)
	boxes := 0
	for _, rec := range recs {
		if rec.HasBox {
			boxes++
		}
	}
	for leaf := range uint32(tree.Items()) {
		box, ref := tree.Leaf(leaf)
		if stored, ok := seg.Heap.Box(ref); !ok || stored != box || seg.TreeRefs()[leaf] != ref {
			t.Fatalf("leaf %d has %v, its record %v", leaf, box, stored)
		}
	}
	if tree.Items() != boxes || len(seg.TreeRefs()) > tree.Items() && seg.TreeRefs()[tree.Items()] != rtree.NoRef {
		t.Fatalf("%d leaves for %d boxes", tree.Items(), boxes)
	}
}

func TestBuildRefusesTwice(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		w := newWorld(t, k.kind, k.flags)
		recs := append(w.recordsOf(100), w.recordOf(42))
		if _, err := w.builder.Build(Goal{Shard: w.shard}, w.source(recs)); rhumb.KindOf(err) != rhumb.InvalidArgument || w.files.removed != w.files.taken {
			t.Errorf("kind %+v: %v; %d of %d files were removed", k, err, w.files.removed, w.files.taken)
		}
	}
}

// A box across the antimeridian has two leaves, both of its record.
func TestBuildCrossing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, format.KeyUint64, format.TableSpatial)
	recs := w.recordsOf(40)
	recs[7].Box, recs[7].HasBox = format.Box{MinX: format.LonUnitsMax - 5, MaxX: 5 - format.LonUnitsMax, MaxY: 5}, true
	seg := w.build(recs)
	tree, err := seg.Tree()
	w.must(err)
	leaves := map[uint32]int{}
	for _, ref := range seg.TreeRefs()[:tree.Items()] {
		leaves[ref]++
	}
	two := 0
	for ref, n := range leaves {
		if box, _ := seg.Heap.Box(ref); (n == 2) != box.Crosses() {
			t.Errorf("box %v has %d leaves", box, n)
		}
		two += n - 1
	}
	if two != 1 || !seg.Base.Split {
		t.Errorf("%d records have two leaves; split: %t", two, seg.Base.Split)
	}
}

// Random versions of random keys, of which some commits are discarded, show what a map of versions shows. The index, the skip
// list and the delta then pass the checks of a start.
func TestLinkAgainstMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		k := kinds[seed%4]
		w := newWorld(t, k.kind, k.flags)
		rng := rand.New(rand.NewPCG(seed, 2))
		w.builder.AppendRatio = 4
		seg := w.build(w.recordsOf(200))
		committed, want := uint64(10), valuesAt(seg, 10)
		history := map[uint64]map[string]string{committed: maps.Clone(want)}
		for round := range 25 {
			next := maps.Clone(want)
			for range rng.IntN(30) {
				i := rng.IntN(400)
				rec := w.recordOf(i)
				if rng.IntN(5) == 0 {
					rec = Record{Key: rec.Key}
					w.append(seg, rec, format.FlagTombstone, committed+1)
					delete(next, keyOf(rec.Key))
					continue
				}
				rec.Value = fmt.Appendf(nil, "round %d", round)
				rec.Box.MaxX += int32(rng.IntN(2))
				w.append(seg, rec, 0, committed+1)
				next[keyOf(rec.Key)] = string(rec.Value)
			}
			if rng.IntN(4) == 0 {
				seg.AbortCommit()
			} else {
				seg.SettleCommit()
				committed++
				want = next
				history[committed] = maps.Clone(want)
			}
		}
		for version, want := range history {
			if got := valuesAt(seg, version); !maps.Equal(got, want) {
				t.Fatalf("seed %d: version %d shows %d keys, want %d", seed, version, len(got), len(want))
			}
		}
		again, err := w.reopen(seg)
		w.must(err)
		if again.Live() != int64(len(want)) || seg.Live() != again.Live() || again.Tail() != seg.Done() || again.OverflowBuckets() != seg.OverflowBuckets() {
			t.Fatalf("seed %d: opened with %d keys, want %d; done %d, tail %d", seed, again.Live(), len(want), seg.Done(), again.Tail())
		}
	}
}

// A publisher that dies leaves complete records of the next version. They are aborted before the version number is used again;
// those of a committed version, whose end was not stored yet, stay.
func TestAbortUnfinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, format.KeyUint64, format.TableOrdered)
	seg := w.build(w.recordsOf(20))
	change := w.recordOf(3)
	change.Value = []byte("committed")
	w.append(seg, change, 0, 11)
	change = w.recordOf(4)
	change.Value = []byte("unfinished")
	w.append(seg, change, 0, 12)
	w.append(seg, w.recordOf(30), 0, 12)
	seg.Publish()
	again, err := w.reopen(seg)
	w.must(err)
	if n := again.AbortUnfinished(11); n != 2 || again.Live() != 20 || again.Done() != again.Tail() {
		t.Errorf("%d records aborted, %d live, done %d, tail %d", n, again.Live(), again.Done(), again.Tail())
	}
	got := valuesAt(again, 12)
	if got[keyOf(w.recordOf(3).Key)] != "committed" || got[keyOf(w.recordOf(4).Key)] != string(w.recordOf(4).Value) || len(got) != 20 {
		t.Errorf("version 12 shows %d records, %q and %q", len(got), got[keyOf(w.recordOf(3).Key)], got[keyOf(w.recordOf(4).Key)])
	}
	if n := again.AbortUnfinished(11); n != 0 {
		t.Errorf("%d records aborted a second time", n)
	}
}

// The segment promises that versions kept their shape until one does not.
func TestReshaped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(rec *Record) (flags uint16)
		want   bool
	}{
		{"same length", func(rec *Record) uint16 { rec.Value[0] = 'x'; return 0 }, false},
		{"as many units", func(rec *Record) uint16 { rec.Value = rec.Value[1:]; return 0 }, false},
		{"another box", func(rec *Record) uint16 { rec.Box.MaxX++; return 0 }, false},
		{"more units", func(rec *Record) uint16 { rec.Value = make([]byte, 100); return 0 }, true},
		{"no box", func(rec *Record) uint16 { rec.HasBox = false; return 0 }, true},
		{"deleted", func(rec *Record) uint16 { *rec = Record{Key: rec.Key}; return format.FlagTombstone }, true},
	} {
		w := newWorld(t, format.KeyUint64, format.TableSpatial)
		rec := Record{Key: format.Key{Number: 1}, HasBox: true, Value: make([]byte, 10)}
		seg := w.build([]Record{rec})
		w.append(seg, Record{Key: format.Key{Number: 2}, Value: make([]byte, 300)}, 0, 11) // a new key follows no version
		w.append(seg, rec, c.change(&rec), 11)
		if seg.Reshaped() != c.want {
			t.Errorf("%s: reshaped is %t, want %t", c.name, seg.Reshaped(), c.want)
		}
	}
}

// Whatever bit of a small file changes, Open returns an error or a segment whose reading leads nowhere outside.
func TestOpenDamaged(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		w := newWorld(t, k.kind, k.flags)
		seg := w.build(w.recordsOf(30))
		for i := range 30 {
			rec := w.recordOf(i + 20)
			rec.Box.MaxX++
			w.append(seg, rec, 0, 11)
		}
		seg.SettleCommit()
		found, bits := 0, 0
		rng := rand.New(rand.NewPCG(uint64(k.flags), 3))
		for range 4000 {
			at, bit := rng.IntN(len(seg.File.Mem)), byte(1)<<rng.IntN(8)
			if rng.IntN(2) == 0 {
				at %= format.SegmentHeader
			}
			seg.File.Mem[at] ^= bit
			bits++
			if again, err := w.reopen(seg); err != nil {
				found++
				if kind := rhumb.KindOf(err); kind != rhumb.Corrupt && kind != rhumb.Incompatible {
					t.Fatalf("kind %+v, byte %d: %v", k, at, err)
				}
			} else {
				valuesAt(again, 11)
			}
			seg.File.Mem[at] ^= bit
		}
		if found < bits/10 {
			t.Errorf("kind %+v: %d of %d changed bits were found", k, found, bits)
		}
	}
}

// FuzzOpen feeds Open with files of any content.
func FuzzOpen(f *testing.F) {
	w := newWorld(f, format.KeyName, format.TableOrdered|format.TableSpatial)
	seg := w.build(w.recordsOf(20))
	f.Add(uint16(0), []byte{1})
	f.Add(uint16(4160), []byte{255, 255})
	whole := bytes.Clone(seg.File.Mem)
	f.Fuzz(func(t *testing.T, at uint16, p []byte) {
		copy(seg.File.Mem, whole)
		copy(seg.File.Mem[int(at)%len(whole):], p)
		if again, err := w.reopen(seg); err == nil {
			valuesAt(again, 10)
		} else if kind := rhumb.KindOf(err); kind != rhumb.Corrupt && kind != rhumb.Incompatible {
			t.Fatal(err)
		}
	})
}
