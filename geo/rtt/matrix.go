package rtt

import (
	"math"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// milliseconds holds the round trips between regions. Row i, column j is the pair regions[i],
// regions[j] with j < i.
var milliseconds = [][]float64{
	{},
	{156},
	{253.5, 88},
	{157, 17, 78},
	{166, 26, 70, 13},
	{152, 11, 84, 10, 18},
	{180, 27, 104, 31, 40, 36},
	{54, 134, 210, 134, 145, 130, 157},
	{87, 117, 193, 118, 127, 114, 141, 37},
	{293, 162, 233, 160, 169, 155, 186, 269, 253},
	{36, 186, 204, 187, 195, 182, 210, 83, 116, 322},
	{70, 221, 184, 222, 230, 217, 245, 118, 151, 357, 40},
	{71, 223, 158, 226, 232, 219, 247, 120, 154, 359, 48, 32},
	{90, 243, 204, 258, 252, 239, 267, 140, 170, 379, 120, 130, 103},
	{340, 193, 118, 180, 171, 185, 208, 310, 294, 334, 329, 299, 281, 310},
	{222, 103, 22, 92, 86, 98, 119, 221, 204, 246, 201, 181, 158, 199, 131},
	{200, 110, 32, 98, 91, 104, 124, 240, 223, 265, 180, 161, 137, 177, 149, 26},
	{171, 149, 69, 137, 133, 142, 164, 220, 254, 302, 151, 132, 108, 140, 186, 68, 40},
	{163, 150, 67, 139, 133, 144, 165, 212, 246, 299, 144, 124, 100, 161, 184, 67, 39, 22.5},
}

// The model's parameters.
const (
	// fibreSpeed is two thirds of the speed of light in vacuum, in metres per second.
	fibreSpeed = 299_792_458.0 * 2 / 3
	// pathFactor is the ratio of the length of cables to the length of the great circle.
	pathFactor = 1.55
	// equipment is the part of a round trip that does not depend on the distance.
	equipment = 7 * time.Millisecond
)

// Model estimates the round trip between two places from their distance. It returns 0 for equal
// places.
func Model(a, b rhumb.Point) time.Duration {
	metres := geo.Metres(a, b)
	if metres == 0 {
		return 0
	}
	seconds := 2 * float64(metres) * pathFactor / fibreSpeed
	// Whole microseconds make the result the same on every processor.
	return equipment + time.Duration(math.Round(seconds*1e6))*time.Microsecond
}

// Between returns the round trip between two regions: the published one if both names are well
// known, otherwise Model of their locations, and 0 within a region.
func Between(a, b rhumb.Region) time.Duration {
	if a.Name == b.Name {
		return 0
	}
	if d, ok := Published(a.Name, b.Name); ok {
		return d
	}
	return Model(a.Location, b.Location)
}

// Published returns the published round trip between two well-known regions, named as for Lookup.
// It returns 0 within a region, and false if a name is unknown.
func Published(a, b string) (time.Duration, bool) {
	i, j := findRegion(a), findRegion(b)
	if i < 0 || j < 0 {
		return 0, false
	}
	if i == j {
		return 0, true
	}
	// The matrix stores each pair once, below the diagonal.
	ms := milliseconds[max(i, j)][min(i, j)]
	return time.Duration(ms * float64(time.Millisecond)), true
}

// Matrix returns the round trips between all pairs of regions in milliseconds, each pair once. A
// latency file has the same form.
func Matrix(regions []rhumb.Region) map[string]map[string]float64 {
	m := map[string]map[string]float64{}
	for i, a := range regions {
		for _, b := range regions[i+1:] {
			if m[a.Name] == nil {
				m[a.Name] = map[string]float64{}
			}
			m[a.Name][b.Name] = float64(Between(a, b)) / float64(time.Millisecond)
		}
	}
	return m
}
