package storage

import (
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
	"github.com/rhumbdb/rhumb/keys"
)

// Undo removes all entries above a position with everything that they wrote
// (docs/replication.md#rule-t). It reads the log records of these entries and fails if one of them
// cannot be read; the batch is then unchanged. Undoing a committed entry panics (invariant I5).
//
// Steps: find the new end of the log, read the records of all entries that are in the database,
// then delete, newest first. All reads come before the first deletion, so that an error leaves the
// batch as it was.
func (b *Batch) Undo(id rhumb.RangeID, above rhumb.Seq) error {
	g := b.stageRange(id)
	if above < g.log.Commit {
		panic(fmt.Sprintf("storage: range %s: undo above %d would remove committed entries: the commit position is %d", id, above, g.log.Commit))
	}
	if above >= g.log.Last.Seq {
		return nil
	}
	pos, hlc, total, err := b.positionAt(g, above)
	if err != nil {
		return err
	}
	// Entries that this batch appended are in g.appended. Those in the database are read in index
	// form: names and timestamps are enough to find the versions, so no value is read.
	stored, err := b.s.readIndexEntries(id, above+1, g.durable)
	if err != nil {
		return err
	}
	// Within one Pebble batch later operations win, so a DELETE after the SET of the same batch
	// removes the version.
	for _, e := range slices.Backward(g.appended) {
		if e.Seq > above {
			b.undoEntry(id, e)
			g.appended = g.appended[:len(g.appended)-1]
		}
	}
	for _, e := range slices.Backward(stored) {
		b.undoEntry(id, e)
	}
	// Entries up to above are in the database, and entries that the batch appends from here on are
	// not, even if they have the numbers of undone ones.
	g.durable = min(g.durable, above)
	g.log.setLast(pos, hlc, total)
	g.log.Lineage = slices.DeleteFunc(slices.Clone(g.log.Lineage), func(s EpochStart) bool { return s.First > above })
	b.setState(id, keys.StateLineage, encodeLineage(g.log.Lineage))
	if g.log.End.Seq > above {
		g.log.End = End{}
		b.setState(id, keys.StateEnd, encodeEnd(g.log.End))
	}
	// The records that carried the commit position may be among the deleted ones.
	g.commit = true
	return nil
}

// undoEntry deletes the writes of an entry and nothing else. It uses DELETE and not SINGLEDEL,
// because the same version may be written again: the same entry is sent again after an undo
// (docs/replication.md#entries).
func (b *Batch) undoEntry(id rhumb.RangeID, e *entry.Entry) {
	for i := range e.Requests {
		r := &e.Requests[i]
		for j := range r.Writes {
			w := &r.Writes[j]
			b.key = keys.AppendData(b.key[:0], rhumb.Key{Table: w.Table, Home: w.Home(id), Name: w.Name}, e.Version(r))
			b.delete(b.key)
			b.rows = append(b.rows, rowHash(b.key[:keys.Split(b.key)]))
		}
		if !r.ID.IsZero() {
			b.key = keys.AppendDedup(b.key[:0], id, r.ID)
			b.delete(b.key)
		}
	}
	b.key = keys.AppendLog(b.key[:0], id, e.Seq)
	b.delete(b.key)
}

// readIndexEntries reads the entries from..to, both included, in index form. All of them must
// exist.
func (s *Store) readIndexEntries(id rhumb.RangeID, from, to rhumb.Seq) ([]*entry.Entry, error) {
	const op rhumb.Op = "storage.Batch.Undo"
	if from > to {
		return nil, nil
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: keys.AppendLog(nil, id, from), UpperBound: keys.AppendLog(nil, id, to+1)})
	if err != nil {
		return nil, s.dbError(op, err)
	}
	defer func() { _ = it.Close() }()
	var out []*entry.Entry
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, s.dbError(op, err)
		}
		seq := from + rhumb.Seq(len(out))
		// The iterator reuses its buffer, and the entry shares memory with its record.
		r, err := decodeRecord(append([]byte(nil), v...))
		if err != nil {
			return nil, s.badRecord(op, id, seq, err)
		}
		if r.entry.Seq != seq {
			return nil, s.badRecord(op, id, seq, rhumb.Ef(op, rhumb.Corrupt, "the record holds entry %d instead", r.entry.Seq))
		}
		out = append(out, r.entry)
	}
	if err := it.Error(); err != nil {
		return nil, s.dbError(op, err)
	}
	// Undoing only a part of the entries would leave versions that no record lists, which nothing
	// ever removes.
	if want := int(to-from) + 1; len(out) != want {
		return nil, s.badRecord(op, id, from+rhumb.Seq(len(out)), rhumb.E(op, rhumb.Corrupt, "the record is missing"))
	}
	return out, nil
}
