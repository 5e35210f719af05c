package sim

import (
	"regexp"
	"testing"
)

// bugSeeds bounds the seeds in which a planted bug must show.
const bugSeeds = 300

// hidden are the planted bugs that another rule hides, with that rule.
var hidden = map[Bug]string{
	ForgetPromises: "a stream stands only between lives that both ends know from metadata, and who knows the later life of a node knows the epochs before it: " +
		"nobody who acts in an older epoch reaches the node",
}

// shows is what planted bugs must do that are planted together with another one, which does something else.
var shows = map[Bug]*regexp.Regexp{
	// Rule P then waits for the log that has the reported commit: the range stops, and nothing is lost.
	AdoptShorter: regexp.MustCompile(`not live`),
	// A healthy member goes, and not the primary that lost its log.
	BelowReport: regexp.MustCompile(`quarantined`),
	NoRefusal:   regexp.MustCompile(`quarantined`),
}

// TestPlantedBugs: a simulator is worth what it notices. Each bug must be found within bugSeeds seeds, and not by chance
// in the first place: without it the same seeds pass (TestSeeds, TestMixes).
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
				r := Run(Config{Seed: seed, Bug: bug})
				if r.Err != nil && (shows[bug] == nil || shows[bug].MatchString(r.Err.Error())) {
					t.Logf("found after %d seeds: %.300v", seed, r.Err)
					return
				}
			}
			t.Errorf("not found in %d seeds", bugSeeds)
		})
	}
}

// mixSeeds is the number of seeds for which the faults of each planted bug are played without it.
const mixSeeds = 3

// TestMixes plays the faults with which planted bugs are sought, without the bugs: nothing breaks.
func TestMixes(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("only one seed is asked for")
	}
	for bug := range mixes {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= mixSeeds; seed++ {
				play(t, Config{Seed: seed, Mix: bug})
			}
		})
	}
}
