package nodelog

import (
	"bytes"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

const ringSegments = 3

// ringLog returns the files of a log that was written over more than once, what it holds, and where each of its records is. Every record was
// synced on its own, and the last one is not known to be durable by any other.
func ringLog(t *testing.T) (image map[string][]byte, want []Record, where map[Number]place) {
	d := newLog(t, ringSegments)
	l := mustOpen(t, d, 2)
	const appended = 34
	for i := range appended {
		if _, err := l.Append(bytes.Repeat([]byte{0xa0, byte(i)}, 100+i)); err != nil {
			t.Fatal(err)
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		// The last trim position is in no record.
		if i < appended-1 {
			l.Trim(l.Last() - 8)
		}
	}
	want, err := records(l)
	if err != nil || len(want) != 9 || l.lap < 4 {
		t.Fatalf("%d records, lap %d, %v", len(want), l.lap, err)
	}
	image, where = contentOf(t, d.FS), map[Number]place{}
	for i := range l.files {
		b := image[l.segmentFile(i)]
		for at := int64(Sector); at < int64(len(b)); at += Sector {
			if h, _, _, ok := decodeRecord(b[at:], l.seed); ok && h.number > l.Trimmed() {
				where[h.number] = place{h, at}
			}
		}
	}
	return image, want, where
}

// outcome opens a log and reads it.
func outcome(t *testing.T, image map[string][]byte) ([]Record, error) {
	l, err := openTest(newDisk(t, image), 3)
	if err != nil {
		return nil, err
	}
	return records(l)
}

func sameRecords(a, b []Record) bool {
	return slices.EqualFunc(a, b, func(x, y Record) bool { return x.Number == y.Number && bytes.Equal(x.Payload, y.Payload) })
}

// TestFlips flips each bit of a log that may count, and one bit in each other byte. A log that opens holds every record unchanged, and damage of a needed
// record is reported with the file, and with the offset of the record. The last record is included, although nothing says that it was synced.
func TestFlips(t *testing.T) {
	image, want, where := ringLog(t)
	needed := func(segment int, at int64) (Number, bool) {
		for n, p := range where {
			if segmentOf(p.lap, ringSegments) == segment && at >= p.at && at < p.at+headerSize+int64(len(want[n-want[0].Number].Payload)) {
				return n, true
			}
		}
		return 0, false
	}
	found := 0
	for segment, name := range slices.Sorted(maps.Keys(image)) {
		for at := range image[name] {
			n, counts := needed(segment, int64(at))
			for bit := range 8 {
				if !counts && at >= Sector && bit > 0 {
					break
				}
				image[name][at] ^= 1 << bit
				got, err := outcome(t, image)
				image[name][at] ^= 1 << bit
				if err == nil {
					if counts || !sameRecords(got, want) {
						t.Fatalf("%s:%d bit %d of record %d: the log opens with %d of %d records", name, at, bit, n, len(got), len(want))
					}
					continue
				}
				d, ok := errors.AsType[*Damage](err)
				if rhumb.KindOf(err) != rhumb.Corrupt || !ok || d.File != name || counts && d.Offset != where[n].at {
					t.Fatalf("%s:%d bit %d of record %d: %v, want damage at offset %d", name, at, bit, n, err, where[n].at)
				}
				found++
			}
		}
	}
	if least := 8 * len(want) * 150; found < least {
		t.Errorf("%d flips were found, want at least %d", found, least)
	}
}

// TestDamage guards that each kind of damage that a torn write cannot explain is an error with the file, and that none is an empty log.
func TestDamage(t *testing.T) {
	image, want, where := ringLog(t)
	names := slices.Sorted(maps.Keys(image))
	last, first := want[len(want)-1].Number, want[0].Number
	fileOf := func(n Number) string { return names[segmentOf(where[n].lap, ringSegments)] }
	zero := func(n Number) func(map[string][]byte) {
		return func(im map[string][]byte) { clear(im[fileOf(n)][where[n].at : where[n].at+Sector]) }
	}
	other := newLog(t, ringSegments)
	for _, c := range []struct {
		name, file, what string
		do               func(im map[string][]byte)
	}{
		{"a record that a later one says to be synced", fileOf(first + 4), "was synced", zero(first + 4)},
		{"the oldest record", fileOf(first), "", zero(first)},
		{"the record before the last", fileOf(last - 1), "was synced", zero(last - 1)},
		{"a segment is missing", names[0], "missing", func(im map[string][]byte) { delete(im, names[0]) }},
		{"the last segment is missing", names[1], "missing", func(im map[string][]byte) { delete(im, names[1]) }},
		{"a segment is short", names[1], "bytes", func(im map[string][]byte) { im[names[1]] = im[names[1]][:3*Sector] }},
		{"the first segment is short", names[0], "bytes, and not", func(im map[string][]byte) { im[names[0]] = im[names[0]][:5*Sector] }},
		{"a segment is long", names[1], "bytes, and not", func(im map[string][]byte) { im[names[1]] = append(im[names[1]], 1) }},
		{"a segment of another shape", names[1], "is segment 1 of 4", func(im map[string][]byte) {
			h := segmentHeader{index: 1, count: ringSegments + 1, size: SegmentBytesLeast, id: testID}
			copy(im[names[1]], h.encode())
		}},
		{"a segment is empty", names[1], "no segment", func(im map[string][]byte) { im[names[1]] = nil }},
		{"the segments are exchanged", names[0], "is segment 1 of 3", func(im map[string][]byte) { im[names[0]], im[names[1]] = im[names[1]], im[names[0]] }},
		{"a segment of an empty log", fileOf(first), "", func(im map[string][]byte) {
			im[fileOf(first)] = slices.Clone(other.image[fileOf(first)])
		}},
		{"a segment of another log", names[1], "belongs to log", func(im map[string][]byte) {
			h := segmentHeader{index: 1, count: ringSegments, size: SegmentBytesLeast, id: rhumb.UUID{9}}
			copy(im[names[1]], h.encode())
		}},
		{"no segment has a record", names[0], "first record", func(im map[string][]byte) {
			clear(im[names[0]][Sector:])
			clear(im[names[1]][Sector:])
			clear(im[names[2]][Sector:])
		}},
	} {
		im := map[string][]byte{}
		for name, b := range image {
			im[name] = slices.Clone(b)
		}
		c.do(im)
		_, err := outcome(t, im)
		d, ok := errors.AsType[*Damage](err)
		if rhumb.KindOf(err) != rhumb.Corrupt || !ok || d.File != c.file || !strings.Contains(d.What, c.what) {
			t.Errorf("%s: %v, want damage of %s with %q", c.name, err, c.file, c.what)
		}
		// Whoever reads the log without opening it gets the same description.
		err = Read(Config{Dir: testDir, FS: newDisk(t, im), ID: testID}, func(Record) error { return nil })
		if read, ok := errors.AsType[*Damage](err); !ok || d == nil || read.Error() != d.Error() {
			t.Errorf("%s: Read reports %v, and Open %v", c.name, err, d)
		}
	}
}

// TestTornEnd guards the other side: the record of the last sync, which nobody may have been told about, is discarded if sectors of it are
// missing, and its number is used again.
func TestTornEnd(t *testing.T) {
	image, want, where := ringLog(t)
	last := want[len(want)-1].Number
	file := testDir + "/" + filepath.Base(segmentPath(vfs.Default, testDir, segmentOf(where[last].lap, ringSegments)))
	// Half of the bits differ, as in what an earlier lap left.
	for i := range 40 {
		image[file][where[last].at+headerSize+int64(i)] ^= 0x5a
	}
	l, err := openTest(newDisk(t, image), 3)
	if err != nil {
		t.Fatal(err)
	}
	// The last trim position was in the record that is gone, so older records may be there once more.
	got, err := records(l)
	if rest := len(want) - 1; err != nil || len(got) < rest || !sameRecords(got[len(got)-rest:], want[:rest]) || l.Last() != last-1 {
		t.Errorf("%d records up to %d, %v; want all but the last", len(got), l.Last(), err)
	}
	// The caller may know more than the log does.
	_, err = Open(Config{Dir: testDir, FS: newDisk(t, image), Boot: 3, ID: testID, Synced: last})
	if d, ok := errors.AsType[*Damage](err); !ok || d.File != file || d.Offset != where[last].at {
		t.Errorf("with the last record known to be synced: %v, want damage at %d", err, where[last].at)
	}
}

// TestDiscardedRecordsStayAway guards that records behind a torn one do not return when the torn one is replaced by one of the same size.
func TestDiscardedRecordsStayAway(t *testing.T) {
	d := newLog(t, 2)
	l := mustOpen(t, d, 2)
	for _, s := range []string{"torn", "discarded"} {
		if _, err := l.Append([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	image := contentOf(t, d.FS)
	torn := image[l.segmentFile(0)][l.at-2*Sector:]
	clear(torn[:Sector])
	d = newDisk(t, image)
	l = mustOpen(t, d, 3)
	if _, err := l.Append([]byte("new!")); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	got, err := records(mustOpen(t, d.kill(t), 4))
	if err != nil || len(got) != 1 || string(got[0].Payload) != "new!" {
		t.Errorf("the log holds %v, %v; want the new record only", got, err)
	}
}

// TestOpenRefuses guards the errors that are not damage: a newer format or record, an older boot, and wrong settings.
func TestOpenRefuses(t *testing.T) {
	d := newLog(t, 2)
	good := d.image
	first := segmentPath(vfs.Default, testDir, 0)
	if _, err := openTest(newDisk(t, good), 1); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "different times") {
		t.Errorf("a boot that has written to the log before returns %v", err)
	}
	for name, change := range map[string]func(b []byte){
		"format 2": func(b []byte) {
			b[11] = 2
			copy(b[segmentFields:], sumOf(b[:segmentFields]))
		},
		"version 2": func(b []byte) {
			at := Sector
			b[at+8] = 2
			copy(b[at:], sumOf(append(slices.Clone(testID[:]), b[at+4:at+headerSize]...)))
		},
	} {
		b := slices.Clone(good[first])
		change(b)
		image := maps.Clone(good)
		image[first] = b
		if _, err := openTest(newDisk(t, image), 3); rhumb.KindOf(err) != rhumb.Incompatible {
			t.Errorf("%s: %v, want incompatible", name, err)
		}
	}
	_, err := Open(Config{Segments: 1, SegmentBytes: 1000})
	for _, want := range []string{"directory", "boots", "1 segments", "1000 bytes"} {
		if rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("wrong settings return %v, want %q in it", err, want)
		}
	}
	if _, err := Open(Config{Dir: "/absent", FS: vfs.NewMem(), Boot: 1}); rhumb.KindOf(err) != rhumb.Corrupt {
		t.Errorf("a log that has vanished returns %v, want corrupt", err)
	}
}
