package raftmeta

import (
	"context"
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

// readyLag is the maximum number of entries that a learner may lack to be promoted to voter.
const readyLag = 1_000

// controllerBatch bounds the commands that the controller proposes as one batch.
const controllerBatch = 256

// evidence is place.Evidence with a lock: handlers add reports while the controller judges.
type evidence struct {
	mu      sync.Mutex
	e       place.Evidence
	surveys place.Surveys
}

// addSurvey records a survey that arrived at time now.
func (e *evidence) addSurvey(now time.Duration, s place.Survey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.surveys.Add(now, s)
}

// copySurveys returns the surveys as they are now. A plan takes long to make, and reports of failures must not wait for it.
func (e *evidence) copySurveys(now time.Duration) *place.Surveys {
	e.mu.Lock()
	defer e.mu.Unlock()
	surveys := e.surveys.Copy()
	surveys.Unfit = e.e.ListUnfit(now)
	return surveys
}

// addReport records a report that arrived at time now.
func (e *evidence) addReport(now time.Duration, r place.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.e.Add(now, r)
}

// reset drops all reports at the start of a leadership of this node.
func (e *evidence) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.e.Reset()
	e.surveys = place.Surveys{}
}

// findHeir returns the successor of a primary that asks to be relieved of a range.
func (e *evidence) findHeir(now time.Duration, s *catalog.State, r *rhumb.Range) (rhumb.NodeID, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.e.Heir(now, s, r)
}

// takeRelieved returns the primaries that were relieved since the last call.
func (e *evidence) takeRelieved() []rhumb.NodeID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.e.Relieved()
}

// controller acts for the group while this node leads. It runs in a process of its own, which may
// block on proposals; the driver must not.
//
// Its commands are always decided on the state that its own node has applied, and every command names the version
// of the record that it is about. So a controller that does not know yet that it leads no longer does no harm: its commands are
// refused by the version, or by Raft.
type controller struct {
	*Group
	log *slog.Logger
	// term is the term of the leadership to which planner and evidence belong.
	term    uint64
	planner *place.Planner
	planned time.Duration // when plans were made last; 0 to make them at once
	// asked is when this node last tried to hand over the leadership, in this term; 0 if it did not.
	asked time.Duration
	clock clockYield
}

// clockYieldPause is how long a node whose clock is wrong leads, at least, after it has tried to hand over the leadership for that
// reason, also if it has led in a later term since. Raft refuses proposals while a transfer is under way, for an election
// timeout if it fails; and two nodes that compare their clocks with different ones could hand the leadership back and forth.
const clockYieldPause = 10 * time.Second

// clockYield decides when a leader hands the leadership over because its clock is wrong. It is a value without I/O or clock, and outlives
// the terms of this node.
type clockYield struct {
	// asked is when this node last tried, and tried whether it did.
	asked time.Duration
	tried bool
}

// next returns whether the leader tries to hand the leadership to heir now, and notes that. The first time is at once: a verdict
// about a clock has taken several heartbeats already.
func (y *clockYield) next(now time.Duration, heir rhumb.NodeID) bool {
	if heir == rhumb.NoNode || y.tried && now-y.asked < clockYieldPause {
		return false
	}
	y.asked, y.tried = now, true
	return true
}

// leadGrace is how long a witness leads before it hands the leadership over, and how long it waits before it tries again: an election
// is often followed by others, and a transfer that Raft gave up says that the other node is not well.
const leadGrace = 10 * time.Second

// newController returns the controller of a group. It does nothing until run is called.
func newController(g *Group) *controller {
	return &controller{Group: g, log: g.config.logger()}
}

// run evaluates the evidence and makes plans until ctx ends.
func (c *controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		sched.Sleep(c.rt, ctx, c.config.EvaluateEvery)
		if l := c.leadership.Load(); l.leader == c.config.Node && ctx.Err() == nil {
			c.runRound(ctx, l)
		}
	}
}

// runRound does one round of work. The planner is created again for each leadership: the
// observations of an earlier one are out of date.
func (c *controller) runRound(ctx context.Context, l *leadership) {
	if c.term != l.term || c.planner == nil {
		c.term, c.planner, c.planned, c.asked = l.term, place.NewPlanner(c.config.Place), 0, 0
		c.planner.Recall(c.rt.Now()-c.start, c.wallClock(), c.State())
	}
	now := c.rt.Now() - c.start
	c.yieldForClock(ctx, now)
	// Observe comes first, so that the decisions below know how long each node has been in its
	// state.
	c.planner.Observe(now, c.State())
	// A primary that was relieved counts as relapsed, so that fail-back does not return its ranges
	// at once.
	for _, id := range c.evidence.takeRelieved() {
		c.planner.Relapse(now, id)
	}
	c.fenceNodes(ctx, l, now)
	if c.planned == 0 || now-c.planned >= c.config.PlanEvery {
		c.planned = now
		c.makePlans(ctx, now)
	}
}

// wallClock returns the time for records of operations.
func (c *controller) wallClock() time.Time {
	if c.config.WallClock == nil {
		return time.Now()
	}
	return c.config.WallClock()
}

// canServe reports whether a node may get a range back.
func (c *controller) canServe(r *rhumb.Range, id rhumb.NodeID) bool {
	c.evidence.mu.Lock()
	defer c.evidence.mu.Unlock()
	return c.evidence.e.CanServe(c.rt.Now()-c.start, c.State(), r, id)
}

// fenceNodes fences nodes as long as the evidence is sufficient
// (docs/replication.md#failure-detection).
func (c *controller) fenceNodes(ctx context.Context, l *leadership, now time.Duration) {
	lost := func(id rhumb.NodeID) bool {
		// A node did not send to this one before it led, so its silence counts from the start of
		// the leadership. The previous leader did send all the time, so its silence counts from its
		// last message. Otherwise a dead leader would be fenced only a full contact timeout after
		// the election that replaced it.
		since := l.since
		if id == l.before {
			since = 0
		}
		return c.contacts.silentFor(id, since, c.rt.Now()) >= c.config.ContactTimeout
	}
	// Each fencing changes who may accuse, so nodes are fenced one at a time. The loop is bounded
	// by the number of nodes.
	for range c.State().NodeCount() {
		c.evidence.mu.Lock()
		if c.evidence.e.IsEmpty() {
			c.evidence.mu.Unlock()
			return
		}
		// The lock is released before the proposal, which may wait; reports arrive meanwhile.
		fence, found := c.evidence.e.Judge(now, c.State(), c.config.Node, lost)
		c.evidence.mu.Unlock()
		if !found {
			return
		}
		if _, ok := c.proposeCommand(ctx, fence); !ok {
			return
		}
		c.metrics.fenced.Inc()
		c.log.Warn("node fenced", "fenced", fence.Node, "boot", uint64(fence.Boot))
	}
}

// makePlans brings the membership of the group and the placement of data one step closer to the
// plan.
func (c *controller) makePlans(ctx context.Context, now time.Duration) {
	// Raft allows one change of membership at a time. The next round comes at once and continues.
	if c.changeMembers(ctx, now) {
		c.planned = 0
		return
	}
	c.yieldLead(ctx, now)
	var refusals place.Refusals
	for _, plan := range c.plans(now) {
		for batch := range slices.Chunk(plan.commands(), controllerBatch) {
			if !c.proposeBatch(ctx, batch, plan.applied, &refusals) {
				return
			}
		}
	}
	c.planner.Heed(refusals)
}

// plan is one part of a round.
type plan struct {
	// commands is called when the parts before it were applied: each step is decided on the state after the previous one.
	commands func() []catalog.Command
	// applied, if not nil, is called with each command that was applied and not refused.
	applied func(catalog.Command)
}

// plans returns the parts of a round in their order.
func (c *controller) plans(now time.Duration) []plan {
	return []plan{
		{commands: func() []catalog.Command { return c.planner.DeadRegions(now, c.State()) }},
		{commands: func() []catalog.Command { return place.MissingBlocks(c.State()) }},
		{func() []catalog.Command { return c.planner.Handovers(now, c.State()) }, c.countHandover(c.State())},
		{commands: func() []catalog.Command {
			return c.planner.Operations(now, c.wallClock(), c.State(), c.measures(now))
		}},
		{commands: func() []catalog.Command { return place.RemoveClasses(c.State()) }},
		{commands: func() []catalog.Command { return c.planner.Repair(now, c.State()) }},
		{commands: func() []catalog.Command { return c.planner.Relapses(c.wallClock(), c.State()) }},
		{commands: func() []catalog.Command { return c.planner.Returns(now, c.State()) }},
		{commands: func() []catalog.Command { return c.planner.Failback(now, c.State(), c.canServe) }},
		{commands: func() []catalog.Command { return c.planner.StandIns(now, c.State(), c.canServe) }},
		{commands: func() []catalog.Command { return c.planner.Balance(c.State()) }},
		{func() []catalog.Command { return c.measuredPlans(now) }, c.countMerge},
	}
}

// proposeBatch proposes commands of a plan as one, and notes the result of each. It returns false if the round must end.
func (c *controller) proposeBatch(ctx context.Context, batch []catalog.Command, applied func(catalog.Command), refusals *place.Refusals) bool {
	res, ok := c.proposeCommand(ctx, catalog.Batch{Commands: batch})
	for i, item := range res.Items {
		switch cmd := batch[i]; {
		case item.Failure == nil && applied != nil:
			applied(cmd)
		case refusals.Add(cmd, item):
			c.metrics.planRefused.Inc()
			// The next round makes the same plan, twice a second.
			if !c.planner.KnowsRefusal(cmd, item) {
				c.log.Info("the catalog refused a step of the plan; it will be tried again", "command", place.CommandName(cmd), "error", item.Err())
			}
		}
	}
	return ok
}

// countHandover returns a function that counts the commands which end handovers that took too long, as they were prepared in state s.
func (c *controller) countHandover(s *catalog.State) func(catalog.Command) {
	return func(cmd catalog.Command) {
		switch by := place.EndsHandover(s, cmd); by {
		case place.HandoverCancelled:
			c.metrics.handoversCancelled.Inc()
		case place.HandoverElected:
			c.metrics.handoversElected.Inc()
		default:
			return
		}
		c.log.Warn("a handover of a range was not carried out in time", "command", place.CommandName(cmd))
	}
}

// countMerge counts the merges that were started.
func (c *controller) countMerge(cmd catalog.Command) {
	if start, ok := cmd.(catalog.StartOperation); ok && start.Kind == rhumb.OperationMerge {
		c.metrics.merges.Inc()
	}
}

// measures returns the reports of nodes that the progress of operations needs.
func (c *controller) measures(now time.Duration) place.Measures {
	// One copy for the whole plan, which asks for each range that moves. Surveys that arrive meanwhile count in the next round: the
	// records of operations change every few seconds anyway.
	surveys := c.evidence.copySurveys(now)
	return place.Measures{
		Size: func(id rhumb.RangeID) (int64, bool) {
			r, ok := c.State().Range(id)
			if !ok {
				return 0, false
			}
			size, known := surveys.Size(now, r)
			return size.Bytes, known
		},
		Copied:  func(id rhumb.RangeID) (float64, bool) { return surveys.Copied(now, id) },
		Arrived: func(node rhumb.NodeID, id rhumb.RangeID) (float64, bool) { return surveys.Arrived(now, node, id) },
		Apart:   surveys.Apart,
	}
}

// measuredPlans returns the plans that depend on surveys: distances of regions, merges of small ranges, and moves that balance nodes.
func (c *controller) measuredPlans(now time.Duration) (out []catalog.Command) {
	surveys := c.evidence.copySurveys(now)
	if cmd, ok := surveys.Distances(now, c.State()); ok {
		out = append(out, cmd)
	}
	// Balance must see which ranges are to be merged: it would move their copies apart.
	if merges := c.planner.Merges(now, c.wallClock(), c.State(), surveys); len(merges) > 0 {
		return append(out, merges...)
	}
	return append(out, c.planner.Rebalance(now, c.wallClock(), c.State(), surveys)...)
}

// proposeCommand proposes a command and waits until it is applied. It returns false if the round
// must end: the command failed as a whole, or its effect is not visible here.
func (c *controller) proposeCommand(ctx context.Context, cmd catalog.Command) (res catalog.Result, ok bool) {
	ctx, cancel := c.rt.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	// Only this node is asked. If it leads no longer, the new leader has a controller of its own.
	res, err := c.proposeHere(ctx, cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		c.log.Info("the metadata controller's command failed; it will try again", "command", place.CommandName(cmd), "error", err)
		return res, false
	}
	// The next decision of the round must see the effect of this command.
	return res, c.AwaitRevision(ctx, res.Revision) == nil
}

// yieldLead hands the leadership over if this node is a witness that is far from the other voters (place.NextLeader). Nothing waits
// for the transfer: until it succeeds this node leads, and does all the work of a leader.
func (c *controller) yieldLead(ctx context.Context, now time.Duration) {
	since := max(c.leadership.Load().since-c.start, c.asked)
	if now-since < leadGrace {
		return
	}
	heir := rhumb.NoNode
	err := c.askDriver(ctx, "raftmeta.yieldLead", func(d *driver) {
		ready := d.readyNodes()
		clocks := d.clocks()
		heir = place.NextLeader(d.state, d.config.Node, func(id rhumb.NodeID) bool {
			// A voter whose clock is wrong would hand the leadership back.
			return ready[uint64(id)] && (len(clocks.Right) == 0 || clocks.IsRight(id))
		})
		if heir != rhumb.NoNode {
			d.node.TransferLeader(uint64(heir))
		}
	})
	if err != nil || heir == rhumb.NoNode {
		return
	}
	c.asked = now
	c.metrics.leadYields.Inc()
	c.log.Info("this witness hands the leadership of the metadata to a voter that is nearer to the others", "to", heir)
}

// yieldForClock hands the leadership over if the clock of this node is wrong (place.ClockHeir). Nothing waits for the transfer: until
// it succeeds this node leads, and does all the work of a leader.
func (c *controller) yieldForClock(ctx context.Context, now time.Duration) {
	clocks := c.clocks()
	// The driver is not asked twenty times a second for nothing.
	if !clocks.Wrong {
		return
	}
	heir, tries := rhumb.NoNode, false
	err := c.askDriver(ctx, "raftmeta.yieldForClock", func(d *driver) {
		ready := d.readyNodes()
		heir = place.ClockHeir(d.state, d.config.Node, clocks, func(id rhumb.NodeID) bool { return ready[uint64(id)] })
		if tries = d.isLead && c.clock.next(now, heir); tries {
			d.node.TransferLeader(uint64(heir))
		}
	})
	if err != nil || !tries {
		return
	}
	c.metrics.clockYields.Inc()
	c.log.Warn("the clock of this node is wrong; it hands the leadership of the metadata to a voter whose clock is right", "to", heir)
}

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
