package benchcmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
)

func (bc *commands) failoverCommand() *cobra.Command {
	var cfg bench.FailoverConfig
	var clusters kvClusters
	var nodes int
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
which it had another copy. A range is unavailable for as long as its callers get no answer.

With --restarts, all nodes are then killed at once and restarted. For each of 64 keys, the command measures the time from the
start of the first process to the first successful write.`,
		Example: `  rhumb bench failover
  rhumb bench failover --role primary,secondary,leader --kills 50 --regions singapore
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
			return bc.measureFailover(cmd.Context(), cfg, clusters, bc.dir)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&roles, "role", []string{string(bench.RolePrimary), string(bench.RoleLeader)}, "roles of the nodes to kill: primary, secondary, leader")
	fl.IntVar(&cfg.Kills, "kills", 5, "how many nodes to kill in each role, one after the other")
	fl.DurationVar(&cfg.Calm, "calm", 0, "how long to hold the load before the first kill, while changes of primary are counted")
	fl.IntVar(&cfg.Writers, "writers", 192, "number of callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 20*time.Millisecond, "time between two writes of a caller")
	fl.IntVar(&cfg.Restarts, "restarts", 0, "how often to kill and restart all nodes at once, after the kills")
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore", "frankfurt", "virginia"}, "regions of the cluster, as for demo --regions")
	fl.IntVar(&nodes, "nodes", 3, "nodes per region")
	return c
}

// measureFailover fails if an acknowledged write is missing, so that a script notices.
func (bc *commands) measureFailover(ctx context.Context, cfg bench.FailoverConfig, clusters kvClusters, dir string) error {
	cluster, stop, err := startBench(ctx, dir, clusters.regions, clusters.nodes[0])
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster = cluster
	cfg.Progress = bc.progress
	r, err := bench.RunFailover(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
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
		}
	}); err != nil {
		return err
	}
	bc.Notef("%d writes acknowledged, %d errors, %d lost; %d false failovers in %v", r.Writes, r.Errors, r.Lost, r.FalseFailovers, r.Calm)
	if r.Lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d acknowledged writes are missing", r.Lost)
	}
	return nil
}
