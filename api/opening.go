package api

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// openingsLeast and openingsPerCPU bound the TLS connections that the clients of a process open at the same
	// time. A process with one client has that many nodes only in a large cluster.
	openingsLeast  = 16
	openingsPerCPU = 4
	// openingTime is how long an opening counts at most. Connections to nodes that do not answer must not keep
	// those to others waiting.
	openingTime = 500 * time.Millisecond
	// openingWait bounds the wait for a place. The rest of connectTimeout is enough for the dial and the
	// handshake: one that began later could not be finished.
	openingWait = connectTimeout - dialTimeout - handshakeTimeout
)

// openings bounds the connections that the clients of this process open at the same time.
//
// A process may have a thousand clients, each with connections to all nodes. When a cluster returns, they
// would all begin their handshakes at once, each would take seconds of its own and of its node's, and they
// would be abandoned half done. A few at a time take milliseconds each, and the same time in total. The
// bound is that of the process and not of a client, because it shares out the processors.
var openings = newPlaces(max(openingsLeast, openingsPerCPU*runtime.GOMAXPROCS(0)), openingTime)

// places bounds how many things happen at the same time.
type places struct {
	taken chan struct{} // a value for each; it serves those who wait in their order
	most  time.Duration // how long a place is kept
}

// newPlaces returns n free places, each of which is kept for at most the given time.
func newPlaces(n int, most time.Duration) *places { return &places{make(chan struct{}, n), most} }

// take waits for a place and returns the function that frees it, which may be called more than once.
func (p *places) take(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, openingWait)
	defer cancel()
	select {
	case p.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	once := sync.OnceFunc(func() { <-p.taken })
	late := time.AfterFunc(p.most, once)
	return func() {
		late.Stop()
		once()
	}, nil
}

// paced are credentials that end the opening of a connection with its handshake.
type paced struct {
	credentials.TransportCredentials
	places *places
	// ends holds the function that ends the opening of each net.Conn before its handshake.
	//
	// The connection is not wrapped instead: gRPC sets options of TCP connections, which it would not recognize.
	ends *sync.Map
}

// Paced returns credentials for the clients of a process. A connection with them waits, before it is dialled,
// until few others are being opened. Without TLS, connections cost little, and creds is returned.
func Paced(creds Credentials) Credentials {
	if creds.Info().SecurityProtocol != "tls" {
		return creds
	}
	return &paced{creds, openings, new(sync.Map)}
}

// dial dials when the connection has a place.
func (p *paced) dial(ctx context.Context, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	end, err := p.places.take(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx)
	if err != nil {
		end()
		return nil, err
	}
	p.ends.Store(conn, end)
	return conn, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (p *paced) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if end, ok := p.ends.LoadAndDelete(raw); ok {
		defer end.(func())()
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (p *paced) Clone() credentials.TransportCredentials {
	return &paced{p.TransportCredentials.Clone(), p.places, p.ends}
}
