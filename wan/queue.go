package wan

import (
	"bytes"
	"net"
	"os"
	"sync"
	"time"
)

// QueueBytesMax bounds the bytes on their way in one direction of a connection; a writer waits for room. It holds what a
// link of 200 MB/s and 300 ms has in flight, so that the delay layer is not what limits throughput.
const QueueBytesMax = 64 << 20

// queueKeep is the capacity in bytes that an emptied queue keeps.
const queueKeep = 1 << 20

// queue is one direction of a connection: bytes in the order of sending, each with the time at which it arrives.
//
// Invariants: marks are ordered by due; their sizes add up to buf.Len(); at most QueueBytesMax bytes are held; after end
// nothing is put; no byte is taken before it is due. One goroutine puts and one takes at a time.
type queue struct {
	link *link
	age  int // the link's when the connection was made
	most int

	ready chan struct{} // capacity 1: bytes or the end came
	room  chan struct{} // capacity 1: bytes were taken
	gone  chan struct{} // closed by abort
	timer *time.Timer   // of the taking goroutine

	mu    sync.Mutex // guards all below
	buf   bytes.Buffer
	marks []mark
	last  time.Time // due of the last byte or of the end
	ended error     // what follows the last byte; nil while more may come
	fault error     // why abort was called
}

// mark says when the next size bytes are due.
type mark struct {
	size int
	due  time.Time
}

func newQueue(l *link, most int) *queue {
	t := time.NewTimer(0)
	t.Stop()
	return &queue{
		link: l, age: l.now(), most: most, timer: t,
		ready: make(chan struct{}, 1), room: make(chan struct{}, 1), gone: make(chan struct{}),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put sends bytes on their way, waiting for room until expired is closed. It returns how many it took.
func (q *queue) put(b []byte, expired <-chan struct{}) (n int, err error) {
	for {
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

// tryPut takes as many bytes as there is room for.
func (q *queue) tryPut(b []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault != nil {
		return 0, q.fault
	}
	if q.ended != nil {
		return 0, net.ErrClosed
	}
	if q.lost() {
		q.link.withhold(len(b))
		return len(b), nil
	}
	n := min(len(b), q.most-q.buf.Len())
	if n == 0 {
		return 0, nil
	}
	if q.link.cut() != nil {
		q.link.withhold(n)
	}
	q.buf.Write(b[:n])
	q.marks = append(q.marks, mark{n, q.arrivalLocked()})
	signal(q.ready)
	return n, nil
}

// arrivalLocked gives the time at which what is sent now arrives: never before what was sent earlier.
func (q *queue) arrivalLocked() time.Time {
	due := time.Now().Add(q.link.delay())
	if due.After(q.last) {
		q.last = due
	}
	return q.last
}

// lost reports whether the connection is half-open in this direction: what is put is lost, the end too.
func (q *queue) lost() bool { return q.link.now() != q.age }

// end says that nothing follows: once all bytes are taken and the delay has passed, take returns err.
func (q *queue) end(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended == nil && !q.lost() {
		q.ended = err
		q.arrivalLocked()
		signal(q.ready)
		signal(q.room)
	}
}

// abort throws everything away: put and take return err from now on.
func (q *queue) abort(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault == nil {
		q.fault = err
		q.buf, q.marks = bytes.Buffer{}, nil
		close(q.gone)
	}
}

// take waits until bytes are due and moves as many as are and fit to b.
func (q *queue) take(b []byte, expired <-chan struct{}) (int, error) {
	for {
		select {
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		default:
		}
		healed := q.link.cut()
		var wait time.Duration
		if healed == nil {
			var n int
			var err error
			if n, wait, err = q.tryTake(b); n > 0 || err != nil {
				return n, err
			}
		}
		q.await(healed, wait, expired)
	}
}

// await returns when take should look again: when the link heals if it is cut, after wait if that is not 0, or else when
// something is put.
func (q *queue) await(healed <-chan struct{}, wait time.Duration, expired <-chan struct{}) {
	var due <-chan time.Time
	ready := q.ready
	switch {
	case healed != nil:
		ready = nil
	case wait > 0:
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

// tryTake moves bytes that are due. When there are none it says how long until there are, 0 for "not known yet".
func (q *queue) tryTake(b []byte) (n int, wait time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fault != nil {
		return 0, 0, q.fault
	}
	now := time.Now()
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
	_, _ = q.buf.Read(b[:n]) // cannot fail: n bytes are there
	if q.buf.Len() == 0 && q.buf.Cap() > queueKeep {
		q.buf = bytes.Buffer{}
	}
	signal(q.room)
	return n, 0, nil
}

// dueLocked takes off the marks that are due, up to most bytes, and returns their size.
func (q *queue) dueLocked(now time.Time, most int) (n int) {
	whole := 0
	for i := range q.marks {
		m := &q.marks[i]
		if n == most || m.due.After(now) {
			break
		}
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
