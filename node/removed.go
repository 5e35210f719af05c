package node

import (
	"bytes"
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// A removed node reads of its removal in its own copy of the metadata, and stops. A node that was cut off or paused at that time never receives
// the entry, because it is no longer a member of the metadata group. The process would wait for its former peers, and would show an old
// cluster to its callers. Therefore a node asks another one if its copy does not change while others are silent.

// standstill tracks whether the own copy of the metadata may have been left behind.
type standstill struct {
	revision uint64
	silent   bool
}

// next records an observation, and reports whether the node should ask others: at this observation and at the one before, the copy had the
// same revision and some live node was silent. The copies of an idle cluster do not change either, but nobody is silent there.
func (s *standstill) next(revision uint64, silent bool) (ask bool) {
	ask = silent && s.silent && s.revision == revision
	*s = standstill{revision, silent}
	return ask
}

// missesSome reports whether this node suspects another one that is not fenced.
func (m *member) missesSome() bool {
	h := m.hostIfReady()
	if h == nil {
		return false
	}
	for _, id := range h.Leases().Suspects() {
		if n, ok := m.group.State().Node(id); ok && n.State != rhumb.NodeFenced {
			return true
		}
	}
	return false
}

// stopIfRemoved asks other nodes whether this one was removed for good, and stops the node if one of them says so. A node whose copy of the
// metadata is not newer than the own one cannot know more. It may have been removed as well.
func (m *member) stopIfRemoved() {
	addrs := m.n.memberAddrs(m)
	for _, addr := range addrs[:min(len(addrs), catchUpAsks)] {
		if m.n.revisionAt(addr, m.cluster) <= m.group.State().Revision() || !m.n.isRemovedAt(addr, m.cluster, m.self.Node) {
			continue
		}
		// As after a fencing: only one of the two ends the member, outside of its own goroutines.
		m.fenced.Do(func() { m.n.work.Go(func() { m.n.stopRemoved(m.self.Node) }) })
		return
	}
}

// isRemovedAt reports whether a node of the metadata at an address was removed for good. Reading changes nothing, unlike another registration,
// which metadata that has forgotten this life would take for a new one.
func (n *Node) isRemovedAt(addr string, cluster rhumb.ClusterID, id rhumb.NodeID) bool {
	conn, err := n.connectAny(addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.ctx, registerTimeout)
	defer cancel()
	md, err := rhumbpb.NewClusterClient(conn).GetMetadata(ctx, &rhumbpb.GetMetadataRequest{})
	if err != nil || !bytes.Equal(md.GetCluster(), cluster[:]) {
		return false
	}
	for _, p := range md.GetNodes() {
		if d, err := api.DecodeNode(p); err == nil && d.ID == id {
			return d.Forgotten
		}
	}
	return false
}

// stopRemoved stops the node because it was removed for good.
func (n *Node) stopRemoved(id rhumb.NodeID) {
	n.cfg.Fatal(rhumb.Ef("node.stopRemoved", rhumb.InvalidArgument, "node %s was removed from the cluster for good (`rhumb node rm` or `rhumb region rm`); to add this machine again, start it with an empty directory", id))
}
