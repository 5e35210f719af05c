package client

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/wan"
)

func TestPutGetDelete(t *testing.T) {
	w := newWorld(t, 3, 1)
	c := w.open("frankfurt")
	tab := w.table(c, "plain")
	ctx := t.Context()
	put := must[Result](t)(tab.Put(ctx, []byte("k"), []byte("v"), PutOptions{}))
	if put.Key.Home != homeOf(2, "k") || !put.Applied || put.Version.IsZero() || put.Receipt.Region != 2 || put.Receipt.Hops != 1 {
		t.Fatalf("put: %+v", put)
	}
	got := must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	if b, err := got.Bytes(); err != nil || string(b) != "v" || got.Version != put.Version || got.Key.Home != put.Key.Home || got.Receipt.Searched != 0 {
		t.Fatalf("get: %+v %q %v", got, b, err)
	}
	if _, err := got.Record(); err == nil {
		t.Fatal("opaque bytes were read as a record")
	}
	r := record(t, "alt", 3, "sign", "SWR")
	must[Result](t)(tab.PutRecord(ctx, []byte("k"), r, PutOptions{If: rhumb.Condition{Kind: rhumb.IfVersion, Version: put.Version}}))
	got = must[Got](t)(tab.Get(ctx, []byte("k"), GetOptions{}))
	if back, err := got.Record(); err != nil || len(back) != 2 {
		t.Fatalf("record: %v %v", back, err)
	}
	if _, err := got.Bytes(); err == nil {
		t.Fatal("a record was read as opaque bytes")
	}
	del := must[Result](t)(tab.Delete(ctx, []byte("k"), DeleteOptions{}))
	if !del.Applied || !del.Existed {
		t.Fatalf("delete: %+v", del)
	}
	_, err := tab.Get(ctx, []byte("k"), GetOptions{})
	wantKind(t, err, rhumb.NotFound)
	del = must[Result](t)(tab.Delete(ctx, []byte("k"), DeleteOptions{}))
	if del.Applied || del.Existed {
		t.Fatalf("delete of nothing: %+v", del)
	}
	m := c.Metrics()
	if m.Reads == 0 || m.Writes == 0 || m.Local == 0 || m.Frames == 0 || m.Requests < m.Frames || m.Errors != 0 {
		t.Fatalf("metrics: %+v", m)
	}
}

// A request that no state could accept is refused before it is sent, with its kind and reason.
func TestBadArguments(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	ctx := t.Context()
	big := make([]byte, rhumb.ValueSizeMax+1)
	for _, tc := range []struct {
		what string
		call func() error
		kind rhumb.Kind
		text string
	}{
		{"empty name", func() error { _, err := tab.Put(ctx, nil, nil, PutOptions{}); return err }, rhumb.InvalidArgument, "name is empty"},
		{"long name", func() error { _, err := tab.Get(ctx, big, GetOptions{}); return err }, rhumb.TooLarge, "4096"},
		{"large value", func() error { _, err := tab.Put(ctx, []byte("a"), big, PutOptions{}); return err }, rhumb.TooLarge, "2097152"},
		{"unknown region", func() error {
			_, err := tab.Put(ctx, []byte("a"), nil, PutOptions{Home: "atlantis"})
			return err
		}, rhumb.NotFound, "atlantis"},
		{"bad home", func() error { _, err := tab.Get(ctx, []byte("a"), GetOptions{Home: "1/x"}); return err }, rhumb.InvalidArgument, "REGION/SLOT"},
		{"unknown table", func() error { _, err := c.Table(ctx, "nope"); return err }, rhumb.NotFound, "nope"},
		{"bad table name", func() error { _, err := c.Table(ctx, "no such"); return err }, rhumb.InvalidArgument, "letters"},
		{"bad record", func() error {
			_, err := tab.Patch(ctx, []byte("a"), rhumb.Record{{Name: "b"}, {Name: "a"}}, PatchOptions{})
			return err
		}, rhumb.InvalidArgument, "out of order"},
		{"bad token", func() error {
			for _, err := range tab.Scan(ctx, ScanOptions{After: "!"}) {
				return err
			}
			return nil
		}, rhumb.InvalidArgument, "scan token"},
		{"negative limit", func() error {
			for _, err := range tab.Scan(ctx, ScanOptions{Limit: -1}) {
				return err
			}
			return nil
		}, rhumb.InvalidArgument, "limit"},
		{"empty batch", func() error { _, err := c.Batch(ctx, nil, BatchOptions{}); return err }, rhumb.InvalidArgument, "empty"},
	} {
		err := tc.call()
		if rhumb.KindOf(err) != tc.kind || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: got %v, want kind %s and %q", tc.what, err, tc.kind, tc.text)
		}
	}
	if total, _ := w.times(); total != 0 {
		t.Fatalf("%d bad writes took effect", total)
	}
}

func TestConfigValidate(t *testing.T) {
	cfg := Config{Addrs: []string{"nowhere"}, Timeout: -1, RetryRatio: 2, RetryBurst: -1, HomesMax: -1}
	err := cfg.Validate()
	for _, want := range []string{"nowhere", "Insecure", "Timeout is -1ns", "RetryBurst is -1", "RetryRatio is 2", "HomesMax is -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not speak of %s", err, want)
		}
	}
	if _, err := Open(t.Context(), Config{}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("opened without addresses: %v", err)
	}
}

func TestOpenFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = Open(t.Context(), Config{Addrs: []string{addr}, Insecure: true})
	wantKind(t, err, rhumb.Unavailable)

	w := newWorld(t, 1, 1)
	_, err = Open(t.Context(), Config{Addrs: []string{w.nodes[0].addr}, From: "atlantis", Insecure: true})
	wantKind(t, err, rhumb.NotFound)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, Config{Addrs: []string{w.nodes[0].addr}, Insecure: true})
	wantKind(t, err, rhumb.Unavailable)

	w.mu.Lock()
	w.meta.Cluster = rhumb.ClusterID{}
	w.mu.Unlock()
}

// TestSplitOutcome guards that a split which was given up is recognised, and that metadata from before the reservation says nothing.
func TestSplitOutcome(t *testing.T) {
	rng := func(slot, last rhumb.Slot, version uint64, birth rhumb.Epoch) *rhumb.Range {
		return &rhumb.Range{ID: rhumb.RangeID{Region: 1, Slot: slot}, Last: last, Version: version, Birth: birth}
	}
	reserved := rng(32, 63, 6, 4)
	for name, tt := range map[string]struct {
		ranges     []*rhumb.Range
		born, over bool
	}{
		"before the reservation": {[]*rhumb.Range{rng(0, 63, 5, 0)}, false, false},
		"reserved":               {[]*rhumb.Range{rng(0, 63, 9, 0), reserved}, false, false},
		"divided":                {[]*rhumb.Range{rng(0, 31, 6, 0), rng(32, 63, 7, 0)}, true, true},
		"given up":               {[]*rhumb.Range{rng(0, 63, 7, 0)}, false, true},
		"another region":         {[]*rhumb.Range{{ID: rhumb.RangeID{Region: 2}, Last: 63, Version: 99}}, false, false},
	} {
		if born, over := splitOutcome(tt.ranges, reserved); (born != nil) != tt.born || over != tt.over {
			t.Errorf("%s: %+v, over %v", name, born, over)
		}
	}
}

// TestAwaitTable guards that a client whose metadata has an earlier table of the name waits for the one that it asks for.
func TestAwaitTable(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	have := w.table(c, "plain").Info().ID
	if tab, err := c.awaitTable(t.Context(), "test", "plain", have, 1); err != nil || tab.Info().ID != have {
		t.Errorf("the table itself: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.awaitTable(ctx, "test", "plain", have+1, 1)
	wantKind(t, err, rhumb.Unavailable)
}

// TestOpenAsksAgain: a node that cannot decide a login yet, as after the user was created elsewhere, is asked again, and not for ever.
func TestOpenAsksAgain(t *testing.T) {
	for unsure, want := range map[int]rhumb.Kind{unsureTries - 1: 0, unsureTries: rhumb.Unavailable} {
		w := newWorld(t, 1, 1)
		w.nodes[0].unsure = unsure
		c, err := Open(t.Context(), Config{Addrs: []string{w.nodes[0].addr}, Insecure: true})
		if err == nil {
			c.Close()
		}
		if (err != nil) != (want != 0) || err != nil && rhumb.KindOf(err) != want {
			t.Errorf("after %d answers: %v", unsure, err)
		}
	}
}

// The nearest node by measured round trip decides the caller's region, whatever the order of the
// addresses.
func TestNearest(t *testing.T) {
	w := newWorld(t, 3, 1)
	file := &wan.File{
		RoundTrips: map[string]map[string]float64{
			"here":      {"singapore": 40, "frankfurt": 20, "virginia": 4},
			"singapore": {"frankfurt": 150, "virginia": 250}, "frankfurt": {"virginia": 90},
		},
		Addresses: map[string]string{},
	}
	for i, n := range w.nodes {
		file.Addresses[n.addr] = places[i].Name
	}
	c := w.open("", func(cfg *Config) { cfg.Dial = wan.New(file).Dialer("here") })
	if c.Region().Name != "virginia" {
		t.Fatalf("the nearest region is virginia, got %s", c.Region().Name)
	}
	await(t, "the measurement of singapore", func() bool { _, ok := c.RoundTrip(1); return ok })
	near := c.nearestFirst()
	if len(near) != 3 || near[0] != w.nodes[2].addr || near[1] != w.nodes[1].addr {
		t.Fatalf("order of distance: %v", near)
	}
	if d, _ := c.RoundTrip(1); d < 40*time.Millisecond {
		t.Fatalf("round trip to singapore: %s", d)
	}
	if c.Cluster() != w.meta.Cluster || c.Revision() != 1 {
		t.Fatal("the client knows another cluster or revision")
	}
}

// TestStatusRoundTrip guards that the round trip to a node is shown without the time to connect to it, which is several round trips.
func TestStatusRoundTrip(t *testing.T) {
	w := newWorld(t, 1, 1)
	const delay = 100 * time.Millisecond
	// The delay stands for the handshakes of a far node.
	c := w.open("singapore", func(cfg *Config) {
		cfg.MeasureInterval = time.Hour
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(delay)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	})
	// Another address of the node, to which no connection exists.
	alias := strings.Replace(w.nodes[0].addr, "127.0.0.1", "localhost", 1)
	w.mu.Lock()
	w.meta.Nodes[0].Addr = alias
	w.meta.Revision++
	close(w.news)
	w.news = make(chan struct{})
	w.mu.Unlock()
	await(t, "the other address", func() bool { return c.Nodes()[0].Addr == alias })
	if s := c.Status(t.Context())[0]; s.Err != "" || s.RoundTrip >= delay {
		t.Errorf("the round trip is %v (%s), and connecting takes %v", s.RoundTrip, s.Err, delay)
	}
}

// When the node that serves the metadata dies, the watch goes on at another, and changes are seen.
func TestWatchFailsOver(t *testing.T) {
	w := newWorld(t, 1, 3)
	c := w.open("singapore")
	for i := range 2 {
		w.nodes[i].server.Stop()
		w.move(homeOf(1, "k"), 3)
		await(t, "the client sees the change", func() bool {
			r, _, ok := c.meta.primaryOf(homeOf(1, "k"))
			return ok && r.Primary == 3 && c.Revision() == uint64(2+i)
		})
	}
	if _, err := w.table(c, "plain").Put(t.Context(), []byte("k"), nil, PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAdmin(t *testing.T) {
	w := newWorld(t, 2, 1)
	c := w.open("singapore")
	ctx := t.Context()
	tab := must[*Table](t)(c.CreateTable(ctx, "new", TableOptions{TableOptions: rhumb.TableOptions{Colocate: '/'}}))
	if tab.Name() != "new" || tab.Info().Colocate != '/' {
		t.Fatalf("%+v", tab.Info())
	}
	_, err := c.CreateTable(ctx, "new", TableOptions{})
	wantKind(t, err, rhumb.AlreadyExists)
	_, err = c.CreateTable(ctx, "bad", TableOptions{Settings: rhumb.ClassSettings{Replicas: 99}})
	wantKind(t, err, rhumb.InvalidArgument)
	if ts := c.Tables(); len(ts) != 3 || ts[2].Name != "new" || ts[0].Ranges != 2*(hashSlots+1) || ts[0].Settings.HashSlots != hashSlots {
		t.Fatalf("tables: %+v", ts)
	}
	if len(c.Regions()) != 2 || len(c.Nodes()) != 2 || len(c.Ranges()) != 2*(hashSlots+1) {
		t.Fatal("regions, nodes or ranges are missing")
	}
	st := must[RangeStatus](t)(c.DescribeRange(ctx, homeOf(1, "k")))
	if st.Range.ID != homeOf(1, "k") || len(st.Replicas) != 1 || st.Replicas[0].State != "primary" || st.Replicas[0].End != 9 {
		t.Fatalf("%+v", st)
	}
	_, err = c.DescribeRange(ctx, rhumb.RangeID{Region: 9, Slot: 9})
	wantKind(t, err, rhumb.NotFound)
	if n, err := c.Drain(ctx, 2, false); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for want, poses := range map[string]func() (rhumb.NodeID, rhumb.ClusterID){
		"node n9 of another cluster, 08000000000000000000000000000000, answers at its address": func() (rhumb.NodeID, rhumb.ClusterID) { return 9, rhumb.UUID{8} },
		"node n1 of another cluster":     func() (rhumb.NodeID, rhumb.ClusterID) { return 1, rhumb.UUID{8} },
		"node n2 answers at its address": func() (rhumb.NodeID, rhumb.ClusterID) { return 2, w.meta.Cluster },
	} { // the node's address belongs to another process now
		w.nodes[0].poses = poses
		if s := c.Status(ctx)[0]; s.Ready || !strings.Contains(s.Err, want) || s.Ranges != 0 || s.Node.ID != 1 {
			t.Errorf("%+v, want %q", s, want)
		}
	}
	w.nodes[0].poses = nil
	w.nodes[1].server.Stop()
	all := c.Status(ctx)
	if len(all) != 2 || !all[0].Ready || all[0].Err != "" || all[0].Stores[0].FreeBytes != 5 || all[1].Err == "" {
		t.Fatalf("%+v", all)
	}
	_, err = Init(ctx, Config{Addrs: []string{w.nodes[0].addr}, Insecure: true})
	wantKind(t, err, rhumb.AlreadyExists)
}

// A table whose making was answered by nobody is found made when it is tried again.
func TestCreateTableAnswerLost(t *testing.T) {
	w := newWorld(t, 1, 2)
	c := w.open("singapore")
	for _, n := range w.nodes {
		n.mute = true
	}
	if _, err := c.CreateTable(t.Context(), "new", TableOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A table made through another client is there, although this one's watch may be behind.
func TestTableOfAnotherClient(t *testing.T) {
	w := newWorld(t, 1, 1)
	a, b := w.open(""), w.open("")
	must[*Table](t)(a.CreateTable(t.Context(), "new", TableOptions{}))
	w.table(b, "new")
}

func TestCloseEndsAll(t *testing.T) {
	w := newWorld(t, 3, 2)
	c := w.open("singapore")
	tab := w.table(c, "plain")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		must[Result](t)(tab.Put(t.Context(), []byte(name), nil, PutOptions{}))
		_, err := tab.Get(t.Context(), []byte(name+"?"), GetOptions{})
		wantKind(t, err, rhumb.NotFound)
	}
	arrived := make(chan struct{}, 8)
	for _, n := range w.nodes {
		n.set(func(*rhumbpb.Request) fault {
			arrived <- struct{}{}
			return fault{drop: true}
		})
	}
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			_, err := tab.Put(context.Background(), []byte("a"), nil, PutOptions{})
			if k := rhumb.KindOf(err); k != rhumb.Unknown {
				t.Errorf("a write under way when the client closed: %v", err)
			}
		})
	}
	for range 8 {
		<-arrived
	}
	c.Close()
	work.Wait()
	_, err := tab.Put(t.Context(), []byte("a"), nil, PutOptions{})
	wantKind(t, err, rhumb.Canceled)
	_, err = tab.Get(t.Context(), []byte("z"), GetOptions{})
	wantKind(t, err, rhumb.Canceled)
	await(t, "no goroutine of the client is left", func() bool {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(stacks, "client.(*Client)") && !strings.Contains(stacks, "client.(*link)")
	})
}

// A node of another cluster is refused, and the error says so at once.
func TestWrongCluster(t *testing.T) {
	w := newWorld(t, 1, 1)
	c := w.open("")
	tab := w.table(c, "plain")
	c.meta.mu.Lock()
	c.meta.cluster = rhumb.ClusterID{9}
	c.meta.mu.Unlock()
	_, err := tab.Put(t.Context(), []byte("k"), nil, PutOptions{})
	wantKind(t, err, rhumb.WrongCluster)
	if total, _ := w.times(); total != 0 {
		t.Fatal("the write took effect in another cluster")
	}
}

func TestMetadataDeltas(t *testing.T) {
	m := newMetadata()
	full := &api.Metadata{
		Revision: 5, Full: true, Cluster: rhumb.UUID{1},
		Regions: places, Nodes: []rhumb.Node{{ID: 1, Addr: "a:1", Boot: 1, State: rhumb.NodeLive}, {ID: 2, Addr: "b:1", Boot: 1, State: rhumb.NodeLive}},
		Tables: []rhumb.Table{{ID: 1, Name: "x", Class: 1}, {ID: 2, Name: "y", Class: 1}},
		Ranges: []*rhumb.Range{newRange(1, 0, 1), newRange(1, 1, 2)},
	}
	if lost, ok := m.applyUpdate(full); !ok || len(lost) != 0 {
		t.Fatal(lost, ok)
	}
	changed := m.nextChange()
	lost, ok := m.applyUpdate(&api.Metadata{
		Revision: 6, Cluster: rhumb.UUID{1}, Nodes: []rhumb.Node{{ID: 1, Addr: "a:1", Boot: 1, State: rhumb.NodeFenced}},
		RemovedTables: []rhumb.TableID{2}, RemovedRanges: []rhumb.RangeID{{Region: 1, Slot: 1}}, RemovedNodes: []rhumb.NodeID{2},
	})
	if !ok || len(lost) != 2 {
		t.Fatalf("a fenced and a removed node are lost: %v %t", lost, ok)
	}
	select {
	case <-changed:
	default:
		t.Fatal("nobody was told of the change")
	}
	if _, _, ok := m.tableByName("y"); ok || len(m.ranges) != 1 || len(m.nodes) != 1 {
		t.Fatal("removed things are still there")
	}
	newer := newRange(1, 0, 2)
	newer.Version = 9
	if !m.learnRange(newer) || m.learnRange(newer) || m.learnRange(newRange(1, 0, 1)) || m.learnRange(nil) {
		t.Fatal("only a newer descriptor is news")
	}
	full.Revision = 7
	if _, ok := m.applyUpdate(full); !ok {
		t.Fatal("a newer full state was refused")
	}
	if r, _, _ := m.primaryOf(rhumb.RangeID{Region: 1}); r.Primary != 2 {
		t.Fatal("a full state took back a newer descriptor")
	}
	full.Revision = 3
	if _, ok := m.applyUpdate(full); ok {
		t.Fatal("an older full state was taken")
	}
}
