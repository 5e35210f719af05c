package node

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// A founder is a node that was enrolled with the token of a founder, so that a cluster begins
// without an operator who runs `rhumb init`. Two things keep it from creating a second cluster next
// to an existing one: it asks the nodes of --join first, and it does so only while its own disk
// knows no cluster. A third one covers a lost disk: the folder of its certificate has a mark that it has
// founded the cluster (Config.Founded). If that is lost too and all other nodes are out of reach for
// founderPatience, it does create a second one, with the same cluster id. The nodes of the first one
// notice: their stores and numbers differ, and the founder's name belongs to another store there, so the
// two never mix. Enrol a replacement without --founder.

// foundCluster creates the cluster of a founder that has looked for it for a while. The caller
// holds n.entering.
func (n *Node) foundCluster(sought time.Duration) {
	if !n.cfg.Founder || !n.engine.Identity().Cluster.IsZero() {
		return
	}
	// Usually all nodes start at the same time. Once all of them have answered that they have no
	// cluster, there is nothing to wait for.
	met, _ := n.meetNodes(n.ctx, n.contactAddrs())
	silent := slices.ContainsFunc(n.cfg.Join, func(addr string) bool {
		return addr != n.outside.addr && !slices.ContainsFunc(met, func(c contact) bool { return c.addr == addr })
	})
	// The others may be slow to answer that the cluster exists, and a second cluster with the same
	// name would look the same.
	if silent && sought < founderPatience {
		return
	}
	// createCluster asks them once more, and refuses if one of them has the cluster.
	if _, _, err := n.createCluster(n.ctx); err != nil {
		n.setObstacle(rhumb.Message(err))
		return
	}
	n.cfg.Logger.Info("this node has founded its cluster", "cluster", n.engine.Identity().Cluster)
}

// beginning says what creates the cluster of this node. With an authority of Rhumb that is a token; `rhumb init` would be
// the wrong advice then, because the other nodes wait for the founder.
func (n *Node) beginning() string {
	switch {
	case n.cfg.Founded:
		return "this node has created its cluster before, and its data is gone: name other nodes of the cluster in --join, and remove the lost node there (rhumb node forget); only if none is left, run rhumb init at this node"
	case n.cfg.Founder:
		return "this node creates it, once the nodes of --join have answered that they know none"
	case n.source == nil:
		return "run rhumb init on one node"
	}
	return "the node whose token was made with --founder creates it (with certificates of another authority, an operator runs rhumb init once)"
}

// noteFounded records that a founder has its cluster. The node serves without the record, and makes it again at its next start.
func (n *Node) noteFounded() {
	if !n.cfg.Founder || n.cfg.OnFounded == nil {
		return
	}
	if err := n.cfg.OnFounded(); err != nil {
		n.cfg.Logger.Warn("cannot record that this node has created its cluster; if its data is lost, it may create another one with the same ID", "err", err)
	}
}
