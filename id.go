package rhumb

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// RegionID numbers a region. Region 0 is reserved: keys under it are local to one store and are never replicated.
type RegionID uint32

// LocalRegion is the reserved region of store-local keys.
const LocalRegion RegionID = 0

// NodeID numbers a node for ever; 0 means "none".
type NodeID uint32

// NoNode is the NodeID of nobody.
const NoNode NodeID = 0

// Slot is the finer form of the seed paper's "node" field (TippyDB, section 3.1): the second four bytes of a home.
// Slots are allotted in blocks of BlockSlots.
type Slot uint32

// TableID numbers a table for ever.
type TableID uint32

// ClassID numbers a class: the tables that replicate alike.
type ClassID uint32

// Epoch is the fencing number of a range. Only the metadata group allocates it; 0 is before the first.
type Epoch uint64

// Seq is a position in the log of a range; the first entry has Seq 1, 0 is "before the log".
type Seq uint64

// BootSeq counts the lives of a node. Metadata counts them: each registration with a new nonce begins one.
type BootSeq uint64

func (id RegionID) String() string { return strconv.FormatUint(uint64(id), 10) }
func (id NodeID) String() string   { return "n" + strconv.FormatUint(uint64(id), 10) }
func (s Slot) String() string      { return strconv.FormatUint(uint64(s), 10) }
func (id TableID) String() string  { return "t" + strconv.FormatUint(uint64(id), 10) }
func (id ClassID) String() string  { return "c" + strconv.FormatUint(uint64(id), 10) }

// LogValue lets a log show the id as String does, in whatever form the log is written.
func (id NodeID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// RangeID names a range, and is at the same time the home of every key in it: the region and the slot in whose name
// the key was first written. Its eight big-endian bytes begin every stored key.
type RangeID struct {
	Region RegionID
	Slot   Slot
}

// String gives "region/slot", for example "1/42".
func (r RangeID) String() string { return r.Region.String() + "/" + r.Slot.String() }

// LogValue lets a log show the range as String does.
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

// ParseRangeID reads what String writes.
func ParseRangeID(s string) (RangeID, error) {
	const op Op = "rhumb.ParseRangeID"
	region, slot, ok := strings.Cut(s, "/")
	a, err1 := strconv.ParseUint(region, 10, 32)
	b, err2 := strconv.ParseUint(slot, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return RangeID{}, E(op, InvalidArgument, fmt.Sprintf("range %q is not of the form REGION/SLOT, for example 1/42", s))
	}
	return RangeID{RegionID(a), Slot(b)}, nil
}

// UUID is 128 random bits.
type UUID [16]byte

// String gives 32 hexadecimal digits.
func (u UUID) String() string { return hex.EncodeToString(u[:]) }

// LogValue lets a log show the digits in place of an array of bytes.
func (u UUID) LogValue() slog.Value { return slog.StringValue(u.String()) }

// IsZero reports whether u was never set.
func (u UUID) IsZero() bool { return u == UUID{} }

// ParseUUID reads what UUID.String writes.
func ParseUUID(s string) (u UUID, err error) {
	const op Op = "rhumb.ParseUUID"
	if len(s) != 2*len(u) {
		return u, E(op, InvalidArgument, fmt.Sprintf("%q has %d characters, want %d hexadecimal digits", s, len(s), 2*len(u)))
	}
	if _, err := hex.Decode(u[:], []byte(s)); err != nil {
		return UUID{}, E(op, InvalidArgument, fmt.Sprintf("%q is not hexadecimal", s))
	}
	return u, nil
}

// ClusterID names a cluster; it is random and made by init.
type ClusterID = UUID

// NodeIdentity tells one life of a node from any other: an empty replaced disk has another Store, each start another
// Boot.
type NodeIdentity struct {
	Node  NodeID
	Store UUID
	Boot  BootSeq
}

// RequestID makes a request safe to repeat: a request applied once under an id is never applied again. The zero value
// asks for no deduplication.
type RequestID struct {
	Client UUID
	Seq    uint64
}

// IsZero reports whether the request carries no id.
func (r RequestID) IsZero() bool { return r == RequestID{} }

// String gives "client/seq".
func (r RequestID) String() string { return r.Client.String() + "/" + strconv.FormatUint(r.Seq, 10) }
