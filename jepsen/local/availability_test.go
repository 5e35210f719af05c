package local

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestDraws guards that each fault comes about as often as the others, and that the second half of a soak ends no process.
func TestDraws(t *testing.T) {
	for _, soak := range []bool{false, true} {
		d, err := newDraws(Faults(), soak)
		if err != nil {
			t.Fatal(err)
		}
		random, draws := rand.New(rand.NewPCG(1, 0)), 20*len(Faults())
		for n := range draws {
			secondHalf := n >= draws/2
			if f := d.next(random, secondHalf); soak && secondHalf && f.endsProcesses() {
				t.Errorf("%s in the second half of a soak", f.Name)
			}
		}
		for _, f := range Faults() {
			n := d.times[f.Name]
			if soak && n < 12 || !soak && n != 20 {
				t.Errorf("soak %v: %s came %d times", soak, f.Name, n)
			}
		}
	}
	rough := slices.DeleteFunc(Faults(), func(f Fault) bool { return !f.endsProcesses() })
	if _, err := newDraws(rough, true); err == nil {
		t.Error("a soak that judges nothing begins")
	}
}

// TestAvailability guards the figures of trials, that a later run continues the earlier one, and that it takes turns between the faults.
func TestAvailability(t *testing.T) {
	dir, cfg := t.TempDir(), Config{Regions: []string{"eu"}, Nodes: 3}
	kill, cut := Fault{Name: "kill", ID: "F1", Gap: 2 * time.Second}, Fault{Name: "cut", ID: "F10", Gap: 2 * time.Second}
	a, err := LoadAvailability(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if left := a.missing([]Fault{kill, cut}, 2); len(left) != 2 {
		t.Errorf("without trials, %v is left", left)
	}
	a.From(&cfg, &Plan{PerSecond: 500, Hold: time.Second})
	a.add(kill, []time.Duration{time.Second, 500 * time.Millisecond, 3 * time.Second})
	a.add(kill, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond})
	gaps := []time.Duration{time.Millisecond}
	a.Add(&cfg, &Result{Plan: Plan{Workloads: []string{probeName}, PerSecond: 500, Hold: time.Second}, Windows: []Window{
		{Fault: cut, Evidence: "1 packet dropped", Gaps: gaps},
		{Fault: cut, Evidence: "0 packets dropped", Failed: true, Gaps: gaps},
		{Fault: cut, Evidence: "1 packet dropped"},
	}})
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	if a, err = LoadAvailability(dir, cfg); err != nil {
		t.Fatal(err)
	}
	got := a.of(kill)
	if got.Median != 300 || got.Longest != 3000 || got.Over != 1 || len(got.Trials) != 2 {
		t.Errorf("%+v", got)
	}
	if left := a.missing([]Fault{kill, cut}, 2); len(left) != 1 || left[0].Name != "cut" || len(a.of(cut).Trials) != 1 {
		t.Errorf("%v is left, want cut, which has %d trials", left, len(a.of(cut).Trials))
	}
	if left := a.missing([]Fault{kill}, 2); len(left) != 0 {
		t.Errorf("%v is left, want nothing", left)
	}
	var text strings.Builder
	a.Print(&text)
	if !strings.Contains(text.String(), "kill") || !strings.Contains(text.String(), "3000 ms") {
		t.Error(text.String())
	}
	// A run of the kind of the first one adds to its trials.
	a.From(&cfg, &Plan{PerSecond: 500, Hold: time.Second})
	a.add(cut, gaps)
	if len(a.Sources) != 2 || a.Sources[0].Trials != 1 || a.Sources[1].Trials != 3 || a.Sources[1].Load != "all workloads, 500 calls a second" {
		t.Errorf("%+v", a.Sources)
	}
	// Figures of other clusters do not mix.
	if _, err := LoadAvailability(dir, Config{Regions: []string{"eu", "us"}, Nodes: 3}); err == nil {
		t.Error("the trials of another cluster are continued")
	}
	// Without the keys of the probe, there is nothing to measure.
	if err := Measure(t.Context(), nil, Plan{Workloads: []string{"register"}}, 1, a, dir); err == nil {
		t.Error("trials without the workload probe begin")
	}
}
