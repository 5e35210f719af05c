package api

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodeGossipKeys returns the message for keys of gossip, or nil without keys. Only nodes may
// receive it.
func EncodeGossipKeys(k rhumb.GossipKeys) *rhumbpb.GossipKeys {
	if len(k.Keys) == 0 {
		return nil
	}
	return &rhumbpb.GossipKeys{Version: k.Version, Keys: mapSlice(k.Keys, func(g rhumb.GossipKey) *rhumbpb.GossipKey {
		return &rhumbpb.GossipKey{Id: g.ID, Secret: g.Secret}
	})}
}

// DecodeGossipKeys returns keys of gossip. Keys beyond rhumb.GossipKeysMax are left out.
func DecodeGossipKeys(m *rhumbpb.GossipKeys) rhumb.GossipKeys {
	keys := m.GetKeys()
	return rhumb.GossipKeys{Version: m.GetVersion(), Keys: mapSlice(keys[:min(len(keys), rhumb.GossipKeysMax)], func(g *rhumbpb.GossipKey) rhumb.GossipKey {
		return rhumb.GossipKey{ID: g.GetId(), Secret: g.GetSecret()}
	})}
}

// EncodeRevocation returns the message for a revoked certificate.
func EncodeRevocation(r rhumb.Revocation) *rhumbpb.RevocationInfo {
	return &rhumbpb.RevocationInfo{Serial: r.Serial, Name: r.Name, NotAfter: EncodeSeconds(r.NotAfter), Why: r.Why, At: EncodeSeconds(r.At), Authority: r.Authority}
}

// DecodeRevocation returns a revoked certificate.
func DecodeRevocation(m *rhumbpb.RevocationInfo) rhumb.Revocation {
	return rhumb.Revocation{Serial: m.GetSerial(), Name: m.GetName(), NotAfter: DecodeSeconds(m.GetNotAfter()), Why: m.GetWhy(), At: DecodeSeconds(m.GetAt()), Authority: m.GetAuthority()}
}

// EncodeSeconds returns a time as seconds since 1970; 0 for the zero time.
func EncodeSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// DecodeSeconds is the inverse of EncodeSeconds.
func DecodeSeconds(s int64) time.Time {
	if s == 0 {
		return time.Time{}
	}
	return time.Unix(s, 0).UTC()
}
