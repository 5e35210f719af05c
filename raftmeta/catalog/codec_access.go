package catalog

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

// commandAccess holds the fields of wireCommand that only commands about users, roles and grants
// have.
type commandAccess struct {
	Verifier    *wireVerifier `cbor:"60,keyasint,omitempty"`
	Roles       []string      `cbor:"61,keyasint,omitempty"`
	Disabled    *bool         `cbor:"62,keyasint,omitempty"`
	SetVerifier bool          `cbor:"63,keyasint,omitempty"` // without Verifier: remove it
	Role        string        `cbor:"64,keyasint,omitempty"`
	Unassign    bool          `cbor:"65,keyasint,omitempty"`
	Scope       *wireScope    `cbor:"66,keyasint,omitempty"`
	AddRights   access.Rights `cbor:"67,keyasint,omitempty"`
	DropRights  access.Rights `cbor:"68,keyasint,omitempty"`
	Cascade     bool          `cbor:"69,keyasint,omitempty"`
}

// stateAccess holds the users and roles of wireState.
type stateAccess struct {
	Users []wireUser `cbor:"60,keyasint,omitempty"`
	Roles []wireRole `cbor:"61,keyasint,omitempty"`
	// AccessRevision is the revision that last changed one of them.
	AccessRevision uint64 `cbor:"62,keyasint,omitempty"`
}

type wireVerifier struct {
	_                          struct{} `cbor:",toarray"`
	Iterations                 int
	Salt, StoredKey, ServerKey []byte
}

// wireScope is a scope. The prefix is bytes, since text in CBOR has to be UTF-8.
type wireScope struct {
	_       struct{} `cbor:",toarray"`
	Cluster bool
	Table   string
	Prefix  []byte
}

type wireGrant struct {
	Scope  wireScope     `cbor:"1,keyasint"`
	Rights access.Rights `cbor:"2,keyasint"`
}

type wireUser struct {
	Name        string        `cbor:"1,keyasint"`
	Verifier    *wireVerifier `cbor:"2,keyasint,omitempty"`
	Disabled    bool          `cbor:"3,keyasint,omitempty"`
	Roles       []string      `cbor:"4,keyasint,omitempty"`
	Credentials uint64        `cbor:"5,keyasint"`
}

type wireRole struct {
	Name   string      `cbor:"1,keyasint"`
	Grants []wireGrant `cbor:"2,keyasint,omitempty"`
}

func toWireVerifier(v access.Verifier) *wireVerifier {
	if v.IsZero() {
		return nil
	}
	return &wireVerifier{Iterations: v.Iterations, Salt: v.Salt, StoredKey: v.StoredKey, ServerKey: v.ServerKey}
}

func (w *wireVerifier) toVerifier() access.Verifier {
	if w == nil {
		return access.Verifier{}
	}
	return access.Verifier{Iterations: w.Iterations, Salt: w.Salt, StoredKey: w.StoredKey, ServerKey: w.ServerKey}
}

func toWireScope(s access.Scope) *wireScope {
	return &wireScope{Cluster: s.Cluster, Table: s.Table, Prefix: []byte(s.Prefix)}
}

func (w *wireScope) toScope() access.Scope {
	if w == nil {
		return access.Scope{}
	}
	return access.Scope{Cluster: w.Cluster, Table: w.Table, Prefix: string(w.Prefix)}
}

func (c CreateUser) fillWire(w *wireCommand) {
	w.Name, w.Verifier, w.Roles = c.Name, toWireVerifier(c.Verifier), c.Roles
}

func (c SetUser) fillWire(w *wireCommand) {
	w.Name, w.Disabled = c.Name, c.Disabled
	if c.Verifier != nil {
		w.SetVerifier, w.Verifier = true, toWireVerifier(*c.Verifier)
	}
}

func (c DropUser) fillWire(w *wireCommand)   { w.Name = c.Name }
func (c CreateRole) fillWire(w *wireCommand) { w.Name = c.Name }
func (c DropRole) fillWire(w *wireCommand)   { w.Name, w.Cascade = c.Name, c.Cascade }
func (c AssignRole) fillWire(w *wireCommand) { w.Name, w.Role, w.Unassign = c.User, c.Role, c.Remove }

func (c RefuseSnapshot) fillWire(w *wireCommand) { w.Name = c.Table }

func (c AlterGrant) fillWire(w *wireCommand) {
	w.Role, w.Scope, w.AddRights, w.DropRights = c.Role, toWireScope(c.Scope), c.Add, c.Remove
}

// accessDecoders is the part of commandDecoders for users, roles and grants.
var accessDecoders = map[commandCode]func(w *wireCommand) Command{
	codeCreateUser: func(w *wireCommand) Command { return CreateUser{w.Name, w.Verifier.toVerifier(), w.Roles} },
	codeSetUser: func(w *wireCommand) Command {
		c := SetUser{Name: w.Name, Disabled: w.Disabled}
		if w.SetVerifier {
			v := w.Verifier.toVerifier()
			c.Verifier = &v
		}
		return c
	},
	codeRefuseSnapshot: func(w *wireCommand) Command { return RefuseSnapshot{w.Name} },
	codeDropUser:       func(w *wireCommand) Command { return DropUser{w.Name} },
	codeCreateRole:     func(w *wireCommand) Command { return CreateRole{w.Name} },
	codeDropRole:       func(w *wireCommand) Command { return DropRole{w.Name, w.Cascade} },
	codeAssignRole:     func(w *wireCommand) Command { return AssignRole{w.Name, w.Role, w.Unassign} },
	codeAlterGrant: func(w *wireCommand) Command {
		return AlterGrant{w.Role, w.Scope.toScope(), w.AddRights, w.DropRights}
	},
}

// toStateAccess returns the stored form of the users and roles.
func toStateAccess(b *accessBook) (w stateAccess) {
	if b == nil {
		return w
	}
	w.AccessRevision = b.revision
	for _, u := range b.users {
		w.Users = append(w.Users, wireUser{u.Name, toWireVerifier(u.Verifier), u.Disabled, u.Roles, u.Credentials})
	}
	for _, r := range b.roles {
		x := wireRole{Name: r.Name}
		for _, g := range r.Grants {
			x.Grants = append(x.Grants, wireGrant{*toWireScope(g.Scope), g.Rights})
		}
		w.Roles = append(w.Roles, x)
	}
	return w
}

// toBook returns the users and roles. State.Check verifies them.
func (w *stateAccess) toBook() (*accessBook, error) {
	if w.AccessRevision == 0 {
		if len(w.Users)+len(w.Roles) > 0 {
			return nil, rhumb.E("catalog.Decode", rhumb.Corrupt, "there are users or roles, but no revision created them")
		}
		return nil, nil
	}
	b := &accessBook{revision: w.AccessRevision}
	for _, u := range w.Users {
		b.users = append(b.users, &access.User{
			Name: u.Name, Verifier: u.Verifier.toVerifier(), Disabled: u.Disabled, Roles: u.Roles, Credentials: u.Credentials,
		})
	}
	for _, r := range w.Roles {
		x := &access.Role{Name: r.Name}
		for i := range r.Grants {
			x.Grants = append(x.Grants, access.Grant{Scope: r.Grants[i].Scope.toScope(), Rights: r.Grants[i].Rights})
		}
		b.roles = append(b.roles, x)
	}
	return b.compiled(), nil
}
