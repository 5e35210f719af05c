package place

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestJudge looks at who is fenced on which reports. Regions: 1 to 3, 4 to 6, 7 to 9, all with three replicas each.
func TestJudge(t *testing.T) {
	full := build(t, three()...)
	full = apply(t, full, Complete(full, catalog.CreateClass{Settings: settings(3, 2)}))
	fenced3 := apply(t, full, catalog.FenceNode{Node: 3, Boot: 1})
	pair := build(t, three()[:2]...)
	pair = apply(t, pair, Complete(pair, catalog.CreateClass{Settings: settings(2, 2)}))
	bare := build(t, three()...)
	tests := []struct {
		name   string
		state  *catalog.State
		leader rhumb.NodeID
		lost   []rhumb.NodeID
		// reports maps who reports to whom.
		reports map[rhumb.NodeID][]rhumb.NodeID
		want    rhumb.NodeID
	}{
		{"nobody says anything", full, 4, []rhumb.NodeID{1}, nil, 0},
		{"one of two accuses, whom the leader hears", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"both fellows accuse", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, 1},
		{"one accuses and the leader lost contact", full, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 1},
		{"a stranger accuses and the leader lost contact", full, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{5: {1}}, 0},
		{"many strangers accuse", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{5: {1}, 6: {1}, 7: {1}, 8: {1}, 9: {1}}, 0},
		{"a region cut off: the leader lost all of it", full, 4, []rhumb.NodeID{1, 2, 3}, map[rhumb.NodeID][]rhumb.NodeID{5: {1, 2, 3}}, 0},
		{"the leader is one of two fellows", full, 2, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"both fellows accuse, one of them leads", full, 2, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, 1},
		{"an outcast accuses its accusers", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{1: {2, 3}, 2: {1}, 3: {1}}, 1},
		{"the leader is never fenced by itself", full, 1, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, 0},
		{"a fenced node's word", fenced3, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{3: {1}}, 0},
		{"a fenced node is accused", fenced3, 4, []rhumb.NodeID{3}, map[rhumb.NodeID][]rhumb.NodeID{1: {3}, 2: {3}}, 0},
		{"the last fellow, and the leader hears the accused", fenced3, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"the last fellow, and the leader lost contact", fenced3, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 1},
		{"two nodes: the leader alone is left", pair, 1, []rhumb.NodeID{2}, map[rhumb.NodeID][]rhumb.NodeID{1: {2}}, 2},
		{"two nodes that do not hear each other, though metadata hears both", pair, 1, nil, map[rhumb.NodeID][]rhumb.NodeID{1: {2}}, 0},
		{"no ranges: the leader and any other", bare, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{5: {1}}, 1},
		{"no ranges: the leader's own report is not another", bare, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{4: {1}}, 0},
		{"two dead at once, one fellow left", full, 4, []rhumb.NodeID{1, 2}, map[rhumb.NodeID][]rhumb.NodeID{3: {1, 2}}, 1},
		{"the most accused first", full, 4, []rhumb.NodeID{1, 2}, map[rhumb.NodeID][]rhumb.NodeID{3: {1, 2}, 5: {2}}, 2},
	}
	for _, tt := range tests {
		var e Evidence
		for from, suspects := range tt.reports {
			e.Add(0, report(from, 1, suspects...))
		}
		lost := func(id rhumb.NodeID) bool {
			for _, l := range tt.lost {
				if l == id {
					return true
				}
			}
			return false
		}
		got, found := e.Judge(0, tt.state, tt.leader, lost)
		if got.Node != tt.want || found != (tt.want != 0) || found && got.Boot != 1 {
			t.Errorf("%s: got %+v %v, want n%d", tt.name, got, found, tt.want)
		}
	}
}

func report(from rhumb.NodeID, boot rhumb.BootSeq, suspects ...rhumb.NodeID) Report {
	r := Report{From: from, Boot: boot}
	for _, s := range suspects {
		r.Suspects = append(r.Suspects, Suspect{s, 1})
	}
	return r
}

// TestReportsPass lets reports age, be taken back and belong to lives that are over.
func TestReportsPass(t *testing.T) {
	s := build(t, three()...)
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 2)}))
	heard := func(rhumb.NodeID) bool { return false }
	var e Evidence
	guilty := func(now time.Duration, s *catalog.State) bool {
		_, found := e.Judge(now, s, 4, heard)
		return found
	}
	e.Add(0, report(2, 1, 1))
	e.Add(500*time.Millisecond, report(3, 1, 1))
	if !guilty(ReportKeep, s) {
		t.Error("two reports in time do not count")
	}
	if guilty(ReportKeep+1, s) {
		t.Error("a report that is too old counts")
	}
	e.Add(0, report(2, 1, 1))
	e.Add(0, report(3, 1, 1))
	e.Add(0, report(3, 1))
	if guilty(0, s) {
		t.Error("a report that was taken back counts")
	}
	e.Add(0, report(3, 1, 1))
	again := apply(t, s, catalog.RegisterNode{Node: 1, Store: rhumb.UUID{1}, Boot: 2, Region: "fra", Zone: "a"})
	if guilty(0, again) {
		t.Error("a report about an earlier life counts")
	}
	reporter := apply(t, s, catalog.RegisterNode{Node: 2, Store: rhumb.UUID{2}, Boot: 2, Region: "fra", Zone: "b"})
	if guilty(0, reporter) {
		t.Error("a report from an earlier life counts")
	}
	e.Reset()
	if !e.IsEmpty() {
		t.Error("reports are left after a reset")
	}
	for i := range rhumb.NodeID(2 * rhumb.NodesMax) {
		e.Add(0, report(i+1, 1, 1))
	}
	if len(e.reports) > rhumb.NodesMax {
		t.Errorf("%d reports are kept", len(e.reports))
	}
}
