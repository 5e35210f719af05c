package model

// moveCopy removes the copy of node i and places a new, empty one on the node within the same life: two changes of the record, as
// one step (docs/replication.md#rule-removal). The new copy keeps the promise of the old one.
func (g *stepper) moveCopy(i int) {
	m := &g.from.meta
	if int(g.from.removals) >= g.cfg.Removals || i == int(m.primary) {
		return
	}
	// A member of the in-sync set may hold the only copy of an entry that an election would ask for.
	if m.isr.has(i) && !g.without(RemoveOutOfSync) {
		return
	}
	fresh := !g.without(NewEpochForCopy)
	if fresh && int(m.allocated) >= g.cfg.Epochs {
		return
	}
	t := *g.from
	t.removals++
	r := &t.rep[i]
	r.stepDown()
	r.log, r.commit, r.stored, r.set = history{}, 0, 0, copySet{}
	// Acknowledgements of the old copy name the old epoch, so the primary of a new one ignores them.
	if fresh {
		t.applyElect(int(m.primary), m.isr, false)
	} else {
		t.meta.version++
	}
	g.endStep(&t, Action{kind: actMove, a: uint8(i), x: t.meta.epoch})
}
