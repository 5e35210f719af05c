package node

import (
	"slices"
	"testing"
	"time"
)

// TestRebirthsAreSpacedOut guards that a node that is fenced repeatedly waits longer each time,
// within bounds, and that one long life resets the pause.
func TestRebirthsAreSpacedOut(t *testing.T) {
	var r rebirths
	var got []time.Duration
	for range 9 {
		got = append(got, r.nextPause(1500*time.Millisecond))
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	if got := r.nextPause(time.Hour); got != 0 {
		t.Errorf("after a long life: %v", got)
	}
	if got := r.nextPause(time.Second); got != rebirthPauseMin {
		t.Errorf("a short life after a long one: %v", got)
	}
}
