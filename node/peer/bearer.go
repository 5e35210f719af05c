package peer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
)

// With TLS, every stream and call between nodes is checked twice: TLS verifies the certificate, and
// the functions of this file verify that its bearer may act as the node that the messages name.
// Without that, each node could speak for every other one.

// proofAgeMax is the greatest distance between the time of a proof and the clock of its verifier.
// It covers the delay of a relay and clocks that differ by more than nodes in a cluster may (rule
// "Clocks"). Within it a relay may repeat relayed messages, which Raft and the commands of the
// catalog tolerate from any network.
const proofAgeMax = 30 * time.Second

// The statements that a proof makes. They begin with a text that nothing else signs.
const (
	proofRaft     = "rhumb relay 1: raft\x00"
	proofRequest  = "rhumb relay 1: request\x00"
	proofResponse = "rhumb relay 1: response\x00"
)

// Reasons why a message is rejected, the labels of rhumb_peer_rejected_total.
const (
	rejectedNoBearer = "no_certificate"
	rejectedSpeaker  = "wrong_speaker"
	rejectedProof    = "bad_proof"
)

// wantNode is the bearer that a proof must have.
var wantNode = identity.Want{Roles: []identity.Role{identity.RoleNode}}

// reject counts an error.
func (n *Network) reject(reason string, err error) error {
	n.m.rejected.WithLabelValues(reason).Inc()
	return err
}

// bearerOf returns the name in the certificate of the caller, which must be that of a node.
func (n *Network) bearerOf(ctx context.Context) (string, error) {
	p, ok := identity.PeerFromContext(ctx)
	if !ok || p.Role != identity.RoleNode {
		return "", n.reject(rejectedNoBearer, rhumb.E("peer.bearerOf", rhumb.Unauthenticated, "the caller has no certificate of a node"))
	}
	return p.Name.Name, nil
}

// checkBearer returns an error unless the caller may act as a node. With joining, the node may be
// one that the catalog here does not show yet.
func (n *Network) checkBearer(ctx context.Context, id rhumb.NodeID, joining bool) error {
	if n.cfg.Identity == nil {
		return nil
	}
	name, err := n.bearerOf(ctx)
	if err != nil {
		return err
	}
	return n.checkSpeaker(name, id, joining)
}

// checkSpeaker returns an error unless the bearer of a name may act as a node.
//
// The catalog binds each name to one node. A certificate that was stolen from eu-1 can thus speak
// for eu-1, until it is revoked, and for no other node.
func (n *Network) checkSpeaker(name string, id rhumb.NodeID, joining bool) error {
	err := n.cfg.Handler.MaySpeak(name, id, joining)
	if rhumb.KindOf(err) == rhumb.PermissionDenied {
		// A node may merely lag, so only this kind is counted and logged.
		n.cfg.Logger.Warn("rejected a node that speaks for another", "certificate", name, "claims", id, "err", rhumb.Message(err))
		return n.reject(rejectedSpeaker, err)
	}
	return err
}

// checkMember returns an error unless the caller is some registered node.
func (n *Network) checkMember(ctx context.Context) error {
	if n.cfg.Identity == nil {
		return nil
	}
	name, err := n.bearerOf(ctx)
	if err != nil {
		return err
	}
	if _, ok := n.cfg.Handler.NodeNamed(name); !ok {
		return rhumb.Ef("peer.checkMember", rhumb.Unavailable, "this node has not learned yet that the node with the certificate of %q registered; retry", name)
	}
	return nil
}

// proofText returns the text that a proof signs. The contents are hashed with their sizes, so that
// no byte moves from one to the next.
//
// The text names the receiver, so that a relay cannot deliver the message to another node, and the
// life of the sender (Boot), so that messages of a former life, whose disk may have been lost, are
// not taken for those of the present one.
func (n *Network) proofText(statement string, origin, to rhumb.NodeID, p *rhumbpb.OriginProof, group uint32, contents [][]byte) []byte {
	sum := sha256.New()
	var size [8]byte
	for _, c := range contents {
		binary.BigEndian.PutUint64(size[:], uint64(len(c)))
		sum.Write(size[:])
		sum.Write(c)
	}
	b := append([]byte(statement), n.cfg.Cluster[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(origin))
	b = binary.BigEndian.AppendUint64(b, p.Boot)
	b = binary.BigEndian.AppendUint32(b, uint32(to))
	b = binary.BigEndian.AppendUint64(b, uint64(p.At))
	b = binary.BigEndian.AppendUint32(b, group)
	return sum.Sum(b)
}

// signProof signs a statement of this node for another node, or returns nil without TLS.
//
// Only relayed messages are signed. On a direct connection TLS proves the sender already, and a
// signature per message would cost more than the message.
func (n *Network) signProof(statement string, to rhumb.NodeID, group uint32, contents ...[]byte) (*rhumbpb.OriginProof, error) {
	if n.cfg.Identity == nil {
		return nil, nil
	}
	self := n.cfg.Self()
	p := &rhumbpb.OriginProof{At: n.wall().UnixNano(), Boot: uint64(self.Boot)}
	sig, err := n.cfg.Identity.Sign(n.proofText(statement, self.Node, to, p, group, contents))
	if err != nil {
		return nil, err
	}
	p.Chain, p.Signature = sig.Chain, sig.Bytes
	return p, nil
}

// checkProof returns an error unless a node made a statement for this node recently. Without TLS
// nothing is checked.
func (n *Network) checkProof(statement string, p *rhumbpb.OriginProof, origin rhumb.NodeID, group uint32, contents ...[]byte) error {
	const op rhumb.Op = "peer.checkProof"
	if n.cfg.Identity == nil {
		return nil
	}
	// Missing is not the same as insecure: without this case, a relay could drop the proof and be
	// believed.
	if p == nil {
		return n.reject(rejectedProof, rhumb.Ef(op, rhumb.Unauthenticated, "a relayed message of %s is not signed", origin))
	}
	now := n.wall()
	if age := now.Sub(time.Unix(0, p.At)); age > proofAgeMax || age < -proofAgeMax {
		return n.reject(rejectedProof, rhumb.Ef(op, rhumb.Unauthenticated, "a relayed message of %s was signed %v from now; at most %v are accepted: check the clocks", origin, age.Round(time.Second), proofAgeMax))
	}
	bearer, err := n.cfg.Identity.Verifier().VerifySigned(
		n.proofText(statement, origin, n.cfg.Self().Node, p, group, contents),
		identity.Signature{Chain: p.Chain, Bytes: p.Signature}, wantNode, now)
	if err != nil {
		return n.reject(rejectedProof, err)
	}
	return n.checkSpeaker(bearer.Name.Name, origin, true)
}

// wall returns the time by the wall clock.
func (n *Network) wall() time.Time {
	if n.cfg.Wall != nil {
		return n.cfg.Wall()
	}
	return time.Now()
}

// DescribeIdentity asks another node for its certificates and keys of gossip.
func (n *Network) DescribeIdentity(ctx context.Context, to rhumb.NodeID) (*rhumbpb.NodeIdentityReport, error) {
	const op rhumb.Op = "peer.Network.DescribeIdentity"
	resp := new(rhumbpb.NodeIdentityReport)
	if err := n.callPeer(ctx, op, to, rhumbpb.Peer_DescribeIdentity_FullMethodName, &rhumbpb.DescribeIdentityRequest{}, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// DescribeIdentity lists the certificates and the keys of gossip that this node knows.
func (s *Service) DescribeIdentity(ctx context.Context, _ *rhumbpb.DescribeIdentityRequest) (*rhumbpb.NodeIdentityReport, error) {
	n, err := s.requireMember(ctx)
	if err != nil {
		return nil, err
	}
	return n.cfg.Handler.DescribeIdentity(), nil
}

// requireMember returns the open network if the caller is a registered node.
func (s *Service) requireMember(ctx context.Context) (*Network, error) {
	n, err := s.requireNetwork()
	if err != nil {
		return nil, err
	}
	return n, api.Status(n.checkMember(ctx), api.Hint{})
}
