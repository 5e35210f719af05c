package session

import (
	"context"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

const (
	// confirmTimeout bounds the question to the metadata leader before a login is refused. A leader is elected within it.
	confirmTimeout = 2 * time.Second
	// retryUnsure is the recommended wait after a login that nobody could decide.
	retryUnsure = 100 * time.Millisecond
)

// confirm returns nil if a user may learn that its login failed: the record of the user in p is the one that the cluster has
// now. Otherwise the error asks the client to try again.
//
// A node that has just started, or is cut off, may have metadata from before the user was created. Clients believe the first node that calls
// a password wrong, and then fail for half a minute at all nodes; they ask another node if this one is not available.
func (m *Manager) confirm(ctx context.Context, p *access.Policy, t try) error {
	const op rhumb.Op = "session.confirm"
	if m.cfg.Confirm == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	now, err := m.cfg.Confirm(ctx)
	switch {
	case err != nil || now == nil:
		m.m.logins.WithLabelValues(loginUnsure).Inc()
		return &rhumb.Error{
			Op: op, Kind: rhumb.Unavailable, RetryAfter: retryUnsure, Err: err,
			Msg: "the login does not match the users that this node knows, and the node cannot ask the metadata leader whether they have changed; use another node, or try again",
		}
	case !sameUser(p, now, t.user):
		// The password was compared with an old record, so the failure says nothing.
		m.back.forgive(t, time.Now())
		m.m.logins.WithLabelValues(loginUnsure).Inc()
		return &rhumb.Error{Op: op, Kind: rhumb.Unavailable, RetryAfter: retryUnsure, Msg: "the user has changed during the login; try again"}
	}
	return nil
}

// sameUser reports whether two policies have the same record of a user, as far as logins depend on it.
func sameUser(a, b *access.Policy, name string) bool {
	x, inA := a.User(name)
	y, inB := b.User(name)
	if !inA || !inB {
		return inA == inB
	}
	return x.Credentials == y.Credentials && x.Disabled == y.Disabled
}
