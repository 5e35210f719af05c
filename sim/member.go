package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/host"
	"github.com/rhumbdb/rhumb/node/lease"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	evidence "github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// Times of a member, as package node has them.
const (
	registerTimeout = 3 * time.Second
	registerRetry   = 200 * time.Millisecond
	reportEvery     = evidence.ReportKeep / 4
	changeTimeout   = 5 * time.Second
)

// member is a node's part in its cluster, for one life of the node: what package node does without a network of its own.
type member struct {
	n        *node
	self     rhumb.NodeIdentity
	group    *raftmeta.Group
	ctx      context.Context
	suspects []evidence.Suspect
	reborn   bool
	work     []<-chan struct{}
}

func (n *node) registration() catalog.RegisterNode {
	id := n.disk.engine.Identity()
	if n.w.cfg.Bug == NonceIgnored && n.w.state != nil && n.registered != n.begun.Nonce {
		n.begun.Previous = n.registered
	}
	return catalog.RegisterNode{
		Cluster: id.Cluster, Node: id.Node, Store: id.Store, Boot: id.Boot,
		Nonce: n.begun.Nonce, Previous: n.begun.Previous, Short: n.disk.engine.Short() || n.emptied(),
		Region: "r1", Zone: fmt.Sprintf("z%d", n.w.net.site[n.at]), HasLocation: true,
		Location: rhumb.Point{Lat: float64(n.w.net.site[n.at]), Lon: float64(n.index)},
	}
}

// live registers this life and then serves.
func (m *member) live() {
	d, ok := m.register()
	switch {
	case !ok:
		return
	case d.State == rhumb.NodeFenced || d.Boot != m.self.Boot:
		m.relive(d)
		return
	}
	m.n.registered = m.n.begun.Nonce
	m.n.w.judge(m.n.disk.engine.ConfirmLife(m.n.begun, d.Boot))
	m.n.disk.settle()
	if err := m.n.serve(m); err != nil {
		m.n.w.judge(fmt.Errorf("%s cannot serve: %w", m.n.id, err))
		return
	}
	m.work = append(m.work, m.n.spawn(m.follow), m.n.spawn(m.report))
}

// relive enters the cluster again: metadata counted more lives than this disk knows, or fenced this one before it served.
func (m *member) relive(d *rhumb.Node) {
	n := m.n
	n.cancel()
	_ = n.group.Close()
	if d.State == rhumb.NodeFenced {
		n.beginLife(n.disk.engine.RenewLife)
	}
	_, err := n.disk.engine.BumpBoot(d.Boot)
	n.w.judge(err)
	n.disk.settle()
	n.life++
	n.enter()
}

// register makes this life known and waits until the node's own copy of the metadata shows it.
func (m *member) register() (d *rhumb.Node, ok bool) {
	for m.ctx.Err() == nil {
		st := m.group.State()
		if _, ok := st.Life(m.self.Node, m.n.begun.Nonce); ok {
			// An earlier start registered this life and did not hear of it: this one registers it again.
			if d, ok := st.Node(m.self.Node); d.Boot >= m.self.Boot {
				return d, ok
			}
		}
		ctx, cancel := m.n.rt.WithTimeout(m.ctx, registerTimeout)
		res, err := m.group.Propose(ctx, m.n.registration())
		cancel()
		if err == nil {
			err = res.Err()
		}
		m.n.w.tracef(m.n.name(), "registers boot %d: %v", m.self.Boot, err)
		switch rhumb.KindOf(err) {
		case rhumb.Conflict:
			m.n.beginLife(m.n.disk.engine.RenewLife)
		case rhumb.WrongCluster, rhumb.InvalidArgument, rhumb.NotFound:
			if err != nil {
				m.n.w.judge(fmt.Errorf("%s is refused: %w", m.n.id, err))
				return nil, false
			}
		}
		sched.Sleep(m.n.rt, m.ctx, registerRetry)
	}
	return nil, false
}

// knows reports whether metadata knows a node in that life.
func (m *member) knows(id rhumb.NodeIdentity) bool {
	d, ok := m.group.State().Node(id.Node)
	return ok && d.Identity() == id
}

// follow brings every change of the metadata to the host.
func (m *member) follow() {
	watch := m.group.Watch()
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		m.tell(u)
	}
}

func (m *member) tell(u raftmeta.Update) {
	st := u.State
	m.n.w.learn(st) // before the host can act on it
	if u.Full || len(u.Changes.Nodes) > 0 {
		m.n.host.SetPeers(m.pairs(st))
		self, ok := st.Node(m.self.Node)
		if ok && (self.State == rhumb.NodeFenced || self.Boot != m.self.Boot) && !m.reborn {
			m.reborn = true
			m.n.spawn(m.rebirth)
		}
	}
	var ranges []*rhumb.Range
	if u.Full {
		ranges = slices.Collect(st.Ranges())
	}
	for _, id := range u.Changes.Ranges {
		if r, ok := st.Range(id); ok {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) > 0 {
		m.n.host.Update(ranges)
	}
}

// pairs says which nodes this one exchanges heartbeats with, and how patiently.
func (m *member) pairs(st *catalog.State) (out []lease.PeerInfo) {
	net := m.n.w.net
	for d := range st.Nodes() {
		switch {
		case d.ID == m.self.Node:
		case d.State == rhumb.NodeFenced:
			out = append(out, lease.PeerInfo{ID: d.ID, Absent: true})
		default:
			at := m.n.w.nodes[d.ID-1].at
			out = append(out, lease.PeerInfo{ID: d.ID, Boot: d.Boot, Timing: timing(2 * net.base(m.n.at, at))})
		}
	}
	return out
}

// suspect notes whom the leases suspect, in the lives that they have now.
func (m *member) suspect(nodes []rhumb.NodeID) {
	st := m.group.State()
	m.suspects = nil
	for _, id := range nodes {
		if d, ok := st.Node(id); ok {
			m.suspects = append(m.suspects, evidence.Suspect{Node: id, Boot: d.Boot})
		}
	}
	m.n.w.tracef(m.n.name(), "suspects %v", m.suspects)
	m.tellLeader()
}

// tellLeader reports at once.
func (m *member) tellLeader() { m.n.spawn(m.reportOnce) }

// unfit reports whether the node must not be primary.
func (m *member) unfit() bool { return m.n.host != nil && m.n.host.Unfit() != "" }

// report sends the metadata leader whom this node suspects, and repeats it while it suspects anybody.
func (m *member) report() {
	for m.ctx.Err() == nil {
		sched.Sleep(m.n.rt, m.ctx, reportEvery)
		if len(m.suspects) > 0 || m.unfit() {
			m.reportOnce()
		}
	}
}

func (m *member) reportOnce() {
	ctx, cancel := m.n.rt.WithTimeout(m.ctx, reportEvery)
	defer cancel()
	_ = m.group.Report(ctx, evidence.Report{From: m.self.Node, Boot: m.self.Boot, Suspects: m.suspects, Unfit: m.unfit()}) // it is repeated
}

// rebirth begins a new life of a node that is alive and was fenced (ruling 11).
func (m *member) rebirth() {
	n := m.n
	n.w.tracef(n.name(), "fenced and alive: a new life in place")
	n.cancel()
	if n.host != nil {
		n.host.Close()
	}
	_ = n.group.Close()
	for _, ended := range m.work {
		n.rt.Await(ended, nil, nil)
	}
	_, err := n.disk.engine.BumpBoot(0)
	n.w.judge(err)
	n.beginLife(n.disk.engine.RenewLife)
	n.disk.settle()
	n.disk.debts = nil
	n.life++
	n.host = nil
	n.forgetDiscards()
	n.w.withChance(func() { n.w.judge(n.disk.reload()) })
	n.enter()
}

func (m *member) settings(id rhumb.RangeID) (rhumb.ClassSettings, bool) {
	st := m.group.State()
	r, ok := st.Range(id)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	c, ok := st.Class(r.Class)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	return c.Settings, true
}

// Change brings what a replica wants to the metadata group.
func (m *member) Change(p replica.MetaProposal, done func(error)) {
	m.n.spawn(func() {
		ctx, cancel := m.n.rt.WithTimeout(m.ctx, changeTimeout)
		defer cancel()
		done(m.change(ctx, p))
	})
}

func (m *member) change(ctx context.Context, p replica.MetaProposal) error {
	cmd := host.Command(m.self.Node, p)
	if alter, ok := cmd.(catalog.AlterISR); ok && m.n.w.cfg.Bug == BlindMetadata {
		return m.changeBlindly(ctx, alter)
	}
	res, err := m.group.Propose(ctx, cmd)
	if err != nil {
		return err
	}
	return res.Err()
}

// changeBlindly has a change of an in-sync set done whatever version it was decided on (BlindMetadata).
func (m *member) changeBlindly(ctx context.Context, c catalog.AlterISR) error {
	for ctx.Err() == nil {
		res, err := m.group.Propose(ctx, c)
		if err != nil || res.Err() == nil {
			return err
		}
		r, ok := m.n.w.state.Range(c.Range)
		if !ok || r.Epoch != c.Epoch {
			return res.Err()
		}
		c.Version = r.Version
		sched.Sleep(m.n.rt, ctx, time.Millisecond)
	}
	return nil
}

// ConfirmPrimary asks the metadata group whether this node is still primary (rule F).
func (m *member) ConfirmPrimary(ctx context.Context, id rhumb.RangeID, e rhumb.Epoch) (bool, error) {
	if m.n.w.cfg.Bug == ReadWithoutLease {
		return true, nil
	}
	st, err := m.group.Linearize(ctx)
	if err != nil {
		return false, err
	}
	r, ok := st.Range(id)
	return ok && r.Primary == m.self.Node && r.Epoch == e, nil
}
