package client

import (
	"context"
	"errors"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Insert writes opaque bytes under a name that the server gives: Result.Key, whose home must be named to read it again
// (GetOptions.Home = key.Home.String()).
func (t *Table) Insert(ctx context.Context, value []byte, o InsertOptions) (Result, error) {
	return t.insert(ctx, rhumb.EncodeOpaque(make([]byte, 0, len(value)+1), value), o)
}

// InsertRecord is Insert with a record.
func (t *Table) InsertRecord(ctx context.Context, r rhumb.Record, o InsertOptions) (Result, error) {
	const op rhumb.Op = "client.Table.InsertRecord"
	value, err := encode(op, r)
	if err != nil {
		return Result{}, t.c.ended(err)
	}
	if o.Location == nil {
		o.Location = locationOf(value, t.info.LocationField)
	}
	return t.insert(ctx, value, o)
}

func (t *Table) insert(ctx context.Context, stored []byte, o InsertOptions) (Result, error) {
	const op rhumb.Op = "client.Table.Insert"
	m := rhumb.Mutation{Kind: rhumb.Insert, Table: t.info.ID, Value: stored}
	out, err := t.c.apply(ctx, op, []rhumb.Mutation{m}, BatchOptions{Home: o.Region, Location: o.Location})
	if err != nil {
		return Result{}, err
	}
	if len(out.Names) != 1 {
		err := &rhumb.Error{Op: op, Kind: rhumb.Internal, Range: out.Receipt.Range, Msg: "the node gave no name"}
		return Result{}, t.c.ended(err)
	}
	return Result{
		Key:     rhumb.Key{Table: t.info.ID, Home: out.Receipt.Range, Name: out.Names[0]},
		Applied: true, Version: out.Version, Receipt: out.Receipt,
	}, nil
}

// insert brings a batch of inserts into a range of its home region: the one that the home names, or the active one of a
// live node, of which each takes its turn. A node that holds much more than others sends inserts to them, and is then
// passed by for a while.
func (p *plan) insert(ctx context.Context) (BatchResult, error) {
	c := p.c
	home, fixed, err := p.t.home(p.o.Home)
	switch {
	case err != nil:
		return BatchResult{}, err
	case fixed:
		return p.insertInto(ctx, home)
	case p.o.Home == "":
		home.Region = c.nearestRegion(p.t, p.o.Location)
	}
	nodes, into := c.meta.insertsInto(home.Region, p.t.info.Class)
	if len(nodes) == 0 {
		return BatchResult{}, rhumb.Ef(p.op, rhumb.Unavailable, "region %s has no live node to insert on", home.Region)
	}
	nodes, into = c.away.pass(nodes, into, p.t.info.Class)
	turn := int(c.turn.Add(1))
	var out BatchResult
	for i := range nodes {
		n := (turn + i) % len(nodes)
		if into[n].IsZero() {
			out, err = p.insertAt(ctx, nodes[n])
		} else {
			out, err = p.insertInto(ctx, into[n])
		}
		if k := rhumb.KindOf(err); err == nil || ctx.Err() != nil || k != rhumb.Unavailable && k != rhumb.NotPrimary {
			break
		}
	}
	return out, err
}

// insertInto inserts into a range, and where that takes no more inserts into the one that does. Each range has its own
// request id; the one before certainly did not apply it.
func (p *plan) insertInto(ctx context.Context, id rhumb.RangeID) (BatchResult, error) {
	for i := 0; ; i++ {
		out, err := p.write(ctx, id, p.mutations)
		m, ok := errors.AsType[*moved](err)
		if !ok {
			return out, err
		}
		if i == redirectsMax {
			return out, &rhumb.Error{Op: p.op, Kind: rhumb.Unavailable, Range: id, Msg: "the range for inserts changes too fast; retry", Err: m.err}
		}
		p.c.m.redirects.Add(1)
		if _, from, known := p.c.meta.primary(id); known {
			p.sentAway(from.ID, m.to)
		}
		id = m.to
	}
}

// insertAt inserts on a node of which no range for inserts is known yet: it finds, or opens, one. This is tried once,
// because a retry could find another range, in which nobody knows of the first try.
func (p *plan) insertAt(ctx context.Context, n rhumb.Node) (BatchResult, error) {
	c := p.c
	b := rhumb.Batch{Range: rhumb.RangeID{Region: n.Region}, Mutations: p.mutations}
	m := api.EncodeWrite(&b, true)
	resp, err := c.send(ctx, &errand{
		op: p.op, id: b.Range, at: n.Addr, write: true, once: true, size: sizeOf(p.mutations),
		message: func() *rhumbpb.Request { return &rhumbpb.Request{Write: m} },
	})
	if m, ok := errors.AsType[*moved](err); ok {
		p.sentAway(n.ID, m.to)
		return p.insertInto(ctx, m.to)
	}
	if err != nil {
		return BatchResult{}, err
	}
	return p.result(resp, b.Range, len(p.mutations)), nil
}

// sentAway notes that a node sent an insert to a range, if that is one of another node.
func (p *plan) sentAway(from rhumb.NodeID, to rhumb.RangeID) {
	if _, n, known := p.c.meta.primary(to); known && n.ID != from {
		p.c.away.note(from, p.t.info.Class)
	}
}
