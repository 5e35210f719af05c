package main

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb/cli/settings"
)

// rhumbProvider is the provider.
type rhumbProvider struct{}

// providerModel is the configuration of the provider: the settings of the command line, under the
// same names.
type providerModel struct {
	Context      types.String `tfsdk:"context"`
	Addr         types.List   `tfsdk:"addr"`
	CA           types.String `tfsdk:"ca"`
	Cert         types.String `tfsdk:"cert"`
	Key          types.String `tfsdk:"key"`
	User         types.String `tfsdk:"user"`
	PasswordFile types.String `tfsdk:"password_file"`
	Cluster      types.String `tfsdk:"cluster"`
	Insecure     types.Bool   `tfsdk:"insecure"`
	Timeout      types.String `tfsdk:"timeout"`
}

// Metadata implements provider.Provider. The type name begins the names of all resources.
func (*rhumbProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName, resp.Version = "rhumb", version
}

// Schema implements provider.Provider. All attributes are optional, because everything can have the
// sources of the command line; an empty block in a shared configuration then works for everybody
// who has a context.
func (*rhumbProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	text := func(about string) schema.StringAttribute {
		return schema.StringAttribute{Optional: true, MarkdownDescription: about}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Manages regions, tables, users, roles and grants of a Rhumb cluster. Everything that is left out comes from `RHUMB_*` variables, from a context of `rhumb context`, or from the configuration file, in this order, as for the command line.",
		Attributes: map[string]schema.Attribute{
			"context":       text("Name of a context that `rhumb context add` made. Default: `RHUMB_CONTEXT`, else the current context."),
			"addr":          schema.ListAttribute{Optional: true, ElementType: types.StringType, MarkdownDescription: "`host:port` of some nodes; one reachable node is enough."},
			"ca":            text("File with the certificates of the cluster's authorities."),
			"cert":          text("File with the certificate of a user or operator."),
			"key":           text("File with the key of the certificate."),
			"user":          text("User to log in as; needs `password_file`."),
			"password_file": text("File that holds the password of the user. Only its owner may read it."),
			"cluster":       text("ID of the cluster; nodes of another are refused."),
			"insecure":      schema.BoolAttribute{Optional: true, MarkdownDescription: "Connect without TLS, to loopback addresses only."},
			"timeout":       text("How long to wait for the cluster, such as `30s`. Default `10s`."),
		},
	}
}

// Configure implements provider.Provider. It connects to nothing: a plan may be made before the
// cluster exists.
func (*rhumbProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var m providerModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	k := &cluster{}
	set := pflag.NewFlagSet("provider", pflag.ContinueOnError)
	// The flags of the command line are the parser. A setting that they learn later has one place
	// to be added here.
	k.target.Register(set)
	given := map[string]attr.Value{
		"ca": m.CA, "cert": m.Cert, "key": m.Key, "user": m.User, "password-file": m.PasswordFile, "cluster": m.Cluster, "timeout": m.Timeout, "addr": m.Addr,
		"insecure": m.Insecure,
	}
	for name, value := range given {
		key := strings.ReplaceAll(name, "-", "_")
		// An unknown value is the output of a resource that does not exist yet. Waiting for it is
		// impossible: Terraform configures the provider before it makes anything.
		if value.IsUnknown() {
			resp.Diagnostics.AddAttributeError(path.Root(key), "Value is not known yet",
				"The provider needs "+key+" before anything is made. Make the hosts in a configuration of their own, or apply them first with -target.")
			return
		}
		if value.IsNull() {
			continue
		}
		text, diags := flagText(ctx, value)
		resp.Diagnostics.Append(diags...)
		if err := set.Set(name, text); err != nil {
			resp.Diagnostics.AddAttributeError(path.Root(key), "Invalid value", err.Error())
		}
	}
	// The sources of the command line fill in the rest.
	from := settings.Settings{Context: m.Context.ValueString()}
	err := from.Load()
	if err == nil {
		err = from.Apply(set)
	}
	if err == nil {
		err = k.target.Validate()
	}
	if err != nil {
		addError(&resp.Diagnostics, "The provider is not configured", err)
	}
	if k.target.User != "" && k.target.PasswordFile == "" {
		resp.Diagnostics.AddAttributeError(path.Root("password_file"), "The password is missing",
			"Terraform cannot ask for a password; name a file with password_file or RHUMB_PASSWORD_FILE.")
	}
	resp.ResourceData, resp.DataSourceData = k, k
}

// Resources implements provider.Provider. Placement has no resource of its own: a cluster places
// the ranges of tables, so it belongs to rhumb_table.
func (*rhumbProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{newRegion, newTable, newUser, newRole, newGrant}
}

// DataSources implements provider.Provider. Nodes are only read: a node makes itself a member when
// it starts.
func (*rhumbProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{newNode, newNodes}
}
