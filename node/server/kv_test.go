package server

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// slowRanges is a world whose reads wait until they are released.
type slowRanges struct {
	*world
	release chan struct{}
}

func (s *slowRanges) Get(ctx context.Context, id rhumb.RangeID, t rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error) {
	<-s.release
	return s.world.Get(ctx, id, t, names)
}

// TestReadWithoutLeaseHoldsUpNobody guards that a read that has to be confirmed by the metadata leader does not
// keep the next requests of its stream from being answered.
func TestReadWithoutLeaseHoldsUpNobody(t *testing.T) {
	w := newWorld()
	w.unleased = true
	c, kv, _ := w.start(t)
	slow := &slowRanges{w, make(chan struct{})}
	kv.cfg.Ranges = slow
	s := openStream(t, c, hello(), getReq(1, home, "a"), putReq(2, home, "a", "v"))
	if got := take(t, s, 1); got[2] == nil || got[2].Error != nil {
		t.Fatalf("the first answer is %v, want that of the write", got)
	}
	close(slow.release)
	if got := take(t, s, 1); got[1] == nil || got[1].Error != nil {
		t.Fatalf("the read is answered %v", got)
	}
}

// failingRanges is a world whose reads fail.
type failingRanges struct {
	*world
	err error
}

func (f *failingRanges) Get(context.Context, rhumb.RangeID, rhumb.TableID, [][]byte) ([]rhumb.Item, rhumb.Receipt, error) {
	return nil, rhumb.Receipt{}, f.err
}

func (f *failingRanges) Scan(context.Context, rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	return rhumb.ScanPage{}, rhumb.Receipt{}, f.err
}

// TestFailedReadsCarryAHint guards that a client whose read failed learns the newest record of the range, and
// that a read of several ranges fails under its own ID with the error of the range.
func TestFailedReadsCarryAHint(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	kv.cfg.Ranges = &failingRanges{w, &rhumb.Error{Op: "test", Kind: rhumb.NotPrimary, Range: home}}
	many := getReq(5, rhumb.RangeID{}, "a1", "b1")
	many.Read.Resolve = true
	for name, q := range map[string]*rhumbpb.Request{
		"get":  getReq(5, home, "a1"),
		"many": many,
		"scan": {Id: 5, Scan: &rhumbpb.ScanRequest{Region: uint32(home.Region), Slot: uint32(home.Slot)}},
	} {
		got := take(t, openStream(t, c, hello(), q), 1)[5]
		if got == nil || got.Error == nil {
			t.Errorf("%s is answered %v", name, got)
			continue
		}
		err, hint := api.DecodeError(got.Error)
		if rhumb.KindOf(err) != rhumb.NotPrimary || hint.Newer == nil || hint.Newer.ID != home || hint.Newer.Version != 5 {
			t.Errorf("%s: %v, hint %+v", name, err, hint.Newer)
		}
	}
}

// strictRoutes is a world that knows neither the names that begin with an x nor their tables.
type strictRoutes struct{ *world }

func (r strictRoutes) Named(region rhumb.RegionID, t rhumb.TableID, name []byte) (rhumb.RangeID, error) {
	if name[0] == 'x' {
		return rhumb.RangeID{}, rhumb.E("test", rhumb.NotFound, "the table does not exist on this node")
	}
	return r.world.Named(region, t, name)
}

func (r strictRoutes) Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error) {
	return r.Named(region, b.Mutations[0].Table, b.Mutations[0].Name)
}

// TestUnknownNames guards that a name without a range fails the request that needs it, without having been
// carried out in part, but leaves a locate of others unharmed.
func TestUnknownNames(t *testing.T) {
	w := newWorld()
	c, kv, _ := w.start(t)
	kv.cfg.Routes = strictRoutes{w}
	read := getReq(0, rhumb.RangeID{}, "a1", "x1")
	read.Read.Resolve = true
	write := putReq(0, rhumb.RangeID{}, "x1", "v")
	write.Write.Resolve = true
	insert := &rhumbpb.Request{Write: &rhumbpb.Write{Resolve: true, Mutations: []*rhumbpb.Mutation{mutation(rhumb.Insert, 99, "", "v")}}}
	for name, q := range map[string]*rhumbpb.Request{"read": read, "write": write, "insert into no table": insert} {
		if _, err, _ := do(t, c, q); err.Kind != rhumb.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.with(func() {
		if len(w.proposed) != 0 {
			t.Error("a write without a range was proposed")
		}
	})
	w.items[home]["a1"] = []byte{1}
	resp, err, _ := do(t, c, locateReq("x1", "a1", "x2", "a2"))
	if want := []api.Existence{api.Undecided, api.Present, api.Undecided, api.Absent}; err.Kind != 0 || !slices.Equal(resp.Located, want) {
		t.Errorf("located %v, %v, want %v", resp.GetLocated(), err, want)
	}
}

// TestForwardedWriteNamesItsRange guards that the node that a write is forwarded to does not choose its range
// again, by a catalog that may be older.
func TestForwardedWriteNamesItsRange(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) {
		return &rhumbpb.Response{Outcome: &rhumbpb.Outcome{Applied: true}}, nil
	}
	q := putReq(1, rhumb.RangeID{}, "far away", "v")
	q.Write.Resolve, q.Hops = true, 1
	if _, err, _ := do(t, c, q); err.Kind != 0 {
		t.Fatal(err)
	}
	if f := w.forwards[0].Write; f.Resolve || f.Region != uint32(away.Region) || f.Slot != uint32(away.Slot) {
		t.Errorf("forwarded as %v, want range %s", f, away)
	}
}

// TestScanRequest guards the pages that a stream answers: they are bounded whatever the client asks for, and
// come from the primary.
func TestScanRequest(t *testing.T) {
	w := newWorld()
	c, _, _ := w.start(t)
	for i := range rhumb.ScanPageMax + 5 {
		w.items[home][string(rune('a'+i%26))+time.Duration(i).String()] = []byte{1}
	}
	scan := func(at rhumb.RangeID, limit int) *rhumbpb.Request {
		return &rhumbpb.Request{Scan: &rhumbpb.ScanRequest{Table: uint32(table), Region: uint32(at.Region), Slot: uint32(at.Slot), Limit: uint32(limit)}}
	}
	for limit, want := range map[int]int{0: rhumb.ScanPageMax, 3: 3, rhumb.ScanPageMax + 1: rhumb.ScanPageMax} {
		resp, err, _ := do(t, c, scan(home, limit))
		if err.Kind != 0 || len(resp.Items) != want || !resp.More || resp.Receipt.Region != uint32(here) {
			t.Errorf("limit %d: %d items, more %v, %v, want %d items", limit, len(resp.GetItems()), resp.GetMore(), err, want)
		}
	}
	if _, err, hint := do(t, c, scan(away, 1)); err.Kind != rhumb.NotPrimary || hint.Newer == nil {
		t.Errorf("a scan of another node's range: %v", err)
	}
	// Of several ranges, those that another node serves are left to the client. Nothing is forwarded.
	both := scan(home, 3)
	both.Hops, both.Scan.Slots = 1, []uint32{uint32(home.Slot) + 9, uint32(home.Slot)}
	resp, err, _ := do(t, c, both)
	if err.Kind != 0 || len(resp.Items) != 3 || !resp.More || !slices.Equal(resp.Ends, []uint32{0, uint32(home.Slot + 1)}) || len(w.forwards) > 0 {
		t.Errorf("of two ranges: %d items, ends %v, %v", len(resp.GetItems()), resp.GetEnds(), err)
	}
	both.Scan.Slots = make([]uint32, rhumb.ScanRangesMax+1)
	if _, err, _ := do(t, c, both); err.Kind != rhumb.TooLarge {
		t.Errorf("too many ranges: %v", err)
	}
	long := scan(home, 1)
	long.Scan.Prefix = make([]byte, rhumb.NameSizeMax+1)
	if _, err, _ := do(t, c, long); err.Kind != rhumb.TooLarge {
		t.Errorf("a prefix that is too long: %v", err)
	}
}

// TestRequestTimeout guards that every request has a deadline, and none a later one than the node's.
func TestRequestTimeout(t *testing.T) {
	kv := NewKV(Config{})
	for us, want := range map[uint64]time.Duration{
		0: requestTimeoutDefault, 5_000_000: 5 * time.Second, 3_600_000_000: requestTimeoutDefault,
	} {
		before := time.Now()
		ctx, cancel := kv.withDeadline(t.Context(), us)
		at, ok := ctx.Deadline()
		if !ok || at.Before(before.Add(want)) || at.After(time.Now().Add(want)) {
			t.Errorf("a request of %d µs ends after %v, want %v", us, at.Sub(before), want)
		}
		cancel()
	}
}

// TestLimitSparesPeers guards that clients beyond a node's memory do not keep operators and peers from it.
func TestLimitSparesPeers(t *testing.T) {
	w := newWorld()
	_, _, s := w.start(t)
	n := &node{w: newWorld(), info: Info{Region: "singapore"}}
	budget := memory.NewBudget("streams", memory.StreamReserve)
	conn := serve(t, func(g *grpc.Server) {
		s.Register(g)
		NewCluster(n).Register(g)
	}, grpc.InTapHandle(LimitStreams(budget)))
	take(t, openStream(t, rhumbpb.NewKVClient(conn), hello(), putReq(1, home, "a", "v")), 1)
	if _, err, _ := do(t, rhumbpb.NewKVClient(conn), getReq(0, home, "a")); err.Kind != rhumb.Overloaded {
		t.Fatalf("a second call: %v", err)
	}
	if _, err := rhumbpb.NewClusterClient(conn).Ping(t.Context(), &rhumbpb.PingRequest{}); err != nil {
		t.Errorf("a ping of a full node: %v", err)
	}
}

// TestStatusOf guards the HTTP status of every kind of error: tools retry on some of them and not on others.
func TestStatusOf(t *testing.T) {
	want := map[rhumb.Kind]int{
		rhumb.InvalidArgument: http.StatusBadRequest, rhumb.NotFound: http.StatusNotFound, rhumb.TooLarge: http.StatusRequestEntityTooLarge,
		rhumb.PermissionDenied: http.StatusForbidden, rhumb.Unavailable: http.StatusServiceUnavailable, rhumb.Overloaded: http.StatusServiceUnavailable,
		rhumb.Expired: http.StatusServiceUnavailable, rhumb.DeadlineExceeded: http.StatusServiceUnavailable,
	}
	for _, k := range rhumb.Kinds() {
		code, listed := want[k]
		if !listed {
			code = http.StatusInternalServerError
		}
		if got := statusOf(k); got != code {
			t.Errorf("%s is %d, want %d", k, got, code)
		}
	}
}

// TestBoundedAnswer guards that an answer about the image never grows beyond its bound.
func TestBoundedAnswer(t *testing.T) {
	var b bounded
	part := make([]byte, snapshotAnswerMax/4)
	for range 4 {
		if n, err := b.Write(part); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := b.Write([]byte{1}); rhumb.KindOf(err) != rhumb.TooLarge || b.Len() != snapshotAnswerMax {
		t.Errorf("one byte more: %v, %d bytes", err, b.Len())
	}
}
