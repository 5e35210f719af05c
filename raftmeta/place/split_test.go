package place

import (
	"fmt"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// TestSplits guards which ranges a node splits: its own ones above the limit, the largest first, and few at a time.
func TestSplits(t *testing.T) {
	s := catalog.New()
	apply := func(cmd catalog.Command) catalog.Result {
		t.Helper()
		next, res, _ := s.Apply(cmd)
		if err := res.Err(); err != nil {
			t.Fatalf("%T: %v", cmd, err)
		}
		s = next
		return res
	}
	node := func(n byte) catalog.RegisterNode {
		return catalog.RegisterNode{
			Binary: rhumb.ThisBuild("t").String(), Store: rhumb.UUID{n}, Boot: 1, Nonce: uint64(n), Region: "r", Zone: "a", HasLocation: true,
			Addr: fmt.Sprintf("127.0.0.1:%d", n), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
		}
	}
	apply(catalog.Init{Cluster: rhumb.UUID{1}, First: node(1)})
	apply(node(2))
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.MinInSync, c.HashSlots = 2, 1, 6
	var replicas [][]rhumb.NodeID
	for i := range c.HashSlots {
		// Node 1 is primary of four of the ranges.
		if i < 4 {
			replicas = append(replicas, []rhumb.NodeID{1, 2})
		} else {
			replicas = append(replicas, []rhumb.NodeID{2, 1})
		}
	}
	apply(catalog.CreateClass{Settings: c, Placements: []catalog.Placement{{Region: 1, Replicas: replicas}}})
	var ids []rhumb.RangeID
	for r := range s.Ranges() {
		ids = append(ids, r.ID)
	}
	bytes := map[rhumb.RangeID]int64{ids[0]: 90, ids[1]: 110, ids[2]: 130, ids[3]: 120, ids[4]: 500}
	plan := func(limit int64) (out []rhumb.RangeID) {
		for _, r := range Splits(s, 1, limit, func(id rhumb.RangeID) int64 { return bytes[id] }) {
			out = append(out, r.ID)
		}
		return out
	}
	want := func(limit int64, want ...rhumb.RangeID) {
		t.Helper()
		got := plan(limit)
		if len(got) != len(want) {
			t.Fatalf("limit %d: %v, want %v", limit, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("limit %d: %v, want %v", limit, got, want)
			}
		}
	}
	want(125, ids[2])
	want(100, ids[2], ids[3])
	want(0)
	want(1000)
	// A split that is under way takes one of the places, and its range is not split again.
	r, _ := s.Range(ids[2])
	child := apply(catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 1}).Range
	want(100, ids[3])
	r, _ = s.Range(ids[3])
	apply(catalog.PrepareSplit{Range: r.ID, Version: r.Version, At: r.ID.Slot + 1})
	want(80)
	apply(catalog.CompleteSplit{Range: child.ID, Epoch: child.Epoch})
	// The old range has one slot left, which nothing divides.
	want(100, ids[1])
	if got := SplitBytes(s); got != rhumb.RangeSplitBytesDefault {
		t.Errorf("by default ranges are split at %d bytes", got)
	}
	apply(catalog.SetSetting{Name: rhumb.SettingRangeSplitBytes, Value: "3MiB"})
	if got := SplitBytes(s); got != 3<<20 {
		t.Errorf("ranges are split at %d bytes", got)
	}
}

// TestMovesWaitForSplits guards that nothing takes copies or roles away from a range while it is being split: metadata refuses
// the former, and an election of a node whose copy is new would hold the split up. Everything goes on when the split is over.
func TestMovesWaitForSplits(t *testing.T) {
	for _, how := range []string{"decommission", "surplus", "dead"} {
		w := newWorld(t, build(t, three()[:3]...))
		w.do(Complete(w.s, catalog.CreateClass{Settings: settings(3, 1)}))
		var old *rhumb.Range
		for old = range w.s.Ranges() {
		}
		n4 := catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{9}, Boot: 1, Region: "fra", Zone: "d"}
		w.do(n4)
		switch how {
		case "surplus", "dead":
			// A fourth copy in sync: one is too many, or the one that takes the place of a dead one.
			w.do(catalog.SetReplicas{Range: old.ID, Version: old.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}})
			w.follow(never)
		}
		old, _ = w.s.Range(old.ID)
		gone := old.InSync[0]
		if gone == old.Primary && how != "decommission" {
			gone = old.InSync[1]
		}
		if how == "decommission" {
			gone = old.Primary
			w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: gone, By: "ann", At: time.Unix(0, 0)})
		}
		w.do(catalog.PrepareSplit{Range: old.ID, Version: old.Version, At: old.ID.Slot + 1})
		if how == "dead" {
			w.fence(gone)
			w.pass(DefaultConfig().ReplaceAfter + sec)
		}
		look := func() *rhumb.Range { r, _ := w.s.Range(old.ID); return r }
		for range 10 {
			for _, plan := range [][]catalog.Command{
				w.p.Operations(w.now, time.Unix(0, 0), w.s, Measures{}), w.p.Repair(w.now, w.s),
			} {
				for _, cmd := range plan {
					next, res, _ := w.s.Apply(cmd)
					if err := res.Err(); err != nil {
						t.Fatalf("%s: %T is refused: %v", how, cmd, err)
					}
					w.s = next
				}
			}
			if r := look(); r.Primary != old.Primary || len(r.Leaving) > 0 || r.Epoch != old.Epoch {
				t.Fatalf("%s: while the range is being split: %+v", how, r)
			}
			w.follow(never)
			w.pass(sec)
		}
		child := rhumb.RangeID{Region: old.ID.Region, Slot: old.ID.Slot + 1}
		r, _ := w.s.Range(child)
		w.do(catalog.CompleteSplit{Range: child, Epoch: r.Epoch})
		for range 20 {
			w.plan()
			w.follow(never)
			w.pass(sec)
		}
		if r := look(); how != "surplus" && r.IsReplica(gone) || len(r.Replicas) != 3 {
			t.Errorf("%s: after the split the range still is %+v", how, r)
		}
	}
}
