package model

// Lives (docs/replication.md#lives) and one answer of a recorded life: each start of a node is a life, which metadata counts. The model keeps the
// number of a life in replica.boot.

// noLife marks a member in the record that may be short.
const noLife = 255

// staleLife returns 1 if a joining member has begun a life that p has not heard of. Metadata
// compares the lives in an AlterISR with the registered ones. Members that stay need no comparison:
// a new life holds nothing until its own acknowledgements prove it, and a dead member must not
// block the change that replaces it.
func (g *stepper) staleLife(p int, joining set) uint8 {
	for m := range Replicas {
		if joining.has(m) && g.from.rep[m].boot != g.from.rep[p].heard[m] {
			return 1
		}
	}
	return 0
}

// livesFor returns the life of each member whose log and clock p vouches for, and noLife for the
// others.
func (g *stepper) livesFor(p int, members set) (out [Replicas]uint8) {
	if !g.cfg.OneAnswer {
		return out
	}
	s := &g.from.rep[p]
	for m := range Replicas {
		switch {
		case !members.has(m):
		case m == p:
			// The primary knows its own disk.
			out[m] = s.boot
		case g.vouchesFor(s, m):
			out[m] = s.heard[m]
		default:
			out[m] = noLife
		}
	}
	return out
}

// vouchesFor reports whether primary r knows that member m, in the life that r has heard of, holds
// everything that clients may know.
func (g *stepper) vouchesFor(r *replica, m int) bool {
	// A life that lacks entries would answer for them all alone.
	holds := r.match[m] >= g.acknowledgedUpTo(r) || g.without(VouchForLog)
	return holds && (r.agreed[m] >= r.published || g.without(VouchForClock))
}

// wouldChangeLives reports whether a proposal of p would change the lives in the record. Only such
// proposals of the unchanged set matter, which keeps the search small.
func (g *stepper) wouldChangeLives(p int) bool {
	return g.cfg.OneAnswer && g.livesFor(p, g.from.rep[p].isr) != g.from.meta.lives
}

// recordLives stores the lives in the record.
func (g *stepper) recordLives(t *state, lives [Replicas]uint8) {
	if !g.cfg.OneAnswer {
		return
	}
	// Registered lives may be newer than those whose logs the primary has seen.
	if g.without(LivesFromProposer) {
		for m := range Replicas {
			if t.meta.isr.has(m) {
				lives[m] = t.rep[m].boot
			}
		}
	}
	t.meta.lives = lives
}
