package model

// image is what a disk held at some time: the durable part of a replica. of is the replica's number plus 1; 0 is none.
type image struct {
	of, promised, seen uint8
	log                history
}

// loss is what a disk once held and lacks now. Entries are in ascending order.
type loss struct {
	entries history
	seen    uint8 // greatest closed timestamp that the node acknowledged and forgot; 0 is none
}

// damage lists the restarts of node i that lose synced data.
func (g *stepper) damage(i int) {
	if int(g.from.damages) >= g.cfg.Damages {
		return
	}
	if g.cfg.Images {
		g.takeImage(i)
		g.returnImage(i)
		return
	}
	s := &g.from.rep[i]
	for n := range s.log.n + 1 {
		cut := s.log
		cut.cut(n)
		g.damaged(i, cut, s.promised, s.seen, max(s.commit, s.stored))
		g.damaged(i, cut, max(1, cut.lastEpoch()), cut.lastInterval(), 0)
	}
}

// takeImage copies the disk of node i. One image is enough: a second damage would be the return of the same one.
func (g *stepper) takeImage(i int) {
	if g.from.image.of != 0 {
		return
	}
	s := &g.from.rep[i]
	t := *g.from
	t.image = image{uint8(i + 1), s.promised, s.seen, s.log}
	g.done(&t, Action{kind: actImage, a: uint8(i), x: s.promised, y: s.log.n})
}

func (g *stepper) returnImage(i int) {
	if im := &g.from.image; int(im.of) == i+1 {
		g.damaged(i, im.log, im.promised, im.seen, 0)
	}
}

// damaged restarts node i with the durable part given, if the loss is within the bounds. stored is the commit position
// that the disk still names.
func (g *stepper) damaged(i int, log history, promised, seen, stored uint8) {
	s := &g.from.rep[i]
	if log == s.log && promised >= s.promised && seen >= s.seen {
		return // nothing is lost
	}
	t := *g.from
	if !g.lose(&t, i, &log, seen) {
		return
	}
	t.damages++
	if g.newLife(&t, i); g.without(LifeCounted) {
		t.rep[i].boot = s.boot
	}
	r := &t.rep[i]
	r.log, r.promised, r.seen, r.stored = log, promised, seen, stored
	if !g.without(Relearn) {
		// Nothing is acknowledged, granted, promised or begun until the node's registration was applied. It tells the
		// node the epoch of the record.
		r.promised = max(r.promised, t.meta.epoch)
	}
	if g.without(DamagedWaits) {
		r.owed, r.given = [Replicas]uint8{}, [Replicas]uint8{}
	}
	g.done(&t, Action{kind: actDamage, a: uint8(i), b: log.n, x: r.promised, y: stored})
}

// lose notes what disk i lacks when it is left with log and seen. It reports false if any of it would be lacking on
// more than Config.Lacking disks. A learner may lose anything: nothing depends on what it holds.
func (g *stepper) lose(t *state, i int, log *history, seen uint8) bool {
	if !g.from.meta.isr.has(i) {
		return true
	}
	s := &g.from.rep[i]
	for k := log.common(&s.log); k < s.log.n; k++ {
		if g.lackingEntry(i, s.log.e[k]) >= g.cfg.Lacking || !t.lost[i].entries.insert(s.log.e[k]) {
			return false
		}
	}
	if seen >= s.seen {
		return true
	}
	others := 0
	for j := range Replicas {
		// Disk j lacks the timestamps above its own up to lost.seen. They overlap if the greatest of both does.
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

// regain forgets losses that were made good: the disk holds the entries again and its clock is past the timestamps.
func (s *state) regain() {
	for i := range s.lost {
		l, r := &s.lost[i], &s.rep[i]
		kept := history{}
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
