package rhumb

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseRangeID(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want RangeID
		ok   bool
	}{
		{"1/42", RangeID{1, 42}, true},
		{"0/0", RangeID{}, true},
		{"4294967295/4294967295", RangeID{1<<32 - 1, 1<<32 - 1}, true},
		{"4294967296/1", RangeID{}, false},
		{"1", RangeID{}, false},
		{"1/", RangeID{}, false},
		{"/1", RangeID{}, false},
		{"1/2/3", RangeID{}, false},
		{"-1/2", RangeID{}, false},
		{" 1/2", RangeID{}, false},
		{"a/b", RangeID{}, false},
		{"", RangeID{}, false},
	} {
		got, err := ParseRangeID(tc.in)
		if got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%q: %v, %v; want %v, ok %v", tc.in, got, err, tc.want, tc.ok)
		}
		if err != nil && KindOf(err) != InvalidArgument {
			t.Errorf("%q: kind %v", tc.in, KindOf(err))
		}
		if tc.ok && got.String() != tc.in {
			t.Errorf("%q is written as %q", tc.in, got)
		}
	}
}

func TestRangeIDCompare(t *testing.T) {
	ordered := []RangeID{{}, {0, 1}, {1, 0}, {1, 7}, {2, 3}}
	for i, a := range ordered {
		for j, b := range ordered {
			want := 0
			if i != j {
				want = map[bool]int{true: -1, false: 1}[i < j]
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%v compared with %v: %d, want %d", a, b, got, want)
			}
		}
	}
	if !(RangeID{}).IsZero() || (RangeID{0, 1}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestParseUUID(t *testing.T) {
	const s = "00112233445566778899aabbccddeeff"
	u, err := ParseUUID(s)
	if err != nil || u.String() != s || u.IsZero() {
		t.Errorf("%s: %v, %v", s, u, err)
	}
	for _, bad := range []string{"", s[1:], s + "0", strings.Repeat("x", 32), s[:30] + " 0"} {
		if u, err := ParseUUID(bad); KindOf(err) != InvalidArgument || !u.IsZero() {
			t.Errorf("%q: %v, %v", bad, u, err)
		}
	}
}

func TestRequestID(t *testing.T) {
	if !(RequestID{}).IsZero() || (RequestID{Seq: 1}).IsZero() || (RequestID{Client: UUID{1}}).IsZero() {
		t.Error("IsZero is wrong")
	}
	if got := (RequestID{UUID{0xab}, 7}).String(); got != "ab000000000000000000000000000000/7" {
		t.Errorf("String gives %q", got)
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		name []byte
		want string
	}{
		{[]byte("SWR123/p"), "SWR123/p"},
		{[]byte("B-XY 42"), "B-XY 42"},
		{[]byte("Zürich HB"), "Zürich HB"},
		{[]byte("behind "), "0x626568696e6420"}, // nobody would see that it ends so
		{[]byte("a\u00a0b"), "0x61c2a062"},
		{[]byte("a\u202eb"), "0x61e280ae62"}, // turns the line around
		{[]byte("a\nb"), "0x610a62"},
		{[]byte{'a', 0xc3}, "0x61c3"},
		{[]byte{0, 0xff}, "0x00ff"},
		{[]byte("0x12"), "0x30783132"}, // would be read as hexadecimal otherwise
		{nil, "0x"},
	} {
		if got := NameString(tc.name); got != tc.want {
			t.Errorf("name %x is shown as %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, bad := range []string{"0x1", "0xzz", "0x12 4", "0xab  cd", "0x+1", "0x 1"} {
		if got, err := ParseName(bad); KindOf(err) != InvalidArgument {
			t.Errorf("%q: %x, %v", bad, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SliceOf(rapid.Byte()).Draw(t, "name")
		got, err := ParseName(NameString(name))
		if err != nil || !slices.Equal(got, name) {
			t.Fatalf("%x is shown as %q and read as %x, %v", name, NameString(name), got, err)
		}
	})
}

func TestKeyString(t *testing.T) {
	k := Key{Table: 3, Home: RangeID{2, 17}, Name: []byte("a b")}
	if got := k.String(); got != "t3/2/17/a b" {
		t.Errorf("key is shown as %q", got)
	}
}

// Sequences are distinct and ordered by epoch, then by counter, none equals one of an earlier build, and what has no room
// is refused.
func TestMakeSequence(t *testing.T) {
	last := uint64(1<<24-1)<<oldCounterBits>>1 | 1<<oldCounterBits - 1 // the greatest that an earlier build came near to
	for _, want := range []Assigned{
		{Epoch: 1, Counter: 1},
		{Epoch: 1, Counter: 1<<sequenceCounterBits - 1},
		{Epoch: 2, Counter: 1},
		{Epoch: 7, Counter: 3},
		{Epoch: sequenceEpochMax, Counter: 1<<sequenceCounterBits - 1},
	} {
		got, err := MakeSequence(want.Epoch, want.Counter)
		if err != nil || got <= last {
			t.Errorf("%+v: %d, %v, is not above %d", want, got, err, last)
		}
		last = got
		if back := SplitSequence(got); back != want {
			t.Errorf("%d splits to %+v, want %+v", got, back, want)
		}
		if name := SequenceName(got); len(name) != SequenceNameSize {
			t.Errorf("name of %d has %d bytes", got, len(name))
		}
	}
	if old := SplitSequence(3<<oldCounterBits | 9); old != (Assigned{Boot: 3, Counter: 9}) {
		t.Errorf("a sequence of an earlier build splits to %+v", old)
	}
	for _, a := range []Assigned{{Epoch: sequenceEpochMax + 1, Counter: 1}, {Epoch: 1, Counter: 1 << sequenceCounterBits}} {
		if seq, err := MakeSequence(a.Epoch, a.Counter); KindOf(err) != TooLarge {
			t.Errorf("%+v gives %d, %v, want too_large", a, seq, err)
		}
	}
}

func TestTimestamp(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 678e6, time.UTC)
	ts := MakeTimestamp(at.UnixMilli(), 7)
	if ts.WallMs() != at.UnixMilli() || ts.Logical() != 7 || !ts.Time().Equal(at) {
		t.Errorf("parts of %v: %d, %d, %v", ts, ts.WallMs(), ts.Logical(), ts.Time())
	}
	if got := ts.String(); got != "2026-01-02T15:04:05.678Z.7" {
		t.Errorf("timestamp is shown as %q", got)
	}
	later := ts.Add(1500 * time.Millisecond)
	if got := later.Sub(ts); got != 1500*time.Millisecond || later.Logical() != 7 {
		t.Errorf("1.5 s later is %v later, count %d", got, later.Logical())
	}
	if got := later.Add(-1500 * time.Millisecond); got != ts {
		t.Errorf("there and back is %v, want %v", got, ts)
	}
	// A carry out of the count moves the wall part, so that adding one always grows.
	if next := MakeTimestamp(5, 1<<16-1) + 1; next != MakeTimestamp(6, 0) {
		t.Errorf("after the last count comes %v", next)
	}
}

func TestVersion(t *testing.T) {
	ordered := []Version{{}, {0, 1}, {1, 0}, {1, 2}, {9, 1}}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.Compare(b); got != map[bool]int{true: 1, false: -1}[i > j] && i != j || i == j && got != 0 {
				t.Errorf("%v compared with %v: %d", a, b, got)
			}
		}
		got, err := ParseVersion(a.String())
		if err != nil || got != a {
			t.Errorf("%v is read as %v, %v", a, got, err)
		}
	}
	for _, bad := range []string{"", "1", "1@", "@1", "1@2x", "1@2@3", "-1@2", "1@4294967296", "18446744073709551616@1", "x@y"} {
		if v, err := ParseVersion(bad); KindOf(err) != InvalidArgument || !v.IsZero() {
			t.Errorf("%q: %v, %v", bad, v, err)
		}
	}
}

// TestLogValues guards that logs show ids as people know them, as JSON too.
func TestLogValues(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	var cluster ClusterID = UUID{0xab, 15: 0x01}
	log.Info("x", "cluster", cluster, "node", NodeID(3), "range", RangeID{1, 42})
	for _, want := range []string{`"cluster":"ab000000000000000000000000000001"`, `"node":"n3"`, `"range":"1/42"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s lacks %s", out.String(), want)
		}
	}
}

// TestNodeList guards that messages for people name nodes as people write them, without the brackets of Go.
func TestNodeList(t *testing.T) {
	for want, list := range map[string]NodeList{"no node": nil, "n1": {1}, "n1, n4": {1, 4}} {
		if got := list.String(); got != want {
			t.Errorf("%d nodes are %q, want %q", len(list), got, want)
		}
	}
}
