package voter

// listRestarts adds the starts of voter i: one that keeps everything, and those that lose synced
// data.
func (g *stepper) listRestarts(i int) {
	s := &g.from.voters[i]
	if int(g.from.restarts) >= g.cfg.Restarts {
		return
	}
	// A restart need not lose anything.
	g.startLife(i, s.term, s.vote, s.log)
	// Damaged bounds the number of voters that lose data, not the number of damages: a voter that
	// was damaged once may be damaged again.
	if int(g.from.damages) >= g.cfg.Damages || !g.from.damaged.has(i) && g.from.damaged.size() >= g.cfg.Damaged {
		return
	}
	if g.cfg.Images {
		g.restoreImage(i)
		return
	}
	// The log may end anywhere. Independently of that, the hard state is intact or older.
	for n := range s.log.n + 1 {
		cut := s.log
		cut.truncate(n)
		g.startLife(i, s.term, s.vote, cut)
		// An older term is at least that of the last entry left, since an entry of a term is
		// written after the term. A forgotten vote is nobody.
		for term := max(1, cut.lastPosition().term); term <= s.term; term++ {
			g.startLife(i, term, nobody, cut)
		}
	}
}

// restoreImage copies the disk of voter i, or starts the voter from the copy. There is at most one
// copy.
func (g *stepper) restoreImage(i int) {
	s, im := &g.from.voters[i], &g.from.image
	switch int(im.of) {
	case 0:
		t := *g.from
		t.image = image{uint8(i + 1), s.term, s.vote, s.log}
		g.addStep(&t, "the disk of %d is copied: term %d, %d entries", uint8(i), s.term, s.log.n)
	// Only the disk that was copied can return to the copy.
	case i + 1:
		g.startLife(i, im.term, im.vote, im.log)
	}
}

// startLife begins a new life of voter i with the given contents of its disk. Everything volatile
// is lost.
func (g *stepper) startLife(i int, term, vote uint8, log history) {
	t := *g.from
	t.restarts++
	s, v := &g.from.voters[i], &t.voters[i]
	*v = voter{term: term, vote: vote, log: log, life: s.life + 1, short: s.short, stored: s.stored, silent: 1}
	if g.leavesOut(SilentAtStart) {
		// The mutation models a voter that trusts its disk.
		v.silent = 0
	}
	if g.leavesOut(ShortUntilAnswered) {
		v.short = 0
	}
	if g.leavesOut(FloorStored) {
		v.stored = position{}
	}
	// A start is a damage only if something is missing. The lists of starts include one that cuts
	// nothing.
	if term == s.term && vote == s.vote && log == s.log {
		g.addStep(&t, "%d restarts", uint8(i))
		return
	}
	t.damages++
	t.damaged = t.damaged.with(i)
	// Only a noticed damage leaves a mark. An unnoticed one leaves the rule no hint.
	// A floor covers earlier losses only, so the new damage ends it.
	if g.cfg.Noticed && (s.stored == position{} || !g.leavesOut(DamageEndsFloor)) {
		v.short, v.stored = 1, position{}
	}
	g.addStep(&t, "%d restarts with lost data: term %d, %d entries are left", uint8(i), term, log.n)
}

// hearAnswers lets a silent voter receive the answer of another one, silent or not. After the last
// answer it takes part.
func (g *stepper) hearAnswers(i int) {
	if !g.cfg.Asking || g.from.voters[i].silent == 0 {
		return
	}
	// A silent voter may answer too. Otherwise a restart of the whole group would
	// never end the silence.
	for j := range g.cfg.Voters {
		if j == i || g.from.voters[i].answers.has(j) {
			continue
		}
		t := *g.from
		v, other := &t.voters[i], &t.voters[j]
		v.answers = v.answers.with(j)
		// Answers arrive one at a time and in any order, and other voters may change between them.
		v.greatest = max(v.greatest, other.term)
		// The floor covers every answer, so an entry that any other voter may have committed with
		// this one is at or below it.
		v.floor = maxPosition(v.floor, other.log.lastPosition())
		if v.answers.size() >= g.answersNeeded(v) {
			// Without all answers the earlier floor counts as well: the missing voters may hold entries that this one has lost.
			if v.answers.size() < g.cfg.Voters-1 {
				v.floor = maxPosition(v.floor, v.stored)
			}
			g.takePart(v, i)
		}
		g.addStep(&t, "%d answers %d: term %d, its log ends at %d", uint8(j), uint8(i), other.term, other.log.n)
	}
}

// answersNeeded returns the number of answers that a silent voter needs. A short one needs all
// others.
func (g *stepper) answersNeeded(v *voter) int {
	if v.short == 1 {
		return g.cfg.Voters - 1
	}
	return g.cfg.Answers
}

// takePart ends the silence of a voter that has enough answers. It votes for itself in the greatest
// term of the answers, and therefore for nobody else in that term.
func (g *stepper) takePart(v *voter, i int) {
	// The voter may have voted in any term up to the greatest and have forgotten it. In its own
	// term it knows its vote, unless that was lost as well.
	if v.greatest > v.term {
		v.term, v.vote = v.greatest, nobody
	}
	if !g.leavesOut(VoteAboveAnswers) {
		v.vote = uint8(i)
	}
	// The floor stays until the log has reached it, also across starts. It covers the entries that the voter has lost.
	v.silent, v.answers, v.greatest, v.short, v.stored = 0, 0, 0, 0, v.floor
	v.reachFloor()
}

// takeAdmission ends the silence of a voter that holds a committed entry which admits its life.
func (g *stepper) takeAdmission(i int) {
	s := &g.from.voters[i]
	if s.silent == 0 {
		return
	}
	if g.cfg.Learning {
		g.takePromotion(i)
		return
	}
	for k := range s.log.n {
		// The admission counts only if it is committed and names this life. An old one in the log
		// must not admit a later life.
		e := s.log.e[k]
		if k >= s.commit && !g.leavesOut(AdmissionCommitted) || !e.admits(i) || e.life() != s.life && !g.leavesOut(AdmissionOfThisLife) {
			continue
		}
		t := *g.from
		v := &t.voters[i]
		v.silent, v.short, v.answers, v.greatest, v.floor, v.stored = 0, 0, 0, 0, position{}, position{}
		g.addStep(&t, "%d is admitted", uint8(i))
		return
	}
}

// appendAdmission lets leader l append an entry that admits a silent voter.
func (g *stepper) appendAdmission(l int) {
	if g.cfg.Learning {
		g.appendLearning(l)
		return
	}
	if !g.cfg.Admission {
		return
	}
	for i := range g.cfg.Voters {
		s := &g.from.voters[i]
		e := newEntry(g.from.voters[l].term, uint8(i), s.life)
		// The log may admit this life in this term already.
		if i == l || s.silent == 0 || g.from.voters[l].log.containsEntry(e) {
			continue
		}
		g.appendEntry(l, e, "%d appends an entry that admits %d", uint8(l), uint8(i))
	}
}

// startCampaign makes voter i a candidate of the next term.
func (g *stepper) startCampaign(i int) {
	s := &g.from.voters[i]
	if s.silent == 1 || s.role == leader || int(s.term) >= g.cfg.Terms || s.log.lastPosition().less(s.floor) && !g.leavesOut(CandidateAboveFloor) {
		return
	}
	t := *g.from
	v := &t.voters[i]
	v.becomeFollower(s.term + 1)
	// A candidate votes for itself.
	v.role, v.vote, v.votes = candidate, uint8(i), set(0).with(i)
	g.addStep(&t, "%d campaigns in term %d", uint8(i), v.term)
}

// castVotes lets voter i vote for each candidate that it may vote for.
func (g *stepper) castVotes(i int) {
	s := &g.from.voters[i]
	if s.silent == 1 {
		return
	}
	// Raft compares the candidate's log with the voter's own. The rule adds the floor.
	floor := maxPosition(s.log.lastPosition(), s.floor)
	if g.leavesOut(VoteAboveFloor) {
		floor = s.log.lastPosition()
	}
	for c := range g.cfg.Voters {
		o := &g.from.voters[c]
		// Messages of votes are not modelled: a vote counts when it is cast. A lost vote is one
		// that is never cast.
		if c == i || o.role != candidate || o.term < s.term || o.term == s.term && s.vote != nobody || o.log.lastPosition().less(floor) {
			continue
		}
		t := *g.from
		v := &t.voters[i]
		// A vote in a later term ends whatever the voter was in its own.
		v.becomeFollower(o.term)
		v.vote = uint8(c)
		t.voters[c].votes = o.votes.with(i)
		g.addStep(&t, "%d votes for %d in term %d", uint8(i), uint8(c), o.term)
	}
}

// takeOffice makes a candidate with enough votes the leader, and checks OneLeader and LeaderHolds.
func (g *stepper) takeOffice(i int) {
	s := &g.from.voters[i]
	if s.role != candidate || !g.isMajority(s, s.votes) {
		return
	}
	t := *g.from
	v := &t.voters[i]
	v.role, v.votes = leader, 0
	// A new leader knows nothing of the other logs. It counts its own.
	v.match[i] = v.log.n
	// leaders remembers every leader of a term, even one that has restarted since.
	if l := t.leaders[v.term]; l != 0 {
		g.markBroken(OneLeader)
	}
	t.leaders[v.term] = uint8(i + 1)
	// The log must contain the entries that were committed in earlier terms.
	for k := v.log.commonPrefix(&t.committed); k < t.committed.n; k++ {
		if t.terms[k] < v.term {
			g.markBroken(LeaderHolds)
		}
	}
	g.addStep(&t, "%d leads term %d", uint8(i), v.term)
}

// listLeaderSteps adds the steps of a leader: it appends, admits, sends and commits.
func (g *stepper) listLeaderSteps(i int) {
	s := &g.from.voters[i]
	if s.role != leader {
		return
	}
	g.appendEntry(i, newEntry(s.term, nobody, 0), "%d appends an entry of term %d", uint8(i), s.term)
	g.appendAdmission(i)
	g.sendAppend(i)
	g.advanceCommit(i)
}

// appendEntry appends an entry to the log of leader i.
func (g *stepper) appendEntry(i int, e entry, format string, args ...uint8) {
	if int(g.from.voters[i].log.n) >= g.cfg.Entries {
		return
	}
	t := *g.from
	v := &t.voters[i]
	v.log.appendEntry(e)
	v.match[i] = v.log.n
	g.addStep(&t, format, args...)
}

// sendAppend puts an APPEND of the whole log in flight. If the network is full, another message is
// lost.
func (g *stepper) sendAppend(i int) {
	s := &g.from.voters[i]
	m := message{from: uint8(i), term: s.term, commit: s.commit, log: s.log}
	// The same message twice is one message, because delivery does not remove it.
	for k := range g.from.inNet {
		if g.from.net[k] == m {
			return
		}
	}
	// There is room, so nothing has to be lost.
	if int(g.from.inNet) < g.cfg.Messages {
		t := *g.from
		t.net[t.inNet] = m
		t.inNet++
		g.addStep(&t, "%d sends %d entries, commit %d", uint8(i), m.log.n, m.commit)
		return
	}
	for k := range g.from.inNet {
		t := *g.from
		t.net[k] = m
		g.addStep(&t, "%d sends %d entries, commit %d", uint8(i), m.log.n, m.commit)
	}
}

// receiveAppend lets voter i take an APPEND. The leader counts the acknowledgement unless the voter
// is silent.
func (g *stepper) receiveAppend(i int, m *message) {
	s := &g.from.voters[i]
	// A leader takes no APPEND of its own term: its sender could only be another leader of that
	// term, which OneLeader rules out.
	if int(m.from) == i || m.term < s.term || m.term == s.term && s.role == leader {
		return
	}
	t := *g.from
	v := &t.voters[i]
	// An APPEND of the voter's term or a later one ends any candidacy of its own.
	v.becomeFollower(m.term)
	// As in Raft, a log that already contains the message's is not cut back to it.
	if v.log.commonPrefix(&m.log) < m.log.n {
		v.log = m.log
	}
	// The commit position is volatile and a lower bound.
	v.commit = max(v.commit, min(m.commit, m.log.n))
	v.reachFloor()
	// The acknowledgement arrives in the same step. It counts only while the sender still leads the
	// term.
	l := &t.voters[m.from]
	if l.role == leader && l.term == m.term && (v.silent == 0 || g.leavesOut(SilentUncounted) || g.mayLearn(i)) {
		l.match[i] = max(l.match[i], m.log.n)
	}
	g.addStep(&t, "%d takes %d entries of term %d from %d", uint8(i), m.log.n, m.term, m.from)
}

// advanceCommit raises the commit position of leader i to the last entry of its own term that a
// majority holds, and checks OneHistory. A silent voter counts for no entry, so neither the entry
// that admits it nor those after it count there until it takes part.
func (g *stepper) advanceCommit(i int) {
	s := &g.from.voters[i]
	for end := s.log.n; end > s.commit; end-- {
		// Raft commits entries of earlier terms only together with one of the leader's own.
		if s.log.e[end-1].term() != s.term {
			return
		}
		// match of the leader itself is the end of its log.
		var holders set
		for j := range g.cfg.Voters {
			if s.match[j] >= end {
				holders = holders.with(j)
			}
		}
		if !g.isMajority(s, holders) {
			continue
		}
		// A change of the configuration takes effect when it is committed, so entries after it need the new majority.
		if next := g.nextChange(s); next < end {
			continue
		}
		t := *g.from
		t.voters[i].commit = end
		g.beginLearning(&t.voters[i], end)
		if t.committed.commonPrefix(&s.log) < min(t.committed.n, end) {
			g.markBroken(OneHistory)
		}
		// committed outlives all voters: it is the acknowledged history.
		for t.committed.n < end {
			t.terms[t.committed.n] = s.term
			t.committed.appendEntry(s.log.e[t.committed.n])
		}
		g.addStep(&t, "%d commits up to %d", uint8(i), end)
		return
	}
}
