package place

import (
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// roundOfOperations applies one round of operations and lets the planner take note of the refusals, as the controller does. It returns the refusals
// that are news.
func (w *world) roundOfOperations() (news []string) {
	w.t.Helper()
	var f Refusals
	for _, cmd := range w.p.Operations(w.now, time.Unix(0, 0).Add(w.now), w.s, Measures{}) {
		next, res, _ := w.s.Apply(cmd)
		w.s = next
		if f.Add(cmd, res) && !w.p.KnowsRefusal(cmd, res) {
			news = append(news, CommandName(cmd)+": "+res.Failure.Msg)
		}
	}
	w.p.Heed(f)
	return news
}

// TestRefusedStep repeats a step that the catalog refuses: it is news once, the operation names it as long as it lasts, and no longer.
func TestRefusedStep(t *testing.T) {
	w := grow(t, 4)
	w.do(catalog.StartOperation{Kind: rhumb.OperationDecommission, Node: 1, By: "ann", At: time.Unix(0, 0)})
	w.roundOfOperations()
	w.follow(never)
	w.follow(never)
	// The planner knows the rules of this catalog, so the command that it should not have planned is made here.
	var f Refusals
	range1 := rhumb.RangeID{Region: 1}
	r, _ := w.s.Range(range1)
	refusedStep := catalog.SetReplicas{Range: range1, Version: r.Version, Replicas: []rhumb.NodeID{1, 2, 3, 4, 9}}
	late := catalog.SetReplicas{Range: range1, Version: r.Version - 1, Replicas: r.Replicas}
	_, res, _ := w.s.Apply(refusedStep)
	_, lateRes, _ := w.s.Apply(late)
	if !f.Add(refusedStep, res) || f.Add(late, lateRes) || lateRes.Failure == nil {
		t.Fatalf("%v and %v: the first is a refusal of the plan, the second was overtaken", res.Err(), lateRes.Err())
	}
	if w.p.KnowsRefusal(refusedStep, res) {
		t.Error("known before it was heeded")
	}
	w.p.Heed(f)
	if !w.p.KnowsRefusal(refusedStep, res) {
		t.Error("the same refusal is news twice")
	}
	w.roundOfOperations()
	if o := w.operation(1); !strings.Contains(o.Waits, "range 1/0: the metadata refuses the next step: n9 is unknown or fenced") {
		t.Errorf("it waits for %q", o.Waits)
	}
	// The step of this round was not refused.
	w.roundOfOperations()
	if o := w.operation(1); strings.Contains(o.Waits, "refuses") {
		t.Errorf("afterwards it waits for %q", o.Waits)
	}
}
