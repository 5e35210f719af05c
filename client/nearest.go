package client

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/geo/rtt"
)

// distances holds the measured round trips, by address.
type distances struct {
	mu sync.Mutex // guards the map
	m  map[string]distance
}

type distance struct {
	rtt    rtt.Estimate
	failed bool // the last measurement got no answer
}

func (d *distances) note(addr string, sample time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.m[addr]
	if ok {
		e.rtt = e.rtt.Observe(sample)
	}
	e.failed = !ok
	d.m[addr] = e
}

// far is what is assumed of an address that was never measured: behind all that were.
const far = time.Hour

func (d *distances) of(addr string) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.m[addr]
	if e.failed {
		return 2 * far
	}
	return e.rtt.Or(far)
}

func (d *distances) sort(addrs []string) {
	by := make(map[string]time.Duration, len(addrs))
	for _, a := range addrs {
		by[a] = d.of(a)
	}
	slices.SortStableFunc(addrs, func(a, b string) int { return cmp.Compare(by[a], by[b]) })
}

// ping measures the way to an address once.
func (c *Client) ping(ctx context.Context, addr string) (*rhumbpb.PingResponse, error) {
	const op rhumb.Op = "client.Ping"
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	start := time.Now()
	resp, err := askAt(ctx, c, op, addr, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.PingResponse, error) {
		return cc.Ping(ctx, &rhumbpb.PingRequest{})
	})
	if ctx.Err() == nil || err == nil {
		c.rtt.note(addr, time.Since(start), err == nil)
	}
	return resp, err
}

// measure pings addresses, all at once and each several times: the first ping also pays for the connection.
func (c *Client) measure(ctx context.Context, addrs []string) {
	var work sync.WaitGroup
	for _, a := range addrs {
		work.Go(func() {
			for range pingsPerRound {
				if _, err := c.ping(ctx, a); err != nil {
					return
				}
			}
		})
	}
	work.Wait()
}

// measureNearest measures addresses and returns when one has answered and the others have had twice its time: whichever
// has not answered by then is farther away. Those go on being measured.
func (c *Client) measureNearest(ctx context.Context, addrs []string) {
	measured := make(chan string, len(addrs))
	for _, a := range addrs {
		c.spawn(func() {
			c.measure(c.ctx, []string{a})
			measured <- a
		})
	}
	start := time.Now()
	var enough <-chan time.Time
	for range addrs {
		select {
		case a := <-measured:
			if enough == nil && c.rtt.of(a) < far {
				enough = time.After(max(time.Since(start), settleMin))
			}
		case <-enough:
			return
		case <-ctx.Done():
			return
		}
	}
}

// settleMin is the least time that other nodes have to answer after the first one has.
const settleMin = 10 * time.Millisecond

// measureSeeds measures the configured addresses until one has answered and the others have had twice its time.
func (c *Client) measureSeeds(ctx context.Context) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, len(c.cfg.Addrs))
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for _, a := range c.cfg.Addrs {
		work.Go(func() {
			resp, err := c.ping(ctx, a)
			for i := 1; i < pingsPerRound && err == nil; i++ {
				resp, err = c.ping(ctx, a)
			}
			if err == nil && len(resp.GetCluster()) == 0 {
				err = c.outsider(ctx, a)
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
				last = err
			case !found:
				found = true
				enough = time.After(max(time.Since(start), settleMin))
			}
		case <-enough:
			return nil
		case <-ctx.Done():
			return rhumb.Ef(op, rhumb.Unavailable, "no node answers at %v: %v", c.cfg.Addrs, ctx.Err())
		}
	}
	if !found {
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: "no node answers at any of the addresses", Err: plain(last)}
	}
	return nil
}

// outsider says why a node belongs to no cluster, in its own words.
func (c *Client) outsider(ctx context.Context, addr string) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	resp, err := askAt(ctx, c, op, addr, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.StatusResponse, error) {
		return cc.Status(ctx, &rhumbpb.StatusRequest{})
	})
	if err != nil || resp.Reason == "" {
		return rhumb.Ef(op, rhumb.Unavailable, "the node at %s belongs to no cluster yet; run init", addr)
	}
	return rhumb.Ef(op, rhumb.Unavailable, "the node at %s says: %s", addr, resp.Reason)
}

// plain takes the mark of answered off an error.
func plain(err error) error {
	if e, ok := err.(*answered); ok {
		return e.error
	}
	return err
}

// settle finds the caller's region: the configured one, or that of the nearest node.
func (c *Client) settle(ctx context.Context) (err error) {
	if c.cfg.From != "" {
		c.here, err = c.meta.region(c.cfg.From)
		if err != nil {
			return err
		}
	}
	c.measureNearest(ctx, c.sample())
	if c.cfg.From != "" {
		return nil
	}
	near := c.nearestFirst()[0]
	for _, n := range c.meta.sortedNodes() {
		if n.Addr == near {
			c.meta.mu.RLock()
			c.here = c.meta.regions[n.Region]
			c.meta.mu.RUnlock()
			return nil
		}
	}
	// The nearest address stands in no node's record: a proxy, or another name of a node. It says itself where it is.
	resp, err := c.ping(ctx, near)
	if err != nil {
		return plain(err)
	}
	c.here, err = c.meta.region(resp.RegionName)
	return err
}

// sampleMax is how many nodes of each region are measured; those of the caller's own region all are.
const sampleMax = 3

// sample picks the live nodes to measure.
func (c *Client) sample() []string {
	var out []string
	count := map[rhumb.RegionID]int{}
	for _, n := range c.meta.sortedNodes() {
		if n.State != rhumb.NodeLive || count[n.Region] >= sampleMax && n.Region != c.here.ID {
			continue
		}
		count[n.Region]++
		out = append(out, n.Addr)
	}
	return out
}

// remeasure keeps the round trips fresh until the client is closed.
func (c *Client) remeasure() {
	t := time.NewTicker(c.cfg.MeasureInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.measure(c.ctx, c.sample())
		case <-c.ctx.Done():
			return
		}
	}
}

// RoundTrip gives the least measured round trip to a region, and ok false when no node of it was reached yet.
func (c *Client) RoundTrip(region rhumb.RegionID) (d time.Duration, ok bool) {
	best := far
	for _, n := range c.meta.sortedNodes() {
		if n.Region == region {
			best = min(best, c.rtt.of(n.Addr))
		}
	}
	return best, best < far
}
