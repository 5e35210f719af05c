package client

import (
	"context"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// UserInfo describes a user. Its password is not part of it.
//
// Whether there is a password is shown and its verifier never, not even to an administrator: it
// would be a gift to whoever reads the output.
type UserInfo struct {
	Name        string   `json:"name"`
	Roles       []string `json:"roles"`
	Disabled    bool     `json:"disabled"`
	HasPassword bool     `json:"has_password"`
}

// RoleInfo describes a role.
type RoleInfo struct {
	Name   string
	Grants []access.Grant
	// Users lists the users that have the role. Only cluster admins see it; for others it is empty and UsersHidden set.
	Users       []string
	UsersHidden bool
}

// Caller is the caller as the cluster identified it, with its rights.
type Caller struct {
	access.Principal
	Cluster rhumb.ClusterID
	// User is the record of a user, nil for other principals.
	User *UserInfo
	// Grants are those of all roles of the user. Unlimited allows everything without any.
	Grants    []access.Grant
	Unlimited bool
	// PolicyRevision is the revision of the metadata that last changed a user, role or grant.
	PolicyRevision uint64
}

// WhoAmI returns the caller as the cluster identified it.
func (c *Client) WhoAmI(ctx context.Context) (Caller, error) {
	const op rhumb.Op = "client.Client.WhoAmI"
	resp, err := askAccess(ctx, c, op, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.WhoAmIResponse, error) {
		return a.WhoAmI(ctx, &rhumbpb.WhoAmIRequest{})
	})
	if err != nil {
		return Caller{}, err
	}
	// The node decides what it shows; the client only passes it on.
	me := Caller{
		Principal: access.Principal{Kind: access.Kind(resp.Kind), Name: resp.Name}, Grants: api.DecodeGrants(resp.Grants),
		Unlimited: resp.Unlimited, PolicyRevision: resp.PolicyRevision,
	}
	if u := resp.User; u != nil {
		info := userInfo(u)
		me.User = &info
	}
	// Empty from a node that is in no cluster yet.
	if len(resp.Cluster) > 0 {
		me.Cluster, err = api.DecodeUUID(resp.Cluster)
	}
	return me, rhumb.Wrap(op, err)
}

// askAccess calls the Access service of the nearest node that answers.
func askAccess[T any](ctx context.Context, c *Client, op rhumb.Op, call func(context.Context, rhumbpb.AccessClient) (T, error)) (T, error) {
	out, err := askNearestConn(ctx, c, op, func(ctx context.Context, conn *stream.Conn) (T, error) { return call(ctx, conn.Access()) })
	return out, rhumb.Wrap(op, err)
}

// changeAccess sends a change of a user, role or grant. done is the kind with which a node refuses
// a change that was made already. It is success if an earlier attempt may have made it.
//
// Changes carry no request ID as writes of records do. They are idempotent instead: repeating one
// leaves the same state, except that a second drop or revocation fails, and that failure is the success
// of the earlier attempt.
func (c *Client) changeAccess(ctx context.Context, op rhumb.Op, done rhumb.Kind, call func(context.Context, rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error)) error {
	// Counts the nodes that were asked, not retries of one.
	tries := 0
	_, err := askAccess(ctx, c, op, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		tries++
		return call(ctx, a)
	})
	// The answer to the earlier attempt was lost.
	if tries > 1 && done != rhumb.Other && rhumb.KindOf(err) == done {
		return nil
	}
	return err
}

// CreateUser creates a user. The zero verifier creates a user without a password, who logs in by
// certificate. Package client/login computes verifiers from passwords.
func (c *Client) CreateUser(ctx context.Context, name string, v access.Verifier, roles ...string) error {
	const op rhumb.Op = "client.Client.CreateUser"
	if err := access.ValidateName("user", name); err != nil {
		return rhumb.Wrap(op, err)
	}
	// Repeating it is harmless: the cluster recognizes the user that it created.
	return c.changeAccess(ctx, op, rhumb.Other, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.CreateUser(ctx, &rhumbpb.CreateUserRequest{Name: name, Verifier: api.EncodeVerifier(v), Roles: roles})
	})
}

// SetPassword replaces the password of a user. The zero verifier removes it. The sessions that
// began with the former password end.
func (c *Client) SetPassword(ctx context.Context, name string, v access.Verifier) error {
	return c.changeAccess(ctx, "client.Client.SetPassword", rhumb.Other, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.AlterUser(ctx, &rhumbpb.AlterUserRequest{Name: name, Verifier: api.EncodeVerifier(v), RemovePassword: v.IsZero()})
	})
}

// EnableUser enables or disables a user. A disabled user has no rights, and its sessions end.
func (c *Client) EnableUser(ctx context.Context, name string, enabled bool) error {
	return c.changeAccess(ctx, "client.Client.EnableUser", rhumb.Other, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.AlterUser(ctx, &rhumbpb.AlterUserRequest{Name: name, Enable: enabled, Disable: !enabled})
	})
}

// DropUser removes a user.
func (c *Client) DropUser(ctx context.Context, name string) error {
	return c.changeAccess(ctx, "client.Client.DropUser", rhumb.NotFound, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.DropUser(ctx, &rhumbpb.DropUserRequest{Name: name})
	})
}

// Users returns the users that the caller may see, sorted by name: all for a cluster admin, and the
// caller itself otherwise.
func (c *Client) Users(ctx context.Context) ([]UserInfo, error) {
	resp, err := askAccess(ctx, c, "client.Client.Users", func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.ListUsersResponse, error) {
		return a.ListUsers(ctx, &rhumbpb.ListUsersRequest{})
	})
	if err != nil {
		return nil, err
	}
	// Not nil: an empty list is a list for programs too.
	users := make([]UserInfo, 0, len(resp.Users))
	for _, u := range resp.Users {
		users = append(users, userInfo(u))
	}
	return users, nil
}

// userInfo converts a message.
func userInfo(u *rhumbpb.UserInfo) UserInfo {
	return UserInfo{Name: u.Name, Roles: u.Roles, Disabled: u.Disabled, HasPassword: u.HasPassword}
}

// RefuseSnapshot takes a table out of the images in shared memory, for good. It takes the right
// admin of the table.
func (c *Client) RefuseSnapshot(ctx context.Context, table string) error {
	const op rhumb.Op = "client.Client.RefuseSnapshot"
	_, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.RefuseSnapshotResponse, error) {
		return cc.RefuseSnapshot(ctx, &rhumbpb.RefuseSnapshotRequest{Table: table})
	})
	return rhumb.Wrap(op, err)
}

// DropTable removes a table and all its records for good. The nodes free its space in the
// background. id is the number of the table that the caller looked at, or 0 for any table of that name;
// with a number, repeating the call is harmless. It takes the right admin of the table.
func (c *Client) DropTable(ctx context.Context, name string, id rhumb.TableID) error {
	const op rhumb.Op = "client.Client.DropTable"
	resp, err := askNearest(ctx, c, op, func(ctx context.Context, cc rhumbpb.ClusterClient) (*rhumbpb.DropTableResponse, error) {
		return cc.DropTable(ctx, &rhumbpb.DropTableRequest{Table: name, Id: uint32(id)})
	})
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	c.meta.forgetTable(rhumb.TableID(resp.Id))
	return nil
}

// CreateRole creates a role without grants.
func (c *Client) CreateRole(ctx context.Context, name string) error {
	const op rhumb.Op = "client.Client.CreateRole"
	if err := access.ValidateName("role", name); err != nil {
		return rhumb.Wrap(op, err)
	}
	return c.changeAccess(ctx, op, rhumb.Other, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.CreateRole(ctx, &rhumbpb.CreateRoleRequest{Name: name})
	})
}

// DropRole removes a role with its grants. If users have the role, it fails with Conflict, or takes
// the role from them if force is set.
func (c *Client) DropRole(ctx context.Context, name string, force bool) error {
	return c.changeAccess(ctx, "client.Client.DropRole", rhumb.NotFound, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.DropRole(ctx, &rhumbpb.DropRoleRequest{Name: name, Cascade: force})
	})
}

// Roles returns the roles that the caller may see, sorted by name: all for a cluster admin, and
// those of the caller otherwise.
func (c *Client) Roles(ctx context.Context) ([]RoleInfo, error) {
	resp, err := askAccess(ctx, c, "client.Client.Roles", func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.ListRolesResponse, error) {
		return a.ListRoles(ctx, &rhumbpb.ListRolesRequest{})
	})
	if err != nil {
		return nil, err
	}
	roles := make([]RoleInfo, 0, len(resp.Roles))
	for _, r := range resp.Roles {
		roles = append(roles, RoleInfo{r.Name, api.DecodeGrants(r.Grants), r.Users, r.UsersHidden})
	}
	return roles, nil
}

// AssignRole assigns a role to a user. It changes nothing if the user has the role.
func (c *Client) AssignRole(ctx context.Context, user, role string) error {
	return c.assignRole(ctx, "client.Client.AssignRole", user, role, false)
}

// UnassignRole takes a role from a user. It changes nothing if the user does not have the role.
func (c *Client) UnassignRole(ctx context.Context, user, role string) error {
	return c.assignRole(ctx, "client.Client.UnassignRole", user, role, true)
}

// assignRole assigns a role to a user, or takes the role from the user if remove is set.
func (c *Client) assignRole(ctx context.Context, op rhumb.Op, user, role string, remove bool) error {
	return c.changeAccess(ctx, op, rhumb.Other, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.AssignRole(ctx, &rhumbpb.AssignRoleRequest{User: user, Role: role, Remove: remove})
	})
}

// Grant adds rights to a role in a scope. Rights that the role has there already are left as they are.
func (c *Client) Grant(ctx context.Context, role string, s access.Scope, r access.Rights) error {
	return c.alterGrant(ctx, "client.Client.Grant", rhumb.Other, role, s, r, 0)
}

// Revoke takes rights from a role in exactly one scope; a grant without rights is removed. The error is NotFound if the role has none
// of the rights in this scope. Rights that it has in a wider or narrower scope remain.
func (c *Client) Revoke(ctx context.Context, role string, s access.Scope, r access.Rights) error {
	return c.alterGrant(ctx, "client.Client.Revoke", rhumb.NotFound, role, s, 0, r)
}

// SetGrant makes the rights of a role in a scope exactly those given; none removes the grant.
func (c *Client) SetGrant(ctx context.Context, role string, s access.Scope, r access.Rights) error {
	const op rhumb.Op = "client.Client.SetGrant"
	// One command, so that every request is judged by the old rights or by the new ones.
	err := c.alterGrant(ctx, op, rhumb.Other, role, s, r, s.Rights()&^r)
	if r != 0 || rhumb.KindOf(err) != rhumb.NotFound {
		return err
	}
	// Either the role or its grant does not exist. A grant that was removed already is as it should be.
	roles, rolesErr := c.Roles(ctx)
	if rolesErr == nil && slices.ContainsFunc(roles, func(o RoleInfo) bool { return o.Name == role }) {
		return nil
	}
	return err
}

// alterGrant adds rights to the grant of a role in a scope and removes others from it. Both happen in one step, so that
// no request is judged by half of the change. done is as in changeAccess.
func (c *Client) alterGrant(ctx context.Context, op rhumb.Op, done rhumb.Kind, role string, s access.Scope, add, remove access.Rights) error {
	// A grant that can never be valid fails without a round trip.
	if err := (access.Grant{Scope: s, Rights: add | remove}).Validate(); err != nil {
		return rhumb.Wrap(op, err)
	}
	return c.changeAccess(ctx, op, done, func(ctx context.Context, a rhumbpb.AccessClient) (*rhumbpb.AccessResponse, error) {
		return a.AlterGrant(ctx, &rhumbpb.AlterGrantRequest{Role: role, Scope: api.EncodeScope(s), Add: uint32(add), Remove: uint32(remove)})
	})
}
