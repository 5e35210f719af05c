package session

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
)

const (
	// lifetimeDefault is the time for which a token is valid. The lifetime bounds nothing that
	// revocation does not end sooner; it makes a client that nobody watches prove its password now
	// and then.
	lifetimeDefault = time.Hour
	// graceTime is how long a token is accepted after another one has replaced it: calls with the former
	// one may be on their way.
	graceTime = 30 * time.Second
	// recheckInterval is how often sessions are compared with the metadata. Polling costs one
	// comparison of pointers while the policy stays the same.
	recheckInterval = 200 * time.Millisecond
	// loginsMax bounds the logins in progress on a port. Each one has a goroutine and a few
	// kilobytes.
	loginsMax = 256
	// loginTimeout bounds one login.
	loginTimeout = 8 * time.Second
	// reportInterval is the interval at which failed logins beyond reportMost are summed up in one audit
	// entry.
	reportInterval = 10 * time.Second
	reportMost     = 10
	// A user's own logins are listed loginBurst at once and then one per loginInterval; the others are summed up in one
	// entry per loginInterval. So one user adds at most two entries of 300 bytes in this time, and needs ten months to push
	// others out of the log.
	loginBurst    = 60
	loginInterval = time.Minute
)

// Config configures a Manager.
type Config struct {
	// Insecure identifies every caller as access.KindInsecure.
	Insecure bool
	// Policy returns the users of the cluster, or nil while the node does not know them. A changed policy
	// is another pointer. It must not block.
	Policy func() *access.Policy
	// Confirm returns the users that the cluster had after the call began, or an error if the node cannot ask. It is called before a
	// login is refused. Without it, Policy is taken to be current.
	Confirm func(context.Context) (*access.Policy, error)
	// Limiter counts the requests of callers.
	Limiter *gate.Limiter
	// NodeFrom is called with the address of each call of a node. It must not block. It may be nil.
	NodeFrom func(netip.Addr)
	// Record receives events for the audit log. It must not block. Nil discards them.
	Record func(audit.Event)
	// Secret returns bytes that all nodes know and clients do not. Challenges for users that do not exist are
	// derived from it, so that all nodes send the same ones. Without it they differ between nodes.
	Secret func() []byte
	// Lifetime is the time for which a token is valid; default 1 h.
	Lifetime time.Duration
	Logger   *slog.Logger
}

// Manager identifies the callers of all ports of a node.
//
// One manager serves all ports, so that the back-off counts failures of one attacker together,
// whichever port it tries.
type Manager struct {
	cfg    Config
	m      metrics
	back   *backoff
	mock   [32]byte // of a node without Config.Secret
	basics *basicCache
	logins chan struct{}
	// examining is held while a password is compared and a wrong one is counted.
	examining sync.Mutex

	mu       sync.Mutex
	conns    map[*connState]struct{}
	failures eventSum
	// entries bounds the logins of a user that are listed one by one, and unlisted holds the others since the last report.
	entries  *simplelru.LRU[string, *rate.Limiter]
	unlisted map[string]eventSum

	cancel context.CancelFunc
	work   sync.WaitGroup
	calls  sync.WaitGroup // handlers that run on goroutines of their own
}

// New returns a manager. The caller must call Close after the servers have stopped.
func New(cfg Config) *Manager {
	if cfg.Lifetime == 0 {
		cfg.Lifetime = lifetimeDefault
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Record == nil {
		cfg.Record = func(audit.Event) {}
	}
	m := &Manager{
		cfg: cfg, back: newBackoff(), basics: newBasicCache(), logins: make(chan struct{}, loginsMax), conns: map[*connState]struct{}{},
		entries: newLRU[string, *rate.Limiter](), unlisted: map[string]eventSum{},
	}
	_, _ = rand.Read(m.mock[:]) // never fails
	m.m = m.newMetrics()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.work.Go(func() { m.watch(ctx) })
	return m
}

// Close waits for all handlers. Their streams must have ended.
func (m *Manager) Close() {
	m.cancel()
	m.work.Wait()
	m.calls.Wait()
}

// watch compares the sessions with the metadata until ctx ends.
func (m *Manager) watch(ctx context.Context) {
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	var seen *access.Policy
	reported, summed := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			m.reportFailures()
			m.reportLogins()
			return
		case now := <-tick.C:
			if now.Sub(reported) >= reportInterval {
				reported = now
				m.reportFailures()
			}
			if now.Sub(summed) >= loginInterval {
				summed = now
				m.reportLogins()
			}
			p := m.cfg.Policy()
			m.recheck(p, p != seen, now)
			seen = p
		}
	}
}

// recheck ends the sessions that have expired and, if the policy changed, those whose user may no longer
// have one.
func (m *Manager) recheck(p *access.Policy, changed bool, now time.Time) {
	m.mu.Lock()
	// Copied, because a connection that closes takes the locks in the other order.
	conns := make([]*connState, 0, len(m.conns))
	for c := range m.conns {
		conns = append(conns, c)
	}
	m.mu.Unlock()
	for _, c := range conns {
		c.recheck(p, changed, now)
	}
}

// connState holds the state of a connection.
type connState struct {
	m    *Manager
	gate *gate.Conn

	mu      sync.Mutex // guards the fields below
	session *session   // nil without a login
	// busy is set while a login is in progress.
	busy  bool
	calls map[*call]struct{}
}

// session is a login.
//
// Only hashes of tokens are kept. A dump of the memory of a node, or a log of this structure, holds
// nothing that opens a session.
type session struct {
	user string
	// credentials is the revision of the user's password.
	credentials uint64
	token       [sha256.Size]byte
	until       time.Time
	// former is the token before the last renewal; it is accepted until formerUntil.
	former      [sha256.Size]byte
	formerUntil time.Time
}

// ConnClosed implements gate.Attachment.
func (c *connState) ConnClosed() {
	// The calls of the connection end with their streams.
	c.m.mu.Lock()
	delete(c.m.conns, c)
	c.m.mu.Unlock()
}

// stateOf returns the state of the connection of a call.
func (m *Manager) stateOf(g *gate.Conn) *connState {
	if g == nil {
		return nil
	}
	c, _ := g.Attach(func() gate.Attachment {
		c := &connState{m: m, gate: g, calls: map[*call]struct{}{}}
		m.mu.Lock()
		m.conns[c] = struct{}{}
		m.mu.Unlock()
		return c
	}).(*connState)
	return c
}

// errUnknown rejects a token that is not, or no longer, valid on its connection.
var errUnknown = rhumb.E("session.Identify", rhumb.Unauthenticated, "the session has ended, or belongs to another connection; log in again")

// authenticate returns the user of a token, and the revision of the password that the user logged in with.
func (c *connState) authenticate(token string, now time.Time) (who access.Principal, credentials uint64, err error) {
	// Hashed, so that the comparison takes the same time for every wrong token.
	// The lock is held for two comparisons only.
	sum := sha256.Sum256([]byte(token))
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.session
	// The answer is the same for a missing, wrong and expired token.
	if s == nil {
		return access.Principal{}, 0, errUnknown
	}
	valid := subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1 && now.Before(s.until)
	former := subtle.ConstantTimeCompare(sum[:], s.former[:]) == 1 && now.Before(s.formerUntil)
	if !valid && !former {
		return access.Principal{}, 0, errUnknown
	}
	return access.Principal{Kind: access.KindUser, Name: s.user}, s.credentials, nil
}

// begin starts or renews a session and returns its token.
func (c *connState) begin(u *access.User, now time.Time, life time.Duration) (token string, err error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	token = base64.RawURLEncoding.EncodeToString(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := session{user: u.Name, credentials: u.Credentials, token: sha256.Sum256([]byte(token)), until: now.Add(life)}
	// A renewal replaces the session in place, so the streams of the connection continue.
	if old := c.session; old != nil {
		// The streams of a connection belong to one user.
		if old.user != u.Name {
			return "", rhumb.Ef("session.login", rhumb.InvalidArgument, "the connection is logged in as user %s; use another connection for user %s", old.user, u.Name)
		}
		s.former, s.formerUntil = old.token, now.Add(graceTime)
	}
	c.session = &s
	return token, nil
}

// recheck ends the session, and calls of a user with a certificate, if they are no longer valid.
func (c *connState) recheck(p *access.Policy, changed bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.session
	var why error
	switch {
	case s == nil:
	case now.After(s.until):
		why = rhumb.E("session.recheck", rhumb.Unauthenticated, "the session has expired; log in again")
	case changed && p != nil:
		why = checkUser(p, s.user, s.credentials)
		if why != nil {
			c.m.cfg.Record(audit.Event{Kind: audit.Logout, Caller: "user " + s.user, Address: c.gate.RemoteAddr().String(), Detail: rhumb.Message(why), Policy: p.Revision()})
		}
	}
	// The connection remains: its client may log in again, with a new password for example.
	if why != nil {
		c.session = nil
		c.m.m.ended.Inc()
		c.gate.Anonymous()
	}
	// Calls that a certificate identified do not depend on the session of the same connection.
	for k := range c.calls {
		switch {
		case k.who.Kind != access.KindUser:
		case k.login && why != nil:
			k.end(why)
		case !k.login && changed && p != nil:
			if err := checkUser(p, k.who.Name, 0); err != nil {
				k.end(err)
			}
		}
	}
}

// checkUser returns an error unless a user may have a session. credentials is the revision of the password that the
// user logged in with, or 0 for a certificate.
func checkUser(p *access.Policy, name string, credentials uint64) error {
	const op rhumb.Op = "session.checkUser"
	u, ok := p.User(name)
	switch {
	case !ok:
		return rhumb.Ef(op, rhumb.Unauthenticated, "user %s does not exist; an administrator creates it with rhumb user create %s", name, name)
	case u.Disabled:
		return rhumb.Ef(op, rhumb.Unauthenticated, "user %s is disabled; an administrator enables it with rhumb user enable %s", name, name)
	case credentials != 0 && u.Credentials != credentials:
		return rhumb.Ef(op, rhumb.Unauthenticated, "the password of user %s was changed; log in with the new one", name)
	}
	return nil
}

// Identify returns the caller of a call on the main port or the heartbeat port. The header authorization may be
// empty. login reports whether a token identified the caller.
func (m *Manager) identify(ctx context.Context, authorization string, c *connState) (who access.Principal, login bool, err error) {
	if m.cfg.Insecure {
		return access.Principal{Kind: access.KindInsecure}, false, nil
	}
	// A token comes first: a program with the certificate of its host may act for a user. A call with an authorization that is
	// not valid, or not understood, never falls back to the certificate, which may have more rights.
	credentials := uint64(0)
	if authorization != "" {
		token, ok := strings.CutPrefix(authorization, "Bearer ")
		if !ok || c == nil {
			return who, false, rhumb.E("session.Identify", rhumb.Unauthenticated, "the authorization of the call is no token of a session; log in first")
		}
		who, credentials, err = c.authenticate(token, time.Now())
		login = true
	} else if p, ok := identity.PeerFromContext(ctx); ok {
		who = PrincipalOf(p)
	} else {
		return who, false, access.ErrAnonymous
	}
	// The rights of a certificate are decided by the authorization, which knows the users too.
	if err != nil || !login {
		return who, login, err
	}
	p := m.cfg.Policy()
	if p == nil {
		return who, login, errNoUsers
	}
	// With the password: recheck ends the session too, a moment later, but not one that began from older metadata than
	// recheck has seen.
	return who, login, checkUser(p, who.Name, credentials)
}

// errNoUsers rejects users while the node does not know them.
var errNoUsers = rhumb.E("session.Identify", rhumb.Unavailable, "the node does not know the users of the cluster yet, because it has not joined; retry, or use another node")

// PrincipalOf returns the caller that a certificate identifies. It is nobody for a certificate of an authority.
//
// The mapping is here and not in package identity, which knows certificates and no rights, nor in
// package access, which knows rights and no certificates.
func PrincipalOf(p identity.Peer) access.Principal {
	switch p.Role {
	case identity.RoleNode:
		return access.Principal{Kind: access.KindNode, Name: p.Name.Name}
	case identity.RoleOperator:
		return access.Principal{Kind: access.KindOperator, Name: p.Name.Name}
	case identity.RoleUser:
		return access.Principal{Kind: access.KindUser, Name: p.Name.Name}
	}
	return access.Principal{}
}

// eventSum sums up failures that the audit log does not list.
//
// Without it, an attacker who guesses at full speed would rotate the audit log and push out the
// entries about its earlier acts.
type eventSum struct {
	listed int    // entries since the last report
	count  uint64 // failures without an entry
	last   audit.Event
}

// RecordFailure records a failed login or a refused request. Anybody can cause them, so most are only counted.
// It does not block.
func (m *Manager) RecordFailure(e audit.Event) {
	m.mu.Lock()
	t := &m.failures
	t.listed++
	// The first ones say who is trying what; thousands more say nothing new.
	list := t.listed <= reportMost
	if !list {
		t.count++
		t.last = e
	}
	m.mu.Unlock()
	if list {
		m.cfg.Record(e)
	}
}

// recordLogin records a login in the audit log, or counts it if its user logs in too often to list each. It does not block.
func (m *Manager) recordLogin(e audit.Event) {
	m.mu.Lock()
	l, ok := m.entries.Get(e.Caller)
	if !ok {
		l = rate.NewLimiter(rate.Every(loginInterval), loginBurst)
		m.entries.Add(e.Caller, l)
	}
	list := l.Allow()
	if !list {
		m.unlisted[e.Caller] = eventSum{count: m.unlisted[e.Caller].count + 1, last: e}
	}
	m.mu.Unlock()
	if list {
		m.cfg.Record(e)
	}
}

// reportLogins records for each user how many logins have no entry.
func (m *Manager) reportLogins() {
	m.mu.Lock()
	unlisted := m.unlisted
	m.unlisted = map[string]eventSum{}
	m.mu.Unlock()
	for _, who := range slices.Sorted(maps.Keys(unlisted)) {
		e := unlisted[who].last
		e.Count, e.Detail = unlisted[who].count, "logins that are not listed; address and time are those of the last one"
		m.cfg.Record(e)
	}
}

// reportFailures records how many failed logins have no entry.
func (m *Manager) reportFailures() {
	// Taken as a whole, so that each failure is in exactly one report.
	m.mu.Lock()
	t := m.failures
	m.failures = eventSum{}
	m.mu.Unlock()
	if t.count == 0 {
		return
	}
	e := t.last
	e.Count = t.count
	e.Detail = "failures that are not listed; the last one: " + e.Detail
	m.cfg.Record(e)
}

// metrics holds the metrics of a manager.
type metrics struct {
	logins   *prometheus.CounterVec
	ended    prometheus.Counter
	rejected prometheus.Counter
	seconds  prometheus.Histogram
	sessions prometheus.GaugeFunc
	records  prometheus.GaugeFunc
}

// The results of logins, as labels of the metric.
const (
	loginOK      = "ok"
	loginWrong   = "wrong"   // wrong user or password, or a disabled user
	loginDelayed = "delayed" // refused by back-off
	loginBroken  = "broken"  // the exchange was not completed
	loginBusy    = "busy"    // too many logins at once
	loginUnsure  = "unsure"  // failed by metadata that may be old
)

func (m *Manager) newMetrics() metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "rhumb", Subsystem: "session", Name: name, Help: help}
	}
	out := metrics{
		logins:   prometheus.NewCounterVec(prometheus.CounterOpts(opts("logins_total", "Logins with a password, by result.")), []string{"result"}),
		ended:    prometheus.NewCounter(prometheus.CounterOpts(opts("ended_total", "Sessions that ended before their connection: they expired, or the user changed."))),
		rejected: prometheus.NewCounter(prometheus.CounterOpts(opts("unauthenticated_total", "Calls that were rejected because the caller is not identified."))),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "rhumb", Subsystem: "session", Name: "login_seconds", Help: "Time of a login, from the first message of the client to the token.",
			Buckets: prometheus.ExponentialBuckets(1e-3, 2, 14),
		}),
		sessions: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("sessions", "Sessions of users that logged in with a password.")), func() float64 {
			// No lock of a connection is taken under that of the manager: a connection that ends its session needs the gate, whose lock
			// is held while the manager adds a connection.
			m.mu.Lock()
			conns := slices.Collect(maps.Keys(m.conns))
			m.mu.Unlock()
			n := 0
			for _, c := range conns {
				c.mu.Lock()
				if c.session != nil {
					n++
				}
				c.mu.Unlock()
			}
			return float64(n)
		}),
		records: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("backoff_records", "Records of failed and successful logins that delay others.")), func() float64 {
			return float64(m.back.size())
		}),
	}
	// A counter with labels appears in the metrics only once it has a value, and alerts need a value of 0.
	for _, r := range []string{loginOK, loginWrong, loginDelayed, loginBroken, loginBusy, loginUnsure} {
		out.logins.WithLabelValues(r)
	}
	return out
}

// Collectors returns the metrics of the manager.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.m.logins, m.m.ended, m.m.rejected, m.m.seconds, m.m.sessions, m.m.records}
}
