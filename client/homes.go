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
	// elsewhere says of a table that the last patch of a name without a known home found no record here.
	elsewhere map[rhumb.TableID]bool
}

type home struct {
	key    nameKey
	region rhumb.RegionID
}

func newHomes(most int) *homes {
	return &homes{most: most, byKey: map[nameKey]*list.Element{}, recent: list.New(), creating: map[nameKey]chan struct{}{}, elsewhere: map[rhumb.TableID]bool{}}
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

// expectElsewhere reports whether a record whose home is not known is probably not here, because the last such record of
// its table was not. It is a guess about the order in which to ask, never about the answer.
func (h *homes) expectElsewhere(table rhumb.TableID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.elsewhere[table]
}

// noteElsewhere notes whether a record of a table whose home was not known turned out not to be here.
func (h *homes) noteElsewhere(table rhumb.TableID, elsewhere bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elsewhere[table] = elsewhere
}

func (h *homes) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.recent.Len()
}

// create waits for the right to create a name; done gives it back.
func (h *homes) create(ctx context.Context, table rhumb.TableID, name []byte) (done func(), err error) {
	k := nameKey{table, string(name)}
	for {
		h.mu.Lock()
		busy, ok := h.creating[k]
		if !ok {
			mine := make(chan struct{})
			h.creating[k] = mine
			h.mu.Unlock()
			return func() {
				h.mu.Lock()
				delete(h.creating, k)
				h.mu.Unlock()
				close(mine)
			}, nil
		}
		h.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
