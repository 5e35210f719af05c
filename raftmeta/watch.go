package raftmeta

import (
	"context"
	"sync"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
	"github.com/rhumbdb/rhumb/sched"
)

// Update is what a Watch gives: the newest state, and what was touched since the last update.
type Update struct {
	State *catalog.State
	// Full says that everything may have changed, and Changes is empty: the first update, one after a state transfer, and
	// one for a reader who lagged so far behind that remembering the changes was given up.
	Full    bool
	Changes catalog.Changes
}

// Watch follows the states of a Group. One goroutine at a time may call Next.
type Watch struct {
	set *watches

	// mu guards the fields below.
	mu      sync.Mutex
	pending Update
	err     error
	wake    chan struct{} // has room for one signal
}

// delta is what one Ready touched.
type delta struct {
	full    bool
	changes []catalog.Changes
}

// watches is the set of open watches.
type watches struct {
	mu      sync.Mutex
	open    map[*Watch]struct{}
	closed  error
	metrics *metrics
	rt      sched.Runtime
}

// Watch begins to follow the states. The first update is full and there at once.
func (g *Group) Watch() *Watch {
	w := &Watch{set: &g.watches, wake: make(chan struct{}, 1)}
	g.watches.mu.Lock()
	defer g.watches.mu.Unlock()
	// A state is stored before the open watches are told of it, so none falls between this one and the first told.
	w.pending = Update{State: g.State(), Full: true}
	w.err = g.watches.closed
	w.wakeReader()
	if g.watches.open == nil {
		g.watches.open = make(map[*Watch]struct{})
	}
	g.watches.open[w] = struct{}{}
	return w
}

// Next waits for a state newer than the last one given, and gives it with all that was touched in between.
func (w *Watch) Next(ctx context.Context) (Update, error) {
	const op rhumb.Op = "raftmeta.Watch"
	for {
		w.mu.Lock()
		u, err := w.pending, w.err
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

// Close ends the watch. A Next that waits goes on waiting for its context.
func (w *Watch) Close() {
	w.set.mu.Lock()
	defer w.set.mu.Unlock()
	delete(w.set.open, w)
}

func (w *Watch) wakeReader() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// add tells every watch of a new state.
func (ws *watches) addState(s *catalog.State, d delta) {
	var all catalog.Changes
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

// add merges a change into what the reader has not taken yet.
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

// close ends every watch with an error.
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
