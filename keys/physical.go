package keys

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Kind is the byte after the home. It tells the purpose of a key. Kinds are part of stored keys:
// append only.
type Kind byte

// The kinds of keys.
const (
	KindData  Kind = 'd'
	KindLog   Kind = 'l'
	KindState Kind = 'm'
	KindDedup Kind = 'q'
	// KindLocal occurs only in the reserved region.
	KindLocal Kind = 'x'
)

// String returns the name of the kind.
func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindLog:
		return "log"
	case KindState:
		return "state"
	case KindDedup:
		return "dedup"
	case KindLocal:
		return "local"
	}
	return fmt.Sprintf("kind_%#02x", byte(k))
}

// StateField identifies one key of a replica's state. Fields are part of stored keys: append only.
type StateField byte

// The fields of a replica's state.
const (
	// StateRange exists if the store holds the range.
	StateRange StateField = 'r'
	// StatePromised is the greatest epoch that the replica promised to accept.
	StatePromised StateField = 'p'
	// StateCommit is a lower bound of the commit position.
	StateCommit StateField = 'c'
	// StateTrim is the position up to which entries may have been removed.
	StateTrim StateField = 't'
	// StateLineage holds the first position of each epoch of the log.
	StateLineage StateField = 'n'
	// StateBase is the position before the first entry of a log that starts after position 1.
	StateBase StateField = 'b'
	// StateCollected is the number of bytes of versions that garbage collection removed.
	StateCollected StateField = 'g'
	// StateQuarantine is the reason why the replica serves no requests.
	StateQuarantine StateField = 'q'

	// StateSplit is the estimated number of bytes that left the range in splits. It exists if the range was split or
	// came from a split, so that its size is an estimate.
	StateSplit StateField = 's'
	// StateEnd is the position of the entry that ended the range, if there is one.
	StateEnd StateField = 'e'
	// StateMerged lists the first slots of ranges whose slots this one took over, and whose logs are kept for the collector.
	StateMerged StateField = 'm'

	// 'k' is reserved: it was meant for a closed timestamp, and no build wrote it.
)

// String returns the name of the field.
func (f StateField) String() string {
	switch f {
	case StateRange:
		return "range"
	case StatePromised:
		return "promised"
	case StateCommit:
		return "commit"
	case StateTrim:
		return "trim"
	case StateLineage:
		return "lineage"
	case StateBase:
		return "base"
	case StateCollected:
		return "collected"
	case StateQuarantine:
		return "quarantine"
	case StateSplit:
		return "split"
	case StateEnd:
		return "end"
	case StateMerged:
		return "merged"
	}
	return fmt.Sprintf("field_%#02x", byte(f))
}

const (
	homeSize = 8
	kindAt   = homeSize
	tailAt   = kindAt + 1 // offset of the first byte after the kind
	nameAt   = tailAt + 4 // offset of the name in a data key
	end      = 0x00       // last byte of every key without a suffix
	escape   = 0xff       // follows a 00 that is part of the name
)

// appendHome appends the first eight bytes of every key.
func appendHome(dst []byte, home rhumb.RangeID) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(home.Region))
	return binary.BigEndian.AppendUint32(dst, uint32(home.Slot))
}

// appendKind appends home and kind.
func appendKind(dst []byte, home rhumb.RangeID, kind Kind) []byte {
	return append(appendHome(dst, home), byte(kind))
}

// AppendEscaped appends b in a form that sorts as b does and marks its own end: 00 becomes 00 FF,
// and 00 00 follows the last byte.
func AppendEscaped(dst, b []byte) []byte {
	return append(appendEscapedOpen(dst, b), end, end)
}

// appendEscapedOpen is AppendEscaped without the end mark, for bounds of prefixes.
func appendEscapedOpen(dst, b []byte) []byte {
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(dst, b[:i]...)
		dst = append(dst, 0, escape)
		b = b[i+1:]
	}
}

// decodeEscaped decodes the form of AppendEscaped and returns the bytes after it. It returns false
// if the end mark is missing or an escape is invalid. The result shares memory with b if nothing
// was escaped.
func decodeEscaped(b []byte) (out, rest []byte, ok bool) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], 0)
		if i < 0 || from+i+1 >= len(b) {
			return nil, nil, false
		}
		i += from
		switch b[i+1] {
		case end:
			// Almost no name contains a zero byte, so the common case allocates nothing.
			if out == nil {
				return b[:i:i], b[i+2:], true
			}
			return append(out, b[from:i]...), b[i+2:], true
		case escape:
			out = append(out, b[from:i]...)
			out = append(out, 0)
			from = i + 2
		default:
			return nil, nil, false
		}
	}
}

// AppendDataPrefix appends the key of a record without a version. All versions of the record share
// this prefix.
func AppendDataPrefix(dst []byte, k rhumb.Key) []byte {
	dst = appendKind(dst, k.Home, KindData)
	dst = binary.BigEndian.AppendUint32(dst, uint32(k.Table))
	return AppendEscaped(dst, k.Name)
}

// AppendData appends the key of one version of a record.
func AppendData(dst []byte, k rhumb.Key, v rhumb.Version) []byte {
	return AppendVersion(AppendDataPrefix(dst, k), v)
}

// AppendLog appends the key of a log entry.
func AppendLog(dst []byte, id rhumb.RangeID, seq rhumb.Seq) []byte {
	dst = appendKind(dst, id, KindLog)
	dst = binary.BigEndian.AppendUint64(dst, uint64(seq))
	return append(dst, end)
}

// AppendDedup appends the key of the result of a request.
func AppendDedup(dst []byte, id rhumb.RangeID, req rhumb.RequestID) []byte {
	dst = appendKind(dst, id, KindDedup)
	dst = append(dst, req.Client[:]...)
	dst = binary.BigEndian.AppendUint64(dst, req.Seq)
	return append(dst, end)
}

// AppendState appends the key of one field of a replica's state.
func AppendState(dst []byte, id rhumb.RangeID, f StateField) []byte {
	return append(appendKind(dst, id, KindState), byte(f), end)
}

// AppendLocal appends a store-local key.
func AppendLocal(dst []byte, space rhumb.Slot, key []byte) []byte {
	dst = appendKind(dst, rhumb.RangeID{Region: rhumb.LocalRegion, Slot: space}, KindLocal)
	return AppendEscaped(dst, key)
}

// Span is the set of keys from Lower up to, but not including, Upper. A nil Upper is the end of the
// keyspace.
type Span struct{ Lower, Upper []byte }

// Contains reports whether the key is in the span.
func (s Span) Contains(key []byte) bool {
	return Compare(s.Lower, key) <= 0 && (s.Upper == nil || Compare(key, s.Upper) < 0)
}

// RangeSpan returns the span of all keys of a range with the slots from that of its id to last. A
// last slot below that of the id means that the range has one slot.
func RangeSpan(id rhumb.RangeID, last rhumb.Slot) Span {
	return Span{append(appendHome(nil, id), end), homeAfter(rhumb.RangeID{Region: id.Region, Slot: max(id.Slot, last)})}
}

// HomeSpan returns the span of all keys with one home.
func HomeSpan(home rhumb.RangeID) Span { return RangeSpan(home, home.Slot) }

// ReplicatedSpan returns the span of all keys except the store-local ones.
func ReplicatedSpan() Span {
	return Span{append(appendHome(nil, rhumb.RangeID{Region: rhumb.LocalRegion + 1}), end), nil}
}

// homeAfter returns the bound after the last key of a range, or nil after the last range of all.
func homeAfter(id rhumb.RangeID) []byte {
	// Incrementing overflows to zero at the last slot of a region and at the last region.
	id.Slot++
	if id.Slot == 0 {
		id.Region++
		if id.Region == 0 {
			return nil
		}
	}
	return append(appendHome(nil, id), end)
}

// KindSpan returns the span of all keys of one kind in a range.
func KindSpan(id rhumb.RangeID, kind Kind) Span {
	return Span{append(appendKind(nil, id, kind), end), append(appendKind(nil, id, kind+1), end)}
}

// PrefixSpan returns the span of all versions of the records of a table and home whose names begin
// with prefix.
func PrefixSpan(home rhumb.RangeID, table rhumb.TableID, prefix []byte) Span {
	tableKey := binary.BigEndian.AppendUint32(appendKind(nil, home, KindData), uint32(table))
	// The bounds end in zero like every key, so Split does not mistake their last byte for a suffix.
	s := Span{Lower: append(appendEscapedOpen(bytes.Clone(tableKey), prefix), end)}
	switch last := lastBelowFF(prefix); {
	case last >= 0:
		// The smallest name after all names with the prefix is the prefix with its last byte raised.
		// Trailing ff bytes cannot be raised and are dropped.
		next := bytes.Clone(prefix[:last+1])
		next[last]++
		s.Upper = append(appendEscapedOpen(tableKey, next), end)
	case table == ^rhumb.TableID(0):
		// The prefix matches the whole table, and there is no next table.
		s.Upper = KindSpan(home, KindData).Upper
	default:
		s.Upper = append(binary.BigEndian.AppendUint32(tableKey[:tailAt], uint32(table)+1), end)
	}
	return s
}

// lastBelowFF returns the index of the last byte that is not ff, or -1.
func lastBelowFF(b []byte) int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0xff {
			return i
		}
	}
	return -1
}

// LocalSpan returns the span of the keys from..to of a space, without to. A nil to is the end of
// the space.
func LocalSpan(space rhumb.Slot, from, to []byte) Span {
	home := rhumb.RangeID{Region: rhumb.LocalRegion, Slot: space}
	s := Span{Lower: append(appendEscapedOpen(appendKind(nil, home, KindLocal), from), end)}
	if to == nil {
		s.Upper = append(appendKind(nil, home, KindLocal+1), end)
		return s
	}
	s.Upper = append(appendEscapedOpen(appendKind(nil, home, KindLocal), to), end)
	return s
}
