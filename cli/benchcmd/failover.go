package benchcmd

import (
	"context"
	"fmt"
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
	c := &cobra.Command{
		Use: "failover", Short: "Kill primaries under load and measure how long callers cannot write",
		Long: `Run three regions of three nodes without imitated round trips, hold a load of writes, and kill -9 nodes that are primaries,
one after the other; each is restarted and in sync again before the next one is killed. The gap is the longest time that any
caller was without a successful write. At the end every acknowledged write is read back.

With --restarts, all nodes are then killed at once and restarted. For each of 64 keys, the command measures the time from the
start of the first process to the first successful write.`,
		Example: `  rhumb bench failover
  rhumb bench failover --kills 0 --calm 10m   # counts false failovers under load
  rhumb bench failover --kills 0 --restarts 3 --regions singapore`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters.nodes = []int{nodes}
			return bc.measureFailover(cmd.Context(), cfg, clusters, bc.dir)
		},
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Kills, "kills", 13, "how many nodes to kill, one after the other")
	fl.IntVar(&cfg.LeaderKills, "leader-kills", 3, "how many of them, the last ones, also lead the metadata group")
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
	cfg.Progress = func(text string) { bc.Notef("%s", text) }
	r, err := bench.RunFailover(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"node", "metadata leader", "primaries", "gap", "in sync after"})
		for _, k := range r.Kills {
			t.AppendRow(table.Row{k.Node, k.Leader, k.Primaries, k.Gap.Round(time.Millisecond), k.InSync.Round(time.Millisecond)})
		}
		for _, r := range r.Restarts {
			t.AppendRow(table.Row{"all", true, "all", fmt.Sprintf("p50 %v last %v", r.P50.Round(time.Millisecond), r.Max.Round(time.Millisecond)), r.InSync.Round(time.Millisecond)})
		}
		if len(r.Kills) > 0 {
			t.AppendFooter(table.Row{
				"", "", "", fmt.Sprintf("p50 %v max %v", r.P50.Round(time.Millisecond), r.Max.Round(time.Millisecond)),
				fmt.Sprintf("leader p50 %v max %v", r.LeaderP50.Round(time.Millisecond), r.LeaderMax.Round(time.Millisecond)),
			})
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
