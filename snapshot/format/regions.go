package format

import (
	"encoding/json"

	"github.com/rhumbdb/rhumb"
)

// RegionsName is the file in the directory of an image that lists the regions whose records the
// image has. It is written to a temporary file and renamed. If it is missing, the regions are
// unknown.
const RegionsName = "regions.json"

// RegionsSizeMax bounds the file, in bytes.
const RegionsSizeMax = 4 << 20

// Regions lists the regions whose records an image has, at a revision of the catalog.
type Regions struct {
	Revision uint64 `json:"revision"`
	// Tables holds the regions of each published table by its name.
	Tables map[string]TableRegions `json:"tables"`
}

// TableRegions holds the names of the regions in which a table has ranges, in the order of their
// IDs. Whole lists regions for which the image has all ranges. Lacks lists regions with missing
// ranges: the records of those ranges are only in the images of other nodes.
type TableRegions struct {
	Whole []string `json:"whole"`
	Lacks []string `json:"lacks"`
}

// EncodeRegions writes the file.
func EncodeRegions(r Regions) ([]byte, error) {
	b, err := json.Marshal(r)
	return append(b, '\n'), rhumb.Wrap("format.EncodeRegions", err)
}

// DecodeRegions decodes the file. It fails with kind Corrupt.
func DecodeRegions(b []byte) (r Regions, err error) {
	if err := json.Unmarshal(b, &r); err != nil {
		return Regions{}, rhumb.Ef("format.DecodeRegions", rhumb.Corrupt, "%s: %v", RegionsName, err)
	}
	return r, nil
}
