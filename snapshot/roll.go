package snapshot

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/roll"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// Roll writes the visible state of a shard into a new generation. Commits roll a shard
// automatically when it has no room left.
func (p *Publisher) Roll(t *Table, shard int) error {
	const op rhumb.Op = "snapshot.Roll"
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.checkUsable(op); err != nil {
		return err
	}
	if !p.tables.has(t) || shard < 0 || shard >= len(t.shards) {
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q has no shard %d", t.Name, shard)
	}
	return rhumb.Wrap(op, p.rollShard(t.shards[shard], segment.Room{}))
}

// rollShard rolls a shard so that it has room for more. Records of the open commit move along,
// linked and invisible, and twice their size is kept free. Otherwise a large commit would roll the
// same shard again and again, each time copying all records that it wrote so far.
func (p *Publisher) rollShard(s *shard, need segment.Room) error {
	start := time.Now()
	old := s.seg
	need.Units = 2 * (need.Units + uint64(old.Tail()-old.Done()))
	need.Records = 2 * (need.Records + old.Pending())
	// After an error the shard is unchanged: nothing refers to the file that the roll wrote.
	result, err := p.roller.Roll(p.rollInput(s, need))
	if err != nil {
		return err
	}
	p.replaceSegment(s, result.Segment)
	p.noteRoll(s, time.Since(start), s.seg.Live()-old.Live(), result)
	return nil
}

// rollInput returns the state of a shard that package roll needs.
func (p *Publisher) rollInput(s *shard, need segment.Room) roll.Input {
	wall, _ := p.clock.readBoth()
	return roll.Input{
		Old: s.seg, Shard: s.Shard, Version: p.committed, Closed: p.closed, ShardClosed: s.closed, Wall: wall, Room: need,
	}
}

// replaceSegment puts a new generation in the place of the old one. Readers may lock the new file
// before the root names it, and the old file is retired afterwards. In the opposite order a reader
// could find neither.
func (p *Publisher) replaceSegment(s *shard, seg *segment.Segment) {
	old := s.seg
	// Pending records are counted per segment. The new generation already holds them.
	seg.TakePending(old)
	s.seg, s.base, s.closed = seg, p.committed, seg.Head.Closed
	if !s.table.listed {
		p.files.Remove(old.File) // no reader has it
		return
	}
	seg.File.Unlock()
	p.root.changeTables(func() { p.root.putShard(s) })
	p.files.retire(old.File)
}

// noteRoll counts and logs a roll. live is by how much the number of keys with a visible value
// changed.
func (p *Publisher) noteRoll(s *shard, took time.Duration, live int64, result roll.Result) {
	kept := result.NotKept == ""
	p.stats.rolls.Add(1)
	if kept {
		p.stats.kept.Add(1)
	}
	p.stats.live.Add(live)
	p.metrics.rollSeconds.Observe(took.Seconds())
	p.cfg.Logger.Debug("snapshot shard rolled", "table", s.table.Name, "shard", s.Slot, "generation", s.seg.Head.Generation,
		"records", s.seg.Live(), "bytes", len(s.seg.File.Mem), "kept", kept, "not_kept", string(result.NotKept),
		"copied_index", result.CopiedIndex, "seconds", took.Seconds())
	// Only rolls and loads change the number of records by much, so the count is taken here and not
	// per commit.
	p.countLargeShards()
	if meant := p.cfg.recordsMax(s.table.Spatial()); s.seg.Live() > meant {
		p.cfg.Logger.Warn("snapshot shard has more records than intended; load the table with more shards", "table", s.table.Name,
			"shard", s.Slot, "records", s.seg.Live(), "meant", meant)
	}
}

// countLargeShards counts the shards with more records than intended.
func (p *Publisher) countLargeShards() {
	n := int64(0)
	for t := range p.tables.all() {
		for _, s := range t.shards {
			if s.seg.Live() > p.cfg.recordsMax(t.Spatial()) {
				n++
			}
		}
	}
	p.stats.large.Store(n)
}
