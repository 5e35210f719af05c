package host

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// metric returns the value of one of the host's counters or gauges.
func metric(t *testing.T, h *Host, name string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(h.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// hold prevents passes until the returned function is called.
func hold(w *world, h *Host) (release func()) {
	w.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.driving {
			return fmt.Errorf("a pass runs on and on")
		}
		h.driving = true
		return nil
	})
	return func() {
		h.mu.Lock()
		h.driving = false
		h.mu.Unlock()
		h.Drive()
	}
}

type answer struct {
	o   rhumb.Outcome
	err error
}

// ask proposes a batch without driving the host.
func ask(h *Host, ms ...rhumb.Mutation) <-chan answer {
	// Room for a second answer: a test that expects one must see it, and the host must not block.
	got := make(chan answer, 2)
	for i := range ms {
		ms[i].Table = testTable
	}
	h.Propose(&rhumb.Batch{Range: testRange, Mutations: ms}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
	return got
}

func (w *world) answered(got <-chan answer) answer {
	w.t.Helper()
	select {
	case a := <-got:
		return a
	case <-time.After(20 * time.Second):
		w.t.Fatal("no answer")
		return answer{}
	}
}

// TestLargeRangeTakesOnlyUpdates guards rhumb.RangeSizeMax: above it existing keys can be changed
// and deleted. A batch with a new key is rejected as a whole with Overloaded.
func TestLargeRangeTakesOnlyUpdates(t *testing.T) {
	const most = 10_000
	w := newWorldWith(t, 1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) { c.RangeSizeMax = most })
	h := w.hosts[1]
	w.put(1, "old", "")
	for i := 0; h.DataBytes(testRange) <= most; i++ {
		w.put(1, fmt.Sprintf("k%d", i), strings.Repeat("x", 2_000))
	}
	record, err := rhumb.NewRecord(rhumb.Field{Name: "f", Value: rhumb.BoolField(true)})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(name string) rhumb.Mutation {
		return rhumb.Mutation{Kind: rhumb.Patch, Name: []byte(name), Value: rhumb.EncodeRecord(nil, record)}
	}
	for _, c := range []struct {
		name string
		ms   []rhumb.Mutation
		want rhumb.Kind
	}{
		{"put of a new key", []rhumb.Mutation{putOf("new", "v")}, rhumb.Overloaded},
		{"patch of a new key", []rhumb.Mutation{patch("new")}, rhumb.Overloaded},
		{"insert", []rhumb.Mutation{{Kind: rhumb.Insert, Value: rhumb.EncodeOpaque(nil, []byte("v"))}}, rhumb.Overloaded},
		{"old and new in one batch", []rhumb.Mutation{putOf("old", "v"), putOf("new", "v")}, rhumb.Overloaded},
		{"put of a key that is there", []rhumb.Mutation{putOf("old", "v")}, rhumb.Other},
		{"delete of a key that is there", []rhumb.Mutation{{Kind: rhumb.Delete, Name: []byte("k0")}}, rhumb.Other},
		{"delete of no key", []rhumb.Mutation{{Kind: rhumb.Delete, Name: []byte("new")}}, rhumb.Other},
		{"put of a deleted key", []rhumb.Mutation{putOf("k0", "v")}, rhumb.Overloaded},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ask(h, c.ms...)
			h.Drive()
			a := w.answered(got)
			if rhumb.KindOf(a.err) != c.want || (c.want == rhumb.Other) != (a.err == nil) {
				t.Fatalf("answered %+v, %v", a.o, a.err)
			}
			if a.err != nil && !strings.Contains(a.err.Error(), fmt.Sprint(most)) {
				t.Fatalf("the error does not name the bound: %v", a.err)
			}
		})
	}
	if got, _ := w.get(1, "old"); got != "v" {
		t.Fatalf("old is %q", got)
	}
	if n := metric(t, h, "rhumb_host_range_full_total"); n != 5 {
		t.Errorf("%v refusals were counted, want 5", n)
	}
}

// TestReadIsBounded guards rhumb.ReadSizeMax: a read that exceeds it is rejected before its result
// is collected.
func TestReadIsBounded(t *testing.T) {
	w := newWorld(t, 1)
	var names [][]byte
	for i := range 5 {
		name := fmt.Sprintf("k%d", i)
		w.put(1, name, strings.Repeat("x", rhumb.ValueSizeMax-100))
		names = append(names, []byte(name))
	}
	items, _, err := w.hosts[1].Get(t.Context(), testRange, testTable, names)
	if rhumb.KindOf(err) != rhumb.TooLarge || items != nil || !strings.Contains(err.Error(), fmt.Sprint(rhumb.ReadSizeMax)) {
		t.Fatalf("a read of 10 MB gave %d items, %v", len(items), err)
	}
	if items, _, err = w.hosts[1].Get(t.Context(), testRange, testTable, names[:4]); err != nil || len(items) != 4 {
		t.Fatalf("a read of 8 MB gave %d items, %v", len(items), err)
	}
}

// TestWhatWaitsIsBounded guards the memory of a host that runs no passes: batches are rejected,
// entries of peers are dropped, and acknowledgements still get through.
func TestWhatWaitsIsBounded(t *testing.T) {
	peersIn := memory.NewBudget("peers_in", 2*waitingBytesMax)
	w := newWorldWith(t, 1, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(c *Config) { c.Budgets.PeersIn = peersIn })
	w.put(1, "k", "v")
	h := w.hosts[1]
	release := hold(w, h)
	big := strings.Repeat("x", rhumb.ValueSizeMax-100)
	var taken []<-chan answer
	refused := 0
	for i := range 2 * waitingBytesMax / rhumb.ValueSizeMax {
		got := ask(h, putOf(fmt.Sprintf("k%d", i), big))
		select {
		case a := <-got:
			if refused++; rhumb.KindOf(a.err) != rhumb.Overloaded {
				t.Fatalf("batch %d was answered %v", i, a.err)
			}
		default:
			taken = append(taken, got)
		}
	}
	if want := waitingBytesMax / (rhumb.ValueSizeMax + proposeOverhead); len(taken) != want || refused == 0 {
		t.Fatalf("%d batches of 2 MiB were taken, want %d", len(taken), want)
	}
	entries := func(n int) []replica.Message {
		e := &entry.Entry{Requests: []entry.Request{{HLC: 1, Writes: []entry.Write{{Table: testTable, Name: []byte("k"), Value: make([]byte, n)}}}}}
		return []replica.Message{{Kind: replica.Append, Range: testRange, From: 9, To: 1, Entries: []*entry.Entry{e}}}
	}
	// Peers have a budget apart from that of clients.
	h.Receive(9, entries(waitingBytesMax))
	h.Receive(9, entries(waitingBytesMax+1))
	h.Receive(9, []replica.Message{{Kind: replica.Ack, Range: testRange, From: 9, To: 1}})
	h.mu.Lock()
	events, proposals := len(h.queue), len(h.proposals)
	h.mu.Unlock()
	if events < 2 || proposals != len(taken) || peersIn.Used() > peersIn.Most() {
		t.Fatalf("%d bytes of peers, %d events and %d batches wait", peersIn.Used(), events, proposals)
	}
	if n := metric(t, h, "rhumb_host_dropped_messages_total"); n != 1 {
		t.Fatalf("%v messages were dropped, want 1", n)
	}
	release()
	// The replica rejects the batches above its own bound.
	for _, got := range taken {
		if a := w.answered(got); a.err != nil && rhumb.KindOf(a.err) != rhumb.Overloaded {
			t.Fatal(a.err)
		}
	}
	if used, _ := h.admission.readUsage(); used != 0 || peersIn.Used() != 0 {
		t.Fatalf("%d bytes of batches and %d of peers count when nothing waits", used, peersIn.Used())
	}
}

// TestQuarantineIsTold guards that operators can see a replica that serves nothing.
func TestQuarantineIsTold(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "v")
	h := w.hosts[2]
	if n := metric(t, h, "rhumb_host_quarantined_replicas"); n != 0 {
		t.Fatalf("%v replicas are quarantined", n)
	}
	// Node 3 claims to be a second primary of epoch 1.
	h.Receive(3, []replica.Message{{Kind: replica.Append, Range: testRange, From: 3, To: 2, Epoch: 1}})
	w.eventually(func() error {
		if n := metric(t, h, "rhumb_host_quarantined_replicas"); n != 1 {
			return fmt.Errorf("%v replicas are quarantined, want 1", n)
		}
		return nil
	})
	s, err := h.Status(t.Context(), testRange)
	if err != nil || s.State != replica.Quarantined || !strings.Contains(s.Quarantine, "I1") {
		t.Fatalf("the replica is %s because of %q, %v", s.State, s.Quarantine, err)
	}
}

// TestSuspicionDoesNotWaitForPass guards that the goroutine that sends heartbeats never runs a
// pass, which may wait for the disk.
func TestSuspicionDoesNotWaitForPass(t *testing.T) {
	w := newWorld(t, 1)
	h := w.hosts[1]
	hold(w, h)
	stuck, done := make(chan struct{}), make(chan struct{})
	h.enqueue(askEvent{func(*Host) { <-stuck }})
	h.mu.Lock()
	h.driving = false
	h.mu.Unlock()
	go func() {
		h.updateSuspects(nil)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("a suspicion waits for a pass")
	}
	close(stuck)
	<-done
	w.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.driving || len(h.queue) > 0 {
			return fmt.Errorf("%d events wait", len(h.queue))
		}
		return nil
	})
}

// TestOldVersionsGo guards that superseded versions are collected once the last replica has caught
// up, even if nothing is written afterwards.
func TestOldVersionsGo(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "")
	w.isolate(3, true)
	const updates, size = 300, 20_000
	for range updates {
		w.put(1, "k", strings.Repeat("x", size))
	}
	if n := w.hosts[1].DataBytes(testRange); n < updates*size {
		t.Fatalf("%d bytes are kept while a replica is behind", n)
	}
	w.isolate(3, false)
	w.eventually(func() error {
		if n := w.hosts[1].DataBytes(testRange); n > updates*size/2 { // the log is trimmed in steps of 1 MiB
			return fmt.Errorf("one key of %d bytes takes %d", size, n)
		}
		return nil
	})
}

// TestCloseAnswersEverything guards that every Propose is answered exactly once. A batch that no
// pass has taken was certainly not applied. Nothing runs after Close.
func TestCloseAnswersEverything(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "v")
	h := w.hosts[1]
	w.isolate(1, true)
	underway := ask(h, putOf("k", "under way"))
	h.Drive()
	w.eventually(func() error {
		if s, err := h.Status(t.Context(), testRange); err != nil || s.Proposals == 0 {
			return fmt.Errorf("no proposal is under way: %v", err)
		}
		return nil
	})
	release := hold(w, h)
	waiting := ask(h, putOf("k", "waiting"))
	status := make(chan error, 1)
	go func() {
		_, err := h.Summary(t.Context())
		status <- err
	}()
	w.eventually(func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, ev := range h.queue {
			if _, ok := ev.(askEvent); ok {
				return nil
			}
		}
		return fmt.Errorf("the question does not wait yet")
	})
	h.mu.Lock()
	// Close sets closed first. From then on no pass may take the waiting events.
	h.closed = true
	h.mu.Unlock()
	release()
	h.mu.Lock()
	h.closed = false
	h.mu.Unlock()
	h.Close()
	if a := w.answered(underway); rhumb.KindOf(a.err) != rhumb.Unknown {
		t.Errorf("what was under way is answered %v, want unknown", a.err)
	}
	if a := w.answered(waiting); rhumb.KindOf(a.err) != rhumb.Unavailable {
		t.Errorf("what waited is answered %v, want unavailable", a.err)
	}
	<-status
	after := ask(h, putOf("k", "after"))
	h.Drive()
	if a := w.answered(after); rhumb.KindOf(a.err) != rhumb.Unavailable {
		t.Errorf("a proposal after Close is answered %v", a.err)
	}
	if _, err := w.get(1, "k"); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("a read after Close is answered %v", err)
	}
	for _, got := range []<-chan answer{underway, waiting, after} {
		if len(got) > 0 {
			t.Error("a proposal was answered twice")
		}
	}
}

// TestCloseWaitsForReads guards that nothing reads from the engine after Close: a read of a closed
// engine panics.
func TestCloseWaitsForReads(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	h := w.hosts[1]
	// This stands for a read in progress.
	h.reads.Add(1)
	closed := make(chan struct{})
	go func() {
		h.Close()
		close(closed)
	}()
	w.eventually(func() error {
		if !h.stopped.Load() {
			return fmt.Errorf("Close has not begun")
		}
		return nil
	})
	select {
	case <-closed:
		t.Error("Close did not wait for a read")
	case <-time.After(20 * time.Millisecond): // a Close that does not wait takes less
	}
	h.reads.Add(-1)
	<-closed
}

// TestFullDisk guards that a disk that fills up stops writes but not reads, that accepted writes
// continue when there is room, and that the node can be stopped meanwhile.
func TestFullDisk(t *testing.T) {
	var free atomic.Uint64
	// fills makes the disk full once it was asked for its free space.
	var fills atomic.Bool
	free.Store(90)
	w := newWorldWith(t, 1, storage.Config{
		CacheBytes: 8 << 20, MemTableBytes: 1 << 20, DiskFreeEvery: -1,
		DiskFree: func(string) (uint64, uint64, error) {
			n := free.Load()
			if fills.CompareAndSwap(true, false) {
				free.Store(0)
			}
			return n, 100, nil
		},
	}, func(*Config) {})
	h := w.hosts[1]
	w.put(1, "k", "v")
	// Below the limit of Writable and above that of Apply.
	free.Store(4)
	if _, err := w.propose(1, putOf("k", "refused"), rhumb.RequestID{}); rhumb.KindOf(err) != rhumb.DiskFull {
		t.Fatalf("a write to a full disk is answered %v", err)
	}
	if got, err := w.get(1, "k"); err != nil || got != "v" {
		t.Fatalf("k is %q, %v", got, err)
	}
	// The disk fills up between the acceptance of a batch and its commit.
	stall := func() <-chan answer {
		free.Store(90)
		release := hold(w, h)
		got := ask(h, putOf("k", "accepted"))
		fills.Store(true)
		go release() // waits for room
		w.eventually(func() error {
			if metric(t, h, "rhumb_host_disk_full_total") < 2 {
				return fmt.Errorf("no commit waits for room")
			}
			return nil
		})
		return got
	}
	got := stall()
	free.Store(90)
	if a := w.answered(got); a.err != nil {
		t.Fatal(a.err)
	}
	if got, err := w.get(1, "k"); err != nil || got != "accepted" {
		t.Fatalf("k is %q, %v", got, err)
	}
	got = stall()
	h.Close()
	if a := w.answered(got); rhumb.KindOf(a.err) != rhumb.Unknown {
		t.Fatalf("what waited for the disk is answered %v", a.err)
	}
}

// TestCloseWhileFetchersWait guards that a log read that never began does not make the host drop
// the decisions of its last pass. Only a full disk may do so.
func TestCloseWhileFetchersWait(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	h := w.hosts[1]
	s, _ := h.findSlot(testRange)
	h.fetching = fetchersMax
	h.fetchLog(s, replica.LogRead{To: 2, From: 1, Until: 1})
	h.Close()
	if h.abandoned {
		t.Fatal("the host gave up what it had decided")
	}
}

// TestFullDiskTakesNoEntries guards that a node with a full disk accepts and acknowledges no
// entries of peers, that its passes continue, and that the range is written without it. When there
// is room again, the node accepts entries.
func TestFullDiskTakesNoEntries(t *testing.T) {
	var full atomic.Pointer[string]
	w := newWorldWith(t, 3, storage.Config{
		CacheBytes: 8 << 20, MemTableBytes: 1 << 20, DiskFreeEvery: -1,
		DiskFree: func(dir string) (uint64, uint64, error) {
			if p := full.Load(); p != nil && *p == dir {
				return 1, 100, nil
			}
			// More than the store keeps free of a disk that was seen to fill at any speed. Otherwise
			// it could go on rejecting for a minute after there is room.
			return 90, 100, nil
		},
	}, func(*Config) {})
	w.put(1, "k", "v")
	h := w.hosts[3]
	dir := h.cfg.Engine.Stores()[0].Dir()
	full.Store(&dir)
	got := ask(w.hosts[1], putOf("k", "later"))
	w.hosts[1].Drive()
	w.eventually(func() error {
		if metric(t, h, "rhumb_host_disk_full_total") == 0 {
			return fmt.Errorf("entries are taken by a full disk")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := h.Status(ctx, testRange); err != nil {
		t.Fatalf("a pass of a node with a full disk: %v", err)
	}
	// It tells the metadata leader, which places no copies there.
	w.eventually(func() error {
		if !h.Full() || w.hosts[1].Full() {
			return fmt.Errorf("full are n3: %v, n1: %v", h.Full(), w.hosts[1].Full())
		}
		return nil
	})
	// The full node leaves the in-sync set, and the others acknowledge.
	if a := w.answered(got); a.err != nil {
		t.Fatal(a.err)
	}
	if v, err := w.get(1, "k"); err != nil || v != "later" {
		t.Fatalf("k is %q, %v", v, err)
	}
	full.Store(nil)
	w.eventually(func() error {
		st, err := h.Status(ctx, testRange)
		if err == nil && st.Commit < 3 {
			err = fmt.Errorf("the node has room and is committed to %d", st.Commit)
		}
		return err
	})
}

// TestPassIsBounded guards that a pass takes no more than passBytesMax of client batches, and that
// acknowledgements and time do not wait for them. Otherwise peers would take an overloaded node for
// dead.
func TestPassIsBounded(t *testing.T) {
	w := newWorld(t, 1)
	h := w.hosts[1]
	release := hold(w, h)
	defer release()
	big := strings.Repeat("x", 1<<20)
	for i := range 3 * passBytesMax >> 20 {
		ask(h, putOf(fmt.Sprintf("k%d", i), big))
	}
	h.enqueue(tickEvent{})
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := h.waiting
	h.takeEventsLocked()
	size, tick := 0, false
	for _, ev := range h.events {
		switch ev := ev.(type) {
		case *proposeEvent:
			size += ev.size
		case tickEvent:
			tick = true
		}
	}
	if !tick || size == 0 || size > passBytesMax+len(big)+100 || h.waiting != waiting-size || len(h.proposals) == 0 {
		t.Errorf("a pass takes %d bytes of %d, with the tick: %v; %d bytes in %d batches wait on", size, waiting, tick, h.waiting, len(h.proposals))
	}
	// The batches are queued again, so that they are answered.
	for _, ev := range h.events {
		if p, ok := ev.(*proposeEvent); ok {
			h.proposals = append(h.proposals, p)
			h.waiting += p.size
		}
	}
	h.events = h.events[:0]
}

// TestLogsOfStoreAreBounded guards LogKeepStore: if the logs kept for an absent replica are too
// long in total, the longest are trimmed first, and the replica is reported as lost.
func TestLogsOfStoreAreBounded(t *testing.T) {
	const most = 4 << 20
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 4 << 20}, func(c *Config) { c.LogKeepStore = most })
	w.put(1, "k", "v")
	w.isolate(3, true)
	w.elect(1, 1, 2)
	h := w.hosts[1]
	value := strings.Repeat("x", 256<<10)
	for range 64 {
		w.put(1, "k", value)
	}
	w.eventually(func() error {
		w.put(1, "k", value)
		if size, _ := h.cfg.Engine.Stores()[0].Size(testRange); size.Log > 2*most {
			return fmt.Errorf("%d bytes of log are kept", size.Log)
		}
		return nil
	})
	if n := metric(t, h, "rhumb_host_logs_shortened_total"); n == 0 {
		t.Error("no log was cut shorter, but it is short")
	}
}

// TestSecondaryTrimsByItself guards LogKeepStore on a node whose ranges have their primaries
// elsewhere, on stores with more room: the secondary trims its log and remains as good a successor
// as before.
func TestSecondaryTrimsByItself(t *testing.T) {
	const most = 4 << 20
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 4 << 20}, func(c *Config) {
		if c.Self.Node == 2 {
			c.LogKeepStore = most
		}
	})
	w.put(1, "k", "v")
	w.isolate(3, true)
	w.elect(1, 1, 2)
	kept := func(n rhumb.NodeID) int64 {
		size, _ := w.hosts[n].cfg.Engine.Stores()[0].Size(testRange)
		return size.Log
	}
	value := strings.Repeat("x", 256<<10)
	for range 64 {
		w.put(1, "k", value)
	}
	w.eventually(func() error {
		w.put(1, "k", value)
		if n := kept(2); n > 2*most {
			return fmt.Errorf("%d bytes of log are kept", n)
		}
		return nil
	})
	if n := metric(t, w.hosts[2], "rhumb_host_logs_shortened_total"); n == 0 {
		t.Error("no log was cut shorter, but it is short")
	}
	if n := kept(1); n < 64*int64(len(value)) {
		t.Errorf("the primary keeps %d bytes of log, and has room", n)
	}
	w.elect(2, 1, 2)
	w.put(2, "k", "after")
}
