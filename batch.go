package rhumb

import (
	"fmt"
	"time"
)

// MutationKind is the operation that a mutation performs. Its numbers cross the wire: append only.
type MutationKind uint8

// The kinds of mutations.
const (
	// Put writes a whole value.
	Put MutationKind = 1
	// Delete removes the key. Deleting a key that does not exist succeeds; Outcome.Existed is then
	// false.
	Delete MutationKind = 2
	// Patch changes only the fields in its value. It creates the record if the key does not exist.
	Patch MutationKind = 3
	// Insert writes a value under a name that the primary assigns.
	Insert MutationKind = 4
)

// String returns the stable name of the kind.
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

// ConditionKind is the kind of precondition of a mutation. Its numbers cross the wire: append only.
type ConditionKind uint8

// The kinds of conditions. A condition that does not hold fails its whole batch with
// ConditionFailed. IfNewer is the exception: it turns the whole batch into a no-op that reports
// Applied false, because a feed that is replayed must be able to skip records it already wrote.
const (
	// Always imposes no condition.
	Always ConditionKind = 0
	// IfAbsent requires that the key does not exist.
	IfAbsent ConditionKind = 1
	// IfPresent requires that the key exists.
	IfPresent ConditionKind = 2
	// IfVersion requires that the newest version of the key is Condition.Version.
	IfVersion ConditionKind = 3
	// IfNewer requires that the key does not exist, or that its fields Condition.Fields, compared
	// in order, are smaller than the same fields of the patch. Replaying a feed therefore applies
	// each record once.
	IfNewer ConditionKind = 4
)

// String returns the stable name of the kind.
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
	Version Version  // for IfVersion
	Fields  []string // for IfNewer, at most ConditionFieldsMax
}

// ConditionFieldsMax is the largest number of fields that IfNewer compares.
const ConditionFieldsMax = 8

// Mutation is one change of one key.
type Mutation struct {
	Kind  MutationKind
	Table TableID
	// Name is the key's name inside the table. It is empty for Insert.
	Name []byte
	// Value is in stored form (EncodeRecord, EncodeOpaque). Patch takes a record; Delete takes
	// nothing.
	Value []byte
	Cond  Condition
}

// NeedsBase reports whether applying the mutation requires the current value of the key. Mutations
// that do not need it are written without a read.
func (m *Mutation) NeedsBase() bool {
	return m.Kind == Patch || m.Cond.Kind != Always
}

// Size returns the number of bytes that the mutation counts against BatchSizeMax.
func (m *Mutation) Size() int { return len(m.Name) + len(m.Value) }

// Validate reports whether the mutation is acceptable regardless of the state of the range. It
// checks whatever the primary need not read the store for, so clients run it before they send.
func (m *Mutation) Validate() error {
	const op Op = "rhumb.Mutation"
	switch {
	case m.Kind < Put || m.Kind > Insert:
		return Ef(op, InvalidArgument, "mutation kind %d is unknown; use put, delete, patch or insert", m.Kind)
	case m.Kind == Insert && len(m.Name) != 0:
		return Ef(op, InvalidArgument, "name %s is not allowed, because the server names inserted records; use put to choose the name", NameString(m.Name))
	case m.Kind == Insert && m.Cond.Kind != Always:
		return Ef(op, InvalidArgument, "condition %s is not allowed, because the key of an insert is always new", m.Cond.Kind)
	case m.Kind != Insert && len(m.Name) == 0:
		return Ef(op, InvalidArgument, "name is empty; names have 1 to %d bytes", NameSizeMax)
	case len(m.Name) > NameSizeMax:
		return Ef(op, TooLarge, "name has %d bytes; names have 1 to %d bytes", len(m.Name), NameSizeMax)
	case len(m.Value) > ValueSizeMax:
		return Ef(op, TooLarge, "value has %d bytes, more than the %d allowed; split the record", len(m.Value), ValueSizeMax)
	case m.Kind == Delete && len(m.Value) != 0:
		return E(op, InvalidArgument, "a delete takes no value; use put to write one")
	case m.Kind == Patch && !IsRecord(m.Value):
		return E(op, InvalidArgument, "value is opaque bytes, but a patch needs fields; use put to replace the whole value")
		// A stored value always begins with a header byte, so an empty one was never encoded.
	case m.Kind != Delete && len(m.Value) == 0:
		return E(op, InvalidArgument, "value is not encoded; encode it with EncodeRecord or EncodeOpaque")
	case IsTombstone(m.Value):
		return E(op, InvalidArgument, "value is the mark of a deleted key; use delete")
	}
	if IsRecord(m.Value) {
		// Decoding the whole record here keeps malformed bytes out of the log: every replica and
		// every snapshot reader may then assume that stored records are well formed.
		r, err := DecodeRecord(m.Value)
		if err != nil {
			return Ef(op, InvalidArgument, "%v", err)
		}
		for _, f := range r {
			// In a patch null removes a field. Stored records have no null, so that a field that was
			// never set and one that was removed read the same.
			if f.Value.Kind() == FieldNull && m.Kind != Patch {
				return Ef(op, InvalidArgument, "field %q is null; only a patch takes null, to remove a field", f.Name)
			}
		}
	}
	return m.Cond.validateFor(m.Kind)
}

// validateFor checks the condition of a mutation of the given kind.
func (c *Condition) validateFor(kind MutationKind) error {
	const op Op = "rhumb.Condition"
	switch {
	case c.Kind > IfNewer:
		return Ef(op, InvalidArgument, "condition kind %d is unknown; use if-absent, if-present, if-version or if-newer", c.Kind)
	// A put or a delete has no fields to compare with the fields of the stored record.
	case c.Kind == IfNewer && (kind != Patch || len(c.Fields) == 0 || len(c.Fields) > ConditionFieldsMax):
		return Ef(op, InvalidArgument, "if-newer with %d fields on a %s; if-newer needs a patch and 1 to %d fields", len(c.Fields), kind, ConditionFieldsMax)
	}
	return nil
}

// Batch is a set of mutations of one range that is applied completely or not at all, as one log
// entry or part of one. A batch may mutate a key only once: an order among its mutations would have
// no meaning for the client, since all of them get the same version.
type Batch struct {
	Range RangeID
	// ID makes the batch safe to retry. A zero ID disables deduplication.
	ID        RequestID
	Mutations []Mutation
}

// Validate reports whether the batch is acceptable regardless of the state of the range.
func (b *Batch) Validate() error {
	const op Op = "rhumb.Batch"
	if len(b.Mutations) == 0 {
		return Ef(op, InvalidArgument, "batch is empty; a batch has 1 to %d mutations", BatchOpsMax)
	}
	if len(b.Mutations) > BatchOpsMax {
		return Ef(op, TooLarge, "batch has %d mutations, more than the %d allowed; split it", len(b.Mutations), BatchOpsMax)
	}
	type name struct {
		table TableID
		name  string
	}
	// Most batches hold one mutation: those skip the map, its allocation and the copies of names.
	var seen map[name]bool
	if len(b.Mutations) > 1 {
		seen = make(map[name]bool, len(b.Mutations))
	}
	size := 0
	for i := range b.Mutations {
		m := &b.Mutations[i]
		if err := m.Validate(); err != nil {
			return Ef(op, KindOf(err), "%s: %v", b.Describe(i), err)
		}
		size += m.Size()
		// The primary names inserts, and never reuses a name, so inserts cannot collide.
		if seen == nil || m.Kind == Insert {
			continue
		}
		k := name{m.Table, string(m.Name)}
		if seen[k] {
			return Ef(op, InvalidArgument, "%s: key %s of table %s appears twice in the batch; send the mutations in two batches", b.Describe(i), NameString(m.Name), m.Table)
		}
		seen[k] = true
	}
	if size > BatchSizeMax {
		return Ef(op, TooLarge, "names and values of the batch have %d bytes, more than the %d allowed; split it", size, BatchSizeMax)
	}
	return nil
}

// Describe names mutation i for an error: "put", or "put, mutation 2 of 3" in a larger batch.
func (b *Batch) Describe(i int) string {
	if len(b.Mutations) == 1 {
		return b.Mutations[i].Kind.String()
	}
	return fmt.Sprintf("%s, mutation %d of %d", b.Mutations[i].Kind, i+1, len(b.Mutations))
}

// Outcome is the result of an applied batch.
type Outcome struct {
	// Applied is false if an IfNewer condition turned the batch into a no-op.
	Applied bool
	// Version is the version that every key of the batch now has. It is zero if nothing was
	// applied.
	Version Version
	// Seq is the position of the batch's entry in the log of the range. It is 0 if nothing was
	// applied.
	Seq Seq
	// Existed reports for each mutation whether its key existed before. It is false for mutations
	// that did not read the key (see NeedsBase).
	Existed []bool
	// Names holds the names assigned to the inserts of the batch, in order.
	Names [][]byte
}

// Receipt describes how an answer came about: who served it, how old it may be, how far it
// travelled.
type Receipt struct {
	// Region and Node identify the node that served the request.
	Region RegionID
	Node   NodeID
	// Range and Epoch identify the range, and the epoch under which its primary served the request.
	Range RangeID
	Epoch Epoch
	// Age is an upper bound of the staleness of the answer. It is 0 for a strong read.
	Age time.Duration
	// Hops counts the nodes that handled the request, including the one that served it: 1 means direct.
	Hops int
	// Searched counts the regions other than the caller's that were asked for the record's home.
	Searched int
	// Unasked lists the dead regions that may hold the record and were not asked. A record that was
	// created may exist in one of them as well. If the record was read together with others and not
	// found, Unasked also lists the regions that did not answer.
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

// ScanQuery selects records of one table in one range, in ascending order of their names.
type ScanQuery struct {
	Range RangeID
	Table TableID
	// Prefix restricts the scan to names that begin with it; empty selects all names.
	Prefix []byte
	// After, if not nil, starts the scan at the first name greater than After.
	After []byte
	// Limit bounds the number of records and BytesMax the bytes of names and values. Both must be
	// at least 1. The first record is returned even if it exceeds BytesMax, so a scan always
	// advances.
	Limit, BytesMax int
	// Ranges, if not empty, are the ranges to read in place of Range, at most ScanRangesMax. Those that the node does not serve are left
	// out, and the page says which.
	Ranges []RangeID
	// AfterHome includes the name After in homes above it, for scans of Ranges.
	AfterHome RangeID
}

// ScanPage is the answer to a ScanQuery.
type ScanPage struct {
	Items []Item
	// More reports that a bound ended the page before the last record.
	More bool
	// Last is the last slot that the page covers.
	Last Slot
	// Ends has an element for each of ScanQuery.Ranges: the slot after the last one of the range that the page covers, or 0 if it does
	// not cover the range.
	Ends []Slot
}
