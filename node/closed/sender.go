package closed

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// CoversMax is the largest number of covers in a frame: about 6 KiB.
	CoversMax = 512
	// LagMax is how far the closed timestamp of a range may differ from the most advanced one while
	// the range is still covered. A range that lags further has a member that does not answer.
	LagMax = time.Second
)

// Claim states about a range that every entry with a timestamp up to At has a position up to Seq,
// permanently. A node whose log of the range is committed up to Seq or further holds all of them.
type Claim struct {
	At  rhumb.Timestamp
	Seq rhumb.Seq
}

// RangeClaim is a claim about a range.
type RangeClaim struct {
	Range rhumb.RangeID
	Claim
}

// Cover sets the position of a covered range; a Seq of 0 ends its coverage.
type Cover struct {
	Range rhumb.RangeID
	Seq   rhumb.Seq
}

// Frame is a message from a Sender to a Receiver. It also acknowledges frames of the opposite
// direction. The zero value carries nothing.
type Frame struct {
	// Number is greater than that of every earlier frame, or 0 if the frame carries nothing.
	Number uint64
	// Base is the number of a frame that the receiver has applied; Covers lists all changes since
	// then. If Base is 0, Covers lists all covered ranges, and earlier coverage ends.
	Base   uint64
	Covers []Cover
	// At is the timestamp up to which the covered ranges are closed, or 0 while changes are still
	// to be sent.
	At rhumb.Timestamp
	// Applied is the number of the last frame that the sender of this one has applied from the
	// other end.
	Applied uint64
}

// Sender holds the state that a node sends to one peer. The zero value sends nothing.
type Sender struct {
	number, base uint64
	began        uint64 // number at the last Reset; confirmations of earlier frames are ignored
	at           rhumb.Timestamp
	turn         uint64 // counts calls of Set
	told         map[rhumb.RangeID]*item
	// open lists the ranges whose last change the receiver may not have applied.
	open []rhumb.RangeID
}

// item is a range that is covered, or that the receiver may still believe to be covered.
type item struct {
	seq   rhumb.Seq
	since uint64 // first frame that listed seq; 0 if none did
	turn  uint64
	open  bool
}

// Set replaces the claims about all ranges that the receiver holds. Ranges that are not listed are
// no longer covered.
func (s *Sender) Set(claims []RangeClaim) {
	s.turn++
	var newest rhumb.Timestamp
	for i := range claims {
		newest = max(newest, claims[i].At)
	}
	s.at = newest
	for _, c := range claims {
		// A single lagging range would hold back the common timestamp of all others.
		if c.At == 0 || c.At.Add(LagMax) < newest {
			continue
		}
		s.at = min(s.at, c.At)
		s.setCover(c.Range, c.Seq).turn = s.turn
	}
	var left []rhumb.RangeID
	for id, it := range s.told {
		// An item with position 0 is already ending: it waits only for its confirmation.
		if it.turn != s.turn && it.seq != 0 {
			left = append(left, id)
		}
	}
	// Map order is random, and the simulator must replay a run from its seed.
	slices.SortFunc(left, rhumb.RangeID.Compare)
	for _, id := range left {
		s.setCover(id, 0)
	}
}

// setCover sets the position of a range; 0 ends its coverage.
func (s *Sender) setCover(id rhumb.RangeID, seq rhumb.Seq) *item {
	it := s.told[id]
	switch {
	case it == nil:
		if s.told == nil {
			s.told = make(map[rhumb.RangeID]*item)
		}
		it = &item{}
		s.told[id] = it
	// An idle range keeps its position and costs nothing in later frames.
	case it.seq == seq:
		return it
	}
	// since restarts at 0 because no frame has listed the new position. A confirmation of an older
	// frame must not close the item.
	it.seq, it.since = seq, 0
	s.markOpen(id, it)
	return it
}

// markOpen puts a range on the list of changes to send.
func (s *Sender) markOpen(id rhumb.RangeID, it *item) {
	if !it.open {
		it.open = true
		s.open = append(s.open, id)
	}
}

// Frame returns the next frame.
func (s *Sender) Frame() Frame {
	if len(s.told) == 0 {
		return Frame{}
	}
	// Every frame gets a new number even if nothing changed: the timestamp moves with each frame.
	s.number++
	f := Frame{Number: s.number, Base: s.base}
	// A change that an earlier frame listed must be in this frame too, since the receiver confirms
	// by number. These changes always fit.
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
			// Without a timestamp the peer learns the covers but concludes nothing from them yet.
			return f
		}
		it.since = s.number
		f.Covers = append(f.Covers, Cover{id, it.seq})
	}
	f.At = s.at
	return f
}

// Confirm records that the receiver has applied the frame with the given number.
func (s *Sender) Confirm(number uint64) {
	// The numbers are read from the network: stale and invented ones are ignored.
	if number <= max(s.base, s.began) || number > s.number {
		return
	}
	// Later frames list only the changes since this one.
	s.base = number
	s.open = slices.DeleteFunc(s.open, func(id rhumb.RangeID) bool {
		it := s.told[id]
		if it.since == 0 || it.since > number {
			return false
		}
		it.open = false
		// The receiver no longer covers the range, so nothing about it has to be remembered.
		if it.seq == 0 {
			delete(s.told, id)
		}
		return true
	})
}

// Reset records that the receiver knows nothing, as at the start of a new life.
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
		s.markOpen(id, it)
	}
}
