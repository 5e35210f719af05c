package snapshot

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// A record takes this way from Put to a reader:
//
//	checkPut       the record is valid, the commit is open
//	writeRecord    the shard has room, or is rolled; segment.Append writes the bytes
//	pipeline       the record waits in a group of 32 while its bucket and its predecessor are loaded
//	stepPipeline   segment.Batch.Link makes the record the newest of its key; views skip it
//	Publish        links what is left in the pipeline
//	showVersion    ring entry, then the commit word: from here on new views see the record
//	settleShards   the counters of the shards follow

// Commit collects changes of any tables, which Publish makes visible at once. It is over with Publish or Discard.
//
// Put writes a record at once, and links it soon after; readers pass it meanwhile and skip it, because its version is not
// committed. Publish then stores one word, the version. All that is left to do after that word is bookkeeping, which recovery
// would repeat.
type Commit struct {
	p       *Publisher
	version uint64
	touched []*shard
	loads   []load
	fresh   []*Table // tables that appear in the root with this commit
	records uint64
	loaded  uint64 // records of loads; part of records
	err     error  // a roll failed: the commit can only be discarded
}

// CommitInfo is what readers learn about a version.
type CommitInfo struct {
	// Closed is a timestamp up to which every range of the image is complete. 0, and one below that of the commit before,
	// leaves the newest one as it is.
	Closed rhumb.Timestamp
	// Event is the time of the newest event in the commit, in ns since 1970; 0 if unknown.
	Event int64
}

// maxRelative bounds the distance of a version from the base of a generation, whose records count versions in 32 bits. A
// shard that reaches it is rolled.
const maxRelative = 1 << 31

// Begin starts a commit. There is one at a time: Begin panics if another is open, or if the publisher is closed. Do not keep a
// commit open for long: readers of the keys that it changed take one step more to what is committed.
func (p *Publisher) Begin() *Commit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable("snapshot.Begin"); err != nil {
		panic(err)
	}
	// The version number may have been used by a commit that was discarded. Its records are marked as aborted, so that they
	// cannot be taken for records of this one.
	p.commit = &Commit{p: p, version: p.committed + 1, touched: p.touched[:0]}
	return p.commit
}

// Put writes a version of a key. If one commit has several versions of a key, views see the last one. After a call failed for
// lack of room, the commit can only be discarded. A record that is invalid is refused and leaves the commit as it was.
func (c *Commit) Put(t *Table, rec Record) error {
	if err := c.checkPut(t, &rec); err != nil {
		return err
	}
	return c.writeRecord(t, &rec, 0)
}

// Delete removes a key from this version on. hlc is the timestamp of the write, 0 if there is none.
func (c *Commit) Delete(t *Table, key format.Key, hlc rhumb.Timestamp) error {
	// A deletion is a record without a value, so that closed views can tell by its timestamp whether they see it.
	rec := Record{Key: key, HLC: hlc}
	if err := c.checkPut(t, &rec); err != nil {
		return err
	}
	return c.writeRecord(t, &rec, format.FlagTombstone)
}

// Position writes how far the image follows a range once this commit is visible.
func (c *Commit) Position(id rhumb.RangeID, pos format.Position) error {
	var value [format.PositionSize]byte
	return c.Put(c.p.tables.positions, Record{Key: format.Key{Number: format.PositionKey(id)}, HLC: pos.HLC, Value: format.EncodePosition(value[:0], pos)})
}

// checkPut returns an error if a record cannot be written in this commit.
func (c *Commit) checkPut(t *Table, rec *Record) error {
	const op rhumb.Op = "snapshot.Put"
	switch {
	case c.err != nil:
		return c.err
	case c.p.commit != c:
		return rhumb.E(op, rhumb.ConditionFailed, "the commit is over; begin another")
	case !c.p.tables.has(t):
		return rhumb.Ef(op, rhumb.NotFound, "table %q was dropped", t.Name)
	case c.records-c.loaded == CommitRecordsMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the commit has %d records, no more fit; publish it, or load the table", CommitRecordsMax)
	}
	// A loaded table has no old generation to append to: the new one shows exactly the version of this commit.
	for _, l := range c.loads {
		if l.table == t {
			return rhumb.Ef(op, rhumb.InvalidArgument, "table %q is loaded in this commit; write to it in the next one", t.Name)
		}
	}
	return checkRecord(op, t, rec)
}

// checkRecord returns an error if a table cannot hold a record.
func checkRecord(op rhumb.Op, t *Table, rec *Record) error {
	switch n := len(rec.Key.Name); {
	case len(rec.Value) > format.ValueSizeMax:
		return rhumb.Ef(op, rhumb.TooLarge, "table %q: a value of %d bytes, at most %d fit", t.Name, len(rec.Value), format.ValueSizeMax)
	case rec.HasBox && !rec.Box.Valid():
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q: the box %v is invalid: boxes are in 1e-7 degrees, latitude to 90, longitude to 180", t.Name, rec.Box)
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

// writeRecord appends a record to its shard and passes it to the pipeline, which links it some records later.
func (c *Commit) writeRecord(t *Table, rec *Record, flags uint16) error {
	p := c.p
	// The hash decides everything that follows: the shard, the bucket and the fingerprint.
	e := segment.EncodingOf(&p.root.head, t.KeyKind, rec, flags)
	s := t.shards[format.ShardOf(e.Hash, uint16(len(t.shards)))]
	// The roll comes before the record is written, so that a full shard never holds half of it.
	if s.seg.FreeUnits() < e.Units || uint64(c.version-s.base) >= maxRelative {
		if err := c.rollShard(s, segment.Room{Units: uint64(e.Units), Records: 1}); err != nil {
			return err
		}
	}
	if !s.touched {
		s.touched = true
		// A shard that the commit has not touched yet will store its counters at the end.
		c.touched = append(c.touched, s)
		s.seg.FetchCounters()
	}
	// Written at once and linked later. A view that looks at the key meanwhile finds the version before.
	ref := s.seg.Append(rec, e, uint32(c.version-s.base))
	c.records++
	if p.pipeline.add(s, e.Hash, ref) {
		return c.stepPipeline()
	}
	return nil
}

// pipeline holds the records of the open commit that are not in the index yet, whatever their shards, as a ring of groups. A
// group that is full moves one step: its buckets are requested, one group later the records that the buckets lead to, and one
// group later the records are linked. Their memory has come by then, while other records were written. So a commit hardly
// ever waits for memory, and its records are linked while they are in the caches.
//
// Records must be linked in the order in which they were written, because a later version of a key refers to the earlier one.
type pipeline struct {
	groups  [pipelineGroups]linkGroup
	filling int // the group that records are added to
}

const pipelineGroups = 3

// linkGroup is a group of records, with the shards that must be rolled if a record cannot be linked.
type linkGroup struct {
	segment.Batch
	shards [segment.GroupSize]*shard
}

// add adds a record to the group that is being filled and reports whether the group is full.
func (pl *pipeline) add(s *shard, hash uint64, ref uint32) (full bool) {
	g := &pl.groups[pl.filling]
	g.shards[g.Len()] = s
	return g.Add(s.seg, hash, ref)
}

// advance ends the group that is being filled, moves the groups before it one step, and returns the group that is to be linked
// now. It is the one that is filled next, so it must be linked and emptied first.
func (pl *pipeline) advance() *linkGroup {
	written, found := &pl.groups[pl.filling], &pl.groups[(pl.filling+pipelineGroups-1)%pipelineGroups]
	// All addresses of one kind are requested in one go; see segment.Batch.
	written.FetchBuckets()
	found.FetchRecords()
	// The oldest group becomes the one to fill.
	pl.filling = (pl.filling + 1) % pipelineGroups
	return &pl.groups[pl.filling]
}

// dropShard keeps the records of a shard from being linked: a roll has linked them in the new generation.
func (pl *pipeline) dropShard(s *shard) {
	for i := range pl.groups {
		g := &pl.groups[i]
		for j, other := range g.shards[:g.Len()] {
			if other == s {
				g.Drop(j)
			}
		}
	}
}

// reset forgets all records.
func (pl *pipeline) reset() {
	for i := range pl.groups {
		pl.groups[i].Reset()
	}
}

// stepPipeline moves the pipeline one step and links the oldest group.
func (c *Commit) stepPipeline() error {
	g := c.p.pipeline.advance()
	for i := range g.Len() {
		if !g.Link(i) {
			// The roll links every record of the shard, the failed one included, and drops those that are left here.
			// Overflow buckets, delta entries or skip list words have run out, which the room for records says nothing
			// about.
			if err := c.rollShard(g.shards[i], segment.Room{}); err != nil {
				return err
			}
		}
	}
	g.Reset()
	return nil
}

// rollShard makes room in a shard and links everything there that the commit has written to it. If that fails the commit can
// only be discarded.
func (c *Commit) rollShard(s *shard, need segment.Room) error {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rollShard(s, need); err != nil {
		// What is linked and what is not cannot be told apart any more, so that the commit must not be published.
		c.err = rhumb.Wrap("snapshot.Put", err)
		return c.err
	}
	p.pipeline.dropShard(s)
	return nil
}

// Discard abandons a commit. It does nothing after Publish. The room that its records took comes back with the next roll.
func (c *Commit) Discard() {
	if c.p.commit == c {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		c.takeBack()
	}
}

// takeBack takes back what was written. Records that are in the index already are marked as aborted, since the next commit
// takes the same version number. p.mu must be held.
func (c *Commit) takeBack() {
	for _, s := range c.touched {
		// Before the next commit begins: it takes the same version number.
		s.seg.AbortCommit()
		s.touched = false
	}
	for _, l := range c.loads {
		l.removeFiles(c.p)
	}
	c.p.pipeline.reset()
	c.p.commit, c.p.touched = nil, c.touched
}

// Publish makes the commit visible to every reader and returns its version. A commit without records is a version too, and may
// carry a closed timestamp. After an error nothing of the commit is visible, and it is over.
func (c *Commit) Publish(info CommitInfo) (uint64, error) {
	const op rhumb.Op = "snapshot.Publish"
	p := c.p
	if p.commit != c {
		return 0, rhumb.E(op, rhumb.ConditionFailed, "the commit is over; begin another")
	}
	start := time.Now()
	// The groups that are under way are linked first. Each step moves every group by one, so that as many steps as there
	// are groups link all of them, and in their order.
	err := c.err
	for i := 0; i < pipelineGroups && err == nil; i++ {
		err = c.stepPipeline()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		c.takeBack()
		return 0, rhumb.Wrap(op, err)
	}
	// The closed timestamp rises only together with the version that carries it: a roll in a commit that fails must not
	// rely on it.
	p.closed = max(p.closed, info.Closed)
	// From here on nothing can fail: the version is visible, and all that follows are counters.
	c.showVersion(info)
	c.settleShards()
	p.metrics.observeCommit(time.Since(start), c.records)
	return c.version, nil
}

// showVersion writes the ring entry and raises the commit word. Loaded and new tables appear in the same moment: the change of
// the tables encloses the commit word, so that a reader sees both or neither.
func (c *Commit) showVersion(info CommitInfo) {
	p := c.p
	wall, mono := p.clock.readBoth()
	for _, s := range c.touched {
		if t := s.table; !t.listed {
			// A new table that the commit wrote to appears with it.
			t.listed = true
			c.fresh = append(c.fresh, t)
		}
	}
	commit := func() {
		// The entry comes before the word: a reader that sees the version must find what is known of it.
		p.root.putCommit(format.Commit{
			Version: c.version, Closed: p.closed, Event: info.Event, Wall: wall, Mono: mono, Records: uint32(min(c.records, 1<<32-1)),
		})
		// The word that makes the commit visible. Everything that it shows was stored before.
		p.root.storeCommitted(c.version)
	}
	if len(c.loads) == 0 && len(c.fresh) == 0 {
		commit()
	} else {
		c.unlockFiles()
		p.root.changeTables(func() {
			// The entries of loaded shards have the version of this commit as their base. A reader with an older version
			// cannot use them, which is why the sequence word encloses both.
			c.swingLoads()
			for _, t := range c.fresh {
				p.root.putTable(t)
			}
			commit()
		})
	}
	p.root.file.Store64(format.RootHeartbeat, mono)
	p.committed = c.version
}

// unlockFiles lets readers lock the files that the root is about to name. A reader that found a file locked would look at the
// root again and again.
func (c *Commit) unlockFiles() {
	for _, l := range c.loads {
		for _, seg := range l.segs {
			seg.File.Unlock()
		}
	}
	for _, t := range c.fresh {
		for _, s := range t.shards {
			s.seg.File.Unlock()
		}
	}
}

// settleShards brings the counters of the shards up to date and ends the commit.
func (c *Commit) settleShards() {
	p := c.p
	for _, s := range c.touched {
		p.stats.live.Add(s.seg.LinksOfCommit())
		s.seg.SettleCommit()
		s.touched = false
	}
	for _, l := range c.loads {
		l.retireOld(p)
	}
	p.stats.version.Store(p.committed)
	p.stats.commits.Add(1)
	p.stats.records.Add(c.records)
	p.commit, p.touched = nil, c.touched
}
