package enroll

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/identity"
)

// Intervals of a Keeper.
const (
	// checkInterval is the interval at which a node asks its authority what to trust. It bounds how
	// long a rotation takes to reach all nodes, and so how long an operator waits before retiring a
	// key.
	checkInterval = 5 * time.Minute
	// retryFirst and retryMost are the pauses after failures.
	retryFirst = 10 * time.Second
	retryMost  = 10 * time.Minute
)

// Keeper renews the certificate of a node and updates the trusted authorities. The absence of the
// authority harms nobody before the certificate expires.
//
// The keeper never stops the node. Everything it fails to do is repeated, and the certificate that
// it could not renew is still valid for days; only its end stops the traffic, and that is reported
// by package identity.
type Keeper struct {
	cfg    Config
	spread float64 // of the renewal time, 0 to 1

	// renewals and checks count attempts by result. An operator watches renewals: their failure
	// becomes an outage when the certificate expires.
	renewals *prometheus.CounterVec
	checks   *prometheus.CounterVec

	// wake holds a request of CheckNow.
	wake chan struct{}

	// Only the goroutine of Run uses the fields below.
	failures int
	// nextCheck is when the authority is asked again. It is zero at the start, so that a restart
	// fetches the newest authorities.
	nextCheck time.Time
	// renewNow is set if the authority asked for a renewal before time.
	renewNow bool
}

// NewKeeper returns the keeper of an identity that Ensure made. It returns nil if the issuer of the
// identity is not an authority of Rhumb.
func NewKeeper(cfg Config) *Keeper {
	cfg.setDefaults()
	if _, err := os.Stat(filepath.Join(cfg.Dir, stateFile)); err != nil {
		return nil
	}
	count := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"result"})
	}
	return &Keeper{
		cfg: cfg, spread: mathrand.Float64(), wake: make(chan struct{}, 1),
		renewals: count("rhumb_identity_renewals_total", "Attempts to renew the certificate, by result: ok or the kind of the error."),
		checks:   count("rhumb_identity_checks_total", "Questions to the authority what to trust, by result: ok or the kind of the error."),
	}
}

// Collectors returns the metrics of the keeper.
func (k *Keeper) Collectors() []prometheus.Collector {
	return []prometheus.Collector{k.renewals, k.checks}
}

// CheckNow makes Run ask the authority at once instead of in a few minutes. An operator wants that
// after a rotation.
func (k *Keeper) CheckNow() {
	select {
	case k.wake <- struct{}{}:
	default: // a request waits already
	}
}

// Run keeps the identity fresh until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := k.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
			k.nextCheck = time.Time{}
		case <-time.After(wait):
		}
	}
}

// step performs the next due action and returns how long to wait.
func (k *Keeper) step(ctx context.Context) time.Duration {
	// A renewal that failed half-way, because of a full disk for example, has moved some files of the new set. The others are
	// needed first: the key and the certificate may not belong to each other now.
	if err := finishInstall(k.cfg.Dir); err != nil {
		k.cfg.Logger.Warn("the files of a renewed certificate cannot be moved into place; the node keeps trying", "dir", k.cfg.Dir, "err", rhumb.Message(err))
		return retryFirst
	}
	// Read again at each step, because an operator or another tool may replace the files at any
	// time.
	leaf, err := readLeaf(k.cfg.Dir)
	if err != nil || leaf == nil {
		k.cfg.Logger.Error("the certificate of the node cannot be read", "dir", k.cfg.Dir, "err", err)
		return retryMost
	}
	now := k.cfg.Wall()
	if renewAt := renewalTime(leaf, k.spread); k.renewNow || !now.Before(renewAt) {
		return k.renew(ctx, leaf)
	}
	// A clock that was ahead and was set back must not put the check off until then.
	if now.Before(k.nextCheck) && k.nextCheck.Sub(now) <= checkInterval*6/5 {
		return k.untilNext(leaf, now)
	}
	renew, err := checkOnce(ctx, k.cfg)
	k.checks.WithLabelValues(resultOf(err)).Inc()
	if err != nil {
		// No news: the authority may be away for a day. A failed renewal is logged.
		k.cfg.Logger.Debug("the authority does not answer", "err", rhumb.Message(err))
	}
	k.renewNow = renew
	k.nextCheck = now.Add(checkInterval*4/5 + mathrand.N(checkInterval*2/5))
	if renew {
		return 0
	}
	return k.untilNext(leaf, now)
}

// untilNext returns the time until the next check or the renewal, whichever is first.
func (k *Keeper) untilNext(leaf *x509.Certificate, now time.Time) time.Duration {
	next := k.nextCheck
	if renewAt := renewalTime(leaf, k.spread); renewAt.Before(next) {
		next = renewAt
	}
	// A clock that jumps must not make the keeper sleep for long or spin.
	return min(max(next.Sub(now), time.Second), checkInterval)
}

// renew renews the certificate. After a failure it waits longer each time.
func (k *Keeper) renew(ctx context.Context, leaf *x509.Certificate) time.Duration {
	err := renewOnce(ctx, k.cfg)
	k.renewals.WithLabelValues(resultOf(err)).Inc()
	if err == nil {
		k.failures, k.renewNow = 0, false
		if fresh, err := readLeaf(k.cfg.Dir); err == nil && fresh != nil {
			k.cfg.Logger.Info("the certificate was renewed", "expires", fresh.NotAfter, "serial", identity.SerialOf(fresh))
		}
		return time.Second
	}
	if ctx.Err() != nil {
		return 0
	}
	// The shift is bounded, because failures may count for a month.
	pause := min(retryFirst<<min(k.failures, 10), retryMost)
	k.failures++
	k.cfg.Logger.Warn("the certificate cannot be renewed; the node keeps trying", "expires", leaf.NotAfter, "retry_in", pause, "err", rhumb.Message(err))
	return pause*3/4 + mathrand.N(pause/2)
}

// resultOf returns the label of an outcome.
func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	return rhumb.KindOf(err).String()
}

// own is the identity of a node on disk.
type own struct {
	state *State
	// name is taken from the certificate, whose renewal keeps it.
	name identity.Name
	// roots are the authorities that the node trusts.
	roots []*x509.Certificate
	pair  *tls.Certificate
}

// readOwn reads the identity of a node and the authorities that it trusts. Every renewal reads the
// files again, because an operator may have replaced them.
//
// No attempt is made to read the files as one set. If another process replaces them at this moment,
// the key does not belong to the certificate, the error is reported, and the next attempt succeeds.
func readOwn(dir string) (*own, error) {
	const op rhumb.Op = "enroll.readOwn"
	var o own
	var err error
	if o.state, err = ReadState(dir); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.NotFound, err)
	}
	files := Files(dir)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	o.pair = &pair
	if o.name, err = identity.FromCertificate(pair.Leaf); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(files.CA)
	if err == nil {
		o.roots, err = identity.ParseCertificates(text)
	}
	return &o, rhumb.WrapKind(op, rhumb.Corrupt, err)
}

// renewOnce asks each address for another certificate once.
func renewOnce(ctx context.Context, cfg Config) error {
	const op rhumb.Op = "enroll.Renew"
	o, err := readOwn(cfg.Dir)
	if err != nil {
		return err
	}
	// A new key each time: a key that was stolen is of no use once its certificate has expired.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	csr, err := encodeCSR(key)
	if err != nil {
		return err
	}
	var grant authority.Grant
	err = tryAddresses(o.state.Addresses, func(addr string) error {
		c := newCaller(addr, cfg.Wall, trustRoots(o.name.Cluster, o.roots), o.pair)
		grant = authority.Grant{}
		return c.post(ctx, authority.PathRenew, authority.RenewRequest{CSR: csr, Head: o.state.Head}, &grant)
	})
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	return adopt(cfg, key, o.name, o.state.Founder, &grant)
}

// checkOnce asks the authority what to trust, and whether to renew now.
func checkOnce(ctx context.Context, cfg Config) (renew bool, err error) {
	const op rhumb.Op = "enroll.Check"
	o, err := readOwn(cfg.Dir)
	if err != nil {
		return false, err
	}
	var standing authority.Standing
	err = tryAddresses(o.state.Addresses, func(addr string) error {
		c := newCaller(addr, cfg.Wall, trustRoots(o.name.Cluster, o.roots), o.pair)
		standing = authority.Standing{}
		return c.post(ctx, authority.PathCheck, authority.CheckRequest{Head: o.state.Head}, &standing)
	})
	if err != nil {
		return false, rhumb.Wrap(op, err)
	}
	roots, err := identity.ParseCertificates([]byte(standing.CA))
	if err != nil || len(standing.Addresses) == 0 {
		return false, rhumb.Ef(op, rhumb.Unavailable, "the answer of the authority holds no certificates or no addresses: %v", err)
	}
	// The own certificate has to stay valid: a bundle without its authority arrives with Renew, and
	// the renewal then brings the bundle.
	v := identity.Verifier{Cluster: o.name.Cluster, Authorities: roots}
	if _, err := v.Verify(chainOf(o.pair), identity.Want{Roles: []identity.Role{o.name.Role}}, cfg.Wall()); err != nil {
		return true, nil
	}
	// Written only if it differs: every write makes the node load its identity again.
	if old, err := os.ReadFile(filepath.Join(cfg.Dir, caFile)); err != nil || string(old) != standing.CA {
		if err := ledger.WriteFile(filepath.Join(cfg.Dir, caFile), []byte(standing.CA), 0o600); err != nil {
			return false, rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		cfg.Logger.Info("the trusted authorities have changed", "number", len(roots))
	}
	o.state.Addresses, o.state.Head = standing.Addresses, &standing.Head
	err = ledger.WriteFile(filepath.Join(cfg.Dir, stateFile), o.state.encode(), 0o600)
	return standing.Renew, rhumb.WrapKind(op, rhumb.Unavailable, err)
}

// chainOf returns the certificates of a pair.
func chainOf(pair *tls.Certificate) (chain []*x509.Certificate) {
	for _, der := range pair.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, c)
		}
	}
	return chain
}
