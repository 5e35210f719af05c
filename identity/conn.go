package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Conn is an open TLS connection that a Source watches.
//
// A TLS certificate is verified once, in the handshake, and connections of nodes stay open for
// months. Without a list of the open connections, a revoked certificate would keep its access until
// the process restarts. The Source therefore keeps each Conn with everything that is needed to
// verify it again.
type Conn struct {
	src   *Source
	raw   net.Conn
	want  Want
	state tls.ConnectionState
	peer  Peer
	named bool              // peer is set
	own   *x509.Certificate // what this side presented; nil if nothing
	// verifier accepted the certificate of the other side.
	verifier *Verifier
	done     chan struct{}
	end      sync.Once
}

// Peer returns the verified bearer at the other side. ok is false for a client without a
// certificate.
func (c *Conn) Peer() (p Peer, ok bool) { return c.peer, c.named }

// State returns the state of the connection when its certificates were verified.
func (c *Conn) State() tls.ConnectionState { return c.state }

// Done returns a channel that closes when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection at once.
func (c *Conn) Close() {
	c.end.Do(func() {
		// Out of the list first, so that a recheck that runs now does not end and count this
		// connection again.
		c.src.forget(c)
		close(c.done)
	})
	// The raw connection, because TLS would wait for the other side to take its farewell.
	_ = c.raw.Close()
}

// tracked is the connection below TLS. It knows the Conn above it once the handshake has succeeded.
//
// TLS hides the connection below it from the callers of the handshake. Both directions of the
// reference are needed: the Source closes the raw connection, and the end of the raw connection,
// whoever causes it, takes the Conn out of the list. Otherwise the list would grow by one entry for
// each connection ever made.
type tracked struct {
	net.Conn
	conn atomic.Pointer[Conn]
}

// Close ends the connection and the watch over it.
func (t *tracked) Close() error {
	if c := t.conn.Load(); c != nil {
		c.end.Do(func() {
			c.src.forget(c)
			close(c.done)
		})
	}
	return t.Conn.Close()
}

// watchConn starts the watch over a connection whose handshake succeeds.
func (s *Source) watchConn(t *tracked, c *Conn) {
	// All fields are set before the Conn becomes visible to Close and to rechecks.
	c.src, c.raw, c.done = s, t.Conn, make(chan struct{})
	t.conn.Store(c)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	// Trust may have changed between the verification and the entry in the list, and a change
	// before the entry did not see the connection.
	if v := s.verifier.Load(); v != c.verifier {
		if reason := s.examineConn(c, v, s.cfg.Wall(), nil); reason != ReasonNone {
			s.endConn(c, reason)
		}
	}
}

// forget removes a connection that has ended.
func (s *Source) forget(c *Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// openConns returns the connections that are watched.
func (s *Source) openConns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// endConn closes a connection whose certificate has become invalid.
func (s *Source) endConn(c *Conn, reason Reason) {
	s.m.closed.WithLabelValues(string(reason)).Inc()
	s.cfg.Logger.Info("a connection ends because its certificate has become invalid", "reason", string(reason), "remote", c.raw.RemoteAddr().String(), "peer", c.peer.Short())
	c.Close()
}

// recheck ends the connections whose certificate has become invalid under v.
func (s *Source) recheck(v *Verifier) {
	now := s.cfg.Wall()
	// Many connections carry the same certificate, and signatures take most of the time.
	seen := map[string]Reason{}
	for _, c := range s.openConns() {
		if reason := s.examineConn(c, v, now, seen); reason != ReasonNone {
			s.endConn(c, reason)
		}
	}
}

// examineConn verifies the certificate of a connection again. seen remembers the results of other
// connections; it may be nil.
func (s *Source) examineConn(c *Conn, v *Verifier, now time.Time, seen map[string]Reason) Reason {
	if !c.named {
		// An anonymous client has no certificate that could become invalid. Its session ends by its
		// own rules.
		return ReasonNone
	}
	// The result depends on the expectation too: the same certificate of a node is valid on the
	// port of peers and invalid where an operator is expected.
	key := c.want.String() + string(c.peer.Cert.Raw)
	if reason, ok := seen[key]; ok {
		return reason
	}
	_, err := v.Verify(c.state.PeerCertificates, c.want, now)
	if seen != nil {
		seen[key] = ReasonOf(err)
	}
	return ReasonOf(err)
}

// endExpired ends the connections whose certificate has expired, and those on which this side
// presented a certificate that has expired since and was replaced: the other side would end them
// too, but may be a version or a clock that does not.
func (s *Source) endExpired() {
	now, leaf := s.cfg.Wall(), s.current.Load().leaf()
	for _, c := range s.openConns() {
		switch {
		case c.named && now.After(c.peer.NotAfter):
			s.endConn(c, ReasonExpired)
		// Only if there is a newer certificate. Without one, closing would gain nothing: the next
		// connection would present the same expired certificate.
		case c.own != nil && c.own != leaf && now.After(c.own.NotAfter):
			s.endConn(c, ReasonReplaced)
		}
	}
}

// connKey is the key of the connection in the context of an HTTP request.
type connKey struct{}

// HTTPContext is the ConnContext of an http.Server whose listener is a Listener. It makes
// ConnFromContext and PeerFromContext work in handlers.
//
// The context holds the connection below TLS, because net/http calls this function before the
// handshake, when no Conn exists yet.
func HTTPContext(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		if raw, ok := t.NetConn().(*tracked); ok {
			return context.WithValue(ctx, connKey{}, raw)
		}
	}
	return ctx
}
