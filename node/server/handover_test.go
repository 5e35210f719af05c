package server

import (
	"context"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// TestHandedOverRequestsAreForwarded guards that a client that asks the old primary gets its answer from the new one,
// though its request allows no hop and metadata does not show the handover yet. The request keeps its ID.
func TestHandedOverRequestsAreForwarded(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	refusal := &rhumb.Error{Op: "test", Kind: rhumb.NotPrimary, Range: home, Node: near}
	kv.cfg.Ranges = &failingRanges{w, refusal}
	var to []rhumb.NodeID
	w.refuse, w.handed[home] = refusal, rhumb.Handover{Epoch: 4, Target: near}
	w.answer = func(_ context.Context, n rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
		to = append(to, n)
		return &rhumbpb.Response{Id: 99, Receipt: &rhumbpb.Receipt{Node: uint32(n)}}, nil
	}
	write := putReq(7, rhumb.RangeID{}, "a1", "v")
	write.Write.Resolve, write.Write.ClientLow, write.Write.Seq = true, 3, 5
	for name, q := range map[string]*rhumbpb.Request{
		"write": write, "read": getReq(8, home, "a1"),
		"scan": {Id: 9, Scan: &rhumbpb.ScanRequest{Table: uint32(table), Region: uint32(home.Region), Slot: uint32(home.Slot)}},
	} {
		w.with(func() { w.forwards = nil })
		resp, err, _ := do(t, c, q)
		if err.Kind != 0 || resp.GetReceipt().GetNode() != uint32(near) {
			t.Errorf("%s: %v, %v", name, resp, err)
			continue
		}
		f := w.forwards[0]
		if f.Handed != 4 || f.HopsDone != 1 {
			t.Errorf("%s is forwarded as %v", name, f)
		}
		if f.Write != nil && (f.Write.Resolve || f.Write.Slot != uint32(home.Slot) || f.Write.Seq != 5) {
			t.Errorf("the write is forwarded as %v", f.Write)
		}
	}
	for _, n := range to {
		if n != near {
			t.Errorf("forwarded to %v", to)
		}
	}
	// Without a handover the client gets the refusal.
	w.with(func() { delete(w.handed, home) })
	if _, err, hint := do(t, c, putReq(7, home, "a1", "v")); err.Kind != rhumb.NotPrimary || hint.Newer == nil {
		t.Errorf("without a handover: %v", err)
	}
}

// TestTakesOverBeforeMetadata guards that the new primary serves what the old one forwards, and what clients send,
// although its metadata still names the old one; and that a handover that does not come is an error that is certain.
func TestTakesOverBeforeMetadata(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	handed := func(q *rhumbpb.Request) *rhumbpb.Request {
		q.Handed = 4 // above the epoch of the record
		return q
	}
	w.lost = true
	for name, q := range map[string]*rhumbpb.Request{"write": handed(putReq(1, beside, "c1", "v")), "read": handed(getReq(2, beside, "c1"))} {
		if _, err, _ := do(t, c, q); err.Kind != rhumb.Unavailable {
			t.Errorf("a lost handover, %s: %v", name, err)
		}
	}
	w.with(func() { w.lost = false })
	if _, err, _ := do(t, c, handed(putReq(1, beside, "c1", "v"))); err.Kind != 0 {
		t.Errorf("write: %v", err)
	}
	resp, err, _ := do(t, c, handed(getReq(2, beside, "c1")))
	if err.Kind != 0 || len(resp.Items) != 1 || len(resp.Items[0].Value) == 0 {
		t.Errorf("read: %v, %v", resp, err)
	}
	// This node is primary now, whoever asks.
	if _, err, _ := do(t, c, putReq(3, beside, "c2", "v")); err.Kind != 0 {
		t.Errorf("a write of a client: %v", err)
	}
	w.with(func() {
		if len(w.forwards) > 0 {
			t.Errorf("forwarded %v", w.forwards)
		}
	})
}
