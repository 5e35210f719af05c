package client_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node"
)

// startSecure starts a node with the certificate of an authority.
func startSecure(t *testing.T, a *identitytest.Authority, dir, name string, options []identitytest.Option, join ...string) *node.Node {
	t.Helper()
	a.Node(t, name, options...).WriteTo(t, node.DefaultIdentity(dir))
	n, err := node.Start(node.Config{
		Dirs: []string{dir}, Region: "singapore", Zone: name, Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Join: join, Founder: len(join) == 0,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		CacheBytes: 8 << 20, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// TestTLSConfig guards that a client connects with each form of an identity, and that each mistake
// is an error that says what to do.
func TestTLSConfig(t *testing.T) {
	a, foreign := identitytest.New(t), identitytest.New(t)
	n := startSecure(t, a, t.TempDir(), "eu-1", nil)
	plain := startNode(t, "singapore", rhumb.Point{Lat: 1.35, Lon: 103.82}, "a")
	awaitReady(t, n)
	operator := a.Operator(t, "ann")
	files := operator.Files(t, t.TempDir())
	good := &client.TLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
	revoked := foreign.Operator(t, "eve")
	revoked.CA = operator.CA
	now := time.Now()
	old := a.Operator(t, "ann", identitytest.Valid(now.Add(-2*time.Hour), now.Add(-time.Hour)))
	for _, tc := range []struct {
		name string
		cfg  client.Config
		text string // empty if the client opens
	}{
		{"files", client.Config{TLS: good}, ""},
		{"text", client.Config{TLS: &client.TLS{PEM: operator.PEM(t)}}, ""},
		{"the cluster", client.Config{TLS: &client.TLS{PEM: operator.PEM(t), Cluster: a.Cluster}}, ""},
		{"neither TLS nor insecure", client.Config{}, "TLS is not set"},
		{"both", client.Config{TLS: good, Insecure: true}, "both set"},
		{"no CA", client.Config{TLS: &client.TLS{Cert: files.Cert, Key: files.Key}}, "no CA file"},
		{"no key", client.Config{TLS: &client.TLS{CA: files.CA, Cert: files.Cert}}, "belong together"},
		{"no such file", client.Config{TLS: &client.TLS{CA: "nowhere.crt"}}, "nowhere.crt"},
		{"an expired certificate", client.Config{TLS: &client.TLS{PEM: old.PEM(t)}}, "expired"},
		{"another cluster", client.Config{TLS: &client.TLS{PEM: identity.PEM{CA: operator.PEM(t).CA}, Cluster: foreign.Cluster}}, "wanted a certificate of a node of cluster " + foreign.Cluster.String()},
		{"another authority", client.Config{TLS: &client.TLS{PEM: foreign.Operator(t, "ann").PEM(t)}}, "belongs to cluster " + a.Cluster.String()},
		{"an authority that is not trusted", client.Config{TLS: &client.TLS{PEM: identitytest.NewFor(t, a.Cluster).Operator(t, "ann").PEM(t)}}, "not trusted here"},
		{"TLS to a node without it", client.Config{TLS: good, Addrs: []string{plain.Addr()}}, "does not speak TLS"},
		{"plain text to a node with TLS", client.Config{Insecure: true}, "nodes with TLS refuse plain text"},
	} {
		if tc.cfg.Addrs == nil {
			tc.cfg.Addrs = []string{n.Addr()}
		}
		c, err := client.Open(t.Context(), tc.cfg)
		if err == nil {
			if c.Cluster() != a.Cluster {
				t.Errorf("%s: cluster %s", tc.name, c.Cluster())
			}
			c.Close()
		}
		if (err == nil) != (tc.text == "") || err != nil && !strings.Contains(rhumb.Message(err), tc.text) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.text)
		}
		if err != nil {
			t.Logf("%s: %s", tc.name, rhumb.Message(err))
		}
	}
}

// TestRotationUnderLoad guards that replacing the certificates of all nodes and of the client, and
// the end of the former ones, fails no write, although all connections end and are made again.
func TestRotationUnderLoad(t *testing.T) {
	a := identitytest.New(t)
	base := t.TempDir()
	// Long enough for three nodes to start on a busy machine.
	end := time.Now().Truncate(time.Second).Add(20 * time.Second)
	short := []identitytest.Option{identitytest.Valid(time.Now().Add(-time.Hour), end)}
	dir := func(i int) string { return filepath.Join(base, fmt.Sprintf("n%d", i)) }
	first := startSecure(t, a, dir(1), "eu-1", short)
	nodes := []*node.Node{first}
	for i := 2; i <= 3; i++ {
		nodes = append(nodes, startSecure(t, a, dir(i), fmt.Sprintf("eu-%d", i), short, first.Addr()))
	}
	awaitReady(t, nodes...)
	files := a.Operator(t, "ann", short...).Files(t, filepath.Join(base, "ann"))
	c, err := client.Open(t.Context(), client.Config{
		Addrs: []string{first.Addr()}, TLS: &client.TLS{CA: files.CA, Cert: files.Cert, Key: files.Key}, Timeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := c.CreateTable(t.Context(), "flights", client.TableOptions{Settings: rhumb.ClassSettings{Replicas: 3, HashSlots: 4}})
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var work sync.WaitGroup
	var written atomic.Int64
	for w := range 8 {
		work.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if _, err := table.Put(t.Context(), fmt.Appendf(nil, "key-%d-%d", w, i), []byte("v"), client.PutOptions{}); err != nil {
					t.Errorf("a write failed: %v", err)
					return
				}
				written.Add(1)
			}
		})
	}
	// All connections were made with the short certificates.
	for i := range nodes {
		a.Node(t, fmt.Sprintf("eu-%d", i+1)).WriteTo(t, node.DefaultIdentity(dir(i+1)))
	}
	a.Operator(t, "ann").WriteTo(t, files)
	time.Sleep(time.Until(end))
	before := written.Load()
	time.Sleep(2 * time.Second)
	stop.Store(true)
	work.Wait()
	if before == 0 || written.Load() == before {
		t.Errorf("%d writes before the certificates expired, %d after", before, written.Load()-before)
	}
	t.Logf("%d writes before the certificates expired, %d after", before, written.Load()-before)
}
