package client

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// Written is the outcome of one mutation of WriteMany.
type Written struct {
	Result
	// Err is why the mutation failed, with the kinds that a call of its own has. It is nil if the
	// mutation did not fail.
	Err error
}

// WriteMany applies puts and patches without conditions, each as Table.Put or Table.Patch would.
// Together they have the bounds of a batch, and no two may have the same key. They are not atomic:
// each has its own outcome, in the order of the mutations. The error is the first error among the
// outcomes. If the call itself is invalid, nothing is written and there are no outcomes.
//
// All names without a known home are searched for in one round trip to all regions, and the
// mutations of one range share a request and a log entry. Values are in stored form
// (rhumb.EncodeRecord, rhumb.EncodeOpaque).
func (c *Client) WriteMany(ctx context.Context, mutations []rhumb.Mutation, o BatchOptions) ([]Written, error) {
	const op rhumb.Op = "client.Client.WriteMany"
	c.m.writes.Add(1)
	w := &manyWrites{c: c, op: op, o: o, mutations: mutations}
	if err := w.prepare(); err != nil {
		return nil, c.countOutcome(err)
	}
	w.run(ctx)
	// One call counts as one error in the metrics, however many of its mutations failed.
	for i := range w.out {
		if err := w.out[i].Err; err != nil {
			return w.out, c.countOutcome(err)
		}
	}
	return w.out, nil
}

// manyWrites is one call of WriteMany. "Places" are indexes in mutations, at and out. No two
// goroutines work on one place at the same time, so targets and out need no lock.
type manyWrites struct {
	c         *Client
	op        rhumb.Op
	o         BatchOptions
	mutations []rhumb.Mutation
	tables    map[rhumb.TableID]*Table
	home      rhumb.RangeID // of all mutations, if the options name it; otherwise its region is 0
	fixed     bool          // home has a slot
	targets   []target      // by place
	out       []Written     // by place
	// birthRegions caches the regions in which records without a location are created. Only
	// writeOrCreate uses it.
	birthRegions map[rhumb.TableID]rhumb.RegionID
}

// target is where a mutation is written.
type target struct {
	location      // its region has the record, or is expected to have it, or will have it
	created  bool // no region had the record
	written  bool
}

// prepare rejects a call that is invalid in any state, and sets the fields of w.
func (w *manyWrites) prepare() (err error) {
	b := rhumb.Batch{Mutations: w.mutations}
	if err := b.Validate(); err != nil {
		return &rhumb.Error{Op: w.op, Kind: rhumb.KindOf(err), Err: err}
	}
	w.tables, w.birthRegions = map[rhumb.TableID]*Table{}, map[rhumb.TableID]rhumb.RegionID{}
	for i := range w.mutations {
		m := &w.mutations[i]
		if m.Kind != rhumb.Put && m.Kind != rhumb.Patch || m.Cond.Kind != rhumb.Always {
			return rhumb.Ef(w.op, rhumb.InvalidArgument, "mutation %d is a %s with condition %s; a write of many records takes only unconditional puts and patches; write it as a batch or on its own", i, m.Kind, m.Cond.Kind)
		}
		if w.tables[m.Table] == nil {
			// Each mutation is checked alone: unlike in a batch, tables of different classes may be
			// mixed.
			if w.tables[m.Table], err = w.c.tableOf(w.op, w.mutations[i:i+1]); err != nil {
				return rhumb.Ef(w.op, rhumb.KindOf(err), "mutation %d: %v", i, err)
			}
		}
	}
	w.home, w.fixed, err = w.tableAt(0).parseHome(w.o.Home)
	if w.o.Home == "" && w.o.Local {
		w.home.Region = w.c.here.ID
	}
	w.targets, w.out = make([]target, len(w.mutations)), make([]Written, len(w.mutations))
	return err
}

// tableAt returns the table of the mutation at a place.
func (w *manyWrites) tableAt(i int) *Table { return w.tables[w.mutations[i].Table] }

// run determines the homes of all mutations and writes them there. Mutations with a known home do
// not wait for the search for the others.
func (w *manyWrites) run(ctx context.Context) {
	var known, open []int
	for i := range w.mutations {
		m := &w.mutations[i]
		// A home that the options name holds for all mutations.
		region := w.home.Region
		switch {
		case region != 0:
		case m.Kind == rhumb.Put:
			// An unconditional put is written here without a search, a patch goes where its record is.
			region = w.c.regionFor(w.tableAt(i))
		default:
			region = w.cachedHome(m)
		}
		w.targets[i].region = region
		if region == 0 {
			open = append(open, i)
		} else {
			known = append(known, i)
		}
	}
	var work sync.WaitGroup
	if len(open) > 0 {
		work.Go(func() { w.writeOrCreate(ctx, open) })
	}
	w.writeAll(ctx, known, false)
	work.Wait()
	for _, i := range known {
		if m := &w.mutations[i]; w.home.Region == 0 && m.Kind == rhumb.Put && w.out[i].Err == nil {
			// From now on reads find the record there before they look elsewhere.
			w.c.homes.forget(m.Table, m.Name, w.targets[i].region)
		}
	}
}

// cachedHome returns the region in which a record was found before, 0 for none.
func (w *manyWrites) cachedHome(m *rhumb.Mutation) rhumb.RegionID {
	region, ok := w.c.homes.get(m.Table, m.Name)
	if ok {
		w.c.m.homesKnown.Add(1)
	}
	return region
}

// writeOrCreate patches records without a known home, as plan.writeOrCreate does for one record.
//
//  1. It locks the creation of all names, and writes those whose homes were found in the meantime.
//  2. It asks all regions for the names about which it has no guess, and for those expected in
//     another region.
//  3. It patches the records that it expects here or in another region, on condition that they
//     exist. Those that do not exist here are then asked for as well.
//  4. It writes the others where the regions say, or creates them.
//
// Names that are expected here are not asked for before step 3 has failed: most patches meet a
// record that is here, which then costs no other region a request.
func (w *manyWrites) writeOrCreate(ctx context.Context, places []int) {
	unlock, err := w.c.homes.lockCreation(ctx, w.sortedNames(places)...)
	if err != nil {
		w.failAll(places, rhumb.WrapKind(w.op, kindOfContext(err), err))
		return
	}
	defer unlock()
	// While this call waited for the lock, another one may have found or created some of the names.
	known, here, far, open := w.guessHomes(places)
	var work sync.WaitGroup
	if len(known) > 0 {
		work.Go(func() { w.writeAll(ctx, known, false) })
	}
	// The surveys run during the writes below. A far guess that is wrong then costs no round trip
	// of its own.
	ofOpen, ofFar := w.startSurveys(ctx, open), w.startSurveys(ctx, far)
	missed := w.writeAll(ctx, slices.Concat(here, far), true)
	ofHere := w.startSurveys(ctx, slices.DeleteFunc(missed, func(i int) bool { return w.targets[i].region != w.c.regionFor(w.tableAt(i)) }))
	w.writeAll(ctx, w.takeLocated(ctx, slices.Concat(ofOpen, ofHere, ofFar)), false)
	for _, i := range slices.Concat(here, far, open) {
		// Cached only after the write: a record that was not created has no home.
		if m := &w.mutations[i]; w.out[i].Err == nil {
			w.c.homes.put(m.Table, m.Name, w.targets[i].region)
		}
	}
	work.Wait()
}

// guessHomes sorts places by where their records probably are: in a home that another call has
// found since, in the caller's region, in another region, or in none. It sets the regions of the
// targets.
func (w *manyWrites) guessHomes(places []int) (known, here, far, open []int) {
	for _, i := range places {
		m := &w.mutations[i]
		region := w.cachedHome(m)
		if region != 0 {
			known = append(known, i)
			w.targets[i].region = region
			continue
		}
		near := w.c.regionFor(w.tableAt(i))
		region = w.c.homes.expectedRegion(m.Table, near)
		switch {
		case region == 0 || w.c.meta.isDead(region, w.tables[m.Table].info.Class):
			// A guess for a dead region would fail the mutation instead of finding its record
			// elsewhere.
			open = append(open, i)
		case region == near:
			here = append(here, i)
		default:
			far = append(far, i)
		}
		w.targets[i].region = region
	}
	return known, here, far, open
}

// tableSurvey is a survey of the names of places, which are of one table.
type tableSurvey struct {
	survey *bulkSurvey
	places []int
}

// startSurveys starts asking all regions for the records of places, with one survey per table.
func (w *manyWrites) startSurveys(ctx context.Context, places []int) (out []tableSurvey) {
	// A call names few tables, so one pass for each is cheap.
	for len(places) > 0 {
		var these, others []int
		table := w.tableAt(places[0])
		var names [][]byte
		for _, i := range places {
			if w.tableAt(i) != table {
				others = append(others, i)
				continue
			}
			these, names = append(these, i), append(names, w.mutations[i].Name)
		}
		out = append(out, tableSurvey{table.startBulkSurvey(ctx, w.op, names), these})
		places = others
	}
	return out
}

// takeLocated waits for surveys and returns the places whose mutations can now be written, with
// their targets set. It does not wait for a survey whose mutations are all written already, because
// the guess was right.
func (w *manyWrites) takeLocated(ctx context.Context, from []tableSurvey) (located []int) {
	for _, l := range from {
		if !slices.ContainsFunc(l.places, w.isPending) {
			continue
		}
		waitErr := l.survey.wait(ctx)
		for n, i := range l.places {
			if !w.isPending(i) {
				continue
			}
			at, err := l.survey.location(n, waitErr)
			// A silent region may have the record, or ctx has ended: nothing is known to write to.
			if err != nil {
				w.out[i].Err = err
				continue
			}
			w.c.homes.recordSighting(w.mutations[i].Table, at.region)
			// The location replaces a wrong guess.
			w.targets[i] = target{location: at, created: at.region == 0}
			if at.region == 0 {
				w.targets[i].region = w.birthRegion(i)
			}
			// Several tables may have surveys, and all that are located are written together.
			located = append(located, i)
		}
	}
	return located
}

// isPending reports whether a mutation is neither written nor failed.
func (w *manyWrites) isPending(i int) bool { return !w.targets[i].written && w.out[i].Err == nil }

// birthRegion is plan.birthRegion for the mutation at a place.
func (w *manyWrites) birthRegion(i int) rhumb.RegionID {
	m, t := &w.mutations[i], w.tableAt(i)
	at := w.o.Location
	if at == nil {
		at = locationOf(m.Value, t.info.LocationField)
	}
	// Only the result without a location is the same for all mutations of a table.
	if at != nil {
		return w.c.nearestRegion(t, at)
	}
	region, ok := w.birthRegions[m.Table]
	if !ok {
		region = w.c.nearestRegion(t, nil)
		w.birthRegions[m.Table] = region
	}
	return region
}

// sortedNames returns the names of places in the order that homes.lockCreation requires. They are
// distinct, because the batch is valid.
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

// failAll sets one error as the outcome of places.
func (w *manyWrites) failAll(places []int, err error) {
	for _, i := range places {
		w.out[i].Err = err
	}
}

// rangePart is a group of mutations of one range that share a request. Creations have a request of
// their own: a range that is too large rejects creations and accepts updates.
type rangePart struct {
	id      rhumb.RangeID
	created bool
}

// writeAll writes the mutations of places to their targets, all ranges at once. With present, a
// mutation applies only if its record exists; writeAll returns the places whose records do not, in
// the order of places.
func (w *manyWrites) writeAll(ctx context.Context, places []int, present bool) (missed []int) {
	parts := map[rangePart][]int{}
	for _, i := range places {
		id, err := w.home, error(nil)
		if !w.fixed {
			id, err = w.c.meta.homeOfName(w.tableAt(i), w.targets[i].region, w.mutations[i].Name)
		}
		if err != nil {
			w.out[i].Err = err
			continue
		}
		// Mutations of different tables may share a part, if their tables share a class.
		part := rangePart{w.c.meta.rangeID(id), w.targets[i].created}
		parts[part] = append(parts[part], i)
	}
	// No lock is needed: the parts share no place.
	var work sync.WaitGroup
	for part, in := range parts { // at most rhumb.BatchOpsMax
		work.Go(func() { w.writePart(ctx, part.id, in, present) })
	}
	work.Wait()
	if !present {
		return nil
	}
	// A miss is not an outcome yet: the record may be in another region.
	for _, i := range places {
		// Only the condition of present can have failed, since mutations with their own conditions
		// are rejected.
		if rhumb.KindOf(w.out[i].Err) == rhumb.ConditionFailed {
			w.out[i].Err = nil
			missed = append(missed, i)
		}
	}
	return missed
}

// writePart writes mutations of one range in one request. A request is applied as a whole or not at
// all, so one mutation that does not fit its record fails all of them; writePart then writes the
// two halves separately, until that mutation is alone.
//
// That also happens if the range was split and the mutations belong to both parts now.
func (w *manyWrites) writePart(ctx context.Context, id rhumb.RangeID, places []int, present bool) {
	if !w.fixed {
		// The range of the first key, whatever has become of the one by which the part was formed.
		id = w.tableAt(places[0]).HomeIn(id, w.mutations[places[0]].Name)
	}
	mutations := make([]rhumb.Mutation, len(places))
	for n, i := range places {
		mutations[n] = w.mutations[i]
	}
	if present {
		mutations = ifPresent(mutations)
	}
	// The plan has no search results; recordOutcome adds those of each mutation.
	p := plan{c: w.c, op: w.op, t: w.tableAt(places[0]), o: w.o}
	out, err := p.writeToRange(ctx, id, mutations)
	switch kind := rhumb.KindOf(err); {
	case err == nil:
		w.recordOutcome(out, places)
	case len(places) > 1 && (kind == rhumb.InvalidArgument || kind == rhumb.TooLarge):
		// Kinds that say that nothing was applied, so writing the halves repeats nothing.
		half := len(places) / 2
		w.writePart(ctx, id, places[:half], present)
		w.writePart(ctx, id, places[half:], present)
	default:
		w.failAll(places, err)
	}
}

// recordOutcome stores the outcome of a request about places.
func (w *manyWrites) recordOutcome(out BatchResult, places []int) {
	for n, i := range places {
		m, at := &w.mutations[i], &w.targets[i]
		r := Result{
			Key:     rhumb.Key{Table: m.Table, Home: w.tableAt(i).HomeIn(out.Receipt.Range, m.Name), Name: m.Name},
			Applied: out.Applied, Version: out.Version, Existed: out.Existed[n], Receipt: out.Receipt,
		}
		r.Receipt.Searched, r.Receipt.Unasked = at.searched, at.unasked
		w.out[i].Result, at.written = r, true
	}
}
