package host

import (
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// damagedEvent looks which replicas lie in damaged files.
type damagedEvent struct{}

func (damagedEvent) apply(h *Host) {
	for _, id := range h.cfg.Engine.DamagedRanges() {
		s, ok := h.slot(id)
		if !ok || s.gone || s.r.State() == replica.Quarantined || !othersIntact(s.desc.Load(), h.cfg.Self.Node) {
			continue
		}
		s.r.Damaged(damageReason(s.store))
		h.touch(s)
	}
}

// othersIntact reports whether an in-sync copy besides a node's own is not quarantined. Where there is none, the damaged
// copy goes on until the next start: what can be read of it is all that there is, and a read that meets the damage fails.
func othersIntact(d *rhumb.Range, self rhumb.NodeID) bool {
	return d != nil && slices.ContainsFunc(d.InSync, func(n rhumb.NodeID) bool { return n != self && !d.IsQuarantined(n) })
}

// damageReason names the newest damage of a store, with file and offset.
func damageReason(s *storage.Store) string {
	why := "a damaged file of " + s.Dir() + " holds a part of its data"
	if all := s.Damage(); len(all) > 0 {
		why += ": " + all[len(all)-1].String()
	}
	return why
}
