package node

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

const (
	// reportTimeout bounds the question to one node about certificates.
	reportTimeout = 2 * time.Second
	// clientsMax bounds the certificates of clients in one report.
	clientsMax = 256
	// rotatePoll is the interval at which a rotation asks whether all nodes have installed a
	// version.
	rotatePoll = 100 * time.Millisecond
)

// The metadata is the only way in which revocation and trust reach the nodes. Each node applies
// them from its own copy, as soon as that copy has them, and at its start from the copy on its
// disk. So a node that was cut off, or down, while a certificate was revoked rejects it before it
// serves again: its copy has to catch up before it registers its new life. Only a node that is cut
// off and does not know it accepts the certificate meanwhile, for as long as its leases and its
// copy allow it to serve at all.

// applySecurity makes this node trust and reject as the metadata demands, and gossip with its keys.
func (n *Node) applySecurity(s *catalog.Security) {
	n.installGossipKeys(s.Gossip)
	n.recordRevocations(s)
	if n.source == nil {
		return
	}
	t := identity.Trust{Distrusted: s.Distrusted}
	for i, a := range slices.Concat(s.Authorities, s.Retired) {
		cert, err := x509.ParseCertificate(a.Cert)
		if err == nil && identity.AuthorityOf(cert) != a.Fingerprint {
			err = rhumb.E("node.applySecurity", rhumb.InvalidArgument, "the certificate has another key")
		}
		if err != nil {
			// Another build proposed it, or a node that was broken into. The others stay trusted.
			n.cfg.Logger.Error("cannot use the certificate of an authority in the metadata; this node does not trust it", "authority", a.Fingerprint, "err", err)
			continue
		}
		v := identity.Vouched{Cert: cert, Proof: a.Proof, Retired: i >= len(s.Authorities)}
		v.Distrusted, v.Revoked, v.RevokedBefore = rejectedBefore(s, a.Revision)
		t.Authorities = append(t.Authorities, v)
	}
	t.RevokedBefore = map[string]time.Time{}
	for _, r := range s.Revoked {
		if r.Serial == "" {
			revokeBearer(t.RevokedBefore, r)
		} else {
			t.Revoked = append(t.Revoked, identity.Revoked{Authority: r.Authority, Serial: r.Serial})
		}
	}
	n.source.SetTrust(t)
}

// rejectedBefore returns what the metadata rejected before a revision.
func rejectedBefore(s *catalog.Security, revision uint64) (distrusted map[string]bool, revoked map[identity.Revoked]bool, bearers map[string]time.Time) {
	distrusted, revoked, bearers = map[string]bool{}, map[identity.Revoked]bool{}, map[string]time.Time{}
	for i, f := range s.Distrusted {
		if s.DistrustedAt[i] < revision {
			distrusted[f] = true
		}
	}
	for _, r := range s.Revoked {
		switch {
		case r.Revision >= revision:
		case r.Serial == "":
			revokeBearer(bearers, r)
		default:
			revoked[identity.Revoked{Authority: r.Authority, Serial: r.Serial}] = true
		}
	}
	return distrusted, revoked, bearers
}

// revokeBearer adds the revocation of a bearer. The latest of several counts.
func revokeBearer(before map[string]time.Time, r rhumb.Revocation) {
	if r.At.After(before[r.Name]) {
		before[r.Name] = r.At
	}
}

// CheckTrust verifies that an operator whom this node trusts has just signed for an authority. It keeps mistakes out of the
// metadata. The other nodes do not rely on it: each verifies the proof in the metadata.
func (n *Node) CheckTrust(cert *x509.Certificate, proof []byte) error {
	if n.source == nil {
		return rhumb.E("node.CheckTrust", rhumb.InvalidArgument, "this cluster runs with --insecure, so its nodes trust no authorities")
	}
	return n.source.CheckTrust(cert, proof)
}

// revocationAheadMax bounds how far a revocation that another node proposes may be ahead of this node's
// clock.
const revocationAheadMax = time.Hour

// checkRevocation refuses a revocation from the future, which would make the metadata forget revocations
// of certificates that are still valid.
func (n *Node) checkRevocation(r rhumb.Revocation) error {
	now := n.judgeWall()
	if r.At.Sub(now) <= revocationAheadMax {
		return nil
	}
	return rhumb.Ef("node.checkRevocation", rhumb.InvalidArgument, "the revocation is of %s, and the clock here shows %s; set the clocks of both machines, for example with chrony",
		r.At.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
}

// ownName returns the name in the certificate of this node, or "" without TLS.
func (n *Node) ownName() string {
	if n.source == nil {
		return ""
	}
	name, _ := n.source.Name()
	return name.Name
}

// callerName returns the name in the certificate of the node that sent a request, or "" without
// TLS.
func (n *Node) callerName(ctx context.Context) (string, error) {
	if n.source == nil {
		return "", nil
	}
	if err := n.requireNodeCaller(ctx); err != nil {
		return "", err
	}
	p, _ := identity.PeerFromContext(ctx)
	return p.Name.Name, nil
}

// requireOperator rejects a request over TLS whose caller is not an operator. Calls within the
// process have no connection and pass.
func (n *Node) requireOperator(ctx context.Context) error {
	if _, remote := identity.ConnFromContext(ctx); n.source == nil || !remote {
		return nil
	}
	if p, ok := identity.PeerFromContext(ctx); !ok || p.Role != identity.RoleOperator {
		return rhumb.E("node.requireOperator", rhumb.PermissionDenied, "only an operator may do this before the cluster exists; use a certificate from `rhumb authority operator NAME`")
	}
	return nil
}

// DescribeIdentity lists the certificates and the keys of gossip that this node knows.
func (m *member) DescribeIdentity() *rhumbpb.NodeIdentityReport {
	keys := m.n.gossip.Keys()
	r := &rhumbpb.NodeIdentityReport{Node: uint32(m.self.Node), Name: m.n.ownName(), Secure: m.n.source != nil, GossipVersion: keys.Version}
	for _, k := range keys.Keys {
		r.GossipKeys = append(r.GossipKeys, k.ID)
	}
	if m.n.source == nil {
		return r
	}
	if leaf := m.n.source.Leaf(); leaf != nil {
		name, _ := m.n.source.Name()
		r.Certificate = m.describeCertificate(name, leaf, m.n.source.IssuerID())
	}
	for _, p := range m.n.source.Bearers() {
		// Other nodes report themselves. Reports of each about all others would make the report of
		// a cluster grow with the square of its nodes.
		if p.Role != identity.RoleNode && len(r.Clients) < clientsMax {
			r.Clients = append(r.Clients, m.describeCertificate(p.Name, p.Cert, p.Authority))
		}
	}
	for _, cert := range m.n.source.Authorities() {
		r.Authorities = append(r.Authorities, describeAuthority(cert))
	}
	for _, i := range m.n.source.Ignored() {
		r.Ignored = append(r.Ignored, i.Authority)
	}
	return r
}

// describeCertificate describes a certificate that this node uses or sees.
func (m *member) describeCertificate(name identity.Name, cert *x509.Certificate, authority string) *rhumbpb.Certificate {
	return &rhumbpb.Certificate{
		Role: name.Role.String(), Name: name.Name, Serial: identity.SerialOf(cert), NotBefore: api.EncodeSeconds(cert.NotBefore),
		NotAfter: api.EncodeSeconds(cert.NotAfter), Authority: authority, Node: uint32(m.self.Node), Seen: time.Now().Unix(),
		Issued: api.EncodeSeconds(identity.IssuedAt(cert)),
	}
}

// describeAuthority describes the certificate of an authority.
func describeAuthority(cert *x509.Certificate) *rhumbpb.AuthorityInfo {
	return &rhumbpb.AuthorityInfo{
		Fingerprint: identity.AuthorityOf(cert), Subject: cert.Subject.String(), NotBefore: api.EncodeSeconds(cert.NotBefore),
		NotAfter: api.EncodeSeconds(cert.NotAfter), Certificate: cert.Raw,
	}
}

// DescribeIdentities asks every node that is not fenced. A node that does not answer has a report
// with the reason.
func (n *Node) DescribeIdentities(ctx context.Context) ([]*rhumbpb.NodeIdentityReport, error) {
	m, err := n.requireMember()
	if err != nil {
		return nil, err
	}
	nodes := slices.Collect(m.group.State().Nodes())
	// A fenced node is known not to answer.
	nodes = slices.DeleteFunc(nodes, func(d *rhumb.Node) bool { return d.State == rhumb.NodeFenced })
	reports := make([]*rhumbpb.NodeIdentityReport, len(nodes))
	var wait sync.WaitGroup
	// All at once, so that several nodes that hang cost one timeout.
	for i, d := range nodes {
		wait.Go(func() { reports[i] = m.describeIdentityOf(ctx, d) })
	}
	wait.Wait()
	return reports, nil
}

// describeIdentityOf asks one node.
func (m *member) describeIdentityOf(ctx context.Context, d *rhumb.Node) *rhumbpb.NodeIdentityReport {
	if d.ID == m.self.Node {
		return m.DescribeIdentity()
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	r, err := m.network.DescribeIdentity(ctx, d.ID)
	if err != nil {
		r = &rhumbpb.NodeIdentityReport{Error: rhumb.Message(err)}
	}
	// The node that was asked counts, whatever the answer says: the certificate of the connection proved its name.
	r.Node, r.Name = uint32(d.ID), d.Name
	return r
}

// nextGossipKeys returns the keys after one step of a rotation, and whether that is its last step.
// A rotation adds a key that encrypts nothing yet, makes it the first, and drops the others. The
// numbers of the keys say which step comes next, so that anybody can continue an interrupted
// rotation.
//
// It is pure, and the metadata is its only input, so that the tests try an interruption after every
// step.
func nextGossipKeys(now []rhumb.GossipKey) (next []rhumb.GossipKey, last bool) {
	newest := slices.MaxFunc(append([]rhumb.GossipKey{{}}, now...), func(a, b rhumb.GossipKey) int { return int(a.ID) - int(b.ID) })
	switch {
	// A cluster that began with --insecure has no key. Its nodes do not gossip until all have this
	// one.
	case len(now) == 0:
		return []rhumb.GossipKey{newGossipKey(1)}, true
	// Nodes that have the new key read what others send with it later.
	case len(now) == 1:
		return []rhumb.GossipKey{now[0], newGossipKey(newest.ID + 1)}, false
	// Every node can read the new key now, so it may encrypt. The old one stays for messages under
	// way and for nodes that have not taken this step yet.
	case now[0].ID != newest.ID:
		rest := slices.DeleteFunc(slices.Clone(now), func(k rhumb.GossipKey) bool { return k.ID == newest.ID })
		return append([]rhumb.GossipKey{newest}, rest...), false
	}
	// Nobody sends with the old key any more.
	return now[:1:1], true
}

// RotateGossipKeys replaces the key of gossip step by step. Between two steps it waits until every
// node that is not fenced has installed the keys: a node that lacked a key could not read what
// others send. It returns the keys and the fenced nodes, which learn the keys when they return.
func (n *Node) RotateGossipKeys(ctx context.Context) (keys rhumb.GossipKeys, away []rhumb.NodeID, err error) {
	const op rhumb.Op = "node.RotateGossipKeys"
	if !n.gossip.Encrypted() {
		return keys, nil, rhumb.E(op, rhumb.InvalidArgument, "this cluster runs with --insecure, so gossip has no keys")
	}
	for done := false; !done; {
		st, err := n.Linearize(ctx)
		if err != nil {
			return keys, nil, rhumb.Wrap(op, err)
		}
		keys = st.Security().Gossip
		// Also before the first step: an interrupted rotation may have missed nodes.
		if err := n.awaitGossipKeys(ctx, keys.Version); err != nil {
			return keys, nil, err
		}
		next, last := nextGossipKeys(keys.Keys)
		// Somebody else who rotates at the same time makes this a Conflict. Two rotations that
		// alternate would both be right about each step and end with a key that neither reports.
		if _, st, err = n.Propose(ctx, catalog.SetGossipKeys{Version: keys.Version, Keys: next}); err != nil {
			return keys, nil, rhumb.Wrap(op, err)
		}
		done = last
		keys = st.Security().Gossip
		n.cfg.Logger.Info("rotating the keys of gossip", "version", keys.Version, "keys", len(keys.Keys), "last", done)
	}
	if err := n.awaitGossipKeys(ctx, keys.Version); err != nil {
		return keys, nil, err
	}
	for d := range n.State().Nodes() {
		if d.State == rhumb.NodeFenced && !d.Forgotten {
			away = append(away, d.ID)
		}
	}
	return keys, away, nil
}

// awaitGossipKeys waits until every node that is not fenced has installed a version of the keys.
func (n *Node) awaitGossipKeys(ctx context.Context, version uint64) error {
	// Asked rather than watched: a node installs the keys after its copy of the metadata has them,
	// and may fail to.
	for {
		// Each round lists the nodes again. One that is fenced meanwhile is not waited for.
		reports, err := n.DescribeIdentities(ctx)
		if err != nil {
			return err
		}
		var late []string
		for _, r := range reports {
			if r.GossipVersion < version {
				late = append(late, rhumb.NodeID(r.Node).String())
			}
		}
		if len(late) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return rhumb.Ef("node.awaitGossipKeys", rhumb.DeadlineExceeded, "%s have not installed version %d of the keys; gossip works meanwhile. "+
				"Repair these nodes, or stop them until they are fenced, and run the command again: it continues", strings.Join(late, ", "), version)
		case <-time.After(rotatePoll):
		}
	}
}

// proposeFirstKeys proposes the first key of gossip for a cluster that has none because it began with --insecure. Only the
// metadata leader proposes it, so that nodes do not compete.
func (m *member) proposeFirstKeys() {
	if !m.n.gossip.Encrypted() || m.group.State().Security().Gossip.Version > 0 || !m.group.IsLeader() {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, registerTimeout)
	defer cancel()
	if _, err := m.group.Propose(ctx, catalog.SetGossipKeys{Keys: []rhumb.GossipKey{newGossipKey(1)}}); err != nil {
		m.n.cfg.Logger.Warn("cannot set the first key of gossip; trying again", "err", fmt.Sprint(err))
	}
}
