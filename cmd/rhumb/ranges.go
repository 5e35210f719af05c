package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/connect"
	"github.com/rhumbdb/rhumb/client"
)

// rangeCommands are `rhumb range` and `rhumb unsafe-recover range`.
type rangeCommands struct{ *session }

// rangeCommand returns the group `rhumb range`. `range ls` applies --node and --region itself, because the client has all ranges
// in its catalog.
func (rc *rangeCommands) rangeCommand() *cobra.Command {
	var region, node string
	ls := &cobra.Command{
		Use: "ls", Short: "List the ranges, their primaries and in-sync copies", Args: cobra.NoArgs,
		Long: `List the ranges, their primaries and in-sync copies. KEPT marks a range that an operator split off (rhumb range split): the cluster
merges small ranges on its own after range_merge_after, and leaves such a range alone until rhumb range merge merges it back.`,
		Example: "  rhumb range ls --region frankfurt\n  rhumb range ls --node n3 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return rc.conn.With(cmd.Context(), func(_ context.Context, c *client.Client) error {
				return rc.listRanges(c, region, node)
			})
		},
	}
	ls.Flags().StringVar(&region, "region", "", "only ranges whose home is this region")
	ls.Flags().StringVar(&node, "node", "", "only ranges with a copy on this node")
	describe := &cobra.Command{
		Use: "describe REGION/SLOT", Short: "Show a range and the state of each replica", Args: cobra.ExactArgs(1),
		Example: "  rhumb range describe 1/1042\n  rhumb range describe frankfurt/1042 -o json",
		RunE:    func(cmd *cobra.Command, args []string) error { return rc.describeRange(cmd.Context(), args[0]) },
	}
	return commandGroup("range", "List, describe, compare, hand over, move, split and merge ranges, discard damaged copies", rc.connected(ls), rc.connected(describe), rc.connected(rc.verifyCommand()), rc.connected(rc.discardCommand()), rc.handoverCommand(),
		(&operationCommands{session: rc.session}).moveCommand(), rc.splitCommand(), rc.mergeCommand())
}

// splitWait is how long `rhumb range split` waits for the primary to divide the range.
const splitWait = 30 * time.Second

// splitCommand is `rhumb range split`.
func (rc *rangeCommands) splitCommand() *cobra.Command {
	var at uint32
	var noWait bool
	split := &cobra.Command{
		Use: "split REGION/SLOT", Short: "Divide a range in two",
		Long: `Divide a range in two, in the middle or at a slot. No data moves and no write is refused; writes to the new range wait for two
commits. Ranges above the size of the setting range_split_bytes are split without this command. Nothing but
rhumb range merge merges the new range back.`,
		Example: "  rhumb range split frankfurt/0\n  rhumb range split frankfurt/0 --at 1024 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := parseRange(c, args[0])
				if err != nil {
					return err
				}
				// The protocol says 0 for the middle.
				if at == 0 && cmd.Flags().Changed("at") {
					return rhumb.E("rhumb.range", rhumb.InvalidArgument, "a split at slot 0 does not divide a range; leave --at out to split it in the middle")
				}
				r, err := c.SplitRange(ctx, id, rhumb.Slot(at))
				if err != nil {
					return err
				}
				if !noWait {
					if r, err = awaitBirth(ctx, c, r); err != nil {
						return err
					}
				}
				return rc.printRanges([]rangeDoc{regionNames(c).describeRange(r)})
			})
		},
	}
	split.Flags().Uint32Var(&at, "at", 0, "first slot of the new range (default the middle of the range)")
	split.Flags().BoolVar(&noWait, "no-wait", false, "return when the new range is reserved")
	return rc.connected(split)
}

// mergeDoc is the result of `range merge`.
type mergeDoc struct {
	Left   string `json:"left"`
	Right  string `json:"right"`
	Merged bool   `json:"merged"`
}

// mergeCommand is `rhumb range merge`.
func (rc *rangeCommands) mergeCommand() *cobra.Command {
	var dryRun, noWait bool
	merge := &cobra.Command{
		Use: "merge REGION/SLOT", Short: "Merge a range with the next one",
		Long: `Make one range of a range and the one that begins where it ends. No data moves and no write is refused; requests for the right range
wait for two commits. Both ranges need the same replicas, all in sync, and the same primary: move or hand over one of them first
otherwise. No range begins again at the slot where the right one began.`,
		Example: "  rhumb range merge frankfurt/0 --dry-run\n  rhumb range merge frankfurt/0 -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return rc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				id, err := parseRange(c, args[0])
				if err != nil {
					return err
				}
				left, right, err := c.MergeRange(ctx, id, dryRun)
				if err != nil {
					return err
				}
				doc := mergeDoc{Left: left.ID.String(), Right: right.ID.String(), Merged: !dryRun && !noWait}
				if doc.Merged {
					if err := awaitMerge(ctx, c, left, right); err != nil {
						return err
					}
				}
				return rc.Print(doc, func(t table.Writer) {
					t.AppendHeader(table.Row{"LEFT", "RIGHT", "MERGED"})
					t.AppendRow(table.Row{doc.Left, doc.Right, doc.Merged})
				})
			})
		},
	}
	merge.Flags().BoolVar(&dryRun, "dry-run", false, "only say whether the ranges could be merged now")
	merge.Flags().BoolVar(&noWait, "no-wait", false, "return when the ranges are marked for the merge")
	return rc.connected(merge)
}

// awaitMerge waits until the left range, which has the mark of the merge, has the slots of the right one.
func awaitMerge(ctx context.Context, c *client.Client, left, right *rhumb.Range) error {
	ctx, cancel := context.WithTimeout(ctx, splitWait)
	defer cancel()
	// The record of the right range goes in the same command, so the bounds of the left one say
	// enough. Records from before the mark may be of a time before a split.
	after, err := awaitRange(ctx, c, left.ID, func(r *rhumb.Range) bool { return r.Version > left.Version && !r.IsMerging() })
	if err == nil && after.LastSlot() < right.LastSlot() {
		return rhumb.Ef("rhumb.range", rhumb.Unavailable, "the merge of ranges %s and %s was given up: their in-sync copies were not all reachable; run the command again", left.ID, right.ID)
	}
	if err != nil {
		return rhumb.Ef("rhumb.range", rhumb.Unavailable, "ranges %s and %s are marked for a merge, which is not done yet; their primary merges them when all in-sync copies are reachable, and leaves them apart after 10 s otherwise; `rhumb range ls` shows what they are", left.ID, right.ID)
	}
	return nil
}

// awaitBirth waits until the slots of a reserved range are its own, and returns its record.
func awaitBirth(ctx context.Context, c *client.Client, r *rhumb.Range) (*rhumb.Range, error) {
	ctx, cancel := context.WithTimeout(ctx, splitWait)
	defer cancel()
	born, err := c.AwaitSplit(ctx, r)
	if rhumb.KindOf(err) == rhumb.Conflict {
		return nil, err
	}
	if err != nil {
		return nil, rhumb.Ef("rhumb.range", rhumb.Unavailable, "range %s is reserved, and its primary has not divided the old range yet; it does so when all in-sync copies are reachable, and gives the split up after 10 s otherwise; the range stays whole then", r.ID)
	}
	return born, nil
}

// slotsText returns the number of slots of a range, for people.
func (d *rangeDoc) slotsText() string {
	if d.Reserved {
		return "reserved"
	}
	return fmt.Sprint(d.Slots)
}

// keptText marks a range that an operator split off, for people.
func (d *rangeDoc) keptText() string {
	if d.Kept {
		return "kept"
	}
	return ""
}

// listRanges prints the ranges of a region, or those with a copy on a node.
func (rc *rangeCommands) listRanges(c *client.Client, region, node string) error {
	n := regionNames(c)
	home, err := regionID(c, region)
	if err != nil {
		return err
	}
	// Zero selects all nodes.
	var holder rhumb.NodeID
	if node != "" {
		arg, err := connect.ParseNode(node)
		if err != nil {
			return err
		}
		nodes := c.Nodes()
		if holder, err = arg.Find(nodes); err != nil {
			return err
		}
		// An empty list would say that the node has no copies.
		if !slices.ContainsFunc(nodes, func(n rhumb.Node) bool { return n.ID == holder }) {
			return rhumb.Ef("rhumb.range", rhumb.NotFound, "there is no node %s; `rhumb node ls` lists the nodes", holder)
		}
	}
	docs := []rangeDoc{}
	ranges := c.Ranges()
	for _, r := range ranges {
		if (home == 0 || r.ID.Region == home) && (holder == 0 || r.IsReplica(holder)) {
			doc := n.describeRange(r)
			if r.IsMerging() {
				doc.MergingWith = mergingWith(r, ranges)
			}
			docs = append(docs, doc)
		}
	}
	return rc.printRanges(docs)
}

// printRanges prints ranges as a table.
func (rc *rangeCommands) printRanges(docs []rangeDoc) error {
	return rc.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"RANGE", "SLOTS", "REGION", "CLASS", "EPOCH", "PRIMARY", "PREFERRED", "IN SYNC", "REPLICAS", "QUARANTINED", "KEPT", "LEAVING", "MERGING WITH"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.ID, d.slotsText(), d.Region, d.Class, d.Epoch, d.Primary, d.Preferred, strings.Join(d.InSync, " "), strings.Join(d.Replicas, " "), strings.Join(d.Quarantined, " "), d.keptText(), strings.Join(d.Leaving, " "), d.MergingWith})
		}
	})
}

// regionID returns the ID of a region by its name, and 0 for "".
func regionID(c *client.Client, name string) (rhumb.RegionID, error) {
	if name == "" {
		return 0, nil
	}
	r, err := regionNamed(c, name)
	return r.ID, err
}

// regionNamed returns a region by its name.
func regionNamed(c *client.Client, name string) (rhumb.Region, error) {
	var known []string
	for _, r := range c.Regions() {
		if r.Name == name {
			return r, nil
		}
		known = append(known, r.Name)
	}
	return rhumb.Region{}, rhumb.Ef("rhumb.region", rhumb.NotFound, "there is no region %q; the cluster has %s", name, strings.Join(known, ", "))
}

// parseRange parses REGION/SLOT with the number or the name of the region.
func parseRange(c *client.Client, s string) (rhumb.RangeID, error) {
	// A region named 1 would win over the region with the number 1: names are what people see.
	name, slot, ok := strings.Cut(s, "/")
	if !ok {
		return rhumb.ParseRangeID(s)
	}
	r, err := regionNamed(c, name)
	if err == nil {
		return rhumb.ParseRangeID(r.ID.String() + "/" + slot)
	}
	// The form of atlantis/0 is right, only there is no such region.
	if _, notNumber := strconv.ParseUint(name, 10, 32); notNumber != nil && name != "" {
		return rhumb.RangeID{}, err
	}
	return rhumb.ParseRangeID(s)
}

// replicaDoc is the state of one replica.
type replicaDoc struct {
	// Node holds the replica. Region is that of the node, which may differ from the region of the range.
	Node   string `json:"node"`
	Region string `json:"region"`
	// State is the state that the node reports. It is empty if the node did not answer.
	State  string `json:"state"`
	InSync bool   `json:"in_sync"`
	Epoch  uint64 `json:"epoch"`
	// End is the last position in the log, Commit the last one that the replica knows as committed, and Trim the position up
	// to which the log was removed.
	End    uint64 `json:"end"`
	Commit uint64 `json:"commit"`
	Trim   uint64 `json:"trim"`
	// Store is the number of the node's store (--dir) that holds the copy, from 1, omitted if the node has one.
	Store int `json:"store,omitempty"`
	// Reason explains the state, or why there is none; ErrorKind is the kind of the error in the second case.
	Reason    string `json:"reason,omitempty"`
	ErrorKind string `json:"error_kind,omitempty"`
	// Copying is the copy of the range that the node receives, omitted if it receives none.
	Copying *copyDoc `json:"copying,omitempty"`
}

// copyDoc is a copy of a range that a node receives.
type copyDoc struct {
	From string `json:"from"`
	// DoneBytes of TotalBytes have arrived. TotalBytes is 0 until the other node has made the copy.
	DoneBytes      int64 `json:"done_bytes"`
	TotalBytes     int64 `json:"total_bytes"`
	BytesPerSecond int64 `json:"bytes_per_second"`
	// ETASeconds is the estimated time left, omitted without an estimate.
	ETASeconds *float64 `json:"eta_seconds,omitempty"`
	Installing bool     `json:"installing,omitempty"`
	Failures   int      `json:"failures,omitempty"`
	LastError  string   `json:"last_error,omitempty"`
}

// describeCopy returns the document of a copy, nil for none.
func describeCopy(p *client.CopyProgress) *copyDoc {
	if p == nil {
		return nil
	}
	doc := &copyDoc{
		From: p.From.String(), DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes, BytesPerSecond: p.BytesPerSecond, Installing: p.Installing,
		Failures: p.Failures, LastError: p.LastError,
	}
	// A zero would look like a copy that is done.
	if left, ok := p.ETA(); ok {
		seconds := left.Seconds()
		doc.ETASeconds = &seconds
	}
	return doc
}

// text returns the progress of a copy for people, "" for none.
func (d *copyDoc) text() string {
	// The first cases are those without a speed.
	switch {
	case d == nil:
		return ""
	// The replica waits for its next attempt, and no node sends to it.
	case d.From == rhumb.NoNode.String():
		return fmt.Sprintf("the last of %d attempts to copy the range failed: %s", d.Failures, d.LastError)
	case d.Installing:
		return fmt.Sprintf("installs a copy of %s from %s", bytesText(uint64(d.TotalBytes)), d.From)
	case d.TotalBytes == 0:
		return fmt.Sprintf("waits until %s has made a copy", d.From)
	}
	text := fmt.Sprintf("copies from %s: %s of %s, %s/s", d.From, bytesText(uint64(d.DoneBytes)), bytesText(uint64(d.TotalBytes)), bytesText(uint64(d.BytesPerSecond)))
	if d.ETASeconds != nil {
		text += fmt.Sprintf(", about %s left", ran(*d.ETASeconds))
	}
	return text
}

// nodeText returns the node of a copy for people, with the store if the node has several.
func (d *replicaDoc) nodeText() string {
	if d.Store == 0 {
		return d.Node
	}
	return fmt.Sprintf("%s store %d", d.Node, d.Store)
}

// rangeStatusDoc is a range with the state of its replicas.
type rangeStatusDoc struct {
	rangeDoc
	// SizeBytes is approximate.
	SizeBytes uint64 `json:"size_bytes"`
	// StandsInFor is the dead node in whose place the primary serves, omitted if there is none.
	StandsInFor string `json:"stands_in_for,omitempty"`
	// Status has an element for each replica, and is never nil.
	Status []replicaDoc `json:"replica_status"`
}

// describeRange prints the record of a range and the state of each of its copies.
func (rc *rangeCommands) describeRange(ctx context.Context, id string) error {
	return rc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		home, err := parseRange(c, id)
		if err != nil {
			return err
		}
		s, err := c.DescribeRange(ctx, home)
		if err != nil {
			return err
		}
		n := regionNames(c)
		regionOf := map[rhumb.NodeID]string{}
		for _, node := range c.Nodes() {
			regionOf[node.ID] = n.nameOf(node.Region)
		}
		doc := rangeStatusDoc{rangeDoc: n.describeRange(s.Range), SizeBytes: s.SizeBytes, Status: []replicaDoc{}}
		if s.Range.IsMerging() {
			doc.MergingWith = mergingWith(s.Range, c.Ranges())
		}
		// Until the home is back, or has been replaced, its stand-in serves.
		for _, node := range c.Nodes() {
			if node.ID == s.Range.Preferred && node.ID != s.Range.Primary && node.State == rhumb.NodeFenced {
				doc.StandsInFor = node.ID.String()
			}
		}
		for _, r := range s.Replicas {
			doc.Status = append(doc.Status, replicaDoc{
				Node: r.Node.String(), Region: regionOf[r.Node], State: r.State, InSync: r.InSync, Epoch: uint64(r.Epoch),
				End: uint64(r.End), Commit: uint64(r.Commit), Trim: uint64(r.Trim), Reason: r.Reason, ErrorKind: r.ErrorKind,
				Copying: describeCopy(r.Copying), Store: r.Store,
			})
		}
		return rc.printRangeStatus(doc)
	})
}

// printRangeStatus prints the replicas of a range as a table. What concerns the whole range is its
// title.
func (rc *rangeCommands) printRangeStatus(doc rangeStatusDoc) error {
	title := fmt.Sprintf("range %s of %s: slots up to %d, epoch %d, primary %s (preferred %s), about %d bytes",
		doc.ID, doc.Region, doc.Last, doc.Epoch, doc.Primary, doc.Preferred, doc.SizeBytes)
	if doc.StandsInFor != "" {
		title += fmt.Sprintf("; %s stands in for %s, which is fenced", doc.Primary, doc.StandsInFor)
	}
	if doc.Former != "" {
		title += "; it returns to " + doc.Former + " when that node is back"
	}
	if doc.Kept {
		title += "; an operator split it off, so nothing but rhumb range merge merges it back"
	}
	if doc.Prepared != "" {
		title += "; a handover to " + doc.Prepared + " is prepared"
	}
	if text := doc.changesText(); text != "" {
		title += "; " + text
	}
	// Loss is part of the title until the next one replaces it: it explains why records may be missing.
	if r := doc.Recovery; r != nil {
		title += fmt.Sprintf("; a loss was accepted in epoch %d: the range continued from %s, whose log ended at %d %s; the last position known to be committed was %d", r.Epoch, r.Node, r.End, r.EndTime, r.Known)
		if len(r.Gone) > 0 {
			title += "; the copies on " + strings.Join(r.Gone, ", ") + " were given up"
		}
	}
	return rc.PrintTitled(doc, title, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "REGION", "STATE", "IN SYNC", "EPOCH", "END", "COMMIT", "TRIM", "COPYING", "REASON"})
		for _, r := range doc.Status {
			t.AppendRow(table.Row{r.nodeText(), r.Region, r.State, r.InSync, r.Epoch, r.End, r.Commit, r.Trim, r.Copying.text(), r.Reason})
		}
	})
}
