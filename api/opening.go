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
	// time. A single client reaches the bound only in a cluster of more than openingsLeast nodes.
	openingsLeast  = 16
	openingsPerCPU = 4
	// openingTime is how long an opening keeps its place at most. Otherwise nodes that do not answer would delay
	// connections to the nodes that do.
	openingTime = 500 * time.Millisecond
	// openingWait bounds the wait for a place. It leaves enough of connectTimeout for the dial and the handshake;
	// an attempt that began later could not finish.
	openingWait = connectTimeout - dialTimeout - handshakeTimeout
)

// openings bounds the connections that the clients of this process open at the same time.
//
// A process may have a thousand clients, each with connections to all nodes. When a cluster returns after a
// restart, all of them begin handshakes at once. Each handshake then takes seconds, because it shares the
// processors with the others, and is abandoned half done. With few at a time, each takes milliseconds, and the
// total is the same. The bound is per process and not per client because the processors are what is scarce.
var openings = newPlaces(max(openingsLeast, openingsPerCPU*runtime.GOMAXPROCS(0)), openingTime)

// places bounds how many holders do something at the same time.
type places struct {
	taken chan struct{} // one element per taken place; waiters get places in the order in which they came
	most  time.Duration // a place is freed after this time even if its holder does not leave
}

// newPlaces returns n free places. A holder loses its place after most.
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
	// ends maps each net.Conn that has not begun its handshake to the function that frees its place.
	//
	// Wrapping the connection would be simpler, but gRPC sets TCP options and would not recognize a wrapper.
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
