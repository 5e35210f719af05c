package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
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

// live finds the node's cluster and takes part in it.
func (n *Node) live() {
	n.entering.Lock()
	defer n.entering.Unlock()
	if n.life.Nonce == 0 { // Init may have come first
		if err := n.beginLife(n.engine.BeginLife); err != nil {
			n.cfg.Fatal(rhumb.Wrap("node.live", err))
			return
		}
	}
	if err := n.gossip.Join(n.cfg.Join); err != nil {
		n.cfg.Logger.Warn("no node to join answers yet; trying on", "err", err)
	}
	var nodes []*rhumb.Node
	for n.engine.Identity().Cluster.IsZero() && n.ctx.Err() == nil {
		n.entering.Unlock() // Init may come in between
		n.pause(seekInterval)
		n.entering.Lock()
		if n.engine.Identity().Cluster.IsZero() {
			nodes = n.seek()
		}
	}
	if n.ctx.Err() == nil && n.member.Load() == nil {
		n.enterOrStop(nodes)
	}
}

func (n *Node) pause(d time.Duration) {
	select {
	case <-n.ctx.Done():
	case <-time.After(d):
	}
}

// seek asks the members of a cluster that gossip knows to register this node, which has no cluster yet. It returns the nodes
// of the cluster once one member has registered it.
func (n *Node) seek() []*rhumb.Node {
	why := "those that answer belong to no cluster either; run rhumb init on one of them"
	if err := n.gossip.Join(n.cfg.Join); err != nil { // again: the node to join may have started later
		why = rhumb.Message(err)
	}
	for _, m := range n.gossip.Members() {
		if m.Cluster.IsZero() || m.Addr == n.bound.addr {
			continue
		}
		resp, err := n.askToJoin(m.Addr)
		if err != nil {
			why = "the member at " + m.Addr + " does not let this node join: " + rhumb.Message(err)
			continue
		}
		cluster, err1 := api.DecodeUUID(resp.Cluster)
		id, err2 := api.DecodeIdentity(resp.Identity)
		if err1 != nil || err2 != nil {
			n.cfg.Logger.Warn("a member's answer does not decode", "addr", m.Addr)
			continue
		}
		if err := n.engine.SetIdentity(cluster, id.Node); err != nil {
			n.cfg.Fatal(err)
			return nil
		}
		var nodes []*rhumb.Node
		for _, p := range resp.Nodes {
			if d, err := api.DecodeNode(p); err == nil {
				nodes = append(nodes, &d)
			}
		}
		return nodes
	}
	if len(n.cfg.Join) > 0 {
		n.hinder(why)
	}
	return nil
}

// askToJoin asks one member to register this life of the node.
func (n *Node) askToJoin(addr string) (*rhumbpb.JoinResponse, error) {
	const op rhumb.Op = "node.askToJoin"
	conn, err := api.Connect(addr, n.cfg.dialer())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	cmd := n.registration()
	resp, err := rhumbpb.NewClusterClient(conn).Join(ctx, &rhumbpb.JoinRequest{
		Cluster:  api.EncodeUUID(cmd.Cluster),
		Identity: api.EncodeIdentity(rhumb.NodeIdentity{Node: cmd.Node, Store: cmd.Store, Boot: cmd.Boot}),
		Nonce:    cmd.Nonce, PreviousNonce: cmd.Previous, Short: cmd.Short, RegionName: cmd.Region, RegionLocation: api.EncodePoint(cmd.Location),
		Node: &rhumbpb.Node{
			Zone: cmd.Zone, Location: api.EncodePoint(cmd.Location), Addr: cmd.Addr, HeartbeatAddr: cmd.HeartbeatAddr,
			AdminAddr: cmd.AdminAddr, Binary: cmd.Binary,
		},
	})
	if err != nil {
		e, _, remote := api.FromStatus(op, err)
		if !remote && n.ctx.Err() == nil {
			silent := rhumb.Ef(op, rhumb.Unavailable, "%s did not answer; check that a node runs there, and that this node reaches the address", addr)
			if ctx.Err() == nil { // otherwise the cause is that time was up
				silent.Err = e
			}
			return nil, silent
		}
		return nil, e
	}
	return resp, nil
}

// beginLife begins a life with begin, which is BeginLife or RenewLife of the engine; n.entering is held.
func (n *Node) beginLife(begin func(nonce uint64) (storage.Life, error)) (err error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	n.life, err = begin(binary.BigEndian.Uint64(b[:]))
	return err
}

// registration is the command that registers this life of the node.
func (n *Node) registration() catalog.RegisterNode {
	id := n.engine.Identity()
	return catalog.RegisterNode{
		Cluster: id.Cluster, Node: id.Node, Store: id.Store, Boot: id.Boot,
		Nonce: n.life.Nonce, Previous: n.life.Previous, Short: n.engine.Short(),
		Region: n.cfg.Region, Zone: n.cfg.Zone, Location: n.cfg.Location, HasLocation: true,
		Addr: n.bound.addr, HeartbeatAddr: n.bound.heartbeat, AdminAddr: n.bound.admin, Binary: n.cfg.Version,
	}
}

// enterOrStop makes the node a member of its cluster; n.entering is held. A node that its cluster refuses cannot go on.
func (n *Node) enterOrStop(nodes []*rhumb.Node) {
	if err := n.enter(nodes); err != nil && n.ctx.Err() == nil {
		n.cfg.Fatal(rhumb.Wrap("node.enter", err))
	}
}

// enter opens the node's copy of the metadata, registers its present life, and begins to serve.
func (n *Node) enter(nodes []*rhumb.Node) error {
	m, err := n.registered(nodes)
	if err != nil {
		return err
	}
	defer n.entrant.Store(nil)
	id := n.engine.Identity()
	if err := m.serve(id.Fresh && id.Boot == 1); err != nil {
		m.close()
		return err
	}
	n.member.Store(m)
	n.obstacle.Store(nil)
	n.cfg.Logger.Info("the node is in its cluster", "cluster", id.Cluster, "node", id.Node, "life", id.Boot, "region", n.cfg.Region)
	return nil
}

// registered returns the node's part in its cluster, registered in the life that its identity names.
func (n *Node) registered(nodes []*rhumb.Node) (*member, error) {
	for {
		if err := n.gossip.Announce(n.label()); err != nil { // others look for this node at the address of its greatest boot
			n.cfg.Logger.Debug("gossip was not told", "err", err)
		}
		m, err := n.newMember(nodes)
		if err != nil {
			return nil, err
		}
		n.entrant.Store(m)
		d, err := n.register(m)
		if err == nil && d.Boot == m.self.Boot {
			if err = n.confirmLife(d); err == nil {
				return m, nil
			}
		}
		n.entrant.Store(nil)
		m.close()
		if rhumb.KindOf(err) == rhumb.Conflict {
			n.pause(seekInterval)
		}
		switch {
		case rhumb.KindOf(err) == rhumb.Conflict:
			err = n.beginLife(n.engine.RenewLife) // the nonce was that of an earlier life, or that life was fenced already
		case err == nil: // metadata has counted more lives than this disk knows
			_, err = n.engine.BumpBoot(d.Boot)
		}
		if err != nil {
			return nil, err
		}
		nodes = slices.Collect(m.group.State().Nodes())
	}
}

// confirmLife stores the number of the registered life: from now on it may serve.
func (n *Node) confirmLife(d *rhumb.Node) error {
	if d.Short {
		n.cfg.Logger.Error("this node's disk is an older copy of itself or has lost synced data; what its ranges lack is fetched from other nodes", "node", d.ID, "life", d.Boot)
	}
	return n.engine.ConfirmLife(n.life, d.Boot)
}

// register makes this life known and waits until the node's own copy of the metadata shows it. It tries through its own
// copy, which knows the leader when the group runs, and through every member that gossip knows.
func (n *Node) register(m *member) (*rhumb.Node, error) {
	const op rhumb.Op = "node.register"
	for start := time.Now(); n.ctx.Err() == nil; {
		st := m.group.State()
		// With a smaller boot an earlier start registered this life and did not hear of it: this one registers it again.
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
		if k := rhumb.KindOf(err); k == rhumb.WrongCluster || k == rhumb.InvalidArgument || k == rhumb.NotFound || k == rhumb.Conflict {
			return nil, err
		}
		if err != nil {
			n.hinder(rhumb.Message(err))
			n.pause(seekInterval)
		}
		if other, ok := n.strangers(m.cluster); ok && time.Since(start) > strangersPatience {
			return nil, rhumb.Ef(op, rhumb.WrongCluster, "this node's data belongs to cluster %s, and all nodes that it was told to join belong to cluster %s; check --join and --dir", m.cluster, other)
		}
	}
	return nil, n.ctx.Err()
}

// checkTwin returns an error while another process takes part in the cluster as this node. The directory of this process is then
// a copy of the directory of the other process: it must not act as that node, and would only wait forever.
func (n *Node) checkTwin(m *member) error {
	d, ok := m.group.State().Node(m.self.Node)
	if !ok || d.Addr == "" || d.Addr == n.bound.addr {
		return nil
	}
	conn, err := api.Connect(d.Addr, n.cfg.dialer())
	if err != nil {
		return nil
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, twinTimeout)
	defer cancel()
	resp, err := rhumbpb.NewClusterClient(conn).Ping(ctx, &rhumbpb.PingRequest{})
	if err != nil || !resp.Ready || rhumb.NodeID(resp.Node) != m.self.Node || !bytes.Equal(resp.Cluster, m.cluster[:]) {
		return nil
	}
	return rhumb.Ef("node.register", rhumb.WrongCluster, "another process runs at %s as node %s of cluster %s, so this node's directory is a copy of its directory; "+
		"start a new node on an empty directory with --join", d.Addr, m.self.Node, m.cluster)
}

// whereabouts lists the nodes of a catalog, at the addresses that gossip hears from those that have begun a later life than
// the catalog knows. When a whole cluster starts again at other addresses, its metadata group can meet only there, and has
// to stay there until the last node has registered. A node with an older copy of its disk counts a life again that the
// catalog knows.
func (n *Node) whereabouts(st *catalog.State) (nodes []*rhumb.Node) {
	heard := map[rhumb.NodeID]peer.Member{}
	for _, g := range n.gossip.Members() {
		if g.Cluster == st.Cluster() {
			heard[g.Node] = g
		}
	}
	for d := range st.Nodes() {
		at := *d
		if g := heard[d.ID]; g.Boot >= d.Boot {
			at.Addr = g.Addr
		}
		nodes = append(nodes, &at)
	}
	return nodes
}

// strangers reports whether gossip knows nodes of another cluster and, but for this one, none of its own.
func (n *Node) strangers(own rhumb.ClusterID) (other rhumb.ClusterID, ok bool) {
	for _, m := range n.gossip.Members() {
		switch {
		case m.Cluster == own && m.Addr != n.bound.addr:
			return other, false
		case m.Cluster != own && !m.Cluster.IsZero():
			other, ok = m.Cluster, true
		}
	}
	return other, ok
}

func (n *Node) registerOnce(m *member) error {
	if leader, _ := m.group.Leader(); leader != rhumb.NoNode {
		err := n.propose(m)
		switch rhumb.KindOf(err) {
		case rhumb.Unavailable, rhumb.DeadlineExceeded, rhumb.Unknown:
		default:
			return err
		}
		// The leader reaches this node, and this node looks for the leader where it was in an earlier life.
	}
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	_ = n.gossip.Join(n.cfg.Join)
	if nodes := n.whereabouts(m.group.State()); len(nodes) > 0 {
		m.network.SetPeers(nodes)
	}
	err := error(rhumb.E("node.register", rhumb.Unavailable, "no other member of the cluster answers; start them, and check --join"))
	for _, peer := range n.gossip.Members() {
		if peer.Cluster != m.cluster || peer.Addr == n.bound.addr {
			continue
		}
		var resp *rhumbpb.JoinResponse
		if resp, err = n.askToJoin(peer.Addr); err != nil {
			continue
		}
		var nodes []*rhumb.Node
		for _, p := range resp.Nodes {
			if d, err := api.DecodeNode(p); err == nil {
				nodes = append(nodes, &d)
			}
		}
		m.network.SetPeers(nodes)
		return m.group.AwaitRevision(ctx, resp.Revision)
	}
	return err
}

// propose registers this life through the node's own copy of the metadata.
func (n *Node) propose(m *member) error {
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	res, err := m.group.Propose(ctx, n.registration())
	if err == nil {
		err = res.Err()
	}
	return err
}

// rebirth begins a new life of a node that is alive and was fenced (ruling 11): nothing of the old one, no lease and no
// role, goes on.
//
// Until the new life begins the node keeps its copy of the metadata and its vote.
func (n *Node) rebirth(old *member) {
	n.entering.Lock()
	pause := n.rebirths.next(time.Since(old.born))
	n.entering.Unlock()
	if pause > 0 {
		n.cfg.Logger.Warn("this node was fenced again soon; it waits before it begins a new life", "pause", pause)
		n.pause(pause)
	}
	n.entering.Lock()
	defer n.entering.Unlock()
	if n.ctx.Err() != nil || !n.member.CompareAndSwap(old, nil) {
		return
	}
	n.cfg.Logger.Warn("this node was fenced while alive; it begins a new life")
	old.close()
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

// Init founds a cluster with this node as its first.
func (n *Node) Init(ctx context.Context) (rhumb.ClusterID, rhumb.NodeID, error) {
	const op rhumb.Op = "node.Init"
	n.entering.Lock()
	defer n.entering.Unlock()
	if n.ctx.Err() != nil { // the stores are closed, or will be once this returns
		return rhumb.ClusterID{}, 0, rhumb.E(op, rhumb.Unavailable, "the node is stopping")
	}
	if id := n.engine.Identity(); !id.Cluster.IsZero() {
		return rhumb.ClusterID{}, 0, rhumb.Ef(op, rhumb.AlreadyExists, "the node belongs to cluster %s already, as node %s", id.Cluster, id.Node)
	}
	for _, m := range n.gossip.Members() {
		if !m.Cluster.IsZero() {
			return rhumb.ClusterID{}, 0, rhumb.Ef(op, rhumb.AlreadyExists, "node %s at %s, which this node was told to join, belongs to cluster %s already; this node joins it by itself", m.Node, m.Addr, m.Cluster)
		}
	}
	if n.life.Nonce == 0 {
		if err := n.beginLife(n.engine.BeginLife); err != nil {
			return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
		}
	}
	var cluster rhumb.ClusterID
	_, _ = rand.Read(cluster[:]) // never fails
	cmd := n.registration()
	cmd.Cluster, cmd.Node = cluster, rhumb.NoNode
	first, err := raftmeta.Bootstrap(raftmeta.StoreKV(n.engine.Stores()[0], 0), catalog.Init{Cluster: cluster, First: cmd})
	if err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	if err := n.engine.SetIdentity(cluster, first.Node); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	if err := n.enter(nil); err != nil {
		return rhumb.ClusterID{}, 0, rhumb.Wrap(op, err)
	}
	return cluster, first.Node, nil
}
