package benchcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/image"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
)

// The number of records in the measured image.
const (
	benchRecordsDefault = 4_000_000
	benchRecordsQuick   = 400_000
)

// imageCommands are the commands of `rhumb snapshot bench`.
type imageCommands struct {
	*output.Printer
	in io.Reader
}

// ImageCommand returns `rhumb snapshot bench`. in is the standard input of its worker.
func ImageCommand(p *output.Printer, in io.Reader) *cobra.Command {
	bc := &imageCommands{p, in}
	cfg := image.Config{}
	var plots string
	var quick, path bool
	c := &cobra.Command{
		Use: "bench", Short: "Measure images of road segments and their counterparts: reads, queries, publishing",
		Long: `Build an image of synthetic road segments in memory and measure it: reads in C and Go against the physical limit of the
memory, other layouts, LMDB and Redis; queries by tiles against other indexes; what publishing costs and when other processes
see it; and how all of this scales with processes. Every figure is a ratio within one run, in which the counterparts take
turns. make bench-snapshot builds the program that runs the C part.

An image of 40,000,000 records needs about 17 GiB of memory. When run as root, the command mounts a file system with huge
pages during the run.`,
		Example: `  make bench-snapshot
  rhumb snapshot bench --quick
  rhumb snapshot bench --records 40000000 --plots plots
  rhumb snapshot bench --only get,publish`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if quick && !cmd.Flags().Changed("records") {
				cfg.Records = benchRecordsQuick
			}
			return bc.measureImage(cmd.Context(), cfg, plots, path)
		},
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Records, "records", benchRecordsDefault, "number of road segments in the image")
	fl.IntVar(&cfg.Shards, "shards", 0, "shards of the image, a power of two")
	flags.Default(fl, "shards", "as many as the records need")
	fl.BoolVar(&quick, "quick", false, fmt.Sprintf("use %d records", benchRecordsQuick))
	fl.IntVar(&cfg.Rounds, "rounds", 5, "how often each case runs")
	fl.IntVar(&cfg.Ops, "ops", 1_000_000, "maximum number of operations in one turn")
	fl.Uint64Var(&cfg.Seed, "seed", 1, "seed for the roads")
	fl.IntVar(&cfg.Processes, "processes", runtime.NumCPU(), "maximum number of clients at the same time")
	fl.IntVar(&cfg.Samples, "samples", 2000, "number of changes to follow to another process and through a cluster")
	fl.DurationVar(&cfg.Pairs, "pairs", 5*time.Second, "how long to compare pairs of records while they change")
	fl.StringVar(&cfg.Dir, "memory", "", "folder on a memory file system")
	flags.Default(fl, "memory", "one that is mounted for the run, else /dev/shm")
	fl.StringVar(&cfg.Worker, "worker", besideBinary("image-worker"), "program that runs the C part")
	fl.BoolVar(&cfg.LMDB, "lmdb", true, "compare with LMDB if the worker was built with it")
	fl.StringVar(&cfg.Redis, "redis", "", "program of the Redis server")
	flags.Default(fl, "redis", "redis-server if it is installed")
	fl.StringSliceVar(&cfg.Only, "only", nil, "run only these sections: "+strings.Join(image.Sections(), ", "))
	fl.BoolVar(&path, "cluster", true, "also measure the way from the put of a client to the images of a cluster")
	fl.StringVar(&plots, "plots", "", "folder for figures")
	c.AddCommand(bc.workerCommand())
	return c
}

// workerCommand returns the command of the Go part, which runs in processes of its own: `rhumb
// snapshot bench` starts them and sends requests on standard input.
func (bc *imageCommands) workerCommand() *cobra.Command {
	return &cobra.Command{
		Use: "worker DIR TABLE RECORDS SEED", Short: "Run the Go part of the benchmark", Hidden: true, Args: cobra.ExactArgs(image.WorkerArgs),
		RunE: func(_ *cobra.Command, args []string) error {
			return rhumb.Wrap("rhumb.snapshot.bench", image.Serve(args, bc.in, bc.Out))
		},
	}
}

// measureImage runs the comparison of an image with its counterparts, prints the tables, and draws the plots where
// a folder is named.
func (bc *imageCommands) measureImage(ctx context.Context, cfg image.Config, plots string, path bool) error {
	const op rhumb.Op = "rhumb.snapshot.bench"
	if _, err := os.Stat(cfg.Worker); err != nil {
		return rhumb.Ef(op, rhumb.NotFound, "%s does not exist; make bench-snapshot builds it", cfg.Worker)
	}
	self, err := os.Executable()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	cfg.Self = []string{self, "snapshot", "bench", "worker"}
	cfg.Progress = func(text string) { bc.Notef("%s", text) }
	report, err := image.Run(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if plots != "" {
		if err := report.Draw(plots); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	doc := imageReport{Report: report}
	if path {
		if doc.Cluster, err = bc.measureVisible(ctx, cfg.Samples); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	if err := bc.Print(doc, func(t table.Writer) { goalTable(t, report) }); err != nil {
		return err
	}
	if c := doc.Cluster; c != nil {
		for _, line := range []struct {
			name string
			q    bench.Quantiles
		}{{"acknowledged", c.Acknowledged}, {"visible on the primary's node", c.Primary}, {"visible on a secondary's node", c.Secondary}} {
			bc.Notef("put on three nodes, %-29s p50 %.0f µs, p99 %.0f µs, max %.0f µs", line.name+":", line.q.P50, line.q.P99, line.q.Max)
		}
	}
	for _, n := range report.Notes {
		bc.Notef("%s", n)
	}
	return nil
}

// imageReport is the document of `rhumb snapshot bench`.
type imageReport struct {
	*image.Report
	Cluster *bench.VisibleReport `json:"cluster,omitempty"`
}

// measureVisible follows puts through a cluster of three nodes to the images of two nodes.
func (bc *imageCommands) measureVisible(ctx context.Context, samples int) (*bench.VisibleReport, error) {
	bc.Notef("following %d puts through a cluster", samples)
	c, stop, err := startBench(ctx, "", []string{"singapore"}, 3)
	if err != nil {
		return nil, err
	}
	defer stop()
	return bench.RunVisible(ctx, c.Addrs(), samples)
}

// goalTable fills the table for people: the goals. -o json has every figure.
func goalTable(t table.Writer, r *image.Report) {
	t.AppendHeader(table.Row{"goal", "", "want", "measured", "least", "most", "reached"})
	for _, g := range r.Goals {
		want, reached := fmt.Sprintf("≤ %.4g %s", g.Most, g.Unit), "no"
		if g.Least > 0 {
			want = fmt.Sprintf("≥ %.4g %s", g.Least, g.Unit)
		}
		if g.Reached {
			reached = "yes"
		}
		t.AppendRow(table.Row{g.Number, g.Name, want, fmt.Sprintf("%.3g", g.Median), fmt.Sprintf("%.3g", g.Min), fmt.Sprintf("%.3g", g.Max), reached})
	}
}
