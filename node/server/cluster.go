package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/storage"
)

// StoreInfo describes one disk of a node.
type StoreInfo struct {
	Dir        string
	Store      rhumb.UUID
	Used, Free uint64
	Ranges     int
	// Refuses is the reason why the store accepts no writes, or nil.
	Refuses error
	// Damages lists the damage that the store found and works around. DamagedRanges counts the ranges
	// that it affects.
	Damages       []storage.Damage
	DamagedRanges int
}

// Sight holds a node's observations of another node since its own start.
type Sight struct {
	Node rhumb.NodeID
	// Fenced is how long the node has been fenced, at least; 0 if it is not fenced.
	Fenced time.Duration
	// Lives counts the lives that the node began within the last minute.
	Lives int
}

// Info describes a node. Everything but Ready and Stores is zero before the node belongs to a
// cluster.
type Info struct {
	Cluster rhumb.ClusterID
	Node    rhumb.Node
	Region  string
	// Unfit is the reason why the node has no primaries although it serves, or "".
	Unfit string
	// Ready is nil if the node serves.
	Ready             error
	Leader            rhumb.NodeID
	Ranges, Primaries int
	Stores            []StoreInfo
	Time              rhumb.Timestamp
	Uptime            time.Duration
	Suspects          []rhumb.NodeID
	Troubles          replica.Troubles
	Sights            []Sight
	// Metadata describes the node's replica of the metadata group, nil before there is one.
	Metadata *raftmeta.Status
	// DatabaseFormat is the lowest format of the databases of the node.
	DatabaseFormat uint32
	// Differing are the ranges of this node's primaries whose replicas differ.
	Differing []digest.Difference
	// DeferredLosses are those of ranges of tables that defer syncs.
	DeferredLosses replica.DeferredLosses
	// Start holds the phases of the start of the process, in order.
	Start []StartPhase
}

// StartPhase is a part of the start of a process. The last one is their sum, "total", once the start is over.
type StartPhase struct {
	Name string
	Took time.Duration
}

// RangeInfo describes one replica of a range.
type RangeInfo struct {
	State             string
	Epoch             rhumb.Epoch
	End, Commit, Trim rhumb.Seq
	// EndTime and CommitTime are the timestamps of End and Commit.
	EndTime, CommitTime rhumb.Timestamp
	Bytes               int64
	// Reason is why the replica is not in sync, or why nothing is known about it. ErrKind is the kind of the error in the second case.
	Reason  string
	ErrKind rhumb.Kind
	// Behind explains for other replicas why they do not join the in-sync set. Only the primary knows
	// them.
	Behind map[rhumb.NodeID]string
	// Copying is the copy of the range that the node receives, nil if it receives none.
	Copying *rhumbpb.CopyProgress
	// Store is the number of the node's store that holds the replica, from 1, and 0 if the node has one store.
	Store uint32
}

// ContactInfo says how to reach the gossip of a node.
type ContactInfo struct {
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	Gossip  string
	Keys    rhumb.GossipKeys
}

// Node serves requests that concern the node or the cluster as a whole.
type Node interface {
	// Ping and Info describe the node. Ping uses memory only.
	Ping() Info
	Info(ctx context.Context) Info
	// State returns the newest catalog of this node, or nil before there is one.
	State() *catalog.State
	// Linearize returns a catalog with everything that was decided before the call.
	Linearize(ctx context.Context) (*catalog.State, error)
	// Watch follows the catalog. Its first update is complete.
	Watch() (*raftmeta.Watch, error)
	Init(ctx context.Context) (rhumb.ClusterID, rhumb.NodeID, error)
	Join(ctx context.Context, cmd catalog.RegisterNode) (rhumb.NodeIdentity, rhumb.RegionID, *catalog.State, error)
	CreateTable(ctx context.Context, cmd catalog.CreateTable) (*rhumb.Table, *catalog.State, error)
	// ChangeAccess proposes a command about access, and returns a catalog that includes it.
	ChangeAccess(ctx context.Context, cmd catalog.Command) (*catalog.State, error)
	DrainNode(ctx context.Context, n rhumb.NodeID, undo bool) (primaries int, err error)
	// RangeInfo asks any node about its replica of a range.
	RangeInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) (RangeInfo, error)
	// VerifyRange lets the primary of a range compare its replicas.
	VerifyRange(ctx context.Context, primary rhumb.NodeID, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error)
	// DiscardReplica makes any node drop its damaged copy of a range.
	DiscardReplica(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID, acceptLoss bool) error
	// RecoverRange makes a range continue with the remaining copies.
	RecoverRange(ctx context.Context, cmd catalog.RecoverRange) (*rhumb.Range, error)
	// Contact says where the node gossips. addr is where the calling node listens.
	Contact(ctx context.Context, addr string) (ContactInfo, error)
	// Propose applies a command of an operator to the catalog and returns a catalog that contains it.
	Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, *catalog.State, error)
}

// Cluster is the cluster service. It answers from the start of the process. Requests that need a
// cluster are rejected as Unavailable before there is one.
type Cluster struct {
	rhumbpb.UnimplementedClusterServer
	node Node
}

// NewCluster returns the service.
func NewCluster(n Node) *Cluster { return &Cluster{node: n} }

// Register registers the service.
func (c *Cluster) Register(s grpc.ServiceRegistrar) { rhumbpb.RegisterClusterServer(s, c) }

// pollInterval is how often GetMetadata checks whether the wanted revision has arrived.
const pollInterval = 5 * time.Millisecond

// statusError returns an error as a gRPC status.
func statusError(err error) error { return api.Status(err, api.Hint{}) }

// currentState returns the catalog, or an Unavailable error before there is one.
func (c *Cluster) currentState() (*catalog.State, error) {
	if st := c.node.State(); st != nil && !st.Cluster().IsZero() {
		return st, nil
	}
	// A node that could not register says why. Without that, operators run init on a node that has a
	// cluster and only cannot reach it.
	why := "the node belongs to no cluster yet; run `rhumb init` on one node, or wait for this one to join"
	if err := c.node.Ping().Ready; err != nil {
		why = rhumb.Message(err)
	}
	return nil, rhumb.E("server.Cluster", rhumb.Unavailable, why)
}

// Ping answers from memory, so that it measures the network and works while disks hang.
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

// Status describes this node.
func (c *Cluster) Status(ctx context.Context, _ *rhumbpb.StatusRequest) (*rhumbpb.StatusResponse, error) {
	i := c.node.Info(ctx)
	resp := &rhumbpb.StatusResponse{
		Cluster: api.EncodeUUID(i.Cluster), Node: api.EncodeNode(i.Node), Ready: i.Ready == nil, MetadataLeader: uint32(i.Leader),
		Ranges: uint32(i.Ranges), Primaries: uint32(i.Primaries), Timestamp: uint64(i.Time), UptimeNs: int64(i.Uptime),
	}
	// One field for both: a node that does not serve has no primaries to lose.
	if i.Ready != nil {
		resp.Reason = rhumb.Message(i.Ready)
	} else {
		resp.Reason = i.Unfit
	}
	resp.DatabaseFormat = i.DatabaseFormat
	if st := c.node.State(); st != nil {
		resp.Revision = st.Revision()
		resp.ClusterVersion = uint32(st.Version())
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
	addDifferences(resp, i.Differing)
	for _, phase := range i.Start {
		resp.StartPhases = append(resp.StartPhases, &rhumbpb.StartPhase{Name: phase.Name, TookNs: int64(phase.Took)})
	}
	if l := i.DeferredLosses; !l.Last.IsZero() {
		resp.DeferredLosses = &rhumbpb.DeferredLosses{UnsureEpochs: uint32(l.UnsureEpochs), Entries: l.Entries, LastNs: l.Last.UnixNano()}
	}
	resp.Metadata = encodeMetadata(i.Metadata)
	return resp, nil
}

// encodeMetadata encodes the state of the node's metadata replica.
func encodeMetadata(s *raftmeta.Status) *rhumbpb.MetadataReplica {
	if s == nil {
		return nil
	}
	p := &rhumbpb.MetadataReplica{Silent: s.Silent, Short: s.Short, WaitsFor: nodeNumbers(s.Waits), Readmits: nodeNumbers(s.Readmits)}
	p.Term, p.LastIndex, p.Applied = s.Term, s.Last, s.Applied
	if r := s.Recovered; r != nil {
		p.Recovered = &rhumbpb.MetadataRecovery{AtNs: r.At.UnixNano(), Term: r.Term, LastIndex: r.Last, Lost: nodeNumbers(r.Lost)}
	}
	return p
}

// nodeNumbers encodes node IDs.
func nodeNumbers(ids []rhumb.NodeID) (out []uint32) {
	for _, id := range ids {
		out = append(out, uint32(id))
	}
	return out
}

// addTroubles adds the problems that the node knows of to its status.
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

// differencesMax bounds the ranges that one status names. A damaged disk may affect all ranges of a node.
const differencesMax = 256

// addDifferences adds the ranges whose replicas differ to a status.
func addDifferences(resp *rhumbpb.StatusResponse, all []digest.Difference) {
	// The count is of all, so that a list that was cut shows.
	resp.DifferingCount = uint32(len(all))
	for _, d := range all[:min(len(all), differencesMax)] {
		resp.Differing = append(resp.Differing, &rhumbpb.RangeDifference{
			Range: api.EncodeRangeID(d.Range), Nodes: nodeNumbers(d.Nodes), Table: uint32(d.Table), Why: d.Why,
		})
	}
}

// GetMetadata returns the whole catalog, once it has the wanted revision.
func (c *Cluster) GetMetadata(ctx context.Context, q *rhumbpb.GetMetadataRequest) (*rhumbpb.Metadata, error) {
	st, err := c.currentState()
	// Clients ask for a revision that they have seen elsewhere. This node applies it within moments,
	// so polling is simpler than a watch and costs little.
	for err == nil && st.Revision() < q.RevisionMin {
		select {
		case <-ctx.Done():
			return nil, statusError(rhumb.Ef("server.Cluster.GetMetadata", rhumb.DeadlineExceeded, "this node has revision %d of the metadata, and not yet %d; retry, or ask another node", st.Revision(), q.RevisionMin))
		case <-time.After(pollInterval):
		}
		st, err = c.currentState()
	}
	if err != nil {
		return nil, statusError(err)
	}
	// One response, so the parts that fit the frames of a watch are merged again. Only ranges span
	// several parts.
	who, _ := access.FromContext(ctx)
	parts := api.EncodeMetadata((&view{who: who}).full(st))
	all := parts[0]
	for _, p := range parts[1:] {
		all.Ranges = append(all.Ranges, p.Ranges...)
	}
	all.More = false
	return all, nil
}

// WatchMetadata sends the whole catalog, then every change.
func (c *Cluster) WatchMetadata(_ *rhumbpb.WatchMetadataRequest, stream grpc.ServerStreamingServer[rhumbpb.Metadata]) error {
	// A node without a cluster has nothing to watch; the client should use another node.
	if _, err := c.currentState(); err != nil {
		return statusError(err)
	}
	w, err := c.node.Watch()
	if err != nil {
		return statusError(err)
	}
	defer w.Close()
	who, _ := access.FromContext(stream.Context())
	v := &view{who: who}
	for {
		u, err := w.Next(stream.Context())
		if err != nil {
			return statusError(err)
		}
		// The user may have been dropped or disabled since the watch began.
		if !u.State.Access().Of(who).IsKnown() {
			return statusError(errUnknownCaller("server.Cluster.WatchMetadata", who, u.State))
		}
		// A full update replaces everything that the client knows.
		m := v.update(u)
		// In parts, since the catalog of a large cluster exceeds a message.
		for _, part := range api.EncodeMetadata(m) {
			if err := stream.Send(part); err != nil {
				return err
			}
		}
	}
}

// wholeMetadata returns everything in a catalog.
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

// changedMetadata returns the objects that changed, as they are in the catalog. An object that is
// not there any more was removed. Clients do not learn of removed classes and blocks: nothing refers to
// them once their tables and ranges are gone, and their numbers are never used again.
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
		if b, ok := st.BlockOf(id); ok && b.First == id.Slot {
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

// mayCreateTable returns an error unless the caller may create a table.
func mayCreateTable(ctx context.Context, st *catalog.State, q *rhumbpb.CreateTableRequest) error {
	if who, subject := caller(ctx, st); !subject.Allows(access.Admin, q.Name, nil) {
		return rhumb.Ef("server.Cluster.CreateTable", rhumb.PermissionDenied,
			"%s may not create table %q; it needs the right admin for the table: `rhumb grant ROLE --table NAME --rights admin`", who, q.Name)
	}
	return nil
}

// CreateTable creates a table.
func (c *Cluster) CreateTable(ctx context.Context, q *rhumbpb.CreateTableRequest) (*rhumbpb.CreateTableResponse, error) {
	// Checked before the name is looked at: whether the table exists is none of the caller's business without
	// the right.
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	if err := mayCreateTable(ctx, st, q); err != nil {
		return nil, statusError(err)
	}
	if err := rhumb.ValidateNewName("table", q.Name); err != nil {
		return nil, statusError(err)
	}
	options, err := api.DecodeTableOptions(q)
	if err != nil {
		return nil, statusError(err)
	}
	// Settings that the request leaves out take their defaults.
	var t *rhumb.Table
	t, st, err = c.node.CreateTable(ctx, catalog.CreateTable{
		Name: q.Name, Settings: api.FillSettings(api.DecodeSettings(q.Settings)), TableOptions: options,
	})
	if err != nil {
		return nil, statusError(err)
	}
	// The class may be shared with other tables; the response shows which one the settings chose.
	class, _ := st.Class(t.Class)
	return &rhumbpb.CreateTableResponse{Table: api.EncodeTable(*t), Class: api.EncodeClass(*class), Revision: st.Revision()}, nil
}

// mayChangeTable returns an error unless the caller may change or drop a table.
func mayChangeTable(ctx context.Context, st *catalog.State, op rhumb.Op, table string) error {
	who, subject := caller(ctx, st)
	switch {
	case subject.Allows(access.Admin, table, nil):
		return nil
	case !subject.AllowsTable(table):
		return errTableHidden(op, who, table)
	}
	return rhumb.Ef(op, rhumb.PermissionDenied, "%s may not change table %q; it needs the right admin for the table: `rhumb grant ROLE --table NAME --rights admin`", who, table)
}

// DropTable removes a table with all its records.
func (c *Cluster) DropTable(ctx context.Context, q *rhumbpb.DropTableRequest) (*rhumbpb.DropTableResponse, error) {
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	if err := mayChangeTable(ctx, st, "server.Cluster.DropTable", q.Table); err != nil {
		return nil, statusError(err)
	}
	// The state contains the drop, so this node answers nothing about the table any more.
	res, st, err := c.node.Propose(ctx, catalog.DropTable{Name: q.Table, Table: rhumb.TableID(q.Id)})
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.DropTableResponse{Id: uint32(res.Table), Revision: st.Revision()}, nil
}

// RefuseSnapshot takes a table out of shared memory for good.
func (c *Cluster) RefuseSnapshot(ctx context.Context, q *rhumbpb.RefuseSnapshotRequest) (*rhumbpb.RefuseSnapshotResponse, error) {
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	if err := mayChangeTable(ctx, st, "server.Cluster.RefuseSnapshot", q.Table); err != nil {
		return nil, statusError(err)
	}
	st, err = c.node.ChangeAccess(ctx, catalog.RefuseSnapshot{Table: q.Table})
	if err != nil {
		return nil, statusError(err)
	}
	t, ok := st.TableByName(q.Table)
	if !ok {
		return nil, statusError(rhumb.Ef("server.Cluster.RefuseSnapshot", rhumb.NotFound, "table %q was dropped meanwhile", q.Table))
	}
	return &rhumbpb.RefuseSnapshotResponse{Table: api.EncodeTable(*t), Revision: st.Revision()}, nil
}

// DescribeTable describes one table. A table that this node does not know may have been created a
// moment ago through another node, so a negative answer reflects every decision made before the
// call.
func (c *Cluster) DescribeTable(ctx context.Context, q *rhumbpb.DescribeTableRequest) (*rhumbpb.DescribeTableResponse, error) {
	const op rhumb.Op = "server.Cluster.DescribeTable"
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	// By the name alone, so that the answer is the same whether the table exists or not.
	if who, subject := caller(ctx, st); !subject.AllowsTable(q.Name) {
		return nil, statusError(errTableHidden(op, who, q.Name))
	}
	t, ok := st.TableByName(q.Name)
	if !ok {
		// This node may not have applied the command that created the table. Only unknown names cost this
		// round trip to the metadata leader.
		if st, err = c.node.Linearize(ctx); err != nil {
			return nil, statusError(rhumb.Wrap(op, err))
		}
		t, ok = st.TableByName(q.Name)
	}
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "table %q does not exist; list tables with `rhumb table ls`", q.Name))
	}
	class, _ := st.Class(t.Class)
	resp := &rhumbpb.DescribeTableResponse{Table: api.EncodeTable(*t), Class: api.EncodeClass(*class), Revision: st.Revision()}
	// Counted on request: the catalog keeps no such number.
	for r := range st.Ranges() {
		if r.Class == t.Class {
			resp.Ranges++
		}
	}
	return resp, nil
}

// replicaTimeout bounds how long a replica may take to describe itself. It is shorter than a
// client's attempt, so that the answers of the other replicas arrive although one hangs.
const replicaTimeout = time.Second

// replicaInfo asks a node about its replica, for replicaTimeout or three quarters of the caller's
// remaining time. It returns a failure as the Reason and the ErrKind.
func (c *Cluster) replicaInfo(ctx context.Context, n rhumb.NodeID, id rhumb.RangeID) RangeInfo {
	// A quarter stays for the way back: an answer after the caller's deadline would lose all of them.
	patience := replicaTimeout
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)*3/4)
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	info, err := c.node.RangeInfo(asking, n, id)
	switch {
	// The error of a hanging node is a deadline and does not say whose.
	case err != nil && asking.Err() != nil:
		info.Reason, info.ErrKind = "no answer within "+patience.Round(time.Millisecond).String(), rhumb.DeadlineExceeded
	case err != nil:
		info.Reason, info.ErrKind = "not reached: "+rhumb.Message(err), rhumb.KindOf(err)
		// The question changes nothing, so only that nobody answered matters.
		if info.ErrKind == rhumb.Unknown {
			info.ErrKind = rhumb.Unavailable
		}
	}
	return info
}

// DescribeRange asks every replica of a range about itself. Replicas that do not answer are in the
// response, too, with the reason.
func (c *Cluster) DescribeRange(ctx context.Context, q *rhumbpb.DescribeRangeRequest) (*rhumbpb.DescribeRangeResponse, error) {
	const op rhumb.Op = "server.Cluster.DescribeRange"
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	id := api.DecodeRangeID(q.Range)
	r, ok := st.RangeOf(id)
	if !ok {
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; list ranges with `rhumb range ls`", id))
	}
	// A home within the range will do, such as that of a record.
	id = r.ID
	// All at once, so that several hanging nodes cost one timeout.
	infos := make([]RangeInfo, len(r.Replicas))
	var wait sync.WaitGroup
	for i, n := range r.Replicas {
		wait.Go(func() { infos[i] = c.replicaInfo(ctx, n, id) })
	}
	wait.Wait()
	resp := &rhumbpb.DescribeRangeResponse{Range: api.EncodeRange(r)}
	_, subject := caller(ctx, st)
	mayRecover := subject.AllowsCluster(access.Admin)
	// A secondary does not know why it is not in sync; its primary does. So the primary's reasons are
	// collected before the replicas are listed.
	var behind map[rhumb.NodeID]string
	for i, n := range r.Replicas {
		if n == r.Primary {
			behind = infos[i].Behind
			resp.SizeBytes = uint64(max(infos[i].Bytes, 0))
		}
	}
	for i, n := range r.Replicas {
		f := &infos[i]
		// The replica's own reason, or the failure to reach it, comes first.
		if f.Reason == "" {
			f.Reason = behind[n]
		}
		resp.Replicas = append(resp.Replicas, &rhumbpb.ReplicaStatus{
			Node: uint32(n), State: f.State, InSync: r.IsInSync(n), Epoch: uint64(f.Epoch),
			End: uint64(f.End), Commit: uint64(f.Commit), Trim: uint64(f.Trim), Reason: f.Reason,
			EndTime: uint64(f.EndTime), CommitTime: uint64(f.CommitTime), Copying: f.Copying, Store: f.Store,
		})
		if f.ErrKind != rhumb.Other {
			resp.Replicas[len(resp.Replicas)-1].ErrorKind = f.ErrKind.String()
		}
		// Only for those who may recover it: to others the attempt answers that they may not, whatever the state of the range.
		if mayRecover {
			resp.Replicas[len(resp.Replicas)-1].RecoverRefused = st.WhyNotRecover(r, n)
		}
	}
	return resp, nil
}

// Init creates a cluster with this node as its first.
func (c *Cluster) Init(ctx context.Context, _ *rhumbpb.InitRequest) (*rhumbpb.InitResponse, error) {
	cluster, n, err := c.node.Init(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.InitResponse{Cluster: api.EncodeUUID(cluster), Node: uint32(n)}, nil
}

// Join registers a node.
func (c *Cluster) Join(ctx context.Context, q *rhumbpb.JoinRequest) (*rhumbpb.JoinResponse, error) {
	if _, err := c.currentState(); err != nil {
		return nil, statusError(err)
	}
	cmd, err := decodeRegistration(q)
	if err != nil {
		return nil, statusError(err)
	}
	id, region, st, err := c.node.Join(ctx, cmd)
	if err != nil {
		return nil, statusError(err)
	}
	resp := &rhumbpb.JoinResponse{Cluster: api.EncodeUUID(st.Cluster()), Identity: api.EncodeIdentity(id), Region: uint32(region), Revision: st.Revision()}
	// The new node needs the addresses of the others before it has a catalog.
	for n := range st.Nodes() {
		resp.Nodes = append(resp.Nodes, api.EncodeNode(*n))
	}
	return resp, nil
}

// decodeRegistration decodes a request to join.
func decodeRegistration(q *rhumbpb.JoinRequest) (catalog.RegisterNode, error) {
	cluster, err := api.DecodeUUID(q.Cluster)
	if err != nil {
		return catalog.RegisterNode{}, err
	}
	id, err := api.DecodeIdentity(q.Identity)
	if err != nil {
		return catalog.RegisterNode{}, err
	}
	n := q.GetNode()
	var proof *catalog.RegistrationProof
	if p := q.GetProof(); p != nil {
		proof = &catalog.RegistrationProof{At: p.At, Chain: p.Chain, Signature: p.Signature}
	}
	return catalog.RegisterNode{
		Cluster: cluster, Node: id.Node, Store: id.Store, Boot: id.Boot, Nonce: q.Nonce, Previous: q.PreviousNonce, Short: q.Short,
		Region: q.RegionName, Zone: n.GetZone(), Location: api.DecodePoint(n.GetLocation()), HasLocation: n.GetLocation() != nil,
		Addr: n.GetAddr(), HeartbeatAddr: n.GetHeartbeatAddr(), AdminAddr: n.GetAdminAddr(), Binary: n.GetBinary(),
		Proof: proof, Witness: n.GetWitness(),
	}, nil
}

// Drain makes a node hand over its primaries.
func (c *Cluster) Drain(ctx context.Context, q *rhumbpb.DrainRequest) (*rhumbpb.DrainResponse, error) {
	if _, err := c.currentState(); err != nil {
		return nil, statusError(err)
	}
	if q.TimeoutUs > 0 {
		var cancel context.CancelFunc
		// When the time is over, the client gets the number of remaining primaries and not an error.
		ctx, cancel = context.WithTimeout(ctx, api.DecodeMicros(q.TimeoutUs))
		defer cancel()
	}
	left, err := c.node.DrainNode(ctx, rhumb.NodeID(q.Node), q.Undo)
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.DrainResponse{Primaries: uint32(left)}, nil
}

// DiscardReplica makes a node drop its damaged copy of a range.
func (c *Cluster) DiscardReplica(ctx context.Context, q *rhumbpb.DiscardReplicaRequest) (*rhumbpb.DiscardReplicaResponse, error) {
	if err := c.checkReplica(api.DecodeRangeID(q.Range), rhumb.NodeID(q.Node)); err != nil {
		return nil, statusError(err)
	}
	if err := c.node.DiscardReplica(ctx, rhumb.NodeID(q.Node), api.DecodeRangeID(q.Range), q.AcceptLoss); err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.DiscardReplicaResponse{}, nil
}

// VerifyRange compares the replicas of a range.
func (c *Cluster) VerifyRange(ctx context.Context, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	const op rhumb.Op = "server.Cluster.VerifyRange"
	st, err := c.currentState()
	if err != nil {
		return nil, statusError(err)
	}
	r, ok := st.Range(api.DecodeRangeID(q.Range))
	switch trust := rhumb.NodeID(q.Trust); {
	case !ok:
		return nil, statusError(rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; list ranges with `rhumb range ls`", api.DecodeRangeID(q.Range)))
	case trust != rhumb.NoNode && !r.IsReplica(trust):
		return nil, statusError(rhumb.Ef(op, rhumb.InvalidArgument, "node %s holds no copy of range %s; copies are on %s", trust, r.ID, rhumb.NodeList(r.Replicas)))
	case r.Primary == rhumb.NoNode:
		return nil, statusError(rhumb.Ef(op, rhumb.Unavailable, "range %s has no primary at the moment; retry", r.ID))
	}
	resp, err := c.node.VerifyRange(ctx, r.Primary, q)
	if err != nil {
		return nil, statusError(err)
	}
	return resp, nil
}

// RecoverRange accepts the loss of data that no intact copy of a range holds.
func (c *Cluster) RecoverRange(ctx context.Context, q *rhumbpb.RecoverRangeRequest) (*rhumbpb.RecoverRangeResponse, error) {
	if err := c.checkReplica(api.DecodeRangeID(q.Range), rhumb.NodeID(q.Node)); err != nil {
		return nil, statusError(err)
	}
	// The operator decided on a version. Metadata rejects the command if the record has changed since,
	// because another copy may have returned.
	r, err := c.node.RecoverRange(ctx, catalog.RecoverRange{
		Range: api.DecodeRangeID(q.Range), Version: q.Version, Node: rhumb.NodeID(q.Node),
		End: rhumb.Seq(q.End), EndTime: rhumb.Timestamp(q.EndTime), Known: rhumb.Seq(q.Known),
	})
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.RecoverRangeResponse{Range: api.EncodeRange(r)}, nil
}

// checkReplica returns an error unless a node holds a copy of a range.
func (c *Cluster) checkReplica(id rhumb.RangeID, n rhumb.NodeID) error {
	const op rhumb.Op = "server.Cluster"
	st, err := c.currentState()
	if err != nil {
		return err
	}
	r, ok := st.Range(id)
	switch {
	case !ok:
		return rhumb.Ef(op, rhumb.NotFound, "range %s does not exist; list ranges with `rhumb range ls`", id)
	case !r.IsReplica(n):
		return rhumb.Ef(op, rhumb.NotFound, "node %s holds no copy of range %s; copies are on %s", n, id, rhumb.NodeList(r.Replicas))
	}
	return nil
}
