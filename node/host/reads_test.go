package host

import (
	"testing"
	"time"
)

// TestReadHealth checks when the reads of a store count as failing: after readLeaves bad steps of the last readSteps, until no step was bad in as
// many, and at least for the hold, which grows.
func TestReadHealth(t *testing.T) {
	always := func(int) bool { return true }
	for _, tc := range []struct {
		name    string
		refused func(step int) bool
		steps   int
		badFrom int // the step after which the store is bad first, -1 if never
		bad     bool
	}{
		{"never", func(int) bool { return false }, 100, -1, false},
		{"always", always, 100, readLeaves - 1, true},
		{"once", func(step int) bool { return step == 3 }, 100, -1, false},
		{"for a second and a half, again and again", func(step int) bool { return step%(2*readSteps) < readLeaves-1 }, 100, -1, false},
		{"every second step", func(step int) bool { return step%2 == 0 }, 100, 2 * (readLeaves - 1), true},
		{"for two seconds", func(step int) bool { return step < readLeaves }, int(ownHoldMin/readStep) + readLeaves, readLeaves - 1, false},
		{"for two seconds, just before the end of the hold", func(step int) bool { return step < readLeaves }, int(ownHoldMin / readStep), readLeaves - 1, true},
		{"until the hold is over", func(step int) bool { return step < 100 }, 100 + readSteps - 1, readLeaves - 1, true},
		{"until the hold is over, and then well", func(step int) bool { return step < 100 }, 100 + readSteps, readLeaves - 1, false},
	} {
		var r readHealth
		from, now := -1, time.Hour
		for step := range tc.steps {
			now += readStep
			if r.endStep(now, tc.refused(step)); r.isBad(now) && from < 0 {
				from = step
			}
		}
		if from != tc.badFrom || r.isBad(now) != tc.bad {
			t.Errorf("%s: bad from step %d, want %d; in the end %v", tc.name, from, tc.badFrom, r.isBad(now))
		}
	}
	// The second time comes soon after the first, and the third long after.
	var r readHealth
	now := time.Duration(0)
	run := func(steps int, refused bool) {
		for range steps {
			now += readStep
			r.endStep(now, refused)
		}
	}
	for i, want := range []time.Duration{ownHoldMin, 2 * ownHoldMin, ownHoldMin} {
		run(readLeaves, true)
		if r.hold.length != want {
			t.Errorf("hold %d lasts %v, want %v", i, r.hold.length, want)
		}
		run(int(want/readStep)+readSteps, false)
		if i == 1 {
			run(int(ownHoldMax/readStep), false)
		}
	}
}
