package client

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/geo/rtt"
)

const (
	// far is the assumed round trip to an address that was never measured. It is above every
	// measured one.
	far = time.Hour
	// settleMin is the least time that other nodes have to answer after the first one has.
	settleMin = 10 * time.Millisecond
	// samplesMax is how many nodes of each other region are measured. All nodes of the caller's own
	// region are.
	samplesMax = 3
)

// distances holds the measured round trips by address.
type distances struct {
	mu sync.Mutex // guards the map
	m  map[string]distance
}

type distance struct {
	rtt    rtt.Estimate
	failed bool // the last measurement got no answer
}

// recordSample records a round trip to an address, or with ok false that there was no answer.
func (d *distances) recordSample(addr string, sample time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.m[addr]
	if ok {
		e.rtt = e.rtt.Observe(sample)
	}
	e.failed = !ok
	d.m[addr] = e
}

// roundTrip returns the estimated round trip to an address. An address that did not answer is
// farther than one that was never measured.
func (d *distances) roundTrip(addr string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.m[addr]
	if e.failed {
		return 2 * far
	}
	return e.rtt.Or(far)
}

// sortByDistance sorts addresses by round trip. Addresses with equal round trips keep their order.
func (d *distances) sortByDistance(addrs []string) {
	// The keys are read once: a measurement during the sort would make the order inconsistent.
	by := make(map[string]time.Duration, len(addrs))
	for _, a := range addrs {
		by[a] = d.roundTrip(a)
	}
	slices.SortStableFunc(addrs, func(a, b string) int { return cmp.Compare(by[a], by[b]) })
}

// ping measures the round trip to an address once.
func (c *Client) ping(ctx context.Context, addr string) (*rhumbpb.PingResponse, error) {
	const op rhumb.Op = "client.Ping"
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	// The time includes the connection setup if there is no connection yet, so callers ping several
	// times.
	start := time.Now()
	resp, err := askAt(ctx, c, op, addr, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.PingResponse, error) {
		return cc.Ping(ctx, &rhumbpb.PingRequest{})
	})
	// A failure after ctx ended may be the caller's doing, and says nothing about the node.
	if ctx.Err() == nil || err == nil {
		c.rtt.recordSample(addr, time.Since(start), err == nil)
	}
	return resp, err
}

// measureAll measures addresses, all at once and each several times: the first ping includes the
// time to connect.
func (c *Client) measureAll(ctx context.Context, addrs []string) {
	var work sync.WaitGroup
	for _, a := range addrs {
		work.Go(func() {
			for range pingsPerRound {
				// One failure is enough: the address sorts last until it is measured again.
				if _, err := c.ping(ctx, a); err != nil {
					return
				}
			}
		})
	}
	work.Wait()
}

// measureNearest measures addresses and returns once one has answered and the others have had twice
// its time, because an address that has not answered by then is farther away. The measurements of
// those continue in the background.
func (c *Client) measureNearest(ctx context.Context, addrs []string) {
	// Buffered, since nobody receives the answers of slow addresses.
	measured := make(chan string, len(addrs))
	for _, a := range addrs {
		c.spawn(func() {
			// Under the client's context: a slow measurement outlives the caller.
			c.measureAll(c.ctx, []string{a})
			measured <- a
		})
	}
	start := time.Now()
	var enough <-chan time.Time
	for range addrs {
		select {
		case a := <-measured:
			if enough == nil && c.rtt.roundTrip(a) < far {
				// As much time again as the first answer took.
				enough = time.After(max(time.Since(start), settleMin))
			}
		case <-enough:
			return
		case <-ctx.Done():
			return
		}
	}
}

// measureSeeds measures the configured addresses until one has answered and the others have had
// twice its time. It returns an error if none answers as a node of a cluster.
func (c *Client) measureSeeds(ctx context.Context) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithCancel(ctx)
	// Each address sends one answer. Buffered, because the loop below may end before all have.
	answers := make(chan error, len(c.cfg.Addrs))
	var work sync.WaitGroup
	// cancel runs before Wait and ends the pings that are left.
	defer work.Wait()
	defer cancel()
	for _, a := range c.cfg.Addrs {
		work.Go(func() {
			resp, err := c.ping(ctx, a)
			// A node that could not decide the login says when to come back: its users may be older than those of the cluster.
			for i := 1; i < unsureTries && c.isUnsure(err) && ctx.Err() == nil; i++ {
				select {
				case <-time.After(rhumb.RetryAfterOf(unwrapAnswer(err))):
					resp, err = c.ping(ctx, a)
				case <-ctx.Done():
				}
			}
			for i := 1; i < pingsPerRound && err == nil; i++ {
				resp, err = c.ping(ctx, a)
			}
			// A node without a cluster answers pings but has no metadata.
			if err == nil && len(resp.GetCluster()) == 0 {
				err = c.outsiderError(ctx, a)
			}
			answers <- err
		})
	}
	start := time.Now()
	var last error
	var enough <-chan time.Time
	found := false
	for n := 0; n < len(c.cfg.Addrs); n++ {
		select {
		case err := <-answers:
			switch {
			case err != nil:
				// A failure does not end the search: one address that works is enough. That a node does
				// not let the caller in says more than that another one is away.
				if last == nil || !isDenial(last) {
					last = err
				}
			case !found:
				found = true
				enough = time.After(max(time.Since(start), settleMin))
			}
		case <-enough:
			return nil
		case <-ctx.Done():
			return rhumb.Ef(op, rhumb.Unavailable, "no node answers at %s: %v", strings.Join(c.cfg.Addrs, ", "), ctx.Err())
		}
	}
	switch {
	case found:
		return nil
	// An overloaded node says when to come back, which counts for all attempts to log in.
	case isDenial(last), rhumb.KindOf(unwrapAnswer(last)) == rhumb.Overloaded:
		return rhumb.Wrap(op, unwrapAnswer(last))
	default:
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: "no node answers at any of the addresses", Err: unwrapAnswer(last)}
	}
}

// unsureTries bounds how often Open asks a node that cannot decide a login. The node itself asks the metadata leader each time.
const unsureTries = 5

// isUnsure reports whether a login may succeed a little later: the node said so, or it asks the metadata leader for longer than a ping waits.
func (c *Client) isUnsure(err error) bool {
	err = unwrapAnswer(err)
	switch rhumb.KindOf(err) {
	case rhumb.Unavailable:
		return rhumb.RetryAfterOf(err) > 0
	case rhumb.DeadlineExceeded:
		return c.cfg.User != ""
	}
	return false
}

// isDenial reports whether a node answered that the caller has no identity or no right. All nodes
// would answer so.
func isDenial(err error) bool {
	k := rhumb.KindOf(unwrapAnswer(err))
	return k == rhumb.Unauthenticated || k == rhumb.PermissionDenied || k == rhumb.WrongCluster
}

// outsiderError returns an error with the reason why a node does not belong to a cluster, in the
// words of that node.
func (c *Client) outsiderError(ctx context.Context, addr string) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	resp, err := askAt(ctx, c, op, addr, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.StatusResponse, error) {
		return cc.Status(ctx, &rhumbpb.StatusRequest{})
	})
	if err != nil || resp.Reason == "" {
		return rhumb.Ef(op, rhumb.Unavailable, "the node at %s does not belong to a cluster yet; run init", addr)
	}
	return rhumb.Ef(op, rhumb.Unavailable, "the node at %s says: %s", addr, resp.Reason)
}

// chooseRegion sets the caller's region: the configured one, or that of the nearest node.
func (c *Client) chooseRegion(ctx context.Context) (err error) {
	// A configured region comes first, because nodesToMeasure depends on it.
	if c.cfg.From != "" {
		c.here, err = c.meta.regionByName(c.cfg.From)
		if err != nil {
			return err
		}
	}
	// The configured addresses may be far away, while the metadata names nodes that are nearer.
	c.measureNearest(ctx, c.nodesToMeasure())
	if c.cfg.From != "" {
		return nil
	}
	// Never empty: Config.Addrs has at least one address.
	near := c.nearestFirst()[0]
	for _, n := range c.meta.sortedNodes() {
		if n.Addr == near {
			c.meta.mu.RLock()
			c.here = c.meta.regions[n.Region]
			c.meta.mu.RUnlock()
			return nil
		}
	}
	// No node has registered this address: it is a proxy, or another name of a node. The node
	// itself knows its region.
	resp, err := c.ping(ctx, near)
	if err != nil {
		return unwrapAnswer(err)
	}
	c.here, err = c.meta.regionByName(resp.RegionName)
	return err
}

// nodesToMeasure returns the addresses of the live nodes whose round trips are measured. Only nodes
// nearby compete to be the nearest, so a few of each other region suffice.
func (c *Client) nodesToMeasure() []string {
	var out []string
	count := map[rhumb.RegionID]int{}
	for _, n := range c.meta.sortedNodes() {
		if !n.State.Serves() || count[n.Region] >= samplesMax && n.Region != c.here.ID {
			continue
		}
		count[n.Region]++
		out = append(out, n.Addr)
	}
	return out
}

// remeasure measures the round trips periodically until the client is closed.
func (c *Client) remeasure() {
	t := time.NewTicker(c.cfg.MeasureInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.measureAll(c.ctx, c.nodesToMeasure())
		case <-c.ctx.Done():
			return
		}
	}
}

// RoundTrip returns the least measured round trip to a region. ok is false if no node there was
// reached yet.
func (c *Client) RoundTrip(region rhumb.RegionID) (d time.Duration, ok bool) {
	// An address that was not measured, or did not answer, counts as far or farther and never is
	// the best.
	best := far
	for _, n := range c.meta.sortedNodes() {
		if n.Region == region {
			best = min(best, c.rtt.roundTrip(n.Addr))
		}
	}
	return best, best < far
}
