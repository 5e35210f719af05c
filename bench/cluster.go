package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
)

// Cluster is a demo cluster under measurement: real processes on this machine.
type Cluster struct {
	Nodes []ClusterNode `json:"nodes"`
	// LatencyFile holds the simulated round trips between the regions.
	LatencyFile string `json:"latency_file"`
	// Dir holds the data of the cluster.
	Dir string `json:"dir"`
	// Identity is the certificate of an operator, nil for a cluster without TLS.
	Identity *ClusterIdentity `json:"identity"`

	cmd      *exec.Cmd
	out      *bufio.Scanner
	password string // of benchUser
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

// ClusterIdentity names the files with the certificate of an operator.
type ClusterIdentity struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

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
	c := &Cluster{}
	c.cmd = exec.CommandContext(ctx, binary, append([]string{
		"demo", "--json", "--no-banner", "--load", "none", "--latency", latency,
		"--regions", strings.Join(regions, ","), "--nodes-per-region", fmt.Sprint(nodesPerRegion), "--dir", dir,
	}, flags...)...)
	c.cmd.Stderr = os.Stderr
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
		return nil, fmt.Errorf("the cluster in %s did not become ready; see the logs of its nodes there", dir)
	}
	// The first line of the demo describes the cluster, once all nodes serve.
	if err := json.Unmarshal(c.out.Bytes(), c); err != nil {
		c.Stop()
		return nil, fmt.Errorf("decode the first line of rhumb demo: %w", err)
	}
	go func() {
		// The demo prints a line per second; nothing reads them, but a full pipe would block it.
		for c.out.Scan() {
		}
	}()
	if err := c.createUser(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("create the user of the measurement: %w", err)
	}
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

// OperatorConfig returns the configuration of a client with all rights, whose calls have a timeout.
// In a secure cluster, the client has the certificate of an operator.
func (c *Cluster) OperatorConfig(timeout time.Duration) client.Config {
	cfg := client.Config{Addrs: c.Addrs(), Timeout: timeout}
	if c.Identity == nil {
		cfg.Insecure = true
	} else {
		cfg.TLS = &client.TLS{CA: c.Identity.CA, Cert: c.Identity.Cert, Key: c.Identity.Key}
	}
	return cfg
}

// ClientConfig returns the configuration of a client under measurement. In a secure cluster, the
// client logs in with the password of a user, as services do.
func (c *Cluster) ClientConfig(timeout time.Duration) client.Config {
	cfg := c.OperatorConfig(timeout)
	if c.Identity != nil {
		cfg.TLS.Cert, cfg.TLS.Key = "", ""
		cfg.User, cfg.Password = benchUser, func() (string, error) { return c.password, nil }
	}
	return cfg
}

// benchUser is the user under measurement, and the name of its role.
const benchUser = "bench"

// createUser creates the user of ClientConfig, with all rights to all tables. The user needs no
// rights to the cluster, except to read its state.
func (c *Cluster) createUser(ctx context.Context) error {
	if c.Identity == nil {
		return nil
	}
	admin, err := client.Open(ctx, c.OperatorConfig(clusterStart))
	if err != nil {
		return err
	}
	defer admin.Close()
	c.password = rand.Text()
	v, err := login.NewVerifier(benchUser, c.password)
	if err != nil {
		return err
	}
	if err := admin.CreateRole(ctx, benchUser); err != nil {
		return err
	}
	if err := admin.Grant(ctx, benchUser, access.Scope{Table: access.AllTables}, access.TableRights); err != nil {
		return err
	}
	if err := admin.Grant(ctx, benchUser, access.Scope{Cluster: true}, access.Read); err != nil {
		return err
	}
	return admin.CreateUser(ctx, benchUser, v, benchUser)
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
