package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/audit"
	"github.com/rhumbdb/rhumb/identity"
)

// administers lists the administrative requests of the Cluster service. Its other requests only show something.
var administers = map[string]bool{
	rhumbpb.Cluster_CreateTable_FullMethodName:     true,
	rhumbpb.Cluster_Init_FullMethodName:            true,
	rhumbpb.Cluster_Drain_FullMethodName:           true,
	rhumbpb.Cluster_DiscardReplica_FullMethodName:  true,
	rhumbpb.Cluster_RecoverRange_FullMethodName:    true,
	rhumbpb.Cluster_AddRegion_FullMethodName:       true,
	rhumbpb.Cluster_ForgetNode_FullMethodName:      true,
	rhumbpb.Cluster_FinalizeUpgrade_FullMethodName: true,
	rhumbpb.Cluster_RefuseSnapshot_FullMethodName:  true,
	rhumbpb.Cluster_DropTable_FullMethodName:       true,
	// It quarantines copies that differ.
	rhumbpb.Cluster_VerifyRange_FullMethodName: true,
}

// adminServices are the services all of whose requests are administrative, except those that list or describe.
var adminServices = []string{"/rhumb.v1.Access/", "/rhumb.v1.Security/", "/rhumb.v1.Operations/"}

// isAdministrative reports whether a request changes the cluster.
func isAdministrative(method string) bool {
	for _, s := range adminServices {
		if name, ok := strings.CutPrefix(method, s); ok {
			return !strings.HasPrefix(name, "List") && !strings.HasPrefix(name, "Describe") && !strings.HasPrefix(name, "WhoAmI")
		}
	}
	return administers[method]
}

// Audit returns an interceptor that records administrative requests: before they are carried out, and with
// their outcome before they are answered. If the first record fails, the request is refused. admit is asked before and
// bounds how much a caller can make the log grow.
//
// Two entries and not one: with one before, a failed request would look carried out; with one
// after, a node that dies in the middle would leave a change without a trace.
func Audit(admit func(context.Context) error, record func(context.Context, audit.Event) error) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !isAdministrative(info.FullMethod) {
			return handle(ctx, q)
		}
		if err := admit(ctx); err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		e := eventOf(ctx, q, info.FullMethod)
		e.Outcome = audit.OutcomeBegun
		if begun, ok := ctx.Value(begunKey{}).(*bool); ok {
			*begun = true
		}
		if err := record(ctx, e); err != nil {
			return nil, api.Status(err, api.Hint{})
		}
		resp, err := handle(ctx, q)
		e.Outcome = audit.OutcomeOK
		if err != nil {
			// Errors name what they are about, never values of records or passwords.
			e.Outcome, e.Detail = outcomeOf(err), status.Convert(err).Message()
		}
		// The request is carried out by now, so the outcome is recorded even if the caller has left. If that
		// fails, the log has the beginning, and its metrics and the log of the node the failure.
		_ = record(context.WithoutCancel(ctx), e)
		return resp, err
	}
}

// begunKey is the key of a flag in a context: Audit has recorded the request.
type begunKey struct{}

// AuditRefusals returns an interceptor that records administrative requests whose callers may not send them. It comes
// before Authorize, and Audit after it. record must not block, and bounds how much it records: every user can
// cause refusals.
func AuditRefusals(record func(audit.Event)) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !isAdministrative(info.FullMethod) {
			return handle(ctx, q)
		}
		begun := false
		resp, err := handle(context.WithValue(ctx, begunKey{}, &begun), q)
		if err != nil && !begun {
			e := eventOf(ctx, q, info.FullMethod)
			e.Outcome, e.Detail = outcomeOf(err), status.Convert(err).Message()
			record(e)
		}
		return resp, err
	}
}

// eventOf returns the event of an administrative request without its outcome.
func eventOf(ctx context.Context, q any, method string) audit.Event {
	who, _ := access.FromContext(ctx)
	e := audit.Event{Kind: audit.Admin, Caller: who.String(), Action: method[strings.LastIndex(method, "/")+1:]}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		e.Address = p.Addr.String()
	}
	if m, ok := q.(proto.Message); ok {
		e.Object = describeRequest(m)
	}
	return e
}

// outcomeOf returns the kind of the error of a handler.
func outcomeOf(err error) string {
	e, _, _ := api.FromStatus("server.Audit", err)
	return rhumb.KindOf(e).String()
}

// described lists the fields of requests that say what a request is about. No other field is recorded: requests
// carry verifiers of passwords and certificates too.
var described = []protoreflect.Name{
	"name", "table", "user", "role", "roles", "node", "serial", "node_name", "user_name", "operator_name", "why", "undo", "disabled", "cluster", "prefix", "rights",
	"accept_loss", "remove_password", "disable", "enable", "add", "remove", "cascade", "trust", "distrust", "force",
	"kind", "target", "operation", "action", "value",
}

// describedMax bounds the elements of a list that are described.
const describedMax = 16

// describeRequest returns the fields that identify the object of a request.
func describeRequest(m proto.Message) string {
	var parts []string
	collectFields(m.ProtoReflect(), 0, func(name protoreflect.Name, text string) {
		parts = append(parts, string(name)+" "+text)
	})
	return strings.Join(parts, ", ")
}

// depthMax bounds the messages within messages that are looked at: a grant has a scope.
const fieldDepthMax = 2

// collectFields calls add for the fields of a message that are described.
func collectFields(m protoreflect.Message, depth int, add func(protoreflect.Name, string)) {
	if depth > fieldDepthMax {
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) || f.IsMap() || f.IsList() && f.Message() != nil {
			continue
		}
		v := m.Get(f)
		switch {
		case f.IsList():
			if slices.Contains(described, f.Name()) {
				for j := range min(v.List().Len(), describedMax) {
					add(f.Name(), fieldText(f, v.List().Get(j)))
				}
			}
		case f.Message() != nil && f.Message().Name() == "RangeID":
			id := v.Message().Interface().(*rhumbpb.RangeID)
			add("range", fmt.Sprintf("%d/%d", id.Region, id.Slot))
		case f.Message() != nil && f.Message().Name() == "Verifier":
			add("password", "changed")
		case f.Message() != nil:
			collectFields(v.Message(), depth+1, add)
		case slices.Contains(described, f.Name()):
			add(f.Name(), fieldText(f, v))
		}
	}
}

// fieldText returns the value of a field.
func fieldText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch {
	// The bytes of a certificate say nothing to people; its authority is listed by this number.
	case f.Kind() == protoreflect.BytesKind && f.Name() == "trust":
		cert, err := x509.ParseCertificate(v.Bytes())
		if err != nil {
			return "no certificate"
		}
		return identity.AuthorityOf(cert)
	case f.Kind() == protoreflect.BytesKind:
		return rhumb.NameString(v.Bytes())
	// The rights of a grant.
	case f.Kind() == protoreflect.Uint32Kind && (f.Name() == "add" || f.Name() == "remove"):
		if r, err := api.DecodeRights(uint32(v.Uint())); err == nil {
			return r.String()
		}
	}
	return fmt.Sprint(v.Interface())
}
