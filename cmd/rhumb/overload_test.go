package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb/bench"
)

const (
	// overloadMemory is what each node of the test may take, overloadSlack what the pages of the program's own file take of a
	// process beside that: the system counts them, and takes them back when it needs memory.
	overloadMemory = 256 << 20
	overloadSlack  = 64 << 20
	// overloadLeast is the rate of large writes below which a machine is too busy with other things to keep heartbeats in time.
	overloadLeast = 150
)

// TestOverload guards the memory of nodes that many callers write large values to: it stays bounded, what is not taken in is
// refused as overloaded, no node is taken for dead, no outcome stays unknown, and every acknowledged key is there.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	t.Setenv("RHUMB_DEMO", filepath.Join(t.TempDir(), "context.json"))
	p := startProcess(t, nil, "bench", "overload", "--memory", "768MiB", "--callers", "50", "--factor", "30", "--measure", "2s", "--dir", t.TempDir(), "-o", "json")
	text, _ := p.line()
	if code := p.wait(); code != exitOK {
		t.Fatalf("exit %d", code)
	}
	var r bench.OverloadReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if len(r.Runs) != 2 || r.Missing != 0 || r.Acked == 0 {
		t.Fatalf("%d runs, %d of %d acknowledged keys missing", len(r.Runs), r.Missing, r.Acked)
	}
	over := r.Runs[1]
	t.Logf("peak %.0f a second, goodput %.2f of it, memory %d MiB, %v, %d new lives", r.Peak, r.Goodput, slices.Max(over.RSS)>>20, over.Outcomes, r.NewLives)
	if most := slices.Max(over.RSS); most == 0 || most > overloadMemory+overloadSlack {
		t.Errorf("a node took %d MiB, want at most %d", most>>20, (overloadMemory+overloadSlack)>>20)
	}
	if over.Outcomes["overloaded"] == 0 {
		t.Error("no call was refused as overloaded")
	}
	if r.Peak < overloadLeast {
		t.Logf("%.0f writes a second at best: the machine is too busy to judge heartbeats and outcomes by time", r.Peak)
		return
	}
	if r.NewLives != 0 || over.Outcomes["unknown_outcome"] != 0 {
		t.Errorf("%d nodes were taken for dead, %d outcomes are unknown", r.NewLives, over.Outcomes["unknown_outcome"])
	}
}
