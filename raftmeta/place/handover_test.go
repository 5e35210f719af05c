package place

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// serving returns a watched state of three nodes with six ranges, two for each primary.
func serving(t *testing.T) *world {
	s := build(t, three()[:3]...)
	return newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
}

// adopt lets the targets of all prepared handovers take over, and returns their number.
func (w *world) adopt() (count int) {
	w.t.Helper()
	for _, r := range slices.Collect(w.s.Ranges()) {
		if h := r.Prepared; h != nil {
			count++
			w.do(catalog.AdoptHandover{Range: r.ID, Epoch: h.Epoch, Boot: w.boot(h.Target)})
		}
	}
	return count
}

// primaries counts the ranges of each primary.
func (w *world) primaries() map[rhumb.NodeID]int { return countPrimaries(w.s) }

// The tests below play all parts themselves: they adopt handovers as targets would, or not, and let time pass for
// the planner. The replicas are tested in node/replica and in the simulator.

// end plans the end of handovers and applies the commands. It also counts how handovers ended.
func (w *world) end() ([]catalog.Command, map[HandoverEnd]int) {
	w.t.Helper()
	before, ends := w.s, map[HandoverEnd]int{}
	out := w.p.Handovers(w.now, w.s)
	for _, cmd := range out {
		w.do(cmd)
		if by := EndsHandover(before, cmd); by != 0 {
			ends[by]++
		}
	}
	return out, ends
}

// TestDrainHandsOver guards that a draining node keeps its primaries until others have adopted them, and leaves the
// in-sync sets with that; and that those that nobody adopts are moved by elections in time.
func TestDrainHandsOver(t *testing.T) {
	for _, adopted := range []bool{true, false} {
		w := serving(t)
		w.do(catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeDraining})
		if n := w.primaries()[1]; n != 2 {
			t.Fatalf("a draining node is primary of %d ranges before anybody has taken over, want 2", n)
		}
		// A target that took over proposes the adoption, which is all that metadata sees of a handover.
		if adopted {
			if n := w.adopt(); n != 2 {
				t.Errorf("%d handovers were prepared, want 2", n)
			}
			for r := range w.s.Ranges() {
				if r.IsInSync(1) {
					t.Errorf("range %s: a node that drains is still in sync: %v", r.ID, r.InSync)
				}
			}
		}
		if got, _ := w.end(); len(got) > 0 {
			t.Errorf("adopted %v: too early or too late: %+v", adopted, got)
		}
		w.pass(DrainWithin - sec)
		if got, _ := w.end(); len(got) > 0 {
			t.Errorf("adopted %v: before DrainWithin: %+v", adopted, got)
		}
		w.pass(sec)
		got, m := w.end()
		if adopted != (len(got) == 0) || !adopted && m[HandoverElected] != 2 {
			t.Errorf("adopted %v: %d commands after DrainWithin, %+v", adopted, len(got), m)
		}
		if n := w.primaries()[1]; n != 0 {
			t.Errorf("adopted %v: the drained node is primary of %d ranges", adopted, n)
		}
	}
}

// TestDrainOfLateHeirs guards that a primary which had no heir when its node was drained is moved when it has one.
func TestDrainOfLateHeirs(t *testing.T) {
	w := serving(t)
	w.fence(2)
	w.do(catalog.SetNodeState{Node: 3, Boot: 1, State: rhumb.NodeDraining})
	w.adopt() // all to node 1, which is the only live one
	w.do(catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeDraining})
	if got, _ := w.end(); len(got) > 0 || w.primaries()[1] != 6 {
		t.Fatalf("without an heir: %+v, primaries %v", got, w.primaries())
	}
	// Node 3 is taken back, and catches up.
	w.do(catalog.SetNodeState{Node: 3, Boot: 1, State: rhumb.NodeLive})
	for _, r := range slices.Collect(w.s.Ranges()) {
		if !r.IsInSync(3) {
			c := catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version}
			for _, id := range append(slices.Clone(r.InSync), 3) {
				c.Members = append(c.Members, catalog.Member{Node: id, Boot: w.boot(id)})
			}
			w.do(c)
		}
	}
	w.end()
	if n := w.adopt(); n != 6 || w.primaries()[3] != 6 {
		t.Errorf("%d handovers to the node that is back, primaries %v", n, w.primaries())
	}
}

// TestHandoverIsCancelled guards that a handover that nobody adopts is cancelled after HandoverWithin and not before, that
// fail-back then waits for HandoverRetry, and that a move which has to happen is an election instead.
func TestHandoverIsCancelled(t *testing.T) {
	w := serving(t)
	r := slices.Collect(w.s.Ranges())[0]
	to := r.InSync[slices.IndexFunc(r.InSync, func(id rhumb.NodeID) bool { return id != r.Primary })]
	w.do(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: r.Replicas, Preferred: to})
	w.pass(w.p.config.FailbackAfter)
	got := w.p.Failback(w.now, w.s, always)
	if len(got) != 1 || got[0] != (catalog.PrepareHandover{Range: r.ID, Version: r.Version + 1, Target: to}) {
		t.Fatalf("fail-back: %+v", got)
	}
	w.do(got[0])
	if got := w.p.Failback(w.now, w.s, always); got != nil {
		t.Errorf("while a handover is prepared: %+v", got)
	}
	w.end()
	w.pass(HandoverWithin - sec)
	if got, _ := w.end(); got != nil {
		t.Errorf("too early: %+v", got)
	}
	w.pass(sec)
	if got, m := w.end(); len(got) != 1 || m[HandoverCancelled] != 1 || m[HandoverElected] != 0 {
		t.Errorf("after HandoverWithin: %+v, %+v", got, m)
	}
	// The range stays as it was, and the reserved epoch is lost.
	now, _ := w.s.Range(r.ID)
	if now.Prepared != nil || now.Epoch != r.Epoch || now.Primary != r.Primary {
		t.Errorf("the cancelled handover left %+v", now)
	}
	if got := w.p.Failback(w.now, w.s, always); got != nil {
		t.Errorf("again at once: %+v", got)
	}
	got = w.p.takeOver(w.now, w.s, now, now.Version, to, true)
	if e, ok := got[0].(catalog.Elect); !ok || len(got) != 1 || e.Node != to || e.Version != now.Version {
		t.Errorf("a move that has to happen: %+v", got)
	}
	w.pass(HandoverRetry)
	w.end()
	if got := w.p.Failback(w.now, w.s, always); len(got) != 1 {
		t.Errorf("after HandoverRetry: %+v", got)
	}
}

// TestFailedHandoverIsNotRepeated guards that a handover which ended in an election of the old primary is not prepared
// again at once, although it came and went between two rounds of the planner; and that one that succeeded, or whose command was
// refused, counts as no failure.
func TestFailedHandoverIsNotRepeated(t *testing.T) {
	for _, how := range []string{"elected", "adopted", "refused"} {
		w := serving(t)
		w.fence(1)
		w.pass(sec)
		w.revive(1)
		w.pass(30 * sec)
		got := w.p.Failback(w.now, w.s, always)
		if len(got) != 2 {
			t.Fatalf("%d ranges go back, want 2", len(got))
		}
		// The planner does not look at the state again before the handovers are over, or were never prepared.
		for _, cmd := range got {
			if how == "refused" {
				break
			}
			w.do(cmd)
			r, _ := w.s.Range(cmd.(catalog.PrepareHandover).Range)
			if how == "elected" {
				w.do(catalog.Elect{Range: r.ID, Version: r.Version, Node: r.Primary})
			}
		}
		if how == "adopted" {
			w.adopt()
			for _, r := range slices.Collect(w.s.Ranges()) {
				if r.Preferred == 1 {
					w.do(catalog.Elect{Range: r.ID, Version: r.Version, Node: 1}) // it only begins another epoch
				}
			}
		}
		w.pass(sec)
		w.end()
		want := map[string]int{"elected": 0, "adopted": 0, "refused": 2}[how]
		if got := w.p.Failback(w.now, w.s, always); len(got) != want {
			t.Errorf("%s: %d ranges go back after a second, want %d", how, len(got), want)
		}
		w.pass(HandoverRetry)
		w.end()
		if n := len(w.p.handovers); n != 0 {
			t.Errorf("%s: %d ranges are remembered", how, n)
		}
		if got := w.p.Failback(w.now, w.s, always); how == "elected" && len(got) != 2 {
			t.Errorf("%d ranges go back after a minute, want 2", len(got))
		}
	}
}

// TestFailbackPolicy guards that ranges stay where they are under the settings manual and never.
func TestFailbackPolicy(t *testing.T) {
	w := serving(t)
	w.fence(1)
	w.pass(sec)
	w.revive(1)
	w.pass(time.Hour)
	for value, want := range map[string]int{"auto": 2, FailbackManual: 0, FailbackNever: 0, "": 2} {
		if err := rhumb.CheckSetting(rhumb.SettingFailback, value); err != nil {
			t.Error(err)
		}
		w.do(catalog.SetSetting{Name: rhumb.SettingFailback, Value: value})
		if got := w.p.Failback(w.now, w.s, always); len(got) != want {
			t.Errorf("%q: %d ranges go back, want %d", value, len(got), want)
		}
	}
	if rhumb.CheckSetting(rhumb.SettingFailback, "sometimes") == nil {
		t.Error("any value is accepted")
	}
}

// TestHandoversNeedTheFeature guards that a cluster of the previous version moves primaries by elections.
func TestHandoversNeedTheFeature(t *testing.T) {
	s := catalog.New()
	// Nodes whose program names no cluster versions form a cluster of the first version.
	for i := range 3 {
		r := catalog.RegisterNode{Binary: "0.13", Store: rhumb.UUID{byte(i + 1)}, Boot: 1, Region: "fra", HasLocation: true, Zone: string(rune('a' + i))}
		var cmd catalog.Command = r
		if i == 0 {
			cmd = catalog.Init{Cluster: rhumb.UUID{7}, First: r}
		}
		s = apply(t, s, cmd)
	}
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
	w.do(catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeDraining})
	if n := w.primaries()[1]; n != 0 {
		t.Errorf("the drained node is primary of %d ranges", n)
	}
	w.do(catalog.SetNodeState{Node: 1, Boot: 1, State: rhumb.NodeLive})
	w.revive(1)
	w.pass(time.Hour)
	got := w.p.Failback(w.now, w.s, always)
	for _, cmd := range got {
		if _, ok := cmd.(catalog.Elect); !ok {
			t.Errorf("%+v", cmd)
		}
	}
	if len(got) == 0 {
		t.Error("nothing goes back")
	}
}

// TestDecommissionWithoutHandovers guards that a node can be emptied although no target ever takes over: after
// HandoverWithin the operation elects the others.
func TestDecommissionWithoutHandovers(t *testing.T) {
	w := grow(t, 4)
	// The planner remembers the failure of each range, so no range waits for the bound again in later steps of its move.
	// With six ranges at the same time, the operation ends well within the hundred rounds of run.
	w.deaf = true
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, At: time.Unix(0, 0)})
	if o := w.run(1); o.State != rhumb.OperationDone || holds(w.s, 1) != 0 {
		t.Errorf("%+v, n1 holds %d", o, holds(w.s, 1))
	}
}
