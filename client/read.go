package client

import (
	"context"

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
	if c.meta.isDead(first) {
		return t.search(ctx, op, name, 0)
	}
	if err == nil {
		got, err := t.readAlive(ctx, op, id, name)
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
		if len(s.unasked) == 0 { // else its home may be a dead region
			c.homes.forget(t.info.ID, name, 0)
		}
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
	items, receipt, err := t.readRange(ctx, op, id, [][]byte{name}, readOptions{local: local})
	if err != nil {
		return Got{}, err
	}
	return Got{items[0], receipt}, nil
}

// readAlive is readOne that fails at once when the region is dead.
func (t *Table) readAlive(ctx context.Context, op rhumb.Op, id rhumb.RangeID, name []byte) (Got, error) {
	items, receipt, err := t.readRange(ctx, op, id, [][]byte{name}, readOptions{alive: true})
	if err != nil {
		return Got{}, err
	}
	return Got{items[0], receipt}, nil
}

// readOptions are an errand's local and alive.
type readOptions struct{ local, alive bool }

// readRange reads names of one range.
func (t *Table) readRange(ctx context.Context, op rhumb.Op, id rhumb.RangeID, names [][]byte, o readOptions) ([]rhumb.Item, rhumb.Receipt, error) {
	m := api.EncodeRead(&api.Read{Table: t.info.ID, Range: id, Names: names})
	size := 32
	for _, n := range names {
		size += len(n) + 4
	}
	resp, err := t.c.send(ctx, &errand{
		op: op, id: id, local: o.local, alive: o.alive, size: size,
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
