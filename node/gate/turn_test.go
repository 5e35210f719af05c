package gate

import (
	"testing"
	"time"
)

// reading reads from a connection on a goroutine, and reports on the channel when the data is returned.
func reading(c *Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		done <- err
	}()
	return done
}

// awaitTurns waits until so many connections wait for a turn.
func (w *world) awaitTurns(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); w.turns.count() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections wait for a turn, want %d", w.turns.count(), n)
		}
	}
}

// TestTurns guards that few early connections compute at the same time, who is next, that those who wait for their caller
// hold no turn, and that authenticated connections need none.
func TestTurns(t *testing.T) {
	w := newWorld(t, Config{Port: "test"})
	w.turns.free = 1
	// Five strangers, who send a byte each, and one who is silent.
	var conns []*Conn
	for range 6 {
		client := w.dial(t, "127.0.0.1")
		conns = append(conns, w.next(t))
		if len(conns) < 6 {
			if _, err := client.Write([]byte{1, 2}); err != nil {
				t.Fatal(err)
			}
		}
	}
	silent := reading(conns[5])
	if err := <-reading(conns[0]); err != nil {
		t.Fatal(err)
	}
	// The first one computes, so the others wait. One of them was answered before.
	conns[2].answered.Store(true)
	var waiting []<-chan error
	for i, c := range conns[1:5] {
		waiting = append(waiting, reading(c))
		w.awaitTurns(t, i+1)
	}
	turn := func(c *Conn) bool {
		w.turns.mu.Lock()
		defer w.turns.mu.Unlock()
		return c.turn
	}
	// next ends the turn of one connection and expects another one to have it.
	next := func(how string, end func(), i int) {
		t.Helper()
		end()
		if err := <-waiting[i-1]; err != nil {
			t.Errorf("%s: connection %d: %v", how, i, err)
		}
		if !turn(conns[i]) {
			t.Errorf("%s: connection %d has no turn", how, i)
		}
	}
	next("an answer", func() { _, _ = conns[0].Write([]byte{1}) }, 2)
	next("a read", func() { reading(conns[2]) }, 4) // its second byte waits for a turn, and was not answered by Write
	_ = conns[2].Close()
	next("a closed connection", func() { _ = conns[4].Close() }, 3)
	next("an authenticated connection", func() { conns[3].Authenticated() }, 1)
	if err := <-reading(conns[3]); err != nil {
		t.Errorf("an authenticated connection waits for a turn: %v", err)
	}
	_ = conns[1].Close()
	_ = conns[5].Close()
	if <-silent == nil {
		t.Error("a silent connection was read")
	}
	w.awaitTurns(t, 0)
	w.turns.mu.Lock()
	defer w.turns.mu.Unlock()
	if w.turns.free != 1 {
		t.Errorf("%d turns are free at the end, want 1", w.turns.free)
	}
}

// TestNextTurn guards the order: nodes, then handshakes that were answered, then the youngest.
func TestNextTurn(t *testing.T) {
	conn := func(node, answered bool, number uint64) *Conn {
		c := &Conn{node: node, number: number}
		c.answered.Store(answered)
		return c
	}
	order := []*Conn{conn(true, true, 3), conn(true, false, 7), conn(true, false, 2), conn(false, true, 4), conn(false, true, 1), conn(false, false, 9), conn(false, false, 8)}
	// The order of arrival at the turns must not matter.
	waiting := []*Conn{order[4], order[6], order[2], order[0], order[5], order[1], order[3]}
	for i, want := range order {
		n := nextTurn(waiting)
		if waiting[n] != want {
			t.Fatalf("turn %d: connection %d", i, waiting[n].number)
		}
		waiting = append(waiting[:n], waiting[n+1:]...)
	}
	if nextTurn(nil) != -1 {
		t.Error("somebody is next although nobody waits")
	}
}
