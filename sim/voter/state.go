package voter

import (
	"math/bits"
	"slices"
)

// Every field of a state is one byte wide, so that a state has no padding and compares and hashes as plain memory.

type set uint8

func (s set) has(i int) bool { return s>>i&1 == 1 }
func (s set) with(i int) set { return s | 1<<i }
func (s set) size() int      { return bits.OnesCount8(uint8(s)) }

// nobody stands where a voter is named and there is none.
const nobody = 7

// entry is a log entry: term (2 bits), the voter that it admits (3 bits; nobody for an ordinary entry), and the life that it
// admits (3 bits).
type entry uint8

func newEntry(term, admits, life uint8) entry { return entry(term<<6 | admits<<3 | life) }

func (e entry) term() uint8       { return uint8(e >> 6) }
func (e entry) admits(i int) bool { return int(e>>3&7) == i }
func (e entry) life() uint8       { return uint8(e & 7) }

// history is a log. Entries above n are zero.
type history struct {
	n uint8
	e [logMax]entry
}

func (h *history) add(e entry) {
	h.e[h.n] = e
	h.n++
}

func (h *history) truncate(n uint8) {
	for h.n > n {
		h.n--
		h.e[h.n] = 0
	}
}

func (h *history) commonPrefix(o *history) uint8 {
	n := min(h.n, o.n)
	for k := range n {
		if h.e[k] != o.e[k] {
			return k
		}
	}
	return n
}

// last returns the term of the last entry and the end.
func (h *history) lastPosition() position {
	if h.n == 0 {
		return position{}
	}
	return position{h.e[h.n-1].term(), h.n}
}

// holds reports whether h contains e.
func (h *history) holds(e entry) bool { return slices.Contains(h.e[:h.n], e) }

// position is how far a log reaches, as Raft compares logs.
type position struct{ term, end uint8 }

func (p position) less(q position) bool {
	return p.term < q.term || p.term == q.term && p.end < q.end
}

func maxPosition(p, q position) position {
	if p.less(q) {
		return q
	}
	return p
}

type role uint8

const (
	follower role = iota
	candidate
	leader
)

// voter is one voter.
type voter struct {
	// Durable.
	term, vote uint8
	log        history
	life       uint8
	short      uint8 // 1 after a damage that was noticed, until it is made good

	// Volatile.
	commit   uint8
	role     role
	votes    set
	match    [votersMax]uint8
	silent   uint8    // 1 from a start until the voter takes part
	answers  set      // of whom, while silent
	greatest uint8    // term in the answers
	floor    position // the greatest log in the answers, until the own log has reached it
}

// image is what a disk held at some time. of is the voter's number plus 1; 0 is none.
type image struct {
	of, term, vote uint8
	log            history
}

// message is an APPEND to all.
type message struct {
	from, term, commit uint8
	log                history
}

// state is the whole group.
type state struct {
	voters [votersMax]voter
	net    [messagesMax]message
	inNet  uint8

	committed history
	terms     [logMax]uint8       // in which each entry was committed
	leaders   [termsMax + 1]uint8 // who led each term, plus 1
	damaged   set
	image     image

	restarts, damages uint8
}

// newState returns the start: voter 0 leads term 1, which everybody voted for, and all logs are empty.
func newState(c *Config) state {
	var s state
	for i := range s.voters {
		s.voters[i].vote = nobody
	}
	for i := range c.Voters {
		s.voters[i].term, s.voters[i].vote = 1, 0
	}
	s.voters[0].role = leader
	s.leaders[1] = 1
	return s
}

// reach ends the floor once the log has reached it.
func (v *voter) reachFloor() {
	if v.silent == 0 && !v.log.lastPosition().less(v.floor) {
		v.floor, v.short = position{}, 0
	}
}

// follow makes v a follower of term.
func (v *voter) becomeFollower(term uint8) {
	if term > v.term {
		v.term, v.vote = term, nobody
	}
	v.role, v.votes, v.match = follower, 0, [votersMax]uint8{}
}
