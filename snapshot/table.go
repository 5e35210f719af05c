package snapshot

import (
	"iter"
	"math/bits"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// TableSpec describes a table of an image.
type TableSpec struct {
	ID   rhumb.TableID
	Name string
	// KeyKind is how keys are stored.
	KeyKind format.KeyKind
	// Ordered keeps the keys sorted, for scans by prefix.
	Ordered bool
	// Spatial keeps an index over the boxes of the records.
	Spatial bool
	// Summed adds a checksum to every record.
	Summed bool
	// LocationField names the record field from which the box is derived. Readers see the name; the
	// publisher does not use it.
	LocationField string
	// Shards is the number of shards, a power of two of at most format.ShardsMax. 0 divides
	// ExpectedRecords by Config.ShardRecordsMax; a spatial table gets a quarter as many.
	Shards int
	// ExpectedRecords is the expected number of records. It only decides Shards.
	ExpectedRecords int64
}

// Record is one version of a key.
type Record = segment.Record

// Table is a table of an image. It belongs to its Publisher.
type Table struct {
	format.Table
	p      *Publisher
	listed bool // the root has the table
	shards []*shard
	entry  int // index in the root's tables
}

// shard is one shard of a table.
type shard struct {
	segment.Shard
	table *Table
	seg   *segment.Segment
	base  uint64 // the version that the base of seg shows
	// closed is the Closed of the root's entry.
	closed rhumb.Timestamp
	// touched reports whether the open commit has records in this shard.
	touched bool
}

// newShard returns shard i of the table, which has no segment yet. The root's entries of the table
// must be known.
func (t *Table) newShard(i int) *shard {
	return &shard{table: t, Shard: segment.Shard{Table: &t.Table, Slot: int(t.ShardFirst) + i, Root: &t.p.root.head}}
}

// Records returns the number of keys with a visible value.
func (t *Table) Records() (n int64) {
	for _, s := range t.shards {
		n += s.seg.Live()
	}
	return n
}

// Listed reports whether readers can see the table: its first content, which may be empty, was
// published.
func (t *Table) Listed() bool { return t.listed }

// All returns the records that the newest version shows, in no order. Key.Name and Value alias the
// image and are valid until the next call of a method of the publisher.
func (t *Table) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for _, s := range t.shards {
			for ref := range s.seg.Visible(t.p.committed) {
				if !yield(s.seg.Heap.Decode(ref)) {
					return
				}
			}
		}
	}
}

// checkSpec returns an error if a specification is invalid.
func (spec *TableSpec) checkSpec(op rhumb.Op) error {
	switch {
	case spec.Name == "" || len(spec.Name) > format.TableNameSizeMax:
		return rhumb.Ef(op, rhumb.InvalidArgument, "a table's name has 1 to %d bytes, this one %d", format.TableNameSizeMax, len(spec.Name))
	case len(spec.LocationField) > format.LocationFieldSizeMax:
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: the location field's name has %d bytes, at most %d fit",
			spec.Name, len(spec.LocationField), format.LocationFieldSizeMax)
	case spec.KeyKind > format.KeyName:
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: keys of kind %d do not exist", spec.Name, spec.KeyKind)
	case spec.Shards < 0 || spec.Shards > format.ShardsMax || spec.Shards&(spec.Shards-1) != 0:
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: %d shards; give a power of two of at most %d", spec.Name, spec.Shards, format.ShardsMax)
	}
	return nil
}

// shardCount returns how many shards the table gets.
func (spec *TableSpec) shardCount(recordsMax int64) int {
	if spec.Shards > 0 {
		return spec.Shards
	}
	// At most half of the root's entries, so that one wrong guess cannot use up the room for other
	// tables.
	want := min((spec.ExpectedRecords+recordsMax-1)/recordsMax, format.ShardsMax/2)
	if want <= 1 {
		return 1
	}
	return 1 << bits.Len64(uint64(want-1))
}

// rootEntry returns the root's entry without its shards.
func (spec *TableSpec) rootEntry() format.Table {
	t := format.Table{ID: spec.ID, Name: spec.Name, KeyKind: spec.KeyKind, Flags: format.TableUsed, LocationField: spec.LocationField}
	for _, f := range []struct {
		on   bool
		flag uint16
	}{{spec.Ordered, format.TableOrdered}, {spec.Spatial, format.TableSpatial}, {spec.Summed, format.TableSummed}} {
		if f.on {
			t.Flags |= f.flag
		}
	}
	return t
}

// Table returns the table with the name in spec, and creates it if there is none. Readers see a new
// table from the first commit on that puts records into it or loads it. Table fails with kind
// Conflict if a table of that name exists with another specification: drop it first; with
// Overloaded if the image has no table or shards left, or the budget is spent; with DiskFull if the
// file system is full.
func (p *Publisher) Table(spec TableSpec) (*Table, error) {
	const op rhumb.Op = "snapshot.Table"
	if err := spec.checkSpec(op); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(op); err != nil {
		return nil, err
	}
	want := spec.rootEntry()
	if t := p.tables.byName[spec.Name]; t != nil {
		// The shards of an existing table do not matter unless the caller asks for a number of
		// them.
		have := t.Table
		have.ShardFirst, have.ShardCount = 0, 0
		if have != want || spec.Shards != 0 && spec.Shards != len(t.shards) {
			return nil, rhumb.Ef(op, rhumb.Conflict, "table %q already exists with other settings: %+v, wanted %+v; drop it first", spec.Name, have, want)
		}
		return t, nil
	}
	return p.createTable(op, want, spec.shardCount(p.cfg.recordsMax(spec.Spatial)))
}

// createTable finds entries in the root and builds empty shards. The root does not change: a table
// appears in it together with its first content, because a view must not see a table that its
// version does not contain.
func (p *Publisher) createTable(op rhumb.Op, entry format.Table, count int) (*Table, error) {
	t := &Table{Table: entry, p: p}
	// Entries are found before any file is built, so that a full root costs no file.
	if t.entry = p.tables.freeEntry(); t.entry < 0 {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "the image has %d tables, no more fit; drop one", format.TablesMax)
	}
	first := p.tables.freeShards(count)
	if first < 0 {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "there are no %d adjacent free shards of %d; drop a table or use fewer shards", count, format.ShardsMax)
	}
	t.ShardFirst, t.ShardCount = uint16(first), uint16(count)
	for i := range count {
		s := t.newShard(i)
		s.base, s.closed = p.committed, p.closed
		// The empty base shows the newest version and every closed view from now on: nothing was
		// ever in the table.
		goal := segment.Goal{Shard: s.Shard, Version: p.committed, Closed: p.closed}
		var err error
		if s.seg, err = p.roller.Builder.Build(goal, &segment.Source{}); err != nil {
			for _, built := range t.shards {
				p.files.Remove(built.seg.File)
			}
			return nil, rhumb.Wrap(op, err)
		}
		t.shards = append(t.shards, s)
	}
	p.tables.add(t)
	return t, nil
}

// DropTable removes a table from the image. Locked views keep it. The positions cannot be dropped.
func (p *Publisher) DropTable(t *Table) error {
	const op rhumb.Op = "snapshot.DropTable"
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(op); err != nil {
		return err
	}
	if !p.tables.has(t) || t == p.tables.positions {
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q does not exist or cannot be dropped", t.Name)
	}
	if t.listed {
		p.root.changeTables(func() { p.root.clearTable(t) })
	}
	p.tables.remove(t)
	for _, s := range t.shards {
		// The root no longer names the table, so no new view can open its files.
		p.stats.live.Add(-s.seg.Live())
		s.seg.File.Doomed = true
		p.discardFile(t, s.seg)
	}
	p.files.doomAll()
	return nil
}

// discardFile releases the file of a segment that the root no longer names. Readers may have the
// file of a listed table mapped.
func (p *Publisher) discardFile(t *Table, seg *segment.Segment) {
	if t.listed {
		p.files.retire(seg.File)
	} else {
		p.files.Remove(seg.File)
	}
}

// Tables returns the tables of the image in the order of the root's entries, the positions
// included.
func (p *Publisher) Tables() (out []*Table) {
	for t := range p.tables.all() {
		out = append(out, t)
	}
	return out
}

// tableSet holds the tables of an image by name and by their entries in the root.
type tableSet struct {
	byName    map[string]*Table
	byEntry   [format.TablesMax]*Table
	positions *Table // the table of log positions, which is always there
}

// add adds a table under its name and its entry.
func (ts *tableSet) add(t *Table) {
	ts.byName[t.Name], ts.byEntry[t.entry] = t, t
}

// remove removes a table. Its entry and its shards are free from now on.
func (ts *tableSet) remove(t *Table) {
	delete(ts.byName, t.Name)
	ts.byEntry[t.entry] = nil
}

// has reports whether a table is one of the image. One that was dropped is not, even if another has
// its name and its entry.
func (ts *tableSet) has(t *Table) bool { return ts.byEntry[t.entry] == t }

// all returns the tables in the order of their entries.
func (ts *tableSet) all() iter.Seq[*Table] {
	return func(yield func(*Table) bool) {
		for _, t := range ts.byEntry {
			if t != nil && !yield(t) {
				return
			}
		}
	}
}

// freeEntry returns a free table entry, or -1.
func (ts *tableSet) freeEntry() int {
	for i, t := range ts.byEntry {
		if t == nil {
			return i
		}
	}
	return -1
}

// freeShards returns the first of count free shard entries in a row, or -1.
func (ts *tableSet) freeShards(count int) int {
	var used [format.ShardsMax]bool
	for _, t := range ts.byName {
		for i := range t.shards {
			used[int(t.ShardFirst)+i] = true
		}
	}
	// run counts the free entries that end at i. The shards of a table are adjacent, because its
	// entry in the root names only the first one and their number.
	run := 0
	for i, u := range used {
		if run++; u {
			run = 0
		}
		if run == count {
			return i + 1 - count
		}
	}
	return -1
}
