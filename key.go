package rhumb

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key is the logical name of a record: its table, its home and its name within both. Two keys with one name and
// different homes are different records.
type Key struct {
	Table TableID
	Home  RangeID
	Name  []byte
}

// String gives "t1/2/17/name" with the name quoted where it is not printable.
func (k Key) String() string {
	return fmt.Sprintf("%s/%s/%s", k.Table, k.Home, NameString(k.Name))
}

// ShardKeySize is the size of a server-named key in bytes (TippyDB, section 3.1): region, slot, sequence.
const ShardKeySize = 16

// ShardKey is the paper's sixteen-byte key: the region and the slot of the first writing, and a sequence that is unique
// in that slot. It leaves out kind and table.
type ShardKey struct {
	Home     RangeID
	Sequence uint64
}

// SequenceNameSize is the size in bytes of a server-assigned name.
const SequenceNameSize = 8

// SequenceName gives the server-assigned name of a sequence: eight big-endian bytes.
func SequenceName(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// A sequence is sequenceMark, the epoch of the primary that assigned it, and a counter of sequenceCounterBits. Builds
// before rhumb knew sequenceMark put the boot sequence of a node in the place of the epoch, above 40 bits of counter. A
// node never started 2^23 times, so those sequences lack the mark and never equal one of today.
const (
	sequenceMark        = 1 << 63
	sequenceCounterBits = 32
	sequenceEpochMax    = 1<<(63-sequenceCounterBits) - 1
	oldCounterBits      = 40
)

// MakeSequence builds a server-assigned sequence. The primary of an epoch allocates them, with a counter that begins at 1
// with the epoch: an epoch has one primary, so no two sequences of a range are equal, and no allocation costs a write.
// It returns an error when the epoch or the counter has no room in a sequence.
func MakeSequence(epoch Epoch, counter uint64) (uint64, error) {
	if epoch > sequenceEpochMax || counter>>sequenceCounterBits != 0 {
		return 0, E("rhumb.MakeSequence", TooLarge, fmt.Sprintf(
			"epoch %d with counter %d has no room in a server-assigned name, which holds epochs to %d and counters to %d",
			epoch, counter, uint64(sequenceEpochMax), uint64(1<<sequenceCounterBits-1)))
	}
	return sequenceMark | uint64(epoch)<<sequenceCounterBits | counter, nil
}

// Assigned says who assigned a server-assigned name: the primary of Epoch, or in builds before that the node in its start
// number Boot. One of the two is 0. Counter counts within it.
type Assigned struct {
	Epoch   Epoch
	Boot    BootSeq
	Counter uint64
}

// SplitSequence takes apart what MakeSequence builds, in this build or an earlier one.
func SplitSequence(seq uint64) Assigned {
	if seq&sequenceMark == 0 {
		return Assigned{Boot: BootSeq(seq >> oldCounterBits), Counter: seq & (1<<oldCounterBits - 1)}
	}
	return Assigned{Epoch: Epoch(seq &^ sequenceMark >> sequenceCounterBits), Counter: seq & (1<<sequenceCounterBits - 1)}
}

// NameString shows a name to a person: as it is when it is printable text, as "0x…" otherwise. ParseName reads both.
func NameString(name []byte) string {
	s := string(name)
	hidden := func(r rune) bool { return !unicode.IsPrint(r) }
	if s == "" || strings.HasPrefix(s, "0x") || strings.TrimSpace(s) != s || !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
		return fmt.Sprintf("0x%x", name)
	}
	return s
}

// ParseName reads a name as a person writes it: "0x" and hexadecimal digits give bytes, anything else stands for itself.
func ParseName(s string) ([]byte, error) {
	const op Op = "rhumb.ParseName"
	digits, isHex := strings.CutPrefix(s, "0x")
	if !isHex {
		return []byte(s), nil
	}
	name, err := hex.DecodeString(digits)
	if err != nil {
		return nil, E(op, InvalidArgument, fmt.Sprintf("name %q: want an even number of hexadecimal digits after 0x", s))
	}
	return name, nil
}
