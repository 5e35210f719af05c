package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb/wan"
)

// TestCuts checks which links each kind of fault cuts.
func TestCuts(t *testing.T) {
	three, five := strings.Fields("a b c"), strings.Fields("a b c d e")
	for _, tc := range []struct {
		kind  FaultKind
		names []string
		want  string
	}{
		{FaultOneWay, three, "a>b"},
		{FaultHalfOpen, five, "a~b"},
		{FaultRing, three, "a-b"},
		{FaultRing, five, "a-c a-d b-d b-e c-e"},
		{FaultBridge, three, "a-b"},
		{FaultBridge, five, "a-d a-e b-d b-e"},
	} {
		f := &wan.File{}
		applyCuts(tc.kind, f, tc.names)
		var got []string
		for _, list := range []struct {
			sign  string
			pairs [][]string
		}{{"-", f.Cut}, {">", f.CutOneWay}, {"~", f.HalfOpen}} {
			for _, p := range list.pairs {
				got = append(got, strings.Join(p, list.sign))
			}
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s of %d nodes cuts %q, want %q", tc.kind, len(tc.names), s, tc.want)
		}
	}
}
