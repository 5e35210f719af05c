package raftmeta

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
	"github.com/rhumbdb/rhumb/sched"
)

// Group is this node's replica of a metadata group.
type Group struct {
	config  Config
	rt      sched.Runtime
	metrics *metrics
	start   time.Duration

	// view is the newest applied state, and leadership the newest known leader.
	view       atomic.Pointer[view]
	leadership atomic.Pointer[leadership]

	inbox     chan inbound
	proposals chan *proposal
	reads     chan *read
	asks      chan func(*driver)
	// cuts brings back an encoded state to cut the log behind. due is true when a tick is to be made.
	cuts chan *raftpb.Snapshot
	due  atomic.Bool
	// wake has a token when one of the above has something for the driver.
	wake chan struct{}

	contacts contacts
	parts    assembler
	evidence evidence
	watches  watches

	cancel  context.CancelFunc
	done    chan struct{}
	running []<-chan struct{} // of each process, closed when it has ended

	failOnce sync.Once
	failure  error // set before done closes
}

// view is a state together with the channel that closes when a newer one is there.
type view struct {
	state *catalog.State
	newer chan struct{}
}

// leadership says who leads, and who did last before; changed closes when another does.
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
	// Outgoing are the voters that a change of membership replaces; while there are any, both sets must agree.
	Outgoing []rhumb.NodeID `json:"outgoing,omitempty"`
	// Learners have a copy and no vote.
	Learners []rhumb.NodeID `json:"learners"`
	// Silent says that the replica takes no part in votes and acknowledgements yet, since it has not heard what it may have
	// promised before it started. Short says that it lacks something that it had made durable, and Floor, unless 0, is the
	// index that its log must reach before it leads.
	Silent bool   `json:"silent,omitempty"`
	Short  bool   `json:"short,omitempty"`
	Floor  uint64 `json:"floor,omitempty"`
	// Waits are the voters that have not answered a silent replica yet.
	Waits []rhumb.NodeID `json:"waits,omitempty"`
	// Readmits are, at the leader, the members that lost metadata and are taken in anew.
	Readmits []rhumb.NodeID `json:"readmits,omitempty"`
	// Recovered is the last recovery by force that made this replica the only voter, nil if there was none.
	Recovered *Recovery `json:"recovered,omitempty"`
	// Match is, at the leader, the index up to which each node's log is known to agree.
	Match map[rhumb.NodeID]uint64 `json:"match,omitempty"`
}

// Open starts the replica from what its KV holds; an empty KV is that of a node which has not heard from the leader yet.
// Close stops it.
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

// signal tells the driver that something waits for it.
func (g *Group) wakeDriver() {
	select {
	case g.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Close stops the replica and waits until it has. Calls that wait fail with kind Unavailable.
func (g *Group) Close() error {
	g.stopWith(rhumb.E("raftmeta.Group", rhumb.Unavailable, "the node is stopping"))
	for _, ended := range g.running {
		g.rt.Await(ended, nil, nil)
	}
	return nil
}

// fail stops the replica for a reason.
func (g *Group) stopWith(err error) {
	g.failOnce.Do(func() {
		g.failure = err
		close(g.done)
		g.cancel()
		g.watches.closeAll(err)
	})
}

// Done closes when the replica stops: by Close, because its storage fails, or because it met a command that this binary
// does not know. Err then gives the reason.
func (g *Group) Done() <-chan struct{} { return g.done }

// Err gives the reason why the replica stopped, or nil while it runs.
func (g *Group) Err() error {
	select {
	case <-g.done:
		return g.failure
	default:
		return nil
	}
}

// State gives the newest state that this replica has applied. It may lag behind the leader; Linearize waits.
func (g *Group) State() *catalog.State { return g.view.Load().state }

// Leader gives the leader that this replica knows, or NoNode, and its term.
func (g *Group) Leader() (rhumb.NodeID, uint64) {
	l := g.leadership.Load()
	return l.leader, l.term
}

// IsLeader reports whether this node believes to lead.
func (g *Group) IsLeader() bool { return g.leadership.Load().leader == g.config.Node }

// AwaitRevision waits until this replica has applied a revision.
func (g *Group) AwaitRevision(ctx context.Context, revision uint64) error {
	const op rhumb.Op = "raftmeta.AwaitRevision"
	for {
		v := g.view.Load()
		if v.state.Revision() >= revision {
			return nil
		}
		if err := g.waitFor(ctx, op, v.newer); err != nil {
			return err
		}
	}
}

// wait waits for a channel, the end of ctx or the end of the replica.
func (g *Group) waitFor(ctx context.Context, op rhumb.Op, c <-chan struct{}) error {
	switch g.rt.Await(c, ctx.Done(), g.done) {
	case 1:
		return rhumb.WrapKind(op, rhumb.Unavailable, context.Cause(ctx))
	case 2:
		return rhumb.Wrap(op, g.failure)
	}
	return nil
}

// ask runs f in the driver's process.
func (g *Group) askDriver(ctx context.Context, op rhumb.Op, f func(*driver)) error {
	answered := make(chan struct{})
	select {
	case g.asks <- func(d *driver) { defer close(answered); f(d) }:
		g.wakeDriver()
	default:
		return rhumb.Ef(op, rhumb.Overloaded, "%d questions wait already", asksMax)
	}
	return g.waitFor(ctx, op, answered)
}

// Status describes the replica.
func (g *Group) Status(ctx context.Context) (s Status, err error) {
	err = g.askDriver(ctx, "raftmeta.Status", func(d *driver) { s = d.replicaStatus() })
	return s, err
}

// StepAside makes the leader hand over to the voter that is furthest along, if there is another. A node that drains calls
// it so that nobody has to notice its absence first.
func (g *Group) StepAside(ctx context.Context) error {
	const op rhumb.Op = "raftmeta.StepAside"
	for g.IsLeader() {
		l := g.leadership.Load()
		heir := rhumb.NoNode
		if err := g.askDriver(ctx, op, func(d *driver) { heir = d.transferLead() }); err != nil {
			return err
		}
		if heir == rhumb.NoNode {
			return nil
		}
		if err := g.waitFor(ctx, op, l.changed); err != nil {
			return err
		}
	}
	return nil
}

// Report takes whom this or another node suspects to the leader. Without one it waits for a leader, and a leader that is
// replaced before it answers is not waited for: suspicions are worth most right after the leader died. A node repeats its
// report well within place.ReportKeep while it suspects anybody.
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

// nodeIDs turns Raft's ids into ours; they are the same numbers.
func nodeIDs(ids []uint64) []rhumb.NodeID {
	out := make([]rhumb.NodeID, len(ids))
	for i, id := range ids {
		out[i] = rhumb.NodeID(id)
	}
	return out
}
