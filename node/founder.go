package node

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// founderPatience is the time that a founder waits for the nodes of --join to answer. They usually start at
// the same time; one of them may be down.
const founderPatience = 10 * time.Second

// foundCluster creates the cluster of the certificate if this node is its founder. It does not if a node
// that answers belongs to a cluster, or if a node of --join may still answer. The caller holds n.entering.
func (n *Node) foundCluster(met []contact, members []string) {
	if !n.cfg.Founder || n.source == nil || len(members) > 0 {
		return
	}
	answered := map[string]bool{}
	for _, c := range met {
		answered[c.addr] = true
	}
	for _, addr := range n.cfg.Join {
		// A node that does not answer may have founded the cluster in an earlier life of this founder.
		if addr != n.outside.addr && !answered[addr] && time.Since(n.started) < founderPatience {
			n.setObstacle("this node founds the cluster once " + addr + " answers, or without it in a few seconds")
			return
		}
	}
	cluster, node, err := n.createCluster()
	if err != nil {
		n.setObstacle("cannot found the cluster: " + rhumb.Message(err))
		return
	}
	n.cfg.Logger.Info("founded the cluster of the certificate", "cluster", cluster, "node", node)
}
