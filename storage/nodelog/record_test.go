package nodelog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// sumOf returns a checksum as it is stored.
func sumOf(b []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
}

// TestFormat shows the bytes of a log and what recovery says about them (testdata/format.txt):
//
//	segment index=I count=N size=BYTES    the first sector
//	log segments=N [sectors=N]            a log of empty segments, for the commands below
//	record lap=L at=SECTOR boot=B number=N [synced=N] [trimmed=N] [mark] [size=N] [torn] [flip=BIT]
//	judge [synced=N]                      what recovery says
func TestFormat(t *testing.T) {
	var segments [][]byte
	seed := sumSeed(testID[:])
	datadriven.RunTest(t, "testdata/format.txt", func(t *testing.T, d *datadriven.TestData) string {
		arg := func(name string) (n uint64) {
			d.MaybeScanArgs(t, name, &n)
			return n
		}
		switch d.Cmd {
		case "segment":
			h := segmentHeader{index: int(arg("index")), count: int(arg("count")), size: int64(arg("size")), id: testID}
			return dumpBytes(h.encode()[:segmentFields+4])
		case "log":
			segments = make([][]byte, arg("segments"))
			for i := range segments {
				segments[i] = make([]byte, Sector*(1+max(arg("sectors"), 7)))
			}
			return ""
		case "record":
			h := head{kind: kindData, lap: arg("lap"), boot: arg("boot"), number: Number(arg("number")), synced: Number(arg("synced")), trimmed: Number(arg("trimmed"))}
			if d.HasArg("mark") {
				h.kind = kindMark
			}
			payload := bytes.Repeat([]byte{byte(h.number)}, int(arg("size")))
			b := appendRecord(nil, seed, h, payload)
			shown := dumpBytes(b[:headerSize+min(len(payload), 8)])
			if d.HasArg("flip") {
				b[arg("flip")/8] ^= 1 << (arg("flip") % 8)
			}
			if d.HasArg("torn") {
				clear(b[len(b)-Sector:])
			}
			copy(segments[segmentOf(h.lap, len(segments))][Sector*arg("at"):], b)
			return shown
		case "judge":
			return describeLog(segments, seed, Number(arg("synced")))
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

// describeLog returns what recovery says about segments.
func describeLog(segments [][]byte, seed uint32, synced Number) string {
	var out strings.Builder
	scans := make([]segmentScan, len(segments))
	for i, b := range segments {
		s := scanSegment(b, seed)
		scans[i] = s
		if s.first.lap == 0 {
			fmt.Fprintf(&out, "segment %d: no lap\n", i)
			continue
		}
		fmt.Fprintf(&out, "segment %d: lap %d, records %d to %d, end %d\n", i, s.first.lap, s.first.number, s.last.number, s.end)
	}
	v := judgeLog(scans, synced, 0)
	if v.damage != nil {
		fmt.Fprintf(&out, "damage in segment %d at %d: %s\n", v.damage.segment, v.damage.at, v.damage.what)
		return out.String()
	}
	tail := scans[segmentOf(v.newest, len(scans))]
	fmt.Fprintf(&out, "laps %d to %d, trimmed %d, last record %d, to write again from %d\n", v.oldest, v.newest, v.trimmed, tail.last.number, tail.loose[0].at)
	return out.String()
}

// dumpBytes returns bytes as hexadecimal digits, 32 bytes a line.
func dumpBytes(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		n := min(32, len(b))
		fmt.Fprintln(&out, hex.EncodeToString(b[:n]))
		b = b[n:]
	}
	return out.String()
}

// TestFlippedBit guards that the one wrong bit of some bytes is found by the checksum alone.
func TestFlippedBit(t *testing.T) {
	b := []byte("which bit of these is wrong?")
	good := crc32.Checksum(b, castagnoli)
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		if got, ok := FlippedBit(len(b), good^crc32.Checksum(b, castagnoli)); !ok || got != bit {
			t.Errorf("bit %d: %d, %v", bit, got, ok)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// FuzzReplay guards the decoder against any content of segments: it neither panics nor reads beyond them, and each record that it takes is one
// that the encoder writes.
func FuzzReplay(f *testing.F) {
	seed := sumSeed(testID[:])
	one := appendRecord(make([]byte, Sector), seed, head{kind: kindMark, lap: 1, number: 1})
	two := appendRecord(one, seed, head{kind: kindData, lap: 1, boot: 2, number: 2, synced: 1}, []byte("payload"))
	f.Add(two, make([]byte, 2*Sector))
	f.Add(two, appendRecord(make([]byte, Sector), seed, head{kind: kindData, lap: 2, boot: 2, number: 3, synced: 2, trimmed: 2}))
	f.Add([]byte{}, two[:700])
	f.Fuzz(func(t *testing.T, a, b []byte) {
		scans := []segmentScan{scanSegment(a, seed), scanSegment(b, seed)}
		for i, raw := range [][]byte{a, b} {
			s := scans[i]
			if s.end > max(int64(len(raw)+Sector), Sector) {
				t.Fatalf("the chain ends at %d of %d bytes", s.end, len(raw))
			}
			for at := int64(Sector); s.first.lap != 0 && at < s.end; {
				h, payload, _, ok := decodeRecord(raw[at:], seed)
				if !ok {
					t.Fatalf("the chain has no record at %d", at)
				}
				again := appendRecord(nil, seed, h, payload)
				if n := headerSize + len(payload); h.kind != 0 && !bytes.Equal(again[:10], raw[at:at+10]) && n > 0 {
					t.Fatalf("the record at %d is encoded as %x", at, again[:n])
				}
				at += paddedSize(len(payload))
			}
		}
		v := judgeLog(scans, 0, 0)
		if v.damage == nil && (v.oldest == 0 || v.newest < v.oldest) {
			t.Errorf("laps %d to %d", v.oldest, v.newest)
		}
	})
}
