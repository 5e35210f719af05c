package benchcmd

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
)

// failoverCommand is `rhumb bench failover`, which starts a cluster of its own and kills its processes.
func (bc *commands) failoverCommand() *cobra.Command {
	var cfg bench.FailoverConfig
	var clusters kvClusters
	var nodes, rounds int
	var roles []string
	c := &cobra.Command{
		Use: "failover", Short: "Kill nodes under load and measure how long callers cannot write",
		Long: `Run three regions of three nodes without imitated round trips, hold a load of writes, and kill -9 nodes one after the other; each is
restarted and in sync again before the next one is killed. The gap is the longest time that any caller was without a successful
write. At the end every acknowledged write is read back.

--role says which nodes are killed, each role --kills times:
  primary    the primary of the most ranges that does not lead the metadata group
  secondary  a node that is primary of nothing: its ranges are handed over before
  leader     the leader of the metadata group, which may be primary of ranges too

The last table shows how long ranges were unavailable, for each role: first the ranges of which the killed node was primary, then those of
which it had another copy. A range is unavailable for as long as its callers get no answer. Before each kill, the command asks for the plan of that failure
(rhumb plan failover); the table shows how many ranges got another primary than planned, or waited longer than the bound of the plan.

A node that dies again and again is held off for longer each time. --rounds does everything in so many clusters, one after the other, each of
which is new, and counts them together.

With --restarts, all nodes are then killed at once and restarted. For each of 64 keys, the command measures the time from the
start of the first process to the first successful write.`,
		Example: `  rhumb bench failover
  rhumb bench failover --role primary,secondary,leader --kills 5 --rounds 10 --regions singapore
  rhumb bench failover --kills 0 --calm 10m   # counts false failovers under load
  rhumb bench failover --kills 0 --restarts 3 --regions singapore`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters.nodes = []int{nodes}
			for _, r := range roles {
				if !slices.Contains(bench.Roles(), bench.Role(r)) {
					return rhumb.Ef(op, rhumb.InvalidArgument, "--role %q is none of %s", r, listOf(bench.Roles()))
				}
				cfg.Roles = append(cfg.Roles, bench.Role(r))
			}
			if rounds < 1 {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--rounds is %d; at least one round is run", rounds)
			}
			return bc.measureFailover(cmd.Context(), cfg, clusters, rounds)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&roles, "role", []string{string(bench.RolePrimary), string(bench.RoleLeader)}, "roles of the nodes to kill: primary, secondary, leader")
	fl.IntVar(&cfg.Kills, "kills", 5, "how many nodes to kill in each role, one after the other")
	fl.IntVar(&rounds, "rounds", 1, "how many clusters to do all this in, one after the other")
	fl.DurationVar(&cfg.Calm, "calm", 0, "how long to hold the load before the first kill, while changes of primary are counted")
	fl.IntVar(&cfg.Writers, "writers", 192, "number of callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 20*time.Millisecond, "time between two writes of a caller")
	fl.IntVar(&cfg.Restarts, "restarts", 0, "how often to kill and restart all nodes at once, after the kills")
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore", "frankfurt", "virginia"}, "regions of the cluster, as for demo --regions")
	fl.IntVar(&nodes, "nodes", 3, "nodes per region")
	return c
}

// measureFailover fails if an acknowledged write is missing, so that a script notices.
func (bc *commands) measureFailover(ctx context.Context, cfg bench.FailoverConfig, clusters kvClusters, rounds int) error {
	cfg.Progress = bc.progress
	r := &bench.FailoverReport{}
	for round := range rounds {
		if rounds > 1 {
			bc.progress(fmt.Sprintf("round %d of %d", round+1, rounds))
		}
		dir := bc.dir
		if dir != "" && rounds > 1 {
			// A cluster that finds the data of an earlier one would go on with it.
			dir = filepath.Join(dir, fmt.Sprintf("round-%d", round+1))
		}
		one, err := bc.runFailover(ctx, cfg, clusters, dir)
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		r.Add(one, cfg.Roles)
	}
	if err := bc.printFailover(r); err != nil {
		return err
	}
	bc.Notef("%d writes acknowledged, %d errors, %d lost; %d false failovers in %v", r.Writes, r.Errors, r.Lost, r.FalseFailovers, r.Calm)
	if r.Lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d acknowledged writes are missing", r.Lost)
	}
	return nil
}

// runFailover runs one round on a cluster of its own.
func (bc *commands) runFailover(ctx context.Context, cfg bench.FailoverConfig, clusters kvClusters, dir string) (*bench.FailoverReport, error) {
	cluster, stop, err := startBench(ctx, dir, clusters.regions, clusters.nodes[0])
	if err != nil {
		return nil, err
	}
	defer stop()
	cfg.Cluster = cluster
	return bench.RunFailover(ctx, cfg)
}

// printFailover prints the kills one by one, then the times of ranges by role, then how the plans of the kills came true.
func (bc *commands) printFailover(r *bench.FailoverReport) error {
	return bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"node", "role", "primaries", "gap", "in sync after"})
		for _, k := range r.Kills {
			t.AppendRow(table.Row{k.Node, k.Role, k.Primaries, k.Gap.Round(time.Millisecond), k.InSync.Round(time.Millisecond)})
		}
		for _, r := range r.Restarts {
			t.AppendRow(table.Row{"all", "", "all", fmt.Sprintf("p50 %v last %v", r.P50.Round(time.Millisecond), r.Max.Round(time.Millisecond)), r.InSync.Round(time.Millisecond)})
		}
		for _, g := range r.Roles {
			t.AppendSeparator()
			for _, row := range []struct {
				what string
				g    bench.Gaps
			}{{"was primary", g.Primary}, {"had a copy", g.Secondary}} {
				if row.g.Ranges > 0 {
					t.AppendRow(table.Row{
						fmt.Sprintf("%d kills", g.Kills), g.Role, fmt.Sprintf("%d ranges: %s", row.g.Ranges, row.what),
						fmt.Sprintf("p50 %v p99 %v max %v", row.g.P50.Round(time.Millisecond), row.g.P99.Round(time.Millisecond), row.g.Max.Round(time.Millisecond)), "",
					})
				}
			}
			if p := g.Plan; p.Ranges > 0 {
				t.AppendRow(table.Row{
					fmt.Sprintf("%d kills", g.Kills), g.Role, fmt.Sprintf("%d ranges planned, %d unlike", p.Ranges, p.Unlike),
					fmt.Sprintf("%d of %d over the bound", p.Late, p.Observed), fmt.Sprintf("at most %.0f %% of it", 100*p.Share),
				})
			}
		}
	})
}
