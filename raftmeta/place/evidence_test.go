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
	draining1 := apply(t, full, catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeDraining})
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
		{"a dead region: the leader and another one lost all of it", full, 4, []rhumb.NodeID{1, 2, 3}, map[rhumb.NodeID][]rhumb.NodeID{5: {1, 2, 3}}, 1},
		{"a dead region: only the leader says so", full, 4, []rhumb.NodeID{1, 2, 3}, map[rhumb.NodeID][]rhumb.NodeID{4: {1, 2, 3}}, 0},
		{"a dead region: the leader hears it", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{5: {1, 2, 3}, 6: {1, 2, 3}, 7: {1, 2, 3}}, 0},
		{"the survivor of a region leads: another region confirms", full, 1, []rhumb.NodeID{2, 3}, map[rhumb.NodeID][]rhumb.NodeID{1: {2, 3}, 5: {2, 3}}, 2},
		{"the survivor of a region leads: nobody confirms", full, 1, []rhumb.NodeID{2, 3}, map[rhumb.NodeID][]rhumb.NodeID{1: {2, 3}}, 0},
		{"a fellow that lives does not confirm", full, 4, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{5: {1}, 6: {1}, 4: {1}}, 0},
		{"a fellow accuses a node that drains and that the leader hears", draining1, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"a liar whose fellow died", full, 4, []rhumb.NodeID{3}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"the leader is one of two fellows", full, 2, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"both fellows accuse, one of them leads", full, 2, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, 1},
		{"an outcast accuses its accusers", full, 4, nil, map[rhumb.NodeID][]rhumb.NodeID{1: {2, 3}, 2: {1}, 3: {1}}, 1},
		{"both fellows accuse the leader", full, 1, nil, map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, 1},
		{"one fellow accuses the leader, which has contact with itself", full, 1, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, 0},
		{"strangers accuse the leader", full, 1, []rhumb.NodeID{1}, map[rhumb.NodeID][]rhumb.NodeID{4: {1}, 5: {1}, 6: {1}}, 0},
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
		e.Judge(0, tt.state, tt.leader, lost)
		got, found := e.Judge(vouchWait, tt.state, tt.leader, lost) // nobody is spared for longer
		if got.Node != tt.want || found != (tt.want != 0) || found && got.Boot != 1 {
			t.Errorf("%s: got %+v %v, want n%d", tt.name, got, found, tt.want)
		}
	}
}

// TestVouching guards who is fenced at once, and who only after a while, because a witness that shares ranges with the node hears it.
func TestVouching(t *testing.T) {
	s := build(t, three()...)
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 2)}))
	for _, tt := range []struct {
		name     string
		reports  map[rhumb.NodeID][]rhumb.NodeID
		lost     bool
		now, end bool // whether node 1 is fenced at once, and in the end
	}{
		{"all fellows accuse", map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, true, true, true},
		{"all fellows accuse, and the leader hears it", map[rhumb.NodeID][]rhumb.NodeID{2: {1}, 3: {1}}, false, true, true},
		{"a fellow hears it", map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, true, false, true},
		{"a fellow and the leader hear it", map[rhumb.NodeID][]rhumb.NodeID{2: {1}}, false, false, false},
	} {
		var e Evidence
		at := func(now time.Duration) bool {
			for from, suspects := range tt.reports {
				e.Add(now, report(from, 1, suspects...))
			}
			_, found := e.Judge(now, s, 4, func(id rhumb.NodeID) bool { return tt.lost && id == 1 })
			return found
		}
		if at(0) != tt.now || at(vouchWait-1) != tt.now || at(vouchWait) != tt.end {
			t.Errorf("%s: want fenced at once %v, in the end %v", tt.name, tt.now, tt.end)
		}
		if again := vouchWait + ReportKeep + 1; at(again) != tt.now {
			t.Errorf("%s: what was long before counts", tt.name)
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
	again := apply(t, s, catalog.RegisterNode{Binary: testBinary, Node: 1, Store: rhumb.UUID{1}, Boot: 2, Region: "fra", Zone: "a"})
	if guilty(0, again) {
		t.Error("a report about an earlier life counts")
	}
	reporter := apply(t, s, catalog.RegisterNode{Binary: testBinary, Node: 2, Store: rhumb.UUID{2}, Boot: 2, Region: "fra", Zone: "b"})
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

// TestHeir looks at who takes over when a primary asks to be relieved. One region of five nodes with three replicas, of
// which n1, n3 and n4 hold the range.
func TestHeir(t *testing.T) {
	s := build(t, spec{"a", "v", 0}, spec{"a", "w", 0}, spec{"a", "x", 0}, spec{"a", "y", 0}, spec{"a", "z", 0})
	s = apply(t, s, catalog.CreateClass{Settings: settings(3, 1), Placements: []catalog.Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1, 3, 4}}}}})
	var r *rhumb.Range
	for r = range s.Ranges() {
		break
	}
	fenced := apply(t, s, catalog.FenceNode{Node: 3, Boot: 1})
	left3 := apply(t, s, catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 1, Boot: 1}, {Node: 4, Boot: 1}}})
	// Node 2 joins while the range is being split, so it is no member of the new range.
	splits := apply(t, s, catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 1})
	splits = apply(t, splits, catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}})
	splits = apply(t, splits, catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version + 1, Members: []catalog.Member{{Node: 1, Boot: 1}, {Node: 2, Boot: 1}, {Node: 3, Boot: 1}, {Node: 4, Boot: 1}}})
	ring := map[rhumb.NodeID][]rhumb.NodeID{1: {3, 4}, 2: {4, 5}, 3: {5, 1}, 4: {1, 2}, 5: {2, 3}}
	for _, tt := range []struct {
		name    string
		s       *catalog.State
		reports map[rhumb.NodeID][]rhumb.NodeID
		unfit   []rhumb.NodeID
		want    rhumb.NodeID
	}{
		{"nothing is known: the next", s, nil, nil, 3},
		{"the next cannot divide the range", splits, nil, nil, 3},
		{"nobody else is fit", splits, nil, []rhumb.NodeID{3, 4}, 2},
		{"the next is not live", fenced, nil, nil, 4},
		{"the next is not fit", s, nil, []rhumb.NodeID{3}, 4},
		{"nobody is fit", s, nil, []rhumb.NodeID{3, 4}, 0},
		{"a ring: the primary reaches nobody, its fellows each other", s, ring, nil, 3},
		{"the member in contact has left the set", left3, map[rhumb.NodeID][]rhumb.NodeID{1: {3, 4}}, nil, 4},
		{"only one is in contact", s, map[rhumb.NodeID][]rhumb.NodeID{3: {1, 4}}, nil, 4},
		{"nobody is in contact", s, map[rhumb.NodeID][]rhumb.NodeID{3: {1, 4}, 4: {1}}, nil, 0},
		{"all of the set is dead", s, map[rhumb.NodeID][]rhumb.NodeID{1: {3, 4}, 5: {3, 4}, 3: nil}, nil, 3},
	} {
		var e Evidence
		for from, suspects := range tt.reports {
			e.Add(0, report(from, 1, suspects...))
		}
		for _, id := range tt.unfit {
			e.Add(0, Report{From: id, Boot: 1, Unfit: true})
		}
		now, _ := tt.s.Range(r.ID)
		got, ok := e.Heir(0, tt.s, now)
		if got != tt.want || ok != (tt.want != 0) {
			t.Errorf("%s: got %v %v, want %v", tt.name, got, ok, tt.want)
		}
		if relieved := e.Relieved(); ok != (len(relieved) == 1 && relieved[0] == 1) || len(e.Relieved()) != 0 {
			t.Errorf("%s: relieved are %v", tt.name, relieved)
		}
	}
	var e Evidence
	for from, suspects := range ring {
		e.Add(0, report(from, 1, suspects...))
	}
	if e.CanServe(0, s, r, 1) || !e.CanServe(0, s, r, 4) || !e.CanServe(2*ReportKeep, s, r, 1) {
		t.Error("a node out of reach gets its range back, or one in reach does not")
	}
}
