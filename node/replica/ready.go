package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Ready lists everything that a replica wants done since the last call of Ready. The package
// comment defines the order. The slices belong to the driver; entries are shared and immutable.
type Ready struct {
	// Promised is the epoch to persist, 0 if it did not change. PromisedTo is the primary of that
	// epoch.
	Promised   rhumb.Epoch
	PromisedTo rhumb.NodeID
	// Handed is set if the primary of the epoch before, which has stopped, handed the promised epoch over to this
	// replica. The driver then calls lease.Pairs.TakeOver instead of Exclude.
	Handed bool
	// UndoAbove, if set, requests the removal of all entries above it from storage before Append is
	// applied.
	UndoAbove *rhumb.Seq
	// Append lists the entries to append to storage.
	Append []*entry.Entry
	// Commit is the new commit position and CommitHLC the greatest timestamp up to it; 0 if it did not
	// move. It need not be synced.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Trim is the position up to which log records may be removed, 0 if it did not move. It is always
	// below the commit position and must not become durable before the commit position does.
	Trim rhumb.Seq
	// Born lists the ranges that entries up to the commit position split off, in the order of the entries. The driver divides
	// the copy in storage in the batch that first carries the commit position: a copy that is committed up to a split is
	// divided after a restart.
	Born []Birth
	// Taken lists the entries up to the commit position that take over the slots of another range, in their order. The driver unites
	// the copies in the batch that first carries the commit position, as for Born.
	Taken []Taken
	// Messages are to be sent at once, while the writes are still on their way to disk.
	Messages []Message
	// AfterSync is to be sent when the writes of this Ready and of all earlier ones are durable.
	AfterSync []Message
	// Answers are the outcomes of proposals.
	Answers []Answer
	// Meta lists proposals to the metadata group. They may be lost; the replica repeats them.
	Meta []MetaProposal
	// Fetch requests older entries from storage. Each request is answered by Fetched.
	Fetch []LogRead
	// Quarantine, if not empty, is the reason to persist for which this replica serves nothing any
	// more.
	Quarantine string
	// MustSync reports that Promised, UndoAbove, Append or Quarantine must become durable. The driver
	// then calls Persisted with Batch. Batches are numbered from 1.
	MustSync bool
	Batch    uint64
	// Deferred reports that Persisted may be called, and AfterSync sent, when the operating system has the writes. The driver then
	// syncs them within Config.Deferred.
	Deferred bool
	// GivenUp is the number of entries of this log that the range has lost, as this replica found when it was quarantined for it.
	GivenUp uint64
	// Unsure reports that this replica begins an epoch, and that the range may have lost writes of the last window
	// (docs/replication.md#deferred).
	Unsure bool
}

// Answer is the one answer to a proposal.
type Answer struct {
	// Token is the Token of the proposal.
	Token uint64
	// Outcome is set if Err is nil.
	Outcome rhumb.Outcome
	// Err is an *rhumb.Error, or nil. Its kind determines whether the write was certainly not applied.
	Err error
}

// MetaKind is the kind of a proposal to metadata.
type MetaKind uint8

// The kinds of proposals to metadata (docs/replication.md#record).
const (
	// AlterISR requests a new in-sync set.
	AlterISR MetaKind = 1
	// ElectMe requests Elect(R, v, self): a restarted primary takes a new epoch (rule S).
	ElectMe MetaKind = 2
	// ElectOther requests Elect(R, v, Node): the elected replica has found that Node holds a much
	// longer log.
	ElectOther MetaKind = 3
	// Quarantine reports that this replica serves nothing any more. It is not elected, and leaves the
	// in-sync set if enough others remain.
	Quarantine MetaKind = 4
	// Readmit requests the end of a quarantine: this replica dropped its damaged data and begins again
	// as a learner.
	Readmit MetaKind = 5
	// Yield requests Elect(R, v, another): this primary cannot commit or must not serve
	// (docs/replication.md#rule-progress-give-up). Metadata chooses the other.
	Yield MetaKind = 6
	// Adopt requests AdoptHandover(R, Epoch): this replica has begun the epoch that was reserved for it, in
	// the life of Lives.
	Adopt MetaKind = 7
	// Complete requests CompleteSplit(R, Epoch): this range was split off, and its primary has begun.
	Complete MetaKind = 8
	// CancelSplit requests CancelSplit(R, Epoch, v): R is reserved in this range, which this primary cannot divide.
	CancelSplit MetaKind = 9
	// CancelMerge requests CancelMerge(R, Epoch, v): this range was to end, and its primary cannot end it.
	CancelMerge MetaKind = 10
	// CompleteMerge requests CompleteMerge(R, Epoch, v), where v names the merge: this range has taken over the slots of the other one.
	CompleteMerge MetaKind = 11
)

// String returns the stable name of the kind.
func (k MetaKind) String() string {
	switch k {
	case AlterISR:
		return "alter-isr"
	case ElectMe:
		return "elect-me"
	case ElectOther:
		return "elect-other"
	case Quarantine:
		return "quarantine"
	case Readmit:
		return "readmit"
	case Yield:
		return "yield"
	case Adopt:
		return "adopt"
	case Complete:
		return "complete"
	case CancelSplit:
		return "cancel-split"
	case CancelMerge:
		return "cancel-merge"
	case CompleteMerge:
		return "complete-merge"
	}
	return fmt.Sprintf("meta_%d", uint8(k))
}

// MetaProposal is a compare-and-set on the record of the range. It is rejected unless the record
// has Version, and for AlterISR also Epoch. Adopt depends on the reserved epoch only.
type MetaProposal struct {
	Kind    MetaKind
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
	// New is the wanted in-sync set, sorted (AlterISR). If it equals the present set, it only moves
	// the version, which settles a change whose fate is unknown (rule R).
	New []rhumb.NodeID
	// Lives holds the life of each member of New of which the primary counts acknowledgements; 0 for a
	// member that has acknowledged nothing. Metadata rejects a member that joins in another life
	// (AlterISR). For Adopt it holds the life of this node.
	Lives []rhumb.BootSeq
	// Vouched reports for each member of New whether it holds, in that life, every acknowledged write
	// (AlterISR).
	Vouched []bool
	// Unhurried reports that the proposal may wait for others, because it only records lives
	// (AlterISR).
	Unhurried bool
	// Node is the node to elect (ElectOther).
	Node rhumb.NodeID
	// Why is the reason, for operators (Quarantine).
	Why string
}

// LogRead requests the entries From to Until from storage, oldest first, for a peer that lacks
// them. The answer has at least one entry if it exists, and otherwise stays within BytesMax.
type LogRead struct {
	To    rhumb.NodeID
	Epoch rhumb.Epoch
	// From and Until are the first and the last position wanted.
	From, Until rhumb.Seq
	BytesMax    int
}
