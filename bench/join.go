package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/wan"
)

// Joiner is a node that joins a cluster during a measurement. Its process belongs to the measurement, not to the demo.
type Joiner struct {
	ClusterNode
	cmd *exec.Cmd
}

// Join starts one more node in a region of a cluster without TLS, with the settings of the others, and waits until it is in the
// cluster. Its data is in the directory of the cluster.
func (c *Cluster) Join(ctx context.Context, cl *client.Client, binary, region, zone string) (*Joiner, error) {
	j := &Joiner{ClusterNode: ClusterNode{Region: region}}
	dir := filepath.Join(c.Dir, "joined-"+zone)
	addrs, err := freeport.Take(4)
	if err != nil {
		return nil, err
	}
	j.Addr, j.AdminAddr = addrs[0], addrs[1]
	gossip, heartbeat := addrs[2], addrs[3]
	if err := c.nameAddresses(region, j.Addr, gossip, heartbeat, j.AdminAddr); err != nil {
		return nil, err
	}
	j.cmd = exec.CommandContext(ctx, binary, "start", "--insecure", "--region", region, "--zone", zone, "--dir", dir,
		"--addr", j.Addr, "--admin-addr", j.AdminAddr, "--gossip-addr", gossip, "--heartbeat-addr", heartbeat,
		"--snapshot-dir", dir+"-images", "--latency-file", c.LatencyFile, "--log-level", "warn", "--join", c.Nodes[0].Addr)
	j.cmd.Env, j.cmd.Stderr = c.env, os.Stderr
	j.cmd.Cancel = func() error { return j.cmd.Process.Signal(syscall.SIGTERM) }
	j.cmd.WaitDelay = clusterStop
	// As for the demo: a Ctrl-C in the terminal must not reach the node before the measurement has ended.
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := j.cmd.Start(); err != nil {
		return nil, err
	}
	j.PID = j.cmd.Process.Pid
	for deadline := time.Now().Add(clusterStart); ; {
		// The number of the node is that of the newest metadata; its own port says that it serves.
		for _, n := range cl.Nodes() {
			if n.Addr == j.Addr {
				j.ID = n.ID
			}
		}
		if j.ID != rhumb.NoNode && isReady(ctx, j.AdminAddr) {
			return j, nil
		}
		if time.Now().After(deadline) || pauseFor(ctx, 20*time.Millisecond) != nil {
			j.Stop()
			return nil, fmt.Errorf("the new node was not in its cluster after %v", clusterStart)
		}
	}
}

// nameAddresses adds the addresses of a new node to the latency file. The others dial no address that the file does not name, and read
// the file again when it changes.
func (c *Cluster) nameAddresses(region string, addrs ...string) error {
	f, err := wan.ReadFile(c.LatencyFile)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		f.Addresses[addr] = region
	}
	return f.Save(c.LatencyFile)
}

// Stop stops the node.
func (j *Joiner) Stop() {
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(clusterStop, func() { _ = j.cmd.Process.Kill() })
	defer late.Stop()
	_ = j.cmd.Wait()
}

// isReady reports whether the node with an admin address is in its cluster.
func isReady(ctx context.Context, admin string) bool {
	ctx, cancel := context.WithTimeout(ctx, metricTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
