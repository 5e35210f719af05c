package main

import (
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// The loss when a node is given up for good, for `rhumb node forget` and `rhumb node rm --force`.

// givenUpShown bounds the ranges that the commands name. `rhumb range ls --node` has all.
const givenUpShown = 10

// nodeLoss lists the ranges that a node takes with it when it is given up.
type nodeLoss struct {
	// alone are the ranges without a copy on another node: they are lost. inSync are those with copies on other nodes, none of them in
	// sync and undamaged: they are not served until an operator accepts what they may lack.
	alone, inSync []string
}

// describeNodeLoss returns the loss with a node, by a copy of the metadata.
func describeNodeLoss(id rhumb.NodeID, ranges []*rhumb.Range) (l nodeLoss) {
	for _, r := range ranges {
		// A copy that is not in sync lacks nothing that others have not.
		safe := func(n rhumb.NodeID) bool { return n != id && !r.IsQuarantined(n) }
		switch {
		case !r.IsReplica(id):
		case len(r.Replicas) == 1:
			l.alone = append(l.alone, r.ID.String())
		case r.IsInSync(id) && !slices.ContainsFunc(r.InSync, safe):
			l.inSync = append(l.inSync, r.ID.String())
		}
	}
	return l
}

// nameSome names the first ranges of a list, and counts the others.
func nameSome(all []string) string {
	text := strings.Join(all[:min(len(all), givenUpShown)], " ")
	if more := len(all) - givenUpShown; more > 0 {
		text += " and " + output.Counted(more, "other", "others")
	}
	return text
}

// lines describes the loss for people, with nothing for no loss.
func (l nodeLoss) lines(id rhumb.NodeID) (out []string) {
	if n := len(l.alone); n > 0 {
		out = append(out, output.Counted(n, "range has its only copy", "ranges have their only copy")+" on "+id.String()+", and every record in it is lost: "+nameSome(l.alone))
	}
	if n := len(l.inSync); n > 0 {
		out = append(out, output.Counted(n, "range has its only intact copy that is in sync", "ranges have their only intact copies that are in sync")+" on "+id.String()+
			"; `rhumb unsafe-recover range` accepts what the other copies lack: "+nameSome(l.inSync))
	}
	return out
}

// downNodes returns the nodes that are down and were not removed.
func downNodes(nodes []rhumb.Node) (down []rhumb.NodeID) {
	for _, n := range nodes {
		if n.State == rhumb.NodeFenced && !n.Forgotten {
			down = append(down, n.ID)
		}
	}
	return down
}

// lostTogether counts the ranges whose copies are all on the nodes.
func lostTogether(nodes []rhumb.NodeID, ranges []*rhumb.Range) (count int) {
	for _, r := range ranges {
		if !slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return !slices.Contains(nodes, id) }) {
			count++
		}
	}
	return count
}

// mayGiveUp returns whether a person is to be asked before a node is given up, or why it cannot be given up.
func mayGiveUp(nodes []rhumb.Node, id rhumb.NodeID, yes bool) (ask bool, err error) {
	const op rhumb.Op = "rhumb.node"
	at := slices.IndexFunc(nodes, func(n rhumb.Node) bool { return n.ID == id })
	switch {
	case at < 0:
		return false, rhumb.Ef(op, rhumb.NotFound, "there is no node %s; `rhumb node ls` lists the nodes", id)
	// The command is a repetition, and nothing is lost by it.
	case nodes[at].Forgotten:
		return false, nil
	// Refused before a person thinks about it. With --yes the metadata refuses it, which also looks at the rights of the caller.
	case !yes && nodes[at].State != rhumb.NodeFenced:
		return false, rhumb.Ef(op, rhumb.Conflict, "%s is %s; only a node that is down can be given up: `rhumb node decommission %s` moves its copies away first", id, nodes[at].State, id)
	}
	return true, nil
}

// confirmGivingUp shows the loss with a node and asks whether to continue. The description goes to standard error also with --yes, so that the log of
// a script has it. The source is this client's copy of the metadata; the metadata decides whether the node may be given up.
func (s *session) confirmGivingUp(c *client.Client, id rhumb.NodeID, yes bool) error {
	nodes := c.Nodes()
	if ask, err := mayGiveUp(nodes, id, yes); err != nil || !ask {
		return err
	}
	// The copies of other nodes that are down count too: each question would name nothing, and all nodes together had everything.
	if dead := downNodes(nodes); len(dead) > 1 {
		if n := lostTogether(dead, c.Ranges()); n > 0 {
			s.Notef("%s only on nodes that are down, %s among them; if all of them are lost, `rhumb unsafe-recover region` gives them up together",
				output.Counted(n, "range has its copies", "ranges have their copies"), id)
		}
	}
	for _, line := range describeNodeLoss(id, c.Ranges()).lines(id) {
		s.Notef("%s", line)
	}
	if !yes && !strings.EqualFold(s.askFor("Give "+id.String()+" up for good? It can never return. [yes/no] "), "yes") {
		return rhumb.Ef("rhumb.node", rhumb.ConditionFailed, "nothing was changed: giving %s up was not confirmed; --yes gives it up without asking", id)
	}
	return nil
}

// printRemoved shows a node that can never return, which the metadata calls forgotten.
func (s *session) printRemoved(n rhumb.Node) error {
	doc := map[string]any{"node": n.ID.String(), "name": n.Name, "removed": n.Forgotten}
	return s.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "NAME", "REMOVED"})
		t.AppendRow(table.Row{n.ID, n.Name, n.Forgotten})
	})
}
