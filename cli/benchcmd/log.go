package benchcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench/sidebyside"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// logCommand returns `rhumb bench log`.
func (bc *commands) logCommand() *cobra.Command {
	var cfg sidebyside.LogsConfig
	c := &cobra.Command{
		Use: "log", Short: "Measure the log of a node against that of the database and bare files",
		Long: `Make values durable on one disk in four ways, in turn: with the log of a node, whose files are filled once and written over from then
on; with the log of the database that stores use today; and with a bare file that is overwritten or appended to, each with a sync of its data. Each
caller waits until its value is durable; the values that come during a sync share the next one. The result is the median of the ratios of
each round.

No cluster is started. --dir decides about the disk, and 400 MiB of it are used meanwhile. At the end the log of the node is opened
again and read; the command fails if it lacks a value that was acknowledged.`,
		Example: `  rhumb bench log --dir /data
  rhumb bench log --callers 1 --value-bytes 1000 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bc.measureLogs(cmd.Context(), cfg) },
	}
	fl := c.Flags()
	fl.IntSliceVar(&cfg.Callers, "callers", []int{1, 64, 256}, "numbers of callers")
	fl.IntVar(&cfg.Rounds, "rounds", 5, "how often each case runs")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 100, "size of a value")
	fl.DurationVar(&cfg.Measure, "measure", time.Second, "how long a case is measured")
	flags.Positive(fl, "rounds", "value-bytes", "measure", "callers")
	flags.AtMost(fl, logCallersMax, "callers")
	flags.AtMost(fl, logValueBytesMax, "value-bytes")
	return c
}

// Bounds of `rhumb bench log`. A group has at most one value of each caller, and must fit into a segment.
const (
	logCallersMax    = 4096
	logValueBytesMax = 4 << 10
)

// measureLogs measures and prints the report.
func (bc *commands) measureLogs(ctx context.Context, cfg sidebyside.LogsConfig) error {
	place, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	cfg.Dir, cfg.Progress = place.dir, bc.progress
	r, err := sidebyside.MeasureLogs(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	bc.Notef("%s", r.Verdict())
	u := r.Log
	bc.Notef("The node log wrote %d records in %d syncs, filled %d segments, and had %d records to read back, all intact.", u.Records, u.Syncs, u.Turns, u.Replayed)
	return bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"callers", "log", "values/s", "[least..most]", "p50 µs", "p99 µs", "p99.9 µs", "cpu µs/value", "other cores", "node log: values ×", "p50 ×"})
		for _, row := range r.Rows {
			cells := table.Row{
				row.Callers, row.Target, fmt.Sprintf("%.0f", row.Ops), fmt.Sprintf("[%.0f..%.0f]", row.OpsSpread.Min, row.OpsSpread.Max), row.P50, row.P99, row.P999,
				fmt.Sprintf("%.1f", row.ClientCPU), fmt.Sprintf("%.2f", row.OtherCores),
			}
			// The ratio is that of the node log to the log in this row.
			if x := r.RatioTo(row); x != nil {
				cells = append(cells, x.Ops, x.P50)
			}
			t.AppendRow(cells)
		}
	})
}
