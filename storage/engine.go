package storage

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rhumbdb/rhumb"
)

// Engine is the stores of one node, with its ranges spread over them. The first store holds what belongs to the node
// as a whole.
type Engine struct {
	stores []*Store

	mu    sync.RWMutex // guards place
	place map[rhumb.RangeID]*Store
}

// OpenEngine opens one store per directory. Directories that were an engine before must all be there, in their order;
// new ones may follow them. cfg.Dir is not used.
func OpenEngine(dirs []string, cfg Config) (_ *Engine, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	if len(dirs) == 0 || len(dirs) > StoresMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "%d directories are given, want 1 to %d", len(dirs), StoresMax)
	}
	cache := cfg.newCache(len(dirs))
	defer cache.Unref()
	cfg.cache = cache
	e := &Engine{stores: make([]*Store, len(dirs)), place: map[rhumb.RangeID]*Store{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	// The first store says which engine it is, so it comes before the rest.
	if err := e.open(0, dirs, cfg, rhumb.UUID{}); err != nil {
		return nil, err
	}
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i := 1; i < len(dirs); i++ {
		wg.Go(func() { errs[i] = e.open(i, dirs, cfg, e.stores[0].header.engine) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, s := range e.stores {
		if err := s.joinEngine(len(dirs)); err != nil {
			return nil, err
		}
	}
	return e, e.locate(op)
}

func (e *Engine) open(i int, dirs []string, cfg Config, engine rhumb.UUID) error {
	cfg.Dir = dirs[i]
	s, err := open(cfg, placement{index: i, count: len(dirs), engine: engine})
	if err == nil {
		e.stores[i] = s
	}
	return err
}

// joinEngine records how many stores the engine has now.
func (s *Store) joinEngine(count int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(s.header.count) == count {
		return nil
	}
	s.header.count = uint16(count)
	return writeHeader(s.fs, s.cfg.Dir, &s.header)
}

// locate notes where each range is.
func (e *Engine) locate(op rhumb.Op) error {
	for _, s := range e.stores {
		for id := range s.ranges {
			if other := e.place[id]; other != nil {
				return rhumb.Ef(op, rhumb.Corrupt, "range %s is in %s and in %s", id, other.Dir(), s.Dir())
			}
			e.place[id] = s
		}
	}
	return nil
}

// Close closes all stores.
func (e *Engine) Close() error {
	var errs []error
	for _, s := range e.stores {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// Stores gives all stores, in the order of their directories.
func (e *Engine) Stores() []*Store { return e.stores }

// Store gives the store that holds a range. A range that none holds is assigned to the one with the fewest.
func (e *Engine) Store(id rhumb.RangeID) *Store {
	e.mu.RLock()
	s := e.place[id]
	e.mu.RUnlock()
	if s != nil {
		return s
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.place[id]; s != nil {
		return s
	}
	count := make(map[*Store]int, len(e.stores))
	for _, s := range e.place {
		count[s]++
	}
	s = slices.MinFunc(e.stores, func(a, b *Store) int { return count[a] - count[b] })
	e.place[id] = s
	return s
}

// Forget ends the assignment of a range that was dropped, so that a later copy may go to another store.
func (e *Engine) Forget(id rhumb.RangeID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.place[id]; s != nil && s.rangeOf(id) == nil {
		delete(e.place, id)
	}
}

// Ranges gives the state of every range of the node, sorted. A closed engine has none to give and fails.
func (e *Engine) Ranges() ([]RangeState, error) {
	var out []RangeState
	for _, s := range e.stores {
		states, err := s.Ranges()
		if err != nil {
			return nil, err
		}
		out = append(out, states...)
	}
	slices.SortFunc(out, func(a, b RangeState) int { return a.Range.Compare(b.Range) })
	return out, nil
}

// Identity is that of the first store.
func (e *Engine) Identity() Identity { return e.stores[0].Identity() }

// SetIdentity is Store.SetIdentity for all stores.
func (e *Engine) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	for _, s := range e.stores {
		if err := s.SetIdentity(cluster, node); err != nil {
			return err
		}
	}
	return nil
}

// BumpBoot increments the boot sequence under which the node registers: that of the first store.
func (e *Engine) BumpBoot() (rhumb.BootSeq, error) { return e.stores[0].BumpBoot() }

// Local gives a space of the first store.
func (e *Engine) Local(space rhumb.Slot) *Local { return e.stores[0].Local(space) }

// HLCCeiling gives the persisted ceiling of the hybrid logical clock; 0 when none was set.
func (e *Engine) HLCCeiling() (rhumb.Timestamp, error) {
	const op rhumb.Op = "storage.Engine.HLCCeiling"
	v, ok, err := e.Local(SpaceStore).Get([]byte(localHLC))
	switch {
	case err != nil || !ok:
		return 0, rhumb.Wrap(op, err)
	case len(v) != 8:
		return 0, rhumb.Ef(op, rhumb.Corrupt, "%s: the clock's ceiling has %d bytes, want 8", e.stores[0].Dir(), len(v))
	}
	return rhumb.Timestamp(binary.BigEndian.Uint64(v)), nil
}

// SetHLCCeiling persists a ceiling and waits until it is durable: only then may timestamps up to it be issued. A ceiling
// below the persisted one is ignored. One goroutine at a time may call it.
func (e *Engine) SetHLCCeiling(ceiling rhumb.Timestamp) error {
	const op rhumb.Op = "storage.Engine.SetHLCCeiling"
	old, err := e.HLCCeiling()
	if err != nil || ceiling <= old {
		return rhumb.Wrap(op, err)
	}
	return rhumb.Wrap(op, e.Local(SpaceStore).Set([]byte(localHLC), encodeWords(uint64(ceiling))))
}

// Writable refuses with DiskFull when one of the stores does.
func (e *Engine) Writable() error {
	for _, s := range e.stores {
		if err := s.Writable(); err != nil {
			return err
		}
	}
	return nil
}

// SyncOutstanding is the greatest of the stores'.
func (e *Engine) SyncOutstanding() time.Duration {
	var most time.Duration
	for _, s := range e.stores {
		most = max(most, s.SyncOutstanding())
	}
	return most
}

// Collectors gives the metrics of all stores.
func (e *Engine) Collectors() []prometheus.Collector {
	var out []prometheus.Collector
	for _, s := range e.stores {
		out = append(out, s.Collectors()...)
	}
	return out
}
