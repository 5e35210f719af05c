package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdConns is the number of client connections, spread over the nodes. A single connection is the
// bottleneck of etcd.
const etcdConns = 8

// etcd is a cluster of etcd processes with its clients.
type etcd struct {
	nodes   []*exec.Cmd
	clients []*clientv3.Client
}

// serveEtcd runs one etcd node with its defaults, which sync every write before the answer.
func serveEtcd(name, dir, clientURL, peerURL, cluster string) error {
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = name, dir, cluster
	cu, err := url.Parse(clientURL)
	if err != nil {
		return err
	}
	pu, err := url.Parse(peerURL)
	if err != nil {
		return err
	}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*cu}, []url.URL{*cu}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*pu}, []url.URL{*pu}
	// The default quota of 2 GiB would stop a long run.
	c.QuotaBackendBytes = 8 << 30
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	<-e.Server.ReadyNotify()
	fmt.Println("ready")
	return <-e.Err()
}

// startEtcd starts n nodes and waits until all are ready.
func startEtcd(n int, dir string) (*etcd, error) {
	c := &etcd{}
	var clientURLs, peerURLs, cluster []string
	for i := range n {
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		clientURLs = append(clientURLs, "http://"+ports[0])
		peerURLs = append(peerURLs, "http://"+ports[1])
		cluster = append(cluster, fmt.Sprintf("n%d=%s", i, peerURLs[i]))
	}
	var ready []*bufio.Scanner
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		cmd := exec.Command(os.Args[0], "etcd-server", name, filepath.Join(dir, name), clientURLs[i], peerURLs[i], strings.Join(cluster, ","))
		cmd.Stderr = os.Stderr
		// The nodes die with this process, however it ends.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			// Nodes that have started already must not outlive the failure.
			c.stop()
			return nil, err
		}
		c.nodes = append(c.nodes, cmd)
		ready = append(ready, bufio.NewScanner(out))
	}
	// A node is ready only once the cluster has a quorum, so all must be started first.
	for i, s := range ready {
		if !s.Scan() {
			c.stop()
			return nil, fmt.Errorf("etcd node %d ended before it was ready", i)
		}
	}
	for i := range etcdConns {
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{clientURLs[i%n]}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
		if err != nil {
			c.stop()
			return nil, err
		}
		c.clients = append(c.clients, cl)
	}
	// The first write opens the connection and waits for a leader.
	_, err := c.clients[0].Put(context.Background(), "warm", "x")
	return c, err
}

// freePorts returns n addresses that were free just now.
func freePorts(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		// Closing only at the end keeps one address from being returned twice.
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// nodePIDs returns the processes of the nodes.
func (c *etcd) nodePIDs() (out []int) {
	for _, n := range c.nodes {
		out = append(out, n.Process.Pid)
	}
	return out
}

// callOne executes one operation. A get is linearizable, like a get of Rhumb.
func (c *etcd) callOne(ctx context.Context, op load.Op, caller, key int, value []byte) error {
	// Callers share the connections evenly.
	cl := c.clients[caller%len(c.clients)]
	name := fmt.Sprintf("k/%d/%d", caller, key)
	if op == load.Put {
		_, err := cl.Put(ctx, name, string(value))
		return err
	}
	_, err := cl.Get(ctx, name)
	return err
}

// stop closes the clients and kills the nodes.
func (c *etcd) stop() {
	for _, cl := range c.clients {
		_ = cl.Close()
	}
	for _, n := range c.nodes {
		_ = n.Process.Kill()
		_ = n.Wait()
	}
}
