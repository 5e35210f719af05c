package catalog

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// Security holds the catalog's part of identities: whom the nodes trust besides the authorities in
// their own files, whom they reject, and the keys of gossip. It is immutable.
//
// The keys of gossip are secrets. Nodes receive them as members of the metadata group, and no
// service for clients returns them.
//
// It is part of the catalog and not of files, because a revocation must reach all nodes in the
// order of the other changes: a node that has applied the command which makes a user an
// administrator has also applied the revocation before it.
type Security struct {
	// Authorities are ordered by fingerprint.
	Authorities []rhumb.Authority
	// Retired are the authorities that were in Authorities before they were distrusted, ordered by
	// fingerprint. What operators signed with certificates of a retired authority, before it was
	// distrusted, counts.
	Retired []rhumb.Authority
	// Distrusted are the fingerprints of authorities that are rejected wherever they are listed,
	// sorted.
	Distrusted []string
	// DistrustedAt holds for each of Distrusted the revision of the metadata with which it was
	// distrusted.
	DistrustedAt []uint64
	// Revoked are ordered by serial number, and those of one number by authority. Those of bearers have
	// no number and come first, ordered by name and time.
	Revoked []rhumb.Revocation
	Gossip  rhumb.GossipKeys
}

// noSecurity is the security of a cluster that has never set any.
var noSecurity = &Security{}

// Security returns the security of the cluster. It is shared and must not be modified.
func (s *State) Security() *Security {
	if s.security == nil {
		return noSecurity
	}
	return s.security
}

// NodeByName returns the node to which a name is bound. A forgotten node has no name any more, and the
// name of a replaced node belongs to the one in its place.
//
// A search and not an index: clusters have hundreds of nodes at most, and names are looked up when
// connections begin and not for each message.
func (s *State) NodeByName(name string) (*rhumb.Node, bool) {
	if name == "" {
		return nil, false
	}
	for n := range s.Nodes() {
		if n.Name == name && !n.Forgotten && n.ReplacedBy == rhumb.NoNode {
			return n, true
		}
	}
	return nil, false
}

// putSecurity stores a new security and notes that it changed.
func (t *tx) putSecurity(s *Security) {
	t.security = s
	t.changes.Security = true
}

// checkNameFree refuses a registration whose name is bound to another node than self.
func (c RegisterNode) checkNameFree(t *tx, self rhumb.NodeID) (res Result, ok bool) {
	other, bound := t.NodeByName(c.Name)
	if !bound || other.ID == self {
		return Result{}, true
	}
	// Two nodes with one name could speak for each other, so a name belongs to one store until an
	// operator forgets the node.
	return refuse("catalog.RegisterNode", rhumb.AlreadyExists, "node name %q is bound to %s, whose disk is another one (store %s); if that disk is lost for good, "+
		"run `rhumb node forget %s` once the node is fenced, else enrol this node under another name", c.Name, other.ID, other.Store, other.ID), false
}

// checkBoundName refuses a known node whose certificate does not carry the name that is bound to
// it. A node without a bound name may bind one: a cluster that began with --insecure is secured
// this way.
func (c RegisterNode) checkBoundName(t *tx, old *node) (res Result, ok bool) {
	const op rhumb.Op = "catalog.RegisterNode"
	switch {
	case old.Forgotten:
		return refuse(op, rhumb.InvalidArgument, "%s was removed from the cluster; start it with an empty directory to join as a new node", old.ID), false
	case old.Name == "":
		return c.checkNameFree(t, old.ID)
	case c.Name == "":
		return refuse(op, rhumb.InvalidArgument, "%s is registered as %q, so it cannot register with --insecure; start it with its certificate", old.ID, old.Name), false
	case c.Name != old.Name:
		return refuse(op, rhumb.InvalidArgument, "%s is registered as %q, but its certificate names %q; start it with the certificate of %q", old.ID, old.Name, c.Name, old.Name), false
	}
	return Result{}, true
}

// applyTo marks the node as forgotten.
func (c ForgetNode) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.ForgetNode"
	n, ok := t.nodes.get(uint64(c.Node))
	switch {
	case !ok:
		return refuse(op, rhumb.NotFound, "node %s does not exist", c.Node)
	case n.Forgotten:
		return Result{Node: c.Node}
	// The operator has decided about a life of the node. If it has come back since, the decision
	// was about somebody else.
	case n.Boot != c.Boot:
		return refuse(op, rhumb.Conflict, "%s was seen in life %d, but is in life %d now", c.Node, c.Boot, n.Boot)
	case c.Empty:
		if reason := t.WhyNotForget(&n.Node); reason != "" {
			return refuse(op, rhumb.Conflict, "%s cannot be removed: %s", c.Node, reason)
		}
	case n.State != rhumb.NodeFenced:
		return refuse(op, rhumb.Conflict, "%s is %s; only a fenced node can be forgotten: stop it and wait until `rhumb node ls` shows it as fenced", c.Node, n.State)
	}
	t.forgetNode(n)
	return Result{Node: c.Node}
}

// forgetNode stores that a node was removed for good. Nothing that somebody decided about it counts any more: no pin keeps a place among
// the voters for it, and no range returns to it.
func (t *tx) forgetNode(n *node) {
	// States are immutable, so the node is copied and replaced.
	next := *n
	next.Forgotten, next.Leaving, next.leftBefore, next.VotePinned = true, false, false, false
	next.State = rhumb.NodeFenced
	t.putNode(&next)
	t.forgetFormer(n.ID)
}

// WhyNotForget returns why a node may not be removed for good yet, or "". It must hold no copy and no vote, and must be
// decommissioning or fenced.
func (s *State) WhyNotForget(n *rhumb.Node) string {
	copies := 0
	for r := range s.Ranges() {
		if r.IsReplica(n.ID) {
			copies++
		}
	}
	switch {
	case copies > 0 && n.Leaving:
		return fmt.Sprintf("it still has copies of %s, which are being moved; `rhumb operation ls` shows the progress", countRanges(copies))
	case copies > 0 && n.State == rhumb.NodeFenced:
		return fmt.Sprintf("it still counts as a copy of %s without enough copies elsewhere yet; add a node if the region has too few, or run `rhumb node decommission %s`", countRanges(copies), n.ID)
	case copies > 0:
		return fmt.Sprintf("it is %s and has copies of %s; run `rhumb node decommission %s` first", n.State, countRanges(copies), n.ID)
	case n.State != rhumb.NodeFenced && n.State != rhumb.NodeDecommissioning:
		return fmt.Sprintf("it is %s; run `rhumb node decommission %s` first", n.State, n.ID)
	case n.Voter:
		return "it still votes in the metadata group; another node gets its vote within seconds"
	}
	return ""
}

// countRanges returns a number of ranges for people.
func countRanges(n int) string {
	if n == 1 {
		return "1 range"
	}
	return fmt.Sprintf("%d ranges", n)
}

// replaced returns the nodes whose place a registering node takes: fenced ones with its name and address. In an insecure
// cluster the address alone decides, because only one process can listen there. ok is false if such a node is not fenced
// yet: then res says so, and the node asks again.
//
// The address counts besides the name: another machine with a copy of the certificate must not take the place of a node that
// merely restarts.
func (c RegisterNode) replaced(t *tx, self rhumb.NodeID) (out []*node, res Result, ok bool) {
	if !t.Has(rhumb.FeatureOperations) {
		return nil, Result{}, true
	}
	for _, n := range t.nodes.all() {
		if n.ID == self || n.Forgotten || n.ReplacedBy != rhumb.NoNode || n.Name != c.Name || n.Addr != c.Addr || c.Addr == "" {
			continue
		}
		if n.State != rhumb.NodeFenced {
			return nil, refuse("catalog.RegisterNode", rhumb.Unavailable, "%s at %s is registered with another disk (store %s) and is %s; this node takes its place once %s is fenced, which takes seconds if it has stopped",
				n.ID, n.Addr, n.Store, n.State, n.ID), false
		}
		out = append(out, n)
	}
	return out, Result{}, true
}

// replaceNodes records who took the place of the nodes.
func (t *tx) replaceNodes(old []*node, by rhumb.NodeID) {
	for _, n := range old {
		next := *n
		next.ReplacedBy = by
		t.putNode(&next)
	}
}

// applyTo adds and removes authorities.
func (c SetTrust) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetTrust"
	next := *t.Security()
	// The old State shares the slices.
	next.Authorities, next.Retired = slices.Clone(next.Authorities), slices.Clone(next.Retired)
	next.Distrusted, next.DistrustedAt = slices.Clone(next.Distrusted), slices.Clone(next.DistrustedAt)
	changed := false
	for _, a := range c.Trust {
		if err := checkAuthority(a); err != nil {
			return refuseErr(op, err)
		}
		if slices.Contains(c.Distrust, a.Fingerprint) {
			return refuse(op, rhumb.InvalidArgument, "authority %.16s… is to be trusted and distrusted at once", a.Fingerprint)
		}
		// The catalog cannot tell a proof from a copy of an old one, so nothing ends a distrust.
		if _, found := slices.BinarySearch(next.Distrusted, a.Fingerprint); found {
			return refuse(op, rhumb.InvalidArgument, "authority %.16s… is distrusted, which is final; make an authority with another key and trust that one", a.Fingerprint)
		}
		a.Revision = t.nextRevision()
		switch i, found := findFingerprint(next.Authorities, a.Fingerprint); {
		case !found:
			next.Authorities, changed = slices.Insert(next.Authorities, i, a), true
		// Replaced and not kept: a proof that convinces nobody must not keep a good one out.
		case !bytes.Equal(next.Authorities[i].Cert, a.Cert) || !bytes.Equal(next.Authorities[i].Proof, a.Proof):
			next.Authorities[i], changed = a, true
		}
	}
	for _, f := range c.Distrust {
		if !isFingerprint(f) {
			return refuse(op, rhumb.InvalidArgument, "fingerprint %.70q is not 64 hexadecimal digits", f)
		}
		if i, found := findFingerprint(next.Authorities, f); found {
			retired := next.Authorities[i]
			next.Authorities, changed = slices.Delete(next.Authorities, i, i+1), true
			at, _ := findFingerprint(next.Retired, f)
			next.Retired = slices.Insert(next.Retired, at, retired)
		}
		if i, found := slices.BinarySearch(next.Distrusted, f); !found {
			next.Distrusted, changed = slices.Insert(next.Distrusted, i, f), true
			next.DistrustedAt = slices.Insert(next.DistrustedAt, i, t.nextRevision())
		}
	}
	if max(len(next.Authorities), len(next.Distrusted)) > rhumb.AuthoritiesMax {
		return refuse(op, rhumb.TooLarge, "the metadata would hold %d trusted and %d distrusted authorities; the limit is %d each", len(next.Authorities), len(next.Distrusted), rhumb.AuthoritiesMax)
	}
	if changed {
		t.putSecurity(&next)
	}
	return Result{}
}

// applyTo adds an entry, and forgets those that expired long ago.
func (c RevokeCertificate) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RevokeCertificate"
	r := c.Revocation
	// The stored form has whole seconds, and a replica that restarts continues with the stored
	// form.
	r.NotAfter, r.At = toTime(fromTime(r.NotAfter)), toTime(fromTime(r.At))
	r.Revision = t.nextRevision()
	if err := checkRevocation(r); err != nil {
		return refuseErr(op, err)
	}
	next := *t.Security()
	i, found := findRevocation(next.Revoked, r)
	// A repetition, or a second operator. The entry is kept as long as the stricter of both demands: a node
	// that was broken into could otherwise have one forgotten by being first.
	if found {
		old := next.Revoked[i]
		merged := old
		if isOperator(r.Name) {
			merged.Name = r.Name
		}
		if r.NotAfter.IsZero() || !old.NotAfter.IsZero() && r.NotAfter.After(old.NotAfter) {
			merged.NotAfter = r.NotAfter
		}
		if merged != old {
			next.Revoked = slices.Clone(next.Revoked)
			next.Revoked[i] = merged
			t.putSecurity(&next)
		}
		return Result{}
	}
	next.Revoked = slices.Insert(slices.Clone(next.Revoked), i, r)
	// The new entry stays in any case: the operator may know better than the expiry.
	next.Revoked = slices.DeleteFunc(next.Revoked, func(x rhumb.Revocation) bool {
		// A revoked operator may have signed for authorities, which the nodes judge for as long as
		// the cluster lives.
		return compareRevocations(x, r) != 0 && !isOperator(x.Name) && !x.NotAfter.IsZero() && r.At.Sub(x.NotAfter) > rhumb.RevokedKeep
	})
	if len(next.Revoked) > rhumb.RevokedMax {
		return refuse(op, rhumb.TooLarge, "%d certificates are revoked, which is the limit; distrust the authority that issued them with `rhumb cert distrust`", rhumb.RevokedMax)
	}
	t.putSecurity(&next)
	return Result{}
}

func (RevokeBearer) needs() rhumb.Feature { return rhumb.FeatureRevokeBearer }

// applyTo adds an entry for a bearer.
func (c RevokeBearer) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.RevokeBearer"
	r := rhumb.Revocation{Name: c.Revocation.Name, Why: c.Revocation.Why, At: toTime(fromTime(c.Revocation.At)), Revision: t.nextRevision()}
	if err := checkRevokedBearer(r); err != nil {
		return refuseErr(op, err)
	}
	next := *t.Security()
	// An entry of the same time or a later one covers this one.
	if slices.ContainsFunc(next.Revoked, func(x rhumb.Revocation) bool { return x.Serial == "" && x.Name == r.Name && !x.At.Before(r.At) }) {
		return Result{}
	}
	next.Revoked = slices.Clone(next.Revoked)
	if !isOperator(r.Name) {
		next.Revoked = slices.DeleteFunc(next.Revoked, func(x rhumb.Revocation) bool { return x.Serial == "" && x.Name == r.Name })
	}
	i, _ := findRevocation(next.Revoked, r)
	next.Revoked = slices.Insert(next.Revoked, i, r)
	if len(next.Revoked) > rhumb.RevokedMax {
		return refuse(op, rhumb.TooLarge, "%d certificates and bearers are revoked, which is the limit; distrust the authority that issued them with `rhumb cert distrust`", rhumb.RevokedMax)
	}
	t.putSecurity(&next)
	return Result{}
}

// isOperator reports whether the name in a revocation is that of an operator.
func isOperator(name string) bool { return strings.HasPrefix(name, "operator ") }

// applyTo replaces the keys of gossip.
func (c SetGossipKeys) applyTo(t *tx) Result {
	const op rhumb.Op = "catalog.SetGossipKeys"
	if t.cluster.IsZero() {
		return refuse(op, rhumb.Unavailable, "the cluster does not exist yet")
	}
	if err := checkGossipKeys(c.Keys); err != nil {
		return refuseErr(op, err)
	}
	next := *t.Security()
	// Compare and set: each step of a rotation depends on the step before.
	if next.Gossip.Version != c.Version {
		return refuse(op, rhumb.Conflict, "the keys of gossip have version %d, not %d; somebody else rotates them", next.Gossip.Version, c.Version)
	}
	next.Gossip = rhumb.GossipKeys{Version: c.Version + 1, Keys: c.Keys}
	t.putSecurity(&next)
	return Result{}
}

// findFingerprint returns the position of an authority, or where to insert it.
func findFingerprint(as []rhumb.Authority, fingerprint string) (int, bool) {
	return slices.BinarySearchFunc(as, fingerprint, func(a rhumb.Authority, f string) int { return strings.Compare(a.Fingerprint, f) })
}

// compareRevocations orders revocations by the certificates that they reject.
func compareRevocations(a, b rhumb.Revocation) int {
	if a.Serial == "" && b.Serial == "" {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.At.Compare(b.At))
	}
	return cmp.Or(strings.Compare(a.Serial, b.Serial), strings.Compare(a.Authority, b.Authority))
}

// findRevocation returns the position of a revocation, or where to insert it.
func findRevocation(rs []rhumb.Revocation, r rhumb.Revocation) (int, bool) {
	return slices.BinarySearchFunc(rs, r, compareRevocations)
}

// checkAuthority returns an error if an authority has the wrong form. The certificate itself is not
// parsed: whoever proposes it does that, and what a parser accepts may differ between builds.
func checkAuthority(a rhumb.Authority) error {
	const op rhumb.Op = "catalog.checkAuthority"
	switch {
	case !isFingerprint(a.Fingerprint):
		return rhumb.Ef(op, rhumb.InvalidArgument, "fingerprint %.70q is not 64 hexadecimal digits", a.Fingerprint)
	case len(a.Cert) == 0 || len(a.Cert) > rhumb.CertificateSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the certificate of authority %.16s… has %d bytes; want 1 to %d", a.Fingerprint, len(a.Cert), rhumb.CertificateSizeMax)
	case len(a.Proof) > rhumb.TrustProofSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the proof of authority %.16s… has %d bytes; the limit is %d", a.Fingerprint, len(a.Proof), rhumb.TrustProofSizeMax)
	}
	return nil
}

// checkRevocation returns an error if a revocation has the wrong form.
func checkRevocation(r rhumb.Revocation) error {
	const op rhumb.Op = "catalog.checkRevocation"
	switch {
	case r.Serial == "" || len(r.Serial) > rhumb.SerialSizeMax || !isLowerHex(r.Serial) || r.Serial[0] == '0' && r.Serial != "0":
		return rhumb.Ef(op, rhumb.InvalidArgument, "serial number %.50q: want 1 to %d hexadecimal digits without leading zeros", r.Serial, rhumb.SerialSizeMax)
	case r.Authority != "" && !isFingerprint(r.Authority):
		return rhumb.Ef(op, rhumb.InvalidArgument, "authority %.70q is not 64 hexadecimal digits", r.Authority)
	case len(r.Name) > rhumb.RevocationTextMax || len(r.Why) > rhumb.RevocationTextMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the name or reason has %d bytes; the limit is %d", max(len(r.Name), len(r.Why)), rhumb.RevocationTextMax)
	}
	return nil
}

// checkRevokedBearer returns an error if a revocation of a bearer has the wrong form. Nodes are not
// among the bearers: they renew their certificates without help, so a revoked node is named by serial
// numbers, and comes back with another certificate at once.
func checkRevokedBearer(r rhumb.Revocation) error {
	const op rhumb.Op = "catalog.checkRevokedBearer"
	role, name, _ := strings.Cut(r.Name, " ")
	switch {
	case role != "user" && role != "operator" || name == "":
		return rhumb.Ef(op, rhumb.InvalidArgument, "bearer %.70q: want `user NAME` or `operator NAME`", r.Name)
	case len(r.Name) > rhumb.RevocationTextMax || len(r.Why) > rhumb.RevocationTextMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the name or reason has %d bytes; the limit is %d", max(len(r.Name), len(r.Why)), rhumb.RevocationTextMax)
	case r.At.IsZero() || r.Serial != "" || r.Authority != "" || !r.NotAfter.IsZero():
		return rhumb.Ef(op, rhumb.InvalidArgument, "the revocation of %s has no time, or names a certificate", r.Name)
	}
	return nil
}

// checkGossipKeys returns an error if keys of gossip have the wrong form. The error does not show
// them.
func checkGossipKeys(keys []rhumb.GossipKey) error {
	const op rhumb.Op = "catalog.checkGossipKeys"
	if len(keys) == 0 || len(keys) > rhumb.GossipKeysMax {
		return rhumb.Ef(op, rhumb.InvalidArgument, "%d keys of gossip; want 1 to %d", len(keys), rhumb.GossipKeysMax)
	}
	seen := map[uint32]bool{}
	for _, k := range keys {
		if k.ID == 0 || seen[k.ID] || len(k.Secret) != rhumb.GossipSecretSize {
			return rhumb.Ef(op, rhumb.InvalidArgument, "key %d of gossip has a number that is 0 or repeated, or %d bytes instead of %d", k.ID, len(k.Secret), rhumb.GossipSecretSize)
		}
		seen[k.ID] = true
	}
	return nil
}

// isFingerprint reports whether s is a SHA-256 in lower-case hexadecimal digits.
func isFingerprint(s string) bool { return len(s) == 64 && isLowerHex(s) }

// isLowerHex reports whether s consists of lower-case hexadecimal digits.
func isLowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// checkNames checks that names are valid and that no two nodes have the same one.
func (s *State) checkNames() error {
	names := map[string]bool{}
	for n := range s.Nodes() {
		if n.Forgotten && n.State != rhumb.NodeFenced {
			return brokenInvariant("node %s is forgotten and %s", n.ID, n.State)
		}
		if n.Name == "" || n.Forgotten || n.ReplacedBy != rhumb.NoNode {
			continue
		}
		if names[n.Name] || rhumb.ValidateNodeName(n.Name) != nil {
			return brokenInvariant("node %s has the name %q, which is invalid or the name of another node", n.ID, n.Name)
		}
		names[n.Name] = true
	}
	return nil
}

// checkSecurity checks order, form and bounds of the lists.
func (s *State) checkSecurity() error {
	x := s.Security()
	if max(len(x.Authorities), len(x.Distrusted)) > rhumb.AuthoritiesMax || len(x.Revoked) > rhumb.RevokedMax {
		return brokenInvariant("%d trusted and %d distrusted authorities and %d revoked certificates exceed their limits", len(x.Authorities), len(x.Distrusted), len(x.Revoked))
	}
	for i, a := range x.Authorities {
		_, distrusted := slices.BinarySearch(x.Distrusted, a.Fingerprint)
		if checkAuthority(a) != nil || distrusted || i > 0 && x.Authorities[i-1].Fingerprint >= a.Fingerprint {
			return brokenInvariant("authority %d (%.16s…) has the wrong form or order, or is distrusted", i, a.Fingerprint)
		}
	}
	if len(x.DistrustedAt) != len(x.Distrusted) || len(x.Retired) > len(x.Distrusted) {
		return brokenInvariant("%d distrusted authorities have %d revisions and %d certificates", len(x.Distrusted), len(x.DistrustedAt), len(x.Retired))
	}
	for i, a := range x.Retired {
		_, distrusted := slices.BinarySearch(x.Distrusted, a.Fingerprint)
		if checkAuthority(a) != nil || !distrusted || i > 0 && x.Retired[i-1].Fingerprint >= a.Fingerprint {
			return brokenInvariant("retired authority %d (%.16s…) has the wrong form or order, or is not distrusted", i, a.Fingerprint)
		}
	}
	for i, f := range x.Distrusted {
		if !isFingerprint(f) || i > 0 && x.Distrusted[i-1] >= f {
			return brokenInvariant("distrusted authority %d (%.16s…) has the wrong form or order", i, f)
		}
	}
	for i, r := range x.Revoked {
		check := checkRevocation
		if r.Serial == "" {
			check = checkRevokedBearer
		}
		if check(r) != nil || i > 0 && compareRevocations(x.Revoked[i-1], r) >= 0 {
			return brokenInvariant("revocation %d (%.40q) has the wrong form or order", i, r.Serial)
		}
	}
	if x.Gossip.Version == 0 && len(x.Gossip.Keys) > 0 || x.Gossip.Version > 0 && checkGossipKeys(x.Gossip.Keys) != nil {
		return brokenInvariant("version %d of the gossip keys has keys of the wrong form", x.Gossip.Version)
	}
	return nil
}

// MaySpeak returns an error unless the bearer of a node certificate with a name may act as a node.
// With joining, the node may also be one that is not registered with this name yet, as long as
// neither the node nor the name belongs to somebody else: a node takes part in the metadata group
// before this copy of the metadata shows its registration.
func (s *State) MaySpeak(name string, id rhumb.NodeID, joining bool) error {
	const op rhumb.Op = "catalog.MaySpeak"
	n, known := s.Node(id)
	switch holder, held := s.NodeByName(name); {
	case id == rhumb.NoNode:
		return rhumb.Ef(op, rhumb.PermissionDenied, "the bearer of the certificate %q claims no node number", name)
	case held && holder.ID != id:
		return rhumb.Ef(op, rhumb.PermissionDenied, "the certificate names %q, which is %s; it cannot speak for %s", name, holder.ID, id)
	case known && n.Forgotten:
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s was removed from the cluster", id)
	case known && !held && n.Name != "":
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s is registered as %q; a certificate that names %q cannot speak for it", id, n.Name, name)
	case !held && !joining:
		return rhumb.Ef(op, rhumb.Unavailable, "this node has not learned yet that %s registered with the certificate of %q; retry", id, name)
	}
	return nil
}

// MayPropose returns an error unless a node may ask the metadata leader for a command. It protects
// the roles of other nodes: a command that a node proposes about itself or its ranges is refused
// from anybody else, and those that need the evidence of the leader are refused from all. Commands
// of operators, sent through any node are not restricted here.
func (s *State) MayPropose(from rhumb.NodeID, cmd Command) error {
	const op rhumb.Op = "catalog.MayPropose"
	denied := func(format string, args ...any) error {
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s proposed "+format, append([]any{from}, args...)...)
	}
	switch c := cmd.(type) {
	case AlterISR:
		if r, ok := s.Range(c.Range); ok && r.Primary != from {
			return denied("an in-sync set of range %s, whose primary is %s", c.Range, r.Primary)
		}
	case CompleteSplit:
		if r, ok := s.Range(c.Range); ok && r.Primary != from {
			return denied("that the split of range %s is complete, whose primary is %s", c.Range, r.Primary)
		}
	case CancelSplit:
		if r, ok := s.RangeOf(c.Range); ok && r.Primary != from {
			return denied("to cancel the split of range %s, whose primary is %s", r.ID, r.Primary)
		}
	case CompleteMerge:
		if r, ok := s.Range(c.Range); ok && r.Primary != from {
			return denied("that the merge of range %s is complete, whose primary is %s", c.Range, r.Primary)
		}
	case CancelMerge:
		if r, ok := s.Range(c.Range); ok && r.Primary != from {
			return denied("to cancel the merge of range %s, whose primary is %s", c.Range, r.Primary)
		}
	case AdoptHandover:
		if r, ok := s.Range(c.Range); ok && r.Prepared != nil && r.Prepared.Target != from {
			return denied("to adopt the handover of range %s to %s", c.Range, r.Prepared.Target)
		}
	case QuarantineReplica:
		if c.Node != from {
			return denied("to quarantine a replica of %s", c.Node)
		}
	case ReadmitReplica:
		if c.Node != from {
			return denied("to readmit a replica of %s", c.Node)
		}
	case RegisterNode:
		// A member passes on registrations of nodes that joined through it.
		// Their signatures are verified elsewhere.
		if n, ok := s.Node(from); c.Name != "" && (!ok || n.Name == "" && c.Node != from) {
			return denied("to register %q", c.Name)
		}
	case FenceNode, SetRegionDead, SetVoters, Init, UpdateOperation, SetLeaving:
		return denied("a command of the metadata leader")
	case Batch:
		for _, item := range c.Commands {
			if err := s.MayPropose(from, item); err != nil {
				return err
			}
		}
	}
	return nil
}
