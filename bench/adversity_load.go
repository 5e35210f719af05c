package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/wan"
)

const (
	// adversityTimeout bounds a call. It exceeds every limit of a gap.
	adversityTimeout = 10 * time.Second
	// adversityReads is the number of calls of a caller per read among them.
	adversityReads = 4
	// adversityWide is how much rarer a caller of the table that survives
	// regions calls: each of its writes crosses the world, and a caller has one
	// call at a time.
	adversityWide = 5
	// adversitySlots is the number of ranges of each table in each region. With
	// few, several keys show when a range is available.
	adversitySlots = 6
	// adversityCallsMax bounds the calls that a run remembers, about 60 bytes
	// each.
	adversityCallsMax = 4_000_000
)

// adversityCaller calls one key at a constant rate.
type adversityCaller struct {
	name     []byte
	home     string // region of the caller, and home of the key
	wide     bool   // the key is in the table that survives the loss of a region
	t        *client.Table
	interval time.Duration

	mu    sync.Mutex // guards the fields below
	at    rhumb.RangeID
	acked int64
}

// adversityCall is a call that ended.
type adversityCall struct {
	caller int
	// due is when the call should have begun, from the start of the run. took
	// counts from then, so that calls which waited for the caller's previous
	// call have that time too.
	due, took time.Duration
	read, ok  bool
	why       string // the error of a failed call
}

// end returns when the call ended.
func (c adversityCall) end() time.Duration { return c.due + c.took }

// adversityLoad holds a constant load on a cluster, from callers in all
// regions. It only notes the calls; figures are computed from them after the
// run.
type adversityLoad struct {
	clients []*client.Client
	callers []*adversityCaller
	begin   time.Time
	wait    sync.WaitGroup
	cancel  context.CancelFunc

	mu    sync.Mutex // guards calls
	calls []adversityCall
}

// openLoad opens a client in each region and creates both tables.
func openLoad(ctx context.Context, cfg *AdversityConfig) (_ *adversityLoad, err error) {
	network, err := wan.Open(cfg.Cluster.LatencyFile)
	if err != nil {
		return nil, err
	}
	l := &adversityLoad{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	var regions []string
	for _, n := range cfg.Cluster.Nodes {
		if len(regions) == 0 || regions[len(regions)-1] != n.Region {
			regions = append(regions, n.Region)
		}
	}
	for i, r := range regions {
		cc := cfg.Cluster.ClientConfig(adversityTimeout)
		// The callers see the same simulated distances as the nodes.
		cc.From, cc.Dial = r, network.Dialer(r)
		c, err := client.Open(ctx, cc)
		if err != nil {
			return nil, err
		}
		l.clients = append(l.clients, c)
		for _, wide := range []bool{false, true} {
			t, err := openAdversityTable(ctx, c, wide, i == 0)
			if err != nil {
				return nil, err
			}
			interval := cfg.Interval
			if wide {
				interval *= adversityWide
			}
			for k := range cfg.Keys {
				l.callers = append(l.callers, &adversityCaller{name: fmt.Appendf(nil, "%s-%d", r, k), home: r, wide: wide, t: t, interval: interval})
			}
		}
	}
	return l, nil
}

// openAdversityTable creates one of the two tables, or opens it.
func openAdversityTable(ctx context.Context, c *client.Client, wide, create bool) (*client.Table, error) {
	name, o := "near", client.TableOptions{Settings: rhumb.ClassSettings{HashSlots: adversitySlots}}
	if wide {
		name, o.Settings.Survival = "wide", rhumb.SurviveRegion
	}
	if create {
		return c.CreateTable(ctx, name, o)
	}
	return c.Table(ctx, name)
}

// start starts the callers. The starts of their calls are spread over the
// interval.
func (l *adversityLoad) start(ctx context.Context, random *rand.Rand) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.begin = time.Now()
	for i, c := range l.callers {
		first := time.Duration(random.Int64N(int64(c.interval)))
		l.wait.Go(func() { l.runCaller(ctx, i, c, first) })
	}
}

// runCaller calls until ctx ends. A caller that is late skips the calls that
// were due meanwhile: they count as offered, and not as answered.
func (l *adversityLoad) runCaller(ctx context.Context, i int, c *adversityCaller, due time.Duration) {
	for n := int64(1); pauseFor(ctx, due-time.Since(l.begin)) == nil; n++ {
		read := n%adversityReads == 0
		err := c.call(ctx, n, read)
		if ctx.Err() != nil {
			return // the end of the run has cancelled the call
		}
		call := adversityCall{caller: i, due: due, took: time.Since(l.begin) - due, read: read, ok: err == nil}
		if err != nil {
			call.why = err.Error()
		}
		l.note(call)
		for due += c.interval; due+c.interval < time.Since(l.begin); {
			due += c.interval
		}
	}
}

// call writes n to the key, or reads the key. A read that returns less than an
// acknowledged number is an error.
func (c *adversityCaller) call(ctx context.Context, n int64, read bool) error {
	if !read {
		res, err := c.t.Put(ctx, c.name, fmt.Append(nil, n), client.PutOptions{Home: c.home})
		if err == nil {
			c.mu.Lock()
			c.acked, c.at = n, res.Key.Home
			c.mu.Unlock()
		}
		return err
	}
	c.mu.Lock()
	acked := c.acked
	c.mu.Unlock()
	if acked == 0 {
		return nil // nothing was written yet
	}
	return c.check(ctx, acked)
}

// check reads the key and returns an error if it holds less than an
// acknowledged number.
func (c *adversityCaller) check(ctx context.Context, acked int64) error {
	got, err := c.t.Get(ctx, c.name, client.GetOptions{Home: c.home})
	if err != nil {
		return err
	}
	b, err := got.Bytes()
	if err != nil {
		return err
	}
	var n int64
	if _, err := fmt.Sscan(string(b), &n); err != nil || n < acked {
		return rhumb.Ef("bench.adversity", rhumb.Corrupt, "key %s of region %s holds %q, and %d was acknowledged", c.name, c.home, b, acked)
	}
	return nil
}

// note remembers a call.
func (l *adversityLoad) note(call adversityCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) < adversityCallsMax {
		l.calls = append(l.calls, call)
	}
}

// stop ends the callers.
func (l *adversityLoad) stop() {
	if l.cancel != nil {
		l.cancel()
	}
	l.wait.Wait()
}

// countLost reads every key that was written and returns how many lack their last
// acknowledged write.
func (l *adversityLoad) countLost(ctx context.Context) (lost, checked int, err error) {
	for _, c := range l.callers {
		if c.acked == 0 {
			continue
		}
		err := c.check(ctx, c.acked)
		switch rhumb.KindOf(err) {
		case rhumb.Corrupt, rhumb.NotFound:
			lost++
		default:
			if err != nil {
				return lost, checked, err
			}
		}
		checked++
	}
	return lost, checked, nil
}

// close closes the clients.
func (l *adversityLoad) close() {
	for _, c := range l.clients {
		c.Close()
	}
}
