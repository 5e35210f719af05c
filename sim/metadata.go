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

// foundMax is how long the founding of a cluster may take.
const foundMax = 2 * time.Minute

// found makes the cluster as people do: the first node founds it, the others join, a table is made.
func (w *world) found() error {
	first := w.nodes[0]
	reg := first.registration()
	reg.Cluster, reg.Node = w.clusterID(), rhumb.NoNode
	store := first.disk.engine.Stores()[0]
	res, err := raftmeta.Bootstrap(raftmeta.StoreKV(store, 0), catalog.Init{Cluster: w.clusterID(), First: reg})
	if err != nil {
		return err
	}
	first.join(res.Node)
	first.spawn(func() {
		for _, n := range w.nodes[1:] {
			reg := n.registration()
			reg.Cluster, reg.Node = w.clusterID(), rhumb.NoNode
			res := w.insist(first, reg)
			n.join(res.Node)
		}
		w.insist(first, w.table())
	})
	for w.err == nil && len(w.ranges) == 0 && w.now < foundMax {
		w.until(w.now + 100*time.Millisecond)
	}
	if w.err == nil && len(w.ranges) == 0 {
		return fmt.Errorf("the cluster is not founded after %v", foundMax)
	}
	return w.err
}

// join makes a node one of the cluster.
func (n *node) join(id rhumb.NodeID) {
	n.w.judge(n.disk.engine.SetIdentity(n.w.clusterID(), id))
	n.disk.settle()
	n.enter()
}

// insist has a command done through a node, however often that takes. It runs as a process of the node.
func (w *world) insist(n *node, cmd catalog.Command) catalog.Result {
	for {
		ctx, cancel := n.rt.WithTimeout(n.ctx, registerTimeout)
		res, err := n.group.Propose(ctx, cmd)
		cancel()
		if err == nil {
			if err := res.Err(); err != nil {
				w.judge(fmt.Errorf("%T: %w", cmd, err))
			}
			return res
		}
		sched.Sleep(n.rt, n.ctx, registerRetry)
	}
}

// table is the command that makes the one table, with its ranges placed as the seed decides.
func (w *world) table() catalog.Command {
	placement := catalog.Placement{Region: 1}
	for range w.p.ranges {
		order := w.rnd.Perm(len(w.nodes))
		replicas := make([]rhumb.NodeID, w.p.settings.Replicas)
		for i := range replicas {
			replicas[i] = w.nodes[order[i]].id
		}
		placement.Replicas = append(placement.Replicas, replicas)
	}
	return catalog.CreateTable{Name: "t", Settings: w.p.settings, Placements: []catalog.Placement{placement}}
}

// learn takes in a state that some node has applied, and tells the judges what is new. It is the truth: a majority of the
// metadata group has it on disk.
func (w *world) learn(st *catalog.State) {
	w.sameEverywhere(st)
	if w.state != nil && st.Revision() <= w.state.Revision() {
		return
	}
	old := w.state
	w.state = st
	if len(w.ranges) == 0 {
		w.learnRanges(st)
	}
	w.noteShort()
	for _, id := range w.ranges {
		r, ok := st.Range(id)
		if !ok {
			w.failf("range %s is gone from the metadata", id)
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
		if len(r.Quarantined) > 0 && !w.mending {
			w.mending = true
			w.after(mendEvery, w.mendLater)
		}
		w.judge(w.monitor.Config(r))
		w.judge(w.monitor.Held(id, w.diskOf(id)))
	}
}

// sameEverywhere sees that all nodes have the same metadata at a revision.
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
		w.failf("the metadata of revision %d is not the same at all nodes", st.Revision())
	}
	w.prints[st.Revision()] = print
}

// learnRanges begins to look at the ranges when they are made.
func (w *world) learnRanges(st *catalog.State) {
	for r := range st.Ranges() {
		w.ranges = append(w.ranges, r.ID)
	}
	if len(w.ranges) == 0 {
		return
	}
	for _, n := range w.nodes {
		n.disk.quarantined = make([]bool, len(w.ranges))
		n.disk.copies = make([]*rangeCopy, len(w.ranges))
		n.dropped = make([]bool, len(w.ranges))
		n.spoiled, n.discarding = make([]time.Duration, len(w.ranges)), make([]*replica.Replica, len(w.ranges))
		n.seen = newJudged(n)
	}
}

// leader gives a node that believes to lead the metadata group, or nil.
func (w *world) leader() *node {
	for _, n := range w.nodes {
		if !n.down && !n.paused && n.group != nil && n.group.IsLeader() {
			return n
		}
	}
	return nil
}

// operate proposes a command once, as an operator does, through the node that leads. It reports whether there is one.
func (w *world) operate(cmd catalog.Command) bool {
	n := w.leader()
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

// electAnyone makes a replica primary that is not in sync, by making it a member first (ElectAnyone).
func (w *world) electAnyone() {
	n := w.leader()
	if n == nil || w.rnd.IntN(10) > 0 {
		return
	}
	st := w.state
	for _, id := range w.ranges {
		r, _ := st.Range(id)
		for _, outsider := range r.Replicas {
			rec, _ := st.Node(outsider)
			if r.IsInSync(outsider) || !st.IsLive(outsider) {
				continue
			}
			members := []catalog.Member{{Node: outsider, Boot: rec.Boot}}
			for _, old := range r.InSync {
				o, _ := st.Node(old)
				members = append(members, catalog.Member{Node: old, Boot: o.Boot})
			}
			w.operate(catalog.Batch{Commands: []catalog.Command{
				catalog.AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: members},
				catalog.Elect{Range: id, Version: r.Version + 1, Node: outsider},
			}})
			return
		}
	}
}

// move gives a range another set of replicas, as a planner does: a new learner, or a replica out of sync taken away.
func (w *world) move() string {
	r, _ := w.state.Range(one(w.chance, w.ranges...))
	set := slices.Clone(r.Replicas)
	n := one(w.chance, w.nodes...).id
	switch i := slices.Index(set, n); {
	case i >= 0 && !r.IsInSync(n) && n != r.Preferred && len(set) > w.p.settings.Replicas:
		set = slices.Delete(set, i, i+1)
	case i < 0 && len(set) < rhumb.ReplicasMax:
		set = append(set, n)
	default:
		return ""
	}
	slices.Sort(set)
	if !w.operate(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: set}) {
		return ""
	}
	return fmt.Sprintf("range %s to %v", r.ID, set)
}
