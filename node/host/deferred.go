package host

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// Commits of tables that defer syncs are acknowledged when the operating system has them, and synced in the background
// (docs/replication.md#deferred). The ranges of a store share one log, so unsynced writes are noted for each store.

// unsyncedLog describes the writes of one store that are acknowledged and not yet synced.
type unsyncedLog struct {
	store *storage.Store
	// since is not later than the oldest such write, and last not earlier than the newest one was acknowledged.
	since, last time.Duration
	// window is the shortest window of the writes.
	window time.Duration
	// syncing reports that a sync in the background is under way.
	syncing bool
}

// due returns when a sync in the background begins: after half of the window. The other half is for the sync.
func (u *unsyncedLog) due() time.Duration { return u.since + u.window/2 }

// mayDefer reports whether a commit is to be acknowledged before it is synced: all of it that somebody waits for is of tables that
// defer syncs, and no earlier write is overdue. If a sync takes longer than half of the window, further writes wait for theirs, so
// that all that a power loss can take was written within one window.
func (h *Host) mayDefer(c *commit) bool {
	some := false
	for i := range c.parts {
		p := &c.parts[i]
		if p.mustSync && !p.deferred || p.reshapes {
			return false
		}
		some = some || p.deferred
	}
	if !some {
		return false
	}
	if u := h.unsyncedOf(c.batch.Store()); u != nil && h.passAt-u.since >= u.window {
		h.m.deferredWaits.Inc()
		return false
	}
	return true
}

// DeferredLosses returns the losses so far.
func (h *Host) DeferredLosses() replica.DeferredLosses {
	if all := h.deferredLosses.Load(); all != nil {
		return *all
	}
	return replica.DeferredLosses{}
}

// noteLoss reports to operators that a range lost, or may have lost, writes before they were synced.
func (h *Host) noteLoss(s *slot, rd *replica.Ready) {
	losses := h.DeferredLosses()
	losses.Last = h.cfg.Clock.Wall()
	defer func() { h.deferredLosses.Store(&losses) }()
	if rd.GivenUp > 0 {
		losses.Entries += uint64(rd.GivenUp)
		h.m.deferredLost.Add(float64(rd.GivenUp))
		h.log.Error("the range went on without entries of this copy, which the others had lost in a power loss before they were synced", "range", s.id.String(), "entries", rd.GivenUp)
		return
	}
	losses.UnsureEpochs++
	h.m.deferredUnsure.Inc()
	h.log.Warn("the range goes on, but all copies that answered have started again since their last sync: if they lost power together, the writes of the last window before that are lost",
		"range", s.id.String(), "epoch", uint64(s.r.Epoch()), "window", s.window.String())
}

// unsyncedOf returns the unsynced writes of a store, or nil if there are none.
func (h *Host) unsyncedOf(store *storage.Store) *unsyncedLog {
	for _, u := range h.unsynced {
		if u.store == store {
			return u
		}
	}
	return nil
}

// notePersisted updates the unsynced writes of the store of a commit: a deferred one adds to them, and any other
// one has synced what preceded it.
func (h *Host) notePersisted(c *commit) {
	if !c.deferred {
		h.noteSynced(c.batch.Store(), c.at)
		return
	}
	h.m.deferredCommits.Inc()
	u := h.unsyncedOf(c.batch.Store())
	if u == nil {
		u = &unsyncedLog{store: c.batch.Store(), since: c.at, window: rhumb.DeferMax.Window()}
		h.unsynced = append(h.unsynced, u)
	}
	// A sync that began after this commit was applied, and before the operating system had it, has moved since beyond it.
	u.since, u.last = min(u.since, c.at), h.passAt
	for i := range c.parts {
		if p := &c.parts[i]; p.deferred {
			u.window = min(u.window, p.s.window)
		}
	}
	h.armUnsynced()
}

// noteSynced records that everything is synced that was acknowledged before a time.
func (h *Host) noteSynced(store *storage.Store, at time.Duration) {
	u := h.unsyncedOf(store)
	if u == nil {
		return
	}
	if u.last < at {
		h.unsynced = slices.DeleteFunc(h.unsynced, func(o *unsyncedLog) bool { return o == u })
	}
	u.since = max(u.since, at)
	h.armUnsynced()
}

// armUnsynced sets the timer for the next sync in the background, and publishes the age of the oldest unsynced write.
func (h *Host) armUnsynced() {
	var next *unsyncedLog
	oldest := time.Duration(0)
	for _, u := range h.unsynced {
		if oldest == 0 || u.since < oldest {
			oldest = u.since
		}
		if !u.syncing && (next == nil || u.due() < next.due()) {
			next = u
		}
	}
	h.unsyncedSince.Store(int64(oldest))
	if next != nil {
		h.unsyncedTimer.Reset(max(next.due()-h.rt.Now(), 0))
	}
}

// unsyncedAge returns how long the oldest write that is acknowledged and not synced has been there, or 0 if there is none.
func (h *Host) unsyncedAge() time.Duration {
	if since := time.Duration(h.unsyncedSince.Load()); since != 0 {
		return h.rt.Now() - since
	}
	return 0
}

// syncDueEvent begins the syncs in the background that are due.
type syncDueEvent struct{}

func (syncDueEvent) applyTo(h *Host) {
	for _, u := range h.unsynced {
		if !u.syncing && u.due() <= h.passAt {
			h.syncLog(u)
		}
	}
	h.armUnsynced()
}

// logSyncedEvent ends a sync in the background that began at a time.
type logSyncedEvent struct {
	u        *unsyncedLog
	at, took time.Duration
}

func (ev logSyncedEvent) applyTo(h *Host) {
	ev.u.syncing = false
	h.m.deferredSyncSeconds.Observe(ev.took.Seconds())
	h.slow.noteSync(ev.took)
	h.noteSynced(ev.u.store, ev.at)
}

// syncLog syncs the unsynced writes of a store. Passes and commits continue meanwhile.
func (h *Host) syncLog(u *unsyncedLog) {
	u.syncing = true
	at := h.passAt
	// Close waits for this count before the engine is closed.
	h.reads.Add(1)
	start := h.rt.Now()
	h.rt.Disk(true, func() {
		if err := u.store.SyncLog(); err != nil {
			h.cfg.Fatal(rhumb.Wrap("host.Host.syncLog", err))
		}
	}, func() {
		h.reads.Add(-1)
		h.post(logSyncedEvent{u, at, h.rt.Now() - start})
	})
}
