package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node"
)

// returnSlow is longer than a probe of a connection waits, and shorter than a handshake may take.
const returnSlow = 1500 * time.Millisecond

// tired is a connection whose first answer is late, like that of a node which is busy with other handshakes.
type tired struct {
	net.Conn
	once sync.Once
}

func (c *tired) Read(b []byte) (int, error) {
	c.once.Do(func() { time.Sleep(returnSlow) })
	return c.Conn.Read(b)
}

// TestClientsReturn guards that many clients return to a cluster which has restarted and whose handshakes take longer than
// a probe, and that they need about one connection each to each node: clients that give up handshakes and begin others
// keep a cluster busy with handshakes that nobody finishes.
func TestClientsReturn(t *testing.T) {
	const clients, perNode = 40, 3
	a := identitytest.New(t)
	base := t.TempDir()
	addrs := make([]string, 3)
	nodes := make([]*node.Node, len(addrs))
	start := func(i int) {
		cfg := node.Config{
			Dirs: []string{filepath.Join(base, fmt.Sprint(i))}, Region: "singapore", Zone: fmt.Sprint(i), Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Founder: i == 0,
			Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
			CacheBytes: 8 << 20, Logger: slog.New(slog.DiscardHandler),
			Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
		}
		if addrs[i] != "" {
			cfg.Addr = addrs[i]
		}
		if i > 0 {
			cfg.Join = addrs[:1]
		}
		n, err := node.Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		nodes[i], addrs[i] = n, n.Addr()
	}
	for i := range nodes {
		a.Node(t, fmt.Sprintf("eu-%d", i)).WriteTo(t, node.DefaultIdentity(filepath.Join(base, fmt.Sprint(i))))
		start(i)
	}
	awaitReady(t, nodes...)

	var busy atomic.Bool
	var dialled atomic.Int64 // connections to nodes, once they are busy
	files := a.Operator(t, "ann").Files(t, filepath.Join(base, "ann"))
	cfg := client.Config{
		Addrs: addrs, TLS: &client.TLS{CA: files.CA, Cert: files.Cert, Key: files.Key}, Timeout: 60 * time.Second, ConnectTimeout: 30 * time.Second,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil || !busy.Load() {
				return conn, err
			}
			dialled.Add(1)
			return &tired{Conn: conn}, nil
		},
	}
	var open []*client.Client
	for range clients {
		c, err := client.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open = append(open, c)
	}
	if _, err := open[0].CreateTable(t.Context(), "flights", client.TableOptions{Settings: rhumb.ClassSettings{Replicas: 3, HashSlots: 4}}); err != nil {
		t.Fatal(err)
	}
	write := func() {
		var work sync.WaitGroup
		for i, c := range open {
			work.Go(func() {
				// Clients retry as programs do.
				for {
					table, err := c.Table(t.Context(), "flights")
					if err == nil {
						_, err = table.Put(t.Context(), fmt.Appendf(nil, "key-%d", i), []byte("v"), client.PutOptions{})
					}
					if err == nil || t.Context().Err() != nil {
						return
					}
				}
			})
		}
		work.Wait()
	}
	write()
	for _, n := range nodes {
		n.Close()
	}
	busy.Store(true)
	for i := range nodes {
		start(i)
	}
	write()
	if n := dialled.Load(); n > clients*int64(len(nodes))*perNode {
		t.Errorf("%d clients made %d connections to %d nodes, want at most %d to each", clients, n, len(nodes), perNode)
	}
	t.Logf("%d clients made %d connections to %d nodes until all had written again", clients, dialled.Load(), len(nodes))
}
