package model

// Invariant is an invariant of the protocol. The numbers in the comments are those of
// docs/replication.md.
type Invariant uint8

const (
	// OnePrimary (I1): no two replicas are primary of one epoch.
	OnePrimary Invariant = 1 + iota
	// LogMatching (I2): logs that have an entry of the same epoch at the same position are equal up
	// to it.
	LogMatching
	// InSyncHolds (I3): every set of members that can elect a primary contains a holder of every
	// acknowledged entry; without slack, every member is one. Members whose disk currently lacks
	// data are exempt.
	InSyncHolds
	// NewPrimaryHolds (I4): a primary has every entry that was acknowledged in an earlier epoch.
	NewPrimaryHolds
	// CommitStable (I5): within one life of a replica no committed entry is undone and its commit
	// position does not decrease.
	CommitStable
	// OneHistory (I5): no primary commits another entry in place of an acknowledged one.
	OneHistory
	// LeaseRead (I6): a read under a lease returns everything that was acknowledged before.
	LeaseRead
	// ConfirmRead (I6): the same holds for a read whose epoch metadata confirmed.
	ConfirmRead
	// ClosedStaysClosed (I7): after a closed timestamp was published, no primary of its epoch or a
	// later one appends at or below it, and nothing at or below it is committed beyond the position
	// that it covers for readers.
	ClosedStaysClosed
	// MinInSync (I8): the in-sync set never falls below its least size.
	MinInSync
	// Owed (I9): while a holder believes in a grant for epochs that a promise of the grantor has
	// ended, the grantor still owes that grant.
	Owed
	// ReportedHeld (rule P): the best log of enough answers reaches every commit position that
	// an answer reports, so no elected node raises an alarm.
	ReportedHeld
	// BegunOnce (docs/replication.md#rule-names): an epoch is begun once, and not by two lives of one node.
	BegunOnce
	// HealthyStays (docs/replication.md#rule-refuse): no replica with an intact disk has to undo a committed entry, which
	// would quarantine it. While no disk was damaged, no primary is refused either.
	HealthyStays
	// RegionSurvives: of a range that survives regions, the in-sync set has an intact holder of every acknowledged entry in each of
	// two regions.
	RegionSurvives

	invariants
)

var invariantNames = [invariants]string{
	"", "one primary per epoch", "log matching", "in-sync set holds every acknowledged entry",
	"new primary holds every acknowledged entry", "commit is stable", "one history", "lease read is current",
	"confirmed read is current", "closed stays closed", "least in-sync size", "belief is owed", "reported commit is held",
	"an epoch is begun once", "no healthy replica is quarantined", "acknowledged entries survive a region",
}

// String returns a short name of the invariant.
func (i Invariant) String() string {
	if i < invariants {
		return invariantNames[i]
	}
	return "no such invariant"
}

// checks are the invariants of single states. The most expensive ones are last, and a step that
// breaks several is reported under the first, so the order is part of the recorded findings.
var checks = [...]struct {
	invariant Invariant
	holds     func(*Config, *state) bool
}{
	{MinInSync, (*Config).keepsMinInSync},
	{OnePrimary, (*Config).onePrimary},
	{NewPrimaryHolds, (*Config).newPrimaryHolds},
	{InSyncHolds, (*Config).inSyncHolds},
	{RegionSurvives, (*Config).regionsSurvive},
	{ConfirmRead, (*Config).confirmedReads},
	{LeaseRead, (*Config).leaseReads},
	{Owed, (*Config).beliefsOwed},
	{ClosedStaysClosed, (*Config).closedCovered},
	{LogMatching, (*Config).logsMatch},
}

// checkStep returns the invariant that a step breaks, or 0. Invariants that the step itself
// recorded take precedence: they compare states that no longer exist.
func (c *Config) checkStep(from *state, st *step) Invariant {
	// Invariants within a step are more specific than those of the state after it.
	if st.broken != 0 && !c.ignoresInvariant(st.broken) {
		return st.broken
	}
	for _, k := range checks {
		if !k.holds(c, &st.next) && !c.ignoresInvariant(k.invariant) {
			return k.invariant
		}
	}
	if !commitStable(from, &st.next, st.act) && !c.ignoresInvariant(CommitStable) {
		return CommitStable
	}
	return 0
}

// ignoresInvariant reports whether an invariant is not checked.
func (c *Config) ignoresInvariant(i Invariant) bool {
	for _, k := range c.Ignore {
		if k == i {
			return true
		}
	}
	return false
}

// keepsMinInSync checks MinInSync.
func (c *Config) keepsMinInSync(s *state) bool { return s.meta.isr.size() >= c.MinInSync }

// onePrimary checks OnePrimary.
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

// newPrimaryHolds checks NewPrimaryHolds. Entries that were committed in the epoch itself are
// covered by OneHistory.
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

// inSyncHolds checks InSyncHolds: the members that lack an entry must be too few to elect a primary
// among themselves.
func (c *Config) inSyncHolds(s *state) bool {
	lacking := 0
	for i := range Replicas {
		// A region that is lost with its disks exceeds the promise of an in-sync set; RegionSurvives is about it.
		lost := c.RegionLoss && s.gone.has(i)
		if s.meta.isr.has(i) && s.rep[i].log.common(&s.seen.acked) < s.seen.acked.n && !s.damagedNow(i) && !lost {
			lacking++
		}
	}
	// Every set of electQuorum members must contain a holder.
	return lacking < c.electQuorum(s.meta.isr)
}

// servesReads reports whether r answers reads: its epoch-start entry must be committed (rule E).
func (c *Config) servesReads(r *replica) bool {
	return r.role == primary && (r.commit >= r.start || c.Without == ReadAfterStart)
}

// confirmedReads checks ConfirmRead. Reads are not steps: every state is asked which read it would
// answer, so a read may happen anywhere.
func (c *Config) confirmedReads(s *state) bool {
	for i := range s.rep {
		// Metadata confirms reads of the recorded epoch only.
		if r := &s.rep[i]; r.epoch == s.meta.epoch && r.commit < s.seen.acked.n && c.servesReads(r) {
			return false
		}
	}
	return true
}

// leaseReads checks LeaseRead.
func (c *Config) leaseReads(s *state) bool {
	for i := range s.rep {
		if r := &s.rep[i]; r.commit < s.seen.acked.n && c.servesReads(r) && c.holdsLease(s, i) {
			return false
		}
	}
	return true
}

// beliefsOwed exempts a holder that has promised at least the epoch of the grantor: it acts for
// none of the epochs that the promise has ended. With handovers, it exempts holders that serve no reads: a node that was handed its epoch
// owes them nothing.
func (c *Config) beliefsOwed(s *state) bool {
	for p := range Replicas {
		h := &s.rep[p]
		if c.Handover && !c.servesReads(h) {
			continue
		}
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

// closedCovered checks ClosedStaysClosed for committed entries.
func (c *Config) closedCovered(s *state) bool {
	o := &s.seen
	for ts := uint8(1); ts <= o.closed; ts++ {
		// 0 means that the timestamp was not published.
		if o.covers[ts] == 0 {
			continue
		}
		// Entries beyond the covered position with an older timestamp would be missed by readers.
		for k := o.covers[ts]; k < o.acked.n; k++ {
			if o.acked.e[k].interval() < ts {
				return false
			}
		}
	}
	return true
}

// logsMatch checks LogMatching.
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

// commitStable checks CommitStable. A restart may forget the commit position, which is a lower
// bound (docs/replication.md#durable).
func commitStable(from, to *state, act Action) bool {
	for i := range Replicas {
		a, b := &from.rep[i], &to.rep[i]
		if (act.kind == actCrash || act.kind == actDamage || act.kind == actDrop || act.kind == actUpgrade || act.kind == actReturn) && int(act.a) == i || to.gone.has(i) {
			continue
		}
		if b.commit < a.commit || b.log.common(&a.log) < a.commit {
			return false
		}
	}
	return true
}
