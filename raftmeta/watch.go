package raftmeta

import (
	"context"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
)

// Update is the newest state and the records that were touched since the previous update.
type Update struct {
	State *catalog.State
	// Full reports that anything may have changed; Changes is then empty. The first update is full,
	// as is one after a state transfer and one for a reader that was too slow for its changes to be
	// kept.
	Full    bool
	Changes catalog.Changes
}

// Watch follows the states of a Group. Only one goroutine at a time may call Next.
type Watch struct {
	set *watches

	// mu guards the fields below it. It is taken after watches.mu.
	mu      sync.Mutex
	pending Update
	err     error
	wake    chan struct{} // has room for one signal
}

// delta is the set of records that one Ready touched.
type delta struct {
	full    bool
	changes []catalog.Changes
}

// watches is the set of open watches of a group.
type watches struct {
	mu      sync.Mutex
	open    map[*Watch]struct{}
	closed  error
	metrics *metrics
	rt      sched.Runtime
}

// Watch starts to follow the states. The first update is full and available at once.
func (g *Group) Watch() *Watch {
	w := &Watch{set: &g.watches, wake: make(chan struct{}, 1)}
	g.watches.mu.Lock()
	defer g.watches.mu.Unlock()
	// The driver stores a state before it locks watches to announce it. So a state that is newer
	// than this one is announced after the watch is in the set, and none is missed.
	w.pending = Update{State: g.State(), Full: true}
	// A watch on a stopped group still returns the last state, then the reason.
	w.err = g.watches.closed
	w.wakeReader()
	if g.watches.open == nil {
		g.watches.open = make(map[*Watch]struct{})
	}
	g.watches.open[w] = struct{}{}
	return w
}

// Next waits for a state newer than the last one returned. It returns the state and everything that
// was touched in between.
func (w *Watch) Next(ctx context.Context) (Update, error) {
	const op rhumb.Op = "raftmeta.Watch"
	for {
		w.mu.Lock()
		u, err := w.pending, w.err
		// The reader owns the update from here on; the next change starts an empty one.
		w.pending = Update{}
		w.mu.Unlock()
		if u.State != nil {
			return u, nil
		}
		if err != nil {
			return Update{}, rhumb.Wrap(op, err)
		}
		if w.set.rt.Await(w.wake, ctx.Done(), nil) == 1 {
			return Update{}, rhumb.WrapKind(op, rhumb.Canceled, context.Cause(ctx))
		}
	}
}

// Close ends the watch. A waiting Next continues to wait for its context.
func (w *Watch) Close() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	delete(w.set.open, w)
}

// wakeReader wakes a waiting Next. One token is enough, since Next takes everything at once.
func (w *Watch) wakeReader() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// addState announces a new state to every watch.
func (ws *watches) addState(s *catalog.State, d delta) {
	var all catalog.Changes
	// Merging once here is cheaper than in every watch. Beyond the bound every watch would resort
	// to a full update anyway.
	for _, c := range d.changes {
		if all = all.Merge(c); all.Len() > WatchPendingMax {
			d.full = true
			break
		}
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.open {
		w.addChanges(s, all, d.full)
	}
}

// addChanges merges changes into the update that the reader has not taken yet.
func (w *Watch) addChanges(s *catalog.State, c catalog.Changes, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending.State = s
	if !w.pending.Full && !full {
		w.pending.Changes = w.pending.Changes.Merge(c)
		full = w.pending.Changes.Len() > WatchPendingMax
	}
	if full && !w.pending.Full {
		w.pending.Full = true
		w.set.metrics.resyncs.Inc()
	}
	if w.pending.Full {
		w.pending.Changes = catalog.Changes{}
	}
	w.wakeReader()
}

// closeAll ends every watch with an error.
func (ws *watches) closeAll(err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = err
	for w := range ws.open {
		w.mu.Lock()
		w.err = err
		w.wakeReader()
		w.mu.Unlock()
	}
}
