package model

// ackQuorum returns qw, the number of members of an in-sync set that must have an entry before it
// is committed.
func (c *Config) ackQuorum(s set) int { return min(s.size(), max(c.MinInSync, s.size()-c.Slack)) }

// electQuorum returns qe, the number of members that intersects every set of ackQuorum members.
func (c *Config) electQuorum(s set) int { return s.size() - c.ackQuorum(s) + 1 }

// appendWrite is rule W: the primary appends a client write. The write is acknowledged when it is
// committed.
func (g *stepper) appendWrite(p int) {
	if int(g.from.writes) >= g.cfg.Writes || g.from.rep[p].log.full() {
		return
	}
	t := *g.from
	t.writes++
	g.appendOwn(&t, p, t.writes)
	g.endStep(&t, Action{kind: actWrite, a: uint8(p), x: t.writes})
}

// appendOwn appends an entry at primary p, which counts itself.
func (g *stepper) appendOwn(t *state, p int, write uint8) {
	r := &t.rep[p]
	e := r.appendEntry(write)
	r.match[p] = r.log.n
	// Only primaries of the publishing epoch or a later one are bound by a published timestamp.
	if r.epoch >= t.seen.closedBy && e.interval() < t.seen.closed {
		g.failInvariant(ClosedStaysClosed)
	}
	g.advanceCommit(t, p)
}

// sendAppend sends the log to all replicas: all of it, or with Config.Partial any prefix.
func (g *stepper) sendAppend(p int) {
	r := &g.from.rep[p]
	least := r.log.n
	if g.cfg.Partial {
		least = 1
	}
	for n := least; n <= r.log.n; n++ {
		t := *g.from
		m := message{kind: msgAppend, from: uint8(p), to: nobody, epoch: r.epoch, x: min(r.commit, n), y: r.start, log: r.log}
		// With a shorter prefix the commit position must not point beyond it.
		m.log.cut(n)
		g.sendMessage(&t, m, Action{kind: actAppend, a: uint8(p), x: n, y: m.x})
	}
}

// receiveAppend is rule A. Refusing, undoing, appending and acknowledging are one step, because a
// member syncs them together (docs/replication.md#durable). sent is the length of the log in the message. An older build may have
// read less of it.
func (g *stepper) receiveAppend(i int, m *message, sent uint8) {
	s := &g.from.rep[i]
	// A deposed primary continues to replicate. Without the fence its entries would replace newer
	// ones.
	if m.epoch < s.promised && !g.without(Fence) || m.epoch < s.epoch || m.epoch == s.epoch && s.role != follower {
		return
	}
	if g.mustRefuse(s, m) {
		g.refuseEpoch(i, m)
		return
	}
	t := *g.from
	r := &t.rep[i]
	if m.epoch > r.promised {
		r.promise(m.epoch)
		g.cutToCommit(r)
	}
	// Whatever the replica was in an earlier epoch, it follows now.
	r.stepDown()
	if same := r.log.common(&m.log); same < m.log.n {
		if same < s.commit && !g.from.damagedNow(i) {
			// A committed entry must be undone, so the replica is quarantined.
			g.failInvariant(HealthyStays)
		}
		r.log = m.log
	}
	// The commit position follows only as far as this message carried the log.
	r.commit = max(r.commit, min(m.x, m.log.n))
	match := m.log.n
	// The log may end in entries of an earlier epoch, which the primary does not have.
	if g.without(AckWhatWasSent) {
		match = r.log.n
	}
	if g.without(AckWhatIsRead) {
		match = sent
	}
	ack := message{kind: msgAck, from: uint8(i), to: m.from, epoch: m.epoch, x: match, z: r.boot}
	g.sendMessage(&t, ack, Action{kind: actFollow, a: uint8(i), b: m.from, x: m.epoch, y: m.log.n})
}

// mustRefuse reports whether a replica that has no entry of the epoch yet must refuse it because
// the epoch undoes committed entries: the epoch starts at or below the commit position of the
// replica, or the log of the primary differs below that position. In both cases the primary has
// lost data, not the replica.
func (g *stepper) mustRefuse(s *replica, m *message) bool {
	// Two contents in one place of one epoch are another matter (rule A).
	if s.log.lastEpoch() >= m.epoch || g.without(RefuseFirst) {
		return false
	}
	differs := s.log.common(&m.log) < min(s.commit, m.log.n)
	return m.y <= s.commit || differs && !g.without(RefuseDiffering)
}

// refuseEpoch reports to the primary that its epoch undoes committed entries.
func (g *stepper) refuseEpoch(i int, m *message) {
	t := *g.from
	// Only a disk that lost data makes a primary contradict committed entries.
	if t.damages == 0 {
		g.failInvariant(HealthyStays)
	}
	g.sendMessage(&t, message{kind: msgRefusal, from: uint8(i), to: m.from, epoch: m.epoch}, Action{kind: actRefuse, a: uint8(i), b: m.from, x: m.epoch})
}

// receiveRefusal stops a primary whose epoch undoes committed entries. The primary raises an alarm.
func (g *stepper) receiveRefusal(p int, m *message) {
	if s := &g.from.rep[p]; s.role != primary || s.epoch != m.epoch {
		return
	}
	t := *g.from
	t.rep[p].stepDown()
	g.endStep(&t, Action{kind: actStop, a: uint8(p), b: m.from, x: m.epoch})
}

// giveUp is part of docs/replication.md#rule-progress: a primary without progress stops and asks for an election. Metadata
// may elect any member at any time, so the request needs no message.
func (g *stepper) giveUp(p int) {
	if !g.cfg.GivesUp {
		return
	}
	t := *g.from
	t.rep[p].stepDown()
	g.endStep(&t, Action{kind: actGiveUp, a: uint8(p), x: g.from.rep[p].epoch})
}

// cutToCommit breaks rule T under NoCutToCommit: a new epoch must not cut a log to the known commit
// position, which is only a lower bound.
func (g *stepper) cutToCommit(r *replica) {
	if g.without(NoCutToCommit) {
		r.log.cut(r.commit)
	}
}

// receiveAck counts an acknowledgement. An acknowledgement of a newer life replaces those of
// earlier lives.
func (g *stepper) receiveAck(p int, m *message) {
	if s := &g.from.rep[p]; s.role != primary || s.epoch != m.epoch || m.z < s.heard[m.from] && !g.without(AckOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[p]
	// The mutation keeps the old match for the new life.
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
	g.advanceCommit(&t, p)
	g.endStep(&t, Action{kind: actCount, a: uint8(p), b: m.from, x: m.x})
}

// isAcked reports whether enough members of a set have the log up to index.
func (g *stepper) isAcked(r *replica, members set, index uint8) bool {
	n := 0
	for m := range Replicas {
		if members.has(m) && r.match[m] >= index {
			n++
		}
	}
	return members.size() >= g.cfg.MinInSync && n >= g.cfg.ackQuorum(members)
}

// isCommittable is rule C for one index. During a change both sets must have the entry; with slack
// their quorums, and that of their union, must.
func (g *stepper) isCommittable(r *replica, index uint8) bool {
	if r.pending != 0 && g.without(ShrinkAfterCommit) {
		return g.isAcked(r, r.pending, index)
	}
	if !g.isAcked(r, r.isr, index) {
		return false
	}
	if r.pending == 0 || g.without(CommitNeedsPending) {
		return true
	}
	return g.isAcked(r, r.pending, index) && (g.cfg.Slack > 0 || g.isAcked(r, r.isr|r.pending, index))
}

// advanceCommit commits the greatest index that can be committed at primary p, and everything below
// it.
func (g *stepper) advanceCommit(t *state, p int) {
	r := &t.rep[p]
	// Below the epoch-start entry nothing is committed directly: an entry of an earlier epoch may
	// still be undone by a later one (rule C).
	for index := r.log.n; index > r.commit && index >= r.start; index-- {
		if g.isCommittable(r, index) {
			r.commit = index
			g.observeCommit(t, r)
			return
		}
	}
}

// observeCommit acknowledges the committed entries to the clients.
func (g *stepper) observeCommit(t *state, r *replica) {
	acked := &t.seen.acked
	// Every primary's committed log must continue the acknowledged one.
	if acked.common(&r.log) < min(acked.n, r.commit) {
		g.failInvariant(OneHistory)
	}
	for acked.n < r.commit {
		t.seen.ackedEpoch[acked.n] = r.epoch
		acked.add(r.log.e[acked.n])
	}
}
