package storage

import (
	"bytes"
	"iter"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// slotWalk visits the slots of a range that have keys in a span of their own. Slots without keys cost
// nothing: a seek finds the next slot that has any.
type slotWalk struct {
	it   *pebble.Iterator
	at   rhumb.RangeID // the slot to look at next; after next the present one
	last rhumb.Slot
	// span returns the span of a slot, and upper is the end of that of the present one.
	span  func(home rhumb.RangeID) keys.Span
	upper []byte
	begun bool
}

// next moves to the next slot with keys, and the iterator to the first of them.
func (w *slotWalk) next() bool {
	if w.begun && !w.advance() {
		return false
	}
	w.begun = true
	for {
		span := w.span(w.at)
		if !w.it.SeekGE(span.Lower) {
			return false
		}
		if keys.Compare(w.it.Key(), span.Upper) < 0 {
			w.upper = span.Upper
			return true
		}
		// The key belongs to another table or kind of this slot, or to a later slot.
		home, _ := keys.Home(w.it.Key())
		if home.Slot > w.at.Slot && home.Slot <= w.last {
			w.at = home
		} else if home.Slot > w.at.Slot || !w.advance() {
			return false
		}
	}
}

// advance steps to the following slot.
func (w *slotWalk) advance() bool {
	if w.at.Slot >= w.last {
		return false
	}
	w.at.Slot++
	return true
}

// scanQuery holds the arguments of a scan.
type scanQuery struct {
	table         rhumb.TableID
	prefix, after []byte
	at            rhumb.Timestamp
	limit         int
}

// The records of a wide range are in the order of names only within each slot. A scan takes rounds of
// about scanRound records, a few from each slot, and keeps values of up to scanRoundBytes meanwhile.
const (
	scanRound      = rhumb.ScanPageMax
	scanRoundBytes = 2 * rhumb.ScanPageBytes
)

// wideScan is a scan of a range of several slots.
//
// A round reads the next few names of each slot. The least of the last names that it read in the slots
// that have more is the end of what is known without a gap: the records up to there are returned in the
// order of names, and the next round begins after it. Names are spread evenly over slots, so a round reads
// about half again as many records as it returns.
type wideScan struct {
	s     *Store
	it    *pebble.Iterator
	st    *RangeState
	q     scanQuery
	found []rhumb.Item
	bytes int
}

// scanWide is Scan for a range of several slots.
func (s *Store) scanWide(st *RangeState, q scanQuery) iter.Seq2[rhumb.Item, error] {
	const op rhumb.Op = "storage.Store.Scan"
	return func(yield func(rhumb.Item, error) bool) {
		span := st.span()
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
		if err != nil {
			yield(rhumb.Item{}, s.dbError(op, err))
			return
		}
		defer func() { _ = it.Close() }()
		if err := s.checkFloor(op, st.Range, q.at); err != nil {
			yield(rhumb.Item{}, err)
			return
		}
		w := wideScan{s: s, it: it, st: st, q: q}
		left := q.limit
		for more := true; more; {
			var known int
			if known, more, err = w.round(left); err != nil {
				yield(rhumb.Item{}, s.dbError(op, err))
				return
			}
			for _, item := range w.found[:known] {
				if item.Value == nil {
					if item.Value, err = w.load(item); err != nil {
						yield(rhumb.Item{}, s.dbError(op, err))
						return
					}
				}
				if !yield(item, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
		}
	}
}

// round reads the next records of each slot. The first known ones of found are the next of the scan; more
// is set if others may follow. limit is the number of records that are still wanted, at most 0 for all.
func (w *wideScan) round(limit int) (known int, more bool, err error) {
	want := scanRound
	if limit > 0 {
		want = min(want, limit)
	}
	slots := int(w.st.LastSlot-w.st.Range.Slot) + 1
	// The share of a slot and two standard deviations, so that few rounds end early because of a crowded slot.
	share := want / slots
	each := share + 2*int(math.Sqrt(float64(share))) + 2
	w.found, w.bytes = w.found[:0], 0
	var end []byte // of the known part without a gap, if more is set
	walk := slotWalk{it: w.it, at: w.st.Range, last: w.st.LastSlot, span: func(home rhumb.RangeID) keys.Span {
		return scanSpan(home, w.q.table, w.q.prefix, w.q.after)
	}}
	for walk.next() {
		sc := scanner{it: w.it, home: walk.at, at: w.q.at, upper: walk.upper, started: true, ahead: true}
		n := 0
		for ; n < each; n++ {
			item, value, ok, err := sc.nextLazy()
			if err != nil {
				return 0, false, err
			}
			if !ok {
				break
			}
			// Names beyond the known end are read again by the next round.
			if more && bytes.Compare(item.Key.Name, end) > 0 {
				break
			}
			// Values beyond the bound are loaded when they are returned.
			if w.bytes += len(value); w.bytes <= scanRoundBytes {
				item.Value = append(make([]byte, 0, len(value)), value...)
			}
			w.found = append(w.found, item)
		}
		if n == each {
			if name := w.found[len(w.found)-1].Key.Name; !more || bytes.Compare(name, end) < 0 {
				end, more = name, true
			}
		}
	}
	if err := w.it.Error(); err != nil {
		return 0, false, err
	}
	slices.SortFunc(w.found, func(a, b rhumb.Item) int { return bytes.Compare(a.Key.Name, b.Key.Name) })
	known = len(w.found)
	if more {
		known, _ = slices.BinarySearchFunc(w.found, end, func(it rhumb.Item, end []byte) int {
			// The end itself is known.
			if bytes.Compare(it.Key.Name, end) <= 0 {
				return -1
			}
			return 1
		})
		w.q.after = end
	}
	return known, more, nil
}

// load reads the value of a record that a round has found.
func (w *wideScan) load(item rhumb.Item) ([]byte, error) {
	if !w.it.SeekGE(keys.AppendData(nil, item.Key, item.Version)) {
		return nil, w.it.Error()
	}
	v, err := w.it.ValueAndErr()
	return append(make([]byte, 0, len(v)), v...), err
}
