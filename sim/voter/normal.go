package voter

import (
	"cmp"
	"slices"
)

// dropDeadMessages removes messages that no voter would take any more and sorts the others, so that
// states which differ only in them are one state.
func (s *state) dropDeadMessages(c *Config) {
	kept := 0
	for k := range int(s.inNet) {
		if m := s.net[k]; c.isDeliverable(s, &m) {
			s.net[kept] = m
			kept++
		}
	}
	// Unused slots are zero, because states are compared and hashed as plain memory.
	for k := kept; k < int(s.inNet); k++ {
		s.net[k] = message{}
	}
	s.inNet = uint8(kept)
	s.sortNet()
}

// sortNet sorts the messages in flight, whose order means nothing. There are at most messagesMax,
// which is 2.
func (s *state) sortNet() {
	if s.inNet == 2 && s.net[0].compare(&s.net[1]) > 0 {
		s.net[0], s.net[1] = s.net[1], s.net[0]
	}
}

// isDeliverable reports whether some voter may still take m.
func (c *Config) isDeliverable(s *state, m *message) bool {
	for i := range c.Voters {
		// A voter of a later term refuses m, but a damage to come may make it forget that term.
		if i != int(m.from) && (s.voters[i].term <= m.term || int(s.damages) < c.Damages) {
			return true
		}
	}
	return false
}

// compare orders messages by all their fields.
func (m *message) compare(o *message) int {
	c := cmp.Or(cmp.Compare(m.from, o.from), cmp.Compare(m.term, o.term), cmp.Compare(m.commit, o.commit), cmp.Compare(m.log.n, o.log.n))
	if c != 0 {
		return c
	}
	return slices.Compare(m.log.e[:], o.log.e[:])
}
