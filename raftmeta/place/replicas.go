package place

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Complete fills in the placements that a command leaves open: in CreateClass, CreateTable,
// EnsureRegionBlocks and OpenSlot, also within a Batch. It returns all other commands unchanged. If
// no region or too few nodes fit, the placement stays open; the catalog then rejects the command
// and reports what would fit.
//
// The metadata leader completes the commands proposed to it. Proposers call Complete only to choose
// placements themselves.
func Complete(s *catalog.State, cmd catalog.Command) catalog.Command {
	switch c := cmd.(type) {
	case catalog.CreateClass:
		if _, exists := s.ClassBySettings(s.NewSettings(c.Settings)); !exists && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, c.Settings, nil)
		}
		return c
	case catalog.CreateTable:
		if _, exists := s.ClassBySettings(s.NewSettings(c.Settings)); !exists && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, c.Settings, nil)
		}
		return c
	case catalog.EnsureRegionBlocks:
		if class, ok := s.Class(c.Class); ok && len(c.Placements) == 0 {
			c.Placements = placeHashSlots(s, class.Settings, class)
		}
		return c
	case catalog.OpenSlot:
		if len(c.Replicas) == 0 {
			c.Replicas = slotReplicas(s, c.Node, c.Class)
		}
		return c
	case catalog.Batch:
		items := make([]catalog.Command, len(c.Commands))
		for i, item := range c.Commands {
			items[i] = Complete(s, item)
		}
		return catalog.Batch{Commands: items}
	}
	return cmd
}

// MissingBlocks returns the commands that create blocks of each class in regions that have enough
// nodes for it and no block yet.
func MissingBlocks(s *catalog.State) []catalog.Command {
	var out []catalog.Command
	for class := range s.Classes() {
		if class.Dropping {
			continue
		}
		if ps := placeHashSlots(s, class.Settings, class); len(ps) > 0 {
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
func placeHashSlots(s *catalog.State, settings rhumb.ClassSettings, class *rhumb.Class) []catalog.Placement {
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
		nodes := liveNodes(s, r.ID)
		if len(nodes) < settings.Replicas {
			continue
		}
		if l == nil {
			l = measureLoad(s)
		}
		p := catalog.Placement{Region: r.ID}
		// load counts each choice, so the following slots prefer other nodes.
		for range settings.HashSlots {
			primary := l.leastPrimaries(nodes)
			p.Replicas = append(p.Replicas, l.spreadReplicas(primary, nodes, settings.Replicas))
		}
		out = append(out, p)
	}
	return out
}

// slotReplicas returns the replicas of a slot that the node is about to open.
func slotReplicas(s *catalog.State, id rhumb.NodeID, class rhumb.ClassID) []rhumb.NodeID {
	n, ok := s.Node(id)
	c, found := s.Class(class)
	if !ok || !found || n.State != rhumb.NodeLive {
		return nil
	}
	return measureLoad(s).spreadReplicas(n, liveNodes(s, n.Region), c.Settings.Replicas)
}

// liveNodes returns the live nodes of a region in ascending order of their ids.
func liveNodes(s *catalog.State, in rhumb.RegionID) []*rhumb.Node {
	var out []*rhumb.Node
	for n := range s.Nodes() {
		if n.Region == in && s.TakesCopies(n.ID) {
			out = append(out, n)
		}
	}
	return out
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

// spreadReplicas returns n replicas, the primary first, and counts them in l. It returns fewer if there are
// too few nodes.
func (l *load) spreadReplicas(primary *rhumb.Node, nodes []*rhumb.Node, n int) []rhumb.NodeID {
	chosen := []*rhumb.Node{primary}
	for len(chosen) < n {
		next := l.nextNode(chosen, nodes)
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

// nextNode returns the best node to add to chosen: in the least used zone, then with the fewest
// replicas, then nearest to the first one, then with the lowest id. It returns nil if all are
// chosen.
func (l *load) nextNode(chosen, nodes []*rhumb.Node) *rhumb.Node {
	zones := make(map[string]int)
	for _, c := range chosen {
		zones[c.Zone]++
	}
	free := slices.DeleteFunc(slices.Clone(nodes), func(n *rhumb.Node) bool {
		return slices.ContainsFunc(chosen, func(c *rhumb.Node) bool { return c.ID == n.ID })
	})
	if len(free) == 0 {
		return nil
	}
	// Zones come before load: replicas in one zone fail together, while load only costs speed.
	return slices.MinFunc(free, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(zones[a.Zone], zones[b.Zone]),
			cmp.Compare(l.replicas[a.ID], l.replicas[b.ID]),
			cmp.Compare(metresTo(chosen, a), metresTo(chosen, b)),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// metresTo returns the distance of a node from the first chosen one.
func metresTo(chosen []*rhumb.Node, n *rhumb.Node) int64 {
	if len(chosen) == 0 {
		return 0
	}
	return geo.Metres(chosen[0].Location, n.Location)
}
