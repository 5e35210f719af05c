package publish

import (
	"os"
	"path/filepath"
	"reflect"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// regionsOf returns, for each published table, the regions whose records this node's image holds
// completely and those whose records it lacks.
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
		// One range that this node does not hold makes the region incomplete: a reader could not
		// distinguish a record that the image lacks from one that does not exist.
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

// writeRegions updates the file that names the regions of the image. A new file replaces the old
// one by a rename, so readers never find half of it.
func (d *Driver) writeRegions(st *catalog.State) error {
	const op rhumb.Op = "publish.writeRegions"
	regions := d.regionsOf(st)
	// Most changes of the catalog do not change the regions. The revision alone is not worth a
	// write.
	if reflect.DeepEqual(regions.Tables, d.regions) {
		return nil
	}
	b, err := format.EncodeRegions(regions)
	if err != nil {
		return err
	}
	path := filepath.Join(ImageDir(d.cfg.Root, d.cfg.Cluster, d.cfg.Node), format.RegionsName)
	// The file is as readable as the image that it describes.
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
