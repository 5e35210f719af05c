package keys

import (
	"bytes"
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
)

// ComparerName names the order in stored files. A store written under another name does not open.
const ComparerName = "rhumb.keys.v1"

// VersionSuffixSize is the size of a suffix in bytes: a complemented version and the byte that says so.
const VersionSuffixSize = 8 + 4 + 1

// Split gives the length of the part of a key before its version suffix. It reads only the last byte.
func Split(key []byte) int {
	n := len(key)
	if n >= VersionSuffixSize && key[n-1] == VersionSuffixSize {
		return n - VersionSuffixSize
	}
	return n
}

// Compare orders keys: by the bytes before the suffix, then by the suffix; a key without a suffix comes before its
// versions, and newer versions before older.
func Compare(a, b []byte) int {
	as, bs := Split(a), Split(b)
	if c := bytes.Compare(a[:as], b[:bs]); c != 0 {
		return c
	}
	return bytes.Compare(a[as:], b[bs:])
}

// CompareSuffixes orders two suffixes as Compare does under one prefix.
func CompareSuffixes(a, b []byte) int { return bytes.Compare(a, b) }

// Equal reports whether two keys are the same.
func Equal(a, b []byte) bool { return bytes.Equal(a, b) }

// Abbreviate gives eight bytes of a key as a number, for a first, cheap comparison: a smaller number means a smaller key.
func Abbreviate(key []byte) uint64 {
	key = key[:Split(key)]
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var padded [8]byte
	copy(padded[:], key)
	return binary.BigEndian.Uint64(padded[:])
}

// Separator appends to dst a key k, as short as is easily found, with a <= k < b. It requires a < b.
func Separator(dst, a, b []byte) []byte {
	pa, pb := a[:Split(a)], b[:Split(b)]
	i := 0
	for i < len(pa) && i < len(pb) && pa[i] == pb[i] {
		i++
	}
	if i == len(pa) || i == len(pb) {
		return append(dst, a...)
	}
	if pa[i]+1 == pb[i] { // the byte cannot be raised without reaching b: raise a later one
		for i++; i < len(pa) && pa[i] == 0xff; i++ {
		}
	}
	return raise(dst, a, pa, i)
}

// Successor appends to dst a key k, as short as is easily found, with a <= k.
func Successor(dst, a []byte) []byte {
	pa := a[:Split(a)]
	i := 0
	for i < len(pa) && pa[i] == 0xff {
		i++
	}
	if len(a) == 0 {
		return append(dst, 0)
	}
	return raise(dst, a, pa, i)
}

// raise appends pa up to byte i, that byte plus one, and the 00 that every bound ends in; without a byte i it appends pa
// and 00, which lies behind all versions of pa. It appends a itself when that is no longer. Byte i is not ff.
func raise(dst, a, pa []byte, i int) []byte {
	switch {
	case i == len(pa) && i+1 < len(a):
		return append(append(dst, pa...), end)
	case i+2 >= len(a):
		return append(dst, a...)
	}
	dst = append(dst, pa[:i]...)
	return append(dst, pa[i]+1, end)
}

// ImmediateSuccessor appends to dst the smallest key without suffix that is greater than the key a, which has none.
func ImmediateSuccessor(dst, a []byte) []byte { return append(append(dst, a...), 0) }

// AppendVersion appends the suffix of a version. It also serves to seek: no version at or below v sorts before it.
func AppendVersion(dst []byte, v rhumb.Version) []byte {
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(v.HLC))
	dst = binary.BigEndian.AppendUint32(dst, ^uint32(v.Node))
	return append(dst, VersionSuffixSize)
}

// AppendVersionAt appends the suffix that sorts before all versions at or below a timestamp, and after all above it.
func AppendVersionAt(dst []byte, at rhumb.Timestamp) []byte {
	return AppendVersion(dst, rhumb.Version{HLC: at, Node: ^rhumb.NodeID(0)})
}

// VersionOf gives the version in a key's suffix, and ok false when the key has none.
func VersionOf(key []byte) (v rhumb.Version, ok bool) {
	i := Split(key)
	if i == len(key) {
		return v, false
	}
	return decodeVersion(key[i:]), true
}

func decodeVersion(suffix []byte) rhumb.Version {
	return rhumb.Version{
		HLC:  rhumb.Timestamp(^binary.BigEndian.Uint64(suffix)),
		Node: rhumb.NodeID(^binary.BigEndian.Uint32(suffix[8:])),
	}
}
