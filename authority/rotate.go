package authority

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/identity"
)

// keysMax bounds the keys that are trusted at the same time. Each one lengthens every chain by a
// certificate and the verification of every handshake.
const keysMax = 4

// Rotate makes a new key. Certificates are signed with it from then on; certificates of the old
// keys stay valid until Retire. It returns the hash of the new key.
func (a *Authority) Rotate() (string, error) {
	const op rhumb.Op = "authority.Rotate"
	var hash string
	// All of it under the lock of the ledger. Two operators who rotate at once would else each write their certificates over
	// those of the other, and the key that is left could be one without a certificate: the authority could not be opened again.
	err := a.ledger.Update(func(*ledger.State) ([]ledger.Record, error) {
		cert, err := a.rotateLocked()
		if err != nil {
			return nil, err
		}
		// The record is last and has no effect on trust; it is history. A process that dies before it
		// has rotated all the same.
		hash = identity.AuthorityOf(cert)
		return []ledger.Record{{Kind: ledger.Rotated, Authority: hash}}, nil
	})
	return hash, rhumb.Wrap(op, err)
}

// rotateLocked makes a new key and writes it. The caller holds the lock of the ledger.
func (a *Authority) rotateLocked() (*x509.Certificate, error) {
	const op rhumb.Op = "authority.rotateLocked"
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	// Refused rather than retired automatically: dropping trust cuts off whoever has not renewed,
	// which is the decision of an operator.
	if len(k.roots) >= keysMax {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "%d keys are trusted, which is the maximum; retire an old one first: rhumb authority rotate --retire %.16s", len(k.roots), identity.AuthorityOf(k.roots[len(k.roots)-1]))
	}
	now := a.wall()
	signer, cert, err := newKey(a.cluster, now)
	if err != nil {
		return nil, err
	}
	// The old key signs the new one. The older cross-signed certificates continue the chain down to
	// the oldest trusted key.
	cross, err := signAuthority(a.cluster, signer.Public(), k.current, k.signer, now)
	if err != nil {
		return nil, err
	}
	// Certificates before the key: readKeys copes with a certificate without a key, but not with a
	// key without a certificate.
	err = a.writeTrust(append([]*x509.Certificate{cert}, k.roots...), append([]*x509.Certificate{cross}, k.cross...))
	if err == nil {
		err = writeKey(a.dir, signer)
	}
	return cert, rhumb.WrapKind(op, rhumb.Unavailable, err)
}

// writeTrust writes the trusted and the cross-signed certificates.
func (a *Authority) writeTrust(roots, cross []*x509.Certificate) error {
	path := filepath.Join(a.dir, crossFile)
	if len(cross) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	} else if err := ledger.WriteFile(path, identity.EncodeCertificates(cross...), 0o644); err != nil {
		return err
	}
	return ledger.WriteFile(filepath.Join(a.dir, caFile), identity.EncodeCertificates(roots...), 0o644)
}

// Retire ends the trust in an old key, which is named by the first digits of its hash. Unless force
// is set, it refuses while nodes, users or operators have valid certificates of that key.
func (a *Authority) Retire(prefix string, force bool) (string, error) {
	const op rhumb.Op = "authority.Retire"
	var hash string
	// Under the lock of the ledger, as Rotate: a key that another process makes meanwhile would lose its certificate, and a
	// certificate that is signed between the check and the end of the trust would be cut off unseen.
	err := a.ledger.Update(func(s *ledger.State) (_ []ledger.Record, err error) {
		if hash, err = a.retireLocked(s, prefix, force); err != nil {
			return nil, err
		}
		return []ledger.Record{{Kind: ledger.Retired, Authority: hash}}, nil
	})
	return hash, rhumb.Wrap(op, err)
}

// retireLocked ends the trust in an old key. The caller holds the lock of the ledger, whose state is s.
func (a *Authority) retireLocked(s *ledger.State, prefix string, force bool) (string, error) {
	const op rhumb.Op = "authority.retireLocked"
	k, err := a.load()
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(k.roots, func(c *x509.Certificate) bool {
		return strings.HasPrefix(identity.AuthorityOf(c), strings.ToLower(prefix))
	})
	switch {
	// Eight digits, as in the output of other commands. A shorter prefix may select a key by
	// accident.
	case len(prefix) < 8 || i < 0:
		return "", rhumb.Ef(op, rhumb.NotFound, "the authority trusts no key %q; `rhumb authority ls` lists the keys, and 8 digits are enough", prefix)
	case k.roots[i] == k.current:
		return "", rhumb.Ef(op, rhumb.InvalidArgument, "%.16s is the current key; run rhumb authority rotate first", identity.AuthorityOf(k.current))
	}
	old := k.roots[i]
	hash := identity.AuthorityOf(old)
	if users := usersOf(s, hash, a.wall()); len(users) > 0 && !force {
		return "", rhumb.Ef(op, rhumb.Conflict, "valid certificates of key %.16s: %s; nodes renew by themselves within minutes while the authority serves, the others need new ones; --force cuts them off",
			hash, strings.Join(users, ", "))
	}
	roots := slices.DeleteFunc(slices.Clone(k.roots), func(c *x509.Certificate) bool { return c == old })
	// Without the old key, neither its signatures nor the chain to it have a use.
	cross := slices.DeleteFunc(slices.Clone(k.cross), func(c *x509.Certificate) bool {
		return c.CheckSignatureFrom(old) == nil || identity.AuthorityOf(c) == hash
	})
	return hash, rhumb.WrapKind(op, rhumb.Unavailable, a.writeTrust(roots, cross))
}

// usersOf returns who would be cut off without a key: the bearers of valid certificates that have
// no newer certificate of another key.
func usersOf(s *ledger.State, hash string, now time.Time) (users []string) {
	for _, c := range s.Certificates {
		newest, _ := s.Newest(c.Role, c.Name)
		if c.Authority == hash && c.Expires.After(now) && !c.Revoked && newest == c && c.Role != identity.RoleAuthority.String() {
			users = append(users, c.Role+" "+c.Name+" until "+c.Expires.UTC().Format(time.RFC3339))
		}
	}
	return users
}
