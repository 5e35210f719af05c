package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
)

// Whoever can add an authority can issue every certificate, so the metadata alone decides nothing
// about authorities. A node that was broken into can propose any command, and the metadata leader
// may be such a node. Therefore an operator signs what it adds, and each node verifies that against
// its own files.

const (
	// trustStatement begins the signed text. Nothing else that a certificate signs begins with it.
	trustStatement = "rhumb trust 1\x00"
	// trustAgeMax is the greatest distance between the time of a new proof and the clock of the
	// node that receives it from the operator.
	trustAgeMax = 10 * time.Minute
)

// wantOperator describes the bearers that may add authorities.
var wantOperator = Want{Roles: []Role{RoleOperator}}

// trustProof is the form of a proof, in DER.
type trustProof struct {
	At        int64 // nanoseconds since 1970
	Chain     [][]byte
	Signature []byte
}

// trustText returns the text that an operator signs to add an authority to a cluster.
func trustText(cluster rhumb.ClusterID, cert *x509.Certificate, at int64) []byte {
	b := append([]byte(trustStatement), cluster[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	// The whole certificate and not only its key: the certificate of a root is signed by nobody
	// else, so anybody can make another one for the same key, with other limits.
	for _, s := range [][]byte{[]byte(AuthorityOf(cert)), cert.Raw} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}

// SignTrust returns the proof that the bearer, an operator, wants the nodes of its cluster to trust
// an authority.
func (s *Source) SignTrust(authority *x509.Certificate) ([]byte, error) {
	const op rhumb.Op = "identity.SignTrust"
	name, ok := s.Name()
	if !ok || name.Role != RoleOperator {
		return nil, rhumb.E(op, rhumb.PermissionDenied, onlyOperator)
	}
	at := s.cfg.Wall().UnixNano()
	sig, err := s.Sign(trustText(name.Cluster, authority, at))
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	proof, err := asn1.Marshal(trustProof{At: at, Chain: sig.Chain, Signature: sig.Bytes})
	return proof, rhumb.WrapKind(op, rhumb.Internal, err)
}

// onlyOperator is the message for everybody else.
const onlyOperator = "only an operator can make nodes trust an authority; use the certificate that `rhumb authority operator` made (--cert and --key)"

// parseTrustProof parses a proof.
func parseTrustProof(b []byte) (p trustProof, err error) {
	switch {
	case len(b) == 0:
		return p, rejectf(ReasonMissing, "no operator has signed it; run `rhumb cert trust FILE` as an operator")
	case len(b) > rhumb.TrustProofSizeMax:
		return p, rejectf(ReasonMalformed, "its proof has %d bytes; the limit is %d", len(b), rhumb.TrustProofSizeMax)
	}
	rest, err := asn1.Unmarshal(b, &p)
	if err != nil || len(rest) > 0 {
		return p, rejectf(ReasonMalformed, "its proof cannot be parsed (%d bytes, %d too many)", len(b), len(rest))
	}
	return p, nil
}

// verifyTrust verifies the proof of an authority, and returns the operator and the time of the
// signature. The certificate of the operator must have been valid at that time; it may have expired
// since.
func (v *Verifier) verifyTrust(cert *x509.Certificate, proof []byte) (Peer, time.Time, error) {
	p, err := parseTrustProof(proof)
	if err != nil {
		return Peer{}, time.Time{}, err
	}
	// A Verifier without a cluster accepts operators of any.
	if v.Cluster.IsZero() {
		return Peer{}, time.Time{}, rejectf(ReasonWrongCluster, "the cluster is not known yet")
	}
	at := time.Unix(0, p.At)
	who, err := v.VerifySigned(trustText(v.Cluster, cert, p.At), Signature{Chain: p.Chain, Bytes: p.Signature}, wantOperator, at)
	return who, at, err
}

// CheckTrust verifies the proof of an authority that an operator wants to add now.
func (s *Source) CheckTrust(cert *x509.Certificate, proof []byte) error {
	const op rhumb.Op = "identity.CheckTrust"
	_, at, err := s.Verifier().verifyTrust(cert, proof)
	if err != nil {
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s: %s", onlyOperator, rhumb.Message(err))
	}
	now := s.cfg.Wall()
	if age := now.Sub(at); age > trustAgeMax || age < -trustAgeMax {
		return rhumb.Ef(op, rhumb.PermissionDenied, "the operator signed at %s, and the clock here shows %s; at most %v apart are accepted: set the clocks of both machines, for example with chrony",
			at.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), trustAgeMax)
	}
	return nil
}

// Vouched is an authority in the metadata with the proof that an operator wants it trusted.
type Vouched struct {
	Cert *x509.Certificate
	// Proof is what Source.SignTrust returned.
	Proof []byte
	// Distrusted and Revoked hold what the metadata rejected before it had the authority. They
	// bound what a thief can do with the key of an authority or operator that was rejected: the
	// time of a signature is whatever the thief writes, but the order of the metadata is not.
	Distrusted map[string]bool
	Revoked    map[Revoked]bool
	// RevokedBefore does the same for bearers.
	RevokedBefore map[string]time.Time
	// Retired means that the authority is distrusted now. It vouches for authorities that were
	// added before that.
	Retired bool
}

func (a Vouched) equal(b Vouched) bool {
	return a.Cert.Equal(b.Cert) && bytesEqual(a.Proof, b.Proof) && a.Retired == b.Retired && maps.Equal(a.Distrusted, b.Distrusted) && maps.Equal(a.Revoked, b.Revoked) && maps.Equal(a.RevokedBefore, b.RevokedBefore)
}

// Ignored is an authority in the metadata that is not trusted because it lacks a valid proof.
type Ignored struct {
	// Authority identifies it, as AuthorityOf does.
	Authority string
	Err       error
}

// acceptAuthorities divides the authorities in the metadata into those with a valid proof and the others.
// A proof is valid if the certificate of its operator comes from an authority in the files, or from one that is
// itself accepted.
func acceptAuthorities(cluster rhumb.ClusterID, files []*x509.Certificate, vouched []Vouched) (accepted []*x509.Certificate, ignored []Ignored) {
	anchors := slices.Clone(files)
	errs := make([]error, len(vouched))
	done := make([]bool, len(vouched))
	// Repeated until nothing changes, because the order of the list does not follow the proofs: an authority
	// that was signed again may come after the authorities that it vouches for.
	for again := true; again; {
		again = false
		for i, a := range vouched {
			if done[i] {
				continue
			}
			v := Verifier{Cluster: cluster, Authorities: anchors, Distrusted: a.Distrusted, Revoked: a.Revoked, RevokedBefore: a.RevokedBefore}
			if _, _, errs[i] = v.verifyTrust(a.Cert, a.Proof); errs[i] != nil {
				continue
			}
			anchors = append(anchors, a.Cert)
			done[i], again = true, true
		}
	}
	inFiles := map[string]bool{}
	for _, c := range files {
		inFiles[AuthorityOf(c)] = true
	}
	for i, a := range vouched {
		id := AuthorityOf(a.Cert)
		switch {
		case a.Retired:
		case done[i]:
			accepted = append(accepted, a.Cert)
		// Its key is trusted without the metadata.
		case !inFiles[id]:
			ignored = append(ignored, Ignored{id, errs[i]})
		}
	}
	return accepted, ignored
}

// Ignored returns the authorities in the metadata that are not trusted because they lack a valid proof.
func (s *Source) Ignored() []Ignored {
	if list := s.ignored.Load(); list != nil {
		return *list
	}
	return nil
}

// noteIgnoredLocked publishes the ignored authorities, and logs those that are new. The log has
// each once, however often the files are loaded.
func (s *Source) noteIgnoredLocked(list []Ignored) {
	before := s.Ignored()
	s.ignored.Store(&list)
	for _, i := range list {
		if slices.ContainsFunc(before, func(b Ignored) bool { return b.Authority == i.Authority }) {
			continue
		}
		s.m.unproven.Inc()
		s.cfg.Logger.Error("the metadata names an authority that no operator whom this node trusts has signed for; this node does not trust it. If no operator added it, a node of the cluster may be broken into",
			"authority", i.Authority, "err", rhumb.Message(i.Err))
	}
}
