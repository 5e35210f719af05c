package host

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// weight is a slot's share of the host's budgets, in bytes.
type weight struct{ uncommitted, tail, recent int }

// updateWeight adjusts the budgets to the present size of a slot.
func (h *Host) updateWeight(s *slot) {
	b := &h.cfg.Budgets
	uncommitted, tail := s.r.Held()
	b.Uncommitted.Add(int64(uncommitted - s.weight.uncommitted))
	b.Tails.Add(int64(tail - s.weight.tail))
	s.weight.uncommitted, s.weight.tail = uncommitted, tail
}

// updateRecentWeight is updateWeight for the entries kept for Config.Committed.
func (h *Host) updateRecentWeight(s *slot) {
	recent := entriesSize(s.recent)
	h.cfg.Budgets.Recent.Add(int64(recent - s.weight.recent))
	s.weight.recent = recent
}

// releaseBudgets releases the shares of all slots: the budgets outlive the host.
func (h *Host) releaseBudgets() { h.eachSlot(h.releaseWeight) }

// releaseWeight releases the share of a slot that no pass touches any more.
func (h *Host) releaseWeight(s *slot) {
	b := &h.cfg.Budgets
	b.Uncommitted.Release(int64(s.weight.uncommitted))
	b.Tails.Release(int64(s.weight.tail))
	b.Recent.Release(int64(s.weight.recent))
	s.weight = weight{}
}

// shrinkTails makes no replica keep more entries in memory for lagging peers than its share. A peer
// that needs older entries gets them from storage.
func (h *Host) shrinkTails() {
	b := h.cfg.Budgets.Tails
	if !b.Full() {
		return
	}
	b.Refuse()
	var sizes []int64
	for _, s := range h.allSlots {
		sizes = append(sizes, int64(s.weight.tail))
	}
	// Half of the budget, so that the tails do not have to shrink again at once.
	most := waterLevel(sizes, b.Most()/2)
	for _, s := range h.allSlots {
		if int64(s.weight.tail) > most {
			s.r.ShrinkTail(int(most))
			h.updateWeight(s)
		}
	}
}

// waterLevel returns the greatest level such that the sizes, each cut down to the level, sum to at
// most total. If all of them fit uncut, it returns the greatest integer.
func waterLevel(sizes []int64, total int64) int64 {
	sizes = slices.Sorted(slices.Values(sizes))
	// In ascending order, each size below an equal share of the remainder leaves more room for the
	// larger ones. The first size above its share sets the level.
	for i, size := range sizes {
		if level := total / int64(len(sizes)-i); size > level {
			return level
		}
		total -= size
	}
	return math.MaxInt64
}

// ownTrimMargin is the divisor of LogKeepStore by which a store may exceed it before secondaries
// trim without their primaries (docs/decisions/0022-overload.md).
const ownTrimMargin = 4

// logCheckInterval is the interval at which the size of the logs is checked.
const logCheckInterval = time.Second

// boundLogs keeps the logs of each store within Config.LogKeepStore by trimming the longest first:
// the primaries on this node keep less for lagging replicas. A secondary trims with its primary. It
// trims without the primary only if the store exceeds its bound by more than the logs grow until
// primaries have trimmed: the stores of the primaries may have more room.
func (h *Host) boundLogs() {
	now := h.rt.Now()
	if now-h.logsChecked < logCheckInterval {
		return
	}
	h.logsChecked = now
	for _, store := range h.cfg.Engine.Stores() {
		h.boundStoreLogs(store)
	}
}

// trimSecondaries makes the secondaries with the longest logs trim without their primaries, and
// returns how many did.
func (h *Host) trimSecondaries(slots []*slot, sizes []int64) (n int) {
	level := waterLevel(sizes, h.cfg.LogKeepStore)
	for i, s := range slots {
		if sizes[i] > level && s.r.TrimOwn(level) {
			h.markDirty(s)
			n++
		}
	}
	return n
}

// boundStoreLogs is boundLogs for one store.
func (h *Host) boundStoreLogs(store *storage.Store) {
	var slots []*slot
	var sizes []int64
	var total int64
	for _, s := range h.allSlots {
		if s.store == store {
			size, _ := store.Size(s.id)
			slots, sizes = append(slots, s), append(sizes, size.Log)
			total += size.Log
		}
	}
	// The bound applies to every replica, since any of them may become primary.
	keep := h.logKeepRange()
	if total > h.cfg.LogKeepStore {
		keep = min(keep, waterLevel(sizes, h.cfg.LogKeepStore))
	}
	shortened := 0
	for i, s := range slots {
		// Setting the bound carries out the replica, which is not free for thousands of ranges.
		if s.logKeep == keep {
			continue
		}
		s.logKeep = keep
		s.r.KeepLog(keep)
		h.markDirty(s)
		if sizes[i] > keep && s.r.State() == replica.Primary {
			shortened++
		}
	}
	if total > h.cfg.LogKeepStore+h.cfg.LogKeepStore/ownTrimMargin {
		// The margin lets primaries, which know the lagging replicas, trim first.
		shortened += h.trimSecondaries(slots, sizes)
	}
	h.m.logsShortened.Add(float64(shortened))
	// The warning is logged once, since the level moves with every write until the replicas have
	// caught up.
	if shortened > 0 && !h.logsShort[store] {
		h.log.Warn("the store keeps too much log for lagging replicas: trimming the longest logs; replicas that need the trimmed entries cannot catch up",
			"dir", store.Dir(), "ranges", shortened, "keeps", keep, "store_log_bytes", total, "store_keeps", h.cfg.LogKeepStore)
	}
	h.logsShort[store] = total > h.cfg.LogKeepStore
}

// logKeepRange returns how many bytes of log each range keeps for lagging replicas, unless the store
// keeps too much.
func (h *Host) logKeepRange() int64 {
	return cmp.Or(h.cfg.Replica.LogKeepBytes, int64(rhumb.LogKeepRange))
}
