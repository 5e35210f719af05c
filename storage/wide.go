package storage

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// wideRange is a range of several slots.
type wideRange struct {
	id   rhumb.RangeID
	last rhumb.Slot
}

// wideRanges lists the ranges of several slots, sorted. It finds the range of a home that begins no
// range.
type wideRanges []wideRange

// search returns the place of a range, and whether it is there.
func (w wideRanges) search(id rhumb.RangeID) (int, bool) {
	return slices.BinarySearchFunc(w, id, func(x wideRange, id rhumb.RangeID) int { return x.id.Compare(id) })
}

// add adds a range or replaces its last slot. A range of one slot is not listed.
func (w *wideRanges) add(id rhumb.RangeID, last rhumb.Slot) {
	i, found := w.search(id)
	switch {
	case last <= id.Slot:
		w.remove(id)
	case found:
		(*w)[i].last = last
	default:
		*w = slices.Insert(*w, i, wideRange{id, last})
	}
}

// remove removes a range, if it is listed.
func (w *wideRanges) remove(id rhumb.RangeID) {
	if i, found := w.search(id); found {
		*w = slices.Delete(*w, i, i+1)
	}
}

// find returns the range that holds a home.
func (w wideRanges) find(home rhumb.RangeID) (id rhumb.RangeID, ok bool) {
	i, found := w.search(home)
	if !found {
		i--
	}
	if i < 0 || w[i].id.Region != home.Region || home.Slot > w[i].last {
		return id, false
	}
	return w[i].id, true
}

// spanOf returns the span of all keys of a range. A range that the store does not hold counts as one slot.
func (s *Store) spanOf(id rhumb.RangeID) keys.Span {
	if rs := s.rangeOf(id); rs != nil {
		st := rs.copyState()
		return st.span()
	}
	return keys.HomeSpan(id)
}

// clampLast returns the last slot up to which a range that the store may not hold has no slot in common
// with another range of the store. What is removed with one range must not be of another: a range whose
// state was lost may have been split. Ranges that go with it do not count.
func (s *Store) clampLast(id rhumb.RangeID, last rhumb.Slot, going ...rhumb.RangeID) rhumb.Slot {
	if last <= id.Slot {
		return id.Slot
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for other := range s.ranges {
		if other.Region == id.Region && other.Slot > id.Slot && other.Slot <= last && !slices.Contains(going, other) {
			last = other.Slot - 1
		}
	}
	return last
}
