package client

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/rhumbdb/rhumb"
)

// window assigns the request numbers of one range (docs/replication.md#requests).
//
// Numbers grow from 1. A number is assigned only while it is less than rhumb.DedupWindow above the
// least unanswered one: a node keeps the results of that many requests per client, accepts no more
// at once, and refuses a lower number as Expired, because it no longer knows whether that request
// was applied.
//
// Each window numbers under an identity of its own. A range that is split gives the results of requests to both parts, so
// numbers that began again under the same identity would meet results of other requests. Under its own identity, a window
// needs to know nothing of splits and merges: a request keeps its ID wherever its keys are by now, and later requests to the
// new range have another window.
type window struct {
	client rhumb.UUID
	mu     sync.Mutex              // guards all below
	next   uint64                  // the next number
	least  uint64                  // the least unanswered number; next if there is none
	open   [rhumb.DedupWindow]bool // unanswered, by number modulo the size
	freed  chan struct{}           // closed when least grows; nil while nobody waits
}

func newWindow() *window {
	w := &window{next: 1, least: 1}
	_, _ = rand.Read(w.client[:]) // never fails (crypto/rand)
	return w
}

// takeNumber waits until the window has room and returns the next number.
func (w *window) takeNumber(ctx context.Context) (uint64, error) {
	for {
		w.mu.Lock()
		if w.next-w.least < rhumb.DedupWindow {
			n := w.next
			w.next++
			w.open[n%rhumb.DedupWindow] = true
			w.mu.Unlock()
			return n, nil
		}
		// Made by the first waiter, so that a window without waiters allocates nothing.
		if w.freed == nil {
			w.freed = make(chan struct{})
		}
		freed := w.freed
		w.mu.Unlock()
		select {
		case <-freed:
			// Another waiter may take the room first, so look again.
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// releaseNumber ends the use of a number: it was answered, or nobody waits for its answer any more.
func (w *window) releaseNumber(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[n%rhumb.DedupWindow] = false
	before := w.least
	// Later numbers may have been released before this one.
	for w.least < w.next && !w.open[w.least%rhumb.DedupWindow] {
		w.least++
	}
	if w.least != before && w.freed != nil {
		close(w.freed)
		w.freed = nil
	}
}

// windows holds the windows of a client, one for each range that it has written to.
type windows struct {
	mu sync.Mutex // guards the map
	m  map[rhumb.RangeID]*window
}

// forRange returns the window of a range.
func (ws *windows) forRange(id rhumb.RangeID) *window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.m[id]
	if w == nil {
		w = newWindow()
		ws.m[id] = w
	}
	return w
}
