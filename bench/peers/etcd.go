package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// etcdConns is the number of client connections, spread over the nodes. A single connection is the
// bottleneck of etcd.
const etcdConns = 8

// etcd is a cluster of etcd processes with its clients.
type etcd struct {
	nodes []*server
	// clients have one connection each, and callers share them.
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
	return <-e.Err()
}

// startEtcd starts as many nodes as the argument says, and waits until they accept a write.
func startEtcd(ctx context.Context, args []string, dir string) (database, error) {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > 5 {
		return nil, fmt.Errorf("invalid number of nodes %q; want 1 to 5", args[0])
	}
	addrs, err := freeport.Take(2 * n)
	if err != nil {
		return nil, err
	}
	// The first half of the addresses is for clients, the second for the other nodes.
	var cluster []string
	for i := range n {
		cluster = append(cluster, fmt.Sprintf("n%d=http://%s", i, addrs[n+i]))
	}
	c := &etcd{}
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		// A process of its own for each node, as in service: their processor time is measured.
		cmd := exec.Command(os.Args[0], "etcd-server", name, filepath.Join(dir, name), "http://"+addrs[i], "http://"+addrs[n+i], strings.Join(cluster, ","))
		s, err := startServer(cmd, dir, name)
		if err != nil {
			// Nodes that have started already must not outlive the failure.
			c.stop()
			return nil, err
		}
		c.nodes = append(c.nodes, s)
	}
	for i := range etcdConns {
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{addrs[i%n]}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
		if err != nil {
			c.stop()
			return nil, err
		}
		c.clients = append(c.clients, cl)
	}
	// The first write opens a connection and waits for a leader.
	err = c.nodes[0].await(ctx, func(ctx context.Context) error {
		_, err := c.clients[0].Put(ctx, "warm", "x")
		return err
	})
	if err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *etcd) describe() load.Ready {
	return load.Ready{Version: version.Version, Ops: []load.Op{load.Put, load.Get, load.Scan}}
}

func (c *etcd) processes() (out []int) {
	for _, n := range c.nodes {
		out = append(out, n.pid())
	}
	return out
}

func (c *etcd) prepare(context.Context, load.Case) error { return nil }

// call executes one operation. A get is linearizable, like a get of Rhumb.
func (c *etcd) call(ctx context.Context, s load.Step) error {
	// Callers share the connections evenly. The callers of a workload have the same number, so their
	// keys spread them.
	cl := c.clients[(s.Caller+s.Key)%len(c.clients)]
	name := keyOf(s.Caller, s.Key)
	switch s.Op {
	case load.Put:
		_, err := cl.Put(ctx, name, string(s.Value))
		return err
	case load.Scan:
		// From the key to the end of all keys, in their order.
		_, err := cl.Get(ctx, name, clientv3.WithFromKey(), clientv3.WithLimit(int64(s.Keys)))
		return err
	}
	got, err := cl.Get(ctx, name)
	if err == nil && s.Written && got.Count == 0 {
		err = load.ErrAbsent
	}
	return err
}

// stop closes the clients and kills the nodes.
func (c *etcd) stop() {
	for _, cl := range c.clients {
		_ = cl.Close()
	}
	for _, n := range c.nodes {
		n.stop(syscall.SIGKILL)
	}
}
