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
	// wrote says that the entry at seq holds the request; otherwise the answer only reveals what the log holds.
	wrote   bool
	seen    bool
	outcome rhumb.Outcome
	err     error
	// joined are the tokens of repeated requests that wait for the same answer.
	joined []uint64
}

// waiters is a queue of answers in the order of their positions.
type waiters struct {
	queue []waiter
	head  int
	// first is the running number of queue[0]; inflight finds a waiter by its request id.
	first    uint64
	inflight map[rhumb.RequestID]uint64
	// clients counts the requests in flight of each client.
	clients map[rhumb.UUID]int
	// extra counts the joined tokens.
	extra int
}

func (q *waiters) len() int { return len(q.queue) - q.head + q.extra }

// add queues w; its position is raised to that of the waiter before it, so that the queue stays ordered.
func (q *waiters) add(w waiter) {
	if q.head < len(q.queue) {
		w.seq = max(w.seq, q.queue[len(q.queue)-1].seq)
	}
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

// join lets token wait for the answer to id, if one is pending.
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

// of counts the requests in flight of the client of id; 0 when id is none.
func (q *waiters) of(id rhumb.RequestID) int {
	if id.IsZero() {
		return 0
	}
	return q.clients[id.Client]
}

// pop takes the first waiter if its position is at most seq.
func (q *waiters) pop(seq rhumb.Seq) (w waiter, ok bool) {
	if q.head == len(q.queue) || q.queue[q.head].seq > seq {
		return waiter{}, false
	}
	w = q.queue[q.head]
	q.queue[q.head] = waiter{}
	q.head++
	if !w.id.IsZero() {
		delete(q.inflight, w.id)
		if q.clients[w.id.Client]--; q.clients[w.id.Client] == 0 {
			delete(q.clients, w.id.Client)
		}
	}
	q.extra -= len(w.joined)
	if q.head == len(q.queue) || q.head >= 1024 && 2*q.head >= len(q.queue) {
		q.first += uint64(q.head)
		n := copy(q.queue, q.queue[q.head:])
		clear(q.queue[n:])
		q.queue, q.head = q.queue[:n], 0
	}
	return w, true
}
