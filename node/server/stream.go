package server

import (
	"cmp"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// Bounds of one stream.
const (
	// unansweredMax bounds the requests of a stream without an answer, and readyBytesMax the size of the answers that its
	// client has not taken yet; beyond either the stream is not read.
	unansweredMax = 1 << 15
	readyBytesMax = 16 << 20
	// responsesPerFrame bounds the answers that are gathered into one frame, and frameBytes their size; one answer always
	// fits.
	responsesPerFrame = 4_096
	frameBytes        = 4 << 20
	// takeTimeoutDefault is how long a client may take nothing of its answers before its stream is ended: longer than networks
	// hold up a client that lives, and than keepalive finds one that does not.
	takeTimeoutDefault = 15 * time.Second
)

// Stream answers the requests of one client, out of order, many per frame. It ends with the KV: a client must not stay with
// a past life of the node.
func (k *KV) Stream(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	k.m.streams.Inc()
	defer k.m.streams.Dec()
	out := newAnswers(stream, k.cfg.Budgets.Answers, cmp.Or(k.cfg.TakeTimeout, takeTimeoutDefault))
	defer out.close()
	ended := make(chan error, 1)
	go func() { ended <- k.receive(stream, out) }() // its Recv fails when this returns
	select {
	case err := <-ended:
		return err
	case <-k.closed:
		return api.Status(errNotServing, api.Hint{})
	case <-out.stuck:
		k.m.cutOff.Inc()
		k.cfg.Logger.Warn("a client takes no answers: its stream is ended", "waited", out.timeout, "bytes", out.waiting())
		return api.Status(rhumb.Ef("server.KV.Stream", rhumb.Overloaded, "the client took no answers for %v; read the stream while you write to it", out.timeout), api.Hint{})
	}
}

// receive serves what the client sends until it ends the stream, or breaks it.
func (k *KV) receive(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame], out *answers) error {
	for first := true; ; first = false {
		f, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if first {
			if err := k.meet(f.Hello); err != nil {
				return api.Status(err, api.Hint{})
			}
		}
		k.m.frameRequests.Observe(float64(len(f.Requests)))
		for _, q := range f.Requests {
			if !out.expect(k.cfg.Ranges.Drive) {
				return out.err
			}
			k.serve(stream.Context(), q, out.add)
		}
		k.cfg.Ranges.Drive()
	}
}

func (k *KV) meet(h *rhumbpb.Hello) error {
	const op rhumb.Op = "server.KV.Stream"
	if h == nil {
		return rhumb.E(op, rhumb.InvalidArgument, "the first frame carries no hello")
	}
	if err := api.CheckProtocol(h.Protocol); err != nil {
		return err
	}
	if len(h.Cluster) > 0 && string(h.Cluster) != string(k.cfg.Cluster[:]) {
		return rhumb.Ef(op, rhumb.WrongCluster, "the client means cluster %x, this is %s; check the address", h.Cluster, k.cfg.Cluster)
	}
	return nil
}

// answers gathers the responses of one stream and sends them, many in a frame, on a goroutine of its own: whoever answers
// never waits for a slow client.
type answers struct {
	stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]
	budget *memory.Budget // of the answers of all streams
	// stuck is closed when the client took nothing for timeout.
	stuck   chan struct{}
	timeout time.Duration

	mu         sync.Mutex // guards the seven below
	room       *sync.Cond // unanswered or bytes fell, or closed
	ready      []*rhumbpb.Response
	bytes      int // of ready
	unanswered int
	closed     bool
	dropped    bool // closed, and what was ready is forgotten
	err        error

	wake chan struct{}
	done chan struct{}
}

func newAnswers(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame], budget *memory.Budget, timeout time.Duration) *answers {
	a := &answers{
		stream: stream, budget: budget, stuck: make(chan struct{}), timeout: timeout,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	a.room = sync.NewCond(&a.mu)
	go a.send()
	return a
}

// expect notes that one more request will be answered, once there is room for it. Before it waits it calls drive, which
// brings the requests before it nearer to their answers. It is false when the stream is broken.
func (a *answers) expect(drive func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full() {
		a.mu.Unlock()
		drive()
		a.mu.Lock()
	}
	for a.full() {
		a.room.Wait()
	}
	a.unanswered++
	return !a.closed
}

// full reports whether the stream is not to be read on; a.mu is held.
func (a *answers) full() bool {
	return !a.closed && (a.unanswered >= unansweredMax || a.bytes >= readyBytesMax)
}

// responseOverhead is about what a response takes besides the parts that vary, and itemOverhead a record.
const (
	responseOverhead = 64
	itemOverhead     = 32
)

// responseSize is about what a response takes, never much less.
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

// add takes a response. It does not block.
func (a *answers) add(r *rhumbpb.Response) {
	size := responseSize(r)
	a.mu.Lock()
	if a.dropped {
		a.mu.Unlock()
		return
	}
	a.ready = append(a.ready, r)
	a.bytes += size
	a.budget.Add(int64(size))
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// waiting returns the bytes of the answers that were not handed to the network.
func (a *answers) waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// close ends the sending. When the client takes nothing, what is being sent ends only with the stream: close does not wait for it.
func (a *answers) close() {
	a.mu.Lock()
	a.closed = true
	a.room.Broadcast()
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
	select {
	case <-a.done:
	case <-a.stuck:
	}
	a.mu.Lock()
	a.dropped, a.ready = true, nil
	a.budget.Release(int64(a.bytes))
	a.bytes = 0
	a.mu.Unlock()
}

func (a *answers) take() (out []*rhumbpb.Response, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, size := 0, 0
	for n < len(a.ready) && n < responsesPerFrame && size < frameBytes {
		size += responseSize(a.ready[n])
		n++
	}
	out = a.ready[:n:n]
	a.ready = a.ready[n:]
	if len(a.ready) == 0 {
		a.ready = nil
	}
	a.bytes -= size
	a.budget.Release(int64(size))
	a.unanswered -= n
	a.room.Broadcast()
	return out, a.closed
}

// send works until the stream ends.
func (a *answers) send() {
	defer close(a.done)
	late := time.AfterFunc(a.timeout, func() { close(a.stuck) })
	defer late.Stop()
	late.Stop()
	for range a.wake {
		for {
			out, closed := a.take()
			if closed {
				return
			}
			if len(out) == 0 {
				break
			}
			late.Reset(a.timeout)
			err := a.stream.Send(&rhumbpb.ServerFrame{Responses: out})
			if !late.Stop() {
				return // the stream is ended because of it
			}
			if err != nil {
				a.mu.Lock()
				a.closed, a.err = true, err
				a.room.Broadcast()
				a.mu.Unlock()
				return
			}
		}
	}
}
