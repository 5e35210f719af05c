package place

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// plan applies one round of the planner, as the controller does, and returns the number of commands.
func (w *world) plan() int {
	w.t.Helper()
	count := 0
	for _, plan := range []func() []catalog.Command{
		func() []catalog.Command { return w.p.Handovers(w.now, w.s) },
		func() []catalog.Command {
			return w.p.Operations(w.now, time.Unix(0, 0).Add(w.now), w.s, Measures{Size: func(rhumb.RangeID) (int64, bool) { return 10, true }})
		},
		func() []catalog.Command { return w.p.Repair(w.now, w.s) },
	} {
		for _, cmd := range plan() {
			next, _, _ := w.s.Apply(cmd) // refusals are conflicts of plans of one round
			w.s = next
			if err := w.s.Check(); err != nil {
				w.t.Fatalf("%+v: %v", cmd, err)
			}
			count++
		}
	}
	return count
}

// follow does what primaries do: learners on live nodes join, leaving members leave, and ranges are handed over.
// slow holds up some learners.
func (w *world) follow(slow func(rhumb.NodeID) bool) {
	w.t.Helper()
	if !w.deaf {
		w.adopt()
	}
	for _, r := range slices.Collect(w.s.Ranges()) {
		if !w.s.IsLive(r.Primary) {
			continue
		}
		set := slices.Clone(r.InSync)
		for _, id := range r.Replicas {
			if !r.IsInSync(id) && !r.IsLeaving(id) && w.s.IsLive(id) && !slow(id) {
				set = append(set, id)
				break // one change at a time
			}
		}
		class, _ := w.s.Class(r.Class)
		for _, id := range r.InSync {
			if len(set) == len(r.InSync) && r.IsLeaving(id) && id != r.Primary && len(set) > class.Settings.MinInSync {
				set = slices.DeleteFunc(set, func(n rhumb.NodeID) bool { return n == id })
			}
		}
		if len(set) == len(r.InSync) {
			continue
		}
		c := catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version}
		for _, id := range set {
			c.Members = append(c.Members, catalog.Member{Node: id, Boot: w.boot(id)})
		}
		w.do(c)
	}
}

// safe checks what no move may break: every range has as many intact copies in sync as its class has replicas.
func (w *world) safe(gone ...rhumb.NodeID) {
	w.t.Helper()
	for r := range w.s.Ranges() {
		class, _ := w.s.Class(r.Class)
		if len(r.InSync) < class.Settings.Replicas-len(gone) {
			w.t.Fatalf("range %s has %v in sync of %v", r.ID, r.InSync, r.Replicas)
		}
	}
}

func (w *world) operation(id rhumb.OperationID) *rhumb.Operation {
	o, ok := w.s.Operation(id)
	if !ok {
		w.t.Fatalf("operation %s does not exist", id)
	}
	return o
}

func holds(s *catalog.State, id rhumb.NodeID) (n int) {
	for r := range s.Ranges() {
		if r.IsReplica(id) || r.Primary == id || r.Preferred == id {
			n++
		}
	}
	return n
}

// settle plans until nothing is left to do, and checks that every range has the copies of its class, all in sync, and none that goes.
func (w *world) settle() {
	w.t.Helper()
	for range 100 {
		before := w.s.Revision()
		w.plan()
		w.follow(never)
		w.safe()
		w.pass(sec)
		if w.s.Revision() == before {
			break
		}
	}
	for r := range w.s.Ranges() {
		class, _ := w.s.Class(r.Class)
		if want := class.Settings.Replicas; len(r.Replicas) != want || len(r.InSync) != want || len(r.Leaving) > 0 {
			w.t.Errorf("range %s: replicas %v, in sync %v, leaving %v", r.ID, r.Replicas, r.InSync, r.Leaving)
		}
	}
}

// TestBalanceLeavesMovesAlone guards the move of a copy against the balance of primaries: both changed the preferred primary of the range, in
// turn and for ever, so the move never ended.
func TestBalanceLeavesMovesAlone(t *testing.T) {
	w := grow(t, 4)
	id := rhumb.RangeID{Region: 1}
	concerns := func() bool {
		return slices.ContainsFunc(NewPlanner(Config{}).BalancePrimaries(w.s), func(c catalog.Command) bool { return c.(catalog.SetReplicas).Range == id })
	}
	r, _ := w.s.Range(id)
	w.do(catalog.SetReplicas{Range: id, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4}})
	if concerns() {
		t.Error("the preferred primary changes while a copy moves to node 4")
	}
}

// TestCancelledMove removes the copy that a cancelled move leaves over, wherever the move was: while the new copy is a learner, when it is in
// sync, and while the old one leaves.
func TestCancelledMove(t *testing.T) {
	for rounds := range 8 {
		w := grow(t, 4)
		w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 1, Target: 4, At: time.Unix(0, 0)})
		for range rounds {
			w.plan()
			w.follow(func(rhumb.NodeID) bool { return rounds < 3 })
			w.pass(sec)
		}
		if w.operation(1).State.IsOver() {
			break
		}
		w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
		w.settle()
	}
	// A copy that is needed is not surplus: one of four nodes is dead, and its copy is being created elsewhere.
	w := grow(t, 4)
	w.do(catalog.SetReplicas{Range: rhumb.RangeID{Region: 1}, Version: 1, Replicas: []rhumb.NodeID{1, 2, 3, 4}})
	w.fence(1)
	w.plan()
	if r, _ := w.s.Range(rhumb.RangeID{Region: 1}); len(r.Replicas) != 4 {
		t.Errorf("a copy was removed while a node is down: %v", r.Replicas)
	}
}

// TestSurplusDuringDrain drains one of five nodes with a copy of a range that needs three. The copies that are too many go at once,
// as long as three others are in sync without the node that drains.
func TestSurplusDuringDrain(t *testing.T) {
	w := grow(t, 5)
	id := rhumb.RangeID{Region: 1}
	r, _ := w.s.Range(id)
	w.do(catalog.SetReplicas{Range: id, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4, 5}})
	for range 5 {
		w.follow(never)
	}
	w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeDraining})
	for range 20 {
		w.plan()
		w.follow(never)
		w.pass(sec)
		r, _ = w.s.Range(id)
		if live := slices.DeleteFunc(slices.Clone(r.InSync), func(n rhumb.NodeID) bool { return n == 5 }); len(live) < 3 {
			t.Fatalf("in sync are %v while n5 drains", r.InSync)
		}
	}
	if live := slices.DeleteFunc(slices.Clone(r.Replicas), func(n rhumb.NodeID) bool { return n == 5 }); len(live) != 3 || len(r.Leaving) > 0 {
		t.Errorf("during the drain: replicas %v, leaving %v", r.Replicas, r.Leaving)
	}
	w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeLive})
	w.settle()
}

// TestReplaceWhileAnotherNodeIsDead replaces a node while another copy of its ranges is lost for good. The ranges get a copy on a third
// node too: the replacement would wait for ever otherwise, because two of three copies elsewhere are not enough.
func TestReplaceWhileAnotherNodeIsDead(t *testing.T) {
	w := grow(t, 5)
	w.fence(2)
	w.do(catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 1, Target: 4, By: "ann", At: time.Unix(0, 0)})
	if o := w.run(1, 2); o.State != rhumb.OperationDone || holds(w.s, 1) != 0 {
		t.Errorf("%+v, n1 holds %d", o, holds(w.s, 1))
	}
}

// TestProgressWithinRange: a copy in progress counts with what it has received, by the share, although no range is done; and no
// report takes it back, or finishes a range.
func TestProgressWithinRange(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	size := func(rhumb.RangeID) (int64, bool) { return 100, true }
	step := func(m Measures) rhumb.Progress {
		for _, cmd := range w.p.Operations(w.now, time.Unix(0, 0).Add(w.now), w.s, m) {
			w.s, _, _ = w.s.Apply(cmd)
		}
		return w.operation(1).Progress
	}
	// A new leader knows no sizes yet: nothing looks done.
	if p := step(Measures{Copied: func(rhumb.RangeID) (float64, bool) { return 1, true }}); p.DoneBytes != 0 {
		t.Fatalf("without sizes: %+v", p)
	}
	var surveys Surveys
	report := func(done int64) Measures {
		var s Survey
		for r := range w.s.Ranges() {
			s.Copies = append(s.Copies, CopyShare{Range: r.ID, Done: done, Of: 40})
		}
		surveys.Add(w.now, s)
		return Measures{Size: size, Copied: func(id rhumb.RangeID) (float64, bool) { return surveys.Copied(w.now, id) }}
	}
	for _, test := range []struct{ done, percent int64 }{{0, 0}, {10, 25}, {30, 75}, {20, 75}, {99, 100}, {-5, 100}} {
		p := step(report(test.done))
		if p.Done != 0 || p.TotalBytes == 0 || int64(p.DoneBytes) != int64(p.TotalBytes)*test.percent/100 {
			t.Errorf("%d of 40 bytes of each copy: %+v, want %d %%", test.done, p, test.percent)
		}
	}
	w.now += SurveyKeep + 1
	for r := range w.s.Ranges() {
		if _, ok := surveys.Copied(w.now, r.ID); ok {
			t.Error("an old survey still counts")
		}
	}
}

// TestProgressInBytes counts bytes with ranges, and never back: not when a range grows, nor when its size is unknown for a while.
func TestProgressInBytes(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	var last rhumb.Progress
	for i := range 100 {
		measures := Measures{Size: func(rhumb.RangeID) (int64, bool) { return int64(100 + i), i%3 != 1 }}
		for _, cmd := range w.p.Operations(w.now, time.Unix(0, 0).Add(w.now), w.s, measures) {
			w.s, _, _ = w.s.Apply(cmd)
		}
		w.follow(never)
		w.pass(sec)
		o := w.operation(1)
		if o.Progress.DoneBytes < last.DoneBytes || o.Progress.Done == 0 && o.Progress.DoneBytes > 0 {
			t.Fatalf("progress went from %+v to %+v", last, o.Progress)
		}
		last = o.Progress
		if o.State.IsOver() {
			break
		}
	}
	if o := w.operation(1); o.State != rhumb.OperationDone || last.TotalBytes < 600 || last.DoneBytes != last.TotalBytes {
		t.Errorf("at the end: %+v", o)
	}
}

func never(rhumb.NodeID) bool { return false }

// grow returns a region of n nodes whose first three hold six ranges.
func grow(t *testing.T, n int) *world {
	nodes := three()[:3]
	s := build(t, nodes...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 6)})))
	for i := 3; i < n; i++ {
		w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{byte(i + 1)}, Boot: 1, Region: "fra", Zone: "d"})
	}
	w.pass(sec)
	return w
}

// run plans until an operation is over.
func (w *world) run(id rhumb.OperationID, gone ...rhumb.NodeID) *rhumb.Operation {
	w.t.Helper()
	for range 100 {
		if w.operation(id).State.IsOver() {
			return w.operation(id)
		}
		w.plan()
		w.follow(never)
		w.safe(gone...)
		w.pass(sec)
	}
	w.t.Fatalf("the operation does not end: %+v", w.operation(id))
	return nil
}

// TestDecommission moves everything away from one of four nodes, keeps all copies meanwhile, and then lets the node go.
func TestDecommission(t *testing.T) {
	w := grow(t, 4)
	if why := WhyNotLeave(w.s, 1); why != "" {
		t.Fatal(why)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	n, _ := w.s.Node(1)
	if why := w.s.WhyNotForget(n); !strings.Contains(why, "copies of 6 ranges") {
		t.Errorf("with copies: %q", why)
	}
	w.plan()
	if o := w.operation(1); o.Progress != (rhumb.Progress{Total: 6, TotalBytes: 60}) || o.Steps[0].State != rhumb.OperationRunning {
		t.Errorf("at the start: %+v", o)
	}
	o := w.run(1)
	if o.State != rhumb.OperationDone || o.Progress.Done != 6 || holds(w.s, 1) != 0 {
		t.Errorf("%+v, n1 holds %d", o, holds(w.s, 1))
	}
	n, _ = w.s.Node(1)
	if why := w.s.WhyNotForget(n); why != "" {
		t.Errorf("afterwards: %s", why)
	}
	if got := w.plan(); got != 0 {
		t.Errorf("%d commands afterwards", got)
	}
}

// TestDecommissionOfATarget decommissions a node while a move and a replacement give it copies, at each of their steps. They waited for
// each other: the range kept one copy on the leaving node, because the copy that the move was to remove did not count as one that stays.
func TestDecommissionOfATarget(t *testing.T) {
	for steps := range 8 {
		for _, start := range []catalog.StartOperation{
			{Kind: rhumb.OperationMove, Range: rhumb.RangeID{Region: 1}, Node: 1, Target: 4},
			{Kind: rhumb.OperationReplace, Node: 1, Target: 4},
		} {
			w := grow(t, 5)
			// Without a fifth node that takes copies nothing but the old ones is left.
			if start.Kind == rhumb.OperationMove {
				w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeDraining})
			}
			start.At = time.Unix(0, 0)
			w.do(start)
			for range steps {
				w.plan()
				w.follow(never)
			}
			if w.operation(1).State.IsOver() {
				continue
			}
			w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 4, At: time.Unix(0, 0)})
			if o := w.run(2); o.State != rhumb.OperationDone || holds(w.s, 4) != 0 {
				t.Errorf("%s, %d steps: %+v, n4 holds %d", start.Kind, steps, o, holds(w.s, 4))
			}
			want := rhumb.OperationFailed
			if start.Kind == rhumb.OperationReplace {
				want = rhumb.OperationDone
			}
			if o := w.run(1); o.State != want {
				t.Errorf("%s, %d steps: %+v", start.Kind, steps, o)
			}
			w.settle()
		}
	}
}

// TestDecommissionWaits keeps every copy while the new ones are behind, pauses, goes on under a new leader, and undoes the
// marks when it is cancelled.
func TestDecommissionWaits(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, At: time.Unix(0, 0)})
	for range 5 {
		w.plan()
		w.follow(func(id rhumb.NodeID) bool { return id == 4 })
		w.safe()
	}
	if o := w.operation(1); holds(w.s, 1) != 6 || o.Progress.Done != 0 || !strings.Contains(o.Waits, "2 of 3 copies elsewhere are in sync") {
		t.Errorf("n1 holds %d, %+v", holds(w.s, 1), o)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.PauseOperation})
	w.follow(never)
	if got := w.plan(); got != 0 {
		t.Errorf("%d commands while it is paused", got)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.ResumeOperation})
	// A new leader knows the state only.
	w.p = NewPlanner(DefaultConfig())
	w.pass(sec)
	w.plan()
	w.plan()
	marked := 0
	for r := range w.s.Ranges() {
		marked += len(r.Leaving)
	}
	if marked == 0 {
		t.Error("nothing is leaving although all copies are in sync")
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
	w.settle()
	if !w.s.TakesCopies(1) {
		t.Error("n1 takes no copies after the cancellation")
	}
}

// TestWhyNotLeave names the tables that keep more copies than nodes would be left.
func TestWhyNotLeave(t *testing.T) {
	w := grow(t, 3)
	if why := WhyNotLeave(w.s, 1); !strings.Contains(why, "without n1, the live nodes of region fra would be 2") || !strings.Contains(why, "t (3); add a node") {
		t.Errorf("%q", why)
	}
	// The reason is not that too few nodes are left: all of them leave.
	going := twoRegions(t)
	going.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	if why := WhyNotLeave(going.s, 1); why != "its region fra is being removed, and n1 with it (`rhumb operation ls`)" {
		t.Errorf("in a region that goes: %q", why)
	}
	// A node with the same copies replaces nothing; one without them does.
	if why := WhyNotReplace(w.s, 1, 2); !strings.Contains(why, "n2 has copies of all ranges of n1 already") {
		t.Errorf("replaced by a node with the same copies: %q", why)
	}
	if why := WhyNotReplace(grow(t, 5).s, 1, 5); why != "" {
		t.Errorf("replaced by a node without copies: %q", why)
	}
}

// TestReplacementsThatWaitForEachOtherAreRefused starts replacements whose nodes cannot all go: without the ones that leave already, too few
// would stay. A replacement in a region with dead nodes is accepted.
func TestReplacementsThatWaitForEachOtherAreRefused(t *testing.T) {
	w := grow(t, 4)
	if why := WhyNotReplace(w.s, 1, 4); why != "" {
		t.Errorf("the first replacement: %s", why)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 1, Target: 4, At: time.Unix(0, 0)})
	// Another node by the same one, and the new node by an old one.
	for _, second := range [][2]rhumb.NodeID{{2, 4}, {4, 2}} {
		why := WhyNotReplace(w.s, second[0], second[1])
		if !strings.Contains(why, "region fra would keep 2 of its nodes") || !strings.Contains(why, "t (3); add a node") {
			t.Errorf("replace %s by %s while another replacement runs: %q", second[0], second[1], why)
		}
	}
	// The catalog refuses a node that does not exist, for that reason.
	if why := WhyNotReplace(w.s, 2, 99); why != "" {
		t.Errorf("replaced by a node that does not exist: %q", why)
	}
	// The new node has no copy yet, and must stay all the same.
	if why := WhyNotLeave(w.s, 4); !strings.Contains(why, "t (3); add") {
		t.Errorf("decommission n4, which is to replace n1: %q", why)
	}
	dead := grow(t, 5)
	dead.fence(1)
	dead.fence(2)
	if why := WhyNotReplace(dead.s, 1, 4); why != "" {
		t.Errorf("while another node is dead: %s", why)
	}
}

// TestReplace moves the copies of a live and of a dead node to a given one, and gives the old one up.
func TestReplace(t *testing.T) {
	for _, dead := range []bool{false, true} {
		w := grow(t, 5)
		var gone []rhumb.NodeID
		if dead {
			w.fence(1)
			gone = []rhumb.NodeID{1}
			w.pass(sec)
		}
		w.do(catalog.StartOperation{Kind: rhumb.OperationReplace, Node: 1, Target: 5, At: time.Unix(0, 0)})
		o := w.run(1, gone...)
		n, _ := w.s.Node(1)
		if o.State != rhumb.OperationDone || holds(w.s, 1) != 0 || !n.Forgotten {
			t.Errorf("dead %v: %+v, %+v", dead, o, n)
		}
		for r := range w.s.Ranges() {
			if !r.IsReplica(5) || r.IsReplica(4) || len(r.Replicas) != 3 {
				t.Errorf("dead %v: range %s is on %v", dead, r.ID, r.Replicas)
			}
		}
	}
}

// TestMove moves the primary copy of one range and nothing else.
func TestMove(t *testing.T) {
	w := grow(t, 4)
	first := slices.Collect(w.s.Ranges())[0]
	from := first.Primary
	w.do(catalog.StartOperation{Kind: rhumb.OperationMove, Range: first.ID, Node: from, Target: 4, At: time.Unix(0, 0)})
	o := w.run(1)
	for r := range w.s.Ranges() {
		if moved := r.IsReplica(4); moved != (r.ID == first.ID) || moved && (r.Primary != 4 || r.Preferred != 4 || r.IsReplica(from)) {
			t.Errorf("range %+v after %+v", r, o)
		}
	}
}

// TestEmptyDisk is the node that returns with an empty disk at its old address: the cluster refills it by itself, without the
// wait for a dead node, and gives the old identity up.
func TestEmptyDisk(t *testing.T) {
	s := build(t, three()[:2]...)
	s = apply(t, s, catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{3}, Boot: 1, Region: "fra", Zone: "c", Addr: "h3"})
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 6)})))
	w.fence(3)
	w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{4}, Boot: 1, Region: "fra", Zone: "c", Addr: "h3"})
	w.pass(sec)
	for range 10 {
		w.plan()
		w.follow(never)
		w.safe(3)
	}
	old, _ := w.s.Node(3)
	if holds(w.s, 3) != 0 || !old.Forgotten {
		t.Errorf("n3 holds %d, %+v", holds(w.s, 3), old)
	}
	for r := range w.s.Ranges() {
		if !slices.Equal(r.InSync, []rhumb.NodeID{1, 2, 4}) {
			t.Errorf("range %s: in sync %v of %v", r.ID, r.InSync, r.Replicas)
		}
	}
	found := false
	for o := range w.s.Operations() {
		found = found || o.Kind == rhumb.OperationRepair && o.Node == 3 && o.State == rhumb.OperationDone && o.Progress.Done == 6
	}
	if !found {
		t.Error("no operation says that n3 was repaired")
	}
}

// TestReplaceAfterSetting lets an operator say how long a node must be dead.
func TestReplaceAfterSetting(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.SetSetting{Name: rhumb.SettingReplaceAfter, Value: "2m"})
	w.fence(1)
	w.pass(119 * sec)
	if got := w.plan(); got != 0 {
		t.Errorf("%d commands too early", got)
	}
	w.pass(2 * sec)
	if got := w.plan(); got == 0 {
		t.Error("nothing is repaired after two minutes")
	}
}

// TestVotersLeave takes the vote of a node that leaves, and waits for a node that still catches up rather than having fewer
// voters.
func TestVotersLeave(t *testing.T) {
	w := grow(t, 4)
	all := func(rhumb.NodeID) bool { return true }
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1})
	if got := w.p.Voters(w.now, w.s, []rhumb.NodeID{1, 2, 3}, all); !slices.Equal(got, []rhumb.NodeID{2, 3, 4}) {
		t.Errorf("with a fourth node: %v", got)
	}
	if got := w.p.Voters(w.now, w.s, []rhumb.NodeID{1, 2, 3}, func(id rhumb.NodeID) bool { return id != 4 }); !slices.Equal(got, []rhumb.NodeID{1, 2, 3}) {
		t.Errorf("while it catches up: %v", got)
	}
	small := grow(t, 3)
	small.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1})
	if got := small.p.Voters(small.now, small.s, []rhumb.NodeID{1, 2, 3}, all); len(got) != 1 || got[0] == 1 {
		t.Errorf("of three nodes: %v", got)
	}
}

// twoRegions returns a state with the regions fra (n1 to n3) and iad (n4 to n6) and a table of two ranges in each.
func twoRegions(t *testing.T) *world {
	s := build(t, three()[:6]...)
	return newWorld(t, apply(t, s, Complete(s, catalog.CreateTable{Name: "t", Settings: settings(3, 2)})))
}

// inRegion counts the copies of ranges on the nodes of a region.
func inRegion(s *catalog.State, region rhumb.RegionID) (count int) {
	for r := range s.Ranges() {
		for _, id := range r.Replicas {
			if n, _ := s.Node(id); n.Region == region {
				count++
			}
		}
	}
	return count
}

// TestTwoRemovals refuses a second removal that would wait for the first one: of the region that takes its ranges, or into a region that goes.
func TestTwoRemovals(t *testing.T) {
	w := twoRegions(t)
	if host, why := PlanRegionRemoval(w.s, 1, 1); host != 0 || !strings.Contains(why, "cannot take its own ranges") {
		t.Errorf("into itself: %s %q", host, why)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, By: "ann", At: time.Unix(0, 0)})
	if host, why := PlanRegionRemoval(w.s, 2, 0); host != 0 || !strings.Contains(why, "takes the ranges of region fra") {
		t.Errorf("the region that takes the ranges: %s %q", host, why)
	}
	w.do(catalog.AddRegion{Name: "new", Location: rhumb.Point{Lat: 1}})
	if host, why := PlanRegionRemoval(w.s, 3, 1); host != 0 || !strings.Contains(why, "being removed themselves (fra)") {
		t.Errorf("into the region that goes: %s %q", host, why)
	}
}

// TestRemoveRegion moves the ranges of a region to the nodes of another one, without a copy less at any time, removes the nodes, and
// frees the name. The ranges stay with their new nodes when one of those dies.
func TestRemoveRegion(t *testing.T) {
	w := twoRegions(t)
	host, why := PlanRegionRemoval(w.s, 1, 0)
	if host != 2 || why != "" {
		t.Fatalf("into %s: %s", host, why)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: host, By: "ann", At: time.Unix(0, 0)})
	o := w.run(1)
	if o.State != rhumb.OperationDone || o.Progress.Done != 2 || inRegion(w.s, 1) != 0 {
		t.Errorf("%+v, %d copies are left", o, inRegion(w.s, 1))
	}
	if r, _ := w.s.Region(1); !r.Removed || r.Name != "fra~1" || w.s.HostRegion(1) != 2 {
		t.Errorf("%+v", r)
	}
	for id := range rhumb.NodeID(3) {
		if n, _ := w.s.Node(id + 1); !n.Forgotten {
			t.Errorf("%s was not removed", n.ID)
		}
	}
	// The last region stays.
	if _, why := PlanRegionRemoval(w.s, 2, 0); !strings.Contains(why, "no other region") {
		t.Errorf("the last region: %q", why)
	}
	// The copies of a dead node are created in the region that took the ranges, not in one that has no nodes.
	w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{9}, Boot: 1, Region: "iad", Zone: "d"})
	w.fence(4)
	for range 60 {
		w.pass(sec)
		w.plan()
		w.follow(never)
	}
	for r := range w.s.Ranges() {
		if len(r.InSync) != 3 || r.IsReplica(4) {
			t.Errorf("range %s: %v of %v", r.ID, r.InSync, r.Replicas)
		}
	}
}

// TestRemoveRegionIsCancelled takes all marks back, and the region takes copies again.
func TestRemoveRegionIsCancelled(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	for range 3 {
		w.plan()
		w.follow(never)
		w.safe()
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
	w.settle()
	// Three copies of each range are in the region again, because none of its ranges had left it.
	if got := inRegion(w.s, 1); got != 6 {
		t.Errorf("%d copies are in the region", got)
	}
	if r, _ := w.s.Region(1); r.Into != 0 || !w.s.TakesCopies(1) {
		t.Errorf("%+v", r)
	}
}

// emptiedRegion returns two regions, of which the first has no copies any more: its removal was cancelled after they had left.
func emptiedRegion(t *testing.T) *world {
	t.Helper()
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	for inRegion(w.s, 1) > 0 {
		w.plan()
		w.follow(never)
		w.safe()
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
	return w
}

// TestRebalanceBringsHome cancels the removal of a region after its ranges have left it. The copies stay where they are, also when the
// cluster balances by itself, until an operator asks for the balance of the region; then all come back.
func TestRebalanceBringsHome(t *testing.T) {
	w := emptiedRegion(t)
	for range 40 {
		w.round()
		w.safe()
	}
	if got := inRegion(w.s, 1); got != 0 {
		t.Fatalf("%d copies have come back unasked", got)
	}
	plan := PlanBalance(w.now, time.Unix(0, 0), w.s, &Surveys{}, 1)
	if len(plan.Moves) != 2 || plan.Moves[0].Why != "n4 is in region iad" || plan.After[0].Most == 0 {
		t.Errorf("the plan is %+v", plan)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationRebalance, Region: 1, At: time.Unix(0, 0).Add(w.now)})
	var asked rhumb.OperationID
	for o := range w.s.Operations() {
		asked = max(asked, o.ID)
	}
	for round := 0; !w.operation(asked).State.IsOver(); round++ {
		if round == 500 {
			t.Fatalf("the operation is not over: %+v", w.operation(asked))
		}
		w.round()
		w.safe()
	}
	if w.operation(asked).State != rhumb.OperationDone || inRegion(w.s, 1) != 6 || inRegion(w.s, 2) != 6 {
		t.Errorf("%+v: %d and %d copies are in the regions", w.operation(asked), inRegion(w.s, 1), inRegion(w.s, 2))
	}
	for r := range w.s.Ranges() {
		for _, id := range []rhumb.NodeID{r.Primary, r.Preferred} {
			if n, _ := w.s.Node(id); n.Region != r.ID.Region {
				t.Errorf("range %s: primary %s, preferred %s", r.ID, r.Primary, r.Preferred)
			}
		}
	}
}

// TestRebalanceWithoutNodes cancels the removal of a region when its nodes are removed already. The balance of the region names the reason and the
// remedies, before and after it was started: it found nothing to do, and ended as done.
func TestRebalanceWithoutNodes(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	if why := WhyNotRebalance(w.s, 1); !strings.Contains(why, "its ranges are balanced with those of region iad") {
		t.Errorf("while it is being removed: %q", why)
	}
	for len(regionNodes(w.s, 1)) > 0 {
		w.plan()
		w.follow(never)
		w.pass(sec)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
	const want = "region fra has no nodes that hold data, and the copies of its 2 ranges are on nodes of other regions; start nodes in the region"
	if plan := PlanBalance(w.now, time.Unix(0, 0), w.s, &Surveys{}, 1); !strings.Contains(plan.Waits, want) {
		t.Errorf("the plan is %+v", plan)
	}
	w.do(catalog.StartOperation{Kind: rhumb.OperationRebalance, Region: 1, At: time.Unix(0, 0)})
	for _, cmd := range w.p.BalanceCopies(w.now, time.Unix(0, 0), w.s, &Surveys{}) {
		w.do(cmd)
	}
	if o := w.operation(2); o.State != rhumb.OperationFailed || !strings.Contains(o.Error, want) {
		t.Errorf("the operation is %+v", o)
	}
	// Both remedies work.
	if host, why := PlanRegionRemoval(w.s, 1, 0); host != 2 {
		t.Errorf("it cannot be removed: %s", why)
	}
	w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{9}, Boot: 1, Region: "fra", Zone: "d"})
	if why := WhyNotRebalance(w.s, 1); why != "" || WhyNotRebalance(w.s, 2) != "" || WhyNotRebalance(w.s, rhumb.LocalRegion) != "" {
		t.Errorf("with a node: %q", why)
	}
}

// TestRemovalGoesOnDuringDrain removes a region while a node of the other one drains for a long time. The copies that nobody needs go, so that
// each range has as many in sync as its class demands, without the node that drains; they waited for the end of the drain. The last
// ones wait for it still.
func TestRemovalGoesOnDuringDrain(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	// Copies are on their way to all three nodes of the other region when one of them begins to drain.
	w.plan()
	w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeDraining})
	work := func() {
		w.plan()
		w.follow(never)
		for r := range w.s.Ranges() {
			if live := slices.DeleteFunc(slices.Clone(r.InSync), func(id rhumb.NodeID) bool { return !w.s.IsLive(id) }); r.ID.Region == 1 && len(live) < 3 {
				t.Fatalf("range %s has %v in sync of %v", r.ID, r.InSync, r.Replicas)
			}
		}
		w.pass(sec)
	}
	for range 60 {
		work()
	}
	if got := inRegion(w.s, 1); got != 2 || w.operation(1).State != rhumb.OperationRunning {
		t.Errorf("during the drain %d copies are left in the region, want one of each of its 2 ranges: %+v", got, w.operation(1))
	}
	w.do(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeLive})
	if o := w.run(1); o.State != rhumb.OperationDone || inRegion(w.s, 1) != 0 {
		t.Errorf("after the drain: %+v", o)
	}
}

// TestGiveUpHalfMoved loses a region while it is being removed: the planner names nodes for the ranges that restart empty, if there are
// enough, and the catalog accepts them.
func TestGiveUpHalfMoved(t *testing.T) {
	w := twoRegions(t)
	w.do(catalog.StartOperation{Kind: rhumb.OperationRemoveRegion, Region: 1, Into: 2, At: time.Unix(0, 0)})
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.CancelOperation})
	// One of the two ranges moves by hand.
	first := slices.Collect(w.s.Ranges())[0].ID
	steps := []func(r *rhumb.Range) catalog.Command{
		func(r *rhumb.Range) catalog.Command {
			return catalog.SetReplicas{Range: first, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4, 5, 6}}
		},
		func(r *rhumb.Range) catalog.Command {
			c := catalog.AlterISR{Range: first, Epoch: r.Epoch, Version: r.Version}
			for id := range rhumb.NodeID(6) {
				c.Members = append(c.Members, catalog.Member{Node: id + 1, Boot: 1})
			}
			return c
		},
		func(r *rhumb.Range) catalog.Command {
			return catalog.Elect{Range: first, Version: r.Version, Node: 4, InSync: []rhumb.NodeID{4, 5, 6}}
		},
		func(r *rhumb.Range) catalog.Command {
			return catalog.SetReplicas{Range: first, Version: r.Version, Replicas: []rhumb.NodeID{4, 5, 6}, Preferred: 4}
		},
	}
	for _, step := range steps {
		r, _ := w.s.Range(first)
		w.do(step(r))
	}
	for id := range rhumb.NodeID(3) {
		w.fence(id + 1)
	}
	give := catalog.RemoveRegion{Region: 1, Into: 2, Force: true, Lost: 1}
	short := w.s
	w.fence(6)
	if c := Complete(w.s, give).(catalog.RemoveRegion); c.Restarts != nil {
		t.Errorf("two live nodes are to take three copies: %+v", c.Restarts)
	}
	w.s = short
	w.do(Complete(w.s, give))
	for r := range w.s.Ranges() {
		if !slices.Equal(r.InSync, []rhumb.NodeID{4, 5, 6}) || !w.s.IsLive(r.Primary) {
			t.Errorf("range %s: %+v", r.ID, r)
		}
	}
}

// TestWhyNotRemoveRegion names what keeps a region: tables that are confined to it, and regions with too few nodes.
func TestWhyNotRemoveRegion(t *testing.T) {
	w := twoRegions(t)
	confined := settings(3, 1)
	confined.Regions = rhumb.NewRegionSet("fra")
	w.do(Complete(w.s, catalog.CreateTable{Name: "papers", Settings: confined}))
	if _, why := PlanRegionRemoval(w.s, 1, 0); !strings.Contains(why, "papers") || !strings.Contains(why, "confined to fra") {
		t.Errorf("residency: %q", why)
	}
	if host, why := PlanRegionRemoval(w.s, 2, 0); host != 1 || why != "" {
		t.Errorf("the other region: %s, %q", host, why)
	}
	// With two nodes left, a region has no room for three copies.
	w.do(catalog.DropTable{Name: "papers"})
	w.fence(4)
	if _, why := PlanRegionRemoval(w.s, 1, 0); !strings.Contains(why, "iad has 2 live nodes for the copies of t, which keep 3") {
		t.Errorf("too few nodes: %q", why)
	}
	if IsRegionLost(w.s, 2) {
		t.Error("a region with two live nodes counts as lost")
	}
	// The number of nodes is not what a table lacks whose copies are in several regions.
	spread := newWorld(t, build(t, three()...))
	wide := settings(3, 1)
	wide.Survival = rhumb.SurviveRegion
	spread.do(Complete(spread.s, catalog.CreateTable{Name: "wide", Settings: wide}))
	if _, why := PlanRegionRemoval(spread.s, 1, 0); !strings.Contains(why, "the copies of wide would not survive the loss of a region: they need live nodes in 3 regions, at most 1 copies in each, and iad has 3, sin has 3;") {
		t.Errorf("survival goal region: %q", why)
	}
}

// TestRegionOfRemovedNodesIsLost removes the dead nodes of a region one by one. The ranges that only they had are as lost as before: the region can be
// given up, and not be removed as if it were empty.
func TestRegionOfRemovedNodesIsLost(t *testing.T) {
	w := twoRegions(t)
	for id := rhumb.NodeID(1); id <= 3; id++ {
		w.fence(id)
		if lost := IsRegionLost(w.s, 1); lost != (id == 3) {
			t.Errorf("with %d of 3 dead nodes: lost %v", id, lost)
		}
	}
	for id := rhumb.NodeID(1); id <= 3; id++ {
		w.do(catalog.ForgetNode{Node: id, Boot: 1})
	}
	if !IsRegionLost(w.s, 1) || IsRegionLost(w.s, 2) {
		t.Errorf("lost: %v and %v", IsRegionLost(w.s, 1), IsRegionLost(w.s, 2))
	}
	if host := NearestHost(w.s, 1); host != 2 {
		t.Errorf("region %s takes the rest", host)
	}
	lost, _ := w.s.LostRanges(1)
	w.do(Complete(w.s, catalog.RemoveRegion{Region: 1, Into: 2, Force: true, Lost: uint32(len(lost))}))
	if r, _ := w.s.Region(1); !r.Removed || r.Lost != 2 || IsRegionLost(w.s, 1) {
		t.Errorf("%+v", r)
	}
	// A region in which nothing ever was is not lost.
	w.do(catalog.AddRegion{Name: "new", Location: rhumb.Point{Lat: 1}})
	if IsRegionLost(w.s, 3) {
		t.Error("a region without nodes and ranges counts as lost")
	}
}

// TestRepairEndsWithReturn ends the repair of a node that is back, and says why.
func TestRepairEndsWithReturn(t *testing.T) {
	w := grow(t, 4)
	w.fence(1)
	w.pass(30 * sec)
	w.plan()
	if o := w.operation(1); o.Kind != rhumb.OperationRepair || o.State != rhumb.OperationRunning {
		t.Fatalf("%+v", o)
	}
	w.revive(1)
	w.plan()
	if o := w.operation(1); o.State != rhumb.OperationCancelled || o.Error != "n1 is back" {
		t.Errorf("%+v", o)
	}
}
