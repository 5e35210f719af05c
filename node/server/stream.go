package server

import (
	"sync"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Bounds of one stream.
const (
	// unansweredMax bounds the requests of a stream without an answer; beyond it the stream is not read.
	unansweredMax = 1 << 15
	// responsesPerFrame bounds the answers that are gathered into one frame, and frameBytes their size.
	responsesPerFrame = 4_096
	frameBytes        = 4 << 20
)

// Stream answers the requests of one client, out of order, many per frame.
func (k *KV) Stream(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	first := true
	out := newAnswers(stream)
	defer out.close()
	k.m.streams.Inc()
	defer k.m.streams.Dec()
	for {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		if first {
			first = false
			if err := k.meet(f.Hello); err != nil {
				return api.Status(err, api.Hint{})
			}
		}
		k.m.frameRequests.Observe(float64(len(f.Requests)))
		if !out.expect(len(f.Requests)) {
			return out.err
		}
		for _, q := range f.Requests {
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

	mu         sync.Mutex // guards the five below
	room       *sync.Cond // unanswered fell, or closed
	ready      []*rhumbpb.Response
	unanswered int
	closed     bool
	err        error

	wake chan struct{}
	done chan struct{}
}

func newAnswers(stream grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) *answers {
	a := &answers{stream: stream, wake: make(chan struct{}, 1), done: make(chan struct{})}
	a.room = sync.NewCond(&a.mu)
	go a.send()
	return a
}

// expect notes that n requests will be answered, once there is room for them. It is false when the stream is broken.
func (a *answers) expect(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.unanswered > 0 && a.unanswered+n > unansweredMax && !a.closed {
		a.room.Wait()
	}
	a.unanswered += n
	return !a.closed
}

// add takes a response. It does not block.
func (a *answers) add(r *rhumbpb.Response) {
	a.mu.Lock()
	a.ready = append(a.ready, r)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *answers) close() {
	a.mu.Lock()
	a.closed = true
	a.room.Broadcast()
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
	<-a.done
}

func (a *answers) take() (out []*rhumbpb.Response, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, size := 0, 0
	for n < len(a.ready) && n < responsesPerFrame && size < frameBytes {
		for _, it := range a.ready[n].Items {
			size += len(it.Value) + len(it.Name)
		}
		n++
	}
	out = a.ready[:n:n]
	a.ready = a.ready[n:]
	if len(a.ready) == 0 {
		a.ready = nil
	}
	a.unanswered -= n
	a.room.Broadcast()
	return out, a.closed
}

// send works until the stream ends.
func (a *answers) send() {
	defer close(a.done)
	for range a.wake {
		for {
			out, closed := a.take()
			if closed {
				return
			}
			if len(out) == 0 {
				break
			}
			if err := a.stream.Send(&rhumbpb.ServerFrame{Responses: out}); err != nil {
				a.mu.Lock()
				a.closed, a.err = true, err
				a.room.Broadcast()
				a.mu.Unlock()
				return
			}
		}
	}
}
