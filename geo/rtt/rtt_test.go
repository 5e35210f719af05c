package rtt

import (
	"slices"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

const ms = time.Millisecond

func TestPublished(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want time.Duration
		ok   bool
	}{
		{"singapore", "virginia", 253*ms + 500*time.Microsecond, true}, // TippyDB, section 4
		{"virginia", "singapore", 253*ms + 500*time.Microsecond, true},
		{"frankfurt", "virginia", 88 * ms, true},
		{"frankfurt", "singapore", 156 * ms, true},
		{"us-east-1", "eu-central-1", 88 * ms, true},
		{"Sao Paulo", "sao_paulo", 0, true},
		{"atlantis", "singapore", 0, false},
		{"singapore", "", 0, false},
	} {
		if got, ok := Published(tc.a, tc.b); got != tc.want || ok != tc.ok {
			t.Errorf("%s to %s: %v %v, want %v %v", tc.a, tc.b, got, ok, tc.want, tc.ok)
		}
	}
}

// No signal is faster than light in fibre along the great circle: a figure below that was mistyped, or stands in the wrong
// row. The other way round, no pair takes five times as long; the worst, over the South Atlantic, goes by Europe.
func TestMatrixIsPossible(t *testing.T) {
	if len(milliseconds) != len(regions) {
		t.Fatalf("%d rows for %d regions", len(milliseconds), len(regions))
	}
	for i, row := range milliseconds {
		if len(row) != i {
			t.Fatalf("row %s has %d columns, want %d", regions[i].Name, len(row), i)
		}
		for j, got := range row {
			least := 2 * geo.Distance(regions[i].Location, regions[j].Location) / fibreSpeed * 1000
			if got < least || got > 5*least+10 {
				t.Errorf("%s to %s: %v ms, light takes %.1f ms", regions[i].Name, regions[j].Name, got, least)
			}
		}
	}
}

func TestNamesAreDistinct(t *testing.T) {
	seen := map[string]string{}
	for _, r := range Regions() {
		if err := r.Location.Validate(); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
		for _, n := range append([]string{r.Name}, r.Aliases...) {
			if other, twice := seen[normalizeName(n)]; twice {
				t.Errorf("%q names both %s and %s", n, other, r.Name)
			}
			seen[normalizeName(n)] = r.Name
		}
	}
	for _, n := range DefaultRegions() {
		if r, ok := Lookup(n); !ok || r.Name != n {
			t.Errorf("default region %s is not well known", n)
		}
	}
	if r, ok := Lookup("Hong Kong"); !ok || r.Name != "hongkong" {
		t.Errorf("Hong Kong: %v %v", r, ok)
	}
	if _, ok := Lookup("mars"); ok {
		t.Error("mars is well known")
	}
}

// The model's promise, as its comment cites it: half of all pairs within 15 %, nine of ten within 35 %.
func TestModelFits(t *testing.T) {
	var errs []float64
	for i, row := range milliseconds {
		for j, want := range row {
			got := Model(regions[i].Location, regions[j].Location).Seconds() * 1000
			errs = append(errs, max(got/want-1, 1-got/want))
		}
	}
	slices.Sort(errs)
	median, p90 := errs[len(errs)/2], errs[len(errs)*9/10]
	t.Logf("%d pairs: median error %.1f %%, p90 %.1f %%, worst %.1f %%", len(errs), 100*median, 100*p90, 100*errs[len(errs)-1])
	if median > 0.15 || p90 > 0.35 {
		t.Errorf("median error %.2f, p90 %.2f; want at most 0.15 and 0.35", median, p90)
	}
}

func TestBetween(t *testing.T) {
	sg := rhumb.Region{Name: "singapore", Location: rhumb.Point{Lat: 1.29, Lon: 103.85}}
	va := rhumb.Region{Name: "virginia", Location: rhumb.Point{Lat: 39.04, Lon: -77.49}}
	own := rhumb.Region{Name: "basement", Location: rhumb.Point{Lat: 47.4, Lon: 8.5}}
	if got := Between(sg, va); got != 253500*time.Microsecond {
		t.Errorf("well-known pair: %v", got)
	}
	if got := Between(own, own); got != 0 {
		t.Errorf("within a region: %v", got)
	}
	got, want := Between(own, sg), Model(own.Location, sg.Location)
	if got != want || got < 100*ms || got > 300*ms {
		t.Errorf("unknown pair: %v, want the model's %v", got, want)
	}
	if got := Model(own.Location, own.Location); got != 0 {
		t.Errorf("one place: %v", got)
	}
}

func TestMatrix(t *testing.T) {
	var three []rhumb.Region
	for _, n := range DefaultRegions() {
		r, _ := Lookup(n)
		three = append(three, rhumb.Region{Name: r.Name, Location: r.Location})
	}
	m := Matrix(three)
	pairs := 0
	for _, row := range m {
		pairs += len(row)
	}
	if pairs != 3 || m["singapore"]["virginia"] != 253.5 || m["frankfurt"]["virginia"] != 88 {
		t.Errorf("matrix %v", m)
	}
	if m := Matrix(three[:1]); len(m) != 0 {
		t.Errorf("one region: %v", m)
	}
}

func TestEstimate(t *testing.T) {
	var e Estimate
	if e.Known() || e.Or(7*ms) != 7*ms {
		t.Errorf("the zero estimate claims to know: %+v", e)
	}
	e = e.Observe(100 * ms)
	if e.Mean() != 100*ms || e.Min() != 100*ms || e.Deviation() != 50*ms || e.Samples() != 1 {
		t.Errorf("after one sample: %+v", e)
	}
	e = e.Observe(180 * ms).Observe(-ms)
	// RFC 6298: deviation 3/4 * 50 + 1/4 * 80, mean 7/8 * 100 + 1/8 * 180.
	if e.Mean() != 110*ms || e.Deviation() != 57500*time.Microsecond || e.Min() != 100*ms || e.Samples() != 2 {
		t.Errorf("after two samples: %+v", e)
	}
	if e.Or(7*ms) != 100*ms {
		t.Errorf("a known estimate was not preferred: %v", e.Or(7*ms))
	}
}

// A route that became longer is believed after at most two windows, and never before one.
func TestEstimateForgetsOldMinimum(t *testing.T) {
	for phase := range uint64(minWindow) {
		var e Estimate
		for range 1 + phase {
			e = e.Observe(10 * ms)
		}
		n := 0
		for e.Min() == 10*ms && n <= 2*minWindow {
			e = e.Observe(50 * ms)
			n++
		}
		if n < minWindow || n > 2*minWindow {
			t.Fatalf("phase %d: forgot the old minimum after %d samples, want %d to %d", phase, n, minWindow, 2*minWindow)
		}
		if e.Min() != 50*ms {
			t.Fatalf("phase %d: minimum %v, want 50ms", phase, e.Min())
		}
	}
}

func TestEstimateConverges(t *testing.T) {
	var e Estimate
	for range 100 {
		e = e.Observe(20 * ms)
	}
	for range 60 {
		e = e.Observe(80 * ms)
	}
	if e.Mean() < 79*ms || e.Mean() > 80*ms {
		t.Errorf("mean %v after 60 samples of 80ms", e.Mean())
	}
}
