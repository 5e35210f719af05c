package sim

import (
	"testing"
)

// bugSeeds bounds the seeds in which a planted bug must show.
const bugSeeds = 300

// hidden are the planted bugs that another rule hides within bugSeeds seeds. The model catches both (sim/model).
var hidden = map[Bug]string{
	ForgetGrants:  "a node that starts again takes part in the metadata, registers and asks for the ends of logs, and by then the forgotten grants are over",
	CloseUnfenced: "an elected node takes over the clocks of all who answer it, so it writes above what was closed for the epoch before",
}

// TestPlantedBugs: a simulator is worth what it notices. Each bug must be found within bugSeeds seeds, and not by chance
// in the first place: without it the same seeds pass (TestSeeds).
func TestPlantedBugs(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("only one seed is asked for")
	}
	for bug := NoBug + 1; bug < bugs; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			if why, ok := hidden[bug]; ok {
				t.Skip(why)
			}
			for seed := uint64(1); seed <= bugSeeds; seed++ {
				if r := Run(Config{Seed: seed, Bug: bug}); r.Err != nil {
					t.Logf("found after %d seeds: %.300v", seed, r.Err)
					return
				}
			}
			t.Errorf("not found in %d seeds", bugSeeds)
		})
	}
}
