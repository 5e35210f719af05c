package replica

import (
	"github.com/rhumbdb/rhumb"
)

// Proposal is a batch to be ordered. The replica keeps references to its bytes, so they must not
// change any more.
type Proposal struct {
	// Token is returned in the Answer. It belongs to the driver.
	Token uint64
	// Batch must be valid (rhumb.Batch.Validate) and of this range.
	Batch *rhumb.Batch
	// Base holds, for each mutation, the value that storage has for its key; the zero Base if the
	// mutation does not need it. It may be nil if no mutation needs it.
	Base []Base
	// Slots holds the slot of each mutation's key, 0 for the first slot of the range. It may be nil if all
	// are in that slot.
	Slots []rhumb.Slot
	// Seen is the stored result of the batch's RequestID, or nil if storage has none. If it is set,
	// Base and Names may be nil.
	Seen *Dedup
	// Expired reports that it is unknown whether the batch's RequestID was applied: storage has no
	// result and may have had one. The proposal is rejected unless the request is in flight. If
	// Expired is set, Base and Names may be nil.
	Expired bool
	// Names holds the names of the batch's inserts, in order, as allocated by the driver.
	Names [][]byte
}

// Home returns the home of the i-th mutation's key in a range.
func (p *Proposal) Home(id rhumb.RangeID, i int) rhumb.RangeID {
	if p.Slots != nil && p.Slots[i] != 0 {
		id.Slot = p.Slots[i]
	}
	return id
}

// Base is the newest value of a key in storage, committed or not. The zero Base represents a
// missing key; a tombstone counts as missing.
type Base struct {
	Version rhumb.Version
	Value   []byte
}

// Dedup is the stored result of a request.
type Dedup struct {
	// Seq is the position of the entry that holds the request.
	Seq rhumb.Seq
	// Version is the version of the keys that the request wrote. Applied is false for a no-op of
	// IfNewer.
	Version rhumb.Version
	Applied bool
	// Existed and Names are as in rhumb.Outcome.
	Existed []bool
	Names   [][]byte
}

// outcome returns the answer to the first attempt, whether or not that answer was delivered.
func (d *Dedup) outcome() rhumb.Outcome {
	if !d.Applied {
		return rhumb.Outcome{Existed: d.Existed}
	}
	return rhumb.Outcome{Applied: true, Version: d.Version, Seq: d.Seq, Existed: d.Existed, Names: d.Names}
}
