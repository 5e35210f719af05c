package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// clusterCommands are `rhumb init`, `status`, `node` and `region`.
type clusterCommands struct{ *session }

// initCommand returns `rhumb init`. It shares the directory of the authority with the commands for authorities, because
// --authority makes one.
func (cc *clusterCommands) initCommand(authorities *authorityCommands) *cobra.Command {
	var advertise []string
	var trust string
	c := &cobra.Command{
		Use: "init", Short: "Make the authority of a new cluster, or create a cluster on the node at --addr",
		Long: `With --authority DIR, make the authority of a new secure cluster in a directory. This contacts nobody. Then make tokens for the
nodes (rhumb token create) and start them with --token; the node whose token has --founder creates the cluster. --cluster is then
the ID of a cluster that runs with --insecure and is to be secured, or whose authority is lost, by default a new one. --trust names the
authorities that a cluster has so far.

Without it, create a new cluster whose first member is the node at --addr, which has been waiting for this command since its
first start. Run it once, on one node: the others join that node with --join. The command waits up to --timeout for a node that
was started a moment ago.`,
		Example: `  rhumb init --authority ./authority --advertise ca.example.com
  rhumb init --authority ./authority --cluster 6f1d2c0a9b8e47d3a5c4e3f201b7d689 --advertise ca.example.com
  rhumb init --addr 127.0.0.1:7600 --insecure`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// With an authority, nothing is created but files: the founder among the nodes creates the cluster later.
			if authorities.dir != "" {
				return authorities.makeAuthority(cc.conn.Cluster, advertise, trust)
			}
			// Without an authority, these flags would be ignored without notice.
			if len(advertise) > 0 || trust != "" {
				return rhumb.E("rhumb.init", rhumb.InvalidArgument, "--advertise and --trust are for the authority of a cluster; give --authority DIR too")
			}
			cfg, err := cc.conn.Config()
			if err != nil {
				return err
			}
			// The node may still be starting, so the command asks again until --timeout.
			id, err := awaitAnswer(cmd.Context(), cc.session, cc.conn.Timeout, func(ctx context.Context) (rhumb.ClusterID, error) { return client.Init(ctx, cfg) })
			if err != nil {
				return err
			}
			doc := map[string]string{"cluster_id": id.String()}
			return cc.Print(doc, func(t table.Writer) { t.AppendRow(table.Row{"cluster", id}) })
		},
	}
	c.Flags().StringVar(&authorities.dir, "authority", "", "directory of the authority to make")
	c.Flags().StringSliceVar(&advertise, "advertise", nil, "with --authority: HOST[:PORT] under which nodes reach it")
	flags.Default(c.Flags(), "advertise", "the name of this host")
	c.Flags().StringVar(&trust, "trust", "", "with --authority and --cluster: ca.crt of the lost authority, which nodes trust until it is retired")
	return cc.connected(c)
}

// nodeCommand returns the group `rhumb node`. It lists and drains nodes itself; operationCommands add the commands that
// start operations.
func (cc *clusterCommands) nodeCommand() *cobra.Command {
	var all, start bool
	ls := &cobra.Command{
		Use: "ls", Short: "List the nodes and their state", Args: cobra.NoArgs,
		Long: `List the nodes and their state. Nodes that were removed for good are left out unless --all is given.

Each node is asked: READY, RANGES, PRIMARIES, USED, TROUBLES and ROUND TRIP MS, from here and back, are its answer, and stay empty or 0 without one. META is
its part in the metadata group. HOLDS is from the metadata: how many copies the node has. For a node that leaves or is dead, it says what the node
still holds (copies, and a vote in the metadata group), which operation takes that away and what the operation waits for, or the
command that removes the node.

With --start it shows how many seconds each phase of the last start of each node took: CHECK of the stores, REPLAY of their logs,
LOAD of their ranges, PORTS for everything else before the node listens, METADATA and REPLICAS.`,
		Example: "  rhumb node ls\n  rhumb node ls --start\n  rhumb node ls --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				// Each node is asked about itself. A node that does not answer is in the list with an error.
				nodes := c.Status(ctx)
				if err := deniedStatus(nodes); err != nil {
					return err
				}
				if !all {
					nodes = slices.DeleteFunc(nodes, func(n client.NodeStatus) bool { return n.Node.Forgotten })
				}
				// The list is of use without this part, for example while no node answers.
				holdings, err := c.Holdings(ctx)
				if err != nil {
					cc.Notef("what the nodes hold is not known: %s", rhumb.Message(err))
				}
				docs := addHoldings(describeNodes(c, nodes), holdings)
				if start {
					return cc.printStarts(docs)
				}
				return cc.printNodes(docs)
			})
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "list nodes that were removed too")
	ls.Flags().BoolVar(&start, "start", false, "show how long each phase of the start of a node took")
	var undo bool
	drain := &cobra.Command{
		Use: "drain NODE", Short: "Move all roles away from a node",
		Long: `Move all primaries away from a node and give it no new role, before it is stopped for good or for work on its machine.
A node that is stopped by SIGTERM drains first, without this command.
` + connect.NodeHelp,
		Example: "  rhumb node drain n3\n  rhumb node drain frankfurt-3 --undo",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return cc.drainNode(cmd.Context(), args[0], undo) },
	}
	drain.Flags().BoolVar(&undo, "undo", false, "let the node take roles again")
	var yes bool
	forget := &cobra.Command{
		Use: "forget NODE", Short: "Give up a dead node for good",
		Long: `Give up a node whose disk is lost. The node must be fenced, and can never return. Its name is free afterwards: a node with an
empty disk may register with a certificate of that name. The command shows the ranges of which the node has the only copy, or the only one
in sync, and asks for confirmation.
` + connect.NodeHelp,
		Example: "  rhumb node forget n3\n  rhumb node forget n3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return cc.forgetNode(cmd.Context(), args[0], yes) },
	}
	forget.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	// These commands change the copies of nodes in the background and have a progress.
	more := (&operationCommands{session: cc.session}).nodeCommands()
	return commandGroup("node", "List, drain, decommission, replace and remove nodes", append([]*cobra.Command{cc.connected(ls), cc.connected(drain), cc.connected(forget), cc.failbackCommand()}, more...)...)
}

// deniedStatus returns an error if the caller may not see the status of the
// nodes. Otherwise a cluster would look as if no node answered.
func deniedStatus(nodes []client.NodeStatus) error {
	for _, n := range nodes {
		if n.ErrKind == rhumb.PermissionDenied {
			return rhumb.E("rhumb.status", rhumb.PermissionDenied, n.Err)
		}
	}
	return nil
}

// forgetNode removes a node for good.
func (cc *clusterCommands) forgetNode(ctx context.Context, node string, yes bool) error {
	arg, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	// The metadata rejects the request unless the node is fenced.
	return cc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := arg.Find(c.Nodes())
		if err != nil {
			return err
		}
		if err := cc.confirmGivingUp(c, id, yes); err != nil {
			return err
		}
		n, err := c.ForgetNode(ctx, id)
		if err != nil {
			return err
		}
		return cc.printRemoved(n)
	})
}

// describeTroubles summarizes the problems with the copies and disks of a node in a few words.
// The words are in a fixed order: first the whole node, then its replicas by kind, then its disks. It returns "" for a
// healthy node.
func (d *nodeDoc) describeTroubles() string {
	var words []string
	if d.Short {
		words = append(words, "short")
	}
	if d.Metadata != nil && d.Metadata.Silent {
		words = append(words, "metadata silent")
	}
	if d.Metadata != nil && d.Metadata.Short {
		words = append(words, "metadata short")
	}
	for _, kind := range slices.Sorted(maps.Keys(d.Troubles)) {
		words = append(words, fmt.Sprintf("%s %d", strings.ReplaceAll(string(kind), "_", " "), d.Troubles[kind]))
	}
	damaged := 0
	for _, s := range d.Stores {
		damaged += len(s.Damages)
	}
	if damaged > 0 {
		words = append(words, fmt.Sprintf("damage %d", damaged))
	}
	return strings.Join(words, ", ")
}

// addHoldings adds to nodes their copies according to the metadata.
// A node without an entry in holdings keeps a nil Copies, and its cell stays empty.
func addHoldings(docs []nodeDoc, holdings []client.NodeHoldings) []nodeDoc {
	for i := range docs {
		for _, h := range holdings {
			if docs[i].ID == h.Node.String() {
				docs[i].Copies, docs[i].Stays = &h.Copies, h.Stays
				if h.Operation != 0 {
					docs[i].Operation = h.Operation.String()
				}
				docs[i].Holds = docs[i].describeHolds()
			}
		}
	}
	return docs
}

// describeHolds returns for people how much a node holds: the number of its copies, and for a node that leaves or is dead why it cannot be removed yet, or the
// command that removes it.
func (d *nodeDoc) describeHolds() string {
	leaves := d.State == rhumb.NodeDecommissioning.String() || d.State == rhumb.NodeFenced.String() || d.Operation != ""
	switch {
	// Not known, which differs from 0.
	case d.Copies == nil:
		return ""
	case d.Removed:
		return "removed"
	// Nothing keeps the node, so its row says what to run next.
	case leaves && d.Stays == "":
		return "nothing: `rhumb node rm " + d.ID + "` removes it"
	case leaves:
		return d.Stays
	}
	// Nobody takes its copies away, so the number is all there is to say.
	return output.Counted(*d.Copies, "copy", "copies")
}

// failuresShown is how long after its last failure a node is shown with their number. A planner counts them for as long.
const failuresShown = 20 * time.Minute

// stateText returns the state of a node, with the failures that make fail-back to it wait.
func (d *nodeDoc) stateText(now time.Time) string {
	// One failure is nothing to wait longer for: fail-back waits the shortest time after it, as after a first start. The state
	// itself tells whether the node is dead now.
	if d.Relapses < 2 || now.Sub(d.FailedAt) > failuresShown {
		return d.State
	}
	return fmt.Sprintf("%s, failed %d times", d.State, d.Relapses)
}

// printNodes prints the table of nodes.
func (cc *clusterCommands) printNodes(docs []nodeDoc) error {
	return cc.Print(docs, func(t table.Writer) {
		// Only nodes with certificates have names.
		named := slices.ContainsFunc(docs, func(d nodeDoc) bool { return d.Name != "" })
		row := func(id, name any, rest ...any) table.Row {
			if named {
				return append(table.Row{id, name}, rest...)
			}
			return append(table.Row{id}, rest...)
		}
		// The text about held copies may be a sentence, so this column is the last one.
		t.AppendHeader(row("NODE", "NAME", "REGION", "ZONE", "STATE", "READY", "ADDR", "ADMIN ADDR", "META", "RANGES", "PRIMARIES", "USED", "ROUND TRIP MS", "TROUBLES", "HOLDS"))
		for _, d := range docs {
			t.AppendRow(row(d.ID, d.Name, d.Region, d.Zone, d.stateText(time.Now()), d.Ready, d.Addr, d.AdminAddr, d.Meta, d.Ranges, d.Primaries, d.used(), d.roundTrip(), d.describeTroubles(), d.Holds))
		}
	})
}

// startPhases are the phases of the start of a node, in order.
var startPhases = []string{"check", "replay", "load", "ports", "metadata", "replicas", "total"}

// printStarts prints how long each phase of the start of each node took.
func (cc *clusterCommands) printStarts(docs []nodeDoc) error {
	return cc.Print(docs, func(t table.Writer) {
		header := table.Row{"NODE", "REGION"}
		for _, phase := range startPhases {
			header = append(header, strings.ToUpper(phase))
		}
		t.AppendHeader(header)
		for _, d := range docs {
			row := table.Row{d.ID, d.Region}
			for _, phase := range startPhases {
				// A node that does not answer, or is of an earlier build, has none.
				text := ""
				if took, ok := d.Start[phase]; ok {
					text = fmt.Sprintf("%.3f", took)
				}
				row = append(row, text)
			}
			t.AppendRow(row)
		}
	})
}

// drainDoc is the result of `node drain`.
type drainDoc struct {
	Node     string `json:"node"`
	Draining bool   `json:"draining"`
	// Primaries counts those that the node has kept.
	Primaries int `json:"primaries"`
}

// drainNode moves the roles of a node away, or takes the node back.
// The command succeeds only once the node has no primaries left, so a script can stop the node afterwards.
func (cc *clusterCommands) drainNode(ctx context.Context, node string, undo bool) error {
	arg, err := connect.ParseNode(node)
	if err != nil {
		return err
	}
	return cc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		id, err := arg.Find(c.Nodes())
		if err != nil {
			return err
		}
		// A mistyped number fails here with a hint.
		if !slices.ContainsFunc(c.Nodes(), func(n rhumb.Node) bool { return n.ID == id }) {
			return rhumb.Ef("rhumb.drain", rhumb.NotFound, "there is no node %s; `rhumb node ls` lists the nodes", id)
		}
		left, err := c.Drain(ctx, id, undo)
		if err != nil {
			return err
		}
		// A node keeps a primary while no other copy is in sync.
		if left > 0 && !undo {
			return stillPrimary(id, left, c.Ranges(), c.Nodes())
		}
		doc := drainDoc{Node: id.String(), Draining: !undo, Primaries: left}
		return cc.Print(doc, func(t table.Writer) {
			t.AppendHeader(table.Row{"NODE", "DRAINING", "PRIMARIES"})
			t.AppendRow(table.Row{doc.Node, doc.Draining, doc.Primaries})
		})
	})
}

// stillPrimary returns the error about primaries that a drained node has kept. Time helps only those that another node can take over.
func stillPrimary(id rhumb.NodeID, left int, ranges []*rhumb.Range, nodes []rhumb.Node) error {
	const op rhumb.Op = "rhumb.drain"
	serves := func(n rhumb.NodeID) bool {
		return slices.ContainsFunc(nodes, func(v rhumb.Node) bool { return v.ID == n && v.State.Serves() })
	}
	var stuck []string
	for _, r := range ranges {
		// Copies that are quarantined, or on nodes that are down, cannot serve instead.
		heir := func(n rhumb.NodeID) bool { return n != id && serves(n) && !r.IsQuarantined(n) }
		if r.Primary == id && !slices.ContainsFunc(r.InSync, heir) {
			stuck = append(stuck, r.ID.String())
		}
	}
	if len(stuck) == 0 {
		return rhumb.Ef(op, rhumb.Unavailable, "node %s is still primary of %s; run the command again, or with a longer --timeout", id, output.Counted(left, "range", "ranges"))
	}
	return rhumb.Ef(op, rhumb.Conflict, "node %s is drained, but stays primary of %s without another copy in sync on a live node: %s; %s not served while %s is stopped",
		id, output.Counted(len(stuck), "range", "ranges"), nameSome(stuck), map[bool]string{true: "it is", false: "they are"}[len(stuck) == 1], id)
}

// regionCommand returns the group `rhumb region`.
func (cc *clusterCommands) regionCommand() *cobra.Command {
	var all bool
	ls := &cobra.Command{
		Use: "ls", Short: "List the regions, what they hold and their state", Args: cobra.NoArgs,
		Example: "  rhumb region ls\n  rhumb region ls --all -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The catalog of the client suffices, so no node is asked in person.
			return cc.conn.With(cmd.Context(), func(_ context.Context, c *client.Client) error {
				return cc.printRegions(describeRegions(c, all))
			})
		},
	}
	ls.Flags().BoolVar(&all, "all", false, "removed regions without ranges too")
	var location string
	add := &cobra.Command{
		Use: "add NAME", Short: "Create a region before its first node starts",
		Long: `Create a region without nodes. The first node that names a region creates it as well, so this command is for tools that
declare regions before they start nodes. Repeating it is harmless; a region never moves.`,
		Example: "  rhumb region add frankfurt\n  rhumb region add bern --location 46.9,7.4",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return cc.addRegion(cmd.Context(), args[0], location) },
	}
	// Regions that are not well known need a location.
	add.Flags().StringVar(&location, "location", "", "LAT,LON of the region")
	flags.Default(add.Flags(), "location", "that of a well-known region")
	rm := (&operationCommands{session: cc.session}).removeRegionCommand()
	return commandGroup("region", "List, create and remove regions", cc.connected(ls), cc.connected(add), rm)
}

// addRegion adds a region. Its nodes may join at any later time.
func (cc *clusterCommands) addRegion(ctx context.Context, name, location string) error {
	at, err := locationOf(name, location)
	if err != nil {
		return err
	}
	return cc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		r, err := c.AddRegion(ctx, name, at)
		if err != nil {
			return err
		}
		doc := map[string]any{"id": r.ID, "name": r.Name, "location": inspect.Place(r.Location)}
		return cc.Print(doc, func(t table.Writer) {
			t.AppendHeader(table.Row{"REGION", "ID", "LOCATION"})
			t.AppendRow(table.Row{r.Name, r.ID, r.Location})
		})
	})
}
