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
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/keys"
)

// PebbleOptions are the options of the database below a store.
type PebbleOptions = pebble.Options

const (
	lockName  = "LOCK"
	ownerName = "OWNER"
	dataName  = "data"
)

// Keys of SpaceStore.
const (
	localStore = "store" // the store id: ties the database to its STORE file
	localBoot  = "boot"  // never smaller than the boot sequence in the STORE file
	localHLC   = "hlc"
)

// Store is one disk: one Pebble database with a STORE file that says whose it is.
type Store struct {
	cfg     Config
	log     *slog.Logger
	fs      *logFS
	lock    io.Closer
	db      *pebble.DB
	metrics metrics
	sealer  *sealer

	mu     sync.RWMutex // guards the two below
	ranges map[rhumb.RangeID]*rangeState
	header header
	fresh  bool
	// emptied is set while the database that opens takes the place of a damaged one.
	emptied bool

	damages damages
	// synced is what the SYNCED file said when the store was opened, and lengths the file since.
	synced  syncedState
	lengths *syncedFile

	manifestMu sync.Mutex   // guards manifests
	manifests  []sealedFile // those that the seal of the running store lists: the current one, last, and the one before

	diskMu sync.Mutex // guards disk
	disk   disk

	closeMu sync.RWMutex // guards closed; held for reading by those who may come after Close
	closed  bool
}

// Open opens the store in cfg.Dir, or makes one when the directory is empty or does not exist. It fails with
// Unavailable when another process owns the directory, Incompatible when a newer binary wrote it, and Corrupt when its
// checkFiles do not fit together.
func Open(cfg Config) (*Store, error) {
	e, err := OpenEngine([]string{cfg.Dir}, cfg)
	if err != nil {
		return nil, err
	}
	return e.stores[0], nil
}

// newStore takes the directory of a store for this process.
func newStore(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, log: cfg.Logger, ranges: map[rhumb.RangeID]*rangeState{}, metrics: newMetrics(cfg.Dir)}
	s.fs = newLogFS(cfg.FS, s.syncTook)
	return s, s.ownDir()
}

// openFiles opens what is in the directory that the store owns. h is the store's header, and lost is set when the operator gave
// up what the directory held.
func (s *Store) openFiles(h header, lost bool) error {
	s.header = h
	s.fresh = h.boot == 0
	if err := s.loadDamage(); err != nil {
		return err
	}
	if lost {
		f := Fault{s.cfg.Dir, -1, fmt.Sprintf("store %d of the node was lost, and given up by the operator", h.index+1)}
		s.emptied = true
		if err := s.addDamage(Damage{Fault: f}, true); err != nil {
			return err
		}
	}
	if err := s.recoverFiles(); err != nil {
		return err
	}
	if err := s.unseal(); err != nil {
		return err
	}
	if err := s.openOrEmpty(); err != nil {
		return err
	}
	err := s.beginOrClose()
	if f := (*faultError)(nil); errors.As(err, &f) && rhumb.KindOf(err) == rhumb.Corrupt {
		// Which ranges there are cannot be read: nothing of the database can be used.
		if err = s.startEmpty(f.fault); err == nil {
			err = s.beginOrClose()
		}
	}
	return err
}

// beginOrClose is begin, and closes the database when that fails.
func (s *Store) beginOrClose() error {
	err := s.beginBoot()
	if err != nil {
		err = errors.Join(err, s.db.Close(), s.lengths.close())
		s.db = nil
	}
	return err
}

// ownDirs takes the directory for this process.
func (s *Store) ownDir() error {
	const op rhumb.Op = "storage.Open"
	dir := s.cfg.Dir
	if err := makeDir(s.fs, dir); err != nil {
		return accessError(op, dir, err)
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(dir, lockName))
	if err != nil {
		return lockError(op, dir, s.describeOwner(), err)
	}
	s.lock = lock
	if err := s.prepareDisk(); err != nil {
		return err
	}
	f, err := s.fs.Create(s.fs.PathJoin(dir, ownerName), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		err = errors.Join(err, f.Close())
	}
	return ioError(op, dir, err)
}

// describeOwner names the process that holds the directory, as far as that is known.
func (s *Store) describeOwner() string {
	b, err := readFile(s.fs, s.fs.PathJoin(s.cfg.Dir, ownerName))
	if err != nil || len(b) == 0 {
		return ""
	}
	return " (pid " + strings.TrimSpace(string(b)) + ")"
}

func (s *Store) dataDir() string { return s.fs.PathJoin(s.cfg.Dir, dataName) }

func (s *Store) openDatabase() error {
	const op rhumb.Op = "storage.Open"
	lengths, err := openSynced(s.fs, s.cfg.Dir, s.synced, s.lengthFailed)
	if err != nil {
		return err
	}
	s.lengths, s.fs.lengths, s.fs.created = lengths, lengths, s.watchManifest
	s.fitMemTable()
	o := s.pebbleOptions()
	o.ErrorIfNotExists = !s.fresh && !s.emptied
	s.sealer = newSealer(s)
	db, err := pebble.Open(s.dataDir(), o)
	if err == nil {
		s.db = db
		if db.Metrics().WAL.Files == 1 {
			// What the older logs held was flushed. They may come back after a power loss, with an end that was torn.
			err = ioError(op, s.cfg.Dir, lengths.onlyNewest())
		}
		if err != nil {
			err = errors.Join(err, db.Close(), lengths.close())
			s.db = nil
		}
		return err
	}
	defer func() { _ = lengths.close() }()
	switch {
	case strings.Contains(err.Error(), "format major version"):
		return rhumb.Ef(op, rhumb.Incompatible, "%s: %v; use the binary that wrote it, or a newer one", s.cfg.Dir, err)
	}
	// What Pebble refuses to open for any other reason than an error of the operating system is damage.
	if errno, ok := errors.AsType[syscall.Errno](err); ok && errno != syscall.ENOENT {
		return ioError(op, s.cfg.Dir, err)
	}
	return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{faultOf(s.dataDir(), err)}}
}

// lengthFailed notes that a synced length was not written.
func (s *Store) lengthFailed(err error) {
	s.metrics.lengthFailures.Inc()
	s.log.Warn("the synced length of the log was not put on record, the older one stands", "store", s.cfg.Dir, "err", err)
}

// beginBoot checks that the database belongs to the STORE file, counts the boot, and reads the ranges.
func (s *Store) beginBoot() error {
	const op rhumb.Op = "storage.Open"
	local := s.Local(SpaceStore)
	id, ok, err := local.Get([]byte(localStore))
	if err != nil {
		return err
	}
	if !ok && !s.fresh && !s.Short() {
		// Pebble takes a damaged record of a manifest for its end. The seal notices, unless the manifest grew just before.
		f := Fault{s.dataDir(), -1, "the database has lost the id of its store, and so what came after it"}
		return &rhumb.Error{Op: op, Kind: rhumb.Corrupt, Err: &faultError{f}}
	}
	if ok && string(id) != string(s.header.store[:]) {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the database belongs to store %x, the STORE file to %s; they were copied apart", s.cfg.Dir, id, s.header.store)
	}
	if !ok {
		if err := local.Set([]byte(localStore), s.header.store[:]); err != nil {
			return err
		}
	}
	if err := s.countBoot(op, 0); err != nil {
		return err
	}
	if err := s.loadAll(op); err != nil {
		return err
	}
	if s.fresh || s.emptied {
		// Pebble begins the first log of a database in an old format, whose chunks promise nothing.
		if err := s.Flush(); err != nil {
			return err
		}
	}
	s.sealer.start()
	return nil
}

// countBoot increments the boot sequence, to least if that is more: first in the database, then in the STORE file. A
// checkDatabase that is behind the file has lost what it had made durable.
func (s *Store) countBoot(op rhumb.Op, least rhumb.BootSeq) error {
	local := s.Local(SpaceStore)
	stored, ok, err := local.Get([]byte(localBoot))
	if err != nil {
		return err
	}
	var boot uint64
	if ok && len(stored) == 8 {
		boot = binary.BigEndian.Uint64(stored)
	}
	if boot < uint64(s.header.boot) {
		if !s.Short() {
			f := Fault{s.dataDir(), -1, fmt.Sprintf("the database is of boot %d, the STORE file of boot %d: the database was rolled back, or has lost its end", boot, s.header.boot)}
			if err := s.addDamage(Damage{Fault: f}, true); err != nil {
				return err
			}
		}
		boot = uint64(s.header.boot)
	}
	boot = max(boot+1, uint64(least))
	if err := local.Set([]byte(localBoot), encodeWords(boot)); err != nil {
		return err
	}
	s.mu.Lock()
	s.header.boot = rhumb.BootSeq(boot)
	h := s.header
	s.mu.Unlock()
	return writeHeader(s.fs, s.cfg.Dir, &h)
}

// Close releases the directory. Batches must have been synced or dropped before. A closed store is sealed: the next Open
// checks that no file was cut or changed since.
func (s *Store) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.db == nil { // it did not open
		return s.lock.Close()
	}
	s.sealer.stop()
	damageErr := s.placeDamage(false) // what was met last; to read the ranges would hold up the stop
	logs := int(s.db.Metrics().WAL.Files)
	err := s.dbError("storage.Store.Close", s.db.Close())
	err = errors.Join(err, damageErr, s.lengths.close())
	if err == nil {
		err = s.sealClean(logs)
	}
	return errors.Join(err, s.lock.Close())
}

// Flush writes what is in memory into table files. The log makes it durable in any case.
func (s *Store) Flush() error { return s.dbError("storage.Store.Flush", s.db.Flush()) }

// Compact rewrites the tables of one range, so that what was collected takes no room any more.
func (s *Store) Compact(id rhumb.RangeID) error {
	span := keys.RangeSpan(id)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return s.dbError("storage.Store.Compact", s.db.Compact(context.Background(), span.Lower, span.Upper, false))
}

// Dir gives the directory of the store.
func (s *Store) Dir() string { return s.cfg.Dir }

// Identity tells whose store this is.
func (s *Store) Identity() Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Identity{Cluster: s.header.cluster, Node: s.header.node, Store: s.header.engine, Boot: s.header.boot, Fresh: s.fresh}
}

// SetIdentity says once and for ever to which cluster and node the store belongs. Repeating it is no error; another
// cluster or node is refused with WrongCluster.
func (s *Store) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	const op rhumb.Op = "storage.Store.SetIdentity"
	if cluster.IsZero() || node == rhumb.NoNode {
		return rhumb.E(op, rhumb.InvalidArgument, "cluster and node must not be zero")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.header
	switch {
	case h.cluster == cluster && h.node == node:
		return nil
	case !h.cluster.IsZero() && (h.cluster != cluster || h.node != node):
		return rhumb.Ef(op, rhumb.WrongCluster, "%s belongs to node %s of cluster %s, not to node %s of cluster %s", s.cfg.Dir, h.node, h.cluster, node, cluster)
	}
	h.cluster, h.node = cluster, node
	if err := writeHeader(s.fs, s.cfg.Dir, &h); err != nil {
		return rhumb.Wrap(op, err)
	}
	s.header = h
	return nil
}

// BumpBoot increments the boot sequence in place, to least if that is more: for a live node that was fenced and registers
// again (ruling 11), and for one whose lives metadata has counted further than its disk.
func (s *Store) BumpBoot(least rhumb.BootSeq) (rhumb.BootSeq, error) {
	if err := s.countBoot("storage.Store.BumpBoot", least); err != nil {
		return 0, err
	}
	return s.Identity().Boot, nil
}

// SyncOutstanding is how long the log write or sync that is under way has lasted so far; 0 when none is. Liveness
// follows the data path: a node whose disk does not answer must not claim to be alive.
func (s *Store) SyncOutstanding() time.Duration { return s.fs.outstanding() }

// Ranges gives the state of every range in the store, sorted. A closed store has none to give and fails.
func (s *Store) Ranges() ([]RangeState, error) {
	s.closeMu.RLock()
	defer s.closeMu.RUnlock()
	if s.closed {
		return nil, rhumb.Ef("storage.Store.Ranges", rhumb.Unavailable, "%s is closed", s.cfg.Dir)
	}
	s.mu.RLock()
	out := make([]RangeState, 0, len(s.ranges))
	for _, rs := range s.ranges {
		out = append(out, rs.snapshot())
	}
	s.mu.RUnlock()
	slices.SortFunc(out, func(a, b RangeState) int { return a.Range.Compare(b.Range) })
	return out, nil
}

// absolutePath makes a path independent of how it was written, so that one process cannot own a directory twice.
func absolutePath(fsys vfs.FS, dir string) string {
	if vfs.Root(fsys) != vfs.Default {
		return dir
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
