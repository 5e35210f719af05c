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
	// Questions gather while locatesMax requests to their destination are unanswered, but no longer than locateGatherMax: a
	// question does not wait for a whole round trip to a far region first.
	locatesMax      = 1
	locateGatherMax = 5 * time.Millisecond
)

// locator asks nodes which named keys exist. Questions of concurrent callers to one node share a request: a question goes
// at once while fewer than locatesMax requests to its node are unanswered, else it waits for one of these to be answered
// or for locateGatherMax. So requests grow with the load, and nobody waits long for company.
type locator struct {
	c *Client

	mu     sync.Mutex // guards the map and the queues in it
	queues map[destination]*questions
}

// destination is where a request goes: it asks about one home region at one node.
type destination struct {
	region rhumb.RegionID
	addr   string
}

// question asks whether one named key exists.
type question struct {
	table rhumb.TableID
	name  []byte
	from  questioner
	place int // of the question, for whom it is from
}

// questioner takes answers: one to each question, in a call that must not block. api.Undecided says that the node did not
// answer, or could not.
type questioner interface {
	located(place int, e api.Existence)
}

// questions are those to one destination.
type questions struct {
	pending  []question // at most rhumb.LocateNamesMax
	underWay int        // requests without an answer
	waiting  bool       // a timer will send what is pending
}

func newLocator(c *Client) *locator { return &locator{c: c, queues: map[destination]*questions{}} }

// ask takes questions to one destination.
func (l *locator) ask(d destination, asked ...question) {
	if len(asked) == 0 {
		return
	}
	l.mu.Lock()
	qs := l.queues[d]
	if qs == nil {
		qs = &questions{}
		l.queues[d] = qs
	}
	var batches [][]question
	qs.pending = slices.Grow(qs.pending, min(len(asked), rhumb.LocateNamesMax-len(qs.pending)))
	for _, q := range asked {
		qs.pending = append(qs.pending, q)
		if len(qs.pending) == rhumb.LocateNamesMax {
			batches = append(batches, qs.take())
		}
	}
	switch {
	case len(qs.pending) == 0:
	case qs.underWay < locatesMax:
		batches = append(batches, qs.take())
	case !qs.waiting:
		qs.waiting = true
		time.AfterFunc(locateGatherMax, func() { l.late(d, qs) })
	}
	l.mu.Unlock()
	for _, batch := range batches {
		l.c.spawn(func() { l.run(d, qs, batch) })
	}
}

// take takes what is pending as the next request; the locator's mutex is held.
func (qs *questions) take() []question {
	batch := qs.pending
	qs.pending = nil
	qs.underWay++
	return batch
}

// late sends what has gathered for locateGatherMax.
func (l *locator) late(d destination, qs *questions) {
	l.mu.Lock()
	qs.waiting = false
	var batch []question
	if len(qs.pending) > 0 {
		batch = qs.take()
	}
	l.mu.Unlock()
	if batch != nil {
		l.c.spawn(func() { l.run(d, qs, batch) })
	}
}

// run sends a batch, and then what has gathered meanwhile.
func (l *locator) run(d destination, qs *questions, batch []question) {
	for batch != nil {
		l.send(d, batch)
		batch = nil
		l.mu.Lock()
		qs.underWay--
		switch {
		case len(qs.pending) > 0 && qs.underWay < locatesMax:
			batch = qs.take()
		case len(qs.pending) == 0 && qs.underWay == 0 && l.queues[d] == qs:
			delete(l.queues, d)
		}
		l.mu.Unlock()
	}
}

// send asks a batch in one request, once. The callers read what stays undecided, with redirects and retries.
func (l *locator) send(d destination, batch []question) {
	located := l.request(d, batch)
	for i, q := range batch {
		e := api.Undecided
		if i < len(located) {
			e = located[i]
		}
		q.from.located(q.place, e)
	}
}

// request returns the node's answers to a batch; none if it gave none.
func (l *locator) request(d destination, batch []question) []api.Existence {
	c := l.c
	conn, err := c.connTo(d.addr)
	if err != nil {
		return nil
	}
	ask := api.Locate{Region: d.region, Names: make([][]byte, len(batch)), Tables: make([]rhumb.TableID, len(batch))}
	size := 32
	for i, q := range batch {
		ask.Names[i], ask.Tables[i] = q.name, q.table
		size += len(q.name) + 8
	}
	c.m.requests.Add(1)
	c.m.located.Add(uint64(len(batch)))
	req := &rhumbpb.Request{Locate: api.EncodeLocate(&ask), TimeoutUs: uint64(c.cfg.AttemptTimeout.Microseconds())}
	answer, err := conn.Do(c.ctx, stream.Request{Message: req, Size: size, Timeout: c.cfg.AttemptTimeout})
	if err != nil || answer.Error != nil || len(answer.Located) != len(batch) {
		return nil
	}
	c.count(answer)
	return answer.Located
}
