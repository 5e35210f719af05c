package server

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// rangeNames are the names of a locate that belong to one range.
type rangeNames struct {
	places []int // in the request
	tables []rhumb.TableID
	names  [][]byte
}

// locate answers which of many names exist, by lease reads and without a log entry. The request is never passed on: one
// range that another node serves would hold up the answers about all others. It stays undecided, and the client reads it
// by itself, with redirects and retries. So does a range without a lease, which takes a round trip to confirm.
func (k *KV) locate(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	l, err := api.DecodeLocate(q.Locate)
	if err != nil {
		done(k.failed(q, err, api.Hint{}))
		return
	}
	// On a goroutine of its own: up to rhumb.LocateNamesMax look-ups must not hold up the rest of the stream.
	go func() {
		ctx, cancel := k.deadline(ctx, q.TimeoutUs)
		defer cancel()
		located := make([]api.Existence, len(l.Names))
		for id, part := range k.byRange(&l) {
			k.locateIn(ctx, id, part, located)
		}
		for e, n := range counts(located) {
			k.m.located.WithLabelValues(existences[e]).Add(float64(n))
		}
		receipt := rhumb.Receipt{Node: k.cfg.Self, Hops: 1}
		done(&rhumbpb.Response{Id: q.Id, Located: located, Receipt: k.receipt(q, receipt)})
	}()
}

// byRange sorts names by the range in which they live. It leaves out those for which this node knows none, for example
// because their table is new.
func (k *KV) byRange(l *api.Locate) map[rhumb.RangeID]*rangeNames {
	region := k.home(l.Region)
	parts := map[rhumb.RangeID]*rangeNames{}
	for i, name := range l.Names {
		id, err := k.cfg.Routes.Named(region, l.Tables[i], name)
		if err != nil {
			continue
		}
		p := parts[id]
		if p == nil {
			p = &rangeNames{}
			parts[id] = p
		}
		p.places = append(p.places, i)
		p.tables = append(p.tables, l.Tables[i])
		p.names = append(p.names, name)
	}
	return parts
}

// locateIn decides the names of one range, if this node is its primary and holds its lease.
func (k *KV) locateIn(ctx context.Context, id rhumb.RangeID, p *rangeNames, located []api.Existence) {
	r, err := k.cfg.Routes.Range(id)
	if err != nil || r.Primary != k.cfg.Self || !k.cfg.Ranges.Leased(id) {
		return
	}
	exist, err := k.cfg.Ranges.Exists(ctx, id, p.tables, p.names)
	if err != nil {
		return
	}
	for i, place := range p.places {
		located[place] = api.Absent
		if exist[i] {
			located[place] = api.Present
		}
	}
}

// counts returns how often each value stands in located.
func counts(located []api.Existence) (n [len(existences)]int) {
	for _, e := range located {
		n[e]++
	}
	return n
}
