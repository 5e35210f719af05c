package connect

import (
	"context"
	"net/http"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
)

// Admin sends requests to the admin ports of nodes, with the same identity as a client: the
// certificate, or the user and the password as HTTP's basic authentication.
//
// It is not an http.Client of its own for each command, because the rules of identity are the same
// as those of package client, and an exception for one port would be the one that is exploited.
type Admin struct {
	http     *http.Client
	source   *identity.Source // nil without TLS
	user     string
	password func() (string, error)
}

// OpenAdmin returns an Admin that identifies itself as a client with cfg does. A password that was
// asked for is not asked for again.
func OpenAdmin(cfg client.Config) (*Admin, error) {
	// Insecure nodes listen on loopback addresses only.
	if cfg.TLS == nil {
		return &Admin{http: &http.Client{}}, nil
	}
	src, err := identity.OpenSource(identity.SourceConfig{
		Files: identity.Files{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.CA}, Cluster: cfg.TLS.Cluster,
	})
	if err != nil {
		return nil, err
	}
	// Only nodes have an admin port, so another certificate of the cluster is refused: a user must
	// not be able to collect the passwords of others.
	transport := &http.Transport{TLSClientConfig: src.ClientConfig(identity.Want{Roles: []identity.Role{identity.RoleNode}})}
	return &Admin{http: &http.Client{Transport: transport}, source: src, user: cfg.User, password: cfg.Password}, nil
}

// Close ends the connections.
func (a *Admin) Close() {
	a.http.CloseIdleConnections()
	if a.source != nil {
		a.source.Close()
	}
}

// Do sends a request without a body to the admin port at an address. The caller closes the body of
// the answer.
func (a *Admin) Do(ctx context.Context, method, addr, path string) (*http.Response, error) {
	scheme := "http"
	if a.source != nil {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+addr+path, nil)
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if a.password != nil {
		password, err := a.password()
		if err != nil {
			return nil, err
		}
		req.SetBasicAuth(a.user, password)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	// A node says nothing about itself to somebody whom it does not know.
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		_ = resp.Body.Close()
		return nil, rhumb.Ef(op, rhumb.Unauthenticated, "the admin port %s does not accept this identity; give --cert and --key, or --user and a password", addr)
	case http.StatusForbidden:
		_ = resp.Body.Close()
		return nil, rhumb.Ef(op, rhumb.PermissionDenied, "the admin port %s refuses %s %s; an administrator grants the rights of the cluster with `rhumb grant ROLE --cluster-wide`", addr, method, path)
	}
	return resp, nil
}
