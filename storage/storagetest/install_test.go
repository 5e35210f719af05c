package storagetest_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// donate builds a range whose log is trimmed and collected, with results of requests, deletions, an
// epoch start and uncommitted entries, and returns its model.
func donate(w *storagetest.World, values int) *storagetest.Log {
	l := w.Create(storagetest.R)
	other := w.Create(rhumb.RangeID{Region: 1, Slot: 8})
	w.Append(other, storagetest.Put("neighbour", "of the donor"))
	client := rhumb.UUID{1}
	for i := range 60 {
		p := storagetest.Put(fmt.Sprintf("key%02d", i%17), fmt.Sprint(i)+noise(w, values))
		p.ID = rhumb.RequestID{Client: client, Seq: uint64(i + 1)}
		w.Append(l, p)
		if i%9 == 8 {
			w.Append(l, storagetest.Del(fmt.Sprintf("key%02d", i%17)))
		}
		if i == 40 {
			l.Commit = rhumb.Seq(len(l.Entries))
			l.Trim = l.Commit - 5
			w.Batch(func(b *storage.Batch) {
				b.SetCommit(l.ID, l.CommitPos())
				b.Trim(l.ID, l.Trim)
			})
			w.Collect(l, storage.CollectLimits{Before: storage.Newest})
		}
	}
	l.Commit = rhumb.Seq(len(l.Entries)) - 3
	l.Promised = 3
	w.Batch(func(b *storage.Batch) {
		b.SetCommit(l.ID, l.CommitPos())
		b.SetPromised(l.ID, 3)
		b.Append(l.ID, l.Add(3, 2), l.CommitPos())
		b.Append(l.ID, l.Add(3, 2, storagetest.Put("tail", "uncommitted")), l.CommitPos())
	})
	return l
}

// export makes a set of a range.
func export(t *testing.T, w *storagetest.World, id rhumb.RangeID) *storage.Export {
	t.Helper()
	e, err := w.Store.Export(context.Background(), id, storage.ExportOptions{Donor: 1, Life: 4, Number: 9})
	if err != nil {
		t.Fatalf("export: %v", err)
	}
	return e
}

// receive sends the chunks from the first one that is missing. It returns how many it sent.
func receive(e *storage.Export, in *storage.Install) (sent int, err error) {
	for c := in.Next(); c < e.Chunks(); c++ {
		b, err := e.Chunk(c)
		if err == nil {
			err = in.Add(c, b)
		}
		if err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// install does all steps of the receiver.
func install(w *storagetest.World, e *storage.Export, promised rhumb.Epoch) error {
	// The description crosses the network.
	set, err := storage.DecodeSet(e.Encode())
	if err != nil {
		return err
	}
	in, err := w.Store.BeginInstall(set)
	if err != nil {
		return err
	}
	if _, err := receive(e, in); err != nil {
		return err
	}
	if err := in.Verify(); err != nil {
		return err
	}
	_, err = in.Finish(promised, 0)
	return err
}

// receiver returns a store with an old copy of the range, which holds other keys than the donor, and
// with a neighbour on each side.
func receiver(t *testing.T, seed int64) (w *storagetest.World, old *storagetest.Log, others []*storagetest.Log) {
	w = storagetest.NewWorld(t, seed)
	w.Dropped(storagetest.R) // the excision is a drop
	w.Start()
	for _, slot := range []rhumb.Slot{6, 8} {
		l := w.Create(rhumb.RangeID{Region: 1, Slot: slot})
		w.Append(l, storagetest.Put("neighbour", fmt.Sprint(slot)))
		others = append(others, l)
	}
	old = w.Create(storagetest.R)
	old.Promised = 5
	w.Batch(func(b *storage.Batch) { b.SetPromised(old.ID, 5) })
	w.Append(old, storagetest.Put("key01", "old"), storagetest.Put("gone", "old"), storagetest.Del("gone"), storagetest.Put("only here", "old"))
	return w, old, others
}

// TestInstall sends a range to another store, which then must give every answer of the donor, also
// after a crash, and continue the log: undo the uncommitted entries and append others.
func TestInstall(t *testing.T) {
	seed := storagetest.Seed(t, 1)
	donor := storagetest.NewWorld(t, seed).Start()
	l := donate(donor, 100)
	e := export(t, donor, l.ID)
	if e.Commit != l.Commit || e.Promised != 3 || e.ID.Last.Seq != rhumb.Seq(len(l.Entries)) {
		t.Errorf("the set is %s, committed up to %d with promise %d", e.ID, e.Commit, e.Promised)
	}
	for _, flush := range []bool{false, true} {
		w, _, others := receiver(t, seed)
		if flush {
			if err := w.Store.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if err := install(w, e, 5); err != nil {
			t.Fatalf("install: %v", err)
		}
		model := l.Clone()
		model.Promised = 5 // what the receiver had promised is more than what the donor had
		check := func(when string) {
			t.Helper()
			for _, m := range append(others, model) {
				if err := m.Check(w.Store); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
		}
		check("installed")
		w.Crash(0)
		check("crashed")
		if w.Store.Installing(l.ID) != nil {
			t.Error("the mark is still there")
		}
		// The uncommitted tail came with its records, so it can be undone.
		w.Batch(func(b *storage.Batch) {
			if err := b.Undo(l.ID, model.Commit); err != nil {
				t.Fatal(err)
			}
			model.Undo(model.Commit)
			b.Append(l.ID, model.Add(6, 3), model.CommitPos())
			b.Append(l.ID, model.Add(6, 3, storagetest.Put("after", "the install")), model.CommitPos())
		})
		check("continued")
		model.Commit = rhumb.Seq(len(model.Entries))
		model.Trim = model.Commit
		w.Batch(func(b *storage.Batch) { b.SetCommit(l.ID, model.CommitPos()); b.Trim(l.ID, model.Trim) })
		w.Collect(model, storage.CollectLimits{Before: storage.Newest})
		check("collected")
		want, _ := donor.Store.Size(l.ID)
		if got, _ := w.Store.Size(l.ID); got.Data <= 0 || want.Data <= 0 {
			t.Errorf("the sizes are %d and %d", got.Data, want.Data)
		}
		w.Verify()
		check("verified")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if names, _ := donor.Mem.List(storagetest.Dir + "/transfer/out"); len(names) > 0 {
		t.Errorf("the donor keeps %v", names)
	}
}

// TestInstallOfNewRange sends a range to a store that never held it.
func TestInstallOfNewRange(t *testing.T) {
	donor := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l := donate(donor, 10)
	e := export(t, donor, l.ID)
	w := storagetest.NewWorld(t, 2).Start()
	if err := install(w, e, 0); err != nil {
		t.Fatal(err)
	}
	w.Crash(50)
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}

// pastMost is how many rounds that are not cut any more end a test of crashes at each write. The engine
// writes in the background too, more in one round than in another.
const pastMost = 6

// TestInstallCrashes cuts the disk of the receiver at each operation of an install in turn. After
// each cut the store holds either the old copy or the whole new one, the install can continue, and
// nothing is left when it ends.
func TestInstallCrashes(t *testing.T) {
	seed := storagetest.Seed(t, 1)
	donor := storagetest.NewWorld(t, seed).Start()
	l := donate(donor, 1000)
	e := export(t, donor, l.ID)
	olds, news, resumed := 0, 0, 0
	past := 0 // rounds that wrote less than was to be cut
	for n := 1; ; n++ {
		for _, percent := range []int{60 * (n % 2)} {
			w, old, others := receiver(t, seed)
			model := l.Clone()
			model.Promised = 5
			var after *vfs.MemFS
			ops := 0
			f := &faulty{fail: func(op errorfs.Op) error {
				if !strings.Contains(op.Path, storagetest.Dir) || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				if ops++; ops == n && after == nil {
					after = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: w.Rand})
				}
				return nil
			}}
			w.Wrap = f.wrap
			w.Restart()
			f.on.Store(true)
			if err := install(w, e, 5); err != nil {
				t.Fatal(err)
			}
			f.on.Store(false)
			w.Stop()
			if after == nil {
				if past++; past < pastMost {
					continue
				}
				t.Logf("%d cuts: %d left the old copy, %d the new one, %d continued with chunks on disk", n-1, olds, news, resumed)
				if olds < 10 || news < 2 || resumed == 0 {
					t.Error("the cuts do not cover all steps")
				}
				return
			}
			w.Mem = after
			w.Start()
			switch errOld, errNew := old.Check(w.Store), model.Check(w.Store); {
			case errNew == nil:
				news++
				if w.Store.Installing(l.ID) != nil {
					t.Fatalf("cut %d: the copy is new, and the start has left the mark", n)
				}
			case errOld == nil:
				olds++
			default:
				t.Fatalf("cut %d: neither the old copy (%v) nor the new one (%v)", n, errOld, errNew)
			}
			if set := w.Store.Installing(l.ID); set != nil {
				in, err := w.Store.BeginInstall(set)
				if err != nil {
					t.Fatal(err)
				}
				if in.Next() > 0 {
					resumed++
				}
				if err := in.Pause(); err != nil {
					t.Fatal(err)
				}
			}
			if err := install(w, e, 5); err != nil {
				t.Fatalf("cut %d: the second attempt: %v", n, err)
			}
			for _, m := range append(others, model) {
				if err := m.Check(w.Store); err != nil {
					t.Fatalf("cut %d: %v", n, err)
				}
			}
			if names, _ := w.Mem.List(storagetest.Dir + "/transfer/in"); len(names) > 0 {
				t.Fatalf("cut %d: %v is left", n, names)
			}
			w.Stop()
		}
	}
}

// TestInstallResumes interrupts a transfer of many chunks in the middle: at most the chunk that was
// being written is sent twice, also after a crash.
func TestInstallResumes(t *testing.T) {
	donor := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l := donate(donor, 200<<10)
	e := export(t, donor, l.ID)
	w := storagetest.NewWorld(t, 2).Start()
	in, err := w.Store.BeginInstall(&e.Set)
	if err != nil {
		t.Fatal(err)
	}
	half := e.Chunks() / 2
	for c := range half {
		b, err := e.Chunk(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Add(c, b); err != nil {
			t.Fatal(err)
		}
		// Repeated and damaged chunks change nothing.
		if err := in.Add(c, b); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Fatalf("a repeated chunk: %v", err)
		}
	}
	b, _ := e.Chunk(half)
	b[len(b)/2] ^= 1
	if err := in.Add(half, b); rhumb.KindOf(err) != rhumb.Corrupt || in.Next() != half {
		t.Fatalf("a damaged chunk: %v", err)
	}
	w.Crash(100) // the process is killed, and the system has the bytes
	again, err := w.Store.BeginInstall(&e.Set)
	if err != nil || again.Next() != half {
		t.Fatalf("after a kill, chunk %d of %d is next, want %d: %v", again.Next(), e.Chunks(), half, err)
	}
	sent, err := receive(e, again)
	if err != nil || sent != e.Chunks()-half {
		t.Fatalf("%d chunks were sent, want %d: %v", sent, e.Chunks()-half, err)
	}
	if err := again.Verify(); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Finish(0, e.Commit+1); rhumb.KindOf(err) != rhumb.Conflict {
		t.Errorf("a set that ends before the present copy: %v", err)
	}
	if _, err := again.Finish(0, e.Commit); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}

// TestInstallRejects guards the checks of a set: damaged files and keys of another range.
func TestInstallRejects(t *testing.T) {
	donor := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l := donate(donor, 100)
	e := export(t, donor, l.ID)
	w := storagetest.NewWorld(t, 2).Start()
	in, err := w.Store.BeginInstall(&e.Set)
	if err == nil {
		_, err = receive(e, in)
	}
	if err == nil {
		err = in.Pause()
	}
	if err != nil {
		t.Fatal(err)
	}
	path := storagetest.Dir + "/transfer/in/1-7/00000.sst"
	w.Damage(path, func(b []byte) []byte { b[len(b)/3] ^= 4; return b })
	if err := in.Verify(); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a file that changed on disk: %v", err)
	}
	if err := in.Abort(); err != nil || w.Store.Installing(l.ID) != nil {
		t.Errorf("abort: %v", err)
	}
	// The tables of a neighbour under the name of the range.
	wrong := export(t, donor, rhumb.RangeID{Region: 1, Slot: 8})
	wrong.ID.Range = l.ID
	if err := install(w, wrong, 0); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "not all of range") {
		t.Errorf("tables of another range: %v", err)
	}
	// A bit of the description.
	enc := e.Encode()
	enc[len(enc)/2] ^= 1
	if _, err := storage.DecodeSet(enc); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a damaged description: %v", err)
	}
}

// TestDamagedDonor damages one block of a table of the donor: the export fails with Corrupt, and the
// store lists the range as damaged.
func TestDamagedDonor(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.CacheBytes = 1 << 10
		c.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions = true }
	}
	l := donate(w.Start(), 100)
	if err := w.Store.Flush(); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	for _, path := range w.Files() {
		if strings.HasSuffix(path, ".sst") {
			// The third block from the start holds data, and no state.
			w.Damage(path, func(b []byte) []byte {
				at := bytes.Index(b, []byte("key05"))
				if at < 0 {
					at = len(b) / 4
				}
				b[at] ^= 1
				return b
			})
		}
	}
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Store.Export(context.Background(), l.ID, storage.ExportOptions{Donor: 1}); err == nil {
		t.Error("a damaged copy was exported")
	}
	if names, _ := w.Mem.List(storagetest.Dir + "/transfer/out"); len(names) > 0 {
		t.Errorf("files of the failed export are left: %v", names)
	}
}

// TestExportWhileWritten exports while the range is written and collected: the set is one moment.
func TestExportWhileWritten(t *testing.T) {
	donor := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l := donate(donor, 20<<10)
	model := l.Clone()
	e, err := donor.Store.Export(context.Background(), l.ID, storage.ExportOptions{Donor: 1, Number: 1, Pace: func(context.Context, int) error {
		donor.Batch(func(b *storage.Batch) {
			e := l.Add(3, 1, entry.Request{Writes: []entry.Write{storagetest.Write("key01", "during")}})
			b.Append(l.ID, e, l.CommitPos())
		})
		l.Commit = rhumb.Seq(len(l.Entries))
		l.Trim = l.Commit - 1
		donor.Batch(func(b *storage.Batch) { b.SetCommit(l.ID, l.CommitPos()); b.Trim(l.ID, l.Trim) })
		donor.Collect(l, storage.CollectLimits{Before: storage.Newest})
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Entries) == len(model.Entries) {
		t.Fatal("nothing was written during the export")
	}
	w := storagetest.NewWorld(t, 2).Start()
	if err := install(w, e, 0); err != nil {
		t.Fatal(err)
	}
	if err := model.Check(w.Store); err != nil {
		t.Error(err)
	}
}
