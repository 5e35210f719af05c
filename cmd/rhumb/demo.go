package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/contexts"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/demo"
	"github.com/rhumbdb/rhumb/geo/rtt"
	"github.com/rhumbdb/rhumb/node/publish"
)

// demoCommand returns `rhumb demo`. Its configuration is filled by the flags; demo.Run starts the processes and returns when
// they have ended.
func demoCommand(s *session) *cobra.Command {
	var cfg demo.Config
	var noRestart, noBanner bool
	var memory flags.ByteSize
	c := &cobra.Command{
		Use: "demo", Short: "Run a cluster of several regions on this machine, with a live feed",
		Long: `Run a cluster on this machine: several regions of nodes, each node a process with its own directory, with imitated round
trips between the regions. The demo plays flights between real airports, writes each in the region below it, and shows how
the cluster is doing. Kill a node with kill -9 and watch. Ctrl-C stops everything.

This is a demonstration, not a benchmark.`,
		Example: `  rhumb demo
  rhumb demo --secure
  rhumb demo --regions tokyo,sydney,bern=46.9:7.4 --nodes-per-region 1
  rhumb demo --latency none --load none --json --dir ./my-demo
  rhumb demo --regions singapore --cuts --dir ./my-demo
  echo 'cut_one_way: [[singapore-a, singapore-b]]' >> ./my-demo/latency.yaml   # while it runs`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			binary, err := os.Executable()
			if err != nil {
				return rhumb.Wrap("rhumb.demo", err)
			}
			// The demo starts this same binary as its nodes, so that they never differ in version.
			cfg.Binary, cfg.Program, cfg.Out, cfg.Err = binary, os.Args[0], s.Out, s.Err
			// Every format for programs becomes one JSON line a second, because a demo has no end at which to print a document.
			if s.ForPrograms() {
				cfg.JSON, cfg.Out = true, s.Lines()
			}
			cfg.Terminal = output.IsTerminal(s.Out)
			// The bound is for all nodes together.
			cfg.MemoryBytes = int64(memory)
			cfg.Restart, cfg.Banner = !noRestart, !noBanner
			noteContext(s)
			return demo.Run(cmd.Context(), cfg)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&cfg.Regions, "regions", nil, "regions: well-known names, or NAME=LAT:LON")
	flags.Default(f, "regions", strings.Join(rtt.DefaultRegions(), ","))
	f.IntVar(&cfg.NodesPerRegion, "nodes-per-region", demo.NodesPerRegionDefault, "nodes in each region")
	f.IntVar(&cfg.DirsPerNode, "dirs-per-node", 1, "directories of each node, each with a store of its own")
	f.StringVar(&cfg.Latency, "latency", "real", "round trips between regions: real, none, or a latency file")
	f.BoolVar(&cfg.Cuts, "cuts", false, "name the nodes in the latency file, so that the link between any two can be cut while the demo runs")
	f.StringVar(&cfg.Load, "load", "flights", "what to play: flights, or none")
	f.IntVar(&cfg.Flights, "flights", demo.FlightsDefault, "number of simultaneous flights")
	f.StringVar(&cfg.Dir, "dir", "", "keep the data in this directory and use it again at the next start")
	flags.Default(f, "dir", "a directory that is removed at the end")
	f.Var(&memory, "memory", "maximum memory of all nodes together, such as 4GiB, without images in shared memory")
	flags.Default(f, "memory", "half of the machine's or the control group's")
	f.BoolVar(&cfg.Secure, "secure", false, "run the nodes with TLS and an authority; commands on this machine use the certificate of an operator")
	f.StringVar(&cfg.SnapshotDir, "snapshot-dir", "", "folder for images of published tables")
	flags.Default(f, "snapshot-dir", publish.DirDefault)
	f.BoolVar(&cfg.JSON, "json", false, "print one JSON line when ready, then one per second")
	f.BoolVar(&noRestart, "no-restart", false, "do not restart a node that dies; without this flag it is restarted after 3 s")
	f.BoolVar(&noBanner, "no-banner", false, "omit the note about benchmarks")
	return c
}

// noteContext warns that commands will not find the demo, because a context is
// selected: it wins, so that a demo never receives commands that
// are about another cluster, nor the other way round.
func noteContext(s *session) {
	name := os.Getenv("RHUMB_CONTEXT")
	// The variable wins over the file, as it does for every command.
	if name == "" {
		path, err := contexts.Path()
		if err != nil {
			return
		}
		// A broken file is reported by the commands that need it.
		file, err := contexts.Load(path)
		if err != nil {
			return
		}
		name = file.Current
	}
	if name != "" && name != contexts.Demo {
		s.Notef("rhumb: commands use the context %s; add --context demo to use this demo, or run `rhumb context use demo`", name)
	}
}
