package replica

import (
	"fmt"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// marksKept is the number of marks of settled entries that a log remembers, so that entries that a
// peer repeats can be compared by hash.
const marksKept = 128

// logState is the memory that a replica has of its log: the positions of entries, not their
// contents.
//
// Invariant: marks is never empty and has no gaps; marks[0].Seq <= min(commit, durable), so every
// entry that may still be undone or acknowledged has its mark. The mark with Seq 0 represents the
// place before the first entry.
type logState struct {
	marks   []Mark
	lineage []EpochStart
	trim    rhumb.Seq
	bytes   byteIndex
}

// newLog returns the log that storage holds. It panics if the storage contradicts itself, because a
// replica with a wrong idea of its log would acknowledge entries that it does not have.
func newLog(d Durable, step int64) logState {
	l := logState{trim: d.Trim, lineage: slices.Clone(d.Lineage)}
	l.marks = append(l.marks, d.Tail...)
	// With commit 0 the tail begins with entry 1, and the mark before it is the implicit one.
	if len(l.marks) == 0 || d.Commit == 0 {
		first := Mark{}
		if len(l.marks) == 0 {
			first = Mark{Position: d.Last, HLC: d.LastHLC}
		}
		l.marks = slices.Insert(l.marks, 0, first)
	}
	for i := 1; i < len(l.marks); i++ {
		if l.marks[i].Seq != l.marks[i-1].Seq+1 {
			panic(fmt.Sprintf("replica: storage gave a log tail with a gap after %s", l.marks[i-1].Position))
		}
	}
	if l.marks[0].Seq > d.Commit || l.last().Position != d.Last {
		panic(fmt.Sprintf("replica: storage gave the tail %s to %s for a log that ends at %s and is committed to %d",
			l.marks[0].Position, l.last().Position, d.Last, d.Commit))
	}
	l.bytes = byteIndex{step: step, total: d.LogBytes, points: []bytePoint{{d.Trim, 0}}}
	// Only the total size is known. The log counts as if all bytes were in its last entry, which
	// overestimates the lag of a peer.
	if d.LogBytes > 0 {
		l.bytes.points = append(l.bytes.points, bytePoint{d.Last.Seq, d.LogBytes})
	}
	return l
}

// last returns the mark of the last entry.
func (l *logState) last() *Mark { return &l.marks[len(l.marks)-1] }

// at returns the mark of a position. ok is false if the log has forgotten it, or ends below.
func (l *logState) at(seq rhumb.Seq) (m Mark, ok bool) {
	base := l.marks[0].Seq
	if seq < base || seq-base >= rhumb.Seq(len(l.marks)) {
		return Mark{}, false
	}
	return l.marks[seq-base], true
}

// append adds an entry to the end. It panics if the entry does not follow (I2, I7): callers have
// checked the entries of others, so this replica itself would be wrong.
func (l *logState) append(e *entry.Entry, size int) {
	last := l.last()
	if e.Seq != last.Seq+1 || e.Prev != last.Hash || e.Epoch < last.Epoch {
		panic(fmt.Sprintf("replica: invariant I2: entry %s after %s does not follow %s", e.Position(), e.Prev, last.Position))
	}
	if e.LastHLC() <= last.HLC {
		panic(fmt.Sprintf("replica: invariant I7: timestamp %d of entry %s is not above %d", e.LastHLC(), e.Position(), last.HLC))
	}
	// The lineage holds each epoch once, with its first position.
	if n := len(l.lineage); n == 0 || l.lineage[n-1].Epoch != e.Epoch {
		l.lineage = append(l.lineage, EpochStart{e.Epoch, e.Seq})
	}
	l.marks = append(l.marks, Mark{e.Position(), e.LastHLC(), e.Split(), e.Ends(), e.Take()})
	l.bytes.add(e.Seq, size)
}

// undoAbove forgets everything above seq.
func (l *logState) undoAbove(seq rhumb.Seq) {
	l.marks = l.marks[:seq-l.marks[0].Seq+1]
	for n := len(l.lineage); n > 0 && l.lineage[n-1].First > seq; n-- {
		l.lineage = l.lineage[:n-1]
	}
	l.bytes.undo(seq)
}

// forgetSettled drops marks far below settled, the lower one of commit and durable end. It drops
// them in blocks of marksKept, so that the cost of moving the others is spread over as many
// entries.
func (l *logState) forgetSettled(settled rhumb.Seq) {
	if base := l.marks[0].Seq; settled >= base+2*marksKept {
		l.marks = slices.Delete(l.marks, 0, int(settled-base-marksKept))
	}
}

// trimTo records that the log up to seq is gone.
func (l *logState) trimTo(seq rhumb.Seq) {
	l.trim = seq
	l.bytes.trim(seq)
	// The lineage keeps the epoch of position seq itself: that position is the Prev of the first entry
	// that can still be sent.
	for len(l.lineage) > 1 && l.lineage[1].First <= seq {
		l.lineage = l.lineage[1:]
	}
}

// epochAt returns the epoch of a position according to the lineage, or 0 if the lineage does not
// reach back that far.
func (l *logState) epochAt(seq rhumb.Seq) rhumb.Epoch {
	for i := len(l.lineage) - 1; i >= 0; i-- {
		if l.lineage[i].First <= seq {
			return l.lineage[i].Epoch
		}
	}
	return 0
}

// endOf returns the greatest epoch of the log that is at most e, and the last position of that
// epoch. It returns 0, 0 if there is none.
func (l *logState) endOf(e rhumb.Epoch) (rhumb.Epoch, rhumb.Seq) {
	end := l.last().Seq
	for i := len(l.lineage) - 1; i >= 0; i-- {
		if l.lineage[i].Epoch <= e {
			return l.lineage[i].Epoch, end
		}
		end = l.lineage[i].First - 1
	}
	return 0, 0
}

// byteIndex answers approximately how many bytes of log are between two positions. It remembers one
// point per step bytes, so that 64 MiB of log cost about a thousand points whatever the size of the
// entries.
type byteIndex struct {
	step   int64
	total  int64
	points []bytePoint // ascending; points[0] is at or below the trim position
}

// bytePoint is the size of the log up to a position.
type bytePoint struct {
	seq   rhumb.Seq
	bytes int64 // counted from an arbitrary start
}

// add counts an entry.
func (b *byteIndex) add(seq rhumb.Seq, size int) {
	b.total += int64(size)
	if b.total-b.points[len(b.points)-1].bytes >= b.step {
		b.points = append(b.points, bytePoint{seq, b.total})
	}
}

// undo forgets everything above seq.
func (b *byteIndex) undo(seq rhumb.Seq) {
	n := len(b.points)
	for n > 1 && b.points[n-1].seq > seq {
		n--
	}
	// The sizes since a point are not known one by one, so the total falls back to that point.
	if n < len(b.points) {
		b.points = b.points[:n]
		b.total = b.points[n-1].bytes
	}
}

// trim drops points below seq. It keeps the greatest one that is not above seq.
func (b *byteIndex) trim(seq rhumb.Seq) {
	n := 0
	for n+1 < len(b.points) && b.points[n+1].seq <= seq {
		n++
	}
	b.points = slices.Delete(b.points, 0, n)
}

// pointAt returns the greatest remembered point that is not above seq.
func (b *byteIndex) pointAt(seq rhumb.Seq) bytePoint {
	i, found := slices.BinarySearchFunc(b.points, seq, func(p bytePoint, seq rhumb.Seq) int {
		switch {
		case p.seq < seq:
			return -1
		case p.seq > seq:
			return 1
		}
		return 0
	})
	if !found {
		i = max(i-1, 0)
	}
	return b.points[i]
}

// pointAfter returns the first remembered point after which the log has at most size bytes.
func (b *byteIndex) pointAfter(size int64) bytePoint {
	for _, p := range b.points {
		if b.total-p.bytes <= size {
			return p
		}
	}
	return b.points[len(b.points)-1]
}

// Upper bounds of the fixed parts of an entry's wire form. Received entries have no wire form any
// more, so their size is computed.
const (
	entryOverhead   = 80
	requestOverhead = 48
	writeOverhead   = 16
	slotOverhead    = 5
)

// requestSize returns an upper bound of the size of a request's wire form.
func requestSize(q *entry.Request) int {
	size := requestOverhead + len(q.Existed)/8
	for _, n := range q.Names {
		size += 4 + len(n)
	}
	for i := range q.Writes {
		size += writeOverhead + slotOverhead + len(q.Writes[i].Name) + len(q.Writes[i].Value)
	}
	return size
}

// entrySize returns an upper bound of the size of an entry's wire form.
func entrySize(e *entry.Entry) int {
	size := entryOverhead
	for i := range e.Requests {
		size += requestSize(&e.Requests[i])
	}
	return size
}
