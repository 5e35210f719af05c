package route

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Check rejects a batch whose range, which the caller chose, is not the home of its keys. A key
// that its writer named belongs to the slot of the hash of its name; a server-named key belongs to
// a slot in a node's block. Check returns NotFound for a range or a table that this node does not
// know.
func (r Router) Check(b *rhumb.Batch) error {
	const op rhumb.Op = "route.Check"
	st := r.State()
	// The client may have chosen the range by a newer catalog than this node has.
	block, ok := st.BlockOf(b.Range)
	in, exists := st.RangeOf(b.Range)
	if !exists || !ok {
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
		if fault := explainMisplaced(st, b, in, block, m, t, class); fault != "" {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s: %s", b.Describe(i), fault)
		}
	}
	return nil
}

// checkName rejects a name that is too long for the images of a published table.
func checkName(t *rhumb.Table, name []byte) error {
	if t.Snapshot.Has(rhumb.SnapshotOn) && len(name) > rhumb.SnapshotNameSizeMax {
		return rhumb.Ef("route.Check", rhumb.TooLarge, "name has %d bytes; table %s is published in shared memory, where names have at most %d", len(name), t.Name, rhumb.SnapshotNameSizeMax)
	}
	return nil
}

// explainMisplaced explains why a key does not belong to the range, and where it does. It returns "" if
// the key belongs there.
func explainMisplaced(st *catalog.State, b *rhumb.Batch, in *rhumb.Range, block *rhumb.Block, m *rhumb.Mutation, t *rhumb.Table, class *rhumb.Class) string {
	mine, ofNode := block.Class == class.ID, block.Node != rhumb.NoNode
	id := b.Range
	switch {
	case m.Kind == rhumb.Insert && mine && ofNode:
		return ""
	case m.Kind == rhumb.Insert:
		return "range " + id.String() + " takes no server-named keys of table " + t.Name + ": they belong to the blocks of nodes; leave the range out to let the server choose"
	case mine && ofNode && len(m.Name) == rhumb.SequenceNameSize:
		// A change of a record whose name a server assigned. Server-assigned names have one length, so a
		// name of another length has its home elsewhere.
		return ""
	case mine && !ofNode && in.Holds(st.HomeIn(in.ID, m.Table, m.Name)) && (class.Settings.Buckets > 0 || id.Slot == block.First+keys.HashSlot(m.Name, t.Colocate, class.Settings.HashSlots)):
		return ""
	case mine && !ofNode && class.Settings.Buckets > 0 && !b.ID.IsZero():
		// The range was split since the client chose it. Only the primary knows whether the request was applied
		// before that, and rejects it otherwise.
		return ""
	}
	fault := "key " + rhumb.NameString(m.Name) + " of table " + t.Name + " does not belong to range " + id.String()
	right, err := namedHome(st, id.Region, m.Table, m.Name)
	if err != nil {
		return fault + ", and the region holds no key of that table"
	}
	return fault + ", but to " + right.String()
}
