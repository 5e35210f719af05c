package session

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/rhumbdb/rhumb"
)

// Bounds of the back-off.
const (
	// freeFailures is how often one address may fail for one user before it has to wait, because people
	// mistype.
	freeFailures = 3
	// waitMin is the wait after the next failure; it doubles up to waitMax. With waitMax, one address
	// tries 1,440 passwords a day.
	waitMin = 250 * time.Millisecond
	waitMax = time.Minute
	// forgetAfter is how long the failures of an address are remembered after the last one.
	forgetAfter = 15 * time.Minute
	// userFailures is how many failures a second are examined for one user from all addresses together, with a burst of
	// userBurst, and from one address for all users that exist together, with a burst of addressBurst.
	userFailures = 1
	userBurst    = 20
	addressBurst = 100
	// recordsMax bounds each kind of record. The oldest is forgotten.
	recordsMax = 8_192
)

// try is a user at a source address.
type try struct {
	user string
	from netip.Addr
	// credentials is the revision of the user's password, or 0 for a name that cannot log in. With another password,
	// failures and logins of before count no more.
	credentials uint64
}

// failures counts the failures of one try.
type failures struct {
	count int
	last  time.Time
	until time.Time // no attempt is examined before
}

// backoff delays attempts after failures. It has no clock.
//
// No user is locked out after some failures. That would be a weapon: whoever knows a name could keep its owner out. The wait
// concerns one user at one address. The limits over all addresses, and over all users of an address, slow guessing
// down. A user who has logged in at this node from the same address since the node started is exempt from both; others wait while such
// an attack lasts. Guesses for names that nobody has cannot succeed, so they take nothing from the limit of their address:
// else one client with random names would keep out everybody behind the same address.
//
// The records are LRU lists, so an attacker who invents names or addresses pushes out old records
// and forgets its own with them; the limiter of its address remains, because each attempt refreshes
// it.
type backoff struct {
	mu      sync.Mutex
	tries   *simplelru.LRU[try, *failures]
	users   *simplelru.LRU[string, *rate.Limiter]
	sources *simplelru.LRU[netip.Addr, *rate.Limiter]
	// known holds successful logins. Their users are not delayed by failures of others.
	known *simplelru.LRU[try, struct{}]
}

func newBackoff() *backoff {
	return &backoff{
		tries: newLRU[try, *failures](), users: newLRU[string, *rate.Limiter](), sources: newLRU[netip.Addr, *rate.Limiter](), known: newLRU[try, struct{}](),
	}
}

// newLRU returns a map of bounded size.
func newLRU[K comparable, V any]() *simplelru.LRU[K, V] {
	l, err := simplelru.NewLRU[K, V](recordsMax, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return l
}

// limiterOf returns a limiter of failures from a map.
func limiterOf[K comparable](l *simplelru.LRU[K, *rate.Limiter], key K, burst int) *rate.Limiter {
	if r, ok := l.Get(key); ok {
		return r
	}
	r := rate.NewLimiter(userFailures, burst)
	l.Add(key, r)
	return r
}

// check returns how long an attempt has to wait; 0 lets it be examined.
func (b *backoff) check(t try, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	var wait time.Duration
	// Attempts before the end of the wait are not counted: a client with an old password in its configuration
	// would otherwise extend the wait forever.
	if f, ok := b.tries.Get(t); ok && now.Sub(f.last) < forgetAfter {
		wait = f.until.Sub(now)
	}
	// The limits over all addresses, and over all users, protect against guesses that are spread. They would
	// also delay the right user, so addresses that have proved themselves are exempt.
	if _, ok := b.known.Get(t); !ok {
		// Looked up and not created: names that somebody merely mentions must not push the records of others out.
		byUser, _ := b.users.Get(t.user)
		bySource, _ := b.sources.Get(t.from)
		for _, l := range []*rate.Limiter{byUser, bySource} {
			if l == nil {
				continue
			}
			// Only failures take tokens, so that a correct password does not slow others down.
			if missing := 1 - l.TokensAt(now); missing > 0 {
				wait = max(wait, time.Duration(missing/userFailures*float64(time.Second)))
			}
		}
	}
	return max(wait, 0)
}

// failed records a failure and returns the wait before the next attempt.
func (b *backoff) failed(t try, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.tries.Get(t)
	if !ok || now.Sub(f.last) >= forgetAfter {
		f = &failures{}
		b.tries.Add(t, f)
	}
	f.count++
	f.last = now
	f.until = now.Add(f.wait())
	if _, ok := b.known.Get(t); !ok {
		limiterOf(b.users, t.user, userBurst).AllowN(now, 1)
		if t.credentials != 0 {
			limiterOf(b.sources, t.from, addressBurst).AllowN(now, 1)
		}
	}
	return max(f.until.Sub(now), 0)
}

// wait returns the wait after the last failure.
func (f *failures) wait() time.Duration {
	n := f.count - freeFailures
	if n <= 0 {
		return 0
	}
	// The shift is bounded before it overflows.
	return min(waitMin<<min(n-1, 16), waitMax)
}

// forgive takes a failure back that was not the user's.
func (b *backoff) forgive(t try, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The limits over all addresses keep their tokens: they are there for bursts.
	if f, ok := b.tries.Get(t); ok && f.count > 0 {
		f.count--
		f.until = now
	}
}

// succeeded records a login.
func (b *backoff) succeeded(t try) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The record of failures goes, so that the next mistake is again the first.
	b.tries.Remove(t)
	b.known.Add(t, struct{}{})
}

// size returns the number of records.
func (b *backoff) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries.Len() + b.users.Len() + b.sources.Len() + b.known.Len()
}

// tooEarly is the answer to an attempt that has to wait.
func tooEarly(wait time.Duration) error {
	err := rhumb.Ef("session.login", rhumb.Overloaded, "too many logins failed for this user or from this address; the next attempt is examined in %s", wait.Round(time.Millisecond))
	err.RetryAfter = wait
	return err
}
