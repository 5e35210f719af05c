package publish

import (
	"maps"
	"slices"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// fitTables makes the image hold the tables that the catalog says are published, and the ranges that the node holds.
func (d *Driver) fitTables(st *catalog.State) error {
	var want []rhumb.Table
	for t := range st.Tables() {
		if t.Snapshot.Has(rhumb.SnapshotOn) {
			want = append(want, *t)
		}
	}
	if d.pub == nil {
		if len(want) == 0 {
			return nil
		}
		if err := d.open(); err != nil {
			return err
		}
	}
	if err := d.dropOthers(want); err != nil {
		return err
	}
	for _, t := range want {
		if d.tables[t.ID] != nil {
			continue
		}
		image, err := d.pub.Table(d.spec(st, t))
		if rhumb.KindOf(err) == rhumb.Conflict {
			err = d.replace(st, t, &image)
		}
		if err != nil {
			return err
		}
		d.classes[t.Class] = true
		d.tables[t.ID] = &table{Table: t, image: image, stale: !image.Listed() || len(d.at) == 0}
	}
	d.leaveRanges(st)
	d.catchUp(st)
	if err := d.writeRegions(st); err != nil { // the image itself is as good without it
		d.cfg.Logger.Warn("the image does not say of which regions it has records", "err", err)
	}
	return nil
}

// open opens the image, and goes on from the positions that it has.
func (d *Driver) open() error {
	cfg := d.cfg.Image
	cfg.Dir, cfg.Logger, cfg.Registerer = ImageDir(d.cfg.Root, d.cfg.Cluster, d.cfg.Node), d.cfg.Logger, d.cfg.Registerer
	p, err := snapshot.Open(cfg)
	if err != nil {
		return err
	}
	d.pub, d.at = p, p.Positions()
	d.following.Store(true)
	d.nudge() // for what was told just before
	d.cfg.Logger.Info("image opened", "version", p.Version(), "ranges", len(d.at))
	return nil
}

// follows reports whether a range may hold records of a published table.
func (d *Driver) follows(id rhumb.RangeID) bool {
	if _, ok := d.at[id]; ok {
		return true
	}
	r, ok := d.cfg.State().Range(id)
	return !ok || d.classes[r.Class]
}

// positions gives the table of the positions.
func (d *Driver) positions() *snapshot.Table {
	i := slices.IndexFunc(d.pub.Tables(), func(t *snapshot.Table) bool { return t.Name == format.PositionsTable })
	return d.pub.Tables()[i]
}

// spec says what a table is like in the image.
func (d *Driver) spec(st *catalog.State, t rhumb.Table) snapshot.TableSpec {
	spec := snapshot.TableSpec{
		ID: t.ID, Name: t.Name, KeyKind: format.KeyName, Ordered: t.Snapshot.Has(rhumb.SnapshotOrdered),
		Spatial: t.Snapshot.Has(rhumb.SnapshotSpatial), Summed: t.Snapshot.Has(rhumb.SnapshotSummed),
	}
	if spec.Spatial {
		spec.LocationField = t.LocationField
	}
	for _, id := range d.replicas(st, t.Class) {
		if size, ok := d.cfg.Engine.Store(id).Size(id); ok {
			spec.ExpectedRecords += size.Data / recordBytes
		}
	}
	return spec
}

// recordBytes is what a stored record is taken to weigh when the shards of a table are counted. That is on the small side: too
// many shards cost less than too large ones.
const recordBytes = 64

// replace puts a table in place of one of its name that is not the same, as after a cluster's table was made anew.
func (d *Driver) replace(st *catalog.State, t rhumb.Table, image **snapshot.Table) (err error) {
	for _, old := range d.pub.Tables() {
		if old.Name == t.Name {
			if err := d.pub.DropTable(old); err != nil {
				return err
			}
		}
	}
	*image, err = d.pub.Table(d.spec(st, t))
	return err
}

// dropOthers takes tables out of the image that the catalog does not publish.
func (d *Driver) dropOthers(want []rhumb.Table) error {
	for _, old := range d.pub.Tables() {
		keep := old.Name == format.PositionsTable || slices.ContainsFunc(want, func(t rhumb.Table) bool { return t.Name == old.Name && t.ID == old.ID })
		if keep {
			continue
		}
		if err := d.pub.DropTable(old); err != nil {
			return err
		}
		delete(d.tables, old.ID)
	}
	return nil
}

// replicas lists the ranges of a class that this node holds a replica of.
func (d *Driver) replicas(st *catalog.State, class rhumb.ClassID) (out []rhumb.RangeID) {
	for r := range st.Ranges() {
		if r.Class == class && r.IsReplica(d.cfg.Node) {
			out = append(out, r.ID)
		}
	}
	return out
}

// leaveRanges forgets ranges that this node no longer holds: their tables are read anew without them.
func (d *Driver) leaveRanges(st *catalog.State) {
	for id := range d.at {
		r, ok := st.Range(id)
		if ok && r.IsReplica(d.cfg.Node) {
			continue
		}
		delete(d.at, id)
		delete(d.pending, id)
		delete(d.unsaved, id)
		d.left = append(d.left, id)
		for _, t := range d.tables {
			t.stale = t.stale || !ok || t.Class == r.Class
		}
	}
}

// catchUp takes up ranges from what the node told of them before they were followed, or what storage says is committed.
func (d *Driver) catchUp(st *catalog.State) {
	maps.DeleteFunc(d.idle, func(id rhumb.RangeID, _ Position) bool {
		r, ok := st.Range(id)
		return ok && !r.IsReplica(d.cfg.Node)
	})
	for r := range st.Ranges() {
		if !r.IsReplica(d.cfg.Node) || !d.classes[r.Class] {
			continue
		}
		to := d.idle[r.ID]
		delete(d.idle, r.ID)
		if s, ok := d.cfg.Engine.Store(r.ID).State(r.ID); ok && s.Commit > to.Seq {
			to = Position{s.Commit, s.CommitHLC}
		}
		if to.Seq > d.pending[r.ID].Seq && uint64(to.Seq) > d.at[r.ID].Seq {
			d.pending[r.ID] = move{Position: to}
		}
	}
}
