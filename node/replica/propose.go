package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// orders are the proposals that the next Ready seals into entries, and what evaluating them needs.
type orders struct {
	// groups[:open] become one entry each; the rest is kept for its memory.
	groups []group
	open   int
	bytes  int // of the open groups
	// hlc is the last timestamp given out in this log, clock the greatest that the driver gave.
	hlc, clock rhumb.Timestamp
	// uncommitted is the size of the sealed entries above commit.
	uncommitted int

	bases   []Base // scratch of evaluate
	arena   []byte // merged records are cut from it
	scratch []byte // the wire form while an entry is sealed
}

// group is one entry in the making. It may have no requests yet: then answers wait for it, and it becomes a no-op.
type group struct {
	requests []entry.Request
	writes   []entry.Write // of all requests; growth leaves earlier slices of it valid
	size     int
}

// arenaSize is how much memory merged records are cut from at a time; scratchMax bounds what is kept between entries.
const (
	arenaSize  = 16 << 10
	scratchMax = 256 << 10
)

// Propose orders a batch. It is answered by exactly one Answer of a later Ready. ts is the node's clock.
func (r *Replica) Propose(ts rhumb.Timestamp, p Proposal) {
	r.orders.clock = max(r.orders.clock, ts)
	if err := r.refuse(&p); err != nil {
		r.answer(p.Token, rhumb.Outcome{}, err)
		return
	}
	switch {
	case r.waiters.join(p.Batch.ID, p.Token):
	case p.Expired:
		r.answer(p.Token, rhumb.Outcome{}, r.fault(rhumb.Expired, fmt.Sprintf(
			"request %s is older than the results that are kept: %d requests of its client, or %s; read what became of it",
			p.Batch.ID, rhumb.DedupWindow, rhumb.DedupKeep)))
	case r.orders.uncommitted+r.orders.bytes >= r.cfg.UncommittedBytesMax:
		r.answer(p.Token, rhumb.Outcome{}, r.fault(rhumb.Overloaded,
			fmt.Sprintf("%d bytes wait for in-sync replicas, the bound is %d; send less or retry later",
				r.orders.uncommitted+r.orders.bytes, r.cfg.UncommittedBytesMax)))
	case p.Seen != nil && p.Seen.Seq <= r.commit:
		r.answer(p.Token, p.Seen.outcome(), nil)
	case r.waiters.of(p.Batch.ID) >= rhumb.DedupWindow:
		r.answer(p.Token, rhumb.Outcome{}, r.fault(rhumb.Overloaded, fmt.Sprintf(
			"%d requests of client %s wait for their answer, no more are taken; wait for one of them", rhumb.DedupWindow, p.Batch.ID.Client)))
	case p.Seen != nil:
		r.waiters.add(waiter{seq: p.Seen.Seq, token: p.Token, id: p.Batch.ID, seen: true, outcome: p.Seen.outcome()})
	default:
		r.order(ts, &p)
	}
}

// refuse says why a proposal cannot be taken, whatever it holds.
func (r *Replica) refuse(p *Proposal) *rhumb.Error {
	switch r.role {
	case following:
		return r.notPrimary()
	case activating:
		return r.fault(rhumb.Unavailable, "the new primary waits for the leases of the last one to end; retry")
	case quarantined:
		return r.fault(rhumb.Unavailable, "the replica is quarantined: "+r.why)
	}
	b := p.Batch
	switch {
	case b.Range != r.cfg.Range:
		return r.fault(rhumb.InvalidArgument, fmt.Sprintf("the batch is of range %s", b.Range))
	case r.waiters.len() >= r.cfg.ProposalsMax:
		return r.fault(rhumb.Overloaded, fmt.Sprintf("%d proposals wait for their answer; retry later", r.waiters.len()))
	}
	if p.Seen != nil || p.Expired {
		return nil // it was decided before: the driver gathered nothing else
	}
	inserts := 0
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			inserts++
		}
		if b.Mutations[i].NeedsBase() && len(p.Base) != len(b.Mutations) {
			return r.fault(rhumb.Internal, fmt.Sprintf("%d base values for %d mutations", len(p.Base), len(b.Mutations)))
		}
	}
	if inserts != len(p.Names) {
		return r.fault(rhumb.Internal, fmt.Sprintf("%d names for %d inserts", len(p.Names), inserts))
	}
	return nil
}

// order evaluates a proposal and puts its effect into the open entry.
func (r *Replica) order(ts rhumb.Timestamp, p *Proposal) {
	g := r.openGroup(0)
	q := entry.Request{ID: p.Batch.ID, Names: p.Names}
	from := len(g.writes)
	fault := r.evaluate(g, &q, p)
	q.Writes = g.writes[from:len(g.writes):len(g.writes)]
	size := requestSize(&q)
	if fault == nil && entryOverhead+size > rhumb.EntrySizeMax {
		fault = r.fault(rhumb.TooLarge, fmt.Sprintf("the merged records have %d bytes, at most %d are allowed", size, rhumb.EntrySizeMax))
	}
	if fault != nil {
		clear(q.Writes)
		g.writes = g.writes[:from]
		r.waiters.add(waiter{seq: r.openSeq(), token: p.Token, id: p.Batch.ID, err: fault})
		return
	}
	if len(g.requests) > 0 && g.size+size > r.cfg.EntryBytesMax {
		g.writes = g.writes[:from]
		moved := r.openGroup(size)
		moved.writes = append(moved.writes, q.Writes...)
		q.Writes = moved.writes[:len(q.Writes):len(q.Writes)]
		g = moved
	}
	q.HLC = r.nextHLC(ts)
	g.requests = append(g.requests, q)
	g.size += size
	r.orders.bytes += size
	version := rhumb.Version{HLC: q.HLC, Node: r.cfg.Self}
	for i := range q.Writes {
		r.overlay.add(&q.Writes[i], version)
	}
	w := waiter{seq: r.openSeq(), token: p.Token, id: p.Batch.ID, wrote: true, outcome: rhumb.Outcome{Existed: q.Existed}}
	if !q.Noop {
		w.outcome.Applied, w.outcome.Version, w.outcome.Seq, w.outcome.Names = true, version, w.seq, q.Names
	}
	r.waiters.add(w)
}

// nextHLC gives the timestamp of the next request: the clock, and above everything in the log (I7).
func (r *Replica) nextHLC(ts rhumb.Timestamp) rhumb.Timestamp {
	r.orders.hlc = max(ts, r.orders.hlc+1)
	return r.orders.hlc
}

// openGroup gives the entry in the making; a new one when there is none or when it has no room for size more bytes.
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

// openSeq gives the position that the entry in the making will have.
func (r *Replica) openSeq() rhumb.Seq { return r.log.last().Seq + rhumb.Seq(r.orders.open) }

// seal makes entries of the open groups and appends them.
func (r *Replica) seal() {
	o := &r.orders
	for i := range o.groups[:o.open] {
		g := &o.groups[i]
		if len(g.requests) == 0 {
			g.requests = append(g.requests, entry.Request{HLC: r.nextHLC(o.clock), Noop: true})
		}
		r.appendOwn(g.entry())
		g.reset()
	}
	o.open, o.bytes = 0, 0
}

// appendOwn completes an entry of this primary and puts it at the end of the log.
func (r *Replica) appendOwn(e *entry.Entry) {
	last := r.log.last()
	e.Epoch, e.Node, e.Seq, e.Prev = r.promised, r.cfg.Self, last.Seq+1, last.Hash
	r.orders.scratch = e.Seal(r.orders.scratch[:0])
	size := len(r.orders.scratch)
	if cap(r.orders.scratch) > scratchMax {
		r.orders.scratch = nil
	}
	r.log.append(e, size)
	r.tail.append(e, size)
	r.orders.uncommitted += size
}

// lone is an entry of one request with one write: the most common one, made at one stroke.
type lone struct {
	entry   entry.Entry
	request [1]entry.Request
	write   [1]entry.Write
}

// entry makes an entry that shares no slices with the group.
func (g *group) entry() *entry.Entry {
	if len(g.requests) == 1 && len(g.requests[0].Writes) == 1 {
		l := &lone{}
		l.write[0] = g.requests[0].Writes[0]
		l.request[0] = g.requests[0]
		l.request[0].Writes = l.write[:]
		l.entry.Requests = l.request[:]
		return &l.entry
	}
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

// release hands out the answers whose position is committed.
func (r *Replica) release() {
	for {
		w, ok := r.waiters.pop(r.commit)
		if !ok {
			return
		}
		r.answerWaiter(&w, w.outcome, w.err)
	}
}

// failOrders answers everything that waits when the role of primary is given up. What stands in the log may yet be
// committed by a later primary, so its outcome is unknown; everything else had no effect.
func (r *Replica) failOrders() {
	last := r.log.last().Seq
	for {
		w, ok := r.waiters.pop(^rhumb.Seq(0))
		if !ok {
			break
		}
		err := r.fault(rhumb.Unknown, "the range got a new primary before the write was committed; retry with the same request id, or read")
		if w.err != nil || w.wrote && w.seq > last {
			err = r.notPrimary()
		}
		r.answerWaiter(&w, rhumb.Outcome{}, err)
	}
	if r.role == primary && r.handed < last {
		r.log.undo(r.handed) // an epoch-start entry that nobody was given
	}
	r.orders = orders{}
}

func (r *Replica) answerWaiter(w *waiter, outcome rhumb.Outcome, err error) {
	r.answer(w.token, outcome, err)
	for _, token := range w.joined {
		r.answer(token, outcome, err)
	}
}

func (r *Replica) answer(token uint64, outcome rhumb.Outcome, err error) {
	r.out.Answers = append(r.out.Answers, Answer{token, outcome, err})
	r.dirty = true
}

// fault builds an error of this range.
func (r *Replica) fault(kind rhumb.Kind, msg string) *rhumb.Error {
	return &rhumb.Error{Op: "replica.Propose", Kind: kind, Range: r.cfg.Range, Msg: msg}
}

// notPrimary says who is primary, if known.
func (r *Replica) notPrimary() *rhumb.Error {
	err := r.fault(rhumb.NotPrimary, fmt.Sprintf("%s does not order the writes of this range in epoch %d", r.cfg.Self, r.promised))
	if r.promisedTo != r.cfg.Self {
		err.Node = r.promisedTo
	}
	return err
}
