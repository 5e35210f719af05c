package client

import (
	"context"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// window hands out the request numbers of one range. Numbers grow from 1, and a number is given only while it is less
// than rhumb.DedupWindow above the least one unanswered: a node keeps the answers of that many, takes no more
// at once, and refuses as Expired what lies further back (section 1.13 of the replication design).
type window struct {
	mu    sync.Mutex // guards all below
	next  uint64     // the next number to give
	least uint64     // the least unanswered; next when there is none
	open  [rhumb.DedupWindow]bool
	freed chan struct{} // closed, and replaced, when least grows and somebody waits
}

func newWindow() *window { return &window{next: 1, least: 1} }

// take waits for room and gives the next number.
func (w *window) take(ctx context.Context) (uint64, error) {
	for {
		w.mu.Lock()
		if w.next-w.least < rhumb.DedupWindow {
			n := w.next
			w.next++
			w.open[n%rhumb.DedupWindow] = true
			w.mu.Unlock()
			return n, nil
		}
		if w.freed == nil {
			w.freed = make(chan struct{})
		}
		freed := w.freed
		w.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// release says that a number was answered, or that nobody waits for its answer any more.
func (w *window) release(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[n%rhumb.DedupWindow] = false
	before := w.least
	for w.least < w.next && !w.open[w.least%rhumb.DedupWindow] {
		w.least++
	}
	if w.least != before && w.freed != nil {
		close(w.freed)
		w.freed = nil
	}
}

// windows holds the windows of a client, one per range it has written.
type windows struct {
	mu sync.Mutex // guards the map
	m  map[rhumb.RangeID]*window
}

func (ws *windows) of(id rhumb.RangeID) *window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.m[id]
	if w == nil {
		w = newWindow()
		ws.m[id] = w
	}
	return w
}
