package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

func numberRecord(n uint64, value string) snapshot.Record {
	return snapshot.Record{Key: format.Key{Number: n}, Value: []byte(value)}
}

func commit(t *testing.T, p *snapshot.Publisher, table *snapshot.Table, records ...snapshot.Record) uint64 {
	t.Helper()
	c := p.Begin()
	for _, r := range records {
		check(t, c.Put(table, r))
	}
	v, err := c.Publish(snapshot.CommitInfo{})
	check(t, err)
	return v
}

func all(records ...snapshot.Record) iter.Seq2[snapshot.Record, error] {
	return func(yield func(snapshot.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func wantKind(t *testing.T, err error, kind rhumb.Kind) {
	t.Helper()
	if err == nil || rhumb.KindOf(err) != kind {
		t.Errorf("%v, want kind %s", err, kind)
	}
}

// evenSeeds is for tests that count on few keys to spread evenly over shards and buckets: under some random seeds, few
// numbers that follow each other do not.
var evenSeeds = &format.Root{Minor: format.Minor, Seed0: 1, Seed1: 0x9E3779B97F4A7C15}

func TestConfig(t *testing.T) {
	bad := snapshot.Config{Budget: -1, AppendRatio: math.NaN(), ShardRecordsMax: -1, HugePages: 7, Identity: &format.Root{}}
	err := bad.Validate()
	wantKind(t, err, rhumb.InvalidArgument)
	if n := strings.Count(err.Error(), ";"); n != 5 {
		t.Errorf("%v: %d faults, want 6", err, n+1)
	}
	_, err = snapshot.Open(bad)
	wantKind(t, err, rhumb.InvalidArgument)
}

func TestTableSpecs(t *testing.T) {
	p := open(t, snapshot.Config{Dir: shmDir(t), ShardRecordsMax: 1000})
	for _, spec := range []snapshot.TableSpec{
		{},
		{Name: strings.Repeat("n", 129)},
		{Name: "a", KeyKind: 2},
		{Name: "a", Shards: 3},
		{Name: "a", Shards: 512},
		{Name: "a", LocationField: strings.Repeat("l", 64)},
	} {
		_, err := p.Table(spec)
		wantKind(t, err, rhumb.InvalidArgument)
	}
	a, err := p.Table(snapshot.TableSpec{ID: 1, Name: "a", ExpectedRecords: 3001})
	check(t, err)
	if a.ShardCount != 4 {
		t.Errorf("%d shards for 3001 records", a.ShardCount)
	}
	s, err := p.Table(snapshot.TableSpec{ID: 1, Name: "s", Spatial: true, ExpectedRecords: 4001})
	check(t, err)
	if s.ShardCount != 2 {
		t.Errorf("%d shards for 4001 records of a spatial table", s.ShardCount)
	}
	check(t, p.DropTable(s))
	_, err = p.Table(snapshot.TableSpec{ID: 1, Name: "a", Ordered: true})
	wantKind(t, err, rhumb.Conflict)
	_, err = p.Table(snapshot.TableSpec{ID: 2, Name: "b", Shards: 256})
	wantKind(t, err, rhumb.Overloaded)
	for i := 2; i < format.TablesMax; i++ {
		_, err = p.Table(snapshot.TableSpec{ID: rhumb.TableID(i), Name: fmt.Sprint("t", i)})
		check(t, err)
	}
	_, err = p.Table(snapshot.TableSpec{ID: 99, Name: "one too many"})
	wantKind(t, err, rhumb.Overloaded)
	check(t, p.DropTable(a))
	wantKind(t, p.DropTable(a), rhumb.InvalidArgument)
	wantKind(t, p.DropTable(p.Tables()[0]), rhumb.InvalidArgument)
	wantKind(t, p.Begin().Put(a, numberRecord(1, "x")), rhumb.NotFound)
}

func TestRefused(t *testing.T) {
	p := open(t, snapshot.Config{Dir: shmDir(t)})
	numbers, err := p.Table(snapshot.TableSpec{ID: 1, Name: "numbers"})
	check(t, err)
	names, err := p.Table(snapshot.TableSpec{ID: 2, Name: "names", KeyKind: format.KeyName})
	check(t, err)
	c := p.Begin()
	name := func(n int, shard bool) snapshot.Record {
		return snapshot.Record{Key: format.Key{Name: make([]byte, n), ShardKey: shard}}
	}
	wantKind(t, c.Put(numbers, name(1, false)), rhumb.InvalidArgument)
	wantKind(t, c.Put(names, name(0, false)), rhumb.InvalidArgument)
	wantKind(t, c.Put(names, name(255, false)), rhumb.InvalidArgument)
	wantKind(t, c.Put(names, name(15, true)), rhumb.InvalidArgument)
	wantKind(t, c.Put(numbers, snapshot.Record{Value: make([]byte, format.ValueSizeMax+1)}), rhumb.TooLarge)
	for _, box := range []format.Box{{MinY: 1}, {MaxX: format.LonUnitsMax + 1}, {MinY: -format.LatUnitsMax - 1}} {
		rec := numberRecord(1, "nowhere")
		rec.Box, rec.HasBox = box, true
		wantKind(t, c.Put(numbers, rec), rhumb.InvalidArgument)
	}
	check(t, c.Put(names, name(254, false)))
	check(t, c.Put(numbers, snapshot.Record{Value: make([]byte, format.ValueSizeMax)}))
	wantKind(t, c.Load(names, all(name(1, false))), rhumb.InvalidArgument)
	wantKind(t, p.Roll(names, 0), rhumb.ConditionFailed)
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	_, err = c.Publish(snapshot.CommitInfo{})
	wantKind(t, err, rhumb.ConditionFailed)
	wantKind(t, p.Roll(names, 1), rhumb.InvalidArgument)
	next := p.Begin()
	c.Discard() // of a commit that is over: the next one goes on
	check(t, next.Put(numbers, numberRecord(1, "one")))
	_, err = next.Publish(snapshot.CommitInfo{})
	check(t, err)
}

// The records of an open commit are linked while it is written, in all shards, and nobody sees them: neither before it is
// published, nor after it was discarded, nor once the next commit has its version.
func TestOpenCommit(t *testing.T) {
	const keys = 1000
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir, Identity: evenSeeds})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 8, Ordered: true})
	check(t, err)
	write := func(from, to uint64, value string) *snapshot.Commit {
		c := p.Begin()
		for i := from; i < to; i++ {
			check(t, c.Put(table, numberRecord(i, value)))
		}
		return c
	}
	_, err = write(0, keys, "old").Publish(snapshot.CommitInfo{})
	check(t, err)
	shows := func(want map[string]int) *image {
		t.Helper()
		img := mustImageOf(t, dir)
		v := view{version: img.committed}
		got := map[string]int{}
		for _, r := range img.tables["t"].all(v) {
			got[r.value]++
		}
		if n := len(img.tables["t"].ordered(v)); !maps.Equal(got, want) || n != got["old"]+got["new"]+got["newest"] {
			t.Fatalf("%v, and a scan of %d keys, want %v", got, n, want)
		}
		return img
	}
	c := write(keys/2, 2*keys, "new")
	for i, s := range shows(map[string]int{"old": keys}).tables["t"].shards {
		if s.tail <= s.head {
			t.Errorf("shard %d: nothing was linked behind unit %d before the commit was published", i, s.head)
		}
	}
	c.Discard()
	shows(map[string]int{"old": keys})
	_, err = write(0, 1, "newest").Publish(snapshot.CommitInfo{})
	check(t, err)
	shows(map[string]int{"old": keys - 1, "newest": 1})
	_, err = write(keys/2, 2*keys, "new").Publish(snapshot.CommitInfo{})
	check(t, err)
	shows(map[string]int{"old": keys/2 - 1, "newest": 1, "new": keys + keys/2})
}

// A load that fails leaves the table, the files and the budget as they were.
func TestFailedLoad(t *testing.T) {
	p := open(t, snapshot.Config{Dir: shmDir(t)})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 2})
	check(t, err)
	commit(t, p, table, numberRecord(1, "one"))
	before := p.Stats().Bytes
	_, err = p.Load(table, all(numberRecord(2, "two"), numberRecord(3, "three"), numberRecord(2, "again")), snapshot.CommitInfo{})
	wantKind(t, err, rhumb.InvalidArgument)
	broken := errors.New("the source broke")
	_, err = p.Load(table, func(yield func(snapshot.Record, error) bool) { yield(snapshot.Record{}, broken) }, snapshot.CommitInfo{})
	if !errors.Is(err, broken) {
		t.Errorf("%v, want the error of the source", err)
	}
	if after := p.Stats(); after.Bytes != before || after.Live != 1 || after.Version != 1 {
		t.Errorf("%+v after failed loads, want %d bytes", after, before)
	}
	for r := range table.All() {
		if r.Key.Number != 1 || string(r.Value) != "one" {
			t.Errorf("record %+v", r)
		}
	}
}

// What would pass the budget is refused, and leaves what readers see as it was.
func TestBudget(t *testing.T) {
	for _, recycle := range []int{-1, snapshot.RecycleDefault} {
		t.Run(fmt.Sprintf("recycle=%d", recycle), func(t *testing.T) { testBudget(t, recycle) })
	}
}

func testBudget(t *testing.T, recycle int) {
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir, Budget: 1 << 20, Recycle: recycle})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
	check(t, err)
	n := uint64(0)
	for err == nil {
		c := p.Begin()
		for i := range uint64(100) {
			if err == nil {
				err = c.Put(table, numberRecord(n*100+i, strings.Repeat("v", 100)))
			}
		}
		if err != nil {
			c.Discard()
			break
		}
		if _, err = c.Publish(snapshot.CommitInfo{}); err == nil { // which may roll too
			n++
		}
	}
	wantKind(t, err, rhumb.Overloaded)
	if s := p.Stats(); s.Bytes > s.Budget || s.Live != int64(n*100) {
		t.Errorf("%+v after %d commits", s, n)
	}
	img := mustImage(t, dir)
	if got := len(img.tables["t"].all(view{version: img.committed})); uint64(got) != n*100 {
		t.Errorf("%d records, want %d", got, n*100)
	}
}

func TestOneOwner(t *testing.T) {
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	_, err := snapshot.Open(snapshot.Config{Dir: dir})
	wantKind(t, err, rhumb.Unavailable)
	check(t, p.Close())
	check(t, p.Close())
	open(t, snapshot.Config{Dir: dir})
}

// A generation that a reader has locked is pinned until the lock goes; then its file is recycled for the next one.
func TestPinnedAndRecycled(t *testing.T) {
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
	check(t, err)
	commit(t, p, table, numberRecord(1, "one"))
	path := segments(t, dir)[1]
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	check(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Len: 1}))
	was, err := os.ReadFile(path)
	check(t, err)
	check(t, p.Roll(table, 0))
	if s := p.Stats(); s.PinnedBytes != int64(len(was)) {
		t.Errorf("%d bytes are pinned, want %d", s.PinnedBytes, len(was))
	}
	check(t, p.Roll(table, 0))
	now, err := os.ReadFile(path)
	check(t, err)
	clear(was[format.SegmentState:][:8])
	clear(now[format.SegmentState:][:8])
	if !bytes.Equal(was, now) {
		t.Error("a generation that a reader has changed")
	}
	check(t, f.Close())
	p.Beat()
	if s := p.Stats(); s.PinnedBytes != 0 {
		t.Errorf("%d bytes are pinned without a reader", s.PinnedBytes)
	}
	files := p.Stats().Bytes
	for range 5 {
		check(t, p.Roll(table, 0))
	}
	if s := p.Stats(); s.Bytes != files {
		t.Errorf("%d bytes after five rolls, %d before: the files were not recycled", s.Bytes, files)
	}
}

// A table that grows takes two files by turns, which become longer: fresh pages cost more than what is written to them.
func TestRecycledGrow(t *testing.T) {
	for _, huge := range []snapshot.HugePages{snapshot.HugeOff, snapshot.HugeTry} {
		dir := shmDir(t)
		p := open(t, snapshot.Config{Dir: dir, HugePages: huge, Identity: evenSeeds})
		table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
		check(t, err)
		inodes, sizes := map[uint64]bool{}, map[int64]bool{}
		keys := uint64(0)
		for len(sizes) < 8 {
			c := p.Begin()
			for range 1000 {
				check(t, c.Put(table, numberRecord(keys, strings.Repeat("v", 100))))
				keys++
			}
			_, err := c.Publish(snapshot.CommitInfo{})
			check(t, err)
			var st unix.Stat_t
			check(t, unix.Stat(segments(t, dir)[1], &st))
			inodes[st.Ino], sizes[st.Size] = true, true
		}
		if len(inodes) > 4 { // small ones at first
			t.Errorf("the shard had %d sizes in %d files", len(sizes), len(inodes))
		}
		var bytes int64
		for _, pattern := range []string{"seg.*", "recycled.*"} {
			paths, err := filepath.Glob(filepath.Join(dir, pattern))
			check(t, err)
			for _, path := range paths {
				info, err := os.Stat(path)
				check(t, err)
				bytes += info.Size()
			}
		}
		if s := p.Stats(); s.Bytes != bytes {
			t.Errorf("%d bytes are counted, the files have %d", s.Bytes, bytes)
		}
		img := mustImage(t, dir)
		if got := len(img.tables["t"].all(view{version: img.committed})); uint64(got) != keys {
			t.Errorf("%d records, want %d", got, keys)
		}
	}
}

func TestModes(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for group, want := range map[bool][2]os.FileMode{false: {0o755, 0o644}, true: {0o750, 0o640}} {
		dir := shmDir(t)
		open(t, snapshot.Config{Dir: dir, GroupReadable: group})
		for name, mode := range map[string]os.FileMode{".": want[0], "root": want[1], filepath.Base(segments(t, dir)[0]): want[1]} {
			info, err := os.Stat(filepath.Join(dir, name))
			check(t, err)
			if info.Mode().Perm() != mode {
				t.Errorf("group %t: %s has mode %o, want %o", group, name, info.Mode().Perm(), mode)
			}
		}
	}
}

// TestGroup guards --snapshot-group: the directory, files of an earlier life and new files get the group, and
// nobody else can read them.
func TestGroup(t *testing.T) {
	groups, err := os.Getgroups()
	check(t, err)
	gid := os.Getgid()
	// Root may use any group, other users only their own.
	if os.Geteuid() == 0 {
		gid = 12_345
	} else if len(groups) > 0 {
		gid = groups[0]
	}
	dir := shmDir(t)
	check(t, open(t, snapshot.Config{Dir: dir}).Close())
	open(t, snapshot.Config{Dir: dir, GroupReadable: true, Group: gid})
	for _, path := range append(slices.Collect(maps.Values(segments(t, dir))), dir, filepath.Join(dir, "root")) {
		info, err := os.Stat(path)
		check(t, err)
		if got := info.Sys().(*syscall.Stat_t).Gid; got != uint32(gid) {
			t.Errorf("%s has group %d, want %d", path, got, gid)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}
}

// The same input makes the same bytes, whatever stood in the files before.
func TestDeterministic(t *testing.T) {
	id := &format.Root{Image: rhumb.UUID{1}, Seed0: 2, Seed1: 3}
	var first map[string][]byte
	for range 2 {
		dir := shmDir(t)
		p := open(t, snapshot.Config{Dir: dir, Identity: id})
		tables := writerTables(t, p)
		for n := range uint64(40) {
			check(t, writeNumber(p, tables, n+1))
		}
		check(t, p.Roll(tables[0], 0))
		got := map[string][]byte{}
		for _, path := range segments(t, dir) {
			mem, err := os.ReadFile(path)
			check(t, err)
			got[filepath.Base(path)] = mem
		}
		check(t, p.Close())
		if first == nil {
			first = got
		}
		for name, mem := range first {
			if !bytes.Equal(mem, got[name]) {
				t.Errorf("%s differs from run to run", name)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	p := open(t, snapshot.Config{Dir: shmDir(t), Registerer: r, HugePages: snapshot.HugeTry, ShardRecordsMax: 1})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t"})
	check(t, err)
	commit(t, p, table, numberRecord(1, "one"), numberRecord(2, "two"))
	check(t, p.Roll(table, 0))
	families, err := r.Gather()
	check(t, err)
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for name, want := range map[string]float64{
		"rhumb_snapshot_version": 1, "rhumb_snapshot_records": 2, "rhumb_snapshot_records_total": 2, "rhumb_snapshot_roll_seconds": 1,
		"rhumb_snapshot_commit_seconds": 1, "rhumb_snapshot_large_shards": 1, "rhumb_snapshot_image_bytes": float64(p.Stats().Bytes),
		"rhumb_snapshot_huge_bytes": float64(p.HugeBytes()),
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	check(t, p.Close())
	if families, err := r.Gather(); err != nil || len(families) > 0 {
		t.Errorf("%d metrics after Close, %v", len(families), err)
	}
}

// An Open that fails for a metric that is there already leaves none of its own, nor an image that seems to be published.
func TestMetricsInTheWay(t *testing.T) {
	dir, r := shmDir(t), prometheus.NewRegistry()
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "rhumb_snapshot_quarantined_total", Help: "Files that failed a check.", ConstLabels: prometheus.Labels{"image": dir}})
	check(t, r.Register(other))
	if _, err := snapshot.Open(snapshot.Config{Dir: dir, Registerer: r}); err == nil {
		t.Fatal("a metric in the way is no error")
	}
	root, err := os.ReadFile(filepath.Join(dir, format.RootName))
	check(t, err)
	if state := u32(root, format.RootState); state != format.StateStopping {
		t.Errorf("the image that nobody publishes has state %d, want %d", state, format.StateStopping)
	}
	r.Unregister(other)
	open(t, snapshot.Config{Dir: dir, Registerer: r})
}

// A roll in the middle of a commit, whether it builds a new layout or keeps the old one, takes what the commit wrote along, and
// shows none of it, neither then nor after the commit was discarded; nor does a roll that follows.
func TestRollWithinCommit(t *testing.T) {
	const keys = 100
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1, Spatial: true, Ordered: true})
	check(t, err)
	write := func(c *snapshot.Commit, value string) {
		for i := range uint64(keys) {
			check(t, c.Put(table, numberRecord(i, value)))
		}
	}
	c := p.Begin()
	write(c, "old")
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	shows := func(value string) {
		t.Helper()
		img := mustImageOf(t, dir)
		all := img.tables["t"].all(view{version: img.committed})
		for key, r := range all {
			if r.value != value {
				t.Fatalf("key %x is %.10q, want %q", key, r.value, value)
			}
		}
		if n := len(img.tables["t"].ordered(view{version: img.committed})); len(all) != keys || n != keys {
			t.Fatalf("%d keys, and a scan of %d, want %d", len(all), n, keys)
		}
	}
	before := p.Stats()
	c = p.Begin()
	for n := 100; p.Stats().Rolls < before.Rolls+3; n++ {
		write(c, strings.Repeat("new", n))
		shows("old")
	}
	if s := p.Stats(); s.Kept-before.Kept == s.Rolls-before.Rolls { // the base is empty at first
		t.Errorf("all of %d rolls kept the layout", s.Rolls-before.Rolls)
	}
	c.Discard()
	shows("old")
	check(t, p.Roll(table, 0))
	shows("old")
	c = p.Begin()
	write(c, "newest")
	_, err = c.Publish(snapshot.CommitInfo{})
	check(t, err)
	shows("newest")
}

// Of superseded files that readers have, a bounded number keep their names; the readers of those beyond keep their memory.
func TestPinnedFilesAreBounded(t *testing.T) {
	const pinned, named = 70, 64
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "t", Shards: 1})
	check(t, err)
	commit(t, p, table, numberRecord(1, "one"))
	var bytes int64
	for range pinned {
		root, err := os.ReadFile(filepath.Join(dir, format.RootName))
		check(t, err)
		live, _, err := format.DecodeShard(root[format.RootShards+format.ShardEntrySize:])
		check(t, err)
		f, err := os.Open(filepath.Join(dir, format.SegmentName(1, live.Generation)))
		check(t, err)
		defer f.Close()
		info, err := f.Stat()
		check(t, err)
		bytes += info.Size()
		check(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Len: 1}))
		check(t, p.Roll(table, 0))
	}
	p.Beat()
	files, err := filepath.Glob(filepath.Join(dir, "seg.1.*"))
	check(t, err)
	if got := len(files); got != named+1 {
		t.Errorf("%d files have names, want %d and the live one", got, named)
	}
	if s := p.Stats(); s.PinnedBytes != bytes {
		t.Errorf("%d bytes are pinned, want %d", s.PinnedBytes, bytes)
	}
}

// What was dropped, or never had content, leaves no count, and no file behind once the publisher has ended. A small table does
// not take the large file that another leaves.
func TestDroppedLeavesNothing(t *testing.T) {
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	large, err := p.Table(snapshot.TableSpec{ID: 1, Name: "large", Shards: 1})
	check(t, err)
	commit(t, p, large, numberRecord(1, strings.Repeat("v", 1<<20)), numberRecord(2, "two"))
	check(t, p.DropTable(large))
	small, err := p.Table(snapshot.TableSpec{ID: 2, Name: "small", Shards: 1})
	check(t, err)
	commit(t, p, small, numberRecord(1, "one"))
	if s := p.Stats(); s.Live != 1 {
		t.Errorf("%d keys are live, want 1", s.Live)
	}
	if info, err := os.Stat(segments(t, dir)[1]); err != nil || info.Size() >= 1<<20 {
		t.Errorf("the small table has a file of %d bytes, %v", info.Size(), err)
	}
	_, err = p.Table(snapshot.TableSpec{ID: 3, Name: "empty", Shards: 1})
	check(t, err)
	check(t, p.Close())
	if left := segments(t, dir); len(left) != 2 {
		t.Errorf("the files %v stay, want those of the positions and of the small table", left)
	}
}

// TestDroppedContentIsGone guards that no file of the image contains a record of a dropped table, whose publication somebody may have
// forbidden: not the last generation, not an earlier one that was recycled, and not one that a reader still had.
func TestDroppedContentIsGone(t *testing.T) {
	const secret = "the words that must go"
	dir := shmDir(t)
	p := open(t, snapshot.Config{Dir: dir})
	table, err := p.Table(snapshot.TableSpec{ID: 1, Name: "private", Shards: 1})
	check(t, err)
	for round := range 3 {
		commit(t, p, table, numberRecord(uint64(round), secret+strings.Repeat("v", 1<<18)))
		check(t, p.Roll(table, 0))
	}
	contains := func() (files []string) {
		entries, err := os.ReadDir(dir)
		check(t, err)
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			check(t, err)
			if strings.Contains(string(text), secret) {
				files = append(files, e.Name())
			}
		}
		return files
	}
	if len(contains()) == 0 {
		t.Fatal("the image does not have the record at all")
	}
	check(t, p.DropTable(table))
	if files := contains(); len(files) > 0 {
		t.Errorf("%v still have records of the dropped table", files)
	}
	other, err := p.Table(snapshot.TableSpec{ID: 2, Name: "other", Shards: 1})
	check(t, err)
	commit(t, p, other, numberRecord(1, "one"))
	if files := contains(); len(files) > 0 {
		t.Errorf("%v got records of the dropped table", files)
	}
}
