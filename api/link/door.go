package link

import (
	"io"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/identity"
)

// Accepted is a connection that begins a link.
type Accepted struct {
	// Conn is the connection after the handshake and the magic, Raw the one below TLS.
	Conn, Raw net.Conn
	// Info identifies the other side.
	Info credentials.AuthInfo
}

// Kind is a kind of link that a port accepts.
type Kind struct {
	Protocol, Magic string
	// Serve takes over a connection. It is called in a goroutine of the connection and must not block.
	Serve func(Accepted)
}

// door are the credentials of a gRPC server on whose port links are opened too.
//
// gRPC lets credentials take a connection away from it, after the handshake. So certificates, revocation and the limits of
// connections are the same code for both.
type door struct {
	credentials.TransportCredentials
	kinds []Kind
}

// Admit returns the credentials of a gRPC server that accepts links on the same port. creds accept the protocols of kinds as well as that of
// gRPC, or are without TLS.
func Admit(creds api.Credentials, kinds ...Kind) api.Credentials { return door{creds, kinds} }

// Clone implements credentials.TransportCredentials.
func (d door) Clone() credentials.TransportCredentials {
	return door{d.TransportCredentials.Clone(), d.kinds}
}

// ServerHandshake implements credentials.TransportCredentials. gRPC calls it in a goroutine of the connection, with a deadline for reads.
func (d door) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	// With TLS the protocol was negotiated, so a client of gRPC is recognized before it has sent anything.
	a, secure := info.(identity.AuthInfo)
	if secure && d.find(func(k Kind) bool { return k.Protocol == a.State.NegotiatedProtocol }) == nil {
		return conn, info, nil
	}
	// The preface of HTTP/2 is longer, and its client sends it at once.
	begin := make([]byte, magicSize)
	if _, err := io.ReadFull(conn, begin); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	kind := d.find(func(k Kind) bool {
		return k.Magic == string(begin) && (!secure || k.Protocol == a.State.NegotiatedProtocol)
	})
	switch {
	case kind != nil:
		kind.Serve(Accepted{conn, raw, info})
		return nil, nil, credentials.ErrConnDispatched
	case secure:
		// Negotiated as a link, so it cannot be HTTP/2.
		_ = conn.Close()
		return nil, nil, rhumb.Ef("link.ServerHandshake", rhumb.InvalidArgument, "a link from %s does not begin with its magic", raw.RemoteAddr())
	}
	return &begunConn{Conn: conn, begin: begin}, info, nil
}

// find returns the first kind that matches, or nil.
func (d door) find(match func(Kind) bool) *Kind {
	for i := range d.kinds {
		if match(d.kinds[i]) {
			return &d.kinds[i]
		}
	}
	return nil
}

// begunConn is a connection whose first bytes were read.
type begunConn struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(b []byte) (int, error) {
	if len(c.begin) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.begin)
	c.begin = c.begin[n:]
	return n, nil
}

// Set holds the links that a server has accepted. The zero value is empty.
//
// gRPC forgets a connection that its credentials have taken away, so a server that stops has to end the links and wait for their
// goroutines before it closes what these use.
type Set struct {
	mu     sync.Mutex // guards open and closed
	open   map[*Conn]struct{}
	closed bool
	work   sync.WaitGroup
}

// Serve runs serve in a goroutine, and closes the link afterwards. After Close, it closes the link at once.
func (s *Set) Serve(c *Conn, serve func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return
	}
	if s.open == nil {
		s.open = map[*Conn]struct{}{}
	}
	s.open[c] = struct{}{}
	s.work.Go(func() {
		defer func() {
			c.Close()
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
		}()
		serve()
	})
}

// Len returns the number of open links.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Close ends all links and waits for their goroutines. Later ones are refused.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}
