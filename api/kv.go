package api

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
)

// Protocol is the newest protocol version that this binary supports, and ProtocolMin the oldest.
const (
	Protocol    = 1
	ProtocolMin = 1
)

// CheckProtocol rejects a peer whose newest version is older than ProtocolMin.
func CheckProtocol(version uint32) error {
	const op rhumb.Op = "api.CheckProtocol"
	if version < ProtocolMin {
		return rhumb.Ef(op, rhumb.Incompatible, "the other side has protocol version %d, this binary needs at least %d; upgrade the older one", version, ProtocolMin)
	}
	return nil
}

// EncodeWrite returns the message for a batch. With resolve, the receiving node determines the
// slot. Names and values are shared.
func EncodeWrite(b *rhumb.Batch, resolve bool) *rhumbpb.Write {
	w := &rhumbpb.Write{
		Region: uint32(b.Range.Region), Slot: uint32(b.Range.Slot), Resolve: resolve,
		ClientHigh: binary.BigEndian.Uint64(b.ID.Client[:8]), ClientLow: binary.BigEndian.Uint64(b.ID.Client[8:]),
		Seq: b.ID.Seq,
	}
	// One slab instead of an allocation per mutation.
	slab := make([]rhumbpb.Mutation, len(b.Mutations))
	w.Mutations = make([]*rhumbpb.Mutation, len(b.Mutations))
	for i := range b.Mutations {
		m, p := &b.Mutations[i], &slab[i]
		p.Kind, p.Table, p.Name, p.Value = rhumbpb.MutationKind(m.Kind), uint32(m.Table), m.Name, m.Value
		// Absent means Always, so the common case costs neither bytes nor an allocation.
		if m.Cond.Kind != rhumb.Always {
			p.Condition = encodeCondition(&m.Cond)
		}
		w.Mutations[i] = p
	}
	return w
}

// encodeCondition returns the message for a condition.
func encodeCondition(c *rhumb.Condition) *rhumbpb.Condition {
	return &rhumbpb.Condition{
		Kind: rhumbpb.ConditionKind(c.Kind), Hlc: uint64(c.Version.HLC), Node: uint32(c.Version.Node), Fields: c.Fields,
	}
}

// DecodeWrite returns and validates a batch. With resolve, the slot of its range is 0 and must
// still be determined; the region may be 0 too, which means the region of the receiving node.
func DecodeWrite(w *rhumbpb.Write) (b rhumb.Batch, resolve bool, err error) {
	const op rhumb.Op = "api.DecodeWrite"
	b.Range = rhumb.RangeID{Region: rhumb.RegionID(w.GetRegion()), Slot: rhumb.Slot(w.GetSlot())}
	// With resolve set, a slot in the message has no meaning.
	if w.GetResolve() {
		b.Range.Slot = 0
	}
	binary.BigEndian.PutUint64(b.ID.Client[:8], w.GetClientHigh())
	binary.BigEndian.PutUint64(b.ID.Client[8:], w.GetClientLow())
	b.ID.Seq = w.GetSeq()
	b.Mutations = make([]rhumb.Mutation, len(w.GetMutations()))
	for i, p := range w.GetMutations() {
		m := &b.Mutations[i]
		m.Kind, m.Table = rhumb.MutationKind(clampToByte(int64(p.GetKind()))), rhumb.TableID(p.GetTable())
		m.Name, m.Value = p.GetName(), p.GetValue()
		if c := p.GetCondition(); c != nil {
			m.Cond = rhumb.Condition{
				Kind:    rhumb.ConditionKind(clampToByte(int64(c.GetKind()))),
				Version: rhumb.Version{HLC: rhumb.Timestamp(c.GetHlc()), Node: rhumb.NodeID(c.GetNode())},
				Fields:  c.GetFields(),
			}
		}
	}
	// Enumerations that do not fit became 255, which Validate rejects like any unknown value.
	if err := b.Validate(); err != nil {
		return b, false, err
	}
	// Half an ID would deduplicate writes of different clients against each other.
	if b.ID.Client.IsZero() != (b.ID.Seq == 0) {
		return b, false, rhumb.E(op, rhumb.InvalidArgument, "a request id needs both a client and a number from 1, or neither")
	}
	return b, w.GetResolve(), nil
}

// Read asks for records of one table and one home region by name.
type Read struct {
	Table rhumb.TableID
	// Range is the home of all names. With Resolve only its region counts, and region 0 means the
	// region of the receiving node.
	Range   rhumb.RangeID
	Resolve bool
	Names   [][]byte
	// VersionsOnly leaves the values out of the answer.
	VersionsOnly bool
}

// EncodeRead returns the message for a read. Names are shared.
func EncodeRead(r *Read) *rhumbpb.Read {
	return &rhumbpb.Read{
		Table: uint32(r.Table), Region: uint32(r.Range.Region), Slot: uint32(r.Range.Slot), Resolve: r.Resolve, Names: r.Names,
		VersionsOnly: r.VersionsOnly,
	}
}

// DecodeRead returns and validates a read.
func DecodeRead(m *rhumbpb.Read) (Read, error) {
	const op rhumb.Op = "api.DecodeRead"
	r := Read{
		Table: rhumb.TableID(m.GetTable()), Resolve: m.GetResolve(), Names: m.GetNames(), VersionsOnly: m.GetVersionsOnly(),
		Range: rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
	}
	switch {
	case len(r.Names) == 0:
		return r, rhumb.E(op, rhumb.InvalidArgument, "the read names no record")
	// Bounded here, because every name costs a read before the answer is sent.
	case len(r.Names) > rhumb.BatchOpsMax:
		return r, rhumb.Ef(op, rhumb.TooLarge, "the read has %d names, at most %d are allowed", len(r.Names), rhumb.BatchOpsMax)
	// Another value may come from a newer client, which must not get a strong answer for it by
	// accident.
	case m.GetConsistency() != rhumbpb.Consistency_CONSISTENCY_STRONG:
		return r, rhumb.Ef(op, rhumb.InvalidArgument, "consistency %d is not offered; use strong", m.GetConsistency())
	}
	for i, n := range r.Names {
		if len(n) == 0 || len(n) > rhumb.NameSizeMax {
			return r, rhumb.Ef(op, rhumb.InvalidArgument, "name %d has %d bytes, want 1 to %d", i, len(n), rhumb.NameSizeMax)
		}
	}
	return r, nil
}

// Locate asks which named keys of one home region exist.
type Locate struct {
	// Region is the home region of all names; 0 means the region of the receiving node.
	Region rhumb.RegionID
	// Names holds at most rhumb.LocateNamesMax names, and Tables the table of each name.
	Names  [][]byte
	Tables []rhumb.TableID
}

// Existence is the knowledge of a node about a named key.
type Existence = rhumbpb.Existence

// The values of Existence. A node that is not primary of the key's range, or holds no lease,
// reports Undecided.
const (
	Undecided = rhumbpb.Existence_EXISTENCE_UNDECIDED
	Absent    = rhumbpb.Existence_EXISTENCE_ABSENT
	Present   = rhumbpb.Existence_EXISTENCE_PRESENT
)

// EncodeLocate returns the message for a locate. Names are shared.
func EncodeLocate(l *Locate) *rhumbpb.Locate {
	m := &rhumbpb.Locate{Region: uint32(l.Region), Names: l.Names, Tables: make([]uint32, len(l.Tables))}
	for i, t := range l.Tables {
		m.Tables[i] = uint32(t)
	}
	return m
}

// DecodeLocate returns and validates a locate.
func DecodeLocate(m *rhumbpb.Locate) (Locate, error) {
	const op rhumb.Op = "api.DecodeLocate"
	l := Locate{Region: rhumb.RegionID(m.GetRegion()), Names: m.GetNames(), Tables: make([]rhumb.TableID, len(m.GetTables()))}
	switch {
	case len(l.Names) == 0:
		return l, rhumb.E(op, rhumb.InvalidArgument, "the request names no record to locate")
	case len(l.Names) > rhumb.LocateNamesMax:
		return l, rhumb.Ef(op, rhumb.TooLarge, "the request has %d names to locate, at most %d are allowed", len(l.Names), rhumb.LocateNamesMax)
	// The two lists are parallel, and a missing table would shift all that follow.
	case len(l.Tables) != len(l.Names):
		return l, rhumb.Ef(op, rhumb.InvalidArgument, "the request has %d tables for %d names to locate", len(l.Tables), len(l.Names))
	}
	for i, n := range l.Names {
		if len(n) == 0 || len(n) > rhumb.NameSizeMax {
			return l, rhumb.Ef(op, rhumb.InvalidArgument, "name %d has %d bytes, want 1 to %d", i, len(n), rhumb.NameSizeMax)
		}
		l.Tables[i] = rhumb.TableID(m.GetTables()[i])
	}
	return l, nil
}

// Scan asks for records of one table in one range, in the order of their names.
type Scan struct {
	Table  rhumb.TableID
	Range  rhumb.RangeID
	Prefix []byte
	// After, if not nil, starts the scan after that name.
	After []byte
	// Limit bounds the number of records, BytesMax the bytes of a page.
	Limit, BytesMax int
	// Ranges, if not empty, are the ranges to read, all in the region of Range. AfterHome includes the name After in homes above it.
	Ranges    []rhumb.RangeID
	AfterHome rhumb.RangeID
}

// EncodeScan returns the message for a scan.
func EncodeScan(s *Scan) *rhumbpb.ScanRequest {
	m := &rhumbpb.ScanRequest{
		Table: uint32(s.Table), Region: uint32(s.Range.Region), Slot: uint32(s.Range.Slot), Prefix: s.Prefix,
		After: s.After, HasAfter: s.After != nil, Limit: uint32(s.Limit), BytesMax: uint32(s.BytesMax),
		AfterRegion: uint32(s.AfterHome.Region), AfterSlot: uint32(s.AfterHome.Slot),
	}
	for _, id := range s.Ranges {
		m.Slots = append(m.Slots, uint32(id.Slot))
	}
	return m
}

// DecodeScan returns and validates a scan. BytesMax of the result is between 1 and
// rhumb.ScanPageBytes. Limit is as in the message; 0 means no limit, but a page holds at most
// rhumb.ScanPageMax records.
func DecodeScan(m *rhumbpb.ScanRequest) (Scan, error) {
	const op rhumb.Op = "api.DecodeScan"
	s := Scan{
		Table: rhumb.TableID(m.GetTable()), Prefix: m.GetPrefix(),
		Range: rhumb.RangeID{Region: rhumb.RegionID(m.GetRegion()), Slot: rhumb.Slot(m.GetSlot())},
		Limit: int(m.GetLimit()), BytesMax: rhumb.ScanPageBytes,
		AfterHome: rhumb.RangeID{Region: rhumb.RegionID(m.GetAfterRegion()), Slot: rhumb.Slot(m.GetAfterSlot())},
	}
	if n := len(m.GetSlots()); n > rhumb.ScanRangesMax {
		return s, rhumb.Ef(op, rhumb.TooLarge, "the scan has %d ranges, at most %d are allowed", n, rhumb.ScanRangesMax)
	}
	for _, slot := range m.GetSlots() {
		s.Ranges = append(s.Ranges, rhumb.RangeID{Region: s.Range.Region, Slot: rhumb.Slot(slot)})
	}
	if b := int(m.GetBytesMax()); b > 0 {
		s.BytesMax = min(b, rhumb.ScanPageBytes)
	}
	// Not nil even if the name is empty: the scan then starts after the empty name.
	if m.GetHasAfter() {
		s.After = append([]byte{}, m.GetAfter()...)
	}
	if len(s.Prefix) > rhumb.NameSizeMax || len(s.After) > rhumb.NameSizeMax {
		return s, rhumb.Ef(op, rhumb.TooLarge, "prefix and start have %d and %d bytes, at most %d are allowed", len(s.Prefix), len(s.After), rhumb.NameSizeMax)
	}
	return s, nil
}

// EncodeItems returns the messages for records, allocated as one slab. names includes the names,
// which a scan needs and a read does not. slots includes the slots, if the request left them to the
// node.
func EncodeItems(items []rhumb.Item, names, slots bool) []*rhumbpb.Item {
	if len(items) == 0 {
		return nil
	}
	slab := make([]rhumbpb.Item, len(items))
	out := make([]*rhumbpb.Item, len(items))
	for i := range items {
		// Pointers into the slab: the messages are allocated together and freed together.
		it, p := &items[i], &slab[i]
		p.Hlc, p.Node, p.Value = uint64(it.Version.HLC), uint32(it.Version.Node), it.Value
		if names {
			p.Name = it.Key.Name
		}
		if slots {
			p.Slot = uint32(it.Key.Home.Slot)
		}
		out[i] = p
	}
	return out
}

// DecodeItem returns one record of a table and home. name is the requested name for a read; it is
// nil for a scan, whose messages contain the names. A slot in the message replaces the slot of
// home.
func DecodeItem(m *rhumbpb.Item, table rhumb.TableID, home rhumb.RangeID, name []byte) rhumb.Item {
	if name == nil {
		name = m.GetName()
	}
	if m.GetSlot() != 0 {
		home.Slot = rhumb.Slot(m.GetSlot())
	}
	return rhumb.Item{
		Key:     rhumb.Key{Table: table, Home: home, Name: name},
		Version: rhumb.Version{HLC: rhumb.Timestamp(m.GetHlc()), Node: rhumb.NodeID(m.GetNode())},
		Value:   m.GetValue(),
	}
}

// EncodeOutcome returns the message for an outcome.
func EncodeOutcome(o *rhumb.Outcome) *rhumbpb.Outcome {
	m := &rhumbpb.Outcome{
		Applied: o.Applied, Hlc: uint64(o.Version.HLC), Node: uint32(o.Version.Node), Seq: uint64(o.Seq), Names: o.Names,
	}
	// All false is sent as nothing: most writes do not need to know whether their keys existed.
	for _, e := range o.Existed {
		if e {
			m.Existed = o.Existed
			break
		}
	}
	return m
}

// DecodeOutcome returns the outcome of a batch of n mutations.
func DecodeOutcome(m *rhumbpb.Outcome, n int) rhumb.Outcome {
	o := rhumb.Outcome{
		Applied: m.GetApplied(), Seq: rhumb.Seq(m.GetSeq()), Existed: m.GetExisted(), Names: m.GetNames(),
		Version: rhumb.Version{HLC: rhumb.Timestamp(m.GetHlc()), Node: rhumb.NodeID(m.GetNode())},
	}
	// Callers index Existed by mutation, so its length must not depend on the sender.
	if len(o.Existed) != n {
		o.Existed = append(o.Existed, make([]bool, max(0, n-len(o.Existed)))...)[:n]
	}
	return o
}

// EncodeReceipt returns the message for a receipt.
func EncodeReceipt(r *rhumb.Receipt) *rhumbpb.Receipt {
	var unasked []uint32
	for _, id := range r.Unasked {
		unasked = append(unasked, uint32(id))
	}
	return &rhumbpb.Receipt{
		Region: uint32(r.Region), Node: uint32(r.Node), Home: uint32(r.Range.Region), Slot: uint32(r.Range.Slot),
		Epoch: uint64(r.Epoch), AgeUs: uint64(max(0, r.Age.Microseconds())), Hops: uint32(max(0, r.Hops)),
		Searched: uint32(max(0, r.Searched)), Timestamp: uint64(r.Timestamp), Unasked: unasked,
	}
}

// DecodeReceipt returns a receipt; for nil, the zero receipt.
func DecodeReceipt(m *rhumbpb.Receipt) rhumb.Receipt {
	var unasked []rhumb.RegionID
	for _, id := range m.GetUnasked() {
		unasked = append(unasked, rhumb.RegionID(id))
	}
	return rhumb.Receipt{
		Region: rhumb.RegionID(m.GetRegion()), Node: rhumb.NodeID(m.GetNode()),
		Range: rhumb.RangeID{Region: rhumb.RegionID(m.GetHome()), Slot: rhumb.Slot(m.GetSlot())},
		Epoch: rhumb.Epoch(m.GetEpoch()), Age: DecodeMicros(m.GetAgeUs()), Hops: int(m.GetHops()),
		Searched: int(m.GetSearched()), Timestamp: rhumb.Timestamp(m.GetTimestamp()), Unasked: unasked,
	}
}

// DecodeMicros returns a number of microseconds as a duration, or the longest duration if it is too
// large.
func DecodeMicros(us uint64) time.Duration {
	if us > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
