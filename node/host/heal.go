package host

import (
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
)

const (
	// healEvery is the interval at which a node looks for damaged copies that it may replace.
	healEvery = time.Second
	// healsMax bounds the replacements of one copy in a life of the node. A disk that damages a copy
	// again and again needs a person.
	healsMax = 3
)

// healEvent looks for quarantined copies that may be discarded without a person. The empty replica
// that follows is readmitted, and copies the range from another node
// (docs/replication.md#rule-heal).
type healEvent struct{}

// applyTo discards the quarantined copies that other copies can replace.
func (healEvent) applyTo(h *Host) {
	// A discarded copy could come back by log only, if at all. So a person decides until ranges are copied.
	if !h.mayTransfer() {
		return
	}
	now := h.rt.Now()
	for _, s := range slices.Clone(h.allSlots) {
		if s.gone || s.r.State() != replica.Quarantined {
			continue
		}
		if s.quarantinedAt == 0 {
			s.quarantinedAt = now
		}
		connected := func(n rhumb.NodeID) bool { p := h.nodes[n]; return p.connected && !p.suspect }
		settings, known := h.cfg.Settings(s.id)
		if now-s.quarantinedAt < h.cfg.HealAfter || h.heals[s.id] >= healsMax || !known || !mayHeal(h.cfg.Self.Node, s.desc.Load(), settings.MinInSync, connected) {
			continue
		}
		h.heals[s.id]++
		h.m.healed.Inc()
		h.log.Warn("replacing a damaged copy: other copies are intact", "range", s.id.String(), "why", s.r.Status().Quarantine)
		// The answer is not awaited: the next look finds whether the copy is still there.
		discardEvent{s.id, false, make(chan error, 1)}.applyTo(h)
	}
}

// mayHeal reports whether a quarantined copy may be discarded without a person: metadata has
// recorded the quarantine, the copy is out of the in-sync set, and the range has its minimum of
// intact in-sync copies on other nodes that this node reaches. So the copy is never the last intact
// one, and never counts toward the minimum. A copy that an operator gave up when the range was
// recovered with a loss is kept: it may hold the only trace of the lost writes.
func mayHeal(self rhumb.NodeID, d *rhumb.Range, minInSync int, connected func(rhumb.NodeID) bool) bool {
	if d == nil || !d.IsReplica(self) || !d.IsQuarantined(self) || d.IsInSync(self) {
		return false
	}
	if d.Recovery != nil && (d.Recovery.Node == self || slices.Contains(d.Recovery.Gone, self)) {
		return false
	}
	intact := 0
	for _, n := range d.InSync {
		if n != self && !d.IsQuarantined(n) && connected(n) {
			intact++
		}
	}
	return intact >= max(minInSync, 1)
}
