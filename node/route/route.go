// Package route maps requests to ranges: a table and a name to a range, and a range to its metadata
// record. It only reads the catalog.
//
// The hash of a name, up to the colocate byte of its table, selects one of the hash slots that the
// class of the table has in a region: the home of the name. Server-named keys live in slots of node
// blocks instead. The home of a key never changes, so nodes with different revisions of the catalog
// disagree only about objects that are new, and about ranges that were split a moment ago. For these,
// the errors say that a retry may help.
package route

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Router answers from the newest catalog of a node.
type Router struct{ State func() *catalog.State }

// Named returns the range of a key that its writer named and whose home is in the given region.
func (r Router) Named(region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	st := r.State()
	home, err := namedHome(st, region, table, name)
	if err != nil {
		return home, err
	}
	return rangeOf(st, home), nil
}

// namedHome returns the home of a key that its writer named. The catalog is given, so that all keys of a
// batch are checked against one state.
func namedHome(st *catalog.State, region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	const op rhumb.Op = "route.Named"
	t, class, err := tableOf(op, st, table)
	if err != nil {
		return rhumb.RangeID{}, err
	}
	if err := checkName(t, name); err != nil {
		return rhumb.RangeID{}, err
	}
	block, ok := st.HashBlock(region, class.ID)
	if !ok {
		// The block of a class is created once the region has enough nodes for all replicas.
		if r, known := st.Region(region); known {
			return rhumb.RangeID{}, rhumb.Ef(op, rhumb.Unavailable, "region %s has fewer live nodes than the %d replicas of table %s, so it holds none of it; start more nodes there, or write to another region", r.Name, class.Settings.Replicas, t.Name)
		}
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.NotFound, "region %s does not exist; list regions with `rhumb region ls`", region)
	}
	return rhumb.RangeID{Region: region, Slot: block.First + keys.HashSlot(name, t.Colocate, class.Settings.NameSlots())}, nil
}

// rangeOf returns the range that holds a home, or the home itself if this node knows no such range.
func rangeOf(st *catalog.State, home rhumb.RangeID) rhumb.RangeID {
	if r, ok := st.RangeOf(home); ok {
		return r.ID
	}
	return home
}

// Batch returns the range that the names of all mutations share. It rejects a batch whose names
// have several homes: a range with several homes may be split at any time.
func (r Router) Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error) {
	const op rhumb.Op = "route.Batch"
	st := r.State()
	var id rhumb.RangeID
	for i := range b.Mutations {
		m := &b.Mutations[i]
		home, err := namedHome(st, region, m.Table, m.Name)
		if err != nil {
			return home, err
		}
		// The batch is atomic within one range, so the client has to decide which writes belong together.
		if i > 0 && home != id {
			return home, rhumb.Ef(op, rhumb.InvalidArgument, "%s, has the home %s, but the first mutation %s, and a batch writes one home; begin the names with a common part in a table with --colocate, or write twice", b.Describe(i), home, id)
		}
		id = home
	}
	return rangeOf(st, id), nil
}

// Class returns the class of a table.
func (r Router) Class(table rhumb.TableID) (*rhumb.Class, error) {
	_, c, err := tableOf("route.Class", r.State(), table)
	return c, err
}

// tableOf returns a table and its class.
func tableOf(op rhumb.Op, st *catalog.State, id rhumb.TableID) (*rhumb.Table, *rhumb.Class, error) {
	t, ok := st.Table(id)
	if !ok && st.IsTableDropped(id) {
		return nil, nil, rhumb.Ef(op, rhumb.NotFound, "table %s was dropped", id)
	}
	if !ok {
		// The revision shows an operator whether this node lags.
		return nil, nil, rhumb.Ef(op, rhumb.NotFound, "table %s does not exist on this node, whose catalog has revision %d; create the table, or retry if it is new", id, st.Revision())
	}
	c, ok := st.Class(t.Class)
	// A catalog has the class of each of its tables, so this is a bug.
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.Internal, "table %s has no class %s; report this", t.Name, t.Class)
	}
	return t, c, nil
}

// Range returns the record of the range that holds a home, or NotFound. The id of a range is the first
// of its homes.
func (r Router) Range(id rhumb.RangeID) (*rhumb.Range, error) {
	d, ok := r.State().RangeOf(id)
	if !ok {
		return nil, &rhumb.Error{Op: "route.Range", Kind: rhumb.NotFound, Range: id, Msg: "the range does not exist on this node; retry if it is new"}
	}
	return d, nil
}

// Hashed reports whether a range holds named keys of a class whose ranges can be split.
func (r Router) Hashed(id rhumb.RangeID) bool {
	st := r.State()
	b, ok := st.BlockOf(id)
	if !ok || b.Node != rhumb.NoNode {
		return false
	}
	c, ok := st.Class(b.Class)
	return ok && c.Settings.Buckets > 0
}

// SameRegion reports whether two nodes are in the same region. It returns false if it does not know
// one of them.
func (r Router) SameRegion(a, b rhumb.NodeID) bool {
	st := r.State()
	x, ok1 := st.Node(a)
	y, ok2 := st.Node(b)
	return ok1 && ok2 && x.Region == y.Region
}
