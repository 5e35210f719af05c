package model

import (
	"cmp"
	"slices"
)

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

// message is something under way. Its numbers mean what its kind says.
type message struct {
	kind     messageKind
	from, to uint8 // to is nobody when it goes to all
	epoch    uint8
	x, y, z  uint8
	c        uint8
	log      history
}

func (m *message) compare(o *message) int {
	c := cmp.Or(cmp.Compare(m.kind, o.kind), cmp.Compare(m.from, o.from), cmp.Compare(m.to, o.to), cmp.Compare(m.epoch, o.epoch),
		cmp.Compare(m.x, o.x), cmp.Compare(m.y, o.y), cmp.Compare(m.z, o.z), cmp.Compare(m.c, o.c), cmp.Compare(m.log.n, o.log.n))
	if c != 0 {
		return c
	}
	return slices.Compare(m.log.e[:], o.log.e[:])
}

// insert puts m into the sorted network, which has room, unless it is there.
func (s *state) insert(m message) {
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

// drop removes message k.
func (s *state) drop(k int) {
	copy(s.net[k:], s.net[k+1:s.inNet])
	s.inNet--
	s.net[s.inNet] = message{}
}

// under reports whether m is under way already.
func (s *state) under(m *message) bool {
	for k := range s.inNet {
		if s.net[k] == *m {
			return true
		}
	}
	return false
}

// sortNet restores the order after replicas were renamed.
func (s *state) sortNet() {
	for i := 1; i < int(s.inNet); i++ {
		for j := i; j > 0 && s.net[j-1].compare(&s.net[j]) > 0; j-- {
			s.net[j-1], s.net[j] = s.net[j], s.net[j-1]
		}
	}
}
