package benchcmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/bench/sidebyside"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/demo"
)

// sideFlags are the flags of `rhumb bench sidebyside`. Values of 0 are those of the mode.
type sideFlags struct {
	quick bool
	// peers are names of sidebyside.Peers; none means all.
	peers []string
	// binary drives the peers, and jars has those in Java.
	binary, jars string
	// report is the directory for the page and the document, or empty.
	report string
	// The next four replace a value of the mode if they are set.
	callers []int
	rounds  int
	measure time.Duration
	records int
	// nodesPerRegion has a cluster of Rhumb for each number.
	nodesPerRegion []int
}

// sideBySideCommand returns `rhumb bench sidebyside`. Its flags override single values of a mode, which is
// the full measurement or the quick one; the cases themselves are fixed, so that reports of different
// days can be compared.
func (bc *commands) sideBySideCommand() *cobra.Command {
	var f sideFlags
	c := &cobra.Command{
		Use: "sidebyside", Short: "Measure Rhumb, its peers and the limits of the machine in turn",
		Long: `Run the limits of the machine (syncs of the disk, echoes over loopback, reads of memory), Rhumb with one and with three
nodes, and each peer in turn, round by round, under the same callers: puts, gets, a feed, and the workloads A to F of YCSB. Each
peer syncs every write before it answers, except redis-everysec. The result is the median of the ratios of each round.

The peers are etcd, Redis, NATS JetStream, PostgreSQL, Cassandra and Kafka. A peer that is missing on this machine is named with
the command that installs it, and the run goes on. make peers builds the program that drives the peers, make peers-jars fetches
Cassandra and Kafka. All processes listen on loopback, have their data below --dir, and end with the command.

The run takes about 16 minutes and 5 GiB of memory, and wants a machine without other work: it says so if there was some.
--quick only shows that everything runs; its figures mean nothing.`,
		Example: `  make sidebyside ARGS='--quick'
  make sidebyside ARGS='--report out'
  rhumb bench sidebyside --peers etcd-1,redis-always --rounds 9 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bc.measureSideBySide(cmd.Context(), f) },
	}
	fl := c.Flags()
	fl.BoolVar(&f.quick, "quick", false, "run each case once for an instant, with fewer cases")
	fl.StringSliceVar(&f.peers, "peers", nil, "peers to measure (default all): some of "+namesOfPeers())
	fl.StringVar(&f.binary, "peers-binary", besideBinary("peers"), "program that runs and drives the peers")
	fl.StringVar(&f.jars, "jars", besideBinary("jars"), "directory with the jars of Cassandra and Kafka")
	fl.StringVar(&f.report, "report", "", "directory for report.html, a page with charts, and report.json")
	fl.IntSliceVar(&f.callers, "callers", nil, "numbers of callers of single puts and gets (default 1,64,256)")
	fl.IntVar(&f.rounds, "rounds", 0, "number of rounds that count (default 5)")
	fl.DurationVar(&f.measure, "measure", 0, "how long a case is measured (default 1s)")
	fl.IntVar(&f.records, "records", 0, "number of records of the workloads (default 20000)")
	fl.IntSliceVar(&f.nodesPerRegion, "nodes", []int{1, 3}, "sizes of the clusters of Rhumb; peers are compared with those of 1 and 3 nodes")
	flags.Positive(fl, "callers", "rounds", "measure", "records", "nodes")
	flags.AtMost(fl, load.CallersMax, "callers")
	flags.AtMost(fl, demo.NodesPerRegionMax, "nodes")
	return c
}

// namesOfPeers lists the peers for the help of a flag.
func namesOfPeers() string {
	var names []string
	for _, p := range sidebyside.Peers() {
		names = append(names, p.Name)
	}
	return strings.Join(names, ",")
}

// config returns the configuration of the mode with the values of the flags.
func (f *sideFlags) config() sidebyside.Config {
	cfg := sidebyside.Full()
	if f.quick {
		cfg = sidebyside.Quick()
	}
	// A value that was given wins over that of the mode.
	if f.rounds != 0 {
		cfg.Rounds = f.rounds
	}
	if f.measure != 0 {
		cfg.Measure = f.measure
	}
	if f.records != 0 {
		cfg.Records = f.records
	}
	if len(f.callers) > 0 {
		cfg.Callers = f.callers
	}
	cfg.Peers, cfg.Binary, cfg.Jars = f.peers, f.binary, f.jars
	return cfg
}

// measureSideBySide starts the clusters, measures, and writes the report.
func (bc *commands) measureSideBySide(ctx context.Context, f sideFlags) error {
	cfg := f.config()
	// Before clusters are started, which takes seconds.
	if err := cfg.Check(); err != nil {
		return rhumb.Wrap(op, err)
	}
	// A directory that cannot be written is reported before the measurement, not after it.
	if f.report != "" {
		if err := os.MkdirAll(f.report, 0o755); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	place, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	// The user that runs PostgreSQL must be able to reach its directory.
	if place.temporary {
		if err := os.Chmod(place.dir, 0o711); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	cfg.Dir, cfg.Progress = place.dir, bc.progress
	// The clusters of Rhumb run during the whole measurement, as the peers do.
	for _, nodes := range f.nodesPerRegion {
		c, err := bench.StartCluster(ctx, place.binary, filepath.Join(place.dir, fmt.Sprintf("rhumb-%d", nodes)), []string{"singapore"}, nodes)
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		defer c.Stop()
		cfg.Clusters = append(cfg.Clusters, bench.Rhumb{Client: c.ClientConfig(0), PIDs: c.PIDs(), Admins: c.Admins(), Replicas: nodes})
	}
	r, err := sidebyside.Measure(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if f.report != "" {
		if err := writeReport(f.report, r); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	return bc.printSideBySide(r)
}

// writeReport writes the page and the document.
func writeReport(dir string, r *sidebyside.Report) error {
	page, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		return err
	}
	err = r.WriteHTML(page)
	if closed := page.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "report.json"), append(text, '\n'), 0o644)
}

// printSideBySide prints the table, after the peers that took no part.
func (bc *commands) printSideBySide(r *sidebyside.Report) error {
	// Notes go to standard error, so that a document stays whole.
	for _, m := range r.Missing {
		bc.Notef("%v", &m)
	}
	bc.Notef("%s", r.Verdict())
	return bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"case", "target", "ops/s", "[least..most]", "p50 µs", "p99 µs", "p99.9 µs", "server cpu µs/op", "client cpu µs/op", "other cores", "errors", "ops ×", "p50 ×", "cpu ×"})
		for _, row := range r.Rows {
			cells := table.Row{
				row.Case.Title(), row.Target, fmt.Sprintf("%.0f", row.Ops), fmt.Sprintf("[%.0f..%.0f]", row.OpsSpread.Min, row.OpsSpread.Max), row.P50, row.P99, row.P999,
				fmt.Sprintf("%.1f", row.ServerCPU), fmt.Sprintf("%.1f", row.ClientCPU), fmt.Sprintf("%.2f", row.OtherCores), row.Errors,
			}
			// The ratio is that of Rhumb to the peer in this row.
			if x := r.RatioTo(row); x != nil {
				cells = append(cells, x.Ops, x.P50, x.CPU)
			}
			t.AppendRow(cells)
		}
	})
}
