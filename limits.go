package rhumb

import "time"

// Bounds of the product. Every queue, retry, buffer and cache has a bound that is named here or
// beside its type. The constant expressions at the end of this file prove the relations between
// these bounds.
const (
	// NameSizeMax is the largest size of a record's name, in bytes.
	NameSizeMax = 4 << 10
	// ValueSizeMax is the largest size of an encoded value, in bytes.
	ValueSizeMax = 2 << 20
	// BatchSizeMax is the largest total size of the names and values of one batch, in bytes.
	BatchSizeMax = 4 << 20
	// BatchOpsMax is the largest number of mutations in a batch.
	BatchOpsMax = 10_000
	// RecordFieldsMax is the largest number of fields in a record.
	RecordFieldsMax = 4_096
	// FieldNameSizeMax is the largest size of a field's name, in bytes.
	FieldNameSizeMax = 255
	// MessageSizeMax is the largest size of a message on the wire, in bytes. It exceeds every batch
	// with its framing.
	MessageSizeMax = 16 << 20
	// EntrySizeMax is the largest size of an encoded log entry, in bytes: the largest batch with
	// its framing.
	EntrySizeMax = 8 << 20

	// BlockSlots is the number of slots in a block.
	BlockSlots = 1_024
	// HashSlotsDefault is the number of ranges for named keys with which a class begins in a region.
	HashSlotsDefault = 64
	// BucketsDefault is the number of slots over which the names of a class are spread in a region
	// (docs/decisions/0040-ranges-of-slots.md), BucketsMax the largest.
	BucketsDefault = 4_096
	BucketsMax     = 64 << 10
	// ShardSizeDefault is the size in bytes that makes the active slot of a node count as full
	// (TippyDB, section 3.2).
	ShardSizeDefault = 32 << 20
	// RangeSizeMax is the hard limit of a range of one slot, in bytes. A larger range accepts only updates
	// of existing keys. Ranges of several slots have no limit but the disks.
	RangeSizeMax = 512 << 20

	// MergedMax bounds the ranges that were merged into one, over its whole life: the first slot of each is recorded, since no range
	// begins there again.
	MergedMax = 256

	// ReplicasMax is the largest replication factor.
	ReplicasMax = 7
	// ReplicasDefault is the default replication factor.
	ReplicasDefault = 3
	// MinInSyncDefault is the default minimum size of an in-sync set.
	MinInSyncDefault = 2
	// VotersMax is the largest number of voters in the metadata group.
	VotersMax = 5
	// RegionsMax, NodesMax, TablesMax and RangesMax bound the catalog. NodesMax does not count nodes that were removed for good;
	// NodesEverMax counts all that ever joined, because the numbers of nodes are never used again.
	RegionsMax   = 256
	NodesMax     = 1_024
	NodesEverMax = 16 * NodesMax
	TablesMax    = 10_000
	RangesMax    = 1 << 20

	// DedupWindow is the largest number of unanswered requests that a client may have per range.
	DedupWindow = 64
	// DedupKeep is the minimum time, in log time, that a range keeps a result for retries of its request.
	DedupKeep = 15 * time.Minute
	// DedupFloorKeep is the time, in log time, that a range remembers the highest request of a client whose
	// result it has forgotten.
	DedupFloorKeep = 24 * time.Hour

	// LogKeepRange and LogKeepStore bound the log that is kept for lagging replicas, in bytes, per
	// range and per store.
	LogKeepRange = 64 << 20
	LogKeepStore = 1 << 30

	// ReadSizeMax bounds the values returned by one read, in bytes. A read by names that finds more
	// is rejected.
	ReadSizeMax = 8 << 20
	// LocateNamesMax is the largest number of names that one request locates.
	LocateNamesMax = 1_024
	// ScanPageMax is the largest number of records in a scan message, ScanPageBytes its largest
	// size in bytes.
	ScanPageMax   = 1_024
	ScanPageBytes = 1 << 20

	// ClockAheadMax is how far a peer's timestamp may be ahead of the local
	// wall clock. Larger ones are rejected.
	ClockAheadMax = 10 * time.Second
)

// Proofs of the relations between bounds: an array size becomes negative, and does not compile, if
// its relation breaks.
var (
	_ [BatchSizeMax - ValueSizeMax - NameSizeMax]struct{} // a batch holds at least one largest record
	_ [EntrySizeMax - BatchSizeMax - 64*BatchOpsMax]struct{}
	_ [MessageSizeMax - EntrySizeMax - 1<<20]struct{}         // a message holds the largest entry
	_ [MessageSizeMax - ReadSizeMax - 64*BatchOpsMax]struct{} // and the largest answer
	_ [MessageSizeMax - LocateNamesMax*(NameSizeMax+16)]struct{}
	_ [BlockSlots - HashSlotsDefault]struct{}
	_ [BucketsDefault - BlockSlots]struct{} // every class can begin with the most ranges
)

// VoterCount returns the number of voters of the metadata group: 5 for five regions or more, 3 for
// three nodes or more, otherwise 1. An even number survives no more failures than the odd one below
// it, and more voters than regions only add copies that fail together.
func VoterCount(nodes, regions int) int {
	switch {
	case regions >= VotersMax && nodes >= VotersMax:
		return VotersMax
	case nodes >= 3:
		return 3
	}
	return 1
}
