package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// This file holds what operators decide about votes in the metadata group. Who votes is decided by package raftmeta/place, and the
// log of the group itself has the truth (SetVoters repeats it for readers). The catalog has the wishes: votes that are pinned to
// nodes, and operations that move one (rhumb.OperationMoveVote).

// UnpinVotes ends the choice of an operator about the votes of nodes, or of all nodes if Nodes is empty. The cluster then chooses
// again. Nodes whose votes are not pinned are skipped; an unknown node is NotFound.
type UnpinVotes struct {
	Nodes []rhumb.NodeID
}

func (UnpinVotes) wireCode() commandCode { return codeUnpinVotes }

// needs: earlier builds would choose voters by themselves when they lead, and undo the choice.
func (UnpinVotes) needs() rhumb.Feature { return rhumb.FeatureVoters }

func (c UnpinVotes) fillWire(w *wireCommand) { w.Nodes = c.Nodes }

// voteDecoders is the part of commandDecoders for the commands of this file.
var voteDecoders = map[commandCode]func(w *wireCommand) Command{
	codeUnpinVotes: func(w *wireCommand) Command { return UnpinVotes{w.Nodes} },
}

// applyTo takes the pins back. The votes themselves stay for now: the metadata leader compares them with its own choice in its next
// round, and changes as few as that needs. All nodes of the command are checked before the first record changes, so that a mistyped
// number unpins nobody.
func (c UnpinVotes) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.UnpinVotes"
	for _, id := range c.Nodes {
		if _, ok := t.Node(id); !ok {
			return refuse(op, rhumb.NotFound, "node %s does not exist; list voters with `rhumb voter ls`", id)
		}
	}
	t.setPins(func(n *rhumb.Node) bool {
		return n.VotePinned && len(c.Nodes) > 0 && !slices.Contains(c.Nodes, n.ID)
	})
	return Result{}
}

// setPins stores for each node whether its vote is pinned. A record that does not change is not stored, so that a repeated command
// moves no revision and wakes no watcher.
func (t *tx) setPins(pinned func(*rhumb.Node) bool) {
	for _, n := range t.nodes.all() {
		if is := pinned(&n.Node); is != n.VotePinned {
			next := *n
			next.VotePinned = is
			t.putNode(&next)
		}
	}
}

// pinVotes pins all votes where they are after a move. All of them, because the automatic choice spreads votes over regions: were
// only the moved vote pinned, the cluster could answer the move by moving another one.
func (t *tx) pinVotes(moved *rhumb.Operation) {
	t.setPins(func(n *rhumb.Node) bool {
		return n.ID != moved.Node && !n.Forgotten && (n.Voter || n.ID == moved.Target)
	})
}

// checkVote refuses to move a vote that is not there, or to a node that cannot take it. How close the copy of the metadata on the
// target is to the leader's cannot be checked here: only the leader knows. The operation waits for it.
func (c StartOperation) checkVote(t *tx) Result {
	const op rhumb.Op = "catalog.StartOperation"
	// Two moves at a time could each wait for the other's node.
	for o := range t.Operations() {
		if o.Kind == rhumb.OperationMoveVote && !o.State.IsOver() {
			return refuse(op, rhumb.Conflict, "operation %s moves the vote of %s to %s and is %s; one vote moves at a time", o.ID, o.Node, o.Target, o.State)
		}
	}
	from, knowsFrom := t.Node(c.Node)
	to, knowsTo := t.Node(c.Target)
	switch {
	case !knowsFrom:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	case !knowsTo:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Target)
	case !from.Voter:
		return refuse(op, rhumb.InvalidArgument, "%s does not vote in the metadata group; `rhumb voter ls` lists the voters", c.Node)
	case to.Voter:
		return refuse(op, rhumb.InvalidArgument, "%s votes in the metadata group already", c.Target)
	// A node that is not live has no copy of the metadata that is close enough. A vote there would make the group weaker.
	case to.State != rhumb.NodeLive || to.Leaving || to.Forgotten:
		return refuse(op, rhumb.Conflict, "%s is %s and cannot take a vote", c.Target, to.State)
	}
	return Result{}
}
