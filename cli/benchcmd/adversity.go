package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/bench/disk"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// adversityRegions are the regions of `rhumb bench adversity`.
var adversityRegions = []string{"singapore", "frankfurt", "virginia"}

// The bounds of `rhumb bench adversity`. The rate after a fault is taken from
// its sixth second on, and a disk is not frozen for longer than a minute.
const (
	adversityHoldLeast = 8 * time.Second
	adversityHoldMost  = time.Minute
)

// adversityCommand is `rhumb bench adversity`. It fails if a goal was missed, so that a script notices.
func (bc *commands) adversityCommand() *cobra.Command {
	var cfg bench.AdversityConfig
	var picture string
	var seed uint64
	c := &cobra.Command{
		Use: "adversity", Short: "Hold a load while nodes, disks, links and a region fail, and judge what callers see",
		Long: `Run three regions of three nodes with imitated round trips, hold a constant rate of reads and writes, and let the cluster meet one
adversity after the other:

  baseline     nothing happens
  maintenance  a node of each region drains and restarts, one after the other; then copies of ranges move
  slow node    a node that is primary of ranges runs for a tenth of the time
  disk stall   the disk of a node answers nothing (needs root and mkfs.ext4; left out without)
  partition    a node loses all links to other nodes
  node loss    kill -9 of a node that is primary of ranges
  region loss  kill -9 of all nodes of the region of the metadata leader
  healing      the lost region returns

Two tables are called from all regions: the copies of one are in one region, and the other survives the loss of a region. The gap is the
longest time without an acknowledged write to a range, for the ranges that a phase struck. Rates and failed calls leave out keys whose
copies all were in the lost region. At the end every key is read back.

The second table has the goals of the project, and whether the run met them. The command fails if it missed one.`,
		Example: `  rhumb bench adversity --picture adversity.png
  rhumb bench adversity --hold 30s --keys 32 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Hold < adversityHoldLeast || cfg.Hold > adversityHoldMost {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--hold %v: want %v to %v", cfg.Hold, adversityHoldLeast, adversityHoldMost)
			}
			if end := filepath.Ext(picture); picture != "" && end != ".png" && end != ".svg" {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--picture %q: want a name that ends with .png or .svg", picture)
			}
			cfg.Random = rand.New(rand.NewPCG(seed, 0))
			return bc.measureAdversity(cmd.Context(), cfg, picture)
		},
	}
	fl := c.Flags()
	fl.DurationVar(&cfg.Hold, "hold", 15*time.Second, fmt.Sprintf("how long each phase lasts, %v to %v", adversityHoldLeast, adversityHoldMost))
	fl.IntVar(&cfg.Keys, "keys", 12, "callers of each table in each region, each with a key of its own")
	fl.DurationVar(&cfg.Interval, "interval", 100*time.Millisecond, "time between two calls of a caller, and five times that in the table that survives the loss of a region")
	fl.StringVar(&picture, "picture", "", "file for a picture of the run, .png or .svg")
	flags.Default(fl, "picture", "none")
	fl.Uint64Var(&seed, "seed", 1, "seed for the moments of the calls")
	flags.Positive(fl, "keys", "interval")
	return c
}

// measureAdversity fails if a goal was missed, and names each of them.
func (bc *commands) measureAdversity(ctx context.Context, cfg bench.AdversityConfig, picture string) (err error) {
	place, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	// A folder below the given one: the file of the disk must not be among the
	// folders of the nodes.
	dir := filepath.Join(place.dir, "cluster")
	// The disk is there before its node, which then finds an empty directory,
	// as on a new machine.
	if disk.Missing() == "" {
		at := bench.StalledNode(dir, adversityRegions[0])
		if err := os.MkdirAll(at, 0o700); err != nil {
			return rhumb.Wrap(op, err)
		}
		d, err := disk.Mount(ctx, filepath.Join(place.dir, "disk"), at)
		// Also after an error: the file may be there, and mounted. Not of ctx,
		// which an interrupt has ended.
		defer func() { _ = d.Remove(context.WithoutCancel(ctx)) }()
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		cfg.Disk = &d
	}
	if cfg.Cluster, err = bench.StartClusterAt(ctx, place.binary, dir, adversityRegions, 3, "real", "--cuts", "--no-restart"); err != nil {
		return rhumb.Wrap(op, err)
	}
	defer cfg.Cluster.Stop()
	cfg.Progress = bc.progress
	r, failed := bench.RunAdversity(ctx, cfg)
	// The phases so far are printed after a failure or Ctrl-C too, because each
	// took long.
	if r == nil || len(r.Phases) == 0 {
		return rhumb.Wrap(op, failed)
	}
	// The picture is drawn before the tables are printed, so that an error
	// about it is not lost between them.
	if picture != "" {
		if err := r.Draw(picture); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	return rhumb.Wrap(op, errors.Join(failed, bc.printAdversity(r, failed == nil)))
}

// printAdversity prints a report. If the measurement is complete, it returns an
// error that names the goals that were missed.
func (bc *commands) printAdversity(r *bench.AdversityReport, complete bool) error {
	var err error
	if bc.ForPrograms() {
		err = bc.PrintDocument(r)
	} else {
		err = bc.PrintSections(func(t table.Writer) { adversityTable(t, r) }, func(t table.Writer) { adversityGoals(t, r) })
	}
	if err != nil {
		return err
	}
	bc.Notef("%.0f calls a second offered; load average %.1f at the start and %.1f at the end", r.Offered, r.LoadAverage[0], r.LoadAverage[1])
	if r.Skipped != "" {
		bc.Notef("left out: %s", r.Skipped)
	}
	// A goal is also missed if it has no samples, as those of phases that were not reached.
	if !complete {
		return nil
	}
	// The message names each missed goal with its figure: a script that only
	// sees the exit code and the message must know the missed goals.
	var missed []string
	for _, g := range r.Missed() {
		missed = append(missed, g.String())
	}
	if len(missed) > 0 {
		return rhumb.Ef(op, rhumb.Other, "%d of %d goals were missed: %s", len(missed), len(r.Goals), strings.Join(missed, "; "))
	}
	return nil
}

// adversityTable fills the table of phases.
func adversityTable(t table.Writer, r *bench.AdversityReport) {
	ms := func(us float64) string { return fmt.Sprintf("%.1f", us/1e3) }
	t.AppendHeader(table.Row{"phase", "struck", "seconds", "calls/s", "after 5 s", "share", "one region: p50, p99, p99.9 ms", "several: p50, p99 ms", "failed writes, reads", "gap", "in sync after"})
	// A row is wide, because a person compares phases by their columns.
	for _, p := range r.Phases {
		t.AppendRow(table.Row{
			p.Name, p.What, fmt.Sprintf("%.1f", (p.Healed - p.From).Seconds()), fmt.Sprintf("%.0f", p.Goodput), fmt.Sprintf("%.0f", p.GoodputAfter),
			fmt.Sprintf("%.1f %%", 100*p.Share), ms(p.Near.P50) + ", " + ms(p.Near.P99) + ", " + ms(p.NearP999), ms(p.Wide.P50) + ", " + ms(p.Wide.P99),
			fmt.Sprintf("%d, %d", p.FailedWrites, p.FailedReads), p.Gap.Round(time.Millisecond), (p.To - p.Healed).Round(10 * time.Millisecond),
		})
	}
}

// adversityGoals fills the table of goals.
func adversityGoals(t table.Writer, r *bench.AdversityReport) {
	t.AppendHeader(table.Row{"goal", "phase", "figure", "seen", "limit", "met"})
	for _, g := range r.Goals {
		met := "yes"
		if !g.Met {
			met = "NO"
		}
		t.AppendRow(table.Row{g.Goal, g.Phase, g.What, g.Figure(), strings.TrimSpace(fmt.Sprintf("%.3g %s", g.Limit, g.Unit)), met})
	}
}
