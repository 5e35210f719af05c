package local

import (
	"errors"
	"testing"
)

// TestChangesWithoutEffect guards that a drain which moved no range, and a split that is not made, do not pass for trials.
func TestChangesWithoutEffect(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want bool // whether it had an effect
	}{
		{"drain of three ranges", checkDrained("eu-1", 3, 0), true},
		{"drain of a node without ranges", checkDrained("eu-1", 0, 0), false},
		{"drain that left a range", checkDrained("eu-1", 3, 1), false},
		{"drain of a node that got a range", checkDrained("eu-1", 0, 1), false},
		{"split below the bound", maySplit(splitMost - 1), true},
		{"split at the bound", maySplit(splitMost), false},
	} {
		if (tt.err == nil) != tt.want || tt.err != nil && !errors.Is(tt.err, errNoEffect) {
			t.Errorf("%s: %v", tt.name, tt.err)
		}
	}
}
