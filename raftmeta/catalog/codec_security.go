package catalog

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// wireSecurity is the stored form of Security.
type wireSecurity struct {
	Authorities   []wireAuthority  `cbor:"1,keyasint,omitempty"`
	Distrusted    []string         `cbor:"2,keyasint,omitempty"`
	Revoked       []wireRevocation `cbor:"3,keyasint,omitempty"`
	GossipVersion uint64           `cbor:"4,keyasint,omitempty"`
	GossipKeys    []wireGossipKey  `cbor:"5,keyasint,omitempty"`
	// DistrustedAt is absent in states of earlier builds, and so are the retired authorities.
	DistrustedAt []uint64        `cbor:"6,keyasint,omitempty"`
	Retired      []wireAuthority `cbor:"7,keyasint,omitempty"`
}

type wireAuthority struct {
	Fingerprint string `cbor:"1,keyasint"`
	Cert        []byte `cbor:"2,keyasint"`
	Proof       []byte `cbor:"3,keyasint,omitempty"`
	Revision    uint64 `cbor:"4,keyasint,omitempty"`
}

// The wire types of this file are maps with numbers as keys, so that a later build can add fields.
// Their lists keep the order of the catalog, which makes the encoding deterministic. Secrets are
// plain bytes here: the log and the states of the metadata group hold them, and both stay within
// nodes.

// wireRevocation holds times as seconds since 1970; 0 is the zero time.
type wireRevocation struct {
	Serial   string `cbor:"1,keyasint"`
	Name     string `cbor:"2,keyasint,omitempty"`
	NotAfter int64  `cbor:"3,keyasint,omitempty"`
	Why      string `cbor:"4,keyasint,omitempty"`
	At       int64  `cbor:"5,keyasint,omitempty"`
	// Authority is absent in revocations of earlier builds.
	Authority string `cbor:"6,keyasint,omitempty"`
	Revision  uint64 `cbor:"7,keyasint,omitempty"`
}

// wireProof is on its way to the metadata leader only; the log has none.
type wireProof struct {
	At        int64    `cbor:"1,keyasint"`
	Chain     [][]byte `cbor:"2,keyasint"`
	Signature []byte   `cbor:"3,keyasint"`
}

type wireGossipKey struct {
	ID     uint32 `cbor:"1,keyasint"`
	Secret []byte `cbor:"2,keyasint"`
}

// toWireSecurity returns the stored form, or nil if there is nothing to store: then the bytes of a
// state are those that earlier binaries wrote.
func toWireSecurity(s *Security) *wireSecurity {
	if len(s.Authorities)+len(s.Distrusted)+len(s.Revoked) == 0 && s.Gossip.Version == 0 {
		return nil
	}
	w := &wireSecurity{
		Authorities: toWireAuthorities(s.Authorities), Distrusted: s.Distrusted, DistrustedAt: s.DistrustedAt, Retired: toWireAuthorities(s.Retired),
		GossipVersion: s.Gossip.Version, GossipKeys: toWireGossipKeys(s.Gossip.Keys),
	}
	for i := range s.Revoked {
		w.Revoked = append(w.Revoked, *toWireRevocation(&s.Revoked[i]))
	}
	return w
}

func (w *wireSecurity) toSecurity() *Security {
	if w == nil {
		return nil
	}
	s := &Security{
		Authorities: fromWireAuthorities(w.Authorities), Distrusted: w.Distrusted, DistrustedAt: w.DistrustedAt, Retired: fromWireAuthorities(w.Retired),
		Gossip: rhumb.GossipKeys{Version: w.GossipVersion, Keys: fromWireGossipKeys(w.GossipKeys)},
	}
	// Earlier builds stored no revisions. Zero precedes every authority, so that what they
	// distrusted vouches for none.
	if len(s.DistrustedAt) == 0 && len(s.Distrusted) > 0 {
		s.DistrustedAt = make([]uint64, len(s.Distrusted))
	}
	for i := range w.Revoked {
		s.Revoked = append(s.Revoked, w.Revoked[i].toRevocation())
	}
	return s
}

func toWireAuthorities(as []rhumb.Authority) (out []wireAuthority) {
	for _, a := range as {
		out = append(out, wireAuthority(a))
	}
	return out
}

func fromWireAuthorities(ws []wireAuthority) (out []rhumb.Authority) {
	for _, w := range ws {
		out = append(out, rhumb.Authority(w))
	}
	return out
}

func toWireRevocation(r *rhumb.Revocation) *wireRevocation {
	return &wireRevocation{Serial: r.Serial, Name: r.Name, NotAfter: fromTime(r.NotAfter), Why: r.Why, At: fromTime(r.At), Authority: r.Authority, Revision: r.Revision}
}

func (w *wireRevocation) toRevocation() rhumb.Revocation {
	if w == nil {
		return rhumb.Revocation{}
	}
	return rhumb.Revocation{Serial: w.Serial, Name: w.Name, NotAfter: toTime(w.NotAfter), Why: w.Why, At: toTime(w.At), Authority: w.Authority, Revision: w.Revision}
}

// fromTime returns seconds since 1970, or 0 for the zero time.
func fromTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// toTime is the inverse of fromTime. UTC, so that the text of a time does not depend on the
// machine.
func toTime(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

func toWireGossipKeys(keys []rhumb.GossipKey) (out []wireGossipKey) {
	for _, k := range keys {
		out = append(out, wireGossipKey{ID: k.ID, Secret: k.Secret})
	}
	return out
}

func fromWireGossipKeys(ws []wireGossipKey) (out []rhumb.GossipKey) {
	for _, w := range ws {
		out = append(out, rhumb.GossipKey{ID: w.ID, Secret: w.Secret})
	}
	return out
}
