package ingest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
)

// gzipped packs each text as a member.
func gzipped(t testing.TB, texts ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, text := range texts {
		z := gzip.NewWriter(&out)
		if _, err := io.WriteString(z, text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// pipe hides that an input can be read twice.
type pipe struct{ io.Reader }

// checkPart checks that the tables contain exactly the events of feed(flights, n) up to a line.
func checkPart(t *testing.T, w *memory, flights, n int, lines int64) {
	t.Helper()
	part := newMemory()
	if _, _, err := flightsRun(t, part, strings.NewReader(strings.Join(strings.SplitAfter(feed(flights, n), "\n")[:lines], ""))); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(w.rows, part.rows, bytes.Equal) {
		t.Errorf("%d rows, want the %d of the first %d lines and nothing else", len(w.rows), len(part.rows), lines)
	}
}

// TestGzipCutShort guards that all whole lines of a truncated stream are applied once, whether it
// can be read twice or not; that the error says where the stream and the lines end; and that the
// same ingest continues with the whole input.
func TestGzipCutShort(t *testing.T) {
	const flights, n = 7, 60
	whole := gzipped(t, feed(flights, n))
	for _, cut := range []int{11, 300, len(whole) / 2, len(whole) - 9, len(whole) - 1} {
		w := newMemory()
		first, _, err := flightsRun(t, w, bytes.NewReader(whole[:cut]))
		if rhumb.KindOf(err) != rhumb.Corrupt || !strings.Contains(err.Error(), "ends at byte ") || first.Failed != 0 {
			t.Fatalf("cut to %d bytes: %+v, %v", cut, first, err)
		}
		checkPart(t, w, flights, n, first.Lines)
		if cut >= len(whole)-9 && first.Lines != flights*n {
			t.Errorf("cut to %d bytes, which is all but the checksum: %d lines, want %d", cut, first.Lines, flights*n)
		}
		if piped, _, err := flightsRun(t, newMemory(), pipe{bytes.NewReader(whole[:cut])}); piped.Applied != first.Applied || rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("as a pipe: %+v, %v, want %+v", piped, err, first)
		}
		again, _, err := flightsRun(t, w, bytes.NewReader(whole[:cut]))
		if again.Applied != 0 || again.AlreadyThere != first.Applied || rhumb.KindOf(err) != rhumb.Corrupt {
			t.Errorf("again: %+v, %v", again, err)
		}
		rest, _, err := flightsRun(t, w, bytes.NewReader(whole))
		if err != nil || rest.AlreadyThere != first.Applied || rest.Applied != flights*n-first.Applied {
			t.Errorf("mended: first %+v, then %+v, %v", first, rest, err)
		}
		checkPart(t, w, flights, n, flights*n)
	}
}

// TestGzipDamaged guards that no line of a member with a wrong checksum is applied, wherever a bit
// was flipped, while the lines of the members before it are.
func TestGzipDamaged(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	const flights, n = 5, 80
	lines := strings.SplitAfter(feed(flights, n), "\n")
	one, two := strings.Join(lines[:150], ""), strings.Join(lines[150:], "")
	begin := len(gzipped(t, one))
	for range 100 {
		damaged := gzipped(t, one, two)
		at := begin + 10 + rng.IntN(len(damaged)-begin-10) // after the header, which does not affect lines
		damaged[at] ^= 1 << rng.IntN(8)
		w := newMemory()
		counts, _, err := flightsRun(t, w, bytes.NewReader(damaged))
		if err == nil { // padding between the data and the checksum of a member has no meaning
			checkPart(t, w, flights, n, flights*n)
			continue
		}
		if rhumb.KindOf(err) != rhumb.Corrupt || counts.Lines != 150 || !strings.Contains(err.Error(), "line 150 ") {
			t.Fatalf("a flip in byte %d of %d: %+v, %v", at, len(damaged), counts, err)
		}
		checkPart(t, w, flights, n, 150)
	}
}

// TestInputFails guards that lines read before an input failed are written, so that a rerun has
// less to do.
func TestInputFails(t *testing.T) {
	w := newMemory()
	broken := io.MultiReader(strings.NewReader(feed(3, 100)+"_c 9"), failing{})
	counts, _, err := flightsRun(t, w, broken)
	if err == nil || !strings.Contains(err.Error(), "after line 300: the disk is gone") || counts.Applied != 300 || counts.Lines != 300 {
		t.Fatalf("%+v, %v", counts, err)
	}
	checkFeed(t, w, 3, 100)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the disk is gone") }
