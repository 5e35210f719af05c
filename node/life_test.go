package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// startRegion starts a region of three nodes.
func startRegion(t *testing.T) []*Node {
	t.Helper()
	first := startNode(t, t.TempDir(), "singapore", "a")
	if _, err := clusterClient(t, first).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	nodes := []*Node{first}
	for _, zone := range []string{"b", "c"} {
		nodes = append(nodes, startNode(t, t.TempDir(), "singapore", zone, first.Addr()))
	}
	awaitReady(t, nodes...)
	return nodes
}

// startAgain starts a closed node with the same directory.
func startAgain(t *testing.T, n *Node, join *Node) *Node {
	t.Helper()
	again := startNode(t, n.cfg.Dirs[0], n.cfg.Region, n.cfg.Zone, join.Addr())
	awaitReady(t, again)
	return again
}

// startThree starts a region of three nodes with a table.
func startThree(t *testing.T) (nodes []*Node, table *rhumbpb.Table) {
	t.Helper()
	nodes = startRegion(t)
	table = createTable(t, nodes[0], "flights", 3)
	awaitInSync(t, nodes[0], 3)
	return nodes, table
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestFencedNodeBeginsNewLife guards the lives of nodes: a node that was fenced while alive
// registers again with a greater boot and is in sync again, and nothing is lost.
func TestFencedNodeBeginsNewLife(t *testing.T) {
	nodes, table := startThree(t)
	kv := kvClient(t, nodes[0])
	put(t, kv, table.Id, "k", "v")
	victim := nodes[2].Identity()
	stream, err := kvClient(t, nodes[2]).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&rhumbpb.ClientFrame{Hello: &rhumbpb.Hello{Protocol: api.Protocol}, Requests: []*rhumbpb.Request{{Id: 1}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the stream is open
		t.Fatal(err)
	}
	res, err := nodes[0].member.Load().group.Propose(t.Context(), catalog.FenceNode{Node: victim.Node, Boot: victim.Boot})
	if err != nil || res.Err() != nil {
		t.Fatal(err, res.Err())
	}
	await(t, "the node lives again", func() bool {
		d, ok := nodes[0].State().Node(victim.Node)
		return ok && d.State == rhumb.NodeLive && d.Boot > victim.Boot
	})
	if f, err := stream.Recv(); err == nil { // otherwise the client would keep using the old life, which serves nothing
		t.Fatalf("a stream to the old life of the node goes on: %v", f)
	}
	awaitReady(t, nodes[2])
	awaitInSync(t, nodes[0], 3)
	if got := get(t, kvClient(t, nodes[2]), table.Id, "k"); got != "v" {
		t.Fatalf("k is %q", got)
	}
}

// TestLinearizeWithoutLeader guards that a node that is cut off from the metadata says so before its caller gives up, so that the
// caller can ask another node.
func TestLinearizeWithoutLeader(t *testing.T) {
	nodes := startRegion(t)
	nodes[0].Close()
	nodes[1].Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := nodes[2].Linearize(ctx); rhumb.KindOf(err) != rhumb.Unavailable || ctx.Err() != nil {
		t.Errorf("without a leader: %v", err)
	}
}

// TestDrainRefusesNothing guards that a node gives up its primaries before it stops: none is left,
// and the node reports that it should not receive requests.
func TestDrainRefusesNothing(t *testing.T) {
	nodes, table := startThree(t)
	kv := kvClient(t, nodes[0])
	put(t, kv, table.Id, "k", "v")
	if err := nodes[2].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The drained node has seen it. Another node may see it later.
	await(t, "the drained node to be primary of nothing", func() bool {
		for r := range nodes[0].State().Ranges() {
			if r.Primary == nodes[2].Identity().Node {
				return false
			}
		}
		return true
	})
	if nodes[2].Ready() == nil {
		t.Error("a drained node calls itself ready")
	}
	nodes[2].Close()
	put(t, kv, table.Id, "k", "w")
	if got := get(t, kv, table.Id, "k"); got != "w" {
		t.Fatalf("k is %q", got)
	}
}

// TestWholeClusterRestarts guards that everything acknowledged is there after all nodes stopped and
// started again.
func TestWholeClusterRestarts(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	zones := []string{"a", "b", "c"}
	var nodes []*Node
	var addrs []string
	for i, dir := range dirs {
		n := startNode(t, dir, "singapore", zones[i], addrs...)
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
		if i == 0 {
			if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	awaitReady(t, nodes...)
	table := createTable(t, nodes[0], "flights", 3)
	kv := kvClient(t, nodes[0])
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		put(t, kv, table.Id, k, "value of "+k)
	}
	for _, n := range nodes {
		n.Close()
	}
	start := time.Now()
	nodes, addrs = nil, nil
	for i, dir := range dirs {
		n := startNode(t, dir, "singapore", zones[i], addrs...)
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	awaitReady(t, nodes...)
	kv = kvClient(t, nodes[1])
	for _, k := range []string{"a", "b", "c", "d", "e"} {
		if got := get(t, kv, table.Id, k); got != "value of "+k {
			t.Fatalf("%s is %q", k, got)
		}
	}
	t.Logf("serving %v after the first start", time.Since(start))
}

func TestHindrancesAreNotNested(t *testing.T) {
	nodes := startRegion(t)
	for _, n := range nodes {
		n.Close()
	}
	n := startNode(t, nodes[0].cfg.Dirs[0], nodes[0].cfg.Region, nodes[0].cfg.Zone)
	await(t, "a node without its peers reports what hinders it", func() bool { return n.obstacle.Load() != nil })
	_, _, _, err := n.Join(t.Context(), catalog.RegisterNode{})
	if rhumb.KindOf(err) != rhumb.Unavailable || strings.Contains(rhumb.Message(err), n.obstacleText()) {
		t.Fatalf("Join at a node that is not in its cluster returned %v; the error must be unavailable and leave out %q", err, n.obstacleText())
	}
}

// TestLaterLifeIsLookedForWhereItIs guards that other nodes connect to a restarted node at its new
// address before it could register: the old address in the catalog may be all that keeps the
// metadata group from a majority.
func TestLaterLifeIsLookedForWhereItIs(t *testing.T) {
	n := startNode(t, t.TempDir(), "singapore", "a")
	if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	newAddr, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer newAddr.Close()
	met := make(chan struct{}, 1)
	go func() {
		if conn, err := newAddr.Accept(); err == nil {
			_ = conn.Close()
			met <- struct{}{}
		}
	}()
	g, err := peer.StartGossip(peer.GossipConfig{Name: "other", Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)},
		peer.Member{Cluster: n.Identity().Cluster, Node: 2, Boot: 2, Region: "singapore", Addr: newAddr.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	if err := g.Join([]string{n.GossipAddr()}); err != nil {
		t.Fatal(err)
	}
	await(t, "gossip is heard", func() bool { return len(n.gossip.Members()) == 2 })
	register := catalog.RegisterNode{
		Binary: rhumb.ThisBuild("test").String(), Store: rhumb.UUID{1}, Boot: 1, Nonce: 1, Region: "singapore", Zone: "b", HasLocation: true,
		Addr: "127.0.0.1:1", HeartbeatAddr: "127.0.0.1:1", AdminAddr: "127.0.0.1:1", // no node listens there
	}
	if res, err := n.member.Load().group.Propose(t.Context(), register); err != nil || res.Err() != nil || res.Node != 2 {
		t.Fatal(res, err)
	}
	select {
	case <-met:
	case <-time.After(20 * time.Second):
		t.Fatal("the node is looked for at its old address")
	}
	register.Node, register.Boot, register.Nonce, register.Addr = 2, 3, 3, "127.0.0.1:2"
	st := n.State()
	st, res, _ := st.Apply(register)
	if res.Err() != nil {
		t.Fatal(res.Err())
	}
	for _, d := range n.nodesByGossip(st) {
		if d.ID == 2 && d.Addr != register.Addr {
			t.Errorf("a node that has registered is looked for at %s, not at %s", d.Addr, register.Addr)
		}
	}
}

// TestInsertsAreNamedOnce guards that names of inserts are unique, and that the answer contains the
// name.
func TestInsertsAreNamedOnce(t *testing.T) {
	nodes, table := startThree(t)
	kv := kvClient(t, nodes[1])
	seen := map[string]bool{}
	for range 20 {
		retry(t, func(ctx context.Context) error {
			resp, err := kv.Do(ctx, &rhumbpb.Request{Hops: 2, Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{{
				Kind: rhumbpb.MutationKind_MUTATION_KIND_INSERT, Table: table.Id, Value: rhumb.EncodeOpaque(nil, []byte("x")),
			}}}})
			if err != nil {
				return err
			}
			name := string(resp.Outcome.Names[0])
			if seen[name] || len(name) != rhumb.SequenceNameSize {
				t.Errorf("the server gave the name %x, again or of a wrong size", name)
			}
			seen[name] = true
			return nil
		})
	}
}

// TestWrongClusterIsRefused guards that a node with the data of one cluster does not join another.
func TestWrongClusterIsRefused(t *testing.T) {
	dir := t.TempDir()
	a := startNode(t, dir, "singapore", "a")
	b := startNode(t, t.TempDir(), "singapore", "a")
	for _, n := range []*Node{a, b} {
		if _, err := clusterClient(t, n).Init(t.Context(), &rhumbpb.InitRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitReady(t, a, b)
	// A second node of a's cluster, so that a alone has no metadata majority and looks for others.
	c := startNode(t, t.TempDir(), "singapore", "b", a.Addr())
	d := startNode(t, t.TempDir(), "singapore", "c", a.Addr())
	awaitReady(t, c, d)
	await(t, "three voters", func() bool {
		voters := 0
		for n := range a.State().Nodes() {
			if n.Voter {
				voters++
			}
		}
		return voters == 3
	})
	for _, n := range []*Node{a, c, d} {
		n.Close()
	}
	fatal := make(chan error, 1)
	stray, err := Start(Config{
		Dirs: []string{dir}, Region: "singapore", Insecure: true, Join: []string{b.Addr()}, Logger: slog.New(slog.DiscardHandler),
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Fatal: func(err error) { fatal <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stray.Close()
	select {
	case err := <-fatal:
		if rhumb.KindOf(err) != rhumb.WrongCluster || !strings.Contains(err.Error(), "--join") {
			t.Fatalf("the node stopped with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the node waits for ever")
	}
}

// TestTwoNodesOnOneDirectory guards the lock on the directory.
func TestTwoNodesOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	startNode(t, dir, "singapore", "a")
	_, err := Start(Config{
		Dirs: []string{dir}, Region: "singapore", Insecure: true, Logger: slog.New(slog.DiscardHandler),
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
	})
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(err.Error(), dir) {
		t.Fatalf("a second node on %s: %v", dir, err)
	}
}

// TestDamagedStoreIsNotOpened guards that a flipped bit in the identity file of a store is
// detected, and that the error names the file.
func TestDamagedStoreIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	startNode(t, dir, "singapore", "a").Close()
	file := filepath.Join(dir, "STORE")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x10
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Start(Config{
		Dirs: []string{dir}, Region: "singapore", Insecure: true, Logger: slog.New(slog.DiscardHandler),
		Addr: "127.0.0.1:0", HeartbeatAddr: "127.0.0.1:0", GossipAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
	})
	if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "STORE") {
		t.Fatalf("a damaged store: %v", err)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	c := Config{Region: "no good", Location: rhumb.Point{Lat: 91}, Addr: "0.0.0.0:7600"}
	plain := c
	plain.Insecure, plain.Join, plain.Founder, plain.Identity = true, []string{"nonsense"}, true, identity.Files{CA: "x"}
	for _, tc := range []struct {
		c    Config
		want []string
	}{
		{c, []string{"--dir", "region name", "latitude 91", "--advertise HOST", "0.0.0.0:7600"}},
		{plain, []string{"--insecure and a certificate", "rhumb init", "not a loopback address", "nonsense"}},
	} {
		tc.c.SetDefaults()
		err := tc.c.Validate()
		if rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not name %q: %v", want, err)
			}
		}
	}
}

// TestInitAfterClose guards that an Init that a stopping node did not wait for finds the node
// closed and creates nothing.
func TestInitAfterClose(t *testing.T) {
	n := startNode(t, t.TempDir(), "here", "a")
	n.Close()
	if _, _, err := n.Init(t.Context()); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("%v, want %s", err, rhumb.Unavailable)
	}
}

// crashInInit returns a directory as a crash within Init leaves it: the metadata of the new cluster
// is stored, but not that the node belongs to it.
func crashInInit(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	n, _ := startAt(t, dir, "127.0.0.1:0")
	cmd := n.registerCommand()
	cmd.Cluster = rhumb.ClusterID{9}
	if _, err := raftmeta.Bootstrap(raftmeta.StoreKV(n.engine.Stores()[0], 0), catalog.Init{Cluster: cmd.Cluster, First: cmd}); err != nil {
		t.Fatal(err)
	}
	n.Close()
	return dir
}

// TestInitAfterCrash guards that Init can be repeated after a crash within it.
func TestInitAfterCrash(t *testing.T) {
	n, _ := startAt(t, crashInInit(t), "127.0.0.1:0")
	cluster, _, err := n.Init(t.Context())
	if err != nil || cluster == (rhumb.ClusterID{9}) {
		t.Fatalf("Init returned cluster %s, %v; want a new cluster", cluster, err)
	}
	awaitReady(t, n)
}

// TestJoinAfterCrashInInit guards that such a node can also join another cluster, and keeps nothing
// of its own.
func TestJoinAfterCrashInInit(t *testing.T) {
	first, _ := startAt(t, t.TempDir(), "127.0.0.1:0")
	cluster, _, err := first.Init(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, fatal := startAt(t, crashInInit(t), "127.0.0.1:0", first.Addr())
	await(t, "the node is in the cluster", func() bool {
		select {
		case err := <-fatal:
			t.Fatalf("the node stopped: %v", err)
		default:
		}
		return n.Ready() == nil
	})
	if got := n.State().Cluster(); got != cluster {
		t.Errorf("the metadata is of cluster %s, want %s", got, cluster)
	}
}

// TestSilentMemberIsNamed guards that the error for a silent member names its address, and not that
// a deadline was exceeded.
func TestSilentMemberIsNamed(t *testing.T) {
	n := startNode(t, t.TempDir(), "singapore", "a")
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = n.askToJoin(l.Addr().String())
	if rhumb.KindOf(err) != rhumb.Unavailable || !strings.Contains(rhumb.Message(err), l.Addr().String()) || !strings.Contains(rhumb.Message(err), "did not answer") {
		t.Errorf("the error is %v", err)
	}
}

// TestRegistersWithCurrentMetadata guards that a node that was down while the metadata changed has replayed the changes when it is
// registered: a replay that takes longer than the node may be silent would get it fenced again, in each of its lives.
func TestRegistersWithCurrentMetadata(t *testing.T) {
	nodes := startRegion(t)
	down := nodes[2].Identity()
	nodes[2].Close()
	meta := nodes[0].member.Load().group
	for i := range 300 {
		res, err := meta.Propose(t.Context(), catalog.CreateRole{Name: fmt.Sprintf("r%d", i)})
		if err != nil || res.Err() != nil {
			t.Fatal(err, res.Err())
		}
	}
	want := nodes[0].State().Revision()
	watch := meta.Watch()
	defer watch.Close()
	again := startNode(t, nodes[2].cfg.Dirs[0], nodes[2].cfg.Region, nodes[2].cfg.Zone, nodes[0].Addr())
	for {
		u, err := watch.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := u.State.Node(down.Node); !ok || d.Boot <= down.Boot {
			continue
		}
		// This is the first state with the registration. The copy of the node can only have grown since.
		if got := again.State().Revision(); got < want {
			t.Errorf("the node was registered at revision %d of its copy, want %d at least", got, want)
		}
		break
	}
	awaitReady(t, again)
}

// TestStartingNodeDeniesNothing guards that a node without a member, as in the moments of its start, calls itself not current, and that
// requests stop waiting for it when they end.
func TestStartingNodeDeniesNothing(t *testing.T) {
	nodes := startRegion(t)
	m := nodes[2].member.Swap(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if nodes[2].isCurrent() || nodes[2].awaitCurrent(ctx) {
		t.Error("a node without a member is current")
	}
	done := make(chan bool, 1)
	go func() { done <- nodes[2].awaitCurrent(t.Context()) }()
	nodes[2].member.Store(m)
	if !<-done {
		t.Error("the node did not become current")
	}
}
