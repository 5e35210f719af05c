package snapshot

import (
	"iter"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/snapshot/format"
)

// Roll writes the visible state of a shard into a new generation. Commits do that by themselves when a shard has no room left.
func (p *Publisher) Roll(t *Table, shard int) error {
	const op rhumb.Op = "snapshot.Roll"
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(op); err != nil {
		return err
	}
	if p.entries[t.entry] != t || shard < 0 || shard >= len(t.shards) {
		return rhumb.Ef(op, rhumb.InvalidArgument, "table %q has no shard %d", t.Name, shard)
	}
	return rhumb.Wrap(op, p.rollFor(t.shards[shard], room{}))
}

// rollFor rolls a shard so that it has place for more. What the open commit wrote there goes along, linked and invisible, and
// twice its size is kept free.
func (p *Publisher) rollFor(s *shard, need room) error {
	start := time.Now()
	old := s.seg
	pending := uint64(old.tail - old.done)
	need.units = 2 * (need.units + pending)
	need.records = 2 * (need.records + old.pending)
	wall, _ := p.clock.now()
	seg, err := p.rollKept(s, wall, need)
	if err != nil {
		return err
	}
	kept := seg != nil
	if !kept {
		if seg, err = p.rollAnew(s, wall, need); err != nil {
			return err
		}
	}
	p.succeed(s, seg)
	p.rolled(s, time.Since(start), seg.live-old.live, kept)
	return nil
}

// succeed puts a new generation in the place of the old one.
func (p *Publisher) succeed(s *shard, seg *segment) {
	old := s.seg
	seg.pending = old.pending
	s.seg, s.base, s.closed = seg, p.committed, seg.head.Closed
	p.swing(s, old)
}

// rollAnew rolls a shard with a new layout.
func (p *Publisher) rollAnew(s *shard, wall int64, need room) (*segment, error) {
	src, newest := p.survey(s, wall)
	src.pendingFrom, src.pendingTo = s.seg.done, s.seg.tail
	return p.build(s, src, p.committed, p.closedAfter(s, newest), need)
}

// closedAfter gives the closed timestamp of a new generation: views of an earlier one would miss what the roll leaves out.
// newest is the greatest timestamp that the roll met behind the base.
func (p *Publisher) closedAfter(s *shard, newest rhumb.Timestamp) rhumb.Timestamp {
	if p.closed != 0 {
		newest = p.closed
	}
	return max(newest, s.closed) // what lay before was not kept the last time
}

// swing lets readers into the new generation of a shard and retires the old one.
func (p *Publisher) swing(s *shard, old *segment) {
	if !s.table.listed {
		p.files.remove(old.file)
		return
	}
	s.seg.file.unlock()
	p.root.change(func() { p.root.putShard(s) })
	p.files.retire(old.file)
}

func (p *Publisher) rolled(s *shard, took time.Duration, live int64, kept bool) {
	p.stats.rolls.Add(1)
	if kept {
		p.stats.kept.Add(1)
	}
	p.stats.live.Add(live)
	p.metrics.rollSeconds.Observe(took.Seconds())
	p.cfg.Logger.Debug("snapshot shard rolled", "table", s.table.Name, "shard", s.slot, "generation", s.seg.head.Generation,
		"records", s.seg.live, "bytes", len(s.seg.file.mem), "kept", kept, "seconds", took.Seconds())
	p.countLarge()
	if meant := p.cfg.recordsMax(s.table.Spatial()); s.seg.live > meant {
		p.cfg.Logger.Warn("snapshot shard is larger than meant; load the table with more shards", "table", s.table.Name,
			"shard", s.slot, "records", s.seg.live, "meant", meant)
	}
}

// countLarge counts the shards that outgrew what they are meant to hold.
func (p *Publisher) countLarge() {
	n := int64(0)
	for _, t := range p.tables {
		for _, s := range t.shards {
			if s.seg.live > p.cfg.recordsMax(t.Spatial()) {
				n++
			}
		}
	}
	p.stats.large.Store(n)
}

// survey lists what a new generation of a shard keeps: for each key the newest version, and, when a closed timestamp is known,
// all down to the newest one that is not later than it. The oldest version kept goes into the base, the others are appended
// again. newest is the greatest timestamp met.
func (p *Publisher) survey(s *shard, wall int64) (src *source, newest rhumb.Timestamp) {
	seg := s.seg
	src = &source{heap: seg.heap, refs: p.surveyRefs[:0]}
	v := seg.relative(p.committed)
	for head := range seg.heads() {
		kept := p.chain[:0]
		for ref := head; ref != format.NoPrev; ref = seg.record(ref).prev {
			if seg.record(ref).ver > v {
				continue
			}
			at := hlc(seg.heap, ref)
			newest = max(newest, at)
			kept = append(kept, ref)
			if at <= p.closed || p.closed == 0 {
				break
			}
		}
		p.chain = kept
		src.keep(seg, kept, wall)
	}
	p.surveyRefs = src.refs
	return src, newest
}

// keep takes the versions of a key, newest first. A tombstone or an ended record with nothing before it is nothing.
func (src *source) keep(seg *segment, kept []uint32, wall int64) {
	n := len(kept)
	for n > 0 && seg.gone(kept[n-1], wall) {
		n--
	}
	if n == 0 {
		return
	}
	src.refs = append(src.refs, kept[n-1])
	src.units += uint64(format.Units(recordSize(seg.kind, seg.heap, kept[n-1])))
	for i := n - 2; i >= 0; i-- {
		src.replay = append(src.replay, kept[i])
		src.replayUnits += uint64(format.Units(recordSize(seg.kind, seg.heap, kept[i])))
	}
}

// gone reports whether a record says that its key has no value.
func (s *segment) gone(ref uint32, wall int64) bool {
	end := expiry(s.heap, ref)
	return s.record(ref).flags&format.FlagTombstone != 0 || end != 0 && end <= wall
}

// heads gives, for each key that ever had a committed version in the segment, the newest reference, which may belong to a
// commit that is open or was aborted. Keys of the base come first, in the order of the base.
func (s *segment) heads() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var g heads
		for ref := uint32(0); ref < s.done; {
			ref = s.gatherHeads(&g, ref)
			for i, first := range g.refs[:g.n] {
				head, ok := first, true
				if g.changed[i] {
					head, ok = s.find(g.hashes[i], s.heap, first)
				}
				if ok && !yield(head) {
					return
				}
			}
		}
	}
}

// heads is a group of first versions, whose newest are looked up side by side.
type heads struct {
	batch
	changed [group]bool // there may be a newer version
}

// gatherHeads takes the next records that are the first version of their key here, fetches the buckets of those that changed,
// and then what they lead to. Without that a roll after many changes waits for memory twice a record.
func (s *segment) gatherHeads(g *heads, from uint32) uint32 {
	g.n = 0
	n := 0
	for ; g.n < group && from < s.done; from += format.Units(recordSize(s.kind, s.heap, from)) {
		h := s.record(from)
		base := from < s.head.BaseUnits
		if h.ver == format.AbortedVersion || !base && h.prev != format.NoPrev {
			continue
		}
		g.refs[g.n], g.changed[g.n] = from, !base || s.isChanged(from)
		if g.changed[g.n] {
			g.hashes[g.n] = hashOf(s.keys, s.kind, h)
			g.addrs[n] = s.bucketAddr(g.hashes[g.n])
			n++
		}
		g.n++
	}
	prefetch(&g.addrs, n)
	n = 0
	for i := range g.n {
		if !g.changed[i] {
			continue
		}
		if at := s.likely(g.hashes[i]); at.found {
			g.addrs[n] = s.recordAddr(at.bucket.refs[at.slot])
			n++
		}
	}
	prefetch(&g.addrs, n)
	return from
}

// newest gives the references that the newest version shows.
func (s *segment) newest(version uint64) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		v := s.relative(version)
		for ref := range s.heads() {
			for ref != format.NoPrev && s.record(ref).ver > v {
				ref = s.record(ref).prev
			}
			if ref != format.NoPrev && s.record(ref).flags&format.FlagTombstone == 0 && !yield(ref) {
				return
			}
		}
	}
}
