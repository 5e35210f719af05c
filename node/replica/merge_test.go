package replica

import (
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// merger is the only replica of a range, as primary, for the tests of merges.
type merger struct {
	t      *testing.T
	r      *Replica
	record *rhumb.Range
	now    time.Duration
	taken  []Taken
	log    []*entry.Entry
	meta   []MetaProposal
}

// newMerger returns the primary of a range of sixteen slots.
func newMerger(t *testing.T, change func(d *rhumb.Range)) *merger {
	id := rhumb.RangeID{Region: 1, Slot: 4}
	x := &merger{t: t, r: New(Config{Range: id, Self: 1, Life: 1, MinInSync: 1, VouchAfter: time.Hour}, Durable{LastSlot: 19})}
	x.record = &rhumb.Range{
		ID: id, Last: 19, Class: 1, Epoch: 1, Allocated: 1, Version: 5, Primary: 1, Preferred: 1,
		InSync: []rhumb.NodeID{1}, Replicas: []rhumb.NodeID{1},
	}
	change(x.record)
	x.r.Describe(x.record)
	x.settle()
	x.r.Activate(10)
	x.settle()
	return x
}

// settle carries out everything that the replica asks for.
func (x *merger) settle() {
	for x.r.HasReady() {
		rd := x.r.Ready()
		x.taken, x.log, x.meta = append(x.taken, rd.Taken...), append(x.log, rd.Append...), append(x.meta, rd.Meta...)
		if rd.MustSync {
			x.r.Persisted(rd.Batch)
		}
	}
}

// pass lets time pass in ticks.
func (x *merger) pass(d time.Duration) {
	for end := x.now + d; x.now < end; {
		x.now += 100 * time.Millisecond
		x.r.Tick(x.now)
		x.settle()
	}
}

// put writes one key.
func (x *merger) put() error {
	b := &rhumb.Batch{Range: x.record.ID, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: 1, Name: []byte("n"), Value: []byte{1}}}}
	x.r.Propose(20, Proposal{Token: 1, Batch: b})
	for _, a := range x.r.out.Answers {
		if a.Err != nil {
			x.r.out.Answers = nil
			return a.Err
		}
	}
	return nil
}

// last returns the last entry of the log.
func (x *merger) last() *entry.Entry { return x.log[len(x.log)-1] }

// TestEndedRangeIsSilent guards what follows the end of a range: its primary orders nothing, answers no reads and closes nothing, from the
// entry on and not only from its commit; a later primary that has the entry neither. An end that is undone is no end.
func TestEndedRangeIsSilent(t *testing.T) {
	x := newMerger(t, func(d *rhumb.Range) { d.Ends = 5 })
	if err := x.put(); err != nil {
		t.Fatalf("before the end: %v", err)
	}
	x.settle()
	if _, _, ok := x.r.Readable(); !ok || !x.r.MayEnd() {
		t.Fatal("the range does not serve before its end")
	}
	x.r.EndRange()
	rd := x.r.Ready()
	if len(rd.Append) != 1 || !rd.Append[0].Ends() || !x.r.HasEnded() {
		t.Fatalf("appended %+v", rd.Append)
	}
	if _, _, ok := x.r.Readable(); ok {
		t.Error("reads continue after the end")
	}
	if err := x.put(); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("a write after the end: %v", err)
	}
	if _, _, ok := x.r.Ended(); ok {
		t.Error("the end counts before it is committed")
	}
	x.r.Persisted(rd.Batch)
	x.settle()
	if _, _, ok := x.r.Close(1000, nil); ok {
		t.Error("a range that has ended is closed further")
	}
	take, above, ok := x.r.Ended()
	if want := (entry.Take{Slot: 4, Last: 19, Epoch: 1, Seq: rd.Append[0].Seq}); !ok || take != want || above < rd.Append[0].LastHLC() {
		t.Errorf("ended: %+v above %d, %v, want %+v", take, above, ok, want)
	}
	// Another start finds the end on disk.
	d := Durable{
		Promised: 1, Last: rd.Append[0].Position(), LastHLC: rd.Append[0].LastHLC(), Commit: rd.Append[0].Seq, CommitHLC: rd.Append[0].LastHLC(), End: End{1, rd.Append[0].Seq}, LastSlot: 19,
		Lineage: []EpochStart{{1, 1}}, Tail: []Mark{{Position: rd.Append[0].Position(), HLC: rd.Append[0].LastHLC(), End: true}},
	}
	y := New(Config{Range: x.record.ID, Self: 1, Life: 2, MinInSync: 1}, d)
	if !y.HasEnded() {
		t.Error("a restart forgets the end")
	}
	z := New(Config{Range: x.record.ID, Self: 1, Life: 2, MinInSync: 1}, Durable{})
	z.noteMerge(rd.Append[0])
	if z.undoMerges(rd.Append[0].Seq - 1); z.HasEnded() {
		t.Error("an end that was undone counts")
	}
}

// TestTakeOver guards that the entry which takes over a range is above everything of that range, is handed out once with its commit, and
// is proposed as complete only when the copies are united.
func TestTakeOver(t *testing.T) {
	x := newMerger(t, func(d *rhumb.Range) { d.TakesOver = 5 })
	take := entry.Take{Slot: 20, Last: 29, Epoch: 7, Seq: 3}
	x.r.TakeOver(take, 5000)
	x.settle()
	e := x.last()
	if e.Take() != take || e.LastHLC() <= 5000 {
		t.Fatalf("appended %+v with timestamp %d", e.Requests, e.LastHLC())
	}
	if len(x.taken) != 1 || x.taken[0] != (Taken{e.Seq, take}) || x.r.Status().Trim != e.Seq-1 {
		t.Fatalf("handed out %+v, trimmed to %d", x.taken, x.r.Status().Trim)
	}
	x.pass(3 * time.Second)
	if len(x.meta) > 0 {
		t.Fatalf("proposed %+v before the copies are united", x.meta)
	}
	// The driver has united the copies. No second entry follows, and requests for the new slots are taken before metadata shows them.
	x.r.SetLastSlot(29)
	if x.r.MayTake() {
		t.Error("the range would take over a second time")
	}
	x.pass(3 * time.Second)
	if n := len(x.meta); n < 2 || x.meta[0].Kind != CompleteMerge || x.meta[0].Version != 5 || x.meta[0].Epoch != 1 {
		t.Fatalf("proposed %+v", x.meta)
	}
	b := &rhumb.Batch{Range: rhumb.RangeID{Region: 1, Slot: 25}, Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: 1, Name: []byte("n"), Value: []byte{1}}}}
	x.r.Propose(20, Proposal{Token: 1, Batch: b, Slots: []rhumb.Slot{25}})
	if rd := x.r.Ready(); len(rd.Append) != 1 {
		t.Fatalf("a write to a slot that was taken over: %+v", rd.Answers)
	}
}

// TestMergeIsGivenUp guards that a primary cancels a merge that cannot begin, and does not end its range afterwards for the same version of
// the record.
func TestMergeIsGivenUp(t *testing.T) {
	x := newMerger(t, func(d *rhumb.Range) { d.Ends = 5 })
	x.pass(9 * time.Second)
	if len(x.meta) > 0 {
		t.Fatalf("given up early: %+v", x.meta)
	}
	x.pass(3 * time.Second)
	if len(x.meta) == 0 || x.meta[0].Kind != CancelMerge || x.meta[0].Version != 5 || x.meta[0].Epoch != 1 {
		t.Fatalf("proposed %+v", x.meta)
	}
	x.r.EndRange()
	x.settle()
	if x.r.HasEnded() {
		t.Fatal("the range ends after the merge was given up")
	}
	// A newer record makes the proposal void.
	next := x.record.Clone()
	next.Version = 6
	x.r.Describe(next)
	x.r.EndRange()
	x.settle()
	if !x.r.HasEnded() {
		t.Fatal("a newer record does not begin again")
	}
}

// TestMergeAgainHasItsTime guards that a merge which is marked again in the epoch that gave up an earlier one has all of its time, whether or not a
// tick came while the range was not marked.
func TestMergeAgainHasItsTime(t *testing.T) {
	for name, between := range map[string]time.Duration{"ticks between": time.Second, "no tick between": 0} {
		t.Run(name, func(t *testing.T) {
			x := newMerger(t, func(d *rhumb.Range) { d.Ends = 5 })
			x.pass(12 * time.Second)
			if len(x.meta) == 0 || x.meta[0].Kind != CancelMerge {
				t.Fatalf("proposed %+v", x.meta)
			}
			describe := func(version, ends uint64) {
				next := x.record.Clone()
				next.Version, next.Ends = version, ends
				x.r.Describe(next)
				x.settle()
			}
			describe(6, 0)
			x.pass(between)
			describe(7, 7)
			x.meta = nil
			x.pass(9 * time.Second)
			if len(x.meta) > 0 {
				t.Fatalf("given up early: %+v", x.meta)
			}
			x.pass(3 * time.Second)
			if len(x.meta) == 0 || x.meta[0].Kind != CancelMerge || x.meta[0].Version != 7 {
				t.Fatalf("proposed %+v", x.meta)
			}
		})
	}
}
