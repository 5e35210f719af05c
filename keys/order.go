package keys

import (
	"bytes"
	"encoding/binary"

	"github.com/rhumbdb/rhumb"
)

// ComparerName identifies the order in stored files. Pebble refuses to open a store written under
// another name.
const ComparerName = "rhumb.keys.v1"

// VersionSuffixSize is the size of a suffix in bytes: a complemented version and one byte with this
// size.
const VersionSuffixSize = 8 + 4 + 1

// Split returns the length of the part of a key before its version suffix. It reads only the last
// byte.
func Split(key []byte) int {
	n := len(key)
	// Every key without a version ends in zero, so a last byte of 13 always means a suffix.
	if n >= VersionSuffixSize && key[n-1] == VersionSuffixSize {
		return n - VersionSuffixSize
	}
	return n
}

// Compare orders keys by the bytes before the suffix, then by the suffix. A key without a suffix
// precedes its versions, and newer versions precede older ones.
func Compare(a, b []byte) int {
	as, bs := Split(a), Split(b)
	if c := bytes.Compare(a[:as], b[:bs]); c != 0 {
		return c
	}
	return bytes.Compare(a[as:], b[bs:])
}

// CompareSuffixes orders two suffixes as Compare does after equal prefixes.
func CompareSuffixes(a, b []byte) int { return bytes.Compare(a, b) }

// Equal reports whether two keys are equal.
func Equal(a, b []byte) bool { return bytes.Equal(a, b) }

// Abbreviate returns the first eight bytes of a key as a number, for a cheap first comparison: a
// smaller number means a smaller key.
func Abbreviate(key []byte) uint64 {
	key = key[:Split(key)]
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var padded [8]byte
	copy(padded[:], key)
	return binary.BigEndian.Uint64(padded[:])
}

// Separator appends to dst a short key k with a <= k < b. It requires a < b. The key need not be
// the shortest.
func Separator(dst, a, b []byte) []byte {
	pa, pb := a[:Split(a)], b[:Split(b)]
	i := 0
	for i < len(pa) && i < len(pb) && pa[i] == pb[i] {
		i++
	}
	// One prefix begins with the other: no shorter key lies between them.
	if i == len(pa) || i == len(pb) {
		return append(dst, a...)
	}
	if pa[i]+1 == pb[i] { // the byte cannot be raised without reaching b: raise a later one
		for i++; i < len(pa) && pa[i] == 0xff; i++ {
		}
	}
	return raiseByte(dst, a, pa, i)
}

// Successor appends to dst a short key k with a <= k.
func Successor(dst, a []byte) []byte {
	pa := a[:Split(a)]
	i := 0
	for i < len(pa) && pa[i] == 0xff {
		i++
	}
	if len(a) == 0 {
		return append(dst, 0)
	}
	return raiseByte(dst, a, pa, i)
}

// raiseByte appends pa up to byte i, then byte i plus one, then the zero byte that ends every bound.
// Byte i must not be ff. If pa has no byte i, raise appends pa and 00, which follows all versions
// of pa. If the result would not be shorter than a, raise appends a.
func raiseByte(dst, a, pa []byte, i int) []byte {
	switch {
	case i == len(pa) && i+1 < len(a):
		return append(append(dst, pa...), end)
	case i+2 >= len(a):
		return append(dst, a...)
	}
	dst = append(dst, pa[:i]...)
	return append(dst, pa[i]+1, end)
}

// ImmediateSuccessor appends to dst the smallest key without suffix that is greater than a, which
// must have no suffix either.
func ImmediateSuccessor(dst, a []byte) []byte { return append(append(dst, a...), 0) }

// AppendVersion appends the suffix of a version. It is also a seek position: no version at or below
// v sorts before it.
func AppendVersion(dst []byte, v rhumb.Version) []byte {
	dst = binary.BigEndian.AppendUint64(dst, ^uint64(v.HLC))
	dst = binary.BigEndian.AppendUint32(dst, ^uint32(v.Node))
	return append(dst, VersionSuffixSize)
}

// AppendVersionAt appends the suffix that sorts before all versions at or below the timestamp and
// after all versions above it.
func AppendVersionAt(dst []byte, at rhumb.Timestamp) []byte {
	// The complement of the greatest node id is zero, which sorts first among equal timestamps.
	return AppendVersion(dst, rhumb.Version{HLC: at, Node: ^rhumb.NodeID(0)})
}

// VersionOf returns the version in the suffix of a key. It returns false if the key has none.
func VersionOf(key []byte) (v rhumb.Version, ok bool) {
	i := Split(key)
	if i == len(key) {
		return v, false
	}
	return decodeVersion(key[i:]), true
}

// decodeVersion decodes a suffix, whose last byte it ignores.
func decodeVersion(suffix []byte) rhumb.Version {
	return rhumb.Version{
		HLC:  rhumb.Timestamp(^binary.BigEndian.Uint64(suffix)),
		Node: rhumb.NodeID(^binary.BigEndian.Uint32(suffix[8:])),
	}
}
