package gate

import (
	"runtime"
	"sync"
)

// turnShare is the share of the processors that may compute for early connections of one gate: a
// half. Handshakes take a millisecond of a processor each, and strangers may begin any number.
const turnShare = 2

// turns bounds how many early connections of a gate compute at the same time.
//
// The bound on early connections is not enough. With hundreds of handshakes in progress on a few
// processors, each takes seconds: callers abandon handshakes that are half done and begin others, none
// finishes, and heartbeats are late. With few at a time, each handshake that gets a turn is finished in
// milliseconds.
//
// A connection holds a turn from the arrival of data until it reads or writes again, so it holds none
// while it waits for its caller: strangers who connect and send nothing take no turns.
type turns struct {
	mu      sync.Mutex // guards all below, and the turn fields of all Conns
	free    int
	waiting []*Conn // in the order of their arrival here
}

func newTurns() turns { return turns{free: max(runtime.GOMAXPROCS(0)/turnShare, 1)} }

// take waits until the connection may compute. It returns without a turn if the connection ends or is
// authenticated.
func (t *turns) take(c *Conn) {
	t.mu.Lock()
	// A connection that was closed or authenticated meanwhile would keep its turn.
	if c.turn || c.given != nil || c.ended.Load() || c.known.Load() {
		t.mu.Unlock()
		return
	}
	if t.free > 0 {
		t.free--
		c.turn = true
		t.mu.Unlock()
		return
	}
	given := make(chan struct{})
	c.given = given
	t.waiting = append(t.waiting, c)
	t.mu.Unlock()
	<-given
}

// yield ends the turn of a connection, or its wait for one, and passes the turn to the next connection.
func (t *turns) yield(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.given != nil {
		for i, o := range t.waiting {
			if o == c {
				t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
				break
			}
		}
		close(c.given)
		c.given = nil
	}
	if !c.turn {
		return
	}
	c.turn = false
	next := nextTurn(t.waiting)
	if next < 0 {
		t.free++
		return
	}
	o := t.waiting[next]
	t.waiting = append(t.waiting[:next], t.waiting[next+1:]...)
	o.turn = true
	close(o.given)
	o.given = nil
}

// count returns how many connections wait.
func (t *turns) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}

// nextTurn returns which of the waiting connections has the next turn, or -1 if none waits.
//
// Nodes come first, because replication waits for them. Then come handshakes that the node has already
// answered: they need one more turn, or the work on them is lost. Among the others, the youngest is first. Its caller
// is still there, while the caller of the oldest is about to give up. In the order of arrival, a node with a
// backlog would serve only callers that have given up.
func nextTurn(waiting []*Conn) int {
	best := -1
	for i, c := range waiting {
		if best < 0 {
			best = i
			continue
		}
		b := waiting[best]
		switch {
		case c.node != b.node:
			if c.node {
				best = i
			}
		case c.answered.Load() != b.answered.Load():
			if c.answered.Load() {
				best = i
			}
		case c.number > b.number:
			best = i
		}
	}
	return best
}
