package replica

import (
	"math/rand/v2"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// TestEntrySize guards that the size that flow control counts is never below that of the wire form,
// and not far above.
func TestEntrySize(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		e := &entry.Entry{Epoch: rhumb.Epoch(rnd.Uint64() >> 1), Node: 1<<32 - 1, Seq: rhumb.Seq(rnd.Uint64() >> 1), Start: rhumb.Timestamp(rnd.Uint64())}
		for range rnd.IntN(5) {
			q := entry.Request{ID: rhumb.RequestID{Seq: 1 << 63}, HLC: 1 << 62, Existed: make([]bool, rnd.IntN(20))}
			for range rnd.IntN(3) {
				q.Names = append(q.Names, make([]byte, rnd.IntN(300)))
			}
			for range rnd.IntN(4) {
				q.Writes = append(q.Writes, entry.Write{Table: 1<<32 - 1, Name: make([]byte, rnd.IntN(300)), Value: make([]byte, rnd.IntN(3000))})
			}
			e.Requests = append(e.Requests, q)
		}
		wire := len(e.Seal(nil))
		if size := entrySize(e); size < wire || size > wire+wire/2+200 {
			t.Fatalf("size %d for %d bytes on the wire", size, wire)
		}
	}
}

// TestLogForgets guards that marks of settled entries are dropped and all others stay.
func TestLogForgets(t *testing.T) {
	l := newLog(Durable{}, 100)
	prev := entry.Position{}
	for i := range 5 * marksKept {
		e := &entry.Entry{Epoch: 1, Seq: prev.Seq + 1, Prev: prev.Hash, Requests: []entry.Request{{HLC: rhumb.Timestamp(i + 1), Noop: true}}}
		e.Seal(nil)
		l.append(e, 30)
		prev = e.Position()
		settled := max(prev.Seq, 40) - 40
		l.forgetSettled(settled)
		if _, ok := l.at(settled); !ok || len(l.marks) > 2*marksKept+42 {
			t.Fatalf("at %d: settled %d is known %v, %d marks", prev.Seq, settled, ok, len(l.marks))
		}
	}
	if got := l.bytes.pointAt(prev.Seq); l.bytes.total != int64(30*5*marksKept) || l.bytes.total-got.bytes >= 100 {
		t.Errorf("total %d, last point %+v", l.bytes.total, got)
	}
	l.undoAbove(600)
	if l.last().Seq != 600 || l.bytes.pointAt(1<<60).seq > 600 {
		t.Errorf("undone to %d, last point %+v", l.last().Seq, l.bytes.pointAt(1<<60))
	}
	if p := l.bytes.pointAfter(3000); l.bytes.total-p.bytes > 3000 || p.seq > 520 {
		t.Errorf("3000 bytes lie after %+v of %d", p, l.bytes.total)
	}
}

// TestLineage checks the look-ups of log matching.
func TestLineage(t *testing.T) {
	l := logState{marks: []Mark{{}}, lineage: []EpochStart{{2, 1}, {5, 4}, {7, 9}}}
	l.marks = append(l.marks, make([]Mark, 12)...)
	l.marks[12].Seq = 12
	for _, tc := range []struct {
		epoch, wantEpoch rhumb.Epoch
		wantEnd          rhumb.Seq
	}{{1, 0, 0}, {2, 2, 3}, {4, 2, 3}, {5, 5, 8}, {6, 5, 8}, {7, 7, 12}, {9, 7, 12}} {
		if e, end := l.endOf(tc.epoch); e != tc.wantEpoch || end != tc.wantEnd {
			t.Errorf("end of %d is %d:%d, want %d:%d", tc.epoch, e, end, tc.wantEpoch, tc.wantEnd)
		}
	}
	for seq, want := range map[rhumb.Seq]rhumb.Epoch{0: 0, 1: 2, 3: 2, 4: 5, 8: 5, 9: 7, 12: 7} {
		if got := l.epochAt(seq); got != want {
			t.Errorf("epoch at %d is %d, want %d", seq, got, want)
		}
	}
}

// TestWindow guards that Appends in flight are counted, and freed in order.
func TestWindow(t *testing.T) {
	var w window
	for i := range 500 {
		w.add(rhumb.Seq(2*i+2), 10)
		w.free(rhumb.Seq(2*i + 1 - min(2*i, 200)))
		want := 10 * min(i+1, 101)
		if w.bytes != want {
			t.Fatalf("%d: %d bytes in flight, want %d", i, w.bytes, want)
		}
	}
	if cap(w.sent) > 512 {
		t.Errorf("the window grew to %d", cap(w.sent))
	}
	w.free(1 << 40)
	if w.bytes != 0 || len(w.sent) != 0 {
		t.Errorf("%d bytes stay in flight", w.bytes)
	}
}

// TestTailSlicesStay guards that later entries do not overwrite slices that were handed out.
func TestTailSlicesStay(t *testing.T) {
	tl := tail{first: 1}
	for i := range 20 {
		tl.append(&entry.Entry{Seq: rhumb.Seq(i + 1)}, 10)
	}
	given, bytes := tl.entriesFrom(3, 45)
	if len(given) != 4 || bytes != 40 {
		t.Fatalf("%d entries of %d bytes, want 4 of 40", len(given), bytes)
	}
	tl.cutFront(18)
	for i := range 40 {
		tl.append(&entry.Entry{Seq: rhumb.Seq(i + 21)}, 10)
	}
	for i, e := range given {
		if e.Seq != rhumb.Seq(3+i) {
			t.Errorf("entry %d was overwritten by %d", 3+i, e.Seq)
		}
	}
	if one, _ := tl.entriesFrom(30, 1); len(one) != 1 || one[0].Seq != 30 {
		t.Errorf("a single entry that is larger than the bound does not travel: %v", one)
	}
}
