// Package route finds where a request belongs: from a table and a name to a range, and from a range to the node that
// serves it. It only reads the catalog.
package route

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Router reads the newest catalog of a node.
type Router struct{ State func() *catalog.State }

// Named gives the range of a named key whose home is in a region.
func (r Router) Named(region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	return named(r.State(), region, table, name)
}

func named(st *catalog.State, region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error) {
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
		if r, known := st.Region(region); known {
			return rhumb.RangeID{}, rhumb.Ef(op, rhumb.Unavailable, "region %s has fewer live nodes than the %d replicas of table %s, so it holds none of it; start more nodes there, or write to another region", r.Name, class.Settings.Replicas, t.Name)
		}
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.NotFound, "region %s does not exist", region)
	}
	return rhumb.RangeID{Region: region, Slot: block.First + keys.HashSlot(name, t.Colocate, class.Settings.HashSlots)}, nil
}

// Batch gives the range that all mutations of a batch share by their names, or refuses them.
func (r Router) Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error) {
	const op rhumb.Op = "route.Batch"
	st := r.State()
	var id rhumb.RangeID
	for i := range b.Mutations {
		m := &b.Mutations[i]
		home, err := named(st, region, m.Table, m.Name)
		if err != nil {
			return home, err
		}
		if i > 0 && home != id {
			return home, rhumb.Ef(op, rhumb.InvalidArgument, "mutation %d lives in range %s, mutation 0 in range %s: a batch is atomic within one range; give the names a common part and the tables a colocate byte, or write twice", i, home, id)
		}
		id = home
	}
	return id, nil
}

// Class gives the class of a table.
func (r Router) Class(table rhumb.TableID) (*rhumb.Class, error) {
	_, c, err := tableOf("route.Class", r.State(), table)
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
func (r Router) Range(id rhumb.RangeID) (*rhumb.Range, error) {
	d, ok := r.State().Range(id)
	if !ok {
		return nil, &rhumb.Error{Op: "route.Range", Kind: rhumb.NotFound, Range: id, Msg: "the range does not exist on this node; retry if it is new"}
	}
	return d, nil
}

// SameRegion reports whether two nodes stand in one region.
func (r Router) SameRegion(a, b rhumb.NodeID) bool {
	st := r.State()
	x, ok1 := st.Node(a)
	y, ok2 := st.Node(b)
	return ok1 && ok2 && x.Region == y.Region
}
