package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Times of the metadata group.
const (
	// newsEvery is how often every node is told of the newest state, so that lost news do no lasting harm.
	newsEvery = 300 * time.Millisecond
	// reportEvery is how often a node reports whom it suspects.
	reportEvery = 100 * time.Millisecond
	// reportFresh is how long a report counts.
	reportFresh = 400 * time.Millisecond
	// controlEvery is how often the controller looks at the reports.
	controlEvery = 50 * time.Millisecond
	// electEvery bounds how often the controller elects for one range.
	electEvery = time.Second
)

// metadata stands for the metadata group and the controller on its leader: one linearizable register.
type metadata struct {
	w     *world
	at    place
	state *catalog.State
	// stopped is true while no proposal is applied (a group without its majority).
	stopped bool
	reports []report
	elected []time.Duration // by range: when the controller last elected
	applied int
}

// report is what a node last said of its peers: by index, the life of each that it suspects, 0 for the others. Suspicion
// of a life says nothing of the next.
type report struct {
	at    time.Duration
	lives []rhumb.BootSeq
}

// found makes the cluster: nodes, one table, its ranges.
func (m *metadata) found() error {
	w := m.w
	m.state = catalog.New()
	for i, n := range w.nodes {
		reg := n.registration()
		if i == 0 {
			reg.Node = rhumb.NoNode
			if err := m.must(catalog.Init{Cluster: w.clusterID(), First: reg}); err != nil {
				return err
			}
			continue
		}
		reg.Node = rhumb.NoNode
		if err := m.must(reg); err != nil {
			return err
		}
	}
	placement := catalog.Placement{Region: 1}
	for range w.p.ranges {
		order := w.rnd.Perm(len(w.nodes))
		replicas := make([]rhumb.NodeID, w.p.settings.Replicas)
		for i := range replicas {
			replicas[i] = w.nodes[order[i]].id
		}
		placement.Replicas = append(placement.Replicas, replicas)
	}
	if err := m.must(catalog.CreateTable{Name: "t", Settings: w.p.settings, Placements: []catalog.Placement{placement}}); err != nil {
		return err
	}
	for r := range m.state.Ranges() {
		w.ranges = append(w.ranges, r.ID)
	}
	m.reports = make([]report, len(w.nodes))
	m.elected = make([]time.Duration, len(w.ranges))
	return nil
}

func (m *metadata) must(cmd catalog.Command) error {
	_, err := m.apply(cmd)
	return err
}

// apply applies a command, tells the judges and spreads the news.
func (m *metadata) apply(cmd catalog.Command) (catalog.Result, error) {
	next, res, changes := m.state.Apply(cmd)
	m.state = next
	m.applied++
	w := m.w
	if w.tracing() {
		w.tracef("meta", "%T%+v -> rev %d %v", cmd, cmd, res.Revision, res.Err())
	}
	for _, id := range changes.Ranges {
		r, _ := next.Range(id)
		if w.tracing() {
			w.tracef("meta", "range %s epoch %d version %d primary %s in sync %v of %v", id, r.Epoch, r.Version, r.Primary, r.InSync, r.Replicas)
		}
		w.judge(w.monitor.Config(r))
		if len(w.ranges) > 0 {
			w.judge(w.monitor.Held(id, w.diskOf(id)))
		}
	}
	if changes.Len() > 0 && len(w.ranges) > 0 {
		m.spread()
	}
	return res, res.Err()
}

// spread sends the newest state to every node.
func (m *metadata) spread() {
	state := m.state
	for _, n := range m.w.nodes {
		m.w.net.send(m.at, n.at, func() { n.run(n.life, func() { n.learn(state) }) })
	}
}

// propose carries a command to the register: late, and lost when it cannot be reached. A proposal may stay under way for
// long after its proposer has given up (a leader that was cut off and came back).
func (m *metadata) propose(n *node, cmd catalog.Command) {
	w := m.w
	wait := time.Duration(float64(w.p.metaDelay) * (0.5 + w.rnd.ExpFloat64()))
	if w.rnd.IntN(50) == 0 {
		wait += time.Duration(w.rnd.Int64N(int64(5 * time.Second)))
	}
	w.net.send(n.at, m.at, func() {
		w.after(wait, func() {
			if m.stopped {
				return
			}
			if alter, ok := cmd.(catalog.AlterISR); ok && w.cfg.Bug == BlindMetadata {
				cmd = m.blind(alter)
			}
			if elect, ok := cmd.(catalog.Elect); ok && elect.Node == rhumb.NoNode {
				cmd = m.relieve(elect)
			}
			_, _ = m.apply(cmd) // the proposer learns of it by news
		})
	})
}

// blind makes a change of an in-sync set acceptable that was decided on an older version (BlindMetadata).
func (m *metadata) blind(c catalog.AlterISR) catalog.Command {
	r, ok := m.state.Range(c.Range)
	if !ok || r.Epoch != c.Epoch {
		return c
	}
	c.Version = r.Version
	return c
}

// relieve fills in who takes over from a primary that asks for it: the next live member of the set that it does not suspect.
func (m *metadata) relieve(c catalog.Elect) catalog.Command {
	r, ok := m.state.Range(c.Range)
	if !ok {
		return c
	}
	turn := slices.Index(r.InSync, r.Primary) + 1
	for i := range r.InSync {
		n := r.InSync[(turn+i)%len(r.InSync)]
		if c.Node == rhumb.NoNode && n != r.Primary && m.state.IsLive(n) && m.fresh(n) && !m.suspects(r.Primary, n) {
			c.Node = n
		}
	}
	return c
}

// tell takes a node's report.
func (m *metadata) tell(n *node, r report) {
	r.at = m.w.now
	m.reports[n.index] = r
}

// control is the controller's turn: it fences nodes that enough of their peers suspect, and elects for ranges whose
// primary its in-sync members suspect (section 1.10; ruling 11).
func (m *metadata) control() {
	if m.stopped {
		return
	}
	for _, x := range m.w.nodes {
		rec, ok := m.state.Node(x.id)
		if ok && rec.State != rhumb.NodeFenced && m.isDead(x.id) {
			_, _ = m.apply(catalog.FenceNode{Node: x.id, Boot: rec.Boot})
		}
	}
	for i, id := range m.w.ranges {
		if m.w.now-m.elected[i] < electEvery {
			continue
		}
		r, _ := m.state.Range(id)
		if n := m.elect(r); n != rhumb.NoNode {
			m.elected[i] = m.w.now
			_, _ = m.apply(catalog.Elect{Range: id, Version: r.Version, Node: n})
		}
	}
	if m.w.cfg.Bug == ElectAnyone {
		m.electAnyone()
	}
}

// fresh reports whether the node's last report still counts.
func (m *metadata) fresh(n rhumb.NodeID) bool {
	r := &m.reports[n-1]
	return r.at > 0 && m.w.now-r.at <= reportFresh
}

// suspects reports whether a fresh report of node by suspects the registered life of x.
func (m *metadata) suspects(by, x rhumb.NodeID) bool {
	rec, ok := m.state.Node(x)
	return ok && m.fresh(by) && m.reports[by-1].lives[x-1] == rec.Boot
}

// isDead is the evidence rule for a node: a majority of the live nodes that share ranges with it, or the controller
// itself and one more.
func (m *metadata) isDead(x rhumb.NodeID) bool {
	var sharers, against int
	for _, n := range m.w.nodes {
		if n.id == x || !m.state.IsLive(n.id) || !m.share(n.id, x) {
			continue
		}
		sharers++
		if m.suspects(n.id, x) {
			against++
		}
	}
	return 2*against > sharers || against > 0 && !m.fresh(x)
}

func (m *metadata) share(a, b rhumb.NodeID) bool {
	for r := range m.state.Ranges() {
		if r.IsReplica(a) && r.IsReplica(b) {
			return true
		}
	}
	return false
}

// elect gives the in-sync member that should replace the range's primary, or NoNode.
func (m *metadata) elect(r *rhumb.Range) rhumb.NodeID {
	others, against, best := 0, 0, rhumb.NoNode
	for _, n := range r.InSync {
		if n == r.Primary {
			continue
		}
		others++
		if m.suspects(n, r.Primary) {
			against++
		}
		if m.state.IsLive(n) && m.fresh(n) && (best == rhumb.NoNode || m.w.rnd.IntN(2) == 0) {
			best = n
		}
	}
	dead := !m.state.IsLive(r.Primary)
	if best != rhumb.NoNode && (dead || 2*against > others) {
		return best
	}
	return rhumb.NoNode
}

// electAnyone makes a replica primary that is not in sync, by making it a member first (ElectAnyone).
func (m *metadata) electAnyone() {
	for i, id := range m.w.ranges {
		r, _ := m.state.Range(id)
		if m.w.now-m.elected[i] < electEvery || m.w.rnd.IntN(20) > 0 {
			continue
		}
		for _, n := range r.Replicas {
			rec, _ := m.state.Node(n)
			if r.IsInSync(n) || !m.state.IsLive(n) {
				continue
			}
			members := []catalog.Member{{Node: n, Boot: rec.Boot}}
			for _, old := range r.InSync {
				o, _ := m.state.Node(old)
				members = append(members, catalog.Member{Node: old, Boot: o.Boot})
			}
			if res, err := m.apply(catalog.AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: members}); err == nil {
				m.elected[i] = m.w.now
				_, _ = m.apply(catalog.Elect{Range: id, Version: res.Range.Version, Node: n})
				return
			}
		}
	}
}

// move gives a range another set of replicas, as a planner does: a new learner, or a replica out of sync taken away.
func (m *metadata) move() string {
	w := m.w
	r, _ := m.state.Range(one(w.chance, w.ranges...))
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
	_, err := m.apply(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: set})
	return fmt.Sprintf("range %s to %v: %v", r.ID, set, err)
}
