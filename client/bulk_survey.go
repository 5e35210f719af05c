package client

import (
	"context"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// bulkSurvey asks several regions at once which of many names of one table they have, and concludes
// for each name as a survey does. Unlike a survey it has no goroutine or channel of its own for a
// name: the goroutines that deliver answers also judge them. It continues to receive answers after
// its decisions, because a second hit is a name that was created twice.
type bulkSurvey struct {
	t     *Table
	op    rhumb.Op
	ctx   context.Context // of the reads of names that nodes leave undecided
	names [][]byte
	slots []rhumb.Slot // of names, counted from the first slot of their blocks
	// regions holds the regions that are asked; each may have any name. prior is the index of the
	// caller's own, or -1.
	regions  []askedRegion
	prior    int
	searched int              // regions beyond the caller's
	unasked  []rhumb.RegionID // dead ones

	mu     sync.Mutex   // guards all below
	states []placeState // of each name in each region, at index name * len(regions) + region
	// silence holds the reason for each silent place, by index in states, and for each undecidable
	// name the reason at index -1 - name.
	silence map[int]error
	hits    []int16       // by name: the index of the region that has it, or a constant below
	open    int           // names that are not decided
	done    chan struct{} // closed when all are decided
}

// Values in hits other than indexes of regions.
const (
	hitOpen   int16 = -1 // not decided
	hitNone   int16 = -2 // no region has the name
	hitSilent int16 = -3 // a silent region may have it
)

type askedRegion struct {
	id    rhumb.RegionID
	first rhumb.Slot // of the table's hash slots
}

// startBulkSurvey starts asking all living regions for names.
func (t *Table) startBulkSurvey(ctx context.Context, op rhumb.Op, names [][]byte) *bulkSurvey {
	s := &bulkSurvey{t: t, op: op, ctx: ctx, names: names, prior: -1, silence: map[int]error{}, done: make(chan struct{})}
	near := t.c.regionFor(t)
	for _, r := range t.c.meta.regionsWith(t.info.Class) {
		if r.Dead {
			s.unasked = append(s.unasked, r.ID)
			continue
		}
		if r.ID == near {
			// A record there takes precedence over one elsewhere.
			s.prior = len(s.regions)
		}
		if r.ID != t.c.here.ID {
			s.searched++
		}
		b, _ := t.c.meta.hashBlock(t, r.ID) // regionsWith returns only regions that have one
		s.regions = append(s.regions, askedRegion{r.ID, b.First})
	}
	s.slots = make([]rhumb.Slot, len(names))
	for n, name := range names {
		s.slots[n] = t.slotOf(t.info.Colocate, name)
	}
	// The zero state is asking.
	s.states = make([]placeState, len(names)*len(s.regions))
	s.hits = slices.Repeat([]int16{hitOpen}, len(names))
	s.open = len(names)
	// All regions are dead or none has slots. location then returns the dead ones as unasked.
	if len(s.regions) == 0 { // nobody to ask
		s.hits, s.open = slices.Repeat([]int16{hitNone}, len(names)), 0
	}
	if s.open == 0 {
		close(s.done)
	}
	t.c.m.searches.Add(uint64(len(names)))
	// All fields are set by now: the first answer may arrive before askAll returns.
	s.askAll()
	return s
}

// askAll asks the questions, all those to one node together.
func (s *bulkSurvey) askAll() {
	c := s.t.c
	for r := range s.regions {
		// The names of one region may hash to ranges with different primaries, so the questions are
		// grouped by node.
		to := map[rhumb.NodeID][]question{}
		addrs := map[rhumb.NodeID]string{}
		for n, name := range s.names {
			place := n*len(s.regions) + r
			_, primary, ok := c.meta.primaryOf(s.rangeAt(place))
			if !ok {
				// The client does not know whom to ask. A read finds out, with retries.
				s.readPlace(place)
				continue
			}
			if to[primary.ID] == nil {
				to[primary.ID] = make([]question, 0, len(s.names))
				addrs[primary.ID] = primary.Addr
			}
			to[primary.ID] = append(to[primary.ID], question{s.t.info.ID, name, s, place})
		}
		for node, asked := range to {
			c.locator.askNode(destination{s.regions[r].id, addrs[node]}, asked...)
		}
	}
}

// rangeAt returns the range in which a place would have its name.
func (s *bulkSurvey) rangeAt(place int) rhumb.RangeID {
	r := s.regions[place%len(s.regions)]
	return rhumb.RangeID{Region: r.id, Slot: r.first + s.slots[place/len(s.regions)]}
}

// onLocated receives a node's answer about a place.
func (s *bulkSurvey) onLocated(place int, e api.Existence) {
	state, ok := stateOf(e)
	if !ok {
		s.t.c.m.undecided.Add(1)
		s.readPlace(place)
		return
	}
	s.takeAnswer(place, state, nil)
}

// readPlace asks for a name in one region in the background by a strong read, with the redirects
// and retries of one.
func (s *bulkSurvey) readPlace(place int) {
	s.t.c.spawn(func() {
		// alive: a region that dies during the survey is silent, not awaited.
		got, err := s.t.readOne(s.ctx, s.op, s.rangeAt(place), s.names[place/len(s.regions)], readOptions{alive: true, versions: true})
		switch {
		case err != nil:
			s.takeAnswer(place, silent, err)
		case got.Exists():
			s.takeAnswer(place, with, nil)
		default:
			s.takeAnswer(place, without, nil)
		}
	})
}

// takeAnswer records the answer of a place and decides about its name if that is possible now.
func (s *bulkSurvey) takeAnswer(place int, state placeState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[place] = state
	if err != nil {
		s.silence[place] = err
	}
	n := place / len(s.regions)
	if hit := s.hits[n]; hit != hitOpen {
		// Decisions are final, since the caller may have acted on them.
		if hit >= 0 && state == with {
			s.t.c.reportDuplicate(s.t, s.names[n], s.regions[hit].id, s.regions[place%len(s.regions)].id)
		}
		return
	}
	states := s.states[n*len(s.regions) : (n+1)*len(s.regions)]
	// Only the answers about this name matter, so an answer costs the same for any number of names.
	hit, mute, decided := findHit(states, s.prior)
	switch {
	case !decided:
		return
	case hit >= 0:
		s.hits[n] = int16(hit)
		// Other regions may have answered that they have the name before the prior one answered.
		for r, state := range states {
			if r != hit && state == with {
				s.t.c.reportDuplicate(s.t, s.names[n], s.regions[hit].id, s.regions[r].id)
			}
		}
	case mute >= 0:
		s.hits[n] = hitSilent
		// Copied, because location knows the name and not the place.
		s.silence[-1-n] = s.silence[n*len(s.regions)+mute]
	default:
		s.hits[n] = hitNone
	}
	if s.open--; s.open == 0 {
		close(s.done)
	}
}

// wait waits until all names are decided. It returns the error of ctx if ctx ends first.
func (s *bulkSurvey) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// location returns where a name is. waitErr is the error of wait, which becomes the error of a name
// that is not decided.
func (s *bulkSurvey) location(n int, waitErr error) (location, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := location{searched: s.searched, unasked: s.unasked}
	switch hit := s.hits[n]; hit {
	case hitOpen:
		// Only after wait has failed.
		return l, rhumb.WrapKind(s.op, kindOfContext(waitErr), waitErr)
	case hitSilent:
		return l, s.silence[-1-n]
	case hitNone:
	default:
		l.region = s.regions[hit].id
	}
	return l, nil
}
