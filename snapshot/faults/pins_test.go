package faults_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

func gauge(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	check(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// A view that is held for too long refuses reads, so that whoever holds it by mistake notices; what it pins shows in the
// publisher's metric until it is unlocked.
func TestLeash(t *testing.T) {
	dir := shmDir(t)
	metrics := prometheus.NewRegistry()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, Registerer: metrics})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	table, err := pub.Table(leftSpec)
	check(t, err)
	put(t, pub, table, 1)
	// Long enough for what comes before the view is too old, on a busy machine too.
	const most = 2 * time.Second
	c, err := reader.Attach(dir, reader.Options{MaxLockAge: most})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	v, err := c.Lock()
	check(t, err)
	left, err := v.Table(leftName)
	check(t, err)
	pinned := func() float64 {
		pub.Beat()
		return gauge(t, metrics, "rhumb_snapshot_pinned_bytes")
	}
	if n := pinned(); n != 0 {
		t.Fatalf("%v bytes pinned before the first roll", n)
	}
	for shard := range leftSpec.Shards {
		check(t, pub.Roll(table, shard))
	}
	if n := pinned(); n == 0 {
		t.Fatal("nothing pinned while a view holds what was rolled")
	}
	for limit := time.Now().Add(time.Minute); err == nil && time.Now().Before(limit); {
		_, err = left.GetUint64(1)
	}
	wantKind(t, err, rhumb.Expired)
	s := c.Stats()
	for limit := time.Now().Add(time.Minute); s.Expired == 0 && time.Now().Before(limit); s = c.Stats() { // counted an instant later
		runtime.Gosched()
	}
	if s.Views != 1 || s.Expired != 1 || s.OldestView < most {
		t.Errorf("stats %+v", s)
	}
	v.Unlock()
	v, err = c.Lock() // follows the new generations, and lets go of the old ones
	check(t, err)
	v.Unlock()
	if n := pinned(); n != 0 {
		t.Errorf("%v bytes pinned after the view", n)
	}
}

// Another process holds a view. Its reads are refused once the view is too old, which frees nothing; `rhumb snapshot pins`
// and the metric tell the same of it, with an age; what it pins counts in the budget, until rolls stop. When it is killed all of
// that is over at once.
func TestPinsOfProcess(t *testing.T) {
	dir := shmDir(t)
	metrics := prometheus.NewRegistry()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, Registerer: metrics, Budget: 2 << 20})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	spec := leftSpec
	spec.Shards = 1
	table, err := pub.Table(spec)
	check(t, err)
	put(t, pub, table, 1)
	said := func(p *process, want string) {
		t.Helper()
		if text, ok := p.line(); !ok || text != want {
			_ = p.cmd.Wait()
			t.Fatalf("the child says %q, want %q: %s", text, want, p.errors.String())
		}
	}
	pinsOf := func(pid int) (own []inspect.Pin, bytes float64) {
		t.Helper()
		pub.Beat()
		pins, err := inspect.FindPins(filepath.Dir(dir))
		check(t, err)
		if metric := gauge(t, metrics, "rhumb_snapshot_pinned_bytes"); metric != float64(pins.PinnedBytes) {
			t.Errorf("the metric says %v bytes, the processes have %d", metric, pins.PinnedBytes)
		}
		for _, p := range pins.List {
			if p.PID == pid && p.Superseded {
				own = append(own, p)
			}
		}
		return own, float64(pins.PinnedBytes)
	}
	child := start(t, "linger", dir)
	pid := child.cmd.Process.Pid
	said(child, "locked 1")
	if own, bytes := pinsOf(pid); len(own) != 0 || bytes != 0 {
		t.Fatalf("%v are superseded before the first roll, %v bytes", own, bytes)
	}
	check(t, pub.Roll(table, 0))
	said(child, "refused")
	own, bytes := pinsOf(pid)
	if len(own) != 1 || float64(own[0].Bytes) != bytes || bytes == 0 || own[0].Publisher || own[0].Generation == 0 {
		t.Fatalf("pins %+v, %v bytes in all", own, bytes)
	}
	if own[0].Since <= 0 || own[0].Since > time.Minute {
		t.Errorf("superseded for %v", own[0].Since)
	}
	if again, _ := pinsOf(pid); len(again) != 1 || again[0].Since <= own[0].Since {
		t.Errorf("the age stands still: %v, then %+v", own[0].Since, again)
	}
	children := []*process{child} // each pins another generation
	for err == nil && len(children) < 100 {
		holder := start(t, "hold", dir)
		if text, ok := holder.line(); !ok {
			_ = holder.cmd.Wait()
			t.Fatalf("the holder says %q: %s", text, holder.errors.String())
		}
		children = append(children, holder)
		err = pub.Roll(table, 0)
	}
	wantKind(t, err, rhumb.Overloaded)
	_, bytes = pinsOf(pid)
	if s := pub.Stats(); s.Bytes > s.Budget || bytes == 0 {
		t.Errorf("%d bytes of %d, of which %v are pinned", s.Bytes, s.Budget, bytes)
	}
	for _, c := range children {
		c.kill()
	}
	if own, bytes := pinsOf(pid); len(own) != 0 || bytes != 0 {
		t.Errorf("a killed process pins %+v, all together %v bytes", own, bytes)
	}
	check(t, pub.Roll(table, 0))
}

// put commits a number under all keys of the group.
func put(t testing.TB, pub *snapshot.Publisher, table *snapshot.Table, n uint64) {
	t.Helper()
	check(t, tryPut(pub, table, n))
}

func tryPut(pub *snapshot.Publisher, table *snapshot.Table, n uint64) error {
	c := pub.Begin()
	defer c.Discard()
	for i := range uint64(group) {
		if err := c.Put(table, leftRecord(i, n, 1000)); err != nil {
			return err
		}
	}
	_, err := c.Publish(snapshot.CommitInfo{})
	return err
}

// numberOf reads the number that all keys of the group have.
func numberOf(t testing.TB, v reader.View) (n uint64) {
	t.Helper()
	table, err := v.Table(leftName)
	check(t, err)
	it, err := table.GetUint64(0)
	check(t, err)
	n = leUint64(it.Value)
	k := checker{keys: groupKeys(), items: make([]reader.Item, group)}
	found, err := k.count(&table, n)
	if err != nil || found != group {
		t.Fatalf("%d of %d keys have number %d: %v", found, group, n, err)
	}
	return n
}

// A view that pins the whole budget stops rolls, but not commits: those go on as long as the shards have room, and then fail
// with an error that names the pins. What readers see stays whole. All goes on when the view ends.
func TestBudget(t *testing.T) {
	dir := shmDir(t)
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, Budget: 4 << 20})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	spec := leftSpec
	spec.Shards = 1
	table, err := pub.Table(spec)
	check(t, err)
	put(t, pub, table, 1)
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	var views []reader.View
	for err == nil && len(views) < 1000 { // each view pins another generation
		v, lockErr := c.Lock()
		check(t, lockErr)
		views = append(views, v)
		err = pub.Roll(table, 0)
	}
	wantKind(t, err, rhumb.Overloaded)
	if !strings.Contains(err.Error(), "pin") {
		t.Errorf("error %q does not name the pins", err)
	}
	n := uint64(1)
	for err = nil; err == nil && n < 1000; n++ {
		err = tryPut(pub, table, n+1)
	}
	wantKind(t, err, rhumb.Overloaded)
	n-- // the last one failed
	if n < 2 {
		t.Error("no commit went through while rolls were impossible")
	}
	v, err := c.Lock()
	check(t, err)
	if got := numberOf(t, v); got != n {
		t.Errorf("readers see number %d, want %d", got, n)
	}
	if got := numberOf(t, views[0]); got != 1 {
		t.Errorf("the first view sees number %d, want 1", got)
	}
	v.Unlock()
	if s := pub.Stats(); s.Bytes > s.Budget || s.PinnedBytes == 0 {
		t.Errorf("stats %+v", s)
	}
	for _, v := range views {
		v.Unlock()
	}
	pub.Beat()
	put(t, pub, table, n+1)
	v, err = c.Lock()
	check(t, err)
	defer v.Unlock()
	if got := numberOf(t, v); got != n+1 {
		t.Errorf("readers see number %d, want %d", got, n+1)
	}
}

// Locked reads of two shards while commits and rolls run never show two commits.
func TestLockedReads(t *testing.T) {
	total := *reads
	if testing.Short() {
		total = min(total, 100_000)
	}
	dir := shmDir(t)
	w, err := newWriter(dir)
	check(t, err)
	check(t, w.commit())
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	var left atomic.Int64
	left.Store(int64(total))
	var enough atomic.Bool // the publisher has committed and rolled: reads that are faster than that go on
	var wg sync.WaitGroup
	var versions [2]int
	for i := range versions {
		wg.Go(func() {
			n, err := readPairs(c, &left, &enough)
			versions[i] = n
			if err != nil {
				t.Error(err)
				left.Store(0)
				enough.Store(true)
			}
		})
	}
	for left.Load() > 0 || !enough.Load() {
		check(t, w.step())
		s := w.pub.Stats()
		enough.Store(s.Commits > 40 && s.Rolls > 1)
	}
	wg.Wait()
	s := w.pub.Stats()
	t.Logf("%d locked reads, of %v versions, with %d commits and %d rolls", total, versions, s.Commits, s.Rolls)
	if versions[0]+versions[1] < 10 {
		t.Error("the readers stood still")
	}
	check(t, c.Close())
	check(t, w.pub.Close())
}

// readPairs locks a view for every read of a pair of keys, until none is left and it is enough, and counts the versions met.
func readPairs(c *reader.Client, left *atomic.Int64, enough *atomic.Bool) (versions int, err error) {
	const batch = 1000
	var keys [2]uint64
	var items [2]reader.Item
	var last uint64
	for left.Add(-batch) >= 0 || !enough.Load() {
		for i := range uint64(batch) {
			v, err := c.Lock()
			if err != nil {
				return versions, err
			}
			t, err := v.Table(leftName)
			if err == nil {
				keys[0], keys[1] = i%group, (i*7+1)%group
				_, err = t.MultiGetUint64(keys[:], items[:])
			}
			if err != nil {
				return versions, err
			}
			a, b, want := leUint64(items[0].Value), leUint64(items[1].Value), v.Version()
			v.Unlock()
			if a != want || b != want {
				return versions, fmt.Errorf("%w: version %d shows %d and %d", errMixed, want, a, b)
			}
			if want != last {
				last = want
				versions++
			}
		}
	}
	return versions, nil
}

const crowds = 4 // processes that share the readers of TestCrowd

// A thousand readers in a few processes hold a view each while the publisher rolls; each has the one image mapped, and
// costs its process little memory of its own.
func TestCrowd(t *testing.T) {
	dir := shmDir(t)
	w, err := newWriter(dir)
	check(t, err)
	check(t, w.commit())
	var all []*process
	for range crowds {
		all = append(all, start(t, "crowd", dir))
	}
	for _, p := range all {
		if text, ok := p.line(); !ok {
			_ = p.cmd.Wait()
			t.Fatalf("a crowd says %q: %s", text, p.errors.String())
		}
	}
	for range 100 {
		check(t, w.step())
	}
	w.pub.Beat()
	if w.pub.Stats().PinnedBytes == 0 {
		t.Error("a thousand views pin nothing")
	}
	for _, p := range all {
		text := p.end()
		var clients int
		var private int64
		if _, err := fmt.Sscanf(text, "%d readers, %d bytes", &clients, &private); err != nil {
			t.Fatalf("a crowd says %q", text)
		}
		t.Logf("%s of their own, %d each", text, private/int64(clients))
		if each := private / int64(clients); each > 2<<20 { // the race detector alone takes more than one
			t.Errorf("%d bytes for each reader, want less than two MiB", each)
		}
	}
	w.pub.Beat()
	if s := w.pub.Stats(); s.PinnedBytes != 0 {
		t.Errorf("without readers %d bytes are pinned", s.PinnedBytes)
	}
	check(t, w.pub.Close())
}

// crowd is the child with many readers: each locks a view, all wait until told, and then each looks at its view again.
func crowd(dir string) error {
	done := told()
	clients := make([]*reader.Client, *attached/crowds)
	views := make([]reader.View, len(clients))
	for i := range clients {
		var err error
		if clients[i], err = reader.Attach(dir, reader.Options{MaxLockAge: 10 * time.Minute}); err != nil {
			return fmt.Errorf("reader %d: %w", i, err)
		}
		if views[i], err = clients[i].Lock(); err != nil {
			return err
		}
	}
	fmt.Println("attached")
	for tick := time.NewTicker(10 * time.Millisecond); !done.Load(); {
		<-tick.C
	}
	k := checker{keys: groupKeys(), items: make([]reader.Item, group)}
	for i, v := range views {
		if err := k.tables(v, v.Version()); err != nil {
			return fmt.Errorf("reader %d: %w", i, err)
		}
		v.Unlock()
		if err := clients[i].Close(); err != nil {
			return err
		}
	}
	private, err := anonymous()
	fmt.Printf("%d readers, %d bytes\n", len(clients), private)
	return err
}

// anonymous returns the memory of the process that is not of files.
func anonymous() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no RssAnon")
}

func directorySize(dir string) (sum int64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil {
			sum += info.Size()
		}
	}
	return sum, err
}

func leUint64(p []byte) uint64 { return binary.LittleEndian.Uint64(p) }

// Another process holds a view past its leash, and what that pins leaves no room in the budget for a roll. Publishing goes on
// for everyone else, the view's reads stay refused, and the metrics tell what is overdue until the process lets go.
func TestOverdueViewStopsNobody(t *testing.T) {
	measured, err := snapshot.Open(snapshot.Config{Dir: shmDir(t)})
	check(t, err)
	spec := leftSpec
	spec.Shards = 1
	table, err := measured.Table(spec)
	check(t, err)
	put(t, measured, table, 1)
	size := measured.Stats().Bytes
	check(t, measured.Close())

	dir, metrics := shmDir(t), prometheus.NewRegistry()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, Registerer: metrics, Budget: 5 * size / 2, Leash: 30 * time.Millisecond})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	table, err = pub.Table(spec)
	check(t, err)
	put(t, pub, table, 1)
	child := start(t, "linger", dir)
	if text, _ := child.line(); text != "locked 1" {
		t.Fatalf("the child says %q: %s", text, child.errors.String())
	}
	check(t, pub.Roll(table, 0)) // the child pins the generation before
	if text, _ := child.line(); text != "refused" {
		t.Fatalf("the child says %q: %s", text, child.errors.String())
	}
	for limit := time.Now().Add(20 * time.Second); pub.Roll(table, 0) != nil; pub.Beat() {
		if time.Now().After(limit) {
			t.Fatalf("rolls fail long after the leash: %v, %+v", pub.Roll(table, 0), pub.Stats())
		}
		time.Sleep(time.Millisecond)
	}
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	for n := uint64(2); n < 100; n++ {
		put(t, pub, table, n)
		check(t, pub.Roll(table, 0))
		v, err := c.Lock()
		check(t, err)
		if got := numberOf(t, v); got != n {
			t.Fatalf("readers see number %d, want %d", got, n)
		}
		v.Unlock()
		pub.Beat()
	}
	s := pub.Stats()
	if s.OverdueBytes == 0 || gauge(t, metrics, "rhumb_snapshot_overdue_bytes") != float64(s.OverdueBytes) || s.Bytes-s.OverdueBytes > s.Budget {
		t.Errorf("stats %+v", s)
	}
	child.end()
	pub.Beat()
	if s := pub.Stats(); s.OverdueBytes != 0 || s.Bytes > s.Budget {
		t.Errorf("after the view: stats %+v", s)
	}
}

// What views past their leash pin is bounded too: beyond OverdueMax it counts in the budget.
func TestOverdueIsBounded(t *testing.T) {
	dir := shmDir(t)
	const budget, overdueMax = 1 << 20, 2 << 20
	pub, err := snapshot.Open(snapshot.Config{Dir: dir, Budget: budget, Leash: 1, OverdueMax: overdueMax})
	check(t, err)
	defer func() { check(t, pub.Close()) }()
	spec := leftSpec
	spec.Shards = 1
	table, err := pub.Table(spec)
	check(t, err)
	put(t, pub, table, 1)
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	var views []reader.View
	for err == nil && len(views) < 1000 {
		v, lockErr := c.Lock()
		check(t, lockErr)
		views = append(views, v)
		if err = pub.Roll(table, 0); pub.Stats().Bytes > budget+overdueMax {
			t.Fatalf("stats %+v", pub.Stats())
		}
	}
	wantKind(t, err, rhumb.Overloaded)
	if s := pub.Stats(); s.OverdueBytes <= overdueMax || !strings.Contains(err.Error(), "snapshot pins") {
		t.Errorf("stats %+v, error %v", s, err)
	}
	for _, v := range views {
		v.Unlock()
	}
	pub.Beat()
	check(t, pub.Roll(table, 0))
}
