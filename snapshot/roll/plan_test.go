package roll

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// The transcripts in testdata/plans show what a plan decides: which versions take the places of others, which go after the
// base, and why a layout is not kept.
//
//	new [ordered] [spatial] [summed]   an empty shard
//	commit [closed=N] [open] [discard] one record per line: put KEY VALUE [hlc=N] [expiry=N] [x=N] [crosses], or delete KEY [hlc=N]
//	plan [wall=N]                      what a roll would do, without doing it
//	roll [wall=N]                      rolls, and shows what is visible; the generation is checked as at a start
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata/plans", func(t *testing.T, path string) {
		var s *shard
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			wall := int64(0)
			d.MaybeScanArgs(t, "wall", &wall)
			switch d.Cmd {
			case "new":
				s = newShard(t, tableFlags(d))
				return ""
			case "commit":
				return s.runCommit(t, d)
			case "plan":
				return s.describePlan(wall)
			case "roll":
				reason := s.roll(wall, segment.Room{})
				s.verify(wall)
				return s.describeRoll(reason)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func tableFlags(d *datadriven.TestData) (flags uint16) {
	for name, flag := range map[string]uint16{"ordered": format.TableOrdered, "spatial": format.TableSpatial, "summed": format.TableSummed} {
		if d.HasArg(name) {
			flags |= flag
		}
	}
	return flags
}

// runCommit writes the records of a commit and publishes them, unless it stays open or is discarded.
func (s *shard) runCommit(t *testing.T, d *datadriven.TestData) string {
	for _, line := range strings.Split(d.Input, "\n") {
		words := strings.Fields(line)
		key, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		rec := segment.Record{Key: format.Key{Number: key}}
		rest := words[2:]
		if words[0] == "put" {
			rec.Value, rest = []byte(rest[0]), rest[1:]
		}
		for _, field := range rest {
			name, text, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseInt(text, 10, 64)
			switch name {
			case "hlc":
				rec.HLC = rhumb.Timestamp(n)
			case "expiry":
				rec.Expiry = n
			case "x":
				rec.Box, rec.HasBox = format.Box{MinX: int32(n), MaxX: int32(n) + 10, MaxY: 10}, true
			case "crosses":
				rec.Box, rec.HasBox = format.Box{MinX: format.LonUnitsMax - 10, MaxX: 10 - format.LonUnitsMax, MaxY: 10}, true
			default:
				t.Fatalf("unknown field %q", field)
			}
		}
		s.write(rec, words[0] == "delete")
	}
	switch {
	case d.HasArg("discard"):
		s.discard()
	case !d.HasArg("open"):
		closed := uint64(0)
		d.MaybeScanArgs(t, "closed", &closed)
		s.commit(rhumb.Timestamp(closed))
	}
	return ""
}

// describePlan prints what a roll would do.
func (s *shard) describePlan(wall int64) string {
	k, reason := s.roller.PlanKept(s.input(wall, segment.Room{}))
	if reason != "" {
		return "not kept: " + string(reason)
	}
	var b strings.Builder
	for i := range k.changes {
		c := &k.changes[i]
		switch {
		case c.from == segment.NoRef && c.replayed:
			fmt.Fprintf(&b, "unit %s: stays, later versions are appended\n", unitName(c.root))
			continue
		case c.from == segment.NoRef:
			fmt.Fprintf(&b, "unit %s: nothing was committed\n", unitName(c.root))
			continue
		case c.root == segment.NoRef:
			fmt.Fprintf(&b, "key %d: new, goes to unit %d", s.seg.Heap.At(c.from).Key, c.to)
		case c.shape.Gone:
			fmt.Fprintf(&b, "key %d: deleted, its record at unit %d is buried", s.seg.Heap.At(c.from).Key, c.to)
		case c.to == c.root:
			fmt.Fprintf(&b, "key %d: takes the place at unit %d", s.seg.Heap.At(c.from).Key, c.to)
		default:
			fmt.Fprintf(&b, "key %d: leaves unit %d for unit %d", s.seg.Heap.At(c.from).Key, c.root, c.to)
		}
		if c.ended {
			b.WriteString(", has ended")
		}
		if c.replayed {
			b.WriteString(", later versions are appended")
		}
		b.WriteString("\n")
	}
	for _, ref := range k.ended {
		fmt.Fprintf(&b, "key %d: has ended, its record at unit %d is buried\n", s.seg.Heap.At(ref).Key, ref)
	}
	read := "not read"
	if k.readsBase {
		read = "read"
	}
	fmt.Fprintf(&b, "base: %d records in %d units, %d units idle; the old base is %s\n", k.records, k.units, k.stats.Waste, read)
	if len(k.replay) > 0 {
		fmt.Fprintf(&b, "appended again: %d versions\n", len(k.replay))
	}
	return b.String()
}

func unitName(ref uint32) string {
	if ref == segment.NoRef {
		return "none"
	}
	return strconv.Itoa(int(ref))
}

// describeRoll prints how a roll went, and what is visible.
func (s *shard) describeRoll(reason Reason) string {
	var b strings.Builder
	if reason == "" {
		b.WriteString("kept\n")
	} else {
		fmt.Fprintf(&b, "anew: %s\n", reason)
	}
	visible := s.visible()
	for _, key := range sortedKeys(visible) {
		fmt.Fprintf(&b, "%d %s\n", key, visible[key].Value)
	}
	return b.String()
}
