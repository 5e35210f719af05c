package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/peer"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/storage"
)

// findCluster looks for the cluster of the node until it has one, and then makes the node a member.
func (n *Node) findCluster() {
	n.entering.Lock()
	defer n.entering.Unlock()
	// Init may have begun the life already.
	if n.life.Nonce == 0 {
		if err := n.beginLife(n.engine.BeginLife); err != nil {
			n.cfg.Fatal(rhumb.Wrap("node.live", err))
			return
		}
	}
	// Not an error: the node to join may start later.
	if _, err := n.meetNodes(n.ctx, n.contactAddrs()); err != nil {
		n.cfg.Logger.Warn("no node to join answers yet; the node keeps trying", "err", err)
	}
	var nodes []*rhumb.Node
	began := time.Now()
	for n.engine.Identity().Cluster.IsZero() && n.ctx.Err() == nil {
		// Init may run while entering is free, so the identity is read again after each pause.
		n.entering.Unlock()
		n.pauseFor(seekInterval)
		n.entering.Lock()
		if n.engine.Identity().Cluster.IsZero() {
			nodes = n.seekCluster()
		}
		n.foundCluster(time.Since(began))
	}
	// Init may have made the node a member during a pause.
	if n.ctx.Err() == nil && n.member.Load() == nil {
		n.enterOrStop(nodes)
	}
}

// pauseFor waits until d has passed or the node stops.
func (n *Node) pauseFor(d time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-time.After(d):
	}
}

// seekCluster asks the members of a cluster that gossip knows to register this node, which has no
// cluster yet. After one of them has registered the node, seekCluster returns the nodes of the
// cluster.
func (n *Node) seekCluster() []*rhumb.Node {
	why := "no node that answers belongs to a cluster; " + n.beginning()
	// Joined once more on each attempt, because the node to join may have started later than this
	// one.
	met, err := n.meetNodes(n.ctx, n.contactAddrs())
	if err != nil {
		why = rhumb.Message(err)
	}
	members := n.listMembers(met)
	for _, addr := range members {
		resp, err := n.askToJoin(addr)
		if err != nil {
			why = "the member at " + addr + " rejects this node: " + rhumb.Message(err)
			continue
		}
		cluster, err1 := api.DecodeUUID(resp.Cluster)
		id, err2 := api.DecodeIdentity(resp.Identity)
		if err1 != nil || err2 != nil {
			n.cfg.Logger.Warn("cannot decode the answer of a member", "addr", addr)
			continue
		}
		// A cluster that this node has no certificate for could not use it.
		if own := n.certificateCluster(); !own.IsZero() && cluster != own {
			why = fmt.Sprintf("the member at %s belongs to cluster %s, but the certificate of this node to cluster %s; check --join and --token", addr, cluster, own)
			continue
		}
		// The identity is stored before the node opens its copy of the metadata: a node that
		// crashes in between registers again as the same node.
		err = n.dropUnfinishedInit()
		if err == nil {
			err = n.engine.SetIdentity(cluster, id.Node)
		}
		if err != nil {
			n.cfg.Fatal(err)
			return nil
		}
		var nodes []*rhumb.Node
		// A descriptor that does not decode is left out. The list only has to reach the metadata
		// group, whose catalog then replaces it.
		for _, p := range resp.Nodes {
			if d, err := api.DecodeNode(p); err == nil {
				nodes = append(nodes, &d)
			}
		}
		return nodes
	}
	// Without --join the node waits for Init or for another node, so nothing is wrong.
	if len(n.cfg.Join) > 0 {
		n.setObstacle(why)
	}
	return nil
}

// listMembers returns the addresses of nodes that belong to a cluster, other than this node: only they can
// register a node.
func (n *Node) listMembers(met []contact) (addrs []string) {
	for _, c := range met {
		if !c.cluster.IsZero() {
			addrs = append(addrs, c.addr)
		}
	}
	for _, m := range n.gossip.Members() {
		if !m.Cluster.IsZero() && m.Addr != n.outside.addr && !slices.Contains(addrs, m.Addr) {
			addrs = append(addrs, m.Addr)
		}
	}
	return addrs
}

// askToJoin asks one member to register the current life of the node.
func (n *Node) askToJoin(addr string) (*rhumbpb.JoinResponse, error) {
	const op rhumb.Op = "node.askToJoin"
	conn, err := n.connectAny(addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	cmd, err := n.signRegistration(n.registerCommand())
	if err != nil {
		return nil, err
	}
	resp, err := rhumbpb.NewClusterClient(conn).Join(ctx, &rhumbpb.JoinRequest{
		Cluster:  api.EncodeUUID(cmd.Cluster),
		Identity: api.EncodeIdentity(rhumb.NodeIdentity{Node: cmd.Node, Store: cmd.Store, Boot: cmd.Boot}),
		Nonce:    cmd.Nonce, PreviousNonce: cmd.Previous, Short: cmd.Short, RegionName: cmd.Region, RegionLocation: api.EncodePoint(cmd.Location),
		Node: &rhumbpb.Node{
			Zone: cmd.Zone, Location: api.EncodePoint(cmd.Location), Addr: cmd.Addr, HeartbeatAddr: cmd.HeartbeatAddr,
			AdminAddr: cmd.AdminAddr, Binary: cmd.Binary, Witness: cmd.Witness,
		},
		Proof: encodeProof(cmd.Proof),
	})
	if err != nil {
		e, _, remote := api.FromStatus(op, err)
		// If the member answered, its own error says more than a text from here could.
		if !remote && n.ctx.Err() == nil {
			silent := rhumb.Ef(op, rhumb.Unavailable, "%s did not answer; check that a node runs there and that this node can reach the address", addr)
			// After a timeout the cause would only be that a deadline was exceeded.
			if ctx.Err() == nil {
				silent.Err = e
			}
			return nil, silent
		}
		return nil, e
	}
	return resp, nil
}

// beginLife draws the nonce of a life and calls begin, which is Engine.BeginLife or
// Engine.RenewLife. The caller holds n.entering.
func (n *Node) beginLife(begin func(nonce uint64) (storage.Life, error)) (err error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	n.life, err = begin(binary.BigEndian.Uint64(b[:]))
	return err
}

// registerCommand returns the command that registers the current life of the node.
func (n *Node) registerCommand() catalog.RegisterNode {
	id := n.engine.Identity()
	return catalog.RegisterNode{
		Cluster: id.Cluster, Node: id.Node, Store: id.Store, Boot: id.Boot,
		Nonce: n.life.Nonce, Previous: n.life.Previous, Short: n.engine.Short(),
		Region: n.cfg.Region, Zone: n.cfg.Zone, Location: n.cfg.Location, HasLocation: true,
		Addr: n.outside.addr, HeartbeatAddr: n.outside.heartbeat, AdminAddr: n.outside.admin, Binary: rhumb.ThisBuild(n.cfg.Version).String(),
		Name: n.ownName(), Witness: n.cfg.Witness,
	}
}

// enterOrStop calls enterCluster and stops the node if its cluster rejects it. The caller holds
// n.entering.
func (n *Node) enterOrStop(nodes []*rhumb.Node) {
	if err := n.enterCluster(nodes); err != nil && n.ctx.Err() == nil {
		n.cfg.Fatal(rhumb.Wrap("node.enter", err))
	}
}

// enterCluster opens the node's copy of the metadata, registers the current life, and starts to
// serve.
func (n *Node) enterCluster(nodes []*rhumb.Node) error {
	m, err := n.registerMember(nodes)
	if err != nil {
		return err
	}
	n.phases.end("metadata")
	// Until this returns, requests read the metadata through entrant; afterwards through member.
	defer n.entrant.Store(nil)
	id := n.engine.Identity()
	// The store is fresh only in the first boot: then no earlier life can have granted a lease, and
	// the host does not wait for the longest lease (rule S).
	if err := m.startServing(id.Fresh && id.Boot == 1); err != nil {
		m.close()
		return err
	}
	n.member.Store(m)
	n.obstacle.Store(nil)
	n.noteFounded()
	n.cfg.Logger.Info("the node is in its cluster", "cluster", id.Cluster, "node", id.Node, "life", id.Boot, "region", n.cfg.Region)
	n.phases.end("replicas")
	if took := n.phases.finish(n.started); took != nil {
		n.cfg.Logger.Info("the process has started", took...)
	}
	return nil
}

// registerMember opens a member and registers it in the life that the identity of the node names.
// If the metadata assigns another number to the life, the member is closed and opened again under
// that number: connections and the copy of the metadata present the number to other nodes.
func (n *Node) registerMember(nodes []*rhumb.Node) (*member, error) {
	for {
		// Other nodes connect to a node at the address of its greatest boot, so gossip must carry
		// the new boot before the metadata group can reach this node.
		if err := n.gossip.Announce(n.gossipLabel()); err != nil {
			n.cfg.Logger.Debug("cannot announce the new life by gossip", "err", err)
		}
		m, err := n.newMember(nodes)
		if err != nil {
			return nil, err
		}
		// From here on status and watches read this copy, also if no leader can register the node.
		n.entrant.Store(m)
		d, err := n.registerLife(m)
		if err == nil && d.Boot == m.self.Boot {
			if err = n.confirmLife(d); err == nil {
				return m, nil
			}
		}
		n.entrant.Store(nil)
		m.close()
		// Without a pause, repeated conflicts would open and close members in a tight loop.
		if rhumb.KindOf(err) == rhumb.Conflict {
			n.pauseFor(seekInterval)
		}
		switch {
		case rhumb.KindOf(err) == rhumb.Conflict:
			// The nonce belongs to an earlier life, or this life was fenced before it served.
			err = n.beginLife(n.engine.RenewLife)
		case err == nil:
			// The metadata counted more lives than this disk knows: the disk is an older copy.
			_, err = n.engine.BumpBoot(d.Boot)
		}
		if err != nil {
			return nil, err
		}
		// The state of a closed group remains readable.
		nodes = slices.Collect(m.group.State().Nodes())
	}
}

// confirmLife stores the number of the registered life. Only then may the life serve
// (docs/replication.md#rule-life).
func (n *Node) confirmLife(d *rhumb.Node) error {
	if d.Short {
		n.cfg.Logger.Error("the disk of this node is an older copy of itself or has lost synced data; the node fetches missing entries from other nodes", "node", d.ID, "life", d.Boot)
	}
	return n.engine.ConfirmLife(n.life, d.Boot)
}

// registerLife registers the current life and waits until the node's own copy of the metadata shows
// it. It tries through its own copy, which knows the leader if the group runs, and then through
// every member that gossip knows.
func (n *Node) registerLife(m *member) (*rhumb.Node, error) {
	const op rhumb.Op = "node.register"
	n.catchUp(m)
	for start := time.Now(); n.ctx.Err() == nil; {
		st := m.group.State()
		// If the boot is smaller, an earlier start registered this life and did not receive the
		// answer. Then this start registers it again under its own boot. Accepting the smaller boot
		// would never match the boot of this member, and registerMember would open members without
		// end.
		if _, ok := st.Life(m.self.Node, n.life.Nonce); ok {
			if d, _ := st.Node(m.self.Node); d.Boot >= m.self.Boot {
				if d.State == rhumb.NodeFenced {
					return nil, rhumb.E(op, rhumb.Conflict, "this life was fenced before it served")
				}
				return d, nil
			}
		}
		if err := n.checkTwin(m); err != nil {
			return nil, err
		}
		err := n.registerOnce(m)
		if isFinal(err) {
			return nil, err
		}
		if err != nil {
			n.setObstacle(rhumb.Message(err))
			n.pauseFor(seekInterval)
		}
		// Gossip may learn of the members of this cluster later than of others, hence the patience.
		if other, ok := n.findStrangers(m.cluster); ok && time.Since(start) > strangersPatience {
			return nil, rhumb.Ef(op, rhumb.WrongCluster, "the data of this node belongs to cluster %s, but the nodes that answer belong to cluster %s; check --join and --dir", m.cluster, other)
		}
	}
	return nil, n.ctx.Err()
}

// isFinal reports whether a registration was refused for a reason that does not change with time or with the member that is asked. All other errors
// are retried.
func isFinal(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.WrongCluster, rhumb.InvalidArgument, rhumb.NotFound, rhumb.Conflict, rhumb.Incompatible:
		return true
	}
	return false
}

// catchUp waits until the node's own copy of the metadata has what other nodes had when the node asked them.
//
// The metadata leader expects heartbeats from a node once that is registered, and the node sends them once its own copy shows the
// registration. If the copy had to replay many entries in between, the leader would fence the node, again in each of its lives. The
// wait ends early if the copy stops making progress: its leader may know only the former address of this node, and learns the
// new one by the registration.
func (n *Node) catchUp(m *member) {
	want := n.newestRevision(m)
	for end := time.Now().Add(catchUpMax); n.ctx.Err() == nil && time.Now().Before(end); {
		before := m.group.State().Revision()
		if before >= want {
			return
		}
		n.setObstacle(fmt.Sprintf("the copy of the metadata on this node is at revision %d and catches up with %d", before, want))
		ctx, cancel := context.WithTimeout(n.ctx, catchUpStall)
		_ = m.group.AwaitRevision(ctx, want) // the next iteration looks at the revision
		cancel()
		if m.group.State().Revision() == before {
			n.cfg.Logger.Info("the copy of the metadata does not catch up before the registration; the node registers", "revision", before, "newest", want)
			return
		}
	}
}

// newestRevision returns the newest revision of the metadata that some nodes of the cluster of m have, or 0 if none answers.
func (n *Node) newestRevision(m *member) (newest uint64) {
	addrs := n.memberAddrs(m)
	addrs = addrs[:min(len(addrs), catchUpAsks)]
	// One answer suffices to learn that the copy is behind. All are awaited, because the first may be from the node that
	// lags most.
	answers := make(chan uint64, len(addrs))
	for _, addr := range addrs {
		go func() { answers <- n.revisionAt(addr, m.cluster) }()
	}
	for range addrs {
		newest = max(newest, <-answers)
	}
	return newest
}

// memberAddrs returns the addresses of other nodes of the cluster, in a random order, because always the same few may be down.
func (n *Node) memberAddrs(m *member) []string {
	addrs := n.contactAddrs()
	for _, g := range n.gossip.Members() {
		if g.Cluster == m.cluster && g.Addr != n.outside.addr && !slices.Contains(addrs, g.Addr) {
			addrs = append(addrs, g.Addr)
		}
	}
	mathrand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return addrs
}

// revisionAt returns the revision of the metadata at a node, or 0 if the node does not answer, is not ready or is in another cluster. Nodes
// that are not ready start themselves: after a restart of the whole cluster, waiting for each other would only delay the election.
func (n *Node) revisionAt(addr string, cluster rhumb.ClusterID) uint64 {
	conn, err := n.connectAny(addr)
	if err != nil {
		return 0
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, contactTimeout)
	defer cancel()
	resp, err := rhumbpb.NewClusterClient(conn).Ping(ctx, &rhumbpb.PingRequest{})
	if err != nil || !resp.Ready || !bytes.Equal(resp.Cluster, cluster[:]) {
		return 0
	}
	return resp.Revision
}

// checkTwin returns an error if another process acts as this node. Then the directory of this
// process is a copy of the directory of the other one. Two processes must not act as one node,
// because each of them would break the promises of the other; and without this check the process
// would wait forever.
func (n *Node) checkTwin(m *member) error {
	d, ok := m.group.State().Node(m.self.Node)
	// The catalog names this process, or no process yet.
	if !ok || d.Addr == "" || d.Addr == n.outside.addr {
		return nil
	}
	// If the question fails, nothing proves a twin, and the node must be able to start while
	// others are down.
	conn, err := n.connectAny(d.Addr)
	if err != nil {
		return nil
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, twinTimeout)
	defer cancel()
	resp, err := rhumbpb.NewClusterClient(conn).Ping(ctx, &rhumbpb.PingRequest{})
	// Only a node that is ready proves a twin. The former process of this node may have had the
	// address, and another node may have it now.
	if err != nil || !resp.Ready || rhumb.NodeID(resp.Node) != m.self.Node || !bytes.Equal(resp.Cluster, m.cluster[:]) {
		return nil
	}
	return rhumb.Ef("node.register", rhumb.WrongCluster, "another process at %s runs as node %s of cluster %s, so the directory of this node is a copy of its directory; "+
		"start a new node with an empty directory and --join", d.Addr, m.self.Node, m.cluster)
}

// nodesByGossip returns the nodes of a catalog. A node that gossip knows in the same or a later
// life than the catalog has the address that gossip reports.
//
// After a whole cluster restarted with other addresses, its metadata group can meet only at the
// addresses in gossip, and must keep to them until the last node has registered: before that, the
// catalog holds old addresses. The same life counts too, because a node whose disk is an older copy
// counts a life again that the catalog already knows.
func (n *Node) nodesByGossip(st *catalog.State) (nodes []*rhumb.Node) {
	heard := map[rhumb.NodeID]peer.Member{}
	for _, g := range n.gossip.Members() {
		if g.Cluster == st.Cluster() {
			heard[g.Node] = g
		}
	}
	for d := range st.Nodes() {
		at := *d
		// A node unknown to gossip has boot 0 here, which never wins: boots start at 1.
		if g := heard[d.ID]; g.Boot >= d.Boot {
			at.Addr = g.Addr
		}
		nodes = append(nodes, &at)
	}
	return nodes
}

// findStrangers reports whether gossip knows nodes of another cluster, but no other node of the
// given cluster. It returns the other cluster.
func (n *Node) findStrangers(own rhumb.ClusterID) (other rhumb.ClusterID, ok bool) {
	for _, m := range n.gossip.Members() {
		switch {
		case m.Cluster == own && m.Addr != n.outside.addr:
			return other, false
		case m.Cluster != own && !m.Cluster.IsZero():
			other, ok = m.Cluster, true
		}
	}
	return other, ok
}

// registerOnce makes one attempt to register the current life.
func (n *Node) registerOnce(m *member) error {
	// Without a leader, a proposal would only wait for its timeout.
	if leader, _ := m.group.Leader(); leader != rhumb.NoNode {
		err := n.proposeRegistration(m)
		switch rhumb.KindOf(err) {
		case rhumb.Unavailable, rhumb.DeadlineExceeded, rhumb.Unknown:
		default:
			return err
		}
		// The leader may reach this node while this node looks for the leader at the address of an
		// earlier life. So these errors do not end the attempt; other members are asked below.
	}
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	// After a restart of the whole cluster, the group has no leader because its members look for
	// each other at old addresses. Gossip knows the new ones.
	_, _ = n.meetNodes(ctx, n.contactAddrs())
	if nodes := n.nodesByGossip(m.group.State()); len(nodes) > 0 {
		m.network.SetPeers(nodes)
	}
	err := nobodyAnswers(m.group.State(), m.self.Node)
	for _, peer := range n.gossip.Members() {
		if peer.Cluster != m.cluster || peer.Addr == n.outside.addr {
			continue
		}
		var resp *rhumbpb.JoinResponse
		if resp, err = n.askToJoin(peer.Addr); isFinal(err) {
			// The next member may know less: it may have been removed together with this one, and wait for an answer itself.
			return err
		} else if err != nil {
			continue
		}
		var nodes []*rhumb.Node
		for _, p := range resp.Nodes {
			if d, err := api.DecodeNode(p); err == nil {
				nodes = append(nodes, &d)
			}
		}
		m.network.SetPeers(nodes)
		// Registered means applied at the leader. The life may serve only once its own copy shows
		// it.
		return m.group.AwaitRevision(ctx, resp.Revision)
	}
	return err
}

// nobodyAnswers returns the error of a node that knows no leader of the metadata, while no other node of the cluster answers.
func nobodyAnswers(st *catalog.State, self rhumb.NodeID) error {
	const op rhumb.Op = "node.register"
	for d := range st.Nodes() {
		if d.ID != self && !d.Forgotten {
			return rhumb.E(op, rhumb.Unavailable, "no other member of the cluster answers; start the other nodes and check --join")
		}
	}
	// Before the first registration the catalog has no nodes, and only the founder is in the cluster.
	return rhumb.E(op, rhumb.Unavailable, "this node is the only one of its cluster and does not lead its metadata yet; if this lasts for more than some seconds, look for errors of its disk in its log")
}

// proposeRegistration registers the current life through the node's own copy of the metadata.
func (n *Node) proposeRegistration(m *member) error {
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	cmd, err := n.signRegistration(n.registerCommand())
	if err != nil {
		return err
	}
	res, err := m.group.Propose(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	return err
}

// beginNewLife replaces a member that was fenced while the node was alive. No lease and no role of
// the old life continues (docs/replication.md#rule-life).
//
// Until the pause is over, the old member keeps its copy of the metadata and its vote: the metadata
// group may need the vote.
//
// A node that was removed for good has no further life. Its own copy of the metadata says so now; a moment later the metadata group is
// without this node, and only nodes that were removed together with it may answer.
func (n *Node) beginNewLife(old *member) {
	if d, ok := old.group.State().Node(old.self.Node); ok && d.Forgotten {
		n.stopRemoved(d.ID)
		return
	}
	n.entering.Lock()
	pause := n.rebirths.nextPause(time.Since(old.born))
	// entering is free during the pause, so that Close does not wait for it.
	n.entering.Unlock()
	if pause > 0 {
		n.cfg.Logger.Warn("this node was fenced again soon after the last time; it waits before it begins a new life", "pause", pause)
		n.pauseFor(pause)
	}
	n.entering.Lock()
	defer n.entering.Unlock()
	// Close may have taken the member during the pause.
	if n.ctx.Err() != nil || !n.member.CompareAndSwap(old, nil) {
		return
	}
	n.cfg.Logger.Warn("this node was fenced while it was alive; it begins a new life")
	old.close()
	// The boot is counted up even though the process did not restart. Peers distinguish lives by
	// it: they drop acknowledgements of the former one (docs/replication.md#rule-life-ack).
	if _, err := n.engine.BumpBoot(0); err != nil {
		n.cfg.Fatal(err)
		return
	}
	if err := n.beginLife(n.engine.RenewLife); err != nil {
		n.cfg.Fatal(err)
		return
	}
	n.enterOrStop(slices.Collect(old.group.State().Nodes()))
}

// dropUnfinishedInit removes the metadata of a cluster that this node began to create in Init,
// before it crashed. The node must belong to no cluster: then no other node ever learned of that
// cluster, and its metadata would stop Init as well as the node's copy of the metadata of another
// cluster.
func (n *Node) dropUnfinishedInit() error {
	b := raftmeta.StoreKV(n.engine.Stores()[0], 0).NewBatch()
	b.DeleteRange(nil, nil)
	return b.Commit(true)
}

// Init creates a cluster with this node as its first node.
func (n *Node) Init(ctx context.Context) (rhumb.ClusterID, rhumb.NodeID, error) {
	const op rhumb.Op = "node.Init"
	if err := n.requireOperator(ctx); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	n.entering.Lock()
	defer n.entering.Unlock()
	return n.createCluster(ctx)
}

// createCluster is Init for callers that hold n.entering.
func (n *Node) createCluster(ctx context.Context) (rhumb.ClusterID, rhumb.NodeID, error) {
	const op rhumb.Op = "node.Init"
	// Close holds entering for a moment and then closes the stores. An Init that comes later must
	// not use them.
	if n.ctx.Err() != nil {
		return rhumb.ClusterID{}, 0, rhumb.E(op, rhumb.Unavailable, "the node is stopping")
	}
	if id := n.engine.Identity(); !id.Cluster.IsZero() {
		return rhumb.ClusterID{}, 0, rhumb.Ef(op, rhumb.AlreadyExists, "the node already belongs to cluster %s, as node %s", id.Cluster, id.Node)
	}
	// A node that can join must not create a second cluster.
	met, _ := n.meetNodes(ctx, n.contactAddrs()) // nodes that do not answer may belong to none
	for _, c := range met {
		if !c.cluster.IsZero() {
			return rhumb.ClusterID{}, 0, rhumb.Ef(op, rhumb.AlreadyExists, "node %s at %s already belongs to cluster %s; this node joins that cluster, which needs no init", c.node, c.addr, c.cluster)
		}
	}
	for _, m := range n.gossip.Members() {
		if !m.Cluster.IsZero() {
			return rhumb.ClusterID{}, 0, rhumb.Ef(op, rhumb.AlreadyExists, "node %s at %s already belongs to cluster %s; this node joins that cluster, which needs no init", m.Node, m.Addr, m.Cluster)
		}
	}
	// The search for a cluster may have begun the life already.
	if n.life.Nonce == 0 {
		if err := n.beginLife(n.engine.BeginLife); err != nil {
			return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
		}
	}
	if err := n.dropUnfinishedInit(); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	// The certificates of all nodes name the cluster before it exists.
	cluster := n.certificateCluster()
	if cluster.IsZero() {
		_, _ = rand.Read(cluster[:]) // never fails
	}
	cmd := n.registerCommand()
	// The catalog assigns the number of the first node.
	cmd.Cluster, cmd.Node = cluster, rhumb.NoNode
	found := catalog.Init{Cluster: cluster, First: cmd}
	if n.gossip.Encrypted() {
		found.Gossip = []rhumb.GossipKey{newGossipKey(1)}
	}
	first, err := raftmeta.Bootstrap(raftmeta.StoreKV(n.engine.Stores()[0], 0), found)
	if err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	if err := n.engine.SetIdentity(cluster, first.Node); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	if err := n.enterCluster(nil); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	return cluster, first.Node, nil
}
