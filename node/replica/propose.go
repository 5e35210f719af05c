package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// orders holds the proposals that the next Ready seals into entries, and the state that evaluates
// them.
type orders struct {
	// groups[:open] become one entry each. The others are kept for their memory.
	groups []group
	open   int
	bytes  int // total size of the open groups
	// hlc is the last timestamp assigned in this log, clock the greatest that the driver passed.
	hlc, clock rhumb.Timestamp
	// uncommitted is the size of the sealed entries above commit.
	uncommitted int

	bases   []Base // scratch of evaluate
	arena   []byte // merged records are cut from it
	scratch []byte // the wire form while an entry is sealed
}

// group is an entry in the making. It may have no requests yet although an answer waits for it;
// then it becomes a no-op entry.
type group struct {
	requests []entry.Request
	writes   []entry.Write // of all requests; growing it leaves earlier slices of it valid
	size     int
}

// arenaSize is the memory from which merged records are cut at a time. scratchMax bounds the
// scratch memory that is kept between entries, so that one large entry does not occupy it for good.
const (
	arenaSize  = 16 << 10
	scratchMax = 256 << 10
)

// Propose orders a batch. A later Ready answers it with exactly one Answer. ts is the reading of
// the node's clock.
//
// The order of the checks matters: a repeated request shares the answer of its first attempt even
// while the bounds on uncommitted bytes and on the client reject new requests.
func (r *Replica) Propose(ts rhumb.Timestamp, p Proposal) {
	r.orders.clock = max(r.orders.clock, ts)
	if err := r.checkProposal(&p); err != nil {
		r.answer(p.Token, rhumb.Outcome{}, err)
		return
	}
	switch {
	// In flight: the repetition shares the pending answer, even if the answer is a failure.
	case r.waiters.join(p.Batch.ID, p.Token):
	case p.Expired:
		r.answer(p.Token, rhumb.Outcome{}, r.newError(rhumb.Expired, fmt.Sprintf(
			"request %s is not among the last %d of its client, or is older than %s: whether it was applied is unknown; read the records to find out",
			p.Batch.ID, rhumb.DedupWindow, rhumb.DedupKeep)))
	// A slow member must not let the primary's memory grow without bound. The entry would be sent to
	// it, and kept in memory, until the member acknowledges or leaves.
	case r.orders.uncommitted+r.orders.bytes >= r.cfg.UncommittedBytesMax:
		r.answer(p.Token, rhumb.Outcome{}, r.newError(rhumb.Overloaded,
			fmt.Sprintf("%d bytes of this range wait for in-sync replicas, and %d is the bound; send less or retry later",
				r.orders.uncommitted+r.orders.bytes, r.cfg.UncommittedBytesMax)))
	case p.Seen != nil && p.Seen.Seq <= r.commit:
		r.answer(p.Token, p.Seen.outcome(), nil)
	// The client's window: with more unanswered requests, results that the client may still ask for
	// would have to be forgotten (docs/replication.md#requests).
	case r.waiters.countClient(p.Batch.ID) >= rhumb.DedupWindow:
		r.answer(p.Token, rhumb.Outcome{}, r.newError(rhumb.Overloaded, fmt.Sprintf(
			"%d requests of client %s to this range are unanswered, which is the most; wait for an answer before sending the next", rhumb.DedupWindow, p.Batch.ID.Client)))
	// Stored but not committed here: the answer reveals the entry, so it waits (rule W).
	case p.Seen != nil:
		r.waiters.add(waiter{seq: p.Seen.Seq, token: p.Token, id: p.Batch.ID, seen: true, outcome: p.Seen.outcome()})
	default:
		r.orderProposal(ts, &p)
	}
}

// checkProposal returns an error if a proposal cannot be accepted, whatever it contains.
func (r *Replica) checkProposal(p *Proposal) *rhumb.Error {
	switch r.role {
	case following:
		return r.notPrimary()
	// Proposals are not queued meanwhile: the client's retry does that within its own budget.
	case activating:
		return r.newError(rhumb.Unavailable, "the range has a new primary, which waits until the leases of the previous one have ended; retry")
	case quarantined:
		return r.newError(rhumb.Unavailable, "this copy of the range is quarantined: "+r.quarantineReason)
	}
	b := p.Batch
	switch {
	// The range of a batch may be the home of one of its keys. The driver has compared the other keys with
	// the bounds of the range. A primary has a record.
	case !r.desc.Holds(b.Range) && !r.holdsHome(b.Range):
		return r.newError(rhumb.InvalidArgument, fmt.Sprintf("the batch belongs to range %s", b.Range))
	case r.waiters.len() >= r.cfg.ProposalsMax:
		return r.newError(rhumb.Overloaded, fmt.Sprintf("%d requests to this range are unanswered, which is the most; retry later", r.waiters.len()))
	}
	if p.Seen != nil || p.Expired {
		return nil // decided earlier: the driver looked nothing up
	}
	if r.HasEnded() {
		return r.newError(rhumb.Unavailable, "the range has ended, and the range before it is taking over its slots; retry")
	}
	if err := r.refusesSlots(p); err != nil {
		return err
	}
	inserts := 0
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			inserts++
		}
		if b.Mutations[i].NeedsBase() && len(p.Base) != len(b.Mutations) {
			return r.newError(rhumb.Internal, fmt.Sprintf("%d base values for %d mutations; report this", len(p.Base), len(b.Mutations)))
		}
	}
	if inserts != len(p.Names) {
		return r.newError(rhumb.Internal, fmt.Sprintf("%d names for %d inserts; report this", len(p.Names), inserts))
	}
	return nil
}

// orderProposal evaluates a proposal and adds its effect to the open entry. The steps depend on
// each other: a proposal that fails must leave nothing in the group, and the timestamp is assigned
// last, once the entry that will carry the request is known.
func (r *Replica) orderProposal(ts rhumb.Timestamp, p *Proposal) {
	g := r.openGroup(0)
	q := entry.Request{ID: p.Batch.ID, Names: p.Names}
	from := len(g.writes)
	fault := r.evaluate(g, &q, p)
	q.Writes = g.writes[from:len(g.writes):len(g.writes)]
	size := requestSize(&q)
	if fault == nil && entryOverhead+size > rhumb.EntrySizeMax {
		fault = r.newError(rhumb.TooLarge, fmt.Sprintf("the merged records have %d bytes, and %d is the limit; write them in several batches", size, rhumb.EntrySizeMax))
	}
	// A failure reveals the content of the range, so its answer waits for the commit of the open
	// entry. openSeq refers to that entry even if the group is empty: it becomes a no-op.
	if fault != nil {
		clear(q.Writes)
		g.writes = g.writes[:from]
		r.waiters.add(waiter{seq: r.openSeq(), token: p.Token, id: p.Batch.ID, err: fault})
		return
	}
	// The request is complete but does not fit, so it moves to a new group. Evaluating it again would
	// have the same result.
	if len(g.requests) > 0 && g.size+size > r.cfg.EntryBytesMax {
		g.writes = g.writes[:from]
		moved := r.openGroup(size)
		moved.writes = append(moved.writes, q.Writes...)
		q.Writes = moved.writes[:len(q.Writes):len(q.Writes)]
		g = moved
	}
	// Only requests that enter the log get a timestamp.
	q.HLC = r.nextHLC(ts)
	g.requests = append(g.requests, q)
	g.size += size
	r.orders.bytes += size
	version := rhumb.Version{HLC: q.HLC, Node: r.cfg.Self}
	// From here on later proposals see the writes.
	for i := range q.Writes {
		r.overlay.add(&q.Writes[i], version)
	}
	w := waiter{seq: r.openSeq(), token: p.Token, id: p.Batch.ID, wrote: true, outcome: rhumb.Outcome{Existed: q.Existed}}
	// A no-op was recorded, but wrote nothing and has no version.
	if !q.Noop {
		w.outcome.Applied, w.outcome.Version, w.outcome.Seq, w.outcome.Names = true, version, w.seq, q.Names
	}
	r.waiters.add(w)
}

// nextHLC returns the timestamp of the next request: the clock, but above everything in the log and
// everything closed (I7).
func (r *Replica) nextHLC(ts rhumb.Timestamp) rhumb.Timestamp {
	r.orders.hlc = max(ts, r.orders.hlc+1)
	return r.orders.hlc
}

// openGroup returns the entry in the making, or a new one if there is none or it has no room for
// size more bytes. An empty group takes a request of any size.
func (r *Replica) openGroup(size int) *group {
	o := &r.orders
	if o.open > 0 {
		if g := &o.groups[o.open-1]; size == 0 || g.size+size <= r.cfg.EntryBytesMax || len(g.requests) == 0 {
			return g
		}
	}
	if o.open == len(o.groups) {
		o.groups = append(o.groups, group{})
	}
	o.open++
	return &o.groups[o.open-1]
}

// openSeq returns the position that the entry in the making will have.
func (r *Replica) openSeq() rhumb.Seq { return r.log.last().Seq + rhumb.Seq(r.orders.open) }

// sealGroups turns the open groups into entries and appends them.
func (r *Replica) sealGroups() {
	o := &r.orders
	for i := range o.groups[:o.open] {
		g := &o.groups[i]
		// Answers wait for this position, so it must exist.
		if len(g.requests) == 0 {
			g.requests = append(g.requests, entry.Request{HLC: r.nextHLC(o.clock), Noop: true})
		}
		r.appendOwn(g.entry())
		g.reset()
	}
	o.open, o.bytes = 0, 0
}

// appendOwn completes an entry of this primary and appends it to the log.
func (r *Replica) appendOwn(e *entry.Entry) {
	last := r.log.last()
	// The position is final only now, when every earlier entry is sealed: the hash covers it.
	e.Epoch, e.Node, e.Seq, e.Prev = r.promised, r.cfg.Self, last.Seq+1, last.Hash
	r.orders.scratch = e.Seal(r.orders.scratch[:0])
	size := len(r.orders.scratch)
	if cap(r.orders.scratch) > scratchMax {
		r.orders.scratch = nil
	}
	r.log.append(e, size)
	r.noteSplit(e)
	r.tail.append(e, size)
	r.orders.uncommitted += size
}

// lone holds an entry of one request with one write, the most common entry, in one allocation
// instead of three.
type lone struct {
	entry   entry.Entry
	request [1]entry.Request
	write   [1]entry.Write
}

// entry returns an entry that shares no slices with the group, whose memory is reused. Entries live
// as long as a peer may need them.
func (g *group) entry() *entry.Entry {
	if len(g.requests) == 1 && len(g.requests[0].Writes) == 1 {
		l := &lone{}
		l.write[0] = g.requests[0].Writes[0]
		l.request[0] = g.requests[0]
		l.request[0].Writes = l.write[:]
		l.entry.Requests = l.request[:]
		return &l.entry
	}
	// One allocation for all writes and one for all requests, whatever their number.
	n := 0
	for i := range g.requests {
		n += len(g.requests[i].Writes)
	}
	writes := make([]entry.Write, 0, n)
	requests := make([]entry.Request, len(g.requests))
	for i := range g.requests {
		from := len(writes)
		writes = append(writes, g.requests[i].Writes...)
		requests[i] = g.requests[i]
		requests[i].Writes = writes[from:len(writes):len(writes)]
	}
	return &entry.Entry{Requests: requests}
}

// reset empties the group and keeps its memory.
func (g *group) reset() {
	clear(g.requests)
	clear(g.writes)
	g.requests, g.writes, g.size = g.requests[:0], g.writes[:0], 0
}

// release emits the answers whose position is committed.
func (r *Replica) release() {
	for {
		w, ok := r.waiters.pop(r.commit)
		if !ok {
			return
		}
		r.answerWaiter(&w, w.outcome, w.err)
	}
}

// failOrders answers everything that waits when this replica stops being primary. A later primary
// may still commit the entries of the log, so their outcome is unknown. Everything else had no
// effect.
func (r *Replica) failOrders() {
	last := r.log.last().Seq
	for {
		w, ok := r.waiters.pop(^rhumb.Seq(0))
		if !ok {
			break
		}
		err := r.newError(rhumb.Unknown, "the range got a new primary before the write was committed, so it is unknown whether it will be; retry with the same request ID, or read the record")
		// An unsealed entry never existed, and a failed condition had no effect.
		if w.err != nil || w.wrote && w.seq > last {
			err = r.notPrimary()
		}
		r.answerWaiter(&w, rhumb.Outcome{}, err)
	}
	// The epoch-start entry is appended outside of Ready. If it was not handed out, nobody has it.
	if r.role == primary && r.handedOut < last {
		r.log.undoAbove(r.handedOut)
		r.undoSplits(r.handedOut)
	}
	r.orders = orders{}
}

// answerWaiter answers a waiter and the repetitions that share its answer.
func (r *Replica) answerWaiter(w *waiter, outcome rhumb.Outcome, err error) {
	r.answer(w.token, outcome, err)
	for _, token := range w.joined {
		r.answer(token, outcome, err)
	}
}

// answer queues an Answer.
func (r *Replica) answer(token uint64, outcome rhumb.Outcome, err error) {
	r.out.Answers = append(r.out.Answers, Answer{token, outcome, err})
	r.dirty = true
}

// newError returns an error about this range.
func (r *Replica) newError(kind rhumb.Kind, msg string) *rhumb.Error {
	return &rhumb.Error{Op: "replica.Propose", Kind: kind, Range: r.cfg.Range, Msg: msg}
}

// notPrimary returns the error that names the primary, if it is known.
func (r *Replica) notPrimary() *rhumb.Error {
	err := r.newError(rhumb.NotPrimary, fmt.Sprintf("%s is not the primary of this range", r.cfg.Self))
	if r.promisedTo != r.cfg.Self {
		err.Node = r.promisedTo
	}
	return err
}
