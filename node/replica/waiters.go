package replica

import (
	"github.com/rhumbdb/rhumb"
)

// waiter is an answer that waits for a commit.
type waiter struct {
	// seq is the position whose commit releases the answer.
	seq   rhumb.Seq
	token uint64
	id    rhumb.RequestID
	// wrote reports that the entry at seq contains the request. If it does not, the answer only
	// reveals the content of the log.
	wrote   bool
	seen    bool
	outcome rhumb.Outcome
	err     error
	// joined holds the tokens of repeated requests that share the answer.
	joined []uint64
}

// waiters is a queue of answers in the order of their positions, so that a commit releases a prefix
// of it. Elements before head are free; they are reclaimed in bulk.
type waiters struct {
	queue []waiter
	head  int
	// first is the running number of queue[0]. inflight maps request IDs to running numbers, which
	// stay valid while the queue moves.
	first    uint64
	inflight map[rhumb.RequestID]uint64
	// clients holds the number of requests in flight of each client.
	clients map[rhumb.UUID]int
	// extra is the total number of joined tokens.
	extra int
}

// len returns the number of answers that wait, repetitions included: they use memory, too.
func (q *waiters) len() int { return len(q.queue) - q.head + q.extra }

// add queues w. It raises the position of w to that of the waiter before it, so that the queue
// stays ordered: the answer is at most later than necessary.
func (q *waiters) add(w waiter) {
	if q.head < len(q.queue) {
		w.seq = max(w.seq, q.queue[len(q.queue)-1].seq)
	}
	// Requests without an ID are never repeated.
	if !w.id.IsZero() {
		if q.inflight == nil {
			q.inflight = make(map[rhumb.RequestID]uint64)
			q.clients = make(map[rhumb.UUID]int)
		}
		q.clients[w.id.Client]++
		q.inflight[w.id] = q.first + uint64(len(q.queue))
	}
	q.queue = append(q.queue, w)
}

// join lets token share the answer to id if one is pending, and reports whether it is.
func (q *waiters) join(id rhumb.RequestID, token uint64) bool {
	if id.IsZero() {
		return false
	}
	n, ok := q.inflight[id]
	if !ok {
		return false
	}
	w := &q.queue[n-q.first]
	w.joined = append(w.joined, token)
	q.extra++
	return true
}

// countClient returns the number of requests in flight of the client of id, or 0 for the zero ID.
func (q *waiters) countClient(id rhumb.RequestID) int {
	if id.IsZero() {
		return 0
	}
	return q.clients[id.Client]
}

// pop removes and returns the first waiter if its position is at most seq.
func (q *waiters) pop(seq rhumb.Seq) (w waiter, ok bool) {
	if q.head == len(q.queue) || q.queue[q.head].seq > seq {
		return waiter{}, false
	}
	w = q.queue[q.head]
	// Release the references at once: the queue may be long.
	q.queue[q.head] = waiter{}
	q.head++
	if !w.id.IsZero() {
		delete(q.inflight, w.id)
		if q.clients[w.id.Client]--; q.clients[w.id.Client] == 0 {
			delete(q.clients, w.id.Client)
		}
	}
	q.extra -= len(w.joined)
	// Moving the others only when half of the queue is free keeps the cost per waiter constant.
	if q.head == len(q.queue) || q.head >= 1024 && 2*q.head >= len(q.queue) {
		q.first += uint64(q.head)
		n := copy(q.queue, q.queue[q.head:])
		clear(q.queue[n:])
		q.queue, q.head = q.queue[:n], 0
	}
	return w, true
}
