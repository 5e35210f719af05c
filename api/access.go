package api

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// EncodePrincipal returns the message for a principal.
func EncodePrincipal(p access.Principal) *rhumbpb.Principal {
	return &rhumbpb.Principal{Kind: rhumbpb.PrincipalKind(p.Kind), Name: p.Name}
}

// DecodePrincipal returns the principal of a message. A principal on whose behalf no node may
// forward a request becomes the zero Principal, who may do nothing.
func DecodePrincipal(m *rhumbpb.Principal) access.Principal {
	p := access.Principal{Kind: access.Kind(clampToByte(int64(m.GetKind()))), Name: m.GetName()}
	if !p.CanBeForwarded() {
		return access.Principal{}
	}
	return p
}

// EncodeVerifier returns the message for a verifier, or nil for the zero verifier.
func EncodeVerifier(v access.Verifier) *rhumbpb.Verifier {
	if v.IsZero() {
		return nil
	}
	return &rhumbpb.Verifier{Iterations: uint32(v.Iterations), Salt: v.Salt, StoredKey: v.StoredKey, ServerKey: v.ServerKey}
}

// DecodeVerifier returns and validates the verifier of a message. nil is the zero verifier.
func DecodeVerifier(m *rhumbpb.Verifier) (access.Verifier, error) {
	if m == nil {
		return access.Verifier{}, nil
	}
	v := access.Verifier{Iterations: int(m.GetIterations()), Salt: m.GetSalt(), StoredKey: m.GetStoredKey(), ServerKey: m.GetServerKey()}
	return v, v.Validate()
}

// EncodeScope returns the message for a scope.
func EncodeScope(s access.Scope) *rhumbpb.Scope {
	return &rhumbpb.Scope{Cluster: s.Cluster, Table: s.Table, Prefix: []byte(s.Prefix)}
}

// DecodeScope returns and validates the scope of a message.
func DecodeScope(m *rhumbpb.Scope) (access.Scope, error) {
	s := access.Scope{Cluster: m.GetCluster(), Table: m.GetTable(), Prefix: string(m.GetPrefix())}
	return s, s.Validate()
}

// EncodeGrants returns the messages for grants.
func EncodeGrants(grants []access.Grant) []*rhumbpb.Grant {
	return mapSlice(grants, func(g access.Grant) *rhumbpb.Grant {
		return &rhumbpb.Grant{Scope: EncodeScope(g.Scope), Rights: uint32(g.Rights)}
	})
}

// DecodeGrants returns the grants of messages. They are shown to people, so they are not validated:
// a newer node may know rights that this binary does not.
func DecodeGrants(ms []*rhumbpb.Grant) []access.Grant {
	return mapSlice(ms, func(m *rhumbpb.Grant) access.Grant {
		s, _ := DecodeScope(m.GetScope())
		return access.Grant{Scope: s, Rights: access.Rights(clampToByte(int64(m.GetRights())))}
	})
}

// DecodeRights returns the rights of a message. Rights that this binary does not know are an error:
// a change must not do less than its caller asked for.
func DecodeRights(bits uint32) (access.Rights, error) {
	if bits > uint32(access.TableRights) {
		return 0, rhumb.Ef("api.DecodeRights", rhumb.InvalidArgument, "rights %#x are unknown; the sender may be newer than this node", bits)
	}
	return access.Rights(bits), nil
}
