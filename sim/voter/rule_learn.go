package voter

// A leader may admit a voter by two changes of the configuration in place of one entry: the first makes the voter a learner, the second
// promotes it when it has caught up (docs/replication.md#rule-voter-admit). Package raftmeta does this in three changes: it
// removes the voter, adds it as a learner, and promotes it. The model takes the first two as one.
//
// Leaving out that a learner takes part only when it is promoted breaks nothing within the bounds: candidates count no vote of a node that is no
// voter in their configuration, and a candidate with an older configuration has a shorter log than the learner, who refuses it.
//
// Each change takes effect on a node with the commit position that
// the node knows.

// members returns the voters of the configuration that v has applied.
func (g *stepper) members(v *voter) set {
	// Without learners the configuration never changes.
	all := set(1<<g.cfg.Voters - 1)
	if !g.cfg.Learning {
		return all
	}
	members := all
	for k := range min(v.commit, v.log.n) {
		e := v.log.e[k]
		for i := range g.cfg.Voters {
			switch {
			case !e.admits(i):
			case e.promotes():
				members = members.with(i)
			default:
				members &^= 1 << i
			}
		}
	}
	return members
}

// isMajority reports whether nodes contain a majority of the voters that v knows.
func (g *stepper) isMajority(v *voter, nodes set) bool {
	members := g.members(v)
	return (nodes & members).size() > members.size()/2
}

// nextChange returns the end of the first change of the configuration that v has not applied, or a position after the log.
func (g *stepper) nextChange(v *voter) uint8 {
	for k := v.commit; k < v.log.n; k++ {
		if !v.log.e[k].admits(nobody) && g.cfg.Learning {
			return k + 1
		}
	}
	return logMax + 1
}

// appendLearning lets leader l append the entry that makes a silent voter a learner, or the one that promotes a learner which has caught up. It
// appends none while another change is not committed.
func (g *stepper) appendLearning(l int) {
	s := &g.from.voters[l]
	// Two changes that are not committed could lead to two majorities without a common member.
	if g.nextChange(s) <= s.log.n {
		return
	}
	members := g.members(s)
	for i := range g.cfg.Voters {
		e := newEntry(s.term, uint8(i), g.from.voters[i].life)
		switch {
		case i == l || g.from.voters[i].silent == 0:
		case members.has(i):
			g.appendEntry(l, e, "%d appends an entry that makes %d a learner", uint8(l), uint8(i))
		// The promotion names the life that was made a learner, which may have ended.
		case s.match[i] >= s.commit:
			g.appendEntry(l, g.admittedLife(s, i, e).promotion(), "%d appends an entry that promotes %d", uint8(l), uint8(i))
		}
	}
}

// admittedLife returns e with the life of i that the log of v made a learner last.
func (g *stepper) admittedLife(v *voter, i int, e entry) entry {
	for k := range v.log.n {
		if x := v.log.e[k]; x.admits(i) && !x.promotes() {
			e = newEntry(e.term(), uint8(i), x.life())
		}
	}
	return e
}

// wasAdmitted reports whether the log of v has made the present life of i a learner, up to the commit position of v.
func (g *stepper) wasAdmitted(v *voter, i int) bool {
	for k := range min(v.commit, v.log.n) {
		if e := v.log.e[k]; e.admits(i) && !e.promotes() && e.life() == g.from.voters[i].life {
			return true
		}
	}
	return false
}

// mayLearn reports whether the acknowledgements of a silent learner count for its promotion: it knows, from its own log or from an answer,
// that this life was made a learner.
func (g *stepper) mayLearn(i int) bool {
	if !g.cfg.Learning {
		return false
	}
	// Any peer may have told it: answers carry the admissions that a peer knows as committed.
	known := g.leavesOut(LearnerKnowsAdmission)
	for j := range g.cfg.Voters {
		known = known || g.wasAdmitted(&g.from.voters[j], i)
	}
	return known
}

// beginLearning makes leader v, which commits up to end, forget what earlier lives of a new learner have acknowledged.
func (g *stepper) beginLearning(v *voter, end uint8) {
	if !g.cfg.Learning {
		return
	}
	// Raft makes a new progress for a node that it adds.
	for i := range g.cfg.Voters {
		if e := v.log.e[end-1]; e.admits(i) && !e.promotes() {
			v.match[i] = 0
		}
	}
}

// takePromotion ends the silence of a voter whose log holds the committed promotion of this life.
func (g *stepper) takePromotion(i int) {
	s := &g.from.voters[i]
	for k := range min(s.commit, s.log.n) {
		e := s.log.e[k]
		if !e.admits(i) || !e.promotes() || e.life() != s.life && !g.leavesOut(PromotionOfThisLife) {
			continue
		}
		// With the promotion the log holds every entry that was committed before it.
		t := *g.from
		v := &t.voters[i]
		v.silent, v.short, v.answers, v.greatest, v.floor, v.stored = 0, 0, 0, 0, position{}, position{}
		g.addStep(&t, "%d takes part", uint8(i))
		return
	}
}
