package client

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Result is the outcome of a write.
type Result struct {
	// Key is the record that was written, with its home. For a batch it is the first record.
	Key rhumb.Key
	// Applied is false if an IfNewer condition made the write a no-op, or if there was nothing to
	// delete.
	Applied bool
	// Version is the record's version after the write, zero if nothing was applied.
	Version rhumb.Version
	// Existed reports whether the record existed before. Only writes that looked for it know:
	// patches, and writes with a condition or a search.
	Existed bool
	Receipt rhumb.Receipt
}

// WriteOptions select where a write is applied, and when. The zero value follows the rules for
// homes in the package comment and always applies.
type WriteOptions struct {
	// If must hold, or the write fails with ConditionFailed. A failed IfNewer makes the write a
	// no-op instead.
	If rhumb.Condition
	// Home is the record's home: the name of a region, or "ID/SLOT" for the key of an insert.
	Home string
	// Local writes in the caller's region only, and fails rather than leave it.
	Local bool
}

// PutOptions are the options of Put.
type PutOptions = WriteOptions

// DeleteOptions are the options of Delete.
type DeleteOptions = WriteOptions

// PatchOptions are the options of Patch.
type PatchOptions struct {
	WriteOptions
	// Location selects the region in which the record is created if it does not exist: the nearest
	// one. The default is the location in the patch (rhumb.Table.LocationField), and without one
	// the caller's region.
	Location *rhumb.Point
}

// InsertOptions are the options of Insert.
type InsertOptions struct {
	// Region is the name of the home region. The default is the region nearest to Location, and
	// without one the caller's.
	Region   string
	Location *rhumb.Point
}

// Put writes opaque bytes under a name.
func (t *Table) Put(ctx context.Context, name, value []byte, o PutOptions) (Result, error) {
	return t.putStored(ctx, name, rhumb.EncodeOpaque(make([]byte, 0, len(value)+1), value), o)
}

// PutRecord writes a record under a name. It replaces all fields of an existing record.
func (t *Table) PutRecord(ctx context.Context, name []byte, r rhumb.Record, o PutOptions) (Result, error) {
	const op rhumb.Op = "client.Table.PutRecord"
	value, err := encodeRecord(op, r)
	if err != nil {
		return Result{}, t.c.countOutcome(err)
	}
	return t.putStored(ctx, name, value, o)
}

// putStored puts a value in stored form.
func (t *Table) putStored(ctx context.Context, name, stored []byte, o PutOptions) (Result, error) {
	m := rhumb.Mutation{Kind: rhumb.Put, Table: t.info.ID, Name: name, Value: stored, Cond: o.If}
	return t.applyOne(ctx, "client.Table.Put", m, BatchOptions{Home: o.Home, Local: o.Local})
}

// Delete removes a record. A record that does not exist is not an error: Result.Applied is then
// false or, if the primary decided, Result.Existed.
func (t *Table) Delete(ctx context.Context, name []byte, o DeleteOptions) (Result, error) {
	m := rhumb.Mutation{Kind: rhumb.Delete, Table: t.info.ID, Name: name, Cond: o.If}
	return t.applyOne(ctx, "client.Table.Delete", m, BatchOptions{Home: o.Home, Local: o.Local})
}

// Patch sets the fields that are present in r and leaves the others unchanged. A null field is
// removed. Patch creates the record if it does not exist.
func (t *Table) Patch(ctx context.Context, name []byte, r rhumb.Record, o PatchOptions) (Result, error) {
	const op rhumb.Op = "client.Table.Patch"
	value, err := encodeRecord(op, r)
	if err != nil {
		return Result{}, t.c.countOutcome(err)
	}
	m := rhumb.Mutation{Kind: rhumb.Patch, Table: t.info.ID, Name: name, Value: value, Cond: o.If}
	return t.applyOne(ctx, op, m, BatchOptions{Home: o.Home, Local: o.Local, Location: o.Location})
}

// encodeRecord encodes a record and refuses one that is too large.
func encodeRecord(op rhumb.Op, r rhumb.Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return rhumb.EncodeRecord(nil, r), nil
}

// applyOne applies one mutation as a batch.
func (t *Table) applyOne(ctx context.Context, op rhumb.Op, m rhumb.Mutation, o BatchOptions) (Result, error) {
	out, err := t.c.applyBatch(ctx, op, []rhumb.Mutation{m}, o)
	if err != nil {
		return Result{}, err
	}
	r := Result{
		Key:     rhumb.Key{Table: t.info.ID, Home: t.HomeIn(out.Receipt.Range, m.Name), Name: m.Name},
		Applied: out.Applied, Version: out.Version, Receipt: out.Receipt,
	}
	// Inserts, and writes that did not look, know nothing of earlier records.
	if len(out.Existed) > 0 {
		r.Existed = out.Existed[0]
	}
	return r, nil
}

// BatchOptions select where a batch is applied. The zero value follows the rule of the first
// mutation (see the package comment).
type BatchOptions struct {
	Home     string
	Local    bool
	Location *rhumb.Point
}

// BatchResult is the outcome of a batch.
type BatchResult struct {
	rhumb.Outcome
	Receipt rhumb.Receipt
}

// Batch applies mutations atomically: all of them or none. All keys must belong to one range: their
// tables must have the same class, and their names must hash to the same slot, as names with the
// same part before the colocate byte of their table do. Values are in stored form
// (rhumb.EncodeRecord, rhumb.EncodeOpaque).
func (c *Client) Batch(ctx context.Context, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	return c.applyBatch(ctx, "client.Client.Batch", mutations, o)
}

// plan is a batch whose home is being determined.
type plan struct {
	c         *Client
	op        rhumb.Op
	t         *Table // of the first mutation
	mutations []rhumb.Mutation
	o         BatchOptions
	// searched, unasked and existed are the results of the search for the record of the first
	// mutation: the number of regions asked, the dead regions that were not, and whether the record
	// was found.
	searched int
	unasked  []rhumb.RegionID
	existed  bool
}

// applyBatch sends mutations of one slot, which are applied together or not at all.
func (c *Client) applyBatch(ctx context.Context, op rhumb.Op, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	c.m.writes.Add(1)
	out, err := c.routeBatch(ctx, op, mutations, o)
	return out, c.countOutcome(err)
}

// routeBatch validates a batch and writes it to the home that the options name, or to the home that
// the rules for homes determine.
func (c *Client) routeBatch(ctx context.Context, op rhumb.Op, mutations []rhumb.Mutation, o BatchOptions) (BatchResult, error) {
	// Rejected here rather than by the primary, so that an invalid batch asks no region.
	b := rhumb.Batch{Mutations: mutations}
	if err := b.Validate(); err != nil {
		return BatchResult{}, &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Err: err}
	}
	t, err := c.tableOf(op, mutations)
	if err != nil {
		return BatchResult{}, err
	}
	p := &plan{c: c, op: op, t: t, mutations: mutations, o: o}
	// Inserts have no name to hash, so the rules for named keys do not apply to them.
	if mutations[0].Kind == rhumb.Insert {
		return p.runInsert(ctx)
	}
	// Checked before the home is known, because names that share a slot share it in every region.
	if err := p.checkOneSlot(); err != nil {
		return BatchResult{}, err
	}
	home, fixed, err := t.parseHome(o.Home)
	switch {
	case err != nil:
		return BatchResult{}, err
	case fixed:
		return p.writeToRange(ctx, home, mutations)
	case o.Home != "":
		return p.writeInRegion(ctx, home.Region, mutations)
	case o.Local:
		return p.writeInRegion(ctx, c.here.ID, mutations)
	}
	return p.writeToHome(ctx)
}

// tableOf returns the table of the first mutation. It rejects a batch whose mutations cannot share
// a range.
func (c *Client) tableOf(op rhumb.Op, mutations []rhumb.Mutation) (*Table, error) {
	c.meta.mu.RLock()
	defer c.meta.mu.RUnlock()
	// One lock for all lookups, so that the batch is judged by one state of the metadata.
	first, ok := c.meta.tables[mutations[0].Table]
	for i := range mutations {
		m, known := c.meta.tables[mutations[i].Table]
		switch {
		case !known:
			return nil, rhumb.Ef(op, rhumb.NotFound, "mutation %d: there is no table %s", i, mutations[i].Table)
		case m.Class != first.Class:
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d: table %s has other replication settings than %s, so the tables share no range", i, m.Name, first.Name)
		case (mutations[i].Kind == rhumb.Insert) != (mutations[0].Kind == rhumb.Insert):
			// Inserts go to ranges of nodes, named keys to ranges of hash slots.
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d: inserts and named keys share no range; write them in separate batches", i)
		}
	}
	class := c.meta.classes[first.Class]
	if !ok || class.Settings.HashSlots < 1 {
		return nil, rhumb.Ef(op, rhumb.Unavailable, "class %s of table %s is not known yet; retry", first.Class, first.Name)
	}
	return &Table{c: c, info: first, slots: class.Settings.NameSlots()}, nil
}

// checkOneSlot rejects a batch whose names hash to several slots, unless its home names the slot.
func (p *plan) checkOneSlot() error {
	if len(p.mutations) == 1 {
		return nil
	}
	_, fixed, err := p.t.parseHome(p.o.Home)
	if err != nil || fixed {
		return err
	}
	// Slots are compared as counted from the first of a block, since the block depends on the
	// region.
	var want rhumb.Slot
	for i := range p.mutations {
		m := &p.mutations[i]
		p.c.meta.mu.RLock()
		info := p.c.meta.tables[m.Table]
		p.c.meta.mu.RUnlock()
		// All tables share a class, so they share its number of slots. The colocate byte may
		// differ.
		slot := p.t.slotOf(info.Colocate, m.Name)
		if i == 0 {
			want = slot
		}
		if slot != want {
			return rhumb.Ef(p.op, rhumb.InvalidArgument, "mutation %d: name %s belongs to another range than the first name; a batch is atomic within one range, so use a table with a colocate byte", i, rhumb.NameString(m.Name))
		}
	}
	return nil
}

// writeToHome determines the home of the first mutation by the rules for named keys, and writes the
// batch there.
func (p *plan) writeToHome(ctx context.Context) (BatchResult, error) {
	c, m := p.c, &p.mutations[0]
	switch {
	case m.Kind == rhumb.Put && m.Cond.Kind == rhumb.Always:
		region := c.regionFor(p.t)
		out, err := p.writeInRegion(ctx, region, p.mutations)
		if err == nil {
			// From now on reads find the record there before they look elsewhere.
			c.homes.forget(m.Table, m.Name, region)
		}
		return out, err
	case m.Kind == rhumb.Put && m.Cond.Kind == rhumb.IfAbsent, m.Kind == rhumb.Patch:
		return p.writeOrCreate(ctx)
	case m.Kind == rhumb.Delete && m.Cond.Kind == rhumb.Always && len(p.mutations) == 1:
		// A delete in a batch could not be made conditional: the batch would fail where the delete
		// alone does nothing.
		return p.deleteRecord(ctx)
	}
	// All others need an existing record: conditions on one, and deletes in a batch.
	region, ok, err := p.findHome(ctx)
	switch {
	case err != nil:
		return BatchResult{}, err
	case ok:
		return p.writeExisting(ctx, region)
	}
	return p.outcomeOfAbsent()
}

// deleteRecord deletes a record in the region that most likely has it, and if it is not there, in
// the region that a search finds. The condition that the record exists shows whether the guess was
// right.
func (p *plan) deleteRecord(ctx context.Context) (BatchResult, error) {
	m := p.mutations[0]
	m.Cond.Kind = rhumb.IfPresent
	present := []rhumb.Mutation{m}
	// Writing at once saves the round trip of a search if the record is where it is expected.
	region, ok := p.c.homes.get(m.Table, m.Name)
	if !ok {
		region = p.c.regionFor(p.t)
	}
	// Nobody answers in a dead region, and the record may be elsewhere.
	if ok || !p.c.meta.isDead(region, p.t.info.Class) {
		out, err := p.writeInRegion(ctx, region, present)
		if rhumb.KindOf(err) != rhumb.ConditionFailed {
			return out, err
		}
	}
	region, ok, err := p.lookUpHome(ctx)
	if err != nil {
		return BatchResult{}, err
	}
	if ok {
		out, err := p.writeInRegion(ctx, region, present)
		if rhumb.KindOf(err) != rhumb.ConditionFailed {
			return out, err
		}
	}
	return p.outcomeOfAbsent() // no region had it, or another client deleted it since the search
}

// findHome returns the region that has the record of the first mutation, from the cache or by a
// search. ok is false if no region has it.
func (p *plan) findHome(ctx context.Context) (region rhumb.RegionID, ok bool, err error) {
	m := &p.mutations[0]
	if region, ok := p.c.homes.get(m.Table, m.Name); ok {
		p.c.m.homesKnown.Add(1)
		return region, true, nil
	}
	return p.lookUpHome(ctx)
}

// lookUpHome is like findHome but ignores cached homes.
func (p *plan) lookUpHome(ctx context.Context) (region rhumb.RegionID, ok bool, err error) {
	m := &p.mutations[0]
	// findRecord would ask the cached home first, which has just failed or is not trusted.
	p.c.homes.forget(m.Table, m.Name, 0)
	got, err := p.t.findRecord(ctx, p.op, m.Name, readOptions{alive: true, versions: true})
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

// writeExisting writes to a record in the region that has it. If the region is from the cache and a
// condition fails there, the cached home may be old, so writeExisting searches once and writes to
// the region that it finds.
func (p *plan) writeExisting(ctx context.Context, region rhumb.RegionID) (BatchResult, error) {
	out, err := p.writeInRegion(ctx, region, p.mutations)
	// existed says that the region is from a search in this call, so the failed condition is about
	// the record itself.
	if rhumb.KindOf(err) != rhumb.ConditionFailed || p.existed {
		return out, err
	}
	now, ok, lookErr := p.lookUpHome(ctx)
	if lookErr != nil || !ok || now == region {
		return out, err // the failed condition is the answer
	}
	return p.writeInRegion(ctx, now, p.mutations)
}

// outcomeOfAbsent returns the outcome of a write to a record that no region has.
func (p *plan) outcomeOfAbsent() (BatchResult, error) {
	m := &p.mutations[0]
	// A dead region may have the record, and then the condition could hold or the delete would have
	// work to do.
	if err := p.c.unknownIfUnasked(p.op, m.Name, p.unasked); err != nil {
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
	return BatchResult{}, rhumb.Ef(p.op, rhumb.ConditionFailed, "record %s of table %s does not exist in any region", rhumb.NameString(m.Name), p.t.Name())
}

// writeInRegion writes a batch of named keys in a home region.
func (p *plan) writeInRegion(ctx context.Context, region rhumb.RegionID, mutations []rhumb.Mutation) (BatchResult, error) {
	id, err := p.c.meta.homeOfName(p.t, region, mutations[0].Name)
	if err != nil {
		return BatchResult{}, err
	}
	return p.writeToRange(ctx, id, mutations)
}

// writeToRange writes a batch to the range of a home, under one request ID for all attempts. The ID stays
// the same if the range is split meanwhile: both parts know the requests from before.
func (p *plan) writeToRange(ctx context.Context, id rhumb.RangeID, mutations []rhumb.Mutation) (BatchResult, error) {
	c := p.c
	w := c.window.forRange(c.meta.rangeID(id))
	seq, err := w.takeNumber(ctx)
	if err != nil {
		return BatchResult{}, rhumb.WrapKind(p.op, kindOfContext(err), err)
	}
	// The number is released whatever the outcome: nobody will send this write again.
	defer w.releaseNumber(seq)
	b := rhumb.Batch{Range: id, ID: rhumb.RequestID{Client: w.client, Seq: seq}, Mutations: mutations}
	// Encoded once: the attempts share it.
	m := api.EncodeWrite(&b, false)
	resp, err := c.send(ctx, &request{
		op: p.op, id: id, local: p.o.Local, write: true, insert: mutations[0].Kind == rhumb.Insert, size: sizeOf(mutations),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Write: m} },
	})
	if err != nil {
		return BatchResult{}, err
	}
	return p.batchResult(resp, id, len(mutations)), nil
}

// batchResult returns the result of an answer about n mutations, together with the findings of the
// search.
func (p *plan) batchResult(resp *rhumbpb.Response, id rhumb.RangeID, n int) BatchResult {
	out := BatchResult{api.DecodeOutcome(resp.GetOutcome(), n), api.DecodeReceipt(resp.GetReceipt())}
	// The primary knows only its own part; the search belongs to the same call.
	out.Receipt.Searched, out.Receipt.Unasked = p.searched, p.unasked
	// A receipt without a range would make a key without a home.
	if out.Receipt.Range.IsZero() {
		out.Receipt.Range = id
	}
	// A primary looks at the previous record only if it must. The search already did.
	if p.existed {
		out.Existed[0] = true
	}
	return out
}

// sizeOf returns the approximate size of a write in bytes.
func sizeOf(mutations []rhumb.Mutation) int {
	// An estimate of the encoded size, with room for the fields other than names and values.
	size := 64
	for i := range mutations {
		size += mutations[i].Size() + 24
	}
	return size
}

// kindOfContext returns the kind for the error of a context.
func kindOfContext(err error) rhumb.Kind {
	if err == context.DeadlineExceeded {
		return rhumb.DeadlineExceeded
	}
	return rhumb.Canceled
}
