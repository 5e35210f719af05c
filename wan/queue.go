package wan

import (
	"bytes"
	"net"
	"os"
	"sync"
	"time"
)

// QueueBytesMax bounds the bytes in flight in one direction of a connection; a writer waits for
// room. A link of 200 MB/s with 300 ms has as many bytes in flight, so the simulation does not
// limit throughput.
const QueueBytesMax = 64 << 20

// queueKeep is the capacity in bytes that an empty queue retains.
const queueKeep = 1 << 20

// queue is one direction of a connection: bytes in the order of sending, each with the time at
// which it is due.
//
// Invariants: marks are ordered by due; their sizes add up to buf.Len(); at most most bytes are
// held; nothing is put after end; no byte is taken before it is due. One goroutine puts and one
// takes at a time.
type queue struct {
	link *link
	age  int // age of the link when the connection was opened
	most int

	ready chan struct{} // capacity 1; holds a token after bytes or the end were put
	room  chan struct{} // capacity 1; holds a token after bytes were taken
	gone  chan struct{} // closed by abort
	timer *time.Timer   // used by the taking goroutine only

	mu    sync.Mutex // guards the fields below
	buf   bytes.Buffer
	marks []mark
	last  time.Time // due time of the last byte or of the end
	ended error     // follows the last byte; nil while more bytes may be put
	fault error     // argument of abort
}

// mark is a run of size bytes that are due at the same time.
type mark struct {
	size int
	due  time.Time
}

// newQueue returns an empty queue for a direction.
func newQueue(l *link, most int) *queue {
	t := time.NewTimer(0)
	t.Stop()
	return &queue{
		link: l, age: l.currentAge(), most: most, timer: t,
		ready: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{}),
	}
}

// putToken puts a token into a channel of capacity 1, unless it holds one.
func putToken(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put queues bytes, and waits for room until expired is closed. It returns the number of bytes
// queued.
func (q *queue) put(b []byte, expired <-chan struct{}) (n int, err error) {
	for {
		// Checked even if there is room: a call after the deadline must fail.
		select {
		case <-expired:
			return n, os.ErrDeadlineExceeded
		default:
		}
		took, err := q.tryPut(b[n:])
		n += took
		if err != nil || n == len(b) {
			return n, err
		}
		select {
		case <-q.room:
		case <-q.gone:
		case <-expired:
		}
	}
}

// tryPut queues as many bytes as there is room for.
func (q *queue) tryPut(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault != nil {
		return 0, q.fault
	}
	if q.ended != nil {
		return 0, net.ErrClosed
	}
	// The writer of a half-open connection sees success, as with a peer that vanished.
	if q.isLost() {
		q.link.countWithheld(len(b))
		return len(b), nil
	}
	// Only as much as fits, so that a large write does not exceed the bound while it waits.
	n := min(len(b), q.most-q.buf.Len())
	if n == 0 {
		return 0, nil
	}
	// The bytes are kept and arrive after the link heals, like those that TCP retransmits.
	if q.link.cutChan() != nil {
		q.link.countWithheld(n)
	}
	q.buf.Write(b[:n])
	q.marks = append(q.marks, mark{n, q.arrivalLocked()})
	putToken(q.ready)
	return n, nil
}

// arrivalLocked returns the due time of bytes sent now. It is never before that of bytes sent
// earlier, since a connection keeps the order whatever the jitter.
func (q *queue) arrivalLocked() time.Time {
	due := time.Now().Add(q.link.sampleDelay())
	if due.After(q.last) {
		q.last = due
	}
	return q.last
}

// isLost reports whether the connection is half-open in this direction. Bytes and the end are then
// lost.
func (q *queue) isLost() bool { return q.link.currentAge() != q.age }

// end ends the queue: after all bytes are taken and the delay has passed, take returns err.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// The end of a half-open connection is lost like its bytes.
	if q.ended == nil && !q.isLost() {
		q.ended = err
		// The end travels like a byte, so it is never seen before the last byte.
		q.arrivalLocked()
		putToken(q.ready)
		putToken(q.room)
	}
}

// abort discards all bytes. From now on, put and take return err.
func (q *queue) abort(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault == nil {
		q.fault = err
		q.buf, q.marks = bytes.Buffer{}, nil
		close(q.gone)
	}
}

// take waits until bytes are due and moves as many of them as fit into b.
func (q *queue) take(b []byte, expired <-chan struct{}) (int, error) {
	for {
		select {
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		default:
		}
		// Read before the bytes are examined: a link that heals in between closes this channel, so
		// awaitChange returns at once.
		healed := q.link.cutChan()
		var wait time.Duration
		if healed == nil {
			var n int
			var err error
			if n, wait, err = q.tryTake(b); n > 0 || err != nil {
				return n, err
			}
		}
		q.awaitChange(healed, wait, expired)
	}
}

// awaitChange returns when take should try again: after the link healed, if it is cut; after wait,
// if wait is not 0; or after something was put. It also returns after abort and at the deadline.
func (q *queue) awaitChange(healed <-chan struct{}, wait time.Duration, expired <-chan struct{}) {
	var due <-chan time.Time
	ready := q.ready
	switch {
	case healed != nil:
		// While the link is cut, new bytes change nothing. A token stays in the channel for later.
		ready = nil
	case wait > 0:
		// New bytes are due no earlier than those that are awaited.
		ready = nil
		q.timer.Reset(wait)
		due = q.timer.C
		defer q.timer.Stop()
	}
	select {
	case <-healed:
	case <-due:
	case <-ready:
	case <-q.gone:
	case <-expired:
	}
}

// tryTake moves bytes that are due. If none are, wait is the time until some are, or 0 if the queue
// is empty.
func (q *queue) tryTake(b []byte) (n int, wait time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault != nil {
		return 0, 0, q.fault
	}
	now := time.Now()
	// Without bytes, only the end is left to deliver.
	if len(q.marks) == 0 {
		if q.ended == nil {
			return 0, 0, nil
		}
		if wait := q.last.Sub(now); wait > 0 {
			return 0, wait, nil
		}
		return 0, 0, q.ended
	}
	if wait := q.marks[0].due.Sub(now); wait > 0 {
		return 0, wait, nil
	}
	n = q.dueLocked(now, len(b))
	_, _ = q.buf.Read(b[:n]) // cannot fail: the buffer holds n bytes
	// A burst must not cost its memory for the life of the connection.
	if q.buf.Len() == 0 && q.buf.Cap() > queueKeep {
		q.buf = bytes.Buffer{}
	}
	putToken(q.room)
	return n, 0, nil
}

// dueLocked removes marks that are due, of up to most bytes, and returns their size.
func (q *queue) dueLocked(now time.Time, most int) (n int) {
	whole := 0
	for i := range q.marks {
		m := &q.marks[i]
		if n == most || m.due.After(now) {
			break
		}
		// A run is split if the reader's buffer is smaller.
		part := min(m.size, most-n)
		n += part
		m.size -= part
		if m.size == 0 {
			whole++
		}
	}
	q.marks = q.marks[whole:]
	if len(q.marks) == 0 {
		q.marks = nil
	}
	return n
}
