package snapshot

import (
	"math/bits"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// TableSpec says what a table of an image is like.
type TableSpec struct {
	ID   rhumb.TableID
	Name string
	// KeyKind is how keys are stored.
	KeyKind format.KeyKind
	// Ordered keeps the keys sorted, for scans by prefix.
	Ordered bool
	// Spatial keeps an index over the boxes of the records.
	Spatial bool
	// Summed gives every record a checksum.
	Summed bool
	// LocationField names the field that gives the box of a record; it is told to readers and means nothing here.
	LocationField string
	// Shards is the number of shards, a power of two of at most format.ShardsMax; 0 takes ExpectedRecords over
	// Config.ShardRecordsMax, and a quarter as many for a spatial table.
	Shards int
	// ExpectedRecords is how many records the table will hold, as far as that is known. It only decides Shards.
	ExpectedRecords int64
}

// Record is one version of a key.
type Record struct {
	Key format.Key
	// HLC is the timestamp of the write; 0 when there is none, which every closed view sees.
	HLC rhumb.Timestamp
	// Expiry is the time in ns since 1970 after which readers find nothing; 0 for never.
	Expiry int64
	// Box is where the record is, if HasBox.
	Box    format.Box
	HasBox bool
	// Value is the stored value. It is copied before the call returns.
	Value []byte
}

// Table is a table of an image. It belongs to its Publisher.
type Table struct {
	format.Table
	p      *Publisher
	listed bool // in the root
	shards []*shard
	entry  int // in the root's tables
}

// shard is one shard of a table.
type shard struct {
	table *Table
	slot  int // in the root's shards
	seg   *segment
	base  uint64 // the version that the generation shows
	// closed is the Closed of the root's entry.
	closed rhumb.Timestamp
	// touched says that the open commit has records here, loaded that it replaces the whole shard.
	touched bool
	careful bool // see rollKept
}

// Records gives the number of keys with a visible value.
func (t *Table) Records() (n int64) {
	for _, s := range t.shards {
		n += s.seg.live
	}
	return n
}

// Listed reports whether the table has content that was published, or that was empty when it was published.
func (t *Table) Listed() bool { return t.listed }

// validate checks a specification.
func (spec *TableSpec) validate(op rhumb.Op) error {
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

// shardCount gives how many shards the table gets.
func (spec *TableSpec) shardCount(recordsMax int64) int {
	if spec.Shards > 0 {
		return spec.Shards
	}
	want := min((spec.ExpectedRecords+recordsMax-1)/recordsMax, format.ShardsMax/2)
	if want <= 1 {
		return 1
	}
	return 1 << bits.Len64(uint64(want-1))
}

// entry gives the root's entry, without its shards.
func (spec *TableSpec) entry() format.Table {
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

// Table gives the table of a name, and makes it when there is none. Readers see a new table from the first commit on that
// puts records into it or loads it. It fails with kind Conflict when there is a table of that name that is not as spec says:
// drop it first; with Overloaded when the image has no table or shards left, or the budget is spent; with DiskFull when
// the file system is full.
func (p *Publisher) Table(spec TableSpec) (*Table, error) {
	const op rhumb.Op = "snapshot.Table"
	if err := spec.validate(op); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(op); err != nil {
		return nil, err
	}
	want := spec.entry()
	if t := p.tables[spec.Name]; t != nil {
		have := t.Table
		have.ShardFirst, have.ShardCount = 0, 0
		if have != want || spec.Shards != 0 && spec.Shards != len(t.shards) {
			return nil, rhumb.Ef(op, rhumb.Conflict, "table %q exists and is another: %+v, wanted %+v; drop it first", spec.Name, have, want)
		}
		return t, nil
	}
	return p.newTable(op, want, spec.shardCount(p.cfg.recordsMax(spec.Spatial)))
}

// newTable finds room in the root and makes empty shards.
func (p *Publisher) newTable(op rhumb.Op, entry format.Table, count int) (*Table, error) {
	t := &Table{Table: entry, p: p}
	if t.entry = p.freeEntry(); t.entry < 0 {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "the image has %d tables, no more fit; drop one", format.TablesMax)
	}
	first := p.freeShards(count)
	if first < 0 {
		return nil, rhumb.Ef(op, rhumb.Overloaded, "no %d shards in a row are free of %d; drop a table or take fewer shards", count, format.ShardsMax)
	}
	t.ShardFirst, t.ShardCount = uint16(first), uint16(count)
	for i := range count {
		s := &shard{table: t, slot: first + i, base: p.committed, closed: p.closed}
		seg, err := p.build(s, &source{}, p.committed, p.closed, room{})
		if err != nil {
			p.discard(t.shards)
			return nil, rhumb.Wrap(op, err)
		}
		s.seg = seg
		t.shards = append(t.shards, s)
	}
	p.tables[t.Name] = t
	p.entries[t.entry] = t
	return t, nil
}

// discard gives back the files of shards that never were in the root.
func (p *Publisher) discard(shards []*shard) {
	for _, s := range shards {
		p.files.remove(s.seg.file)
	}
}

// freeEntry gives a free table entry, or -1.
func (p *Publisher) freeEntry() int {
	for i, t := range p.entries {
		if t == nil {
			return i
		}
	}
	return -1
}

// freeShards gives the first of count free shard entries in a row, or -1.
func (p *Publisher) freeShards(count int) int {
	var used [format.ShardsMax]bool
	for _, t := range p.tables {
		for i := range t.shards {
			used[int(t.ShardFirst)+i] = true
		}
	}
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

// DropTable takes a table out of the image. Views that are locked keep it. The positions cannot be dropped.
func (p *Publisher) DropTable(t *Table) error {
	const op rhumb.Op = "snapshot.DropTable"
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(op); err != nil {
		return err
	}
	if p.tables[t.Name] != t || t == p.positions {
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q is not one that can be dropped", t.Name)
	}
	if t.listed {
		p.root.change(func() { p.root.clearTable(t) })
	}
	delete(p.tables, t.Name)
	p.entries[t.entry] = nil
	for _, s := range t.shards {
		p.stats.live.Add(-s.seg.live)
		if t.listed {
			p.files.retire(s.seg.file)
		} else {
			p.files.remove(s.seg.file)
		}
	}
	return nil
}

// Tables gives the tables of the image in the order of the root's entries, the positions included.
func (p *Publisher) Tables() (out []*Table) {
	for _, t := range p.entries {
		if t != nil {
			out = append(out, t)
		}
	}
	return out
}
