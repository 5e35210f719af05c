// Package roads generates the road segments that the snapshot tier is measured with: any number of
// them, determined by a seed, without keeping them. In the properties that matter to a spatial
// index they resemble the segments of a map of the world: clustered in cities of very different
// sizes, connected end to end, short in cities and longer between them.
//
// The model has 20,000 cities, uniformly distributed in eight rectangles that represent the
// populated parts of the continents. The weight of city i is 1/(i+1)^0.9 (Zipf), its radius 1 to 18
// km. A street starts at an exponentially distributed distance from the centre and has 20 segments,
// mostly along the grid of its city, with log-normal lengths. Some of the lines are highways from
// one city to another within three degrees. The mean length is about 170 m.
//
// Coordinates are in 1e-7 degrees, as in an image. A seed produces the same segments on all
// machines of one architecture: the last bits of sines differ between architectures.
package roads

import (
	"math"
	"math/rand/v2"
	"sort"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Segment is a straight piece of road.
type Segment struct{ FromX, FromY, ToX, ToY int32 }

// Box returns the bounding box of the segment.
func (s Segment) Box() format.Box {
	return format.Box{
		MinX: min(s.FromX, s.ToX), MinY: min(s.FromY, s.ToY), MaxX: max(s.FromX, s.ToX), MaxY: max(s.FromY, s.ToY),
	}
}

// Cities is the number of cities in the model.
const Cities = 20_000

const (
	zipf = 0.9
	// highwayShare is the share of lines that start as highways. Highways to cities too far away
	// are dropped.
	highwayShare = 0.32
	highwayMax   = 3.0 // degrees

	streetSegments = 20
	streetMedian   = 0.0011 // degrees: 122 m
	highwayMedian  = 0.0040
	// highwayStep is the length of a highway, in degrees, per segment.
	highwayStep  = 0.0045
	lengthMax    = 0.015
	lengthSpread = 0.6  // of the logarithm
	bend         = 0.12 // radians, from segment to segment
)

// continents are the rectangles of the cities, in degrees, with their share of the cities.
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

// Generator generates segments one after another. It is not safe for concurrent use.
type Generator struct {
	random *rand.Rand
	cities []city
	sums   []float64 // cumulative weights of the cities
	line   line
}

// city has its centre and radius in degrees.
type city struct{ x, y, radius float64 }

// line is the road in progress: its end so far in degrees, its heading, and the number of remaining
// segments.
type line struct {
	x, y, heading float64
	squeeze       float64 // length of a degree of longitude in degrees of latitude
	median        float64
	left          int
}

// New returns a generator. Equal seeds produce equal segments.
func New(seed uint64) *Generator {
	g := &Generator{random: rand.New(rand.NewPCG(seed, 0x726f616473))}
	sum := 0.0
	for i := range Cities {
		weight := math.Pow(float64(i+1), -zipf)
		sum += weight
		x, y := g.drawSite()
		g.cities = append(g.cities, city{x, y, 0.010 + 0.16*math.Sqrt(weight)})
		g.sums = append(g.sums, sum)
	}
	return g
}

// drawSite draws the position of a city.
func (g *Generator) drawSite() (x, y float64) {
	// The shares sum up to 1, so the last rectangle takes the rounding error.
	u, i := g.random.Float64(), 0
	for ; i < len(continents)-1 && u > continents[i].share; i++ {
		u -= continents[i].share
	}
	c := continents[i]
	return c.west + g.random.Float64()*(c.east-c.west), c.south + g.random.Float64()*(c.north-c.south)
}

// Next returns the next segment.
func (g *Generator) Next() Segment {
	for {
		// A dropped highway has no segments, so several lines may have to be drawn.
		for g.line.left <= 0 {
			g.beginLine()
		}
		l := &g.line
		l.left--
		length := min(l.median*math.Exp(lengthSpread*g.random.NormFloat64()), lengthMax)
		// Roads bend a little at each segment, so boxes are not all thin.
		l.heading += bend * g.random.NormFloat64()
		sin, cos := math.Sincos(l.heading)
		x, y := l.x+length*cos/l.squeeze, l.y+length*sin
		// Near the poles and the antimeridian the flat geometry fails, so the line ends there.
		if math.Abs(x) > 179 || math.Abs(y) > 85 {
			l.left = 0
			continue
		}
		s := Segment{FromX: toUnits(l.x), FromY: toUnits(l.y), ToX: toUnits(x), ToY: toUnits(y)}
		l.x, l.y = x, y
		return s
	}
}

// Boxes returns the bounding boxes of the next n segments.
func (g *Generator) Boxes(n int) []format.Box {
	boxes := make([]format.Box, n)
	for i := range boxes {
		boxes[i] = g.Next().Box()
	}
	return boxes
}

// beginLine draws a city and starts a street or a highway there. A highway that is too long has no
// segments.
func (g *Generator) beginLine() {
	// A binary search in the cumulative weights draws a city by its weight.
	i := sort.SearchFloat64s(g.sums, g.random.Float64()*g.sums[len(g.sums)-1])
	c := g.cities[min(i, len(g.cities)-1)]
	if g.random.Float64() < highwayShare {
		g.line = highwayLine(c, g.cities[g.random.IntN(len(g.cities))])
		return
	}
	squeeze := math.Cos(c.y * math.Pi / 180)
	distance := g.random.ExpFloat64() * c.radius
	sin, cos := math.Sincos(2 * math.Pi * g.random.Float64())
	// The grid of a city has a fixed direction, and a street follows one of its four headings.
	grid := float64(i%90) * math.Pi / 180
	g.line = line{
		x: c.x + distance*cos/squeeze, y: c.y + distance*sin, squeeze: squeeze,
		heading: grid + float64(g.random.IntN(4))*math.Pi/2, median: streetMedian, left: streetSegments,
	}
}

// highwayLine returns a highway between two cities, or a line without segments if they are too far
// apart.
func highwayLine(from, to city) line {
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

// toUnits converts degrees to the units of an image.
func toUnits(degrees float64) int32 { return int32(degrees * format.UnitsPerDegree) }
