package model

// A replica may take the whole copy of another one in the place of its own (docs/replication.md#rule-transfer). The donor hands out a
// set: its log, its commit position and its promise, as of one moment. Any time later, in the same life or after restarts, the
// set replaces the log of the receiver in one step. Trimming of logs is not modelled; instead any replica may copy any other at
// any time, which includes copies of copies.

// copySet is a set that a replica has received and not installed.
type copySet struct {
	held     uint8 // 1 if there is a set
	promised uint8 // of the donor
	commit   uint8 // of the donor; entries above it may still be undone
	log      history
}

// copyLeast returns the position that a set must be committed up to: everything that the replica holds may count somewhere, as an
// acknowledgement or as a commit position that it reports.
func (r *replica) copyLeast() uint8 { return max(r.log.n, r.commit, r.stored) }

// takeSet lets replica i receive a set of replica j. Until the set is installed, nothing but the old copy answers for i.
func (g *stepper) takeSet(i, j int) {
	s, donor := &g.from.rep[i], &g.from.rep[j]
	if i == j || int(g.from.copies) >= g.cfg.Copies || s.role == primary || s.set.held == 1 || g.from.gone.has(j) || g.from.readable(i, &donor.log) < donor.log.n {
		return
	}
	// A donor with a shorter commit refuses. The end of i may grow later, so it is compared again when the set is installed.
	if donor.commit < s.copyLeast() && !g.without(CopyReachesEnd) {
		return
	}
	t := *g.from
	t.copies++
	r := &t.rep[i]
	r.set = copySet{1, donor.promised, donor.commit, donor.log}
	act := Action{kind: actTakeSet, a: uint8(i), b: uint8(j), x: donor.commit, y: donor.log.n}
	if g.without(CopyInOneStep) {
		r.log, r.commit = history{}, 0
	}
	if g.without(CopyCountsInstalled) {
		// The replica acknowledges entries before it holds them.
		g.sendMessage(&t, message{kind: msgAck, from: uint8(i), to: g.from.meta.primary, epoch: s.promised, x: donor.commit, z: s.boot}, act)
		return
	}
	g.endStep(&t, act)
}

// installSet puts the set in the place of the log of replica i.
func (g *stepper) installSet(i int) {
	s := &g.from.rep[i]
	if s.set.held == 0 || s.role == primary || s.set.commit < s.copyLeast() && !g.without(CopyReachesEnd) {
		return
	}
	t := *g.from
	r := &t.rep[i]
	set := r.set
	r.set = copySet{}
	// A replica that was activating follows now. It never begins an epoch that it promised before.
	r.stepDown()
	r.log, r.commit = set.log, set.commit
	if g.without(CopiedTailOpen) {
		r.commit = set.log.n
	}
	// With the raised promise, the grants of the node exclude the epochs below.
	r.promise(set.promised)
	if g.without(CopyKeepsPromise) {
		r.promised = set.promised
	}
	g.endStep(&t, Action{kind: actInstall, a: uint8(i), x: set.commit, y: set.log.n})
}

// forgetSets clears sets that cannot be installed any more. The end of a log may still fall, where entries that are not committed
// are undone; the known commit position falls only in a restart or with a new copy.
func (c *Config) forgetSets(s *state) {
	falls := int(s.crashes) < c.Crashes || int(s.damages) < c.Damages || int(s.removals) < c.Removals
	if c.Copies == 0 || falls || c.Without == CopyReachesEnd || c.Without == CopyInOneStep {
		return
	}
	for i := range s.rep {
		if r := &s.rep[i]; r.set.commit < max(r.commit, r.stored) {
			r.set = copySet{}
		}
	}
}
