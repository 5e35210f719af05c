package model

// image is a copy of a disk: the durable part of a replica. of is the number of the replica plus 1,
// or 0.
type image struct {
	of, promised, seen uint8
	log                history
}

// loss is the part that a disk once held and lacks now. Entries are in ascending order.
type loss struct {
	entries history
	// seen is the greatest closed timestamp that the node acknowledged and forgot, or 0.
	seen uint8
}

// damageDisk lists the restarts of node i that lose synced data.
func (g *stepper) damageDisk(i int) {
	if int(g.from.damages) >= g.cfg.Damages {
		return
	}
	// An image brings back entries that were undone since, which a cut log cannot.
	if g.cfg.Images {
		g.takeImage(i)
		g.returnImage(i)
		return
	}
	s := &g.from.rep[i]
	// A damaged log is cut at the first gap of its hash chain, so every prefix is a possible
	// remainder. The metadata of the replica survives, or is rolled back to the epoch and clock of
	// the remaining log.
	for n := range s.log.n + 1 {
		cut := s.log
		cut.cut(n)
		g.restartDamaged(i, cut, s.promised, s.seen, max(s.commit, s.stored))
		g.restartDamaged(i, cut, max(1, cut.lastEpoch()), cut.lastInterval(), 0)
	}
}

// takeImage copies the disk of node i. One image suffices: a second damage would restore the same
// one.
func (g *stepper) takeImage(i int) {
	if g.from.image.of != 0 {
		return
	}
	s := &g.from.rep[i]
	t := *g.from
	t.image = image{uint8(i + 1), s.promised, s.seen, s.log}
	g.endStep(&t, Action{kind: actImage, a: uint8(i), x: s.promised, y: s.log.n})
}

// returnImage restarts node i from the image of its disk.
func (g *stepper) returnImage(i int) {
	if im := &g.from.image; int(im.of) == i+1 {
		g.restartDamaged(i, im.log, im.promised, im.seen, 0)
	}
}

// restartDamaged restarts node i with the given durable part, if the loss is within the bounds.
// stored is the commit position that the disk still names, even if the log no longer reaches it.
func (g *stepper) restartDamaged(i int, log history, promised, seen, stored uint8) {
	s := &g.from.rep[i]
	// A restart that loses nothing is crashNode.
	if log == s.log && promised >= s.promised && seen >= s.seen {
		return // nothing is lost
	}
	t := *g.from
	if !g.recordLosses(&t, i, &log, seen) {
		return
	}
	t.damages++
	// An older copy of a disk counts its own starts, so without the catalog two lives share a
	// number.
	if g.newLife(&t, i); g.without(LifeCounted) {
		t.rep[i].boot = s.boot
	}
	// The durable state is the remainder; newLife has cleared the volatile state.
	r := &t.rep[i]
	r.log, r.promised, r.seen, r.stored = log, promised, seen, stored
	if !g.without(Relearn) {
		// The node acknowledges, grants, promises and begins nothing before its registration is
		// applied. The registration teaches it the epoch of the record.
		r.promised = max(r.promised, t.meta.epoch)
	}
	// Without the wait, a holder may still believe in a grant that the node has forgotten.
	if g.without(DamagedWaits) {
		r.owed, r.given = [Replicas]uint8{}, [Replicas]uint8{}
	}
	g.endStep(&t, Action{kind: actDamage, a: uint8(i), b: log.n, x: r.promised, y: stored})
}

// recordLosses records the entries and timestamps that disk i lacks when log and seen remain. It
// reports false if any of them would be lacking on more than Config.Lacking disks, which exceeds
// the guarantee of rule P. A learner may lose anything, since nothing depends on its copy.
func (g *stepper) recordLosses(t *state, i int, log *history, seen uint8) bool {
	if !g.from.meta.isr.has(i) {
		return true
	}
	s := &g.from.rep[i]
	// Entries beyond the common prefix are lost, even where other entries take their place.
	for k := log.common(&s.log); k < s.log.n; k++ {
		if g.lackingEntry(i, s.log.e[k]) >= g.cfg.Lacking || !t.lost[i].entries.insert(s.log.e[k]) {
			return false
		}
	}
	// The clock lost nothing, so no timestamp is lacking.
	if seen >= s.seen {
		return true
	}
	others := 0
	for j := range Replicas {
		// Disk j lacks the timestamps above its own up to lost.seen. The two ranges overlap if
		// their greatest timestamps do.
		if j != i && min(t.lost[j].seen, s.seen) > max(seen, g.from.rep[j].seen) {
			others++
		}
	}
	t.lost[i].seen = max(t.lost[i].seen, s.seen)
	return others < g.cfg.Lacking
}

// lackingEntry counts the disks other than i that held an entry and lack it now.
func (g *stepper) lackingEntry(i int, e entry) int {
	n := 0
	for j := range Replicas {
		if j != i && g.from.lost[j].entries.index(e) < logMax && g.from.rep[j].log.index(e) == logMax {
			n++
		}
	}
	return n
}

// forgetRegained forgets losses that have been repaired: the disk holds the entries again, and its
// clock is past the timestamps.
func (s *state) forgetRegained() {
	for i := range s.lost {
		l, r := &s.lost[i], &s.rep[i]
		kept := history{}
		// An entry that is back may serve as an intact copy again: damage is bounded per entry and
		// moment.
		for k := range l.entries.n {
			if e := l.entries.e[k]; r.log.index(e) == logMax {
				kept.add(e)
			}
		}
		l.entries = kept
		if l.seen <= r.seen {
			l.seen = 0
		}
	}
}

// damagedNow reports whether node i lacks anything that it once held.
func (s *state) damagedNow(i int) bool {
	return s.lost[i].entries.n > 0 || s.lost[i].seen > s.rep[i].seen
}
