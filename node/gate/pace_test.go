package gate

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestPace guards the burst, the rate after it, that a refusal costs nothing, and that callers do not share.
func TestPace(t *testing.T) {
	p := NewPace(10*time.Second, 3, prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}))
	now := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		after  time.Duration
		caller string
		wait   time.Duration
	}{
		{0, "a", 0},
		{0, "a", 0},
		{0, "a", 0},
		{0, "a", 10 * time.Second},
		{0, "b", 0},
		{4 * time.Second, "a", 6 * time.Second},
		// The refusals have not moved the turn back.
		{6 * time.Second, "a", 0},
		{0, "a", 10 * time.Second},
	} {
		now = now.Add(step.after)
		if got := p.Take(step.caller, now).Round(time.Millisecond); got != step.wait {
			t.Fatalf("%+v: has to wait %v", step, got)
		}
	}
	if got := valueOf(t, p.refused); got != 3 {
		t.Errorf("%v refusals counted", got)
	}
}
