package local

import (
	"errors"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// TestCheckLists guards the check of lists with histories that must not pass.
func TestCheckLists(t *testing.T) {
	final := map[int][]string{0: {"a", "b", "c"}}
	// try returns tries of all elements, of which one has a known outcome.
	try := func(element string, o outcome) (all []*listTry) {
		for _, e := range []string{"a", "b", "c", "x"} {
			one := &listTry{element: e}
			if e == element {
				one.outcome, one.answer = o, 2*time.Second
			}
			all = append(all, one)
		}
		return all
	}
	none := try("", unknown)
	read := func(at time.Duration, elements ...string) []listRead {
		return []listRead{{elements: elements, began: at}}
	}
	for _, tt := range []struct {
		name  string
		final map[int][]string
		tries []*listTry
		reads []listRead
		want  string // part of the error; empty means valid
	}{
		{"acknowledged and there", final, try("b", acked), nil, ""},
		{"unknown and missing", final, try("x", unknown), nil, ""},
		{"unknown and there", final, try("b", unknown), nil, ""},
		{"read of a prefix", final, none, read(0, "a", "b"), ""},
		{"read of all that was acknowledged", final, try("b", acked), read(3*time.Second, "a", "b"), ""},
		{"read that began before the answer", final, try("b", acked), read(time.Second, "a"), ""},
		{"lost", final, try("x", acked), nil, "lost element x"},
		{"refused and there", final, try("b", refused), nil, "which was refused"},
		{"twice", map[int][]string{0: {"a", "a"}}, none, nil, "twice"},
		{"from nobody", map[int][]string{0: {"a", "y"}}, none, nil, "element y, which nobody tried"},
		{"in the list of another try", map[int][]string{0: {"a"}, 1: {"b"}}, none, nil, "list-1 has element b, which nobody tried"},
		{"read of another order", final, none, read(0, "b", "a"), "no prefix"},
		{"read of what is gone", final, none, read(0, "a", "b", "c", "d"), "no prefix"},
		{"read of an old state", final, try("b", acked), read(3*time.Second, "a"), "element 2 was acknowledged before"},
	} {
		err := checkLists(tt.final, tt.tries, tt.reads)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestJudge guards the check of sets and inserts.
func TestJudge(t *testing.T) {
	item := rhumb.Item{}
	for _, tt := range []struct {
		name  string
		tried outcome
		found map[string][]rhumb.Item
		want  string
	}{
		{"acknowledged and there", acked, map[string][]rhumb.Item{"v": {item}}, ""},
		{"unknown and missing", unknown, nil, ""},
		{"refused and missing", refused, nil, ""},
		{"lost", acked, nil, "lost"},
		{"refused and there", refused, map[string][]rhumb.Item{"v": {item}}, "was refused"},
		{"twice", unknown, map[string][]rhumb.Item{"v": {item, item}}, "2 times"},
		{"from nobody", acked, map[string][]rhumb.Item{"v": {item}, "w": {item}}, "nobody wrote it"},
	} {
		s := &tries{outcomes: map[string]outcome{"v": tt.tried}}
		err := s.judge(tt.found)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestLongestGap guards the measurement of the time without service.
func TestLongestGap(t *testing.T) {
	second := func(at ...float64) (out []time.Duration) {
		for _, s := range at {
			out = append(out, time.Duration(s*float64(time.Second)))
		}
		return out
	}
	acks := map[string][]time.Duration{"steady": second(0.5, 1, 1.5, 2, 2.5, 3, 3.5), "late": second(0.5, 1, 3.2), "gone": second(0.5, 1)}
	for _, tt := range []struct {
		from, to float64
		only     string
		gap      float64
	}{
		{1, 3, "steady", 0.5},
		{1.1, 3, "late", 2.2}, // the gap began before the fault was counted, and ended after it
		{1, 3, "gone", 2},     // never served again: until the end
		{3.3, 3.5, "late", 0.3},
	} {
		w := Window{From: second(tt.from)[0], Whole: second(tt.to)[0]}
		w.measure(map[string][]time.Duration{tt.only: acks[tt.only]})
		gap, key := w.Gap, w.Key
		if (gap-second(tt.gap)[0]).Abs() > time.Millisecond || key != tt.only {
			t.Errorf("%s from %v to %v: %v of %q, want %v s", tt.only, tt.from, tt.to, gap, key, tt.gap)
		}
	}
}

// TestSumOf guards the check of the bank.
func TestSumOf(t *testing.T) {
	even := [bankAccounts]int{}
	for i := range even {
		even[i] = bankMoney
	}
	moved, lost, debt := even, even, even
	moved[0], moved[1] = 0, 2*bankMoney
	lost[0]--
	debt[0], debt[1] = -1, 2*bankMoney+1
	if sumOf(even) != nil || sumOf(moved) != nil || sumOf(lost) == nil || sumOf(debt) == nil {
		t.Error(sumOf(even), sumOf(moved), sumOf(lost), sumOf(debt))
	}
}

// TestPicture draws a made-up run, so that a change of the plotting library shows here and not at the end of an hour of faults.
func TestPicture(t *testing.T) {
	r := &Result{Length: 10 * time.Second, Windows: []Window{{What: "kill eu-1", From: 2 * time.Second, To: 5 * time.Second, Whole: 6 * time.Second}}}
	for i := range 500 {
		at := time.Duration(i) * 20 * time.Millisecond
		if at > 2*time.Second && at < 3*time.Second {
			r.Calls = append(r.Calls, Call{At: at, Took: 3*time.Second - at})
			continue
		}
		r.Calls = append(r.Calls, Call{At: at, Took: time.Duration(1+i%7) * time.Millisecond, OK: true})
	}
	file := filepath.Join(t.TempDir(), "report.png")
	if err := r.Draw(file); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	picture, err := png.Decode(f)
	if err != nil || picture.Bounds().Dx() < 800 {
		t.Fatal(picture.Bounds(), err)
	}
	if keep := os.Getenv("RHUMB_KEEP_PICTURE"); keep != "" {
		t.Log(r.Draw(keep))
	}
}

// TestJudgeWinners guards the check of names that are created from all regions.
func TestJudgeWinners(t *testing.T) {
	first := winner{value: "a", home: "eu/1", began: 1, answered: 2}
	for _, tt := range []struct {
		name   string
		second winner
		want   string
	}{
		{"at the same time in another region", winner{"b", "us/1", 1, 3, false}, ""},
		{"at the same time in the same region", winner{"b", "eu/1", 1, 3, false}, "created twice in eu/1"},
		{"later in another region", winner{"b", "us/1", 3, 4, false}, "and again in us/1"},
		{"later, while a region was dead", winner{"b", "us/1", 3, 4, true}, ""},
	} {
		err := judgeWinners("n", []winner{first, tt.second})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestJudgeCalls guards the check of failed calls.
func TestJudgeCalls(t *testing.T) {
	windows := []Window{{From: 10, To: 20, Whole: 30}, {From: 50, To: 60, Whole: 70}}
	for _, tt := range []struct {
		name     string
		call     Call
		previous bool
		want     string
	}{
		{"answered", Call{At: 35, Took: 5, OK: true}, false, ""},
		{"during a fault", Call{At: 15, Took: 5, Kind: rhumb.Unavailable, Read: true}, false, ""},
		{"into a fault", Call{At: 45, Took: 10, Kind: rhumb.Unknown}, false, ""},
		{"at the start", Call{At: 1, Took: 5, Kind: rhumb.Unavailable}, false, ""},
		{"a read without a fault", Call{At: 35, Took: 5, Kind: rhumb.Unavailable, Read: true}, false, "1 reads failed as unavailable"},
		{"a write after the last fault", Call{At: 75, Took: 5, Kind: rhumb.Unknown}, false, "1 writes failed as unknown_outcome"},
		{"a damaged answer during a fault", Call{At: 15, Took: 5, Kind: rhumb.Corrupt, Read: true}, false, "no fault excuses"},
		{"another kind of a previous release", Call{At: 15, Took: 5, Kind: rhumb.InvalidArgument}, true, ""},
		{"a write that was sent again and refused", Call{At: 35, Took: 5, Kind: rhumb.Unknown, Refused: true}, false, ""},
	} {
		broken := strings.Join(judgeCalls([]Call{tt.call}, windows, nil, tt.previous, false), "; ")
		if (broken == "") != (tt.want == "") || !strings.Contains(broken, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, broken, tt.want)
		}
	}
}

// TestRefusedCalls guards that few writes only may be sent again in calm times, and that no other
// error passes for one.
func TestRefusedCalls(t *testing.T) {
	windows := []Window{{From: 10, To: 20, Whole: 30}}
	r := newRecord()
	again := rhumb.Error{Kind: rhumb.Unknown, Err: &rhumb.Error{Kind: rhumb.ConditionFailed}}
	r.add(0, &again)
	r.add(0, &rhumb.Error{Kind: rhumb.Unknown, Err: &rhumb.Error{Kind: rhumb.Unavailable}})
	r.add(0, &rhumb.Error{Kind: rhumb.Unknown})
	if !r.calls[0].Refused || r.calls[1].Refused || r.calls[2].Refused {
		t.Errorf("the record takes for refused: %+v", r.calls)
	}
	calls := slices.Repeat([]Call{{At: 35, Took: 5, Kind: rhumb.Unknown, Refused: true}}, 2)
	if broken := judgeCalls(calls, windows, nil, false, false); len(broken) != 1 || !strings.Contains(broken[0], "2 of 2 calls were writes that were sent again") {
		t.Errorf("two calls, both refused: %q", broken)
	}
	calls = append(calls, make([]Call, refusedShare)...)
	for i := range calls[2:] {
		calls[2+i].OK = true
	}
	if broken := judgeCalls(calls, windows, nil, false, false); len(broken) != 0 {
		t.Errorf("two refused calls of many: %q", broken)
	}
}

// TestProbe guards that keys without any service do not pass for keys without a gap.
func TestProbe(t *testing.T) {
	p := &probe{ops: 5, last: map[string]probed{"probe-0": {tried: 5}}}
	if v := p.check(t.Context()); v.Err == nil || !strings.Contains(v.Err.Error(), "no write to probe-0") {
		t.Error(v.Err)
	}
}

// TestVerdict guards that a history in which nothing was acknowledged is not valid.
func TestVerdict(t *testing.T) {
	wrong := errors.New("lost")
	for _, tt := range []struct {
		verdict Verdict
		want    string // part of the line; empty means valid
	}{
		{Verdict{Operations: 5, Acknowledged: 1}, ""},
		{Verdict{}, "workload bank: nothing was checked"},
		{Verdict{Operations: 5}, "workload bank: no write was acknowledged in 5 operations"},
		{Verdict{Operations: 5, Acknowledged: 1, Err: wrong}, "workload bank: lost"},
		{Verdict{Err: wrong}, "workload bank: lost"},
	} {
		tt.verdict.Workload = "bank"
		// The windows of a run without faults are missing, which is another line.
		r := &Result{Plan: Plan{AnyGap: true}, Verdicts: []Verdict{tt.verdict}, Windows: []Window{{}}}
		r.judge()
		var report strings.Builder
		r.Print(&report)
		if got := strings.Join(r.Broken, "; "); got != tt.want || strings.Contains(report.String(), "NOT VALID") != (tt.want != "") {
			t.Errorf("%+v: %q, want %q, in\n%s", tt.verdict, got, tt.want, &report)
		}
	}
}

// TestAcknowledged guards that workloads count writes that were acknowledged, and no others.
func TestAcknowledged(t *testing.T) {
	p := &probe{ops: 5, acked: 2, e: &env{record: newRecord()}}
	if v := p.check(t.Context()); v.Acknowledged != 2 {
		t.Errorf("probe: %+v", v)
	}
	s := &tries{outcomes: map[string]outcome{"a": acked, "b": refused, "c": unknown, "d": acked}}
	if n := s.count(); n[acked] != 2 || n[refused] != 1 || n[unknown] != 1 {
		t.Errorf("tries: %v", n)
	}
}

// TestCanGoOn guards that no fault follows one after which the cluster is not whole.
func TestCanGoOn(t *testing.T) {
	noEffect, notWhole := fmt.Errorf("%w: no packet was dropped", errNoEffect), fmt.Errorf("%w after 2m", errNotWhole)
	for _, tt := range []struct {
		err  error
		want bool
	}{{noEffect, true}, {errors.Join(noEffect, notWhole), false}, {notWhole, false}, {errors.ErrUnsupported, false}} {
		if got := canGoOn(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestPrintGaps guards that a fault without a bound is not printed as one whose bound is 0.
func TestPrintGaps(t *testing.T) {
	var out strings.Builder
	(&Result{Windows: []Window{{Fault: Fault{Name: "flap"}, Gaps: []time.Duration{time.Second}}}}).printGaps(&out)
	if text := out.String(); !strings.Contains(text, "1000 ms") || !strings.Contains(text, "none") {
		t.Error(text)
	}
}

// TestCheckCopies guards that a range with fewer copies than its table wants is not whole, and
// neither is one with a copy that is not in sync.
func TestCheckCopies(t *testing.T) {
	tables := []client.TableStatus{{Table: rhumb.Table{Class: 1}, Settings: rhumb.ClassSettings{Replicas: 3}}}
	for _, tc := range []struct {
		replicas, inSync []rhumb.NodeID
		whole            bool
	}{
		{[]rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2, 3}, true},
		{[]rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2}, false},
		{[]rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 3}, false},
	} {
		err := checkCopies([]*rhumb.Range{{Class: 1, Replicas: tc.replicas, InSync: tc.inSync}}, tables)
		if (err == nil) != tc.whole {
			t.Errorf("%v, in sync %v: %v", tc.replicas, tc.inSync, err)
		}
	}
}
