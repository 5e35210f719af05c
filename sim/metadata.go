package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
)

// foundMax is how long founding a cluster may take.
const foundMax = 2 * time.Minute

// foundCluster founds the cluster as operators do: the first node bootstraps, the others join, and
// a table is created.
func (w *world) foundCluster() error {
	first := w.nodes[0]
	reg := first.makeRegistration()
	reg.Cluster, reg.Node = w.clusterID(), rhumb.NoNode
	store := first.disk.engine.Stores()[0]
	res, err := raftmeta.Bootstrap(raftmeta.StoreKV(store, 0), catalog.Init{Cluster: w.clusterID(), First: reg})
	if err != nil {
		return err
	}
	first.joinCluster(res.Node)
	first.spawn(func() {
		for _, n := range w.nodes[1:] {
			reg := n.makeRegistration()
			reg.Cluster, reg.Node = w.clusterID(), rhumb.NoNode
			res := w.proposeUntilDone(first, reg)
			n.joinCluster(res.Node)
		}
		w.proposeUntilDone(first, w.createTable())
	})
	// The founding runs under the network delays of the seed but without faults, which need ranges.
	for w.err == nil && len(w.ranges) == 0 && w.now < foundMax {
		w.until(w.now + 100*time.Millisecond)
	}
	if w.err == nil && len(w.ranges) == 0 {
		return fmt.Errorf("the cluster is not founded after %v", foundMax)
	}
	return w.err
}

// joinCluster stores the identity of a node in the cluster and starts the node.
func (n *node) joinCluster(id rhumb.NodeID) {
	n.w.judge(n.disk.engine.SetIdentity(n.w.clusterID(), id))
	n.disk.settleAll()
	n.enterCluster()
}

// proposeUntilDone proposes a command through a node until it is applied. It runs as a process of
// the node.
func (w *world) proposeUntilDone(n *node, cmd catalog.Command) catalog.Result {
	for {
		ctx, cancel := n.rt.WithTimeout(n.ctx, registerTimeout)
		res, err := n.group.Propose(ctx, cmd)
		cancel()
		// Only errors of the proposal are retried. A refusal by the catalog is final, and here a
		// failure.
		if err == nil {
			if err := res.Err(); err != nil {
				w.judge(fmt.Errorf("%T: %w", cmd, err))
			}
			return res
		}
		sched.Sleep(n.rt, n.ctx, registerRetry)
	}
}

// createTable returns the command that creates the table, with its ranges placed as the seed
// decides.
func (w *world) createTable() catalog.Command {
	placement := catalog.Placement{Region: 1}
	for range w.p.ranges {
		order := w.rnd.Perm(w.p.dataNodes())
		replicas := make([]rhumb.NodeID, w.p.settings.Replicas)
		for i := range replicas {
			replicas[i] = w.nodes[order[i]].id
		}
		placement.Replicas = append(placement.Replicas, replicas)
	}
	placements := []catalog.Placement{placement}
	// The planner would create the ranges of each region soon; the run begins with all of them.
	if w.p.survive {
		placements = nil
		for home := range survivors {
			p := catalog.Placement{Region: rhumb.RegionID(home + 1)}
			for range w.p.ranges {
				p.Replicas = append(p.Replicas, w.drawSpread(home))
			}
			placements = append(placements, p)
		}
	}
	if w.p.many || w.p.losesForGood() {
		return w.createTables()
	}
	if w.p.removes() {
		placements = w.drawHomes()
	}
	settings := w.p.settings
	if w.cfg.Bug == ShrinkBelowMinimum {
		settings.MinInSync--
	}
	return catalog.CreateTable{Name: "t", Settings: settings, Placements: placements}
}

// learnState takes a state that some node has applied and passes its changes to the judges. Such a
// state is the truth, because a majority of the metadata group has it on disk.
func (w *world) learnState(st *catalog.State) {
	w.sameEverywhere(st)
	// Nodes apply the same states at different times; the first one counts.
	if w.state != nil && st.Revision() <= w.state.Revision() {
		return
	}
	old := w.state
	w.state = st
	w.judgeForgotten(old)
	w.judgeGivenUp(old)
	if len(w.ranges) == 0 {
		w.learnRanges(st)
	}
	// Before the records are judged: each range needs a place in the lists of the judges.
	w.learnSplits(st)
	w.noteShort()
	for _, id := range w.ranges {
		r, ok := st.Range(id)
		if !ok && w.origin[w.rangeIndex(id)].parent >= 0 {
			continue // the split was cancelled, or the range was merged
		}
		if !ok && w.roots[w.rootOf(id)].gone {
			continue
		}
		if !ok {
			w.failf("range %s is missing from the metadata", id)
			return
		}
		if old != nil {
			if before, ok := old.Range(id); ok && before.Version == r.Version && before.Epoch == r.Epoch {
				continue
			}
		}
		if w.tracing() {
			w.tracef("meta", "range %s epoch %d version %d primary %s in sync %v of %v", id, r.Epoch, r.Version, r.Primary, r.InSync, r.Replicas)
		}
		// Quarantined copies need the simulated operator.
		if len(r.Quarantined) > 0 && !w.mending {
			w.mending = true
			w.after(mendEvery, w.mendLater)
		}
		w.judge(w.monitor.Config(r))
		if old != nil {
			w.judgeRecovery(old, r)
		}
		w.judgeRemoved(r)
		// A new member of the in-sync set must hold everything acknowledged (invariant I3).
		w.judge(w.monitor.Held(id, w.diskOf(id)))
	}
}

// sameEverywhere checks that all nodes have the same metadata at the same revision. It compares FNV
// fingerprints of the fields that replication decides by.
func (w *world) sameEverywhere(st *catalog.State) {
	print := uint64(14695981039346656037)
	mix := func(v uint64) { print = (print ^ v) * 1099511628211 }
	for d := range st.Nodes() {
		mix(uint64(d.ID)<<32 | uint64(d.Boot)<<8 | uint64(d.State))
	}
	for r := range st.Ranges() {
		mix(uint64(r.Epoch)<<32 | r.Version<<16 | uint64(r.Primary))
		for _, n := range r.InSync {
			mix(uint64(n))
		}
	}
	if was, ok := w.prints[st.Revision()]; ok && was != print {
		w.failf("the metadata of revision %d differs between nodes", st.Revision())
	}
	w.prints[st.Revision()] = print
}

// learnRanges starts observing the ranges once they exist.
func (w *world) learnRanges(st *catalog.State) {
	for r := range st.Ranges() {
		w.roots = append(w.roots, root{id: r.ID, last: r.LastSlot(), table: tableOfClass(st, r.Class), survives: w.survivesRegion(st, r)})
		w.origin = append(w.origin, lineage{root: len(w.ranges), parent: -1})
		w.ranges = append(w.ranges, r.ID)
		w.drawPoints(len(w.roots) - 1)
	}
	if len(w.ranges) == 0 {
		return
	}
	for _, n := range w.nodes {
		n.disk.quarantined = make([]bool, len(w.ranges))
		n.disk.copies = make([]*rangeCopy, len(w.ranges))
		n.dropped = make([]bool, len(w.ranges))
		n.spoiled, n.discarding = make([]time.Duration, len(w.ranges)), make([]*replica.Replica, len(w.ranges))
		n.seen = newObservation(n)
	}
}

// metadataLeader returns a node that believes to lead the metadata group, or nil. During an
// election there may be two; proposals through the outdated one fail.
func (w *world) metadataLeader() *node {
	for _, n := range w.nodes {
		if !n.down && !n.paused && n.group != nil && n.group.IsLeader() {
			return n
		}
	}
	return nil
}

// proposeOnce proposes a command once, as an operator does, through the node that leads. It reports
// whether there is one; the outcome appears in the metadata or not at all.
func (w *world) proposeOnce(cmd catalog.Command) bool {
	n := w.metadataLeader()
	// An operator cannot reach a metadata group that is cut off.
	if n == nil || w.net.deaf[n.index] {
		return false
	}
	n.spawn(func() {
		ctx, cancel := n.rt.WithTimeout(n.ctx, registerTimeout)
		defer cancel()
		res, err := n.group.Propose(ctx, cmd)
		if w.tracing() {
			w.tracef("meta", "%T%+v -> rev %d %v %v", cmd, cmd, res.Revision, err, res.Err())
		}
	})
	return true
}

// electAnyone elects a replica that is not in sync. The catalog would refuse that, so the replica
// is made a member first, in the same batch (ElectAnyone).
func (w *world) electAnyone() {
	n := w.metadataLeader()
	if n == nil || w.rnd.IntN(10) > 0 {
		return
	}
	for _, id := range w.served() {
		r, _ := w.state.Range(id)
		// Only replicas can be elected, and this one lacks acknowledged entries.
		for _, outsider := range r.Replicas {
			if !r.IsInSync(outsider) && w.state.IsLive(outsider) {
				w.enthrone(r, outsider)
				return
			}
		}
	}
}

// enthrone makes a replica a member of the in-sync set and elects it, whatever its log lacks.
func (w *world) enthrone(r *rhumb.Range, outsider rhumb.NodeID) {
	var members []catalog.Member
	for _, n := range append([]rhumb.NodeID{outsider}, r.InSync...) {
		rec, _ := w.state.Node(n)
		members = append(members, catalog.Member{Node: n, Boot: rec.Boot})
	}
	w.proposeOnce(catalog.Batch{Commands: []catalog.Command{
		catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: members},
		catalog.Elect{Range: r.ID, Version: r.Version + 1, Node: outsider},
	}})
}

// startOperation starts a decommissioning or a move of a copy, which the controller of the metadata leader carries out, and
// cancels it later if it is not over. A decommissioned node returns, because the faults need nodes.
func (w *world) startOperation(n *node, length time.Duration) string {
	r := w.pickRange()
	cmd := catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: n.id, By: "sim", At: time.Unix(0, int64(w.now))}
	if w.chance.IntN(2) == 0 {
		cmd.Kind, cmd.Range, cmd.Node, cmd.Target = rhumb.OperationMove, r.ID, oneOf(w.chance, r.Replicas...), n.id
		if r.IsReplica(n.id) {
			return ""
		}
	}
	if !w.proposeOnce(cmd) {
		return ""
	}
	w.after(length, w.endOperations)
	return fmt.Sprintf("%s of %s %s to %s", cmd.Kind, cmd.Range, cmd.Node, cmd.Target)
}

// endOperations cancels unfinished operations, and lets decommissioned nodes take copies again. It repeats until that is so.
func (w *world) endOperations() {
	again := false
	for o := range w.state.Operations() {
		if o.Kind == rhumb.OperationRebalance {
			continue // it is paused, and holds balance (holdBalance)
		}
		rec, ok := w.state.Node(o.Node)
		if o.State.IsOver() && (!ok || !rec.Leaving || o.Kind != rhumb.OperationDecommission) {
			continue
		}
		again = true
		if w.isReplacing(o) || w.isRemoving(o) {
			continue
		}
		if !o.State.IsOver() {
			w.proposeOnce(catalog.ControlOperation{ID: o.ID, Action: catalog.CancelOperation, At: time.Unix(0, int64(w.now))})
		}
	}
	for d := range w.state.Nodes() {
		if !d.Leaving {
			continue
		}
		again = true
		// The mark of a region that is being removed goes with the operation.
		if region, _ := w.state.Region(d.Region); w.isBeingReplaced(d.ID) || region.Into != 0 {
			continue
		}
		// An operation that is done leaves the node marked; an operator takes it back.
		w.proposeOnce(catalog.SetNodeState{Node: d.ID, Boot: d.Boot, State: rhumb.NodeLive})
	}
	if again {
		w.after(time.Second, w.endOperations)
	}
}

// moveReplicas changes the replicas of a range as a planner does: it adds a learner, or removes a
// replica that is not in sync.
func (w *world) moveReplicas() string {
	r := w.pickRange()
	set := slices.Clone(r.Replicas)
	n := oneOf(w.chance, w.nodes...).id
	switch i := slices.Index(set, n); {
	// The planner would bring it back: it is the only copy of its region.
	case i >= 0 && w.survivesRegion(w.state, r) && !w.sharesRegion(r, n):
		return ""
	// The catalog refuses to remove members of the in-sync set and the preferred primary.
	case i >= 0 && !r.IsInSync(n) && n != r.Preferred && len(set) > w.p.settings.Replicas:
		set = slices.Delete(set, i, i+1)
	case i < 0 && len(set) < rhumb.ReplicasMax:
		set = append(set, n)
	default:
		return ""
	}
	slices.Sort(set)
	if !w.proposeOnce(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: set}) {
		return ""
	}
	return fmt.Sprintf("range %s to %v", r.ID, set)
}
