package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Cluster is a demo cluster under measurement: real processes on this machine.
type Cluster struct {
	Nodes []ClusterNode `json:"nodes"`
	// LatencyFile holds the simulated round trips between the regions.
	LatencyFile string `json:"latency_file"`
	// Dir holds the data of the cluster.
	Dir string `json:"dir"`
	// Identity is that of an operator if the cluster is secure, nil otherwise.
	Identity *Identity `json:"identity"`

	cmd      *exec.Cmd
	out      *bufio.Scanner
	env      []string // of the nodes
	password string   // of benchUser
}

// ClusterNode is one process of a Cluster.
type ClusterNode struct {
	ID     rhumb.NodeID `json:"id"`
	Region string       `json:"region"`
	PID    int          `json:"pid"`
	Addr   string       `json:"addr"`
	// AdminAddr serves the metrics of the node.
	AdminAddr string `json:"admin_addr"`
}

// lineMax bounds one line of output of a process.
const lineMax = 1 << 20

// clusterStart bounds the time until a cluster is ready.
const clusterStart = time.Minute

// StartCluster runs `rhumb demo` of the given binary without simulated distances, with further
// flags. The demo restarts a node that dies after three seconds.
func StartCluster(ctx context.Context, binary, dir string, regions []string, nodesPerRegion int, flags ...string) (*Cluster, error) {
	return StartClusterAt(ctx, binary, dir, regions, nodesPerRegion, "none", flags...)
}

// StartClusterAt is StartCluster with simulated distances: "real", "none" or a file, as the flag
// --latency of the demo takes them.
func StartClusterAt(ctx context.Context, binary, dir string, regions []string, nodesPerRegion int, latency string, flags ...string) (*Cluster, error) {
	return StartClusterWith(ctx, nil, binary, dir, regions, nodesPerRegion, latency, flags...)
}

// StartClusterWith is StartClusterAt with settings of the nodes, by the names of flags of `rhumb
// start`. They reach the nodes by the environment, which these inherit.
func StartClusterWith(ctx context.Context, settings map[string]string, binary, dir string, regions []string, nodesPerRegion int, latency string, flags ...string) (*Cluster, error) {
	c := &Cluster{}
	c.cmd = exec.CommandContext(ctx, binary, append([]string{
		"demo", "--json", "--no-banner", "--load", "none", "--latency", latency,
		"--regions", strings.Join(regions, ","), "--nodes-per-region", fmt.Sprint(nodesPerRegion), "--dir", dir,
	}, flags...)...)
	c.cmd.Stderr = os.Stderr
	c.env = os.Environ()
	for name, value := range settings {
		c.env = append(c.env, "RHUMB_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"="+value)
	}
	c.cmd.Env = c.env
	// SIGINT lets the demo stop its nodes in order.
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGINT) }
	c.cmd.WaitDelay = clusterStop
	// A group of its own keeps a Ctrl-C in the terminal from reaching the nodes before the
	// measurement has ended.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, lineMax)
	// A cluster that starts too slowly is stopped, which ends the Scan below.
	late := time.AfterFunc(clusterStart, func() { _ = c.cmd.Process.Signal(syscall.SIGINT) })
	defer late.Stop()
	if !c.out.Scan() {
		_ = c.cmd.Wait()
		return nil, fmt.Errorf("the cluster in %s did not become ready; the lines of rhumb demo above say why, and the logs of its nodes there, which stay with --dir", dir)
	}
	// The first line of the demo describes the cluster, once all nodes serve.
	if err := json.Unmarshal(c.out.Bytes(), c); err != nil {
		c.Stop()
		return nil, fmt.Errorf("decode the first line of rhumb demo: %w", err)
	}
	if err := c.addUser(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	go func() {
		// The demo prints a line per second; nothing reads them, but a full pipe would block it.
		for c.out.Scan() {
		}
	}()
	return c, nil
}

// clusterStop bounds the time until a cluster has stopped.
const clusterStop = 20 * time.Second

// Stop stops the cluster.
func (c *Cluster) Stop() {
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	_ = c.cmd.Wait()
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() (out []string) {
	for _, n := range c.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// PIDs returns the processes of all nodes at the start. A node that was restarted has another
// process.
func (c *Cluster) PIDs() (out []int) {
	for _, n := range c.Nodes {
		out = append(out, n.PID)
	}
	return out
}

// pidOf returns the process that listens on an address now, which is another one after a restart.
// It finds the process by its arguments in /proc, because the demo passes the address there.
func pidOf(addr string) (int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		var pid int
		// Other entries of /proc are not processes.
		if _, err := fmt.Sscan(p.Name(), &pid); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		args := strings.Split(string(b), "\x00")
		// Both forms of the flag are valid.
		for i := range len(args) - 1 {
			if err == nil && args[i] == "--addr" && args[i+1] == addr {
				return pid, nil
			}
		}
		if strings.Contains(string(b), "--addr="+addr+"\x00") {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process was started with --addr %s", addr)
}
