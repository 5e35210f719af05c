package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// Check returns the first broken invariant that it finds, as an error of kind Internal, or nil. It
// reads every record.
func (s *State) Check() error {
	if s.cluster.IsZero() && s.nodes.size+s.regions.size+s.classes.size > 0 {
		return brokenInvariant("a cluster without an id has records")
	}
	// The order matters: each check relies on the references that the ones before it have checked.
	for _, check := range []func() error{s.checkNodes, s.checkNames, s.checkSecurity, s.checkTables, s.checkBlocks, s.checkRanges, s.checkAccess, s.checkOperations} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// brokenInvariant returns an error of kind Internal. Decode changes the kind to Corrupt: in stored
// bytes, a broken invariant means damage.
func brokenInvariant(format string, args ...any) error {
	return rhumb.Ef("catalog.Check", rhumb.Internal, format, args...)
}

// checkNodes checks regions and nodes: ids were allocated, names and stores are unique, and every
// node is in a region.
func (s *State) checkNodes() error {
	names := make(map[string]bool)
	for id, r := range s.regions.all() {
		// An id above the counter would be allocated a second time.
		if id == 0 || r.ID > s.lastRegion || names[r.Name] || r.Location.Validate() != nil {
			return brokenInvariant("region %d (%q) has an id that was never allocated, a duplicate name or an invalid location", id, r.Name)
		}
		names[r.Name] = true
		if into, ok := s.Region(r.Into); r.Into != 0 && (!ok || s.HostRegion(into.ID) == r.ID || r.Dead) || r.Removed && r.Into == 0 {
			return brokenInvariant("region %d (%q) was removed into a region that does not exist or into itself, or is dead", id, r.Name)
		}
	}
	for d := range s.Distances() {
		_, knowsA := s.regions.get(uint64(d.A))
		_, knowsB := s.regions.get(uint64(d.B))
		if d.A >= d.B || !knowsA || !knowsB || d.Micros == 0 || d.Micros > DistanceMicrosMax {
			return brokenInvariant("the distance between regions %d and %d is out of order or unknown", d.A, d.B)
		}
	}
	stores := make(map[rhumb.UUID]bool)
	for id, n := range s.nodes.all() {
		_, ok := s.Region(n.Region)
		// Two nodes with one store would be taken for each other when they register.
		if id == 0 || n.ID > s.lastNode || !ok || stores[n.Store] || n.Boot == 0 || n.Location.Validate() != nil {
			return brokenInvariant("node %d has an id that was never allocated, no region, an invalid location, no boot number or the store of another node", id)
		}
		if n.State < rhumb.NodeLive || n.State > rhumb.NodeDecommissioning {
			return brokenInvariant("node %d is in state %s", id, n.State)
		}
		// Names are created without asking a dead region, so a node that serves in one could hold
		// the same name.
		if n.State.Serves() && !s.RegionServes(n.Region) {
			return brokenInvariant("node %d is live in region %s, which is marked dead", id, n.Region)
		}
		if n.State == rhumb.NodeDecommissioning && !n.Leaving {
			return brokenInvariant("node %d is decommissioning although nobody asked for it", id)
		}
		if by := n.ReplacedBy; by != rhumb.NoNode && (by == n.ID || n.State != rhumb.NodeFenced || by > s.lastNode) {
			return brokenInvariant("node %d is replaced by %s, but is %s", id, by, n.State)
		}
		stores[n.Store] = true
	}
	return nil
}

// checkTables checks classes and tables: no two classes have equal settings, since tables share a
// class by its settings. A class that is being removed has no table, and its settings are free.
func (s *State) checkTables() error {
	settings := make(map[rhumb.ClassSettings]bool)
	for id, c := range s.classes.all() {
		if id == 0 || c.ID > s.lastClass || !c.Dropping && settings[c.Settings] || c.Settings.Validate() != nil {
			return brokenInvariant("class %d has an id that was never allocated, duplicate settings or invalid settings", id)
		}
		if !c.Dropping {
			settings[c.Settings] = true
		}
	}
	for id, t := range s.tables.all() {
		c, ok := s.Class(t.Class)
		ok = ok && !c.Dropping
		// names is derived from the tables, so a duplicate name shows as the id of another table.
		if id == 0 || t.ID > s.lastTable || !ok || s.names[t.Name] != t.ID {
			return brokenInvariant("table %d (%q) has an id that was never allocated, no class or a duplicate name", id, t.Name)
		}
	}
	return nil
}

// checkBlocks checks that blocks were allocated in order from the slots of their regions and belong
// to existing classes and nodes.
func (s *State) checkBlocks() error {
	// Blocks begin at multiples of BlockSlots below the region's counter. Below it, a block that is
	// missing was removed with its class.
	hash := make(map[uint64]bool)
	for b := range s.Blocks() {
		r, ok := s.regions.get(uint64(b.Region))
		_, hasClass := s.Class(b.Class)
		units := uint32(b.Size() / rhumb.BlockSlots)
		if !ok || !hasClass || b.First%rhumb.BlockSlots != 0 || b.Size()%rhumb.BlockSlots != 0 || uint32(b.First/rhumb.BlockSlots)+units > r.blocks {
			return brokenInvariant("block %d of region %s has no class or was never allocated", b.First, b.Region)
		}
		// A class has one block of hash slots per region, in which all its names are hashed.
		if b.Node == rhumb.NoNode {
			key := pairKey(b.Region, b.Class)
			if hash[key] {
				return brokenInvariant("class %s has two hash blocks in region %s", b.Class, b.Region)
			}
			hash[key] = true
			continue
		}
		if n, ok := s.Node(b.Node); !ok || n.Region != b.Region {
			return brokenInvariant("block %d of region %s belongs to %s, which is not in the region", b.First, b.Region, b.Node)
		}
	}
	// A node inserts into its active slot without asking, so the slot needs a range.
	for _, a := range s.active.all() {
		if c, ok := s.Class(a.block.Class); ok && c.Dropping {
			continue
		}
		if r, ok := s.Range(a.newestSlot()); !ok || r.Class != a.block.Class {
			return brokenInvariant("the active slot %s of %s in class %s has no range", a.newestSlot(), a.block.Node, a.block.Class)
		}
	}
	return nil
}

// checkRanges checks that every range is in a block of its class, and its record.
func (s *State) checkRanges() error {
	var before *rhumb.Range
	for r := range s.Ranges() {
		b, ok := s.BlockOf(r.ID)
		if !ok || b.Class != r.Class || !b.Contains(r.LastSlot()) || r.Last != 0 && r.Last <= r.ID.Slot {
			return brokenInvariant("range %s up to slot %s is in no block of its class %s", r.ID, r.Last, r.Class)
		}
		// A slot belongs to one range. The slots of a reserved range still belong to the range before it.
		overlaps := before != nil && before.Holds(r.ID)
		// A class that is being dropped loses its ranges one by one, so a reserved range may outlast the one before it.
		c, _ := s.Class(r.Class)
		if !c.Dropping && (overlaps != (r.Birth != 0) || overlaps && (before.Birth != 0 || before.LastSlot() != r.LastSlot())) {
			return brokenInvariant("range %s overlaps the range before it, or is reserved outside of it", r.ID)
		}
		// Each node that has a copy of the old range divides it. Any other node would begin with an empty one.
		if overlaps && r.Birth != 0 && !slices.Equal(r.Replicas, before.Replicas) {
			return brokenInvariant("range %s is reserved on %v, but the range before it is on %v", r.ID, r.Replicas, before.Replicas)
		}
		if o, ok := s.MergePartner(r); r.IsMerging() && !c.Dropping && (!ok || !slices.Equal(o.Replicas, r.Replicas) || r.TakesOver != 0 && r.Ends != 0) {
			return brokenInvariant("range %s is marked for a merge, but has no partner on the same replicas", r.ID)
		}
		if n := len(r.Merged); n > 0 && (r.Merged[0] <= r.ID.Slot || r.Merged[n-1] > r.LastSlot() || !slices.IsSorted(r.Merged) || n > rhumb.MergedMax) {
			return brokenInvariant("range %s lists the slots %v of merged ranges, which are not sorted, not inside of it, or too many", r.ID, r.Merged)
		}
		before = r
		if err := s.checkRange(r); err != nil {
			return err
		}
	}
	return nil
}

// checkRange checks the record of one range, whose class exists.
func (s *State) checkRange(r *rhumb.Range) error {
	switch {
	case !isSortedSet(r.Quarantined) || !isSubset(r.Quarantined, r.Replicas):
		return brokenInvariant("range %s: quarantined replicas %v are not a sorted subset of replicas %v", r.ID, r.Quarantined, r.Replicas)
	case !isSortedSet(r.Leaving) || !isSubset(r.Leaving, r.Replicas):
		return brokenInvariant("range %s: leaving replicas %v are not a sorted subset of replicas %v", r.ID, r.Leaving, r.Replicas)
	case !isSortedSet(r.Removed) || slices.ContainsFunc(r.Removed, r.IsReplica):
		return brokenInvariant("range %s: nodes %v were removed in this epoch, but are not sorted or hold a replica", r.ID, r.Removed)
	case !isSortedSet(r.InSync) || !isSortedSet(r.Replicas) || len(r.Replicas) > rhumb.ReplicasMax:
		return brokenInvariant("range %s: in-sync set %v or replicas %v are not sorted, or are too many", r.ID, r.InSync, r.Replicas)
	case !r.IsInSync(r.Primary):
		return brokenInvariant("range %s: primary %s is not in the in-sync set %v", r.ID, r.Primary, r.InSync)
	case !isSubset(r.InSync, r.Replicas):
		return brokenInvariant("range %s: in-sync set %v is not a subset of replicas %v", r.ID, r.InSync, r.Replicas)
	case !s.areLivesValid(r):
		return brokenInvariant("range %s: recorded lives %v are not sorted, or include a node that is quarantined or not in the in-sync set %v", r.ID, r.Lives, r.InSync)
	case !r.IsReplica(r.Preferred):
		return brokenInvariant("range %s: preferred primary %s is not a replica", r.ID, r.Preferred)
	case len(r.InSync) < s.minInSync(r):
		return brokenInvariant("range %s: in-sync set has %d members; the minimum is %d", r.ID, len(r.InSync), s.minInSync(r))
	case r.Epoch == 0 || r.Epoch > r.Allocated || r.Version == 0:
		return brokenInvariant("range %s: epoch %d, allocated epoch %d or version %d is out of order", r.ID, r.Epoch, r.Allocated, r.Version)
	}
	// The reserved epoch is above the present one, so that adopting it is a step forward, and was allocated.
	if h := r.Prepared; h != nil && (h.Epoch <= r.Epoch || h.Epoch > r.Allocated || !canTakeOver(r, h.Target)) {
		return brokenInvariant("range %s: a handover to %s in epoch %d is prepared, but the range is in epoch %d of %d with primary %s and in-sync set %v",
			r.ID, h.Target, h.Epoch, r.Epoch, r.Allocated, r.Primary, r.InSync)
	}
	if n, ok := s.Node(r.Former); r.Former != rhumb.NoNode && (!ok || n.Forgotten) {
		return brokenInvariant("range %s: its former node %s is unknown or was removed", r.ID, r.Former)
	}
	for _, id := range r.Replicas {
		if _, ok := s.Node(id); !ok {
			return brokenInvariant("range %s: replica %s is not a known node", r.ID, id)
		}
	}
	return nil
}

// areLivesValid reports whether the recorded lives are sorted by node and belong to in-sync members
// that are not quarantined.
func (s *State) areLivesValid(r *rhumb.Range) bool {
	for i, m := range r.Lives {
		if m.Life == 0 || i > 0 && r.Lives[i-1].Node >= m.Node || !r.IsInSync(m.Node) || r.IsQuarantined(m.Node) {
			return false
		}
	}
	return true
}

// isSortedSet reports whether ids are in ascending order without repetition.
func isSortedSet(ids []rhumb.NodeID) bool {
	return slices.IsSorted(ids) && len(slices.Compact(slices.Clone(ids))) == len(ids)
}
