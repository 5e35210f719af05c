package session

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/xdg-go/scram"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/freeport"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
	"github.com/rhumbdb/rhumb/node/gate"
)

// password is the password of the user app.
const password = "correct horse"

// verifierOf is computed once: it is slow on purpose.
var verifierOf = sync.OnceValue(func() access.Verifier {
	v, err := login.NewVerifier("app", password)
	if err != nil {
		panic(err)
	}
	return v
})

// world is a node with the services that the tests call.
type world struct {
	rhumbpb.UnimplementedClusterServer
	rhumbpb.UnimplementedKVServer
	t      *testing.T
	ca     *identitytest.Authority
	m      *Manager
	g      *gate.Gate
	server *grpc.Server
	addr   string
	policy atomic.Pointer[access.Policy]

	mu     sync.Mutex
	events []audit.Event
	last   access.Principal // of the last call
}

func newWorld(t *testing.T, change func(*Config)) *world {
	w := &world{t: t, ca: identitytest.New(t)}
	w.setUsers(&access.User{Name: "app", Verifier: verifierOf(), Credentials: 5}, &access.User{Name: "cert", Credentials: 6})
	cfg := Config{
		Policy: w.policy.Load, Limiter: gate.NewLimiter(gate.LimiterConfig{}), Logger: slog.New(slog.DiscardHandler),
		Record: func(e audit.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
	if change != nil {
		change(&cfg)
	}
	w.m = New(cfg)
	// Some tests stop the node and start it again at its address.
	addrs, err := freeport.Take(1)
	if err != nil {
		t.Fatal(err)
	}
	w.listen(addrs[0])
	t.Cleanup(w.m.Close)
	t.Cleanup(func() { w.server.Stop() })
	return w
}

// listen serves the node, after a restart again.
func (w *world) listen(addr string) {
	w.t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr = addr
	w.g = gate.New(l, gate.Config{Port: "test"})
	src := w.source(identity.RoleNode, "eu-1")
	creds := Certified(src.ServerCredentials(identity.Want{Roles: []identity.Role{identity.RoleNode, identity.RoleUser, identity.RoleOperator}, Optional: true}))
	w.server = grpc.NewServer(append(api.ServerOptions(0, creds), grpc.InTapHandle(w.m.Tap(w.g, nil)), grpc.StreamInterceptor(w.m.Stream))...)
	w.m.Register(w.server)
	rhumbpb.RegisterClusterServer(w.server, w)
	rhumbpb.RegisterKVServer(w.server, w)
	go func() { _ = w.server.Serve(w.g) }()
}

// source returns an identity; with an empty name an anonymous one.
func (w *world) source(role identity.Role, name string) *identity.Source {
	w.t.Helper()
	if name == "" {
		return w.ca.Anonymous(w.t)
	}
	return w.ca.Issue(w.t, role, name).Source(w.t)
}

var revision atomic.Uint64

// setUsers replaces the users of the cluster.
func (w *world) setUsers(users ...*access.User) {
	w.policy.Store(access.Compile(nil, revision.Add(1), users, nil))
}

func (w *world) Ping(ctx context.Context, _ *rhumbpb.PingRequest) (*rhumbpb.PingResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, _ = access.FromContext(ctx)
	return &rhumbpb.PingResponse{}, nil
}

// Scan sends pages for ever, or waits if the request has a limit.
func (w *world) Scan(q *rhumbpb.ScanRequest, stream grpc.ServerStreamingServer[rhumbpb.ScanPage]) error {
	for {
		if q.Limit > 0 {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		if err := stream.Send(&rhumbpb.ScanPage{Items: []*rhumbpb.Item{{Value: make([]byte, 1<<10)}}}); err != nil {
			return err
		}
	}
}

// dial connects with credentials and, unless account is nil, with a login.
func (w *world) dial(src *identity.Source, account *login.Account) *grpc.ClientConn {
	w.t.Helper()
	opts := api.DialOptions(nil, src.ClientCredentials(identity.Want{Roles: []identity.Role{identity.RoleNode}}))
	if account != nil {
		opts = append(opts, account.Options()...)
	}
	cc, err := grpc.NewClient("passthrough:///"+w.addr, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// account returns an account of the user app.
func account(pass string) *login.Account {
	return login.NewAccount("app", func() (string, error) { return pass, nil })
}

// ping calls the node and returns how it identified the caller.
func (w *world) ping(cc *grpc.ClientConn) (access.Principal, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	_, err := rhumbpb.NewClusterClient(cc).Ping(ctx, &rhumbpb.PingRequest{})
	if err != nil {
		e, _, _ := api.FromStatus("test", err)
		return access.Principal{}, e
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, nil
}

// kinds returns the kinds of the recorded events.
func (w *world) kinds() (kinds []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// Each way to connect leads to its principal, and none to Unauthenticated.
func TestPrincipals(t *testing.T) {
	w := newWorld(t, nil)
	for _, tc := range []struct {
		name    string
		src     *identity.Source
		account *login.Account
		want    access.Principal
		kind    rhumb.Kind
	}{
		{"nobody", w.source(0, ""), nil, access.Principal{}, rhumb.Unauthenticated},
		{"a node", w.source(identity.RoleNode, "eu-2"), nil, access.Principal{Kind: access.KindNode, Name: "eu-2"}, 0},
		{"an operator", w.source(identity.RoleOperator, "anna"), nil, access.Principal{Kind: access.KindOperator, Name: "anna"}, 0},
		{"a user with a certificate", w.source(identity.RoleUser, "cert"), nil, access.Principal{Kind: access.KindUser, Name: "cert"}, 0},
		{"a certificate of no user", w.source(identity.RoleUser, "gone"), nil, access.Principal{Kind: access.KindUser, Name: "gone"}, 0},
		{"a login", w.source(0, ""), account(password), access.Principal{Kind: access.KindUser, Name: "app"}, 0},
		{"a wrong password", w.source(0, ""), account("wrong horse"), access.Principal{}, rhumb.Unauthenticated},
	} {
		who, err := w.ping(w.dial(tc.src, tc.account))
		if who != tc.want || err != nil && rhumb.KindOf(err) != tc.kind || (err == nil) != (tc.kind == 0) {
			t.Errorf("%s: %v, %v", tc.name, who, err)
		}
	}
	if got := fmt.Sprint(w.kinds()); got != "[login login_failed]" {
		t.Errorf("recorded %s", got)
	}
}

// TestUnreadAuthorization guards callers with a certificate and an authorization that the node does not understand: they chose to be somebody
// else, so they are not whom the certificate names.
func TestUnreadAuthorization(t *testing.T) {
	w := newWorld(t, nil)
	for _, authorization := range []string{"Basic !!!", "bearer lower case", "nonsense", "Bearer nonsense"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", authorization)
		_, err := rhumbpb.NewClusterClient(w.dial(w.source(identity.RoleOperator, "anna"), nil)).Ping(ctx, &rhumbpb.PingRequest{})
		if e, _, _ := api.FromStatus("test", err); err == nil || rhumb.KindOf(e) != rhumb.Unauthenticated {
			t.Errorf("%q: %v", authorization, err)
		}
	}
}

// TestOldUsersRefuseNobody guards that a node calls a password wrong only by users that the cluster has now. A node that has just
// started may have older ones, and its clients would fail everywhere for half a minute.
func TestOldUsersRefuseNobody(t *testing.T) {
	var current atomic.Pointer[access.Policy] // nil while the leader cannot be asked
	w := newWorld(t, func(cfg *Config) {
		cfg.Confirm = func(context.Context) (*access.Policy, error) {
			if p := current.Load(); p != nil {
				return p, nil
			}
			return nil, rhumb.E("test", rhumb.Unavailable, "no leader")
		}
	})
	users := w.policy.Load()
	for _, old := range []*access.User{nil, {Name: "app", Verifier: verifierOf(), Disabled: true, Credentials: 5}, {Name: "app", Credentials: 4}} {
		if w.setUsers(); old != nil {
			w.setUsers(old)
		}
		// More often than a user may fail: no failure may count in the end, because the node was at fault.
		current.Store(users)
		for range freeFailures + 2 {
			// A client that opens comes back when the answer says so.
			if _, err := w.ping(w.dial(w.source(0, ""), account(password))); rhumb.KindOf(err) != rhumb.Unavailable || rhumb.RetryAfterOf(err) <= 0 {
				t.Errorf("with %+v: %v", old, err)
			}
		}
		current.Store(nil)
		if _, err := w.ping(w.dial(w.source(0, ""), account(password))); rhumb.KindOf(err) != rhumb.Unavailable {
			t.Errorf("with %+v and without a leader: %v", old, err)
		}
		// The same client succeeds as soon as the node has the present users.
		w.policy.Store(users)
		current.Store(users)
		if _, err := w.ping(w.dial(w.source(0, ""), account(password))); err != nil {
			t.Errorf("after %+v: %v", old, err)
		}
	}
	if got := w.kinds(); slices.Contains(got, audit.LoginFailed) {
		t.Errorf("recorded %s", got)
	}
	// What is confirmed is final.
	if _, err := w.ping(w.dial(w.source(0, ""), account("wrong horse"))); rhumb.KindOf(err) != rhumb.Unauthenticated {
		t.Errorf("a wrong password: %v", err)
	}
}

// TestSessionsGauge guards that a scrape of the metrics does not hold the lock of the manager while it waits for a connection. A connection
// that ends its session waits for the gate, and the gate for the manager, which adds a connection.
func TestSessionsGauge(t *testing.T) {
	w := newWorld(t, nil)
	if _, err := w.ping(w.dial(w.source(0, ""), account(password))); err != nil {
		t.Fatal(err)
	}
	if n := gaugeOf(t, w.m.m.sessions); n != 1 {
		t.Fatalf("%v sessions", n)
	}
	w.m.mu.Lock()
	conns := slices.Collect(maps.Keys(w.m.conns))
	w.m.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
	}
	var scrape sync.WaitGroup
	scrape.Go(func() { gaugeOf(t, w.m.m.sessions) })
	// Long enough for the scrape to reach the connection, which nobody outside can see.
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		free := false
		for limit := time.Now().Add(5 * time.Second); !free && time.Now().Before(limit); {
			if free = w.m.mu.TryLock(); free {
				w.m.mu.Unlock()
			}
		}
		if !free {
			t.Error("the scrape holds the lock of the manager and waits for a connection")
			break
		}
	}
	for _, c := range conns {
		c.mu.Unlock()
	}
	scrape.Wait()
}

// gaugeOf returns the value of a gauge.
func gaugeOf(t *testing.T, g prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Error(err)
	}
	return m.GetGauge().GetValue()
}

func TestInsecure(t *testing.T) {
	m := New(Config{Insecure: true, Policy: func() *access.Policy { return nil }, Limiter: gate.NewLimiter(gate.LimiterConfig{})})
	defer m.Close()
	who, login, err := m.identify(t.Context(), "Bearer x", nil)
	if who.Kind != access.KindInsecure || login || err != nil {
		t.Errorf("%v, %v, %v", who, login, err)
	}
}

// A token is worth nothing on another connection.
func TestTokenIsBound(t *testing.T) {
	w := newWorld(t, nil)
	var token string
	spy := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		token = strings.Join(md.Get("authorization"), "")
		return invoke(ctx, method, req, reply, cc, opts...)
	})
	src := w.source(0, "")
	opts := append(api.DialOptions(nil, src.ClientCredentials(identity.Want{Roles: []identity.Role{identity.RoleNode}})), account(password).Options()...)
	cc, err := grpc.NewClient("passthrough:///"+w.addr, append(opts, spy)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := w.ping(cc); err != nil || !strings.HasPrefix(token, "Bearer ") {
		t.Fatal(token, err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", token)
	if _, err := rhumbpb.NewClusterClient(w.dial(src, nil)).Ping(ctx, &rhumbpb.PingRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stolen token: %v", err)
	}
}

// A stream of a user ends with Unauthenticated soon after the user may no longer have it, whether the handler
// sends, waits for the client, or waits for something else. So does the next call.
func TestSessionEnds(t *testing.T) {
	type setup struct {
		name   string
		role   identity.Role
		user   string
		change func(*access.User) *access.User // nil drops the user
	}
	for _, s := range []setup{
		{"disabled", 0, "app", func(u *access.User) *access.User { u.Disabled = true; return u }},
		{"dropped", 0, "app", func(*access.User) *access.User { return nil }},
		{"password changed", 0, "app", func(u *access.User) *access.User { u.Credentials++; return u }},
		{"certificate, disabled", identity.RoleUser, "cert", func(u *access.User) *access.User { u.Disabled = true; return u }},
	} {
		for _, mode := range []string{"reading", "not reading", "waiting"} {
			t.Run(s.name+", "+mode, func(t *testing.T) {
				w := newWorld(t, nil)
				var src *identity.Source
				var acc *login.Account
				if s.role == 0 {
					src, acc = w.source(0, ""), account(password)
				} else {
					src = w.source(s.role, s.user)
				}
				cc := w.dial(src, acc)
				q := &rhumbpb.ScanRequest{}
				if mode == "waiting" {
					q.Limit = 1
				}
				stream, err := rhumbpb.NewKVClient(cc).Scan(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if mode != "waiting" {
					if _, err := stream.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				if mode == "not reading" {
					time.Sleep(100 * time.Millisecond) // until flow control stops the node
				}
				var users []*access.User
				if u := s.change(&access.User{Name: s.user, Verifier: verifierOf(), Credentials: 5}); u != nil {
					users = append(users, u)
				}
				start := time.Now()
				w.setUsers(users...)
				if mode == "not reading" {
					time.Sleep(time.Second)
				}
				for err == nil {
					_, err = stream.Recv()
				}
				if status.Code(err) != codes.Unauthenticated {
					t.Errorf("the stream ended with %v", err)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("the stream ended after %v", took)
				}
				if s.name == "password changed" || acc == nil {
					return // the verifier is still that of the password, and the authorization rejects certificates
				}
				_, err = w.ping(cc)
				// The end of the stream may have begun a login, which the node must refuse first.
				for rhumb.KindOf(err) == rhumb.Overloaded && time.Since(start) < 5*time.Second {
					_, err = w.ping(cc)
				}
				if rhumb.KindOf(err) != rhumb.Unauthenticated {
					t.Errorf("the next call: %v", err)
				}
			})
		}
	}
}

// A session is renewed before it expires, under open streams, and a client logs in again after a restart of
// the node, without an error for its caller.
func TestRenewal(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Lifetime = 2 * time.Second })
	cc := w.dial(w.source(0, ""), account(password))
	stream, err := rhumbpb.NewKVClient(cc).Scan(t.Context(), &rhumbpb.ScanRequest{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := w.ping(cc); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("the stream ended: %v", err)
	default:
	}
	if n := len(w.kinds()); n < 2 || n > 6 {
		t.Errorf("%d logins in 4 s", n)
	}
	// Another process has no sessions. Calls fail only while nobody listens.
	w.server.Stop()
	if err := <-ended; status.Code(err) == codes.Unauthenticated {
		t.Errorf("a restart looks like %v", err)
	}
	w.listen(w.addr)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := rhumbpb.NewClusterClient(cc).Ping(ctx, &rhumbpb.PingRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	again, err := rhumbpb.NewKVClient(cc).Scan(ctx, &rhumbpb.ScanRequest{})
	if err == nil {
		_, err = again.Recv()
	}
	if err != nil {
		t.Errorf("a stream after a restart: %v", err)
	}
	// Without calls nobody renews, and the stream ends.
	for err == nil {
		_, err = again.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("an expired session: %v", err)
	}
	if _, err := w.ping(cc); err != nil {
		t.Errorf("after the session expired: %v", err)
	}
}

// Many callers of one connection cause one login, also if it fails.
func TestOneLogin(t *testing.T) {
	w := newWorld(t, nil)
	for _, pass := range []string{password, "wrong horse"} {
		cc := w.dial(w.source(0, ""), account(pass))
		before := len(w.kinds())
		var wait sync.WaitGroup
		for range 50 {
			wait.Go(func() { _, _ = w.ping(cc) })
		}
		wait.Wait()
		if n := len(w.kinds()) - before; n != 1 {
			t.Errorf("%q: %d logins", pass, n)
		}
	}
}

// Nobody learns from challenges which users exist.
func TestMockChallenges(t *testing.T) {
	w := newWorld(t, nil)
	src := w.source(0, "")
	challenge := func(user string) string {
		cc := w.dial(src, nil) // one login at a time for each connection
		s, err := rhumbpb.NewSessionClient(cc).Authenticate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.CloseSend()
		if err := s.Send(&rhumbpb.AuthenticateRequest{Message: []byte("p=tls-exporter,,n=" + user + ",r=abc")}); err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("user %s: %v", user, err)
		}
		_, rest, _ := strings.Cut(string(m.Message), ",") // without the nonce
		return rest
	}
	known, cert, other := challenge("app"), challenge("cert"), challenge("nobody")
	if challenge("app") != known || challenge("nobody") != other || challenge("cert") != cert {
		t.Error("the challenge of a user changes")
	}
	if known == other || cert == other || len(known) != len(other) || len(cert) != len(other) {
		t.Errorf("challenges %q, %q, %q", known, cert, other)
	}
	iterations := func(s string) string { return s[strings.LastIndex(s, ","):] }
	if iterations(known) != iterations(other) {
		t.Error("the iterations differ")
	}
}

// Nothing that a stranger sends as a login is accepted or breaks the node.
func TestBadLogins(t *testing.T) {
	w := newWorld(t, nil)
	cc := w.dial(w.source(0, ""), nil)
	for _, first := range []string{
		"", "x", "n,,n=app,r=abc", "y,,n=app,r=abc", "p=tls-unique,,n=app,r=abc", "p=tls-exporter,,n=app", "p=tls-exporter,,n=" + strings.Repeat("x", 2_000) + ",r=abc",
		"p=tls-exporter,a=cert,n=app,r=abc", "p=tls-exporter,,n=app,r=abc\x00", "p=tls-exporter,,n==app,r=abc", "p=tls-exporter,,m=1,n=app,r=abc", strings.Repeat("\xff", 100),
	} {
		s, err := rhumbpb.NewSessionClient(cc).Authenticate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(&rhumbpb.AuthenticateRequest{Message: []byte(first)})
		_, err = s.Recv()
		for err == nil {
			_ = s.Send(&rhumbpb.AuthenticateRequest{Message: []byte("c=biws,r=abc,p=" + strings.Repeat("A", 44))})
			var m *rhumbpb.AuthenticateResponse
			if m, err = s.Recv(); m.GetToken() != "" {
				t.Fatalf("%q is logged in", first)
			}
		}
		if c := status.Code(err); c == codes.Internal || c == codes.Unknown || c == codes.OK {
			t.Errorf("%q: %v", first, err)
		}
	}
	if _, err := w.ping(w.dial(w.source(0, ""), account(password))); err != nil {
		t.Errorf("afterwards the right user gets %v", err)
	}
}

// Ten thousand wrong passwords are slow to try, keep neither other users nor the right user at another address
// out, and take bounded memory.
func TestTenThousandWrongPasswords(t *testing.T) {
	b := newBackoff()
	now := time.Unix(1e9, 0)
	attacker, home, office := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	b.succeeded(try{"app", home, 1})
	examined, waits := 0, []time.Duration{}
	for range 10_000 {
		now = now.Add(100 * time.Millisecond)
		if b.check(try{"app", attacker, 1}, now) == 0 {
			examined++
			waits = append(waits, b.failed(try{"app", attacker, 1}, now))
		}
	}
	// 1,000 s are 16 waits of a minute and the shorter ones before.
	if examined > 30 || examined < 15 {
		t.Errorf("%d of 10,000 passwords were examined, after waits of %v", examined, waits)
	}
	for i := range waits[1:] {
		if waits[i+1] < waits[i] {
			t.Errorf("waits %v do not grow", waits)
			break
		}
	}
	for _, tc := range []try{{"app", home, 1}, {"app", office, 1}, {"other", home, 1}, {"other", office, 1}} {
		if d := b.check(tc, now); d != 0 {
			t.Errorf("%v waits for %v", tc, d)
		}
	}
	// Addresses without number, for one user: the right user waits at a new address at most seconds, and
	// never where it was before.
	for i := range 100_000 {
		from := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
		now = now.Add(time.Millisecond)
		if b.check(try{"app", from, 1}, now) == 0 {
			b.failed(try{"app", from, 1}, now)
		}
	}
	if d := b.check(try{"app", home, 1}, now); d != 0 {
		t.Errorf("the right user waits for %v at home", d)
	}
	if d := b.check(try{"app", office, 1}, now); d > 2*time.Second {
		t.Errorf("the right user waits for %v at another address", d)
	}
	if n := b.size(); n > 4*recordsMax {
		t.Errorf("%d records", n)
	}
	now = now.Add(2 * forgetAfter)
	if d := b.check(try{"app", attacker, 1}, now); d != 0 {
		t.Errorf("half an hour later the address waits for %v", d)
	}
}

// The back-off works through the service, and its refusals say when to come back.
func TestBackoff(t *testing.T) {
	w := newWorld(t, nil)
	src := w.source(0, "")
	var err error
	tries, start := 0, time.Now()
	for ; tries < 20 && rhumb.KindOf(err) != rhumb.Overloaded; tries++ {
		_, err = w.ping(w.dial(src, account(fmt.Sprintf("wrong horse %d", tries))))
		if k := rhumb.KindOf(err); k != rhumb.Unauthenticated && k != rhumb.Overloaded {
			t.Fatalf("try %d: %v", tries, err)
		}
	}
	if most := freeFailures + 3 + int(time.Since(start)/waitMin); tries < freeFailures || tries > most || rhumb.RetryAfterOf(err) <= 0 {
		t.Errorf("after %d tries: %v, retry after %v", tries, err, rhumb.RetryAfterOf(err))
	}
	// The attempts that were not examined do not lengthen the wait. The answer bounds it: on a busy machine tries are late, so more
	// of them are examined, and the wait has doubled more often.
	time.Sleep(rhumb.RetryAfterOf(err) + waitMin)
	if _, err := w.ping(w.dial(src, account(password))); err != nil {
		t.Errorf("the right password after the wait: %v", err)
	}
}

// TestBackoffOfConcurrentGuesses guards the number of guesses of somebody who begins many logins before the first of them
// fails.
func TestBackoffOfConcurrentGuesses(t *testing.T) {
	const guesses = 24
	w := newWorld(t, nil)
	src := w.source(0, "")
	guesser, err := scram.SHA256.NewClient("app", "wrong horse", "")
	if err != nil {
		t.Fatal(err)
	}
	finish := make([]func() error, guesses)
	for i := range finish {
		s, err := rhumbpb.NewSessionClient(w.dial(src, nil)).Authenticate(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, _ := peer.FromContext(s.Context())
		info := p.AuthInfo.(identity.AuthInfo)
		binding, err := scram.NewTLSExporterBinding(&info.State)
		if err != nil {
			t.Fatal(err)
		}
		conv := guesser.NewConversationWithChannelBinding(binding)
		first, err := conv.Step("")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&rhumbpb.AuthenticateRequest{Message: []byte(first)}); err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("challenge %d: %v", i, err)
		}
		proof, err := conv.Step(string(m.Message))
		if err != nil {
			t.Fatal(err)
		}
		finish[i] = func() error {
			_ = s.Send(&rhumbpb.AuthenticateRequest{Message: []byte(proof)})
			_, err := s.Recv()
			return err
		}
	}
	var wait sync.WaitGroup
	var examined, delayed atomic.Int64
	start := time.Now()
	for _, f := range finish {
		wait.Go(func() {
			switch status.Code(f()) {
			case codes.Unauthenticated:
				examined.Add(1)
			case codes.ResourceExhausted:
				delayed.Add(1)
			}
		})
	}
	wait.Wait()
	// A busy machine takes longer than a wait, after which another guess is due.
	most := freeFailures + 1 + int64(time.Since(start)/waitMin)
	if n := examined.Load(); n > most || n+delayed.Load() != guesses {
		t.Errorf("%d guesses were examined and %d refused; want at most %d examined", n, delayed.Load(), most)
	}
}

// TestBackoffOfConcurrentBasics is the same for HTTP basic authentication, whose guesses wait for a turn.
func TestBackoffOfConcurrentBasics(t *testing.T) {
	w := newWorld(t, nil)
	var wait sync.WaitGroup
	var examined atomic.Int64
	start := time.Now()
	for i := range 24 {
		wait.Go(func() {
			_, err := w.m.Basic(t.Context(), "app", fmt.Sprint("wrong horse ", i), netip.MustParseAddr("10.0.0.1"), "10.0.0.1:1")
			if rhumb.KindOf(err) == rhumb.Unauthenticated {
				examined.Add(1)
			}
		})
	}
	wait.Wait()
	// A busy machine takes longer than a wait, after which another guess is due.
	most := freeFailures + 1 + int64(time.Since(start)/waitMin)
	if n := examined.Load(); n > most {
		t.Errorf("%d guesses were examined; want at most %d", n, most)
	}
}

// TestRandomNamesKeepNobodyOut guards users behind one address against a client there that guesses with names that nobody has.
func TestRandomNamesKeepNobodyOut(t *testing.T) {
	b := newBackoff()
	now, from := time.Unix(1e9, 0), netip.MustParseAddr("10.0.0.1")
	for i := range 10 * addressBurst {
		b.failed(try{fmt.Sprint("nobody", i), from, 0}, now)
	}
	if d := b.check(try{"carl", from, 1}, now); d != 0 {
		t.Errorf("carl, who never logged in here, waits for %v", d)
	}
	// Names that exist share the limit, and then it is the same for all names: it shows nobody who exists.
	for i := range 2 * addressBurst {
		b.failed(try{fmt.Sprint("somebody", i), from, 1}, now)
	}
	if carl, nobody := b.check(try{"carl", from, 1}, now), b.check(try{"nobody", from, 0}, now); carl == 0 || carl != nobody {
		t.Errorf("after wrong passwords for users that exist, carl waits for %v and a name that nobody has for %v", carl, nobody)
	}
}

// TestChangedPasswordProvesNothing guards the exemption of those who have logged in: it ends with their password.
func TestChangedPasswordProvesNothing(t *testing.T) {
	b := newBackoff()
	now, from := time.Unix(1e9, 0), netip.MustParseAddr("10.0.0.1")
	b.succeeded(try{"carl", from, 1})
	for i := range 2 * addressBurst {
		b.failed(try{fmt.Sprint("somebody", i), from, 1}, now)
	}
	if d := b.check(try{"carl", from, 1}, now); d != 0 {
		t.Errorf("carl waits for %v where he has logged in", d)
	}
	if b.check(try{"carl", from, 2}, now) == 0 {
		t.Error("with another password carl is exempt from the limit of the address")
	}
}

// TestMentionedUsersKeepNoRecord guards the records of failures against names that are only mentioned: an attempt that
// is given up after the challenge costs nothing.
func TestMentionedUsersKeepNoRecord(t *testing.T) {
	b := newBackoff()
	now := time.Unix(1e9, 0)
	for i := range 2 * recordsMax {
		b.check(try{fmt.Sprint("user", i), netip.MustParseAddr("10.0.0.1"), 0}, now)
	}
	if n := b.size(); n != 0 {
		t.Errorf("%d records of attempts that did not fail", n)
	}
}

// TestSessionOfOldPassword guards against a session that begins while the password changes, after recheck has seen
// the change.
func TestSessionOfOldPassword(t *testing.T) {
	w := newWorld(t, nil)
	w.setUsers(&access.User{Name: "app", Verifier: verifierOf(), Credentials: 7})
	time.Sleep(2 * recheckInterval)
	c := &connState{m: w.m, calls: map[*call]struct{}{}}
	token, err := c.begin(&access.User{Name: "app", Credentials: 5}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.m.identify(t.Context(), "Bearer "+token, c); rhumb.KindOf(err) != rhumb.Unauthenticated {
		t.Errorf("a session of the former password: %v", err)
	}
}

// Failed logins are counted in the audit log, not listed one by one.
func TestFailuresAreCounted(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 500 {
		w.m.RecordFailure(audit.Event{Kind: audit.LoginFailed, Detail: fmt.Sprint(i)})
	}
	w.m.reportFailures()
	w.mu.Lock()
	defer w.mu.Unlock()
	total := uint64(0)
	for _, e := range w.events {
		total += max(e.Count, 1)
	}
	if len(w.events) != reportMost+1 || total != 500 {
		t.Errorf("%d entries for %d failures", len(w.events), total)
	}
}

func TestBasic(t *testing.T) {
	w := newWorld(t, nil)
	home := netip.MustParseAddr("10.0.0.2")
	if who, err := w.m.Basic(t.Context(), "app", password, home, "10.0.0.2:1"); err != nil || who.Name != "app" {
		t.Fatal(who, err)
	}
	// The second time costs nothing.
	start := time.Now()
	for range 1_000 {
		if _, err := w.m.Basic(t.Context(), "app", password, home, "10.0.0.2:1"); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("1,000 requests took %v", took)
	}
	for _, tc := range []struct {
		user, password string
		want           rhumb.Kind
	}{{"app", "wrong horse", rhumb.Unauthenticated}, {"cert", password, rhumb.Unauthenticated}, {"nobody", password, rhumb.Unauthenticated}, {"a\x00b", password, rhumb.Unauthenticated}} {
		if _, err := w.m.Basic(t.Context(), tc.user, tc.password, home, ""); rhumb.KindOf(err) != tc.want {
			t.Errorf("%q: %v", tc.user, err)
		}
	}
	var err error
	for range freeFailures + 2 {
		_, err = w.m.Basic(t.Context(), "nobody", "x", home, "")
	}
	if rhumb.KindOf(err) != rhumb.Overloaded {
		t.Errorf("after many wrong passwords: %v", err)
	}
	// A changed password takes effect at once.
	w.setUsers(&access.User{Name: "app", Verifier: verifierOf(), Credentials: 9, Disabled: true})
	if _, err := w.m.Basic(t.Context(), "app", password, home, ""); rhumb.KindOf(err) != rhumb.Unauthenticated {
		t.Errorf("a disabled user: %v", err)
	}
}

// TestDisabledDuringBasic guards the audit log and the back-off: who is disabled has not logged in, though the password is right.
func TestDisabledDuringBasic(t *testing.T) {
	w := newWorld(t, nil)
	home := netip.MustParseAddr("10.0.0.2")
	u, _ := w.policy.Load().User("app")
	disabled := *u
	disabled.Disabled = true
	w.setUsers(&disabled)
	if _, err := w.m.Basic(t.Context(), "app", password, home, "10.0.0.2:1"); rhumb.KindOf(err) != rhumb.Unauthenticated {
		t.Errorf("a disabled user: %v", err)
	}
	if got := fmt.Sprint(w.kinds()); got != "[login_failed]" {
		t.Errorf("recorded %s", got)
	}
	if w.m.back.known.Len() != 0 {
		t.Error("the address counts as one where the user has logged in")
	}
}

// No message of a stranger makes the parser panic.
func FuzzFirstMessage(f *testing.F) {
	m := &Manager{cfg: Config{}, back: newBackoff()}
	f.Add("p=tls-exporter,,n=app,r=abc")
	f.Add("n,,n=a=2Cb,r=abc")
	f.Fuzz(func(t *testing.T, first string) {
		a := attempt{try: try{from: netip.MustParseAddr("10.0.0.1")}}
		conv, err := m.converseWith(&access.Policy{}, &a, scram.ChannelBinding{Type: scram.ChannelBindingTLSExporter, Data: []byte("binding")})
		if err != nil {
			t.Fatal(err)
		}
		challenge, err := conv.Step(first)
		if err == nil {
			_, err = conv.Step("c=" + challenge + ",r=" + first + ",p=AAAA")
			if err == nil && conv.Valid() {
				t.Fatal("logged in")
			}
		}
	})
}

// TestLoginsOfOneUserAreSummedUp guards the audit log against a user who logs in all the time. Logins of others are listed, and
// none is lost from the count.
func TestLoginsOfOneUserAreSummedUp(t *testing.T) {
	w := newWorld(t, nil)
	const many = 5_000
	for range many {
		w.m.recordLogin(audit.Event{Kind: audit.Login, Caller: "user app"})
	}
	w.m.recordLogin(audit.Event{Kind: audit.Login, Caller: "user other"})
	w.m.reportLogins()
	w.m.reportLogins()
	w.mu.Lock()
	defer w.mu.Unlock()
	entries, logins := map[string]int{}, map[string]uint64{}
	for _, e := range w.events {
		entries[e.Caller]++
		logins[e.Caller] += max(e.Count, 1)
	}
	if entries["user app"] > loginBurst+2 || logins["user app"] != many || entries["user other"] != 1 {
		t.Errorf("entries %v stand for logins %v", entries, logins)
	}
}

// TestUnknownUsersTakeTheSamePath guards that the work for the challenge of a user does not depend on whether the user exists, nor on
// how many others do. Allocations stand for the work: unlike times, they are the same in each run.
func TestUnknownUsersTakeTheSamePath(t *testing.T) {
	users := []*access.User{{Name: "app", Verifier: verifierOf(), Credentials: 2}}
	for i := range 5_000 {
		users = append(users, &access.User{Name: fmt.Sprint("u", i), Verifier: verifierOf(), Credentials: uint64(i + 3)})
	}
	cost := func(p *access.Policy, name string) float64 {
		m := &Manager{cfg: Config{Secret: func() []byte { return p.Oldest().Verifier.ServerKey }}, back: newBackoff()}
		return testing.AllocsPerRun(20, func() { m.lookUp(p, name, &attempt{}) })
	}
	one, all := access.Compile(nil, 1, users[:1], nil), access.Compile(nil, 1, users, nil)
	want := cost(one, "app")
	if got := []float64{cost(one, "xyz"), cost(all, "app"), cost(all, "xyz")}; want == 0 || got[0] != want || got[1] != want || got[2] != want {
		t.Errorf("%v allocations for an unknown user, a known one of many and an unknown one of many; want %v", got, want)
	}
	if u := all.Oldest(); u == nil || u.Name != "app" {
		t.Errorf("the oldest user is %v", u)
	}
}
