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

// ScanOptions say which records a scan gives; the zero value gives all of the table.
type ScanOptions struct {
	// Prefix is what the names begin with; empty is all.
	Prefix []byte
	// After resumes behind a record: what ScanToken gave of it. Empty begins at the beginning.
	After string
	// Limit bounds the records; 0 is no bound.
	Limit int
	// Region is the name of the only home region to look at. Default: all.
	Region string
	// Local looks at the caller's region only, and fails rather than leave it.
	Local bool
}

// ScanToken gives the place of a record in every scan of its table, for ScanOptions.After.
func ScanToken(it rhumb.Item) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(it.Key.Home.Region))
	b = binary.BigEndian.AppendUint32(b, uint32(it.Key.Home.Slot))
	return base64.RawURLEncoding.EncodeToString(append(b, it.Key.Name...))
}

func parseToken(s string) (home rhumb.RangeID, name []byte, err error) {
	const op rhumb.Op = "client.Table.Scan"
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) < 8 {
		return home, nil, rhumb.Ef(op, rhumb.InvalidArgument, "%.40q is no place in a scan; give what ScanToken gave", s)
	}
	home.Region = rhumb.RegionID(binary.BigEndian.Uint32(b))
	home.Slot = rhumb.Slot(binary.BigEndian.Uint32(b[4:]))
	return home, b[8:], nil
}

// Scan gives the records of the table in the order of their names, and those of one name in the order of their homes. An
// error ends it. Each page of each range is read strongly when it is fetched; the whole is not of one moment: what is
// written meanwhile may or may not be seen, and everything that exists from the beginning to the end is seen exactly once.
func (t *Table) Scan(ctx context.Context, o ScanOptions) iter.Seq2[rhumb.Item, error] {
	return func(yield func(rhumb.Item, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		s, err := t.newScan(ctx, o)
		if err == nil {
			defer s.work.Wait()
			defer cancel()
			err = s.run(yield)
		} else {
			cancel()
		}
		if err != nil {
			yield(rhumb.Item{}, t.c.ended(err))
		}
	}
}

// scan merges the ranges of a table. Each range has a cursor, which holds one page and fetches the next meanwhile.
type scan struct {
	t        *Table
	o        ScanOptions
	ctx      context.Context
	page     int // records of a page
	pageSize int // bytes of a page
	slots    chan struct{}
	work     sync.WaitGroup
	cursors  cursors
}

// cursor is the place of a scan in one range.
type cursor struct {
	id    rhumb.RangeID
	items []rhumb.Item // the page, from the place on
	next  chan page    // the page after, on its way; nil after the last
}

type page struct {
	items []rhumb.Item
	more  bool
	err   error
}

// cursors is a heap by the next record's name, then home.
type cursors []*cursor

func (h cursors) Len() int { return len(h) }
func (h cursors) Less(i, j int) bool {
	c := bytes.Compare(h[i].items[0].Key.Name, h[j].items[0].Key.Name)
	return c < 0 || c == 0 && h[i].id.Compare(h[j].id) < 0
}
func (h cursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursors) Push(x any)   { *h = append(*h, x.(*cursor)) }
func (h *cursors) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (t *Table) newScan(ctx context.Context, o ScanOptions) (*scan, error) {
	const op rhumb.Op = "client.Table.Scan"
	if len(o.Prefix) > rhumb.NameSizeMax || o.Limit < 0 {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "want a prefix of at most %d bytes and a limit of 0 or more", rhumb.NameSizeMax)
	}
	var home rhumb.RangeID
	var after []byte
	if o.After != "" {
		var err error
		if home, after, err = parseToken(o.After); err != nil {
			return nil, err
		}
	}
	ids, err := t.scanned(o)
	if err != nil {
		return nil, err
	}
	s := &scan{t: t, o: o, ctx: ctx, slots: make(chan struct{}, scanFetchMax)}
	n := max(len(ids), 1)
	s.page, s.pageSize = rhumb.ScanPageMax, min(rhumb.ScanPageBytes, max(scanBytesMax/(2*n), 16<<10))
	if o.Limit > 0 {
		s.page = min(s.page, 2*o.Limit/n+16, o.Limit)
	}
	for _, id := range ids {
		c := &cursor{id: id}
		switch {
		case o.After == "":
			s.fetch(c, nil)
		case id.Compare(home) <= 0:
			s.fetch(c, after)
		default:
			s.fetchFrom(c, after) // the same name in a later home comes after the token
		}
		s.cursors = append(s.cursors, c)
	}
	return s, nil
}

// scanned lists the ranges that may hold records of a scan.
func (t *Table) scanned(o ScanOptions) ([]rhumb.RangeID, error) {
	only := rhumb.RegionID(0)
	switch {
	case o.Region != "":
		r, err := t.c.meta.region(o.Region)
		if err != nil {
			return nil, err
		}
		only = r.ID
	case o.Local:
		only = t.c.here.ID
	}
	ranges := t.c.meta.sortedRanges(func(r *rhumb.Range) bool {
		return r.Class == t.info.Class && (only == 0 || r.ID.Region == only)
	})
	oneSlot := t.info.Colocate != 0 && bytes.IndexByte(o.Prefix, t.info.Colocate) >= 0
	var ids []rhumb.RangeID
	for _, r := range ranges {
		t.c.meta.mu.RLock()
		first, ok := t.c.meta.hash[blockOwner{r.ID.Region, t.info.Class}]
		t.c.meta.mu.RUnlock()
		hashed := ok && rhumb.Block{First: first}.Contains(r.ID.Slot)
		switch {
		case hashed && oneSlot && r.ID.Slot != first+t.slotOf(t.info.Colocate, o.Prefix):
			continue // all names with this prefix hash elsewhere
		case !hashed && len(o.Prefix) > rhumb.SequenceNameSize:
			continue // server-assigned names are shorter
		}
		ids = append(ids, r.ID)
	}
	return ids, nil
}

// run yields until the end, the limit or an error.
func (s *scan) run(yield func(rhumb.Item, error) bool) error {
	live := s.cursors[:0]
	for _, c := range s.cursors {
		ok, err := s.advance(c)
		if err != nil {
			return err
		}
		if ok {
			live = append(live, c)
		}
	}
	s.cursors = live
	heap.Init(&s.cursors)
	for n := 0; len(s.cursors) > 0 && (s.o.Limit == 0 || n < s.o.Limit); n++ {
		c := s.cursors[0]
		if !yield(c.items[0], nil) {
			return nil
		}
		c.items = c.items[1:]
		if len(c.items) == 0 {
			ok, err := s.advance(c)
			if err != nil {
				return err
			}
			if !ok {
				heap.Pop(&s.cursors)
				continue
			}
		}
		heap.Fix(&s.cursors, 0)
	}
	return nil
}

// advance waits for a cursor's next page and lets the one after come. It is false at the end of the range.
func (s *scan) advance(c *cursor) (bool, error) {
	for c.next != nil {
		p := <-c.next
		c.next = nil
		if p.err != nil {
			return false, p.err
		}
		c.items = p.items
		if p.more && len(p.items) > 0 {
			s.fetch(c, p.items[len(p.items)-1].Key.Name)
		}
		if len(c.items) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// fetch lets a cursor's next page come: what follows a name, or begins the range.
func (s *scan) fetch(c *cursor, after []byte) {
	s.later(c, func() page { return s.fetchPage(c.id, after) })
}

// fetchFrom is fetch with the name itself included.
func (s *scan) fetchFrom(c *cursor, name []byte) {
	s.later(c, func() page {
		const op rhumb.Op = "client.Table.Scan"
		got, err := s.t.readOne(s.ctx, op, c.id, name, s.o.Local)
		if err != nil {
			return page{err: err}
		}
		p := s.fetchPage(c.id, name)
		if got.Exists() && bytes.HasPrefix(name, s.o.Prefix) {
			p.items = append([]rhumb.Item{got.Item}, p.items...)
		}
		return p
	})
}

func (s *scan) later(c *cursor, get func() page) {
	next := make(chan page, 1)
	c.next = next
	s.work.Go(func() {
		select {
		case s.slots <- struct{}{}:
			next <- get()
			<-s.slots
		case <-s.ctx.Done():
			next <- page{err: rhumb.WrapKind("client.Table.Scan", kindOfContext(s.ctx.Err()), s.ctx.Err())}
		}
	})
}

func (s *scan) fetchPage(id rhumb.RangeID, after []byte) page {
	const op rhumb.Op = "client.Table.Scan"
	s.t.c.m.reads.Add(1)
	m := api.EncodeScan(&api.Scan{
		Table: s.t.info.ID, Range: id, Prefix: s.o.Prefix, After: after, Limit: s.page, BytesMax: s.pageSize,
	})
	resp, err := s.t.c.send(s.ctx, &errand{
		op: op, id: id, local: s.o.Local, size: 64 + len(s.o.Prefix) + len(after),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Scan: m} },
	})
	if err != nil {
		return page{err: err}
	}
	p := page{more: resp.More, items: make([]rhumb.Item, len(resp.Items))}
	for i, it := range resp.Items {
		p.items[i] = api.DecodeItem(it, s.t.info.ID, id, nil)
	}
	return p
}
