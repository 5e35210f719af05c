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

// transferCommand returns `rhumb bench transfer`.
func (bc *commands) transferCommand() *cobra.Command {
	size := flags.ByteSize(256 << 20)
	var rate flags.ByteSize
	var cfg bench.TransferConfig
	c := &cobra.Command{
		Use: "transfer", Short: "Copy a range from node to node under load, and measure the speed and the writes",
		Long: `Run one region of three nodes, fill a range that has two copies, and move one of them to the third node and back, while callers write to the
range. The nodes keep little log, so the range is copied as a whole. The speed is compared with that of a file that is written to
the same disk, and of one connection of this machine to itself; both are measured before, without load.

Nodes limit what they send and receive (--transfer-rate). To see what is possible, set a high limit.`,
		Example: `  rhumb bench transfer
  rhumb bench transfer --size 1GiB --transfer-rate 4GiB -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Bytes = int64(size)
			return bc.measureTransfer(cmd.Context(), cfg, rate.String())
		},
	}
	fl := c.Flags()
	fl.Var(&size, "size", "size of the range, in bytes of its values")
	fl.Var(&rate, "transfer-rate", "how much each node receives and sends a second, each")
	flags.Default(fl, "transfer-rate", "the default of rhumb start")
	fl.IntVar(&cfg.Copies, "copies", 3, "how many copies to measure")
	fl.IntVar(&cfg.Writers, "writers", 16, "number of callers that write to the range")
	fl.DurationVar(&cfg.Pause, "pause", 10*time.Millisecond, "time between two writes of a caller")
	fl.DurationVar(&cfg.Calm, "calm", 5*time.Second, "how long to measure writes before the first copy")
	flags.Positive(fl, "copies", "writers", "calm")
	return c
}

// measureTransfer fails if a write failed or is missing, so that a script notices.
func (bc *commands) measureTransfer(ctx context.Context, cfg bench.TransferConfig, rate string) error {
	p, c, stop, err := bc.startRegion(ctx, bench.TransferSettings(rate))
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster, cfg.Dir, cfg.Progress = c, p.dir, bc.progress
	r, err := bench.RunTransfer(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"from", "to", "size", "begun after", "copied in", "MB/s", "in sync after", "old copy gone after"})
		for _, x := range r.Copies {
			t.AppendRow(table.Row{x.From, x.To, mib(x.Bytes), x.Begun.Round(time.Millisecond), x.Took.Round(time.Millisecond), mbps(x.Speed), x.InSync.Round(time.Millisecond), x.Whole.Round(time.Millisecond)})
		}
	}); err != nil {
		return err
	}
	bc.Notef("median %s MB/s: %.0f %% of the disk (%s MB/s), %.0f %% of the link (%s MB/s)",
		mbps(r.Speed), 100*r.Speed/r.Disk, mbps(r.Disk), 100*r.Speed/r.Link, mbps(r.Link))
	bc.noteWrites(r.Calm, r.Meanwhile, r.Writes, r.Failed, r.Lost)
	return failedWrites(r.Failed, r.Lost)
}

// noteWrites prints how writes fared before an event and meanwhile.
func (bc *commands) noteWrites(calm, meanwhile bench.Quantiles, writes, failed int64, lost int) {
	bc.Notef("writes before: p50 %s, p99 %s, max %s ms; meanwhile: p50 %s, p99 %s, max %s ms", ms(calm.P50), ms(calm.P99), ms(calm.Max),
		ms(meanwhile.P50), ms(meanwhile.P99), ms(meanwhile.Max))
	bc.Notef("%d writes acknowledged, %d failed, %d lost", writes, failed, lost)
}

// failedWrites returns an error if a write failed or is missing.
func failedWrites(failed int64, lost int) error {
	if failed == 0 && lost == 0 {
		return nil
	}
	return rhumb.Ef(op, rhumb.Internal, "%d writes failed and %d acknowledged ones are missing", failed, lost)
}

// mbps prints bytes per second as MB/s.
func mbps(bytes float64) string { return fmt.Sprintf("%.0f", bytes/1e6) }
