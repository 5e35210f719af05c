package gate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/rhumbdb/rhumb"
)

// Rates bound the requests of one user or one connection. Zero means no bound.
//
// Rates are per node. A user who spreads over all nodes gets their sum, as the work does; a limit
// for the cluster would need a message per request.
type Rates struct {
	// Requests and Bytes are per second. A burst of one second is allowed; Bytes counts requests and
	// answers.
	Requests, Bytes float64
	// InFlight bounds the bytes of unanswered requests.
	InFlight int64
	// Streams bounds the streams and calls that are open at the same time.
	Streams int64
}

// LimiterConfig configures a Limiter.
type LimiterConfig struct {
	// User bounds all connections of one user together, Conn each connection.
	User, Conn Rates
}

// Limiter bounds the requests of users and connections.
type Limiter struct {
	cfg LimiterConfig
	m   struct{ refused map[string]prometheus.Counter }
	vec *prometheus.CounterVec

	// users has the buckets of the users that called last. A certificate may name users without number.
	users *lru.Cache[string, *Bucket]
}

// accountsMax is how many users have buckets of their own, as many as a cluster may have.
const accountsMax = 10_000

// The limits, as labels of the metric.
const (
	limitRequests = "requests"
	limitBytes    = "bytes"
	limitInFlight = "in_flight"
	limitStreams  = "streams"
)

// NewLimiter returns a limiter.
func NewLimiter(cfg LimiterConfig) *Limiter {
	users, err := lru.New[string, *Bucket](accountsMax)
	if err != nil {
		panic(err) // the size is positive
	}
	l := &Limiter{cfg: cfg, users: users}
	l.vec = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "rhumb", Subsystem: "limit", Name: "refused_total", Help: "Requests that were refused because of a limit per user or per connection.",
	}, []string{"of", "limit"})
	l.m.refused = map[string]prometheus.Counter{}
	for _, of := range []string{"user", "connection"} {
		for _, limit := range []string{limitRequests, limitBytes, limitInFlight, limitStreams} {
			l.m.refused[of+limit] = l.vec.WithLabelValues(of, limit)
		}
	}
	return l
}

// Collectors returns the metrics of the limiter.
func (l *Limiter) Collectors() []prometheus.Collector { return []prometheus.Collector{l.vec} }

// Bucket counts what one user or one connection takes. The zero value is ready once a Limiter uses it.
type Bucket struct {
	once            sync.Once
	requests, bytes *rate.Limiter // nil without a bound
	inFlight        atomic.Int64
	streams         atomic.Int64
}

// init sets the bounds.
func (b *Bucket) init(r Rates) {
	b.once.Do(func() {
		if r.Requests > 0 {
			b.requests = rate.NewLimiter(rate.Limit(r.Requests), max(int(r.Requests), 1))
		}
		if r.Bytes > 0 {
			// The largest message must fit, or no wait would be long enough for it.
			b.bytes = rate.NewLimiter(rate.Limit(r.Bytes), max(int(r.Bytes), rhumb.MessageSizeMax))
		}
	})
}

// Account counts the requests of one caller on one connection. The zero value has no
// bounds.
//
// The context of a call carries the Account and not the name of the user, so that the code that
// handles requests needs no lookup and cannot count for somebody else.
type Account struct {
	l    *Limiter
	user *Bucket // nil if only the connection is bounded
	conn *Bucket
}

// Account returns the account of a user on a connection. With an empty name only the connection is
// bounded.
func (l *Limiter) Account(user string, conn *Conn) *Account {
	a := &Account{l: l}
	if conn != nil {
		conn.Bucket.init(l.cfg.Conn)
		a.conn = &conn.Bucket
	}
	if user != "" {
		a.user = l.userBucket(user)
	}
	return a
}

// userBucket returns the bucket of a user. A user whose bucket was displaced begins with a new one; requests that are under way end in the
// old one.
func (l *Limiter) userBucket(user string) *Bucket {
	if b, ok := l.users.Get(user); ok {
		return b
	}
	b := &Bucket{}
	b.init(l.cfg.User)
	// Two calls may be here at the same time, and the first one wins.
	if old, ok, _ := l.users.PeekOrAdd(user, b); ok {
		return old
	}
	return b
}

type accountKey struct{}

// WithAccount returns a context whose requests count in an account.
func WithAccount(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// AccountFrom returns the account of a context. It may be nil, which has no bounds.
func AccountFrom(ctx context.Context) *Account {
	a, _ := ctx.Value(accountKey{}).(*Account)
	return a
}

// inFlightRetry is the recommended wait if too many bytes are in flight: about the time in which a
// batch is answered.
const inFlightRetry = 50 * time.Millisecond

// Acquire counts a request of size bytes. The caller must call Release with the same size when it is
// answered, unless Acquire returns an error.
func (a *Account) Acquire(size int64) error {
	if a == nil || a.l == nil {
		return nil
	}
	if err := a.l.acquire("user", a.user, a.l.cfg.User, size); err != nil {
		return err
	}
	// The user first, so that a refusal names the limit that other connections of the user share.
	if err := a.l.acquire("connection", a.conn, a.l.cfg.Conn, size); err != nil {
		a.user.release(size)
		return err
	}
	return nil
}

// Release ends a request that Acquire counted.
func (a *Account) Release(size int64) {
	if a != nil && a.l != nil {
		a.user.release(size)
		a.conn.release(size)
	}
}

// streamRetry is the recommended wait if too many streams are open. They stay open for long, so the wait is only for callers
// that know no other node.
const streamRetry = time.Second

// OpenStream counts a stream or call. The caller must call CloseStream when it ends, unless OpenStream returns an error.
func (a *Account) OpenStream() error {
	if a == nil || a.l == nil {
		return nil
	}
	if err := a.l.openStream("user", a.user, a.l.cfg.User.Streams); err != nil {
		return err
	}
	if err := a.l.openStream("connection", a.conn, a.l.cfg.Conn.Streams); err != nil {
		a.user.closeStream()
		return err
	}
	return nil
}

// CloseStream ends a stream that OpenStream counted.
func (a *Account) CloseStream() {
	if a != nil && a.l != nil {
		a.user.closeStream()
		a.conn.closeStream()
	}
}

// openStream counts a stream in one bucket. most is the limit, 0 for none.
func (l *Limiter) openStream(of string, b *Bucket, most int64) error {
	if b == nil {
		return nil
	}
	if open := b.streams.Add(1); most > 0 && open > most {
		b.streams.Add(-1)
		l.m.refused[of+limitStreams].Inc()
		err := rhumb.Ef("gate.OpenStream", rhumb.Overloaded, "this %s has %d streams and calls open to this node, which is its limit; use one client for many callers, or another node", of, most)
		err.RetryAfter = streamRetry
		return err
	}
	return nil
}

func (b *Bucket) closeStream() {
	if b != nil {
		b.streams.Add(-1)
	}
}

// CountsBytes reports whether the size of answers matters. Most nodes bound no rate of bytes, and the size of
// an answer takes time to compute.
func (a *Account) CountsBytes() bool {
	return a != nil && a.l != nil && (a.l.cfg.User.Bytes > 0 || a.l.cfg.Conn.Bytes > 0)
}

// Answered counts the bytes of an answer, or of a page of a scan.
func (a *Account) Answered(size int64) {
	if a == nil || a.l == nil {
		return
	}
	for _, b := range []*Bucket{a.user, a.conn} {
		if b != nil && b.bytes != nil {
			// The answer exists already, so later requests pay for it. An answer is no larger than a
			// message, which the burst covers.
			b.bytes.ReserveN(time.Now(), int(min(size, rhumb.MessageSizeMax)))
		}
	}
}

func (b *Bucket) release(size int64) {
	if b != nil {
		b.inFlight.Add(-size)
	}
}

// acquire counts a request in one bucket.
//
// Three bounds are taken in order, and a refusal returns those that were taken. The caller retries
// after the recommended wait; if refused requests cost tokens, retries alone could keep the caller
// at its limit.
func (l *Limiter) acquire(of string, b *Bucket, r Rates, size int64) error {
	const op rhumb.Op = "gate.Acquire"
	if b == nil {
		return nil
	}
	refuse := func(limit string, wait time.Duration, format string, args ...any) error {
		l.m.refused[of+limit].Inc()
		err := rhumb.Ef(op, rhumb.Overloaded, format, args...)
		err.RetryAfter = wait
		return err
	}
	// A single request always fits, or it could never be served.
	if used := b.inFlight.Add(size); r.InFlight > 0 && used > r.InFlight && used > size {
		b.inFlight.Add(-size)
		return refuse(limitInFlight, inFlightRetry, "this %s has %d bytes of unanswered requests, and %d is the limit; wait for answers, or send less", of, used-size, r.InFlight)
	}
	now := time.Now()
	taken, wait := takeNow(b.requests, now, 1)
	if wait > 0 {
		b.inFlight.Add(-size)
		return refuse(limitRequests, wait, "this %s sends more than %.0f requests a second, which is its limit; send less, or ask an administrator to raise it", of, r.Requests)
	}
	if _, wait := takeNow(b.bytes, now, int(min(size, rhumb.MessageSizeMax))); wait > 0 {
		b.inFlight.Add(-size)
		if taken != nil {
			taken.CancelAt(now)
		}
		return refuse(limitBytes, wait, "this %s sends and receives more than %.0f bytes a second, which is its limit; send less, or ask an administrator to raise it", of, r.Bytes)
	}
	return nil
}

// takeNow takes n tokens if they are there. Otherwise it takes none and returns the wait.
func takeNow(l *rate.Limiter, now time.Time, n int) (*rate.Reservation, time.Duration) {
	if l == nil {
		return nil, 0
	}
	// Reserved and returned, because Allow does not say how long to wait.
	r := l.ReserveN(now, n)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return r, wait
}
