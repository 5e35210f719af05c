package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// parseLists reads a history of transactions: "1-2 r:a=x,y +a=z" is called at 1 and answered at 2, reads x and y from the list a, and
// appends z to it. A "?" after the times means an unknown outcome, and a "!" a refusal.
func parseLists(t *testing.T, lines ...string) (history []*ListTransaction) {
	for i, line := range lines {
		one := &ListTransaction{ID: i + 1, Result: OK}
		for k, word := range strings.Fields(line) {
			before, list, _ := strings.Cut(word, ":")
			name, elements, _ := strings.Cut(list, "=")
			switch {
			case k == 0:
				if _, err := fmt.Sscanf(word, "%d-%d", &one.Call, &one.Return); err != nil {
					t.Fatal(line, err)
				}
			case word == "?":
				one.Result, one.Return = Unknown, Forever
			case word == "!":
				one.Result = NotApplied
			case before == "r":
				r := ListRead{List: name}
				if elements != "" {
					r.Elements = strings.Split(elements, ",")
				}
				one.Reads = append(one.Reads, r)
			case before == "+":
				one.Appends = append(one.Appends, ListAppend{name, elements})
			default:
				t.Fatalf("word %q in %q", word, line)
			}
		}
		history = append(history, one)
	}
	return history
}

// TestLists guards that each known anomaly of list-append is found under its name, and that what is allowed passes. Transactions whose
// times overlap show anomalies of any order; those with separate times show the ones of real time.
func TestLists(t *testing.T) {
	for _, tt := range []struct {
		name    string
		want    string // part of the error; empty means valid
		history []string
	}{
		{"nothing happened", "", nil},
		{"one after the other", "", []string{"1-2 +:a=1", "3-4 r:a=1 +:a=2", "5-6 r:a=1,2"}},
		{"overlapping, in another order than they began", "", []string{"1-9 +:a=1", "2-8 r:a= +:a=2", "10-11 r:a=2,1"}},
		{"unknown and never seen", "", []string{"1-2 ? +:a=1", "3-4 r:a="}},
		{"unknown and seen later", "", []string{"1-2 ? +:a=1", "3-4 r:a=", "5-6 r:a=1"}},
		{"refused and missing", "", []string{"1-2 ! +:a=1", "3-4 r:a="}},
		{"reads of a refused transaction do not count", "", []string{"1-2 +:a=1", "3-4 ! r:a= +:a=2", "5-6 r:a=1"}},
		{"two appends of one transaction", "", []string{"1-2 +:a=1 +:a=2", "3-4 r:a=1,2"}},
		{"other orders of two lists", "G0", []string{"1-9 +:a=1 +:b=1", "1-9 +:a=2 +:b=2", "1-9 r:a=1,2 r:b=2,1"}},
		{"of a refused transaction", "G1a", []string{"1-2 ! +:a=1", "3-4 r:a=1"}},
		{"in the middle of a transaction", "G1b", []string{"1-9 +:a=1 +:a=2", "1-9 r:a=1", "10-11 r:a=1,2"}},
		{"each read the other's append", "G1c", []string{"1-9 r:b=2 +:a=1", "1-9 r:a=1 +:b=2"}},
		{"one list new and one old", "G-single", []string{"1-9 +:a=1 +:b=2", "1-9 r:a=1 r:b=", "10-11 r:a=1 r:b=2"}},
		{"lost update", "G-single", []string{"1-9 r:a= +:a=1", "1-9 r:a= +:a=2", "10-11 r:a=1,2"}},
		{"write skew", "G2", []string{"1-9 r:a= r:b= +:a=1", "1-9 r:a= r:b= +:b=2", "10-11 r:a=1 r:b=2"}},
		{"two readers saw two appends in different orders", "G2", []string{
			"1-9 +:a=1", "1-9 +:b=2", "1-9 r:a=1 r:b=", "1-9 r:a= r:b=2", "10-11 r:a=1 r:b=2",
		}},
		{"appended in the wrong order of time", "G0-realtime", []string{"1-2 +:a=1", "3-4 +:a=2", "1-9 r:a=2,1"}},
		{"read before it was appended", "G1c-realtime", []string{"1-2 r:a=1", "3-4 +:a=1"}},
		{"stale read", "G-single-realtime", []string{"1-2 +:a=1", "3-4 r:a=", "5-6 r:a=1"}},
		{"lost at the end", "G-single-realtime", []string{"1-2 +:a=1", "3-4 r:a="}},
		{"lost after other elements", "G-single-realtime", []string{"1-2 +:a=1", "3-4 +:a=2", "5-6 r:a=1"}},
		{"write skew by a third who came later", "G2-realtime", []string{"1-9 r:b= +:a=1", "1-3 +:b=2", "4-6 r:a=", "10-11 r:a=1 r:b=2"}},
		{"saw its own append before it was made", "itself appends", []string{"1-2 r:a=1 +:a=1"}},
		{"two orders", "incompatible order", []string{"1-9 +:a=1", "1-9 +:a=2", "1-9 r:a=1,2", "1-9 r:a=2"}},
		{"twice", "twice", []string{"1-2 +:a=1", "3-4 r:a=1,1"}},
		{"from nobody", "nobody appended", []string{"3-4 r:a=1"}},
		{"appended by two", "the history is wrong", []string{"1-2 +:a=1", "3-4 +:a=1"}},
		{"unknown and read before it was appended", "G1c-realtime", []string{"1-2 r:a=1", "3-4 ? +:a=1"}},
		{"stale after the answer before last", "G-single-realtime", []string{"1-2 +:a=1", "1-3 r:b=", "4-5 r:a=", "6-7 r:a=1"}},
	} {
		err := Lists(parseLists(t, tt.history...))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
			continue
		}
		// A pattern whose name is part of another one must not be taken for it.
		if strings.HasPrefix(tt.want, "G") && err != nil && !strings.Contains(err.Error(), tt.want+":") {
			t.Errorf("%s: %v, want exactly %s", tt.name, err, tt.want)
		}
	}
}

// TestListsExplain guards that a report names the transactions and lists of a cycle.
func TestListsExplain(t *testing.T) {
	err := Lists(parseLists(t, "1-2 +:a=1", "3-4 r:a=", "5-6 r:a=1"))
	want := "G-single-realtime: T2 (3ns to 4ns) read a without the append of T1 (1ns to 2ns), which had ended before T2 (3ns to 4ns)"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestListsAgainstSearch compares the check with a search through all orders, on small random histories, about half of which are damaged.
func TestListsAgainstSearch(t *testing.T) {
	verdicts := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		history := drawLists(t)
		want := explainable(history, map[string][]string{}, make([]bool, len(history)))
		got := Lists(history)
		if (got == nil) != want {
			t.Fatalf("the check says %v, and an order that explains the history exists: %t\n%v", got, want, describe(history))
		}
		verdicts[want]++
	})
	// A generator that draws only valid or only broken histories would test nothing.
	if !t.Failed() && min(verdicts[true], verdicts[false]) < 5 {
		t.Errorf("%d histories were valid and %d were not", verdicts[true], verdicts[false])
	}
}

// describe prints a history.
func describe(history []*ListTransaction) string {
	var text strings.Builder
	for _, one := range history {
		fmt.Fprintf(&text, "%s %s reads %v appends %v\n", one, one.Result, one.Reads, one.Appends)
	}
	return text.String()
}

// drawLists draws transactions that happened one after the other, with times around the moments at which they happened, and then perhaps
// damages a read or a time. The last transaction reads everything.
func drawLists(t *rapid.T) (history []*ListTransaction) {
	names := []string{"a", "b"}
	state := map[string][]string{}
	count := rapid.IntRange(1, 5).Draw(t, "count")
	for i := range count {
		at := 10 * (i + 1)
		one := &ListTransaction{
			ID: i + 1, Result: OK,
			Call: time.Duration(at - rapid.IntRange(1, 25).Draw(t, "before")), Return: time.Duration(at + rapid.IntRange(1, 25).Draw(t, "after")),
		}
		for _, name := range names {
			if rapid.Bool().Draw(t, "read") {
				one.Reads = append(one.Reads, ListRead{name, slices.Clone(state[name])})
			}
			if rapid.Bool().Draw(t, "append") {
				element := fmt.Sprint(i + 1)
				one.Appends = append(one.Appends, ListAppend{name, element})
				state[name] = append(state[name], element)
			}
		}
		history = append(history, one)
	}
	for range rapid.IntRange(0, 2).Draw(t, "damages") {
		one := history[rapid.IntRange(0, count-1).Draw(t, "damaged")]
		if len(one.Reads) > 0 {
			r := &one.Reads[rapid.IntRange(0, len(one.Reads)-1).Draw(t, "which")]
			final := state[r.List]
			r.Elements = slices.Clone(final[:rapid.IntRange(0, len(final)).Draw(t, "length")])
		}
	}
	end := &ListTransaction{ID: count + 1, Result: OK, Call: 1000, Return: 1001}
	for _, name := range names {
		end.Reads = append(end.Reads, ListRead{name, state[name]})
	}
	return append(history, end)
}

// explainable searches an order in which the rest of the transactions could have happened from a state on.
func explainable(history []*ListTransaction, state map[string][]string, done []bool) bool {
	if !slices.Contains(done, false) {
		return true
	}
	for i, one := range history {
		if done[i] || !isNext(history, done, i) || !fits(one, state) {
			continue
		}
		after := map[string][]string{}
		for name, elements := range state {
			after[name] = slices.Clone(elements)
		}
		for _, a := range one.Appends {
			after[a.List] = append(after[a.List], a.Element)
		}
		done[i] = true
		found := explainable(history, after, done)
		done[i] = false
		if found {
			return true
		}
	}
	return false
}

// isNext reports whether nobody who is left had ended before a transaction began.
func isNext(history []*ListTransaction, done []bool, i int) bool {
	for k, other := range history {
		if !done[k] && other.Return < history[i].Call {
			return false
		}
	}
	return true
}

// fits reports whether a state has what a transaction read.
func fits(one *ListTransaction, state map[string][]string) bool {
	return !slices.ContainsFunc(one.Reads, func(r ListRead) bool { return !slices.Equal(r.Elements, state[r.List]) })
}
