package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/float64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/geo/rtt"
)

// regionResource is rhumb_region.
type regionResource struct{ managed }

// regionModel is the state of a region.
type regionModel struct {
	Name           types.String  `tfsdk:"name"`
	Latitude       types.Float64 `tfsdk:"latitude"`
	Longitude      types.Float64 `tfsdk:"longitude"`
	ID             types.Int64   `tfsdk:"id"`
	DeletionPolicy types.String  `tfsdk:"deletion_policy"`
}

func newRegion() resource.Resource { return &regionResource{} }

// Metadata implements resource.Resource.
func (*regionResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "rhumb_region"
}

// Schema implements resource.Resource. The location is computed for well-known regions, so that a
// configuration names it only where it has to.
func (*regionResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	place := func(about string) schema.Float64Attribute {
		return schema.Float64Attribute{
			Optional: true, Computed: true, MarkdownDescription: about + ". Well-known regions have one. " + fixedText,
			PlanModifiers: []planmodifier.Float64{fixed{"region"}, float64planmodifier.UseStateForUnknown()},
		}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A region. Regions exist before their nodes, so that tables can be placed and roles granted first; the first node of a region that does not exist makes the region too. A region that exists at the same location is adopted.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required: true, MarkdownDescription: "Name of the region: letters, digits and `-`. " + fixedText,
				PlanModifiers: []planmodifier.String{fixed{"region"}},
			},
			"latitude":  place("Latitude in degrees"),
			"longitude": place("Longitude in degrees"),
			"id": schema.Int64Attribute{
				Computed: true, MarkdownDescription: "Number of the region, the first part of the ID of a range.",
				PlanModifiers: []planmodifier.Int64{int64planmodifier.UseStateForUnknown()},
			},
			"deletion_policy": deletionPolicy("region"),
		},
	}
}

// deletionPolicy is the attribute of objects that cannot be removed.
func deletionPolicy(what string) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, Computed: true, Default: stringdefault.StaticString(refuse), Validators: oneOf(refuse, forget),
		MarkdownDescription: fmt.Sprintf(deletionText, what),
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *regionResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.configure(req.ProviderData, &resp.Diagnostics)
}

// ModifyPlan implements resource.ResourceWithModifyPlan. A region cannot be removed while its
// number may be part of a key.
func (*regionResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	checkDestroy(ctx, req, resp, "region")
}

// Create implements resource.Resource. A region that exists at the same place is taken over: its
// first node may have been faster than Terraform.
func (r *regionResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m regionModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	at, err := m.location()
	if err != nil {
		addError(&resp.Diagnostics, "Invalid region", err)
		return
	}
	r.with(ctx, &resp.Diagnostics, "create the region", func(c *client.Client) error {
		made, err := c.AddRegion(ctx, m.Name.ValueString(), at)
		if err == nil {
			m.set(made)
			resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		}
		return err
	})
}

// location returns where the region is: as configured, or as known.
func (m *regionModel) location() (rhumb.Point, error) {
	const op rhumb.Op = "rhumb.region"
	// Unknown during a creation means left out: both attributes are computed then.
	lat, lon := !m.Latitude.IsNull() && !m.Latitude.IsUnknown(), !m.Longitude.IsNull() && !m.Longitude.IsUnknown()
	switch {
	case lat != lon:
		return rhumb.Point{}, rhumb.E(op, rhumb.InvalidArgument, "latitude and longitude belong together")
	case lat:
		return rhumb.Point{Lat: m.Latitude.ValueFloat64(), Lon: m.Longitude.ValueFloat64()}, nil
	}
	known, ok := rtt.Lookup(m.Name.ValueString())
	if !ok {
		return rhumb.Point{}, rhumb.Ef(op, rhumb.InvalidArgument, "%q is not a well-known region; set latitude and longitude", m.Name.ValueString())
	}
	return known.Location, nil
}

// set adopts the region as the cluster has it.
func (m *regionModel) set(r rhumb.Region) {
	m.Name, m.ID = types.StringValue(r.Name), types.Int64Value(int64(r.ID))
	m.Latitude, m.Longitude = types.Float64Value(r.Location.Lat), types.Float64Value(r.Location.Lon)
}

// Read implements resource.Resource. The metadata that the client watches has all regions, so
// nothing is asked for.
func (r *regionResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m regionModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "read the regions", func(c *client.Client) error {
		for _, region := range c.Regions() {
			if region.Name == m.Name.ValueString() {
				m.set(region)
				// An imported region has none yet.
				if m.DeletionPolicy.IsNull() {
					m.DeletionPolicy = types.StringValue(refuse)
				}
				resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
				return nil
			}
		}
		resp.State.RemoveResource(ctx)
		return nil
	})
}

// Update implements resource.Resource. Only deletion_policy can change, which is the provider's
// own.
func (*regionResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m regionModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}

// Delete implements resource.Resource. ModifyPlan has refused it unless the region is to be
// forgotten.
func (*regionResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}

// ImportState implements resource.ResourceWithImportState.
func (*regionResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("name"), req, resp)
}
