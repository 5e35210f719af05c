package rhumb

import (
	"fmt"
	"time"
)

// MutationKind is what a mutation does. Kinds cross the wire: append only.
type MutationKind uint8

// The kinds of mutations.
const (
	// Put writes a whole value.
	Put MutationKind = 1
	// Delete removes the key. Deleting a key that does not exist is no error; the result says Existed false.
	Delete MutationKind = 2
	// Patch changes only the fields that are present; it creates a record where there is none.
	Patch MutationKind = 3
	// Insert writes a value under a server-assigned name.
	Insert MutationKind = 4
)

// String gives the stable name of the kind.
func (k MutationKind) String() string {
	switch k {
	case Put:
		return "put"
	case Delete:
		return "delete"
	case Patch:
		return "patch"
	case Insert:
		return "insert"
	}
	return fmt.Sprintf("mutation_%d", uint8(k))
}

// ConditionKind is what must hold for a mutation. Kinds cross the wire: append only.
type ConditionKind uint8

// The kinds of conditions. One that does not hold fails its whole batch with ConditionFailed, except IfNewer, which
// turns its whole batch into a no-op that reports Applied false.
const (
	// Always is no condition.
	Always ConditionKind = 0
	// IfAbsent: the key does not exist.
	IfAbsent ConditionKind = 1
	// IfPresent: the key exists.
	IfPresent ConditionKind = 2
	// IfVersion: the key's newest version is Condition.Version.
	IfVersion ConditionKind = 3
	// IfNewer: the key does not exist, or its fields Condition.Fields, compared in turn, are smaller than those of the
	// patch. A feed that is played again is thus applied exactly once.
	IfNewer ConditionKind = 4
)

// String gives the stable name of the kind.
func (k ConditionKind) String() string {
	switch k {
	case Always:
		return "always"
	case IfAbsent:
		return "if-absent"
	case IfPresent:
		return "if-present"
	case IfVersion:
		return "if-version"
	case IfNewer:
		return "if-newer"
	}
	return fmt.Sprintf("condition_%d", uint8(k))
}

// Condition guards a mutation; the zero value always holds.
type Condition struct {
	Kind    ConditionKind
	Version Version  // of IfVersion
	Fields  []string // of IfNewer, at most ConditionFieldsMax
}

// ConditionFieldsMax bounds the fields that IfNewer compares.
const ConditionFieldsMax = 8

// Mutation is one change of one key.
type Mutation struct {
	Kind  MutationKind
	Table TableID
	// Name is empty for Insert.
	Name []byte
	// Value is in stored form (EncodeRecord, EncodeOpaque); a record for Patch; empty for Delete.
	Value []byte
	Cond  Condition
}

// NeedsBase reports whether the mutation cannot be decided without the key's present value.
func (m *Mutation) NeedsBase() bool {
	return m.Kind == Patch || m.Cond.Kind != Always
}

// Size is what the mutation counts against BatchSizeMax, in bytes.
func (m *Mutation) Size() int { return len(m.Name) + len(m.Value) }

// Validate refuses a mutation that no state could accept.
func (m *Mutation) Validate() error {
	const op Op = "rhumb.Mutation"
	switch {
	case m.Kind < Put || m.Kind > Insert:
		return Ef(op, InvalidArgument, "mutation kind %d is not known", m.Kind)
	case m.Kind == Insert && len(m.Name) != 0:
		return E(op, InvalidArgument, "an insert is named by the server; use put to name the key")
	case m.Kind == Insert && m.Cond.Kind != Always:
		return E(op, InvalidArgument, "an insert takes no condition: its key is always new")
	case m.Kind != Insert && len(m.Name) == 0:
		return E(op, InvalidArgument, "the name is empty")
	case len(m.Name) > NameSizeMax:
		return Ef(op, TooLarge, "the name has %d bytes, at most %d are allowed", len(m.Name), NameSizeMax)
	case len(m.Value) > ValueSizeMax:
		return Ef(op, TooLarge, "the value has %d bytes, at most %d are allowed", len(m.Value), ValueSizeMax)
	case m.Kind == Delete && len(m.Value) != 0:
		return E(op, InvalidArgument, "a delete takes no value")
	case m.Kind == Patch && !IsRecord(m.Value):
		return E(op, InvalidArgument, "a patch takes fields, not opaque bytes")
	case m.Kind != Delete && len(m.Value) == 0:
		return E(op, InvalidArgument, "the value has no header: it is not in stored form")
	case IsTombstone(m.Value):
		return E(op, InvalidArgument, "a tombstone is no value; use delete")
	}
	if IsRecord(m.Value) {
		r, err := DecodeRecord(m.Value)
		if err != nil {
			return Ef(op, InvalidArgument, "%v", err)
		}
		for _, f := range r {
			if f.Value.Kind() == FieldNull && m.Kind != Patch {
				return Ef(op, InvalidArgument, "field %q is null; only a patch takes null, to remove the field", f.Name)
			}
		}
	}
	return m.Cond.validate(m.Kind)
}

func (c *Condition) validate(kind MutationKind) error {
	const op Op = "rhumb.Condition"
	switch {
	case c.Kind > IfNewer:
		return Ef(op, InvalidArgument, "condition kind %d is not known", c.Kind)
	case c.Kind == IfNewer && (kind != Patch || len(c.Fields) == 0 || len(c.Fields) > ConditionFieldsMax):
		return Ef(op, InvalidArgument, "if-newer takes a patch and 1 to %d fields", ConditionFieldsMax)
	}
	return nil
}

// Batch is a set of mutations of one range that is applied whole or not at all, as one log entry or part of one. Two
// mutations of one key are refused: which of them should win is for the caller to say.
type Batch struct {
	Range RangeID
	// ID makes the batch safe to repeat; zero asks for no deduplication.
	ID        RequestID
	Mutations []Mutation
}

// Validate refuses a batch that no state could accept.
func (b *Batch) Validate() error {
	const op Op = "rhumb.Batch"
	if len(b.Mutations) == 0 {
		return E(op, InvalidArgument, "the batch is empty")
	}
	if len(b.Mutations) > BatchOpsMax {
		return Ef(op, TooLarge, "the batch has %d mutations, at most %d are allowed", len(b.Mutations), BatchOpsMax)
	}
	type name struct {
		table TableID
		name  string
	}
	var seen map[name]bool
	if len(b.Mutations) > 1 {
		seen = make(map[name]bool, len(b.Mutations))
	}
	size := 0
	for i := range b.Mutations {
		m := &b.Mutations[i]
		if err := m.Validate(); err != nil {
			return Ef(op, KindOf(err), "mutation %d: %v", i, err)
		}
		size += m.Size()
		if seen == nil || m.Kind == Insert {
			continue
		}
		k := name{m.Table, string(m.Name)}
		if seen[k] {
			return Ef(op, InvalidArgument, "mutation %d: key %s of table %s stands twice in the batch", i, NameString(m.Name), m.Table)
		}
		seen[k] = true
	}
	if size > BatchSizeMax {
		return Ef(op, TooLarge, "the batch has %d bytes, at most %d are allowed", size, BatchSizeMax)
	}
	return nil
}

// Outcome is what became of an applied batch.
type Outcome struct {
	// Applied is false when an IfNewer condition made the batch a no-op.
	Applied bool
	// Version is the version that all keys of the batch now have; zero when nothing was applied.
	Version Version
	// Seq is the position of the batch's entry in the range's log; 0 when nothing was applied.
	Seq Seq
	// Existed says for each mutation whether its key existed before. Only mutations that looked (NeedsBase) know it; it
	// is false for the others.
	Existed []bool
	// Names are the server-assigned names of the batch's inserts, in order.
	Names [][]byte
}

// Receipt is what an answer says about itself.
type Receipt struct {
	// Region and Node say who served it.
	Region RegionID
	Node   NodeID
	// Range and Epoch say under which authority.
	Range RangeID
	Epoch Epoch
	// Age is how old the answer may be: 0 for a strong read.
	Age time.Duration
	// Hops counts the nodes that the request passed, the serving one included: 1 is a direct answer.
	Hops int
	// Searched counts the regions asked beyond the caller's to find the record's home.
	Searched int
	// Unasked are the regions that may hold the record and were not asked, because they are dead: a record that was created
	// may exist there, too.
	Unasked []RegionID
	// Timestamp is the cluster time of the answer.
	Timestamp Timestamp
}

// Item is a record as a read returns it.
type Item struct {
	Key     Key
	Version Version
	// Value is in stored form.
	Value []byte
}

// ScanQuery asks for records of one table in one range, in the order of their names.
type ScanQuery struct {
	Range RangeID
	Table TableID
	// Prefix is what the names begin with; empty is all.
	Prefix []byte
	// After, when not nil, begins behind that name.
	After []byte
	// Limit bounds the records and BytesMax the bytes of names and values; both are at least 1. One record always fits.
	Limit, BytesMax int
}

// ScanPage is an answer to a ScanQuery.
type ScanPage struct {
	Items []Item
	// More says that a bound cut the answer short.
	More bool
}
