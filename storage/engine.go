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
// new ones may follow them. A directory that is empty although it held a store is refused unless cfg.AcceptLost names it:
// the other stores remember it. cfg.Dir is not used.
func OpenEngine(dirs []string, cfg Config) (_ *Engine, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	if len(dirs) == 0 || len(dirs) > StoresMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "%d directories are given, want 1 to %d", len(dirs), StoresMax)
	}
	e := &Engine{stores: make([]*Store, len(dirs)), place: map[rhumb.RangeID]*Store{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	cache := cfg.newCache(len(dirs))
	defer cache.Unref()
	cfg.cache = cache
	plan, err := e.ownDirs(dirs, cfg)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(dirs))
	var wg sync.WaitGroup
	for i, s := range e.stores {
		wg.Go(func() { errs[i] = s.openFiles(plan.headers[i], slices.Contains(plan.lost, i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return e, e.placeRanges(op)
}

// ownDirs takes the directories for this process and writes the headers of stores that are new, and of those that do not know
// all stores of the engine yet. Nothing is written before all directories are known to belong together.
func (e *Engine) ownDirs(dirs []string, cfg Config) (plan enginePlan, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	configs := make([]Config, len(dirs))
	fresh := make([]rhumb.UUID, len(dirs))
	for i, dir := range dirs {
		configs[i], fresh[i] = cfg, newUUID()
		configs[i].Dir = dir
		if err := configs[i].fillDefaults(); err != nil {
			return plan, err
		}
	}
	fsys := configs[0].FS
	found, err := peekDirs(fsys, dirs)
	if err != nil {
		return plan, err
	}
	if plan, err = planEngine(found, cfg.AcceptLost, fresh); err != nil {
		return plan, err
	}
	for i := range dirs {
		s, err := newStore(configs[i])
		if s.lock != nil {
			e.stores[i] = s
		}
		if err != nil {
			return plan, err
		}
	}
	again, err := peekDirs(fsys, dirs)
	if err != nil {
		return plan, err
	}
	for i := range found {
		if !sameHeader(&found[i], &again[i]) {
			return plan, rhumb.Ef(op, rhumb.Unavailable, "%s was changed by another process while this one started; try again", found[i].dir)
		}
	}
	// The new ones come first: until the others know them, they may be made again.
	for _, i := range plan.make {
		if err := writeHeader(fsys, configs[i].Dir, &plan.headers[i]); err != nil {
			return plan, err
		}
	}
	for i := range found {
		if h := &plan.headers[i]; found[i].found && h.list != found[i].header.list {
			if err := writeHeader(fsys, configs[i].Dir, h); err != nil {
				return plan, err
			}
		}
	}
	return plan, nil
}

func sameHeader(a, b *storeDir) bool {
	return a.found == b.found && a.header.store == b.header.store && a.header.boot == b.header.boot && a.header.list == b.header.list
}

// placeRanges notes where each range is.
func (e *Engine) placeRanges(op rhumb.Op) error {
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

// Damage returns what the stores know of their damage.
func (e *Engine) Damage() []Damage {
	var out []Damage
	for _, s := range e.stores {
		out = append(out, s.Damage()...)
	}
	return out
}

// Short reports whether one of the stores may lack something that it had made durable: what an earlier life of the node
// granted, promised or acknowledged does not bind its peers' trust any more.
func (e *Engine) Short() bool {
	return slices.ContainsFunc(e.stores, (*Store).Short)
}

// ClearShort is Store.ClearShort for all stores.
func (e *Engine) ClearShort() error {
	for _, s := range e.stores {
		if err := s.ClearShort(); err != nil {
			return err
		}
	}
	return nil
}

// DamagedRanges returns the ranges that damaged tables touch, sorted. Their replicas must not serve.
func (e *Engine) DamagedRanges() []rhumb.RangeID {
	var out []rhumb.RangeID
	for _, s := range e.stores {
		out = append(out, s.DamagedRanges()...)
	}
	slices.SortFunc(out, rhumb.RangeID.Compare)
	return out
}

// BumpBoot is Store.BumpBoot for the first store, whose boot sequence the node registers.
func (e *Engine) BumpBoot(least rhumb.BootSeq) (rhumb.BootSeq, error) {
	return e.stores[0].BumpBoot(least)
}

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
