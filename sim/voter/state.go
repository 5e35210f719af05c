package voter

import (
	"math/bits"
	"slices"
)

// set is a set of voters. Every field of a state is one byte wide, so that a state has no padding
// and compares and hashes as plain memory (TestStateHasNoPadding).
type set uint8

func (s set) has(i int) bool { return s>>i&1 == 1 }
func (s set) with(i int) set { return s | 1<<i }
func (s set) size() int      { return bits.OnesCount8(uint8(s)) }

// nobody replaces the number of a voter where there is none. It fits into the three bits of an
// entry.
const nobody = 7

// entry is a log entry: its term (2 bits), the voter that it admits (3 bits; nobody for an ordinary
// entry), whether it promotes that voter (1 bit; Config.Learning), and the life that it admits (2 bits). Entries have no other content: two entries of one
// term at one position were appended by one leader, unless an invariant is broken.
type entry uint8

func newEntry(term, admits, life uint8) entry { return entry(term<<6 | admits<<3 | life) }

// promotion returns the entry that makes a learner a voter.
func (e entry) promotion() entry { return e | 1<<2 }

func (e entry) term() uint8       { return uint8(e >> 6) }
func (e entry) admits(i int) bool { return int(e>>3&7) == i }
func (e entry) promotes() bool    { return e>>2&1 == 1 }
func (e entry) life() uint8       { return uint8(e & 3) }

// history is a log. Entries from n on are zero, so that equal logs are equal memory.
type history struct {
	n uint8
	e [logMax]entry
}

func (h *history) appendEntry(e entry) {
	h.e[h.n] = e
	h.n++
}

// truncate removes the entries from n on and clears them.
func (h *history) truncate(n uint8) {
	for h.n > n {
		h.n--
		h.e[h.n] = 0
	}
}

// commonPrefix returns the number of leading entries that are equal in h and o.
func (h *history) commonPrefix(o *history) uint8 {
	n := min(h.n, o.n)
	for k := range n {
		if h.e[k] != o.e[k] {
			return k
		}
	}
	return n
}

// lastPosition returns the term of the last entry, and the end of the log.
func (h *history) lastPosition() position {
	if h.n == 0 {
		return position{}
	}
	return position{h.e[h.n-1].term(), h.n}
}

// containsEntry reports whether h contains e.
func (h *history) containsEntry(e entry) bool { return slices.Contains(h.e[:h.n], e) }

// position is the extent of a log, as Raft compares logs.
type position struct{ term, end uint8 }

// less orders positions by term, then by end.
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

// voter is one voter of the group.
type voter struct {
	// Durable fields.
	term, vote uint8
	log        history
	life       uint8
	short      uint8    // 1 after a noticed damage, until a floor covers it
	stored     position // the floor as the disk has it, until the own log has reached it

	// Volatile fields.
	commit   uint8
	role     role
	votes    set
	match    [votersMax]uint8
	silent   uint8    // 1 from a start until the voter takes part
	answers  set      // voters whose answers have arrived, while silent
	greatest uint8    // greatest term in the answers
	floor    position // greatest log in the answers, until the own log has reached it
}

// image is a copy of a disk. The field of holds the number of the voter plus 1, or 0 without a
// copy.
type image struct {
	of, term, vote uint8
	log            history
}

// message is an APPEND of the whole log to all voters.
type message struct {
	from, term, commit uint8
	log                history
}

// state is the whole group. The fields from committed on belong to no voter: they are the record
// against which invariants are checked.
type state struct {
	voters [votersMax]voter
	net    [messagesMax]message
	inNet  uint8

	committed history
	terms     [logMax]uint8       // term in which each entry was committed
	leaders   [termsMax + 1]uint8 // leader of each term, plus 1
	damaged   set
	image     image

	restarts, damages uint8
}

// newState returns the start: voter 0 leads term 1, for which all voted, and all logs are empty.
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

// reachFloor lifts the floor once the log has reached it.
func (v *voter) reachFloor() {
	if v.silent == 0 && !v.log.lastPosition().less(v.floor) {
		v.floor, v.stored, v.short = position{}, position{}, 0
	}
}

// becomeFollower makes v a follower of term. A new term forgets the vote.
func (v *voter) becomeFollower(term uint8) {
	if term > v.term {
		v.term, v.vote = term, nobody
	}
	v.role, v.votes, v.match = follower, 0, [votersMax]uint8{}
}
