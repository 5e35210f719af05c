package peer

import (
	"sync"

	"github.com/rhumbdb/rhumb/node/memory"
	"github.com/rhumbdb/rhumb/node/replica"
)

// queue holds the replication messages for one peer, bounded by Config.QueueBytesMax.
type queue struct {
	most   int
	budget *memory.Budget // of the queues of all peers

	mu    sync.Mutex // guards the two below
	msgs  []replica.Message
	bytes int

	wake chan struct{} // holds a token while msgs may not be empty
}

func newQueue(most int, budget *memory.Budget) *queue {
	return &queue{most: most, budget: budget, wake: make(chan struct{}, 1)}
}

// add appends messages and reports whether they fitted; a message is never added without those before it.
func (q *queue) add(msgs []replica.Message) bool {
	size := 0
	for i := range msgs {
		size += messageSize(&msgs[i])
	}
	q.mu.Lock()
	if q.bytes > 0 && q.bytes+size > q.most {
		q.mu.Unlock()
		q.budget.Refuse()
		return false
	}
	q.msgs = append(q.msgs, msgs...)
	q.bytes += size
	q.budget.Add(int64(size))
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// take removes messages of at most the given size together, but at least one if there is any.
func (q *queue) take(bytesMax int) []replica.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	size, n := 0, 0
	for n < len(q.msgs) {
		s := messageSize(&q.msgs[n])
		if n > 0 && size+s > bytesMax {
			break
		}
		size += s
		n++
	}
	out := q.msgs[:n:n]
	q.msgs = q.msgs[n:]
	q.bytes -= size
	q.budget.Release(int64(size))
	if len(q.msgs) == 0 {
		q.msgs = nil
	}
	return out
}

// clear drops what waits.
func (q *queue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.budget.Release(int64(q.bytes))
	q.msgs, q.bytes = nil, 0
}

// messageOverhead is about what a message takes besides its entries.
const messageOverhead = 128

// messageSize is about what a message takes on the wire.
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
