package raftmeta

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// Group is one node's replica of a metadata group.
//
// Callers reach the driver through the channels below: they put their work into a queue and then a
// token into wake. The driver answers through view, through leadership, or on a channel inside the
// work.
type Group struct {
	config  Config
	rt      sched.Runtime
	metrics *metrics
	start   time.Duration

	// view is the newest applied state, leadership the newest known leader. Both are replaced,
	// never modified.
	view       atomic.Pointer[view]
	leadership atomic.Pointer[leadership]

	inbox     chan inbound
	proposals chan *proposal
	reads     chan *read
	asks      chan func(*driver)
	// cuts returns an encoded state with which the log is compacted. due reports that a tick is
	// due; a tick that the driver misses is not made up for.
	cuts chan *raftpb.Snapshot
	due  atomic.Bool
	// wake has a token if the driver may have something to do.
	wake chan struct{}

	contacts contacts
	parts    assembler
	evidence evidence
	watches  watches

	cancel  context.CancelFunc
	done    chan struct{}
	running []<-chan struct{} // one per process, closed when the process has ended

	failOnce sync.Once
	failure  error // set before done closes
}

// view is a state together with a channel that closes when a newer one is available.
type view struct {
	state *catalog.State
	newer chan struct{}
}

// leadership is a leader and the one before it. changed closes when it is replaced by another
// leadership.
type leadership struct {
	leader  rhumb.NodeID
	before  rhumb.NodeID
	term    uint64
	since   time.Duration
	changed chan struct{}
}

// Status describes a replica.
type Status struct {
	Group   GroupID        `json:"group"`
	Node    rhumb.NodeID   `json:"node"`
	Leader  rhumb.NodeID   `json:"leader"`
	Term    uint64         `json:"term"`
	Role    string         `json:"role"`
	Commit  uint64         `json:"commit"`
	Applied uint64         `json:"applied"`
	First   uint64         `json:"first_index"`
	Last    uint64         `json:"last_index"`
	Voters  []rhumb.NodeID `json:"voters"`
	// Outgoing are the voters that a change of membership replaces. While there are any, majorities
	// of both sets are needed.
	Outgoing []rhumb.NodeID `json:"outgoing,omitempty"`
	// Learners have a copy and no vote.
	Learners []rhumb.NodeID `json:"learners"`
	// Silent reports that the replica does not vote or acknowledge yet, because it does not know
	// its promises of before the start. Short reports that it lacks data that it had made durable.
	// Floor, unless 0, is the index that its log must reach before it may lead.
	Silent bool   `json:"silent,omitempty"`
	Short  bool   `json:"short,omitempty"`
	Floor  uint64 `json:"floor,omitempty"`
	// Waits are the voters that a silent replica has no answer from.
	Waits []rhumb.NodeID `json:"waits,omitempty"`
	// Readmits are, at the leader, the members that lost metadata and are being readmitted.
	Readmits []rhumb.NodeID `json:"readmits,omitempty"`
	// Recovered is the last forced recovery that made this replica the only voter, or nil.
	Recovered *Recovery `json:"recovered,omitempty"`
	// Match is, at the leader, the index up to which each node's log is known to agree.
	Match map[rhumb.NodeID]uint64 `json:"match,omitempty"`
}

// Open starts the replica from the contents of its KV. An empty KV belongs to a node that has not
// heard from the leader yet. Close stops the replica.
func Open(c Config) (*Group, error) {
	const op rhumb.Op = "raftmeta.Open"
	if err := c.Validate(); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if c.Runtime == nil {
		c.Runtime = sched.System
	}
	g := &Group{
		config: c, rt: c.Runtime, metrics: newMetrics(c.Registerer, c.Group), start: c.Runtime.Now(),
		inbox: make(chan inbound, InboxMax), proposals: make(chan *proposal, PendingMax),
		reads: make(chan *read, ReadsMax), asks: make(chan func(*driver), asksMax), done: make(chan struct{}),
		cuts: make(chan *raftpb.Snapshot, 1), wake: make(chan struct{}, 1),
	}
	g.watches.metrics, g.watches.rt = g.metrics, g.rt
	g.leadership.Store(&leadership{changed: make(chan struct{}), since: g.start})
	d, err := newDriver(g)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	g.running = append(g.running, g.rt.Go(func() { d.run(ctx) }), g.rt.Go(func() { newController(g).run(ctx) }))
	return g, nil
}

// wakeDriver signals the driver that work waits for it. Callers put their work into a queue first;
// otherwise the driver could take the token and find nothing.
func (g *Group) wakeDriver() {
	select {
	case g.wake <- struct{}{}:
	default: // a token is there already
	}
}

// Close stops the replica and waits until it has stopped. Waiting calls fail with kind Unavailable.
func (g *Group) Close() error {
	g.stopWith(rhumb.E("raftmeta.Group", rhumb.Unavailable, "the node is stopping"))
	for _, ended := range g.running {
		g.rt.Await(ended, nil, nil)
	}
	return nil
}

// stopWith stops the replica for the given reason. Only the first reason counts.
func (g *Group) stopWith(err error) {
	g.failOnce.Do(func() {
		// failure is written before done closes, so whoever sees done closed may read it without a
		// lock.
		g.failure = err
		close(g.done)
		g.cancel()
		g.watches.closeAll(err)
	})
}

// Done returns a channel that closes when the replica stops: because of Close, because its storage
// failed, or because it met a command that this binary does not know. Err then returns the reason.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err returns the reason why the replica stopped, or nil while it runs.
func (g *Group) Err() error {
	select {
	case <-g.done:
		return g.failure
	default:
		return nil
	}
}

// State returns the newest state that this replica has applied. It may lag behind the leader's
// state; Linearize does not.
func (g *Group) State() *catalog.State { return g.view.Load().state }

// Leader returns the leader that this replica knows, or NoNode, and its term.
func (g *Group) Leader() (rhumb.NodeID, uint64) {
	l := g.leadership.Load()
	return l.leader, l.term
}

// IsLeader reports whether this node believes that it leads. Another node may have been elected
// already.
func (g *Group) IsLeader() bool { return g.leadership.Load().leader == g.config.Node }

// AwaitRevision waits until this replica has applied the given revision.
func (g *Group) AwaitRevision(ctx context.Context, revision uint64) error {
	const op rhumb.Op = "raftmeta.AwaitRevision"
	for {
		// The state and its channel belong to one view, so a change between check and wait is not
		// missed.
		v := g.view.Load()
		if v.state.Revision() >= revision {
			return nil
		}
		if err := g.waitFor(ctx, op, v.newer); err != nil {
			return err
		}
	}
}

// waitFor waits until c closes, ctx ends or the replica stops.
func (g *Group) waitFor(ctx context.Context, op rhumb.Op, c <-chan struct{}) error {
	switch g.rt.Await(c, ctx.Done(), g.done) {
	case 1:
		return rhumb.WrapKind(op, rhumb.Unavailable, context.Cause(ctx))
	case 2:
		return rhumb.Wrap(op, g.failure)
	}
	return nil
}

// askDriver runs f in the driver's process and waits for it. f must not block. If askDriver returns
// an error, f may still run later, so the caller must not use its results.
func (g *Group) askDriver(ctx context.Context, op rhumb.Op, f func(*driver)) error {
	answered := make(chan struct{})
	select {
	case g.asks <- func(d *driver) { defer close(answered); f(d) }:
		g.wakeDriver()
	default:
		return rhumb.Ef(op, rhumb.Overloaded, "%d requests to the metadata replica already wait, which is the limit; try again later", asksMax)
	}
	return g.waitFor(ctx, op, answered)
}

// Status describes the replica.
func (g *Group) Status(ctx context.Context) (s Status, err error) {
	err = g.askDriver(ctx, "raftmeta.Status", func(d *driver) { s = d.replicaStatus() })
	return s, err
}

// StepAside makes the leader transfer its leadership to the voter with the longest log, if there is
// another. A node that drains calls it, so that the group does not have to detect its absence
// first.
func (g *Group) StepAside(ctx context.Context) error {
	const op rhumb.Op = "raftmeta.StepAside"
	for g.IsLeader() {
		l := g.leadership.Load()
		heir := rhumb.NoNode
		if err := g.askDriver(ctx, op, func(d *driver) { heir = d.transferLead(func(rhumb.NodeID) bool { return true }) }); err != nil {
			return err
		}
		if heir == rhumb.NoNode {
			return nil
		}
		// Raft may abandon a transfer silently, so only ctx bounds the wait.
		if err := g.waitFor(ctx, op, l.changed); err != nil {
			return err
		}
	}
	return nil
}

// Report delivers the suspicions of this or another node to the leader. It waits while there is no
// leader, and abandons a leader that is replaced before it answers: suspicions matter most right
// after the leader died. A node repeats its report well within place.ReportKeep while it suspects
// anybody.
func (g *Group) Report(ctx context.Context, r place.Report) error {
	const op rhumb.Op = "raftmeta.Report"
	for {
		l := g.leadership.Load()
		switch l.leader {
		case rhumb.NoNode:
		case g.config.Node:
			g.evidence.addReport(g.rt.Now()-g.start, r)
			return nil
		default:
			response, err := g.forwardToLeader(ctx, l, encodeReport(r))
			if err == nil {
				_, err = decodeResponse(response)
			}
			// The error of a leader that has been replaced says nothing about its successor, which
			// is asked next.
			if l == g.leadership.Load() || ctx.Err() != nil {
				return rhumb.Wrap(op, err)
			}
			continue
		}
		if err := g.waitFor(ctx, op, l.changed); err != nil {
			return err
		}
	}
}

// Survey delivers the measurements of this node to the leader, once. The next survey makes up for one that is
// lost.
func (g *Group) Survey(ctx context.Context, s place.Survey) error {
	const op rhumb.Op = "raftmeta.Survey"
	l := g.leadership.Load()
	switch l.leader {
	case rhumb.NoNode:
		return rhumb.E(op, rhumb.Unavailable, "the metadata group has no leader")
	case g.config.Node:
		g.evidence.addSurvey(g.rt.Now()-g.start, s)
		return nil
	}
	response, err := g.forwardToLeader(ctx, l, encodeSurvey(s))
	if err == nil {
		_, err = decodeResponse(response)
	}
	return rhumb.Wrap(op, err)
}

// PlanBalance returns the moves of copies that the leader would start now to balance a region, or all regions for
// rhumb.LocalRegion. Nothing is moved.
func (g *Group) PlanBalance(ctx context.Context, only rhumb.RegionID) (p place.BalancePlan, err error) {
	const op rhumb.Op = "raftmeta.PlanBalance"
	l := g.leadership.Load()
	switch l.leader {
	case rhumb.NoNode:
		return p, rhumb.E(op, rhumb.Unavailable, "the metadata group has no leader")
	case g.config.Node:
		return g.planBalance(only), nil
	}
	// The surveys are at the leader, so it plans. Builds before this request refuse it as incompatible.
	request, err := cbor.Marshal(only)
	if err != nil {
		return p, rhumb.WrapKind(op, rhumb.Internal, err)
	}
	response, err := g.forwardToLeader(ctx, l, append([]byte{requestBalance}, request...))
	if err != nil {
		return p, rhumb.Wrap(op, err)
	}
	if len(response) > 0 && response[0] == responseBalance {
		return p, rhumb.WrapKind(op, rhumb.Corrupt, cbor.Unmarshal(response[1:], &p))
	}
	// Anything else is the leader's refusal.
	if _, err = decodeResponse(response); err == nil {
		err = rhumb.E(op, rhumb.Corrupt, "the leader's response has no plan")
	}
	return p, rhumb.Wrap(op, err)
}

// nodeIDs converts Raft's ids. The numbers are the same.
func nodeIDs(ids []uint64) []rhumb.NodeID {
	out := make([]rhumb.NodeID, len(ids))
	for i, id := range ids {
		out[i] = rhumb.NodeID(id)
	}
	return out
}
