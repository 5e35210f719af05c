package node

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// A registration passes through other nodes: the member that a node asks to
// join, and the metadata leader. Each of them could invent one, and so begin
// a new life of a node that is alive, which interrupts it, or take a name
// that nobody has yet. Therefore the node signs its registration, and the
// member and the leader verify the signature before the command enters the
// log (docs/replication.md#rule-speaker).

// registrationAgeMax is the greatest distance between the time of a signed
// registration and the clock of its verifier. A repetition within it changes
// nothing, because the catalog recognises the nonce.
const registrationAgeMax = 30 * time.Second

// registrationStatement begins the signed text. Nothing else that a
// certificate signs begins with it.
const registrationStatement = "rhumb registration 1\x00"

// registrationText returns the text that a node signs to register in a
// cluster. Every field of the command is in it, with its size where sizes
// vary.
func registrationText(cluster rhumb.ClusterID, c catalog.RegisterNode, at int64) []byte {
	b := append([]byte(registrationStatement), cluster[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(at))
	b = append(append(b, c.Cluster[:]...), c.Store[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(c.Node))
	for _, v := range []uint64{uint64(c.Boot), c.Nonce, c.Previous, math.Float64bits(c.Location.Lat), math.Float64bits(c.Location.Lon)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, v := range []bool{c.Short, c.HasLocation} {
		b = append(b, map[bool]byte{true: 1}[v])
	}
	for _, s := range []string{c.Region, c.Zone, c.Addr, c.HeartbeatAddr, c.AdminAddr, c.Binary, c.Name} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	// Left out for other nodes, so that builds without witnesses verify their signatures. All before has a size, so it is not ambiguous.
	if c.Witness {
		b = append(b, 1)
	}
	return b
}

// signRegistration signs a registration of this node. Without TLS it returns
// the registration unchanged.
func (n *Node) signRegistration(c catalog.RegisterNode) (catalog.RegisterNode, error) {
	if n.source == nil {
		return c, nil
	}
	at := n.wall().UnixNano()
	sig, err := n.source.Sign(registrationText(n.source.Cluster(), c, at))
	if err != nil {
		return c, rhumb.Wrap("node.signRegistration", err)
	}
	c.Proof = &catalog.RegistrationProof{At: at, Chain: sig.Chain, Signature: sig.Bytes}
	return c, nil
}

// checkRegistration returns an error unless the node that a registration
// names signed it recently. Without TLS this cannot be checked.
func (n *Node) checkRegistration(c catalog.RegisterNode) error {
	if n.source == nil {
		return nil
	}
	err := n.verifyRegistration(c)
	if err != nil {
		n.unsigned.Inc()
		n.cfg.Logger.Warn("refused a registration", "name", c.Name, "node", c.Node, "addr", c.Addr, "err", rhumb.Message(err))
	}
	return err
}

// verifyRegistration rejects a registration that the node itself did not sign with the certificate of its name, or not lately.
func (n *Node) verifyRegistration(c catalog.RegisterNode) error {
	const op rhumb.Op = "node.verifyRegistration"
	if c.Proof == nil {
		return rhumb.Ef(op, rhumb.Unauthenticated, "the registration of %q is not signed by its node; only the node itself can register", c.Name)
	}
	now := n.judgeWall()
	if !isRecent(c.Proof, now) {
		// Before this node refuses another because of its clock, it compares its own with those of the others.
		now = n.askWall()
	}
	if !isRecent(c.Proof, now) {
		return rhumb.Ef(op, rhumb.Unauthenticated, "the registration of %q was signed at %s, and the clocks of the cluster show %s; at most %v apart are accepted: set the clocks of both machines, for example with chrony",
			c.Name, time.Unix(0, c.Proof.At).UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), registrationAgeMax)
	}
	v := n.source.Verifier()
	p, err := v.VerifySigned(registrationText(v.Cluster, c, c.Proof.At), identity.Signature{Chain: c.Proof.Chain, Bytes: c.Proof.Signature}, wantNode, now)
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	if p.Name.Name != c.Name {
		return rhumb.Ef(op, rhumb.PermissionDenied, "the certificate names %q; it cannot register %q", p.Name.Name, c.Name)
	}
	return nil
}

// isRecent reports whether a registration was signed at most registrationAgeMax from a time.
func isRecent(p *catalog.RegistrationProof, now time.Time) bool {
	return now.Sub(time.Unix(0, p.At)).Abs() <= registrationAgeMax
}

// wall returns the time by the wall clock.
func (n *Node) wall() time.Time {
	if n.cfg.Wall != nil {
		return n.cfg.Wall()
	}
	return time.Now()
}

// encodeProof returns the message for a proof, or nil.
func encodeProof(p *catalog.RegistrationProof) *rhumbpb.RegistrationProof {
	if p == nil {
		return nil
	}
	return &rhumbpb.RegistrationProof{At: p.At, Chain: p.Chain, Signature: p.Signature}
}
