package storage

import (
	"context"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// CutOut takes what tables hold of a range that the store does not hold out of them, so that neither reads nor compactions
// meet damage there again: a range delete alone leaves the damaged block in place, and every compaction that reaches it fails.
// Nothing of the range may be in use. An error leaves the tables as they were.
func (s *Store) CutOut(id rhumb.RangeID) error {
	const op rhumb.Op = "storage.Store.CutOut"
	if s.rangeOf(id) != nil {
		return rhumb.Ef(op, rhumb.Conflict, "range %s is held: drop it first", id)
	}
	span := keys.RangeSpan(id)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return s.dbError(op, s.db.Excise(context.Background(), pebble.KeyRange{Start: span.Lower, End: span.Upper}))
}
