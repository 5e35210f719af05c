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
	const clients, most = 100, 7
	all := newPlaces(most, time.Hour)
	creds := &counted{TransportCredentials: PlainText(), begun: make(chan struct{}, clients), release: make(chan struct{})}
	refuse := errorDial{}
	var work sync.WaitGroup
	for range clients {
		// Each client has credentials of its own.
		p := Paced(creds).(*paced)
		p.places = all
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
	for range most {
		<-creds.begun
	}
	// None of these has ended, so nobody else may begin.
	select {
	case <-creds.begun:
		t.Errorf("%d handshakes at the same time, want at most %d", most+1, most)
	case <-time.After(openingTime / 5):
	}
	close(creds.release)
	work.Wait()
	if n := int(creds.most.Load()); n > most {
		t.Errorf("%d handshakes at the same time, want at most %d", n, most)
	}
	if n := len(all.taken); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
}

type errorDial struct{}

func (errorDial) dial(context.Context) (net.Conn, error) { return nil, net.ErrClosed }

// TestSilentNodesKeepNoPlaces guards that handshakes which do not end keep other connections waiting for a bounded
// time only.
func TestSilentNodesKeepNoPlaces(t *testing.T) {
	all := newPlaces(3, openingTime)
	for range cap(all.taken) {
		end, err := all.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer end()
	}
	end, err := all.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end()
}

// TestPlaceIsGivenBackOnce guards that a second call gives no place of another one back.
func TestPlaceIsGivenBackOnce(t *testing.T) {
	all := newPlaces(1, time.Hour)
	first, err := all.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first()
	second, err := all.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first()
	if n := len(all.taken); n != 1 {
		t.Errorf("%d places are taken, want 1", n)
	}
	second()
}
