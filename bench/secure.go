package bench

import (
	"context"
	"crypto/rand"
	"log/slog"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
	"github.com/rhumbdb/rhumb/identity"
)

// Identity names the files of an operator of a secure cluster.
type Identity struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

const (
	// benchUser is the user that measures a secure cluster, and the name of its role.
	benchUser = "bench"
	// userTimeout bounds the creation of the user.
	userTimeout = 20 * time.Second
)

// addUser creates a user with a random password who may use all tables, so that a measurement of a secure
// cluster includes logins and authorization. It does nothing for a cluster without TLS.
func (c *Cluster) addUser(ctx context.Context) error {
	const op rhumb.Op = "bench.addUser"
	if c.Identity == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, userTimeout)
	defer cancel()
	c.password = rand.Text()
	v, err := login.NewVerifier(benchUser, c.password)
	if err != nil {
		return err
	}
	src, err := identity.OpenSource(identity.SourceConfig{Files: c.Identity.files(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer src.Close()
	conn, err := api.Connect(c.Nodes[0].Addr, nil, src.ClientCredentials(identity.Want{Roles: []identity.Role{identity.RoleNode}}))
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer conn.Close()
	a := rhumbpb.NewAccessClient(conn)
	// A directory that is measured again has the role already.
	_, err = a.CreateRole(ctx, &rhumbpb.CreateRoleRequest{Name: benchUser})
	if err == nil || isTaken(err) {
		_, err = a.AlterGrant(ctx, &rhumbpb.AlterGrantRequest{Role: benchUser, Scope: &rhumbpb.Scope{Table: "*"}, Add: uint32(access.TableRights)})
	}
	if err == nil {
		_, err = a.CreateUser(ctx, &rhumbpb.CreateUserRequest{Name: benchUser, Verifier: api.EncodeVerifier(v), Roles: []string{benchUser}})
	}
	if isTaken(err) {
		_, err = a.AlterUser(ctx, &rhumbpb.AlterUserRequest{Name: benchUser, Verifier: api.EncodeVerifier(v)})
	}
	if err != nil {
		e, _, _ := api.FromStatus(op, err)
		return e
	}
	return nil
}

// isTaken reports whether something could not be created because it exists.
func isTaken(err error) bool {
	if err == nil {
		return false
	}
	e, _, _ := api.FromStatus("bench", err)
	return e.Kind == rhumb.AlreadyExists
}

// files returns the identity as package identity takes it.
func (i *Identity) files() identity.Files {
	return identity.Files{Cert: i.Cert, Key: i.Key, CA: i.CA}
}

// ClientConfig returns the configuration of a client whose calls have a timeout. At a secure cluster, the client
// logs in as a user.
func (c *Cluster) ClientConfig(timeout time.Duration) client.Config {
	if c.Identity == nil {
		return client.Config{Addrs: c.Addrs(), Insecure: true, Timeout: timeout}
	}
	return client.Config{
		Addrs: c.Addrs(), TLS: &client.TLS{CA: c.Identity.CA}, Timeout: timeout,
		User: benchUser, Password: func() (string, error) { return c.password, nil },
	}
}
