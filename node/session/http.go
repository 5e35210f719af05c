package session

import (
	"net/http"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
)

// HTTP identifies the caller of an HTTP request: by certificate, or by a password over TLS. g is
// the gate of the port. There are no sessions and no cookies: the caller of each request is identified, so
// nothing has to be ended when a user changes.
func (m *Manager) HTTP(g *gate.Gate, r *http.Request) (access.Principal, error) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string })
	if local == nil {
		return access.Principal{}, access.ErrAnonymous
	}
	c := g.FindText(r.RemoteAddr, local.String())
	if c == nil {
		return access.Principal{}, access.ErrAnonymous
	}
	who, err := m.identifyHTTP(c, r)
	if err != nil {
		m.m.rejected.Inc()
		return who, err
	}
	if !c.Authenticated() {
		return access.Principal{}, errFull
	}
	return who, nil
}

// identifyHTTP returns the caller of a request on a connection.
func (m *Manager) identifyHTTP(c *gate.Conn, r *http.Request) (access.Principal, error) {
	if m.cfg.Insecure {
		return access.Principal{Kind: access.KindInsecure}, nil
	}
	// A password comes before the certificate, as a token does: the caller chose to be this user.
	if user, password, ok := r.BasicAuth(); ok {
		return m.Basic(r.Context(), user, password, c.From(), r.RemoteAddr)
	}
	// Nor does an authorization that is not understood fall back to the certificate.
	if r.Header.Get("Authorization") != "" {
		return access.Principal{}, rhumb.E("session.HTTP", rhumb.Unauthenticated, "the header Authorization is no basic authentication with a user and a password; use that, or a certificate")
	}
	p, ok := identity.PeerFromContext(r.Context())
	if !ok {
		return access.Principal{}, access.ErrAnonymous
	}
	who := PrincipalOf(p)
	if who.Kind != access.KindUser {
		return who, nil
	}
	policy := m.cfg.Policy()
	if policy == nil {
		return access.Principal{}, errNoUsers
	}
	err := checkUser(policy, who.Name, 0)
	if err != nil {
		if unsure := m.confirm(r.Context(), policy, try{user: who.Name, from: c.From()}); unsure != nil {
			return who, unsure
		}
	}
	return who, err
}
