package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/deploy/hosts"
)

// Config describes a cluster.
type Config struct {
	// Dir holds the state of the hosts, their disks and logs. It must be empty or missing.
	Dir string
	// Binary is the program rhumb, and Units the folder with its systemd units.
	Binary, Units string
	// Regions holds the names of the regions, and Nodes the number of nodes in each. Nodes of a region are in zones of their own.
	Regions []string
	Nodes   int
	// Previous is the release before Binary. If it is not empty, all nodes begin with it, and the fault upgrade exchanges the two.
	Previous string
	// Disks mounts a disk for each node, which the faults of disks need.
	Disks bool
	// NodeLog gives each store a log of its own, which Previous does not read.
	NodeLog bool
	// Memory is the memory of a node, as in its configuration.
	Memory string
	// Log receives one line for each step.
	Log io.Writer
}

// Ports of a node and of the authority, on their own addresses. That of a node is the default of `rhumb start`.
const (
	portMain      = 7600
	portAdmin     = 7603
	portAuthority = 7605
)

// Bounds of the time that a cluster takes to come up, and to be whole after a fault. The longest way back is that of an emptied disk, and of
// a host that returns while another one is away.
const (
	bootWait = 2 * time.Minute
	healWait = 2 * time.Minute
	pollWait = 100 * time.Millisecond
)

// Node is a node of the cluster and its host.
type Node struct {
	// Name is that of the host, and Region that of the node in the metadata.
	Name, Region string
	Addr         netip.Addr

	host *hosts.Host
	// old is set while the node runs Config.Previous.
	old bool
}

// Cluster is a secured cluster on hosts of this machine.
type Cluster struct {
	cfg   Config
	fleet *hosts.Fleet
	// release unlocks the fleet.
	release func()
	// nodes is in the order of the regions and names.
	nodes []*Node
	// added counts the nodes that were added after the start.
	added int
	// operator administers the cluster.
	operator *client.Client
	// password is that of the user chaos, in a file.
	password string

	mu sync.Mutex // guards the log and nodes
	// open are the clients that Open has returned.
	open []*client.Client
}

// userName is the user of the workloads, who may do everything with the data and nothing with the cluster.
const userName = "chaos"

// Start brings up a cluster. It needs root (hosts.Supported).
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := hosts.Supported(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := removeLeft(cfg.Dir); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, password: filepath.Join(cfg.Dir, "password")}
	var err error
	if c.fleet, c.release, err = hosts.Open(filepath.Join(cfg.Dir, fleetFolder)); err != nil {
		return nil, err
	}
	// A cluster that came up in part is removed again, with all its hosts.
	if err := c.boot(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// boot brings up the hosts, the authority, the nodes and the users.
func (c *Cluster) boot(ctx context.Context) error {
	specs := []hosts.Spec{{Name: "authority"}}
	for _, region := range c.cfg.Regions {
		for i := range c.cfg.Nodes {
			specs = append(specs, hosts.Spec{Name: fmt.Sprintf("%s-%d", region, i+1), Region: region})
		}
	}
	if err := c.fleet.Up(netip.Prefix{}, specs...); err != nil {
		return err
	}
	if err := c.startAuthority(ctx); err != nil {
		return err
	}
	// Nodes start one after the other, because all join the first one.
	for _, spec := range specs[1:] {
		if err := c.startNode(ctx, spec); err != nil {
			return fmt.Errorf("%s: %w", spec.Name, err)
		}
	}
	if err := c.openOperator(ctx); err != nil {
		return err
	}
	return c.addUser(ctx)
}

// Logf writes a line to the log of the run.
func (c *Cluster) Logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Fprintf(c.cfg.Log, format+"\n", args...)
}

// authorityDir is the folder of the authority on its host.
const authorityDir = "/var/lib/rhumb-authority"

// asAuthority runs rhumb on the host of the authority, as its user.
func (c *Cluster) asAuthority(ctx context.Context, args ...string) (string, error) {
	h, err := c.fleet.Host("authority")
	if err != nil {
		return "", err
	}
	// setpriv drops root, so that the files of the authority belong to its user.
	return h.Run(ctx, "setpriv", append([]string{"--reuid", "rhumb-authority", "--regid", "rhumb-authority", "--clear-groups", "rhumb"}, args...)...)
}

// startAuthority creates the authority on its host and serves it.
func (c *Cluster) startAuthority(ctx context.Context) error {
	h, err := c.fleet.Host("authority")
	if err != nil {
		return err
	}
	if err := h.Install(ctx, c.cfg.Binary, []string{filepath.Join(c.cfg.Units, "rhumb-authority.service")}); err != nil {
		return err
	}
	// The folder belongs to the user of the service, and nobody else can read it.
	if _, err := h.Run(ctx, "install", "-d", "-o", "rhumb-authority", "-g", "rhumb-authority", "-m", "0700", authorityDir); err != nil {
		return err
	}
	advertise := fmt.Sprintf("%s:%d", h.Address(), portAuthority)
	if _, err := c.asAuthority(ctx, "init", "--authority", authorityDir, "--advertise", advertise); err != nil {
		return err
	}
	_, err = h.Run(ctx, "systemctl", "enable", "--now", "rhumb-authority")
	return err
}

// restarts is a drop-in of systemd that lifts the limit of restarts, and adds the flags in argsFile. The unit itself allows five starts
// within ten minutes, and faults need more.
const restarts = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestartSec=1\nExecStart=\nExecStart=/usr/bin/rhumb start $CHAOS_ARGS\n"

// argsFile is the file with the environment of the unit.
const argsFile = "/etc/default/rhumb"

// startNode starts a node on its host. The first node creates the cluster.
func (c *Cluster) startNode(ctx context.Context, spec hosts.Spec) error {
	h, err := c.fleet.Host(spec.Name)
	if err != nil {
		return err
	}
	if c.cfg.Disks {
		if err := c.mountDisk(ctx, h); err != nil {
			return err
		}
	}
	// A cluster that the newer program creates has features that the previous one cannot read.
	binary, old := c.cfg.Binary, c.cfg.Previous != ""
	if old {
		binary = c.cfg.Previous
	}
	if err := h.Install(ctx, binary, []string{filepath.Join(c.cfg.Units, "rhumb.service")}); err != nil {
		return err
	}
	// All nodes have the same list, as in the book. A founder that loses its disk must find the others, or it would found a second cluster.
	var join []string
	for _, o := range c.fleet.Hosts() {
		if o.Region() != "" {
			join = append(join, o.Address().String())
		}
	}
	zone := spec.Name[strings.LastIndexByte(spec.Name, '-')+1:]
	// A node is reached by its address: hosts have no name service.
	settings := fmt.Sprintf("region: %s\nzone: z%s\ndir: [%s, %s]\nadvertise: %s\njoin: [%s]\ntoken: /etc/rhumb/token\nmemory: %s\n",
		spec.Region, zone, dataDir, secondStore, h.Address(), strings.Join(join, ", "), c.cfg.Memory)
	// The token is made on the host of the authority, and travels to the node as a file.
	order := []string{"token", "create", "--authority", authorityDir, "--node", spec.Name}
	if len(c.nodes) == 0 {
		order = append(order, "--founder")
	}
	token, err := c.asAuthority(ctx, order...)
	if err != nil {
		return err
	}
	for _, f := range []struct{ path, owner, mode, text string }{
		{"/etc/rhumb/rhumb.yaml", "root", "0644", settings},
		{"/etc/rhumb/token", "rhumb", "0600", token},
		{"/etc/systemd/system/rhumb.service.d/chaos.conf", "root", "0644", restarts},
		{argsFile, "root", "0644", c.defaultArgs("")},
		{clockFile, "root", "0644", ""},
	} {
		if err := installOn(ctx, h, f.path, f.owner, f.mode, f.text); err != nil {
			return err
		}
	}
	if _, err := h.Run(ctx, "systemctl", "enable", "--now", "rhumb"); err != nil {
		// The host is removed, so its log has to be part of the error.
		text, _ := os.ReadFile(h.LogFile("rhumb"))
		return fmt.Errorf("%w; its log ends with: %s", err, text[max(0, len(text)-2000):])
	}
	c.setNodes(append(c.Nodes(), &Node{Name: spec.Name, Region: spec.Region, Addr: h.Address(), host: h, old: old}))
	c.Logf("%s runs at %s", spec.Name, h.Address())
	return nil
}

// defaultArgs returns the text of argsFile, with the flags that faults need. A previous program may not know them.
func (c *Cluster) defaultArgs(more string) string {
	args := more
	if c.cfg.Previous == "" {
		args = "--clock-error-file " + clockFile + " " + more
	}
	if c.cfg.NodeLog {
		args += " --experimental-node-log"
	}
	return "CHAOS_ARGS=\"" + strings.TrimSpace(args) + "\"\n"
}

// installOn writes a file with its owner and mode on a host in one step, so that no other user can read a token.
func installOn(ctx context.Context, h *hosts.Host, path, owner, mode, text string) error {
	cmd := h.Command(ctx, "install", "-D", "-o", owner, "-m", mode, "/dev/stdin", path+".part")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, out)
	}
	_, err := h.Run(ctx, "mv", path+".part", path)
	return err
}

// openOperator gets the certificate of an operator and connects with it.
func (c *Cluster) openOperator(ctx context.Context) error {
	if err := c.makeOperator(ctx); err != nil {
		return err
	}
	dir := filepath.Join(c.cfg.Dir, "operator")
	tls := &client.TLS{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "operator.crt"), Key: filepath.Join(dir, "operator.key")}
	// The nodes wait for each other before the first one creates the cluster, and Open asks each of them once.
	err := eventually(ctx, func() (err error) {
		c.operator, err = client.Open(ctx, client.Config{Addrs: c.addrs(), TLS: tls})
		return err
	})
	if err != nil {
		return err
	}
	return c.AwaitWhole(ctx, bootWait)
}

// addUser creates the user of the workloads, with the right to read and write all tables.
func (c *Cluster) addUser(ctx context.Context) error {
	if err := os.WriteFile(c.password, []byte(rand.Text()+"\n"), 0o600); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"role", "create", userName},
		{"grant", userName, "--table", "*", "--rights", "read,write,delete"},
		{"user", "create", userName, "--role", userName, "--new-password-file", c.password},
	} {
		if out, err := c.Rhumb(ctx, args...); err != nil {
			return fmt.Errorf("rhumb %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// Rhumb runs a command of the operator and returns its output.
func (c *Cluster) Rhumb(ctx context.Context, args ...string) (string, error) {
	dir := filepath.Join(c.cfg.Dir, "operator")
	for _, addr := range c.addrs() {
		args = append(args, "--addr", addr)
	}
	args = append(args, "--ca", filepath.Join(dir, "ca.crt"), "--cert", filepath.Join(dir, "operator.crt"), "--key", filepath.Join(dir, "operator.key"))
	cmd := exec.CommandContext(ctx, c.cfg.Binary, args...)
	// Nothing of the environment of the caller may select another cluster.
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// addrs returns the addresses of all nodes.
func (c *Cluster) addrs() (addrs []string) {
	for _, n := range c.nodes {
		addrs = append(addrs, net.JoinHostPort(n.Addr.String(), fmt.Sprint(portMain)))
	}
	return addrs
}

// Open returns a client of the user of the workloads, in a region. Close closes it.
func (c *Cluster) Open(ctx context.Context, region string) (*client.Client, error) {
	opened, err := client.Open(ctx, client.Config{
		Addrs: c.addrs(), From: region, User: userName, Password: client.PasswordFile(c.password), ConnectTimeout: bootWait,
		TLS: &client.TLS{CA: filepath.Join(c.cfg.Dir, "operator", "ca.crt")},
	})
	if err == nil {
		c.open = append(c.open, opened)
	}
	return opened, err
}

// Operator returns the client of the operator.
func (c *Cluster) Operator() *client.Client { return c.operator }

// Nodes returns the nodes.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// setNodes replaces the nodes.
func (c *Cluster) setNodes(nodes []*Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes = nodes
}

// whole returns an error unless all nodes are live and ready and every range has as many copies as
// its table wants, all of them in sync.
func (c *Cluster) whole(ctx context.Context) error {
	// A node that does not answer must not hold up the next look for long.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := checkNodes(c.operator.Status(ctx), len(c.nodes), c.operator.Revision); err != nil {
		return err
	}
	return checkCopies(c.operator.Ranges(), c.operator.Tables())
}

// checkNodes returns an error unless as many nodes as wanted are live and ready, and the operator
// knows as much of the metadata as they do.
func checkNodes(all []client.NodeStatus, wanted int, revision func() uint64) error {
	live, newest := 0, uint64(0)
	for _, s := range all {
		newest = max(newest, s.Revision)
		// The node that took its place is in the list, too, and a node that was removed does not count.
		if s.Node.ReplacedBy != rhumb.NoNode || s.Node.Forgotten {
			continue
		}
		if s.Err != "" {
			return fmt.Errorf("%s: %s", s.Node.Addr, s.Err)
		}
		if s.Node.State == rhumb.NodeLive && s.Ready {
			live++
		}
	}
	if live != wanted {
		return fmt.Errorf("%d of %d nodes are live and ready", live, wanted)
	}
	// The operator may get its metadata from a node that was cut off a moment ago and does not know yet what happened meanwhile.
	if own := revision(); own < newest {
		return fmt.Errorf("the operator knows revision %d of the metadata, and a node has %d", own, newest)
	}
	return nil
}

// checkCopies returns an error unless each range has as many copies as its table wants, all of them
// in sync.
func checkCopies(ranges []*rhumb.Range, tables []client.TableStatus) error {
	wanted := map[rhumb.ClassID]int{}
	for _, t := range tables {
		wanted[t.Class] = t.Settings.Replicas
	}
	// A node may be ready while its copies still catch up.
	for _, r := range ranges {
		if len(r.Replicas) < wanted[r.Class] {
			return fmt.Errorf("range %s has %d of %d copies", r.ID, len(r.Replicas), wanted[r.Class])
		}
		if len(r.InSync) < len(r.Replicas) {
			return fmt.Errorf("range %s has %d of %d copies in sync", r.ID, len(r.InSync), len(r.Replicas))
		}
	}
	return nil
}

// errNotWhole is the cause of all errors about a cluster that is not whole in time.
var errNotWhole = errors.New("the cluster is not whole")

// AwaitWhole waits until the cluster is whole.
func (c *Cluster) AwaitWhole(ctx context.Context, most time.Duration) error {
	deadline := time.Now().Add(most)
	for {
		err := c.whole(ctx)
		if err == nil {
			return nil
		}
		// The last error says which part is missing.
		if time.Now().After(deadline) {
			return fmt.Errorf("%w after %v: %w", errNotWhole, most, err)
		}
		if err := wait(ctx, pollWait); err != nil {
			return err
		}
	}
}

// wait waits for a time, or until the context ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// identity returns the present life of a node in the metadata. A node whose disk was emptied comes back under its name as another
// node.
func (c *Cluster) identity(n *Node) rhumb.NodeIdentity {
	for _, o := range c.operator.Nodes() {
		if o.Name == n.Name && o.ReplacedBy == rhumb.NoNode && !o.Forgotten {
			return o.Identity()
		}
	}
	return rhumb.NodeIdentity{}
}

// fleetFolder is the folder of the hosts, in that of a run.
const fleetFolder = "hosts"

// removeLeft removes the hosts of a run that was killed, with their disks. A host is a process of its own
// and would never end.
func removeLeft(dir string) error {
	fleet := filepath.Join(dir, fleetFolder)
	if !hosts.IsLeft(fleet) {
		return nil
	}
	c := &Cluster{cfg: Config{Dir: dir}}
	var err error
	if c.fleet, c.release, err = hosts.Open(fleet); err != nil {
		return err
	}
	return c.Close()
}

// workFolders begins the names of the folders of runs without --dir.
const workFolders = "rhumb-chaos-"

// MakeDir makes a folder for a run, and removes what killed runs have left in such folders.
func MakeDir() (string, error) {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), workFolders+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range left {
		// The folder of a run that begins or works has no fleet yet, or one that is open.
		if !hosts.IsLeft(filepath.Join(dir, fleetFolder)) {
			continue
		}
		if err := errors.Join(removeLeft(dir), os.RemoveAll(dir)); err != nil {
			return "", fmt.Errorf("remove what a killed run has left in %s: %w", dir, err)
		}
	}
	return os.MkdirTemp("", workFolders)
}

// Close ends the clients and removes the hosts with their disks and logs; KeepLogs copies the logs before.
func (c *Cluster) Close() error {
	for _, o := range c.open {
		o.Close()
	}
	if c.operator != nil {
		c.operator.Close()
	}
	var err error
	// A mounted disk would keep its folder.
	for _, h := range c.fleet.Hosts() {
		err = errors.Join(err, h.Kill(), c.unmountDisk(context.Background(), h))
	}
	err = errors.Join(err, c.fleet.Destroy())
	c.release()
	return err
}

// KeepLogs copies the logs of all hosts into the folder of the report.
func (c *Cluster) KeepLogs(dir string) error {
	to := filepath.Join(dir, logsFolder)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.host.LogFile("rhumb"))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, n.Name+".log"), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
