package main

import (
	"math"

	"github.com/rhumbdb/rhumb"
)

const (
	tileSize = 256 // pixels
	zoomMax  = 20
)

// tile is a square of the web Mercator map of 2^z times 2^z tiles.
type tile struct{ z, x, y int }

// box gives the place of a tile with a margin of some pixels around it, in which lie lines and symbols that reach into it.
func (t tile) box(margin float64) rhumb.Box {
	return rhumb.Box{
		Min: t.place(-margin, tileSize+margin),
		Max: t.place(tileSize+margin, -margin),
	}
}

// place gives the point at a pixel of the tile.
func (t tile) place(px, py float64) rhumb.Point {
	n := math.Exp2(float64(t.z))
	x := (float64(t.x) + px/tileSize) / n
	y := (float64(t.y) + py/tileSize) / n
	return rhumb.Point{
		Lat: math.Atan(math.Sinh(math.Pi*(1-2*y))) * 180 / math.Pi,
		Lon: min(max(x*360-180, -180), 180),
	}
}

// pixel gives where a point lies on the tile.
func (t tile) pixel(p rhumb.Point) (px, py float32) {
	n := math.Exp2(float64(t.z))
	lat := min(max(p.Lat, -85.05112878), 85.05112878) * math.Pi / 180
	x := (p.Lon + 180) / 360 * n
	y := (1 - math.Asinh(math.Tan(lat))/math.Pi) / 2 * n
	return float32((x - float64(t.x)) * tileSize), float32((y - float64(t.y)) * tileSize)
}
