package client

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
	"github.com/rhumbdb/rhumb/identity"
)

// Certificate is a certificate that a node uses, or that a node has seen.
type Certificate struct {
	// Role is node, user or operator.
	Role      string    `json:"role"`
	Name      string    `json:"name"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// Authority identifies the issuer by the hash of its key.
	Authority string `json:"authority"`
	// Revoked and Distrusted say that the nodes reject the certificate, or its issuer.
	Revoked    bool `json:"revoked,omitempty"`
	Distrusted bool `json:"distrusted,omitempty"`
	// Nodes are the nodes that use the certificate, or on which its bearer has a connection.
	Nodes []rhumb.NodeID `json:"nodes"`
}

// Authority is an authority that nodes trust or reject.
type Authority struct {
	// Fingerprint is the hash of the key of the authority.
	Fingerprint string    `json:"fingerprint"`
	Subject     string    `json:"subject,omitempty"`
	NotBefore   time.Time `json:"not_before,omitzero"`
	NotAfter    time.Time `json:"not_after,omitzero"`
	// InMetadata is false for an authority that only files of nodes name.
	InMetadata bool `json:"in_metadata"`
	Distrusted bool `json:"distrusted,omitempty"`
	// IgnoredBy are the nodes that do not trust it although the metadata names it, because no
	// operator whom they trust has signed for it.
	IgnoredBy []rhumb.NodeID `json:"ignored_by,omitempty"`
}

// NodeIdentity is the report of one node about its identity.
type NodeIdentity struct {
	Node rhumb.NodeID `json:"node"`
	Name string       `json:"name,omitempty"`
	// Secure is false for a node that runs with --insecure.
	Secure bool `json:"secure"`
	// GossipVersion and GossipKeys are the version of the installed keys of gossip and their
	// numbers, the encrypting one first.
	GossipVersion uint64   `json:"gossip_version"`
	GossipKeys    []uint32 `json:"gossip_keys,omitempty"`
	// Err is why the node did not answer.
	Err string `json:"error,omitempty"`
}

// Certificates are all certificates that the nodes report, and what the metadata says about them.
type Certificates struct {
	Certificates []Certificate      `json:"certificates"`
	Authorities  []Authority        `json:"authorities"`
	Revoked      []rhumb.Revocation `json:"revoked"`
	Nodes        []NodeIdentity     `json:"nodes"`
}

// Certificates asks all nodes which certificates they use and see, so that an operator learns what
// expires when.
func (c *Client) Certificates(ctx context.Context) (Certificates, error) {
	const op rhumb.Op = "client.Client.Certificates"
	resp, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (*rhumbpb.ListCertificatesResponse, error) {
		return conn.Security().ListCertificates(ctx, &rhumbpb.ListCertificatesRequest{})
	})
	if err != nil {
		return Certificates{}, rhumb.Wrap(op, err)
	}
	var out Certificates
	// A user who is connected to three nodes is one line.
	bySerial := map[string]int{}
	add := func(m *rhumbpb.Certificate) {
		// Serial numbers are unique per authority only.
		key := m.GetAuthority() + "/" + m.GetSerial()
		i, ok := bySerial[key]
		if !ok {
			i = len(out.Certificates)
			bySerial[key] = i
			out.Certificates = append(out.Certificates, decodeCertificate(m))
		}
		out.Certificates[i].Nodes = append(out.Certificates[i].Nodes, rhumb.NodeID(m.GetNode()))
	}
	for _, r := range resp.GetNodes() {
		out.Nodes = append(out.Nodes, decodeReport(r))
		if r.GetCertificate() != nil {
			add(r.GetCertificate())
		}
	}
	// Nodes come first: their certificates matter most.
	for _, r := range resp.GetNodes() {
		for _, m := range r.GetClients() {
			add(m)
		}
	}
	out.Authorities = decodeAuthorities(resp.GetAuthorities())
	for _, r := range resp.GetRevoked() {
		out.Revoked = append(out.Revoked, api.DecodeRevocation(r))
	}
	return out, nil
}

// decodeCertificate decodes a certificate without the node that reported it.
func decodeCertificate(m *rhumbpb.Certificate) Certificate {
	return Certificate{
		Role: m.GetRole(), Name: m.GetName(), Serial: m.GetSerial(), NotBefore: api.DecodeSeconds(m.GetNotBefore()),
		NotAfter: api.DecodeSeconds(m.GetNotAfter()), Authority: m.GetAuthority(), Revoked: m.GetRevoked(), Distrusted: m.GetDistrusted(),
	}
}

// decodeReport decodes the report of a node about itself. Its certificates are listed elsewhere.
func decodeReport(m *rhumbpb.NodeIdentityReport) NodeIdentity {
	return NodeIdentity{
		Node: rhumb.NodeID(m.GetNode()), Name: m.GetName(), Secure: m.GetSecure(), GossipVersion: m.GetGossipVersion(), GossipKeys: m.GetGossipKeys(), Err: m.GetError(),
	}
}

// decodeAuthorities decodes authorities. The certificates are left out: commands identify an
// authority by its fingerprint, and a node that lacks a certificate cannot send it.
func decodeAuthorities(ms []*rhumbpb.AuthorityInfo) (out []Authority) {
	for _, m := range ms {
		out = append(out, Authority{
			Fingerprint: m.GetFingerprint(), Subject: m.GetSubject(), NotBefore: api.DecodeSeconds(m.GetNotBefore()), NotAfter: api.DecodeSeconds(m.GetNotAfter()),
			InMetadata: m.GetInMetadata(), Distrusted: m.GetDistrusted(), IgnoredBy: nodeIDs(m.GetIgnoredBy()),
		})
	}
	return out
}

// Revoke names the certificates to revoke: exactly one of the names is set.
// The name of a user or operator means all its certificates that were issued before now, that of a node those that
// nodes report.
//
// A name is a request about the present: certificates that the bearer gets later are valid. To keep
// somebody out, disable the user, or revoke at the authority too.
type Revoke struct {
	Serial, Node, User, Operator string
	// Issuer is the fingerprint of the authority of the certificate with the
	// serial number, or the first digits of it. It is needed only if several
	// certificates in use have the number.
	Issuer string
	// Why is the reason, for the list of revoked certificates.
	Why string
}

// RevokeCertificate makes all nodes reject certificates, and end connections that rely on them. It
// returns what it revoked. A node that is cut off rejects them when it is back.
func (c *Client) RevokeCertificate(ctx context.Context, r Revoke) (out []rhumb.Revocation, err error) {
	const op rhumb.Op = "client.Client.RevokeCertificate"
	resp, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (*rhumbpb.RevokeCertificateResponse, error) {
		return conn.Security().RevokeCertificate(ctx, &rhumbpb.RevokeCertificateRequest{
			Serial: r.Serial, NodeName: r.Node, UserName: r.User, OperatorName: r.Operator, Why: r.Why, Authority: r.Issuer,
		})
	})
	for _, m := range resp.GetRevoked() {
		out = append(out, api.DecodeRevocation(m))
	}
	return out, rhumb.Wrap(op, err)
}

// SetTrust makes all nodes accept authorities besides those in their files, and reject others.
// trust holds certificates in DER, distrust fingerprints or the first digits of them. Without
// force, an authority that issued the certificate of a node is not rejected. It returns all
// authorities.
//
// Only an operator can add an authority: the client signs for it with the key of its certificate, and
// each node verifies the signature.
func (c *Client) SetTrust(ctx context.Context, trust [][]byte, distrust []string, force bool) ([]Authority, error) {
	const op rhumb.Op = "client.Client.SetTrust"
	proofs, err := c.signTrust(trust)
	if err != nil {
		return nil, rhumb.Wrap(op, err)
	}
	resp, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (*rhumbpb.SetTrustResponse, error) {
		return conn.Security().SetTrust(ctx, &rhumbpb.SetTrustRequest{Trust: trust, Distrust: distrust, Force: force, Proofs: proofs})
	})
	return decodeAuthorities(resp.GetAuthorities()), rhumb.Wrap(op, err)
}

// signTrust signs for authorities. Only operators have a signature that counts; the node refuses
// others with an error that says whom it knows.
func (c *Client) signTrust(trust [][]byte) (proofs [][]byte, err error) {
	if c.source == nil {
		return nil, nil
	}
	if name, ok := c.source.Name(); !ok || name.Role != identity.RoleOperator {
		return nil, nil
	}
	for i, der := range trust {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, rhumb.Ef("client.signTrust", rhumb.InvalidArgument, "certificate %d cannot be parsed: %v", i+1, err)
		}
		proof, err := c.source.SignTrust(cert)
		if err != nil {
			return nil, err
		}
		proofs = append(proofs, proof)
	}
	return proofs, nil
}

// GossipRotation is the result of a rotation of the keys of gossip.
type GossipRotation struct {
	// Version is that of the keys, and Key the number of the only one that is left.
	Version uint64 `json:"version"`
	Key     uint32 `json:"key"`
	// Away are fenced nodes. They learn the key when they return.
	Away []rhumb.NodeID `json:"away,omitempty"`
}

// RotateGossipKeys replaces the key of gossip. It takes as long as the slowest node that is not
// fenced. After an error it may be repeated, and continues where it stopped.
func (c *Client) RotateGossipKeys(ctx context.Context) (GossipRotation, error) {
	const op rhumb.Op = "client.Client.RotateGossipKeys"
	resp, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (*rhumbpb.RotateGossipKeysResponse, error) {
		return conn.Security().RotateGossipKeys(ctx, &rhumbpb.RotateGossipKeysRequest{})
	})
	return GossipRotation{Version: resp.GetVersion(), Key: resp.GetKey(), Away: nodeIDs(resp.GetAway())}, rhumb.Wrap(op, err)
}

// GossipKeys returns the version of the keys of gossip, the numbers of the keys, and what each node
// uses. The keys themselves never leave the nodes.
func (c *Client) GossipKeys(ctx context.Context) (version uint64, keys []uint32, nodes []NodeIdentity, err error) {
	const op rhumb.Op = "client.Client.GossipKeys"
	resp, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (*rhumbpb.ListGossipKeysResponse, error) {
		return conn.Security().ListGossipKeys(ctx, &rhumbpb.ListGossipKeysRequest{})
	})
	for _, r := range resp.GetNodes() {
		nodes = append(nodes, decodeReport(r))
	}
	return resp.GetVersion(), resp.GetKeys(), nodes, rhumb.Wrap(op, err)
}
