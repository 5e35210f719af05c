// Package server is the edge of a node: it decodes requests of clients, calls the node through
// small interfaces, and encodes the answers. The KV and Cluster services use gRPC; AdminHandler
// serves HTTP for operators.
//
// # A request
//
// A frame of a stream carries many requests. Each passes these steps:
//
//  1. admitRequest counts its bytes, or rejects it as overloaded.
//  2. permit.check checks the rights of its caller (below).
//  3. It is decoded and checked against the newest catalog of this node.
//  4. If this node is the primary of the range, it is served here; otherwise it is forwarded, or
//     rejected with the newer record of the range, so that the client learns the primary.
//  5. Its response joins the next frame to the client, in any order.
//
// Serving does not block the goroutine that reads the stream. Work that may wait for another node
// runs on a goroutine of its own.
//
// # Rights
//
// The session layer (package node/session) puts the principal of a call into its context, and
// Authorize checks the right to the call by callNeeds, the one table of all RPCs. Requests for records are checked one by one, by the names that they
// touch, at each node that handles them: the node that receives a request and, if it forwards the request, the
// node that serves it. Both decide by their newest copy of the metadata, so a revoked right is gone once either of the
// two has applied the revocation. A scan shows only permitted names, and metadata only permitted tables.
// Errors are the same for a table that is hidden and for one that does not exist.
//
// # Errors
//
// The kind of an error states whether a write may have been applied, so every path keeps kinds
// exact: a failed search for a range is never uncertain, and a caller that stopped waiting for a
// write always is. An error about a range carries a hint with the newest record that this node has
// of the range. A client follows the hint without asking for the whole catalog.
//
// # Back-pressure
//
// All memory that a client can occupy is bounded:
//
//   - LimitStreams bounds the streams and calls, with the bytes that the transport buffers for them.
//   - Budgets bounds the requests that are being answered and the answers that clients have not
//     received, over all clients of the node. Beyond either, requests are rejected as overloaded.
//   - unansweredMax, readyBytesMax and readyShare bound one stream. Beyond any of them, the stream is
//     not read, and reads that were under way are rejected once their answers take lateShares. A client
//     that accepts no answers for TakeTimeout loses the stream.
//
// Requests are rejected rather than queued, so that an overloaded node finishes the requests that it
// accepted and answers the others at once.
package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// Ranges serves the ranges of this node.
type Ranges interface {
	// Propose applies a batch once Drive is called, so that the writes of a whole frame share one
	// commit. done is called exactly once and must not block.
	Propose(b *rhumb.Batch, done func(rhumb.Outcome, error))
	Drive()
	// Get and Scan perform strong reads. Leased reports whether they would answer without a round trip
	// to another node.
	Get(ctx context.Context, id rhumb.RangeID, table rhumb.TableID, names [][]byte) ([]rhumb.Item, rhumb.Receipt, error)
	Scan(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error)
	// Exists reports which keys of a range exist, as strongly as Get; tables holds the table of each
	// name.
	Exists(ctx context.Context, id rhumb.RangeID, tables []rhumb.TableID, names [][]byte) ([]bool, error)
	Leased(id rhumb.RangeID) bool
	// PrimaryEpoch returns the epoch in which this node is primary of a range, or 0. HandedOver returns the
	// epoch that this node handed over, and the new primary. Both may be ahead of the metadata.
	PrimaryEpoch(id rhumb.RangeID) rhumb.Epoch
	HandedOver(id rhumb.RangeID) (epoch rhumb.Epoch, to rhumb.NodeID, ok bool)
	// AwaitPrimary waits, within a bound, until this node is primary of an epoch of at least epoch and,
	// if read is set, serves reads.
	AwaitPrimary(ctx context.Context, id rhumb.RangeID, epoch rhumb.Epoch, read bool) error
}

// Peers forwards requests to other nodes.
type Peers interface {
	Forward(ctx context.Context, to rhumb.NodeID, q *rhumbpb.Request) (*rhumbpb.Response, error)
}

// Inserts chooses the ranges of server-named keys.
type Inserts interface {
	// ActiveSlot returns the range for inserts of a class that this node receives, and opens it if
	// needed. It is a range of this node or, if this node has too much load, of another node of the
	// region.
	ActiveSlot(ctx context.Context, class rhumb.ClassID) (rhumb.RangeID, error)
	// Takes returns a nil error if this node may name keys in the range now. Otherwise instead is the
	// range that accepts inserts.
	Takes(ctx context.Context, id rhumb.RangeID) (instead rhumb.RangeID, err error)
}

// Routes maps requests to ranges by the newest catalog of this node (package route).
type Routes interface {
	// Named returns the range of a named key. Batch returns the range that the names of all mutations
	// of a batch share.
	Named(region rhumb.RegionID, table rhumb.TableID, name []byte) (rhumb.RangeID, error)
	Batch(region rhumb.RegionID, b *rhumb.Batch) (rhumb.RangeID, error)
	// Check rejects a batch whose keys do not belong to the range that it names.
	Check(b *rhumb.Batch) error
	Class(table rhumb.TableID) (*rhumb.Class, error)
	// Range returns the record of the range that holds a home. Hashed reports whether the range holds named keys of
	// a class whose ranges can be split.
	Range(id rhumb.RangeID) (*rhumb.Range, error)
	Hashed(id rhumb.RangeID) bool
	SameRegion(a, b rhumb.NodeID) bool
}

// Config holds the dependencies of the services.
type Config struct {
	// Cluster, Self and Region identify this node. Clients that mean another cluster are rejected.
	Cluster rhumb.ClusterID
	Self    rhumb.NodeID
	Region  rhumb.RegionID
	// Routes, Ranges, Peers and Inserts are the parts of the node that serve requests.
	Routes  Routes
	Ranges  Ranges
	Peers   Peers
	Inserts Inserts
	// Budgets bound the memory of requests and answers.
	Budgets Budgets
	// TakeTimeout is how long a client may accept no answers before its stream is ended; default
	// takeTimeoutDefault.
	TakeTimeout time.Duration
	Logger      *slog.Logger
	// State returns the newest catalog of this node, which decides who may do what.
	State func() *catalog.State
}

// Bounds of the service.
const (
	// requestTimeoutDefault bounds requests that carry no timeout, and those with a longer one.
	requestTimeoutDefault = 30 * time.Second
	// hopsMax bounds how often a request is forwarded, whatever the request allows. While nodes have
	// different catalogs, each may take the other for the primary; the bound ends such a loop.
	hopsMax = 3
)

// KV answers the key-value requests of a node that belongs to a cluster.
type KV struct {
	cfg     Config
	metrics kvMetrics
	closed  chan struct{}
	// catchingUp counts the denied requests that wait for newer metadata.
	catchingUp atomic.Int64
}

// NewKV returns a KV.
func NewKV(cfg Config) *KV { return &KV{cfg: cfg, metrics: newMetrics(), closed: make(chan struct{})} }

// Close ends all streams, so that their clients reconnect to the present life of the node. It must
// be called once.
func (k *KV) Close() { close(k.closed) }

// Do answers one request and returns its error as a gRPC status.
func (k *KV) Do(ctx context.Context, q *rhumbpb.Request) (*rhumbpb.Response, error) {
	resp := k.Answer(ctx, q)
	if resp.Error != nil {
		err, hint := api.DecodeError(resp.Error)
		return nil, api.Status(err, hint)
	}
	return resp, nil
}

// Answer answers one request and waits for the response.
func (k *KV) Answer(ctx context.Context, q *rhumbpb.Request) *rhumbpb.Response {
	// Buffered, so that a late response does not block the goroutine that produced it.
	answer := make(chan *rhumbpb.Response, 1)
	k.serve(ctx, q, func(resp *rhumbpb.Response) { answer <- resp })
	// No frame has other requests that could share the commit.
	k.cfg.Ranges.Drive()
	select {
	case resp := <-answer:
		return resp
	case <-ctx.Done():
		// A write may have been applied; a read had no effect.
		kind := rhumb.DeadlineExceeded
		if q.Write != nil {
			kind = rhumb.Unknown
		}
		return k.failedResponse(q, rhumb.E("server.KV.Answer", kind, "the caller stopped waiting before the answer arrived"), api.Hint{})
	}
}

// serve answers one request by calling done exactly once. It may do so before it returns, and does
// not wait for slow work. The caller must call Drive after its last request.
func (k *KV) serve(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	// First, so that a rejected request costs nothing.
	answer, err := k.admitRequest(ctx, q, done)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	// From here on every path calls done, which returns the request's bytes to the budget.
	done = answer
	// Before anything is decoded or routed, so that a caller without rights learns and costs nothing.
	p := k.permitFor(ctx)
	if err := p.check(q); err != nil {
		k.rejectCaller(ctx, q, &p, err, done)
		return
	}
	k.dispatch(ctx, q, done)
}

// dispatch answers a request that its caller may send.
func (k *KV) dispatch(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	switch {
	case q.Write != nil:
		k.write(ctx, q, done)
	case q.Read != nil:
		k.read(ctx, q, done)
	case q.Scan != nil:
		k.scanRange(ctx, q, done)
	case q.Locate != nil:
		k.locateNames(ctx, q, done)
	default:
		done(k.failedResponse(q, rhumb.E(op, rhumb.InvalidArgument, "the request is neither a write, a read, a scan nor a locate; update the node or the client"), api.Hint{}))
	}
}

// write applies a batch. Batches of inserts need a range first, all others have one in the request
// or in the names of their keys.
func (k *KV) write(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	// resolve reports that the client chose no range.
	b, resolve, err := api.DecodeWrite(q.Write)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	insert, err := isInsertBatch(&b)
	// A range that the client chose may be wrong, or out of date. A key must only be written where
	// every reader looks for it.
	if err == nil && !resolve {
		err = k.cfg.Routes.Check(&b)
	}
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	if insert {
		// Finding a slot may have to open one, which takes a metadata command. The goroutine calls Drive
		// itself, since the caller's call may be over by then.
		go func() {
			k.proposeInserts(ctx, q, &b, resolve, done)
			k.cfg.Ranges.Drive()
		}()
		return
	}
	// The names of all mutations must belong to one range, since a batch is atomic.
	if resolve {
		if b.Range, err = k.cfg.Routes.Batch(k.homeRegion(b.Range.Region), &b); err != nil {
			done(k.failedResponse(q, err, api.Hint{}))
			return
		}
	}
	k.propose(ctx, q, &b, done)
}

// isInsertBatch reports whether the server names the keys of a batch. Such keys have ranges of
// their own, and a batch writes one range, so all mutations must be inserts or none.
func isInsertBatch(b *rhumb.Batch) (bool, error) {
	n := 0
	for i := range b.Mutations {
		if b.Mutations[i].Kind == rhumb.Insert {
			n++
		}
	}
	if n != 0 && n != len(b.Mutations) {
		return false, rhumb.Ef("server.KV", rhumb.InvalidArgument, "%d of %d mutations are inserts, but server-named keys have ranges of their own; send the inserts in a separate batch", n, len(b.Mutations))
	}
	return n > 0, nil
}

// homeRegion returns the region that a request names, or this node's region if it names none.
func (k *KV) homeRegion(r rhumb.RegionID) rhumb.RegionID {
	if r == 0 {
		return k.cfg.Region
	}
	return r
}

// proposeInserts proposes a batch with server-named keys in the range that accepts them.
func (k *KV) proposeInserts(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, resolve bool, done func(*rhumbpb.Response)) {
	hint, err := k.placeInserts(ctx, q, b, resolve)
	if err != nil {
		// Nothing was proposed yet, so an uncertain error of the search must not leave the outcome of the
		// write uncertain.
		if !rhumb.KindOf(err).NotApplied() {
			err = rhumb.WrapKind("server.KV", rhumb.Unavailable, err)
		}
		done(k.failedResponse(q, err, hint))
		return
	}
	k.propose(ctx, q, b, done)
}

// placeInserts sets the range of a batch with server-named keys, or checks the range that the
// client chose.
func (k *KV) placeInserts(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, resolve bool) (api.Hint, error) {
	ctx, cancel := k.withDeadline(ctx, q.TimeoutUs)
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
	// Whether an earlier attempt was applied is known in its range only. If it was not, the range takes one insert more
	// than it should.
	if q.Again && !resolve {
		return api.Hint{}, nil
	}
	// Only the primary knows how full the range is. Another node forwards the batch without a check.
	if r, err := k.cfg.Routes.Range(b.Range); err == nil && r.Primary == k.cfg.Self {
		if instead, err := k.cfg.Inserts.Takes(ctx, b.Range); err != nil {
			return k.rangeHint(instead), err
		}
	}
	return api.Hint{}, nil
}

// classOf returns the class that all tables of a batch share. Tables of different classes have no
// range in common.
func (k *KV) classOf(b *rhumb.Batch) (class rhumb.ClassID, err error) {
	for i := range b.Mutations {
		c, err := k.cfg.Routes.Class(b.Mutations[i].Table)
		switch {
		case err != nil:
			return 0, err
		case i > 0 && c.ID != class:
			return 0, rhumb.Ef("server.KV", rhumb.InvalidArgument, "mutation %d is of table %s with class %s, but mutation 0 has class %s, and a batch writes one range; write twice", i, b.Mutations[i].Table, c.ID, class)
		}
		class = c.ID
	}
	return class, nil
}

// propose orders a batch if this node is the primary of its range, and forwards the request
// otherwise.
func (k *KV) propose(ctx context.Context, q *rhumbpb.Request, b *rhumb.Batch, done func(*rhumbpb.Response)) {
	r, err := k.cfg.Routes.Range(b.Range)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	// The next node must not choose the range again: its catalog may be older, and an insert that was
	// placed here must keep its place.
	pin := func() {
		q.Write.Region, q.Write.Slot, q.Write.Resolve = uint32(b.Range.Region), uint32(b.Range.Slot), false
	}
	switch {
	case k.isPrimary(r):
	case rhumb.Epoch(q.Handed) > r.Epoch:
		go func() {
			ctx, cancel := k.withDeadline(ctx, q.TimeoutUs)
			defer cancel()
			if err := k.cfg.Ranges.AwaitPrimary(ctx, r.ID, rhumb.Epoch(q.Handed), false); err != nil {
				done(k.failedResponse(q, err, api.Hint{}))
				return
			}
			q.Handed = 0
			k.propose(ctx, q, b, done)
			k.cfg.Ranges.Drive()
		}()
		return
	default:
		pin()
		k.forwardRequest(ctx, q, r, done)
		return
	}
	start := time.Now()
	k.cfg.Ranges.Propose(b, func(o rhumb.Outcome, err error) {
		k.metrics.writeSeconds.Observe(time.Since(start).Seconds())
		// The batch had no effect here. Its request ID goes with it, so it is applied once.
		if to, epoch, ok := k.handedTo(q, b.Range, err); ok {
			pin()
			k.forwardHanded(ctx, q, r, to, epoch, done)
			return
		}
		if err != nil {
			// The hint is looked up now, not before: the range may have a new primary since.
			done(k.failedResponse(q, err, k.rangeHint(b.Range)))
			return
		}
		// The hop to this node counts as one.
		receipt := rhumb.Receipt{Node: k.cfg.Self, Region: k.cfg.Region, Range: r.ID, Epoch: r.Epoch, Hops: int(q.HopsDone) + 1, Timestamp: o.Version.HLC}
		done(&rhumbpb.Response{Id: q.Id, Outcome: api.EncodeOutcome(&o), Receipt: api.EncodeReceipt(&receipt)})
	})
}

// isPrimary reports whether this node is the primary of a range. Until metadata shows a handover to this node, only the
// host knows.
func (k *KV) isPrimary(r *rhumb.Range) bool {
	return r.Primary == k.cfg.Self || k.cfg.Ranges.PrimaryEpoch(r.ID) > r.Epoch
}

// handedTo returns the node to which this node handed over a range, if err refused a request for that reason. A request
// is passed on even if it allows no hops: the client cannot know the new primary before metadata does.
func (k *KV) handedTo(q *rhumbpb.Request, id rhumb.RangeID, err error) (to rhumb.NodeID, epoch rhumb.Epoch, ok bool) {
	if err == nil || rhumb.KindOf(err) != rhumb.NotPrimary || q.HopsDone >= hopsMax {
		return rhumb.NoNode, 0, false
	}
	epoch, to, ok = k.cfg.Ranges.HandedOver(id)
	return to, epoch, ok
}

// forwardHanded passes a request on to the node to which this node handed over the range.
func (k *KV) forwardHanded(ctx context.Context, q *rhumbpb.Request, r *rhumb.Range, to rhumb.NodeID, epoch rhumb.Epoch, done func(*rhumbpb.Response)) {
	q.Handed = uint64(epoch)
	k.sendOn(ctx, q, to, r, done)
}

// rangeHint returns a hint with the newest record of a range, from which the client learns the
// primary.
func (k *KV) rangeHint(id rhumb.RangeID) api.Hint {
	r, _ := k.cfg.Routes.Range(id)
	return api.Hint{Newer: r}
}

// read answers a get of one or more names.
func (k *KV) read(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	rd, err := api.DecodeRead(q.Read)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	// The names may belong to several ranges, some of them on other nodes: the client left that to this node, or
	// the range was split since it chose.
	if rd.Resolve || !k.sameRange(&rd) {
		go k.readMany(ctx, q, rd, done)
		return
	}
	k.serveRange(ctx, q, rd.Range, done, func(ctx context.Context) (*rhumbpb.Response, error) {
		start := time.Now()
		items, receipt, err := k.cfg.Ranges.Get(ctx, rd.Range, rd.Table, rd.Names)
		k.metrics.readSeconds.Observe(time.Since(start).Seconds())
		if err != nil {
			return nil, err
		}
		if rd.VersionsOnly {
			for i := range items {
				items[i].Value = nil
			}
		}
		return &rhumbpb.Response{Items: api.EncodeItems(items, false, true), Receipt: k.encodeReceipt(q, receipt)}, nil
	})
}

// sameRange reports whether all names of a read belong to the range that the client chose, as far as this
// node knows.
func (k *KV) sameRange(rd *api.Read) bool {
	// The home of one name is the range that the client asked for, or the key is of an insert.
	if len(rd.Names) < 2 {
		return true
	}
	r, err := k.cfg.Routes.Range(rd.Range)
	if err != nil || r.Last == 0 && !k.cfg.Routes.Hashed(rd.Range) {
		return true
	}
	for _, name := range rd.Names {
		if id, err := k.cfg.Routes.Named(rd.Range.Region, rd.Table, name); err != nil || id != r.ID {
			return err != nil
		}
	}
	return true
}

// readMany finds the range of each name, asks each range, and merges the answers in the order of
// the request.
func (k *KV) readMany(ctx context.Context, q *rhumbpb.Request, rd api.Read, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	ctx, cancel := k.withDeadline(ctx, q.TimeoutUs)
	defer cancel()
	region := k.homeRegion(rd.Range.Region)
	byRange := map[rhumb.RangeID][]int{}
	// In the order of the first names, so that errors and receipts do not depend on the order of a
	// map.
	var order []rhumb.RangeID
	for i, name := range rd.Names {
		id, err := k.cfg.Routes.Named(region, rd.Table, name)
		if err != nil {
			done(k.failedResponse(q, err, api.Hint{}))
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
		// The parts are answered here like requests of a client. Each carries the hops that are left, so
		// that the bound holds for every path.
		part := &rhumbpb.Request{Hops: q.Hops, HopsDone: q.HopsDone, LocalOnly: q.LocalOnly, TimeoutUs: q.TimeoutUs, Revision: q.Revision}
		part.Read = &rhumbpb.Read{Table: uint32(rd.Table), Region: uint32(id.Region), Slot: uint32(id.Slot), VersionsOnly: rd.VersionsOnly}
		for _, i := range byRange[id] {
			part.Read.Names = append(part.Read.Names, rd.Names[i])
		}
		a := k.Answer(ctx, part)
		switch {
		// The error of a part is the error of the read, under the ID of the request.
		case a.Error != nil:
			a.Id = q.Id
			done(a)
			return
		case len(a.Items) != len(byRange[id]):
			done(k.failedResponse(q, &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: id, Msg: fmt.Sprintf("the primary of the range returned %d records for %d names; report this", len(a.Items), len(byRange[id]))}, api.Hint{}))
			return
		}
		for j, i := range byRange[id] {
			resp.Items[i] = a.Items[j]
			// The request named no slot, so each record names its own: it is part of the record's key.
			if resp.Items[i].Slot == 0 {
				resp.Items[i].Slot = uint32(id.Slot)
			}
			size += len(a.Items[j].Value)
		}
		// Each range respects the limit of a read, but the sum of several may not.
		if size > rhumb.ReadSizeMax {
			done(k.failedResponse(q, rhumb.Ef(op, rhumb.TooLarge, "the records have more than %d bytes, the limit of one read; ask for fewer", rhumb.ReadSizeMax), api.Hint{}))
			return
		}
		resp.Receipt = a.Receipt
	}
	// A receipt names one range, so the receipt of several ranges names none.
	if len(order) > 1 && resp.Receipt != nil {
		resp.Receipt.Home, resp.Receipt.Slot, resp.Receipt.Epoch = 0, 0, 0
	}
	done(resp)
}

// scanRange answers one page of a scan.
func (k *KV) scanRange(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	s, err := api.DecodeScan(q.Scan)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	if len(s.Ranges) > 0 {
		// It may have to read names in each slot of many ranges, and must not hold up the next requests of the stream.
		go k.scanRanges(ctx, q, scanQuery(s), done)
		return
	}
	k.serveRange(ctx, q, s.Range, done, func(ctx context.Context) (*rhumbpb.Response, error) {
		page, receipt, err := k.scanPermitted(ctx, scanQuery(s))
		if err != nil {
			return nil, err
		}
		return &rhumbpb.Response{Items: api.EncodeItems(page.Items, true, true), More: page.More, Last: uint32(page.Last), Receipt: k.encodeReceipt(q, receipt)}, nil
	})
}

// scanRanges answers one page of a scan of several ranges with those that this node serves. It forwards nothing: the client asks for each of
// the others alone, with redirects and retries. So a range without a primary delays its own records and no others, and the node needs no
// connection to other nodes for a scan.
func (k *KV) scanRanges(ctx context.Context, q *rhumbpb.Request, s rhumb.ScanQuery, done func(*rhumbpb.Response)) {
	limited := newLateContext(ctx, timeoutOf(q.TimeoutUs))
	defer limited.stop()
	start := time.Now()
	page, receipt, err := k.scanPermitted(limited, s)
	k.metrics.scanSeconds.Observe(time.Since(start).Seconds())
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	resp := &rhumbpb.Response{Id: q.Id, Items: api.EncodeItems(page.Items, true, true), More: page.More, Receipt: k.encodeReceipt(q, receipt)}
	for _, end := range page.Ends {
		resp.Ends = append(resp.Ends, uint32(end))
	}
	done(resp)
}

// scanQuery returns the query of a scan. It caps the limit, so that one page never holds up the
// next requests of the stream for long.
func scanQuery(s api.Scan) rhumb.ScanQuery {
	limit := s.Limit
	if limit == 0 || limit > rhumb.ScanPageMax {
		limit = rhumb.ScanPageMax
	}
	return rhumb.ScanQuery{
		Range: s.Range, Table: s.Table, Prefix: s.Prefix, After: s.After, Limit: limit, BytesMax: s.BytesMax, Ranges: s.Ranges, AfterHome: s.AfterHome,
	}
}

// serveRange calls do if this node is the primary of the range, and forwards the request otherwise.
// It calls do on the caller's goroutine if that takes no round trip.
func (k *KV) serveRange(ctx context.Context, q *rhumbpb.Request, id rhumb.RangeID, done func(*rhumbpb.Response), do func(context.Context) (*rhumbpb.Response, error)) {
	r, err := k.cfg.Routes.Range(id)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	awaited := rhumb.Epoch(q.Handed) > r.Epoch
	if !k.isPrimary(r) && !awaited {
		k.forwardRequest(ctx, q, r, done)
		return
	}
	// here answers on this node. Unless it may wait, it returns false if the range is not ready for reads.
	here := func(mayWait bool) bool {
		// A read of a whole frame would otherwise make a timer for each of its requests.
		limited := newLateContext(ctx, timeoutOf(q.TimeoutUs))
		defer limited.stop()
		var resp *rhumbpb.Response
		if awaited {
			err = k.cfg.Ranges.AwaitPrimary(limited, id, rhumb.Epoch(q.Handed), true)
		}
		if err == nil {
			resp, err = do(limited)
		}
		// A primary that has just begun answers reads once its first entry is committed.
		if rhumb.KindOf(err) == rhumb.NotPrimary && !awaited && k.cfg.Ranges.PrimaryEpoch(id) > 0 {
			if !mayWait {
				err = nil
				return false
			}
			if err = k.cfg.Ranges.AwaitPrimary(limited, id, 1, true); err == nil {
				resp, err = do(limited)
			}
		}
		if to, epoch, ok := k.handedTo(q, id, err); ok {
			k.forwardHanded(ctx, q, r, to, epoch, done)
			return true
		}
		if err != nil {
			resp = k.failedResponse(q, err, k.rangeHint(id))
		}
		resp.Id = q.Id
		done(resp)
		return true
	}
	// With a lease the read is local. Without one it waits for the metadata leader, and would hold up
	// the next requests of the stream.
	if !awaited && k.cfg.Ranges.Leased(id) && here(false) {
		return
	}
	go here(true)
}

// forwardRequest sends a request to the primary of its range, or rejects it with a hint that names
// the primary.
func (k *KV) forwardRequest(ctx context.Context, q *rhumbpb.Request, r *rhumb.Range, done func(*rhumbpb.Response)) {
	const op rhumb.Op = "server.KV"
	fail := func(kind rhumb.Kind, msg string) {
		done(k.failedResponse(q, &rhumb.Error{Op: op, Kind: kind, Range: r.ID, Node: k.cfg.Self, Msg: msg}, api.Hint{Newer: r}))
	}
	switch {
	case q.LocalOnly && !k.cfg.Routes.SameRegion(k.cfg.Self, r.Primary):
		fail(rhumb.Unavailable, "the primary of the range is in another region, and the request must stay in this one; allow hops between regions, or retry later")
		return
	// The answer would carry records of a confined table through the memory of this node. The client already has the
	// record of the range, and asks the primary itself.
	case k.cfg.State != nil && !k.cfg.State().MayHold(r, k.cfg.Self):
		k.metrics.confined.Inc()
		fail(rhumb.NotPrimary, "the table is confined to other regions, so this node does not pass the request on; ask the primary")
		return
	case q.Hops == 0 || q.HopsDone >= hopsMax:
		fail(rhumb.NotPrimary, "another node is the primary of the range, and the request may not be forwarded again; retry at the primary")
		return
	}
	q.Hops--
	q.Handed = 0
	k.sendOn(ctx, q, r.Primary, r, done)
}

// sendOn forwards a request to another node.
func (k *KV) sendOn(ctx context.Context, q *rhumbpb.Request, to rhumb.NodeID, r *rhumb.Range, done func(*rhumbpb.Response)) {
	// The request is changed in place; its stream does not use it any more.
	q.HopsDone++
	// Whatever the client wrote here is replaced: the connection identifies a client. The other node decides again,
	// by metadata that is no older than those that allowed the request here.
	who, _ := access.FromContext(ctx)
	q.Principal = api.EncodePrincipal(who)
	if k.cfg.State != nil {
		q.Revision = max(q.Revision, k.cfg.State().Revision())
	}
	k.metrics.forwarded.Inc()
	// One goroutine per request. The budget of requests bounds their number.
	go func() {
		ctx, cancel := k.withDeadline(ctx, q.TimeoutUs)
		defer cancel()
		resp, err := k.cfg.Peers.Forward(ctx, to, q)
		// The client gets the record that this node used, so that it can ask the primary itself.
		if err != nil {
			done(k.failedResponse(q, err, api.Hint{Newer: r}))
			return
		}
		// The other node answered under the ID of its own stream.
		resp.Id = q.Id
		done(resp)
	}()
}

// withDeadline returns ctx limited to us microseconds, and to requestTimeoutDefault in any case. 0
// means no limit of the client's own.
func (k *KV) withDeadline(ctx context.Context, us uint64) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, timeoutOf(us))
}

// timeoutOf returns the time that a request may take, of us microseconds.
func timeoutOf(us uint64) time.Duration {
	if us == 0 {
		return requestTimeoutDefault
	}
	return min(requestTimeoutDefault, api.DecodeMicros(us))
}

// encodeReceipt completes a receipt with this node's region and the hops that the request has made.
func (k *KV) encodeReceipt(q *rhumbpb.Request, r rhumb.Receipt) *rhumbpb.Receipt {
	r.Region = k.cfg.Region
	r.Hops += int(q.HopsDone)
	return api.EncodeReceipt(&r)
}

// failedResponse counts an error and returns it as a response.
func (k *KV) failedResponse(q *rhumbpb.Request, err error, h api.Hint) *rhumbpb.Response {
	k.metrics.failed.WithLabelValues(rhumb.KindOf(err).String()).Inc()
	return &rhumbpb.Response{Id: q.Id, Error: api.EncodeError(err, h)}
}

// Scan sends the records of one range page by page.
func (k *KV) Scan(q *rhumbpb.ScanRequest, stream grpc.ServerStreamingServer[rhumbpb.ScanPage]) error {
	// 0 means no limit.
	left := int(q.Limit)
	ctx, cancel := k.withDeadline(stream.Context(), q.TimeoutUs)
	defer cancel()
	for {
		// One hop is allowed for each page, since the primary may change between pages.
		part := &rhumbpb.Request{Scan: q, Hops: 1}
		q.Slots = nil
		// The pages share the limit of the whole scan.
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
		// An empty page with More set would be requested again and again.
		if !more || len(resp.Items) == 0 {
			return nil
		}
		// The position is a name, so a page that another primary serves continues at the right place.
		q.After, q.HasAfter = resp.Items[len(resp.Items)-1].Name, true
	}
}
