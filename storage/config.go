package storage

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// Bounds of a store. Each bounds the memory or the time of one operation.
const (
	// LineageMax bounds the epochs that are remembered for each range; the oldest are forgotten
	// first.
	LineageMax = 256
	// CollectWritesMax bounds the keys that one call of Collect deletes, so that Collect never
	// delays a commit for long.
	CollectWritesMax = 4_096
	// EntriesBytesDefault bounds the result of one call of Entries, in bytes.
	EntriesBytesDefault = 4 << 20
	// StoresMax bounds the stores of an engine.
	StoresMax = 64
)

// Config describes how a store is opened. The zero value of every field but Dir is a working
// default.
type Config struct {
	// Dir is the directory of the store. Open creates it if it does not exist. OpenEngine sets Dir.
	Dir string
	// FS is the file system; nil means that of the operating system.
	FS vfs.FS
	// CacheBytes is the size of the block cache, which all stores of an engine share; default 64
	// MiB. The memory of memtables is added to it.
	CacheBytes int64
	// MemTableBytes is the size of a memtable and therefore of a log file; default 64 MiB, less on
	// disks below 4 GiB.
	MemTableBytes int64
	// NamesBytes bounds the names that each store keeps in memory for scans; default 16 MiB, which is enough for about 250,000
	// names. A store with more names keeps those that scans have read last.
	NamesBytes int64
	// RowsBytes bounds the records that each store keeps in memory for reads by name; default 32 MiB. The records that are read
	// most stay.
	RowsBytes int64
	// Logger receives messages for the operator; nil discards them.
	Logger *slog.Logger
	// FatalHandler is called if the database cannot continue, for example after a failed sync: what
	// the store acknowledged from then on could not be trusted. FatalHandler must not return. The
	// default exits with status 1.
	FatalHandler func(msg string)
	// Misuse is called if Pebble finds a SINGLEDEL that deleted nothing, or more than one value.
	// Tests fail on it; the default logs an error.
	Misuse func(what string)
	// DiskFree returns the free and the total bytes of the disk that holds dir; the default asks
	// FS.
	DiskFree func(dir string) (free, total uint64, err error)
	// RefuseFree is the free share of the disk below which Writable rejects writes; default 0.05.
	RefuseFree float64
	// DiskFreeEvery is how long a result of DiskFree is reused; default 1 s. A negative value
	// disables reuse.
	DiskFreeEvery time.Duration
	// AcceptLost holds the numbers, from 1, of lost stores whose data the operator abandons. Their
	// directories must be empty. New, short stores take their place.
	AcceptLost []int
	// ReadFaults, if set, makes reads of the files of the store fail. It is for tests. The caches then hold nothing, so that reads
	// reach the disk.
	ReadFaults *ReadFaults
	// Options, if set, may change Pebble's options before the database is opened. It is for tests.
	Options func(o *PebbleOptions)

	// memTableDefaulted is set if MemTableBytes is the default, which fitMemTable may lower.
	memTableDefaulted bool
	cache             *pebble.Cache // shared by the stores of an engine; OpenEngine owns a reference
}

// newCache returns the block cache for the given number of stores. Pebble takes the memory of
// memtables out of the cache, so newCache adds their size. Without that, a cache smaller than a
// memtable would hold no blocks after a burst of writes, and every read would go to the disk.
func (c *Config) newCache(stores int) *pebble.Cache {
	if c.ReadFaults != nil {
		return pebble.NewCache(cacheLeast)
	}
	size := cmp.Or(c.CacheBytes, cacheDefault)
	return pebble.NewCache(size + int64(stores)*memTablesUsual*cmp.Or(c.MemTableBytes, memTableDefault))
}

// Validate returns an error that lists everything that is wrong with the configuration, so that one
// attempt shows all mistakes.
func (c *Config) Validate() error {
	var faults []string
	if c.Dir == "" {
		faults = append(faults, "no directory is given")
	}
	if c.CacheBytes < 0 {
		faults = append(faults, fmt.Sprintf("a cache of %d bytes is negative", c.CacheBytes))
	}
	if c.NamesBytes < 0 {
		faults = append(faults, fmt.Sprintf("%d bytes for names are negative", c.NamesBytes))
	}
	if c.RowsBytes < 0 {
		faults = append(faults, fmt.Sprintf("%d bytes for records are negative", c.RowsBytes))
	}
	if c.MemTableBytes < 0 || c.MemTableBytes > 0 && c.MemTableBytes < 64<<10 || c.MemTableBytes > 1<<30 {
		faults = append(faults, fmt.Sprintf("a memtable of %d bytes is not between 64 KiB and 1 GiB", c.MemTableBytes))
	}
	if c.RefuseFree < 0 || c.RefuseFree >= 1 {
		faults = append(faults, fmt.Sprintf("the free share %v below which writes are rejected is not between 0 and 1", c.RefuseFree))
	}
	if len(faults) > 0 {
		return rhumb.E("storage.Config", rhumb.InvalidArgument, strings.Join(faults, "; "))
	}
	return nil
}

// fillDefaults validates the configuration and sets the defaults.
func (c *Config) fillDefaults() error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	// The path is made absolute here, before two paths of one directory could be compared.
	c.Dir = absolutePath(c.FS, c.Dir)
	if c.MemTableBytes == 0 {
		c.MemTableBytes, c.memTableDefaulted = memTableDefault, true
	}
	c.NamesBytes = cmp.Or(c.NamesBytes, namesBytesDefault)
	c.RowsBytes = cmp.Or(c.RowsBytes, rowsBytesDefault)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FatalHandler == nil {
		c.FatalHandler = exitProcess
	}
	if c.Misuse == nil {
		log := c.Logger
		c.Misuse = func(what string) { log.Error("an invariant of the store is broken", "what", what) }
	}
	if c.DiskFree == nil {
		// Pebble's call reports the space that an unprivileged user may fill, which is what counts.
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

// Identity is the content of a STORE file that identifies its store.
type Identity struct {
	// Cluster and Node are zero until SetIdentity is called.
	Cluster rhumb.ClusterID
	Node    rhumb.NodeID
	// Store is drawn at random when the store is created. All stores of an engine report the id of
	// the first one, which identifies the node.
	Store rhumb.UUID
	// Boot counts how often the store was opened, including this time.
	Boot rhumb.BootSeq
	// Fresh is set if this Open created the store.
	Fresh bool
}

// NodeIdentity returns the identity under which the node registers.
func (i Identity) NodeIdentity() rhumb.NodeIdentity {
	return rhumb.NodeIdentity{Node: i.Node, Store: i.Store, Boot: i.Boot}
}
