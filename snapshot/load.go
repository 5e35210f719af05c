package snapshot

import (
	"iter"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// load is the replacement of a table's content within a commit.
type load struct {
	table  *Table
	segs   []*segment.Segment // the new generations, by shard
	old    []*segment.Segment // the replaced ones, once swingLoads has run
	closed rhumb.Timestamp
}

// Load replaces the whole content of a table by the records, and publishes that as one version.
// Load is the fastest way to fill a table. Each key may occur once; a key that occurs twice is an
// error of kind InvalidArgument. If records ends with an error, or anything else fails, the table
// does not change. Load copies each value before it asks for the next record.
//
// Closed views become available once the closed timestamp has passed the newest loaded record.
func (p *Publisher) Load(t *Table, records iter.Seq2[Record, error], info CommitInfo) (uint64, error) {
	c := p.Begin()
	if err := c.Load(t, records); err != nil {
		c.Discard()
		return 0, err
	}
	return c.Publish(info)
}

// Load is like Publisher.Load but within a commit, together with positions and changes to other
// tables.
func (c *Commit) Load(t *Table, records iter.Seq2[Record, error]) error {
	const op rhumb.Op = "snapshot.Load"
	if err := c.checkLoad(op, t); err != nil {
		return err
	}
	start := time.Now()
	// The caller's iterator runs without the lock: it may take minutes, and Beat must not block
	// that long.
	st := c.p.newStaging(t)
	// The borrowed files are returned on every path.
	defer func() {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		st.release(&c.p.files)
	}()
	for rec, err := range records {
		if err == nil {
			err = checkRecord(op, t, &rec)
		}
		if err == nil {
			// The record is encoded before the next one is requested, so the caller may reuse its
			// memory.
			err = st.add(t, &rec)
		}
		if err != nil {
			return rhumb.Wrap(op, err)
		}
	}
	c.p.mu.Lock()
	// Building holds the lock, because it takes files. Beat waits for a shard at most as long as a
	// roll takes.
	l, err := c.buildLoad(t, st)
	c.p.mu.Unlock()
	if err != nil {
		return rhumb.Wrap(op, err)
	}
	c.loads = append(c.loads, l)
	// Loaded records do not count in the bound of a commit's records: they are in files of their
	// own.
	c.records, c.loaded = c.records+st.records, c.loaded+st.records
	c.p.metrics.loadSeconds.Observe(time.Since(start).Seconds())
	return nil
}

// checkLoad returns an error if a table cannot be loaded in this commit.
func (c *Commit) checkLoad(op rhumb.Op, t *Table) error {
	if err := c.checkPut(t, &Record{Key: validKey(t.KeyKind)}); err != nil {
		return err
	}
	for _, s := range c.touched {
		if s.table == t {
			return rhumb.Ef(op, rhumb.InvalidArgument, "table %q was written to in this commit; load it in another", t.Name)
		}
	}
	return nil
}

// validKey returns a key that a table of this kind accepts.
func validKey(kind format.KeyKind) format.Key {
	if kind == format.KeyName {
		return format.Key{Name: []byte{0}}
	}
	return format.Key{}
}

// buildLoad builds all shards of a table. The staged records of a shard are released as soon as the
// shard is built, so that the file that held them can become the next shard.
func (c *Commit) buildLoad(t *Table, st *staging) (load, error) {
	p := c.p
	// The base holds one version per key. A closed view below the newest loaded record would need
	// the versions before it, so the base is closed only from there on.
	l := load{table: t, closed: max(st.newest, p.closed)}
	for i, s := range t.shards {
		part := &st.parts[i]
		src := &segment.Source{Heap: part.heap(t.KeyKind), Refs: part.refs, Units: uint64(part.tail)}
		goal := segment.Goal{Shard: s.Shard, Version: c.version, Closed: l.closed}
		seg, err := p.roller.Builder.Build(goal, src)
		// Released even if the build failed: the next shard, or the next load, can use the file.
		part.release(&p.files)
		if err != nil {
			l.removeFiles(p)
			return load{}, err
		}
		l.segs = append(l.segs, seg)
	}
	return l, nil
}

// removeFiles removes the files of a load that is not published.
func (l *load) removeFiles(p *Publisher) {
	for _, seg := range l.segs {
		p.files.Remove(seg.File)
	}
}

// swingLoads writes the root's entries of the loaded shards. It must run within root.changeTables.
func (c *Commit) swingLoads() {
	for i := range c.loads {
		l := &c.loads[i]
		for j, s := range l.table.shards {
			l.old = append(l.old, s.seg)
			// The old segments stay mapped until the commit is visible: settleShards retires them.
			s.seg, s.base, s.closed = l.segs[j], c.version, l.closed
		}
		c.p.root.putTable(l.table)
	}
}

// retireOld retires the generations that the load replaced.
func (l *load) retireOld(p *Publisher) {
	for i, old := range l.old {
		// Views that were locked before keep the old generation mapped and still read it.
		p.stats.live.Add(l.segs[i].Live() - old.Live())
		p.discardFile(l.table, old)
	}
	l.table.listed = true // only now: discardFile reads the old value
	p.stats.loads.Add(1)
	p.countLargeShards()
}
