package roads

import (
	"math"
	"math/rand/v2"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Tiles draws square tiles over segments, to ask for what lies in them. Equal seeds and boxes give equal tiles.
type Tiles struct {
	random *rand.Rand
	boxes  []format.Box
	// land lists the cells of one degree that hold the corner of a box, as 360*row + column from the south-west.
	land []int
}

// NewTiles draws over boxes, of which there is at least one; it keeps the slice.
func NewTiles(seed uint64, boxes []format.Box) *Tiles {
	t := &Tiles{random: rand.New(rand.NewPCG(seed, 0x74696c6573)), boxes: boxes}
	taken := make([]bool, 360*180)
	for _, b := range boxes {
		column := (int64(b.MinX) + format.LonUnitsMax) / format.UnitsPerDegree
		row := (int64(b.MinY) + format.LatUnitsMax) / format.UnitsPerDegree
		taken[min(row, 179)*360+min(column, 359)] = true
	}
	for cell, is := range taken {
		if is {
			t.land = append(t.land, cell)
		}
	}
	return t
}

// Data gives a tile of side km about a box drawn at random: where there is much, there are many tiles.
func (t *Tiles) Data(side float64) format.Box {
	b := t.boxes[t.random.IntN(len(t.boxes))].Degrees()
	return Tile(b.Min.Lon, b.Min.Lat, side)
}

// Area gives a tile of side km about a place drawn evenly from all degrees that hold anything.
func (t *Tiles) Area(side float64) format.Box {
	cell := t.land[t.random.IntN(len(t.land))]
	x, y := float64(cell%360)-180+t.random.Float64(), float64(cell/360)-90+t.random.Float64()
	return Tile(x, y, side)
}

// Tile gives the tile of side km about a place in degrees between 85 degrees south and north, cut off at the antimeridian.
func Tile(x, y, side float64) format.Box {
	const kmPerDegree = 111.195 // on the sphere of package geo
	dy := side / kmPerDegree / 2
	dx := dy / math.Cos(y*math.Pi/180)
	return format.Box{
		MinX: units(max(x-dx, -180)), MinY: units(max(y-dy, -90)), MaxX: units(min(x+dx, 180)), MaxY: units(min(y+dy, 90)),
	}
}
