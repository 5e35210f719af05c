package server

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// AccessNode changes and reads users, roles and grants.
type AccessNode interface {
	// State returns the newest catalog of this node, or nil before there is one.
	State() *catalog.State
	// ChangeAccess proposes a command about users, roles or grants, and returns a catalog that
	// includes it.
	ChangeAccess(ctx context.Context, cmd catalog.Command) (*catalog.State, error)
	// Linearize returns a catalog that includes everything decided before the call.
	Linearize(ctx context.Context) (*catalog.State, error)
}

// Access is the service for users, roles and grants. Authorize has checked the right to each call;
// the methods check only what depends on the request.
//
// Its methods never see a password: clients compute verifiers. A node that is broken into thus
// learns verifiers, which it has anyway, and no password that the user may have used elsewhere too.
type Access struct {
	rhumbpb.UnimplementedAccessServer
	node AccessNode
}

// NewAccess returns the service.
func NewAccess(n AccessNode) *Access { return &Access{node: n} }

// Register registers the service.
func (a *Access) Register(s grpc.ServiceRegistrar) { rhumbpb.RegisterAccessServer(s, a) }

// clusterState returns the catalog, or an error of kind Unavailable before there is one.
func (a *Access) clusterState() (*catalog.State, error) {
	if st := a.node.State(); st != nil && !st.Cluster().IsZero() {
		return st, nil
	}
	return nil, rhumb.E("server.Access", rhumb.Unavailable, "the node belongs to no cluster yet; retry, or use another node")
}

// change proposes a command and answers with its revision.
func (a *Access) change(ctx context.Context, cmd catalog.Command) (*rhumbpb.AccessResponse, error) {
	if _, err := a.clusterState(); err != nil {
		return nil, statusError(err)
	}
	st, err := a.node.ChangeAccess(ctx, cmd)
	if err != nil {
		return nil, statusError(err)
	}
	return &rhumbpb.AccessResponse{Revision: st.Revision()}, nil
}

// WhoAmI describes the caller.
func (a *Access) WhoAmI(ctx context.Context, _ *rhumbpb.WhoAmIRequest) (*rhumbpb.WhoAmIResponse, error) {
	st := a.node.State()
	who, subject := caller(ctx, st)
	resp := &rhumbpb.WhoAmIResponse{
		Kind: rhumbpb.PrincipalKind(who.Kind), Name: who.Name, Unlimited: subject.IsUnlimited(), PolicyRevision: st.Access().Revision(),
	}
	// An operator may ask a node before the cluster exists.
	if st == nil {
		return resp, nil
	}
	resp.Cluster = api.EncodeUUID(st.Cluster())
	if who.Kind != access.KindUser {
		return resp, nil
	}
	// Roles of a user exist as long as the user has them; State.Check guards that.
	if u, ok := st.User(who.Name); ok {
		resp.User = encodeUser(u)
		for _, name := range u.Roles {
			if r, ok := st.Role(name); ok {
				resp.Grants = append(resp.Grants, api.EncodeGrants(r.Grants)...)
			}
		}
	}
	return resp, nil
}

// CreateUser creates a user.
func (a *Access) CreateUser(ctx context.Context, q *rhumbpb.CreateUserRequest) (*rhumbpb.AccessResponse, error) {
	v, err := api.DecodeVerifier(q.Verifier)
	if err != nil {
		return nil, statusError(err)
	}
	// The catalog checks everything. The length alone is checked here as well, before the command
	// enters the log.
	if len(q.Roles) > access.UserRolesMax {
		return nil, statusError(rhumb.Ef("server.Access.CreateUser", rhumb.TooLarge, "the user would have %d roles; the limit is %d", len(q.Roles), access.UserRolesMax))
	}
	return a.change(ctx, catalog.CreateUser{Name: q.Name, Verifier: v, Roles: q.Roles})
}

// mayAlterUser returns an error unless the caller may change a user.
func mayAlterUser(ctx context.Context, st *catalog.State, q *rhumbpb.AlterUserRequest) error {
	const op rhumb.Op = "server.Access.AlterUser"
	who, subject := caller(ctx, st)
	if subject.AllowsCluster(access.Admin) {
		return nil
	}
	if who != (access.Principal{Kind: access.KindUser, Name: q.Name}) {
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s may not change other users; that needs the right to administer the cluster", who)
	}
	// A password that the admin did not want for this user would be a way
	// around its certificate.
	u, ok := st.User(q.Name)
	if !ok || q.Disable || q.Enable || q.Verifier == nil || u.Verifier.IsZero() {
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s may replace its own password, and nothing else; ask a cluster admin", who)
	}
	return nil
}

// AlterUser changes a user. A user may replace its own password, and nothing else.
func (a *Access) AlterUser(ctx context.Context, q *rhumbpb.AlterUserRequest) (*rhumbpb.AccessResponse, error) {
	const op rhumb.Op = "server.Access.AlterUser"
	v, err := api.DecodeVerifier(q.Verifier)
	if err != nil {
		return nil, statusError(err)
	}
	cmd := catalog.SetUser{Name: q.Name}
	// Fields of proto3 have no absence, so each change is a flag of its own.
	switch {
	case q.Disable && q.Enable || q.RemovePassword && q.Verifier != nil:
		return nil, statusError(rhumb.E(op, rhumb.InvalidArgument, "the request contradicts itself; change one thing"))
	case q.Disable || q.Enable:
		cmd.Disabled = &q.Disable
	}
	if q.RemovePassword || q.Verifier != nil {
		cmd.Verifier = &v
	}
	st, err := a.clusterState()
	if err != nil {
		return nil, statusError(err)
	}
	if err := mayAlterUser(ctx, st, q); err != nil {
		return nil, statusError(err)
	}
	return a.change(ctx, cmd)
}

// DropUser removes a user.
func (a *Access) DropUser(ctx context.Context, q *rhumbpb.DropUserRequest) (*rhumbpb.AccessResponse, error) {
	return a.change(ctx, catalog.DropUser{Name: q.Name})
}

// ListUsers lists the users that the caller may see.
func (a *Access) ListUsers(ctx context.Context, _ *rhumbpb.ListUsersRequest) (*rhumbpb.ListUsersResponse, error) {
	st, err := a.clusterState()
	if err != nil {
		return nil, statusError(err)
	}
	who, subject := caller(ctx, st)
	resp := &rhumbpb.ListUsersResponse{PolicyRevision: st.Access().Revision()}
	// A user without the right admin learns only about itself: names of users are worth a guess at
	// their passwords.
	for u := range st.Users() {
		if subject.AllowsCluster(access.Admin) || who == (access.Principal{Kind: access.KindUser, Name: u.Name}) {
			resp.Users = append(resp.Users, encodeUser(u))
		}
	}
	return resp, nil
}

// encodeUser returns the message for a user, without the verifier.
func encodeUser(u *access.User) *rhumbpb.UserInfo {
	return &rhumbpb.UserInfo{Name: u.Name, Roles: u.Roles, Disabled: u.Disabled, HasPassword: !u.Verifier.IsZero()}
}

// CreateRole creates a role.
func (a *Access) CreateRole(ctx context.Context, q *rhumbpb.CreateRoleRequest) (*rhumbpb.AccessResponse, error) {
	return a.change(ctx, catalog.CreateRole{Name: q.Name})
}

// DropRole removes a role.
func (a *Access) DropRole(ctx context.Context, q *rhumbpb.DropRoleRequest) (*rhumbpb.AccessResponse, error) {
	return a.change(ctx, catalog.DropRole{Name: q.Name, Cascade: q.Cascade})
}

// ListRoles lists the roles that the caller may see. Only cluster admins see who has them.
func (a *Access) ListRoles(ctx context.Context, _ *rhumbpb.ListRolesRequest) (*rhumbpb.ListRolesResponse, error) {
	st, err := a.clusterState()
	if err != nil {
		return nil, statusError(err)
	}
	who, subject := caller(ctx, st)
	all := subject.AllowsCluster(access.Admin)
	var own []string
	if u, ok := st.User(who.Name); ok && who.Kind == access.KindUser {
		own = u.Roles
	}
	// One pass over all users, not one per role.
	holders := map[string][]string{}
	if all {
		for u := range st.Users() {
			for _, r := range u.Roles {
				holders[r] = append(holders[r], u.Name)
			}
		}
	}
	resp := &rhumbpb.ListRolesResponse{PolicyRevision: st.Access().Revision()}
	for r := range st.Roles() {
		if all || slices.Contains(own, r.Name) {
			resp.Roles = append(resp.Roles, &rhumbpb.RoleInfo{Name: r.Name, Grants: api.EncodeGrants(r.Grants), Users: holders[r.Name], UsersHidden: !all})
		}
	}
	return resp, nil
}

// AssignRole assigns a role or takes it away.
func (a *Access) AssignRole(ctx context.Context, q *rhumbpb.AssignRoleRequest) (*rhumbpb.AccessResponse, error) {
	return a.change(ctx, catalog.AssignRole{User: q.User, Role: q.Role, Remove: q.Remove})
}

// AlterGrant changes a grant.
func (a *Access) AlterGrant(ctx context.Context, q *rhumbpb.AlterGrantRequest) (*rhumbpb.AccessResponse, error) {
	scope, err := api.DecodeScope(q.Scope)
	if err != nil {
		return nil, statusError(err)
	}
	add, err := api.DecodeRights(q.Add)
	if err != nil {
		return nil, statusError(err)
	}
	remove, err := api.DecodeRights(q.Remove)
	if err != nil {
		return nil, statusError(err)
	}
	// A request that only takes rights away is refused if there are none. Success would hide a mistyped scope: whoever revokes a right
	// believes afterwards that nobody has it.
	if add == 0 {
		if err := a.checkRevoke(ctx, q.Role, access.Grant{Scope: scope, Rights: remove}); err != nil {
			return nil, statusError(err)
		}
	}
	return a.change(ctx, catalog.AlterGrant{Role: q.Role, Scope: scope, Add: add, Remove: remove})
}

// relatedMax bounds the grants that an error lists.
const relatedMax = 3

// checkRevoke returns an error if a role has none of the rights of g in exactly this scope. The error lists the grants that were probably
// meant.
//
// The catalog does not check this: its commands have the same results in every build. Another administrator may therefore revoke the same
// rights between the check and the command.
func (a *Access) checkRevoke(ctx context.Context, role string, g access.Grant) error {
	st, err := a.node.Linearize(ctx)
	if err != nil {
		return err
	}
	r, ok := st.Role(role)
	if !ok {
		return nil // the command is refused with the reason
	}
	for _, o := range r.Grants {
		if o.Scope == g.Scope && o.Rights&g.Rights != 0 {
			return nil
		}
	}
	// A role may have thousands of grants. A few of those that overlap show the mistake, which is usually a forgotten or mistyped
	// prefix.
	var has []string
	related := access.Related(r.Grants, g)
	for _, o := range related[:min(len(related), relatedMax)] {
		has = append(has, o.Rights.String()+" for "+o.Scope.String())
	}
	more := "`rhumb grant ls " + role + "` lists its grants"
	if len(has) > 0 {
		more = "it has " + strings.Join(has, ", ") + "; " + more
	}
	return rhumb.Ef("server.Access.AlterGrant", rhumb.NotFound, "nothing was revoked: role %s has no grant of %s for %s; %s", role, g.Rights, g.Scope, more)
}
