package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// MessageKind identifies the type of a message. Kinds cross the wire: append only.
type MessageKind uint8

// The kinds of messages (docs/replication.md#messages).
const (
	// Append carries entries, the commit position and the trim position from the primary of Epoch.
	Append MessageKind = 1
	// Ack states that the sender holds the primary's log durably up to Match.
	Ack MessageKind = 2
	// Nack refuses a message of a primary: the sender has promised a later epoch, lacks the entry
	// before those sent, holds other entries as committed, refuses entries for now, or is quarantined.
	Nack MessageKind = 3
	// Prepare asks a member of the in-sync set to promise the epoch of an elected replica, and for the
	// end of the member's log (rule P).
	Prepare MessageKind = 4
	// Promise answers Prepare: the sender has promised the epoch durably.
	Promise MessageKind = 5
	// Fetch asks a member for the entries of its log after Prev.
	Fetch MessageKind = 6
	// Suffix answers Fetch with entries, or with the position up to which the logs may agree.
	Suffix MessageKind = 7
	// Handover makes the receiver primary of an epoch that metadata reserved for it. The primary of the
	// epoch before has stopped.
	Handover MessageKind = 8
	// LogTrimmed reports that the log of the primary lacks the entries that the replica needs.
	LogTrimmed MessageKind = 20
	// Copying answers LogTrimmed: the sender copies the range up to Match from another replica; with
	// Match 0 it has not begun.
	Copying MessageKind = 21
)

// fromPrimary reports whether the sender of such a message is, or is about to be, the primary of
// its epoch.
func (k MessageKind) fromPrimary() bool {
	return k == Append || k == Prepare || k == Fetch || k == LogTrimmed
}

// String returns the stable name of the kind.
func (k MessageKind) String() string {
	switch k {
	case Append:
		return "append"
	case Ack:
		return "ack"
	case Nack:
		return "nack"
	case Prepare:
		return "prepare"
	case Promise:
		return "promise"
	case Fetch:
		return "fetch"
	case Suffix:
		return "suffix"
	case Handover:
		return "handover"
	case LogTrimmed:
		return "log_trimmed"
	case Copying:
		return "copying"
	}
	return fmt.Sprintf("message_%d", uint8(k))
}

// Message is a message between two replicas of a range. Fields that do not belong to its kind are
// zero. A message may be lost, repeated or overtaken by a later one at any time.
type Message struct {
	Kind     MessageKind
	Range    rhumb.RangeID
	From, To rhumb.NodeID
	// Life is the sender's life. The sender's disk may have lost acknowledged entries or promises of
	// an earlier life.
	Life rhumb.BootSeq
	// Epoch is the epoch of the primary: of the sender of an Append, Prepare or Fetch, of the receiver
	// of any other kind. A Handover begins it.
	Epoch rhumb.Epoch

	// Prev is the position before the first of Entries (Append, Suffix, Handover), the end of the sender's log
	// (Promise), or the position after which entries are wanted (Fetch). Entries are without gaps and
	// may be empty. They are immutable and shared.
	Prev    entry.Position
	Entries []*entry.Entry
	// Trim is the position up to which the receiver may drop its log (Append), or up to which the
	// sender has dropped its own (LogTrimmed).
	Trim rhumb.Seq

	// Commit is the sender's commit position (all kinds). In a Promise it is the greatest position
	// that the sender has ever known as committed, even if its log no longer reaches that far;
	// CommitHash is the hash of the entry there, zero if the sender does not have it.
	Commit     rhumb.Seq
	CommitHash entry.Hash
	// Clock is above every timestamp and closed timestamp that the sender's node has acknowledged
	// (Promise; the driver sets it), or that the sender assigned or closed (Handover).
	Clock rhumb.Timestamp
	// Match is the last position of the Append that is acknowledged, never the end of the sender's log
	// (Ack), or the commit position of the copy that the sender receives (Copying).
	Match rhumb.Seq

	// Reject is Prev.Seq of the refused message (Nack, Suffix without entries).
	Reject rhumb.Seq
	// HintEpoch and HintEnd are the lineage hint: the sender's log holds entries of HintEpoch up to
	// HintEnd, and the logs may agree up to there (Nack, Suffix without entries).
	HintEpoch rhumb.Epoch
	HintEnd   rhumb.Seq
	// Promised is the epoch that the sender has promised (Nack).
	Promised rhumb.Epoch
	// Quarantined reports that the sender acknowledges nothing any more (Nack).
	Quarantined bool
	// Contradicts reports that the sender holds another entry at Reject, which is committed: the
	// receiver's log has lost it (Nack).
	Contradicts bool
	// Trimmed reports that the sender's log no longer holds the entries (Suffix).
	Trimmed bool
	// Refused is the reason why the sender accepts no entries for now although its log fits (Nack).
	Refused Refusal

	// Ends is the epoch of the sender, which ends with this message. TargetLife is the life of the
	// receiver for which the message is meant. InSync and Version are the in-sync set, and the version
	// of the record, that the sender used last (Handover).
	Ends       rhumb.Epoch
	TargetLife rhumb.BootSeq
	InSync     []rhumb.NodeID
	Version    uint64

	// Unknown reports that entries followed that this build cannot read, because a later release wrote them. The receiver sets
	// it; it is not sent (Append).
	Unknown bool
}
