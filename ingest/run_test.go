package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
)

// flightsRun runs an input with the mapping for flights into w.
func flightsRun(t *testing.T, w *memory, input io.Reader, change ...func(*Config)) (Counts, []Rejection, error) {
	t.Helper()
	return runMapping(t, "flights", w, input, change...)
}

func runMapping(t *testing.T, mapping string, w *memory, input io.Reader, change ...func(*Config)) (Counts, []Rejection, error) {
	t.Helper()
	m := builtinMapping(t, mapping)
	var rejected []Rejection
	cfg := Config{Input: input, Mapping: m, Tables: builtinTables(m), Writer: w, Rejected: func(r Rejection) error {
		r.Raw = bytes.Clone(r.Raw)
		rejected = append(rejected, r)
		return nil
	}}
	for _, f := range change {
		f(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := r.Run(t.Context())
	if counts.Lines != counts.Applied+counts.AlreadyThere+counts.Rejected+counts.Failed {
		t.Errorf("the counts do not add up: %+v", counts)
	}
	if w.overlap {
		t.Error("two batches of one record were in flight at once")
	}
	return counts, rejected, err
}

// feed returns events of many flights, in order, n for each flight.
func feed(flights, n int) string {
	var b strings.Builder
	seq := 0
	for i := range n {
		for f := range flights {
			seq++
			typ := "position"
			if i == 0 {
				typ = "track_start"
			}
			fmt.Fprintf(&b, "_c\t%d\t_s\t%d\ttype\t%s\tid\tF%d\tlat\t%d\tlon\t%d\tstep\t%d\n", 1000+i, seq, typ, f, f%90, i%180, i)
		}
	}
	return b.String()
}

// checkFeed checks that the tables contain the result of feed(flights, n): the last status of each
// flight, every position, and one event each.
func checkFeed(t *testing.T, w *memory, flights, n int) {
	t.Helper()
	if got := [3]int{w.count(1), w.count(2), w.count(3)}; got != [3]int{flights, flights * n, flights} {
		t.Errorf("flights, positions, events: %v rows, want %v", got, [3]int{flights, flights * n, flights})
	}
	for f := range flights {
		step, _ := w.row(t, 1, fmt.Sprintf("F%d", f)).Get("step")
		if step.Text() != fmt.Sprint(n-1) {
			t.Errorf("flight F%d stands at step %s, want %d", f, step, n-1)
		}
	}
}

// TestRunIsExact guards that every event is applied once, in order, and that a second run changes
// nothing.
func TestRunIsExact(t *testing.T) {
	w := newMemory()
	input := feed(17, 40)
	counts, _, err := flightsRun(t, w, strings.NewReader(input))
	if err != nil || counts.Applied != 17*40 {
		t.Fatalf("%+v, %v", counts, err)
	}
	checkFeed(t, w, 17, 40)
	writes := w.writes
	counts, _, err = flightsRun(t, w, strings.NewReader(input))
	if err != nil || counts.AlreadyThere != 17*40 || w.writes != writes {
		t.Fatalf("again: %+v, %v, %d batches more", counts, err, w.writes-writes)
	}
	checkFeed(t, w, 17, 40)
}

// TestRunGoesOn guards that the next run completes a run that was stopped anywhere, with exact
// counts.
func TestRunGoesOn(t *testing.T) {
	input := feed(7, 30)
	for try := range 12 {
		w := newMemory()
		w.fail = func(n int, _ []rhumb.Mutation) (error, bool) {
			if n > 5*try {
				return rhumb.E("test", rhumb.NotFound, "the table is gone"), false
			}
			return nil, false
		}
		first, _, err := flightsRun(t, w, strings.NewReader(input), func(c *Config) { c.MergeEvents = 3 })
		if rhumb.KindOf(err) != rhumb.NotFound || first.Failed == 0 {
			t.Fatalf("%+v, %v", first, err)
		}
		w.fail = nil
		second, _, err := flightsRun(t, w, strings.NewReader(input))
		if err != nil || second.AlreadyThere != first.Applied || second.Applied != 7*30-first.Applied {
			t.Fatalf("first %+v, then %+v, %v", first, second, err)
		}
		checkFeed(t, w, 7, 30)
	}
}

// TestRunSurvivesFaults guards that rejections and lost answers change neither the tables nor the
// sum of the counts.
func TestRunSurvivesFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newMemory()
		w.fail = func(int, []rhumb.Mutation) (error, bool) {
			switch rng.IntN(6) {
			case 0:
				return rhumb.E("test", rhumb.Unavailable, "no primary"), false
			case 1:
				return rhumb.E("test", rhumb.Unknown, "the answer was lost"), true
			case 2:
				return rhumb.E("test", rhumb.Unknown, "the request was lost"), false
			}
			return nil, false
		}
		counts, _, err := flightsRun(t, w, strings.NewReader(feed(9, 50)))
		if err != nil || counts.Applied+counts.AlreadyThere != 9*50 || counts.Retries == 0 {
			t.Fatalf("%+v, %v", counts, err)
		}
		// Only the first event of a record, whose order fields are not known yet, may count as
		// there if its answer was lost.
		if counts.AlreadyThere > 9 {
			t.Errorf("%d events count as already there, want at most one a record", counts.AlreadyThere)
		}
		checkFeed(t, w, 9, 50)
	})
}

// TestRunGivesUp guards that a run ends after RetryFor if the cluster remains unavailable, with the
// kind of the last error.
func TestRunGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMemory()
		w.fail = func(int, []rhumb.Mutation) (error, bool) { return rhumb.ErrUnavailable, false }
		start := time.Now()
		counts, _, err := flightsRun(t, w, strings.NewReader(feed(3, 3)))
		if rhumb.KindOf(err) != rhumb.Unavailable || counts.Failed != counts.Lines {
			t.Errorf("%+v, %v", counts, err)
		}
		if took := time.Since(start); took > retryForDefault || took < retryForDefault/2 {
			t.Errorf("gave up after %v, want about %v", took, retryForDefault)
		}
	})
}

// TestRunRejects guards that a malformed line is reported with its number and reason and stops
// nothing, and that an event that only the cluster can reject is rejected alone, even from a merged
// batch.
func TestRunRejects(t *testing.T) {
	w := newMemory()
	w.fail = func(_ int, m []rhumb.Mutation) (error, bool) {
		for _, mut := range m {
			if bytes.Contains(mut.Name, []byte("/1020/")) {
				return rhumb.E("test", rhumb.TooLarge, "the record would have too many fields"), false
			}
		}
		return nil, false
	}
	input := "_c 1 _s\n" + feed(2, 40) + "\n_c 2000 _s 1 id F0 lat 99 lon 0\n" + strings.Repeat("x", LineSizeMax+1) + "\n_c 2000 _s 2 id F1 step 39"
	counts, rejected, err := flightsRun(t, w, strings.NewReader(input))
	if err != nil || counts.Rejected != 5 || counts.Applied != 79 {
		t.Fatalf("%+v, %v", counts, err)
	}
	lines := map[int64]string{}
	for _, r := range rejected {
		lines[r.Line] = r.Err.Error()
	}
	for line, want := range map[int64]string{1: "has no value", 42: "too many fields", 43: "too many fields", 83: "latitude 99", 84: "longer than"} {
		if !strings.Contains(lines[line], want) {
			t.Errorf("line %d: %q, want %q in it (of %v)", line, lines[line], want, lines)
		}
	}
}

// TestRunStrict guards that strict ends the run at the first malformed line.
func TestRunStrict(t *testing.T) {
	counts, _, err := flightsRun(t, newMemory(), strings.NewReader(feed(1, 2)+"_c\n"+feed(1, 2)), func(c *Config) { c.Strict = true })
	if rhumb.KindOf(err) != rhumb.InvalidArgument || !strings.Contains(err.Error(), "line 3") || counts.Lines != 3 {
		t.Errorf("%+v, %v", counts, err)
	}
}

// TestRunInterrupted guards that a run that waits for a silent pipe ends when it is cancelled, with
// the events written before.
func TestRunInterrupted(t *testing.T) {
	m := builtinMapping(t, "flights")
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		r, err := New(Config{Input: in, Mapping: m, Tables: builtinTables(m), Writer: newMemory()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = io.WriteString(out, feed(2, 2))
			synctest.Wait()
			cancel()
		}()
		counts, err := r.Run(ctx)
		if rhumb.KindOf(err) != rhumb.Canceled || counts.Applied != 4 || counts.Lines != 4 {
			t.Errorf("%+v, %v", counts, err)
		}
		_ = out.Close()
	})
}

// TestWindow guards that no more is read ahead than the window allows.
func TestWindow(t *testing.T) {
	m := builtinMapping(t, "flights")
	synctest.Test(t, func(t *testing.T) {
		w := newMemory()
		block := make(chan struct{})
		w.fail = func(int, []rhumb.Mutation) (error, bool) { <-block; return nil, false }
		r, err := New(Config{Input: strings.NewReader(feed(1, 100)), Mapping: m, Tables: builtinTables(m), Writer: w, WindowEvents: 10})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			synctest.Wait()
			if lines := r.Counts().Lines; lines != 11 {
				t.Errorf("%d lines read with none answered, want the 10 of the window and the one that waits", lines)
			}
			close(block)
		}()
		if counts, err := r.Run(t.Context()); err != nil || counts.Applied != 100 {
			t.Errorf("%+v, %v", counts, err)
		}
	})
}

// TestRunMerges guards that waiting events of one record share a batch, except where the table
// keeps history.
func TestRunMerges(t *testing.T) {
	for _, history := range []time.Duration{0, time.Hour} {
		w := newMemory()
		counts, _, err := flightsRun(t, w, strings.NewReader(feed(1, 500)), func(c *Config) { c.Tables[0].History = history; c.Workers = 1 })
		if err != nil || counts.Applied != 500 {
			t.Fatalf("%+v, %v", counts, err)
		}
		checkFeed(t, w, 1, 500)
		if merged := counts.Batches < 500; merged != (history == 0) {
			t.Errorf("history %v: %d batches of 500 events", history, counts.Batches)
		}
	}
}

// TestGzip guards that gzip is detected by its first bytes, and that a truncated stream is an error
// and not an end.
func TestGzip(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = io.WriteString(z, feed(3, 200))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	counts, _, err := flightsRun(t, newMemory(), bytes.NewReader(zipped.Bytes()))
	if err != nil || counts.Applied != 600 {
		t.Errorf("%+v, %v", counts, err)
	}
	for cut := zipped.Len() - 1; cut > 1; cut /= 2 {
		if _, _, err := flightsRun(t, newMemory(), bytes.NewReader(zipped.Bytes()[:cut])); rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("cut to %d bytes: %v, want corrupt", cut, err)
		}
	}
}

// TestLines guards that lines are complete and numbered whatever the sizes of reads and lines.
func TestLines(t *testing.T) {
	var want []string
	for i := range 400 {
		want = append(want, strings.Repeat(string(rune('a'+i%26)), i*i*7%9000))
	}
	want[77] = strings.Repeat("z", LineSizeMax)
	for _, ending := range []string{"\n", "\r\n"} {
		lines, err := openLines(t.Context(), iotestReader{strings.NewReader(strings.Join(want, ending))})
		if err != nil {
			t.Fatal(err)
		}
		var got [][]byte
		for {
			line, number, tooLong, err := lines.next()
			if err != nil {
				break
			}
			if got = append(got, line); number != int64(len(got)) || tooLong {
				t.Fatalf("line %d comes as number %d, too long %v", len(got), number, tooLong)
			}
		}
		for i := range want {
			if i >= len(got) || string(got[i]) != want[i] {
				t.Fatalf("line %d of %d differs", i+1, len(got))
			}
		}
	}
}

// iotestReader returns reads of odd sizes.
type iotestReader struct{ r io.Reader }

func (r iotestReader) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), 1+len(p)%4093)]) }

// TestAllocations is the allocation budget of the decode path: a line of a live feed becomes a
// batch with one allocation for its bytes, one for its rows and one for its order.
func TestAllocations(t *testing.T) {
	const budget = 3
	m := builtinMapping(t, "flights")
	mapper, err := m.Bind(builtinTables(m))
	if err != nil {
		t.Fatal(err)
	}
	line := []byte("_c\t1533099600\t_s\t1\ttype\ttrack_start\tident\tTOM2XE\tid\tTOM2XE-1533099600-adsb-4067f2\thexid\t4067f2\tclock\t1533099600\tlat\t46.67923\tlon\t10.20218\talt_ft\t38000\tgs\t438\theading\t292\tvrate\t0\totherPedigrees\t{aireon wide}\tupdateType\tA")
	r, dec := &Run{mapper: mapper}, newDecoder(Controlstream, m)
	var pairs []pair
	number := int64(0)
	allocs := testing.AllocsPerRun(100, func() {
		number++
		if pairs, _, _, err = r.makeEvent(dec, pairs[:0], line, number, false); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > budget {
		t.Errorf("%.0f allocations a line, the budget is %d", allocs, budget)
	}
}

// TestRealFiles reads the real feeds and tables in the folder RHUMB_TESTDATA.
func TestRealFiles(t *testing.T) {
	dir := os.Getenv("RHUMB_TESTDATA")
	if dir == "" {
		t.Skip("RHUMB_TESTDATA is not set: the real flights, airports and roads are not read")
	}
	for _, c := range []struct {
		file, mapping string
		lines         int64
	}{
		{"flights-switzerland.controlstream.gz", "flights", 139098},
		{"airports.csv.gz", "airports", 7698},
		{"roads-monaco.tsv.gz", "roads", 5178},
		{"roads-campo-grande.tsv.gz", "roads", 19408},
	} {
		t.Run(c.file, func(t *testing.T) {
			f, err := os.Open(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w := newMemory()
			counts, rejected, err := runMapping(t, c.mapping, w, f)
			if err != nil || counts.Applied != c.lines {
				t.Fatalf("%+v, %v", counts, err)
			}
			for _, r := range rejected {
				t.Errorf("line %d: %v", r.Line, r.Err)
			}
			if c.mapping == "flights" && (w.count(1) != 1243 || w.count(2) != 139098 || w.count(3) != 1243) {
				t.Errorf("%d flights, %d positions, %d events", w.count(1), w.count(2), w.count(3))
			}
		})
	}
}

// TestSample reads the generated sample in the repository, in place of the real files.
func TestSample(t *testing.T) {
	f, err := os.Open("testdata/sample.controlstream.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := newMemory()
	counts, rejected, err := flightsRun(t, w, f)
	if err != nil || counts.Applied != 600 || counts.Rejected != 2 || len(rejected) != 2 {
		t.Errorf("%+v, %v", counts, err)
	}
	if counts.PlanHits != 596 || counts.PlanMisses != 5 {
		t.Errorf("%d lines were mapped by plans and %d without, want 596, and the first of each of 4 sequences and a malformed one", counts.PlanHits, counts.PlanMisses)
	}
}

// BenchmarkMap measures the decode path alone, from the bytes of a line to a batch: by plan, and by
// looking up each key.
func BenchmarkMap(b *testing.B) {
	for _, way := range []struct {
		name string
		do   func(*Mapper, int64, []byte, []pair) (Event, error)
	}{{"planned", (*Mapper).Map}, {"plain", (*Mapper).mapPlain}} {
		b.Run(way.name, func(b *testing.B) {
			m := builtinMapping(b, "flights")
			mapper, err := m.Bind(builtinTables(m))
			if err != nil {
				b.Fatal(err)
			}
			line := []byte("_c\t1533099600\t_s\t1\ttype\tposition\tident\tTOM2XE\tid\tTOM2XE-1533099600-adsb-4067f2\thexid\t4067f2\tclock\t1533099600\tlat\t46.67923\tlon\t10.20218\talt_ft\t38000\tgs\t438\theading\t292\tvrate\t0\tupdateType\tA")
			dec := newDecoder(Controlstream, m)
			var pairs []pair
			number := int64(0)
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				number++
				if pairs, _, err = dec.decode(line, pairs[:0]); err != nil {
					b.Fatal(err)
				}
				if _, err = way.do(mapper, number, line, pairs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMapFeed measures a line from the input to a batch: splitting lines, decoding and
// mapping, over the sample, whose lines have several sequences of keys.
func BenchmarkMapFeed(b *testing.B) {
	f, err := os.Open("testdata/sample.controlstream.gz")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		b.Fatal(err)
	}
	feed, err := io.ReadAll(unzipped)
	if err != nil {
		b.Fatal(err)
	}
	m := builtinMapping(b, "flights")
	mapper, err := m.Bind(builtinTables(m))
	if err != nil {
		b.Fatal(err)
	}
	r, dec := &Run{mapper: mapper}, newDecoder(Controlstream, m)
	var pairs []pair
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		lines, err := openLines(b.Context(), bytes.NewReader(feed))
		if err != nil {
			b.Fatal(err)
		}
		for {
			line, number, tooLong, err := lines.next()
			if err != nil {
				break
			}
			n++
			pairs, _, _, _ = r.makeEvent(dec, pairs[:0], line, int64(n)+number, tooLong) // two lines of the sample are malformed
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/line")
}
