package entry

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/rhumbdb/rhumb"
	"pgregory.net/rapid"
)

// The bytes of an entry are wire and disk format: testdata/codec.txt shows them and what a decoder says of damaged ones.
//
//	encode epoch=E node=N seq=S [prev=HEX] [start=HLC]   then one line per part:
//	  request hlc=H [client=HEX seq=N] [noop] [existed=101]
//	  name HEX
//	  write TABLE NAME HEX [SLOT]
//	decode form=wire|index      hexadecimal digits, white space is ignored
func TestCodec(t *testing.T) {
	datadriven.RunTest(t, "testdata/codec.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "encode":
			e := parseEntry(t, d)
			wire := e.Seal(nil)
			return fmt.Sprintf("hash %x\nwire %s\nindex %s\n", e.Hash[:], dump(wire), dump(e.AppendIndex(nil)))
		case "decode":
			b, err := hex.DecodeString(strings.Join(strings.Fields(d.Input), ""))
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			decode := DecodeWire
			if d.CmdArgs[0].Vals[0] == "index" {
				decode = DecodeIndex
			}
			e, err := decode(b)
			if err != nil {
				return err.Error() + "\n"
			}
			return show(e)
		}
		d.Fatalf(t, "unknown command %s", d.Cmd)
		return ""
	})
}

func parseEntry(t *testing.T, d *datadriven.TestData) *Entry {
	t.Helper()
	var epoch, node, seq, start uint64
	var prev string
	d.ScanArgs(t, "epoch", &epoch)
	d.ScanArgs(t, "node", &node)
	d.ScanArgs(t, "seq", &seq)
	d.MaybeScanArgs(t, "start", &start)
	d.MaybeScanArgs(t, "prev", &prev)
	e := &Entry{Epoch: rhumb.Epoch(epoch), Node: rhumb.NodeID(node), Seq: rhumb.Seq(seq), Start: rhumb.Timestamp(start)}
	copy(e.Prev[:], unhex(t, prev))
	for line := range strings.Lines(d.Input) {
		parsePart(t, e, strings.Fields(line))
	}
	return e
}

func parsePart(t *testing.T, e *Entry, words []string) {
	t.Helper()
	if words[0] == "request" {
		e.Requests = append(e.Requests, parseRequest(t, words[1:]))
		return
	}
	r := &e.Requests[len(e.Requests)-1]
	switch words[0] {
	case "name":
		r.Names = append(r.Names, unhex(t, words[1]))
	case "write":
		table, err := strconv.ParseUint(words[1], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		write := Write{Table: rhumb.TableID(table), Name: []byte(words[2]), Value: unhex(t, words[3])}
		if len(words) > 4 {
			slot, err := strconv.ParseUint(words[4], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			write.Slot = rhumb.Slot(slot)
		}
		r.Writes = append(r.Writes, write)
	default:
		t.Fatalf("unknown part %q", words[0])
	}
}

func parseRequest(t *testing.T, words []string) (r Request) {
	t.Helper()
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch key {
		case "hlc":
			r.HLC = rhumb.Timestamp(n)
		case "client":
			copy(r.ID.Client[:], unhex(t, value))
		case "seq":
			r.ID.Seq = n
		case "noop":
			r.Noop = true
		case "split":
			r.Split = rhumb.Slot(n)
		case "end":
			r.End = true
		case "take":
			if _, err := fmt.Sscanf(value, "%d-%d@%d:%d", &r.Take.Slot, &r.Take.Last, &r.Take.Epoch, &r.Take.Seq); err != nil {
				t.Fatal(err)
			}
		case "existed":
			for _, c := range value {
				r.Existed = append(r.Existed, c == '1')
			}
		default:
			t.Fatalf("unknown word %q", w)
		}
	}
	return r
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func dump(b []byte) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d bytes", len(b))
	for len(b) > 0 {
		n := min(len(b), 33)
		fmt.Fprintf(&s, "\n  %x", b[:n])
		b = b[n:]
	}
	return s.String()
}

func show(e *Entry) string {
	var s strings.Builder
	fmt.Fprintf(&s, "entry %s by %s after %s start %d, last hlc %d, verified %v\n", e.Position(), e.Node, e.Prev, e.Start, e.LastHLC(), e.Verify())
	for i := range e.Requests {
		r := &e.Requests[i]
		fmt.Fprintf(&s, "request %s id %s noop %v existed %v names %x\n", e.Version(r), r.ID, r.Noop, r.Existed, r.Names)
		for _, w := range r.Writes {
			fmt.Fprintf(&s, "  write %s %s %x", w.Table, w.Name, w.Value)
			if w.Slot != 0 {
				fmt.Fprintf(&s, " in slot %s", w.Slot)
			}
			s.WriteString("\n")
		}
		if r.Split != 0 {
			fmt.Fprintf(&s, "  split at slot %s\n", r.Split)
		}
		if r.End {
			s.WriteString("  end of the range\n")
		}
		if !r.Take.IsZero() {
			fmt.Fprintf(&s, "  takes over slots %s to %s, which ended at %d:%d\n", r.Take.Slot, r.Take.Last, r.Take.Epoch, r.Take.Seq)
		}
	}
	return s.String()
}

func drawEntry(t *rapid.T) *Entry {
	some := rapid.SliceOfN(rapid.Byte(), 0, 40)
	e := &Entry{
		Epoch: rhumb.Epoch(rapid.Uint64Max(1<<63).Draw(t, "epoch")),
		Node:  rhumb.NodeID(rapid.Uint32().Draw(t, "node")),
		Seq:   rhumb.Seq(rapid.Uint64Max(1<<63).Draw(t, "seq")),
		Start: rhumb.Timestamp(rapid.Uint64().Draw(t, "start")),
	}
	copy(e.Prev[:], some.Draw(t, "prev"))
	for range rapid.IntRange(0, 4).Draw(t, "requests") {
		r := Request{HLC: rhumb.Timestamp(rapid.Uint64().Draw(t, "hlc")), Noop: rapid.Bool().Draw(t, "noop")}
		if rapid.Bool().Draw(t, "has id") {
			copy(r.ID.Client[:], some.Draw(t, "client"))
			r.ID.Seq = rapid.Uint64Min(1).Draw(t, "client seq")
		}
		for range rapid.IntRange(0, 20).Draw(t, "existed") {
			r.Existed = append(r.Existed, rapid.Bool().Draw(t, "did"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "names") {
			r.Names = append(r.Names, some.Draw(t, "name"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "writes") {
			table := rhumb.TableID(rapid.Uint32().Draw(t, "table"))
			// Most keys are in the first slot of their range.
			slot := rhumb.Slot(rapid.Uint32().Draw(t, "slot")) * rhumb.Slot(rapid.IntRange(0, 1).Draw(t, "has slot"))
			r.Writes = append(r.Writes, Write{table, some.Draw(t, "key"), some.Draw(t, "value"), slot})
		}
		if r.Noop && len(r.Writes) == 0 {
			r.Split = rhumb.Slot(rapid.Uint32().Draw(t, "split"))
			if r.Split == 0 {
				r.End = rapid.Bool().Draw(t, "end")
			}
			if slot := rapid.Uint32Min(1).Draw(t, "taken"); r.Split == 0 && !r.End && rapid.Bool().Draw(t, "takes") {
				r.Take = Take{rhumb.Slot(slot), rhumb.Slot(rapid.Uint32Min(slot).Draw(t, "last")), rhumb.Epoch(rapid.Uint64Min(1).Draw(t, "of")), rhumb.Seq(rapid.Uint64Min(1).Draw(t, "at"))}
			}
		}
		e.Requests = append(e.Requests, r)
	}
	return e
}

// Both forms give back the entry; the index form only after its values are filled in.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEntry(t)
		wire := e.Seal([]byte("kept"))
		if !bytes.HasPrefix(wire, []byte("kept")) {
			t.Fatal("Seal overwrote what was in dst")
		}
		wire = wire[4:]
		if !bytes.Equal(e.AppendWire(nil), wire) || !e.Verify() {
			t.Fatal("AppendWire differs from Seal")
		}
		got, err := DecodeWire(wire)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("wire form: %v\ngot  %+v\nwant %+v", err, got, e)
		}
		index := e.AppendIndex(nil)
		got, err = DecodeIndex(index)
		if err != nil {
			t.Fatalf("index form: %v", err)
		}
		fill(got, e)
		if !reflect.DeepEqual(got, e) || !got.Verify() {
			t.Fatalf("index form: got %+v, want %+v", got, e)
		}
	})
}

// fill puts the values of e into got, whose lengths must be right.
func fill(got, e *Entry) {
	for i := range got.Requests {
		for j := range got.Requests[i].Writes {
			copy(got.Requests[i].Writes[j].Value, e.Requests[i].Writes[j].Value)
		}
	}
}

// Any changed bit is found: by the form, or else by the hash.
func TestBitFlipsAreFound(t *testing.T) {
	e := &Entry{Epoch: 3, Node: 2, Seq: 7, Requests: []Request{{
		ID: rhumb.RequestID{Client: rhumb.UUID{1, 2, 3}, Seq: 9}, HLC: 1 << 40, Existed: []bool{true, false, true},
		Names: [][]byte{{1, 2}}, Writes: []Write{{Table: 5, Name: []byte("name"), Value: []byte("\x11value"), Slot: 77}},
	}}}
	wire := e.Seal(nil)
	for i := range len(wire) * 8 {
		bad := bytes.Clone(wire)
		bad[i/8] ^= 1 << (i % 8)
		if got, err := DecodeWire(bad); err == nil {
			t.Fatalf("bit %d of byte %d changed unnoticed: %s", i%8, i/8, show(got))
		} else if k := rhumb.KindOf(err); k != rhumb.Corrupt && k != rhumb.Incompatible {
			t.Fatalf("bit %d of byte %d: kind %v", i%8, i/8, k)
		}
	}
	for n := range wire {
		if _, err := DecodeWire(wire[:n]); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

// The chain covers all entries before: the same content after another entry has another hash.
func TestHashChains(t *testing.T) {
	first := &Entry{Epoch: 1, Node: 1, Seq: 1, Start: 5}
	first.Seal(nil)
	a := &Entry{Epoch: 1, Node: 1, Seq: 2, Prev: first.Hash, Start: 6}
	b := &Entry{Epoch: 1, Node: 1, Seq: 2, Prev: Hash{1}, Start: 6}
	a.Seal(nil)
	b.Seal(nil)
	if a.Hash == b.Hash {
		t.Error("two entries with different pasts have one hash")
	}
}

// A corrupt index may claim any length; what is allocated for it stays bounded.
func TestDecodeIndexBoundsAllocation(t *testing.T) {
	e := &Entry{Epoch: 1, Node: 1, Seq: 1, Requests: []Request{{}}}
	for range 1000 {
		e.Requests[0].Writes = append(e.Requests[0].Writes, Write{Table: 1, Name: []byte("k"), Value: nil})
	}
	e.Seal(nil)
	index := e.AppendIndex(nil)
	tail := bytes.LastIndex(index, []byte{1, 1, 'k', 0, 1, 1, 'k', 0})
	huge := append(bytes.Clone(index[:tail]), 1, 1, 'k')
	huge = append(huge, 0x80, 0x80, 0x80, 0x02) // 4 MiB
	huge = append(huge, 1, 1, 'k', 0x81, 0x80, 0x80, 0x02)
	if _, err := DecodeIndex(huge); rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "length of value") {
		t.Errorf("values of more than %d bytes: %v", rhumb.EntrySizeMax, err)
	}
	huge[len(huge)-4] = 0x80
	got, err := DecodeIndex(huge)
	if err != nil {
		t.Fatalf("values of exactly %d bytes: %v", rhumb.EntrySizeMax, err)
	}
	if n := len(got.Requests[0].Writes[999].Value); n != 4<<20 {
		t.Errorf("last value has %d bytes, want 4 MiB", n)
	}
}

func seeds(f *testing.F, form func(e *Entry) []byte) {
	f.Add([]byte{})
	for _, e := range []*Entry{
		{Epoch: 1, Node: 1, Seq: 1, Start: 1},
		{Epoch: 3, Node: 2, Seq: 7, Requests: []Request{
			{ID: rhumb.RequestID{Client: rhumb.UUID{1}, Seq: 9}, HLC: 1 << 40, Existed: []bool{true}, Writes: []Write{{Table: 5, Name: []byte("n"), Value: []byte("\x11v")}}},
			{HLC: 1<<40 + 1, Noop: true, Names: [][]byte{{1, 2}}},
		}},
	} {
		e.Seal(nil)
		f.Add(form(e))
	}
}

func FuzzDecodeWire(f *testing.F) {
	seeds(f, func(e *Entry) []byte { return e.AppendWire(nil) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > prefixSize { // let the fuzzer past the hash
			h := chainHash(Hash(b[1:17]), b[prefixSize:])
			copy(b[17:], h[:])
		}
		e, err := DecodeWire(b)
		if err != nil {
			return
		}
		if got := e.AppendWire(nil); !bytes.Equal(got, b) {
			t.Fatalf("two encodings of one entry:\n%x\n%x", b, got)
		}
	})
}

func FuzzDecodeIndex(f *testing.F) {
	seeds(f, func(e *Entry) []byte { return e.AppendIndex(nil) })
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeIndex(b)
		if err != nil {
			return
		}
		if got := e.AppendIndex(nil); !bytes.Equal(got, b) {
			t.Fatalf("two encodings of one entry:\n%x\n%x", b, got)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	e := &Entry{Epoch: 1, Node: 1, Seq: 1, Requests: []Request{{Writes: []Write{{Table: 1, Name: []byte("some/name"), Value: make([]byte, 100)}}}}}
	var buf []byte
	for b.Loop() {
		buf = e.Seal(buf[:0])
	}
}
