package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/client"
)

// voterDoc is a node in `rhumb voter ls`.
type voterDoc struct {
	Node string `json:"node"`
	// Name is empty on a cluster without certificates.
	Name   string `json:"name,omitempty"`
	Region string `json:"region"`
	Zone   string `json:"zone"`
	State  string `json:"state"`
	// Voter is false for nodes that only `--all` lists. Leader leads the metadata group.
	Voter  bool `json:"voter"`
	Leader bool `json:"leader"`
	// Pinned is set if an operator chose the node, also while it cannot vote.
	Pinned  bool `json:"pinned"`
	Witness bool `json:"witness"`
	// Meta is the part of the node in the group in a word: leader, voter or learner.
	Meta string `json:"meta"`
	// Why is the reason for the vote, in a few words.
	Why string `json:"why,omitempty"`
	// Term, LastIndex and Applied are the position of the replica: the term of Raft, the last entry of its log, and the last one that
	// it has applied. Behind is how many entries of the leader its log lacks, nil if the leader or the node did not answer.
	Term      uint64  `json:"term"`
	LastIndex uint64  `json:"last_index"`
	Applied   uint64  `json:"applied"`
	Behind    *uint64 `json:"behind,omitempty"`
	// Error says why the node did not answer, and ErrorKind is its kind.
	Error     string `json:"error,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
}

// voterCommand returns the group `rhumb voter`.
func (oc *operationCommands) voterCommand() *cobra.Command {
	var all bool
	ls := &cobra.Command{
		Use: "ls", Short: "List the voters of the metadata group, and why they vote", Args: cobra.NoArgs,
		Long: `List the nodes that vote in the metadata group, with the leader, and for each why it votes and how far its log is. The group
elects primaries and records every change of the fleet; it works while most of its voters are alive. All other nodes have
a copy of the metadata without a vote.`,
		Example: "  rhumb voter ls\n  rhumb voter ls --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error { return oc.listVoters(ctx, c, all) })
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "the nodes without a vote too")
	move := &cobra.Command{
		Use: "move FROM TO", Short: "Move a vote in the metadata group from one node to another",
		Long: `Move the vote of a node to a node without one. The copy of the metadata on the new voter catches up first, and then one change
promotes it and demotes the other: the group never has fewer voters than before. A leader that loses its vote hands the
leadership over first. One vote moves at a time, as an operation that goes on if this command, the node that it asked or the
metadata leader dies.

Afterwards all votes are pinned where they are, so that the cluster does not move another one in return. While a pinned node
is dead or being removed, another node votes in its place. rhumb voter unpin leaves the choice to the cluster again.
` + connect.NodeHelp,
		Example: "  rhumb voter move n2 n7\n  rhumb voter move n2 n7 --no-wait",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			// The metadata checks that FROM votes and TO does not, in the same step in which it records the operation.
			return oc.startBetween(cmd.Context(), args, rhumb.OperationMoveVote)
		},
	}
	unpin := &cobra.Command{
		Use: "unpin [NODE...]", Short: "Let the cluster choose its voters again",
		Long: `End the choice of an operator about the votes of some nodes, or of all. The cluster then spreads the votes over regions and
zones as before, and moves as few of them as that allows.
` + connect.NodeHelp,
		Example: "  rhumb voter unpin\n  rhumb voter unpin n7",
		RunE: func(cmd *cobra.Command, args []string) error {
			// Without arguments the request names no node, which means all.
			named, err := connect.ParseNodes(args...)
			if err != nil {
				return err
			}
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				nodes, err := connect.FindNodes(named, c.Nodes())
				if err != nil {
					return err
				}
				return oc.unpinVotes(ctx, c, nodes)
			})
		},
	}
	return commandGroup("voter", "List and move the votes of the metadata group", oc.connected(ls), oc.addNoWait(move), oc.connected(unpin), oc.connected(oc.leadCommand()))
}

// leadCommand is `rhumb voter lead`. It is no operation: the transfer takes less than a second or does not happen, so there is nothing to
// follow, to pause or to cancel.
func (oc *operationCommands) leadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "lead NODE", Short: "Make a voter the leader of the metadata group",
		Long: `Make a voter the leader of the metadata group, and wait until it leads. Every change of the fleet and every failover takes a
round trip from the leader to a majority of the voters, so it should be near to them. Nothing is pinned: if the leader fails,
any voter may lead, and a witness that is far from the others hands the leadership on by itself.
` + connect.NodeHelp,
		Example: "  rhumb voter lead n7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			named, err := connect.ParseNode(args[0])
			if err != nil {
				return err
			}
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := named.Find(c.Nodes())
				if err != nil {
					return err
				}
				// It returns when the node that was asked knows the new leader. Others may need a moment longer.
				if err := c.LeadMetadata(ctx, n); err != nil {
					return err
				}
				return oc.Print(map[string]string{"leader": n.String()}, func(t table.Writer) {
					t.AppendRow(table.Row{"leader", n})
				})
			})
		},
	}
}

// listVoters prints the voters, or all nodes.
func (oc *operationCommands) listVoters(ctx context.Context, c *client.Client, all bool) error {
	// Each node is asked for the position of its own log. One that does not answer is in the list all the same: it has its vote.
	statuses := c.Status(ctx)
	if err := deniedStatus(statuses); err != nil {
		return err
	}
	holdings, err := c.Holdings(ctx)
	if err != nil {
		oc.Notef("why the nodes vote is not known: %s", rhumb.Message(err))
	}
	docs := describeVoters(regionNames(c), statuses, holdings, all)
	return oc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "REGION", "ZONE", "STATE", "META", "TERM", "LAST INDEX", "APPLIED", "BEHIND", "WHY"})
		for _, d := range docs {
			behind := ""
			if d.Behind != nil {
				behind = fmt.Sprint(*d.Behind)
			}
			t.AppendRow(table.Row{d.Node, d.Region, d.Zone, d.State, d.Meta, d.Term, d.LastIndex, d.Applied, behind, d.reason()})
		}
	})
}

// describeVoters returns the documents of the voters, or of all nodes that were not removed.
func describeVoters(n names, statuses []client.NodeStatus, holdings []client.NodeHoldings, all bool) []voterDoc {
	why := make(map[rhumb.NodeID]string)
	for _, h := range holdings {
		why[h.Node] = h.VoteWhy
	}
	// The leader's log is the longest that counts. Nodes answer at slightly different times, so a follower may seem to be ahead.
	var last uint64
	for _, s := range statuses {
		if s.MetadataLeader == s.Node.ID && s.MetadataLeader != 0 && s.Metadata != nil {
			last = s.Metadata.LastIndex
		}
	}
	// A pinned node without a vote is in the list too: it shows that an operator's choice waits.
	docs := []voterDoc{}
	for _, s := range statuses {
		if s.Node.Forgotten || !s.Node.Voter && !s.Node.VotePinned && !all {
			continue
		}
		d := voterDoc{
			Node: s.Node.ID.String(), Name: s.Node.Name, Region: n.nameOf(s.Node.Region), Zone: s.Node.Zone, State: s.Node.State.String(),
			Voter: s.Node.Voter, Leader: s.MetadataLeader == s.Node.ID && s.MetadataLeader != 0, Pinned: s.Node.VotePinned, Witness: s.Node.Witness,
			Why: why[s.Node.ID], Error: s.Err, ErrorKind: errorKind(s),
		}
		d.Meta = d.describeMeta()
		if m := s.Metadata; m != nil {
			d.Term, d.LastIndex, d.Applied = m.Term, m.LastIndex, m.Applied
			if last > 0 && m.LastIndex > 0 {
				behind := last - min(last, m.LastIndex)
				d.Behind = &behind
			}
		}
		docs = append(docs, d)
	}
	return docs
}

// describeMeta returns the part of the node in the group.
func (d *voterDoc) describeMeta() string {
	switch {
	case d.Leader:
		return "leader"
	case d.Voter:
		return "voter"
	}
	return "learner"
}

// reason returns why the node votes or does not answer, for people.
func (d *voterDoc) reason() string {
	if !d.Voter && d.Pinned {
		return "pinned by an operator, and votes again when it can"
	}
	return strings.Trim(d.Why+"; "+d.Error, "; ")
}

// unpinVotes ends the choice of an operator.
func (oc *operationCommands) unpinVotes(ctx context.Context, c *client.Client, nodes []rhumb.NodeID) error {
	unpinned, err := c.UnpinVotes(ctx, nodes...)
	if err != nil {
		return err
	}
	// An empty list says that no vote was pinned, which is not an error: tools may repeat the command.
	doc := struct {
		Unpinned []string `json:"unpinned"`
	}{nodeNames(unpinned)}
	return oc.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"UNPINNED"})
		for _, id := range doc.Unpinned {
			t.AppendRow(table.Row{id})
		}
	})
}
