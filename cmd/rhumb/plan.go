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
	"github.com/rhumbdb/rhumb/client"
)

// Commands that say beforehand what would happen. They change nothing.

// planCommands holds `rhumb plan`.
type planCommands struct{ *session }

// command returns `rhumb plan`.
func (pc *planCommands) command() *cobra.Command {
	return commandGroup("plan", "Say beforehand what a failure would do", pc.failoverCommand())
}

// failoverDoc is what `rhumb plan failover` prints as a document.
type failoverDoc struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Nodes []string `json:"nodes"`
	// Ranges are those that the failure concerns; Untouched counts the others.
	Ranges    []rangeFailoverDoc `json:"ranges"`
	Untouched int                `json:"untouched"`
	// Served and Unserved count the ranges that the failure concerns.
	Served   int `json:"served"`
	Unserved int `json:"unserved"`
	// TakeOver bounds the pause of ranges that change their primary, Stall that of ranges which lose another copy.
	TakeOver pauseDoc `json:"take_over"`
	Stall    pauseDoc `json:"stall"`
	// Voters are those of the metadata.
	Voters      int  `json:"voters"`
	VotersLeft  int  `json:"voters_left"`
	LeaderFails bool `json:"metadata_leader_fails"`
	Majority    bool `json:"metadata_majority"`
}

// rangeFailoverDoc is what the failure means for one range.
type rangeFailoverDoc struct {
	Range string             `json:"range"`
	Fate  rhumb.FailoverFate `json:"fate"`
	// From is the primary now. To is the primary afterwards, and empty if nobody can take over.
	From    string   `json:"from"`
	To      string   `json:"to"`
	Left    []string `json:"left"`
	PauseMs float64  `json:"pause_ms"`
	Reason  string   `json:"reason,omitempty"`
}

// pauseDoc is a bound with its parts.
type pauseDoc struct {
	MostMs float64        `json:"most_ms"`
	Steps  []pauseStepDoc `json:"steps"`
}

// pauseStepDoc is a part of a bound, with the reason for its length.
type pauseStepDoc struct {
	Name   string  `json:"name"`
	MostMs float64 `json:"most_ms"`
	Why    string  `json:"why"`
}

// failoverCommand is `rhumb plan failover`.
func (pc *planCommands) failoverCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "failover NODE|ZONE|REGION", Short: "Who takes over when a node, a zone or a region fails, and what would not be served",
		Long: `Say beforehand, from the metadata, what happens when a node, a zone or a region fails: which nodes take over which ranges, for how long
writes wait at most, and which ranges could not be served, with the reason. Nothing is changed.

A zone is written ZONE, or REGION/ZONE if several regions have one of that name. The cluster decides a real failover by the same rule, so
it does what the plan says unless the metadata changes in between. The bound of the pause is a sum: the time to notice the failure, to
decide it, to wait for leases of the failed node, to elect, and an allowance for the machines. The table has one row for the RANGES that
share a reason and the nodes FROM and TO which the role of primary goes, with the longest PAUSE, and a RANGE as an example; -o json has
each range.`,
		Example: "  rhumb plan failover n3\n  rhumb plan failover frankfurt/a\n  rhumb plan failover frankfurt -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return pc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				plan, err := c.PlanFailover(ctx, args[0])
				if err != nil {
					return err
				}
				return pc.printFailover(&plan)
			})
		},
	}
	return pc.connected(c)
}

// printFailover prints a plan: for people grouped by what happens, for programs range by range.
func (pc *planCommands) printFailover(p *rhumb.FailoverPlan) error {
	doc := failoverDoc{
		Kind: p.Kind, Name: p.Name, Nodes: nodeNames(p.Nodes), Ranges: []rangeFailoverDoc{}, Untouched: p.Untouched,
		TakeOver: describePause(p.TakeOver), Stall: describePause(p.Stall),
		Voters: p.Voters, VotersLeft: p.VotersLeft, LeaderFails: p.LeaderFails, Majority: p.HasMajority(),
	}
	// A region has hundreds of ranges. Those with the same fate share a row.
	groups := make(map[failoverGroup]*failoverRow)
	for _, r := range p.Ranges {
		if r.Fate == rhumb.FailoverUnserved {
			doc.Unserved++
		} else {
			doc.Served++
		}
		doc.Ranges = append(doc.Ranges, rangeFailoverDoc{
			Range: r.Range.String(), Fate: r.Fate, From: r.From.String(), To: nodeName(r.To), Left: nodeNames(r.Left), PauseMs: milliseconds(r.Pause), Reason: r.Reason,
		})
		g := failoverGroup{r.Fate, r.From, r.To, r.Reason}
		row := groups[g]
		if row == nil {
			row = &failoverRow{failoverGroup: g, example: r.Range}
			groups[g] = row
		}
		row.ranges++
		row.pause = max(row.pause, r.Pause)
	}
	// What needs a person comes first.
	rows := make([]*failoverRow, 0, len(groups))
	for _, row := range groups {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b *failoverRow) int {
		return cmp.Or(-strings.Compare(string(a.fate), string(b.fate)), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), strings.Compare(a.reason, b.reason))
	})
	return pc.PrintTitled(doc, failoverTitle(&doc), func(t table.Writer) {
		t.AppendHeader(table.Row{"RANGES", "FATE", "FROM", "TO", "PAUSE", "RANGE", "REASON"})
		for _, r := range rows {
			pause := "-"
			if r.pause > 0 {
				pause = r.pause.Round(time.Millisecond).String()
			}
			t.AppendRow(table.Row{r.ranges, r.fate, r.from, cmp.Or(nodeName(r.to), "-"), pause, r.example, r.reason})
		}
	})
}

// failoverGroup is what the ranges of a row of the table have in common.
type failoverGroup struct {
	fate     rhumb.FailoverFate
	from, to rhumb.NodeID
	reason   string
}

// failoverRow is a row of the table: how many ranges share a group, the longest bound among them, and one of them as an example for
// `rhumb range describe`.
type failoverRow struct {
	failoverGroup
	ranges  int
	pause   time.Duration
	example rhumb.RangeID
}

// failoverTitle says in sentences what the table does not: the sums, the metadata, and how the bounds are composed.
func failoverTitle(d *failoverDoc) string {
	var b strings.Builder
	fmt.Fprintf(&b, "If %s %s fails (%s): %d ranges are served on, %d are not, and %d have nothing to do with it.", d.Kind, d.Name, strings.Join(d.Nodes, ", "), d.Served, d.Unserved, d.Untouched)
	fmt.Fprintf(&b, "\nMetadata: %d of %d voters are left", d.VotersLeft, d.Voters)
	// Without a majority the rest of the plan says the same for every range, so the title says it once.
	switch {
	case !d.Majority:
		b.WriteString(", which is no majority: nobody can be elected until one of them returns.")
	case d.LeaderFails:
		b.WriteString("; the leader fails too, and another one is elected first.")
	default:
		b.WriteString(".")
	}
	for _, p := range []struct {
		what string
		pauseDoc
	}{{"Writes to ranges that change their primary", d.TakeOver}, {"Writes to ranges that lose another copy", d.Stall}} {
		if len(p.Steps) == 0 {
			continue
		}
		parts := make([]string, len(p.Steps))
		for i, s := range p.Steps {
			parts[i] = fmt.Sprintf("%s %.0f", s.Name, s.MostMs)
		}
		fmt.Fprintf(&b, "\n%s wait for at most %.0f ms (%s).", p.what, p.MostMs, strings.Join(parts, " + "))
	}
	return b.String()
}

// describePause converts a bound.
func describePause(p rhumb.PausePlan) pauseDoc {
	out := pauseDoc{MostMs: milliseconds(p.Most), Steps: []pauseStepDoc{}}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, pauseStepDoc{s.Name, milliseconds(s.Most), s.Why})
	}
	return out
}
