package benchcmd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// overloadCommand returns `bench overload`.
func (bc *commands) overloadCommand() *cobra.Command {
	var cfg bench.OverloadConfig
	var memory flags.ByteSize
	var secure bool
	c := &cobra.Command{
		Use: "overload", Short: "Find the peak of writes, then run a multiple of the callers",
		Long: `Run three nodes in one region and write large values with growing numbers of callers. Then run a multiple of the callers,
between two runs with the number of callers that reached the peak, because a shared disk is not equally fast at all times.
The command shows acknowledged writes per second, the outcomes of the calls and the memory of each node. At the end every
key with an acknowledged write is read back.`,
		Example: `  rhumb bench overload
  rhumb bench overload --memory 768MiB
  rhumb bench overload --secure --factor 1,2,5,10 --rounds 1
  rhumb bench overload --callers 100 --value-bytes 1024 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if i := slices.IndexFunc(cfg.Factors, func(f int) bool { return f < 1 }); i >= 0 {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--factor %d: want 1 or more", cfg.Factors[i])
			}
			var flags []string
			if memory != 0 {
				flags = []string{"--memory", memory.String()}
			}
			if secure {
				flags = append(flags, "--secure")
			}
			return bc.measureOverload(cmd.Context(), cfg, bc.dir, flags...)
		},
	}
	fl := c.Flags()
	fl.IntSliceVar(&cfg.Callers, "callers", []int{50, 400}, "numbers of callers among which to find the peak")
	fl.Var(&memory, "memory", "memory of the three nodes together")
	flags.Default(fl, "memory", "as for rhumb demo")
	fl.BoolVar(&secure, "secure", false, "run the nodes with TLS, and log in as a user with a password")
	fl.IntSliceVar(&cfg.Factors, "factor", []int{5}, "factors by which the largest number of callers is multiplied for the overloads")
	fl.IntVar(&cfg.Rounds, "rounds", 3, "how often to measure the overload, each time between two peaks")
	fl.IntVar(&cfg.ValueBytes, "value-bytes", 64<<10, "size of a value")
	fl.DurationVar(&cfg.Measure, "measure", 4*time.Second, "how long to measure each number of callers; the overload and the peaks around it take twice as long")
	flags.Positive(fl, "callers", "factor", "rounds", "value-bytes", "measure")
	flags.AtMost(fl, bench.ValueBytesMax, "value-bytes")
	flags.AtMost(fl, load.CallersMax, "callers")
	return c
}

// measureOverload fails if an acknowledged key is missing, so that a script notices.
func (bc *commands) measureOverload(ctx context.Context, cfg bench.OverloadConfig, dir string, flags ...string) error {
	cluster, stop, err := startBench(ctx, dir, []string{"singapore"}, 3, flags...)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer stop()
	cfg.Cluster = cluster
	cfg.Progress = bc.progress
	r, err := bench.RunOverload(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"phase", "callers", "ops/s", "p50 ms", "p99 ms", "node cpu µs/op", "client cpu µs/op", "attempts/ok", "sent/ok", "maximum memory of a node", "outcomes"})
		for _, x := range r.Runs {
			t.AppendRow(table.Row{
				x.Phase, x.Callers, fmt.Sprintf("%.0f", x.OpsPerSecond), x.P50 / 1000, x.P99 / 1000, fmt.Sprintf("%.0f", x.ServerCPU),
				fmt.Sprintf("%.0f", x.ClientCPU), perWrite(x.Attempts, x), perWrite(x.Sent, x), fmt.Sprintf("%d MiB", slices.Max(x.RSS)>>20), outcomesText(x.Outcomes),
			})
		}
	}); err != nil {
		return err
	}
	for _, f := range r.Overloads {
		bc.Notef("%d times the callers: goodput %s of the peak, at most %d MiB", f.Factor, f.Goodput, f.RSS>>20)
	}
	bc.Notef("%d new lives; %d of %d acknowledged keys missing", r.NewLives, r.Missing, r.Acked)
	if r.Missing > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d acknowledged keys are missing", r.Missing)
	}
	return nil
}

// perWrite returns a count per acknowledged write.
func perWrite(n uint64, x bench.OverloadRun) string {
	return fmt.Sprintf("%.2f", float64(n)/float64(max(x.Outcomes["ok"], 1)))
}

// outcomesText returns the outcomes of calls with their counts, the most frequent first.
func outcomesText(counts map[string]int64) string {
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}
