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

// Engine holds the stores of one node and spreads the node's ranges over them. The first store also
// holds what belongs to the node as a whole: its lives, its clock's ceiling and the metadata group.
//
// stores never changes after OpenEngine. place only grows: a range stays in the store that it was
// assigned to, even if it is dropped and created again, unless Place assigns it to another one in between.
type Engine struct {
	stores []*Store

	mu    sync.RWMutex // guards place
	place map[rhumb.RangeID]*Store

	// ceiling is the persisted ceiling of the clock once ceilingKnown is set. SetHLCCeiling owns both.
	ceiling      rhumb.Timestamp
	ceilingKnown bool
}

// OpenEngine opens one store per directory. Directories that belonged to the engine before must all
// be given, in their order; new ones may follow. If a directory is empty although it held a store,
// OpenEngine refuses it, because the other stores remember it, unless cfg.AcceptLost names it.
// OpenEngine does not use cfg.Dir.
func OpenEngine(dirs []string, cfg Config) (_ *Engine, err error) {
	const op rhumb.Op = "storage.OpenEngine"
	if len(dirs) == 0 || len(dirs) > StoresMax {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "%d directories are given; give 1 to %d", len(dirs), StoresMax)
	}
	e := &Engine{stores: make([]*Store, len(dirs)), place: map[rhumb.RangeID]*Store{}}
	defer func() {
		if err != nil {
			// Close also releases the locks of stores that own their directory but did not open.
			err = errors.Join(err, e.Close())
		}
	}()
	// All stores share one cache, so that the node's memory does not depend on the number of its
	// disks. Each database takes a reference of its own; this one is dropped on return.
	cache := cfg.newCache(len(dirs))
	defer cache.Unref()
	cfg.cache = cache
	// Everything up to here and in ownDirs can be refused without a trace. Opening a store counts a
	// boot.
	plan, err := e.ownDirs(dirs, cfg)
	if err != nil {
		return nil, err
	}
	// Stores open in parallel: each may have to replay a log, and the disks are independent.
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

// ownDirs takes the directories for this process. It writes the headers of new stores and of stores
// that do not know all stores of the engine yet.
//
// Steps: read all headers without a lock, plan, lock all directories, and check that no header
// changed in between. Nothing is written before the plan is known to be valid, so that a mistake in
// the list of directories changes nothing. Reading comes before locking because locking creates the
// directory and its LOCK file, which must not happen to a directory that is refused.
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
		// A store that holds its lock is kept even if newStore failed, so that OpenEngine's Close
		// releases the lock.
		s, err := newStore(configs[i])
		if s.lock != nil {
			e.stores[i] = s
		}
		if err != nil {
			return plan, err
		}
	}
	// Another process may have owned the directories between the first reading and the locks, and
	// created or opened a store in the meantime.
	again, err := peekDirs(fsys, dirs)
	if err != nil {
		return plan, err
	}
	for i := range found {
		if !sameHeader(&found[i], &again[i]) {
			return plan, rhumb.Ef(op, rhumb.Unavailable, "%s was changed by another process while this process started; try again", found[i].dir)
		}
	}
	// Headers of new stores are written before those of the other stores. A store that no other one
	// lists may be created again after a crash; a store that is listed must exist.
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

// sameHeader reports whether two readings of a directory found the same store in the same state.
func sameHeader(a, b *storeDir) bool {
	return a.found == b.found && a.header.store == b.header.store && a.header.boot == b.header.boot && a.header.list == b.header.list
}

// placeRanges records which store holds each range. A range in two stores has two logs, and nothing
// says which of them is right.
func (e *Engine) placeRanges(op rhumb.Op) error {
	for _, s := range e.stores {
		for id := range s.ranges {
			if other := e.place[id]; other != nil {
				return rhumb.Ef(op, rhumb.Corrupt, "range %s is in both %s and %s; a directory was copied. Start without the copy", id, other.Dir(), s.Dir())
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

// Stores returns all stores in the order of their directories.
func (e *Engine) Stores() []*Store { return e.stores }

// Store returns the store that holds a range. It assigns a range that no store holds to the store
// with the fewest ranges.
func (e *Engine) Store(id rhumb.RangeID) *Store {
	e.mu.RLock()
	s := e.place[id]
	e.mu.RUnlock()
	if s != nil {
		return s
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// Another goroutine may have assigned the range between the two locks. Both must get the same
	// store.
	if s := e.place[id]; s != nil {
		return s
	}
	// Counting takes time proportional to the number of ranges, but happens only once for each
	// range.
	count := make(map[*Store]int, len(e.stores))
	for _, s := range e.place {
		count[s]++
	}
	s = slices.MinFunc(e.stores, func(a, b *Store) int { return count[a] - count[b] })
	e.place[id] = s
	return s
}

// Placed returns the store that a range is assigned to, or nil. Unlike Store it assigns none.
func (e *Engine) Placed(id rhumb.RangeID) *Store {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.place[id]
}

// Place assigns a range that no store holds to a store: that of the range that it was split off from, because its keys are there, or that of
// the range that it is to be merged with.
func (e *Engine) Place(id rhumb.RangeID, s *Store) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.place[id] = s
}

// Ranges returns the state of every range of the node, in ascending order. It fails on a closed
// engine.
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

// Identity returns the identity of the first store.
func (e *Engine) Identity() Identity { return e.stores[0].Identity() }

// SetIdentity calls Store.SetIdentity for all stores.
func (e *Engine) SetIdentity(cluster rhumb.ClusterID, node rhumb.NodeID) error {
	for _, s := range e.stores {
		if err := s.SetIdentity(cluster, node); err != nil {
			return err
		}
	}
	return nil
}

// Damage returns the damage on record in all stores.
func (e *Engine) Damage() []Damage {
	var out []Damage
	for _, s := range e.stores {
		out = append(out, s.Damage()...)
	}
	return out
}

// Short reports whether a store may lack something that it had made durable. If so, grants,
// promises and acknowledgements of earlier lives of the node may be forgotten, and the node begins
// a new life that does not rely on them.
func (e *Engine) Short() bool {
	return slices.ContainsFunc(e.stores, (*Store).Short)
}

// ClearShort calls Store.ClearShort for all stores.
func (e *Engine) ClearShort() error {
	for _, s := range e.stores {
		if err := s.ClearShort(); err != nil {
			return err
		}
	}
	return nil
}

// DamagedRanges returns the ranges that damaged tables touch, in ascending order. Their replicas
// must not serve.
func (e *Engine) DamagedRanges() []rhumb.RangeID {
	var out []rhumb.RangeID
	for _, s := range e.stores {
		out = append(out, s.DamagedRanges()...)
	}
	slices.SortFunc(out, rhumb.RangeID.Compare)
	return out
}

// BumpBoot calls Store.BumpBoot for the first store, whose boot sequence the node registers.
func (e *Engine) BumpBoot(least rhumb.BootSeq) (rhumb.BootSeq, error) {
	return e.stores[0].BumpBoot(least)
}

// Local returns a space of the first store.
func (e *Engine) Local(space rhumb.Slot) *Local { return e.stores[0].Local(space) }

// HLCCeiling returns the persisted ceiling of the hybrid logical clock, or 0 if none was set.
func (e *Engine) HLCCeiling() (rhumb.Timestamp, error) {
	const op rhumb.Op = "storage.Engine.HLCCeiling"
	v, ok, err := e.Local(SpaceStore).Get([]byte(localHLC))
	switch {
	case err != nil || !ok:
		return 0, rhumb.Wrap(op, err)
	case len(v) != 8:
		return 0, rhumb.Ef(op, rhumb.Corrupt, "%s: the clock's ceiling has %d bytes, not 8", e.stores[0].Dir(), len(v))
	}
	return rhumb.Timestamp(binary.BigEndian.Uint64(v)), nil
}

// SetHLCCeiling persists a ceiling and returns once it is durable. Only then may timestamps up to
// the ceiling be issued. A ceiling below the persisted one is ignored. Only one goroutine may call
// SetHLCCeiling at a time, because it reads the old ceiling and then writes.
func (e *Engine) SetHLCCeiling(ceiling rhumb.Timestamp) error {
	const op rhumb.Op = "storage.Engine.SetHLCCeiling"
	// A lower ceiling would allow timestamps to be issued twice after a restart.
	// It is read once only: the clock must advance although the disk refuses reads, or no write of this node would get a timestamp.
	if !e.ceilingKnown {
		old, err := e.HLCCeiling()
		if err != nil {
			return rhumb.Wrap(op, err)
		}
		e.ceiling, e.ceilingKnown = old, true
	}
	if ceiling <= e.ceiling {
		return nil
	}
	if err := e.Local(SpaceStore).Set([]byte(localHLC), encodeWords(uint64(ceiling))); err != nil {
		return rhumb.Wrap(op, err)
	}
	e.ceiling = ceiling
	return nil
}

// Secured reports whether the node has ever served with TLS.
func (e *Engine) Secured() (bool, error) {
	_, ok, err := e.Local(SpaceStore).Get([]byte(localTLS))
	return ok, rhumb.Wrap("storage.Engine.Secured", err)
}

// MarkSecured records that the node serves with TLS, and returns once the record is durable. Only then may the node serve.
func (e *Engine) MarkSecured() error {
	return rhumb.Wrap("storage.Engine.MarkSecured", e.Local(SpaceStore).Set([]byte(localTLS), []byte{1}))
}

// SyncOutstanding returns the longest SyncOutstanding of all stores.
func (e *Engine) SyncOutstanding() time.Duration {
	var most time.Duration
	for _, s := range e.stores {
		most = max(most, s.SyncOutstanding())
	}
	return most
}

// Collectors returns the metrics of all stores.
func (e *Engine) Collectors() []prometheus.Collector {
	var out []prometheus.Collector
	for _, s := range e.stores {
		out = append(out, s.Collectors()...)
	}
	return out
}
