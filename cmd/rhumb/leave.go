package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/client"
)

// The commands that take a node out of the cluster, or put another one in its place.

// onNode runs a command for a node, by its number or by the name in its certificate. With gone it does nothing for a node that does
// not exist or was removed: tools repeat their steps.
func (oc *operationCommands) onNode(ctx context.Context, arg string, gone bool, fn func(context.Context, *client.Client, rhumb.NodeID) error) error {
	named, err := connect.ParseNode(arg)
	if err != nil {
		return err
	}
	return oc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		// The list of this client's copy of the metadata is enough to find the number. What the node does, and whether it still has
		// something, is decided by the metadata when the command arrives.
		nodes := c.Nodes()
		id, err := named.Find(nodes)
		known := slices.ContainsFunc(nodes, func(n rhumb.Node) bool { return n.ID == id && !n.Forgotten })
		if gone && (err != nil || !known) {
			oc.Notef("there is no node %s, or it was removed already", arg)
			return nil
		}
		if err != nil {
			return err
		}
		return fn(ctx, c, id)
	})
}

// startBetween starts an operation from one node to another, which args name in this order.
func (oc *operationCommands) startBetween(ctx context.Context, args []string, kind rhumb.OperationKind) error {
	named, err := connect.ParseNodes(args...)
	if err != nil {
		return err
	}
	return oc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		nodes, err := connect.FindNodes(named, c.Nodes())
		if err != nil {
			return err
		}
		return oc.start(ctx, c, rhumb.Operation{Kind: kind, Node: nodes[0], Target: nodes[1]})
	})
}

// nodeCommands returns the commands that remove and replace nodes.
func (oc *operationCommands) nodeCommands() []*cobra.Command {
	// decommission and rm are two steps, and replace does both. A dead node may skip the first step, because repair creates its
	// copies elsewhere.
	var force, gone, yes bool
	decommission := &cobra.Command{
		Use: "decommission NODE", Short: "Move everything away from a node, for good",
		Long: `Move all copies, all primaries and the vote away from a node, live or dead, under load and without refused writes. The node serves
meanwhile and gets no new copies. No range has fewer copies at any time. The command is refused, with what would fit, if the
other nodes of the region cannot hold all copies. It waits until the node holds nothing; the operation goes on if the command
ends. Afterwards rhumb node rm removes the node, and its process can be stopped.
` + connect.NodeHelp,
		Example: "  rhumb node decommission n3\n  rhumb node decommission frankfurt-3 --if-exists",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.onNode(cmd.Context(), args[0], gone, func(ctx context.Context, c *client.Client, id rhumb.NodeID) error {
				// Whether the other nodes have room is checked by the metadata, before the operation begins.
				return oc.start(ctx, c, rhumb.Operation{Kind: rhumb.OperationDecommission, Node: id})
			})
		},
	}
	replace := &cobra.Command{
		Use: "replace OLD NEW", Short: "Move everything from a node, live or dead, to a new one",
		Long: `Move all copies of a node to another node of the region, usually a new and empty one, and then remove the old node for good. The
old node may be dead. No range has fewer copies at any time.
` + connect.NodeHelp,
		Example: "  rhumb node replace n3 n7\n  rhumb node replace frankfurt-3 frankfurt-7",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.startBetween(cmd.Context(), args, rhumb.OperationReplace)
		},
	}
	rm := &cobra.Command{
		Use: "rm NODE", Short: "Remove a node for good",
		Long: `Remove a node for good: a decommissioned one, or a dead one whose copies have been created elsewhere. It can never return, and
its name is free. A node that still counts as a copy of a range, or votes in the metadata group, is refused with the reason.
With --force a dead node is given up although ranges still count on it; they get other copies when the region has nodes for them. The
command then shows the ranges of which the node has the only copy, or the only one in sync, and asks for confirmation.
` + connect.NodeHelp,
		Example: "  rhumb node rm n3\n  rhumb node rm n3 --force --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.onNode(cmd.Context(), args[0], gone, func(ctx context.Context, c *client.Client, id rhumb.NodeID) error {
				if force {
					if err := oc.confirmGivingUp(c, id, yes); err != nil {
						return err
					}
				}
				n, err := c.RemoveNode(ctx, id, force)
				if err != nil {
					return err
				}
				return oc.printRemoved(n)
			})
		},
	}
	for _, c := range []*cobra.Command{decommission, rm} {
		c.Flags().BoolVar(&gone, "if-exists", false, "succeed if there is no such node, or if it was removed")
	}
	rm.Flags().BoolVar(&force, "force", false, "give up a dead node that ranges still count on")
	rm.Flags().BoolVar(&yes, "yes", false, "with --force: do not ask for confirmation")
	return []*cobra.Command{oc.addNoWait(decommission), oc.addNoWait(replace), oc.connected(rm)}
}
