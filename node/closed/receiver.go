package closed

import "github.com/rhumbdb/rhumb"

// Receiver is what a node was told by one peer. The zero value knows nothing.
type Receiver struct {
	applied uint64
	at      rhumb.Timestamp
	covers  map[rhumb.RangeID]rhumb.Seq
	// past are claims that covers does not make any more.
	past History
}

// Take takes a frame, and reports false for one that is older than what was taken or does not connect to it.
func (r *Receiver) Take(f *Frame) bool {
	if f.Number <= r.applied || f.Base > r.applied {
		return false
	}
	if r.covers == nil {
		r.covers, r.past = make(map[rhumb.RangeID]rhumb.Seq), make(History)
	}
	if f.At < r.at || f.Base == 0 {
		r.rememberAll()
	}
	if f.Base == 0 {
		clear(r.covers)
	}
	for _, c := range f.Covers {
		r.remember(c.Range)
		if c.Seq == 0 {
			delete(r.covers, c.Range)
			continue
		}
		r.covers[c.Range] = c.Seq
	}
	r.at, r.applied = f.At, f.Number
	return true
}

// remember keeps the claim that covers makes of a range, before it changes.
func (r *Receiver) remember(id rhumb.RangeID) {
	if seq, ok := r.covers[id]; ok && r.at != 0 {
		r.past.Note(id, Claim{r.at, seq})
	}
}

func (r *Receiver) rememberAll() {
	for id := range r.covers {
		r.remember(id)
	}
}

// Applied gives the number of the last frame taken.
func (r *Receiver) Applied() uint64 { return r.applied }

// At gives the timestamp up to which every entry of the range, now and ever, lies at a position up to upTo; 0 when none is
// known.
func (r *Receiver) At(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	at := r.past.At(id, upTo)
	if seq, ok := r.covers[id]; ok && seq <= upTo {
		at = max(at, r.at)
	}
	return at
}

// Reset says that the sender begins anew, as a new life does. What was claimed stays true.
func (r *Receiver) Reset() {
	r.rememberAll()
	clear(r.covers)
	r.at, r.applied = 0, 0
}

// History keeps the last two claims on each range: one that is new may speak of entries that are still on their way.
type History map[rhumb.RangeID][2]Claim

// Note adds a claim. One that says less than is known is dropped.
func (h History) Note(id rhumb.RangeID, c Claim) {
	last := h[id]
	switch {
	case c.At == 0 || c.At <= last[0].At:
	case c.Seq <= last[0].Seq:
		h[id] = [2]Claim{c, last[1]}
	default:
		h[id] = [2]Claim{c, last[0]}
	}
}

// At is Receiver.At for the claims kept.
func (h History) At(id rhumb.RangeID, upTo rhumb.Seq) rhumb.Timestamp {
	for _, c := range h[id] {
		if c.Seq <= upTo {
			return c.At
		}
	}
	return 0
}
