package host

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// damagedEvent looks for replicas whose data is in damaged files.
type damagedEvent struct{}

// applyTo quarantines the replicas whose data is in damaged files, if another intact copy is in
// sync.
func (damagedEvent) applyTo(h *Host) {
	for _, id := range h.cfg.Engine.DamagedRanges() {
		s, ok := h.findSlot(id)
		if !ok || s.gone || s.r.State() == replica.Quarantined || !othersIntact(s.desc.Load(), h.cfg.Self.Node) {
			continue
		}
		s.r.Damaged(damageReason(s.store))
		h.markDirty(s)
	}
}

// othersIntact reports whether an in-sync copy other than the node's own is not quarantined. If
// there is none, the damaged copy serves until the next start: its readable part is the only copy
// left, and a read that meets the damage fails.
func othersIntact(d *rhumb.Range, self rhumb.NodeID) bool {
	return d != nil && slices.ContainsFunc(d.InSync, func(n rhumb.NodeID) bool { return n != self && !d.IsQuarantined(n) })
}

// damageReason describes the newest damage of a store, with file and offset.
func damageReason(s *storage.Store) string {
	why := "part of its data is in a damaged file of " + s.Dir()
	if all := s.Damage(); len(all) > 0 {
		why += ": " + all[len(all)-1].String()
	}
	return why
}
