package benchcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// stormCommand returns `bench storm`.
func (bc *commands) stormCommand() *cobra.Command {
	var cfg bench.StormConfig
	var clusters kvClusters
	var nodes int
	c := &cobra.Command{
		Use: "storm", Short: "Kill and restart all nodes while many clients reconnect, and count false failovers",
		Long: `Run three regions of three nodes, connect many clients, kill -9 all nodes at once, and let every client write its key until it
succeeds. All clients connect to the restarted nodes at the same time. A node that is fenced meanwhile although its process
lives is a false failover; the command fails if there is one, or if an acknowledged write is missing.`,
		Example: `  rhumb bench storm
  rhumb bench storm --clients 300 --regions singapore
  rhumb bench storm --secure=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bc.measureStorm(cmd.Context(), cfg, clusters, nodes)
		},
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Clients, "clients", 1000, "number of clients")
	fl.DurationVar(&cfg.Calm, "calm", 10*time.Second, "how long to observe the cluster after the storm")
	fl.DurationVar(&cfg.Most, "most", 5*time.Minute, "how long to wait until all clients have written again; then the command reports what it has, and fails")
	fl.StringSliceVar(&clusters.regions, "regions", []string{"singapore", "frankfurt", "virginia"}, "regions of the cluster, as for demo --regions")
	fl.IntVar(&nodes, "nodes", 3, "nodes per region")
	fl.BoolVar(&clusters.secure, "secure", true, "TLS and certificates")
	flags.Positive(fl, "clients", "calm", "most", "nodes")
	return c
}

// measureStorm fails if a node was fenced or a write is missing, so that a script notices.
func (bc *commands) measureStorm(ctx context.Context, cfg bench.StormConfig, clusters kvClusters, nodes int) error {
	cluster, stop, err := startBench(ctx, bc.dir, clusters.regions, nodes, clusters.demoFlags()...)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster = cluster
	cfg.Progress = bc.progress
	r, failure := bench.RunStorm(ctx, cfg)
	if r == nil {
		return rhumb.Wrap(op, failure)
	}
	ms := func(d time.Duration) string { return fmt.Sprint(d.Round(time.Millisecond)) }
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"clients", "connected in", "first write p50", "p90", "last", "in sync after", "clients back", "false lives", "false failovers", "failed calls", "lost"})
		t.AppendRow(table.Row{r.Clients, ms(r.Open), ms(r.P50), ms(r.P90), ms(r.Max), ms(r.Settled), r.Written, r.FalseLives, r.FalseFailovers, r.Failed, r.Lost})
	}); err != nil {
		return err
	}
	if failure != nil {
		return rhumb.Wrap(op, failure)
	}
	if r.Lost > 0 || r.FalseLives > 0 || r.FalseFailovers > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d acknowledged writes are missing, %d lives and %d changes of primary were false", r.Lost, r.FalseLives, r.FalseFailovers)
	}
	return nil
}
