package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// node is a node whose catalog changes at once. It records the requests that it gets.
type node struct {
	Node
	w       *world
	st      *catalog.State
	decided *catalog.State // what the group decided and st may lag behind, or nil
	info    Info
	joined  catalog.RegisterNode
	drained rhumb.NodeID
	hangs   rhumb.NodeID // does not answer about its replicas
	behind  map[rhumb.NodeID]string
	// discarded and recovered are the last requests to give up data.
	discarded discardRequest
	recovered catalog.RecoverRange
}

type discardRequest struct {
	node       rhumb.NodeID
	id         rhumb.RangeID
	acceptLoss bool
}

func (n *node) VerifyRange(context.Context, rhumb.NodeID, *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	return &rhumbpb.VerifyRangeResponse{}, nil
}

func (n *node) DiscardReplica(_ context.Context, id rhumb.NodeID, r rhumb.RangeID, acceptLoss bool) error {
	n.discarded = discardRequest{id, r, acceptLoss}
	if !acceptLoss {
		return rhumb.E("test", rhumb.Conflict, "it is the last copy")
	}
	return nil
}

func (n *node) RecoverRange(_ context.Context, cmd catalog.RecoverRange) (*rhumb.Range, error) {
	n.recovered = cmd
	if cmd.Version == 0 {
		return nil, rhumb.E("test", rhumb.Conflict, "the record has changed")
	}
	r, _ := n.State().Range(cmd.Range)
	return r, nil
}

func (n *node) Ping() Info                { return n.info }
func (n *node) Info(context.Context) Info { return n.info }

func (n *node) State() *catalog.State {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.st
}

func (n *node) Linearize(context.Context) (*catalog.State, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.decided != nil {
		n.st = n.decided
	}
	return n.st, nil
}

func (n *node) apply(cmd catalog.Command) catalog.Result {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	st, res, _ := n.st.Apply(place.Complete(n.st, cmd))
	n.st = st
	return res
}

func (n *node) Join(_ context.Context, cmd catalog.RegisterNode) (rhumb.NodeIdentity, rhumb.RegionID, *catalog.State, error) {
	n.joined = cmd
	res := n.apply(cmd)
	return rhumb.NodeIdentity{Node: res.Node, Store: cmd.Store, Boot: cmd.Boot}, res.Region, n.State(), res.Err()
}

func (n *node) ChangeAccess(_ context.Context, cmd catalog.Command) (*catalog.State, error) {
	res := n.apply(cmd)
	return n.State(), res.Err()
}

func (n *node) CreateTable(_ context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error) {
	res := n.apply(cmd)
	t, _ := n.State().Table(res.Table)
	return t, n.State(), res.Err()
}

func (n *node) DrainNode(ctx context.Context, id rhumb.NodeID, undo bool) (int, error) {
	n.drained = id
	if _, limited := ctx.Deadline(); !limited || undo {
		return 0, rhumb.E("test", rhumb.InvalidArgument, "no limit")
	}
	return 4, nil
}

func (n *node) RangeInfo(ctx context.Context, id rhumb.NodeID, _ rhumb.RangeID) (RangeInfo, error) {
	if id == n.hangs {
		<-ctx.Done()
		return RangeInfo{}, ctx.Err()
	}
	if id == 3 {
		return RangeInfo{}, rhumb.E("test", rhumb.Unavailable, "the line is cut")
	}
	return RangeInfo{State: "follower", Epoch: 1, End: 10, Commit: 9, Trim: 2, Bytes: 1_000, Behind: n.behind}, nil
}

func (n *node) Watch() (*raftmeta.Watch, error) {
	return nil, rhumb.E("test", rhumb.Unavailable, "not followed here")
}

func (n *node) Init(context.Context) (rhumb.ClusterID, rhumb.NodeID, error) {
	return rhumb.ClusterID{}, 0, rhumb.E("test", rhumb.AlreadyExists, "the node belongs to a cluster already")
}

func register(i byte) catalog.RegisterNode {
	return catalog.RegisterNode{
		Binary: testBinary, Store: rhumb.UUID{i}, Boot: 1, Nonce: uint64(i), Region: "singapore", Zone: string('a' + rune(i)), HasLocation: true,
		Addr: fmt.Sprintf("127.0.0.%d:1", i), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
	}
}

func startCluster(t *testing.T) (*node, rhumbpb.ClusterClient) {
	t.Helper()
	n := &node{w: newWorld(), st: catalog.New()}
	return n, rhumbpb.NewClusterClient(serve(t, func(s *grpc.Server) { NewCluster(n).Register(s) }))
}

func kindOf(t *testing.T, err error) rhumb.Kind {
	t.Helper()
	if err == nil {
		return rhumb.Other
	}
	e, _, remote := api.FromStatus("test", err)
	if !remote {
		t.Fatalf("the transport failed: %v", err)
	}
	return e.Kind
}

// TestClusterBeforeInit guards that a node without a cluster describes itself, and rejects
// everything else with an error that says what to do.
func TestClusterBeforeInit(t *testing.T) {
	n, c := startCluster(t)
	n.info = Info{Region: "singapore", Ready: rhumb.E("test", rhumb.Unavailable, "run rhumb init"), Stores: []StoreInfo{{Dir: "d", Used: 1, Free: 2, Refuses: rhumb.E("test", rhumb.DiskFull, "full")}}}
	ping, err := c.Ping(t.Context(), &rhumbpb.PingRequest{})
	if err != nil || ping.Ready || ping.RegionName != "singapore" || ping.Protocol != api.Protocol {
		t.Fatalf("ping: %v, %v", ping, err)
	}
	st, err := c.Status(t.Context(), &rhumbpb.StatusRequest{})
	if err != nil || st.Ready || !strings.Contains(st.Reason, "rhumb init") || !strings.Contains(st.Stores[0].Refuses, "full") {
		t.Fatalf("status: %v, %v", st, err)
	}
	for name, call := range map[string]func(context.Context) error{
		"metadata": func(ctx context.Context) error {
			_, err := c.GetMetadata(ctx, &rhumbpb.GetMetadataRequest{})
			return err
		},
		"table": func(ctx context.Context) error {
			_, err := c.CreateTable(ctx, &rhumbpb.CreateTableRequest{})
			return err
		},
		"describe": func(ctx context.Context) error {
			_, err := c.DescribeTable(ctx, &rhumbpb.DescribeTableRequest{})
			return err
		},
		"range": func(ctx context.Context) error {
			_, err := c.DescribeRange(ctx, &rhumbpb.DescribeRangeRequest{})
			return err
		},
		"join":  func(ctx context.Context) error { _, err := c.Join(ctx, &rhumbpb.JoinRequest{}); return err },
		"drain": func(ctx context.Context) error { _, err := c.Drain(ctx, &rhumbpb.DrainRequest{}); return err },
		"watch": func(ctx context.Context) error {
			s, err := c.WatchMetadata(ctx, &rhumbpb.WatchMetadataRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	} {
		if k := kindOf(t, call(t.Context())); k != rhumb.Unavailable {
			t.Errorf("%s: %s, want unavailable", name, k)
		}
	}
	if _, err := c.Init(t.Context(), &rhumbpb.InitRequest{}); kindOf(t, err) != rhumb.AlreadyExists {
		t.Errorf("init: %v", err)
	}
}

// TestClusterHandlers guards the requests and responses of each handler.
func TestClusterHandlers(t *testing.T) {
	n, c := startCluster(t)
	if err := n.apply(catalog.Init{Cluster: cluster, First: register(1)}).Err(); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(2) {
		cmd := register(byte(i + 2))
		resp, err := c.Join(t.Context(), &rhumbpb.JoinRequest{
			Cluster: cluster[:], Identity: api.EncodeIdentity(rhumb.NodeIdentity{Store: cmd.Store, Boot: 1}), Nonce: cmd.Nonce, RegionName: cmd.Region,
			Node: &rhumbpb.Node{Zone: cmd.Zone, Location: &rhumbpb.Point{}, Addr: cmd.Addr, HeartbeatAddr: cmd.HeartbeatAddr, AdminAddr: cmd.AdminAddr, Binary: cmd.Binary},
		})
		if err != nil || resp.Identity.Node != i+2 || len(resp.Nodes) != int(i)+2 || string(resp.Cluster) != string(cluster[:]) {
			t.Fatalf("join: %v, %v", resp, err)
		}
		if cmd.Cluster = cluster; n.joined != cmd {
			t.Fatalf("joined as %+v, want %+v", n.joined, cmd)
		}
	}
	if _, err := c.Join(t.Context(), &rhumbpb.JoinRequest{Cluster: []byte("short")}); kindOf(t, err) != rhumb.InvalidArgument {
		t.Errorf("a cluster id of 5 bytes: %v", err)
	}
	table, err := c.CreateTable(t.Context(), &rhumbpb.CreateTableRequest{Name: "flights", Settings: &rhumbpb.ClassSettings{Replicas: 3, HashSlots: 8}})
	if err != nil || table.Table.Name != "flights" || table.Class.Settings.HashSlots != 8 {
		t.Fatalf("create: %v, %v", table, err)
	}
	described, err := c.DescribeTable(t.Context(), &rhumbpb.DescribeTableRequest{Name: "flights"})
	if err != nil || described.Ranges != 8 {
		t.Errorf("describe: %v, %v", described, err)
	}
	if _, err := c.DescribeTable(t.Context(), &rhumbpb.DescribeTableRequest{Name: "crews"}); kindOf(t, err) != rhumb.NotFound {
		t.Errorf("no such table: %v", err)
	}
	behind := n.State()
	if err := n.apply(catalog.CreateTable{Name: "gates", Settings: rhumb.DefaultClassSettings()}).Err(); err != nil {
		t.Fatal(err)
	}
	n.st, n.decided = behind, n.st
	if late, err := c.DescribeTable(t.Context(), &rhumbpb.DescribeTableRequest{Name: "gates"}); err != nil || late.Revision != n.decided.Revision() {
		t.Errorf("a table that this node has not heard of: %v, %v", late, err)
	}
	n.st, n.decided = behind, nil
	md, err := c.GetMetadata(t.Context(), &rhumbpb.GetMetadataRequest{})
	if err != nil || !md.Full || md.More || len(md.Nodes) != 3 || len(md.Ranges) != 8 || len(md.Tables) != 1 || md.Revision != n.State().Revision() {
		t.Errorf("metadata: %v, %v", md, err)
	}
	drained, err := c.Drain(t.Context(), &rhumbpb.DrainRequest{Node: 2, TimeoutUs: 1_000_000})
	if err != nil || drained.Primaries != 4 || n.drained != 2 {
		t.Errorf("drain: %v, %v", drained, err)
	}
}

// TestGetMetadataWaits guards that a client that knows of a revision gets no older one.
func TestGetMetadataWaits(t *testing.T) {
	n, c := startCluster(t)
	n.apply(catalog.Init{Cluster: cluster, First: register(1)})
	want := n.State().Revision() + 1
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.GetMetadata(ctx, &rhumbpb.GetMetadataRequest{RevisionMin: want}); err == nil {
		t.Fatal("an old catalog was given")
	}
	got := make(chan *rhumbpb.Metadata, 1)
	go func() {
		md, _ := c.GetMetadata(t.Context(), &rhumbpb.GetMetadataRequest{RevisionMin: want})
		got <- md
	}()
	n.apply(register(2))
	if md := <-got; md.GetRevision() < want || len(md.GetNodes()) != 2 {
		t.Fatalf("got %v", md)
	}
}

// TestDescribeRange guards that a replica that does not answer does not hide the others, and that
// the primary's reasons are listed with the replicas that lag.
func TestDescribeRange(t *testing.T) {
	n, c := startCluster(t)
	n.apply(catalog.Init{Cluster: cluster, First: register(1)})
	n.apply(register(2))
	n.apply(register(3))
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = 3
	if err := n.apply(catalog.CreateTable{Name: "flights", Settings: settings}).Err(); err != nil {
		t.Fatal(err)
	}
	n.behind = map[rhumb.NodeID]string{1: "one is behind", 2: "two is behind"}
	var last rhumb.RangeID
	for r := range n.State().Ranges() {
		resp, err := c.DescribeRange(t.Context(), &rhumbpb.DescribeRangeRequest{Range: api.EncodeRangeID(r.ID)})
		if err != nil || len(resp.Replicas) != 3 {
			t.Fatal(resp, err)
		}
		last = r.ID
		for _, p := range resp.Replicas {
			switch {
			// No name of a function and no word of the transport: people read this.
			case p.Node == 3 && (p.Reason != "not reached: the line is cut" || p.ErrorKind != "unavailable"):
				t.Errorf("node 3: %v", p)
			case p.Node == 1 && r.Primary != 3 && (p.Reason != "one is behind" || p.End != 10):
				t.Errorf("node 1: %v", p)
			}
		}
		if r.Primary != 3 && resp.SizeBytes != 1_000 {
			t.Errorf("the range has %d bytes", resp.SizeBytes)
		}
	}
	n.hangs = 2
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	resp, err := c.DescribeRange(ctx, &rhumbpb.DescribeRangeRequest{Range: api.EncodeRangeID(last)})
	if err != nil || len(resp.Replicas) != 3 || !strings.HasPrefix(resp.Replicas[1].Reason, "no answer within ") || resp.Replicas[1].ErrorKind != "deadline_exceeded" || resp.Replicas[0].ErrorKind != "" || resp.Replicas[0].End != 10 {
		t.Errorf("with a member that hangs: %v, %v", resp, err)
	}
	if _, err := c.DescribeRange(t.Context(), &rhumbpb.DescribeRangeRequest{Range: &rhumbpb.RangeID{Region: 9}}); kindOf(t, err) != rhumb.NotFound {
		t.Errorf("no such range: %v", err)
	}
}
