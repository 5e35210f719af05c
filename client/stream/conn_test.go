package stream

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// fakeNode is a gRPC server on loopback that answers every request, except those whose ID is mute,
// and records their frames.
type fakeNode struct {
	rhumbpb.UnimplementedKVServer
	rhumbpb.UnimplementedClusterServer
	addr string

	mu     sync.Mutex // guards all below
	mute   func(id uint64) bool
	reject error
	frames [][]uint64 // IDs of the requests of each frame
	hellos []*rhumbpb.Hello
	cut    bool // end the stream after the next frame
}

func newFakeNode(t *testing.T) *fakeNode {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNode{addr: l.Addr().String(), mute: func(uint64) bool { return false }}
	server := grpc.NewServer(api.ServerOptions(0, api.PlainText())...)
	rhumbpb.RegisterKVServer(server, n)
	rhumbpb.RegisterClusterServer(server, n)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return n
}

func (n *fakeNode) Ping(context.Context, *rhumbpb.PingRequest) (*rhumbpb.PingResponse, error) {
	return &rhumbpb.PingResponse{}, nil
}

func (n *fakeNode) Stream(s grpc.BidiStreamingServer[rhumbpb.ClientFrame, rhumbpb.ServerFrame]) error {
	for {
		f, err := s.Recv()
		if err != nil {
			return err
		}
		out, end := n.answer(f)
		switch {
		case end != nil:
			return end
		case len(out.Responses) > 0:
			if err := s.Send(out); err != nil {
				return err
			}
		}
	}
}

func (n *fakeNode) answer(f *rhumbpb.ClientFrame) (*rhumbpb.ServerFrame, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f.Hello != nil {
		n.hellos = append(n.hellos, f.Hello)
	}
	if n.reject != nil {
		return nil, n.reject
	}
	var ids []uint64
	out := &rhumbpb.ServerFrame{}
	for _, q := range f.Requests {
		ids = append(ids, q.Id)
		if !n.mute(q.Id) {
			out.Responses = append(out.Responses, &rhumbpb.Response{Id: q.Id})
		}
	}
	n.frames = append(n.frames, ids)
	if n.cut {
		n.cut = false
		return nil, context.Canceled
	}
	return out, nil
}

// set changes the node under its lock.
func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// received returns the number of frames, and the IDs in them in order.
func (n *fakeNode) received() (frames int, ids []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.frames), slices.Concat(n.frames...)
}

func (n *fakeNode) open(t *testing.T) *Conn {
	c, err := New(Config{
		Credentials: api.PlainText(),
		Addr:        n.addr, ConnectTimeout: 5 * time.Second, Counters: &Counters{}, Cluster: func() rhumb.ClusterID { return rhumb.ClusterID{7} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func request(size int) Request {
	return Request{Message: &rhumbpb.Request{}, Size: size, Timeout: 10 * time.Second}
}

// do sends a small request and fails the test unless it is answered.
func do(t *testing.T, c *Conn) {
	t.Helper()
	if answer, err := c.Do(t.Context(), request(1)); err != nil || answer == nil {
		t.Fatalf("answer %v, error %v", answer, err)
	}
}

// wantError fails the test unless err is an *Error of a kind, with Sent as given.
func wantError(t *testing.T, err error, kind rhumb.Kind, sent bool) {
	t.Helper()
	if e, ok := err.(*Error); !ok || rhumb.KindOf(err) != kind || e.Sent != sent {
		t.Fatalf("got %#v (%v), want kind %s with Sent %v", err, err, kind, sent)
	}
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("waited in vain until ", what)
		}
	}
}

// block keeps c from sending until the returned function is called.
func block(c *Conn) (unblock func()) {
	set := func(sending bool) {
		c.mu.Lock()
		c.sending = sending
		c.mu.Unlock()
	}
	set(true)
	return func() { set(false); c.signal() }
}

// TestRequestsGather guards that requests which wait for one reason leave in one frame, in their
// order, and that only the first frame of a stream greets the node.
func TestRequestsGather(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	do(t, c)
	unblock := block(c)
	var work sync.WaitGroup
	for i := range 10 {
		work.Go(func() { do(t, c) })
		await(t, "the request waits", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.queue) == i+1 })
	}
	unblock()
	work.Wait()
	if frames, ids := n.received(); frames != 2 || !slices.IsSorted(ids) || len(ids) != 11 {
		t.Errorf("%d frames carried the requests %v", frames, ids)
	}
	if len(n.hellos) != 1 || n.hellos[0].Cluster[0] != 7 || n.hellos[0].Protocol != api.Protocol {
		t.Errorf("hellos: %v", n.hellos)
	}
	if sent := c.cfg.Counters.Frames.Load(); sent != 2 {
		t.Errorf("%d frames were counted", sent)
	}
}

// TestFrameBounds guards the largest number of requests and bytes of a frame, and that a larger
// request has a frame of its own.
func TestFrameBounds(t *testing.T) {
	c := newFakeNode(t).open(t)
	c.flow.window = windowMax
	fill := func(sizes ...int) {
		c.queue, c.queueBytes = nil, 0
		for _, size := range sizes {
			c.queue = append(c.queue, &call{Request: request(size)})
			c.queueBytes += size
		}
	}
	for _, tt := range []struct {
		name        string
		sizes       []int
		taken, left int // requests in the frame, bytes in the queue
	}{
		{"few", []int{1, 2, 3}, 3, 0},
		{"as many as fit", slices.Repeat([]int{1}, frameRequestsMax+5), frameRequestsMax, 5},
		{"bytes", []int{frameBytesMax - 1, 1, 1}, 2, 1},
		{"one that is too large", []int{frameBytesMax + 1, 1}, 1, 1},
	} {
		c.mu.Lock()
		fill(tt.sizes...)
		if got := len(c.takeFrameLocked()); got != tt.taken || c.queueBytes != tt.left {
			t.Errorf("%s: %d requests taken and %d bytes left, want %d and %d", tt.name, got, c.queueBytes, tt.taken, tt.left)
		}
		c.queue, c.queueBytes = nil, 0
		c.mu.Unlock()
	}
}

// TestQueueBound guards that the queue is bounded, that a request beyond it is refused as not sent,
// and that the bound does not hold for a request whose outcome is open.
func TestQueueBound(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	do(t, c)
	unblock := block(c)
	c.mu.Lock()
	c.queue = []*call{{abandoned: true, done: make(chan struct{})}}
	c.queueBytes = queueBytesMax
	c.mu.Unlock()
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.Overloaded, false)
	if after := rhumb.RetryAfterOf(err); after < fullRetryMin || after > fullRetryMax {
		t.Errorf("a full queue asks for a pause of %v", after)
	}
	resend := request(1)
	resend.Resend = true
	done := make(chan error, 1)
	go func() { _, err := c.Do(t.Context(), resend); done <- err }()
	await(t, "it waits", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.queue) == 2 })
	c.mu.Lock()
	c.queueBytes -= queueBytesMax
	c.mu.Unlock()
	unblock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestAbandonedBeforeSending guards that a request is not sent once its caller has given up.
func TestAbandonedBeforeSending(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	do(t, c)
	unblock := block(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := c.Do(ctx, request(5)); done <- err }()
	await(t, "it waits to be sent", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.queue) == 1 })
	cancel()
	if e, ok := (<-done).(*Error); !ok || e.Sent || e.Err != context.Canceled {
		t.Fatalf("got %+v", e)
	}
	c.mu.Lock()
	bytes := c.queueBytes
	c.mu.Unlock()
	unblock()
	do(t, c)
	if _, ids := n.received(); bytes != 0 || !slices.Equal(ids, []uint64{1, 3}) {
		t.Fatalf("%d bytes are still counted; the node received %v", bytes, ids)
	}
}

// TestStalledFrames guards that requests without an answer do not keep others from being sent, and
// that they free their part of the flow when their callers give up.
func TestStalledFrames(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	const muted = 4 * framesMax
	n.set(func() { n.mute = func(id uint64) bool { return id <= muted } })
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i := range muted {
		work.Go(func() {
			if _, err := c.Do(ctx, request(1)); err == nil || !err.(*Error).Sent {
				t.Errorf("got %v", err)
			}
		})
		await(t, "the node has the request", func() bool { frames, _ := n.received(); return frames == i+1 })
	}
	do(t, c)
	cancel()
	work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unanswered) != 0 || c.flow.inflight != 0 {
		t.Errorf("%d requests of %d bytes still count", len(c.unanswered), c.flow.inflight)
	}
}

// TestResendGoesFirst guards that a request whose outcome is open is sent although the flow has no
// room, before requests that came earlier, so that its caller learns the outcome.
func TestResendGoesFirst(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	do(t, c)
	c.mu.Lock()
	c.flow.inflight += 1 << 30 // no room for anything
	c.mu.Unlock()
	done := make(chan error, 1)
	waiting := request(directBytesMax + 1) // or the idle stream takes it at once
	waiting.Timeout = time.Second
	go func() { _, err := c.Do(t.Context(), waiting); done <- err }()
	await(t, "it waits to be sent", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.queue) == 1 })
	resend := request(directBytesMax + 1)
	resend.Resend = true
	if _, err := c.Do(t.Context(), resend); err != nil {
		t.Fatal(err)
	}
	err := <-done
	wantError(t, err, rhumb.Overloaded, false) // the node answers, so the request waited for its turn
	if _, ids := n.received(); !slices.Equal(ids, []uint64{1, 3}) {
		t.Errorf("the node received %v", ids)
	}
}

// TestTimeoutAfterSending guards that a request which was sent and is not answered in time may have
// been applied, and halves the window.
func TestTimeoutAfterSending(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(uint64) bool { return true } })
	r := request(1)
	r.Timeout = 100 * time.Millisecond
	_, err := c.Do(t.Context(), r)
	wantError(t, err, rhumb.DeadlineExceeded, true)
	if !err.(*Error).Silent {
		t.Error("the node does not count as silent")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flow.window != windowMin {
		t.Errorf("the window is %d", c.flow.window)
	}
}

// formerPrimary is a caller whose node is not the right one. It counts how often it hears that the answer is late.
type formerPrimary struct{ late atomic.Int32 }

func (f *formerPrimary) Stays() bool { return false }
func (f *formerPrimary) Late()       { f.late.Add(1) }

// TestFormerPrimaryIsLeft guards that a request which was sent to a node that has lost its place does not wait for its timeout, unless it may be
// sent only once. The outcome is unknown: the node may have applied it.
func TestFormerPrimaryIsLeft(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(uint64) bool { return true } })
	r := request(1)
	r.Timeout, r.Caller = time.Hour, &formerPrimary{}
	_, err := c.Do(context.Background(), r)
	wantError(t, err, rhumb.Unknown, true)
	caller := &formerPrimary{}
	r = request(1)
	r.Timeout, r.Caller, r.Once = 2*LateAfter+4*lookEvery, caller, true
	begin := time.Now()
	_, err = c.Do(context.Background(), r)
	wantError(t, err, rhumb.DeadlineExceeded, true)
	if n, most := int(caller.late.Load()), int((time.Since(begin)-LateAfter)/patienceEvery)+1; n < 2 || n > most {
		t.Errorf("the caller heard %d times that the answer is late, want 2 to %d", n, most)
	}
}

// TestTimeoutsShareOneTimer guards that each of many calls without an answer ends by its own timeout, and that the timer rests
// when nobody waits.
func TestTimeoutsShareOneTimer(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(uint64) bool { return true } })
	begin := time.Now()
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			r := request(1)
			r.Timeout = time.Duration(50+10*i) * time.Millisecond
			_, err := c.Do(context.Background(), r) // no channel to wait for but the call's own
			wantError(t, err, rhumb.DeadlineExceeded, true)
			if took := time.Since(begin); took < r.Timeout {
				t.Errorf("a call of %v ended after %v", r.Timeout, took)
			}
		})
	}
	work.Wait()
	await(t, "the timer rests", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return !c.patience.armed })
}

// TestBrokenStream guards that the requests of a stream that breaks may have been applied, that
// queued ones are sent on the next stream, and that this one greets the node again.
func TestBrokenStream(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	do(t, c)
	n.set(func() { n.cut = true })
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.Unknown, true)
	do(t, c)
	if broken := c.cfg.Counters.Broken.Load(); broken != 1 || len(n.hellos) != 2 {
		t.Errorf("%d streams broke, %d began", broken, len(n.hellos))
	}
}

// TestInterrupt guards that requests to a node that is known to be dead fail at once.
func TestInterrupt(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(id uint64) bool { return id == 1 } })
	done := make(chan error, 1)
	go func() { _, err := c.Do(t.Context(), request(1)); done <- err }()
	await(t, "it is sent", func() bool { frames, _ := n.received(); return frames == 1 })
	c.Interrupt()
	wantError(t, <-done, rhumb.Unknown, true)
	do(t, c)
}

// TestRejectedStream guards that a node which rejects the stream itself is told from one that broke
// it: nothing was applied, and another attempt is useless.
func TestRejectedStream(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.reject = api.Status(rhumb.E("test", rhumb.WrongCluster, "another cluster"), api.Hint{}) })
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.WrongCluster, false)
	if !err.(*Error).Rejected {
		t.Errorf("%v does not count as a rejection", err)
	}
}

// TestUnreadStream guards that requests to a node which reads none, because it is joining for example,
// count as not sent: nothing was applied, and another node may serve.
func TestUnreadStream(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.reject = api.Status(rhumb.E("test", rhumb.Unavailable, "it joins"), api.Hint{Unread: true}) })
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.Unavailable, false)
	if err.(*Error).Rejected {
		t.Errorf("%v counts as a rejection", err)
	}
	n.set(func() { n.reject = nil })
	do(t, c)
}

// TestNobodyListens guards that a request to an address where nobody listens was certainly not
// sent.
func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNode{addr: l.Addr().String()}
	l.Close()
	_, err = n.open(t).Do(t.Context(), request(1))
	wantError(t, err, rhumb.Unavailable, false)
}

// TestClose guards that Close fails what was sent and what was not, and that a closed Conn refuses
// requests.
func TestClose(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(id uint64) bool { return id == 2 } })
	do(t, c)
	sent, queued := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.Do(t.Context(), request(1)); sent <- err }()
	await(t, "it is sent", func() bool { frames, _ := n.received(); return frames == 2 })
	block(c)
	go func() { _, err := c.Do(t.Context(), request(1)); queued <- err }()
	await(t, "it waits", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.queue) == 1 })
	c.Close()
	wantError(t, <-sent, rhumb.Unknown, true)
	wantError(t, <-queued, rhumb.Canceled, false)
	_, err := c.Do(t.Context(), request(1))
	wantError(t, err, rhumb.Unavailable, false)
}

// TestAccounting guards that the counts of a Conn are right after any mix of answers,
// cancellations, timeouts and broken streams: a count that leaks would narrow the flow or the queue
// for ever.
func TestAccounting(t *testing.T) {
	n := newFakeNode(t)
	c := n.open(t)
	n.set(func() { n.mute = func(id uint64) bool { return id%7 == 0 } })
	stop := make(chan struct{})
	var cutter, callers sync.WaitGroup
	cutter.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			if i%2 == 0 {
				n.set(func() { n.cut = true })
			} else {
				c.Interrupt()
			}
		}
	})
	for i := range 32 {
		rnd := rand.New(rand.NewPCG(1, uint64(i)))
		callers.Go(func() {
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				r := request(1 + rnd.IntN(2*directBytesMax))
				r.Resend = rnd.IntN(8) == 0
				switch rnd.IntN(3) {
				case 0:
					time.AfterFunc(time.Duration(rnd.Int64N(int64(3*time.Millisecond))), cancel)
				case 1:
					r.Timeout = 1 + time.Duration(rnd.Int64N(int64(5*time.Millisecond)))
				default:
					r.Timeout = 100 * time.Millisecond
				}
				if answer, err := c.Do(ctx, r); (answer == nil) == (err == nil) {
					t.Errorf("answer %v and error %v", answer, err)
				}
				cancel()
			}
		})
	}
	callers.Wait()
	close(stop)
	cutter.Wait()
	n.set(func() { n.mute, n.cut = func(uint64) bool { return false }, false })
	await(t, "a request is answered", func() bool { _, err := c.Do(t.Context(), request(1)); return err == nil })
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unanswered) != 0 || c.flow.inflight != 0 || c.queueBytes != 0 || c.openFrames < 0 {
		t.Errorf("%d unanswered requests, %d bytes in flight, %d bytes in the queue, %d frames open", len(c.unanswered), c.flow.inflight, c.queueBytes, c.openFrames)
	}
}
