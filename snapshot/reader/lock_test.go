package reader_test

import (
	"encoding/binary"
	"errors"
	"io"
	"maps"
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

// simple is a world with one small table of numbers.
func simple(t *testing.T, opt reader.Options) *world {
	t.Helper()
	return newWorld(t, 1, snapshot.TableSpec{KeyKind: format.KeyUint64, Shards: 2}, opt)
}

// put commits one number.
func (w *world) put(number uint64, value string) {
	w.t.Helper()
	c := w.pub.Begin()
	check(w.t, c.Put(w.table, snapshot.Record{Key: format.Key{Number: number}, HLC: 5000, Value: []byte(value)}))
	v, err := c.Publish(snapshot.CommitInfo{Closed: 6000, Event: 77})
	check(w.t, err)
	w.newest = v
}

func (w *world) mustLock() reader.View {
	w.t.Helper()
	v, err := w.client.Lock()
	check(w.t, err)
	return v
}

func (w *world) tableOf(v reader.View) reader.Table {
	w.t.Helper()
	tb, err := v.Table(tableName)
	check(w.t, err)
	return tb
}

func wantKind(t *testing.T, err error, kind rhumb.Kind) {
	t.Helper()
	if rhumb.KindOf(err) != kind || err == nil {
		t.Fatalf("error %v, want kind %v", err, kind)
	}
}

func TestViewEndsWithUnlock(t *testing.T) {
	w := simple(t, reader.Options{ViewsMax: 1}) // so that the next view has the place of the one before
	w.put(1, "one")
	v := w.mustLock()
	tb := w.tableOf(v)
	if it, err := tb.GetUint64(1); err != nil || string(it.Value) != "one" || it.Version != w.newest {
		t.Fatalf("got %q of version %d, %v", it.Value, it.Version, err)
	}
	v.Unlock()
	again := w.mustLock()
	defer again.Unlock()
	v.Unlock() // must not end the other view
	if _, err := tb.GetUint64(1); err != reader.ErrUnlocked {
		t.Errorf("get after unlock: %v", err)
	}
	if _, err := v.Table(tableName); err != reader.ErrUnlocked {
		t.Errorf("table after unlock: %v", err)
	}
	if err := tb.VisitAll(nil); err != reader.ErrUnlocked {
		t.Errorf("walk after unlock: %v", err)
	}
	if _, err := v.Commit(); err != reader.ErrUnlocked {
		t.Errorf("commit after unlock: %v", err)
	}
	if _, err := (reader.View{}).Table(tableName); err != reader.ErrUnlocked {
		t.Errorf("table of no view: %v", err)
	}
	tb = w.tableOf(again)
	if _, err := tb.GetUint64(1); err != nil {
		t.Errorf("the other view: %v", err)
	}
}

// TestFarFromBase reads shards to which nothing was written for 2^32 commits: all that was committed shows, and nothing that was
// given up.
func TestFarFromBase(t *testing.T) {
	dir := t.TempDir()
	pub, err := snapshot.Open(snapshot.Config{Dir: dir})
	check(t, err)
	table, err := pub.Table(snapshot.TableSpec{ID: 1, Name: tableName, Shards: 1, Ordered: true, Spatial: true})
	check(t, err)
	put := func(c *snapshot.Commit, from, to uint64, value string) {
		for n := from; n < to; n++ {
			check(t, c.Put(table, snapshot.Record{Key: format.Key{Number: n}, Value: []byte(value), HasBox: true, Box: format.Box{MinX: int32(n), MaxX: int32(n)}}))
		}
	}
	const keys, changed = 300, 200
	for _, round := range []struct {
		to    uint64
		value string
	}{{keys, "old"}, {changed, "new"}} {
		c := pub.Begin()
		put(c, 0, round.to, round.value)
		_, err = c.Publish(snapshot.CommitInfo{})
		check(t, err)
	}
	c := pub.Begin()
	put(c, changed/2, 2*keys, "never")
	c.Discard()
	check(t, pub.Close())
	const version = 1<<32 + 1
	changeFile(t, filepath.Join(dir, format.RootName), func(p []byte) { binary.LittleEndian.PutUint64(p[format.RootCommitted:], version) })
	client, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer func() { check(t, client.Close()) }()
	v, err := client.Lock()
	check(t, err)
	defer v.Unlock()
	tb, err := v.Table(tableName)
	check(t, err)
	tb.TrustLengths()
	want := map[string]int{"old": keys - changed, "new": changed}
	ways := map[string]func(fn func(*reader.Item) bool) error{
		"all":  tb.VisitAll,
		"scan": func(fn func(*reader.Item) bool) error { return tb.VisitScan(nil, fn) },
		"bbox": func(fn func(*reader.Item) bool) error {
			return tb.VisitBBox(rhumb.Box{Max: rhumb.Point{Lat: 1, Lon: 1}}, fn)
		},
		"get": func(fn func(*reader.Item) bool) error {
			for n := range uint64(2 * keys) {
				if it, err := tb.GetUint64(n); err == nil {
					fn(&it)
				}
			}
			return nil
		},
		"multiget": func(fn func(*reader.Item) bool) error {
			numbers, out := make([]uint64, 2*keys), make([]reader.Item, 2*keys)
			for i := range numbers {
				numbers[i] = uint64(i)
			}
			_, err := tb.MultiGetUint64(numbers, out)
			for i := range out {
				if out[i].Found {
					fn(&out[i])
				}
			}
			return err
		},
	}
	for name, visit := range ways {
		got := map[string]int{}
		check(t, visit(func(it *reader.Item) bool { got[string(it.Value)]++; return true }))
		if !maps.Equal(got, want) {
			t.Errorf("%s: version %d shows %v, want %v", name, v.Version(), got, want)
		}
	}
}

// TestUnlockWithinWalk ends a view in the middle of a walk, which must end the walk.
func TestUnlockWithinWalk(t *testing.T) {
	w := simple(t, reader.Options{})
	w.commit(keys)
	v := w.mustLock()
	tb, n := w.tableOf(v), 0
	for _, err := range tb.All() {
		if n++; n == 3 {
			v.Unlock()
		}
		if n == 4 && err != reader.ErrUnlocked || n > 4 {
			t.Fatalf("item %d after unlock, error %v", n, err)
		}
	}
	if n != 4 {
		t.Fatalf("%d items", n)
	}
}

func TestViewGrowsTooOld(t *testing.T) {
	const most = 50 * time.Millisecond
	w := simple(t, reader.Options{MaxLockAge: most})
	w.put(1, "one")
	v := w.mustLock()
	tb := w.tableOf(v)
	for v.Age() <= most {
		w.client.Look()
	}
	w.client.Look()
	if _, err := tb.GetUint64(1); err != reader.ErrExpired {
		t.Fatalf("get through an old view: %v", err)
	}
	wantKind(t, reader.ErrExpired, rhumb.Expired)
	s := w.client.Stats()
	if s.Views != 1 || s.Expired != 1 || s.OldestView < most || w.client.OldestView() < s.OldestView {
		t.Errorf("stats %+v", s)
	}
	v.Unlock()
	if n := w.client.Stats().Views; n != 0 {
		t.Errorf("%d views after unlock", n)
	}
}

func TestViewsAreBounded(t *testing.T) {
	w := simple(t, reader.Options{ViewsMax: 3})
	var views []reader.View
	for range 3 {
		views = append(views, w.mustLock())
	}
	_, err := w.client.Lock()
	wantKind(t, err, rhumb.Overloaded)
	wantKind(t, w.client.Close(), rhumb.ConditionFailed)
	for _, v := range views {
		v.Unlock()
	}
	w.mustLock().Unlock()
	check(t, w.client.Close())
	_, err = w.client.Lock()
	wantKind(t, err, rhumb.ConditionFailed)
	if s := w.client.Stats(); s != (reader.Stats{}) || w.client.Tables() != nil {
		t.Errorf("a closed client has stats %+v", s)
	}
}

// TestGenerationsAreUnmapped checks that a superseded generation stays mapped for its last view and no longer.
func TestGenerationsAreUnmapped(t *testing.T) {
	w := simple(t, reader.Options{Populate: true, HugePages: true})
	w.put(1, "one")
	old := w.mustLock()
	copied := old
	check(t, w.pub.Roll(w.table, 0))
	check(t, w.pub.Roll(w.table, 1))
	w.put(1, "two")
	if s := w.client.Stats(); s.Pinned != 0 || s.Remaps != 0 {
		t.Fatalf("before the next lock: %+v", s)
	}
	v := w.mustLock()
	defer v.Unlock()
	if s := w.client.Stats(); s.Pinned == 0 || s.Remaps != 1 || s.Generations != 3 {
		t.Fatalf("with an old view: %+v", s)
	}
	tb := w.tableOf(copied)
	if it, err := tb.GetUint64(1); err != nil || string(it.Value) != "one" {
		t.Fatalf("the old view gives %q, %v", it.Value, err)
	}
	old.Unlock()
	copied.Unlock()
	if s := w.client.Stats(); s.Pinned != 0 {
		t.Fatalf("after the old view: %+v", s)
	}
	tb = w.tableOf(v)
	if it, err := tb.GetUint64(1); err != nil || string(it.Value) != "two" {
		t.Fatalf("the new view gives %q, %v", it.Value, err)
	}
	mapped, huge, err := w.client.HugePages()
	if s := w.client.Stats(); err != nil || mapped < s.Bytes || huge > mapped {
		t.Fatalf("%d bytes on huge pages of %d, mapped %d: %v", huge, mapped, s.Bytes, err)
	}
}

func TestCommitOfView(t *testing.T) {
	w := simple(t, reader.Options{})
	c := w.pub.Begin()
	r := rhumb.RangeID{Region: 3, Slot: 9}
	pos := format.Position{Epoch: 4, Seq: 5, HLC: 6}
	check(t, c.Position(r, pos))
	_, err := c.Publish(snapshot.CommitInfo{Closed: 4000, Event: 55})
	check(t, err)
	v := w.mustLock()
	for range 2 * format.RingSize {
		w.put(9, "x")
	}
	if c, err := v.Commit(); err != nil || c.Version != v.Version() || c.Closed != 4000 || c.Event != 55 || c.Records != 1 {
		t.Errorf("commit %+v, %v", c, err)
	}
	if d, err := v.Staleness(); err != nil || d <= 0 || d > time.Hour {
		t.Errorf("stale since %v, %v", d, err)
	}
	if p, err := v.Position(r); err != nil || p != pos {
		t.Errorf("position %+v, %v", p, err)
	}
	if _, err := v.Position(rhumb.RangeID{Region: 1}); err != reader.ErrNotFound {
		t.Errorf("position of another range: %v", err)
	}
	at := v.Version()
	v.Unlock()
	v, err = w.client.LockVersion(at)
	check(t, err)
	_, err = v.Commit()
	wantKind(t, err, rhumb.Unavailable)
	v.Unlock()
	_, err = w.client.LockVersion(w.newest + 1)
	wantKind(t, err, rhumb.Unavailable)
	if s := w.client.Stats(); s.Heartbeat < 0 || s.Heartbeat > time.Minute || s.State != format.StateLive || s.Closed != 6000 {
		t.Errorf("stats %+v", s)
	}
}

func TestRefusedRequests(t *testing.T) {
	w := newWorld(t, 1, snapshot.TableSpec{KeyKind: format.KeyName}, reader.Options{})
	v := w.mustLock()
	defer v.Unlock()
	names := w.tableOf(v)
	numbers, err := v.Table(format.PositionsTable)
	check(t, err)
	_, err = v.Table("nobody")
	wantKind(t, err, rhumb.NotFound)
	for name, call := range map[string]func() error{
		"number in names":  func() error { _, err := names.GetUint64(1); return err },
		"numbers in names": func() error { _, err := names.MultiGetUint64([]uint64{1}, make([]reader.Item, 1)); return err },
		"value of names":   func() error { _, err := names.GetUint64Value(1); return err },
		"shard keys": func() error {
			_, err := numbers.MultiGetShardKeys(make([]rhumb.ShardKey, 1), make([]reader.Item, 1))
			return err
		},
		"short shard keys": func() error { _, err := names.MultiGetShardKeys(make([]rhumb.ShardKey, 1), nil); return err },
		"values of names":  func() error { _, err := names.MultiGetUint64Values([]uint64{1}, make([][]byte, 1)); return err },
		"short values":     func() error { _, err := numbers.MultiGetUint64Values([]uint64{1}, nil); return err },
		"empty name":       func() error { _, err := names.Get(nil); return err },
		"long name": func() error {
			_, err := names.MultiGet([][]byte{make([]byte, 255)}, make([]reader.Item, 1))
			return err
		},
		"name in numbers":   func() error { _, err := numbers.Get([]byte("x")); return err },
		"names in numbers":  func() error { _, err := numbers.MultiGet([][]byte{{1}}, make([]reader.Item, 1)); return err },
		"shard key":         func() error { _, err := numbers.GetShardKey(rhumb.ShardKey{}); return err },
		"short out":         func() error { _, err := numbers.MultiGetUint64([]uint64{1, 2}, make([]reader.Item, 1)); return err },
		"scan out of order": func() error { return names.VisitScan(nil, nil) },
		"no spatial index":  func() error { return names.VisitBBox(rhumb.Box{}, nil) },
		"no nearest":        func() error { return names.VisitNearest(rhumb.Point{}, 1, nil) },
		"bad box":           func() error { return names.VisitBBox(rhumb.Box{Min: rhumb.Point{Lat: 91}}, nil) },
		"bad point":         func() error { return names.VisitRadius(rhumb.Point{Lon: 181}, 1, nil) },
		"bad radius":        func() error { return names.VisitRadius(rhumb.Point{}, -1, nil) },
		"bad ring":          func() error { return names.VisitPolygon([][]rhumb.Point{{{}, {}}}, nil) },
		"none nearest":      func() error { return names.VisitNearest(rhumb.Point{}, 0, nil) },
	} {
		if err := call(); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantKind(t, reader.Options{MaxLockAge: -1}.Validate(), rhumb.InvalidArgument)
	wantKind(t, reader.Options{ViewsMax: -1}.Validate(), rhumb.InvalidArgument)
}

func TestAttachFailures(t *testing.T) {
	_, err := reader.Attach(t.TempDir(), reader.Options{})
	wantKind(t, err, rhumb.NotFound)
	w := simple(t, reader.Options{})
	w.put(1, "one")

	dir := copyImage(t, w.client.Dir())
	check(t, os.Truncate(filepath.Join(dir, format.RootName), 100))
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Corrupt)

	dir = copyImage(t, w.client.Dir())
	changeFile(t, filepath.Join(dir, format.RootName), func(p []byte) { binary.LittleEndian.PutUint32(p[8:], format.Major+1) })
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Incompatible)

	dir = copyImage(t, w.client.Dir())
	segments, err := filepath.Glob(filepath.Join(dir, "seg.*"))
	check(t, err)
	check(t, os.Truncate(segments[0], 5000))
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Corrupt)
	check(t, os.Remove(segments[0]))
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Corrupt)
	if os.Getuid() != 0 {
		check(t, os.Chmod(filepath.Join(dir, format.RootName), 0))
		_, err = reader.Attach(dir, reader.Options{})
		wantKind(t, err, rhumb.PermissionDenied)
	}
}

// TestSavedImage reads a copy of an image, to which nobody publishes.
func TestSavedImage(t *testing.T) {
	w := newWorld(t, 5, specs["everything"], reader.Options{})
	w.commit(keys)
	live := w.client
	saved, err := reader.Attach(copyImage(t, live.Dir()), reader.Options{VerifyChecksums: true})
	check(t, err)
	defer func() { check(t, saved.Close()) }()
	w.client = saved
	v := w.mustLock()
	w.verify(v)
	v.Unlock()
	w.client = live
}

// TestDeadPublisher takes views of an image whose publisher died while it changed generations.
func TestDeadPublisher(t *testing.T) {
	w := simple(t, reader.Options{})
	w.put(1, "one")
	dir := copyImage(t, w.client.Dir())
	c, err := reader.Attach(dir, reader.Options{})
	check(t, err)
	defer func() { check(t, c.Close()) }()
	root := filepath.Join(dir, format.RootName)
	seq := format.RootTableSeq
	changeFile(t, root, func(p []byte) { binary.LittleEndian.PutUint64(p[seq:], binary.LittleEndian.Uint64(p[seq:])|1) })
	for range 3 {
		v, err := c.Lock()
		check(t, err)
		if v.Version() != w.newest {
			t.Errorf("version %d, want %d", v.Version(), w.newest)
		}
		v.Unlock()
	}
	_, err = reader.Attach(dir, reader.Options{})
	wantKind(t, err, rhumb.Unavailable)
	// The change did commit, but whether its version is covered cannot be known.
	changeFile(t, root, func(p []byte) {
		binary.LittleEndian.PutUint64(p[format.RootCommitted:], binary.LittleEndian.Uint64(p[format.RootCommitted:])+1)
	})
	v, err := c.Lock()
	check(t, err)
	if v.Version() != w.newest {
		t.Errorf("version %d, want %d", v.Version(), w.newest)
	}
	v.Unlock()
}

// TestImageMadeAnew follows a root that was replaced.
func TestImageMadeAnew(t *testing.T) {
	w := simple(t, reader.Options{})
	w.put(1, "one")
	old := w.mustLock()
	first := w.client.Stats().Image
	check(t, w.pub.Close())
	files, err := filepath.Glob(filepath.Join(w.client.Dir(), "*"))
	check(t, err)
	for _, f := range files {
		check(t, os.Remove(f))
	}
	w.client.Look() // a root that is gone is no new one
	w.mustLock().Unlock()
	pub, err := snapshot.Open(snapshot.Config{Dir: w.client.Dir()})
	check(t, err)
	w.pub = pub
	t.Cleanup(func() { check(t, pub.Close()) })
	w.table, err = pub.Table(snapshot.TableSpec{ID: 7, Name: tableName})
	check(t, err)
	w.put(1, "anew")
	w.client.Look()
	v := w.mustLock()
	defer v.Unlock()
	tb := w.tableOf(v)
	if it, err := tb.GetUint64(1); err != nil || string(it.Value) != "anew" {
		t.Errorf("the new image gives %q, %v", it.Value, err)
	}
	tb = w.tableOf(old)
	if it, err := tb.GetUint64(1); err != nil || string(it.Value) != "one" {
		t.Errorf("the old view gives %q, %v", it.Value, err)
	}
	old.Unlock()
	if s := w.client.Stats(); s.Image == first || s.Reopens != 1 || s.Pinned != 0 {
		t.Errorf("stats %+v", s)
	}
}

func copyImage(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	files, err := filepath.Glob(filepath.Join(from, "*"))
	check(t, err)
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || !info.Mode().IsRegular() {
			continue
		}
		in, err := os.Open(f)
		check(t, err)
		out, err := os.Create(filepath.Join(to, filepath.Base(f)))
		check(t, err)
		_, err = io.Copy(out, in)
		check(t, errors.Join(err, in.Close(), out.Close()))
	}
	return to
}

// changeFile changes a file in place, as mappings of it see at once.
func changeFile(t testing.TB, path string, change func(p []byte)) {
	t.Helper()
	p, err := os.ReadFile(path)
	check(t, err)
	change(p)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteAt(p, 0)
	check(t, errors.Join(err, f.Close()))
}

// TestConcurrentViews reads while the publisher commits, rolls and loads: each commit writes its number to all records of a
// group, so that a view must never see two numbers.
func TestConcurrentViews(t *testing.T) {
	const group = 40
	w := newWorld(t, 3, snapshot.TableSpec{KeyKind: format.KeyUint64, Shards: 4, Ordered: true, Spatial: true}, reader.Options{})
	box := rhumb.Box{Min: rhumb.Point{Lat: 1, Lon: 1}, Max: rhumb.Point{Lat: 2, Lon: 2}}
	record := func(i, n uint64) snapshot.Record {
		return snapshot.Record{
			Key: format.Key{Number: 1_000_000 + i}, HLC: rhumb.Timestamp(10_000 + n), Value: binary.LittleEndian.AppendUint64(nil, n),
			Box: format.MakePoint(rhumb.Point{Lat: 1 + float64((i+n)%100)/100, Lon: 1.5}), HasBox: true,
		}
	}
	write := func(n uint64) {
		c := w.pub.Begin()
		if n%50 == 0 { // a load replaces everything
			check(t, c.Load(w.table, func(yield func(snapshot.Record, error) bool) {
				for i := range uint64(group) {
					if !yield(record(i, n), nil) {
						return
					}
				}
			}))
		} else {
			for i := range uint64(group) {
				check(t, c.Put(w.table, record(i, n)))
			}
		}
		_, err := c.Publish(snapshot.CommitInfo{Closed: rhumb.Timestamp(10_000 + n)})
		check(t, err)
		if n%30 == 7 {
			check(t, w.pub.Roll(w.table, int(n/30)%4))
		}
		if n%20 == 0 {
			w.pub.Beat()
		}
	}
	write(0)
	var done atomic.Bool
	var reads atomic.Int64
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := uint64(i); !done.Load(); n++ {
				if err := readGroup(w.client, n, group, box); err != nil {
					t.Error(err)
					return
				}
				reads.Add(1)
			}
		})
	}
	wg.Go(func() { // clients that come and go
		for !done.Load() {
			c, err := reader.Attach(w.client.Dir(), reader.Options{VerifyChecksums: true})
			if err == nil {
				err = errors.Join(readGroup(c, 0, group, box), c.Close())
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	enough := func() bool { return reads.Load() >= 2000 && w.client.Stats().Remaps >= 20 }
	for n := uint64(1); !t.Failed() && (n < 600 || !enough()); n++ {
		write(n)
	}
	done.Store(true)
	wg.Wait()
	s := w.client.Stats()
	if s.Pinned != 0 {
		t.Errorf("stats %+v", s)
	}
	t.Logf("%d reads, %d remaps", reads.Load(), s.Remaps)
}

var errMixed = errors.New("a view shows two commits")

// readGroup reads the group in one of several ways and checks that all its records are of one commit.
func readGroup(c *reader.Client, way uint64, group int, box rhumb.Box) error {
	lock := c.Lock
	if way%3 == 1 {
		lock = c.LockClosed
	}
	v, err := lock()
	if err != nil {
		return err
	}
	defer v.Unlock()
	tb, err := v.Table(tableName)
	if err != nil {
		return err
	}
	numbers := map[uint64]int{}
	note := func(it *reader.Item) bool {
		if it.Number >= 1_000_000 {
			numbers[binary.LittleEndian.Uint64(it.Value)]++
		}
		return true
	}
	switch way % 5 {
	case 0:
		for i := range uint64(group) {
			it, err := tb.GetUint64(1_000_000 + i)
			if err != nil {
				return err
			}
			note(&it)
		}
	case 1:
		var ks []uint64
		for i := range uint64(group) {
			ks = append(ks, 1_000_000+i)
		}
		out := make([]reader.Item, group)
		if _, err := tb.MultiGetUint64(ks, out); err != nil {
			return err
		}
		for i := range out {
			note(&out[i])
		}
	case 2:
		err = tb.VisitAll(note)
	case 3:
		err = tb.VisitScan(nil, note)
	case 4:
		err = tb.VisitBBox(box, note)
	}
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if len(numbers) != 1 || n != group {
			return errMixed
		}
	}
	return nil
}
