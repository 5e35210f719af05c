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

// restartRecordsMax bounds the records of `rhumb bench restart`.
const restartRecordsMax = 1_000_000_000

// restartCommand returns `rhumb bench restart`. The default size ends within a minute; the goal in
// docs/benchmarks.md is about ten million records.
func (bc *commands) restartCommand() *cobra.Command {
	var cfg bench.RecoveryConfig
	c := &cobra.Command{
		Use: "restart", Short: "Kill a node that holds many records, and measure how long its restart takes",
		Long: `Run one node, fill a table, write a tenth of the records again, kill the node with kill -9, start it, and measure the time until it
answers a read and acknowledges a write. The phases are those that the node measures itself, in the metric rhumb_node_start_seconds
and in its log: check compares the files with their seal and the logs with their checksums, replay opens the database and applies
the logs, load reads the states of the ranges, ports opens the ports and gossip, metadata catches up with the metadata group and
registers the new life, replicas starts the ranges, and total is their sum.

After each restart a sample of the records is read back; the command fails if one is missing.`,
		Example: `  rhumb bench restart
  rhumb bench restart --records 10000000 --dir /data/restart`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bc.measureRestart(cmd.Context(), cfg) },
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Records, "records", 1_000_000, "number of records")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 168, "size of a record")
	fl.IntVar(&cfg.Restarts, "restarts", 3, "how often the node is killed")
	flags.Positive(fl, "records", "value-bytes", "restarts")
	flags.AtMost(fl, restartRecordsMax, "records")
	flags.AtMost(fl, bench.ValueBytesMax, "value-bytes")
	return c
}

// measureRestart fails if a record is missing, so that a script notices.
func (bc *commands) measureRestart(ctx context.Context, cfg bench.RecoveryConfig) error {
	// The measurement starts the node again when it is dead, not the demo.
	c, stop, err := startBench(ctx, bc.dir, []string{"singapore"}, 1, "--no-restart")
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster, cfg.Progress = c, bc.progress
	restarts, err := bench.RunRecovery(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(map[string]any{"records": cfg.Records, "restarts": restarts}, func(t table.Writer) { restartTable(t, restarts) }); err != nil {
		return err
	}
	for _, r := range restarts {
		if r.Missing > 0 {
			return rhumb.Ef(op, rhumb.Corrupt, "%d records of a sample are missing after a restart", r.Missing)
		}
	}
	return nil
}

// restartTable fills a table with a row for each restart.
func restartTable(t table.Writer, restarts []bench.Recovery) {
	header := table.Row{"restart", "disk", "first read", "first write", "records/s"}
	// All restarts have the same phases.
	for _, p := range restarts[0].Phases {
		header = append(header, p.Name)
	}
	t.AppendHeader(header)
	for i, r := range restarts {
		row := table.Row{i + 1, mib(r.DiskBytes), r.Read.Round(time.Millisecond), r.Served.Round(time.Millisecond), fmt.Sprintf("%.0f", r.RecordsPerSecond)}
		for _, p := range r.Phases {
			row = append(row, p.Took.Round(time.Millisecond))
		}
		t.AppendRow(row)
	}
}
