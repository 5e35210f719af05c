package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

func (rc *rangeCommands) discardCommand() *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "discard REGION/SLOT --node NODE", Short: "Let a node give up its damaged copy of a range",
		Long: `Let a node drop its quarantined copy of a range and begin an empty one in its place. The empty copy takes the log from the
range's primary as far as the log reaches; beyond that it stays a visible learner that needs a state transfer.
A copy that is not quarantined, or that still counts as in sync, is not dropped. The tables that held the copy are kept in
"discarded" of the node's directory, at most 1 GiB of all; the oldest goes first.`,
		Example: "  rhumb range discard 1/1042 --node n3\n  rhumb range discard frankfurt/1042 --node n3 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				if err := c.DiscardReplica(ctx, id, n, false); err != nil {
					return err
				}
				doc := map[string]any{"range": id.String(), "node": n.String(), "discarded": true}
				return rc.Print(doc, func(t table.Writer) {
					t.AppendRow(table.Row{"range", id})
					t.AppendRow(table.Row{"node", fmt.Sprintf("%s begins an empty copy; `rhumb range describe %s` shows how it catches up", n, id)})
				})
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "the node with the damaged copy")
	must(c.MarkFlagRequired("node"))
	return c
}

// withReplica parses a range and a node, and calls do with them.
func (rc *rangeCommands) withReplica(ctx context.Context, name, node string, do func(context.Context, *client.Client, rhumb.RangeID, rhumb.NodeID) error) error {
	n, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	return rc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := parseRange(c, name)
		if err != nil {
			return err
		}
		return do(ctx, c, id, n)
	})
}

func (rc *rangeCommands) recoverRangeCommand() *cobra.Command {
	var node string
	var yes bool
	c := &cobra.Command{
		Use: "range REGION/SLOT --node NODE", Short: "Accept what a range has lost, and let it go on from the copies that are left",
		Long: `Accept the loss of what no live, intact copy of a range holds. It is for ranges whose in-sync copies are quarantined, or on nodes
that are gone for good: such a range is not served, and "rhumb status" names it. The command shows what is known of each copy and
of the writes that may be lost, and asks. Then NODE drops its copy if that is damaged, and becomes primary in a new epoch; all live
copies that are not damaged are in sync with it, and the longest of them is what the range goes on from. What only other copies
held is lost for good. Copies of nodes that are gone are given up: should such a node come back, its copy is quarantined. Keep
copies of the directories first. "rhumb range describe" shows what was accepted.`,
		Example: "  rhumb unsafe-recover range 1/1042 --node n3\n  rhumb unsafe-recover range frankfurt/1042 --node n3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				return rc.recoverRange(ctx, c, id, n, yes)
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "the node whose copy the range goes on from")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	must(c.MarkFlagRequired("node"))
	return c
}

func (rc *rangeCommands) recoverRange(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID, yes bool) error {
	const op rhumb.Op = "rhumb.unsafe-recover"
	s, err := c.DescribeRange(ctx, id)
	if err != nil {
		return err
	}
	r := s.Range
	if !r.IsReplica(n) {
		return rhumb.Ef(op, rhumb.NotFound, "node %s holds no copy of range %s; %s do", n, id, strings.Join(nodeNames(r.Replicas), ", "))
	}
	nodes := c.Status(ctx)
	if why := recoverable(r, n, nodes); why != "" {
		return rhumb.Ef(op, rhumb.Conflict, "nothing was changed: %s", why)
	}
	if i := slices.IndexFunc(s.Replicas, func(x client.ReplicaStatus) bool { return x.Node == n }); s.Replicas[i].State == "" {
		return rhumb.Ef(op, rhumb.Unavailable, "nothing was changed: node %s does not say how its copy of range %s stands: %s", n, id, s.Replicas[i].Reason)
	}
	seen := knownLoss(s, n)
	fmt.Fprint(rc.Err, output.EscapeLines(describeLoss(s, seen, nodes)))
	if !yes && !strings.EqualFold(rc.askFor("Accept this loss? [yes/no] "), "yes") {
		return rhumb.E(op, rhumb.ConditionFailed, "nothing was changed: the loss was not accepted; --yes accepts it without a question")
	}
	if r.IsQuarantined(n) {
		if err := c.DiscardReplica(ctx, id, n, true); err != nil {
			return err
		}
		if s, err = c.DescribeRange(ctx, id); err != nil {
			return err
		}
	}
	next, err := c.RecoverRange(ctx, id, s.Range.Version, seen)
	if err != nil {
		return err
	}
	doc := regionNames(c).rangeDoc(next)
	return rc.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"range", doc.ID})
		t.AppendRow(table.Row{"primary", fmt.Sprintf("%s in epoch %d", doc.Primary, doc.Epoch)})
		t.AppendRow(table.Row{"in sync", strings.Join(doc.InSync, " ")})
	})
}

// recoverable says why no loss need be accepted for the copy of node n, or returns "". Metadata has the last word.
func recoverable(r *rhumb.Range, n rhumb.NodeID, nodes []client.NodeStatus) string {
	live := func(id rhumb.NodeID) bool {
		return slices.ContainsFunc(nodes, func(v client.NodeStatus) bool {
			return v.Node.ID == id && v.Err == "" && v.Node.State == rhumb.NodeLive
		})
	}
	if !live(n) {
		return fmt.Sprintf("node %s does not answer; name one that lives", n)
	}
	for _, m := range r.InSync {
		if m != n && live(m) && !r.IsQuarantined(m) && (!r.IsInSync(n) || r.IsQuarantined(n)) {
			return fmt.Sprintf("node %s holds a copy of range %s that is in sync and not damaged: go on from that one, with --node %[1]s, if the range is not served", m, r.ID)
		}
	}
	return ""
}

// knownLoss returns what is known of the copy of node n, and of what others have committed.
func knownLoss(s client.RangeStatus, n rhumb.NodeID) rhumb.Recovery {
	seen := rhumb.Recovery{Node: n}
	for _, r := range s.Replicas {
		seen.Known = max(seen.Known, r.Commit)
		if r.Node == n && !s.Range.IsQuarantined(n) {
			seen.End, seen.EndTime = r.End, r.EndTime
		}
	}
	return seen
}

// describeLoss says what is known of each copy of a range whose loss is about to be accepted, and of the writes that may be
// lost with the others.
func describeLoss(s client.RangeStatus, seen rhumb.Recovery, nodes []client.NodeStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Range %s, epoch %d, in sync: %s.\n", s.Range.ID, s.Range.Epoch, strings.Join(nodeNames(s.Range.InSync), ", "))
	for _, r := range s.Replicas {
		if r.State == "" {
			fmt.Fprintf(&b, "  %s: %s\n", r.Node, cmp.Or(r.Reason, "not reached"))
			continue
		}
		fmt.Fprintf(&b, "  %s: %s, epoch %d, log ends at %d of %s, committed up to %d of %s", r.Node, r.State, r.Epoch, r.End, r.EndTime, r.Commit, r.CommitTime)
		if r.Reason != "" {
			fmt.Fprintf(&b, "; %s", r.Reason)
		}
		b.WriteByte('\n')
	}
	for _, v := range nodes {
		if !slices.Contains(s.Range.Quarantined, v.Node.ID) {
			continue
		}
		for _, store := range v.Stores {
			for _, d := range store.Damages {
				fmt.Fprintf(&b, "  damage on %s: %s:%d: %s\n", v.Node.ID, d.File, d.Offset, d.What)
			}
		}
	}
	switch {
	case s.Range.IsQuarantined(seen.Node):
		fmt.Fprintf(&b, "Node %s drops its damaged copy: all that no other live, undamaged copy holds is lost.\n", seen.Node)
	case seen.Known > seen.End:
		fmt.Fprintf(&b, "The copy of %s ends at %d. A copy knows position %d as committed: unless another live, undamaged copy holds them, %d positions of acknowledged writes are lost for certain, and nobody knows of how many more.\n",
			seen.Node, seen.End, seen.Known, seen.Known-seen.End)
	default:
		fmt.Fprintf(&b, "The copy of %s holds every position that is known as committed (%d). Writes that were acknowledged after %s may be lost: nobody that answers knows of any.\n",
			seen.Node, seen.Known, seen.EndTime)
	}
	return b.String()
}
