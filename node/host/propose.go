package host

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/hlc"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// proposeEvent is a client batch on its way into its range's log.
type proposeEvent struct {
	batch *rhumb.Batch
	names int // inserts in the batch
	done  func(rhumb.Outcome, error)
}

// Propose asks for a batch to be applied; Drive must be called when no further Propose follows at once. The batch must be
// valid and is not to be changed afterwards. done is called exactly once, from any goroutine, and must not block: with the
// outcome when the batch is committed, with an error whose kind says whether it may have been applied otherwise.
func (h *Host) Propose(b *rhumb.Batch, done func(rhumb.Outcome, error)) {
	const op rhumb.Op = "host.Host.Propose"
	h.mu.Lock()
	full := len(h.queue) >= eventsMax
	h.mu.Unlock()
	if full {
		h.m.overloaded.Inc()
		done(rhumb.Outcome{}, rhumb.Ef(op, rhumb.Overloaded, "%d events wait on this node, no more are taken; retry later", eventsMax))
		return
	}
	ev := &proposeEvent{batch: b, done: done}
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			ev.names++
		}
	}
	if !h.enqueue(ev) {
		done(rhumb.Outcome{}, rhumb.E(op, rhumb.Unavailable, "the node is stopping"))
	}
}

func (ev *proposeEvent) apply(h *Host) {
	const op rhumb.Op = "host.Host.Propose"
	s, ok := h.slot(ev.batch.Range)
	if !ok {
		ev.done(rhumb.Outcome{}, &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: ev.batch.Range, Node: h.cfg.Self.Node, Msg: "this node holds no copy of the range"})
		return
	}
	p, err := h.proposal(s, ev)
	if err != nil {
		ev.done(rhumb.Outcome{}, err)
		return
	}
	ts, err := h.cfg.Clock.Now()
	if err != nil {
		ev.done(rhumb.Outcome{}, rhumb.Wrap(op, err))
		return
	}
	h.nextTok++
	p.Token = h.nextTok
	h.tokens[p.Token] = call{ev.done, hlc.Boottime()}
	s.r.Propose(ts, p)
	h.touch(s)
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
	if !ev.batch.ID.IsZero() {
		seen, err := s.seen(ev.batch.ID)
		if seen != nil || err != nil {
			p.Seen = seen
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
	for range ev.names {
		p.Names = append(p.Names, rhumb.SequenceName(rhumb.MakeSequence(h.cfg.Self.Boot, h.names.Add(1))))
	}
	return p, nil
}

// answer gives a proposal its answer.
func (h *Host) answer(a replica.Answer) {
	c, ok := h.tokens[a.Token]
	if !ok {
		return
	}
	delete(h.tokens, a.Token)
	h.m.proposeSeconds.Observe((hlc.Boottime() - c.since).Seconds())
	c.done(a.Outcome, a.Err)
}
