package main

import (
	"image"
	"image/color"
	"image/draw"
	"math"

	"golang.org/x/image/vector"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/reader"
)

// margin is the distance from a tile, in pixels, within which symbols may reach into the tile.
const margin = 12

var (
	ground   = color.RGBA{0xf6, 0xf3, 0xec, 0xff}
	casing   = color.RGBA{0xc9, 0xbf, 0xae, 0xff}
	street   = color.RGBA{0xff, 0xff, 0xff, 0xff}
	avenue   = color.RGBA{0xff, 0xd9, 0x7a, 0xff}
	footpath = color.RGBA{0xb9, 0xa9, 0x93, 0xff}
	airport  = color.RGBA{0x5b, 0x7f, 0xa6, 0xff}
	aircraft = color.RGBA{0xc2, 0x2f, 0x2f, 0xff}
	jammed   = color.RGBA{0xd0, 0x3a, 0x2a, 0xff}
)

// layers are drawn one over another. A layer starts at a zoom level; at lower ones a town is a
// speck.
var layers = []struct {
	table string
	from  int
	draw  func(c *canvas, t *reader.Table) error
}{{"roads", 11, drawRoads}, {"airports", 0, drawAirports}, {"flights", 0, drawFlights}}

// canvas is a tile in progress.
type canvas struct {
	tile tile
	img  *image.RGBA
	r    *vector.Rasterizer
}

// newCanvas returns an empty tile.
func newCanvas(t tile) *canvas {
	c := &canvas{tile: t, img: image.NewRGBA(image.Rect(0, 0, tileSize, tileSize)), r: vector.NewRasterizer(tileSize, tileSize)}
	draw.Draw(c.img, c.img.Bounds(), image.NewUniform(ground), image.Point{}, draw.Src)
	return c
}

// fillPath draws the shapes that were added to the path, and starts a new path.
func (c *canvas) fillPath(with color.Color) {
	c.r.Draw(c.img, c.img.Bounds(), image.NewUniform(with), image.Point{})
	c.r.Reset(tileSize, tileSize)
}

// addLine adds a straight line with round ends, which close the gaps between consecutive segments.
func (c *canvas) addLine(x0, y0, x1, y1, width float32) {
	dx, dy := x1-x0, y1-y0
	length := float32(math.Hypot(float64(dx), float64(dy)))
	if length > 0 {
		// The normal of the line, with half of the width.
		nx, ny := -dy/length*width/2, dx/length*width/2
		c.addPolygon(x0+nx, y0+ny, x1+nx, y1+ny, x1-nx, y1-ny, x0-nx, y0-ny)
	}
	c.addDisc(x0, y0, width/2)
	c.addDisc(x1, y1, width/2)
}

// addPolygon adds a polygon with corners given as alternating x and y. The orientation is
// normalised: overlapping shapes of opposite orientation would cancel each other.
func (c *canvas) addPolygon(xy ...float32) {
	var area float32
	n := len(xy)
	for i := 0; i < n; i += 2 {
		area += xy[i]*xy[(i+3)%n] - xy[(i+2)%n]*xy[i+1]
	}
	at := func(i int) (x, y float32) {
		// The signed area is negative for the other orientation.
		if area < 0 {
			i = n/2 - 1 - i
		}
		return xy[2*i], xy[2*i+1]
	}
	c.r.MoveTo(at(0))
	for i := 1; i < n/2; i++ {
		c.r.LineTo(at(i))
	}
	c.r.ClosePath()
}

// addDisc adds a circle with twelve corners, which is enough for a few pixels.
func (c *canvas) addDisc(x, y, radius float32) {
	var xy [24]float32
	for i := range 12 {
		sin, cos := math.Sincos(float64(i) * math.Pi / 6)
		xy[2*i], xy[2*i+1] = x+radius*float32(cos), y+radius*float32(sin)
	}
	c.addPolygon(xy[:]...)
}

// road is a road segment to draw.
type road struct {
	x0, y0, x1, y1 float32
	width          float32
	fill           color.RGBA
}

// drawRoads draws all casings and then all roads, wider ones over narrower ones, so that crossings
// have no casings.
func drawRoads(c *canvas, t *reader.Table) error {
	var roads []road
	err := t.VisitBBox(c.tile.boxWithMargin(margin), func(it *reader.Item) bool {
		if r, ok := c.readRoad(it.Value); ok {
			roads = append(roads, r)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, r := range roads {
		if r.fill != footpath {
			c.addLine(r.x0, r.y0, r.x1, r.y1, r.width+1.6)
		}
	}
	c.fillPath(casing)
	// One pass per colour, so that crossings of one kind of road merge.
	for _, fill := range []color.RGBA{footpath, street, avenue, jammed} {
		for _, r := range roads {
			if r.fill == fill {
				c.addLine(r.x0, r.y0, r.x1, r.y1, r.width)
			}
		}
		c.fillPath(fill)
	}
	return nil
}

// readRoad decodes the appearance of a segment.
func (c *canvas) readRoad(value []byte) (r road, ok bool) {
	rec, err := rhumb.DecodeRecord(value)
	if err != nil {
		return r, false
	}
	a, b, ok := roadEnds(rec)
	r.x0, r.y0 = c.tile.pixelOf(a)
	r.x1, r.y1 = c.tile.pixelOf(b)
	// Widths are those at zoom 16 and double with each level.
	scale := float32(math.Exp2(float64(c.tile.z) - 16))
	kind, _ := rec.Get("highway")
	switch kind.Text() {
	case "motorway", "trunk", "primary", "secondary":
		r.width, r.fill = 5.5*scale, avenue
	case "footway", "steps", "path", "pedestrian", "cycleway":
		r.width, r.fill = 1*scale, footpath
	default:
		r.width, r.fill = 3.5*scale, street
	}
	// The router example blocks this road.
	if v, has := rec.Get("speed"); has && v.Float64() < 5 {
		r.fill = jammed
	}
	r.width = min(max(r.width, 0.6), 24)
	return r, ok
}

// roadEnds returns the ends of a road segment.
func roadEnds(rec rhumb.Record) (a, b rhumb.Point, ok bool) {
	ok = true
	number := func(name string) float64 {
		v, has := rec.Get(name)
		ok = ok && has
		return v.Float64()
	}
	a = rhumb.Point{Lat: number("lat1"), Lon: number("lon1")}
	b = rhumb.Point{Lat: number("lat2"), Lon: number("lon2")}
	return a, b, ok
}

// drawAirports draws each airport as a square.
func drawAirports(c *canvas, t *reader.Table) error {
	size := float32(min(1+0.4*float64(c.tile.z), 5))
	err := t.VisitBBox(c.tile.boxWithMargin(margin), func(it *reader.Item) bool {
		x, y := c.tile.pixelOf(it.Box.Degrees().Min)
		c.addPolygon(x-size/2, y-size/2, x+size/2, y-size/2, x+size/2, y+size/2, x-size/2, y+size/2)
		return true
	})
	c.fillPath(airport)
	return err
}

// drawFlights draws each flight as an arrow in its heading.
func drawFlights(c *canvas, t *reader.Table) error {
	err := t.VisitBBox(c.tile.boxWithMargin(margin), func(it *reader.Item) bool {
		heading, ok, err := rhumb.RecordField(it.Value, "heading")
		// A flight without a heading points north.
		if err != nil || !ok {
			heading = rhumb.Float64Field(0)
		}
		x, y := c.tile.pixelOf(it.Box.Degrees().Min)
		c.addArrow(x, y, heading.Float64(), float32(min(4+0.6*float64(c.tile.z), 9)))
		return true
	})
	c.fillPath(aircraft)
	return err
}

// addArrow adds an arrow head at a position, with a heading in degrees from north.
func (c *canvas) addArrow(x, y float32, heading float64, size float32) {
	sin, cos := math.Sincos(heading * math.Pi / 180)
	at := func(right, ahead float32) (float32, float32) {
		return x + size*(right*float32(cos)+ahead*float32(sin)), y + size*(right*float32(sin)-ahead*float32(cos))
	}
	x0, y0 := at(0, 1)
	x1, y1 := at(0.7, -0.8)
	x2, y2 := at(0, -0.35)
	x3, y3 := at(-0.7, -0.8)
	c.addPolygon(x0, y0, x1, y1, x2, y2, x3, y3)
}
