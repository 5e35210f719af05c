package node

import (
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
)

// live finds the node's cluster and takes part in it.
func (n *Node) live() {
	n.entering.Lock()
	defer n.entering.Unlock()
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

// seek asks the members of a cluster that gossip knows to register this node, which has none yet. It gives the nodes of
// the cluster once one of them has.
func (n *Node) seek() []*rhumb.Node {
	_ = n.gossip.Join(n.cfg.Join) // again: the node to join may have started later
	for _, m := range n.gossip.Members() {
		if m.Cluster.IsZero() || m.Addr == n.bound.addr {
			continue
		}
		resp, err := n.askToJoin(m.Addr)
		if err != nil {
			n.cfg.Logger.Warn("a member does not let this node join", "addr", m.Addr, "err", err)
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
	return nil
}

// askToJoin asks one member to register this life of the node.
func (n *Node) askToJoin(addr string) (*rhumbpb.JoinResponse, error) {
	const op rhumb.Op = "node.askToJoin"
	conn, err := api.Connect(addr, api.DialFunc(n.cfg.WAN.Dialer(n.cfg.Region)))
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
		Nonce:    cmd.Nonce, RegionName: cmd.Region, RegionLocation: api.EncodePoint(cmd.Location),
		Node: &rhumbpb.Node{
			Zone: cmd.Zone, Location: api.EncodePoint(cmd.Location), Addr: cmd.Addr, HeartbeatAddr: cmd.HeartbeatAddr,
			AdminAddr: cmd.AdminAddr, Binary: cmd.Binary,
		},
	})
	if err != nil {
		e, _, _ := api.FromStatus(op, err)
		return nil, e
	}
	return resp, nil
}

// registration is the command that registers this life of the node. Its nonce is made of store and boot, so that a
// repetition is recognised.
func (n *Node) registration() catalog.RegisterNode {
	id := n.engine.Identity()
	return catalog.RegisterNode{
		Cluster: id.Cluster, Node: id.Node, Store: id.Store, Boot: id.Boot,
		Nonce:  binary.BigEndian.Uint64(id.Store[:8]) ^ uint64(id.Boot),
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
	if err := n.gossip.Announce(n.label()); err != nil {
		n.cfg.Logger.Debug("gossip was not told", "err", err)
	}
	m, err := n.newMember(nodes)
	if err != nil {
		return err
	}
	err = n.register(m)
	if err == errFenced {
		return n.enterAgain(m)
	}
	if err != nil {
		m.close()
		return err
	}
	id := n.engine.Identity()
	if err := m.serve(id.Fresh && id.Boot == 1); err != nil {
		m.close()
		return err
	}
	n.member.Store(m)
	n.cfg.Logger.Info("the node is in its cluster", "cluster", id.Cluster, "node", id.Node, "boot", id.Boot, "region", n.cfg.Region)
	return nil
}

// errFenced says that the node was fenced while it waited to see its registration.
var errFenced = rhumb.E("node.register", rhumb.Unavailable, "the node was fenced while it joined")

// enterAgain is rebirth for a life that was fenced before it served: it would otherwise wait for ever, since registering a
// fenced life again changes nothing.
func (n *Node) enterAgain(old *member) error {
	n.cfg.Logger.Warn("this node was fenced while it joined; it begins a new life")
	old.close()
	if _, err := n.engine.BumpBoot(); err != nil {
		return err
	}
	return n.enter(slices.Collect(old.group.State().Nodes()))
}

// register makes this life known and waits until the node's own copy of the metadata shows it. It tries through its own
// copy, which knows the leader when the group runs, and through every member that gossip knows.
func (n *Node) register(m *member) error {
	for start := time.Now(); n.ctx.Err() == nil; {
		if d, ok := m.group.State().Node(m.self.Node); ok && d.Identity() == m.self {
			if d.State == rhumb.NodeFenced {
				return errFenced
			}
			return nil
		}
		err := n.registerOnce(m)
		if k := rhumb.KindOf(err); k == rhumb.WrongCluster || k == rhumb.InvalidArgument || k == rhumb.NotFound {
			return err
		}
		if err != nil {
			n.cfg.Logger.Debug("not registered yet", "err", err)
			n.pause(seekInterval)
		}
		if other, ok := n.strangers(m.cluster); ok && time.Since(start) > strangersPatience {
			return rhumb.Ef("node.register", rhumb.WrongCluster, "this node's data belongs to cluster %s, and all nodes that it was told to join belong to cluster %s; check --join and --dir", m.cluster, other)
		}
	}
	return n.ctx.Err()
}

// whereabouts lists the nodes of a catalog, at the addresses that gossip hears from those that have begun a later life than
// the catalog knows. When a whole cluster starts again at other addresses, its metadata group can meet only there, and has
// to stay there until the last node has registered.
func (n *Node) whereabouts(st *catalog.State) (nodes []*rhumb.Node) {
	heard := map[rhumb.NodeID]peer.Member{}
	for _, g := range n.gossip.Members() {
		if g.Cluster == st.Cluster() {
			heard[g.Node] = g
		}
	}
	for d := range st.Nodes() {
		at := *d
		if g := heard[d.ID]; g.Boot > d.Boot {
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
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	if leader, _ := m.group.Leader(); leader != rhumb.NoNode {
		res, err := m.group.Propose(ctx, n.registration())
		if err == nil {
			err = res.Err()
		}
		return err
	}
	_ = n.gossip.Join(n.cfg.Join)
	if nodes := n.whereabouts(m.group.State()); len(nodes) > 0 {
		m.network.SetPeers(nodes)
	}
	err := error(rhumb.E("node.register", rhumb.Unavailable, "no member of the cluster answers"))
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

// rebirth begins a new life of a node that is alive and was fenced (ruling 11): nothing of the old one, no lease and no
// role, goes on.
func (n *Node) rebirth(old *member) {
	n.entering.Lock()
	defer n.entering.Unlock()
	if n.ctx.Err() != nil || !n.member.CompareAndSwap(old, nil) {
		return
	}
	n.cfg.Logger.Warn("this node was fenced while alive; it begins a new life")
	old.close()
	if _, err := n.engine.BumpBoot(); err != nil {
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
