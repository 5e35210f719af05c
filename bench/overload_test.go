package bench

import (
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
)

// TestGoodput checks that an overload is compared with the peaks before and after it, not with the
// best of all.
func TestGoodput(t *testing.T) {
	run := func(p Phase, rate float64) OverloadRun {
		return OverloadRun{Phase: p, Result: load.Result{OpsPerSecond: rate}}
	}
	overload := func(factor int, rate float64, rss ...int64) OverloadRun {
		return OverloadRun{Phase: PhaseOverload, Factor: factor, Result: load.Result{OpsPerSecond: rate}, RSS: rss}
	}
	r := OverloadReport{Runs: []OverloadRun{
		run(PhaseSearch, 900), run(PhasePeak, 200), overload(5, 90, 7, 9), run(PhasePeak, 100), overload(2, 30, 3), run(PhasePeak, 100),
		overload(5, 150, 8), run(PhasePeak, 500),
	}}
	r.summarise()
	if want := (rounds.Spread{Median: 150, Min: 100, Max: 500}); r.Peak != want {
		t.Errorf("peak %v, want %v", r.Peak, want)
	}
	want := []OverloadFactor{{Factor: 2, Goodput: rounds.Spread{Median: 0.3, Min: 0.3, Max: 0.3}, RSS: 3}, {Factor: 5, Goodput: rounds.Spread{Median: 0.55, Min: 0.5, Max: 0.6}, RSS: 9}}
	if !slices.Equal(r.Overloads, want) {
		t.Errorf("overloads %v, want %v", r.Overloads, want)
	}
}
