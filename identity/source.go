package identity

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
)

const (
	// pollDefault is the interval at which a Source looks at its files and at the validity of its
	// connections.
	pollDefault = time.Second
	// retryInterval is the interval at which files that were rejected are tried again unchanged: a
	// certificate that is not valid yet becomes valid.
	retryInterval = time.Minute
	// warnInterval is the interval of warnings about a certificate that expires soon.
	warnInterval = time.Hour
	// warnShare and warnMax say when warnings begin: at a quarter of the lifetime, at most 30 days
	// before the end. Renewal at two thirds of the lifetime has then failed for a while.
	warnShare = 4
	warnMax   = 30 * 24 * time.Hour
	// recheckInterval is the interval at which all connections are verified again, because
	// authorities expire too.
	recheckInterval = time.Hour
)

// SourceConfig configures a Source.
//
// Files are watched. PEM takes precedence and is fixed for the life of the Source, for programs that
// keep their secrets elsewhere.
type SourceConfig struct {
	// Files or PEM holds the identity. Without certificate and key the bearer is anonymous, and can
	// only be a client.
	Files Files
	PEM   PEM
	// Roles holds the roles that this member's certificate may have. Empty accepts every role.
	Roles []Role
	// Cluster is the cluster of all accepted certificates. Zero means the cluster of this member's certificate
	// or, for a member without one, the cluster of the first server whose certificate is verified.
	Cluster rhumb.ClusterID
	// Poll is the interval at which files are checked; default 1 s.
	Poll time.Duration
	// Wall reads the wall clock. Nil means time.Now.
	Wall func() time.Time
	// Logger receives events. Default slog.Default().
	Logger *slog.Logger
}

// Trust holds the additions of the metadata to the files of a member.
//
// Files and metadata complete each other. A node that starts has only its files, because it cannot
// read the metadata before it trusts somebody; a running cluster changes its mind in the metadata,
// which reaches all nodes in seconds. What the metadata rejects stays rejected, whatever the files
// contain.
type Trust struct {
	// Authorities are trusted in addition to those in the CA file, if their proofs are valid.
	Authorities []Vouched
	// Distrusted holds authorities, as AuthorityOf identifies them, that are trusted no longer,
	// whatever their origin.
	Distrusted []string
	Revoked    []Revoked
	// RevokedBefore holds for bearers the time before which their certificates were revoked, as in Verifier.
	RevokedBefore map[string]time.Time
}

// Source holds the identity of one member and the open connections that rely on it. Its methods may
// be called from many goroutines.
//
// A handshake takes one snapshot of current and one of verifier, without a lock, and both are
// immutable. Changes are made one at a time under loading; they store the new snapshot and only
// then walk the list of connections, so that every connection is seen by the walk or verified
// against the new snapshot (watchConn checks the gap between both).
type Source struct {
	cfg      SourceConfig
	m        metrics
	current  atomic.Pointer[loaded]
	verifier atomic.Pointer[Verifier]
	// pinned is the cluster of an anonymous client after its first connection; nil before.
	pinned atomic.Pointer[rhumb.ClusterID]

	// ignored are the authorities in trust whose proofs are not valid; nil before the first.
	ignored atomic.Pointer[[]Ignored]

	loading sync.Mutex // guards trust, and makes changes of current and verifier one at a time
	trust   Trust

	// holds counts, for each address, the handshakes that failed since the last success; see holdOff.
	// It has as many entries as the process has servers.
	holds sync.Map

	mu    sync.Mutex // guards conns
	conns map[*Conn]struct{}

	log    throttle
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// OpenSource loads an identity and watches its files until Close.
func OpenSource(cfg SourceConfig) (*Source, error) {
	const op rhumb.Op = "identity.OpenSource"
	cfg.Poll = cmp.Or(cfg.Poll, pollDefault)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	s := &Source{cfg: cfg, conns: map[*Conn]struct{}{}}
	s.m = newMetrics(s)
	// Taken before the files are read, so that a change during the reading is seen later.
	w := watch{applied: s.fingerprint(), rechecked: time.Now()}
	if err := s.Reload(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.work.Go(func() { s.run(ctx, w) })
	return s, nil
}

// Close ends the watch over the files and all connections.
func (s *Source) Close() {
	s.cancel()
	// The watcher ends first. It could otherwise load files or log while the owner is already gone.
	s.work.Wait()
	for _, c := range s.openConns() {
		c.Close()
	}
}

// Name returns the name in this member's certificate. ok is false for an anonymous bearer.
func (s *Source) Name() (name Name, ok bool) {
	l := s.current.Load()
	return l.name, l.pair != nil
}

// Leaf returns this member's certificate, or nil for an anonymous bearer.
func (s *Source) Leaf() *x509.Certificate { return s.current.Load().leaf() }

// leaf returns the certificate of a reading, or nil.
func (l *loaded) leaf() *x509.Certificate {
	if l == nil || l.pair == nil {
		return nil
	}
	return l.pair.Leaf
}

// Authorities returns the authorities in the CA file.
func (s *Source) Authorities() []*x509.Certificate {
	return slices.Clone(s.current.Load().authorities)
}

// Verifier returns the current rules of acceptance.
func (s *Source) Verifier() *Verifier { return s.verifier.Load() }

// Cluster returns the cluster whose certificates are accepted, or zero if it is not known yet.
func (s *Source) Cluster() rhumb.ClusterID { return s.verifier.Load().Cluster }

// SetTrust replaces the additions of the metadata to the files, and ends connections that are no longer
// valid.
func (s *Source) SetTrust(t Trust) {
	s.loading.Lock()
	defer s.loading.Unlock()
	// The metadata changes often for other reasons.
	same := slices.Equal(t.Distrusted, s.trust.Distrusted) && slices.Equal(t.Revoked, s.trust.Revoked) &&
		maps.Equal(t.RevokedBefore, s.trust.RevokedBefore) &&
		slices.EqualFunc(t.Authorities, s.trust.Authorities, Vouched.equal)
	if same {
		return
	}
	s.trust = Trust{slices.Clone(t.Authorities), slices.Clone(t.Distrusted), slices.Clone(t.Revoked), maps.Clone(t.RevokedBefore)}
	// The new rules apply before this member's certificate is checked: a process whose own certificate
	// is revoked must still stop serving other revoked members.
	s.adoptLocked(s.current.Load())
	if err := s.checkOwn(s.current.Load(), s.verifier.Load()); err != nil {
		s.cfg.Logger.Error("the cluster no longer accepts the certificate of this process; issue another one", "err", rhumb.Message(err))
	}
}

// newVerifierLocked returns the rules of acceptance that follow from a reading of the files.
func (s *Source) newVerifierLocked(l *loaded) *Verifier {
	v, _ := s.judgeLocked(l)
	return v
}

// judgeLocked returns the rules of acceptance that follow from a reading of the files, and the
// authorities in the metadata that do not count.
func (s *Source) judgeLocked(l *loaded) (*Verifier, []Ignored) {
	v := &Verifier{Cluster: s.cfg.Cluster, Distrusted: map[string]bool{}, Revoked: map[Revoked]bool{}, RevokedBefore: s.trust.RevokedBefore}
	if v.Cluster.IsZero() && l.pair != nil {
		v.Cluster = l.name.Cluster
	}
	if pinned := s.pinned.Load(); v.Cluster.IsZero() && pinned != nil {
		v.Cluster = *pinned
	}
	accepted, ignored := acceptAuthorities(v.Cluster, l.authorities, s.trust.Authorities)
	// A clone, because append could otherwise write into the array of an earlier Verifier that
	// handshakes use.
	v.Authorities = append(slices.Clone(l.authorities), accepted...)
	for _, id := range s.trust.Distrusted {
		v.Distrusted[id] = true
	}
	for _, r := range s.trust.Revoked {
		v.Revoked[r] = true
	}
	return v, ignored
}

// adoptLocked puts a reading of the files into use.
func (s *Source) adoptLocked(l *loaded) {
	v, ignored := s.judgeLocked(l)
	s.noteIgnoredLocked(ignored)
	s.current.Store(l)
	// Stored before the recheck. A connection whose handshake ends in between either sees the new
	// rules or is in the list by the time the recheck reads it.
	s.verifier.Store(v)
	s.recheck(v)
}

// pinCluster restricts the Source to the cluster of its first server, unless the cluster is
// known.
func (s *Source) pinCluster(id rhumb.ClusterID) error {
	if !s.Cluster().IsZero() {
		return nil
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	// Two first connections may lead to different clusters.
	if !s.pinned.CompareAndSwap(nil, &id) && *s.pinned.Load() != id {
		return rejectf(ReasonWrongCluster, "the server belongs to cluster %s; an earlier connection led to cluster %s", id, *s.pinned.Load())
	}
	s.verifier.Store(s.newVerifierLocked(s.current.Load()))
	return nil
}

// Reload loads the files now. If they are invalid, the former identity stays in use.
func (s *Source) Reload() error {
	s.loading.Lock()
	defer s.loading.Unlock()
	l, err := s.loadLocked()
	if err != nil {
		s.m.failures.Inc()
		return err
	}
	s.adoptLocked(l)
	s.m.reloads.Inc()
	return nil
}

// loadLocked reads and checks the files.
func (s *Source) loadLocked() (*loaded, error) {
	const op rhumb.Op = "identity.load"
	text, what := s.cfg.PEM, Files{Cert: "(given as PEM)", Key: "(given as PEM)", CA: "(given as PEM)"}
	if text.IsZero() {
		if err := s.cfg.Files.validate(); err != nil {
			return nil, err
		}
		var err error
		if text, err = s.cfg.Files.read(); err != nil {
			return nil, err
		}
		what = s.cfg.Files
	}
	l, err := text.parse(what)
	if err != nil || l.pair == nil {
		return l, err
	}
	if !s.cfg.Cluster.IsZero() && l.name.Cluster != s.cfg.Cluster {
		return nil, rhumb.Ef(op, rhumb.WrongCluster, "certificate %s belongs to cluster %s, not to %s", what.Cert, l.name.Cluster, s.cfg.Cluster)
	}
	// Other members know this one by its name; another name is another member.
	if old := s.current.Load(); old != nil && old.pair != nil && old.name != l.name {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "certificate %s names %s now, and this process runs as %s; restart it to change its name", what.Cert, l.name, old.name)
	}
	// Against the rules that will follow from this reading, not the current ones: during a rotation
	// the new certificate and the new authority arrive together.
	if err := s.checkOwn(l, s.newVerifierLocked(l)); err != nil {
		return nil, rhumb.Ef(op, rhumb.KindOf(err), "certificate %s: %v", what.Cert, err)
	}
	return l, nil
}

// checkOwn verifies this member's certificate as the other side would, so that a mistake shows here
// rather than at every other member.
func (s *Source) checkOwn(l *loaded, v *Verifier) error {
	if l.pair == nil {
		return nil
	}
	chain, err := l.chain()
	if err != nil {
		return err
	}
	roles := s.cfg.Roles
	if len(roles) == 0 {
		roles = []Role{RoleNode, RoleUser, RoleOperator, RoleAuthority}
	}
	_, err = v.Verify(chain, Want{Roles: roles}, s.cfg.Wall())
	return err
}

// OwnFault returns why other members refuse this member's certificate, as far as this member knows, or nil: the certificate
// has expired, or was revoked since it was read.
func (s *Source) OwnFault() error { return s.checkOwn(s.current.Load(), s.Verifier()) }

// run looks at the files and the connections until ctx ends.
func (s *Source) run(ctx context.Context, w watch) {
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		// In this order: a certificate that was renewed in the last second is loaded before the old
		// one is called expired.
		s.pollFiles(&w)
		s.endExpired()
		s.warnExpiry(&w)
		if now := time.Now(); now.Sub(w.rechecked) >= recheckInterval {
			w.rechecked = now
			s.recheck(s.verifier.Load())
		}
	}
}

// watch is the state of the watch over the files.
type watch struct {
	applied, pending string    // fingerprints of the files
	failed           time.Time // when the files were last rejected; zero if they were accepted
	warned           time.Time
	ended            bool // whether the certificate had expired at the last look
	rechecked        time.Time
}

// fingerprint changes whenever one of the files may have changed.
func (s *Source) fingerprint() (print string) {
	if !s.cfg.PEM.IsZero() {
		return ""
	}
	for _, path := range []string{s.cfg.Files.Cert, s.cfg.Files.Key, s.cfg.Files.CA} {
		// Stat follows links: Kubernetes replaces a link to the folder of all files at once.
		info, err := os.Stat(path)
		if err != nil {
			print += err.Error()
			continue
		}
		// The inode and its change time find a replacement that keeps the time and size of the old
		// file, as tools do that preserve timestamps.
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			print += fmt.Sprintf("%d/%d/%d/", st.Dev, st.Ino, st.Ctim.Nano())
		}
		print += fmt.Sprintf("%d/%d;", info.ModTime().UnixNano(), info.Size())
	}
	return print
}

// pollFiles loads the files if they changed. They must be unchanged for one interval first: a
// certificate and its key are two files, and a program that replaces both does so one after the
// other.
func (s *Source) pollFiles(w *watch) {
	now := s.fingerprint()
	retry := !w.failed.IsZero() && time.Since(w.failed) >= retryInterval
	if now == w.applied && !retry {
		w.pending = ""
		return
	}
	if now != w.pending && !retry {
		w.pending = now
		return
	}
	w.applied, w.pending, w.failed = now, "", time.Time{}
	if err := s.Reload(); err != nil {
		w.failed = time.Now()
		s.cfg.Logger.Warn("cannot load the certificate files; the former identity stays in use", "err", rhumb.Message(err), "cert", s.cfg.Files.Cert)
		return
	}
	if leaf := s.Leaf(); leaf != nil {
		s.cfg.Logger.Info("loaded the certificate files", "cert", s.cfg.Files.Cert, "serial", SerialOf(leaf), "not_after", leaf.NotAfter)
	}
}

// warnExpiry warns of a certificate that expires soon or has expired.
func (s *Source) warnExpiry(w *watch) {
	leaf := s.Leaf()
	if leaf == nil {
		return
	}
	left := leaf.NotAfter.Sub(s.cfg.Wall())
	// The end itself is reported at once, however new the last warning is.
	ended := left <= 0
	if left > ExpiryWarning(leaf) || ended == w.ended && time.Since(w.warned) < warnInterval {
		w.ended = ended
		return
	}
	w.warned, w.ended = time.Now(), ended
	if ended {
		s.cfg.Logger.Error("the certificate has expired; other members refuse this process until its files are replaced", "cert", s.cfg.Files.Cert, "not_after", leaf.NotAfter)
		return
	}
	s.cfg.Logger.Warn("the certificate expires soon; renew it, and check why it was not renewed", "cert", s.cfg.Files.Cert, "not_after", leaf.NotAfter, "left", left.Round(time.Second).String())
}

// ExpiryWarning returns the remaining lifetime of a certificate at which warnings begin.
func ExpiryWarning(cert *x509.Certificate) time.Duration {
	return min(cert.NotAfter.Sub(cert.NotBefore)/warnShare, warnMax)
}
