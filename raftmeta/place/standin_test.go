package place

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// pairedWorld has two nodes in each of three zones, n1 and n4 in the first, and six ranges with three copies.
func pairedWorld(t *testing.T) *world {
	// The zones repeat, so that each node has exactly one other in its zone.
	var specs []spec
	for range 2 {
		for _, zone := range []string{"a", "b", "c"} {
			specs = append(specs, spec{"fra", zone, 0})
		}
	}
	s := build(t, specs...)
	return newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
}

// secondPhase runs the steps of the planner that the second phase consists of, lets learners join and handovers be adopted.
func (w *world) secondPhase() {
	w.t.Helper()
	for _, step := range []func() []catalog.Command{
		func() []catalog.Command {
			return w.p.Operations(w.now, time.Unix(0, 0), w.s, Measures{Size: func(rhumb.RangeID) (int64, bool) { return 0, true }})
		},
		func() []catalog.Command { return w.p.Repair(w.now, w.s) },
		func() []catalog.Command { return w.p.Failback(w.now, w.s, always) },
		func() []catalog.Command { return w.p.StandIns(w.now, w.s, always) },
	} {
		for _, cmd := range step() {
			w.do(cmd)
		}
	}
	w.adopt()
	for _, r := range slices.Collect(w.s.Ranges()) {
		c := catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version}
		var set []rhumb.NodeID
		for _, m := range r.Replicas {
			// What leaves is taken out of the set by the primary.
			if w.s.IsLive(m) && !r.IsLeaving(m) {
				set, c.Members = append(set, m), append(c.Members, catalog.Member{Node: m, Boot: w.boot(m)})
			}
		}
		if len(set) >= 2 && !slices.Equal(set, r.InSync) {
			w.do(c)
		}
	}
}

// TestSecondPhase kills the node that six ranges would prefer, one by one: first the nearest in-sync copy takes over, which is in
// another zone. After replace_after the other node of the dead one's zone gets the copy, and then the range, by a handover.
func TestSecondPhase(t *testing.T) {
	w := pairedWorld(t)
	// homes are the ranges of n1 that can tell the two phases apart: n4 is nearest to n1, and has no copy at first.
	var homes []rhumb.RangeID
	for r := range w.s.Ranges() {
		if r.Preferred == 1 && !r.IsReplica(4) {
			homes = append(homes, r.ID)
		}
	}
	if len(homes) == 0 {
		t.Fatal("no range has n1 as its home and no copy on n4")
	}
	primaries := func() (out []rhumb.NodeID) {
		for _, id := range homes {
			r, _ := w.s.Range(id)
			if r.Prepared != nil {
				t.Errorf("a handover of %s is not adopted", id)
			}
			if !slices.Contains(out, r.Primary) {
				out = append(out, r.Primary)
			}
		}
		return out
	}
	// Every change of primary begins an epoch, so the sum shows moves that end where they began.
	epochs := func() (sum rhumb.Epoch) {
		for _, id := range homes {
			r, _ := w.s.Range(id)
			sum += r.Epoch
		}
		return sum
	}
	w.fence(1)
	if got := primaries(); slices.Contains(got, 1) || slices.Contains(got, 4) {
		t.Fatalf("after the first phase the primaries are %v", got)
	}
	for range 29 {
		w.pass(sec)
		w.secondPhase()
	}
	if got := primaries(); slices.Contains(got, 4) {
		t.Errorf("the second phase began before replace_after: %v", got)
	}
	for range 10 {
		w.pass(sec)
		w.secondPhase()
	}
	if got := primaries(); !slices.Equal(got, []rhumb.NodeID{4}) {
		t.Fatalf("after the second phase the primaries are %v, want n4", got)
	}
	// One change of primary per range, and no more when time goes on.
	before := epochs()
	for range 60 {
		w.pass(sec)
		w.secondPhase()
	}
	if after := epochs(); after != before {
		t.Errorf("primaries went on moving: the epochs add up to %d and then %d", before, after)
	}
	for _, id := range homes {
		r, _ := w.s.Range(id)
		if r.Preferred != 4 || r.IsReplica(1) || len(r.InSync) != 3 {
			t.Errorf("range %s is %+v", id, r)
		}
	}
}

// TestStandInWithoutSpareNode has no node for a new copy. The nearest copy was not in sync when the home failed, and takes over when it
// is; with failback at never it does not. When the home is back, it gets its range.
func TestStandInWithoutSpareNode(t *testing.T) {
	for _, policy := range []string{"auto", "never"} {
		// n2 is in the zone of n1, and n3 is not.
		s := build(t, spec{"fra", "a", 0}, spec{"fra", "a", 0}, spec{"fra", "c", 0})
		w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 1)})))
		w.do(catalog.SetSetting{Name: rhumb.SettingFailback, Value: policy})
		look := func() *rhumb.Range {
			r, _ := w.s.Range(rhumb.RangeID{Region: 1})
			return r
		}
		if r := look(); r.Preferred != 1 {
			t.Fatalf("%+v", r)
		}
		// n2 has left the set, so only n3 can take over at once.
		w.pass(60 * sec)
		r := look()
		w.do(catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 1, Boot: 1}, {Node: 3, Boot: 1}}})
		w.fence(1)
		if r := look(); r.Primary != 3 {
			t.Fatalf("%s took over, want n3: it alone was in sync", r.Primary)
		}
		for range 45 {
			w.pass(sec)
			w.secondPhase()
		}
		want := map[string]rhumb.NodeID{"auto": 2, "never": 3}[policy]
		if r := look(); r.Primary != want {
			t.Errorf("%s: after the second phase the primary is %s, want %s: %+v", policy, r.Primary, want, r)
		}
		w.revive(1)
		for range 120 {
			w.pass(sec)
			w.secondPhase()
		}
		want = map[string]rhumb.NodeID{"auto": 1, "never": 3}[policy]
		if r := look(); r.Primary != want || len(r.Replicas) != 3 {
			t.Errorf("%s: after the return of n1 the primary is %s, want %s: %+v", policy, r.Primary, want, r)
		}
	}
}

// TestFailuresAreRemembered lets a node fail three times, under a planner that records it, and then another metadata leader begin. That
// one waits as long as its predecessor would have, and starts over when the last failure is long ago.
func TestFailuresAreRemembered(t *testing.T) {
	s := build(t, three()[:3]...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
	// The time of day is what two leaders have in common: each counts its own time from an arbitrary start.
	wall := time.Unix(1_000_000, 0)
	for range 3 {
		w.fence(1)
		w.pass(10 * sec)
		for _, cmd := range w.p.Relapses(wall, w.s) {
			w.do(cmd)
		}
		w.revive(1)
		w.pass(sec)
	}
	if got := w.p.Relapses(wall, w.s); len(got) > 0 {
		t.Errorf("failures are recorded twice: %v", got)
	}
	n, _ := w.s.Node(1)
	if n.Relapses != 3 || !n.FailedAt.Equal(wall) {
		t.Fatalf("%d failures are on record, the last at %v", n.Relapses, n.FailedAt)
	}
	for later, wait := range map[time.Duration]time.Duration{time.Minute: 120 * sec, time.Hour: 30 * sec} {
		next := newWorld(t, w.s)
		next.p = NewPlanner(DefaultConfig())
		next.p.Recall(0, wall.Add(later), next.s)
		next.pass(wait - sec)
		if got := next.p.Failback(next.now, next.s, always); len(got) > 0 {
			t.Errorf("%v after the failure, ranges go back before %v", later, wait)
		}
		next.pass(sec)
		if got := next.p.Failback(next.now, next.s, always); len(got) != 2 {
			t.Errorf("%v after the failure, %d ranges go back after %v, want 2", later, len(got), wait)
		}
	}
}

// TestPlannedLeaveIsNoFailure drains and restarts a node, and decommissions it and cancels that, again and again: none of that is a failure, so
// ranges return as soon as they would after the first time. They waited for up to ten minutes, and `rhumb node ls` called the node one that had failed.
func TestPlannedLeaveIsNoFailure(t *testing.T) {
	s := build(t, three()[:3]...)
	s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{9}, Boot: 1, Region: "fra", Zone: "a"})
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 8)})))
	var cancelled rhumb.OperationID
	for range 3 {
		w.do(catalog.SetNodeState{Node: 1, Boot: w.boot(1), State: rhumb.NodeDraining})
		w.pass(sec)
		w.revive(1)
		w.pass(sec)
		w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, At: time.Unix(0, 0)})
		w.pass(sec)
		// A node that leaves is relieved of all its ranges, and may be restarted or stopped meanwhile.
		w.p.Relapse(w.now, 1)
		w.revive(1)
		w.pass(sec)
		w.do(catalog.SetNodeState{Node: 1, Boot: w.boot(1), State: rhumb.NodeDraining})
		w.pass(sec)
		w.p.Relapse(w.now, 1)
		w.fence(1)
		w.pass(sec)
		w.revive(1)
		cancelled++
		w.do(catalog.ControlOperation{ID: cancelled, Action: catalog.CancelOperation})
		w.pass(sec)
	}
	if got := w.p.Relapses(time.Unix(0, 0), w.s); len(got) > 0 {
		t.Errorf("failures are recorded: %+v", got)
	}
	w.pass(30*sec - 2*sec)
	if w.p.isHealthy(w.now, 1) {
		t.Error("a node is healthy before it was live for 30 s")
	}
	w.pass(2 * sec)
	if !w.p.isHealthy(w.now, 1) {
		t.Error("a node that was live for 30 s is not healthy")
	}
	// What follows is a failure, and the mark of an operator does not hide it.
	w.do(catalog.SetNodeState{Node: 1, Boot: w.boot(1), State: rhumb.NodeLive})
	w.fence(1)
	w.pass(sec)
	if got := w.p.Relapses(time.Unix(0, 0), w.s); len(got) != 1 {
		t.Errorf("a failure is not recorded: %+v", got)
	}
}
