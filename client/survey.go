package client

import (
	"context"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

const (
	// listenMax bounds how long a survey waits for more answers after its decision.
	listenMax = 5 * time.Second
	// listenersMax bounds the surveys of a client that wait for more answers at once, because they
	// would pile up if a region hangs. Further surveys do not look for a second record.
	listenersMax = 1 << 13
)

// survey asks several regions at once whether they have a record of one name, and concludes from
// their answers which region has it. planSurvey decides which regions are asked, and findHit what
// their answers mean. bulkSurvey does the same for many names.
type survey struct {
	t    *Table
	op   rhumb.Op
	name []byte
	// prior is the region whose record takes precedence over records elsewhere, so its answer is
	// always awaited. 0 means none.
	prior rhumb.RegionID
	asked []place
	// read holds the options of reads of places.
	read readOptions
	// unasked holds the dead regions that may have the record.
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
	without                   // at some moment during the survey the region had no record of the name
	with                      // at some moment during the survey the region had a record of the name
	silent                    // the region could not be asked
)

// placeAnswer is the answer from one place.
type placeAnswer struct {
	index int // in survey.asked
	state placeState
	got   Got
	err   error
}

// planSurvey returns a survey of every region in which a name may exist, except one that is known
// not to have it; 0 excludes none. Dead regions are not asked: nobody would answer for them.
func (t *Table) planSurvey(op rhumb.Op, name []byte, except rhumb.RegionID) (*survey, error) {
	s := &survey{t: t, op: op, name: name, read: readOptions{alive: true, versions: true}}
	for _, r := range t.c.meta.regionsWith(t.info.Class) {
		if r.ID == except {
			continue
		}
		// Not an error yet: another region may have the record.
		if r.Dead {
			s.unasked = append(s.unasked, r.ID)
			continue
		}
		id, err := t.c.meta.homeOfName(t, r.ID, name)
		if err != nil {
			return nil, err
		}
		s.asked = append(s.asked, place{id: id})
	}
	return s, nil
}

// judge returns the place that has the record according to the answers so far, nil for none.
// decided is false while another answer can change that.
func (s *survey) judge() (at *place, decided bool, err error) {
	// An array, so that no judgement allocates.
	var states [rhumb.RegionsMax]placeState
	for i := range s.asked {
		states[i] = s.asked[i].state
	}
	// -1 if there is no prior region, or if it is dead and was not asked.
	prior := slices.IndexFunc(s.asked, func(p place) bool { return p.id.Region == s.prior })
	hit, mute, decided := findHit(states[:len(s.asked)], prior)
	switch {
	case hit >= 0:
		at = &s.asked[hit]
	case mute >= 0:
		err = s.asked[mute].err
	}
	return at, decided, err
}

// findHit concludes from the states of places which of them has the record. prior is the index of
// the prior place, or -1. hit is the place that has the record, and mute the place whose silence is
// an error; both are -1 if no place has the record. decided is false while another answer can
// change the result.
//
// The first hit counts, once the prior region has answered. A silent region makes a miss an error:
// "not found" would be a guess, and a record that is created because of it might be the second of
// its name. The silence of the prior region is an error even if another region has the record,
// because the prior region may have one that takes precedence.
func findHit(states []placeState, prior int) (hit, mute int, decided bool) {
	hit, mute = -1, -1
	open := false
	for i, state := range states {
		switch state {
		case asking:
			// Whatever the others say, the prior region may change the result.
			if i == prior {
				return -1, -1, false
			}
			open = true
		case with:
			// Nothing takes precedence over this.
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
		// No hit yet, and one may still arrive, even if a region is silent.
		return -1, -1, false
	}
	return -1, mute, true
}

// run asks every place with ask, which must send exactly one answer for each, and returns the
// result of judge once it is decided. If a place has the record, run continues to receive answers
// in the background: a second place with a record means that the name was created twice while a
// region was dead.
func (s *survey) run(ctx context.Context, ask func(ctx context.Context, index int, answers chan<- placeAnswer)) (*place, error) {
	s.t.c.m.searches.Add(1)
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx)) // listen needs it after the caller's ctx has ended
	answers := make(chan placeAnswer, len(s.asked))                 // so that no answer blocks after run has returned
	for i := range s.asked {
		ask(whole, i, answers)
	}
	for open := len(s.asked); ; open-- {
		at, decided, err := s.judge()
		switch {
		case decided && at != nil:
			// Other regions may have answered that they have the name before the prior one
			// answered.
			for i := range s.asked {
				if p := &s.asked[i]; p != at && p.state == with {
					s.t.c.reportDuplicate(s.t, s.name, at.id.Region, p.id.Region)
				}
			}
			s.listenLater(at.id.Region, answers, open, cancel)
			return at, err
		case decided:
			// Without a hit there is no second one to look for.
			cancel()
			return nil, err
		}
		select {
		case a := <-answers:
			// Answers arrive in any order, each exactly once.
			p := &s.asked[a.index]
			p.state, p.got, p.err = a.state, a.got, a.err
		case <-ctx.Done():
			cancel()
			return nil, rhumb.WrapKind(s.op, kindOfContext(ctx.Err()), ctx.Err())
		}
	}
}

// listenLater runs listen in the background if answers are missing, and then ends the survey with
// cancel.
func (s *survey) listenLater(found rhumb.RegionID, answers <-chan placeAnswer, open int, cancel context.CancelFunc) {
	c := s.t.c
	// Load and Add are not one step, so a few more may listen. The bound need not be exact.
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

// listen receives the answers that are missing and reports a second region that has the record.
func (s *survey) listen(found rhumb.RegionID, answers <-chan placeAnswer, open int) {
	end := time.After(listenMax)
	for range open {
		select {
		case a := <-answers:
			if a.state == with {
				s.t.c.reportDuplicate(s.t, s.name, found, s.asked[a.index].id.Region)
			}
		case <-end:
			return
		}
	}
}

// readPlace asks a place in the background by a strong read, with the redirects and retries of one.
func (s *survey) readPlace(ctx context.Context, index int, answers chan<- placeAnswer) {
	s.t.c.spawn(func() {
		got, err := s.t.readOne(ctx, s.op, s.asked[index].id, s.name, s.read)
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

// locatePlace asks a place together with other callers' questions to the same node, without reading
// the value. If that node leaves the question undecided, the place is read.
func (s *survey) locatePlace(ctx context.Context, index int, answers chan<- placeAnswer) {
	id := s.asked[index].id
	// Questions go to the node that is primary by the client's metadata. A wrong one leaves them
	// undecided, and the read follows the redirect.
	_, primary, ok := s.t.c.meta.primaryOf(id)
	if !ok {
		s.readPlace(ctx, index, answers)
		return
	}
	s.t.c.locator.askNode(destination{id.Region, primary.Addr}, question{s.t.info.ID, s.name, &surveyAsker{s, ctx, answers}, index})
}

// surveyAsker receives the answers to the questions of a survey.
type surveyAsker struct {
	s       *survey
	ctx     context.Context
	answers chan<- placeAnswer
}

func (a *surveyAsker) onLocated(index int, e api.Existence) {
	state, ok := stateOf(e)
	if !ok {
		a.s.t.c.m.undecided.Add(1)
		// The read sends the one answer that run expects for this place.
		a.s.readPlace(a.ctx, index, a.answers)
		return
	}
	a.answers <- placeAnswer{index: index, state: state}
}

// stateOf returns the state of a place according to its node. ok is false if the node left it
// undecided.
func stateOf(e api.Existence) (state placeState, ok bool) {
	switch e {
	case api.Absent:
		return without, true
	case api.Present:
		return with, true
	}
	return asking, false
}

// location is the result of a survey of one name.
type location struct {
	region rhumb.RegionID // 0 if no region has the record
	// searched is the number of regions asked beyond the caller's, and unasked holds the dead ones.
	searched int
	unasked  []rhumb.RegionID
}

// conclusion returns the location of a record that run found in a place, nil for none.
func (s *survey) conclusion(at *place) location {
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
