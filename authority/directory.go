package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/node/gate"
)

// The files of an authority.
const (
	keyFile       = "authority.key"
	caFile        = "ca.crt"
	crossFile     = "cross.crt"
	clusterFile   = "cluster"
	addressesFile = "addresses"
)

// PortDefault is the port of the server.
const PortDefault = 7605

// Lifetimes.
const (
	// NodeLife is the lifetime of the certificates that nodes get by enrolment and renewal. A
	// stolen key of a node is worth at most that long without any revocation, and a node renews
	// after four to five days, so the authority may be down for two.
	NodeLife = 7 * 24 * time.Hour
	// HandLifeDefault and HandLifeMax are the lifetimes of certificates that are made by hand.
	// Nobody renews them automatically, so they live longer; a year is the most for which a
	// forgotten certificate should keep its access.
	HandLifeDefault = 90 * 24 * time.Hour
	HandLifeMax     = 366 * 24 * time.Hour
	// caLife is the lifetime of the certificate of the authority itself. Its end would stop the
	// whole cluster at once, so it is far away, and operators rotate the key for other reasons
	// before.
	caLife = 10 * 366 * 24 * time.Hour
	// backdate is how far a certificate's validity begins before its issue, for clocks that are
	// slow. Without it, the first handshake of a new certificate would fail wherever the clock is a
	// second late.
	backdate = time.Hour
	// lateRenewal is how long after its expiry a node may still renew its newest certificate. Long
	// enough for a machine that was switched off over a holiday; short enough that a stolen old
	// backup is soon worthless.
	lateRenewal = 30 * 24 * time.Hour
)

// Authority is an open authority. It is safe for concurrent use, also by several processes.
//
// The directory is the truth, and an Authority is a view of it. Nothing is cached that another
// process might change without a check: the ledger is read up to its end under its lock, and the
// keys are compared with the state of their files.
type Authority struct {
	dir     string
	cluster rhumb.ClusterID
	wall    func() time.Time
	logger  *slog.Logger
	ledger  *ledger.Ledger
	// renewals bounds the certificates that one node gets: each has a record in the ledger for good.
	renewals *gate.Pace

	mu   sync.Mutex // guards keys and seen
	keys *keys
	seen string // states of the files of keys when they were read
}

// keys holds the keys and certificates of an authority as the files have them.
//
// A set is immutable once it is loaded. An operation that began with one set finishes with it, also
// if a rotation replaces the files in the middle: the certificate is then signed by the former key,
// which stays trusted.
type keys struct {
	signer crypto.Signer
	// current is the certificate of signer; roots holds all trusted ones, current first.
	current *x509.Certificate
	roots   []*x509.Certificate
	// cross holds certificates of newer keys signed by older roots, the newest first.
	cross     []*x509.Certificate
	addresses []string
}

// Config configures an open authority.
type Config struct {
	// Wall reads the wall clock. Nil means time.Now.
	Wall func() time.Time
	// Logger receives events. Default slog.Default().
	Logger *slog.Logger
	// Adopt says, for Create, that the cluster exists already. No token then allows a node to
	// create it.
	Adopt bool
	// Trust holds, for Create, other authorities of the cluster. Nodes trust them as well until Retire: if the directory of
	// an authority is lost, nodes with certificates of the lost and of the new one have to accept each other.
	Trust []*x509.Certificate
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

// Create creates the authority of a cluster in a directory, which must be absent or empty. It
// contacts nobody.
func Create(dir string, cluster rhumb.ClusterID, addresses []string, cfg Config) error {
	const op rhumb.Op = "authority.Create"
	cfg.setDefaults()
	if cluster.IsZero() {
		return rhumb.E(op, rhumb.InvalidArgument, "the authority needs the id of a cluster")
	}
	if err := validateAddresses(addresses); err != nil {
		return err
	}
	for _, c := range cfg.Trust {
		if !c.IsCA {
			return rhumb.Ef(op, rhumb.InvalidArgument, "the certificate of %q is that of no authority; take the ca.crt of a node or of an operator", c.Subject)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	// An authority is never created over another one: its key would be lost, and with it every
	// certificate of a running cluster.
	entries, err := os.ReadDir(dir)
	if err != nil {
		return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	// The cluster file is written last: a directory without it is an attempt that was interrupted.
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == clusterFile }) {
		return rhumb.Ef(op, rhumb.AlreadyExists, "%s holds an authority already; `rhumb authority ls --authority %s` shows what it issued", dir, dir)
	}
	for _, e := range entries {
		// Only remains of this function are removed. A directory with other files was most likely
		// named by mistake.
		if !ours(e.Name()) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "%s is not empty (it holds %s); choose another directory", dir, e.Name())
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
		}
	}
	// MkdirAll keeps the mode of an existing directory.
	if err := os.Chmod(dir, 0o700); err != nil {
		return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	return rhumb.Wrap(op, writeAuthority(dir, cluster, addresses, cfg))
}

// ours reports whether a file of the name may be left from an interrupted Create.
func ours(name string) bool {
	return slices.Contains([]string{keyFile, caFile, addressesFile, ledger.FileName, ledger.MarkName, "lock"}, name) || isTemporary(name)
}

// writeAuthority writes the files of a new authority.
func writeAuthority(dir string, cluster rhumb.ClusterID, addresses []string, cfg Config) error {
	signer, cert, err := newKey(cluster, cfg.Wall())
	if err != nil {
		return err
	}
	// The order does not matter until the last file, which makes the directory an authority (see
	// Create).
	if err := writeKey(dir, signer); err != nil {
		return err
	}
	if err := ledger.WriteFile(filepath.Join(dir, caFile), identity.EncodeCertificates(append([]*x509.Certificate{cert}, cfg.Trust...)...), 0o644); err != nil {
		return err
	}
	if err := writeAddresses(dir, addresses); err != nil {
		return err
	}
	if err := ledger.Create(dir, cluster, cfg.Adopt, cfg.Wall); err != nil {
		return err
	}
	return ledger.WriteFile(filepath.Join(dir, clusterFile), []byte(cluster.String()+"\n"), 0o644)
}

// writeKey replaces the private key. The file is synced before writeKey returns, because
// certificates that are signed with a lost key can be neither renewed nor retired in order.
func writeKey(dir string, signer crypto.Signer) error {
	text, err := identity.EncodeKey(signer)
	if err != nil {
		return err
	}
	return ledger.WriteFile(filepath.Join(dir, keyFile), text, 0o600)
}

// writeAddresses replaces the list of addresses under which nodes reach the server.
func writeAddresses(dir string, addresses []string) error {
	return ledger.WriteFile(filepath.Join(dir, addressesFile), []byte(strings.Join(addresses, "\n")+"\n"), 0o644)
}

// validateAddresses checks a list of addresses before it is stored, because tokens copy the list
// and cannot be corrected afterwards.
func validateAddresses(addresses []string) error {
	if len(addresses) == 0 || len(addresses) > token.AddressesMax {
		return rhumb.Ef("authority.validateAddresses", rhumb.InvalidArgument, "%d addresses of the authority, want 1 to %d; give --advertise", len(addresses), token.AddressesMax)
	}
	for _, a := range addresses {
		if err := token.ValidateAddress(a); err != nil {
			return err
		}
	}
	return nil
}

// newKey generates a key and the certificate of the authority that it signs for itself.
func newKey(cluster rhumb.ClusterID, now time.Time) (crypto.Signer, *x509.Certificate, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	cert, err := signAuthority(cluster, signer.Public(), nil, signer, now)
	return signer, cert, err
}

// Open opens an authority.
func Open(dir string, cfg Config) (*Authority, error) {
	const op rhumb.Op = "authority.Open"
	cfg.setDefaults()
	text, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rhumb.Ef(op, rhumb.NotFound, "%s holds no authority; `rhumb init --authority %s` makes one", dir, dir)
	}
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	a := &Authority{dir: dir, wall: cfg.Wall, logger: cfg.Logger, renewals: newRenewalPace()}
	if a.cluster, err = rhumb.ParseUUID(strings.TrimSpace(string(text))); err != nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: %v", filepath.Join(dir, clusterFile), err)
	}
	if _, err := a.load(); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	a.removeLeftovers()
	// The ledger is last: opening it may append a record, which a process that cannot read the key
	// should not cause.
	if a.ledger, err = ledger.Open(dir, a.cluster, cfg.Wall, cfg.Logger.Warn); err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	a.warnOfClock()
	return a, nil
}

// leftoverAge is the age at which a temporary file belongs to no command any more. Commands replace a file within milliseconds.
const leftoverAge = time.Hour

// removeLeftovers removes the temporary files of commands that were killed while they replaced a file. One of them may hold a
// private key. Failures are logged only: the files harm nothing but order.
func (a *Authority) removeLeftovers() {
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		// Ages are by the clock of the machine and not by a.wall, because the file system uses it too. Others that write to
		// the directory at this moment have younger files.
		if err != nil || !info.Mode().IsRegular() || !isTemporary(e.Name()) || time.Since(info.ModTime()) < leftoverAge {
			continue
		}
		if err := os.Remove(filepath.Join(a.dir, e.Name())); err != nil {
			a.logger.Warn("cannot remove a temporary file that a killed command left", "file", filepath.Join(a.dir, e.Name()), "err", err)
			continue
		}
		a.logger.Info("removed a temporary file that a killed command left", "file", filepath.Join(a.dir, e.Name()))
	}
}

// isTemporary reports whether a file has a name that ledger.WriteFile chooses for the new content of a file of an authority: digits
// after the name of the file. Copies that operators name keep out of this.
func isTemporary(name string) bool {
	for _, file := range []string{keyFile, caFile, crossFile, addressesFile, clusterFile, ledger.MarkName} {
		if digits, ok := strings.CutPrefix(name, "."+file+"-"); ok {
			return digits != "" && strings.Trim(digits, "0123456789") == ""
		}
	}
	return false
}

// clockTolerance is how far the newest record may be ahead of the clock without a warning: the directory may move between
// machines.
const clockTolerance = 5 * time.Minute

// warnOfClock warns the operator that the clock is behind the newest record. Certificates follow the clock of the machine, but tokens
// the ledger, so tokens made now do not expire before that record's time.
func (a *Authority) warnOfClock() {
	_ = a.ledger.View(func(s *ledger.State) { // Open has just read it
		wall := a.wall()
		if newest := s.Now(wall); newest.Sub(wall) > clockTolerance {
			a.logger.Warn("the clock of this machine is behind the newest record of the ledger: it is wrong now, or was ahead then; check it, and remove open tokens (rhumb token ls)",
				"clock", wall.UTC(), "record", newest.UTC())
		}
	})
}

// Repair makes the authority in a directory usable again after damage to its ledger. It returns the
// name of the copy of the damaged file, or "" if there was no damage.
//
// It works without the key. An operator may have to repair the ledger on a copy of the directory
// from which the key was removed.
func Repair(dir string, cfg Config) (aside string, err error) {
	cfg.setDefaults()
	text, err := os.ReadFile(filepath.Join(dir, clusterFile))
	if err != nil {
		return "", rhumb.WrapKind("authority.Repair", rhumb.NotFound, err)
	}
	cluster, err := rhumb.ParseUUID(strings.TrimSpace(string(text)))
	if err != nil {
		return "", rhumb.WrapKind("authority.Repair", rhumb.Corrupt, err)
	}
	return ledger.Repair(dir, cluster, cfg.Wall, cfg.Logger.Warn)
}

// Close closes the authority.
func (a *Authority) Close() error { return a.ledger.Close() }

// Cluster returns the cluster of the authority.
func (a *Authority) Cluster() rhumb.ClusterID { return a.cluster }

// Dir returns the directory of the authority.
func (a *Authority) Dir() string { return a.dir }

// SetAddresses replaces where nodes reach the server. Nodes learn it with their next check.
func (a *Authority) SetAddresses(addresses []string) error {
	if err := validateAddresses(addresses); err != nil {
		return err
	}
	return rhumb.WrapKind("authority.SetAddresses", rhumb.Unavailable, writeAddresses(a.dir, addresses))
}

// CA returns the certificates that nodes trust, in PEM.
func (a *Authority) CA() ([]byte, error) {
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	return identity.EncodeCertificates(k.roots...), nil
}

// load returns the keys, and reads the files again if another process changed them.
func (a *Authority) load() (*keys, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := a.fileStates()
	if a.keys != nil && state == a.seen {
		return a.keys, nil
	}
	k, err := readKeys(a.dir)
	if err != nil {
		return nil, err
	}
	a.keys, a.seen = k, state
	return k, nil
}

// forget makes the next load read the files.
func (a *Authority) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys = nil
}

// fileStates returns a text that changes when a file of the keys is replaced.
func (a *Authority) fileStates() string {
	var b strings.Builder
	for _, name := range []string{keyFile, caFile, crossFile, addressesFile} {
		if info, err := os.Stat(filepath.Join(a.dir, name)); err == nil {
			// Files are replaced by renaming, so the inode changes even if two writes have the same
			// time.
			b.WriteString(info.ModTime().Format(time.RFC3339Nano) + "/" + inodeOf(info) + "\n")
		}
	}
	return b.String()
}

// readKeys reads the keys and certificates of an authority.
func readKeys(dir string) (*keys, error) {
	const op rhumb.Op = "authority.readKeys"
	k := &keys{}
	path := filepath.Join(dir, keyFile)
	text, err := identity.ReadSecret(path)
	if err != nil {
		return nil, err
	}
	if k.signer, err = identity.ParseKey(text); err != nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: %v; restore it from a backup", path, err)
	}
	if k.roots, err = readCertificates(filepath.Join(dir, caFile)); err != nil {
		return nil, err
	}
	if k.cross, err = readCertificates(filepath.Join(dir, crossFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// A rotation writes the certificates before the key. If it was interrupted in between, the
	// first certificate belongs to a key that does not exist.
	for i, c := range k.roots {
		if pub, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); ok && pub.Equal(k.signer.Public()) {
			k.current = c
			k.roots = append([]*x509.Certificate{c}, slices.Delete(slices.Clone(k.roots), i, i+1)...)
			break
		}
	}
	if k.current == nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "no certificate in %s belongs to %s; restore both from a backup", filepath.Join(dir, caFile), path)
	}
	lines, err := os.ReadFile(filepath.Join(dir, addressesFile))
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.Corrupt, err)
	}
	k.addresses = strings.Fields(string(lines))
	if err := validateAddresses(k.addresses); err != nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: %v", filepath.Join(dir, addressesFile), err)
	}
	return k, nil
}

// readCertificates reads the certificates in a file. Damage is reported with the name of the file,
// because an operator restores single files from a backup.
func readCertificates(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, rhumb.WrapKind("authority.readCertificates", rhumb.Corrupt, err)
	}
	certs, err := identity.ParseCertificates(text)
	if err != nil {
		return nil, rhumb.Ef("authority.readCertificates", rhumb.Corrupt, "%s: %v", path, err)
	}
	return certs, nil
}

// PinOf returns the pin of a certificate of an authority, as tokens hold it. The pin is of the key
// and not of the certificate, which may be signed again, so a token outlives that.
func PinOf(cert *x509.Certificate) [sha256.Size]byte {
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo)
}
