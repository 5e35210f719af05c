package benchcmd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// The bounds of `rhumb bench stall`. stallFreshMax follows from the demo, which stops restarting a
// node that dies more than ten times without a quiet minute in between.
const (
	stallNodesMin = 3
	stallNodesMax = 9
	stallFreshMax = 10
)

// stallFlags are the flags of `rhumb bench stall` that bench.StallConfig does not have.
type stallFlags struct {
	kinds         []string
	nodes         []int
	faults, fresh int
	seed          uint64
}

// StallReport is the document of `rhumb bench stall`.
type StallReport struct {
	Cells []*bench.StallCell `json:"cells"`
}

// stallCommand is `rhumb bench stall`.
func (bc *commands) stallCommand() *cobra.Command {
	var cfg bench.StallConfig
	var own stallFlags
	var kinds []string
	for _, k := range bench.FaultKinds() {
		kinds = append(kinds, string(k))
	}
	c := &cobra.Command{
		Use: "stall", Short: "Inject faults into clusters under load and measure how long keys cannot be written",
		Long: `Run clusters of one region, write 64 keys continuously, and inject one fault after the other. Each fault lasts a while and
is healed, and everything is in sync again before the next one. The gap is the longest time that one key was without a
successful write during one fault.

  kill      kill -9 of a node, which is restarted after three seconds
  pause     SIGSTOP of a node, then SIGCONT
  oneway    nothing gets from one node to another; the other direction works
  ring      each node reaches only its two neighbors; with three nodes, one link is cut
  bridge    only one node reaches both halves; with three nodes, one link is cut
  halfopen  connections between two nodes lose what one of them sends and stay open; new ones work

Links are cut between nodes, not between nodes and callers. A false fencing is a new life of a node that was neither killed
nor paused. At the end of each cluster every acknowledged write is read back.

A node that keeps leaving the in-sync sets is held off for up to a minute, so a new cluster is started after a few faults.`,
		Example: `  rhumb bench stall
  rhumb bench stall --nodes 5 --kinds ring,bridge --faults 10
  rhumb bench stall --nodes 3 --kinds pause --hold 20s -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := own.checkBounds(); err != nil {
				return err
			}
			return bc.measureStall(cmd.Context(), cfg, own, bc.dir)
		},
	}
	fl := c.Flags()
	fl.StringSliceVar(&own.kinds, "kinds", kinds, "faults to inject")
	fl.IntSliceVar(&own.nodes, "nodes", []int{3, 5}, "nodes of the region; one cluster runs for each number")
	fl.IntVar(&own.faults, "faults", 20, "how often to inject each kind of fault into each size of cluster")
	fl.IntVar(&own.fresh, "fresh", 5, fmt.Sprintf("number of faults after which a new cluster is started, at most %d", stallFreshMax))
	fl.IntVar(&cfg.Keys, "keys", 64, "number of keys, each with a caller that writes it")
	fl.DurationVar(&cfg.Pause, "pause", 10*time.Millisecond, "time between two writes of a caller")
	fl.DurationVar(&cfg.Hold, "hold", 5*time.Second, "how long a fault lasts")
	fl.Uint64Var(&own.seed, "seed", 1, "seed for the choice of nodes")
	flags.Positive(fl, "faults", "fresh", "keys", "hold", "pause")
	return c
}

// checkBounds returns an error for unknown faults and for numbers out of bounds.
func (f *stallFlags) checkBounds() error {
	for _, name := range f.kinds {
		if !slices.Contains(bench.FaultKinds(), bench.FaultKind(name)) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--kinds %q is none of %s", name, listOf(bench.FaultKinds()))
		}
	}
	for _, n := range f.nodes {
		if n < stallNodesMin || n > stallNodesMax {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--nodes %d: want %d to %d", n, stallNodesMin, stallNodesMax)
		}
	}
	if f.fresh > stallFreshMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--fresh %d: want at most %d", f.fresh, stallFreshMax)
	}
	return nil
}

// measureStall fails if an acknowledged write is missing, so that a script notices.
func (bc *commands) measureStall(ctx context.Context, cfg bench.StallConfig, own stallFlags, dir string) error {
	place, err := newBenchPlace(dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	var finish func()
	cfg.Progress, finish = bc.StepBar(len(own.nodes) * len(own.kinds) * own.faults)
	defer finish()
	cfg.Random = rand.New(rand.NewPCG(own.seed, 0))
	all := &StallReport{}
	failed := all.runClusters(ctx, cfg, own, place.binary, place.dir)
	finish()
	// The results so far are printed after a failure or Ctrl-C too, because each took minutes.
	if len(all.Cells) > 0 {
		if err := bc.Print(all, func(t table.Writer) { stallTable(t, all) }); err != nil {
			return err
		}
	}
	if failed != nil {
		return rhumb.Wrap(op, failed)
	}
	lost := 0
	for _, c := range all.Cells {
		lost += c.Lost
	}
	if lost > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d keys lack their last acknowledged write", lost)
	}
	return nil
}

// runClusters runs all clusters, one after the other. After an error the report holds the results
// so far.
func (r *StallReport) runClusters(ctx context.Context, cfg bench.StallConfig, own stallFlags, binary, dir string) error {
	for _, n := range own.nodes {
		for _, kind := range own.kinds {
			cell := &bench.StallCell{Nodes: n, Kind: bench.FaultKind(kind), Keys: cfg.Keys}
			for cell.Faults < own.faults {
				cfg.Kind, cfg.Faults = cell.Kind, min(own.fresh, own.faults-cell.Faults)
				more, err := stallCluster(ctx, cfg, binary, filepath.Join(dir, fmt.Sprintf("%s-%d-%d", kind, n, cell.Faults)), n)
				if err != nil {
					return err
				}
				if cell.Faults == 0 {
					r.Cells = append(r.Cells, cell)
				}
				cell.Add(more)
			}
		}
	}
	return nil
}

// stallCluster runs the faults of one cluster.
func stallCluster(ctx context.Context, cfg bench.StallConfig, binary, dir string, nodes int) (*bench.StallCell, error) {
	c, err := bench.StartCluster(ctx, binary, dir, []string{"singapore"}, nodes, "--cuts")
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	cfg.Cluster = c
	return bench.RunStall(ctx, cfg)
}

// stallTable fills the table for people.
func stallTable(t table.Writer, r *StallReport) {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	t.AppendHeader(table.Row{"nodes", "fault", "faults", "p50", "p90", "max", "over " + bench.StallGoal.String(), "false fencings", "in sync after", "writes", "errors", "lost"})
	for _, c := range r.Cells {
		t.AppendRow(table.Row{
			c.Nodes, c.Kind, c.Faults, ms(c.P50), ms(c.P90), ms(c.Max), fmt.Sprintf("%d of %d", c.Late, c.Keys*c.Faults),
			c.FalseFencings, ms(c.Whole), c.Writes, c.Errors, c.Lost,
		})
	}
}
