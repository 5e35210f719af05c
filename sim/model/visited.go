package model

// visited is the set of states seen, as fingerprints in the order of discovery, each with the number of the state that
// it was found from. It takes 12 bytes a state and at most 8 more for the table.
type visited struct {
	prints  []uint64
	parents []uint32
	table   []uint32 // open addressing; 0 is empty, otherwise number + 1
}

func newVisited() *visited { return &visited{table: make([]uint32, 1<<12)} }

// add gives the number of the fingerprint, and whether it is new.
func (v *visited) add(print uint64, parent uint32) (number uint32, fresh bool) {
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

// path gives the fingerprints from the first state to number n.
func (v *visited) path(n uint32) []uint64 {
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
