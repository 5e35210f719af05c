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
	"github.com/rhumbdb/rhumb/cli/health"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/snapshot/inspect"
)

// statusDoc is the document of `rhumb status`.
type statusDoc struct {
	// ClusterID is the ID of the cluster in the metadata.
	ClusterID string `json:"cluster_id"`
	// Healthy is set if there are no problems; notes do not count.
	Healthy bool `json:"healthy"`
	// Problems lists faults that need attention.
	Problems []string `json:"problems"`
	// Notes lists facts that are worth knowing although no action is needed.
	Notes []string `json:"notes,omitempty"`
	// CanLose is how many more nodes may fail, whichever they are, before a range refuses writes or
	// the metadata group has no majority.
	CanLose int `json:"can_lose"`
	// MetadataLeader is empty if no voter knows a leader.
	MetadataLeader string `json:"metadata_leader,omitempty"`
	// Revision is that of the catalog that the document was made from.
	Revision uint64 `json:"revision"`
	// LocalCopy is true if no voter knows a leader: the document then shows the copy of one node,
	// which may be old.
	LocalCopy bool `json:"local_copy,omitempty"`
	// Differing lists ranges whose copies differ; at most 256 for each node.
	Differing []differenceDoc `json:"differing_ranges,omitempty"`
	// Ranges counts ranges by their state, and Tables all tables.
	Ranges  health.RangeCounts `json:"ranges"`
	Tables  int                `json:"tables"`
	Regions []regionDoc        `json:"regions"`
	Nodes   []nodeDoc          `json:"nodes"`
}

// differenceDoc is a range whose copies differ.
type differenceDoc struct {
	Range string `json:"range"`
	// Nodes have the copies that differ: all that answered, if no copy has a majority.
	Nodes []string `json:"nodes"`
	// Table is the first table in which they differ. It is a number if the table was dropped.
	Table string `json:"table"`
	// Why says why no copy was quarantined.
	Why string `json:"why,omitempty"`
}

// describeDifferences returns the ranges whose copies differ.
func describeDifferences(c *client.Client, all []client.RangeDifference) (docs []differenceDoc) {
	// By name, because people know tables by it.
	tables := map[rhumb.TableID]string{}
	for _, t := range c.Tables() {
		tables[t.ID] = t.Name
	}
	for _, d := range all {
		doc := differenceDoc{Range: d.Range.String(), Table: cmp.Or(tables[d.Table], fmt.Sprint(uint32(d.Table))), Why: d.Why}
		for _, n := range d.Nodes {
			doc.Nodes = append(doc.Nodes, n.String())
		}
		docs = append(docs, doc)
	}
	return docs
}

// statusCommand returns `rhumb status`.
func (cc *clusterCommands) statusCommand() *cobra.Command {
	var check, wait bool
	c := &cobra.Command{
		Use: "status", Short: "Report whether the cluster is healthy, and what needs attention",
		Long: `Ask every node for its state and report whether the cluster is healthy: which nodes and regions are down, which ranges
lack copies or a primary and why, which copies and files are damaged or differ, which stores refuse writes, which nodes are fenced
again and again, and how many more nodes may fail. Notes, for example of ranges that wait only for fail-back, do not make it unhealthy.
Without a leader of the metadata group, the command shows one node's copy of the metadata and says so.

With --wait the command waits, for as long as --timeout says, until every node that was not removed is ready and every range has a primary
and all its copies in sync: then the next node may be restarted.`,
		Example: "  rhumb status\n  rhumb status -o json\n  rhumb status --check && echo healthy\n  rhumb status --wait --timeout 5m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				var missing string
				doc, err := clusterStatus(ctx, c)
				if wait && err == nil {
					doc, missing, err = cc.awaitWhole(ctx, c, doc)
				}
				if err != nil {
					return err
				}
				if err := cc.printStatus(doc); err != nil {
					return err
				}
				if missing != "" {
					return rhumb.Ef("rhumb.status", rhumb.DeadlineExceeded, "after %v, %s", cc.waitMost(), missing)
				}
				// The status is printed in full before the error, which only sets the exit code.
				if check && !doc.Healthy {
					return rhumb.E("rhumb.status", rhumb.Unavailable, "the cluster is not healthy: "+strings.Join(doc.Problems, "; "))
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&check, "check", false, "exit with code 5 if the cluster is not healthy")
	c.Flags().BoolVar(&wait, "wait", false, "wait until all nodes are ready and all copies are in sync, for as long as --timeout says")
	return cc.connected(c)
}

// wholePoll is how often --wait asks all nodes.
const wholePoll = 500 * time.Millisecond

// clusterStatus asks all nodes and judges their answers.
func clusterStatus(ctx context.Context, c *client.Client) (statusDoc, error) {
	nodes := c.Status(ctx)
	if err := deniedStatus(nodes); err != nil {
		return statusDoc{}, err
	}
	return describeCluster(c, nodes), nil
}

// awaitWhole waits until nothing is missing, and notes what it waits for. It returns the last status, and the words of missing when the time was over.
func (cc *clusterCommands) awaitWhole(ctx context.Context, c *client.Client, doc statusDoc) (_ statusDoc, missing string, err error) {
	limited, cancel := context.WithTimeout(ctx, cc.waitMost())
	defer cancel()
	shown := ""
	for {
		if missing = doc.missing(); missing == "" {
			return doc, "", nil
		}
		if missing != shown {
			cc.Notef("waiting: %s", missing)
			shown = missing
		}
		select {
		case <-limited.Done():
			return doc, missing, rhumb.WrapKind("rhumb.status", rhumb.Canceled, ctx.Err())
		case <-time.After(wholePoll):
		}
		// A request that the end of the time cuts short would report every node as down.
		if doc, err = clusterStatus(ctx, c); err != nil {
			return doc, "", err
		}
	}
}

// missing returns what keeps the next node from being restarted, or "". A range that another node than the preferred one serves is not part of that: it may
// stay there for as long as fail-back waits.
func (doc *statusDoc) missing() string {
	var words []string
	for _, n := range doc.Nodes {
		if !n.Removed && (!n.Ready || n.State == rhumb.NodeFenced.String()) {
			words = append(words, n.ID+" is not ready")
		}
	}
	if n := doc.Ranges.NoPrimary; n > 0 {
		words = append(words, output.Counted(n, "range has no live primary", "ranges have no live primary"))
	}
	if n := doc.Ranges.UnderReplicated; n > 0 {
		words = append(words, output.Counted(n, "range lacks a copy in sync", "ranges lack copies in sync"))
	}
	if doc.LocalCopy {
		words = append(words, "the metadata group has no leader")
	}
	// This command may have its copy from a node that restarts or is cut off, and see sets from before another node left them.
	for _, n := range doc.Nodes {
		if n.Revision > doc.Revision {
			words = append(words, "the metadata that this command has is older than that of "+n.ID)
			break
		}
	}
	return strings.Join(words, ", ")
}

// describeCluster judges the answers of all nodes.
func describeCluster(c *client.Client, nodes []client.NodeStatus) statusDoc {
	// The revision is read first: the rest is that old or newer.
	revision := c.Revision()
	view := health.View{
		Nodes: nodes, Regions: c.Regions(), Ranges: c.Ranges(), Tables: c.Tables(), Revision: revision,
	}
	// Judge has the rules; this function collects their input and shapes the result.
	v := health.Judge(view)
	doc := statusDoc{
		ClusterID: c.Cluster().String(), Healthy: len(v.Problems) == 0, Problems: v.Problems, Notes: v.Notes, CanLose: v.CanLose, Revision: view.Revision,
		Ranges: v.Counts, Tables: len(view.Tables), Regions: describeRegions(c, false), Nodes: describeNodes(c, view.Nodes),
	}
	doc.Differing = describeDifferences(c, v.Differences)
	// A removed region serves nobody. Its ranges are those of the region that took them.
	doc.Regions = slices.DeleteFunc(doc.Regions, func(r regionDoc) bool { return r.State == removedState })
	// A node that does not answer, or that is fenced, serves nobody.
	ready := map[string]int{}
	for _, n := range doc.Nodes {
		if n.Ready && n.State != rhumb.NodeFenced.String() {
			ready[n.Region]++
		}
	}
	// The catalog may still call a node live that does not answer.
	for i := range doc.Regions {
		doc.Regions[i].NodesLive = min(doc.Regions[i].NodesLive, ready[doc.Regions[i].Name])
	}
	if leader := health.Leader(view.Nodes); leader != rhumb.NoNode {
		doc.MetadataLeader = leader.String()
	}
	doc.LocalCopy = doc.MetadataLeader == ""
	return doc
}

// printStatus prints the state as a table of two columns. Problems come before figures.
func (cc *clusterCommands) printStatus(doc statusDoc) error {
	return cc.Print(doc, func(t table.Writer) {
		word := "healthy"
		if !doc.Healthy {
			word = "NOT HEALTHY"
		}
		t.AppendRow(table.Row{"cluster", doc.ClusterID})
		t.AppendRow(table.Row{"state", word})
		for _, p := range doc.Problems {
			t.AppendRow(table.Row{"problem", p})
		}
		t.AppendRow(table.Row{"metadata", fmt.Sprintf("leader %s, revision %d", cmp.Or(doc.MetadataLeader, "unknown"), doc.Revision)})
		for _, n := range doc.Notes {
			t.AppendRow(table.Row{"note", n})
		}
		t.AppendRow(table.Row{"ranges", fmt.Sprintf("%d: %d without a primary, %d refusing writes, %d under-replicated, %d displaced; %d quarantined copies",
			doc.Ranges.Total, doc.Ranges.NoPrimary, doc.Ranges.Refusing+doc.Ranges.Lost, doc.Ranges.UnderReplicated, doc.Ranges.Displaced, doc.Ranges.Quarantined)})
		t.AppendRow(table.Row{"can lose", describeSpare(doc.CanLose)})
		for _, r := range doc.Regions {
			t.AppendRow(table.Row{"region", fmt.Sprintf("%s: %d of %d nodes live, primary of %d ranges", r.Name, r.NodesLive, r.Nodes, r.Primaries)})
		}
	})
}

// describeSpare describes how many more nodes may fail.
func describeSpare(n int) string {
	const until = "before a range refuses writes or the metadata group has no majority"
	if n == 1 {
		return "1 more node, whichever it is, " + until
	}
	return fmt.Sprintf("%d more nodes, whichever they are, %s", n, until)
}

// milliseconds returns a duration with a precision of a microsecond, as documents have it.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1_000 }

// errorKind returns the kind of the error for which a node could not be asked, or "".
func errorKind(s client.NodeStatus) string {
	if s.Err == "" {
		return ""
	}
	return s.ErrKind.String()
}

// describeNodes returns the nodes with what each reported about itself.
func describeNodes(c *client.Client, statuses []client.NodeStatus) (docs []nodeDoc) {
	n := regionNames(c)
	for _, s := range statuses {
		doc := nodeDoc{
			ID: s.Node.ID.String(), Name: s.Node.Name, Region: n.nameOf(s.Node.Region), Zone: s.Node.Zone, State: s.Node.State.String(), Ready: s.Ready,
			// An error in asking explains more than the reason of an earlier answer.
			Reason: cmp.Or(s.Err, s.Reason), ErrorKind: errorKind(s), Addr: s.Node.Addr, HeartbeatAddr: s.Node.HeartbeatAddr, AdminAddr: s.Node.AdminAddr,
			Voter: s.Node.Voter, Witness: s.Node.Witness, Leader: s.MetadataLeader == s.Node.ID && s.MetadataLeader != 0, Ranges: s.Ranges, Primaries: s.Primaries,
			Revision: s.Revision, Boot: uint64(s.Node.Boot), Version: s.Node.Build().Program, UptimeSeconds: s.Uptime.Seconds(),
			RoundTripMs: milliseconds(s.RoundTrip), Location: inspect.Place(s.Node.Location),
		}
		for _, id := range s.Suspected {
			doc.Suspected = append(doc.Suspected, id.String())
		}
		doc.Short, doc.Troubles = s.Node.Short, s.TroubleCounts
		doc.Removed, doc.ReplacedBy = s.Node.Forgotten, nodeName(s.Node.ReplacedBy)
		doc.Relapses, doc.FailedAt = s.Node.Relapses, s.Node.FailedAt
		// A replica of the metadata that is healthy is left out, so that its presence is a sign.
		if m := s.Metadata; m != nil && (m.Silent || m.Short || len(m.Readmits) > 0 || m.Recovered != nil) {
			doc.Metadata = m
		}
		doc.Meta, doc.DeferredLosses = doc.describeMeta(), s.DeferredLosses
		for _, phase := range s.Start {
			if doc.Start == nil {
				doc.Start = map[string]float64{}
			}
			doc.Start[phase.Name] = phase.Took.Seconds()
		}
		for _, st := range s.Stores {
			doc.UsedBytes += st.UsedBytes
			doc.Stores = append(doc.Stores, storeDoc{
				Dir: st.Dir, ID: st.ID.String(), UsedBytes: st.UsedBytes, FreeBytes: st.FreeBytes, Ranges: st.Ranges, Refuses: st.Refuses,
				Damages: st.Damages, DamagedRanges: st.DamagedRanges,
			})
		}
		docs = append(docs, doc)
	}
	return docs
}
