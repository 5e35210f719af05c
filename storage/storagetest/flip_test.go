package storagetest_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// TestFlipsAfterCrash flips single bits anywhere in the logs, tables and manifests of stores that
// crashed in the middle of writes: values of 8 KiB, several commits per sync, logs that were
// rotated and reused, and any part of the unsynced bytes kept. Either the flip is on record, or
// every acknowledged entry exists.
func TestFlipsAfterCrash(t *testing.T) {
	seeds, flips := 12, 25
	if testing.Short() {
		seeds = 2
	}
	seed := storagetest.Seed(t, 1)
	inLogs, seen, torn := 0, 0, 0
	for i := range seeds {
		w := storagetest.NewWorld(t, seed+int64(i))
		w.OwnLog = false // TestFlipsInOwnLog is for the other kind
		w.Config = func(c *storage.Config) { c.MemTableBytes = 256 << 10 }
		w.Start()
		logs, acked := fill(w)
		w.Cut([]int{0, 30, 70, 100}[w.Rand.IntN(4)])
		good := w.Mem
		// Without a flip everything acknowledged must exist, and no interrupted write may be taken
		// for damage.
		if o := servesAcked(w, logs, acked); o.err != nil || o.short || len(o.damages) > 0 {
			t.Fatalf("seed %d, without a flip: %v, short %v, %v", i, o.err, o.short, o.damages)
		}
		for range flips {
			w.Mem = clone(good)
			file := pick(t, w)
			at := w.Rand.IntN(fileSize(t, w.Mem, file))
			bit := w.Rand.IntN(8)
			w.Damage(file, func(b []byte) []byte {
				b[at] ^= 1 << bit
				return b
			})
			o := servesAcked(w, logs, acked)
			if o.err != nil {
				t.Fatalf("seed %d, bit %d of byte %d of %s: %v", i, bit, at, file, o.err)
			}
			if kind(file) == ".log" {
				inLogs++
				if o.named(file) {
					seen++
				} else {
					torn++
				}
			}
		}
		w.Mem = good
	}
	t.Logf("%d flips in logs: %d on record, %d in bytes that hold nothing acknowledged", inLogs, seen, torn)
	if seen < inLogs/2 {
		t.Errorf("only %d of %d flips in logs hit synced bytes: the test shows little", seen, inLogs)
	}
}

// fill writes until several logs were rotated, and ends with writes that are not acknowledged. It
// returns the ranges and how many entries of each were acknowledged.
func fill(w *storagetest.World) (logs []*storagetest.Log, acked []rhumb.Seq) {
	for slot := range rhumb.Slot(3) {
		logs = append(logs, w.Create(rhumb.RangeID{Region: 1, Slot: slot}))
	}
	acked = make([]rhumb.Seq, len(logs))
	for round := range 12 + w.Rand.IntN(20) {
		var waiting []*storage.Batch
		for range 1 + w.Rand.IntN(3) {
			b := w.Store.NewBatch()
			for _, l := range logs {
				b.Append(l.ID, l.Add(1, 1, storagetest.Put(fmt.Sprint("key", round%10), value(w.Rand, 8<<10))), storage.Commit{})
			}
			if err := b.Apply(); err != nil {
				w.Fatal(err)
			}
			waiting = append(waiting, b)
		}
		for _, b := range waiting {
			if err := b.Sync(); err != nil {
				w.Fatal(err)
			}
		}
		for i, l := range logs {
			acked[i] = rhumb.Seq(len(l.Entries))
		}
	}
	for i := range w.Rand.IntN(5) { // writes that nobody syncs
		b := w.Store.Local(9).NewBatch()
		b.Set([]byte{byte(i)}, []byte(value(w.Rand, 32<<10)))
		if err := b.Commit(false); err != nil {
			w.Fatal(err)
		}
	}
	return logs, acked
}

func value(r *rand.Rand, n int) string {
	b := make([]byte, r.IntN(2*n))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// pick chooses a file to damage, two times out of three a log.
func pick(t *testing.T, w *storagetest.World) string {
	var logs, others []string
	for _, f := range w.Files() {
		switch k := kind(f); {
		case fileSize(t, w.Mem, f) == 0:
		case k == ".log":
			logs = append(logs, f)
		case k == ".sst" || k == "MANIFEST":
			others = append(others, f)
		}
	}
	if w.Rand.IntN(3) > 0 || len(others) == 0 {
		return logs[w.Rand.IntN(len(logs))]
	}
	return others[w.Rand.IntN(len(others))]
}

// servesAcked opens a store and checks that each range holds a prefix of its log, and everything
// acknowledged unless the store is short or damage touches the range.
func servesAcked(w *storagetest.World, logs []*storagetest.Log, acked []rhumb.Seq) (o outcome) {
	if o.err = w.Open(); o.err != nil {
		return o
	}
	defer func() {
		o.damages = w.Store.Damage()
		_ = w.Store.Close()
		w.Store = nil
	}()
	o.short = w.Store.Short()
	for i, l := range logs {
		if o.err = servesRange(w.Store, l, true); o.err != nil {
			if rhumb.KindOf(o.err) == rhumb.Corrupt {
				o.err = nil // a read met the damage, and nothing was served
			}
			return o
		}
		st, _ := w.Store.State(l.ID)
		if st.Last.Seq < acked[i] && !o.short && !w.Store.RangeDamaged(l.ID) {
			o.err = fmt.Errorf("range %s ends at %d, but %d entries were acknowledged, and no damage is on record", l.ID, st.Last.Seq, acked[i])
			return o
		}
	}
	return o
}

// TestFlipsInManifest flips a bit of each byte of the manifest of a store that crashed right after
// a flush. The log of the flushed data may be gone, so only the manifest names the tables. Every
// flip must be on record.
func TestFlipsInManifest(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 3)).Start()
	logs, acked := fill(w)
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Cut(0) // at this moment no background work after the flush has run
	good := w.Mem
	manifest := ""
	for _, f := range w.Files() {
		if kind(f) == "MANIFEST" && f > manifest {
			manifest = f
		}
	}
	step := 1
	if testing.Short() {
		step = 16
	}
	named, flips := 0, 0
	for at := 0; at < fileSize(t, good, manifest); at += step {
		w.Mem = clone(good)
		w.Damage(manifest, func(b []byte) []byte {
			b[at] ^= 1 << (at % 8)
			return b
		})
		o := servesAcked(w, logs, acked)
		if o.err != nil {
			t.Fatalf("byte %d of %s: %v", at, manifest, o.err)
		}
		flips++
		if o.short {
			named++
		}
	}
	w.Mem = good
	t.Logf("%d of %d flips are on record", named, flips)
	if named != flips {
		t.Errorf("%d of %d flips are on record: the rest may hide a table of another store", named, flips)
	}
}
