package raftmeta

import (
	"slices"
	"testing"
)

// TestWhomToAsk checks whom a replica asks, and how often, in each state of the proof.
func TestWhomToAsk(t *testing.T) {
	three := standing{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}}
	alone := standing{Voters: []uint64{1}, Learners: []uint64{4, 5}}
	for name, c := range map[string]struct {
		standing standing
		silent   bool
		answered []uint64
		tick     uint64
		want     []uint64
	}{
		"silent, every tick":              {three, true, nil, 1, []uint64{2, 3}},
		"silent, also those who answered": {three, true, []uint64{2}, 1, []uint64{2, 3}},
		"alone, the learners":             {alone, true, nil, 1, []uint64{4, 5}},
		"takes part, now and then":        {three, false, nil, askLater, []uint64{2, 3}},
		"takes part, not now":             {three, false, nil, askLater + 1, nil},
		"takes part, who has not heard":   {three, false, []uint64{2}, askLater, []uint64{3}},
	} {
		p := newProof(1, record{Life: 9, Short: true}, !c.silent, c.standing)
		for _, id := range c.answered {
			p.hearAnswer(id, answer{Life: 9}, c.standing)
		}
		if got := p.nodesToAsk(c.tick, c.standing); !slices.Equal(got, c.want) {
			t.Errorf("%s: asks %v, want %v", name, got, c.want)
		}
	}
}

// TestAnswersOutOfOrder: what a peer has promised stays promised, whichever of its answers arrives
// last.
func TestAnswersOutOfOrder(t *testing.T) {
	s := standing{Voters: []uint64{1, 2, 3}}
	p := newProof(1, record{Life: 9}, false, s)
	p.hearAnswer(2, answer{Life: 9, Term: 8, Last: position{7, 20}}, s)
	p.hearAnswer(2, answer{Life: 9, Term: 5, Last: position{5, 30}}, s)
	p.hearAnswer(3, answer{Life: 9, Term: 2, Last: position{2, 40}}, s)
	if r := p.nextRuling(s); !r.Store || r.Vote != 8 || p.floor != (position{7, 20}) {
		t.Errorf("ruling %+v, floor %v; want a vote in term 8 and the floor 7/20", r, p.floor)
	}
}

// TestFloorIsReached: the mark ends durably when the log has reached the floor, not before.
func TestFloorIsReached(t *testing.T) {
	p := newProof(1, record{Life: 9, Short: true}, true, standing{})
	p.floor, p.record.Floor, p.record.Short = position{4, 10}, position{4, 10}, true
	if r := p.nextRuling(standing{Last: position{4, 9}}); r != (ruling{}) || !p.record.Short || p.mayCampaign() {
		t.Fatalf("below the floor: ruling %+v, short %v, campaigns %v", r, p.record.Short, p.mayCampaign())
	}
	if r := p.nextRuling(standing{Last: position{4, 10}}); !r.Store || p.record.Short || p.record.Floor != (position{}) || !p.mayCampaign() {
		t.Errorf("at the floor: ruling %+v, short %v, campaigns %v", r, p.record.Short, p.mayCampaign())
	}
}

// TestFloorHolderDies: a replica below its floor asks again once nobody has led for a while, since
// the only copy above may be gone. A leader, even a new one, fills the log and needs no question.
func TestFloorHolderDies(t *testing.T) {
	below := func() *proof {
		s := standing{Voters: []uint64{1, 2, 3}}
		p := newProof(1, record{Life: 9}, false, s)
		p.hearAnswer(2, answer{Life: 9, Last: position{4, 10}}, s)
		p.hearAnswer(3, answer{Life: 9, Last: position{4, 2}}, s)
		p.nextRuling(s)
		if p.silent || p.floor != (position{4, 10}) {
			t.Fatalf("silent %v, floor %v", p.silent, p.floor)
		}
		return p
	}
	led := below()
	for i := range 10 * floorAfter {
		led.tick(i%floorAfter == 0)
	}
	if led.silent {
		t.Error("asks again while somebody leads")
	}
	p := below()
	for range floorAfter {
		p.tick(false)
	}
	if p.silent {
		t.Error("asks again early")
	}
	p.tick(false)
	if !p.silent || p.belowFloor() || len(p.answers) != 0 {
		t.Fatalf("does not ask again: silent %v, floor %v, %d answers", p.silent, p.floor, len(p.answers))
	}
	s := standing{Last: position{4, 2}, Voters: []uint64{1, 3}}
	p.hearAnswer(3, answer{Life: 9, Last: position{4, 2}, Applied: 1, Voters: []uint64{1, 3}}, s)
	p.nextRuling(s)
	if !p.mayCampaign() {
		t.Errorf("the answers that are left do not suffice: silent %v, floor %v", p.silent, p.floor)
	}
}

// TestOnlyVoter checks how long a replica that knows of no other voter is silent.
func TestOnlyVoter(t *testing.T) {
	for name, c := range map[string]struct {
		short    bool
		learners []uint64
		answers  int
		silent   int // ticks
	}{
		"whole, without learners":    {},
		"whole, learners are silent": {learners: []uint64{2, 3}, silent: fewAfter},
		"whole, one learner answers": {learners: []uint64{2, 3}, answers: 1, silent: fewAfter},
		"whole, all learners answer": {learners: []uint64{2, 3}, answers: 2},
		"short, without learners":    {short: true, silent: shortAlone},
		"short, all learners answer": {short: true, learners: []uint64{2}, answers: 1, silent: shortAlone},
	} {
		s := standing{Voters: []uint64{1}, Learners: c.learners}
		p := newProof(1, record{Life: 9, Short: c.short}, false, s)
		for _, id := range c.learners[:c.answers] {
			p.hearAnswer(id, answer{Life: 9}, s)
		}
		ticks := 0
		for p.nextRuling(s); p.silent && ticks < 1000; p.nextRuling(s) {
			p.tick(false)
			ticks++
		}
		if ticks != c.silent {
			t.Errorf("%s: silent for %d ticks, want %d", name, ticks, c.silent)
		}
	}
}

// TestForgottenVotersAreAwaited: a short founder remembers itself as the only voter and one learner. The learner has not heard either
// that both it and a third node vote by now. The third node says so, and the founder then needs the answers of all.
func TestForgottenVotersAreAwaited(t *testing.T) {
	s := standing{Last: position{2, 7}, Applied: 6, Voters: []uint64{1}, Learners: []uint64{2}}
	p := newProof(1, record{Life: 9, Short: true}, false, s)
	p.hearAnswer(2, answer{Life: 9, Last: position{2, 9}, Applied: 9, Voters: []uint64{1}}, s)
	for range shortAlone - 1 {
		p.tick(false)
		if p.nextRuling(s); !p.silent {
			t.Fatalf("takes part after %d ticks, although other voters may exist", p.waited)
		}
	}
	p.hearAnswer(3, answer{Life: 9, Last: position{2, 11}, Applied: 11, Voters: []uint64{1, 2, 3}}, s)
	p.tick(false)
	p.nextRuling(s)
	if p.silent || p.mayCampaign() || p.floor != (position{2, 11}) {
		t.Errorf("all have answered: silent %v, may campaign %v, floor %v", p.silent, p.mayCampaign(), p.floor)
	}
}

// TestDamageByHearsay: a peer that knows a life which the disk does not know makes the replica
// short, durably and once.
func TestDamageByHearsay(t *testing.T) {
	s := standing{Voters: []uint64{1, 2, 3}}
	p := newProof(1, record{Life: 9}, false, s)
	if r := p.hearAnswer(2, answer{Life: 9, Verdict: lifeDiffers}, s); !r.Store || !p.record.Short || !p.newQuestion(s.Last).Short {
		t.Errorf("ruling %+v, short %v", r, p.record.Short)
	}
	if r := p.hearAnswer(2, answer{Life: 9, Verdict: lifeDiffers}, s); r.Store {
		t.Error("a repetition is stored again")
	}
	if got := p.unansweredVoters(s); !slices.Equal(got, []uint64{3}) {
		t.Errorf("waits for %v, want 3", got)
	}
}

// TestLearnerKnowsAnEarlierLife: a node without a vote, which knows the life that was admitted and none since, does not make the replica short. With
// one of three voters dead, a short replica would wait for a leader for ever (seed 933 of sim). A replica that may have forgotten the other
// voters believes it.
func TestLearnerKnowsAnEarlierLife(t *testing.T) {
	s := standing{Last: position{4, 9}, Applied: 9, Voters: []uint64{1, 2, 3}}
	p := newProof(1, record{Life: 9, Formers: []uint64{8}}, false, s)
	if r := p.hearAnswer(7, answer{Life: 9, Verdict: lifeDiffers, Applied: 9, Voters: []uint64{1, 2, 3}}, s); r.Store || p.record.Short {
		t.Errorf("ruling %+v, short %v", r, p.record.Short)
	}
	p.hearAnswer(2, answer{Life: 9, Verdict: lifeMatched, Last: s.Last}, s)
	for range fewAfter {
		p.tick(false)
	}
	if p.nextRuling(s); p.silent {
		t.Error("it is silent although voter 2 knows its former life")
	}
	alone := standing{Applied: 1, Voters: []uint64{1}}
	p = newProof(1, record{Life: 9}, false, alone)
	if p.silent = true; !p.hearAnswer(7, answer{Life: 9, Verdict: lifeDiffers}, alone).Store {
		t.Error("a replica that knows no other voter does not believe a node")
	}
}

// TestFloorOutlivesRestart: an intact voter that lags starts twice before its log reaches the floor, and the third voter, which answered the
// first time, is lost then. The second voter's answer is enough if its log has the floor: the replica votes for it, and for nobody below. A loss
// that is found after the floor was stored makes the replica wait for all again.
func TestFloorOutlivesRestart(t *testing.T) {
	s := standing{Last: position{4, 2}, Applied: 2, Voters: []uint64{1, 2, 3}}
	p := newProof(1, record{}.beginLife(8, false).beginLife(9, false), false, s)
	p.hearAnswer(2, answer{Life: 9, Verdict: lifeMatched, Last: position{4, 8}}, s)
	p.hearAnswer(3, answer{Life: 9, Verdict: lifeMatched, Last: position{4, 10}}, s)
	if r := p.nextRuling(s); !r.Store || p.silent {
		t.Fatalf("all have answered: ruling %+v, silent %v", r, p.silent)
	}
	start := func(damaged bool, last position) *proof {
		again := newProof(1, p.record.beginLife(10, damaged), false, s)
		again.hearAnswer(2, answer{Life: 10, Verdict: lifeMatched, Last: last}, s)
		for range fewAfter {
			again.tick(false)
		}
		again.nextRuling(s)
		return again
	}
	for _, last := range []position{{4, 8}, {4, 10}, {4, 12}, {5, 3}} {
		again := start(false, last)
		if again.silent || again.mayCampaign() || again.mayVote(position{4, 9}) {
			t.Errorf("voter 2 is at %v: silent %v, campaigns %v, votes below the floor %v", last, again.silent, again.mayCampaign(), again.mayVote(position{4, 9}))
		}
		if want := !last.less(position{4, 10}); again.mayVote(last) != want {
			t.Errorf("voter 2 is at %v: votes for it %v, want %v", last, again.mayVote(last), want)
		}
	}
	if again := start(true, position{4, 12}); !again.silent || again.record.Floor != (position{}) {
		t.Errorf("after a loss: silent %v, stored floor %v", again.silent, again.record.Floor)
	}
}

// TestFormersAreBounded: starts do not make a question grow without bound, and
// the newest life that a peer may know is kept.
func TestFormersAreBounded(t *testing.T) {
	r := record{}
	for life := uint64(1); life <= 3*formersMax; life++ {
		r = r.beginLife(life, false)
	}
	if len(r.Formers) != formersMax || r.Formers[formersMax-1] != 3*formersMax-1 {
		t.Errorf("%d former lives, the last %d", len(r.Formers), r.Formers[len(r.Formers)-1])
	}
}
