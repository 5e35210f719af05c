package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// secureConfig returns the configuration of a node with a certificate on free loopback ports. The
// certificate is written to the folder of the node in dir.
func secureConfig(t *testing.T, a *identitytest.Authority, dir, name string, join ...string) Config {
	t.Helper()
	a.Node(t, name).WriteTo(t, DefaultIdentity(dir))
	operators.Store(dir, a.Operator(t, "tester").Source(t))
	return Config{
		Dirs: []string{dir}, Region: "singapore", Zone: name, Location: rhumb.Point{Lat: 1.35, Lon: 103.82}, Join: join,
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Snapshot:   SnapshotConfig{Dir: dir + "-images", Leash: imageLeash, OverdueMax: imageOverdueMax},
		CacheBytes: 8 << 20, Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Fatal: func(err error) { panic(fmt.Sprintf("node cannot go on: %v", err)) },
	}
}

// startSecure starts a node with the certificate of an authority.
func startSecure(t *testing.T, a *identitytest.Authority, dir, name string, join ...string) *Node {
	t.Helper()
	n, err := Start(secureConfig(t, a, dir, name, join...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// startSecureRegion starts three nodes with certificates, which form a cluster.
func startSecureRegion(t *testing.T, a *identitytest.Authority) []*Node {
	t.Helper()
	first := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if _, _, err := first.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes := []*Node{first}
	for i := 2; i <= 3; i++ {
		nodes = append(nodes, startSecure(t, a, filepath.Join(t.TempDir(), fmt.Sprintf("n%d", i)), fmt.Sprintf("eu-%d", i), first.Addr()))
	}
	awaitReady(t, nodes...)
	return nodes
}

// kvAs returns a client of a node with an identity.
func kvAs(t *testing.T, n *Node, src *identity.Source) rhumbpb.KVClient {
	t.Helper()
	conn, err := api.Connect(n.Addr(), nil, src.ClientCredentials(wantNode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rhumbpb.NewKVClient(conn)
}

// TestSecureDirectoryIsHidden guards data against other users of the machine: a directory that an administrator made is
// mostly readable by everybody.
func TestSecureDirectoryIsHidden(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n1")
	// Not by Mkdir, whose mode the umask changes.
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	startSecure(t, identitytest.New(t), dir, "eu-1")
	for _, path := range []string{dir, filepath.Join(dir, "data")} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o007 != 0 || info.Mode().Perm()&0o700 != 0o700 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
}

// TestSecureCluster guards that nodes with certificates form a cluster whose identity is in the
// certificates, and that an operator writes and reads through each of them.
func TestSecureCluster(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	if got := nodes[2].Identity().Cluster; got != a.Cluster {
		t.Errorf("the cluster is %s, want %s of the certificates", got, a.Cluster)
	}
	table := createTable(t, nodes[0], "flights", 3)
	operator := a.Operator(t, "ann").Source(t)
	for i, n := range nodes {
		put(t, kvAs(t, n, operator), table.Id, fmt.Sprintf("key-%d", i), fmt.Sprintf("value-%d", i))
	}
	for i := range nodes {
		if got, want := get(t, kvAs(t, nodes[(i+1)%3], operator), table.Id, fmt.Sprintf("key-%d", i)), fmt.Sprintf("value-%d", i); got != want {
			t.Errorf("key-%d is %q, want %q", i, got, want)
		}
	}
	awaitInSync(t, nodes[0], 3)
}

// TestSecuredStoreRefusesInsecure guards that a store that was served with TLS is never served
// without it, that an insecure store can be secured, and that the cluster of the certificate must
// be that of the data.
func TestSecuredStoreRefusesInsecure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n1")
	n := startNode(t, dir, "singapore", "a")
	cluster, _, err := n.Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	table := createTable(t, n, "flights", 1)
	put(t, kvClient(t, n), table.Id, "key", "value")
	n.Close()

	cfg := secureConfig(t, identitytest.New(t), dir, "eu-1")
	if _, err := Start(cfg); rhumb.KindOf(err) != rhumb.WrongCluster || !strings.Contains(rhumb.Message(err), cluster.String()) {
		t.Fatalf("a certificate of another cluster: %v", err)
	}
	n = startSecure(t, identitytest.NewFor(t, cluster), dir, "eu-1")
	awaitReady(t, n)
	if got := get(t, kvClient(t, n), table.Id, "key"); got != "value" {
		t.Fatalf("after the node was secured the key is %q", got)
	}
	n.Close()

	cfg.Insecure, cfg.Identity = true, identity.Files{}
	if _, err := Start(cfg); rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(rhumb.Message(err), "start the node without --insecure") {
		t.Fatalf("a secured store started with --insecure: %v", err)
	}
}

// TestServicesBetweenNodes guards that a caller without the certificate of a node cannot use the
// requests between nodes.
func TestServicesBetweenNodes(t *testing.T) {
	a := identitytest.New(t)
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if _, _, err := n.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	for _, tc := range []struct {
		name string
		src  *identity.Source
		want rhumb.Kind
	}{
		{"nobody", a.Anonymous(t), rhumb.Unauthenticated},
		{"a user", a.User(t, "app").Source(t), rhumb.PermissionDenied},
		{"an operator", a.Operator(t, "ann").Source(t), rhumb.PermissionDenied},
		{"a node", a.Node(t, "eu-2").Source(t), rhumb.Other},
	} {
		conn, err := api.Connect(n.Addr(), nil, tc.src.ClientCredentials(wantNode))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		peer, calls := rhumbpb.NewPeerClient(conn), map[string]func(ctx context.Context) error{}
		calls["Metadata"] = func(ctx context.Context) error {
			_, err := peer.Metadata(ctx, &rhumbpb.MetadataRequest{})
			return err
		}
		calls["Forward"] = func(ctx context.Context) error {
			_, err := peer.Forward(ctx, &rhumbpb.Request{})
			return err
		}
		calls["DescribeReplica"] = func(ctx context.Context) error {
			_, err := peer.DescribeReplica(ctx, &rhumbpb.DescribeReplicaRequest{})
			return err
		}
		calls["DiscardReplica"] = func(ctx context.Context) error {
			_, err := peer.DiscardReplica(ctx, &rhumbpb.DiscardReplicaRequest{})
			return err
		}
		calls["Join"] = func(ctx context.Context) error {
			_, err := rhumbpb.NewClusterClient(conn).Join(ctx, &rhumbpb.JoinRequest{})
			return err
		}
		calls["Replicate"] = func(ctx context.Context) error { return firstAnswer(peer.Replicate(ctx)) }
		calls["Heartbeat"] = func(ctx context.Context) error { return firstAnswer(peer.Heartbeat(ctx)) }
		calls["Raft"] = func(ctx context.Context) error {
			s, err := peer.Raft(ctx)
			if err == nil {
				_ = s.Send(&rhumbpb.RaftFrame{})
				_, err = s.CloseAndRecv()
			}
			return err
		}
		for name, call := range calls {
			err, _, _ := api.FromStatus("test", call(t.Context()))
			refused := rhumb.KindOf(err) == rhumb.Unauthenticated || rhumb.KindOf(err) == rhumb.PermissionDenied
			// A node may ask to join, and then its registration is checked, which nobody signed here.
			if name == "Join" && strings.Contains(rhumb.Message(err), "is not signed by its node") {
				refused = false
			}
			if tc.want != rhumb.Other && rhumb.KindOf(err) != tc.want || tc.want == rhumb.Other && refused {
				t.Errorf("%s by %s: %v", name, tc.name, err)
			}
		}
	}
}

// firstAnswer sends an empty frame on a stream and returns the error of the answer.
func firstAnswer[F any](s interface {
	Send(*F) error
	Recv() (*F, error)
}, err error,
) error {
	if err == nil {
		_ = s.Send(new(F))
		_, err = s.Recv()
	}
	return err
}

// TestFounder guards that a founder creates the cluster in its certificate without a command, that
// other nodes join it whichever starts first, and that a second founder joins instead of creating
// another one.
func TestFounder(t *testing.T) {
	a := identitytest.New(t)
	addrs, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	addr := addrs[0]
	early := startSecure(t, a, filepath.Join(t.TempDir(), "n2"), "eu-2", addr)
	cfg := secureConfig(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	var founded atomic.Int32
	cfg.Addr, cfg.Founder, cfg.OnFounded = addr, true, func() error { founded.Add(1); return nil }
	founder, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(founder.Close)
	awaitReady(t, founder, early)
	cfg = secureConfig(t, a, filepath.Join(t.TempDir(), "n3"), "eu-3", addr)
	cfg.Founder, cfg.OnFounded = true, func() error { founded.Add(1); return nil }
	second, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.Close)
	awaitReady(t, second)
	for _, n := range []*Node{founder, early, second} {
		if got := n.Identity(); got.Cluster != a.Cluster || n.State().Cluster() != a.Cluster {
			t.Errorf("a node is in cluster %s, want %s", got.Cluster, a.Cluster)
		}
	}
	if founded.Load() != 2 {
		t.Errorf("%d founders recorded that they have their cluster, want 2", founded.Load())
	}
	if nodes := slices.Collect(founder.State().Nodes()); len(nodes) != 3 {
		t.Errorf("the founder knows %d nodes, want 3", len(nodes))
	}
}

// TestFounderFoundsOnce guards that a founder whose data was lost does not create a second cluster with the ID of the first one, and says
// what to do.
func TestFounderFoundsOnce(t *testing.T) {
	a := identitytest.New(t)
	cfg := secureConfig(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	cfg.Founded = true
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	n.entering.Lock()
	n.foundCluster(founderPatience)
	n.entering.Unlock()
	if err := n.Ready(); !n.Identity().Cluster.IsZero() || err == nil || !strings.Contains(err.Error(), "has created its cluster before") {
		t.Errorf("the node is in cluster %s: %v", n.Identity().Cluster, err)
	}
}

// TestRevokedNode guards that a node whose certificate is revoked in the metadata loses its
// connections with all others, which keep serving, and that it returns with another certificate
// without a restart.
func TestRevokedNode(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	table := createTable(t, nodes[0], "flights", 3)
	awaitInSync(t, nodes[0], 3)
	kv := kvAs(t, nodes[0], a.Operator(t, "ann").Source(t))
	put(t, kv, table.Id, "before", "v")

	third := nodes[2]
	leaf := third.source.Leaf()
	if _, _, err := nodes[0].Propose(t.Context(), catalog.RevokeCertificate{
		Revocation: rhumb.Revocation{Serial: identity.SerialOf(leaf), NotAfter: leaf.NotAfter, Why: "test"},
	}); err != nil {
		t.Fatal(err)
	}
	connected := func(n *Node) bool {
		return slices.ContainsFunc(n.source.Bearers(), func(p identity.Peer) bool { return p.Serial == identity.SerialOf(leaf) })
	}
	retry(t, func(context.Context) error {
		if connected(nodes[0]) || connected(nodes[1]) {
			return errors.New("the revoked certificate still has a connection")
		}
		return nil
	})
	put(t, kv, table.Id, "meanwhile", "v")
	if connected(nodes[0]) || connected(nodes[1]) {
		t.Error("the revoked certificate connected again")
	}
	a.Node(t, "eu-3").WriteTo(t, third.cfg.Identity)
	retry(t, func(context.Context) error {
		if third.source.Leaf().Equal(leaf) {
			return errors.New("the new certificate is not loaded")
		}
		return nil
	})
	awaitInSync(t, nodes[0], 3)
	if got := get(t, kvAs(t, third, a.Operator(t, "ann").Source(t)), table.Id, "meanwhile"); got != "v" {
		t.Errorf("the node that returned reads %q", got)
	}
}

// TestAdvertise guards which addresses others get for the ports of a node, and that an address which
// others cannot use is refused with the flag that is missing.
func TestAdvertise(t *testing.T) {
	for _, tc := range []struct{ text, port, bound, want string }{
		{"", "main", "127.0.0.1:7600", "127.0.0.1:7600"},
		{"eu-1.example.com", "main", "0.0.0.0:7600", "eu-1.example.com:7600"},
		{"eu-1.example.com", "admin", "10.0.0.1:9", "eu-1.example.com:9"},
		{"2001:db8::1", "main", "[::]:7600", "[2001:db8::1]:7600"},
		{"[2001:db8::1]", "main", "[::]:7600", "[2001:db8::1]:7600"},
		{"main=a.example.com:17600,b.example.com", "main", "0.0.0.0:7600", "a.example.com:17600"},
		{"main=a.example.com:17600,b.example.com", "gossip", "0.0.0.0:7602", "b.example.com:7602"},
		{"main=a.example.com", "gossip", "10.0.0.1:7602", "10.0.0.1:7602"},
		{"heartbeat=[2001:db8::1]:5", "heartbeat", "[::]:7601", "[2001:db8::1]:5"},
	} {
		hosts, err := parseAdvertise(tc.text)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
		}
		if got := advertise(hosts, tc.port, tc.bound); got != tc.want {
			t.Errorf("%q for the port %s at %s: %s, want %s", tc.text, tc.port, tc.bound, got, tc.want)
		}
	}
	for _, bad := range []string{"a:7600", "0.0.0.0", "::", "main=", "other=a", "a,b", "main=a,main=b", "a b", "http://a", "main=0.0.0.0:5", ","} {
		if hosts, err := parseAdvertise(bad); err == nil {
			t.Errorf("%q became %v", bad, hosts)
		}
	}
	for _, tc := range []struct {
		c    Config
		want string // empty if the addresses are valid
	}{
		{Config{Addr: "0.0.0.0:1"}, "--addr"},
		{Config{Addr: ":1"}, "--advertise HOST"},
		{Config{Addr: "0.0.0.0:1", Advertise: "admin=a"}, "--addr"},
		{Config{Advertise: "a"}, ""},
		{Config{Addr: "10.0.0.1:1", HeartbeatAddr: "10.0.0.1:2", GossipAddr: "10.0.0.1:3", AdminAddr: "10.0.0.1:4"}, ""},
		{Config{Insecure: true, Addr: "10.0.0.1:1"}, "not a loopback address"},
		{Config{Insecure: true, Advertise: "a"}, "not a loopback address"},
		{Config{Insecure: true, Advertise: "localhost"}, ""},
	} {
		tc.c.SetDefaults()
		got := strings.Join(tc.c.addressFaults(), "; ")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.c, got, tc.want)
		}
	}
}

// TestAdvertisedAddresses guards that a node which listens on all interfaces registers and gossips the
// advertised host, so that another node joins it and both serve.
func TestAdvertisedAddresses(t *testing.T) {
	a := identitytest.New(t)
	var nodes []*Node
	var join []string
	for i, name := range []string{"eu-1", "eu-2"} {
		cfg := secureConfig(t, a, filepath.Join(t.TempDir(), name), name, join...)
		cfg.Addr, cfg.HeartbeatAddr, cfg.GossipAddr, cfg.AdminAddr = "0.0.0.0:0", "0.0.0.0:0", "0.0.0.0:0", "0.0.0.0:0"
		cfg.Advertise, cfg.Founder = "127.0.0.1", i == 0
		n, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		nodes, join = append(nodes, n), []string{n.outside.addr}
	}
	awaitReady(t, nodes...)
	for d := range nodes[0].State().Nodes() {
		for _, addr := range []string{d.Addr, d.HeartbeatAddr, d.AdminAddr} {
			if host, port, err := net.SplitHostPort(addr); err != nil || host != "127.0.0.1" || port == "0" {
				t.Errorf("node %s registered %s", d.ID, addr)
			}
		}
	}
	retry(t, func(context.Context) error {
		for _, m := range nodes[0].gossip.Members() {
			if !strings.HasPrefix(m.Addr, "127.0.0.1:") {
				t.Fatalf("gossip spreads %s", m.Addr)
			}
		}
		if n := len(nodes[0].gossip.Members()); n != 2 {
			return fmt.Errorf("gossip knows %d nodes", n)
		}
		return nil
	})
	table := createTable(t, nodes[0], "flights", 2)
	put(t, kvAs(t, nodes[1], a.Operator(t, "ann").Source(t)), table.Id, "key", "value")
}

// TestPeersAreVerifiedByName guards that a node talks to another one only if the certificate there has
// the name that the metadata has: a node of the same cluster at that address is not enough.
func TestPeersAreVerifiedByName(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	m := nodes[0].currentMember()
	second, ok := nodes[0].State().Node(nodes[1].Identity().Node)
	if !ok || second.Name != "eu-2" {
		t.Fatalf("the second node is registered as %+v", second)
	}
	ping := func(d rhumb.Node) error {
		conn, err := api.Connect(d.Addr, nil, m.credentialsFor(&d))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = rhumbpb.NewClusterClient(conn).Ping(t.Context(), &rhumbpb.PingRequest{})
		return err
	}
	if err := ping(*second); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{nodes[0].outside.addr, nodes[2].outside.addr, nodes[2].outside.heartbeat} {
		moved := *second
		moved.Addr = addr
		if err := ping(moved); err == nil || !strings.Contains(err.Error(), "wanted a certificate of a node named eu-2") {
			t.Errorf("another node at the address of eu-2: %v", err)
		}
	}
}
