package storage

import (
	"time"

	"github.com/rhumbdb/rhumb"
)

// CollectLimits bound one call of Collect.
type CollectLimits struct {
	// Before is the timestamp below which no read is under way: only entries up to it are collected.
	Before rhumb.Timestamp
	// WritesMax bounds the keys deleted; default and maximum CollectWritesMax.
	WritesMax int
	// History says how long a table keeps superseded versions; nil keeps none. Versions of a table with history are
	// left to CollectHistory.
	History func(rhumb.TableID) time.Duration
}

// Collected is what one collection did.
type Collected struct {
	// Entries, Versions and Results count the deleted log records, versions and request results.
	Entries, Versions, Results int
	// Bytes is what the deleted versions weighed, before compression.
	Bytes int64
	// More is true when there is more to do at once.
	More bool
}

// Collect removes what a range no longer needs: log records up to its trim position, the versions that these entries
// superseded, and request results that are older than rhumb.DedupKeep by log time and whose entries are trimmed. It does a
// bounded piece of work; call it again while More. It may run beside the range's writer.
func (s *Store) Collect(id rhumb.RangeID, lim CollectLimits) (Collected, error) {
	panic("not written yet")
}

// CollectHistory removes the superseded versions of one table of a range that were superseded at or before a timestamp
// and whose entries are trimmed. It goes through the names after the given one and returns the last name it looked at, nil
// at the end.
func (s *Store) CollectHistory(id rhumb.RangeID, table rhumb.TableID, before rhumb.Timestamp, after []byte) (next []byte, c Collected, err error) {
	panic("not written yet")
}
