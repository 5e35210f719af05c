package client

import (
	"context"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Init creates a cluster that consists of the node at the first address of cfg, and returns its ID.
// The error kind AlreadyExists means that the node already belongs to a cluster.
func Init(ctx context.Context, cfg Config) (rhumb.ClusterID, error) {
	const op rhumb.Op = "client.Init"
	// The cluster does not exist yet, so the client is not opened: Open would watch its metadata.
	c, err := newClient(cfg)
	if err != nil {
		return rhumb.ClusterID{}, rhumb.Wrap(op, err)
	}
	defer c.Close()
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	resp, err := askAt(ctx, c, op, cfg.Addrs[0], func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.InitResponse, error) {
		return cc.Init(ctx, &rhumbpb.InitRequest{})
	})
	if err != nil {
		return rhumb.ClusterID{}, rhumb.Wrap(op, unwrapAnswer(err))
	}
	return api.DecodeUUID(resp.Cluster)
}

// TableOptions describe a new table. Zero fields take their defaults.
type TableOptions struct {
	// Settings select the class of the table. Tables with equal settings share a class.
	Settings rhumb.ClassSettings
	rhumb.TableOptions
}

// CreateTable creates a table and waits until this client's metadata holds it. The error kind
// AlreadyExists means that the name is taken.
func (c *Client) CreateTable(ctx context.Context, name string, o TableOptions) (*Table, error) {
	const op rhumb.Op = "client.Client.CreateTable"
	// Validated as the cluster would, with the defaults filled in, so that bad settings fail
	// without a round trip.
	settings := api.FillSettings(o.Settings)
	if err := settings.Validate(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err := rhumb.ValidateTableName(name); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err := rhumb.ValidateNewName("table", name); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	// tries counts the nodes that were asked.
	tries := 0
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.CreateTableResponse, error) {
		tries++
		return cc.CreateTable(ctx, api.EncodeCreateTable(name, settings, o.TableOptions))
	})
	if rhumb.KindOf(err) == rhumb.AlreadyExists && tries > 1 {
		// An earlier attempt may have created the table, and its answer was lost. The table then
		// has the options that were asked for.
		o.TableOptions.SetDefaults()
		if t, terr := c.Table(ctx, name); terr == nil && t.info.TableOptions == o.TableOptions {
			return t, nil
		}
	}
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return c.awaitTable(ctx, op, name, rhumb.TableID(resp.GetTable().GetId()), resp.GetRevision())
}

// TableStatus is a table with the settings of its class.
type TableStatus struct {
	rhumb.Table
	Settings rhumb.ClassSettings `json:"settings"`
	// Ranges counts the ranges of the class, which all its tables share.
	Ranges int `json:"ranges"`
}

// Tables returns the tables in the client's metadata, sorted by ID.
func (c *Client) Tables() []TableStatus {
	count := map[rhumb.ClassID]int{}
	c.meta.mu.RLock()
	defer c.meta.mu.RUnlock()
	for _, r := range c.meta.ranges {
		// All tables of a class share its ranges.
		count[r.Class]++
	}
	var out []TableStatus
	for _, id := range sortedKeys(c.meta.tables) {
		t := c.meta.tables[id]
		out = append(out, TableStatus{t, c.meta.classes[t.Class].Settings, count[t.Class]})
	}
	return out
}

// Regions returns the regions in the client's metadata, sorted by ID.
func (c *Client) Regions() []rhumb.Region { return c.meta.sortedRegions() }

// Nodes returns the nodes in the client's metadata, sorted by ID.
func (c *Client) Nodes() []rhumb.Node { return c.meta.sortedNodes() }

// Ranges returns copies of all range descriptors in the client's metadata, sorted by home.
func (c *Client) Ranges() []*rhumb.Range {
	out := c.meta.sortedRanges(func(*rhumb.Range) bool { return true })
	for i, r := range out {
		// The metadata shares its descriptors with every call, and the caller may change its copy.
		out[i] = r.Clone()
	}
	return out
}

// Revision returns the revision of the client's metadata.
func (c *Client) Revision() uint64 {
	c.meta.mu.RLock()
	defer c.meta.mu.RUnlock()
	return c.meta.revision
}

// StoreStatus describes one store of a node.
type StoreStatus struct {
	Dir       string     `json:"dir"`
	ID        rhumb.UUID `json:"-"`
	UsedBytes uint64     `json:"used_bytes"`
	FreeBytes uint64     `json:"free_bytes"`
	Ranges    int        `json:"ranges"`
	// Refuses is the reason for which the store refuses writes, or "".
	Refuses string `json:"refuses,omitempty"`
	// Damages holds the damage that the store found and works around, DamagedRanges counts the
	// affected ranges.
	Damages       []StoreDamage `json:"damages,omitempty"`
	DamagedRanges int           `json:"damaged_ranges,omitempty"`
}

// StoreDamage is a damaged file of a store.
type StoreDamage struct {
	File string `json:"file"`
	// Offset is the first byte of the damaged block, -1 if unknown.
	Offset int64  `json:"offset"`
	What   string `json:"what"`
	// SetAside is the path to which the file was moved or copied, "" if it is still in place.
	SetAside string `json:"set_aside,omitempty"`
}

// TroubleKind classifies what keeps a replica from working.
type TroubleKind string

// The kinds of trouble.
const (
	// TroubleQuarantined is a damaged copy, which serves no requests.
	TroubleQuarantined TroubleKind = "quarantined"
	// TroubleWaiting is a replica that was elected and does not serve requests yet.
	TroubleWaiting TroubleKind = "waiting"
	// TroubleLogLost is a copy that needs log entries which its primary has trimmed.
	TroubleLogLost TroubleKind = "log_lost"
)

// ReplicaTrouble describes what keeps the replica of one node from working.
type ReplicaTrouble struct {
	Kind   TroubleKind   `json:"kind"`
	Range  rhumb.RangeID `json:"range"`
	Node   rhumb.NodeID  `json:"node"`
	Reason string        `json:"reason"`
}

// NodeSight describes the observations that one node has made of another since it started.
type NodeSight struct {
	Node rhumb.NodeID `json:"node"`
	// Fenced is a lower bound of how long the node has been fenced, 0 if it is not fenced.
	Fenced time.Duration `json:"fenced"`
	// Lives counts the lives that the node has begun within the last minute.
	Lives int `json:"lives"`
}

// NodeStatus describes one node, as reported by the node itself.
type NodeStatus struct {
	Node rhumb.Node `json:"node"`
	// Err is the reason for which the node could not be asked. If it is set, all fields below are
	// empty.
	Err string `json:"error,omitempty"`
	// ErrKind is the kind of Err.
	ErrKind        rhumb.Kind      `json:"-"`
	Ready          bool            `json:"ready"`
	Reason         string          `json:"reason,omitempty"`
	Revision       uint64          `json:"revision"`
	MetadataLeader rhumb.NodeID    `json:"metadata_leader"`
	Ranges         int             `json:"ranges"`
	Primaries      int             `json:"primaries"`
	Stores         []StoreStatus   `json:"stores,omitempty"`
	Timestamp      rhumb.Timestamp `json:"timestamp"`
	Uptime         time.Duration   `json:"uptime"`
	Suspected      []rhumb.NodeID  `json:"suspected,omitempty"`
	// RoundTrip is the time to the node and back over a connection that exists.
	RoundTrip time.Duration `json:"round_trip"`
	// Troubles lists the troubled replicas that the node knows of. TroubleCounts counts them in
	// full; the list may be truncated.
	Troubles      []ReplicaTrouble    `json:"troubles,omitempty"`
	TroubleCounts map[TroubleKind]int `json:"trouble_counts,omitempty"`
	Sights        []NodeSight         `json:"sights,omitempty"`
	// Metadata describes the node's replica of the metadata group, nil if it has none.
	Metadata *MetadataReplica `json:"metadata,omitempty"`
	// ClusterVersion is the active cluster version, as the node has applied it; rhumb.VersionBase if the node's
	// program knows no cluster versions.
	ClusterVersion rhumb.ClusterVersion `json:"cluster_version,omitempty"`
	// DatabaseFormat is the lowest format of the node's databases, 0 if the program does not report it.
	DatabaseFormat uint32 `json:"database_format,omitempty"`
	// Differing lists ranges of this node's primaries whose replicas differ, and DifferingCount counts them in full; the list may be
	// truncated.
	Differing      []RangeDifference `json:"differing,omitempty"`
	DifferingCount int               `json:"differing_count,omitempty"`
	// DeferredLosses are those of ranges of tables that defer syncs, in the node's present life; nil if there were none.
	DeferredLosses *DeferredLosses `json:"deferred_losses,omitempty"`
	// Start holds the phases of the start of the node's process, in order; empty for a node of an earlier build.
	Start []StartPhase `json:"start,omitempty"`
}

// StartPhase is a part of the start of a process: check, replay and load of the stores, ports, metadata, replicas, and last their sum, total.
type StartPhase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// DeferredLosses counts what ranges of tables that defer syncs lost, or may have lost, in a power loss.
type DeferredLosses struct {
	// UnsureEpochs began although all copies that answered had started again since their last sync.
	UnsureEpochs int `json:"unsure_epochs"`
	// Entries of the node were lost by the other copies, and their ranges went on without them.
	Entries uint64 `json:"entries"`
	// Last is when the last of either happened.
	Last time.Time `json:"last"`
}

// RangeDifference is a difference between the replicas of a range that the last comparison has found and nobody has mended.
type RangeDifference struct {
	Range rhumb.RangeID `json:"range"`
	// Nodes have the replicas that differ: all that answered, if no copy has a majority.
	Nodes []rhumb.NodeID `json:"nodes"`
	// Table is the first table in which they differ.
	Table rhumb.TableID `json:"table"`
	// Why says why no replica was quarantined.
	Why string `json:"why,omitempty"`
}

// MetadataReplica describes a node's replica of the metadata group.
type MetadataReplica struct {
	// Silent is set while a replica that has started has not proved its log yet: it does not vote
	// (docs/replication.md#rule-voter-silent). WaitsFor lists the voters whose answers it waits
	// for.
	Silent   bool           `json:"silent,omitempty"`
	WaitsFor []rhumb.NodeID `json:"waits_for,omitempty"`
	// Short is set if the replica lacks metadata that it had made durable.
	Short bool `json:"short,omitempty"`
	// Readmits lists the nodes whose replicas lost metadata and which this leader removes and adds
	// again.
	Readmits []rhumb.NodeID `json:"readmits,omitempty"`
	// Recovered is the last forced recovery that made this replica the only voter, nil if there was
	// none.
	Recovered *MetadataRecovery `json:"recovered,omitempty"`
	// Term, LastIndex and Applied are the position of the replica: the term of Raft, the last entry of its log, and the last
	// one that it has applied. They are 0 for a node of an earlier build.
	Term      uint64 `json:"term,omitempty"`
	LastIndex uint64 `json:"last_index,omitempty"`
	Applied   uint64 `json:"applied,omitempty"`
}

// MetadataRecovery is a recovery of the metadata from one survivor.
type MetadataRecovery struct {
	At time.Time `json:"at"`
	// Term and LastIndex identify the last entry that was kept.
	Term      uint64 `json:"term"`
	LastIndex uint64 `json:"last_index"`
	// Lost lists the voters that were given up.
	Lost []rhumb.NodeID `json:"lost,omitempty"`
}

// statusTimeout bounds the wait for the status of one node, so that the status of a cluster with a
// dead region takes less than three seconds.
const statusTimeout = 1500 * time.Millisecond

// Status asks all nodes for their status at once. A node that does not answer is in the result as
// well, with Err.
func (c *Client) Status(ctx context.Context) []NodeStatus {
	const op rhumb.Op = "client.Client.Status"
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	nodes := c.Nodes()
	out := make([]NodeStatus, len(nodes))
	var work sync.WaitGroup
	// Every node has a goroutine, so the slowest node bounds the call, not the sum of all.
	for i, n := range nodes {
		work.Go(func() {
			start := time.Now()
			resp, err := askAt(ctx, c, op, n.Addr, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.StatusResponse, error) {
				ctx, cancel := context.WithTimeout(ctx, min(c.cfg.AttemptTimeout, statusTimeout))
				defer cancel()
				return cc.Status(ctx, &rhumbpb.StatusRequest{})
			})
			// The status of another node must not be shown under this node's name.
			if other := c.wrongNode(n.ID, resp); other != "" {
				resp, err = nil, rhumb.Ef(op, rhumb.WrongCluster, "%s answers at its address %s", other, n.Addr)
			}
			out[i] = nodeStatus(n, resp)
			out[i].RoundTrip = time.Since(start)
			// The first call includes the time to connect, which is several round trips.
			if err == nil {
				start = time.Now()
				if _, err := c.ping(ctx, n.Addr); err == nil {
					out[i].RoundTrip = min(out[i].RoundTrip, time.Since(start))
				}
			}
			if err != nil {
				out[i].Err, out[i].ErrKind = rhumb.Message(unwrapAnswer(err)), rhumb.KindOf(unwrapAnswer(err))
			}
		})
	}
	work.Wait()
	return out
}

// wrongNode returns a description of the node that answered if it is not the node that was asked,
// as after the address was reused by another process. It returns "" for the right node, and for a
// node that has no cluster yet, whose status says so.
func (c *Client) wrongNode(want rhumb.NodeID, m *rhumbpb.StatusResponse) string {
	cluster, err := api.DecodeUUID(m.GetCluster())
	id := rhumb.NodeID(m.GetNode().GetId())
	switch {
	case err == nil && !cluster.IsZero() && cluster != c.Cluster():
		return "node " + id.String() + " of another cluster, " + cluster.String() + ","
	case id != rhumb.NoNode && id != want:
		return "node " + id.String()
	}
	return ""
}

// nodeStatus joins the record of a node with its answer, which is empty for a node that did not answer.
func nodeStatus(n rhumb.Node, m *rhumbpb.StatusResponse) NodeStatus {
	// The getters accept a nil message, so a node without an answer gets zero fields.
	s := NodeStatus{
		Node: n, Ready: m.GetReady(), Reason: m.GetReason(), Revision: m.GetRevision(),
		MetadataLeader: rhumb.NodeID(m.GetMetadataLeader()), Ranges: int(m.GetRanges()), Primaries: int(m.GetPrimaries()),
		Timestamp: rhumb.Timestamp(m.GetTimestamp()), Uptime: time.Duration(m.GetUptimeNs()),
	}
	s.Suspected = nodeIDs(m.GetSuspected())
	s.DatabaseFormat = m.GetDatabaseFormat()
	if m != nil {
		s.ClusterVersion = max(rhumb.ClusterVersion(m.GetClusterVersion()), rhumb.VersionBase)
	}
	s.Metadata = metadataReplica(m.GetMetadata())
	for _, st := range m.GetStores() {
		id, _ := api.DecodeUUID(st.GetId()) // a damaged id shows as none
		store := StoreStatus{
			Dir: st.GetDir(), ID: id, UsedBytes: st.GetUsedBytes(), FreeBytes: st.GetFreeBytes(),
			Ranges: int(st.GetRanges()), Refuses: st.GetRefuses(), DamagedRanges: int(st.GetDamagedRanges()),
		}
		for _, d := range st.GetDamages() {
			store.Damages = append(store.Damages, StoreDamage{d.GetFile(), d.GetOffset(), d.GetWhat(), d.GetSetAside()})
		}
		s.Stores = append(s.Stores, store)
	}
	s.addTroubles(m)
	for _, phase := range m.GetStartPhases() {
		s.Start = append(s.Start, StartPhase{phase.GetName(), time.Duration(phase.GetTookNs())})
	}
	if l := m.GetDeferredLosses(); l != nil {
		s.DeferredLosses = &DeferredLosses{int(l.GetUnsureEpochs()), l.GetEntries(), time.Unix(0, l.GetLastNs()).UTC()}
	}
	s.DifferingCount = int(m.GetDifferingCount())
	for _, d := range m.GetDiffering() {
		s.Differing = append(s.Differing, RangeDifference{api.DecodeRangeID(d.GetRange()), nodeIDs(d.GetNodes()), rhumb.TableID(d.GetTable()), d.GetWhy()})
	}
	return s
}

// nodeIDs converts numbers of a message.
func nodeIDs(numbers []uint32) (out []rhumb.NodeID) {
	for _, n := range numbers {
		out = append(out, rhumb.NodeID(n))
	}
	return out
}

// metadataReplica converts a message. It returns nil for a node that reports no replica of the metadata.
func metadataReplica(m *rhumbpb.MetadataReplica) *MetadataReplica {
	if m == nil {
		return nil
	}
	out := &MetadataReplica{Silent: m.GetSilent(), WaitsFor: nodeIDs(m.GetWaitsFor()), Short: m.GetShort(), Readmits: nodeIDs(m.GetReadmits())}
	out.Term, out.LastIndex, out.Applied = m.GetTerm(), m.GetLastIndex(), m.GetApplied()
	if r := m.GetRecovered(); r != nil {
		out.Recovered = &MetadataRecovery{At: time.Unix(0, r.GetAtNs()).UTC(), Term: r.GetTerm(), LastIndex: r.GetLastIndex(), Lost: nodeIDs(r.GetLost())}
	}
	return out
}

// troubleKinds maps the kinds of messages. A kind that a newer node sends is left out.
var troubleKinds = map[rhumbpb.ReplicaTroubleKind]TroubleKind{
	rhumbpb.ReplicaTroubleKind_REPLICA_TROUBLE_KIND_QUARANTINED: TroubleQuarantined,
	rhumbpb.ReplicaTroubleKind_REPLICA_TROUBLE_KIND_WAITING:     TroubleWaiting,
	rhumbpb.ReplicaTroubleKind_REPLICA_TROUBLE_KIND_LOG_LOST:    TroubleLogLost,
}

// addTroubles adds what the node itself reported as wrong.
func (s *NodeStatus) addTroubles(m *rhumbpb.StatusResponse) {
	for _, t := range m.GetTroubles() {
		if kind, ok := troubleKinds[t.GetKind()]; ok {
			s.Troubles = append(s.Troubles, ReplicaTrouble{kind, api.DecodeRangeID(t.GetRange()), rhumb.NodeID(t.GetNode()), t.GetReason()})
		}
	}
	// The counts are those of the message, since the list may be truncated.
	s.TroubleCounts = map[TroubleKind]int{}
	for wire, kind := range troubleKinds {
		// A kind that this client does not know is counted nowhere.
		if n := m.GetTroubleCounts()[uint32(wire)]; n > 0 {
			s.TroubleCounts[kind] = int(n)
		}
	}
	for _, v := range m.GetSights() {
		s.Sights = append(s.Sights, NodeSight{rhumb.NodeID(v.GetNode()), time.Duration(v.GetFencedNs()), int(v.GetLives())})
	}
}

// ReplicaStatus describes one replica of a range.
type ReplicaStatus struct {
	Node   rhumb.NodeID `json:"node"`
	State  string       `json:"state"`
	InSync bool         `json:"in_sync"`
	Epoch  rhumb.Epoch  `json:"epoch"`
	End    rhumb.Seq    `json:"end"`
	Commit rhumb.Seq    `json:"commit"`
	Trim   rhumb.Seq    `json:"trim"`
	// EndTime and CommitTime are the timestamps of End and Commit.
	EndTime    rhumb.Timestamp `json:"end_time"`
	CommitTime rhumb.Timestamp `json:"commit_time"`
	// Reason is why the replica does not catch up, was quarantined or could not be asked.
	Reason string `json:"reason,omitempty"`
	// ErrorKind is the kind of the error if the replica could not be asked, such as "unavailable".
	ErrorKind string `json:"error_kind,omitempty"`
	// Copying is the copy of the range that the node receives, nil if it receives none.
	Copying *CopyProgress `json:"copying,omitempty"`
	// Store is the number of the node's store that holds the copy, from 1, and 0 if the node has one store.
	Store int `json:"store,omitempty"`
	// RecoverRefused is why the metadata would refuse to continue the range from this copy with a loss (RecoverRange), "" if it would not.
	RecoverRefused string `json:"recover_refused,omitempty"`
}

// CopyProgress describes a copy of a range that a node is receiving.
type CopyProgress struct {
	// From is the node that sends the copy.
	From rhumb.NodeID `json:"from"`
	// DoneBytes were received of TotalBytes, which is 0 until the other node has made the copy. BytesPerSecond is the speed since the
	// transfer began or continued.
	DoneBytes      int64 `json:"done_bytes"`
	TotalBytes     int64 `json:"total_bytes"`
	BytesPerSecond int64 `json:"bytes_per_second"`
	// Installing is set while the complete copy takes the place of the old one.
	Installing bool `json:"installing,omitempty"`
	// Failures counts the attempts that failed, and LastError is why the last one did.
	Failures  int    `json:"failures,omitempty"`
	LastError string `json:"last_error,omitempty"`
}

// ETA estimates how long the copy still takes at the speed so far. ok is false while no speed is known.
func (p *CopyProgress) ETA() (left time.Duration, ok bool) {
	// Before the first chunk, and while a copy waits for its next attempt, any number would be a guess.
	if p.BytesPerSecond <= 0 || p.TotalBytes <= 0 {
		return 0, false
	}
	return time.Duration(float64(max(p.TotalBytes-p.DoneBytes, 0)) / float64(p.BytesPerSecond) * float64(time.Second)), true
}

// decodeCopy converts a message, nil for none.
func decodeCopy(m *rhumbpb.CopyProgress) *CopyProgress {
	if m == nil {
		return nil
	}
	return &CopyProgress{
		From: rhumb.NodeID(m.GetFrom()), DoneBytes: m.GetDoneBytes(), TotalBytes: m.GetTotalBytes(), BytesPerSecond: m.GetBytesPerSecond(),
		Installing: m.GetInstalling(), Failures: int(m.GetFailures()), LastError: m.GetLastError(),
	}
}

// RangeStatus is a range with its replicas.
type RangeStatus struct {
	Range     *rhumb.Range    `json:"range"`
	Replicas  []ReplicaStatus `json:"replicas"`
	SizeBytes uint64          `json:"size_bytes"`
}

// DescribeRange returns a range's descriptor and the status of its replicas.
func (c *Client) DescribeRange(ctx context.Context, id rhumb.RangeID) (RangeStatus, error) {
	const op rhumb.Op = "client.Client.DescribeRange"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DescribeRangeResponse, error) {
		return cc.DescribeRange(ctx, &rhumbpb.DescribeRangeRequest{Range: api.EncodeRangeID(id)})
	})
	if err != nil {
		return RangeStatus{}, rhumb.Wrap(op, err)
	}
	out := RangeStatus{Range: api.DecodeRange(resp.GetRange()), SizeBytes: resp.GetSizeBytes()}
	for _, r := range resp.GetReplicas() {
		out.Replicas = append(out.Replicas, ReplicaStatus{
			Node: rhumb.NodeID(r.GetNode()), State: r.GetState(), InSync: r.GetInSync(), Epoch: rhumb.Epoch(r.GetEpoch()),
			End: rhumb.Seq(r.GetEnd()), Commit: rhumb.Seq(r.GetCommit()), Trim: rhumb.Seq(r.GetTrim()), Reason: r.GetReason(),
			EndTime: rhumb.Timestamp(r.GetEndTime()), CommitTime: rhumb.Timestamp(r.GetCommitTime()), Copying: decodeCopy(r.GetCopying()), Store: int(r.GetStore()), ErrorKind: r.GetErrorKind(),
			RecoverRefused: r.GetRecoverRefused(),
		})
	}
	return out, nil
}

// Drain makes a node resign as primary of its ranges and accept no new role. It returns the number
// of primaries that the node still has when the time is up. With undo it ends the draining instead.
func (c *Client) Drain(ctx context.Context, node rhumb.NodeID, undo bool) (primaries int, err error) {
	const op rhumb.Op = "client.Client.Drain"
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	// withTimeout guarantees a deadline.
	deadline, _ := ctx.Deadline()
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DrainResponse, error) {
		left := time.Until(deadline) * 9 / 10 // leaves time for the answer
		return cc.Drain(ctx, &rhumbpb.DrainRequest{Node: uint32(node), Undo: undo, TimeoutUs: uint64(max(left.Microseconds(), 1))})
	})
	return int(resp.GetPrimaries()), rhumb.Wrap(op, err)
}

// ReplicaVerdict is the result of a comparison for one replica.
type ReplicaVerdict struct {
	Node rhumb.NodeID
	// Verdict is "trusted", "differs", "silent" or "undecided".
	Verdict string
	// Digest is equal for equal records, and empty for a silent replica.
	Digest string
	// Records and Bytes count the newest versions, without tombstones.
	Records, Bytes uint64
	// Error is why a silent replica did not answer.
	Error string
	// Quarantined is set if the replica was quarantined because it differs.
	Quarantined bool
}

// RangeVerdict is the comparison of the replicas of a range.
type RangeVerdict struct {
	Range rhumb.RangeID
	// Result is "equal", "alone" (fewer than two replicas answered), "differ" or "undecided".
	Result string
	// The records were compared in their state at position Seq and timestamp At.
	Seq rhumb.Seq
	At  rhumb.Timestamp
	// Table is the first table in which replicas differ.
	Table rhumb.TableID
	// Why says why replicas that differ were not quarantined.
	Why string
	// Replicas are in the order of the record.
	Replicas []ReplicaVerdict
	// Took is the time at the primary, without the way to it.
	Took time.Duration
}

// VerifyRange compares the replicas of a range. Replicas whose records differ from those of the majority are
// quarantined, and then replaced. Without a majority nothing is done, unless trust names the node whose
// copy is right; rhumb.NoNode means that nobody has decided that. It takes as long as reading the range at the
// rate of the nodes.
func (c *Client) VerifyRange(ctx context.Context, id rhumb.RangeID, trust rhumb.NodeID) (RangeVerdict, error) {
	const op rhumb.Op = "client.Client.VerifyRange"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.VerifyRangeResponse, error) {
		return cc.VerifyRange(ctx, &rhumbpb.VerifyRangeRequest{Range: api.EncodeRangeID(id), Trust: uint32(trust)})
	})
	if err != nil {
		return RangeVerdict{}, rhumb.Wrap(op, err)
	}
	v := RangeVerdict{
		Range: id, Result: resp.Result, Seq: rhumb.Seq(resp.Seq), At: rhumb.Timestamp(resp.At), Table: rhumb.TableID(resp.Table), Why: resp.Why,
		Took: api.DecodeMicros(resp.TookUs),
	}
	for _, r := range resp.Replicas {
		v.Replicas = append(v.Replicas, ReplicaVerdict{
			Node: rhumb.NodeID(r.Node), Verdict: r.Verdict, Digest: r.Digest, Records: r.Records, Bytes: r.Bytes, Error: r.Error, Quarantined: r.Quarantined,
		})
	}
	return v, nil
}

// DiscardReplica makes a node drop its damaged copy of a range and start an empty one, which copies
// the log of the range's primary as far back as that log reaches. The error kind Conflict means
// that the copy is not damaged or still counts as in sync. With acceptLoss, a copy that counts as
// in sync may be dropped if no intact copy is in sync.
func (c *Client) DiscardReplica(ctx context.Context, id rhumb.RangeID, node rhumb.NodeID, acceptLoss bool) error {
	const op rhumb.Op = "client.Client.DiscardReplica"
	_, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DiscardReplicaResponse, error) {
		return cc.DiscardReplica(ctx, &rhumbpb.DiscardReplicaRequest{Range: api.EncodeRangeID(id), Node: uint32(node), AcceptLoss: acceptLoss})
	})
	return rhumb.Wrap(op, err)
}

// RecoverRange accepts the loss of everything that no live, intact copy of a range holds, makes
// seen.Node the primary, and returns the range's new record. version is the version of the record
// on which the decision was based, and seen holds the loss as known at that time, to be stored in
// the record; its Epoch and Gone are ignored. The error kind Conflict means that the record has
// changed, or that nothing has to be given up.
func (c *Client) RecoverRange(ctx context.Context, id rhumb.RangeID, version uint64, seen rhumb.Recovery) (*rhumb.Range, error) {
	const op rhumb.Op = "client.Client.RecoverRange"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.RecoverRangeResponse, error) {
		return cc.RecoverRange(ctx, &rhumbpb.RecoverRangeRequest{
			Range: api.EncodeRangeID(id), Node: uint32(seen.Node), Version: version,
			End: uint64(seen.End), EndTime: uint64(seen.EndTime), Known: uint64(seen.Known),
		})
	})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return api.DecodeRange(resp.GetRange()), nil
}
