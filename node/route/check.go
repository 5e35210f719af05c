package route

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// sequenceNameSize is the length of a server-assigned name (rhumb.SequenceName).
const sequenceNameSize = 8

// Check refuses a batch whose range, which the caller named, is not where its keys live: a key that its writer named lives
// where its table and name hash to, a server-named one in a slot of a node's block. A range or table that this node does
// not know is NotFound.
func (r Router) Check(b *rhumb.Batch) error {
	const op rhumb.Op = "route.Check"
	st := r.State()
	block, ok := st.BlockOf(b.Range)
	if _, exists := st.Range(b.Range); !exists || !ok {
		return &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: b.Range, Msg: "the range does not exist on this node; retry if it is new"}
	}
	for i := range b.Mutations {
		m := &b.Mutations[i]
		t, class, err := tableOf(op, st, m.Table)
		if err != nil {
			return &rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Range: b.Range, Err: err}
		}
		if err := checkName(t, m.Name); err != nil {
			return rhumb.Wrap(op, err)
		}
		if fault := misplaced(st, b.Range, block, m, t, class); fault != "" {
			return rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d: %s", i, fault)
		}
	}
	return nil
}

// checkName refuses a name that does not fit into the images of a published table.
func checkName(t *rhumb.Table, name []byte) error {
	if t.Snapshot.Has(rhumb.SnapshotOn) && len(name) > rhumb.SnapshotNameSizeMax {
		return rhumb.Ef("route.Check", rhumb.TooLarge, "a name of %d bytes; table %s is published in shared memory, where names have at most %d", len(name), t.Name, rhumb.SnapshotNameSizeMax)
	}
	return nil
}

// misplaced says why a key of a table does not live in a range of a block, and where it does; "" when it lives there.
func misplaced(st *catalog.State, id rhumb.RangeID, block *rhumb.Block, m *rhumb.Mutation, t *rhumb.Table, class *rhumb.Class) string {
	mine, ofNode := block.Class == class.ID, block.Node != rhumb.NoNode
	switch {
	case m.Kind == rhumb.Insert && mine && ofNode:
		return ""
	case m.Kind == rhumb.Insert:
		return "range " + id.String() + " takes no server-named keys of table " + t.Name + ": they live in the blocks of nodes; leave the slot to the node"
	case mine && ofNode && len(m.Name) == sequenceNameSize:
		return ""
	case mine && !ofNode && id.Slot == block.First+keys.HashSlot(m.Name, t.Colocate, class.Settings.HashSlots):
		return ""
	}
	fault := "key " + rhumb.NameString(m.Name) + " of table " + t.Name + " does not live in range " + id.String()
	right, err := named(st, id.Region, m.Table, m.Name)
	if err != nil {
		return fault + ", and the region holds no key of that table"
	}
	return fault + ", but in " + right.String()
}
