package server

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/link"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Bounds of one stream.
const (
	// unansweredMax bounds the unanswered requests of a stream, readyBytesMax the size of the answers
	// that its client has not accepted. Beyond either, the stream is not read, and flow control stops
	// the client.
	unansweredMax = link.RequestsMax
	readyBytesMax = 16 << 20
	// readyShare bounds the answers of a stream further: to one part in readyShare of the free bytes in
	// the budget of all streams. So a few clients that do not read never fill it.
	readyShare = 8
	// lateShares bounds the answers to reads that were under way when the stream reached its share. What
	// comes beyond so many shares is refused.
	lateShares = 2
	// responsesPerFrame and frameBytes bound the answers gathered into one frame. One answer always
	// fits.
	responsesPerFrame = 4_096
	frameBytes        = 4 << 20
	// takeTimeoutDefault is how long a client may accept no answers before its stream is ended. It is
	// longer than a network interruption that a live client survives, and longer than keepalive needs
	// to find a dead one.
	takeTimeoutDefault = 15 * time.Second
	// holdMax is how long answers wait at most for those to other reads of the same frame.
	holdMax = time.Millisecond
)

// frameStream carries the frames of one client: a stream of gRPC, or a link. Send and Recv may be called at the same time, and each by one
// goroutine at a time.
type frameStream interface {
	Context() context.Context
	Recv() (*rhumbpb.ClientFrame, error)
	Send(*rhumbpb.ServerFrame) error
}

// Stream answers the requests of one client, out of order and many per frame. It ends when the KV
// is closed: a client must not stay connected to a past life of the node.
func (k *KV) Stream(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	k.metrics.streams.Inc()
	defer k.metrics.streams.Dec()
	return k.serveFrames(stream, false)
}

// serveFrames answers the requests of a stream or link. greeted says that the hello of the client was checked before, as on a link.
func (k *KV) serveFrames(stream frameStream, greeted bool) error {
	out := newAnswers(stream, k.cfg.Budgets.Answers, cmp.Or(k.cfg.TakeTimeout, takeTimeoutDefault))
	// The other side of a link is a client of ours, which never waits with reading.
	_, out.inline = stream.(*linkStream)
	out.failed = k.metrics.failed.WithLabelValues(rhumb.Overloaded.String())
	defer out.close()
	ended := make(chan error, 1)
	// receiveFrames ends with the stream: its Recv fails once the caller has ended the stream.
	go func() { ended <- k.receiveFrames(stream, out, greeted) }()
	// A client that ends its side of the stream abandons the answers that it has not received.
	select {
	case err := <-ended:
		// The receiver of a link ends when it was the one that could not send.
		if !out.isStuck() {
			return err
		}
	case <-k.closed:
		return api.Status(errNotServing, api.Hint{})
	case <-out.stuck:
	}
	return k.cutOff(out)
}

// cutOff returns the error for a client that accepts no answers.
func (k *KV) cutOff(out *answers) error {
	k.metrics.cutOff.Inc()
	k.cfg.Logger.Warn("a client accepts no answers; ending its stream", "waited", out.timeout, "bytes", out.waitingBytes())
	return api.Status(rhumb.Ef("server.KV.Stream", rhumb.Overloaded, "the client accepted no answers for %v; read from the stream while writing to it", out.timeout), api.Hint{})
}

// receiveFrames serves the requests of a client until it ends the stream or breaks it.
func (k *KV) receiveFrames(stream frameStream, out *answers, greeted bool) error {
	for ; ; greeted = true {
		f, err := stream.Recv()
		switch {
		// The client has finished.
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		// Only the first frame carries a hello.
		if !greeted {
			if err := k.checkHello(f.Hello); err != nil {
				return api.Status(err, api.Hint{})
			}
		}
		k.metrics.frameRequests.Observe(float64(len(f.Requests)))
		out.holdAnswers()
		for _, q := range f.Requests {
			// Waits while the client has too many answers outstanding. That is the back-pressure on the
			// stream: nothing is read meanwhile.
			if !out.reserveAnswer(k.cfg.Ranges.Drive) {
				return out.sendError()
			}
			// Reads and forwarded requests end with the stream, since nobody would get their answers.
			k.serve(stream.Context(), q, out.add)
		}
		// Reads are answered by now. A switch to another goroutine would take longer than to send them. The clients of links read whatever they
		// send, so this does not keep them from being read for long. Answers to earlier writes must not wait for the commit below.
		if !out.sendHeld() {
			return out.sendError()
		}
		// Once per frame, so that its writes share one commit.
		k.cfg.Ranges.Drive()
		if out.inline && !out.sendReady() {
			return out.sendError()
		}
	}
}

// checkHello checks the first frame of a stream: both sides must speak the same protocol and mean
// the same cluster.
func (k *KV) checkHello(h *rhumbpb.Hello) error {
	const op rhumb.Op = "server.KV.Stream"
	if h == nil {
		return rhumb.E(op, rhumb.InvalidArgument, "the first frame of the stream has no hello; use a Rhumb client")
	}
	if err := api.CheckProtocol(h.Protocol); err != nil {
		return err
	}
	if len(h.Cluster) > 0 && string(h.Cluster) != string(k.cfg.Cluster[:]) {
		return rhumb.Ef(op, rhumb.WrongCluster, "the client expects cluster %x, but this is %s; check the address", h.Cluster, k.cfg.Cluster)
	}
	return nil
}

// answers gathers the responses of one stream and sends them, many per frame, on a goroutine of its
// own. So the goroutines that produce responses never wait for a slow client.
//
// A response is counted in unanswered from reserveAnswer until a frame takes it, and its bytes in
// bytes and in budget from add until then. close returns the bytes of responses that were not sent.
type answers struct {
	stream frameStream
	budget *memory.Budget // of the answers of all streams
	// stuck is closed when the client accepted nothing for timeout.
	stuck   chan struct{}
	timeout time.Duration

	// inline says that the receiver of the stream sends too.
	inline bool
	// failed counts the reads that add refuses; nil counts nothing.
	failed prometheus.Counter
	// late is armed while a frame is sent, and closes stuck.
	late *time.Timer

	mu sync.Mutex // guards the fields below up to err
	// sending is set while a goroutine sends the ready answers, and cleared when there are none. It is set too while held is: then the receiver will send.
	// hold ends that after holdMax.
	sending    bool
	held       bool
	hold       *time.Timer
	room       *sync.Cond // signals that unanswered or bytes fell, or that closed was set
	ready      []*rhumbpb.Response
	bytes      int // total size of ready
	unanswered int
	closed     bool
	dropped    bool // closed, and ready was discarded
	err        error

	// wakeSender holds one wake-up of sendLoop; done is closed when sendLoop has returned.
	wakeSender chan struct{}
	done       chan struct{}
}

// newAnswers starts the sender of a stream. The caller must call close, which also ends the
// goroutine.
func newAnswers(stream frameStream, budget *memory.Budget, timeout time.Duration) *answers {
	a := &answers{
		stream: stream, budget: budget, stuck: make(chan struct{}), timeout: timeout,
		wakeSender: make(chan struct{}, 1), done: make(chan struct{}),
	}
	a.room = sync.NewCond(&a.mu)
	a.late = time.AfterFunc(timeout, func() { close(a.stuck) })
	a.late.Stop()
	a.hold = time.AfterFunc(holdMax, a.releaseHeld)
	a.hold.Stop()
	go a.sendLoop()
	return a
}

// reserveAnswer waits until there is room for the answer to one more request, and counts it. Before
// it waits, it calls drive, since the requests before it must be proposed for their answers to make
// room, and held answers must be sent. It returns false if the stream is broken.
func (a *answers) reserveAnswer(drive func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Without the lock: drive may call add on this goroutine.
	if a.isFull() {
		a.mu.Unlock()
		drive()
		a.releaseHeld()
		a.mu.Lock()
	}
	for a.isFull() {
		a.room.Wait()
	}
	a.unanswered++
	return !a.closed
}

// sendError returns the error that broke the stream, or nil if the stream is whole or was closed. It
// takes the lock: a Send that was in progress when the stream was closed may still fail.
func (a *answers) sendError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// isFull reports whether the stream must not be read. a.mu must be held. A closed stream is never
// full, so that reserveAnswer returns.
func (a *answers) isFull() bool {
	return !a.closed && (a.unanswered >= unansweredMax || a.exceeds(1))
}

// exceeds reports whether the ready answers take as much as n shares of the stream. a.mu must be held.
// One answer always fits, so a stream continues once its client has accepted everything, however little
// others leave: nothing has to wake it when they leave more.
func (a *answers) exceeds(n int) bool {
	return a.bytes > 0 && a.bytes >= n*int(min(readyBytesMax, a.budget.Free()/readyShare))
}

// responseOverhead approximates the memory of a response besides its variable parts, itemOverhead
// that of a record.
const (
	responseOverhead = 64
	itemOverhead     = 32
)

// responseSize returns the approximate memory of a response, never much less. add and takeFrame
// compute the same size, since a response does not change in between.
func responseSize(r *rhumbpb.Response) int {
	size := responseOverhead + itemOverhead*len(r.Items) + len(r.Located)
	for _, it := range r.Items {
		size += len(it.Value) + len(it.Name)
	}
	if o := r.Outcome; o != nil {
		size += len(o.Existed)
		for _, n := range o.Names {
			size += len(n) + itemOverhead
		}
	}
	if r.Error != nil {
		size += len(r.Error.Message) + len(r.Error.Op) + responseOverhead
	}
	return size
}

// refuseLate returns the response in the place of records that come when the client has accepted too
// little. Reads that wait for a disk or for another node are not bounded by reserveAnswer, because
// nobody knows the size of their answers before. a.mu must be held.
func (a *answers) refuseLate(r *rhumbpb.Response) *rhumbpb.Response {
	a.budget.Refuse()
	if a.failed != nil {
		a.failed.Inc()
	}
	err := rhumb.Ef("server.KV.Stream", rhumb.Overloaded, "the client has not received %d bytes of answers, and its share of the node's memory is %d; read from the stream while writing to it, or retry later",
		a.bytes, min(readyBytesMax, a.budget.Free()/readyShare))
	return &rhumbpb.Response{Id: r.Id, Error: api.EncodeError(err, api.Hint{})}
}

// add queues a response. It does not block.
func (a *answers) add(r *rhumbpb.Response) {
	a.mu.Lock()
	// Only answers to reads have items, and may be repeated. Others are small.
	if len(r.Items) > 0 && a.exceeds(lateShares) {
		r = a.refuseLate(r)
	}
	size := responseSize(r)
	// After close nobody would return the bytes to the budget.
	if a.dropped {
		a.mu.Unlock()
		return
	}
	a.ready = append(a.ready, r)
	a.bytes += size
	// Added even beyond the bound: the answer exists already. admitRequest rejects new reads
	// meanwhile.
	a.budget.Add(int64(size))
	sending := a.sending
	a.mu.Unlock()
	// Whoever sends looks again before it ends.
	if sending {
		return
	}
	a.wake()
}

// isStuck reports whether the client accepted nothing for the timeout.
func (a *answers) isStuck() bool {
	select {
	case <-a.stuck:
		return true
	default:
		return false
	}
}

// waitingBytes returns the size of the answers that were not passed to the transport.
func (a *answers) waitingBytes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// close stops the sender and drops unsent responses. If the client accepts nothing, a Send in
// progress ends only with the stream, after Stream has returned, so close does not wait for it.
func (a *answers) close() {
	a.mu.Lock()
	a.closed = true
	a.room.Broadcast()
	a.mu.Unlock()
	// The sender may be waiting for a response that will not come.
	a.wake()
	select {
	case <-a.done:
	case <-a.stuck:
	}
	a.mu.Lock()
	// Only now: until done or stuck, the sender may still take a frame, which returns its own bytes.
	a.dropped, a.ready = true, nil
	a.budget.Release(int64(a.bytes))
	a.bytes = 0
	a.mu.Unlock()
}

// takeFrame removes the responses of the next frame, and reports whether the stream is closed.
func (a *answers) takeFrame() (out []*rhumbpb.Response, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// A frame exceeds frameBytes by at most one response.
	n, size := 0, 0
	for n < len(a.ready) && n < responsesPerFrame && size < frameBytes {
		size += responseSize(a.ready[n])
		n++
	}
	a.sending = a.sending && n > 0
	out = a.ready[:n:n]
	a.ready = a.ready[n:]
	// Release the array: an idle stream should hold no memory.
	if len(a.ready) == 0 {
		a.ready = nil
	}
	a.bytes -= size
	a.budget.Release(int64(size))
	// The answers belong to Send from this point, so they count as taken: the transport bounds the
	// bytes that it holds.
	a.unanswered -= n
	a.room.Broadcast()
	return out, a.closed
}

// sendLoop sends frames until the stream ends.
func (a *answers) sendLoop() {
	defer close(a.done)
	for range a.wakeSender {
		if !a.sendReady() {
			return
		}
	}
}

// holdAnswers keeps what becomes ready until sendHeld, or for holdMax at most, so that the answers to the reads of a frame are one frame. It does nothing unless the
// receiver sends.
func (a *answers) holdAnswers() {
	if !a.inline {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// A goroutine that sends takes the answers that become ready meanwhile, and would not notice that somebody holds them.
	if a.held = !a.sending; a.held {
		a.sending = true
		a.hold.Reset(holdMax)
	}
}

// releaseHeld ends a hold that takes too long: the receiver may wait for a disk.
func (a *answers) releaseHeld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.held {
		return
	}
	a.held, a.sending = false, false
	if len(a.ready) > 0 {
		a.wake()
	}
}

// sendHeld ends a hold and sends the ready answers. It returns false if the stream has ended.
func (a *answers) sendHeld() bool {
	if !a.inline {
		return true
	}
	a.mu.Lock()
	// Unless releaseHeld came first.
	if a.held {
		a.hold.Stop()
		a.held, a.sending = false, false
	}
	a.mu.Unlock()
	return a.sendReady()
}

// wake wakes the sender. One wake-up covers all responses that are ready when the sender runs. The channel holds one, so a wake-up that arrives
// while the sender works is not lost.
func (a *answers) wake() {
	select {
	case a.wakeSender <- struct{}{}:
	default:
	}
}

// beginSending reports whether the caller may send, and whether the stream is whole. Who is sending already sees what becomes ready meanwhile.
func (a *answers) beginSending() (mine, whole bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine = !a.closed && !a.sending && len(a.ready) > 0
	a.sending = a.sending || mine
	return mine, !a.closed
}

// sendReady sends frames until nothing is ready, unless another goroutine does. It returns false if the stream has ended.
func (a *answers) sendReady() bool {
	// Frames must not overtake each other on a link, and gRPC allows one Send at a time.
	if mine, whole := a.beginSending(); !mine {
		return whole
	}
	// Until nothing is ready, because wake-ups that arrive meanwhile are merged into one.
	for {
		out, closed := a.takeFrame()
		if closed || len(out) == 0 {
			return !closed
		}
		// Send does not take a context; the timer is the only way to notice that it hangs: Send blocks while the client's flow-control
		// window is full, so a Send that takes timeout means a client that does not read.
		a.late.Reset(a.timeout)
		err := a.stream.Send(&rhumbpb.ServerFrame{Responses: out})
		// The timer has fired and closed stuck, so Stream ends the stream.
		if !a.late.Stop() {
			return false
		}
		if err != nil {
			// Wakes reserveAnswer, which then ends receiveFrames with the error.
			a.mu.Lock()
			a.closed, a.err = true, err
			a.room.Broadcast()
			a.mu.Unlock()
			return false
		}
	}
}
