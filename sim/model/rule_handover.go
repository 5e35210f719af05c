package model

// prepareHandover reserves an epoch for i while the primary continues.
func (g *stepper) prepareHandover(i int) {
	m := &g.from.meta
	if !g.cfg.Handover || int(m.allocated) >= g.cfg.Epochs || m.preparedEpoch != 0 || i == int(m.primary) || !m.isr.has(i) {
		return
	}
	// The reserved epoch is allocated now, so an election in between gets a greater one.
	t := *g.from
	t.meta.allocated++
	t.meta.preparedEpoch, t.meta.preparedFor = t.meta.allocated, uint8(i)
	g.endStep(&t, Action{kind: actPrepare, a: uint8(i), x: t.meta.preparedEpoch})
}

// handOver lets primary p hand over its range to the prepared replica: p promises the reserved
// epoch, stops, and sends its whole log.
func (g *stepper) handOver(p int) {
	s, meta := &g.from.rep[p], &g.from.meta
	// Only the primary of the recorded epoch hands over, once it has begun that, and only to a member.
	if meta.preparedEpoch == 0 || s.role != primary || s.epoch != meta.epoch || int(meta.primary) != p || !s.isr.has(int(meta.preparedFor)) {
		return
	}
	// With a change in progress, the receiver would know only one of the two sets
	// (HandoverNoPending).
	if s.pending != 0 && !g.without(HandoverNoPending) {
		return
	}
	t := *g.from
	m := message{
		kind: msgHandover, from: uint8(p), to: meta.preparedFor, epoch: meta.preparedEpoch,
		x: uint8(s.isr), y: s.version, z: s.heard[meta.preparedFor], c: s.seen, log: s.log,
	}
	// A primary that continued would commit entries that the receiver lacks.
	if !g.without(HandoverStepsDown) {
		t.rep[p].promise(m.epoch)
	}
	g.sendMessage(&t, m, Action{kind: actHandOver, a: uint8(p), b: m.to, x: m.epoch})
}

// receiveHandover makes i the primary of the reserved epoch. Its grants need no wait, because the old primary has stopped, and when it
// began its epoch no earlier primary held a lease any more, for lack of its grant. With slack, a lease does not need all grants.
func (g *stepper) receiveHandover(i int, m *message) {
	if g.from.rep[i].promised >= m.epoch {
		return
	}
	// In another life i may have begun the reserved epoch already (docs/replication.md#handover).
	if m.z != g.from.rep[i].boot && !g.without(HandoverOfThisLife) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.promise(m.epoch)
	// The sender cannot read any more, so its grant does no harm.
	r.owed[m.from] = 0
	if g.cfg.Slack == 0 {
		r.owed = [Replicas]uint8{}
	}
	r.role, r.epoch, r.isr, r.version = activating, m.epoch, set(m.x), m.y
	r.log = m.log
	// The receiver writes above everything that the sender closed.
	if !g.without(HandoverCarriesClock) {
		r.seen = max(r.seen, m.c)
	}
	// The log is complete, since its primary has stopped, so no answers are needed.
	r.votes, r.best = set(m.x), m.log
	g.endStep(&t, Action{kind: actTakeOver, a: uint8(i), b: m.from, x: m.epoch})
}

// adoption is an AdoptHandover in flight to metadata.
type adoption struct {
	epoch uint8 // 0 if there is none
	life  uint8 // of the target that began the epoch
}

// proposeAdoption lets the new primary i ask metadata to record its epoch. The proposal arrives at any time later, or never.
func (g *stepper) proposeAdoption(i int) {
	r := &g.from.rep[i]
	if r.role != primary || r.epoch <= g.from.meta.epoch || g.from.adoptions[i].epoch == r.epoch {
		return
	}
	t := *g.from
	t.adoptions[i] = adoption{r.epoch, r.boot}
	g.endStep(&t, Action{kind: actProposeAdopt, a: uint8(i), x: r.epoch})
}

// adoptHandover records in metadata that i is primary of the reserved epoch, when its proposal arrives. Meanwhile the handover may have been
// cancelled, another node elected, or i restarted.
func (g *stepper) adoptHandover(i int) {
	q, meta := g.from.adoptions[i], &g.from.meta
	if q.epoch == 0 {
		return
	}
	// A later epoch may have acknowledged entries that the primary of this one lacks.
	if (q.epoch != meta.preparedEpoch || int(meta.preparedFor) != i) && !g.without(AdoptPrepared) {
		return
	}
	// The present life has not begun the epoch. If its disk has forgotten the promise, it would begin it again.
	if q.life != g.from.rep[i].boot && !g.without(AdoptOfThisLife) {
		return
	}
	g.recordAdoption(i, meta.isr)
	// A node that drains leaves the set with its last role there.
	rest := meta.isr.without(int(meta.primary))
	if g.cfg.Drains && rest.size() >= g.cfg.MinInSync && (g.staysSpread(rest) || g.without(AdoptSpans)) {
		g.recordAdoption(i, rest)
	}
}

// recordAdoption makes i the primary of its reserved epoch, with an in-sync set.
func (g *stepper) recordAdoption(i int, isr set) {
	q := g.from.adoptions[i]
	t := *g.from
	t.adoptions[i] = adoption{}
	m := &t.meta
	m.epoch, m.primary, m.isr = q.epoch, uint8(i), isr
	m.preparedEpoch, m.preparedFor = 0, nobody
	// A secondary may have been fenced in the meantime: i must read the record before it changes
	// the set.
	m.version++
	// A node that reads the record without a memory of the epoch takes it for an election.
	m.elections[m.epoch] = election{uint8(i), m.isr, m.version, m.lives}
	g.endStep(&t, Action{kind: actAdopt, a: uint8(i), x: m.epoch, y: uint8(isr)})
}

// cancelHandover withdraws a prepared handover, at any time. The reserved epoch stays unused by metadata, although the target may
// have begun it.
func (g *stepper) cancelHandover() {
	if g.from.meta.preparedEpoch == 0 {
		return
	}
	t := *g.from
	t.meta.preparedEpoch, t.meta.preparedFor = 0, nobody
	g.endStep(&t, Action{kind: actCancel, x: g.from.meta.preparedEpoch})
}

// forgetAdoptions clears proposals that metadata will refuse: a reserved epoch is never reserved again.
func (c *Config) forgetAdoptions(s *state) {
	for i := range s.adoptions {
		q := &s.adoptions[i]
		late := (q.epoch != s.meta.preparedEpoch || int(s.meta.preparedFor) != i) && c.Without != AdoptPrepared
		if late || q.life != s.rep[i].boot && c.Without != AdoptOfThisLife {
			*q = adoption{}
		}
	}
}
