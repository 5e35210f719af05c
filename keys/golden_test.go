package keys

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/rhumbdb/rhumb"
)

// TestGolden pins the stored form of every kind of key and of the hash (docs/formats/keys.md). A change here is a change
// of the format: it must come with a new version of it.
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata/golden", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				line = strings.TrimSpace(line)
				fmt.Fprintf(&out, "%s: %s\n", line, golden(t, d, line))
			}
			return out.String()
		})
	})
}

func golden(t *testing.T, d *datadriven.TestData, line string) string {
	word := strings.Fields(line)
	switch d.Cmd {
	case "key":
		b := buildKey(t, d, word)
		if _, err := Decode(b); err != nil {
			d.Fatalf(t, "%s does not decode: %v", line, err)
		}
		return fmt.Sprintf("%x (%s)", b, Format(b))
	case "span":
		s := buildSpan(t, d, word)
		return fmt.Sprintf("%x..%x", s.Lower, s.Upper)
	case "slot":
		colocate := byte(0)
		if len(word) > 2 {
			colocate = word[2][0]
		}
		n, _ := strconv.Atoi(word[1])
		return HashSlot(name(t, d, word[0]), colocate, n).String()
	case "explain":
		b, err := hex.DecodeString(word[0])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		x, err := Explain(b)
		if err != nil {
			return err.Error()
		}
		s := x.Form
		for _, p := range x.Parts {
			s += strings.TrimRight(fmt.Sprintf("\n  %2d %s %s %s", p.Offset, p.Bytes, p.Name, p.Value), " ")
		}
		return s
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

// name reads a name; "-" is the empty one.
func name(t *testing.T, d *datadriven.TestData, s string) []byte {
	if s == "-" {
		return nil
	}
	b, err := rhumb.ParseName(s)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return b
}

func buildKey(t *testing.T, d *datadriven.TestData, word []string) []byte {
	if word[0] == "local" {
		space, _ := strconv.Atoi(word[1])
		return AppendLocal(nil, rhumb.Slot(space), name(t, d, word[2]))
	}
	if word[0] == "shard" {
		d.Fatalf(t, "a shard key is no stored key")
	}
	home, err := rhumb.ParseRangeID(word[1])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	switch word[0] {
	case "data":
		table, _ := strconv.ParseUint(word[2], 10, 32)
		k := rhumb.Key{Home: home, Table: rhumb.TableID(table), Name: name(t, d, word[3])}
		if len(word) == 4 {
			return AppendDataPrefix(nil, k)
		}
		v, err := rhumb.ParseVersion(word[4])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return AppendData(nil, k, v)
	case "log":
		seq, _ := strconv.ParseUint(word[2], 10, 64)
		return AppendLog(nil, home, rhumb.Seq(seq))
	case "dedup":
		client, err := rhumb.ParseUUID(word[2])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		seq, _ := strconv.ParseUint(word[3], 10, 64)
		return AppendDedup(nil, home, rhumb.RequestID{Client: client, Seq: seq})
	case "state":
		return AppendState(nil, home, StateField(word[2][0]))
	}
	d.Fatalf(t, "unknown kind %s", word[0])
	return nil
}

func buildSpan(t *testing.T, d *datadriven.TestData, word []string) Span {
	if word[0] == "replicated" {
		return ReplicatedSpan()
	}
	home, err := rhumb.ParseRangeID(word[1])
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	switch word[0] {
	case "range":
		last := home.Slot
		if len(word) > 2 {
			n, _ := strconv.ParseUint(word[2], 10, 32)
			last = rhumb.Slot(n)
		}
		return RangeSpan(home, last)
	case "kind":
		return KindSpan(home, Kind(word[2][0]))
	case "prefix":
		table, _ := strconv.ParseUint(word[2], 10, 32)
		return PrefixSpan(home, rhumb.TableID(table), name(t, d, word[3]))
	}
	d.Fatalf(t, "unknown span %s", word[0])
	return Span{}
}
