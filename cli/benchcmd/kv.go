package benchcmd

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/rounds"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/demo"
)

// kvCommand returns `rhumb bench kv`.
func (bc *commands) kvCommand() *cobra.Command {
	var cfg bench.KVConfig
	var clusters kvClusters
	var peers string
	var ops []string
	var alone, own bool
	var replicas int
	var durability string
	c := &cobra.Command{
		Use: "kv", Short: "Compare put and get with embedded etcd in one interleaved run",
		Long: `Measure put and get through the default client on one node and on three, and embedded etcd under the same load, in turn, on
the same machine. The result is the median of the ratios of each round, because absolute figures of a shared machine say
little. make bench-kv builds the program that runs etcd.

create patches names that exist in no region, and update patches existing names, both without naming a home; etcd has no
equivalent. With several --regions the callers are in the first one, and clusters run without etcd.

With --own the command starts nothing and measures a running cluster from here, with the identity of the connection flags or
the context. It writes to the table bench, which it creates if it may.`,
		Example: `  make bench-kv
  rhumb bench kv --alone --rounds 1 --callers 64
  rhumb bench kv --alone --secure --nodes 3 --rounds 3
  rhumb bench kv --alone --durability deferred=50ms --op put
  rhumb bench kv --alone --dirs 2,4 --op put --nodes 1 --callers 256
  rhumb bench kv --own --context prod --rounds 1 --callers 64
  rhumb bench kv --op create,update --regions singapore,frankfurt,virginia --nodes 3 --callers 256
  rhumb bench kv --op create,update --regions singapore,frankfurt,virginia --nodes 3 --callers 64 --batch 64
  rhumb bench kv --op create --regions singapore,frankfurt,virginia --nodes 3 --callers 256 --latency real`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// One directory is the plain cluster, which runs anyway.
			for _, n := range clusters.dirs {
				if n < 2 || n > demo.DirsPerNodeMax {
					return rhumb.Ef(op, rhumb.InvalidArgument, "--dirs %d: want 2 to %d", n, demo.DirsPerNodeMax)
				}
			}
			if !own && !alone && len(clusters.regions) == 1 && cfg.Batch == 1 {
				cfg.PeerBinary = peers
			}
			var err error
			if cfg.Ops, err = parseOps(ops); err != nil {
				return err
			}
			if clusters.durability, err = rhumb.ParseDurability(durability); err != nil {
				return err
			}
			if own {
				return bc.measureOwn(cmd.Context(), cfg, replicas)
			}
			if err := refuseConnection(cmd); err != nil {
				return err
			}
			return bc.measureKV(cmd.Context(), cfg, clusters, bc.dir)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&ops, "op", []string{string(load.Put), string(load.Get)}, fmt.Sprintf("what to measure: some of %v", load.Ops()))
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore"}, "regions of each cluster, as for demo --regions")
	fl.IntSliceVar(&clusters.nodes, "nodes", []int{1, 3}, "nodes per region; one cluster runs for each number")
	fl.StringVar(&clusters.latency, "latency", "none", "round trips between regions: real, none, or a latency file")
	fl.IntSliceVar(&cfg.Callers, "callers", []int{1, 64, 256}, "numbers of callers")
	fl.IntVar(&cfg.Batch, "batch", 1, "keys per call; figures are then per key, latencies per call, and Rhumb runs alone")
	fl.IntVar(&cfg.Rounds, "rounds", 5, "how often each case runs")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 100, "size of a value")
	fl.DurationVar(&cfg.Measure, "measure", 2*time.Second, "how long a case is measured")
	fl.StringVar(&peers, "peers", besideBinary("peers"), "program that runs etcd")
	fl.BoolVar(&clusters.secure, "secure", false, "also measure each cluster with TLS and users, in ratio to the one without")
	fl.BoolVar(&clusters.nodeLog, "experimental-node-log", false, "also measure each cluster with logs of the stores' own, in ratio to the one without")
	fl.IntSliceVar(&clusters.dirs, "dirs", nil, "also measure each cluster with so many directories per node, such as 2,4, in ratio to the one with one each")
	fl.StringVar(&durability, "durability", "", "such as deferred=50ms: also measure each cluster with a table that defers syncs, in ratio to the one without")
	fl.BoolVar(&alone, "alone", false, "measure only Rhumb")
	fl.BoolVar(&own, "own", false, "measure the cluster that --addr or the context names, as its user, in its table bench")
	fl.IntVar(&replicas, "replicas", rhumb.ReplicasDefault, "with --own: copies of each range, if the table does not exist yet")
	bc.conn.Register(fl)
	boundCases(fl)
	flags.Positive(fl, "batch")
	flags.AtMost(fl, rhumb.BatchOpsMax, "batch")
	ownOnly(c, "regions", "nodes", "latency", "secure", "experimental-node-log", "dirs", "durability", "peers")
	return c
}

// boundCases bounds the flags that kv and ycsb share.
func boundCases(fl *pflag.FlagSet) {
	flags.Positive(fl, "callers", "rounds", "value-bytes", "measure", "nodes", "replicas")
	flags.AtMost(fl, load.CallersMax, "callers")
	flags.AtMost(fl, bench.ValueBytesMax, "value-bytes")
	flags.AtMost(fl, demo.NodesPerRegionMax, "nodes")
	flags.AtMost(fl, rhumb.ReplicasMax, "replicas")
}

// ownOnly refuses --own together with flags that describe clusters which the command starts.
func ownOnly(c *cobra.Command, names ...string) {
	for _, name := range names {
		c.MarkFlagsMutuallyExclusive("own", name)
	}
}

// refuseConnection refuses flags that name a cluster which the command would not measure.
func refuseConnection(cmd *cobra.Command) error {
	if f := flags.GivenConnection(cmd.Flags()); f != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--%s says how to reach a cluster, and the command starts its own: add --own to measure the former", f.Name)
	}
	return nil
}

// kvClusters describes the clusters that a measurement runs.
type kvClusters struct {
	regions []string
	nodes   []int // per region; one cluster runs for each number
	latency string
	secure  bool // also run each cluster with TLS and users
	// durability, if syncs are deferred, makes each cluster run a second time with such a table.
	durability rhumb.Durability
	// nodeLog also runs each cluster with logs of the stores' own, and dirs with these numbers of
	// directories per node.
	nodeLog bool
	dirs    []int
}

// demoFlags returns the flags of the demo that runs a cluster.
func (k kvClusters) demoFlags() []string {
	if k.secure {
		return []string{"--secure"}
	}
	return nil
}

// kinds returns the kinds of clusters to run of each size. The first one is plain, and the others
// are compared with it. All of them run during the whole measurement, in turn.
func (k kvClusters) kinds() []kvKind {
	out := []kvKind{{}}
	if k.secure {
		out = append(out, kvKind{flags: k.demoFlags()})
	}
	if k.durability.Deferred() {
		out = append(out, kvKind{durability: k.durability})
	}
	if k.nodeLog {
		out = append(out, kvKind{settings: map[string]string{"experimental-node-log": "true"}, nodeLog: true})
	}
	for _, n := range k.dirs {
		out = append(out, kvKind{flags: []string{"--dirs-per-node", fmt.Sprint(n)}, stores: n})
	}
	return out
}

// kvKind is what distinguishes clusters of the same size. The zero value is a plain cluster.
type kvKind struct {
	// flags are those of the demo that runs the cluster, and settings those of its nodes, by the
	// names of flags.
	flags    []string
	settings map[string]string
	// durability is that of the table. nodeLog and stores name the cluster in the report.
	durability rhumb.Durability
	nodeLog    bool
	stores     int
}

// parseOps parses the operations of --op.
func parseOps(names []string) (ops []load.Op, err error) {
	for _, name := range names {
		o := load.Op(name)
		if !slices.Contains(load.Ops(), o) {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "--op %q is none of %s", name, listOf(load.Ops()))
		}
		ops = append(ops, o)
	}
	return ops, nil
}

// measureKV keeps all clusters running during the whole measurement, because the targets take turns
// within each round.
func (bc *commands) measureKV(ctx context.Context, cfg bench.KVConfig, clusters kvClusters, dir string) error {
	place, err := newBenchPlace(dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	cfg.Dir = place.dir
	cfg.Progress = bc.progress
	for _, nodes := range clusters.nodes {
		for i, kind := range clusters.kinds() {
			dir := filepath.Join(place.dir, fmt.Sprintf("rhumb-%d-%d", nodes, i))
			c, err := bench.StartClusterWith(ctx, kind.settings, place.binary, dir, clusters.regions, nodes, clusters.latency, kind.flags...)
			if err != nil {
				return rhumb.Wrap(op, err)
			}
			defer c.Stop()
			target := bench.Rhumb{
				Client: c.ClientConfig(0), PIDs: c.PIDs(), Admins: c.Admins(), Replicas: nodes, Regions: len(clusters.regions), LatencyFile: c.LatencyFile,
				Durability: kind.durability, Stores: kind.stores, NodeLog: kind.nodeLog,
			}
			target.Client.From = c.Nodes[0].Region
			cfg.Clusters = append(cfg.Clusters, target)
		}
	}
	return bc.printKV(ctx, cfg)
}

// measureOwn measures a cluster that the command did not start.
func (bc *commands) measureOwn(ctx context.Context, cfg bench.KVConfig, replicas int) error {
	own, err := bc.conn.Config()
	if err != nil {
		return err
	}
	cfg.Progress = bc.progress
	cfg.Clusters = []bench.Rhumb{{Name: "own", Client: own, Replicas: replicas}}
	return bc.printKV(ctx, cfg)
}

// printKV measures and prints the result.
func (bc *commands) printKV(ctx context.Context, cfg bench.KVConfig) error {
	r, err := bench.RunKV(ctx, cfg)
	if ctx.Err() != nil {
		// Not the outcome of the write that was under way, which nobody asked for.
		return rhumb.E(op, rhumb.Canceled, "interrupted: nothing was measured")
	}
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"op", "callers", "target", "ops/s", "p50 µs", "p99 µs", "p99.9 µs", "server cpu µs/op", "client cpu µs/op", "row hits", "errors", "ops ×", "p50 ×", "cpu ×"})
		for _, row := range r.Rows {
			what := string(row.Op)
			if row.Workload != "" {
				what = string(row.Workload)
			}
			cells := table.Row{what, row.Callers, row.Target, fmt.Sprintf("%.0f", row.Ops), row.P50, row.P99, row.P999, fmt.Sprintf("%.1f", row.ServerCPU), fmt.Sprintf("%.1f", row.ClientCPU), rowHits(row), row.Errors}
			for _, x := range r.Ratios {
				if x.Rhumb == row.Target && x.Case == row.Case {
					cells = append(cells, x.Ops, x.P50, x.CPU)
				}
			}
			t.AppendRow(cells)
		}
	}); err != nil {
		return err
	}
	// A case in which nothing succeeded has measured nothing, and the reason is worth more than its zeros.
	for _, row := range r.Rows {
		if row.Ops == 0 && row.Errors > 0 {
			return rhumb.Ef(op, rhumb.Unavailable, "%s with %d callers: no call succeeded and %d failed, the first as %s", row.Target, row.Callers, row.Errors, row.FirstError)
		}
	}
	return nil
}

// rowHits returns the share of reads that nodes answered from the records in their memory, and nothing for other operations.
func rowHits(r rounds.Row) string {
	if r.RowHits == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*r.RowHits)
}
