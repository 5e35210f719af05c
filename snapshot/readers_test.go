package snapshot_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// goQuery answers questions by the Go reader, as query.c does by the C reader.
type goQuery struct {
	c    *reader.Client
	view reader.View
}

func TestGoldenGo(t *testing.T) {
	for _, image := range goldenImages {
		t.Run(image, func(t *testing.T) {
			c, err := reader.Attach(unpackGolden(t, image), reader.Options{VerifyChecksums: true})
			if err != nil {
				t.Fatal(err)
			}
			q := goQuery{c: c}
			for _, x := range goldenQuestions(t, image) {
				got, err := q.answer(strings.Fields(x.Ask))
				if err != nil {
					got = append(got, errorLine(err))
				}
				sameAnswer(t, x, got)
			}
			q.view.Unlock()
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// errorLine writes an error as answers have it.
func errorLine(err error) string {
	switch rhumb.KindOf(err) {
	case rhumb.NotFound:
		return "! not found"
	case rhumb.Unavailable:
		return "! unavailable"
	case rhumb.InvalidArgument:
		if text := err.Error(); strings.Contains(text, "keeps no") {
			return "! not supported by the table"
		}
		return "! invalid argument"
	}
	return "! " + err.Error()
}

func itemKey(it *reader.Item) format.Key {
	return format.Key{Number: it.Number, Name: it.Name, ShardKey: it.ShardKey}
}

func itemLine(it *reader.Item) string {
	return line(itemKey(it), it.Version, it.HLC, it.Expiry, it.HasBox, it.Box, it.Value)
}

func (q *goQuery) answer(w []string) (out []string, err error) {
	switch w[0] {
	case "lock":
		return q.lock(w)
	case "commit":
		c, err := q.view.Commit()
		return []string{fmt.Sprintf("version=%d closed=%d event=%d records=%d", c.Version, uint64(c.Closed), c.Event, c.Records)}, err
	case "position":
		n := numbers(w[1:])
		p, err := q.view.Position(rhumb.RangeID{Region: rhumb.RegionID(n[0]), Slot: rhumb.Slot(n[1])})
		if rhumb.KindOf(err) == rhumb.NotFound {
			return []string{"-"}, nil
		}
		return []string{fmt.Sprintf("epoch=%d seq=%d hlc=%d", p.Epoch, p.Seq, uint64(p.HLC))}, err
	case "tables":
		return q.tables()
	}
	t, err := q.view.Table(w[1])
	if err != nil {
		return nil, err
	}
	switch w[0] {
	case "get":
		return q.get(&t, w[2])
	case "mget":
		return q.mget(&t, w[2:])
	case "field":
		return q.field(&t, w[2], w[3])
	}
	return q.query(&t, w)
}

func (q *goQuery) lock(w []string) (out []string, err error) {
	q.view.Unlock()
	switch {
	case w[1] == "closed":
		q.view, err = q.c.LockClosed()
	case w[1] == "version":
		q.view, err = q.c.LockVersion(uint64(numbers(w[2:])[0]))
	default:
		q.view, err = q.c.Lock()
	}
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("version=%d closed=%d", q.view.Version(), uint64(q.view.Closed()))}, nil
}

func (q *goQuery) tables() (out []string, err error) {
	for _, t := range q.c.Tables() {
		out = append(out, fmt.Sprintf("%s id=%d kind=%d flags=%d shards=%d location=%s",
			t.Name, t.ID, t.KeyKind, t.Flags&^format.TableUsed, t.ShardCount, t.LocationField))
	}
	return out, nil
}

func numbers(words []string) (out []float64) {
	for _, w := range words {
		n, _ := strconv.ParseFloat(w, 64)
		out = append(out, n)
	}
	return out
}

// lookUp finds a key as questions write it.
func lookUp(t *reader.Table, key string) (reader.Item, error) {
	kind, digits, named := strings.Cut(key, ":")
	if !named {
		n, err := strconv.ParseUint(key, 10, 64)
		if err != nil {
			return reader.Item{}, err
		}
		return t.GetUint64(n)
	}
	name, err := hex.DecodeString(digits)
	if err != nil {
		return reader.Item{}, err
	}
	if kind == "n" {
		return t.Get(name)
	}
	k := rhumb.ShardKey{Home: rhumb.RangeID{Region: rhumb.RegionID(be32(name)), Slot: rhumb.Slot(be32(name[4:]))}, Sequence: uint64(be32(name[8:]))<<32 | uint64(be32(name[12:]))}
	return t.GetShardKey(k)
}

func be32(p []byte) uint32 {
	return uint32(p[0])<<24 | uint32(p[1])<<16 | uint32(p[2])<<8 | uint32(p[3])
}

func (q *goQuery) get(t *reader.Table, key string) ([]string, error) {
	it, err := lookUp(t, key)
	if rhumb.KindOf(err) == rhumb.NotFound {
		return []string{"-"}, nil
	}
	if err != nil {
		return nil, err
	}
	return []string{itemLine(&it)}, nil
}

// mget looks numbers up together; names too, but for shard keys, which the batch does not take.
func (q *goQuery) mget(t *reader.Table, keys []string) (out []string, err error) {
	items := make([]reader.Item, len(keys))
	switch {
	case t.Info().KeyKind == format.KeyUint64:
		var ids []uint64
		for _, k := range keys {
			id, err := strconv.ParseUint(k, 10, 64)
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		_, err = t.MultiGetUint64(ids, items)
	default:
		for i, k := range keys {
			if items[i], err = lookUp(t, k); rhumb.KindOf(err) != rhumb.NotFound && err != nil {
				return nil, err
			}
		}
		err = q.mgetNames(t, keys, items)
	}
	for i := range items {
		if items[i].Found {
			out = append(out, itemLine(&items[i]))
		} else {
			out = append(out, "-")
		}
	}
	return out, err
}

func (q *goQuery) mgetNames(t *reader.Table, keys []string, want []reader.Item) error {
	var names [][]byte
	var wanted []reader.Item
	for i, k := range keys {
		if digits, ok := strings.CutPrefix(k, "n:"); ok {
			name, err := hex.DecodeString(digits)
			if err != nil {
				return err
			}
			names, wanted = append(names, name), append(wanted, want[i])
		}
	}
	got := make([]reader.Item, len(names))
	if _, err := t.MultiGet(names, got); err != nil {
		return err
	}
	for i := range got {
		if got[i].Found != wanted[i].Found || !bytes.Equal(got[i].Value, wanted[i].Value) || got[i].Version != wanted[i].Version {
			return fmt.Errorf("name %q: %+v by MultiGet, %+v by Get", names[i], got[i], wanted[i])
		}
	}
	return nil
}

func (q *goQuery) field(t *reader.Table, key, name string) ([]string, error) {
	it, err := lookUp(t, key)
	if rhumb.KindOf(err) == rhumb.NotFound {
		return []string{"-"}, nil
	}
	v, ok, err := rhumb.RecordField(it.Value, name)
	if !ok {
		return []string{"-"}, err
	}
	text := v.String()
	switch v.Kind() {
	case rhumb.FieldString, rhumb.FieldBytes:
		text = hex.EncodeToString([]byte(v.Text()))
	case rhumb.FieldBool:
		text = map[bool]string{false: "0", true: "1"}[v.Bool()]
	case rhumb.FieldTimestamp:
		text = strconv.FormatInt(v.Time().UnixMicro(), 10)
	case rhumb.FieldPoint, rhumb.FieldBox:
		text = strings.ReplaceAll(text, ",", " ")
	}
	return []string{v.Kind().String() + " " + text}, nil
}

// ringsOf reads the corners of rings, between which is a slash.
func ringsOf(w []string) (rings [][]rhumb.Point) {
	for _, ring := range strings.Split(strings.Join(w, " "), "/") {
		var points []rhumb.Point
		for pair := range slices.Chunk(numbers(strings.Fields(ring)), 2) {
			points = append(points, rhumb.Point{Lat: pair[0], Lon: pair[len(pair)-1]})
		}
		rings = append(rings, points)
	}
	return rings
}

func (q *goQuery) query(t *reader.Table, w []string) (out []string, err error) {
	show := func(it *reader.Item) bool {
		out = append(out, itemLine(it))
		return true
	}
	showNear := func(it *reader.Item) bool {
		out = append(out, fmt.Sprintf("%s distance=%.2f", itemLine(it), it.Distance))
		return true
	}
	x := numbers(w[2:])
	var points []rhumb.Point
	for pair := range slices.Chunk(x, 2) {
		points = append(points, rhumb.Point{Lat: pair[0], Lon: pair[len(pair)-1]})
	}
	switch w[0] {
	case "scan":
		prefix := []byte(nil)
		if len(w) > 2 {
			prefix, err = hex.DecodeString(w[2])
		}
		if err == nil {
			err = t.VisitScan(prefix, show)
		}
	case "bbox":
		err = t.VisitBBox(rhumb.Box{Min: points[0], Max: points[1]}, show)
	case "radius":
		err = t.VisitRadius(points[0], x[2], showNear)
	case "nearest": // this reader has no limit of distance
		err = t.VisitNearest(points[0], int(x[2]), func(it *reader.Item) bool { return it.Distance > x[3] || showNear(it) })
	case "polygon":
		err = t.VisitPolygon(ringsOf(w[2:]), show)
	}
	return out, err
}

// run runs a query program of another language over a golden image and compares its answers.
func runGolden(t *testing.T, program ...string) {
	t.Helper()
	for _, image := range goldenImages {
		t.Run(image, func(t *testing.T) {
			questions := goldenQuestions(t, image)
			var asks strings.Builder
			for _, q := range questions {
				fmt.Fprintln(&asks, q.Ask)
			}
			cmd := exec.Command(program[0], append(slices.Clone(program[1:]), unpackGolden(t, image))...)
			cmd.Stdin = strings.NewReader(asks.String())
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.String())
			}
			in := bufio.NewScanner(bytes.NewReader(stdout))
			in.Buffer(nil, 1<<20)
			for _, q := range questions {
				got := []string{}
				for in.Scan() && in.Text() != "." {
					got = append(got, in.Text())
				}
				sameAnswer(t, q, got)
			}
		})
	}
}

// compiled has the programs that compileReader has compiled, by source, in the folder compiledDir: with sanitizers the compiler takes
// longer than most tests.
var (
	compiled    = map[string]string{}
	compiledDir string
)

// compileReader compiles a program over the C reader, once for all tests, with the sanitizers when they are there.
func compileReader(t *testing.T, compiler, standard, source string, sanitize bool) string {
	t.Helper()
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("no %s: apt-get install gcc g++ libc6-dev", compiler)
	}
	if program := compiled[source]; program != "" {
		return program
	}
	program := filepath.Join(compiledDir, strings.TrimSuffix(source, filepath.Ext(source)))
	args := []string{standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"}
	if sanitize {
		args = append(args, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
	}
	args = append(args, "-o", program, filepath.Join("reader/c", source), "-lm", "-pthread")
	if text, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", compiler, args, err, text)
	}
	compiled[source] = program
	return program
}

func TestGoldenC(t *testing.T) {
	runGolden(t, compileReader(t, "gcc", "-std=c11", "query.c", true))
}

func TestGoldenCpp(t *testing.T) {
	runGolden(t, compileReader(t, "g++", "-std=c++20", "query_cpp.cc", true))
}

// TestReaderC runs the C reader's own tests, among them thousands of damaged images that must not make it fault.
func TestReaderC(t *testing.T) {
	program := compileReader(t, "gcc", "-std=c11", "reader_test.c", true)
	for _, image := range goldenImages {
		cmd := exec.Command(program, unpackGolden(t, image), "100")
		cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1")
		text, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", image, err, text)
		}
		t.Logf("%s: %s", image, text)
	}
}

// buildPython builds the wheel in a virtual environment and gives its interpreter. What it needs may come from the machine's
// packages or from a registry; without either the test is skipped.
func buildPython(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	python := filepath.Join(dir, "venv/bin/python")
	if text, err := exec.Command("python3", "-m", "venv", "--system-site-packages", filepath.Join(dir, "venv")).CombinedOutput(); err != nil {
		t.Skipf("no virtual environment: apt-get install python3-venv: %v\n%s", err, text)
	}
	needs := exec.Command(python, "-c", "import numpy, setuptools, wheel, sysconfig, os; os.stat(sysconfig.get_paths()['include'] + '/Python.h')")
	if needs.Run() != nil {
		get := exec.Command(python, "-m", "pip", "install", "-q", "--timeout", "5", "--retries", "1", "numpy", "setuptools", "wheel")
		if text, err := get.CombinedOutput(); err != nil {
			t.Skipf("no registry of packages: apt-get install python3-dev python3-numpy python3-setuptools python3-wheel: %v\n%s", err, text)
		}
	}
	for _, name := range []string{"c", "python"} { // a build leaves files in its folder
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("reader", name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "python/build")); err != nil { // of an earlier one, with other sources perhaps
		t.Fatal(err)
	}
	build := exec.Command(python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", filepath.Join(dir, "python"))
	if text, err := build.CombinedOutput(); err != nil {
		if strings.Contains(string(text), "Python.h") {
			t.Skipf("no headers of Python: apt-get install python3-dev\n%s", text)
		}
		t.Fatalf("%v: %v\n%s", build.Args, err, text)
	}
	return python
}

func TestGoldenPython(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: apt-get install gcc libc6-dev")
	}
	python := buildPython(t)
	runGolden(t, python, "reader/python/tests/query.py")
	flipPositionsOf(t, python, "reader/python/tests/query.py")
	text, err := exec.Command(python, "reader/python/tests/test_api.py", unpackGolden(t, "appended")).CombinedOutput()
	if err != nil {
		t.Errorf("test_api.py: %v\n%s", err, text)
	}
}

// TestBenchC runs the micro-benchmark on a golden image: every line is JSON, and what it counts is there.
func TestBenchC(t *testing.T) {
	program := compileReader(t, "gcc", "-std=c11", "bench.c", false)
	text, err := exec.Command(program, "-o", "2000", "-k", "500", "-r", "2", "-q", "100", unpackGolden(t, "appended"), "cars").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]float64{}
	for l := range bytes.Lines(text) {
		var m struct {
			Name string
			Mops float64
		}
		if err := json.Unmarshal(l, &m); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		names[m.Name] = m.Mops
	}
	for _, want := range []string{"p32", "get", "mget8", "mget16", "mget32", "mget64", "get_old", "mget32_old", "bbox_2000"} {
		if names[want] <= 0 {
			t.Errorf("%s: %v Mops, want more than 0", want, names[want])
		}
	}
}
