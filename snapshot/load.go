package snapshot

import (
	"iter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// load is a table that a commit replaces.
type load struct {
	table  *Table
	segs   []*segment
	old    []*segment
	closed rhumb.Timestamp
}

// Load replaces the whole content of a table by the records, and publishes that as one version. It is the fast way to fill a
// table. Each key may come once; the error for one that comes twice is InvalidArgument. When records ends with an error, or
// anything else fails, the table stays as it was. The values are copied before the next record is asked for.
//
// Closed views can be taken once the closed timestamp has passed the newest record that was loaded.
func (p *Publisher) Load(t *Table, records iter.Seq2[Record, error], info CommitInfo) (uint64, error) {
	c := p.Begin()
	if err := c.Load(t, records); err != nil {
		c.Discard()
		return 0, err
	}
	return c.Publish(info)
}

// Load is Publisher.Load as a part of a commit, together with positions and changes of other tables.
func (c *Commit) Load(t *Table, records iter.Seq2[Record, error]) error {
	const op rhumb.Op = "snapshot.Load"
	if err := c.checkLoad(op, t); err != nil {
		return err
	}
	start := time.Now()
	st := c.p.newStaging(t)
	defer func() {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		st.close(c.p)
	}()
	for rec, err := range records {
		if err == nil {
			err = checkRecord(op, t, &rec)
		}
		if err == nil {
			err = st.add(c.p, t, &rec)
		}
		if err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	c.p.mu.Lock()
	l, err := c.p.buildLoad(c, t, st)
	c.p.mu.Unlock()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	c.loads = append(c.loads, l)
	c.records, c.loaded = c.records+st.records, c.loaded+st.records
	c.p.metrics.loadSeconds.Observe(time.Since(start).Seconds())
	return nil
}

func (c *Commit) checkLoad(op rhumb.Op, t *Table) error {
	if err := c.check(t, &Record{Key: anyKey(t.KeyKind)}); err != nil {
		return err
	}
	for _, s := range c.touched {
		if s.table == t {
			return rhumb.Ef(op, rhumb.InvalidArgument, "table %q was written to in this commit; load it in another", t.Name)
		}
	}
	return nil
}

// anyKey gives a key that a table takes.
func anyKey(kind format.KeyKind) format.Key {
	if kind == format.KeyName {
		return format.Key{Name: []byte{0}}
	}
	return format.Key{}
}

// buildLoad builds all shards of a table. What a shard staged is given back as soon as the shard is built.
func (p *Publisher) buildLoad(c *Commit, t *Table, st *staging) (load, error) {
	l := load{table: t, closed: max(st.newest, p.closed)}
	for i, s := range t.shards {
		part := &st.parts[i]
		src := &source{heap: part.mem, refs: part.refs, units: uint64(part.tail)}
		seg, err := p.build(s, src, c.version, l.closed, room{})
		part.release(p)
		if err != nil {
			l.discard(p)
			return load{}, err
		}
		l.segs = append(l.segs, seg)
	}
	return l, nil
}

// discard gives the files of a load back.
func (l *load) discard(p *Publisher) {
	for _, seg := range l.segs {
		p.files.remove(seg.file)
	}
}

// swingLoads writes the entries of the loaded shards; only within root.change.
func (c *Commit) swingLoads() {
	for i := range c.loads {
		l := &c.loads[i]
		for j, s := range l.table.shards {
			l.old = append(l.old, s.seg)
			s.seg, s.base, s.closed = l.segs[j], c.version, l.closed
		}
		c.p.root.putTable(l.table)
	}
}

// finish retires what the load replaced.
func (l *load) finish(p *Publisher) {
	for i, old := range l.old {
		p.stats.live.Add(l.segs[i].live - old.live)
		if l.table.listed {
			p.files.retire(old.file)
		} else {
			p.files.remove(old.file)
		}
	}
	l.table.listed = true
	p.stats.loads.Add(1)
	p.countLarge()
}

// staging holds the records of a load, by shard, outside the garbage collector's sight and outside the image's budget. What
// it can it keeps in recycled files, whose pages are in memory already.
type staging struct {
	parts   []part
	records uint64
	newest  rhumb.Timestamp
}

// part is the records of a shard, laid out as in a heap.
type part struct {
	mem  []byte
	file *mapping // a recycled one that holds mem, or did before that grew out of it
	tail uint32
	refs []uint32
}

// partMin is the first size of a part; it doubles when it is full, which moves page tables and copies nothing.
const partMin = 1 << 20

// newStaging borrows recycled files that are as large as the shards are now. One stays behind for the first shard that is
// built; each further one can have the file of the one before. So a load never needs more files than without.
func (p *Publisher) newStaging(t *Table) *staging {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files.reclaim()
	st := &staging{parts: make([]part, len(t.shards))}
	for i, s := range t.shards {
		st.parts[i].refs = make([]uint32, 0, s.seg.live+s.seg.live/64)
		if size := int64(len(s.seg.file.mem)); size > partMin && len(p.files.recycled) > 1 {
			st.parts[i].borrow(p.files.pick(size, size))
		}
	}
	return st
}

// borrow takes a file's memory but for the header, which stays as it is: the file has no magic.
func (p *part) borrow(file *mapping) {
	if file != nil {
		p.file, p.mem = file, file.mem[format.SegmentHeader:]
	}
}

// add encodes a record into its part.
func (st *staging) add(p *Publisher, t *Table, rec *Record) error {
	const op rhumb.Op = "snapshot.stage"
	hash := p.hash(t.KeyKind, &rec.Key)
	part := &st.parts[format.ShardOf(hash, uint16(len(st.parts)))]
	flags := rec.flags()
	size := format.RecordSize(t.KeyKind, flags, len(rec.Key.Name), len(rec.Value))
	units := format.Units(size)
	end := uint64(part.tail) + uint64(units)
	if need := int(end) * format.RecordAlign; need > len(part.mem) {
		if end > unitsMax {
			return rhumb.Ef(op, rhumb.TooLarge, "a shard of table %q outgrows its heap; give the table more shards", t.Name)
		}
		if err := part.grow(need); err != nil {
			return rhumb.WrapKind(op, rhumb.Overloaded, err)
		}
	}
	dst := part.mem[int(part.tail)*format.RecordAlign:][:int(units)*format.RecordAlign]
	encodeRecord(dst, size, &t.Table, hash, rec, flags, 0)
	part.refs = append(part.refs, part.tail)
	part.tail += units
	st.records++
	st.newest = max(st.newest, rec.HLC)
	return nil
}

func (p *part) grow(need int) (err error) {
	size := int(pow2(uint64(max(need, partMin))))
	var mem []byte
	if p.owned() {
		mem, err = unix.Mremap(p.mem, size, unix.MREMAP_MAYMOVE)
	} else if mem, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err == nil {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
		copy(mem, p.mem[:int(p.tail)*format.RecordAlign])
	}
	if err == nil {
		p.mem = mem
	}
	return err
}

// owned reports whether the memory is the part's own.
func (p *part) owned() bool {
	return p.mem != nil && (p.file == nil || unsafe.SliceData(p.mem) != &p.file.mem[format.SegmentHeader])
}

// release gives the memory back; the files of a publisher are not touched by others meanwhile.
func (p *part) release(pub *Publisher) {
	if p.owned() {
		_ = unix.Munmap(p.mem)
	}
	if p.file != nil {
		pub.files.giveBack(p.file)
	}
	*p = part{}
}

func (st *staging) close(p *Publisher) {
	for i := range st.parts {
		st.parts[i].release(p)
	}
}
