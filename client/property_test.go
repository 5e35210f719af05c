package client

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// TestDecisionsAreFinal tries all states of up to four regions. Once findHit has decided, no
// further answer may change whether the record exists or whether the call fails; until then, some
// answer can.
func TestDecisionsAreFinal(t *testing.T) {
	type result struct{ found, failed bool }
	decide := func(states []placeState, prior int) (r result, decided bool) {
		hit, mute, decided := findHit(states, prior)
		if hit >= 0 && states[hit] != with || mute >= 0 && states[mute] != silent || hit >= 0 && mute >= 0 {
			t.Errorf("states %v, prior %d: hit %d, silent %d", states, prior, hit, mute)
		}
		return result{hit >= 0, mute >= 0}, decided
	}
	// outcomes collects the results of all ways in which the missing answers can arrive.
	var outcomes func(states []placeState, prior, from int, out map[result]bool)
	outcomes = func(states []placeState, prior, from int, out map[result]bool) {
		for i := from; i < len(states); i++ {
			if states[i] != asking {
				continue
			}
			for _, s := range []placeState{without, with, silent} {
				states[i] = s
				outcomes(states, prior, i+1, out)
			}
			states[i] = asking
			return
		}
		r, decided := decide(states, prior)
		if !decided {
			t.Errorf("states %v, prior %d: all have answered and nothing is decided", states, prior)
		}
		out[r] = true
	}
	for n := range 5 {
		for code := range 1 << (2 * n) {
			states := make([]placeState, n)
			for i := range states {
				states[i] = placeState(code >> (2 * i) & 3)
			}
			for prior := -1; prior < n; prior++ {
				r, decided := decide(states, prior)
				all := map[result]bool{}
				outcomes(states, prior, 0, all)
				if decided && (len(all) != 1 || !all[r]) {
					t.Errorf("states %v, prior %d: decided as %+v, but the answers can lead to %v", states, prior, r, all)
				}
				if !decided && len(all) == 1 && prior < 0 {
					t.Errorf("states %v: not decided, although all answers lead to %v", states, all)
				}
			}
		}
	}
}

// TestSentWriteIsNotDenied guards the outcome of writes: once an attempt may have been applied, no
// error of a later one claims that the write was not applied, unless no attempt could have been.
func TestSentWriteIsNotDenied(t *testing.T) {
	wrong := map[rhumb.Kind]bool{ // wrong whatever the state, so the first attempt was not applied either
		rhumb.InvalidArgument: true, rhumb.TooLarge: true,
		// Not WrongCluster and Incompatible: another process may listen at the address by the second attempt.
	}
	for _, k := range rhumb.Kinds() {
		err := rhumb.E("test", k, "refused")
		for _, sent := range []bool{false, true} {
			r := &request{op: "test", sent: sent, write: true}
			got := rhumb.KindOf(r.finalError(err))
			switch {
			case !sent && got != k:
				t.Errorf("a write that was not sent and failed with %s is %s", k, got)
			case sent && got.NotApplied() && !wrong[k]:
				t.Errorf("a write that may have been applied and then failed with %s is %s, which denies it", k, got)
			}
		}
	}
	// A node of release 0.13 calls a repeated insert wrong when it finds no place for another range.
	misplaced := rhumb.E("test", rhumb.InvalidArgument, "replicas are not 3 different nodes")
	if got := rhumb.KindOf((&request{sent: true, insert: true}).finalError(misplaced)); got != rhumb.Unknown {
		t.Errorf("an insert that may have been applied and then failed with %s is %s", rhumb.InvalidArgument, got)
	}
	for cause, want := range map[error]rhumb.Kind{context.Canceled: rhumb.Canceled, context.DeadlineExceeded: rhumb.DeadlineExceeded} {
		r := &request{op: "test", last: errors.New("the last attempt failed")}
		if got := rhumb.KindOf(r.contextError(cause)); got != want {
			t.Errorf("%v is %s, want %s", cause, got, want)
		}
		r.sent = true
		if got := rhumb.KindOf(r.contextError(cause)); got != rhumb.Unknown {
			t.Errorf("%v after sending is %s, want an unknown outcome", cause, got)
		}
	}
	moved := &movedError{rhumb.RangeID{Slot: 9}, rhumb.E("test", rhumb.NotPrimary, "moved")}
	if err := (&request{}).finalError(moved); err != error(moved) {
		t.Errorf("an insert that moves is %v", err)
	}
	err := (&request{sent: true}).finalError(moved)
	if _, follows := errors.AsType[*movedError](err); follows || rhumb.KindOf(err) != rhumb.Unknown {
		t.Errorf("an insert that may have been applied before it moves is %v; another range is tried: %t", err, follows)
	}
}

// TestDescriptorsNeverGetOlder guards that neither an update nor a refusal replaces a descriptor by
// an older one, in whatever order they arrive: a client would go back to a former primary.
func TestDescriptorsNeverGetOlder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMetadata()
		newest := map[rhumb.RangeID]uint64{}
		descriptor := func() *rhumb.Range {
			r := newRange(1, rhumb.Slot(rapid.IntRange(0, 2).Draw(t, "slot")), 1)
			r.Version = uint64(rapid.IntRange(1, 9).Draw(t, "version"))
			return r
		}
		for revision := uint64(1); revision < 20; revision++ {
			var gone []rhumb.RangeID
			if rapid.Bool().Draw(t, "learn") {
				r := descriptor()
				if news := m.learnRange(r); news != (r.Version > newest[r.ID]) {
					t.Fatalf("version %d after %d: news %t", r.Version, newest[r.ID], news)
				}
				newest[r.ID] = max(newest[r.ID], r.Version)
			} else {
				u := &api.Metadata{Revision: revision, Full: rapid.Bool().Draw(t, "full")}
				for range rapid.IntRange(0, 3).Draw(t, "ranges") {
					u.Ranges = append(u.Ranges, descriptor())
				}
				if _, ok := m.applyUpdate(u); !ok {
					t.Fatal("an update in order was ignored")
				}
				present := map[rhumb.RangeID]bool{}
				for _, r := range u.Ranges {
					present[r.ID] = true
					newest[r.ID] = max(newest[r.ID], r.Version)
				}
				for id := range newest {
					if u.Full && !present[id] {
						gone = append(gone, id)
					}
				}
			}
			for _, id := range gone {
				delete(newest, id)
			}
			for id, version := range newest {
				if r := m.ranges[id]; r == nil || r.Version != version {
					t.Fatalf("range %s is %+v, want version %d", id, r, version)
				}
			}
			if len(m.ranges) != len(newest) {
				t.Fatalf("%d ranges, want %d", len(m.ranges), len(newest))
			}
		}
	})
}

// TestWindowBound guards that the numbers in use never span more than the window of a node,
// whatever the order in which they are released, and that no number is given twice.
func TestWindowBound(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // takeNumber then fails instead of waiting
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow()
		var open []uint64
		last := uint64(0)
		for range 300 {
			if len(open) == 0 || rapid.IntRange(0, 2).Draw(t, "action") > 0 {
				n, err := w.takeNumber(ctx)
				full := len(open) > 0 && last+1-open[0] >= rhumb.DedupWindow
				if (err != nil) != full {
					t.Fatalf("number %d, error %v with %v open", n, err, open)
				}
				if err == nil {
					if n != last+1 {
						t.Fatalf("number %d after %d", n, last)
					}
					last, open = n, append(open, n)
				}
				continue
			}
			i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
			w.releaseNumber(open[i])
			open = append(open[:i], open[i+1:]...)
		}
	})
}
