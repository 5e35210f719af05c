// Package stream sends the requests of a process to one node over one gRPC stream or link and returns each
// answer to its caller.
//
// A Conn begins with a stream of gRPC, which every node speaks. Once it has sent linkAfter requests, it opens a link (package link), which costs
// both sides less for each request, and a connection more. If the node does not know links, or refuses one, the stream remains.
//
// Conn.Do returns either the node's answer, which may be a refusal, or an *Error that says whether
// the request may have reached the node. A Conn does not retry: the caller knows which requests may
// be sent twice.
//
// A request for an idle stream is sent at once on its caller's goroutine, so that a lone caller
// pays for no switch between goroutines. Others gather while frames are unanswered: one frame on a fast
// link, several on a slow one. Whoever receives an answer sends all gathered requests as one frame.
// Frames therefore grow with the load, and no request waits for others to arrive.
//
// A flow bounds the bytes that the node has been sent and has not answered. Requests above the
// bound wait in this process, each in its place, until they can no longer be answered before their
// deadline. There giving up is known to have had no effect
// (docs/decisions/0022-overload.md).
package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Bounds of one Conn.
const (
	// stallMax is how long requests gather at most before another frame is sent although as many
	// frames are unanswered as may be (flow.frames). Some requests stay unanswered for a long time, for example while their
	// range has no primary; they must not stop the others.
	stallMax = 2 * time.Millisecond
	// frameRequestsMax bounds the requests of one frame, and frameBytesMax their size in bytes. A
	// frame holds at least one request of any size.
	frameRequestsMax = 1_024
	frameBytesMax    = 4 << 20
	// directBytesMax bounds the bytes that are sent on the goroutine of a caller or of the receiver, and the unanswered bytes then. Both together
	// are below the flow-control window of a gRPC stream, so Send does not block. A receiver that blocked would keep the node
	// from answering.
	directBytesMax = 16 << 10
	// queueRequestsMax and queueBytesMax bound the queue; requests beyond it fail as Overloaded.
	queueRequestsMax = 1 << 16
	queueBytesMax    = 64 << 20
)

const opConn rhumb.Op = "stream.Conn"

// Config configures a Conn.
type Config struct {
	// Addr is the "host:port" of the node.
	Addr string
	// Dial opens the TCP connection. Nil means the plain dialer.
	Dial api.DialFunc
	// Credentials secure the connection.
	Credentials api.Credentials
	// Login returns the options that log one gRPC connection in. It may be nil.
	Login func() []grpc.DialOption
	// ConnectTimeout bounds opening a stream, with the connection under it.
	ConnectTimeout time.Duration
	// Link opens links to the node. Nil means that gRPC carries all requests.
	Link *link.ClientDialer
	// Cluster returns the cluster that the caller belongs to, zero if it is not known yet. The node
	// rejects streams of another cluster.
	Cluster func() rhumb.ClusterID
	// Counters counts events. Several Conns may share it.
	Counters *Counters
}

// Counters count the events of Conns.
type Counters struct {
	// Frames counts the frames sent, Sent the requests in them, Broken the streams and links that ended, and
	// Silent the connections that were replaced because the node stopped answering.
	Frames, Sent, Broken, Silent atomic.Uint64
	// Links counts the links that were opened, NoLinks the attempts that failed.
	Links, NoLinks atomic.Uint64
}

// Conn is a connection to one node. It sends on at most one stream or link, which it opens when the first
// request needs it and opens again after it breaks. Its methods may be called concurrently.
type Conn struct {
	cfg  Config
	conn *api.Conn

	ctx    context.Context // of the goroutines of the Conn
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{} // holds a token when the queue or the room for it may have changed
	begun  chan struct{} // holds a token when a caller may have begun to wait (api.Conn.Watch)

	mu         sync.Mutex            // guards all below
	carrier    *carrier              // which requests are sent on; nil while there is none
	carriers   map[*carrier]struct{} // all that are open: carrier, and former ones with unanswered requests
	cancelOpen context.CancelFunc    // of the stream that is being opened, nil when none is
	// linking is set while a link is being opened; linkAt is when another one may be, and noLinks counts the failures since the last one.
	linking bool
	linkAt  time.Time
	noLinks int
	// sending is set while a goroutine opens a stream or writes. That goroutine releases mu in
	// the meantime: Send may block, and answers must be delivered while it does. gRPC allows one
	// Send at a time.
	sending bool
	// gathering is set while the callers of a frame of answers add their next requests, which receiveAnswers then sends.
	gathering  bool
	holds      int // see Hold
	lastID     uint64
	queue      []*call // requests that are not sent yet, including those that their callers abandoned
	queueBytes int     // size of the requests in queue that are not abandoned
	unanswered map[uint64]*call
	flow       flow // bounds the bytes of unanswered
	// openFrames counts the unanswered frames of the current generation. A new generation begins,
	// and the count restarts at 0, when the carrier breaks, is replaced or stalls: frames of an older generation
	// no longer count, whether or not they are answered later.
	openFrames int
	generation int
	stall      *time.Timer // begins a new generation when it fires
	stallSet   bool
	patience   patience
	closed     bool
}

// New returns a Conn. It does not connect: the first request does.
func New(cfg Config) (*Conn, error) {
	conn, err := api.NewConn(cfg.Addr, cfg.Dial, cfg.Credentials, cfg.Login)
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, conn: conn, wake: make(chan struct{}, 1), begun: make(chan struct{}, 1), unanswered: map[uint64]*call{}, carriers: map[*carrier]struct{}{}, flow: newFlow()}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.stall = time.AfterFunc(time.Hour, c.onStall)
	c.stall.Stop() // signalLocked sets the timer when it is needed
	c.patience.timer = time.AfterFunc(time.Hour, c.onPatience)
	c.patience.timer.Stop()
	c.work.Go(c.run)
	// TCP and gRPC take more than ten seconds to notice a node that is stopped, so the connection
	// is probed while somebody depends on it.
	c.work.Go(func() { c.conn.Watch(c.ctx, c.begun, c.use, c.onSilence) })
	return c, nil
}

// Cluster returns a client of the node's Cluster service on the same connection. The caller must
// not keep it: the connection may be replaced before the next call.
func (c *Conn) Cluster() rhumbpb.ClusterClient { return rhumbpb.NewClusterClient(c.conn.Client()) }

// Security returns a client of the node's Security service on the same connection. The caller must not
// keep it, as for Cluster.
func (c *Conn) Security() rhumbpb.SecurityClient { return rhumbpb.NewSecurityClient(c.conn.Client()) }

// Operations returns a client of the node's Operations service on the same connection. The caller must not
// keep it, as for Cluster.
func (c *Conn) Operations() rhumbpb.OperationsClient {
	return rhumbpb.NewOperationsClient(c.conn.Client())
}

// Access returns a client of the node's Access service on the same connection. The caller must not keep
// it, as for Cluster.
func (c *Conn) Access() rhumbpb.AccessClient { return rhumbpb.NewAccessClient(c.conn.Client()) }

// Hold has the connection probed until the returned function is called, although no request may be
// unanswered. Calls of the Cluster service that wait for the node need it. The probes are rarer than
// those while requests are unanswered.
func (c *Conn) Hold() (release func()) {
	c.addHold(1)
	return func() { c.addHold(-1) }
}

// addHold counts the users of the connection. One without users is closed after a while.
func (c *Conn) addHold(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds += n
	c.signalUse()
}

// signalUse says that a caller may have begun to wait.
func (c *Conn) signalUse() {
	select {
	case c.begun <- struct{}{}:
	default:
	}
}

// use returns what depends on the connection.
func (c *Conn) use() api.Use {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.unanswered) > 0 || len(c.queue) > 0:
		// The probes need a connection of gRPC, which calls do not open while a link carries the requests.
		if c.carrier != nil && c.carrier.link != nil {
			c.conn.Client().Connect()
		}
		return api.Awaited
	case c.holds > 0:
		return api.Held
	}
	return api.Unused
}

// onSilence breaks the links to a node that does not answer the probes. The streams have been ended with their connection.
func (c *Conn) onSilence() {
	c.cfg.Counters.Silent.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.carriers {
		if s.link != nil {
			s.cancel()
		}
	}
}

// Interrupt breaks the stream or link, so that unanswered requests fail at once. The caller knows that
// their answers will not arrive: the node is dead, or has begun a new life.
func (c *Conn) Interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.carriers {
		s.cancel() // receiveAnswers sees the end of the carrier and fails the requests
	}
	if c.cancelOpen != nil {
		c.cancelOpen()
	}
	// Without this, gRPC would wait before it connects to the new life.
	c.conn.Client().ResetConnectBackoff()
}

// Close fails all requests, closes the connection and waits for the goroutines of the Conn.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	c.stall.Stop()
	c.patience.timer.Stop()
	c.failQueueLocked(&Error{Err: rhumb.Ef(opConn, rhumb.Canceled, "the connection to %s was closed", c.cfg.Addr)})
	for s := range c.carriers {
		s.cancel() // which fails the requests that were sent
	}
	c.mu.Unlock()
	c.cancel()
	c.conn.Close()
	c.work.Wait()
}
