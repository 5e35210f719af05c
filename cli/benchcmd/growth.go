package benchcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// growthCommand returns `rhumb bench growth`. The default sizes end within a minute or two and still show a dozen splits.
func (bc *commands) growthCommand() *cobra.Command {
	from, to, split := flags.ByteSize(64<<20), flags.ByteSize(256<<20), flags.ByteSize(16<<20)
	var cfg bench.GrowthConfig
	c := &cobra.Command{
		Use: "growth", Short: "Let a table grow while its ranges are split, and measure the writes",
		Long: `Run one region of three nodes, fill a table up to a size, and let it grow to another one with single writes, each of which is timed.
The table begins with --hash-slots ranges. A range that is larger than --split-bytes is split in two; the command shows the writes
that were under way while the range of their key was being split, beside all others. It fails if a write failed, or if one of
10,000 acknowledged records is missing at the end.

The run needs about six times --to on the disk.`,
		Example: `  rhumb bench growth
  rhumb bench growth --from 1GiB --to 4GiB --split-bytes 128MiB -o json
  rhumb bench growth --from 1GiB --to 64GiB --split-bytes 512MiB --dir /data/growth`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.From, cfg.To, cfg.SplitBytes = int64(from), int64(to), int64(split)
			return bc.measureGrowth(cmd.Context(), cfg)
		},
	}
	fl := c.Flags()
	fl.Var(&from, "from", "size of the table before writes are measured, in bytes of its values")
	fl.Var(&to, "to", "size of the table at the end")
	fl.Var(&split, "split-bytes", "size above which a range is split (the setting range_split_bytes)")
	fl.IntVar(&cfg.HashSlots, "hash-slots", 1, "number of ranges of the empty table")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 1<<10, "size of a record")
	fl.IntVar(&cfg.Callers, "callers", 32, "number of callers that write, each as fast as it gets answers")
	fl.IntVar(&cfg.Steps, "steps", 6, "number of rows between both sizes")
	flags.Positive(fl, "hash-slots", "value-bytes", "callers", "steps")
	flags.AtMost(fl, bench.ValueBytesMax, "value-bytes")
	flags.AtMost(fl, load.CallersMax, "callers")
	return c
}

// measureGrowth fails if a write failed or is missing, so that a script notices.
func (bc *commands) measureGrowth(ctx context.Context, cfg bench.GrowthConfig) error {
	if cfg.From < int64(cfg.ValueBytes) || cfg.To <= cfg.From {
		return rhumb.E(op, rhumb.InvalidArgument, "--from must be at least one record, and --to larger than --from")
	}
	p, c, stop, err := bc.startRegion(ctx, nil)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster, cfg.Dir, cfg.Progress = c, p.dir, bc.progress
	r, err := bench.RunGrowth(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"size", "ranges", "splits", "writes/s", "p50 ms", "p99 ms", "max ms", "on disk"})
		for i, s := range r.Steps {
			row := table.Row{mib(s.Bytes), s.Ranges, s.Splits, fmt.Sprintf("%.0f", s.PerSecond), ms(s.Write.P50), ms(s.Write.P99), ms(s.Write.Max), mib(s.Disk)}
			// The fill writes many records with a call and times none of them.
			if i == 0 {
				row[4], row[5], row[6] = "", "", ""
			}
			t.AppendRow(row)
		}
		t.AppendSeparator()
		for _, x := range []struct {
			what string
			n    int64
			q    bench.Quantiles
		}{{"all writes", r.Writes, r.Write}, {"in no split", r.Writes - r.InSplits, r.Calm}, {"in splits", r.InSplits, r.Split}} {
			t.AppendRow(table.Row{x.what, "", "", x.n, ms(x.q.P50), ms(x.q.P99), ms(x.q.Max), ""})
		}
		// Each split has a row: the pause of one range is not seen in sums over many.
		for _, s := range r.Splits {
			t.AppendRow(table.Row{
				fmt.Sprintf("split of %s in %v", s.Range, s.Took.Round(time.Millisecond)), "", "", s.Writes,
				ms(s.Write.P50), ms(s.Write.P99), ms(s.Write.Max), "",
			})
		}
	}); err != nil {
		return err
	}
	bc.Notef("%d writes acknowledged, %d attempts refused and repeated, %d redirected, %d writes failed; %d of %d records missing",
		r.Writes, r.Refused, r.Redirected, r.Failed, r.Lost, r.Checked)
	if r.Failed > 0 || r.Lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d writes failed and %d acknowledged ones are missing", r.Failed, r.Lost)
	}
	return nil
}

// mib prints bytes in MiB.
func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
