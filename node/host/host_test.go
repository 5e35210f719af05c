package host

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/storage/storagetest"
)

var testRange = rhumb.RangeID{Region: 1, Slot: 7}

const testTable rhumb.TableID = 1

// world holds a few hosts on real stores. Function calls that can be cut connect them, and the
// record of one range takes the place of the metadata group.
type world struct {
	t     *testing.T
	hosts map[rhumb.NodeID]*Host

	disk   storage.Config
	change func(*Config)
	// ahead is how far the wall clocks of all nodes are ahead of this machine's.
	ahead atomic.Int64

	// mu guards the three fields below.
	mu  sync.Mutex
	rec *rhumb.Range
	// child is the record of a range that is split off, or nil.
	child *rhumb.Range
	cut   map[rhumb.NodeID]bool
	// deaf are the nodes that hear of no new record.
	deaf map[rhumb.NodeID]bool
	// unconfirmed makes ConfirmPrimary fail, as without a majority of the metadata group.
	unconfirmed bool
}

// line connects one host with the others.
type line struct {
	w    *world
	self rhumb.NodeIdentity
	out  map[rhumb.NodeID]chan func()
}

func newWorld(t *testing.T, n int) *world {
	return newWorldWith(t, n, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(*Config) {})
}

// newWorldWith is newWorld with another kind of store and a function that changes the configuration
// of each host.
func newWorldWith(t *testing.T, n int, disk storage.Config, change func(*Config)) *world {
	return newWideWorld(t, n, 0, disk, change)
}

// newWideWorld is newWorldWith for a range up to a last slot.
func newWideWorld(t *testing.T, n int, last rhumb.Slot, disk storage.Config, change func(*Config)) *world {
	w := &world{t: t, hosts: map[rhumb.NodeID]*Host{}, cut: map[rhumb.NodeID]bool{}, disk: disk, change: change}
	w.rec = &rhumb.Range{ID: testRange, Last: last, Class: 1, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, Preferred: 1}
	for i := range n {
		id := rhumb.NodeID(i + 1)
		w.rec.Replicas = append(w.rec.Replicas, id)
		w.rec.InSync = append(w.rec.InSync, id)
	}
	for _, id := range w.rec.Replicas {
		dir := t.TempDir()
		if _, ok := disk.FS.(*storagetest.Disk); ok {
			dir = storagetest.Dir // where a crash looks for the store
		}
		w.start(id, dir)
	}
	for id, h := range w.hosts {
		h.SetPeers(w.peers(id))
		for other := range w.hosts {
			if other != id {
				h.Connected(other, true)
			}
		}
		h.Update([]*rhumb.Range{w.rec.Clone()})
	}
	return w
}

func (w *world) peers(self rhumb.NodeID) (out []lease.PeerInfo) {
	for _, id := range w.rec.Replicas {
		if id != self {
			out = append(out, lease.PeerInfo{ID: id, Boot: 1, Timing: lease.RegionTiming()})
		}
	}
	return out
}

func (w *world) start(id rhumb.NodeID, dir string) {
	engine, err := storage.OpenEngine([]string{dir}, w.disk)
	if err != nil {
		w.t.Fatal(err)
	}
	clock, err := hlc.New(hlc.Config{Persist: engine.SetHLCCeiling, Wall: w.wall})
	if err != nil {
		w.t.Fatal(err)
	}
	l := &line{w: w, self: rhumb.NodeIdentity{Node: id, Boot: 1}, out: map[rhumb.NodeID]chan func(){}}
	cfg := Config{
		Self: l.self, Engine: engine, Clock: clock, Net: l, Meta: l, Logger: slog.New(slog.DiscardHandler), Fresh: true,
		Settings: func(rhumb.RangeID) (rhumb.ClassSettings, bool) {
			return rhumb.ClassSettings{MinInSync: min(2, len(w.rec.Replicas))}, true
		},
		Fatal: func(err error) { panic(err) },
	}
	w.change(&cfg)
	h, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.hosts[id] = h
	ctx, cancel := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	for _, to := range w.rec.Replicas {
		ch := make(chan func(), 1_024)
		l.out[to] = ch
		senders.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case do := <-ch:
					do()
				}
			}
		})
	}
	w.t.Cleanup(func() {
		h.Close()
		cancel()
		senders.Wait()
		if err := engine.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func (l *line) passes(to rhumb.NodeID) (*Host, bool) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.hosts[to], !l.w.cut[to] && !l.w.cut[l.self.Node]
}

func (l *line) queue(to rhumb.NodeID, do func(h *Host)) {
	select {
	case l.out[to] <- func() {
		if h, ok := l.passes(to); ok && h != nil {
			do(h)
		}
	}:
	default: // lost, as on a network
	}
}

func (l *line) Send(to rhumb.NodeID, msgs []replica.Message) {
	msgs = slices.Clone(msgs)
	l.queue(to, func(h *Host) { h.Receive(l.self.Node, msgs) })
}

func (l *line) SendHeartbeat(to rhumb.NodeID, f *lease.Frame) {
	l.queue(to, func(h *Host) { h.Leases().Receive(l.self, f) })
}

// Change applies a proposal to the record if its version is the record's.
func (l *line) Change(p replica.MetaProposal, done func(error)) {
	go func() { done(l.change(p)) }()
}

func (l *line) change(p replica.MetaProposal) error {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.child != nil && p.Range == l.w.child.ID {
		return l.w.changeChildLocked(p)
	}
	if p.Version != l.w.rec.Version || l.w.cut[l.self.Node] {
		return rhumb.E("test", rhumb.Conflict, "another version")
	}
	rec := l.w.rec.Clone()
	rec.Version++
	switch p.Kind {
	case replica.AlterISR:
		rec.InSync = p.New
	case replica.Adopt: // the leader of the metadata is far away
		return rhumb.E("test", rhumb.Unavailable, "not recorded yet")
	case replica.Yield: // the next after the primary
		i := slices.Index(rec.InSync, rec.Primary)
		rec.Allocated++
		rec.Epoch, rec.Primary = rec.Allocated, rec.InSync[(i+1)%len(rec.InSync)]
	}
	l.w.publishLocked(rec)
	return nil
}

func (l *line) ConfirmPrimary(_ context.Context, id rhumb.RangeID, e rhumb.Epoch) (bool, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.unconfirmed {
		return false, rhumb.E("test", rhumb.Unavailable, "no metadata majority")
	}
	rec := l.w.rec
	if l.w.child != nil && l.w.child.ID == id {
		rec = l.w.child
	}
	return rec.Primary == l.self.Node && rec.Epoch == e, nil
}

// changeChildLocked applies a proposal to the record of the range that is split off, as the catalog does.
func (w *world) changeChildLocked(p replica.MetaProposal) error {
	child, rec := w.child.Clone(), w.rec.Clone()
	switch {
	case p.Kind == replica.Complete && child.Birth != 0 && p.Epoch == child.Epoch:
		child.Birth, rec.Last = 0, child.ID.Slot-1
		rec.Version++
	case p.Kind == replica.AlterISR && p.Version == child.Version:
		child.InSync = p.New
	default:
		return rhumb.E("test", rhumb.Conflict, "not now")
	}
	child.Version++
	w.publishChildLocked(child)
	w.publishLocked(rec)
	return nil
}

// publishChildLocked makes child the record of the range that is split off.
func (w *world) publishChildLocked(child *rhumb.Range) {
	w.child = child
	for id, h := range w.hosts {
		if !w.cut[id] {
			go h.Update([]*rhumb.Range{child.Clone()})
		}
	}
}

// reserve reserves a range from a slot on, as the catalog does.
func (w *world) reserve(at rhumb.Slot) rhumb.RangeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	child := w.rec.Clone()
	child.ID.Slot, child.Version = at, 1
	child.Epoch = w.rec.Allocated + 1
	child.Allocated, child.Birth = child.Epoch, child.Epoch
	w.publishChildLocked(child)
	return child.ID
}

// publishLocked makes rec the record and delivers it to the hosts that are neither cut off nor deaf.
func (w *world) publishLocked(rec *rhumb.Range) {
	w.rec = rec
	for id, h := range w.hosts {
		if !w.cut[id] && !w.deaf[id] {
			go h.Update([]*rhumb.Range{rec.Clone()})
		}
	}
}

// elect makes n primary of a new epoch, with the given in-sync set.
func (w *world) elect(n rhumb.NodeID, inSync ...rhumb.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec.Clone()
	rec.Version++
	rec.Allocated++
	rec.Epoch, rec.Primary, rec.InSync = rec.Allocated, n, inSync
	w.publishLocked(rec)
}

// prepare reserves the next epoch for n, to which the primary then hands the range over.
func (w *world) prepare(n rhumb.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec.Clone()
	rec.Version++
	rec.Allocated++
	rec.Prepared = &rhumb.Handover{Epoch: rec.Allocated, Target: n}
	w.publishLocked(rec)
}

func (w *world) isolate(n rhumb.NodeID, cut bool) {
	w.mu.Lock()
	w.cut[n] = cut
	w.mu.Unlock()
	if !cut {
		for id, h := range w.hosts {
			if id != n {
				h.Connected(n, false)
				h.Connected(n, true)
				w.hosts[n].Connected(id, false)
				w.hosts[n].Connected(id, true)
			}
		}
		w.hosts[n].Update([]*rhumb.Range{w.rec.Clone()})
	}
}

func (w *world) wall() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

// pass advances all wall clocks.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.ahead.Add(int64(d))
	for _, h := range w.hosts {
		if err := h.cfg.Clock.Refresh(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// propose writes one key and waits.
func (w *world) propose(n rhumb.NodeID, m rhumb.Mutation, id rhumb.RequestID) (rhumb.Outcome, error) {
	type answer struct {
		o   rhumb.Outcome
		err error
	}
	got := make(chan answer, 1)
	m.Table = testTable
	w.hosts[n].Propose(&rhumb.Batch{Range: testRange, ID: id, Mutations: []rhumb.Mutation{m}}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
	w.hosts[n].Drive()
	select {
	case a := <-got:
		return a.o, a.err
	case <-time.After(20 * time.Second):
		w.t.Fatal("no answer to a proposal")
		return rhumb.Outcome{}, nil
	}
}

func putOf(name, value string) rhumb.Mutation {
	return rhumb.Mutation{Kind: rhumb.Put, Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(value))}
}

// put writes one key at n, and retries while the range is not served.
func (w *world) put(n rhumb.NodeID, name, value string) {
	w.t.Helper()
	w.eventually(func() error {
		_, err := w.propose(n, putOf(name, value), rhumb.RequestID{})
		return err
	})
}

func (w *world) get(n rhumb.NodeID, name string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	items, _, err := w.hosts[n].Get(ctx, testRange, testTable, [][]byte{[]byte(name)})
	if err != nil {
		return "", err
	}
	b, _ := rhumb.DecodeOpaque(items[0].Value)
	return string(b), nil
}

func (w *world) eventually(do func() error) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestLoneCommitIsTold guards that a secondary learns of a lone write's commit before the usual
// ticks would report it, which takes two of them. A busy machine may be late with some notices; the
// fastest counts.
func TestLoneCommitIsTold(t *testing.T) {
	told := make(chan rhumb.Seq, 1_000)
	w := newWorldWith(t, 2, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(cfg *Config) {
		if cfg.Self.Node == 2 {
			cfg.Committed = func(c Committed) { told <- c.Seq }
		}
	})
	w.put(1, "k", "0")
	fastest := time.Hour
	for range 20 {
		o, err := w.propose(1, putOf("k", "v"), rhumb.RequestID{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for seq := rhumb.Seq(0); seq < o.Seq; {
			select {
			case seq = <-told:
			case <-time.After(20 * time.Second):
				t.Fatal("the secondary never heard of the commit")
			}
		}
		fastest = min(fastest, time.Since(start))
	}
	if fastest >= tickInterval {
		t.Errorf("the secondary heard of a commit %v after its acknowledgement at the earliest, ticks come every %v", fastest, tickInterval)
	}
}

// TestReadYourWrites guards rule W and rule L: every later read at the primary sees an acknowledged
// write.
func TestReadYourWrites(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, n)
			w.put(1, "k", "0")
			var wait sync.WaitGroup
			for c := range 8 {
				wait.Go(func() {
					name := fmt.Sprintf("k%d", c)
					for i := range 50 {
						want := fmt.Sprint(i)
						if _, err := w.propose(1, putOf(name, want), rhumb.RequestID{}); err != nil {
							t.Error(err)
							return
						}
						if got, err := w.get(1, name); err != nil || got != want {
							t.Errorf("read %q, %v after writing %q", got, err, want)
							return
						}
					}
				})
			}
			wait.Wait()
		})
	}
}

// TestPatchesOfOneRecordAddUp guards that proposals of one pass see each other: none of many
// concurrent patches of one record is lost.
func TestPatchesOfOneRecordAddUp(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	const callers, rounds = 16, 20
	var wait sync.WaitGroup
	for c := range callers {
		wait.Go(func() {
			for i := range rounds {
				r, err := rhumb.NewRecord(rhumb.Field{Name: fmt.Sprintf("f%d-%d", c, i), Value: rhumb.BoolField(true)})
				if err != nil {
					t.Error(err)
				}
				if _, err := w.propose(1, rhumb.Mutation{Kind: rhumb.Patch, Name: []byte("rec"), Value: rhumb.EncodeRecord(nil, r)}, rhumb.RequestID{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	items, _, err := w.hosts[1].Get(t.Context(), testRange, testTable, [][]byte{[]byte("rec")})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := rhumb.DecodeRecord(items[0].Value)
	if err != nil || len(rec) != callers*rounds {
		t.Fatalf("the record has %d fields (%v), want %d", len(rec), err, callers*rounds)
	}
}

// TestFailedConditionTellsTheVersion guards that the loser of a race learns the present version
// without another read.
func TestFailedConditionTellsTheVersion(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "a")
	first, err := w.propose(1, putOf("k", "b"), rhumb.RequestID{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		cond rhumb.Condition
		want rhumb.Version
	}{
		{"k", rhumb.Condition{Kind: rhumb.IfAbsent}, first.Version},
		{"k", rhumb.Condition{Kind: rhumb.IfVersion, Version: rhumb.Version{HLC: 1, Node: 1}}, first.Version},
		{"none", rhumb.Condition{Kind: rhumb.IfVersion, Version: first.Version}, rhumb.Version{}},
		{"none", rhumb.Condition{Kind: rhumb.IfPresent}, rhumb.Version{}},
	} {
		m := putOf(tc.name, "c")
		m.Cond = tc.cond
		_, err := w.propose(1, m, rhumb.RequestID{})
		if rhumb.KindOf(err) != rhumb.ConditionFailed || rhumb.CurrentOf(err) != tc.want {
			t.Errorf("%s of %s: version %s and %v, want %s", tc.cond.Kind, tc.name, rhumb.CurrentOf(err), err, tc.want)
		}
	}
}

// TestFailover guards rules E, T and S: the next primary has everything acknowledged, and the
// deposed one answers nothing and returns as a secondary.
func TestFailover(t *testing.T) {
	w := newWorld(t, 3)
	for i := range 20 {
		w.put(1, fmt.Sprintf("k%d", i), "old")
	}
	w.isolate(1, true)
	lost := make(chan error, 1)
	w.hosts[1].Propose(&rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: testTable, Name: []byte("k0"), Value: rhumb.EncodeOpaque(nil, []byte("lost"))}}},
		func(_ rhumb.Outcome, err error) { lost <- err })
	w.hosts[1].Drive()
	w.elect(2, 2, 3)
	for i := range 20 {
		var got string
		w.eventually(func() (err error) { got, err = w.get(2, fmt.Sprintf("k%d", i)); return err })
		if got != "old" {
			t.Fatalf("k%d is %q at the new primary", i, got)
		}
	}
	w.mu.Lock()
	w.unconfirmed = true
	w.mu.Unlock()
	// Until its lease expires the old primary may answer, and correctly so: nobody else served
	// before.
	w.eventually(func() error {
		if _, err := w.get(1, "k0"); err == nil {
			return fmt.Errorf("the deposed primary still answers reads")
		}
		return nil
	})
	w.mu.Lock()
	// On a busy machine the lease of the new primary may expire too.
	w.unconfirmed = false
	w.mu.Unlock()
	w.put(2, "k0", "new")
	w.isolate(1, false)
	if err := <-lost; err == nil {
		t.Fatal("a write that only the deposed primary had was acknowledged")
	}
	w.eventually(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.rec.InSync) != 3 {
			return fmt.Errorf("in sync are %v", w.rec.InSync)
		}
		return nil
	})
	if got, err := w.get(2, "k0"); err != nil || got != "new" {
		t.Fatalf("k0 is %q, %v", got, err)
	}
}

// TestElectedPrimaryHoldsWrites guards that a write that reaches the new primary while it waits for
// the leases of the old one is answered once it serves, without a retry of the caller.
func TestElectedPrimaryHoldsWrites(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "old")
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.eventually(func() error {
		if s, err := w.hosts[2].Status(t.Context(), testRange); err != nil || s.Epoch < 2 {
			return fmt.Errorf("the election has not arrived: %v", err)
		}
		return nil
	})
	got := ask(w.hosts[2], putOf("k", "new"))
	w.hosts[2].Drive()
	if a := w.answered(got); a.err != nil {
		t.Fatalf("a write during the election is answered %v, want success", a.err)
	}
	if v, err := w.get(2, "k"); err != nil || v != "new" {
		t.Fatalf("k is %q, %v", v, err)
	}
}

// TestRetryIsAppliedOnce guards docs/replication.md#requests: a request ID is applied once, even if it is repeated
// after its answer.
func TestRetryIsAppliedOnce(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	id := rhumb.RequestID{Client: rhumb.UUID{1}, Seq: 1}
	first, err := w.propose(1, putOf("k", "a"), id)
	if err != nil {
		t.Fatal(err)
	}
	w.put(1, "k", "b")
	again, err := w.propose(1, putOf("k", "a"), id)
	if err != nil || again.Version != first.Version || again.Seq != first.Seq {
		t.Fatalf("the retry answered %+v, %v, want %+v", again, err, first)
	}
	if got, _ := w.get(1, "k"); got != "b" {
		t.Fatalf("k is %q: the retry was applied again", got)
	}
}

// TestRetryAfterFailoverIsAppliedOnce guards the same across primaries: the new one has seen none
// of the requests, and must recognise all that the old one applied, in whatever order they are
// repeated.
func TestRetryAfterFailoverIsAppliedOnce(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	const requests = 10
	id := func(i int) rhumb.RequestID { return rhumb.RequestID{Client: rhumb.UUID{1}, Seq: uint64(i + 1)} }
	var first [requests]rhumb.Outcome
	for i := range first {
		var err error
		if first[i], err = w.propose(1, putOf("k", fmt.Sprint(i)), id(i)); err != nil {
			t.Fatal(err)
		}
	}
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.put(2, "other", "new")
	for _, i := range []int{3, 9, 0, 5, 4, 8, 1, 2, 7, 6} {
		again, err := w.propose(2, putOf("k", fmt.Sprint(i)), id(i))
		if err != nil || again.Version != first[i].Version {
			t.Fatalf("the retry of request %d answered %+v, %v, want %+v", i, again, err, first[i])
		}
	}
	if _, err := w.propose(2, putOf("k", "last"), id(requests)); err != nil {
		t.Fatal(err)
	}
	if got, _ := w.get(2, "k"); got != "last" {
		t.Fatalf("k is %q", got)
	}
}

// newBenchHost returns the only host of a range, as its primary, and a function that writes 100 bytes.
func newBenchHost(b *testing.B) (h *Host, write func(i int) error) {
	engine, err := storage.OpenEngine([]string{b.TempDir()}, storage.Config{})
	if err != nil {
		b.Fatal(err)
	}
	clock, err := hlc.New(hlc.Config{Persist: engine.SetHLCCeiling, Window: time.Hour, Refresh: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	rec := &rhumb.Range{ID: testRange, Class: 1, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, Replicas: []rhumb.NodeID{1}, InSync: []rhumb.NodeID{1}}
	l := &line{w: &world{hosts: map[rhumb.NodeID]*Host{}, rec: rec, cut: map[rhumb.NodeID]bool{}}, self: rhumb.NodeIdentity{Node: 1, Boot: 1}}
	h, err = New(Config{
		Self: l.self, Engine: engine, Clock: clock, Net: l, Meta: l, Logger: slog.New(slog.DiscardHandler), Fresh: true,
		Settings: func(rhumb.RangeID) (rhumb.ClassSettings, bool) { return rhumb.ClassSettings{MinInSync: 1}, true },
		Fatal:    func(err error) { panic(err) },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { h.Close(); _ = engine.Close() })
	h.Update([]*rhumb.Range{rec})
	value := rhumb.EncodeOpaque(nil, make([]byte, 100))
	write = func(i int) error {
		done := make(chan error, 1)
		h.Propose(&rhumb.Batch{Range: testRange, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: testTable, Name: fmt.Appendf(nil, "key-%06d", i%100_000), Value: value}}},
			func(_ rhumb.Outcome, err error) { done <- err })
		h.Drive()
		return <-done
	}
	for write(0) != nil {
		time.Sleep(time.Millisecond)
	}
	return h, write
}

// BenchmarkGet measures a strong read of one record in memory.
func BenchmarkGet(b *testing.B) {
	h, write := newBenchHost(b)
	if err := write(1); err != nil {
		b.Fatal(err)
	}
	names := [][]byte{[]byte("key-000001")}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.Get(b.Context(), testRange, testTable, names); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPropose measures a durable write of 100 bytes through one host without secondaries.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			benchPropose(b, callers)
		})
	}
}

func benchPropose(b *testing.B, callers int) {
	_, write := newBenchHost(b)
	b.ReportAllocs()
	b.ResetTimer()
	var wait sync.WaitGroup
	for c := range callers {
		wait.Go(func() {
			for i := c; i < b.N; i += callers {
				if err := write(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wait.Wait()
}
