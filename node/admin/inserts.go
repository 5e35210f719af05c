package admin

import (
	"context"
	"math"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// awayFactor is the number of shard sizes that a node holds of a class before it sends inserts to
// other nodes (TippyDB, section 3, "Sharding"). The other node must hold at least one shard less,
// so that two nodes do not send inserts back and forth.
const awayFactor = 2

// ActiveSlot returns the range for inserts of a class that this node receives: its newest open
// slot, or the next slot if that one has reached the shard size (TippyDB, section 3.2), or the slot
// of a less loaded node in the region.
func (a *Admin) ActiveSlot(ctx context.Context, class rhumb.ClassID) (rhumb.RangeID, error) {
	const op rhumb.Op = "admin.ActiveSlot"
	if id, ok := a.remoteSlot(ctx, class); ok {
		return id, nil
	}
	id, _, full, err := a.activeSlot(op, a.cfg.Self, class)
	if err != nil || !full {
		return id, err
	}
	return a.openSlot(ctx, op, a.cfg.Self, class)
}

// openTries bounds how often a slot is opened whose copies were placed on a node that was fenced before the command was applied. The next
// command places them anew.
const openTries = 3

// openSlot opens the next slot of a node, unless another caller has done so already.
func (a *Admin) openSlot(ctx context.Context, op rhumb.Op, n rhumb.NodeID, class rhumb.ClassID) (rhumb.RangeID, error) {
	a.open.Lock()
	defer a.open.Unlock()
	for try := 1; ; try++ {
		// Callers that waited for the lock find the slot that its holder opened.
		id, opened, full, err := a.activeSlot(op, n, class)
		if err != nil || !full {
			return id, err
		}
		// Other nodes may open slots of n, too (remoteSlot). opened makes the command conditional: if n
		// has more slots already, the result is the newest of them.
		res, err := a.proposeCommand(ctx, op, catalog.OpenSlot{Node: n, Class: class, Opened: opened})
		switch {
		case err == nil:
			return res.Range.ID, nil
		case rhumb.KindOf(err) != rhumb.Conflict:
			return rhumb.RangeID{}, err
		// The insert is not in conflict with anything: another node can take it, or this one a little later.
		case try == openTries:
			return rhumb.RangeID{}, rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
	}
}

// activeSlot returns the newest slot of a node, how many slots the node has opened, and whether the
// next one is needed. Only the node itself knows the size of its slot; the slot of another node
// counts as full if that node does not serve it.
func (a *Admin) activeSlot(op rhumb.Op, n rhumb.NodeID, class rhumb.ClassID) (id rhumb.RangeID, opened uint32, full bool, err error) {
	st := a.cfg.Meta.State()
	c, ok := st.Class(class)
	if !ok {
		return id, 0, false, rhumb.Ef(op, rhumb.NotFound, "class %s does not exist on this node; retry if the table is new", class)
	}
	id, opened = st.ActiveSlot(n, class)
	full = opened == 0 || !isServing(st, n, id) || n == a.cfg.Self && a.cfg.Sizes.DataBytes(id) >= c.Settings.ShardSize
	return id, opened, full, nil
}

// isServing reports whether a node is the primary of the range. Only then may it name keys in it:
// after a failover, inserts use a new slot until the range returns.
func isServing(st *catalog.State, n rhumb.NodeID, id rhumb.RangeID) bool {
	r, ok := st.Range(id)
	return ok && r.Primary == n
}

// remoteSlot returns the slot of another node if inserts of the class should go there. If the slot cannot
// be opened there, inserts stay here.
func (a *Admin) remoteSlot(ctx context.Context, class rhumb.ClassID) (id rhumb.RangeID, ok bool) {
	const op rhumb.Op = "admin.ActiveSlot"
	n, ok := a.lighterNode(class)
	if !ok {
		return id, false
	}
	id, _, full, err := a.activeSlot(op, n, class)
	if err == nil && full {
		id, err = a.openSlot(ctx, op, n, class)
	}
	return id, err == nil
}

// lighterNode returns the least loaded node of the region, and false unless this node is so loaded that
// it sends inserts there.
func (a *Admin) lighterNode(class rhumb.ClassID) (least rhumb.NodeID, ok bool) {
	st := a.cfg.Meta.State()
	c, there := st.Class(class)
	self, here := st.Node(a.cfg.Self)
	if a.cfg.Loads == nil || !there || !here {
		return least, false
	}
	// A node that drains or leaves opens no slots of its own, whatever it holds.
	leaves := !st.TakesCopies(a.cfg.Self)
	own, known := a.cfg.Loads.Load(a.cfg.Self, class)
	if !leaves && (!known || own <= awayFactor*c.Settings.ShardSize) {
		return least, false
	}
	// The difference of a whole shard keeps two nodes from sending inserts back and forth.
	most := own - c.Settings.ShardSize
	if leaves {
		most = math.MaxInt64
	}
	region := insertRegion(st, self)
	for n := range st.Nodes() {
		if n.ID == a.cfg.Self || n.Region != region || !st.TakesCopies(n.ID) {
			continue
		}
		// The condition on ok admits a node with exactly one shard less; afterwards only lighter ones win.
		if load, known := a.cfg.Loads.Load(n.ID, class); (known || leaves) && (load < most || !ok && load == most) {
			least, most, ok = n.ID, load, true
		}
	}
	return least, ok
}

// insertRegion returns the region whose nodes take the inserts that a node sends away: its own, or for a witness without a node with data in
// its region the nearest one that has some.
func insertRegion(st *catalog.State, self *rhumb.Node) rhumb.RegionID {
	if !self.Witness {
		return self.Region
	}
	// Distances between regions are measured, and the same on all nodes, so that all witnesses of a region send their inserts to one
	// region. Records of inserts have the region that names them in their keys.
	best := self.Region
	for n := range st.Nodes() {
		switch {
		case !st.TakesCopies(n.ID):
		case n.Region == self.Region:
			return self.Region
		case best == self.Region || st.RegionMicros(self.Region, n.Region) < st.RegionMicros(self.Region, best):
			best = n.Region
		}
	}
	return best
}

// Takes returns a nil error if this node may name keys in the range: the slot is in a block of its
// own and not full, and no other node of the region should take the keys. Otherwise the error is
// NotPrimary, and instead is the range that accepts inserts.
func (a *Admin) Takes(ctx context.Context, id rhumb.RangeID) (instead rhumb.RangeID, err error) {
	const op rhumb.Op = "admin.Takes"
	st := a.cfg.Meta.State()
	block, ok := st.BlockOf(id)
	if !ok {
		return instead, &rhumb.Error{Op: op, Kind: rhumb.NotFound, Range: id, Msg: "the slot is in no block of a table; leave the range out to let the server choose"}
	}
	if _, away := a.lighterNode(block.Class); block.Node == a.cfg.Self && !away {
		if c, ok := st.Class(block.Class); ok && a.cfg.Sizes.DataBytes(id) < c.Settings.ShardSize {
			return id, nil
		}
	}
	instead, err = a.ActiveSlot(ctx, block.Class)
	if err != nil {
		return instead, err
	}
	// The slot was not full for another caller, or the load has changed since the check above.
	if instead == id {
		return instead, nil
	}
	return instead, &rhumb.Error{Op: op, Kind: rhumb.NotPrimary, Range: id, Node: a.cfg.Self, Msg: "this node takes no more inserts in the slot; use range " + instead.String()}
}
