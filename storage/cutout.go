package storage

import (
	"context"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// CutOut removes a range that the store does not hold from its tables, so that neither reads nor
// compactions meet damage there again. A range deletion alone leaves the damaged block in place,
// and every compaction that reaches the block fails. Nothing of the range may be in use. If CutOut
// fails, the tables are unchanged. last is the last slot of the range.
func (s *Store) CutOut(id rhumb.RangeID, last rhumb.Slot) error {
	const op rhumb.Op = "storage.Store.CutOut"
	if s.rangeOf(id) != nil {
		return rhumb.Ef(op, rhumb.Conflict, "the store holds range %s; drop the range first", id)
	}
	// Excise removes tables inside the span and narrows the bounds of the others. Of the data it
	// reads only the blocks at the edges of the span, so it works in most cases in which a
	// compaction fails.
	span := keys.RangeSpan(id, s.clampLast(id, last))
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	defer s.rows.clear()
	return s.dbError(op, s.settled(func() error {
		return s.db.Excise(context.Background(), pebble.KeyRange{Start: span.Lower, End: span.Upper})
	}))
}

// Reclaim deletes the data of a range that was dropped from the files of the store, and so frees its space. It reads the data once
// and may take long; ctx ends the wait. Without it, the space is freed when compactions reach the data.
//
// CutOut does not suffice: most tables hold records of other ranges or of the store too, and a table that is cut keeps its file.
func (s *Store) Reclaim(ctx context.Context, id rhumb.RangeID, last rhumb.Slot) error {
	const op rhumb.Op = "storage.Store.Reclaim"
	if s.rangeOf(id) != nil {
		return rhumb.Ef(op, rhumb.Conflict, "the store holds range %s; drop the range first", id)
	}
	// The deletion may still be in memory, where no compaction sees it.
	if err := s.Flush(); err != nil {
		return rhumb.Wrap(op, err)
	}
	span := keys.RangeSpan(id, s.clampLast(id, last))
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return s.dbError(op, s.db.Compact(ctx, span.Lower, span.Upper, false))
}
