// Package route finds where a request belongs: from a table and a name to a range, and from a range to the node that
// serves it. It only reads the catalog.
package route

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Named gives the range of a named key whose home is in a region.
func Named(st *catalog.State, region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	const op rhumb.Op = "route.Named"
	t, class, err := tableOf(op, st, table)
	if err != nil {
		return rhumb.RangeID{}, err
	}
	block, ok := st.HashBlock(region, class.ID)
	if !ok {
		if r, known := st.Region(region); known {
			return rhumb.RangeID{}, rhumb.Ef(op, rhumb.Unavailable, "region %s has fewer live nodes than the %d replicas of table %s, so it holds none of it; start more nodes there, or write to another region", r.Name, class.Settings.Replicas, t.Name)
		}
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.NotFound, "region %s does not exist", region)
	}
	return rhumb.RangeID{Region: region, Slot: block.First + keys.HashSlot(name, t.Colocate, class.Settings.HashSlots)}, nil
}

// Batch gives the range that all mutations of a batch share by their names, or refuses them.
func Batch(st *catalog.State, region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error) {
	const op rhumb.Op = "route.Batch"
	var id rhumb.RangeID
	for i := range b.Mutations {
		m := &b.Mutations[i]
		r, err := Named(st, region, m.Table, m.Name)
		if err != nil {
			return r, err
		}
		if i > 0 && r != id {
			return r, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d lives in range %s, mutation 0 in range %s: a batch is atomic within one range; give the names a common part and the tables a colocate byte, or write twice", i, r, id)
		}
		id = r
	}
	return id, nil
}

// Class gives the class of a table.
func Class(st *catalog.State, table rhumb.TableID) (*rhumb.Class, error) {
	_, c, err := tableOf("route.Class", st, table)
	return c, err
}

func tableOf(op rhumb.Op, st *catalog.State, id rhumb.TableID) (*rhumb.Table, *rhumb.Class, error) {
	t, ok := st.Table(id)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.NotFound, "table %s does not exist on this node (revision %d); create it, or retry if it is new", id, st.Revision())
	}
	c, ok := st.Class(t.Class)
	if !ok {
		return nil, nil, rhumb.Ef(op, rhumb.Internal, "table %s has no class %s", t.Name, t.Class)
	}
	return t, c, nil
}

// Range gives the record of a range, or NotFound.
func Range(st *catalog.State, id rhumb.RangeID) (*rhumb.Range, error) {
	r, ok := st.Range(id)
	if !ok {
		return nil, &rhumb.Error{Op: "route.Range", Kind: rhumb.NotFound, Range: id, Msg: "the range does not exist on this node; retry if it is new"}
	}
	return r, nil
}

// SameRegion reports whether two nodes stand in one region.
func SameRegion(st *catalog.State, a, b rhumb.NodeID) bool {
	x, ok1 := st.Node(a)
	y, ok2 := st.Node(b)
	return ok1 && ok2 && x.Region == y.Region
}
