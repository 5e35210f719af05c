package host

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

func requestOf(seq uint64) rhumb.RequestID { return rhumb.RequestID{Client: rhumb.UUID{1}, Seq: seq} }

// mustPropose writes one key under a request ID.
func (w *world) mustPropose(n rhumb.NodeID, name, value string, seq uint64) rhumb.Outcome {
	w.t.Helper()
	o, err := w.propose(n, putOf(name, value), requestOf(seq))
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// wantExpired repeats a request that n must reject.
func (w *world) wantExpired(n rhumb.NodeID, seq uint64) {
	w.t.Helper()
	if o, err := w.propose(n, putOf("k", "again"), requestOf(seq)); rhumb.KindOf(err) != rhumb.Expired {
		w.t.Errorf("request %d again at %s: %+v, %v, want expired", seq, n, o, err)
	}
}

// TestRequestBelowTheWindow guards that a late copy of a request is not applied, at the next
// primary neither: its client has sent requests that it sends only after the answer to this one.
func TestRequestBelowTheWindow(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "k", "")
	const last = 5 * rhumb.DedupWindow
	w.mustPropose(1, "k", "newest", last)
	w.wantExpired(1, last-rhumb.DedupWindow)
	w.wantExpired(1, 1)
	w.mustPropose(1, "late", "v", last-rhumb.DedupWindow+1) // its client still waits for it
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.put(2, "other", "")
	w.wantExpired(2, last-rhumb.DedupWindow)
	w.mustPropose(2, "late", "v", last-rhumb.DedupWindow+2)
	if got, err := w.get(2, "k"); err != nil || got != "newest" {
		t.Fatalf("k is %q, %v: a request was applied after its window", got, err)
	}
}

// TestRequestWhoseResultIsCollected guards that a request is not applied again once its result is
// collected, at any primary, and that its client can continue with its next number.
func TestRequestWhoseResultIsCollected(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	for seq := range uint64(3) {
		w.mustPropose(1, "k", fmt.Sprint("first ", seq+1), seq+1)
	}
	w.pass(2 * rhumb.DedupKeep)
	filler := strings.Repeat("x", 32<<10) // the log is trimmed, and so collected, as it grows
	for _, h := range w.hosts {
		s, _ := h.findSlot(testRange)
		w.eventually(func() error {
			w.put(1, "other", filler)
			if floor, err := s.store.RequestFloor(testRange, requestOf(0).Client); err != nil || floor < 3 {
				return fmt.Errorf("the floor at %s is %d: %v", h.cfg.Self.Node, floor, err)
			}
			return nil
		})
	}
	w.wantExpired(1, 2)
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.put(2, "other", "")
	w.wantExpired(2, 3)
	w.wantExpired(2, 1)
	if got, err := w.get(2, "k"); err != nil || got != "first 3" {
		t.Fatalf("k is %q, %v: a request was applied twice", got, err)
	}
	w.mustPropose(2, "k", "next", 4)
}

// TestUnansweredPerClient guards the bound of unanswered requests per client: one more is rejected,
// another client's is not, and there is room again once they are answered.
func TestUnansweredPerClient(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	w.isolate(1, true) // nothing commits
	h := w.hosts[1]
	errs := make(chan error, 2*rhumb.DedupWindow)
	ask := func(id rhumb.RequestID) {
		m := putOf("k", "v")
		m.Table = testTable
		h.Propose(&rhumb.Batch{Range: testRange, ID: id, Mutations: []rhumb.Mutation{m}}, func(_ rhumb.Outcome, err error) { errs <- err })
	}
	for seq := range uint64(rhumb.DedupWindow) {
		ask(requestOf(seq + 1))
	}
	ask(rhumb.RequestID{Client: rhumb.UUID{2}, Seq: 1})
	ask(requestOf(rhumb.DedupWindow + 1))
	h.Drive()
	if err := <-errs; rhumb.KindOf(err) != rhumb.Overloaded || !strings.Contains(err.Error(), fmt.Sprint(rhumb.DedupWindow)) {
		t.Fatalf("the first answer is %v, want overloaded", err)
	}
	w.isolate(1, false)
	for range rhumb.DedupWindow + 1 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	w.mustPropose(1, "k", "v", rhumb.DedupWindow+1)
}
