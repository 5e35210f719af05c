package main

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// nodeModel is a node.
//
// Fields are texts as the command line prints them, so that a configuration can be compared with
// `rhumb node ls`.
type nodeModel struct {
	ID        types.String `tfsdk:"id"`
	Name      types.String `tfsdk:"name"`
	Region    types.String `tfsdk:"region"`
	Zone      types.String `tfsdk:"zone"`
	State     types.String `tfsdk:"state"`
	Ready     types.Bool   `tfsdk:"ready"`
	Voter     types.Bool   `tfsdk:"voter"`
	Addr      types.String `tfsdk:"addr"`
	AdminAddr types.String `tfsdk:"admin_addr"`
	Version   types.String `tfsdk:"version"`
}

// nodeAttributes describe a node.
func nodeAttributes() map[string]schema.Attribute {
	text := func(about string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: about}
	}
	return map[string]schema.Attribute{
		"id":         text("ID, such as `n3`."),
		"name":       text("Name in the certificate; empty without TLS."),
		"region":     text("Region."),
		"zone":       text("Failure domain within the region."),
		"state":      text("`live`, `fenced`, `draining` or `decommissioning`."),
		"ready":      schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the node answers and serves."},
		"voter":      schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether the node votes on metadata."},
		"addr":       text("Address for clients and nodes."),
		"admin_addr": text("Address for operators."),
		"version":    text("Version of the node's program."),
	}
}

// describeNodes returns all nodes with their answers about themselves. A node that does not answer
// is listed from the metadata and is not ready: a data source that failed then could not be used to
// find out which node is down.
func describeNodes(ctx context.Context, c *client.Client) (nodes []nodeModel) {
	regions := map[rhumb.RegionID]string{}
	for _, r := range c.Regions() {
		regions[r.ID] = r.Name
	}
	for _, s := range c.Status(ctx) {
		n := s.Node
		nodes = append(nodes, nodeModel{
			ID: types.StringValue(n.ID.String()), Name: types.StringValue(n.Name), Region: types.StringValue(regions[n.Region]),
			Zone: types.StringValue(n.Zone), State: types.StringValue(n.State.String()), Ready: types.BoolValue(s.Ready),
			Voter: types.BoolValue(n.Voter), Addr: types.StringValue(n.Addr), AdminAddr: types.StringValue(n.AdminAddr), Version: types.StringValue(n.Build().Program),
		})
	}
	return nodes
}

// nodesSource is the data source rhumb_nodes.
type nodesSource struct{ managed }

// nodesModel is the state of rhumb_nodes.
type nodesModel struct {
	Region types.String `tfsdk:"region"`
	Nodes  []nodeModel  `tfsdk:"nodes"`
}

func newNodes() datasource.DataSource { return &nodesSource{} }

// Metadata implements datasource.DataSource.
func (*nodesSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "rhumb_nodes"
}

// Schema implements datasource.DataSource.
func (*nodesSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "The nodes of the cluster, or of one region. Nodes are made by starting them, see deploy/terraform.",
		Attributes: map[string]schema.Attribute{
			"region": schema.StringAttribute{Optional: true, MarkdownDescription: "Only nodes of this region."},
			"nodes":  schema.ListNestedAttribute{Computed: true, NestedObject: schema.NestedAttributeObject{Attributes: nodeAttributes()}},
		},
	}
}

// Configure implements datasource.DataSourceWithConfigure.
func (d *nodesSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.configure(req.ProviderData, &resp.Diagnostics)
}

// Read implements datasource.DataSource. A region without nodes, or one that does not exist, has an
// empty list.
func (d *nodesSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m nodesModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	d.with(ctx, &resp.Diagnostics, "read the nodes", func(c *client.Client) error {
		m.Nodes = []nodeModel{}
		for _, n := range describeNodes(ctx, c) {
			if m.Region.IsNull() || m.Region.Equal(n.Region) {
				m.Nodes = append(m.Nodes, n)
			}
		}
		resp.Diagnostics.Append(resp.State.Set(ctx, &m)...)
		return nil
	})
}

// nodeSource is the data source rhumb_node.
type nodeSource struct{ managed }

func newNode() datasource.DataSource { return &nodeSource{} }

// Metadata implements datasource.DataSource.
func (*nodeSource) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "rhumb_node"
}

// Schema implements datasource.DataSource. It is that of a node in rhumb_nodes, with the two
// attributes by which a node can be named.
func (*nodeSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	attributes := maps.Clone(nodeAttributes())
	attributes["id"] = schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "ID of the node, such as `n3`. Set `id` or `name`."}
	attributes["name"] = schema.StringAttribute{Optional: true, Computed: true, MarkdownDescription: "Name in the certificate of the node."}
	resp.Schema = schema.Schema{MarkdownDescription: "A node.", Attributes: attributes}
}

// Configure implements datasource.DataSourceWithConfigure.
func (d *nodeSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.configure(req.ProviderData, &resp.Diagnostics)
}

// Read implements datasource.DataSource. A node that does not exist is an error, unlike an empty
// list: the configuration names this very node.
func (d *nodeSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m nodeModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	if m.ID.IsNull() == m.Name.IsNull() {
		resp.Diagnostics.AddError("Which node?", "Set either id or name.")
		return
	}
	d.with(ctx, &resp.Diagnostics, "read the node", func(c *client.Client) error {
		for _, n := range describeNodes(ctx, c) {
			if n.ID.Equal(m.ID) || n.Name.Equal(m.Name) {
				resp.Diagnostics.Append(resp.State.Set(ctx, &n)...)
				return nil
			}
		}
		return rhumb.Ef("rhumb.node", rhumb.NotFound, "there is no node %s%s; `rhumb node ls` lists the nodes", m.ID.ValueString(), m.Name.ValueString())
	})
}
