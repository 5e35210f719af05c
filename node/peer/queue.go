package peer

import (
	"sync"

	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
)

// queue holds the replication messages for one peer. Its size in bytes is bounded.
type queue struct {
	most   int
	budget *memory.Budget // counts the queues of all peers

	mu    sync.Mutex // guards msgs, bytes and spare
	msgs  []replica.Message
	bytes int
	// spare is the array for the next messages, once msgs has none.
	spare []replica.Message

	wake chan struct{} // holds a token if msgs may not be empty
}

// newQueue returns a queue of at most most bytes.
func newQueue(most int, budget *memory.Budget) *queue {
	return &queue{most: most, budget: budget, wake: make(chan struct{}, 1)}
}

// add appends messages and reports whether they fit. It adds all or none: a follower rejects an
// entry whose predecessor was dropped.
func (q *queue) add(msgs []replica.Message) bool {
	size := 0
	for i := range msgs {
		size += messageSize(&msgs[i])
	}
	q.mu.Lock()
	// An empty queue accepts any size. Otherwise a message larger than the bound could never be
	// sent.
	if q.bytes > 0 && q.bytes+size > q.most {
		q.mu.Unlock()
		q.budget.Refuse()
		return false
	}
	q.msgs = append(q.msgs, msgs...)
	q.bytes += size
	// Counted without a limit: the replicas hold these entries in any case, and the budgets of the
	// replicas limit them.
	q.budget.Add(int64(size))
	q.mu.Unlock()
	// A full channel already holds a token, and one token covers all messages.
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// take removes and returns messages of at most bytesMax in total, or one larger message.
func (q *queue) take(bytesMax int) []replica.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	size, n := 0, 0
	for n < len(q.msgs) {
		s := messageSize(&q.msgs[n])
		// The first message is taken whatever its size: it would block the queue otherwise.
		if n > 0 && size+s > bytesMax {
			break
		}
		size += s
		n++
	}
	// The capacity is cut off, so that a caller that appends to the result cannot overwrite the
	// rest.
	out := q.msgs[:n:n]
	q.msgs = q.msgs[n:]
	q.bytes -= size
	q.budget.Release(int64(size))
	// An empty queue changes to the other array: the caller still reads this one.
	if len(q.msgs) == 0 {
		q.msgs, q.spare = q.spare, nil
	}
	return out
}

// spareMost bounds the messages of an array that is kept. A larger one has grown while the peer was slow.
const spareMost = 512

// recycle takes an array back that take returned, and that the caller does not read any more.
func (q *queue) recycle(msgs []replica.Message) {
	if cap(msgs) > spareMost {
		return
	}
	clear(msgs) // frees the entries
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.spare == nil {
		q.spare = msgs[:0]
	}
}

// clear drops all messages.
func (q *queue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.budget.Release(int64(q.bytes))
	// A wake token may remain. The next take then returns nothing.
	q.msgs, q.bytes = nil, 0
}

// messageOverhead is the approximate size of a message or an entry without its writes.
const messageOverhead = 128

// messageSize returns the approximate size of a message on the wire. An exact size would require
// encoding each message twice.
func messageSize(m *replica.Message) int {
	size := messageOverhead
	for _, e := range m.Entries {
		size += messageOverhead
		for i := range e.Requests {
			size += messageOverhead
			for j := range e.Requests[i].Writes {
				w := &e.Requests[i].Writes[j]
				size += len(w.Name) + len(w.Value) + 16
			}
		}
	}
	return size
}
