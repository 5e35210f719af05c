package rhumb

import (
	"strings"
	"testing"
)

func TestMutationValidate(t *testing.T) {
	record := EncodeRecord(nil, Record{{"a", Int64Field(1)}})
	null := EncodeRecord(nil, Record{{"a", FieldValue{}}})
	opaque := EncodeOpaque(nil, []byte("x"))
	name := []byte("n")
	for _, tc := range []struct {
		what string
		m    Mutation
		want Kind
	}{
		{"put of a record", Mutation{Kind: Put, Name: name, Value: record}, Other},
		{"put of bytes", Mutation{Kind: Put, Name: name, Value: opaque}, Other},
		{"delete", Mutation{Kind: Delete, Name: name}, Other},
		{"patch", Mutation{Kind: Patch, Name: name, Value: record}, Other},
		{"patch that removes", Mutation{Kind: Patch, Name: name, Value: null}, Other},
		{"insert", Mutation{Kind: Insert, Value: record}, Other},
		{"longest name", Mutation{Kind: Put, Name: make([]byte, NameSizeMax), Value: opaque}, Other},
		{"largest value", Mutation{Kind: Put, Name: name, Value: EncodeOpaque(nil, make([]byte, ValueSizeMax-1))}, Other},
		{"no kind", Mutation{Name: name, Value: opaque}, InvalidArgument},
		{"unknown kind", Mutation{Kind: 5, Name: name, Value: opaque}, InvalidArgument},
		{"insert with a name", Mutation{Kind: Insert, Name: name, Value: record}, InvalidArgument},
		{"insert with a condition", Mutation{Kind: Insert, Value: record, Cond: Condition{Kind: IfAbsent}}, InvalidArgument},
		{"no name", Mutation{Kind: Put, Value: opaque}, InvalidArgument},
		{"name too long", Mutation{Kind: Put, Name: make([]byte, NameSizeMax+1), Value: opaque}, TooLarge},
		{"value too large", Mutation{Kind: Put, Name: name, Value: make([]byte, ValueSizeMax+1)}, TooLarge},
		{"delete with a value", Mutation{Kind: Delete, Name: name, Value: opaque}, InvalidArgument},
		{"patch of bytes", Mutation{Kind: Patch, Name: name, Value: opaque}, InvalidArgument},
		{"put of nothing", Mutation{Kind: Put, Name: name}, InvalidArgument},
		{"put of a tombstone", Mutation{Kind: Put, Name: name, Value: Tombstone}, InvalidArgument},
		{"put of a broken record", Mutation{Kind: Put, Name: name, Value: record[:4]}, InvalidArgument},
		{"put of a null", Mutation{Kind: Put, Name: name, Value: null}, InvalidArgument},
		{"insert of a null", Mutation{Kind: Insert, Value: null}, InvalidArgument},
		{"unknown condition", Mutation{Kind: Put, Name: name, Value: opaque, Cond: Condition{Kind: 5}}, InvalidArgument},
		{"if-newer", Mutation{Kind: Patch, Name: name, Value: record, Cond: Condition{Kind: IfNewer, Fields: []string{"a"}}}, Other},
		{"if-newer without fields", Mutation{Kind: Patch, Name: name, Value: record, Cond: Condition{Kind: IfNewer}}, InvalidArgument},
		{"if-newer on a put", Mutation{Kind: Put, Name: name, Value: record, Cond: Condition{Kind: IfNewer, Fields: []string{"a"}}}, InvalidArgument},
		{
			"if-newer with too many fields",
			Mutation{Kind: Patch, Name: name, Value: record, Cond: Condition{Kind: IfNewer, Fields: make([]string, ConditionFieldsMax+1)}},
			InvalidArgument,
		},
	} {
		if err := tc.m.Validate(); KindOf(err) != tc.want || (err == nil) != (tc.want == Other) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.want)
		}
	}
}

func TestBatchValidate(t *testing.T) {
	put := func(table TableID, name string, size int) Mutation {
		return Mutation{Kind: Put, Table: table, Name: []byte(name), Value: EncodeOpaque(nil, make([]byte, size))}
	}
	insert := Mutation{Kind: Insert, Value: EncodeOpaque(nil, nil)}
	many := make([]Mutation, BatchOpsMax+1)
	for i := range many {
		many[i] = insert
	}
	for _, tc := range []struct {
		what      string
		mutations []Mutation
		want      Kind
	}{
		{"empty", nil, InvalidArgument},
		{"one", []Mutation{put(1, "a", 1)}, Other},
		{"one name in two tables", []Mutation{put(1, "a", 1), put(2, "a", 1)}, Other},
		{"one key twice", []Mutation{put(1, "a", 1), put(1, "b", 1), put(1, "a", 1)}, InvalidArgument},
		{"two inserts", []Mutation{insert, insert}, Other},
		{"as many as allowed", many[1:], Other},
		{"too many", many, TooLarge},
		{"a bad one", []Mutation{put(1, "a", 1), put(1, "", 1)}, InvalidArgument},
		{"too large one", []Mutation{put(1, "a", ValueSizeMax)}, TooLarge},
		{"too large together", []Mutation{put(1, "a", ValueSizeMax-1), put(1, "b", ValueSizeMax-1), put(1, "c", 1)}, TooLarge},
	} {
		b := Batch{Mutations: tc.mutations}
		if err := b.Validate(); KindOf(err) != tc.want || (err == nil) != (tc.want == Other) {
			t.Errorf("%s: %v, want %v", tc.what, err, tc.want)
		}
	}
}

func TestNeedsBase(t *testing.T) {
	for _, tc := range []struct {
		m    Mutation
		want bool
	}{
		{Mutation{Kind: Put}, false},
		{Mutation{Kind: Delete}, false},
		{Mutation{Kind: Insert}, false},
		{Mutation{Kind: Patch}, true},
		{Mutation{Kind: Put, Cond: Condition{Kind: IfAbsent}}, true},
		{Mutation{Kind: Delete, Cond: Condition{Kind: IfPresent}}, true},
	} {
		if got := tc.m.NeedsBase(); got != tc.want {
			t.Errorf("%v under %v: %v", tc.m.Kind, tc.m.Cond.Kind, got)
		}
	}
}

// Names of enumerations stand in scripts and on screens.
func TestEnumNames(t *testing.T) {
	for _, tc := range []struct {
		got  interface{ String() string }
		want string
	}{
		{Put, "put"},
		{Delete, "delete"},
		{Patch, "patch"},
		{Insert, "insert"},
		{MutationKind(9), "mutation_9"},
		{Always, "always"},
		{IfAbsent, "if-absent"},
		{IfPresent, "if-present"},
		{IfVersion, "if-version"},
		{IfNewer, "if-newer"},
		{ConditionKind(9), "condition_9"},
		{NodeLive, "live"},
		{NodeFenced, "fenced"},
		{NodeDraining, "draining"},
		{NodeState(9), "state_9"},
		{Strong, "strong"},
		{Available, "available"},
		{Mode(9), "mode_9"},
		{SurviveZone, "zone"},
		{SurviveRegion, "region"},
		{Survival(9), "survival_9"},
		{FieldBox, "box"},
		{FieldKind(99), "field_kind_99"},
		{RegionID(4), "4"},
		{NodeID(4), "n4"},
		{Slot(4), "4"},
		{TableID(4), "t4"},
		{ClassID(4), "c4"},
	} {
		if got := tc.got.String(); got != tc.want {
			t.Errorf("%T: %q, want %q", tc.got, got, tc.want)
		}
	}
}

func TestClassSettings(t *testing.T) {
	if err := DefaultClassSettings().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		change func(*ClassSettings)
		want   string
	}{
		{func(c *ClassSettings) { c.Mode = Available }, "mode available"},
		{func(c *ClassSettings) { c.Survival = 9 }, "survival goal survival_9"},
		{func(c *ClassSettings) { c.Survival, c.MinInSync = SurviveRegion, 1 }, "cannot survive the loss of a region"},
		{func(c *ClassSettings) { c.Survival, c.Regions = SurviveRegion, "a,b" }, "needs 3 regions"},
		{func(c *ClassSettings) { c.Regions = "b,a" }, "ascending order"},
		{func(c *ClassSettings) { c.Replicas = 0 }, "replicas is 0"},
		{func(c *ClassSettings) { c.Replicas = ReplicasMax + 1 }, "replicas is 8"},
		{func(c *ClassSettings) { c.MinInSync = 0 }, "min_in_sync is 0"},
		{func(c *ClassSettings) { c.MinInSync = 4 }, "min_in_sync is 4"},
		{func(c *ClassSettings) { c.HashSlots = BlockSlots + 1 }, "hash_slots is 1025"},
		{func(c *ClassSettings) { c.ShardSize = 1 }, "shard_size is 1 bytes"},
		{func(c *ClassSettings) { c.Replicas, c.HashSlots = 0, 0 }, "hash_slots is 0"}, // all faults are listed
	} {
		c := DefaultClassSettings()
		tc.change(&c)
		if err := c.Validate(); KindOf(err) != InvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want one with %q", err, tc.want)
		}
	}
}

func TestValidateTableName(t *testing.T) {
	for name, ok := range map[string]bool{
		"flights": true, "A-z_0.9": true, strings.Repeat("t", TableNameSizeMax): true,
		"": false, strings.Repeat("t", TableNameSizeMax+1): false, "a b": false, "a/b": false, "é": false, "a\n": false,
	} {
		if err := ValidateTableName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestRangeMembers(t *testing.T) {
	r := &Range{ID: RangeID{1, 2}, InSync: []NodeID{1, 3}, Replicas: []NodeID{1, 2, 3}}
	if !r.IsInSync(3) || r.IsInSync(2) || !r.IsReplica(2) || r.IsReplica(4) {
		t.Error("membership is wrong")
	}
	c := r.Clone()
	c.InSync[0], c.Replicas[0] = 9, 9
	if r.InSync[0] != 1 || r.Replicas[0] != 1 {
		t.Error("a clone shares its slices")
	}
	b := Block{First: 2 * BlockSlots}
	if b.Contains(2*BlockSlots-1) || !b.Contains(2*BlockSlots) || !b.Contains(3*BlockSlots-1) || b.Contains(3*BlockSlots) {
		t.Error("a block has the wrong slots")
	}
}
