package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node"
)

// handshaking counts the handshakes in progress.
type handshaking struct{ begun, now, most atomic.Int64 }

func (h *handshaking) begin() {
	h.begun.Add(1)
	n := h.now.Add(1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
}

// tired is a connection whose first answer is late, like that of a node which is busy with other handshakes.
type tired struct {
	net.Conn
	h *handshaking
	// A client first sends its hello, and after the answer the rest of the handshake.
	writes      atomic.Int32
	first, done sync.Once
}

func (c *tired) Read(b []byte) (int, error) {
	c.first.Do(func() { time.Sleep(400 * time.Millisecond) })
	return c.Conn.Read(b)
}

func (c *tired) Write(b []byte) (int, error) {
	if c.writes.Add(1) == 2 {
		c.done.Do(func() { c.h.now.Add(-1) })
	}
	return c.Conn.Write(b)
}

func (c *tired) Close() error {
	c.done.Do(func() { c.h.now.Add(-1) })
	return c.Conn.Close()
}

// TestClientsReturn guards that the clients of one process return to a cluster that has restarted with few handshakes at the
// same time, and that they need about one connection each to each node. Once a thousand clients began nine thousand handshakes
// at the same time, gave them up half done and began others, and the cluster was busy with handshakes that nobody finished.
func TestClientsReturn(t *testing.T) {
	const clients, perNode = 100, 3
	a := identitytest.New(t)
	base := t.TempDir()
	addrs, err := freeport.Take(3) // the nodes are started again at their addresses
	if err != nil {
		t.Fatal(err)
	}
	nodes := make([]*node.Node, len(addrs))
	start := func(i int) {
		cfg := node.Config{
			Dirs: []string{filepath.Join(base, fmt.Sprint(i))}, Region: "singapore", Zone: fmt.Sprint(i), Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Founder: i == 0,
			Addr: addrs[i], HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
			CacheBytes: 8 << 20, Logger: slog.New(slog.DiscardHandler),
			Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
		}
		if i > 0 {
			cfg.Join = addrs[:1]
		}
		n, err := node.Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		nodes[i] = n
	}
	for i := range nodes {
		a.Node(t, fmt.Sprintf("eu-%d", i)).WriteTo(t, node.DefaultIdentity(filepath.Join(base, fmt.Sprint(i))))
		start(i)
	}
	awaitReady(t, nodes...)

	var busy atomic.Bool
	var handshakes handshaking // once the nodes are busy
	files := a.Operator(t, "ann").Files(t, filepath.Join(base, "ann"))
	cfg := client.Config{
		Addrs: addrs, TLS: &client.TLS{CA: files.CA, Cert: files.Cert, Key: files.Key}, Timeout: 60 * time.Second, ConnectTimeout: 30 * time.Second,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil || !busy.Load() {
				return conn, err
			}
			handshakes.begin()
			return &tired{Conn: conn, h: &handshakes}, nil
		},
	}
	var open []*client.Client
	for range clients {
		c, err := client.Open(t.Context(), cfg)
		// On a busy machine no node may answer in time. The test is about the clients' return, not their first arrival.
		for rhumb.KindOf(err) == rhumb.Unavailable && t.Context().Err() == nil {
			c, err = client.Open(t.Context(), cfg)
		}
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
	// Written from now on, so that clients wait for answers, and not only for news, while they connect.
	written := make(chan struct{})
	go func() {
		write()
		close(written)
	}()
	for i := range nodes {
		start(i)
	}
	<-written
	begun, most := handshakes.begun.Load(), handshakes.most.Load()
	if begun > clients*int64(len(nodes))*perNode {
		t.Errorf("%d clients made %d connections to %d nodes, want at most %d to each", clients, begun, len(nodes), perNode)
	}
	// Twice the bound of package api, because one that takes longer than usual no longer counts there.
	if bound := 2 * max(16, 4*int64(runtime.GOMAXPROCS(0))); most > bound {
		t.Errorf("%d handshakes at the same time, want at most %d", most, bound)
	}
	t.Logf("%d clients made %d connections to %d nodes until all had written again, at most %d at the same time", clients, begun, len(nodes), most)
}
