package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// SecurityNode is the part of a node that the security service uses.
type SecurityNode interface {
	Ping() Info
	State() *catalog.State
	Linearize(ctx context.Context) (*catalog.State, error)
	Propose(ctx context.Context, cmd catalog.Command) (catalog.Result, *catalog.State, error)
	// DescribeIdentities asks every node that is not fenced.
	DescribeIdentities(ctx context.Context) ([]*rhumbpb.NodeIdentityReport, error)
	// RotateGossipKeys replaces the key of gossip. away are nodes that learn it when they return.
	RotateGossipKeys(ctx context.Context) (keys rhumb.GossipKeys, away []rhumb.NodeID, err error)
	// CheckTrust returns an error unless an operator has just signed that an authority is to be trusted.
	CheckTrust(cert *x509.Certificate, proof []byte) error
}

// fingerprintMin is the least number of digits of an abbreviated fingerprint.
const fingerprintMin = 8

// Security is the service for certificates, authorities and keys of gossip.
//
// It decides on what nodes report now, and the metadata decides again. A report may be a moment
// old, so two operators who act at once can revoke the same certificate twice, which is harmless,
// or distrust two authorities of which one should have stayed. The second case needs nodes that
// have certificates of both, and is repaired with the files of the nodes and a third authority.
//
// Nothing here returns a private key or a key of gossip. Reports name keys of gossip by number.
type Security struct {
	rhumbpb.UnimplementedSecurityServer
	node SecurityNode
}

// NewSecurity returns the service.
func NewSecurity(n SecurityNode) *Security { return &Security{node: n} }

// Register registers the service.
func (s *Security) Register(r grpc.ServiceRegistrar) { rhumbpb.RegisterSecurityServer(r, s) }

// ListCertificates asks all nodes, and adds the lists of the metadata.
func (s *Security) ListCertificates(ctx context.Context, _ *rhumbpb.ListCertificatesRequest) (*rhumbpb.ListCertificatesResponse, error) {
	resp, err := s.listCertificates(ctx)
	return resp, statusError(err)
}

// listCertificates lists the certificates of nodes and of their clients, and marks those that the metadata has revoked, by serial or by name and
// time of issue, and those of distrusted authorities.
func (s *Security) listCertificates(ctx context.Context) (*rhumbpb.ListCertificatesResponse, error) {
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, err
	}
	resp := &rhumbpb.ListCertificatesResponse{Revision: st.Revision()}
	if resp.Nodes, err = s.node.DescribeIdentities(ctx); err != nil {
		return nil, err
	}
	security := st.Security()
	revoked := map[identity.Revoked]bool{}
	before := map[string]time.Time{}
	for _, r := range security.Revoked {
		if r.Serial == "" {
			before[r.Name] = r.At // the last of several is the latest
		} else {
			revoked[identity.Revoked{Authority: r.Authority, Serial: r.Serial}] = true
		}
		resp.Revoked = append(resp.Revoked, api.EncodeRevocation(r))
	}
	for _, r := range resp.Nodes {
		for _, c := range append(slices.Clone(r.Clients), r.Certificate) {
			if c != nil {
				c.Revoked = revoked[identity.Revoked{Serial: c.Serial}] || revoked[identity.Revoked{Authority: c.Authority, Serial: c.Serial}] ||
					api.DecodeSeconds(c.Issued).Before(before[c.Role+" "+c.Name])
				c.Distrusted = slices.Contains(security.Distrusted, c.Authority)
			}
		}
	}
	resp.Authorities = listAuthorities(resp.Nodes, security)
	return resp, nil
}

// listAuthorities merges the authorities in files of nodes with those in the metadata, by
// fingerprint.
func listAuthorities(reports []*rhumbpb.NodeIdentityReport, security *catalog.Security) []*rhumbpb.AuthorityInfo {
	known := map[string]*rhumbpb.AuthorityInfo{}
	at := func(fingerprint string) *rhumbpb.AuthorityInfo {
		if known[fingerprint] == nil {
			known[fingerprint] = &rhumbpb.AuthorityInfo{Fingerprint: fingerprint}
		}
		return known[fingerprint]
	}
	for _, r := range reports {
		// All nodes usually report the same few authorities. One with the same key and another
		// validity counts as the same: trust goes by the key.
		for _, a := range r.Authorities {
			known[a.Fingerprint] = a
		}
		// The authority that a file holds may have issued another one, which issued the
		// certificate.
		if a := r.Certificate.GetAuthority(); a != "" {
			at(a)
		}
		r.Authorities = nil
	}
	for _, a := range security.Authorities {
		info := at(a.Fingerprint)
		// Only what the metadata names: a node may report an authority that it has read about since.
		for _, r := range reports {
			if slices.Contains(r.Ignored, a.Fingerprint) {
				info.IgnoredBy = append(info.IgnoredBy, r.Node)
			}
		}
		info.InMetadata = true
		if cert, err := x509.ParseCertificate(a.Cert); err == nil {
			info.Subject, info.Certificate = cert.Subject.String(), a.Cert
			info.NotBefore, info.NotAfter = api.EncodeSeconds(cert.NotBefore), api.EncodeSeconds(cert.NotAfter)
		}
	}
	for _, f := range security.Distrusted {
		at(f).InMetadata, at(f).Distrusted = true, true
	}
	out := make([]*rhumbpb.AuthorityInfo, 0, len(known))
	for _, a := range known {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *rhumbpb.AuthorityInfo) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
	return out
}

// RevokeCertificate revokes one certificate, or all of a node, user or operator.
func (s *Security) RevokeCertificate(ctx context.Context, q *rhumbpb.RevokeCertificateRequest) (*rhumbpb.RevokeCertificateResponse, error) {
	listed, err := s.listCertificates(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	revoke, err := chooseRevoked(q, listed, time.Now(), s.node.State().Has(rhumb.FeatureRevokeBearer))
	if err != nil {
		return nil, statusError(err)
	}
	if p, ok := identity.PeerFromContext(ctx); ok {
		if err := refuseOwn(revoke, p); err != nil {
			return nil, statusError(err)
		}
	}
	if err := refuseThisNode(revoke, s.node.Ping().Node.ID, listed.Nodes); err != nil {
		return nil, statusError(err)
	}
	resp := &rhumbpb.RevokeCertificateResponse{}
	// One command each: the second certificate of a node must be revoked also if the metadata
	// refuses one.
	for _, r := range revoke {
		var cmd catalog.Command = catalog.RevokeCertificate{Revocation: r}
		if r.Serial == "" {
			cmd = catalog.RevokeBearer{Revocation: r}
		}
		_, st, err := s.node.Propose(ctx, cmd)
		if err != nil {
			return nil, statusError(rhumb.Wrap("server.Security.RevokeCertificate", err))
		}
		// Certificates count in whole seconds. One that is issued after the answer is valid.
		if r.Serial == "" {
			if err := sleep(ctx, time.Until(r.At)); err != nil {
				return nil, statusError(err)
			}
		}
		resp.Revoked, resp.Revision = append(resp.Revoked, api.EncodeRevocation(r)), st.Revision()
	}
	return resp, nil
}

// sleep waits for a time, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refuseOwn refuses to revoke the certificate with which the caller sent the request. Its connection would
// end before the answer, and to the caller success would look like a failure of the network.
func refuseOwn(revoke []rhumb.Revocation, caller identity.Peer) error {
	for _, r := range revoke {
		serial := r.Serial == caller.Serial && (r.Authority == "" || r.Authority == caller.Authority)
		bearer := r.Serial == "" && r.Name == caller.Short() && identity.IssuedAt(caller.Cert).Before(r.At)
		if serial || bearer {
			return rhumb.Ef("server.Security.RevokeCertificate", rhumb.Conflict, "this is the certificate that you use: the node would end the connection before it answers; "+
				"use the certificate of another operator, which `rhumb authority operator NAME` makes (you are %s, serial %s)", caller.Short(), caller.Serial)
		}
	}
	return nil
}

// refuseThisNode refuses to revoke the certificate of the node that received the request. The other nodes would cut it off before
// it learned the result, so its caller would wait in vain. The error is unavailable, and clients then ask another node.
func refuseThisNode(revoke []rhumb.Revocation, self rhumb.NodeID, nodes []*rhumbpb.NodeIdentityReport) error {
	for _, n := range nodes {
		own := n.GetCertificate()
		if rhumb.NodeID(n.Node) != self || own == nil {
			continue
		}
		for _, r := range revoke {
			if r.Serial != "" && r.Serial == own.Serial && (r.Authority == "" || r.Authority == own.Authority) {
				return rhumb.Ef("server.Security.RevokeCertificate", rhumb.Unavailable,
					"%s would be cut off before it could answer; name another node of the cluster with --addr", n.Name)
			}
		}
	}
	return nil
}

// chooseRevoked returns the certificates that a request names. Users and operators are revoked by name and
// time, because no node knows all of their certificates. Without byName, while nodes of an earlier build may be in the cluster, it chooses
// the certificates that nodes report.
func chooseRevoked(q *rhumbpb.RevokeCertificateRequest, listed *rhumbpb.ListCertificatesResponse, now time.Time, byName bool) (out []rhumb.Revocation, err error) {
	const op rhumb.Op = "server.Security.RevokeCertificate"
	role, name, named := "", "", 0
	for r, n := range map[string]string{"": q.Serial, "node": q.NodeName, "user": q.UserName, "operator": q.OperatorName} {
		if n != "" {
			role, name = r, n
			named++
		}
	}
	if named != 1 {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "name one serial number, node, user or operator")
	}
	authority := q.Authority
	switch {
	case role == "":
		if name, err = identity.ParseSerial(q.Serial); err != nil {
			return nil, err
		}
	case authority != "":
		return nil, rhumb.E(op, rhumb.InvalidArgument, "an issuer goes with a serial number only; all certificates of a name are revoked")
	}
	if r, err := identity.ParseRole(role); err == nil && r != identity.RoleNode && byName {
		if err := identity.ValidateName(r, name); err != nil {
			return nil, err
		}
		// The end of this second: certificates say in which second they were issued, and those of this one must not escape.
		return []rhumb.Revocation{{Name: role + " " + name, Why: q.Why, At: now.Truncate(time.Second).Add(time.Second)}}, nil
	}
	if authority != "" {
		// A complete one may be unknown: nothing that it issued is in use.
		if authority, err = completeFingerprint(authority, listed.Authorities); err != nil {
			return nil, err
		}
	}
	// A user may be connected to several nodes, which then all report the certificate.
	add := func(c *rhumbpb.Certificate) {
		if c == nil || slices.ContainsFunc(out, func(r rhumb.Revocation) bool { return r.Serial == c.Serial && r.Authority == c.Authority }) {
			return
		}
		if role == "" && c.Serial == name && (authority == "" || c.Authority == authority) || role != "" && c.Role == role && c.Name == name {
			out = append(out, rhumb.Revocation{
				Serial: c.Serial, Authority: c.Authority, Name: c.Role + " " + c.Name, NotAfter: api.DecodeSeconds(c.NotAfter), Why: q.Why, At: now,
			})
		}
	}
	for _, r := range listed.Nodes {
		add(r.Certificate)
		for _, c := range r.Clients {
			add(c)
		}
	}
	switch {
	// Authorities number their certificates independently.
	case role == "" && len(out) > 1:
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "%s have the serial number %s; say which authority issued the one to revoke with --issuer, or name its bearer", describeRevocations(out), name)
	case len(out) > 0:
		return out, nil
	case role == "":
		// Nobody uses it at the moment, so its expiry is unknown.
		return []rhumb.Revocation{{Serial: name, Authority: authority, Why: q.Why, At: now}}, nil
	}
	// An error rather than success without effect: the operator believes that the certificate is
	// dead, and it may be used again tomorrow.
	return nil, rhumb.Ef(op, rhumb.NotFound, "no node uses or has seen a certificate of %s %s lately; name the directory of the authority that issued it (--authority DIR), or revoke it by its serial number, which `rhumb cert show FILE` prints", role, name)
}

// SetTrust adds and rejects authorities.
func (s *Security) SetTrust(ctx context.Context, q *rhumbpb.SetTrustRequest) (*rhumbpb.SetTrustResponse, error) {
	const op rhumb.Op = "server.Security.SetTrust"
	listed, err := s.listCertificates(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	cmd, err := chooseTrust(q, listed, s.node.CheckTrust)
	if err != nil {
		return nil, statusError(err)
	}
	_, st, err := s.node.Propose(ctx, cmd)
	if err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	if listed, err = s.listCertificates(ctx); err != nil {
		return nil, statusError(rhumb.Wrap(op, err))
	}
	return &rhumbpb.SetTrustResponse{Authorities: listed.Authorities, Revision: st.Revision()}, nil
}

// mayTrust refuses to add authorities for anybody but operators. The proofs in the request decide
// again; this one spares others an entry in the audit log.
func mayTrust(ctx context.Context, st *catalog.State, q *rhumbpb.SetTrustRequest) error {
	who, _ := caller(ctx, st)
	if len(q.Trust) == 0 || who.Kind == access.KindOperator || who.Kind == access.KindInsecure {
		return nil
	}
	return rhumb.Ef("server.Security.SetTrust", rhumb.PermissionDenied, "only an operator can make nodes trust an authority, not %s; use the certificate that `rhumb authority operator` made", who)
}

// chooseTrust checks a request against the certificates in use. check verifies the proof of an authority.
func chooseTrust(q *rhumbpb.SetTrustRequest, listed *rhumbpb.ListCertificatesResponse, check func(*x509.Certificate, []byte) error) (cmd catalog.SetTrust, err error) {
	const op rhumb.Op = "server.Security.SetTrust"
	if len(q.Trust)+len(q.Distrust) == 0 {
		return cmd, rhumb.E(op, rhumb.InvalidArgument, "name an authority to trust or to distrust")
	}
	for i, der := range q.Trust {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return cmd, rhumb.Ef(op, rhumb.InvalidArgument, "the certificate of the authority cannot be parsed: %v", err)
		}
		// Whoever holds the key of a certificate in this list decides who everybody is.
		if !cert.IsCA {
			return cmd, rhumb.Ef(op, rhumb.InvalidArgument, "the certificate of %q is not that of an authority", cert.Subject)
		}
		// Earlier clients send none.
		var proof []byte
		if i < len(q.Proofs) {
			proof = q.Proofs[i]
		}
		if err := check(cert, proof); err != nil {
			return cmd, rhumb.Wrap(op, err)
		}
		cmd.Trust = append(cmd.Trust, rhumb.Authority{Fingerprint: identity.AuthorityOf(cert), Cert: der, Proof: proof})
	}
	for _, prefix := range q.Distrust {
		f, err := completeFingerprint(prefix, listed.Authorities)
		if err != nil {
			return cmd, err
		}
		for _, r := range listed.Nodes {
			if r.Certificate.GetAuthority() == f && !q.Force {
				return cmd, rhumb.Ef(op, rhumb.InvalidArgument, "node %s works with a certificate of the authority %.16s, so the other nodes would refuse it; renew its certificate with another authority first, or cut it off with --force", rhumb.NodeID(r.Node), f)
			}
			// A node that did not answer may rely on it as well.
			if r.Error != "" && !q.Force {
				return cmd, rhumb.Ef(op, rhumb.Unavailable, "node %s does not say which authority issued its certificate (%s); repeat the command when it answers, or with --force", rhumb.NodeID(r.Node), r.Error)
			}
		}
		cmd.Distrust = append(cmd.Distrust, f)
	}
	return cmd, nil
}

// completeFingerprint returns the fingerprint that begins with some digits.
func completeFingerprint(prefix string, known []*rhumbpb.AuthorityInfo) (full string, err error) {
	const op rhumb.Op = "server.Security"
	prefix = strings.ToLower(prefix)
	if len(prefix) == 64 {
		return prefix, nil
	}
	if len(prefix) < fingerprintMin {
		return "", rhumb.Ef(op, rhumb.InvalidArgument, "fingerprint %q is too short; give at least %d digits", prefix, fingerprintMin)
	}
	for _, a := range known {
		if !strings.HasPrefix(a.Fingerprint, prefix) {
			continue
		}
		if full != "" {
			return "", rhumb.Ef(op, rhumb.InvalidArgument, "several authorities begin with %s; give more digits", prefix)
		}
		full = a.Fingerprint
	}
	if full == "" {
		return "", rhumb.Ef(op, rhumb.NotFound, "no authority begins with %s; `rhumb cert ls` lists them", prefix)
	}
	return full, nil
}

// RotateGossipKeys replaces the key of gossip.
func (s *Security) RotateGossipKeys(ctx context.Context, _ *rhumbpb.RotateGossipKeysRequest) (*rhumbpb.RotateGossipKeysResponse, error) {
	keys, away, err := s.node.RotateGossipKeys(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.RotateGossipKeysResponse{Version: keys.Version, Key: keys.Keys[0].ID, Away: nodeNumbers(away)}, nil
}

// ListGossipKeys returns the version of the keys at each node.
func (s *Security) ListGossipKeys(ctx context.Context, _ *rhumbpb.ListGossipKeysRequest) (*rhumbpb.ListGossipKeysResponse, error) {
	st, err := s.node.Linearize(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	reports, err := s.node.DescribeIdentities(ctx)
	if err != nil {
		return nil, statusError(err)
	}
	g := st.Security().Gossip
	resp := &rhumbpb.ListGossipKeysResponse{Version: g.Version}
	for _, k := range g.Keys {
		resp.Keys = append(resp.Keys, k.ID)
	}
	for _, r := range reports {
		resp.Nodes = append(resp.Nodes, &rhumbpb.NodeIdentityReport{
			Node: r.Node, Name: r.Name, Secure: r.Secure, GossipVersion: r.GossipVersion, GossipKeys: r.GossipKeys, Error: r.Error,
		})
	}
	return resp, nil
}

// describeRevocations names certificates and their issuers.
func describeRevocations(rs []rhumb.Revocation) string {
	var words []string
	for _, r := range rs {
		words = append(words, fmt.Sprintf("%s (issuer %.16s)", r.Name, r.Authority))
	}
	return strings.Join(words, " and ")
}
