package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/geo/rtt"
	"github.com/rhumbdb/rhumb/node"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/wan"
)

// startFlags are the flags of `start` that node.Config does not take as they are.
type startFlags struct {
	location, latencyFile, logLevel string
	cacheMiB, snapshotMiB           int64
	overdueMiB                      int64
	memory                          flags.ByteSize
}

// wallClock is what a node takes for the time of day; nil is time.Now. Tests put the clocks of single processes wrong.
var wallClock func() time.Time

func startCommand(s *session) *cobra.Command {
	var cfg node.Config
	var f startFlags
	c := &cobra.Command{
		Use:   "start --region NAME --dir DIR --insecure [flags]",
		Short: "Run a node until SIGTERM",
		Long: `Run a node. It serves until SIGTERM or Ctrl-C, then gives its primaries to other nodes, and ends.

A node that starts on an empty directory waits to be made the first of a cluster (rhumb init) or joins the
cluster of the nodes that --join names. A node that starts again on its directory is the node it was.

Well-known region names bring their location; others need --location. TLS does not exist yet: --insecure is
required, and then all addresses must be loopback addresses.`,
		Example: `  rhumb start --region frankfurt --dir /var/lib/rhumb --insecure
  rhumb start --region bern --location 46.9,7.4 --zone b --dir ./b --insecure \
      --addr 127.0.0.1:7610 --heartbeat-addr 127.0.0.1:7611 --gossip-addr 127.0.0.1:7612 \
      --admin-addr 127.0.0.1:7613 --join 127.0.0.1:7602`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), s, cfg, f) },
	}
	var defaults node.Config
	defaults.SetDefaults()
	fl := c.Flags()
	fl.StringSliceVar(&cfg.Dirs, "dir", nil, "data directory; several, on disks of their own, share the load")
	fl.IntSliceVar(&cfg.AcceptLostStores, "accept-lost-store", nil, "number, from 1, of a directory whose disk is lost: the node goes on without what it held")
	fl.StringVar(&cfg.Region, "region", "", "name of the node's region")
	fl.StringVar(&f.location, "location", "", "LAT,LON of the node")
	flags.Default(fl, "location", "that of a well-known region")
	fl.StringVar(&cfg.Zone, "zone", "", "failure domain within the region; copies are kept in different zones")
	flags.Default(fl, "zone", defaults.Zone)
	fl.StringSliceVar(&cfg.Join, "join", nil, "gossip addresses of other nodes")
	fl.StringVar(&cfg.Addr, "addr", "", "host:port for clients and nodes")
	flags.Default(fl, "addr", defaults.Addr)
	fl.StringVar(&cfg.HeartbeatAddr, "heartbeat-addr", "", "host:port for heartbeats")
	flags.Default(fl, "heartbeat-addr", defaults.HeartbeatAddr)
	fl.StringVar(&cfg.GossipAddr, "gossip-addr", "", "host:port for gossip")
	flags.Default(fl, "gossip-addr", defaults.GossipAddr)
	fl.StringVar(&cfg.AdminAddr, "admin-addr", "", "host:port for health, metrics and profiles")
	flags.Default(fl, "admin-addr", defaults.AdminAddr)
	fl.BoolVar(&cfg.Insecure, "insecure", false, "run without TLS, on loopback addresses only")
	fl.StringVar(&f.latencyFile, "latency-file", "", "imitate the distances between regions that this file gives")
	fl.Var(&f.memory, "memory", "most memory that the node may take, like 4GiB, without images in shared memory")
	flags.Default(fl, "memory", "half of the machine's or the control group's")
	fl.Int64Var(&f.cacheMiB, "cache-size", 0, "block cache in MiB")
	flags.Default(fl, "cache-size", "an eighth of the memory")
	fl.DurationVar(&cfg.DrainTimeout, "drain-timeout", defaults.DrainTimeout, "how long a stop waits for primaries to move away")
	fl.StringVar(&cfg.Snapshot.Dir, "snapshot-dir", "", "folder for images of published tables, on a memory file system")
	flags.Default(fl, "snapshot-dir", publish.DirDefault)
	fl.DurationVar(&cfg.Snapshot.Policy.Interval, "snapshot-interval", 0, "least time between two versions of the image")
	flags.Default(fl, "snapshot-interval", "none")
	fl.IntVar(&cfg.Snapshot.Policy.Count, "snapshot-count", 0, "make a version once so many log entries wait, whatever the interval")
	fl.BoolVar(&cfg.Snapshot.Policy.OnDemand, "snapshot-on-demand", false, "make versions only when rhumb snapshot publish asks")
	fl.Int64Var(&f.snapshotMiB, "snapshot-budget", 0, "most memory that the image may take, in MiB")
	flags.Default(fl, "snapshot-budget", strconv.Itoa(snapshot.BudgetDefault>>20))
	fl.DurationVar(&cfg.Snapshot.Leash, "snapshot-leash", 0, "how long readers may keep a replaced file of the image until it counts as overdue; not less than the readers' own leash")
	flags.Default(fl, "snapshot-leash", snapshot.LeashDefault.String())
	fl.Int64Var(&f.overdueMiB, "snapshot-overdue", 0, "most memory that overdue files of the image may take, in MiB, beside the budget")
	flags.Default(fl, "snapshot-overdue", "as the budget")
	fl.BoolVar(&cfg.Snapshot.HugePages, "snapshot-huge-pages", false, "ask for huge pages; the folder's mount needs huge=advise or more")
	fl.BoolVar(&cfg.Snapshot.GroupReadable, "snapshot-group-readable", false, "let only the owner and the group of the files read the image")
	flags.Positive(fl, "cache-size", "snapshot-budget", "snapshot-leash", "snapshot-overdue")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	return c
}

// runNode runs a node until ctx ends.
func runNode(ctx context.Context, s *session, cfg node.Config, f startFlags) error {
	const op rhumb.Op = "rhumb.start"
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--log-level %q is none of debug, info, warn, error", f.logLevel)
	}
	cfg.Logger = newLogger(s.Err, level)
	cfg.Version, cfg.Wall = describeVersion().Version, wallClock
	cfg.CacheBytes, cfg.MemoryBytes = f.cacheMiB<<20, int64(f.memory)
	cfg.Snapshot.Budget, cfg.Snapshot.OverdueMax = f.snapshotMiB<<20, f.overdueMiB<<20
	var err error
	if cfg.Location, err = locationOf(cfg.Region, f.location); err != nil {
		return err
	}
	if cfg.Snapshot.Dir, err = imageFolder(cfg.Snapshot.Dir); err != nil {
		return err
	}
	cfg.SetDefaults()
	if f.latencyFile != "" {
		if cfg.WAN, err = wan.Open(f.latencyFile); err != nil {
			return err
		}
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := limitHeap(&cfg); err != nil {
		return err
	}
	n, err := node.Start(cfg)
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Notef("rhumb: stopping: primaries move to other nodes first; a second signal ends at once")
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.DrainTimeout)
	defer cancel()
	if err := n.Drain(draining); err != nil {
		cfg.Logger.Warn("stopped without having drained", "err", err)
	}
	n.Close()
	return nil
}

// limitHeap tells the Go runtime how much memory it may take, so that it collects garbage sooner when there is little left.
// GOMEMLIMIT in the environment wins.
func limitHeap(cfg *node.Config) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	parts, err := cfg.Memory()
	if err != nil {
		return err
	}
	limit := parts.Heap
	if !storage.OutsideHeap {
		limit += parts.Stores
	}
	debug.SetMemoryLimit(limit)
	return nil
}

// imageFolder makes sure that a folder for images that somebody asks for can be had, before the first table is published: a node
// without its image serves all else. The path is absolute, so that readers find it from wherever they stand.
func imageFolder(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return "", rhumb.Ef("rhumb.start", rhumb.InvalidArgument, "--snapshot-dir: %v", err)
	}
	return dir, nil
}

// newLogger writes events as text to a terminal, else as JSON.
func newLogger(to io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if output.IsTerminal(to) {
		return slog.New(slog.NewTextHandler(to, options))
	}
	return slog.New(slog.NewJSONHandler(to, options))
}

// locationOf reads LAT,LON, or takes the location of a well-known region.
func locationOf(region, text string) (rhumb.Point, error) {
	const op rhumb.Op = "rhumb.start"
	if region == "" {
		return rhumb.Point{}, rhumb.E(op, rhumb.InvalidArgument, "say in which region the node stands: --region NAME")
	}
	if text == "" {
		known, ok := rtt.Lookup(region)
		if !ok {
			return rhumb.Point{}, rhumb.Ef(op, rhumb.InvalidArgument, "region %q is not well known, so it needs --location LAT,LON", region)
		}
		return known.Location, nil
	}
	v, err := rhumb.ParseField(rhumb.FieldPoint, text)
	if err != nil {
		return rhumb.Point{}, rhumb.Ef(op, rhumb.InvalidArgument, "--location: %s", exit.Describe(err).Message)
	}
	p, _ := v.Point()
	return p, nil
}
