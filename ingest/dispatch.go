package ingest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rhumbdb/rhumb"
)

// dispatcher passes events to workers: those of one record in order and one batch at a time, those
// of different records concurrently. A record with waiting events and without a worker is in ready
// exactly once.
type dispatcher struct {
	run  *Run
	halt context.CancelCauseFunc // stops reading

	mu     sync.Mutex // guards the fields below and the lanes
	room   sync.Cond  // signalled when the window has room
	queued sync.Cond  // signalled when ready grows, or when no event will follow
	lanes  map[string]*lane
	ready  []*lane
	events int // in the window
	bytes  int
	ended  bool  // no event will be added
	err    error // why the run stopped early
}

// lane is the queue of the waiting events of one record. A worker that took the lane owns stands;
// the mutex of the dispatcher guards the other fields.
type lane struct {
	key    string
	queue  []Event
	active bool // in ready, or with a worker
	// stands holds the order fields that the record is known to have, or nil if they are unknown.
	stands []rhumb.FieldValue
}

// lanesMax bounds the records whose order fields are remembered. A forgotten record costs one read
// when an event of it arrives.
const lanesMax = 1 << 17

// newDispatcher returns a dispatcher. halt stops the reading of r.
func newDispatcher(r *Run, halt context.CancelCauseFunc) *dispatcher {
	d := &dispatcher{run: r, halt: halt, lanes: map[string]*lane{}}
	d.room.L, d.queued.L = &d.mu, &d.mu
	return d
}

// add queues an event. While the window is full, it waits until ctx ends (see wake) or the run
// stops.
func (d *dispatcher) add(ctx context.Context, ev Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.err == nil && ctx.Err() == nil && d.fullLocked(ev.Size()) {
		d.room.Wait()
	}
	// The event was read and counted as a line, so it must be counted here.
	if d.err != nil || ctx.Err() != nil {
		d.run.counts.failed.Add(1)
		return
	}
	d.events++
	d.bytes += ev.Size()
	// The first row decides the order of an event, so its name is the key of the lane.
	l := d.laneLocked(ev.Mutations[0].Name)
	l.queue = append(l.queue, ev)
	// A lane that is ready, or with a worker, becomes ready again in release. Adding it here as
	// well would let two workers write one record.
	if !l.active {
		l.active = true
		d.ready = append(d.ready, l)
		d.queued.Signal()
	}
}

// wake makes add check its context again, for a condition variable does not notice that a context
// ends.
func (d *dispatcher) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room.Broadcast()
}

// fullLocked reports whether an event does not fit into the window. An event of any size fits into
// an empty window. The caller holds d.mu.
func (d *dispatcher) fullLocked(size int) bool {
	return d.events > 0 && (d.events >= d.run.cfg.WindowEvents || d.bytes+size > d.run.cfg.WindowBytes)
}

// laneLocked returns the lane of a record. The caller holds d.mu.
func (d *dispatcher) laneLocked(name []byte) *lane {
	if l, ok := d.lanes[string(name)]; ok {
		return l
	}
	// Lanes in use cannot be dropped: the order of their events would be lost.
	if len(d.lanes) >= lanesMax {
		for key, l := range d.lanes {
			if !l.active {
				delete(d.lanes, key)
			}
		}
	}
	l := &lane{key: string(name)}
	d.lanes[l.key] = l
	return l
}

// finish declares that no event will be added.
func (d *dispatcher) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Idle workers return once nothing is in the window.
	d.ended = true
	d.queued.Broadcast()
}

// stop ends the run early; the first reason counts. Events that wait are not written.
func (d *dispatcher) stop(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
	// Readers wait for room, workers for events; both must notice the stop.
	// Reading stops as well: it may wait for a silent pipe.
	d.halt(err)
	d.room.Broadcast()
	d.queued.Broadcast()
}

// stopReason returns the error that stopped the run early, or nil.
func (d *dispatcher) stopReason() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// runWorker writes the events of lanes until none will follow.
func (d *dispatcher) runWorker(ctx context.Context) {
	for {
		l, batch, ok := d.take()
		if !ok {
			return
		}
		// No lock is held during the write. The lane stays active, so that no other worker takes
		// it, while add may append to its queue.
		done := d.write(ctx, l, batch)
		d.release(l, batch, done)
	}
}

// take waits for a lane with events and returns the events at its front that one batch may contain.
func (d *dispatcher) take() (l *lane, batch []Event, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// An idle dispatcher may get events until finish, and a lane in the hands of a worker may
	// become ready again. Only when both are excluded is there no more work.
	for len(d.ready) == 0 && !(d.ended && d.idleLocked()) {
		d.queued.Wait()
	}
	if len(d.ready) == 0 {
		return nil, nil, false
	}
	l, d.ready = d.ready[0], d.ready[1:]
	// After a stop all events of the lane are counted as failed at once.
	if d.err != nil {
		return l, l.queue, true
	}
	return l, l.queue[:mergeable(l, d.run.cfg.MergeEvents)], true
}

// idleLocked reports whether no event is in the window, so that no lane can become ready again. The
// caller holds d.mu.
func (d *dispatcher) idleLocked() bool { return d.events == 0 }

// release removes the answered events from the queue of a lane. If more wait, the lane becomes
// ready again.
func (d *dispatcher) release(l *lane, batch []Event, done int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range batch[:done] {
		d.bytes -= batch[i].Size()
	}
	d.events -= done
	// Cleared, so that the array does not keep the memory of written events alive.
	clear(l.queue[:done])
	l.queue = l.queue[done:]
	if len(l.queue) > 0 {
		d.ready = append(d.ready, l)
		d.queued.Signal()
	} else {
		l.active, l.queue = false, nil
	}
	d.room.Broadcast()
	// The last event: workers that wait in take must return.
	if d.ended && d.idleLocked() {
		d.queued.Broadcast()
	}
}

// mergeable returns the number of events at the front of a lane that one batch may contain with the
// same effect: the order fields of the record are known, each event is newer than the one before,
// and none removes a field.
func mergeable(l *lane, most int) int {
	// If the order fields are unknown, the first event may be old. Merged with newer ones, its
	// fields would be applied.
	if l.stands == nil || l.queue[0].removes {
		return 1
	}
	most = min(most, len(l.queue))
	size := l.queue[0].Size()
	for i := 1; i < most; i++ {
		ev := &l.queue[i]
		size += ev.Size()
		// A removed field has no value in a record, so MergeRecord would lose the removal.
		if ev.removes || size > mergeBytesMax || compareOrder(l.queue[i-1].Order, ev.Order) >= 0 {
			return i
		}
	}
	return most
}

// compareOrder compares order fields one after the other.
func compareOrder(a, b []rhumb.FieldValue) int {
	return slices.CompareFunc(a, b, rhumb.FieldValue.Compare)
}

// cutRepeated cuts a batch before the first event that names a row which the batch already
// contains. Two puts of one row must not be in one batch.
func cutRepeated(batch []Event) []Event {
	type row struct {
		table rhumb.TableID
		name  string
	}
	if len(batch) == 1 {
		return batch
	}
	// Names are viewed, not copied: the map does not outlive the batch.
	seen := make(map[row]bool, 2*len(batch))
	for i := range batch {
		// First rows are of one record and are merged into one mutation, so only the others can
		// repeat.
		for _, m := range batch[i].Mutations[1:] {
			key := row{m.Table, viewString(m.Name)}
			if seen[key] {
				return batch[:max(i, 1)]
			}
			seen[key] = true
		}
	}
	return batch
}

// write writes a batch and counts its events. It returns the number of events at the front that are
// answered; the others are written later.
func (d *dispatcher) write(ctx context.Context, l *lane, batch []Event) (done int) {
	counts := &d.run.counts
	if d.stopReason() != nil {
		counts.failed.Add(int64(len(batch)))
		return len(batch)
	}
	// The record is known to be as new, so these events need no request. That makes replaying a
	// feed fast.
	if n := d.countOld(l, batch); n > 0 {
		counts.alreadyThere.Add(int64(n))
		return n
	}
	batch = cutRepeated(batch)
	mutations, err := mergeEvents(batch)
	applied, doubted := false, false
	if err == nil {
		applied, doubted, err = d.writeUntil(ctx, mutations)
	}
	n := int64(len(batch))
	switch {
	case err != nil && isFault(err) && n > 1:
		// One of the events is at fault. Written one by one, only that one is rejected. Without
		// stands, the next batch has one event.
		l.stands = nil
		return 0
	// Rejected events do not stop the run: they would fail again in any state of the cluster.
	case err != nil && isFault(err):
		if err := d.run.reject(Rejection{batch[0].Line, batch[0].raw, err}); err != nil {
			d.stop(err)
		}
	case err != nil:
		counts.failed.Add(n)
		d.stop(rhumb.Ef("ingest.write", rhumb.KindOf(err), "line %d: %s; start the same ingest again, and it continues where it stopped", batch[0].Line, err))
	case applied, doubted && l.stands != nil:
		// An attempt with an unknown outcome was repeated, and the cluster reported that the batch
		// was already there. The record was known to be older before, so the first attempt applied
		// the batch.
		counts.applied.Add(n)
		counts.batches.Add(1)
		l.stands = batch[n-1].Order
	default:
		return d.countThere(ctx, l, batch)
	}
	return len(batch)
}

// countOld returns the number of events at the front that are not newer than the record is known to
// be.
func (d *dispatcher) countOld(l *lane, batch []Event) (n int) {
	if l.stands == nil {
		return 0
	}
	for n < len(batch) && compareOrder(batch[n].Order, l.stands) <= 0 {
		n++
	}
	return n
}

// countThere handles a batch that the cluster did not apply because the record is as new. It reads
// the order fields of the record, so that older events need not be sent.
func (d *dispatcher) countThere(ctx context.Context, l *lane, batch []Event) (done int) {
	first := &batch[0].Mutations[0]
	l.stands = nil
	// The answer of a write does not contain the order fields of the record.
	if value, err := d.run.cfg.Writer.Read(ctx, first.Table, first.Name); err == nil {
		l.stands = orderOf(value, first.Cond.Fields)
	}
	if l.stands == nil {
		// The record cannot be read at the moment. The cluster reported that the batch is there,
		// and a merged batch is as new as its last event.
		d.run.counts.alreadyThere.Add(int64(len(batch)))
		return len(batch)
	}
	// At least one, because the batch was reported as there: without progress the worker would
	// repeat it.
	n := max(d.countOld(l, batch), 1)
	d.run.counts.alreadyThere.Add(int64(n))
	return n
}

// orderOf returns the order fields of a stored record, or nil if one is missing.
func orderOf(value []byte, fields []string) (order []rhumb.FieldValue) {
	for _, name := range fields {
		v, ok, err := rhumb.RecordField(value, name)
		if err != nil || !ok {
			return nil
		}
		order = append(order, v)
	}
	return order
}

// mergeEvents returns the mutations of one batch for several events. The fields of later patches
// replace those of earlier ones; all other rows are kept.
func mergeEvents(batch []Event) ([]rhumb.Mutation, error) {
	if len(batch) == 1 {
		return batch[0].Mutations, nil
	}
	merged := []rhumb.Mutation{batch[0].Mutations[0]}
	for i, ev := range batch {
		if i > 0 {
			value, err := rhumb.MergeRecord(nil, merged[0].Value, ev.Mutations[0].Value)
			if err != nil {
				return nil, err
			}
			merged[0].Value = value
		}
		// Rows after the first are puts of different records, which cutRepeated ensures.
		merged = append(merged, ev.Mutations[1:]...)
	}
	return merged, nil
}

// writeUntil writes a batch and repeats it for at most RetryFor while the cluster cannot accept it.
// doubted reports that the outcome of an attempt was unknown.
func (d *dispatcher) writeUntil(ctx context.Context, mutations []rhumb.Mutation) (applied, doubted bool, err error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	deadline := time.Now().Add(d.run.cfg.RetryFor)
	for {
		applied, err = d.run.cfg.Writer.Write(ctx, mutations)
		if err == nil || !mayPass(err) {
			return applied, doubted, err
		}
		// An attempt that certainly was not applied leaves no doubt.
		doubted = doubted || !rhumb.KindOf(err).NotApplied()
		pause := wait.NextBackOff()
		// A pause that ends after the deadline would only delay the error.
		if ctx.Err() != nil || d.stopReason() != nil || time.Now().Add(pause).After(deadline) {
			return false, doubted, err
		}
		d.run.counts.retries.Add(1)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// isFault reports whether the event itself is at fault: it would fail in every state of the
// cluster.
func isFault(err error) bool {
	kind := rhumb.KindOf(err)
	return kind == rhumb.InvalidArgument || kind == rhumb.TooLarge
}

// mayPass reports whether the same batch may succeed later. A batch with an unknown outcome may be
// repeated: it writes the same values, and the order fields of a record never decrease.
func mayPass(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.Unavailable, rhumb.Overloaded, rhumb.NotPrimary, rhumb.Unknown, rhumb.DeadlineExceeded, rhumb.DiskFull, rhumb.Expired:
		return true
	}
	return false
}
