package node

import (
	"math"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestRates measures a steady speed, a burst that counts little, an undo, and a range whose primary moved away.
func TestRates(t *testing.T) {
	rs, id := rates{}, rhumb.RangeID{Region: 1}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02*want+0.5 {
			t.Errorf("%s: %.1f bytes/s, want %.1f", what, got, want)
		}
	}
	var now time.Duration
	var bytes, entries uint64
	step := func(add uint64) rate {
		now += 5 * time.Second
		bytes, entries = bytes+add, entries+add/100
		return rs.observe(now, id, bytes, entries)
	}
	// The first sample has nothing to compare with: what the range holds was not written just now.
	bytes = 1 << 40
	if r := step(0); r.bytesPer != 0 {
		t.Errorf("the first sample gives %v", r)
	}
	for range 200 {
		step(5_000)
	}
	steady := step(5_000)
	near("steady", steady.bytesPer, 1_000)
	near("entries", steady.entriesPer, 10)
	// Ten times as much in one interval of a twelfth of the half-life.
	if burst := step(50_000); burst.bytesPer > 1_600 {
		t.Errorf("a burst of five seconds gives %.0f bytes/s", burst.bytesPer)
	}
	bytes -= 1 << 20 // an undo
	if r := step(0); r.bytesPer < 0 || r.bytesPer > 1_600 {
		t.Errorf("an undo gives %.0f bytes/s", r.bytesPer)
	}
	rs.forget(now + 1)
	if len(rs) != 0 {
		t.Errorf("%d ranges are remembered whose primary moved away", len(rs))
	}
}
