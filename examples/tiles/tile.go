package main

import (
	"math"

	"github.com/rhumbdb/rhumb"
)

const (
	tileSize = 256 // pixels
	zoomMax  = 20
)

// tile is one of the 2^z by 2^z tiles of the web Mercator map.
type tile struct{ z, x, y int }

// boxWithMargin returns the bounds of a tile with a margin in pixels, so that lines and symbols
// that reach into the tile are found.
func (t tile) boxWithMargin(margin float64) rhumb.Box {
	return rhumb.Box{
		Min: t.pointAt(-margin, tileSize+margin),
		Max: t.pointAt(tileSize+margin, -margin),
	}
}

// pointAt returns the position of a pixel of the tile.
func (t tile) pointAt(px, py float64) rhumb.Point {
	n := math.Exp2(float64(t.z))
	x := (float64(t.x) + px/tileSize) / n
	y := (float64(t.y) + py/tileSize) / n
	return rhumb.Point{
		Lat: math.Atan(math.Sinh(math.Pi*(1-2*y))) * 180 / math.Pi,
		// A margin at the antimeridian would leave the map.
		Lon: min(max(x*360-180, -180), 180),
	}
}

// pixelOf returns the pixel of a position.
func (t tile) pixelOf(p rhumb.Point) (px, py float32) {
	n := math.Exp2(float64(t.z))
	// The web Mercator map ends at this latitude, where its height equals its width.
	lat := min(max(p.Lat, -85.05112878), 85.05112878) * math.Pi / 180
	x := (p.Lon + 180) / 360 * n
	y := (1 - math.Asinh(math.Tan(lat))/math.Pi) / 2 * n
	return float32((x - float64(t.x)) * tileSize), float32((y - float64(t.y)) * tileSize)
}
