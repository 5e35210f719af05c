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

// Cluster is a demo cluster that a measurement runs on: real processes on this machine.
type Cluster struct {
	Nodes []ClusterNode `json:"nodes"`
	// LatencyFile holds the imitated round trips between the regions.
	LatencyFile string `json:"latency_file"`

	cmd *exec.Cmd
	out *bufio.Scanner
}

// ClusterNode is one process of a Cluster.
type ClusterNode struct {
	ID     rhumb.NodeID `json:"id"`
	Region string       `json:"region"`
	PID    int          `json:"pid"`
	Addr   string       `json:"addr"`
	// AdminAddr is where the node's metrics are read.
	AdminAddr string `json:"admin_addr"`
}

// clusterStart bounds how long a cluster may take to be ready.
const clusterStart = time.Minute

// StartCluster runs `rhumb demo` of the given binary without imitated distances, with further flags. Nodes that die are
// started again by it after three seconds.
func StartCluster(ctx context.Context, binary, dir string, regions []string, nodesPerRegion int, flags ...string) (*Cluster, error) {
	return StartClusterAt(ctx, binary, dir, regions, nodesPerRegion, "none", flags...)
}

// StartClusterAt is StartCluster with the distances that the demo's flag --latency names: "real", "none" or a file.
func StartClusterAt(ctx context.Context, binary, dir string, regions []string, nodesPerRegion int, latency string, flags ...string) (*Cluster, error) {
	c := &Cluster{}
	c.cmd = exec.CommandContext(ctx, binary, append([]string{
		"demo", "--json", "--no-banner", "--load", "none", "--latency", latency,
		"--regions", strings.Join(regions, ","), "--nodes-per-region", fmt.Sprint(nodesPerRegion), "--dir", dir,
	}, flags...)...)
	c.cmd.Stderr = os.Stderr
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGINT) }
	c.cmd.WaitDelay = clusterStop
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
	late := time.AfterFunc(clusterStart, func() { _ = c.cmd.Process.Signal(syscall.SIGINT) })
	defer late.Stop()
	if !c.out.Scan() {
		_ = c.cmd.Wait()
		return nil, fmt.Errorf("the cluster in %s did not become ready; its nodes' logs are there", dir)
	}
	if err := json.Unmarshal(c.out.Bytes(), c); err != nil {
		c.Stop()
		return nil, fmt.Errorf("the demo's first line: %w", err)
	}
	go func() {
		for c.out.Scan() { // a line a second, which nobody needs
		}
	}()
	return c, nil
}

// clusterStop bounds how long a cluster may take to stop.
const clusterStop = 20 * time.Second

// Stop ends the cluster.
func (c *Cluster) Stop() {
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	_ = c.cmd.Wait()
}

// Addrs gives the addresses of all nodes, and PIDs their processes as they were at the start.
func (c *Cluster) Addrs() (out []string) {
	for _, n := range c.Nodes {
		out = append(out, n.Addr)
	}
	return out
}

// PIDs gives the processes of all nodes as they were at the start.
func (c *Cluster) PIDs() (out []int) {
	for _, n := range c.Nodes {
		out = append(out, n.PID)
	}
	return out
}

// pidOf gives the process that listens on an address now: a node that was started again has another than at the start.
// The demo passes the address as an argument, so it stands in /proc.
func pidOf(addr string) (int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		var pid int
		if _, err := fmt.Sscan(p.Name(), &pid); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		args := strings.Split(string(b), "\x00")
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
