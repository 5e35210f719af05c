package replica

import (
	"testing"

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
