package node

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/rhumbdb/rhumb/node/server"
)

// TestPhases checks that parts measured apart do not count twice, and that a later life of the process
// changes nothing.
func TestPhases(t *testing.T) {
	started := time.Now().Add(-10 * time.Second)
	p := newPhases(started)
	p.add("replay", 4*time.Second)
	p.end("ports", 4*time.Second)
	p.end("metadata")
	took := p.finish(started)
	value := func(phase string) float64 { return testutil.ToFloat64(p.gauge.WithLabelValues(phase)) }
	if v := value("replay"); v != 4 {
		t.Errorf("replay took %v s", v)
	}
	if v := value("ports"); v < 6 || v > 7 {
		t.Errorf("ports took %v s of ten without the four of replay", v)
	}
	if total := value("total"); total < 10 || total > 11 || len(took) != 2*4 {
		t.Errorf("the total is %v s; logged are %v", total, took)
	}
	if all := p.list(); len(all) != 4 || all[0] != (server.StartPhase{Name: "replay", Took: 4 * time.Second}) || all[3].Name != "total" {
		t.Errorf("the phases are %v", all)
	}
	before := value("metadata")
	time.Sleep(2 * time.Millisecond)
	p.end("metadata")
	if p.finish(started) != nil || value("metadata") != before {
		t.Error("a later life was measured as a start")
	}
}
