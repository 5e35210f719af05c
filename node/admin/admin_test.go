package admin

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/raftmeta/place"
)

// testBinary is the build of the nodes in these tests: the newest one, so that new clusters have every feature.
var testBinary = rhumb.ThisBuild("test").String()

// meta is a metadata group of one. It applies commands at once.
type meta struct {
	t  *testing.T
	mu sync.Mutex // guards the two below
	st *catalog.State
	// refuse, if not nil, is the answer to proposals; to the first refusals ones only if that is above 0.
	refuse   error
	refusals int
	// behind, if not nil, is the catalog of a node that has not applied the last commands.
	behind *catalog.State
	sizes  map[rhumb.RangeID]int64
	opened int
}

func (m *meta) State() *catalog.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.behind != nil {
		return m.behind
	}
	return m.st
}

func (m *meta) AwaitRevision(context.Context, uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind = nil
	return nil
}

func (m *meta) Propose(_ context.Context, cmd catalog.Command) (catalog.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if refusal := m.refuse; refusal != nil {
		if m.refusals--; m.refusals == 0 {
			m.refuse = nil
		}
		return catalog.Result{}, refusal
	}
	if _, ok := cmd.(catalog.OpenSlot); ok {
		m.opened++
	}
	st, res, _ := m.st.Apply(place.Complete(m.st, cmd))
	m.st = st
	m.adoptHandovers()
	return res, nil
}

// adoptHandovers plays the targets of prepared handovers.
func (m *meta) adoptHandovers() {
	for r := range m.st.Ranges() {
		if h := r.Prepared; h != nil {
			n, _ := m.st.Node(h.Target)
			m.st, _, _ = m.st.Apply(catalog.AdoptHandover{Range: r.ID, Epoch: h.Epoch, Boot: n.Boot})
		}
	}
}

func (m *meta) DataBytes(id rhumb.RangeID) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sizes[id]
}

func (m *meta) apply(cmd catalog.Command) catalog.Result {
	m.t.Helper()
	res, err := m.Propose(m.t.Context(), cmd)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return res
}

func (m *meta) fill(id rhumb.RangeID, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sizes[id] = size
}

const shard = 1 << 20

// start creates a region of three nodes and a table with three replicas, and returns the Admin of
// node 1.
func start(t *testing.T) (*meta, *Admin, rhumb.ClassID) {
	t.Helper()
	m := &meta{t: t, st: catalog.New(), sizes: map[rhumb.RangeID]int64{}}
	for i := range byte(3) {
		n := catalog.RegisterNode{
			Binary: testBinary, Store: rhumb.UUID{i + 1}, Boot: 1, Nonce: uint64(i + 1), Region: "singapore", Zone: string('a' + rune(i)), HasLocation: true,
			Addr: fmt.Sprintf("127.0.0.%d:1", i+1), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
		}
		if i == 0 {
			m.apply(catalog.Init{Cluster: rhumb.UUID{9}, First: n})
			continue
		}
		m.apply(n)
	}
	a := New(Config{Self: 1, Meta: m, Sizes: m})
	settings := rhumb.DefaultClassSettings()
	settings.HashSlots, settings.ShardSize = 8, shard
	table, st, err := a.CreateTable(t.Context(), catalog.CreateTable{Name: "flights", Settings: settings})
	if err != nil || st.Revision() == 0 {
		t.Fatal(err)
	}
	return m, a, table.Class
}

func TestCreateTableTellsRefusals(t *testing.T) {
	m, a, _ := start(t)
	other := rhumb.DefaultClassSettings()
	if _, _, err := a.CreateTable(t.Context(), catalog.CreateTable{Name: "flights", Settings: other}); rhumb.KindOf(err) != rhumb.AlreadyExists {
		t.Errorf("a table whose name is taken: %v", err)
	}
	m.refuse = rhumb.E("test", rhumb.Unknown, "no majority")
	if _, _, err := a.CreateTable(t.Context(), catalog.CreateTable{Name: "crews", Settings: other}); rhumb.KindOf(err) != rhumb.Unknown {
		t.Errorf("a proposal whose fate is not known: %v", err)
	}
}

// TestCreateTableBehind guards that a node which applies the command late finds the table that it has created.
func TestCreateTableBehind(t *testing.T) {
	m, a, _ := start(t)
	m.behind = m.st
	table, st, err := a.CreateTable(t.Context(), catalog.CreateTable{Name: "crews", Settings: rhumb.DefaultClassSettings()})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := st.Table(table.ID); !ok || got.Name != "crews" {
		t.Errorf("the catalog has %+v", got)
	}
}

// TestActiveSlot guards that a node inserts into one slot of its own until the slot is full, then
// into the next, and that concurrent callers open only one.
func TestActiveSlot(t *testing.T) {
	m, a, class := start(t)
	slot := func() rhumb.RangeID {
		t.Helper()
		id, err := a.ActiveSlot(t.Context(), class)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := slot()
	if r, ok := m.State().Range(first); !ok || r.Primary != 1 {
		t.Fatalf("the active slot is %+v", r)
	}
	m.fill(first, shard-1)
	if id := slot(); id != first {
		t.Fatalf("a slot that is not full was left for %s", id)
	}
	m.fill(first, shard)
	var wait sync.WaitGroup
	ids := make([]rhumb.RangeID, 16)
	for i := range ids {
		wait.Go(func() { ids[i] = slot() })
	}
	wait.Wait()
	for _, id := range ids {
		if id == first || id != ids[0] {
			t.Errorf("inserts go to %s and %s after %s was full", id, ids[0], first)
		}
	}
	if m.opened != 2 {
		t.Errorf("%d slots were opened, want 2", m.opened)
	}
	if _, err := a.ActiveSlot(t.Context(), 99); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a class that is not there: %v", err)
	}
}

// TestActiveSlotAfterFailover guards that a node names keys only in slots of which it is primary:
// two primaries could assign one name twice.
func TestActiveSlotAfterFailover(t *testing.T) {
	m, a, class := start(t)
	first, err := a.ActiveSlot(t.Context(), class)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := m.State().Range(first)
	m.apply(catalog.AlterISR{Range: first, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 1, Boot: 1}, {Node: 2, Boot: 1}, {Node: 3, Boot: 1}}})
	r, _ = m.State().Range(first)
	m.apply(catalog.Elect{Range: first, Version: r.Version, Node: 2})
	second, err := a.ActiveSlot(t.Context(), class)
	if err != nil || second == first {
		t.Fatalf("inserts go to %s, which node 2 orders: %v", second, err)
	}
	if id, err := New(Config{Self: 2, Meta: m, Sizes: m}).Takes(t.Context(), first); rhumb.KindOf(err) != rhumb.NotPrimary || id == first {
		t.Errorf("node 2 names keys in a slot of node 1: %s, %v", id, err)
	}
}

// TestTakes guards which range gets the inserts that were sent to one.
func TestTakes(t *testing.T) {
	m, a, class := start(t)
	own, err := a.ActiveSlot(t.Context(), class)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := a.Takes(t.Context(), own); err != nil || id != own {
		t.Errorf("the active slot: %s, %v", id, err)
	}
	hash, _ := m.State().HashBlock(own.Region, class)
	if id, err := a.Takes(t.Context(), rhumb.RangeID{Region: own.Region, Slot: hash.First}); rhumb.KindOf(err) != rhumb.NotPrimary || id != own {
		t.Errorf("a hash slot: %s, %v", id, err)
	}
	m.fill(own, shard)
	next, err := a.Takes(t.Context(), own)
	if rhumb.KindOf(err) != rhumb.NotPrimary || next == own {
		t.Errorf("a full slot: %s, %v", next, err)
	}
	if id, err := a.Takes(t.Context(), next); err != nil || id != next {
		t.Errorf("the slot after the full one: %s, %v", id, err)
	}
	if _, err := a.Takes(t.Context(), rhumb.RangeID{Region: own.Region, Slot: 1 << 20}); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a slot of no block: %v", err)
	}
	m.fill(next, shard)
	m.refuse = rhumb.E("test", rhumb.Unavailable, "no majority")
	if _, err := a.Takes(t.Context(), next); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("without metadata: %v", err)
	}
}

// heardLoads holds the loads that nodes have reported; a node that is missing has not reported.
type heardLoads map[rhumb.NodeID]int64

func (l heardLoads) Load(n rhumb.NodeID, _ rhumb.ClassID) (int64, bool) {
	bytes, known := l[n]
	return bytes, known
}

// TestInsertsGoToLeastLoaded guards TippyDB's rule: a node that holds more than twice the shard
// size sends inserts to the least loaded node of its region, if that holds at least a shard less.
func TestInsertsGoToLeastLoaded(t *testing.T) {
	for _, c := range []struct {
		name  string
		loads heardLoads
		want  rhumb.NodeID
	}{
		{"below the threshold", heardLoads{1: 2 * shard, 2: 0, 3: 0}, 1},
		{"above it", heardLoads{1: 2*shard + 1, 2: shard, 3: shard - 1}, 3},
		{"the others hold as much", heardLoads{1: 9 * shard, 2: 9 * shard, 3: 8*shard + 1}, 1},
		{"another holds a shard less", heardLoads{1: 9 * shard, 2: 8 * shard, 3: 9 * shard}, 2},
		{"the least is not heard", heardLoads{1: 9 * shard, 2: shard}, 2},
		{"nobody is heard", heardLoads{1: 9 * shard}, 1},
		{"it does not know its own load", heardLoads{2: 0, 3: 0}, 1},
		{"the least is in another region", heardLoads{1: 9 * shard, 2: 9 * shard, 3: shard, 4: 0}, 3},
		{"the least is draining", heardLoads{1: 9 * shard, 2: shard, 3: 2 * shard, 5: 0}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, _, class := start(t)
			for i, region := range []string{"frankfurt", "singapore"} {
				id := byte(4 + i)
				m.apply(catalog.RegisterNode{
					Binary: testBinary, Store: rhumb.UUID{id}, Boot: 1, Nonce: uint64(id), Region: region, Zone: "z", HasLocation: true,
					Addr: fmt.Sprintf("127.0.0.%d:1", id), HeartbeatAddr: "127.0.0.1:2", AdminAddr: "127.0.0.1:3",
				})
			}
			m.apply(catalog.SetNodeState{Node: 5, Boot: 1, State: rhumb.NodeDraining})
			own, err := New(Config{Self: 1, Meta: m, Sizes: m}).ActiveSlot(t.Context(), class)
			if err != nil {
				t.Fatal(err)
			}
			a := New(Config{Self: 1, Meta: m, Sizes: m, Loads: c.loads})
			id, err := a.ActiveSlot(t.Context(), class)
			if err != nil {
				t.Fatal(err)
			}
			if r, ok := m.State().Range(id); !ok || r.Primary != c.want || id.Region != own.Region {
				t.Errorf("inserts go to %s, which is %+v, want one of node %s", id, r, c.want)
			}
			opened := m.opened
			instead, err := a.Takes(t.Context(), own)
			if c.want == 1 && (err != nil || instead != own) {
				t.Errorf("the node's own slot is refused for %s: %v", instead, err)
			}
			if c.want != 1 && (rhumb.KindOf(err) != rhumb.NotPrimary || instead != id || m.opened != opened) {
				t.Errorf("the node's own slot gives %s, %v, want %s, which was opened before", instead, err, id)
			}
		})
	}
}

// TestInsertsStayWithoutMetadata guards that a node keeps inserts if no slot can be opened on a
// better one.
func TestInsertsStayWithoutMetadata(t *testing.T) {
	m, _, class := start(t)
	a := New(Config{Self: 1, Meta: m, Sizes: m, Loads: heardLoads{1: 9 * shard, 2: 9 * shard, 3: 0}})
	own, err := New(Config{Self: 1, Meta: m, Sizes: m}).ActiveSlot(t.Context(), class)
	if err != nil {
		t.Fatal(err)
	}
	m.refuse = rhumb.E("test", rhumb.Unavailable, "no majority")
	if id, err := a.ActiveSlot(t.Context(), class); err != nil || id != own {
		t.Errorf("inserts go to %s, want %s: %v", id, own, err)
	}
	if id, err := a.Takes(t.Context(), own); err != nil || id != own {
		t.Errorf("the node's own slot is refused for %s: %v", id, err)
	}
}

// TestSlotOnFencedNode guards that a slot is opened again when a node that was chosen for a copy is fenced meanwhile, and that an insert is never
// refused as a conflict for that.
func TestSlotOnFencedNode(t *testing.T) {
	for refusals, want := range map[int]rhumb.Kind{openTries - 1: 0, openTries: rhumb.Unavailable} {
		m, a, class := start(t)
		m.refuse, m.refusals = rhumb.E("test", rhumb.Conflict, "n3 is fenced and cannot hold a new range"), refusals
		if _, err := a.ActiveSlot(t.Context(), class); (err != nil) != (want != 0) || err != nil && rhumb.KindOf(err) != want {
			t.Errorf("after %d refusals: %v", refusals, err)
		}
	}
}

// TestDrain guards that a drained node has no primary left that another could take over, that Drain
// ends with its context and returns the number of primaries left, and that undo makes the node live
// again.
func TestDrain(t *testing.T) {
	m, a, _ := start(t)
	if _, err := a.Drain(t.Context(), 99, false); rhumb.KindOf(err) != rhumb.NotFound {
		t.Errorf("a node that is not there: %v", err)
	}
	held := func(n rhumb.NodeID) (count int) {
		for r := range m.State().Ranges() {
			if r.Primary == n {
				count++
			}
		}
		return count
	}
	if held(2) == 0 {
		t.Fatal("node 2 has nothing to give up")
	}
	alone, spared := rhumb.RangeID{}, 0 // of one range of node 2 nobody else has all of the log
	for r := range m.State().Ranges() {
		if r.Primary == 2 && spared == 0 {
			alone, spared = r.ID, 1
			continue
		}
		m.apply(catalog.AlterISR{Range: r.ID, Epoch: r.Epoch, Version: r.Version, Members: []catalog.Member{{Node: 1, Boot: 1}, {Node: 2, Boot: 1}, {Node: 3, Boot: 1}}})
	}
	if r, _ := m.State().Range(alone); len(r.InSync) > 1 {
		spared = 0
	}
	left, err := a.Drain(t.Context(), 2, false)
	if err != nil || left != spared || held(2) != spared {
		t.Fatalf("%d primaries are left, %d in the catalog, want %d: %v", left, held(2), spared, err)
	}
	if d, _ := m.State().Node(2); d.State != rhumb.NodeDraining {
		t.Errorf("a drained node is %s", d.State)
	}
	if _, err := a.Drain(t.Context(), 2, true); err != nil {
		t.Fatal(err)
	}
	if d, _ := m.State().Node(2); d.State != rhumb.NodeLive {
		t.Errorf("a node whose drain was taken back is %s", d.State)
	}
	m.refuse = rhumb.E("test", rhumb.Unavailable, "no majority")
	if _, err := a.Drain(t.Context(), 3, false); rhumb.KindOf(err) != rhumb.Unavailable {
		t.Errorf("without metadata: %v", err)
	}
}

// stuck is a metadata group that accepts a drain and never moves a primary.
type stuck struct{ *meta }

func (s stuck) Propose(context.Context, catalog.Command) (catalog.Result, error) {
	return catalog.Result{}, nil
}

func TestDrainEndsWithItsContext(t *testing.T) {
	m, _, _ := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	left, err := New(Config{Self: 1, Meta: stuck{m}, Sizes: m}).Drain(ctx, 1, false)
	if err != nil || left == 0 {
		t.Fatalf("%d primaries are left of a node that gave none up, %v", left, err)
	}
}
