package sim

import (
	"flag"
	"regexp"
	"sync"
	"testing"
)

var tableFlag = flag.Bool("sim.table", false, "write docs/testing.md: which seed found each planted bug today")

// bugSeeds is the number of seeds within which a planted bug must be found.
const bugSeeds = 300

// hidden are the planted bugs whose effect another rule hides, with that rule.
var hidden = map[Bug]string{
	ForgetPromises: "a stream connects only lives that both ends know from the metadata, and a node that knows the later life of a peer knows the epochs before it: " +
		"no node that acts in an older epoch can reach the node",
	AcceptOtherLife: "a target that began the epoch has its promise on disk and refuses the message for that reason; only a disk that " +
		"forgets this promise within 250 ms would not, which package model covers (handover-of-this-life)",
}

// shows are the expected failures of bugs that are planted together with another bug, whose own
// failure would not count.
var shows = map[Bug]*regexp.Regexp{
	// Rule P waits for the log with the reported commit position: the range stops, and nothing is
	// lost.
	AdoptShorter: regexp.MustCompile(`not live`),
	// A healthy member is quarantined, not the primary that lost its log.
	BelowReport: regexp.MustCompile(`quarantined`),
	NoRefusal:   regexp.MustCompile(`quarantined`),
	// What survived the loss is gone all the same.
	DropWithHome: regexp.MustCompile(`I3: range .* its disk lacks|has no copy`),
	// Nobody else has the copies, or the removal waits for them.
	StopBeforeCopied: regexp.MustCompile(`region .* is not removed`),
	// Its own primary and the node that was removed are in one epoch.
	ElectRemoved: regexp.MustCompile(`I1: epoch .* has primaries`),
}

// caught are seeds that are known to expose a bug, and are tried before the search: some bugs show in one
// seed of fifty, and a search costs a second of processor time per seed. Every change of what seeds draw
// makes entries stale. That costs time and nothing else, and the test tells the seed to write here.
var caught = map[Bug]uint64{
	CloseAlone: 28, GrantOfOldLife: 133, AckOfOldLife: 61, ForgetQuarantine: 44, CommitCopiedTail: 14, CloseUnfenced: 24,
	BlindMetadata: 75, LeaseByWall: 24, ActivateAtOnce: 22, ForgetCeiling: 222,
	InstallElectable: 1, InstallForgetsPromise: 74, SkipChecksum: 3, ResumeWrongSet: 3, AckUnread: 5,
	RemoveUnrecorded: 1, ShrinkBelowMinimum: 1, AckAfterHandover: 1, ServeBeforeLast: 21, HandOverToFew: 7, BelieveRemoved: 1, SecondariesTogether: 5,
	SplitForgetsResults: 6, SplitLostOnRestart: 4, BirthAtAnyEpoch: 3, MergeForgetsResults: 30, TallyOfOldLife: 13,
}

// bugSearch returns the seeds with which a bug is searched, in this order.
func bugSearch(bug Bug) []uint64 {
	var seeds []uint64
	if known, ok := caught[bug]; ok {
		seeds = append(seeds, known)
	}
	for seed := uint64(1); seed <= bugSeeds; seed++ {
		seeds = append(seeds, seed)
	}
	return seeds
}

// caughtWithin is the number of seeds above which a search is worth an entry in caught.
const caughtWithin = 5

// TestPlantedBugs checks that the simulator notices broken rules: each bug must be found within
// bugSeeds seeds. That the bug is the cause follows from TestSeeds and TestMixes, in which the same
// seeds pass without it.
func TestPlantedBugs(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("-sim.seed selects a single seed")
	}
	var (
		mu    sync.Mutex // guards found
		found = map[Bug]uint64{}
	)
	t.Cleanup(func() {
		if *tableFlag && !t.Failed() {
			writeTable(t, found)
		}
	})
	for bug := NoBug + 1; bug < bugs; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			if why, ok := hidden[bug]; ok {
				t.Skip(why)
			}
			for tried, seed := range bugSearch(bug) {
				r := Run(Config{Seed: seed, Bug: bug, OwnLog: *ownLogFlag})
				if r.Err != nil && (shows[bug] == nil || shows[bug].MatchString(r.Err.Error())) {
					mu.Lock()
					found[bug] = seed
					mu.Unlock()
					t.Logf("found after %d seeds: %.300v", tried+1, r.Err)
					if tried >= caughtWithin {
						t.Logf("write %v: %d into caught, to save the search", bug, seed)
					}
					return
				}
			}
			t.Errorf("not found in %d seeds", bugSeeds)
		})
	}
}

// mixSeeds is the number of seeds for which the faults of each planted bug are run without the bug.
const mixSeeds = 3

// TestMixes runs the faults with which planted bugs are searched, without the bugs. No check may
// fail.
func TestMixes(t *testing.T) {
	if *seedFlag != 0 {
		t.Skip("-sim.seed selects a single seed")
	}
	for bug := range mixes {
		t.Run(bug.String(), func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= mixSeeds; seed++ {
				runSeed(t, Config{Seed: seed, Mix: bug, OwnLog: *ownLogFlag})
			}
		})
	}
}
