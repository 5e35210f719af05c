package replica

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// TestSplitHoldsUntilItIsHandedOut guards that a primary orders no write for slots that it loses, from the entry of the split
// on until the driver has divided the copy. Between the commit and the Ready that hands out the birth, the driver still takes
// the slots for those of the old range: a write in between would be in the log of a range that does not have its key.
func TestSplitHoldsUntilItIsHandedOut(t *testing.T) {
	id := rhumb.RangeID{Region: 1, Slot: 4}
	record := &rhumb.Range{
		ID: id, Last: 19, Class: 1, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, Preferred: 1,
		InSync: []rhumb.NodeID{1}, Replicas: []rhumb.NodeID{1},
	}
	r := New(Config{Range: id, Self: 1, Life: 1, MinInSync: 1}, Durable{})
	settle := func() (born []Birth) {
		for r.HasReady() {
			rd := r.Ready()
			born = append(born, rd.Born...)
			if rd.MustSync {
				r.Persisted(rd.Batch)
			}
		}
		return born
	}
	r.Describe(record)
	settle()
	r.Activate(10)
	settle()
	put := func(slot rhumb.Slot) error {
		b := &rhumb.Batch{Range: id, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: 1, Name: []byte("n"), Value: []byte{1}}}}
		r.Propose(20, Proposal{Token: 1, Batch: b, Slots: []rhumb.Slot{slot}})
		for _, a := range r.out.Answers {
			if a.Err != nil {
				r.out.Answers = nil
				return a.Err
			}
		}
		return nil
	}
	if err := put(12); err != nil {
		t.Fatalf("before the split: %v", err)
	}
	settle()
	child := record.Clone()
	child.ID.Slot, child.Epoch, child.Allocated, child.Birth = 10, 2, 2, 2
	r.Reserve(child)
	rd := r.Ready()
	if at, ok := r.Splitting(); !ok || at != 10 || len(rd.Append) != 1 || rd.Append[0].Split() != 10 {
		t.Fatalf("the range is not being split: %d, %v, %+v", at, ok, rd.Append)
	}
	if err := put(12); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Fatalf("a write to a slot that is being split off: %v", err)
	}
	// The entry is committed, and the driver does not know it yet.
	r.Persisted(rd.Batch)
	if err := put(12); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Fatalf("a write between the commit and the division: %v", err)
	}
	if err := put(5); err != nil {
		t.Fatalf("a write to a slot that stays: %v", err)
	}
	if born := settle(); len(born) != 1 || born[0].At != 10 {
		t.Fatalf("born are %+v", born)
	}
	if _, ok := r.Splitting(); ok {
		t.Fatal("the split does not end")
	}
}

// splitter is a primary without other members, for the tests of splits that wait.
type splitter struct {
	t *testing.T
	r *Replica
	// record is the range, child the record that is reserved in it.
	record, child *rhumb.Range
	now           time.Duration
	// appended are the first slots of the new ranges, one for each entry that divides the range; meta are the proposals.
	appended []rhumb.Slot
	born     []Birth
	meta     []MetaProposal
}

// newSplitter returns the only replica of a range of sixteen slots, as primary, and a record that is reserved in it.
func newSplitter(t *testing.T) *splitter {
	id := rhumb.RangeID{Region: 1, Slot: 4}
	x := &splitter{t: t, r: New(Config{Range: id, Self: 1, Life: 1, MinInSync: 1, VouchAfter: time.Hour}, Durable{})}
	x.record = &rhumb.Range{
		ID: id, Last: 19, Class: 1, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, Preferred: 1,
		InSync: []rhumb.NodeID{1}, Replicas: []rhumb.NodeID{1},
	}
	x.child = x.record.Clone()
	x.child.ID.Slot, x.child.Epoch, x.child.Allocated, x.child.Birth, x.child.Version = 10, 2, 2, 2, 5
	x.r.Describe(x.record)
	x.settle()
	x.r.Activate(10)
	x.settle()
	return x
}

// settle carries out everything that the replica asks for.
func (x *splitter) settle() {
	for x.r.HasReady() {
		rd := x.r.Ready()
		for _, e := range rd.Append {
			if at := e.Split(); at != 0 {
				x.appended = append(x.appended, at)
			}
		}
		x.born, x.meta = append(x.born, rd.Born...), append(x.meta, rd.Meta...)
		if rd.MustSync {
			x.r.Persisted(rd.Batch)
		}
		// Other nodes acknowledge everything at once.
		for _, m := range append(rd.Messages, rd.AfterSync...) {
			if n := len(m.Entries); m.Kind == Append && n > 0 {
				_ = x.r.Step(Message{Kind: Ack, Range: m.Range, From: m.To, To: m.From, Life: 1, Epoch: m.Epoch, Match: m.Entries[n-1].Seq})
			}
		}
	}
}

// pass lets time pass in ticks.
func (x *splitter) pass(d time.Duration) {
	for end := x.now + d; x.now < end; {
		x.now += 100 * time.Millisecond
		x.r.Tick(x.now)
		x.settle()
	}
}

// TestSplitIsGivenUp guards that a primary has a record removed for which it cannot divide its range, that it does not divide the
// range afterwards for the same version of that record, whatever changes meanwhile, and that a newer record is a new start.
func TestSplitIsGivenUp(t *testing.T) {
	x := newSplitter(t)
	// A handover is prepared, of which the catalog does not know while it reserves: the record comes late.
	held := x.record.Clone()
	held.Version, held.Allocated, held.Prepared = 2, 2, &rhumb.Handover{Epoch: 2, Target: 2}
	x.r.Describe(held)
	x.child.Epoch, x.child.Allocated, x.child.Birth = 3, 3, 3
	x.r.Reserve(x.child)
	x.settle()
	x.pass(9 * time.Second)
	if len(x.meta)+len(x.appended) > 0 {
		t.Fatalf("after 9 s: %+v, divided at %v", x.meta, x.appended)
	}
	x.pass(3 * time.Second)
	want := MetaProposal{Kind: CancelSplit, Range: x.child.ID, Epoch: 1, Version: 5}
	// The proposal may be lost, so it is repeated.
	if len(x.meta) < 2 || x.meta[0].Kind != want.Kind || x.meta[0].Range != want.Range || x.meta[0].Epoch != want.Epoch || x.meta[0].Version != want.Version {
		t.Fatalf("after 12 s: %+v, want %+v repeatedly", x.meta, want)
	}
	// Nothing stands against the split any more. But the command may be applied at any moment from now on, so this version stays unsplit.
	next := x.record.Clone()
	next.Version, next.Allocated = 3, 2
	x.r.Describe(next)
	x.r.Reserve(x.child)
	x.settle()
	if x.r.maySplit() || len(x.appended) > 0 {
		t.Fatal("the range is divided although metadata may have removed the record of the new range")
	}
	// A newer record makes the command void.
	newer := x.child.Clone()
	newer.Version = 6
	x.r.Reserve(newer)
	x.settle()
	x.pass(time.Second)
	if len(x.appended) != 1 || x.appended[0] != 10 {
		t.Fatalf("divided at %v, want at 10", x.appended)
	}
}

// TestSplitsOnce guards that a record which changes between the commit of the entry and the division of the copy does not
// make the primary append a second entry: the copy would be divided where it has been divided already.
func TestSplitsOnce(t *testing.T) {
	x := newSplitter(t)
	x.r.Reserve(x.child)
	rd := x.r.Ready()
	if len(rd.Append) != 1 || rd.Append[0].Split() != 10 {
		t.Fatalf("appended %+v", rd.Append)
	}
	x.r.Persisted(rd.Batch)
	newer := x.child.Clone()
	newer.Version++
	x.r.Reserve(newer)
	x.settle()
	x.pass(time.Second)
	if len(x.born) != 1 || len(x.appended) != 0 {
		t.Errorf("born are %+v, and further entries divide the range at %v", x.born, x.appended)
	}
}

// TestSplitNeedsTheSameMembers guards that a range is not divided while it counts on a node that the new range does not count on.
// With such a node it could commit the entry without a member of the new range, which then could not begin.
func TestSplitNeedsTheSameMembers(t *testing.T) {
	id := rhumb.RangeID{Region: 1, Slot: 4}
	record := &rhumb.Range{
		ID: id, Last: 19, Class: 1, Epoch: 1, Allocated: 1, Version: 1, Primary: 1, Preferred: 1,
		InSync: []rhumb.NodeID{1, 2}, Replicas: []rhumb.NodeID{1, 2},
	}
	x := &splitter{t: t, r: New(Config{Range: id, Self: 1, Life: 1, MinInSync: 1, VouchAfter: time.Hour}, Durable{}), record: record}
	x.r.Describe(record)
	x.r.Peer(0, 2, true, false)
	x.settle()
	x.r.Activate(10)
	x.settle()
	if x.r.commit == 0 {
		t.Fatal("the epoch has not begun")
	}
	child := record.Clone()
	child.ID.Slot, child.Epoch, child.Allocated, child.Birth, child.Version, child.InSync = 10, 2, 2, 2, 5, []rhumb.NodeID{1}
	x.r.Reserve(child)
	x.settle()
	x.pass(time.Second)
	if len(x.appended) > 0 {
		t.Fatal("the range is divided although node 2 counts for one part only")
	}
	child = child.Clone()
	child.Version, child.InSync = 6, []rhumb.NodeID{1, 2}
	x.r.Reserve(child)
	x.settle()
	x.pass(time.Second)
	if len(x.appended) != 1 || len(x.born) != 1 {
		t.Fatalf("divided at %v, born are %v", x.appended, x.born)
	}
}

// TestNothingFromBeforeASplitIsSent guards that a learner that lacks entries from before a split copies the range, although the primary
// has just read them from its disk for it. Its copy may have begun with the bounds after the split: it could not hold those entries,
// and the entry that divides the range would stop the node.
func TestNothingFromBeforeASplitIsSent(t *testing.T) {
	for _, splits := range []string{"", "committed", "appended"} {
		x := newSplitter(t)
		x.r.Propose(20, Proposal{Token: 1, Batch: putBatch("k", "v"), Slots: []rhumb.Slot{12}})
		log := flush(x.r).Append
		x.record.Version, x.record.Replicas = 2, []rhumb.NodeID{1, 2}
		x.r.Describe(x.record)
		x.r.Peer(0, 2, true, false)
		probe := flush(x.r).Messages[0]
		// The log of the learner is empty. The primary reads its own from the beginning.
		step(t, x.r, Message{Kind: Nack, Range: probe.Range, From: 2, To: 1, Life: 1, Epoch: 1, Promised: 1, Reject: probe.Prev.Seq})
		reads := flush(x.r).Fetch
		if len(reads) != 1 || reads[0].From != 1 {
			t.Fatalf("the primary reads %+v", reads)
		}
		switch splits {
		case "committed":
			x.r.Reserve(x.child)
			if flush(x.r); !x.r.divided {
				t.Fatal("the range is not divided")
			}
		// Not durable yet, so not committed either. A primary that is elected with such an entry commits it later.
		case "appended":
			x.r.Reserve(x.child)
			if x.r.Ready(); x.r.divided || !x.r.HasSplit(x.child.ID.Slot) {
				t.Fatal("the range is divided, or has no entry that divides it")
			}
		}
		x.r.Fetched(reads[0], log)
		want := Append
		if splits != "" {
			want = LogTrimmed
		}
		if got := flush(x.r).Messages; len(got) == 0 || got[0].Kind != want {
			t.Errorf("split %q: sent %+v, want %s", splits, got, want)
		}
	}
}
