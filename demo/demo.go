package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// NodesPerRegionDefault is the default of Config.NodesPerRegion.
const NodesPerRegionDefault = 3

// DirsPerNodeMax bounds the directories of a node of a demo, which share one disk.
const DirsPerNodeMax = 8

// Config configures a demo.
type Config struct {
	// Binary is the program whose start command runs a node.
	Binary string
	// Regions are names of well-known regions, or NAME=LAT:LON. Default: rtt.DefaultRegions.
	Regions []string
	// NodesPerRegion is 1 to NodesPerRegionMax. Default NodesPerRegionDefault.
	NodesPerRegion int
	// DirsPerNode is the number of directories of each node, 1 to DirsPerNodeMax. Default 1.
	DirsPerNode int
	// Latency is "real" for published round trips, "none", or a latency file. Default "real".
	Latency string
	// Cuts names the nodes in the latency file, so that links between them can be cut while the
	// demo runs.
	Cuts bool
	// Load is "flights" or "none". Default "flights".
	Load string
	// Flights is the number of flights in the air at the same time, up to FlightsMax. Default
	// FlightsDefault.
	Flights int
	// Dir holds the data. A demo with the directory of an earlier demo continues that demo.
	// Default: a directory that is removed at the end.
	Dir string
	// SnapshotDir is the folder of the nodes' images. Default: publish.DirDefault, or a folder in
	// Dir if the machine has no file system in memory there.
	SnapshotDir string
	// MemoryBytes is the memory of all nodes together, without their images. Default: half of the
	// memory of the machine.
	MemoryBytes int64
	// Secure runs the nodes with TLS and an authority of their own.
	Secure bool
	// Restart restarts nodes that die.
	Restart bool
	// JSON prints JSON lines instead of tables. Terminal redraws the table in place. Banner prints
	// that this is not a benchmark.
	JSON, Terminal, Banner bool
	// Program is the name of the program in hints.
	Program string
	// Out receives the figures, Err all other output.
	Out, Err io.Writer
}

// opRun is the operation of errors that concern the whole demo.
const opRun rhumb.Op = "demo.Run"

// validate sets defaults and reports all faults of the configuration in one error.
func (c *Config) validate() error {
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	if c.NodesPerRegion == 0 {
		c.NodesPerRegion = NodesPerRegionDefault
	}
	if c.DirsPerNode == 0 {
		c.DirsPerNode = 1
	}
	if c.Flights == 0 {
		c.Flights = FlightsDefault
	}
	fault(c.Binary == "", "no binary to run nodes with")
	fault(c.Load != "" && c.Load != "flights" && c.Load != "none", "--load %q is neither flights nor none", c.Load)
	fault(c.Flights < 1 || c.Flights > FlightsMax, "--flights %d, want 1 to %d", c.Flights, FlightsMax)
	fault(c.NodesPerRegion < 1 || c.NodesPerRegion > NodesPerRegionMax, "--nodes-per-region %d, want 1 to %d", c.NodesPerRegion, NodesPerRegionMax)
	fault(c.DirsPerNode < 1 || c.DirsPerNode > DirsPerNodeMax, "--dirs-per-node %d, want 1 to %d", c.DirsPerNode, DirsPerNodeMax)
	if len(faults) > 0 {
		return rhumb.E(opRun, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Run runs a demo until ctx ends, and then stops everything that it started.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.validate(); err != nil {
		return err
	}
	regions, err := parseRegions(cfg.Regions)
	if err != nil {
		return err
	}
	dir, removeDir, err := demoDir(cfg.Dir)
	if err != nil {
		return err
	}
	defer removeDir()
	layout, err := newLayout(dir, regions, cfg.NodesPerRegion, cfg.Secure)
	if err != nil {
		return err
	}
	if each := cfg.MemoryBytes / int64(len(layout.Nodes)); cfg.MemoryBytes != 0 && each < memory.Least {
		return rhumb.Ef(opRun, rhumb.InvalidArgument, "--memory: each of %d nodes would have %d MiB; a node needs at least %d MiB", len(layout.Nodes), each>>20, memory.Least>>20)
	}
	if cfg.SnapshotDir != "" {
		if layout.SnapshotDir, err = filepath.Abs(cfg.SnapshotDir); err != nil {
			return err
		}
	}
	d := &run{cfg: cfg, layout: layout, screen: screen{out: cfg.Out, redraw: cfg.Terminal}}
	if err := d.prepareFiles(); err != nil {
		return err
	}
	defer d.closeSecurity()
	if err := d.openSecurity(); err != nil {
		return err
	}
	d.children = newChildren(cfg.Binary, cfg.Restart, d.note)
	defer d.stop()
	if err := d.bootCluster(ctx); err != nil {
		// Ctrl-C during the start is a normal end.
		if ctx.Err() != nil {
			return nil
		}
		// The reason of a failed start is usually in the log of a node that died.
		d.children.writeLogEnds(cfg.Err)
		return err
	}
	defer d.closeClients()
	if err := d.announceReady(); err != nil {
		return err
	}
	return d.playFeed(ctx)
}

// demoDir returns the directory of a demo and a function for its end. Only a temporary directory is
// removed.
func demoDir(dir string) (abs string, remove func(), err error) {
	if dir == "" {
		dir, err = os.MkdirTemp("", "rhumb-demo-")
		return dir, func() { _ = os.RemoveAll(dir) }, rhumb.Wrap(opRun, err)
	}
	if abs, err = filepath.Abs(dir); err != nil {
		return "", nil, rhumb.Wrap(opRun, err)
	}
	return abs, func() {}, rhumb.Wrap(opRun, os.MkdirAll(abs, 0o700))
}

// run is one demo.
type run struct {
	cfg      Config
	layout   *Layout
	children *children
	stations []*station // one for each region
	security *security  // nil without TLS
	screen   screen
}

// note prints a message for the user that is not part of the figures.
func (d *run) note(format string, args ...any) {
	d.screen.forget()
	fmt.Fprintf(d.cfg.Err, format, args...)
}

// prepareFiles writes the files that the nodes read.
func (d *run) prepareFiles() error {
	file, err := d.layout.latencyFor(d.cfg.Latency, d.cfg.Cuts)
	if err != nil {
		return err
	}
	if err := file.Save(d.layout.LatencyFile); err != nil {
		return rhumb.Wrap(opRun, err)
	}
	return d.layout.Save(filepath.Join(d.layout.Dir, layoutName))
}

// startArgs returns the arguments of the command that starts a node.
func (d *run) startArgs(n *Node) []string {
	region := d.layout.findRegion(n.Region)
	args := []string{
		"start", "--region", n.Region, "--location", region.location.String(), "--zone", n.Zone,
		"--dir", listItem(n.Dir), "--addr", n.Addr, "--heartbeat-addr", n.HeartbeatAddr, "--gossip-addr", n.GossipAddr,
		"--admin-addr", n.AdminAddr, "--latency-file", d.layout.LatencyFile, "--log-level", "warn",
		"--snapshot-dir", d.layout.SnapshotDir,
		"--drain-timeout", nodeDrainTimeout.String(), "--memory", fmt.Sprintf("%dB", d.nodeMemory()),
	}
	for i := 1; i < d.cfg.DirsPerNode; i++ {
		args = append(args, "--dir", listItem(fmt.Sprintf("%s-dir%d", n.Dir, i+1)))
	}
	args = append(args, d.securityArgs(n)...)
	// The founder of a secure cluster joins nobody: it would wait for the
	// others, which wait for it.
	if d.security != nil && n == &d.layout.Nodes[0] {
		return args
	}
	for i := range d.layout.Nodes {
		// The first node of each region suffices: gossip finds the others.
		other := &d.layout.Nodes[i]
		if i%d.cfg.NodesPerRegion == 0 && other != n {
			args = append(args, "--join", other.Addr)
		}
	}
	return args
}

// listItem quotes a value for a flag that takes a list, whose items are separated by commas and
// quoted as in CSV.
func listItem(s string) string {
	if !strings.ContainsAny(s, `,"`) {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// nodeMemory returns the memory of each node. All nodes share one machine.
func (d *run) nodeMemory() int64 {
	nodes := len(d.layout.Nodes)
	if d.cfg.MemoryBytes == 0 {
		return memory.Default(nodes)
	}
	return d.cfg.MemoryBytes / int64(nodes)
}

// nodeDrainTimeout is short because all nodes of a demo stop at the same time and none can take
// over from another.
const nodeDrainTimeout = time.Second

// findRegion returns a region by name.
func (l *Layout) findRegion(name string) Region {
	for _, r := range l.Regions {
		if r.Name == name {
			return r
		}
	}
	panic("demo: a node is in an unknown region")
}

// announceReady records that the demo is ready and prints how to use it.
func (d *run) announceReady() error {
	d.layout.Ready = true
	if err := d.layout.Save(filepath.Join(d.layout.Dir, layoutName)); err != nil {
		return err
	}
	// From here on, other commands find the demo.
	if err := d.layout.Save(ContextPath()); err != nil {
		return err
	}
	if d.cfg.JSON {
		return d.printJSON(d.layout)
	}
	d.note("%s", d.welcomeText())
	return nil
}

// printJSON prints one JSON line.
func (d *run) printJSON(doc any) error {
	return rhumb.Wrap(opRun, json.NewEncoder(d.cfg.Out).Encode(doc))
}

// welcomeText returns the text that a user reads when the demo is ready.
func (d *run) welcomeText() string {
	var b strings.Builder
	l := d.layout
	if d.cfg.Banner {
		b.WriteString("This is a demonstration and not a benchmark: all nodes share this machine.\n\n")
	}
	fmt.Fprintf(&b, "cluster %s: %d nodes in %d regions, data in %s\n", l.ClusterID, len(l.Nodes), len(l.Regions), l.Dir)
	_, scheme := d.httpClient()
	if id := l.Identity; id != nil {
		fmt.Fprintf(&b, "TLS on all ports; the authority is in %s, and commands on this machine use %s\n", filepath.Join(l.Dir, "authority"), id.Cert)
	}
	for _, n := range l.Nodes {
		fmt.Fprintf(&b, "  %-4s %-12s %s  pid %-7d admin %s://%s/metrics\n", n.ID, n.Region, n.Addr, n.PID, scheme, n.AdminAddr)
	}
	last := l.Regions[len(l.Regions)-1].Name
	fmt.Fprintf(&b, `
Try in another terminal:
  %[1]s status
  %[1]s scan flights --limit 5
  %[1]s put flights HELLO1 ident=HELLO1 location=47.4,8.5
  %[1]s get flights HELLO1 --from %[2]s
  %[1]s snapshot ls                        # the same tables in shared memory
  %[1]s ingest --table flights --format controlstream FILE
  kill -9 %[3]d        # a node dies; other nodes take over its ranges
%[4]sCtrl-C stops everything.

`, d.cfg.Program, last, l.Nodes[0].PID, d.secureText())
	return b.String()
}

// secureText returns what to try with a secure demo.
func (d *run) secureText() string {
	if d.layout.Identity == nil {
		return ""
	}
	file := func(name string) string { return filepath.Join(d.layout.Dir, viewerName, name) }
	return fmt.Sprintf(`As somebody else, the user %[2]s, who may read and not write:
  alias as-%[2]s='%[1]s --context demo --cert %[3]s --key %[4]s'
  as-%[2]s whoami
  as-%[2]s get flights HELLO1
  as-%[2]s delete flights HELLO1     # permission denied
`, d.cfg.Program, viewerName, file("user.crt"), file("user.key"))
}

// stop stops everything that the demo started, and removes the files that point other commands to
// it.
func (d *run) stop() {
	d.note("stopping the nodes\n")
	d.children.stop()
	if d.layout.ClusterID != "" {
		// Images can be built again from the data, and must not occupy memory after the demo.
		_ = os.RemoveAll(filepath.Join(d.layout.SnapshotDir, d.layout.ClusterID))
		_ = os.Remove(d.layout.SnapshotDir) // fails if another cluster has images there
	}
	context, err := ReadLayout(ContextPath())
	// Another demo may have started since and may have replaced the file.
	if err == nil && context.PID == os.Getpid() {
		if err := os.Remove(ContextPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.note("%v\n", err)
		}
	}
}
