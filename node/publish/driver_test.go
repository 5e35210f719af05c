package publish

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
	"github.com/rhumbdb/rhumb/storage"
)

// world holds one node's storage and catalog. The test writes the logs in place of a host.
type world struct {
	t      *testing.T
	engine *storage.Engine
	root   string
	state  struct {
		sync.Mutex
		*catalog.State
	}
	driver *Driver
	logs   map[rhumb.RangeID]*log
	clock  rhumb.Timestamp
	// behind makes storage lag: only the next entry tells it what is committed, as in a node.
	behind bool
	// closed is the timestamp up to which every range is closed, or 0 if it is unknown. by is the
	// position that this needs, by range.
	closed atomic.Uint64
	by     sync.Map
	// asked counts the calls of Config.Closed.
	asked atomic.Int64
	// afterRead, if set, is called once, when the driver has read the catalog.
	afterRead atomic.Pointer[func()]
}

// log holds the effects of a range's log up to its last entry, and its commit position.
type log struct {
	last   entry.Position
	hlc    rhumb.Timestamp
	commit Position
	// rows holds the effects of the committed entries. Each entry is committed when it is written.
	rows map[row]string
}

type row struct {
	table rhumb.TableID
	name  string
}

const (
	testNode  rhumb.NodeID = 1
	hashSlots int          = 4
)

// newWorld returns the world of a cluster of the oldest version, in which each range has one slot.
func newWorld(t *testing.T, policy Policy) *world { return newWorldOf(t, policy, "") }

// newWorldOf is newWorld with the node's build, which decides the version of the cluster.
func newWorldOf(t *testing.T, policy Policy, build string) *world {
	engine, err := storage.OpenEngine([]string{t.TempDir()}, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, engine: engine, root: t.TempDir(), logs: map[rhumb.RangeID]*log{}, clock: 1}
	w.state.State = catalog.New()
	w.apply(catalog.Init{Cluster: rhumb.UUID{1}, First: catalog.RegisterNode{
		Store: rhumb.UUID{2}, Boot: 1, Nonce: 1, Region: "here", Zone: "a", HasLocation: true, Binary: build,
	}})
	w.open(policy)
	t.Cleanup(func() {
		if err := w.driver.Close(); err != nil {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) open(policy Policy) {
	d, err := Open(Config{
		Root: w.root, Cluster: rhumb.UUID{1}, Node: testNode, Policy: policy, Engine: w.engine, Logger: slog.New(slog.DiscardHandler),
		Closed: func(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
			w.asked.Add(1)
			if by, ok := w.by.Load(id); ok && by.(rhumb.Seq) > upTo {
				return 0
			}
			return rhumb.Timestamp(w.closed.Load())
		},
		State: func() *catalog.State {
			w.state.Lock()
			st := w.state.State
			w.state.Unlock()
			if f := w.afterRead.Swap(nil); f != nil {
				(*f)()
			}
			return st
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.driver = d
}

func (w *world) apply(cmd catalog.Command) {
	w.t.Helper()
	w.state.Lock()
	defer w.state.Unlock()
	next, res, _ := w.state.Apply(cmd)
	if err := res.Err(); err != nil {
		w.t.Fatal(err)
	}
	w.state.State = next
}

func (w *world) table(name string, features rhumb.SnapshotFeatures) rhumb.TableID {
	w.t.Helper()
	return w.tableOf(name, features, rhumb.DefaultClassSettings().ShardSize)
}

// tableOf is table with a shard size. Tables with different shard sizes belong to different classes
// and share no range.
func (w *world) tableOf(name string, features rhumb.SnapshotFeatures, shardSize int64) rhumb.TableID {
	w.t.Helper()
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync, settings.HashSlots, settings.ShardSize = 1, 1, hashSlots, shardSize
	place := catalog.Placement{Region: 1}
	for range hashSlots {
		place.Replicas = append(place.Replicas, []rhumb.NodeID{testNode})
	}
	w.apply(catalog.CreateTable{Name: name, Settings: settings, TableOptions: rhumb.TableOptions{Snapshot: features}, Placements: []catalog.Placement{place}})
	w.driver.CatalogChanged()
	t, _ := w.state.TableByName(name)
	return t.ID
}

// append writes one committed entry. It reports the commit to the driver if tell is set, together
// with the entry if give is set.
func (w *world) append(id rhumb.RangeID, tell, give bool, writes ...entry.Write) {
	w.t.Helper()
	e, b := w.next(id, writes)
	w.write(b)
	switch {
	case tell && give:
		w.driver.Committed(id, w.logs[id].commit, []*entry.Entry{e})
	case tell:
		w.driver.Committed(id, w.logs[id].commit, nil)
	}
}

// next returns the next committed entry of a range, and the batch that stores it.
func (w *world) next(id rhumb.RangeID, writes []entry.Write) (*entry.Entry, *storage.Batch) {
	store := w.engine.Store(id)
	b := store.NewBatch()
	l := w.logs[id]
	if l == nil {
		l = &log{rows: map[row]string{}}
		w.logs[id] = l
		b.CreateRange(storage.RangeState{Range: id})
	}
	w.clock++
	e := &entry.Entry{Epoch: 1, Node: testNode, Seq: l.last.Seq + 1, Prev: l.last.Hash, Start: 1, Requests: []entry.Request{{
		HLC: w.clock, Existed: make([]bool, len(writes)), Writes: writes,
	}}}
	e.Seal(nil)
	b.Append(id, e, storage.Commit{Seq: l.commit.Seq, HLC: l.commit.HLC})
	l.last, l.hlc, l.commit = e.Position(), w.clock, Position{e.Seq, w.clock}
	if !w.behind {
		b.SetCommit(id, storage.Commit{Seq: e.Seq, HLC: w.clock})
	}
	for _, x := range writes {
		if rhumb.IsTombstone(x.Value) {
			delete(l.rows, row{x.Table, string(x.Name)})
		} else {
			l.rows[row{x.Table, string(x.Name)}] = string(x.Value)
		}
	}
	return e, b
}

func (w *world) write(b *storage.Batch) {
	w.t.Helper()
	if err := b.Apply(); err != nil {
		w.t.Fatal(err)
	}
	if err := b.Sync(); err != nil {
		w.t.Fatal(err)
	}
}

// trim drops the committed part of a log.
func (w *world) trim(id rhumb.RangeID) {
	w.t.Helper()
	b := w.engine.Store(id).NewBatch()
	b.Trim(id, w.logs[id].commit.Seq)
	w.write(b)
}

func (w *world) dir() string { return ImageDir(w.root, rhumb.UUID{1}, testNode) }

// view calls fn with a view of the image.
func (w *world) view(fn func(reader.View) error) error {
	c, err := reader.Attach(w.dir(), reader.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := c.Lock()
	if err != nil {
		return err
	}
	defer v.Unlock()
	return fn(v)
}

// rows returns the content of a table in the image.
func (w *world) rows(name string) (out map[string]string, err error) {
	err = w.view(func(v reader.View) error {
		t, err := v.Table(name)
		if err != nil {
			return err
		}
		out = map[string]string{}
		for it, err := range t.All() {
			if err != nil {
				return err
			}
			out[string(it.Name)] = string(it.Value)
		}
		return nil
	})
	return out, err
}

// publish publishes a version.
func (w *world) publish() {
	w.t.Helper()
	if _, err := w.driver.Publish(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// check reports every commit to the driver, publishes, and compares the image with the effects of
// the logs.
func (w *world) check(tables map[string]rhumb.TableID) {
	w.t.Helper()
	for id, l := range w.logs {
		w.driver.Committed(id, l.commit, nil)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if _, err := w.driver.Publish(ctx); err != nil {
		w.t.Fatal(err)
	}
	for name, id := range tables {
		want := map[string]string{}
		for _, l := range w.logs {
			for r, value := range l.rows {
				if r.table == id {
					want[r.name] = value
				}
			}
		}
		got, err := w.rows(name)
		if err != nil {
			w.t.Fatalf("table %s: %v", name, err)
		}
		if !maps.Equal(got, want) {
			w.t.Fatalf("table %s has %d rows, want %d; differ at %v", name, len(got), len(want), differences(got, want))
		}
	}
	if err := w.view(func(v reader.View) error {
		for id, l := range w.logs {
			if p, err := v.Position(id); err != nil || p.Seq != uint64(l.commit.Seq) {
				return fmt.Errorf("the image follows range %s up to %d, want %d: %w", id, p.Seq, l.commit.Seq, err)
			}
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

func differences(a, b map[string]string) (names []string) {
	for k := range a {
		if a[k] != b[k] {
			names = append(names, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	return names
}

func hashRange(i int) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i % hashSlots)} }

func opaque(s string) []byte { return rhumb.EncodeOpaque(nil, []byte(s)) }

// await waits for a condition that must become true.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// TestCatalogComesLater guards rows that the node reports before its catalog knows that their table
// is published, while storage knows an older commit position than the node reported. It covers a
// node without an image, and ranges of a class without published tables.
func TestCatalogComesLater(t *testing.T) {
	const otherClass = 64 << 20
	for _, tc := range []struct {
		name string
		open bool // a table of another class is published already
	}{{"no image yet", false}, {"image open", true}} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, Policy{})
			w.behind = true
			before := w.tableOf("hidden", 0, otherClass)
			if tc.open {
				before = w.table("first", rhumb.SnapshotOn)
				await(t, "the first table", func() bool { _, err := w.rows("first"); return err == nil })
			}
			hidden, _ := w.state.TableByName("hidden")
			var at rhumb.RangeID
			for r := range w.state.Ranges() {
				if r.Class == hidden.Class {
					at = r.ID
				}
			}
			id := before + 1 // tables are numbered in order
			w.append(at, true, true, entry.Write{Table: id, Name: []byte("a"), Value: opaque("1")})
			if _, err := w.driver.Publish(t.Context()); (err == nil) != tc.open { // the driver takes what it was told
				t.Fatalf("publishing: %v", err)
			}
			if got := w.tableOf("late", rhumb.SnapshotOn, otherClass); got != id {
				t.Fatalf("the table got number %d, want %d", got, id)
			}
			await(t, "the row in the image", func() bool {
				rows, err := w.rows("late")
				return err == nil && len(rows) == 1
			})
		})
	}
}

// TestCatalogChangesWhileRead guards that no change of the catalog is lost: a table that is created
// just after the driver has read the catalog is in the image of the next version.
func TestCatalogChangesWhileRead(t *testing.T) {
	// On demand nothing but a changed catalog and Publish makes the driver read the catalog.
	w := newWorld(t, Policy{OnDemand: true})
	first := w.table("first", rhumb.SnapshotOn)
	w.check(map[string]rhumb.TableID{"first": first})

	read, changed := make(chan struct{}), make(chan struct{})
	hook := func() {
		close(read)
		<-changed
	}
	w.afterRead.Store(&hook)
	w.driver.CatalogChanged()
	<-read
	second := w.table("second", rhumb.SnapshotOn)
	close(changed)
	w.check(map[string]rhumb.TableID{"first": first, "second": second})
}

// TestToldBeforeStored guards an entry that the node reports before storage returns it.
func TestToldBeforeStored(t *testing.T) {
	w := newWorld(t, Policy{})
	id := w.table("t", rhumb.SnapshotOn)
	w.append(hashRange(0), true, true, entry.Write{Table: id, Name: []byte("a"), Value: opaque("1")})
	w.check(map[string]rhumb.TableID{"t": id})
	l := w.logs[hashRange(0)]
	w.driver.Committed(hashRange(0), Position{l.commit.Seq + 1, w.clock + 1}, nil)
	w.publish()
	w.append(hashRange(0), false, false, entry.Write{Table: id, Name: []byte("b"), Value: opaque("2")})
	await(t, "the entry in the image", func() bool {
		rows, err := w.rows("t")
		return err == nil && len(rows) == 2
	})
}

// TestLoadWaitsForStorage guards that a load has every entry up to the positions of its version. A node that catches up hears of entries
// and their commit in one message, so the driver has them before storage does.
func TestLoadWaitsForStorage(t *testing.T) {
	for _, followed := range []bool{false, true} {
		t.Run(fmt.Sprintf("followed=%t", followed), func(t *testing.T) {
			w := newWorld(t, Policy{OnDemand: true})
			id := w.table("t", rhumb.SnapshotOn)
			late, jumps := hashRange(1), hashRange(2)
			w.append(late, true, true, entry.Write{Table: id, Name: []byte("a"), Value: opaque("1")})
			w.append(jumps, true, true, entry.Write{Table: id, Name: []byte("b"), Value: opaque("1")})
			w.check(map[string]rhumb.TableID{"t": id})

			e, batch := w.next(late, []entry.Write{{Table: id, Name: []byte("a"), Value: opaque("2")}})
			w.driver.Committed(late, w.logs[late].commit, []*entry.Entry{e})
			// The image may follow the entry before storage has it, and the load may come after that.
			if followed {
				w.publish()
			}
			// The range jumps, so that the table is loaded.
			w.append(jumps, false, false, entry.Write{Table: id, Name: []byte("b"), Value: opaque("2")})
			w.append(jumps, false, false, entry.Write{Table: id, Name: []byte("b"), Value: opaque("3")})
			w.trim(jumps)
			w.driver.Committed(jumps, w.logs[jumps].commit, nil)
			w.publish()
			err := w.view(func(v reader.View) error {
				p, err := v.Position(late)
				if err != nil {
					return err
				}
				rows, err := w.rows("t")
				if want := string(opaque(fmt.Sprint(p.Seq))); err == nil && rows["a"] != want {
					t.Errorf("at position %d the image holds %q, and not %q", p.Seq, rows["a"], want)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}

			w.write(batch)
			w.check(map[string]rhumb.TableID{"t": id})
		})
	}
}

// TestJumpAwaitsCatalog guards that a range gets no position before the catalog gives it to the node: the load would not read it.
func TestJumpAwaitsCatalog(t *testing.T) {
	w := newWorld(t, Policy{OnDemand: true})
	old := w.state.State
	id := w.table("t", rhumb.SnapshotOn)
	home := hashRange(1)
	w.append(home, false, false, entry.Write{Table: id, Name: []byte("a"), Value: opaque("1")})
	for st, want := range map[*catalog.State]int{old: 0, w.state.State: 1} {
		c := &cut{d: &Driver{cfg: w.driver.cfg}, st: st, at: map[rhumb.RangeID]format.Position{}}
		if err := c.jumpRange(home, w.logs[home].commit); err != nil || len(c.at) != want {
			t.Errorf("positions %v, want %d: %v", c.at, want, err)
		}
	}
}

// TestLostCopyLeaves guards that a range whose copy is gone from storage, or quarantined, leaves the image with its records when its table is
// loaded, and returns with another copy.
func TestLostCopyLeaves(t *testing.T) {
	for _, quarantined := range []bool{false, true} {
		t.Run(fmt.Sprintf("quarantined=%t", quarantined), func(t *testing.T) {
			w := newWorld(t, Policy{OnDemand: true})
			id := w.table("t", rhumb.SnapshotOn)
			lost, jumps := hashRange(1), hashRange(2)
			put := func(at rhumb.RangeID, tell bool, value string) {
				w.append(at, tell, tell, entry.Write{Table: id, Name: fmt.Append(nil, "of ", at.Slot), Value: opaque(value)})
			}
			put(lost, true, "1")
			put(jumps, true, "1")
			w.check(map[string]rhumb.TableID{"t": id})
			drop := func() {
				b := w.engine.Store(lost).NewBatch()
				b.DropRange(lost)
				w.write(b)
			}
			if quarantined {
				// What the copy got wrong is never followed.
				put(lost, false, "wrong")
				b := w.engine.Store(lost).NewBatch()
				b.SetQuarantine(lost, "its log contradicts that of the primary")
				w.write(b)
				w.driver.Committed(lost, w.logs[lost].commit, nil)
				w.publish()
				if rows, err := w.rows("t"); err != nil || rows["of 1"] != string(opaque("1")) {
					t.Errorf("after the quarantine the image holds %q: %v", rows["of 1"], err)
				}
			} else {
				drop()
			}
			delete(w.logs, lost)
			put(jumps, false, "2")
			put(jumps, false, "3")
			w.trim(jumps)
			w.driver.Committed(jumps, w.logs[jumps].commit, nil)
			await(t, "the load", func() bool {
				w.publish()
				rows, err := w.rows("t")
				return err == nil && rows["of 2"] == string(opaque("3"))
			})
			w.check(map[string]rhumb.TableID{"t": id})
			if err := w.view(func(v reader.View) error { _, err := v.Position(lost); return err }); rhumb.KindOf(err) != rhumb.NotFound {
				t.Errorf("the position of a range without a copy: %v", err)
			}
			if quarantined {
				drop()
				put(lost, false, "0")
			}
			// Nobody reports the new copy: the driver has not forgotten the position.
			put(lost, false, "1")
			await(t, "the records of the new copy", func() bool {
				w.publish()
				rows, err := w.rows("t")
				return err == nil && len(rows) == 2
			})
			w.check(map[string]rhumb.TableID{"t": id})
		})
	}
}

// TestSplitDuringLoad guards the records of a range that storage divides before the driver hears of that, while a table is loaded: the load
// reads the first part only, and the image lacks the other one until it is loaded too.
func TestSplitDuringLoad(t *testing.T) {
	w := newWorldOf(t, Policy{OnDemand: true}, rhumb.ThisBuild("test").String())
	id := w.table("t", rhumb.SnapshotOn)
	tables := map[string]rhumb.TableID{"t": id}
	var ids []rhumb.RangeID
	for r := range w.state.Ranges() {
		ids = append(ids, r.ID)
	}
	parent, jumps := ids[0], ids[1]
	r, _ := w.state.Range(parent)
	last := r.LastSlot()
	child := rhumb.RangeID{Region: parent.Region, Slot: last}
	b := w.engine.Store(parent).NewBatch()
	b.CreateRange(storage.RangeState{Range: parent, LastSlot: last})
	w.logs[parent] = &log{rows: map[row]string{}}
	w.write(b)
	w.append(parent, true, true, entry.Write{Table: id, Name: []byte("first part"), Value: opaque("1")},
		entry.Write{Table: id, Name: []byte("second part"), Value: opaque("1"), Slot: last})
	w.append(jumps, true, true, entry.Write{Table: id, Name: []byte("other"), Value: opaque("1")})
	w.check(tables)

	w.apply(catalog.PrepareSplit{Range: parent, Version: r.Version, At: last})
	e, b := w.next(parent, nil)
	e.Requests[0].Split = last // only the driver looks at it
	w.write(b)
	b = w.engine.Store(parent).NewBatch()
	if _, err := b.Split(parent, storage.Split{At: last, Seq: e.Seq, Promised: 2}); err != nil {
		t.Fatal(err)
	}
	w.write(b)
	for range 2 {
		w.append(jumps, false, false, entry.Write{Table: id, Name: []byte("other"), Value: opaque("2")})
	}
	w.trim(jumps)
	w.driver.Committed(jumps, w.logs[jumps].commit, nil)
	w.publish()

	at := w.logs[parent].commit
	w.driver.Born(child, parent, at)
	w.driver.Committed(parent, at, []*entry.Entry{e})
	moved := row{id, "second part"}
	w.logs[child] = &log{commit: at, rows: map[row]string{moved: w.logs[parent].rows[moved]}}
	delete(w.logs[parent].rows, moved)
	born, _ := w.state.Range(child)
	w.apply(catalog.CompleteSplit{Range: child, Epoch: born.Epoch})
	w.driver.CatalogChanged()
	w.check(tables)
}

// TestRangeLeaves guards that the records of a range leave the image with the node's replica, and
// return with it.
func TestRangeLeaves(t *testing.T) {
	w := newWorld(t, Policy{})
	id := w.table("t", rhumb.SnapshotOn)
	for n := range hashSlots {
		w.append(hashRange(n), true, true, entry.Write{Table: id, Name: []byte{byte('a' + n)}, Value: opaque("v")})
	}
	w.check(map[string]rhumb.TableID{"t": id})
	w.apply(catalog.RegisterNode{Cluster: rhumb.UUID{1}, Store: rhumb.UUID{3}, Boot: 1, Nonce: 2, Region: "here", Zone: "b", HasLocation: true})
	gone := hashRange(1)
	record := func() *rhumb.Range { r, _ := w.state.Range(gone); return r }
	w.apply(catalog.SetReplicas{Range: gone, Version: record().Version, Replicas: []rhumb.NodeID{testNode, 2}})
	w.apply(catalog.AlterISR{Range: gone, Epoch: record().Epoch, Version: record().Version, Members: []catalog.Member{{Node: testNode, Boot: 1}, {Node: 2, Boot: 1}}})
	w.apply(catalog.Elect{Range: gone, Version: record().Version, Node: 2, InSync: []rhumb.NodeID{2}})
	w.apply(catalog.SetReplicas{Range: gone, Version: record().Version, Replicas: []rhumb.NodeID{2}, Preferred: 2})
	w.driver.CatalogChanged()
	kept := w.logs[gone]
	delete(w.logs, gone)
	await(t, "the range to leave", func() bool {
		rows, err := w.rows("t")
		return err == nil && len(rows) == hashSlots-1
	})
	w.check(map[string]rhumb.TableID{"t": id})
	if err := w.view(func(v reader.View) error { _, err := v.Position(gone); return err }); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("the position of a range that left: %v", err)
	}
	// The node still gets entries until it drops its copy. A position without the records would be wrong.
	w.logs[gone] = kept
	w.append(gone, true, true, entry.Write{Table: id, Name: []byte("late"), Value: opaque("v")})
	w.trim(gone)
	w.driver.Committed(gone, w.logs[gone].commit, nil)
	w.publish()
	if err := w.view(func(v reader.View) error { _, err := v.Position(gone); return err }); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("the position of a range that left, after entries that came later: %v", err)
	}
	w.apply(catalog.SetReplicas{Range: gone, Version: record().Version, Replicas: []rhumb.NodeID{testNode, 2}})
	w.driver.CatalogChanged()
	w.check(map[string]rhumb.TableID{"t": id})
}

// TestForeignTable guards that a table of the image that the catalog does not know is removed, even
// if another table has taken its name.
func TestForeignTable(t *testing.T) {
	w := newWorld(t, Policy{})
	p, err := snapshot.Open(snapshot.Config{Dir: w.dir()})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"old", "t"} {
		other, err := p.Table(snapshot.TableSpec{ID: rhumb.TableID(100 + i), Name: name, KeyKind: format.KeyName})
		if err != nil {
			t.Fatal(err)
		}
		c := p.Begin()
		if err := c.Put(other, snapshot.Record{Key: format.Key{Name: []byte("x")}, Value: opaque("v")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Publish(snapshot.CommitInfo{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	id := w.table("t", rhumb.SnapshotOn)
	w.append(hashRange(0), true, true, entry.Write{Table: id, Name: []byte("a"), Value: opaque("1")})
	w.check(map[string]rhumb.TableID{"t": id})
	if _, err := w.rows("old"); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a table that the catalog does not know: %v", err)
	}
}

// TestLoadOutlastsCollection guards that a load reads every range as of its position, although ranges are written, and their old versions
// collected, while the load is at others. Such a load never ended in a table of some gigabytes under writes.
func TestLoadOutlastsCollection(t *testing.T) {
	w := newWorld(t, Policy{})
	id := w.table("t", rhumb.SnapshotOn)
	want := map[string]string{}
	at := map[rhumb.RangeID]format.Position{}
	for i := range hashSlots {
		name, home := fmt.Sprint("n", i), hashRange(i)
		w.append(home, false, false, entry.Write{Table: id, Name: []byte(name), Value: opaque("before")})
		at[home] = format.Position{Epoch: 1, Seq: 1, HLC: w.logs[home].hlc}
		want[name] = string(opaque("before"))
	}
	info, _ := w.state.TableByName("t")
	tab := &table{Table: *info, stale: true}
	c := &cut{d: &Driver{cfg: w.driver.cfg, tables: map[rhumb.TableID]*table{id: tab}, loaded: map[rhumb.RangeID]rhumb.Slot{}}, st: w.state.State, at: at}
	if err := c.openReaders(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for rec, err := range c.scanTable(tab) {
		if err != nil {
			t.Fatal(err)
		}
		if got[string(rec.Key.Name)] = string(rec.Value); len(got) > 1 {
			continue
		}
		for i := range hashSlots {
			home := hashRange(i)
			// The last entry of a log stays, and what it supersedes with it.
			for range 2 {
				w.append(home, false, false, entry.Write{Table: id, Name: fmt.Append(nil, "n", i), Value: opaque("after")})
			}
			w.trim(home)
			if done, err := w.engine.Store(home).Collect(home, storage.CollectLimits{Before: w.clock + 1}); err != nil || done.Versions == 0 {
				t.Fatalf("collected %+v, %v", done, err)
			}
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("loaded %q, want %q", got, want)
	}
	c.closeReaders()
	// A version that is gone before the load begins makes the next attempt take newer positions.
	if err := c.openReaders(); rhumb.KindOf(err) != rhumb.Unavailable || c.readers != nil {
		t.Errorf("readers of collected versions: %v", err)
	}
}

// TestPauseWithoutRoom guards that a table which the image has no room for is not read again every second, and that a table with room is
// published soon after other failures.
func TestPauseWithoutRoom(t *testing.T) {
	d := &Driver{}
	for i, tt := range []struct {
		kind rhumb.Kind
		want time.Duration
	}{
		{rhumb.Unavailable, retryPause},
		{rhumb.Unavailable, retryPause},
		{rhumb.Overloaded, 2 * retryPause},
		{rhumb.DiskFull, 4 * retryPause},
		{rhumb.Unavailable, retryPause},
		{rhumb.TooLarge, 2 * retryPause},
	} {
		if d.lengthenPause(rhumb.E("test", tt.kind, "failed")); d.pause != tt.want {
			t.Errorf("failure %d: a pause of %v, want %v", i, d.pause, tt.want)
		}
	}
	for range 10 {
		d.lengthenPause(rhumb.E("test", rhumb.Overloaded, "failed"))
	}
	if d.pause != retryPauseMax {
		t.Errorf("the longest pause is %v", d.pause)
	}
}

// TestRandom applies random operations to a node's ranges and tables, and compares the image with
// the logs: late reports, logs that are trimmed before the driver has read them, tables that are
// published when their ranges have a history, and restarts with the image intact, damaged and
// removed.
func TestRandom(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t, Policy{OnDemand: seed%2 == 0})
			tables := map[string]rhumb.TableID{}
			ids := []rhumb.TableID{w.table("hidden", 0)}
			for step := range 400 {
				switch n := rng.IntN(100); {
				case n < 2 && len(ids) < 6:
					name := fmt.Sprint("t", step)
					id := w.table(name, rhumb.SnapshotOn|rhumb.SnapshotOrdered)
					tables[name], ids = id, append(ids, id)
				case n < 4 && len(w.logs) > 0:
					w.trim(slices.SortedFunc(maps.Keys(w.logs), rhumb.RangeID.Compare)[rng.IntN(len(w.logs))])
				case n < 6:
					if err := w.driver.Close(); err != nil {
						t.Fatal(err)
					}
					if rng.IntN(3) == 0 {
						damage(t, w.dir(), rng)
					}
					w.open(Policy{})
				case n < 12 && len(tables) > 0:
					w.check(tables)
				default:
					var writes []entry.Write
					for range 1 + rng.IntN(3) {
						value := rhumb.Tombstone
						if rng.IntN(4) > 0 {
							value = opaque(fmt.Sprint("v", step))
						}
						name := fmt.Sprint("k", rng.IntN(60))
						id := ids[rng.IntN(len(ids))]
						if !slices.ContainsFunc(writes, func(w entry.Write) bool { return w.Table == id && string(w.Name) == name }) {
							writes = append(writes, entry.Write{Table: id, Name: []byte(name), Value: value})
						}
					}
					// A name lives in one range: that of its number.
					var at int
					_, _ = fmt.Sscanf(string(writes[0].Name), "k%d", &at)
					writes = slices.DeleteFunc(writes, func(w entry.Write) bool {
						var n int
						_, _ = fmt.Sscanf(string(w.Name), "k%d", &n)
						return n%hashSlots != at%hashSlots
					})
					w.append(hashRange(at), rng.IntN(3) > 0, rng.IntN(2) > 0, writes...)
				}
			}
			if len(tables) == 0 {
				tables["last"] = w.table("last", rhumb.SnapshotOn)
			}
			w.check(tables)
		})
	}
}

// damage removes the image or truncates one of its files.
func damage(t *testing.T, dir string, rng *rand.Rand) {
	files, err := os.ReadDir(dir)
	if err != nil || rng.IntN(2) == 0 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		return
	}
	victim := filepath.Join(dir, files[rng.IntN(len(files))].Name())
	if info, err := os.Stat(victim); err == nil && info.Mode().IsRegular() {
		if err := os.Truncate(victim, info.Size()/2); err != nil {
			t.Fatal(err)
		}
	}
}

// newest returns the newest version of the image.
func (w *world) newest() (version uint64) {
	w.t.Helper()
	if err := w.view(func(v reader.View) error { version = v.Version(); return nil }); err != nil {
		w.t.Fatal(err)
	}
	return version
}

// TestPolicy guards that versions are published when the policy says so, and not before.
func TestPolicy(t *testing.T) {
	for _, tc := range []struct {
		name   string
		policy Policy
		demand bool // makes the version, else the last of the entries does
	}{
		{"on demand", Policy{OnDemand: true}, true},
		{"interval", Policy{Interval: time.Hour}, true},
		{"count", Policy{Count: 5}, false},
		{"interval or count", Policy{Interval: time.Hour, Count: 5}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, tc.policy)
			tables := map[string]rhumb.TableID{"t": w.table("t", rhumb.SnapshotOn)}
			w.check(tables)
			before := w.newest()
			for i := range 5 {
				w.append(hashRange(0), true, true, entry.Write{Table: tables["t"], Name: fmt.Append(nil, "k", i*hashSlots), Value: opaque("v")})
			}
			if tc.demand {
				w.check(tables)
			}
			await(t, "a version", func() bool { return w.newest() > before })
			if rows, err := w.rows("t"); err != nil || len(rows) != 5 || w.newest() != before+1 {
				t.Fatalf("%d rows at version %d, %v; want all 5 at version %d", len(rows), w.newest(), err, before+1)
			}
		})
	}
}

// TestCommitsShareVersions guards that a busy node does not make a version for each commit.
func TestCommitsShareVersions(t *testing.T) {
	w := newWorld(t, Policy{})
	id := w.table("t", rhumb.SnapshotOn)
	await(t, "the table", func() bool { _, err := w.rows("t"); return err == nil })
	version := func() (n uint64) {
		if err := w.view(func(v reader.View) error { n = v.Version(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const commits = 300
	var at [commits]Position
	for i := range at {
		w.append(hashRange(0), false, false, entry.Write{Table: id, Name: []byte("k"), Value: opaque(fmt.Sprint(i))})
		at[i] = w.logs[hashRange(0)].commit
	}
	// Storage has all commits before the driver hears of the first, so only the reports have a pace: ten in the time of one
	// rest.
	pace := time.NewTicker(wakeInterval / 10)
	defer pace.Stop()
	before, begin := version(), time.Now()
	for i := range at {
		<-pace.C
		w.driver.Committed(hashRange(0), at[i], nil)
	}
	await(t, "the last commit", func() bool {
		rows, err := w.rows("t")
		return err == nil && rows["k"] == string(opaque(fmt.Sprint(commits-1)))
	})
	// The bound follows from the time that the reports took, however long that was.
	if made, most := version()-before, uint64(time.Since(begin)/wakeInterval)+2; made > most {
		t.Errorf("%d commits in %v made %d versions, want at most %d", commits, time.Since(begin), made, most)
	}
}
