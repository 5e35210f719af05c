package rhumb

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// RegionID identifies a region. Region 0 is reserved: keys in it are local to one store and never
// replicated.
type RegionID uint32

// LocalRegion is the reserved region of store-local keys.
const LocalRegion RegionID = 0

// NodeID identifies a node; ids are never reused. 0 means "none".
type NodeID uint32

// NoNode is the NodeID of no node.
const NoNode NodeID = 0

// Slot is the second four bytes of a home. It subdivides a region, as the "node" field of the seed
// paper does (TippyDB, section 3.1). Slots are allotted in blocks of BlockSlots.
type Slot uint32

// TableID identifies a table; ids are never reused.
type TableID uint32

// ClassID identifies a class, which is a set of tables with equal replication settings.
type ClassID uint32

// Epoch is the fencing number of a range. Only the metadata group allocates epochs; 0 precedes the
// first.
type Epoch uint64

// Seq is a position in the log of a range. The first entry has Seq 1; 0 means "before the log".
type Seq uint64

// BootSeq counts the lives of a node. The metadata group counts them: each registration with a new
// nonce begins a life.
type BootSeq uint64

func (id RegionID) String() string { return strconv.FormatUint(uint64(id), 10) }
func (id NodeID) String() string   { return "n" + strconv.FormatUint(uint64(id), 10) }
func (s Slot) String() string      { return strconv.FormatUint(uint64(s), 10) }
func (id TableID) String() string  { return "t" + strconv.FormatUint(uint64(id), 10) }
func (id ClassID) String() string  { return "c" + strconv.FormatUint(uint64(id), 10) }

// LogValue makes every log format show the id as String does.
func (id NodeID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// NodeList is a list of nodes as messages for people name it. The verb %v of a slice would print brackets, as Go does.
type NodeList []NodeID

// String returns the nodes with commas between them, such as "n1, n4", or "no node" for an empty list.
func (l NodeList) String() string {
	if len(l) == 0 {
		return "no node"
	}
	names := make([]string, len(l))
	for i, id := range l {
		names[i] = id.String()
	}
	return strings.Join(names, ", ")
}

// RangeID identifies a range. It is also the home of every key in the range: the region and slot in
// which the key was first written. Its eight big-endian bytes begin every stored key.
type RangeID struct {
	Region RegionID
	Slot   Slot
}

// String returns "region/slot", for example "1/42".
func (r RangeID) String() string { return r.Region.String() + "/" + r.Slot.String() }

// LogValue makes every log format show the range as String does.
func (r RangeID) LogValue() slog.Value { return slog.StringValue(r.String()) }

// Compare orders ranges as their keys are ordered: by region, then by slot.
func (r RangeID) Compare(o RangeID) int {
	switch {
	case r.Region < o.Region || r.Region == o.Region && r.Slot < o.Slot:
		return -1
	case r == o:
		return 0
	}
	return 1
}

// IsZero reports whether r names no range.
func (r RangeID) IsZero() bool { return r == RangeID{} }

// ParseRangeID parses the format of RangeID.String.
func ParseRangeID(s string) (RangeID, error) {
	const op Op = "rhumb.ParseRangeID"
	region, slot, ok := strings.Cut(s, "/")
	a, err1 := strconv.ParseUint(region, 10, 32)
	b, err2 := strconv.ParseUint(slot, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return RangeID{}, E(op, InvalidArgument, fmt.Sprintf("range %q is not of the form REGION/SLOT; write it like 1/42", s))
	}
	return RangeID{RegionID(a), Slot(b)}, nil
}

// UUID is 128 random bits.
type UUID [16]byte

// String returns 32 hexadecimal digits.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// LogValue makes logs show the digits instead of an array of bytes.
func (u UUID) LogValue() slog.Value { return slog.StringValue(u.String()) }

// IsZero reports whether u was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// ParseUUID parses the format of UUID.String.
func ParseUUID(s string) (u UUID, err error) {
	const op Op = "rhumb.ParseUUID"
	if len(s) != 2*len(u) {
		return u, E(op, InvalidArgument, fmt.Sprintf("id %q has %d characters; ids have %d hexadecimal digits", s, len(s), 2*len(u)))
	}
	if _, err := hex.Decode(u[:], []byte(s)); err != nil {
		return UUID{}, E(op, InvalidArgument, fmt.Sprintf("id %q is not hexadecimal; ids have %d hexadecimal digits", s, 2*len(u)))
	}
	return u, nil
}

// ClusterID identifies a cluster. It is random; "rhumb init" creates it.
type ClusterID = UUID

// NodeIdentity identifies one life of a node. A node that restarts with an empty disk has another
// Store; every start has another Boot. Peers reject messages from an earlier life.
type NodeIdentity struct {
	Node  NodeID
	Store UUID
	Boot  BootSeq
}

// RequestID makes a request safe to retry: a request is applied at most once under one id. The zero
// value disables deduplication.
type RequestID struct {
	Client UUID
	Seq    uint64
}

// IsZero reports whether the request has no id.
func (r RequestID) IsZero() bool { return r == RequestID{} }

// String returns "client/seq".
func (r RequestID) String() string { return r.Client.String() + "/" + strconv.FormatUint(r.Seq, 10) }
