package node

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// founderPatience is the time that a founder waits for the nodes of --join to answer. They usually start at
// the same time; one of them may be down.
const founderPatience = 10 * time.Second

// A founder is a node that was enrolled with the token of a founder, so that a cluster begins without an
// operator who runs `rhumb init`. Two things keep it from creating a second cluster beside an existing one:
// it asks the nodes of --join first, and it does so only while its own disk knows no cluster. If its disk
// is lost and all other nodes are out of reach for founderPatience, it does create a second one, with the
// same cluster id. The nodes of the first one notice: their stores and numbers differ, and the founder's
// name belongs to another store there, so the two never mix. Enrol a replacement without --founder.

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
