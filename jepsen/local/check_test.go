package local

import (
	"context"
	"errors"
	"fmt"
	"image/png"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/sim/check"
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
		{"read without an element that was answered before another one in front of it", final, []*listTry{
			{element: "c", outcome: acked, answer: time.Second}, {element: "a", outcome: acked, answer: 2 * time.Second}, {element: "b"},
		}, read(3*time.Second, "a", "b"), "element 3 was acknowledged before"},
		{"read of an old state, with answers in another order than the calls", final, []*listTry{
			{element: "a", outcome: acked, answer: 9 * time.Second},
			{element: "c", outcome: acked, answer: 9 * time.Second},
			{element: "b", outcome: acked, answer: time.Second},
		}, read(3*time.Second, "a"), "element 2 was acknowledged before"},
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
		{"acknowledged and there twice", acked, map[string][]rhumb.Item{"v": {item, item}}, "2 times"},
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
		{1.1, 3, "", 2.2},     // of all keys, the one that waited longest
		{3.3, 3.5, "late", 0.3},
	} {
		w := Window{From: second(tt.from)[0], Whole: second(tt.to)[0]}
		want, only := tt.only, map[string][]time.Duration{tt.only: acks[tt.only]}
		if tt.only == "" {
			want, only = "late", map[string][]time.Duration{"first": acks["steady"], "late": acks["late"], "steady": acks["steady"]}
		}
		w.measure(only)
		gap, key := w.Gap, w.Key
		if (gap-second(tt.gap)[0]).Abs() > time.Millisecond || key != want {
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
	moved, lost, debt, gained := even, even, even, even
	gained[0]++
	moved[0], moved[1] = 0, 2*bankMoney
	lost[0]--
	debt[0], debt[1] = -1, 2*bankMoney+1
	if sumOf(even) != nil || sumOf(moved) != nil || sumOf(lost) == nil || sumOf(debt) == nil || sumOf(gained) == nil {
		t.Error(sumOf(even), sumOf(moved), sumOf(lost), sumOf(debt), sumOf(gained))
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
		{"later in the same region, while another one was dead", winner{"b", "eu/1", 3, 4, true}, "created twice in eu/1"},
	} {
		// The winners are in the order of their answers, or in any other.
		err := judgeWinners("n", []winner{first, tt.second})
		if other := judgeWinners("n", []winner{tt.second, first}); (other == nil) != (err == nil) {
			t.Errorf("%s: %v, and %v in the other order", tt.name, err, other)
		}
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// Only the later of the two has to know of the other one, so a dead region excuses only it.
	first.partial = true
	if err := judgeWinners("n", []winner{first, {"b", "us/1", 3, 4, false}}); err == nil {
		t.Error("a name was created again after a creation that had not asked all regions")
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
		{"a fault of the program during a fault", Call{At: 15, Took: 5, Kind: rhumb.Internal}, false, "no fault excuses"},
		{"a refused argument during a fault", Call{At: 15, Took: 5, Kind: rhumb.InvalidArgument}, false, "no fault excuses"},
		{"a failed write without a kind during a fault", Call{At: 15, Took: 5, Kind: rhumb.Other}, false, "no fault excuses"},
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

// TestRecordCalls guards that a call which was not served does not count as one that was answered.
func TestRecordCalls(t *testing.T) {
	for _, tt := range []struct {
		err    error
		ok     bool
		result outcome
	}{
		{nil, true, acked},
		{&rhumb.Error{Kind: rhumb.NotFound}, true, refused},
		{&rhumb.Error{Kind: rhumb.ConditionFailed}, true, refused},
		{&rhumb.Error{Kind: rhumb.AlreadyExists}, true, refused},
		{&rhumb.Error{Kind: rhumb.Unavailable}, false, refused},
		{&rhumb.Error{Kind: rhumb.Unknown}, false, unknown},
		{&rhumb.Error{Kind: rhumb.DeadlineExceeded}, false, unknown},
		{&rhumb.Error{Kind: rhumb.Corrupt}, false, unknown},
		{&rhumb.Error{Kind: rhumb.Internal}, false, unknown},
		{errors.New("of no kind"), false, unknown},
	} {
		r := newRecord()
		r.addRead(0, tt.err)
		if got := r.calls[0]; got.OK != tt.ok || got.Kind != rhumb.KindOf(tt.err) || !got.Read {
			t.Errorf("%v is recorded as %+v", tt.err, got)
		}
		if _, _, answered := textOf(client.Got{}, tt.err); answered != (tt.err == nil || rhumb.KindOf(tt.err) == rhumb.NotFound) {
			t.Errorf("%v counts as answered: %v", tt.err, answered)
		}
		if got := outcomeOf(tt.err); got != tt.result {
			t.Errorf("%v has outcome %d, want %d", tt.err, got, tt.result)
		}
	}
}

// TestProbe guards that keys without any service do not pass for keys without a gap.
func TestProbe(t *testing.T) {
	p := &probe{ops: 5, last: map[string]probed{"probe-0": {tried: 5}}}
	if v := p.check(t.Context()); v.Err == nil || !strings.Contains(v.Err.Error(), "no write to probe-0") {
		t.Error(v.Err)
	}
	// The write after the acknowledged ones may have taken effect or not.
	state := probed{acked: 4, tried: 5}
	for text, valid := range map[string]bool{"3": false, "4": true, "5": true, "6": false, "": false, "5x": false} {
		if err := state.judge("probe-0", text); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestChecks guards that each workload compares what is in the tables at the end with what its
// callers know.
func TestChecks(t *testing.T) {
	e := &env{record: newRecord()}
	for _, tt := range []struct {
		name  string
		start func() script
		texts map[string]string // of the keys at the end
		want  string            // part of the error; empty means valid
	}{
		{"probe", func() script { return &probe{e: e, ops: 5, acked: 4, last: map[string]probed{"k": {4, 5}}} }, map[string]string{"k": "4"}, ""},
		{"probe, lost", func() script { return &probe{e: e, ops: 5, acked: 4, last: map[string]probed{"k": {4, 5}}} }, nil, "4 was acknowledged"},
		{"counter", func() script { return &counter{e: e, ops: 5, acked: 4} }, map[string]string{"counter": "4"}, ""},
		{"counter, lost", func() script { return &counter{e: e, ops: 5, acked: 4} }, map[string]string{"counter": "3"}, "the counter is 3"},
		{"append", func() script { return &lists{e: e, tries: []*listTry{{element: "a", outcome: acked}}} }, map[string]string{"list-0": "a"}, ""},
		{"append, lost", func() script { return &lists{e: e, tries: []*listTry{{element: "a", outcome: acked}}} }, nil, "lost element a"},
		{"append, lost from a list before the last", func() script {
			return &lists{e: e, list: 1, tries: []*listTry{{element: "a", outcome: acked}, {list: 1, element: "b", outcome: acked}}}
		}, map[string]string{"list-1": "b"}, "lost element a"},
		{"set", func() script { return &set{e: e, tries: tries{ops: 1, outcomes: map[string]outcome{"a": acked}}} }, map[string]string{"a": "a"}, ""},
		{"set, lost", func() script { return &set{e: e, tries: tries{ops: 1, outcomes: map[string]outcome{"a": acked}}} }, nil, "acknowledged values are lost"},
		{"insert", func() script { return &insert{e: e, tries: tries{ops: 1, outcomes: map[string]outcome{"a": acked}}} }, map[string]string{"1": "a"}, ""},
		{"insert, twice", func() script { return &insert{e: e, tries: tries{ops: 1, outcomes: map[string]outcome{"a": acked}}} }, map[string]string{"1": "a", "2": "a"}, "2 times"},
		{"create", func() script { return created(e, winner{value: "a", answered: 1}) }, map[string]string{"n": "a"}, ""},
		{"create, lost", func() script { return created(e, winner{value: "a", answered: 1}) }, nil, "is lost"},
		{"create, twice", func() script { return created(e, winner{value: "a", answered: 1}, winner{value: "b", began: 2}) }, map[string]string{"n": "a"}, "created twice"},
		{"create, from nobody", func() script { return created(e) }, map[string]string{"n": "c"}, "which nobody wrote"},
	} {
		e.finalText = func(_ context.Context, name, _ string) (string, bool, error) {
			text, exists := tt.texts[name]
			return text, exists, nil
		}
		e.finalScan = func(context.Context) (items []rhumb.Item, err error) {
			for text := range maps.Values(tt.texts) {
				items = append(items, rhumb.Item{Value: rhumb.EncodeOpaque(nil, []byte(text))})
			}
			return items, nil
		}
		if v := tt.start().check(t.Context()); (v.Err == nil) != (tt.want == "") || v.Err != nil && !strings.Contains(v.Err.Error(), tt.want) {
			t.Errorf("%s: %+v, want %q", tt.name, v, tt.want)
		}
		// A table that cannot be read is not valid either.
		away := errors.New("nobody answers")
		e.finalText = func(context.Context, string, string) (string, bool, error) { return "", false, away }
		e.finalScan = func(context.Context) ([]rhumb.Item, error) { return nil, away }
		if v := tt.start().check(t.Context()); v.Err == nil {
			t.Errorf("%s: valid, although nothing was read", tt.name)
		}
	}
}

// created returns the workload create with the winners of one name, which two callers tried.
func created(e *env, winners ...winner) script {
	return &create{e: e, ops: 1, names: map[string]*creation{"n": {winners: winners, values: map[string]struct{}{"a": {}, "b": {}}}}}
}

// TestCounter guards that no increment is lost, and that none happens twice.
func TestCounter(t *testing.T) {
	for text, valid := range map[string]bool{"": false, "2": false, "3": true, "5": true, "6": false} {
		k := &counter{acked: 3, open: 2}
		if err := k.judge(text); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
	// A read that was too small stays wrong, whatever the last one says.
	for n, valid := range map[int]bool{2: false, 3: true, 4: true} {
		k := &counter{acked: 3}
		k.sawCount(n, 3)
		if err := k.judge("3"); (err == nil) != valid {
			t.Errorf("a read of %d: %v", n, err)
		}
	}
}

// TestAccounts guards that a read which lacks accounts does not pass for one from before they were
// opened.
func TestAccounts(t *testing.T) {
	read := func(amounts ...int) (got []client.Got) {
		for i := range bankAccounts {
			one := client.Got{}
			if i < len(amounts) {
				one.Version, one.Value = rhumb.Version{HLC: 1}, rhumb.EncodeOpaque(nil, []byte(strconv.Itoa(amounts[i])))
			}
			got = append(got, one)
		}
		return got
	}
	all := slices.Repeat([]int{bankMoney}, bankAccounts)
	for _, tt := range []struct {
		name   string
		got    []client.Got
		opened bool
		ok     bool
		want   string
	}{
		{"all", read(all...), true, true, ""},
		{"all, opened by somebody else", read(all...), false, true, ""},
		{"none, before they were opened", read(), false, false, ""},
		{"none, after they were opened", read(), true, false, "0 of 8 accounts"},
		{"some, before this caller knew of any", read(all[1:]...), false, false, "7 of 8 accounts"},
		{"no answer about any", nil, true, false, "0 of 8 accounts"},
		{"one too few coins", read(append([]int{bankMoney - 1}, all[1:]...)...), true, true, "hold 799"},
	} {
		if _, _, ok, err := judgeAccounts(tt.got, tt.opened); ok != tt.ok || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", tt.name, ok, err, tt.want)
		}
	}
	// A read that was wrong makes the run not valid, although a later one is right.
	b := &bank{ops: 5, acked: 1}
	for _, got := range [][]client.Got{read(all...), read(), read(all...)} {
		b.saw(got, b.opened)
	}
	if v := b.check(t.Context()); v.Err == nil || !strings.Contains(v.Err.Error(), "0 of 8 accounts") {
		t.Error(v.Err)
	}
}

// TestJudgeBatch guards that a batch is seen as a whole, and that none is lost.
func TestJudgeBatch(t *testing.T) {
	for _, tt := range []struct {
		values []int
		least  int
		valid  bool
	}{
		{[]int{0, 0, 0, 0}, 0, true},
		{[]int{4, 4, 4, 4}, 4, true},
		{[]int{5, 5, 5, 5}, 4, true},
		{[]int{3, 3, 3, 3}, 4, false},
		{[]int{5, 5, 5, 4}, 4, false},
		{[]int{4, 5, 5, 5}, 4, false},
		{[]int{5, 5, 5}, 4, false},
		{nil, 0, false},
	} {
		if err := judgeBatch(tt.values, tt.least); (err == nil) != tt.valid {
			t.Errorf("%v after %d: %v", tt.values, tt.least, err)
		}
	}
	b := &batches{ops: 5, acked: 1}
	b.saw(3, time.Second, []int{4, 5, 5, 5}, 4)
	b.saw(3, 2*time.Second, []int{5, 5, 5, 5}, 4)
	if v := b.check(t.Context()); v.Err == nil || !strings.Contains(v.Err.Error(), "a read of batch 3 at 1s returned [4 5 5 5]") {
		t.Error(v.Err)
	}
}

// TestScan guards that a scan has all names of its prefix that were acknowledged before it began.
func TestScan(t *testing.T) {
	s := newSet(nil).(*set)
	now, other := generationPrefix(s.generation), generationPrefix(s.generation+1)
	s.expect("a", now, acked)
	s.expect("b", now, unknown)
	s.expect("c", now, refused)
	s.expect("d", other, acked)
	if !maps.Equal(s.recent, map[string]bool{"a": true}) {
		t.Errorf("a scan must have %v", s.recent)
	}
	if s.scanned(0, nil); s.scanErr != nil {
		t.Error(s.scanErr)
	}
	s.scanned(0, s.recent)
	if v := s.check(t.Context()); v.Err == nil || !strings.Contains(v.Err.Error(), "lacks 1 acknowledged names, a among them") || v.Operations != 2 {
		t.Errorf("%+v", v)
	}
}

// TestCreated guards that a name which was created holds what its creator wrote.
func TestCreated(t *testing.T) {
	w, at := winner{value: "a"}, creation{values: map[string]struct{}{"a": {}, "b": {}}}
	for _, tt := range []struct {
		text           string
		exists         bool
		winner, anyone bool // whether it is valid
	}{
		{"a", true, true, true},
		{"b", true, false, true},
		{"c", true, false, false},
		{"", false, false, true},
	} {
		if err := w.judge("n", tt.text, tt.exists); (err == nil) != tt.winner {
			t.Errorf("%q where a was created: %v", tt.text, err)
		}
		if err := at.judge("n", tt.text, tt.exists); (err == nil) != tt.anyone {
			t.Errorf("%q where a and b were tried: %v", tt.text, err)
		}
	}
}

// TestConclude guards that an acknowledged batch counts as one transaction with its reads, so that
// a lost update shows.
func TestConclude(t *testing.T) {
	for _, tt := range []struct {
		name         string
		first, other outcome
		last         []string // what is in the list at the end
		valid        bool
	}{
		{"both acknowledged, one after the other", acked, refused, []string{"1"}, true},
		{"both acknowledged on the same state", acked, acked, []string{"1", "2"}, false},
		{"acknowledged and lost", acked, unknown, []string{"2"}, false},
		{"refused and there", refused, unknown, []string{"1"}, false},
		{"unknown and there", unknown, refused, []string{"1"}, true},
		{"unknown and missing", unknown, refused, nil, true},
	} {
		x := &transactions{e: &env{record: newRecord()}}
		type pair struct{ reading, writing *check.ListTransaction }
		var all []pair
		// Both read the empty list before either appends.
		for range 2 {
			reading := x.begin(&check.ListTransaction{})
			reading.Reads = []check.ListRead{{List: "l"}}
			x.end(reading, check.OK)
			all = append(all, pair{reading: reading})
		}
		for i, element := range []string{"1", "2"} {
			all[i].writing = x.begin(&check.ListTransaction{Appends: []check.ListAppend{{List: "l", Element: element}}})
		}
		for i, o := range []outcome{tt.first, tt.other} {
			x.conclude(all[i].reading, all[i].writing, o)
		}
		awaitLater(x.e.record) // the last read begins after all answers
		final := x.begin(&check.ListTransaction{})
		final.Reads = []check.ListRead{{List: "l", Elements: tt.last}}
		x.end(final, check.OK)
		v, want := x.verdict(), 0
		for _, o := range []outcome{tt.first, tt.other} {
			want += map[outcome]int{acked: 1}[o]
		}
		if (v.Err == nil) != tt.valid || v.Acknowledged != want {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}

// awaitLater returns when the time of a record has moved, so that the next operation begins after the
// end of the last one.
func awaitLater(r *Record) {
	for at := r.now(); r.now() <= at; {
		runtime.Gosched()
	}
}

// TestRegister guards that the history of the workload register has the answers that callers got,
// and that it is judged.
func TestRegister(t *testing.T) {
	for _, tt := range []struct {
		err     error
		applied bool
		want    check.Result
	}{
		{nil, true, check.OK},
		{nil, false, check.Unchanged},
		{&rhumb.Error{Kind: rhumb.ConditionFailed}, false, check.ConditionFailed},
		{&rhumb.Error{Kind: rhumb.Unavailable}, false, check.NotApplied},
		{&rhumb.Error{Kind: rhumb.Unknown}, false, check.Unknown},
		{errors.New("of no kind"), false, check.Unknown},
	} {
		if got := resultOf(tt.err, tt.applied); got != tt.want {
			t.Errorf("%v, applied %v: %v, want %v", tt.err, tt.applied, got, tt.want)
		}
	}
	in, caller := rhumb.RangeID{Region: 1, Slot: 5}, &caller{}
	write := func(name, value string, at rhumb.Timestamp) *check.Op {
		return &check.Op{
			Result: check.OK, Range: in, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Name: []byte(name), Value: []byte(value)}},
			Outcome: rhumb.Outcome{Applied: true, Version: rhumb.Version{HLC: at}},
		}
	}
	read := func(name, value string, version, at rhumb.Timestamp) *check.Op {
		return &check.Op{Result: check.OK, Range: in, Names: [][]byte{[]byte(name)}, Items: []check.Item{{Version: rhumb.Version{HLC: version}, Value: []byte(value)}}, At: at}
	}
	for _, tt := range []struct {
		name string
		ops  []*check.Op
		want string
	}{
		{"read of what was written", []*check.Op{write("a", "1", 5), read("a", "1", 5, 6)}, ""},
		{"read of an old value", []*check.Op{write("a", "1", 5), write("a", "2", 6), read("a", "1", 5, 6)}, "not linearizable"},
		{"read of another key at an old time", []*check.Op{write("a", "1", 5), read("b", "", 0, 4)}, "greater log position"},
	} {
		r := newRegister(&env{record: newRecord()}).(*register)
		for _, op := range tt.ops {
			result := op.Result
			r.begin(caller, op)
			op.Result, op.Return = result, r.e.record.now()
			awaitLater(r.e.record)
		}
		v := r.verdict()
		if (v.Err == nil) != (tt.want == "") || v.Err != nil && !strings.Contains(v.Err.Error(), tt.want) || v.Operations != len(tt.ops) || v.Acknowledged == 0 {
			t.Errorf("%s: %+v, want %q", tt.name, v, tt.want)
		}
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

// TestResult guards that each kind of broken promise makes a run not valid, and that the exit code
// says so.
func TestResult(t *testing.T) {
	bounded := Fault{Gap: 2 * time.Second}
	var leak, steady []Sample
	for i := range flatSamples {
		steady = append(steady, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1"})
		leak = append(leak, Sample{At: time.Duration(i) * sampleEvery, Node: "eu-1", Memory: 100 * float64(i)})
	}
	for _, tt := range []struct {
		name   string
		result Result
		want   string // part of the only line; empty means valid
	}{
		{"a gap at the bound", Result{Windows: []Window{{Fault: bounded, Gap: 2 * time.Second}}}, ""},
		{"a gap over the bound", Result{Windows: []Window{{Fault: bounded}, {Fault: bounded, Gap: 2*time.Second + 1, Key: "probe-3"}}}, "probe-3 had no service"},
		{"a gap of a fault without a bound", Result{Windows: []Window{{Gap: time.Hour}}}, ""},
		{"a gap on a busy machine", Result{Plan: Plan{AnyGap: true}, Windows: []Window{{Fault: bounded, Gap: time.Hour}}}, ""},
		{"a call that no fault excuses", Result{Windows: []Window{{Whole: 1}}, Calls: []Call{{Kind: rhumb.Corrupt}}}, "no fault excuses"},
		{"a damaged answer on a busy machine", Result{Plan: Plan{AnyGap: true}, Windows: []Window{{}}, Calls: []Call{{Kind: rhumb.Corrupt}}}, "no fault excuses"},
		{"a call that failed in calm times", Result{Windows: []Window{{}}, Calls: []Call{{At: 1, Kind: rhumb.Unavailable}}}, "no fault was in progress"},
		{"memory that grows", Result{Windows: []Window{{}}, Samples: leak}, "memory in MiB grows"},
		{"a soak that judged no process", Result{Plan: Plan{Soak: true}, Windows: []Window{{}}, Samples: leak[:flatSamples-1]}, "of 0 of 1 nodes lived to the end"},
		{"a soak that judged one of two nodes", Result{Plan: Plan{Soak: true}, Regions: []string{"eu"}, Nodes: 2, Windows: []Window{{}}, Samples: steady}, "of 1 of 2 nodes lived to the end"},
		{"a soak that judged its node", Result{Plan: Plan{Soak: true}, Regions: []string{"eu"}, Nodes: 1, Windows: []Window{{}}, Samples: steady}, ""},
		{"no fault", Result{}, "no fault was tried"},
	} {
		r := tt.result
		r.judge()
		if got := strings.Join(r.Broken, "; "); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || len(r.Broken) > 1 {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if code := ExitCode(r.Err()); code != map[bool]int{true: 0, false: ExitBroken}[tt.want == ""] {
			t.Errorf("%s: exit code %d", tt.name, code)
		}
	}
	// A run that was not valid does not end as one that was left out, whatever goes wrong after it.
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("no cluster"), ExitBroken},
		{errors.ErrUnsupported, ExitUnsupported},
		{errors.Join(ErrBroken, errors.ErrUnsupported), ExitBroken},
	} {
		if got := ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}

// TestFailedFault guards that a fault which did nothing, or after which the cluster was not whole,
// makes a run not valid.
func TestFailedFault(t *testing.T) {
	c := &Cluster{cfg: Config{Log: io.Discard}}
	for _, tt := range []struct {
		err  error
		stop bool // no other fault may follow
	}{{fmt.Errorf("%w: no packet was dropped", errNoEffect), false}, {errNotWhole, true}} {
		r, record := &Result{}, newRecord()
		f := Fault{Name: "cut", strike: func(context.Context, *Cluster, *rand.Rand) (*Strike, error) { return nil, tt.err }}
		if err := r.once(t.Context(), c, record, f, nil); (err != nil) != tt.stop {
			t.Errorf("%v: %v", tt.err, err)
		}
		if len(r.Broken) != 1 || !strings.Contains(r.Broken[0], tt.err.Error()) || len(record.windows) != 1 || !record.windows[0].Failed {
			t.Errorf("%v: %q, %+v", tt.err, r.Broken, record.windows)
		}
	}
	// The evidence of a fault is judged even if the run is interrupted.
	ctx, stop := context.WithCancel(t.Context())
	stop()
	noEffect := fmt.Errorf("%w: no packet was dropped", errNoEffect)
	f := Fault{strike: func(context.Context, *Cluster, *rand.Rand) (*Strike, error) {
		return &Strike{heal: func(context.Context) (string, error) { return "0 packets", noEffect }}, nil
	}}
	w, err := inflict(ctx, c, newRecord(), f, &Plan{Hold: time.Hour}, nil)
	if !errors.Is(err, errNoEffect) || w.Evidence != "0 packets" {
		t.Errorf("%v, %+v", err, w)
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

// TestCheckNodes guards that a cluster is not whole while a node is away, and that an operator with
// old metadata does not say that it is.
func TestCheckNodes(t *testing.T) {
	well := client.NodeStatus{Node: rhumb.Node{State: rhumb.NodeLive}, Ready: true, Revision: 7}
	starting, leaving, away, gone, next := well, well, well, well, well
	starting.Ready, leaving.Node.State, away.Err, next.Revision = false, rhumb.NodeDecommissioning, "no answer", 8
	gone.Err, gone.Node.Forgotten = "no answer", true
	replaced := gone
	replaced.Node.Forgotten, replaced.Node.ReplacedBy = false, 4
	for _, tt := range []struct {
		name  string
		all   []client.NodeStatus
		whole bool
	}{
		{"all", []client.NodeStatus{well, well, well}, true},
		{"one that was removed", []client.NodeStatus{well, gone, well, well}, true},
		{"one that was replaced", []client.NodeStatus{well, replaced, well, well}, true},
		{"one that starts", []client.NodeStatus{well, well, starting}, false},
		{"one that leaves", []client.NodeStatus{well, well, leaving}, false},
		{"one that does not answer", []client.NodeStatus{well, well, well, away}, false},
		{"one that is missing", []client.NodeStatus{well, well}, false},
		{"one too many", []client.NodeStatus{well, well, well, well}, false},
		{"a node with newer metadata", []client.NodeStatus{well, well, next}, false},
	} {
		if err := checkNodes(tt.all, 3, func() uint64 { return 7 }); (err == nil) != tt.whole {
			t.Errorf("%s: %v", tt.name, err)
		}
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
