package place

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// round runs all steps of the planner that a returning node meets, also those that could work against it, and lets replicas follow.
func (w *world) round() { w.t.Helper(); w.rounds(true) }

// rounds is round with or without the moves that balance nodes.
func (w *world) rounds(balance bool) {
	w.t.Helper()
	var surveys Surveys
	for n := range w.s.Nodes() {
		survey := Survey{From: n.ID}
		for r := range w.s.Ranges() {
			if r.Primary == n.ID {
				survey.Ranges = append(survey.Ranges, RangeSize{Range: r.ID, Bytes: 64 << 20})
			}
		}
		surveys.Add(w.now, survey)
	}
	w.plan()
	for _, step := range []func() []catalog.Command{
		func() []catalog.Command { return w.p.Returns(w.now, w.s) },
		func() []catalog.Command { return w.p.Failback(w.now, w.s, always) },
		func() []catalog.Command { return w.p.StandIns(w.now, w.s, always) },
		func() []catalog.Command { return w.p.BalancePrimaries(w.s) },
		func() []catalog.Command {
			if !balance {
				return nil
			}
			return w.p.BalanceCopies(w.now, time.Unix(0, 0).Add(w.now), w.s, &surveys)
		},
	} {
		for _, cmd := range step() {
			next, _, _ := w.s.Apply(cmd) // refusals are conflicts of plans of one round
			if w.s = next; w.s.Check() != nil {
				w.t.Fatalf("%+v: %v", cmd, w.s.Check())
			}
		}
	}
	w.follow(never)
	w.pass(sec)
}

// homes returns the ranges that prefer a node.
func (w *world) homes(id rhumb.NodeID) (out []rhumb.RangeID) {
	for r := range w.s.Ranges() {
		if r.Preferred == id {
			out = append(out, r.ID)
		}
	}
	return out
}

// replaced returns a world whose node 1 died and was replaced everywhere, and the ranges that it had.
func replaced(t *testing.T) (*world, []rhumb.RangeID) {
	t.Helper()
	w := pairedWorld(t)
	had := w.homes(1)
	w.fence(1)
	for range 60 {
		w.round()
	}
	if holds(w.s, 1) > 0 || len(had) == 0 {
		t.Fatalf("n1 had %v and still has %d copies", had, holds(w.s, 1))
	}
	for r := range w.s.Ranges() {
		if slices.Contains(had, r.ID) != (r.Former == 1) {
			t.Errorf("the former node of %s is %s", r.ID, r.Former)
		}
	}
	return w, had
}

// TestFormerRangesReturn: a node that was replaced gets the ranges back that preferred it, before balance gives it others; no copy is
// one too many at the end, and nothing moves any more.
func TestFormerRangesReturn(t *testing.T) {
	w, had := replaced(t)
	w.revive(1)
	for i := range 29 {
		w.round()
		if holds(w.s, 1) > 0 {
			t.Fatalf("n1 got a copy %d s after its return", i)
		}
	}
	for range 60 {
		w.round()
		w.safe()
	}
	for _, id := range had {
		if r, _ := w.s.Range(id); r.Primary != 1 || r.Former != rhumb.NoNode || len(r.Replicas) != 3 || len(r.InSync) != 3 {
			t.Errorf("range %s is %+v", id, r)
		}
	}
	before := w.s.Revision()
	for range 30 {
		w.round()
	}
	if w.s.Revision() != before {
		t.Errorf("%d changes after everything had returned", w.s.Revision()-before)
	}
}

// TestFormerRangesByHand: with fail-back at manual a copy begins by the command only, and at never nothing returns.
func TestFormerRangesByHand(t *testing.T) {
	for _, policy := range []string{FailbackManual, FailbackNever} {
		w, had := replaced(t)
		w.do(catalog.SetSetting{Name: rhumb.SettingFailback, Value: policy})
		w.revive(1)
		// Balance may choose the node for one of these ranges by itself, which is no return.
		for range 60 {
			w.rounds(false)
		}
		for _, id := range had {
			if r, _ := w.s.Range(id); r.IsReplica(1) || r.Former != 1 {
				t.Errorf("%s: %s returned without a command", policy, id)
			}
		}
		if policy == FailbackNever {
			continue
		}
		for range 60 {
			begin, _, _ := ReturnsTo(w.s, 1)
			for _, c := range begin {
				w.do(c)
			}
			w.round()
		}
		for _, id := range had {
			if r, _ := w.s.Range(id); r.Preferred != 1 || r.Former != rhumb.NoNode {
				t.Errorf("%s: after the command %s is %+v", policy, id, r)
			}
		}
	}
}

// TestFormerRangesAreForgotten: what somebody decides meanwhile counts more than where a range was before, and a node that is removed
// for good gets nothing.
func TestFormerRangesAreForgotten(t *testing.T) {
	w, had := replaced(t)
	r, _ := w.s.Range(had[0])
	other := r.InSync[slices.IndexFunc(r.InSync, func(n rhumb.NodeID) bool { return n != r.Preferred })]
	w.do(catalog.SetReplicas{Range: r.ID, Version: r.Version, Replicas: r.Replicas, Preferred: other})
	if r, _ = w.s.Range(had[0]); r.Former != rhumb.NoNode {
		t.Errorf("somebody chose %s, and the range still belongs to %s", other, r.Former)
	}
	w.do(catalog.ForgetNode{Node: 1, Boot: w.boot(1)})
	for r := range w.s.Ranges() {
		if r.Former != rhumb.NoNode {
			t.Errorf("range %s belongs to %s, which was removed", r.ID, r.Former)
		}
	}
	again, err := catalog.Decode(w.s.Encode())
	if err != nil || again.Revision() != w.s.Revision() {
		t.Errorf("decoding: %v", err)
	}
}

// TestFormerRangesAreEncoded: the mark survives a copy of the state, and the death of the node that took the range over.
func TestFormerRangesAreEncoded(t *testing.T) {
	w, had := replaced(t)
	again, err := catalog.Decode(w.s.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := again.Range(had[0]); r.Former != 1 {
		t.Errorf("after decoding the former node is %s", r.Former)
	}
	r, _ := w.s.Range(had[0])
	w.fence(r.Preferred)
	for range 60 {
		w.round()
	}
	if r, _ = w.s.Range(had[0]); r.Former != 1 {
		t.Errorf("after the second failure the former node is %s", r.Former)
	}
}
