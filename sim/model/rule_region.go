package model

// Two regions, known to the record of the range (docs/replication.md#rule-region). A range that survives regions never has its
// in-sync set in one region, and an acknowledged entry is then in both. A region is removed when no copy is left in it.

// spans reports whether the members of a set are in both regions.
func (s *state) spans(members set) bool { return members&s.far != 0 && members&^s.far != 0 }

// staysSpread reports whether metadata accepts a set that drops a member: a range that survives regions must not end up in one of
// them. A set that is in one region already does not have to get better first.
func (g *stepper) staysSpread(next set) bool {
	s := g.from
	return !g.cfg.Spread || s.meta.isr&^next == 0 || s.spans(next) || !s.spans(s.meta.isr)
}

// regionsSurvive checks RegionSurvives: whichever region is lost, the in-sync set has an intact member in the other one that holds every
// acknowledged entry. Like a read, the loss of a region needs no step for that: every state is asked.
func (c *Config) regionsSurvive(s *state) bool {
	if !c.Spread || s.gone != 0 {
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

// removeRegion ends the planned removal of the other region: its nodes stop for good when the record lists none of them.
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
