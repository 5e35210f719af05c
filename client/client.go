package client

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// Client is a connection to a cluster. Make one per process with Open, and Close it.
type Client struct {
	cfg    Config
	log    *slog.Logger
	id     rhumb.UUID // of requests
	m      counters
	meta   *metadata
	homes  *homes
	budget *budget
	window windows
	turn   atomic.Uint32 // of inserts, so that they spread over the nodes of a region
	away   away          // the nodes that want no inserts for now

	locator *locator // asks where names exist, for all callers together

	here rhumb.Region // the caller's region; fixed by Open

	mu     sync.Mutex              // guards the two below
	conns  map[string]*stream.Conn // by address
	closed bool
	rtt    distances
	// listeners counts the surveys that wait for answers after their decision.
	listeners atomic.Int64

	ctx    context.Context // of the client's own goroutines
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// Open connects to a cluster: it finds the nearest node, fetches the metadata and begins to watch it. ctx bounds Open
// only. The cluster must have been initialised; see Init.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	const op rhumb.Op = "client.Open"
	c, err := newClient(cfg)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	if err := c.start(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// newClient makes a client that knows nothing of the cluster yet.
func newClient(cfg Config) (*Client, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger, meta: newMetadata(), homes: newHomes(cfg.HomesMax),
		budget: newBudget(cfg.RetryBurst, cfg.RetryRatio), conns: map[string]*stream.Conn{},
		window: windows{m: map[rhumb.RangeID]*window{}}, rtt: distances{m: map[string]distance{}},
	}
	c.locator = newLocator(c)
	_, _ = rand.Read(c.id[:]) // it cannot fail (crypto/rand)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

func (c *Client) start(ctx context.Context) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	if err := c.measureSeeds(ctx); err != nil {
		return err
	}
	first := make(chan error, 1)
	c.work.Go(func() { c.watch(first) })
	select {
	case err := <-first:
		if err != nil {
			return rhumb.Wrap(op, err)
		}
	case <-ctx.Done():
		return rhumb.WrapKind(op, rhumb.Unavailable, ctx.Err())
	}
	if err := c.settle(ctx); err != nil {
		return rhumb.Wrap(op, err)
	}
	c.work.Go(c.remeasure)
	return nil
}

// Close ends the client: its connections, and every call under way.
func (c *Client) Close() {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
	}
	c.work.Wait()
}

// spawn runs f on a goroutine that Close waits for; on a closed client, where everything fails at once, it just runs it.
func (c *Client) spawn(f func()) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		f()
		return
	}
	c.work.Go(f)
	c.mu.Unlock()
}

// Region gives the caller's region: Config.From, or that of the nearest node when the client was opened.
func (c *Client) Region() rhumb.Region { return c.here }

// Cluster gives the cluster's id.
func (c *Client) Cluster() rhumb.ClusterID {
	c.meta.mu.RLock()
	defer c.meta.mu.RUnlock()
	return c.meta.cluster
}

// connTo returns the connection to an address, and creates it if there is none.
func (c *Client) connTo(addr string) (*stream.Conn, error) {
	const op rhumb.Op = "client.Client"
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, rhumb.E(op, rhumb.Canceled, "the client is closed")
	}
	if conn := c.conns[addr]; conn != nil {
		return conn, nil
	}
	conn, err := stream.New(stream.Config{
		Addr: addr, Dial: c.cfg.Dial, ConnectTimeout: c.cfg.ConnectTimeout, Cluster: c.Cluster, Counters: &c.m.conns,
	})
	if err != nil {
		return nil, err
	}
	c.conns[addr] = conn
	return conn, nil
}

// closeUnknown closes the connections to addresses at which metadata knows no node any more.
func (c *Client) closeUnknown() {
	keep := map[string]bool{}
	for _, a := range c.cfg.Addrs {
		keep[a] = true
	}
	for _, n := range c.meta.sortedNodes() {
		keep[n.Addr] = true
	}
	var drop []*stream.Conn
	c.mu.Lock()
	for addr, conn := range c.conns {
		if !keep[addr] {
			drop = append(drop, conn)
			delete(c.conns, addr)
		}
	}
	c.mu.Unlock()
	for _, conn := range drop {
		conn.Close()
	}
}

// nearestFirst lists the addresses of all live nodes and of Config.Addrs, the nearest first.
func (c *Client) nearestFirst() []string {
	var out []string
	for _, n := range c.meta.sortedNodes() {
		if n.State == rhumb.NodeLive {
			out = append(out, n.Addr)
		}
	}
	for _, a := range c.cfg.Addrs {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	c.rtt.sort(out)
	return out
}

// ask calls the Cluster service of the nearest node that answers. A node's refusal is an answer.
func ask[T any](ctx context.Context, c *Client, op rhumb.Op, call func(context.Context, rhumbpb.ClusterClient) (T, error)) (out T, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	for _, addr := range c.nearestFirst() {
		out, err = askAt(ctx, c, op, addr, call)
		e, _ := err.(*answered)
		if err == nil || e != nil && rhumb.KindOf(e.error) != rhumb.Unavailable || ctx.Err() != nil {
			break
		}
	}
	if e, ok := err.(*answered); ok {
		err = e.error
	}
	return out, err
}

// answered marks an error that a node gave, apart from one of the way there.
type answered struct{ error }

func askAt[T any](ctx context.Context, c *Client, op rhumb.Op, addr string, call func(context.Context, rhumbpb.ClusterClient) (T, error)) (out T, err error) {
	conn, err := c.connTo(addr)
	if err != nil {
		return out, err
	}
	out, err = call(ctx, conn.Cluster())
	if err == nil {
		return out, nil
	}
	unreachable := status.Code(err) == codes.Unavailable
	e, _, remote := api.FromStatus(op, err)
	switch {
	case remote:
		return out, &answered{e}
	case unreachable:
		return out, rhumb.Ef(op, rhumb.Unavailable, "node at %s cannot be reached: %s", addr, dialFailure(rhumb.Message(e)))
	}
	return out, e
}

// dialFailure takes what the dialer said out of what gRPC made of it.
func dialFailure(text string) string {
	if _, said, ok := strings.Cut(text, "Error while dialing: "); ok {
		return strings.TrimSuffix(said, `"`)
	}
	return text
}

// bound gives ctx the configured timeout where it has no deadline.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timeout)
}
