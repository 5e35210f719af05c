package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/exit"
	"github.com/rhumbdb/rhumb/cli/target"
	"github.com/rhumbdb/rhumb/client"
)

// cluster is the connection that all resources of one configuration share.
//
// One client serves all resources: Terraform works on ten at the same time, and ten connections
// with ten logins would delay the same user by its own limits.
type cluster struct {
	target target.Target

	mu     sync.Mutex // guards client
	client *client.Client
}

// open returns the client, and connects at the first call. A failure is not remembered: the cluster
// may be starting.
func (k *cluster) open(ctx context.Context) (*client.Client, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.client != nil {
		return k.client, nil
	}
	if len(k.target.Addrs) == 0 {
		return nil, rhumb.E("rhumb.provider", rhumb.InvalidArgument, "no node is named; set addr in the provider's block, RHUMB_ADDR, or a context")
	}
	cfg, err := k.target.Config()
	if err != nil {
		return nil, err
	}
	k.client, err = client.Open(ctx, cfg)
	return k.client, err
}

// managed is what all resources and data sources have in common.
//
// The pointer is nil until configure, so methods that run before, such as those for schemas, must
// not use it.
type managed struct{ *cluster }

// configure keeps the connection that the provider made. Terraform also calls it before the
// provider is configured, to validate a configuration; no connection is needed then.
func (m *managed) configure(data any, diags *diag.Diagnostics) {
	if data == nil {
		return
	}
	k, ok := data.(*cluster)
	if !ok {
		diags.AddError("Unexpected data of the provider", fmt.Sprintf("%T; this is a bug of the provider", data))
		return
	}
	m.cluster = k
}

// with runs fn with the client and reports its error. doing completes the sentence "Cannot ...",
// which is all that Terraform shows in bold.
func (m *managed) with(ctx context.Context, diags *diag.Diagnostics, doing string, fn func(c *client.Client) error) {
	c, err := m.open(ctx)
	if err == nil {
		err = fn(c)
	}
	if err != nil {
		addError(diags, "Cannot "+doing, err)
	}
}

// addError adds an error as the command line prints it: the message of the database, and what to do
// next. The kind and the operation are for programs, and Terraform has no place for them.
func addError(diags *diag.Diagnostics, summary string, err error) {
	doc := exit.Describe(err)
	text := doc.Message
	if doc.NextStep != "" {
		text += "\nNext: " + doc.NextStep
	}
	diags.AddError(summary, text)
}

// flagText returns a value as a flag takes it, so that one parser checks what is typed here and on
// the command line.
func flagText(ctx context.Context, value attr.Value) (string, diag.Diagnostics) {
	switch v := value.(type) {
	case types.String:
		return v.ValueString(), nil
	case types.Bool:
		return fmt.Sprint(v.ValueBool()), nil
	case types.List:
		var words []string
		diags := v.ElementsAs(ctx, &words, false)
		return strings.Join(words, ","), diags
	}
	return value.String(), nil
}

// The values of deletion_policy.
const (
	refuse = "refuse"
	forget = "forget"
)

// deletionText describes deletion_policy.
const deletionText = "What `terraform destroy` does, because the cluster cannot remove a %s: `refuse` (the default) fails, `forget` only removes it from the state."

// checkDestroy fails the plan of a destruction that would be refused, so that nothing else of the
// plan is carried out. The policy is that of the state: to destroy, one first has to apply that the
// object may be forgotten, so a resource that is deleted from a file by mistake is not lost from
// sight.
func checkDestroy(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse, what string) {
	if !req.Plan.Raw.IsNull() {
		return
	}
	var name, policy types.String
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("name"), &name)...)
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("deletion_policy"), &policy)...)
	if policy.ValueString() != forget {
		resp.Diagnostics.AddError("A "+what+" cannot be removed",
			fmt.Sprintf("The cluster keeps the %s %s and its data for good. Set deletion_policy = %q and apply it first: a later destroy then only forgets the %s. `terraform state rm` does the same.", what, name.ValueString(), forget, what))
	}
}

// fixed is a plan modifier for attributes that cannot change once the object exists. Replacing the
// object is impossible, because it cannot be removed.
type fixed struct{ what string }

const fixedText = "Cannot be changed later."

// Description implements planmodifier.Describer.
func (fixed) Description(context.Context) string { return fixedText }

// MarkdownDescription implements planmodifier.Describer.
func (fixed) MarkdownDescription(context.Context) string { return fixedText }

// check keeps the value in the state where the configuration has none, and rejects another value.
// Terraform would otherwise offer to replace the object, and only fail halfway, after the user has
// approved it.
func (f fixed) check(at path.Path, state, config, plan attr.Value, diags *diag.Diagnostics) (keep bool) {
	if state == nil || state.IsNull() {
		return false // the object is being created
	}
	if config.IsNull() {
		return true
	}
	if !plan.IsUnknown() && !plan.Equal(state) && !sameDuration(plan, state) {
		diags.AddAttributeError(at, "The "+f.what+" cannot be changed",
			fmt.Sprintf("It has %s, and the configuration wants %s. Set it back; for other settings, make a new %s and copy the records.", state, plan, f.what))
	}
	return false
}

// sameDuration reports whether two texts are the same duration, such as 24h and 1440m.
func sameDuration(a, b attr.Value) bool {
	x, ok := a.(types.String)
	y, ok2 := b.(types.String)
	if !ok || !ok2 {
		return false
	}
	d, err := time.ParseDuration(x.ValueString())
	e, err2 := time.ParseDuration(y.ValueString())
	return err == nil && err2 == nil && d == e
}

// PlanModifyString implements planmodifier.String. Names of fields, bytes and durations are
// strings.
func (f fixed) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if f.check(req.Path, req.StateValue, req.ConfigValue, req.PlanValue, &resp.Diagnostics) {
		resp.PlanValue = req.StateValue
	}
}

// PlanModifyInt64 implements planmodifier.Int64, for counts and sizes.
func (f fixed) PlanModifyInt64(_ context.Context, req planmodifier.Int64Request, resp *planmodifier.Int64Response) {
	if f.check(req.Path, req.StateValue, req.ConfigValue, req.PlanValue, &resp.Diagnostics) {
		resp.PlanValue = req.StateValue
	}
}

// PlanModifyFloat64 implements planmodifier.Float64, for coordinates.
func (f fixed) PlanModifyFloat64(_ context.Context, req planmodifier.Float64Request, resp *planmodifier.Float64Response) {
	if f.check(req.Path, req.StateValue, req.ConfigValue, req.PlanValue, &resp.Diagnostics) {
		resp.PlanValue = req.StateValue
	}
}

// PlanModifySet implements planmodifier.Set, for features of images.
func (f fixed) PlanModifySet(_ context.Context, req planmodifier.SetRequest, resp *planmodifier.SetResponse) {
	if f.check(req.Path, req.StateValue, req.ConfigValue, req.PlanValue, &resp.Diagnostics) {
		resp.PlanValue = req.StateValue
	}
}
