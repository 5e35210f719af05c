package client

import (
	"context"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Got is a record with the receipt of the answer that brought it.
type Got struct {
	rhumb.Item
	Receipt rhumb.Receipt
}

// Exists reports whether the record was found; only GetMany gives records that were not.
func (g *Got) Exists() bool { return !g.Version.IsZero() }

// Bytes gives the value of a record of opaque bytes.
func (g *Got) Bytes() ([]byte, error) {
	const op rhumb.Op = "client.Got.Bytes"
	b, ok := rhumb.DecodeOpaque(g.Value)
	if !ok {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "the value holds fields, not opaque bytes; use Record")
	}
	return b, nil
}

// Record gives the fields of a record.
func (g *Got) Record() (rhumb.Record, error) { return rhumb.DecodeRecord(g.Value) }

// GetOptions say where a read looks; the zero value follows the rules for homes (see the package comment).
type GetOptions struct {
	// Home is the record's home: the name of a region, or "ID/SLOT" for a key that an insert made.
	Home string
	// Local asks the caller's region only, and fails rather than leave it.
	Local bool
}

// Get reads a record strongly: the answer holds everything that was acknowledged before the call. A record that does not
// exist is an error of kind NotFound.
func (t *Table) Get(ctx context.Context, name []byte, o GetOptions) (Got, error) {
	const op rhumb.Op = "client.Table.Get"
	t.c.m.reads.Add(1)
	got, err := t.get(ctx, op, name, o)
	if err == nil && !got.Exists() {
		err = &rhumb.Error{Op: op, Kind: rhumb.NotFound, Msg: "table " + t.info.Name + " has no record " + rhumb.NameString(name)}
	}
	return got, t.c.ended(err)
}

func (t *Table) get(ctx context.Context, op rhumb.Op, name []byte, o GetOptions) (Got, error) {
	if err := checkName(op, name); err != nil {
		return Got{}, err
	}
	home, fixed, err := t.home(o.Home)
	if err != nil {
		return Got{}, err
	}
	if o.Home != "" || o.Local {
		if o.Home == "" {
			home.Region = t.c.here.ID
		}
		id, err := t.rangeOf(home, fixed, name)
		if err != nil {
			return Got{}, err
		}
		return t.readOne(ctx, op, id, name, o.Local)
	}
	got, err := t.find(ctx, op, name)
	if err == nil && !got.Exists() {
		err = t.c.unknowable(op, name, got.Receipt.Unasked)
	}
	return got, err
}

// unknowable is the error of a call that has to know whether a record exists, which only a dead region could tell.
func (c *Client) unknowable(op rhumb.Op, name []byte, unasked []rhumb.RegionID) error {
	if len(unasked) == 0 {
		return nil
	}
	return rhumb.Ef(op, rhumb.Unavailable, "no living region has %s, and region %s may: all its nodes are dead", rhumb.NameString(name), c.meta.regionName(unasked[0]))
}

func checkName(op rhumb.Op, name []byte) error {
	switch {
	case len(name) == 0:
		return rhumb.E(op, rhumb.InvalidArgument, "the name is empty")
	case len(name) > rhumb.NameSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the name has %d bytes, at most %d are allowed", len(name), rhumb.NameSizeMax)
	}
	return nil
}

// find looks for a record whose home is not given: where it was found before, here, and then everywhere else. A record
// that is nowhere comes back without a version.
func (t *Table) find(ctx context.Context, op rhumb.Op, name []byte) (Got, error) {
	c := t.c
	known, remembered := c.homes.get(t.info.ID, name)
	first := c.here.ID
	if remembered {
		first = known
	}
	id, err := c.meta.named(t, first, name)
	if !remembered && c.meta.isDead(first) {
		return t.search(ctx, op, name, 0)
	}
	if err == nil {
		got, err := t.readOne(ctx, op, id, name, false)
		if err != nil {
			return got, err
		}
		if got.Exists() {
			if remembered && first != c.here.ID {
				c.m.homesKnown.Add(1)
			}
			return got, nil
		}
	}
	return t.search(ctx, op, name, first)
}

// search reads the record in all regions at once but one, which has not got it. The first that has it answers, and is
// remembered.
func (t *Table) search(ctx context.Context, op rhumb.Op, name []byte, except rhumb.RegionID) (Got, error) {
	c := t.c
	s, err := t.survey(op, name, except)
	if err != nil {
		return Got{}, err
	}
	at, err := s.run(ctx, s.read)
	if err != nil {
		return Got{}, err
	}
	got := Got{Receipt: rhumb.Receipt{Region: c.here.ID}}
	switch {
	case at != nil:
		got = at.got
		c.homes.put(t.info.ID, name, got.Key.Home.Region)
	default:
		if n := len(s.asked); n > 0 {
			got = s.asked[n-1].got
		}
		c.homes.forget(t.info.ID, name, 0)
	}
	got.Receipt.Searched, got.Receipt.Unasked = len(s.asked), s.unasked
	return got, nil
}

// twice notes a name that exists in two regions.
func (c *Client) twice(t *Table, name []byte, a, b rhumb.RegionID) {
	c.m.duplicates.Add(1)
	c.log.Warn("a name exists in two regions: it was created in one while the other was dead; delete or rename one of them",
		"table", t.info.Name, "name", rhumb.NameString(name), "region", c.meta.regionName(a), "other", c.meta.regionName(b))
}

// readOne reads one name of one range. A record that does not exist has no version.
func (t *Table) readOne(ctx context.Context, op rhumb.Op, id rhumb.RangeID, name []byte, local bool) (Got, error) {
	items, receipt, err := t.readRange(ctx, op, id, [][]byte{name}, local)
	if err != nil {
		return Got{}, err
	}
	return Got{items[0], receipt}, nil
}

// readRange reads names of one range.
func (t *Table) readRange(ctx context.Context, op rhumb.Op, id rhumb.RangeID, names [][]byte, local bool) ([]rhumb.Item, rhumb.Receipt, error) {
	m := api.EncodeRead(&api.Read{Table: t.info.ID, Range: id, Names: names})
	size := 32
	for _, n := range names {
		size += len(n) + 4
	}
	resp, err := t.c.send(ctx, &errand{
		op: op, id: id, local: local, size: size,
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Read: m} },
	})
	if err != nil {
		return nil, rhumb.Receipt{}, err
	}
	if len(resp.Items) != len(names) {
		return nil, rhumb.Receipt{}, &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: id, Msg: "the node answered with another number of records than was asked for"}
	}
	items := make([]rhumb.Item, len(names))
	for i, it := range resp.Items {
		items[i] = api.DecodeItem(it, t.info.ID, id, names[i])
	}
	return items, api.DecodeReceipt(resp.Receipt), nil
}

// GetMany reads records, each as Get does, with one request per range. The result is in the order of names; a record
// that does not exist is there without a version (Got.Exists). Each record is read strongly, but not all at one moment.
func (t *Table) GetMany(ctx context.Context, names [][]byte, o GetOptions) ([]Got, error) {
	const op rhumb.Op = "client.Table.GetMany"
	t.c.m.reads.Add(1)
	out, err := t.getMany(ctx, op, names, o)
	return out, t.c.ended(err)
}

func (t *Table) getMany(ctx context.Context, op rhumb.Op, names [][]byte, o GetOptions) ([]Got, error) {
	if len(names) > rhumb.BatchOpsMax {
		return nil, rhumb.Ef(op, rhumb.TooLarge, "%d names, at most %d are allowed", len(names), rhumb.BatchOpsMax)
	}
	home, fixed, err := t.home(o.Home)
	if err != nil {
		return nil, err
	}
	open := o.Home == "" && !o.Local
	r := manyReads{t: t, op: op, names: names, local: o.Local, out: make([]Got, len(names))}
	for i, name := range names {
		if err := checkName(op, name); err != nil {
			return nil, err
		}
		at := home
		if o.Home == "" {
			at.Region = t.c.here.ID
			if known, ok := t.c.homes.get(t.info.ID, name); ok && open {
				at.Region = known
			}
		}
		id, err := t.rangeOf(at, fixed, name)
		if err != nil {
			return nil, err
		}
		r.add(id, i)
	}
	asked := r.byRange
	if err := r.run(ctx); err != nil || !open {
		return r.out, err
	}
	if err := r.addMissing(asked); err != nil {
		return nil, err
	}
	return r.out, r.run(ctx)
}

// manyReads is a round of reads, one per range, all at once.
type manyReads struct {
	t        *Table
	op       rhumb.Op
	names    [][]byte
	local    bool
	searched int
	byRange  map[rhumb.RangeID][]int // places in names

	mu  sync.Mutex // guards out while run runs
	out []Got
}

func (r *manyReads) add(id rhumb.RangeID, i int) {
	if r.byRange == nil {
		r.byRange = map[rhumb.RangeID][]int{}
	}
	r.byRange[id] = append(r.byRange[id], i)
}

// addMissing makes the second round: what was not found, in all regions that were not asked for it.
func (r *manyReads) addMissing(asked map[rhumb.RangeID][]int) error {
	regions := r.t.c.meta.regionsWith(r.t.info.Class)
	r.byRange, r.searched = nil, len(regions)-1
	for id, places := range asked {
		for _, i := range places {
			if r.out[i].Exists() {
				continue
			}
			r.t.c.m.searches.Add(1)
			for _, region := range regions {
				if region.ID == id.Region {
					continue
				}
				other, err := r.t.c.meta.named(r.t, region.ID, r.names[i])
				if err != nil {
					return err
				}
				r.add(other, i)
			}
		}
	}
	return nil
}

// run reads every range of the round, and gives the first error.
func (r *manyReads) run(ctx context.Context) error {
	var work sync.WaitGroup
	var failed error
	for id, places := range r.byRange {
		work.Go(func() {
			names := make([][]byte, len(places))
			for j, i := range places {
				names[j] = r.names[i]
			}
			items, receipt, err := r.t.readRange(ctx, r.op, id, names, r.local)
			receipt.Searched = r.searched
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			for j, i := range places {
				if r.out[i].Exists() {
					continue
				}
				r.out[i] = Got{items[j], receipt}
				if r.searched > 0 && r.out[i].Exists() {
					r.t.c.homes.put(r.t.info.ID, names[j], id.Region)
				}
			}
		})
	}
	work.Wait()
	return failed
}

// ended counts a call that ended with err.
func (c *Client) ended(err error) error {
	if err == nil {
		return nil
	}
	switch rhumb.KindOf(err) {
	case rhumb.NotFound, rhumb.ConditionFailed:
	case rhumb.Unknown:
		c.m.unknown.Add(1)
		c.m.errors.Add(1)
	default:
		c.m.errors.Add(1)
	}
	return err
}
