package model

import "math/bits"

// Every field of a state is one byte wide, so that a state has no padding and compares and hashes as plain memory.

// set is a set of replicas, one bit each.
type set uint8

func (s set) has(i int) bool    { return s>>i&1 == 1 }
func (s set) with(i int) set    { return s | 1<<i }
func (s set) without(i int) set { return s &^ (1 << i) }
func (s set) size() int         { return bits.OnesCount8(uint8(s)) }

// nobody stands where a replica is named and there is none.
const nobody = 7

// entry is a log entry: epoch (3 bits), interval (2 bits), write (3 bits; 0 is an epoch-start entry). The interval is
// the number of closed timestamps that lie below the entry's timestamp.
type entry uint8

func newEntry(epoch, interval, write uint8) entry { return entry(epoch<<5 | interval<<3 | write) }

func (e entry) epoch() uint8    { return uint8(e >> 5) }
func (e entry) interval() uint8 { return uint8(e >> 3 & 3) }

// history is a log. Entries above n are zero.
type history struct {
	n uint8
	e [logMax]entry
}

func (h *history) full() bool { return h.n == logMax }

func (h *history) add(e entry) {
	h.e[h.n] = e
	h.n++
}

// cut removes everything above n.
func (h *history) cut(n uint8) {
	for h.n > n {
		h.n--
		h.e[h.n] = 0
	}
}

// index returns the position of e, or logMax if h does not contain e.
func (h *history) index(e entry) uint8 {
	for k := range h.n {
		if h.e[k] == e {
			return k
		}
	}
	return logMax
}

// insert puts e into h, which is in ascending order, and reports whether there was room. An entry that is present stays.
func (h *history) insert(e entry) bool {
	if h.index(e) < logMax {
		return true
	}
	if h.full() {
		return false
	}
	h.add(e)
	for k := h.n - 1; k > 0 && h.e[k-1] > h.e[k]; k-- {
		h.e[k-1], h.e[k] = h.e[k], h.e[k-1]
	}
	return true
}

// common gives the length of the longest common prefix.
func (h *history) common(o *history) uint8 {
	n := min(h.n, o.n)
	for k := range n {
		if h.e[k] != o.e[k] {
			return k
		}
	}
	return n
}

func (h *history) lastEpoch() uint8 {
	if h.n == 0 {
		return 0
	}
	return h.e[h.n-1].epoch()
}

func (h *history) lastInterval() uint8 {
	if h.n == 0 {
		return 0
	}
	return h.e[h.n-1].interval()
}

// role is what a replica takes itself for.
type role uint8

const (
	follower role = iota
	activating
	primary
)

// replica is one replica, together with what its node knows pair by pair.
type replica struct {
	// Durable.
	promised uint8 // greatest epoch promised
	boot     uint8 // counts the lives of the node
	seen     uint8 // greatest closed timestamp acknowledged: the clock never goes below it again
	stored   uint8 // a commit position that outlived the log's end; it is only reported
	log      history

	// Volatile; zero in a follower, but for commit.
	commit  uint8
	role    role
	epoch   uint8
	version uint8           // of the range's record that isr was read from
	start   uint8           // index of the epoch-start entry
	isr     set             // I
	pending set             // P; 0 is none
	sent    uint8           // 1 when a proposal of P has left
	closed  uint8           // greatest closed timestamp of this primary
	opened  uint8           // greatest one that it has published
	votes   set             // answers to PREPARE
	best    history         // the greatest log among them
	told    uint8           // the greatest commit position among them
	sure    history         // the longest committed log among them
	vouched uint8           // 1 when one of them is of a recorded life
	lives   [Replicas]uint8 // the recorded lives (ruling 17a)
	match   [Replicas]uint8
	heard   [Replicas]uint8 // life of the member that match and agreed speak of
	agreed  [Replicas]uint8 // greatest closed timestamp that the member acknowledged

	// Volatile, of the node as a holder of grants: per grantor.
	belief [Replicas]uint8 // round of the greatest grant; believed while it is the holder's round
	floor  [Replicas]uint8 // the grantor's grants do not count for epochs below

	// Volatile, of the node as a grantor: per holder.
	given     [Replicas]uint8 // round of the last grant of any kind
	owed      [Replicas]uint8 // round of the last grant without the exclusion of epochs below promised; 0 is none
	confirmed [Replicas]uint8 // 1 when the holder has confirmed that exclusion
	life      [Replicas]uint8 // greatest life of the holder heard of
}

// proposal is an AlterISR under way to metadata.
type proposal struct {
	epoch, version uint8
	isr            set
	lives          [Replicas]uint8 // those that the proposer vouches for (ruling 17a)
	stale          uint8           // 1 when a member has begun another life than the proposer knows
}

// election is what metadata decided for an epoch, as long as somebody may still read it.
type election struct {
	primary uint8
	isr     set
	version uint8
	lives   [Replicas]uint8
}

// register is the range's record in the metadata group.
type register struct {
	epoch   uint8
	primary uint8
	isr     set
	version uint8
	lives   [Replicas]uint8
	given   uint8 // greatest epoch given away, prepared ones included
	// A prepared handover; epoch 0 is none.
	preparedEpoch, preparedFor uint8
	elections                  [EpochsMax + 1]election
}

// observed is what clients were told. No replica reads it.
type observed struct {
	acked      history       // committed entries
	ackedEpoch [logMax]uint8 // by the primary of which epoch
	closed     uint8         // greatest published closed timestamp
	begun      uint8         // epochs that were begun, one bit each
	closedBy   uint8         // greatest epoch whose primary published one
	// covers gives for a published closed timestamp the log position up to which readers take the log as complete.
	covers [ClosedMax + 1]uint8
}

// state is the whole world.
type state struct {
	meta      register
	rep       [Replicas]replica
	round     [Replicas]uint8       // lease round of each holder
	proposals [Replicas][2]proposal // the change, and the unchanged set that overtakes it (ruling 7)
	net       [MessagesMax]message  // sorted; unused ones are zero
	inNet     uint8
	seen      observed

	image image
	lost  [Replicas]loss

	writes, crashes, damages uint8
}

// newState gives the start: replica 0 is the active primary of epoch 1 and everybody in sync has its epoch-start entry.
func newState(c *Config) state {
	var s state
	isr := set(1<<(c.Secondaries+1) - 1)
	s.meta = register{epoch: 1, isr: isr, version: 1, given: 1, preparedFor: nobody}
	for e := range s.meta.elections {
		s.meta.elections[e].primary = nobody
	}
	begin := newEntry(1, 0, 0)
	for i := range s.rep {
		s.round[i] = 1
		r := &s.rep[i]
		r.promised = 1
		if isr.has(i) {
			r.log.add(begin)
			s.rep[0].match[i] = 1
		}
	}
	p := &s.rep[0]
	p.role, p.epoch, p.isr, p.version, p.start, p.commit = primary, 1, isr, 1, 1, 1
	s.seen.acked.add(begin)
	s.seen.ackedEpoch[0] = 1
	return s
}

// stepDown makes a replica a follower. What its node holds and owes pair by pair stays.
func (r *replica) stepDown() {
	r.role, r.epoch, r.version, r.start = follower, 0, 0, 0
	r.isr, r.pending, r.sent = 0, 0, 0
	r.closed, r.opened = 0, 0
	r.endPrepare()
	r.match, r.heard, r.agreed = [Replicas]uint8{}, [Replicas]uint8{}, [Replicas]uint8{}
}

// promise raises the promised epoch; the replica no longer acts for a lower one. From here on its node's grants exclude
// the lower epochs, and all those given so far are owed.
func (r *replica) promise(epoch uint8) {
	if epoch <= r.promised {
		return
	}
	r.stepDown()
	r.promised = epoch
	r.owed = r.given
	r.confirmed = [Replicas]uint8{}
}

// append adds an entry of the replica's own epoch with the lowest timestamp that rule W permits.
func (r *replica) append(write uint8) entry {
	e := newEntry(r.epoch, max(r.seen, r.closed, r.log.lastInterval()), write)
	r.log.add(e)
	return e
}
