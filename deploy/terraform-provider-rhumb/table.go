package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/setplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// tableResource is rhumb_table.
type tableResource struct{ managed }

// tableModel is the state of a table.
type tableModel struct {
	Name           types.String `tfsdk:"name"`
	Colocate       types.String `tfsdk:"colocate"`
	LocationField  types.String `tfsdk:"location_field"`
	History        types.String `tfsdk:"history"`
	Snapshot       types.Set    `tfsdk:"snapshot"`
	Mode           types.String `tfsdk:"mode"`
	Survival       types.String `tfsdk:"survival"`
	Regions        types.Set    `tfsdk:"regions"`
	Durability     types.String `tfsdk:"durability"`
	Replicas       types.Int64  `tfsdk:"replicas"`
	MinInSync      types.Int64  `tfsdk:"min_in_sync"`
	HashSlots      types.Int64  `tfsdk:"hash_slots"`
	ShardSize      types.Int64  `tfsdk:"shard_size"`
	ID             types.Int64  `tfsdk:"id"`
	Class          types.String `tfsdk:"class"`
	DeletionPolicy types.String `tfsdk:"deletion_policy"`
}

func newTable() resource.Resource { return &tableResource{} }

// Metadata implements resource.Resource.
func (*tableResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "rhumb_table"
}

// Schema implements resource.Resource. Everything but the name is computed if it is left out, from
// the defaults of the cluster: the state then shows the actual settings of a table, also after the
// defaults of a newer version have changed.
func (*tableResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	text := func(about string) schema.StringAttribute {
		return schema.StringAttribute{
			Optional: true, Computed: true, MarkdownDescription: about + " " + fixedText,
			PlanModifiers: []planmodifier.String{fixed{"table"}, stringplanmodifier.UseStateForUnknown()},
		}
	}
	number := func(about string) schema.Int64Attribute {
		return schema.Int64Attribute{
			Optional: true, Computed: true, MarkdownDescription: about + " " + fixedText,
			PlanModifiers: []planmodifier.Int64{fixed{"table"}, int64planmodifier.UseStateForUnknown()},
		}
	}
	colocate, history, mode, survival := text("The byte up to which names are hashed: names with the same beginning share a range. Default: whole names."),
		text("How long old versions of records are kept, such as `24h`. Default: not at all."),
		text("How replicas are kept consistent: `strong`."), text("The failure that ranges survive: `zone` (the default) or `region`.")
	durability := text("When a write is acknowledged: `sync` (the default), or `deferred=50ms` before it is synced, so that a power loss of all copies may take the last 50 ms.")
	durability.Validators = checked("a durability", func(s string) error { _, err := rhumb.ParseDurability(s); return err })
	colocate.Validators, history.Validators = oneByte, duration
	mode.Validators, survival.Validators = oneOf(rhumb.Strong.String()), checked("a survival goal", func(s string) error { _, err := rhumb.ParseSurvival(s); return err })
	name := schema.StringAttribute{
		Required: true, MarkdownDescription: "Name of the table. " + fixedText, PlanModifiers: []planmodifier.String{fixed{"table"}},
		Validators: checked("the name of a table", rhumb.ValidateTableName),
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A table. Its settings are fixed when it is created; a plan that would change them fails.",
		Attributes: map[string]schema.Attribute{
			"name":           name,
			"colocate":       colocate,
			"location_field": text("The field that holds the location of a record. Default `" + rhumb.LocationFieldDefault + "`."),
			"history":        history,
			"snapshot": schema.SetAttribute{
				Optional: true, Computed: true, ElementType: types.StringType,
				MarkdownDescription: "Publishes the table in shared memory: `plain`, or some of `spatial`, `ordered` and `summed`. Empty or left out: not published. " + fixedText,
				PlanModifiers:       []planmodifier.Set{fixed{"table"}, setplanmodifier.UseStateForUnknown()},
			},
			"mode":       mode,
			"survival":   survival,
			"durability": durability,
			"regions": schema.SetAttribute{
				Optional: true, Computed: true, ElementType: types.StringType,
				MarkdownDescription: "The regions that may hold records and copies of the table. Empty or left out: all. " + fixedText,
				PlanModifiers:       []planmodifier.Set{fixed{"table"}, setplanmodifier.UseStateForUnknown()},
			},
			"replicas":    number("Copies of each range. Default 3."),
			"min_in_sync": number("Copies that a write must reach before it is acknowledged. Default 2, or 1 with one replica."),
			"hash_slots":  number("Ranges for named keys in each region."),
			"shard_size":  number("Bytes at which a range of server-named keys counts as full."),
			"id": schema.Int64Attribute{
				Computed: true, MarkdownDescription: "Number of the table.", PlanModifiers: []planmodifier.Int64{int64planmodifier.UseStateForUnknown()},
			},
			"class": schema.StringAttribute{
				Computed: true, MarkdownDescription: "Placement class; tables with equal settings share one.",
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
			"deletion_policy": schema.StringAttribute{
				Optional: true, Computed: true, Default: stringdefault.StaticString(refuse), Validators: oneOf(refuse, forget, drop),
				MarkdownDescription: "What a destroy does: `refuse` (the default) fails, `forget` leaves the table in the cluster, and `delete` drops it with all its records and the grants on it, for good. Apply the change of the policy before the destroy.",
			},
		},
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *tableResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.configure(req.ProviderData, &resp.Diagnostics)
}

// drop is the deletion policy that removes the object from the cluster.
const drop = "delete"

// ModifyPlan implements resource.ResourceWithModifyPlan. A table holds records that no
// configuration can bring back, so a destroy needs a policy that says what becomes of them.
func (*tableResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if !req.Plan.Raw.IsNull() {
		return
	}
	var name, policy types.String
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("name"), &name)...)
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("deletion_policy"), &policy)...)
	if p := policy.ValueString(); p != forget && p != drop {
		resp.Diagnostics.AddError("The table is protected",
			fmt.Sprintf("Destroying table %s would lose its records. Set deletion_policy = %q to drop it with them, or %q to leave it in the cluster, and apply that first. `terraform state rm` forgets it too.", name.ValueString(), drop, forget))
	}
}

// options returns the options of the table to create. Zero values take the defaults of the cluster.
func (m *tableModel) options(ctx context.Context) (o client.TableOptions, _ diag.Diagnostics) {
	o.LocationField = m.LocationField.ValueString()
	if s := m.Colocate.ValueString(); s != "" {
		o.Colocate = s[0]
	}
	if s := m.History.ValueString(); s != "" {
		o.History, _ = time.ParseDuration(s) // validated
	}
	features, diags := texts(ctx, m.Snapshot)
	regions, more := texts(ctx, m.Regions)
	diags.Append(more...)
	var err error
	if o.Snapshot, err = rhumb.ParseSnapshotFeatures(strings.Join(features, ",")); err != nil {
		diags.AddAttributeError(path.Root("snapshot"), "Invalid value", rhumb.Message(err))
	} else if slices.Contains(features, "plain") && len(features) > 1 {
		diags.AddAttributeError(path.Root("snapshot"), "Invalid value", "plain means that the image has none of the other features; leave it out")
	}
	o.Settings = rhumb.ClassSettings{
		Replicas: int(m.Replicas.ValueInt64()), MinInSync: int(m.MinInSync.ValueInt64()), HashSlots: int(m.HashSlots.ValueInt64()), ShardSize: m.ShardSize.ValueInt64(),
	}
	if o.Settings.Regions, err = rhumb.ParseRegionSet(strings.Join(regions, ",")); err != nil {
		diags.AddAttributeError(path.Root("regions"), "Invalid value", rhumb.Message(err))
	}
	// Both are validated.
	o.Settings.Survival, _ = rhumb.ParseSurvival(m.Survival.ValueString())
	o.Settings.Durability, _ = rhumb.ParseDurability(m.Durability.ValueString())
	return o, diags
}

// texts returns the elements of a set, or nil for one that is left out.
func texts(ctx context.Context, set types.Set) (out []string, diags diag.Diagnostics) {
	if set.IsNull() || set.IsUnknown() {
		return nil, nil
	}
	diags = set.ElementsAs(ctx, &out, false)
	return out, diags
}

// set adopts the table as the cluster has it.
func (m *tableModel) set(ctx context.Context, t client.TableStatus) diag.Diagnostics {
	m.Name, m.ID, m.Class = types.StringValue(t.Name), types.Int64Value(int64(t.ID)), types.StringValue(t.Class.String())
	m.Colocate = types.StringValue("")
	if t.Colocate != 0 {
		m.Colocate = types.StringValue(string([]byte{t.Colocate}))
	}
	m.LocationField = types.StringValue(t.LocationField)
	// The text of the configuration stays if it means the same.
	if d, err := time.ParseDuration(m.History.ValueString()); err != nil || d != t.History {
		m.History = types.StringValue(shortDuration(t.History))
	}
	m.Mode, m.Survival = types.StringValue(t.Settings.Mode.String()), types.StringValue(t.Settings.Survival.String())
	m.Replicas, m.MinInSync = types.Int64Value(int64(t.Settings.Replicas)), types.Int64Value(int64(t.Settings.MinInSync))
	m.HashSlots, m.ShardSize = types.Int64Value(int64(t.Settings.HashSlots)), types.Int64Value(t.Settings.ShardSize)
	// The text of the configuration stays if it means the same.
	if d, err := rhumb.ParseDurability(m.Durability.ValueString()); err != nil || d != t.Settings.Durability || m.Durability.ValueString() == "" {
		m.Durability = types.StringValue(t.Settings.Durability.String())
	}
	features := []string{}
	if text := t.Snapshot.String(); text != "" {
		features = strings.Split(text, ",")
	}
	var diags diag.Diagnostics
	m.Snapshot, diags = types.SetValueFrom(ctx, types.StringType, features)
	var more diag.Diagnostics
	m.Regions, more = types.SetValueFrom(ctx, types.StringType, slices.Concat([]string{}, t.Settings.Regions.Names()))
	diags.Append(more...)
	return diags
}

// shortDuration writes a duration as people do: 24h, not 24h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Create implements resource.Resource. A table that exists is not taken over, because its settings
// may be others; the error proposes an import.
func (r *tableResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m tableModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	o, diags := m.options(ctx)
	if resp.Diagnostics.Append(diags...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "create the table", func(c *client.Client) error {
		if _, err := c.CreateTable(ctx, m.Name.ValueString(), o); err != nil {
			return err
		}
		for _, t := range c.Tables() {
			if t.Name == m.Name.ValueString() {
				resp.Diagnostics.Append(m.set(ctx, t)...)
				resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
			}
		}
		return nil
	})
}

// Read implements resource.Resource. A table that is gone, for example from a cluster that was made
// again, leaves the state and is created again.
func (r *tableResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m tableModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	r.with(ctx, &resp.Diagnostics, "read the tables", func(c *client.Client) error {
		for _, t := range c.Tables() {
			if t.Name == m.Name.ValueString() {
				resp.Diagnostics.Append(m.set(ctx, t)...)
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

// Update implements resource.Resource. Only deletion_policy can change.
func (*tableResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m tableModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
}

// Delete implements resource.Resource. ModifyPlan has refused it unless the policy says what becomes of the
// records. The number keeps a later table of the name from being dropped in its place.
func (r *tableResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m tableModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() || m.DeletionPolicy.ValueString() != drop {
		return
	}
	r.with(ctx, &resp.Diagnostics, "drop the table", func(c *client.Client) error {
		err := c.DropTable(ctx, m.Name.ValueString(), rhumb.TableID(m.ID.ValueInt64()))
		// A cluster that was made again does not have it.
		if rhumb.KindOf(err) == rhumb.NotFound {
			return nil
		}
		return err
	})
}

// ImportState implements resource.ResourceWithImportState.
func (*tableResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("name"), req, resp)
}
