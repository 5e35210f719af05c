package host

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// proposeEvent is a client batch that is not in its range's log yet.
type proposeEvent struct {
	batch *rhumb.Batch
	// names counts the inserts in the batch; each needs a name.
	names int
	// size is the size in bytes of its names and values.
	size  int
	since time.Duration
	// taken is the batch's share of the admission, or nil if it was rejected.
	taken *admitted
	admit *admission
	done  func(rhumb.Outcome, error)
}

// answer calls done with the only answer of the batch and releases its share of the admission.
func (ev *proposeEvent) answer(o rhumb.Outcome, err error) {
	var now time.Duration
	if ev.taken != nil {
		now = ev.admit.clock()
	}
	ev.answerAt(now, o, err)
}

// answerAt is answer for a caller that has read the clock.
func (ev *proposeEvent) answerAt(now time.Duration, o rhumb.Outcome, err error) {
	if ev.taken != nil {
		ev.admit.endBatch(now, ev.taken)
	}
	ev.done(o, err)
}

// Propose asks for a batch to be applied. Call Drive unless another Propose follows at once. The
// batch must be valid and must not be changed afterwards. done is called exactly once, from any
// goroutine, and must not block: with the outcome once the batch is committed, or with an error
// whose kind states whether the batch may have been applied.
func (h *Host) Propose(b *rhumb.Batch, done func(rhumb.Outcome, error)) {
	const op rhumb.Op = "host.Host.Propose"
	ev := &proposeEvent{batch: b, admit: &h.admission, since: h.rt.Now(), done: done}
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			ev.names++
		}
		ev.size += b.Mutations[i].Size()
	}
	var ok bool
	// The batch is rejected before it is queued, so it is certain that Overloaded means not
	// applied.
	if ev.taken, ok = h.admission.admitBatch(ev.since, int64(ev.size+proposeOverhead)); !ok {
		used, most := h.admission.readUsage()
		h.refuseOverloaded(op, ev, fmt.Sprintf("%d bytes of requests wait on this node, which accepts %d at its present pace", used, most))
		return
	}
	h.mu.Lock()
	// Small batches reach this bound before that on bytes.
	full := len(h.proposals) >= eventsMax
	h.mu.Unlock()
	switch {
	case full:
		h.refuseOverloaded(op, ev, fmt.Sprintf("%d batches wait on this node", eventsMax))
	case !h.enqueue(ev):
		ev.answer(rhumb.Outcome{}, errStopping(op))
	}
}

// applyTo hands the batch to its replica, or answers it if the replica cannot take it.
func (ev *proposeEvent) applyTo(h *Host) {
	const op rhumb.Op = "host.Host.Propose"
	// The checks run from cheap and general to expensive. Until the replica has the proposal, every
	// error means not applied.
	s, ok := h.homeSlot(ev.batch.Range)
	if !ok {
		ev.answer(rhumb.Outcome{}, &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: ev.batch.Range, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"})
		return
	}
	if s.gone {
		ev.answer(rhumb.Outcome{}, &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Range: ev.batch.Range, Node: h.cfg.Self.Node, Msg: "the copy on this node is being replaced; retry"})
		return
	}
	// A batch that waited this long has a caller that is about to time out. To apply it would spend
	// time on an answer that nobody reads. Replicas that are not primary answer at once anyway.
	if waited := h.passAt - ev.since; waited > queueWaitMax && s.r.State() == replica.Primary {
		h.refuseOverloaded(op, ev, fmt.Sprintf("the batch waited %v for its turn, longer than %v", waited.Round(time.Millisecond), queueWaitMax))
		return
	}
	if (s.r.State() == replica.Activating || h.awaitsBirth(s, ev)) && h.holdProposal(s, ev) {
		return
	}
	p, err := h.proposal(s, ev)
	if err != nil {
		ev.answer(rhumb.Outcome{}, err)
		return
	}
	if h.cfg.Probe != nil {
		p = h.cfg.Probe.Proposal(s.id, p)
	}
	ts, err := h.cfg.Clock.Now()
	if err != nil {
		ev.answer(rhumb.Outcome{}, rhumb.Wrap(op, err))
		return
	}
	// The token connects the replica's answer, in this or a later pass, with the call.
	h.nextTok++
	p.Token = h.nextTok
	h.tokens[p.Token] = call{ev, h.passAt}
	s.r.Propose(ts, p)
	h.markDirty(s)
}

// holdProposal keeps a proposal until the elected replica serves, so that a failover does not cost
// its callers the pause before a retry. It returns false if too much is held already.
func (h *Host) holdProposal(s *slot, ev *proposeEvent) bool {
	// One batch is always accepted, however large it is. The bounds count all slots, since an
	// election of a whole node's ranges holds proposals for each of them.
	if h.heldTotal.events >= heldMax || h.heldTotal.events > 0 && h.heldTotal.size+ev.size > waitingBytesMax {
		return false
	}
	if len(s.held) == 0 {
		s.heldSince = h.passAt
	}
	s.held = append(s.held, ev)
	h.heldTotal.events++
	h.heldTotal.size += ev.size
	return true
}

// takeHeld returns the held proposals of a slot, for the caller to propose or to reject.
func (h *Host) takeHeld(s *slot) []*proposeEvent {
	held := s.held
	s.held = nil
	for _, ev := range held {
		h.heldTotal.events--
		h.heldTotal.size -= ev.size
	}
	return held
}

// proposal builds the replica's input: the batch, with the values in storage, the stored answer to
// an earlier attempt, and new names. The replica is pure and cannot read them itself.
func (h *Host) proposal(s *slot, ev *proposeEvent) (replica.Proposal, error) {
	p := replica.Proposal{Batch: ev.batch}
	if s.r.State() != replica.Primary {
		// The replica rejects the batch, so nothing has to be read.
		return p, nil
	}
	// A full disk rejects before the batch has an effect. The store would fail later, when the
	// batch is already accepted.
	if err := s.store.Writable(); err != nil {
		h.m.diskFull.Inc()
		return p, err
	}
	// Without in-sync members the entries of a range pile up in memory. The bound over all ranges
	// stops them before the node runs out of memory.
	if u := h.cfg.Budgets.Uncommitted; u.Full() {
		u.Refuse()
		h.m.overloaded.Inc()
		return p, &rhumb.Error{Op: "host.Host.Propose", Kind: rhumb.Overloaded, Range: s.id, Node: h.cfg.Self.Node, Msg: fmt.Sprintf(
			"%d bytes of this node's writes wait for in-sync replicas, and the limit is %d; send less or retry later", u.Used(), u.Most())}
	}
	// A repeated request must get its first answer even if its conditions fail by now, so this
	// precedes the conditions (rule W).
	if !ev.batch.ID.IsZero() {
		var err error
		if p.Seen, p.Expired, err = s.requests.lookUp(s.store, s.id, s.r.Epoch(), ev.batch.ID); p.Seen != nil || p.Expired || err != nil {
			return p, err
		}
	}
	// A repetition of a request from before a split got its answer above, so a batch that does not fit
	// into the range any more was certainly not applied.
	if err := h.placeKeys(s, &p); err != nil {
		return p, err
	}
	for i := range ev.batch.Mutations {
		m := &ev.batch.Mutations[i]
		// Only conditions and patches depend on the present value; a plain put reads nothing.
		if !m.NeedsBase() {
			continue
		}
		if p.Base == nil {
			p.Base = make([]replica.Base, len(ev.batch.Mutations))
		}
		// The newest value, committed or not: the entry is ordered after every appended one. The
		// replica overlays entries of this pass, which storage does not show yet (rule W).
		found, err := s.store.LookupForWrite(rhumb.Key{Table: m.Table, Home: p.Home(s.id, i), Name: m.Name}, storage.Newest, m.Cond.Kind == rhumb.IfAbsent)
		if err != nil {
			return p, err
		}
		if !found.Tombstone {
			p.Base[i] = replica.Base{Version: found.Version, Value: found.Value}
		}
	}
	if err := h.failedCondition(s, ev.batch, p.Base); err != nil {
		return p, err
	}
	// Updates and deletes stay possible, since they are the way to shrink the range. A table whose ranges have
	// several slots is bounded by the disks only.
	if size, _ := s.store.Size(s.id); size.Data > h.cfg.RangeSizeMax && s.last == s.id.Slot {
		if err := h.checkOnlyUpdates(s, &p, size.Data); err != nil {
			h.m.rangeFull.Inc()
			return p, err
		}
	}
	// Names come last, so that a rejected batch uses none.
	for range ev.names {
		name, err := s.newName()
		if err != nil {
			return p, err
		}
		p.Names = append(p.Names, name)
	}
	return p, nil
}

// placeKeys sets the slots of the keys of a proposal. It fails if a key belongs to another range.
func (h *Host) placeKeys(s *slot, p *replica.Proposal) error {
	for i := range p.Batch.Mutations {
		m := &p.Batch.Mutations[i]
		if m.Kind == rhumb.Insert {
			continue
		}
		key, err := h.keyOf("host.Host.Propose", s, s.last, m.Table, m.Name)
		if err != nil {
			// The batch names this range by one of its keys, so it never fits into one range again.
			return rhumb.WrapKind("host.Host.Propose", rhumb.InvalidArgument, err)
		}
		if key.Home == s.id {
			continue
		}
		if p.Slots == nil {
			p.Slots = make([]rhumb.Slot, len(p.Batch.Mutations))
		}
		p.Slots[i] = key.Home.Slot
	}
	return nil
}

// checkOnlyUpdates returns an error if the batch adds a key to a range that is too large. A key
// that is added and changed again before the next pass counts as absent.
func (h *Host) checkOnlyUpdates(s *slot, p *replica.Proposal, size int64) error {
	for i := range p.Batch.Mutations {
		m := &p.Batch.Mutations[i]
		exists := m.Kind == rhumb.Delete
		switch {
		case exists || m.Kind == rhumb.Insert:
		case m.NeedsBase():
			exists = !p.Base[i].Version.IsZero()
		default:
			found, err := s.store.LookupForWrite(rhumb.Key{Table: m.Table, Home: p.Home(s.id, i), Name: m.Name}, storage.Newest, false)
			if err != nil {
				return err
			}
			exists = found.Value != nil
		}
		if !exists {
			return &rhumb.Error{Op: "host.Host.Propose", Kind: rhumb.Overloaded, Range: s.id, Node: h.cfg.Self.Node, Msg: fmt.Sprintf(
				"the range holds %d bytes; above %d it accepts updates and deletes but no new keys; spread the keys over more hash slots or delete some", size, h.cfg.RangeSizeMax)}
		}
	}
	return nil
}

// answerProposal answers the call that a replica's answer belongs to.
func (h *Host) answerProposal(a replica.Answer) {
	c, ok := h.tokens[a.Token]
	// A call is answered once; after that its token is unknown.
	if !ok {
		return
	}
	delete(h.tokens, a.Token)
	h.m.proposeSeconds.Observe((h.passAt - c.since).Seconds())
	c.ev.answerAt(h.passAt, a.Outcome, a.Err)
}
