package snapshot

import (
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/roll"
	"github.com/rhumbdb/rhumb/snapshot/segment"
)

// Roll writes the visible state of a shard into a new generation. Commits do that by themselves when a shard has no room left.
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

// rollShard rolls a shard so that it has room for more. What the open commit wrote there goes along, linked and invisible, and
// twice its size is kept free: a large commit would otherwise roll the same shard again and again, each time copying all that
// it wrote so far.
func (p *Publisher) rollShard(s *shard, need segment.Room) error {
	start := time.Now()
	old := s.seg
	need.Units = 2 * (need.Units + uint64(old.Tail()-old.Done()))
	need.Records = 2 * (need.Records + old.Pending())
	// After an error the shard is as it was: nothing leads to what the roll wrote.
	result, err := p.roller.Roll(p.rollInput(s, need))
	if err != nil {
		return err
	}
	p.replaceSegment(s, result.Segment)
	p.noteRoll(s, time.Since(start), s.seg.Live()-old.Live(), result)
	return nil
}

// rollInput returns what package roll must know of a shard.
func (p *Publisher) rollInput(s *shard, need segment.Room) roll.Input {
	wall, _ := p.clock.readBoth()
	return roll.Input{
		Old: s.seg, Shard: s.Shard, Version: p.committed, Closed: p.closed, ShardClosed: s.closed, Wall: wall, Room: need,
	}
}

// replaceSegment puts a new generation in the place of the old one. Readers are let into the new file before the root names it,
// and the old one is retired after: in the other order a reader could find neither.
func (p *Publisher) replaceSegment(s *shard, seg *segment.Segment) {
	old := s.seg
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

// noteRoll counts and logs a roll. live is by how much the number of keys with a visible value changed.
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
	p.countLargeShards()
	if meant := p.cfg.recordsMax(s.table.Spatial()); s.seg.Live() > meant {
		p.cfg.Logger.Warn("snapshot shard is larger than meant; load the table with more shards", "table", s.table.Name,
			"shard", s.Slot, "records", s.seg.Live(), "meant", meant)
	}
}

// countLargeShards counts the shards that outgrew what they are meant to hold.
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
