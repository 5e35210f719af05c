package client

import (
	"container/list"
	"context"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// nameKey is a named key without its home.
type nameKey struct {
	table rhumb.TableID
	name  string
}

// homes remembers in which region named keys live: the least recently used is forgotten first. It also holds the right
// to create a name, so that calls of one client do not create it in two regions at once.
type homes struct {
	most int

	mu       sync.Mutex // guards all below
	byKey    map[nameKey]*list.Element
	recent   *list.List // of home, most recently used first
	creating map[nameKey]chan struct{}
	lately   map[rhumb.TableID]sighting
}

// sighting is where the last record of a table was whose home had to be looked for.
type sighting struct {
	region rhumb.RegionID // 0 for a name that no region had
	again  bool           // so was the record before it
}

type home struct {
	key    nameKey
	region rhumb.RegionID
}

func newHomes(most int) *homes {
	return &homes{most: most, byKey: map[nameKey]*list.Element{}, recent: list.New(), creating: map[nameKey]chan struct{}{}, lately: map[rhumb.TableID]sighting{}}
}

func (h *homes) get(table rhumb.TableID, name []byte) (rhumb.RegionID, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, ok := h.byKey[nameKey{table, string(name)}]
	if !ok {
		return 0, false
	}
	h.recent.MoveToFront(e)
	return e.Value.(home).region, true
}

func (h *homes) put(table rhumb.TableID, name []byte, region rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.byKey[nameKey{table, string(name)}]; ok {
		e.Value = home{e.Value.(home).key, region}
		h.recent.MoveToFront(e)
		return
	}
	k := nameKey{table, string(name)}
	h.byKey[k] = h.recent.PushFront(home{k, region})
	for h.recent.Len() > h.most {
		last := h.recent.Back()
		delete(h.byKey, last.Value.(home).key)
		h.recent.Remove(last)
	}
}

// forget drops what is remembered of a name, unless it is the region given.
func (h *homes) forget(table rhumb.TableID, name []byte, unless rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := h.byKey[nameKey{table, string(name)}]; ok && e.Value.(home).region != unless {
		delete(h.byKey, e.Value.(home).key)
		h.recent.Remove(e)
	}
}

// expected returns the region that probably has a record of a table whose home is not known: the caller's own at first and
// when the last such record was there, another one when the last two were. 0 says that such names are probably new, or that
// nothing can be said. It is a guess about the order in which to ask, never about the answer.
func (h *homes) expected(table rhumb.TableID, here rhumb.RegionID) rhumb.RegionID {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.lately[table]
	switch {
	case !ok:
		return here
	case last.region == here || last.again:
		return last.region
	}
	return 0
}

// saw notes where a record of a table was whose home was not known; 0 is nowhere.
func (h *homes) saw(table rhumb.TableID, region rhumb.RegionID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.lately[table]
	h.lately[table] = sighting{region, ok && last.region == region}
}

func (h *homes) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recent.Len()
}

// create waits for the right to create names; done returns it. The names are sorted, or two callers could wait for each
// other.
func (h *homes) create(ctx context.Context, names ...nameKey) (done func(), err error) {
	mine := make(chan struct{})
	for n := 0; ; {
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
			return func() { h.created(names, mine) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			h.created(names[:n], mine)
			return nil, ctx.Err()
		}
	}
}

// created returns the right to create names, which the channel stands for.
func (h *homes) created(names []nameKey, mine chan struct{}) {
	h.mu.Lock()
	for _, k := range names {
		delete(h.creating, k)
	}
	h.mu.Unlock()
	close(mine)
}
