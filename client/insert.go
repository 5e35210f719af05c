package client

import (
	"context"
	"errors"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Insert writes opaque bytes under a name that the server assigns. Result.Key holds the name. A
// later read must name the home of the key (GetOptions.Home = key.Home.String()).
func (t *Table) Insert(ctx context.Context, value []byte, o InsertOptions) (Result, error) {
	return t.insertStored(ctx, rhumb.EncodeOpaque(make([]byte, 0, len(value)+1), value), o)
}

// InsertRecord is like Insert but writes a record.
func (t *Table) InsertRecord(ctx context.Context, r rhumb.Record, o InsertOptions) (Result, error) {
	const op rhumb.Op = "client.Table.InsertRecord"
	value, err := encodeRecord(op, r)
	if err != nil {
		return Result{}, t.c.countOutcome(err)
	}
	if o.Location == nil {
		// The record's own location selects its home region, as for a patch that creates a record.
		o.Location = locationOf(value, t.info.LocationField)
	}
	return t.insertStored(ctx, value, o)
}

// insertStored inserts a value in stored form.
func (t *Table) insertStored(ctx context.Context, stored []byte, o InsertOptions) (Result, error) {
	const op rhumb.Op = "client.Table.Insert"
	m := rhumb.Mutation{Kind: rhumb.Insert, Table: t.info.ID, Value: stored}
	out, err := t.c.applyBatch(ctx, op, []rhumb.Mutation{m}, BatchOptions{Home: o.Region, Location: o.Location})
	if err != nil {
		return Result{}, err
	}
	// Without the name nobody could read the record again, so this must not look like a success.
	if len(out.Names) != 1 {
		err := &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: out.Receipt.Range, Msg: "the node assigned no name"}
		return Result{}, t.c.countOutcome(err)
	}
	return Result{
		Key:     rhumb.Key{Table: t.info.ID, Home: out.Receipt.Range, Name: out.Names[0]},
		Applied: true, Version: out.Version, Receipt: out.Receipt,
	}, nil
}

// runInsert writes a batch of inserts to a range of its home region: the one that the home names,
// or the newest range of a live node. The nodes take turns. A node that holds much more than the
// others redirects inserts to them, and inserts then avoid it for a while (fullNodes).
func (p *plan) runInsert(ctx context.Context) (BatchResult, error) {
	c := p.c
	home, fixed, err := p.t.parseHome(p.o.Home)
	switch {
	case err != nil:
		return BatchResult{}, err
	case fixed:
		return p.insertIntoRange(ctx, home)
	case p.o.Home == "":
		home.Region = c.nearestRegion(p.t, p.o.Location)
	}
	// The name is assigned where the record is written, so any node of the region will do.
	nodes, into := c.meta.insertRanges(home.Region, p.t.info.Class)
	if len(nodes) == 0 {
		return BatchResult{}, rhumb.Ef(p.op, rhumb.Unavailable, "region %s has no live node that could take an insert", c.meta.regionName(home.Region))
	}
	nodes, into = c.full.withoutFull(nodes, into, p.t.info.Class)
	// Concurrent calls get different turns, so a burst spreads over the nodes.
	turn := int(c.turn.Add(1))
	var out BatchResult
	// Any node of the region will do. Another one is tried only after errors that say that the
	// insert was not applied: a second insert would be a second record.
	for i := range nodes {
		n := (turn + i) % len(nodes)
		// A node opens its first range of a class with the first insert.
		if into[n].IsZero() {
			out, err = p.insertOnNode(ctx, nodes[n])
		} else {
			out, err = p.insertIntoRange(ctx, into[n])
		}
		if k := rhumb.KindOf(err); err == nil || ctx.Err() != nil || k != rhumb.Unavailable && k != rhumb.NotPrimary {
			break
		}
	}
	return out, err
}

// insertIntoRange inserts into a range, and follows redirects to the range that takes inserts
// instead. Each range gets a request ID of its own, which is safe because a range that redirects
// did not apply the insert.
func (p *plan) insertIntoRange(ctx context.Context, id rhumb.RangeID) (BatchResult, error) {
	for i := 0; ; i++ {
		out, err := p.writeToRange(ctx, id, p.mutations)
		m, ok := errors.AsType[*movedError](err)
		if !ok {
			return out, err
		}
		if i == redirectsMax {
			return out, &rhumb.Error{Op: p.op, Kind: rhumb.Unavailable, Range: id, Msg: "the range for inserts changes too often; retry", Err: m.err}
		}
		// The range's primary sent the insert away. Without the note, every insert of its turn
		// would pay for the redirect.
		p.c.m.redirects.Add(1)
		if _, from, known := p.c.meta.primaryOf(id); known {
			p.noteRedirect(from.ID, m.to)
		}
		id = m.to
	}
}

// insertOnNode inserts on a node whose range for inserts is unknown: the node finds one, or opens
// one. The request is sent once and has no request ID, because a retry could find another range, in
// which nobody knows of the first attempt.
func (p *plan) insertOnNode(ctx context.Context, n rhumb.Node) (BatchResult, error) {
	c := p.c
	// Only the region is known; the node resolves the range.
	b := rhumb.Batch{Range: rhumb.RangeID{Region: n.Region}, Mutations: p.mutations}
	m := api.EncodeWrite(&b, true)
	// once: an unknown outcome is returned as such. The caller may insert again, at the risk of a
	// second record.
	resp, err := c.send(ctx, &request{
		op: p.op, id: b.Range, at: n.Addr, write: true, once: true, size: sizeOf(p.mutations),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Write: m} },
	})
	if m, ok := errors.AsType[*movedError](err); ok {
		p.noteRedirect(n.ID, m.to)
		return p.insertIntoRange(ctx, m.to)
	}
	if err != nil {
		return BatchResult{}, err
	}
	out := p.batchResult(resp, b.Range, len(p.mutations))
	c.awaitRange(ctx, out.Receipt.Range)
	return out, nil
}

// awaitRange waits until the watch has delivered a range, for at most the time of one attempt. The
// range may have been opened by the insert that returned it. A scan lists the ranges of the
// metadata, so without the wait this client's next scan could miss the record that it has just
// inserted.
func (c *Client) awaitRange(ctx context.Context, id rhumb.RangeID) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
	defer cancel()
	for {
		changed := c.meta.nextChange()
		if r, _, _ := c.meta.primaryOf(id); r != nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return // the insert succeeded all the same
		case <-c.ctx.Done():
			return
		}
	}
}

// noteRedirect records that a node redirected an insert to a range, if another node is its primary.
func (p *plan) noteRedirect(from rhumb.NodeID, to rhumb.RangeID) {
	if _, n, known := p.c.meta.primaryOf(to); known && n.ID != from {
		p.c.full.markFull(from, p.t.info.Class)
	}
}
