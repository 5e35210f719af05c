package model

// Rule E with ruling 16: the elected node asks the members of its in-sync set for their logs and adopts the greatest
// one before it begins its epoch. One disk that lost synced data then loses nothing that a client was told.

// learnElected begins an election's work at the elected node: it promises its own epoch and sends PREPARE.
func (g *stepper) learnElected(i int, epoch uint8, el election) {
	t := *g.from
	r := &t.rep[i]
	r.promise(epoch)
	r.role, r.epoch, r.isr, r.version, r.lives = activating, epoch, el.isr, el.version, el.lives
	r.report(max(r.commit, r.stored), r.commit, r.log)
	g.ask(&t, i, Action{kind: actElected, a: uint8(i), x: epoch})
}

// ask ends a step that led to t with PREPARE to all. Node i counts its own answer only.
func (g *stepper) ask(t *state, i int, act Action) {
	r := &t.rep[i]
	r.votes, r.best, r.vouched = set(0).with(i), r.log, 0
	g.vouch(r, i, r.boot)
	if g.cfg.PairsOnly {
		g.done(t, act) // there are no logs to ask for
		return
	}
	g.send(t, message{kind: msgPrepare, from: uint8(i), to: nobody, epoch: r.epoch}, act)
}

// disputed stands for a commit position that no log reaches: two answers report different committed entries.
const disputed = logMax + 1

// report notes the commit position in an answer, and the log up to the commit position that the log still reaches. In
// an implementation that is the hash of one entry.
func (r *replica) report(stored, commit uint8, log history) {
	log.cut(commit)
	r.told = max(r.told, stored)
	if r.sure.common(&log) < min(r.sure.n, log.n) {
		r.told = disputed
	}
	if log.n > r.sure.n {
		r.sure = log
	}
}

// reached reports whether log contains every entry that an answer reports as committed.
func (g *stepper) reached(r *replica, log *history) bool {
	return log.n >= r.told && log.common(&r.sure) == r.sure.n || g.without(ReportedReached)
}

// vouch notes that an answer comes from a life that the record names (ruling 17a).
func (g *stepper) vouch(r *replica, i int, life uint8) {
	if g.cfg.OneAnswer && r.isr.has(i) && (r.lives[i] == life || g.without(AnswerOfRecordedLife)) {
		r.vouched = 1
	}
}

// receivePrepare promises the candidate's epoch and answers with the log, the commit position and the clock. With slack
// a node answers only when no other node holds a grant of its own that does not exclude the epochs before.
func (g *stepper) receivePrepare(i int, m *message) {
	s := &g.from.rep[i]
	if m.epoch < s.promised || m.epoch == s.promised && s.role != follower {
		return
	}
	t := *g.from
	r := &t.rep[i]
	if !g.without(AnswerPromises) {
		r.promise(m.epoch)
	}
	act := Action{kind: actPromise, a: uint8(i), b: m.from, x: m.epoch}
	if g.cfg.Slack > 0 && g.owes(&t, i, int(m.from)) {
		g.done(&t, act)
		return
	}
	g.send(&t, message{
		kind: msgPromise, from: uint8(i), to: m.from, epoch: m.epoch,
		x: max(r.commit, r.stored), y: r.seen, z: r.boot, c: r.commit, log: r.log,
	}, act)
}

// receivePromise counts an answer. The log in it stands for the log's last epoch, end and hash: the entries themselves
// are fetched.
func (g *stepper) receivePromise(i int, m *message) {
	s := &g.from.rep[i]
	if s.role != activating || s.epoch != m.epoch || s.votes.has(int(m.from)) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.votes = r.votes.with(int(m.from))
	if g.better(&m.log, &r.best) {
		r.best = m.log
	}
	r.report(m.x, m.c, m.log)
	if !g.without(AnswerCarriesClock) {
		r.seen = max(r.seen, m.y)
	}
	g.vouch(r, int(m.from), m.z)
	g.done(&t, Action{kind: actVote, a: uint8(i), b: m.from})
}

// better reports whether log a is greater than b: by the epoch of its last entry, then by its end.
func (g *stepper) better(a, b *history) bool {
	switch x, y := a.lastEpoch(), b.lastEpoch(); {
	case g.without(PrepareAdopts):
		return false
	case g.without(BestByEpoch) || x == y && !g.without(BestByEnd):
		return a.n > b.n
	default:
		return x > y
	}
}

// fetch lists what an activating node may do about the entries of the best log that it lacks. It undoes what contradicts
// the best log and copies the rest, in as many pieces as it likes, from any replica whose log still contains the best
// log: the hash says so. If no such replica is left, it drops the answers and asks again. It undoes nothing that an answer
// reports as committed.
func (g *stepper) fetch(i int) {
	s := &g.from.rep[i]
	if s.role != activating || s.log == s.best {
		return
	}
	for j := range Replicas {
		source := &g.from.rep[j]
		if j == i || !g.reached(s, &s.best) || source.log.common(&s.best) < s.best.n && !g.without(FetchByHash) {
			continue
		}
		for n := s.log.common(&s.best); n <= s.best.n; n++ {
			t := *g.from
			r := &t.rep[i]
			if g.without(FetchByHash) && s.votes.has(j) {
				r.best = source.log
			}
			r.log = r.best
			r.log.cut(n)
			g.done(&t, Action{kind: actFetch, a: uint8(i), b: uint8(j), x: n, y: s.best.n})
		}
	}
	t := *g.from
	act := Action{kind: actAskAgain, a: uint8(i), x: s.epoch}
	if g.without(FetchRecounts) {
		t.rep[i].best = s.log
		g.done(&t, act)
		return
	}
	g.ask(&t, i, act)
}

// enough reports whether an elected node has the answers that it needs.
func (g *stepper) enough(r *replica) bool {
	if g.without(PrepareQuorum) || r.vouched == 1 {
		return true
	}
	votes := r.votes & r.isr
	if g.without(AnswersOfMembers) {
		votes = r.votes
	}
	return votes.size() >= g.cfg.answersNeeded(r.isr)
}

// answersNeeded returns how many members of an in-sync set answer PREPARE before the epoch begins. Without slack every
// member holds every acknowledged entry, so MinInSync answers leave one that is intact. With slack and damage no
// number below all does.
func (c *Config) answersNeeded(members set) int {
	switch {
	case c.Slack == 0:
		return c.MinInSync
	case c.Damages > 0:
		return members.size()
	default:
		return c.electQuorum(members)
	}
}

// activate ends rule E: the answers, the wait for the node's own grants, and the epoch-start entry.
func (g *stepper) activate(i int) {
	s := &g.from.rep[i]
	if s.role != activating || g.cfg.PairsOnly || s.log != s.best && g.reached(s, &s.best) || s.log.full() || g.owes(g.from, i, nobody) || !g.enough(s) {
		return
	}
	t := *g.from
	if !g.reached(s, &s.best) {
		// The node waits for the other members and raises an alarm.
		g.fail(ReportedHeld)
		g.done(&t, Action{kind: actAlarm, a: uint8(i), x: s.told})
		return
	}
	r := &t.rep[i]
	r.endPrepare()
	r.role = primary
	r.start = r.log.n + 1
	if t.seen.begun>>r.epoch&1 == 1 {
		g.fail(BegunOnce)
	}
	t.seen.begun |= 1 << r.epoch
	g.appendOwn(&t, i, 0)
	g.done(&t, Action{kind: actActivate, a: uint8(i), x: r.epoch, y: r.start})
}

// endPrepare clears what an activating node keeps of the answers.
func (r *replica) endPrepare() {
	r.votes, r.best, r.told, r.sure, r.vouched, r.lives = 0, history{}, 0, history{}, 0, [Replicas]uint8{}
}
