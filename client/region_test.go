package client

import (
	"testing"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
)

// A region with too few nodes for a table holds none of it: records go to the nearest one that
// does.
func TestNearestRegion(t *testing.T) {
	places := []rhumb.Region{
		{ID: 1, Name: "singapore", Location: rhumb.Point{Lat: 1.3, Lon: 103.8}},
		{ID: 2, Name: "frankfurt", Location: rhumb.Point{Lat: 50.1, Lon: 8.7}},
		{ID: 3, Name: "virginia", Location: rhumb.Point{Lat: 39, Lon: -77.5}},
	}
	paris := rhumb.Point{Lat: 48.9, Lon: 2.4}
	for _, tc := range []struct {
		name  string
		here  int
		holds []rhumb.RegionID
		at    *rhumb.Point
		want  rhumb.RegionID
	}{
		{"own region", 0, []rhumb.RegionID{1, 2, 3}, nil, 1},
		{"own region holds nothing", 0, []rhumb.RegionID{2, 3}, nil, 2},
		{"by place", 0, []rhumb.RegionID{1, 2, 3}, &paris, 2},
		{"by place, whose region holds nothing", 0, []rhumb.RegionID{1, 3}, &paris, 3},
		{"nowhere yet", 2, nil, nil, 3},
	} {
		m := newMetadata()
		u := &api.Metadata{Full: true, Revision: 1, Regions: places}
		for _, id := range tc.holds {
			u.Blocks = append(u.Blocks, rhumb.Block{Region: id, Class: 1})
		}
		m.applyUpdate(u)
		c := &Client{meta: m, here: places[tc.here]}
		if got := c.nearestRegion(&Table{c: c, info: rhumb.Table{Class: 1}}, tc.at); got != tc.want {
			t.Errorf("%s: region %d, want %d", tc.name, got, tc.want)
		}
	}
}
