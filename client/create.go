package client

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// writeOrCreate writes to the existing record of the first mutation, or creates the record if no
// region has one.
//
//  1. If the home is cached, it writes there. The cache is trusted: if the record was deleted in
//     the meantime, it is created there again.
//  2. If the record is probably in the caller's region, it tries an update there, without asking
//     any other region.
//  3. Otherwise it locks the creation of the name and asks all regions. If the record is probably
//     in another region, it tries an update there at the same time.
//  4. It writes where the record was found, or creates it.
//
// The lock makes calls of this client create a name one after the other, so that the second call
// finds the record of the first.
func (p *plan) writeOrCreate(ctx context.Context) (BatchResult, error) {
	c, m := p.c, &p.mutations[0]
	if region, ok := c.homes.get(m.Table, m.Name); ok {
		c.m.homesKnown.Add(1)
		return p.writeExisting(ctx, region)
	}
	// A guess needs a mutation that can be made conditional on the record's existence. A failed
	// condition of the caller, and the other mutations of a batch, could not be distinguished from
	// a wrong guess.
	here := c.regionFor(p.t)
	var guess rhumb.RegionID
	if m.Kind == rhumb.Patch && m.Cond.Kind == rhumb.Always && len(p.mutations) == 1 {
		guess = c.homes.expectedRegion(m.Table, here)
	}
	// Nobody answers there. The survey finds the record elsewhere, or a place for it.
	if c.meta.isDead(guess, p.t.info.Class) {
		guess = 0
	}
	if guess == here {
		out, err := p.writeInRegion(ctx, guess, ifPresent(p.mutations))
		if rhumb.KindOf(err) != rhumb.ConditionFailed {
			return out, err
		}
		guess = 0
	}
	unlock, err := c.homes.lockCreation(ctx, nameKey{m.Table, string(m.Name)})
	if err != nil {
		return BatchResult{}, rhumb.WrapKind(p.op, kindOfContext(err), err)
	}
	defer unlock()
	if region, ok := c.homes.get(m.Table, m.Name); ok { // the call that held the lock found or created it
		c.m.homesKnown.Add(1)
		return p.writeInRegion(ctx, region, p.mutations)
	}
	// No other call of this client creates the name before unlock, so none can outdate the survey.
	s, err := p.t.planSurvey(p.op, m.Name, 0)
	if err != nil {
		return BatchResult{}, err
	}
	// A record here takes precedence over one elsewhere, so the answer from here is needed.
	s.prior = here
	if guess != 0 {
		return p.tryRegion(ctx, guess, s)
	}
	at, err := s.run(ctx, s.locatePlace)
	if err != nil {
		return BatchResult{}, err
	}
	return p.writeLocated(ctx, s.conclusion(at))
}

// tryRegion updates the record in the region that probably has it, while a survey asks all regions.
// That takes one round trip if the guess is right and two if it is wrong, as many as without a
// guess.
//
// No second region receives the write before the first has answered that it did not apply it: two
// regions could both have the record, and both apply the write
// (docs/decisions/0023-foreign-records.md).
func (p *plan) tryRegion(ctx context.Context, region rhumb.RegionID, s *survey) (BatchResult, error) {
	type surveyResult struct {
		at  *place
		err error
	}
	whole, cancel := context.WithCancel(ctx)
	defer cancel()
	surveyed := make(chan surveyResult, 1)
	// The survey starts before the write, so that a wrong guess costs no round trip of its own.
	p.c.spawn(func() {
		at, err := s.run(whole, s.locatePlace)
		surveyed <- surveyResult{at, err}
	})
	out, err := p.writeInRegion(ctx, region, ifPresent(p.mutations))
	if err == nil {
		// The guess was right. The survey is canceled, but its requests were sent, so the receipt
		// counts them.
		p.recordHome(region)
		out.Receipt.Searched = s.conclusion(nil).searched
		return out, nil
	}
	if rhumb.KindOf(err) != rhumb.ConditionFailed {
		return out, err // the write may have been applied, so no other region may receive it
	}
	r := <-surveyed // does not outlast ctx, because s.run returns when ctx ends
	if r.err != nil {
		return BatchResult{}, r.err
	}
	return p.writeLocated(ctx, s.conclusion(r.at))
}

// ifPresent returns a copy of patches with the condition that their records exist.
func ifPresent(patches []rhumb.Mutation) []rhumb.Mutation {
	out := slices.Clone(patches)
	for i := range out {
		out[i].Cond.Kind = rhumb.IfPresent
	}
	return out
}

// writeLocated writes to a record in the region that a survey found, or creates the record.
func (p *plan) writeLocated(ctx context.Context, at location) (BatchResult, error) {
	m := &p.mutations[0]
	p.searched, p.unasked, p.existed = at.searched, at.unasked, at.region != 0
	p.recordHome(at.region)
	if at.region == 0 {
		if m.Cond.Kind == rhumb.IfPresent || m.Cond.Kind == rhumb.IfVersion {
			return p.outcomeOfAbsent()
		}
		at.region = p.birthRegion()
	}
	// The primary decides conditions again: another client may have created or deleted the record
	// since the survey.
	out, err := p.writeInRegion(ctx, at.region, p.mutations)
	if err == nil && out.Applied {
		p.c.homes.put(m.Table, m.Name, at.region)
	}
	return out, err
}

// recordHome records where a search found the record of the first mutation, 0 for nowhere.
func (p *plan) recordHome(region rhumb.RegionID) {
	m := &p.mutations[0]
	p.c.homes.recordSighting(m.Table, region)
	if region != 0 {
		p.c.homes.put(m.Table, m.Name, region)
	}
}

// birthRegion returns the region in which the record of the first mutation is created: the one
// nearest to its location, or the caller's if it has no location.
func (p *plan) birthRegion() rhumb.RegionID {
	// A put if absent is created here, whatever its fields: only patches are placed by the location
	// in their value.
	m := &p.mutations[0]
	at := p.o.Location
	if at == nil && m.Kind == rhumb.Patch {
		at = locationOf(m.Value, p.t.info.LocationField)
	}
	return p.c.nearestRegion(p.t, at)
}

// locationOf returns the location in a stored record, which is the middle of a box. It returns nil
// if there is none.
func locationOf(stored []byte, field string) *rhumb.Point {
	// A field of another type is not a location, as if the field were absent.
	v, ok, err := rhumb.RecordField(stored, field)
	if err != nil || !ok {
		return nil
	}
	if pt, ok := v.Point(); ok {
		return &pt
	}
	if b, ok := v.Box(); ok {
		mid := geo.Interpolate(b.Min, b.Max, 0.5)
		return &mid
	}
	return nil
}

// regionFor returns the region to which a call goes that names no home: the caller's, or the one nearest to it if the table has no
// records in the caller's. A table that is confined to other regions is used from everywhere.
func (c *Client) regionFor(t *Table) rhumb.RegionID {
	if _, ok := c.meta.hashBlock(t, c.here.ID); ok {
		return c.here.ID
	}
	return c.nearestRegion(t, nil)
}

// nearestRegion returns the region nearest to a location among those that may hold a table's
// records. Without a location it returns the caller's region if that may hold them, otherwise the
// one nearest to it. Dead regions count only if all are dead.
func (c *Client) nearestRegion(t *Table, at *rhumb.Point) rhumb.RegionID {
	// Only regions with hash slots of the class can hold the record.
	with := c.meta.regionsWith(t.info.Class)
	// New records would have to move with a region that is being removed. Records that exist are found there as before, and this
	// applies to creations that are placed by location, or by nothing, only.
	if slices.ContainsFunc(with, func(r rhumb.Region) bool { return r.Into == 0 }) {
		with = slices.DeleteFunc(with, func(r rhumb.Region) bool { return r.Into != 0 })
	}
	// A write to a dead region would fail, so the record is created in the nearest living one.
	if slices.ContainsFunc(with, func(r rhumb.Region) bool { return !r.Dead }) {
		with = slices.DeleteFunc(with, func(r rhumb.Region) bool { return r.Dead })
	}
	if at == nil {
		if slices.ContainsFunc(with, func(r rhumb.Region) bool { return r.ID == c.here.ID && !r.Dead }) {
			return c.here.ID
		}
		at = &c.here.Location
	}
	// No region has slots yet. A write of a named key then fails as Unavailable and says so.
	if r, ok := geo.NearestRegion(*at, with); ok {
		return r.ID
	}
	return c.here.ID
}
