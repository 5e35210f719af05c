package client

import (
	"context"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/keys"
)

// surveys ask regions at once which of many names of one table they have, and conclude as a survey does for each. They hold
// little for each name, and go on taking answers after the decisions: a second hit is a name that was created twice.
type surveys struct {
	t     *Table
	op    rhumb.Op
	ctx   context.Context // of what is read because a node leaves it undecided
	names [][]byte
	slots []rhumb.Slot // of names, counted from the first of their blocks
	// regions are those asked, all of which may have each name, prior is the index of the caller's own, or -1.
	regions  []askedRegion
	prior    int
	searched int              // regions beyond the caller's
	unasked  []rhumb.RegionID // dead ones

	mu      sync.Mutex    // guards all below
	states  []placeState  // of each name in each region: name * len(regions) + region
	silence map[int]error // why a place is silent
	hits    []int16       // of each name the index of the region that has it, or undecided, absent, unknown
	open    int           // names that are not decided
	done    chan struct{} // closed when all are decided
}

// What hits holds besides indexes of regions.
const (
	hitOpen   int16 = -1 // not decided
	hitNone   int16 = -2 // no region has the name
	hitSilent int16 = -3 // a silent region may have it
)

type askedRegion struct {
	id    rhumb.RegionID
	first rhumb.Slot // of the table's hash slots
}

// surveys begins to ask all living regions for names.
func (t *Table) surveys(ctx context.Context, op rhumb.Op, names [][]byte) *surveys {
	s := &surveys{t: t, op: op, ctx: ctx, names: names, prior: -1, silence: map[int]error{}, done: make(chan struct{})}
	for _, r := range t.c.meta.regionsWith(t.info.Class) {
		switch {
		case r.Dead:
			s.unasked = append(s.unasked, r.ID)
			continue
		case r.ID == t.c.here.ID:
			s.prior = len(s.regions)
		default:
			s.searched++
		}
		s.regions = append(s.regions, askedRegion{r.ID, t.c.meta.firstSlot(t, r.ID)})
	}
	s.slots = make([]rhumb.Slot, len(names))
	for n, name := range names {
		s.slots[n] = keys.HashSlot(name, t.info.Colocate, t.slots)
	}
	s.states = make([]placeState, len(names)*len(s.regions))
	s.hits = slices.Repeat([]int16{hitOpen}, len(names))
	s.open = len(names)
	if len(s.regions) == 0 { // nobody to ask
		s.hits, s.open = slices.Repeat([]int16{hitNone}, len(names)), 0
	}
	if s.open == 0 {
		close(s.done)
	}
	t.c.m.searches.Add(uint64(len(names)))
	s.ask()
	return s
}

// ask sends the questions, those to one node together.
func (s *surveys) ask() {
	c := s.t.c
	for r := range s.regions {
		to := map[rhumb.NodeID][]question{}
		addrs := map[rhumb.NodeID]string{}
		for n, name := range s.names {
			place := n*len(s.regions) + r
			_, primary, ok := c.meta.primary(s.rangeOf(place))
			if !ok {
				s.read(place)
				continue
			}
			if to[primary.ID] == nil {
				to[primary.ID] = make([]question, 0, len(s.names))
				addrs[primary.ID] = primary.Addr
			}
			to[primary.ID] = append(to[primary.ID], question{s.t.info.ID, name, s, place})
		}
		for node, asked := range to {
			c.locator.ask(destination{s.regions[r].id, addrs[node]}, asked...)
		}
	}
}

// rangeOf returns the range in which a place would have its name.
func (s *surveys) rangeOf(place int) rhumb.RangeID {
	r := s.regions[place%len(s.regions)]
	return rhumb.RangeID{Region: r.id, Slot: r.first + s.slots[place/len(s.regions)]}
}

// located takes what a node says of a place.
func (s *surveys) located(place int, e api.Existence) {
	state, ok := stateOf(e)
	if !ok {
		s.t.c.m.undecided.Add(1)
		s.read(place)
		return
	}
	s.take(place, state, nil)
}

// read asks for a name in one region by a strong read, with the redirects and retries of one, in the background.
func (s *surveys) read(place int) {
	s.t.c.spawn(func() {
		got, err := s.t.readAlive(s.ctx, s.op, s.rangeOf(place), s.names[place/len(s.regions)])
		switch {
		case err != nil:
			s.take(place, silent, err)
		case got.Exists():
			s.take(place, with, nil)
		default:
			s.take(place, without, nil)
		}
	})
}

// take takes the answer of a place.
func (s *surveys) take(place int, state placeState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[place] = state
	if err != nil {
		s.silence[place] = err
	}
	n := place / len(s.regions)
	if hit := s.hits[n]; hit != hitOpen {
		if hit >= 0 && state == with {
			s.t.c.twice(s.t, s.names[n], s.regions[hit].id, s.regions[place%len(s.regions)].id)
		}
		return
	}
	hit, mute, decided := judge(s.states[n*len(s.regions):(n+1)*len(s.regions)], s.prior)
	switch {
	case !decided:
		return
	case hit >= 0:
		s.hits[n] = int16(hit)
		// Other regions may have answered that they have the name while the answer of the prior one was missing.
		for r := range s.regions {
			if r != hit && s.states[n*len(s.regions)+r] == with {
				s.t.c.twice(s.t, s.names[n], s.regions[hit].id, s.regions[r].id)
			}
		}
	case mute >= 0:
		s.hits[n] = hitSilent
		s.silence[-1-n] = s.silence[n*len(s.regions)+mute]
	default:
		s.hits[n] = hitNone
	}
	if s.open--; s.open == 0 {
		close(s.done)
	}
}

// wait waits until all names are decided, or returns why it does not wait any more.
func (s *surveys) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// location returns where a name is; ended is the error of the wait, for one that is not decided.
func (s *surveys) location(n int, ended error) (location, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := location{searched: s.searched, unasked: s.unasked}
	switch hit := s.hits[n]; hit {
	case hitOpen:
		return l, rhumb.WrapKind(s.op, kindOfContext(ended), ended)
	case hitSilent:
		return l, s.silence[-1-n]
	case hitNone:
	default:
		l.region = s.regions[hit].id
	}
	return l, nil
}
