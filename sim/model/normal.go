package model

import "slices"

// normaliseState clears information that no node can use any more, so that states that differ only
// there count as one. Each clause is valid for the reason in its comment; under a mutation that
// invalidates the reason the clause is skipped. TestReductionsHideNothing compares the verdicts
// with and without normalisation.
func (c *Config) normaliseState(s *state) {
	if c.raw {
		return
	}
	c.forgetRounds(s)
	c.forgetProposals(s)
	c.forgetElections(s)
	c.forgetDamage(s)
	c.forgetSets(s)
	c.forgetAdoptions(s)
	c.forgetRemovals(s)
	// Messages that can change nothing are removed, and the array stays sorted because order is
	// kept.
	kept := 0
	for k := range int(s.inNet) {
		if m := s.net[k]; c.messageMatters(s, &m) {
			s.net[kept] = m
			kept++
		}
	}
	for k := kept; k < int(s.inNet); k++ {
		s.net[k] = message{}
	}
	s.inNet = uint8(kept)
}

// forgetRounds clears grants of rounds that have ended, and the state of pairs that can no longer
// act on it.
func (c *Config) forgetRounds(s *state) {
	if c.Rounds == 0 {
		return
	}
	for i := range s.rep {
		r := &s.rep[i]
		for j := range Replicas {
			// A holder that acts for no epoch any more, or whose round has ended, believes in
			// nothing that matters.
			if r.belief[j] != s.round[i] || c.pastLastEpoch(r) {
				r.belief[j] = 0
			}
			if r.floor[j] <= r.promised {
				// The own promise excludes the same epochs.
				r.floor[j] = 0
			}
			idle := c.pastLastEpoch(&s.rep[j])
			// given matters only as the future owed of this round.
			if r.given[j] != s.round[j] || idle || c.pastLastEpoch(r) {
				r.given[j] = 0
			}
			// owed ends with the round of the holder, and does not matter for a holder that cannot
			// be deposed.
			if r.owed[j] != s.round[j] || idle {
				r.owed[j] = 0
			}
			if idle {
				r.confirmed[j] = 0
			}
		}
	}
}

// forgetDamage clears losses that have been repaired, an image that cannot return, and stored
// commit positions that the replica has reached.
func (c *Config) forgetDamage(s *state) {
	if c.Damages == 0 {
		return
	}
	s.forgetRegained()
	// No further damage can restore the image.
	if int(s.damages) >= c.Damages {
		s.image = image{}
	}
	for i := range s.rep {
		// A stored commit position is reported only where it exceeds the known one.
		if r := &s.rep[i]; r.stored <= r.commit {
			r.stored = 0
		}
	}
}

// forgetProposals clears proposals that compare-and-set will refuse.
func (c *Config) forgetProposals(s *state) {
	if c.Without == CompareAndSet {
		return
	}
	for i := range s.proposals {
		for k := range s.proposals[i] {
			q := &s.proposals[i][k]
			// A version never returns, so an outdated proposal stays refused.
			if q.epoch != s.meta.epoch || q.version != s.meta.version || q.stale == 1 && c.Without != JoinNamesLife {
				*q = proposal{}
			}
		}
	}
}

// promisesFall reports whether the promise of a replica may yet fall below epoch. A damaged replica
// relearns the epoch of the record, so only epochs that the record does not show yet can be
// forgotten.
func (c *Config) promisesFall(s *state, epoch uint8) bool {
	if c.Without == DurablePromise && int(s.crashes) < c.Crashes {
		// Without promises on disk, any epoch may be forgotten in a crash.
		return true
	}
	if c.Without == CopyKeepsPromise && (int(s.copies) < c.Copies || slices.ContainsFunc(s.rep[:], func(r replica) bool { return r.set.held == 1 })) {
		return true
	}
	return int(s.damages) < c.Damages && (c.Without == Relearn || epoch >= s.meta.epoch)
}

// forgetElections clears election records that the elected node has passed. Other nodes look only
// at the newest epoch.
func (c *Config) forgetElections(s *state) {
	// Promises below the epoch of the record fall only under a mutation.
	if c.promisesFall(s, 0) {
		return
	}
	for e := range s.meta.elections {
		// learnRecord looks only above the promised epoch.
		if el := &s.meta.elections[e]; el.primary != nobody && int(s.rep[el.primary].promised) >= e {
			*el = election{primary: nobody}
		}
	}
}

// messageMatters reports whether the arrival of m can still change a state.
func (c *Config) messageMatters(s *state, m *message) bool {
	switch m.kind {
	case msgAppend, msgPrepare:
		return c.anyoneListens(s, m)
	case msgAck:
		// An acknowledgement counts only for the epoch of the primary, and only if it says more
		// than earlier ones of the same life.
		r := &s.rep[m.to]
		if c.Without == NewEpochAfterRestart {
			// Under this mutation a restarted primary may continue its epoch and count the message.
			return r.role != primary || r.epoch <= m.epoch
		}
		if r.role != primary || r.epoch != m.epoch || m.z < r.heard[m.from] && c.Without != AckOfThisLife {
			return false
		}
		return m.x > r.match[m.from] || m.z > r.heard[m.from]
	case msgHeartbeat:
		r := &s.rep[m.to]
		// A holder past the last epoch cannot be deposed, so its grants do not matter.
		if c.pastLastEpoch(&s.rep[m.from]) {
			return false
		}
		if m.z < r.life[m.from] && c.Without != OldLifeIgnored {
			return false
		}
		// The heartbeat renews a grant of the present round, or confirms an exclusion.
		return m.x == s.round[m.from] || m.y >= r.promised && r.confirmed[m.from] == 0
	case msgGrant:
		r := &s.rep[m.to]
		if c.pastLastEpoch(r) {
			return false
		}
		if m.z != r.boot && c.Without != GrantOfThisLife {
			return false
		}
		// A grant matters if its exclusion or its round is news to the holder.
		return m.y > max(r.floor[m.from], r.promised) || m.x > r.belief[m.from] && (m.x == s.round[m.to] || c.Without == LeaseFromSending)
	case msgRefusal:
		// A refusal stops exactly the primary that it answers.
		return s.rep[m.to].role == primary && s.rep[m.to].epoch == m.epoch
	case msgPromise:
		r := &s.rep[m.to]
		// A repeated answer still matters while the log differs from the best one, because it may
		// be asked for again.
		return r.role == activating && r.epoch == m.epoch && (!r.votes.has(int(m.from)) || r.log != r.best)
	case msgHandover:
		// A receiver that has promised the epoch refuses it, unless it may forget the promise.
		return s.rep[m.to].promised < m.epoch || c.promisesFall(s, m.epoch)
	}
	return true
}

// anyoneListens reports whether any replica would still accept a message that goes to all.
func (c *Config) anyoneListens(s *state, m *message) bool {
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
