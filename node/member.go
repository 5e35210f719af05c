package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/admin"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/route"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/snapshot"
)

// reportInterval is how often suspicions are repeated to the metadata leader while there are any.
const reportInterval = place.ReportKeep / 4

// member is a node's part in its cluster, for one life of the node.
type member struct {
	n       *Node
	self    rhumb.NodeIdentity
	cluster rhumb.ClusterID
	region  rhumb.RegionID

	network *peer.Network
	group   *raftmeta.Group
	admin   *admin.Admin
	loads   *loads
	kv      *server.KV
	// host is nil until the node's own copy of the metadata shows this life of it.
	host *host.Host
	// publisher keeps the node's image in shared memory.
	publisher *publish.Driver
	// hostReady is closed when host and kv are set.
	hostReady chan struct{}

	suspectsMu sync.Mutex // guards suspects
	suspects   []place.Suspect
	suspected  chan struct{} // holds a token when suspects changed

	born   time.Time // when this life began
	fenced sync.Once // so that one rebirth follows

	collectors []prometheus.Collector
	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup
}

// newMember opens the node's copy of the metadata and its connections. The nodes given are those to connect to until the
// copy knows them.
func (n *Node) newMember(nodes []*rhumb.Node) (*member, error) {
	id := n.engine.Identity()
	m := &member{n: n, self: id.NodeIdentity(), cluster: id.Cluster, hostReady: make(chan struct{}), suspected: make(chan struct{}, 1), born: time.Now()}
	m.loads = newLoads(id.Node)
	m.ctx, m.cancel = context.WithCancel(n.ctx)
	m.network = peer.NewNetwork(peer.Config{
		Cluster: id.Cluster, Self: func() rhumb.NodeIdentity { return m.self },
		QueueBytesMax: n.budgets.queueBytes(), Queued: n.budgets.queued, FrameBytesMax: n.budgets.frameBytes(),
		Dial: n.cfg.dialer(), Load: m.tellLoad, Via: m.via, Handler: m, Logger: n.cfg.Logger,
	})
	c := raftmeta.DefaultConfig()
	c.Node, c.KV, c.Transport = id.Node, raftmeta.StoreKV(n.engine.Stores()[0], 0), transport{m.network}
	c.Logger, c.Short, c.Restarted, c.RTT = n.cfg.Logger, n.engine.Stores()[0].Short(), id.Boot > 1, m.rtt
	registry := prometheus.NewRegistry()
	c.Registerer = registry
	var err error
	if m.group, err = raftmeta.Open(c); err != nil {
		m.cancel()
		m.network.Close()
		return nil, err
	}
	m.admin = admin.New(admin.Config{Self: id.Node, Meta: m.group, Sizes: m, Loads: m.loads})
	m.collect(registryCollector{registry})
	m.collect(m.network.Collectors()...)
	m.collect(clusterCollector{m.group.State, &n.sights, m.self.Node})
	if len(nodes) == 0 {
		nodes = slices.Collect(m.group.State().Nodes())
	}
	m.network.SetPeers(nodes)
	n.peers.Open(m.network)
	m.work.Go(m.watchGroup)
	return m, nil
}

// collect registers metrics that go when this life ends.
func (m *member) collect(cs ...prometheus.Collector) {
	for _, c := range cs {
		if m.n.metrics.Register(c) == nil {
			m.collectors = append(m.collectors, c)
		}
	}
}

// watchGroup ends the node when its copy of the metadata cannot go on: it must not serve from an old one.
func (m *member) watchGroup() {
	select {
	case <-m.ctx.Done():
	case <-m.group.Done():
		if m.ctx.Err() == nil {
			m.n.cfg.Fatal(m.group.Err())
		}
	}
}

// serve starts the ranges, once the node's own copy of the metadata shows its present life.
func (m *member) serve(fresh bool) error {
	st := m.group.State()
	self, _ := st.Node(m.self.Node)
	m.region = self.Region
	var err error
	if m.publisher, err = publish.Open(m.n.publishConfig(m)); err != nil {
		return err
	}
	m.collect(m.publisher.Collectors()...)
	h, err := host.New(host.Config{
		Self: m.self, Engine: m.n.engine, Clock: m.n.clock, Net: m.network, Meta: m, Logger: m.n.cfg.Logger,
		Known: slices.Collect(st.Ranges()), Fresh: fresh, Settings: m.settings, History: m.history, Fatal: m.n.cfg.Fatal, Suspected: m.suspect, FitnessChanged: m.tellLeader,
		Budgets: m.n.budgets.host(),
		Committed: func(c host.Committed) {
			m.publisher.Committed(c.Range, publish.Position{Seq: c.Seq, HLC: c.HLC}, c.Entries)
		},
	})
	if err != nil {
		return err
	}
	m.host = h
	m.collect(h.Collectors()...)
	m.kv = server.NewKV(server.Config{
		Cluster: m.cluster, Self: m.self.Node, Region: m.region, Routes: route.Router{State: m.group.State},
		Ranges: h, Peers: m.network, Inserts: m.admin, Logger: m.n.cfg.Logger,
		Budgets: server.Budgets{Requests: m.n.budgets.requests, Answers: m.n.budgets.answers},
	})
	m.collect(m.kv.Collectors()...)
	close(m.hostReady)
	m.work.Go(m.follow)
	m.work.Go(m.report)
	m.work.Go(m.weigh)
	m.work.Go(m.watchClock)
	m.n.kv.Open(m.kv)
	return nil
}

// close ends this life.
func (m *member) close() {
	m.n.kv.Open(nil)
	m.n.peers.Open(nil)
	m.cancel()
	if m.host != nil {
		m.kv.Close()
		m.host.Close()
	}
	if m.publisher != nil {
		if err := m.publisher.Close(); err != nil {
			m.n.cfg.Logger.Warn("the image was not closed in order", "err", err)
		}
	}
	_ = m.group.Close()
	m.network.Close()
	m.work.Wait()
	for _, c := range m.collectors {
		m.n.metrics.Unregister(c)
	}
}

// closed tells the publisher how far a range is closed; 0 before the host is there.
func (m *member) closed(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	if h := m.ranges(); h != nil {
		return h.Closed(id, upTo)
	}
	return 0
}

// history gives how long a table keeps superseded versions.
func (m *member) history(id rhumb.TableID) (time.Duration, bool) {
	t, ok := m.group.State().Table(id)
	if !ok {
		return 0, false
	}
	return t.History, true
}

// settings gives the class of a range.
func (m *member) settings(id rhumb.RangeID) (rhumb.ClassSettings, bool) {
	st := m.group.State()
	r, ok := st.Range(id)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	c, ok := st.Class(r.Class)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	return c.Settings, true
}

// follow brings every change of the metadata to the host and to the network.
func (m *member) follow() {
	watch := m.group.Watch()
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		m.tell(u)
	}
}

func (m *member) tell(u raftmeta.Update) {
	st := u.State
	if u.Full || len(u.Changes.Tables)+len(u.Changes.Ranges) > 0 {
		m.publisher.CatalogChanged()
	}
	if u.Full || len(u.Changes.Nodes) > 0 {
		m.n.sights.observe(time.Now(), st.Nodes())
		m.network.SetPeers(m.n.whereabouts(st))
		m.host.SetPeers(m.pairs(st))
		self, ok := st.Node(m.self.Node)
		if ok && (self.State == rhumb.NodeFenced || self.Boot != m.self.Boot) {
			m.fenced.Do(func() { m.n.work.Go(func() { m.n.rebirth(m) }) })
		}
	}
	var ranges []*rhumb.Range
	if u.Full {
		ranges = slices.Collect(st.Ranges())
	}
	for _, id := range u.Changes.Ranges {
		if r, ok := st.Range(id); ok {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) > 0 {
		m.host.Update(ranges)
	}
}

// pairs says which nodes this one exchanges heartbeats with, and how patiently.
func (m *member) pairs(st *catalog.State) []lease.PeerInfo {
	var out []lease.PeerInfo
	for d := range st.Nodes() {
		if d.ID == m.self.Node {
			continue
		}
		if d.State == rhumb.NodeFenced {
			out = append(out, lease.PeerInfo{ID: d.ID, Absent: true})
			continue
		}
		timing := lease.RegionTiming()
		if d.Region != m.region {
			timing = lease.WANTiming()
		}
		out = append(out, lease.PeerInfo{ID: d.ID, Boot: d.Boot, Timing: timing})
	}
	return out
}

// suspect notes whom the leases suspect, in the lives that they have now: what is reported later must not be held against
// a life that begins meanwhile.
func (m *member) suspect(nodes []rhumb.NodeID) {
	st := m.group.State()
	suspects := make([]place.Suspect, 0, len(nodes))
	for _, id := range nodes {
		if d, ok := st.Node(id); ok {
			suspects = append(suspects, place.Suspect{Node: id, Boot: d.Boot})
		}
	}
	m.suspectsMu.Lock()
	m.suspects = suspects
	m.suspectsMu.Unlock()
	m.tellLeader()
}

// tellLeader has the next report made at once.
func (m *member) tellLeader() {
	select {
	case m.suspected <- struct{}{}:
	default:
	}
}

// report sends the metadata leader whom this node suspects and whether it is fit, and repeats it while there is anything to
// report.
func (m *member) report() {
	t := time.NewTicker(reportInterval)
	defer t.Stop()
	for {
		changed := false
		select {
		case <-m.ctx.Done():
			return
		case <-m.suspected:
			changed = true
		case <-t.C:
		}
		m.suspectsMu.Lock()
		r := place.Report{From: m.self.Node, Boot: m.self.Boot, Suspects: m.suspects, Unfit: m.host.Unfit() != ""}
		m.suspectsMu.Unlock()
		if !changed && len(r.Suspects) == 0 && !r.Unfit {
			continue
		}
		ctx, cancel := context.WithTimeout(m.ctx, reportInterval)
		if err := m.group.Report(ctx, r); err != nil {
			m.n.cfg.Logger.Debug("suspicions were not reported", "err", err)
		}
		cancel()
	}
}

// watchClock drops all leases when the machine was stopped without its clock noticing.
func (m *member) watchClock() {
	var w hlc.Watchdog
	w.Watch(m.ctx, func(disagree time.Duration) {
		m.n.cfg.Logger.Warn("monotonic and wall clock disagree: all leases are dropped", "by", disagree)
		m.host.Leases().DropHeld()
	})
}

// DataBytes gives the size of a range's data on this node.
func (m *member) DataBytes(id rhumb.RangeID) int64 {
	if m.host == nil {
		return 0
	}
	return m.host.DataBytes(id)
}

// Change brings what a replica wants to the metadata group.
func (m *member) Change(p replica.MetaProposal, done func(error)) {
	m.work.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, host.MetaTimeout)
		defer cancel()
		done(m.change(ctx, p))
	})
}

func (m *member) change(ctx context.Context, p replica.MetaProposal) error {
	res, err := m.group.Propose(ctx, host.Command(m.self.Node, p))
	if err != nil {
		return err
	}
	return res.Err()
}

// ConfirmPrimary asks the metadata group whether this node is still primary (rule F).
func (m *member) ConfirmPrimary(ctx context.Context, id rhumb.RangeID, e rhumb.Epoch) (bool, error) {
	st, err := m.group.Linearize(ctx)
	if err != nil {
		return false, err
	}
	r, ok := st.Range(id)
	return ok && r.Primary == m.self.Node && r.Epoch == e, nil
}

// Verify refuses a node that metadata does not know in that life.
func (m *member) Verify(id rhumb.NodeIdentity) error {
	const op rhumb.Op = "node.Verify"
	d, ok := m.group.State().Node(id.Node)
	switch {
	case !ok || d.Store == id.Store && d.Boot < id.Boot:
		return rhumb.Ef(op, rhumb.Unavailable, "this node has not heard yet that node %s registered with boot %d; retry", id.Node, id.Boot)
	case d.Identity() != id:
		return rhumb.Ef(op, rhumb.WrongCluster, "node %s is registered with store %s and boot %d, not with store %s and boot %d", id.Node, d.Store, d.Boot, id.Store, id.Boot)
	}
	return nil
}

// Replication, Heartbeat and Connected pass on what peers send. What comes before the host is there is dropped.
func (m *member) Replication(from rhumb.NodeID, msgs []replica.Message) {
	if h := m.ranges(); h != nil {
		h.Receive(from, msgs)
	}
}

// Heartbeat passes a lease frame on.
func (m *member) Heartbeat(from rhumb.NodeIdentity, f *lease.Frame) {
	if h := m.ranges(); h != nil {
		h.Leases().Receive(from, f)
	}
}

// Connected tells replicas that a peer can be reached, or cannot. It waits for the host, which would not know otherwise.
func (m *member) Connected(id rhumb.NodeID, connected bool) {
	select {
	case <-m.hostReady:
		m.host.Connected(id, connected)
	case <-m.ctx.Done():
	}
}

// ranges gives the host once it is there.
func (m *member) ranges() *host.Host {
	select {
	case <-m.hostReady:
		return m.host
	default:
		return nil
	}
}

// Raft passes messages of the metadata group on.
func (m *member) Raft(from rhumb.NodeID, _ uint32, msgs [][]byte) {
	for _, b := range msgs {
		if err := m.group.Step(from, b); err != nil {
			m.n.cfg.Logger.Debug("metadata message refused", "from", from, "err", err)
		}
	}
}

// Metadata answers a request of the metadata group.
func (m *member) Metadata(ctx context.Context, from rhumb.NodeID, _ uint32, request []byte) ([]byte, error) {
	return m.group.Handle(ctx, from, request)
}

// Forward answers a client's request that another node passed on.
func (m *member) Forward(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response {
	select {
	case <-m.hostReady:
		return m.kv.Answer(ctx, q)
	default:
		err := rhumb.E("node.Forward", rhumb.Unavailable, "the node is joining its cluster; retry")
		return &rhumbpb.Response{Id: q.Id, Error: api.EncodeError(err, api.Hint{})}
	}
}

// DescribeReplica tells how this node's replica of a range stands.
func (m *member) DescribeReplica(ctx context.Context, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error) {
	h := m.ranges()
	if h == nil {
		return nil, rhumb.E("node.DescribeReplica", rhumb.Unavailable, "the node is joining its cluster; retry")
	}
	s, err := h.Status(ctx, id)
	if err != nil {
		return nil, err
	}
	resp := &rhumbpb.DescribeReplicaResponse{
		Status: &rhumbpb.ReplicaStatus{
			Node: uint32(m.self.Node), State: s.State.String(), Epoch: uint64(s.Epoch),
			End: uint64(s.Last.Seq), Commit: uint64(s.Commit), Trim: uint64(s.Trim), Reason: s.Quarantine,
			EndTime: uint64(s.LastHLC), CommitTime: uint64(s.CommitHLC),
		},
		SizeBytes: s.Size.Data, Behind: map[uint32]string{},
	}
	if resp.Status.Reason == "" {
		resp.Status.Reason = s.Preparing
	}
	for _, p := range s.Peers {
		if p.Why != "" {
			resp.Behind[uint32(p.Node)] = p.Why
		}
	}
	return resp, nil
}

// DiscardReplica drops this node's damaged copy of a range.
func (m *member) DiscardReplica(ctx context.Context, id rhumb.RangeID, acceptLoss bool) error {
	h := m.ranges()
	if h == nil {
		return rhumb.E("node.DiscardReplica", rhumb.Unavailable, "the node is joining its cluster; retry")
	}
	return h.Discard(ctx, id, acceptLoss)
}

// transport carries the metadata group's messages over the network.
type transport struct{ network *peer.Network }

func (t transport) Send(to rhumb.NodeID, group raftmeta.GroupID, msgs [][]byte) {
	copies := make([][]byte, len(msgs))
	for i, b := range msgs {
		copies[i] = slices.Clone(b)
	}
	t.network.SendRaft(to, uint32(group), copies)
}

func (t transport) Forward(ctx context.Context, to rhumb.NodeID, group raftmeta.GroupID, request []byte) ([]byte, error) {
	return t.network.Metadata(ctx, to, uint32(group), request)
}

// registryCollector makes a registry a part of another.
type registryCollector struct{ r *prometheus.Registry }

func (c registryCollector) Describe(ch chan<- *prometheus.Desc) { c.r.Describe(ch) }
func (c registryCollector) Collect(ch chan<- prometheus.Metric) { c.r.Collect(ch) }

// publishConfig says how the node publishes its image in one life.
func (n *Node) publishConfig(m *member) publish.Config {
	s := n.cfg.Snapshot
	image := snapshot.Config{Budget: s.Budget, OverdueMax: s.OverdueMax, Leash: s.Leash, GroupReadable: s.GroupReadable}
	if s.HugePages {
		image.HugePages = snapshot.HugeTry
	}
	return publish.Config{
		Root: s.Dir, Cluster: m.cluster, Node: m.self.Node, Policy: s.Policy, Image: image, Engine: n.engine,
		HeldBytes: int(min(n.budgets.parts.Recent, 32<<20)),
		State:     m.group.State, Closed: m.closed, Logger: n.cfg.Logger, Registerer: n.metrics,
	}
}
