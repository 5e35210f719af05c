package sim

import (
	"strings"
	"testing"
)

// TestConformance checks that runs are judged step by step by the guards of the model: these bugs are found by a guard, before they do
// harm. That the whole protocol breaks none follows from TestSeeds, which checks every eighth seed.
func TestConformance(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("-sim.seed selects a single seed")
	}
	const seeds = 20
	for bug, guard := range map[Bug]string{
		SkipAsking: "prepare-quorum", RemoveUnrecorded: "shrink-after-commit", BelieveRemoved: "join-from-start",
	} {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= seeds; seed++ {
				r := Run(Config{Seed: seed, Bug: bug, Conform: true})
				if r.Stats.Conformed == 0 {
					t.Fatalf("seed %d: no step was checked", seed)
				}
				if r.Err != nil && strings.Contains(r.Err.Error(), "breaks the guard "+guard) {
					t.Logf("found by seed %d: %.200v", seed, r.Err)
					return
				}
			}
			t.Errorf("no step broke %s in %d seeds", guard, seeds)
		})
	}
}
