// Package roads makes the road segments that the snapshot tier is measured with: any number of them, the same for the same
// seed, without keeping them. They are as the segments of a map of the world are in what matters to a spatial index:
// clustered in cities of very different sizes, lying end to end, short in cities and longer between them.
//
// The model: 20,000 cities lie evenly in eight rectangles that stand for the populated parts of the continents. The weight
// of city i is 1/(i+1)^0.9 (Zipf), its radius 1 to 18 km. A street begins at a distance from the centre that falls
// exponentially and runs 20 segments, mostly along the grid of its city; the lengths are log-normal. Some of the lines are
// highways from a city to another within three degrees. The mean length is about 170 m.
//
// Places are in 1e-7 degrees, as in an image. One seed gives the same segments on all machines of one architecture: the
// last bits of sines differ between architectures.
package roads

import (
	"math"
	"math/rand/v2"
	"sort"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Segment is a straight piece of road.
type Segment struct{ FromX, FromY, ToX, ToY int32 }

// Box gives the box around a segment.
func (s Segment) Box() format.Box {
	return format.Box{
		MinX: min(s.FromX, s.ToX), MinY: min(s.FromY, s.ToY), MaxX: max(s.FromX, s.ToX), MaxY: max(s.FromY, s.ToY),
	}
}

// Cities is the number of cities of the model.
const Cities = 20_000

const (
	zipf = 0.9
	// highwayShare is the part of lines that begin as highways; those to cities too far away are not built.
	highwayShare = 0.32
	highwayMax   = 3.0 // degrees

	streetSegments = 20
	streetMedian   = 0.0011 // degrees: 122 m
	highwayMedian  = 0.0040
	highwayStep    = 0.0045 // degrees of a highway for each of its segments
	lengthMax      = 0.015
	lengthSpread   = 0.6  // of the logarithm
	bend           = 0.12 // radians, from segment to segment
)

// continents are where cities lie, in degrees, with their share of them.
var continents = []struct{ west, south, east, north, share float64 }{
	{-124, 26, -68, 49, 0.25},
	{-9, 37, 30, 58, 0.30},
	{70, 8, 90, 32, 0.12},
	{103, 22, 122, 41, 0.15},
	{128, 31, 144, 43, 0.05},
	{-70, -38, -40, -2, 0.07},
	{18, -34, 33, 5, 0.03},
	{115, -38, 153, -18, 0.03},
}

// Generator makes segments one after the other. It is used by one goroutine.
type Generator struct {
	random *rand.Rand
	cities []city
	sums   []float64 // of the weights, up to and with each city
	line   line
}

// city has its centre and its radius in degrees.
type city struct{ x, y, radius float64 }

// line is the road under construction: its end so far in degrees, where it heads, and how many segments are to come.
type line struct {
	x, y, heading float64
	squeeze       float64 // degrees of latitude in one of longitude
	median        float64
	left          int
}

// New gives a generator; equal seeds give equal segments.
func New(seed uint64) *Generator {
	g := &Generator{random: rand.New(rand.NewPCG(seed, 0x726f616473))}
	sum := 0.0
	for i := range Cities {
		weight := math.Pow(float64(i+1), -zipf)
		sum += weight
		x, y := g.site()
		g.cities = append(g.cities, city{x, y, 0.010 + 0.16*math.Sqrt(weight)})
		g.sums = append(g.sums, sum)
	}
	return g
}

// site draws the place of a city.
func (g *Generator) site() (x, y float64) {
	u, i := g.random.Float64(), 0
	for ; i < len(continents)-1 && u > continents[i].share; i++ {
		u -= continents[i].share
	}
	c := continents[i]
	return c.west + g.random.Float64()*(c.east-c.west), c.south + g.random.Float64()*(c.north-c.south)
}

// Next gives the next segment.
func (g *Generator) Next() Segment {
	for {
		for g.line.left <= 0 {
			g.begin()
		}
		l := &g.line
		l.left--
		length := min(l.median*math.Exp(lengthSpread*g.random.NormFloat64()), lengthMax)
		l.heading += bend * g.random.NormFloat64()
		sin, cos := math.Sincos(l.heading)
		x, y := l.x+length*cos/l.squeeze, l.y+length*sin
		if math.Abs(x) > 179 || math.Abs(y) > 85 {
			l.left = 0
			continue
		}
		s := Segment{FromX: units(l.x), FromY: units(l.y), ToX: units(x), ToY: units(y)}
		l.x, l.y = x, y
		return s
	}
}

// Boxes gives the boxes of the next n segments.
func (g *Generator) Boxes(n int) []format.Box {
	boxes := make([]format.Box, n)
	for i := range boxes {
		boxes[i] = g.Next().Box()
	}
	return boxes
}

// begin draws a city and begins a street or a highway there; a highway too long has no segment.
func (g *Generator) begin() {
	i := sort.SearchFloat64s(g.sums, g.random.Float64()*g.sums[len(g.sums)-1])
	c := g.cities[min(i, len(g.cities)-1)]
	if g.random.Float64() < highwayShare {
		g.line = highway(c, g.cities[g.random.IntN(len(g.cities))])
		return
	}
	squeeze := math.Cos(c.y * math.Pi / 180)
	distance := g.random.ExpFloat64() * c.radius
	sin, cos := math.Sincos(2 * math.Pi * g.random.Float64())
	grid := float64(i%90) * math.Pi / 180
	g.line = line{
		x: c.x + distance*cos/squeeze, y: c.y + distance*sin, squeeze: squeeze,
		heading: grid + float64(g.random.IntN(4))*math.Pi/2, median: streetMedian, left: streetSegments,
	}
}

func highway(from, to city) line {
	dx, dy := to.x-from.x, to.y-from.y
	length := math.Hypot(dx, dy)
	if length > highwayMax {
		return line{}
	}
	return line{
		x: from.x, y: from.y, squeeze: math.Cos(from.y * math.Pi / 180), heading: math.Atan2(dy, dx),
		median: highwayMedian, left: int(length / highwayStep),
	}
}

func units(degrees float64) int32 { return int32(degrees * format.UnitsPerDegree) }
