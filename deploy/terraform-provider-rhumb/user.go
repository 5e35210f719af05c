package main

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/setdefault"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
)

// userResource is rhumb_user.
type userResource struct{ managed }

// userModel is the state of a user. The password is write-only: Terraform keeps it neither in the
// plan nor in the state.
//
// States of Terraform are kept in files and buckets that many people read, so a password or
// verifier in them would be the weakest place of the cluster.
type userModel struct {
	Name            types.String `tfsdk:"name"`
	Roles           types.Set    `tfsdk:"roles"`
	Disabled        types.Bool   `tfsdk:"disabled"`
	Password        types.String `tfsdk:"password_wo"`
	PasswordVersion types.Int64  `tfsdk:"password_wo_version"`
	HasPassword     types.Bool   `tfsdk:"has_password"`
}

func newUser() resource.Resource { return &userResource{} }

// Metadata implements resource.Resource.
func (*userResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "rhumb_user"
}

// Schema implements resource.Resource. Write-only attributes are never computed and never in the
// state, so a version says when they change.
func (*userResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A user. Without a password it logs in with a certificate of its name.",
		Attributes: map[string]schema.Attribute{
			"name": named("user"),
			"roles": schema.SetAttribute{
				Optional: true, Computed: true, ElementType: types.StringType, MarkdownDescription: "Roles of the user. Default: none, so the user may do nothing.",
				Default: setdefault.StaticValue(types.SetValueMust(types.StringType, nil)),
			},
			"disabled": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false), MarkdownDescription: "The user has no rights, and its sessions end.",
			},
			"password_wo": schema.StringAttribute{
				Optional: true, WriteOnly: true, Sensitive: true,
				MarkdownDescription: "Password, which is in neither plan nor state (Terraform 1.11). It is set when the user is created and when `password_wo_version` changes.",
			},
			"password_wo_version": schema.Int64Attribute{
				Optional: true, MarkdownDescription: "Any number; another number sets the password again, or removes it if `password_wo` is gone.",
			},
			"has_password": schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the user can log in with a password."},
		},
	}
}

// ValidateConfig implements resource.ResourceWithValidateConfig. It rejects a password without a
// version: the first change of it would be lost silently.
func (*userResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var m userModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	if !m.Password.IsNull() && m.PasswordVersion.IsNull() {
		resp.Diagnostics.AddAttributeError(path.Root("password_wo_version"), "The version of the password is missing",
			"Terraform does not see whether a write-only password has changed. Set password_wo_version = 1, and another number with each new password.")
	}
	// Its length only: the text must not be in a message.
	if n := len(m.Password.ValueString()); !m.Password.IsNull() && !m.Password.IsUnknown() && (n < login.PasswordSizeMin || n > login.PasswordSizeMax) {
		resp.Diagnostics.AddAttributeError(path.Root("password_wo"), "Invalid password", "The password is too short or too long.")
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *userResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.configure(req.ProviderData, &resp.Diagnostics)
}

// verifier returns the verifier of the configured password, or zero without one. The password
// itself never leaves this process.
func verifier(m *userModel) (access.Verifier, error) {
	if m.Password.IsNull() {
		return access.Verifier{}, nil
	}
	return login.NewVerifier(m.Name.ValueString(), m.Password.ValueString())
}

// roleNames returns the roles of a set in alphabetical order, so that requests and messages do not
// depend on chance.
func roleNames(ctx context.Context, set types.Set, diags *diag.Diagnostics) []string {
	names := []string{}
	diags.Append(set.ElementsAs(ctx, &names, false)...)
	slices.Sort(names)
	return names
}

// Create implements resource.Resource. The user and its password are made in one request. A user
// that starts disabled is disabled in a second one, for which the state is written twice: if it
// fails, Terraform knows the user.
func (r *userResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m, config userModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...) // only the configuration has the password
	roles := roleNames(ctx, m.Roles, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "create the user", func(c *client.Client) error {
		v, err := verifier(&config)
		if err == nil {
			err = c.CreateUser(ctx, m.Name.ValueString(), v, roles...)
		}
		if err != nil {
			return err
		}
		m.HasPassword = types.BoolValue(!v.IsZero())
		// The user exists from here on, whatever follows.
		wanted := m.Disabled
		m.Disabled = types.BoolValue(false)
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		if !wanted.ValueBool() {
			return nil
		}
		if err := c.EnableUser(ctx, m.Name.ValueString(), false); err != nil {
			return err
		}
		m.Disabled = wanted
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		return nil
	})
}

// Read implements resource.Resource. The cluster does not disclose verifiers, so a password that
// was changed by hand is not noticed; that it was removed is.
func (r *userResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m userModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "read the users", func(c *client.Client) error {
		user, err := findUser(ctx, c, m.Name.ValueString())
		if err != nil {
			return err
		}
		if user == nil {
			resp.State.RemoveResource(ctx)
			return nil
		}
		resp.Diagnostics.Append(m.set(ctx, user)...)
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		return nil
	})
}

// findUser returns a user, or nil if there is none of that name.
func findUser(ctx context.Context, c *client.Client, name string) (*client.UserInfo, error) {
	users, err := c.Users(ctx)
	if err != nil {
		return nil, err
	}
	for i := range users {
		if users[i].Name == name {
			return &users[i], nil
		}
	}
	return nil, nil
}

// set adopts the user as the cluster has it.
func (m *userModel) set(ctx context.Context, u *client.UserInfo) (diags diag.Diagnostics) {
	roles := u.Roles
	if roles == nil {
		roles = []string{}
	}
	m.Roles, diags = types.SetValueFrom(ctx, types.StringType, roles)
	m.Disabled, m.HasPassword = types.BoolValue(u.Disabled), types.BoolValue(u.HasPassword)
	return diags
}

// Update implements resource.Resource. Each part that changed is a request of its own. If one
// fails, the next refresh shows which were made.
func (r *userResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m, before, config userModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &before)...)
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	wanted, had := roleNames(ctx, m.Roles, &resp.Diagnostics), roleNames(ctx, before.Roles, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "change the user", func(c *client.Client) error {
		name := m.Name.ValueString()
		// A user is disabled first and enabled last, so that it never has more rights than before
		// and after.
		if m.Disabled.ValueBool() && !before.Disabled.ValueBool() {
			if err := c.EnableUser(ctx, name, false); err != nil {
				return err
			}
		}
		if err := changeRoles(ctx, c, name, had, wanted); err != nil {
			return err
		}
		if !m.PasswordVersion.Equal(before.PasswordVersion) {
			v, err := verifier(&config)
			if err == nil {
				err = c.SetPassword(ctx, name, v)
			}
			if err != nil {
				return err
			}
		}
		if !m.Disabled.ValueBool() && before.Disabled.ValueBool() {
			if err := c.EnableUser(ctx, name, true); err != nil {
				return err
			}
		}
		user, err := findUser(ctx, c, name)
		if err == nil && user == nil {
			err = rhumb.Ef("rhumb.user", rhumb.NotFound, "user %s was removed at the same time", name)
		}
		if err != nil {
			return err
		}
		resp.Diagnostics.Append(m.set(ctx, user)...)
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		return nil
	})
}

// changeRoles removes roles before it adds others.
func changeRoles(ctx context.Context, c *client.Client, user string, had, wanted []string) error {
	// In this order the user never has more than UserRolesMax roles on the way.
	for _, role := range had {
		if !slices.Contains(wanted, role) {
			if err := ignoreGone(c.UnassignRole(ctx, user, role)); err != nil {
				return err
			}
		}
	}
	for _, role := range wanted {
		if !slices.Contains(had, role) {
			if err := c.AssignRole(ctx, user, role); err != nil {
				return err
			}
		}
	}
	return nil
}

// Delete implements resource.Resource. The sessions of the user end with it.
func (r *userResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m userModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "remove the user", func(c *client.Client) error {
		return ignoreGone(c.DropUser(ctx, m.Name.ValueString()))
	})
}

// ImportState implements resource.ResourceWithImportState.
func (*userResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("name"), req, resp)
}
