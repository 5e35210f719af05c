package raftmeta

import (
	"maps"
	"slices"
)

// formersMax bounds the former lives that a replica presents. A peer that missed more starts than that takes the disk for an older copy.
const formersMax = 64

// Waiting times of a replica that proves its log, in ticks.
const (
	// askSilent is the interval at which a silent replica asks. askLater is the interval at which a
	// replica that takes part announces its life to voters that have not heard it.
	askSilent = 1
	askLater  = 3
	// fewAfter is how long a replica without known damage waits for the answers of all voters,
	// before those of a majority may suffice (docs/replication.md#rule-voter-few).
	fewAfter = 10
	// shortAlone is how long a short replica that knows no other member waits for members that it
	// may have forgotten (docs/replication.md#rule-voter-alone). They ask for its vote sooner than
	// that.
	shortAlone = 50
	// floorAfter is how long a replica below its floor goes without a leader before it asks again.
	floorAfter = 50
)

// position is the place of an entry in the log. Positions are ordered as Raft orders logs: by term,
// then by index.
type position struct {
	Term  uint64 `cbor:"1,keyasint"`
	Index uint64 `cbor:"2,keyasint"`
}

// less reports whether a log that ends at q may hold an entry that a log that ends at p lacks.
func (p position) less(q position) bool {
	return p.Term < q.Term || p.Term == q.Term && p.Index < q.Index
}

// admission is a committed change of membership that admits one life of a replica.
type admission struct {
	Life uint64 `cbor:"1,keyasint"`
	// Index is the index of the change. Learner reports that the change granted no vote.
	Index   uint64 `cbor:"2,keyasint"`
	Learner bool   `cbor:"3,keyasint,omitempty"`
}

// verdict is the result of comparing the former lives that a replica presents with the life that a
// peer has stored for it.
type verdict uint8

const (
	lifeUnknown verdict = iota // the peer knew no life of the replica
	lifeMatched                // the peer knew one of the lives that were presented
	lifeDiffers                // the peer knows a life that the replica's disk does not, so the disk is older
)

// record holds the facts that a replica stores about itself.
type record struct {
	// Life is drawn at random at each start.
	Life uint64 `cbor:"1,keyasint"`
	// Formers are the previous lives. A peer may have stored any of them: a start that never took part may have asked, a voter may have
	// been down while several lives took part, and one that has just got its vote may know no life but the one that was admitted.
	Formers []uint64 `cbor:"2,keyasint,omitempty"`
	// Short reports that the replica may lack data that it had made durable. It outlives restarts,
	// because the next start would not notice the damage again
	// (docs/replication.md#rule-voter-short).
	Short bool `cbor:"4,keyasint,omitempty"`
	// Voters are those of the newest configuration that the replica applied. They are stored here
	// as well as in the state transfer, so that they are known if the state transfer is damaged.
	Voters []uint64 `cbor:"5,keyasint,omitempty"`
	// Recovered is the last forced recovery, or nil.
	Recovered *Recovery `cbor:"6,keyasint,omitempty"`
	// Floor, unless zero, is the floor of a short replica that has heard enough answers since. The next start keeps it, and need not hear
	// all voters again. Short stays set with it: builds that know no Floor wait for all answers.
	Floor position `cbor:"7,keyasint"`
}

// needsAll reports whether the replica may have forgotten promises that no floor covers. Then only the answers of all other voters, or a leader,
// end its silence.
func (r record) needsAll() bool { return r.Short && r.Floor == position{} }

// beginLife returns the record of a new life. short reports that its start has found a loss.
func (r record) beginLife(life uint64, short bool) record {
	if r.Life != 0 {
		// The slice is cloned because the stored record shares it.
		r.Formers = append(slices.Clone(r.Formers), r.Life)
		r.Formers = r.Formers[max(0, len(r.Formers)-formersMax):]
	}
	r.Life = life
	// A floor covers the losses before it was found, and not a later one.
	if short {
		r.Short, r.Floor = true, position{}
	}
	return r
}

// proof decides when a replica that has started takes part in votes and acknowledgements again,
// since its disk may hold less than the replica promised. It implements the rules of
// docs/replication.md#rule-voter; docs/decisions/0020-a-voter-proves-its-log.md has the reasons. It
// is a value without I/O or clock. The driver executes the rulings of nextRuling and filters
// messages by mayVote, mayCampaign and mayAcknowledge.
//
// Its states:
//
//   - silent: the replica accepts entries, asks the others, and sends no vote or acknowledgement;
//   - silent and learner: a leader has admitted this life, so acknowledgements count again;
//   - below the floor: it takes part, does not campaign, and votes for no log that ends below it;
//   - taking part without restrictions.
type proof struct {
	self   uint64
	record record
	silent bool
	// learner reports that a leader has admitted this life without a vote. Raft counts nothing of
	// earlier lives any more, so acknowledgements are true. Nobody asks a learner for its vote.
	learner bool

	// answers holds the newest answer of each node to this life. The driver adds the replica's own
	// admission under its own id.
	answers map[uint64]answer
	// floor is the position that the log must reach before the replica campaigns or votes for a log
	// that ends below it. The zero position means no floor.
	floor position

	// waited counts the ticks of the silence, led the ticks since there was a leader.
	waited, led int
}

// standing is the state of the replica's own log.
type standing struct {
	Last    position
	Applied uint64
	// Voters and Learners are those of the configuration that was applied last.
	Voters, Learners []uint64
}

// ruling is an instruction to the driver. The zero ruling asks for nothing.
type ruling struct {
	// Store asks the driver to make the record durable before it sends anything else.
	Store bool
	// Vote, unless 0, asks the driver to raise the term of the hard state to at least Vote and to
	// record a vote for the replica itself.
	Vote uint64
}

// newProof returns the proof of a start. It is silent unless nothing can have been lost: a fresh
// replica has promised nothing, and a sole member without learners has nobody to ask. A sole member
// that is short is silent all the same, because it may have forgotten the others.
func newProof(self uint64, r record, fresh bool, s standing) *proof {
	p := &proof{self: self, record: r, answers: make(map[uint64]answer)}
	p.silent = !fresh && !(p.isAlone(s.Voters) && len(s.Learners) == 0 && !r.Short)
	if !p.silent {
		p.record.Short, p.record.Floor = false, position{}
	}
	return p
}

// isAlone reports whether the replica is the only voter.
func (p *proof) isAlone(voters []uint64) bool { return slices.Equal(voters, []uint64{p.self}) }

// newQuestion returns the question that the replica asks now.
func (p *proof) newQuestion(last position) question {
	return question{Life: p.record.Life, Formers: p.record.Formers, Short: p.record.needsAll(), Silent: p.silent, Last: last}
}

// nodesToAsk returns the nodes to ask in this tick. A silent replica repeats its question to all
// voters, since a later answer may admit it or name newer voters. A replica that takes part
// announces its life to those that have not answered: its next start can prove less if they never
// heard of this life.
func (p *proof) nodesToAsk(tick uint64, s standing) []uint64 {
	every := uint64(askLater)
	if p.silent {
		every = askSilent
	}
	if tick%every != 0 {
		return nil
	}
	ask := p.newestVoters(s)
	// The learners know whether the group has other voters by now.
	if p.isAlone(ask) {
		ask = append(ask, s.Learners...)
	}
	return slices.DeleteFunc(ask, func(id uint64) bool {
		_, answered := p.answers[id]
		return id == p.self || answered && !p.silent
	})
}

// newestVoters returns the voters of the newest configuration that the replica, or a node that
// answered, has applied.
func (p *proof) newestVoters(s standing) []uint64 {
	applied, voters := s.Applied, s.Voters
	// An empty log knows no configuration, so any answer is newer.
	if len(voters) == 0 {
		applied = 0
	}
	// Iteration in the order of ids makes the choice among equals deterministic.
	for _, id := range slices.Sorted(maps.Keys(p.answers)) {
		if a := p.answers[id]; a.Applied > applied && len(a.Voters) > 0 {
			applied, voters = a.Applied, a.Voters
		}
	}
	return slices.Clone(voters)
}

// hearAnswer records an answer. Answers to another life are ignored: the peer may have promised
// something new since.
func (p *proof) hearAnswer(from uint64, a answer, s standing) (r ruling) {
	if a.Life != p.record.Life {
		return r
	}
	old := p.answers[from]
	// Answers may arrive out of order. A promise of a peer is permanent, so the maximum counts.
	a.Term = max(a.Term, old.Term)
	if a.Last.less(old.Last) {
		a.Last = old.Last
	}
	p.answers[from] = a
	// The mark becomes durable before the replica asks again as short; only then do peers store its
	// life.
	// The floor of the older copy does not cover later promises.
	if a.Verdict == lifeDiffers && p.silent && !p.record.needsAll() && p.mayFind(from, s) {
		p.record.Short, p.record.Floor, r.Store = true, position{}, true
	}
	return r
}

// mayFind reports whether the replica believes a node that finds its disk to be an older copy. A replica announces its lives to voters only, so
// a node without a vote may know an earlier one, from the admission of that life. As short, the replica would wait for a leader, and there may be
// none: the third of three voters may be dead. A replica that knows of no other voter may have forgotten them, and believes everybody.
func (p *proof) mayFind(from uint64, s standing) bool {
	voters := p.newestVoters(s)
	return len(voters) < 2 || slices.Contains(voters, from)
}

// tick counts a tick. led reports whether there is a leader.
func (p *proof) tick(led bool) {
	p.waited++
	p.led++
	if led {
		p.led = 0
	}
	// The node that holds the missing entries may have died. The replica asks again, since the
	// others may have a lower floor.
	if !p.silent && p.belowFloor() && p.led > floorAfter {
		p.silent, p.learner, p.waited = true, false, 0
		p.answers, p.floor = make(map[uint64]answer), position{}
	}
}

// nextRuling returns what to do now. A silent replica has three ways to take part: a leader
// admitted it with a vote and it has applied that change; a leader admitted it as a learner
// (acknowledgements only); or it has heard enough answers, and no leader counts on entries that it
// lacks.
func (p *proof) nextRuling(s standing) ruling {
	if !p.silent {
		return p.reachFloor(s)
	}
	a := p.newestAdmission()
	switch {
	// The promotion must be applied: with it, the log holds every entry that was committed before
	// the vote was granted.
	case a.Life != 0 && !a.Learner && s.Applied >= a.Index:
		return p.endSilence(s, position{})
	case a.Life != 0 && !p.learner:
		p.learner = true
		// It may have voted in any of these terms before it was removed.
		term, _ := p.maxAnswered(slices.Collect(maps.Keys(p.answers)))
		return ruling{Vote: max(term, 1)}
	case p.heardEnough(s) && !p.isOverrated(s):
		return p.endSilence(s, p.newFloor(s))
	}
	return ruling{}
}

// newFloor returns the floor that follows from the answers. If not all voters have answered, the missing ones may hold entries that the replica has
// forgotten, so an earlier floor counts as well (docs/replication.md#rule-voter-floor).
func (p *proof) newFloor(s standing) position {
	voters := p.newestVoters(s)
	_, floor := p.maxAnswered(voters)
	all := !p.isAlone(voters)
	for _, id := range voters {
		_, answered := p.answers[id]
		all = all && (answered || id == p.self)
	}
	if !all && floor.less(p.record.Floor) {
		return p.record.Floor
	}
	return floor
}

// reachFloor lifts the floor once the log has reached it. The short mark ends with the floor,
// because nothing is missing any more.
func (p *proof) reachFloor(s standing) ruling {
	if !p.belowFloor() || s.Last.less(p.floor) {
		return ruling{}
	}
	p.floor, p.record.Floor, p.record.Short = position{}, position{}, false
	return ruling{Store: true}
}

// endSilence lets the replica take part. The ruling raises the term to the greatest of the answers
// and votes for the replica itself, so that it votes for nobody in a term in which it may have
// voted already (docs/replication.md#rule-voter-term). Below the floor it remains short, with the floor: a restart
// in between must not look intact.
func (p *proof) endSilence(s standing, floor position) ruling {
	p.silent, p.learner, p.led = false, false, 0
	p.record.Short, p.record.Floor = false, position{}
	if s.Last.less(floor) {
		p.floor, p.record.Floor, p.record.Short = floor, floor, true
	}
	term, _ := p.maxAnswered(slices.Collect(maps.Keys(p.answers)))
	return ruling{Store: true, Vote: max(term, 1)}
}

// maxAnswered returns the greatest term and the greatest last position in the answers of the given
// nodes.
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

// newestAdmission returns the newest admission of this life in the answers.
func (p *proof) newestAdmission() (newest admission) {
	for _, a := range p.answers {
		if a.Admitted.Life == p.record.Life && a.Admitted.Index > newest.Index {
			newest = a.Admitted
		}
	}
	return newest
}

// heardEnough reports whether enough other voters have answered
// (docs/replication.md#rule-voter-ask). All of them are always enough. A majority is enough after
// fewAfter if nothing is known to be missing, or a floor covers it, and each member of the majority has stored a life that this disk
// knows: only then is damage ruled out.
//
// A voter that this replica's configuration does not name may have got its vote since this replica stopped, and has heard of no life. It
// neither vouches for the replica nor accuses it, if a majority of the voters that the replica knows vouches.
//
// A replica that is not a voter has no vote to cast twice, and may have been stopped before anybody
// heard of one of its lives. For such a replica it is enough that no member of the majority knows
// another life.
func (p *proof) heardEnough(s standing) bool {
	voters := p.newestVoters(s)
	if p.isAlone(voters) {
		// It may have forgotten the others. They have until shortAlone to ask. Answers of the learners
		// that it remembers do not shorten that: they may not have heard of other voters yet, and it may
		// have forgotten further learners (TestForgottenVotersAreAwaited).
		if p.record.Short {
			return p.waited >= shortAlone
		}
		// Nothing is missing, so any newer configuration that a learner applied would have changed
		// voters above.
		return p.waited >= fewAfter || len(s.Learners) > 0 && len(p.answers) >= len(s.Learners)
	}
	heard, matched := 0, 0
	votes, vouched := slices.Contains(voters, p.self), p.isVouched(s.Voters)
	for _, id := range voters {
		a, ok := p.answers[id]
		stranger := !votes || vouched && !slices.Contains(s.Voters, id)
		switch {
		case id == p.self:
			heard, matched = heard+1, matched+1
		case ok:
			heard++
			if a.Verdict == lifeMatched || stranger && a.Verdict == lifeUnknown {
				matched++
			}
		}
	}
	switch {
	// A replica that knows no configuration waits for one, from a leader or from an answer.
	case len(voters) == 0:
		return false
	case heard == len(voters):
		return true
	}
	return p.waited >= fewAfter && !p.record.needsAll() && matched == heard && matched > len(voters)/2
}

// isVouched reports whether the replica is one of the given voters, and a majority of them, itself included, vouches for it.
func (p *proof) isVouched(voters []uint64) bool {
	matched := 0
	for _, id := range voters {
		if id == p.self || p.answers[id].Verdict == lifeMatched {
			matched++
		}
	}
	return slices.Contains(voters, p.self) && matched > len(voters)/2
}

// isOverrated reports whether a leader counts on entries that the log does not hold. Raft never
// takes an acknowledgement back, so the leader has to readmit the replica.
func (p *proof) isOverrated(s standing) bool {
	for _, a := range p.answers {
		if a.Leads && a.Match > s.Last.Index {
			return true
		}
	}
	return false
}

// unansweredVoters returns the voters whose answers a silent replica lacks.
func (p *proof) unansweredVoters(s standing) []uint64 {
	if !p.silent {
		return nil
	}
	return slices.DeleteFunc(p.newestVoters(s), func(id uint64) bool {
		_, answered := p.answers[id]
		return id == p.self || answered
	})
}

// leaderAnswered reports whether a node that answered leads.
func (p *proof) leaderAnswered() bool {
	for _, a := range p.answers {
		if a.Leads {
			return true
		}
	}
	return false
}

// belowFloor reports whether the log has not reached the floor yet.
func (p *proof) belowFloor() bool { return p.floor != position{} }

// mayVote reports whether the replica may vote for a candidate whose log ends at last. A candidate
// below the floor may lack entries that this replica once helped to commit.
func (p *proof) mayVote(last position) bool { return !p.silent && !last.less(p.floor) }

// mayCampaign reports whether the replica may campaign.
func (p *proof) mayCampaign() bool { return !p.silent && !p.belowFloor() }

// mayAcknowledge reports whether a leader may count the replica's acknowledgements.
func (p *proof) mayAcknowledge() bool { return !p.silent || p.learner }
