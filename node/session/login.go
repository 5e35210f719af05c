package session

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"time"

	"github.com/xdg-go/scram"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/identity"
)

const (
	// messageMax bounds a message of a client in bytes. A name takes up to three times its size.
	// Names may contain escaped commas and equal signs.
	messageMax = 1 << 10
	// retryBusy and retryFull are the recommended waits if too many logins are in progress, or too many
	// connections open.
	retryBusy = 200 * time.Millisecond
	retryFull = time.Second
)

// errWrong is the answer to every login that fails because of the user or the password, so that nobody learns
// which of them is wrong.
var errWrong = rhumb.E("session.login", rhumb.Unauthenticated, "the user or the password is wrong")

// Service implements the service Session.
type Service struct {
	rhumbpb.UnimplementedSessionServer
	m *Manager
}

// Register registers the service.
func (m *Manager) Register(r grpc.ServiceRegistrar) {
	rhumbpb.RegisterSessionServer(r, &Service{m: m})
}

type loginStream = grpc.BidiStreamingServer[rhumbpb.AuthenticateRequest, rhumbpb.AuthenticateResponse]

// Authenticate performs one login.
func (s *Service) Authenticate(stream loginStream) error {
	m := s.m
	if m.cfg.Insecure {
		return api.Status(rhumb.E("session.login", rhumb.InvalidArgument, "the node is insecure and has no logins; connect without --user"), api.Hint{})
	}
	k, ok := stream.Context().Value(callKey{}).(*call)
	if !ok {
		return api.Status(access.ErrAnonymous, api.Hint{})
	}
	// Refused rather than queued: a client that waits here could log in to another node.
	select {
	case m.logins <- struct{}{}:
		defer func() { <-m.logins }()
	default:
		m.m.logins.WithLabelValues(loginBusy).Inc()
		return api.Status(&rhumb.Error{Op: "session.login", Kind: rhumb.Overloaded, RetryAfter: retryBusy, Msg: "too many logins are in progress; retry later"}, api.Hint{})
	}
	// One at a time: a connection has one session.
	if !k.conn.setBusy() {
		return api.Status(&rhumb.Error{Op: "session.login", Kind: rhumb.Overloaded, RetryAfter: retryBusy, Msg: "another login is in progress on this connection"}, api.Hint{})
	}
	done := make(chan error, 1)
	late := time.NewTimer(loginTimeout)
	defer late.Stop()
	// A client may stop in the middle of the exchange, which only the end of this function notices.
	m.calls.Go(func() {
		defer k.conn.clearBusy()
		done <- m.logIn(stream, k.conn)
	})
	select {
	case err := <-done:
		return api.Status(err, api.Hint{})
	case <-late.C:
		m.m.logins.WithLabelValues(loginBroken).Inc()
		return api.Status(rhumb.Ef("session.login", rhumb.DeadlineExceeded, "the login was not complete within %v", loginTimeout), api.Hint{})
	}
}

func (c *connState) setBusy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy {
		return false
	}
	c.busy = true
	return true
}

func (c *connState) clearBusy() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
}

// attempt is the state of one login.
//
// The SCRAM library asks for a user by a callback and takes only a verifier. The attempt passes the
// findings of the callback to the code that decides.
type attempt struct {
	try
	user *access.User // nil if the login cannot succeed
	wait time.Duration
}

// logIn performs the exchange.
func (m *Manager) logIn(stream loginStream, c *connState) error {
	first, err := receive(stream)
	if err != nil {
		m.m.logins.WithLabelValues(loginBroken).Inc()
		return err
	}
	start := time.Now()
	p := m.cfg.Policy()
	if p == nil {
		return errNoUsers
	}
	a := attempt{try: try{from: c.gate.From()}}
	conv, err := m.converse(stream, p, &a)
	if err != nil {
		return err
	}
	challenge, err := conv.Step(first)
	switch {
	// Before the other errors: while an attempt has to wait, not even its form is examined.
	case a.wait > 0:
		return m.refuseEarly(a.try, c, a.wait)
	case err != nil:
		m.m.logins.WithLabelValues(loginBroken).Inc()
		return rhumb.Ef("session.login", rhumb.InvalidArgument, "the first message of the login is invalid: %v; logins need SCRAM-SHA-256 with the channel binding tls-exporter", err)
	}
	if err := stream.Send(&rhumbpb.AuthenticateResponse{Message: []byte(challenge)}); err != nil {
		return err
	}
	final, err := receive(stream)
	if err != nil {
		// Whoever leaves after the challenge has not tried a password.
		m.m.logins.WithLabelValues(loginBroken).Inc()
		return err
	}
	signature, wait, right := "", time.Duration(0), false
	wait, right = m.judge(a.try, func() bool {
		signature, err = conv.Step(final)
		// A user without a verifier has a mock one, which no proof matches; a.user is checked all the same.
		return err == nil && conv.Valid() && a.user != nil
	})
	switch {
	case wait > 0:
		return m.refuseEarly(a.try, c, wait)
	case !right:
		return m.refuse(stream.Context(), p, a.try, c, errWrong)
	}
	// Only who knows the password learns that the user is disabled. The policy may have changed.
	p = m.cfg.Policy()
	if err := checkUser(p, a.user.Name, a.user.Credentials); err != nil {
		m.back.failed(a.try, time.Now())
		return m.refuse(stream.Context(), p, a.try, c, err)
	}
	return m.accept(stream, c, &a, signature, start)
}

// judge examines a password and counts a wrong one, unless the try has to wait. Many attempts may have passed the first
// check before any of them failed; here they are examined one after the other, so that those after the first few wait.
// examine must not block. The failure counts before the answer, so that nobody can try again before that.
func (m *Manager) judge(t try, examine func() bool) (wait time.Duration, right bool) {
	m.examining.Lock()
	defer m.examining.Unlock()
	now := time.Now()
	if wait = m.back.check(t, now); wait > 0 {
		return wait, false
	}
	if right = examine(); !right {
		m.back.failed(t, now)
	}
	return 0, right
}

// refuseEarly records an attempt that was not examined.
func (m *Manager) refuseEarly(t try, c *connState, wait time.Duration) error {
	m.m.logins.WithLabelValues(loginDelayed).Inc()
	m.RecordFailure(audit.Event{Kind: audit.LoginFailed, Caller: "user " + t.user, Address: c.gate.RemoteAddr().String(), Outcome: rhumb.Overloaded.String(), Detail: "refused after earlier failures"})
	return tooEarly(wait)
}

// refuse records a failed login in the metrics and the audit log, and returns why. If it is not sure that p is what the cluster
// has, it records nothing and returns another error.
func (m *Manager) refuse(ctx context.Context, p *access.Policy, t try, c *connState, why error) error {
	if err := m.confirm(ctx, p, t); err != nil {
		return err
	}
	m.m.logins.WithLabelValues(loginWrong).Inc()
	m.RecordFailure(audit.Event{Kind: audit.LoginFailed, Caller: "user " + t.user, Address: c.gate.RemoteAddr().String(), Outcome: rhumb.Unauthenticated.String(), Detail: rhumb.Message(why)})
	return why
}

// accept begins the session and sends the token.
func (m *Manager) accept(stream loginStream, c *connState, a *attempt, signature string, start time.Time) error {
	if !c.gate.Authenticated() {
		return errFull
	}
	token, err := c.begin(a.user, time.Now(), m.cfg.Lifetime)
	if err != nil {
		return err
	}
	m.back.succeeded(a.try)
	m.m.logins.WithLabelValues(loginOK).Inc()
	m.m.seconds.Observe(time.Since(start).Seconds())
	m.recordLogin(audit.Event{Kind: audit.Login, Caller: "user " + a.user.Name, Address: c.gate.RemoteAddr().String(), Outcome: audit.OutcomeOK, Policy: m.cfg.Policy().Revision()})
	return stream.Send(&rhumbpb.AuthenticateResponse{Message: []byte(signature), Token: token, LifetimeSeconds: uint32(m.cfg.Lifetime.Seconds())})
}

// receive returns the next message of a client.
func receive(stream loginStream) (string, error) {
	q, err := stream.Recv()
	if err != nil {
		return "", err
	}
	if len(q.Message) > messageMax {
		return "", rhumb.Ef("session.login", rhumb.TooLarge, "the message has %d bytes; messages of a login have at most %d", len(q.Message), messageMax)
	}
	return string(q.Message), nil
}

// converse begins the conversation of an attempt on the connection of a stream.
func (m *Manager) converse(stream loginStream, p *access.Policy, a *attempt) (*scram.ServerConversation, error) {
	const op rhumb.Op = "session.login"
	pr, ok := peer.FromContext(stream.Context())
	if !ok {
		return nil, rhumb.E(op, rhumb.Internal, "the connection is unknown")
	}
	info, ok := pr.AuthInfo.(identity.AuthInfo)
	if !ok {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "a login needs TLS")
	}
	binding, err := scram.NewTLSExporterBinding(&info.State)
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Internal, err)
	}
	return m.converseWith(p, a, binding)
}

// converseWith begins the conversation of an attempt.
func (m *Manager) converseWith(p *access.Policy, a *attempt, binding scram.ChannelBinding) (*scram.ServerConversation, error) {
	server, err := scram.SHA256.NewServer(func(name string) (scram.StoredCredentials, error) {
		v := m.lookUp(p, name, a)
		if a.wait = m.back.check(a.try, time.Now()); a.wait > 0 {
			return scram.StoredCredentials{}, tooEarly(a.wait)
		}
		return scram.StoredCredentials{KeyFactors: scram.KeyFactors{Salt: string(v.Salt), Iters: v.Iterations}, StoredKey: v.StoredKey, ServerKey: v.ServerKey}, nil
	})
	if err != nil {
		return nil, rhumb.WrapKind("session.login", rhumb.Internal, err)
	}
	// Required: a login without binding could be relayed by whoever has the key of one node.
	return server.NewConversationWithChannelBindingRequired(binding), nil
}

// lookUp returns the verifier of a user, or one that no password matches.
func (m *Manager) lookUp(p *access.Policy, name string, a *attempt) access.Verifier {
	// A record of a name that nobody can have needs no more memory than others.
	if access.ValidateName("user", name) != nil {
		name = "(invalid)"
	}
	a.try.user = name
	// Computed for users that exist too. Else the time of the answer would reveal who exists.
	mock := m.mockVerifier(name)
	if u, ok := p.User(name); ok && !u.Verifier.IsZero() {
		a.user, a.try.credentials = u, u.Credentials
		return u.Verifier
	}
	return mock
}

// mockVerifier returns the verifier of a user that does not exist. It is the same each time, and the same on all
// nodes that know the secret of the cluster, as that of a user is.
//
// An answer "no such user" would let anybody list the users. A random salt would too: asking twice
// would show whether the salt changes. And a salt that differs between nodes would, for whoever
// asks two of them.
func (m *Manager) mockVerifier(name string) access.Verifier {
	key := m.mock[:]
	if m.cfg.Secret != nil {
		if s := m.cfg.Secret(); len(s) > 0 {
			key = s
		}
	}
	// Derived rather than stored: there are more names than memory.
	derive := func(what string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte("rhumb mock " + what + " of " + name))
		return h.Sum(nil)
	}
	return access.Verifier{Iterations: login.Iterations, Salt: derive("salt")[:16], StoredKey: derive("stored key"), ServerKey: derive("server key")}
}
