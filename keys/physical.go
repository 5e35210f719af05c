package keys

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/rhumbdb/rhumb"
)

// Kind is the byte after the home that says what a key is for. Kinds stand in stored keys: append only.
type Kind byte

// The kinds of keys.
const (
	KindData  Kind = 'd'
	KindLog   Kind = 'l'
	KindState Kind = 'm'
	KindDedup Kind = 'q'
	// KindLocal stands only under the reserved region.
	KindLocal Kind = 'x'
)

// String gives the name of the kind.
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

// StateField names one key of a replica's state. Fields stand in stored keys: append only.
type StateField byte

// The fields of a replica's state.
const (
	// StateRange is present when the store holds the range.
	StateRange StateField = 'r'
	// StatePromised is the greatest promised epoch.
	StatePromised StateField = 'p'
	// StateCommit is a lower bound of the commit position.
	StateCommit StateField = 'c'
	// StateTrim is the position up to which entries may be gone.
	StateTrim StateField = 't'
	// StateLineage says where each epoch of the log began.
	StateLineage StateField = 'n'
	// StateBase is the position before the first entry of a log that did not begin here.
	StateBase StateField = 'b'
	// StateClosed is a lower bound of the closed timestamp.
	StateClosed StateField = 'k'
	// StateCollected is how many bytes of versions collection has removed.
	StateCollected StateField = 'g'
	// StateQuarantine is the reason why the replica serves nothing.
	StateQuarantine StateField = 'q'
)

// String gives the name of the field.
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
	case StateClosed:
		return "closed"
	case StateCollected:
		return "collected"
	case StateQuarantine:
		return "quarantine"
	}
	return fmt.Sprintf("field_%#02x", byte(f))
}

const (
	homeSize = 8
	kindAt   = homeSize
	tailAt   = kindAt + 1 // first byte after the kind
	nameAt   = tailAt + 4 // of a data key
	end      = 0x00       // the last byte of every key without a suffix
	escape   = 0xff       // follows a 00 that belongs to the name
)

func appendHome(dst []byte, home rhumb.RangeID) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(home.Region))
	return binary.BigEndian.AppendUint32(dst, uint32(home.Slot))
}

func appendKind(dst []byte, home rhumb.RangeID, kind Kind) []byte {
	return append(appendHome(dst, home), byte(kind))
}

// AppendEscaped appends bytes in a form that sorts as they do and ends where they end: 00 becomes 00 FF, and 00 00
// follows the last.
func AppendEscaped(dst, b []byte) []byte {
	return append(appendEscapedOpen(dst, b), end, end)
}

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

// decodeEscaped reads what AppendEscaped wrote and gives the rest; ok is false when the end is missing or an escape is
// none. The result shares memory with b when nothing was escaped.
func decodeEscaped(b []byte) (out, rest []byte, ok bool) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], 0)
		if i < 0 || from+i+1 >= len(b) {
			return nil, nil, false
		}
		i += from
		switch b[i+1] {
		case end:
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

// AppendDataPrefix appends the key of a record without its version: what all its versions share.
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

// Span is the keys from Lower to Upper, Upper excluded. A nil Upper is the end of the keyspace.
type Span struct{ Lower, Upper []byte }

// Contains reports whether a key lies in the span.
func (s Span) Contains(key []byte) bool {
	return Compare(s.Lower, key) <= 0 && (s.Upper == nil || Compare(key, s.Upper) < 0)
}

// RangeSpan holds every key of a range, and no other.
func RangeSpan(id rhumb.RangeID) Span {
	return Span{append(appendHome(nil, id), end), homeAfter(id)}
}

// ReplicatedSpan holds every key but the store-local ones.
func ReplicatedSpan() Span {
	return Span{append(appendHome(nil, rhumb.RangeID{Region: rhumb.LocalRegion + 1}), end), nil}
}

// homeAfter gives the bound behind the last key of a range; nil behind the last of all.
func homeAfter(id rhumb.RangeID) []byte {
	id.Slot++
	if id.Slot == 0 {
		id.Region++
		if id.Region == 0 {
			return nil
		}
	}
	return append(appendHome(nil, id), end)
}

// KindSpan holds the keys of one kind of a range.
func KindSpan(id rhumb.RangeID, kind Kind) Span {
	return Span{append(appendKind(nil, id, kind), end), append(appendKind(nil, id, kind+1), end)}
}

// TableSpan holds all versions of all records of a table that have one home.
func TableSpan(home rhumb.RangeID, table rhumb.TableID) Span {
	return PrefixSpan(home, table, nil)
}

// PrefixSpan holds all versions of the records of a table and home whose names begin with prefix.
func PrefixSpan(home rhumb.RangeID, table rhumb.TableID, prefix []byte) Span {
	tableKey := binary.BigEndian.AppendUint32(appendKind(nil, home, KindData), uint32(table))
	s := Span{Lower: append(appendEscapedOpen(bytes.Clone(tableKey), prefix), end)}
	switch last := lastBelowFF(prefix); {
	case last >= 0:
		next := bytes.Clone(prefix[:last+1])
		next[last]++
		s.Upper = append(appendEscapedOpen(tableKey, next), end)
	case table == ^rhumb.TableID(0):
		s.Upper = KindSpan(home, KindData).Upper
	default:
		s.Upper = append(binary.BigEndian.AppendUint32(tableKey[:tailAt], uint32(table)+1), end)
	}
	return s
}

func lastBelowFF(b []byte) int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] != 0xff {
			return i
		}
	}
	return -1
}

// LocalSpan holds the keys of a space from..to, to excluded; a nil to is the end of the space.
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
