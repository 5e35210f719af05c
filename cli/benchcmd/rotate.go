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

// rotateCommand is `rhumb bench rotate`.
func (bc *commands) rotateCommand() *cobra.Command {
	var cfg bench.RotateConfig
	var regions []string
	var nodes int
	c := &cobra.Command{
		Use: "rotate", Short: "Replace all keys and certificates under load, and count failed writes",
		Long: `Run a secure cluster of three regions of three nodes and hold a load of writes by a user with a password. Replace the key of
the authority, the certificates of all nodes and the key of gossip, retire the old key, and do it again. No process is
restarted. The command fails if a write failed, an acknowledged write is missing, or a node began a new life.`,
		Example: `  rhumb bench rotate
  rhumb bench rotate --regions singapore --rounds 5 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bc.measureRotate(cmd.Context(), cfg, regions, nodes)
		},
	}
	fl := c.Flags()
	fl.IntVar(&cfg.Rounds, "rounds", 2, "how often to replace everything")
	fl.IntVar(&cfg.Writers, "writers", 64, "number of callers that write")
	fl.DurationVar(&cfg.Pause, "pause", 5*time.Millisecond, "time between two writes of a caller")
	fl.StringSliceVar(&regions, "regions", []string{"singapore", "frankfurt", "virginia"}, "regions of the cluster, as for demo --regions")
	fl.IntVar(&nodes, "nodes", 3, "nodes per region")
	flags.Positive(fl, "rounds", "writers", "pause", "nodes")
	return c
}

// measureRotate fails if the rotation was not harmless, so that a script notices.
func (bc *commands) measureRotate(ctx context.Context, cfg bench.RotateConfig, regions []string, nodes int) error {
	place, err := newBenchPlace(bc.dir)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer place.removeTemporary()
	cfg.Binary = place.binary
	if cfg.Cluster, err = bench.StartCluster(ctx, place.binary, place.dir, regions, nodes, "--secure"); err != nil {
		return rhumb.Wrap(op, err)
	}
	defer cfg.Cluster.Stop()
	cfg.Progress = bc.progress
	r, err := bench.RunRotate(ctx, cfg)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	ms := func(d time.Duration) string { return fmt.Sprint(d.Round(time.Millisecond)) }
	if err := bc.Print(r, func(t table.Writer) {
		t.AppendHeader(table.Row{"round", "renewed", "all renewed after", "old key retired after", "gossip key after"})
		for i, x := range r.Rounds {
			t.AppendRow(table.Row{i + 1, x.Renewals, ms(x.Renewed), ms(x.Retired), ms(x.Gossip)})
		}
	}); err != nil {
		return err
	}
	bc.Notef("%d writes acknowledged, %d failed, %d lost; longest gap of a caller %s; %d new lives", r.Writes, r.Failed, r.Lost, ms(r.Gap), r.NewLives)
	if r.Failed+int64(r.Lost)+int64(r.NewLives) > 0 {
		return rhumb.Ef(op, rhumb.Internal, "%d writes failed, %d acknowledged writes are missing, %d lives are new", r.Failed, r.Lost, r.NewLives)
	}
	return nil
}
