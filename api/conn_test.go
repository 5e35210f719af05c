package api

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// pinged is a server that answers pings.
type pinged struct {
	rhumbpb.UnimplementedClusterServer
}

func (pinged) Ping(context.Context, *rhumbpb.PingRequest) (*rhumbpb.PingResponse, error) {
	return &rhumbpb.PingResponse{}, nil
}

// deaf is a connection that, once deafened, discards everything written to it, as if its other end
// were stopped.
type deaf struct {
	net.Conn
	off *atomic.Bool
}

func (d deaf) Write(b []byte) (int, error) {
	if d.off.Load() {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// TestSilentConnectionIsRenewed guards that a call on a connection to a silent node fails long
// before TCP or keepalive would notice, and that the next call uses a new connection.
func TestSilentConnectionIsRenewed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(ServerOptions(0, PlainText())...)
	rhumbpb.RegisterClusterServer(s, pinged{})
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	var dialled atomic.Int32
	var off atomic.Pointer[atomic.Bool] // of the newest connection
	c, err := NewConn(l.Addr().String(), func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		mine := new(atomic.Bool)
		off.Store(mine)
		return deaf{conn, mine}, err
	}, PlainText(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), keepaliveTime-time.Second)
		defer cancel()
		_, err := rhumbpb.NewClusterClient(c.Client()).Ping(ctx, &rhumbpb.PingRequest{})
		if ctx.Err() != nil {
			t.Fatal("the call hangs")
		}
		return err
	}
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	off.Load().Store(true)
	renewed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		c.Watch(ctx, nil, func() Use { return Awaited }, func() { renewed <- struct{}{} })
		close(ended)
	}()
	if err := ping(); err == nil {
		t.Fatal("a call over the silent connection succeeded")
	}
	<-renewed
	if err := ping(); err != nil || dialled.Load() != 2 {
		t.Fatalf("after %d connections: %v", dialled.Load(), err)
	}
	cancel()
	<-ended
	c.Close()
	if c.replaceConn() {
		t.Error("a closed connection is made anew")
	}
}

// TestUnusedConnectionIsLeftAlone guards that a connection without calls is not probed.
func TestUnusedConnectionIsLeftAlone(t *testing.T) {
	c, err := NewConn("127.0.0.1:1", func(context.Context, string, string) (net.Conn, error) {
		t.Error("connected")
		return nil, net.ErrClosed
	}, PlainText(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	asked, begun := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.Watch(ctx, begun, func() Use {
		select {
		case asked <- struct{}{}:
		case <-ctx.Done():
		}
		return Unused
	}, nil)
	<-asked
	begun <- struct{}{}
	<-asked
}

// slow are credentials whose handshake takes until release is closed.
type slow struct {
	credentials.TransportCredentials
	begun   atomic.Int32
	release chan struct{}
}

func (s *slow) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	s.begun.Add(1)
	select {
	case <-s.release:
		return s.TransportCredentials.ClientHandshake(ctx, authority, raw)
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (s *slow) Clone() credentials.TransportCredentials { return s }

// TestSlowHandshakeIsFinished guards that a handshake which takes longer than probes wait is finished, and not
// given up for another one. Once clients began a handshake every second, and of a thousand that returned to a
// cluster at the same time none finished one.
func TestSlowHandshakeIsFinished(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(ServerOptions(0, PlainText())...)
	rhumbpb.RegisterClusterServer(s, pinged{})
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	creds := &slow{TransportCredentials: PlainText(), release: make(chan struct{})}
	c, err := NewConn(l.Addr().String(), nil, creds, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := rhumbpb.NewClusterClient(c.Client()).Ping(t.Context(), &rhumbpb.PingRequest{})
		answered <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Asked twice per probe. By then a probe that waited for the handshake would have ended.
	const questions = 2 * (int(probeTimeout/probeEvery) + 3)
	asked := make(chan struct{}, questions)
	go c.Watch(ctx, nil, func() Use {
		select {
		case asked <- struct{}{}:
		default:
		}
		return Awaited
	}, nil)
	for range questions {
		<-asked
	}
	close(creds.release)
	if err := <-answered; err != nil {
		t.Errorf("the call that waited for the handshake: %v", err)
	}
	if n := creds.begun.Load(); n != 1 {
		t.Errorf("%d handshakes were begun, want 1", n)
	}
}
