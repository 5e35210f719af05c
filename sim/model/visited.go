package model

// visited is the set of visited states: fingerprints in the order of discovery, each with the
// number of its predecessor. It takes 12 bytes per state and at most 8 more for the table, where a
// map of states would take the size of a state for each.
type visited struct {
	prints  []uint64
	parents []uint32
	table   []uint32 // open addressing; 0 is empty, otherwise the number of a state plus 1
}

func newVisited() *visited { return &visited{table: make([]uint32, 1<<12)} }

// add returns the number of a fingerprint, and whether it is new.
func (v *visited) add(print uint64, parent uint32) (number uint32, fresh bool) {
	// At most half full, so that probes stay short.
	if 2*len(v.prints) >= len(v.table) {
		v.grow()
	}
	mask := uint64(len(v.table) - 1)
	for slot := print & mask; ; slot = (slot + 1) & mask {
		n := v.table[slot]
		if n == 0 {
			v.prints = append(v.prints, print)
			v.parents = append(v.parents, parent)
			v.table[slot] = uint32(len(v.prints))
			return uint32(len(v.prints) - 1), true
		}
		if v.prints[n-1] == print {
			return n - 1, false
		}
	}
}

// grow doubles the table. It needs no old table, because prints hold everything.
func (v *visited) grow() {
	v.table = make([]uint32, 2*len(v.table))
	mask := uint64(len(v.table) - 1)
	for i, print := range v.prints {
		slot := print & mask
		for v.table[slot] != 0 {
			slot = (slot + 1) & mask
		}
		v.table[slot] = uint32(i + 1)
	}
}

// pathTo returns the fingerprints from the first state to number n.
func (v *visited) pathTo(n uint32) []uint64 {
	var back []uint64
	for n != 0 {
		back = append(back, v.prints[n])
		n = v.parents[n]
	}
	out := make([]uint64, len(back))
	for i, p := range back {
		out[len(back)-1-i] = p
	}
	return out
}
