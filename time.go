package rhumb

import (
	"fmt"
	"strconv"
	"time"
)

// Timestamp is a reading of the hybrid logical clock: 48 bits of wall time in milliseconds since
// 1970, then 16 bits that count within the millisecond. A carry out of the counter advances the
// wall part, so timestamps never decrease. Only package hlc turns wall time into a Timestamp.
type Timestamp uint64

// logicalBits is the width of the counter within a millisecond.
const logicalBits = 16

// MakeTimestamp returns the timestamp of a time in milliseconds since 1970 and a count within the
// millisecond.
func MakeTimestamp(wallMs int64, logical uint16) Timestamp {
	return Timestamp(uint64(wallMs)<<logicalBits | uint64(logical))
}

// WallMs returns the wall part in milliseconds since 1970.
func (t Timestamp) WallMs() int64 { return int64(t >> logicalBits) }

// Logical returns the count within the millisecond.
func (t Timestamp) Logical() uint16 { return uint16(t) }

// Time returns the wall part as a time in UTC.
func (t Timestamp) Time() time.Time { return time.UnixMilli(t.WallMs()).UTC() }

// Sub returns the wall time from o to t. It ignores the counts within the millisecond.
func (t Timestamp) Sub(o Timestamp) time.Duration {
	return time.Duration(t.WallMs()-o.WallMs()) * time.Millisecond
}

// Add returns t with its wall part advanced by d, which is truncated to milliseconds.
func (t Timestamp) Add(d time.Duration) Timestamp {
	return Timestamp(int64(t) + d.Milliseconds()<<logicalBits)
}

// String returns "2026-01-02T15:04:05.000Z.7".
func (t Timestamp) String() string {
	return t.Time().Format("2006-01-02T15:04:05.000Z") + "." + strconv.Itoa(int(t.Logical()))
}

// Version identifies a write of a key by its time and its node. It is part of the stored key, so
// each write has a stored key of its own. Within a range versions increase with the log.
type Version struct {
	HLC  Timestamp
	Node NodeID
}

// IsZero reports whether v means that the key does not exist.
func (v Version) IsZero() bool { return v == Version{} }

// Compare orders versions by HLC, then by node.
func (v Version) Compare(o Version) int {
	switch {
	case v.HLC < o.HLC || v.HLC == o.HLC && v.Node < o.Node:
		return -1
	case v == o:
		return 0
	}
	return 1
}

// String returns "HLC@node" in decimal, for example "115964116992000001@3". ParseVersion parses it.
func (v Version) String() string {
	return fmt.Sprintf("%d@%d", uint64(v.HLC), uint32(v.Node))
}

// ParseVersion parses the format of Version.String.
func ParseVersion(s string) (v Version, err error) {
	const op Op = "rhumb.ParseVersion"
	var hlc uint64
	var node uint32
	var rest string
	// The third verb catches trailing text: with it a valid version scans exactly two items.
	n, _ := fmt.Sscanf(s, "%d@%d%s", &hlc, &node, &rest)
	if n != 2 {
		return v, E(op, InvalidArgument, fmt.Sprintf("version %q is not of the form HLC@NODE; write it like 115964116992000001@3", s))
	}
	return Version{Timestamp(hlc), NodeID(node)}, nil
}
