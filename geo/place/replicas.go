package place

import (
	"cmp"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Complete fills in the placements that a command leaves open: those of CreateClass, CreateTable, EnsureRegionBlocks and
// OpenSlot, also within a Batch. All other commands come back as they are. Where no region or not enough nodes fit, the
// placement stays open and the catalog refuses the command and says what fits.
//
// The metadata leader completes what is proposed to it; a proposer needs to do so only to choose for itself.
func Complete(s *catalog.State, cmd catalog.Command) catalog.Command {
	switch c := cmd.(type) {
	case catalog.CreateClass:
		if _, exists := s.ClassBySettings(c.Settings); !exists && len(c.Placements) == 0 {
			c.Placements = placements(s, c.Settings, nil)
		}
		return c
	case catalog.CreateTable:
		if _, exists := s.ClassBySettings(c.Settings); !exists && len(c.Placements) == 0 {
			c.Placements = placements(s, c.Settings, nil)
		}
		return c
	case catalog.EnsureRegionBlocks:
		if class, ok := s.Class(c.Class); ok && len(c.Placements) == 0 {
			c.Placements = placements(s, class.Settings, class)
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

// MissingBlocks gives the commands that bring each class to the regions which have nodes enough for it and no block yet.
func MissingBlocks(s *catalog.State) []catalog.Command {
	var out []catalog.Command
	for class := range s.Classes() {
		if ps := placements(s, class.Settings, class); len(ps) > 0 {
			out = append(out, catalog.EnsureRegionBlocks{Class: class.ID, Placements: ps})
		}
	}
	return out
}

// placements places the hash slots of a class in every region with enough live nodes; when the class exists already, only
// in regions where it has none.
func placements(s *catalog.State, settings rhumb.ClassSettings, class *rhumb.Class) []catalog.Placement {
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
			l = measure(s)
		}
		p := catalog.Placement{Region: r.ID}
		for range settings.HashSlots {
			primary := l.leastPrimaries(nodes)
			p.Replicas = append(p.Replicas, l.spread(primary, nodes, settings.Replicas))
		}
		out = append(out, p)
	}
	return out
}

// slotReplicas chooses the replicas of a slot that a node opens.
func slotReplicas(s *catalog.State, id rhumb.NodeID, class rhumb.ClassID) []rhumb.NodeID {
	n, ok := s.Node(id)
	c, found := s.Class(class)
	if !ok || !found || n.State != rhumb.NodeLive {
		return nil
	}
	return measure(s).spread(n, liveNodes(s, n.Region), c.Settings.Replicas)
}

// liveNodes gives the live nodes of a region by id.
func liveNodes(s *catalog.State, in rhumb.RegionID) []*rhumb.Node {
	var out []*rhumb.Node
	for n := range s.Nodes() {
		if n.Region == in && n.State == rhumb.NodeLive {
			out = append(out, n)
		}
	}
	return out
}

// load counts the roles of each node.
type load struct {
	primaries map[rhumb.NodeID]int
	replicas  map[rhumb.NodeID]int
}

// measure counts, for each node, the ranges that prefer it as primary and the ranges it holds.
func measure(s *catalog.State) *load {
	l := &load{make(map[rhumb.NodeID]int), make(map[rhumb.NodeID]int)}
	for r := range s.Ranges() {
		l.primaries[r.Preferred]++
		for _, id := range r.Replicas {
			l.replicas[id]++
		}
	}
	return l
}

// leastPrimaries gives the node with the fewest primaries, then the fewest replicas, then the lowest id.
func (l *load) leastPrimaries(nodes []*rhumb.Node) *rhumb.Node {
	return slices.MinFunc(nodes, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(l.primaries[a.ID], l.primaries[b.ID]),
			cmp.Compare(l.replicas[a.ID], l.replicas[b.ID]),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// spread chooses n replicas, the primary first, and counts them. It gives fewer when there are no more nodes.
func (l *load) spread(primary *rhumb.Node, nodes []*rhumb.Node, n int) []rhumb.NodeID {
	chosen := []*rhumb.Node{primary}
	for len(chosen) < n {
		next := l.next(chosen, nodes)
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

// next gives the best node to add to those chosen: in the zone used least, then with the fewest replicas, then nearest to
// the first, then with the lowest id. It is nil when all are chosen.
func (l *load) next(chosen, nodes []*rhumb.Node) *rhumb.Node {
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
	return slices.MinFunc(free, func(a, b *rhumb.Node) int {
		return cmp.Or(
			cmp.Compare(zones[a.Zone], zones[b.Zone]),
			cmp.Compare(l.replicas[a.ID], l.replicas[b.ID]),
			cmp.Compare(metresTo(chosen, a), metresTo(chosen, b)),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// metresTo gives the distance of a node from the first one chosen.
func metresTo(chosen []*rhumb.Node, n *rhumb.Node) int64 {
	if len(chosen) == 0 {
		return 0
	}
	return geo.Metres(chosen[0].Location, n.Location)
}
