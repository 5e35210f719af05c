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
	"github.com/rhumbdb/rhumb/client"
)

func (a *app) initCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "init", Short: "Make a new cluster of the node at --addr",
		Long: `Make a new cluster whose first member is the node at --addr, which waits for that since its first start. Do it once,
on one node: the others join it by their --join.`,
		Example: "  rhumb init --addr 127.0.0.1:7600 --insecure",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.conn.clientConfig()
			if err != nil {
				return err
			}
			id, err := client.Init(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			doc := map[string]string{"cluster_id": id.String()}
			return a.print(doc, func(t table.Writer) { t.AppendRow(table.Row{"cluster", id}) })
		},
	}
	return a.connected(c)
}

// statusDoc is how a cluster stands.
type statusDoc struct {
	ClusterID string `json:"cluster_id"`
	Healthy   bool   `json:"healthy"`
	// Problems say what is not as it should be.
	Problems []string `json:"problems"`
	// Notes say what is worth knowing although nothing depends on it.
	Notes []string `json:"notes,omitempty"`
	// CanLose is how many more nodes may fail, whichever they are, before a range refuses writes or the metadata group has
	// no majority.
	CanLose        int    `json:"can_lose"`
	MetadataLeader string `json:"metadata_leader,omitempty"`
	Revision       uint64 `json:"revision"`
	// LocalCopy says that no node knows a leader: then all this is from the copy of one node, which may be old.
	LocalCopy bool        `json:"local_copy,omitempty"`
	Ranges    rangeCounts `json:"ranges"`
	Tables    int         `json:"tables"`
	Regions   []regionDoc `json:"regions"`
	Nodes     []nodeDoc   `json:"nodes"`
}

// rangeCounts sort the ranges by how they stand.
type rangeCounts struct {
	Total int `json:"total"`
	// NoPrimary have no live primary. UnderReplicated miss in-sync replicas. Displaced are served by another node than
	// the preferred one. Refusing have fewer live in-sync copies than their minimum, and Lost no intact one: they are not
	// served until a loss is accepted. Quarantined counts damaged copies, not ranges.
	NoPrimary       int `json:"no_primary"`
	UnderReplicated int `json:"under_replicated"`
	Displaced       int `json:"displaced"`
	Refusing        int `json:"refusing"`
	Lost            int `json:"lost"`
	Quarantined     int `json:"quarantined_copies"`
}

func (a *app) statusCommand() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use: "status", Short: "Say whether the cluster is well, and what to look at",
		Long: `Ask every node how it stands, and say whether the cluster is well: which nodes and regions are down, which ranges miss
copies or a primary and why, which copies and files are damaged, which store refuses writes, which nodes begin life after
life, and how many nodes may still fail. Without a leader of the metadata group it shows the copy that a node has, and says
so.`,
		Example: "  rhumb status\n  rhumb status -o json\n  rhumb status --check && echo well",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				doc := describeCluster(ctx, c)
				if err := a.printStatus(doc); err != nil {
					return err
				}
				if check && !doc.Healthy {
					return rhumb.E("rhumb.status", rhumb.Unavailable, "the cluster is not well: "+strings.Join(doc.Problems, "; "))
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&check, "check", false, "end with code 5 when the cluster is not well")
	return a.connected(c)
}

func describeCluster(ctx context.Context, c *client.Client) statusDoc {
	view := clusterView{
		Nodes: c.Status(ctx), Regions: c.Regions(), Ranges: c.Ranges(), Revision: c.Revision(), MinInSync: map[rhumb.ClassID]int{},
	}
	for _, t := range c.Tables() {
		view.MinInSync[t.Class] = t.Settings.MinInSync
	}
	v := judge(view)
	doc := statusDoc{
		ClusterID: c.Cluster().String(), Healthy: len(v.Problems) == 0, Problems: v.Problems, Notes: v.Notes, CanLose: v.CanLose, Revision: view.Revision,
		Ranges: v.Counts, Tables: len(c.Tables()), Regions: describeRegions(c), Nodes: describeNodes(c, view.Nodes),
	}
	ready := map[string]int{}
	for _, n := range doc.Nodes {
		if n.Ready && n.State != rhumb.NodeFenced.String() {
			ready[n.Region]++
		}
	}
	for i := range doc.Regions { // what metadata calls live may not answer
		doc.Regions[i].NodesLive = min(doc.Regions[i].NodesLive, ready[doc.Regions[i].Name])
	}
	for _, s := range view.Nodes {
		if s.MetadataLeader != 0 {
			doc.MetadataLeader = s.MetadataLeader.String()
		}
	}
	doc.LocalCopy = doc.MetadataLeader == ""
	return doc
}

func (a *app) printStatus(doc statusDoc) error {
	return a.print(doc, func(t table.Writer) {
		word := "well"
		if !doc.Healthy {
			word = "NOT WELL"
		}
		t.AppendRow(table.Row{"cluster", doc.ClusterID})
		t.AppendRow(table.Row{"state", word})
		for _, p := range doc.Problems {
			t.AppendRow(table.Row{"problem", p})
		}
		t.AppendRow(table.Row{"metadata", fmt.Sprintf("leader %s, revision %d", orElse(doc.MetadataLeader, "unknown"), doc.Revision)})
		for _, n := range doc.Notes {
			t.AppendRow(table.Row{"note", n})
		}
		t.AppendRow(table.Row{"ranges", fmt.Sprintf("%d, of which %d without a primary, %d refusing writes, %d under-replicated, %d displaced; %d quarantined copies",
			doc.Ranges.Total, doc.Ranges.NoPrimary, doc.Ranges.Refusing+doc.Ranges.Lost, doc.Ranges.UnderReplicated, doc.Ranges.Displaced, doc.Ranges.Quarantined)})
		t.AppendRow(table.Row{"can lose", fmt.Sprintf("%d more nodes, whichever they are, before a range refuses writes or metadata stands still", doc.CanLose)})
		for _, r := range doc.Regions {
			t.AppendRow(table.Row{"region", fmt.Sprintf("%s: %d of %d nodes live, primary of %d ranges", r.Name, r.NodesLive, r.Nodes, r.Primaries)})
		}
	})
}

func describeRegions(c *client.Client) (docs []regionDoc) {
	nodes, ranges := c.Nodes(), c.Ranges()
	regionOf := map[rhumb.NodeID]rhumb.RegionID{}
	for _, n := range nodes {
		regionOf[n.ID] = n.Region
	}
	for _, r := range c.Regions() {
		doc := regionDoc{ID: uint32(r.ID), Name: r.Name, Location: pointDoc(r.Location)}
		for _, n := range nodes {
			if n.Region == r.ID {
				doc.Nodes++
				if n.State == rhumb.NodeLive {
					doc.NodesLive++
				}
			}
		}
		for _, rg := range ranges {
			if rg.ID.Region == r.ID {
				doc.Ranges++
			}
			if regionOf[rg.Primary] == r.ID {
				doc.Primaries++
			}
		}
		if rtt, ok := c.RoundTrip(r.ID); ok {
			ms := milliseconds(rtt)
			doc.RoundTripMs = &ms
		}
		docs = append(docs, doc)
	}
	return docs
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1_000 }

func describeNodes(c *client.Client, statuses []client.NodeStatus) (docs []nodeDoc) {
	n := regionNames(c)
	for _, s := range statuses {
		doc := nodeDoc{
			ID: s.Node.ID.String(), Region: n.of(s.Node.Region), Zone: s.Node.Zone, State: s.Node.State.String(), Ready: s.Ready,
			Reason: orElse(s.Err, s.Reason), Addr: s.Node.Addr, HeartbeatAddr: s.Node.HeartbeatAddr, AdminAddr: s.Node.AdminAddr,
			Voter: s.Node.Voter, Leader: s.MetadataLeader == s.Node.ID && s.MetadataLeader != 0, Ranges: s.Ranges, Primaries: s.Primaries,
			Revision: s.Revision, Boot: uint64(s.Node.Boot), Version: s.Node.Binary, UptimeSeconds: s.Uptime.Seconds(),
			RoundTripMs: milliseconds(s.RoundTrip), Location: pointDoc(s.Node.Location),
		}
		for _, id := range s.Suspected {
			doc.Suspected = append(doc.Suspected, id.String())
		}
		doc.Short, doc.Troubles = s.Node.Short, s.TroubleCounts
		if m := s.Metadata; m != nil && (m.Silent || m.Short || len(m.Readmits) > 0 || m.Recovered != nil) {
			doc.Metadata = m
		}
		for _, st := range s.Stores {
			doc.Stores = append(doc.Stores, storeDoc{
				Dir: st.Dir, ID: st.ID.String(), UsedBytes: st.UsedBytes, FreeBytes: st.FreeBytes, Ranges: st.Ranges, Refuses: st.Refuses,
				Damages: st.Damages, DamagedRanges: st.DamagedRanges,
			})
		}
		docs = append(docs, doc)
	}
	return docs
}

func (a *app) nodeCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the nodes, as each of them stands", Args: cobra.NoArgs,
		Example: "  rhumb node ls\n  rhumb node ls -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.printNodes(describeNodes(c, c.Status(ctx)))
			})
		},
	}
	var undo bool
	drain := &cobra.Command{
		Use: "drain NODE", Short: "Let a node give up its primaries and take no new role",
		Long: `Let a node give up its primaries and take no new role, before it is stopped for good or for work on its machine.
A node that is stopped by SIGTERM drains by itself.`,
		Example: "  rhumb node drain n3\n  rhumb node drain n3 --undo",
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.drain(cmd.Context(), args[0], undo) },
	}
	drain.Flags().BoolVar(&undo, "undo", false, "let the node take part again")
	return noArgsGroup("node", "List and drain nodes", a.connected(ls), a.connected(drain))
}

// trouble says in a few words what is wrong with a node's copies and disks.
func (d *nodeDoc) trouble() string {
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

func (a *app) printNodes(docs []nodeDoc) error {
	return a.print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"NODE", "REGION", "ZONE", "STATE", "READY", "ADDR", "ADMIN", "META", "RANGES", "PRIMARIES", "TROUBLE", "MS"})
		for _, d := range docs {
			meta := ""
			switch {
			case d.Leader:
				meta = "leader"
			case d.Voter:
				meta = "voter"
			}
			t.AppendRow(table.Row{d.ID, d.Region, d.Zone, d.State, d.Ready, d.Addr, d.AdminAddr, meta, d.Ranges, d.Primaries, d.trouble(), fmt.Sprintf("%.1f", d.RoundTripMs)})
		}
	})
}

func (a *app) drain(ctx context.Context, node string, undo bool) error {
	id, err := parseNode(node)
	if err != nil {
		return err
	}
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		if !slices.ContainsFunc(c.Nodes(), func(n rhumb.Node) bool { return n.ID == id }) {
			return rhumb.Ef("rhumb.drain", rhumb.NotFound, "there is no node %s; `rhumb node ls` lists them", id)
		}
		left, err := c.Drain(ctx, id, undo)
		if err != nil {
			return err
		}
		if left > 0 && !undo {
			return rhumb.Ef("rhumb.drain", rhumb.Unavailable, "node %s is still primary of %d ranges: run it again, or with a longer --timeout", id, left)
		}
		doc := map[string]any{"node": id.String(), "draining": !undo, "primaries": left}
		return a.print(doc, func(t table.Writer) {
			t.AppendHeader(table.Row{"NODE", "DRAINING", "PRIMARIES"})
			t.AppendRow(table.Row{id, !undo, left})
		})
	})
}

func (a *app) regionCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the regions and their primaries", Args: cobra.NoArgs, Example: "  rhumb region ls\n  rhumb region ls -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(_ context.Context, c *client.Client) error {
				return a.printRegions(describeRegions(c))
			})
		},
	}
	return noArgsGroup("region", "List regions", a.connected(ls))
}

func (a *app) printRegions(docs []regionDoc) error {
	return a.print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"REGION", "ID", "LOCATION", "NODES", "LIVE", "RANGES", "PRIMARIES", "MS"})
		for _, d := range docs {
			ms := ""
			if d.RoundTripMs != nil {
				ms = fmt.Sprintf("%.1f", *d.RoundTripMs)
			}
			t.AppendRow(table.Row{d.Name, d.ID, rhumb.Point(d.Location), d.Nodes, d.NodesLive, d.Ranges, d.Primaries, ms})
		}
	})
}
