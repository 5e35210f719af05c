package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// kvStream is the client's side of KV.Stream.
type kvStream = grpc.BidiStreamingClient[rhumbpb.ClientFrame, rhumbpb.ServerFrame]

// link is the way to one address: one connection and, while it is used, one stream of frames.
//
// A request for an idle stream is sent at once by its caller's goroutine, so that a lone caller pays no hand-off. All
// others gather, and the link's own goroutine sends them, as many as there are, whenever fewer than framesMax frames are
// without any answer. So frames grow with the load and nobody waits for company. A frame that stays without answers,
// for example because its ranges have no primary now, stops counting after stallMax.
type link struct {
	addr    string
	conn    *api.Conn
	cfg     *Config
	cluster func() rhumb.ClusterID
	m       *counters

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{}

	mu           sync.Mutex // guards all below
	stream       kvStream   // nil when there is none
	endStream    context.CancelFunc
	greeted      bool               // the stream has sent its hello
	sending      bool               // somebody is in stream.Send
	opening      context.CancelFunc // while the stream is opened
	watched      int                // callers of use
	nextID       uint64
	waiting      map[uint64]*call // sent on stream, not answered
	flow         flow             // bounds the bytes of waiting
	pending      []*call          // not sent
	pendingBytes int
	frames       int // sent, none of their requests answered, not stalled
	generation   int // of frames: those of an older one do not count
	stall        *time.Timer
	stalling     bool // stall runs
	closed       bool
}

// call is a request on its way.
type call struct {
	req   *rhumbpb.Request
	size  int // about its bytes on the wire
	frame *frame
	// first says that the request was sent before and may have been applied: it goes before all others and beside the flow,
	// because only an answer tells its caller what became of it.
	first bool
	// dropped says, under the link's mutex, that the caller gave up before the request was sent.
	dropped bool
	done    chan reply // holds one, and gets one unless the call was abandoned
}

type frame struct {
	sent       time.Time
	generation int
	answered   bool
}

// reply is an answer, or what happened instead.
type reply struct {
	resp *rhumbpb.Response
	// sent is false when the request certainly did not reach the node.
	sent bool
	// final is true when err is the node's own word about the whole stream, after which a retry there is useless.
	final bool
	err   error
}

func newLink(addr string, cfg *Config, m *counters, cluster func() rhumb.ClusterID) (*link, error) {
	conn, err := api.NewConn(addr, cfg.Dial)
	if err != nil {
		return nil, err
	}
	l := &link{addr: addr, conn: conn, cfg: cfg, m: m, cluster: cluster, wake: make(chan struct{}, 1), waiting: map[uint64]*call{}, flow: newFlow()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.stall = time.AfterFunc(time.Hour, l.stalled)
	l.stall.Stop()
	l.work.Go(l.run)
	l.work.Go(func() { l.conn.Watch(l.ctx, l.inUse, func() { m.silent.Add(1) }) })
	return l, nil
}

// inUse reports whether somebody waits for what the node says.
func (l *link) inUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watched > 0 || len(l.waiting) > 0 || len(l.pending) > 0
}

// use has the connection watched although no request waits, until the returned function is called.
func (l *link) use() (done func()) {
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.watched += n
	}
	add(1)
	return func() { add(-1) }
}

// do sends a request and waits for its answer, for at most the time given. Some of it is for the flight (flow.flight): what is
// not sent before that is not sent any more. With first the request goes before all others.
func (l *link) do(ctx context.Context, req *rhumbpb.Request, size int, first bool, most time.Duration) reply {
	const op rhumb.Op = "client.link"
	c := &call{req: req, size: size, first: first, done: make(chan reply, 1)}
	flight, err := l.submit(c, most)
	if err != nil {
		return reply{err: err}
	}
	timer := time.NewTimer(most - flight)
	defer timer.Stop()
	for flies := false; ; flies = true {
		select {
		case r := <-c.done:
			return r
		case <-ctx.Done():
			return l.abandon(c, ctx.Err())
		case <-timer.C:
			if flies || !l.isSent(c) {
				return l.abandon(c, rhumb.Ef(op, rhumb.DeadlineExceeded, "no answer from %s in %s", l.addr, most))
			}
			timer.Reset(flight)
		}
	}
}

// isSent reports whether a request was sent, or its answer is there.
func (l *link) isSent(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.frame != nil
}

// submit has a request sent, and returns how much of the time that it may take is for its flight.
func (l *link) submit(c *call, most time.Duration) (flight time.Duration, err error) {
	const op rhumb.Op = "client.link"
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return 0, rhumb.E(op, rhumb.Unavailable, "the connection to "+l.addr+" is closed")
	case c.first: // as many as were sent before at the most
	case len(l.pending) >= queueRequestsMax || len(l.pending) > 0 && l.pendingBytes+c.size > queueBytesMax:
		l.mu.Unlock()
		return 0, rhumb.Ef(op, rhumb.Overloaded, "%d requests of %d bytes wait to be sent to %s, no more are taken", queueRequestsMax, queueBytesMax, l.addr)
	}
	if flight = l.flow.flight(most); c.first {
		flight = most / 2
	}
	l.nextID++
	c.req.Id = l.nextID
	if l.stream != nil && !l.sending && len(l.waiting) == 0 && len(l.pending) == 0 && c.size <= directBytesMax {
		l.sendLocked([]*call{c})
		l.mu.Unlock()
		return flight, nil
	}
	if c.first {
		l.pending = slices.Insert(l.pending, 0, c)
	} else {
		l.pending = append(l.pending, c)
	}
	l.pendingBytes += c.size
	l.mu.Unlock()
	l.signal()
	return flight, nil
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run sends what waits, until the link is closed.
func (l *link) run() {
	for {
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
		for l.sendPending() {
		}
	}
}

// sendPending sends one frame of what waits. It is false when nothing waits or may be sent now: whoever changes that
// signals.
func (l *link) sendPending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.sending || len(l.pending) == 0 || l.closed:
		return false
	case l.stream == nil:
		l.openLocked()
		return true
	case l.frames >= framesMax:
		if !l.stalling {
			l.stalling = true
			l.stall.Reset(stallMax)
		}
		return false
	}
	calls := l.takeLocked()
	if len(calls) > 0 {
		l.sendLocked(calls)
	}
	return len(calls) > 0
}

// takeLocked takes the calls of the next frame from those that wait.
func (l *link) takeLocked() []*call {
	calls := make([]*call, 0, min(len(l.pending), frameRequestsMax))
	n, size := 0, 0
	for n < len(l.pending) && len(calls) < frameRequestsMax && (len(calls) == 0 || size+l.pending[n].size <= frameBytesMax) {
		if c := l.pending[n]; !c.dropped {
			if !c.first && !l.flow.room(c.size, size) {
				break
			}
			size += c.size
			calls = append(calls, c)
		}
		n++
	}
	l.pending = l.pending[n:]
	if len(l.pending) == 0 {
		l.pending = nil
	}
	l.pendingBytes -= size
	return calls
}

// sendLocked sends calls as one frame. It lets go of the lock meanwhile; sending keeps others out.
func (l *link) sendLocked(calls []*call) {
	f := &frame{generation: l.generation, sent: time.Now()}
	out := &rhumbpb.ClientFrame{Requests: make([]*rhumbpb.Request, len(calls))}
	for i, c := range calls {
		c.frame = f
		l.waiting[c.req.Id] = c
		l.flow.inflight += c.size
		out.Requests[i] = c.req
	}
	if !l.greeted {
		l.greeted = true
		out.Hello = &rhumbpb.Hello{Protocol: api.Protocol, Cluster: api.EncodeUUID(l.cluster())}
	}
	l.frames++
	l.sending = true
	s := l.stream
	l.mu.Unlock()
	l.m.frames.Add(1)
	err := s.Send(out)
	l.mu.Lock()
	l.sending = false
	if err != nil && l.stream == s {
		l.endStream() // the receiver learns why, and tells the calls
	}
	if len(l.pending) > 0 {
		l.signal()
	}
}

// openLocked opens the stream, connecting where that is needed. It lets go of the lock meanwhile. When it fails, all that
// waits fails with it: nothing of it was sent.
func (l *link) openLocked() {
	const op rhumb.Op = "client.link"
	l.sending = true
	ctx, cancel := context.WithCancel(l.ctx)
	l.opening = cancel
	l.mu.Unlock()
	timer := time.AfterFunc(l.cfg.ConnectTimeout, cancel)
	s, err := rhumbpb.NewKVClient(l.conn.Client()).Stream(ctx)
	late := !timer.Stop()
	l.mu.Lock()
	l.sending, l.opening = false, nil
	if err == nil && !late && !l.closed {
		l.stream, l.endStream, l.greeted = s, cancel, false
		l.work.Go(func() { l.receive(s) })
		return
	}
	cancel()
	msg := "cannot connect to " + l.addr
	if late {
		msg += " in " + l.cfg.ConnectTimeout.String()
	}
	fail := &rhumb.Error{Op: op, Kind: rhumb.Unavailable, Msg: msg, Err: err}
	for _, c := range l.pending {
		c.done <- reply{err: fail}
	}
	l.pending, l.pendingBytes = nil, 0
}

// receive hands the answers of a stream to their callers until it ends.
func (l *link) receive(s kvStream) {
	for {
		f, err := s.Recv()
		if err != nil {
			l.ended(s, err)
			return
		}
		l.mu.Lock()
		for _, resp := range f.Responses {
			l.answerLocked(resp)
		}
		more := len(l.pending) > 0
		l.mu.Unlock()
		if more {
			l.signal()
		}
	}
}

func (l *link) answerLocked(resp *rhumbpb.Response) {
	c := l.waiting[resp.Id]
	if c == nil {
		return // abandoned
	}
	if resp.Error.GetKind() == rhumbpb.Kind_KIND_OVERLOADED {
		l.flow.refused(time.Now())
	} else {
		now := time.Now()
		l.flow.answered(now, now.Sub(c.frame.sent), c.size)
	}
	l.forgetLocked(c)
	l.countLocked(c.frame)
	c.done <- reply{resp: resp, sent: true}
}

// forgetLocked ends the wait for the answer to a request that was sent.
func (l *link) forgetLocked(c *call) {
	delete(l.waiting, c.req.Id)
	l.flow.inflight -= c.size
}

// countLocked notes that a request of a frame needs no answer any more.
func (l *link) countLocked(f *frame) {
	if !f.answered {
		f.answered = true
		if f.generation == l.generation {
			l.frames--
		}
	}
}

// ended fails all calls of a stream that broke. They were sent; whether they were carried out is not known, unless the
// node refused the stream as a whole.
func (l *link) ended(s kvStream, cause error) {
	const op rhumb.Op = "client.link"
	e, _, remote := api.FromStatus(op, cause)
	r := reply{sent: true, err: rhumb.Ef(op, rhumb.Unknown, "the connection to %s broke: %v", l.addr, e)}
	if k := rhumb.KindOf(e); remote && (k == rhumb.WrongCluster || k == rhumb.Incompatible || k == rhumb.Unauthenticated) {
		r = reply{final: true, err: e}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream == s {
		l.endStream()
		l.stream = nil
		l.m.broken.Add(1)
	}
	for _, c := range l.waiting {
		l.forgetLocked(c)
		c.done <- r
	}
	l.frames = 0
	l.generation++
	if len(l.pending) > 0 {
		l.signal()
	}
}

// stalled lets further frames go although none was answered.
func (l *link) stalled() {
	l.mu.Lock()
	l.stalling = false
	l.frames = 0
	l.generation++
	l.mu.Unlock()
	l.signal()
}

// abandon gives up waiting. The answer may have come meanwhile.
func (l *link) abandon(c *call, why error) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case r := <-c.done:
		return r
	default:
	}
	if l.waiting[c.req.Id] == c {
		if now := time.Now(); rhumb.KindOf(why) == rhumb.DeadlineExceeded {
			l.flow.late(now, now.Sub(c.frame.sent))
		}
		l.forgetLocked(c)
		if len(l.pending) > 0 {
			l.signal()
		}
		return reply{sent: true, err: why}
	}
	if l.flow.working(time.Now()) && rhumb.KindOf(why) == rhumb.DeadlineExceeded {
		why = rhumb.Ef("client.link", rhumb.Overloaded, "%s has more requests than it answers in time; this one waited for its turn and was not sent", l.addr)
	}
	if !c.dropped && !l.closed {
		c.dropped = true
		l.pendingBytes -= c.size
	}
	return reply{err: why}
}

// interrupt ends the stream: its node is dead or began a new life, so its answers will not come.
func (l *link) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream != nil {
		l.endStream()
	}
	if l.opening != nil {
		l.opening()
	}
	l.conn.Client().ResetConnectBackoff()
}

// close fails what waits and ends the link's goroutines and connection.
func (l *link) close() {
	const op rhumb.Op = "client.link"
	l.mu.Lock()
	l.closed = true
	l.stall.Stop()
	for _, c := range l.pending {
		c.done <- reply{err: rhumb.E(op, rhumb.Canceled, "the client was closed")}
	}
	l.pending, l.pendingBytes = nil, 0
	l.mu.Unlock()
	l.cancel()
	l.conn.Close()
	l.work.Wait()
}
