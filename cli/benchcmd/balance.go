package benchcmd

import (
	"context"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// balanceCommand returns `rhumb bench balance`.
func (bc *commands) balanceCommand() *cobra.Command {
	size := flags.ByteSize(128 << 20)
	var cfg bench.BalanceConfig
	c := &cobra.Command{
		Use: "balance", Short: "Let a node join under load, and measure the time until the region is balanced",
		Long: `Run one region of three nodes, fill a table, and start a fourth node while callers write. Copies of ranges move to it, four at a time, until
the nodes are balanced by bytes and writes (see rhumb rebalance). The command shows how long that took, and the writes before and
meanwhile. The region counts as balanced when nothing was left to move for eleven seconds; the time is that of their beginning.`,
		Example: `  rhumb bench balance
  rhumb bench balance --size 2GiB --most 10m -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Bytes = int64(size)
			return bc.measureBalance(cmd.Context(), cfg)
		},
	}
	fl := c.Flags()
	fl.Var(&size, "size", "size of the table, in bytes of its values")
	fl.IntVar(&cfg.HashSlots, "hash-slots", rhumb.HashSlotsDefault, "number of ranges of the table")
	fl.IntVar(&cfg.Writers, "writers", 16, "number of callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 10*time.Millisecond, "time between two writes of a caller")
	fl.DurationVar(&cfg.Calm, "calm", 5*time.Second, "how long to measure writes before the node starts")
	fl.DurationVar(&cfg.Most, "most", 5*time.Minute, "how long the region may take to be balanced; then the command fails")
	flags.Positive(fl, "hash-slots", "writers", "calm", "most")
	return c
}

// measureBalance fails if a write failed or is missing, so that a script notices.
func (bc *commands) measureBalance(ctx context.Context, cfg bench.BalanceConfig) error {
	p, c, stop, err := bc.startRegion(ctx, nil)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster, cfg.Binary, cfg.Progress = c, p.binary, bc.progress
	r, err := bench.RunBalance(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"joined", "first copy", "balanced", "copies", "primaries", "received", "weights before", "after"})
		spread := func(s bench.BalanceSpread) string { return mib(s.Least) + " to " + mib(s.Most) }
		t.AppendRow(table.Row{
			r.Joined.Round(time.Millisecond), r.First.Round(time.Millisecond), r.Balanced.Round(time.Millisecond), r.Copies, r.Primaries,
			mib(r.Received), spread(r.Before), spread(r.After),
		})
	}); err != nil {
		return err
	}
	bc.noteWrites(r.Calm, r.Meanwhile, r.Writes, r.Failed, r.Lost)
	return failedWrites(r.Failed, r.Lost)
}
