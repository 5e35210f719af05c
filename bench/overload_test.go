package bench

import (
	"testing"

	"github.com/rhumbdb/rhumb/bench/load"
)

// TestGoodput checks that an overload is compared with the peaks before and after it, not with the
// best of all.
func TestGoodput(t *testing.T) {
	run := func(p Phase, rate float64) OverloadRun {
		return OverloadRun{Phase: p, Result: load.Result{OpsPerSecond: rate}}
	}
	r := OverloadReport{Runs: []OverloadRun{
		run(PhaseSearch, 900), run(PhasePeak, 200), run(PhaseOverload, 90), run(PhasePeak, 100), run(PhaseOverload, 150), run(PhasePeak, 500),
	}}
	r.summarise()
	if want := (Spread{200, 100, 500}); r.Peak != want {
		t.Errorf("peak %v, want %v", r.Peak, want)
	}
	if want := (Spread{0.6, 0.5, 0.6}); r.Goodput != want {
		t.Errorf("goodput %v, want %v", r.Goodput, want)
	}
}
