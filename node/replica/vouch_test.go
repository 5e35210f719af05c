package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// TestOneAnswer guards that an elected replica needs MinInSync answers, or one of a life that the
// record names: its own, or another member's. A life that is over proves nothing about the disk.
func TestOneAnswer(t *testing.T) {
	const self, other rhumb.BootSeq = 7, 9
	for _, tt := range []struct {
		name    string
		lives   []rhumb.MemberLife
		answers bool
		want    bool
	}{
		{name: "no life is recorded"},
		{name: "its own life", lives: []rhumb.MemberLife{{Node: 2, Life: self}}, want: true},
		{name: "its own earlier life", lives: []rhumb.MemberLife{{Node: 2, Life: self - 1}}},
		{name: "the life of one who is silent", lives: []rhumb.MemberLife{{Node: 3, Life: other}}},
		{name: "the life of one who answers", lives: []rhumb.MemberLife{{Node: 3, Life: other}}, answers: true, want: true},
		{name: "the earlier life of one who answers", lives: []rhumb.MemberLife{{Node: 3, Life: other - 1}}, answers: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := makeLog(1, 1)
			d := testDisk{promised: 1, commit: 1, entries: log}
			r := New(Config{Range: testRange, Self: 2, Life: self, MinInSync: 3}, d.durable())
			r.Describe(&rhumb.Range{
				ID: testRange, Epoch: 2, Allocated: 2, Version: 2, Primary: 2, InSync: []rhumb.NodeID{1, 2, 3}, Replicas: []rhumb.NodeID{1, 2, 3},
				Lives: tt.lives,
			})
			flush(r)
			if tt.answers {
				step(t, r, Message{Kind: Promise, Range: testRange, From: 3, To: 2, Epoch: 2, Life: other, Prev: at(log, 2)})
			}
			for now := time.Second; now < 3*time.Second; now += 100 * time.Millisecond {
				r.Tick(now)
				flush(r)
			}
			if _, ok := r.AwaitsActivation(); ok != tt.want {
				t.Errorf("may begin: %v, want %v; %s", ok, tt.want, r.Status().Preparing)
			}
		})
	}
}

// TestVouch guards that a primary vouches for a member that has acknowledged, in this life,
// everything that clients may have been told, and has agreed to the closed timestamp. The primary
// has the life recorded after a delay, once.
func TestVouch(t *testing.T) {
	three := []rhumb.NodeID{1, 2, 3}
	r := leader(t, Config{MinInSync: 2, Life: 4, VouchAfter: time.Second}, 1, three, three)
	acked := func(from rhumb.NodeID, life rhumb.BootSeq, seq rhumb.Seq) {
		m := ack(from, 1, seq)
		m.Life = life
		step(t, r, m)
	}
	wait := func() (all []MetaProposal) {
		for range 30 {
			r.now += 100 * time.Millisecond
			r.Tick(r.now)
			all = append(all, flush(r).Meta...)
			if len(all) > 0 {
				return all
			}
		}
		return nil
	}
	vouched := func(n rhumb.NodeID) bool {
		_, ok := r.lifeOf(n)
		return ok
	}
	acked(2, 5, 2)
	acked(3, 6, 1) // the epoch-start entry is committed, the write is not
	flush(r)
	if !vouched(1) || !vouched(2) || !vouched(3) {
		t.Error("a member that holds all that is committed is not vouched for")
	}
	acked(3, 6, 2)
	flush(r)
	r.Close(500, agreeing{2: 500, 3: 500}.to)
	acked(3, 7, 1) // a new life has acknowledged less, and agreed to nothing
	if vouched(3) || !vouched(2) {
		t.Error("a member of a new life is vouched for without its log")
	}
	acked(3, 7, 2)
	if vouched(3) {
		t.Error("a member of a new life is vouched for by what an earlier one agreed to")
	}
	r.Close(500, agreeing{2: 500, 3: 500}.to)
	got := wait()
	if len(got) != 1 || !got[0].Unhurried || len(got[0].New) != 3 {
		t.Fatalf("proposed %+v", got)
	}
	record := r.desc.Clone()
	record.Version++
	for i, n := range got[0].New {
		if !got[0].Vouched[i] {
			t.Errorf("%s is not vouched for", n)
		}
		record.Lives = append(record.Lives, rhumb.MemberLife{Node: n, Life: got[0].Lives[i]})
	}
	r.Describe(record)
	if more := wait(); len(more) != 0 || r.wantsToVouch() {
		t.Errorf("proposed again: %+v", more)
	}
	record = record.Clone()
	record.Version++
	record.Quarantined = []rhumb.NodeID{3}
	record.Lives = record.Lives[:2]
	r.Describe(record)
	if vouched(3) {
		t.Error("a quarantined member is vouched for")
	}
}

// TestJoinIsOfOneLife guards that a proposal to admit a node is not repeated for a later life of the node, which has acknowledged nothing yet: its
// disk may have lost everything, and it would be in sync. The primary settles the change instead.
func TestJoinIsOfOneLife(t *testing.T) {
	r := leader(t, Config{MinInSync: 2}, 0, []rhumb.NodeID{1, 2, 3}, []rhumb.NodeID{1, 2})
	in := func(m Message, life rhumb.BootSeq) Message { m.Life = life; return m }
	step(t, r, in(ack(2, 1, 1), 1))
	step(t, r, in(ack(3, 1, 1), 4))
	if rd := flush(r); len(rd.Meta) != 1 || !slices.Equal(rd.Meta[0].New, []rhumb.NodeID{1, 2, 3}) || rd.Meta[0].Lives[2] != 4 {
		t.Fatalf("the learner does not join: %+v", rd.Meta)
	}
	step(t, r, Message{Kind: Nack, Range: testRange, From: 3, To: 1, Epoch: 1, Life: 5, Reject: 1})
	settled := false
	for i := range 100 {
		r.Tick(time.Duration(i) * 100 * time.Millisecond)
		for _, m := range flush(r).Meta {
			for k, n := range m.New {
				if n == 3 && m.Lives[k] != 4 {
					t.Fatalf("proposed in life %d, which has acknowledged nothing: %+v", m.Lives[k], m)
				}
			}
			settled = settled || slices.Equal(m.New, []rhumb.NodeID{1, 2})
		}
	}
	if !settled {
		t.Error("the change is not settled")
	}
}

// TestEmptyCopyOfSplitAsks guards that a node with an empty copy of a range that was split off asks the others before it begins the first epoch of
// the range: its record may be old, and the others may have begun a later one.
func TestEmptyCopyOfSplitAsks(t *testing.T) {
	for _, log := range [][]*entry.Entry{nil, makeLog(1, 1)} {
		d := testDisk{promised: 1, commit: rhumb.Seq(len(log)), entries: log}
		r := New(Config{Range: testRange, Self: 1, Life: 1, MinInSync: 2}, d.durable())
		r.Describe(&rhumb.Range{
			ID: testRange, Epoch: 2, Allocated: 2, Birth: 2, Version: 3, Primary: 1, Replicas: []rhumb.NodeID{1, 2}, InSync: []rhumb.NodeID{1, 2},
		})
		flush(r)
		if _, ok := r.AwaitsActivation(); ok != (len(log) > 0) {
			t.Errorf("with %d entries: begins without asking: %v", len(log), ok)
		}
	}
}
