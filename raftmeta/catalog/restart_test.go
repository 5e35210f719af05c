package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// halfMoved returns two regions of two nodes each, and a class with three hash slots: in region 1, where the first has moved to region 2,
// and in region 2. The nodes of region 1 are dead; before that, commands about the two ranges that have not moved were applied.
func halfMoved(t *testing.T, before ...func(left, right *rhumb.Range) Command) *State {
	t.Helper()
	in := func(store byte, region string) RegisterNode {
		c := registration(store, 1)
		c.Region = region
		return c
	}
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync, settings.HashSlots = 2, 1, 3
	s := New()
	for _, cmd := range []Command{
		Init{Cluster: rhumb.UUID{9}, First: in(1, "r1")},
		in(2, "r1"),
		AddRegion{Name: "r2"},
		in(3, "r2"), in(4, "r2"),
		CreateTable{Name: "t", Settings: settings, Placements: []Placement{
			{Region: 1, Replicas: [][]rhumb.NodeID{{1, 2}, {1, 2}, {1, 2}}}, {Region: 2, Replicas: [][]rhumb.NodeID{{3, 4}, {3, 4}, {3, 4}}},
		}},
		StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2},
	} {
		s = mustApply(t, s, cmd)
	}
	first := rangesOf(s, 1)[0].ID
	for _, step := range []func(r *rhumb.Range) Command{
		func(r *rhumb.Range) Command {
			return SetReplicas{Range: first, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}}
		},
		func(r *rhumb.Range) Command {
			return AlterISR{Range: first, Epoch: r.Epoch, Version: r.Version, Members: []Member{{Node: 1, Boot: 1}, {Node: 3, Boot: 1}, {Node: 4, Boot: 1}}}
		},
		func(r *rhumb.Range) Command {
			return Elect{Range: first, Version: r.Version, Node: 3, InSync: []rhumb.NodeID{3, 4}}
		},
		func(r *rhumb.Range) Command {
			return SetReplicas{Range: first, Version: r.Version, Replicas: []rhumb.NodeID{3, 4}, Preferred: 3}
		},
	} {
		r, _ := s.Range(first)
		s = mustApply(t, s, step(r))
	}
	for _, f := range before {
		s = mustApply(t, s, f(rangesOf(s, 1)[1], rangesOf(s, 1)[2]))
	}
	return mustApply(t, mustApply(t, s, FenceNode{Node: 1, Boot: 1}), FenceNode{Node: 2, Boot: 1})
}

// mustApply applies a command that must not be refused.
func mustApply(t *testing.T, s *State, cmd Command) *State {
	t.Helper()
	next, res, _ := s.Apply(cmd)
	if err := res.Err(); err != nil {
		t.Fatalf("%+v: %v", cmd, err)
	}
	if err := next.Check(); err != nil {
		t.Fatalf("after %+v: %v", cmd, err)
	}
	return next
}

// rangesOf returns the ranges of a region.
func rangesOf(s *State, region rhumb.RegionID) (out []*rhumb.Range) {
	for r := range s.Ranges() {
		if r.ID.Region == region {
			out = append(out, r)
		}
	}
	return out
}

// TestRestartEmpty: a region dies while it is being removed. What had moved stays as it is; the lost ranges of the same hash slots restart
// empty, above all epochs of the copies that are given up; the region, its nodes and the operation are gone.
func TestRestartEmpty(t *testing.T) {
	s := halfMoved(t)
	before := rangesOf(s, 1)
	restarts := func(replicas ...rhumb.NodeID) []RangeCopies {
		return []RangeCopies{{before[1].ID, replicas}, {before[2].ID, []rhumb.NodeID{4, 3}}}
	}
	give := RemoveRegion{Region: 1, Into: 2, Force: true, Lost: 2, By: "ann"}
	for _, test := range []struct {
		what     string
		restarts []RangeCopies
		want     string
	}{
		{"no nodes", nil, "which has too few live nodes for 2 copies"},
		{"one range only", restarts(3, 4)[:1], "2 ranges would restart empty, and the request has nodes for 1"},
		{"a range that stays", []RangeCopies{{before[0].ID, []rhumb.NodeID{3, 4}}, restarts(3, 4)[1]}, "look at it again"},
		{"too few copies", restarts(3), "not 2 different nodes"},
		{"a dead node", restarts(3, 1), "n1 is not a node of region 2"},
	} {
		c := give
		c.Restarts = test.restarts
		if next, res, _ := s.Apply(c); res.Err() == nil || !strings.Contains(res.Err().Error(), test.want) || next != s {
			t.Errorf("%s: %v, want %q", test.what, res.Err(), test.want)
		}
	}
	give.Restarts = restarts(3, 4)
	s = mustApply(t, s, give)
	after := rangesOf(s, 1)
	if len(after) != 3 || after[0].Version != before[0].Version {
		t.Fatalf("the ranges are %+v", after)
	}
	for i, primary := range []rhumb.NodeID{3, 4} {
		was, is := before[i+1], after[i+1]
		if is.Epoch <= was.Allocated || is.Primary != primary || is.Preferred != primary || !slices.Equal(is.InSync, []rhumb.NodeID{3, 4}) || !slices.Equal(is.Replicas, is.InSync) ||
			is.LifeOf(3) != 1 || is.LifeOf(4) != 1 || is.Recovery == nil || !slices.Equal(is.Recovery.Gone, []rhumb.NodeID{1, 2}) {
			t.Errorf("range %s is %+v, was %+v", is.ID, is, was)
		}
	}
	r, _ := s.Region(1)
	o, _ := s.Operation(1)
	record, _ := s.Operation(2)
	if !r.Removed || r.Lost != 2 || s.HostRegion(1) != 2 || o.State != rhumb.OperationCancelled || !strings.Contains(record.Error, "2 ranges were given up with all records in them; 2 of them restart empty; tables: t") {
		t.Errorf("region %+v, operations %+v and %+v", r, o, record)
	}
	if decoded, err := Decode(s.Encode()); err != nil || decoded.Check() != nil {
		t.Errorf("read back: %v, %v", err, decoded.Check())
	}
	// A repetition changes nothing.
	if next := mustApply(t, s, give); next.Revision() != s.Revision() {
		t.Error("a repetition changed the state")
	}
}

// TestRestartEmptyDuringSplit: the region dies while a lost range is being split, or two are being merged. They restart whole, and
// nothing waits for the other part.
func TestRestartEmptyDuringSplit(t *testing.T) {
	for what, reshape := range map[string]func(left, right *rhumb.Range) Command{
		"split": func(left, _ *rhumb.Range) Command {
			return PrepareSplit{Range: left.ID, Version: left.Version, At: left.LastSlot()}
		},
		"merge": func(left, right *rhumb.Range) Command {
			return PrepareMerge{Range: left.ID, Version: left.Version, RightVersion: right.Version}
		},
	} {
		s := halfMoved(t, reshape)
		was := rangesOf(s, 1)[1]
		lost, _ := s.LostRanges(1)
		give := RemoveRegion{Region: 1, Into: 2, Force: true, Lost: uint32(len(lost))}
		for _, r := range s.BrokenRanges(lost) {
			give.Restarts = append(give.Restarts, RangeCopies{r.ID, []rhumb.NodeID{3, 4}})
		}
		s = mustApply(t, s, give)
		ranges := rangesOf(s, 1)
		if len(ranges) != 3 || ranges[1].ID != was.ID || ranges[1].LastSlot() != was.LastSlot() {
			t.Errorf("%s: the ranges are %+v", what, ranges)
		}
		for _, r := range ranges[1:] {
			if r.Birth != 0 || r.IsMerging() || r.Epoch <= was.Allocated {
				t.Errorf("%s: range %s is %+v", what, r.ID, r)
			}
		}
	}
}
