package host

import (
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// proposeEvent is a client batch on its way into its range's log.
type proposeEvent struct {
	batch *rhumb.Batch
	names int // inserts in the batch
	size  int // of its names and values, in bytes
	since time.Duration
	taken *admitted // nil for one that was refused
	admit *admission
	done  func(rhumb.Outcome, error)
}

// answer gives a batch its one answer.
func (ev *proposeEvent) answer(o rhumb.Outcome, err error) {
	if ev.taken != nil {
		ev.admit.answered(ev.taken)
	}
	ev.done(o, err)
}

// Propose asks for a batch to be applied; Drive must be called when no further Propose follows at once. The batch must be
// valid and is not to be changed afterwards. done is called exactly once, from any goroutine, and must not block: with the
// outcome when the batch is committed, with an error whose kind says whether it may have been applied otherwise.
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
	if ev.taken, ok = h.admission.take(int64(ev.size + proposeOverhead)); !ok {
		used, most := h.admission.state()
		h.overloaded(op, ev, fmt.Sprintf("%d bytes of requests wait on this node, at its present pace it takes %d", used, most))
		return
	}
	h.mu.Lock()
	full := len(h.proposals) >= eventsMax
	h.mu.Unlock()
	switch {
	case full:
		h.overloaded(op, ev, fmt.Sprintf("%d batches wait on this node", eventsMax))
	case !h.enqueue(ev):
		ev.answer(rhumb.Outcome{}, errStopping(op))
	}
}

func (ev *proposeEvent) apply(h *Host) {
	const op rhumb.Op = "host.Host.Propose"
	s, ok := h.slot(ev.batch.Range)
	if !ok {
		ev.answer(rhumb.Outcome{}, &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: ev.batch.Range, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"})
		return
	}
	if waited := h.rt.Now() - ev.since; waited > queueWaitMax && s.r.State() == replica.Primary {
		h.overloaded(op, ev, fmt.Sprintf("the batch waited %v for its turn, and its caller does not wait for ever", waited.Round(time.Millisecond)))
		return
	}
	if s.r.State() == replica.Activating && h.hold(s, ev) {
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
	h.nextTok++
	p.Token = h.nextTok
	h.tokens[p.Token] = call{ev.answer, h.rt.Now()}
	s.r.Propose(ts, p)
	h.touch(s)
}

// hold keeps a proposal until the elected replica serves, so that a failover costs its callers no pause between retries. It
// is false when too much is held already.
func (h *Host) hold(s *slot, ev *proposeEvent) bool {
	if h.held.events >= heldMax || h.held.events > 0 && h.held.size+ev.size > waitingBytesMax {
		return false
	}
	if len(s.held) == 0 {
		s.heldSince = h.rt.Now()
	}
	s.held = append(s.held, ev)
	h.held.events++
	h.held.size += ev.size
	return true
}

// unhold gives up what a slot holds, for the caller to propose or to refuse.
func (h *Host) unhold(s *slot) []*proposeEvent {
	held := s.held
	s.held = nil
	for _, ev := range held {
		h.held.events--
		h.held.size -= ev.size
	}
	return held
}

// proposal gathers what the replica cannot know: values in storage, the stored answer to an earlier try, new names.
func (h *Host) proposal(s *slot, ev *proposeEvent) (replica.Proposal, error) {
	p := replica.Proposal{Batch: ev.batch}
	if s.r.State() != replica.Primary {
		return p, nil // it will refuse; no need to look
	}
	if err := s.store.Writable(); err != nil {
		h.m.diskFull.Inc()
		return p, err
	}
	if u := h.cfg.Budgets.Uncommitted; u.Full() {
		u.Refuse()
		h.m.overloaded.Inc()
		return p, &rhumb.Error{Op: "host.Host.Propose", Kind: rhumb.Overloaded, Range: s.id, Node: h.cfg.Self.Node, Msg: fmt.Sprintf(
			"%d bytes of this node's ranges wait for in-sync replicas, the bound is %d; send less or retry later", u.Used(), u.Most())}
	}
	if !ev.batch.ID.IsZero() {
		var err error
		if p.Seen, p.Expired, err = s.seen(ev.batch.ID); p.Seen != nil || p.Expired || err != nil {
			return p, err
		}
	}
	for i := range ev.batch.Mutations {
		m := &ev.batch.Mutations[i]
		if !m.NeedsBase() {
			continue
		}
		if p.Base == nil {
			p.Base = make([]replica.Base, len(ev.batch.Mutations))
		}
		found, err := s.store.Lookup(rhumb.Key{Table: m.Table, Home: s.id, Name: m.Name}, storage.Newest)
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
	if size, _ := s.store.Size(s.id); size.Data > h.cfg.RangeSizeMax {
		if err := h.onlyUpdates(s, &p, size.Data); err != nil {
			h.m.rangeFull.Inc()
			return p, err
		}
	}
	for range ev.names {
		name, err := s.newName()
		if err != nil {
			return p, err
		}
		p.Names = append(p.Names, name)
	}
	return p, nil
}

// onlyUpdates refuses a batch that adds a key to a range that is too large. A key that is added and changed again before
// the next pass counts as absent.
func (h *Host) onlyUpdates(s *slot, p *replica.Proposal, size int64) error {
	for i := range p.Batch.Mutations {
		m := &p.Batch.Mutations[i]
		exists := m.Kind == rhumb.Delete
		switch {
		case exists || m.Kind == rhumb.Insert:
		case m.NeedsBase():
			exists = !p.Base[i].Version.IsZero()
		default:
			found, err := s.store.Lookup(rhumb.Key{Table: m.Table, Home: s.id, Name: m.Name}, storage.Newest)
			if err != nil {
				return err
			}
			exists = found.Value != nil
		}
		if !exists {
			return &rhumb.Error{Op: "host.Host.Propose", Kind: rhumb.Overloaded, Range: s.id, Node: h.cfg.Self.Node, Msg: fmt.Sprintf(
				"the range holds %d bytes, above %d it takes no new keys, only updates and deletes; spread the keys over more hash slots or delete some", size, h.cfg.RangeSizeMax)}
		}
	}
	return nil
}

// answer gives a proposal its answer.
func (h *Host) answer(a replica.Answer) {
	c, ok := h.tokens[a.Token]
	if !ok {
		return
	}
	delete(h.tokens, a.Token)
	h.m.proposeSeconds.Observe((h.rt.Now() - c.since).Seconds())
	c.done(a.Outcome, a.Err)
}
