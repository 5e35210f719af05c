package catalog

import (
	"errors"
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// tx is the transaction of one apply: a working copy of a State and the records touched so far.
//
// The embedded State starts as a copy of the old one, so that unchanged trees are shared. Writes go
// through the put methods, which copy every tree node that owner does not own and note the record
// in changes. A command must check everything before its first put: no rollback exists.
type tx struct {
	State
	owner   *owner
	changes Changes
	// namesOwned reports whether names was copied in this transaction. The map is copied before the
	// first write to it, because the old State shares it.
	namesOwned bool
}

// Apply returns the state after cmd, the result of cmd, and the records that cmd touched. If the
// command is refused or already done, Apply returns s itself and no changes.
func (s *State) Apply(cmd Command) (*State, Result, Changes) {
	next, res, changes := s.ApplyDeferred(cmd)
	return next.WithPolicy(), res, changes
}

// ApplyDeferred is Apply without the work of compiling the policy, for states between which nobody looks: a node that starts
// applies thousands of commands at once, and with thousands of users each policy takes a millisecond. The caller calls
// WithPolicy before it shows the state to others.
func (s *State) ApplyDeferred(cmd Command) (*State, Result, Changes) {
	// The copy is shallow: a State is a few words and the roots of its trees.
	t := &tx{State: *s, owner: new(owner)}
	res := t.applyAdmitted(cmd)
	// Callers compare pointers to see whether anything changed: the driver publishes a state and
	// wakes watchers only then.
	if t.changes.Len() == 0 && t.cluster == s.cluster {
		res.setRevision(s.revision)
		return s, res, Changes{}
	}
	// One command is one revision, however many records it touches. Readers wait for revisions, so
	// a batch becomes visible as a whole.
	t.dateAccess(t.nextRevision())
	t.revision++
	res.setRevision(t.revision)
	// The copy drops the owner: whoever applies to next starts with a new owner and copies tree
	// nodes again, so s and next stay immutable.
	next := t.State
	return &next, res, t.changes.normalize()
}

// setRevision writes the revision into a result and into the results of a batch.
func (r *Result) setRevision(revision uint64) {
	r.Revision = revision
	// The commands of a batch share its revision, because no state between them is ever visible.
	for i := range r.Items {
		r.Items[i].setRevision(revision)
	}
}

// refuse returns the result of a refused command.
func refuse(op rhumb.Op, kind rhumb.Kind, format string, args ...any) Result {
	return Result{Failure: rhumb.Ef(op, kind, format, args...)}
}

// refuseErr is like refuse for an existing error. It replaces the operation by that of the command.
func refuseErr(op rhumb.Op, err error) Result {
	// Validation in package rhumb has operations of its own, which mean nothing to a proposer of
	// the command.
	if e, ok := errors.AsType[*rhumb.Error](err); ok {
		return refuse(op, e.Kind, "%s", e.Msg)
	}
	return refuse(op, rhumb.Other, "%v", err)
}

// refuseRange is like refuse for a command about a range. The result carries the present record, so
// that the proposer can decide again without another read.
func refuseRange(op rhumb.Op, kind rhumb.Kind, r *rhumb.Range, format string, args ...any) Result {
	failure := rhumb.Ef(op, kind, format, args...)
	failure.Range = r.ID
	return Result{Failure: failure, Range: r}
}

// refuseChanged refuses a command that was decided on another version of the range's record.
func refuseChanged(op rhumb.Op, r *rhumb.Range, expected uint64) Result {
	return refuseRange(op, rhumb.Conflict, r, "the range has changed: expected version %d, found version %d; read it again", expected, r.Version)
}

// applyTo applies the commands one after the other. A refused one does not keep the others from being applied, and the batch itself is refused
// only if its form is wrong.
func (c Batch) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.Batch"
	// The driver does nothing else while it applies a command, so the size of one is bounded.
	if len(c.Commands) > BatchMax {
		return refuse(op, rhumb.TooLarge, "batch has %d commands; the limit is %d", len(c.Commands), BatchMax)
	}
	for i, cmd := range c.Commands {
		// Init belongs to an empty catalog, and a batch within a batch would evade BatchMax.
		if cmd == nil || cmd.wireCode() == codeBatch || cmd.wireCode() == codeInit {
			return refuse(op, rhumb.InvalidArgument, "command %d is not allowed in a batch; propose it separately", i)
		}
	}
	// Each command sees the effects of the ones before it. A refused command has touched nothing,
	// so the others continue without a rollback.
	items := make([]Result, len(c.Commands))
	for i, cmd := range c.Commands {
		items[i] = t.applyAdmitted(cmd)
	}
	return Result{Items: items}
}

// freezeState returns an immutable copy of the present state. A loop over the copy may put records
// into t: the new owner makes t copy every tree node before it writes to it again, and a B-tree
// must not change under its iterator.
func (t *tx) freezeState() *State {
	t.owner = new(owner)
	frozen := t.State
	return &frozen
}

// putRegion, putNode, putClass, putTable, putBlock and putRange store a record and note that it was
// touched.

// The put methods store a record and note that it was touched. The record belongs to the State
// afterwards, which readers share, so callers pass a copy that they do not change any more.
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
	// The old State shares the map.
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

// putRange stores a range after dropping outdated parts: a prepared handover to a node that
// cannot take over any more, and the recorded lives of nodes that are quarantined or no longer in sync. A quarantined replica may discard its copy within its life, so its life is no
// proof of its contents (docs/replication.md#rule-one-answer).
func (t *tx) putRange(r *rhumb.Range) {
	if r.Prepared != nil && !canTakeOver(r, r.Prepared.Target) {
		r.Prepared = nil
	}
	r.Lives = slices.DeleteFunc(r.Lives, func(m rhumb.MemberLife) bool { return !r.IsInSync(m.Node) || r.IsQuarantined(m.Node) })
	// Decoding yields nil for a missing list. An empty one must not look different.
	if len(r.Lives) == 0 {
		r.Lives = nil
	}
	if len(r.Removed) == 0 {
		r.Removed = nil
	}
	t.ranges.set(t.owner, rangeKey(r.ID), r)
	t.changes.Ranges = append(t.changes.Ranges, r.ID)
}

// newBlock allocates the next block of a region's slots; slots is a multiple of BlockSlots. Blocks are
// allocated in order and never freed, so the region's counter is enough to find unused slots.
func (t *tx) newBlock(in rhumb.RegionID, class rhumb.ClassID, n rhumb.NodeID, slots int) *rhumb.Block {
	r, _ := t.regions.get(uint64(in))
	// Readers share the old record, so a copy is changed.
	next := *r
	next.blocks += uint32(slots / rhumb.BlockSlots)
	t.putRegion(&next)
	b := &rhumb.Block{Region: in, Class: class, Node: n, First: rhumb.Slot(r.blocks) * rhumb.BlockSlots}
	if slots > rhumb.BlockSlots {
		b.Slots = uint32(slots)
	}
	t.putBlock(b)
	return b
}

// newRange creates a range. All its copies are empty and therefore in sync. The present lives of
// all members are recorded: in them, the members hold everything acknowledged to clients, which is
// nothing yet.
func (t *tx) newRange(id rhumb.RangeID, last rhumb.Slot, class rhumb.ClassID, replicas []rhumb.NodeID) *rhumb.Range {
	// The first replica is the primary; the sets of the record are sorted.
	sorted := slices.Sorted(slices.Values(replicas))
	// Nobody can hold a lease from before epoch 1, so its primary begins it without asking (rule
	// E).
	r := &rhumb.Range{
		ID: id, Class: class, Epoch: 1, Allocated: 1, Version: 1,
		Primary: replicas[0], Preferred: replicas[0], InSync: sorted, Replicas: slices.Clone(sorted),
	}
	// A range of one slot has no last slot, as in records of earlier builds.
	if last > id.Slot {
		r.Last = last
	}
	for _, id := range sorted {
		if n, ok := t.Node(id); ok {
			r.Lives = append(r.Lives, rhumb.MemberLife{Node: id, Life: n.Boot})
		}
	}
	t.putRange(r)
	return r
}

// minInSync returns the minimum size of an in-sync set of the range.
func (s *State) minInSync(r *rhumb.Range) int {
	// Check guarantees that the class of every range exists.
	c, _ := s.classes.get(uint64(r.Class))
	return c.Settings.MinInSync
}

// distanceMetres returns the distance between two nodes in whole metres. Processors differ in the
// last bits of a float, and every replica of the catalog must rank nodes alike.
func (s *State) distanceMetres(a, b rhumb.NodeID) int64 {
	na, _ := s.nodes.get(uint64(a))
	nb, _ := s.nodes.get(uint64(b))
	return geo.Metres(na.Location, nb.Location)
}
