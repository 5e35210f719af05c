package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/identity"
)

// digest returns the hash that the signature of a head covers. The text begins with the kind of
// statement, so that the signature can never be taken for one on a certificate or on another
// document, and it names the cluster, so that a head of one authority proves nothing to another.
func (h *SignedHead) digest(cluster rhumb.ClusterID) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "rhumb ledger head\n%s\n%d\n%s\n%d\n", cluster, h.Seq, h.Hash, h.Time.UnixMilli()))
	return sum[:]
}

// signHead returns the signed head of the ledger.
//
// The heads are what protects the ledger from its own backups. Whoever restores an old directory
// brings used tokens back to life; the nodes, which are many and keep the newest head that they
// saw, cannot all be restored at the same time.
func (a *Authority) signHead(k *keys) (*SignedHead, error) {
	h := &SignedHead{Authority: identity.AuthorityOf(k.current)}
	err := a.ledger.View(func(s *ledger.State) {
		head := s.Head()
		h.Seq, h.Hash, h.Time = head.Seq, head.Hash.String(), s.Now(a.wall()).UTC().Truncate(time.Millisecond)
	})
	if err == nil {
		h.Signature, err = k.signer.Sign(rand.Reader, h.digest(a.cluster), crypto.SHA256)
	}
	return h, rhumb.Wrap("authority.signHead", err)
}

// witness compares the ledger with a head that a node brings back. A head that no trusted key
// signed is ignored: a node must not be able to void tokens by inventing one.
func (a *Authority) witness(k *keys, peer identity.Peer, h *SignedHead) error {
	if h == nil {
		return nil
	}
	for _, c := range k.roots {
		pub, ok := c.PublicKey.(*ecdsa.PublicKey)
		if !ok || identity.AuthorityOf(c) != h.Authority || !ecdsa.VerifyASN1(pub, h.digest(a.cluster), h.Signature) {
			continue
		}
		hash, ok := ledger.ParseHash(h.Hash)
		if !ok {
			return nil
		}
		_, err := a.ledger.Witness(ledger.Head{Seq: h.Seq, Hash: hash}, h.Time, peer.Name.Short())
		return err
	}
	return nil
}
