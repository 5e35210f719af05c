package catalog

import (
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

const (
	codeDropTable   commandCode = 70
	codeRemoveClass commandCode = 71
)

// RemoveStep bounds the ranges that one RemoveClass removes.
const RemoveStep = 1_000

// DropTable removes a table for good. Clients do not find it any more, and its number is never
// assigned again. The grants on the table are removed with it: a later table of the name is another
// table. If it was the last table of its class, the class is marked, and RemoveClass removes its ranges.
//
// Table is the number that the proposer saw, or 0 for whatever has the name. A table that was dropped
// under that number makes the command a repetition; another table of the name is a Conflict.
//
// The catalog keeps nothing about dropped objects. Numbers are assigned in order and never reused, so a
// number up to the last one that names no table was dropped ([State.IsTableDropped]). A node that
// returns after years, or receives old entries, decides by this what to delete.
type DropTable struct {
	Name  string
	Table rhumb.TableID
}

// RemoveClass removes at most RemoveStep ranges of a class whose last table was dropped. After the last
// range it removes the blocks and the class. Nodes delete their copies of the removed ranges
// ([State.IsRangeDropped]). A class with tables is a Conflict; one that was removed is no error.
type RemoveClass struct{ Class rhumb.ClassID }

func (DropTable) wireCode() commandCode   { return codeDropTable }
func (RemoveClass) wireCode() commandCode { return codeRemoveClass }

func (DropTable) needs() rhumb.Feature   { return rhumb.FeatureSurviveRegion }
func (RemoveClass) needs() rhumb.Feature { return rhumb.FeatureSurviveRegion }

func (c DropTable) fillWire(w *wireCommand)   { w.Name, w.Table = c.Name, c.Table }
func (c RemoveClass) fillWire(w *wireCommand) { w.Class = c.Class }

// dropDecoders is the part of commandDecoders for tables and classes that go.
var dropDecoders = map[commandCode]func(w *wireCommand) Command{
	codeDropTable:   func(w *wireCommand) Command { return DropTable{w.Name, w.Table} },
	codeRemoveClass: func(w *wireCommand) Command { return RemoveClass{w.Class} },
}

// IsTableDropped reports whether a table existed once and does not any more. It is false for a number
// that this copy of the catalog has not assigned yet: a copy that lags must not make its node delete the
// records of a new table.
func (s *State) IsTableDropped(id rhumb.TableID) bool {
	_, exists := s.Table(id)
	return !exists && id > 0 && id <= s.lastTable
}

// HasDroppedTables reports whether any table was dropped.
func (s *State) HasDroppedTables() bool { return s.tables.size < int(s.lastTable) }

// IsRangeDropped reports whether a range existed once and was removed with its class, so that copies of
// it are of no use. As with tables, a range that this copy of the catalog does not know yet was not
// dropped: its block has not been allocated, or belongs to a class that exists.
func (s *State) IsRangeDropped(id rhumb.RangeID) bool {
	if _, exists := s.Range(id); exists {
		return false
	}
	if b, ok := s.BlockOf(id); ok {
		c, _ := s.Class(b.Class)
		return c.Dropping
	}
	r, ok := s.regions.get(uint64(id.Region))
	return ok && uint32(id.Slot/rhumb.BlockSlots) < r.blocks
}

// applyTo removes the table, its grants, and marks a class that has no table left.
func (c DropTable) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.DropTable"
	// The number decides before the name does: the name may belong to a later table by now.
	if c.Table != 0 && t.IsTableDropped(c.Table) {
		return Result{Table: c.Table}
	}
	table, ok := t.TableByName(c.Name)
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "table %q does not exist; list tables with `rhumb table ls`", c.Name)
	case c.Table != 0 && table.ID != c.Table:
		return refuse(op, rhumb.Conflict, "table %q is table %s, not %s; look at it again before dropping it", c.Name, table.ID, c.Table)
	}
	t.removeTable(table)
	t.removeGrants(table.Name)
	if !t.hasTables(table.Class) {
		class, _ := t.Class(table.Class)
		next := *class
		next.Dropping = true
		t.putClass(&next)
	}
	return Result{Table: table.ID, Class: table.Class}
}

// hasTables reports whether a table of the class exists. There are too few tables for an index to pay, and
// tables are dropped seldom.
func (s *State) hasTables(class rhumb.ClassID) bool {
	for t := range s.Tables() {
		if t.Class == class {
			return true
		}
	}
	return false
}

// removeTable removes the record of a table and its name.
func (t *tx) removeTable(table *rhumb.Table) {
	t.tables.delete(t.owner, uint64(table.ID))
	if !t.namesOwned {
		t.names = maps.Clone(t.names)
		t.namesOwned = true
	}
	delete(t.names, table.Name)
	t.changes.Tables = append(t.changes.Tables, table.ID)
}

// removeGrants removes all grants whose scope is a table or a part of it.
func (t *tx) removeGrants(table string) {
	// putRole replaces the list, so the loop walks a copy of it.
	for _, r := range slices.Clone(t.book().roles) {
		left := slices.DeleteFunc(slices.Clone(r.Grants), func(g access.Grant) bool { return !g.Scope.Cluster && g.Scope.Table == table })
		if len(left) == len(r.Grants) {
			continue
		}
		if len(left) == 0 {
			left = nil // as decoding yields it
		}
		next := *r
		next.Grants = left
		t.putRole(&next)
	}
}

// applyTo removes a step of the ranges, and after the last of them the class.
func (c RemoveClass) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RemoveClass"
	class, ok := t.Class(c.Class)
	switch {
	case !ok && c.Class > 0 && c.Class <= t.lastClass:
		return Result{Class: c.Class}
	case !ok:
		return refuse(op, rhumb.NotFound, "class %s does not exist", c.Class)
	case !class.Dropping:
		return refuse(op, rhumb.Conflict, "class %s is in use", c.Class)
	}
	// Collected before the first removal: a tree must not change under its iterator.
	var gone []rhumb.RangeID
	for r := range t.Ranges() {
		if r.Class == c.Class {
			if len(gone) == RemoveStep {
				break
			}
			gone = append(gone, r.ID)
		}
	}
	for _, id := range gone {
		t.ranges.delete(t.owner, rangeKey(id))
		t.changes.Ranges = append(t.changes.Ranges, id)
	}
	// A full step may have left more.
	if len(gone) < RemoveStep {
		t.removeEmptyClass(c.Class)
	}
	return Result{Class: c.Class}
}

// removeEmptyClass removes a class that has no ranges, and its blocks. The counters of the regions stay,
// so that no slot is used a second time.
func (t *tx) removeEmptyClass(class rhumb.ClassID) {
	// Collected first, for the same reason as the ranges.
	var blocks []*rhumb.Block
	for b := range t.Blocks() {
		if b.Class == class {
			blocks = append(blocks, b)
		}
	}
	for _, b := range blocks {
		t.blocks.delete(t.owner, pairKey(b.Region, b.First))
		if b.Node == rhumb.NoNode {
			t.hash.delete(t.owner, pairKey(b.Region, class))
		} else {
			t.active.delete(t.owner, pairKey(b.Node, class))
		}
		t.changes.Blocks = append(t.changes.Blocks, rhumb.RangeID{Region: b.Region, Slot: b.First})
	}
	t.classes.delete(t.owner, uint64(class))
	t.changes.Classes = append(t.changes.Classes, class)
}
