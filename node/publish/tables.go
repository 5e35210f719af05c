package publish

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/snapshot"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/storage"
)

// applyCatalog makes the image hold the tables that the catalog publishes and the ranges that the
// node holds. It is idempotent: after a failure the next call does the remaining work.
func (d *Driver) applyCatalog(st *catalog.State) error {
	var want []rhumb.Table
	for t := range st.Tables() {
		if t.Snapshot.Has(rhumb.SnapshotOn) {
			want = append(want, *t)
		}
	}
	if d.pub == nil {
		// A node without published tables creates no file and costs its host nothing per commit.
		if len(want) == 0 {
			return nil
		}
		if err := d.openImage(); err != nil {
			return err
		}
	}
	// Tables are dropped first, since a table of the same name but another ID may replace one of
	// them.
	if err := d.dropTables(want); err != nil {
		return err
	}
	for _, t := range want {
		if d.tables[t.ID] != nil {
			continue
		}
		image, err := d.pub.Table(d.tableSpec(st, t))
		if rhumb.KindOf(err) == rhumb.Conflict {
			err = d.replaceTable(st, t, &image)
		}
		if err != nil {
			return err
		}
		d.classes[t.Class] = true
		// A table that the image already had when it was opened matches the positions in the image.
		// A new one has no content. Without any position the content of either is unknown.
		d.tables[t.ID] = &table{Table: t, image: image, stale: !image.Listed() || len(d.at) == 0}
	}
	d.dropRanges(st)
	d.addRanges(st)
	// The image itself is usable without this file, so a failure does not keep it from being
	// published.
	if err := d.writeRegions(st); err != nil {
		d.cfg.Logger.Warn("writing the list of regions in the image failed", "err", err)
	}
	return nil
}

// openImage opens the image and resumes from the positions that it holds.
func (d *Driver) openImage() error {
	cfg := d.cfg.Image
	cfg.Dir, cfg.Logger, cfg.Registerer = ImageDir(d.cfg.Root, d.cfg.Cluster, d.cfg.Node), d.cfg.Logger, d.cfg.Registerer
	// Created before it is checked, so that nobody else creates it in between.
	if err := os.MkdirAll(d.cfg.Root, 0o755); err != nil {
		return rhumb.Wrap("publish.openImage", err)
	}
	if err := checkFolders(d.cfg.Root, filepath.Dir(cfg.Dir), cfg.Dir); err != nil {
		return err
	}
	// The folder of the cluster holds only names. It stays passable, since readers of the group may not be
	// in the group of the node's user.
	if cfg.Group != 0 {
		if err := makePassable(filepath.Dir(cfg.Dir)); err != nil {
			return err
		}
	}
	p, err := snapshot.Open(cfg)
	if err != nil {
		return err
	}
	d.pub, d.at = p, p.Positions()
	// The order matters: a commit that arrives before following is set does not wake the driver, so
	// the driver wakes itself once afterwards.
	d.following.Store(true)
	signal(d.hurry)
	d.cfg.Logger.Info("image opened", "version", p.Version(), "ranges", len(d.at))
	return nil
}

// checkFolders rejects folders of another user: everybody may create folders in /dev/shm, and the owner of a folder could
// replace the image in it, or lead the node elsewhere by a link. Folders that do not exist yet are fine. The root may be a
// link, and belongs to the administrator or to the node.
func checkFolders(root string, below ...string) error {
	const op rhumb.Op = "publish.checkFolders"
	for i, dir := range append([]string{root}, below...) {
		look := os.Lstat
		if i == 0 {
			look = os.Stat
		}
		info, err := look(dir)
		if errors.Is(err, fs.ErrNotExist) {
			// The next one is in it.
			return nil
		}
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		if !info.IsDir() {
			return rhumb.Ef(op, rhumb.PermissionDenied, "%s is no folder, but the image of this node belongs there; find out who made it, and remove it", dir)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return rhumb.Ef(op, rhumb.PermissionDenied, "%s belongs to user %d, who could replace the image of this node; remove it, or give it to the user of the node (%d)", dir, st.Uid, os.Geteuid())
		}
	}
	return nil
}

// makePassable creates a folder that everybody may pass, whatever the umask of the process.
func makePassable(dir string) error {
	const op rhumb.Op = "publish.makePassable"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return rhumb.Wrap(op, err)
	}
	return rhumb.Wrap(op, os.Chmod(dir, 0o755))
}

// followsRange reports whether a range may hold records of a published table. A range that the
// catalog does not know yet might. One that has left the node does not, although entries come until
// the node has dropped its copy.
func (d *Driver) followsRange(id rhumb.RangeID) bool {
	if _, ok := d.at[id]; ok {
		return true
	}
	r, ok := d.cfg.State().Range(id)
	return !ok || d.classes[r.Class] && r.IsReplica(d.cfg.Node)
}

// positionsTable returns the table of the positions, which every image has.
func (d *Driver) positionsTable() *snapshot.Table {
	i := slices.IndexFunc(d.pub.Tables(), func(t *snapshot.Table) bool { return t.Name == format.PositionsTable })
	return d.pub.Tables()[i]
}

// tableSpec returns the layout of a table in the image.
func (d *Driver) tableSpec(st *catalog.State, t rhumb.Table) snapshot.TableSpec {
	spec := snapshot.TableSpec{
		ID: t.ID, Name: t.Name, KeyKind: format.KeyName, Ordered: t.Snapshot.Has(rhumb.SnapshotOrdered),
		Spatial: t.Snapshot.Has(rhumb.SnapshotSpatial), Summed: t.Snapshot.Has(rhumb.SnapshotSummed),
	}
	if spec.Spatial {
		spec.LocationField = t.LocationField
	}
	// The size of the ranges is an upper bound for one table, since all tables of a class share its
	// ranges.
	for _, id := range d.localRanges(st, t.Class) {
		if size, ok := d.cfg.Engine.Store(id).Size(id); ok {
			spec.ExpectedRecords += size.Data / recordBytes
		}
	}
	return spec
}

// recordBytes is the assumed size of a stored record, from which the number of shards of a table is
// computed. It is deliberately small: too many shards cost less than shards that are too large.
const recordBytes = 64

// replaceTable replaces a table of the image by one with the same name and another layout.
func (d *Driver) replaceTable(st *catalog.State, t rhumb.Table, image **snapshot.Table) (err error) {
	for _, old := range d.pub.Tables() {
		if old.Name == t.Name {
			if err := d.pub.DropTable(old); err != nil {
				return err
			}
		}
	}
	*image, err = d.pub.Table(d.tableSpec(st, t))
	return err
}

// dropTables removes tables from the image that the catalog does not publish.
func (d *Driver) dropTables(want []rhumb.Table) error {
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

// localRanges returns the ranges of a class that this node holds.
func (d *Driver) localRanges(st *catalog.State, class rhumb.ClassID) (out []rhumb.RangeID) {
	for r := range st.Ranges() {
		if r.Class == class && r.IsReplica(d.cfg.Node) {
			out = append(out, r.ID)
		}
	}
	return out
}

// copyOf returns the state of this node's copy of a range. A quarantined copy counts as none: it is damaged, or contradicts the protocol.
func (d *Driver) copyOf(id rhumb.RangeID) (st storage.RangeState, ok bool) {
	if st, ok = d.cfg.Engine.Store(id).State(id); st.Quarantine != "" {
		return storage.RangeState{}, false
	}
	return st, ok
}

// dropRanges forgets ranges that this node no longer holds. The tables of their class are loaded
// again without them.
func (d *Driver) dropRanges(st *catalog.State) {
	for id := range d.at {
		r, ok := st.Range(id)
		if ok && r.IsReplica(d.cfg.Node) {
			continue
		}
		// The record of a range that was split off may still be on its way.
		if _, born := d.births[id]; born && !ok {
			continue
		}
		// The node has not united its copies yet: the other range does not have the records.
		if _, held := d.cfg.Engine.Store(id).State(id); !ok && held && st.IsMerged(id) {
			continue
		}
		whole := d.merged[id]
		delete(d.at, id)
		delete(d.loaded, id)
		delete(d.pending, id)
		delete(d.unsaved, id)
		delete(d.merged, id)
		// The position stays in the image until the version that loads the tables again, so that no
		// version has the records of a range without its position.
		d.left = append(d.left, id)
		for _, t := range d.tables {
			// A range that the catalog no longer knows has no class any more: each table may hold
			// its records.
			t.stale = t.stale || !ok && !whole || ok && t.Class == r.Class
		}
	}
	// The image does not have a range yet that has left before.
	maps.DeleteFunc(d.pending, func(id rhumb.RangeID, _ move) bool {
		r, ok := st.Range(id)
		return ok && !r.IsReplica(d.cfg.Node)
	})
}

// addRanges begins to follow ranges, from the positions reported before they were followed or those
// that storage holds as committed.
func (d *Driver) addRanges(st *catalog.State) {
	maps.DeleteFunc(d.births, func(id rhumb.RangeID, _ birth) bool {
		r, ok := st.Range(id)
		return ok && (d.at[id].Seq > 0 || !r.IsReplica(d.cfg.Node))
	})
	// A range that the catalog does not know yet is kept: its record may still be on its way to
	// this node.
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
		// The report may be missing, for example after a restart without new commits. Storage in
		// turn may know less, since its commit position is written with the next append.
		if s, ok := d.copyOf(r.ID); ok && s.Commit > to.Seq {
			to = Position{s.Commit, s.CommitHLC}
		}
		if to.Seq > d.pending[r.ID].Seq && uint64(to.Seq) > d.at[r.ID].Seq {
			d.pending[r.ID] = move{Position: to}
		}
	}
}
