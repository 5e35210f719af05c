package client

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Result is what became of a write.
type Result struct {
	// Key is the record that was written, with its home; of a batch, the first.
	Key rhumb.Key
	// Applied is false when an IfNewer condition made the write a no-op, or a delete found nothing to delete.
	Applied bool
	// Version is the record's version now; zero when nothing was applied.
	Version rhumb.Version
	// Existed says whether the record existed before. Only writes that looked know it: patches, and those with a
	// condition or a search.
	Existed bool
	Receipt rhumb.Receipt
}

// WriteOptions say where a write goes and when it applies; the zero value follows the rules for homes (see the package
// comment) and always applies.
type WriteOptions struct {
	// If must hold, or the write fails with ConditionFailed; IfNewer makes it a no-op instead.
	If rhumb.Condition
	// Home is the record's home: the name of a region, or "ID/SLOT" for a key that an insert made.
	Home string
	// Local acts in the caller's region only, and fails rather than leave it.
	Local bool
}

// PutOptions are the options of Put.
type PutOptions = WriteOptions

// DeleteOptions are the options of Delete.
type DeleteOptions = WriteOptions

// PatchOptions are the options of Patch.
type PatchOptions struct {
	WriteOptions
	// Location is where the record is created if it does not exist: in the region nearest to it. Nil takes the patch's
	// own location field (rhumb.Table.LocationField), and without one the caller's region.
	Location *rhumb.Point
}

// InsertOptions are the options of Insert.
type InsertOptions struct {
	// Region is the name of the home region. Default: the one nearest to Location, else the caller's.
	Region   string
	Location *rhumb.Point
}

// Put writes opaque bytes under a name.
func (t *Table) Put(ctx context.Context, name, value []byte, o PutOptions) (Result, error) {
	return t.put(ctx, name, rhumb.EncodeOpaque(make([]byte, 0, len(value)+1), value), o)
}

// PutRecord writes a record under a name, in place of all fields that were there.
func (t *Table) PutRecord(ctx context.Context, name []byte, r rhumb.Record, o PutOptions) (Result, error) {
	const op rhumb.Op = "client.Table.PutRecord"
	value, err := encode(op, r)
	if err != nil {
		return Result{}, t.c.ended(err)
	}
	return t.put(ctx, name, value, o)
}

func (t *Table) put(ctx context.Context, name, stored []byte, o PutOptions) (Result, error) {
	m := rhumb.Mutation{Kind: rhumb.Put, Table: t.info.ID, Name: name, Value: stored, Cond: o.If}
	return t.one(ctx, "client.Table.Put", m, BatchOptions{Home: o.Home, Local: o.Local})
}

// Delete removes a record. Deleting one that does not exist is no error: Result.Applied is then false, or Existed where
// the primary decided.
func (t *Table) Delete(ctx context.Context, name []byte, o DeleteOptions) (Result, error) {
	m := rhumb.Mutation{Kind: rhumb.Delete, Table: t.info.ID, Name: name, Cond: o.If}
	return t.one(ctx, "client.Table.Delete", m, BatchOptions{Home: o.Home, Local: o.Local})
}

// Patch changes the fields that are present in r and leaves the others; null removes a field. It creates the record if it
// does not exist.
func (t *Table) Patch(ctx context.Context, name []byte, r rhumb.Record, o PatchOptions) (Result, error) {
	const op rhumb.Op = "client.Table.Patch"
	value, err := encode(op, r)
	if err != nil {
		return Result{}, t.c.ended(err)
	}
	m := rhumb.Mutation{Kind: rhumb.Patch, Table: t.info.ID, Name: name, Value: value, Cond: o.If}
	return t.one(ctx, op, m, BatchOptions{Home: o.Home, Local: o.Local, Location: o.Location})
}

func encode(op rhumb.Op, r rhumb.Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return rhumb.EncodeRecord(nil, r), nil
}

func (t *Table) one(ctx context.Context, op rhumb.Op, m rhumb.Mutation, o BatchOptions) (Result, error) {
	out, err := t.c.apply(ctx, op, []rhumb.Mutation{m}, o)
	if err != nil {
		return Result{}, err
	}
	r := Result{
		Key:     rhumb.Key{Table: t.info.ID, Home: out.Receipt.Range, Name: m.Name},
		Applied: out.Applied, Version: out.Version, Receipt: out.Receipt,
	}
	if len(out.Existed) > 0 {
		r.Existed = out.Existed[0]
	}
	return r, nil
}

// BatchOptions say where a batch goes; the zero value follows the rule of its first mutation (see the package comment).
type BatchOptions struct {
	Home     string
	Local    bool
	Location *rhumb.Point
}

// BatchResult is what became of a batch.
type BatchResult struct {
	rhumb.Outcome
	Receipt rhumb.Receipt
}

// Batch applies mutations together or not at all. All keys must belong to one range: their tables to one class, their
// names to one slot, for which tables with a colocate byte make names that are equal up to it fall together. Values are
// in stored form (rhumb.EncodeRecord, rhumb.EncodeOpaque).
func (c *Client) Batch(ctx context.Context, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	return c.apply(ctx, "client.Client.Batch", mutations, o)
}

// plan is a batch on its way to its home.
type plan struct {
	c         *Client
	op        rhumb.Op
	t         *Table // of the first mutation
	mutations []rhumb.Mutation
	o         BatchOptions
	searched  int
	unasked   []rhumb.RegionID
	existed   bool // the search found the record of the first mutation
}

func (c *Client) apply(ctx context.Context, op rhumb.Op, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	c.m.writes.Add(1)
	out, err := c.plan(ctx, op, mutations, o)
	return out, c.ended(err)
}

func (c *Client) plan(ctx context.Context, op rhumb.Op, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	b := rhumb.Batch{Mutations: mutations}
	if err := b.Validate(); err != nil {
		return BatchResult{}, &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Err: err}
	}
	t, err := c.tableOf(op, mutations)
	if err != nil {
		return BatchResult{}, err
	}
	p := &plan{c: c, op: op, t: t, mutations: mutations, o: o}
	if mutations[0].Kind == rhumb.Insert {
		return p.insert(ctx)
	}
	if err := p.oneSlot(); err != nil {
		return BatchResult{}, err
	}
	home, fixed, err := t.home(o.Home)
	switch {
	case err != nil:
		return BatchResult{}, err
	case fixed:
		return p.write(ctx, home, mutations)
	case o.Home != "":
		return p.writeIn(ctx, home.Region, mutations)
	case o.Local:
		return p.writeIn(ctx, c.here.ID, mutations)
	}
	return p.toHome(ctx)
}

// tableOf gives the table of the first mutation, and refuses a batch whose tables do not share ranges.
func (c *Client) tableOf(op rhumb.Op, mutations []rhumb.Mutation) (*Table, error) {
	c.meta.mu.RLock()
	defer c.meta.mu.RUnlock()
	first, ok := c.meta.tables[mutations[0].Table]
	for i := range mutations {
		m, known := c.meta.tables[mutations[i].Table]
		switch {
		case !known:
			return nil, rhumb.Ef(op, rhumb.NotFound, "mutation %d: there is no table %s", i, mutations[i].Table)
		case m.Class != first.Class:
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d: table %s replicates in another way than %s, so they share no range", i, m.Name, first.Name)
		case (mutations[i].Kind == rhumb.Insert) != (mutations[0].Kind == rhumb.Insert):
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d: inserts and named keys share no range", i)
		}
	}
	class := c.meta.classes[first.Class]
	if !ok || class.Settings.HashSlots < 1 {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "class %s of table %s is not known yet; retry", first.Class, first.Name)
	}
	return &Table{c: c, info: first, slots: class.Settings.HashSlots}, nil
}

// oneSlot refuses a batch whose names hash to several slots, unless its home names the slot.
func (p *plan) oneSlot() error {
	if len(p.mutations) == 1 {
		return nil
	}
	_, fixed, err := p.t.home(p.o.Home)
	if err != nil || fixed {
		return err
	}
	var want rhumb.Slot
	for i := range p.mutations {
		m := &p.mutations[i]
		p.c.meta.mu.RLock()
		info := p.c.meta.tables[m.Table]
		p.c.meta.mu.RUnlock()
		slot := p.t.slotOf(info.Colocate, m.Name)
		if i == 0 {
			want = slot
		}
		if slot != want {
			return rhumb.Ef(p.op, rhumb.InvalidArgument, "mutation %d: name %s belongs to another range than the first; a batch is atomic within one range, so use a table with a colocate byte", i, rhumb.NameString(m.Name))
		}
	}
	return nil
}

// toHome finds the home of the first mutation by the rules for named keys, and writes there.
func (p *plan) toHome(ctx context.Context) (BatchResult, error) {
	c, m := p.c, &p.mutations[0]
	switch {
	case m.Kind == rhumb.Put && m.Cond.Kind == rhumb.Always:
		out, err := p.writeIn(ctx, c.here.ID, p.mutations)
		if err == nil {
			c.homes.forget(m.Table, m.Name, c.here.ID) // the record here comes before any elsewhere
		}
		return out, err
	case m.Kind == rhumb.Put && m.Cond.Kind == rhumb.IfAbsent, m.Kind == rhumb.Patch:
		return p.orCreate(ctx)
	case m.Kind == rhumb.Delete && m.Cond.Kind == rhumb.Always && len(p.mutations) == 1:
		return p.delete(ctx)
	}
	region, ok, err := p.locate(ctx)
	switch {
	case err != nil:
		return BatchResult{}, err
	case ok:
		return p.existing(ctx, region)
	}
	return p.absent()
}

// delete removes a record where it most likely is, and where that fails, where the search finds it.
func (p *plan) delete(ctx context.Context) (BatchResult, error) {
	m := p.mutations[0]
	m.Cond.Kind = rhumb.IfPresent
	present := []rhumb.Mutation{m}
	region, ok := p.c.homes.get(m.Table, m.Name)
	if !ok {
		region = p.c.here.ID
	}
	out, err := p.writeIn(ctx, region, present)
	if rhumb.KindOf(err) != rhumb.ConditionFailed {
		return out, err
	}
	region, ok, err = p.look(ctx)
	if err != nil {
		return BatchResult{}, err
	}
	if ok {
		out, err = p.writeIn(ctx, region, present)
		if rhumb.KindOf(err) != rhumb.ConditionFailed {
			return out, err
		}
	}
	return p.absent() // somebody else deleted it meanwhile
}

// locate finds the region in which the record of the first mutation is: it was remembered, or a search finds it.
func (p *plan) locate(ctx context.Context) (rhumb.RegionID, bool, error) {
	m := &p.mutations[0]
	if region, ok := p.c.homes.get(m.Table, m.Name); ok {
		p.c.m.homesKnown.Add(1)
		return region, true, nil
	}
	return p.look(ctx)
}

// look is locate without memory.
func (p *plan) look(ctx context.Context) (rhumb.RegionID, bool, error) {
	m := &p.mutations[0]
	p.c.homes.forget(m.Table, m.Name, 0)
	got, err := p.t.find(ctx, p.op, m.Name)
	if err != nil {
		return 0, false, err
	}
	p.searched, p.unasked = got.Receipt.Searched, got.Receipt.Unasked
	p.existed = got.Exists()
	if p.existed {
		p.c.homes.put(m.Table, m.Name, got.Key.Home.Region)
	}
	return got.Key.Home.Region, p.existed, nil
}

// existing writes to a record that was found. When a condition fails there, what was remembered may be old: then it looks
// again, once.
func (p *plan) existing(ctx context.Context, region rhumb.RegionID) (BatchResult, error) {
	out, err := p.writeIn(ctx, region, p.mutations)
	if rhumb.KindOf(err) != rhumb.ConditionFailed || p.existed {
		return out, err
	}
	now, ok, lerr := p.look(ctx)
	if lerr != nil || !ok || now == region {
		return out, err
	}
	return p.writeIn(ctx, now, p.mutations)
}

// absent is the outcome of a write on a record that no region has.
func (p *plan) absent() (BatchResult, error) {
	m := &p.mutations[0]
	if err := p.c.unknowable(p.op, m.Name, p.unasked); err != nil {
		return BatchResult{}, err
	}
	if m.Kind == rhumb.Delete && m.Cond.Kind == rhumb.Always && len(p.mutations) == 1 {
		return BatchResult{
			Outcome: rhumb.Outcome{Existed: []bool{false}},
			Receipt: rhumb.Receipt{Region: p.c.here.ID, Searched: p.searched},
		}, nil
	}
	if m.Kind == rhumb.Delete && (m.Cond.Kind == rhumb.Always || m.Cond.Kind == rhumb.IfAbsent) {
		return BatchResult{}, rhumb.Ef(p.op, rhumb.NotFound, "the first record of the batch, %s, is in no region, so the batch has no home; name one", rhumb.NameString(m.Name))
	}
	return BatchResult{}, rhumb.Ef(p.op, rhumb.ConditionFailed, "condition %s on %s: the record is in no region", m.Cond.Kind, rhumb.NameString(m.Name))
}

// writeIn writes a batch of named keys in a home region.
func (p *plan) writeIn(ctx context.Context, region rhumb.RegionID, mutations []rhumb.Mutation) (BatchResult, error) {
	id, err := p.c.meta.named(p.t, region, mutations[0].Name)
	if err != nil {
		return BatchResult{}, err
	}
	return p.write(ctx, id, mutations)
}

// write applies a batch in a range.
func (p *plan) write(ctx context.Context, id rhumb.RangeID, mutations []rhumb.Mutation) (BatchResult, error) {
	c := p.c
	w := c.window.of(id)
	seq, err := w.take(ctx)
	if err != nil {
		return BatchResult{}, rhumb.WrapKind(p.op, kindOfContext(err), err)
	}
	defer w.release(seq)
	b := rhumb.Batch{Range: id, ID: rhumb.RequestID{Client: c.id, Seq: seq}, Mutations: mutations}
	m := api.EncodeWrite(&b, false)
	resp, err := c.send(ctx, &errand{
		op: p.op, id: id, local: p.o.Local, write: true, size: sizeOf(mutations),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Write: m} },
	})
	if err != nil {
		return BatchResult{}, err
	}
	return p.result(resp, id, len(mutations)), nil
}

func (p *plan) result(resp *rhumbpb.Response, id rhumb.RangeID, n int) BatchResult {
	out := BatchResult{api.DecodeOutcome(resp.GetOutcome(), n), api.DecodeReceipt(resp.GetReceipt())}
	out.Receipt.Searched, out.Receipt.Unasked = p.searched, p.unasked
	if out.Receipt.Range.IsZero() {
		out.Receipt.Range = id
	}
	if p.existed {
		out.Existed[0] = true
	}
	return out
}

func sizeOf(mutations []rhumb.Mutation) int {
	size := 64
	for i := range mutations {
		size += mutations[i].Size() + 24
	}
	return size
}

func kindOfContext(err error) rhumb.Kind {
	if err == context.DeadlineExceeded {
		return rhumb.DeadlineExceeded
	}
	return rhumb.Canceled
}
