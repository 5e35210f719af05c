package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
)

// benchFlags are those of all bench commands.
type benchFlags struct{ dir string }

func (a *app) benchCommand() *cobra.Command {
	var f benchFlags
	c := noArgsGroup("bench", "Measure clusters on this machine", a.benchKVCommand(&f), a.benchFailoverCommand(&f), a.benchOverloadCommand(&f), a.benchStallCommand(&f))
	c.PersistentFlags().StringVar(&f.dir, "dir", "", "where the clusters keep their data (default: a directory that is removed at the end)")
	return c
}

func (a *app) benchKVCommand(f *benchFlags) *cobra.Command {
	var cfg bench.KVConfig
	var clusters kvClusters
	var peers string
	var ops []string
	var alone bool
	c := &cobra.Command{
		Use: "kv", Short: "Compare put and get with embedded etcd, in one interleaved run",
		Long: `Measure put and get through the default client on one node and on three, and embedded etcd beside them: the
same load, in turn, on the same machine. Ratios of one round are reported as their median; absolute figures of a
shared machine say little. make bench-kv builds the program that runs etcd.

create patches names that no region has, and update names that exist, both without naming a home; etcd has no like of
them. With several --regions the callers stand in the first one, and clusters run without etcd.`,
		Example: `  make bench-kv
  rhumb bench kv --alone --rounds 1 --callers 64
  rhumb bench kv --op create,update --regions singapore,frankfurt,virginia --nodes 3 --callers 256
  rhumb bench kv --op create,update --regions singapore,frankfurt,virginia --nodes 3 --callers 64 --batch 64
  rhumb bench kv --op create --regions singapore,frankfurt,virginia --nodes 3 --callers 256 --latency real`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Batch < 1 || cfg.Batch > rhumb.BatchOpsMax {
				return rhumb.Ef("rhumb.bench", rhumb.InvalidArgument, "--batch is %d, want 1 to %d", cfg.Batch, rhumb.BatchOpsMax)
			}
			if !alone && len(clusters.regions) == 1 && cfg.Batch == 1 {
				cfg.PeerBinary = peers
			}
			var err error
			if cfg.Ops, err = benchOps(ops); err != nil {
				return err
			}
			return a.benchKV(cmd.Context(), cfg, clusters, f.dir)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&ops, "op", []string{string(load.Put), string(load.Get)}, fmt.Sprintf("what to measure: some of %v", load.Ops()))
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore"}, "the regions of each cluster, as demo --regions takes them")
	fl.IntSliceVar(&clusters.nodes, "nodes", []int{1, 3}, "nodes per region: one cluster is run for each number")
	fl.StringVar(&clusters.latency, "latency", "none", "round trips between regions: real, none, or a latency file")
	fl.IntSliceVar(&cfg.Callers, "callers", []int{1, 64, 256}, "numbers of callers")
	fl.IntVar(&cfg.Batch, "batch", 1, "keys that one call works on; figures are then per key, latencies per call, and Rhumb runs alone")
	fl.IntVar(&cfg.Rounds, "rounds", 5, "how often each case is run")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 100, "size of a value")
	fl.DurationVar(&cfg.Measure, "measure", 2*time.Second, "how long a case is measured")
	fl.StringVar(&peers, "peers", besideBinary("peers"), "the program that runs etcd")
	fl.BoolVar(&alone, "alone", false, "measure Rhumb only")
	return c
}

// besideBinary gives the path of a file that lies beside this program.
func besideBinary(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(exe), name)
}

// benchPlace is where a measurement runs its clusters: this program, and a directory.
type benchPlace struct {
	binary, dir string
	own         bool // the directory was made for this run
}

// newBenchPlace uses the given directory, or makes one that remove removes.
func newBenchPlace(dir string) (p benchPlace, err error) {
	if p.binary, err = os.Executable(); err != nil {
		return p, err
	}
	if dir != "" {
		p.dir = dir
		return p, os.MkdirAll(dir, 0o700)
	}
	p.own = true
	p.dir, err = os.MkdirTemp("", "rhumb-bench-")
	return p, err
}

func (p benchPlace) remove() {
	if p.own {
		_ = os.RemoveAll(p.dir)
	}
}

// startBench starts a cluster for a measurement, with a number of nodes in each region. stop ends it and removes what it kept.
func startBench(ctx context.Context, dir string, regions []string, nodes int, flags ...string) (c *bench.Cluster, stop func(), err error) {
	p, err := newBenchPlace(dir)
	if err != nil {
		return nil, nil, err
	}
	if c, err = bench.StartCluster(ctx, p.binary, p.dir, regions, nodes, flags...); err != nil {
		p.remove()
		return nil, nil, err
	}
	return c, func() { c.Stop(); p.remove() }, nil
}

// kvClusters says which clusters `bench kv` runs.
type kvClusters struct {
	regions []string
	nodes   []int // of each region, one cluster for each
	latency string
}

// benchOps reads the operations that --op names.
func benchOps(names []string) (ops []load.Op, err error) {
	for _, name := range names {
		op := load.Op(name)
		if !slices.Contains(load.Ops(), op) {
			return nil, rhumb.Ef("rhumb.bench", rhumb.InvalidArgument, "--op %s: there is no such operation; name some of %v", name, load.Ops())
		}
		ops = append(ops, op)
	}
	return ops, nil
}

func (a *app) benchKV(ctx context.Context, cfg bench.KVConfig, clusters kvClusters, dir string) error {
	const op rhumb.Op = "rhumb.bench"
	place, err := newBenchPlace(dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.remove()
	cfg.Dir = place.dir
	cfg.Progress = func(text string) { a.notef("%s", text) }
	for _, nodes := range clusters.nodes {
		c, err := bench.StartClusterAt(ctx, place.binary, filepath.Join(place.dir, fmt.Sprintf("rhumb-%d", nodes)), clusters.regions, nodes, clusters.latency)
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		defer c.Stop()
		cfg.Clusters = append(cfg.Clusters, bench.Rhumb{
			Addrs: c.Addrs(), PIDs: c.PIDs(), Replicas: nodes,
			Regions: len(clusters.regions), From: c.Nodes[0].Region, LatencyFile: c.LatencyFile,
		})
	}
	r, err := bench.RunKV(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	return a.print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"op", "callers", "target", "ops/s", "p50 µs", "p99 µs", "server cpu µs/op", "client cpu µs/op", "errors", "ops ×", "p50 ×", "cpu ×"})
		for _, row := range r.Rows {
			cells := table.Row{row.Op, row.Callers, row.Target, fmt.Sprintf("%.0f", row.Ops), row.P50, row.P99, fmt.Sprintf("%.1f", row.ServerCPU), fmt.Sprintf("%.1f", row.ClientCPU), row.Errors}
			for _, x := range r.Ratios {
				if x.Rhumb == row.Target && x.Op == row.Op && x.Callers == row.Callers {
					cells = append(cells, spreadText(x.Ops), spreadText(x.P50), spreadText(x.CPU))
				}
			}
			t.AppendRow(cells)
		}
	})
}

func spreadText(s bench.Spread) string {
	return fmt.Sprintf("%.2f [%.2f..%.2f]", s.Median, s.Min, s.Max)
}

func (a *app) benchFailoverCommand(f *benchFlags) *cobra.Command {
	var cfg bench.FailoverConfig
	var clusters kvClusters
	var nodes int
	c := &cobra.Command{
		Use: "failover", Short: "Kill primaries under load and measure for how long callers cannot write",
		Long: `Run three regions of three nodes without imitated distances, hold a load of writes, and kill -9 a node that is
primary, again and again; each is started again and back in sync before the next. The gap is the longest time that
any caller was without a successful write. At the end every acknowledged write is read back.

With --restarts, all nodes are then killed at once and started again. For each of 64 keys the time from the start of
the first process to the first successful write is measured.`,
		Example: `  rhumb bench failover
  rhumb bench failover --kills 0 --calm 10m   # false failovers under load
  rhumb bench failover --kills 0 --restarts 3 --regions singapore`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters.nodes = []int{nodes}
			return a.benchFailover(cmd.Context(), cfg, clusters, f.dir)
		},
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Kills, "kills", 13, "how many nodes to kill, one after the other")
	fl.IntVar(&cfg.LeaderKills, "leader-kills", 3, "how many of them, the last, lead the metadata group too")
	fl.DurationVar(&cfg.Calm, "calm", 0, "hold the load for so long before the first kill, and count changes of primary")
	fl.IntVar(&cfg.Writers, "writers", 192, "callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 20*time.Millisecond, "time between two writes of a caller")
	fl.IntVar(&cfg.Restarts, "restarts", 0, "how often to kill and start all nodes at once, after the kills")
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore", "frankfurt", "virginia"}, "the regions of the cluster, as demo --regions takes them")
	fl.IntVar(&nodes, "nodes", 3, "nodes per region")
	return c
}

func (a *app) benchFailover(ctx context.Context, cfg bench.FailoverConfig, clusters kvClusters, dir string) error {
	const op rhumb.Op = "rhumb.bench"
	cluster, stop, err := startBench(ctx, dir, clusters.regions, clusters.nodes[0])
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster = cluster
	cfg.Progress = func(text string) { a.notef("%s", text) }
	r, err := bench.RunFailover(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := a.print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"node", "metadata leader", "primaries", "gap", "whole again after"})
		for _, k := range r.Kills {
			t.AppendRow(table.Row{k.Node, k.Leader, k.Primaries, k.Gap.Round(time.Millisecond), k.InSync.Round(time.Millisecond)})
		}
		for _, r := range r.Restarts {
			t.AppendRow(table.Row{"all", true, "all", fmt.Sprintf("p50 %v last %v", r.P50.Round(time.Millisecond), r.Max.Round(time.Millisecond)), r.InSync.Round(time.Millisecond)})
		}
		t.AppendFooter(table.Row{
			"", "", "", fmt.Sprintf("p50 %v max %v", r.P50.Round(time.Millisecond), r.Max.Round(time.Millisecond)),
			fmt.Sprintf("leader p50 %v max %v", r.LeaderP50.Round(time.Millisecond), r.LeaderMax.Round(time.Millisecond)),
		})
	}); err != nil {
		return err
	}
	a.notef("%d writes acknowledged, %d errors, %d lost; %d false failovers in %v", r.Writes, r.Errors, r.Lost, r.FalseFailovers, r.Calm)
	if r.Lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d acknowledged writes are missing", r.Lost)
	}
	return nil
}
