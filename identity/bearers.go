package identity

import (
	"cmp"
	"slices"
)

// Bearers returns the verified bearers at the other side of open connections, each certificate
// once, ordered by name and serial number.
func (s *Source) Bearers() (peers []Peer) {
	seen := map[string]bool{}
	for _, c := range s.openConns() {
		if p, ok := c.Peer(); ok && !seen[string(p.Cert.Raw)] {
			seen[string(p.Cert.Raw)] = true
			// The certificate is the key and not the name: during a renewal a member has
			// connections of the old and of the new certificate, and an operator who revokes one
			// has to see both.
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name.Name, b.Name.Name), cmp.Compare(a.Serial, b.Serial))
	})
	return peers
}

// IssuerID returns the ID, in the form of AuthorityOf, of the authority that issued this member's certificate. It
// returns "" if no trusted authority did.
func (s *Source) IssuerID() string {
	l := s.current.Load()
	if l.pair == nil {
		return ""
	}
	chain, err := l.chain()
	if err != nil {
		return ""
	}
	// The issuer is taken from a verified chain. The issuer field of the certificate is only a
	// name, which two authorities may share.
	p, err := s.Verifier().Verify(chain, Want{Roles: []Role{l.name.Role}}, s.cfg.Wall())
	if err != nil {
		return ""
	}
	return p.Authority
}
