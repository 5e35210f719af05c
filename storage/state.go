package storage

import (
	"sync"
	"sync/atomic"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// EpochStart is one step of a range's lineage: the position at which an epoch began.
type EpochStart struct {
	Epoch rhumb.Epoch
	First rhumb.Seq
}

// RangeState is what a store holds of one replica besides its data and its log.
type RangeState struct {
	Range rhumb.RangeID
	// Promised is the greatest epoch that the replica promised; it is durable when the batch that set it is.
	Promised rhumb.Epoch
	// Last is the position of the last entry, and LastHLC its greatest timestamp; both are zero for an empty log.
	Last    entry.Position
	LastHLC rhumb.Timestamp
	// Commit is a lower bound of the commit position, and CommitHLC the greatest timestamp up to there.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Closed is a lower bound of the greatest closed timestamp.
	Closed rhumb.Timestamp
	// Trim is the position up to which entries may be gone from the log. Trim <= Commit.
	Trim rhumb.Seq
	// Lineage says at which position each epoch of the log began, oldest first.
	Lineage []EpochStart
}

// Commit is a commit position with the greatest timestamp up to there.
type Commit struct {
	Seq rhumb.Seq
	HLC rhumb.Timestamp
}

// RangeSize is what a range weighs, in bytes before compression.
type RangeSize struct {
	// Data counts keys and values of all versions that are kept.
	Data int64
	// Log counts the entries after the trim position, values included: what a lagging peer could still be sent.
	Log int64
}

// rangeState is the in-memory side of a range that a store holds.
type rangeState struct {
	// collecting is held by a collection of the range, and by the batch that drops it.
	collecting sync.Mutex

	mu      sync.Mutex // guards the rest
	state   RangeState
	dropped bool

	// floor is the greatest timestamp at which collection may have removed what a read would have seen.
	floor atomic.Uint64
}
