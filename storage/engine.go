package storage

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
)

// Engine is the stores of one node, with its ranges spread over them. The first store holds what belongs to the node
// as a whole.
type Engine struct{}

// OpenEngine opens one store per directory. Directories that were an engine before must all be there; new ones may join
// them. cfg.Dir is not used.
func OpenEngine(dirs []string, cfg Config) (*Engine, error) { panic("not written yet") }

// Close closes all stores.
func (e *Engine) Close() error { panic("not written yet") }

// Stores gives all stores, in the order of their directories.
func (e *Engine) Stores() []*Store { panic("not written yet") }

// Store gives the store that holds a range. A range that none holds is assigned to the one with the fewest.
func (e *Engine) Store(id rhumb.RangeID) *Store { panic("not written yet") }

// Ranges gives the state of every range of the node, sorted. It reads the stores side by side.
func (e *Engine) Ranges() ([]RangeState, error) { panic("not written yet") }

// Identity is that of the first store.
func (e *Engine) Identity() Identity { panic("not written yet") }

// SetIdentity is Store.SetIdentity for all stores.
func (e *Engine) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	panic("not written yet")
}

// BumpBoot is Store.BumpBoot for all stores; it gives the first one's.
func (e *Engine) BumpBoot() (rhumb.BootSeq, error) { panic("not written yet") }

// Local gives a space of the first store.
func (e *Engine) Local(space rhumb.Slot) *Local { panic("not written yet") }

// HLCCeiling gives the persisted ceiling of the hybrid logical clock; 0 when none was set.
func (e *Engine) HLCCeiling() (rhumb.Timestamp, error) { panic("not written yet") }

// SetHLCCeiling persists a ceiling and waits until it is durable: no timestamp above it was or may be issued before. A
// ceiling below the persisted one is ignored.
func (e *Engine) SetHLCCeiling(ceiling rhumb.Timestamp) error { panic("not written yet") }

// SyncOutstanding is the greatest of the stores'.
func (e *Engine) SyncOutstanding() time.Duration { panic("not written yet") }

// Collectors gives the metrics of all stores.
func (e *Engine) Collectors() []prometheus.Collector { panic("not written yet") }
