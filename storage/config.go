package storage

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// Bounds of a store.
const (
	// LineageMax bounds the epochs remembered per range; the oldest are forgotten first.
	LineageMax = 256
	// CollectWritesMax bounds the keys that one call of Collect deletes, so that it never holds up a commit for long.
	CollectWritesMax = 4_096
	// EntriesBytesDefault bounds one answer of Entries, in bytes.
	EntriesBytesDefault = 4 << 20
)

// Config says how a store is opened. The zero value of every field but Dir is a working default.
type Config struct {
	// Dir is the directory that holds the store. It is made when it does not exist. OpenEngine sets it.
	Dir string
	// FS is the file system; nil is the operating system's.
	FS vfs.FS
	// CacheBytes is the size of the block cache, shared by the stores of an engine; default 64 MiB.
	CacheBytes int64
	// MemTableBytes is the size of a memtable, and so of a log file; default 64 MiB.
	MemTableBytes int64
	// LogFilesAhead is the number of log files whose blocks are written before they are needed, so that a sync
	// overwrites blocks instead of growing a file; default 0. Recycled log files are overwritten in any case.
	LogFilesAhead int
	// NoSync makes nothing durable before the operating system pleases. It is for benchmarks only.
	NoSync bool
	// Logger takes what an operator should know; nil discards it.
	Logger *slog.Logger
	// FatalHandler is called when the database cannot go on, for example after a failed sync: nothing that the store
	// acknowledged from then on could be trusted. It must not return. The default logs and ends the process.
	FatalHandler func(msg string)
	// Misuse is called when Pebble finds a SINGLEDEL that deleted nothing, or more than it may. Tests fail on it; the
	// default logs an error.
	Misuse func(what string)
	// DiskFree tells the free and the total bytes of the disk that holds dir; the default asks FS.
	DiskFree func(dir string) (free, total uint64, err error)
	// RefuseFree is the free share of the disk below which Writable refuses; default 0.05.
	RefuseFree float64
	// DiskFreeEvery is how often DiskFree is asked; default 1 s. Negative asks at every call of Writable.
	DiskFreeEvery time.Duration
	// Options, when set, may change Pebble's options before the database is opened. It is for tests.
	Options func(o *PebbleOptions)
}

// Identity is what a STORE file says about its store.
type Identity struct {
	// Cluster and Node are zero until SetIdentity.
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	// Store is random, made with the store; in an engine all stores share that of the first.
	Store rhumb.UUID
	// Boot counts the times the store was opened, this one included.
	Boot rhumb.BootSeq
	// Fresh is true when this Open made the store.
	Fresh bool
}

// NodeIdentity gives the identity under which the node registers.
func (i Identity) NodeIdentity() rhumb.NodeIdentity {
	return rhumb.NodeIdentity{Node: i.Node, Store: i.Store, Boot: i.Boot}
}
