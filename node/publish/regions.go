package publish

import (
	"os"
	"path/filepath"
	"reflect"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// regionsOf says of which regions this node's image has the records of each published table.
func (d *Driver) regionsOf(st *catalog.State) format.Regions {
	type held struct{ some, missing bool }
	classes := map[rhumb.ClassID]map[rhumb.RegionID]held{}
	for r := range st.Ranges() {
		if !d.classes[r.Class] {
			continue
		}
		if classes[r.Class] == nil {
			classes[r.Class] = map[rhumb.RegionID]held{}
		}
		h := classes[r.Class][r.ID.Region]
		h.some, h.missing = true, h.missing || !r.IsReplica(d.cfg.Node)
		classes[r.Class][r.ID.Region] = h
	}
	out := format.Regions{Revision: st.Revision(), Tables: map[string]format.TableRegions{}}
	for _, t := range d.tables {
		regions := format.TableRegions{Whole: []string{}, Lacks: []string{}}
		for region := range st.Regions() {
			switch h := classes[t.Class][region.ID]; {
			case h.missing:
				regions.Lacks = append(regions.Lacks, region.Name)
			case h.some:
				regions.Whole = append(regions.Whole, region.Name)
			}
		}
		out.Tables[t.Name] = regions
	}
	return out
}

// writeRegions keeps the file that says of which regions the image has records. It is written beside and renamed, so that
// readers find it whole.
func (d *Driver) writeRegions(st *catalog.State) error {
	const op rhumb.Op = "publish.writeRegions"
	regions := d.regionsOf(st)
	if reflect.DeepEqual(regions.Tables, d.regions) { // most changes of the catalog change nothing here
		return nil
	}
	b, err := format.EncodeRegions(regions)
	if err != nil {
		return err
	}
	path := filepath.Join(ImageDir(d.cfg.Root, d.cfg.Cluster, d.cfg.Node), format.RegionsName)
	mode := os.FileMode(0o644)
	if d.cfg.Image.GroupReadable {
		mode = 0o640
	}
	if err := os.WriteFile(path+".new", b, mode); err != nil {
		return rhumb.Wrap(op, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return rhumb.Wrap(op, err)
	}
	d.regions = regions.Tables
	return nil
}
