package client

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/client/stream"
	"github.com/rhumbdb/rhumb/identity"
)

// Client is a connection to a cluster. A process opens one with Open and closes it with Close.
type Client struct {
	cfg    Config
	log    *slog.Logger
	m      counters
	meta   *metadata
	homes  *homes
	budget *budget
	creds  api.Credentials
	source *identity.Source // of creds; nil without TLS
	login  func() []grpc.DialOption
	// links holds the part of the dialers of links that all nodes share, nil with Config.GRPC.
	links  *link.ClientDialer
	window windows
	turn   atomic.Uint32 // of inserts, so that they spread over the nodes of a region
	full   fullNodes

	locator *locator // shared by all callers, so that their questions share requests

	here rhumb.Region // the caller's region; Open sets it, then it is constant

	mu     sync.Mutex              // guards conns and closed
	conns  map[string]*stream.Conn // by address
	closed bool
	rtt    distances
	// listeners counts the surveys that wait for more answers after their decision.
	listeners atomic.Int64

	ctx    context.Context // of the client's own goroutines
	cancel context.CancelFunc
	work   sync.WaitGroup

	checking atomic.Bool // checkWatch asks other nodes
}

// Open connects to a cluster: it finds the nearest node, fetches the metadata and starts watching
// it. ctx bounds Open only. The cluster must have been initialized; see Init.
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

// newClient returns a client that knows nothing of the cluster yet.
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
	var err error
	if c.creds, c.source, err = cfg.openCredentials(); err != nil {
		return nil, err
	}
	c.creds = api.Paced(c.creds)
	if !cfg.GRPC {
		c.links = &link.ClientDialer{Dial: cfg.Dial, Credentials: c.creds}
		if c.source != nil {
			c.links.Credentials = api.Paced(c.source.ClientCredentials(wantNode, link.ClientProtocols...))
		}
	}
	if cfg.User != "" {
		// One account for all connections, which share the keys of the password.
		account := login.NewAccount(cfg.User, cfg.Password)
		c.login = account.Options
		if c.links != nil {
			c.links.Login = account.LogIn
		}
	}
	c.locator = newLocator(c)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// start connects the client:
//
//  1. It measures the configured addresses until one answers, so that the watch begins at a near
//     node.
//  2. It waits for the first full state of the metadata.
//  3. It measures the nodes in the metadata and chooses the caller's region.
func (c *Client) start(ctx context.Context) error {
	const op rhumb.Op = "client.Open"
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	if err := c.measureSeeds(ctx); err != nil {
		return err
	}
	// Buffered: the watch may begin after Open has given up.
	first := make(chan error, 1)
	// The watch runs under the client's context, which outlives ctx.
	c.work.Go(func() { c.watchMetadata(first) })
	select {
	case err := <-first:
		if err != nil {
			return rhumb.Wrap(op, err)
		}
	case <-ctx.Done():
		return rhumb.WrapKind(op, rhumb.Unavailable, ctx.Err())
	}
	if err := c.chooseRegion(ctx); err != nil {
		return rhumb.Wrap(op, err)
	}
	c.work.Go(c.remeasure)
	return nil
}

// Close ends all calls and closes the client's connections.
func (c *Client) Close() {
	c.cancel()
	// closed is set before the goroutines are awaited: spawn and connTo start nothing new from here
	// on.
	c.mu.Lock()
	c.closed = true
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	// The goroutines wait for requests, which the closed connections fail.
	for _, conn := range conns {
		conn.Close()
	}
	c.work.Wait()
	if c.source != nil {
		c.source.Close()
	}
}

// spawn runs f on a goroutine that Close waits for. On a closed client, where every request fails
// at once, it runs f on the caller's goroutine, so that f still delivers its answers.
func (c *Client) spawn(f func()) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		f()
		return
	}
	c.work.Go(f) // under mu, because Add must not run at the same time as the Wait of Close
	c.mu.Unlock()
}

// Region returns the caller's region: Config.From, or the region of the node that was nearest when
// the client was opened.
func (c *Client) Region() rhumb.Region { return c.here }

// Cluster returns the cluster's ID.
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
	// Created under mu, so that all callers share one connection. New does not connect, so mu is
	// held for a moment only.
	cfg := stream.Config{
		Addr: addr, Dial: c.cfg.Dial, Credentials: c.creds, Login: c.login, ConnectTimeout: c.cfg.ConnectTimeout, Cluster: c.Cluster, Counters: &c.m.conns,
	}
	// A copy for each node: the credentials and the login are the same, the address is not.
	if c.links != nil {
		l := *c.links
		l.Addr = addr
		cfg.Link = &l
	}
	conn, err := stream.New(cfg)
	if err != nil {
		return nil, err
	}
	c.conns[addr] = conn
	return conn, nil
}

// closeUnknown closes the connections to addresses that are neither configured nor those of a node
// in the metadata that was not removed.
func (c *Client) closeUnknown() {
	// Configured addresses stay, even if no node is registered there: they may be proxies.
	keep := map[string]bool{}
	for _, a := range c.cfg.Addrs {
		keep[a] = true
	}
	for _, n := range c.meta.sortedNodes() {
		keep[n.Addr] = keep[n.Addr] || !n.Forgotten
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
	// Close waits for goroutines, so it must not run under mu.
	for _, conn := range drop {
		conn.Close()
	}
}

// nearestFirst returns the addresses of all live nodes and of Config.Addrs, sorted by round trip.
func (c *Client) nearestFirst() []string {
	var out []string
	for _, n := range c.meta.sortedNodes() {
		if n.State.Serves() {
			out = append(out, n.Addr)
		}
	}
	// The configured addresses are the only ones before the first metadata, and may be the only
	// ones that work after all known nodes have moved.
	for _, a := range c.cfg.Addrs {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	c.rtt.sortByDistance(out)
	return out
}

// askNearest calls the Cluster service of the nearest node that answers. A refusal is an answer,
// unless its kind is Unavailable: another node may be able to serve the call.
func askNearest[T any](ctx context.Context, c *Client, op rhumb.Op, call func(context.Context, rhumbpb.ClusterClient) (T, error)) (out T, err error) {
	return askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (T, error) { return call(ctx, conn.Cluster()) })
}

// askNearestConn is askNearest for any service of a node.
func askNearestConn[T any](ctx context.Context, c *Client, op rhumb.Op, call func(context.Context, *stream.Conn) (T, error)) (out T, err error) {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	var answered *answeredError
	for _, addr := range c.nearestFirst() {
		out, err = askConn(ctx, c, op, addr, call)
		e, _ := err.(*answeredError)
		if err == nil || e != nil && rhumb.KindOf(e.error) != rhumb.Unavailable || ctx.Err() != nil {
			break
		}
		answered = cmp.Or(e, answered)
	}
	// A node that answers knows what is missing, such as a majority of the metadata. That another node is down is not the reason.
	if answered != nil && rhumb.KindOf(err) == rhumb.Unavailable {
		err = answered
	}
	return out, unwrapAnswer(err)
}

// answeredError is an error that a node answered with, as opposed to a failure to reach the node.
type answeredError struct{ error }

// unwrapAnswer returns the error inside an answeredError, and every other error unchanged.
func unwrapAnswer(err error) error {
	if e, ok := err.(*answeredError); ok {
		return e.error
	}
	return err
}

// askAt calls the Cluster service of the node at an address. The error is an *answeredError if the
// node answered.
func askAt[T any](ctx context.Context, c *Client, op rhumb.Op, addr string, call func(context.Context, rhumbpb.ClusterClient) (T, error)) (out T, err error) {
	return askConn(ctx, c, op, addr, func(ctx context.Context, conn *stream.Conn) (T, error) { return call(ctx, conn.Cluster()) })
}

// askConn is askAt for any service of a node.
func askConn[T any](ctx context.Context, c *Client, op rhumb.Op, addr string, call func(context.Context, *stream.Conn) (T, error)) (out T, err error) {
	conn, err := c.connTo(addr)
	if err != nil {
		return out, err
	}
	out, err = call(ctx, conn)
	if err == nil {
		return out, nil
	}
	// Taken from gRPC's error, before FromStatus turns it into a kind that a node could have
	// answered with, too.
	unreachable := status.Code(err) == codes.Unavailable
	refusal, refused := api.RefusalOf(err)
	e, _, remote := api.FromStatus(op, err)
	switch {
	case remote:
		// The node itself answered, so its kind can be trusted.
		return out, &answeredError{e}
	// Another attempt would be refused for the same certificate.
	case refused:
		return out, rhumb.Ef(op, refusal.Kind, "node at %s cannot be reached: %s", addr, c.explainDial(rhumb.Message(e)))
	case unreachable:
		return out, rhumb.Ef(op, rhumb.Unavailable, "node at %s cannot be reached: %s", addr, c.explainDial(rhumb.Message(e)))
	}
	return out, e
}

// explainDial returns the reason why a node could not be reached, from the text of the transport.
func (c *Client) explainDial(text string) string {
	text = strings.TrimPrefix(text, codes.Unavailable.String()+": ")
	// A node with TLS ends a connection in plain text silently, as this client sees it.
	if c.source == nil && (strings.HasSuffix(text, "EOF") || strings.HasSuffix(text, "connection reset by peer")) {
		text += "; nodes with TLS refuse plain text: connect with the CA file of the cluster, and not insecurely"
	}
	return text
}

// withTimeout returns ctx with the configured timeout, unless ctx has a deadline.
func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	// The caller's deadline counts, even if it is later than the timeout.
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.cfg.Timeout)
}
