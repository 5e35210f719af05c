package model

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTraces records the shortest traces to harm. They change with the model, and are reviewed
// then.
func TestTraces(t *testing.T) {
	datadriven.RunTest(t, "testdata/traces.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "without" || len(d.CmdArgs) != 1 {
			d.Fatalf(t, "want: without MUTATION")
		}
		f, ok := MutationByName(d.CmdArgs[0].Key)
		if !ok || f.Steps > 0 {
			d.Fatalf(t, "no mutation %q that is searched exhaustively", d.CmdArgs[0].Key)
		}
		res, err := f.Find()
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return fmt.Sprintf("%v\n%v", f.Config, res.Violation)
	})
}

// TestNames checks that every kind of action and every invariant has a text of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for k := actWrite; k < actionKinds; k++ {
		s := Action{kind: k}.String()
		if s == fmt.Sprintf("action %d", k) || seen[s] {
			t.Errorf("kind %d has the text %q", k, s)
		}
		seen[s] = true
	}
	for i := OnePrimary; i < invariants; i++ {
		if s := i.String(); s == "" || seen[s] {
			t.Errorf("invariant %d has the text %q", i, s)
		}
		seen[i.String()] = true
	}
}
