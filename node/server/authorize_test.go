package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// callerKey is the header by which a test says who calls, such as "user/ann". Without it the caller is insecure.
const callerKey = "test-caller"

// callerInTest stands for the session layer of a node.
func callerInTest(ctx context.Context) access.Principal {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(callerKey)
	if len(values) == 0 {
		return access.Principal{Kind: access.KindInsecure}
	}
	kind, name, _ := strings.Cut(values[0], "/")
	for k := access.KindNobody; k <= access.KindUser; k++ {
		if k.String() == kind {
			return access.Principal{Kind: k, Name: name}
		}
	}
	return access.Principal{}
}

// identify returns options that put the principal of each call into its context, as the session layer of a node
// does.
func identify(principal func(ctx context.Context) access.Principal) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, q any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return handle(access.WithPrincipal(ctx, principal(ctx)), q)
		}),
		grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, &identifiedStream{s, access.WithPrincipal(s.Context(), principal(s.Context()))})
		}),
	}
}

// identifiedStream is a stream whose context carries a principal.
type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context with the principal.
func (s *identifiedStream) Context() context.Context { return s.ctx }

// as returns a context of a caller.
func as(t *testing.T, who string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), callerKey, who)
}

// applyAll applies commands, which must succeed.
func applyAll(t testing.TB, st *catalog.State, cmds ...catalog.Command) *catalog.State {
	t.Helper()
	for _, cmd := range cmds {
		next, res, _ := st.Apply(cmd)
		if res.Failure != nil {
			t.Fatalf("%#v: %v", cmd, res.Failure)
		}
		st = next
	}
	return st
}

// peopled returns a catalog with the tables of newWorld (flights is table 1, secret is table 2), and users: ann reads
// flights, bob writes flights within a/ and b/, cat deletes in flights, mon monitors, adm administers the cluster, tad
// administers flights and plans, dis is disabled and nil has no role.
func peopled(t testing.TB) *catalog.State {
	one := rhumb.DefaultClassSettings()
	one.Replicas, one.MinInSync, one.HashSlots = 1, 1, 2
	two := one
	two.HashSlots = 1
	place := func(slots int) []catalog.Placement {
		return []catalog.Placement{{Region: 1, Replicas: slices.Repeat([][]rhumb.NodeID{{1}}, slots)}}
	}
	grant := func(role, tab, prefix string, r access.Rights) catalog.Command {
		return catalog.AlterGrant{Role: role, Scope: access.Scope{Table: tab, Prefix: prefix}, Add: r}
	}
	cluster := func(role string, r access.Rights) catalog.Command {
		return catalog.AlterGrant{Role: role, Scope: access.Scope{Cluster: true}, Add: r}
	}
	cmds := []catalog.Command{
		catalog.Init{Cluster: rhumb.ClusterID{9}, First: register(1)},
		catalog.CreateTable{Name: "flights", Settings: one, Placements: place(2)},
		catalog.CreateTable{Name: "secret", Settings: two, Placements: place(1)},
	}
	for _, r := range []string{"reader", "writer", "deleter", "monitor", "admin", "tabadm"} {
		cmds = append(cmds, catalog.CreateRole{Name: r})
	}
	cmds = append(cmds,
		grant("reader", "flights", "", access.Read), grant("writer", "flights", "a/", access.Write), grant("writer", "flights", "b/", access.Write|access.Read),
		grant("deleter", "flights", "", access.Delete), cluster("monitor", access.Read), cluster("admin", access.Admin),
		grant("tabadm", "flights", "", access.Admin), grant("tabadm", "plans", "", access.Admin))
	for user, role := range map[string]string{"ann": "reader", "bob": "writer", "cat": "deleter", "mon": "monitor", "adm": "admin", "tad": "tabadm", "dis": "admin", "nil": ""} {
		u := catalog.CreateUser{Name: user}
		if role != "" {
			u.Roles = []string{role}
		}
		cmds = append(cmds, u)
	}
	off := true
	return applyAll(t, catalog.New(), append(cmds, catalog.SetUser{Name: "dis", Disabled: &off})...)
}

// allMethods returns every RPC of every service of the API.
func allMethods() (names []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage("rhumb.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				names = append(names, fmt.Sprintf("/%s/%s", s.FullName(), s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(names)
	return names
}

// TestEveryCallHasANeed guards that nobody adds an RPC without deciding who may call it. An RPC without an entry is
// denied to everybody.
func TestEveryCallHasANeed(t *testing.T) {
	methods := allMethods()
	if len(methods) < 30 {
		t.Fatalf("only %d RPCs found", len(methods))
	}
	for _, m := range methods {
		if callNeeds[m] == nobodyMay {
			t.Errorf("%s has no entry in callNeeds; decide who may call it", m)
		}
	}
	for m := range callNeeds {
		if !slices.Contains(methods, m) {
			t.Errorf("callNeeds has %s, which does not exist", m)
		}
	}
	ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindOperator, Name: "x"})
	if err := authorizeCall(ctx, func() *catalog.State { return nil }, "/rhumb.v1.KV/Unheard"); rhumb.KindOf(err) != rhumb.PermissionDenied {
		t.Errorf("an unknown RPC: %v", err)
	}
}

// TestCallNeeds fixes who may make which call.
func TestCallNeeds(t *testing.T) {
	st := peopled(t)
	callers := map[string]access.Principal{
		"nobody": {}, "insecure": {Kind: access.KindInsecure}, "operator": {Kind: access.KindOperator, Name: "op"}, "node": {Kind: access.KindNode, Name: "eu-1"},
	}
	for _, u := range []string{"ann", "nil", "mon", "adm", "tad", "dis", "absent"} {
		callers[u] = access.Principal{Kind: access.KindUser, Name: u}
	}
	allowed := map[need]string{
		needNothing: "absent adm ann dis insecure mon nil nobody node operator tad",
		// A disabled or absent user is as good as nobody.
		needIdentity: "adm ann insecure mon nil node operator tad",
		needRead:     "adm insecure mon operator",
		needAdmin:    "adm insecure operator",
		needNode:     "insecure node",
	}
	cases := 0
	for method, need := range callNeeds {
		var may []string
		for name, who := range callers {
			cases++
			err := authorizeCall(access.WithPrincipal(t.Context(), who), func() *catalog.State { return st }, method)
			if err == nil {
				may = append(may, name)
				continue
			}
			want := rhumb.PermissionDenied
			if name == "nobody" {
				want = rhumb.Unauthenticated
			}
			if rhumb.KindOf(err) != want {
				t.Errorf("%s of %s: %v", method, name, err)
			}
		}
		slices.Sort(may)
		if got := strings.Join(may, " "); got != allowed[need] {
			t.Errorf("%s: %s may, want %s", method, got, allowed[need])
		}
	}
	t.Logf("%d calls", cases)
}

// secured returns a KV client of a world with the catalog of peopled.
func secured(t *testing.T, w *world) (rhumbpb.KVClient, *KV) {
	t.Helper()
	st := peopled(t)
	state := func() *catalog.State { return st }
	kv := NewKV(Config{Cluster: cluster, Self: self, Region: here, Routes: w, Ranges: w, Peers: w, Inserts: w, Logger: slog.New(slog.DiscardHandler), State: state})
	s := &Service{}
	s.Open(kv)
	return rhumbpb.NewKVClient(serveWith(t, state, func(g *grpc.Server) { s.Register(g) })), kv
}

func writeReq(kind rhumb.MutationKind, tab rhumb.TableID, names ...string) *rhumbpb.Request {
	w := &rhumbpb.Write{Region: uint32(home.Region), Slot: uint32(home.Slot)}
	for _, n := range names {
		m := mutation(kind, tab, n, "v")
		if kind == rhumb.Delete {
			m.Value = nil
		}
		if kind == rhumb.Insert {
			m.Name = nil
		}
		w.Mutations = append(w.Mutations, m)
	}
	return &rhumbpb.Request{Write: w}
}

// TestRightsOfRequests guards every kind of request: each name of each is checked, before anything is proposed.
func TestRightsOfRequests(t *testing.T) {
	const flights, secret, absent = 1, 2, 77
	read := func(tab rhumb.TableID, names ...string) *rhumbpb.Request {
		q := getReq(0, home, names...)
		q.Read.Table = uint32(tab)
		return q
	}
	versions := func(tab rhumb.TableID, names ...string) *rhumbpb.Request {
		q := read(tab, names...)
		q.Read.VersionsOnly = true
		return q
	}
	scan := func(tab rhumb.TableID) *rhumbpb.Request {
		return &rhumbpb.Request{Scan: &rhumbpb.ScanRequest{Table: uint32(tab), Region: uint32(home.Region), Slot: uint32(home.Slot)}}
	}
	tests := []struct {
		what string
		q    *rhumbpb.Request
		may  string
	}{
		{"put a/", writeReq(rhumb.Put, flights, "a/1"), "bob operator"},
		{"put a/ and b/", writeReq(rhumb.Put, flights, "a/1", "b/1"), "bob operator"},
		{"put a/ and c/", writeReq(rhumb.Put, flights, "a/1", "c/1"), "operator"},
		{"put in two tables", &rhumbpb.Request{Write: &rhumbpb.Write{Region: uint32(home.Region), Slot: uint32(home.Slot), Mutations: []*rhumbpb.Mutation{
			mutation(rhumb.Put, flights, "a/1", "v"), mutation(rhumb.Put, secret, "a/1", "v"),
		}}}, "operator"},
		{"put and delete", &rhumbpb.Request{Write: &rhumbpb.Write{Region: uint32(home.Region), Slot: uint32(home.Slot), Mutations: []*rhumbpb.Mutation{
			mutation(rhumb.Put, flights, "a/1", "v"), {Kind: rhumbpb.MutationKind_MUTATION_KIND_DELETE, Table: flights, Name: []byte("a/2")},
		}}}, "operator"},
		{"delete", writeReq(rhumb.Delete, flights, "a/1"), "cat operator"},
		{"put in a hidden table", writeReq(rhumb.Put, secret, "a/1"), "operator"},
		{"put in an absent table", writeReq(rhumb.Put, absent, "a/1"), "operator"},
		{"insert", writeReq(rhumb.Insert, flights, ""), "operator"},
		{"get", read(flights, "a/1"), "ann operator"},
		{"get b/", read(flights, "b/1"), "ann bob operator"},
		{"get b/ and a/", read(flights, "b/1", "a/1"), "ann operator"},
		{"versions", versions(flights, "a/1"), "ann bob cat operator"},
		{"versions of c/", versions(flights, "c/1"), "ann cat operator"},
		{"get of a hidden table", read(secret, "a"), "operator"},
		{"get of an absent table", read(absent, "a"), "operator"},
		{"scan", scan(flights), "ann bob operator"},
		{"scan of a hidden table", scan(secret), "operator"},
	}
	cases := 0
	for _, tt := range tests {
		for _, who := range []string{"nobody", "user/ann", "user/bob", "user/cat", "user/mon", "user/adm", "user/tad", "user/dis", "user/nil", "user/absent", "node/eu-1", "operator/operator"} {
			cases++
			w := newWorld()
			kv := NewKV(Config{Cluster: cluster, Self: self, Region: here, Routes: w, Ranges: w, Peers: w, Inserts: w, Logger: slog.New(slog.DiscardHandler), State: func() *catalog.State { return peopled(t) }})
			md := metadata.Pairs(callerKey, who)
			ctx := access.WithPrincipal(t.Context(), callerInTest(metadata.NewIncomingContext(t.Context(), md)))
			resp := kv.Answer(ctx, tt.q)
			kind := rhumb.Kind(resp.GetError().GetKind())
			denied := kind == rhumb.PermissionDenied || kind == rhumb.Unauthenticated
			_, name, _ := strings.Cut(who, "/")
			if want := slices.Contains(strings.Fields(tt.may), name); want == denied {
				t.Errorf("%s by %s: denied %v: %v", tt.what, who, denied, resp.Error)
			}
			if denied && len(w.proposed) > 0 {
				t.Errorf("%s by %s was denied and proposed", tt.what, who)
			}
			// Those who may see all tables get the name.
			sees := slices.Contains([]string{"mon", "adm", "eu-1"}, name)
			if denied && !sees && strings.Contains(resp.Error.Message, "secret") {
				t.Errorf("%s by %s names a hidden table: %s", tt.what, who, resp.Error.Message)
			}
		}
	}
	t.Logf("%d requests", cases)
}

// TestHiddenAndAbsentTablesAreAlike guards that answers tell nothing about tables that the caller may not see.
func TestHiddenAndAbsentTablesAreAlike(t *testing.T) {
	c, _ := secured(t, newWorld())
	for _, who := range []string{"user/ann", "user/nil", "user/mon", "user/adm"} {
		var texts []string
		for _, tab := range []rhumb.TableID{2, 77} {
			_, err := c.Do(as(t, who), writeReq(rhumb.Put, tab, "a"))
			e, _, _ := api.FromStatus("test", err)
			texts = append(texts, strings.ReplaceAll(fmt.Sprint(e.Kind, e.Msg), tab.String(), "T"))
		}
		// Those who may see all tables get the name.
		alike := texts[0] == texts[1]
		if sees := who == "user/mon" || who == "user/adm"; alike == sees {
			t.Errorf("%s: %q", who, texts)
		}
	}
	n, _ := startCluster(t)
	n.st = peopled(t)
	cc := rhumbpb.NewClusterClient(serveWith(t, n.State, func(s *grpc.Server) { NewCluster(n).Register(s) }))
	for name, want := range map[string]rhumb.Kind{"secret": rhumb.PermissionDenied, "nothing": rhumb.PermissionDenied, "flights": rhumb.Other} {
		_, err := cc.DescribeTable(as(t, "user/ann"), &rhumbpb.DescribeTableRequest{Name: name})
		if kindOf(t, err) != want {
			t.Errorf("describe %s: %v", name, err)
		}
	}
}

// TestForwardedRequestCarriesItsCaller guards that a client cannot name another principal, and that the node that
// serves a forwarded request learns the true one.
func TestForwardedRequestCarriesItsCaller(t *testing.T) {
	w := newWorld()
	w.answer = func(context.Context, rhumb.NodeID, *rhumbpb.Request) (*rhumbpb.Response, error) {
		return &rhumbpb.Response{}, nil
	}
	c, kv := secured(t, w)
	q := writeReq(rhumb.Put, 1, "b/1")
	q.Write.Region, q.Write.Slot, q.Hops = uint32(beside.Region), uint32(beside.Slot), 1
	q.Principal = &rhumbpb.Principal{Kind: rhumbpb.PrincipalKind_PRINCIPAL_KIND_OPERATOR, Name: "evil"}
	if _, err := c.Do(as(t, "user/ann"), q); kindOf(t, err) != rhumb.PermissionDenied {
		t.Errorf("ann writes as an operator: %v", err)
	}
	if len(w.forwards) != 0 {
		t.Fatal("a denied request was forwarded")
	}
	_, _ = c.Do(as(t, "user/bob"), q)
	w.with(func() {
		if len(w.forwards) != 1 {
			t.Fatalf("%d requests were forwarded", len(w.forwards))
		}
		if got := api.DecodePrincipal(w.forwards[0].Principal); got != (access.Principal{Kind: access.KindUser, Name: "bob"}) {
			t.Errorf("forwarded as %v", got)
		}
		if w.forwards[0].Revision < kv.cfg.State().Revision() {
			t.Error("the other node may decide by older metadata")
		}
	})
}

// TestNewRightIsAwaited guards that a request is not denied by metadata older than those that its sender has seen.
func TestNewRightIsAwaited(t *testing.T) {
	w := newWorld()
	states := make(chan *catalog.State, 1)
	old := peopled(t)
	newer := applyAll(t, old, catalog.AlterGrant{Role: "reader", Scope: access.Scope{Table: "flights"}, Add: access.Write})
	states <- old
	asked := 0
	kv := NewKV(Config{Cluster: cluster, Self: self, Region: here, Routes: w, Ranges: w, Peers: w, Inserts: w, Logger: slog.New(slog.DiscardHandler), State: func() *catalog.State {
		st := <-states
		defer func() { states <- st }()
		// The third look finds the new catalog.
		if asked++; asked == 3 {
			st = newer
		}
		return st
	}})
	ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindUser, Name: "ann"})
	q := writeReq(rhumb.Put, 1, "a/1")
	q.Revision = newer.Revision()
	if resp := kv.Answer(ctx, q); resp.Error != nil {
		t.Errorf("denied by an old catalog: %v", resp.Error)
	}
	q = writeReq(rhumb.Put, 2, "a/1")
	q.Revision = newer.Revision()
	if resp := kv.Answer(ctx, q); rhumb.Kind(resp.GetError().GetKind()) != rhumb.PermissionDenied {
		t.Errorf("allowed: %v", resp.Error)
	}
}

// TestFewDeniedRequestsWait guards a node against callers without rights that claim newer metadata: each request that
// waits looks at the metadata again and again.
func TestFewDeniedRequestsWait(t *testing.T) {
	w := newWorld()
	st := peopled(t)
	kv := NewKV(Config{Cluster: cluster, Self: self, Region: here, Routes: w, Ranges: w, Peers: w, Inserts: w, Logger: slog.New(slog.DiscardHandler), State: func() *catalog.State { return st }})
	ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindUser, Name: "ann"})
	answers := make(chan *rhumbpb.Response, 4*catchingUpMax)
	for range cap(answers) {
		q := writeReq(rhumb.Put, 2, "a/1")
		q.Revision = 1 << 62
		kv.serve(ctx, q, func(resp *rhumbpb.Response) { answers <- resp })
	}
	// The others are answered at once.
	if n := kv.catchingUp.Load(); n > catchingUpMax {
		t.Errorf("%d requests wait", n)
	}
	kinds := map[rhumb.Kind]int{}
	for range cap(answers) {
		kinds[rhumb.Kind((<-answers).GetError().GetKind())]++
	}
	if kinds[rhumb.Overloaded] < 2*catchingUpMax || kinds[rhumb.PermissionDenied] < catchingUpMax || len(kinds) != 2 {
		t.Errorf("answers %v", kinds)
	}
	if n := kv.catchingUp.Load(); n != 0 {
		t.Errorf("%d requests wait for ever", n)
	}
}

// TestScanShowsPermittedNames guards scans: their pages contain exactly the readable records of the range, in order,
// whatever the size of the pages.
func TestScanShowsPermittedNames(t *testing.T) {
	st := peopled(t)
	names := strings.Fields("a a/1 a/2 b b/ b/1 b/2 b/3 b0 c/1 d/1 d/2 d/22 d/3 e")
	st = applyAll(t, st, catalog.AlterGrant{Role: "writer", Scope: access.Scope{Table: "flights", Prefix: "d/2"}, Add: access.Read},
		catalog.AlterGrant{Role: "writer", Scope: access.Scope{Table: "flights", Prefix: "x"}, Add: access.Read})
	ctx := access.WithPrincipal(t.Context(), access.Principal{Kind: access.KindUser, Name: "bob"})
	for _, prefix := range []string{"", "b", "b/", "b/2", "d", "d/22", "a", "z"} {
		var want []string
		for _, n := range names {
			if strings.HasPrefix(n, prefix) && (strings.HasPrefix(n, "b/") || strings.HasPrefix(n, "d/2")) {
				want = append(want, n)
			}
		}
		for limit := 1; limit <= 6; limit++ {
			q := rhumb.ScanQuery{Range: home, Table: 1, Prefix: []byte(prefix), Limit: limit, BytesMax: rhumb.ScanPageBytes}
			if limit%2 == 0 {
				q.Ranges = []rhumb.RangeID{home}
			}
			kv := NewKV(Config{Self: self, Ranges: sortedRanges{newWorld(), names}, State: func() *catalog.State { return st }})
			var got []string
			for {
				page, _, err := kv.scanPermitted(ctx, q)
				if err != nil || len(page.Items) > limit || page.More && len(page.Items) == 0 || len(page.Items) > 0 && len(page.Ends) != len(q.Ranges) {
					t.Fatalf("page %v, %v", page, err)
				}
				for _, it := range page.Items {
					got = append(got, string(it.Key.Name))
				}
				if !page.More {
					break
				}
				q.After = page.Items[len(page.Items)-1].Key.Name
			}
			if !slices.Equal(got, want) {
				t.Errorf("prefix %q, pages of %d: %q, want %q", prefix, limit, got, want)
			}
		}
	}
}

// sortedRanges is a range that holds records with the given names.
type sortedRanges struct {
	*world
	names []string
}

func (s sortedRanges) Scan(_ context.Context, q rhumb.ScanQuery) (page rhumb.ScanPage, _ rhumb.Receipt, _ error) {
	if len(q.Ranges) > 0 {
		page.Ends = []rhumb.Slot{home.Slot + 1}
	}
	for _, n := range s.names {
		if !strings.HasPrefix(n, string(q.Prefix)) || q.After != nil && bytes.Compare([]byte(n), q.After) <= 0 {
			continue
		}
		if len(page.Items) == q.Limit {
			page.More = true
			break
		}
		page.Items = append(page.Items, rhumb.Item{Key: rhumb.Key{Name: []byte(n)}, Version: rhumb.Version{HLC: 1}})
	}
	return page, rhumb.Receipt{}, nil
}

// TestViewShowsPermittedTables guards metadata: what a caller sees after any sequence of updates is what a new watch
// would show it.
func TestViewShowsPermittedTables(t *testing.T) {
	st := peopled(t)
	settings := rhumb.DefaultClassSettings()
	settings.Replicas, settings.MinInSync, settings.HashSlots = 1, 1, 1
	place := []catalog.Placement{{Region: 1, Replicas: [][]rhumb.NodeID{{1}}}}
	off, on := true, false
	cmds := []catalog.Command{
		catalog.AddRegion{Name: "elsewhere", Location: rhumb.Point{Lat: 1}},
		catalog.AlterGrant{Role: "reader", Scope: access.Scope{Table: "secret"}, Add: access.Read},
		catalog.AlterGrant{Role: "reader", Scope: access.Scope{Table: "secret"}, Remove: access.Read},
		// Of the class of secret, which ann does not see yet.
		catalog.AlterGrant{Role: "reader", Scope: access.Scope{Table: "later"}, Add: access.Write},
		catalog.CreateTable{Name: "later", Settings: settings, Placements: place},
		catalog.CreateTable{Name: "hidden", Settings: settings, Placements: place},
		catalog.SetUser{Name: "ann", Disabled: &off},
		catalog.SetUser{Name: "ann", Disabled: &on},
		catalog.AssignRole{User: "ann", Role: "monitor"},
		catalog.CreateTable{Name: "seen", Settings: settings, Placements: place},
		catalog.AssignRole{User: "ann", Role: "monitor", Remove: true},
	}
	for _, who := range []access.Principal{
		{Kind: access.KindUser, Name: "ann"},
		{Kind: access.KindUser, Name: "nil"},
		{Kind: access.KindUser, Name: "adm"},
		{Kind: access.KindOperator, Name: "x"},
		{Kind: access.KindNode, Name: "n"},
		{Kind: access.KindInsecure},
	} {
		now := st
		v := &view{who: who}
		known := &seenMetadata{}
		known.take(v.update(raftmeta.Update{State: now, Full: true}))
		for i, cmd := range cmds {
			next, res, changes := now.Apply(cmd)
			if res.Failure != nil {
				t.Fatal(res.Failure)
			}
			now = next
			known.take(v.update(raftmeta.Update{State: now, Changes: changes}))
			fresh := &seenMetadata{}
			fresh.take((&view{who: who}).full(now))
			if known.String() != fresh.String() {
				t.Fatalf("%v, step %d: sees %s, want %s", who, i, known, fresh)
			}
			if who.Name == "nil" && (len(known.tables) > 0 || len(known.ranges) > 0) {
				t.Errorf("a user without rights sees %s", known)
			}
		}
		if who.Name == "ann" && known.String() != "tables flights later, classes 2, ranges 3" {
			t.Errorf("ann sees %s", known)
		}
	}
}

// seenMetadata is what a client knows after updates.
type seenMetadata struct {
	tables  map[rhumb.TableID]string
	classes map[rhumb.ClassID]bool
	ranges  map[rhumb.RangeID]bool
}

func (s *seenMetadata) take(m *api.Metadata) {
	if m.Full {
		*s = seenMetadata{map[rhumb.TableID]string{}, map[rhumb.ClassID]bool{}, map[rhumb.RangeID]bool{}}
	}
	for _, t := range m.Tables {
		s.tables[t.ID] = t.Name
	}
	for _, c := range m.Classes {
		s.classes[c.ID] = true
	}
	for _, r := range m.Ranges {
		s.ranges[r.ID] = true
	}
}

func (s *seenMetadata) String() string {
	var names []string
	for _, n := range s.tables {
		names = append(names, n)
	}
	slices.Sort(names)
	return fmt.Sprintf("tables %s, classes %d, ranges %d", strings.Join(names, " "), len(s.classes), len(s.ranges))
}

// BenchmarkPermit measures the check of one request, with the look at the context and the catalog.
func BenchmarkPermit(b *testing.B) {
	st := peopled(b)
	kv := NewKV(Config{State: func() *catalog.State { return st }})
	put := writeReq(rhumb.Put, 1, "b/1")
	batch := writeReq(rhumb.Put, 1, slices.Repeat([]string{"b/1"}, 100)...)
	for _, bb := range []struct {
		what string
		who  access.Principal
		q    *rhumbpb.Request
	}{
		{"insecure", access.Principal{Kind: access.KindInsecure}, put},
		{"operator", access.Principal{Kind: access.KindOperator, Name: "x"}, put},
		{"user", access.Principal{Kind: access.KindUser, Name: "bob"}, put},
		{"user-batch-of-100", access.Principal{Kind: access.KindUser, Name: "bob"}, batch},
	} {
		b.Run(bb.what, func(b *testing.B) {
			ctx := access.WithPrincipal(b.Context(), bb.who)
			b.ReportAllocs()
			for b.Loop() {
				p := kv.permitFor(ctx)
				if err := p.check(bb.q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestOldCatalogDecidesNothing guards that a node that has just started neither denies a right that may have been granted meanwhile nor
// lets a user change something by a right that may be gone, that it waits for its catalog before it says so, and that it shows what it
// has to those who may see it.
func TestOldCatalogDecidesNothing(t *testing.T) {
	old := peopled(t)
	newer := applyAll(t, old, catalog.CreateUser{Name: "new", Roles: []string{"admin"}}, catalog.AlterGrant{Role: "admin", Scope: access.Scope{Cluster: true}, Remove: access.Admin},
		catalog.AlterGrant{Role: "reader", Scope: access.Scope{Cluster: true}, Add: access.Read})
	drop, status := rhumbpb.Access_DropUser_FullMethodName, rhumbpb.Cluster_Status_FullMethodName
	for _, tc := range []struct {
		user, method string
		q            any
		old, newer   rhumb.Kind // while the catalog stays old, and if it becomes current; Unknown means allowed
	}{
		{"new", status, nil, rhumb.Unavailable, rhumb.PermissionDenied},
		{"new", rhumbpb.Cluster_Ping_FullMethodName, nil, rhumb.Unavailable, rhumb.Other},
		{"ann", status, nil, rhumb.Unavailable, rhumb.Other},
		{"mon", status, nil, rhumb.Other, rhumb.Other},
		{"adm", drop, nil, rhumb.Unavailable, rhumb.PermissionDenied},
		{"bob", drop, nil, rhumb.Unavailable, rhumb.PermissionDenied},
		{"tad", rhumbpb.Cluster_DropTable_FullMethodName, &rhumbpb.DropTableRequest{Table: "flights"}, rhumb.Unavailable, rhumb.Other},
		{"", drop, nil, rhumb.Other, rhumb.Other},
	} {
		who := access.Principal{Kind: access.KindUser, Name: tc.user}
		if tc.user == "" {
			who = access.Principal{Kind: access.KindOperator, Name: "ops"}
		}
		for _, becomes := range []bool{false, true} {
			st, want := old, tc.old
			current := func(context.Context) bool {
				if becomes {
					st = newer
				}
				return becomes
			}
			if becomes {
				want = tc.newer
			}
			a := &Authorizer{func() *catalog.State { return st }, current, NewDenied()}
			if err := a.Authorize(access.WithPrincipal(t.Context(), who), tc.method, tc.q); rhumb.KindOf(err) != want {
				t.Errorf("%s calls %s, becomes current %v: %v, want %s", who, tc.method, becomes, err, want)
			}
		}
	}
}
