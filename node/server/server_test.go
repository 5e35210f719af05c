package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Nodes and ranges of the tests. self is the primary of the slots of home, far of those of away.
// full accepts no more inserts.
const (
	self, near, far rhumb.NodeID   = 1, 2, 3
	here, there     rhumb.RegionID = 1, 2
	table, other    rhumb.TableID  = 1, 2
	waitMax                        = 20 * time.Second
)

var (
	cluster = rhumb.ClusterID{7}
	home    = rhumb.RangeID{Region: here, Slot: 0}
	second  = rhumb.RangeID{Region: here, Slot: 1}
	beside  = rhumb.RangeID{Region: here, Slot: 2} // near is its primary
	away    = rhumb.RangeID{Region: there, Slot: 0}
	full    = rhumb.RangeID{Region: here, Slot: 1_024}
	open    = rhumb.RangeID{Region: here, Slot: 1_025}
)

// world is a small version of the rest of a node: ranges in memory, and peers that are functions.
type world struct {
	mu      sync.Mutex // guards all below
	ranges  map[rhumb.RangeID]*rhumb.Range
	items   map[rhumb.RangeID]map[string][]byte
	pending []func() // proposals that wait for Drive
	drives  int
	// held, if not nil, delays answers to writes until it is closed.
	held chan struct{}
	// refuse, if not nil, is the answer to writes.
	refuse   error
	unleased bool
	proposed []*rhumb.Batch
	// forwards holds the requests that were forwarded; answer answers them.
	forwards []*rhumbpb.Request
	answer   func(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error)
	slotErr  error
	// begun holds the epochs that this node took over before metadata shows them, handed those that it handed over.
	// lost makes it wait for a handover in vain.
	begun  map[rhumb.RangeID]rhumb.Epoch
	handed map[rhumb.RangeID]rhumb.Handover
	lost   bool
}

func newWorld() *world {
	w := &world{ranges: map[rhumb.RangeID]*rhumb.Range{}, items: map[rhumb.RangeID]map[string][]byte{}, begun: map[rhumb.RangeID]rhumb.Epoch{}, handed: map[rhumb.RangeID]rhumb.Handover{}}
	for id, primary := range map[rhumb.RangeID]rhumb.NodeID{home: self, second: self, full: self, open: self, beside: near, away: far} {
		w.ranges[id] = &rhumb.Range{ID: id, Class: 1, Epoch: 3, Allocated: 3, Version: 5, Primary: primary, InSync: []rhumb.NodeID{primary}, Replicas: []rhumb.NodeID{primary}}
		w.items[id] = map[string][]byte{}
	}
	return w
}

func (w *world) Propose(b *rhumb.Batch, done func(rhumb.Outcome, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proposed = append(w.proposed, b)
	held, refuse := w.held, w.refuse
	w.pending = append(w.pending, func() {
		if held != nil {
			<-held
		}
		if refuse != nil {
			done(rhumb.Outcome{}, refuse)
			return
		}
		o := rhumb.Outcome{Applied: true, Version: rhumb.Version{HLC: 9, Node: self}, Seq: 1, Existed: make([]bool, len(b.Mutations))}
		w.mu.Lock()
		for i := range b.Mutations {
			m := &b.Mutations[i]
			name := string(m.Name)
			if m.Kind == rhumb.Insert {
				name = fmt.Sprintf("name-%d", len(w.items[b.Range]))
				o.Names = append(o.Names, []byte(name))
			}
			w.items[b.Range][name] = m.Value
		}
		w.mu.Unlock()
		done(o, nil)
	})
}

func (w *world) Drive() {
	w.mu.Lock()
	todo := w.pending
	w.pending = nil
	w.drives++
	w.mu.Unlock()
	for _, do := range slices.Backward(todo) { // the last asked is answered first
		go do()
	}
}

func (w *world) Get(_ context.Context, id rhumb.RangeID, t rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	items := make([]rhumb.Item, len(names))
	for i, n := range names {
		items[i].Key = rhumb.Key{Table: t, Home: id, Name: n}
		if v, ok := w.items[id][string(n)]; ok {
			items[i].Value, items[i].Version = v, rhumb.Version{HLC: 9, Node: self}
		}
	}
	return items, rhumb.Receipt{Node: self, Range: id, Epoch: 3, Hops: 1}, nil
}

func (w *world) Exists(_ context.Context, id rhumb.RangeID, _ []rhumb.TableID, names [][]byte) ([]bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	exist := make([]bool, len(names))
	for i, n := range names {
		_, exist[i] = w.items[id][string(n)]
	}
	return exist, nil
}

func (w *world) Scan(_ context.Context, q rhumb.ScanQuery) (p rhumb.ScanPage, r rhumb.Receipt, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, id := range q.Ranges {
		end := rhumb.Slot(0)
		if id == home {
			q.Range, end = id, id.Slot+1
		}
		p.Ends = append(p.Ends, end)
	}
	for n := range w.items[q.Range] {
		if strings.HasPrefix(n, string(q.Prefix)) && (q.After == nil || n > string(q.After)) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if len(p.Items) == q.Limit {
			p.More = true
			break
		}
		p.Items = append(p.Items, rhumb.Item{Key: rhumb.Key{Table: q.Table, Home: q.Range, Name: []byte(n)}, Version: rhumb.Version{HLC: 9}, Value: w.items[q.Range][n]})
	}
	return p, rhumb.Receipt{Node: self, Range: q.Range, Hops: 1}, nil
}

func (w *world) Leased(rhumb.RangeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.unleased
}

func (w *world) PrimaryEpoch(id rhumb.RangeID) rhumb.Epoch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun[id]
}

func (w *world) HandedOver(id rhumb.RangeID) (rhumb.Epoch, rhumb.NodeID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.handed[id]
	return h.Epoch, h.Target, ok
}

// AwaitPrimary makes this node primary at once, or fails if it is not to become so.
func (w *world) AwaitPrimary(_ context.Context, id rhumb.RangeID, epoch rhumb.Epoch, _ bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost {
		return rhumb.E("test", rhumb.Unavailable, "the handover was lost")
	}
	w.begun[id] = epoch
	return nil
}

func (w *world) Forward(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	w.mu.Lock()
	w.forwards = append(w.forwards, q)
	answer := w.answer
	w.mu.Unlock()
	return answer(ctx, to, q)
}

func (w *world) ActiveSlot(context.Context, rhumb.ClassID) (rhumb.RangeID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return open, w.slotErr
}

func (w *world) Takes(_ context.Context, id rhumb.RangeID) (rhumb.RangeID, error) {
	if id == open {
		return open, nil
	}
	return open, &rhumb.Error{Op: "test", Kind: rhumb.NotPrimary, Range: id, Msg: "full"}
}

// Named chooses the range of a name by its first letter: a and b belong to ranges of self, c to
// beside, all others to away.
func (w *world) Named(_ rhumb.RegionID, _ rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	for prefix, id := range map[string]rhumb.RangeID{"a": home, "b": second, "c": beside} {
		if bytes.HasPrefix(name, []byte(prefix)) {
			return id, nil
		}
	}
	return away, nil
}

func (w *world) Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error) {
	return w.Named(region, b.Mutations[0].Table, b.Mutations[0].Name)
}

// Check rejects one name, which belongs to another range.
func (w *world) Check(b *rhumb.Batch) error {
	for i := range b.Mutations {
		if string(b.Mutations[i].Name) == "elsewhere" {
			return rhumb.E("test", rhumb.InvalidArgument, "it lives in 1/2")
		}
	}
	return nil
}

func (w *world) Class(t rhumb.TableID) (*rhumb.Class, error) {
	if t != table && t != other {
		return nil, rhumb.Ef("test", rhumb.NotFound, "table %s does not exist", t)
	}
	return &rhumb.Class{ID: rhumb.ClassID(t)}, nil
}

func (w *world) Range(id rhumb.RangeID) (*rhumb.Range, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.ranges[id]
	if !ok {
		return nil, &rhumb.Error{Op: "test", Kind: rhumb.NotFound, Range: id}
	}
	return r, nil
}

func (w *world) Hashed(rhumb.RangeID) bool { return false }

func (w *world) SameRegion(a, b rhumb.NodeID) bool { return (a == far) == (b == far) }

// with changes the world under its lock.
func (w *world) with(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// serve starts a server with the services of register, and returns a connection in memory to it.
func serve(t *testing.T, register func(s *grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	return serveWith(t, func() *catalog.State { return nil }, register, options...)
}

// alwaysCurrent is for nodes whose catalog is never old.
func alwaysCurrent(context.Context) bool { return true }

// serveWith is like serve for a node with a catalog.
func serveWith(t *testing.T, state func() *catalog.State, register func(s *grpc.Server), options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	// The services of a node are never without these two.
	options = append(options, identify(callerInTest)...)
	options = append(options, (&Authorizer{state, alwaysCurrent, NewDenied()}).Options()...)
	s := grpc.NewServer(append(api.ServerOptions(0, api.PlainText()), options...)...)
	register(s)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := api.Connect("test", func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }, api.PlainText())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// start serves the world's KV.
func (w *world) start(t *testing.T) (rhumbpb.KVClient, *KV, *Service) {
	t.Helper()
	kv := NewKV(Config{Cluster: cluster, Self: self, Region: here, Routes: w, Ranges: w, Peers: w, Inserts: w, Logger: slog.New(slog.DiscardHandler)})
	s := &Service{}
	s.Open(kv)
	return rhumbpb.NewKVClient(serve(t, func(g *grpc.Server) { s.Register(g) })), kv, s
}

type kvStream = grpc.BidiStreamingClient[rhumbpb.ClientFrame, rhumbpb.ServerFrame]

func openStream(t *testing.T, c rhumbpb.KVClient, hello *rhumbpb.Hello, qs ...*rhumbpb.Request) kvStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	t.Cleanup(cancel)
	s, err := c.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// io.EOF means that the server has ended the stream already; Recv then returns the reason.
	if err := s.Send(&rhumbpb.ClientFrame{Hello: hello, Requests: qs}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return s
}

func hello() *rhumbpb.Hello { return &rhumbpb.Hello{Protocol: api.Protocol, Cluster: cluster[:]} }

// take receives n responses and returns them by ID.
func take(t *testing.T, s kvStream, n int) map[uint64]*rhumbpb.Response {
	t.Helper()
	got := map[uint64]*rhumbpb.Response{}
	for len(got) < n {
		f, err := s.Recv()
		if err != nil {
			t.Fatalf("after %d of %d responses: %v", len(got), n, err)
		}
		for _, r := range f.Responses {
			if got[r.Id] != nil {
				t.Fatalf("request %d is answered twice", r.Id)
			}
			got[r.Id] = r
		}
	}
	return got
}

func putReq(id uint64, at rhumb.RangeID, name, value string) *rhumbpb.Request {
	return &rhumbpb.Request{Id: id, Write: &rhumbpb.Write{Region: uint32(at.Region), Slot: uint32(at.Slot), Mutations: []*rhumbpb.Mutation{mutation(rhumb.Put, table, name, value)}}}
}

func mutation(kind rhumb.MutationKind, t rhumb.TableID, name, value string) *rhumbpb.Mutation {
	return &rhumbpb.Mutation{Kind: rhumbpb.MutationKind(kind), Table: uint32(t), Name: []byte(name), Value: rhumb.EncodeOpaque(nil, []byte(value))}
}

func getReq(id uint64, at rhumb.RangeID, names ...string) *rhumbpb.Request {
	r := &rhumbpb.Read{Table: uint32(table), Region: uint32(at.Region), Slot: uint32(at.Slot)}
	for _, n := range names {
		r.Names = append(r.Names, []byte(n))
	}
	return &rhumbpb.Request{Id: id, Read: r}
}

// do sends one request and returns its response, or its error and hint.
func do(t *testing.T, c rhumbpb.KVClient, q *rhumbpb.Request) (*rhumbpb.Response, *rhumb.Error, api.Hint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitMax)
	defer cancel()
	resp, err := c.Do(ctx, q)
	if err == nil {
		return resp, &rhumb.Error{}, api.Hint{}
	}
	e, hint, remote := api.FromStatus("test", err)
	if !remote {
		t.Fatalf("the transport failed: %v", err)
	}
	return nil, e, hint
}

// TestFrameIsAnsweredOutOfOrder guards that each request of a frame gets its own answer, in
// whatever order the answers arrive, and that the writes of the frame share one Drive.
func TestFrameIsAnsweredOutOfOrder(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	const n = 300
	var qs []*rhumbpb.Request
	for i := range uint64(n) {
		qs = append(qs, putReq(i+1, home, fmt.Sprintf("k%d", i), fmt.Sprint(i)))
	}
	qs = append(qs, &rhumbpb.Request{Id: n + 1}, getReq(n+2, home, "absent"))
	s := openStream(t, c, hello(), qs...)
	got := take(t, s, n+2)
	for i := range uint64(n) {
		if r := got[i+1]; r.Error != nil || !r.Outcome.Applied || r.Receipt.Hops != 1 || r.Receipt.Epoch != 3 {
			t.Fatalf("request %d is answered %v", i+1, r)
		}
	}
	if e := got[n+1].Error; e == nil || rhumb.Kind(e.Kind) != rhumb.InvalidArgument {
		t.Errorf("a request of no kind is answered %v", got[n+1])
	}
	if r := got[n+2]; r.Error != nil || len(r.Items) != 1 || r.Items[0].Hlc != 0 {
		t.Errorf("a read of an absent key is answered %v", r)
	}
	w.with(func() {
		if w.drives != 1 {
			t.Errorf("a frame took %d drives", w.drives)
		}
	})
	for i := range uint64(n) {
		if err := s.Send(&rhumbpb.ClientFrame{Requests: []*rhumbpb.Request{getReq(i+1, home, fmt.Sprintf("k%d", i))}}); err != nil {
			t.Fatal(err)
		}
	}
	for id, r := range take(t, s, n) {
		if b, _ := rhumb.DecodeOpaque(r.Items[0].Value); string(b) != fmt.Sprint(id-1) {
			t.Fatalf("k%d is %q", id-1, b)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.OK && err.Error() != "EOF" {
		t.Errorf("a stream that its client ends, ends with %v", err)
	}
}

// TestHello guards that a client of another cluster or protocol gets no answer.
func TestHello(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	for _, tc := range []struct {
		name  string
		hello *rhumbpb.Hello
		want  rhumb.Kind
	}{
		{"none", nil, rhumb.InvalidArgument},
		{"other cluster", &rhumbpb.Hello{Protocol: api.Protocol, Cluster: make([]byte, 16)}, rhumb.WrongCluster},
		{"no protocol", &rhumbpb.Hello{Cluster: cluster[:]}, rhumb.Incompatible},
	} {
		s := openStream(t, c, tc.hello, putReq(1, home, "a", "v"))
		_, err := s.Recv()
		if err == nil {
			t.Fatalf("hello %s is answered", tc.name)
		}
		if e, _, remote := api.FromStatus("test", err); !remote || e.Kind != tc.want {
			t.Errorf("hello %s: %v, want %s", tc.name, err, tc.want)
		}
	}
	w.with(func() {
		if len(w.proposed) != 0 {
			t.Error("a request of a stranger was carried out")
		}
	})
	take(t, openStream(t, c, &rhumbpb.Hello{Protocol: api.Protocol}, putReq(1, home, "a", "v")), 1) // does not know it yet
}

// TestRefusals guards the kinds of errors, and that each text says what to change.
func TestRefusals(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	ops := putReq(0, home, "a", "v")
	for i := range rhumb.BatchOpsMax {
		ops.Write.Mutations = append(ops.Write.Mutations, mutation(rhumb.Put, table, fmt.Sprint(i), "v"))
	}
	size := putReq(0, home, "a", "v")
	for i := range 3 {
		size.Write.Mutations = append(size.Write.Mutations, mutation(rhumb.Put, table, fmt.Sprint(i), strings.Repeat("x", rhumb.ValueSizeMax-100)))
	}
	mixed := putReq(0, home, "a", "v")
	mixed.Write.Mutations = append(mixed.Write.Mutations, mutation(rhumb.Insert, table, "", "v"))
	classes := &rhumbpb.Request{Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{mutation(rhumb.Insert, table, "", "v"), mutation(rhumb.Insert, other, "", "v")}}}
	for _, tc := range []struct {
		name string
		q    *rhumbpb.Request
		want rhumb.Kind
		says string
	}{
		{"too many mutations", ops, rhumb.TooLarge, fmt.Sprint(rhumb.BatchOpsMax)},
		{"too many bytes", size, rhumb.TooLarge, fmt.Sprint(rhumb.BatchSizeMax)},
		{"no mutation", &rhumbpb.Request{Write: &rhumbpb.Write{}}, rhumb.InvalidArgument, "empty"},
		{"inserts and puts", mixed, rhumb.InvalidArgument, "1 of 2"},
		{"inserts of two classes", classes, rhumb.InvalidArgument, "write twice"},
		{"a wrong slot", putReq(0, home, "elsewhere", "v"), rhumb.InvalidArgument, "1/2"},
		{"a wrong slot of another node", putReq(0, away, "elsewhere", "v"), rhumb.InvalidArgument, "1/2"},
		{"no such range", putReq(0, rhumb.RangeID{Region: 9, Slot: 9}, "a", "v"), rhumb.NotFound, ""},
		{"no such range to read", getReq(0, rhumb.RangeID{Region: 9, Slot: 9}, "a"), rhumb.NotFound, ""},
		{"read of nothing", getReq(0, home), rhumb.InvalidArgument, "names no record"},
		{"no kind", &rhumbpb.Request{}, rhumb.InvalidArgument, "neither"},
	} {
		_, err, _ := do(t, c, tc.q)
		if err.Kind != tc.want || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s that says %q", tc.name, err, tc.want, tc.says)
		}
	}
	w.with(func() {
		if len(w.proposed) != 0 {
			t.Errorf("%d refused batches were proposed", len(w.proposed))
		}
	})
}

// TestConditionFailed guards that the error contains the present version of the key.
func TestConditionFailed(t *testing.T) {
	w := newWorld()
	want := rhumb.Version{HLC: 7, Node: 8}
	w.refuse = &rhumb.Error{Op: "test", Kind: rhumb.ConditionFailed, Current: want, Msg: "no"}
	c, _, _ := w.start(t)
	if _, err, _ := do(t, c, putReq(0, home, "a", "v")); rhumb.CurrentOf(err) != want {
		t.Errorf("%v tells version %s, want %s", err, rhumb.CurrentOf(err), want)
	}
}

// TestNotPrimary guards that the error carries the newest record of the range.
func TestNotPrimary(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	for name, q := range map[string]*rhumbpb.Request{"write": putReq(0, away, "x", "v"), "read": getReq(0, away, "x")} {
		_, err, hint := do(t, c, q)
		if err.Kind != rhumb.NotPrimary || hint.Newer == nil || hint.Newer.Primary != far || hint.Newer.Version != 5 {
			t.Errorf("%s without hops: %v, hint %+v", name, err, hint.Newer)
		}
	}
	w.with(func() { w.refuse = &rhumb.Error{Op: "test", Kind: rhumb.NotPrimary, Range: home} })
	if _, err, hint := do(t, c, putReq(0, home, "a", "v")); err.Kind != rhumb.NotPrimary || hint.Newer == nil || hint.Newer.ID != home {
		t.Errorf("refused by the replica: %v, hint %+v", err, hint.Newer)
	}
}

// TestForward guards that a request is forwarded at most as often as it allows, and that a failure
// on the way never states that a write was not applied.
func TestForward(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.answer = func(_ context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
		return &rhumbpb.Response{Id: 99, Outcome: &rhumbpb.Outcome{Applied: true}, Receipt: &rhumbpb.Receipt{Node: uint32(to), Hops: q.HopsDone + 1}}, nil
	}
	q := putReq(5, away, "x", "v")
	q.Hops = 2
	resp, err, _ := do(t, c, q)
	if err.Kind != 0 || resp.Id != 5 || resp.Receipt.Hops != 2 || resp.Receipt.Node != uint32(far) {
		t.Fatalf("answered %v, %v", resp, err)
	}
	if f := w.forwards[0]; f.Hops != 1 || f.HopsDone != 1 {
		t.Errorf("passed on with hops %d, done %d", f.Hops, f.HopsDone)
	}
	q.Hops, q.LocalOnly = 2, true
	if _, err, _ := do(t, c, q); err.Kind != rhumb.Unavailable {
		t.Errorf("a hop to another region that is forbidden: %v", err)
	}
	beside := putReq(5, beside, "x", "v")
	beside.Hops, beside.LocalOnly = 1, true
	if _, err, _ := do(t, c, beside); err.Kind != 0 {
		t.Errorf("a hop within the region: %v", err)
	}
	q.Hops, q.HopsDone, q.LocalOnly = 9, hopsMax, false
	if _, err, _ := do(t, c, q); err.Kind != rhumb.NotPrimary {
		t.Errorf("a request that was passed on too often: %v", err)
	}
	q.HopsDone = 0
	w.with(func() {
		w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) {
			return nil, rhumb.E("test", rhumb.Unknown, "the connection failed")
		}
	})
	if _, err, hint := do(t, c, q); err.Kind != rhumb.Unknown || hint.Newer == nil {
		t.Errorf("a write whose connection broke: %v", err)
	}
}

// TestForwardedInsertIsWaitedFor guards that the deadline of the search for a slot does not end the
// forwarded insert.
func TestForwardedInsertIsWaitedFor(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.answer = func(ctx context.Context, _ rhumb.NodeID, _ *rhumbpb.Request) (*rhumbpb.Response, error) {
		select {
		case <-ctx.Done():
			return nil, rhumb.E("test", rhumb.Unknown, "given up")
		case <-time.After(50 * time.Millisecond): // the way there and back
			return &rhumbpb.Response{Outcome: &rhumbpb.Outcome{Applied: true}}, nil
		}
	}
	q := &rhumbpb.Request{Hops: 1, Write: &rhumbpb.Write{Region: uint32(away.Region), Slot: uint32(away.Slot), Mutations: []*rhumbpb.Mutation{mutation(rhumb.Insert, table, "", "v")}}}
	if _, err, _ := do(t, c, q); err.Kind != 0 {
		t.Fatal(err)
	}
}

// TestInserts guards that server-named keys go to the slot that accepts them, chosen by the node or
// named in the error, and that a failed search for a slot does not leave the outcome of the insert
// unknown.
func TestInserts(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	insert := func(at rhumb.RangeID, resolve bool) *rhumbpb.Request {
		return &rhumbpb.Request{Write: &rhumbpb.Write{Region: uint32(at.Region), Slot: uint32(at.Slot), Resolve: resolve, Mutations: []*rhumbpb.Mutation{mutation(rhumb.Insert, table, "", "v")}}}
	}
	resp, err, _ := do(t, c, insert(rhumb.RangeID{}, true))
	if err.Kind != 0 || len(resp.Outcome.Names) != 1 || resp.Receipt.Slot != uint32(open.Slot) {
		t.Fatalf("answered %v, %v", resp, err)
	}
	if _, err, hint := do(t, c, insert(full, false)); err.Kind != rhumb.NotPrimary || hint.Newer == nil || hint.Newer.ID != open {
		t.Errorf("an insert into a full slot: %v, hint %+v", err, hint.Newer)
	}
	// Only the full range knows whether an earlier attempt was applied there.
	again := insert(full, false)
	again.Again = true
	if resp, err, _ := do(t, c, again); err.Kind != 0 || resp.Receipt.Slot != uint32(full.Slot) {
		t.Errorf("an insert that is sent again to a full slot: %v, %v", resp, err)
	}
	if _, err, _ := do(t, c, insert(open, false)); err.Kind != 0 {
		t.Errorf("an insert into the open slot: %v", err)
	}
	w.with(func() { w.slotErr = rhumb.E("test", rhumb.Unknown, "the metadata group does not answer") })
	if _, err, _ := do(t, c, insert(rhumb.RangeID{}, true)); err.Kind != rhumb.Unavailable {
		t.Errorf("an insert for which no slot was found: %v", err)
	}
}

// TestReadAcrossRanges guards that a read by names alone asks each range, and answers in the order
// of the request.
func TestReadAcrossRanges(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.items[home]["a1"], w.items[second]["b1"] = []byte{1}, []byte{2}
	w.answer = func(_ context.Context, _ rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error) {
		resp := &rhumbpb.Response{Receipt: &rhumbpb.Receipt{Hops: 2}}
		for range q.Read.Names {
			resp.Items = append(resp.Items, &rhumbpb.Item{Hlc: 4, Value: []byte{3}})
		}
		return resp, nil
	}
	q := getReq(0, rhumb.RangeID{}, "a1", "x1", "b1", "a2", "x2")
	q.Read.Resolve, q.Hops = true, 1
	resp, err, _ := do(t, c, q)
	if err.Kind != 0 {
		t.Fatal(err)
	}
	want := []byte{1, 3, 2, 0, 3}
	for i, it := range resp.Items {
		if v := append(it.Value, 0)[0]; v != want[i] {
			t.Errorf("item %d is %d, want %d", i, v, want[i])
		}
	}
	if resp.Items[2].Slot != uint32(second.Slot) || resp.Receipt.Epoch != 0 {
		t.Errorf("the second range's item has slot %d; the receipt names epoch %d", resp.Items[2].Slot, resp.Receipt.Epoch)
	}
	for name, answer := range map[string]*rhumbpb.Response{
		"too few":  {Items: []*rhumbpb.Item{{}}},
		"too much": {Items: []*rhumbpb.Item{{Value: make([]byte, rhumb.ReadSizeMax)}, {Value: []byte{1}}}},
	} {
		w.with(func() {
			w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) { return answer, nil }
		})
		if _, err, _ := do(t, c, q); err.Kind != rhumb.Internal && err.Kind != rhumb.TooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestScan guards pages and limits.
func TestScan(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	const n = 2*rhumb.ScanPageMax + 10
	for i := range n {
		w.items[home][fmt.Sprintf("k%06d", i)] = []byte{1}
	}
	for _, tc := range []struct{ limit, items, pages int }{{0, n, 3}, {5, 5, 1}, {rhumb.ScanPageMax + 1, rhumb.ScanPageMax + 1, 2}, {n + 5, n, 3}} {
		s, err := c.Scan(t.Context(), &rhumbpb.ScanRequest{Table: uint32(table), Region: uint32(home.Region), Slot: uint32(home.Slot), Limit: uint32(tc.limit)})
		if err != nil {
			t.Fatal(err)
		}
		items, pages, last := 0, 0, ""
		for {
			p, err := s.Recv()
			if err != nil {
				break
			}
			pages++
			for _, it := range p.Items {
				if string(it.Name) <= last {
					t.Fatalf("%q after %q", it.Name, last)
				}
				last = string(it.Name)
				items++
			}
		}
		if items != tc.items || pages != tc.pages {
			t.Errorf("limit %d: %d items in %d pages, want %d in %d", tc.limit, items, pages, tc.items, tc.pages)
		}
	}
	s, err := c.Scan(t.Context(), &rhumbpb.ScanRequest{Table: uint32(table), Region: 9, Slot: 9})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("a scan of no range: %v", err)
	}
}

// TestSlowClient guards back-pressure: the stream of a client that accepts no answers is not read,
// uses bounded memory, and does not delay other clients.
func TestSlowClient(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.items[home]["big"] = bytes.Repeat([]byte{1}, 512<<10)
	var reads []*rhumbpb.Request
	for i := range uint64(100) {
		reads = append(reads, getReq(i+1, home, "big"))
	}
	slow := openStream(t, c, hello(), append(reads, putReq(1_000, home, "a", "v"))...)
	other := openStream(t, c, hello(), getReq(1, home, "absent"))
	take(t, other, 1)
	w.with(func() {
		if len(w.proposed) != 0 {
			t.Error("all of 50 MiB were read for a client that takes nothing")
		}
	})
	if got := take(t, slow, 101); got[1_000].Error != nil {
		t.Error(got[1_000].Error)
	}
}

// TestClientThatTakesNothing guards that the stream of a client that accepts no answers is ended
// after a while, and that its answers do not occupy memory any longer.
func TestClientThatTakesNothing(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	answers := memory.NewBudget("answers", 64<<20)
	kv.cfg.Budgets.Answers, kv.cfg.TakeTimeout = answers, 50*time.Millisecond
	w.items[home]["big"] = bytes.Repeat([]byte{1}, 512<<10)
	var reads []*rhumbpb.Request
	for i := range uint64(100) {
		reads = append(reads, getReq(i+1, home, "big"))
	}
	openStream(t, c, hello(), reads...)
	await(t, "the stream is ended", func() bool {
		return gauge(t, kv, "rhumb_server_cut_off_total") == 1 && gauge(t, kv, "rhumb_server_streams") == 0
	})
	await(t, "its answers are forgotten", func() bool { return answers.Used() == 0 })
	take(t, openStream(t, c, hello(), getReq(1, home, "absent")), 1)
}

// TestManyUnanswered guards that the number of unanswered requests is bounded, and that those below
// the bound are driven to their answers.
func TestManyUnanswered(t *testing.T) {
	w := newWorld()
	a := newAnswers(nil, nil, time.Hour)
	held := 0
	for a.unanswered < unansweredMax {
		a.reserveAnswer(func() { t.Fatal("driven below the bound") })
		held++
	}
	driven := make(chan bool)
	passed := make(chan bool)
	go func() { passed <- a.reserveAnswer(func() { close(driven) }) }()
	<-driven
	a.mu.Lock()
	a.unanswered-- // one is answered
	a.room.Broadcast()
	a.mu.Unlock()
	if !<-passed {
		t.Fatal("a stream that is whole is called broken")
	}
	go func() { passed <- a.reserveAnswer(w.Drive) }()
	a.close()
	if <-passed {
		t.Fatal("a request is expected on a stream that has ended")
	}
}

// TestFramesStayBelowMessageSize guards that every frame fits into a message, whatever its answers
// are.
func TestFramesStayBelowMessageSize(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	held := make(chan struct{})
	w.held = held
	w.refuse = rhumb.E("test", rhumb.ConditionFailed, strings.Repeat("x", 5_000))
	const n = 2 * responsesPerFrame
	var qs []*rhumbpb.Request
	for i := range uint64(n) {
		qs = append(qs, putReq(i+1, home, "a", "v"))
	}
	s := openStream(t, c, hello(), qs...)
	close(held)
	take(t, s, n) // 8,192 errors of 4 KiB are 32 MiB
}

// TestClientThatGoes guards that the answers to a client that has disconnected are dropped, and
// that nothing waits for it.
func TestClientThatGoes(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	held := make(chan struct{})
	w.held = held
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var qs []*rhumbpb.Request
	for i := range uint64(100) {
		qs = append(qs, putReq(i+1, home, "a", "v"))
	}
	if err := s.Send(&rhumbpb.ClientFrame{Hello: hello(), Requests: qs}); err != nil {
		t.Fatal(err)
	}
	await(t, "the batch is under way", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.proposed) == 100
	})
	cancel()
	await(t, "the stream ends", func() bool { return gauge(t, kv, "rhumb_server_streams") == 0 })
	close(held) // the answers come now
	w.with(func() { w.held = nil })
	take(t, openStream(t, c, hello(), putReq(1, home, "a", "v")), 1)
}

// TestStreamsEndWithTheirKV guards that no client stays connected to a past life of a node: its
// stream breaks, and the next one reaches the present life.
func TestStreamsEndWithTheirKV(t *testing.T) {
	w := newWorld()
	c, kv, service := w.start(t)
	s := openStream(t, c, hello(), putReq(1, home, "a", "v"))
	take(t, s, 1)
	service.Open(nil)
	kv.Close()
	_, err := s.Recv()
	if e, _, remote := api.FromStatus("test", err); !remote || e.Kind != rhumb.Unavailable {
		t.Fatalf("the stream ended with %v", err)
	}
	if _, err, _ := do(t, c, getReq(0, home, "a")); err.Kind != rhumb.Unavailable {
		t.Fatalf("a node that does not serve answered %v", err)
	}
	service.Open(NewKV(kv.cfg))
	take(t, openStream(t, c, hello(), getReq(1, home, "a")), 1)
}

// TestServiceBeforeOpen guards that a node without a cluster rejects everything as certainly not
// applied.
func TestServiceBeforeOpen(t *testing.T) {
	s := &Service{}
	c := rhumbpb.NewKVClient(serve(t, func(g *grpc.Server) { s.Register(g) }))
	if _, err, _ := do(t, c, putReq(0, home, "a", "v")); err.Kind != rhumb.Unavailable {
		t.Errorf("Do: %v", err)
	}
	_, err := openStream(t, c, hello(), putReq(1, home, "a", "v")).Recv()
	if e, hint, remote := api.FromStatus("test", err); e.Kind != rhumb.Unavailable || !hint.Unread || !remote {
		t.Errorf("Stream: %v, %+v", err, hint)
	}
	scan, err := c.Scan(t.Context(), &rhumbpb.ScanRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scan.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Scan: %v", err)
	}
}

// TestCallerThatGivesUp guards the kinds of a timeout: a write may have been applied, a read was
// only not answered.
func TestCallerThatGivesUp(t *testing.T) {
	w := newWorld()
	_, kv, _ := w.start(t)
	never := make(chan struct{})
	w.held = never
	defer close(never)
	ctx, cancel := context.WithCancel(access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindInsecure}))
	cancel()
	resp := kv.Answer(ctx, putReq(1, home, "a", "v"))
	if k := rhumb.Kind(resp.Error.GetKind()); k != rhumb.Unknown {
		t.Errorf("a write is answered %s", k)
	}
	w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) {
		<-never
		return nil, rhumb.E("test", rhumb.Unknown, "too late")
	}
	q := getReq(1, away, "x")
	q.Hops = 1
	if k := rhumb.Kind(kv.Answer(ctx, q).Error.GetKind()); k != rhumb.DeadlineExceeded {
		t.Errorf("a read is answered %s", k)
	}
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitMax); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
