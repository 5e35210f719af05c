package client

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Got is a record with the receipt of the answer that delivered it.
type Got struct {
	rhumb.Item
	Receipt rhumb.Receipt
}

// Exists reports whether the record was found. Only GetMany returns records that were not.
func (g *Got) Exists() bool { return !g.Version.IsZero() }

// Bytes returns the value of a record of opaque bytes.
func (g *Got) Bytes() ([]byte, error) {
	const op rhumb.Op = "client.Got.Bytes"
	b, ok := rhumb.DecodeOpaque(g.Value)
	if !ok {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "the value holds fields, not opaque bytes; read it as a record")
	}
	return b, nil
}

// Record returns the fields of a record.
func (g *Got) Record() (rhumb.Record, error) { return rhumb.DecodeRecord(g.Value) }

// GetOptions select where a read looks. The zero value follows the rules for homes in the package
// comment.
type GetOptions struct {
	// Home is the record's home: the name of a region, or "ID/SLOT" for the key of an insert.
	Home string
	// Local asks the caller's region only, and fails rather than leave it.
	Local bool
}

// Get reads a record strongly: the answer reflects everything that was acknowledged before the
// call. If the record does not exist, the error has kind NotFound.
func (t *Table) Get(ctx context.Context, name []byte, o GetOptions) (Got, error) {
	const op rhumb.Op = "client.Table.Get"
	t.c.m.reads.Add(1)
	got, err := t.getRecord(ctx, op, name, o)
	// Every region that may have the record has answered: silent and dead regions are errors.
	if err == nil && !got.Exists() {
		err = &rhumb.Error{Op: op, Kind: rhumb.NotFound, Msg: "table " + t.info.Name + " has no record " + rhumb.NameString(name)}
	}
	return got, t.c.countOutcome(err)
}

// getRecord is Get without the metrics. A record that does not exist has no version.
func (t *Table) getRecord(ctx context.Context, op rhumb.Op, name []byte, o GetOptions) (Got, error) {
	if err := checkName(op, name); err != nil {
		return Got{}, err
	}
	home, fixed, err := t.parseHome(o.Home)
	if err != nil {
		return Got{}, err
	}
	// The caller decides where to look, so a miss there is the answer.
	if o.Home != "" || o.Local {
		if o.Home == "" {
			home.Region = t.c.here.ID
		}
		id, err := t.homeOf(home, fixed, name)
		if err != nil {
			return Got{}, err
		}
		return t.readOne(ctx, op, id, name, readOptions{local: o.Local})
	}
	got, err := t.findRecord(ctx, op, name, readOptions{alive: true})
	if err == nil && !got.Exists() {
		// "Not found" would be a guess if a dead region was not asked.
		err = t.c.unknownIfUnasked(op, name, got.Receipt.Unasked)
	}
	return got, err
}

// unknownIfUnasked returns an error if a call has to know whether a record exists and only regions
// that were not asked, because they are dead, know.
func (c *Client) unknownIfUnasked(op rhumb.Op, name []byte, unasked []rhumb.RegionID) error {
	if len(unasked) == 0 {
		return nil
	}
	return rhumb.Ef(op, rhumb.Unavailable, "no living region has %s, but region %s may have it: all nodes there are dead", rhumb.NameString(name), c.meta.regionName(unasked[0]))
}

// checkName refuses names that no node would accept, before anything is sent.
func checkName(op rhumb.Op, name []byte) error {
	switch {
	case len(name) == 0:
		return rhumb.Ef(op, rhumb.InvalidArgument, "the name is empty; names have 1 to %d bytes", rhumb.NameSizeMax)
	case len(name) > rhumb.NameSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the name has %d bytes; names have 1 to %d bytes", len(name), rhumb.NameSizeMax)
	}
	return nil
}

// findRecord looks for a record whose home the caller did not name: in its cached home or else the
// caller's region, and then in all other regions. A record that is in no region has no version.
func (t *Table) findRecord(ctx context.Context, op rhumb.Op, name []byte, o readOptions) (Got, error) {
	c := t.c
	cached, isCached := c.homes.get(t.info.ID, name)
	// A cached home saves the search. If it is old, the search finds the record elsewhere.
	near := c.regionFor(t)
	first := near
	if isCached {
		first = cached
	}
	id, err := c.meta.homeOfName(t, first, name)
	if c.meta.isDead(first, t.info.Class) {
		// No region is excluded, so that the result lists the dead one as unasked.
		return t.searchRegions(ctx, op, name, 0, o)
	}
	// An error means that the region has no slots for the table, so the record cannot be there.
	if err == nil {
		got, err := t.readOne(ctx, op, id, name, o)
		if err != nil {
			return got, err
		}
		if got.Exists() {
			// A cached home that is the region asked first in any case saved nothing.
			if isCached && first != near {
				c.m.homesKnown.Add(1)
			}
			return got, nil
		}
	}
	// first has just answered that it does not have the record.
	return t.searchRegions(ctx, op, name, first, o)
}

// searchRegions reads a record in all regions at once, except one that is known not to have it. The
// answer is that of the first region that has the record, whose home is then cached.
func (t *Table) searchRegions(ctx context.Context, op rhumb.Op, name []byte, except rhumb.RegionID, o readOptions) (Got, error) {
	c := t.c
	s, err := t.planSurvey(op, name, except)
	if err != nil {
		return Got{}, err
	}
	s.read = o
	at, err := s.run(ctx, s.readPlace)
	if err != nil {
		return Got{}, err
	}
	got := Got{Receipt: rhumb.Receipt{Region: c.here.ID}}
	switch {
	case at != nil:
		// A strong read of the region that has the record, so its value needs no second read.
		got = at.got
		c.homes.put(t.info.ID, name, got.Key.Home.Region)
	default:
		if n := len(s.asked); n > 0 {
			got = s.asked[n-1].got // for its receipt
		}
		if len(s.unasked) == 0 { // otherwise its home may be a dead region
			c.homes.forget(t.info.ID, name, 0)
		}
	}
	got.Receipt.Searched, got.Receipt.Unasked = len(s.asked), s.unasked
	return got, nil
}

// reportDuplicate counts and logs a name that exists in two regions.
func (c *Client) reportDuplicate(t *Table, name []byte, a, b rhumb.RegionID) {
	c.m.duplicates.Add(1)
	c.log.Warn("a name exists in two regions: it was created in one while the other was dead; delete or rename one of the records",
		"table", t.info.Name, "name", rhumb.NameString(name), "region", c.meta.regionName(a), "other", c.meta.regionName(b))
}

// readOptions are the fields of a request of the same names. versions leaves out the values: a caller that may write
// records and not read them finds their homes this way.
type readOptions struct{ local, alive, versions bool }

// readOne reads one name in one range. A record that does not exist has no version.
func (t *Table) readOne(ctx context.Context, op rhumb.Op, id rhumb.RangeID, name []byte, o readOptions) (Got, error) {
	items, receipt, err := t.readRange(ctx, op, id, [][]byte{name}, o)
	if err != nil {
		return Got{}, err
	}
	return Got{items[0], receipt}, nil
}

// readRange reads names in one range. The items are in the order of the names.
func (t *Table) readRange(ctx context.Context, op rhumb.Op, id rhumb.RangeID, names [][]byte, o readOptions) ([]rhumb.Item, rhumb.Receipt, error) {
	m := api.EncodeRead(&api.Read{Table: t.info.ID, Range: id, Names: names, VersionsOnly: o.versions})
	// An estimate of the encoded size: the names and their field headers.
	size := 32
	for _, n := range names {
		size += len(n) + 4
	}
	resp, err := t.c.send(ctx, &request{
		op: op, id: id, local: o.local, alive: o.alive, size: size,
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Read: m} },
	})
	if err != nil {
		return nil, rhumb.Receipt{}, err
	}
	// Items have no names; they are matched by position.
	if len(resp.Items) != len(names) {
		return nil, rhumb.Receipt{}, &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: id, Msg: "the node answered with a different number of records than requested"}
	}
	items := make([]rhumb.Item, len(names))
	for i, it := range resp.Items {
		items[i] = api.DecodeItem(it, t.info.ID, id, names[i])
	}
	return items, api.DecodeReceipt(resp.Receipt), nil
}

// countOutcome counts a call that ended with err, and returns err.
func (c *Client) countOutcome(err error) error {
	if err == nil {
		return nil
	}
	switch rhumb.KindOf(err) {
	case rhumb.NotFound, rhumb.ConditionFailed: // answers, not errors
	case rhumb.Unknown:
		c.m.unknown.Add(1)
		c.m.errors.Add(1)
	default:
		c.m.errors.Add(1)
	}
	return err
}
