package replica

import (
	"fmt"
	"strings"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/entry"
)

// Config fixes what one replica is and what bounds it keeps. Zero values take the defaults.
type Config struct {
	// Range is the replicated range, Self the node that this replica lives on.
	Range rhumb.RangeID
	Self  rhumb.NodeID
	// Life is the node's life, as metadata counts it.
	Life rhumb.BootSeq
	// MinInSync is the least size of an in-sync set (rule C, I8); default rhumb.MinInSyncDefault.
	MinInSync int
	// AppendBytesMax bounds the entries of one Append message; a larger single entry travels alone. Default 1 MiB.
	AppendBytesMax int
	// EntryBytesMax bounds the entry that groups the proposals of one Ready; a larger single proposal has an entry of
	// its own. Default 1 MiB, at most rhumb.EntrySizeMax.
	EntryBytesMax int
	// InflightBytesMax bounds what is sent to one peer and not yet acknowledged. With 4 MiB and a round trip of 100 ms
	// one range streams 40 MiB/s to a peer. Default 4 MiB.
	InflightBytesMax int
	// UncommittedBytesMax bounds what is appended and not committed; beyond it proposals are refused as Overloaded.
	// Default 16 MiB.
	UncommittedBytesMax int
	// TailBytesMax bounds the committed entries kept in memory for peers that lag; beyond it they are read back from
	// storage by Ready.Fetch. Default 4 MiB.
	TailBytesMax int
	// ProposalsMax bounds proposals without an answer; beyond it they are refused as Overloaded. Default 16,384.
	ProposalsMax int
	// Retransmit is how long an unacknowledged Append waits before it is sent again. Default 300 ms.
	Retransmit time.Duration
	// ChangeRetry is how long a proposal to metadata waits for its effect before it is made again. Default 1 s.
	ChangeRetry time.Duration
	// PrepareWait is how long an elected replica waits for the answers of all members once it has those of MinInSync of
	// them (rule P). Default 300 ms.
	PrepareWait time.Duration
	// AdoptBytesMax is how much log an elected replica takes over from the member with the longest log; beyond it that
	// member is to be primary. Default 1 MiB.
	AdoptBytesMax int
	// ProgressTimeout is how long a member may acknowledge nothing while entries wait before it has to leave the in-sync set,
	// and how long a primary may commit nothing before it asks for another. Default 1.5 s.
	ProgressTimeout time.Duration
	// HoldOffMin is how long a node that left the in-sync set may not join it again. It doubles each time up to HoldOffMax,
	// and begins anew after the node was a member for HoldOffMax. Defaults 1 s and 60 s.
	HoldOffMin, HoldOffMax time.Duration
	// VouchAfter is how long a primary waits before it has metadata record lives that the record does not name (ruling 17a).
	// Default 3 s.
	VouchAfter time.Duration
	// JoinWithinBytes is how near to the end of the log a learner must be to join the in-sync set (ruling 7).
	// Default 1 MiB.
	JoinWithinBytes int
	// LogKeepBytes bounds the log kept for replicas that are behind. Default rhumb.LogKeepRange.
	LogKeepBytes int64
}

// withDefaults fills in what is zero.
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
		c.PrepareWait = 300 * time.Millisecond
	}
	if c.ChangeRetry == 0 {
		c.ChangeRetry = time.Second
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
	if c.VouchAfter == 0 {
		c.VouchAfter = 3 * time.Second
	}
	if c.LogKeepBytes == 0 {
		c.LogKeepBytes = rhumb.LogKeepRange
	}
	return c
}

// Validate lists everything that is wrong with the configuration.
func (c Config) Validate() error {
	const op rhumb.Op = "replica.Config"
	c = c.withDefaults()
	var faults []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	fault(c.Range.IsZero(), "no range is given")
	fault(c.Self == rhumb.NoNode, "no node is given")
	fault(c.MinInSync < 1 || c.MinInSync > rhumb.ReplicasMax, "min_in_sync is %d, want 1 to %d", c.MinInSync, rhumb.ReplicasMax)
	fault(c.EntryBytesMax < 0 || c.EntryBytesMax > rhumb.EntrySizeMax, "entry bytes is %d, want 1 to %d", c.EntryBytesMax, rhumb.EntrySizeMax)
	fault(c.AppendBytesMax < 0 || c.AppendBytesMax > rhumb.MessageSizeMax-rhumb.EntrySizeMax,
		"append bytes is %d, want 1 to %d", c.AppendBytesMax, rhumb.MessageSizeMax-rhumb.EntrySizeMax)
	fault(c.InflightBytesMax < c.AppendBytesMax, "inflight bytes is %d, less than append bytes %d", c.InflightBytesMax, c.AppendBytesMax)
	fault(c.UncommittedBytesMax < c.EntryBytesMax, "uncommitted bytes is %d, less than entry bytes %d", c.UncommittedBytesMax, c.EntryBytesMax)
	fault(c.TailBytesMax < 0 || c.ProposalsMax < 0 || c.JoinWithinBytes < 0 || c.AdoptBytesMax < 0 || c.LogKeepBytes < 0, "a bound is negative")
	fault(c.Retransmit < 0 || c.ChangeRetry < 0 || c.PrepareWait < 0 || c.ProgressTimeout < 0 || c.HoldOffMin < 0 || c.VouchAfter < 0, "a duration is negative")
	fault(c.HoldOffMax < c.HoldOffMin, "hold-off is at most %v, less than at least %v", c.HoldOffMax, c.HoldOffMin)
	if len(faults) > 0 {
		return rhumb.E(op, rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// Durable is what storage holds of a replica when its driver starts. The zero value is a replica without a log.
type Durable struct {
	// Promised is the greatest epoch that was promised.
	Promised rhumb.Epoch
	// Last is the end of the log and LastHLC the greatest timestamp in it.
	Last    entry.Position
	LastHLC rhumb.Timestamp
	// Commit is the persisted commit position, a lower bound, and CommitHLC the greatest timestamp up to it.
	Commit    rhumb.Seq
	CommitHLC rhumb.Timestamp
	// Known is a position that was persisted as committed although the log no longer reaches it, because the disk lost
	// the end of the log; 0 when the log is whole.
	Known rhumb.Seq
	// Quarantine is the reason why the replica serves nothing, or "".
	Quarantine string
	// Trim is the position up to which the log is gone. It is below Commit unless both are 0.
	Trim rhumb.Seq
	// Tail names the entries from Commit (its own entry included, unless Commit is 0) to Last, without gaps: what log
	// matching compares.
	Tail []Mark
	// Lineage lists the epochs of the log with the first position of each, ascending, from the one that holds Trim
	// or, where the store has forgotten that, from a later one.
	Lineage []EpochStart
	// LogBytes is the size of the log kept on disk, for LogKeepBytes; 0 when it is not known.
	LogBytes int64
}

// Mark is the place of one entry in the log, with the greatest timestamp in it.
type Mark struct {
	entry.Position
	HLC rhumb.Timestamp
}

// EpochStart says at which position an epoch begins in a log: one item of the lineage (Kafka's leader-epoch cache,
// KIP-101 and KIP-279). Storage derives it: it is the first entry of each epoch.
type EpochStart struct {
	Epoch rhumb.Epoch
	First rhumb.Seq
}
