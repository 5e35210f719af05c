package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/admin"
	"github.com/rhumbdb/rhumb/node/digest"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/node/publish"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/node/route"
	"github.com/rhumbdb/rhumb/node/server"
	"github.com/rhumbdb/rhumb/node/transfer"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/snapshot"
)

// reportInterval is the interval at which a node repeats its suspicions to the metadata leader, as
// long as it has any.
const reportInterval = place.ReportKeep / 4

// member is the part of a node in its cluster, during one life of the node.
//
// A member has two stages. newMember opens the metadata and the network, with which the life is
// registered. startServing opens the host and the publisher, once the metadata shows the life. What
// peers send in the first stage is answered from the metadata alone.
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
	// host is nil until the node's own copy of the metadata shows this life. Other goroutines read
	// it through hostIfReady.
	host *host.Host
	// transfers copies ranges to and from other nodes.
	transfers *transfer.Manager
	// digests compares the replicas of ranges.
	digests *digest.Manager
	// publisher maintains the image of the node in shared memory.
	publisher *publish.Driver
	// hostReady is closed when host and kv are set.
	hostReady chan struct{}

	suspectsMu sync.Mutex // guards suspects
	suspects   []place.Suspect
	suspected  chan struct{} // holds a token if the next report is due at once

	born   time.Time // start of this life
	fenced sync.Once // starts one new life, however many updates show the node as fenced

	collectors []prometheus.Collector
	ctx        context.Context
	cancel     context.CancelFunc
	work       sync.WaitGroup
}

// newMember opens the node's copy of the metadata and its connections. The member connects to the
// given nodes until the copy knows the nodes of the cluster.
func (n *Node) newMember(nodes []*rhumb.Node) (*member, error) {
	id := n.engine.Identity()
	m := &member{n: n, self: id.NodeIdentity(), cluster: id.Cluster, hostReady: make(chan struct{}), suspected: make(chan struct{}, 1), born: time.Now()}
	m.loads = newLoads(id.Node)
	m.ctx, m.cancel = context.WithCancel(n.ctx)
	m.network = peer.NewNetwork(peer.Config{
		Cluster: id.Cluster, Self: func() rhumb.NodeIdentity { return m.self },
		QueueBytesMax: n.budgets.queueBytes(), Queued: n.budgets.queued, FrameBytesMax: n.budgets.frameBytes(),
		Dial: n.cfg.peerDialer(), Credentials: m.credentialsFor, Load: m.loadFor, Via: m.relayFor, Handler: m, Logger: n.cfg.Logger,
		Identity: n.source, Wall: n.judgeWall, Links: m.linksPeers,
	})
	c := raftmeta.DefaultConfig()
	c.Node, c.KV, c.Transport = id.Node, raftmeta.StoreKV(n.engine.Stores()[0], 0), transport{m.network}
	// Restarted makes a replica with an empty log ask the others for its promises: its disk
	// may have lost the log (docs/decisions/0020).
	c.Logger, c.Short, c.Restarted, c.RTT = n.cfg.Logger, n.engine.Stores()[0].Short(), id.Boot > 1, m.measuredRTT
	c.Clocks = m.clocks
	c.CheckRegistration, c.CheckRevocation = n.checkRegistration, n.checkRevocation
	// A registry for this life only: the metrics of the group disappear with it.
	registry := prometheus.NewRegistry()
	c.Registerer = registry
	var err error
	if m.group, err = raftmeta.Open(c); err != nil {
		m.cancel()
		m.network.Close()
		return nil, err
	}
	m.admin = admin.New(admin.Config{Self: id.Node, Meta: m.group, Sizes: m, Loads: m.loads})
	m.registerMetrics(registryCollector{registry})
	m.registerMetrics(m.network.Collectors()...)
	m.registerMetrics(clusterCollector{m.group.State, &n.sights, m.self.Node})
	// After a restart no member has sent a list of nodes, but the own copy has one.
	if len(nodes) == 0 {
		nodes = slices.Collect(m.group.State().Nodes())
	}
	m.network.SetPeers(nodes)
	// The keys of gossip are in the metadata, so a node that restarts needs nobody to gossip
	// again.
	n.applySecurity(m.group.State().Security())
	// Peers are served from here on, before this life is registered: the copy of the metadata needs
	// the messages of the other members to show the registration.
	n.peers.Open(m.network)
	m.work.Go(m.watchGroup)
	m.work.Go(m.followSecurity)
	m.work.Go(m.followVersion)
	m.work.Go(m.mendGossip)
	return m, nil
}

// credentialsFor returns the credentials of connections to a node of the catalog.
func (m *member) credentialsFor(d *rhumb.Node, protocol ...string) api.Credentials {
	return m.n.peerCredentials(d.Name, protocol...)
}

// linksPeers reports whether every node of the cluster understands links.
func (m *member) linksPeers() bool {
	return m.group != nil && m.group.State().Version().Has(rhumb.FeatureLink)
}

// registerMetrics registers metrics that disappear when this life ends.
func (m *member) registerMetrics(cs ...prometheus.Collector) {
	for _, c := range cs {
		if m.n.metrics.Register(c) == nil {
			m.collectors = append(m.collectors, c)
		}
	}
}

// watchGroup stops the node if its copy of the metadata fails. The node must not serve from a copy
// that no longer follows the group.
func (m *member) watchGroup() {
	select {
	case <-m.ctx.Done():
	case <-m.group.Done():
		// close cancels the context and then closes the group. That is not a failure.
		if m.ctx.Err() == nil {
			m.n.cfg.Fatal(m.group.Err())
		}
	}
}

// startServing opens the ranges. The node's own copy of the metadata must show the current life:
// before that, the node has not relearned its promises (docs/replication.md#rule-relearn).
func (m *member) startServing(fresh bool) error {
	st := m.group.State()
	self, _ := st.Node(m.self.Node)
	m.region = self.Region
	var err error
	// The publisher is opened before the host, which reports commits from its start.
	if m.publisher, err = publish.Open(m.n.publishConfig(m)); err != nil {
		return err
	}
	m.registerMetrics(m.publisher.Collectors()...)
	// Known are the records when the catalog first showed this life. The promises that the replicas
	// relearn follow from them.
	h, err := host.New(host.Config{
		Self: m.self, Engine: m.n.engine, Clock: m.n.clock, Net: m.network, Meta: m, Logger: m.n.cfg.Logger,
		Known: slices.Collect(st.Ranges()), Fresh: fresh, Settings: m.rangeSettings, HomeIn: m.homeIn, Spans: m.spans, MergesInto: m.mergesInto, History: m.tableHistory, Dropped: m.tableDropped, Fatal: m.n.cfg.Fatal, Suspected: m.setSuspects, FitnessChanged: m.triggerReport,
		Budgets: m.n.budgets.hostBudgets(), Replica: replica.Config{LogKeepBytes: m.n.cfg.LogKeep, TableName: m.tableName}, HealAfter: max(0, m.n.cfg.HealAfter),
		Transfers: func() bool { return m.group.State().Has(rhumb.FeatureTransfer) },
		Committed: func(c host.Committed) {
			p := publish.Position{Seq: c.Seq, HLC: c.HLC}
			if !c.Parent.IsZero() {
				m.publisher.Born(c.Range, c.Parent, p)
			}
			m.publisher.Committed(c.Range, p, c.Entries)
		},
	})
	if err != nil {
		return err
	}
	m.host = h
	m.registerMetrics(h.Collectors()...)
	m.kv = server.NewKV(server.Config{
		Cluster: m.cluster, Self: m.self.Node, Region: m.region, Routes: route.Router{State: m.group.State},
		Ranges: h, Peers: m.network, Inserts: m.admin, Logger: m.n.cfg.Logger, State: m.group.State,
		Budgets: server.Budgets{Requests: m.n.budgets.requests, Answers: m.n.budgets.answers},
	})
	m.registerMetrics(m.kv.Collectors()...)
	m.transfers = transfer.New(transfer.Config{
		Self: m.self, Engine: m.n.engine, Host: h, Net: m.network, Logger: m.n.cfg.Logger, Rate: max(0, m.n.cfg.TransferRate),
	})
	m.registerMetrics(m.transfers.Collectors()...)
	m.digests = digest.New(digest.Config{
		Self: m.self.Node, Engine: m.n.engine, Host: h, Net: m.network, Logger: m.n.cfg.Logger, Interval: m.n.cfg.VerifyInterval, Rate: max(0, m.n.cfg.VerifyRate),
		Enabled: func() bool { return m.group.State().Has(rhumb.FeatureTransfer) }, Dropped: m.droppedTables,
	})
	m.registerMetrics(m.digests.Collectors()...)
	// The channel publishes m.host to the goroutines of the network, and must be closed after it is
	// set.
	close(m.hostReady)
	m.work.Go(m.followMetadata)
	m.work.Go(m.reportLoop)
	m.work.Go(m.weighLoop)
	m.work.Go(m.surveyLoop)
	m.work.Go(m.splitLoop)
	m.work.Go(m.watchClock)
	// Clients come last, when everything that answers them runs.
	m.n.kv.Open(m.kv)
	return nil
}

// close ends this life. The order matters: clients and peers first, so that nothing new arrives;
// then the host, which feeds the publisher and proposes to the group; then those two; the network
// last, since the group sends through it until it is closed.
func (m *member) close() {
	// No handler of a later life may use this member, and no stream of a peer may reach its
	// replicas.
	m.n.kv.Open(nil)
	m.n.peers.Open(nil)
	// The loops in m.work end by the context, and m.work.Wait below waits for them.
	m.cancel()
	if m.host != nil {
		m.kv.Close()
		// Before the host, which installs the received sets.
		if m.transfers != nil {
			m.transfers.Close()
		}
		// It reads the engine.
		if m.digests != nil {
			m.digests.Close()
		}
		m.host.Close()
	}
	if m.publisher != nil {
		if err := m.publisher.Close(); err != nil {
			m.n.cfg.Logger.Warn("cannot close the image in shared memory", "err", err)
		}
	}
	_ = m.group.Close()
	m.network.Close()
	m.work.Wait()
	for _, c := range m.collectors {
		m.n.metrics.Unregister(c)
	}
}

// closedUpTo returns the timestamp up to which a range is closed, or 0 before the host is open.
func (m *member) closedUpTo(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	if h := m.hostIfReady(); h != nil {
		return h.Closed(id, upTo)
	}
	return 0
}

// tableHistory returns how long a table keeps superseded versions.
func (m *member) tableHistory(id rhumb.TableID) (time.Duration, bool) {
	t, ok := m.group.State().Table(id)
	if !ok {
		return 0, false
	}
	return t.History, true
}

// tableName returns the name of a table for the texts of errors, or its number if the metadata has no such table.
func (m *member) tableName(id rhumb.TableID) string {
	if t, ok := m.group.State().Table(id); ok {
		return t.Name
	}
	return id.String()
}

// homeIn returns the home of a key that belongs, or belonged, to a range.
func (m *member) homeIn(id rhumb.RangeID, table rhumb.TableID, name []byte) rhumb.RangeID {
	return m.group.State().HomeIn(id, table, name)
}

// tableDropped reports whether a table existed and was dropped.
func (m *member) tableDropped(id rhumb.TableID) bool { return m.group.State().IsTableDropped(id) }

// removeDropped makes the host free the storage of dropped tables and ranges. A full update may hide
// any number of drops, and those of the time in which this node was down.
func (m *member) removeDropped(u raftmeta.Update) {
	gone := func(id rhumb.TableID) bool { return u.State.IsTableDropped(id) }
	if u.Full && u.State.HasDroppedTables() || slices.ContainsFunc(u.Changes.Tables, gone) {
		m.host.SweepTables()
	}
	// A cancelled split takes the record of the new range away, as a drop does.
	exists := func(id rhumb.RangeID) bool { _, ok := u.State.Range(id); return ok }
	if u.Full || slices.ContainsFunc(u.Changes.Ranges, func(id rhumb.RangeID) bool { return !exists(id) }) {
		m.host.Prune(exists, u.State.IsMerged)
	}
	ranges := u.Changes.Ranges
	if u.Full {
		ranges = m.host.RangeIDs()
	}
	if ranges = slices.DeleteFunc(slices.Clone(ranges), func(id rhumb.RangeID) bool { return !u.State.IsRangeDropped(id) }); len(ranges) > 0 {
		m.host.DropRanges(ranges)
	}
}

// spans reports whether metadata accepts an in-sync set, as far as regions count.
func (m *member) spans(id rhumb.RangeID, members []rhumb.NodeID) bool {
	st := m.group.State()
	r, ok := st.Range(id)
	return !ok || st.MayStand(r, members)
}

// rangeSettings returns the settings of the class of a range.
func (m *member) rangeSettings(id rhumb.RangeID) (rhumb.ClassSettings, bool) {
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

// followMetadata applies every change of the metadata to the host and to the network.
func (m *member) followMetadata() {
	watch := m.group.Watch()
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		m.applyUpdate(u)
	}
}

// followSecurity applies changes of identities in the metadata. Unlike followMetadata it begins before the
// node is registered: a certificate that is revoked must not help to register.
func (m *member) followSecurity() {
	watch := m.group.Watch()
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		if u.Full || u.Changes.Security {
			m.n.applySecurity(u.State.Security())
		}
	}
}

// followVersion raises the formats of the databases when the cluster version is raised, and stops the node if its
// program does not support the active version. It begins before the node is registered: the node may have been
// stopped while the version was raised.
func (m *member) followVersion() {
	watch := m.group.Watch()
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		if !u.Full && !u.Changes.Version {
			continue
		}
		// A copy that belongs to no cluster yet says nothing about the version.
		if u.State.Cluster().IsZero() {
			continue
		}
		if err := rhumb.ThisBuild(m.n.cfg.Version).CheckActive(u.State.Version()); err != nil {
			m.n.cfg.Fatal(err)
			return
		}
		if err := m.n.engine.RaiseFormat(u.State.Version()); err != nil {
			m.n.cfg.Fatal(err)
			return
		}
	}
}

// applyUpdate applies one change of the metadata.
func (m *member) applyUpdate(u raftmeta.Update) {
	st := u.State
	if u.Full || len(u.Changes.Tables)+len(u.Changes.Ranges) > 0 {
		m.publisher.CatalogChanged()
	}
	// New descriptors of nodes take effect before the ranges that name these nodes: a replica can
	// send only to nodes that the network knows.
	if u.Full || len(u.Changes.Nodes) > 0 {
		m.n.sights.observeNodes(time.Now(), st.Nodes())
		m.network.SetPeers(m.n.nodesByGossip(st))
		m.host.SetPeers(m.leasePeers(st))
		m.host.SetDraining(draining(st))
		self, ok := st.Node(m.self.Node)
		// With another boot in the catalog, a later life of this node is registered. This life is
		// over either way.
		if ok && (self.State == rhumb.NodeFenced || self.Boot != m.self.Boot) {
			// Not in this goroutine: beginNewLife closes the member, which waits for this
			// goroutine.
			m.fenced.Do(func() { m.n.work.Go(func() { m.n.beginNewLife(m) }) })
		}
	}
	var ranges []*rhumb.Range
	if u.Full {
		ranges = slices.Collect(st.Ranges())
	}
	// Only changed ranges are passed on, because a node may hold thousands of them.
	for _, id := range u.Changes.Ranges {
		if r, ok := st.Range(id); ok {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) > 0 {
		m.host.Update(ranges)
	}
	m.removeDropped(u)
}

// draining returns the nodes that drain.
func draining(st *catalog.State) (out []rhumb.NodeID) {
	for d := range st.Nodes() {
		if d.State == rhumb.NodeDraining {
			out = append(out, d.ID)
		}
	}
	return out
}

// leasePeers returns the nodes with which this node exchanges heartbeats, and the timing of each
// pair.
func (m *member) leasePeers(st *catalog.State) []lease.PeerInfo {
	var out []lease.PeerInfo
	for d := range st.Nodes() {
		// A removed node never returns, and was primary of nothing.
		if d.ID == m.self.Node || d.Forgotten {
			continue
		}
		// A fenced node gets no heartbeats, but it stays in the list: it may hold grants of an
		// earlier life of this node (rule S).
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

// setSuspects records the nodes that the leases suspect, together with their current lives. A
// suspicion that is reported later must not count against a life that begins in the meantime.
func (m *member) setSuspects(nodes []rhumb.NodeID) {
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
	m.triggerReport()
}

// reachesNobody returns the number of the other nodes if this node suspects all of them, and otherwise
// 0. Fenced nodes do not count: a node is well without them.
func (m *member) reachesNobody() (missed int) {
	h := m.hostIfReady()
	if h == nil {
		return 0
	}
	suspects := h.Leases().Suspects()
	for n := range m.group.State().Nodes() {
		switch {
		case n.ID == m.self.Node || n.State == rhumb.NodeFenced:
		case !slices.Contains(suspects, n.ID):
			return 0
		default:
			missed++
		}
	}
	return missed
}

// triggerReport makes the report loop send a report at once.
func (m *member) triggerReport() {
	// One token is enough: the report is built from the newest state when the loop takes the token.
	select {
	case m.suspected <- struct{}{}:
	default:
	}
}

// reportLoop reports to the metadata leader which nodes this node suspects and whether it is fit.
// It sends each change at once, and repeats a report with contents until nothing is left to report:
// the leader forgets reports after place.ReportKeep.
func (m *member) reportLoop() {
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
		// setSuspects replaces the slice and never changes it, so the report may share it.
		r := place.Report{From: m.self.Node, Boot: m.self.Boot, Suspects: m.suspects, Unfit: m.host.Unfit() != "", Full: m.host.Full()}
		m.suspectsMu.Unlock()
		// A change is reported even if nothing is left to report: it clears the report before.
		if !changed && len(r.Suspects) == 0 && !r.Unfit {
			continue
		}
		// A report that takes longer than the interval is superseded by the next.
		ctx, cancel := context.WithTimeout(m.ctx, reportInterval)
		if err := m.group.Report(ctx, r); err != nil {
			m.n.cfg.Logger.Debug("cannot report suspicions", "err", err)
		}
		cancel()
	}
}

// watchClock drops all leases after the machine was suspended without the monotonic clock noticing:
// leases last in real time (docs/replication.md#assumptions).
func (m *member) watchClock() {
	var w hlc.Watchdog
	w.Watch(m.ctx, m.n.cfg.Wall, func(disagree time.Duration) {
		m.n.cfg.Logger.Warn("monotonic and wall clock disagree; all leases are dropped", "by", disagree)
		m.host.Leases().DropHeld()
	})
}

// DataBytes returns the size of the data of a range on this node.
func (m *member) DataBytes(id rhumb.RangeID) int64 {
	if m.host == nil {
		return 0
	}
	return m.host.DataBytes(id)
}

// Change proposes a change of the metadata for a replica, and calls done with the result. The
// proposal runs in a goroutine of its own because the caller is a pass of the host.
func (m *member) Change(p replica.MetaProposal, done func(error)) {
	m.work.Go(func() {
		ctx, cancel := context.WithTimeout(m.ctx, host.MetaTimeout)
		defer cancel()
		done(m.proposeChange(ctx, p))
	})
}

// proposeChange proposes a change and waits for its result.
func (m *member) proposeChange(ctx context.Context, p replica.MetaProposal) error {
	res, err := m.group.Propose(ctx, host.Command(m.self.Node, p))
	if err != nil {
		return err
	}
	return res.Err()
}

// ConfirmPrimary asks the metadata group whether this node is still primary in an epoch (rule F).
func (m *member) ConfirmPrimary(ctx context.Context, id rhumb.RangeID, e rhumb.Epoch) (bool, error) {
	st, err := m.group.Linearize(ctx)
	if err != nil {
		return false, err
	}
	// The state contains everything that was decided before the call. If another primary had been
	// elected and had served a write before this read arrived, it would be named here.
	r, ok := st.Range(id)
	return ok && r.Primary == m.self.Node && r.Epoch == e, nil
}

// Verify rejects a node that is not registered in the given life.
func (m *member) Verify(id rhumb.NodeIdentity) error {
	const op rhumb.Op = "node.Verify"
	d, ok := m.group.State().Node(id.Node)
	switch {
	// This copy of the metadata may be older than the registration of the peer, so the peer may retry.
	case !ok || d.Store == id.Store && d.Boot < id.Boot:
		return rhumb.Ef(op, rhumb.Unavailable, "this node has not learned yet that node %s registered with boot %d; retry", id.Node, id.Boot)
	case d.Identity() != id:
		return rhumb.Ef(op, rhumb.WrongCluster, "node %s is registered with store %s and boot %d, not with store %s and boot %d", id.Node, d.Store, d.Boot, id.Store, id.Boot)
	}
	return nil
}

// MaySpeak rejects a bearer of a certificate that acts as another node.
func (m *member) MaySpeak(name string, id rhumb.NodeID, joining bool) error {
	return m.group.State().MaySpeak(name, id, joining)
}

// NodeNamed returns the registered node to which a name is bound.
func (m *member) NodeNamed(name string) (rhumb.NodeID, bool) {
	d, ok := m.group.State().NodeByName(name)
	if !ok {
		return rhumb.NoNode, false
	}
	return d.ID, true
}

// Replication passes messages of peers to the host. Before the host is open, they are dropped:
// replicas repeat them.
func (m *member) Replication(from rhumb.NodeID, msgs []replica.Message) {
	if h := m.hostIfReady(); h != nil {
		h.Receive(from, msgs)
	}
}

// Heartbeat passes a lease frame to the host, or drops it.
func (m *member) Heartbeat(from rhumb.NodeIdentity, f *lease.Frame) {
	if h := m.hostIfReady(); h != nil {
		h.Leases().Receive(from, f)
	}
}

// Connected informs the host whether messages to a peer get through. It waits for the host, because
// a connection is announced only once: a host that missed it would consider the peer unreachable.
func (m *member) Connected(id rhumb.NodeID, connected bool) {
	select {
	case <-m.hostReady:
		m.host.Connected(id, connected)
	case <-m.ctx.Done():
	}
}

// Refused informs the host that a peer's process is gone.
func (m *member) Refused(id rhumb.NodeID, boot rhumb.BootSeq) {
	if h := m.hostIfReady(); h != nil {
		h.Refused(id, boot)
	}
}

// hostIfReady returns the host, or nil before it is open.
func (m *member) hostIfReady() *host.Host {
	select {
	case <-m.hostReady:
		return m.host
	default:
		return nil
	}
}

// Transfers returns what copies ranges, nil before this life serves.
func (m *member) Transfers() *transfer.Manager {
	if m.hostIfReady() == nil {
		return nil
	}
	return m.transfers
}

// Raft passes messages to the metadata group.
func (m *member) Raft(from rhumb.NodeID, _ uint32, msgs [][]byte) {
	for _, b := range msgs {
		if err := m.group.Step(from, b); err != nil {
			m.n.cfg.Logger.Debug("metadata message rejected", "from", from, "err", err)
		}
	}
}

// Metadata answers a request for the metadata group.
func (m *member) Metadata(ctx context.Context, from rhumb.NodeID, _ uint32, request []byte) ([]byte, error) {
	return m.group.Handle(ctx, from, request)
}

// Forward answers a request of a client that another node forwarded.
func (m *member) Forward(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response {
	select {
	case <-m.hostReady:
		// The other node signs for the principal with its certificate.
		return m.kv.Answer(access.WithPrincipal(ctx, m.forwardedPrincipal(q)), q)
	default:
		// Unavailable is certain: nothing was applied, and the sender may retry.
		err := rhumb.E("node.Forward", rhumb.Unavailable, "the node is joining its cluster; retry")
		return &rhumbpb.Response{Id: q.Id, Error: api.EncodeError(err, api.Hint{})}
	}
}

// forwardedPrincipal returns the client on whose behalf another node forwards a request. A secure node accepts no
// request of an insecure one, whatever the message says.
func (m *member) forwardedPrincipal(q *rhumbpb.Request) access.Principal {
	if m.n.cfg.Insecure {
		return access.Principal{Kind: access.KindInsecure}
	}
	who := api.DecodePrincipal(q.Principal)
	if who.Kind == access.KindInsecure {
		return access.Principal{}
	}
	return who
}

// DescribeReplica describes this node's replica of a range.
func (m *member) DescribeReplica(ctx context.Context, id rhumb.RangeID) (*rhumbpb.DescribeReplicaResponse, error) {
	h := m.hostIfReady()
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
	// An elected replica that waits for rule P is not quarantined, but an operator asks for the
	// same reason: why the range does not serve.
	if resp.Status.Reason == "" {
		resp.Status.Reason = s.Preparing
	}
	for _, p := range s.Peers {
		if p.Why != "" {
			resp.Behind[uint32(p.Node)] = p.Why
		}
	}
	resp.Status.Copying = m.copyProgress(id)
	// Which store it is matters only where there are several: copies in two cannot be united.
	if stores := m.n.engine.Stores(); len(stores) > 1 {
		resp.Status.Store = uint32(slices.Index(stores, m.n.engine.Placed(id)) + 1)
	}
	return resp, nil
}

// copyProgress returns the copy of a range that this node receives, or nil.
func (m *member) copyProgress(id rhumb.RangeID) *rhumbpb.CopyProgress {
	// The list has the copies in progress and those that wait for another attempt: a few, and at most
	// as many as the node has ranges.
	for _, p := range m.transfers.Progress() {
		if p.Range == id {
			return &rhumbpb.CopyProgress{
				From: uint32(p.From), DoneBytes: p.Done, TotalBytes: p.Of, BytesPerSecond: int64(p.Rate), Installing: p.Installing,
				Failures: uint32(p.Failures), LastError: p.LastError,
			}
		}
	}
	return nil
}

// DiscardReplica discards this node's damaged copy of a range.
func (m *member) DiscardReplica(ctx context.Context, id rhumb.RangeID, acceptLoss bool) error {
	h := m.hostIfReady()
	if h == nil {
		return rhumb.E("node.DiscardReplica", rhumb.Unavailable, "the node is joining its cluster; retry")
	}
	return h.Discard(ctx, id, acceptLoss)
}

// Digests returns what compares replicas, nil before this life serves.
func (m *member) Digests() *digest.Manager {
	if m.hostIfReady() == nil {
		return nil
	}
	return m.digests
}

// DistrustReplica quarantines this node's replica of a range.
func (m *member) DistrustReplica(ctx context.Context, from rhumb.NodeID, id rhumb.RangeID, why string) error {
	h := m.hostIfReady()
	if h == nil {
		return rhumb.E("node.DistrustReplica", rhumb.Unavailable, "the node is joining its cluster; retry")
	}
	return h.Distrust(ctx, id, from, why)
}

// VerifyReplicas compares the replicas of a range whose primary is this node.
func (m *member) VerifyReplicas(ctx context.Context, q *rhumbpb.VerifyRangeRequest) (*rhumbpb.VerifyRangeResponse, error) {
	d := m.Digests()
	if d == nil {
		return nil, rhumb.E("node.VerifyReplicas", rhumb.Unavailable, "the node is joining its cluster; retry")
	}
	r, err := d.Verify(ctx, api.DecodeRangeID(q.Range), rhumb.NodeID(q.Trust))
	if err != nil {
		return nil, err
	}
	// Digests of tables stay between nodes. A client gets one number for each replica.
	resp := &rhumbpb.VerifyRangeResponse{
		Result: r.Result.String(), Range: api.EncodeRangeID(r.Range), Seq: uint64(r.Seq), At: uint64(r.At), Table: uint32(r.Table), Why: r.Why,
		TookUs: uint64(r.Took.Microseconds()),
	}
	for _, a := range r.Answers {
		v := &rhumbpb.ReplicaVerdict{Node: uint32(a.Node), Quarantined: slices.Contains(r.Distrusted, a.Node)}
		switch {
		case a.Digest == nil:
			v.Verdict, v.Error = "silent", rhumb.Message(a.Err)
		case slices.Contains(r.Trusted, a.Node):
			v.Verdict = "trusted"
		case r.Result == digest.Differ:
			v.Verdict = "differs"
		default:
			v.Verdict = "undecided"
		}
		if a.Digest != nil {
			v.Digest, v.Records, v.Bytes = a.Digest.String(), a.Digest.Records(), a.Digest.Bytes()
		}
		resp.Replicas = append(resp.Replicas, v)
	}
	return resp, nil
}

// droppedTables returns which tables do not exist any more, as decided before the call.
func (m *member) droppedTables(ctx context.Context) (func(rhumb.TableID) bool, error) {
	ctx, cancel := context.WithTimeout(ctx, linearizeTimeout)
	defer cancel()
	st, err := m.group.Linearize(ctx)
	if err != nil {
		return nil, err
	}
	return st.IsTableDropped, nil
}

// transport implements raftmeta.Transport on the network.
type transport struct{ network *peer.Network }

func (t transport) Send(to rhumb.NodeID, group raftmeta.GroupID, msgs [][]byte) {
	// The group reuses its buffers after Send returns, and the network keeps messages in a queue.
	copies := make([][]byte, len(msgs))
	for i, b := range msgs {
		copies[i] = slices.Clone(b)
	}
	t.network.SendRaft(to, uint32(group), copies)
}

func (t transport) Forward(ctx context.Context, to rhumb.NodeID, group raftmeta.GroupID, request []byte) ([]byte, error) {
	return t.network.Metadata(ctx, to, uint32(group), request)
}

// registryCollector registers all metrics of a registry in another registry.
type registryCollector struct{ r *prometheus.Registry }

func (c registryCollector) Describe(ch chan<- *prometheus.Desc) { c.r.Describe(ch) }
func (c registryCollector) Collect(ch chan<- prometheus.Metric) { c.r.Collect(ch) }

// publishConfig configures the image of the node in one life.
func (n *Node) publishConfig(m *member) publish.Config {
	s := n.cfg.Snapshot
	image := snapshot.Config{Budget: s.Budget, OverdueMax: s.OverdueMax, Leash: s.Leash, GroupReadable: s.GroupReadable, Group: n.imageGroup}
	if s.HugePages {
		image.HugePages = snapshot.HugeTry
	}
	return publish.Config{
		Root: s.Dir, Cluster: m.cluster, Node: m.self.Node, Policy: s.Policy, Image: image, Engine: n.engine,
		// Entries that the publisher holds are part of the memory for recent entries, but a larger
		// node does not need proportionally more of them.
		HeldBytes: int(min(n.budgets.parts.Recent, 32<<20)),
		State:     m.group.State, Closed: m.closedUpTo, Logger: n.cfg.Logger, Registerer: n.metrics,
	}
}
