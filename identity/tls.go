package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/rhumbdb/rhumb"
)

const (
	// handshakeTimeout bounds a TLS handshake. A stranger who connects and sends nothing holds a
	// slot of the connection limit for that long.
	handshakeTimeout = 5 * time.Second
	// alertWait bounds the wait for the alert of a server that has closed the connection.
	alertWait = 100 * time.Millisecond
	// holdMin and holdMax bound the pause after a handshake that failed for lack of a place or of time.
	// It doubles at most holdDoublings times.
	holdMin       = 100 * time.Millisecond
	holdMax       = 5 * time.Second
	holdDoublings = 6
	// logInterval is the least time between two log lines about refused handshakes.
	logInterval = time.Second
)

// grpcProtocols are the application protocols that gRPC requires TLS to negotiate.
var grpcProtocols = []string{"h2"}

// baseConfig returns what all configurations share.
func (s *Source) baseConfig(protocols []string) *tls.Config {
	return &tls.Config{
		// TLS 1.3 only: older versions have parameters that would need a policy, they send client
		// certificates in plain text, and every supported client has 1.3. The curves are Go's
		// defaults, which include a hybrid against the recording of traffic for later decryption.
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		Time:       s.cfg.Wall,
		// Without tickets every connection is verified in full; a resumed one would carry the
		// certificate of an earlier one.
		SessionTicketsDisabled: true,
		// Frames of small requests should leave in one packet and one record.
		DynamicRecordSizingDisabled: true,
	}
}

// serverConfig returns the configuration of one accepted connection. The Source watches the
// connection only if it is tracked: otherwise nobody would say when it is closed.
func (s *Source) serverConfig(conn net.Conn, want Want, protocols []string) *tls.Config {
	cfg, cur := s.baseConfig(protocols), s.current.Load()
	if cur.pair != nil {
		// The snapshot of this moment serves the whole handshake; a reload in the meantime concerns
		// the next connection.
		cfg.Certificates = []tls.Certificate{*cur.pair}
	}
	// "Any" switches the verification of the standard library off, which knows neither roles nor
	// revoked serial numbers. VerifyConnection replaces it; unlike VerifyPeerCertificate it also
	// runs for clients that present nothing.
	cfg.ClientAuth = tls.RequireAnyClientCert
	if want.Optional {
		cfg.ClientAuth = tls.RequestClientCert
	}
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		c := &Conn{want: want, state: state, own: cur.leaf()}
		if len(state.PeerCertificates) > 0 || !want.Optional {
			c.verifier = s.verifier.Load()
			p, err := c.verifier.Verify(state.PeerCertificates, want, s.cfg.Wall())
			if err != nil {
				s.reject(conn, err)
				return err
			}
			c.peer, c.named = p, true
		}
		// The client has yet to prove that it has the key. If it cannot, its connection is closed, and
		// leaves the list.
		if t, ok := conn.(*tracked); ok {
			s.watchConn(t, c)
		}
		return nil
	}
	return cfg
}

// reject counts and logs a connection that a server refuses.
func (s *Source) reject(conn net.Conn, err error) {
	reason := reasonOfHandshake(err)
	s.m.rejected.WithLabelValues(string(reason)).Inc()
	// Anybody can cause such lines, so they are limited.
	if s.log.allow() {
		s.cfg.Logger.Warn("refused a connection", "remote", conn.RemoteAddr().String(), "addr", conn.LocalAddr().String(), "reason", string(reason), "err", rhumb.Message(err))
	}
}

// clientConfig returns the configuration of one dialled connection.
func (s *Source) clientConfig(t *tracked, want Want, protocols []string, host string) *tls.Config {
	cfg, cur := s.baseConfig(protocols), s.current.Load()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if cur.pair == nil {
			// An empty certificate and not an error: the handshake continues, and the server
			// decides whether it accepts anonymous clients.
			return &tls.Certificate{}, nil
		}
		return cur.pair, nil
	}
	// Sent for proxies that route by name. The server ignores the name.
	cfg.ServerName = host
	// A server is identified by its name in the cluster, which VerifyConnection checks together
	// with the chain, and not by its host name, which the standard verification would check.
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		v := s.verifier.Load()
		p, err := v.Verify(state.PeerCertificates, want, s.cfg.Wall())
		if err != nil {
			return err
		}
		s.watchConn(t, &Conn{want: want, state: state, own: cur.leaf(), peer: p, named: true, verifier: v})
		return nil
	}
	return cfg
}

// restrict returns the roles of want that may take a side of a connection.
func restrict(want Want, side func(Role) bool) Want {
	// Callers pass one Want for both directions of a port. Without this step, a user certificate
	// whose usages were wrong could serve as a node's.
	want.Roles = slices.DeleteFunc(slices.Clone(want.Roles), func(r Role) bool { return !side(r) })
	return want
}

// Accept returns the server side of a TLS connection over conn. The handshake happens on the first use.
func (s *Source) Accept(conn net.Conn, want Want, protocols ...string) *tls.Conn {
	t := &tracked{Conn: conn}
	return tls.Server(t, s.serverConfig(t, restrict(want, Role.client), protocols))
}

// Dial returns the client side of a TLS connection over conn. The handshake happens on the first use.
func (s *Source) Dial(conn net.Conn, want Want, host string, protocols ...string) *tls.Conn {
	t := &tracked{Conn: conn}
	return tls.Client(t, s.clientConfig(t, restrict(want, Role.server), protocols, host))
}

// ClientConfig returns the TLS configuration of a client for programs that need one, such as an
// http.Transport. Its connections are verified when they are made, and not again later.
//
// Callers that keep connections for long should use Dial or ClientCredentials, which put the
// connections under watch.
func (s *Source) ClientConfig(want Want, protocols ...string) *tls.Config {
	want = restrict(want, Role.server)
	cfg := s.baseConfig(protocols)
	cfg.InsecureSkipVerify = true // VerifyConnection verifies the chain and the name
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if cur := s.current.Load(); cur.pair != nil {
			return cur.pair, nil
		}
		return &tls.Certificate{}, nil
	}
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		_, err := s.verifier.Load().Verify(state.PeerCertificates, want, s.cfg.Wall())
		return err
	}
	return cfg
}

// Listener accepts TLS connections, which the Source watches.
type Listener struct {
	net.Listener
	src       *Source
	want      Want
	protocols []string
}

// NewListener returns a listener for an http.Server. HTTPContext lets its handlers see the
// certificate of the client.
func (s *Source) NewListener(l net.Listener, want Want, protocols ...string) *Listener {
	return &Listener{l, s, want, protocols}
}

// Accept returns the next connection. The server performs the handshake, so that a slow client
// delays no other.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.src.Accept(conn, l.want, l.protocols...), nil
}

// ErrorLog returns the logger of an http.Server whose listener is a Listener. It counts failed
// handshakes, which the server reports there only, and passes lines on at debug level: anybody can
// cause them.
//
// The text is the only interface: net/http reports a failed handshake to nobody else.
func (s *Source) ErrorLog() *log.Logger { return log.New(&errorLog{s}, "", 0) }

type errorLog struct{ src *Source }

// Write implements io.Writer. The HTTP server writes one line at a time.
func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	// An invalid certificate was counted where it was verified.
	if strings.Contains(text, "TLS handshake error") && !strings.Contains(text, "identity.Verify") {
		l.src.m.rejected.WithLabelValues(string(ReasonHandshake)).Inc()
	}
	l.src.cfg.Logger.Debug("HTTP server", "line", text)
	return len(line), nil
}

// creds implements credentials.TransportCredentials.
type creds struct {
	src  *Source
	want Want
	// protocols are the application protocols that one side offers, or the other side accepts.
	protocols []string
}

// ServerCredentials returns the credentials of a gRPC server. The server may accept other protocols on its port too: whoever calls
// ServerHandshake must not hand a connection with one of these to gRPC. A client that offers several gets another one before that of gRPC.
func (s *Source) ServerCredentials(want Want, others ...string) credentials.TransportCredentials {
	return &creds{s, want, append(slices.Clone(others), grpcProtocols...)}
}

// ClientCredentials returns the credentials of gRPC clients, or of clients of another protocol if one is given.
func (s *Source) ClientCredentials(want Want, protocol ...string) credentials.TransportCredentials {
	if len(protocol) == 0 {
		protocol = grpcProtocols
	}
	return &creds{s, want, protocol}
}

// AuthInfo is what gRPC knows about a connection.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Conn *Conn
	// State is the state after the handshake. Unlike Conn.State, which is that of the verification, it can export keying material
	// for channel binding.
	State tls.ConnectionState
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "tls" }

// ServerHandshake performs the handshake of a server.
func (c *creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	// gRPC calls this function in a goroutine of the connection, so a slow handshake delays nobody
	// else.
	conn := c.src.Accept(raw, c.want, c.protocols...)
	info, err := c.handshake(context.Background(), conn)
	if err != nil {
		// An invalid certificate was reported where it was verified.
		if ReasonOf(err) == ReasonNone {
			c.src.reject(raw, err)
		}
		// Not raw, because a connection that failed after the verification is in the list.
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, info, nil
}

// ClientHandshake performs the handshake of a client.
func (c *creds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	host, _, err := net.SplitHostPort(authority)
	if err != nil {
		host = authority
	}
	conn := c.src.Dial(raw, c.want, host, c.protocols...)
	info, err := c.handshake(ctx, conn)
	if err == nil {
		// Only now has the server proved that the certificate is its own.
		err = c.src.pinCluster(info.Conn.peer.Cluster)
	}
	if err != nil {
		c.src.m.refused.WithLabelValues(string(reasonOfHandshake(err))).Inc()
		_ = conn.Close()
		c.src.holdOff(ctx, authority, err)
		return nil, nil, explainHandshake(raw.RemoteAddr(), err)
	}
	c.src.holds.Delete(authority)
	return &clientConn{conn, c.src}, info, nil
}

// holdOff waits before a failed handshake is reported, since gRPC tries again soon after the report.
//
// A node that has no place for another handshake closes the connection. After a restart of a cluster
// all clients connect at once, and each attempt costs both sides a part of a handshake. Without growing
// pauses, the attempts that are refused leave no time for those that are accepted. A certificate that
// was refused is reported at once: another attempt would not help.
//
// Package api bounds the connections that one process opens at a time, which does not bound a thousand
// processes with one connection each. The pauses of gRPC end at a second, because a node that restarts must be
// found soon; a thousand attempts a second would be more handshakes than a node completes.
func (s *Source) holdOff(ctx context.Context, authority string, err error) {
	if ReasonOf(err) != ReasonNone {
		return
	}
	before, _ := s.holds.Load(authority)
	n, _ := before.(int)
	s.holds.Store(authority, n+1)
	most := min(holdMin<<min(n, holdDoublings), holdMax)
	// Half of the pause is random, or the clients would return together.
	timer := time.NewTimer(most/2 + rand.N(most/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// handshake completes a handshake in bounded time.
func (c *creds) handshake(ctx context.Context, conn *tls.Conn) (AuthInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		return AuthInfo{}, err
	}
	// gRPC demands HTTP/2. A server that speaks another protocol with a valid certificate is
	// another port of a node, usually the admin port.
	if !slices.Contains(c.protocols, conn.ConnectionState().NegotiatedProtocol) {
		return AuthInfo{}, errors.New("the other side does not speak HTTP/2 over TLS")
	}
	t, ok := conn.NetConn().(*tracked)
	if !ok || t.conn.Load() == nil {
		panic("identity: a connection without the watch over it")
	}
	return AuthInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, t.conn.Load(), conn.ConnectionState()}, nil
}

// Info implements credentials.TransportCredentials.
func (c *creds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (c *creds) Clone() credentials.TransportCredentials {
	return &creds{c.src, c.want, c.protocols}
}

// OverrideServerName implements credentials.TransportCredentials. Host names have no meaning here.
func (c *creds) OverrideServerName(string) error { return nil }

// clientConn explains why the server ended the connection. In TLS 1.3 a client learns that the
// server refused its certificate only when it reads from the connection.
//
// The explanation cannot be part of the handshake: it has succeeded from the point of view of the
// client by the time the server has looked at the certificate.
type clientConn struct {
	*tls.Conn
	src *Source
}

// Read implements net.Conn.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.src.explainAlert(c.RemoteAddr(), err)
	}
	return n, err
}

// Write implements net.Conn. If the server has closed the connection, the alert that says why is still to be
// read: this side may write before it reads.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil {
		return n, nil
	}
	_ = c.SetReadDeadline(time.Now().Add(alertWait))
	if _, alert := c.Conn.Read(make([]byte, 1)); alert != nil {
		if said := c.src.explainAlert(c.RemoteAddr(), alert); said != alert {
			err = said
		}
	}
	return n, err
}

// explainAlert explains an alert of the server about the certificate of this client.
func (s *Source) explainAlert(remote net.Addr, err error) error {
	own := "no certificate"
	if name, ok := s.Name(); ok {
		own = "the certificate of " + name.Short() + " of cluster " + name.Cluster.String() + " (serial " + SerialOf(s.Leaf()) + ")"
	}
	// The text, because package tls does not export the numbers of alerts that it receives.
	switch text := err.Error(); {
	case strings.Contains(text, "certificate required"):
		return plainError{rhumb.Ef("identity.Read", rhumb.Unauthenticated, "%s wants a certificate, and this client has none; give --cert and --key", remote), markOwn}
	case strings.Contains(text, "remote error: tls: bad certificate"):
		return plainError{rhumb.Ef("identity.Read", rhumb.Unauthenticated, "%s refused %s; its log says why", remote, own), markOwn}
	}
	return err
}

// plainError is an error whose text is for people and omits the operation. gRPC passes on the text of an error and
// nothing else, so a mark at the start of the text carries what ParseRefusal returns.
type plainError struct {
	err  *rhumb.Error
	mark string
}

func (e plainError) Error() string { return e.mark + rhumb.Message(e.err) }
func (e plainError) Unwrap() error { return e.err }

// The marks of refusals.
const (
	markOwn     = "(certificate refused) "
	markOther   = "(certificate not accepted) "
	markCluster = "(wrong cluster) "
)

// Refusal classifies why a server refuses a connection in a way that waiting does not change.
type Refusal struct {
	// Kind is Unauthenticated or WrongCluster.
	Kind rhumb.Kind
	// Own is set if the server refused the certificate of this side, or the lack of one. Other servers of the
	// cluster would do so too.
	Own bool
}

// ParseRefusal returns the refusal that the text of a failed connection begins with, and the text for people. ok is
// false for all other texts.
func ParseRefusal(text string) (r Refusal, rest string, ok bool) {
	for mark, r := range map[string]Refusal{
		markOwn: {rhumb.Unauthenticated, true}, markOther: {rhumb.Unauthenticated, false}, markCluster: {rhumb.WrongCluster, false},
	} {
		if rest, ok := strings.CutPrefix(text, mark); ok {
			return r, rest, true
		}
	}
	return Refusal{}, text, false
}

// explainHandshake explains a handshake that failed at the client.
func explainHandshake(remote net.Addr, err error) error {
	const op rhumb.Op = "identity.ClientHandshake"
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return plainError{rhumb.Ef(op, rhumb.Unauthenticated, "%s does not speak TLS; a node that was started with --insecure is reached with --insecure, on the same machine only", remote), markOther}
	}
	if ReasonOf(err) != ReasonNone {
		mark := markOther
		if rhumb.KindOf(err) == rhumb.WrongCluster {
			mark = markCluster
		}
		return plainError{&rhumb.Error{Op: op, Kind: rhumb.KindOf(err), Err: err}, mark}
	}
	return plainError{rhumb.Ef(op, rhumb.Unavailable, "TLS with %s failed: %v", remote, err), ""}
}

// reasonOfHandshake classifies a failed handshake.
func reasonOfHandshake(err error) Reason {
	if strings.Contains(err.Error(), "client didn't provide a certificate") {
		return ReasonMissing
	}
	return cmp.Or(ReasonOf(err), ReasonHandshake)
}

// throttle limits log lines.
//
// A counter has all refusals; the log needs one example of the fault, and must not be a
// way for strangers to fill the disk.
type throttle struct {
	mu   sync.Mutex
	last time.Time
}

// allow reports whether a line may be logged now.
func (t *throttle) allow() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.last) < logInterval {
		return false
	}
	t.last = now
	return true
}

// ConnFromContext returns the connection on which a gRPC or HTTP request arrived. Its pointer
// identifies the connection while it is open. ok is false for a connection without TLS.
func ConnFromContext(ctx context.Context) (c *Conn, ok bool) {
	if t, ok := ctx.Value(connKey{}).(*tracked); ok {
		c := t.conn.Load()
		return c, c != nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	info, ok := p.AuthInfo.(AuthInfo)
	return info.Conn, ok && info.Conn != nil
}

// PeerFromContext returns the verified bearer of the certificate of the client of a gRPC or HTTP
// request. ok is false if the client has none.
func PeerFromContext(ctx context.Context) (Peer, bool) {
	c, ok := ConnFromContext(ctx)
	if !ok {
		return Peer{}, false
	}
	return c.Peer()
}
