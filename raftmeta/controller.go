package raftmeta

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// readyLag is how many entries a learner's log may lack and still be given a vote.
const readyLag = 1_000

// controllerBatch bounds the commands that the controller proposes together.
const controllerBatch = 256

// evidence is place.Evidence behind a lock: reports come from handlers, the controller judges.
type evidence struct {
	mu sync.Mutex
	e  place.Evidence
}

func (e *evidence) addReport(now time.Duration, r place.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.e.Add(now, r)
}

// reset forgets all reports, before reports to a new leadership come.
func (e *evidence) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.e.Reset()
}

// heir chooses who takes over a range from a primary that asks to be relieved.
func (e *evidence) findHeir(now time.Duration, s *catalog.State, r *rhumb.Range) (rhumb.NodeID, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.e.Heir(now, s, r)
}

func (e *evidence) takeRelieved() []rhumb.NodeID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.e.Relieved()
}

// controller acts for the group while this node leads.
type controller struct {
	*Group
	log     *slog.Logger
	term    uint64 // of the leadership that planner and evidence belong to
	planner *place.Planner
	planned time.Duration // 0 to plan at once
}

func newController(g *Group) *controller {
	return &controller{Group: g, log: g.config.logger()}
}

// run looks at the evidence and makes plans until ctx ends.
func (c *controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		sched.Sleep(c.rt, ctx, c.config.EvaluateEvery)
		if l := c.leadership.Load(); l.leader == c.config.Node && ctx.Err() == nil {
			c.runRound(ctx, l)
		}
	}
}

// act does one round under a leadership. A new leadership starts with nothing remembered.
func (c *controller) runRound(ctx context.Context, l *leadership) {
	if c.term != l.term || c.planner == nil {
		c.term, c.planner, c.planned = l.term, place.NewPlanner(c.config.Place), 0
	}
	now := c.rt.Now() - c.start
	c.planner.Observe(now, c.State())
	for _, id := range c.evidence.takeRelieved() {
		c.planner.Relapse(now, id)
	}
	c.fenceNodes(ctx, l, now)
	if c.planned == 0 || now-c.planned >= c.config.PlanEvery {
		c.planned = now
		c.makePlans(ctx, now)
	}
}

// canServe reports whether a node may get a range back.
func (c *controller) canServe(r *rhumb.Range, id rhumb.NodeID) bool {
	c.evidence.mu.Lock()
	defer c.evidence.mu.Unlock()
	return c.evidence.e.CanServe(c.rt.Now()-c.start, c.State(), r, id)
}

// judge fences nodes while the evidence suffices.
func (c *controller) fenceNodes(ctx context.Context, l *leadership, now time.Duration) {
	lost := func(id rhumb.NodeID) bool {
		since := l.since // others did not send to this node before it led
		if id == l.before {
			since = 0 // but the leader before did, all the time
		}
		return c.contacts.silentFor(id, since, c.rt.Now()) >= c.config.ContactTimeout
	}
	for range c.State().NodeCount() {
		c.evidence.mu.Lock()
		if c.evidence.e.IsEmpty() {
			c.evidence.mu.Unlock()
			return
		}
		fence, found := c.evidence.e.Judge(now, c.State(), c.config.Node, lost)
		c.evidence.mu.Unlock()
		if !found || !c.proposeCommand(ctx, fence) {
			return
		}
		c.metrics.fenced.Inc()
		c.log.Warn("node fenced", "fenced", fence.Node, "boot", uint64(fence.Boot))
	}
}

// plan makes the group's members and the placement of data as they should be, step by step.
func (c *controller) makePlans(ctx context.Context, now time.Duration) {
	if c.changeMembers(ctx, now) {
		c.planned = 0 // one change at a time; the next round goes on
		return
	}
	for _, commands := range []func() []catalog.Command{
		func() []catalog.Command { return c.planner.DeadRegions(now, c.State()) },
		func() []catalog.Command { return place.MissingBlocks(c.State()) },
		func() []catalog.Command { return c.planner.Repair(now, c.State()) },
		func() []catalog.Command { return c.planner.Failback(now, c.State(), c.canServe) },
		func() []catalog.Command { return c.planner.Balance(c.State()) },
	} {
		for batch := range slices.Chunk(commands(), controllerBatch) {
			if !c.proposeCommand(ctx, catalog.Batch{Commands: batch}) {
				return
			}
		}
	}
}

// propose has a command decided; false means that the round is over.
func (c *controller) proposeCommand(ctx context.Context, cmd catalog.Command) bool {
	ctx, cancel := c.rt.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	res, err := c.proposeHere(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		c.log.Info("controller's command not done", "command", fmt.Sprintf("%T", cmd), "error", err)
		return false
	}
	return c.AwaitRevision(ctx, res.Revision) == nil
}

// changeMembers proposes the next change of membership, if one is due, and reports whether it did.
func (c *controller) changeMembers(ctx context.Context, now time.Duration) (changed bool) {
	err := c.askDriver(ctx, "raftmeta.changeMembers", func(d *driver) { changed = d.changeMembers(c.planner, now) })
	return changed || err != nil
}

// changeMembers compares the members with the catalog and the planner's wish.
func (d *driver) changeMembers(planner *place.Planner, now time.Duration) bool {
	if !d.isLead || len(d.conf.GetVotersOutgoing()) > 0 || d.applied < d.confIndex {
		return d.isLead // a change is under way
	}
	if id := d.lostReplica(); id != 0 { // only a member that is new has nothing that is counted on
		d.metrics.readmitted.Inc()
		d.config.logger().Warn("a replica of the metadata lost entries; it is removed and taken in anew", "replica", id)
		return d.proposeMembers(memberChange(raftpb.ConfChangeRemoveNode, id))
	}
	if id := d.missingLearner(); id != 0 {
		return d.proposeMembers(memberChange(raftpb.ConfChangeAddLearnerNode, id))
	}
	current := nodeIDs(d.conf.GetVoters())
	ready := d.readyNodes()
	wanted := planner.Voters(now, d.state, current, func(id rhumb.NodeID) bool { return ready[uint64(id)] })
	var changes []*raftpb.ConfChangeSingle
	for _, id := range wanted {
		if !slices.Contains(current, id) {
			changes = append(changes, memberChange(raftpb.ConfChangeAddNode, uint64(id)))
		}
	}
	for _, id := range current {
		if !slices.Contains(wanted, id) {
			changes = append(changes, memberChange(raftpb.ConfChangeAddLearnerNode, uint64(id)))
		}
	}
	if len(changes) == 0 {
		return false
	}
	if !slices.Contains(wanted, d.config.Node) { // a leader does not demote itself, it hands over first
		return d.transferLead() != rhumb.NoNode
	}
	return d.proposeMembers(changes...)
}

func memberChange(typ raftpb.ConfChangeType, id uint64) *raftpb.ConfChangeSingle {
	return &raftpb.ConfChangeSingle{Type: typ.Enum(), NodeId: &id}
}

// proposeMembers proposes a change of membership; several changes make a joint configuration, which Raft leaves by itself.
func (d *driver) proposeMembers(changes ...*raftpb.ConfChangeSingle) bool {
	if err := d.node.ProposeConfChange(&raftpb.ConfChangeV2{Changes: changes, Context: d.admissionContext(changes)}); err != nil {
		d.config.logger().Info("change of members not proposed", "error", err)
	}
	d.confIndex, _ = d.log.LastIndex()
	d.confIndex++ // the change is not in the log yet, it is the next entry or one of the next
	return true
}

// missingLearner gives a registered node that is no member yet, or 0.
func (d *driver) missingLearner() uint64 {
	for n := range d.state.Nodes() {
		id := uint64(n.ID)
		if !slices.Contains(d.conf.GetVoters(), id) && !slices.Contains(d.conf.GetLearners(), id) && !slices.Contains(d.conf.GetLearnersNext(), id) {
			return id
		}
	}
	return 0
}

// readyNodes gives the members that are in touch and whose logs lack little.
func (d *driver) readyNodes() map[uint64]bool {
	ready := make(map[uint64]bool)
	last, _ := d.log.LastIndex()
	d.node.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		ready[id] = id == uint64(d.config.Node) || pr.RecentActive && pr.State == tracker.StateReplicate && pr.Match+readyLag >= last
	})
	return ready
}
