package benchcmd

import (
	"context"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/flags"
)

// replaceSizeMax bounds the table: four nodes on one machine hold it.
const replaceSizeMax = 10 << 30

// replaceCommand returns `rhumb bench replace`.
func (bc *commands) replaceCommand() *cobra.Command {
	size := flags.ByteSize(1 << 30)
	var picture string
	var cfg bench.ReplaceConfig
	c := &cobra.Command{
		Use: "replace", Short: "Kill a node for good under load, replace it, and measure the time until all copies are there again",
		Long: `Run one region of three nodes, fill a table of which each node has a copy, and kill -9 a node that does not lead the metadata, while callers
write. The data of the dead node is removed. A new node joins in its place, and rhumb node replace copies everything to it. The command shows how long it took until
every range had three copies in sync again, the size of the table by the time since the new node joined (MB/s), and the writes before the kill and meanwhile. Nothing
is measured of the time that a person needs: the new node starts when the dead one was declared dead.

The run needs about six times --size on the disk.`,
		Example: `  rhumb bench replace
  rhumb bench replace --size 10GiB --most 30m --picture replace.svg -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if end := filepath.Ext(picture); picture != "" && end != ".png" && end != ".svg" {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--picture %q: want a name that ends with .png or .svg", picture)
			}
			if cfg.Bytes = int64(size); cfg.Bytes > replaceSizeMax || cfg.Bytes <= 0 {
				return rhumb.Ef(op, rhumb.InvalidArgument, "--size %s: want more than 0 and at most 10GiB", size.String())
			}
			return bc.measureReplace(cmd.Context(), cfg, picture)
		},
	}
	fl := c.Flags()
	fl.Var(&size, "size", "size of the table, in bytes of its values, at most 10GiB")
	fl.IntVar(&cfg.HashSlots, "hash-slots", rhumb.HashSlotsDefault, "number of ranges of the table")
	fl.IntVar(&cfg.Writers, "writers", 16, "number of callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 10*time.Millisecond, "time between two writes of a caller")
	fl.DurationVar(&cfg.Calm, "calm", 5*time.Second, "how long to measure writes before the node is killed")
	fl.DurationVar(&cfg.Most, "most", 10*time.Minute, "how long the replacement may take; then the command fails")
	fl.StringVar(&picture, "picture", "", "file for a picture of the run, .png or .svg")
	flags.Positive(fl, "hash-slots", "writers", "calm", "most")
	return c
}

// measureReplace fails if a write failed or is missing, so that a script notices.
func (bc *commands) measureReplace(ctx context.Context, cfg bench.ReplaceConfig, picture string) error {
	p, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer p.removeTemporary()
	// A region alone: the distance to other regions would add to every write, and says nothing about the replacement. Three nodes are the
	// fewest that keep three copies, so that the dead one had a copy of everything.
	//
	// The demo must not start the dead node again.
	c, err := bench.StartCluster(ctx, p.binary, p.dir, []string{"singapore"}, 3, "--no-restart")
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer c.Stop()
	cfg.Cluster, cfg.Binary, cfg.Progress = c, p.binary, bc.progress
	r, err := bench.RunReplace(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	// Before the table, so that an error about the picture is not lost below it.
	if picture != "" {
		if err := r.Draw(picture); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"dead", "new", "ranges", "fenced", "joined", "all copies", "operation done", "received", "MB/s", "longest gap"})
		t.AppendRow(table.Row{
			r.Dead, r.New, r.Ranges, r.Fenced.Round(time.Millisecond), r.Joined.Round(time.Millisecond), r.Whole.Round(time.Millisecond),
			r.Done.Round(time.Millisecond), mib(r.Received), mbps(r.Speed), r.Gap.Round(time.Millisecond),
		})
	}); err != nil {
		return err
	}
	bc.noteWrites(r.Calm, r.Meanwhile, r.Writes, r.Failed, r.Lost)
	return failedWrites(r.Failed, r.Lost)
}
