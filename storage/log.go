package storage

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Entries reads entries from..to of a log, both included, with their values, and checks their hashes. It stops before
// the answer passes maxBytes, but gives at least one entry; maxBytes 0 is EntriesBytesDefault. An empty answer means that
// entry from is trimmed away, or lies behind the last.
func (s *Store) Entries(id rhumb.RangeID, from, to rhumb.Seq, maxBytes int) ([]*entry.Entry, error) {
	panic("not written yet")
}

// Position gives the position of an entry that is still in the log.
func (s *Store) Position(id rhumb.RangeID, seq rhumb.Seq) (p entry.Position, ok bool, err error) {
	panic("not written yet")
}

// Seen is the stored result of a request.
type Seen struct {
	// Seq is the position of the entry that holds the request, applied or not; the result may be told when it is
	// committed.
	Seq     rhumb.Seq
	Outcome rhumb.Outcome
}

// Dedup gives the stored result of a request, and found false when none is kept.
func (s *Store) Dedup(id rhumb.RangeID, req rhumb.RequestID) (seen Seen, found bool, err error) {
	panic("not written yet")
}
