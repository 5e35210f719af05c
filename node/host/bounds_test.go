package host

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// metric gives the value of one of the host's counters or gauges.
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

// hold keeps passes from running until the returned function is called.
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

// ask proposes a batch and does not drive.
func ask(h *Host, ms ...rhumb.Mutation) <-chan answer {
	got := make(chan answer, 2) // a second answer is caught, and must not block
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

// TestLargeRangeTakesOnlyUpdates guards rhumb.RangeSizeMax: above it keys that are there can be changed and deleted, new
// ones are refused as Overloaded, by a batch as a whole.
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

// TestReadIsBounded guards rhumb.ReadSizeMax: what would not fit into an answer is refused, not gathered.
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

// TestWhatWaitsIsBounded guards the memory of a host whose passes stand still: batches are refused, entries of peers are
// dropped, and acknowledgements still get through.
func TestWhatWaitsIsBounded(t *testing.T) {
	w := newWorld(t, 1)
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
	if want := waitingBytesMax / rhumb.ValueSizeMax; len(taken) != want || refused == 0 {
		t.Fatalf("%d batches of 2 MiB were taken, want %d", len(taken), want)
	}
	entries := func(n int) []replica.Message {
		e := &entry.Entry{Requests: []entry.Request{{HLC: 1, Writes: []entry.Write{{Table: testTable, Name: []byte("k"), Value: make([]byte, n)}}}}}
		return []replica.Message{{Kind: replica.Append, Range: testRange, From: 9, To: 1, Entries: []*entry.Entry{e}}}
	}
	h.Receive(9, entries(waitingBytesMax/2)) // above what clients may fill
	h.Receive(9, entries(waitingBytesMax))
	h.Receive(9, []replica.Message{{Kind: replica.Ack, Range: testRange, From: 9, To: 1}})
	h.mu.Lock()
	waiting, events := h.waiting, len(h.queue)
	h.mu.Unlock()
	if waiting > peerBytesMax || events < len(taken)+2 {
		t.Fatalf("%d bytes in %d events wait", waiting, events)
	}
	if n := metric(t, h, "rhumb_host_dropped_messages_total"); n != 1 {
		t.Fatalf("%v messages were dropped, want 1", n)
	}
	release()
	for _, got := range taken { // those above the replica's own bound are refused there
		if a := w.answered(got); a.err != nil && rhumb.KindOf(a.err) != rhumb.Overloaded {
			t.Fatal(a.err)
		}
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
	h.Receive(3, []replica.Message{{Kind: replica.Append, Range: testRange, From: 3, To: 2, Epoch: 1}}) // a second primary of epoch 1
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

// TestSuspicionDoesNotWaitForPass guards that the goroutine that sends heartbeats never runs a pass, which may wait for
// the disk.
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
		h.suspected(nil)
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

// TestOldVersionsGo guards that what updates supersede is collected once the last replica has caught up, although nothing
// is written any more then.
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

// TestCloseAnswersEverything guards that Propose is answered exactly once, also when no pass takes it in: such a batch was
// certainly not applied. Nothing runs after Close.
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
	h.closed = true // as Close begins; then no pass may take in what waits
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

// TestCloseWaitsForReads guards that nothing reads from the engine after Close: it would panic once the engine is closed.
func TestCloseWaitsForReads(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	h := w.hosts[1]
	h.reads.Add(1) // a read is under way
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

// TestFullDisk guards that a disk that fills up stops writes and not reads, that what was accepted goes on when there is
// room, and that the node can be stopped meanwhile.
func TestFullDisk(t *testing.T) {
	var free atomic.Uint64
	free.Store(50)
	w := newWorldWith(t, 1, storage.Config{
		CacheBytes: 8 << 20, MemTableBytes: 1 << 20, DiskFreeEvery: -1,
		DiskFree: func(string) (uint64, uint64, error) { return free.Load(), 100, nil },
	}, func(*Config) {})
	h := w.hosts[1]
	w.put(1, "k", "v")
	free.Store(4) // below what Writable wants, above what Apply wants
	if _, err := w.propose(1, putOf("k", "refused"), rhumb.RequestID{}); rhumb.KindOf(err) != rhumb.DiskFull {
		t.Fatalf("a write to a full disk is answered %v", err)
	}
	if got, err := w.get(1, "k"); err != nil || got != "v" {
		t.Fatalf("k is %q, %v", got, err)
	}
	// The disk fills up between the acceptance of a batch and its commit.
	stall := func() <-chan answer {
		free.Store(50)
		release := hold(w, h)
		got := ask(h, putOf("k", "accepted"))
		h.enqueue(askEvent{func(*Host) { free.Store(0) }})
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
	free.Store(50)
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

// TestCloseWhileFetchersWait guards that a read of the log that never began does not make the host drop what its last pass
// decided, which only a full disk may do.
func TestCloseWhileFetchersWait(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	h := w.hosts[1]
	s, _ := h.slot(testRange)
	h.fetching = fetchersMax
	h.fetchLog(s, replica.LogRead{To: 2, From: 1, Until: 1})
	h.Close()
	if h.abandoned {
		t.Fatal("the host gave up what it had decided")
	}
}
