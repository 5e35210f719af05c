package demo

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// flight is an aircraft on a great circle between two airports.
type flight struct {
	id, ident  string
	from, to   airport
	departed   time.Time
	took       time.Duration // of the whole flight
	speedKnots float64
	altitude   float64 // cruise altitude in feet
	reported   int     // number of positions reported
	home       string  // region of the first report; "" before it
	// every is the interval between two reports.
	every time.Duration
}

const (
	metresPerNauticalMile = 1852
	// flightMin is the minimum length of a route in metres, so that flights do not land while a
	// user watches them.
	flightMin = 300_000
	// climbing is the share of a flight, at each end, below cruise altitude.
	climbing = 0.08

	reportEveryMin = 2 * time.Second
	reportEveryMax = 5 * time.Second
)

// carriers holds the prefixes of flight names.
var carriers = []string{"AAL", "AFR", "ANA", "BAW", "CPA", "DAL", "DLH", "EIN", "IBE", "JAL", "KLM", "QFA", "SIA", "SWR", "THY", "UAE", "UAL"}

// newFlight returns a flight between two random airports. ahead is the share of its route that is
// already covered.
func newFlight(rng *rand.Rand, now time.Time, ahead float64) *flight {
	f := &flight{
		speedKnots: 420 + 80*rng.Float64(),
		altitude:   float64(28_000 + 1_000*rng.IntN(13)),
		every:      reportEveryMin + time.Duration(rng.Int64N(int64(reportEveryMax-reportEveryMin))),
	}
	for f.from.code == f.to.code || geo.Distance(f.from.place, f.to.place) < flightMin {
		f.from, f.to = airports[rng.IntN(len(airports))], airports[rng.IntN(len(airports))]
	}
	metresPerSecond := f.speedKnots * metresPerNauticalMile / time.Hour.Seconds()
	f.took = time.Duration(geo.Distance(f.from.place, f.to.place) / metresPerSecond * float64(time.Second))
	f.departed = now.Add(-time.Duration(ahead * float64(f.took)))
	f.ident = fmt.Sprintf("%s%d", carriers[rng.IntN(len(carriers))], 1+rng.IntN(9998))
	f.id = fmt.Sprintf("%s-%d-demo-%06x", f.ident, f.departed.Unix(), rng.IntN(1<<24))
	return f
}

// progress returns the share of the route that is covered, from 0 to 1.
func (f *flight) progress(now time.Time) float64 {
	return min(max(float64(now.Sub(f.departed))/float64(f.took), 0), 1)
}

// landed reports whether the flight is over.
func (f *flight) landed(now time.Time) bool { return !now.Before(f.departed.Add(f.took)) }

// place returns the position of the flight.
func (f *flight) place(now time.Time) rhumb.Point {
	return geo.Interpolate(f.from.place, f.to.place, f.progress(now))
}

// altitudeAt returns the altitude in feet: a climb, a cruise, a descent.
func (f *flight) altitudeAt(now time.Time) float64 {
	p := f.progress(now)
	return f.altitude * min(p/climbing, 1, (1-p)/climbing)
}

// report returns the fields of the flight's current status and of the reported position.
func (f *flight) report(now time.Time) (status, position rhumb.Record, err error) {
	place := f.place(now)
	shared := []rhumb.Field{
		{Name: "location", Value: rhumb.PointField(place)},
		{Name: "time", Value: rhumb.TimestampField(now)},
		{Name: "alt_ft", Value: rhumb.Float64Field(float64(int(f.altitudeAt(now))))},
		{Name: "gs", Value: rhumb.Float64Field(float64(int(f.speedKnots)))},
		{Name: "heading", Value: rhumb.Float64Field(float64(int(geo.Bearing(place, f.to.place))))},
	}
	position, err = rhumb.NewRecord(shared...)
	if err != nil {
		return nil, nil, err
	}
	// These fields order the reports of a flight, so that a late retry of an earlier report does
	// not overwrite a later one.
	own := append(shared,
		rhumb.Field{Name: "_c", Value: rhumb.Int64Field(now.Unix())},
		rhumb.Field{Name: "_s", Value: rhumb.Int64Field(int64(f.reported))})
	// Fields that never change are written once; later reports patch the record.
	if f.reported == 0 {
		own = append(own,
			rhumb.Field{Name: "id", Value: rhumb.StringField(f.id)},
			rhumb.Field{Name: "ident", Value: rhumb.StringField(f.ident)},
			rhumb.Field{Name: "orig", Value: rhumb.StringField(f.from.code)},
			rhumb.Field{Name: "dest", Value: rhumb.StringField(f.to.code)})
	}
	status, err = rhumb.NewRecord(own...)
	return status, position, err
}
