package raftmeta

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// readyLag is the maximum number of entries that a learner may lack to be promoted to voter.
const readyLag = 1_000

// changeMembers runs the driver's changeMembers and reports whether a change was proposed. An error
// also counts as a change, so that this round proposes nothing else.
func (c *controller) changeMembers(ctx context.Context, now time.Duration) (changed bool) {
	err := c.askDriver(ctx, "raftmeta.changeMembers", func(d *driver) { changed = d.changeMembers(c.planner, now) })
	return changed || err != nil
}

// changeMembers compares the members with the catalog and with the voters that the planner wants,
// and proposes the next change. Order: replicas that lost entries are removed first, then missing
// learners are added, then votes are moved.
func (d *driver) changeMembers(planner *place.Planner, now time.Duration) bool {
	// A change is in progress while the configuration is joint, or until the last proposed change
	// is applied.
	if !d.isLead || len(d.conf.GetVotersOutgoing()) > 0 || d.applied < d.confIndex {
		return d.isLead
	}
	// Removing the replica and adding it again is the only way to reset what Raft counts as
	// acknowledged by it: a demotion to learner keeps it.
	if id := d.lostReplica(); id != 0 {
		d.metrics.readmitted.Inc()
		d.config.logger().Warn("a replica of the metadata lost entries; removing and readmitting it", "replica", id)
		return d.proposeMembers(memberChange(raftpb.ConfChangeRemoveNode, id))
	}
	if id := d.removedMember(func(id rhumb.NodeID) bool { return planner.MayCutOff(now, id) }); id != 0 {
		return d.proposeMembers(memberChange(raftpb.ConfChangeRemoveNode, id))
	}
	if id := d.missingLearner(); id != 0 {
		return d.proposeMembers(memberChange(raftpb.ConfChangeAddLearnerNode, id))
	}
	current := nodeIDs(d.conf.GetVoters())
	ready := d.readyNodes()
	// Readiness restricts new voters only: a present voter that lags briefly keeps its vote.
	wanted := planner.Voters(now, d.state, current, func(id rhumb.NodeID) bool { return ready[uint64(id)] })
	var changes []*raftpb.ConfChangeSingle
	for _, id := range wanted {
		if !slices.Contains(current, id) {
			changes = append(changes, memberChange(raftpb.ConfChangeAddNode, uint64(id)))
		}
	}
	for _, id := range current {
		if !slices.Contains(wanted, id) {
			// A voter that loses its vote stays as a learner, because every node needs a copy of
			// the catalog.
			changes = append(changes, memberChange(raftpb.ConfChangeAddLearnerNode, uint64(id)))
		}
	}
	if len(changes) == 0 {
		return false
	}
	// A leader does not demote itself. It transfers the leadership to a voter that stays, and that one proposes the change. Where no
	// such voter is active, because the only voter or all of them leave, others get votes first.
	if !slices.Contains(wanted, d.config.Node) {
		if d.transferLead(func(id rhumb.NodeID) bool { return slices.Contains(wanted, id) }) != rhumb.NoNode {
			return true
		}
		changes = slices.DeleteFunc(changes, func(c *raftpb.ConfChangeSingle) bool { return c.GetType() != raftpb.ConfChangeAddNode })
		if len(changes) == 0 {
			return false
		}
	}
	return d.proposeMembers(changes...)
}

// memberChange returns a single change of membership.
func memberChange(typ raftpb.ConfChangeType, id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: typ.Enum(), NodeId: &id}
}

// proposeMembers proposes a change of membership, and reports whether Raft took it. Several changes form a joint configuration, which
// Raft leaves automatically.
func (d *driver) proposeMembers(changes ...*raftpb.ConfChangeSingle) bool {
	if err := d.node.ProposeConfChange(&raftpb.ConfChangeV2{Changes: changes, Context: d.admissionContext(changes)}); err != nil {
		// Raft drops it while the leadership is being transferred. If the transfer fails, nothing would ever follow in the log that ends
		// the wait for this change, and no plan would be made.
		d.config.logger().Info("change of metadata members was not proposed", "error", err)
		return false
	}
	// The change is not in the log yet. It will be the next entry, or one of the next.
	d.confIndex, _ = d.log.LastIndex()
	d.confIndex++
	return true
}

// removedMember returns a member without a vote whose node was removed from the cluster, and may be cut off, or 0. A removed node
// that still has a vote loses the vote first (place.Planner.Voters).
func (d *driver) removedMember(may func(rhumb.NodeID) bool) uint64 {
	for _, id := range d.conf.GetLearners() {
		if n, ok := d.state.Node(rhumb.NodeID(id)); ok && n.Forgotten && may(n.ID) {
			return id
		}
	}
	return 0
}

// missingLearner returns a registered node that is not a member yet, or 0.
func (d *driver) missingLearner() uint64 {
	for n := range d.state.Nodes() {
		id := uint64(n.ID)
		if n.Forgotten {
			continue
		}
		// LearnersNext are voters that become learners when the joint configuration ends.
		if !slices.Contains(d.conf.GetVoters(), id) && !slices.Contains(d.conf.GetLearners(), id) && !slices.Contains(d.conf.GetLearnersNext(), id) {
			return id
		}
	}
	return 0
}

// readyNodes returns the members that are in contact and lack few entries. A voter that still has
// to catch up would hold up commits.
func (d *driver) readyNodes() map[uint64]bool {
	ready := make(map[uint64]bool)
	last, _ := d.log.LastIndex()
	d.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		// StateReplicate excludes members that Raft is still probing or that need a state transfer.
		ready[id] = id == uint64(d.config.Node) || pr.RecentActive && pr.State == tracker.StateReplicate && pr.Match+readyLag >= last
	})
	return ready
}
