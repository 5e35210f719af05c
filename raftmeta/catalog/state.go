package catalog

import (
	"iter"

	"github.com/rhumbdb/rhumb"
)

// State is the catalog at one revision. It never changes; see the package comment.
type State struct {
	cluster  rhumb.ClusterID
	revision uint64

	lastRegion rhumb.RegionID
	lastNode   rhumb.NodeID
	lastTable  rhumb.TableID
	lastClass  rhumb.ClassID

	regions tree[*region]      // by id
	nodes   tree[*node]        // by id
	classes tree[*rhumb.Class] // by id
	tables  tree[*rhumb.Table] // by id
	blocks  tree[*rhumb.Block] // by region and first slot
	ranges  tree[*rhumb.Range] // by region and slot
	hash    tree[*rhumb.Block] // the hash block of a region and class
	active  tree[*activeBlock] // the block into which a node and class insert now
	names   map[string]rhumb.TableID
}

// region is a region with the number of blocks that were cut from its slots.
type region struct {
	rhumb.Region
	blocks uint32
}

// node is a node with the nonce of its last registration, by which a repeated registration is recognised, and those of
// lives before, oldest first.
type node struct {
	rhumb.Node
	nonce uint64
	past  []uint64
}

// pastMax bounds the nonces of earlier lives that are remembered.
const pastMax = 8

// activeBlock is a node's newest block in a class. opened counts the slots opened in all its blocks of the class.
type activeBlock struct {
	block  *rhumb.Block
	opened uint32
}

// New gives the empty catalog, before Init.
func New() *State { return &State{} }

// pair packs two ids into a tree key, ordered by the first, then by the second.
func pairKey[A, B ~uint32](a A, b B) uint64 { return uint64(a)<<32 | uint64(b) }

func rangeKey(id rhumb.RangeID) uint64 { return pairKey(id.Region, id.Slot) }

// Cluster names the cluster; it is zero before Init.
func (s *State) Cluster() rhumb.ClusterID { return s.cluster }

// Revision counts the applies that changed something.
func (s *State) Revision() uint64 { return s.revision }

// Region gives a region by id.
func (s *State) Region(id rhumb.RegionID) (rhumb.Region, bool) {
	r, ok := s.regions.get(uint64(id))
	if !ok {
		return rhumb.Region{}, false
	}
	return r.Region, true
}

// RegionByName gives a region by name.
func (s *State) RegionByName(name string) (rhumb.Region, bool) {
	for r := range s.Regions() {
		if r.Name == name {
			return r, true
		}
	}
	return rhumb.Region{}, false
}

// RegionServes reports whether a region is to be asked for the names that it may hold. It is false for one that does not
// exist, and for one without a live node for place.Config.RegionDeadAfter: a name that it holds may then be created a second
// time elsewhere, which is found when the region is back (docs/runbooks/region-down.md).
func (s *State) RegionServes(id rhumb.RegionID) bool {
	r, ok := s.regions.get(uint64(id))
	return ok && !r.Dead
}

// Regions yields all regions by id.
func (s *State) Regions() iter.Seq[rhumb.Region] {
	return func(yield func(rhumb.Region) bool) {
		for _, r := range s.regions.all() {
			if !yield(r.Region) {
				return
			}
		}
	}
}

// Node gives a node by id. The record is shared: only read it.
func (s *State) Node(id rhumb.NodeID) (*rhumb.Node, bool) {
	n, ok := s.nodes.get(uint64(id))
	if !ok {
		return nil, false
	}
	return &n.Node, true
}

// Life returns the number of the life that a node began with the nonce; ok is false when that is not its present life.
func (s *State) Life(id rhumb.NodeID, nonce uint64) (life rhumb.BootSeq, ok bool) {
	n, ok := s.nodes.get(uint64(id))
	if !ok || n.nonce != nonce {
		return 0, false
	}
	return n.Boot, true
}

// NodeByStore gives the node whose store has this identity.
func (s *State) NodeByStore(store rhumb.UUID) (*rhumb.Node, bool) {
	for n := range s.Nodes() {
		if n.Store == store {
			return n, true
		}
	}
	return nil, false
}

// Nodes yields all nodes by id.
func (s *State) Nodes() iter.Seq[*rhumb.Node] {
	return func(yield func(*rhumb.Node) bool) {
		for _, n := range s.nodes.all() {
			if !yield(&n.Node) {
				return
			}
		}
	}
}

// NodeCount is the number of nodes, in whatever state.
func (s *State) NodeCount() int { return s.nodes.size }

// IsLive reports whether the node exists and may hold roles.
func (s *State) IsLive(id rhumb.NodeID) bool {
	n, ok := s.nodes.get(uint64(id))
	return ok && n.State == rhumb.NodeLive
}

// Class gives a class by id.
func (s *State) Class(id rhumb.ClassID) (*rhumb.Class, bool) { return s.classes.get(uint64(id)) }

// ClassBySettings gives the class of tables with these settings.
func (s *State) ClassBySettings(settings rhumb.ClassSettings) (*rhumb.Class, bool) {
	for c := range s.Classes() {
		if c.Settings == settings {
			return c, true
		}
	}
	return nil, false
}

// Classes yields all classes by id.
func (s *State) Classes() iter.Seq[*rhumb.Class] { return treeValues(&s.classes) }

// Table gives a table by id.
func (s *State) Table(id rhumb.TableID) (*rhumb.Table, bool) { return s.tables.get(uint64(id)) }

// TableByName gives a table by name.
func (s *State) TableByName(name string) (*rhumb.Table, bool) {
	id, ok := s.names[name]
	if !ok {
		return nil, false
	}
	return s.Table(id)
}

// Tables yields all tables by id.
func (s *State) Tables() iter.Seq[*rhumb.Table] { return treeValues(&s.tables) }

// Range gives a range by id. The record is shared: only read it.
func (s *State) Range(id rhumb.RangeID) (*rhumb.Range, bool) { return s.ranges.get(rangeKey(id)) }

// RangeCount is the number of ranges.
func (s *State) RangeCount() int { return s.ranges.size }

// Ranges yields all ranges by region, then by slot.
func (s *State) Ranges() iter.Seq[*rhumb.Range] { return treeValues(&s.ranges) }

// Blocks yields all blocks by region, then by first slot.
func (s *State) Blocks() iter.Seq[*rhumb.Block] { return treeValues(&s.blocks) }

// BlockOf gives the block that holds the slot of a home.
func (s *State) BlockOf(id rhumb.RangeID) (*rhumb.Block, bool) {
	return s.blocks.get(pairKey(id.Region, id.Slot-id.Slot%rhumb.BlockSlots))
}

// HashBlock gives the block of the hash slots of a class in a region: a name hashed to slot h lives in the range
// (region, First+h). There is none while the region has too few nodes for the class.
func (s *State) HashBlock(region rhumb.RegionID, class rhumb.ClassID) (*rhumb.Block, bool) {
	return s.hash.get(pairKey(region, class))
}

// ActiveSlot gives the range into which a node inserts server-named keys of a class, and how many slots it has opened
// for that class so far, which [OpenSlot] asks for. opened is 0 when there is none yet.
func (s *State) ActiveSlot(node rhumb.NodeID, class rhumb.ClassID) (id rhumb.RangeID, opened uint32) {
	a, ok := s.active.get(pairKey(node, class))
	if !ok {
		return rhumb.RangeID{}, 0
	}
	return a.newestSlot(), a.opened
}

// slot gives the newest slot of the block.
func (a *activeBlock) newestSlot() rhumb.RangeID {
	used := (a.opened - 1) % rhumb.BlockSlots
	return rhumb.RangeID{Region: a.block.Region, Slot: a.block.First + rhumb.Slot(used)}
}

// values yields the values of a tree in the order of its keys.
func treeValues[V any](t *tree[V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.all() {
			if !yield(v) {
				return
			}
		}
	}
}
