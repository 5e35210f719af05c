package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/exit"
)

// TestBenchRestart checks that a node which is killed under the command is started again each time, that
// its phases add up, and that nothing is missing.
func TestBenchRestart(t *testing.T) {
	var r struct{ Restarts []bench.Recovery }
	okJSON(t, &r, "bench", "restart", "--records", "3000", "--restarts", "2", "--dir", t.TempDir())
	if len(r.Restarts) != 2 {
		t.Fatalf("%d restarts", len(r.Restarts))
	}
	for _, x := range r.Restarts {
		total := x.Phases[len(x.Phases)-1]
		if total.Name != "total" || total.Took <= 0 || total.Took > x.Served || x.Read > x.Served || x.Missing > 0 || x.DiskBytes == 0 {
			t.Errorf("%+v", x)
		}
		if sum := sumPhases(x.Phases[:len(x.Phases)-1]); sum < total.Took/2 || sum > total.Took {
			t.Errorf("the phases take %v of %v: %+v", sum, total.Took, x.Phases)
		}
	}
}

func sumPhases(phases []bench.RecoveryPhase) (sum time.Duration) {
	for _, p := range phases {
		sum += p.Took
	}
	return sum
}

// TestBenchYCSB runs a workload on the caller's own cluster, which has authentication, with the identity
// of the caller: one who may create tables, and one who may not even read.
func TestBenchYCSB(t *testing.T) {
	s := startSecured(t)
	operator := s.identify(t, "operator")
	var r bench.KVReport
	okJSON(t, &r, append([]string{"bench", "ycsb", "--own", "--workload", "a,F", "--records", "200", "--callers", "4", "--rounds", "1", "--measure", "300ms", "--replicas", "1"}, operator...)...)
	if len(r.Rows) != 2 || r.Rows[0].Target != "own" || r.Rows[0].Workload != "A" || r.Rows[1].Workload != "F" {
		t.Fatalf("the rows are %+v", r.Rows)
	}
	for _, row := range r.Rows {
		if row.Errors > 0 || row.Ops == 0 {
			t.Errorf("%+v", row)
		}
	}
	ok(t, append([]string{"user", "create", "stranger", "--no-password"}, operator...)...)
	fails(t, exit.Auth, append([]string{"bench", "ycsb", "--own", "--records", "10", "--measure", "100ms"}, s.identify(t, "stranger")...)...)
	fails(t, exit.Usage, "bench", "ycsb", "--own", "--workload", "G")
}

// TestBenchFlags guards that flags which would measure nothing, or something else than they say, are
// refused before anything is started.
func TestBenchFlags(t *testing.T) {
	for _, args := range []string{
		"kv --own --callers -5", "kv --own --callers 64,0", "kv --own --value-bytes -1", "kv --own --value-bytes 5000000", "kv --own --rounds 0", "kv --own --measure -1s",
		"kv --nodes 0", "kv --nodes 99", "kv --own --durability deferred=50ms", "kv --own --secure", "kv --addr 127.0.0.1:7600", "kv --batch 0",
		"ycsb --own --callers 0", "ycsb --own --nodes 3", "ycsb --insecure", "restart --value-bytes 99999999", "growth --value-bytes 99999999", "overload --callers 0", "sidebyside --nodes 10",
	} {
		fails(t, exit.Usage, append([]string{"bench"}, strings.Fields(args)...)...)
	}
}

// TestBenchSideBySide checks that a run without any peer names each with a command, and measures the
// cluster.
func TestBenchSideBySide(t *testing.T) {
	var r struct {
		Missing []struct{ Peer, Install string }
		Rows    []struct{ Target string }
	}
	okJSON(t, &r, "bench", "sidebyside", "--quick", "--nodes", "1", "--callers", "1", "--records", "100", "--measure", "50ms", "--peers-binary", "/nonexistent/peers", "--dir", t.TempDir())
	if len(r.Missing) != 8 || slices.ContainsFunc(r.Missing, func(m struct{ Peer, Install string }) bool { return !strings.Contains(m.Install, "make peers") }) || len(r.Rows) == 0 {
		t.Errorf("missing are %+v; %d rows", r.Missing, len(r.Rows))
	}
	fails(t, exit.Usage, "bench", "sidebyside", "--peers", "etcd")
}
