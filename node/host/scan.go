package host

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/storage"
)

// absentCheck is how many names without a record a scan passes before it looks whether its caller still waits.
const absentCheck = 256

// Scan reads records of one range with a strong read, at one timestamp. The page says up to which slot
// the range reaches.
//
// A query with Ranges reads several ranges and merges them: each at one timestamp and strongly, all in the order of names and then homes.
// The page covers the ranges that this node serves without asking anybody, up to their last slots here, and says which.
func (h *Host) Scan(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Scan"
	if len(q.Ranges) > 0 {
		return h.scanRanges(ctx, &q)
	}
	var page rhumb.ScanPage
	receipt, err := h.read(ctx, op, q.Range, func(s *slot, st *readState) error {
		// A retry starts over: the page must be of one timestamp.
		page = rhumb.ScanPage{Last: st.last}
		size := 0
		before := lastStored(s)
		// One record beyond the limit shows whether there are more.
		for it, err := range s.store.Scan(s.id, q.Table, q.Prefix, q.After, st.at, q.Limit+1) {
			if err != nil {
				return err
			}
			// A page has at least one record, however large, so that a scan always makes progress.
			if page.More = len(page.Items) == q.Limit || size >= q.BytesMax; page.More {
				break
			}
			page.Items = append(page.Items, it)
			size += len(it.Value) + len(it.Key.Name)
		}
		// A node divides a range in its store a moment before the read state says so. The page would lack the records beyond the split and
		// claim to cover them.
		if after := lastStored(s); after != before || after < max(s.id.Slot, st.last) {
			return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: s.id, Node: h.cfg.Self.Node, Msg: "the range is being split or merged; retry"}
		}
		return nil
	})
	return page, receipt, err
}

// lastStored returns the last slot of a range as its store has it, or 0 if it does not hold the range.
func lastStored(s *slot) rhumb.Slot {
	st, ok := s.store.State(s.id)
	if !ok {
		return 0
	}
	return max(s.id.Slot, st.LastSlot)
}

// scanPart is the part of a scan in one range.
type scanPart struct {
	s *slot
	// st is the read state under which the part is read: its timestamp for all records, its epoch and grants for the check afterwards.
	st *readState
	// place is the index of the range in ScanQuery.Ranges.
	place int
	// names returns the keys of the range that may have a record, and key is the next of them. The parts of one store share a reader.
	names  *storage.NameCursor
	key    rhumb.Key
	reader *storage.Reader
}

// next moves to the next key; ok is false at the end of the range.
func (p *scanPart) next(q *rhumb.ScanQuery) (ok bool, err error) {
	for {
		if p.key, ok, err = p.names.Next(); !ok {
			return false, err
		}
		// The cursor begins with the name itself, which may have a home that the scan has not passed yet.
		if q.After == nil || string(p.key.Name) != string(q.After) || p.key.Home.Compare(q.AfterHome) > 0 {
			return true, nil
		}
	}
}

// scanParts is a heap ordered by the next key: its name, then its home.
type scanParts []*scanPart

func (h scanParts) Len() int { return len(h) }
func (h scanParts) Less(i, j int) bool {
	a, b := &h[i].key, &h[j].key
	return string(a.Name) < string(b.Name) || string(a.Name) == string(b.Name) && a.Home.Compare(b.Home) < 0
}
func (h scanParts) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *scanParts) Push(x any)   { *h = append(*h, x.(*scanPart)) }
func (h *scanParts) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// scanRanges is Scan for several ranges.
//
// The ranges are read one after the other on the goroutine of the caller. A short scan of names in memory takes less than a millisecond, and
// the other processors have the scans of other callers.
//
// Steps: load the read state of each range, merge the records at these timestamps, then check the epochs and leases. A range that has lost
// its lease meanwhile is left out, and the others are read again without it.
func (h *Host) scanRanges(ctx context.Context, q *rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	const op rhumb.Op = "host.Host.Scan"
	// As in read: Close waits for the count.
	h.reads.Add(1)
	defer h.reads.Add(-1)
	if h.stopped.Load() {
		return rhumb.ScanPage{}, rhumb.Receipt{}, errStopping(op)
	}
	// A range that is lost once stays out: two ranges that lose their leases in turn must not keep the loop going.
	lost := make([]bool, len(q.Ranges))
	var last error
	for range readRetriesMax {
		parts := h.partsOf(q, lost)
		page, err := h.mergeParts(ctx, q, parts)
		switch {
		case rhumb.KindOf(err) == rhumb.Unavailable:
			// Versions were collected, or a range was split, after its read state was loaded. The next attempt loads newer ones and uses nothing of
			// this page, whose records have other timestamps. Other failures of a store are tried again as often.
			h.m.readRetries.Inc()
			last = err
			continue
		case err != nil:
			return rhumb.ScanPage{}, rhumb.Receipt{}, rhumb.Wrap(op, err)
		}
		receipt := rhumb.Receipt{Node: h.cfg.Self.Node, Hops: 1}
		held := true
		page.Ends = make([]rhumb.Slot, len(q.Ranges))
		for _, p := range parts {
			// A receipt names one range and epoch, and these are several. The oldest timestamp holds for all.
			if receipt.Timestamp == 0 || p.st.at < receipt.Timestamp {
				receipt.Timestamp = p.st.at
			}
			page.Ends[p.place] = p.lastSlot() + 1
			// After the read: a lease that is valid now was valid while the part was read.
			if !h.holdsPart(p.s, p.st) {
				lost[p.place], held = true, false
			}
		}
		if held {
			return page, receipt, nil
		}
	}
	return rhumb.ScanPage{}, rhumb.Receipt{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Node: h.cfg.Self.Node, Msg: fmt.Sprintf("ranges changed during %d attempts to read them; retry", readRetriesMax), Err: last}
}

// partsOf returns the parts of a scan in the ranges that this node serves. A range without a lease is left out although a question to the
// metadata leader could confirm it: the client asks for it alone, and the others need not wait.
func (h *Host) partsOf(q *rhumb.ScanQuery, lost []bool) (parts scanParts) {
	parts = make(scanParts, 0, len(q.Ranges))
	for i, id := range q.Ranges {
		// A range that was merged into another one is left to the caller, whose metadata are old.
		s, ok := h.findSlot(id)
		if !ok || lost[i] {
			continue
		}
		if st := s.read.Load(); st != nil && h.holdsPart(s, st) {
			parts = append(parts, &scanPart{s: s, st: st, place: i})
		}
	}
	return parts
}

// holdsPart reports whether only this node could have acknowledged a write of the range before now, by its lease (rule L).
func (h *Host) holdsPart(s *slot, st *readState) bool {
	now := s.read.Load()
	return now != nil && now.epoch == st.epoch && h.leases.holdsLease(s.id, st.epoch, st.grants)
}

// lastSlot returns the last slot of the part, which is the first one for a range of one slot. The store may have more slots by now, if the range
// was merged, and the part leaves them out.
func (p *scanPart) lastSlot() rhumb.Slot { return max(p.s.id.Slot, p.st.last) }

// mergeParts reads a page of the records of several ranges.
func (h *Host) mergeParts(ctx context.Context, q *rhumb.ScanQuery, parts scanParts) (page rhumb.ScanPage, err error) {
	// A reader is as old as its creation, so it comes after all read states.
	readers := map[*storage.Store]*storage.Reader{}
	defer func() {
		for _, r := range readers {
			err = errors.Join(err, r.Close())
		}
	}()
	// Only ranges with a next name take part in the merge. Finding the first name of each is most of the work of a short scan.
	live := make(scanParts, 0, len(parts))
	for _, p := range parts {
		// Ranges of one store share a reader, and a node with one directory has one store.
		if p.reader = readers[p.s.store]; p.reader == nil {
			if p.reader, err = p.s.store.NewReader(); err != nil {
				return page, err
			}
			readers[p.s.store] = p.reader
		}
		p.names = p.s.store.Names(storage.NameQuery{Range: p.s.id, Last: p.lastSlot(), Table: q.Table, Prefix: q.Prefix, From: q.After, At: p.st.at})
		ok, err := p.next(q)
		if err != nil {
			return page, err
		}
		if ok {
			live = append(live, p)
		}
	}
	heap.Init(&live)
	size := 0
	for absent := 0; len(live) > 0; {
		p := live[0]
		found, err := p.reader.Lookup(p.key, p.st.at)
		switch {
		case err != nil:
			return page, err
		// A name that was deleted, or whose only version is not committed or not of this timestamp.
		case found.Version.IsZero() || found.Tombstone:
			p.names.Absent(p.key)
			if absent++; absent%absentCheck == 0 && ctx.Err() != nil {
				return page, rhumb.WrapKind("host.Host.Scan", rhumb.Canceled, ctx.Err())
			}
		// A page has at least one record, however large, so that a scan always makes progress.
		// The record that is one too many shows that there are more. It is read again for the next page.
		case len(page.Items) == q.Limit || len(page.Items) > 0 && size >= q.BytesMax:
			page.More = true
			return page, nil
		default:
			page.Items = append(page.Items, rhumb.Item{Key: p.key, Version: found.Version, Value: found.Value})
			size += len(found.Value) + len(p.key.Name)
		}
		ok, err := p.next(q)
		switch {
		case err != nil:
			return page, err
		case ok:
			heap.Fix(&live, 0)
		default:
			heap.Pop(&live)
		}
	}
	return page, nil
}
