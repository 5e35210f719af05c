package client

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/keys"
)

// metadata is what a client knows of the cluster: the newest state that a watch has sent, and newer descriptors of
// ranges that nodes gave with refusals. Descriptors are immutable and shared.
type metadata struct {
	mu       sync.RWMutex // guards all below
	revision uint64
	cluster  rhumb.ClusterID
	regions  map[rhumb.RegionID]rhumb.Region
	nodes    map[rhumb.NodeID]rhumb.Node
	classes  map[rhumb.ClassID]rhumb.Class
	tables   map[rhumb.TableID]rhumb.Table
	byName   map[string]rhumb.TableID
	hash     map[blockOwner]rhumb.Slot // the first slot of the hash block of a class in a region
	inserts  []rhumb.Block             // the blocks of nodes
	ranges   map[rhumb.RangeID]*rhumb.Range
	active   map[rhumb.RangeID]rhumb.RangeID // by the first slot of a node's block: its newest range
	changed  chan struct{}                   // closed, and replaced, with every change
}

type blockOwner struct {
	region rhumb.RegionID
	class  rhumb.ClassID
}

func newMetadata() *metadata {
	m := &metadata{changed: make(chan struct{})}
	m.clearLocked()
	return m
}

func (m *metadata) clearLocked() {
	m.regions, m.nodes = map[rhumb.RegionID]rhumb.Region{}, map[rhumb.NodeID]rhumb.Node{}
	m.classes, m.tables, m.byName = map[rhumb.ClassID]rhumb.Class{}, map[rhumb.TableID]rhumb.Table{}, map[string]rhumb.TableID{}
	m.hash, m.inserts = map[blockOwner]rhumb.Slot{}, nil
	m.ranges, m.active = map[rhumb.RangeID]*rhumb.Range{}, map[rhumb.RangeID]rhumb.RangeID{}
}

// apply takes an update of the watch. It gives the addresses at which a node died or began a new life: whoever waits for
// an answer from there waits in vain. An older full state than the present one is ignored, which reports false.
func (m *metadata) apply(u *api.Metadata) (lost []string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u.Full && u.Revision < m.revision {
		return nil, false
	}
	before := m.nodes
	if u.Full {
		newer := m.ranges
		m.clearLocked()
		defer func() { m.keepLocked(newer) }()
	} else {
		before = maps.Clone(m.nodes)
	}
	m.revision, m.cluster = u.Revision, u.Cluster
	m.mergeLocked(u)
	for id, old := range before {
		n, ok := m.nodes[id]
		dead := !ok || n.State == rhumb.NodeFenced && old.State != rhumb.NodeFenced
		if dead || n.Addr != old.Addr || n.Boot != old.Boot {
			lost = append(lost, old.Addr)
		}
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return lost, true
}

func (m *metadata) mergeLocked(u *api.Metadata) {
	for _, r := range u.Regions {
		m.regions[r.ID] = r
	}
	for _, n := range u.Nodes {
		m.nodes[n.ID] = n
	}
	for _, c := range u.Classes {
		m.classes[c.ID] = c
	}
	for _, t := range u.Tables {
		m.tables[t.ID] = t
		m.byName[t.Name] = t.ID
	}
	for _, b := range u.Blocks {
		if b.Node == rhumb.NoNode {
			m.hash[blockOwner{b.Region, b.Class}] = b.First
		} else if !slices.Contains(m.inserts, b) {
			m.inserts = append(m.inserts, b)
		}
	}
	for _, r := range u.Ranges {
		m.rangeLocked(r)
	}
	for _, id := range u.RemovedNodes {
		delete(m.nodes, id)
	}
	for _, id := range u.RemovedTables {
		delete(m.byName, m.tables[id].Name)
		delete(m.tables, id)
	}
	for _, id := range u.RemovedRanges {
		delete(m.ranges, id)
	}
}

// rangeLocked takes a descriptor unless a newer one is known, and reports whether it did.
func (m *metadata) rangeLocked(r *rhumb.Range) bool {
	if old := m.ranges[r.ID]; old != nil && old.Version >= r.Version {
		return false
	}
	m.ranges[r.ID] = r
	block := rhumb.RangeID{Region: r.ID.Region, Slot: r.ID.Slot - r.ID.Slot%rhumb.BlockSlots}
	if last, ok := m.active[block]; !ok || last.Slot < r.ID.Slot {
		m.active[block] = r.ID
	}
	return true
}

// keepLocked brings back descriptors that are newer than those of a full state, because a node gave them with a refusal.
func (m *metadata) keepLocked(newer map[rhumb.RangeID]*rhumb.Range) {
	for id, r := range newer {
		if old := m.ranges[id]; old != nil && old.Version < r.Version {
			m.ranges[id] = r
		}
	}
}

// learn takes a descriptor that came with a refusal, and reports whether it is news.
func (m *metadata) learn(r *rhumb.Range) bool {
	if r == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rangeLocked(r) {
		return false
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return true
}

// next gives a channel that closes with the next change.
func (m *metadata) next() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.changed
}

// primary gives the descriptor of a range and the node that is its primary; ok is false when either is not known.
func (m *metadata) primary(id rhumb.RangeID) (r *rhumb.Range, n rhumb.Node, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r = m.ranges[id]
	if r == nil {
		return nil, n, false
	}
	n, ok = m.nodes[r.Primary]
	return r, n, ok
}

// named gives the range of a named key of a table in a region.
func (m *metadata) named(t *Table, region rhumb.RegionID, name []byte) (rhumb.RangeID, error) {
	const op rhumb.Op = "client"
	m.mu.RLock()
	first, ok := m.hash[blockOwner{region, t.info.Class}]
	m.mu.RUnlock()
	if !ok {
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.Unavailable, "table %s has no slots in region %s yet; retry", t.info.Name, region)
	}
	return rhumb.RangeID{Region: region, Slot: first + keys.HashSlot(name, t.info.Colocate, t.slots)}, nil
}

// firstSlot returns the first hash slot of a table in a region that has some.
func (m *metadata) firstSlot(t *Table, region rhumb.RegionID) rhumb.Slot {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.hash[blockOwner{region, t.info.Class}]
}

func (m *metadata) region(name string) (rhumb.Region, error) {
	const op rhumb.Op = "client"
	m.mu.RLock()
	defer m.mu.RUnlock()
	var names []string
	for _, r := range m.regions {
		if r.Name == name {
			return r, nil
		}
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return rhumb.Region{}, rhumb.Ef(op, rhumb.NotFound, "there is no region %q; the regions are %v", name, names)
}

// regionsWith lists, by id, the regions in which a class has hash slots: those where its named keys may live.
func (m *metadata) regionsWith(class rhumb.ClassID) []rhumb.Region {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []rhumb.Region
	for _, r := range m.regions {
		if _, ok := m.hash[blockOwner{r.ID, class}]; ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b rhumb.Region) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// isDead reports whether a region counts as dead.
func (m *metadata) isDead(id rhumb.RegionID) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.regions[id].Dead
}

// regionName returns the name of a region.
func (m *metadata) regionName(id rhumb.RegionID) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return cmp.Or(m.regions[id].Name, id.String())
}

// insertsInto lists the live nodes of a region with the newest range of each into which it inserts keys of a class; a
// node without one has a zero range.
func (m *metadata) insertsInto(region rhumb.RegionID, class rhumb.ClassID) (nodes []rhumb.Node, into []rhumb.RangeID) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		if n.Region == region && n.State == rhumb.NodeLive {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, byNode)
	into = make([]rhumb.RangeID, len(nodes))
	for i, n := range nodes {
		for _, b := range m.inserts {
			last, ok := m.active[rhumb.RangeID{Region: b.Region, Slot: b.First}]
			if ok && b.Node == n.ID && b.Region == region && b.Class == class && last.Slot >= into[i].Slot {
				into[i] = last
			}
		}
	}
	return nodes, into
}

func byNode(a, b rhumb.Node) int { return cmp.Compare(a.ID, b.ID) }

func (m *metadata) sortedNodes() []rhumb.Node {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.nodes), byNode)
}

func (m *metadata) sortedRegions() []rhumb.Region {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.regions), func(a, b rhumb.Region) int { return cmp.Compare(a.ID, b.ID) })
}

func (m *metadata) sortedRanges(keep func(*rhumb.Range) bool) []*rhumb.Range {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []*rhumb.Range
	for _, r := range m.ranges {
		if keep(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *rhumb.Range) int { return a.ID.Compare(b.ID) })
	return out
}

// table gives a table with its class, and ok false when it is not known (yet).
func (m *metadata) table(name string) (t rhumb.Table, c rhumb.Class, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	id, ok := m.byName[name]
	if !ok {
		return t, c, false
	}
	t = m.tables[id]
	c, ok = m.classes[t.Class]
	return t, c, ok
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
