package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
)

// oddMapping has what the built-in mappings lack: nulls, kept and renamed keys, an order by a
// computed field, and rows that include only some fields.
const oddMapping = `
"null": ["", "-"]
fields: {a: int64, b: float64, c: string, d: bytes, e: bool, f: timestamp, g: point, h: box, lat: float64}
time: {field: f, from: f, keep: true}
location: {field: place, lat: [lat, lat2], lon: [lon, lon2], keep: true}
order: [f, a, c, place]
rows:
  - {table: one, name: "x{c}:{a:04}", write: patch, except: [b]}
  - {table: two, name: "x{c}:{i}:{a}", write: put, only: [a, b, c, e, i, place], when: {has: [i, b], field: e, in: ["true", "1"]}}
  - {table: three, name: "x{c}:two", write: patch, when: {field: j, not_in: [no]}}
`

// plainMapping has no order, no time and no place.
const plainMapping = `
rows:
  - {table: one, name: "{c}", write: put}
`

// bindPair binds a mapping twice: one mapper uses plans, the other looks up every key.
func bindPair(t testing.TB, m *Mapping, colocate byte) (planned, plain *Mapper) {
	t.Helper()
	tables := builtinTables(m)
	for i := range tables {
		if m.Location != nil {
			tables[i].LocationField = m.Location.Field
		}
		if colocate != 0 {
			tables[i].Colocate = colocate
		}
	}
	var both [2]*Mapper
	for i := range both {
		var err error
		if both[i], err = m.Bind(tables); err != nil {
			t.Fatal(err)
		}
	}
	return both[0], both[1]
}

// checkSame maps a line with plans and without, and compares the results. It does not change the
// pairs.
func checkSame(t interface{ Fatalf(string, ...any) }, planned, plain *Mapper, line int64, raw []byte, pairs []pair) {
	got, gotErr := planned.Map(line, raw, bytesOf(pairs))
	want, wantErr := plain.mapPlain(line, raw, plain.dropNull(bytesOf(pairs)))
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) || rhumb.KindOf(gotErr) != rhumb.KindOf(wantErr) {
		t.Fatalf("line %d %q: by plans the error is %v, without it is %v", line, raw, gotErr, wantErr)
	}
	if gotErr == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("line %d %q: by plans it becomes\n%+v, without\n%+v", line, raw, got, want)
	}
}

// bytesOf copies pairs, so that one mapper cannot see changes by the other.
func bytesOf(pairs []pair) (out []pair) {
	for _, p := range pairs {
		out = append(out, pair{bytes.Clone(p.key), bytes.Clone(p.value), p.kind})
	}
	return out
}

// TestPlansChangeNothing checks the property that a mapper with plans returns the same events and
// errors as one that looks up every key, for all keys and values.
func TestPlansChangeNothing(t *testing.T) {
	var mappings []*Mapping
	for _, text := range []string{oddMapping, plainMapping} {
		m, err := ParseMapping([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		mappings = append(mappings, m)
	}
	mappings = append(mappings, builtinMapping(t, "flights"), builtinMapping(t, "roads"))
	keys := []string{
		"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "lat", "lon", "lat2", "lon2", "place", "id", "_c", "_s", "clock",
		"type", "alt_ft", "way_id", "segment", "lat1", "lon1", "new", string(bytes.Repeat([]byte("k"), rhumb.FieldNameSizeMax+1)),
	}
	values := []string{
		"", "-", "0", "7", "12", "1.5", "-1e3", "NaN", "1e999", "true", "false", "no", "x/y", "x:y", "0x0aff", "2026-01-02T15:04:05Z",
		"1533099600", "1,2", "1,2,3,4", "position", "long text with spaces", "91", "181", "-179.5",
	}
	kinds := []valueKind{textValue, textValue, textValue, numberValue, boolValue, nullValue}
	hits, events := int64(0), 0
	rapid.Check(t, func(rt *rapid.T) {
		m := rapid.SampledFrom(mappings).Draw(rt, "mapping")
		colocate := byte(0)
		if m == mappings[0] {
			colocate = ':'
		}
		planned, plain := bindPair(t, m, colocate)
		needed := map[*Mapping][]string{mappings[0]: {"f", "a", "c", "lat", "lat2", "lon", "lon2"}, mappings[1]: {"c"}, mappings[2]: {"id", "_c", "_s"}, mappings[3]: {"way_id", "segment"}}[m]
		sequence := rapid.Permutation(append(rapid.SliceOfN(rapid.SampledFrom(keys), 0, 8).Draw(rt, "keys"), needed...)).Draw(rt, "sequence")
		for line := range int64(rapid.IntRange(2, 6).Draw(rt, "lines")) {
			var pairs []pair
			var raw []byte
			for _, key := range sequence {
				value := strconv.Itoa(rapid.IntRange(0, 80).Draw(rt, "number"))
				kind := textValue
				if rapid.IntRange(0, 11).Draw(rt, "odd") == 0 {
					value, kind = rapid.SampledFrom(values).Draw(rt, "value"), rapid.SampledFrom(kinds).Draw(rt, "kind")
				}
				pairs = append(pairs, pair{[]byte(key), []byte(value), kind})
				raw = append(append(append(raw, key...), '='), value...)
			}
			checkSame(rt, planned, plain, line+1, raw, pairs)
			if _, err := plain.mapPlain(line+1_000, raw, plain.dropNull(bytesOf(pairs))); err == nil {
				events++
			}
		}
		hits += planned.plans.hits.Load()
	})
	if hits == 0 || events == 0 {
		t.Errorf("%d lines were mapped by plans and %d are no errors: nothing was compared", hits, events)
	}
}

// TestPlansOnFeeds compares both ways on whole feeds: the sample, and the real feeds in the folder
// RHUMB_TESTDATA.
func TestPlansOnFeeds(t *testing.T) {
	feeds := []struct {
		file, mapping string
		plans         int64 // maximum number of sequences of keys in the feed
	}{{"testdata/sample.controlstream.gz", "flights", 5}}
	if dir := os.Getenv("RHUMB_TESTDATA"); dir != "" {
		feeds = append(feeds, []struct {
			file, mapping string
			plans         int64
		}{
			{filepath.Join(dir, "flights-switzerland.controlstream.gz"), "flights", 1},
			{filepath.Join(dir, "airports.csv.gz"), "airports", 16},
			{filepath.Join(dir, "roads-monaco.tsv.gz"), "roads", 4},
		}...)
	} else {
		t.Log("RHUMB_TESTDATA is not set: plans are compared on the sample alone")
	}
	for _, feed := range feeds {
		t.Run(filepath.Base(feed.file), func(t *testing.T) {
			m := builtinMapping(t, feed.mapping)
			planned, plain := bindPair(t, m, 0)
			checkFile(t, feed.file, m, planned, plain)
			hits, misses := planned.plans.hits.Load(), planned.plans.misses.Load()
			if misses > feed.plans || hits == 0 {
				t.Errorf("%d lines were mapped by a plan, %d without, want at most %d without: one for each sequence", hits, misses, feed.plans)
			}
		})
	}
}

// checkFile compares both ways on every line of a file that can be decoded.
func checkFile(t *testing.T, file string, m *Mapping, planned, plain *Mapper) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := openLines(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	dec := newDecoder(m.Format, m)
	for {
		line, number, _, err := lines.next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			return
		}
		if pairs, skip, err := dec.decode(line, nil); err == nil && !skip {
			checkSame(t, planned, plain, number, line, pairs)
		}
	}
}

// sequence returns n pairs whose keys identify a sequence.
func sequence(id, n int) (pairs []pair) {
	for i := range n {
		pairs = append(pairs, pair{key: fmt.Appendf(nil, "k%d.%d", id, i), value: []byte("1")})
	}
	return pairs
}

// TestPlanTreeIsBounded guards the bounds of the tree: at most plansSizeMax keys and
// planChildrenMax children, and that sweeps keep plans in use and remove others.
func TestPlanTreeIsBounded(t *testing.T) {
	m, err := ParseMapping([]byte("rows: [{table: one, name: \"x\", write: put}]"))
	if err != nil {
		t.Fatal(err)
	}
	mapper, _ := bindPair(t, m, 0)
	line := int64(0)
	do := func(pairs []pair) {
		line++
		if _, err := mapper.Map(line, nil, pairs); err != nil {
			t.Fatal(err)
		}
	}
	const long = 2_000
	fills := plansSizeMax/(1+long) + 1
	for id := range fills {
		do(sequence(id, long))
	}
	tree := &mapper.plans
	if tree.size > plansSizeMax || tree.size <= plansSizeMax-long-1 {
		t.Fatalf("the tree has %d keys, want at most %d and no room for %d more", tree.size, plansSizeMax, long)
	}
	if len(tree.root.children) > planChildrenMax {
		t.Fatalf("the root has %d children", len(tree.root.children))
	}
	late := sequence(fills+1, long)
	do(late)
	if tree.find(late) != nil {
		t.Fatal("a plan was taken in without room")
	}
	// Between sweeps only the first plan is used.
	for sweeps := range 2 {
		tree.refused = planSweepEvery - 1
		do(sequence(0, long))
		do(late)
		if kept := tree.find(sequence(0, long)) != nil; !kept {
			t.Fatalf("sweep %d dropped a plan in use", sweeps+1)
		}
	}
	if tree.find(late) == nil {
		t.Fatal("plans that nobody uses are still in the way of new ones")
	}
	if tree.size != 2*(1+long) {
		t.Errorf("the tree has %d keys, want those of two plans", tree.size)
	}
	for id := range 2 * planChildrenMax {
		do(sequence(1_000+id, 1))
	}
	if n := len(tree.root.children); n != planChildrenMax {
		t.Errorf("the root has %d children, want %d", n, planChildrenMax)
	}
}
