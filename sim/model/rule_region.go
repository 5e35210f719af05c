package model

// Two regions, known to the record of the range (docs/replication.md#rule-region). A range that
// survives regions never has its in-sync set in one region, and an acknowledged entry is then in
// both. A region is removed when no copy is left in it.

// spans reports whether the members of a set are in both regions.
func (s *state) spans(members set) bool { return members&s.far != 0 && members&^s.far != 0 }

// staysSpread reports whether metadata accepts a set that drops a member: a range that survives
// regions must not end up in one of them. A set that is in one region already does not have to get
// better first.
func (g *stepper) staysSpread(next set) bool {
	s := g.from
	return !g.cfg.Spread || s.meta.isr&^next == 0 || s.spans(next) || !s.spans(s.meta.isr) || g.isAlone(next, s.fenced)
}

// isAlone reports whether metadata accepts a set in one region because all copies elsewhere are on
// fenced nodes. The state of the nodes counts, and not whether their copies are in sync: a node
// that lives may join again, and until then writes wait.
func (g *stepper) isAlone(next, fenced set) bool {
	if !g.cfg.Alone || next == 0 {
		return false
	}
	elsewhere := g.from.far
	if next&g.from.far != 0 {
		elsewhere = everyone &^ g.from.far
	}
	return g.from.meta.replicas&elsewhere&^fenced == 0 || g.without(AloneWhenFenced)
}

// fenceNode is FenceNode: the node counts as dead from now on, and leaves the in-sync set unless
// the set would be too small or in one region for no reason. A primary leaves by an election.
func (g *stepper) fenceNode(i int) {
	m := &g.from.meta
	if !g.cfg.Alone || g.from.fenced.has(i) || int(m.version) >= g.cfg.Versions {
		return
	}
	t := *g.from
	t.fenced = t.fenced.with(i)
	if rest := m.isr.without(i); i != int(m.primary) && m.isr.has(i) && rest.size() >= g.cfg.MinInSync && (!g.cfg.Spread || t.spans(rest) || !t.spans(m.isr) || g.isAlone(rest, t.fenced)) {
		t.meta.isr = rest
	}
	t.meta.version++
	g.endStep(&t, Action{kind: actFenceNode, a: uint8(i), x: uint8(t.fenced), y: uint8(t.meta.isr)})
}

// returnNode lets a fenced node register again, in a new life. From now on it may join, and no set
// may leave it out because it was fenced.
func (g *stepper) returnNode(i int) {
	if !g.from.fenced.has(i) || g.from.back.has(i) {
		return
	}
	t := *g.from
	g.newLife(&t, i)
	if t.fenced = t.fenced.without(i); g.without(FencedUntilReturn) {
		t.fenced, t.back = g.from.fenced, t.back.with(i)
	}
	g.endStep(&t, Action{kind: actReturn, a: uint8(i)})
}

// noteAlone remembers that the in-sync set came into one region while all copies elsewhere were on
// fenced nodes, until it is in both again.
func (g *stepper) noteAlone(t *state) {
	switch was := g.from.spans(g.from.meta.isr); {
	case !g.cfg.Alone:
	case t.spans(t.meta.isr):
		t.alone = 0
	case was:
		// The nodes know best, whatever a mutation makes metadata accept.
		elsewhere := t.far
		if t.meta.isr&t.far != 0 {
			elsewhere = everyone &^ t.far
		}
		t.alone = 0
		if t.meta.replicas&elsewhere&^(t.fenced&^t.back) == 0 {
			t.alone = 1
		}
	}
}

// regionsSurvive checks RegionSurvives: whichever region is lost, the in-sync set has an intact
// member in the other one that holds every acknowledged entry. Like a read, the loss of a region
// needs no step for that: every state is asked.
func (c *Config) regionsSurvive(s *state) bool {
	// While the set is alone, the other region is lost already, as far as anybody can know.
	if !c.Spread || s.gone != 0 || s.alone == 1 {
		return true
	}
	for _, there := range [...]set{s.far, everyone &^ s.far} {
		left := false
		for i := range Replicas {
			// A damaged disk counts as intact here: damage is bounded separately (Config.Lacking).
			holds := s.rep[i].log.common(&s.seen.acked) == s.seen.acked.n || s.damagedNow(i)
			left = left || s.meta.isr.has(i) && !there.has(i) && holds
		}
		if !left {
			return false
		}
	}
	return true
}

// loseRegion stops all nodes of the other region for good. Their disks are lost.
func (g *stepper) loseRegion() {
	if !g.cfg.RegionLoss || g.from.gone != 0 {
		return
	}
	t := *g.from
	t.stopNodes(t.far)
	g.endStep(&t, Action{kind: actLoseRegion, x: uint8(t.far)})
}

// stopNodes ends nodes for good, together with their disks.
func (t *state) stopNodes(nodes set) {
	t.gone |= nodes
	for i := range Replicas {
		if nodes.has(i) {
			t.rep[i] = replica{promised: t.rep[i].promised, boot: t.rep[i].boot}
			t.lost[i], t.removedIn[i] = loss{}, 0
		}
	}
}

// giveUpRegion ends the other region by force after its loss. Members that are left in sync
// continue. A range without such members waits for an operator who accepts the loss, which is not
// modelled.
func (g *stepper) giveUpRegion() {
	s := g.from
	if !g.cfg.GivenUp || s.gone == 0 || s.region != 0 || int(s.meta.allocated) >= g.cfg.Epochs {
		return
	}
	// Who was in sync before the loss has every acknowledged entry, also those of the last moment:
	// a commit waited for all members.
	left := s.meta.isr &^ s.far
	// Under the mutation every copy that is left counts.
	if g.without(GiveUpInSync) {
		left = s.meta.replicas &^ s.far
	}
	if left.size() < g.cfg.MinInSync {
		return
	}
	for n := range Replicas {
		if !left.has(n) {
			continue
		}
		t := *s
		t.region = 1
		t.meta.replicas &^= t.far
		t.applyElect(n, left, false)
		g.endStep(&t, Action{kind: actGiveUpRegion, a: uint8(n), b: uint8(t.far), x: t.meta.epoch})
	}
}

// removeRegion ends the planned removal of the other region: its nodes stop for good when the
// record lists none of them.
func (g *stepper) removeRegion() {
	s := g.from
	if !g.cfg.RegionRemoval || s.region != 0 || s.meta.replicas&s.far != 0 && !g.without(RegionEmptyFirst) {
		return
	}
	// Whoever decides this does not ask the nodes: the record alone counts.
	t := *g.from
	t.region = 1
	t.stopNodes(t.far)
	g.endStep(&t, Action{kind: actEndRegion, x: uint8(t.far)})
}
