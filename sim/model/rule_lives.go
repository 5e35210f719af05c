package model

// Rulings 17 and 17a: each start of a node is a life, which metadata counts. The number of a life in the model is
// replica.boot.

// noLife stands in the record for a member that may be short.
const noLife = 255

// stale returns 1 if a joining member has begun a life that p has not heard of. Metadata compares the lives that an
// AlterISR names with those that are registered. It need not do so for members that stay: a new life holds nothing
// until its own acknowledgements say so.
func (g *stepper) stale(p int, joining set) uint8 {
	for m := range Replicas {
		if joining.has(m) && g.from.rep[m].boot != g.from.rep[p].heard[m] {
			return 1
		}
	}
	return 0
}

// livesFor returns the life of each member whose log and clock p vouches for. Others get noLife.
func (g *stepper) livesFor(p int, members set) (out [Replicas]uint8) {
	if !g.cfg.OneAnswer {
		return out
	}
	s := &g.from.rep[p]
	for m := range Replicas {
		switch {
		case !members.has(m):
		case m == p:
			out[m] = s.boot
		case g.vouches(s, m):
			out[m] = s.heard[m]
		default:
			out[m] = noLife
		}
	}
	return out
}

// vouches reports whether primary r knows that member m, in the life that r has heard of, holds everything that clients
// were told.
func (g *stepper) vouches(r *replica, m int) bool {
	holds := r.match[m] >= g.acknowledgedUpTo(r) || g.without(VouchForLog)
	return holds && (r.agreed[m] >= r.opened || g.without(VouchForClock))
}

// relive reports whether p would record other lives than those in the record. It keeps the changes few.
func (g *stepper) relive(p int) bool {
	return g.cfg.OneAnswer && g.livesFor(p, g.from.rep[p].isr) != g.from.meta.lives
}

// record takes the lives into the record.
func (g *stepper) record(t *state, lives [Replicas]uint8) {
	if !g.cfg.OneAnswer {
		return
	}
	if g.without(LivesFromProposer) {
		for m := range Replicas {
			if t.meta.isr.has(m) {
				lives[m] = t.rep[m].boot
			}
		}
	}
	t.meta.lives = lives
}
