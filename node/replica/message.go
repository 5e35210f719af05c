package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// MessageKind is what a message says. Kinds cross the wire: append only.
type MessageKind uint8

// The kinds of messages (section 1.5 of the replication design).
const (
	// Append carries entries, the commit position and the trim position from the primary of Epoch.
	Append MessageKind = 1
	// Ack says that the sender holds the primary's log durably up to Match.
	Ack MessageKind = 2
	// Nack refuses an Append: the sender has promised a later epoch, misses what comes before the entries, or is
	// quarantined.
	Nack MessageKind = 3
)

// String gives the stable name of the kind.
func (k MessageKind) String() string {
	switch k {
	case Append:
		return "append"
	case Ack:
		return "ack"
	case Nack:
		return "nack"
	}
	return fmt.Sprintf("message_%d", uint8(k))
}

// Message is one message between two replicas of a range. Fields that do not belong to its kind are zero. A message may
// be lost, repeated or overtaken by a later one; none of that harms.
type Message struct {
	Kind     MessageKind
	Range    rhumb.RangeID
	From, To rhumb.NodeID
	// Epoch is that of the primary: the sender of an Append, the receiver of an Ack or Nack.
	Epoch rhumb.Epoch

	// Prev is the position before the first of Entries (Append). Entries are without gaps and may be empty. They are
	// immutable and shared.
	Prev    entry.Position
	Entries []*entry.Entry
	// Trim is the position up to which a receiver may drop its log (Append).
	Trim rhumb.Seq

	// Commit is the sender's commit position (all kinds).
	Commit rhumb.Seq
	// Match is the last position of the Append that is acknowledged, never the sender's own end (Ack).
	Match rhumb.Seq

	// Reject is Prev.Seq of the refused Append (Nack).
	Reject rhumb.Seq
	// HintEpoch and HintEnd are the lineage hint: the sender's log holds entries of HintEpoch up to HintEnd and may
	// agree up to there (Nack).
	HintEpoch rhumb.Epoch
	HintEnd   rhumb.Seq
	// Promised is the epoch that the sender has promised (Nack).
	Promised rhumb.Epoch
	// Quarantined says that the sender will acknowledge nothing any more (Nack).
	Quarantined bool
	// Refused says why the sender takes no entries for now, although they fit its log (Nack).
	Refused Refusal
}
