package storage

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// TestWideRange writes two ranges of several slots side by side, undoes, trims, collects, opens the store again,
// and drops one of them: nothing of it stays, and nothing of the other one goes.
func TestWideRange(t *testing.T) {
	const slots = 100
	dir := t.TempDir()
	open := func() *Store {
		s, err := Open(Config{Dir: dir, CacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	do := func(fill func(b *Batch)) {
		t.Helper()
		b := s.NewBatch()
		fill(b)
		if err := b.Apply(); err != nil {
			t.Fatal(err)
		}
		if err := b.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	left, right := rhumb.RangeID{Region: 1, Slot: 7}, rhumb.RangeID{Region: 1, Slot: 7 + slots}
	feeds := []*feed{{id: left}, {id: right}}
	for _, f := range feeds {
		do(func(b *Batch) { b.CreateRange(RangeState{Range: f.id, LastSlot: f.id.Slot + slots - 1}) })
	}
	// spread puts the keys of an entry into the slots of their names.
	spread := func(f *feed) *entry.Entry {
		before, hlc := f.pos, f.hlc
		e := f.next(20, 50)
		f.pos, f.hlc = before, hlc
		for i := range e.Requests {
			w := &e.Requests[i].Writes[0]
			w.Name = fmt.Appendf(nil, "key%03d", uint64(e.Requests[i].HLC)%150)
			w.Slot = f.id.Slot + keys.HashSlot(w.Name, 0, slots)
		}
		e.Seal(nil)
		f.pos, f.hlc = e.Position(), e.LastHLC()
		return e
	}
	for _, f := range feeds {
		for range 20 {
			do(func(b *Batch) { b.Append(f.id, spread(f), Commit{f.pos.Seq - 1, 0}) })
		}
		kept, hlc := f.pos, f.hlc
		do(func(b *Batch) { b.Append(f.id, spread(f), Commit{}) })
		// The undone entry leaves nothing, in whatever slots its keys are.
		do(func(b *Batch) {
			if err := b.Undo(f.id, kept.Seq); err != nil {
				t.Fatal(err)
			}
		})
		f.pos, f.hlc = kept, hlc
		do(func(b *Batch) {
			b.SetCommit(f.id, Commit{f.pos.Seq, f.hlc})
			b.Trim(f.id, f.pos.Seq-2)
		})
		for more := true; more; {
			done, err := s.Collect(f.id, CollectLimits{Before: f.hlc})
			if err != nil {
				t.Fatal(err)
			}
			more = done.More
		}
		if es, err := s.Entries(f.id, f.pos.Seq-1, f.pos.Seq, 0); err != nil || len(es) != 2 {
			t.Fatalf("%d entries, %v", len(es), err)
		}
	}
	names := func(id rhumb.RangeID) (out []string) {
		t.Helper()
		for item, err := range s.Scan(id, 1, nil, nil, Newest, 0) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, string(item.Key.Name))
		}
		return out
	}
	check := func(ids ...rhumb.RangeID) {
		t.Helper()
		for _, id := range ids {
			if st, ok := s.State(id); !ok || st.LastSlot != id.Slot+slots-1 {
				t.Fatalf("range %s is %+v", id, st)
			}
			if got := names(id); len(got) != 150 || !slices.IsSorted(got) {
				t.Fatalf("range %s has %d names: %v", id, len(got), got)
			}
			name := []byte("key007")
			key := rhumb.Key{Table: 1, Home: rhumb.RangeID{Region: 1, Slot: id.Slot + keys.HashSlot(name, 0, slots)}, Name: name}
			if f, err := s.Lookup(key, Newest); err != nil || f.Version.IsZero() {
				t.Fatalf("%+v, %v", f, err)
			}
			// The floor is that of the range, also for a key beyond its first slot.
			if _, err := s.Lookup(key, 1); rhumb.KindOf(err) != rhumb.Unavailable {
				t.Fatalf("a read below the floor: %v", err)
			}
		}
	}
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if report, err := Verify(dir, nil); err != nil || len(report.Faults) > 0 {
			t.Fatalf("%+v, %v", report.Faults, err)
		}
		s = open()
	}
	check(left, right)
	reopen()
	check(left, right)
	var tables []TableSpan
	for at, ok := (TableSpan{}), true; ok; {
		var err error
		if at, ok, err = s.NextTable(left, at); err != nil {
			t.Fatal(err)
		} else if ok {
			tables = append(tables, at)
		}
	}
	if len(tables) < slots/2 || tables[len(tables)-1].Home.Slot >= right.Slot {
		t.Fatalf("the range has records in %d slots, up to %v", len(tables), tables[len(tables)-1])
	}
	if next, done, err := s.CollectHistory(left, 1, Newest, nil); err != nil || next != nil || done.Versions != 0 {
		t.Fatalf("%v, %+v, %v", next, done, err)
	}
	do(func(b *Batch) { b.DropRange(left) })
	if got := names(left); len(got) != 0 {
		t.Fatalf("the dropped range has %v", got)
	}
	check(right)
	reopen()
	check(right)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLostWideRange guards that a range whose state was lost is removed without the ranges in its former slots.
func TestLostWideRange(t *testing.T) {
	s := benchStore(t)
	add := func(id rhumb.RangeID, last rhumb.Slot) (fault any) {
		defer func() { fault = recover() }()
		b := s.NewBatch()
		b.CreateRange(RangeState{Range: id, LastSlot: last})
		return b.Apply()
	}
	at := func(slot rhumb.Slot) rhumb.RangeID { return rhumb.RangeID{Region: 1, Slot: slot} }
	if err := add(at(40), 60); err != nil {
		t.Fatal(err)
	}
	for _, overlap := range []struct{ first, last rhumb.Slot }{{50, 50}, {30, 40}, {60, 70}, {30, 70}} {
		if add(at(overlap.first), overlap.last) == nil {
			t.Errorf("a range from %d to %d overlaps one of the store", overlap.first, overlap.last)
		}
	}
	for _, c := range []struct{ first, last, want rhumb.Slot }{{30, 39, 39}, {30, 45, 39}, {30, 100, 39}, {61, 70, 70}, {39, 0, 39}} {
		if got := s.clampLast(at(c.first), c.last); got != c.want {
			t.Errorf("what is removed with %d to %d ends at %d, want %d", c.first, c.last, got, c.want)
		}
	}
}

// BenchmarkScanWide reads pages of names in order from a range of several slots, beside one of one slot.
func BenchmarkScanWide(b *testing.B) {
	for _, c := range []struct{ slots, limit int }{{1, 1_024}, {64, 1_024}, {1_024, 1_024}, {1, 10}, {64, 10}, {1_024, 10}} {
		b.Run(fmt.Sprintf("slots=%d/limit=%d", c.slots, c.limit), func(b *testing.B) {
			s := benchStore(b)
			id := rhumb.RangeID{Region: 1, Slot: 1}
			batch := s.NewBatch()
			batch.CreateRange(RangeState{Range: id, LastSlot: id.Slot + rhumb.Slot(c.slots-1)})
			f := &feed{id: id}
			for range 100 {
				e := f.next(200, 1_000)
				for i := range e.Requests {
					w := &e.Requests[i].Writes[0]
					w.Slot = id.Slot + keys.HashSlot(w.Name, 0, c.slots)
				}
				e.Seal(nil)
				f.pos = e.Position()
				batch.Append(id, e, Commit{})
			}
			if err := batch.Apply(); err != nil {
				b.Fatal(err)
			}
			if err := s.Flush(); err != nil {
				b.Fatal(err)
			}
			n := 0
			for b.Loop() {
				n = 0
				for _, err := range s.Scan(id, 1, nil, []byte("key005000"), Newest, c.limit) {
					if err != nil {
						b.Fatal(err)
					}
					n++
				}
			}
			if n != c.limit {
				b.Fatalf("%d records", n)
			}
		})
	}
}
