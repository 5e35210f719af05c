package main

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/client"
)

// grantResource is rhumb_grant: the rights of one role in one scope.
//
// One resource per scope and not one per role with a list: several configurations can then grant to
// one role, each owning its part, and a plan shows a changed right as one line.
type grantResource struct{ managed }

// grantModel is the state of a grant.
type grantModel struct {
	Role    types.String `tfsdk:"role"`
	Cluster types.Bool   `tfsdk:"cluster"`
	Table   types.String `tfsdk:"table"`
	Prefix  types.String `tfsdk:"prefix"`
	Rights  types.Set    `tfsdk:"rights"`
	ID      types.String `tfsdk:"id"`
}

func newGrant() resource.Resource { return &grantResource{} }

// Metadata implements resource.Resource.
func (*grantResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "rhumb_grant"
}

// Schema implements resource.Resource. Role and scope identify a grant, so a change of them makes
// another one; only the rights are updated in place.
func (*grantResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		MarkdownDescription: "The rights of a role in one scope: the cluster, all tables (`*`), a table, or the names of a table with a prefix. The resource owns the scope: rights that something else gives the role there are taken away again.",
		Attributes: map[string]schema.Attribute{
			"role": schema.StringAttribute{Required: true, MarkdownDescription: "Name of the role.", PlanModifiers: replace},
			"cluster": schema.BoolAttribute{
				Optional: true, MarkdownDescription: "The scope is the cluster. Its rights are `read` (state and metrics) and `admin` (everything).",
				PlanModifiers: []planmodifier.Bool{boolplanmodifier.RequiresReplace()},
			},
			"table":  schema.StringAttribute{Optional: true, MarkdownDescription: "Name of a table, which need not exist yet, or `*` for all tables.", PlanModifiers: replace},
			"prefix": schema.StringAttribute{Optional: true, MarkdownDescription: "Only names that begin with this text.", PlanModifiers: replace},
			"rights": schema.SetAttribute{Required: true, ElementType: types.StringType, MarkdownDescription: "Some of `read`, `write`, `delete`, `watch` and `admin`."},
			"id": schema.StringAttribute{
				Computed: true, MarkdownDescription: "`ROLE/cluster`, `ROLE/table/TABLE` or `ROLE/table/TABLE/PREFIX`, as `terraform import` takes it.",
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
		},
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *grantResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.configure(req.ProviderData, &resp.Diagnostics)
}

// ValidateConfig implements resource.ResourceWithValidateConfig. Scope and rights are checked
// together, by the rules of the database: the cluster has other rights than a table.
func (*grantResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var m grantModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	if m.Cluster.IsUnknown() || m.Table.IsUnknown() || m.Prefix.IsUnknown() || m.Rights.IsUnknown() {
		return
	}
	for _, right := range m.Rights.Elements() {
		if right.IsUnknown() {
			return
		}
	}
	g, diags := m.grant(ctx)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if g.Scope.Cluster == (g.Scope.Table != "") {
		resp.Diagnostics.AddError("Invalid scope", "Set either cluster = true or table.")
	} else if err := g.Validate(); err != nil {
		resp.Diagnostics.AddError("Invalid grant", rhumb.Message(err))
	}
}

// grant returns scope and rights.
func (m *grantModel) grant(ctx context.Context) (g access.Grant, diags diag.Diagnostics) {
	g.Scope = access.Scope{Cluster: m.Cluster.ValueBool(), Table: m.Table.ValueString(), Prefix: m.Prefix.ValueString()}
	var names []string
	if diags = m.Rights.ElementsAs(ctx, &names, false); diags.HasError() {
		return g, diags
	}
	if len(names) == 0 {
		diags.AddAttributeError(path.Root("rights"), "No rights", "A grant has at least one right; remove the resource to grant nothing.")
		return g, diags
	}
	var err error
	if g.Rights, err = access.ParseRights(strings.Join(names, ",")); err != nil {
		diags.AddAttributeError(path.Root("rights"), "Invalid right", rhumb.Message(err))
	}
	return g, diags
}

// idOf returns the ID of a grant.
func idOf(role string, s access.Scope) string {
	switch {
	case s.Cluster:
		return role + "/cluster"
	case s.Prefix == "":
		return role + "/table/" + s.Table
	}
	return role + "/table/" + s.Table + "/" + s.Prefix
}

// parseID parses what idOf returned. Neither roles nor tables contain a slash, so what follows the
// third is the prefix, whatever it contains.
func parseID(id string) (role string, s access.Scope, err error) {
	parts := strings.SplitN(id, "/", 4)
	switch {
	case len(parts) == 2 && parts[1] == "cluster":
		return parts[0], access.Scope{Cluster: true}, nil
	case len(parts) >= 3 && parts[1] == "table" && parts[2] != "":
		s.Table = parts[2]
		if len(parts) == 4 {
			s.Prefix = parts[3]
		}
		return parts[0], s, nil
	}
	return "", s, rhumb.Ef("rhumb.grant", rhumb.InvalidArgument, "%q is none of ROLE/cluster, ROLE/table/TABLE and ROLE/table/TABLE/PREFIX", id)
}

// put makes the rights in the scope exactly those of the plan, and calls done once the cluster has
// them. Rights that somebody added by hand are taken away.
func (r *grantResource) put(ctx context.Context, m *grantModel, diags *diag.Diagnostics, done func()) {
	g, faults := m.grant(ctx)
	if diags.Append(faults...); diags.HasError() {
		return
	}
	m.ID = types.StringValue(idOf(m.Role.ValueString(), g.Scope))
	r.with(ctx, diags, "grant the rights", func(c *client.Client) error {
		err := c.SetGrant(ctx, m.Role.ValueString(), g.Scope, g.Rights)
		if err == nil {
			done()
		}
		return err
	})
}

// Create implements resource.Resource. Rights that the role has in the scope already are replaced,
// as by an update.
func (r *grantResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m grantModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.put(ctx, &m, &resp.Diagnostics, func() { resp.Diagnostics.Append(resp.State.Set(ctx, &m)...) })
}

// Update implements resource.Resource.
func (r *grantResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m grantModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.put(ctx, &m, &resp.Diagnostics, func() { resp.Diagnostics.Append(resp.State.Set(ctx, &m)...) })
}

// Read implements resource.Resource. A grant without rights does not exist, so it leaves the state.
// Rights that were added or taken by hand show as a difference.
func (r *grantResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m grantModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	scope := access.Scope{Cluster: m.Cluster.ValueBool(), Table: m.Table.ValueString(), Prefix: m.Prefix.ValueString()}
	r.with(ctx, &resp.Diagnostics, "read the grants", func(c *client.Client) error {
		role, err := findRole(ctx, c, m.Role.ValueString())
		if err != nil {
			return err
		}
		var rights access.Rights
		if role != nil {
			for _, g := range role.Grants {
				if g.Scope == scope {
					rights |= g.Rights
				}
			}
		}
		if rights == 0 {
			resp.State.RemoveResource(ctx)
			return nil
		}
		set, diags := types.SetValueFrom(ctx, types.StringType, rights.Names())
		resp.Diagnostics.Append(diags...)
		m.Rights, m.ID = set, types.StringValue(idOf(m.Role.ValueString(), scope))
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		return nil
	})
}

// Delete implements resource.Resource. All rights of the scope are taken away, not only those in
// the state: the resource owns its scope.
func (r *grantResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m grantModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	scope := access.Scope{Cluster: m.Cluster.ValueBool(), Table: m.Table.ValueString(), Prefix: m.Prefix.ValueString()}
	r.with(ctx, &resp.Diagnostics, "take the rights away", func(c *client.Client) error {
		return ignoreGone(c.Revoke(ctx, m.Role.ValueString(), scope, scope.Rights()))
	})
}

// ImportState implements resource.ResourceWithImportState. The ID holds role and scope; the rights
// are read from the cluster.
func (*grantResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	role, scope, err := parseID(req.ID)
	if err != nil {
		addError(&resp.Diagnostics, "Cannot import the grant", err)
		return
	}
	set := func(name string, value any) {
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), value)...)
	}
	set("role", role)
	set("id", req.ID)
	if scope.Cluster {
		set("cluster", true)
	}
	if scope.Table != "" {
		set("table", scope.Table)
	}
	if scope.Prefix != "" {
		set("prefix", scope.Prefix)
	}
}
