package server

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
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
			_ = kv.receiveFrames(s, a)
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
