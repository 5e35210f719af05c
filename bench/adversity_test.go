package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// adversityRun returns the report of a run of 90 s whose two callers, one of
// each table, call every 100 ms and are answered after 5 ms. The node loss
// strikes the primaries of both ranges. change may alter a call, or drop it by
// returning false.
func adversityRun(change func(c *adversityCall) bool) *AdversityReport {
	near, wide := rhumb.RangeID{Region: 1, Slot: 0}, rhumb.RangeID{Region: 1, Slot: 1 << 20}
	callers := []*adversityCaller{{interval: 100 * time.Millisecond}, {interval: 100 * time.Millisecond, wide: true}}
	parts := []struckPart{{at: near, primary: true}, {at: wide, primary: true}}
	r := &AdversityReport{}
	for i, name := range []string{phaseBaseline, phaseMaintenance, phaseStall, phasePartition, phaseNode, phaseRegion, phaseHealing} {
		from := time.Duration(i) * 12 * time.Second
		p := AdversityPhase{Name: name, From: from, Healed: from + 10*time.Second, To: from + 12*time.Second}
		if i >= 2 && name != phaseHealing {
			p.parts = parts
		}
		r.Phases = append(r.Phases, p)
	}
	for due := time.Duration(0); due < 90*time.Second; due += 100 * time.Millisecond {
		for i := range callers {
			c := adversityCall{caller: i, due: due, took: 5 * time.Millisecond, ok: true, read: due%(400*time.Millisecond) == 0}
			if change(&c) {
				r.calls = append(r.calls, c)
			}
		}
	}
	r.judge(callers)
	return r
}

// in reports whether a call is due in a part of the phase with a number.
func (c *adversityCall) in(phase int, from, to time.Duration) bool {
	at := c.due - time.Duration(phase)*12*time.Second
	return at >= from && at < to
}

// TestAdversityGoals plants one shortcoming after the other into a run without
// any, and expects the goals that it misses and no other.
func TestAdversityGoals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *adversityCall) bool
		want   []string
	}{
		{"nothing", func(*adversityCall) bool { return true }, nil},
		{"gap of 1.5 s at a node loss", func(c *adversityCall) bool { return !c.in(4, 0, 1500*time.Millisecond) }, nil},
		{"gap of 1.8 s at a node loss", func(c *adversityCall) bool { return !c.in(4, 0, 1800*time.Millisecond) }, []string{"G2 node loss gap of ranges of one region, p99"}},
		{
			"gap of 2.8 s at a node loss", func(c *adversityCall) bool { return !c.in(4, 0, 2800*time.Millisecond) },
			[]string{"G2 node loss gap of ranges of one region, p99", "G2 node loss gap of ranges of one region, longest", "G2 node loss gap of ranges of several regions"},
		},
		{"reads only", func(c *adversityCall) bool { return c.read || !c.in(5, 0, 4*time.Second) }, []string{"G2 region loss gap of ranges of several regions"}},
		{"gap that lasts to the end", func(c *adversityCall) bool { return !c.in(3, 8*time.Second, 12*time.Second) }, []string{"G4 partition longest gap of a range"}},
		{"a third fewer answers", func(c *adversityCall) bool {
			return !c.in(6, 5*time.Second, 10*time.Second) || c.due%(300*time.Millisecond) != 0
		}, []string{"G6 healing rate after 5 s, of the baseline"}},
		{
			"a write that fails", func(c *adversityCall) bool {
				c.ok = !c.in(1, time.Second, 1100*time.Millisecond) || c.read
				return true
			},
			[]string{"G5 maintenance writes that failed"},
		},
		{
			"a pause at a handover", func(c *adversityCall) bool {
				// The calls that were due in this time wait for one that takes
				// 450 ms.
				if c.in(1, time.Second, 1100*time.Millisecond) {
					c.took = 450 * time.Millisecond
				}
				return !c.in(1, 1100*time.Millisecond, 1500*time.Millisecond)
			}, []string{"G5 maintenance added to the 99.9th percentile"},
		},
	} {
		var got []string
		for _, g := range adversityRun(c.change).Missed() {
			got = append(got, strings.Join([]string{g.Goal, g.Phase, g.What}, " "))
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: missed %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAdversityPicture draws a run in both formats.
func TestAdversityPicture(t *testing.T) {
	r := adversityRun(func(c *adversityCall) bool { c.ok = !c.in(5, 0, time.Second); return true })
	for end, magic := range map[string]string{".png": "\x89PNG", ".svg": "<svg"} {
		path := filepath.Join(t.TempDir(), "run"+end)
		if err := r.Draw(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), magic) {
			t.Errorf("%s: %v, %d bytes without %q", path, err, len(text), magic)
		}
	}
	if err := (&AdversityReport{}).Draw(filepath.Join(t.TempDir(), "empty.png")); err == nil {
		t.Error("a report without phases was drawn")
	}
}
