package main

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
)

// roleResource is rhumb_role.
type roleResource struct{ managed }

// roleModel is the state of a role.
type roleModel struct {
	Name types.String `tfsdk:"name"`
}

func newRole() resource.Resource { return &roleResource{} }

// named is the attribute of an object whose name is all that identifies it.
func named(what string) schema.StringAttribute {
	return schema.StringAttribute{
		Required: true, MarkdownDescription: "Name of the " + what + ". Another name makes another " + what + ".",
		PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()},
		Validators:    checked("the name of a "+what, func(s string) error { return access.ValidateName(what, s) }),
	}
}

// Metadata implements resource.Resource.
func (*roleResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "rhumb_role"
}

// Schema implements resource.Resource.
func (*roleResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A role: a name to which `rhumb_grant` gives rights and which `rhumb_user` gives to users. A role that a user still has is not removed.",
		Attributes:          map[string]schema.Attribute{"name": named("role")},
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *roleResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.configure(req.ProviderData, &resp.Diagnostics)
}

// Create implements resource.Resource. The role has no rights until a grant adds some.
func (r *roleResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m roleModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "create the role", func(c *client.Client) error {
		err := c.CreateRole(ctx, m.Name.ValueString())
		if err == nil {
			resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		}
		return err
	})
}

// Read implements resource.Resource. A role has no attribute that could differ, so only its
// existence is checked.
func (r *roleResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m roleModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "read the roles", func(c *client.Client) error {
		role, err := findRole(ctx, c, m.Name.ValueString())
		if err == nil && role == nil {
			resp.State.RemoveResource(ctx)
		}
		return err
	})
}

// findRole returns a role, or nil if there is none of that name. Only cluster admins see roles that
// they do not have themselves.
func findRole(ctx context.Context, c *client.Client, name string) (*client.RoleInfo, error) {
	roles, err := c.Roles(ctx)
	if err != nil {
		return nil, err
	}
	for i := range roles {
		if roles[i].Name == name {
			return &roles[i], nil
		}
	}
	return nil, nil
}

// Update implements resource.Resource. Every change makes another role.
func (*roleResource) Update(context.Context, resource.UpdateRequest, *resource.UpdateResponse) {}

// Delete implements resource.Resource. The cluster refuses to remove a role that a user still has.
// Terraform removes its own users first; somebody else's user must not lose rights by surprise.
func (r *roleResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m roleModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "remove the role", func(c *client.Client) error {
		return ignoreGone(c.DropRole(ctx, m.Name.ValueString(), false))
	})
}

// ignoreGone returns nil if an object that was to be removed does not exist.
func ignoreGone(err error) error {
	if rhumb.KindOf(err) == rhumb.NotFound {
		return nil
	}
	return err
}

// ImportState implements resource.ResourceWithImportState.
func (*roleResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("name"), req, resp)
}
