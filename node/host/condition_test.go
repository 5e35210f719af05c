package host

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// end returns the end of the range's log at n, after every earlier event of n was processed.
func (w *world) end(n rhumb.NodeID) rhumb.Seq {
	w.t.Helper()
	s, err := w.hosts[n].Status(w.t.Context(), testRange)
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Last.Seq
}

// TestFailedConditionWritesNothing guards that existence is decided without a log entry: a lease
// read answers a condition that the committed state does not meet. The first attempts may precede
// the lease and write an entry.
func TestFailedConditionWritesNothing(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		w := newWorld(t, nodes)
		w.put(1, "k", "a")
		seq := uint64(0)
		w.eventually(func() error {
			before := w.end(1)
			for name, kind := range map[string]rhumb.ConditionKind{"k": rhumb.IfAbsent, "none": rhumb.IfPresent} {
				for range 10 {
					m := putOf(name, "b")
					m.Cond.Kind = kind
					seq++
					if _, err := w.propose(1, m, requestOf(seq)); rhumb.KindOf(err) != rhumb.ConditionFailed {
						t.Fatalf("%s of %s: %v", kind, name, err)
					}
				}
			}
			if after := w.end(1); after != before {
				return fmt.Errorf("%d nodes: 20 failed conditions made %d log entries", nodes, after-before)
			}
			return nil
		})
	}
}

// TestFailedConditionNeedsALease guards rule L for conditions: a primary that may have been
// replaced does not decide a condition from its own state. It waits for a commit, which it no
// longer reaches.
func TestFailedConditionNeedsALease(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.put(2, "k", "new") // acknowledged: the leases of 1 are over
	m := putOf("k", "b")
	m.Cond.Kind = rhumb.IfPresent
	got := ask(w.hosts[1], m)
	w.hosts[1].Drive()
	w.end(1)
	select {
	case a := <-got:
		t.Fatalf("a deposed primary says %v of a record that exists", a.err)
	default:
	}
	w.isolate(1, false)
	if a := w.answered(got); rhumb.KindOf(a.err) == rhumb.ConditionFailed {
		t.Fatalf("a deposed primary says %v of a record that exists", a.err)
	}
}

// TestConditionOfWhatIsNotCommitted guards that a condition that depends on uncommitted entries
// waits for their commit, and that a repeated request gets the answer of its first attempt even if
// the committed state or a later request would fail it.
func TestConditionOfWhatIsNotCommitted(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "other", "")
	w.end(1)
	w.isolate(1, true)
	present := putOf("k", "b")
	present.Cond.Kind = rhumb.IfPresent
	absent := putOf("k", "c")
	absent.Cond.Kind = rhumb.IfAbsent
	var answers []<-chan answer
	for seq, m := range []rhumb.Mutation{putOf("k", "a"), absent, present, {Kind: rhumb.Delete, Name: []byte("k")}, present} {
		id := requestOf(uint64(seq + 1))
		if seq == 4 {
			id = requestOf(3) // the request with the same mutation again
		}
		got := make(chan answer, 2)
		m.Table = testTable
		w.hosts[1].Propose(&rhumb.Batch{Range: testRange, ID: id, Mutations: []rhumb.Mutation{m}}, func(o rhumb.Outcome, err error) { got <- answer{o, err} })
		w.hosts[1].Drive()
		w.end(1)
		answers = append(answers, got)
	}
	for i, got := range answers {
		select {
		case a := <-got:
			t.Fatalf("request %d is answered %+v, %v before anything is committed", i, a.o, a.err)
		default:
		}
	}
	w.isolate(1, false)
	var got []answer
	for _, a := range answers {
		got = append(got, w.answered(a))
	}
	for i, a := range got {
		if failed := rhumb.KindOf(a.err) == rhumb.ConditionFailed; failed != (i == 1) || !failed && a.err != nil {
			t.Errorf("request %d is answered %+v, %v", i, a.o, a.err)
		}
	}
	if rhumb.CurrentOf(got[1].err) != got[0].o.Version || got[4].o.Version != got[2].o.Version {
		t.Errorf("answers %+v", got)
	}
}

// TestExists guards that many names are checked at once, as strongly as by a read: at the primary,
// and never at a deposed one.
func TestExists(t *testing.T) {
	w := newWorld(t, 3)
	w.put(1, "a", "1")
	w.put(1, "b", "1")
	if _, err := w.propose(1, rhumb.Mutation{Kind: rhumb.Delete, Name: []byte("b")}, rhumb.RequestID{}); err != nil {
		t.Fatal(err)
	}
	names := [][]byte{[]byte("none"), []byte("b"), []byte("a"), []byte("a")}
	tables := []rhumb.TableID{testTable, testTable, testTable, testTable + 1}
	exists := func(n rhumb.NodeID) ([]bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return w.hosts[n].Exists(ctx, testRange, tables, names)
	}
	if got, err := exists(1); err != nil || !slices.Equal(got, []bool{false, false, true, false}) {
		t.Errorf("existing are %v, %v", got, err)
	}
	if _, err := exists(2); rhumb.KindOf(err) != rhumb.NotPrimary {
		t.Errorf("a secondary says %v", err)
	}
	w.isolate(1, true)
	w.elect(2, 2, 3)
	w.put(2, "none", "new")
	if got, err := exists(1); err == nil {
		t.Errorf("a deposed primary says %v", got)
	}
	if got, err := exists(2); err != nil || !got[0] {
		t.Errorf("the new primary says %v, %v", got, err)
	}
}
