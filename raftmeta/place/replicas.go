package place

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Complete fills in the placements that a command leaves open: in CreateClass, CreateTable,
// EnsureRegionBlocks, OpenSlot and RemoveRegion, also within a Batch. It returns all other commands unchanged. If
// no region or too few nodes fit, the placement stays open; the catalog then rejects the command
// and reports what would fit.
//
// The metadata leader completes the commands proposed to it. Proposers call Complete only to choose
// placements themselves. Nodes to avoid get replicas only if there are too few others: their disks are full.
func Complete(s *catalog.State, cmd catalog.Command, avoid ...rhumb.NodeID) catalog.Command {
	switch c := cmd.(type) {
	case catalog.CreateClass:
		if _, exists := s.ClassBySettings(s.NewSettings(c.Settings)); !exists && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, c.Settings, nil, avoid)
		}
		return c
	case catalog.CreateTable:
		if _, exists := s.ClassBySettings(s.NewSettings(c.Settings)); !exists && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, c.Settings, nil, avoid)
		}
		return c
	case catalog.EnsureRegionBlocks:
		if class, ok := s.Class(c.Class); ok && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, class.Settings, class, avoid)
		}
		return c
	case catalog.OpenSlot:
		if len(c.Replicas) == 0 {
			c.Replicas = slotReplicas(s, c.Node, c.Class, avoid)
		}
		return c
	case catalog.RemoveRegion:
		if c.Force && len(c.Restarts) == 0 && s.Has(rhumb.FeatureRestartEmpty) {
			c.Restarts = placeEmpty(s, c, avoid)
		}
		return c
	case catalog.Batch:
		items := make([]catalog.Command, len(c.Commands))
		for i, item := range c.Commands {
			items[i] = Complete(s, item, avoid...)
		}
		return catalog.Batch{Commands: items}
	}
	return cmd
}

// MissingBlocks returns the commands that create blocks of each class in regions that have enough
// nodes for it and no block yet. Nodes to avoid are those of Complete.
func MissingBlocks(s *catalog.State, avoid ...rhumb.NodeID) []catalog.Command {
	var out []catalog.Command
	for class := range s.Classes() {
		if class.Dropping {
			continue
		}
		if ps := placeHashSlots(s, class.Settings, class, avoid); len(ps) > 0 {
			out = append(out, catalog.EnsureRegionBlocks{Class: class.ID, Placements: ps})
		}
	}
	return out
}

// RemoveClasses returns, for each class whose last table was dropped, the next step of its removal.
func RemoveClasses(s *catalog.State) []catalog.Command {
	var out []catalog.Command
	for class := range s.Classes() {
		if class.Dropping {
			out = append(out, catalog.RemoveClass{Class: class.ID})
		}
	}
	return out
}

// placeHashSlots chooses replicas for the hash slots of a class in every region with enough live nodes.
// If the class exists already, it skips regions that have a block of it.
func placeHashSlots(s *catalog.State, settings rhumb.ClassSettings, class *rhumb.Class, avoid []rhumb.NodeID) []catalog.Placement {
	var out []catalog.Placement
	if settings.Validate() != nil {
		return nil
	}
	var l *load
	for r := range s.Regions() {
		if class != nil {
			if _, has := s.HashBlock(r.ID, class.ID); has {
				continue
			}
		}
		// A region that is being removed gets no ranges. Its pool would be that of another region.
		if r.Into != 0 {
			continue
		}
		pool := newPool(s, r.ID, settings).avoiding(avoid)
		if !pool.suffices() {
			continue
		}
		if l == nil {
			l = measureLoad(s)
		}
		p := catalog.Placement{Region: r.ID}
		// load counts each choice, so the following slots prefer other nodes.
		for range settings.HashSlots {
			primary := l.leastPrimaries(pool.home())
			p.Replicas = append(p.Replicas, l.spreadReplicas(primary, pool))
		}
		out = append(out, p)
	}
	return out
}

// placeEmpty chooses nodes for the ranges that restart empty when a region is given up. It returns none if one of them finds too few.
func placeEmpty(s *catalog.State, c catalog.RemoveRegion, avoid []rhumb.NodeID) (out []catalog.RangeCopies) {
	// Whether the region may be given up at all is decided by the catalog, on the same state: this function only fills in nodes. All
	// ranges get nodes or none does, because the command is carried out as a whole.
	lost, _ := s.LostRanges(c.Region)
	// load counts each choice, so the ranges are spread over the nodes of the region.
	l := measureLoad(s)
	for _, r := range s.BrokenRanges(lost) {
		class, _ := s.Class(r.Class)
		// Not the region of the range: the mark that names another one is set by the command.
		pool := newPool(s, c.Into, class.Settings).avoiding(avoid)
		if !pool.suffices() {
			return nil
		}
		out = append(out, catalog.RangeCopies{Range: r.ID, Replicas: l.spreadReplicas(l.leastPrimaries(pool.home()), pool)})
	}
	return out
}

// slotReplicas returns the replicas of a slot that the node is about to open.
func slotReplicas(s *catalog.State, id rhumb.NodeID, class rhumb.ClassID, avoid []rhumb.NodeID) []rhumb.NodeID {
	n, ok := s.Node(id)
	c, found := s.Class(class)
	if !ok || !found || n.State != rhumb.NodeLive || n.Witness {
		return nil
	}
	// The node itself is not avoided: it is to be the primary.
	pool := newPool(s, n.Region, c.Settings).avoiding(without(avoid, []rhumb.NodeID{id}))
	// Outside the regions to which the class is confined, and where too few nodes fit, the slot stays closed.
	if !pool.suffices() {
		return nil
	}
	return measureLoad(s).spreadReplicas(n, pool)
}

// load holds the number of roles of each node.
type load struct {
	primaries map[rhumb.NodeID]int
	replicas  map[rhumb.NodeID]int
}

// measureLoad returns, for each node, the number of ranges that prefer it as primary and of ranges that
// it holds.
func measureLoad(s *catalog.State) *load {
	l := &load{make(map[rhumb.NodeID]int), make(map[rhumb.NodeID]int)}
	for r := range s.Ranges() {
		l.primaries[r.Preferred]++
		for _, id := range r.Replicas {
			l.replicas[id]++
		}
	}
	return l
}

// leastPrimaries returns the node with the fewest primaries, then the fewest replicas, then the
// lowest id.
func (l *load) leastPrimaries(nodes []*rhumb.Node) *rhumb.Node {
	return slices.MinFunc(nodes, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(l.primaries[a.ID], l.primaries[b.ID]),
			cmp.Compare(l.replicas[a.ID], l.replicas[b.ID]),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// spreadReplicas returns the replicas of a range, the primary first, and counts them in l. It returns fewer
// if there are too few nodes.
func (l *load) spreadReplicas(primary *rhumb.Node, p *pool) []rhumb.NodeID {
	chosen := []*rhumb.Node{primary}
	for len(chosen) < p.settings.Replicas {
		next := l.nextNode(chosen, p)
		if next == nil {
			break
		}
		chosen = append(chosen, next)
	}
	l.primaries[primary.ID]++
	out := make([]rhumb.NodeID, len(chosen))
	for i, c := range chosen {
		out[i] = c.ID
		l.replicas[c.ID]++
	}
	return out
}

// nextNode returns the best node of a pool to add to chosen. With survival goal region it takes the nearest
// region that may hold one more replica, beginning with the home. Within a region it prefers the least used
// zone, then the nearest to the node that is replaced, if the pool names one, then the fewest replicas, then the nearest to the
// first chosen one, then the lowest id. It returns nil if no node is left. Nodes in without are not considered.
func (l *load) nextNode(chosen []*rhumb.Node, p *pool, without ...rhumb.NodeID) *rhumb.Node {
	type zone struct {
		region rhumb.RegionID
		name   string
	}
	zones := make(map[zone]int)
	regions := make(map[rhumb.RegionID]int)
	for _, c := range chosen {
		zones[zone{c.Region, c.Zone}]++
		regions[c.Region]++
	}
	free := slices.DeleteFunc(slices.Clone(p.nodes), func(n *rhumb.Node) bool {
		return regions[n.Region] >= p.settings.RegionReplicasMax() || slices.Contains(without, n.ID) || slices.ContainsFunc(chosen, func(c *rhumb.Node) bool { return c.ID == n.ID })
	})
	if len(free) == 0 {
		return nil
	}
	// Zones come before load: replicas in one zone fail together, while load only costs speed.
	return slices.MinFunc(free, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(p.micros[a.Region], p.micros[b.Region]),
			cmp.Compare(a.Region, b.Region),
			cmp.Compare(zones[zone{a.Region, a.Zone}], zones[zone{b.Region, b.Zone}]),
			p.compareNear(a, b),
			cmp.Compare(l.replicas[a.ID], l.replicas[b.ID]),
			cmp.Compare(metresTo(chosen, a), metresTo(chosen, b)),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// pool holds the live nodes that may hold replicas of the ranges of a class in one home region.
type pool struct {
	region   rhumb.RegionID
	settings rhumb.ClassSettings
	nodes    []*rhumb.Node
	// micros is the round trip from the home region to each region of the nodes.
	micros map[rhumb.RegionID]int64
	// near, if not nil, is the node that is replaced.
	near *rhumb.Node
}

// nearTo returns the pool for the replacement of a node.
func (p *pool) nearTo(n *rhumb.Node) *pool {
	next := *p
	next.near = n
	return &next
}

// compareNear orders two nodes by their distance from the node that is replaced: first one in its zone, then by metres.
func (p *pool) compareNear(a, b *rhumb.Node) int {
	if p.near == nil {
		return 0
	}
	away := func(n *rhumb.Node) int64 {
		// Every distance on the globe is shorter.
		const otherZone = 1 << 40
		if n.Region != p.near.Region || n.Zone != p.near.Zone {
			return otherZone + geo.Metres(p.near.Location, n.Location)
		}
		return geo.Metres(p.near.Location, n.Location)
	}
	return cmp.Compare(away(a), away(b))
}

// pools caches pools by home region and class.
type pools map[poolKey]*pool

type poolKey struct {
	region rhumb.RegionID
	class  rhumb.ClassID
}

// of returns the pool for a range of a class.
func (p pools) of(s *catalog.State, r *rhumb.Range, class *rhumb.Class) *pool {
	key := poolKey{r.ID.Region, class.ID}
	if p[key] == nil {
		p[key] = newPool(s, r.ID.Region, class.Settings)
	}
	return p[key]
}

// avoiding returns the pool without nodes to avoid, if it suffices without them, and the whole pool otherwise.
func (p *pool) avoiding(nodes []rhumb.NodeID) *pool {
	next := *p
	next.nodes = slices.DeleteFunc(slices.Clone(p.nodes), func(n *rhumb.Node) bool { return slices.Contains(nodes, n.ID) })
	if !next.suffices() {
		return p
	}
	return &next
}

// newPool returns the pool of a class in a home region. It is empty if the class is confined to other regions. The ranges of a
// region that is being removed, or was, belong to the region that takes them.
func newPool(s *catalog.State, home rhumb.RegionID, settings rhumb.ClassSettings) *pool {
	return newPoolOf(s, home, settings, func(n *rhumb.Node) bool { return s.TakesCopies(n.ID) })
}

// newPoolOf returns the pool of a class in a home region with the nodes that fit.
func newPoolOf(s *catalog.State, home rhumb.RegionID, settings rhumb.ClassSettings, fits func(*rhumb.Node) bool) *pool {
	home = s.HostRegion(home)
	p := &pool{region: home, settings: settings, micros: make(map[rhumb.RegionID]int64)}
	at, ok := s.Region(home)
	if !ok || !settings.Regions.Has(at.Name) {
		return p
	}
	// Residency names regions, and nodes have their numbers.
	names := make(map[rhumb.RegionID]string)
	for r := range s.Regions() {
		names[r.ID] = r.Name
		p.micros[r.ID] = s.RegionMicros(home, r.ID)
	}
	for n := range s.Nodes() {
		if fits(n) && settings.MayHold(at.Name, names[n.Region]) {
			p.nodes = append(p.nodes, n)
		}
	}
	return p
}

// home returns the nodes of the home region.
func (p *pool) home() []*rhumb.Node {
	return slices.DeleteFunc(slices.Clone(p.nodes), func(n *rhumb.Node) bool { return n.Region != p.region })
}

// suffices reports whether the pool has room for all replicas of a new range, one of them at home.
func (p *pool) suffices() bool { return p.hasRoom() && len(p.home()) > 0 }

// hasRoom reports whether the pool has room for all replicas of a range.
func (p *pool) hasRoom() bool {
	// Nodes beyond the bound of their region are no room.
	count := make(map[rhumb.RegionID]int)
	room := 0
	for _, n := range p.nodes {
		if count[n.Region]++; count[n.Region] <= p.settings.RegionReplicasMax() {
			room++
		}
	}
	return room >= p.settings.Replicas
}

// metresTo returns the distance of a node from the first chosen one.
func metresTo(chosen []*rhumb.Node, n *rhumb.Node) int64 {
	if len(chosen) == 0 {
		return 0
	}
	return geo.Metres(chosen[0].Location, n.Location)
}
