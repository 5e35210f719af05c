package admin

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// awayFactor is how many times the shard size a node holds of a class before it sends inserts to others (TippyDB,
// section 3, "Sharding"). It sends them to nodes that hold at least a shard less, so that two do not send them to and fro.
const awayFactor = 2

// ActiveSlot gives the range for inserts of a class that come to this node: its newest open slot, or the next when that
// has reached the shard size (TippyDB, section 3.2), or the slot of a less loaded node of the region.
func (a *Admin) ActiveSlot(ctx context.Context, class rhumb.ClassID) (rhumb.RangeID, error) {
	const op rhumb.Op = "admin.ActiveSlot"
	if id, ok := a.away(ctx, class); ok {
		return id, nil
	}
	id, _, full, err := a.active(op, a.cfg.Self, class)
	if err != nil || !full {
		return id, err
	}
	return a.openSlot(ctx, op, a.cfg.Self, class)
}

// openSlot opens the next slot of a node, unless another caller has done so meanwhile.
func (a *Admin) openSlot(ctx context.Context, op rhumb.Op, n rhumb.NodeID, class rhumb.ClassID) (rhumb.RangeID, error) {
	a.open.Lock()
	defer a.open.Unlock()
	id, opened, full, err := a.active(op, n, class)
	if err != nil || !full {
		return id, err
	}
	res, err := a.propose(ctx, op, catalog.OpenSlot{Node: n, Class: class, Opened: opened})
	if err != nil {
		return rhumb.RangeID{}, err
	}
	return res.Range.ID, nil
}

// active gives the newest slot of a node, how many it has opened, and whether the next is wanted. Only the node itself
// knows the size of its slot: of others it is full when they do not serve it.
func (a *Admin) active(op rhumb.Op, n rhumb.NodeID, class rhumb.ClassID) (id rhumb.RangeID, opened uint32, full bool, err error) {
	st := a.cfg.Meta.State()
	c, ok := st.Class(class)
	if !ok {
		return id, 0, false, rhumb.Ef(op, rhumb.NotFound, "class %s does not exist", class)
	}
	id, opened = st.ActiveSlot(n, class)
	full = opened == 0 || !serves(st, n, id) || n == a.cfg.Self && a.cfg.Sizes.DataBytes(id) >= c.Settings.ShardSize
	return id, opened, full, nil
}

// serves reports whether a node is the range's primary. It may name keys only then: after a failover inserts go to a new
// slot until the range comes home.
func serves(st *catalog.State, n rhumb.NodeID, id rhumb.RangeID) bool {
	r, ok := st.Range(id)
	return ok && r.Primary == n
}

// away gives the slot of the node that inserts of a class go to when that is not this node. A slot that cannot be opened
// there leaves them here.
func (a *Admin) away(ctx context.Context, class rhumb.ClassID) (id rhumb.RangeID, ok bool) {
	const op rhumb.Op = "admin.away"
	n, ok := a.lighter(class)
	if !ok {
		return id, false
	}
	id, _, full, err := a.active(op, n, class)
	if err == nil && full {
		id, err = a.openSlot(ctx, op, n, class)
	}
	return id, err == nil
}

// lighter gives the least loaded node of the region, ok only when this node holds so much that it sends inserts there.
func (a *Admin) lighter(class rhumb.ClassID) (least rhumb.NodeID, ok bool) {
	st := a.cfg.Meta.State()
	c, there := st.Class(class)
	self, here := st.Node(a.cfg.Self)
	if a.cfg.Loads == nil || !there || !here {
		return least, false
	}
	own, known := a.cfg.Loads.Load(a.cfg.Self, class)
	if !known || own <= awayFactor*c.Settings.ShardSize {
		return least, false
	}
	most := own - c.Settings.ShardSize
	for n := range st.Nodes() {
		if n.ID == a.cfg.Self || n.Region != self.Region || n.State != rhumb.NodeLive {
			continue
		}
		if load, known := a.cfg.Loads.Load(n.ID, class); known && (load < most || !ok && load == most) {
			least, most, ok = n.ID, load, true
		}
	}
	return least, ok
}

// Takes is nil when this node may name keys in a range: the slot is of a block of its own and not full, and no other node
// of the region should have the keys instead. Otherwise the error is NotPrimary, and instead is the range that takes
// inserts.
func (a *Admin) Takes(ctx context.Context, id rhumb.RangeID) (instead rhumb.RangeID, err error) {
	const op rhumb.Op = "admin.Takes"
	st := a.cfg.Meta.State()
	block, ok := st.BlockOf(id)
	if !ok {
		return instead, &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: id, Msg: "the slot lies in no block"}
	}
	if _, away := a.lighter(block.Class); block.Node == a.cfg.Self && !away {
		if c, ok := st.Class(block.Class); ok && a.cfg.Sizes.DataBytes(id) < c.Settings.ShardSize {
			return id, nil
		}
	}
	instead, err = a.ActiveSlot(ctx, block.Class)
	if err != nil {
		return instead, err
	}
	if instead == id {
		return instead, nil
	}
	return instead, &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: id, Node: a.cfg.Self, Msg: "the slot takes no more inserts here; range " + instead.String() + " does"}
}
