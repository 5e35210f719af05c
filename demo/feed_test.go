package demo

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// TestAirports guards that the list has no duplicates and no invalid locations.
func TestAirports(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range airports {
		if seen[a.code] || len(a.code) != 3 || a.place.Validate() != nil {
			t.Errorf("airport %+v", a)
		}
		seen[a.code] = true
	}
}

// TestFlight guards that a flight moves from its origin to its destination at its speed, and climbs
// and descends.
func TestFlight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		now := time.Unix(1_700_000_000, 0)
		f := newFlight(rng, now, 0)
		if d := geo.Distance(f.from.place, f.to.place); d < flightMin {
			t.Fatalf("%s to %s are %.0f m apart", f.from.code, f.to.code, d)
		}
		if f.place(now) != f.from.place || f.place(now.Add(f.took)) != f.to.place || f.landed(now) || !f.landed(now.Add(f.took)) {
			t.Fatalf("%s does not fly from %s to %s", f.id, f.from.code, f.to.code)
		}
		half := now.Add(f.took / 2)
		knots := geo.Distance(f.place(half), f.place(half.Add(time.Minute))) / metresPerNauticalMile * 60
		if math.Abs(knots-f.speedKnots) > 5 {
			t.Errorf("%s to %s: %.0f knots, want %.0f", f.from.code, f.to.code, knots, f.speedKnots)
		}
		if f.altitudeAt(now) != 0 || f.altitudeAt(half) != f.altitude {
			t.Errorf("altitude %v at take-off, %v half way, want 0 and %v", f.altitudeAt(now), f.altitudeAt(half), f.altitude)
		}
		status, position, err := f.report(half)
		if err != nil || len(status) <= len(position) {
			t.Fatalf("%v, %v, %v", status, position, err)
		}
	}
}

// recorder is a store in memory that records the calls.
type recorder struct {
	mu     sync.Mutex
	places []rhumb.Point
	steps  map[string]int
	reads  int
	delay  time.Duration
	err    error
	t      *testing.T
}

func (r *recorder) report(_ context.Context, f *flight, now time.Time) (bool, error) {
	time.Sleep(r.delay)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return false, r.err
	}
	if f.reported != r.steps[f.id] {
		r.t.Errorf("%s reports position %d after %d", f.id, f.reported, r.steps[f.id])
	}
	r.steps[f.id]++
	r.places = append(r.places, f.place(now))
	return true, nil
}

func (r *recorder) look(context.Context, string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	return r.reads%2 == 0, nil
}

// TestFeed guards that flights report in order, in the region below them, at their interval, and
// that reads follow.
func TestFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		regions, err := parseRegions(nil)
		if err != nil {
			t.Fatal(err)
		}
		var stores []store
		var meters []*meter
		var recorders []*recorder
		for range regions {
			r := &recorder{steps: map[string]int{}, delay: 300 * time.Millisecond, t: t}
			recorders = append(recorders, r)
			stores, meters = append(stores, r), append(meters, newMeter())
		}
		f := newFeed(regions, stores, meters, 90, 7, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f.run(ctx)
		writes := 0
		for i, r := range recorders {
			for _, p := range r.places {
				if geo.Nearest(p, f.places) != i {
					t.Errorf("a flight at %v was written in %s", p, regions[i].Name)
				}
			}
			writes += len(r.places)
			got := meters[i].flushFigures(regions[i].Name, time.Minute)
			if got.WriteP50 < 290 || got.WriteP50 > 310 || got.Locality < 0.5 || got.ReadsPerSecond == 0 {
				t.Errorf("figures of %s: %+v", regions[i].Name, got)
			}
		}
		if least, most := 90*60/5-90, 90*60/2+90; writes < least || writes > most {
			t.Errorf("%d positions a minute from 90 flights, want %d to %d", writes, least, most)
		}
	})
}

// TestMeterErrors guards that a failed call counts as an error and as nothing else.
func TestMeterErrors(t *testing.T) {
	m := newMeter()
	m.wrote(time.Millisecond, false, rhumb.ErrUnavailable)
	m.read(2*latencyMax, false, nil)
	got := m.flushFigures("x", time.Second)
	if got.Errors != 1 || got.WritesPerSecond != 0 || got.ReadsPerSecond != 1 || got.Locality != 0 || got.ReadP99 < 59_000 {
		t.Errorf("%+v", got)
	}
	if m.takeError() == nil || m.takeError() != nil {
		t.Error("the last error is to be given once")
	}
	if again := m.flushFigures("x", time.Second); again.Errors != 0 || again.ReadsPerSecond != 0 {
		t.Errorf("a flush does not begin again: %+v", again)
	}
}

// TestScreen guards that a drawing replaces the one before, and that a node that is down is shown
// as down.
func TestScreen(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, redraw: true}
	sec := &Second{
		Regions: []Figures{{Region: "frankfurt", WritesPerSecond: 31.4, WriteP50: 2.25, Locality: 0.97, Primaries: 64}},
		Nodes:   []NodeFigures{{ID: 1, Up: true, Primaries: 22}, {ID: 2}},
	}
	s.draw(sec)
	first := out.String()
	s.draw(sec)
	rows := strings.Count(first, "\n")
	if !strings.Contains(out.String(), "\x1b["+string(rune('0'+rows))+"A\x1b[J") {
		t.Errorf("the second drawing does not go over the %d rows of the first: %q", rows, out.String()[len(first):])
	}
	for _, want := range []string{"97 %", "n1 22, n2 DOWN", "2.2", "31"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
}
