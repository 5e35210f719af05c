package client

import (
	"context"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// survey asks regions at once whether they have a record of one name, and concludes from their answers where the record
// is. Table.survey decides which regions are asked, judge what their answers and their silence mean.
type survey struct {
	t    *Table
	op   rhumb.Op
	name []byte
	// prior is the region whose record comes before any elsewhere: its answer is always waited for. 0 is none.
	prior rhumb.RegionID
	asked []place
	// unasked are the dead regions that could have the record.
	unasked []rhumb.RegionID
}

// place is one region of a survey.
type place struct {
	id    rhumb.RangeID // the range in which the region would have the record
	state placeState
	got   Got   // of a read
	err   error // why the region is silent
}

type placeState uint8

const (
	asking  placeState = iota // no answer yet
	without                   // at some moment of the survey the region had no record of the name
	with                      // it had one
	silent                    // it could not be asked
)

// placeAnswer is what a survey learns of one place.
type placeAnswer struct {
	index int // in survey.asked
	state placeState
	got   Got
	err   error
}

// survey plans to ask every region in which a name may live, except one that is known not to have it; 0 excludes none.
// Dead regions are not asked: nobody would answer for them.
func (t *Table) survey(op rhumb.Op, name []byte, except rhumb.RegionID) (*survey, error) {
	s := &survey{t: t, op: op, name: name}
	for _, r := range t.c.meta.regionsWith(t.info.Class) {
		if r.ID == except {
			continue
		}
		if r.Dead {
			s.unasked = append(s.unasked, r.ID)
			continue
		}
		id, err := t.c.meta.named(t, r.ID, name)
		if err != nil {
			return nil, err
		}
		s.asked = append(s.asked, place{id: id})
	}
	return s, nil
}

// judge returns where the record is by the answers so far, nil for nowhere. decided is false while another answer can
// change that.
func (s *survey) judge() (at *place, decided bool, err error) {
	var states [rhumb.RegionsMax]placeState
	for i := range s.asked {
		states[i] = s.asked[i].state
	}
	prior := slices.IndexFunc(s.asked, func(p place) bool { return p.id.Region == s.prior })
	hit, mute, decided := judge(states[:len(s.asked)], prior)
	switch {
	case hit >= 0:
		at = &s.asked[hit]
	case mute >= 0:
		err = s.asked[mute].err
	}
	return at, decided, err
}

// judge concludes from the states of places, of which one may be prior. hit is the place that has the record; mute is the one
// whose silence is an error; both are -1 when no place has it. decided is false while another answer can change that.
//
// The first hit counts, once the prior region has answered. A region that cannot be asked makes a miss unknown, which is
// an error: "not found" would be a guess, and a record created because of it might be the second of its name. The silence
// of the prior region is an error even if another has the record, which may then be the lesser of two.
func judge(states []placeState, prior int) (hit, mute int, decided bool) {
	hit, mute = -1, -1
	open := false
	for i, state := range states {
		switch state {
		case asking:
			if i == prior {
				return -1, -1, false
			}
			open = true
		case with:
			if i == prior {
				return i, -1, true
			}
			hit = i
		case silent:
			if i == prior {
				return -1, i, true
			}
			mute = i
		}
	}
	switch {
	case hit >= 0:
		return hit, -1, true
	case open:
		return -1, -1, false
	}
	return -1, mute, true
}

// run asks every place by ask, which must lead to one answer, and returns the judgement. After a hit it goes on listening
// in the background: a second one is a name that was created twice while a region was dead.
func (s *survey) run(ctx context.Context, ask func(ctx context.Context, index int, answers chan<- placeAnswer)) (*place, error) {
	s.t.c.m.searches.Add(1)
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the survey outlives its caller by listen
	answers := make(chan placeAnswer, len(s.asked))
	for i := range s.asked {
		ask(whole, i, answers)
	}
	for open := len(s.asked); ; open-- {
		at, decided, err := s.judge()
		switch {
		case decided && at != nil:
			// Other regions may have answered that they have the name while the answer of the prior one was missing.
			for i := range s.asked {
				if p := &s.asked[i]; p != at && p.state == with {
					s.t.c.twice(s.t, s.name, at.id.Region, p.id.Region)
				}
			}
			s.listenLater(at.id.Region, answers, open, cancel)
			return at, err
		case decided:
			cancel()
			return nil, err
		}
		select {
		case a := <-answers:
			p := &s.asked[a.index]
			p.state, p.got, p.err = a.state, a.got, a.err
		case <-ctx.Done():
			cancel()
			return nil, rhumb.WrapKind(s.op, kindOfContext(ctx.Err()), ctx.Err())
		}
	}
}

const (
	// listenMax bounds how long a survey waits for answers after its decision.
	listenMax = 5 * time.Second
	// listenersMax bounds the surveys of a client that wait so at once; a region that hangs would gather them. Further ones
	// do not look for a second record.
	listenersMax = 1 << 13
)

// listenLater runs listen in the background when answers are missing, and ends the survey with cancel.
func (s *survey) listenLater(found rhumb.RegionID, answers <-chan placeAnswer, open int, cancel context.CancelFunc) {
	c := s.t.c
	if open == 0 || c.listeners.Load() >= listenersMax {
		cancel()
		return
	}
	c.listeners.Add(1)
	c.spawn(func() {
		defer c.listeners.Add(-1)
		defer cancel()
		s.listen(found, answers, open)
	})
}

// listen takes the answers that are still under way and reports a region that has the record, too.
func (s *survey) listen(found rhumb.RegionID, answers <-chan placeAnswer, open int) {
	end := time.After(listenMax)
	for range open {
		select {
		case a := <-answers:
			if a.state == with {
				s.t.c.twice(s.t, s.name, found, s.asked[a.index].id.Region)
			}
		case <-end:
			return
		}
	}
}

// read asks a place in the background.
func (s *survey) read(ctx context.Context, index int, answers chan<- placeAnswer) {
	s.t.c.spawn(func() { answers <- s.readPlace(ctx, index) })
}

// readPlace asks a place by a strong read, with the redirects and retries of one.
func (s *survey) readPlace(ctx context.Context, index int) placeAnswer {
	got, err := s.t.readAlive(ctx, s.op, s.asked[index].id, s.name)
	a := placeAnswer{index: index, state: without, got: got, err: err}
	switch {
	case err != nil:
		a.state = silent
	case got.Exists():
		a.state = with
	}
	return a
}

// locate asks a place together with what other callers ask the same node. What that node leaves undecided is read.
func (s *survey) locate(ctx context.Context, index int, answers chan<- placeAnswer) {
	id := s.asked[index].id
	_, primary, ok := s.t.c.meta.primary(id)
	if !ok {
		s.read(ctx, index, answers)
		return
	}
	s.t.c.locator.ask(destination{id.Region, primary.Addr}, question{s.t.info.ID, s.name, &asker{s, ctx, answers}, index})
}

// asker takes the answers to the questions of a survey.
type asker struct {
	s       *survey
	ctx     context.Context
	answers chan<- placeAnswer
}

func (a *asker) located(index int, e api.Existence) {
	state, ok := stateOf(e)
	if !ok {
		a.s.t.c.m.undecided.Add(1)
		a.s.read(a.ctx, index, a.answers)
		return
	}
	a.answers <- placeAnswer{index: index, state: state}
}

// stateOf returns the state of a place by what its node says; ok is false if that is nothing.
func stateOf(e api.Existence) (state placeState, ok bool) {
	switch e {
	case api.Absent:
		return without, true
	case api.Present:
		return with, true
	}
	return asking, false
}

// location is what regions say of where a record is.
type location struct {
	region rhumb.RegionID // 0 when no region has it
	// searched is the number of regions asked beyond the caller's, unasked are the dead ones.
	searched int
	unasked  []rhumb.RegionID
}

// location returns what a survey has concluded.
func (s *survey) location(at *place) location {
	l := location{unasked: s.unasked}
	for i := range s.asked {
		if s.asked[i].id.Region != s.t.c.here.ID {
			l.searched++
		}
	}
	if at != nil {
		l.region = at.id.Region
	}
	return l
}
