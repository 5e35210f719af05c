package bench

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
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

// OperatorConfig returns the configuration of a client with all rights, whose calls have a timeout.
// At a secure cluster, the client has the certificate of an operator.
func (c *Cluster) OperatorConfig(timeout time.Duration) client.Config {
	cfg := client.Config{Addrs: c.Addrs(), Timeout: timeout}
	if c.Identity == nil {
		cfg.Insecure = true
	} else {
		cfg.TLS = &client.TLS{CA: c.Identity.CA, Cert: c.Identity.Cert, Key: c.Identity.Key}
	}
	return cfg
}

// ClientConfig returns the configuration of a client under measurement, whose calls have a timeout.
// At a secure cluster, the client logs in with a password, as services do, so that a measurement
// includes logins and authorization.
func (c *Cluster) ClientConfig(timeout time.Duration) client.Config {
	cfg := c.OperatorConfig(timeout)
	if c.Identity != nil {
		cfg.TLS.Cert, cfg.TLS.Key = "", ""
		cfg.User, cfg.Password = benchUser, func() (string, error) { return c.password, nil }
	}
	return cfg
}

// addUser creates the user of ClientConfig, with a random password. The user has all rights to all
// tables, and sees the state of the cluster, which measurements ask for. addUser does nothing for a
// cluster without TLS.
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
		return rhumb.Wrap(op, err)
	}
	operator, err := client.Open(ctx, c.OperatorConfig(userTimeout))
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	defer operator.Close()
	// A directory that is measured again has role and user, but nobody knows the old password.
	if err = operator.CreateRole(ctx, benchUser); err != nil && rhumb.KindOf(err) != rhumb.AlreadyExists {
		return rhumb.Wrap(op, err)
	}
	for scope, rights := range map[access.Scope]access.Rights{{Table: access.AllTables}: access.TableRights, {Cluster: true}: access.Read} {
		if err := operator.Grant(ctx, benchUser, scope, rights); err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	err = operator.CreateUser(ctx, benchUser, v, benchUser)
	if rhumb.KindOf(err) == rhumb.AlreadyExists {
		err = operator.SetPassword(ctx, benchUser, v)
	}
	return rhumb.Wrap(op, err)
}
