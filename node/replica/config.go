package replica

import (
	"fmt"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// PrepareWaitDefault is the default of Config.PrepareWait. It is a part of the pause that a plan of a failover states.
const PrepareWaitDefault = 300 * time.Millisecond

// Config identifies a replica and sets its bounds. Zero values take the defaults.
type Config struct {
	// Range is the replicated range, Self the node of this replica.
	Range rhumb.RangeID
	Self  rhumb.NodeID
	// Life is the node's life as counted by metadata.
	Life rhumb.BootSeq
	// MinInSync is the smallest size of an in-sync set (rule C, I8). Default rhumb.MinInSyncDefault.
	MinInSync int
	// Spans reports whether an in-sync set is spread as the class asks for, besides having MinInSync members
	// (survival goal region: two regions at least, or one while all copies elsewhere are lost). nil accepts every
	// set. The answer for a set changes when nodes are fenced, or return.
	Spans func(members []rhumb.NodeID) bool
	// TableName returns the name of a table for the texts of errors. nil writes the number of the table.
	TableName func(rhumb.TableID) string
	// AppendBytesMax bounds the entries of one Append. A larger single entry is sent alone. Default 1
	// MiB.
	AppendBytesMax int
	// EntryBytesMax bounds the entry that groups the proposals of one Ready. A larger single proposal
	// gets an entry of its own. Default 1 MiB, at most rhumb.EntrySizeMax.
	EntryBytesMax int
	// InflightBytesMax bounds the bytes sent to one peer and not acknowledged. With 4 MiB and a round
	// trip of 100 ms, one range streams 40 MiB/s to a peer. Default 4 MiB.
	InflightBytesMax int
	// UncommittedBytesMax bounds the bytes appended and not committed. Beyond it, proposals are
	// rejected as Overloaded. Default 16 MiB.
	UncommittedBytesMax int
	// TailBytesMax bounds the committed entries kept in memory for peers that lag. Beyond it, they are
	// read back from storage by Ready.Fetch. Default 4 MiB.
	TailBytesMax int
	// ProposalsMax bounds the proposals without an answer. Beyond it, proposals are rejected as
	// Overloaded. Default 16,384.
	ProposalsMax int
	// Retransmit is how long an Append waits for its acknowledgement before it is sent again. Default
	// 300 ms.
	Retransmit time.Duration
	// ChangeRetry is how long a proposal to metadata waits for its effect before it is repeated.
	// Default 1 s.
	ChangeRetry time.Duration
	// PrepareWait is how long an elected replica that has MinInSync answers waits for those of the
	// other members (rule P). Default 300 ms.
	PrepareWait time.Duration
	// Deferred is the window of a table that defers syncs, 0 for others. The driver may then report a Ready with Deferred as
	// persisted when the operating system has it.
	Deferred time.Duration
	// DeferredWait is how long an elected replica of such a table waits for the answers of all members of its in-sync set, unless
	// one that has answered is known to have the whole log. Default 10 s.
	DeferredWait time.Duration
	// AdoptBytesMax bounds the bytes of log that an elected replica fetches from the member with the
	// best log. Beyond it, that member should be primary. Default 1 MiB.
	AdoptBytesMax int
	// ProgressTimeout is how long a member may acknowledge nothing while entries wait before it has to
	// leave the in-sync set, and how long a primary may commit nothing before it asks to be relieved.
	// Default 1.5 s.
	ProgressTimeout time.Duration
	// HoldOffMin is how long a node that left the in-sync set may not join it again. The time doubles
	// with each departure up to HoldOffMax, and is reset after the node was a member for HoldOffMax.
	// Defaults 1 s and 60 s.
	HoldOffMin, HoldOffMax time.Duration
	// HandoverWait is how long a primary that handed over waits for a sign of its successor before it
	// asks for an election. Default 600 ms: more than the longest round trip with two syncs, and about
	// the time after which a dead successor is suspected anyway.
	HandoverWait time.Duration
	// SplitWait is how long a primary may be unable to divide its range before it cancels the split. Default 10 s: more
	// than an election, and than a member takes that has restarted.
	SplitWait time.Duration
	// VouchAfter is how long a primary waits before it has metadata record lives that the record does
	// not name (docs/replication.md#rule-one-answer). Default 3 s.
	VouchAfter time.Duration
	// JoinWithinBytes is how close to the end of the log a learner must be to join the in-sync set:
	// once it may join, commits wait for it. Default 1 MiB.
	JoinWithinBytes int
	// LogKeepBytes bounds the log kept for replicas that lag. Default rhumb.LogKeepRange.
	LogKeepBytes int64
	// CopyKeepBytes bounds the log kept for a replica that copies the range, from the position of the
	// copy on. Default four times LogKeepBytes, 256 MiB.
	CopyKeepBytes int64
}

// withDefaults returns the configuration with defaults in place of zero values.
func (c Config) withDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MinInSync, rhumb.MinInSyncDefault)
	def(&c.AppendBytesMax, 1<<20)
	def(&c.EntryBytesMax, 1<<20)
	def(&c.InflightBytesMax, 4<<20)
	def(&c.UncommittedBytesMax, 16<<20)
	def(&c.TailBytesMax, 4<<20)
	def(&c.ProposalsMax, 16_384)
	def(&c.JoinWithinBytes, 1<<20)
	def(&c.AdoptBytesMax, 1<<20)
	if c.Retransmit == 0 {
		c.Retransmit = 300 * time.Millisecond
	}
	if c.PrepareWait == 0 {
		c.PrepareWait = PrepareWaitDefault
	}
	if c.ChangeRetry == 0 {
		c.ChangeRetry = time.Second
	}
	if c.DeferredWait == 0 {
		c.DeferredWait = 10 * time.Second
	}
	if c.ProgressTimeout == 0 {
		c.ProgressTimeout = 1500 * time.Millisecond
	}
	if c.HoldOffMin == 0 {
		c.HoldOffMin = time.Second
	}
	if c.HoldOffMax == 0 {
		c.HoldOffMax = time.Minute
	}
	if c.HandoverWait == 0 {
		c.HandoverWait = 600 * time.Millisecond
	}
	if c.VouchAfter == 0 {
		c.VouchAfter = 3 * time.Second
	}
	if c.SplitWait == 0 {
		c.SplitWait = 10 * time.Second
	}
	if c.LogKeepBytes == 0 {
		c.LogKeepBytes = rhumb.LogKeepRange
	}
	if c.CopyKeepBytes == 0 {
		c.CopyKeepBytes = 4 * c.LogKeepBytes
	}
	return c
}

// Validate returns an error that lists everything that is wrong with the configuration.
func (c Config) Validate() error {
	const op rhumb.Op = "replica.Config"
	c = c.withDefaults()
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(c.Range.IsZero(), "the range is not set")
	fault(c.Self == rhumb.NoNode, "the node is not set")
	fault(c.MinInSync < 1 || c.MinInSync > rhumb.ReplicasMax, "min_in_sync is %d; it must be 1 to %d", c.MinInSync, rhumb.ReplicasMax)
	fault(c.EntryBytesMax < 0 || c.EntryBytesMax > rhumb.EntrySizeMax, "entry bytes is %d; it must be 1 to %d", c.EntryBytesMax, rhumb.EntrySizeMax)
	// Entries that storage reads may exceed AppendBytesMax by one entry (see LogRead).
	fault(c.AppendBytesMax < 0 || c.AppendBytesMax > rhumb.MessageSizeMax-rhumb.EntrySizeMax,
		"append bytes is %d; it must be 1 to %d", c.AppendBytesMax, rhumb.MessageSizeMax-rhumb.EntrySizeMax)
	// Otherwise the window, or the bound on uncommitted bytes, would be full after one message and
	// prevent any pipelining.
	fault(c.InflightBytesMax < c.AppendBytesMax, "inflight bytes is %d; it must be at least append bytes, %d", c.InflightBytesMax, c.AppendBytesMax)
	fault(c.UncommittedBytesMax < c.EntryBytesMax, "uncommitted bytes is %d; it must be at least entry bytes, %d", c.UncommittedBytesMax, c.EntryBytesMax)
	fault(c.TailBytesMax < 0 || c.ProposalsMax < 0 || c.JoinWithinBytes < 0 || c.AdoptBytesMax < 0 || c.LogKeepBytes < 0 || c.CopyKeepBytes < 0, "a bound is negative; bounds are 0 for the default, or more")
	fault(c.Retransmit < 0 || c.ChangeRetry < 0 || c.PrepareWait < 0 || c.Deferred < 0 || c.DeferredWait < 0 || c.ProgressTimeout < 0 || c.HoldOffMin < 0 || c.VouchAfter < 0 || c.HandoverWait < 0 || c.SplitWait < 0, "a duration is negative; durations are 0 for the default, or more")
	fault(c.HoldOffMax < c.HoldOffMin, "the longest hold-off is %v; it must be at least the shortest, %v", c.HoldOffMax, c.HoldOffMin)
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Durable is the state that storage holds for a replica when its driver starts. The zero value is a
// replica without a log.
type Durable struct {
	// Promised is the greatest promised epoch.
	Promised rhumb.Epoch
	// Last is the end of the log and LastHLC the greatest timestamp in the log.
	Last    entry.Position
	LastHLC rhumb.Timestamp
	// Commit is the persisted commit position, a lower bound. CommitHLC is the greatest timestamp up
	// to it.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Known is a position that was persisted as committed although the log no longer reaches it,
	// because the disk lost the end of the log. It is 0 if the log is whole.
	Known rhumb.Seq
	// Quarantine is the reason why the replica serves nothing, or "".
	Quarantine string
	// Trim is the position up to which the log was removed. It is below Commit unless both are 0.
	Trim rhumb.Seq
	// Tail names the entries from Commit to Last without gaps, for log matching. It includes the entry
	// at Commit unless Commit is 0.
	Tail []Mark
	// Lineage lists the epochs of the log with the first position of each, ascending. It begins with
	// the epoch of position Trim, or with a later one if the store has forgotten that.
	Lineage []EpochStart
	// End is the place of the entry that ended the range, zero if there is none.
	End End
	// LastSlot is the last slot of the copy. A value below the first slot, such as 0, means the first.
	LastSlot rhumb.Slot
	// LogBytes is the size of the log on disk, for LogKeepBytes; 0 if it is unknown.
	LogBytes int64
}

// Mark is the position of an entry with the greatest timestamp in the entry.
type Mark struct {
	entry.Position
	HLC rhumb.Timestamp
	// Split is the first slot of the range that the entry splits off, 0 for other entries.
	Split rhumb.Slot
	// End reports that the entry ends the range, and Take is the range that it takes over.
	End  bool
	Take entry.Take
}

// EpochStart is the position at which an epoch begins in a log, one item of the lineage (the
// leader-epoch cache of Kafka, KIP-101 and KIP-279). Storage derives it from the first entry of
// each epoch.
type EpochStart struct {
	Epoch rhumb.Epoch
	First rhumb.Seq
}
