package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

func (c CreateClass) apply(t *tx) Result {
	const op rhumb.Op = "catalog.CreateClass"
	if class, ok := t.ClassBySettings(c.Settings); ok {
		return Result{Class: class.ID}
	}
	if err := t.checkNewClass(c.Settings, c.Placements); err != nil {
		return refuseErr(op, err)
	}
	return Result{Class: t.addClass(c.Settings, c.Placements)}
}

func (c CreateTable) apply(t *tx) Result {
	const op rhumb.Op = "catalog.CreateTable"
	c.TableOptions.SetDefaults()
	if table, ok := t.TableByName(c.Name); ok {
		return c.existing(t, table)
	}
	if err := c.validate(); err != nil {
		return refuseErr(op, err)
	}
	if t.tables.size >= rhumb.TablesMax {
		return refuse(op, rhumb.TooLarge, "there are %d tables, the most there can be", t.tables.size)
	}
	var id rhumb.ClassID
	if class, ok := t.ClassBySettings(c.Settings); ok {
		id = class.ID
	} else {
		if err := t.checkNewClass(c.Settings, c.Placements); err != nil {
			return refuseErr(op, err)
		}
		id = t.addClass(c.Settings, c.Placements)
	}
	t.lastTable++
	t.putTable(&rhumb.Table{ID: t.lastTable, Name: c.Name, Class: id, TableOptions: c.TableOptions})
	return Result{Table: t.lastTable, Class: id}
}

// validate refuses tables that are wrong whatever the state.
func (c CreateTable) validate() error {
	if err := rhumb.ValidateTableName(c.Name); err != nil {
		return err
	}
	return c.TableOptions.Validate()
}

// existing gives the table of the same name when it is alike.
func (c CreateTable) existing(t *tx, table *rhumb.Table) Result {
	const op rhumb.Op = "catalog.CreateTable"
	class, _ := t.Class(table.Class)
	want := rhumb.Table{ID: table.ID, Name: c.Name, Class: table.Class, TableOptions: c.TableOptions}
	if class.Settings != c.Settings || *table != want {
		return refuse(op, rhumb.AlreadyExists, "table %q exists with other settings", c.Name)
	}
	return Result{Table: table.ID, Class: table.Class}
}

// checkNewClass refuses a class that cannot be made.
func (t *tx) checkNewClass(settings rhumb.ClassSettings, placements []Placement) error {
	const op rhumb.Op = "catalog.Class"
	if err := settings.Validate(); err != nil {
		return err
	}
	if t.classes.size >= rhumb.TablesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "there are %d classes, the most there can be", t.classes.size)
	}
	if len(placements) == 0 {
		return rhumb.E(op, rhumb.InvalidArgument, t.whatFits(settings.Replicas))
	}
	return t.checkPlacements(settings, placements)
}

// whatFits says, for a class that no region has the nodes for, what would do.
func (s *State) whatFits(replicas int) string {
	live := make(map[rhumb.RegionID]int)
	for n := range s.Nodes() {
		if n.State == rhumb.NodeLive {
			live[n.Region]++
		}
	}
	most, parts := 0, []string(nil)
	for r := range s.Regions() {
		most = max(most, live[r.ID])
		parts = append(parts, fmt.Sprintf("%s has %d", r.Name, live[r.ID]))
	}
	if most == 0 {
		return fmt.Sprintf("%d replicas need %d live nodes in one region, and there are none", replicas, replicas)
	}
	return fmt.Sprintf("%d replicas need %d live nodes in one region; %s. Ask for --replicas %d at most, or add nodes",
		replicas, replicas, strings.Join(parts, ", "), most)
}

// checkPlacements refuses placements that do not keep the class's settings. What may have changed since the proposer
// looked is Conflict.
func (t *tx) checkPlacements(settings rhumb.ClassSettings, placements []Placement) error {
	const op rhumb.Op = "catalog.Placement"
	seen := make(map[rhumb.RegionID]bool)
	for _, p := range placements {
		if _, ok := t.Region(p.Region); !ok || seen[p.Region] {
			return rhumb.Ef(op, rhumb.InvalidArgument, "region %s is unknown or placed twice", p.Region)
		}
		seen[p.Region] = true
		if len(p.Replicas) != settings.HashSlots {
			return rhumb.Ef(op, rhumb.InvalidArgument, "region %s has %d slots placed, want %d", p.Region, len(p.Replicas), settings.HashSlots)
		}
		for _, replicas := range p.Replicas {
			if err := t.checkReplicas(p.Region, settings, replicas); err != nil {
				return err
			}
		}
	}
	if t.ranges.size+len(placements)*settings.HashSlots > rhumb.RangesMax {
		return rhumb.Ef(op, rhumb.TooLarge, "there are %d ranges, and at most %d", t.ranges.size, rhumb.RangesMax)
	}
	return nil
}

// checkReplicas refuses nodes that cannot hold a new range of a region (survival goal zone: all of them are of the
// region).
func (t *tx) checkReplicas(in rhumb.RegionID, settings rhumb.ClassSettings, replicas []rhumb.NodeID) error {
	const op rhumb.Op = "catalog.Placement"
	set, distinct := sortedSet(replicas, func(n rhumb.NodeID) rhumb.NodeID { return n })
	if !distinct || len(set) != settings.Replicas {
		return rhumb.Ef(op, rhumb.InvalidArgument, "replicas %v in region %s: want %d different nodes", replicas, in, settings.Replicas)
	}
	for _, id := range set {
		n, ok := t.Node(id)
		if !ok || n.Region != in {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is no node of region %s", id, in)
		}
		if n.State != rhumb.NodeLive {
			return rhumb.Ef(op, rhumb.Conflict, "%s is %s and cannot take a new range", id, n.State)
		}
	}
	return nil
}

func (t *tx) addClass(settings rhumb.ClassSettings, placements []Placement) rhumb.ClassID {
	t.lastClass++
	t.putClass(&rhumb.Class{ID: t.lastClass, Settings: settings})
	for _, p := range placements {
		t.addHashBlock(t.lastClass, p)
	}
	return t.lastClass
}

// addHashBlock makes the hash slots of a class in one region, with their ranges.
func (t *tx) addHashBlock(class rhumb.ClassID, p Placement) {
	b := t.newBlock(p.Region, class, rhumb.NoNode)
	t.hash.set(t.owner, pair(p.Region, class), b)
	for i, replicas := range p.Replicas {
		t.newRange(rhumb.RangeID{Region: p.Region, Slot: b.First + rhumb.Slot(i)}, class, replicas)
	}
}

func (c EnsureRegionBlocks) apply(t *tx) Result {
	const op rhumb.Op = "catalog.EnsureRegionBlocks"
	class, ok := t.Class(c.Class)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no class %s", c.Class)
	}
	missing := slices.DeleteFunc(slices.Clone(c.Placements), func(p Placement) bool {
		_, has := t.HashBlock(p.Region, c.Class)
		return has
	})
	if err := t.checkPlacements(class.Settings, missing); err != nil {
		return refuseErr(op, err)
	}
	for _, p := range missing {
		t.addHashBlock(c.Class, p)
	}
	return Result{Class: c.Class}
}

func (c OpenSlot) apply(t *tx) Result {
	const op rhumb.Op = "catalog.OpenSlot"
	n, ok := t.Node(c.Node)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no node %s", c.Node)
	}
	class, ok := t.Class(c.Class)
	if !ok {
		return refuse(op, rhumb.NotFound, "there is no class %s", c.Class)
	}
	id, opened := t.ActiveSlot(c.Node, c.Class)
	switch {
	case opened > c.Opened:
		r, _ := t.Range(id)
		return Result{Range: r, Node: c.Node, Class: c.Class}
	case opened < c.Opened:
		return refuse(op, rhumb.InvalidArgument, "%s has opened %d slots of class %s, not %d", c.Node, opened, c.Class, c.Opened)
	case t.ranges.size >= rhumb.RangesMax:
		return refuse(op, rhumb.TooLarge, "there are %d ranges, the most there can be", t.ranges.size)
	case len(c.Replicas) == 0 || c.Replicas[0] != c.Node:
		return refuse(op, rhumb.InvalidArgument, "replicas %v: want %s first", c.Replicas, c.Node)
	}
	if err := t.checkReplicas(n.Region, class.Settings, c.Replicas); err != nil {
		return refuseErr(op, err)
	}
	return Result{Range: t.openSlot(c, n.Region), Node: c.Node, Class: c.Class}
}

// openSlot makes the range of the node's next slot, in a new block when the last one is used up.
func (t *tx) openSlot(c OpenSlot, in rhumb.RegionID) *rhumb.Range {
	key := pair(c.Node, c.Class)
	next := new(activeBlock)
	if a, ok := t.active.get(key); ok {
		*next = *a
	}
	if next.opened%rhumb.BlockSlots == 0 {
		next.block = t.newBlock(in, c.Class, c.Node)
	}
	next.opened++
	t.active.set(t.owner, key, next)
	return t.newRange(next.slot(), c.Class, c.Replicas)
}
