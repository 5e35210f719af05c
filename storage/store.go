package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
)

// PebbleOptions are the options of a store's database. The alias lets tests set them without
// importing Pebble.
type PebbleOptions = pebble.Options

const (
	lockName  = "LOCK"
	ownerName = "OWNER"
	dataName  = "data"
)

// Keys of SpaceStore. They are stored, so a name is never reused.
const (
	localStore = "store" // the store id, which ties the database to its STORE file
	localBoot  = "boot"  // at least the boot sequence in the STORE file
	localHLC   = "hlc"   // the durable ceiling of the node's clock
	localTLS   = "tls"   // present once the node has served with TLS
)

// Store is one disk: a directory with a STORE file that identifies it and a Pebble database.
//
// Invariants: cfg, log, fs and metrics are set by newStore and never change. lock is held from
// newStore until Close. db, sealer and lengths are set while the store opens, before any other
// goroutine knows the store. The store is closed exactly once, and db is not used after that.
type Store struct {
	cfg     Config
	log     *slog.Logger
	fs      *logFS
	lock    io.Closer
	db      *pebble.DB
	metrics metrics
	sealer  *sealer

	// headerMu serializes changes of the STORE file. It is held from reading the header until the
	// changed one is durable, so that no change writes a header without the change before it. mu is
	// not enough for that: readers of ranges must not wait for the disk.
	headerMu sync.Mutex

	mu     sync.RWMutex // guards ranges, wide, header and fresh
	ranges map[rhumb.RangeID]*rangeState
	wide   wideRanges // those of ranges with several slots
	header header
	fresh  bool
	// emptied is set if this Open replaced a damaged database by an empty one.
	emptied bool

	names   nameCache
	rows    rowCache
	damages damages
	opening Opening // written only while the store opens
	// synced is the content of the SYNCED file when the store was opened, corrected by what
	// recovery cut off. lengths is the file that the open store writes.
	synced  syncedState
	lengths *syncedFile
	// own is the log of the store, or nil if its database has one, and kept holds the keys of it that the database lacks. They are set while the store opens.
	// walSync is own from the end of the replay on, for the goroutines of the database, which exist before that.
	own     *storeLog
	kept    *keptTable
	walSync atomic.Pointer[storeLog]
	// ahead, in a store that Verify reads, is the database with the records of the log that it lacks, and nil in any other store.
	ahead pebble.Reader
	// flushFailed has a signal after a flush failed. Pebble repeats a flush until it succeeds.
	flushFailed chan struct{}

	manifestMu sync.Mutex // guards manifests
	// manifests are the manifests in the seal of the running store: the current one last, and
	// before it the previous one while Pebble may still go back to it.
	manifests []sealedFile

	refusals    refusals
	readErrorAt atomic.Int64 // when a refused read was reported last, in nanoseconds of Unix time

	diskMu sync.Mutex // guards disk
	disk   disk

	closeMu sync.RWMutex // guards closed; callers that may run after Close hold it for reading
	closed  bool
}

// Open opens the store in cfg.Dir, or creates one if the directory is empty or does not exist. Open
// fails with Unavailable if another process owns the directory, with Incompatible if a newer binary
// wrote it, and with Corrupt if the directory cannot be identified or was once opened without
// syncs. Damage in the database does not make Open fail: see Damage and Short.
func Open(cfg Config) (*Store, error) {
	e, err := OpenEngine([]string{cfg.Dir}, cfg)
	if err != nil {
		return nil, err
	}
	return e.stores[0], nil
}

// newStore returns a store whose directory belongs to this process. The store is also returned with
// an error, because the caller must release a lock that was taken before the error.
func newStore(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, log: cfg.Logger, ranges: map[rhumb.RangeID]*rangeState{}, metrics: newMetrics(cfg.Dir), flushFailed: make(chan struct{}, 1)}
	s.rows.hits, s.rows.misses, s.rows.evictions = s.metrics.rowHits, s.metrics.rowMisses, s.metrics.rowEvictions
	if cfg.ReadFaults == nil {
		s.rows.shardMax = cfg.RowsBytes / rowShards
	}
	s.names = nameCache{max: cfg.NamesBytes, reads: s.metrics.nameReads, walks: s.metrics.nameWalks, evictions: s.metrics.nameEvictions}
	// The log's file system calls the one of reads, so that each handles the files that the other one passes on.
	s.fs = newLogFS(&readFS{FS: cfg.FS, faults: cfg.ReadFaults, refused: s.readRefused}, s.syncTook)
	return s, s.ownDir()
}

// openFiles opens the database in the directory that the store owns. h is the store's header, and
// lost is set if the operator abandoned the data of the directory.
//
// The order of the steps matters. Damage that is known is read first, so that later steps add to
// it. Files are examined while the seal still describes the last stop, and the seal is marked as
// running before the database changes a file.
func (s *Store) openFiles(h header, lost bool) error {
	s.header = h
	// The first start writes the header before it creates the database. Boot 0 means that no start
	// has finished, so a missing database is not damage.
	s.fresh = h.boot == 0
	if err := s.loadDamage(); err != nil {
		return err
	}
	if lost {
		// The mark is durable before the empty database exists. If it were not, a crash in between
		// would leave an empty store that looks whole.
		f := Fault{s.cfg.Dir, -1, fmt.Sprintf("the operator gave up store %d of the node as lost", h.index+1)}
		s.emptied = true
		if err := s.addDamage(Damage{Fault: f}, true); err != nil {
			return err
		}
	}
	if err := timePart(&s.opening.Check, s.recoverFiles); err != nil {
		return err
	}
	if err := s.unseal(); err != nil {
		return err
	}
	if err := timePart(&s.opening.Replay, s.openOrEmpty); err != nil {
		return err
	}
	err := timePart(&s.opening.Load, s.beginOrClose)
	if f := (*faultError)(nil); errors.As(err, &f) && rhumb.KindOf(err) == rhumb.Corrupt {
		// The list of ranges cannot be read, so no range of this database can be trusted to be
		// absent. The store starts empty and short, and the node's peers have the data.
		if err = s.startEmpty(f.fault); err == nil {
			err = s.beginOrClose()
		}
	}
	return err
}

// beginOrClose calls beginBoot and closes the database if that fails, so that the caller can set
// the directory aside.
func (s *Store) beginOrClose() error {
	err := s.beginBoot()
	if err != nil {
		err = errors.Join(err, s.abandonLog(), s.db.Close(), s.lengths.close())
		s.db = nil
	}
	return err
}

// ownDir takes the directory for this process.
func (s *Store) ownDir() error {
	const op rhumb.Op = "storage.Open"
	dir := s.cfg.Dir
	if err := makeDir(s.fs, dir); err != nil {
		return accessError(op, dir, err)
	}
	// The lock comes before any change. Two processes that share a directory would each delete
	// files that the other one's manifest lists.
	lock, err := s.fs.Lock(s.fs.PathJoin(dir, lockName))
	if err != nil {
		return lockError(op, dir, s.describeOwner(), err)
	}
	s.lock = lock
	if err := s.prepareDisk(); err != nil {
		return err
	}
	// The process id only makes the other process's error message helpful. A stale one does no
	// harm, because the lock decides.
	f, err := s.fs.Create(s.fs.PathJoin(dir, ownerName), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		err = errors.Join(err, f.Close())
	}
	return ioError(op, dir, err)
}

// describeOwner returns the process id of the directory's owner for an error message, or "" if it
// is not known.
func (s *Store) describeOwner() string {
	b, err := readFile(s.fs, s.fs.PathJoin(s.cfg.Dir, ownerName))
	if err != nil || len(b) == 0 {
		return ""
	}
	return " (pid " + strings.TrimSpace(string(b)) + ")"
}

func (s *Store) dataDir() string { return s.fs.PathJoin(s.cfg.Dir, dataName) }

// openDatabase opens the Pebble database and the SYNCED file. It returns an error with a faultError
// inside if the database is damaged.
func (s *Store) openDatabase() error {
	const op rhumb.Op = "storage.Open"
	s.fitMemTable()
	own, err := s.prepareLog()
	if err != nil {
		return err
	}
	lengths, err := openSynced(s.fs, s.cfg.Dir, s.synced, s.lengthFailed)
	if err != nil {
		return err
	}
	// From here on the file system records syncs of logs and of manifests. It must do so before
	// pebble.Open, which already writes a new log and may write a new manifest.
	s.lengths, s.fs.lengths, s.fs.created = lengths, lengths, s.watchManifest
	o := s.pebbleOptions()
	if own {
		// Pebble still creates a file for its log, which stays empty: it needs no record. It applies the logs that it finds, as at every start.
		s.fs.lengths = nil
		o.DisableWAL = true
		o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	}
	// Pebble would create an empty database in the place of one that has vanished.
	o.ErrorIfNotExists = !s.fresh && !s.emptied
	s.sealer = newSealer(s)
	db, err := pebble.Open(s.dataDir(), o)
	if err == nil && own {
		s.db = db
		if err := s.openLog(); err != nil {
			s.db = nil
			return errors.Join(err, s.abandonLog(), db.Close(), lengths.close())
		}
		return nil
	}
	if err == nil {
		s.db = db
		// Pebble flushed the content of the older logs when it replayed them. It deletes or
		// recycles them later, and a power loss may undo that deletion and leave a log with a torn
		// end. SYNCED therefore records now that these logs are not needed, or the next start would
		// report their torn ends as damage.
		if db.Metrics().WAL.Files == 1 {
			err = ioError(op, s.cfg.Dir, lengths.onlyNewest())
		}
		if err != nil {
			err = errors.Join(err, db.Close(), lengths.close())
			s.db = nil
		}
		return err
	}
	defer func() { _ = lengths.close() }()
	// Pebble has no error value for this case.
	if strings.Contains(err.Error(), "format major version") {
		return rhumb.Ef(op, rhumb.Incompatible, "%s: %v; use the binary that wrote it, or a newer one", s.cfg.Dir, err)
	}
	// An error of the operating system says nothing about the data: the next start may succeed.
	// ENOENT is the exception, because a file that the manifest lists is missing. Any other reason
	// for which Pebble does not open a database is damage.
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != syscall.ENOENT {
		return ioError(op, s.cfg.Dir, err)
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{faultOf(s.dataDir(), err)}}
}

// lengthFailed records that a synced length could not be written. The store continues: the length
// on disk stays a lower bound, so the next start may take damage near the end of the log for an
// interrupted write, as it would without a SYNCED file.
func (s *Store) lengthFailed(err error) {
	s.metrics.lengthFailures.Inc()
	s.log.Warn("the synced length of the log was not recorded; the previous one remains valid", "store", s.cfg.Dir, "err", err)
}

// beginBoot checks that the database belongs to the STORE file, counts the boot, and loads the
// state of the ranges.
func (s *Store) beginBoot() error {
	const op rhumb.Op = "storage.Open"
	local := s.Local(SpaceStore)
	id, ok, err := local.Get([]byte(localStore))
	if err != nil {
		return err
	}
	if !ok && !s.fresh && !s.Short() {
		// Pebble takes a damaged record of a manifest for the manifest's end and opens what
		// precedes it. The seal notices that, except when the manifest grew just before the crash.
		// The store id is the first key that was ever written, so a database without it has lost
		// its contents.
		return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{*s.header.checkOwner(s.dataDir(), nil)}}
	}
	// The ids differ if data/ or the STORE file was copied from another directory. Neither then
	// says which ranges the node promised to hold.
	if f := s.header.checkOwner(s.cfg.Dir, id); ok && f != nil {
		return rhumb.E(op, rhumb.Corrupt, f.String())
	}
	// A new or emptied database gets the id before anything else.
	if !ok {
		if err := local.Set([]byte(localStore), s.header.store[:]); err != nil {
			return err
		}
	}
	if _, err := s.countBoot(op, 0); err != nil {
		return err
	}
	if err := s.loadAll(op); err != nil {
		return err
	}
	if err := s.cleanTransfers(op); err != nil {
		return err
	}
	if (s.fresh || s.emptied) && s.own == nil {
		// Pebble writes the first log of a new database in an older format, whose chunks hold no
		// synced length. A flush makes Pebble start a second log in the current format, before
		// anything is written that matters (decision 16).
		if err := s.Flush(); err != nil {
			return err
		}
	}
	s.sealer.start()
	return nil
}

// countBoot increments the boot sequence, to at least the given value. It writes the database
// before the STORE file: a crash in between leaves the database ahead, which is harmless. A
// database with a lower boot sequence than the STORE file has therefore lost durable writes, as a
// restored disk image has.
func (s *Store) countBoot(op rhumb.Op, least rhumb.BootSeq) (rhumb.BootSeq, error) {
	s.headerMu.Lock()
	defer s.headerMu.Unlock()
	local := s.Local(SpaceStore)
	stored, _, err := local.Get([]byte(localBoot))
	if err != nil {
		return 0, err
	}
	boot := decodeBoot(stored)
	if f := s.header.checkBoot(s.dataDir(), boot); f != nil {
		// A store that is short already has lost its boot sequence for a reason on record.
		if !s.Short() {
			if err := s.addDamage(Damage{Fault: *f}, true); err != nil {
				return 0, err
			}
		}
		boot = uint64(s.header.boot)
	}
	// The greater of both counts, so that no boot sequence is ever used twice.
	boot = max(boot+1, uint64(least))
	if err := local.Set([]byte(localBoot), encodeWords(boot)); err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.header.boot = rhumb.BootSeq(boot)
	h := s.header
	s.mu.Unlock()
	return h.boot, writeHeader(s.fs, s.cfg.Dir, &h)
}

// decodeBoot returns the boot sequence in the value of localBoot. A value of another form, or none, counts as 0.
func decodeBoot(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// checkBoot returns the fault of a database with a lower boot sequence than its STORE file, or nil. dir is the directory of
// the database.
func (h *header) checkBoot(dir string, boot uint64) *Fault {
	if boot >= uint64(h.boot) {
		return nil
	}
	return &Fault{dir, -1, fmt.Sprintf("the database has boot sequence %d, the STORE file %d: the database was rolled back, or has lost its end", boot, h.boot)}
}

// checkOwner returns the fault of a database that does not hold the id of its store, or that of another store, or nil. dir is
// the directory of the database.
func (h *header) checkOwner(dir string, id []byte) *Fault {
	switch {
	case id == nil:
		return &Fault{dir, -1, "the database lacks the id of its store, which is written first, so it has lost its contents"}
	case string(id) != string(h.store[:]):
		return &Fault{dir, -1, fmt.Sprintf("the database belongs to store %x, but the STORE file to store %s; they come from different directories. Restore the directory whole", id, h.store)}
	}
	return nil
}

// Close releases the directory. The caller has synced or dropped all batches. Close seals the
// store: it records the length and hash of each file, so that the next Open notices if one was cut
// or changed in the meantime.
func (s *Store) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.db == nil { // the store did not open
		return s.lock.Close()
	}
	// The sealer uses the database, so it stops first. Its last work is placing damage, which Close
	// finishes below.
	s.sealer.stop()
	// Damage that was met last is recorded now. exact is false because reading whole ranges would
	// delay the stop; all ranges that the table may touch count as damaged instead.
	damageErr := s.placeDamage(false)
	// The number of logs that hold data not in tables is known only while the database is open.
	logs, drained := int(s.db.Metrics().WAL.Files), false
	// A log of the store's own is flushed, so that the tables alone hold the stopped store.
	own := s.own != nil
	if own {
		// Pebble's log is empty.
		logs, drained = 0, s.own.drain()
	}
	err := s.dbError("storage.Store.Close", s.db.Close())
	if own {
		err = errors.Join(err, s.own.log.Close())
	}
	err = errors.Join(err, damageErr, s.lengths.close())
	// A seal is written only over files that were closed without an error. Without a clean seal the
	// next Open examines the logs as after a crash.
	if err == nil {
		err = s.sealClean(logs)
	}
	// A node that joined a cluster whose version is older may go back to the previous build.
	switch {
	case err != nil || !drained:
	case !s.header.cluster.IsZero() && s.header.flags&flagNodeLog == 0:
		err = s.takeLogBack()
	default:
		err = s.emptyLog()
	}
	// The lock goes last: the directory must not change owners before it is sealed.
	return errors.Join(err, s.lock.Close())
}

// Flush writes the memtables to table files. It is never needed for durability, which the log
// provides.
func (s *Store) Flush() error { return s.dbError("storage.Store.Flush", s.db.Flush()) }

// Compact rewrites the tables of one range, so that collected versions no longer use space. Pebble
// compacts in the background; tests and benchmarks call Compact to reach a known state.
func (s *Store) Compact(id rhumb.RangeID) error {
	span := s.spanOf(id)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return s.dbError("storage.Store.Compact", s.db.Compact(context.Background(), span.Lower, span.Upper, false))
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.cfg.Dir }

// Identity returns the identity in the STORE file.
func (s *Store) Identity() Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Identity{Cluster: s.header.cluster, Node: s.header.node, Store: s.header.engine, Boot: s.header.boot, Fresh: s.fresh}
}

// SetIdentity records the cluster and node that the store belongs to. They never change: repeating
// the same identity succeeds, and another one is rejected with WrongCluster.
func (s *Store) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	const op rhumb.Op = "storage.Store.SetIdentity"
	if cluster.IsZero() || node == rhumb.NoNode {
		return rhumb.E(op, rhumb.InvalidArgument, "cluster and node must not be zero")
	}
	s.headerMu.Lock()
	defer s.headerMu.Unlock()
	s.mu.RLock()
	h := s.header
	s.mu.RUnlock()
	switch {
	case h.cluster == cluster && h.node == node:
		return nil
	case !h.cluster.IsZero() && (h.cluster != cluster || h.node != node):
		// A node's acknowledgements and promises belong to its cluster. Under another number they
		// would count for a replica that never made them.
		return rhumb.Ef(op, rhumb.WrongCluster, "%s belongs to node %s of cluster %s, not to node %s of cluster %s; give the node its own directory", s.cfg.Dir, h.node, h.cluster, node, cluster)
	}
	// The file is replaced before the field changes: what Identity returns is durable.
	h.cluster, h.node = cluster, node
	if err := writeHeader(s.fs, s.cfg.Dir, &h); err != nil {
		return rhumb.Wrap(op, err)
	}
	s.mu.Lock()
	s.header = h
	s.mu.Unlock()
	return nil
}

// BumpBoot increments the boot sequence in place, to at least the given value, and returns it. No
// two calls return the same value. A live node that was fenced calls it before it registers again
// (docs/replication.md#rule-life), and so does a node for which metadata has counted more lives than its disk.
func (s *Store) BumpBoot(least rhumb.BootSeq) (rhumb.BootSeq, error) {
	return s.countBoot("storage.Store.BumpBoot", least)
}

// SyncOutstanding returns how long the log write or sync in progress has taken so far, or 0 if none
// is in progress. Liveness follows the data path: a node whose disk does not answer must not claim
// to be alive.
func (s *Store) SyncOutstanding() time.Duration { return s.fs.outstanding() }

// SyncLog makes all batches durable for which Sync has returned, deferred ones included (Batch.Defer). Other commits do not wait for
// it. A failure ends the process, as that of Batch.Sync does.
func (s *Store) SyncLog() error {
	s.closeMu.RLock()
	defer s.closeMu.RUnlock()
	// Close has synced it.
	if s.closed {
		return nil
	}
	if s.own != nil {
		return ioError("storage.Store.SyncLog", s.cfg.Dir, s.own.sync(s.own.log.Last()))
	}
	err := s.fs.syncLogs()
	if err != nil {
		logger{s.log, s.cfg.FatalHandler}.Fatalf("%s: the log could not be synced, so the process ends: %v", s.cfg.Dir, err)
	}
	return ioError("storage.Store.SyncLog", s.cfg.Dir, err)
}

// Ranges returns the state of every range in the store, in ascending order. It fails on a closed
// store.
func (s *Store) Ranges() ([]RangeState, error) {
	s.closeMu.RLock()
	defer s.closeMu.RUnlock()
	if s.closed {
		return nil, rhumb.Ef("storage.Store.Ranges", rhumb.Unavailable, "%s is closed", s.cfg.Dir)
	}
	s.mu.RLock()
	out := make([]RangeState, 0, len(s.ranges))
	for _, rs := range s.ranges {
		out = append(out, rs.copyState())
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b RangeState) int { return a.Range.Compare(b.Range) })
	return out, nil
}

// absolutePath makes a path independent of the current directory and of how it was written, so that
// one process cannot own a directory twice under two names. File systems in memory have no current
// directory.
func absolutePath(fsys vfs.FS, dir string) string {
	if vfs.Root(fsys) != vfs.Default {
		return dir
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
