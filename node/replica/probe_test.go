package replica

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// elected returns a primary of epoch 2 whose log ends at 1:10 and is trimmed up to 5. Node 2 is in
// sync and connected.
func elected(t *testing.T) (*Replica, Ready) {
	t.Helper()
	id := rhumb.RangeID{Region: 1, Slot: 1}
	last := entry.Position{Epoch: 1, Seq: 10, Hash: entry.Hash{10}}
	r := New(Config{Range: id, Self: 1}, Durable{
		Promised: 1, Last: last, LastHLC: 10, Commit: 10, CommitHLC: 10, Trim: 5,
		Tail: []Mark{{Position: last, HLC: 10}}, Lineage: []EpochStart{{1, 5}},
	})
	r.Peer(0, 2, true, false)
	r.Describe(&rhumb.Range{ID: id, Epoch: 2, Version: 2, Primary: 1, InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2}})
	rd := r.Ready()
	r.Persisted(rd.Batch)
	if err := r.Step(Message{Kind: Promise, Range: id, From: 2, To: 1, Epoch: 2, Prev: last, Commit: 10}); err != nil {
		t.Fatal(err)
	}
	r.Ready()
	r.Activate(20)
	rd = r.Ready()
	if len(rd.Messages) != 1 || rd.Messages[0].Prev != last {
		t.Fatalf("the new primary sends %+v, want one append after %v", rd.Messages, last)
	}
	return r, rd
}

// TestProbeIsRepeatedWhereItWas guards that an unanswered first Append of an epoch is repeated
// unchanged. The peer must not be treated as if it needed the log from its beginning, which is
// trimmed.
func TestProbeIsRepeatedWhereItWas(t *testing.T) {
	r, first := elected(t)
	var again []Message
	for now := time.Duration(0); now < 2*time.Second && len(again) == 0; now += 50 * time.Millisecond {
		r.Tick(now)
		again = r.Ready().Messages
	}
	if len(again) != 1 || again[0].Prev != first.Messages[0].Prev {
		t.Fatalf("repeated %+v, want an append after %v", again, first.Messages[0].Prev)
	}
	if flow := r.Status().Peers[0].Flow; flow != "probe" {
		t.Errorf("the peer is %q, want it probed", flow)
	}
}

// TestPrevOfUnknownEpoch guards that the hash decides if the lineage of a primary does not reach
// back to the place before its entries, so that it sends epoch 0. With another hash, the primary
// has lost committed entries, and the answer says so.
func TestPrevOfUnknownEpoch(t *testing.T) {
	id := rhumb.RangeID{Region: 1, Slot: 1}
	last := entry.Position{Epoch: 1, Seq: 10, Hash: entry.Hash{10}}
	for _, tc := range []struct {
		hash entry.Hash
		want MessageKind
	}{{last.Hash, Ack}, {entry.Hash{11}, Nack}} {
		r := New(Config{Range: id, Self: 2}, Durable{Promised: 1, Last: last, LastHLC: 10, Commit: 10, CommitHLC: 10, Tail: []Mark{{Position: last, HLC: 10}}})
		next := &entry.Entry{Epoch: 2, Node: 1, Seq: 11, Prev: tc.hash, Start: 20}
		next.Seal(nil)
		err := r.Step(Message{
			Kind: Append, Range: id, From: 1, To: 2, Epoch: 2,
			Prev: entry.Position{Seq: 10, Hash: tc.hash}, Entries: []*entry.Entry{next},
		})
		rd := flush(r)
		if err != nil || len(rd.Messages) != 1 || rd.Messages[0].Kind != tc.want || rd.Messages[0].Contradicts != (tc.want == Nack) {
			t.Errorf("after an entry that follows hash %v: %v, %v; want %s", tc.hash, rd.Messages, err, tc.want)
		}
	}
}

// TestJoinUnderLoad guards that a learner that is near the end but always behind the newest commit
// can join, since commits wait for it once it is in the pending set (rule R). Before the proposal
// it can be dropped again.
func TestJoinUnderLoad(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		r := leader(t, Config{}, 1, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
		for seq := range rhumb.Seq(3) {
			r.Propose(rhumb.Timestamp(200+seq), Proposal{Token: uint64(seq), Batch: putBatch("k", "v")})
			flush(r)
			step(t, r, ack(2, 1, seq+3))
			if seq == 0 {
				step(t, r, ack(3, 1, 2)) // one round trip behind from now on
			}
			if rd := flush(r); len(rd.Meta) != 0 {
				t.Fatalf("a learner that lacks what is committed is proposed: %+v", rd.Meta)
			}
		}
		if _, commit, _ := r.Readable(); commit != 3 {
			t.Fatalf("commit is %d, want 3: it waits for the joining node", commit)
		}
		if leaves {
			r.Peer(0, 3, true, true)
			if rd := flush(r); len(rd.Meta) != 0 || rd.Commit != 5 {
				t.Errorf("after the joining node is suspected: meta %+v, commit %d, want none, 5", rd.Meta, rd.Commit)
			}
			if !r.isHeldOff(3) {
				t.Error("a node that failed while it joined may join again at once")
			}
			continue
		}
		step(t, r, ack(3, 1, 5))
		if rd := flush(r); len(rd.Meta) != 1 || rd.Commit != 5 {
			t.Errorf("after the joining node has caught up: meta %+v, commit %d, want one proposal, 5", rd.Meta, rd.Commit)
		}
	}
}

// TestAckBelongsToOneEpoch guards that an acknowledgement that still waits for the disk when a
// later epoch begins does not raise the match of the new primary: the log may differ above its
// entries.
func TestAckBelongsToOneEpoch(t *testing.T) {
	es := makeLog(1, 1, 1)
	r := New(Config{Range: testRange, Self: 2}, Durable{})
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Entries: es})
	r.Ready() // the disk is slow: nothing of it is reported as durable
	step(t, r, Message{Kind: Append, Range: testRange, From: 1, To: 2, Epoch: 1, Prev: es[2].Position()})
	r.Ready()
	step(t, r, Message{Kind: Append, Range: testRange, From: 3, To: 2, Epoch: 2, Entries: es[:1]})
	for _, m := range append(r.Ready().AfterSync, flush(r).Messages...) {
		if m.Kind == Ack && m.Epoch == 2 && m.Match > 1 {
			t.Errorf("epoch 2 sent one entry and is told %d", m.Match)
		}
	}
}
