package rtt

import (
	"slices"
	"strings"

	"github.com/rhumbdb/rhumb"
)

// Region is a well-known place with data centres of several providers.
type Region struct {
	// Name is one lower-case word.
	Name string
	// Aliases are further names that Lookup accepts: cloud regions and neighbouring cities.
	Aliases []string
	// Location is near the data centres, to about ten kilometres.
	Location rhumb.Point
}

// regions has the order of the rows and columns of milliseconds.
var regions = []Region{
	{"singapore", []string{"ap-southeast-1", "asia-southeast1", "southeastasia", "sg"}, rhumb.Point{Lat: 1.29, Lon: 103.85}},
	{"frankfurt", []string{"eu-central-1", "europe-west3", "germanywestcentral", "germany", "eu"}, rhumb.Point{Lat: 50.11, Lon: 8.68}},
	{"virginia", []string{"us-east-1", "us-east4", "eastus", "ashburn", "us"}, rhumb.Point{Lat: 39.04, Lon: -77.49}},
	{"london", []string{"eu-west-2", "europe-west2", "uksouth", "uk"}, rhumb.Point{Lat: 51.51, Lon: -0.13}},
	{"ireland", []string{"eu-west-1", "northeurope", "dublin"}, rhumb.Point{Lat: 53.35, Lon: -6.26}},
	{"paris", []string{"eu-west-3", "europe-west9", "francecentral", "france"}, rhumb.Point{Lat: 48.86, Lon: 2.35}},
	{"stockholm", []string{"eu-north-1", "swedencentral", "sweden"}, rhumb.Point{Lat: 59.33, Lon: 18.07}},
	{"mumbai", []string{"ap-south-1", "asia-south1", "centralindia", "india"}, rhumb.Point{Lat: 19.08, Lon: 72.88}},
	{"dubai", []string{"me-central-1", "uaenorth", "uae"}, rhumb.Point{Lat: 25.20, Lon: 55.27}},
	{"johannesburg", []string{"africa-south1", "southafricanorth"}, rhumb.Point{Lat: -26.20, Lon: 28.05}},
	{"hongkong", []string{"ap-east-1", "asia-east2", "eastasia", "hk"}, rhumb.Point{Lat: 22.32, Lon: 114.17}},
	{"seoul", []string{"ap-northeast-2", "asia-northeast3", "koreacentral", "korea"}, rhumb.Point{Lat: 37.57, Lon: 126.98}},
	{"tokyo", []string{"ap-northeast-1", "asia-northeast1", "japaneast", "japan"}, rhumb.Point{Lat: 35.68, Lon: 139.69}},
	{"sydney", []string{"ap-southeast-2", "australia-southeast1", "australiaeast", "australia"}, rhumb.Point{Lat: -33.87, Lon: 151.21}},
	{"saopaulo", []string{"sa-east-1", "southamerica-east1", "brazilsouth", "brazil"}, rhumb.Point{Lat: -23.55, Lon: -46.63}},
	{"toronto", []string{"northamerica-northeast2", "canadacentral", "canada"}, rhumb.Point{Lat: 43.65, Lon: -79.38}},
	{"iowa", []string{"us-central1", "centralus"}, rhumb.Point{Lat: 41.59, Lon: -93.62}},
	{"california", []string{"us-west-1", "westus"}, rhumb.Point{Lat: 37.35, Lon: -121.96}},
	{"oregon", []string{"us-west-2", "westus2"}, rhumb.Point{Lat: 45.84, Lon: -119.70}},
}

// DefaultRegions returns the regions of a demo that is started without a choice of regions.
func DefaultRegions() []string { return []string{"singapore", "frankfurt", "virginia"} }

// Regions returns the well-known regions. The caller may modify the slice but not the aliases.
func Regions() []Region { return slices.Clone(regions) }

// Lookup returns the well-known region with the given name or alias. It ignores case, spaces, '-'
// and '_': "Sao Paulo" finds saopaulo.
func Lookup(name string) (Region, bool) {
	if i := findRegion(name); i >= 0 {
		return regions[i], true
	}
	return Region{}, false
}

// findRegion returns the index of the region with the given name or alias, or -1.
func findRegion(name string) int {
	name = normalizeName(name)
	return slices.IndexFunc(regions, func(r Region) bool {
		return r.Name == name || slices.ContainsFunc(r.Aliases, func(a string) bool { return normalizeName(a) == name })
	})
}

// normalizeName removes everything from a name that Lookup ignores.
func normalizeName(name string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(name))
}
