package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/node/memory"
)

// brokenStream is a stream whose Send fails once its first Recv was called.
type brokenStream struct {
	grpc.ServerStream
	sending, failing chan struct{}
	received         bool
}

func (s *brokenStream) Context() context.Context { return context.Background() }

func (s *brokenStream) Recv() (*rhumbpb.ClientFrame, error) {
	if s.received {
		return nil, io.EOF
	}
	s.received = true
	close(s.failing)
	return &rhumbpb.ClientFrame{Hello: hello(), Requests: []*rhumbpb.Request{{Id: 2}}}, nil
}

func (s *brokenStream) Send(*rhumbpb.ServerFrame) error {
	close(s.sending)
	<-s.failing
	return errors.New("the connection is reset")
}

// TestSendFailsWhileStreamCloses guards that a Send may fail at any time while the receiver of the same
// stream ends. It fails under the race detector if the receiver reads the error without the lock.
func TestSendFailsWhileStreamCloses(t *testing.T) {
	kv := NewKV(Config{Cluster: cluster, Ranges: newWorld()})
	for range 300 {
		s := &brokenStream{sending: make(chan struct{}), failing: make(chan struct{})}
		a := newAnswers(s, nil, time.Hour)
		a.add(&rhumbpb.Response{Id: 1})
		<-s.sending
		closed := make(chan struct{})
		go func() {
			a.close()
			close(closed)
		}()
		for !a.isClosed() {
			runtime.Gosched()
		}
		received := make(chan struct{})
		go func() {
			_ = kv.receiveFrames(s, a, false)
			close(received)
		}()
		<-received
		<-closed
	}
}

func (a *answers) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// idleAnswers returns answers without a sender, which the test takes frames from.
func idleAnswers(budget *memory.Budget) *answers {
	a := &answers{budget: budget, stuck: make(chan struct{}), wakeSender: make(chan struct{}, 1), done: make(chan struct{})}
	a.room = sync.NewCond(&a.mu)
	close(a.done)
	return a
}

// TestTakeFrame guards the bounds of a frame and the order of answers, and that the budget counts exactly the
// answers that no frame has taken.
func TestTakeFrame(t *testing.T) {
	budget := memory.NewBudget("answers", 1<<30)
	a := idleAnswers(budget)
	big := &rhumbpb.Item{Value: make([]byte, 3<<20)}
	for id := range uint64(3) {
		a.add(&rhumbpb.Response{Id: id, Items: []*rhumbpb.Item{big}})
	}
	for id := range uint64(responsesPerFrame + 5) {
		a.add(&rhumbpb.Response{Id: 3 + id})
	}
	a.unanswered = 3 + responsesPerFrame + 5
	next := uint64(0)
	for _, want := range []int{2, responsesPerFrame, 6, 0} {
		if int64(a.waitingBytes()) != budget.Used() {
			t.Fatalf("%d bytes wait, the budget counts %d", a.waitingBytes(), budget.Used())
		}
		out, closed := a.takeFrame()
		if len(out) != want || closed {
			t.Fatalf("a frame has %d answers, closed %v, want %d", len(out), closed, want)
		}
		for _, r := range out {
			if r.Id != next {
				t.Fatalf("answer %d comes in place of %d", r.Id, next)
			}
			next++
		}
	}
	if budget.Used() != 0 || a.unanswered != 0 || a.ready != nil {
		t.Errorf("%d bytes and %d requests are left", budget.Used(), a.unanswered)
	}
}

// TestAnswersAfterClose guards that the answers of a stream that has ended use no memory, however late they come.
func TestAnswersAfterClose(t *testing.T) {
	budget := memory.NewBudget("answers", 1<<30)
	a := idleAnswers(budget)
	a.add(&rhumbpb.Response{Items: []*rhumbpb.Item{{Value: make([]byte, 1_000)}}})
	if budget.Used() < 1_000 {
		t.Fatalf("an answer of 1,000 bytes counts as %d", budget.Used())
	}
	a.close()
	a.add(&rhumbpb.Response{Items: []*rhumbpb.Item{{Value: make([]byte, 1_000)}}})
	if budget.Used() != 0 || len(a.ready) != 0 {
		t.Errorf("%d bytes and %d answers are left", budget.Used(), len(a.ready))
	}
}

// TestBrokenSendEndsTheStream guards that a stream whose answers cannot be sent ends with the reason.
func TestBrokenSendEndsTheStream(t *testing.T) {
	s := &brokenStream{sending: make(chan struct{}), failing: make(chan struct{})}
	kv := NewKV(Config{Cluster: cluster, Ranges: newWorld()})
	a := newAnswers(s, nil, time.Hour)
	defer a.close()
	a.add(&rhumbpb.Response{Id: 1})
	<-s.sending
	close(s.failing)
	<-a.done
	s.failing = make(chan struct{})
	if err := kv.receiveFrames(s, a, false); err == nil || err.Error() != "the connection is reset" {
		t.Errorf("the stream ends with %v", err)
	}
}
