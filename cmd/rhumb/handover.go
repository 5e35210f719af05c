package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// Commands that change who is primary without moving data: `rhumb range handover` and `rhumb node failback`.

// rangePoll is how often a waiting command looks at its copy of the metadata, which a watch keeps current.
const rangePoll = 5 * time.Millisecond

// handoverWait bounds the wait for a handover. The cluster cancels one that nobody carries out, and the news of that takes a moment. It passes only if
// this client hears nothing of the metadata meanwhile.
const handoverWait = place.HandoverWithin + 5*time.Second

// handoverDoc is the result of `range handover`.
type handoverDoc struct {
	Range string `json:"range"`
	From  string `json:"from"`
	To    string `json:"to"`
	Epoch uint64 `json:"epoch"`
	// Ms is the time from the request until the metadata showed the new primary. Writes pause for a part of it only.
	Ms float64 `json:"ms"`
}

// handoverCommand is `rhumb range handover`.
func (rc *rangeCommands) handoverCommand() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "handover REGION/SLOT --to NODE", Short: "Make another in-sync copy the primary of a range",
		Long: `Hand a range over from its primary to another node whose copy is in sync. No write is refused: writes wait for about one round
trip between the two nodes, and one sync of the disk. The node also becomes the preferred primary of the range, so that fail-back leaves
the range there. If the number of preferred primaries of the nodes then differs by more than one, another range may move in return.

The command waits until the metadata shows the new primary. A handover that nobody carries out within 10 s is cancelled, and the
range stays where it is. If the node is the primary already, it only becomes the preferred one.
` + connect.NodeHelp,
		Example: "  rhumb range handover 1/1042 --to n3\n  rhumb range handover frankfurt/1042 --to frankfurt-3 -o json",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return rc.handOver(cmd.Context(), args[0], to) },
	}
	c.Flags().StringVar(&to, "to", "", "the node that takes over")
	must(c.MarkFlagRequired("to"))
	return rc.connected(c)
}

// handOver asks for the handover and waits until it is over. A failed handover is reported and not repeated: a repetition would
// stop the writes of the range again, and the planner repeats a fail-back itself.
func (rc *rangeCommands) handOver(ctx context.Context, name, node string) error {
	const op rhumb.Op = "rhumb.handover"
	arg, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	return rc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := parseRange(c, name)
		if err != nil {
			return err
		}
		to, err := arg.Find(c.Nodes())
		if err != nil {
			return err
		}
		// The request returns when the handover is prepared. The nodes carry it out without a command, whether or not
		// this command still runs.
		begin := time.Now()
		before, err := c.HandOverRange(ctx, id, to)
		if err != nil {
			return err
		}
		if before.Primary == to && before.Prepared == nil {
			fmt.Fprintf(rc.Err, "%s is the primary of range %s already: no handover was needed\n", to, id)
			return rc.printHandover(handoverDoc{Range: id.String(), From: to.String(), To: to.String(), Epoch: uint64(before.Epoch)})
		}
		limited, cancel := context.WithTimeout(ctx, handoverWait)
		defer cancel()
		// The copy of the metadata that this client has may be older, and show an earlier term of the node.
		after, err := awaitRange(limited, c, id, func(r *rhumb.Range) bool { return r.Version >= before.Version && r.Prepared == nil })
		if err != nil {
			return rhumb.Ef(op, rhumb.Unavailable, "range %s was not handed over to %s yet; a handover that takes too long is cancelled, and `rhumb range describe %s` shows who is primary", id, to, id)
		}
		if after.Primary != to {
			return rhumb.Ef(op, rhumb.Unavailable, "range %s was not handed over to %s: the handover was cancelled, or another node was elected; its primary is %s", id, to, after.Primary)
		}
		// The time includes the round trips of the metadata, before and after the pause of writes.
		doc := handoverDoc{Range: id.String(), From: nodeName(before.Primary), To: to.String(), Epoch: uint64(after.Epoch), Ms: float64(time.Since(begin).Microseconds()) / 1000}
		return rc.printHandover(doc)
	})
}

// printHandover prints the result of a handover.
func (rc *rangeCommands) printHandover(doc handoverDoc) error {
	return rc.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"RANGE", "FROM", "TO", "EPOCH", "MS"})
		t.AppendRow(table.Row{doc.Range, doc.From, doc.To, doc.Epoch, doc.Ms})
	})
}

// awaitRange waits until f holds for a range, and returns its record. It polls the client's own copy of the metadata, which costs
// no request.
func awaitRange(ctx context.Context, c *client.Client, id rhumb.RangeID, f func(*rhumb.Range) bool) (*rhumb.Range, error) {
	for {
		for _, r := range c.Ranges() {
			if r.ID == id && f(r) {
				return r, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(rangePoll):
		}
	}
}

// failbackDoc is the result of `node failback`.
type failbackDoc struct {
	Node string `json:"node"`
	// Returning counts the ranges of the node whose copies were created elsewhere while it was dead: they are being copied to it.
	Returning int `json:"returning"`
	// Moved counts the ranges that the command has moved to the node. Blocked has those that prefer the node and stay
	// elsewhere, with the reason.
	Moved   int               `json:"moved"`
	Blocked map[string]string `json:"blocked,omitempty"`
}

// failbackCommand is `rhumb node failback`.
func (cc *clusterCommands) failbackCommand() *cobra.Command {
	return cc.connected(&cobra.Command{
		Use: "failback NODE", Short: "Return to a node the primaries that it had before it failed",
		Long: `Hand over to a node all ranges that prefer it as primary and are served by another node since it failed or was drained. No
write is refused. With the setting failback at auto this happens by itself once the node has been healthy for 30 s, or for longer if it
fails repeatedly; this command does not wait. Ranges whose copies were created elsewhere while the node was dead are copied to it first;
the command begins that and does not wait for it. With manual, ranges return by this command only. With never, this command is refused, too.
` + connect.NodeHelp,
		Example: "  rhumb node failback n3\n  rhumb setting set failback manual",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return cc.failBack(cmd.Context(), args[0]) },
	})
}

// failBack asks for the handovers and waits until each has succeeded or was given up.
func (cc *clusterCommands) failBack(ctx context.Context, node string) error {
	arg, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	return cc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := arg.Find(c.Nodes())
		if err != nil {
			return err
		}
		prepared, returning, blocked, err := c.FailBack(ctx, id)
		if err != nil {
			return err
		}
		doc := failbackDoc{Node: id.String(), Returning: len(returning), Blocked: map[string]string{}}
		// The command fails because of these ranges only after all others have moved.
		for r, why := range blocked {
			doc.Blocked[r.String()] = why
		}
		// All handovers run at the same time. Waiting for one after the other takes as long as the slowest, and one bound holds for all.
		limited, cancel := context.WithTimeout(ctx, handoverWait)
		defer cancel()
		for _, r := range prepared {
			w := &handoverWatch{to: id}
			switch after, err := awaitRange(limited, c, r, w.isOver); {
			case err != nil:
				doc.Blocked[r.String()] = "its handover was not carried out in time"
			case after.Primary != id:
				doc.Blocked[r.String()] = "its handover was cancelled, or another node was elected; its primary is " + nodeName(after.Primary)
			default:
				doc.Moved++
			}
		}
		return cc.printFailback(&doc)
	})
}

// handoverWatch recognises in the records of a range that a handover is over, whatever came of it. The request that prepared the handover names no
// version of the record, so the copy of the metadata that the client has may be older than the handover: until the record was seen with the
// handover, one without it says nothing.
type handoverWatch struct {
	to   rhumb.NodeID
	seen bool
}

// isOver reports whether the node has become primary, or the handover has gone without that.
func (w *handoverWatch) isOver(r *rhumb.Range) bool {
	prepared := r.Prepared != nil && r.Prepared.Target == w.to
	w.seen = w.seen || prepared
	return r.Primary == w.to || w.seen && !prepared
}

// printFailback prints how many ranges have moved, with a line for each range that stays elsewhere, and fails if one does.
func (cc *clusterCommands) printFailback(doc *failbackDoc) error {
	stay := slices.Sorted(maps.Keys(doc.Blocked))
	if err := cc.Print(doc, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "MOVED", "RETURNING", "BLOCKED"})
		t.AppendRow(table.Row{doc.Node, doc.Moved, doc.Returning, len(doc.Blocked)})
	}); err != nil || len(stay) == 0 {
		return err
	}
	// A document has the reasons already.
	if !cc.ForPrograms() {
		for _, r := range stay {
			cc.Notef("range %s: %s", r, doc.Blocked[r])
		}
	}
	return rhumb.Ef("rhumb.failback", rhumb.Unavailable, "%s; the first is range %s: %s",
		output.Counted(len(stay), "range stays elsewhere", "ranges stay elsewhere"), stay[0], doc.Blocked[stay[0]])
}
