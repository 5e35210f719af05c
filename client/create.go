package client

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// orCreate writes to the record that the search finds, else creates it. A remembered home is trusted: the record is
// created there again if it was deleted meanwhile. Calls of this client create a name one after the other, so that the
// second finds what the first made.
func (p *plan) orCreate(ctx context.Context) (BatchResult, error) {
	c, m := p.c, &p.mutations[0]
	if region, ok := c.homes.get(m.Table, m.Name); ok {
		c.m.homesKnown.Add(1)
		return p.existing(ctx, region)
	}
	var guess rhumb.RegionID
	if m.Kind == rhumb.Patch && m.Cond.Kind == rhumb.Always && len(p.mutations) == 1 {
		guess = c.homes.expectedRegion(m.Table, c.here.ID)
	}
	if guess == c.here.ID {
		// Most patches meet a record that is here: no other region is asked.
		out, err := p.writeIn(ctx, guess, ifPresent(p.mutations))
		if rhumb.KindOf(err) != rhumb.ConditionFailed {
			return out, err
		}
		guess = 0
	}
	done, err := c.homes.lockCreation(ctx, nameKey{m.Table, string(m.Name)})
	if err != nil {
		return BatchResult{}, rhumb.WrapKind(p.op, kindOfContext(err), err)
	}
	defer done()
	if region, ok := c.homes.get(m.Table, m.Name); ok { // somebody else found or created it meanwhile
		c.m.homesKnown.Add(1)
		return p.writeIn(ctx, region, p.mutations)
	}
	s, err := p.t.survey(p.op, m.Name, 0)
	if err != nil {
		return BatchResult{}, err
	}
	s.prior = c.here.ID
	if guess != 0 {
		return p.tryIn(ctx, guess, s)
	}
	at, err := s.run(ctx, s.locate)
	if err != nil {
		return BatchResult{}, err
	}
	return p.located(ctx, s.location(at))
}

// tryIn writes to the record in the region that probably has it, while a survey asks all regions where it is. That is one
// round trip if the guess is right and two if it is wrong, as many as without it. No second region gets the write before
// the first has said that it did not apply it (docs/decisions/0023-foreign-records.md).
func (p *plan) tryIn(ctx context.Context, region rhumb.RegionID, s *survey) (BatchResult, error) {
	type judgement struct {
		at  *place
		err error
	}
	whole, cancel := context.WithCancel(ctx)
	defer cancel()
	judged := make(chan judgement, 1)
	p.c.spawn(func() {
		at, err := s.run(whole, s.locate)
		judged <- judgement{at, err}
	})
	out, err := p.writeIn(ctx, region, ifPresent(p.mutations))
	if err == nil {
		p.note(region)
		out.Receipt.Searched = s.location(nil).searched
		return out, nil
	}
	if rhumb.KindOf(err) != rhumb.ConditionFailed {
		return out, err
	}
	j := <-judged // s.run ends with ctx
	if j.err != nil {
		return BatchResult{}, j.err
	}
	return p.located(ctx, s.location(j.at))
}

// ifPresent copies patches with the condition that their records exist.
func ifPresent(patches []rhumb.Mutation) []rhumb.Mutation {
	out := slices.Clone(patches)
	for i := range out {
		out[i].Cond.Kind = rhumb.IfPresent
	}
	return out
}

// located writes to a record where regions say that it is, or creates it.
func (p *plan) located(ctx context.Context, at location) (BatchResult, error) {
	m := &p.mutations[0]
	p.searched, p.unasked, p.existed = at.searched, at.unasked, at.region != 0
	p.note(at.region)
	if at.region == 0 {
		if m.Cond.Kind == rhumb.IfPresent || m.Cond.Kind == rhumb.IfVersion {
			return p.absent()
		}
		at.region = p.birthplace()
	}
	out, err := p.writeIn(ctx, at.region, p.mutations)
	if err == nil && out.Applied {
		p.c.homes.put(m.Table, m.Name, at.region)
	}
	return out, err
}

// note remembers where the record of the first mutation is; 0 is nowhere.
func (p *plan) note(region rhumb.RegionID) {
	m := &p.mutations[0]
	p.c.homes.recordSighting(m.Table, region)
	if region != 0 {
		p.c.homes.put(m.Table, m.Name, region)
	}
}

// birthplace is the region in which a record that does not exist is created: the one nearest to its location, if it has
// one, else the caller's.
func (p *plan) birthplace() rhumb.RegionID {
	m := &p.mutations[0]
	at := p.o.Location
	if at == nil && m.Kind == rhumb.Patch {
		at = locationOf(m.Value, p.t.info.LocationField)
	}
	return p.c.nearestRegion(p.t, at)
}

// locationOf gives the location that a stored record carries, the middle of a box, or nil.
func locationOf(stored []byte, field string) *rhumb.Point {
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

// nearestRegion gives the region nearest to a place that may hold a table's records; without a place, the caller's own
// region if it may, else the one nearest to it.
func (c *Client) nearestRegion(t *Table, at *rhumb.Point) rhumb.RegionID {
	with := c.meta.regionsWith(t.info.Class)
	if slices.ContainsFunc(with, func(r rhumb.Region) bool { return !r.Dead }) {
		with = slices.DeleteFunc(with, func(r rhumb.Region) bool { return r.Dead })
	}
	if at == nil {
		if slices.ContainsFunc(with, func(r rhumb.Region) bool { return r.ID == c.here.ID && !r.Dead }) {
			return c.here.ID
		}
		at = &c.here.Location
	}
	if r, ok := geo.NearestRegion(*at, with); ok {
		return r.ID
	}
	return c.here.ID
}
