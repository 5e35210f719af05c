package replica

import (
	"fmt"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Ready is everything that a replica wants done since the last call of Ready. The package comment says in which order.
// Its slices belong to the driver; entries are shared and immutable.
type Ready struct {
	// Promised is the epoch to persist; 0 when it did not change. PromisedTo is that epoch's primary.
	Promised   rhumb.Epoch
	PromisedTo rhumb.NodeID
	// UndoAbove, when set, says to remove all entries above it from storage, before Append is applied.
	UndoAbove *rhumb.Seq
	// Append are the entries to append to storage.
	Append []*entry.Entry
	// Commit is the new commit position and CommitHLC the greatest timestamp up to it; 0 when it did not move. It need
	// not be synced.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Trim is the position up to which log records may be removed; 0 when it did not move. It is always below the
	// commit position and must not become durable before that.
	Trim rhumb.Seq
	// Messages are to be sent at once, while the writes are on their way to disk.
	Messages []Message
	// AfterSync are to be sent when the writes of this Ready and of all before it are durable.
	AfterSync []Message
	// Answers are the outcomes of proposals.
	Answers []Answer
	// Meta are proposals to the metadata group. They may be lost; the replica repeats them.
	Meta []MetaProposal
	// Fetch asks for older entries from storage; each is answered by Fetched.
	Fetch []LogRead
	// Quarantine, when not empty, is the reason to persist why this replica serves nothing any more.
	Quarantine string
	// MustSync says that Promised, UndoAbove, Append or Quarantine has something that must become durable, after which the
	// driver calls Persisted with Batch. Batches are numbered from 1.
	MustSync bool
	Batch    uint64
}

// Answer is the one answer to a proposal.
type Answer struct {
	// Token is the Token of the proposal.
	Token uint64
	// Outcome is set when Err is nil.
	Outcome rhumb.Outcome
	// Err is an *rhumb.Error, or nil. Its kind tells whether the write was certainly not applied.
	Err error
}

// MetaKind is what a proposal to metadata asks for.
type MetaKind uint8

// The kinds of proposals to metadata (section 1.3 of the replication design).
const (
	// AlterISR asks for a new in-sync set.
	AlterISR MetaKind = 1
	// ElectMe asks for Elect(R, v, self): rule S, a restarted primary takes a new epoch.
	ElectMe MetaKind = 2
	// ElectOther asks for Elect(R, v, Node): the elected replica has found that Node holds a much longer log.
	ElectOther MetaKind = 3
	// Quarantine asks metadata to note that this replica serves nothing any more: it is not elected, and leaves the
	// in-sync set where enough others remain.
	Quarantine MetaKind = 4
	// Readmit asks metadata to forget a quarantine: this replica gave up its damaged data and begins anew as a learner.
	Readmit MetaKind = 5
	// Yield asks for Elect(R, v, another): this primary cannot commit, or must not serve (rulings 18 and 19). Metadata
	// chooses whom.
	Yield MetaKind = 6
)

// String gives the stable name of the kind.
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
	}
	return fmt.Sprintf("meta_%d", uint8(k))
}

// MetaProposal is a compare-and-set on the range's record. It is rejected unless the record has Epoch (AlterISR) and
// Version.
type MetaProposal struct {
	Kind    MetaKind
	Range   rhumb.RangeID
	Epoch   rhumb.Epoch
	Version uint64
	// New is the wanted in-sync set, sorted (AlterISR). Equal to the present set it only moves the version, which
	// settles a change whose fate is unknown (ruling 7).
	New []rhumb.NodeID
	// Lives are the lives of the members of New, in which they acknowledged what the primary counts; 0 for a member that
	// has acknowledged nothing. Metadata refuses a joining member of another life (AlterISR).
	Lives []rhumb.BootSeq
	// Vouched says of each member of New whether, in that life, it holds everything that clients were told (AlterISR).
	Vouched []bool
	// Unhurried says that the proposal gives way to others: it only records lives (AlterISR).
	Unhurried bool
	// Node is the node to elect (ElectOther).
	Node rhumb.NodeID
	// Why is the reason, for people (Quarantine).
	Why string
}

// LogRead asks for the entries From to Until from storage, oldest first, for a peer that lacks them: at least one if it is
// there, and no more than BytesMax beyond it.
type LogRead struct {
	To    rhumb.NodeID
	Epoch rhumb.Epoch
	// From and Until are the first and the last position wanted.
	From, Until rhumb.Seq
	BytesMax    int
}
