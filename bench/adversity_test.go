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

// adversityParts are what the faults of adversityRun strike: the primaries of the
// ranges of the first two callers, and a secondary of that of the third.
var adversityParts = []struckPart{
	{at: rhumb.RangeID{Region: 1, Slot: 0}, primary: true},
	{at: rhumb.RangeID{Region: 1, Slot: 1 << 20}, primary: true},
	{at: rhumb.RangeID{Region: 1, Slot: 1 << 21}, copy: true},
}

// adversityRun returns the report of a run whose three callers, the second one of
// the table of several regions, call every 100 ms and are answered after 5 ms.
// change may alter a call of the first two, or drop it by returning false.
func adversityRun(change func(c *adversityCall) bool) *AdversityReport {
	return adversityRunOf(adversityParts, func(c *adversityCall) bool { return c.caller == 2 || change(c) })
}

// adversityRunOf is adversityRun with faults that strike other parts, and with
// changes of the calls of all callers.
func adversityRunOf(parts []struckPart, change func(c *adversityCall) bool) *AdversityReport {
	callers := []*adversityCaller{{interval: 100 * time.Millisecond}, {interval: 100 * time.Millisecond, wide: true}, {interval: 100 * time.Millisecond}}
	r := &AdversityReport{Checked: len(callers)}
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

// TestAdversityNoSamples guards that a goal is not met by a figure of nothing.
func TestAdversityNoSamples(t *testing.T) {
	all := func(*adversityCall) bool { return true }
	for _, c := range []struct {
		name   string
		parts  []struckPart
		change func(c *adversityCall) bool
		want   []string
	}{
		{"everything is sampled", adversityParts, all, nil},
		{
			"only primaries are struck",
			[]struckPart{adversityParts[0], adversityParts[1], {at: adversityParts[2].at}},
			all,
			[]string{
				"G4 disk stall gap of ranges with a lost secondary", "G4 partition gap of ranges with a lost secondary",
				"G3 node loss gap of ranges with a lost secondary",
			},
		},
		{
			"no range of several regions is struck",
			[]struckPart{adversityParts[0], {at: adversityParts[1].at}, adversityParts[2]},
			all,
			[]string{
				"G4 disk stall gap of ranges of several regions", "G4 partition gap of ranges of several regions",
				"G2 node loss gap of ranges of several regions", "G2 region loss gap of ranges of several regions",
			},
		},
		{
			"no late write with a slow node", adversityParts, func(c *adversityCall) bool { return c.read || !c.in(phaseSlow, 14*time.Second, 30*time.Second) },
			[]string{"G6 slow node 99th percentile of writes after 15 s"},
		},
		{
			"no read at a node loss", adversityParts, func(c *adversityCall) bool { return !c.read || !c.in(phaseNode, -time.Second, 12*time.Second) },
			[]string{"G3 node loss reads that failed", "G6 node loss rate after 5 s, of the baseline"},
		},
	} {
		var got []string
		for _, g := range adversityRunOf(c.parts, c.change).Missed() {
			got = append(got, strings.Join([]string{g.Goal, g.Phase, g.What}, " "))
			if none := strings.HasSuffix(g.What, "baseline"); none == strings.Contains(g.String(), "no samples") {
				t.Errorf("%s: %s", c.name, g)
			}
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: missed %q, want %q", c.name, got, c.want)
		}
	}
	// A run that ended before the keys were read back has lost none.
	r := &AdversityReport{Phases: []AdversityPhase{{Name: phaseBaseline, To: time.Second, Healed: time.Second}}}
	r.judge(nil)
	if missed := r.Missed(); len(missed) != 1 || missed[0].Goal != "G1" || missed[0].Figure() != "no samples" {
		t.Errorf("missed %v, want G1 without samples", missed)
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
