package enroll

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/identity"
)

// Bounds of requests.
const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 15 * time.Second
	answerSizeMax  = 1 << 20
	// clockDifferenceMax is the difference to the authority's clock at which a node does not enrol.
	// Certificates are backdated by an hour, so smaller differences harm nothing; larger ones would
	// break the hybrid clock of the cluster next.
	clockDifferenceMax = 5 * time.Minute
)

// trust decides whether a chain is that of the authority's server.
//
// The time is a parameter, because the check of the clock has to look at a certificate before this
// host knows what time it is.
type trust func(chain []*x509.Certificate, at time.Time) error

// trustPin trusts the server whose chain leads to a key with the hash.
func trustPin(cluster rhumb.ClusterID, pin [32]byte) trust {
	return func(chain []*x509.Certificate, at time.Time) error {
		// Not the first one: the leaf is the server's own key, and a token never pins that.
		for _, c := range chain[1:] {
			if c.IsCA && authority.PinOf(c) == pin {
				// The pinned certificate is the only root. The hash alone proves nothing: anybody
				// can copy the certificate of an authority into a chain, but only its key can have
				// signed the rest.
				return verifyServer(cluster, []*x509.Certificate{c}, chain, at)
			}
		}
		return rhumb.Ef("enroll.trustPin", rhumb.Unauthenticated,
			"the server is not the authority that made the token (its keys do not include %x…); nothing was sent to it; check the address, or make a token with this authority", pin[:8])
	}
}

// trustRoots trusts the server whose chain leads to one of the certificates.
func trustRoots(cluster rhumb.ClusterID, roots []*x509.Certificate) trust {
	return func(chain []*x509.Certificate, at time.Time) error { return verifyServer(cluster, roots, chain, at) }
}

// verifyServer checks that a chain belongs to the server of the authority of a cluster. The
// certificate of a node is refused, so that a node that is broken into cannot play the authority
// for others.
func verifyServer(cluster rhumb.ClusterID, roots, chain []*x509.Certificate, at time.Time) error {
	v := identity.Verifier{Cluster: cluster, Authorities: roots}
	_, err := v.Verify(chain, identity.Want{Roles: []identity.Role{identity.RoleAuthority}}, at)
	return err
}

// caller sends requests to one address of an authority.
type caller struct {
	addr string
	wall func() time.Time
	// trust decides whether the server is the authority.
	trust trust
	// http makes a connection for each request: requests are minutes apart, and a new connection
	// shows a certificate that was renewed.
	http *http.Client
	// anyTime accepts a server whose certificate is valid at another time than that of this host.
	// Nothing secret may be sent then.
	anyTime bool
}

// newCaller returns a caller that presents a certificate, if pair is not nil.
func newCaller(addr string, wall func() time.Time, t trust, pair *tls.Certificate) *caller {
	c := &caller{addr: addr, wall: wall, trust: t}
	// The name in the address is not sent either, so that the server has one certificate for all
	// its addresses.
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// VerifyConnection replaces the verification by host name: the authority is identified by
		// its key, wherever it runs.
		InsecureSkipVerify: true, //nolint:gosec
		VerifyConnection:   c.verify,
	}
	if pair != nil {
		cfg.Certificates = []tls.Certificate{*pair}
	}
	c.http = &http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{
			// No proxy from the environment: it would see addresses of the cluster, and TLS would
			// fail with a message about the proxy.
			TLSClientConfig: cfg, TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: 16 << 10, DisableKeepAlives: true,
		},
		// An authority never redirects. Following one would send the token to an address that
		// nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// verify is the verification of the TLS connection. It runs before any request is written, so that
// no token and no certificate request reaches another server.
func (c *caller) verify(state tls.ConnectionState) error {
	chain := state.PeerCertificates
	if len(chain) == 0 {
		return rhumb.E("enroll.verify", rhumb.Unauthenticated, "the server presents no certificate")
	}
	err := c.trust(chain, c.wall())
	if reason := identity.ReasonOf(err); c.anyTime && (reason == identity.ReasonExpired || reason == identity.ReasonNotYetValid) {
		// A moment at which the certificate was certainly valid.
		return c.trust(chain, chain[0].NotBefore.Add(time.Minute))
	}
	return err
}

// checkClock compares the clock of this host with that of the authority. It runs before a token is
// sent, and its connection carries nothing secret.
//
// A connection of its own, and not the error of the handshake: the handshake fails with "expired"
// or "not yet valid", which says that one of two clocks is wrong but not which and by how much.
func (c *caller) checkClock(ctx context.Context) error {
	const op rhumb.Op = "enroll.checkClock"
	c.anyTime = true
	defer func() { c.anyTime = false }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.addr+authority.PathLive, nil)
	if err != nil {
		return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.describe(err)
	}
	defer resp.Body.Close()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return rhumb.Ef(op, rhumb.Unavailable, "the authority at %s does not tell its time: %v", c.addr, err)
	}
	ours := c.wall()
	// The Date of HTTP has whole seconds.
	difference := ours.Truncate(time.Second).Sub(theirs)
	if difference.Abs() <= clockDifferenceMax {
		return nil
	}
	how := "ahead of"
	if difference < 0 {
		how = "behind"
	}
	return rhumb.Ef(op, rhumb.Unauthenticated,
		"the clock of this host is wrong: it shows %s, which is %v %s the authority at %s (%s); set the clock, for example with chrony, and start again; the token was not used",
		ours.UTC().Format(time.RFC3339), difference.Abs(), how, c.addr, theirs.UTC().Format(time.RFC3339))
}

// post sends a document and decodes the answer.
func (c *caller) post(ctx context.Context, path string, doc, into any) error {
	const op rhumb.Op = "enroll.post"
	body, err := json.Marshal(doc)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.addr+path, bytes.NewReader(body))
	if err != nil {
		return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return c.describe(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerSizeMax))
	if err != nil {
		return rhumb.Ef(op, rhumb.Unavailable, "the answer of the authority at %s was cut off: %v", c.addr, err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(text, into); err != nil {
			return rhumb.Ef(op, rhumb.Unavailable, "the answer of the authority at %s cannot be decoded: %v", c.addr, err)
		}
		return nil
	}
	return c.decodeError(resp, text)
}

// decodeError returns the error in an answer.
func (c *caller) decodeError(resp *http.Response, text []byte) error {
	const op rhumb.Op = "enroll.decodeError"
	var doc authority.ErrorDoc
	if err := json.Unmarshal(text, &doc); err != nil || doc.Error.Kind == "" {
		return rhumb.Ef(op, rhumb.Unavailable, "the authority at %s answers %s", c.addr, resp.Status)
	}
	// A kind of a newer version is retried, like a failure without a kind.
	kind := rhumb.Unavailable
	for _, k := range rhumb.Kinds() {
		if k.String() == doc.Error.Kind {
			kind = k
		}
	}
	e := rhumb.Ef(op, kind, "the authority at %s refuses: %s", c.addr, doc.Error.Message)
	e.RetryAfter = time.Duration(doc.Error.RetryAfterMillis) * time.Millisecond
	return e
}

// describe turns an error of net/http into one for people. A failed verification keeps its kind.
func (c *caller) describe(err error) error {
	const op rhumb.Op = "enroll.call"
	if e, ok := errors.AsType[*rhumb.Error](err); ok {
		return rhumb.Ef(op, e.Kind, "authority at %s: %s", c.addr, rhumb.Message(e))
	}
	text := err.Error()
	// net/http puts the method and the URL in front.
	if i := strings.Index(text, "\": "); i >= 0 {
		text = text[i+3:]
	}
	return rhumb.Ef(op, rhumb.Unavailable, "the authority at %s does not answer: %s", c.addr, text)
}

// isDefinite reports whether asking again cannot help. Unknown kinds are retried. The retries of an
// enrolment end with the token, and a refusal that is retried costs less than a failure that is
// not.
func isDefinite(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.Unavailable, rhumb.Overloaded, rhumb.DeadlineExceeded, rhumb.Internal, rhumb.Other, rhumb.Corrupt, rhumb.DiskFull:
		return false
	}
	return true
}
