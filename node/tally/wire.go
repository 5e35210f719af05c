package tally

import (
	"encoding/binary"
	"math"

	"github.com/rhumbdb/rhumb"
)

// sumBytes is the size of a sum on the wire.
const sumBytes = 8

// AppendWire appends the form of tallies (docs/formats/link.md). Integers without a size are
// varints:
//
//	life of the stream, number of the stream (8 bytes, big endian), life of the sender, oldest, number of frames
//
// and for each frame its distance from the one before it, the number of indexes times two, plus one
// with Only, the distance of each index from the one before it, and the sum (8 bytes, big endian).
func (r *Tally) AppendWire(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(r.Stream.Life))
	b = binary.BigEndian.AppendUint64(b, r.Stream.Number)
	b = binary.AppendUvarint(b, uint64(r.Life))
	b = binary.AppendUvarint(b, r.Oldest)
	b = binary.AppendUvarint(b, uint64(len(r.Frames)))
	before := uint64(0)
	for i := range r.Frames {
		f := &r.Frames[i]
		b = binary.AppendUvarint(b, f.Number-before)
		before = f.Number
		form := uint64(len(f.Indexes)) << 1
		if f.Only {
			form |= 1
		}
		b = binary.AppendUvarint(b, form)
		at := -1
		for _, x := range f.Indexes {
			b = binary.AppendUvarint(b, uint64(x-at))
			at = x
		}
		b = binary.BigEndian.AppendUint64(b, f.Sum)
	}
	return b
}

// wire reads numbers. Its first error stays, and everything after it reads as zero.
type wire struct {
	b   []byte
	bad bool
}

// number reads a varint of at least least and at most most.
func (w *wire) number(least, most uint64) uint64 {
	v, n := binary.Uvarint(w.b)
	if w.bad || n <= 0 || v < least || v > most {
		w.bad = true
		return 0
	}
	w.b = w.b[n:]
	return v
}

// fixed reads eight bytes.
func (w *wire) fixed() uint64 {
	if w.bad || len(w.b) < sumBytes {
		w.bad = true
		return 0
	}
	v := binary.BigEndian.Uint64(w.b)
	w.b = w.b[sumBytes:]
	return v
}

// DecodeWire decodes what AppendWire appended. It allocates at most a few times the size of b,
// whatever b announces.
func DecodeWire(b []byte) (Tally, error) {
	w := &wire{b: b}
	var r Tally
	r.Stream.Life = rhumb.BootSeq(w.number(0, math.MaxUint64))
	r.Stream.Number = w.fixed()
	r.Life = rhumb.BootSeq(w.number(0, math.MaxUint64))
	r.Oldest = w.number(0, math.MaxUint64)
	// Each frame takes a sum and two bytes at least.
	before := uint64(0)
	for range w.number(0, uint64(len(w.b)/(sumBytes+2))) {
		var f Frame
		before += w.number(1, math.MaxUint64-before)
		f.Number = before
		form := w.number(0, uint64(2*len(w.b)+1))
		f.Only = form&1 != 0
		at := -1
		for range form >> 1 {
			at += int(w.number(1, uint64(sentMax-1-at)))
			if w.bad {
				break
			}
			f.Indexes = append(f.Indexes, at)
		}
		f.Sum = w.fixed()
		if w.bad {
			break
		}
		r.Frames = append(r.Frames, f)
	}
	if w.bad || len(w.b) > 0 {
		return Tally{}, rhumb.Ef("tally.DecodeWire", rhumb.Corrupt, "tallies of %d bytes do not end where their frames do", len(b))
	}
	return r, nil
}
