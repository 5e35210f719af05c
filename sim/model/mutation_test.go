package model

import (
	"fmt"
	"strconv"
	"testing"
)

// TestMutationsAreCaught checks that leaving out any rule breaks an invariant. A rule whose absence
// goes unnoticed is either superfluous or not modelled.
func TestMutationsAreCaught(t *testing.T) {
	caught := map[Mutation]bool{WholeProtocol: true}
	for _, f := range Mutations() {
		caught[f.Mutation] = true
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			res, err := f.Find()
			if err != nil {
				t.Fatal(err)
			}
			v := res.Violation
			if v == nil {
				t.Fatalf("not caught in %v: %d states, %d transitions", f.Config, res.States, res.Transitions)
			}
			if v.Invariant != f.Breaks {
				t.Errorf("breaks %q, want %q\n%v", v.Invariant, f.Breaks, v)
			}
			steps := strconv.Itoa(len(v.Trace))
			if f.Steps > 0 {
				steps += " (walk)"
			}
			wantRow(t, f.Name, fmt.Sprintf("| %v | %s |", v.Invariant, steps))
			t.Logf("%s: %v after %d steps; %d states, %d transitions, %.1fs", f.Name, v.Invariant, len(v.Trace), res.States, res.Transitions, res.Elapsed.Seconds())
		})
	}
	for _, f := range Unnoticed() {
		caught[f.Mutation] = true
	}
	for m := range mutations {
		if !caught[m] {
			t.Errorf("mutation %d is in no table", m)
		}
	}
}

// TestUnnoticed checks that the rules listed as unnoticed are unnoticed. If it fails, the rule has
// a finding and belongs in the table of mutations.
func TestUnnoticed(t *testing.T) {
	for _, f := range Unnoticed() {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			f.Config.Without = f.Mutation
			res, err := Explore(f.Config, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if res.Violation != nil || !res.Exhausted {
				t.Errorf("%v: exhausted %v, %v", f.Config, res.Exhausted, res.Violation)
			}
		})
	}
}
