package raftmeta

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/fxamacker/cbor/v2"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// proposalVersion is the first byte of an entry's data, before the proposal's id and the command.
const proposalVersion = 1

// proposalHeader is the size of what stands before the command: version, node, number.
const proposalHeader = 1 + 4 + 8

// proposalID names a proposal by the node that leads and a number that begins at random, so that a leader knows its own
// among the entries it applies.
type proposalID struct {
	node   rhumb.NodeID
	number uint64
}

// proposal is a command that waits at the leader for its result.
type proposal struct {
	command catalog.Command
	start   time.Duration
	done    chan struct{}
	result  catalog.Result
	err     error
	metrics *metrics
	now     func() time.Duration
}

// finish gives the proposal its result, once.
func (p *proposal) finish(result catalog.Result, err error) {
	p.result, p.err = result, err
	p.metrics.observeProposal(err, result, p.now()-p.start)
	close(p.done)
}

func encodeProposal(id proposalID, cmd catalog.Command) []byte {
	b := make([]byte, 0, proposalHeader+64)
	b = append(b, proposalVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(id.node))
	b = binary.BigEndian.AppendUint64(b, id.number)
	return append(b, catalog.EncodeCommand(cmd)...)
}

func decodeProposal(b []byte) (proposalID, catalog.Command, error) {
	const op rhumb.Op = "raftmeta.decodeProposal"
	switch {
	case len(b) < proposalHeader:
		return proposalID{}, nil, rhumb.Ef(op, rhumb.Corrupt, "%d bytes are too few, want %d and a command", len(b), proposalHeader)
	case b[0] != proposalVersion:
		return proposalID{}, nil, rhumb.Ef(op, rhumb.Incompatible, "proposal version %d, this binary knows %d", b[0], proposalVersion)
	}
	id := proposalID{rhumb.NodeID(binary.BigEndian.Uint32(b[1:])), binary.BigEndian.Uint64(b[5:])}
	cmd, err := catalog.DecodeCommand(b[proposalHeader:])
	return id, cmd, err
}

// Propose has a command decided by the group and gives its result, refusals included (Result.Err); the error is for
// commands that were not decided in time. When it returns a result, this node's State includes it, unless ctx ends first.
// See the package comment for what Propose repeats.
func (g *Group) Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 10 * time.Millisecond, Multiplier: 2, MaxInterval: 500 * time.Millisecond,
	}
	pause.Reset()
	sent := false // whether an attempt may have been applied
	for {
		l := g.leadership.Load()
		res, err := g.proposeOnce(ctx, l, cmd)
		if err == nil {
			g.awaitOwn(ctx, res)
			return res, nil
		}
		kind := rhumb.KindOf(err)
		sent = sent || !kind.NotApplied()
		if kind != rhumb.Unavailable && kind != rhumb.Unknown && kind != rhumb.DeadlineExceeded {
			return res, rhumb.Wrap(op, err)
		}
		if !g.waitToRetry(ctx, l, pause.NextBackOff()) {
			return res, g.gaveUp(ctx, op, sent, err)
		}
	}
}

// gaveUp gives the error of a proposal that ran out of time.
func (g *Group) gaveUp(ctx context.Context, op rhumb.Op, sent bool, last error) error {
	kind := rhumb.Unavailable
	if sent {
		kind = rhumb.Unknown
	}
	return &rhumb.Error{Op: op, Kind: kind, Msg: "no leader decided the command in time", Err: errors.Join(last, context.Cause(ctx), g.Err())}
}

// pause waits before the next attempt: for a while, or until another leads. It gives false when there is to be none.
func (g *Group) waitToRetry(ctx context.Context, l *leadership, d time.Duration) bool {
	d = d/2 + time.Duration(g.rt.Rand()%uint64(d)) // so that nodes do not repeat themselves together
	timer, cancel := g.rt.WithTimeout(ctx, d)
	defer cancel()
	g.rt.Await(timer.Done(), l.changed, g.done)
	return ctx.Err() == nil && g.Err() == nil
}

// awaitOwn waits until the state that the proposer's node shows includes its result.
func (g *Group) awaitOwn(ctx context.Context, res catalog.Result) {
	ctx, cancel := g.rt.WithTimeout(ctx, g.config.AttemptTimeout)
	defer cancel()
	_ = g.AwaitRevision(ctx, res.Revision) // the result stands whether or not it is visible here yet
}

// attempt proposes once, here or at the leader.
func (g *Group) proposeOnce(ctx context.Context, l *leadership, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	ctx, cancel := g.rt.WithTimeout(ctx, g.config.AttemptTimeout)
	defer cancel()
	switch l.leader {
	case rhumb.NoNode:
		return catalog.Result{}, rhumb.E(op, rhumb.Unavailable, "no leader is known")
	case g.config.Node:
		return g.proposeHere(ctx, cmd)
	}
	response, err := g.forwardToLeader(ctx, l, append([]byte{requestPropose}, catalog.EncodeCommand(cmd)...))
	if err != nil {
		if rhumb.KindOf(err) == rhumb.Unavailable {
			return catalog.Result{}, err
		}
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, err)
	}
	return decodeResponse(response)
}

// forward sends a request to a leader. A leader that was replaced is not worth waiting for.
func (g *Group) forwardToLeader(ctx context.Context, l *leadership, request []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	g.rt.Go(func() {
		if g.rt.Await(l.changed, stop, nil) == 0 {
			cancel()
		}
	})
	return g.config.Transport.Forward(ctx, l.leader, g.config.Group, request)
}

// proposeHere proposes at this node, which should lead.
func (g *Group) proposeHere(ctx context.Context, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	p := &proposal{command: cmd, start: g.rt.Now(), done: make(chan struct{}), metrics: g.metrics, now: g.rt.Now}
	select {
	case g.proposals <- p:
		g.wakeDriver()
	default:
		return catalog.Result{}, rhumb.Ef(op, rhumb.Overloaded, "%d proposals wait already", PendingMax)
	}
	switch g.rt.Await(p.done, ctx.Done(), g.done) {
	case 1:
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, context.Cause(ctx))
	case 2:
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, g.failure)
	}
	return p.result, p.err
}

// propose gives a proposal to Raft.
func (d *driver) proposeToRaft(p *proposal) {
	const op rhumb.Op = "raftmeta.Propose"
	switch {
	case !d.isLead:
		p.finish(catalog.Result{}, rhumb.Ef(op, rhumb.Unavailable, "%s does not lead; %s does", d.config.Node, rhumb.NodeID(d.lead)))
		return
	case len(d.pending) >= PendingMax:
		p.finish(catalog.Result{}, rhumb.Ef(op, rhumb.Overloaded, "%d proposals wait already", PendingMax))
		return
	}
	d.nextID++
	id := proposalID{d.config.Node, d.nextID}
	data := encodeProposal(id, place.Complete(d.state, d.chooseHeir(p.command)))
	if len(data) > CommandSizeMax {
		p.finish(catalog.Result{}, rhumb.Ef(op, rhumb.TooLarge, "a command of %d bytes, want at most %d", len(data), CommandSizeMax))
		return
	}
	if err := d.node.Propose(data); err != nil {
		p.finish(catalog.Result{}, rhumb.WrapKind(op, rhumb.Unavailable, err))
		return
	}
	d.pending[id] = p
}

// chooseHeir fills in whom an Elect without a node makes primary: the proposer, the present primary, wants to be relieved.
// When nobody can take over, the node stays open and the catalog refuses the command.
func (d *driver) chooseHeir(cmd catalog.Command) catalog.Command {
	c, ok := cmd.(catalog.Elect)
	if !ok || c.Node != rhumb.NoNode {
		return cmd
	}
	if r, known := d.state.Range(c.Range); known && r.Version == c.Version {
		if heir, found := d.evidence.findHeir(d.rt.Now()-d.start, d.state, r); found {
			c.Node = heir
			d.metrics.yields.Inc()
		}
	}
	return c
}

// The first byte of a request that is forwarded to the leader, and of its response.
const (
	requestPropose = 1
	requestReport  = 2

	responseResult  = 1
	responseRefused = 2
)

// Handle answers a request that another node's Group forwarded here. The transport hands the response back to it.
func (g *Group) Handle(ctx context.Context, from rhumb.NodeID, request []byte) ([]byte, error) {
	const op rhumb.Op = "raftmeta.Handle"
	if len(request) == 0 || len(request) > CommandSizeMax+1 {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "a request of %d bytes from %s", len(request), from)
	}
	var res catalog.Result
	var err error
	switch request[0] {
	case requestPropose:
		res, err = g.handlePropose(ctx, request[1:])
	case requestReport:
		err = g.handleReport(request[1:])
	default:
		err = rhumb.Ef(op, rhumb.Incompatible, "unknown request %d from %s", request[0], from)
	}
	return encodeResponse(res, err), nil
}

func (g *Group) handlePropose(ctx context.Context, b []byte) (catalog.Result, error) {
	cmd, err := catalog.DecodeCommand(b)
	if err != nil {
		return catalog.Result{}, err
	}
	return g.proposeHere(ctx, cmd)
}

func (g *Group) handleReport(b []byte) error {
	var r place.Report
	if err := cbor.Unmarshal(b, &r); err != nil {
		return rhumb.WrapKind("raftmeta.Report", rhumb.Corrupt, err)
	}
	if len(r.Suspects) > rhumb.NodesMax {
		return rhumb.Ef("raftmeta.Report", rhumb.Corrupt, "%d suspects, there are at most %d nodes", len(r.Suspects), rhumb.NodesMax)
	}
	if !g.IsLeader() {
		return rhumb.E("raftmeta.Report", rhumb.Unavailable, "this node does not lead")
	}
	g.evidence.addReport(g.rt.Now()-g.start, r)
	return nil
}

func encodeReport(r place.Report) []byte {
	b, err := cbor.Marshal(r)
	if err != nil {
		panic(err) // a Report holds only numbers
	}
	return append([]byte{requestReport}, b...)
}

// encodeResponse gives a result, or an error in the form of a refused result.
func encodeResponse(res catalog.Result, err error) []byte {
	if err == nil {
		return append([]byte{responseResult}, catalog.EncodeResult(res)...)
	}
	failure := &rhumb.Error{Kind: rhumb.KindOf(err), Msg: rhumb.Message(err)}
	return append([]byte{responseRefused}, catalog.EncodeResult(catalog.Result{Failure: failure})...)
}

func decodeResponse(b []byte) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.decodeResponse"
	if len(b) == 0 {
		return catalog.Result{}, rhumb.E(op, rhumb.Corrupt, "the leader's response is empty")
	}
	res, err := catalog.DecodeResult(b[1:])
	switch {
	case err != nil:
		return catalog.Result{}, err
	case b[0] == responseResult:
		return res, nil
	case b[0] == responseRefused && res.Failure != nil:
		return catalog.Result{}, res.Failure
	}
	return catalog.Result{}, rhumb.Ef(op, rhumb.Corrupt, "a response of the unknown form %d", b[0])
}
