package digest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// answer returns the answer of a node whose copy is named by a letter; "-" is silent. A copy "a+" has a record of
// table 9 besides, which was dropped.
func answer(n rhumb.NodeID, copy string) Answer {
	if copy == "-" {
		return Answer{Node: n, Err: errors.New("silent")}
	}
	d := &storage.Digest{Tables: []storage.TableDigest{{Table: 1, Records: 2, Bytes: 9, Low: 7}, {Table: 4, Records: 1, Low: uint64(copy[0])}}}
	if len(copy) > 1 {
		d.Tables = append(d.Tables, storage.TableDigest{Table: 9, Records: 1})
	}
	return Answer{Node: n, Digest: d}
}

// TestJudge lists what each pattern of answers means. A letter is a copy, one for each node from n1 on.
func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		copies      string
		out         []rhumb.NodeID // not in sync
		quarantined []rhumb.NodeID
		minInSync   int
		trust       rhumb.NodeID
		want        string
	}{
		{copies: "a a a", minInSync: 2, want: "equal [n1 n2 n3] [] may=false"},
		{copies: "a a -", minInSync: 2, want: "equal [n1 n2] [] may=false"},
		{copies: "a - -", minInSync: 2, want: "alone [] [] may=false"},
		{copies: "- - -", minInSync: 2, want: "alone [] [] may=false"},
		// One of three differs, whoever it is. The primary's copy is no better than others.
		{copies: "a a b", minInSync: 2, want: "differ [n1 n2] [n3] may=true"},
		{copies: "b a a", minInSync: 2, want: "differ [n2 n3] [n1] may=true"},
		// Too few in-sync copies would be left.
		{copies: "a a b", minInSync: 3, want: "differ [n1 n2] [n3] may=false"},
		{copies: "a a b", out: []rhumb.NodeID{2}, minInSync: 2, want: "differ [n1 n2] [n3] may=false"},
		// Nobody has a majority: of two, of three that all differ, of those that answered only.
		{copies: "a b", minInSync: 1, want: "undecided [] [n1 n2] may=false"},
		{copies: "a b -", minInSync: 2, want: "undecided [] [n1 n2] may=false"},
		{copies: "a b c", minInSync: 2, want: "undecided [] [n1 n2 n3] may=false"},
		{copies: "a a b - -", minInSync: 2, want: "undecided [] [n1 n2 n3] may=false"},
		{copies: "a a b b c", minInSync: 2, want: "undecided [] [n1 n2 n3 n4 n5] may=false"},
		{copies: "a a a b c", minInSync: 2, want: "differ [n1 n2 n3] [n4 n5] may=true"},
		// An operator decides whom to trust, and not how many copies the range needs.
		{copies: "a b", minInSync: 1, trust: 2, want: "differ [n2] [n1] may=true"},
		{copies: "a b -", minInSync: 2, trust: 2, want: "differ [n2] [n1] may=false"},
		{copies: "a a b", minInSync: 1, trust: 3, want: "differ [n3] [n1 n2] may=true"},
		{copies: "a b -", minInSync: 1, trust: 3, want: "undecided [] [n1 n2] may=false"},
		// A quarantined copy has no voice. A dropped table is no difference.
		{copies: "a b a", quarantined: []rhumb.NodeID{2}, minInSync: 2, want: "equal [n1 n3] [] may=false"},
		{copies: "a a+ a", minInSync: 2, want: "equal [n1 n2 n3] [] may=false"},
		{copies: "a+ b a", minInSync: 2, want: "differ [n1 n3] [n2] may=true"},
	} {
		r := &rhumb.Range{Quarantined: tc.quarantined}
		var answers []Answer
		n := rhumb.NodeID(0)
		for c := range splitFields(tc.copies) {
			n++
			r.Replicas = append(r.Replicas, n)
			if !slices.Contains(tc.out, n) {
				r.InSync = append(r.InSync, n)
			}
			answers = append(answers, answer(n, c))
		}
		v := Judge(r, tc.minInSync, answers, tc.trust, func(id rhumb.TableID) bool { return id == 9 })
		if got := fmt.Sprintf("%s %v %v may=%v", v.Result, v.Trusted, v.Differ, v.May); got != tc.want {
			t.Errorf("%s, trust %v, min %d: %s, want %s", tc.copies, tc.trust, tc.minInSync, got, tc.want)
		}
		if v.Result == Differ && !v.May && v.Why == "" || v.Result == Undecided && v.Why == "" {
			t.Errorf("%s: the verdict does not say what is missing", tc.copies)
		}
		if v.Result == Differ && v.Table != 4 {
			t.Errorf("%s: table %d differs, want 4", tc.copies, v.Table)
		}
	}
}

// splitFields yields the copies of a pattern.
func splitFields(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(s) > 0 {
			i := slices.Index([]byte(s+" "), ' ')
			if !yield(s[:i]) {
				return
			}
			s = s[min(len(s), i+1):]
		}
	}
}

// TestConfirmed: a difference counts if the second comparison finds the same one.
func TestConfirmed(t *testing.T) {
	a := Verdict{Result: Differ, Trusted: []rhumb.NodeID{1, 2}, Differ: []rhumb.NodeID{3}, May: true}
	for name, change := range map[string]func(v *Verdict){
		"equal now":     func(v *Verdict) { v.Result = Equal },
		"another one":   func(v *Verdict) { v.Differ = []rhumb.NodeID{2} },
		"others are":    func(v *Verdict) { v.Trusted = []rhumb.NodeID{1} },
		"too few left":  func(v *Verdict) { v.May = false },
		"undecided now": func(v *Verdict) { v.Result = Undecided },
	} {
		b := a
		if change(&b); Confirmed(&a, &b) {
			t.Errorf("%s: confirmed", name)
		}
	}
	if !Confirmed(&a, &a) {
		t.Error("the same verdict twice is not confirmed")
	}
}

// TestPlan: every range is compared once per interval, spread over it, and those without a result earlier.
func TestPlan(t *testing.T) {
	const interval = 24 * time.Hour
	p := newPlan(interval)
	var ids []rhumb.RangeID
	for i := range 64 {
		ids = append(ids, rhumb.RangeID{Region: 1, Slot: rhumb.Slot(i * 512)})
	}
	count := map[rhumb.RangeID]int{}
	worst := 0
	for hour := range 48 {
		n := 0
		for now := time.Duration(hour) * time.Hour; ; n++ {
			id, ok := p.next(now, ids)
			if !ok {
				break
			}
			count[id]++
			p.done(now, id, true)
		}
		worst = max(worst, n)
	}
	for _, id := range ids {
		if count[id] < 1 || count[id] > 2 {
			t.Errorf("range %s was compared %d times in two days", id, count[id])
		}
	}
	if worst > 12 {
		t.Errorf("%d of %d ranges in one hour", worst, len(ids))
	}
	now := 100 * time.Hour
	id, ok := p.next(now, ids[:1])
	if !ok {
		t.Fatal("nothing is due")
	}
	p.done(now, id, false)
	if _, ok := p.next(now+retryMost-1, ids[:1]); ok {
		t.Error("a range without a result is compared again at once")
	}
	if _, ok := p.next(now+retryMost, ids[:1]); !ok {
		t.Error("a range without a result waits for the whole interval")
	}
}
