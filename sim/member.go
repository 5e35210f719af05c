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

// Times of a member, as in package node.
const (
	registerTimeout = 3 * time.Second
	registerRetry   = 200 * time.Millisecond
	reportEvery     = evidence.ReportKeep / 4
	changeTimeout   = 5 * time.Second
)

// member connects one life of a node to its cluster: it replaces the part of package node that
// needs no network of its own.
type member struct {
	n        *node
	self     rhumb.NodeIdentity
	group    *raftmeta.Group
	ctx      context.Context
	suspects []evidence.Suspect
	// reborn is set once a fence was seen, so that one fence leads to one new life.
	reborn bool
	// work are the processes that must end before the life can be replaced.
	work []<-chan struct{}
}

// makeRegistration returns the command that registers the present life.
func (n *node) makeRegistration() catalog.RegisterNode {
	id := n.disk.engine.Identity()
	// The bug claims to follow the newest registered life, whatever the disk knows.
	if n.w.cfg.Bug == NonceIgnored && n.w.state != nil && n.registered != n.begun.Nonce {
		n.begun.Previous = n.registered
	}
	return catalog.RegisterNode{
		Cluster: id.Cluster, Node: id.Node, Store: id.Store, Boot: id.Boot,
		Nonce: n.begun.Nonce, Previous: n.begun.Previous, Short: n.disk.engine.Short() || n.mustReportEmpty(),
		Binary: rhumb.ThisBuild("sim").String(), Witness: n.isWitness() && n.w.cfg.Bug != WitnessWithData,
		Region: n.regionOf(), Zone: fmt.Sprintf("z%d", n.w.net.site[n.at]), HasLocation: true,
		Location: rhumb.Point{Lat: float64(n.w.net.site[n.at]), Lon: float64(n.index)},
		// The signature itself is not modelled: nobody forges here.
		Proof: &catalog.RegistrationProof{At: n.wallNow().UnixNano()},
	}
}

// joinAndServe registers this life and then serves the ranges.
func (m *member) joinAndServe() {
	// Only a node whose own copy shows the registration may acknowledge, grant or promise anything.
	d, ok := m.registerLife()
	switch {
	case !ok:
		return
	case d.State == rhumb.NodeFenced || d.Boot != m.self.Boot:
		m.beginNextLife(d)
		return
	}
	// A life serves only once its number is stored (docs/replication.md#rule-life).
	m.n.registered = m.n.begun.Nonce
	m.n.w.judge(m.n.disk.engine.ConfirmLife(m.n.begun, d.Boot))
	m.n.disk.settleAll()
	if err := m.n.serveRanges(m); err != nil {
		m.n.w.judge(fmt.Errorf("%s cannot serve: %w", m.n.id, err))
		return
	}
	m.work = append(m.work, m.n.spawn(m.followMetadata), m.n.spawn(m.reportLoop))
}

// beginNextLife enters the cluster again: the metadata counted more lives than the disk knows, or
// fenced this life before it served. Registering the same life again would change nothing, and the
// node would wait forever.
func (m *member) beginNextLife(d *rhumb.Node) {
	n := m.n
	// The group belongs to the old life, so it is closed and opened again.
	n.cancel()
	_ = n.group.Close()
	if d.State == rhumb.NodeFenced {
		n.beginLife(n.disk.engine.RenewLife)
	}
	// BumpBoot keeps the number of the disk above every number that the metadata has counted.
	_, err := n.disk.engine.BumpBoot(d.Boot)
	n.w.judge(err)
	n.disk.settleAll()
	n.life++
	n.enterCluster()
}

// registerLife registers this life and waits until the node's own copy of the metadata shows it.
// Before that the node may have forgotten promises (docs/replication.md#rule-relearn).
func (m *member) registerLife() (d *rhumb.Node, ok bool) {
	for m.ctx.Err() == nil {
		st := m.group.State()
		if _, ok := st.Life(m.self.Node, m.n.begun.Nonce); ok {
			// An earlier start may have registered this life without seeing the answer. Its number
			// is then below the one of this start, and the life is registered again.
			if d, ok := st.Node(m.self.Node); d.Boot >= m.self.Boot {
				return d, ok
			}
		}
		ctx, cancel := m.n.rt.WithTimeout(m.ctx, registerTimeout)
		res, err := m.group.Propose(ctx, m.n.makeRegistration())
		cancel()
		// A proposal without an answer may have been applied; registering again is idempotent.
		if err == nil {
			err = res.Err()
		}
		m.n.w.tracef(m.n.name(), "registers boot %d: %v", m.self.Boot, err)
		switch rhumb.KindOf(err) {
		case rhumb.Conflict:
			// A nonce of an earlier life is refused; draw another.
			m.n.beginLife(m.n.disk.engine.RenewLife)
		case rhumb.WrongCluster, rhumb.InvalidArgument, rhumb.NotFound:
			if err != nil && m.n.w.isForgotten(m.self.Node) {
				m.n.retire()
				return nil, false
			}
			if err != nil {
				m.n.w.judge(fmt.Errorf("%s is refused: %w", m.n.id, err))
				return nil, false
			}
		}
		sched.Sleep(m.n.rt, m.ctx, registerRetry)
	}
	return nil, false
}

// knowsLife reports whether the metadata shows a node in exactly that life.
func (m *member) knowsLife(id rhumb.NodeIdentity) bool {
	d, ok := m.group.State().Node(id.Node)
	return ok && d.Identity() == id
}

// followMetadata applies every change of the metadata to the host.
func (m *member) followMetadata() {
	watch := m.group.Watch()
	// The watch starts with a full update, so nothing is missed between registration and here.
	defer watch.Close()
	for {
		u, err := watch.Next(m.ctx)
		if err != nil {
			return
		}
		m.applyUpdate(u)
	}
}

// applyUpdate applies one change of the metadata.
func (m *member) applyUpdate(u raftmeta.Update) {
	st := u.State
	// The judges must know the state before the host can act on it.
	m.n.w.learnState(st)
	if u.Full || len(u.Changes.Nodes) > 0 {
		// Peers come before ranges: a replica must not act on a record whose members the leases do
		// not know yet.
		m.n.host.SetPeers(m.leasePeers(st))
		var draining []rhumb.NodeID
		for d := range st.Nodes() {
			if d.State == rhumb.NodeDraining {
				draining = append(draining, d.ID)
			}
		}
		m.n.host.SetDraining(draining)
		self, ok := st.Node(m.self.Node)
		// The node was fenced, or the metadata has counted a newer life.
		switch {
		case ok && self.Forgotten:
			// Cut off from the others, it would not learn of it, and would continue.
			m.n.retire()
			return
		case ok && (self.State == rhumb.NodeFenced || self.Boot != m.self.Boot) && !m.reborn:
			m.reborn = true
			m.n.spawn(m.restartInPlace)
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
	switch m.n.w.cfg.Bug {
	case DropBeforeRemoved:
		ranges = withoutLeaving(ranges, m.self.Node)
	case RemoveUnrecorded:
		ranges = unrecorded(ranges, m.self.Node)
	case LeaveAtOnce:
		if region, _ := st.Region(m.regionID(st)); region.Into != 0 {
			ranges = withoutSelf(ranges, m.self.Node)
		}
	}
	switch bug := m.n.w.cfg.Bug; {
	case bug == DropWithHome || bug == ElectRemoved:
		// The region is news, and so are its ranges.
		if u.Full || len(u.Changes.Regions) > 0 {
			ranges = slices.Collect(st.Ranges())
		}
		ranges = m.n.w.withoutHome(st, ranges, m.self.Node)
	case bug == StopBeforeCopied:
		if region, _ := st.Region(m.regionID(st)); region.Into != 0 {
			m.n.retire()
			return
		}
	}
	if m.n.w.cfg.Bug == BirthAtAnyEpoch {
		for i, r := range ranges {
			if r.Birth != 0 {
				ranges[i] = r.Clone()
				ranges[i].Birth = r.Epoch
			}
		}
	}
	if len(ranges) > 0 {
		m.n.host.Update(ranges)
	}
	// The record of a cancelled split, and of a range that was merged, is gone.
	if m.n.w.p.splits() || m.n.w.p.losesForGood() {
		m.n.host.Prune(func(id rhumb.RangeID) bool { _, ok := st.Range(id); return ok }, st.IsMerged)
	}
}

// leasePeers returns the nodes that this one exchanges heartbeats with, and the timing of each
// pair.
func (m *member) leasePeers(st *catalog.State) (out []lease.PeerInfo) {
	net := m.n.w.net
	for d := range st.Nodes() {
		switch {
		case d.ID == m.self.Node || d.Forgotten:
		case d.State == rhumb.NodeFenced:
			// A fenced node may still hold a grant, so it stays in the list
			// (docs/replication.md#rule-s).
			out = append(out, lease.PeerInfo{ID: d.ID, Absent: true})
		default:
			at := m.n.w.nodes[d.ID-1].at
			out = append(out, lease.PeerInfo{ID: d.ID, Boot: d.Boot, Timing: leaseTiming(2 * net.baseDelay(m.n.at, at))})
		}
	}
	return out
}

// setSuspects stores the peers that the leases suspect, in their present lives, and reports them.
func (m *member) setSuspects(nodes []rhumb.NodeID) {
	st := m.group.State()
	// The list replaces the previous one. A peer that recovered disappears from it.
	m.suspects = nil
	for _, id := range nodes {
		if d, ok := st.Node(id); ok {
			m.suspects = append(m.suspects, evidence.Suspect{Node: id, Boot: d.Boot})
		}
	}
	m.n.w.tracef(m.n.name(), "suspects %v", m.suspects)
	m.tellLeader()
	// A report is worthless after the next one is due.
}

// tellLeader reports to the metadata leader at once.
func (m *member) tellLeader() { m.n.spawn(m.reportOnce) }

// isUnfit reports whether the node must not be primary.
func (m *member) isUnfit() bool { return m.n.host != nil && m.n.host.Unfit() != "" }

// reportLoop reports to the metadata leader periodically while there is anything to report:
// evidence expires after evidence.ReportKeep.
func (m *member) reportLoop() {
	for m.ctx.Err() == nil {
		sched.Sleep(m.n.rt, m.ctx, reportEvery)
		if len(m.suspects) > 0 || m.isUnfit() {
			m.reportOnce()
		}
	}
}

// reportOnce sends one report to the metadata leader.
func (m *member) reportOnce() {
	ctx, cancel := m.n.rt.WithTimeout(m.ctx, reportEvery)
	defer cancel()
	// A lost report is repeated.
	_ = m.group.Report(ctx, evidence.Report{From: m.self.Node, Boot: m.self.Boot, Suspects: m.suspects, Unfit: m.isUnfit(), Full: m.n.host != nil && m.n.host.Full()})
}

// restartInPlace begins a new life of a node that was fenced while alive: no lease and no role of
// the old life may continue (docs/replication.md#rule-life).
func (m *member) restartInPlace() {
	n := m.n
	n.w.tracef(n.name(), "fenced and alive: a new life in place")
	// A process that cannot read its disk could not begin a new life.
	n.disk.refuse(false)
	// Everything of the old life ends first, so that nothing is written under the new number by
	// code that holds the old one.
	n.cancel()
	if n.host != nil {
		n.transfers.Close()
		n.host.Close()
	}
	_ = n.group.Close()
	for _, ended := range m.work {
		n.rt.Await(ended, nil, nil)
	}
	// The new life needs a number above the old one, stored before it registers.
	_, err := n.disk.engine.BumpBoot(0)
	n.w.judge(err)
	n.beginLife(n.disk.engine.RenewLife)
	n.disk.settleAll()
	// The answers belong to the old life, which has ended; the data is settled.
	n.disk.pending = nil
	n.life++
	n.host, n.transfers = nil, nil
	n.forgetDiscards()
	n.w.withChance(func() { n.w.judge(n.disk.reloadCopies()) })
	n.enterCluster()
}

// homeIn returns the home of a key in a range. Clients of the simulator choose the range and not only the name,
// so names are spread over the slots of each root and not over those of the class. They also insert into
// these ranges, where the names that the server chose are in the first slot.
func (m *member) homeIn(id rhumb.RangeID, _ rhumb.TableID, name []byte) rhumb.RangeID {
	if rt := m.n.w.rootOf(id); rt >= 0 {
		return m.n.w.homeOf(rt, name)
	}
	return id
}

// rangeSettings returns the settings of the class of a range.
func (m *member) rangeSettings(id rhumb.RangeID) (rhumb.ClassSettings, bool) {
	st := m.group.State()
	r, ok := st.Range(id)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	c, ok := st.Class(r.Class)
	if !ok {
		return rhumb.ClassSettings{}, false
	}
	switch m.n.w.cfg.Bug {
	case LongWindow:
		c.Settings.Durability = rhumb.DeferMax
	case DeferSynced:
		c.Settings.Durability = deferredWindow
	}
	return c.Settings, true
}

// Change proposes a change of the metadata for a replica.
func (m *member) Change(p replica.MetaProposal, done func(error)) {
	m.n.spawn(func() {
		// The replica proposes again later, so a lost answer does no harm.
		ctx, cancel := m.n.rt.WithTimeout(m.ctx, changeTimeout)
		defer cancel()
		done(m.proposeChange(ctx, p))
	})
}

// proposeChange proposes the command that a replica wants, and returns its refusal as an error.
func (m *member) proposeChange(ctx context.Context, p replica.MetaProposal) error {
	// Most completions get lost, so that the first epoch is not the last that such a range begins.
	if p.Kind == replica.Complete && m.n.w.cfg.Bug == BirthAtAnyEpoch && m.n.w.rnd.IntN(8) > 0 {
		return rhumb.E("sim.propose", rhumb.Unavailable, "the completion is lost")
	}
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

// changeBlindly repeats a change of an in-sync set with the newest version until it is applied
// (BlindMetadata).
func (m *member) changeBlindly(ctx context.Context, c catalog.AlterISR) error {
	for ctx.Err() == nil {
		res, err := m.group.Propose(ctx, c)
		if err != nil || res.Err() == nil {
			return err
		}
		// The bug ignores versions, not epochs.
		r, ok := m.n.w.state.Range(c.Range)
		if !ok || r.Epoch != c.Epoch {
			return res.Err()
		}
		c.Version = r.Version
		sched.Sleep(m.n.rt, ctx, time.Millisecond)
	}
	return nil
}

// ConfirmPrimary reports whether the metadata group confirms this node as primary of the epoch
// (rule F).
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
