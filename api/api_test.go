package api

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// wire encodes and decodes a message, as the network does.
func wire[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Every kind is preserved on the wire and has a code; every code has a kind.
func TestKinds(t *testing.T) {
	if len(codeOf) != len(rhumb.Kinds()) || len(rhumbpb.Kind_name) != len(rhumb.Kinds()) {
		t.Fatal("the table, the protocol and the vocabulary have different kinds")
	}
	for _, k := range rhumb.Kinds() {
		name := rhumbpb.Kind(k).String()
		if want := "KIND_" + strings.ToUpper(strings.TrimSuffix(k.String(), "_outcome")); name != want {
			t.Errorf("kind %d is %s in the protocol, want %s", k, name, want)
		}
		if Code(k) == codes.OK {
			t.Errorf("kind %s has the code OK", k)
		}
		in := &rhumb.Error{Op: "a.B", Kind: k, Range: rhumb.RangeID{Region: 1, Slot: 2}, Node: 3, Msg: "why"}
		s := Status(in, Hint{})
		if status.Code(s) != Code(k) {
			t.Errorf("kind %s became code %s", k, status.Code(s))
		}
		out, _, remote := FromStatus("x", s)
		if !remote {
			t.Errorf("kind %s: not known as a node's own word", k)
		}
		same(t, out, in)
	}
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		if k := KindOfCode(c); k.NotApplied() && c == codes.Unavailable {
			t.Errorf("code %s, which the transport makes, promises that a write was not applied", c)
		}
	}
	if Code(250) != codes.Unknown || KindOfCode(250) != rhumb.Other {
		t.Error("what is not known is not unknown")
	}
}

// An enumeration of the protocol and its counterpart in the vocabulary have the same numbers and
// names.
func TestEnums(t *testing.T) {
	for _, tc := range []struct {
		enum   protoreflect.EnumDescriptor
		first  int
		prefix string
		name   func(uint8) string
	}{
		{rhumbpb.MutationKind(0).Descriptor(), 1, "MUTATION_KIND_", func(n uint8) string { return rhumb.MutationKind(n).String() }},
		{rhumbpb.ConditionKind(0).Descriptor(), 0, "CONDITION_KIND_", func(n uint8) string { return rhumb.ConditionKind(n).String() }},
		{rhumbpb.NodeState(0).Descriptor(), 1, "NODE_STATE_", func(n uint8) string { return rhumb.NodeState(n).String() }},
		{rhumbpb.Mode(0).Descriptor(), 1, "MODE_", func(n uint8) string { return rhumb.Mode(n).String() }},
		{rhumbpb.Survival(0).Descriptor(), 1, "SURVIVAL_", func(n uint8) string { return rhumb.Survival(n).String() }},
	} {
		vs := tc.enum.Values()
		for i := tc.first; i < vs.Len(); i++ {
			want := tc.prefix + strings.ToUpper(strings.ReplaceAll(tc.name(uint8(vs.Get(i).Number())), "-", "_"))
			if got := string(vs.Get(i).Name()); got != want {
				t.Errorf("%d is %s in the protocol, %s in the vocabulary", vs.Get(i).Number(), got, want)
			}
		}
		if next := tc.name(uint8(vs.Len())); !strings.HasSuffix(next, "_"+string(rune('0'+vs.Len()))) {
			t.Errorf("the protocol lacks %s", next)
		}
	}
}

func someRange(region rhumb.RegionID, slot rhumb.Slot) *rhumb.Range {
	return &rhumb.Range{
		ID: rhumb.RangeID{Region: region, Slot: slot}, Class: 3, Epoch: 4, Allocated: 5, Version: 6, Primary: 7, Preferred: 8,
		InSync: []rhumb.NodeID{7, 9}, Replicas: []rhumb.NodeID{7, 8, 9},
	}
}

func TestErrors(t *testing.T) {
	h := Hint{Newer: someRange(1, 2)}
	e := &rhumb.Error{Op: "a.B", Kind: rhumb.NotPrimary, Msg: "m", Err: errors.New("cause")}
	got, hint := DecodeError(wire(t, EncodeError(e, h)))
	same(t, got, &rhumb.Error{Op: "a.B", Kind: rhumb.NotPrimary, Msg: "m: cause"})
	same(t, hint, h)

	out, hint, remote := FromStatus("x", Status(e, h))
	same(t, out, &rhumb.Error{Op: "a.B", Kind: rhumb.NotPrimary, Msg: "m: cause"})
	same(t, hint, h)
	if !remote {
		t.Error("a node's word is not known as one")
	}
	failed := &rhumb.Error{Op: "a.B", Kind: rhumb.ConditionFailed, Current: rhumb.Version{HLC: 11, Node: 12}, Msg: "m"}
	got, _ = DecodeError(wire(t, EncodeError(failed, Hint{})))
	same(t, got, failed)
	got, _ = DecodeError(wire(t, EncodeError(rhumb.Wrap("c.D", failed), Hint{})))
	same(t, got.Current, failed.Current)
	for _, kind := range []rhumb.Kind{rhumb.Overloaded, rhumb.Unavailable} {
		refused := &rhumb.Error{Op: "a.B", Kind: kind, RetryAfter: 70 * time.Millisecond, Msg: "m"}
		got, _ = DecodeError(wire(t, EncodeError(refused, Hint{})))
		same(t, got, refused)
		got, _ = DecodeError(wire(t, EncodeError(rhumb.Wrap("c.D", refused), Hint{})))
		same(t, got.RetryAfter, refused.RetryAfter)
	}
	if Status(nil, h) != nil {
		t.Error("no error became one")
	}
	plain := status.Error(codes.Unavailable, "gone")
	if Status(plain, Hint{}).Error() != plain.Error() {
		t.Error("a status did not stay as it is")
	}
	if err, _, remote := FromStatus("x", plain); remote || rhumb.KindOf(err).NotApplied() {
		t.Errorf("%v of the transport is taken for a node's", err)
	}
	// People read these texts, and the names of the library that sends are no help.
	for said, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`: "dial tcp 127.0.0.1:1: connect: connection refused",
		`connection error: desc = "transport: authentication handshake failed: EOF"`:                                   "EOF",
		`connection error: desc = "transport: the peer is \"n1\""`:                                                     `the peer is "n1"`,
		"gone": "gone",
	} {
		if err, _, _ := FromStatus("x", status.Error(codes.Unavailable, said)); err.Msg != want {
			t.Errorf("%s becomes %q, want %q", said, err.Msg, want)
		}
	}
	if err, _, _ := FromStatus("x", context.DeadlineExceeded); rhumb.KindOf(err) != rhumb.Other && rhumb.KindOf(err) != rhumb.DeadlineExceeded {
		t.Error(err)
	}
	if err, _, remote := FromStatus("x", e); err != e || remote {
		t.Error("an error of the vocabulary did not stay as it is")
	}
	got, _ = DecodeError(&rhumbpb.Error{Kind: 99})
	if got.Kind != rhumb.Other {
		t.Errorf("a kind of the future became %s", got.Kind)
	}
	if got, _ := DecodeError(EncodeError(errors.New("x"), Hint{})); got.Kind != rhumb.Other || got.Msg != "x" {
		t.Error(got)
	}
	long := EncodeError(rhumb.E("a", rhumb.Internal, strings.Repeat("x", 1<<20)), Hint{})
	if len(long.Message) > errorTextMax {
		t.Error("a message has no bound")
	}
}

func someBatch() rhumb.Batch {
	return rhumb.Batch{
		Range: rhumb.RangeID{Region: 1, Slot: 1<<32 - 1}, ID: rhumb.RequestID{Client: rhumb.UUID{1, 15: 2}, Seq: 1 << 63},
		Mutations: []rhumb.Mutation{
			{Kind: rhumb.Put, Table: 1, Name: []byte("a"), Value: rhumb.EncodeOpaque(nil, []byte{0}), Cond: rhumb.Condition{Kind: rhumb.IfVersion, Version: rhumb.Version{HLC: 1 << 63, Node: 1}}},
			{Kind: rhumb.Delete, Table: 2, Name: []byte("b"), Cond: rhumb.Condition{Kind: rhumb.IfPresent}},
			{Kind: rhumb.Patch, Table: 1<<32 - 1, Name: []byte{0, 255}, Value: []byte{0x21, 0}, Cond: rhumb.Condition{Kind: rhumb.IfNewer, Fields: []string{"x", "y"}}},
			{Kind: rhumb.Put, Table: 3, Name: []byte("c"), Value: []byte{0x11}, Cond: rhumb.Condition{Kind: rhumb.IfAbsent}},
		},
	}
}

func TestWrite(t *testing.T) {
	b := someBatch()
	got, resolve, err := DecodeWrite(wire(t, EncodeWrite(&b, false)))
	if err != nil || resolve {
		t.Fatal(resolve, err)
	}
	same(t, got, b)
	b.Range.Slot = 0
	got, resolve, err = DecodeWrite(wire(t, EncodeWrite(&b, true)))
	if err != nil || !resolve {
		t.Fatal(resolve, err)
	}
	same(t, got, b)
	b = rhumb.Batch{Range: rhumb.RangeID{Region: 2}, Mutations: []rhumb.Mutation{{Kind: rhumb.Insert, Table: 1, Value: []byte{0x11}}}}
	got, _, err = DecodeWrite(wire(t, EncodeWrite(&b, true)))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, b)
}

// The decoder rejects a write that is invalid in every state, with a reason.
func TestWriteRefused(t *testing.T) {
	put := func(f func(w *rhumbpb.Write, m *rhumbpb.Mutation)) *rhumbpb.Write {
		m := &rhumbpb.Mutation{Kind: 1, Table: 1, Name: []byte("a"), Value: []byte{0x11}}
		w := &rhumbpb.Write{Region: 1, Slot: 1, Mutations: []*rhumbpb.Mutation{m}}
		f(w, m)
		return w
	}
	for _, tc := range []struct {
		why  string
		w    *rhumbpb.Write
		kind rhumb.Kind
	}{
		{"empty", &rhumbpb.Write{}, rhumb.InvalidArgument},
		{"nil mutation", &rhumbpb.Write{Mutations: []*rhumbpb.Mutation{nil}}, rhumb.InvalidArgument},
		{"unknown kind", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Kind = 9 }), rhumb.InvalidArgument},
		{"kind that wraps to put", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Kind = 257 }), rhumb.InvalidArgument},
		{"condition that wraps", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Condition = &rhumbpb.Condition{Kind: 256} }), rhumb.InvalidArgument},
		{"negative kind", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Kind = -255 }), rhumb.InvalidArgument},
		{"no name", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Name = nil }), rhumb.InvalidArgument},
		{"long name", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Name = make([]byte, rhumb.NameSizeMax+1) }), rhumb.TooLarge},
		{"large value", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Value = make([]byte, rhumb.ValueSizeMax+1) }), rhumb.TooLarge},
		{"bad record", put(func(_ *rhumbpb.Write, m *rhumbpb.Mutation) { m.Value = []byte{0x21, 5} }), rhumb.InvalidArgument},
		{"half an id", put(func(w *rhumbpb.Write, _ *rhumbpb.Mutation) { w.Seq = 5 }), rhumb.InvalidArgument},
		{"other half", put(func(w *rhumbpb.Write, _ *rhumbpb.Mutation) { w.ClientLow = 5 }), rhumb.InvalidArgument},
	} {
		if _, _, err := DecodeWrite(tc.w); rhumb.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", tc.why, err)
		}
	}
	if _, _, err := DecodeWrite(nil); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Errorf("nil: %v", err)
	}
}

func TestReadAndScan(t *testing.T) {
	r := Read{Table: 1, Range: rhumb.RangeID{Region: 2, Slot: 3}, Names: [][]byte{[]byte("a"), {0}}}
	same(t, must[Read](t)(DecodeRead(wire(t, EncodeRead(&r)))), r)
	for _, bad := range []*rhumbpb.Read{
		nil, {Names: [][]byte{nil}}, {Names: [][]byte{make([]byte, rhumb.NameSizeMax+1)}}, {Names: [][]byte{{1}}, Consistency: 7},
	} {
		if _, err := DecodeRead(bad); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := DecodeRead(&rhumbpb.Read{Names: make([][]byte, rhumb.BatchOpsMax+1)}); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Error(err)
	}
	s := Scan{Table: 1, Range: rhumb.RangeID{Region: 2, Slot: 3}, Prefix: []byte("p"), After: []byte{}, Limit: 5, BytesMax: 7}
	same(t, must[Scan](t)(DecodeScan(wire(t, EncodeScan(&s)))), s)
	s.Ranges, s.AfterHome = []rhumb.RangeID{{Region: 2, Slot: 3}, {Region: 2, Slot: 9}}, rhumb.RangeID{Region: 1, Slot: 7}
	same(t, must[Scan](t)(DecodeScan(wire(t, EncodeScan(&s)))), s)
	if _, err := DecodeScan(&rhumbpb.ScanRequest{Slots: make([]uint32, rhumb.ScanRangesMax+1)}); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Error(err)
	}
	s = Scan{Table: 1, BytesMax: 1 << 30}
	if got := must[Scan](t)(DecodeScan(wire(t, EncodeScan(&s)))); got.After != nil || got.BytesMax != rhumb.ScanPageBytes {
		t.Errorf("%+v", got)
	}
	if _, err := DecodeScan(&rhumbpb.ScanRequest{Prefix: make([]byte, rhumb.NameSizeMax+1)}); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Error(err)
	}
}

func TestLocate(t *testing.T) {
	l := Locate{Region: 2, Names: [][]byte{[]byte("a"), {0}}, Tables: []rhumb.TableID{3, 4}}
	same(t, must[Locate](t)(DecodeLocate(wire(t, EncodeLocate(&l)))), l)
	for name, bad := range map[string]*rhumbpb.Locate{
		"nothing": nil, "an empty name": {Names: [][]byte{nil}, Tables: []uint32{1}}, "a table too few": {Names: [][]byte{{1}}},
		"a long name": {Names: [][]byte{make([]byte, rhumb.NameSizeMax+1)}, Tables: []uint32{1}},
	} {
		if _, err := DecodeLocate(bad); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeLocate(&rhumbpb.Locate{Names: make([][]byte, rhumb.LocateNamesMax+1)}); rhumb.KindOf(err) != rhumb.TooLarge {
		t.Error(err)
	}
}

func TestAnswers(t *testing.T) {
	id := rhumb.RangeID{Region: 4, Slot: 5}
	items := []rhumb.Item{
		{Key: rhumb.Key{Table: 3, Home: id, Name: []byte("a")}, Version: rhumb.Version{HLC: 1 << 63, Node: 2}, Value: []byte{0x11}},
		{Key: rhumb.Key{Table: 3, Home: id, Name: []byte("b")}},
	}
	for i, m := range EncodeItems(items, true, false) {
		same(t, DecodeItem(wire(t, m), 3, id, nil), items[i])
	}
	for i, m := range EncodeItems(items, false, true) {
		same(t, DecodeItem(wire(t, m), 3, rhumb.RangeID{Region: 4}, items[i].Key.Name), items[i])
	}
	if EncodeItems(nil, true, true) != nil {
		t.Error("no items became some")
	}
	o := rhumb.Outcome{Applied: true, Version: rhumb.Version{HLC: 5, Node: 6}, Seq: 7, Existed: []bool{false, true}, Names: [][]byte{[]byte("n")}}
	same(t, DecodeOutcome(wire(t, EncodeOutcome(&o)), 2), o)
	o.Existed = []bool{false, false}
	if m := EncodeOutcome(&o); m.Existed != nil {
		t.Error("all false is sent")
	}
	same(t, DecodeOutcome(wire(t, EncodeOutcome(&o)), 2), o)
	if got := DecodeOutcome(&rhumbpb.Outcome{Existed: make([]bool, 9)}, 2); len(got.Existed) != 2 {
		t.Error("an answer about more mutations than were asked is believed")
	}
	r := rhumb.Receipt{Region: 1, Node: 2, Range: id, Epoch: 6, Age: 7 * time.Microsecond, Hops: 8, Searched: 9, Timestamp: 10}
	same(t, DecodeReceipt(wire(t, EncodeReceipt(&r))), r)
	same(t, DecodeReceipt(nil), rhumb.Receipt{})
	if DecodeMicros(1<<63) < time.Hour {
		t.Error("a long time wrapped")
	}
}

func someNode() rhumb.Node {
	return rhumb.Node{
		ID: 1, Region: 2, Zone: "a", Addr: "x:1", HeartbeatAddr: "x:2", AdminAddr: "x:3", Location: rhumb.Point{Lat: 1, Lon: -2},
		Store: rhumb.UUID{9}, Boot: 3, State: rhumb.NodeDraining, Voter: true, Binary: "v1", Name: "eu-1", Forgotten: true,
	}
}

// everyOption returns table options of which none is zero, so that a test notices an option that a codec leaves out.
func everyOption() (o rhumb.TableOptions) {
	fields := reflect.ValueOf(&o).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case f.CanUint():
			f.SetUint(uint64(i + 1))
		case f.CanInt():
			f.SetInt(int64(i + 1))
		case f.Kind() == reflect.String:
			f.SetString("at")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		}
	}
	return o
}

func TestMetadataTypes(t *testing.T) {
	same(t, must[rhumb.Node](t)(DecodeNode(wire(t, EncodeNode(someNode())))), someNode())
	if n := must[rhumb.Node](t)(DecodeNode(&rhumbpb.Node{State: 77})); n.State != rhumb.NodeFenced {
		t.Errorf("a state of the future is %s", n.State)
	}
	if _, err := DecodeNode(&rhumbpb.Node{Store: []byte{1}}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Error(err)
	}
	id := rhumb.NodeIdentity{Node: 1, Store: rhumb.UUID{2}, Boot: 3}
	same(t, must[rhumb.NodeIdentity](t)(DecodeIdentity(wire(t, EncodeIdentity(id)))), id)
	region := rhumb.Region{ID: 1, Name: "frankfurt", Location: rhumb.Point{Lat: 50.1, Lon: 8.7}}
	same(t, DecodeRegion(wire(t, EncodeRegion(region))), region)
	class := rhumb.Class{ID: 1, Settings: rhumb.DefaultClassSettings()}
	same(t, DecodeClass(wire(t, EncodeClass(class))), class)
	table := rhumb.Table{ID: 1, Name: "t", Class: 2, TableOptions: everyOption()}
	same(t, must[rhumb.Table](t)(DecodeTable(wire(t, EncodeTable(table)))), table)
	same(t, must[rhumb.TableOptions](t)(DecodeTableOptions(wire(t, EncodeCreateTable("t", class.Settings, everyOption())))), everyOption())
	if _, err := DecodeTable(&rhumbpb.Table{Colocate: 256}); rhumb.KindOf(err) != rhumb.InvalidArgument {
		t.Error(err)
	}
	block := rhumb.Block{Region: 1, Class: 2, Node: 3, First: 4096}
	same(t, DecodeBlock(wire(t, EncodeBlock(block))), block)
	same(t, DecodeRange(wire(t, EncodeRange(someRange(1, 2)))), someRange(1, 2))
	same(t, DecodeRangeID(wire(t, EncodeRangeID(rhumb.RangeID{Region: 1, Slot: 2}))), rhumb.RangeID{Region: 1, Slot: 2})
	same(t, FillSettings(rhumb.ClassSettings{}), rhumb.DefaultClassSettings())
	if s := FillSettings(rhumb.ClassSettings{Replicas: 1}); s.MinInSync != 1 || s.Validate() != nil {
		t.Errorf("%+v", s)
	}
	if DecodeSettings(&rhumbpb.ClassSettings{Mode: 257, Replicas: 1, MinInSync: 1, Survival: 1, HashSlots: 1, ShardSize: 1 << 20}).Validate() == nil {
		t.Error("a mode wrapped into a valid one")
	}
	if CheckProtocol(Protocol) != nil || rhumb.KindOf(CheckProtocol(0)) != rhumb.Incompatible {
		t.Error("protocol versions are not checked")
	}
}

// Metadata with any number of ranges arrives complete, in parts that each fit into a message.
func TestMetadata(t *testing.T) {
	m := &Metadata{
		Revision: 9, Full: true, Cluster: rhumb.UUID{1}, Regions: []rhumb.Region{{ID: 1, Name: "x"}}, Nodes: []rhumb.Node{someNode()},
		Classes: []rhumb.Class{{ID: 1, Settings: rhumb.DefaultClassSettings()}}, Tables: []rhumb.Table{{ID: 1, Name: "t"}},
		Blocks:       []rhumb.Block{{Region: 1, Class: 1, First: 1024}},
		RemovedNodes: []rhumb.NodeID{4}, RemovedTables: []rhumb.TableID{5}, RemovedRanges: []rhumb.RangeID{{Region: 1, Slot: 6}},
	}
	for i := range 2*partRangesMax + 1 {
		m.Ranges = append(m.Ranges, someRange(1, rhumb.Slot(i)))
	}
	parts := EncodeMetadata(m)
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	for _, p := range parts {
		if proto.Size(p) > rhumb.MessageSizeMax {
			t.Fatal("a part is larger than a message")
		}
	}
	same(t, must[*Metadata](t)(DecodeMetadata(parts...)), m)
	for _, bad := range [][]*rhumbpb.Metadata{parts[:2], parts[1:2], {parts[2], parts[2]}, {{Cluster: []byte{1}}}} {
		if _, err := DecodeMetadata(bad...); rhumb.KindOf(err) != rhumb.InvalidArgument {
			t.Errorf("%d parts that do not belong together: %v", len(bad), err)
		}
	}
	m.Ranges = nil
	same(t, must[*Metadata](t)(DecodeMetadata(EncodeMetadata(m)...)), m)
}

// fuzzDecode passes bytes to the decoder of a message. The decoder must return an error, or a value
// that is equal after encoding and decoding it again.
func fuzzDecode[M proto.Message, V any](f *testing.F, fresh func() M, seed M, decode func(M) (V, error), encode func(V) M) {
	b, err := proto.Marshal(seed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := fresh()
		if proto.Unmarshal(b, m) != nil {
			return
		}
		v, err := decode(m)
		if err != nil {
			if k := rhumb.KindOf(err); k != rhumb.InvalidArgument && k != rhumb.TooLarge {
				t.Fatalf("refused with kind %s: %v", k, err)
			}
			return
		}
		again, err := decode(encode(v))
		if err != nil {
			t.Fatalf("%+v is refused after a round trip: %v", v, err)
		}
		if a, b := encode(v), encode(again); !proto.Equal(a, b) {
			t.Fatalf("%v became %v", a, b)
		}
	})
}

func FuzzDecodeWrite(f *testing.F) {
	b := someBatch()
	type write struct {
		b       rhumb.Batch
		resolve bool
	}
	fuzzDecode(f, func() *rhumbpb.Write { return new(rhumbpb.Write) }, EncodeWrite(&b, false), func(m *rhumbpb.Write) (write, error) {
		b, resolve, err := DecodeWrite(m)
		return write{b, resolve}, err
	}, func(w write) *rhumbpb.Write { return EncodeWrite(&w.b, w.resolve) })
}

func FuzzDecodeRead(f *testing.F) {
	fuzzDecode(f, func() *rhumbpb.Read { return new(rhumbpb.Read) }, EncodeRead(&Read{Table: 1, Names: [][]byte{{1}}}), DecodeRead,
		func(r Read) *rhumbpb.Read { return EncodeRead(&r) })
}

func FuzzDecodeLocate(f *testing.F) {
	fuzzDecode(f, func() *rhumbpb.Locate { return new(rhumbpb.Locate) }, EncodeLocate(&Locate{Names: [][]byte{{1}}, Tables: []rhumb.TableID{1}}), DecodeLocate,
		func(l Locate) *rhumbpb.Locate { return EncodeLocate(&l) })
}

func FuzzDecodeScan(f *testing.F) {
	fuzzDecode(f, func() *rhumbpb.ScanRequest { return new(rhumbpb.ScanRequest) }, EncodeScan(&Scan{Table: 1, After: []byte{1}}), DecodeScan,
		func(s Scan) *rhumbpb.ScanRequest { return EncodeScan(&s) })
}

func FuzzDecodeMetadata(f *testing.F) {
	m := &Metadata{Revision: 1, Nodes: []rhumb.Node{someNode()}, Ranges: []*rhumb.Range{someRange(1, 2)}, Tables: []rhumb.Table{{ID: 1}}}
	fuzzDecode(f, func() *rhumbpb.Metadata { return new(rhumbpb.Metadata) }, EncodeMetadata(m)[0],
		func(m *rhumbpb.Metadata) (*Metadata, error) { return DecodeMetadata(m) },
		func(m *Metadata) *rhumbpb.Metadata { return EncodeMetadata(m)[0] })
}

func FuzzDecodeAnswer(f *testing.F) {
	o := rhumb.Outcome{Applied: true, Existed: []bool{true}, Names: [][]byte{{1}}}
	b, err := proto.Marshal(&rhumbpb.Response{
		Id: 1, Error: EncodeError(rhumb.E("a", rhumb.NotPrimary, "b"), Hint{Newer: someRange(1, 2)}), Outcome: EncodeOutcome(&o),
		Items: EncodeItems([]rhumb.Item{{Value: []byte{0x11}}}, true, true), Receipt: EncodeReceipt(&rhumb.Receipt{Node: 1}),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(rhumbpb.Response)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if m.Error != nil {
			e, h := DecodeError(m.Error)
			if e2, _ := DecodeError(EncodeError(e, h)); e2.Kind != e.Kind || e2.Range != e.Range {
				t.Fatalf("%v became %v", e, e2)
			}
		}
		if o := DecodeOutcome(m.Outcome, 3); len(o.Existed) != 3 {
			t.Fatal("an outcome of another number of mutations")
		}
		r := DecodeReceipt(m.Receipt)
		if r.Age < 0 || r.Hops < 0 {
			t.Fatalf("%+v", r)
		}
		for _, it := range m.Items {
			DecodeItem(it, 1, rhumb.RangeID{}, nil)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	batch := rhumb.Batch{
		Range: rhumb.RangeID{Region: 1, Slot: 5}, ID: rhumb.RequestID{Client: rhumb.UUID{1}, Seq: 9},
		Mutations: []rhumb.Mutation{{Kind: rhumb.Put, Table: 1, Name: []byte("region01/key-000001"), Value: rhumb.EncodeOpaque(nil, make([]byte, 100))}},
	}
	b.ReportAllocs()
	for b.Loop() {
		frame := &rhumbpb.ClientFrame{Requests: []*rhumbpb.Request{{Id: 1, Write: EncodeWrite(&batch, false)}}}
		out, err := proto.Marshal(frame)
		if err != nil {
			b.Fatal(err)
		}
		var back rhumbpb.ClientFrame
		if err := proto.Unmarshal(out, &back); err != nil {
			b.Fatal(err)
		}
		if _, _, err := DecodeWrite(back.Requests[0].Write); err != nil {
			b.Fatal(err)
		}
	}
}
