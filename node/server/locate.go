package server

import (
	"context"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// rangeNames holds the names of a locate that belong to one range.
type rangeNames struct {
	places []int // indexes in the request
	tables []rhumb.TableID
	names  [][]byte
}

// locateNames answers which of many names exist, by lease reads and without a log entry. It never
// forwards the request: one range that another node serves would hold up the answers about all
// others. Names of such a range stay undecided, and the client reads them one by one, with
// redirects and retries. So do names of a range without a lease, which takes a round trip to
// confirm. Decision 15 lists the alternatives.
func (k *KV) locateNames(ctx context.Context, q *rhumbpb.Request, done func(*rhumbpb.Response)) {
	l, err := api.DecodeLocate(q.Locate)
	if err != nil {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	// A goroutine of its own: up to rhumb.LocateNamesMax lookups must not hold up the other requests
	// of the stream.
	go func() {
		ctx, cancel := k.withDeadline(ctx, q.TimeoutUs)
		defer cancel()
		// The zero value is Undecided.
		located := make([]api.Existence, len(l.Names))
		for id, part := range k.byRange(ctx, &l) {
			k.locateInRange(ctx, id, part, located)
		}
		for e, n := range countExistences(located) {
			k.metrics.located.WithLabelValues(existences[e]).Add(float64(n))
		}
		// The answer is about several ranges, so the receipt names none.
		receipt := rhumb.Receipt{Node: k.cfg.Self, Hops: 1}
		done(&rhumbpb.Response{Id: q.Id, Located: located, Receipt: k.encodeReceipt(q, receipt)})
	}()
}

// byRange groups names by the range in which they live. It leaves out names for which this node
// knows no range, for example because their table is new, and names that the caller has no right to; they
// stay undecided. The client then reads them, and that request is denied.
func (k *KV) byRange(ctx context.Context, l *api.Locate) map[rhumb.RangeID]*rangeNames {
	region := k.homeRegion(l.Region)
	parts := map[rhumb.RangeID]*rangeNames{}
	may := k.permitFor(ctx)
	for i, name := range l.Names {
		if !may.allowsLocate(l.Tables[i], name) {
			continue
		}
		// Names of different tables may share a range, and then one look at storage.
		id, err := k.cfg.Routes.Named(region, l.Tables[i], name)
		// The client's own read returns the error, if it lasts.
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

// locateInRange decides the names of one range if this node is its primary and holds its lease.
func (k *KV) locateInRange(ctx context.Context, id rhumb.RangeID, p *rangeNames, located []api.Existence) {
	// Asked before every range, because another node may have become primary meanwhile.
	r, err := k.cfg.Routes.Range(id)
	if err != nil || r.Primary != k.cfg.Self || !k.cfg.Ranges.Leased(id) {
		return
	}
	// All names of the range at once: one iterator serves them.
	exist, err := k.cfg.Ranges.Exists(ctx, id, p.tables, p.names)
	if err != nil {
		// An error leaves the names undecided. The client's own read returns the error, if it lasts.
		return
	}
	for i, place := range p.places {
		located[place] = api.Absent
		if exist[i] {
			located[place] = api.Present
		}
	}
}

// countExistences returns how often each value occurs in located.
func countExistences(located []api.Existence) (n [len(existences)]int) {
	for _, e := range located {
		n[e]++
	}
	return n
}
