package storage

import (
	"cmp"
	"log/slog"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
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
	// StoresMax bounds the stores of an engine.
	StoresMax = 64
)

// Config says how a store is opened. The zero value of every field but Dir is a working default.
type Config struct {
	// Dir is the directory that holds the store. It is made when it does not exist. OpenEngine sets it.
	Dir string
	// FS is the file system; nil is the operating system's.
	FS vfs.FS
	// CacheBytes is the size of the block cache, shared by the stores of an engine; default 64 MiB. Memtables come on top.
	CacheBytes int64
	// MemTableBytes is the size of a memtable, and so of a log file; default 64 MiB, less on disks below 4 GiB.
	MemTableBytes int64
	// Logger takes what an operator should know; nil discards it.
	Logger *slog.Logger
	// FatalHandler is called when the database cannot go on, for example after a failed sync: nothing that the store
	// acknowledged from then on could be trusted. It must not return. The default ends the process with status 1.
	FatalHandler func(msg string)
	// Misuse is called when Pebble finds a SINGLEDEL that deleted nothing, or more than it may. Tests fail on it; the
	// default logs an error.
	Misuse func(what string)
	// DiskFree tells the free and the total bytes of the disk that holds dir; the default asks FS.
	DiskFree func(dir string) (free, total uint64, err error)
	// RefuseFree is the free share of the disk below which Writable refuses; default 0.05.
	RefuseFree float64
	// DiskFreeEvery is how long an answer of DiskFree is believed; default 1 s, negative not at all.
	DiskFreeEvery time.Duration
	// AcceptLost holds the numbers, from 1, of stores of the engine that the operator gives up: their directories are empty.
	// Empty stores take their place, and are short.
	AcceptLost []int
	// Options, when set, may change Pebble's options before the database is opened. It is for tests.
	Options func(o *PebbleOptions)

	memTableDefaulted bool
	cache             *pebble.Cache // shared by the stores of an engine; the opener owns a reference
}

// newCache makes the cache of so many stores. Pebble takes the memory of memtables out of the cache, so theirs is added: else
// a cache that is smaller than a memtable caches nothing once there has been much to write.
func (c *Config) newCache(stores int) *pebble.Cache {
	size := cmp.Or(c.CacheBytes, cacheDefault)
	return pebble.NewCache(size + int64(stores)*memTablesUsual*cmp.Or(c.MemTableBytes, memTableDefault))
}

// Validate lists everything that is wrong with the configuration.
func (c *Config) Validate() error {
	var faults []string
	if c.Dir == "" {
		faults = append(faults, "the directory is empty")
	}
	if c.CacheBytes < 0 {
		faults = append(faults, "the cache size is negative")
	}
	if c.MemTableBytes < 0 || c.MemTableBytes > 0 && c.MemTableBytes < 64<<10 || c.MemTableBytes > 1<<30 {
		faults = append(faults, "the memtable size is not 64 KiB to 1 GiB")
	}
	if c.RefuseFree < 0 || c.RefuseFree >= 1 {
		faults = append(faults, "the free share below which writes are refused is not 0 to 1")
	}
	if len(faults) > 0 {
		return rhumb.E("storage.Config", rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// fillDefaults checks the configuration and puts in the defaults.
func (c *Config) fillDefaults() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	c.Dir = absolutePath(c.FS, c.Dir)
	if c.MemTableBytes == 0 {
		c.MemTableBytes, c.memTableDefaulted = memTableDefault, true
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FatalHandler == nil {
		c.FatalHandler = exitProcess
	}
	if c.Misuse == nil {
		log := c.Logger
		c.Misuse = func(what string) { log.Error("a broken invariant of the store", "what", what) }
	}
	if c.DiskFree == nil {
		fs := c.FS
		c.DiskFree = func(dir string) (free, total uint64, err error) {
			u, err := fs.GetDiskUsage(dir)
			return u.AvailBytes, u.TotalBytes, err
		}
	}
	if c.RefuseFree == 0 {
		c.RefuseFree = 0.05
	}
	if c.DiskFreeEvery == 0 {
		c.DiskFreeEvery = time.Second
	}
	return nil
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
