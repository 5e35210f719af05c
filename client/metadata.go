package client

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/keys"
)

// metadata is the client's copy of the cluster's metadata: the newest state that a watch
// delivered, and newer range descriptors that nodes attached to refusals. Descriptors are
// immutable, so callers share them.
type metadata struct {
	mu       sync.RWMutex // guards all below
	revision uint64
	// seen is revision for readers without the lock.
	seen    atomic.Uint64
	cluster rhumb.ClusterID
	regions map[rhumb.RegionID]rhumb.Region
	nodes   map[rhumb.NodeID]rhumb.Node
	classes map[rhumb.ClassID]rhumb.Class
	tables  map[rhumb.TableID]rhumb.Table
	byName  map[string]rhumb.TableID
	hash    map[blockOwner]rhumb.Block // the hash block of a class in a region
	inserts []rhumb.Block              // the blocks that belong to nodes
	ranges  map[rhumb.RangeID]*rhumb.Range
	wide    []rhumb.RangeID                 // the ranges of several slots, sorted
	active  map[rhumb.RangeID]rhumb.RangeID // the newest range in a node's block, by the first slot of the block
	changed chan struct{}                   // closed and replaced with every change
	// leave ends the watch, and doubt calls it unless an update arrives before: a node
	// has shown that newer metadata exists.
	leave func()
	doubt *time.Timer // nil without doubt
	// hurried is set once the doubt has been shortened.
	hurried bool
	at      string // the address at which the watch is
}

// watchPatience is how long a watch may lack what another node knows. Updates reach all
// nodes that are not cut off within a round trip.
const watchPatience = time.Second

// silentPatience is the same for a watch at a node that does not answer requests either.
const silentPatience = 100 * time.Millisecond

type blockOwner struct {
	region rhumb.RegionID
	class  rhumb.ClassID
}

// newMetadata returns a copy that knows nothing yet.
func newMetadata() *metadata {
	m := &metadata{changed: make(chan struct{})}
	m.clearLocked()
	return m
}

// clearLocked forgets everything, before a full copy arrives.
func (m *metadata) clearLocked() {
	m.regions, m.nodes = map[rhumb.RegionID]rhumb.Region{}, map[rhumb.NodeID]rhumb.Node{}
	m.classes, m.tables, m.byName = map[rhumb.ClassID]rhumb.Class{}, map[rhumb.TableID]rhumb.Table{}, map[string]rhumb.TableID{}
	m.hash, m.inserts, m.wide = map[blockOwner]rhumb.Block{}, nil, nil
	m.ranges, m.active = map[rhumb.RangeID]*rhumb.Range{}, map[rhumb.RangeID]rhumb.RangeID{}
}

// applyUpdate applies an update of a watch. It returns the addresses at which a node died
// or began a new life: requests to these will not be answered. It ignores a full state
// that is older than the present one and returns ok false.
func (m *metadata) applyUpdate(u *api.Metadata) (lost []string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The next node of a watch may have older metadata than the previous one. An older state may
	// name former primaries.
	if u.Full && u.Revision < m.revision {
		return nil, false
	}
	// clearLocked replaces the maps, so before keeps the former nodes. mergeLocked
	// changes them in place, so it needs a copy.
	before := m.nodes
	if u.Full {
		newer := m.ranges
		m.clearLocked()
		// Runs after the merge and before the unlock.
		defer func() { m.restoreNewerLocked(newer) }()
	} else {
		before = maps.Clone(m.nodes)
	}
	m.endDoubtLocked()
	m.revision, m.cluster = u.Revision, u.Cluster
	m.seen.Store(u.Revision)
	m.mergeLocked(u)
	for id, old := range before {
		n, ok := m.nodes[id]
		// A node that was fenced or started again does not answer requests sent to its
		// former life, even at the same address.
		dead := !ok || n.State == rhumb.NodeFenced && old.State != rhumb.NodeFenced
		if dead || n.Addr != old.Addr || n.Boot != old.Boot {
			lost = append(lost, old.Addr)
		}
	}
	m.announceLocked()
	return lost, true
}

// announceLocked wakes the callers that wait for a change.
func (m *metadata) announceLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// mergeLocked merges an update into the copy. A record of a range that is older than the
// known one is ignored.
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
		// A block without a node holds the hash slots of a class; the others hold the ranges for
		// inserts on a node.
		if b.Node == rhumb.NoNode {
			m.hash[blockOwner{b.Region, b.Class}] = b
		} else if !slices.Contains(m.inserts, b) {
			m.inserts = append(m.inserts, b)
		}
	}
	for _, r := range u.Ranges {
		m.putRangeLocked(r)
	}
	for _, id := range u.RemovedNodes {
		delete(m.nodes, id)
	}
	for _, id := range u.RemovedTables {
		m.forgetTableLocked(id)
	}
	for _, id := range u.RemovedRanges {
		delete(m.ranges, id)
		if i, found := slices.BinarySearchFunc(m.wide, id, rhumb.RangeID.Compare); found {
			m.wide = slices.Delete(m.wide, i, i+1)
		}
	}
}

// indexRangeLocked makes rangeOfLocked find a range of several slots by all of them. A
// range of a class that can be split is found by one slot too.
func (m *metadata) indexRangeLocked(r *rhumb.Range) {
	if i, found := slices.BinarySearchFunc(m.wide, r.ID, rhumb.RangeID.Compare); !found && r.Last != 0 {
		m.wide = slices.Insert(m.wide, i, r.ID)
	}
}

// rangeOfLocked returns the range that holds a home, or nil if it is unknown.
func (m *metadata) rangeOfLocked(home rhumb.RangeID) *rhumb.Range {
	// A range that is reserved for a split does not serve yet.
	if r := m.ranges[home]; r != nil && r.Birth == 0 {
		return r
	}
	i, found := slices.BinarySearchFunc(m.wide, home, rhumb.RangeID.Compare)
	if found {
		i++
	}
	for i--; i >= 0; i-- {
		if r := m.ranges[m.wide[i]]; r != nil && r.Birth == 0 {
			if r.Holds(home) {
				return r
			}
			break
		}
	}
	return nil
}

// rangeID returns the id of the range that holds a home, or the home if the range is unknown.
func (m *metadata) rangeID(home rhumb.RangeID) rhumb.RangeID {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if r := m.rangeOfLocked(home); r != nil {
		return r.ID
	}
	return home
}

// forgetTable removes a table that this client has dropped, before the watch says so: its
// next call must not find the table.
func (m *metadata) forgetTable(id rhumb.TableID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetTableLocked(id)
	m.announceLocked()
}

// forgetTableLocked removes a dropped table.
func (m *metadata) forgetTableLocked(id rhumb.TableID) {
	// The name may belong to a later table by now.
	if name := m.tables[id].Name; m.byName[name] == id {
		delete(m.byName, name)
	}
	delete(m.tables, id)
}

// putRangeLocked stores a descriptor unless the present one is as new, and reports
// whether it did.
func (m *metadata) putRangeLocked(r *rhumb.Range) bool {
	if old := m.ranges[r.ID]; old != nil && old.Version >= r.Version {
		return false
	}
	m.ranges[r.ID] = r
	m.indexRangeLocked(r)
	// Nodes open the slots of a block in order, so the highest slot is the newest range.
	block := rhumb.RangeID{Region: r.ID.Region, Slot: r.ID.Slot - r.ID.Slot%rhumb.BlockSlots}
	if last, ok := m.active[block]; !ok || last.Slot < r.ID.Slot {
		m.active[block] = r.ID
	}
	return true
}

// restoreNewerLocked puts back descriptors that are newer than those of a full state, because a
// node attached them to a refusal. It adds no range that the full state lacks: the range may have
// been removed.
func (m *metadata) restoreNewerLocked(newer map[rhumb.RangeID]*rhumb.Range) {
	for id, r := range newer {
		if old := m.ranges[id]; old != nil && old.Version < r.Version {
			m.ranges[id] = r
		}
	}
}

// learnRange stores a descriptor that came with a refusal, and reports whether it is
// newer than the one before. nil is never newer.
func (m *metadata) learnRange(r *rhumb.Range) bool {
	if r == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.putRangeLocked(r) {
		return false
	}
	m.beginDoubtLocked()
	m.announceLocked()
	return true
}

// noteEpoch notes the epoch of the primary that answered for a home.
func (m *metadata) noteEpoch(home rhumb.RangeID, epoch rhumb.Epoch) {
	behind := func() bool { r := m.rangeOfLocked(home); return r != nil && r.Epoch < epoch }
	m.mu.RLock()
	found := behind()
	m.mu.RUnlock()
	// Nearly every answer is of the epoch that is known, and must not wait for the lock
	// of writers.
	if !found {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if behind() {
		m.beginDoubtLocked()
	}
}

// watched sets the function that ends the watch which delivers updates from now on, and
// the address at which it is.
func (m *metadata) watched(at string, leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endDoubtLocked()
	m.at, m.leave = at, leave
}

// watchedAt returns the address at which the watch is, empty while there is none.
func (m *metadata) watchedAt() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.at
}

// noteRevision notes the revision of the metadata that another node has, while the node at
// the address silent does not answer.
func (m *metadata) noteRevision(revision uint64, silent string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.revision {
		return
	}
	m.beginDoubtLocked()
	// Once only: many callers wait for the silent node, and each of them has the revision noted a few times a second. Together they
	// would put the end of the watch off for as long as the node is silent.
	if m.at == silent && m.doubt != nil && !m.hurried {
		m.hurried = true
		m.doubt.Reset(silentPatience)
	}
}

// beginDoubtLocked ends the watch after a while unless it delivers something. A node that
// is cut off from the others keeps its watches, since nothing tells it that there is
// something to deliver.
func (m *metadata) beginDoubtLocked() {
	if m.doubt == nil && m.leave != nil {
		m.doubt = time.AfterFunc(watchPatience, m.leave)
	}
}

func (m *metadata) endDoubtLocked() {
	if m.doubt != nil {
		m.doubt.Stop()
		m.doubt, m.hurried = nil, false
	}
}

// nextChange returns a channel that is closed with the next change.
func (m *metadata) nextChange() <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.changed
}

// primaryOf returns the descriptor of the range of a home, and the node that is its
// primary. ok is false if either is unknown; r is nil if the range is.
func (m *metadata) primaryOf(id rhumb.RangeID) (r *rhumb.Range, n rhumb.Node, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	r = m.rangeOfLocked(id)
	if r == nil {
		return nil, n, false
	}
	n, ok = m.nodes[r.Primary]
	return r, n, ok
}

// homeOfName returns the home of a named key of a table in a region. The key is in the
// range that holds the home.
func (m *metadata) homeOfName(t *Table, region rhumb.RegionID, name []byte) (rhumb.RangeID, error) {
	const op rhumb.Op = "client"
	m.mu.RLock()
	b, ok := m.hash[blockOwner{region, t.info.Class}]
	home, confined := m.regions[region], m.classes[t.info.Class].Settings.Regions
	m.mu.RUnlock()
	switch {
	case ok:
	case !confined.Has(home.Name):
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.InvalidArgument, "table %s is confined to the regions %s and has no records in %s", t.info.Name, strings.Join(confined.Names(), ", "), home.Name)
	// A region that joined after the class was created gets its hash slots later.
	default:
		return rhumb.RangeID{}, rhumb.Ef(op, rhumb.Unavailable, "table %s has no slots in region %s yet; retry", t.info.Name, home.Name)
	}
	return rhumb.RangeID{Region: region, Slot: b.First + keys.HashSlot(name, t.info.Colocate, t.slots)}, nil
}

// hashBlock returns the block of the hash slots of a table's class in a region, and
// whether the class has hash slots there.
func (m *metadata) hashBlock(t *Table, region rhumb.RegionID) (rhumb.Block, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	b, ok := m.hash[blockOwner{region, t.info.Class}]
	return b, ok
}

// regionByName returns a region, or an error of kind NotFound that lists the regions. The
// former name of a removed region finds it as long as no other region has the name:
// programs that were configured with it keep finding their records, which have kept their
// homes.
func (m *metadata) regionByName(name string) (rhumb.Region, error) {
	const op rhumb.Op = "client"
	m.mu.RLock()
	defer m.mu.RUnlock()
	var names []string
	var removed rhumb.Region
	for _, r := range m.regions {
		if r.Name == name {
			return r, nil
		}
		if former, _, _ := strings.Cut(r.Name, "~"); r.Removed && former == name && r.ID > removed.ID {
			removed = r
		}
		names = append(names, r.Name)
	}
	if removed.ID != 0 {
		return removed, nil
	}
	slices.Sort(names)
	return rhumb.Region{}, rhumb.Ef(op, rhumb.NotFound, "there is no region %q; the regions are %s", name, strings.Join(names, ", "))
}

// regionsWith returns, sorted by ID, the regions in which a class has hash slots: those in which
// its named keys may exist.
func (m *metadata) regionsWith(class rhumb.ClassID) []rhumb.Region {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []rhumb.Region
	for _, r := range m.regions {
		if _, ok := m.hash[blockOwner{r.ID, class}]; ok {
			r.Dead = m.isDeadLocked(r.ID, class)
			out = append(out, r)
		}
	}
	slices.SortFunc(out, compareRegions)
	return out
}

// isDead reports whether nobody serves the ranges of a class in a region: the metadata
// says that the region is dead, and the class does not survive the loss of a region.
func (m *metadata) isDead(id rhumb.RegionID, class rhumb.ClassID) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.isDeadLocked(id, class)
}

// isDeadLocked reports whether the client should not wait for answers of a region about a class.
func (m *metadata) isDeadLocked(id rhumb.RegionID, class rhumb.ClassID) bool {
	return m.regions[id].Dead && m.classes[class].Settings.Survival != rhumb.SurviveRegion
}

// isHomeDead is isDead for the region of a home and the class of the range that holds it.
func (m *metadata) isHomeDead(home rhumb.RangeID) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var class rhumb.ClassID
	if r := m.rangeOfLocked(home); r != nil {
		class = r.Class
	}
	return m.isDeadLocked(home.Region, class)
}

// regionName returns the name of a region, or its ID if the region is unknown.
func (m *metadata) regionName(id rhumb.RegionID) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return cmp.Or(m.regions[id].Name, id.String())
}

// insertRanges returns the live nodes of a region, sorted by ID, and for each the newest
// range into which it inserts keys of a class. The range is zero for a node that has none
// yet.
func (m *metadata) insertRanges(region rhumb.RegionID, class rhumb.ClassID) (nodes []rhumb.Node, into []rhumb.RangeID) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, n := range m.nodes {
		if n.Region == region && n.State.Serves() {
			nodes = append(nodes, n)
		}
	}
	slices.SortFunc(nodes, compareNodes)
	into = make([]rhumb.RangeID, len(nodes))
	for i, n := range nodes {
		for _, b := range m.inserts {
			// A node may have several blocks of a class. The highest slot is the newest.
			last, ok := m.active[rhumb.RangeID{Region: b.Region, Slot: b.First}]
			if ok && b.Node == n.ID && b.Region == region && b.Class == class && last.Slot >= into[i].Slot {
				into[i] = last
			}
		}
	}
	return nodes, into
}

// compareNodes orders nodes by id.
func compareNodes(a, b rhumb.Node) int { return cmp.Compare(a.ID, b.ID) }

// compareRegions orders regions by id.
func compareRegions(a, b rhumb.Region) int { return cmp.Compare(a.ID, b.ID) }

// sortedNodes returns the known nodes by id, so that lists look the same each time.
func (m *metadata) sortedNodes() []rhumb.Node {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.nodes), compareNodes)
}

// sortedRegions returns the known regions by id.
func (m *metadata) sortedRegions() []rhumb.Region {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.regions), compareRegions)
}

// sortedRanges returns the ranges that keep accepts, by id.
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

// tableByName returns a table with its class. ok is false if either is unknown, as for a
// table that was created a moment ago.
func (m *metadata) tableByName(name string) (t rhumb.Table, c rhumb.Class, ok bool) {
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

// sortedKeys returns the keys of a map in ascending order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
