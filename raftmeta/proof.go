package raftmeta

import (
	"maps"
	"slices"
)

// formersMax bounds the former lives that a replica presents. Only starts that never took part add to them.
const formersMax = 64

// Waiting times of a replica that proves its log, in ticks.
const (
	// askSilent is how often a silent replica asks, askLater how often one that takes part tells its life to voters that have
	// not heard it.
	askSilent = 1
	askLater  = 3
	// fewAfter is how long a replica that knows of no damage waits for the answers of all voters before those of a majority
	// suffice.
	fewAfter = 10
	// shortAlone is how long a replica that is short, and knows itself as the only member, waits for others that it may have
	// forgotten: they ask for its vote sooner.
	shortAlone = 50
	// floorAfter is how long a replica below its floor goes without a leader before it asks again.
	floorAfter = 50
)

// position is the place of an entry, ordered as Raft orders logs: by term, then by index.
type position struct {
	Term  uint64 `cbor:"1,keyasint"`
	Index uint64 `cbor:"2,keyasint"`
}

// behind reports whether a log that ends at p lacks something that a log that ends at q may hold.
func (p position) less(q position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// admission is a committed change of members that takes one life of a replica in.
type admission struct {
	Life uint64 `cbor:"1,keyasint"`
	// Index is that of the change. Learner says that the change gave no vote.
	Index   uint64 `cbor:"2,keyasint"`
	Learner bool   `cbor:"3,keyasint,omitempty"`
}

// verdict says how the former life that a replica presents compares with the one that a peer has stored of it.
type verdict uint8

const (
	lifeUnknown verdict = iota // the peer knew no life of the replica
	lifeMatched                // the peer knew the life that was presented
	lifeDiffers                // the peer knows a life that the replica's disk does not: the disk is older
)

// record is what a replica stores of itself.
type record struct {
	// Life is random and drawn at each start.
	Life uint64 `cbor:"1,keyasint"`
	// Formers are the lives before, back to the last that took part.
	Formers []uint64 `cbor:"2,keyasint,omitempty"`
	// Took is true when Life took part.
	Took bool `cbor:"3,keyasint,omitempty"`
	// Short is true while the replica may lack something that it had made durable.
	Short bool `cbor:"4,keyasint,omitempty"`
	// Voters are those of the newest configuration that the replica applied.
	Voters []uint64 `cbor:"5,keyasint,omitempty"`
	// Recovered is the last recovery by force, nil if there was none.
	Recovered *Recovery `cbor:"6,keyasint,omitempty"`
}

// begin returns the record of a new life.
func (r record) beginLife(life uint64, short bool) record {
	switch {
	case r.Took:
		r.Formers = []uint64{r.Life}
	case r.Life != 0:
		r.Formers = append(slices.Clone(r.Formers), r.Life)
		r.Formers = r.Formers[max(0, len(r.Formers)-formersMax):]
	}
	r.Life, r.Took, r.Short = life, false, r.Short || short
	return r
}

// proof decides when a replica that has started takes part in votes and acknowledgements again: what its disk holds may be
// less than what it promised. Until then it is silent. It is a value without I/O or clock; the driver carries out what next
// returns. See docs/decisions/0020-a-voter-proves-its-log.md.
type proof struct {
	self   uint64
	record record
	silent bool
	// learner is true when a leader took this life in without a vote: acknowledgements are true then, and votes are not asked.
	learner bool

	answers map[uint64]answer
	// floor is where the log must reach before the replica campaigns, or votes for a log below it.
	floor position

	// waited counts the ticks of the silence, led those since a leader was heard.
	waited, led int
}

// standing is how the replica's own log stands.
type standing struct {
	Last    position
	Applied uint64
	// Voters and Learners are those of the configuration that was applied.
	Voters, Learners []uint64
}

// ruling is what the driver has to do.
type ruling struct {
	// Store says that the record is to be made durable, before anything else is sent.
	Store bool
	// Vote, unless 0, says that the hard state is raised to this term at least, with a vote for the replica itself.
	Vote uint64
}

// newProof returns the proof of a start. A replica that is fresh has promised nothing, and the only member has nobody to ask.
// One that is short may only have forgotten the others.
func newProof(self uint64, r record, fresh bool, s standing) *proof {
	p := &proof{self: self, record: r, answers: make(map[uint64]answer)}
	p.silent = !fresh && !(p.isAlone(s.Voters) && len(s.Learners) == 0 && !r.Short)
	if !p.silent {
		p.record.Took, p.record.Short = true, false
	}
	return p
}

// alone reports whether the replica is the only voter.
func (p *proof) isAlone(voters []uint64) bool { return slices.Equal(voters, []uint64{p.self}) }

// question returns what the replica asks.
func (p *proof) newQuestion(last position) question {
	return question{Life: p.record.Life, Formers: p.record.Formers, Short: p.record.Short, Silent: p.silent, Last: last}
}

// asked lists the nodes to ask in this tick.
func (p *proof) nodesToAsk(tick uint64, s standing) []uint64 {
	every := uint64(askLater)
	if p.silent {
		every = askSilent
	}
	if tick%every != 0 {
		return nil
	}
	ask := p.newestVoters(s)
	if p.isAlone(ask) { // the learners know whether it still is
		ask = append(ask, s.Learners...)
	}
	return slices.DeleteFunc(ask, func(id uint64) bool {
		_, answered := p.answers[id]
		return id == p.self || answered && !p.silent
	})
}

// voters returns those of the newest configuration that the replica or one that answered has applied.
func (p *proof) newestVoters(s standing) []uint64 {
	applied, voters := s.Applied, s.Voters
	if len(voters) == 0 {
		applied = 0
	}
	for _, id := range slices.Sorted(maps.Keys(p.answers)) {
		if a := p.answers[id]; a.Applied > applied && len(a.Voters) > 0 {
			applied, voters = a.Applied, a.Voters
		}
	}
	return slices.Clone(voters)
}

// hear takes an answer in.
func (p *proof) hearAnswer(from uint64, a answer) (r ruling) {
	if a.Life != p.record.Life {
		return r
	}
	old := p.answers[from]
	a.Term = max(a.Term, old.Term)
	if a.Last.less(old.Last) {
		a.Last = old.Last
	}
	p.answers[from] = a
	if a.Verdict == lifeDiffers && p.silent && !p.record.Short {
		p.record.Short, r.Store = true, true
	}
	return r
}

// tick counts a tick.
func (p *proof) tick(led bool) {
	p.waited++
	p.led++
	if led {
		p.led = 0
	}
	if !p.silent && p.belowFloor() && p.led > floorAfter { // the holder of what lacks may have died: ask again
		p.silent, p.learner, p.waited = true, false, 0
		p.answers, p.floor = make(map[uint64]answer), position{}
	}
}

// next returns what is to be done now.
func (p *proof) nextRuling(s standing) ruling {
	if !p.silent {
		return p.reachFloor(s)
	}
	a := p.newestAdmission()
	switch {
	case a.Life != 0 && !a.Learner && s.Applied >= a.Index:
		return p.endSilence(s, position{})
	case a.Life != 0 && !p.learner:
		p.learner = true
		term, _ := p.maxAnswered(slices.Collect(maps.Keys(p.answers)))
		return ruling{Vote: max(term, 1)}
	case p.heardEnough(s) && !p.isOverrated(s):
		_, told := p.maxAnswered(p.newestVoters(s))
		return p.endSilence(s, told)
	}
	return ruling{}
}

// reach ends the floor when the log is there.
func (p *proof) reachFloor(s standing) ruling {
	if !p.belowFloor() || s.Last.less(p.floor) {
		return ruling{}
	}
	p.floor, p.record.Short = position{}, false
	return ruling{Store: true}
}

// join ends the silence. It has voted for itself in the greatest term it was told of, so that it votes for nobody in a term
// in which it may have voted already. Below the floor it stays short: a start in between must not look whole.
func (p *proof) endSilence(s standing, told position) ruling {
	p.silent, p.learner, p.led = false, false, 0
	p.record.Took, p.record.Short = true, false
	if s.Last.less(told) {
		p.floor, p.record.Short = told, true
	}
	term, _ := p.maxAnswered(slices.Collect(maps.Keys(p.answers)))
	return ruling{Store: true, Vote: max(term, 1)}
}

// told returns the greatest term and the greatest end of a log in the answers of some nodes.
func (p *proof) maxAnswered(nodes []uint64) (term uint64, last position) {
	for _, id := range nodes {
		a := p.answers[id]
		term = max(term, a.Term)
		if last.less(a.Last) {
			last = a.Last
		}
	}
	return term, last
}

// admitted returns the newest admission of this life that an answer tells of.
func (p *proof) newestAdmission() (newest admission) {
	for _, a := range p.answers {
		if a.Admitted.Life == p.record.Life && a.Admitted.Index > newest.Index {
			newest = a.Admitted
		}
	}
	return newest
}

// heardEnough reports whether all other voters have answered. After a while a majority is enough, if nothing is known to
// lack and each of them has stored the life before this one: only then is damage out of the question. A replica that is no
// voter has no vote to give twice, and may have been stopped before anybody heard of a life of it: for such a replica it is
// enough that none of the majority knows another life.
func (p *proof) heardEnough(s standing) bool {
	voters := p.newestVoters(s)
	if p.isAlone(voters) {
		if len(s.Learners) == 0 && p.record.Short {
			return p.waited >= shortAlone
		}
		return p.waited >= fewAfter || len(s.Learners) > 0 && len(p.answers) >= len(s.Learners)
	}
	heard, matched := 0, 0
	votes := slices.Contains(voters, p.self)
	for _, id := range voters {
		a, ok := p.answers[id]
		switch {
		case id == p.self:
			heard, matched = heard+1, matched+1
		case ok:
			heard++
			if a.Verdict == lifeMatched || !votes && a.Verdict == lifeUnknown {
				matched++
			}
		}
	}
	switch {
	case len(voters) == 0:
		return false
	case heard == len(voters):
		return true
	}
	return p.waited >= fewAfter && !p.record.Short && matched == heard && matched > len(voters)/2
}

// overrated reports whether a leader counts on entries that the log does not hold. It never takes that back: it must take
// the replica in anew.
func (p *proof) isOverrated(s standing) bool {
	for _, a := range p.answers {
		if a.Leads && a.Match > s.Last.Index {
			return true
		}
	}
	return false
}

// unanswered returns the voters that a silent replica waits for.
func (p *proof) unansweredVoters(s standing) []uint64 {
	if !p.silent {
		return nil
	}
	return slices.DeleteFunc(p.newestVoters(s), func(id uint64) bool {
		_, answered := p.answers[id]
		return id == p.self || answered
	})
}

// toldOfLeader reports whether one that answered leads.
func (p *proof) leaderAnswered() bool {
	for _, a := range p.answers {
		if a.Leads {
			return true
		}
	}
	return false
}

// belowFloor reports whether the log has not reached the floor.
func (p *proof) belowFloor() bool { return p.floor != position{} }

// mayVote reports whether the replica may give its vote to a candidate whose log ends at last.
func (p *proof) mayVote(last position) bool { return !p.silent && !last.less(p.floor) }

// mayCampaign reports whether the replica may ask for votes.
func (p *proof) mayCampaign() bool { return !p.silent && !p.belowFloor() }

// mayAcknowledge reports whether a leader may count what the replica says that it holds.
func (p *proof) mayAcknowledge() bool { return !p.silent || p.learner }
