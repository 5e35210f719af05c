package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/upgrade"
	"github.com/rhumbdb/rhumb/client"
)

// upgradeCommands are the commands of `rhumb upgrade`.
type upgradeCommands struct{ *session }

// finalizePoll is how often finalize asks the nodes whether they have applied the version.
const finalizePoll = 200 * time.Millisecond

// upgradeCommand returns the group `rhumb upgrade`.
func (uc *upgradeCommands) upgradeCommand() *cobra.Command {
	status := &cobra.Command{
		Use: "status", Short: "Show how far the upgrade of the nodes is", Args: cobra.NoArgs,
		Long: `Show the active cluster version, the program of each node with the versions that it supports, which nodes keep the next version
from being finalized, and what to do next.`,
		Example: "  rhumb upgrade status\n  rhumb upgrade status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return uc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				nodes := c.Status(ctx)
				if err := deniedStatus(nodes); err != nil {
					return err
				}
				// The report is judged from the answers of the nodes; nothing is stored about an upgrade.
				return uc.printReport(upgrade.Judge(nodes))
			})
		},
	}
	var yes bool
	var without []string
	finalize := &cobra.Command{
		Use: "finalize", Short: "Switch on what the new program adds, once every node runs it",
		Long: `Raise the cluster version by one. Every node must run a program that supports it ("rhumb upgrade status"). From then on no node can
go back to the previous release: databases take newer formats, and records and messages get fields that it cannot read.

The command asks for confirmation, and waits until all nodes have applied the version, for as long as --timeout says. It may be repeated.
` + connect.NodeHelp,
		Example: "  rhumb upgrade finalize\n  rhumb upgrade finalize --yes\n  rhumb upgrade finalize --without n7",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			args, err := connect.ParseNodes(without...)
			if err != nil {
				return err
			}
			return uc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				ids, err := connect.FindNodes(args, c.Nodes())
				if err != nil {
					return err
				}
				return uc.finalize(ctx, c, ids, yes)
			})
		},
	}
	finalize.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	finalize.Flags().StringSliceVar(&without, "without", nil, "fenced node that need not support the version; it returns only with a program that does")
	return commandGroup("upgrade", "Follow and finish the upgrade of a cluster", uc.connected(status), uc.connected(finalize))
}

// printReport prints a report.
func (uc *upgradeCommands) printReport(r upgrade.Report) error {
	if uc.ForPrograms() {
		return uc.Print(r, nil)
	}
	// The first table is about the cluster, the second has a row for each node.
	return uc.PrintSections(func(t table.Writer) {
		t.AppendRow(table.Row{"cluster version", r.Version})
		// Next is 0 if no newer version is supported by any node.
		if r.Next != 0 {
			t.AppendRow(table.Row{"next version", fmt.Sprintf("%d, since release %s", r.Next, r.Next.Release())})
			t.AppendRow(table.Row{"it adds", strings.Join(r.Adds, ", ")})
		}
		step := r.Step
		if step == "" {
			step = "nothing to do"
		}
		t.AppendRow(table.Row{"next step", step})
	}, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "NAME", "STATE", "PROGRAM", "SUPPORTS", "APPLIED", "DATABASE FORMAT", "HOLDS"})
		// A node of an older release reports no format, and the library aligns a column with an empty cell like text.
		t.SetColumnConfigs([]table.ColumnConfig{{Name: "DATABASE FORMAT", Align: text.AlignRight, AlignHeader: text.AlignRight}})
		for _, n := range r.Nodes {
			t.AppendRow(table.Row{n.ID, n.Name, n.State, n.Program, describeVersions(n.Supports), unlessZero(n.Applied), unlessZero(n.DatabaseFormat), n.Holds})
		}
	})
}

// describeVersions returns "1 to 2", or "1".
func describeVersions(vs []rhumb.ClusterVersion) string {
	if len(vs) == 1 {
		return vs[0].String()
	}
	return fmt.Sprintf("%d to %d", vs[0], vs[len(vs)-1])
}

// unlessZero returns a number, or nothing for zero.
func unlessZero[N ~uint32](n N) any {
	if n == 0 {
		return ""
	}
	return uint32(n)
}

// finalize raises the version, and waits until the nodes have applied it.
func (uc *upgradeCommands) finalize(ctx context.Context, c *client.Client, without []rhumb.NodeID, yes bool) error {
	const op rhumb.Op = "rhumb.upgrade"
	nodes := c.Status(ctx)
	if err := deniedStatus(nodes); err != nil {
		return err
	}
	r := upgrade.Judge(nodes)
	if r.Next == 0 {
		// This goes to standard error, so that -o json prints one document.
		fmt.Fprintf(uc.Err, "version %d is active, and no node supports a newer one: nothing to finalize\n", r.Version)
		return uc.printReport(r)
	}
	// The report names the nodes in the way, and the step that helps.
	if held := r.Held(without); len(held) > 0 {
		var words []string
		for _, n := range held {
			words = append(words, n.ID+" "+n.Holds)
		}
		return rhumb.Ef(op, rhumb.Conflict, "version %d cannot be finalized: %s; %s", r.Next, strings.Join(words, "; "), r.Step)
	}
	fmt.Fprintf(uc.Err, "version %d of the cluster follows version %d and switches on: %s\nno node can go back to the release before %s afterwards\n",
		r.Next, r.Version, strings.Join(r.Adds, ", "), r.Next.Release())
	if !yes && !strings.EqualFold(uc.askFor("Finalize? [yes/no] "), "yes") {
		return rhumb.E(op, rhumb.ConditionFailed, "nothing was changed: the version was not finalized; --yes finalizes it without asking")
	}
	// The request names both versions, so it cannot raise another version than the one that was shown.
	if err := c.FinalizeUpgrade(ctx, r.Next, r.Version, without); err != nil {
		return err
	}
	r, err := uc.awaitVersion(ctx, c, r.Next)
	if err != nil {
		return err
	}
	return uc.printReport(r)
}

// awaitVersion waits until all nodes have applied a version. The metadata has decided it by then, so the wait
// only shows the operator that no node uses the old version any more.
func (uc *upgradeCommands) awaitVersion(ctx context.Context, c *client.Client, v rhumb.ClusterVersion) (upgrade.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, uc.waitMost())
	defer cancel()
	tick := time.NewTicker(finalizePoll)
	defer tick.Stop()
	shown := ""
	for {
		r := upgrade.Judge(c.Status(ctx))
		waiting := r.Waiting(v)
		if len(waiting) == 0 {
			return r, nil
		}
		if text := strings.Join(waiting, " "); text != shown {
			fmt.Fprintf(uc.Err, "%s applied version %d; waiting for %s\n", output.Counted(len(r.Nodes)-len(waiting), "node has", "nodes have"), v, text)
			shown = text
		}
		select {
		case <-ctx.Done():
			return r, rhumb.Ef("rhumb.upgrade", rhumb.DeadlineExceeded, "version %d is active, and %s did not show that it has applied it; see `rhumb upgrade status`", v, strings.Join(waiting, " "))
		case <-tick.C:
		}
	}
}
