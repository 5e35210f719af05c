package closed

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// CoversMax bounds the covers of one frame: about 6 KiB.
	CoversMax = 512
	// LagMax is how far a range's closed timestamp may lie behind that of the most advanced one and still be covered. A
	// range further behind has a member that does not answer.
	LagMax = time.Second
)

// Claim says of a range that every entry with a timestamp up to At lies at a position up to Seq, for ever. A node whose
// log of the range is committed up to Seq, or further, holds all of them.
type Claim struct {
	At  rhumb.Timestamp
	Seq rhumb.Seq
}

// RangeClaim is a claim on a range.
type RangeClaim struct {
	Range rhumb.RangeID
	Claim
}

// Cover says that a range is covered from now on, with Seq as its position; 0 that it is not.
type Cover struct {
	Range rhumb.RangeID
	Seq   rhumb.Seq
}

// Frame is what a Sender tells a Receiver, with what the Receiver beside it has taken. The zero value tells nothing.
type Frame struct {
	// Number is greater than that of every frame before; 0 when the frame tells nothing.
	Number uint64
	// Base is the number of a frame that the receiver has taken: Covers are all changes since then. With 0 they are all that
	// is covered, and what an earlier frame told beside them is over.
	Base   uint64
	Covers []Cover
	// At is up to where the covered ranges are closed; 0 while not all changes are told.
	At rhumb.Timestamp
	// Applied is the number of the last frame that the sender of this one has taken from the other end.
	Applied uint64
}

// Sender is what a node tells one peer. The zero value tells nothing.
type Sender struct {
	number, base uint64
	began        uint64 // the number at the last Reset: what was told up to there is not what is told now
	at           rhumb.Timestamp
	turn         uint64 // counts Set
	told         map[rhumb.RangeID]*item
	// open are the ranges of told whose last change the receiver is not known to have taken.
	open []rhumb.RangeID
}

// item is a range that is covered, or was and the receiver may not know that it is not.
type item struct {
	seq   rhumb.Seq
	since uint64 // the first frame that listed seq; 0 for none yet
	turn  uint64
	open  bool
}

// Set says what is closed now, for all ranges that the receiver holds; those that are left out are not covered any more.
func (s *Sender) Set(claims []RangeClaim) {
	s.turn++
	var newest rhumb.Timestamp
	for i := range claims {
		newest = max(newest, claims[i].At)
	}
	s.at = newest
	for _, c := range claims {
		if c.At == 0 || c.At.Add(LagMax) < newest {
			continue
		}
		s.at = min(s.at, c.At)
		s.cover(c.Range, c.Seq).turn = s.turn
	}
	var left []rhumb.RangeID
	for id, it := range s.told {
		if it.turn != s.turn && it.seq != 0 {
			left = append(left, id)
		}
	}
	slices.SortFunc(left, rhumb.RangeID.Compare)
	for _, id := range left {
		s.cover(id, 0)
	}
}

// cover notes a range's position, 0 for none.
func (s *Sender) cover(id rhumb.RangeID, seq rhumb.Seq) *item {
	it := s.told[id]
	switch {
	case it == nil:
		if s.told == nil {
			s.told = make(map[rhumb.RangeID]*item)
		}
		it = &item{}
		s.told[id] = it
	case it.seq == seq:
		return it
	}
	it.seq, it.since = seq, 0
	s.reopen(id, it)
	return it
}

func (s *Sender) reopen(id rhumb.RangeID, it *item) {
	if !it.open {
		it.open = true
		s.open = append(s.open, id)
	}
}

// Frame gives the next frame.
func (s *Sender) Frame() Frame {
	if len(s.told) == 0 {
		return Frame{}
	}
	s.number++
	f := Frame{Number: s.number, Base: s.base}
	// What an earlier frame listed must be in this one: the receiver confirms by number. That is never more than fits.
	for _, id := range s.open {
		if it := s.told[id]; it.since != 0 {
			f.Covers = append(f.Covers, Cover{id, it.seq})
		}
	}
	for _, id := range s.open {
		it := s.told[id]
		if it.since != 0 {
			continue
		}
		if len(f.Covers) == CoversMax {
			return f
		}
		it.since = s.number
		f.Covers = append(f.Covers, Cover{id, it.seq})
	}
	f.At = s.at
	return f
}

// Confirm says that the receiver has taken the frame of that number.
func (s *Sender) Confirm(number uint64) {
	if number <= max(s.base, s.began) || number > s.number {
		return
	}
	s.base = number
	s.open = slices.DeleteFunc(s.open, func(id rhumb.RangeID) bool {
		it := s.told[id]
		if it.since == 0 || it.since > number {
			return false
		}
		it.open = false
		if it.seq == 0 {
			delete(s.told, id)
		}
		return true
	})
}

// Reset says that the receiver knows nothing, as a new life does.
func (s *Sender) Reset() {
	s.base, s.began, s.open = 0, s.number, s.open[:0]
	ids := make([]rhumb.RangeID, 0, len(s.told))
	for id := range s.told {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, rhumb.RangeID.Compare)
	for _, id := range ids {
		it := s.told[id]
		if it.seq == 0 {
			delete(s.told, id)
			continue
		}
		it.since, it.open = 0, false
		s.reopen(id, it)
	}
}
