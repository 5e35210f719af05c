package catalog

import (
	"iter"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// State is the catalog at one revision. It is immutable; see the package comment.
type State struct {
	cluster  rhumb.ClusterID
	revision uint64
	// version is the active cluster version, or 0 for rhumb.VersionBase.
	version rhumb.ClusterVersion

	// The highest ids allocated so far. Ids are never reused.
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
	// distances holds the measured round trip of two regions in microseconds, the lower region first.
	distances tree[uint32]
	// hash, active and names are indexes: blocks, ranges and tables hold the same records.
	hash   tree[*rhumb.Block] // the hash block of a region and class
	active tree[*activeBlock] // the block into which a node and class insert now
	names  map[string]rhumb.TableID

	access *accessBook // nil before the first user or role
	// security is nil while it is empty.
	security *Security

	lastOperation rhumb.OperationID
	operations    tree[*rhumb.Operation] // by id
	// settings holds the settings that differ from their defaults, by name; nil while there are none.
	settings map[string]string
}

// region is a region with the number of blocks that were allocated from its slots.
type region struct {
	rhumb.Region
	blocks uint32
}

// node is a node with the nonces of its present life and of earlier ones, oldest first. The nonce
// identifies a repeated registration.
type node struct {
	rhumb.Node
	nonce uint64
	past  []uint64
	// leftBefore reports that the node was leaving when the removal of its region began. It still leaves if that is cancelled.
	leftBefore bool
}

// pastMax bounds the remembered nonces of earlier lives.
const pastMax = 8

// activeBlock is the newest block of a node in a class. opened counts the slots opened in all
// blocks of that node and class.
type activeBlock struct {
	block  *rhumb.Block
	opened uint32
}

// New returns the empty catalog, to which Init is applied first.
func New() *State { return &State{} }

// pairKey packs two ids into a tree key that sorts by the first id, then by the second.
func pairKey[A, B ~uint32](a A, b B) uint64 { return uint64(a)<<32 | uint64(b) }

func rangeKey(id rhumb.RangeID) uint64 { return pairKey(id.Region, id.Slot) }

// Cluster returns the id of the cluster, which is zero before Init.
func (s *State) Cluster() rhumb.ClusterID { return s.cluster }

// Revision returns the number of commands that changed something.
func (s *State) Revision() uint64 { return s.revision }

// Region returns the region with the given id.
func (s *State) Region(id rhumb.RegionID) (rhumb.Region, bool) {
	r, ok := s.regions.get(uint64(id))
	if !ok {
		return rhumb.Region{}, false
	}
	return r.Region, true
}

// RegionByName returns the region with the given name.
func (s *State) RegionByName(name string) (rhumb.Region, bool) {
	// There are too few regions for an index to pay.
	for r := range s.Regions() {
		if r.Name == name {
			return r, true
		}
	}
	return rhumb.Region{}, false
}

// RegionServes reports whether a region has to be asked for the names that it may hold. It returns
// false for a region that does not exist, and for one without a live node for
// place.Config.RegionDeadAfter. A name that such a region holds may be created again elsewhere; the
// duplicate is found when the region returns (docs/runbooks/region-down.md).
func (s *State) RegionServes(id rhumb.RegionID) bool {
	r, ok := s.regions.get(uint64(id))
	return ok && !r.Dead
}

// Regions yields all regions, ordered by id.
func (s *State) Regions() iter.Seq[rhumb.Region] {
	return func(yield func(rhumb.Region) bool) {
		for _, r := range s.regions.all() {
			if !yield(r.Region) {
				return
			}
		}
	}
}

// Node returns the node with the given id. The record is shared and must not be modified.
func (s *State) Node(id rhumb.NodeID) (*rhumb.Node, bool) {
	n, ok := s.nodes.get(uint64(id))
	if !ok {
		return nil, false
	}
	return &n.Node, true
}

// Life returns the number of the life that a node began with the nonce. ok is false if that is not
// its present life.
func (s *State) Life(id rhumb.NodeID, nonce uint64) (life rhumb.BootSeq, ok bool) {
	n, ok := s.nodes.get(uint64(id))
	if !ok || n.nonce != nonce {
		return 0, false
	}
	return n.Boot, true
}

// Nodes yields all nodes, ordered by id.
func (s *State) Nodes() iter.Seq[*rhumb.Node] {
	return func(yield func(*rhumb.Node) bool) {
		for _, n := range s.nodes.all() {
			if !yield(&n.Node) {
				return
			}
		}
	}
}

// NodeCount returns the number of nodes in any state.
func (s *State) NodeCount() int { return s.nodes.size }

// IsLive reports whether the node exists and may hold roles.
func (s *State) IsLive(id rhumb.NodeID) bool {
	n, ok := s.nodes.get(uint64(id))
	return ok && n.State.Serves()
}

// TakesCopies reports whether the node exists and may get new copies. A witness never does.
func (s *State) TakesCopies(id rhumb.NodeID) bool {
	n, ok := s.nodes.get(uint64(id))
	return ok && n.State == rhumb.NodeLive && !n.Leaving && !n.Witness
}

// Class returns the class with the given id.
func (s *State) Class(id rhumb.ClassID) (*rhumb.Class, bool) { return s.classes.get(uint64(id)) }

// ClassBySettings returns the class with the given settings. No two classes have equal settings, except
// for classes whose ranges are being removed, which it does not return.
func (s *State) ClassBySettings(settings rhumb.ClassSettings) (*rhumb.Class, bool) {
	for c := range s.Classes() {
		if c.Settings == settings && !c.Dropping {
			return c, true
		}
	}
	return nil, false
}

// Classes yields all classes, ordered by id.
func (s *State) Classes() iter.Seq[*rhumb.Class] { return treeValues(&s.classes) }

// Table returns the table with the given id.
func (s *State) Table(id rhumb.TableID) (*rhumb.Table, bool) { return s.tables.get(uint64(id)) }

// TableByName returns the table with the given name.
func (s *State) TableByName(name string) (*rhumb.Table, bool) {
	id, ok := s.names[name]
	if !ok {
		return nil, false
	}
	return s.Table(id)
}

// Tables yields all tables, ordered by id.
func (s *State) Tables() iter.Seq[*rhumb.Table] { return treeValues(&s.tables) }

// Range returns the range with the given id. The record is shared and must not be modified.
func (s *State) Range(id rhumb.RangeID) (*rhumb.Range, bool) { return s.ranges.get(rangeKey(id)) }

// RangeOf returns the range of the keys with a home. A range that is reserved for a split does not count:
// its slots belong to the range before it.
func (s *State) RangeOf(home rhumb.RangeID) (*rhumb.Range, bool) {
	r, ok := s.ranges.floor(rangeKey(home))
	if ok && r.Birth != 0 && r.ID.Slot > 0 {
		// A range has at most one reserved range, so the one before it is born.
		r, ok = s.ranges.floor(rangeKey(rhumb.RangeID{Region: r.ID.Region, Slot: r.ID.Slot - 1}))
	}
	if !ok || !r.Holds(home) {
		return nil, false
	}
	return r, true
}

// HomeIn returns the home of a named key in a range, or in the range that was there before a split. Keys
// of ranges of one slot have the range as their home.
func (s *State) HomeIn(id rhumb.RangeID, table rhumb.TableID, name []byte) rhumb.RangeID {
	b, ok := s.BlockOf(id)
	if !ok || b.Node != rhumb.NoNode {
		return id
	}
	c, ok := s.Class(b.Class)
	t, known := s.Table(table)
	if !ok || !known || c.Settings.Buckets == 0 {
		return id
	}
	id.Slot = b.First + keys.HashSlot(name, t.Colocate, c.Settings.Buckets)
	return id
}

// RangeCount returns the number of ranges.
func (s *State) RangeCount() int { return s.ranges.size }

// Ranges yields all ranges, ordered by region, then by slot.
func (s *State) Ranges() iter.Seq[*rhumb.Range] { return treeValues(&s.ranges) }

// Blocks yields all blocks, ordered by region, then by first slot.
func (s *State) Blocks() iter.Seq[*rhumb.Block] { return treeValues(&s.blocks) }

// BlockOf returns the block that contains the slot of a home.
func (s *State) BlockOf(id rhumb.RangeID) (*rhumb.Block, bool) {
	b, ok := s.blocks.floor(rangeKey(id))
	if !ok || b.Region != id.Region || !b.Contains(id.Slot) {
		return nil, false
	}
	return b, true
}

// HomeOf returns the home of a named key of a table in a region. It returns false while the class of the
// table has no hash slots there.
func (s *State) HomeOf(region rhumb.RegionID, t *rhumb.Table, name []byte) (rhumb.RangeID, bool) {
	b, ok := s.HashBlock(region, t.Class)
	c, known := s.Class(t.Class)
	if !ok || !known {
		return rhumb.RangeID{}, false
	}
	return rhumb.RangeID{Region: region, Slot: b.First + keys.HashSlot(name, t.Colocate, c.Settings.NameSlots())}, true
}

// HashBlock returns the block of hash slots of a class in a region: a name with hash slot h has the
// home (region, First+h). There is none while the region has too few nodes for the class.
func (s *State) HashBlock(region rhumb.RegionID, class rhumb.ClassID) (*rhumb.Block, bool) {
	return s.hash.get(pairKey(region, class))
}

// ActiveSlot returns the range into which a node inserts server-named keys of a class, and the
// number of slots that the node has opened for that class, which [OpenSlot] expects. opened is 0
// before the first slot.
func (s *State) ActiveSlot(node rhumb.NodeID, class rhumb.ClassID) (id rhumb.RangeID, opened uint32) {
	a, ok := s.active.get(pairKey(node, class))
	if !ok {
		return rhumb.RangeID{}, 0
	}
	return a.newestSlot(), a.opened
}

// newestSlot returns the slot of the block that was opened last.
func (a *activeBlock) newestSlot() rhumb.RangeID {
	// opened counts the slots of earlier blocks of the node as well.
	used := (a.opened - 1) % rhumb.BlockSlots
	return rhumb.RangeID{Region: a.block.Region, Slot: a.block.First + rhumb.Slot(used)}
}

// treeValues yields the values of a tree in the order of its keys.
func treeValues[V any](t *tree[V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.all() {
			if !yield(v) {
				return
			}
		}
	}
}
