package model

// ackQuorum is qw: how many members of an in-sync set must have an entry before it is committed.
func (c *Config) ackQuorum(s set) int { return min(s.size(), max(c.MinInSync, s.size()-c.Slack)) }

// electQuorum is qe: how many members meet every set of ackQuorum members.
func (c *Config) electQuorum(s set) int { return s.size() - c.ackQuorum(s) + 1 }

// write is rule W: the primary appends a client's write. It is acknowledged when it is committed.
func (g *stepper) write(p int) {
	if int(g.from.writes) >= g.cfg.Writes || g.from.rep[p].log.full() {
		return
	}
	t := *g.from
	t.writes++
	g.appendOwn(&t, p, t.writes)
	g.done(&t, Action{kind: actWrite, a: uint8(p), x: t.writes})
}

// appendOwn appends an entry at primary p, which counts itself.
func (g *stepper) appendOwn(t *state, p int, write uint8) {
	r := &t.rep[p]
	e := r.append(write)
	r.match[p] = r.log.n
	if r.epoch >= t.seen.closedBy && e.interval() < t.seen.closed {
		g.fail(ClosedStaysClosed)
	}
	g.advance(t, p)
}

// sendAppend sends the log to everybody: all of it, or with Config.Partial any beginning.
func (g *stepper) sendAppend(p int) {
	r := &g.from.rep[p]
	least := r.log.n
	if g.cfg.Partial {
		least = 1
	}
	for n := least; n <= r.log.n; n++ {
		t := *g.from
		m := message{kind: msgAppend, from: uint8(p), to: nobody, epoch: r.epoch, x: min(r.commit, n), y: r.start, log: r.log}
		m.log.cut(n)
		g.send(&t, m, Action{kind: actAppend, a: uint8(p), x: n, y: m.x})
	}
}

// receiveAppend is rule A.
func (g *stepper) receiveAppend(i int, m *message) {
	s := &g.from.rep[i]
	if m.epoch < s.promised && !g.without(Fence) || m.epoch < s.epoch || m.epoch == s.epoch && s.role != follower {
		return
	}
	if g.refuses(s, m) {
		g.refuse(i, m)
		return
	}
	t := *g.from
	r := &t.rep[i]
	if m.epoch > r.promised {
		r.promise(m.epoch)
		g.forget(r)
	}
	r.stepDown()
	if same := r.log.common(&m.log); same < m.log.n {
		if same < s.commit && !g.from.damagedNow(i) {
			g.fail(HealthyStays) // it must undo what it has committed, so it is quarantined
		}
		r.log = m.log
	}
	r.commit = max(r.commit, min(m.x, m.log.n))
	match := m.log.n
	if g.without(AckWhatWasSent) {
		match = r.log.n
	}
	ack := message{kind: msgAck, from: uint8(i), to: m.from, epoch: m.epoch, x: match, z: r.boot}
	g.send(&t, ack, Action{kind: actFollow, a: uint8(i), b: m.from, x: m.epoch, y: m.log.n})
}

// refuses reports whether a replica that holds no entry of the primary's epoch yet finds that the epoch undoes what is
// committed: the epoch starts at or below the replica's commit position, or the primary's log differs below it. Then the
// primary has lost data and not the replica.
func (g *stepper) refuses(s *replica, m *message) bool {
	if s.log.lastEpoch() >= m.epoch || g.without(RefuseFirst) {
		return false
	}
	differs := s.log.common(&m.log) < min(s.commit, m.log.n)
	return m.y <= s.commit || differs && !g.without(RefuseDiffering)
}

// refuse tells the primary that its epoch undoes what is committed.
func (g *stepper) refuse(i int, m *message) {
	t := *g.from
	g.send(&t, message{kind: msgRefusal, from: uint8(i), to: m.from, epoch: m.epoch}, Action{kind: actRefuse, a: uint8(i), b: m.from, x: m.epoch})
}

// receiveRefusal stops a primary whose epoch undoes what is committed. It raises an alarm.
func (g *stepper) receiveRefusal(p int, m *message) {
	if s := &g.from.rep[p]; s.role != primary || s.epoch != m.epoch {
		return
	}
	t := *g.from
	t.rep[p].stepDown()
	g.done(&t, Action{kind: actStop, a: uint8(p), b: m.from, x: m.epoch})
}

// giveUp is part of ruling 18: a primary without progress stops and asks for an election. Metadata may elect anybody at
// any time, so the request needs no message.
func (g *stepper) giveUp(p int) {
	if !g.cfg.GivesUp {
		return
	}
	t := *g.from
	t.rep[p].stepDown()
	g.done(&t, Action{kind: actGiveUp, a: uint8(p), x: g.from.rep[p].epoch})
}

// forget is what a replica must not do on a new epoch: cut its log to what it knows to be committed (rule T).
func (g *stepper) forget(r *replica) {
	if g.without(NoCutToCommit) {
		r.log.cut(r.commit)
	}
}

// receiveAck counts an acknowledgement. One of a new life takes the place of those of the life before.
func (g *stepper) receiveAck(p int, m *message) {
	if s := &g.from.rep[p]; s.role != primary || s.epoch != m.epoch || m.z < s.heard[m.from] && !g.without(AckOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	if m.z > r.heard[m.from] && g.without(MatchPerLife) {
		r.heard[m.from] = m.z
	}
	if m.z > r.heard[m.from] {
		r.heard[m.from], r.match[m.from] = m.z, 0
		if !g.without(AgreedPerLife) {
			r.agreed[m.from] = 0
		}
	}
	r.match[m.from] = max(r.match[m.from], m.x)
	g.advance(&t, p)
	g.done(&t, Action{kind: actCount, a: uint8(p), b: m.from, x: m.x})
}

// acked reports whether enough members of a set have the log up to index.
func (g *stepper) acked(r *replica, members set, index uint8) bool {
	n := 0
	for m := range Replicas {
		if members.has(m) && r.match[m] >= index {
			n++
		}
	}
	return members.size() >= g.cfg.MinInSync && n >= g.cfg.ackQuorum(members)
}

// committable is rule C for one index.
func (g *stepper) committable(r *replica, index uint8) bool {
	if r.pending != 0 && g.without(ShrinkAfterCommit) {
		return g.acked(r, r.pending, index)
	}
	if !g.acked(r, r.isr, index) {
		return false
	}
	if r.pending == 0 || g.without(CommitNeedsPending) {
		return true
	}
	return g.acked(r, r.pending, index) && (g.cfg.Slack > 0 || g.acked(r, r.isr|r.pending, index))
}

// advance commits what can be committed at primary p, and with it everything below.
func (g *stepper) advance(t *state, p int) {
	r := &t.rep[p]
	for index := r.log.n; index > r.commit && index >= r.start; index-- {
		if g.committable(r, index) {
			r.commit = index
			g.observeCommit(t, r)
			return
		}
	}
}

// observeCommit tells the clients.
func (g *stepper) observeCommit(t *state, r *replica) {
	acked := &t.seen.acked
	if acked.common(&r.log) < min(acked.n, r.commit) {
		g.fail(OneHistory)
	}
	for acked.n < r.commit {
		t.seen.ackedEpoch[acked.n] = r.epoch
		acked.add(r.log.e[acked.n])
	}
}
