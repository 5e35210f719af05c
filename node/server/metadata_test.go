package server

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/storage"
)

// blockKey identifies a block: a region and its first slot.
type blockKey struct {
	region rhumb.RegionID
	first  rhumb.Slot
}

// mirror is the catalog of a client: it applies updates as they come over the wire.
type mirror struct {
	revision uint64
	regions  map[rhumb.RegionID]rhumb.Region
	nodes    map[rhumb.NodeID]rhumb.Node
	classes  map[rhumb.ClassID]rhumb.Class
	tables   map[rhumb.TableID]rhumb.Table
	blocks   map[blockKey]rhumb.Block
	ranges   map[rhumb.RangeID]rhumb.Range
}

// apply decodes the parts of one update and applies them.
func (m *mirror) apply(t *testing.T, parts ...*rhumbpb.Metadata) {
	t.Helper()
	u, err := api.DecodeMetadata(parts...)
	if err != nil {
		t.Fatal(err)
	}
	if u.Full {
		*m = mirror{
			regions: map[rhumb.RegionID]rhumb.Region{}, nodes: map[rhumb.NodeID]rhumb.Node{}, classes: map[rhumb.ClassID]rhumb.Class{},
			tables: map[rhumb.TableID]rhumb.Table{}, blocks: map[blockKey]rhumb.Block{}, ranges: map[rhumb.RangeID]rhumb.Range{},
		}
	}
	m.revision = u.Revision
	for _, r := range u.Regions {
		m.regions[r.ID] = r
	}
	for _, n := range u.Nodes {
		m.nodes[n.ID] = n
	}
	for _, x := range u.Classes {
		m.classes[x.ID] = x
	}
	for _, x := range u.Tables {
		m.tables[x.ID] = x
	}
	for _, b := range u.Blocks {
		m.blocks[blockKey{b.Region, b.First}] = b
	}
	for _, r := range u.Ranges {
		m.ranges[r.ID] = *r
	}
	for _, id := range u.RemovedNodes {
		delete(m.nodes, id)
	}
	for _, id := range u.RemovedTables {
		delete(m.tables, id)
	}
	for _, id := range u.RemovedRanges {
		delete(m.ranges, id)
	}
}

// TestChangesAddUpToTheCatalog guards that a client that applies each change has, after every command,
// the catalog of a client that asks for all of it.
func TestChangesAddUpToTheCatalog(t *testing.T) {
	st := catalog.New()
	var followed mirror
	followed.apply(t, api.EncodeMetadata(wholeMetadata(st))...)
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots = 8
	far := register(4)
	far.Region = "frankfurt"
	for _, cmd := range []catalog.Command{
		catalog.Init{Cluster: cluster, First: register(1)},
		register(2),
		register(3),
		far,
		catalog.CreateTable{Name: "flights", Settings: settings},
		catalog.CreateTable{Name: "crews", Settings: settings},
		catalog.OpenSlot{Node: 1, Class: 1},
		catalog.SetNodeState{Node: 2, Boot: 1, State: rhumb.NodeDraining},
		catalog.FenceNode{Node: 3, Boot: 1},
		catalog.FenceNode{Node: 4, Boot: 1},
		catalog.SetRegionDead{Region: 2},
	} {
		next, res, changes := st.Apply(place.Complete(st, cmd))
		if err := res.Err(); err != nil {
			t.Fatal(err)
		}
		st = next
		followed.apply(t, api.EncodeMetadata(changedMetadata(st, changes))...)
		var whole mirror
		whole.apply(t, api.EncodeMetadata(wholeMetadata(st))...)
		if !reflect.DeepEqual(followed, whole) {
			t.Fatalf("after %T the changes add up to\n%+v\nbut the catalog is\n%+v", cmd, followed, whole)
		}
	}
	if len(followed.ranges) < 9 || len(followed.nodes) != 4 || len(followed.tables) != 2 || len(followed.regions) != 2 {
		t.Errorf("the commands created %d ranges, %d nodes, %d tables, %d regions", len(followed.ranges), len(followed.nodes), len(followed.tables), len(followed.regions))
	}
}

// TestRemovedObjects guards that a change of an object that the catalog does not have removes it from
// a client's catalog.
func TestRemovedObjects(t *testing.T) {
	gone := rhumb.RangeID{Region: 1, Slot: 9}
	u := changedMetadata(catalog.New(), catalog.Changes{
		Nodes: []rhumb.NodeID{7}, Tables: []rhumb.TableID{8}, Ranges: []rhumb.RangeID{gone},
		Regions: []rhumb.RegionID{1}, Classes: []rhumb.ClassID{1}, Blocks: []rhumb.RangeID{gone},
	})
	m := mirror{
		nodes: map[rhumb.NodeID]rhumb.Node{7: {}}, tables: map[rhumb.TableID]rhumb.Table{8: {}}, ranges: map[rhumb.RangeID]rhumb.Range{gone: {}},
	}
	m.apply(t, api.EncodeMetadata(u)...)
	if len(m.nodes)+len(m.tables)+len(m.ranges) != 0 {
		t.Errorf("a client still has %+v", m)
	}
}

// noNetwork is the transport of a group of one.
type noNetwork struct{}

func (noNetwork) Send(rhumb.NodeID, raftmeta.GroupID, [][]byte) {}

func (noNetwork) Forward(context.Context, rhumb.NodeID, raftmeta.GroupID, []byte) ([]byte, error) {
	return nil, rhumb.E("test", rhumb.Unavailable, "there is nobody else")
}

// groupNode is a node whose catalog is that of a real metadata group of one.
type groupNode struct {
	Node
	group *raftmeta.Group
}

func (n *groupNode) State() *catalog.State           { return n.group.State() }
func (n *groupNode) Watch() (*raftmeta.Watch, error) { return n.group.Watch(), nil }

func openGroup(t *testing.T) *raftmeta.Group {
	t.Helper()
	store, err := storage.Open(storage.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	kv := raftmeta.StoreKV(store, 0)
	if _, err := raftmeta.Bootstrap(kv, catalog.Init{Cluster: cluster, First: register(1)}); err != nil {
		t.Fatal(err)
	}
	config := raftmeta.DefaultConfig()
	config.Node, config.KV, config.Transport = 1, kv, noNetwork{}
	g, err := raftmeta.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// TestWatchMetadata guards that a watch begins with the whole catalog, continues with changes, and ends
// with the group, so that a client turns to another node.
func TestWatchMetadata(t *testing.T) {
	g := openGroup(t)
	c := rhumbpb.NewClusterClient(serve(t, func(s *grpc.Server) { NewCluster(&groupNode{group: g}).Register(s) }))
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	defer cancel()
	w, err := c.WatchMetadata(ctx, &rhumbpb.WatchMetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var m mirror
	receive := func() *rhumbpb.Metadata {
		t.Helper()
		u, err := w.Recv()
		if err != nil || u.More {
			t.Fatalf("received %v, %v", u, err)
		}
		m.apply(t, u)
		return u
	}
	if first := receive(); !first.Full || len(m.nodes) != 1 {
		t.Fatalf("a watch begins with %v", first)
	}
	if _, err := g.Propose(ctx, catalog.AddRegion{Name: "frankfurt"}); err != nil {
		t.Fatal(err)
	}
	for len(m.regions) < 2 {
		if u := receive(); u.Full || len(u.Nodes) != 0 {
			t.Fatalf("a new region is told with %v", u)
		}
	}
	if m.revision != g.State().Revision() {
		t.Errorf("the client has revision %d, the group %d", m.revision, g.State().Revision())
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if u, err := w.Recv(); err == nil {
		t.Fatalf("a watch of a closed group goes on with %v", u)
	}
}

// TestStatusIsComplete guards that operators see every fact that a node knows of itself.
func TestStatusIsComplete(t *testing.T) {
	n, c := startCluster(t)
	at := time.Unix(1_700_000_000, 5)
	n.info = Info{
		Cluster: cluster, Node: rhumb.Node{ID: 1}, Unfit: "its clock is wrong", Leader: 3, Ranges: 10, Primaries: 4, Time: 77, Uptime: time.Minute,
		Stores: []StoreInfo{{
			Dir: "d", Used: 1, Free: 2, Ranges: 10, DamagedRanges: 1,
			Damages: []storage.Damage{{Store: "d", Fault: storage.Fault{File: "f", Offset: 12, What: "bad checksum"}, SetAside: "g"}},
		}},
		Suspects: []rhumb.NodeID{2, 3},
		Troubles: replica.Troubles{
			Listed: []replica.Trouble{{Kind: replica.Waiting, Range: home, Node: 1, Reason: "waiting for n2"}},
			Counts: map[replica.TroubleKind]int{replica.Waiting: 5},
		},
		Sights: []Sight{{Node: 2, Fenced: 3 * time.Second, Lives: 4}},
		Metadata: &raftmeta.Status{
			Silent: true, Short: true, Waits: []rhumb.NodeID{2}, Readmits: []rhumb.NodeID{3},
			Recovered: &raftmeta.Recovery{At: at, Term: 6, Last: 7, Lost: []rhumb.NodeID{4, 5}},
		},
	}
	s, err := c.Status(t.Context(), &rhumbpb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Ready || s.Reason != "its clock is wrong" || s.MetadataLeader != 3 || s.Ranges != 10 || s.Primaries != 4 || s.Timestamp != 77 || s.UptimeNs != int64(time.Minute) {
		t.Errorf("the node is described as %v", s)
	}
	if d := s.Stores[0]; d.DamagedRanges != 1 || len(d.Damages) != 1 || d.Damages[0].File != "f" || d.Damages[0].Offset != 12 || d.Damages[0].What != "bad checksum" || d.Damages[0].SetAside != "g" || d.Refuses != "" {
		t.Errorf("the store is described as %v", d)
	}
	if len(s.Suspected) != 2 || s.Suspected[1] != 3 {
		t.Errorf("it suspects %v", s.Suspected)
	}
	if len(s.Troubles) != 1 || s.Troubles[0].Reason != "waiting for n2" || s.Troubles[0].Kind != rhumbpb.ReplicaTroubleKind(replica.Waiting) || s.TroubleCounts[uint32(replica.Waiting)] != 5 {
		t.Errorf("its troubles are %v of %v", s.Troubles, s.TroubleCounts)
	}
	if len(s.Sights) != 1 || s.Sights[0].FencedNs != int64(3*time.Second) || s.Sights[0].Lives != 4 {
		t.Errorf("it has seen %v", s.Sights)
	}
	m := s.Metadata
	if !m.GetSilent() || !m.GetShort() || len(m.GetWaitsFor()) != 1 || len(m.GetReadmits()) != 1 || m.GetRecovered().GetAtNs() != at.UnixNano() || len(m.GetRecovered().GetLost()) != 2 {
		t.Errorf("its metadata replica is described as %v", m)
	}
}

// TestReplicaCommands guards that an operator's request to give up data reaches the node exactly as asked,
// and that one for a copy that does not exist names those that do.
func TestReplicaCommands(t *testing.T) {
	n, c := startCluster(t)
	n.apply(catalog.Init{Cluster: cluster, First: register(1)})
	n.apply(register(2))
	n.apply(register(3))
	n.apply(register(4))
	if err := n.apply(catalog.CreateTable{Name: "flights", Settings: rhumb.DefaultClassSettings()}).Err(); err != nil {
		t.Fatal(err)
	}
	var id rhumb.RangeID
	var without rhumb.NodeID
	for r := range n.State().Ranges() {
		for m := rhumb.NodeID(1); m <= 4; m++ {
			if !r.IsReplica(m) {
				id, without = r.ID, m
			}
		}
	}
	r, _ := n.State().Range(id)
	holder := r.Replicas[0]
	discard := func(at rhumb.RangeID, m rhumb.NodeID, acceptLoss bool) error {
		_, err := c.DiscardReplica(t.Context(), &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(at), Node: uint32(m), AcceptLoss: acceptLoss})
		return err
	}
	regain := func(at rhumb.RangeID, m rhumb.NodeID, version uint64) error {
		_, err := c.RecoverRange(t.Context(), &rhumbpb.RecoverRangeRequest{
			Range: api.EncodeRangeID(at), Version: version, Node: uint32(m), End: 10, EndTime: 20, Known: 30,
		})
		return err
	}
	for name, err := range map[string]error{
		"discard a copy that is not there": discard(id, without, true), "recover from a copy that is not there": regain(id, without, 1),
	} {
		if kindOf(t, err) != rhumb.NotFound || !strings.Contains(err.Error(), holder.String()) {
			t.Errorf("%s: %v, want not_found that names %s", name, err, holder)
		}
	}
	nowhere := rhumb.RangeID{Region: 9, Slot: 9}
	for name, err := range map[string]error{"discard": discard(nowhere, holder, true), "recover": regain(nowhere, holder, 1)} {
		if kindOf(t, err) != rhumb.NotFound {
			t.Errorf("%s of a range that does not exist: %v", name, err)
		}
	}
	if n.discarded != (discardRequest{}) || n.recovered != (catalog.RecoverRange{}) {
		t.Fatalf("a refused request was carried out: %+v, %+v", n.discarded, n.recovered)
	}
	if err := discard(id, holder, false); kindOf(t, err) != rhumb.Conflict || n.discarded != (discardRequest{holder, id, false}) {
		t.Errorf("discarded %+v: %v", n.discarded, err)
	}
	if err := discard(id, holder, true); err != nil || !n.discarded.acceptLoss {
		t.Errorf("discarded %+v: %v", n.discarded, err)
	}
	want := catalog.RecoverRange{Range: id, Version: r.Version, Node: holder, End: 10, EndTime: 20, Known: 30}
	if err := regain(id, holder, r.Version); err != nil || n.recovered != want {
		t.Errorf("recovered %+v: %v, want %+v", n.recovered, err, want)
	}
	if err := regain(id, holder, 0); kindOf(t, err) != rhumb.Conflict {
		t.Errorf("a record that has changed: %v", err)
	}
}
