package client

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"iter"
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

// scan merges the ranges of a table. Each range has a cursor, which holds one page and fetches the
// next in the background.
type scan struct {
	t   *Table
	o   ScanOptions
	ctx context.Context
	// A page has at most this many records and bytes.
	pageRecords, pageBytes int
	slots                  chan struct{} // holds a token for each running fetch
	work                   sync.WaitGroup
	cursors                cursors
	added                  cursors // by coverSplit, not in cursors yet
}

// cursor is the position of a scan in one range.
type cursor struct {
	id    rhumb.RangeID
	last  rhumb.Slot   // the last slot of the range when the cursor began
	items []rhumb.Item // of the present page, not yielded yet
	next  chan page    // delivers the next page; nil if none was asked for
	rest  []byte       // the name after which the next page begins, if it is fetched only when needed
}

type page struct {
	items []rhumb.Item
	more  bool
	err   error
	// last is the last slot that the page covers, and after the name that it begins after: if the range was
	// split, another cursor covers the slots beyond.
	last  rhumb.Slot
	after []byte
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

// newScan starts fetching the first page of every range of a scan.
func (t *Table) newScan(ctx context.Context, o ScanOptions) (*scan, error) {
	const op rhumb.Op = "client.Table.Scan"
	if len(o.Prefix) > rhumb.NameSizeMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "the prefix has %d bytes; the limit is %d", len(o.Prefix), rhumb.NameSizeMax)
	}
	if o.Limit < 0 {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "the limit is %d, but must be 0 or more", o.Limit)
	}
	var home rhumb.RangeID
	var after []byte
	if o.After != "" {
		var err error
		if home, after, err = parseToken(o.After); err != nil {
			return nil, err
		}
	}
	ranges, err := t.rangesToScan(o)
	if err != nil {
		return nil, err
	}
	s := &scan{t: t, o: o, ctx: ctx, slots: make(chan struct{}, scanFetchMax)}
	n := max(len(ranges), 1)
	// Each cursor holds up to two pages: the present one and the next.
	s.pageRecords, s.pageBytes = rhumb.ScanPageMax, min(rhumb.ScanPageBytes, max(scanBytesMax/(2*n), 16<<10))
	if o.Limit > 0 {
		// The limit is spread over the ranges, with room for an uneven distribution. Most of the
		// records of all pages are read for nothing, so the room is small.
		s.pageRecords = min(s.pageRecords, 2*o.Limit/n+scanSpare, o.Limit)
	}
	// All ranges are fetched at once; slots bounds how many fetches run.
	for _, r := range ranges {
		c := &cursor{id: r.ID, last: r.LastSlot()}
		// The name has one home in a range. Another range of named keys does not have it.
		at := t.HomeIn(r.ID, after)
		switch {
		case o.After == "":
			s.fetchAfter(c, nil)
		case at.Compare(home) <= 0 || !r.Holds(at):
			s.fetchAfter(c, after)
		default:
			s.fetchFrom(c, after) // a record of the same name in a later home is after the token
		}
		s.cursors = append(s.cursors, c)
	}
	return s, nil
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
// the end of the range.
func (s *scan) nextPage(c *cursor) (bool, error) {
	for c.next != nil || c.rest != nil {
		if c.next == nil {
			s.fetchAfter(c, c.rest)
			c.rest = nil
		}
		p := <-c.next
		c.next = nil
		if p.err == nil {
			p.err = s.coverSplit(c, &p)
		}
		// An error of one range ends the scan: leaving its records out would look like a complete
		// result.
		if p.err != nil {
			return false, p.err
		}
		c.items = p.items
		if p.more && len(p.items) > 0 {
			after := p.items[len(p.items)-1].Key.Name
			if s.o.Limit > 0 {
				// Few of the ranges of a scan with a limit need a second page.
				c.rest = after
			} else {
				// The next page is fetched while this one is used.
				s.fetchAfter(c, after)
			}
		}
		if len(c.items) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// coverSplit adds a cursor for the slots that a page did not cover because the range of its cursor was
// split meanwhile. The new cursor begins where the page began, so its first page must be known before the
// next record is yielded.
func (s *scan) coverSplit(c *cursor, p *page) error {
	if p.last == 0 || p.last >= c.last {
		return nil
	}
	beyond := &cursor{id: rhumb.RangeID{Region: c.id.Region, Slot: p.last + 1}, last: c.last}
	c.last = p.last
	s.fetchAfter(beyond, p.after)
	// Another split of the other part adds a further cursor there.
	ok, err := s.nextPage(beyond)
	if ok {
		s.added = append(s.added, beyond)
	}
	return err
}

// fetchAfter starts fetching a cursor's next page: the records after a name, or from the beginning
// of the range if name is nil.
func (s *scan) fetchAfter(c *cursor, name []byte) {
	s.startFetch(c, func() page { return s.fetchPage(c.id, name) })
}

// fetchFrom is like fetchAfter but includes the record with the name itself. Scan requests have no
// such option, so the record is read.
func (s *scan) fetchFrom(c *cursor, name []byte) {
	s.startFetch(c, func() page {
		const op rhumb.Op = "client.Table.Scan"
		got, err := s.t.readOne(s.ctx, op, s.t.HomeIn(c.id, name), name, readOptions{local: s.o.Local})
		if err != nil {
			return page{err: err}
		}
		// The token may be of a scan with another prefix, so the record is checked like one of a
		// page.
		p := s.fetchPage(c.id, name)
		if got.Exists() && bytes.HasPrefix(name, s.o.Prefix) {
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

// fetchPage reads the records of a range after a name.
func (s *scan) fetchPage(id rhumb.RangeID, after []byte) page {
	const op rhumb.Op = "client.Table.Scan"
	s.t.c.m.reads.Add(1)
	m := api.EncodeScan(&api.Scan{
		Table: s.t.info.ID, Range: id, Prefix: s.o.Prefix, After: after, Limit: s.pageRecords, BytesMax: s.pageBytes,
	})
	resp, err := s.t.c.send(s.ctx, &request{
		op: op, id: id, local: s.o.Local, size: 64 + len(s.o.Prefix) + len(after),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Scan: m} },
	})
	if err != nil {
		return page{err: err}
	}
	// Items do not carry the keys' tables and homes, which are those of the request.
	p := page{more: resp.More, items: make([]rhumb.Item, len(resp.Items)), last: rhumb.Slot(resp.Last), after: after}
	for i, it := range resp.Items {
		p.items[i] = api.DecodeItem(it, s.t.info.ID, id, nil)
	}
	return p
}
