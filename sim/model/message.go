package model

import (
	"cmp"
	"slices"
)

// messageKind is the kind of a message. The comments list the meaning of its numbers.
type messageKind uint8

const (
	msgAppend    messageKind = 1 + iota // x commit, y start; log
	msgAck                              // x match, z life of the sender
	msgHeartbeat                        // x round, y exclusion confirmed, z life of the sender
	msgGrant                            // x round, y exclusion, z life of the receiver
	msgPrepare                          // to all
	msgPromise                          // x stored commit, y clock, z life of the sender, c commit; log
	msgHandover                         // x in-sync set, y version, z life of the receiver, c clock; log
	msgRefusal
)

// message is a message in flight. The meaning of its numbers depends on its kind.
type message struct {
	kind     messageKind
	from, to uint8 // to is nobody for a message to all
	epoch    uint8
	x, y, z  uint8
	c        uint8
	log      history
}

// compare orders messages. The network is a sorted array, so that states with the same messages
// compare as equal memory.
func (m *message) compare(o *message) int {
	c := cmp.Or(cmp.Compare(m.kind, o.kind), cmp.Compare(m.from, o.from), cmp.Compare(m.to, o.to), cmp.Compare(m.epoch, o.epoch),
		cmp.Compare(m.x, o.x), cmp.Compare(m.y, o.y), cmp.Compare(m.z, o.z), cmp.Compare(m.c, o.c), cmp.Compare(m.log.n, o.log.n))
	if c != 0 {
		return c
	}
	return slices.Compare(m.log.e[:], o.log.e[:])
}

// insertMessage inserts m into the network unless it is there. The caller must ensure that there is
// room.
func (s *state) insertMessage(m message) {
	at := int(s.inNet)
	for at > 0 {
		c := s.net[at-1].compare(&m)
		if c == 0 {
			return
		}
		if c < 0 {
			break
		}
		at--
	}
	copy(s.net[at+1:s.inNet+1], s.net[at:s.inNet])
	s.net[at] = m
	s.inNet++
}

// dropMessage removes message k.
func (s *state) dropMessage(k int) {
	copy(s.net[k:], s.net[k+1:s.inNet])
	s.inNet--
	s.net[s.inNet] = message{}
}

// isInFlight reports whether m is already in flight. A second copy would add nothing, since
// deliveries do not remove messages.
func (s *state) isInFlight(m *message) bool {
	for k := range s.inNet {
		if s.net[k] == *m {
			return true
		}
	}
	return false
}

// sortNet restores the order after a renaming of replicas.
func (s *state) sortNet() {
	for i := 1; i < int(s.inNet); i++ {
		for j := i; j > 0 && s.net[j-1].compare(&s.net[j]) > 0; j-- {
			s.net[j-1], s.net[j] = s.net[j], s.net[j-1]
		}
	}
}
