package nodelog

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
)

// flipMax bounds the payload of records that are searched for a wrong bit. A checksum has 32 bits: among the
// bits of a record that was torn, one explains the difference by accident with a probability of its size in
// bits divided by 2^32, which this keeps below 1 in 8,000.
const flipMax = 64 << 10

// oneBitOff returns the kind of the record at the start of b if that record has a lap and a number and is
// valid but for exactly one bit, and otherwise 0.
//
// Steps: compare the part of the header that is known; then try each bit of the size, which determines the
// bytes that the checksum covers; then compute from the checksum which other bit would explain the difference.
func oneBitOff(b []byte, seed uint32, lap uint64, number Number) (kind byte) {
	if len(b) < headerSize {
		return 0
	}
	var try []byte
	valid := func(bit int) byte {
		// Zeros from there to the end of the sector are also the result of a sector that was torn while it was
		// written for the first time.
		if at := bit / 8; allZero(b[at:min(len(b), (at/Sector+1)*Sector)]) {
			return 0
		}
		if try == nil {
			try = append(try, b...)
		}
		try[bit/8] ^= 1 << (bit % 8)
		h, _, _, ok := decodeRecord(try, seed)
		try[bit/8] ^= 1 << (bit % 8)
		if ok && h.lap == lap && h.number == number {
			return h.kind
		}
		return 0
	}
	// Records of an earlier lap, and zeros, differ in many bits here. So the search is seldom needed at the
	// usual end of a log.
	switch bit, different := knownBits(b, lap, number); {
	case different > 1:
		return 0
	case different == 1:
		return valid(bit)
	}
	for bit := range 32 {
		if kind := valid(4*8 + bit); kind != 0 {
			return kind
		}
	}
	n, ok := payloadSize(b)
	if !ok || n > flipMax {
		return 0
	}
	stored, sum := binary.BigEndian.Uint32(b), crc32.Update(seed, castagnoli, b[4:headerSize+n])
	// The wrong bit is in the checksum itself. Its last byte holds the lowest bits.
	if bits.OnesCount32(stored^sum) == 1 {
		bit := bits.TrailingZeros32(stored ^ sum)
		return valid((3-bit/8)*8 + bit%8)
	}
	if bit, ok := FlippedBit(headerSize-4+n, stored^sum); ok {
		return valid(4*8 + bit)
	}
	return 0
}

// allZero reports whether all bytes are zero.
func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// knownBits compares the fields of a header that are known before the record is read. It returns the number of
// bits that differ, and the position of one of them.
func knownBits(b []byte, lap uint64, number Number) (bit, different int) {
	compare := func(at int, want byte) {
		if d := b[at] ^ want; d != 0 {
			bit = at*8 + bits.TrailingZeros8(d)
			different += bits.OnesCount8(d)
		}
	}
	compare(8, recordVersion)
	var words [16]byte
	binary.BigEndian.PutUint64(words[:], lap)
	binary.BigEndian.PutUint64(words[8:], uint64(number))
	for i := range 8 {
		compare(16+i, words[i])
		compare(32+i, words[8+i])
	}
	for at := 10; at < 16; at++ {
		compare(at, 0)
	}
	return bit, different
}

// FlippedBit returns the one bit of n bytes whose flip changes their CRC-32C by a difference. Bit 0 is the
// lowest bit of the first byte.
func FlippedBit(n int, difference uint32) (bit int, ok bool) {
	var deltas [8]uint32 // of the bits of the byte at i
	for k := range deltas {
		deltas[k] = castagnoli[1<<k]
	}
	// CRC is linear: the difference of two checksums depends only on which bits differ. Each further byte that
	// follows a bit shifts the bit's effect through the CRC once, so one pass from the last byte to the first
	// computes the effect of every bit.
	for i := n - 1; i >= 0; i-- {
		for k, d := range deltas {
			if d == difference {
				return 8*i + k, true
			}
			deltas[k] = castagnoli[byte(d)] ^ d>>8
		}
	}
	return 0, false
}
