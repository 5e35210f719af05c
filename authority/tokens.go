package authority

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/authority/token"
	"github.com/rhumbdb/rhumb/identity"
)

// Lifetimes and number of tokens.
const (
	// A token is a secret on its way between two machines. An hour is enough to start a node by
	// hand or by a tool; a week covers machines that are delivered first.
	TokenLifeDefault = time.Hour
	TokenLifeMax     = 7 * 24 * time.Hour
	// openTokensMax bounds the tokens that wait for their use.
	openTokensMax = 10_000
)

// TokenRequest describes a token to make.
type TokenRequest struct {
	// Node is the name of the node.
	Node string
	// Founder allows the node to create the cluster.
	Founder bool
	// Force allows a founder although the cluster may exist already: the authority adopted its ID,
	// or the ledger has lost records.
	Force bool
	// Life is how long the token can be used; default TokenLifeDefault.
	Life time.Duration
}

// CreateToken makes a token. The secret is in the result and nowhere else.
func (a *Authority) CreateToken(req TokenRequest) (token.Token, error) {
	const op rhumb.Op = "authority.CreateToken"
	if req.Life == 0 {
		req.Life = TokenLifeDefault
	}
	if req.Life < time.Second || req.Life > TokenLifeMax {
		return token.Token{}, rhumb.Ef(op, rhumb.InvalidArgument, "--ttl %v; want 1s to %v", req.Life, TokenLifeMax)
	}
	if err := identity.ValidateName(identity.RoleNode, req.Node); err != nil {
		return token.Token{}, err
	}
	k, err := a.load()
	if err != nil {
		return token.Token{}, err
	}
	// The pin is that of the current key. A rotation before the use of the token does no harm: the
	// server's chain still contains the old key, cross-signed or as a root, until it is retired.
	t := token.Token{Cluster: a.cluster, Pin: PinOf(k.current), Founder: req.Founder, Node: req.Node, Addresses: k.addresses}
	_, _ = rand.Read(t.ID[:]) // never fails
	_, _ = rand.Read(t.Secret[:])
	err = a.ledger.Update(func(s *ledger.State) ([]ledger.Record, error) {
		now := s.Now(a.wall())
		// Counted and not stored: tokens leave this state by time alone.
		open := 0
		for _, other := range s.TokensInOrder() {
			if other.State(now) == "open" {
				open++
			}
		}
		if open >= openTokensMax {
			return nil, rhumb.Ef(op, rhumb.Overloaded, "%d tokens are open, which is the maximum; remove some with rhumb token rm", open)
		}
		if err := checkFounder(s, req, now); err != nil {
			return nil, err
		}
		t.Expires = now.Add(req.Life).Truncate(time.Second)
		hash := t.Secret.Hash()
		return []ledger.Record{{
			Kind: ledger.Created, Token: t.ID.String(), Secret: hex.EncodeToString(hash[:]), Role: identity.RoleNode.String(), Name: t.Node,
			Founder: t.Founder, Expires: t.Expires,
		}}, nil
	})
	if err != nil {
		return token.Token{}, rhumb.Wrap(op, err)
	}
	return t, nil
}

// checkFounder refuses a second founder: two nodes that each create the cluster would make two
// clusters with one id, and neither would know of the other.
//
// The ledger is the only place that can prevent it. The nodes themselves cannot, because the second
// founder may be out of reach of the first one when it starts.
func checkFounder(s *ledger.State, req TokenRequest, now time.Time) error {
	const op rhumb.Op = "authority.checkFounder"
	first := s.Founder(now)
	switch {
	case !req.Founder:
		return nil
	case first == nil && s.Adopted && !req.Force:
		return rhumb.Ef(op, rhumb.AlreadyExists, "the authority was made for cluster %s, which exists already (rhumb init --cluster); leave --founder out and start the node with --join; if that cluster does not exist, add --force", s.Cluster)
	case first == nil && s.Gaps > 0 && !req.Force:
		return rhumb.E(op, rhumb.AlreadyExists, "the ledger has lost records, so a node may have created the cluster already; leave --founder out and start the node with --join; if the cluster does not exist, add --force")
	case first == nil:
		return nil
	}
	return rhumb.Ef(op, rhumb.AlreadyExists,
		"token %s already allows node %s to create the cluster (it is %s); leave --founder out, or run `rhumb token rm %s` first if that node never started and never will",
		first.ID, first.Node, first.State(now), first.ID)
}

// RemoveToken makes a token unusable. A token that was used stays so; removing the token of the
// founder allows another founder.
func (a *Authority) RemoveToken(id token.ID) error {
	const op rhumb.Op = "authority.RemoveToken"
	return rhumb.Wrap(op, a.ledger.Update(func(s *ledger.State) ([]ledger.Record, error) {
		t := s.Tokens[id.String()]
		if t == nil {
			return nil, unknownToken(op, id.String())
		}
		if t.Removed {
			return nil, nil
		}
		return []ledger.Record{{Kind: ledger.Removed, Token: t.ID}}, nil
	}))
}

// unknownToken returns the error for an ID that is not in the ledger.
func unknownToken(op rhumb.Op, id string) error {
	return rhumb.Ef(op, rhumb.NotFound, "the authority knows no token %s; `rhumb token ls` lists the tokens", id)
}

// Tokens returns all tokens, oldest first, and the time at which their states hold.
func (a *Authority) Tokens() (tokens []ledger.Token, now time.Time, err error) {
	err = a.ledger.View(func(s *ledger.State) {
		now = s.Now(a.wall())
		for _, t := range s.TokensInOrder() {
			tokens = append(tokens, *t)
		}
	})
	return tokens, now, err
}

// Summary describes an authority.
type Summary struct {
	Cluster   string
	Addresses []string
	// Keys are the hashes of the trusted keys, the current one first.
	Keys []string
	// KeyExpires is the end of the current key. Certificates that are issued within their lifetime
	// of this end are shorter.
	KeyExpires time.Time
	// Records counts the records of the ledger, Gaps the losses that were noticed.
	Records, Gaps int
	// Certificates holds all issued certificates, oldest first.
	Certificates []ledger.Certificate
	// Now is the time of the ledger.
	Now time.Time
}

// Summarize returns the issued certificates, oldest first.
func (a *Authority) Summarize() (*Summary, error) {
	k, err := a.load()
	if err != nil {
		return nil, err
	}
	out := &Summary{Cluster: a.cluster.String(), Addresses: k.addresses, KeyExpires: k.current.NotAfter}
	for _, c := range k.roots {
		out.Keys = append(out.Keys, identity.AuthorityOf(c))
	}
	err = a.ledger.View(func(s *ledger.State) {
		out.Records, out.Gaps, out.Now = s.Records, s.Gaps, s.Now(a.wall())
		for _, c := range s.Certificates {
			out.Certificates = append(out.Certificates, *c)
		}
	})
	return out, err
}

// Revoke makes the authority refuse to renew the certificate with a serial, or all certificates
// that a node has now. It does not end their validity: the metadata of the cluster does that.
//
// A name is revoked up to now and not forever, so that the node can be enrolled again with a new
// token under the same name.
func (a *Authority) Revoke(serial, node, why string) error {
	const op rhumb.Op = "authority.Revoke"
	return rhumb.Wrap(op, a.ledger.Update(func(s *ledger.State) ([]ledger.Record, error) {
		if serial != "" {
			if _, ok := s.Certificate(serial); !ok {
				return nil, rhumb.Ef(op, rhumb.NotFound, "the authority issued no certificate with serial %s; `rhumb authority ls` lists them", serial)
			}
			return []ledger.Record{{Kind: ledger.Revoked, Serial: serial, Why: why}}, nil
		}
		if err := identity.ValidateName(identity.RoleNode, node); err != nil {
			return nil, err
		}
		return []ledger.Record{{Kind: ledger.Revoked, Role: identity.RoleNode.String(), Name: node, Why: why}}, nil
	}))
}

// checkSecret compares a secret with the hash in the ledger in constant time.
func checkSecret(secret token.Secret, stored string) bool {
	want, err := hex.DecodeString(stored)
	hash := secret.Hash()
	return err == nil && len(want) == sha256.Size && subtle.ConstantTimeCompare(hash[:], want) == 1
}
