package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// agreeing holds the timestamp that each node has agreed to.
type agreeing map[rhumb.NodeID]rhumb.Timestamp

func (a agreeing) to(n rhumb.NodeID, _ rhumb.BootSeq) rhumb.Timestamp { return a[n] }

// TestClose checks the rules of closed timestamps: the members that must agree to a timestamp, and
// the entries that stay open. The leader's log is the epoch-start entry at 100 and two entries, at 101 and 102.
func TestClose(t *testing.T) {
	three := []rhumb.NodeID{1, 2, 3}
	for _, tc := range []struct {
		name   string
		inSync []rhumb.NodeID
		acks   map[rhumb.NodeID]rhumb.Seq
		open   bool // a proposal that no Ready has sealed
		own    rhumb.Timestamp
		agreed agreeing
		at     rhumb.Timestamp // 0 when nothing is closed
		seq    rhumb.Seq
	}{
		{name: "all agreed", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 3}, own: 500, agreed: agreeing{2: 400, 3: 300}, at: 300, seq: 3},
		{name: "one has not", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 3}, own: 500, agreed: agreeing{2: 400}},
		{name: "its own clock bounds", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 3}, own: 200, agreed: agreeing{2: 400, 3: 300}, at: 200, seq: 3},
		{name: "the start is not committed", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3}, own: 500, agreed: agreeing{2: 400, 3: 300}},
		{name: "an entry is not committed", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 2}, own: 500, agreed: agreeing{2: 400, 3: 300}, at: 101, seq: 2},
		{name: "nor the one before", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 1, 3: 2}, own: 500, agreed: agreeing{2: 400, 3: 300}, at: 100, seq: 1},
		{name: "an entry is not sealed", inSync: three, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 3}, open: true, own: 500, agreed: agreeing{2: 400, 3: 300}, at: 102, seq: 3},
		{name: "a learner need not agree", inSync: []rhumb.NodeID{1, 2}, acks: map[rhumb.NodeID]rhumb.Seq{2: 3}, own: 500, agreed: agreeing{2: 400}, at: 400, seq: 3},
		{name: "one who joins must", inSync: []rhumb.NodeID{1, 2}, acks: map[rhumb.NodeID]rhumb.Seq{2: 3, 3: 3}, own: 500, agreed: agreeing{2: 400}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := leader(t, Config{MinInSync: 2}, 2, three, tc.inSync)
			for _, n := range three[1:] {
				if seq := tc.acks[n]; seq > 0 {
					step(t, r, ack(n, 1, seq))
				}
			}
			flush(r)
			if tc.open {
				r.Propose(100, Proposal{Token: 9, Batch: putBatch("k", "v")})
			}
			at, seq, ok := r.Close(tc.own, tc.agreed.to)
			if at != tc.at || ok != (tc.at > 0) || ok && seq != tc.seq {
				t.Errorf("closed up to %d by %d, %v; want %d by %d", at, seq, ok, tc.at, tc.seq)
			}
		})
	}
}

// TestCloseIsKept guards that a primary writes above the timestamp that it closed, even with a
// timestamp that its driver took earlier, and that a closed timestamp never falls.
func TestCloseIsKept(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 1))
	flush(r)
	if at, _, ok := r.Close(500, agreeing{2: 500}.to); at != 500 || !ok {
		t.Fatalf("closed up to %d, %v", at, ok)
	}
	r.Propose(200, Proposal{Token: 1, Batch: putBatch("k", "v")})
	if rd := flush(r); len(rd.Append) != 1 || rd.Append[0].LastHLC() <= 500 {
		t.Errorf("after closing 500 it appends %v", rd.Append)
	}
	if at, seq, ok := r.Close(600, agreeing{2: 300}.to); at != 500 || seq != 1 || !ok {
		t.Errorf("then closed up to %d by %d, %v", at, seq, ok)
	}
	step(t, r, Message{Kind: Nack, Range: testRange, From: 2, To: 1, Epoch: 1, Promised: 2})
	if at, _, ok := r.Close(600, agreeing{2: 600}.to); ok {
		t.Errorf("deposed, it closes up to %d", at)
	}
}

// TestJoinAgrees guards that a learner joins only after it has agreed to the closed timestamp.
func TestJoinAgrees(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 1))
	flush(r)
	if at, _, _ := r.Close(500, agreeing{2: 500}.to); at != 500 {
		t.Fatalf("closed up to %d", at)
	}
	step(t, r, ack(3, 1, 1))
	if rd := flush(r); len(rd.Meta) != 0 {
		t.Fatalf("a learner that has agreed to nothing joins: %+v", rd.Meta)
	}
	// With its first agreement the learner enters the pending set, and from then on nothing is closed without it.
	for _, own := range []rhumb.Timestamp{500, 600} {
		r.Close(own, agreeing{2: own, 3: 499}.to)
		if rd := flush(r); len(rd.Meta) != 0 {
			t.Fatalf("a learner that has not agreed to all joins: %+v", rd.Meta)
		}
	}
	r.Close(600, agreeing{2: 600, 3: 500}.to)
	if rd := flush(r); len(rd.Meta) != 1 || len(rd.Meta[0].New) != 3 {
		t.Fatalf("a learner that has agreed does not join: %+v", rd.Meta)
	}
}

// TestJoinKeepsLease guards that a learner counts for leases only after it has agreed to something in
// its life. It grants a lease with the same answer to a heartbeat; before that, every read of the
// range would have to ask the metadata group.
func TestJoinKeepsLease(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 1))
	flush(r)
	r.Close(500, agreeing{2: 500}.to)
	step(t, r, ack(3, 1, 1))
	flush(r)
	if set := r.LeaseSet(); slices.Contains(set, 3) {
		t.Fatalf("reads need a lease of %v, and n3 has answered no heartbeat", set)
	}
	// An agreement to less than was closed shows the answer. The learner joins once it has agreed to all.
	r.Close(600, agreeing{2: 600, 3: 499}.to)
	flush(r)
	if set := r.LeaseSet(); !slices.Contains(set, 3) {
		t.Fatalf("reads need a lease of %v, and n3 is about to join", set)
	}
}

// TestDrainingNodeStaysOut guards that a node which drains does not join the in-sync set that it has
// just left: its process stops soon, and writes would wait until metadata has removed it. It joins if
// the range cannot be written without it, or if it no longer drains.
func TestDrainingNodeStaysOut(t *testing.T) {
	begin := func() *Replica {
		r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
		step(t, r, ack(2, 1, 1))
		r.SetDraining(3, true)
		step(t, r, ack(3, 1, 1))
		if rd := flush(r); len(rd.Meta) != 0 || slices.Contains(r.LeaseSet(), 3) {
			t.Fatalf("a node that drains joins: %+v, lease set %v", rd.Meta, r.LeaseSet())
		}
		return r
	}
	for _, tc := range []struct {
		name string
		then func(r *Replica)
	}{
		{"the drain is over", func(r *Replica) { r.SetDraining(3, false) }},
		{"another member is dead", func(r *Replica) { r.Peer(r.now, 2, false, true) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := begin()
			tc.then(r)
			if rd := flush(r); len(rd.Meta) != 1 || !slices.Contains(rd.Meta[0].New, 3) {
				t.Fatalf("it does not join: %+v", rd.Meta)
			}
		})
	}
	// A join that metadata does not know of yet ends with the drain.
	r := leader(t, Config{MinInSync: 2}, 2, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	step(t, r, ack(2, 1, 3))
	step(t, r, ack(3, 1, 1))
	flush(r)
	if !slices.Contains(r.LeaseSet(), 3) {
		t.Fatal("a learner that lacks two entries does not begin to join")
	}
	r.SetDraining(3, true)
	flush(r)
	if slices.Contains(r.LeaseSet(), 3) {
		t.Fatal("a node that drains goes on joining")
	}
}

// TestLateAckHidesNewLife guards that a learner in a new life joins an idle range although a late
// acknowledgement of its earlier life has ended the probe: its agreement counts for the new life only,
// and no entry is sent that would show this life (seed 1147 of sim).
func TestLateAckHidesNewLife(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	// Two ticks, because the timer starts with the first.
	pass := func() Ready {
		now := r.now
		r.Tick(now + 50*time.Millisecond)
		r.Tick(now + 50*time.Millisecond + r.cfg.Retransmit)
		return flush(r)
	}
	closeAll := func() {
		r.Close(500, func(n rhumb.NodeID, life rhumb.BootSeq) rhumb.Timestamp {
			if n == 3 && life != 2 {
				return 0
			}
			return 500
		})
	}
	inLife := func(life rhumb.BootSeq) Message {
		m := ack(3, 1, 1)
		m.Life, m.Commit = life, 1
		return m
	}
	step(t, r, ack(2, 1, 1))
	closeAll() // n3 has acknowledged nothing yet, and does not count
	step(t, r, inLife(1))
	flush(r)
	closeAll()
	if rd := flush(r); len(rd.Meta) != 0 {
		t.Fatalf("a learner whose earlier life agreed joins: %+v", rd.Meta)
	}
	if !r.NeedsTick() {
		t.Fatal("a primary that has to ask a learner needs no ticks")
	}
	asked := false
	for _, m := range pass().Messages {
		asked = asked || m.To == 3 && m.Kind == Append && len(m.Entries) == 0
	}
	if !asked {
		t.Fatal("nothing is sent to a learner that agrees to nothing")
	}
	// The first acknowledgement of a new life only shows the life; the probe that follows counts.
	step(t, r, inLife(2))
	flush(r)
	step(t, r, inLife(2))
	flush(r)
	closeAll()
	if rd := flush(r); len(rd.Meta) != 1 || len(rd.Meta[0].New) != 3 {
		t.Fatalf("a learner that has agreed does not join: %+v", rd.Meta)
	}
}

// TestAgreementEnds guards that an idle range asks a member in a new life for its log, although a late acknowledgement of the earlier
// life has ended the probe: only Close sees that the member's agreement has ended, and without ticks nothing is sent, so
// the member never learns what is committed (seed 9545 of sim).
func TestAgreementEnds(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2}, []rhumb.NodeID{1, 2})
	life := rhumb.BootSeq(1) // of the member, as heartbeats show it
	closeAll := func() {
		r.Close(500, func(_ rhumb.NodeID, acked rhumb.BootSeq) rhumb.Timestamp {
			if acked != life {
				return 0
			}
			return 500
		})
	}
	// The record names the present lives, so the primary has none to vouch for, which takes ticks too.
	record := r.desc.Clone()
	record.Version, record.Lives = 2, []rhumb.MemberLife{{Node: 1, Life: r.cfg.Life}, {Node: 2, Life: life}}
	r.Describe(record)
	late := ack(2, 1, 1)
	late.Life = life
	step(t, r, late)
	late.Commit = 1
	step(t, r, late)
	flush(r)
	closeAll()
	r.Peer(r.now, 2, false, false)
	r.Peer(r.now, 2, true, false)
	flush(r)
	step(t, r, late)
	closeAll()
	flush(r)
	if r.HasReady() || r.NeedsTick() {
		t.Fatal("a range whose members have everything is not idle")
	}
	life = 2
	closeAll()
	if !r.HasReady() || !r.NeedsTick() {
		t.Fatal("nothing wakes the range when the agreement of a member ends")
	}
}
