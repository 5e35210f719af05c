package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/storage"
)

// StoreInfo is how one disk of a node stands.
type StoreInfo struct {
	Dir        string
	Store      rhumb.UUID
	Used, Free uint64
	Ranges     int
	// Refuses is why the store takes no writes, or nil.
	Refuses error
	// Damages lists what the store found damaged and lives with, DamagedRanges counts the ranges that it touches.
	Damages       []storage.Damage
	DamagedRanges int
}

// Sight is what a node has seen of another since it started.
type Sight struct {
	Node rhumb.NodeID
	// Fenced is how long the node has been fenced, at least; 0 when it is not.
	Fenced time.Duration
	// Lives counts the lives that the node began within the last minute.
	Lives int
}

// Info is how a node stands. All but Ready and Store is zero before it belongs to a cluster.
type Info struct {
	Cluster rhumb.ClusterID
	Node    rhumb.Node
	Region  string
	// Unfit is why the node has no primaries although it serves, or "".
	Unfit string
	// Ready is nil when the node serves.
	Ready             error
	Leader            rhumb.NodeID
	Ranges, Primaries int
	Stores            []StoreInfo
	Time              rhumb.Timestamp
	Uptime            time.Duration
	Suspects          []rhumb.NodeID
	Troubles          replica.Troubles
	Sights            []Sight
	// Metadata is how the node's replica of the metadata group stands, nil before there is one.
	Metadata *raftmeta.Status
}

// RangeInfo is how one replica of a range stands.
type RangeInfo struct {
	State             string
	Epoch             rhumb.Epoch
	End, Commit, Trim rhumb.Seq
	// EndTime and CommitTime are the timestamps of End and Commit.
	EndTime, CommitTime rhumb.Timestamp
	Bytes               int64
	// Reason is why it is not in sync, or cannot be told about.
	Reason string
	// Behind says why other replicas do not join the in-sync set; only the primary knows.
	Behind map[rhumb.NodeID]string
}

// Node answers what concerns the node or the cluster as a whole.
type Node interface {
	// Ping and Info tell how the node stands; Ping only from memory.
	Ping() Info
	Info(ctx context.Context) Info
	// State gives the newest catalog of this node, and is nil before there is one.
	State() *catalog.State
	// Linearize gives a catalog that has all that was decided before the call.
	Linearize(ctx context.Context) (*catalog.State, error)
	// Watch follows the catalog; its first update is full.
	Watch() (*raftmeta.Watch, error)
	Init(ctx context.Context) (rhumb.ClusterID, rhumb.NodeID, error)
	Join(ctx context.Context, cmd catalog.RegisterNode) (rhumb.NodeIdentity, rhumb.RegionID, *catalog.State, error)
	CreateTable(ctx context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error)
	DrainNode(ctx context.Context, n rhumb.NodeID, undo bool) (primaries int, err error)
	// RangeInfo asks any node about its replica of a range.
	RangeInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) (RangeInfo, error)
	// DiscardReplica makes any node drop its damaged copy of a range.
	DiscardReplica(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID, acceptLoss bool) error
	// RecoverRange lets a range go on from the copies that are left.
	RecoverRange(ctx context.Context, cmd catalog.RecoverRange) (*rhumb.Range, error)
}

// Cluster is the cluster service. It answers from the start; what needs a cluster is Unavailable before there is one.
type Cluster struct {
	rhumbpb.UnimplementedClusterServer
	node Node
}

// NewCluster makes the service.
func NewCluster(n Node) *Cluster { return &Cluster{node: n} }

// Register offers the service on a server.
func (c *Cluster) Register(s grpc.ServiceRegistrar) { rhumbpb.RegisterClusterServer(s, c) }

// pollInterval is how often GetMetadata looks whether the wanted revision has come.
const pollInterval = 5 * time.Millisecond

func fail(err error) error { return api.Status(err, api.Hint{}) }

// state gives the catalog, or Unavailable before there is one.
func (c *Cluster) state() (*catalog.State, error) {
	if st := c.node.State(); st != nil && !st.Cluster().IsZero() {
		return st, nil
	}
	why := "the node belongs to no cluster yet; run rhumb init on one node, or wait for it to join"
	if err := c.node.Ping().Ready; err != nil {
		why = rhumb.Message(err)
	}
	return nil, rhumb.E("server.Cluster", rhumb.Unavailable, why)
}

// Ping answers from memory.
func (c *Cluster) Ping(context.Context, *rhumbpb.PingRequest) (*rhumbpb.PingResponse, error) {
	i := c.node.Ping()
	resp := &rhumbpb.PingResponse{
		Cluster: api.EncodeUUID(i.Cluster), Node: uint32(i.Node.ID), Region: uint32(i.Node.Region), RegionName: i.Region,
		Timestamp: uint64(i.Time), Protocol: api.Protocol, Ready: i.Ready == nil,
	}
	if st := c.node.State(); st != nil {
		resp.Revision = st.Revision()
	}
	return resp, nil
}

// Status tells how this node stands.
func (c *Cluster) Status(ctx context.Context, _ *rhumbpb.StatusRequest) (*rhumbpb.StatusResponse, error) {
	i := c.node.Info(ctx)
	resp := &rhumbpb.StatusResponse{
		Cluster: api.EncodeUUID(i.Cluster), Node: api.EncodeNode(i.Node), Ready: i.Ready == nil, MetadataLeader: uint32(i.Leader),
		Ranges: uint32(i.Ranges), Primaries: uint32(i.Primaries), Timestamp: uint64(i.Time), UptimeNs: int64(i.Uptime),
	}
	if i.Ready != nil {
		resp.Reason = i.Ready.Error()
	} else {
		resp.Reason = i.Unfit
	}
	if st := c.node.State(); st != nil {
		resp.Revision = st.Revision()
	}
	for _, s := range i.Stores {
		p := &rhumbpb.StoreStatus{
			Dir: s.Dir, Id: api.EncodeUUID(s.Store), UsedBytes: s.Used, FreeBytes: s.Free, Ranges: uint32(s.Ranges), DamagedRanges: uint32(s.DamagedRanges),
		}
		for _, d := range s.Damages {
			p.Damages = append(p.Damages, &rhumbpb.StoreDamage{File: d.File, Offset: d.Offset, What: d.What, SetAside: d.SetAside})
		}
		if s.Refuses != nil {
			p.Refuses = s.Refuses.Error()
		}
		resp.Stores = append(resp.Stores, p)
	}
	for _, n := range i.Suspects {
		resp.Suspected = append(resp.Suspected, uint32(n))
	}
	addTroubles(resp, &i)
	resp.Metadata = encodeMetadata(i.Metadata)
	return resp, nil
}

func encodeMetadata(s *raftmeta.Status) *rhumbpb.MetadataReplica {
	if s == nil {
		return nil
	}
	p := &rhumbpb.MetadataReplica{Silent: s.Silent, Short: s.Short, WaitsFor: nodeNumbers(s.Waits), Readmits: nodeNumbers(s.Readmits)}
	if r := s.Recovered; r != nil {
		p.Recovered = &rhumbpb.MetadataRecovery{AtNs: r.At.UnixNano(), Term: r.Term, LastIndex: r.Last, Lost: nodeNumbers(r.Lost)}
	}
	return p
}

func nodeNumbers(ids []rhumb.NodeID) (out []uint32) {
	for _, id := range ids {
		out = append(out, uint32(id))
	}
	return out
}

func addTroubles(resp *rhumbpb.StatusResponse, i *Info) {
	for _, t := range i.Troubles.Listed {
		resp.Troubles = append(resp.Troubles, &rhumbpb.ReplicaTrouble{
			Kind: rhumbpb.ReplicaTroubleKind(t.Kind), Range: api.EncodeRangeID(t.Range), Node: uint32(t.Node), Reason: t.Reason,
		})
	}
	resp.TroubleCounts = make(map[uint32]uint32, len(i.Troubles.Counts))
	for kind, n := range i.Troubles.Counts {
		resp.TroubleCounts[uint32(kind)] = uint32(n)
	}
	for _, s := range i.Sights {
		resp.Sights = append(resp.Sights, &rhumbpb.NodeSight{Node: uint32(s.Node), FencedNs: int64(s.Fenced), Lives: uint32(s.Lives)})
	}
}

// GetMetadata gives the whole catalog.
func (c *Cluster) GetMetadata(ctx context.Context, q *rhumbpb.GetMetadataRequest) (*rhumbpb.Metadata, error) {
	st, err := c.state()
	for err == nil && st.Revision() < q.RevisionMin {
		select {
		case <-ctx.Done():
			return nil, fail(rhumb.Ef("server.Cluster.GetMetadata", rhumb.DeadlineExceeded, "this node has revision %d, not yet %d", st.Revision(), q.RevisionMin))
		case <-time.After(pollInterval):
		}
		st, err = c.state()
	}
	if err != nil {
		return nil, fail(err)
	}
	parts := api.EncodeMetadata(wholeMetadata(st))
	all := parts[0]
	for _, p := range parts[1:] {
		all.Ranges = append(all.Ranges, p.Ranges...)
	}
	all.More = false
	return all, nil
}

// WatchMetadata sends the whole catalog, then each change.
func (c *Cluster) WatchMetadata(_ *rhumbpb.WatchMetadataRequest, stream grpc.ServerStreamingServer[rhumbpb.Metadata]) error {
	if _, err := c.state(); err != nil {
		return fail(err)
	}
	w, err := c.node.Watch()
	if err != nil {
		return fail(err)
	}
	defer w.Close()
	for {
		u, err := w.Next(stream.Context())
		if err != nil {
			return fail(err)
		}
		m := changedMetadata(u.State, u.Changes)
		if u.Full {
			m = wholeMetadata(u.State)
		}
		for _, part := range api.EncodeMetadata(m) {
			if err := stream.Send(part); err != nil {
				return err
			}
		}
	}
}

func wholeMetadata(st *catalog.State) *api.Metadata {
	m := &api.Metadata{Revision: st.Revision(), Full: true, Cluster: st.Cluster()}
	for r := range st.Regions() {
		m.Regions = append(m.Regions, r)
	}
	for n := range st.Nodes() {
		m.Nodes = append(m.Nodes, *n)
	}
	for x := range st.Classes() {
		m.Classes = append(m.Classes, *x)
	}
	for t := range st.Tables() {
		m.Tables = append(m.Tables, *t)
	}
	for b := range st.Blocks() {
		m.Blocks = append(m.Blocks, *b)
	}
	for r := range st.Ranges() {
		m.Ranges = append(m.Ranges, r)
	}
	return m
}

func changedMetadata(st *catalog.State, ch catalog.Changes) *api.Metadata {
	m := &api.Metadata{Revision: st.Revision(), Cluster: st.Cluster()}
	for _, id := range ch.Regions {
		if r, ok := st.Region(id); ok {
			m.Regions = append(m.Regions, r)
		}
	}
	for _, id := range ch.Nodes {
		if n, ok := st.Node(id); ok {
			m.Nodes = append(m.Nodes, *n)
		} else {
			m.RemovedNodes = append(m.RemovedNodes, id)
		}
	}
	for _, id := range ch.Classes {
		if x, ok := st.Class(id); ok {
			m.Classes = append(m.Classes, *x)
		}
	}
	for _, id := range ch.Tables {
		if t, ok := st.Table(id); ok {
			m.Tables = append(m.Tables, *t)
		} else {
			m.RemovedTables = append(m.RemovedTables, id)
		}
	}
	for _, id := range ch.Blocks {
		if b, ok := st.BlockOf(id); ok {
			m.Blocks = append(m.Blocks, *b)
		}
	}
	for _, id := range ch.Ranges {
		if r, ok := st.Range(id); ok {
			m.Ranges = append(m.Ranges, r)
		} else {
			m.RemovedRanges = append(m.RemovedRanges, id)
		}
	}
	return m
}

// CreateTable makes a table.
func (c *Cluster) CreateTable(ctx context.Context, q *rhumbpb.CreateTableRequest) (*rhumbpb.CreateTableResponse, error) {
	if _, err := c.state(); err != nil {
		return nil, fail(err)
	}
	options, err := api.DecodeTableOptions(q)
	if err != nil {
		return nil, fail(err)
	}
	t, st, err := c.node.CreateTable(ctx, catalog.CreateTable{
		Name: q.Name, Settings: api.FillSettings(api.DecodeSettings(q.Settings)), TableOptions: options,
	})
	if err != nil {
		return nil, fail(err)
	}
	class, _ := st.Class(t.Class)
	return &rhumbpb.CreateTableResponse{Table: api.EncodeTable(*t), Class: api.EncodeClass(*class), Revision: st.Revision()}, nil
}

// DescribeTable tells about one table. One that this node does not know yet may have been made a moment ago through another
// node, so that no is said of it only with all that is decided.
func (c *Cluster) DescribeTable(ctx context.Context, q *rhumbpb.DescribeTableRequest) (*rhumbpb.DescribeTableResponse, error) {
	const op rhumb.Op = "server.Cluster.DescribeTable"
	st, err := c.state()
	if err != nil {
		return nil, fail(err)
	}
	t, ok := st.TableByName(q.Name)
	if !ok {
		if st, err = c.node.Linearize(ctx); err != nil {
			return nil, fail(rhumb.Wrap(op, err))
		}
		t, ok = st.TableByName(q.Name)
	}
	if !ok {
		return nil, fail(rhumb.Ef(op, rhumb.NotFound, "table %q does not exist; rhumb table ls lists those that do", q.Name))
	}
	class, _ := st.Class(t.Class)
	resp := &rhumbpb.DescribeTableResponse{Table: api.EncodeTable(*t), Class: api.EncodeClass(*class), Revision: st.Revision()}
	for r := range st.Ranges() {
		if r.Class == t.Class {
			resp.Ranges++
		}
	}
	return resp, nil
}

// replicaTimeout bounds how long one replica may take to say how it stands. It is less than a client's attempt, so that one
// that hangs does not keep the answers of the others.
const replicaTimeout = time.Second

// replicaInfo asks a node about its replica, for replicaTimeout or most of the time that the caller has left.
func (c *Cluster) replicaInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) RangeInfo {
	patience := replicaTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)*3/4)
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := c.node.RangeInfo(asking, n, id)
	switch {
	case err != nil && asking.Err() != nil:
		info.Reason = "no answer within " + patience.Round(time.Millisecond).String()
	case err != nil:
		info.Reason = "not reached: " + err.Error()
	}
	return info
}

// DescribeRange asks every replica of a range how it stands. Those that do not answer are in the answer too, with the reason.
func (c *Cluster) DescribeRange(ctx context.Context, q *rhumbpb.DescribeRangeRequest) (*rhumbpb.DescribeRangeResponse, error) {
	const op rhumb.Op = "server.Cluster.DescribeRange"
	st, err := c.state()
	if err != nil {
		return nil, fail(err)
	}
	id := api.DecodeRangeID(q.Range)
	r, ok := st.Range(id)
	if !ok {
		return nil, fail(rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; rhumb range ls lists those that do", id))
	}
	infos := make([]RangeInfo, len(r.Replicas))
	var wait sync.WaitGroup
	for i, n := range r.Replicas {
		wait.Go(func() { infos[i] = c.replicaInfo(ctx, n, id) })
	}
	wait.Wait()
	resp := &rhumbpb.DescribeRangeResponse{Range: api.EncodeRange(r)}
	var behind map[rhumb.NodeID]string
	for i, n := range r.Replicas {
		if n == r.Primary {
			behind = infos[i].Behind
			resp.SizeBytes = uint64(max(infos[i].Bytes, 0))
		}
	}
	for i, n := range r.Replicas {
		f := &infos[i]
		if f.Reason == "" {
			f.Reason = behind[n]
		}
		resp.Replicas = append(resp.Replicas, &rhumbpb.ReplicaStatus{
			Node: uint32(n), State: f.State, InSync: r.IsInSync(n), Epoch: uint64(f.Epoch),
			End: uint64(f.End), Commit: uint64(f.Commit), Trim: uint64(f.Trim), Reason: f.Reason,
			EndTime: uint64(f.EndTime), CommitTime: uint64(f.CommitTime),
		})
	}
	return resp, nil
}

// Init founds a cluster.
func (c *Cluster) Init(ctx context.Context, _ *rhumbpb.InitRequest) (*rhumbpb.InitResponse, error) {
	cluster, n, err := c.node.Init(ctx)
	if err != nil {
		return nil, fail(err)
	}
	return &rhumbpb.InitResponse{Cluster: api.EncodeUUID(cluster), Node: uint32(n)}, nil
}

// Join registers a node.
func (c *Cluster) Join(ctx context.Context, q *rhumbpb.JoinRequest) (*rhumbpb.JoinResponse, error) {
	if _, err := c.state(); err != nil {
		return nil, fail(err)
	}
	cmd, err := registration(q)
	if err != nil {
		return nil, fail(err)
	}
	id, region, st, err := c.node.Join(ctx, cmd)
	if err != nil {
		return nil, fail(err)
	}
	resp := &rhumbpb.JoinResponse{Cluster: api.EncodeUUID(st.Cluster()), Identity: api.EncodeIdentity(id), Region: uint32(region), Revision: st.Revision()}
	for n := range st.Nodes() {
		resp.Nodes = append(resp.Nodes, api.EncodeNode(*n))
	}
	return resp, nil
}

func registration(q *rhumbpb.JoinRequest) (catalog.RegisterNode, error) {
	cluster, err := api.DecodeUUID(q.Cluster)
	if err != nil {
		return catalog.RegisterNode{}, err
	}
	id, err := api.DecodeIdentity(q.Identity)
	if err != nil {
		return catalog.RegisterNode{}, err
	}
	n := q.GetNode()
	return catalog.RegisterNode{
		Cluster: cluster, Node: id.Node, Store: id.Store, Boot: id.Boot, Nonce: q.Nonce, Previous: q.PreviousNonce, Short: q.Short,
		Region: q.RegionName, Zone: n.GetZone(), Location: api.DecodePoint(n.GetLocation()), HasLocation: n.GetLocation() != nil,
		Addr: n.GetAddr(), HeartbeatAddr: n.GetHeartbeatAddr(), AdminAddr: n.GetAdminAddr(), Binary: n.GetBinary(),
	}, nil
}

// Drain makes a node give up its primaries.
func (c *Cluster) Drain(ctx context.Context, q *rhumbpb.DrainRequest) (*rhumbpb.DrainResponse, error) {
	if _, err := c.state(); err != nil {
		return nil, fail(err)
	}
	if q.TimeoutUs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, api.DecodeMicros(q.TimeoutUs))
		defer cancel()
	}
	left, err := c.node.DrainNode(ctx, rhumb.NodeID(q.Node), q.Undo)
	if err != nil {
		return nil, fail(err)
	}
	return &rhumbpb.DrainResponse{Primaries: uint32(left)}, nil
}

// DiscardReplica makes a node drop its damaged copy of a range.
func (c *Cluster) DiscardReplica(ctx context.Context, q *rhumbpb.DiscardReplicaRequest) (*rhumbpb.DiscardReplicaResponse, error) {
	if err := c.checkReplica(api.DecodeRangeID(q.Range), rhumb.NodeID(q.Node)); err != nil {
		return nil, fail(err)
	}
	if err := c.node.DiscardReplica(ctx, rhumb.NodeID(q.Node), api.DecodeRangeID(q.Range), q.AcceptLoss); err != nil {
		return nil, fail(err)
	}
	return &rhumbpb.DiscardReplicaResponse{}, nil
}

// RecoverRange accepts the loss of what no intact copy of a range holds.
func (c *Cluster) RecoverRange(ctx context.Context, q *rhumbpb.RecoverRangeRequest) (*rhumbpb.RecoverRangeResponse, error) {
	if err := c.checkReplica(api.DecodeRangeID(q.Range), rhumb.NodeID(q.Node)); err != nil {
		return nil, fail(err)
	}
	r, err := c.node.RecoverRange(ctx, catalog.RecoverRange{
		Range: api.DecodeRangeID(q.Range), Version: q.Version, Node: rhumb.NodeID(q.Node),
		End: rhumb.Seq(q.End), EndTime: rhumb.Timestamp(q.EndTime), Known: rhumb.Seq(q.Known),
	})
	if err != nil {
		return nil, fail(err)
	}
	return &rhumbpb.RecoverRangeResponse{Range: api.EncodeRange(r)}, nil
}

// checkReplica returns an error unless a node holds a copy of a range.
func (c *Cluster) checkReplica(id rhumb.RangeID, n rhumb.NodeID) error {
	const op rhumb.Op = "server.Cluster"
	st, err := c.state()
	if err != nil {
		return err
	}
	r, ok := st.Range(id)
	switch {
	case !ok:
		return rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; rhumb range ls lists those that do", id)
	case !r.IsReplica(n):
		return rhumb.Ef(op, rhumb.NotFound, "node %s holds no copy of range %s; %v do", n, id, r.Replicas)
	}
	return nil
}
