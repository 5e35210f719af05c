package api

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// counted are credentials that count the handshakes in progress. A handshake ends when the test lets it.
type counted struct {
	credentials.TransportCredentials
	now, most atomic.Int32
	begun     chan struct{}
	release   chan struct{}
}

func (c *counted) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c *counted) ClientHandshake(_ context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	n := c.now.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	c.begun <- struct{}{}
	<-c.release
	c.now.Add(-1)
	return raw, nil, nil
}

// TestOpeningsAreBounded guards that the clients of a process open few TLS connections at a time, that all of them
// are opened in the end, and that a connection that fails gives its place back.
func TestOpeningsAreBounded(t *testing.T) {
	const clients = 100
	creds := &counted{TransportCredentials: PlainText(), begun: make(chan struct{}, clients), release: make(chan struct{})}
	refuse := errorDial{}
	var work sync.WaitGroup
	for range clients {
		// Each client has credentials of its own.
		p := Paced(creds).(*paced)
		work.Go(func() {
			if _, err := p.dial(t.Context(), refuse.dial); err == nil {
				t.Error("a refused connection was opened")
			}
			conn, err := p.dial(t.Context(), func(context.Context) (net.Conn, error) { a, _ := net.Pipe(); return a, nil })
			if err != nil {
				t.Error(err)
				return
			}
			if _, _, err := p.ClientHandshake(t.Context(), "a:1", conn); err != nil {
				t.Error(err)
			}
		})
	}
	for range clients {
		<-creds.begun
		creds.release <- struct{}{}
	}
	work.Wait()
	if most := int(creds.most.Load()); most > cap(openings) {
		t.Errorf("%d handshakes at the same time, want at most %d", most, cap(openings))
	}
	if n := len(openings); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}

type errorDial struct{}

func (errorDial) dial(context.Context) (net.Conn, error) { return nil, net.ErrClosed }

// TestSilentNodesKeepNoPlaces guards that handshakes which do not end keep other connections waiting for a bounded
// time only.
func TestSilentNodesKeepNoPlaces(t *testing.T) {
	for range cap(openings) {
		end, err := beginOpening(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer end()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*openingTime)
	defer cancel()
	start := time.Now()
	end, err := beginOpening(ctx)
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	end()
	end() // a second call gives no place of another back
}
