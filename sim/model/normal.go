package model

// normalise clears what nobody can use any more, so that states which differ only in that are one. Each clause says why
// nobody can; those that a mutation makes wrong are left out under it.
func (c *Config) normalise(s *state) {
	if c.raw {
		return
	}
	c.forgetRounds(s)
	c.forgetProposals(s)
	c.forgetElections(s)
	c.forgetDamage(s)
	kept := 0
	for k := range int(s.inNet) {
		if m := s.net[k]; c.alive(s, &m) {
			s.net[kept] = m
			kept++
		}
	}
	for k := kept; k < int(s.inNet); k++ {
		s.net[k] = message{}
	}
	s.inNet = uint8(kept)
}

// forgetRounds clears grants of rounds that have ended, and what passes between nodes that cannot act on it any more.
func (c *Config) forgetRounds(s *state) {
	if c.Rounds == 0 {
		return
	}
	for i := range s.rep {
		r := &s.rep[i]
		for j := range Replicas {
			if r.belief[j] != s.round[i] || c.beyond(r) {
				r.belief[j] = 0
			}
			if r.floor[j] <= r.promised {
				r.floor[j] = 0 // the promise says as much
			}
			idle := c.beyond(&s.rep[j])
			if r.given[j] != s.round[j] || idle || c.beyond(r) {
				r.given[j] = 0
			}
			if r.owed[j] != s.round[j] || idle {
				r.owed[j] = 0
			}
			if idle {
				r.confirmed[j] = 0
			}
		}
	}
}

// forgetDamage clears losses that were made good, an image that cannot come back, and stored commits that the replica
// has reached.
func (c *Config) forgetDamage(s *state) {
	if c.Damages == 0 {
		return
	}
	s.regain()
	if int(s.damages) >= c.Damages {
		s.image = image{}
	}
	for i := range s.rep {
		if r := &s.rep[i]; r.stored <= r.commit {
			r.stored = 0
		}
	}
}

// forgetProposals clears those that compare-and-set will refuse.
func (c *Config) forgetProposals(s *state) {
	if c.Without == CompareAndSet {
		return
	}
	for i := range s.proposals {
		for k := range s.proposals[i] {
			q := &s.proposals[i][k]
			if q.epoch != s.meta.epoch || q.version != s.meta.version || q.stale == 1 && c.Without != JoinNamesLife {
				*q = proposal{}
			}
		}
	}
}

// promisesFall reports whether a replica may yet come to promise less than epoch, although it has promised it. A damaged
// replica relearns the epoch of the record, so only epochs that the record does not show yet can be forgotten.
func (c *Config) promisesFall(s *state, epoch uint8) bool {
	if c.Without == DurablePromise && int(s.crashes) < c.Crashes {
		return true
	}
	return int(s.damages) < c.Damages && (c.Without == Relearn || epoch >= s.meta.epoch)
}

// forgetElections clears records that the one who was elected has passed. Others only look at the newest epoch.
func (c *Config) forgetElections(s *state) {
	if c.promisesFall(s, 0) { // of epochs before the record's only under a mutation
		return
	}
	for e := range s.meta.elections {
		if el := &s.meta.elections[e]; el.primary != nobody && int(s.rep[el.primary].promised) >= e {
			*el = election{primary: nobody}
		}
	}
}

// alive reports whether the arrival of m can still change anything.
func (c *Config) alive(s *state, m *message) bool {
	switch m.kind {
	case msgAppend, msgPrepare:
		return c.listened(s, m)
	case msgAck:
		r := &s.rep[m.to]
		if c.Without == NewEpochAfterRestart {
			return r.role != primary || r.epoch <= m.epoch
		}
		if r.role != primary || r.epoch != m.epoch || m.z < r.heard[m.from] && c.Without != AckOfThisLife {
			return false
		}
		return m.x > r.match[m.from] || m.z > r.heard[m.from]
	case msgHeartbeat:
		r := &s.rep[m.to]
		if c.beyond(&s.rep[m.from]) {
			return false
		}
		if m.z < r.life[m.from] && c.Without != OldLifeIgnored {
			return false
		}
		return m.x == s.round[m.from] || m.y >= r.promised && r.confirmed[m.from] == 0
	case msgGrant:
		r := &s.rep[m.to]
		if c.beyond(r) {
			return false
		}
		if m.z != r.boot && c.Without != GrantOfThisLife {
			return false
		}
		return m.y > max(r.floor[m.from], r.promised) || m.x > r.belief[m.from] && (m.x == s.round[m.to] || c.Without == LeaseFromSending)
	case msgRefusal:
		return s.rep[m.to].role == primary && s.rep[m.to].epoch == m.epoch
	case msgPromise:
		r := &s.rep[m.to]
		return r.role == activating && r.epoch == m.epoch && (!r.votes.has(int(m.from)) || r.log != r.best)
	case msgHandover:
		return s.rep[m.to].promised < m.epoch || c.promisesFall(s, m.epoch)
	}
	return true
}

// listened reports whether some replica would still take a message that goes to all.
func (c *Config) listened(s *state, m *message) bool {
	if c.Without == Fence || c.promisesFall(s, m.epoch) {
		return true
	}
	for j := range Replicas {
		if j != int(m.from) && s.rep[j].promised <= m.epoch {
			return true
		}
	}
	return false
}
