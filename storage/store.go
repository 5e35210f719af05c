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

	diskMu sync.Mutex // guards disk
	disk   disk

	closeMu sync.RWMutex // guards closed; held for reading by those who may come after Close
	closed  bool
}

// placement is a store's place in its engine.
type placement struct {
	index, count int
	engine       rhumb.UUID // zero for the first store of a new engine
}

// Open opens the store in cfg.Dir, or makes one when the directory is empty or does not exist. It fails with
// Unavailable when another process owns the directory, Incompatible when a newer binary wrote it, and Corrupt when its
// files do not fit together.
func Open(cfg Config) (*Store, error) {
	cache := cfg.newCache(1)
	defer cache.Unref()
	cfg.cache = cache
	return open(cfg, placement{count: 1})
}

func open(cfg Config, place placement) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, log: cfg.Logger, ranges: map[rhumb.RangeID]*rangeState{}, metrics: newMetrics(cfg.Dir)}
	s.fs = newLogFS(cfg.FS, s.syncTook)
	if err := s.own(); err != nil {
		return nil, err
	}
	if err := s.load(place); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	return s, nil
}

// load reads what is in the directory that the store owns.
func (s *Store) load(place placement) error {
	if err := s.loadHeader(place); err != nil {
		return err
	}
	if err := s.checkSeal(); err != nil {
		return err
	}
	if err := s.openDatabase(); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// own takes the directory for this process.
func (s *Store) own() error {
	const op rhumb.Op = "storage.Open"
	dir := s.cfg.Dir
	if err := makeDir(s.fs, dir); err != nil {
		return accessError(op, dir, err)
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(dir, lockName))
	if err != nil {
		return lockError(op, dir, s.owner(), err)
	}
	s.lock = lock
	f, err := s.fs.Create(s.fs.PathJoin(dir, ownerName), vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return errors.Join(ioError(op, dir, err), lock.Close())
	}
	return nil
}

// owner names the process that holds the directory, as far as that is known.
func (s *Store) owner() string {
	b, err := readFile(s.fs, s.fs.PathJoin(s.cfg.Dir, ownerName))
	if err != nil || len(b) == 0 {
		return ""
	}
	return " (pid " + strings.TrimSpace(string(b)) + ")"
}

// loadHeader reads the STORE file, or makes one in an empty directory.
func (s *Store) loadHeader(place placement) error {
	const op rhumb.Op = "storage.Open"
	h, found, err := readHeader(s.fs, s.cfg.Dir)
	switch {
	case err != nil:
		return err
	case found && h.pebbleFormat > uint32(pebbleFormat):
		return rhumb.Ef(op, rhumb.Incompatible, "%s: database format %d, this binary writes %d; use the binary that wrote it, or a newer one", s.cfg.Dir, h.pebbleFormat, pebbleFormat)
	case found:
		s.header = h
		s.fresh = h.boot == 0
		return s.checkPlacement(place)
	}
	if names, err := s.fs.List(s.dataDir()); err == nil && len(names) > 0 {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the STORE file is missing and there is data; restore the file, or empty the directory and let the node rejoin", s.cfg.Dir)
	}
	s.fresh = true
	s.header = header{pebbleFormat: uint32(pebbleFormat), store: newUUID(), engine: place.engine, index: uint16(place.index), count: uint16(place.count)}
	if place.engine.IsZero() {
		s.header.engine = s.header.store
	}
	return writeHeader(s.fs, s.cfg.Dir, &s.header)
}

func (s *Store) checkPlacement(place placement) error {
	const op rhumb.Op = "storage.OpenEngine"
	h := &s.header
	switch {
	case int(h.count) > place.count:
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s is one of %d directories of a node, %d are given; give all of them", s.cfg.Dir, h.count, place.count)
	case int(h.index) != place.index:
		return rhumb.Ef(op, rhumb.InvalidArgument, "%s is number %d of the node's directories and is given as number %d; keep their order", s.cfg.Dir, h.index+1, place.index+1)
	case !place.engine.IsZero() && h.engine != place.engine:
		return rhumb.Ef(op, rhumb.WrongCluster, "%s belongs to another node than the directories before it", s.cfg.Dir)
	}
	return nil
}

func (s *Store) dataDir() string { return s.fs.PathJoin(s.cfg.Dir, dataName) }

func (s *Store) openDatabase() error {
	const op rhumb.Op = "storage.Open"
	o := s.options()
	o.ErrorIfNotExists = !s.fresh
	s.sealer = newSealer(s)
	db, err := pebble.Open(s.dataDir(), o)
	switch {
	case err == nil:
		s.db = db
		return nil
	case strings.Contains(err.Error(), "format major version"):
		return rhumb.Ef(op, rhumb.Incompatible, "%s: %v; use the binary that wrote it, or a newer one", s.cfg.Dir, err)
	}
	return s.openFault(op, err)
}

// openFault tells damage from a disk that does not answer. What Pebble refuses to open for any other reason than an
// error of the operating system is damage.
func (s *Store) openFault(op rhumb.Op, err error) error {
	errno, isErrno := errors.AsType[syscall.Errno](err)
	if isErrno && errno != syscall.ENOENT {
		return ioError(op, s.cfg.Dir, err)
	}
	f := faultOf(s.dataDir(), err)
	return rhumb.Ef(op, rhumb.Corrupt, "%s; restore the directory, or empty it and let the node rejoin", f)
}

// begin checks that the database belongs to the STORE file, counts the boot, and reads the ranges.
func (s *Store) begin() error {
	const op rhumb.Op = "storage.Open"
	local := s.Local(SpaceStore)
	id, ok, err := local.Get([]byte(localStore))
	if err != nil {
		return err
	}
	if ok && string(id) != string(s.header.store[:]) || !ok && !s.fresh {
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the database belongs to store %x, the STORE file to %s; they were copied apart", s.cfg.Dir, id, s.header.store)
	}
	if !ok {
		if err := local.Set([]byte(localStore), s.header.store[:]); err != nil {
			return err
		}
	}
	if err := s.countBoot(op); err != nil {
		return err
	}
	if err := s.loadRanges(op); err != nil {
		return err
	}
	s.sealer.start()
	return nil
}

// countBoot increments the boot sequence: first in the database, then in the STORE file. A database that is behind the
// file has lost what it had made durable.
func (s *Store) countBoot(op rhumb.Op) error {
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
		return rhumb.Ef(op, rhumb.Corrupt, "%s: the database is of boot %d, the STORE file of boot %d: the database was rolled back or has lost its end; restore it, or empty the directory and let the node rejoin", s.cfg.Dir, boot, s.header.boot)
	}
	if err := local.Set([]byte(localBoot), encodeWords(boot+1)); err != nil {
		return err
	}
	s.mu.Lock()
	s.header.boot = rhumb.BootSeq(boot + 1)
	if s.cfg.NoSync {
		s.header.flags |= flagLossy
	}
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
	s.sealer.stop()
	logs := int(s.db.Metrics().WAL.Files)
	err := s.fault("storage.Store.Close", s.db.Close())
	if err == nil {
		err = s.sealer.seal(true, logs)
	}
	return errors.Join(err, s.lock.Close())
}

// Flush writes what is in memory into table files. The log makes it durable in any case.
func (s *Store) Flush() error { return s.fault("storage.Store.Flush", s.db.Flush()) }

// Compact rewrites the tables of one range, so that what was collected takes no room any more.
func (s *Store) Compact(id rhumb.RangeID) error {
	span := keys.RangeSpan(id)
	if span.Upper == nil {
		span.Upper = keyspaceEnd
	}
	return s.fault("storage.Store.Compact", s.db.Compact(context.Background(), span.Lower, span.Upper, false))
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

// BumpBoot increments the boot sequence in place, for a live node that was fenced and registers again (ruling 11).
func (s *Store) BumpBoot() (rhumb.BootSeq, error) {
	if err := s.countBoot("storage.Store.BumpBoot"); err != nil {
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

// absolute makes a path independent of how it was written, so that one process cannot own a directory twice.
func absolute(fsys vfs.FS, dir string) string {
	if vfs.Root(fsys) != vfs.Default {
		return dir
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}
