package catalog

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
)

// TestFloor compares the lookup with a walk over all keys.
func TestFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tree[uint64]
		keys := rapid.SliceOfN(rapid.Uint64Range(0, 500), 0, 200).Draw(t, "keys")
		for _, k := range keys {
			tr.set(new(owner), k, k)
		}
		for key := range uint64(510) {
			var want uint64
			found := false
			for _, k := range keys {
				if k <= key && (!found || k > want) {
					want, found = k, true
				}
			}
			if got, ok := tr.floor(key); ok != found || got != want {
				t.Fatalf("the floor of %d is %d, %v, want %d, %v", key, got, ok, want, found)
			}
		}
	})
}

// TestRangeOf guards that every slot of a hash block has one range, that a reserved range serves nothing, and
// that homes outside of all ranges have none.
func TestRangeOf(t *testing.T) {
	s := founded()
	c := rhumb.DefaultClassSettings()
	c.Replicas, c.MinInSync, c.HashSlots = 1, 1, 6
	s, res, _ := s.Apply(CreateClass{c, rotate(s, c)})
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	b, _ := s.HashBlock(1, res.Class)
	var before *rhumb.Range
	for slot := b.First; b.Contains(slot); slot++ {
		home := rhumb.RangeID{Region: 1, Slot: slot}
		r, ok := s.RangeOf(home)
		if !ok || !r.Holds(home) {
			t.Fatalf("slot %s is in %+v", slot, r)
		}
		// Ranges lie side by side: the next one begins behind the last slot of the one before.
		if before != nil && r != before && r.ID.Slot != before.LastSlot()+1 {
			t.Fatalf("range %s follows range %s, which ends at %s", r.ID, before.ID, before.LastSlot())
		}
		before = r
	}
	if s.RangeCount() != c.HashSlots || before.LastSlot()-b.First != rhumb.BucketsDefault-1 {
		t.Fatalf("%d ranges up to slot %s", s.RangeCount(), before.LastSlot())
	}
	for _, home := range []rhumb.RangeID{{Region: 1, Slot: before.LastSlot() + 1}, {Region: 2, Slot: b.First}, {Region: 0, Slot: b.First}} {
		if r, ok := s.RangeOf(home); ok {
			t.Errorf("home %s is in range %s", home, r.ID)
		}
	}
	// The slots of a reserved range are those of the range before it.
	parent, _ := s.RangeOf(rhumb.RangeID{Region: 1, Slot: b.First})
	child := parent.Clone()
	child.ID.Slot, child.Birth = parent.ID.Slot+10, parent.Epoch+1
	tx := &tx{State: *s, owner: new(owner)}
	tx.putRange(child)
	if r, ok := tx.RangeOf(rhumb.RangeID{Region: 1, Slot: child.ID.Slot + 5}); !ok || r.ID != parent.ID {
		t.Fatalf("a slot of the reserved range is in %+v", r)
	}
	// Both survive the stored form.
	if err := tx.State.Check(); err != nil {
		t.Fatal(err)
	}
	decoded, err := Decode(tx.State.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := decoded.Range(child.ID); !ok || r.Birth != child.Birth || r.Last != parent.Last {
		t.Fatalf("decoded %+v", r)
	}
	// Without the mark, two ranges would have the same slots.
	child = child.Clone()
	child.Birth = 0
	tx.putRange(child)
	if tx.State.Check() == nil {
		t.Fatal("two ranges overlap, and Check accepts it")
	}
}
