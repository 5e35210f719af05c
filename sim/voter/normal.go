package voter

import (
	"cmp"
	"slices"
)

// normalise clears what nobody can use any more, so that states which differ only in that are one.
func (s *state) dropDeadMessages(c *Config) {
	kept := 0
	for k := range int(s.inNet) {
		if m := s.net[k]; c.isDeliverable(s, &m) {
			s.net[kept] = m
			kept++
		}
	}
	for k := kept; k < int(s.inNet); k++ {
		s.net[k] = message{}
	}
	s.inNet = uint8(kept)
	s.sortNet()
}

func (s *state) sortNet() {
	if s.inNet == 2 && s.net[0].compare(&s.net[1]) > 0 {
		s.net[0], s.net[1] = s.net[1], s.net[0]
	}
}

// alive reports whether some voter would still take m. A damaged voter may forget its term.
func (c *Config) isDeliverable(s *state, m *message) bool {
	for i := range c.Voters {
		if i != int(m.from) && (s.voters[i].term <= m.term || int(s.damages) < c.Damages) {
			return true
		}
	}
	return false
}

func (m *message) compare(o *message) int {
	c := cmp.Or(cmp.Compare(m.from, o.from), cmp.Compare(m.term, o.term), cmp.Compare(m.commit, o.commit), cmp.Compare(m.log.n, o.log.n))
	if c != 0 {
		return c
	}
	return slices.Compare(m.log.e[:], o.log.e[:])
}
