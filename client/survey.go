package client

import (
	"context"
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
//
// The first hit counts, once the prior region has answered. A region that cannot be asked makes a miss unknown, which is
// an error: "not found" would be a guess, and a record created because of it might be the second of its name. The silence
// of the prior region is an error even if another has the record, which may then be the lesser of two.
func (s *survey) judge() (at *place, decided bool, err error) {
	var failed error
	open := false
	for i := range s.asked {
		p := &s.asked[i]
		prior := p.id.Region == s.prior
		switch p.state {
		case asking:
			if prior {
				return nil, false, nil
			}
			open = true
		case with:
			if prior {
				return p, true, nil
			}
			at = p
		case silent:
			if prior {
				return nil, true, p.err
			}
			failed = p.err
		}
	}
	switch {
	case at != nil:
		return at, true, nil
	case open:
		return nil, false, nil
	}
	return nil, true, failed
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

// read asks a place by a strong read, with the redirects and retries of one.
func (s *survey) read(ctx context.Context, index int, answers chan<- placeAnswer) {
	s.t.c.spawn(func() {
		got, err := s.t.readOne(ctx, s.op, s.asked[index].id, s.name, false)
		a := placeAnswer{index: index, state: without, got: got, err: err}
		switch {
		case err != nil:
			a.state = silent
		case got.Exists():
			a.state = with
		}
		answers <- a
	})
}

// locate asks a place together with what other callers ask the same node. What that node leaves undecided is read.
func (s *survey) locate(ctx context.Context, index int, answers chan<- placeAnswer) {
	c := s.t.c
	id := s.asked[index].id
	_, primary, ok := c.meta.primary(id)
	if !ok {
		s.read(ctx, index, answers)
		return
	}
	c.locator.ask(destination{id.Region, primary.Addr}, question{table: s.t.info.ID, name: s.name, answer: func(e api.Existence) {
		switch e {
		case api.Absent:
			answers <- placeAnswer{index: index, state: without}
		case api.Present:
			answers <- placeAnswer{index: index, state: with}
		default:
			c.m.undecided.Add(1)
			s.read(ctx, index, answers)
		}
	}})
}

// locate finds the region that has a record of a name, of all regions asked at once and without memory. It asks only
// whether the record exists. searched is the number of regions asked beyond the caller's, unasked the dead ones.
func (t *Table) locate(ctx context.Context, op rhumb.Op, name []byte) (region rhumb.RegionID, found bool, searched int, unasked []rhumb.RegionID, err error) {
	s, err := t.survey(op, name, 0)
	if err != nil {
		return 0, false, 0, nil, err
	}
	s.prior = t.c.here.ID
	for i := range s.asked {
		if s.asked[i].id.Region != s.prior {
			searched++
		}
	}
	at, err := s.run(ctx, s.locate)
	if err != nil || at == nil {
		return 0, false, searched, s.unasked, err
	}
	return at.id.Region, true, searched, s.unasked, nil
}
