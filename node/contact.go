package node

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/server"
)

const (
	// contactTimeout bounds the question to one node where it gossips.
	contactTimeout = time.Second
	// callersMax bounds the addresses of callers that a node without a cluster remembers. The
	// addresses are claims of the callers. The bound keeps a node that lies from filling the memory
	// of one that has no cluster yet.
	callersMax = 16
	// mendInterval is the interval at which a member looks for nodes that gossip has lost. Fast
	// enough that a node returns to gossip before anybody looks for it, and slow enough that a
	// cluster with a dead node costs one connection attempt in that time.
	mendInterval = 5 * time.Second
	// mendMax bounds the lost nodes that it contacts at once.
	mendMax = 4
)

// contact is the answer of a node that was asked where it gossips.
//
// It has everything that a node needs to gossip, and nothing about ranges or records: those follow
// membership, after the metadata has accepted the node.
type contact struct {
	addr    string // where it was asked
	cluster rhumb.ClusterID
	node    rhumb.NodeID
	gossip  string
	keys    rhumb.GossipKeys
}

// callers holds the addresses of nodes that contacted this one while it had no cluster. One of them
// may get a cluster first: gossip cannot help, because it is encrypted with keys that only a
// cluster has.
type callers struct {
	mu    sync.Mutex // guards addrs
	addrs []string   // oldest first
}

// add remembers an address in place of the oldest one.
func (c *callers) add(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.addrs, addr) {
		return
	}
	if len(c.addrs) >= callersMax {
		c.addrs = slices.Delete(c.addrs, 0, 1)
	}
	c.addrs = append(c.addrs, addr)
}

func (c *callers) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.addrs)
}

// joinAddr completes an address of --join with the default port.
func joinAddr(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil || addr == "" {
		return addr
	}
	// An IPv6 address without a port may be in brackets or not.
	host := addr
	if len(addr) > 2 && addr[0] == '[' && addr[len(addr)-1] == ']' {
		host = addr[1 : len(addr)-1]
	} else if net.ParseIP(addr) == nil && slices.Contains([]byte(addr), ':') {
		return addr // not an address; Validate says so
	}
	return net.JoinHostPort(host, strconv.Itoa(DefaultPort))
}

// contactAddrs returns the addresses at which other nodes may be asked for their gossip: those of
// --join, of callers, and of the nodes in the copy of the metadata.
func (n *Node) contactAddrs() (addrs []string) {
	addrs = append(slices.Clone(n.cfg.Join), n.callers.list()...)
	if m := n.currentMember(); m != nil {
		for d := range m.group.State().Nodes() {
			if d.State != rhumb.NodeFenced {
				addrs = append(addrs, d.Addr)
			}
		}
	}
	slices.Sort(addrs)
	return slices.DeleteFunc(slices.Compact(addrs), func(a string) bool { return a == "" || a == n.outside.addr })
}

// contactNode asks one node where it gossips.
func (n *Node) contactNode(ctx context.Context, addr string) (c contact, err error) {
	const op rhumb.Op = "node.contactNode"
	// Any node of the cluster is accepted: the address is all that is known about who runs there.
	conn, err := n.connectAny(addr)
	if err != nil {
		return c, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	resp, err := rhumbpb.NewClusterClient(conn).Contact(ctx, &rhumbpb.ContactRequest{Addr: n.outside.addr})
	if err != nil {
		e, _, remote := api.FromStatus(op, err)
		if !remote && ctx.Err() != nil {
			return c, rhumb.Ef(op, rhumb.Unavailable, "%s did not answer; check that a node runs there and that this node can reach the address", addr)
		}
		return c, e
	}
	c = contact{addr: addr, node: rhumb.NodeID(resp.Node), gossip: resp.GossipAddr, keys: api.DecodeGossipKeys(resp.Keys)}
	c.cluster, err = api.DecodeUUID(resp.Cluster)
	return c, err
}

// A node finds others by asking on their main ports, where TLS says who is asked and who asks.
// Gossip comes second: its keys, and its address, are in the answer. The order was the reverse
// while gossip was open to everybody, and --join named gossip addresses.
//
// A node without a cluster has nothing to offer but its address. Two such nodes that know each
// other by --join in one direction only would never learn that one of them has got a cluster, if
// the other one is the one that asks. So a node remembers who asked it, and asks back (callers).

// meetNodes asks nodes where they gossip, all at once, installs newer keys, and joins their gossip.
// It returns the answers, and an error if there is none although nodes were asked.
func (n *Node) meetNodes(ctx context.Context, addrs []string) (met []contact, err error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	// All at once: with many addresses, some of machines that are down, one after another would
	// take as long as all their timeouts.
	answers, errs := make([]contact, len(addrs)), make([]error, len(addrs))
	var wait sync.WaitGroup
	for i, addr := range addrs {
		wait.Go(func() { answers[i], errs[i] = n.contactNode(ctx, addr) })
	}
	wait.Wait()
	own := n.ownCluster()
	for i, c := range answers {
		if errs[i] != nil {
			err = errs[i]
			continue
		}
		met = append(met, c)
		// A node of another cluster is listed, so that the caller can say so, but its keys are not
		// used.
		if own.IsZero() || c.cluster == own {
			n.installGossipKeys(c.keys)
		}
	}
	var gossip []string
	for _, c := range met {
		// Without keys the other side would not understand a word.
		if !n.gossip.Encrypted() || n.gossip.Keys().Version > 0 {
			gossip = append(gossip, c.gossip)
		}
	}
	if err := n.gossip.Join(gossip); err != nil {
		n.cfg.Logger.Debug("cannot join the gossip of nodes that answer", "err", err)
	}
	if len(met) == 0 {
		return nil, rhumb.Ef("node.meetNodes", rhumb.Unavailable, "none of %s answers: %s", strings.Join(addrs, ", "), rhumb.Message(err))
	}
	return met, nil
}

// ownCluster returns the cluster that this node belongs to or may belong to, or zero if any will
// do.
func (n *Node) ownCluster() rhumb.ClusterID {
	if id := n.engine.Identity(); !id.Cluster.IsZero() {
		return id.Cluster
	}
	return n.certificateCluster()
}

// installGossipKeys makes gossip use keys, unless it has newer ones.
func (n *Node) installGossipKeys(keys rhumb.GossipKeys) {
	before := n.gossip.Keys().Version
	if err := n.gossip.SetKeys(keys); err != nil {
		n.cfg.Logger.Error("cannot install the keys of gossip; this node does not take part in gossip", "version", keys.Version, "err", err)
		return
	}
	if now := n.gossip.Keys().Version; now != before {
		n.cfg.Logger.Info("installed the keys of gossip", "version", now, "keys", len(keys.Keys))
	}
}

// Contact answers another node that asks where this one gossips.
func (n *Node) Contact(ctx context.Context, addr string) (server.ContactInfo, error) {
	// The answer holds the keys of gossip, so a user must never get it.
	if err := n.requireNodeCaller(ctx); err != nil {
		return server.ContactInfo{}, err
	}
	id := n.engine.Identity()
	info := server.ContactInfo{Cluster: id.Cluster, Node: id.Node, Gossip: n.gossip.Advertised(), Keys: n.gossip.Keys()}
	// Only a node that looks for a cluster has use for the address, and --insecure stays on this
	// machine.
	if id.Cluster.IsZero() && addr != "" && (!n.cfg.Insecure || checkLoopback(addr) == nil) {
		n.callers.add(addr)
	}
	return info, nil
}

// mendGossip contacts nodes of the cluster that gossip has lost, for example because the keys
// changed while this node was cut off. memberlist itself forgets nodes that stay away.
//
// It also notices that this node may have been removed while it was cut off.
func (m *member) mendGossip() {
	tick := time.NewTicker(mendInterval)
	defer tick.Stop()
	var still standstill
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		m.proposeFirstKeys()
		if lost := m.lostByGossip(); len(lost) > 0 {
			_, _ = m.n.meetNodes(m.ctx, lost) // tried again at the next tick
		}
		if still.next(m.group.State().Revision(), m.missesSome()) {
			m.stopIfRemoved()
		}
	}
}

// lostByGossip returns addresses of nodes that are not fenced and that gossip does not know.
func (m *member) lostByGossip() (addrs []string) {
	known := map[rhumb.NodeID]bool{}
	for _, g := range m.n.gossip.Members() {
		// A node of another cluster that shares the network does not count as known.
		if g.Cluster == m.cluster {
			known[g.Node] = true
		}
	}
	for d := range m.group.State().Nodes() {
		if d.ID != m.self.Node && d.State != rhumb.NodeFenced && !known[d.ID] && len(addrs) < mendMax {
			addrs = append(addrs, d.Addr)
		}
	}
	return addrs
}
