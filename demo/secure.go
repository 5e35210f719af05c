package demo

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/enroll"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
)

// Identity names the files with which commands on this machine connect to a demo that was started
// with --secure. They are those of an operator.
type Identity struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// security is the authority of a secure demo, which the process of the demo serves itself, and the
// identity with which the demo uses its own cluster.
//
// The authority of a demo is on the machine of the nodes, which the documents advise against. A
// demo protects nothing; it shows how the parts work together.
type security struct {
	// authority is the open directory, and log the file to which it writes.
	authority *authority.Authority
	log       *os.File
	// served receives the error of the server when it has ended, and stop ends it.
	served chan error
	stop   context.CancelFunc
	// source holds the certificate of the operator.
	source *identity.Source
}

// openSecurity makes or continues the authority of a secure demo, serves it, and makes a
// certificate of an operator. It does nothing for a demo without TLS.
func (d *run) openSecurity() (err error) {
	if !d.cfg.Secure {
		return nil
	}
	s := &security{served: make(chan error, 1)}
	// Assigned first, so that an error below leaves nothing open.
	d.security = s
	dir := filepath.Join(d.layout.Dir, "authority")
	if s.log, err = os.OpenFile(filepath.Join(d.layout.Dir, "authority.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return rhumb.Wrap(opRun, err)
	}
	cfg := authority.Config{Logger: slog.New(slog.NewJSONHandler(s.log, nil))}
	s.authority, err = authority.Open(dir, cfg)
	// The first start of the demo creates the authority.
	if rhumb.KindOf(err) == rhumb.NotFound {
		if err = authority.Create(dir, newClusterID(), []string{d.layout.AuthorityAddr}, cfg); err == nil {
			s.authority, err = authority.Open(dir, cfg)
		}
	}
	if err != nil {
		return err
	}
	if err := d.serveAuthority(); err != nil {
		return err
	}
	return d.openOperator()
}

// serveAuthority serves the authority until closeSecurity.
func (d *run) serveAuthority() error {
	server, err := authority.NewServer(d.security.authority)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", d.layout.AuthorityAddr)
	if err != nil {
		return rhumb.WrapKind(opRun, rhumb.Unavailable, err)
	}
	var ctx context.Context
	ctx, d.security.stop = context.WithCancel(context.Background())
	go func() { d.security.served <- server.Serve(ctx, l) }()
	return nil
}

// openOperator issues the certificate of an operator for this demo and for commands on this machine. Each start issues
// another one, because a demo may be continued after months.
func (d *run) openOperator() error {
	made, err := d.security.authority.Issue(authority.Order{Role: identity.RoleOperator, Name: "demo"})
	if err != nil {
		return err
	}
	dir := filepath.Join(d.layout.Dir, "operator")
	if _, err := made.Save(dir); err != nil {
		return err
	}
	id := &Identity{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "operator.crt"), Key: filepath.Join(dir, "operator.key")}
	d.layout.Identity = id
	d.security.source, err = identity.OpenSource(identity.SourceConfig{Files: identity.Files{CA: id.CA, Cert: id.Cert, Key: id.Key}})
	return err
}

// closeSecurity stops the authority.
//
// The authority outlives the nodes, which are stopped before: a node that renews while it drains
// still gets an answer.
func (d *run) closeSecurity() {
	s := d.security
	if s == nil {
		return
	}
	if s.source != nil {
		s.source.Close()
	}
	if s.stop != nil {
		s.stop()
		if err := <-s.served; err != nil {
			d.note("the authority: %v\n", err)
		}
	}
	if s.authority != nil {
		_ = s.authority.Close()
	}
	if s.log != nil {
		_ = s.log.Close()
	}
}

// makeTokens makes a token for each node that has no certificate yet. The first node creates the
// cluster.
func (d *run) makeTokens() error {
	if d.security == nil {
		return nil
	}
	for i := range d.layout.Nodes {
		n := &d.layout.Nodes[i]
		// The node has its certificate from an earlier start.
		_, err := os.Stat(enroll.Files(enroll.DirIn(n.Dir)).Cert)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return rhumb.Wrap(opRun, err)
		}
		// A node that has no certificate may have been killed while it enrolled. Its old token
		// would still work, but only until it expires, so a new one is made.
		tok, err := d.makeToken(filepath.Base(n.Dir), i == 0)
		if err != nil {
			return err
		}
		if err := os.WriteFile(tokenFile(n), []byte(tok.Encode()+"\n"), 0o600); err != nil {
			return rhumb.Wrap(opRun, err)
		}
	}
	return nil
}

// makeToken makes one token. The founder of a demo that was stopped before it had its certificate
// has founded nothing, so its old token is replaced.
func (d *run) makeToken(name string, founder bool) (token.Token, error) {
	a := d.security.authority
	if founder {
		tokens, _, err := a.Tokens()
		if err != nil {
			return token.Token{}, err
		}
		for _, t := range tokens {
			id, err := token.ParseID(t.ID)
			if err != nil || !t.Founder {
				continue
			}
			if err := a.RemoveToken(id); err != nil {
				return token.Token{}, err
			}
		}
	}
	return a.CreateToken(authority.TokenRequest{Node: name, Founder: founder})
}

// tokenFile returns the file with the token of a node. It is next to the directory of the node,
// which must be empty at its first start.
func tokenFile(n *Node) string { return n.Dir + ".token" }

// removeTokens removes the files of tokens once all nodes have used them.
func (d *run) removeTokens() {
	for i := range d.layout.Nodes {
		_ = os.Remove(tokenFile(&d.layout.Nodes[i])) // absent without TLS
	}
}

// securityArgs returns the arguments with which a node gets its identity.
func (d *run) securityArgs(n *Node) []string {
	if d.security == nil {
		return []string{"--insecure"}
	}
	return []string{"--token", tokenFile(n)}
}

// clientConfig returns the part of a client's configuration that does not depend on the region.
func (d *run) clientConfig() client.Config {
	id := d.layout.Identity
	if id == nil {
		return client.Config{Insecure: true}
	}
	return client.Config{TLS: &client.TLS{CA: id.CA, Cert: id.Cert, Key: id.Key}}
}

// httpClient returns a client for the admin ports of the nodes, and the scheme of their URLs.
func (d *run) httpClient() (c *http.Client, scheme string) {
	if d.security == nil {
		return http.DefaultClient, "http"
	}
	// Connections are not kept: a node that is restarted by the demo presents another certificate.
	cfg := d.security.source.ClientConfig(identity.Want{Roles: []identity.Role{identity.RoleNode}})
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}, "https"
}

// viewerName is the user of a secure demo who may read all tables and change nothing, and the name
// of the user's role.
const viewerName = "viewer"

// createViewer creates the viewer, which shows how the cluster answers a user without the right to write. The files are in
// the folder viewer of the demo.
func (d *run) createViewer(ctx context.Context) error {
	if d.security == nil {
		return nil
	}
	made, err := d.security.authority.Issue(authority.Order{Role: identity.RoleUser, Name: viewerName})
	if err != nil {
		return err
	}
	if _, err := made.Save(filepath.Join(d.layout.Dir, viewerName)); err != nil {
		return err
	}
	c := d.stations[0].client
	return d.retryUntil(ctx, "the user "+viewerName, func(ctx context.Context) error {
		for _, step := range []func() error{
			func() error { return c.CreateRole(ctx, viewerName) },
			func() error { return c.Grant(ctx, viewerName, access.Scope{Table: "*"}, access.Read) },
			func() error { return c.CreateUser(ctx, viewerName, access.Verifier{}, viewerName) },
		} {
			// From an earlier demo in the same directory, or from an attempt whose answer was lost.
			if err := step(); err != nil && rhumb.KindOf(err) != rhumb.AlreadyExists {
				return err
			}
		}
		return nil
	})
}
