package catalog

import (
	"errors"
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// tx is the State that one apply is building, with what it touched so far.
type tx struct {
	State
	owner   *owner
	changes Changes
	// namesOwned is true once names was copied.
	namesOwned bool
}

// Apply gives the state after a command, its result and what it touched. A command that is refused or finds its work done
// gives s itself and touches nothing.
func (s *State) Apply(cmd Command) (*State, Result, Changes) {
	t := &tx{State: *s, owner: new(owner)}
	res := cmd.applyTo(t)
	if t.changes.Len() == 0 && t.cluster == s.cluster {
		res.setRevision(s.revision)
		return s, res, Changes{}
	}
	t.revision++
	res.setRevision(t.revision)
	next := t.State
	return &next, res, t.changes.normalize()
}

// stamp writes the revision into a result and its items.
func (r *Result) setRevision(revision uint64) {
	r.Revision = revision
	for i := range r.Items {
		r.Items[i].setRevision(revision)
	}
}

// refuse gives the result of a command that is not done.
func refuse(op rhumb.Op, kind rhumb.Kind, format string, args ...any) Result {
	return Result{Failure: rhumb.Ef(op, kind, format, args...)}
}

// refuseErr is refuse with a ready error, under the command's name.
func refuseErr(op rhumb.Op, err error) Result {
	if e, ok := errors.AsType[*rhumb.Error](err); ok {
		return refuse(op, e.Kind, "%s", e.Msg)
	}
	return refuse(op, rhumb.Other, "%v", err)
}

// refuseRange is refuse for a command about a range, with the record that was in the way.
func refuseRange(op rhumb.Op, kind rhumb.Kind, r *rhumb.Range, format string, args ...any) Result {
	failure := rhumb.Ef(op, kind, format, args...)
	failure.Range = r.ID
	return Result{Failure: failure, Range: r}
}

func (c Batch) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Batch"
	if len(c.Commands) > BatchMax {
		return refuse(op, rhumb.TooLarge, "%d commands, want at most %d", len(c.Commands), BatchMax)
	}
	for i, cmd := range c.Commands {
		if cmd == nil || cmd.wireCode() == codeBatch || cmd.wireCode() == codeInit {
			return refuse(op, rhumb.InvalidArgument, "command %d cannot stand in a batch", i)
		}
	}
	items := make([]Result, len(c.Commands))
	for i, cmd := range c.Commands {
		items[i] = cmd.applyTo(t)
	}
	return Result{Items: items}
}

// freeze gives a copy of the state as it is now, to walk over while t goes on changing.
func (t *tx) freezeState() *State {
	t.owner = new(owner)
	frozen := t.State
	return &frozen
}

// putRegion, putNode, putClass, putTable, putBlock and putRange store a record and note that it was touched.

func (t *tx) putRegion(r *region) {
	t.regions.set(t.owner, uint64(r.ID), r)
	t.changes.Regions = append(t.changes.Regions, r.ID)
}

func (t *tx) putNode(n *node) {
	t.nodes.set(t.owner, uint64(n.ID), n)
	t.changes.Nodes = append(t.changes.Nodes, n.ID)
}

func (t *tx) putClass(c *rhumb.Class) {
	t.classes.set(t.owner, uint64(c.ID), c)
	t.changes.Classes = append(t.changes.Classes, c.ID)
}

func (t *tx) putTable(table *rhumb.Table) {
	t.tables.set(t.owner, uint64(table.ID), table)
	if !t.namesOwned {
		t.names = maps.Clone(t.names)
		t.namesOwned = true
	}
	if t.names == nil {
		t.names = make(map[string]rhumb.TableID)
	}
	t.names[table.Name] = table.ID
	t.changes.Tables = append(t.changes.Tables, table.ID)
}

func (t *tx) putBlock(b *rhumb.Block) {
	t.blocks.set(t.owner, pairKey(b.Region, b.First), b)
	t.changes.Blocks = append(t.changes.Blocks, rhumb.RangeID{Region: b.Region, Slot: b.First})
}

// putRange also drops the lives of nodes that are not in sync any more, or quarantined: such a copy may be given up within its
// life.
func (t *tx) putRange(r *rhumb.Range) {
	r.Lives = slices.DeleteFunc(r.Lives, func(m rhumb.MemberLife) bool { return !r.IsInSync(m.Node) || r.IsQuarantined(m.Node) })
	if len(r.Lives) == 0 {
		r.Lives = nil
	}
	t.ranges.set(t.owner, rangeKey(r.ID), r)
	t.changes.Ranges = append(t.changes.Ranges, r.ID)
}

// newBlock cuts the next block from a region's slots.
func (t *tx) newBlock(in rhumb.RegionID, class rhumb.ClassID, n rhumb.NodeID) *rhumb.Block {
	r, _ := t.regions.get(uint64(in))
	next := *r
	next.blocks++
	t.putRegion(&next)
	b := &rhumb.Block{Region: in, Class: class, Node: n, First: rhumb.Slot(r.blocks) * rhumb.BlockSlots}
	t.putBlock(b)
	return b
}

// newRange makes a range whose copies are all empty and so all in sync. In their present lives they hold everything that
// clients were told: nothing.
func (t *tx) newRange(id rhumb.RangeID, class rhumb.ClassID, replicas []rhumb.NodeID) *rhumb.Range {
	sorted := slices.Sorted(slices.Values(replicas))
	r := &rhumb.Range{
		ID: id, Class: class, Epoch: 1, Allocated: 1, Version: 1,
		Primary: replicas[0], Preferred: replicas[0], InSync: sorted, Replicas: slices.Clone(sorted),
	}
	for _, id := range sorted {
		if n, ok := t.Node(id); ok {
			r.Lives = append(r.Lives, rhumb.MemberLife{Node: id, Life: n.Boot})
		}
	}
	t.putRange(r)
	return r
}

// minInSync gives the least size of an in-sync set of the range.
func (s *State) minInSync(r *rhumb.Range) int {
	c, _ := s.classes.get(uint64(r.Class))
	return c.Settings.MinInSync
}

// metres is the distance between two nodes.
func (s *State) distanceMetres(a, b rhumb.NodeID) int64 {
	na, _ := s.nodes.get(uint64(a))
	nb, _ := s.nodes.get(uint64(b))
	return geo.Metres(na.Location, nb.Location)
}
