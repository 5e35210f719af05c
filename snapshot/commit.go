package snapshot

import (
	"iter"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Commit collects changes of any tables, which Publish makes visible at once. It is over with Publish or Discard.
type Commit struct {
	p       *Publisher
	version uint64
	touched []*shard
	loads   []load
	fresh   []*Table // that appear in the root with this commit
	records uint64
	loaded  uint64 // of them, those of loads
	err     error
}

// CommitInfo is what readers learn about a version.
type CommitInfo struct {
	// Closed is a timestamp up to which every range of the image is complete; 0 or one below that of the commit before
	// leaves the newest one as it is.
	Closed rhumb.Timestamp
	// Event is the time of the newest event in the commit, in ns since 1970; 0 when unknown.
	Event int64
}

// Begin starts a commit. There is one at a time: Begin panics when another is open, or the publisher is closed. Do not keep
// one open for long: readers of the keys that it changed take one step more to what is committed.
func (p *Publisher) Begin() *Commit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("snapshot.Begin"); err != nil {
		panic(err)
	}
	p.commit = &Commit{p: p, version: p.committed + 1, touched: p.touched[:0]}
	return p.commit
}

// Put writes a version of a key. The newest of several in one commit is the one that views see. Once a call has failed for
// want of room, the commit can only be discarded; a record that is refused for what it is leaves the commit as it was.
func (c *Commit) Put(t *Table, rec Record) error {
	if err := c.check(t, &rec); err != nil {
		return err
	}
	return c.write(t, &rec, 0)
}

// Delete takes a key away from this version on. hlc is the timestamp of the write, 0 when there is none.
func (c *Commit) Delete(t *Table, key format.Key, hlc rhumb.Timestamp) error {
	rec := Record{Key: key, HLC: hlc}
	if err := c.check(t, &rec); err != nil {
		return err
	}
	return c.write(t, &rec, format.FlagTombstone)
}

// Position writes how far the image follows a range once this commit is visible.
func (c *Commit) Position(id rhumb.RangeID, pos format.Position) error {
	var value [format.PositionSize]byte
	return c.Put(c.p.positions, Record{Key: format.Key{Number: format.PositionKey(id)}, HLC: pos.HLC, Value: format.EncodePosition(value[:0], pos)})
}

// check refuses what cannot be written.
func (c *Commit) check(t *Table, rec *Record) error {
	const op rhumb.Op = "snapshot.Put"
	switch {
	case c.err != nil:
		return c.err
	case c.p.commit != c:
		return rhumb.E(op, rhumb.ConditionFailed, "the commit is over; begin another")
	case c.p.entries[t.entry] != t:
		return rhumb.Ef(op, rhumb.NotFound, "table %q was dropped", t.Name)
	case c.records-c.loaded == CommitRecordsMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the commit has %d records, no more fit; publish it, or load the table", CommitRecordsMax)
	}
	for _, l := range c.loads {
		if l.table == t {
			return rhumb.Ef(op, rhumb.InvalidArgument, "table %q is loaded in this commit; write to it in the next one", t.Name)
		}
	}
	return checkRecord(op, t, rec)
}

func checkRecord(op rhumb.Op, t *Table, rec *Record) error {
	switch n := len(rec.Key.Name); {
	case len(rec.Value) > format.ValueSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "table %q: a value of %d bytes, at most %d fit", t.Name, len(rec.Value), format.ValueSizeMax)
	case rec.HasBox && !rec.Box.Valid():
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: the box %v is none: it is in 1e-7 degrees, latitude to 90, longitude to 180", t.Name, rec.Box)
	case t.KeyKind == format.KeyUint64:
		if n != 0 || rec.Key.ShardKey {
			return rhumb.Ef(op, rhumb.InvalidArgument, "table %q has numbers as keys", t.Name)
		}
	case rec.Key.ShardKey && n != format.ShardKeySize:
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: a shard key of %d bytes, want %d", t.Name, n, format.ShardKeySize)
	case n == 0 || n > format.NameSizeMax:
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: a name of %d bytes, want 1 to %d", t.Name, n, format.NameSizeMax)
	}
	return nil
}

// write puts a record behind the others of its shard, and links the records that came some time before it.
func (c *Commit) write(t *Table, rec *Record, flags uint16) error {
	p := c.p
	hash := p.hash(t.KeyKind, &rec.Key)
	s := t.shards[format.ShardOf(hash, uint16(len(t.shards)))]
	flags |= rec.flags()
	size := format.RecordSize(t.KeyKind, flags, len(rec.Key.Name), len(rec.Value))
	units := format.Units(size)
	if s.seg.units-s.seg.tail < units || uint64(c.version-s.base) >= maxRelative {
		if err := c.roll(s, room{units: uint64(units), records: 1}); err != nil {
			return err
		}
	}
	if !s.touched {
		s.touched = true
		c.touched = append(c.touched, s)
		s.seg.fetchCounters()
	}
	seg := s.seg
	dst := seg.heap[int(seg.tail)*format.RecordAlign:][:int(units)*format.RecordAlign]
	encodeRecord(dst, size, &t.Table, hash, rec, flags, uint32(c.version-s.base))
	b := &p.stages[p.stage]
	b.shards[b.n] = s
	b.add(seg, hash, seg.tail)
	seg.tail += units
	seg.pending++
	c.records++
	prefetchPair(seg.recordAddr(seg.tail)) // with many shards no hardware guesses where each goes on
	if b.n == group {
		return c.step()
	}
	return nil
}

// maxRelative bounds the distance of a version from the base of a generation; a shard that reaches it is rolled.
const maxRelative = 1 << 31

// stage is a group of records of the open commit that are not in the index yet, whatever their shards. The segment of those
// that a roll linked meanwhile is nil.
type stage struct {
	batch
	shards [group]*shard
}

// step ends the group that is being written and takes the two before it one step further: it asks for the buckets of the
// first, asks for what the buckets of the second lead to, and links the third, whose memory has come while the others were
// written. So a commit waits for memory about never, and its records are linked while they are in the caches; no reader minds,
// since their version is not committed.
//
// Each kind of address is asked for in one go. A processor walks several page tables at once, but only as far as it looks
// ahead: with the work on a record between any two addresses, each walk is waited for.
func (c *Commit) step() error {
	p := c.p
	written, found := &p.stages[p.stage], &p.stages[(p.stage+stages-1)%stages]
	written.fetchBuckets()
	found.fetch()
	p.stage = (p.stage + 1) % stages
	return c.link(&p.stages[p.stage])
}

// stages is how many groups of a commit are under way.
const stages = 3

// link puts the records of a group into the index, in the order in which they were written.
func (c *Commit) link(g *stage) error {
	for i := range g.n {
		seg := g.segs[i]
		if seg == nil {
			continue
		}
		if g.refs[i] >= seg.raised {
			seg.raise()
		}
		if !g.batch.link(i) {
			if err := c.roll(g.shards[i], room{}); err != nil {
				return err
			}
		}
	}
	g.n = 0
	return nil
}

// fetchCounters asks for the words that a commit changes in the header, which stand in two lines: with many shards they are in
// no cache.
func (s *segment) fetchCounters() {
	prefetchPair(uintptr(unsafe.Pointer(unsafe.SliceData(s.file.mem))) + format.SegmentAppendHead)
}

// raise says that all records that were written are complete. Nothing refers to a record before that.
func (s *segment) raise() {
	s.raised = s.tail
	s.file.store64(format.SegmentAppendTail, uint64(s.raised))
}

// roll makes room in a shard, and links there all that the commit has written to it. When that fails the commit can only be
// discarded.
func (c *Commit) roll(s *shard, need room) error {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rollFor(s, need); err != nil {
		c.err = rhumb.Wrap("snapshot.Put", err)
		return c.err
	}
	for i := range p.stages {
		g := &p.stages[i]
		for j, other := range g.shards[:g.n] {
			if other == s {
				g.segs[j] = nil
			}
		}
	}
	return nil
}

// hash gives the hash of a key.
func (p *Publisher) hash(kind format.KeyKind, key *format.Key) uint64 {
	if kind == format.KeyUint64 {
		return p.root.head.HashNumber(key.Number)
	}
	return p.root.head.HashName(key.Name, key.ShardKey)
}

// Discard gives a commit up. It does nothing after Publish. The room that its records took comes back with the next roll.
func (c *Commit) Discard() {
	if c.p.commit == c {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		c.discard()
	}
}

// discard takes back what was written. What is in the index already is marked, since its version number will be used again;
// its place comes back with the next roll.
func (c *Commit) discard() {
	for _, s := range c.touched {
		s.seg.abort()
		s.touched = false
	}
	for _, l := range c.loads {
		l.discard(c.p)
	}
	for i := range c.p.stages {
		c.p.stages[i].n = 0
	}
	c.p.commit, c.p.touched = nil, c.touched
}

// abort takes back the records that are not committed.
func (s *segment) abort() (marked uint64) {
	if s.raised > s.done {
		for ref := s.done; ref < s.raised; ref += format.Units(recordSize(s.kind, s.heap, ref)) {
			atomic.StoreUint32(&s.record(ref).ver, format.AbortedVersion)
			marked++
		}
		s.done = s.raised
		s.file.store64(format.SegmentAppendHead, uint64(s.done))
	}
	s.tail, s.links, s.pending = s.done, 0, 0
	return marked
}

// Publish makes the commit visible to every reader and gives its version. A commit without any record is a version too, which
// carries a closed timestamp. After an error nothing of it is visible, and it is over.
func (c *Commit) Publish(info CommitInfo) (uint64, error) {
	const op rhumb.Op = "snapshot.Publish"
	p := c.p
	if p.commit != c {
		return 0, rhumb.E(op, rhumb.ConditionFailed, "the commit is over; begin another")
	}
	start := time.Now()
	err := c.err
	for i := 0; i < len(p.stages) && err == nil; i++ {
		err = c.step()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		c.discard()
		return 0, rhumb.Wrap(op, err)
	}
	p.closed = max(p.closed, info.Closed)
	c.show(info)
	c.finish()
	p.metrics.committed(time.Since(start), c.records)
	return c.version, nil
}

// show writes the ring entry and raises the commit word. Loaded and new tables appear in the same moment.
func (c *Commit) show(info CommitInfo) {
	p := c.p
	wall, mono := p.clock.now()
	for _, s := range c.touched {
		if t := s.table; !t.listed {
			t.listed = true
			c.fresh = append(c.fresh, t)
		}
	}
	commit := func() {
		p.root.putCommit(format.Commit{
			Version: c.version, Closed: p.closed, Event: info.Event, Wall: wall, Mono: mono, Records: uint32(min(c.records, 1<<32-1)),
		})
		p.root.commit(c.version)
	}
	if len(c.loads) == 0 && len(c.fresh) == 0 {
		commit()
	} else {
		c.admit()
		p.root.change(func() {
			c.swingLoads()
			for _, t := range c.fresh {
				p.root.putTable(t)
			}
			commit()
		})
	}
	p.root.file.store64(format.RootHeartbeat, mono)
	p.committed = c.version
}

// admit lets readers into the files that the root is about to name.
func (c *Commit) admit() {
	for _, l := range c.loads {
		for _, seg := range l.segs {
			seg.file.unlock()
		}
	}
	for _, t := range c.fresh {
		for _, s := range t.shards {
			s.seg.file.unlock()
		}
	}
}

// finish brings the counters of the shards up to date and ends the commit.
func (c *Commit) finish() {
	p := c.p
	for _, s := range c.touched {
		p.stats.live.Add(s.seg.links)
		s.seg.settleCommit()
		s.touched = false
	}
	for _, l := range c.loads {
		l.finish(p)
	}
	p.stats.version.Store(p.committed)
	p.stats.commits.Add(1)
	p.stats.records.Add(c.records)
	p.commit, p.touched = nil, c.touched
}

// settleCommit says that what the commit wrote is committed.
func (s *segment) settleCommit() {
	s.live += s.links
	s.links, s.pending = 0, 0
	s.done = s.tail
	s.file.store64(format.SegmentLive, uint64(s.live))
	s.file.store64(format.SegmentAppendHead, uint64(s.done))
}

// All gives the records that the newest version shows, in no order. They alias the image: what they hold is good until the
// next call of the publisher.
func (t *Table) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for _, s := range t.shards {
			for ref := range s.seg.newest(t.p.committed) {
				if !yield(s.seg.decode(ref)) {
					return
				}
			}
		}
	}
}
