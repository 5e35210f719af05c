package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// adversityNames are the phases of adversityRun. Each takes 12 s, of which the
// last two heal, and the one with a slow node 30 s.
var adversityNames = []string{phaseBaseline, phaseMaintenance, phaseSlow, phaseStall, phasePartition, phaseNode, phaseRegion, phaseHealing}

// adversityTimes returns when a phase begins and how long its fault lasts.
func adversityTimes(name string) (from, length time.Duration) {
	for _, n := range adversityNames {
		length = 10 * time.Second
		if n == phaseSlow {
			length = 28 * time.Second
		}
		if n == name {
			break
		}
		from += length + 2*time.Second
	}
	return from, length
}

// adversityRun returns the report of a run whose two callers, one of each table,
// call every 100 ms and are answered after 5 ms. The faults strike the primaries
// of both ranges. change may alter a call, or drop it by returning false.
func adversityRun(change func(c *adversityCall) bool) *AdversityReport {
	near, wide := rhumb.RangeID{Region: 1, Slot: 0}, rhumb.RangeID{Region: 1, Slot: 1 << 20}
	callers := []*adversityCaller{{interval: 100 * time.Millisecond}, {interval: 100 * time.Millisecond, wide: true}}
	parts := []struckPart{{at: near, primary: true}, {at: wide, primary: true}}
	r := &AdversityReport{}
	var end time.Duration
	for i, name := range adversityNames {
		from, length := adversityTimes(name)
		end = from + length + 2*time.Second
		p := AdversityPhase{Name: name, From: from, Healed: from + length, To: end}
		if i >= 2 && name != phaseHealing {
			p.parts = parts
		}
		r.Phases = append(r.Phases, p)
	}
	for due := time.Duration(0); due < end; due += 100 * time.Millisecond {
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

// in reports whether a call is due in a part of a phase.
func (c *adversityCall) in(phase string, from, to time.Duration) bool {
	begin, _ := adversityTimes(phase)
	at := c.due - begin
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
		{"gap of 1.5 s at a node loss", func(c *adversityCall) bool { return !c.in(phaseNode, 0, 1500*time.Millisecond) }, nil},
		{"gap of 1.8 s at a node loss", func(c *adversityCall) bool { return !c.in(phaseNode, 0, 1800*time.Millisecond) }, []string{"G2 node loss gap of ranges of one region, p99"}},
		{
			"gap of 2.8 s at a node loss", func(c *adversityCall) bool { return !c.in(phaseNode, 0, 2800*time.Millisecond) },
			[]string{"G2 node loss gap of ranges of one region, p99", "G2 node loss gap of ranges of one region, longest", "G2 node loss gap of ranges of several regions"},
		},
		{"reads only", func(c *adversityCall) bool { return c.read || !c.in(phaseRegion, 0, 4*time.Second) }, []string{"G2 region loss gap of ranges of several regions"}},
		{"gap of 1.9 s at a stall", func(c *adversityCall) bool { return !c.in(phaseStall, 0, 1900*time.Millisecond) }, nil},
		{"gap of 2.3 s at a stall", func(c *adversityCall) bool { return !c.in(phaseStall, 0, 2300*time.Millisecond) }, []string{"G4 disk stall gap of ranges of one region, p99"}},
		{
			"gap that lasts to the end", func(c *adversityCall) bool { return !c.in(phasePartition, 8*time.Second, 12*time.Second) },
			[]string{"G4 partition gap of ranges of one region, p99", "G4 partition gap of ranges of one region, longest", "G4 partition gap of ranges of several regions"},
		},
		{"late writes while a slow node is found", func(c *adversityCall) bool {
			if c.in(phaseSlow, 0, 14*time.Second) {
				c.took = 80 * time.Millisecond
			}
			return true
		}, nil},
		{"late writes with a slow node", func(c *adversityCall) bool {
			if c.in(phaseSlow, 20*time.Second, 25*time.Second) {
				c.took = 80 * time.Millisecond
			}
			return true
		}, []string{"G6 slow node 99th percentile of writes after 15 s"}},
		{"a third fewer answers", func(c *adversityCall) bool {
			return !c.in(phaseHealing, 5*time.Second, 10*time.Second) || c.due%(300*time.Millisecond) != 0
		}, []string{"G6 healing rate after 5 s, of the baseline"}},
		{
			"a write that fails", func(c *adversityCall) bool {
				c.ok = !c.in(phaseMaintenance, time.Second, 1100*time.Millisecond) || c.read
				return true
			},
			[]string{"G5 maintenance writes that failed"},
		},
		{
			"a pause at a handover", func(c *adversityCall) bool {
				// The calls that were due in this time wait for one that takes
				// 450 ms.
				if c.in(phaseMaintenance, time.Second, 1100*time.Millisecond) {
					c.took = 450 * time.Millisecond
				}
				return !c.in(phaseMaintenance, 1100*time.Millisecond, 1500*time.Millisecond)
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
	r := adversityRun(func(c *adversityCall) bool { c.ok = !c.in(phaseRegion, 0, time.Second); return true })
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
