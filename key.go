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

// sequenceCounterBits is the part of a sequence that counts within one boot of the block's owner.
const sequenceCounterBits = 40

// MakeSequence builds a server-assigned sequence. Only the owner of a slot's block allocates them, from its boot
// sequence and a counter that begins at 0 with each boot, so that no two are equal without a write per allocation.
func MakeSequence(boot BootSeq, counter uint64) uint64 {
	return uint64(boot)<<sequenceCounterBits | counter&(1<<sequenceCounterBits-1)
}

// SplitSequence takes apart what MakeSequence builds.
func SplitSequence(seq uint64) (boot BootSeq, counter uint64) {
	return BootSeq(seq >> sequenceCounterBits), seq & (1<<sequenceCounterBits - 1)
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
