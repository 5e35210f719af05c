package replica

import (
	"github.com/rhumbdb/rhumb"
)

// Proposal is one batch to be ordered. The replica keeps references to its bytes: they must not change any more.
type Proposal struct {
	// Token comes back in the Answer. It is the driver's; the replica does not look at it.
	Token uint64
	// Batch must be valid (rhumb.Batch.Validate) and of this range.
	Batch *rhumb.Batch
	// Base holds, for each mutation, what storage has under its key; the zero Base where the mutation does not need it.
	// It may be nil when no mutation needs it.
	Base []Base
	// Seen is the stored result of the batch's RequestID, or nil when storage has none. With it, Base and Names may be nil.
	Seen *Dedup
	// Expired says that whether the batch's RequestID was applied cannot be known any more: storage has no result of it and
	// may have had one. It is refused, unless it is in flight. With it, Base and Names may be nil.
	Expired bool
	// Names are the names of the batch's inserts, in order, allocated by the driver.
	Names [][]byte
}

// Base is the newest value of a key in storage, committed or not. The zero Base says that there is no such key; a
// tombstone counts as none.
type Base struct {
	Version rhumb.Version
	Value   []byte
}

// Dedup is the stored result of a request.
type Dedup struct {
	// Seq is the position of the entry that holds the request.
	Seq rhumb.Seq
	// Version is what the request's keys got, Applied false for a no-op of IfNewer.
	Version rhumb.Version
	Applied bool
	// Existed and Names are as in rhumb.Outcome.
	Existed []bool
	Names   [][]byte
}

// outcome gives the answer that the first try got or would have got.
func (d *Dedup) outcome() rhumb.Outcome {
	if !d.Applied {
		return rhumb.Outcome{Existed: d.Existed}
	}
	return rhumb.Outcome{Applied: true, Version: d.Version, Seq: d.Seq, Existed: d.Existed, Names: d.Names}
}
