package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// healthyView returns a cluster of two regions: the voters 1, 2 and 3 in singapore, and node 4 in
// frankfurt.
func healthyView() View {
	v := View{
		Regions: []rhumb.Region{{ID: 1, Name: "singapore"}, {ID: 2, Name: "frankfurt"}},
		Tables: []client.TableStatus{
			{Table: rhumb.Table{Name: "flights", Class: 1}, Settings: rhumb.ClassSettings{Replicas: 3, MinInSync: 2}},
			{Table: rhumb.Table{Name: "notes", Class: 2}, Settings: rhumb.ClassSettings{Replicas: 1, MinInSync: 1}},
		},
	}
	for id := rhumb.NodeID(1); id <= 4; id++ {
		n := client.NodeStatus{Node: rhumb.Node{ID: id, Region: 1, State: rhumb.NodeLive, Voter: id < 4}, Ready: true, MetadataLeader: 1, Stores: []client.StoreStatus{{Dir: "/d"}}}
		if id == 4 {
			n.Node.Region = 2
		}
		v.Nodes = append(v.Nodes, n)
	}
	three := []rhumb.NodeID{1, 2, 3}
	for slot := range rhumb.Slot(4) {
		p := rhumb.NodeID(1 + slot%3)
		v.Ranges = append(v.Ranges, &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: slot}, Class: 1, Primary: p, Preferred: p, InSync: slices.Clone(three), Replicas: three})
	}
	return v
}

// TestJudge breaks one thing in a healthy cluster at a time and checks that the verdict reports it.
func TestJudge(t *testing.T) {
	dies := func(v *View, ids ...rhumb.NodeID) {
		for _, id := range ids {
			n := &v.Nodes[id-1]
			*n = client.NodeStatus{Node: n.Node, Err: "cannot be reached"}
		}
	}
	damage := []client.StoreDamage{{File: "/d/data/000012.sst", Offset: 4096, What: "the checksum does not match"}}
	for name, test := range map[string]struct {
		breaks func(v *View)
		says   []string // each is part of a problem; none: the cluster is healthy
		not    string
		note   string
		lose   int
	}{
		"well": {breaks: func(*View) {}, lose: 1},
		"a young cluster": {
			breaks: func(v *View) { v.Nodes[1].Node.Voter, v.Nodes[2].Node.Voter = false, false },
			note:   "the metadata group has 1 voter and will have 3", lose: 0,
		},
		"a node dies": {
			breaks: func(v *View) { dies(v, 3) },
			says:   []string{"node n3 in singapore is not ready: cannot be reached", "1 range has no live primary"}, lose: 0,
		},
		"a node and its region were removed": {
			breaks: func(v *View) {
				dies(v, 4)
				v.Nodes[3].Node.State, v.Nodes[3].Node.Forgotten = rhumb.NodeFenced, true
				v.Regions[1].Into, v.Regions[1].Removed = 1, true
			},
			lose: 1,
		},
		"a fenced node answers": {
			breaks: func(v *View) {
				v.Nodes[2].Node.State = rhumb.NodeFenced
				v.Nodes[0].Sights = []client.NodeSight{{Node: 3, Fenced: 12 * time.Second}}
			},
			says: []string{"node n3 in singapore is not ready: fenced 12s ago; it answers here"}, lose: 0,
		},
		"a voter is silent": {
			breaks: func(v *View) {
				v.Nodes[1].Metadata = &client.MetadataReplica{Silent: true, WaitsFor: []rhumb.NodeID{1, 3}}
			},
			says: []string{"the metadata voter of node n2 has started and does not vote yet: it waits for answers of n1, n3"}, lose: 0,
		},
		"a learner is silent": {
			breaks: func(v *View) {
				v.Nodes[3].Metadata = &client.MetadataReplica{Silent: true, WaitsFor: []rhumb.NodeID{1}}
			}, lose: 1,
		},
		"a voter lost entries": {
			breaks: func(v *View) {
				v.Nodes[1].Metadata = &client.MetadataReplica{Silent: true, Short: true}
				v.Nodes[0].Metadata = &client.MetadataReplica{Readmits: []rhumb.NodeID{2}}
			},
			says: []string{"the metadata replica of node n2 lacks entries that it may have stored before it started", "metadata replicas of n2 lost entries: the leader removes them"}, lose: 0,
		},
		"the metadata was recovered": {
			breaks: func(v *View) {
				at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				v.Nodes[0].Metadata = &client.MetadataReplica{Recovered: &client.MetadataRecovery{At: at, Lost: []rhumb.NodeID{2, 3}}}
			},
			note: "the metadata was recovered by force from node n1 at 2026-01-02T03:04:05Z: changes that only n2, n3 had are lost", lose: 1,
		},
		"the only voter was recovered": {
			breaks: func(v *View) {
				at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
				v.Nodes[0].Metadata = &client.MetadataReplica{Recovered: &client.MetadataRecovery{At: at}}
			},
			note: "the metadata was recovered by force from node n1 at 2026-01-02T03:04:05Z: entries that it had lost are missing", lose: 1,
		},
		"a fenced node": {
			breaks: func(v *View) {
				dies(v, 3)
				v.Nodes[2].Node.State = rhumb.NodeFenced
				v.Nodes[0].Sights = []client.NodeSight{{Node: 3, Fenced: 12 * time.Second}}
				for _, r := range v.Ranges {
					r.InSync = []rhumb.NodeID{1, 2}
				}
				v.Ranges[2].Primary = 1
			},
			says: []string{"fenced 12s ago", "4 ranges have fewer copies in sync than their tables ask for", "1 range is displaced: preferred node n3 is fenced"}, lose: 0,
		},
		"two of three voters die": {
			breaks: func(v *View) { dies(v, 2, 3) },
			says:   []string{"no majority: 1 of its 3 voters are up, n2, n3 are down", "fewer live in-sync copies than required, and writes are refused"}, lose: 0,
		},
		"the loss of two copies was accepted": {
			breaks: func(v *View) {
				dies(v, 2, 3)
				for _, r := range v.Ranges {
					r.Primary, r.Recovery, r.Quarantined = 1, &rhumb.Recovery{Node: 1}, []rhumb.NodeID{2, 3}
				}
			},
			says: []string{"4 ranges wait for as many live copies in sync as required (1/0, 1/1, 1/2, ...), although the loss of the others was accepted: start or join nodes"},
			not:  "unsafe-recover range", lose: 0,
		},
		"two copies are lost after an earlier loss was accepted": {
			breaks: func(v *View) {
				dies(v, 2, 3)
				for _, r := range v.Ranges {
					r.Primary, r.Recovery = 1, &rhumb.Recovery{Node: 1}
				}
			},
			says: []string{"4 ranges have fewer live in-sync copies than required"}, lose: 0,
		},
		"a region dies": {
			breaks: func(v *View) {
				v.Ranges = append(v.Ranges, &rhumb.Range{ID: rhumb.RangeID{Region: 2}, Class: 2, Primary: 4, Preferred: 4, InSync: []rhumb.NodeID{4}, Replicas: []rhumb.NodeID{4}})
				dies(v, 4)
				v.Nodes[3].Node.State = rhumb.NodeFenced
				v.Nodes[1].Sights = []client.NodeSight{{Node: 4, Fenced: time.Minute}}
			},
			says: []string{"region frankfurt is dead, for at least 1m0s: none of its nodes (n4) is up; 0 of its 1 ranges"}, lose: 0,
		},
		"a quarantined copy": {
			breaks: func(v *View) {
				v.Ranges[0].InSync, v.Ranges[0].Quarantined = []rhumb.NodeID{1, 2}, []rhumb.NodeID{3}
				v.Nodes[2].Troubles = []client.ReplicaTrouble{{Kind: client.TroubleQuarantined, Range: v.Ranges[0].ID, Node: 3, Reason: "invariant I2"}}
			},
			says: []string{"node n3 has quarantined its copy of 1 range (1/0): invariant I2", "rhumb range discard RANGE --node n3"}, lose: 0,
		},
		"a quarantined copy of a silent node": {
			breaks: func(v *View) { v.Ranges[0].Quarantined = []rhumb.NodeID{3} },
			says:   []string{"node n3 has quarantined its copy of 1 range (1/0): according to the metadata"}, lose: 0,
		},
		"no intact copy": {
			breaks: func(v *View) { v.Ranges[1].Quarantined = []rhumb.NodeID{1, 2, 3} },
			says:   []string{"1 range has no intact copy in sync and is not served (1/1)", "rhumb unsafe-recover range"}, lose: 0,
		},
		"a damaged store": {
			breaks: func(v *View) {
				v.Nodes[1].Stores = []client.StoreStatus{{Dir: "/d", Damages: damage, DamagedRanges: 3}}
			},
			says: []string{"store /d of node n2 is damaged: /d/data/000012.sst at offset 4096: the checksum does not match; up to 3 copies are affected"}, lose: 1,
		},
		"old damage": {
			breaks: func(v *View) { v.Nodes[1].Stores = []client.StoreStatus{{Dir: "/d", Damages: damage}} },
			note:   "was damaged: /d/data/000012.sst at offset 4096", lose: 1,
		},
		"copies arrive and leave while a range moves": {
			breaks: func(v *View) {
				v.Nodes[3].Node.Leaving, v.Nodes[3].Node.State = true, rhumb.NodeDecommissioning
				v.Ranges[0].Replicas = []rhumb.NodeID{1, 2, 3, 4}
			},
			not: "copies", lose: 1,
		},
		"copies in the wrong region": {
			breaks: func(v *View) {
				v.Ranges = append(v.Ranges, &rhumb.Range{ID: rhumb.RangeID{Region: 2}, Class: 1, Primary: 1, Preferred: 1, InSync: []rhumb.NodeID{1, 2, 3}, Replicas: []rhumb.NodeID{1, 2, 3, 4}})
			},
			note: "1 range of region frankfurt with copies in other regions: `rhumb rebalance frankfurt` brings them back", lose: 1,
		},
		"ranges of a region without nodes": {
			breaks: func(v *View) {
				v.Nodes = v.Nodes[:3]
				v.Ranges = append(v.Ranges, &rhumb.Range{ID: rhumb.RangeID{Region: 2}, Class: 1, Primary: 1, Preferred: 1, InSync: []rhumb.NodeID{1, 2, 3}, Replicas: []rhumb.NodeID{1, 2, 3}})
			},
			says: []string{"region frankfurt has no nodes for its 1 range, whose copies are in other regions: start nodes in it, or remove it"}, lose: 1,
		},
		"ranges of a removed region": {
			breaks: func(v *View) {
				v.Regions[1].Into, v.Regions[1].Removed = 1, true
				v.Nodes = v.Nodes[:3]
				v.Ranges = append(v.Ranges, &rhumb.Range{ID: rhumb.RangeID{Region: 2}, Class: 1, Primary: 1, Preferred: 1, InSync: []rhumb.NodeID{1, 2, 3}, Replicas: []rhumb.NodeID{1, 2, 3}})
			},
			not: "region", lose: 1,
		},
		"a short node that caught up": {breaks: func(v *View) { v.Nodes[2].Node.Short = true }, lose: 1},
		"a short node": {
			breaks: func(v *View) {
				v.Nodes[2].Node.Short = true
				v.Ranges[0].InSync = []rhumb.NodeID{1, 2}
			},
			says: []string{"node n3 in singapore lost data that it had acknowledged", "1 copy is not in sync yet"}, lose: 0,
		},
		"the only copy was on a disk that lost data": {
			breaks: func(v *View) {
				v.Nodes[2].Node.Short = true
				v.Ranges[2].Epoch, v.Ranges[2].InSync, v.Ranges[2].Replicas = 2, []rhumb.NodeID{3}, []rhumb.NodeID{3}
			},
			says: []string{"1 range may have lost acknowledged writes (1/2)"}, lose: 0,
		},
		"a range with one copy is newer than the loss": {
			breaks: func(v *View) {
				v.Nodes[2].Node.Short = true
				v.Tables[0].Settings = rhumb.ClassSettings{Replicas: 1, MinInSync: 1}
				v.Ranges[2].Epoch, v.Ranges[2].InSync, v.Ranges[2].Replicas = 1, []rhumb.NodeID{3}, []rhumb.NodeID{3}
			},
			lose: 0,
		},
		"a lost log": {
			breaks: func(v *View) {
				v.Ranges[0].InSync = []rhumb.NodeID{1, 2}
				v.Nodes[0].Troubles = []client.ReplicaTrouble{{Kind: client.TroubleLogLost, Range: v.Ranges[0].ID, Node: 3, Reason: "trimmed up to 7"}}
			},
			says: []string{"node n3 cannot catch up by log with 1 range (1/0): the log that it needs is trimmed away"}, lose: 0,
		},
		"a primary that waits": {
			breaks: func(v *View) {
				v.Nodes[0].Troubles = []client.ReplicaTrouble{{Kind: client.TroubleWaiting, Range: v.Ranges[0].ID, Node: 1, Reason: "n2 has not answered"}}
			},
			says: []string{"node n1 was elected primary of 1 range (1/0) and does not serve yet: n2 has not answered"}, lose: 1,
		},
		"a loop": {
			breaks: func(v *View) { v.Nodes[1].Sights = []client.NodeSight{{Node: 2, Lives: loopLives}} },
			says:   []string{"node n2 in singapore began 4 lives within a minute"}, lose: 1,
		},
		"some lives":                {breaks: func(v *View) { v.Nodes[1].Sights = []client.NodeSight{{Node: 2, Lives: loopLives - 1}} }, lose: 1},
		"a node started repeatedly": {breaks: func(v *View) { v.Nodes[0].Sights = []client.NodeSight{{Node: 2, Lives: loopLives}} }, lose: 1},
		"a wrong clock": {
			breaks: func(v *View) { v.Nodes[1].Reason = "its clock is 3s ahead" },
			says:   []string{"node n2 in singapore gives up its primaries: its clock is 3s ahead"}, lose: 1,
		},
		"displaced": {
			breaks: func(v *View) { v.Ranges[0].Primary = 2; v.Nodes[0].Node.State = rhumb.NodeDraining },
			says:   []string{"1 range is displaced: preferred node n1 drains"}, lose: 1,
		},
		"fail-back is pending": {
			breaks: func(v *View) { v.Ranges[0].Primary, v.Ranges[3].Primary = 2, 2 },
			note:   "2 ranges are displaced, and preferred node n1 is in sync again: fail-back returns them as the setting failback says, or `rhumb node failback n1` at once", lose: 1,
		},
		"fail-back waits for a copy": {
			breaks: func(v *View) { v.Ranges[0].Primary, v.Ranges[0].InSync = 2, []rhumb.NodeID{2, 3} },
			says:   []string{"1 range is displaced: preferred node n1 is not in sync yet"}, lose: 0,
		},
		"copies differ": {
			breaks: func(v *View) {
				v.Nodes[0].DifferingCount = 2
				for _, slot := range []rhumb.Slot{1, 3} {
					v.Nodes[0].Differing = append(v.Nodes[0].Differing, client.RangeDifference{
						Range: rhumb.RangeID{Region: 1, Slot: slot}, Nodes: []rhumb.NodeID{1, 3}, Table: 5, Why: "no copy is that of a majority of the replicas",
					})
				}
			},
			says: []string{"the copies of 2 ranges differ (1/1, 1/3, on n1, n3): no copy is that of a majority of the replicas; `rhumb range verify`"}, lose: 1,
		},
		"copies differ and nobody was quarantined": {
			breaks: func(v *View) {
				v.Nodes[0].DifferingCount = 1
				v.Nodes[0].Differing = []client.RangeDifference{{Range: rhumb.RangeID{Region: 1}, Nodes: []rhumb.NodeID{2}}}
			},
			says: []string{"the copies of 1 range differ (1/0, on n2): the copies that differ were not quarantined"}, lose: 1,
		},
		"a table defers syncs": {
			breaks: func(v *View) { v.Tables[0].Settings.Durability = rhumb.Durability(50 * time.Millisecond) },
			note:   "table flights defers syncs by up to 50ms: if all copies of a range lose power together, acknowledged writes of the last 50ms are lost", lose: 1,
		},
		"many tables defer syncs": {
			breaks: func(v *View) {
				v.Tables[1].Settings.Durability = rhumb.Durability(time.Second)
				for _, name := range []string{"a", "b", "c"} {
					v.Tables = append(v.Tables, client.TableStatus{Table: rhumb.Table{Name: name, Class: 3}, Settings: v.Tables[1].Settings})
				}
			},
			note: "tables notes, a, b and 1 more defer syncs by up to 1s", lose: 1,
		},
		"writes may be lost": {
			breaks: func(v *View) {
				v.Nodes[1].DeferredLosses = &client.DeferredLosses{UnsureEpochs: 2, Last: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			},
			note: "on node n2, 2 ranges of tables that defer syncs went on after all copies that answered had started again, at 2026-01-02T03:04:05Z last", lose: 1,
		},
		"entries are lost": {
			breaks: func(v *View) {
				v.Nodes[1].DeferredLosses = &client.DeferredLosses{Entries: 1, Last: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			},
			note: "ranges of tables that defer syncs went on without 1 entry of node n2, at 2026-01-02T03:04:05Z last", lose: 1,
		},
		"suspected": {
			breaks: func(v *View) { v.Nodes[0].Suspected = []rhumb.NodeID{2} },
			says:   []string{"node n2 in singapore is suspected by n1: its heartbeats do not arrive there"}, lose: 1,
		},
	} {
		v := healthyView()
		test.breaks(&v)
		got := Judge(v)
		all := strings.Join(got.Problems, "\n")
		for _, want := range test.says {
			if !strings.Contains(all, want) {
				t.Errorf("%s: no problem says %q:\n%s", name, want, all)
			}
		}
		if len(test.says) == 0 && len(got.Problems) > 0 {
			t.Errorf("%s: not well:\n%s", name, all)
		}
		if all := all + strings.Join(got.Notes, "\n"); test.not != "" && strings.Contains(all, test.not) {
			t.Errorf("%s: it says %q:\n%s", name, test.not, all)
		}
		if strings.Contains(all, "%!") {
			t.Errorf("%s: %s", name, all)
		}
		if got.CanLose != test.lose {
			t.Errorf("%s: can lose %d, want %d", name, got.CanLose, test.lose)
		}
		if notes := strings.Join(got.Notes, "\n"); test.note != "" && !strings.Contains(notes, test.note) {
			t.Errorf("%s: no note says %q: %s", name, test.note, notes)
		}
	}
}

// TestLeaderIsNamedByVoters guards that a node without a vote, which remembers a leader that died, does not make a status name that leader.
func TestLeaderIsNamedByVoters(t *testing.T) {
	nodes := []client.NodeStatus{{Node: rhumb.Node{ID: 1, Voter: true}}, {Node: rhumb.Node{ID: 2}, MetadataLeader: 3}, {Node: rhumb.Node{ID: 3, Voter: true}}}
	if got := Leader(nodes); got != rhumb.NoNode {
		t.Errorf("the leader is %s, named by a node without a vote", got)
	}
	nodes[0].MetadataLeader = 3
	if got := Leader(nodes); got != 3 {
		t.Errorf("the leader is %s", got)
	}
}
