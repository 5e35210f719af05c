package closed

import "github.com/rhumbdb/rhumb"

// Receiver holds the claims received from one peer. The zero value holds none.
type Receiver struct {
	applied uint64
	at      rhumb.Timestamp
	covers  map[rhumb.RangeID]rhumb.Seq
	// past holds earlier claims that covers no longer implies.
	past History
}

// Take applies a frame. It returns false, and ignores the frame, if the frame is not newer than the
// last one or its base is missing.
func (r *Receiver) Take(f *Frame) bool {
	if f.Number <= r.applied || f.Base > r.applied {
		return false
	}
	if r.covers == nil {
		r.covers, r.past = make(map[rhumb.RangeID]rhumb.Seq), make(History)
	}
	// Both cases replace claims that are still true: a lower timestamp, and a new list of ranges.
	if f.At < r.at || f.Base == 0 {
		r.rememberAll()
	}
	if f.Base == 0 {
		clear(r.covers)
	}
	for _, c := range f.Covers {
		r.rememberClaim(c.Range)
		// A position of 0 ends the coverage of the range.
		if c.Seq == 0 {
			delete(r.covers, c.Range)
			continue
		}
		r.covers[c.Range] = c.Seq
	}
	r.at, r.applied = f.At, f.Number
	return true
}

// rememberClaim saves the claim about a range before covers changes.
func (r *Receiver) rememberClaim(id rhumb.RangeID) {
	if seq, ok := r.covers[id]; ok && r.at != 0 {
		r.past.Note(id, Claim{r.at, seq})
	}
}

// rememberAll saves the claims about all ranges.
func (r *Receiver) rememberAll() {
	for id := range r.covers {
		r.rememberClaim(id)
	}
}

// Applied returns the number of the last applied frame.
func (r *Receiver) Applied() uint64 { return r.applied }

// At returns a timestamp such that every present or future entry of the range at or below it has a
// position up to upTo. It returns 0 if none is known.
func (r *Receiver) At(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	// The present claim may need a higher position than the asker has committed.
	at := r.past.At(id, upTo)
	if seq, ok := r.covers[id]; ok && seq <= upTo {
		at = max(at, r.at)
	}
	return at
}

// Reset prepares for a sender that starts over, as a new life does. Claims already received stay
// true and are kept.
func (r *Receiver) Reset() {
	r.rememberAll()
	clear(r.covers)
	r.at, r.applied = 0, 0
}

// History holds the last two claims about each range: the newer one may refer to entries that are
// still in flight.
type History map[rhumb.RangeID][2]Claim

// Note adds a claim unless it claims less than a known one.
func (h History) Note(id rhumb.RangeID, c Claim) {
	last := h[id]
	switch {
	case c.At == 0 || c.At <= last[0].At:
		// Nothing new.
	case c.Seq <= last[0].Seq:
		// A later timestamp at no higher position implies the newest claim and replaces it.
		h[id] = [2]Claim{c, last[1]}
	default:
		// A higher position may not be committed here yet, so the claim before it stays usable.
		h[id] = [2]Claim{c, last[0]}
	}
}

// At is Receiver.At for the claims in h.
func (h History) At(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	for _, c := range h[id] {
		if c.Seq <= upTo {
			// The first match is the later timestamp, since the newer claim comes first.
			return c.At
		}
	}
	return 0
}
