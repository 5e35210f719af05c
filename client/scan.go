package client

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"iter"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// ScanOptions select the records of a scan. The zero value selects all records of the table.
type ScanOptions struct {
	// Prefix selects the names that begin with it.
	Prefix []byte
	// After resumes after a record, given as the result of ScanToken. The empty string starts at
	// the beginning.
	After string
	// Limit bounds the number of records; 0 means no bound.
	Limit int
	// Region is the name of the only home region to scan. The default is all regions.
	Region string
	// Local scans the caller's region only, and fails rather than leave it.
	Local bool
}

// ScanToken returns the position of a record in every scan of its table, for ScanOptions.After.
func ScanToken(it rhumb.Item) string {
	// The home is part of the token, because a name may exist in several homes.
	b := binary.BigEndian.AppendUint32(nil, uint32(it.Key.Home.Region))
	b = binary.BigEndian.AppendUint32(b, uint32(it.Key.Home.Slot))
	return base64.RawURLEncoding.EncodeToString(append(b, it.Key.Name...))
}

// parseToken parses a result of ScanToken.
func parseToken(s string) (home rhumb.RangeID, name []byte, err error) {
	const op rhumb.Op = "client.Table.Scan"
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) < 8 {
		return home, nil, rhumb.Ef(op, rhumb.InvalidArgument, "%.40q is not a scan token; pass one that an earlier scan returned", s)
	}
	// The token is not checked further: one that no record has still is a position in the order.
	home.Region = rhumb.RegionID(binary.BigEndian.Uint32(b))
	home.Slot = rhumb.Slot(binary.BigEndian.Uint32(b[4:]))
	return home, b[8:], nil
}

// Scan returns the records of the table sorted by name, and those with the same name sorted by
// home. An error ends the sequence. Each page of each range is read strongly when it is fetched.
// The scan as a whole does not show one moment: a record that is written during the scan may or may
// not be returned. A record that exists from the beginning to the end is returned exactly once.
//
// The scan covers the ranges in this client's metadata. It may miss a range that another client's
// insert opened a moment ago and that the watch has not delivered yet.
func (t *Table) Scan(ctx context.Context, o ScanOptions) iter.Seq2[rhumb.Item, error] {
	return func(yield func(rhumb.Item, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := t.newScan(ctx, o)
		if err == nil {
			// cancel runs first: fetches of pages that nobody needs must not delay the end.
			defer s.work.Wait()
			defer cancel()
			err = s.run(yield)
		} else {
			cancel()
		}
		if err != nil {
			yield(rhumb.Item{}, t.c.countOutcome(err))
		}
	}
}

// scan merges the ranges of a table. A cursor holds one page, of one range or of several ranges of one node, and fetches the next in the
// background.
type scan struct {
	t   *Table
	o   ScanOptions
	ctx context.Context
	// A page of a range has at most pageRecords records and pageBytes bytes, and one of a node groupRecords and groupBytes.
	pageRecords, pageBytes   int
	groupRecords, groupBytes int
	slots                    chan struct{} // holds a token for each running fetch
	work                     sync.WaitGroup
	cursors                  cursors
	added                    cursors // by coverRest, not in cursors yet
}

// cursor is the position of a scan in one range, or in the ranges of one node that it merges itself.
type cursor struct {
	id    rhumb.RangeID
	last  rhumb.Slot   // the last slot of the range when the cursor began
	group []slotSpan   // the ranges of one node in the region of id, ascending; nil for a cursor of one range
	items []rhumb.Item // of the present page, not yielded yet
	next  chan page    // delivers the next page; nil if none was asked for
	rest  *position    // where the next page begins, if nothing fetches it yet
}

// slotSpan has the first and the last slot of a range, as far as the client knows. The node may know better, and answers with the end of
// each range.
type slotSpan struct{ first, last rhumb.Slot }

// position is a place in the order of a scan: after the record of a name with a home. nil is the beginning. The record need not exist any
// more, nor have existed.
type position struct {
	name []byte
	home rhumb.RangeID
}

// page is the answer to a fetch. With an error it has no records.
type page struct {
	items []rhumb.Item
	more  bool // records follow that a bound of the page left out
	err   error
	// from is where the page begins, and end where the next one does: the last record, also if the page of a range that was merged
	// has records of other cursors, which are not among items.
	from, end *position
	// last is the last slot that the page covers: if the range was split, another cursor covers the slots beyond. ends has the
	// slot after that for each range of a group, and 0 for those that the node did not read.
	last rhumb.Slot
	ends []uint32
}

// cursors is a heap ordered by the next record's name, then its home. No cursor in it is empty.
type cursors []*cursor

func (h cursors) Len() int { return len(h) }
func (h cursors) Less(i, j int) bool {
	c := bytes.Compare(h[i].items[0].Key.Name, h[j].items[0].Key.Name)
	return c < 0 || c == 0 && h[i].items[0].Key.Home.Compare(h[j].items[0].Key.Home) < 0
}
func (h cursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursors) Push(x any)   { *h = append(*h, x.(*cursor)) }
func (h *cursors) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// newScan starts fetching the first page of every cursor of a scan.
func (t *Table) newScan(ctx context.Context, o ScanOptions) (*scan, error) {
	const op rhumb.Op = "client.Table.Scan"
	if len(o.Prefix) > rhumb.NameSizeMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "the prefix has %d bytes; the limit is %d", len(o.Prefix), rhumb.NameSizeMax)
	}
	if o.Limit < 0 {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "the limit is %d, but must be 0 or more", o.Limit)
	}
	var from *position
	if o.After != "" {
		home, after, err := parseToken(o.After)
		if err != nil {
			return nil, err
		}
		from = &position{after, home}
	}
	ranges, err := t.rangesToScan(o)
	if err != nil {
		return nil, err
	}
	s := &scan{t: t, o: o, ctx: ctx, slots: make(chan struct{}, scanFetchMax)}
	s.cursors = t.cursorsOf(ranges, o.Limit)
	s.sizePages(len(ranges))
	// All cursors fetch at once; slots bounds how many fetches run.
	for _, c := range s.cursors {
		s.startAt(c, from)
	}
	return s, nil
}

// cursorsOf returns the cursors of a scan. One with a small limit asks each node once, which merges its ranges: of the pages of 64 ranges, most
// records would be read for nothing. Others ask each range, whose long pages a node reads faster than it merges.
func (t *Table) cursorsOf(ranges []*rhumb.Range, limit int) (out cursors) {
	type place struct {
		region rhumb.RegionID
		node   rhumb.NodeID
	}
	// By the primaries that this client knows. A node that is not the primary any more leaves the range out.
	groups := map[place]*cursor{}
	for _, r := range ranges {
		c := &cursor{id: r.ID, last: r.LastSlot()}
		at := place{r.ID.Region, r.Primary}
		if g := groups[at]; g != nil && len(g.group) < rhumb.ScanRangesMax {
			g.group = append(g.group, slotSpan{c.id.Slot, c.last})
			continue
		}
		if limit > 0 && limit <= rhumb.ScanPageMax && r.Primary != rhumb.NoNode {
			c.group = []slotSpan{{c.id.Slot, c.last}}
			groups[at] = c
		}
		out = append(out, c)
	}
	// A request for one range can be forwarded, and waits for its primary.
	for _, c := range out {
		if len(c.group) == 1 {
			c.group = nil
		}
	}
	return out
}

// sizePages sets the sizes of pages. A cursor of one range gets the page of a scan range by range, also in a scan of nodes: it reads a
// range that a node has left out, and those are few.
//
// Each cursor holds up to two: the present one and the next.
func (s *scan) sizePages(ranges int) {
	// share is the part of one of n cursors.
	share := func(n int) (records, bytes int) {
		n = max(n, 1)
		records, bytes = rhumb.ScanPageMax, min(rhumb.ScanPageBytes, max(scanBytesMax/(2*n), 16<<10))
		if limit := s.o.Limit; limit > 0 {
			records = min(records, limit)
			// The limit is spread, with room for an uneven distribution. Most of the records of all pages are read for nothing,
			// so the room is small.
			if n > 1 {
				records = min(records, limit/n*2+scanSpare+2)
			}
		}
		return records, bytes
	}
	s.pageRecords, s.pageBytes = share(ranges)
	s.groupRecords, s.groupBytes = share(len(s.cursors))
}

// startAt starts fetching the first page of a cursor after a position, which may be that of a record in another range or region: tokens of a
// scan of all regions are accepted by a scan of one.
//
// Records with the name of the position follow it only in later homes. A request to a node that merges ranges has the home; a request for one range
// begins after the name, so a record that it would skip is read before.
func (s *scan) startAt(c *cursor, from *position) {
	if from == nil || c.group != nil {
		s.fetchAfter(c, from)
		return
	}
	// The name has one home in a range. Another range of named keys does not have it.
	at := s.t.HomeIn(c.id, from.name)
	holds := at.Region == c.id.Region && at.Slot >= c.id.Slot && at.Slot <= c.last
	if at.Compare(from.home) <= 0 || !holds {
		s.fetchAfter(c, from)
	} else {
		s.fetchFrom(c, from) // a record of the same name in a later home is after the position
	}
}

// rangesToScan returns the ranges that may hold records of a scan.
func (t *Table) rangesToScan(o ScanOptions) ([]*rhumb.Range, error) {
	only := rhumb.RegionID(0)
	switch {
	case o.Region != "":
		r, err := t.c.meta.regionByName(o.Region)
		if err != nil {
			return nil, err
		}
		only = r.ID
	case o.Local:
		only = t.c.here.ID
	}
	ranges := t.c.meta.sortedRanges(func(r *rhumb.Range) bool {
		// A range that is reserved for a split holds nothing yet.
		return r.Class == t.info.Class && r.Birth == 0 && (only == 0 || r.ID.Region == only)
	})
	// A prefix with the colocate byte contains the whole hashed part of its names.
	oneSlot := t.info.Colocate != 0 && bytes.IndexByte(o.Prefix, t.info.Colocate) >= 0
	var out []*rhumb.Range
	for _, r := range ranges {
		b, ok := t.c.meta.hashBlock(t, r.ID.Region)
		// Ranges of hash slots hold named keys, the others hold keys that the server named.
		hashed := ok && b.Contains(r.ID.Slot)
		switch {
		case hashed && oneSlot && !r.Holds(t.HomeIn(r.ID, o.Prefix)):
			continue // all names with this prefix hash to another slot
		case !hashed && len(o.Prefix) > rhumb.SequenceNameSize:
			continue // names that the server assigns are shorter
		}
		out = append(out, r)
	}
	return out, nil
}

// run yields records until the end, the limit or an error.
func (s *scan) run(yield func(rhumb.Item, error) bool) error {
	// The first record of every range must be known before the first record of the scan is.
	live := s.cursors[:0]
	for _, c := range s.cursors {
		ok, err := s.nextPage(c)
		if err != nil {
			return err
		}
		if ok {
			live = append(live, c)
		}
	}
	s.cursors = append(live, s.added...)
	s.added = nil
	heap.Init(&s.cursors)
	for n := 0; len(s.cursors) > 0 && (s.o.Limit == 0 || n < s.o.Limit); n++ {
		c := s.cursors[0]
		// The top of the heap is the least record of all ranges.
		if !yield(c.items[0], nil) {
			return nil
		}
		c.items = c.items[1:]
		if len(c.items) == 0 {
			ok, err := s.nextPage(c)
			if err != nil {
				return err
			}
			if ok {
				heap.Fix(&s.cursors, 0)
			} else {
				heap.Pop(&s.cursors)
			}
			for _, more := range s.added {
				heap.Push(&s.cursors, more)
			}
			s.added = nil
			continue
		}
		// The cursor has a later record now, so its place in the heap may have changed.
		heap.Fix(&s.cursors, 0)
	}
	return nil
}

// nextPage waits for a cursor's next page, and without a limit starts fetching the one after it. It returns false at
// the end of the cursor.
func (s *scan) nextPage(c *cursor) (bool, error) {
	for c.next != nil || c.rest != nil {
		if c.next == nil {
			s.fetchAfter(c, c.rest)
			c.rest = nil
		}
		p := <-c.next
		c.next = nil
		if p.err == nil {
			p.err = s.coverRest(c, &p)
		}
		// An error of one range ends the scan: leaving its records out would look like a complete
		// result.
		if p.err != nil {
			return false, p.err
		}
		c.items = c.ownItems(p.items)
		switch {
		case !p.more || p.end == nil:
		case s.o.Limit > 0:
			// Few of the cursors of a scan with a limit need a second page.
			c.rest = p.end
		default:
			// The next page is fetched while this one is used.
			s.fetchAfter(c, p.end)
		}
		if len(c.items) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// ownItems returns the records that belong to the cursor. A range that was merged with another one returns the records of both, and another
// cursor covers the other one.
func (c *cursor) ownItems(items []rhumb.Item) []rhumb.Item {
	return slices.DeleteFunc(items, func(it rhumb.Item) bool {
		slot := it.Key.Home.Slot
		if c.group == nil {
			return slot < c.id.Slot || slot > c.last
		}
		i, found := slices.BinarySearchFunc(c.group, slot, func(g slotSpan, slot rhumb.Slot) int { return cmp.Compare(g.first, slot) })
		return !found && (i == 0 || slot > c.group[i-1].last)
	})
}

// coverRest adds cursors for the slots that a page did not cover: because a range was split meanwhile, or because a node does not serve a
// range that it was asked for. The new cursors begin where the page began, so their first pages must be known before the
// next record is yielded.
func (s *scan) coverRest(c *cursor, p *page) error {
	var rest []*cursor
	add := func(first, last rhumb.Slot) {
		rest = append(rest, &cursor{id: rhumb.RangeID{Region: c.id.Region, Slot: first}, last: last})
	}
	switch {
	case c.group != nil:
		c.cover(p, add)
	case p.last != 0 && p.last < c.last:
		// The old range serves the slots up to the split until the scan ends.
		add(p.last+1, c.last)
		c.last = p.last
	}
	// All at once: a node that is not the primary of anything any more leaves all of its ranges to them.
	for _, more := range rest {
		s.startAt(more, p.from)
	}
	for _, more := range rest {
		// Another split of the other part adds a further cursor there.
		ok, err := s.nextPage(more)
		if err != nil {
			return err
		}
		if ok {
			s.added = append(s.added, more)
		}
	}
	return nil
}

// cover leaves the covered slots in a group, and calls add for the others. A page has an end for each range that was asked
// for, in the order of the request: those that the node did not serve at that moment, and those parts that were split off, are read
// by cursors of their own from then on.
func (c *cursor) cover(p *page, add func(first, last rhumb.Slot)) {
	if len(p.ends) != len(c.group) {
		// A node of an earlier release read the first range only, and perhaps not from the right position.
		p.items, p.more = nil, false
		p.ends = make([]uint32, len(c.group))
	}
	// In place: the group never grows.
	covered := c.group[:0]
	for i, g := range c.group {
		// The end may be beyond the last slot that this client knows, if the range was merged: ownItems drops the records there.
		end := rhumb.Slot(p.ends[i])
		if end > g.first {
			covered = append(covered, slotSpan{g.first, min(g.last, end-1)})
		}
		if end <= g.last {
			add(max(g.first, end), g.last)
		}
	}
	if c.group = covered; len(covered) == 0 {
		p.items, p.more = nil, false
	}
}

// fetchAfter starts fetching a cursor's next page: the records after a position, or from the beginning
// if it is nil. A cursor of one range continues after the name.
func (s *scan) fetchAfter(c *cursor, from *position) {
	s.startFetch(c, func() page { return s.fetchPage(c, from) })
}

// fetchFrom is like fetchAfter for a cursor of one range but includes the record with the name itself. Requests for one range have no
// such option, so the record is read.
func (s *scan) fetchFrom(c *cursor, from *position) {
	s.startFetch(c, func() page {
		const op rhumb.Op = "client.Table.Scan"
		got, err := s.t.readOne(s.ctx, op, s.t.HomeIn(c.id, from.name), from.name, readOptions{local: s.o.Local})
		if err != nil {
			return page{err: err}
		}
		// The token may be of a scan with another prefix, so the record is checked like one of a
		// page.
		p := s.fetchPage(c, from)
		if got.Exists() && bytes.HasPrefix(from.name, s.o.Prefix) {
			p.items = append([]rhumb.Item{got.Item}, p.items...)
		}
		return p
	})
}

// startFetch runs fetch in the background as soon as fewer than scanFetchMax fetches run.
func (s *scan) startFetch(c *cursor, fetch func() page) {
	next := make(chan page, 1) // so that the goroutine ends if nobody needs the page
	c.next = next
	s.work.Go(func() {
		select {
		case s.slots <- struct{}{}:
			// A fetch that waits for a slot ends with the scan; one that runs ends with its
			// request.
			next <- fetch()
			<-s.slots
		case <-s.ctx.Done():
			next <- page{err: rhumb.WrapKind("client.Table.Scan", kindOfContext(s.ctx.Err()), s.ctx.Err())}
		}
	})
}

// fetchPage reads the records of a cursor after a position. It runs in the background, and reads the group of the cursor: nothing changes a
// group while a page is being fetched for it.
func (s *scan) fetchPage(c *cursor, from *position) page {
	const op rhumb.Op = "client.Table.Scan"
	s.t.c.m.reads.Add(1)
	q := api.Scan{Table: s.t.info.ID, Range: c.id, Prefix: s.o.Prefix, Limit: s.pageRecords, BytesMax: s.pageBytes}
	if from != nil {
		q.After = from.name
	}
	if c.group != nil {
		q.Limit, q.BytesMax = s.groupRecords, s.groupBytes
		// The first range may be covered by another cursor by now. The request goes to the primary of the first one that is left, which
		// is that of the others too unless one has moved.
		q.Range.Slot = c.group[0].first
		for _, g := range c.group {
			q.Ranges = append(q.Ranges, rhumb.RangeID{Region: c.id.Region, Slot: g.first})
		}
		if from != nil {
			q.AfterHome = from.home
		}
	}
	m := api.EncodeScan(&q)
	resp, err := s.t.c.send(s.ctx, &request{
		op: op, id: q.Range, local: s.o.Local, size: 64 + len(s.o.Prefix) + len(q.After) + 4*len(q.Ranges),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Scan: m} },
	})
	if err != nil {
		return page{err: err}
	}
	// Items do not carry the keys' tables and homes, which are those of the request.
	p := page{more: resp.More, items: make([]rhumb.Item, len(resp.Items)), last: rhumb.Slot(resp.Last), ends: resp.Ends, from: from}
	for i, it := range resp.Items {
		p.items[i] = api.DecodeItem(it, s.t.info.ID, q.Range, nil)
	}
	if n := len(p.items); n > 0 {
		p.end = &position{p.items[n-1].Key.Name, p.items[n-1].Key.Home}
	}
	return p
}
