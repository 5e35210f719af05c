// Package benchcmd holds the commands that measure: `rhumb bench` and `rhumb snapshot bench`.
//
// A command parses its flags, starts its clusters as processes of this program (newBenchPlace,
// startBench), calls one function of package bench, and prints the report: as a table, or as a document
// with -o json. The measurement itself is in package bench and the packages below it, so that tests can
// run it on other clusters. A command fails if its run lost or refused a write that it should not, after
// it has printed the report: a script notices by the exit code and still has the figures.
//
// Data is kept in a temporary directory that is removed at the end, or in --dir, which stays. Progress
// goes to standard error.
package benchcmd

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/bench"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
)

const op rhumb.Op = "rhumb.bench"

// commands are the commands of `rhumb bench`.
type commands struct {
	*output.Printer
	conn *connect.Flags
	dir  string // the value of --dir
}

// Command returns `rhumb bench`. conn holds the connection flags, for commands that measure the
// caller's own cluster.
func Command(p *output.Printer, conn *connect.Flags) *cobra.Command {
	bc := &commands{Printer: p, conn: conn}
	c := &cobra.Command{
		Use: "bench", Short: "Measure clusters on this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(bc.kvCommand(), bc.ycsbCommand(), bc.sideBySideCommand(), bc.restartCommand(), bc.failoverCommand(), bc.handoverCommand(), bc.growthCommand(), bc.transferCommand(), bc.balanceCommand(), bc.replaceCommand(), bc.overloadCommand(), bc.stallCommand(), bc.adversityCommand(), bc.stormCommand(), bc.rotateCommand(), bc.logCommand())
	c.PersistentFlags().StringVar(&bc.dir, "dir", "", "where the clusters keep their data")
	flags.Default(c.PersistentFlags(), "dir", "a directory that is removed at the end")
	return c
}

// listOf returns the values that a flag takes, for a message.
func listOf[T ~string](values []T) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = string(v)
	}
	return strings.Join(words, ", ")
}

// besideBinary returns the path of a program in the folder of this program, which is where make
// puts it.
func besideBinary(name string) string {
	exe, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(exe), name)
}

// benchPlace holds the means to start clusters for a measurement: this program as the node, and a directory
// for the data.
type benchPlace struct {
	binary, dir string
	temporary   bool // the directory was created for this run
}

// newBenchPlace uses the given directory, or creates one that removeTemporary removes.
func newBenchPlace(dir string) (p benchPlace, err error) {
	if p.binary, err = os.Executable(); err != nil {
		return p, err
	}
	if dir != "" {
		p.dir = dir
		return p, os.MkdirAll(dir, 0o700)
	}
	p.temporary = true
	p.dir, err = os.MkdirTemp("", "rhumb-bench-")
	return p, err
}

// removeTemporary never removes a directory that the user named.
func (p benchPlace) removeTemporary() {
	if p.temporary {
		_ = os.RemoveAll(p.dir)
	}
}

// startBench starts a cluster with a number of nodes in each region. stop ends the cluster and
// removes its data.
func startBench(ctx context.Context, dir string, regions []string, nodes int, flags ...string) (c *bench.Cluster, stop func(), err error) {
	p, err := newBenchPlace(dir)
	if err != nil {
		return nil, nil, err
	}
	if c, err = bench.StartCluster(ctx, p.binary, p.dir, regions, nodes, flags...); err != nil {
		p.removeTemporary()
		return nil, nil, err
	}
	return c, func() { c.Stop(); p.removeTemporary() }, nil
}

// startRegion starts three nodes in one region, with settings by the names of flags of `rhumb start`. stop ends them and removes their data.
func (bc *commands) startRegion(ctx context.Context, settings map[string]string) (p benchPlace, c *bench.Cluster, stop func(), err error) {
	if p, err = newBenchPlace(bc.dir); err != nil {
		return p, nil, nil, err
	}
	if c, err = bench.StartClusterWith(ctx, settings, p.binary, p.dir, []string{"singapore"}, 3, "none"); err != nil {
		p.removeTemporary()
		return p, nil, nil, err
	}
	return p, c, func() { c.Stop(); p.removeTemporary() }, nil
}

// progress shows how far a measurement is.
func (bc *commands) progress(text string) { bc.Notef("%s", text) }
