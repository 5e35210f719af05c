package model

// Copies are removed and placed again (docs/replication.md#rule-removal). Removing is a change of the record. The node learns of it at any
// time later, also after it got another copy. Nodes read records in order, but learn of epochs also from other nodes.

// removeReplica removes the copy of node i from the record.
func (g *stepper) removeReplica(i int) {
	m := &g.from.meta
	if int(g.from.removals) >= g.cfg.Removals || i == int(m.primary) || !m.replicas.has(i) {
		return
	}
	// A member of the in-sync set may hold the only copy of an entry that an election would ask for.
	if m.isr.has(i) && !g.without(RemoveOutOfSync) {
		return
	}
	// The node keeps its copy until it hears of this record.
	t := *g.from
	t.removals++
	t.meta.replicas = m.replicas.without(i)
	t.meta.version++
	t.removedIn[i] = m.epoch
	g.endStep(&t, Action{kind: actRemove, a: uint8(i), x: m.epoch})
}

// placeReplica places a copy on node i again: the old one, if the node has not learned yet that it was removed, or an empty one.
func (g *stepper) placeReplica(i int) {
	m := &g.from.meta
	if m.replicas.has(i) || g.from.gone.has(i) || g.from.region != 0 && g.from.far.has(i) {
		return
	}
	fresh := !g.without(NewEpochForCopy)
	if fresh && int(m.allocated) >= g.cfg.Epochs {
		return
	}
	// An old record that removed the copy may still be on its way to the node.
	t := *g.from
	t.meta.replicas = m.replicas.with(i)
	// Acknowledgements of the old copy name the old epoch, so the primary of a new one ignores them.
	if fresh {
		t.applyElect(int(m.primary), m.isr, false)
	} else {
		t.meta.version++
	}
	g.endStep(&t, Action{kind: actPlace, a: uint8(i), x: t.meta.epoch})
}

// dropCopy lets node i act on the record that removed its copy: the copy is dropped, and the promise stays. A copy that has promised a
// later epoch than that of the record was placed here again since, and may be in sync by now.
func (g *stepper) dropCopy(i int) {
	s := &g.from.rep[i]
	in := g.from.removedIn[i]
	// Under the mutation the node drops the copy although the record still lists it.
	early := g.without(DropWhenRemoved) && g.cfg.Removals > 0 && int(g.from.meta.primary) != i
	if in == 0 && !early || in != 0 && s.promised > in && !g.without(DropByRecord) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	r.stepDown()
	r.log, r.commit, r.stored, r.set = history{}, 0, 0, copySet{}
	t.removedIn[i] = 0
	g.endStep(&t, Action{kind: actDrop, a: uint8(i), x: in})
}

// forgetRemovals clears removals that their nodes ignore, since they have promised a later epoch.
func (c *Config) forgetRemovals(s *state) {
	if c.Removals == 0 || c.Without == DropByRecord {
		return
	}
	for i := range s.rep {
		if in := s.removedIn[i]; in != 0 && s.rep[i].promised > in && !c.promisesFall(s, in) {
			s.removedIn[i] = 0
		}
	}
}
