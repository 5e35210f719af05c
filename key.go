package rhumb

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key is the logical identity of a record: its table, its home and its name. Keys with the same
// name but different homes identify different records.
type Key struct {
	Table TableID
	Home  RangeID
	Name  []byte
}

// String returns "t1/2/17/name", with names in the format of NameString.
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Table, k.Home, NameString(k.Name))
}

// ShardKeySize is the size of the key of a server-named record in bytes: region, slot, sequence
// (TippyDB, section 3.1).
const ShardKeySize = 16

// ShardKey is the paper's sixteen-byte key: the home where the record was first written,
// and a sequence that is unique in that slot. It omits kind and table.
type ShardKey struct {
	Home     RangeID
	Sequence uint64
}

// SequenceNameSize is the size in bytes of a server-assigned name.
const SequenceNameSize = 8

// SequenceName returns the name of the record with the given sequence: eight big-endian bytes.
func SequenceName(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// A sequence consists of sequenceMark, the epoch of the primary that assigned it, and a counter of
// sequenceCounterBits. Builds without sequenceMark stored the boot sequence of a node above a
// counter of oldCounterBits. No node starts 2^23 times, so old sequences never have the mark set
// and never equal a new one.
const (
	sequenceMark        = 1 << 63
	sequenceCounterBits = 32
	sequenceEpochMax    = 1<<(63-sequenceCounterBits) - 1
	oldCounterBits      = 40
)

// MakeSequence returns a server-assigned sequence. The primary of an epoch allocates sequences from
// a counter that begins at 1 in each epoch. An epoch has one primary, so all sequences of a range
// are distinct although no allocation is written to disk. MakeSequence fails if the epoch or the
// counter does not fit.
func MakeSequence(epoch Epoch, counter uint64) (uint64, error) {
	if epoch > sequenceEpochMax || counter>>sequenceCounterBits != 0 {
		return 0, E("rhumb.MakeSequence", TooLarge, fmt.Sprintf(
			"epoch %d with counter %d does not fit into a server-assigned name, which holds epochs up to %d and counters up to %d; use put with names of your own",
			epoch, counter, uint64(sequenceEpochMax), uint64(1<<sequenceCounterBits-1)))
	}
	return sequenceMark | uint64(epoch)<<sequenceCounterBits | counter, nil
}

// Assigned describes who assigned a name: the primary of Epoch, or, in old builds, the node in its
// life Boot. One of the two is 0. Counter counts within the other.
type Assigned struct {
	Epoch   Epoch
	Boot    BootSeq
	Counter uint64
}

// SplitSequence returns the parts of a sequence that MakeSequence returned in this or an older
// build.
func SplitSequence(seq uint64) Assigned {
	if seq&sequenceMark == 0 {
		return Assigned{Boot: BootSeq(seq >> oldCounterBits), Counter: seq & (1<<oldCounterBits - 1)}
	}
	return Assigned{Epoch: Epoch(seq &^ sequenceMark >> sequenceCounterBits), Counter: seq & (1<<sequenceCounterBits - 1)}
}

// NameString formats a name for people: unchanged if it is printable text, "0x…" otherwise.
// ParseName parses both.
func NameString(name []byte) string {
	s := string(name)
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	// Text that begins with 0x or with a space would not survive ParseName or a copy from a terminal.
	if s == "" || strings.HasPrefix(s, "0x") || strings.TrimSpace(s) != s || !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
		return fmt.Sprintf("0x%x", name)
	}
	return s
}

// ParseName parses a name that a person typed: "0x" and hexadecimal digits denote bytes; any other
// text is the name itself.
func ParseName(s string) ([]byte, error) {
	const op Op = "rhumb.ParseName"
	digits, isHex := strings.CutPrefix(s, "0x")
	if !isHex {
		return []byte(s), nil
	}
	name, err := hex.DecodeString(digits)
	if err != nil {
		return nil, E(op, InvalidArgument, fmt.Sprintf("name %q is not hexadecimal; write an even number of digits after 0x", s))
	}
	return name, nil
}
