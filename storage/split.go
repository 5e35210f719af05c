package storage

import (
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// Split is the division of a range by an entry of its log (docs/replication.md#rule-split).
type Split struct {
	// At is the first slot of the new range.
	At rhumb.Slot
	// Seq is the position of the entry, which is committed.
	Seq rhumb.Seq
	// Promised is the promise of the new range.
	Promised rhumb.Epoch
}

// Split divides a range: the slots from sp.At on become a range of their own, whose log continues after the entry of the
// split. No value is read or written, since the keys of both parts lie side by side already. The new range gets
//
//   - the record of the entry, which is where its log begins: committed, and trimmed up to there
//   - the results of requests up to the entry, the last rhumb.DedupWindow of each client, and a floor below them. A request
//     that is repeated after the split therefore gets its first answer from whichever part has its keys.
//
// The log of the old range is trimmed below the entry: earlier entries list versions that the new range may collect.
//
// The entry is committed, and Split raises the commit position to it: the position and the division are durable together.
// Everything up to the entry must be applied, because Split reads it. The batch must not have appended to the range yet.
// After an error the batch is unchanged.
func (b *Batch) Split(id rhumb.RangeID, sp Split) (rhumb.RangeID, error) {
	const op rhumb.Op = "storage.Batch.Split"
	g, child := b.stageRange(id), rhumb.RangeID{Region: id.Region, Slot: sp.At}
	switch {
	case sp.At <= id.Slot || sp.At > max(id.Slot, g.log.LastSlot):
		panic(fmt.Sprintf("storage: range %s up to slot %s cannot be split at %s", id, g.log.LastSlot, sp.At))
	case sp.Seq > g.durable || len(g.appended) > 0:
		panic(fmt.Sprintf("storage: range %s cannot be split by entry %d: entries up to %d are applied", id, sp.Seq, g.durable))
	case b.s.rangeOf(child) != nil:
		panic(fmt.Sprintf("storage: the store already holds range %s", child))
	}
	rec, ok, err := b.s.readRecord(op, id, sp.Seq)
	if err == nil && !ok {
		err = b.s.badRecord(op, id, sp.Seq, rhumb.E(op, rhumb.Corrupt, "the record is missing"))
	}
	if err != nil {
		return child, err
	}
	results, err := b.s.lastResults(id, child, sp.Seq)
	if err != nil {
		return child, b.s.dbError(op, err)
	}
	pos, hlc := rec.entry.Position(), rec.entry.LastHLC()
	share := b.s.shareAbove(g, sp.At)
	c := &staged{id: child, rs: &rangeState{}, created: true, born: true, durable: sp.Seq, commit: true}
	c.log = logState{
		RangeState: RangeState{
			Range: child, Promised: max(sp.Promised, pos.Epoch), Last: pos, LastHLC: hlc, Commit: pos.Seq, CommitHLC: hlc, Trim: pos.Seq,
			Lineage: slices.DeleteFunc(slices.Clone(g.log.Lineage), func(e EpochStart) bool { return e.First > pos.Seq }),
		},
		total: weights{data: share}, trimHLC: hlc, estimated: true,
	}
	if g.log.LastSlot > sp.At {
		c.log.LastSlot = g.log.LastSlot
	}
	b.divideMerged(g, c)
	b.staged = append(b.staged, c)
	b.setState(child, keys.StateRange, encodeRange(child, c.log.LastSlot))
	b.setState(child, keys.StatePromised, encodeWords(uint64(c.log.Promised)))
	b.setState(child, keys.StateLineage, encodeLineage(c.log.Lineage))
	b.setState(child, keys.StateSplit, encodeWords(0))
	b.writeTrim(c)
	b.key = keys.AppendLog(b.key[:0], child, pos.Seq)
	b.val = appendRecord(b.val[:0], rec.entry, Commit{pos.Seq, hlc}, c.log.total)
	b.set(b.key, b.val)
	for _, r := range results {
		b.set(r.key, r.value)
	}
	// The old range.
	if g.setCommit(Commit{pos.Seq, hlc}, g.log.Last.Seq) {
		g.commit = true
	}
	g.resized, g.log.estimated = true, true
	if g.log.LastSlot = sp.At - 1; g.log.LastSlot == id.Slot {
		g.log.LastSlot = 0
	}
	g.log.given += share
	b.setState(id, keys.StateRange, encodeRange(id, g.log.LastSlot))
	b.setState(id, keys.StateSplit, encodeWords(g.log.given))
	b.Trim(id, sp.Seq-1)
	return child, nil
}

// keyValue is a key with its value.
type keyValue struct{ key, value []byte }

// lastResults returns what a new range needs of the results of requests that the entries up to a position stored: for each
// client the last rhumb.DedupWindow, and a floor that covers all earlier ones. Numbers further back are refused whatever the
// results say (docs/replication.md#requests). It seeks from client to client, so the work depends on their number.
func (s *Store) lastResults(id, child rhumb.RangeID, upTo rhumb.Seq) (out []keyValue, err error) {
	span := keys.KindSpan(id, keys.KindDedup)
	it, err := s.newWholeIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
	if err != nil {
		return nil, err
	}
	defer func() { _ = it.Close() }()
	for ok := it.First(); ok; {
		d, err := keys.Decode(it.Key())
		if err != nil {
			return nil, err
		}
		client := d.Request.Client
		f, err := s.floorOf(id, client)
		if err != nil {
			return nil, err
		}
		next := keys.ImmediateSuccessor(nil, keys.AppendDedup(nil, id, rhumb.RequestID{Client: client, Seq: math.MaxUint64}))
		n := 0
		for ok := it.SeekLT(next); ok; ok = it.Prev() {
			d, err := keys.Decode(it.Key())
			if err != nil {
				return nil, err
			}
			if d.Request.Client != client || d.Request.Seq == 0 {
				break
			}
			value, err := it.ValueAndErr()
			if err != nil {
				return nil, err
			}
			seen, hlc, err := decodeSeen(value)
			if err != nil {
				return nil, err
			}
			// Later entries belong to the old range alone, and may yet be undone there.
			if seen.Seq > upTo {
				continue
			}
			if n++; n > rhumb.DedupWindow {
				f = f.max(floor{d.Request.Seq, hlc})
				break
			}
			out = append(out, keyValue{keys.AppendDedup(nil, child, d.Request), slices.Clone(value)})
		}
		if f.seq != 0 {
			out = append(out, keyValue{keys.AppendDedup(nil, child, rhumb.RequestID{Client: client}), appendFloor(nil, f)})
		}
		ok = it.SeekGE(next)
	}
	return out, it.Error()
}

// estimateBytes is the size on disk from which on the tables say how the data of a range is distributed over its slots. Less
// data may be in memory, where nothing counts it by slot; names are hashed, so it is spread evenly.
const estimateBytes = 1 << 20

// shareAbove estimates how much of the data of a range is in the slots from one on. To know it, all keys would have to be
// read.
func (s *Store) shareAbove(g *staged, at rhumb.Slot) uint64 {
	g.rs.mu.Lock()
	size := g.log.total.data - g.rs.collected - g.log.given
	g.rs.mu.Unlock()
	if int64(size) <= 0 {
		return 0
	}
	return uint64(float64(size) * s.fractionAbove(g.id, g.log.LastSlot, at))
}

// fractionAbove estimates the part of the data of a range that is in the slots from one on.
func (s *Store) fractionAbove(id rhumb.RangeID, last, at rhumb.Slot) float64 {
	whole, above := keys.RangeSpan(id, last), keys.RangeSpan(rhumb.RangeID{Region: id.Region, Slot: at}, last)
	if whole.Upper == nil {
		whole.Upper, above.Upper = keyspaceEnd, keyspaceEnd
	}
	all, err1 := s.db.EstimateDiskUsage(whole.Lower, whole.Upper)
	part, err2 := s.db.EstimateDiskUsage(above.Lower, above.Upper)
	if err1 != nil || err2 != nil || all < estimateBytes || part > all {
		return float64(last-at+1) / float64(last-id.Slot+1)
	}
	return float64(part) / float64(all)
}

// SplitSlot returns the slot at which a range divides into two parts of about equal size; ok is false if the store does not
// hold the range or the range has one slot.
func (s *Store) SplitSlot(id rhumb.RangeID) (at rhumb.Slot, ok bool) {
	st, ok := s.State(id)
	if !ok || st.LastSlot <= id.Slot {
		return 0, false
	}
	// The fraction falls as the slot grows: find the first slot that leaves at most half.
	lo, hi := id.Slot+1, st.LastSlot
	for lo < hi {
		if mid := lo + (hi-lo)/2; s.fractionAbove(id, st.LastSlot, mid) > 0.5 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, true
}
