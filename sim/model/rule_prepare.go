package model

// Rules E and P: the elected node asks the members of its in-sync set for their logs and
// adopts the best one before it begins its epoch. Then one disk that lost synced data loses nothing
// that a client knows.

// learnElected starts an election at the elected node: the node promises its epoch and sends
// PREPARE.
func (g *stepper) learnElected(i int, epoch uint8, el election) {
	t := *g.from
	r := &t.rep[i]
	// Promising first keeps earlier primaries from committing anything that the answers do not
	// show.
	r.promise(epoch)
	r.role, r.epoch, r.isr, r.version, r.lives = activating, epoch, el.isr, el.version, el.lives
	// The own stored commit position counts like that of an answer
	// (docs/replication.md#rule-prepare-commit).
	r.noteCommit(max(r.commit, r.stored), r.commit, r.log)
	g.askMembers(&t, i, Action{kind: actElected, a: uint8(i), x: epoch})
}

// askMembers ends a step that led to t with PREPARE to all. Node i has its own answer only.
func (g *stepper) askMembers(t *state, i int, act Action) {
	r := &t.rep[i]
	// Answers of an earlier round are dropped: their logs may be gone.
	r.votes, r.best, r.vouched = set(0).with(i), r.log, 0
	g.noteVouched(r, i, r.boot)
	if g.cfg.PairsOnly {
		// There are no logs to ask for.
		g.endStep(t, act)
		return
	}
	g.sendMessage(t, message{kind: msgPrepare, from: uint8(i), to: nobody, epoch: r.epoch}, act)
}

// disputed is a commit position that no log reaches: two answers report different committed
// entries.
const disputed = logMax + 1

// noteCommit records the commit position of an answer, and the log up to the commit position that
// it still reaches. In an implementation that log is the hash of one entry.
func (r *replica) noteCommit(stored, commit uint8, log history) {
	// The log is cut to the commit position, since only that part is certain.
	log.cut(commit)
	r.reported = max(r.reported, stored)
	// Two committed logs that differ mean that a disk has lost data. No log satisfies both.
	if r.proven.common(&log) < min(r.proven.n, log.n) {
		r.reported = disputed
	}
	if log.n > r.proven.n {
		r.proven = log
	}
}

// reachesReported reports whether log contains every entry that an answer reports as committed.
func (g *stepper) reachesReported(r *replica, log *history) bool {
	return log.n >= r.reported && log.common(&r.proven) == r.proven.n || g.without(ReportedReached)
}

// noteVouched records that an answer is from a life in the record (docs/replication.md#rule-one-answer).
func (g *stepper) noteVouched(r *replica, i int, life uint8) {
	// Another life of the member may have lost entries that the recorded one had.
	if g.cfg.OneAnswer && r.isr.has(i) && (r.lives[i] == life || g.without(AnswerOfRecordedLife)) {
		r.vouched = 1
	}
}

// receivePrepare promises the epoch of the elected node and answers with the log, the commit
// position and the clock. With slack a node answers only if no third node holds a grant that does
// not exclude the earlier epochs.
func (g *stepper) receivePrepare(i int, m *message) {
	s := &g.from.rep[i]
	// A repeated PREPARE is answered again; a node that acts in the epoch itself does not answer.
	if m.epoch < s.promised || m.epoch == s.promised && s.role != follower {
		return
	}
	t := *g.from
	r := &t.rep[i]
	// An answer without a promise could be outdated by an append of the old primary
	// (AnswerPromises).
	if !g.without(AnswerPromises) {
		r.promise(m.epoch)
	}
	act := Action{kind: actPromise, a: uint8(i), b: m.from, x: m.epoch}
	// The holder of such a grant could still serve reads that miss the new epoch.
	if g.cfg.Slack > 0 && g.owesGrant(&t, i, int(m.from)) {
		g.endStep(&t, act)
		return
	}
	g.sendMessage(&t, message{
		kind: msgPromise, from: uint8(i), to: m.from, epoch: m.epoch,
		x: max(r.commit, r.stored), y: r.seen, z: r.boot, c: r.commit, log: r.log,
	}, act)
}

// receivePromise counts an answer. The log in the message represents its last epoch, end and hash:
// the entries themselves are fetched.
func (g *stepper) receivePromise(i int, m *message) {
	s := &g.from.rep[i]
	// An answer counts once. A repetition in a later life counts only after the answers were
	// dropped.
	if s.role != activating || s.epoch != m.epoch || s.votes.has(int(m.from)) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.votes = r.votes.with(int(m.from))
	if g.isBetterLog(&m.log, &r.best) {
		r.best = m.log
	}
	r.noteCommit(m.x, m.c, m.log)
	// Otherwise the new epoch could write below a timestamp that was published
	// (AnswerCarriesClock).
	if !g.without(AnswerCarriesClock) {
		r.seen = max(r.seen, m.y)
	}
	g.noteVouched(r, int(m.from), m.z)
	g.endStep(&t, Action{kind: actVote, a: uint8(i), b: m.from})
}

// isBetterLog reports whether log a is better than b: by the epoch of the last entry, then by its
// end.
func (g *stepper) isBetterLog(a, b *history) bool {
	switch x, y := a.lastEpoch(), b.lastEpoch(); {
	// The mutations weaken one comparison each.
	case g.without(PrepareAdopts):
		return false
	// A longer log may consist of entries that a later epoch has undone.
	case g.without(BestByEpoch) || x == y && !g.without(BestByEnd):
		return a.n > b.n
	default:
		return x > y
	}
}

// fetchBest lists the steps of an activating node that lacks entries of the best log. The node
// undoes entries that contradict the best log and copies the others, in any number of pieces, from
// any replica whose log still contains the best log, as the hash proves. If no replica qualifies,
// the node drops the answers and asks again. It undoes nothing that an answer reports as committed.
func (g *stepper) fetchBest(i int) {
	s := &g.from.rep[i]
	if s.role != activating || s.log == s.best {
		return
	}
	for j := range Replicas {
		source := &g.from.rep[j]
		// A source that no longer has the reported log has lost data since it answered.
		if j == i || !g.reachesReported(s, &s.best) || source.log.common(&s.best) < s.best.n && !g.without(FetchByHash) {
			continue
		}
		// Each length is a step of its own, because the node may crash between pieces.
		// An older build fetches up to the first entry that it cannot read.
		for n := s.log.common(&s.best); n <= g.from.readable(i, &s.best); n++ {
			t := *g.from
			r := &t.rep[i]
			// The mutation takes the present log of the source, although its answer reported
			// another one.
			if g.without(FetchByHash) && s.votes.has(j) {
				r.best = source.log
			}
			r.log = r.best
			r.log.cut(n)
			g.endStep(&t, Action{kind: actFetch, a: uint8(i), b: uint8(j), x: n, y: s.best.n})
		}
	}
	// Falling back to the second-best answer would count a copy that no longer exists.
	t := *g.from
	act := Action{kind: actAskAgain, a: uint8(i), x: s.epoch}
	if g.without(FetchRecounts) {
		t.rep[i].best = s.log
		g.endStep(&t, act)
		return
	}
	g.askMembers(&t, i, act)
}

// hasEnoughAnswers reports whether an elected node has the answers that it needs.
func (g *stepper) hasEnoughAnswers(r *replica) bool {
	// One answer of a recorded life suffices: that life holds everything that clients know
	// (docs/replication.md#rule-one-answer).
	if g.without(PrepareQuorum) || r.vouched == 1 {
		return true
	}
	// Only members of the in-sync set must hold every acknowledged entry.
	votes := r.votes & r.isr
	if g.without(AnswersOfMembers) {
		votes = r.votes
	}
	return votes.size() >= g.cfg.answersNeeded(r.isr)
}

// answersNeeded returns the number of members that must answer PREPARE before the epoch begins.
// Without slack every member holds every acknowledged entry, so among MinInSync answers one is
// intact. With slack and damage nothing less than all members suffices.
func (c *Config) answersNeeded(members set) int {
	switch {
	case c.Slack == 0:
		// MinInSync-1 disks may be damaged at one time, so one of MinInSync answers is intact.
		return c.MinInSync
	case c.Damages > 0:
		return members.size()
	default:
		// Without damage, a quorum that intersects every commit quorum holds every acknowledged
		// entry.
		return c.electQuorum(members)
	}
}

// activateElected ends rule E: the answers, the wait for the grants of the node, and the
// epoch-start entry.
func (g *stepper) activateElected(i int) {
	s := &g.from.rep[i]
	// An older build that cannot read the best log waits for its upgrade, or for another election.
	complete := s.log == s.best || g.without(BeginReadable) && g.from.older.has(i) && s.log.n == g.from.readable(i, &s.best)
	// All conditions of rule E at once. Metadata may meanwhile have elected another node; then
	// members refuse this epoch by their promises.
	if s.role != activating || g.cfg.PairsOnly || !complete && g.reachesReported(s, &s.best) || s.log.full() || g.owesGrant(g.from, i, nobody) || !g.hasEnoughAnswers(s) {
		return
	}
	t := *g.from
	if !g.reachesReported(s, &s.best) {
		// The node waits for the other members and raises an alarm.
		g.failInvariant(ReportedHeld)
		g.endStep(&t, Action{kind: actAlarm, a: uint8(i), x: s.reported})
		return
	}
	r := &t.rep[i]
	r.endPrepare()
	r.role = primary
	// The epoch-start entry comes next, and reads wait for its commit.
	r.start = r.log.n + 1
	// An epoch begun twice would generate the same names twice (docs/replication.md#rule-names).
	if t.seen.begun>>r.epoch&1 == 1 {
		g.failInvariant(BegunOnce)
	}
	t.seen.begun |= 1 << r.epoch
	g.appendOwn(&t, i, 0)
	g.endStep(&t, Action{kind: actActivate, a: uint8(i), x: r.epoch, y: r.start})
}

// endPrepare clears the answers that an activating node keeps.
func (r *replica) endPrepare() {
	r.votes, r.best, r.reported, r.proven, r.vouched, r.lives = 0, history{}, 0, history{}, 0, [Replicas]uint8{}
}
