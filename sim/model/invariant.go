package model

// Invariant is a promise of the protocol. The numbers in the comments are those of the replication design.
type Invariant uint8

const (
	// OnePrimary (I1): no two replicas are primary of one epoch.
	OnePrimary Invariant = 1 + iota
	// LogMatching (I2): logs that have an entry of the same epoch at the same position are equal up to it.
	LogMatching
	// InSyncHolds (I3): every set of members from which a primary can be elected has a holder of every acknowledged
	// entry; without slack that is every member. Members whose disk lacks data at the moment are left out.
	InSyncHolds
	// NewPrimaryHolds (I4): a primary has every entry that was acknowledged in an earlier epoch.
	NewPrimaryHolds
	// CommitStable (I5): within one life of a replica nothing committed is undone and commit does not go back.
	CommitStable
	// OneHistory (I5): no primary commits another entry where one was acknowledged.
	OneHistory
	// LeaseRead (I6): a read under a lease returns everything that was acknowledged before.
	LeaseRead
	// ConfirmRead (I6): so does a read for which metadata confirmed the epoch.
	ConfirmRead
	// ClosedStaysClosed (I7): after a closed timestamp was published, no primary of its epoch or a later one appends at
	// or below it, and nothing at or below it is committed beyond the position that readers take it to cover.
	ClosedStaysClosed
	// MinInSync (I8): the in-sync set never falls below the least size.
	MinInSync
	// Owed (I9): whenever a holder believes in a grant for epochs that the grantor's promise ended, the grantor still
	// owes that grant.
	Owed
	// ReportedHeld (ruling 16): the best log of enough answers reaches every commit that an answer reports, so that no
	// elected node raises an alarm.
	ReportedHeld
	// BegunOnce (ruling 20): an epoch is begun once, not twice by two lives of one node.
	BegunOnce
	// HealthyStays (ruling 17): no replica whose disk is whole has to undo what it has committed, which would quarantine it.
	HealthyStays

	invariants
)

var invariantNames = [invariants]string{
	"", "one primary per epoch", "log matching", "in-sync set holds every acknowledged entry",
	"new primary holds every acknowledged entry", "commit is stable", "one history", "lease read is current",
	"confirmed read is current", "closed stays closed", "least in-sync size", "belief is owed", "reported commit is held",
	"an epoch is begun once", "no healthy replica is quarantined",
}

// String names the invariant in a few words.
func (i Invariant) String() string {
	if i < invariants {
		return invariantNames[i]
	}
	return "no such invariant"
}

// checks are the invariants that a state alone can break, dearest last.
var checks = [...]struct {
	invariant Invariant
	holds     func(*Config, *state) bool
}{
	{MinInSync, (*Config).keepsMinInSync},
	{OnePrimary, (*Config).onePrimary},
	{NewPrimaryHolds, (*Config).newPrimaryHolds},
	{InSyncHolds, (*Config).inSyncHolds},
	{ConfirmRead, (*Config).confirmedReads},
	{LeaseRead, (*Config).leaseReads},
	{Owed, (*Config).beliefsOwed},
	{ClosedStaysClosed, (*Config).closedCovered},
	{LogMatching, (*Config).logsMatch},
}

// check gives the invariant that a step from a state has broken, or 0.
func (c *Config) check(from *state, st *step) Invariant {
	if st.broken != 0 && !c.ignores(st.broken) {
		return st.broken
	}
	for _, k := range checks {
		if !k.holds(c, &st.next) && !c.ignores(k.invariant) {
			return k.invariant
		}
	}
	if !commitStable(from, &st.next, st.act) && !c.ignores(CommitStable) {
		return CommitStable
	}
	return 0
}

func (c *Config) ignores(i Invariant) bool {
	for _, k := range c.Ignore {
		if k == i {
			return true
		}
	}
	return false
}

func (c *Config) keepsMinInSync(s *state) bool { return s.meta.isr.size() >= c.MinInSync }

func (c *Config) onePrimary(s *state) bool {
	for i := range Replicas {
		for j := range i {
			if s.rep[i].role == primary && s.rep[j].role == primary && s.rep[i].epoch == s.rep[j].epoch {
				return false
			}
		}
	}
	return true
}

func (c *Config) newPrimaryHolds(s *state) bool {
	for i := range s.rep {
		r := &s.rep[i]
		if r.role != primary {
			continue
		}
		for k := r.log.common(&s.seen.acked); k < s.seen.acked.n; k++ {
			if r.epoch > s.seen.ackedEpoch[k] {
				return false
			}
		}
	}
	return true
}

func (c *Config) inSyncHolds(s *state) bool {
	lacking := 0
	for i := range Replicas {
		if s.meta.isr.has(i) && s.rep[i].log.common(&s.seen.acked) < s.seen.acked.n && !s.damagedNow(i) {
			lacking++
		}
	}
	return lacking < c.electQuorum(s.meta.isr)
}

// serves reports whether r would answer reads at all: its epoch-start entry is committed (rule E).
func (c *Config) serves(r *replica) bool {
	return r.role == primary && (r.commit >= r.start || c.Without == ReadAfterStart)
}

func (c *Config) confirmedReads(s *state) bool {
	for i := range s.rep {
		if r := &s.rep[i]; r.epoch == s.meta.epoch && r.commit < s.seen.acked.n && c.serves(r) {
			return false
		}
	}
	return true
}

func (c *Config) leaseReads(s *state) bool {
	for i := range s.rep {
		if r := &s.rep[i]; r.commit < s.seen.acked.n && c.serves(r) && c.leased(s, i) {
			return false
		}
	}
	return true
}

// beliefsOwed leaves out a holder that has promised as much as the grantor: it acts for no epoch that was ended.
func (c *Config) beliefsOwed(s *state) bool {
	for p := range Replicas {
		h := &s.rep[p]
		for i := range Replicas {
			g := &s.rep[i]
			if i == p || h.belief[i] != s.round[p] || h.floor[i] >= g.promised || h.promised >= g.promised {
				continue
			}
			if g.owed[p] != s.round[p] {
				return false
			}
		}
	}
	return true
}

func (c *Config) closedCovered(s *state) bool {
	o := &s.seen
	for ts := uint8(1); ts <= o.closed; ts++ {
		if o.covers[ts] == 0 {
			continue
		}
		for k := o.covers[ts]; k < o.acked.n; k++ {
			if o.acked.e[k].interval() < ts {
				return false
			}
		}
	}
	return true
}

func (c *Config) logsMatch(s *state) bool {
	for i := range Replicas {
		for j := range i {
			a, b := &s.rep[i].log, &s.rep[j].log
			for k := a.common(b); k < min(a.n, b.n); k++ {
				if a.e[k].epoch() == b.e[k].epoch() {
					return false
				}
			}
		}
	}
	return true
}

func commitStable(from, to *state, act Action) bool {
	for i := range Replicas {
		a, b := &from.rep[i], &to.rep[i]
		if (act.kind == actCrash || act.kind == actDamage) && int(act.a) == i {
			continue
		}
		if b.commit < a.commit || b.log.common(&a.log) < a.commit {
			return false
		}
	}
	return true
}
