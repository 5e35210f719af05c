package storagetest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

// faulty is a disk whose operations fail while on is set.
type faulty struct {
	on   atomic.Bool
	hits atomic.Int64
	fail func(op errorfs.Op) error
}

// wrap returns the file system with the faults of f, which may be changed while a store uses it.
func (f *faulty) wrap(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !f.on.Load() {
			return nil
		}
		err := f.fail(op)
		if err != nil {
			f.hits.Add(1)
		}
		return err
	}))
}

func is(op errorfs.Op, suffix string, kinds ...errorfs.OpKind) bool {
	for _, k := range kinds {
		if op.Kind == k && strings.HasSuffix(op.Path, suffix) {
			return true
		}
	}
	return false
}

// TestReadError guards that a failed read of the disk fails the read with a kind that does not mean
// damage, and that the store recovers with the disk.
func TestReadError(t *testing.T) {
	f := &faulty{fail: func(op errorfs.Op) error {
		if is(op, ".sst", errorfs.OpFileReadAt, errorfs.OpFileRead, errorfs.OpOpen) {
			return syscall.EIO
		}
		return nil
	}}
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Wrap = f.wrap
	w.Config = func(c *storage.Config) {
		c.CacheBytes = 1 << 10
		c.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions = true }
	}
	logs := build(w.Start())
	w.Restart() // nothing is cached
	f.on.Store(true)
	_, err := w.Store.Entries(logs[0].ID, 1, 60, 0)
	if rhumb.KindOf(err) != rhumb.Unavailable || !errors.Is(err, syscall.EIO) {
		t.Errorf("a failed read returns %v, want unavailable with its cause", err)
	}
	f.on.Store(false)
	if err := logs[0].Check(w.Store); err != nil {
		t.Errorf("after the disk recovered: %v", err)
	}
	if f.hits.Load() == 0 {
		t.Error("no read failed: the test shows nothing")
	}
}

// TestReadFaults guards that reads which the disk refuses on purpose reach the caller and are counted, that a start whose reads fail is refused as
// unavailable, and that neither leaves a trace: errors of reads are no damage.
func TestReadFaults(t *testing.T) {
	faults := &storage.ReadFaults{}
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) { c.ReadFaults = faults }
	logs := build(w.Start())
	w.Restart()
	faults.SetShare(1)
	if _, err := w.Store.Entries(logs[0].ID, 1, 60, 0); rhumb.KindOf(err) != rhumb.Unavailable || !errors.Is(err, syscall.EIO) {
		t.Errorf("a refused read returns %v, want unavailable with its cause", err)
	}
	if n := metricOf(t, w.Store, "rhumb_storage_read_errors_total"); n == 0 {
		t.Error("the refused read is not counted")
	}
	faults.SetShare(0)
	w.Stop()
	faults.SetShare(1)
	if err := w.Open(); rhumb.KindOf(err) != rhumb.Unavailable || !errors.Is(err, syscall.EIO) {
		t.Fatalf("a start whose reads are refused returns %v, want unavailable with its cause", err)
	}
	faults.SetShare(0)
	w.Start()
	if err := logs[0].Check(w.Store); err != nil {
		t.Errorf("after the disk recovered: %v", err)
	}
	if d := w.Store.Damage(); len(d) > 0 || w.Store.Short() {
		t.Errorf("errors of reads left damage: %v", d)
	}
}

// metricOf returns a counter or a gauge of a store, which has no labels.
func metricOf(t *testing.T, s *storage.Store, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(s.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			// The other one is nil, and has the value 0.
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("the store has no metric %s", name)
	return 0
}

// TestWriteAndSyncErrors guards that a log that cannot be written or synced ends the process,
// because the content of the disk is unknown then. Afterwards every acknowledged write must exist,
// and the other one must exist whole or not at all.
func TestWriteAndSyncErrors(t *testing.T) {
	for name, fail := range map[string]func(op errorfs.Op) error{
		"write: disk full": func(op errorfs.Op) error {
			if is(op, ".log", errorfs.OpFileWrite) || is(op, ".seg", errorfs.OpFileWriteAt) {
				return syscall.ENOSPC
			}
			return nil
		},
		"sync: input/output error": func(op errorfs.Op) error {
			if is(op, ".log", errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo) || is(op, ".seg", errorfs.OpFileSyncData) {
				return syscall.EIO
			}
			return nil
		},
	} {
		eachLog(t, func(t *testing.T, own bool) {
			t.Log(name)
			f := &faulty{fail: fail}
			fatal := make(chan string, 10)
			w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
			w.OwnLog = own
			w.Wrap = f.wrap
			w.Config = func(c *storage.Config) {
				c.FatalHandler = func(msg string) {
					fatal <- msg
					select {} // a real process would end here
				}
			}
			l := w.Start().Create(storagetest.R)
			w.Append(l, storagetest.Put("a", "acknowledged"))
			before := l.Clone()
			f.on.Store(true)
			go func() {
				b := w.Store.NewBatch()
				b.Append(l.ID, l.Add(1, 1, storagetest.Put("a", "not acknowledged")), storage.Commit{})
				if b.Apply() == nil && b.Sync() == nil {
					fatal <- ""
				}
			}()
			select {
			case msg := <-fatal:
				if msg == "" {
					t.Fatal("a commit was acknowledged although the log failed")
				}
			case <-time.After(30 * time.Second):
				t.Fatal("the store neither ended the process nor acknowledged the commit")
			}
			w.Mem = w.Mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: w.Rand})
			w.Wrap, w.Config, w.Store = nil, nil, nil
			w.Start()
			if st, _ := w.Store.State(l.ID); st.Last.Seq == 2 {
				before = l // the batch had reached the disk whole
			}
			if err := before.Check(w.Store); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenErrors fails each operation of the disk in turn while a store opens. Open must return an
// error, and the next Open on a healthy disk must find everything.
func TestOpenErrors(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	logs := build(w)
	w.Stop()
	good := w.Mem
	failed := failOpens(w, 400, 4, storage.Config{DiskFree: plenty}, func(n int64, err error) {
		if k := rhumb.KindOf(err); err != nil && k != rhumb.Unavailable && k != rhumb.Corrupt {
			t.Fatalf("operation %d fails: open returns %v", n, err)
		}
		w.Mem = clone(w.Mem)
		if o := serves(w, logs); o.err != nil || o.short || len(o.damages) > 0 {
			t.Fatalf("after operation %d failed: %+v", n, o)
		}
	})
	t.Logf("%d operations of Open failed in turn", failed)
	w.Mem = good
}

// failOpens opens the content of the disk again and again, up to operation most, and lets one operation of the disk fail each time, at most stride
// after the one before. after gets the number of the operation and the error of the opening. failOpens returns how often the store did not open,
// which must be at least ten times.
func failOpens(w *storagetest.World, most, stride int64, cfg storage.Config, after func(n int64, err error)) (failed int) {
	w.Helper()
	content := w.Mem
	for n := int64(0); n < most; n += 1 + w.Rand.Int64N(stride) {
		w.Mem = clone(content)
		var count atomic.Int64
		f := &faulty{fail: func(op errorfs.Op) error {
			// Pebble panics if it cannot sync the directory that names its manifest.
			panics := is(op, "/data", errorfs.OpFileSync)
			if panics || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpRemove || count.Add(1) != n+1 {
				return nil
			}
			return syscall.EIO
		}}
		f.on.Store(true)
		cfg.Dir, cfg.FS, cfg.MemTableBytes = storagetest.Dir, f.wrap(w.Mem), 1<<20
		// If Pebble's Open fails late, it leaves a compaction running on a file cache that it has
		// closed. So compactions are disabled.
		cfg.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions = true }
		err := openOrEnd(cfg)
		f.on.Store(false)
		if err != nil {
			failed++
		}
		after(n, err)
		if count.Load() <= n {
			break
		}
	}
	if failed < 10 {
		w.Errorf("only %d operations of Open failed", failed)
	}
	return failed
}

func plenty(string) (free, total uint64, err error) { return 50, 100, nil }

// openOrEnd opens and closes a store. If the store ends the process while it opens, openOrEnd
// returns Unavailable.
func openOrEnd(cfg storage.Config) error {
	end := make(chan error, 10)
	cfg.FatalHandler = func(msg string) {
		end <- rhumb.E("storagetest", rhumb.Unavailable, msg)
		select {} // the process ends here
	}
	go func() {
		s, err := storage.Open(cfg)
		if err == nil {
			// Background work of the open store may have met the fault. It continued, or Close reports it.
			if err = s.Close(); err != nil {
				err = rhumb.E("storagetest", rhumb.Unavailable, err.Error())
			}
		}
		end <- err
	}()
	return <-end
}

// TestDiskFull guards that new work is rejected below the threshold, and appends a little below
// that, that reads and collection continue, and that a rejected batch can be applied once there is
// space again.
func TestDiskFull(t *testing.T) {
	var free atomic.Uint64
	free.Store(500)
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.DiskFree = func(string) (uint64, uint64, error) { return free.Load(), 1000, nil }
		c.DiskFreeEvery = -1
	}
	l := w.Start().Create(storagetest.R)
	w.Append(l, storagetest.Put("a", "1"), storagetest.Put("a", "2"), storagetest.Put("a", "3"))
	l.Commit, l.Trim = 3, 3
	if err := w.Store.Writable(); err != nil {
		t.Fatal(err)
	}
	free.Store(49)
	if err := w.Store.Writable(); rhumb.KindOf(err) != rhumb.DiskFull {
		t.Errorf("at 4.9 %% free: %v, want disk_full", err)
	}
	w.Append(l, storagetest.Put("b", "accepted before, so still written"))
	free.Store(39)
	w.Batch(func(b *storage.Batch) { b.Trim(l.ID, 3) }) // positions are accepted, because collection needs them
	b := w.Store.NewBatch()
	b.Append(l.ID, l.Add(1, 1, storagetest.Put("c", "held back")), l.CommitPos())
	if err := b.Apply(); rhumb.KindOf(err) != rhumb.DiskFull {
		t.Fatalf("append at 3.9 %% free: %v, want disk_full", err)
	}
	if f, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: l.ID, Name: []byte("b")}, storage.Newest); err != nil || f.Value == nil {
		t.Errorf("read on a full disk: %+v, %v", f, err)
	}
	if c := w.Collect(l, storage.CollectLimits{Before: storage.Newest}); c.Versions == 0 {
		t.Error("nothing is collected on a full disk")
	}
	free.Store(500)
	if err := errors.Join(b.Apply(), b.Sync()); err != nil {
		t.Fatalf("the batch that was held back: %v", err)
	}
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}

// TestSyncOutstanding blocks a sync. The store must report for how long, so that the node stops
// claiming to be alive.
func TestSyncOutstanding(t *testing.T) { eachLog(t, syncOutstanding) }

func syncOutstanding(t *testing.T, own bool) {
	block, blocked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f := &faulty{fail: func(op errorfs.Op) error {
		if is(op, ".seg", errorfs.OpFileSyncData) || is(op, ".log", errorfs.OpFileSync, errorfs.OpFileSyncData) {
			once.Do(func() { close(blocked) })
			<-block
		}
		return nil
	}}
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Wrap, w.OwnLog = f.wrap, own
	l := w.Start().Create(storagetest.R)
	if d := w.Store.SyncOutstanding(); d != 0 {
		t.Errorf("idle: %v outstanding", d)
	}
	f.on.Store(true)
	b := w.Store.NewBatch()
	b.Append(l.ID, l.Add(1, 1, storagetest.Put("a", "1")), storage.Commit{})
	if err := b.Apply(); err != nil {
		t.Fatal(err)
	}
	if f, err := w.Store.Lookup(rhumb.Key{Table: 1, Home: l.ID, Name: []byte("a")}, storage.Newest); err != nil || f.Value == nil {
		t.Errorf("an applied batch is not visible: %+v, %v", f, err)
	}
	synced := make(chan error, 1)
	go func() { synced <- b.Sync() }()
	<-blocked
	for deadline := time.Now().Add(30 * time.Second); w.Store.SyncOutstanding() < time.Millisecond; {
		if time.Now().After(deadline) {
			t.Fatal("a blocked sync is not reported")
		}
	}
	f.on.Store(false)
	close(block)
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	if err := l.Check(w.Store); err != nil {
		t.Error(err)
	}
}

// TestTwoOwners guards that a directory has one owner, within a process and between processes, and
// that the refusal names it.
func TestTwoOwners(t *testing.T) {
	if dir := os.Getenv("RHUMB_TEST_OWN"); dir != "" {
		_, err := storage.Open(storage.Config{Dir: dir})
		fmt.Printf("kind=%s err=%v\n", rhumb.KindOf(err), err)
		return
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	s, err := storage.Open(storage.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	want := fmt.Sprintf("(pid %d)", os.Getpid())
	for _, path := range []string{dir, filepath.Dir(dir) + "/./b/"} {
		if _, err := storage.Open(storage.Config{Dir: path}); rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("second open of %s in one process: %v, want unavailable %s", path, err, want)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTwoOwners$", "-test.v")
	cmd.Env = append(os.Environ(), "RHUMB_TEST_OWN="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "kind=unavailable") || !strings.Contains(string(out), want) {
		t.Errorf("second process: %v\n%s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := storage.Open(storage.Config{Dir: dir})
	if err != nil {
		t.Fatalf("open after close: %v", err)
	}
	if again.Identity().Boot != 2 || again.Identity().Fresh {
		t.Errorf("identity after the second start is %+v", again.Identity())
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCollectBesideWriter collects and drops a range while a writer runs.
func TestCollectBesideWriter(t *testing.T) {
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1)).Start()
	l := w.Create(storagetest.R)
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := w.Store.Collect(l.ID, storage.CollectLimits{Before: storage.Newest, WritesMax: 7}); err != nil {
				t.Errorf("collect: %v", err)
				return
			}
		}
	})
	for i := range 500 {
		b := w.Store.NewBatch()
		if n := rhumb.Seq(len(l.Entries)); i%5 == 4 && n > l.Commit+1 {
			if err := b.Undo(l.ID, n-1); err != nil {
				t.Fatal(err)
			}
			l.Undo(n - 1)
		}
		b.Append(l.ID, l.Add(rhumb.Epoch(i/5+1), 1, storagetest.Put(fmt.Sprint(i%3), fmt.Sprint(i)), storagetest.Del(fmt.Sprint(i%2))), l.CommitPos())
		if i%2 == 0 {
			l.Commit = rhumb.Seq(len(l.Entries)) - 1
			l.Trim = l.Commit
			b.SetCommit(l.ID, l.CommitPos())
			b.Trim(l.ID, l.Trim)
		}
		if err := b.Apply(); err != nil {
			t.Fatal(err)
		}
		if err := b.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	work.Wait()
	check := func() {
		// The store cuts the lineage at its bound, and the model keeps all of it.
		if st, _ := w.Store.State(l.ID); len(st.Lineage) > storage.LineageMax {
			t.Errorf("%d steps of lineage, at most %d are kept", len(st.Lineage), storage.LineageMax)
		}
		if err := l.Check(w.Store); err != nil {
			t.Error(err)
		}
	}
	check()
	w.Verify()
	check()
	w.Dropped(l.ID)
	work.Go(func() {
		for range 50 {
			if _, err := w.Store.Collect(l.ID, storage.CollectLimits{Before: storage.Newest, WritesMax: 1}); err != nil {
				t.Errorf("collect: %v", err)
			}
		}
	})
	w.Batch(func(b *storage.Batch) { b.DropRange(l.ID) })
	work.Wait()
	w.Verify()
}

// TestProbeReads guards that a store reads nothing to probe its disk until a read was refused, that it notices when the disk refuses no more, and
// that a table which is refused for long counts as damaged, with the ranges whose data is in it, and one that is refused for less does not.
func TestProbeReads(t *testing.T) {
	faults := &storage.ReadFaults{}
	w := storagetest.NewWorld(t, storagetest.Seed(t, 1))
	w.Config = func(c *storage.Config) {
		c.ReadFaults = faults
		c.Options = func(o *storage.PebbleOptions) { o.DisableAutomaticCompactions, o.DisableTableStats = true, true }
	}
	logs := build(w.Start())
	w.Restart()
	now := time.Hour
	probe := func(wide bool) bool { now += time.Second; return w.Store.ProbeReads(now, wide) }
	if probe(false) || probe(true) {
		t.Error("reads are refused, and the disk is well")
	}
	faults.SetShare(1)
	if probe(false) {
		t.Error("a probe reads although no read was refused")
	}
	if !probe(true) {
		t.Error("a wide probe does not notice the disk")
	}
	faults.SetShare(0)
	// The places wait until the first probe. The second one finds nothing to read.
	for range 2 {
		if probe(false) || w.Store.UnreadPlaces() != 0 {
			t.Error("reads are refused after the disk recovered")
		}
	}
	refuse := func() {
		t.Helper()
		if _, err := w.Store.Entries(logs[0].ID, 1, 60, 0); rhumb.KindOf(err) != rhumb.Unavailable {
			t.Errorf("a refused read returns %v", err)
		}
	}
	faults.SetShare(1)
	refuse()
	for range 2 {
		if !probe(false) {
			t.Error("the probe of a refused place does not notice the disk")
		}
	}
	faults.SetShare(0)
	now += storage.UnreadableAfter
	if probe(false) || len(w.Store.Damage()) > 0 {
		t.Error("a disk that recovered after long has damage")
	}
	faults.SetShare(1)
	refuse()
	probe(false)
	now += storage.UnreadableAfter
	probe(false)
	for deadline := time.Now().Add(30 * time.Second); !w.Store.RangeDamaged(logs[0].ID); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the range is not on the list of damaged ones")
		}
	}
	if n := metricOf(t, w.Store, "rhumb_storage_unreadable_total"); n == 0 {
		t.Error("no place counts as unreadable")
	}
	faults.SetShare(0)
	if w.Store.Short() {
		t.Error("the store is short, but it has lost nothing that it synced")
	}
}
