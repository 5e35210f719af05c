package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
)

// discardCommand returns `rhumb range discard`.
func (rc *rangeCommands) discardCommand() *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "discard REGION/SLOT --node NODE", Short: "Make a node discard its damaged copy of a range",
		Long: `Make a node discard its quarantined copy of a range and begin an empty one in its place. The empty copy fetches the log
from the primary of the range as far back as the log reaches; if that is not enough, it copies the range by itself, and
rhumb range describe shows how far it is. A copy that is not quarantined, or that is still in sync, is not discarded. The files that held the copy are kept
in the folder "discarded" of the node's directory, up to 1 GiB; the oldest are removed first.
` + connect.NodeHelp,
		Example: "  rhumb range discard 1/1042 --node n3\n  rhumb range discard frankfurt/1042 --node n3 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				// false: a copy that counts as in sync is refused. Its loss is accepted only by recoverRange.
				if err := c.DiscardReplica(ctx, id, n, false); err != nil {
					return err
				}
				doc := map[string]any{"range": id.String(), "node": n.String(), "discarded": true}
				return rc.Print(doc, func(t table.Writer) {
					t.AppendRow(table.Row{"range", id})
					t.AppendRow(table.Row{"node", fmt.Sprintf("%s begins an empty copy; `rhumb range describe %s` shows its progress", n, id)})
				})
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "node with the damaged copy")
	must(c.MarkFlagRequired("node"))
	return c
}

// withReplica parses a range and a node and calls do with them.
func (rc *rangeCommands) withReplica(ctx context.Context, name, node string, do func(context.Context, *client.Client, rhumb.RangeID, rhumb.NodeID) error) error {
	arg, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	return rc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		// Names of regions and nodes can be resolved only with a connection.
		id, err := parseRange(c, name)
		if err != nil {
			return err
		}
		n, err := arg.Find(c.Nodes())
		if err != nil {
			return err
		}
		return do(ctx, c, id, n)
	})
}

// recoverRangeCommand returns `rhumb unsafe-recover range`.
func (rc *rangeCommands) recoverRangeCommand() *cobra.Command {
	var node string
	var yes bool
	c := &cobra.Command{
		Use: "range REGION/SLOT --node NODE", Short: "Accept what a range has lost, and let it continue from the copies that are left",
		Long: `Accept the loss of all writes that no live, intact copy of a range holds. The command is for ranges whose in-sync copies are
quarantined or on nodes that are gone for good: such a range is not served, and "rhumb status" names it. Copy the directories
of the nodes first.

The command shows what is known about each copy and about the writes that may be lost, and asks for confirmation. Then NODE
discards its copy if it is damaged, and becomes primary in a new epoch. All live, undamaged copies are in sync with it, and
the range continues from the longest of them. What only other copies held is lost for good. Copies on nodes that are gone
are given up: if such a node returns, its copy is quarantined. "rhumb range describe" shows what was accepted.
` + connect.NodeHelp,
		Example: "  rhumb unsafe-recover range 1/1042 --node n3\n  rhumb unsafe-recover range frankfurt/1042 --node n3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.withReplica(cmd.Context(), args[0], node, func(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) error {
				return rc.recoverRange(ctx, c, id, n, yes)
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "node that becomes primary")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	must(c.MarkFlagRequired("node"))
	return c
}

// recoverRange describes the loss, asks for confirmation and makes node n primary. The request carries
// the version of the record and the described state: the metadata rejects the request if the record
// has changed, and records the state.
func (rc *rangeCommands) recoverRange(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID, yes bool) error {
	const op rhumb.Op = "rhumb.unsafe-recover"
	s, err := c.DescribeRange(ctx, id)
	if err != nil {
		return err
	}
	r := s.Range
	if !r.IsReplica(n) {
		return rhumb.Ef(op, rhumb.NotFound, "node %s holds no copy of range %s; copies are on %s", n, id, strings.Join(nodeNames(r.Replicas), ", "))
	}
	nodes := c.Status(ctx)
	if why := whyNotRecover(r, n, nodes); why != "" {
		return rhumb.Ef(op, rhumb.Conflict, "nothing was changed: %s", why)
	}
	copied := s.Replicas[slices.IndexFunc(s.Replicas, func(x client.ReplicaStatus) bool { return x.Node == n })]
	// The metadata knows more than the answers of the nodes show, and would refuse the loss after somebody has accepted it.
	if copied.RecoverRefused != "" {
		return rhumb.Ef(op, rhumb.Conflict, "nothing was changed: %s", copied.RecoverRefused)
	}
	// Without a report of this copy, the operator would accept a loss that nobody has measured.
	if copied.State == "" {
		return rhumb.Ef(op, rhumb.Unavailable, "nothing was changed: node %s does not report the state of its copy of range %s: %s", n, id, copied.Reason)
	}
	// The description goes to standard error also with --yes, so that the log of a script has it.
	seen := knownLoss(s, n)
	fmt.Fprint(rc.Err, output.EscapeLines(describeLoss(s, seen, nodes)))
	if !yes && !strings.EqualFold(rc.askFor("Accept this loss? [yes/no] "), "yes") {
		return rhumb.E(op, rhumb.ConditionFailed, "nothing was changed: the loss was not accepted; --yes accepts it without asking")
	}
	// A damaged copy cannot become primary, so its node starts an empty one, which fills from the
	// longest of the others. That changes the record, whose version the recovery has to name.
	if r.IsQuarantined(n) {
		if err := c.DiscardReplica(ctx, id, n, true); err != nil {
			return err
		}
		if s, err = awaitReadmitted(ctx, c, id, n); err != nil {
			return err
		}
		if !slices.Equal(s.Range.InSync, r.InSync) || s.Range.Primary != r.Primary {
			return rhumb.Ef(op, rhumb.Conflict, "the damaged copy on %s was discarded, and the range has changed since its loss was described; run the command again", n)
		}
	}
	// The version makes the metadata reject the request if the record has changed since it was shown.
	next, err := c.RecoverRange(ctx, id, s.Range.Version, seen)
	if err != nil {
		return err
	}
	doc := regionNames(c).describeRange(next)
	return rc.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"range", doc.ID})
		t.AppendRow(table.Row{"primary", fmt.Sprintf("%s in epoch %d", doc.Primary, doc.Epoch)})
		t.AppendRow(table.Row{"in sync", strings.Join(doc.InSync, " ")})
	})
}

// readmitWait bounds the wait for the record of a range after a damaged copy was discarded, and readmitPoll is how often it is read.
const (
	readmitWait = 10 * time.Second
	readmitPoll = 100 * time.Millisecond
)

// awaitReadmitted waits until the record of a range shows that the copy on a node is not quarantined any more, and returns the range. The node asks for
// that after it has discarded the copy, which changes the version. A copy that is in sync stays quarantined: it may not be empty.
func awaitReadmitted(ctx context.Context, c *client.Client, id rhumb.RangeID, n rhumb.NodeID) (client.RangeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, readmitWait)
	defer cancel()
	for {
		s, err := c.DescribeRange(ctx, id)
		if err != nil || s.Range.IsInSync(n) || !s.Range.IsQuarantined(n) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, rhumb.Ef("rhumb.unsafe-recover", rhumb.Unavailable, "the damaged copy on %s was discarded, and the metadata calls it damaged still; run the command again", n)
		case <-time.After(readmitPoll):
		}
	}
}

// whyNotRecover returns why no loss has to be accepted for the copy on node n, or "". It spares the
// operator a question that the metadata would answer with a refusal; the metadata decides.
func whyNotRecover(r *rhumb.Range, n rhumb.NodeID, nodes []client.NodeStatus) string {
	// A node counts as live only if it answered this command: the metadata may not have noticed a failure yet.
	live := func(id rhumb.NodeID) bool {
		return slices.ContainsFunc(nodes, func(v client.NodeStatus) bool {
			return v.Node.ID == id && v.Err == "" && v.Node.State.Serves()
		})
	}
	if !live(n) {
		return fmt.Sprintf("node %s does not answer; name a node that does", n)
	}
	for _, m := range r.InSync {
		// A copy that is in sync and intact has every acknowledged write, so nothing has to be lost.
		if m != n && live(m) && !r.IsQuarantined(m) && (!r.IsInSync(n) || r.IsQuarantined(n)) {
			return fmt.Sprintf("node %s holds a copy of range %s that is in sync and not damaged; if the range is not served, continue from that copy with --node %[1]s", m, r.ID)
		}
	}
	return ""
}

// knownLoss returns the end of the copy on node n, and the highest position that any copy knows as
// committed.
func knownLoss(s client.RangeStatus, n rhumb.NodeID) rhumb.Recovery {
	seen := rhumb.Recovery{Node: n}
	for _, r := range s.Replicas {
		// A position counts as committed if any copy knows it, even one that cannot be used.
		seen.Known = max(seen.Known, r.Commit)
		if r.Node == n && !s.Range.IsQuarantined(n) {
			seen.End, seen.EndTime = r.End, r.EndTime
		}
	}
	return seen
}

// describeLoss describes each copy of a range, the damage, and the writes that may be lost, for the
// operator who has to accept it.
func describeLoss(s client.RangeStatus, seen rhumb.Recovery, nodes []client.NodeStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Range %s, epoch %d, in sync: %s.\n", s.Range.ID, s.Range.Epoch, strings.Join(nodeNames(s.Range.InSync), ", "))
	// A copy whose node did not answer is listed as well, because its writes are those that may be lost.
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
	// The damage explains why a copy was quarantined.
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
		fmt.Fprintf(&b, "Node %s discards its damaged copy: everything that no other live, undamaged copy holds is lost.\n", seen.Node)
	// The end of this copy is a lower bound for what survives: the new primary continues from the
	// longest live copy, whose end may have moved since.
	case seen.Known > seen.End:
		fmt.Fprintf(&b, "The copy on %s ends at %d, but position %d is known to be committed: unless another live, undamaged copy holds them, %d positions of acknowledged writes are certainly lost, and possibly more.\n",
			seen.Node, seen.End, seen.Known, seen.Known-seen.End)
	default:
		fmt.Fprintf(&b, "The copy on %s holds every position that is known to be committed (%d). Writes that were acknowledged after %s may be lost, but no node that answers knows of any.\n",
			seen.Node, seen.Known, seen.EndTime)
	}
	return b.String()
}
