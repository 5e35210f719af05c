package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/exit"
)

const (
	// overloadMemory is the memory limit of each node in the test. overloadSlack is for the pages
	// of the program file: the system counts them too, and reclaims them when it needs memory.
	overloadMemory = 256 << 20
	overloadSlack  = 64 << 20
)

// TestOverload guards the memory of nodes under too many large writes: memory stays bounded, excess
// writes are rejected as overloaded, no node is declared dead, no outcome stays unknown, and every
// acknowledged key exists.
//
// Other suites may take the processors from the nodes for a second, which makes nodes look dead and
// outcomes unknown. So the overload is repeated once if that happens, and fails only if it happens
// twice. Memory and acknowledged keys must hold each time.
func TestOverload(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes; left out by -short")
	}
	t.Setenv("RHUMB_DEMO", filepath.Join(t.TempDir(), "context.json"))
	if disturbed := overloadNodes(t); disturbed {
		t.Log("repeated, since other work may have disturbed the nodes")
		if disturbed := overloadNodes(t); disturbed {
			t.Error("nodes were declared dead or outcomes stayed unknown in both attempts")
		}
	}
}

// overloadNodes runs the benchmark once. It reports whether a node was declared dead or an outcome
// stayed unknown.
func overloadNodes(t *testing.T) (disturbed bool) {
	p := startProcess(t, nil, "bench", "overload", "--memory", "768MiB", "--callers", "50", "--factor", "30", "--rounds", "1", "--measure", "2s", "--dir", t.TempDir(), "-o", "json")
	text, _ := p.line()
	if code := p.wait(); code != exit.OK {
		t.Fatalf("exit %d", code)
	}
	var r bench.OverloadReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if r.Missing != 0 || r.Acked == 0 {
		t.Fatalf("%d of %d acknowledged keys missing", r.Missing, r.Acked)
	}
	t.Logf("%d nodes were declared dead", r.NewLives)
	disturbed = r.NewLives != 0
	for _, x := range r.Runs {
		t.Logf("%s, %d callers: %.0f a second, memory %d MiB, %v", x.Phase, x.Callers, x.OpsPerSecond, slices.Max(x.RSS)>>20, x.Outcomes)
		if most := slices.Max(x.RSS); most == 0 || most > overloadMemory+overloadSlack {
			t.Errorf("a node took %d MiB, want at most %d", most>>20, (overloadMemory+overloadSlack)>>20)
		}
		if n := x.Outcomes[rhumb.Unknown.String()]; n != 0 {
			t.Logf("%d outcomes are unknown: %q", n, x.Unknown)
			disturbed = true
		}
		if x.Phase == bench.PhaseOverload && x.Outcomes[rhumb.Overloaded.String()] == 0 {
			t.Error("no call was refused as overloaded")
		}
	}
	return disturbed
}
