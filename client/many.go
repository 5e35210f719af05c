package client

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// Written is what became of one mutation of WriteMany.
type Written struct {
	Result
	// Err is why the mutation failed, with the kinds that a call of its own has; nil if it did not.
	Err error
}

// WriteMany applies puts and patches without conditions, each as Table.Put or Table.Patch would by itself. Together they are
// bounded as a batch is, and no key stands twice among them. They are not atomic together: each has its own outcome, in the
// order of the mutations. The error is the first of theirs, or says what is wrong with the call; then nothing was written and
// there are no outcomes.
//
// Names without a known home are looked for in one round trip to all regions, and the mutations of one range share a request
// and an entry of its log. Values are in stored form (rhumb.EncodeRecord, rhumb.EncodeOpaque).
func (c *Client) WriteMany(ctx context.Context, mutations []rhumb.Mutation, o BatchOptions) ([]Written, error) {
	const op rhumb.Op = "client.Client.WriteMany"
	c.m.writes.Add(1)
	w := &manyWrites{c: c, op: op, o: o, mutations: mutations}
	if err := w.prepare(); err != nil {
		return nil, c.ended(err)
	}
	w.run(ctx)
	for i := range w.out {
		if err := w.out[i].Err; err != nil {
			return w.out, c.ended(err)
		}
	}
	return w.out, nil
}

// manyWrites is one call of WriteMany. Its steps work on places in mutations; no two goroutines work on one place at a time.
type manyWrites struct {
	c         *Client
	op        rhumb.Op
	o         BatchOptions
	mutations []rhumb.Mutation
	tables    map[rhumb.TableID]*Table
	home      rhumb.RangeID // of all, where the options name it; its region is 0 where they do not
	fixed     bool          // home names the slot, too
	at        []target      // of each
	out       []Written
	// birthplaces are the regions in which records without a location are created.
	birthplaces map[rhumb.TableID]rhumb.RegionID
}

// target is where a mutation is written.
type target struct {
	location      // region is where the record is, or is guessed to be
	created  bool // no region had the record
	written  bool
}

// prepare refuses a call that no state could accept.
func (w *manyWrites) prepare() (err error) {
	b := rhumb.Batch{Mutations: w.mutations}
	if err := b.Validate(); err != nil {
		return &rhumb.Error{Op: w.op, Kind: rhumb.KindOf(err), Err: err}
	}
	w.tables, w.birthplaces = map[rhumb.TableID]*Table{}, map[rhumb.TableID]rhumb.RegionID{}
	for i := range w.mutations {
		m := &w.mutations[i]
		if m.Kind != rhumb.Put && m.Kind != rhumb.Patch || m.Cond.Kind != rhumb.Always {
			return rhumb.Ef(w.op, rhumb.InvalidArgument, "mutation %d is a %s with condition %s: only puts and patches that always apply are taken here; use Batch, or a call for each", i, m.Kind, m.Cond.Kind)
		}
		if w.tables[m.Table] == nil {
			if w.tables[m.Table], err = w.c.tableOf(w.op, w.mutations[i:i+1]); err != nil {
				return rhumb.Ef(w.op, rhumb.KindOf(err), "mutation %d: %v", i, err)
			}
		}
	}
	w.home, w.fixed, err = w.table(0).home(w.o.Home)
	if w.o.Home == "" && w.o.Local {
		w.home.Region = w.c.here.ID
	}
	w.at, w.out = make([]target, len(w.mutations)), make([]Written, len(w.mutations))
	return err
}

func (w *manyWrites) table(i int) *Table { return w.tables[w.mutations[i].Table] }

// run finds the homes of all mutations and writes them there.
func (w *manyWrites) run(ctx context.Context) {
	var known, open []int
	for i := range w.mutations {
		m := &w.mutations[i]
		region := w.home.Region
		switch {
		case region != 0:
		case m.Kind == rhumb.Put:
			region = w.c.here.ID
		default:
			region = w.remembered(m)
		}
		w.at[i].region = region
		if region == 0 {
			open = append(open, i)
		} else {
			known = append(known, i)
		}
	}
	var work sync.WaitGroup
	if len(open) > 0 {
		work.Go(func() { w.orCreate(ctx, open) })
	}
	w.write(ctx, known, false)
	work.Wait()
	for _, i := range known {
		if m := &w.mutations[i]; w.home.Region == 0 && m.Kind == rhumb.Put && w.out[i].Err == nil {
			w.c.homes.forget(m.Table, m.Name, w.c.here.ID) // the record here comes before any elsewhere
		}
	}
}

// remembered returns the region in which a record was found before, 0 for none.
func (w *manyWrites) remembered(m *rhumb.Mutation) rhumb.RegionID {
	region, ok := w.c.homes.get(m.Table, m.Name)
	if ok {
		w.c.m.homesKnown.Add(1)
	}
	return region
}

// orCreate patches records without a known home, as plan.orCreate does for one: where they are expected, and those that are
// not there where all regions say.
func (w *manyWrites) orCreate(ctx context.Context, places []int) {
	done, err := w.c.homes.lockCreation(ctx, w.sortedNames(places)...)
	if err != nil {
		w.fail(places, rhumb.WrapKind(w.op, kindOfContext(err), err))
		return
	}
	defer done()
	known, here, far, open := w.guess(places)
	var work sync.WaitGroup
	if len(known) > 0 {
		work.Go(func() { w.write(ctx, known, false) })
	}
	ofOpen, ofFar := w.locate(ctx, open), w.locate(ctx, far)
	missed := w.write(ctx, slices.Concat(here, far), true)
	ofHere := w.locate(ctx, slices.DeleteFunc(missed, func(i int) bool { return w.at[i].region != w.c.here.ID }))
	w.write(ctx, w.take(ctx, slices.Concat(ofOpen, ofHere, ofFar)), false)
	for _, i := range slices.Concat(here, far, open) {
		if m := &w.mutations[i]; w.out[i].Err == nil {
			w.c.homes.put(m.Table, m.Name, w.at[i].region)
		}
	}
	work.Wait()
}

// guess sorts places by where their records are: somebody has found them meanwhile, or they are expected here, elsewhere, or
// nowhere.
func (w *manyWrites) guess(places []int) (known, here, far, open []int) {
	for _, i := range places {
		m := &w.mutations[i]
		region := w.remembered(m)
		if region != 0 {
			known = append(known, i)
			w.at[i].region = region
			continue
		}
		region = w.c.homes.expectedRegion(m.Table, w.c.here.ID)
		switch {
		case region == 0 || w.c.meta.isDead(region):
			open = append(open, i)
		case region == w.c.here.ID:
			here = append(here, i)
		default:
			far = append(far, i)
		}
		w.at[i].region = region
	}
	return known, here, far, open
}

// lookup is where surveys look for the names of places.
type lookup struct {
	surveys *surveys
	places  []int
}

// locate begins to ask all regions for the records of places, by table.
func (w *manyWrites) locate(ctx context.Context, places []int) (out []lookup) {
	for len(places) > 0 {
		var these, others []int
		table := w.table(places[0])
		var names [][]byte
		for _, i := range places {
			if w.table(i) != table {
				others = append(others, i)
				continue
			}
			these, names = append(these, i), append(names, w.mutations[i].Name)
		}
		out = append(out, lookup{table.surveys(ctx, w.op, names), these})
		places = others
	}
	return out
}

// take waits for what is looked up and not written yet, and returns the places whose mutations can be written, with their
// targets.
func (w *manyWrites) take(ctx context.Context, from []lookup) (located []int) {
	for _, l := range from {
		if !slices.ContainsFunc(l.places, w.waits) {
			continue
		}
		ended := l.surveys.wait(ctx)
		for n, i := range l.places {
			if !w.waits(i) {
				continue
			}
			at, err := l.surveys.location(n, ended)
			if err != nil {
				w.out[i].Err = err
				continue
			}
			w.c.homes.recordSighting(w.mutations[i].Table, at.region)
			w.at[i] = target{location: at, created: at.region == 0}
			if at.region == 0 {
				w.at[i].region = w.birthplace(i)
			}
			located = append(located, i)
		}
	}
	return located
}

// waits reports whether a mutation is neither written nor has failed.
func (w *manyWrites) waits(i int) bool { return !w.at[i].written && w.out[i].Err == nil }

// birthplace is plan.birthplace for one of many mutations. Only orCreate calls it.
func (w *manyWrites) birthplace(i int) rhumb.RegionID {
	m, t := &w.mutations[i], w.table(i)
	at := w.o.Location
	if at == nil {
		at = locationOf(m.Value, t.info.LocationField)
	}
	if at != nil {
		return w.c.nearestRegion(t, at)
	}
	region, ok := w.birthplaces[m.Table]
	if !ok {
		region = w.c.nearestRegion(t, nil)
		w.birthplaces[m.Table] = region
	}
	return region
}

// sortedNames returns the names of places in the order that homes.create wants.
func (w *manyWrites) sortedNames(places []int) []nameKey {
	names := make([]nameKey, len(places))
	for n, i := range places {
		names[n] = nameKey{w.mutations[i].Table, string(w.mutations[i].Name)}
	}
	slices.SortFunc(names, func(a, b nameKey) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.name, b.name))
	})
	return names
}

func (w *manyWrites) fail(places []int, err error) {
	for _, i := range places {
		w.out[i].Err = err
	}
}

// rangePart are the mutations of one range that share a request. Creations have one of their own: a range that is too large
// refuses them and takes updates.
type rangePart struct {
	id      rhumb.RangeID
	created bool
}

// write writes the mutations of places to their targets, all ranges at once. present says that a mutation applies only if its
// record is there; those that did not are returned, in the order of places.
func (w *manyWrites) write(ctx context.Context, places []int, present bool) (missed []int) {
	parts := map[rangePart][]int{}
	for _, i := range places {
		id, err := w.home, error(nil)
		if !w.fixed {
			id, err = w.c.meta.named(w.table(i), w.at[i].region, w.mutations[i].Name)
		}
		if err != nil {
			w.out[i].Err = err
			continue
		}
		part := rangePart{id, w.at[i].created}
		parts[part] = append(parts[part], i)
	}
	var work sync.WaitGroup
	for part, in := range parts { // at most rhumb.BatchOpsMax
		work.Go(func() { w.writePart(ctx, part.id, in, present) })
	}
	work.Wait()
	if !present {
		return nil
	}
	for _, i := range places {
		if rhumb.KindOf(w.out[i].Err) == rhumb.ConditionFailed {
			w.out[i].Err = nil
			missed = append(missed, i)
		}
	}
	return missed
}

// writePart writes mutations of one range in one request. If one of them cannot be applied to its record, that fails the request;
// the others are then written without it.
func (w *manyWrites) writePart(ctx context.Context, id rhumb.RangeID, places []int, present bool) {
	mutations := make([]rhumb.Mutation, len(places))
	for n, i := range places {
		mutations[n] = w.mutations[i]
	}
	if present {
		mutations = ifPresent(mutations)
	}
	p := plan{c: w.c, op: w.op, t: w.table(places[0]), o: w.o}
	out, err := p.write(ctx, id, mutations)
	switch kind := rhumb.KindOf(err); {
	case err == nil:
		w.done(out, places)
	case len(places) > 1 && (kind == rhumb.InvalidArgument || kind == rhumb.TooLarge):
		half := len(places) / 2
		w.writePart(ctx, id, places[:half], present)
		w.writePart(ctx, id, places[half:], present)
	default:
		w.fail(places, err)
	}
}

// done takes the outcome of a request.
func (w *manyWrites) done(out BatchResult, places []int) {
	for n, i := range places {
		m, at := &w.mutations[i], &w.at[i]
		r := Result{
			Key:     rhumb.Key{Table: m.Table, Home: out.Receipt.Range, Name: m.Name},
			Applied: out.Applied, Version: out.Version, Existed: out.Existed[n], Receipt: out.Receipt,
		}
		r.Receipt.Searched, r.Receipt.Unasked = at.searched, at.unasked
		w.out[i].Result, at.written = r, true
	}
}
