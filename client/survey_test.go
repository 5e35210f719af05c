package client

import (
	"context"
	"testing"
)

// TestSecondRecordBeforeDecision guards that a name which exists twice is noticed when both regions
// answer before the caller's own region, whose answer decides.
func TestSecondRecordBeforeDecision(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("singapore")
	tab := w.table(c, "plain")

	one := must[*survey](t)(tab.planSurvey("test", []byte("twice"), 0))
	one.prior = c.here.ID
	at, err := one.run(t.Context(), func(_ context.Context, index int, answers chan<- placeAnswer) {
		// The regions are asked in the order of their IDs. The caller's own comes first and answers
		// last.
		if index > 0 {
			answers <- placeAnswer{index: index, state: with}
		}
		if index == 2 {
			answers <- placeAnswer{index: 0, state: without}
		}
	})
	if err != nil || at == nil || c.Metrics().Duplicates != 1 {
		t.Errorf("survey: at %v, error %v, %d duplicates noticed, want 1", at, err, c.Metrics().Duplicates)
	}

	many := &bulkSurvey{
		t: tab, names: [][]byte{[]byte("twice")}, regions: []askedRegion{{id: 1}, {id: 2}, {id: 3}}, prior: 0,
		states: make([]placeState, 3), silence: map[int]error{}, hits: []int16{hitOpen}, open: 1, done: make(chan struct{}),
	}
	many.takeAnswer(1, with, nil)
	many.takeAnswer(2, with, nil)
	many.takeAnswer(0, without, nil)
	if l, err := many.location(0, nil); err != nil || l.region == 0 || c.Metrics().Duplicates != 2 {
		t.Errorf("bulk survey: location %+v, error %v, %d duplicates noticed in all, want 2", l, err, c.Metrics().Duplicates)
	}
}
