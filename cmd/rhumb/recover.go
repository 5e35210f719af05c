package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

func (a *app) discardCommand() *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "discard REGION/SLOT --node NODE", Short: "Let a node give up its damaged copy of a range",
		Long: `Let a node drop its quarantined copy of a range and begin an empty one in its place. The empty copy takes the log from the
range's primary as far as the log reaches; beyond that it stays a visible learner that needs a state transfer.
A copy that is not quarantined, or that still counts as in sync, is not dropped. Keep a copy of the node's directory
if the damaged data is to be looked at.`,
		Example: "  rhumb range discard 1/1042 --node n3\n  rhumb range discard frankfurt/1042 --node n3 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				if err := c.DiscardReplica(ctx, id, n, false); err != nil {
					return err
				}
				doc := map[string]any{"range": id.String(), "node": n.String(), "discarded": true}
				return a.print(doc, func(t table.Writer) {
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
func (a *app) withReplica(ctx context.Context, name, node string, do func(context.Context, *client.Client, rhumb.RangeID, rhumb.NodeID) error) error {
	n, err := parseNode(node)
	if err != nil {
		return err
	}
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := parseRange(c, name)
		if err != nil {
			return err
		}
		return do(ctx, c, id, n)
	})
}

// unsafeRecoverCommand groups the ways to go on after a loss.
func (a *app) unsafeRecoverCommand() *cobra.Command {
	return noArgsGroup("unsafe-recover", "Accept losses that nothing can undo", a.connected(a.recoverRangeCommand()), a.recoverMetadataCommand())
}

func (a *app) recoverRangeCommand() *cobra.Command {
	var node string
	var yes bool
	c := &cobra.Command{
		Use: "range REGION/SLOT --node NODE", Short: "Accept what a range has lost, and let it go on from the copies that are left",
		Long: `Accept the loss of what no intact copy of a range holds. It is for ranges whose in-sync copies are all quarantined: such a
range is not served, and "rhumb status" names it. The command shows what is known of each copy, and asks. Then NODE drops its
copy if that is damaged, and becomes primary in a new epoch; all live copies that are not damaged are in sync with it, and
the longest of them is what the range goes on from. What only damaged copies held is lost for good: keep copies of their
directories first.`,
		Example: "  rhumb unsafe-recover range 1/1042 --node n3\n  rhumb unsafe-recover range frankfurt/1042 --node n3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				return a.recoverRange(ctx, c, id, n, yes)
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "the node whose copy the range goes on from")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	must(c.MarkFlagRequired("node"))
	return c
}

func (a *app) recoverRange(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID, yes bool) error {
	const op rhumb.Op = "rhumb.unsafe-recover"
	s, err := c.DescribeRange(ctx, id)
	if err != nil {
		return err
	}
	r := s.Range
	for _, m := range r.InSync {
		if !r.IsQuarantined(m) {
			return rhumb.Ef(op, rhumb.Conflict, "node %s holds a copy of range %s that is in sync and not damaged: start that node, nothing has to be lost", m, id)
		}
	}
	if !r.IsReplica(n) {
		return rhumb.Ef(op, rhumb.NotFound, "node %s holds no copy of range %s; %s do", n, id, strings.Join(nodeNames(r.Replicas), ", "))
	}
	fmt.Fprint(a.err, visibleLines(describeLoss(s, n, c.Status(ctx))))
	if !yes && !a.agrees("Accept this loss?") {
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
	next, err := c.RecoverRange(ctx, id, n, s.Range.Version)
	if err != nil {
		return err
	}
	doc := regionNames(c).rangeDoc(next)
	return a.print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"range", doc.ID})
		t.AppendRow(table.Row{"primary", fmt.Sprintf("%s in epoch %d", doc.Primary, doc.Epoch)})
		t.AppendRow(table.Row{"in sync", strings.Join(doc.InSync, " ")})
	})
}

// describeLoss says what is known of each copy of a range whose loss is about to be accepted.
func describeLoss(s client.RangeStatus, n rhumb.NodeID, nodes []client.NodeStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Range %s, epoch %d: no copy that was in sync (%s) is intact.\n", s.Range.ID, s.Range.Epoch, strings.Join(nodeNames(s.Range.InSync), ", "))
	for _, r := range s.Replicas {
		state := orElse(r.State, "not reached")
		fmt.Fprintf(&b, "  %s: %s, epoch %d, log ends at %d, committed up to %d", r.Node, state, r.Epoch, r.End, r.Commit)
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
	if s.Range.IsQuarantined(n) {
		fmt.Fprintf(&b, "Node %s drops its damaged copy: all that no other live, undamaged copy holds is lost.\n", n)
	} else {
		fmt.Fprintf(&b, "All that no live, undamaged copy holds is lost.\n")
	}
	return b.String()
}

// agrees asks a person, and reports whether the answer is yes. Where nobody answers it is no.
func (a *app) agrees(question string) bool {
	fmt.Fprintf(a.err, "%s [yes/no] ", question)
	line, _ := bufio.NewReader(a.in).ReadString('\n')
	return strings.EqualFold(strings.TrimSpace(line), "yes")
}
