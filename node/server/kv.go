// Package server is the edge of a node: it decodes what clients send, calls one interface, and encodes the answer. The KV
// and Cluster services are gRPC; AdminHandler is HTTP for operators.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Ranges serves the ranges of this node.
type Ranges interface {
	// Propose applies a batch, once Drive is called: that lets the writes of a whole frame share one commit. done is called
	// exactly once and must not block.
	Propose(b *rhumb.Batch, done func(rhumb.Outcome, error))
	Drive()
	// Get and Scan read strongly. Leased says whether they would answer from this node alone, without a round trip.
	Get(ctx context.Context, id rhumb.RangeID, table rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error)
	Scan(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error)
	// Exists reports which keys of a range exist, as strongly as Get reads; tables holds the table of each name.
	Exists(ctx context.Context, id rhumb.RangeID, tables []rhumb.TableID, names [][]byte) ([]bool, error)
	Leased(id rhumb.RangeID) bool
}

// Peers passes requests on.
type Peers interface {
	Forward(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error)
}

// Inserts says where server-named keys go.
type Inserts interface {
	// ActiveSlot gives the range for inserts of a class that come to this node, opening it when it has to. It is one of this
	// node, or, when this one is too loaded, of another of the region.
	ActiveSlot(ctx context.Context, class rhumb.ClassID) (rhumb.RangeID, error)
	// Takes is nil when this node may name keys in a range now, else it says which range takes inserts instead.
	Takes(ctx context.Context, id rhumb.RangeID) (instead rhumb.RangeID, err error)
}

// Routes finds where a request belongs, by the newest catalog of this node (package route).
type Routes interface {
	// Named gives the range of a named key, and Batch the one that all mutations of a batch share by their names.
	Named(region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error)
	Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error)
	// Check refuses a batch whose keys do not live in the range that it names.
	Check(b *rhumb.Batch) error
	Class(table rhumb.TableID) (*rhumb.Class, error)
	Range(id rhumb.RangeID) (*rhumb.Range, error)
	SameRegion(a, b rhumb.NodeID) bool
}

// Config is what the services need.
type Config struct {
	Cluster rhumb.ClusterID
	Self    rhumb.NodeID
	Region  rhumb.RegionID
	Routes  Routes
	Ranges  Ranges
	Peers   Peers
	Inserts Inserts
	Budgets Budgets
	// TakeTimeout is how long a client may take nothing of its answers before its stream is ended; default takeTimeoutDefault.
	TakeTimeout time.Duration
	Logger      *slog.Logger
}

// Bounds of the service.
const (
	// requestTimeoutDefault is how long a request that names no time may take.
	requestTimeoutDefault = 30 * time.Second
	// hopsMax bounds how often a request is passed on, whatever it asks for.
	hopsMax = 3
)

// KV answers key-value requests of a node that belongs to a cluster.
type KV struct {
	cfg    Config
	m      metrics
	closed chan struct{}
}

// NewKV makes a KV.
func NewKV(cfg Config) *KV { return &KV{cfg: cfg, m: newMetrics(), closed: make(chan struct{})} }

// Close ends all streams: their clients connect again and meet what serves then. It is called once.
func (k *KV) Close() { close(k.closed) }

// Do answers one request.
func (k *KV) Do(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	resp := k.Answer(ctx, q)
	if resp.Error != nil {
		err, hint := api.DecodeError(resp.Error)
		return nil, api.Status(err, hint)
	}
	return resp, nil
}

// Answer answers one request and waits for it.
func (k *KV) Answer(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response {
	answer := make(chan *rhumbpb.Response, 1)
	k.serve(ctx, q, func(resp *rhumbpb.Response) { answer <- resp })
	k.cfg.Ranges.Drive()
	select {
	case resp := <-answer:
		return resp
	case <-ctx.Done():
		kind := rhumb.DeadlineExceeded
		if q.Write != nil {
			kind = rhumb.Unknown
		}
		return k.failed(q, rhumb.E("server.KV.Answer", kind, "the caller gave up before there was an answer"), api.Hint{})
	}
}

// serve answers one request through done, exactly once. It may answer before it returns, and does not wait for what takes
// time. The caller calls Drive after its last request.
func (k *KV) serve(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	answer, err := k.admit(q, done)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	done = answer
	switch {
	case q.Write != nil:
		k.write(ctx, q, done)
	case q.Read != nil:
		k.read(ctx, q, done)
	case q.Scan != nil:
		k.scan(ctx, q, done)
	case q.Locate != nil:
		k.locate(ctx, q, done)
	default:
		done(k.failed(q, rhumb.E(op, rhumb.InvalidArgument, "the request is neither write, read, scan nor locate"), api.Hint{}))
	}
}

func (k *KV) write(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	b, resolve, err := api.DecodeWrite(q.Write)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	insert, err := inserts(&b)
	if err == nil && !resolve {
		err = k.cfg.Routes.Check(&b)
	}
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	if insert {
		go func() { // may have to open a slot
			k.insert(ctx, q, &b, resolve, done)
			k.cfg.Ranges.Drive()
		}()
		return
	}
	if resolve {
		if b.Range, err = k.cfg.Routes.Batch(k.home(b.Range.Region), &b); err != nil {
			done(k.failed(q, err, api.Hint{}))
			return
		}
	}
	k.propose(ctx, q, &b, done)
}

// inserts reports whether a batch has its keys named by the server. Such keys have slots of their own, so it is all of them
// or none.
func inserts(b *rhumb.Batch) (bool, error) {
	n := 0
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			n++
		}
	}
	if n != 0 && n != len(b.Mutations) {
		return false, rhumb.Ef("server.KV", rhumb.InvalidArgument, "%d of %d mutations are inserts: server-named keys live in ranges of their own; send inserts in a batch of their own", n, len(b.Mutations))
	}
	return n > 0, nil
}

// home gives the region that a request means: its own, or this node's.
func (k *KV) home(r rhumb.RegionID) rhumb.RegionID {
	if r == 0 {
		return k.cfg.Region
	}
	return r
}

// insert brings a batch with server-named keys to the range that takes them.
func (k *KV) insert(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, resolve bool, done func(*rhumbpb.Response)) {
	hint, err := k.placeInserts(ctx, q, b, resolve)
	if err != nil {
		if !rhumb.KindOf(err).NotApplied() { // only the search for a slot failed
			err = rhumb.WrapKind("server.KV", rhumb.Unavailable, err)
		}
		done(k.failed(q, err, hint))
		return
	}
	k.propose(ctx, q, b, done)
}

// placeInserts finds the range of a batch with server-named keys, or refuses the one that was asked for.
func (k *KV) placeInserts(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, resolve bool) (api.Hint, error) {
	ctx, cancel := k.deadline(ctx, q.TimeoutUs)
	defer cancel()
	if resolve {
		class, err := k.classOf(b)
		if err == nil {
			b.Range, err = k.cfg.Inserts.ActiveSlot(ctx, class)
		}
		if err != nil {
			return api.Hint{}, err
		}
	}
	if r, err := k.cfg.Routes.Range(b.Range); err == nil && r.Primary == k.cfg.Self {
		if instead, err := k.cfg.Inserts.Takes(ctx, b.Range); err != nil {
			return k.hint(instead), err
		}
	}
	return api.Hint{}, nil
}

// classOf gives the class that all tables of a batch share: others do not share a range.
func (k *KV) classOf(b *rhumb.Batch) (class rhumb.ClassID, err error) {
	for i := range b.Mutations {
		c, err := k.cfg.Routes.Class(b.Mutations[i].Table)
		switch {
		case err != nil:
			return 0, err
		case i > 0 && c.ID != class:
			return 0, rhumb.Ef("server.KV", rhumb.InvalidArgument, "mutation %d is of table %s and class %s, mutation 0 of class %s: a batch is atomic within one range; write twice", i, b.Mutations[i].Table, c.ID, class)
		}
		class = c.ID
	}
	return class, nil
}

// propose orders a batch here, or passes the request on.
func (k *KV) propose(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, done func(*rhumbpb.Response)) {
	r, err := k.cfg.Routes.Range(b.Range)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	if r.Primary != k.cfg.Self {
		q.Write.Region, q.Write.Slot, q.Write.Resolve = uint32(b.Range.Region), uint32(b.Range.Slot), false
		k.pass(ctx, q, r, done)
		return
	}
	start := time.Now()
	k.cfg.Ranges.Propose(b, func(o rhumb.Outcome, err error) {
		k.m.writeSeconds.Observe(time.Since(start).Seconds())
		if err != nil {
			done(k.failed(q, err, k.hint(b.Range)))
			return
		}
		receipt := rhumb.Receipt{Node: k.cfg.Self, Region: k.cfg.Region, Range: b.Range, Epoch: r.Epoch, Hops: int(q.HopsDone) + 1, Timestamp: o.Version.HLC}
		done(&rhumbpb.Response{Id: q.Id, Outcome: api.EncodeOutcome(&o), Receipt: api.EncodeReceipt(&receipt)})
	})
}

func (k *KV) hint(id rhumb.RangeID) api.Hint {
	r, _ := k.cfg.Routes.Range(id)
	return api.Hint{Newer: r}
}

func (k *KV) read(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	rd, err := api.DecodeRead(q.Read)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	if rd.Resolve {
		go k.readMany(ctx, q, rd, done)
		return
	}
	k.serveRange(ctx, q, rd.Range, done, func(ctx context.Context) (*rhumbpb.Response, error) {
		start := time.Now()
		items, receipt, err := k.cfg.Ranges.Get(ctx, rd.Range, rd.Table, rd.Names)
		k.m.readSeconds.Observe(time.Since(start).Seconds())
		if err != nil {
			return nil, err
		}
		return &rhumbpb.Response{Items: api.EncodeItems(items, false, false), Receipt: k.receipt(q, receipt)}, nil
	})
}

// readMany finds the slot of each name, asks each range, and joins the answers in the order asked.
func (k *KV) readMany(ctx context.Context, q *rhumbpb.Request, rd api.Read, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	ctx, cancel := k.deadline(ctx, q.TimeoutUs)
	defer cancel()
	region := k.home(rd.Range.Region)
	byRange := map[rhumb.RangeID][]int{}
	var order []rhumb.RangeID
	for i, name := range rd.Names {
		id, err := k.cfg.Routes.Named(region, rd.Table, name)
		if err != nil {
			done(k.failed(q, err, api.Hint{}))
			return
		}
		if byRange[id] == nil {
			order = append(order, id)
		}
		byRange[id] = append(byRange[id], i)
	}
	resp := &rhumbpb.Response{Id: q.Id, Items: make([]*rhumbpb.Item, len(rd.Names))}
	size := 0
	for _, id := range order {
		part := &rhumbpb.Request{Hops: q.Hops, HopsDone: q.HopsDone, LocalOnly: q.LocalOnly, TimeoutUs: q.TimeoutUs}
		part.Read = &rhumbpb.Read{Table: uint32(rd.Table), Region: uint32(id.Region), Slot: uint32(id.Slot)}
		for _, i := range byRange[id] {
			part.Read.Names = append(part.Read.Names, rd.Names[i])
		}
		a := k.Answer(ctx, part)
		switch {
		case a.Error != nil:
			a.Id = q.Id
			done(a)
			return
		case len(a.Items) != len(byRange[id]):
			done(k.failed(q, &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: id, Msg: fmt.Sprintf("the range's primary gave %d records for %d names", len(a.Items), len(byRange[id]))}, api.Hint{}))
			return
		}
		for j, i := range byRange[id] {
			resp.Items[i] = a.Items[j]
			resp.Items[i].Slot = uint32(id.Slot)
			size += len(a.Items[j].Value)
		}
		if size > rhumb.ReadSizeMax {
			done(k.failed(q, rhumb.Ef(op, rhumb.TooLarge, "the records hold more than %d bytes, the most that one read returns; ask for fewer", rhumb.ReadSizeMax), api.Hint{}))
			return
		}
		resp.Receipt = a.Receipt
	}
	if len(order) > 1 && resp.Receipt != nil {
		resp.Receipt.Home, resp.Receipt.Slot, resp.Receipt.Epoch = 0, 0, 0
	}
	done(resp)
}

func (k *KV) scan(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	s, err := api.DecodeScan(q.Scan)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	k.serveRange(ctx, q, s.Range, done, func(ctx context.Context) (*rhumbpb.Response, error) {
		page, receipt, err := k.cfg.Ranges.Scan(ctx, query(s))
		if err != nil {
			return nil, err
		}
		return &rhumbpb.Response{Items: api.EncodeItems(page.Items, true, false), More: page.More, Receipt: k.receipt(q, receipt)}, nil
	})
}

func query(s api.Scan) rhumb.ScanQuery {
	limit := s.Limit
	if limit == 0 || limit > rhumb.ScanPageMax {
		limit = rhumb.ScanPageMax
	}
	return rhumb.ScanQuery{Range: s.Range, Table: s.Table, Prefix: s.Prefix, After: s.After, Limit: limit, BytesMax: s.BytesMax}
}

// serveRange runs do here when this node is the range's primary, at once if that takes no round trip, or passes the
// request on.
func (k *KV) serveRange(ctx context.Context, q *rhumbpb.Request, id rhumb.RangeID, done func(*rhumbpb.Response), do func(context.Context) (*rhumbpb.Response, error)) {
	r, err := k.cfg.Routes.Range(id)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	if r.Primary != k.cfg.Self {
		k.pass(ctx, q, r, done)
		return
	}
	here := func() {
		ctx, cancel := k.deadline(ctx, q.TimeoutUs)
		defer cancel()
		resp, err := do(ctx)
		if err != nil {
			resp = k.failed(q, err, k.hint(id))
		}
		resp.Id = q.Id
		done(resp)
	}
	if k.cfg.Ranges.Leased(id) {
		here()
		return
	}
	go here()
}

// pass hands a request on to the primary of its range, or says who that is.
func (k *KV) pass(ctx context.Context, q *rhumbpb.Request, r *rhumb.Range, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	fail := func(kind rhumb.Kind, msg string) {
		done(k.failed(q, &rhumb.Error{Op: op, Kind: kind, Range: r.ID, Node: k.cfg.Self, Msg: msg}, api.Hint{Newer: r}))
	}
	switch {
	case q.LocalOnly && !k.cfg.Routes.SameRegion(k.cfg.Self, r.Primary):
		fail(rhumb.Unavailable, "the range's primary is in another region, and the request forbids that hop")
		return
	case q.Hops == 0 || q.HopsDone >= hopsMax:
		fail(rhumb.NotPrimary, "another node orders this range's writes, and the request allows no further hop")
		return
	}
	q.Hops--
	q.HopsDone++
	k.m.forwarded.Inc()
	go func() {
		ctx, cancel := k.deadline(ctx, q.TimeoutUs)
		defer cancel()
		resp, err := k.cfg.Peers.Forward(ctx, r.Primary, q)
		if err != nil {
			done(k.failed(q, err, api.Hint{Newer: r}))
			return
		}
		resp.Id = q.Id
		done(resp)
	}()
}

func (k *KV) deadline(ctx context.Context, us uint64) (context.Context, context.CancelFunc) {
	d := requestTimeoutDefault
	if us > 0 {
		d = min(d, api.DecodeMicros(us))
	}
	return context.WithTimeout(ctx, d)
}

func (k *KV) receipt(q *rhumbpb.Request, r rhumb.Receipt) *rhumbpb.Receipt {
	r.Region = k.cfg.Region
	r.Hops += int(q.HopsDone)
	return api.EncodeReceipt(&r)
}

func (k *KV) failed(q *rhumbpb.Request, err error, h api.Hint) *rhumbpb.Response {
	k.m.failed.WithLabelValues(rhumb.KindOf(err).String()).Inc()
	return &rhumbpb.Response{Id: q.Id, Error: api.EncodeError(err, h)}
}

// Scan sends the records of one range page by page.
func (k *KV) Scan(q *rhumbpb.ScanRequest, stream grpc.ServerStreamingServer[rhumbpb.ScanPage]) error {
	left := int(q.Limit)
	ctx, cancel := k.deadline(stream.Context(), q.TimeoutUs)
	defer cancel()
	for {
		part := &rhumbpb.Request{Scan: q, Hops: 1}
		if left > 0 {
			q.Limit = uint32(min(left, rhumb.ScanPageMax))
		}
		resp := k.Answer(ctx, part)
		if resp.Error != nil {
			err, hint := api.DecodeError(resp.Error)
			return api.Status(err, hint)
		}
		left -= len(resp.Items)
		more := resp.More && (q.Limit == 0 || left > 0)
		if err := stream.Send(&rhumbpb.ScanPage{Items: resp.Items, More: resp.More, Receipt: resp.Receipt}); err != nil {
			return err
		}
		if !more || len(resp.Items) == 0 {
			return nil
		}
		q.After, q.HasAfter = resp.Items[len(resp.Items)-1].Name, true
	}
}
