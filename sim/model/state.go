package model

import "math/bits"

// Every field of a state is one byte wide. So a state has no padding, and can be compared and
// hashed as plain memory; a state of pointers or slices would need a walk for each.

// set is a set of replicas, one bit each.
type set uint8

func (s set) has(i int) bool    { return s>>i&1 == 1 }
func (s set) with(i int) set    { return s | 1<<i }
func (s set) without(i int) set { return s &^ (1 << i) }
func (s set) size() int         { return bits.OnesCount8(uint8(s)) }

// everyone is the set of all replicas.
const everyone set = 1<<Replicas - 1

// nobody is the number of no replica.
const nobody = 7

// entry is a log entry: epoch (3 bits), interval (2 bits), write (3 bits; 0 is an epoch-start
// entry). The interval is the number of closed timestamps below the timestamp of the entry.
type entry uint8

func newEntry(epoch, interval, write uint8) entry { return entry(epoch<<5 | interval<<3 | write) }

func (e entry) epoch() uint8    { return uint8(e >> 5) }
func (e entry) interval() uint8 { return uint8(e >> 3 & 3) }

// history is a log. Entries from n on are zero, so equal logs are equal memory.
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

// insert adds e to h, which is in ascending order, and reports whether there was room. A present
// entry is not added again.
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

// common returns the length of the longest common prefix.
func (h *history) common(o *history) uint8 {
	n := min(h.n, o.n)
	for k := range n {
		if h.e[k] != o.e[k] {
			return k
		}
	}
	return n
}

// lastEpoch returns the epoch of the last entry, or 0 for an empty log.
func (h *history) lastEpoch() uint8 {
	if h.n == 0 {
		return 0
	}
	return h.e[h.n-1].epoch()
}

// lastInterval returns the interval of the last entry, or 0 for an empty log.
func (h *history) lastInterval() uint8 {
	if h.n == 0 {
		return 0
	}
	return h.e[h.n-1].interval()
}

// role is the role in which a replica acts.
type role uint8

const (
	follower role = iota
	activating
	primary
)

// replica is one replica, together with the state of its node for each pair of nodes.
type replica struct {
	// Durable state.

	promised uint8 // greatest promised epoch
	boot     uint8 // number of the life of the node
	seen     uint8 // greatest acknowledged closed timestamp; the clock stays above it
	stored   uint8 // stored commit position beyond the end of the log; only reported
	log      history
	set      copySet // a copy that was received and not installed

	// Volatile state; zero in a follower except for commit.

	commit    uint8
	role      role
	epoch     uint8
	version   uint8           // version of the record that isr was read from
	start     uint8           // index of the epoch-start entry
	isr       set             // I
	pending   set             // P; 0 if there is none
	sent      uint8           // 1 if P has been proposed
	closed    uint8           // greatest closed timestamp of this primary
	published uint8           // greatest closed timestamp that it has published
	votes     set             // members that have answered PREPARE
	best      history         // best log among the answers
	reported  uint8           // greatest commit position among the answers
	proven    history         // longest committed log among the answers
	vouched   uint8           // 1 if an answer is from a recorded life
	lives     [Replicas]uint8 // recorded lives (docs/replication.md#rule-one-answer)
	match     [Replicas]uint8
	heard     [Replicas]uint8 // life of each member to which match and agreed apply
	agreed    [Replicas]uint8 // greatest closed timestamp that each member acknowledged

	// Volatile state of the node as a holder of grants, by grantor.

	belief [Replicas]uint8 // round of the greatest grant; believed while it equals the round of the holder
	floor  [Replicas]uint8 // least epoch for which grants of the grantor count

	// Volatile state of the node as a grantor, by holder.

	given     [Replicas]uint8 // round of the last grant of any kind
	owed      [Replicas]uint8 // round of the last grant that does not exclude epochs below promised; 0 if none
	confirmed [Replicas]uint8 // 1 if the holder has confirmed that exclusion
	life      [Replicas]uint8 // greatest known life of the holder
}

// proposal is an AlterISR in flight to metadata.
type proposal struct {
	epoch, version uint8
	isr            set
	lives          [Replicas]uint8 // lives that the proposer vouches for (docs/replication.md#rule-one-answer)
	stale          uint8           // 1 if a member has begun a life that the proposer does not know
}

// election is the decision of metadata for an epoch, kept while a node may still read it.
type election struct {
	primary uint8
	isr     set
	version uint8
	lives   [Replicas]uint8
}

// register is the record of the range in the metadata group, a register with compare-and-set.
type register struct {
	epoch     uint8
	primary   uint8
	isr       set
	version   uint8
	lives     [Replicas]uint8
	allocated uint8 // greatest allocated epoch, including prepared ones
	replicas  set   // nodes that hold a copy; the in-sync set is a part of it
	// A prepared handover; epoch 0 if there is none.
	preparedEpoch, preparedFor uint8
	elections                  [EpochsMax + 1]election
}

// observed is the knowledge of the clients. No replica reads it; only invariants do.
type observed struct {
	acked      history       // committed entries
	ackedEpoch [logMax]uint8 // epoch of the primary that committed each entry
	closed     uint8         // greatest published closed timestamp
	begun      uint8         // epochs that were begun, one bit each
	closedBy   uint8         // greatest epoch whose primary published one
	// covers is the log position up to which readers regard the log as complete, by published
	// closed timestamp.
	covers [ClosedMax + 1]uint8
}

// state is the state of the model.
type state struct {
	meta      register
	rep       [Replicas]replica
	round     [Replicas]uint8       // lease round of each holder
	proposals [Replicas][2]proposal // the change, and the unchanged set that overtakes it (docs/replication.md#rule-r)
	net       [MessagesMax]message  // sorted; unused elements are zero
	inNet     uint8
	seen      observed

	image image
	lost  [Replicas]loss

	// adoptions are the proposals to record a handover, by target.
	adoptions [Replicas]adoption
	// removedIn is the epoch of the record that removed the copy of each node, until the node learns of it; otherwise 0.
	removedIn [Replicas]uint8

	far    set   // replicas in the other region (Config.Far)
	gone   set   // nodes that stopped for good, with their disks
	older  set   // nodes that run an older build (Config.Older)
	region uint8 // 1 once the other region was removed
	fenced set   // nodes that metadata has fenced (Config.Alone)
	back   set   // nodes that have returned although metadata counts them as fenced (a mutation)
	alone  uint8 // 1 while the in-sync set is in one region because all copies elsewhere were on fenced nodes

	writes, crashes, damages, removals, copies uint8
}

// newState returns the initial state: replica 0 is the active primary of epoch 1, and every in-sync
// replica has its epoch-start entry.
func newState(c *Config) state {
	var s state
	isr := set(1<<(c.Secondaries+1) - 1)
	s.meta = register{epoch: 1, isr: isr, version: 1, allocated: 1, preparedFor: nobody, replicas: everyone}
	s.far, s.older = set(c.Far), set(c.Older)
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

// stepDown makes a replica a follower. The state of its node for each pair of nodes remains.
func (r *replica) stepDown() {
	r.role, r.epoch, r.version, r.start = follower, 0, 0, 0
	r.isr, r.pending, r.sent = 0, 0, 0
	r.closed, r.published = 0, 0
	r.endPrepare()
	r.match, r.heard, r.agreed = [Replicas]uint8{}, [Replicas]uint8{}, [Replicas]uint8{}
}

// promise raises the promised epoch, after which the replica acts for no lower one. From here on
// the grants of the node exclude lower epochs, and every grant given so far is owed.
func (r *replica) promise(epoch uint8) {
	if epoch <= r.promised {
		return
	}
	r.stepDown()
	r.promised = epoch
	r.owed = r.given
	r.confirmed = [Replicas]uint8{}
}

// appendEntry appends an entry of the own epoch with the lowest timestamp that rule W permits, like
// a node whose clock is far too slow. That timestamp is the most likely one to violate a closed
// timestamp.
func (r *replica) appendEntry(write uint8) entry {
	e := newEntry(r.epoch, max(r.seen, r.closed, r.log.lastInterval()), write)
	r.log.add(e)
	return e
}
