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
//	Publish        links the records that are still in the pipeline
//	showVersion    ring entry, then the commit word: from here on new views see the record
//	settleShards   the counters of the shards follow

// Commit collects changes to any number of tables. Publish makes all of them visible at once.
// Publish or Discard ends the commit.
//
// Put writes a record immediately and links it soon after. Readers that meet the record skip it,
// because its version is not committed yet. Publish then stores one word, the version. The work
// after that store is bookkeeping, which recovery would repeat.
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

// CommitInfo is the metadata of a version that readers see.
type CommitInfo struct {
	// Closed is a timestamp up to which every range of the image is complete. A value that is 0 or
	// below the current closed timestamp has no effect.
	Closed rhumb.Timestamp
	// Event is the time of the newest event in the commit, in ns since 1970; 0 if unknown.
	Event int64
}

// maxRelative bounds the distance of a version from the base of a generation, whose records count
// versions in 32 bits. A shard that reaches it is rolled.
const maxRelative = 1 << 31

// Begin starts a commit. There is one at a time: Begin panics if another is open, or if the
// publisher is closed. Do not keep a commit open for long: readers of the keys that it changed need
// one more step to reach the committed version.
func (p *Publisher) Begin() *Commit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable("snapshot.Begin"); err != nil {
		panic(err)
	}
	// The version number may have been used by a commit that was discarded. Its records are marked
	// as aborted, so that they cannot be taken for records of this one.
	p.commit = &Commit{p: p, version: p.committed + 1, touched: p.touched[:0]}
	return p.commit
}

// Put writes a version of a key. If one commit has several versions of a key, views see the last
// one. If a call fails for lack of room, the commit can only be discarded. An invalid record is
// rejected and does not change the commit.
func (c *Commit) Put(t *Table, rec Record) error {
	if err := c.checkPut(t, &rec); err != nil {
		return err
	}
	return c.writeRecord(t, &rec, 0)
}

// Delete removes a key from this version on. hlc is the timestamp of the write, 0 if there is none.
func (c *Commit) Delete(t *Table, key format.Key, hlc rhumb.Timestamp) error {
	// A deletion is a record without a value, so that closed views can decide by its timestamp
	// whether they see it.
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
	// Loaded records do not count: they are in new files and take no room in append areas.
	case c.records-c.loaded == CommitRecordsMax:
		return rhumb.Ef(op, rhumb.TooLarge, "the commit has %d records, no more fit; publish it, or load the table", CommitRecordsMax)
	}
	// A table loaded in this commit has no generation to append to: its new generation contains
	// exactly the loaded records as of this version.
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

// writeRecord appends a record to its shard and passes it to the pipeline, which links it some
// records later.
func (c *Commit) writeRecord(t *Table, rec *Record, flags uint16) error {
	p := c.p
	// The hash decides everything that follows: the shard, the bucket and the fingerprint.
	e := segment.EncodingOf(&p.root.head, t.KeyKind, rec, flags)
	s := t.shards[format.ShardOf(e.Hash, uint16(len(t.shards)))]
	// The roll comes before the record is written, so that a full shard never holds half of it.
	if s.seg.FreeUnits() < e.Units || uint64(c.version-s.base) >= maxRelative {
		// The roll replaces s.seg and s.base, so both are read again below.
		if err := c.rollShard(s, segment.Room{Units: uint64(e.Units), Records: 1}); err != nil {
			return err
		}
	}
	if !s.touched {
		s.touched = true
		// settleShards stores the counters of every touched shard. Their cache lines are requested
		// now, while other records are written.
		c.touched = append(c.touched, s)
		s.seg.FetchCounters()
	}
	// The record is written now and linked later. A view that reads the key meanwhile finds the
	// previous version.
	ref := s.seg.Append(rec, e, uint32(c.version-s.base))
	c.records++
	if p.pipeline.add(s, e.Hash, ref) {
		return c.stepPipeline()
	}
	return nil
}

// pipeline holds the records of the open commit that are not in the index yet, whatever their
// shards, as a ring of groups. A group that is full moves one step: its buckets are requested, one
// group later the records that the buckets lead to, and one group later the records are linked. By
// then the memory has arrived, because the commit wrote other records in the meantime. So a commit
// hardly ever waits for memory, and links its records while they are still in the caches.
//
// Records must be linked in the order in which they were written, because a later version of a key
// refers to the earlier one.
type pipeline struct {
	groups  [pipelineGroups]linkGroup
	filling int // the group that records are added to
}

const pipelineGroups = 3

// linkGroup is a group of records, with the shards that must be rolled if a record cannot be
// linked.
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

// advance closes the group that is being filled, moves the earlier groups one step, and returns the
// group to link now. The returned group is filled next, so the caller must link and empty it first.
func (pl *pipeline) advance() *linkGroup {
	written, found := &pl.groups[pl.filling], &pl.groups[(pl.filling+pipelineGroups-1)%pipelineGroups]
	// All addresses of one kind are requested in one go; see segment.Batch.
	written.FetchBuckets()
	found.FetchRecords()
	// The oldest group becomes the one to fill.
	pl.filling = (pl.filling + 1) % pipelineGroups
	return &pl.groups[pl.filling]
}

// dropShard removes the records of a shard from the pipeline, because a roll has already linked
// them in the new generation.
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
			// The roll links every record of the shard, the failed one included, and drops those
			// that are left here. Overflow buckets, delta entries or skip list words have run out,
			// which the room for records says nothing about.
			if err := c.rollShard(g.shards[i], segment.Room{}); err != nil {
				return err
			}
		}
	}
	g.Reset()
	return nil
}

// rollShard makes room in a shard and links everything there that the commit has written to it. If
// the roll fails, the commit can only be discarded.
func (c *Commit) rollShard(s *shard, need segment.Room) error {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	// The lock is taken only here, because Beat may reclaim files while a commit is open; see
	// Publisher.mu.
	if err := p.rollShard(s, need); err != nil {
		// The roll may have linked some records and not others, and nothing records which. The
		// commit must not be published in this state.
		c.err = rhumb.Wrap("snapshot.Put", err)
		return c.err
	}
	p.pipeline.dropShard(s)
	return nil
}

// Discard abandons a commit. It does nothing after Publish. The next roll reclaims the space of its
// records.
func (c *Commit) Discard() {
	if c.p.commit == c {
		c.p.mu.Lock()
		defer c.p.mu.Unlock()
		c.takeBack()
	}
}

// takeBack undoes the commit. It marks records that are already in the index as aborted, since the
// next commit uses the same version number. p.mu must be held.
func (c *Commit) takeBack() {
	for _, s := range c.touched {
		// This must happen before the next commit begins, because that commit uses the same version
		// number.
		s.seg.AbortCommit()
		s.touched = false
	}
	for _, l := range c.loads {
		l.removeFiles(c.p)
	}
	c.p.pipeline.reset()
	// The next commit reuses the memory of the list.
	c.p.commit, c.p.touched = nil, c.touched
}

// Publish makes the commit visible to every reader and returns its version. A commit without
// records is a version too, and may carry a closed timestamp. After an error no part of the commit
// is visible, and the commit has ended.
func (c *Commit) Publish(info CommitInfo) (uint64, error) {
	const op rhumb.Op = "snapshot.Publish"
	p := c.p
	if p.commit != c {
		return 0, rhumb.E(op, rhumb.ConditionFailed, "the commit is over; begin another")
	}
	start := time.Now()
	// The groups in flight are linked first. Each step moves every group by one, so pipelineGroups
	// steps link all of them, in order.
	err := c.err
	for i := 0; i < pipelineGroups && err == nil; i++ {
		err = c.stepPipeline()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		c.takeBack()
		// The version number is free again: takeBack has marked all records that carry it.
		return 0, rhumb.Wrap(op, err)
	}
	// The closed timestamp rises only together with the version that carries it: a roll in a commit
	// that fails must not rely on it.
	p.closed = max(p.closed, info.Closed)
	// Nothing can fail from here on: showVersion makes the version visible, and the rest only
	// updates counters.
	c.showVersion(info)
	c.settleShards()
	p.metrics.observeCommit(time.Since(start), c.records)
	return c.version, nil
}

// showVersion writes the ring entry and raises the commit word. Loaded and new tables appear in the
// same moment: the change of the tables encloses the commit word, so that a reader sees both or
// neither.
func (c *Commit) showVersion(info CommitInfo) {
	p := c.p
	wall, mono := p.clock.readBoth()
	for _, s := range c.touched {
		if t := s.table; !t.listed {
			// A new table becomes visible together with the first commit that writes to it.
			t.listed = true
			c.fresh = append(c.fresh, t)
		}
	}
	commit := func() {
		// The entry comes before the word: a reader that sees the version must find its entry.
		p.root.putCommit(format.Commit{
			Version: c.version, Closed: p.closed, Event: info.Event, Wall: wall, Mono: mono, Records: uint32(min(c.records, 1<<32-1)),
		})
		// This store makes the commit visible. Everything that the version shows was stored before.
		p.root.storeCommitted(c.version)
	}
	if len(c.loads) == 0 && len(c.fresh) == 0 {
		commit()
	} else {
		c.unlockFiles()
		p.root.changeTables(func() {
			// The entries of loaded shards have the version of this commit as their base. A reader
			// with an older version cannot use them, which is why the sequence word encloses both.
			c.swingLoads()
			for _, t := range c.fresh {
				p.root.putTable(t)
			}
			commit()
		})
	}
	// A publisher that commits is alive. Without this store a busy publisher would depend on Beat
	// to prove it.
	p.root.file.Store64(format.RootHeartbeat, mono)
	p.committed = c.version
}

// unlockFiles lets readers lock the files that the root is about to name. A reader that found a
// file locked would look at the root again and again.
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
