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

// handoverCommand is `rhumb bench handover`. The defaults yield an acknowledgement about every half millisecond on a machine with
// nothing else to do, which is well below the bound of a pause, and leave most of the processors idle.
func (bc *commands) handoverCommand() *cobra.Command {
	var cfg bench.HandoverConfig
	c := &cobra.Command{
		Use: "handover", Short: "Hand a range over again and again under load, and measure how long writes pause",
		Long: `Run one region of three nodes, hold a load of writes on one range, and hand this range over from node to node. The pause
of a handover is the longest time in which no write to the range was acknowledged. It is compared with one round trip, one sync of the
disk and 5 ms; both are measured in the same run, under the same load. The same figure without handovers shows what the machine adds.

A pause can be no shorter than the time between two acknowledgements, which --writers and --pause decide. At the end the last
acknowledged write of each caller is read back.

With --far there are three regions of three nodes with imitated round trips, and the range and its callers are in the region that is
farthest from the metadata leader. A pause that contained a command of the metadata would be longer by this round trip.`,
		Example: "  rhumb bench handover\n  rhumb bench handover --handovers 100 -o json\n  rhumb bench handover --far --handovers 100",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return bc.measureHandover(cmd.Context(), cfg) },
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Handovers, "handovers", 1_000, "how many handovers to measure")
	fl.IntVar(&cfg.Writers, "writers", 8, "number of callers that write to the range")
	fl.BoolVar(&cfg.Far, "far", false, "hand over a range of a region far from the metadata leader")
	fl.DurationVar(&cfg.Pause, "pause", 4*time.Millisecond, "time between two writes of a caller")
	return c
}

// measureHandover fails if a write was refused or lost, so that a script notices.
func (bc *commands) measureHandover(ctx context.Context, cfg bench.HandoverConfig) error {
	// Without a writer there is nothing that could pause.
	if cfg.Handovers < 1 || cfg.Writers < 1 || cfg.Pause < 0 {
		return rhumb.E(op, rhumb.InvalidArgument, "--handovers and --writers must be at least 1, and --pause not negative")
	}
	regions, latency := []string{adversityRegions[0]}, "none"
	if cfg.Far {
		regions, latency = adversityRegions, "real"
	}
	p, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer p.removeTemporary()
	if cfg.Cluster, err = bench.StartClusterAt(ctx, p.binary, p.dir, regions, 3, latency); err != nil {
		return rhumb.Wrap(op, err)
	}
	defer cfg.Cluster.Stop()
	// The syncs are measured on the disk that the nodes write to.
	cfg.Dir, cfg.Progress = p.dir, bc.progress
	r, err := bench.RunHandover(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"", "p50 ms", "p99 ms", "max ms"})
		for _, row := range []struct {
			what string
			q    bench.Quantiles
		}{{"pause of a handover", r.Pause}, {"the same without a handover", r.Calm}, {"round trip", r.RoundTrip}, {"sync of 4 KiB", r.Sync}, {"write", r.Write}} {
			t.AppendRow(table.Row{row.what, ms(row.q.P50), ms(row.q.P99), ms(row.q.Max)})
		}
	}); err != nil {
		return err
	}
	if cfg.Far {
		bc.Notef("the range is in %s, %s ms from the metadata leader", r.Region, ms(float64(r.Leader.Microseconds())))
	}
	bc.Notef("%d handovers, %d of them failed; %d within %s ms (medians of round trip and sync, and 5 ms), %d within %s ms (their 99th percentiles)",
		r.Handovers, r.Failed, r.Within, ms(r.Bound), r.WithinSlow, ms(r.BoundSlow))
	bc.Notef("%d writes acknowledged, %d refused, %d lost", r.Writes, r.Refused, r.Lost)
	if r.Refused > 0 || r.Lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d writes were refused and %d acknowledged ones are missing", r.Refused, r.Lost)
	}
	return nil
}

// ms prints microseconds as milliseconds.
func ms(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
