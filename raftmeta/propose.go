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

// proposalHeader is the size of the bytes before the command: version, node, number.
const proposalHeader = 1 + 4 + 8

// proposalID identifies a proposal by the node that leads and a number, by which a leader
// recognises its own proposals among the entries that it applies. The numbers of a start begin at
// random, so that entries of an earlier start of the node match no new proposal.
type proposalID struct {
	node   rhumb.NodeID
	number uint64
}

// proposal is a command that waits at the leader for its result. result and err may be read after
// done closes.
type proposal struct {
	command catalog.Command
	start   time.Duration
	done    chan struct{}
	result  catalog.Result
	err     error
	metrics *metrics
	now     func() time.Duration
}

// finish completes the proposal. It must be called exactly once.
func (p *proposal) finish(result catalog.Result, err error) {
	p.result, p.err = result, err
	p.metrics.observeProposal(err, result, p.now()-p.start)
	close(p.done)
}

// encodeProposal returns the data of an entry.
func encodeProposal(id proposalID, cmd catalog.Command) []byte {
	b := make([]byte, 0, proposalHeader+64)
	b = append(b, proposalVersion)
	b = binary.BigEndian.AppendUint32(b, uint32(id.node))
	b = binary.BigEndian.AppendUint64(b, id.number)
	return append(b, catalog.EncodeCommand(cmd)...)
}

// decodeProposal decodes the data of an entry. An error stops the replica that applies the entry.
func decodeProposal(b []byte) (proposalID, catalog.Command, error) {
	const op rhumb.Op = "raftmeta.decodeProposal"
	switch {
	case len(b) < proposalHeader:
		return proposalID{}, nil, rhumb.Ef(op, rhumb.Corrupt, "proposal has %d bytes; the header alone has %d", len(b), proposalHeader)
	// Incompatible, not Corrupt: the caller must stop and be upgraded.
	case b[0] != proposalVersion:
		return proposalID{}, nil, rhumb.Ef(op, rhumb.Incompatible, "proposal has version %d, but this binary reads %d; use a newer binary", b[0], proposalVersion)
	}
	id := proposalID{rhumb.NodeID(binary.BigEndian.Uint32(b[1:])), binary.BigEndian.Uint64(b[5:])}
	cmd, err := catalog.DecodeCommand(b[proposalHeader:])
	return id, cmd, err
}

// Propose proposes a command and returns its result, which may be a refusal (Result.Err). The error
// is for a command that was not decided in time. When Propose returns a result, State on this node
// includes the change, unless ctx ended first. The package comment describes which commands Propose
// repeats.
func (g *Group) Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	// The leader may be an earlier build, which would take the command for damage.
	if err := g.State().Admits(cmd); err != nil {
		return catalog.Result{}, rhumb.Wrap(op, err)
	}
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 10 * time.Millisecond, Multiplier: 2, MaxInterval: 500 * time.Millisecond,
	}
	pause.Reset()
	// sent reports whether an attempt may have been applied. It decides between Unavailable and
	// Unknown in the end.
	sent := false
	for {
		// The leadership is read before the attempt. If it changes during the attempt, waitToRetry
		// returns at once.
		l := g.leadership.Load()
		res, err := g.proposeOnce(ctx, l, cmd)
		if err == nil {
			g.awaitOwn(ctx, res)
			return res, nil
		}
		kind := rhumb.KindOf(err)
		sent = sent || !kind.NotApplied()
		// Other kinds, such as TooLarge and Overloaded, would meet the same refusal again.
		if kind != rhumb.Unavailable && kind != rhumb.Unknown && kind != rhumb.DeadlineExceeded {
			return res, rhumb.Wrap(op, err)
		}
		if !g.waitToRetry(ctx, l, pause.NextBackOff()) {
			return res, g.gaveUp(ctx, op, sent, err)
		}
	}
}

// gaveUp returns the error of a proposal that ran out of time.
func (g *Group) gaveUp(ctx context.Context, op rhumb.Op, sent bool, last error) error {
	kind := rhumb.Unavailable
	if sent {
		kind = rhumb.Unknown
	}
	return &rhumb.Error{Op: op, Kind: kind, Msg: "no metadata leader decided the command in time", Err: errors.Join(last, context.Cause(ctx), g.Err())}
}

// waitToRetry waits before the next attempt, for about d or until there is another leader. It
// returns false if there must be no next attempt.
func (g *Group) waitToRetry(ctx context.Context, l *leadership, d time.Duration) bool {
	// Jitter keeps nodes that lost the same leader from retrying together.
	d = d/2 + time.Duration(g.rt.Rand()%uint64(d))
	timer, cancel := g.rt.WithTimeout(ctx, d)
	defer cancel()
	g.rt.Await(timer.Done(), l.changed, g.done)
	return ctx.Err() == nil && g.Err() == nil
}

// awaitOwn waits until the state of this node includes a result.
func (g *Group) awaitOwn(ctx context.Context, res catalog.Result) {
	ctx, cancel := g.rt.WithTimeout(ctx, g.config.AttemptTimeout)
	defer cancel()
	// The command is decided, whether or not this node has applied it, so an error here is not one
	// of the proposal.
	_ = g.AwaitRevision(ctx, res.Revision)
}

// proposeOnce proposes the command once, here or at the leader.
func (g *Group) proposeOnce(ctx context.Context, l *leadership, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	ctx, cancel := g.rt.WithTimeout(ctx, g.config.AttemptTimeout)
	defer cancel()
	switch l.leader {
	case rhumb.NoNode:
		return catalog.Result{}, rhumb.E(op, rhumb.Unavailable, "the metadata group has no leader at the moment")
	case g.config.Node:
		return g.proposeHere(ctx, cmd)
	}
	request := append([]byte{requestPropose}, catalog.EncodeCommand(cmd)...)
	// The leader would refuse the request as damaged, and its outcome would count as unknown.
	if size := len(request) - 1; size > CommandSizeMax {
		return catalog.Result{}, tooLarge(op, size)
	}
	response, err := g.forwardToLeader(ctx, l, request)
	if err != nil {
		// Unavailable means that the request was certainly not handled. After any other error the
		// leader may have applied the command.
		if rhumb.KindOf(err) == rhumb.Unavailable {
			return catalog.Result{}, err
		}
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, err)
	}
	return decodeResponse(response)
}

// tooLarge returns the error for an encoded command that exceeds CommandSizeMax.
func tooLarge(op rhumb.Op, size int) error {
	return rhumb.Ef(op, rhumb.TooLarge, "metadata command has %d bytes; the limit is %d", size, CommandSizeMax)
}

// forwardToLeader sends a request to a leader. It stops waiting when that leader is replaced,
// because a deposed leader may never answer.
func (g *Group) forwardToLeader(ctx context.Context, l *leadership, request []byte) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// stop ends the process below when the answer is here first.
	stop := make(chan struct{})
	defer close(stop)
	g.rt.Go(func() {
		if g.rt.Await(l.changed, stop, nil) == 0 {
			cancel()
		}
	})
	return g.config.Transport.Forward(ctx, l.leader, g.config.Group, request)
}

// proposeHere proposes at this node, which should be the leader.
func (g *Group) proposeHere(ctx context.Context, cmd catalog.Command) (catalog.Result, error) {
	const op rhumb.Op = "raftmeta.Propose"
	p := &proposal{command: cmd, start: g.rt.Now(), done: make(chan struct{}), metrics: g.metrics, now: g.rt.Now}
	select {
	case g.proposals <- p:
		g.wakeDriver()
	default:
		return catalog.Result{}, rhumb.Ef(op, rhumb.Overloaded, "%d metadata proposals already wait, which is the limit; try again later", PendingMax)
	}
	// Once the proposal is queued, its outcome is unknown until it is done.
	switch g.rt.Await(p.done, ctx.Done(), g.done) {
	case 1:
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, context.Cause(ctx))
	case 2:
		return catalog.Result{}, rhumb.WrapKind(op, rhumb.Unknown, g.failure)
	}
	return p.result, p.err
}

// proposeToRaft completes a proposal and appends it to the log through Raft. Its result follows
// when its entry is applied.
func (d *driver) proposeToRaft(p *proposal) {
	const op rhumb.Op = "raftmeta.Propose"
	switch {
	case !d.isLead:
		text := "its leader is unknown"
		if d.lead != 0 {
			text = rhumb.NodeID(d.lead).String() + " does"
		}
		p.finish(catalog.Result{}, rhumb.Ef(op, rhumb.Unavailable, "%s does not lead the metadata group; %s", d.config.Node, text))
		return
	// The queue of proposals has a bound too, but the driver empties it faster than a majority
	// decides.
	case len(d.pending) >= PendingMax:
		p.finish(catalog.Result{}, rhumb.Ef(op, rhumb.Overloaded, "%d metadata proposals already wait, which is the limit; try again later", PendingMax))
		return
	}
	// A member of an earlier build would stop at the entry and stay stopped until it is upgraded.
	if err := d.state.Admits(p.command); err != nil {
		p.finish(catalog.Result{}, rhumb.Wrap(op, err))
		return
	}
	d.nextID++
	id := proposalID{d.config.Node, d.nextID}
	// The leader fills in placements and heirs, from its newest state. Replicas only check them.
	full := d.evidence.listFull(d.rt.Now() - d.start)
	data := encodeProposal(id, place.Complete(d.state, d.chooseHeir(catalog.DropProofs(p.command)), full...))
	if len(data) > CommandSizeMax {
		p.finish(catalog.Result{}, tooLarge(op, len(data)))
		return
	}
	if err := d.node.Propose(data); err != nil {
		p.finish(catalog.Result{}, rhumb.WrapKind(op, rhumb.Unavailable, err))
		return
	}
	// Nothing is applied before this function returns, so the proposal is found when its entry is.
	d.pending[id] = p
}

// chooseHeir fills in the successor in an Elect without a node, by which the present primary asks
// to be relieved. If nobody can take over, the node stays open and the catalog refuses the command.
func (d *driver) chooseHeir(cmd catalog.Command) catalog.Command {
	c, ok := cmd.(catalog.Elect)
	if !ok || c.Node != rhumb.NoNode {
		return cmd
	}
	// A record at another version has changed since the request. The catalog will refuse the
	// command, so no heir is wasted on it: Heir remembers whom it relieved.
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
	requestSurvey  = 3
	requestBalance = 4
	requestLead    = 5

	responseResult  = 1
	responseRefused = 2
	responseBalance = 3
)

// Handle answers a request that another node's Group forwarded to this node. The transport returns
// the response.
func (g *Group) Handle(ctx context.Context, from rhumb.NodeID, request []byte) ([]byte, error) {
	const op rhumb.Op = "raftmeta.Handle"
	// The extra byte is the kind of the request.
	if len(request) == 0 || len(request) > CommandSizeMax+1 {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "a request from %[2]s has %[1]d bytes, which is out of bounds", len(request), from)
	}
	var res catalog.Result
	var err error
	switch request[0] {
	case requestPropose:
		res, err = g.handlePropose(ctx, from, request[1:])
	case requestReport:
		err = g.handleReport(from, request[1:])
	case requestSurvey:
		err = g.handleSurvey(from, request[1:])
	case requestLead:
		err = g.handleLead(ctx, request[1:])
	case requestBalance:
		plan, planErr := g.handleBalance(request[1:])
		if planErr == nil {
			return plan, nil
		}
		err = planErr
	default:
		err = rhumb.Ef(op, rhumb.Incompatible, "request %d from %s is unknown to this binary; use a newer one", request[0], from)
	}
	return encodeResponse(res, err), nil
}

// handlePropose proposes a command for another node.
func (g *Group) handlePropose(ctx context.Context, from rhumb.NodeID, b []byte) (catalog.Result, error) {
	cmd, err := catalog.DecodeCommand(b)
	if err != nil {
		return catalog.Result{}, err
	}
	// The leader proposes its own commands without this function.
	if err := g.State().MayPropose(from, cmd); err != nil {
		return catalog.Result{}, err
	}
	for _, r := range catalog.Registrations(cmd) {
		if err := g.State().CheckBuild(r); err != nil {
			return catalog.Result{}, err
		}
		if check := g.config.CheckRegistration; check != nil {
			if err := check(r); err != nil {
				return catalog.Result{}, err
			}
		}
	}
	if check := g.config.CheckRevocation; check != nil {
		for _, r := range catalog.Revocations(cmd) {
			if err := check(r); err != nil {
				return catalog.Result{}, err
			}
		}
	}
	// A forwarded proposal is not forwarded again: two nodes that take each other for the leader
	// would pass it on without end.
	return g.proposeHere(ctx, cmd)
}

// handleReport records the report of another node as evidence.
func (g *Group) handleReport(from rhumb.NodeID, b []byte) error {
	var r place.Report
	if err := cbor.Unmarshal(b, &r); err != nil {
		return rhumb.WrapKind("raftmeta.Report", rhumb.Corrupt, err)
	}
	// Evidence counts once per node, so a node must not report in the name of others.
	if r.From != from {
		return rhumb.Ef("raftmeta.Report", rhumb.PermissionDenied, "%s sent a report of %s", from, r.From)
	}
	if len(r.Suspects) > rhumb.NodesMax {
		return rhumb.Ef("raftmeta.Report", rhumb.Corrupt, "report has %d suspects, but there are at most %d nodes", len(r.Suspects), rhumb.NodesMax)
	}
	// The reporter asks again when it knows the leader. Evidence at any other node would be
	// dropped.
	if !g.IsLeader() {
		return rhumb.E("raftmeta.Report", rhumb.Unavailable, "this node does not lead the metadata group")
	}
	g.evidence.addReport(g.rt.Now()-g.start, r)
	return nil
}

// handleSurvey records the survey of another node.
func (g *Group) handleSurvey(from rhumb.NodeID, b []byte) error {
	const op rhumb.Op = "raftmeta.Survey"
	var s place.Survey
	if err := cbor.Unmarshal(b, &s); err != nil {
		return rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	switch {
	case s.From != from:
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s sent a survey of %s", from, s.From)
	case len(s.Ranges) > place.SurveyRangesMax || len(s.Regions) > rhumb.RegionsMax || len(s.Copies) > place.SurveyCopiesMax:
		return rhumb.Ef(op, rhumb.Corrupt, "the survey has %d ranges, %d regions and %d copies, more than the limits", len(s.Ranges), len(s.Regions), len(s.Copies))
	case !g.IsLeader():
		return rhumb.E(op, rhumb.Unavailable, "this node does not lead the metadata group")
	}
	g.evidence.addSurvey(g.rt.Now()-g.start, s)
	return nil
}

// handleBalance plans balance for another node.
func (g *Group) handleBalance(b []byte) ([]byte, error) {
	const op rhumb.Op = "raftmeta.PlanBalance"
	var only rhumb.RegionID
	if err := cbor.Unmarshal(b, &only); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	// Only the leader has surveys. The caller asks again when it knows the new leader.
	if !g.IsLeader() {
		return nil, rhumb.E(op, rhumb.Unavailable, "this node does not lead the metadata group")
	}
	out, err := cbor.Marshal(g.planBalance(only))
	return append([]byte{responseBalance}, out...), rhumb.WrapKind(op, rhumb.Internal, err)
}

// planBalance plans balance at the leader.
func (g *Group) planBalance(only rhumb.RegionID) place.BalancePlan {
	wall := time.Now()
	if g.config.WallClock != nil {
		wall = g.config.WallClock()
	}
	now := g.rt.Now() - g.start
	return place.PlanBalance(now, wall, g.State(), g.evidence.copySurveys(now), only)
}

// encodeSurvey returns the request that carries a survey to the leader.
func encodeSurvey(s place.Survey) []byte {
	b, err := cbor.Marshal(s)
	if err != nil {
		panic(err) // a Survey contains only numbers
	}
	return append([]byte{requestSurvey}, b...)
}

// encodeReport returns the request that carries a report to the leader.
func encodeReport(r place.Report) []byte {
	b, err := cbor.Marshal(r)
	if err != nil {
		panic(err) // a Report contains only numbers
	}
	return append([]byte{requestReport}, b...)
}

// encodeResponse encodes a result, or an error in the form of a refused result.
func encodeResponse(res catalog.Result, err error) []byte {
	if err == nil {
		return append([]byte{responseResult}, catalog.EncodeResult(res)...)
	}
	// Only the kind and the text cross the wire, so the text includes that of the causes.
	failure := &rhumb.Error{Kind: rhumb.KindOf(err), Msg: rhumb.Message(err)}
	return append([]byte{responseRefused}, catalog.EncodeResult(catalog.Result{Failure: failure})...)
}

// decodeResponse decodes the leader's response. The error is for a command that the leader did not
// have decided; a refusal by the catalog is part of the result.
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
	return catalog.Result{}, rhumb.Ef(op, rhumb.Corrupt, "the leader's response has the unknown form %d", b[0])
}
