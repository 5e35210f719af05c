package host

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// event is work for a pass. applyTo runs in the pass.
type event interface{ applyTo(h *Host) }

type (
	messagesEvent struct {
		from rhumb.NodeID
		msgs []replica.Message
		size int
		// at is when the messages arrived.
		at time.Duration
		// acks says that every message is an Ack, and answers that some are neither an Ack nor an Append.
		acks, answers bool
	}
	persistedEvent struct {
		commit *commit
		// at is when the commit became durable.
		at time.Duration
	}
	fetchedEvent struct {
		s       *slot
		f       replica.LogRead
		entries []*entry.Entry
	}
	updateEvent struct{ ranges []*rhumb.Range }
	peersEvent  struct{ change func(h *Host) }
	tickEvent   struct{}
	// activateEvent activates an elected replica if nothing prevents it any more.
	activateEvent struct{ s *slot }
)

// commit is the batch that one pass wrote to one store, until it is durable.
type commit struct {
	batch   *storage.Batch
	parts   []commitPart
	applied bool
	// deferred reports that the commit is acknowledged when the operating system has it, and at is the time of its pass.
	deferred bool
	at       time.Duration
	// took is how long the sync took.
	took time.Duration
}

// commitPart is the part of a commit that belongs to one range.
type commitPart struct {
	s        *slot
	mustSync bool
	// deferred reports that nobody waits for the sync, and reshapes that the part divides or unites copies, which is always synced.
	deferred, reshapes bool
	// number identifies the Ready whose writes are in the commit.
	number uint64
	after  []replica.Message
	// collect is the timestamp up to which old versions may be collected, since the log was
	// trimmed; 0 if it was not.
	collect rhumb.Timestamp
}

// post queues an event and returns false if the host is closed. It may run a pass and sync a commit
// on the calling goroutine.
func (h *Host) post(ev event) bool {
	if !h.enqueue(ev) {
		return false
	}
	h.Drive()
	return true
}

// postAsync is post for callers that must not wait: passes run on the host's own goroutine.
func (h *Host) postAsync(ev event) {
	if !h.enqueue(ev) {
		return
	}
	h.mu.Lock()
	drive := h.mayDriveLocked()
	h.driving = h.driving || drive
	h.mu.Unlock()
	if drive {
		h.driver.Wake()
	}
}

// enqueue adds an event for a later pass. It returns false if the host is closed.
func (h *Host) enqueue(ev event) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	// The health check measures from here. Without the reset an idle period would look like a slow
	// pass.
	if len(h.prompt)+len(h.queue)+len(h.proposals) == 0 {
		h.since = h.arrival(ev)
	}
	// Client batches have a queue of their own, so that a pass can take them within their own bound
	// and acknowledgements do not wait for them.
	switch ev := ev.(type) {
	case *proposeEvent:
		h.proposals = append(h.proposals, ev)
		h.waiting += ev.size
	case messagesEvent:
		h.enqueueMessagesLocked(ev)
	case persistedEvent, syncDueEvent, logSyncedEvent:
		h.prompt = append(h.prompt, ev)
	default:
		h.queue = append(h.queue, ev)
	}
	return true
}

// arrival returns when an event arrived. Most events know, which saves a reading of the clock.
func (h *Host) arrival(ev event) time.Duration {
	switch ev := ev.(type) {
	case *proposeEvent:
		return ev.since
	case messagesEvent:
		return ev.at
	case persistedEvent:
		return ev.at
	}
	return h.rt.Now()
}

// enqueueMessagesLocked queues messages of a peer. Acknowledgements overtake the Appends of the peer: it sends both
// for one range only in different epochs, and a message of an earlier epoch changes nothing whenever it arrives. They
// do not overtake its other answers, such as a Nack, which may be about the same entries. h.mu must be held.
func (h *Host) enqueueMessagesLocked(ev messagesEvent) {
	// While such an answer waits, acknowledgements wait too, in the order of arrival.
	if ev.acks && h.answersQueued == 0 {
		h.prompt = append(h.prompt, ev)
		return
	}
	if ev.answers {
		h.answersQueued++
	}
	h.queue = append(h.queue, ev)
	h.waiting += ev.size
}

// Drive runs a pass over the waiting events, unless a pass is running. While commitsInFlightMax commits are in
// flight, the pass takes acknowledgements only. It may sync a commit on the calling goroutine. If much is waiting, the host's own
// goroutine runs the pass instead: the caller reads a stream, and an overloaded node must go back
// to reading so that it rejects the excess at once.
func (h *Host) Drive() {
	h.mu.Lock()
	drive, much := h.mayDriveLocked(), h.waiting > callerBytesMax
	h.driving = h.driving || drive
	h.mu.Unlock()
	switch {
	case drive && much:
		h.driver.Wake()
	case drive:
		h.runPasses(true)
	}
}

// mayDriveLocked reports whether a pass may start now. h.mu must be held.
func (h *Host) mayDriveLocked() bool {
	return !h.driving && !h.closed && h.hasWorkLocked()
}

// hasWorkLocked reports whether a pass would take an event. h.mu must be held.
func (h *Host) hasWorkLocked() bool {
	return len(h.prompt) > 0 || h.syncing < commitsInFlightMax && len(h.queue)+len(h.proposals) > 0
}

// takeEventsLocked takes the events of the next pass into h.events: acknowledgements and durable commits, and, unless
// commitsInFlightMax commits are in flight, those that takeWritesLocked takes. h.mu must be held.
func (h *Host) takeEventsLocked() {
	// First, so that a replica counts what its members have before it appends more. The queue is cleared so that taken
	// events can be freed.
	h.events = append(h.events[:0], h.prompt...)
	clear(h.prompt)
	h.prompt = h.prompt[:0]
	if h.syncing < commitsInFlightMax {
		h.takeWritesLocked()
	}
	// The one reading of the clock of this pass. What remains in the queue has its next chance now, so its wait is
	// measured from here.
	h.passAt = h.rt.Now()
	h.since = h.passAt
}

// takeWritesLocked adds events to h.events that may lead to a commit: up to passBytesMax of peers' entries, with all
// other events that precede them, and up to passBytesMax of client batches. h.mu must be held.
func (h *Host) takeWritesLocked() {
	n, size := 0, 0
	for ; n < len(h.queue) && size < passBytesMax; n++ {
		if m, ok := h.queue[n].(messagesEvent); ok {
			size += m.size
		}
	}
	taken := len(h.events)
	h.events = append(h.events, h.queue[:n]...)
	// Order is kept: Appends and answers of one peer must reach their replica in the order in which they
	// were sent. The tail is cleared so that taken events can be freed.
	rest := copy(h.queue, h.queue[n:])
	clear(h.queue[rest:])
	h.queue = h.queue[:rest]
	// Client batches have their own bound: acknowledgements and time do not wait for them.
	n, size = 0, 0
	for ; n < len(h.proposals) && size < passBytesMax; n++ {
		size += h.proposals[n].size
		h.events = append(h.events, h.proposals[n])
	}
	rest = copy(h.proposals, h.proposals[n:])
	clear(h.proposals[rest:])
	h.proposals = h.proposals[:rest]
	for _, ev := range h.events[taken:] {
		switch ev := ev.(type) {
		case *proposeEvent:
			h.waiting -= ev.size
		case messagesEvent:
			h.waiting -= ev.size
			if ev.answers {
				h.answersQueued--
			}
		}
	}
}

// runPasses runs passes until nothing is left to do. The caller has set h.driving. A borrowed
// caller runs one pass and then hands over to the host goroutine.
func (h *Host) runPasses(borrowed bool) {
	for {
		h.mu.Lock()
		h.takeEventsLocked()
		// Evaluated before the pass: only a caller whose event is the only one may sync on its own
		// goroutine.
		alone := borrowed && len(h.events) == 1
		h.mu.Unlock()
		commits := h.pass()
		h.mu.Lock()
		// driving and syncing change under one lock. If driving were cleared first, another caller
		// could start a pass beyond commitsInFlightMax.
		h.syncing += len(commits)
		more := h.hasWorkLocked() && !h.closed
		if !more {
			h.driving = false
		}
		h.mu.Unlock()
		if borrowed && more {
			// driving stays true: the worker now runs the passes.
			h.driver.Wake()
		}
		for i, c := range commits {
			// The last commit of a lone caller is synced here: nobody else waits, so a hand-off
			// would gain nothing. There are never more commits in flight than commitsInFlightMax
			// and those of one pass, apart from the rare ones of passes that took acknowledgements only: they move trim
			// positions, and end an election for which proposals were held.
			h.sync(c, !alone || i < len(commits)-1)
		}
		if borrowed || !more {
			return
		}
	}
}

// sync makes a commit durable, or a deferred one known to the operating system, and then posts that to the replicas. If apart is set, the caller does
// not wait.
func (h *Host) sync(c *commit, apart bool) {
	start := h.rt.Now()
	h.rt.Disk(apart, func() {
		if c.deferred && h.cfg.Probe != nil && h.cfg.Probe.Deferred != nil {
			h.cfg.Probe.Deferred()
		}
		if err := c.batch.Sync(); err != nil {
			// After a failed sync the content of the disk is unknown, so there is no retry.
			h.cfg.Fatal(rhumb.Wrap("host.Host.sync", err))
		}
	}, func() {
		now := h.rt.Now()
		c.took = now - start
		if !c.deferred {
			h.m.syncSeconds.Observe(c.took.Seconds())
		}
		h.mu.Lock()
		h.syncing--
		h.mu.Unlock()
		h.post(persistedEvent{c, now})
	})
}

// pass applies all taken events and carries out the decisions of the replicas. It returns the
// commits to sync.
//
// Steps:
//  1. Every event steps its replica, which marks the slot dirty.
//  2. Dirty slots are carried out until none is left: carrying out one may make it, or another,
//     dirty again.
//  3. The messages leave. Other nodes write their entries to disk while this one does.
//  4. The commits are applied, which makes the writes visible to reads of later passes.
//  5. Elected replicas are queued for activation.
func (h *Host) pass() []*commit {
	for i, ev := range h.events {
		ev.applyTo(h)
		h.events[i] = nil
	}
	var commits []*commit
	untold := false
	// Carrying out may mark slots dirty again, so the loop works on a copy of the list until the
	// list stays empty.
	for len(h.dirtySlots) > 0 && !h.abandoned {
		dirty := h.dirtySlots
		h.dirtySlots = nil
		for _, s := range dirty {
			// Cleared first, so that the work below can mark the slot again.
			s.dirty = false
			// The replica's data was dropped, so its remaining decisions have no object.
			if s.gone {
				continue
			}
			for s.r.HasReady() && !h.abandoned {
				commits = h.carryOut(s, s.r.Ready(), commits)
			}
			if s.gone {
				continue
			}
			h.advanceMerge(s)
			h.updateWeight(s)
			h.noteLag(s)
			// The election is over, won or lost, and the held proposals take their turn: a replica
			// that lost rejects them with the primary's name.
			if len(s.held) > 0 && !s.holds() {
				for _, ev := range h.takeHeld(s) {
					// The wait for the election does not count as time in the queue, or the batch
					// would be rejected as too old.
					ev.since = h.passAt
					ev.applyTo(h)
				}
			}
			untold = untold || s.r.Untold()
			if _, ok := s.r.AwaitsActivation(); ok {
				h.electedSlots = append(h.electedSlots, s)
			}
			if s.r.NeedsTick() {
				h.addActive(s)
			}
			if s.r.State() == replica.Quarantined {
				h.noteQuarantine(s)
			}
		}
	}
	h.flushMessages()
	// Once for all ranges of the pass, and before the disk is used: the round trip overlaps the sync of the promises.
	// A pass that makes this node primary of a thousand ranges sends one frame to each peer, not a thousand.
	if h.excluded {
		h.excluded = false
		h.leases.sendDue()
	}
	h.ticks.Store(len(h.activeSlots) > 0)
	if untold && !h.noticePending {
		h.noticePending = true
		h.noticeTimer.Reset(commitNoticeDelay)
	}
	// The commits are applied once per store, with the writes of all its ranges.
	for _, c := range commits {
		h.applyCommit(c)
	}
	// Activation waits for the next pass: entries that the elected replica took over from a longer
	// log must be visible in storage when its first proposal is evaluated.
	for _, s := range h.electedSlots {
		// enqueue, not post: this pass is running, and the caller of the pass checks for more
		// events after it.
		h.enqueue(activateEvent{s})
	}
	h.electedSlots = h.electedSlots[:0]
	for _, ev := range h.installs {
		ev.begin(h)
	}
	h.installs = h.installs[:0]
	// A commit is not applied only if the host closes while the disk is full.
	return slices.DeleteFunc(commits, func(c *commit) bool { return !c.applied })
}

// noteQuarantine logs and counts, once per replica, that it is quarantined.
func (h *Host) noteQuarantine(s *slot) {
	if s.quarantined {
		return
	}
	s.quarantined = true
	h.m.quarantined.Inc()
	h.log.Error("quarantined a replica: its data contradicts the protocol, and it serves nothing until it is repaired", "range", s.id.String(), "why", s.r.Status().Quarantine)
}

// addActive records that a replica wants ticks.
func (h *Host) addActive(s *slot) {
	if !s.active {
		s.active = true
		h.activeSlots = append(h.activeSlots, s)
	}
}

// markDirty records that a replica may have work to carry out.
func (h *Host) markDirty(s *slot) {
	if !s.dirty && !s.gone {
		s.dirty = true
		h.dirtySlots = append(h.dirtySlots, s)
	}
}

// applyTo steps the replicas with a peer's messages.
func (ev messagesEvent) applyTo(h *Host) {
	// The budget covers entries that wait for a pass, and this wait is over.
	h.cfg.Budgets.PeersIn.Release(int64(ev.size))
	for i := range ev.msgs {
		s, ok := h.findSlot(ev.msgs[i].Range)
		if !ok {
			// Metadata has not announced the range to this node yet, or the copy here is not divided. The sender repeats
			// the message.
			h.keepEarly(&ev.msgs[i])
			continue
		}
		h.slow.noteReceived(ev.at, &ev.msgs[i])
		if !h.admitTakes(s, &ev.msgs[i]) {
			continue
		}
		// A rejected message was already answered.
		if !h.admitMessage(s, &ev.msgs[i]) {
			continue
		}
		if err := s.r.Step(ev.msgs[i]); err != nil {
			h.m.refusedMessages.Inc()
			h.log.Debug("rejected a message", "range", s.id.String(), "from", ev.from, "err", err)
		}
		h.markDirty(s)
	}
}

// admitMessage prepares a message for its replica. If the disk has no room for the entries, it
// rejects them and returns false.
func (h *Host) admitMessage(s *slot, m *replica.Message) bool {
	n := len(m.Entries)
	if n == 0 {
		return true
	}
	// Only Append is rejected. Entries that answer a Fetch are needed to end an election, and
	// without the election the range serves nobody.
	if err := s.store.Writable(); err != nil && m.Kind == replica.Append {
		h.m.diskFull.Inc()
		s.r.Refuse(m, replica.RefusedDisk)
		h.markDirty(s)
		return false
	}
	// The clock moves past every timestamp that it accepts. If the log is already further ahead, it
	// is continued all the same and the clock stays where it is: the log itself keeps its
	// timestamps increasing (docs/replication.md#rule-clock-refused).
	limit := h.cfg.Clock.Limit()
	s.r.SetClockLimit(limit)
	if last := m.Entries[n-1].LastHLC(); last <= limit {
		_ = h.cfg.Clock.Update(last)
	}
	return true
}

// applyTo reports a durable commit to its replicas.
func (ev persistedEvent) applyTo(h *Host) {
	if !ev.commit.deferred {
		h.slow.noteSync(ev.commit.took)
	}
	h.notePersisted(ev.commit)
	for i := range ev.commit.parts {
		p := &ev.commit.parts[i]
		// The copy was dropped while its commit was being synced. A copy that is being replaced may
		// return to service, and must know its durable entries then.
		if p.s.gone {
			if p.s.installing && p.mustSync {
				p.s.r.Persisted(p.number)
			}
			continue
		}
		// These messages acknowledge entries or promises, and so had to wait until the commit was
		// durable (docs/replication.md#durable).
		h.sendAll(p.after)
		// Nobody waits for trims and commit positions, which are written without a sync.
		if p.mustSync {
			p.s.r.Persisted(p.number)
			h.markDirty(p.s)
		}
	}
}

func (ev fetchedEvent) applyTo(h *Host) {
	h.fetching--
	h.startFetches()
	ev.s.r.Fetched(ev.f, ev.entries)
	h.markDirty(ev.s)
}

func (ev updateEvent) applyTo(h *Host) { h.updateRanges(ev.ranges) }

func (ev peersEvent) applyTo(h *Host) { ev.change(h) }

func (ev activateEvent) applyTo(h *Host) {
	if !ev.s.gone {
		h.tryActivate(ev.s)
	}
}

// applyTo passes the time to the active replicas.
func (tickEvent) applyTo(h *Host) {
	// The timer of commitNoticeDelay posts the same event.
	h.noticePending = false
	h.shrinkTails()
	now := h.passAt
	// A slot leaves the list once its replica neither wants ticks nor waits for its activation.
	h.activeSlots = slices.DeleteFunc(h.activeSlots, func(s *slot) bool {
		if s.gone {
			s.active = false
			return true
		}
		waits := s.r.State() == replica.Activating
		if waits {
			// The grants end with time or with a confirmation. Neither is an event of the pass, so
			// each tick tries again.
			h.tryActivate(s)
		}
		if len(s.held) > 0 && now-s.heldSince > holdMax {
			for _, ev := range h.takeHeld(s) {
				// Unavailable and not Unknown: no replica has seen the batch.
				ev.answer(rhumb.Outcome{}, &rhumb.Error{
					Op: "host.Host.Propose", Kind: rhumb.Unavailable, Range: s.id, Node: h.cfg.Self.Node,
					Msg: "the new primary is not ready yet; retry",
				})
			}
		}
		switch {
		case s.r.NeedsTick():
			s.r.Tick(now)
			h.markDirty(s)
		case !waits:
			s.active = false
		}
		return !s.active
	})
}
