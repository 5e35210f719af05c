package raftmeta

import (
	"context"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/rhumbdb/rhumb"
)

// leadWait bounds the wait for a voter that was named as the next leader. Raft abandons a transfer silently after an election
// timeout, which is about a second. leadRetry is the time between two requests: a leader that was just elected does not know yet
// which voters are current.
const (
	leadWait  = 5 * time.Second
	leadRetry = 200 * time.Millisecond
)

// Lead makes a voter the leader of the group, and waits until this node knows it as the leader. If it leads already, nothing
// changes. Nothing else changes either: a later failure may make any voter the leader.
//
// Refusals: NotFound for an unknown node; Conflict for a node that does not vote or is not live; Unavailable if there is no leader,
// or if the voter cannot take over within leadWait, for example because its log lacks entries.
func (g *Group) Lead(ctx context.Context, to rhumb.NodeID) error {
	const op rhumb.Op = "raftmeta.Lead"
	waiting, cancel := g.rt.WithTimeout(ctx, leadWait)
	defer cancel()
	for {
		l := g.leadership.Load()
		var err error = rhumb.E(op, rhumb.Unavailable, "the metadata group has no leader")
		switch l.leader {
		case to:
			return nil
		case rhumb.NoNode:
		default:
			err = g.askToYield(waiting, l, to)
		}
		if err != nil && rhumb.KindOf(err) != rhumb.Unavailable && l == g.leadership.Load() {
			return rhumb.Wrap(op, err)
		}
		// A transfer that is under way is not disturbed by another request for it.
		pause, end := g.rt.WithTimeout(waiting, leadRetry)
		_ = g.waitFor(pause, op, l.changed) // the next look decides
		end()
		if waiting.Err() == nil {
			continue
		}
		if err == nil {
			err = rhumb.E(op, rhumb.Unavailable, "Raft gave the transfer up")
		}
		return rhumb.Ef(op, rhumb.Unavailable, "%s did not become the leader within %v: %s; `rhumb voter ls` shows how far it is", to, leadWait, rhumb.Message(err))
	}
}

// askToYield asks the leader to hand the leadership to another voter.
func (g *Group) askToYield(ctx context.Context, l *leadership, to rhumb.NodeID) error {
	if l.leader == g.config.Node {
		return g.yieldTo(ctx, to)
	}
	request, err := cbor.Marshal(to)
	if err != nil {
		return rhumb.WrapKind("raftmeta.Lead", rhumb.Internal, err)
	}
	// Builds before this request refuse it as incompatible, which the caller passes on.
	response, err := g.forwardToLeader(ctx, l, append([]byte{requestLead}, request...))
	if err == nil {
		_, err = decodeResponse(response)
	}
	return err
}

// handleLead is askToYield at the leader.
func (g *Group) handleLead(ctx context.Context, b []byte) error {
	var to rhumb.NodeID
	if err := cbor.Unmarshal(b, &to); err != nil {
		return rhumb.WrapKind("raftmeta.Lead", rhumb.Corrupt, err)
	}
	return g.yieldTo(ctx, to)
}

// yieldTo begins the transfer to another voter. It does not wait for the end: the answer would have to come from a node that leads
// no longer.
func (g *Group) yieldTo(ctx context.Context, to rhumb.NodeID) error {
	const op rhumb.Op = "raftmeta.Lead"
	// The checks are against the state that this leader has applied. A change that is under way may still overtake them; then Raft drops
	// the transfer, and the caller asks again.
	var refusal error
	err := g.askDriver(ctx, op, func(d *driver) {
		n, known := d.state.Node(to)
		switch {
		case !d.isLead:
			refusal = rhumb.E(op, rhumb.Unavailable, "this node does not lead the metadata group")
		case !known || n.Forgotten:
			refusal = rhumb.Ef(op, rhumb.NotFound, "node %s does not exist", to)
		case !n.Voter:
			refusal = rhumb.Ef(op, rhumb.Conflict, "%s does not vote in the metadata group; `rhumb voter move` gives it a vote", to)
		case !n.State.Serves():
			refusal = rhumb.Ef(op, rhumb.Conflict, "%s is %s and cannot lead the metadata group", to, n.State)
		case !d.readyNodes()[uint64(to)]:
			refusal = rhumb.E(op, rhumb.Unavailable, "its copy of the metadata lacks entries, or it is not in contact")
		default:
			d.node.TransferLeader(uint64(to))
		}
	})
	// After an error the driver may still write to refusal.
	if err != nil {
		return err
	}
	return refusal
}
