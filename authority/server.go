package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
)

// Bounds of the server.
const (
	bodySizeMax   = 64 << 10
	headerSizeMax = 8 << 10
	// connsMax bounds the connections whose node was answered, and again those of strangers, of which one address
	// may hold half. Nodes close a connection after each request, so few are open at a time.
	connsMax         = 256
	handshakeTimeout = gate.HandshakeTimeout // also for the header of a request
	requestTimeout   = 15 * time.Second
	idleTimeout      = 30 * time.Second
	stopTimeout      = 5 * time.Second
)

// serverName is the name in the certificates of servers. All servers of one authority share it:
// they are interchangeable, and nodes check only the role.
const serverName = "server"

// Server answers requests of nodes over HTTPS.
//
// The server is the part of the authority that strangers can reach, and so it is kept small: it
// decodes a document, calls one method of Authority and encodes the result. All decisions are made
// in Authority, with the ledger locked, so the command line and the server cannot reach different
// ones.
type Server struct {
	a    *Authority
	http *http.Server
	// failures bounds guesses. It is consulted before the body of a request is read.
	failures *failureLimit
	// refusals bounds the lines about refused requests of all addresses together.
	refusals *gate.Pace
	// requests counts answers, and issues counts failures to make a certificate for the server. The
	// gate counts refused connections.
	requests *prometheus.CounterVec
	issues   prometheus.Counter
	registry *prometheus.Registry

	mu   sync.Mutex // guards pair and keys
	pair *tls.Certificate
	keys *keys // that signed pair
}

// NewServer returns the server of an authority.
func NewServer(a *Authority) (*Server, error) {
	s := &Server{
		a: a, failures: newFailureLimit(), refusals: newRefusalPace(), registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rhumb_authority_requests_total", Help: "Requests by path and by the kind of the error, ok without one.",
		}, []string{"path", "result"}),
		issues: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rhumb_authority_certificate_failures_total", Help: "Failed attempts of the server to make its own certificate.",
		}),
	}
	s.registry.MustRegister(s.requests, s.issues)
	s.registry.MustRegister(a.renewals.Collectors()...)
	// Patterns with a method: other methods and paths are refused by the mux without reaching code
	// of this package.
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathLive, s.serveLive)
	mux.HandleFunc("POST "+PathEnrol, s.handle(PathEnrol, s.enrol))
	mux.HandleFunc("POST "+PathRenew, s.handle(PathRenew, s.renew))
	mux.HandleFunc("POST "+PathCheck, s.handle(PathCheck, s.check))
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	s.http = &http.Server{
		Handler: s.dated(mux), ReadHeaderTimeout: handshakeTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: headerSizeMax, ErrorLog: slog.NewLogLogger(quiet{a.logger.Handler()}, slog.LevelDebug), Protocols: new(http.Protocols),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			// Any certificate or none: handlers decide, because enrolment needs none.
			ClientAuth:             tls.RequestClientCert,
			SessionTicketsDisabled: true,
			GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate() },
		},
	}
	// The handlers report to the gate who was identified.
	s.http.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if secured, ok := c.(*tls.Conn); ok {
			c = secured.NetConn()
		}
		return context.WithValue(ctx, gateKey{}, c)
	}
	// HTTP/1 only: a connection then carries one request at a time.
	s.http.Protocols.SetHTTP1(true)
	// A failure shows at the start and not with the first node.
	if _, err := s.certificate(); err != nil {
		return nil, err
	}
	return s, nil
}

// Serve answers requests until ctx ends, and then finishes those in progress.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	const op rhumb.Op = "authority.Serve"
	// Requests in progress are finished: the record of a certificate is on disk before its answer
	// is sent, and a node would have to ask again.
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if s.http.Shutdown(late) != nil {
			_ = s.http.Close()
		}
	})
	// The bounds are below TLS, because a handshake is a computation that a stranger can cause at the server. A stranger's
	// connection has ten seconds and 128 KiB, more than any request needs, and makes room for another one after a second. So
	// idle and slow connections delay a node that enrols, and do not keep it out.
	g := gate.New(l, gate.Config{Port: "authority", Connections: connsMax, Early: connsMax})
	for _, c := range g.Collectors() {
		s.registry.MustRegister(c)
		defer s.registry.Unregister(c)
	}
	err := s.http.ServeTLS(g, "", "")
	_ = g.Close() // the server has closed it, unless it failed
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return rhumb.WrapKind(op, rhumb.Unavailable, err)
}

// gateKey is the key of the connection in the context of a request.
type gateKey struct{}

// admit says that the caller of a request proved who it is, so that its connection is not taken for a stranger's any more. If
// there are too many such connections, the answer is the last one on this connection.
func admit(w http.ResponseWriter, r *http.Request) {
	// Tests call handlers without a connection.
	if c, ok := r.Context().Value(gateKey{}).(*gate.Conn); ok && !c.Authenticated() {
		w.Header().Set("Connection", "close")
	}
}

// Reload reads the files of the keys again. It is for the signal that asks daemons to do so: the server reads changed files
// with the next request anyway.
func (s *Server) Reload() {
	s.a.forget()
	if _, err := s.certificate(); err != nil {
		s.a.logger.Error("the files of the authority cannot be read again", "err", rhumb.Message(err))
		return
	}
	s.a.logger.Info("the files of the authority were read again; the ledger is read with each request anyway")
}

// quiet is a handler that demotes the messages of net/http: failed handshakes of strangers are no
// news.
type quiet struct{ slog.Handler }

// Enabled reports whether debug messages are wanted.
func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

// certificate returns the certificate of the server, and makes another one at two thirds of its
// life or after a rotation.
func (s *Server) certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, err := s.a.load()
	now := s.a.wall()
	if err == nil {
		// Pointers are compared: load returns the same set until a file has changed.
		if s.pair != nil && s.keys == k && now.Before(renewalTime(s.pair.Leaf.NotBefore, s.pair.Leaf.NotAfter)) {
			return s.pair, nil
		}
		var pair *tls.Certificate
		if pair, err = s.newPair(k); err == nil {
			s.pair, s.keys = pair, k
			return pair, nil
		}
	}
	s.issues.Inc()
	// The old one still serves until it expires.
	if s.pair != nil && now.Before(s.pair.Leaf.NotAfter) {
		s.a.logger.Warn("cannot renew the certificate of the authority's server; the old one stays in use", "err", err, "expires", s.pair.Leaf.NotAfter)
		return s.pair, nil
	}
	return nil, err
}

// renewalTime returns when a certificate is to be renewed: after two thirds of its life.
func renewalTime(from, to time.Time) time.Time { return from.Add(to.Sub(from) * 2 / 3) }

// newPair makes a key and a certificate of the server. The key exists only in memory.
func (s *Server) newPair(k *keys) (*tls.Certificate, error) {
	// The key is never stored. A copy of the directory therefore does not contain the means to play
	// the server with an old certificate.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	var hosts []string
	for _, addr := range k.addresses {
		host, _, _ := net.SplitHostPort(addr) // validated when the file was read
		hosts = append(hosts, host)
	}
	name := identity.Name{Cluster: s.a.cluster, Role: identity.RoleAuthority, Name: serverName}
	chain, err := s.a.issue(order{name: name, pub: key.Public(), life: NodeLife, hosts: hosts, why: "serve"})
	if err != nil {
		return nil, err
	}
	pair := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	// The roots too: a node that enrols has only the hash of a key, and needs its certificate.
	for _, c := range k.roots {
		pair.Certificate = append(pair.Certificate, c.Raw)
	}
	return pair, nil
}

// dated sets the Date of all answers to the time of the authority, with which nodes compare their
// clocks.
func (s *Server) dated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Set here so that net/http does not: its Date is the clock of the machine, and tests and
		// the ledger use another one.
		w.Header().Set("Date", s.a.wall().UTC().Format(http.TimeFormat))
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// serveLive answers everybody. The Date of the answer is compared with the clock of the node.
func (s *Server) serveLive(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// serveMetrics answers operators and this machine only.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if !isLoopback(r.RemoteAddr) {
		k, err := s.a.load()
		if err == nil {
			v := identity.Verifier{Cluster: s.a.cluster, Authorities: k.roots}
			_, err = v.Verify(r.TLS.PeerCertificates, identity.Want{Roles: []identity.Role{identity.RoleOperator}}, s.a.wall())
		}
		if err != nil {
			s.writeError(w, err)
			return
		}
		admit(w, r)
	}
	promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// isLoopback reports whether a request was sent from this machine. Forwarded headers are not
// considered: the server is not meant to run with a proxy in front.
func isLoopback(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// handle wraps a request: bounds, errors and metrics.
func (s *Server) handle(path string, f func(r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Before anything reads: a body without a bound could be as long as the connection lives.
		r.Body = http.MaxBytesReader(w, r.Body, bodySizeMax)
		who := sourceOf(r)
		// Only failures count, so that many nodes with one address, such as the exit of a private
		// network, can enrol together.
		doc, err := any(nil), s.failures.check(who, s.a.wall())
		// Nor do the failures of others keep out a member that has proved who it is.
		if err == nil || s.isMember(r) {
			doc, err = f(r)
			if isSuspicious(err) {
				s.failures.count(who, s.a.wall())
			}
		}
		if err != nil {
			s.requests.WithLabelValues(path, rhumb.KindOf(err).String()).Inc()
			if s.refusals.Take("", s.a.wall()) == 0 {
				s.a.logger.Warn("a request to the authority was refused", "path", path, "remote", r.RemoteAddr, "err", rhumb.Message(err))
			}
			s.writeError(w, err)
			return
		}
		s.requests.WithLabelValues(path, "ok").Inc()
		admit(w, r)
		s.writeJSON(w, http.StatusOK, doc)
	}
}

// sourceOf returns the source of a request for limits, as gate.AddressOf describes.
func sourceOf(r *http.Request) netip.Addr {
	addr, err := net.ResolveTCPAddr("tcp", r.RemoteAddr) // an address with a number and never a name
	if err != nil {
		return netip.Addr{}
	}
	return gate.AddressOf(addr)
}

// isMember reports whether a request came with a valid certificate of the cluster, whose key the handshake has proved.
func (s *Server) isMember(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	k, err := s.a.load()
	if err != nil {
		return false
	}
	v := identity.Verifier{Cluster: s.a.cluster, Authorities: k.roots}
	_, err = v.Verify(r.TLS.PeerCertificates, identity.Want{Roles: []identity.Role{identity.RoleNode, identity.RoleOperator}}, s.a.wall())
	return err == nil
}

// isSuspicious reports whether an error may be an attempt to guess.
//
// A full disk or a locked ledger is the fault of this side. Counting it would lock out honest nodes
// when the authority recovers.
func isSuspicious(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.Unauthenticated, rhumb.PermissionDenied, rhumb.WrongCluster, rhumb.InvalidArgument:
		return err != nil
	}
	return false
}

// enrol answers a node that has a token and no certificate.
func (s *Server) enrol(r *http.Request) (any, error) {
	var req EnrolRequest
	if err := decodeBody(r.Body, &req); err != nil {
		return nil, err
	}
	grant, err := s.a.Enrol(req)
	if err == nil {
		s.a.logger.Info("a node was enrolled", "node", bearerOf(grant), "remote", r.RemoteAddr, "founder", grant.Founder)
	}
	return grant, err
}

// renew answers a node that presents its certificate. The certificate may have expired;
// Authority.Renew decides.
func (s *Server) renew(r *http.Request) (any, error) {
	var req RenewRequest
	if err := decodeBody(r.Body, &req); err != nil {
		return nil, err
	}
	grant, err := s.a.Renew(r.TLS.PeerCertificates, req)
	if err == nil {
		s.a.logger.Info("the certificate of a node was renewed", "node", bearerOf(grant), "remote", r.RemoteAddr)
	}
	return grant, err
}

// bearerOf returns the name of the node that got a certificate.
func bearerOf(g *Grant) string {
	certs, err := identity.ParseCertificates([]byte(g.Certificate))
	if err != nil {
		return ""
	}
	name, _ := identity.FromCertificate(certs[0])
	return name.Name
}

// check answers a node that wants to know which authorities to trust.
func (s *Server) check(r *http.Request) (any, error) {
	var req CheckRequest
	if err := decodeBody(r.Body, &req); err != nil {
		return nil, err
	}
	standing, err := s.a.Check(r.TLS.PeerCertificates, req)
	return standing, err
}

// decodeBody decodes one JSON document.
func decodeBody(body io.Reader, into any) error {
	const op rhumb.Op = "authority.decodeBody"
	dec := json.NewDecoder(body)
	// Unknown fields are allowed: a newer node may send more.
	err := dec.Decode(into)
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return rhumb.Ef(op, rhumb.TooLarge, "the request has more than %d bytes", large.Limit)
	}
	if err != nil {
		return rhumb.Ef(op, rhumb.InvalidArgument, "the request is not the JSON document that this path takes: %v", err)
	}
	return nil
}

// statuses maps kinds of errors to HTTP.
var statuses = map[rhumb.Kind]int{
	rhumb.InvalidArgument: http.StatusBadRequest, rhumb.TooLarge: http.StatusRequestEntityTooLarge, rhumb.NotFound: http.StatusNotFound,
	rhumb.Unauthenticated: http.StatusUnauthorized, rhumb.PermissionDenied: http.StatusForbidden, rhumb.WrongCluster: http.StatusForbidden,
	rhumb.Overloaded: http.StatusTooManyRequests, rhumb.Unavailable: http.StatusServiceUnavailable, rhumb.Incompatible: http.StatusBadRequest,
}

// writeError writes an error as JSON with the kind, so that nodes decide by the kind whether to ask
// again. An unknown kind is an internal error.
func (s *Server) writeError(w http.ResponseWriter, err error) {
	status, ok := statuses[rhumb.KindOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	var doc ErrorDoc
	doc.Error.Kind, doc.Error.Message = rhumb.KindOf(err).String(), rhumb.Message(err)
	if wait := rhumb.RetryAfterOf(err); wait > 0 {
		doc.Error.RetryAfterMillis = wait.Milliseconds()
	}
	s.writeJSON(w, status, doc)
}

// writeJSON writes a document. An error while writing has no one to be reported to, because the
// client has gone.
func (s *Server) writeJSON(w http.ResponseWriter, status int, doc any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc) // the client went away
}
