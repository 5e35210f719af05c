package faults_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// torture is an image whose publisher is killed and started again, with readers that check it all the time.
type torture struct {
	t       testing.TB
	dir     string
	rng     *rand.Rand
	acked   uint64 // the newest version whose commit was acknowledged
	kills   int
	aborted uint64
	in      map[byte]int // kills by what the publisher was about to do
	readers []*process

	done   atomic.Bool
	wg     sync.WaitGroup
	checks atomic.Uint64
	waits  atomic.Uint64
}

func newTorture(t testing.TB, local, processes int) *torture {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	x := &torture{t: t, dir: shmDir(t), rng: rand.New(rand.NewPCG(seed, 1)), in: map[byte]int{}}
	x.killWriter() // makes the image
	for i := range local {
		x.wg.Go(func() { x.watch(i) })
	}
	t.Cleanup(func() {
		x.done.Store(true)
		x.wg.Wait()
	})
	for range processes {
		x.readers = append(x.readers, start(t, "read", x.dir))
	}
	return x
}

// watch checks views from a goroutine of this process.
func (x *torture) watch(turn int) {
	k, err := attachSoon(x.dir, turn)
	for err == nil && !x.done.Load() {
		if err = k.check(); err == nil {
			x.checks.Add(1)
			x.waits.Store(k.waits)
		}
	}
	if err == nil {
		err = k.client.Close()
	}
	if err != nil {
		x.t.Error(err)
	}
}

// killWriter runs the publisher until it is about to do something chosen by chance, and kills it an instant later. Nothing
// that was acknowledged may be lost, and at most one commit that was not may be there.
func (x *torture) killWriter() {
	x.t.Helper()
	w := start(x.t, "write", x.dir)
	var version, aborted, fresh uint64
	text, _ := w.line()
	if n, _ := fmt.Sscanf(text, "o %d %d %d", &version, &aborted, &fresh); n != 3 {
		_ = w.cmd.Wait()
		x.t.Fatalf("the publisher says %q: %s", text, w.errors.String())
	}
	if version < x.acked || version > x.acked+1 || fresh == 1 && x.kills > 0 {
		x.t.Fatalf("after kill %d the image has version %d, acknowledged was %d; made anew: %d", x.kills, version, x.acked, fresh)
	}
	x.aborted += aborted
	phase := []byte("cclrd")[x.rng.IntN(5)]
	x.acked = version
	for least := 1 + x.rng.IntN(40); ; least-- {
		at, ok := x.progress(w)
		if !ok {
			_ = w.cmd.Wait()
			x.t.Fatalf("the publisher ended: %s", w.errors.String())
		}
		if least <= 0 && at == phase {
			break
		}
	}
	<-time.After(time.Duration(x.rng.IntN(1500)) * time.Microsecond)
	check(x.t, w.cmd.Process.Kill())
	for ok := true; ok; { // what it acknowledged before it died
		_, ok = x.progress(w)
	}
	w.kill()
	x.kills++
	x.in[phase]++
}

// progress reads one line of the publisher.
func (x *torture) progress(w *process) (phase byte, ok bool) {
	text, ok := w.line()
	if !ok {
		return 0, false
	}
	var n uint64
	if _, err := fmt.Sscanf(text, "%c %d", &phase, &n); err != nil {
		x.t.Fatalf("the publisher says %q", text)
	}
	if phase == 'c' {
		x.acked = n
	}
	return phase, true
}

// killReader kills one of the reading processes, which stand in the middle of a view nearly all the time, and starts another.
func (x *torture) killReader() {
	i := x.rng.IntN(len(x.readers))
	if text, ok := x.readers[i].line(); !ok || text != "attached" {
		_ = x.readers[i].cmd.Wait()
		x.t.Fatalf("a reader says %q: %s", text, x.readers[i].errors.String())
	}
	x.readers[i].kill()
	x.readers[i] = start(x.t, "read", x.dir)
}

// finish ends the readers and opens the image once more.
func (x *torture) finish() {
	x.t.Helper()
	for _, r := range x.readers {
		var reads, waits uint64
		if text := r.end(); text != "" {
			_, err := fmt.Sscanf(text, "reads %d waits %d", &reads, &waits)
			check(x.t, err)
		}
		x.checks.Add(reads)
		x.waits.Add(waits)
	}
	x.done.Store(true)
	x.wg.Wait()
	w, err := newWriter(x.dir)
	check(x.t, err)
	if r := w.pub.Recovery(); r.Fresh || len(r.Quarantined) > 0 {
		x.t.Fatalf("recovery %+v", r)
	}
	for range 200 {
		check(x.t, w.step())
	}
	w.pub.Beat()
	if s := w.pub.Stats(); s.Kept == 0 || s.Kept == s.Rolls {
		x.t.Errorf("%d of %d rolls kept the layout of the base, want some", s.Kept, s.Rolls)
	}
	if s := w.pub.Stats(); s.PinnedBytes != 0 || s.Bytes > budget/4 {
		x.t.Errorf("with no reader left the publisher has %+v", s)
	}
	check(x.t, sizesAgree(x.dir, w.pub.Stats().Bytes))
	check(x.t, w.pub.Close())
}

// A publisher is killed in the middle of commits, rolls, loads and drops, again and again, while processes and goroutines
// read: no view ever shows two commits, nothing acknowledged is lost, and no file is left over.
func TestKilledPublishers(t *testing.T) {
	n := *kills
	if testing.Short() {
		n = min(n, 5)
	}
	x := newTorture(t, 2, 2)
	for i := 1; i < n && !t.Failed(); i++ {
		x.killWriter()
		if i%10 == 0 {
			x.killReader()
		}
	}
	x.finish()
	t.Logf("%d kills (commit %d, load %d, roll %d, drop %d), %d records of unfinished commits aborted, %d versions, %d views checked, %d had to wait",
		x.kills, x.in['c'], x.in['l'], x.in['r'], x.in['d'], x.aborted, x.acked, x.checks.Load(), x.waits.Load())
	if n >= 40 && x.aborted == 0 {
		t.Error("no kill fell into a commit")
	}
	if x.checks.Load() == 0 {
		t.Error("nothing was read")
	}
}

// A reader that dies costs nothing: what it had pinned is recycled.
func TestKilledReaders(t *testing.T) {
	dir := shmDir(t)
	w, err := newWriter(dir)
	check(t, err)
	defer func() { check(t, w.pub.Close()) }()
	check(t, w.commit())
	for round := range 4 {
		holder := start(t, "hold", dir)
		if text, ok := holder.line(); !ok {
			_ = holder.cmd.Wait()
			t.Fatalf("the holder says %q: %s", text, holder.errors.String())
		}
		for shard := range leftSpec.Shards {
			check(t, w.pub.Roll(w.left, shard))
		}
		check(t, w.commit())
		if pinned := w.pub.Stats().PinnedBytes; pinned == 0 {
			t.Fatalf("round %d: a locked view pins nothing", round)
		}
		holder.kill()
		w.pub.Beat()
		if s := w.pub.Stats(); s.PinnedBytes != 0 {
			t.Fatalf("round %d: a dead reader pins %d bytes", round, s.PinnedBytes)
		}
	}
	recycled, err := filepath.Glob(filepath.Join(dir, "recycled.*"))
	check(t, err)
	if len(recycled) == 0 || len(recycled) > snapshot.RecycleDefault {
		t.Errorf("%d recycled files, want 1 to %d", len(recycled), snapshot.RecycleDefault)
	}
	before := w.pub.Stats().Bytes
	check(t, w.pub.Roll(w.left, 0))
	if after := w.pub.Stats().Bytes; after > before {
		t.Errorf("a roll took %d bytes more, with files to recycle", after-before)
	}
}

// The version of the format is looked at before anything else; a reader that is attached already goes on.
func TestOtherVersion(t *testing.T) {
	dir := shmDir(t)
	w, err := newWriter(dir)
	check(t, err)
	check(t, w.commit())
	k, err := newChecker(dir, 0)
	check(t, err)
	check(t, w.pub.Close())
	root, err := os.OpenFile(filepath.Join(dir, format.RootName), os.O_RDWR, 0)
	check(t, err)
	_, err = root.WriteAt([]byte{99}, 8) // the major version
	check(t, err)
	check(t, root.Close())
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Incompatible)
	check(t, k.check())
	check(t, k.client.Close())
}

// TestSoak is the torture for as long as one likes.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("runs with -soak DURATION, or make soak")
	}
	x := newTorture(t, 2, 3)
	begin, minute := time.Now(), 1
	readerKills := 0
	report := func() {
		size, err := directorySize(x.dir)
		check(t, err)
		fmt.Printf("%8s: %d publishers and %d readers killed, version %d, %d records aborted, %d views checked here, image %.1f MiB\n",
			time.Since(begin).Round(time.Second), x.kills, readerKills, x.acked, x.aborted, x.checks.Load(), float64(size)/(1<<20))
	}
	for time.Since(begin) < *soak && !t.Failed() {
		x.killWriter()
		if x.rng.IntN(8) == 0 {
			x.killReader()
			readerKills++
		}
		if time.Since(begin) > time.Duration(minute)*time.Minute {
			report()
			minute++
		}
	}
	report()
	x.finish()
}
