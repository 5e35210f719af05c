package place

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

const sec = time.Second

// world is a state with a planner that watches it in steps of a second.
type world struct {
	t     testing.TB
	s     *catalog.State
	p     *Planner
	now   time.Duration
	boots map[rhumb.NodeID]rhumb.BootSeq
	deaf  bool // targets adopt no handovers
}

func newWorld(t testing.TB, s *catalog.State) *world {
	w := &world{t: t, s: s, p: NewPlanner(DefaultConfig()), boots: map[rhumb.NodeID]rhumb.BootSeq{}}
	w.pass(0)
	return w
}

func (w *world) do(cmd catalog.Command) { w.t.Helper(); w.s = apply(w.t, w.s, cmd) }

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	for end := w.now + d; ; w.now += sec {
		w.p.Observe(w.now, w.s)
		if w.now >= end {
			return
		}
	}
}

func (w *world) boot(id rhumb.NodeID) rhumb.BootSeq { n, _ := w.s.Node(id); return n.Boot }

func (w *world) fence(id rhumb.NodeID) { w.do(catalog.FenceNode{Node: id, Boot: w.boot(id)}) }

// revive registers a node again and brings it back in sync everywhere.
func (w *world) revive(id rhumb.NodeID) {
	n, _ := w.s.Node(id)
	region, _ := w.s.Region(n.Region)
	w.do(catalog.RegisterNode{Binary: testBinary, Node: id, Store: n.Store, Boot: n.Boot + 1, Region: region.Name, Zone: n.Zone})
	for _, r := range slices.Collect(w.s.Ranges()) {
		if !r.IsReplica(id) || r.IsInSync(id) {
			continue
		}
		c := catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: id, Boot: w.boot(id)}}}
		for _, m := range r.InSync {
			c.Members = append(c.Members, catalog.Member{Node: m, Boot: w.boot(m)})
		}
		w.do(c)
	}
}

// TestFailback gives a node its ranges back after 30 s of health, after twice that when it relapses, and after 30 s again
// when it was well for twenty minutes.
func TestFailback(t *testing.T) {
	s := build(t, three()[:3]...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
	for round, wait := range []time.Duration{30 * sec, 60 * sec, 120 * sec, 240 * sec, 480 * sec, 600 * sec, 600 * sec} {
		w.pass(10 * sec)
		w.fence(1)
		w.pass(20 * sec)
		w.revive(1)
		w.pass(wait - sec)
		if got := w.p.Failback(w.now, w.s, always); got != nil {
			t.Errorf("round %d: %d ranges go back before %v", round, len(got), wait)
		}
		w.pass(sec)
		got := w.p.Failback(w.now, w.s, always)
		if len(got) != 2 {
			t.Fatalf("round %d: %d ranges go back after %v, want 2", round, len(got), wait)
		}
		for _, cmd := range got {
			w.do(cmd)
		}
		if got := w.p.Failback(w.now, w.s, always); got != nil {
			t.Errorf("round %d: twice", round)
		}
	}
	w.pass(1200 * sec)
	w.fence(1)
	w.pass(sec)
	w.revive(1)
	w.pass(30 * sec)
	if got := w.p.Failback(w.now, w.s, always); len(got) != 2 {
		t.Errorf("after a long time of health %d ranges go back in 30 s, want 2", len(got))
	}
}

// TestFailbackNeedsSync keeps ranges where they are while the preferred primary is a learner or draining.
func TestFailbackNeedsSync(t *testing.T) {
	s := build(t, three()[:3]...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
	w.fence(1)
	n, _ := w.s.Node(1)
	w.do(catalog.RegisterNode{Binary: testBinary, Node: 1, Store: n.Store, Boot: 2, Region: "fra", Zone: "a"})
	w.pass(1000 * sec)
	if got := w.p.Failback(w.now, w.s, always); got != nil {
		t.Errorf("a learner gets %d ranges", len(got))
	}
	w.do(catalog.SetNodeState{Node: 1, Boot: 2, State: rhumb.NodeDraining})
	w.pass(1000 * sec)
	if got := w.p.Failback(w.now, w.s, always); got != nil {
		t.Errorf("a draining node gets %d ranges", len(got))
	}
}

// TestRepair makes replicas elsewhere once a node is gone for long, and drops the old ones when the new are in sync.
func TestRepair(t *testing.T) {
	nodes := append(three()[:3], spec{"fra", "a", 0})
	s := build(t, nodes[:3]...)
	w := newWorld(t, apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 6)})))
	w.fence(1)
	w.pass(29 * sec)
	if got := w.p.Repair(w.now, w.s); got != nil {
		t.Errorf("too early: %+v", got)
	}
	w.pass(sec)
	if got := w.p.Repair(w.now, w.s); got != nil {
		t.Errorf("with no node left: %+v", got)
	}
	w.do(catalog.RegisterNode{Binary: testBinary, Store: rhumb.UUID{4}, Boot: 1, Region: "fra", Zone: "a"})
	got := w.p.Repair(w.now, w.s)
	if len(got) != 6 {
		t.Fatalf("%d ranges get a new replica, want 6", len(got))
	}
	for _, cmd := range got {
		w.do(cmd)
	}
	if got := w.p.Repair(w.now, w.s); got != nil {
		t.Errorf("before the new replicas are in sync: %+v", got)
	}
	for _, r := range slices.Collect(w.s.Ranges()) {
		w.do(catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 2, Boot: 1}, {Node: 3, Boot: 1}, {Node: 4, Boot: 1}}})
	}
	for _, cmd := range w.p.Repair(w.now, w.s) {
		w.do(cmd)
	}
	for r := range w.s.Ranges() {
		if r.IsReplica(1) || len(r.Replicas) != 3 || r.Preferred == 1 {
			t.Errorf("range %s: replicas %v, preferred %s", r.ID, r.Replicas, r.Preferred)
		}
	}
	if got := w.p.Repair(w.now, w.s); got != nil {
		t.Errorf("afterwards: %+v", got)
	}
	for _, cmd := range w.p.BalancePrimaries(w.s) {
		w.do(cmd)
	}
	if preferred, _ := count(w.s); preferred[2] != 2 || preferred[3] != 2 || preferred[4] != 2 {
		t.Errorf("preferred primaries after balancing: %v, want 2 each", preferred)
	}
	if got := w.p.BalancePrimaries(w.s); got != nil {
		t.Errorf("balanced and still moves: %+v", got)
	}
}

// TestBalanceLeavesBlocksAlone never moves the preferred primary of a node's own slots.
func TestBalanceLeavesBlocksAlone(t *testing.T) {
	s := build(t, three()[:3]...)
	s = apply(t, s, Complete(s, catalog.CreateClass{Settings: settings(3, 3)}))
	for i := range uint32(5) {
		s = apply(t, s, Complete(s, catalog.OpenSlot{Node: 1, Class: 1, Opened: i}))
	}
	if got := NewPlanner(DefaultConfig()).BalancePrimaries(s); got != nil {
		t.Errorf("%+v", got)
	}
}

// TestVoters follows the voters of a growing cluster and through deaths.
func TestVoters(t *testing.T) {
	all := func(rhumb.NodeID) bool { return true }
	w := newWorld(t, build(t, three()...))
	small := newWorld(t, build(t, three()[:2]...))
	zones := newWorld(t, build(t, spec{"a", "x", 0}, spec{"a", "x", 0}, spec{"a", "y", 0}, spec{"a", "z", 0}))
	five := newWorld(t, build(t, spec{"a", "x", 0}, spec{"b", "x", 1}, spec{"c", "x", 2}, spec{"d", "x", 3}, spec{"e", "x", 4}))
	check := func(name string, w *world, current []rhumb.NodeID, ready func(rhumb.NodeID) bool, want ...rhumb.NodeID) {
		t.Helper()
		if got := w.p.Voters(w.now, w.s, current, ready); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	check("one region each", w, []rhumb.NodeID{1}, all, 1, 4, 7)
	check("stable", w, []rhumb.NodeID{2, 6, 8}, all, 2, 6, 8)
	check("a region without a voter", w, []rhumb.NodeID{1, 2, 4}, all, 1, 4, 7)
	check("nobody else is ready", w, []rhumb.NodeID{5}, func(rhumb.NodeID) bool { return false }, 5)
	check("two nodes", small, []rhumb.NodeID{1}, all, 1)
	check("zones", zones, []rhumb.NodeID{1}, all, 1, 3, 4)
	check("five regions", five, []rhumb.NodeID{3}, all, 1, 2, 3, 4, 5)
	// Others got votes before a leader that leaves lost its own (seed 5568 of sim).
	check("four voters in three regions", w, []rhumb.NodeID{2, 4, 5, 7}, all, 2, 4, 7)
	check("two voters of two nodes", small, []rhumb.NodeID{1, 2}, all, 1)
	w.fence(4)
	w.pass(9 * sec)
	check("a short absence", w, []rhumb.NodeID{1, 4, 7}, all, 1, 4, 7)
	w.pass(sec)
	check("a long absence", w, []rhumb.NodeID{1, 4, 7}, all, 1, 5, 7)
	w.fence(5)
	w.fence(6)
	w.pass(20 * sec)
	check("a region is gone", w, []rhumb.NodeID{1, 4, 7}, all, 1, 2, 7)
	five.fence(2)
	five.pass(20 * sec)
	check("nobody to take the vote", five, []rhumb.NodeID{1, 2, 3, 4, 5}, all, 1, 2, 3, 4, 5)
}

// TestWitness guards that a witness takes the vote of its region, also from a node with data, and gets no copy of anything.
func TestWitness(t *testing.T) {
	all := func(rhumb.NodeID) bool { return true }
	w := newWorld(t, build(t, spec{"a", "x", 0}, spec{"a", "y", 0}, spec{"b", "x", 1}, spec{"b", "y", 1}))
	join := catalog.RegisterNode{
		Binary: testBinary, Store: rhumb.UUID{9}, Boot: 1, Nonce: 9, Region: "c", Zone: "x", Location: rhumb.Point{Lat: 2}, HasLocation: true, Witness: true,
	}
	w.do(join)
	w.pass(sec)
	if got := w.p.Voters(w.now, w.s, []rhumb.NodeID{1, 2, 3}, all); !slices.Equal(got, []rhumb.NodeID{1, 3, 5}) {
		t.Errorf("a witness in a region of its own: voters %v", got)
	}
	second := join
	second.Store, second.Region, second.Nonce = rhumb.UUID{10}, "a", 10
	w.do(second)
	w.pass(sec)
	if got := w.p.Voters(w.now, w.s, []rhumb.NodeID{1, 3, 5}, all); !slices.Equal(got, []rhumb.NodeID{3, 5, 6}) {
		t.Errorf("a witness beside nodes with data: voters %v", got)
	}
	// Half of the replicas in each region: two regions with data are enough, and the witness is no third one.
	c := settings(4, 4)
	c.Survival = rhumb.SurviveRegion
	w.do(Complete(w.s, catalog.CreateTable{Name: "t", Settings: c}))
	w.do(Complete(w.s, catalog.CreateTable{Name: "u", Settings: settings(2, 4)}))
	for r := range w.s.Ranges() {
		if r.IsReplica(5) || r.IsReplica(6) || r.ID.Region == 3 {
			t.Errorf("range %s has replicas %v", r.ID, r.Replicas)
		}
	}
	if _, res, _ := w.s.Apply(catalog.SetReplicas{Range: rhumb.RangeID{Region: 1}, Version: 1, Replicas: []rhumb.NodeID{1, 2, 3, 4, 5}}); rhumb.KindOf(res.Err()) != rhumb.InvalidArgument {
		t.Errorf("a copy on a witness: %+v", res)
	}
	if _, res, _ := w.s.Apply(Complete(w.s, catalog.OpenSlot{Node: 5, Class: 1})); res.Err() == nil {
		t.Error("a witness opened a slot for inserts")
	}
	// The kind of a node is fixed when it joins.
	again := join
	again.Node, again.Witness, again.Boot, again.Nonce, again.Previous = 5, false, 2, 11, 9
	if _, res, _ := w.s.Apply(again); rhumb.KindOf(res.Err()) != rhumb.InvalidArgument {
		t.Errorf("a witness that restarts as another node: %+v", res)
	}

	// One region is lost. Fencing the first of its nodes leaves the set in both regions; fencing the last one leaves it in one, because
	// nobody else has a copy any more. A region that still lives is not left out.
	id := rhumb.RangeID{Region: 2}
	r, _ := w.s.Range(id)
	alone := catalog.AlterISR{Range: id, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 3, Boot: 1}, {Node: 4, Boot: 1}}}
	if _, res, _ := w.s.Apply(alone); rhumb.KindOf(res.Err()) != rhumb.InvalidArgument {
		t.Errorf("an in-sync set without a region that lives: %+v", res)
	}
	w.fence(1)
	if r, _ = w.s.Range(id); !slices.Equal(r.InSync, []rhumb.NodeID{2, 3, 4}) {
		t.Errorf("one node is lost: in sync %v", r.InSync)
	}
	w.fence(2)
	for r := range w.s.Ranges() {
		if class, _ := w.s.Class(r.Class); class.Settings.Survival == rhumb.SurviveRegion && (!slices.Equal(r.InSync, []rhumb.NodeID{3, 4}) || r.Primary < 3) {
			t.Errorf("a region is lost: range %s has primary %s, in sync %v", r.ID, r.Primary, r.InSync)
		}
	}
}

// TestVotesOfOperators guards that the automatic choice does not undo what an operator chose: not for a better spread, and only while
// a pinned node cannot vote.
func TestVotesOfOperators(t *testing.T) {
	all := func(rhumb.NodeID) bool { return true }
	w := newWorld(t, build(t, three()...))
	// The state follows the votes as the driver of the group would record them, so that each step begins with what the last one left.
	voters := []rhumb.NodeID{1, 4, 7}
	w.do(catalog.SetVoters{Voters: voters})
	want := func(name string, ready func(rhumb.NodeID) bool, want ...rhumb.NodeID) {
		t.Helper()
		got := w.p.Voters(w.now, w.s, voters, ready)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		voters = got
		w.do(catalog.SetVoters{Voters: got})
	}
	operation := func() *rhumb.Operation {
		for o := range w.s.Operations() {
			if !o.State.IsOver() {
				return o
			}
		}
		return nil
	}
	// The vote of the only voter of region 1 moves to region 2, which the automatic choice would not do.
	w.do(catalog.StartOperation{Kind: rhumb.OperationMoveVote, Node: 1, Target: 5})
	want("the new voter catches up", func(id rhumb.NodeID) bool { return id != 5 }, 1, 4, 7)
	w.plan()
	if o := operation(); o == nil || !strings.Contains(o.Waits, "catch up") {
		t.Errorf("the operation while the node catches up: %+v", o)
	}
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.PauseOperation})
	want("a paused move", all, 1, 4, 7)
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.ResumeOperation})
	want("it has caught up", all, 4, 5, 7)
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.PauseOperation})
	want("paused after the vote moved", all, 4, 5, 7)
	w.do(catalog.ControlOperation{ID: 1, Action: catalog.ResumeOperation})
	w.plan()
	if o := operation(); o != nil {
		t.Errorf("the operation is not over: %+v", o)
	}
	want("nobody moves a vote back", all, 4, 5, 7)
	if why := WhyVotes(w.s); why[5] != "pinned by an operator" || why[4] != why[5] || why[1] != "" {
		t.Errorf("reasons: %v", why)
	}

	// A dead pinned voter is replaced, and takes its vote back.
	w.fence(5)
	w.pass(11 * sec)
	want("a pinned voter is dead", all, 1, 4, 7)
	if why := WhyVotes(w.s); !strings.Contains(why[1], "n5") {
		t.Errorf("the reason of the stand-in: %q", why[1])
	}
	w.revive(5)
	w.pass(sec)
	want("it is back", all, 4, 5, 7)

	// One that leaves cannot vote, pinned or not.
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 4})
	want("a pinned voter leaves", all, 1, 5, 7)
	w.do(catalog.ControlOperation{ID: 2, Action: catalog.CancelOperation})
	want("it stays after all", all, 4, 5, 7)
	w.do(catalog.UnpinVotes{Nodes: []rhumb.NodeID{5}})
	want("the choice is the cluster's again", all, 1, 4, 7)
	w.do(catalog.UnpinVotes{})
	for n := range w.s.Nodes() {
		if n.VotePinned {
			t.Errorf("%s is still pinned", n.ID)
		}
	}
}

func TestConfigListsFaults(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{FailbackMax: -1}.Validate()
	for _, want := range []string{"FailbackAfter", "FailbackMax", "ReplaceAfter", "VoterReplaceAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the faults do not name %s: %v", want, err)
		}
	}
}

func always(*rhumb.Range, rhumb.NodeID) bool { return true }

// TestDeadRegions guards that a region counts as dead once all its nodes have been fenced for a while, and not while one
// lives or has just died, and that the first node that registers again ends it.
func TestDeadRegions(t *testing.T) {
	w := newWorld(t, build(t, three()...))
	w.fence(1)
	w.fence(2)
	w.pass(60 * sec)
	if got := w.p.DeadRegions(w.now, w.s); got != nil {
		t.Fatalf("one node lives: %v", got)
	}
	w.fence(3)
	w.pass(4 * sec)
	if got := w.p.DeadRegions(w.now, w.s); got != nil {
		t.Fatalf("too early: %v", got)
	}
	w.pass(sec)
	got := w.p.DeadRegions(w.now, w.s)
	if len(got) != 1 || got[0] != (catalog.SetRegionDead{Region: 1}) {
		t.Fatalf("all are gone: %v", got)
	}
	w.do(got[0])
	if w.s.RegionServes(1) || !w.s.RegionServes(2) || w.s.RegionServes(9) {
		t.Error("region 1 serves, region 2 does not, or one that does not exist does")
	}
	if got := w.p.DeadRegions(w.now, w.s); got != nil {
		t.Errorf("it is dead already: %v", got)
	}
	w.revive(2)
	if !w.s.RegionServes(1) {
		t.Error("a node is back and the region is still dead")
	}
}

// TestMayCutOff keeps a removed node in the metadata group until it has had the time to learn of its removal.
func TestMayCutOff(t *testing.T) {
	w := newWorld(t, build(t, three()[:3]...))
	w.fence(3)
	w.pass(10 * sec)
	if w.p.MayCutOff(w.now, 3) {
		t.Error("a fenced node is cut off")
	}
	w.do(catalog.ForgetNode{Node: 3, Boot: w.boot(3)})
	w.p.Observe(w.now, w.s)
	if w.p.MayCutOff(w.now, 3) {
		t.Error("a removed node is cut off at once")
	}
	w.pass(farewell + sec)
	if !w.p.MayCutOff(w.now, 3) {
		t.Error("a removed node stays in the group")
	}
}
