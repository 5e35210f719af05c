package bench

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/node"
)

// TestRunKV checks the measurement on a real node: every case runs, nothing fails, and there are no
// ratios without a peer.
func TestRunKV(t *testing.T) {
	n, err := node.Start(node.Config{
		Dirs: []string{t.TempDir()}, Region: "test", Location: rhumb.Point{Lat: 1, Lon: 2}, Insecure: true,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	conn, err := api.Connect(n.Addr(), nil, api.PlainText())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := rhumbpb.NewClusterClient(conn).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	for batch, callers := range map[int][]int{1: {1, 64}, 64: {1, 8}} {
		report, err := RunKV(t.Context(), KVConfig{
			Clusters: []Rhumb{{Client: client.Config{Addrs: []string{n.Addr()}, Insecure: true}, PIDs: []int{os.Getpid()}, Replicas: 1}},
			Ops:      load.Ops(), Callers: callers, Batch: batch, Rounds: 1, Measure: time.Second / 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Rows) != 8 || len(report.Ratios) != 0 {
			t.Fatalf("%d rows and %d ratios, want 8 and 0", len(report.Rows), len(report.Ratios))
		}
		for _, r := range report.Rows {
			t.Logf("%s %s @%d x %d: %.0f ops/s p50 %.0f µs p99 %.0f µs cpu %.1f µs", r.Target, r.Op, r.Callers, batch, r.Ops, r.P50, r.P99, r.ServerCPU)
			if r.Errors > 0 || r.Ops == 0 {
				t.Errorf("%s with %d callers of %d: %.0f ops/s, %d errors, first %s", r.Op, r.Callers, batch, r.Ops, r.Errors, r.FirstError)
			}
		}
	}
}

// TestPairs guards which cluster is compared with which: one without a suffix with the peer of its
// size, and others with the former.
func TestPairs(t *testing.T) {
	clusters := []Rhumb{
		{Replicas: 1},
		{Replicas: 3, Client: client.Config{TLS: &client.TLS{}}},
		{Replicas: 3, Durability: rhumb.DeferMin},
		{Replicas: 3, NodeLog: true},
		{Replicas: 1, Stores: 4},
		{Replicas: 3, Regions: 3},
	}
	var runs []rounds.Run
	for _, c := range clusters {
		runs = append(runs, rounds.Run{Target: c.title()})
	}
	want := [][2]string{
		{"rhumb-1", "etcd-1"}, {"rhumb-3-tls", "rhumb-3"}, {"rhumb-3-deferred", "rhumb-3"}, {"rhumb-3-nodelog", "rhumb-3"}, {"rhumb-1-stores4", "rhumb-1"}, {"rhumb-3x3", "etcd-3x3"},
	}
	if got := pairsOf(runs); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRatios checks that ratios are taken within a round and that the report has their median.
func TestRatios(t *testing.T) {
	var runs []rounds.Run
	for round, ops := range []float64{100, 300, 200} {
		for target, factor := range map[string]float64{"rhumb-1": 2, "etcd-1": 1} {
			x := rounds.Run{Target: target, Round: round}
			x.Op, x.Callers, x.OpsPerSecond, x.P50, x.ServerCPU = load.Put, 1, ops*factor, int64(10*factor), 0
			runs = append(runs, x)
		}
	}
	r := reportOf(runs)
	if len(r.Ratios) != 1 || r.Ratios[0].Ops != (rounds.Spread{Median: 2, Min: 2, Max: 2}) || r.Ratios[0].P50.Median != 2 {
		t.Fatalf("ratios are %+v", r.Ratios)
	}
	for _, row := range r.Rows {
		if want := map[string]float64{"rhumb-1": 400, "etcd-1": 200}[row.Target]; row.Ops != want {
			t.Errorf("median of %s is %v, want %v", row.Target, row.Ops, want)
		}
	}
}
