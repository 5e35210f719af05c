package storage

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// Unite carries out an entry of the log of a range by which it takes over the slots
// of the range after it, which has ended (docs/replication.md#rule-merge). No value
// is read or written, since the keys of both lie side by side already. The range
// gets
//
//   - the slots of the other one, whose state is removed
//   - the results of its requests, the last rhumb.DedupWindow of each client, and the floors below them, at the position of the
//     entry: their own positions belong to another log. A request that is repeated after the merge gets its first answer.
//   - its log, as a list of versions to collect.
//
// The entry is at position seq and is committed, and Unite raises the commit
// position to it: the position and the union are durable together. Everything up to
// the entry must be applied, and the batch must not have touched either range yet.
// The store must hold the other range with the end that take names. After an error
// the batch is unchanged.
func (b *Batch) Unite(id rhumb.RangeID, seq rhumb.Seq, take entry.Take) error {
	const op rhumb.Op = "storage.Batch.Unite"
	g, other := b.stageRange(id), rhumb.RangeID{Region: id.Region, Slot: take.Slot}
	o := b.stageRange(other)
	if next := max(id.Slot, g.log.LastSlot) + 1; next != take.Slot || seq > g.durable || len(g.appended)+len(o.appended) > 0 {
		panic(fmt.Sprintf("storage: range %s up to slot %s cannot take over slot %s by entry %d: entries up to %d are applied", id, g.log.LastSlot, take.Slot, seq, g.durable))
	}
	if !o.log.endsAt(take) {
		panic(fmt.Sprintf("storage: range %s has not ended at %d:%d, but at %d:%d", other, take.Epoch, take.Seq, o.log.End.Epoch, o.log.End.Seq))
	}
	rec, ok, err := b.s.readRecord(op, id, seq)
	if err == nil && !ok {
		err = b.s.badRecord(op, id, seq, rhumb.E(op, rhumb.Corrupt, "the record is missing"))
	}
	if err != nil {
		return err
	}
	results, err := b.s.mergedResults(other, id, o.log.Last.Seq, seq)
	if err != nil {
		return b.s.dbError(op, err)
	}
	merged, err := b.s.keptLogs(id.Region, slices.Concat(g.log.merged, []rhumb.Slot{other.Slot}, o.log.merged))
	if err != nil {
		return b.s.dbError(op, err)
	}
	for _, kind := range []keys.Kind{keys.KindState, keys.KindDedup} {
		b.deleteSpan(keys.KindSpan(other, kind))
	}
	// The range is gone from the state in memory, but its data and its log stay on disk: there is no
	// deletion of the whole range as in DropRange.
	o.dropped, o.united = true, true
	for _, r := range results {
		b.set(r.key, r.value)
	}
	if g.setCommit(Commit{seq, rec.entry.LastHLC()}, g.log.Last.Seq) {
		g.commit = true
	}
	g.resized, g.log.estimated = true, true
	g.log.LastSlot = max(other.Slot, o.log.LastSlot)
	// The difference may wrap around: what was given away counts below the size of
	// what came.
	o.rs.mu.Lock()
	g.log.given -= o.log.total.data - o.rs.collected - o.log.given
	o.rs.mu.Unlock()
	g.log.merged = merged
	b.setState(id, keys.StateRange, encodeRange(id, g.log.LastSlot))
	b.setState(id, keys.StateSplit, encodeWords(g.log.given))
	b.setState(id, keys.StateMerged, encodeSlots(merged))
	b.Trim(id, seq-1)
	// Collection may have removed versions of the other range that a read below
	// this timestamp needs. The promise of the trim position covers them after a
	// restart.
	g.raised = max(o.log.trimHLC, rhumb.Timestamp(o.rs.floor.Load()))
	g.log.trimHLC = max(g.log.trimHLC, g.raised)
	b.writeTrim(g)
	return nil
}

// endsAt reports whether the log has the end that another range takes over.
func (st *logState) endsAt(take entry.Take) bool {
	return st.End == End{take.Epoch, take.Seq} && max(st.Range.Slot, st.LastSlot) == take.Last
}

// mergedResults returns the results of a range for another one, as results of the
// entry at position seq.
func (s *Store) mergedResults(from, to rhumb.RangeID, last, seq rhumb.Seq) ([]keyValue, error) {
	results, err := s.lastResults(from, to, last)
	if err != nil {
		return nil, err
	}
	for i := range results {
		kv := &results[i]
		d, err := keys.Decode(kv.key)
		if err != nil {
			return nil, err
		}
		if d.Request.Seq != 0 {
			kv.value = moveSeen(kv.value, seq)
			continue
		}
		// A client may have a floor in both ranges.
		f, err := decodeFloor(kv.value)
		if err != nil {
			return nil, err
		}
		old, err := s.floorOf(to, d.Request.Client)
		if err != nil {
			return nil, err
		}
		kv.value = appendFloor(nil, f.max(old))
	}
	return results, nil
}

// seenSeqAt is the offset of the position in a stored result.
const seenSeqAt = seenHLCAt + 8

// moveSeen returns a stored result with another position.
func moveSeen(value []byte, seq rhumb.Seq) []byte {
	_, n := binary.Uvarint(value[seenSeqAt:])
	out := binary.AppendUvarint(slices.Clone(value[:seenSeqAt]), uint64(seq))
	return append(out, value[seenSeqAt+n:]...)
}

// keptLogs returns, sorted, the slots of united ranges whose logs still have
// records. Most have none after a while, so the list stays short.
func (s *Store) keptLogs(region rhumb.RegionID, slots []rhumb.Slot) (kept []rhumb.Slot, err error) {
	slots = slices.Compact(slices.Sorted(slices.Values(slots)))
	for _, slot := range slots {
		span := keys.KindSpan(rhumb.RangeID{Region: region, Slot: slot}, keys.KindLog)
		it, err := s.newWholeIter(&pebble.IterOptions{LowerBound: span.Lower, UpperBound: span.Upper})
		if err != nil {
			return nil, err
		}
		if it.First() {
			kept = append(kept, slot)
		}
		if err := it.Close(); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// divideMerged gives a range that is split off the logs of united ranges in its
// slots. Metadata lets no range begin where one of them did, so the log of the new
// range is not among them.
func (b *Batch) divideMerged(g, child *staged) {
	i, found := slices.BinarySearch(g.log.merged, child.id.Slot)
	switch {
	case found:
		panic(fmt.Sprintf("storage: range %s was merged before, and cannot begin again", child.id))
	case i == len(g.log.merged):
		return
	}
	g.log.merged, child.log.merged = slices.Clone(g.log.merged[:i]), slices.Clone(g.log.merged[i:])
	b.setState(g.id, keys.StateMerged, encodeSlots(g.log.merged))
	b.setState(child.id, keys.StateMerged, encodeSlots(child.log.merged))
}
