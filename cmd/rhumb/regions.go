package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// describeRegions returns the regions as the catalog has them. A removed region is left out, unless all is set, once it has no
// range any more.
func describeRegions(c *client.Client, all bool) (docs []regionDoc) {
	n, nodes, ranges, tables := regionNames(c), c.Nodes(), c.Ranges(), c.Tables()
	regionOf := map[rhumb.NodeID]rhumb.RegionID{}
	for _, n := range nodes {
		regionOf[n.ID] = n.Region
	}
	// Everything is counted from this client's copy of the metadata: the list must work while nodes are down, which is when
	// people look at it.
	for _, r := range c.Regions() {
		doc := regionDoc{ID: uint32(r.ID), Name: r.Name, Location: inspect.Place(r.Location), Lost: r.Lost, Zones: []string{}, Pinned: []string{}}
		if r.Into != 0 {
			doc.Into = n.nameOf(r.Into)
		}
		for _, n := range nodes {
			if n.Region == r.ID && !n.Forgotten {
				doc.addNode(n)
			}
		}
		slices.Sort(doc.Zones)
		doc.Zones = slices.Compact(doc.Zones)
		for _, rg := range ranges {
			if rg.ID.Region == r.ID {
				doc.Ranges++
			}
			if regionOf[rg.Primary] == r.ID {
				doc.Primaries++
			}
			for _, id := range rg.Replicas {
				if regionOf[id] == r.ID {
					doc.Copies++
				}
			}
		}
		for _, t := range tables {
			if t.Settings.Regions != "" && t.Settings.Regions.Has(r.Name) {
				doc.Pinned = append(doc.Pinned, t.Name)
			}
		}
		if rtt, ok := c.RoundTrip(r.ID); ok {
			ms := milliseconds(rtt)
			doc.RoundTripMs = &ms
		}
		doc.State = regionState(r, &doc)
		if !r.Removed || doc.Ranges > 0 || all {
			docs = append(docs, doc)
		}
	}
	return docs
}

// addNode counts a node of the region.
func (d *regionDoc) addNode(n rhumb.Node) {
	d.Nodes++
	d.Zones = append(d.Zones, n.Zone)
	if n.State.Serves() {
		d.NodesLive++
	}
	if n.Voter {
		d.Voters++
	}
}

// removedState is the state of a region that was removed.
const removedState = "removed"

// regionState returns the state of a region in one word.
func regionState(r rhumb.Region, d *regionDoc) string {
	switch {
	case r.Removed:
		return removedState
	case r.Into != 0:
		return "leaving"
	// Clients do not ask a dead region, which matters more than that its nodes are down.
	case r.Dead && d.Nodes > 0:
		return "dead"
	case d.Nodes == 0:
		return "empty"
	case d.NodesLive == 0:
		return "down"
	case d.NodesLive < d.Nodes:
		return "partial"
	}
	return "live"
}

// printRegions prints the table of regions.
func (cc *clusterCommands) printRegions(docs []regionDoc) error {
	return cc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"REGION", "ID", "LOCATION", "STATE", "NODES", "NODES LIVE", "ZONES", "VOTERS", "RANGES", "COPIES", "PRIMARIES", "PINNED TABLES", "ROUND TRIP MS"})
		for _, d := range docs {
			ms, state := "", d.State
			if d.RoundTripMs != nil {
				ms = fmt.Sprintf("%.1f", *d.RoundTripMs)
			}
			if d.Into != "" {
				state += " into " + d.Into
			}
			if d.Lost > 0 {
				state += fmt.Sprintf(", %d ranges lost", d.Lost)
			}
			t.AppendRow(table.Row{
				d.Name, d.ID, rhumb.Point(d.Location), state, d.Nodes, d.NodesLive, strings.Join(d.Zones, " "), d.Voters,
				d.Ranges, d.Copies, d.Primaries, strings.Join(d.Pinned, " "), ms,
			})
		}
	})
}

// removeRegionCommand is `rhumb region rm`.
func (oc *operationCommands) removeRegionCommand() *cobra.Command {
	var into string
	var force, yes, gone bool
	rm := &cobra.Command{
		Use: "rm REGION", Short: "Remove a region: its records move to another one",
		Long: `Remove a region, under load and without refused writes. Its ranges move to the nodes of another region, the nearest one that has
room or the one of --into; records keep their keys, so nobody has to know that they moved. Then its votes move, its
nodes are removed, and their processes end. Its name is free afterwards. The command is refused, with the reason, if tables are confined to
the region, or if no other region has enough nodes. It waits until the region is removed; the operation goes on if the
command ends.

With --force a region is given up whose nodes are all dead and lost for good. The command shows which ranges no other region
has a copy of, and asks: everything in them is lost for good, and their names can be used again. Ranges with copies in
other regions stay; the region may have died while it was being removed. The loss is recorded as an operation. It is the same
as rhumb unsafe-recover region.`,
		Example: "  rhumb region rm frankfurt\n  rhumb region rm frankfurt --into virginia --no-wait\n  rhumb region rm frankfurt --force",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				region, host, err := regionAndHost(c, args[0], into)
				if gone && rhumb.KindOf(err) == rhumb.NotFound {
					oc.Notef("there is no region %s, or it was removed already", args[0])
					return nil
				}
				if err != nil {
					return err
				}
				if force {
					return oc.giveUpRegion(ctx, c, region, host, yes)
				}
				o, err := c.RemoveRegion(ctx, region.ID, host)
				if err != nil {
					return err
				}
				if oc.noWait {
					return oc.printOperation(c, o)
				}
				return oc.await(ctx, c, o.ID)
			})
		},
	}
	rm.Flags().StringVar(&into, "into", "", "region that takes the ranges")
	rm.Flags().BoolVar(&force, "force", false, "give up a region whose nodes are all lost for good")
	rm.Flags().BoolVar(&gone, "if-exists", false, "succeed if there is no such region")
	rm.Flags().BoolVar(&yes, "yes", false, "with --force: do not ask for the name")
	return oc.addNoWait(rm)
}

// recoverRegionCommand is `rhumb unsafe-recover region`.
func (oc *operationCommands) recoverRegionCommand() *cobra.Command {
	var into string
	var yes bool
	c := &cobra.Command{
		Use: "region REGION", Short: "Give up a region that is lost for good, and what no other region has a copy of",
		Long: `Give up a region whose nodes are all dead and lost for good, also one that died while it was being removed. The command shows
which ranges no other region has a copy of, and asks for the name of the region. Then everything in these ranges is lost, and
their names can be used again. Ranges that had moved, or have copies in other regions, stay with every record. The name
of the region is free, and a removal that had begun is over. The loss is recorded as an operation.

Ranges of a table of which some are lost and others are not restart empty, in the region that takes the others.
It needs as many live nodes as the table keeps copies. A range with copies in other regions, of which none is in sync, needs
rhumb unsafe-recover range first; the command names each and asks nothing.`,
		Example: "  rhumb unsafe-recover region frankfurt\n  rhumb unsafe-recover region frankfurt --into virginia --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return oc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				region, host, err := regionAndHost(c, args[0], into)
				if err != nil {
					return err
				}
				return oc.giveUpRegion(ctx, c, region, host, yes)
			})
		},
	}
	c.Flags().StringVar(&into, "into", "", "region that takes the ranges that are not lost")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the name")
	return c
}

// regionAndHost returns the region of a name, and the number of the one of another name, or 0 for none. Names are resolved here, so
// that a request means the regions that the operator sees, also if a name gets another owner meanwhile.
func regionAndHost(c *client.Client, name, into string) (rhumb.Region, rhumb.RegionID, error) {
	region, err := regionNamed(c, name)
	if err != nil || into == "" {
		return region, 0, err
	}
	host, err := regionNamed(c, into)
	return region, host.ID, err
}

// lossDoc lists the losses with a region.
type lossDoc struct {
	Region string   `json:"region"`
	Into   string   `json:"into"`
	Ranges []string `json:"lost_ranges"`
	Tables []string `json:"tables"`
	// Restarts are those of the lost ranges that begin again empty, because other ranges of their tables stay.
	Restarts []string `json:"restart_empty,omitempty"`
	// kept counts the ranges of the region that stay.
	kept int
}

// describeRegionLoss returns the losses with a region, and lines that describe them for people. The lists are from this client's copy of the metadata,
// and only describe. The metadata decides about the loss: it compares the number of ranges.
func describeRegionLoss(r rhumb.Region, into string, loss client.RegionLoss, ranges []*rhumb.Range, tables []client.TableStatus) (doc lossDoc, lines []string) {
	doc = lossDoc{Region: r.Name, Into: into, Ranges: []string{}, Tables: []string{}}
	classes := map[rhumb.ClassID]int{}
	for _, id := range loss.Ranges {
		doc.Ranges = append(doc.Ranges, id.String())
	}
	for _, id := range loss.Restarts {
		doc.Restarts = append(doc.Restarts, id.String())
	}
	for _, rg := range ranges {
		switch {
		case slices.Contains(loss.Ranges, rg.ID):
			classes[rg.Class]++
		case rg.ID.Region == r.ID:
			doc.kept++
		}
	}
	lines = append(lines, fmt.Sprintf("region %s is given up for good: %d ranges have no copy elsewhere, and every record with its home in them is lost; %d ranges of the region have copies in other regions and stay, in region %s",
		r.Name, len(loss.Ranges), doc.kept, doc.Into))
	for _, t := range tables {
		if n := classes[t.Class]; n > 0 {
			doc.Tables = append(doc.Tables, t.Name)
			lines = append(lines, fmt.Sprintf("  table %s (class %s): %d ranges with all its records of region %s", t.Name, t.Class, n, r.Name))
		}
	}
	if n := len(doc.Restarts); n > 0 {
		lines = append(lines, fmt.Sprintf("  %s empty in region %s, because other ranges of the same tables stay: %s", output.Counted(n, "lost range restarts", "lost ranges restart"), doc.Into, strings.Join(doc.Restarts, " ")))
	}
	return doc, lines
}

// checkDecided fails if a region cannot be given up yet, and names the command for each range that somebody has to decide about first.
func checkDecided(r rhumb.Region, loss client.RegionLoss, ranges []*rhumb.Range, nodes []rhumb.Node) error {
	if len(loss.Undecided) == 0 {
		return nil
	}
	var steps []string
	for _, id := range loss.Undecided {
		step := "rhumb unsafe-recover range " + id.String() + " --node NODE"
		for _, rg := range ranges {
			live := func(n rhumb.NodeID) bool {
				return slices.ContainsFunc(nodes, func(v rhumb.Node) bool { return v.ID == n && v.Region != r.ID && v.State.Serves() })
			}
			if at := slices.IndexFunc(rg.Replicas, live); rg.ID == id && at >= 0 {
				step = "rhumb unsafe-recover range " + id.String() + " --node " + rg.Replicas[at].String()
			}
		}
		steps = append(steps, "`"+step+"`")
	}
	return rhumb.Ef("rhumb.region", rhumb.Conflict, "nothing was changed: %s copies in other regions of which none is in sync; decide about them first with %s",
		output.Counted(len(loss.Undecided), "range of region "+r.Name+" has", "ranges of region "+r.Name+" have"), strings.Join(steps, ", "))
}

// giveUpRegion describes the loss, asks for its name, and removes it.
func (oc *operationCommands) giveUpRegion(ctx context.Context, c *client.Client, r rhumb.Region, into rhumb.RegionID, yes bool) error {
	loss, err := c.DescribeLoss(ctx, r.ID, into)
	if err != nil {
		return err
	}
	doc, lines := describeRegionLoss(r, regionNames(c).nameOf(loss.Into), loss, c.Ranges(), c.Tables())
	// To standard error also with --yes, so that the log of a script has it.
	for _, line := range lines {
		oc.Notef("%s", line)
	}
	// Nobody should be asked for a decision that cannot be carried out.
	if err := checkDecided(r, loss, c.Ranges(), c.Nodes()); err != nil {
		return err
	}
	if !yes && oc.askFor(fmt.Sprintf("Type %s to give it up: ", r.Name)) != r.Name {
		return rhumb.E("rhumb.region", rhumb.ConditionFailed, "nothing was changed: the name was not confirmed; --yes gives the region up without asking")
	}
	if _, err := c.GiveUpRegion(ctx, r.ID, loss); err != nil {
		return err
	}
	return oc.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"region", doc.Region + " was removed"})
		t.AppendRow(table.Row{"its ranges", fmt.Sprintf("%d lost, %d now belong to the nodes of %s", len(doc.Ranges), doc.kept, doc.Into)})
	})
}

// movedAway says how many ranges of a region have copies in others after its removal was cancelled, and which command brings them back;
// "" if none has. They stay there without the command: the operator may have cancelled because the region is in a bad state. Tables that
// survive the loss of a region have copies elsewhere on purpose. The client's copy of the metadata may lack the region; then nothing is reported.
func movedAway(id rhumb.RegionID, regions []rhumb.Region, nodes []rhumb.Node, ranges []*rhumb.Range, tables []client.TableStatus) string {
	at := slices.IndexFunc(regions, func(r rhumb.Region) bool { return r.ID == id })
	if at < 0 {
		return ""
	}
	region := regions[at]
	spread := map[rhumb.ClassID]bool{}
	for _, t := range tables {
		spread[t.Class] = t.Settings.Survival == rhumb.SurviveRegion
	}
	regionOf := map[rhumb.NodeID]rhumb.RegionID{}
	for _, n := range nodes {
		regionOf[n.ID] = n.Region
	}
	// The copy of the metadata that the client has may be some milliseconds old. The note is for people, and the command looks again.
	count := 0
	for _, r := range ranges {
		if r.ID.Region == region.ID && !spread[r.Class] && slices.ContainsFunc(r.Replicas, func(id rhumb.NodeID) bool { return regionOf[id] != region.ID }) {
			count++
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d ranges of the region have copies in other regions, and these stay there; `rhumb rebalance %s` moves them back", count, region.Name)
}
