package authority

import (
	"crypto/x509"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
)

// Enrol exchanges a token for a certificate. The same token is answered again only for the same
// key, so that a node whose answer was lost can ask again and nobody else can.
func (a *Authority) Enrol(req EnrolRequest) (*Grant, error) {
	const op rhumb.Op = "authority.Enrol"
	tok, err := token.Parse(req.Token)
	if err != nil {
		return nil, err
	}
	pub, err := parseCSR(req.CSR)
	if err != nil {
		return nil, err
	}
	// Everything about the request that needs no state is checked before the ledger is locked:
	// strangers must not be able to make the processes of the authority wait for each other.
	keyHash, err := hashKey(pub)
	if err != nil {
		return nil, err
	}
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	if tok.Cluster != a.cluster {
		return nil, rhumb.Ef(op, rhumb.WrongCluster, "the token is for cluster %s, and this authority issues certificates for cluster %s; make a token with the authority of the right cluster", tok.Cluster, a.cluster)
	}
	var chain []*x509.Certificate
	var founder bool
	err = a.ledger.Update(func(s *ledger.State) ([]ledger.Record, error) {
		now := s.Now(a.wall())
		// Check and use are one operation under the lock of the ledger. Two nodes that present one
		// token at the same moment are ordered by it, and the second is refused.
		records, err := redeem(s, &tok, keyHash, now)
		if err != nil {
			return records, err
		}
		// No record: the use is repeated. Each repetition issues a certificate, so it counts like a renewal; otherwise a node
		// that was broken into could fill the ledger with its old token.
		if len(records) == 0 {
			if err := a.checkRenewal(s.Tokens[tok.ID.String()].Node); err != nil {
				return nil, err
			}
		}
		// The claims of the token about node and founder are not signed; the ledger decides.
		t := s.Tokens[tok.ID.String()]
		founder = t.Founder
		name := identity.Name{Cluster: a.cluster, Role: identity.RoleNode, Name: t.Node}
		var r ledger.Record
		chain, r, err = k.sign(order{name: name, pub: pub, life: NodeLife, why: "enrol " + t.ID}, a.wall())
		if err != nil {
			return nil, err
		}
		// Both records in one write: a token that is used without a certificate, or the reverse,
		// cannot be on disk.
		return append(records, r), nil
	})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return a.grant(k, chain, founder)
}

// redeem checks that a token may be used with a key, and returns the record of its use. Records
// that accompany an error are to be appended too.
func redeem(s *ledger.State, tok *token.Token, keyHash string, now time.Time) ([]ledger.Record, error) {
	const op rhumb.Op = "authority.redeem"
	refuse := func(format string, args ...any) error {
		return rhumb.Ef(op, rhumb.Unauthenticated, format, args...)
	}
	t := s.Tokens[tok.ID.String()]
	// One message for both, so that ids cannot be searched.
	if t == nil || !checkSecret(tok.Secret, t.Secret) {
		return nil, refuse("the authority does not know token %s; if its directory was restored from a backup, make a new token", tok.ID)
	}
	stamp := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	switch t.State(now) {
	case "removed":
		return nil, refuse("token %s of node %s was removed by an operator; make a new one with rhumb token create", t.ID, t.Node)
	case "void":
		return nil, refuse("token %s of node %s is void, because the authority lost a part of its ledger after the token was made; make a new one with rhumb token create", t.ID, t.Node)
	case "expired":
		var late []ledger.Record
		// Recorded once, for the operator who looks for the node that never came. Further attempts
		// add nothing, so that a retrying node does not fill the ledger.
		if !t.Late {
			late = []ledger.Record{{Kind: ledger.Expired, Token: t.ID}}
		}
		return late, refuse("token %s of node %s expired at %s, and the time of the authority is %s; make a new one with rhumb token create", t.ID, t.Node, stamp(t.Expires), stamp(now))
	case "used":
		// The one case in which the honest node learns that somebody was faster. The message says
		// what to do, because this is a theft and not a fault.
		if t.Key != keyHash {
			return nil, refuse("token %s of node %s was already used at %s with another key; if that was not this node, revoke the certificate of %s at once; otherwise make a new token", t.ID, t.Node, stamp(t.Used), t.Node)
		}
		// The same key has a certificate for this long anyway.
		if now.After(t.Used.Add(NodeLife)) || s.IsRevoked("", identity.RoleNode.String(), t.Node, t.Used) || s.IsKeyRevoked(identity.RoleNode.String(), t.Node, keyHash) {
			return nil, refuse("token %s of node %s was used at %s and can no longer be repeated; make a new one with rhumb token create", t.ID, t.Node, stamp(t.Used))
		}
		return nil, nil
	}
	return []ledger.Record{{Kind: ledger.Used, Token: t.ID, Key: keyHash}}, nil
}

// Renew issues another certificate to the node that presents a chain. The name stays the same.
//
// The name is taken from the presented certificate, whose signature was verified, and never from
// the request. The key must be new in neither sense: a node that repeats a request whose answer was
// lost gets a second certificate for the same key, which harms nobody.
func (a *Authority) Renew(chain []*x509.Certificate, req RenewRequest) (*Grant, error) {
	const op rhumb.Op = "authority.Renew"
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	peer, err := a.verifyNode(k, chain)
	if err != nil {
		return nil, err
	}
	pub, err := parseCSR(req.CSR)
	if err != nil {
		return nil, err
	}
	if err := a.witness(k, peer, req.Head); err != nil {
		return nil, err
	}
	if err := a.checkRenewal(peer.Name.Name); err != nil {
		return nil, err
	}
	var fresh []*x509.Certificate
	err = a.ledger.Update(func(s *ledger.State) ([]ledger.Record, error) {
		// The wall clock, for the reason in sign: certificates of running nodes would all count as expired.
		now := a.wall()
		if err := mayRenew(s, peer, now); err != nil {
			return nil, err
		}
		var r ledger.Record
		var err error
		fresh, r, err = k.sign(order{name: peer.Name, pub: pub, life: NodeLife, why: "renew " + peer.Serial}, now)
		if err != nil {
			return nil, err
		}
		return []ledger.Record{r}, nil
	})
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	return a.grant(k, fresh, false)
}

// mayRenew refuses revoked certificates, and expired ones unless they are the newest of the node.
func mayRenew(s *ledger.State, peer identity.Peer, now time.Time) error {
	const op rhumb.Op = "authority.mayRenew"
	// The time of issue is computed from the certificate, because the record of the certificate may
	// be among those that the ledger lost.
	if s.IsRevoked(peer.Serial, peer.Role.String(), peer.Name.Name, peer.Cert.NotBefore.Add(backdate)) {
		return rhumb.Ef(op, rhumb.PermissionDenied, "the certificate %s of node %s is revoked and is not renewed", peer.Serial, peer.Name.Name)
	}
	if !now.After(peer.NotAfter) {
		return nil
	}
	// Only the newest: an older expired certificate is in some backup, and its key may be in the
	// hands of whoever has the backup.
	newest, ok := s.Newest(peer.Role.String(), peer.Name.Name)
	if !ok || newest.Serial != peer.Serial || now.After(peer.NotAfter.Add(lateRenewal)) {
		return rhumb.Ef(op, rhumb.Unauthenticated, "the certificate %s of node %s expired at %s and is too old to be renewed; enrol the node again with a new token",
			peer.Serial, peer.Name.Name, peer.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// verifyNode verifies the certificate of a node. One that has expired is accepted as of its last
// moment; mayRenew decides about it.
func (a *Authority) verifyNode(k *keys, chain []*x509.Certificate) (identity.Peer, error) {
	at := a.wall()
	if len(chain) > 0 && at.After(chain[0].NotAfter) && !at.After(chain[0].NotAfter.Add(lateRenewal)) {
		// The signatures are judged as of that moment too. The certificate of a retired authority
		// fails all the same, since the roots no longer include it.
		at = chain[0].NotAfter
	}
	v := identity.Verifier{Cluster: a.cluster, Authorities: k.roots}
	return v.Verify(chain, identity.Want{Roles: []identity.Role{identity.RoleNode}}, at)
}

// Check returns the authorities for a node to trust, and whether to renew.
func (a *Authority) Check(chain []*x509.Certificate, req CheckRequest) (*Standing, error) {
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	peer, err := a.verifyNode(k, chain)
	if err != nil {
		return nil, err
	}
	if err := a.witness(k, peer, req.Head); err != nil {
		return nil, err
	}
	out, err := a.standing(k)
	if err != nil {
		return nil, err
	}
	// Nodes leave an old key before their certificates end, so that an operator can retire it
	// within minutes of a rotation.
	out.Renew = peer.Authority != identity.AuthorityOf(k.current)
	return out, nil
}

// grant returns the answer to a node.
func (a *Authority) grant(k *keys, chain []*x509.Certificate, founder bool) (*Grant, error) {
	s, err := a.standing(k)
	if err != nil {
		return nil, err
	}
	return &Grant{Certificate: string(identity.EncodeCertificates(chain...)), Founder: founder, Standing: *s}, nil
}

// standing returns the part of an answer that all nodes receive: trusted certificates, addresses
// and the signed head of the ledger. It reads the head after the records of the request were
// appended, so that the node can witness its own enrolment.
func (a *Authority) standing(k *keys) (*Standing, error) {
	head, err := a.signHead(k)
	if err != nil {
		return nil, err
	}
	return &Standing{CA: string(identity.EncodeCertificates(k.roots...)), Addresses: k.addresses, Head: *head}, nil
}
