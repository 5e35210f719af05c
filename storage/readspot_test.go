package storage

import (
	"testing"
	"time"
)

// TestReadSpots checks the rule about places that the disk refuses to read: a place is forgotten as soon as a probe reads it, one of a table is
// lost if every probe was refused for UnreadableAfter, and not reported again; of other files nothing is lost.
func TestReadSpots(t *testing.T) {
	const step = time.Second
	for _, tc := range []struct {
		name    string
		path    string
		refused func(at time.Duration) bool
		lostAt  time.Duration // 0 if never
		waits   bool          // at the end
	}{
		{"for ever", "000007.sst", func(time.Duration) bool { return true }, UnreadableAfter, false},
		{"once", "000007.sst", func(at time.Duration) bool { return at == 0 }, 0, false},
		{"nearly for long enough", "000007.sst", func(at time.Duration) bool { return at != UnreadableAfter-step }, 0, false},
		{"a log, for ever", "000007.log", func(time.Duration) bool { return true }, 0, true},
	} {
		var r readSpots
		p := readSpot{tc.path, 4096, 512}
		if !r.note(p) {
			t.Errorf("%s: the first refusal is no news", tc.name)
		}
		r.note(readSpot{tc.path, 4096, 100}) // the same place
		lostAt := time.Duration(0)
		for at := time.Duration(0); at <= 2*UnreadableAfter; at += step {
			if lasted, lost := r.probed(100*time.Hour+at, p, tc.refused(at)); lost {
				if lostAt != 0 || lasted != at {
					t.Errorf("%s: lost again at %v, after %v", tc.name, at, lasted)
				}
				lostAt = at
			}
		}
		if lostAt != tc.lostAt || (len(r.waiting) == 1) != tc.waits {
			t.Errorf("%s: lost at %v, want %v; %d wait", tc.name, lostAt, tc.lostAt, len(r.waiting))
		}
		if news := r.note(p); news == (tc.lostAt > 0) {
			t.Errorf("%s: a later refusal is news: %v", tc.name, news)
		}
	}
	// Places beyond the bound are not remembered, and are news nevertheless.
	var r readSpots
	for i := range int64(2 * readSpotsMax) {
		if !r.note(readSpot{"000007.sst", i, 1}) {
			t.Fatalf("refusal %d is no news", i)
		}
	}
	if len(r.waiting) != readSpotsMax {
		t.Errorf("%d places are remembered, want %d", len(r.waiting), readSpotsMax)
	}
}
