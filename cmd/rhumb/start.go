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
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/geo/rtt"
	"github.com/rhumbdb/rhumb/node"
	"github.com/rhumbdb/rhumb/node/gate"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/storage"
	"github.com/rhumbdb/rhumb/wan"
)

// startFlags are the flags of `rhumb start` whose values node.Config takes in another form.
type startFlags struct {
	// location is LAT,LON, and latencyFile the name of a file.
	location, latencyFile, logLevel string
	// token, clockErrorFile and diskErrorFile are files.
	token, clockErrorFile, diskErrorFile string
	// Sizes in MiB are 0 if the flag is left out.
	cacheMiB, snapshotMiB int64
	overdueMiB            int64
	// The sizes below take a unit, such as 64MiB.
	memory                            flags.ByteSize
	transferRate, verifyRate, logKeep flags.ByteSize
}

// wallClock is the wall clock of the node; nil is time.Now. It is set once, before the node starts (--clock-error-file).
var wallClock func() time.Time

// startCommand returns `rhumb start`. Flags that node.Config takes as they are go straight into it; startFlags holds the
// others.
func startCommand(s *session) *cobra.Command {
	var cfg node.Config
	var f startFlags
	c := &cobra.Command{
		Use:   "start --region NAME --dir DIR [flags]",
		Short: "Run a node until SIGTERM",
		Long: `Run a node. It serves until SIGTERM or Ctrl-C, then moves its primaries to other nodes and exits.

A node that starts on an empty directory either becomes the first node of a new cluster (rhumb init) or joins the cluster
of the nodes that --join names. A node that is restarted on its directory is the same node as before.

Well-known regions have a location; others need --location.

A node speaks TLS with everybody. At its first start it exchanges the token in the file of --token for a certificate, and
renews the certificate from then on. Certificate, key and authorities are in the folder identity of the first directory.
Files of another authority are named by --cert, --key and --ca; changed files are loaded without a restart. A node that other machines use needs
--advertise, and then listens on all interfaces. With --insecure a node has no TLS and no authorisation and accepts loopback
addresses only; a directory that was once served with TLS is not served so again.`,
		Example: `  rhumb start --region frankfurt --dir /var/lib/rhumb --advertise eu-1.example.com --token eu-1.token
  rhumb start --region virginia --dir /var/lib/rhumb --advertise us-1.example.com --token us-1.token --join eu-1.example.com
  rhumb start --region frankfurt --dir /var/lib/rhumb --advertise eu-1.example.com \
      --cert eu-1.crt --key eu-1.key --ca ca.crt
  rhumb start --region frankfurt --dir ./a --insecure
  rhumb start --region bern --location 46.9,7.4 --zone b --dir ./b --insecure \
      --addr 127.0.0.1:7610 --heartbeat-addr 127.0.0.1:7611 --gossip-addr 127.0.0.1:7612 \
      --admin-addr 127.0.0.1:7613 --join 127.0.0.1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNode(cmd.Context(), s, cfg, f) },
	}
	f.register(c.Flags(), &cfg)
	f.registerImage(c.Flags(), &cfg)
	// Zero would mean the default, although the operator asked for none.
	flags.Positive(c.Flags(), "cache-size", "snapshot-budget", "snapshot-leash", "snapshot-overdue")
	return c
}

// register adds the flags of the node itself. Their defaults are those of node.Config.
func (f *startFlags) register(fl *pflag.FlagSet, cfg *node.Config) {
	var defaults node.Config
	defaults.SetDefaults()
	fl.StringSliceVar(&cfg.Dirs, "dir", nil, "data directory; repeat the flag for more, each on a disk of its own")
	// The list is of numbers and not of paths, so that nobody loses a disk by a misspelt path.
	fl.IntSliceVar(&cfg.AcceptLostStores, "accept-lost-store", nil, "number, from 1, of a directory whose disk is lost: the node starts without its data")
	fl.StringVar(&cfg.Region, "region", "", "region of the node")
	fl.StringVar(&f.location, "location", "", "LAT,LON of the node")
	flags.Default(fl, "location", "that of a well-known region")
	fl.StringVar(&cfg.Zone, "zone", "", "failure domain within the region; copies of a range are in different zones")
	flags.Default(fl, "zone", defaults.Zone)
	fl.BoolVar(&cfg.Witness, "witness", false, "the new node votes in the metadata group and holds no data; place it in a region of its own")
	fl.StringSliceVar(&cfg.Join, "join", nil, "host[:port] of other nodes, as in their --addr")
	fl.StringVar(&cfg.Addr, "addr", "", "host:port for clients and nodes")
	flags.Default(fl, "addr", defaults.Addr)
	fl.StringVar(&cfg.HeartbeatAddr, "heartbeat-addr", "", "host:port for heartbeats")
	flags.Default(fl, "heartbeat-addr", defaults.HeartbeatAddr)
	fl.StringVar(&cfg.GossipAddr, "gossip-addr", "", "host:port for gossip")
	flags.Default(fl, "gossip-addr", defaults.GossipAddr)
	fl.StringVar(&cfg.AdminAddr, "admin-addr", "", "host:port for health, metrics and profiles")
	flags.Default(fl, "admin-addr", defaults.AdminAddr)
	fl.StringVar(&cfg.Advertise, "advertise", "", "host that others connect to, or main=HOST:PORT,heartbeat=..., for ports that differ")
	flags.Default(fl, "advertise", "the addresses to listen on")
	fl.StringVar(&cfg.Identity.Cert, "cert", "", "certificate of the node")
	flags.Default(fl, "cert", "identity/node.crt in the first directory")
	fl.StringVar(&cfg.Identity.Key, "key", "", "key of the certificate")
	flags.Default(fl, "key", "identity/node.key in the first directory")
	fl.StringVar(&cfg.Identity.CA, "ca", "", "certificates of the authorities that the node trusts")
	flags.Default(fl, "ca", "identity/ca.crt in the first directory")
	fl.StringVar(&f.token, "token", "", "file with a one-time token, for the first start of a node (rhumb token create)")
	fl.BoolVar(&cfg.Insecure, "insecure", false, "run without TLS, on loopback addresses only")
	fl.StringVar(&f.latencyFile, "latency-file", "", "imitate the round trips between regions in this file")
	fl.Var(&f.memory, "memory", "maximum memory of the node, such as 4GiB, without images in shared memory")
	flags.Default(fl, "memory", "half of the machine's or the control group's")
	fl.Int64Var(&f.cacheMiB, "cache-size", 0, "block cache in MiB")
	flags.Default(fl, "cache-size", "an eighth of the memory")
	f.registerLimits(fl, cfg)
	fl.DurationVar(&cfg.HealAfter, "heal-after", defaults.HealAfter, "how long a damaged copy is kept before it is replaced from another node, if enough copies are intact; negative: never")
	fl.Var(&f.logKeep, "log-keep", "how much log a range keeps for replicas that lag, such as 64MiB; those that lag further copy the range whole")
	flags.Default(fl, "log-keep", "64MiB")
	fl.Var(&f.transferRate, "transfer-rate", "how much the node receives and sends a second, each, to copy ranges whole, such as 64MiB")
	flags.Default(fl, "transfer-rate", "64MiB")
	fl.DurationVar(&cfg.VerifyInterval, "verify-interval", defaults.VerifyInterval, "how often the replicas of each range are compared in the background; negative: never")
	fl.Var(&f.verifyRate, "verify-rate", "how much the node reads a second to compare replicas, such as 16MiB")
	flags.Default(fl, "verify-rate", "16MiB")
	fl.DurationVar(&cfg.DrainTimeout, "drain-timeout", defaults.DrainTimeout, "how long a stop waits for primaries to move away")
	fl.StringVar(&f.clockErrorFile, "clock-error-file", "", "for tests: file with the error of the node's clock, such as offset=1h strobe=200ms rate=1.05, read again when it changes")
	flags.Default(fl, "clock-error-file", "none, the clock is right")
	fl.StringVar(&f.diskErrorFile, "disk-error-file", "", "for tests: file with the share of the disk's reads that fail, such as read-errors=0.5, read again when it changes")
	flags.Default(fl, "disk-error-file", "none, reads fail as the disk does")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// registerLimits adds the flags of what callers can take of the node.
func (f *startFlags) registerLimits(fl *pflag.FlagSet, cfg *node.Config) {
	l := &cfg.Limits
	fl.IntVar(&l.Connections, "max-connections", 0, "maximum connections of clients on each port")
	flags.Default(fl, "max-connections", strconv.Itoa(gate.ConnectionsDefault))
	fl.IntVar(&l.Unauthenticated, "max-unauthenticated", 0, "maximum connections on each port whose caller is not identified yet")
	flags.Default(fl, "max-unauthenticated", strconv.Itoa(gate.EarlyDefault))
	fl.Float64Var(&l.User.Requests, "user-requests", 0, "maximum requests per second of one user")
	fl.Float64Var(&l.User.Bytes, "user-bytes", 0, "maximum bytes per second of requests and answers of one user")
	fl.Float64Var(&l.Connection.Requests, "connection-requests", 0, "maximum requests per second of one connection")
	fl.Float64Var(&l.Connection.Bytes, "connection-bytes", 0, "maximum bytes per second of requests and answers of one connection")
	for _, name := range []string{"user-requests", "user-bytes", "connection-requests", "connection-bytes"} {
		flags.Default(fl, name, "no limit")
	}
}

// registerImage adds the flags of the image of published tables.
func (f *startFlags) registerImage(fl *pflag.FlagSet, cfg *node.Config) {
	fl.StringVar(&cfg.Snapshot.Dir, "snapshot-dir", "", "folder for images of published tables, on a memory file system")
	flags.Default(fl, "snapshot-dir", publish.DirDefault)
	fl.DurationVar(&cfg.Snapshot.Policy.Interval, "snapshot-interval", 0, "minimum time between two versions of the image")
	flags.Default(fl, "snapshot-interval", "none")
	fl.IntVar(&cfg.Snapshot.Policy.Count, "snapshot-count", 0, "make a version when this many log entries wait, before the interval is over")
	fl.BoolVar(&cfg.Snapshot.Policy.OnDemand, "snapshot-on-demand", false, "make versions only for rhumb snapshot publish")
	fl.Int64Var(&f.snapshotMiB, "snapshot-budget", 0, "maximum size of the image, in MiB")
	flags.Default(fl, "snapshot-budget", strconv.Itoa(snapshot.BudgetDefault>>20))
	fl.DurationVar(&cfg.Snapshot.Leash, "snapshot-leash", 0, "how long readers may keep a replaced file of the image before it counts as overdue; at least the leash of the readers")
	flags.Default(fl, "snapshot-leash", snapshot.LeashDefault.String())
	fl.Int64Var(&f.overdueMiB, "snapshot-overdue", 0, "maximum size of overdue files of the image, in MiB, in addition to the budget")
	flags.Default(fl, "snapshot-overdue", "the budget")
	fl.BoolVar(&cfg.Snapshot.HugePages, "snapshot-huge-pages", false, "ask for huge pages; the mount of the folder needs huge=advise or more")
	fl.BoolVar(&cfg.Snapshot.GroupReadable, "snapshot-group-readable", false, "only the owner and the group of the files can read the image; always so with TLS")
	fl.StringVar(&cfg.Snapshot.Group, "snapshot-group", "", "group of the files of the image, whose members can read it")
	flags.Default(fl, "snapshot-group", "that of the process")
}

// runNode runs a node until ctx ends.
func runNode(ctx context.Context, s *session, cfg node.Config, f startFlags) error {
	const op rhumb.Op = "rhumb.start"
	var level slog.Level
	// The level is parsed first, because everything below may log.
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--log-level %q is none of debug, info, warn, error", f.logLevel)
	}
	cfg.Logger = newLogger(s.Err, level)
	if err := setWrongClock(ctx, f.clockErrorFile, cfg.Logger); err != nil {
		return err
	}
	var err error
	if cfg.ReadFaults, err = openBadDisk(ctx, f.diskErrorFile, cfg.Logger); err != nil {
		return err
	}
	cfg.Version, cfg.Wall = describeVersion().Version, wallClock
	cfg.CacheBytes, cfg.MemoryBytes, cfg.TransferRate = f.cacheMiB<<20, int64(f.memory), int64(f.transferRate)
	cfg.VerifyRate = int64(f.verifyRate)
	cfg.LogKeep = int64(f.logKeep)
	cfg.Snapshot.Budget, cfg.Snapshot.OverdueMax = f.snapshotMiB<<20, f.overdueMiB<<20
	// A region without a location is refused before anything is created.
	if cfg.Location, err = locationOf(cfg.Region, f.location); err != nil {
		return err
	}
	if cfg.Snapshot.Dir, err = makeImageFolder(cfg.Snapshot.Dir); err != nil {
		return err
	}
	// After the flags and before Validate, which checks the addresses that are used.
	cfg.SetDefaults()
	if f.latencyFile != "" {
		if cfg.WAN, err = wan.Open(f.latencyFile); err != nil {
			return err
		}
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	// A service manager shows this while the node waits, which may take as long as the authority is away.
	if !cfg.Insecure {
		manager{cfg.Logger}.send("STATUS=looking for the certificate of the node; without one, waiting for the authority")
	}
	keep, err := ensureIdentity(ctx, &cfg, f.token)
	if err != nil {
		return err
	}
	// Before the node allocates anything.
	if err := limitHeap(&cfg); err != nil {
		return err
	}
	n, err := node.Start(cfg)
	if err != nil {
		return err
	}
	defer keep()()
	defer surviveHangups(&cfg)()
	manager{cfg.Logger}.follow(ctx, n.Ready)
	s.Notef("rhumb: stopping; primaries move to other nodes first, a second signal ends the node at once")
	// ctx has ended, so draining needs a context of its own.
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.DrainTimeout)
	defer cancel()
	// The node stops even if primaries remain on it.
	if err := n.Drain(draining); err != nil {
		cfg.Logger.Warn("stopped before the node was drained", "err", err)
	}
	n.Close()
	return nil
}

// limitHeap sets the memory limit of the Go runtime, so that it collects garbage more often when
// little is left. GOMEMLIMIT in the environment takes precedence.
func limitHeap(cfg *node.Config) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	// Heap covers all uses of memory but the block cache and the memtables.
	parts, err := cfg.Memory()
	if err != nil {
		return err
	}
	limit := parts.Heap
	// Without cgo, block cache and memtables are on the Go heap too.
	if !storage.OutsideHeap {
		limit += parts.Stores
	}
	debug.SetMemoryLimit(limit)
	return nil
}

// makeImageFolder creates the folder for images that --snapshot-dir names and returns its absolute
// path, which readers in other working directories can use. A mistake in the flag has to show now:
// a node that cannot write its image later keeps serving and only logs it.
func makeImageFolder(dir string) (string, error) {
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

// newLogger returns a logger that writes text to a terminal and JSON to anything else.
func newLogger(to io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if output.IsTerminal(to) {
		return slog.New(slog.NewTextHandler(to, options))
	}
	return slog.New(slog.NewJSONHandler(to, options))
}

// locationOf parses LAT,LON, or returns the location of a well-known region if the text is empty.
func locationOf(region, text string) (rhumb.Point, error) {
	const op rhumb.Op = "rhumb.start"
	if region == "" {
		return rhumb.Point{}, rhumb.E(op, rhumb.InvalidArgument, "the name of the region is empty; a node gets it with --region NAME")
	}
	if text == "" {
		known, ok := rtt.Lookup(region)
		if !ok {
			return rhumb.Point{}, rhumb.Ef(op, rhumb.InvalidArgument, "region %q is not a well-known one and needs --location LAT,LON", region)
		}
		return known.Location, nil
	}
	v, err := rhumb.ParseField(rhumb.FieldPoint, text)
	if err != nil {
		return rhumb.Point{}, rhumb.Ef(op, rhumb.InvalidArgument, "--location: %s", exit.Describe(err).Message)
	}
	// ParseField has returned a point, so the second result is true.
	p, _ := v.Point()
	return p, nil
}
