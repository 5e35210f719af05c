package client

import (
	"context"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/rhumbdb/rhumb"
)

// nameKey is a named key without its home.
type nameKey struct {
	table rhumb.TableID
	name  string
}

// homes caches the home regions of named keys as the client learns them. It also holds the locks
// under which names are created, so that two calls of one client do not create a name in two
// regions.
//
// A cached home may be wrong: another client may have deleted the record and created it elsewhere.
// Callers therefore use it only to choose where to ask or write first. A primary that does not have
// the record says so.
type homes struct {
	mu sync.Mutex // guards all below
	// regions maps a name to its home region. When it is full, the least recently used name is
	// dropped.
	regions *simplelru.LRU[nameKey, rhumb.RegionID]
	// creating holds the names that a call is creating. The channel is closed when the call is
	// done.
	creating map[nameKey]chan struct{}
	// sightings holds the last search of each table.
	sightings map[rhumb.TableID]sighting
}

// sighting is where the last search for a name of a table found the record.
type sighting struct {
	region   rhumb.RegionID // 0 if no region has the record
	repeated bool           // the search before it had the same result
}

// newHomes returns homes that cache up to capacity names, at least one.
func newHomes(capacity int) *homes {
	regions, err := simplelru.NewLRU[nameKey, rhumb.RegionID](max(capacity, 1), nil)
	if err != nil {
		panic(err) // the only error is a capacity below 1
	}
	return &homes{regions: regions, creating: map[nameKey]chan struct{}{}, sightings: map[rhumb.TableID]sighting{}}
}

// get returns the cached home of a name.
func (h *homes) get(table rhumb.TableID, name []byte) (rhumb.RegionID, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.regions.Get(nameKey{table, string(name)})
}

// put caches the home of a name.
func (h *homes) put(table rhumb.TableID, name []byte, region rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.regions.Add(nameKey{table, string(name)}, region)
}

// forget drops the cached home of a name, unless it is the given region.
func (h *homes) forget(table rhumb.TableID, name []byte, unless rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := nameKey{table, string(name)}
	if region, ok := h.regions.Peek(key); ok && region != unless {
		h.regions.Remove(key)
	}
}

// size returns the number of cached homes.
func (h *homes) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.regions.Len()
}

// expectedRegion returns the region that probably has a record whose home is not cached, or 0 if
// the name is probably new or the evidence is mixed. The result decides only the order in which
// regions are asked, never the home of the record.
//
// One record found elsewhere is not enough for a guess: where the records of a table are spread
// over the regions, most guesses would be wrong, and each would send the value a long way for
// nothing (docs/decisions/0023-foreign-records.md).
func (h *homes) expectedRegion(table rhumb.TableID, here rhumb.RegionID) rhumb.RegionID {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.sightings[table]
	switch {
	case !ok:
		return here
	case last.region == here || last.repeated:
		return last.region
	}
	return 0
}

// recordSighting records where a search found a record, 0 for nowhere.
func (h *homes) recordSighting(table rhumb.TableID, region rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.sightings[table]
	h.sightings[table] = sighting{region, ok && last.region == region}
}

// lockCreation waits until no other call creates any of the names, and returns a function that lets
// others create them. The names must be sorted and distinct: two calls that take their locks in
// different orders could wait for each other.
func (h *homes) lockCreation(ctx context.Context, names ...nameKey) (unlock func(), err error) {
	mine := make(chan struct{})
	for n := 0; ; {
		// Take one name after the other until one is taken by another call. Those taken so far stay
		// locked during the wait.
		var busy chan struct{}
		h.mu.Lock()
		for n < len(names) && busy == nil {
			if busy = h.creating[names[n]]; busy == nil {
				h.creating[names[n]] = mine
				n++
			}
		}
		h.mu.Unlock()
		if busy == nil {
			return func() { h.unlockCreation(names, mine) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			h.unlockCreation(names[:n], mine)
			return nil, ctx.Err()
		}
	}
}

// unlockCreation releases names that one call locked, and wakes the calls that wait for them.
func (h *homes) unlockCreation(names []nameKey, mine chan struct{}) {
	h.mu.Lock()
	for _, k := range names {
		delete(h.creating, k)
	}
	h.mu.Unlock()
	close(mine)
}
