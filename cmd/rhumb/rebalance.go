package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// rebalanceDoc is what `rhumb rebalance --dry-run` prints.
type rebalanceDoc struct {
	// Moves are the copies that would move. The list is never nil.
	Moves []rebalanceMove `json:"moves"`
	// Bytes is the sum of the moves.
	Bytes int64 `json:"bytes"`
	// Regions has an element for each region that the plan looked at.
	Regions []rebalanceRegion `json:"regions"`
	// Waits says why nothing moves at the moment; Moving counts the copies that move already.
	Waits  string `json:"waits_for,omitempty"`
	Moving int    `json:"moving"`
}

// rebalanceMove is one copy that would move.
type rebalanceMove struct {
	// Range is moved from the node From to the node To.
	Range string `json:"range"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Bytes is the size of the copy. Writes and WrittenBytes are rates per second.
	Bytes        int64  `json:"bytes"`
	Writes       uint32 `json:"writes_per_second"`
	WrittenBytes uint64 `json:"written_bytes_per_second"`
	// Why is the reason in a few words.
	Why string `json:"why"`
}

// rebalanceRegion has the weights of the lightest and the heaviest node of a region.
type rebalanceRegion struct {
	// Least and Most are weights before the moves; LeastAfter and MostAfter are those that the plan expects.
	Region     string `json:"region"`
	Least      int64  `json:"least_bytes"`
	Most       int64  `json:"most_bytes"`
	LeastAfter int64  `json:"least_bytes_after"`
	MostAfter  int64  `json:"most_bytes_after"`
}

// rebalanceCommand is `rhumb rebalance`.
func (oc *operationCommands) rebalanceCommand() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use: "rebalance [REGION]", Short: "Move copies until the nodes of each region are alike, or show what would move",
		Long: `Move copies of ranges between the nodes of a region until the nodes are alike, in all regions or in one. A node weighs what
its copies hold, what is written to them in ten minutes, and a MiB for each copy. Differences below a tenth stay. No range has
fewer copies or fewer zones at any time, no copy leaves its region, at most four copies move at a time, and a range that has
moved rests for ten minutes. With REGION, copies of its ranges that are in other regions come back first: they are there if a removal
of the region was cancelled. Tables that survive the loss of a region keep theirs.

The cluster balances by itself, after a node has joined for example. The command makes it an operation: it shows the progress,
and rhumb operation pause stops all balancing until rhumb operation resume. With --dry-run nothing is changed: the moves are
listed with their sizes and reasons.`,
		Example: "  rhumb rebalance --dry-run\n  rhumb rebalance frankfurt --no-wait",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				region := rhumb.LocalRegion // all
				if len(args) > 0 {
					r, err := regionNamed(c, args[0])
					if err != nil {
						return err
					}
					region = r.ID
				}
				// A dry run needs the right to read only.
				if dryRun {
					return oc.showBalance(ctx, c, region)
				}
				return oc.start(ctx, c, rhumb.Operation{Kind: rhumb.OperationRebalance, Region: region})
			})
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would move")
	return oc.addNoWait(c)
}

// showBalance prints the plan.
func (oc *operationCommands) showBalance(ctx context.Context, c *client.Client, region rhumb.RegionID) error {
	// The leader answers through the node that is asked.
	plan, err := c.PlanRebalance(ctx, region)
	if err != nil {
		return err
	}
	n := regionNames(c)
	// Empty lists rather than null, which programs would have to handle.
	doc := rebalanceDoc{Moves: []rebalanceMove{}, Regions: []rebalanceRegion{}, Waits: plan.Waits, Moving: plan.Moving}
	for _, m := range plan.Moves {
		doc.Bytes += m.Bytes
		doc.Moves = append(doc.Moves, rebalanceMove{
			Range: m.Range.String(), From: m.From.String(), To: m.To.String(), Bytes: m.Bytes, Writes: m.Writes, WrittenBytes: m.WrittenRate, Why: m.Why,
		})
	}
	for _, x := range plan.Spreads {
		doc.Regions = append(doc.Regions, rebalanceRegion{n.nameOf(x.Region), x.Least, x.Most, x.LeastAfter, x.MostAfter})
	}
	// The title has what concerns the plan as a whole; the table has the moves.
	title := fmt.Sprintf("%d copies would move, %s in all", len(doc.Moves), bytesText(uint64(doc.Bytes)))
	if doc.Moving > 0 {
		title += fmt.Sprintf("; %d move already", doc.Moving)
	}
	if doc.Waits != "" {
		title += "; nothing moves now: " + doc.Waits
	}
	for _, x := range doc.Regions {
		title += fmt.Sprintf("\n%s: a node weighs %s to %s, and %s to %s after the moves", x.Region, bytesText(uint64(x.Least)), bytesText(uint64(x.Most)), bytesText(uint64(x.LeastAfter)), bytesText(uint64(x.MostAfter)))
	}
	return oc.PrintTitled(doc, title, func(t table.Writer) {
		t.AppendHeader(table.Row{"RANGE", "FROM", "TO", "BYTES", "WRITES/S", "WRITTEN BYTES/S", "WHY"})
		for _, m := range doc.Moves {
			t.AppendRow(table.Row{m.Range, m.From, m.To, bytesText(uint64(m.Bytes)), m.Writes, m.WrittenBytes, m.Why})
		}
	})
}
