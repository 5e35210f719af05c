package ingest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rhumbdb/rhumb"
)

// dispatcher hands events to workers: events of one record in order and one batch at a time, different records side by
// side. A record that has events waiting and no worker stands in ready exactly once.
type dispatcher struct {
	run  *Run
	halt context.CancelCauseFunc // stops reading

	mu     sync.Mutex // guards all below
	room   sync.Cond  // signalled when the window has room
	queued sync.Cond  // signalled when ready grows or the end comes
	lanes  map[string]*lane
	ready  []*lane
	events int // in the window
	bytes  int
	ended  bool  // no event will be added
	err    error // why the run stopped early
}

// lane is one record's queue of waiting events.
type lane struct {
	key    string
	queue  []Event
	active bool // in ready, or with a worker
	// stands holds the order fields that the record is known to have; nil when that is not known.
	stands []rhumb.FieldValue
}

// lanesMax bounds the records whose standing is remembered. Forgetting costs one read when the record comes again.
const lanesMax = 1 << 17

func newDispatcher(r *Run, halt context.CancelCauseFunc) *dispatcher {
	d := &dispatcher{run: r, halt: halt, lanes: map[string]*lane{}}
	d.room.L, d.queued.L = &d.mu, &d.mu
	return d
}

// add queues an event. It waits while the window is full, until ctx ends (see wake) or the run stops.
func (d *dispatcher) add(ctx context.Context, ev Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.err == nil && ctx.Err() == nil && d.fullLocked(ev.Size()) {
		d.room.Wait()
	}
	if d.err != nil || ctx.Err() != nil {
		d.run.counts.failed.Add(1)
		return
	}
	d.events++
	d.bytes += ev.Size()
	l := d.laneLocked(ev.Mutations[0].Name)
	l.queue = append(l.queue, ev)
	if !l.active {
		l.active = true
		d.ready = append(d.ready, l)
		d.queued.Signal()
	}
}

// wake lets add look at its context again.
func (d *dispatcher) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room.Broadcast()
}

// fullLocked: d.mu is held. One event of any size always fits an empty window.
func (d *dispatcher) fullLocked(size int) bool {
	return d.events > 0 && (d.events >= d.run.cfg.WindowEvents || d.bytes+size > d.run.cfg.WindowBytes)
}

// laneLocked: d.mu is held.
func (d *dispatcher) laneLocked(name []byte) *lane {
	if l, ok := d.lanes[string(name)]; ok {
		return l
	}
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

// finish says that no event will be added.
func (d *dispatcher) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.queued.Broadcast()
}

// stop ends the run early; the first reason counts. What waits is not written any more.
func (d *dispatcher) stop(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
	d.halt(err)
	d.room.Broadcast()
	d.queued.Broadcast()
}

func (d *dispatcher) cause() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// work serves lanes until the end.
func (d *dispatcher) work(ctx context.Context) {
	for {
		l, batch, ok := d.take()
		if !ok {
			return
		}
		done := d.write(ctx, l, batch)
		d.release(l, batch, done)
	}
}

// take waits for a lane with work and takes the events that one batch can hold from its front.
func (d *dispatcher) take() (l *lane, batch []Event, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.ready) == 0 && !(d.ended && d.idleLocked()) {
		d.queued.Wait()
	}
	if len(d.ready) == 0 {
		return nil, nil, false
	}
	l, d.ready = d.ready[0], d.ready[1:]
	if d.err != nil {
		return l, l.queue, true
	}
	return l, l.queue[:mergeable(l, d.run.cfg.MergeEvents)], true
}

// idleLocked: d.mu is held. Without events in the window no lane can become ready again.
func (d *dispatcher) idleLocked() bool { return d.events == 0 }

// release takes the answered events off the lane's queue, and lets the lane be served again when more wait.
func (d *dispatcher) release(l *lane, batch []Event, done int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range batch[:done] {
		d.bytes -= batch[i].Size()
	}
	d.events -= done
	clear(l.queue[:done])
	l.queue = l.queue[done:]
	if len(l.queue) > 0 {
		d.ready = append(d.ready, l)
		d.queued.Signal()
	} else {
		l.active, l.queue = false, nil
	}
	d.room.Broadcast()
	if d.ended && d.idleLocked() {
		d.queued.Broadcast()
	}
}

// mergeable tells how many events from the front of the lane one batch can hold without a change of meaning: where the
// record stands is known, each is newer than the one before, and no field is removed.
func mergeable(l *lane, most int) int {
	if l.stands == nil || l.queue[0].removes {
		return 1
	}
	most = min(most, len(l.queue))
	size := l.queue[0].Size()
	for i := 1; i < most; i++ {
		ev := &l.queue[i]
		size += ev.Size()
		if ev.removes || size > mergeBytesMax || compareOrder(l.queue[i-1].Order, ev.Order) >= 0 {
			return i
		}
	}
	return most
}

func compareOrder(a, b []rhumb.FieldValue) int {
	return slices.CompareFunc(a, b, rhumb.FieldValue.Compare)
}

// distinct cuts a batch before the first event that names a row which the batch holds already.
func distinct(batch []Event) []Event {
	type row struct {
		table rhumb.TableID
		name  string
	}
	if len(batch) == 1 {
		return batch
	}
	seen := make(map[row]bool, 2*len(batch))
	for i := range batch {
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

// write writes a batch and counts its events. It returns how many from the front are answered.
func (d *dispatcher) write(ctx context.Context, l *lane, batch []Event) (done int) {
	counts := &d.run.counts
	if d.cause() != nil {
		counts.failed.Add(int64(len(batch)))
		return len(batch)
	}
	if n := d.skip(l, batch); n > 0 {
		counts.alreadyThere.Add(int64(n))
		return n
	}
	batch = distinct(batch)
	mutations, err := merge(batch)
	applied, doubted := false, false
	if err == nil {
		applied, doubted, err = d.writeUntil(ctx, mutations)
	}
	n := int64(len(batch))
	switch {
	case err != nil && isFault(err) && n > 1:
		// One of them is at fault: written one by one, only that one is rejected.
		l.stands = nil
		return 0
	case err != nil && isFault(err):
		if err := d.run.reject(Rejection{batch[0].Line, batch[0].raw, err}); err != nil {
			d.stop(err)
		}
	case err != nil:
		counts.failed.Add(n)
		d.stop(rhumb.Ef("ingest.write", rhumb.KindOf(err), "line %d: %s; start the same ingest again and it goes on where it stopped", batch[0].Line, err))
	case applied, doubted && l.stands != nil:
		// A doubted batch, tried again and found there, was applied by the try whose answer was lost: the record was
		// known to stand before it.
		counts.applied.Add(n)
		counts.batches.Add(1)
		l.stands = batch[n-1].Order
	default:
		return d.alreadyThere(ctx, l, batch)
	}
	return len(batch)
}

// skip counts the events at the front that are not newer than the record is known to be.
func (d *dispatcher) skip(l *lane, batch []Event) (n int) {
	if l.stands == nil {
		return 0
	}
	for n < len(batch) && compareOrder(batch[n].Order, l.stands) <= 0 {
		n++
	}
	return n
}

// alreadyThere learns where the record stands, so that older events need not be sent.
func (d *dispatcher) alreadyThere(ctx context.Context, l *lane, batch []Event) (done int) {
	first := &batch[0].Mutations[0]
	l.stands = nil
	if value, err := d.run.cfg.Writer.Read(ctx, first.Table, first.Name); err == nil {
		l.stands = orderOf(value, first.Cond.Fields)
	}
	if l.stands == nil {
		// The record cannot be read now. The server has said that the batch is there; a merged one is as new as its last.
		d.run.counts.alreadyThere.Add(int64(len(batch)))
		return len(batch)
	}
	n := max(d.skip(l, batch), 1)
	d.run.counts.alreadyThere.Add(int64(n))
	return n
}

// orderOf gives the order fields of a stored record; nil when one is missing.
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

// merge makes one batch of several events: the fields of later patches win, all other rows stand side by side.
func merge(batch []Event) ([]rhumb.Mutation, error) {
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
		merged = append(merged, ev.Mutations[1:]...)
	}
	return merged, nil
}

// writeUntil writes a batch, again and again while the cluster cannot take it, for RetryFor. doubted says that the
// outcome of a try was unknown.
func (d *dispatcher) writeUntil(ctx context.Context, mutations []rhumb.Mutation) (applied, doubted bool, err error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	deadline := time.Now().Add(d.run.cfg.RetryFor)
	for {
		applied, err = d.run.cfg.Writer.Write(ctx, mutations)
		if err == nil || !mayPass(err) {
			return applied, doubted, err
		}
		doubted = doubted || !rhumb.KindOf(err).NotApplied()
		pause := wait.NextBackOff()
		if ctx.Err() != nil || d.cause() != nil || time.Now().Add(pause).After(deadline) {
			return false, doubted, err
		}
		d.run.counts.retries.Add(1)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// isFault reports whether an error is the event's own: it would fail again in any state of the cluster.
func isFault(err error) bool {
	kind := rhumb.KindOf(err)
	return kind == rhumb.InvalidArgument || kind == rhumb.TooLarge
}

// mayPass reports whether the same batch may succeed later. A batch whose outcome is unknown is safe to repeat: what it
// writes is the same, and a record never goes back behind its order fields.
func mayPass(err error) bool {
	switch rhumb.KindOf(err) {
	case rhumb.Unavailable, rhumb.Overloaded, rhumb.NotPrimary, rhumb.Unknown, rhumb.DeadlineExceeded, rhumb.DiskFull, rhumb.Expired:
		return true
	}
	return false
}
