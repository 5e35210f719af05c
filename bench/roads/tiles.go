package roads

import (
	"math"
	"math/rand/v2"

	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Tiles draws square tiles as queries over segments. Equal seeds and boxes produce equal tiles.
type Tiles struct {
	random *rand.Rand
	boxes  []format.Box
	// land lists the one-degree cells that contain the corner of a box, as 360*row + column from
	// the south-west.
	land []int
}

// NewTiles returns tiles over boxes, which must not be empty. It keeps the slice.
func NewTiles(seed uint64, boxes []format.Box) *Tiles {
	t := &Tiles{random: rand.New(rand.NewPCG(seed, 0x74696c6573)), boxes: boxes}
	taken := make([]bool, 360*180)
	for _, b := range boxes {
		column := (int64(b.MinX) + format.LonUnitsMax) / format.UnitsPerDegree
		row := (int64(b.MinY) + format.LatUnitsMax) / format.UnitsPerDegree
		// The north pole and the antimeridian belong to the last cells.
		taken[min(row, 179)*360+min(column, 359)] = true
	}
	for cell, is := range taken {
		if is {
			t.land = append(t.land, cell)
		}
	}
	return t
}

// Data returns a tile with sides of side km around a random box, so dense areas get more tiles.
func (t *Tiles) Data(side float64) format.Box {
	// Drawing a box, and not a position, follows the density of the data.
	b := t.boxes[t.random.IntN(len(t.boxes))].Degrees()
	return Tile(b.Min.Lon, b.Min.Lat, side)
}

// Area returns a tile with sides of side km around a position drawn uniformly from all non-empty
// cells.
func (t *Tiles) Area(side float64) format.Box {
	cell := t.land[t.random.IntN(len(t.land))]
	x, y := float64(cell%360)-180+t.random.Float64(), float64(cell/360)-90+t.random.Float64()
	return Tile(x, y, side)
}

// Tile returns the tile with sides of side km around a position in degrees, between 85 degrees
// south and north. It is clipped at the antimeridian.
func Tile(x, y, side float64) format.Box {
	const kmPerDegree = 111.195 // on the sphere of package geo
	dy := side / kmPerDegree / 2
	dx := dy / math.Cos(y*math.Pi/180)
	return format.Box{
		MinX: toUnits(max(x-dx, -180)), MinY: toUnits(max(y-dy, -90)), MaxX: toUnits(min(x+dx, 180)), MaxY: toUnits(min(y+dy, 90)),
	}
}
