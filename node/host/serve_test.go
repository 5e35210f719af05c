package host

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// TestScanPages guards that pages of a scan cover every record once and in order, whichever bound
// ends a page, and that the last page says so.
func TestScanPages(t *testing.T) {
	w := newWorld(t, 1)
	var names []string
	for i := range 7 {
		names = append(names, fmt.Sprintf("a%d", i))
		w.put(1, names[i], "0123456789")
	}
	w.put(1, "b", "another prefix")
	if _, err := w.propose(1, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("a3")}, rhumb.RequestID{}); err != nil {
		t.Fatal(err)
	}
	names = slices.Delete(names, 3, 4)
	record := len("a0") + len(rhumb.EncodeOpaque(nil, []byte("0123456789")))
	for _, tc := range []struct{ limit, bytes, pages int }{
		{100, 1 << 20, 1},
		{6, 1 << 20, 1}, // exactly full: nothing follows
		{4, 1 << 20, 2},
		{1, 1 << 20, 6},
		{100, 2 * record, 3},
		{100, 2*record + 1, 2},
		{100, 1, 6}, // a page has at least one record
	} {
		q := rhumb.ScanQuery{Range: testRange, Table: testTable, Prefix: []byte("a"), Limit: tc.limit, BytesMax: tc.bytes}
		var got []string
		pages := 0
		for more := true; more; pages++ {
			page, receipt, err := w.hosts[1].Scan(t.Context(), q)
			if err != nil || receipt.Node != 1 || receipt.Epoch != 1 {
				t.Fatalf("page %d: receipt %+v, %v", pages, receipt, err)
			}
			for _, it := range page.Items {
				got = append(got, string(it.Key.Name))
				q.After = it.Key.Name
			}
			if more = page.More; more && len(page.Items) == 0 {
				t.Fatal("an empty page is not the last")
			}
		}
		if !slices.Equal(got, names) || pages != tc.pages {
			t.Errorf("limit %d, %d bytes: %v in %d pages, want %v in %d", tc.limit, tc.bytes, got, pages, names, tc.pages)
		}
	}
}

// TestOnlyThePrimaryServes guards what a node says of its ranges: the primary serves, counts the
// load and holds a lease; a secondary has the data and refuses reads as NotPrimary.
func TestOnlyThePrimaryServes(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "v")
	w.eventually(func() error {
		if !w.hosts[1].Leased(testRange) {
			return fmt.Errorf("the primary holds no lease")
		}
		return nil
	})
	for id, h := range w.hosts {
		primary := id == 1
		serving, loads := 0, 0
		if primary {
			serving, loads = 1, 1
		}
		if h.Serves(testRange) != primary || h.Serving() != serving || len(h.Loads()) != loads {
			t.Errorf("n%d serves: %v, %d ranges, loads %v", id, h.Serves(testRange), h.Serving(), h.Loads())
		}
		_, err := w.get(id, "k")
		if primary != (err == nil) || !primary && rhumb.KindOf(err) != rhumb.NotPrimary {
			t.Errorf("n%d answers a read with %v", id, err)
		}
		if d, ok := h.Range(testRange); !ok || d.Primary != 1 {
			t.Errorf("n%d has the record %+v", id, d)
		}
	}
	unknown := rhumb.RangeID{Region: 9, Slot: 9}
	h := w.hosts[1]
	if h.Serves(unknown) || h.DataBytes(unknown) != 0 {
		t.Error("a range that no store holds is served")
	}
	if _, err := h.Status(t.Context(), unknown); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("the status of a range that no store holds: %v", err)
	}
}

// TestCommittedHasNoGap guards Config.Committed, which images follow: on every node, in any role,
// its positions increase, and the entries of a call lead up to its position without a gap.
func TestCommittedHasNoGap(t *testing.T) {
	const writes = 60
	var mu sync.Mutex
	calls := map[rhumb.NodeID][]Committed{}
	w := newWorldWith(t, 3, storage.Config{CacheBytes: 8 << 20, MemTableBytes: 1 << 20}, func(cfg *Config) {
		self := cfg.Self.Node
		cfg.Committed = func(c Committed) {
			mu.Lock()
			defer mu.Unlock()
			calls[self] = append(calls[self], c)
		}
	})
	w.put(1, "k", "v")
	var last rhumb.Seq
	for i := range writes {
		o, err := w.propose(1, putOf(fmt.Sprint(i), "v"), rhumb.RequestID{})
		if err != nil {
			t.Fatal(err)
		}
		last = o.Seq
	}
	for id := range w.hosts {
		w.eventually(func() error {
			mu.Lock()
			defer mu.Unlock()
			if n := len(calls[id]); n == 0 || calls[id][n-1].Seq < last {
				return fmt.Errorf("n%d has not heard of position %d", id, last)
			}
			return nil
		})
	}
	mu.Lock()
	defer mu.Unlock()
	for id, list := range calls {
		var seq rhumb.Seq
		var hlc rhumb.Timestamp
		for _, c := range list {
			if c.Seq <= seq || c.HLC < hlc {
				t.Fatalf("n%d is at %d, %v after %d, %v", id, c.Seq, c.HLC, seq, hlc)
			}
			for i, e := range c.Entries {
				if want := c.Seq - rhumb.Seq(len(c.Entries)-1-i); e.Seq != want {
					t.Fatalf("n%d: entry %d of a call up to %d is %d, want %d", id, i, c.Seq, e.Seq, want)
				}
			}
			seq, hlc = c.Seq, c.HLC
		}
	}
}

// TestManyClients guards clientsMax: a primary that has forgotten a client still recognises its
// requests.
func TestManyClients(t *testing.T) {
	w := newWorld(t, 1)
	w.put(1, "k", "v")
	first := w.mustPropose(1, "mine", "1", 1)
	h := w.hosts[1]
	done := make(chan int, 1)
	h.post(askEvent{func(h *Host) {
		s, _ := h.findSlot(testRange)
		for i := range clientsMax {
			s.requests.clients[rhumb.UUID{2, byte(i), byte(i >> 8)}] = clientWindow{last: 1}
		}
		done <- len(s.requests.clients)
	}})
	if n := <-done; n < clientsMax {
		t.Fatalf("%d clients are known, want at least %d", n, clientsMax)
	}
	if again := w.mustPropose(1, "mine", "1", 1); again.Version != first.Version || again.Seq != first.Seq {
		t.Errorf("the repeated request is answered %+v, want %+v", again, first)
	}
	remaining := make(chan int, 1)
	h.post(askEvent{func(h *Host) {
		s, _ := h.findSlot(testRange)
		remaining <- len(s.requests.clients)
	}})
	if n := <-remaining; n != 1 {
		t.Errorf("%d clients are known after clientsMax was reached, want the last one", n)
	}
}
