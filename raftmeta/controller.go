package raftmeta

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

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

// listFull returns the nodes that report a full disk.
func (e *evidence) listFull(now time.Duration) []rhumb.NodeID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.e.ListFull(now)
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
	// accused reports whether this node has tried, in this term, to hand over the leadership
	// because others accuse it.
	accused bool
}

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
		c.term, c.planner, c.planned, c.asked, c.accused = l.term, place.NewPlanner(c.config.Place), 0, 0, false
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
		if !found || fence.Node == c.config.Node && c.yieldAccused(ctx) {
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
	c.planner.ObserveDisks(now, c.evidence.listFull(now))
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
		{commands: func() []catalog.Command { return place.MissingBlocks(c.State(), c.evidence.listFull(now)...) }},
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
		{commands: func() []catalog.Command { return c.planner.BalancePrimaries(c.State()) }},
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
	return append(out, c.planner.BalanceCopies(now, c.wallClock(), c.State(), surveys)...)
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
