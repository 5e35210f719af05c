package host

import (
	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/node/replica"
	"github.com/rhumbdb/rhumb/storage"
)

// clientsMax bounds the clients remembered per range. Beyond it all are forgotten, which costs one
// look-up each.
const clientsMax = 4_096

// resultStore has the stored results of requests. It is a storage.Store outside of tests.
type resultStore interface {
	Dedup(id rhumb.RangeID, req rhumb.RequestID) (storage.Seen, bool, error)
	RequestFloor(id rhumb.RangeID, client rhumb.UUID) (uint64, error)
	RequestWindow(id rhumb.RangeID, client rhumb.UUID) (storage.RequestWindow, error)
	Forgotten(id rhumb.RangeID) uint64
}

// requests recognises the requests of a range that were applied before. It keeps the last numbers of each client in
// memory, so that a new request costs no read, in whatever order the requests of a client arrive. The results
// themselves are in storage, where they survive this process, are undone with their entries and go to copies and to new
// ranges.
//
// It knows what happened in one epoch only: another primary may have applied requests in the epochs between.
type requests struct {
	epoch   rhumb.Epoch
	clients map[rhumb.UUID]clientWindow
}

// clientWindow is the memory of one client.
type clientWindow struct {
	// last is the greatest number that the range has seen.
	last uint64
	// seen has bit i set if last-i was looked up in this epoch or has a stored result. A number without its bit was
	// certainly never applied, unless it is up to floor.
	seen uint64
	// floor is the client's floor, and forgotten storage.Store.Forgotten, when they were read.
	floor, forgotten uint64
}

// lookUp returns the stored result of a request that was applied before, or nil. expired is
// true if the answer is unknown by now: the client has since sent a request that it sends only
// after the answer to this one, or the result was collected (docs/replication.md#requests). The
// pass of a primary calls it, and proposes the request next.
func (r *requests) lookUp(store resultStore, id rhumb.RangeID, epoch rhumb.Epoch, req rhumb.RequestID) (seen *replica.Dedup, expired bool, err error) {
	if r.epoch != epoch || len(r.clients) >= clientsMax {
		r.clients, r.epoch = map[rhumb.UUID]clientWindow{}, epoch
	}
	w, known := r.clients[req.Client]
	// Collection may have raised the floor, or removed it after a day.
	if forgotten := store.Forgotten(id); !known || w.forgotten != forgotten {
		stored, err := store.RequestWindow(id, req.Client)
		if err != nil {
			return nil, false, err
		}
		w.merge(stored)
		w.forgotten = forgotten
	}
	isNew := w.note(req.Seq)
	r.clients[req.Client] = w
	// The floor was read with the window. If collection has raised it since then, the request may still count as new:
	// without its bit it was never applied, whatever the floor says.
	if isNew {
		return nil, req.Seq <= w.floor, nil
	}
	return w.readResult(store, id, req)
}

// merge adds what storage knows.
func (w *clientWindow) merge(stored storage.RequestWindow) {
	w.moveTo(stored.Last)
	w.seen |= stored.Stored << (w.last - stored.Last)
	w.floor = stored.Floor
}

// moveTo makes a number the greatest, if it is above the greatest so far.
func (w *clientWindow) moveTo(seq uint64) {
	if seq > w.last {
		// A shift by 64 or more leaves no bit.
		w.seen <<= seq - w.last
		w.last = seq
	}
}

// note records a number and reports whether it was certainly never applied, unless it is up to the floor.
func (w *clientWindow) note(seq uint64) (isNew bool) {
	w.moveTo(seq)
	back := w.last - seq
	// Of numbers that far back nothing is known here.
	if back >= rhumb.DedupWindow {
		return false
	}
	isNew = w.seen&(1<<back) == 0
	w.seen |= 1 << back
	return isNew
}

// readResult reads the result of a request that may have been applied.
func (w *clientWindow) readResult(store resultStore, id rhumb.RangeID, req rhumb.RequestID) (seen *replica.Dedup, expired bool, err error) {
	stored, found, err := store.Dedup(id, req)
	switch {
	case err != nil:
		return nil, false, err
	case found:
		o := &stored.Outcome
		return &replica.Dedup{Seq: stored.Seq, Version: o.Version, Applied: o.Applied, Existed: o.Existed, Names: o.Names}, false, nil
	// A client sends a request this far ahead only after the answer to this one, so this is a late
	// copy.
	case w.last-req.Seq >= rhumb.DedupWindow:
		return nil, true, nil
	}
	// The floor must be read after the result: collection deletes a result as it raises the floor.
	// In the other order a result could disappear between the two reads, and the request would look
	// new.
	floor, err := store.RequestFloor(id, req.Client)
	return nil, req.Seq <= floor, err
}
