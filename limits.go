package rhumb

import "time"

// Bounds of the product. Every queue, retry, buffer and cache names its bound here or beside its type. Relations that
// other bounds rest on are proven by the constant expressions at the end.
const (
	// NameSizeMax bounds the name of a record, in bytes.
	NameSizeMax = 4 << 10
	// ValueSizeMax bounds an encoded value, in bytes.
	ValueSizeMax = 2 << 20
	// BatchSizeMax bounds the names and values of one batch together, in bytes.
	BatchSizeMax = 4 << 20
	// BatchOpsMax bounds the operations of one batch.
	BatchOpsMax = 10_000
	// RecordFieldsMax bounds the fields of one record.
	RecordFieldsMax = 4_096
	// FieldNameSizeMax bounds the name of a field, in bytes.
	FieldNameSizeMax = 255
	// MessageSizeMax bounds one message on the wire, in bytes; it lies above every batch with its framing.
	MessageSizeMax = 16 << 20
	// EntrySizeMax bounds one encoded log entry, in bytes: one largest batch with its framing.
	EntrySizeMax = 8 << 20

	// BlockSlots is the number of slots in one block.
	BlockSlots = 1_024
	// HashSlotsDefault is the number of hash slots of a class in a region.
	HashSlotsDefault = 64
	// ShardSizeDefault is the size in bytes at which a node's active slot counts as full (TippyDB, section 3.2).
	ShardSizeDefault = 32 << 20
	// RangeSizeMax is the hard cap of a range in bytes; above it only updates of existing keys are accepted.
	RangeSizeMax = 512 << 20

	// ReplicasMax bounds the replication factor.
	ReplicasMax = 7
	// ReplicasDefault is the default replication factor.
	ReplicasDefault = 3
	// MinInSyncDefault is the default least size of an in-sync set.
	MinInSyncDefault = 2
	// VotersMax bounds the voters of the metadata group.
	VotersMax = 5
	// RegionsMax, NodesMax, TablesMax and RangesMax bound the catalog.
	RegionsMax = 256
	NodesMax   = 1_024
	TablesMax  = 10_000
	RangesMax  = 1 << 20

	// DedupWindow is the number of unanswered requests that one client may have per range.
	DedupWindow = 64
	// DedupKeep is how long, by log time, the result of a request is kept for a retry at the least.
	DedupKeep = 15 * time.Minute
	// DedupFloorKeep is how long, by log time, a range remembers up to which number it has forgotten a client's results.
	DedupFloorKeep = 24 * time.Hour

	// LogKeepRange and LogKeepStore bound, in bytes, the log kept for replicas that lag, per range and per store.
	LogKeepRange = 64 << 20
	LogKeepStore = 1 << 30

	// ReadSizeMax bounds the values that one read returns, in bytes; a read by names that finds more is refused.
	ReadSizeMax = 8 << 20
	// LocateNamesMax bounds the names that one request locates.
	LocateNamesMax = 1_024
	// ScanPageMax bounds the records of one scan message; ScanPageBytes its size in bytes.
	ScanPageMax   = 1_024
	ScanPageBytes = 1 << 20

	// ClockAheadMax is how far a peer's timestamp may lie ahead of the local wall clock before it is refused.
	ClockAheadMax = 10 * time.Second
)

// Proof of relations between bounds: each array size is negative, and so does not compile, when its relation breaks.
var (
	_ [BatchSizeMax - ValueSizeMax - NameSizeMax]struct{} // a batch holds at least one largest record
	_ [EntrySizeMax - BatchSizeMax - 64*BatchOpsMax]struct{}
	_ [MessageSizeMax - EntrySizeMax - 1<<20]struct{}         // a message holds the largest entry
	_ [MessageSizeMax - ReadSizeMax - 64*BatchOpsMax]struct{} // and the largest answer
	_ [MessageSizeMax - LocateNamesMax*(NameSizeMax+16)]struct{}
	_ [BlockSlots - HashSlotsDefault]struct{}
)
