package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// dropDoc is what `rhumb table drop` prints.
type dropDoc struct {
	Table string `json:"table"`
	// ID is the number of the dropped table. A later table with the same name has another number.
	ID uint32 `json:"id"`
	// Dropped is false if the table did not exist and --if-exists was given.
	Dropped bool `json:"dropped"`
	// Shared are the tables that use the same ranges and keep them.
	Shared []string `json:"shared_ranges_with"`
	// Ranges counts the ranges of the table's class.
	Ranges int `json:"ranges"`
	// Bytes is the estimated size of one copy of these ranges, with everything that other tables have in them. It is left out if it is
	// not known: if there are more than sizedRangesMax of them, or if some do not answer.
	Bytes *uint64 `json:"bytes_estimate,omitempty"`
}

const (
	// sizedRangesMax bounds the ranges that are asked for their sizes before a drop, sizersMax those that are asked at once, and sizeWait
	// the time for all: a drop must be possible while ranges are not served.
	sizedRangesMax = 4_096
	sizersMax      = 16
	sizeWait       = 3 * time.Second
)

// measureClass returns the estimated size of one copy of the ranges of a class, or nil. Primaries know the sizes of their ranges without
// reading them. Records are not counted anywhere: that would take a scan.
func measureClass(ctx context.Context, c *client.Client, class rhumb.ClassID) *uint64 {
	ctx, cancel := context.WithTimeout(ctx, sizeWait)
	defer cancel()
	ranges := slices.DeleteFunc(c.Ranges(), func(r *rhumb.Range) bool { return r.Class != class })
	if len(ranges) > sizedRangesMax {
		return nil
	}
	var sum, answered atomic.Uint64
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(sizersMax, len(ranges)) {
		work.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(ranges) && ctx.Err() == nil; i = next.Add(1) - 1 {
				s, err := c.DescribeRange(ctx, ranges[i].ID)
				// Without an answer of the primary the size is 0, which would look like an empty range.
				if err == nil && slices.ContainsFunc(s.Replicas, func(x client.ReplicaStatus) bool { return x.Node == s.Range.Primary && x.State == "primary" }) {
					sum.Add(s.SizeBytes)
					answered.Add(1)
				}
			}
		})
	}
	work.Wait()
	// A part of the sum would look like the whole.
	if int(answered.Load()) < len(ranges) {
		return nil
	}
	out := sum.Load()
	return &out
}

// dropCommand returns `rhumb table drop`.
func (tc *tableCommands) dropCommand() *cobra.Command {
	var yes, ifExists bool
	c := &cobra.Command{
		Use: "drop NAME", Short: "Remove a table with all its records, for good",
		Long: `Remove a table with all its records, for good. Nothing brings them back. The table and the grants on it disappear at once,
and requests for it fail. The nodes then give its space back in the background: ranges that no other table uses are removed
whole, and from shared ranges its records are deleted as soon as every replica has the end of the log. A node that is down
does so when it returns. A later table of the same name is another table. It takes the right admin of the table.`,
		Example: "  rhumb table drop flights\n  rhumb table drop flights --yes -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return tc.dropTable(ctx, c, args[0], yes, ifExists)
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the name")
	c.Flags().BoolVar(&ifExists, "if-exists", false, "succeed if the table does not exist")
	return c
}

// dropTable describes the loss, asks for the name and drops the table under the number that was shown.
func (tc *tableCommands) dropTable(ctx context.Context, c *client.Client, name string, yes, ifExists bool) error {
	const op rhumb.Op = "rhumb.table"
	t, err := c.Table(ctx, name)
	if rhumb.KindOf(err) == rhumb.NotFound && ifExists {
		return tc.printDrop(dropDoc{Table: name, Shared: []string{}})
	}
	if err != nil {
		return err
	}
	// Tables of one class use the same ranges.
	doc := dropDoc{Table: name, ID: uint32(t.Info().ID), Shared: []string{}}
	for _, o := range c.Tables() {
		switch {
		case o.ID == t.Info().ID:
			doc.Ranges = o.Ranges
		case o.Class == t.Info().Class:
			doc.Shared = append(doc.Shared, o.Name)
		}
	}
	slices.Sort(doc.Shared)
	doc.Bytes = measureClass(ctx, c, t.Info().Class)
	if !yes {
		tc.Notef("table %s and all its records will be removed for good; %s", name, doc.explainRanges())
		// The name is asked for rather than "yes", so that nobody confirms by habit.
		if tc.askFor(fmt.Sprintf("Type %s to drop it: ", name)) != name {
			return rhumb.E(op, rhumb.ConditionFailed, "nothing was changed: the name was not confirmed; --yes drops the table without asking")
		}
	}
	// The ID makes the request fail if another table took the name meanwhile.
	if err := c.DropTable(ctx, name, t.Info().ID); err != nil {
		return err
	}
	// The number may be that of a table that was dropped before, if this client did not know yet that another one took the name.
	if now, err := c.Table(ctx, name); err == nil && now.Info().ID > t.Info().ID {
		return rhumb.Ef(op, rhumb.Conflict, "table %s is another table since this command began, number %d, and was not dropped; run the command again to drop it", name, now.Info().ID)
	}
	doc.Dropped = true
	return tc.printDrop(doc)
}

// explainRanges says what becomes of the ranges.
func (d dropDoc) explainRanges() string {
	size := ""
	if d.Bytes != nil {
		size = fmt.Sprintf(" (about %s in each copy)", bytesText(*d.Bytes))
	}
	if len(d.Shared) == 0 {
		return fmt.Sprintf("its %d ranges%s go with it", d.Ranges, size)
	}
	return fmt.Sprintf("it shares %d ranges%s with %s, which keep them", d.Ranges, size, strings.Join(d.Shared, ", "))
}

// printDrop prints what became of a table.
func (tc *tableCommands) printDrop(doc dropDoc) error {
	return tc.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"table", doc.Table})
		if !doc.Dropped {
			t.AppendRow(table.Row{"dropped", "it did not exist"})
			return
		}
		t.AppendRow(table.Row{"dropped", "the nodes give its space back in the background"})
		t.AppendRow(table.Row{"ranges", doc.explainRanges()})
	})
}
