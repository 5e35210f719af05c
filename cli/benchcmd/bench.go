// Package benchcmd holds the commands that measure: `rhumb bench` and `rhumb snapshot bench`.
package benchcmd

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
)

const op rhumb.Op = "rhumb.bench"

// commands are the commands of `rhumb bench`.
type commands struct {
	*output.Printer
	dir string // the value of --dir
}

// Command returns `rhumb bench`.
func Command(p *output.Printer) *cobra.Command {
	bc := &commands{Printer: p}
	c := &cobra.Command{
		Use: "bench", Short: "Measure clusters on this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(bc.kvCommand(), bc.failoverCommand(), bc.overloadCommand(), bc.stallCommand())
	c.PersistentFlags().StringVar(&bc.dir, "dir", "", "where the clusters keep their data")
	flags.Default(c.PersistentFlags(), "dir", "a directory that is removed at the end")
	return c
}

// besideBinary gives the path of a file that lies beside this program.
func besideBinary(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(exe), name)
}

// benchPlace is where a measurement runs its clusters: this program, and a directory.
type benchPlace struct {
	binary, dir string
	own         bool // the directory was made for this run
}

// newBenchPlace uses the given directory, or makes one that remove removes.
func newBenchPlace(dir string) (p benchPlace, err error) {
	if p.binary, err = os.Executable(); err != nil {
		return p, err
	}
	if dir != "" {
		p.dir = dir
		return p, os.MkdirAll(dir, 0o700)
	}
	p.own = true
	p.dir, err = os.MkdirTemp("", "rhumb-bench-")
	return p, err
}

func (p benchPlace) remove() {
	if p.own {
		_ = os.RemoveAll(p.dir)
	}
}

// startBench starts a cluster for a measurement, with a number of nodes in each region. stop ends it and removes what it kept.
func startBench(ctx context.Context, dir string, regions []string, nodes int, flags ...string) (c *bench.Cluster, stop func(), err error) {
	p, err := newBenchPlace(dir)
	if err != nil {
		return nil, nil, err
	}
	if c, err = bench.StartCluster(ctx, p.binary, p.dir, regions, nodes, flags...); err != nil {
		p.remove()
		return nil, nil, err
	}
	return c, func() { c.Stop(); p.remove() }, nil
}
