package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/peer"
)

// gossipKnows reports whether the gossip of a node knows n nodes of its cluster.
func gossipKnows(node *Node, n int) func() bool {
	return func() bool {
		known := map[rhumb.NodeID]bool{}
		for _, m := range node.gossip.Members() {
			if m.Cluster == node.Identity().Cluster && m.Node != rhumb.NoNode {
				known[m.Node] = true
			}
		}
		return len(known) >= n
	}
}

// TestNextGossipKeys walks through a rotation, also from the middle.
func TestNextGossipKeys(t *testing.T) {
	ids := func(keys []rhumb.GossipKey) (out []uint32) {
		for _, k := range keys {
			out = append(out, k.ID)
		}
		return out
	}
	key := func(ids ...uint32) (out []rhumb.GossipKey) {
		for _, id := range ids {
			out = append(out, rhumb.GossipKey{ID: id, Secret: bytes.Repeat([]byte{byte(id)}, rhumb.GossipSecretSize)})
		}
		return out
	}
	for _, tt := range []struct {
		now, next []uint32
		last      bool
	}{
		{nil, []uint32{1}, true},
		{[]uint32{4}, []uint32{4, 5}, false},
		{[]uint32{4, 5}, []uint32{5, 4}, false},
		{[]uint32{5, 4}, []uint32{5}, true},
		{[]uint32{3, 4, 5}, []uint32{5, 3, 4}, false},
		{[]uint32{5, 3, 4}, []uint32{5}, true},
	} {
		next, last := nextGossipKeys(key(tt.now...))
		if fmt.Sprint(ids(next)) != fmt.Sprint(tt.next) || last != tt.last {
			t.Errorf("after %v: %v, last %v; want %v, %v", tt.now, ids(next), last, tt.next, tt.last)
		}
	}
	if a, _ := nextGossipKeys(nil); bytes.Equal(a[0].Secret, newGossipKey(1).Secret) {
		t.Error("two keys are equal")
	}
}

// TestRotateGossipKeys rotates the key of gossip while one of three nodes is stopped. Gossip works throughout,
// the stopped node learns the key when it returns, and one with the old key never gets in.
func TestRotateGossipKeys(t *testing.T) {
	a := identitytest.New(t)
	nodes := startSecureRegion(t, a)
	for _, n := range nodes {
		await(t, "gossip", gossipKnows(n, 3))
	}
	old := nodes[0].gossip.Keys()
	if old.Version != 1 || len(old.Keys) != 1 {
		t.Fatalf("the first keys have version %d and are %d", old.Version, len(old.Keys))
	}
	operator := rhumbpb.NewSecurityClient(dialAs(t, nodes[1], a.Operator(t, "ann").Source(t)))
	away := nodes[2]
	away.Close()

	// A live node that does not install the key stops the rotation: it could not read what others send. The
	// stopped node counts as live until it is fenced.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := operator.RotateGossipKeys(ctx, &rhumbpb.RotateGossipKeysRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Version != 4 || resp.Key != 2 || len(resp.Away) != 1 || resp.Away[0] != 3 {
		t.Fatalf("rotated: %v", resp)
	}
	now := nodes[0].gossip.Keys()
	if len(now.Keys) != 1 || bytes.Equal(now.Keys[0].Secret, old.Keys[0].Secret) {
		t.Fatalf("%d keys after the rotation, or the old one", len(now.Keys))
	}
	listed, err := operator.ListGossipKeys(ctx, &rhumbpb.ListGossipKeysRequest{})
	if err != nil || listed.Version != 4 || len(listed.Nodes) != 2 || listed.Nodes[0].GossipVersion != 4 {
		t.Fatalf("listed: %v, %v", listed, err)
	}
	if bytes.Contains([]byte(listed.String()+resp.String()), now.Keys[0].Secret) {
		t.Error("an operator got the key")
	}

	// It returns with the old key on its disk, and the others do not listen to that.
	back := startSecure(t, a, away.cfg.Dirs[0], "eu-3", nodes[0].Addr())
	awaitReady(t, back)
	await(t, "the new key at the node that was away", func() bool { return back.gossip.Keys().Version == 4 })
	for _, n := range []*Node{nodes[0], nodes[1], back} {
		await(t, "gossip after the rotation", gossipKnows(n, 3))
	}
	outsider, err := peer.StartGossip(peer.GossipConfig{Name: "outsider", Addr: "127.0.0.1:0", Encrypted: true, Logger: slog.New(slog.DiscardHandler)}, peer.Member{Addr: "x:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Close()
	if err := outsider.SetKeys(old); err != nil {
		t.Fatal(err)
	}
	if outsider.Join([]string{nodes[0].gossip.Addr()}) == nil {
		t.Error("the old key opens gossip")
	}
}

// TestGossipKeysSurviveRestart restarts a single node whose --join answers nobody: its copy of the metadata
// has the keys.
func TestGossipKeysSurviveRestart(t *testing.T) {
	a := identitytest.New(t)
	dir := filepath.Join(t.TempDir(), "n1")
	n := startSecure(t, a, dir, "eu-1")
	if _, _, err := n.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	want := n.gossip.Keys()
	n.Close()
	n = startSecure(t, a, dir, "eu-1", "127.0.0.1:1")
	awaitReady(t, n)
	if got := n.gossip.Keys(); got.Version != 1 || !bytes.Equal(got.Keys[0].Secret, want.Keys[0].Secret) {
		t.Fatalf("version %d", got.Version)
	}
}

// dialAs connects to a node with an identity.
func dialAs(t *testing.T, n *Node, src *identity.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := api.Connect(n.Addr(), nil, src.ClientCredentials(wantNode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestContactIsForNodes guards that only a node certificate opens the door to the keys of gossip, and that no
// service for clients returns them.
func TestContactIsForNodes(t *testing.T) {
	a := identitytest.New(t)
	n := startSecure(t, a, filepath.Join(t.TempDir(), "n1"), "eu-1")
	if _, _, err := n.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, n)
	secret := n.gossip.Keys().Keys[0].Secret
	for who, src := range map[string]*identity.Source{
		"a user": a.User(t, "app").Source(t), "an operator": a.Operator(t, "ann").Source(t), "nobody": a.Anonymous(t),
	} {
		c := rhumbpb.NewClusterClient(dialAs(t, n, src))
		if _, err := c.Contact(t.Context(), &rhumbpb.ContactRequest{}); err == nil {
			t.Errorf("%s got an answer", who)
		}
	}
	operator := rhumbpb.NewClusterClient(dialAs(t, n, a.Operator(t, "ann").Source(t)))
	m, err := operator.GetMetadata(t.Context(), &rhumbpb.GetMetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(m.String(), string(secret)) {
		t.Error("GetMetadata has the key of gossip")
	}
	if m.Nodes[0].Name != "eu-1" {
		t.Errorf("the node is named %q", m.Nodes[0].Name)
	}
	resp, err := rhumbpb.NewClusterClient(dialAs(t, n, a.Node(t, "eu-7").Source(t))).Contact(t.Context(), &rhumbpb.ContactRequest{})
	if err != nil || len(resp.Keys.GetKeys()) != 1 || !bytes.Equal(resp.Keys.Keys[0].Secret, secret) {
		t.Errorf("a node got %v", err)
	}
}
