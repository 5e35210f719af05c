package host

import (
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// weight is what a slot counts for in the host's budgets, in bytes.
type weight struct{ uncommitted, tail, recent int }

// weigh brings the budgets up to date with a slot.
func (h *Host) weigh(s *slot) {
	b := &h.cfg.Budgets
	uncommitted, tail := s.r.Held()
	b.Uncommitted.Add(int64(uncommitted - s.weight.uncommitted))
	b.Tails.Add(int64(tail - s.weight.tail))
	s.weight.uncommitted, s.weight.tail = uncommitted, tail
}

// weighRecent is weigh for what is kept for Config.Committed.
func (h *Host) weighRecent(s *slot) {
	recent := entriesSize(s.recent)
	h.cfg.Budgets.Recent.Add(int64(recent - s.weight.recent))
	s.weight.recent = recent
}

// giveBack returns to the budgets what the slots count for: they outlive the host.
func (h *Host) giveBack() {
	b := &h.cfg.Budgets
	h.eachSlot(func(s *slot) {
		b.Uncommitted.Release(int64(s.weight.uncommitted))
		b.Tails.Release(int64(s.weight.tail))
		b.Recent.Release(int64(s.weight.recent))
		s.weight = weight{}
	})
}

// shrinkTails lets no replica keep more entries in memory for peers that lag than its share. What a peer still needs is read
// from storage.
func (h *Host) shrinkTails() {
	b := h.cfg.Budgets.Tails
	if !b.Full() {
		return
	}
	b.Refuse()
	var sizes []int64
	for _, s := range h.all {
		sizes = append(sizes, int64(s.weight.tail))
	}
	most := waterLevel(sizes, b.Most()/2) // half: not again at once
	for _, s := range h.all {
		if int64(s.weight.tail) > most {
			s.r.ShrinkTail(int(most))
			h.weigh(s)
		}
	}
}

// waterLevel returns the greatest level such that sizes, each cut down to it, are at most total together. When all of them
// fit whole, no level is too high.
func waterLevel(sizes []int64, total int64) int64 {
	sizes = slices.Sorted(slices.Values(sizes))
	for i, size := range sizes {
		if level := total / int64(len(sizes)-i); size > level {
			return level
		}
		total -= size
	}
	return math.MaxInt64
}

// ownTrimMargin is the part, one in so many, by which a store may be beyond LogKeepStore before secondaries trim without their
// primaries.
const ownTrimMargin = 4

// logCheckInterval is how often the size of the logs is looked at.
const logCheckInterval = time.Second

// boundLogs keeps the logs of each store within Config.LogKeepStore, the longest first: the ranges of which this node is primary
// keep less for replicas that are behind. A secondary trims with its primary, and by itself when the store is beyond its bound by
// more than the time that primaries need to trim lets grow: their nodes may have stores with more room.
func (h *Host) boundLogs() {
	now := h.rt.Now()
	if now-h.logsChecked < logCheckInterval {
		return
	}
	h.logsChecked = now
	for _, store := range h.cfg.Engine.Stores() {
		h.boundLogsOf(store)
	}
}

// trimOwn lets the secondaries with the longest logs trim by themselves, and returns how many did.
func (h *Host) trimOwn(slots []*slot, sizes []int64) (n int) {
	level := waterLevel(sizes, h.cfg.LogKeepStore)
	for i, s := range slots {
		if sizes[i] > level && s.r.TrimOwn(level) {
			h.touch(s)
			n++
		}
	}
	return n
}

func (h *Host) boundLogsOf(store *storage.Store) {
	var slots []*slot
	var sizes []int64
	var total int64
	for _, s := range h.all {
		if s.store == store {
			size, _ := store.Size(s.id)
			slots, sizes = append(slots, s), append(sizes, size.Log)
			total += size.Log
		}
	}
	keep := int64(rhumb.LogKeepRange)
	if total > h.cfg.LogKeepStore {
		keep = min(keep, waterLevel(sizes, h.cfg.LogKeepStore))
	}
	shortened := 0
	for i, s := range slots {
		if s.logKeep == keep {
			continue
		}
		s.logKeep = keep
		s.r.KeepLog(keep)
		h.touch(s)
		if sizes[i] > keep && s.r.State() == replica.Primary {
			shortened++
		}
	}
	if total > h.cfg.LogKeepStore+h.cfg.LogKeepStore/ownTrimMargin {
		shortened += h.trimOwn(slots, sizes)
	}
	h.m.logsShortened.Add(float64(shortened))
	if shortened > 0 && !h.logsShort[store] { // once: the level moves with every write until the replicas have caught up
		h.log.Warn("the store keeps too much log for replicas that are behind: the longest logs are cut shorter, and replicas that need what is cut off cannot catch up from the log",
			"dir", store.Dir(), "ranges", shortened, "keeps", keep, "store_log_bytes", total, "store_keeps", h.cfg.LogKeepStore)
	}
	h.logsShort[store] = total > h.cfg.LogKeepStore
}
