package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
)

// Pauses between attempts to enrol.
const (
	pauseFirst = 250 * time.Millisecond
	pauseMost  = 15 * time.Second
)

// Config configures the identity of a node.
type Config struct {
	// Dir is the folder of the identity.
	Dir string
	// Wall reads the wall clock. Nil means time.Now.
	Wall func() time.Time
	// Logger receives events. Default slog.Default().
	Logger *slog.Logger
}

// setDefaults sets the fields that have no value: the clock of the machine and the default logger.
func (c *Config) setDefaults() {
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// ReadToken reads the token in a file that only its owner may read.
func ReadToken(path string) (token.Token, error) {
	text, err := identity.ReadSecret(path)
	if rhumb.KindOf(err) == rhumb.NotFound {
		// A wrong flag and not a missing record.
		return token.Token{}, rhumb.Ef("enroll.ReadToken", rhumb.InvalidArgument, "--token %s: the file does not exist; `rhumb token create --node NAME --out FILE` makes it, at the authority", path)
	}
	if err != nil {
		return token.Token{}, rhumb.Ef("enroll.ReadToken", rhumb.KindOf(err), "--token: %v", err)
	}
	t, err := token.Parse(string(text))
	if err != nil {
		return t, rhumb.Ef("enroll.ReadToken", rhumb.KindOf(err), "--token %s: %v", path, err)
	}
	return t, nil
}

// Ensure makes sure that a node has an identity that is valid now. A node without one enrols with
// the token in tokenFile; an expired certificate is renewed. The token is not read if it is not
// needed, so that a node restarts after its token was used and deleted.
func Ensure(ctx context.Context, cfg Config, tokenFile string) error {
	const op rhumb.Op = "enroll.Ensure"
	cfg.setDefaults()
	// Without a token and without a folder there is nothing to lock.
	if _, err := os.Stat(cfg.Dir); errors.Is(err, fs.ErrNotExist) && tokenFile == "" {
		return missing(cfg.Dir)
	}
	// The lock covers the decision too. A second process that started at the same time would
	// otherwise read the same missing files and use the token with another key.
	unlock, err := lockDir(cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	// First, because every other step reads the files that an interrupted installation has not
	// moved yet.
	if err := finishInstall(cfg.Dir); err != nil {
		return err
	}
	leaf, err := readLeaf(cfg.Dir)
	switch {
	case err != nil:
		return err
	case leaf == nil && tokenFile == "":
		return missing(cfg.Dir)
	case leaf == nil:
		return enrolWithFile(ctx, cfg, tokenFile)
	case !cfg.Wall().After(leaf.NotAfter):
		return nil
	}
	// The node was down for longer than its certificate lasts.
	errRenew := renewOnce(ctx, cfg)
	if errRenew != nil && tokenFile != "" {
		// A token that cannot be read must not hide the cause of the failed renewal:
		// operators delete used tokens.
		if _, err := ReadToken(tokenFile); err == nil {
			return enrolWithFile(ctx, cfg, tokenFile)
		}
	}
	// A node that starts before its authority, after a power cut of all, waits for it: a supervisor would stop trying after a
	// few restarts. Only the authority knows when it is too late for a renewal, and says so.
	if errRenew != nil && !isDefinite(errRenew) {
		cfg.Logger.Warn("the certificate has expired, and the node waits for its authority to renew it", "expired", leaf.NotAfter, "why", rhumb.Message(errRenew))
		errRenew = retry(ctx, cfg, "cannot renew the expired certificate yet; the node keeps trying", func(ctx context.Context) error { return renewOnce(ctx, cfg) })
	}
	if errRenew == nil {
		cfg.Logger.Info("the certificate had expired and was renewed", "expired", leaf.NotAfter)
		return nil
	}
	return rhumb.Ef(op, rhumb.Unauthenticated,
		"the certificate %s expired at %s (the clock of this host shows %s) and cannot be renewed: %v; start the authority (rhumb authority serve), or start this node once with a new token",
		filepath.Join(cfg.Dir, certFile), leaf.NotAfter.UTC().Format(time.RFC3339), cfg.Wall().UTC().Format(time.RFC3339), errRenew)
}

// missing returns the error of a node that has neither an identity nor a token. The message names
// the three ways to start it.
func missing(dir string) error {
	return rhumb.Ef("enroll.Ensure", rhumb.InvalidArgument,
		"the node has no identity in %s; start it once with --token FILE (rhumb token create makes the token), or give --cert, --key and --ca of another authority, or --insecure on loopback addresses", dir)
}

// enrolWithFile reads the token and enrols. The file is read only now, so that nodes that need no
// token start without the file.
func enrolWithFile(ctx context.Context, cfg Config, tokenFile string) error {
	tok, err := ReadToken(tokenFile)
	if err != nil {
		return err
	}
	return enrolNode(ctx, cfg, tok)
}

// enrolNode exchanges a token for a certificate. It retries until the token expires or ctx ends.
func enrolNode(ctx context.Context, cfg Config, tok token.Token) error {
	const op rhumb.Op = "enroll.Enrol"
	key, err := pendingKey(cfg.Dir)
	if err != nil {
		return err
	}
	csr, err := encodeCSR(key)
	if err != nil {
		return err
	}
	// The same request for every attempt. The authority may have processed an attempt whose answer
	// was lost, and it repeats its answer only for the same key.
	req := authority.EnrolRequest{Token: tok.Encode(), CSR: csr}
	var grant authority.Grant
	cfg.Logger.Info("enrolling", "node", tok.Node, "cluster", tok.Cluster, "authority", tok.Addresses)
	err = retryUntil(ctx, cfg, tok.Expires, func(ctx context.Context) error {
		return tryAddresses(tok.Addresses, func(addr string) error {
			c := newCaller(addr, cfg.Wall, trustPin(tok.Cluster, tok.Pin), nil)
			if err := c.checkClock(ctx); err != nil {
				return err
			}
			stepHook("clock checked")
			grant = authority.Grant{}
			err := c.post(ctx, authority.PathEnrol, req, &grant)
			stepHook("answered")
			return err
		})
	})
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	name := identity.Name{Cluster: tok.Cluster, Role: identity.RoleNode, Name: tok.Node}
	if err := adopt(cfg, key, name, grant.Founder, &grant); err != nil {
		return err
	}
	// Another token of a founder allows another cluster. The authority makes none before an operator has removed the first.
	if err := os.Remove(filepath.Join(cfg.Dir, foundedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	cfg.Logger.Info("enrolled", "node", tok.Node, "cluster", tok.Cluster, "files", cfg.Dir)
	return nil
}

// retryUntil calls f until it succeeds, fails for good, or the token has expired.
func retryUntil(ctx context.Context, cfg Config, end time.Time, f func(context.Context) error) error {
	return retry(ctx, cfg, "cannot enrol yet; the node keeps trying", func(ctx context.Context) error {
		err := f(ctx)
		// The token cannot be used any more, whoever answers.
		if err != nil && !isDefinite(err) && ctx.Err() == nil && cfg.Wall().After(end) {
			return rhumb.Ef("enroll.retryUntil", rhumb.Unauthenticated, "the token expired at %s before the authority answered: %v; make a new one with rhumb token create", end.UTC().Format(time.RFC3339), err)
		}
		return err
	})
}

// retry calls f until it succeeds, fails for good, or ctx ends. A reason is logged once.
func retry(ctx context.Context, cfg Config, what string, f func(context.Context) error) error {
	last := ""
	for pause := pauseFirst; ; pause = min(2*pause, pauseMost) {
		err := f(ctx)
		if err == nil || isDefinite(err) || ctx.Err() != nil {
			return err
		}
		if why := rhumb.Message(err); why != last {
			cfg.Logger.Warn(what, "why", why)
			last = why
		}
		wait := max(pause, rhumb.RetryAfterOf(err))
		select {
		case <-ctx.Done():
			return err
		// Spread, so that many nodes that start together do not ask together.
		case <-time.After(wait*3/4 + rand.N(wait/2)):
		}
	}
}

// tryAddresses calls f with each address until one succeeds. A refusal by the authority itself ends
// it: all addresses are those of one authority. Of several errors, it returns the most definite.
func tryAddresses(addrs []string, f func(addr string) error) (err error) {
	// One after the other: a token must not be used at two addresses at the same time, although the
	// ledger would order them.
	for _, addr := range addrs {
		e := f(addr)
		if e == nil {
			return nil
		}
		if err == nil || isDefinite(e) && !isDefinite(err) {
			err = e
		}
	}
	return err
}

// adopt checks the answer of the authority and makes it the identity of the node.
func adopt(cfg Config, key crypto.Signer, name identity.Name, founder bool, grant *authority.Grant) error {
	const op rhumb.Op = "enroll.adopt"
	bad := func(err error) error {
		return rhumb.Ef(op, rhumb.Unavailable, "the authority answers with a certificate that this node cannot use: %v", err)
	}
	chain, err := identity.ParseCertificates([]byte(grant.Certificate))
	if err != nil {
		return bad(err)
	}
	roots, err := identity.ParseCertificates([]byte(grant.CA))
	if err != nil {
		return bad(err)
	}
	v := identity.Verifier{Cluster: name.Cluster, Authorities: roots}
	// The answer is checked before any file changes. An identity that other nodes would refuse must
	// not replace one that works.
	if _, err := v.Verify(chain, identity.Want{Roles: []identity.Role{name.Role}, Name: name.Name}, cfg.Wall()); err != nil {
		return bad(err)
	}
	if pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(chain[0].PublicKey) {
		return bad(errors.New("it is for another key"))
	}
	text, err := identity.EncodeKey(key)
	if err != nil {
		return err
	}
	// The state is written together with the certificate: a head without its certificate would
	// accuse the authority of a loss.
	state := State{Cluster: name.Cluster.String(), Node: name.Name, Founder: founder, Addresses: grant.Addresses, Head: &grant.Head}
	return install(cfg.Dir, map[string][]byte{
		certFile: []byte(grant.Certificate), caFile: []byte(grant.CA), keyFile: text, stateFile: state.encode(),
	})
}

// renewalTime returns when a certificate is to be renewed: at two thirds of its life, and up to a
// fifteenth earlier, so that nodes that enrolled together renew at different times.
func renewalTime(leaf *x509.Certificate, spread float64) time.Time {
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return leaf.NotAfter.Add(-life / 3).Add(-time.Duration(spread * float64(life/15)))
}
