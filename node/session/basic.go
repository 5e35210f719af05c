package session

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/client/login"
)

// Bounds of logins by HTTP basic authentication. Unlike SCRAM, they make the node compute the keys of the
// password.
const (
	// basicTimeout is how long a password waits for its turn at most.
	basicTimeout = 2 * time.Second
	// basicFor is how long a password that was verified is accepted without another computation, and
	// basicRecords how many are remembered.
	basicFor     = 5 * time.Minute
	basicRecords = 256
)

// basicCache remembers verified passwords as salted hashes in memory.
//
// Tools poll metrics every few seconds with a password in each request, and the keys of a password
// cost tens of milliseconds. The hash in the cache is salted with bytes that exist only in this
// process, so a memory dump of it does not hold a hash that can be compared with others.
type basicCache struct {
	turns chan struct{}
	salt  [32]byte

	mu       sync.Mutex
	verified *simplelru.LRU[string, basicEntry]
}

// basicEntry is a password that was verified.
type basicEntry struct {
	sum         [sha256.Size]byte
	credentials uint64
	until       time.Time
}

func newBasicCache() *basicCache {
	// As for handshakes, strangers get half of the processors.
	b := &basicCache{turns: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))}
	_, _ = rand.Read(b.salt[:]) // never fails
	l, err := simplelru.NewLRU[string, basicEntry](basicRecords, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	b.verified = l
	return b
}

func (b *basicCache) sumOf(user, password string) [sha256.Size]byte {
	h := sha256.New()
	h.Write(b.salt[:])
	// The zero byte separates: names cannot contain one, so no two pairs have the same text.
	h.Write([]byte(user + "\x00" + password))
	return [sha256.Size]byte(h.Sum(nil))
}

// contains reports whether a password was verified recently.
func (b *basicCache) contains(u *access.User, sum [sha256.Size]byte, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The revision of the credentials is part of the entry. A changed password therefore makes its
	// entry useless at once, without anything that removes it.
	e, ok := b.verified.Get(u.Name)
	return ok && e.credentials == u.Credentials && now.Before(e.until) && subtle.ConstantTimeCompare(e.sum[:], sum[:]) == 1
}

// Basic identifies a user by a password in plain text, as HTTP requests carry it over TLS. Failures count in the
// same back-off as logins.
func (m *Manager) Basic(ctx context.Context, user, password string, from netip.Addr, remote string) (access.Principal, error) {
	p := m.cfg.Policy()
	if p == nil {
		return access.Principal{}, errNoUsers
	}
	a := attempt{try: try{from: from}}
	v := m.lookUp(p, user, &a)
	now := time.Now()
	sum := m.basics.sumOf(user, password)
	if a.user != nil && m.basics.contains(a.user, sum, now) {
		return access.Principal{Kind: access.KindUser, Name: user}, checkUser(p, user, 0)
	}
	// After the cache: a tool that polls metrics with the right password is not delayed by others on its host.
	if wait := m.back.check(a.try, now); wait > 0 {
		m.m.logins.WithLabelValues(loginDelayed).Inc()
		return access.Principal{}, tooEarly(wait)
	}
	matches, err := m.basics.verify(ctx, user, password, v, func() time.Duration { return m.back.check(a.try, time.Now()) })
	if rhumb.KindOf(err) == rhumb.Overloaded {
		m.m.logins.WithLabelValues(loginBusy).Inc()
		return access.Principal{}, err
	}
	wait, right := m.judge(a.try, func() bool { return matches && a.user != nil })
	switch {
	case wait > 0:
		m.m.logins.WithLabelValues(loginDelayed).Inc()
		return access.Principal{}, tooEarly(wait)
	case !right:
		if err := m.confirm(ctx, p, a.try); err != nil {
			return access.Principal{}, err
		}
		m.m.logins.WithLabelValues(loginWrong).Inc()
		m.RecordFailure(audit.Event{Kind: audit.LoginFailed, Caller: "user " + a.try.user, Address: remote, Action: "http", Outcome: rhumb.Unauthenticated.String(), Detail: rhumb.Message(errWrong)})
		return access.Principal{}, errWrong
	}
	// With the users of now: one may have been disabled while the password was verified.
	p = m.cfg.Policy()
	if err := checkUser(p, user, a.user.Credentials); err != nil {
		m.m.logins.WithLabelValues(loginWrong).Inc()
		m.RecordFailure(audit.Event{Kind: audit.LoginFailed, Caller: "user " + user, Address: remote, Action: "http", Outcome: rhumb.Unauthenticated.String(), Detail: rhumb.Message(err)})
		return access.Principal{}, err
	}
	m.back.succeeded(a.try)
	m.m.logins.WithLabelValues(loginOK).Inc()
	// Only now: a wrong password never reaches the cache.
	m.basics.mu.Lock()
	m.basics.verified.Add(user, basicEntry{sum, a.user.Credentials, now.Add(basicFor)})
	m.basics.mu.Unlock()
	m.recordLogin(audit.Event{Kind: audit.Login, Caller: "user " + user, Address: remote, Action: "http", Outcome: audit.OutcomeOK, Policy: p.Revision()})
	return access.Principal{Kind: access.KindUser, Name: user}, nil
}

// verify computes the keys of a password and compares them with a verifier. wait returns how long the attempt has to wait
// because others failed while it waited for its turn.
func (b *basicCache) verify(ctx context.Context, user, password string, v access.Verifier, wait func() time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, basicTimeout)
	defer cancel()
	// A stranger could exhaust the processors with computations, so few run at once.
	select {
	case b.turns <- struct{}{}:
		defer func() { <-b.turns }()
	case <-ctx.Done():
		return false, &rhumb.Error{Op: "session.Basic", Kind: rhumb.Overloaded, RetryAfter: retryFull, Msg: "too many passwords are being verified; retry later, or use a certificate"}
	}
	if d := wait(); d > 0 {
		return false, tooEarly(d)
	}
	if len(password) > login.PasswordSizeMax {
		return false, nil
	}
	got, err := login.Keys(user, password, v)
	return err == nil && subtle.ConstantTimeCompare(got.StoredKey, v.StoredKey) == 1, nil
}
