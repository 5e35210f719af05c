package host

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// event is something that a pass has to take in. apply runs in the pass.
type event interface{ apply(h *Host) }

type (
	messagesEvent struct {
		from rhumb.NodeID
		msgs []replica.Message
		size int // of their entries
	}
	persistedEvent struct{ commit *commit }
	fetchedEvent   struct {
		s       *slot
		f       replica.LogRead
		entries []*entry.Entry
	}
	updateEvent struct{ ranges []*rhumb.Range }
	peersEvent  struct{ change func(h *Host) }
	tickEvent   struct{}
	// activateEvent lets an elected replica serve, if nothing keeps it any more.
	activateEvent struct{ s *slot }
)

// commit is what one pass wrote to one store, on its way to being durable.
type commit struct {
	batch   *storage.Batch
	parts   []commitPart
	applied bool
}

// commitPart is what one range wrote in a commit.
type commitPart struct {
	s        *slot
	mustSync bool
	number   uint64 // of the Ready
	after    []replica.Message
	collect  rhumb.Timestamp // the log was trimmed: what may be collected is as of then; 0 when it was not
}

// post hands an event to the host, unless it is closed. It may run a pass and sync a commit on the calling goroutine.
func (h *Host) post(ev event) bool {
	if !h.enqueue(ev) {
		return false
	}
	h.Drive()
	return true
}

// postAway is post for callers that must not wait: passes run on the host's own goroutine.
func (h *Host) postAway(ev event) {
	if !h.enqueue(ev) {
		return
	}
	h.mu.Lock()
	drive := h.mayDrive()
	h.driving = h.driving || drive
	h.mu.Unlock()
	if drive {
		h.driver.Wake()
	}
}

// enqueue adds an event for a later pass, unless the host is closed.
func (h *Host) enqueue(ev event) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if len(h.queue)+len(h.proposals) == 0 {
		h.since = h.rt.Now()
	}
	switch ev := ev.(type) {
	case *proposeEvent:
		h.proposals = append(h.proposals, ev)
		h.waiting += ev.size
	case messagesEvent:
		h.queue = append(h.queue, ev)
		h.waiting += ev.size
	default:
		h.queue = append(h.queue, ev)
	}
	return true
}

// Drive runs a pass over what waits, unless one runs already or enough commits are on their way to disk. It may sync a
// commit on the calling goroutine. When much waits the host's own goroutine runs the pass: the caller reads a stream, and a
// node under overload must refuse at once what it does not take in.
func (h *Host) Drive() {
	h.mu.Lock()
	drive, much := h.mayDrive(), h.waiting > guestBytesMax
	h.driving = h.driving || drive
	h.mu.Unlock()
	switch {
	case drive && much:
		h.driver.Wake()
	case drive:
		h.drive(true)
	}
}

// mayDrive reports whether a pass may start now; h.mu is held.
func (h *Host) mayDrive() bool {
	return !h.driving && !h.closed && h.syncing < commitsInFlightMax && len(h.queue)+len(h.proposals) > 0
}

// takeLocked takes in the events of the next pass: of entries of peers and of client batches each as much as passBytesMax, and
// all else that comes before them. Acknowledgements and time wait for no client batch. h.mu is held.
func (h *Host) takeLocked() {
	n, size := 0, 0
	for ; n < len(h.queue) && size < passBytesMax; n++ {
		if m, ok := h.queue[n].(messagesEvent); ok {
			size += m.size
		}
	}
	if n == len(h.queue) {
		h.events, h.queue = h.queue, h.events[:0]
	} else {
		h.events = append(h.events[:0], h.queue[:n]...)
		rest := copy(h.queue, h.queue[n:])
		clear(h.queue[rest:])
		h.queue = h.queue[:rest]
	}
	n, size = 0, 0
	for ; n < len(h.proposals) && size < passBytesMax; n++ {
		size += h.proposals[n].size
		h.events = append(h.events, h.proposals[n])
	}
	rest := copy(h.proposals, h.proposals[n:])
	clear(h.proposals[rest:])
	h.proposals = h.proposals[:rest]
	for i := range h.events {
		switch ev := h.events[i].(type) {
		case *proposeEvent:
			h.waiting -= ev.size
		case messagesEvent:
			h.waiting -= ev.size
		}
	}
	h.since = h.rt.Now()
}

// drive runs passes while there is something to do. The caller has set h.driving. A caller that is a guest runs one
// pass and leaves the rest to the host's own goroutine.
func (h *Host) drive(guest bool) {
	for {
		h.mu.Lock()
		h.takeLocked()
		alone := guest && len(h.events) == 1
		h.mu.Unlock()
		commits := h.pass()
		h.mu.Lock()
		h.syncing += len(commits)
		more := len(h.queue)+len(h.proposals) > 0 && h.syncing < commitsInFlightMax && !h.closed
		if !more {
			h.driving = false
		}
		h.mu.Unlock()
		if guest && more {
			h.driver.Wake() // driving stays true: the worker is the driver now
		}
		for i, c := range commits {
			// Never more than commitsInFlightMax and one pass's. Where nobody else waits, nothing is gained by a hand-off.
			h.sync(c, !alone || i < len(commits)-1)
		}
		if guest || !more {
			return
		}
	}
}

// sync makes a commit durable and tells the replicas; with apart it does not make the caller wait.
func (h *Host) sync(c *commit, apart bool) {
	start := h.rt.Now()
	h.rt.Disk(apart, func() {
		if err := c.batch.Sync(); err != nil {
			h.cfg.Fatal(rhumb.Wrap("host.Host.sync", err))
		}
	}, func() {
		h.m.syncSeconds.Observe((h.rt.Now() - start).Seconds())
		h.mu.Lock()
		h.syncing--
		h.mu.Unlock()
		h.post(persistedEvent{c})
	})
}

// pass takes in all gathered events and carries out what became ready. It returns the commits that have to be synced.
func (h *Host) pass() []*commit {
	for i, ev := range h.events {
		ev.apply(h)
		h.events[i] = nil
	}
	var commits []*commit
	untold := false
	for len(h.dirty) > 0 && !h.abandoned {
		dirty := h.dirty
		h.dirty = nil
		for _, s := range dirty {
			s.dirty = false
			if s.gone { // what its replica still wants concerns data that is no more
				continue
			}
			for s.r.HasReady() && !h.abandoned {
				commits = h.carryOut(s, s.r.Ready(), commits)
			}
			h.weigh(s)
			if len(s.held) > 0 && s.r.State() != replica.Activating {
				now := h.rt.Now()
				for _, ev := range h.unhold(s) {
					ev.since = now // it waited for the election, not for its turn
					ev.apply(h)    // touches s, which makes it dirty again
				}
			}
			untold = untold || s.r.Untold()
			if _, ok := s.r.AwaitsActivation(); ok {
				h.elected = append(h.elected, s)
			}
			if s.r.NeedsTick() {
				h.activate(s)
			}
			if s.r.State() == replica.Quarantined {
				h.quarantined(s)
			}
		}
	}
	h.ticks.Store(len(h.active) > 0)
	if untold && !h.telling {
		h.telling = true
		h.tell.Reset(tellInterval)
	}
	for _, c := range commits {
		h.apply(c)
	}
	// Not before: what an elected replica took over from a longer log must be visible when its first proposal is judged.
	for _, s := range h.elected {
		h.enqueue(activateEvent{s})
	}
	h.elected = h.elected[:0]
	return slices.DeleteFunc(commits, func(c *commit) bool { return !c.applied })
}

// quarantined logs and counts, once, that a replica serves nothing any more.
func (h *Host) quarantined(s *slot) {
	if s.quarantined {
		return
	}
	s.quarantined = true
	h.m.quarantined.Inc()
	h.log.Error("a replica is quarantined: its data contradicts the protocol, and it serves nothing until it is repaired", "range", s.id.String(), "why", s.r.Status().Quarantine)
}

// activate notes that a replica wants ticks.
func (h *Host) activate(s *slot) {
	if !s.active {
		s.active = true
		h.active = append(h.active, s)
	}
}

// touch notes that a replica may have something ready.
func (h *Host) touch(s *slot) {
	if !s.dirty && !s.gone {
		s.dirty = true
		h.dirty = append(h.dirty, s)
	}
}

func (ev messagesEvent) apply(h *Host) {
	h.cfg.Budgets.PeersIn.Release(int64(ev.size))
	for i := range ev.msgs {
		s, ok := h.slot(ev.msgs[i].Range)
		if !ok {
			continue // news of the range has not arrived yet; the sender repeats itself
		}
		if !h.admit(s, &ev.msgs[i]) {
			continue
		}
		if err := s.r.Step(ev.msgs[i]); err != nil {
			h.m.refusedMessages.Inc()
			h.log.Debug("message refused", "range", s.id.String(), "from", ev.from, "err", err)
		}
		h.touch(s)
	}
}

// admit prepares a message for its replica. When the disk has no room for the entries it refuses them and returns false.
func (h *Host) admit(s *slot, m *replica.Message) bool {
	n := len(m.Entries)
	if n == 0 {
		return true
	}
	if err := s.store.Writable(); err != nil && m.Kind == replica.Append {
		h.m.diskFull.Inc()
		s.r.Refuse(m, replica.RefusedDisk)
		h.touch(s)
		return false
	}
	// The clock moves past what it accepts. A log that is farther ahead than that is continued all the same, and the clock
	// stays where it is: the log itself keeps its timestamps growing.
	limit := h.cfg.Clock.Limit()
	s.r.SetClockLimit(limit)
	if last := m.Entries[n-1].LastHLC(); last <= limit {
		_ = h.cfg.Clock.Update(last)
	}
	return true
}

func (ev persistedEvent) apply(h *Host) {
	for i := range ev.commit.parts {
		p := &ev.commit.parts[i]
		if p.s.gone {
			continue
		}
		h.sendAll(p.after)
		if p.mustSync {
			p.s.r.Persisted(p.number)
			h.touch(p.s)
		}
	}
}

func (ev fetchedEvent) apply(h *Host) {
	h.fetching--
	h.fetchNext()
	ev.s.r.Fetched(ev.f, ev.entries)
	h.touch(ev.s)
}

func (ev updateEvent) apply(h *Host) { h.update(ev.ranges) }

func (ev peersEvent) apply(h *Host) { ev.change(h) }

func (ev activateEvent) apply(h *Host) { h.tryActivate(ev.s) }

func (tickEvent) apply(h *Host) {
	h.telling = false
	h.shrinkTails()
	now := h.rt.Now()
	h.active = slices.DeleteFunc(h.active, func(s *slot) bool {
		if s.gone {
			s.active = false
			return true
		}
		waits := s.r.State() == replica.Activating
		if waits {
			h.tryActivate(s)
			if len(s.held) > 0 && now-s.heldSince > holdMax {
				for _, ev := range h.unhold(s) {
					ev.answer(rhumb.Outcome{}, &rhumb.Error{
						Op: "host.Host.Propose", Kind: rhumb.Unavailable, Range: s.id, Node: h.cfg.Self.Node,
						Msg: "the new primary cannot begin yet; retry",
					})
				}
			}
		}
		switch {
		case s.r.NeedsTick():
			s.r.Tick(now)
			h.touch(s)
		case !waits:
			s.active = false
		}
		return !s.active
	})
}
