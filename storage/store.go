package storage

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
)

// PebbleOptions are the options of the database below a store.
type PebbleOptions = pebble.Options

// Store is one disk: one Pebble database with a STORE file that says whose it is.
type Store struct{}

// Open opens the store in cfg.Dir, or makes one when the directory is empty or does not exist. It fails with
// Unavailable when another process owns the directory, Incompatible when a newer binary wrote it, and Corrupt when its
// files do not fit together.
func Open(cfg Config) (*Store, error) { panic("not written yet") }

// Close releases the directory. Batches must have been synced or dropped before.
func (s *Store) Close() error { panic("not written yet") }

// Dir gives the directory of the store.
func (s *Store) Dir() string { panic("not written yet") }

// Identity tells whose store this is.
func (s *Store) Identity() Identity { panic("not written yet") }

// SetIdentity says once and for ever to which cluster and node the store belongs. Repeating it is no error; another
// cluster or node is refused with WrongCluster.
func (s *Store) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	panic("not written yet")
}

// BumpBoot increments the boot sequence in place, for a live node that was fenced and registers again (ruling 11).
func (s *Store) BumpBoot() (rhumb.BootSeq, error) { panic("not written yet") }

// Writable refuses with DiskFull when the disk has less free space than Config.RefuseFree. Reads and collection go on.
func (s *Store) Writable() error { panic("not written yet") }

// SyncOutstanding is how long the log write or sync that is under way has lasted so far; 0 when none is. Liveness
// follows the data path: a node whose disk does not answer must not claim to be alive.
func (s *Store) SyncOutstanding() time.Duration { panic("not written yet") }

// Ranges gives the state of every range in the store, sorted.
func (s *Store) Ranges() ([]RangeState, error) { panic("not written yet") }

// State gives the state of a range as the last applied batch left it.
func (s *Store) State(id rhumb.RangeID) (RangeState, bool) { panic("not written yet") }

// Size gives the size of a range, and ok false when the store does not hold it.
func (s *Store) Size(id rhumb.RangeID) (size RangeSize, ok bool) { panic("not written yet") }

// Usage is what a store takes on its disk, in bytes.
type Usage struct {
	// Used is what the store's files take, Free and Total what the disk has.
	Used, Free, Total uint64
}

// Usage tells how full the disk is.
func (s *Store) Usage() (Usage, error) { panic("not written yet") }

// Collectors gives the store's metrics, for registration.
func (s *Store) Collectors() []prometheus.Collector { panic("not written yet") }
