package segment

import (
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/shm"
)

// Moves says which records of a base have another place in the next base. Nearly all stay where
// they are, and every reference of a tree or an order is asked for, so that a bit per unit answers
// first.
type Moves struct {
	away   []uint64 // a bit per unit: the record there has moved
	places map[uint32]uint32
}

// Reset forgets all moves and prepares for a base of so many units.
func (m *Moves) Reset(units uint32) {
	m.away = resizeSlice(m.away, int(units/64)+1)
	clear(m.away)
	if clear(m.places); m.places == nil {
		m.places = map[uint32]uint32{}
	}
}

// Move moves a record to another place.
func (m *Moves) Move(from, to uint32) {
	m.away[from/64] |= 1 << (from % 64)
	m.places[from] = to
}

// Len returns how many records moved.
func (m *Moves) Len() int { return len(m.places) }

// PlaceOf returns the place of a record of the older base.
func (m *Moves) PlaceOf(ref uint32) uint32 {
	if m.away[ref/64]>>(ref%64)&1 == 0 {
		return ref
	}
	return m.places[ref]
}

// copySection copies an unchanged section, if there is one, together with its checksum.
func (s *Segment) copySection(old *Segment, t format.SectionType) {
	from, ok := old.Head.Find(t)
	if !ok {
		return
	}
	to := s.section(t)
	copy(s.File.Mem[to.Offset:][:to.Size], old.File.Mem[from.Offset:][:from.Size])
	to.Sum = from.Sum
}

// copyRefs copies a section of references and replaces those of records that moved.
func (s *Segment) copyRefs(old *Segment, t format.SectionType, moves *Moves) {
	s.copySection(old, t)
	if moves.Len() == 0 {
		return // and the checksum of before is right
	}
	sec := s.section(t)
	mem := s.File.Mem[sec.Offset:][:sec.Items*4]
	refs := shm.View[uint32](mem)
	for i, ref := range refs {
		if ref < old.Head.BaseUnits { // lanes of the tree that hold nothing have a greater one
			refs[i] = moves.PlaceOf(ref)
		}
	}
	sec.Sum = format.Checksum(mem)
}

// CopyTree copies the R-tree of an older base whose boxes are all the same.
func (s *Segment) CopyTree(old *Segment, moves *Moves) {
	s.copySection(old, format.SectionTreeNodes)
	s.copyRefs(old, format.SectionTreeRefs, moves)
}

// CopyOrder copies the order of an older base that has the same keys.
func (s *Segment) CopyOrder(old *Segment, moves *Moves) { s.copyRefs(old, format.SectionOrder, moves) }

// resizeSlice returns a slice of n elements whose content is undefined.
func resizeSlice[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
