package client

import (
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/client/stream"
)

// Bounds of a locator.
const (
	// locatesMax is how many requests to a destination may be unanswered before questions gather.
	locatesMax = 1
	// locateGatherMax bounds how long questions gather, so that a question does not wait for a
	// whole round trip to a far region first.
	locateGatherMax = 5 * time.Millisecond
)

// locator asks nodes which named keys exist (docs/decisions/0015-locate-by-reads.md). Questions of
// concurrent callers to one node share a request: a question is sent at once while fewer than
// locatesMax requests to its node are unanswered; otherwise it waits until one of them is answered,
// or for locateGatherMax. Requests therefore grow with the load, and no question waits long for
// others.
type locator struct {
	c *Client

	mu     sync.Mutex // guards the map and the queues in it
	queues map[destination]*questionQueue
}

// destination is where a request goes. One request asks one node about one home region.
type destination struct {
	region rhumb.RegionID
	addr   string
}

// question asks whether one named key exists.
type question struct {
	table rhumb.TableID
	name  []byte
	asker questioner
	place int // identifies the question to its asker
}

// questioner receives answers, one for each question.
type questioner interface {
	// onLocated receives the answer to one question. It must not block. api.Undecided means that
	// the node did not answer the question.
	onLocated(place int, e api.Existence)
}

// questionQueue holds the questions to one destination.
type questionQueue struct {
	pending    []question // fewer than rhumb.LocateNamesMax
	unanswered int        // requests
	timerSet   bool       // a timer will send the pending questions
}

func newLocator(c *Client) *locator {
	return &locator{c: c, queues: map[destination]*questionQueue{}}
}

// askNode asks questions at one destination.
func (l *locator) askNode(d destination, asked ...question) {
	if len(asked) == 0 {
		return
	}
	// Batches are taken under the lock and sent after it: sending may run on this goroutine if the
	// client is closed.
	l.mu.Lock()
	q := l.queues[d]
	if q == nil {
		q = &questionQueue{}
		l.queues[d] = q
	}
	var batches [][]question
	q.pending = slices.Grow(q.pending, min(len(asked), rhumb.LocateNamesMax-len(q.pending)))
	for _, one := range asked {
		q.pending = append(q.pending, one)
		if len(q.pending) == rhumb.LocateNamesMax {
			batches = append(batches, q.takeBatchLocked()) // a full request gains nothing by waiting
		}
	}
	switch {
	case len(q.pending) == 0:
	case q.unanswered < locatesMax:
		batches = append(batches, q.takeBatchLocked())
	case !q.timerSet:
		q.timerSet = true
		time.AfterFunc(locateGatherMax, func() { l.onTimer(d, q) })
	}
	l.mu.Unlock()
	for _, batch := range batches {
		l.c.spawn(func() { l.sendBatches(d, q, batch) })
	}
}

// takeBatchLocked removes the pending questions as the next request. The locator's mutex is held.
func (q *questionQueue) takeBatchLocked() []question {
	batch := q.pending
	q.pending = nil
	q.unanswered++
	return batch
}

// onTimer sends the questions that have gathered for locateGatherMax.
func (l *locator) onTimer(d destination, q *questionQueue) {
	l.mu.Lock()
	q.timerSet = false
	var batch []question
	if len(q.pending) > 0 {
		batch = q.takeBatchLocked()
	}
	l.mu.Unlock()
	if batch != nil {
		l.c.spawn(func() { l.sendBatches(d, q, batch) })
	}
}

// sendBatches sends a batch, and then the questions that have gathered in the meantime.
func (l *locator) sendBatches(d destination, q *questionQueue, batch []question) {
	for batch != nil {
		l.sendBatch(d, batch)
		batch = nil
		l.mu.Lock()
		q.unanswered--
		switch {
		case len(q.pending) > 0 && q.unanswered < locatesMax:
			batch = q.takeBatchLocked()
		case len(q.pending) == 0 && q.unanswered == 0 && l.queues[d] == q:
			delete(l.queues, d) // or addresses of former nodes would gather
		}
		l.mu.Unlock()
	}
}

// sendBatch sends a batch in one request, without retries. Questions that stay undecided are read
// by their askers, with the redirects and retries of a read.
func (l *locator) sendBatch(d destination, batch []question) {
	// No retry: the askers' reads retry with the right redirects, and one slow range must not hold
	// up the others.
	located := l.requestBatch(d, batch)
	for i, q := range batch {
		e := api.Undecided
		if i < len(located) {
			e = located[i]
		}
		q.asker.onLocated(q.place, e)
	}
}

// requestBatch returns the node's answers to a batch, or nil without an answer.
func (l *locator) requestBatch(d destination, batch []question) []api.Existence {
	c := l.c
	conn, err := c.connTo(d.addr)
	if err != nil {
		return nil
	}
	ask := api.Locate{Region: d.region, Names: make([][]byte, len(batch)), Tables: make([]rhumb.TableID, len(batch))}
	// An estimate of the encoded size, as for a read.
	size := 32
	for i, q := range batch {
		ask.Names[i], ask.Tables[i] = q.name, q.table
		size += len(q.name) + 8
	}
	c.m.requests.Add(1)
	c.m.located.Add(uint64(len(batch)))
	req := &rhumbpb.Request{Locate: api.EncodeLocate(&ask), TimeoutUs: uint64(c.cfg.AttemptTimeout.Microseconds())}
	answer, err := conn.Do(c.ctx, stream.Request{Message: req, Size: size, Timeout: c.cfg.AttemptTimeout})
	// A node of an older build refuses the request. Its questions are read as well.
	if err != nil || answer.Error != nil || len(answer.Located) != len(batch) {
		return nil
	}
	c.countAnswer(answer)
	return answer.Located
}
