package sim

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestScale checks the promises of docs/scale.md that a small cluster can show: without load messages
// grow with the pairs of nodes and not with the ranges, and the ranges of a dead node are served
// again within two seconds.
func TestScale(t *testing.T) {
	measure := func(nodes, ranges int) ScaleResult {
		t.Helper()
		r, err := RunScale(ScaleConfig{Seed: 1, Nodes: nodes, Ranges: ranges, Calm: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", r)
		return r
	}
	few, many := measure(3, 3), measure(3, 48)
	if many.Heartbeats > few.Heartbeats*1.1 || many.Messages > few.Messages+few.Heartbeats {
		t.Errorf("sixteen times the ranges have %.0f heartbeats and %.0f messages per second, not %.0f and %.0f",
			many.Heartbeats, many.Messages, few.Heartbeats, few.Messages)
	}
	large := measure(9, 48)
	// There are twelve times as many pairs.
	if ratio := large.Heartbeats / few.Heartbeats; ratio < 11 || ratio > 13 {
		t.Errorf("nine nodes send %.1f times as many heartbeats as three", ratio)
	}
	for _, r := range []ScaleResult{many, large} {
		if r.Lost == 0 || r.First == 0 || r.First > r.Last || r.Last > 2*time.Second {
			t.Errorf("%d ranges of a dead node were served after %v to %v", r.Lost, r.First, r.Last)
		}
	}
	if again := measure(9, 48); again != large {
		t.Errorf("the same seed has other figures: %+v", again)
	}
	for _, c := range []ScaleConfig{{Nodes: 2, Ranges: 1}, {Nodes: 82, Ranges: 1}, {Nodes: 3}, {Nodes: 3, Ranges: rhumb.BlockSlots + 1}} {
		if _, err := RunScale(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// TestCatalogScale checks that a fencing is one small command whatever it changes, and that the size of
// the metadata is in proportion to the ranges.
func TestCatalogScale(t *testing.T) {
	small, err := MeasureCatalog(9, 1000)
	if err != nil {
		t.Fatal(err)
	}
	large, err := MeasureCatalog(9, 5000)
	if err != nil {
		t.Fatal(err)
	}
	if small.CommandBytes != large.CommandBytes || large.Moved < large.Excluded || large.Excluded < 5000/9/2 {
		t.Errorf("commands of %d and %d bytes change %d ranges, %d primaries", small.CommandBytes, large.CommandBytes, large.Moved, large.Excluded)
	}
	if ratio := float64(large.StateBytes) / float64(small.StateBytes); ratio < 4 || ratio > 6 || large.Ranges != 5000 {
		t.Errorf("five times the ranges take %.1f times the bytes", ratio)
	}
	if _, err := MeasureCatalog(9, 0); err == nil {
		t.Error("no ranges were accepted")
	}
}
